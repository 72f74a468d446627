# -*- test-case-name: tests.unit.kafka.serving.test_serveroptions -*-
"""
The options of C{twistd admission}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import evolve
from twisted.internet.task import Clock

from admission.clock import wallSeconds
from admission.interfaces import IPurgatory, IPurgatoryFactory, PolicyContext
from admission.plugins import PolicyKind

from ..security.authoptions import AuthOptions
from ..serving.listenoptions import BrokerOptions
from ..serving.serveroptions import ServerOptions, buildChosen, portOf
from .brokersettings import Settings, loadSettings

_EXAMPLES = """
Examples:
  twistd -n admission --listen tcp:9092:interface=127.0.0.1 --data ./data
  twistd -n admission --listen tcp:9092 --listen ssl:9093:privateKey=key.pem:certKey=cert.pem
  twistd -n admission --listen ssl:9093:privateKey=key.pem:certKey=cert.pem --auth scram:users
  twistd -n admission --listen tcp:9092:interface=127.0.0.1 --listen ssl:9093:privateKey=key.pem:certKey=cert.pem \\
      --auth 9093=scram:users
  twistd -n admission --quota client-bytes:produce=4M:fetch=8M --status tcp:9090:interface=127.0.0.1
  twistd -n admission --config broker.properties --set queued.max.request.bytes=256MiB --export spark:recording
"""


class Options(ServerOptions, BrokerOptions, AuthOptions):
    """
    The options of a broker.
    """

    policyKinds: ClassVar[Sequence[PolicyKind]] = (
        *ServerOptions.policyKinds,
        PolicyKind("purgatory", IPurgatoryFactory),
    )
    configured: ClassVar[Sequence[str]] = (*ServerOptions.configured, "auth", "purgatory")
    longdesc = (
        "A broker that speaks the Kafka protocol and never holds more of its clients' requests in memory than it was "
        "told to."
    )
    examples: ClassVar[str] = _EXAMPLES

    def loadSettings(self, path: str | None, assignments: Sequence[str], isPoolChosen: bool) -> Settings:
        return loadSettings(path, assignments, isPoolChosen)

    def postOptions(self) -> None:
        super().postOptions()
        ports = [portOf(each.description) for each in self["listeners"]]
        self.checkPorts(ports)
        self["listeners"] = [
            evolve(listener, checkers=self.checkersAt(port))
            for listener, port in zip(self["listeners"], ports, strict=True)
        ]
        buildPurgatory(self["purgatory"], Clock())


def buildPurgatory(description: str | None, clock: Any) -> IPurgatory:
    """
    Build the purgatory.

    @param description: the value of C{--purgatory}, or L{None} for the default.
    @raise UsageError: if it cannot be built.
    """
    context = PolicyContext(clock, wallSeconds)
    purgatory: IPurgatory = buildChosen("purgatory", IPurgatoryFactory, description or "wheel", context)
    return purgatory

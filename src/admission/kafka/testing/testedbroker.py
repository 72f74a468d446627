# -*- test-case-name: tests.unit.kafka.testing.test_testedbroker -*-
"""
What runs in the process of a L{BrokerProcess<admission.kafka.testing.BrokerProcess>}: the service of C{twistd
admission}, and what carries out the orders that come by standard input.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.protocol import connectionDone
from twisted.logger import FileLogObserver, Logger, globalLogBeginner
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure
from twisted.python.usage import UsageError

from admission.interfaces import DEFAULT, QuotaEntity

from ..broker.brokeroptions import Options
from ..broker.brokersettings import Settings
from ..broker.service import BrokerService, makeService
from ..serving.logformat import asText
from ..serving.quotalimits import Alteration
from ..storage.itable import LogRefusal
from .takenmemory import TakenMemory

_QUOTAS = ("client-bytes:algorithm=bucket", "request-time", "producer-ids")
"""The policies of a broker that is given none, of which those that count bytes forgive no more than a second."""


class OptionsForTests(Options):
    """
    The options of a broker, with other defaults: tests do not wait for what protects from losses of power, or for
    members that do not come.
    """

    def loadSettings(self, path: str | None, assignments: Sequence[str], isPoolChosen: bool) -> Settings:
        settings = super().loadSettings(path, assignments, isPoolChosen)
        if "group.initial.rebalance.delay.ms" not in settings.places:
            settings = evolve(settings, groupInitialRebalanceDelaySeconds=0.0)
        if "write.caching" not in settings.places:
            settings = evolve(settings, writeCaching=True)
        return settings

    def postOptions(self) -> None:
        super().postOptions()
        self["quota"] = self["quota"] or [*_QUOTAS]


class Orders(LineOnlyReceiver):
    """
    Takes orders from the process that has started this one.  An order is a list in JSON: a word, and the arguments of
    the method for that word.  Each is answered with an object, C{result} or C{refused} in it; another answer comes once
    the broker serves.

    When the other end is gone, the process is killed, and nothing is left of its directory.
    """

    delimiter = b"\n"
    _log = Logger()

    def __init__(self, service: BrokerService, directory: str) -> None:
        """
        @param directory: has all that the broker keeps.
        """
        self._service = service
        self._directory = directory
        self._taken = TakenMemory(service.broker.gate)

    def connectionMade(self) -> None:
        self._say({"result": None})

    def lineReceived(self, line: bytes) -> None:
        word, *arguments = json.loads(line)
        carry: dict[str, Callable[..., Any]] = {
            "limit": self.limit,
            "fill": self._taken.take,
            "empty": self._taken.release,
            "sensors": self.sensors,
        }
        carrying: Deferred[Any] = maybeDeferred(carry[word], *arguments)
        carrying.addCallbacks(lambda result: {"result": result}, self._refused).addCallback(self._say)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        from twisted.internet import reactor

        running: Any = reactor
        if running.running:
            shutil.rmtree(self._directory, ignore_errors=True)
            os._exit(1)

    def limit(self, clientId: str | None, user: str | None, changes: Mapping[str, float | None]) -> Deferred[None]:
        """
        Set limits, or with L{None} remove them.

        @return: fails with a L{LogRefusal} if one is impossible.
        """
        entity = QuotaEntity(user, DEFAULT if clientId is None and user is None else clientId)

        def altered(verdicts: Sequence[LogRefusal | None]) -> None:
            for refusal in filter(None, verdicts):
                raise refusal

        limits = self._service.broker.limits
        return limits.alter([Alteration(entity, changes)], False, "the test").addCallback(altered)

    def sensors(self) -> dict[str, float]:
        """
        The values of all sensors.
        """
        return dict(self._service.sensors)

    def _refused(self, failure: Failure) -> dict[str, str]:
        if not isinstance(failure.value, LogRefusal | ValueError):
            self._log.failure("an order cannot be carried out", failure)
        return {"refused": failure.getErrorMessage()}

    def _say(self, answer: Mapping[str, Any]) -> None:
        self.sendLine(json.dumps(answer).encode("ascii"))  # type: ignore[no-untyped-call]


def main(directory: str, arguments: Sequence[str]) -> None:
    """
    Run the broker until a signal ends it, or standard input.

    @param directory: has all that the broker keeps; removed if standard input ends.
    @param arguments: options of the broker.
    """
    from twisted.internet import reactor, stdio

    globalLogBeginner.beginLoggingTo([FileLogObserver(sys.stderr, asText)], redirectStandardIO=False)
    options = OptionsForTests()
    try:
        options.parseOptions(arguments)
    except UsageError as error:
        raise SystemExit(str(error)) from error
    service = makeService(options)
    service.privilegedStartService()
    service.startService()
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    stdio.StandardIO(Orders(service, directory))  # type: ignore[no-untyped-call]
    reactor.run()

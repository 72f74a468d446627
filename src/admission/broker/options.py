# -*- test-case-name: tests.test_options -*-
"""
The options of C{twistd admission}.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from attrs import frozen
from twisted.internet.endpoints import serverFromString
from twisted.internet.interfaces import IStreamServerEndpoint
from twisted.internet.task import Clock
from twisted.python.usage import UsageError

from ..clock import wallSeconds
from ..interfaces import IMemoryPool, IMemoryPoolFactory, IPurgatory, IPurgatoryFactory, PolicyContext
from ..plugins import PolicyError, PolicyKind, PolicyOptionsMixin, buildPolicy
from ..units import formatBytes
from .broker import Address
from .settings import Settings, loadSettings

_QUEUED = "queued.max.request.bytes"
_LARGEST = "socket.request.max.bytes"

_ADDRESS = re.compile(r"(?:\[(?P<bracketed>[^][\s]+)\]|(?P<host>[^][:\s]+)):(?P<port>[0-9]{1,5})")

_EXAMPLES = """
Examples:
  twistd -n admission --listen tcp:9092:interface=127.0.0.1 --data ./data
  twistd -n admission --listen tcp:9092 --listen ssl:9093:privateKey=key.pem:certKey=cert.pem
  twistd -n admission --config broker.properties --set queued.max.request.bytes=256MiB
"""


@frozen
class Listener:
    """
    Where to listen, and what to tell clients about it.

    @ivar description: the endpoint as it was given.
    @ivar advertised: L{None} for the address that a client has reached.
    """

    description: str
    endpoint: IStreamServerEndpoint
    advertised: Address | None


class Options(PolicyOptionsMixin):
    """
    What the broker is told when it is started.

    After parsing, C{settings} and C{listeners} are keys as well.
    """

    policyKinds = (PolicyKind("pool", IMemoryPoolFactory), PolicyKind("purgatory", IPurgatoryFactory))

    synopsis = "[options]"
    longdesc = (
        "A broker that speaks the Kafka protocol and never holds more of its clients' requests in memory than it was "
        "told to."
    )

    optParameters = [
        ["data", "d", "data", "The directory of the log; made if it is not there."],
        ["config", "c", None, "A file of properties, by Kafka's names."],
    ]

    def __init__(self) -> None:
        super().__init__()
        self["listen"] = []
        self["advertise"] = []
        self["set"] = []

    def opt_listen(self, endpoint: str) -> None:
        """An endpoint to listen on; may come several times. [default: tcp:9092:interface=127.0.0.1]"""
        self["listen"].append(endpoint)

    opt_l = opt_listen

    def opt_advertise(self, address: str) -> None:
        """HOST:PORT told to clients, one for each --listen. [default: what the client has reached]"""
        self["advertise"].append(parseAddress(address))

    def opt_set(self, assignment: str) -> None:
        """A property, as NAME=VALUE; may come several times."""
        self["set"].append(assignment)

    def getUsage(self, width: int | None = None) -> str:
        """
        The usage text, with examples that keep their lines.
        """
        usage: str = super().getUsage(width)
        return usage + _EXAMPLES

    def postOptions(self) -> None:
        """
        Find what is wrong while it can still be said in a sentence.
        """
        self["settings"] = loadSettings(self["config"], self["set"], isPoolChosen=self["pool"] is not None)
        descriptions: Sequence[str] = self["listen"] or ["tcp:9092:interface=127.0.0.1"]
        advertised: Sequence[Address | None] = self["advertise"] or [None] * len(descriptions)
        if len(advertised) != len(descriptions):
            raise UsageError(
                f"--advertise is given {len(advertised)} times and --listen {len(descriptions)} times; "
                "give one --advertise for each --listen, in the same order, or none"
            )
        self["listeners"] = [
            Listener(description, _endpoint(description), address)
            for description, address in zip(descriptions, advertised, strict=True)
        ]
        # Built again when the broker starts, which may be in another process.
        clock = Clock()
        buildPool(self["settings"], self["pool"], clock)
        buildPurgatory(self["purgatory"], clock)


def parseAddress(text: str) -> Address:
    """
    Read HOST:PORT; an IPv6 address goes in brackets.

    @raise UsageError: if it is not of that form.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise UsageError(f"--advertise {text}: write HOST:PORT, as in broker.example:9092 or [2001:db8::1]:9092")
    return Address(match["bracketed"] or match["host"], int(match["port"]))


def buildPool(settings: Settings, description: str | None, clock: Any) -> IMemoryPool:
    """
    The memory pool that the options ask for.

    @param description: what C{--pool} says, or L{None}; then the properties decide.
    @raise UsageError: if the description and the properties contradict each other.
    """
    queuedBytes, largestBytes = settings.queuedMaxRequestBytes, settings.socketRequestMaxBytes
    if description is None:
        description = f"bounded:{queuedBytes}" if queuedBytes > 0 else "unbounded"
        return _build(description, PolicyContext(clock, wallSeconds, largestBytes))
    pool = _build(description, PolicyContext(clock, wallSeconds, largestBytes))
    place = settings.places.get(_QUEUED)
    if place is not None:
        isBounded = pool.sizeBytes < 2**63 - 1
        if isBounded != (queuedBytes > 0) or (isBounded and pool.sizeBytes != queuedBytes):
            size = formatBytes(pool.sizeBytes) if isBounded else "no bound"
            configured = formatBytes(queuedBytes) if queuedBytes > 0 else "no bound"
            raise UsageError(
                f"--pool {description} means {size} and {_QUEUED} means {configured} ({place}); keep one of them"
            )
    place = settings.places.get(_LARGEST)
    if place is not None and pool.largestBytes < largestBytes:
        raise UsageError(
            f"--pool {description} allows requests of {formatBytes(pool.largestBytes)} and {_LARGEST} "
            f"{formatBytes(largestBytes)} ({place}); make the pool larger or {_LARGEST} smaller"
        )
    return pool


def buildPurgatory(description: str | None, clock: Any) -> IPurgatory:
    """
    The purgatory that the options ask for.

    @param description: what C{--purgatory} says, or L{None} for the default.
    @raise UsageError: if it cannot be built.
    """
    try:
        purgatory: IPurgatory = buildPolicy(
            IPurgatoryFactory, description or "wheel", PolicyContext(clock, wallSeconds)
        )
    except PolicyError as error:
        raise UsageError(f"--purgatory: {error}") from error
    return purgatory


def _build(description: str, context: PolicyContext) -> IMemoryPool:
    try:
        pool: IMemoryPool = buildPolicy(IMemoryPoolFactory, description, context)
    except PolicyError as error:
        raise UsageError(f"--pool: {error}") from error
    return pool


def _endpoint(description: str) -> IStreamServerEndpoint:
    from twisted.internet import reactor

    try:
        endpoint: IStreamServerEndpoint = serverFromString(reactor, description)  # type: ignore[no-untyped-call]
    except Exception as error:
        # Each kind of endpoint has its own way to refuse its arguments.
        raise UsageError(
            f"--listen {description}: {error}; write an endpoint such as tcp:9092:interface=127.0.0.1 or "
            "ssl:9093:privateKey=key.pem:certKey=cert.pem"
        ) from error
    return endpoint

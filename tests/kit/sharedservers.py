"""Servers that enforce a limit together, on virtual time, and an exchange between them that does what it is told to."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from attrs import define, field
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from zope.interface import implementer

from admission.control import AdmissionControl
from admission.interfaces import IQuotaPolicyFactory, IUsageExchange, PolicyContext, Request, Usage
from admission.plugins import buildPolicy
from admission.shares.limitsharing import LimitSharing

INTERVAL_SECONDS = 0.1
RATE = 1_000_000.0
REQUEST_BYTES = 16_000


@define
class Topic:
    """
    What all servers read, in one order.

    @ivar tripSeconds: how long a message takes, given the random source.
    @ivar fate: what becomes of a message: how often it is delivered.
    @ivar isCut: whether nothing gets through.
    """

    clock: Clock
    tripSeconds: Callable[[], float] = lambda: 0.03
    fate: Callable[[], int] = lambda: 1
    isCut: bool = False
    readers: list[Callable[[bytes, bool], object]] = field(factory=list)
    kept: list[bytes] = field(factory=list)
    _nextSeconds: float = 0.0

    def send(self, message: bytes, isKept: bool) -> None:
        """Have everybody read it, a while later, and after what came before."""
        if self.isCut:
            return
        for _ in range(self.fate()):
            now = self.clock.seconds()
            self._nextSeconds = max(self._nextSeconds, now + self.tripSeconds())
            self.clock.callLater(self._nextSeconds - now, self._deliver, message, isKept)

    def _deliver(self, message: bytes, isKept: bool) -> None:
        if isKept:
            self.kept.append(message)
        for each in list(self.readers):
            each(message, False)


@implementer(IUsageExchange)
class FakeExchange:
    """One server's end of it."""

    intervalSeconds = INTERVAL_SECONDS

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._deliver: Callable[[bytes, bool], object] | None = None

    def start(self, deliver: Callable[[bytes, bool], object]) -> None:
        """What is kept comes first."""
        for message in self._topic.kept:
            deliver(message, True)
        self._deliver = deliver
        self._topic.readers.append(deliver)

    def publish(self, message: bytes, isKept: bool) -> None:
        """Send it, unless this end is closed."""
        if self._deliver is not None:
            self._topic.send(message, isKept)

    def stop(self) -> Deferred[None]:
        """Hear nothing more."""
        if self._deliver is not None:
            self._topic.readers.remove(self._deliver)
            self._deliver = None
        return succeed(None)

    def trouble(self) -> str | None:
        """As it was told to."""
        return "it was cut" if self._topic.isCut else None


class SharedServer:
    """A server with one policy, whose clients are throttled as a gateway's are: each connection waits."""

    def __init__(self, topic: Topic, description: str = "", name: str = "", **settings: Any) -> None:
        self.clock = topic.clock
        context = PolicyContext(self.clock, lambda: 0.0)
        description = description or f"client-bytes:received={RATE:.0f}:shared=yes"
        policy = buildPolicy(IQuotaPolicyFactory, description, context)
        self.control = AdmissionControl([("client-bytes", policy)])
        self.exchange = FakeExchange(topic)
        self.sharing = LimitSharing(self.exchange, self.control, self.clock, name or f"{id(self)}", **settings)
        self.sharing.start()
        self.tookBytes = 0.0
        self.isStopped = False

    def connect(self, wantedRate: float = float("inf")) -> None:
        """A client that sends as fast as it may, or at a rate."""
        sizeBytes = REQUEST_BYTES
        request = Request("Produce", "", "alice", "192.0.2.1", sizeBytes)

        def send() -> None:
            if self.isStopped:
                return
            self.tookBytes += sizeBytes
            delaySeconds = self.control.charge(request, Usage(sizeBytes), self.clock.seconds()).delaySeconds
            # Something takes time also where nothing is in the way: ten times the limit at most.
            self.clock.callLater(max(delaySeconds, sizeBytes / min(wantedRate, 10 * RATE)), send)

        send()

    def kill(self) -> None:
        """It says nothing any more."""
        self.isStopped = True
        self.exchange.stop()
        self.sharing.stop()


class Together:
    """
    Several servers, and what their clients get of a limit.

    @ivar seconds: by second, how many times the limit they got.
    """

    def __init__(self, count: int, seed: int = 1, **settings: Any) -> None:
        self.clock = Clock()
        random = Random(seed)
        self.topic = Topic(self.clock, lambda: random.uniform(0.02, 0.04))
        self.servers = [SharedServer(self.topic, name=f"s{number}", **settings) for number in range(count)]
        self.seconds: list[float] = []
        self._tookBytes = 0.0

    @property
    def tookBytes(self) -> float:
        """What all clients got."""
        return sum(each.tookBytes for each in self.servers)

    def pass_(self, seconds: int) -> list[float]:
        """Let time pass."""
        for _ in range(seconds):
            self.clock.pump([0.005] * 200)
            self.seconds.append((self.tookBytes - self._tookBytes) / RATE)
            self._tookBytes = self.tookBytes
        return self.seconds[-seconds:]

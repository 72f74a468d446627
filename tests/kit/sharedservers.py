"""Servers that enforce a limit together, on virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from twisted.internet.task import Clock

from admission.control import AdmissionControl
from admission.interfaces import IQuotaPolicyFactory, PolicyContext, Request, Usage
from admission.plugins import buildPolicy
from admission.shares.limitsharing import LimitSharing
from admission.testing.scriptedexchange import ScriptedExchange, ScriptedLine

INTERVAL_SECONDS = 0.1
RATE = 1_000_000.0
REQUEST_BYTES = 16_000


def beyond(seconds: Sequence[float]) -> float:
    """
    How far clients were beyond the limit at most, in any stretch of whole seconds.

    @param seconds: by second, how many times the limit they got.
    """
    worst = run = 0.0
    for each in seconds:
        run = max(run, 0.0) + each - 1.0
        worst = max(worst, run)
    return worst


class SharedServer:
    """A server with one policy, whose clients are throttled as a gateway's are: each connection waits."""

    def __init__(
        self, line: ScriptedLine, description: str = "", name: str = "", isStarted: bool = True, **settings: Any
    ) -> None:
        self.clock = line.clock
        context = PolicyContext(self.clock, lambda: 0.0)
        description = description or f"client-bytes:received={RATE:.0f}:shared=yes"
        policy = buildPolicy(IQuotaPolicyFactory, description, context)
        self.control = AdmissionControl([("client-bytes", policy)])
        self.exchange = ScriptedExchange(line, INTERVAL_SECONDS)
        self.sharing = LimitSharing(self.exchange, self.control, self.clock, name or f"{id(self)}", **settings)
        if isStarted:
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
        self.line = ScriptedLine(self.clock, lambda: random.uniform(0.02, 0.04))
        self.servers = [SharedServer(self.line, name=f"s{number}", **settings) for number in range(count)]
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

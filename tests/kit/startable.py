"""A policy that is told when its server begins and ends."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from zope.interface import implementer

from admission.interfaces import ADMITTED, Decision, IStartable, Request, Usage
from admission.quotas.policy import QuotaPolicy


@implementer(IStartable)
class Startable(QuotaPolicy):
    """Has something of its own while its server runs."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble
        self.calls: list[str] = []
        self.stopped: Deferred[None] = Deferred()

    def decide(self, request: Request, now: float) -> Decision:
        """Everybody may."""
        return ADMITTED

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """Nobody waits."""
        return 0.0

    def start(self) -> None:
        """Fail, if it is to."""
        self.calls.append("start")
        if self.trouble == "start":
            raise OSError("no such thing")

    def stop(self) -> Deferred[None]:
        """Likewise; else it takes a while."""
        self.calls.append("stop")
        if self.trouble == "stop":
            raise OSError("no such thing")
        return self.stopped

# -*- test-case-name: tests.unit.connection.test_wrapping -*-
"""
The producer of a wrapped protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from ..policyfailure import FAILURES
from .pauses import Pause


class WrappedProducer:
    """
    The producer that a protocol has registered, paused for as long as anybody
    has a reason.

    A pull producer is asked once, and again after each time that something was
    written; in a turn of its own, and so never from within what it does itself.

    @ivar producer: the producer, if there is one.
    @ivar isStreaming: whether it pushes.
    """

    __slots__ = ("_clock", "_failed", "_isPullDue", "_pulling", "_reasons", "isStreaming", "producer")

    def __init__(self, clock: IReactorTime, failed: Callable[[], None]) -> None:
        """
        @param failed: called from within the C{except} when the producer raises.
        """
        self._clock = clock
        self._failed = failed
        self._reasons: set[Pause] = set()
        self._pulling: IDelayedCall | None = None
        self._isPullDue = False
        self.producer: Any = None
        self.isStreaming = False

    def register(self, producer: Any, isStreaming: bool) -> None:
        """
        Let C{producer} write.

        @raise RuntimeError: if there is one already.
        """
        if self.producer is not None:
            raise RuntimeError(
                f"Cannot register producer {producer}, because producer {self.producer} was never unregistered."
            )
        self.producer = producer
        self.isStreaming = isStreaming
        if not isStreaming:
            self.wrote()
        elif self._reasons:
            self._tell("pauseProducing")

    def wrote(self) -> None:
        """
        Something was written, perhaps by the producer.
        """
        if self.producer is not None and not self.isStreaming:
            self._isPullDue = True
            self._pullSoon()

    def unregister(self) -> None:
        """
        There is no producer any more.
        """
        self.producer = None
        self._isPullDue = False
        if self._pulling is not None:
            self._pulling.cancel()
            self._pulling = None

    def stop(self) -> None:
        """
        The connection is gone.
        """
        if self.producer is not None:
            self._tell("stopProducing")
        self.unregister()

    def hold(self, reason: Pause) -> None:
        """
        Pause it, for C{reason}.  No effect if it is a reason already.
        """
        wasHeld = bool(self._reasons)
        self._reasons.add(reason)
        if self.producer is not None and self.isStreaming and not wasHeld:
            self._tell("pauseProducing")

    def release(self, reason: Pause) -> None:
        """
        C{reason} is gone: if it was the last, the producer goes on.
        """
        if reason not in self._reasons:
            return
        self._reasons.discard(reason)
        if self.producer is None or self._reasons:
            return
        if self.isStreaming:
            self._tell("resumeProducing")
        else:
            self._pullSoon()

    def _pullSoon(self) -> None:
        if self._isPullDue and self._pulling is None and not self._reasons:
            self._pulling = self._clock.callLater(0, self._pull)

    def _pull(self) -> None:
        self._pulling = None
        if not self._reasons:
            self._isPullDue = False
            self._tell("resumeProducing")

    def _tell(self, method: str) -> None:
        try:
            getattr(self.producer, method)()
        except FAILURES:
            self._failed()

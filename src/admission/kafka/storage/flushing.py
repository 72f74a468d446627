# -*- test-case-name: tests.unit.kafka.storage.test_flushing -*-
"""
Flushing what was written to the disk, in rounds that serve everybody who waits.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from attrs import frozen
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from .disk import explain

DeferToThread = Callable[..., Deferred[Any]]
"""As L{twisted.internet.threads.deferToThread}."""

MAX_THREADS: Final = 4
"""How many threads share a round."""

SLOW_SECONDS: Final = 10.0
"""From what time on a round that is not over is a problem."""

RETRY_SECONDS: Final = 0.5
"""When a round is tried again that had no descriptor left for a directory; nothing is lost by that."""


@frozen
class Round:
    """
    @ivar flushes: what to call in threads.
    @ivar succeeded: called in the reactor's thread when all have returned.  Must not raise.
    """

    flushes: Sequence[Callable[[], object]]
    succeeded: Callable[[], object]


class Flusher:
    """
    Begins a round once in an interval if something was written, and at once if somebody
    waits; never two at the same time.

    After a flush that failed there is no other: the system may have dropped what it
    could not write, and a later flush would succeed without it.

    @ivar problem: why the flush failed; L{None} if none has.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        deferToThread: DeferToThread,
        intervalSeconds: float,
        begin: Callable[[bool], Round],
        failed: Callable[[], object],
    ) -> None:
        """
        @param intervalSeconds: how long written data waits at most before its flush
            begins, unless one is going on.
        @param begin: says what to flush: everything, or only what somebody waits for.  Must not
            raise.
        @param failed: called once, when a flush has failed.  Must not raise.
        """
        self.problem: str | None = None
        self._clock = clock
        self._deferToThread = deferToThread
        self._intervalSeconds = intervalSeconds
        self._begin = begin
        self._failed = failed
        self._isRunning = False
        self._begunSeconds = 0.0
        # Why the present round has to be tried again.
        self._obstacle: str | None = None
        self._isUrgent = False
        self._isDue = False
        self._timer: IDelayedCall | None = None
        self._isClosing = False
        self._closed: Deferred[None] | None = None

    @property
    def delay(self) -> str | None:
        """
        Why nobody is told that the disk has anything; L{None} unless the disk hangs.
        """
        if self._obstacle is not None:
            return f"what has to be on the disk is not confirmed, because it cannot be flushed: {self._obstacle}"
        lastedSeconds = self._clock.seconds() - self._begunSeconds
        if not self._isRunning or lastedSeconds < SLOW_SECONDS:
            return None
        return (
            f"a flush to the disk has not ended for {lastedSeconds:.0f} s; what has to be on the disk is not confirmed"
            " before it has: see to the disk"
        )

    def written(self) -> None:
        """
        Something was written.
        """
        if self._timer is None and not self._isDue and not self._isClosing:
            self._timer = self._clock.callLater(self._intervalSeconds, self._intervalOver)

    def soon(self) -> None:
        """
        Begin a round for those who wait, when the present one has ended.
        """
        self._isUrgent = True
        self._next()

    def everything(self) -> None:
        """
        Begin a round of everything in the next turn, or when the present one has ended.
        """
        if self._isDue or self._isClosing or self.problem is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.callLater(0, self._intervalOver)

    def close(self) -> Deferred[None]:
        """
        Flush everything for the last time.  Call it once.

        @return: fires when that has succeeded or failed; never with a failure.
        """
        self._closed = Deferred()
        self._isClosing = self._isDue = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        closed = self._closed
        self._next()
        return closed

    def _intervalOver(self) -> None:
        self._timer = None
        self._isDue = True
        self._next()

    def _next(self) -> None:
        if self._isRunning:
            return
        if (self._isUrgent or self._isDue) and self.problem is None:
            everything = self._isDue
            self._isUrgent = self._isDue = False
            self._run(self._begin(everything))
        elif self._closed is not None:
            closed, self._closed = self._closed, None
            closed.callback(None)

    def _run(self, round: Round) -> None:
        self._isRunning = True
        self._begunSeconds = self._clock.seconds()
        self._flush(round)

    def _flush(self, round: Round) -> None:
        flushes = round.flushes
        shares = [flushes[number::MAX_THREADS] for number in range(min(MAX_THREADS, len(flushes)))]
        # All are waited for, even if one has failed: their descriptors are in use.
        running = DeferredList(
            [maybeDeferred(self._deferToThread, callAll, share) for share in shares], consumeErrors=True
        )
        running.addCallback(self._over, round)

    def _over(self, results: list[tuple[bool, Any]], round: Round) -> None:
        failures: list[Failure] = [result for isSuccess, result in results if not isSuccess]
        obstacles = [obstacle for failure in failures if (obstacle := obstacleIn(failure.value)) is not None]
        if failures and len(obstacles) == len(failures):
            if self._obstacle is None:
                self._obstacle = obstacles[0]
                self._log.error("a flush to the disk is tried again: {reason}", reason=self._obstacle)
            self._clock.callLater(RETRY_SECONDS, self._flush, round)
            return
        self._obstacle = None
        lastedSeconds = self._clock.seconds() - self._begunSeconds
        if lastedSeconds >= SLOW_SECONDS:
            self._log.warn("a flush to the disk took {seconds:.0f} s", seconds=lastedSeconds)
        if failures:
            error = failures[0].value
            reason = explain(error) if isinstance(error, OSError) else str(error)
            self.problem = (
                f"a flush to the disk failed ({reason}); nothing is confirmed any more, because what was written may be"
                " lost: see to the disk, then restart"
            )
            self._log.critical("{problem}", problem=self.problem)
            self._failed()
        else:
            round.succeeded()
        # Only now: those that were told may wait for the next round already, and all of them take part in it.
        self._isRunning = False
        self._next()


def obstacleIn(error: object) -> str | None:
    """
    Why a flush failed before it came to the disk, so that it may be tried again and nothing is lost; L{None} if it did
    not.
    """
    return explain(error) if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE) else None


def callAll(calls: Iterable[Callable[[], object]]) -> None:
    """
    Call one after another; in any thread.
    """
    for call in calls:
        call()

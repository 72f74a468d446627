# -*- test-case-name: tests.unit.kafka.storage.test_groupcommit -*-
"""
Group commit: what a turn of the reactor appends is written together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from .disk import explain
from .itable import CommitCallback, LogClosed, LogFailed

MAX_PENDING_BYTES: Final = 1 << 20
"""How much may be appended before it is committed in mid-turn."""

_CALM_SECONDS: Final = 10.0
_PROBLEM_SECONDS: Final = 60.0


class GroupCommit:
    """
    Decides when what was appended is written, and calls back all that wait for that.

    What a turn of the reactor appends is written in the next turn, or earlier if
    it grows too large.  Callbacks always run in a turn of their own, never inside
    an append.

    If writing fails, everything since the last commit is lost.
    Nothing more is accepted in that turn, so that a caller that makes
    several appends and calls L{whenCommitted} once cannot miss a lost one.

    @ivar isClosed: whether appends are refused for good.
    @ivar broken: why nothing will ever be accepted again; L{None} while all is well.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        *,
        write: Callable[[], None],
        settle: Callable[[], None],
        revert: Callable[[], None],
        announce: Callable[[], None],
        maxPendingBytes: int = MAX_PENDING_BYTES,
        what: str = "the log",
    ) -> None:
        """
        @param clock: schedules the turns.
        @param write: writes what is pending; raises L{OSError} or L{LogFailed}.
        @param settle: called after it has succeeded; must neither raise nor call
            this object.
        @param revert: called after it has failed: makes everything what it was after
            the last commit.  Raises L{OSError} if it cannot.
        @param announce: called after the callbacks of each turn; must not raise.
        @param maxPendingBytes: see L{MAX_PENDING_BYTES}.
        @param what: is written to, for messages.
        """
        self.isClosed = False
        self.broken: str | None = None
        self._clock = clock
        self._write = write
        self._settle = settle
        self._revert = revert
        self._announce = announce
        self._maxPendingBytes = maxPendingBytes
        self._what = what
        self._isPending = False
        self._pendingBytes = 0
        self._waiting: list[CommitCallback] = []
        self._verdicts: deque[tuple[CommitCallback, LogFailed | None]] = deque()
        self._turn: IDelayedCall | None = None
        self._lost: LogFailed | None = None
        self._failedSeconds: float | None = None
        self._failureReason = ""
        self._isDelivering = False

    @property
    def problem(self) -> str | None:
        """
        Why writing failed recently, or for good; L{None} if it did not.
        """
        if self.broken is not None:
            return self.broken
        if self._failedSeconds is None or self._clock.seconds() - self._failedSeconds >= _PROBLEM_SECONDS:
            return None
        return f"{self._what} cannot be written to: {self._failureReason}"

    def check(self) -> None:
        """
        Call it before anything is appended.

        @raise LogFailed: if writing failed in this turn, or for good.
        @raise LogClosed: after L{close}.
        """
        if self._isPending:
            return
        if self.isClosed:
            raise LogClosed(f"{self._what} is closed")
        if self.broken is not None:
            raise LogFailed(self.broken)
        if self._lost is not None:
            raise LogFailed(str(self._lost))

    def appended(self, sizeBytes: int, isKept: bool = True) -> None:
        """
        Note that something was appended; write it if it is large enough.

        @param isKept: whether it can be kept until the next turn.
        @raise LogFailed: if it was written and that failed.
        """
        self._isPending = True
        self._pendingBytes += sizeBytes
        if self._turn is None:
            self.wake()
        if not isKept or self._pendingBytes >= self._maxPendingBytes:
            self.commit()

    def commit(self) -> None:
        """
        Write what is pending.  Waiting callbacks are told in the next turn.

        @raise LogFailed: if it failed.
        """
        if not self._isPending:
            return
        try:
            if self.broken is not None:
                raise LogFailed(self.broken)
            self._write()
        except (LogFailed, OSError) as error:
            raise self._lose(error) from error
        self._settle()
        self._judge(None)
        # On a nearly full disk small commits succeed between large ones that fail; a line for each would be too much.
        if self._failedSeconds is not None and self._clock.seconds() - self._failedSeconds >= _CALM_SECONDS:
            self._failedSeconds = None
            self._log.info("{what} can be written to again", what=self._what)

    def fail(self, problem: str) -> None:
        """
        Accept nothing any more.
        """
        self.broken = problem

    def whenCommitted(self, callback: CommitCallback) -> None:
        if self._isPending:
            self._waiting.append(callback)
        elif self._lost is None or self.isClosed:
            self._tell(callback, self._lost)
        else:
            self._verdicts.append((callback, self._lost))

    def wake(self) -> None:
        """
        Schedule a turn, so that C{announce} is called.
        """
        if self._turn is None and not self.isClosed:
            self._turn = self._clock.callLater(0, self._nextTurn)

    def close(self) -> None:
        """
        Write what is pending, call all callbacks, and refuse further
        appends.  If a callback calls it, the other callbacks run after it returns.
        """
        self._tryCommit()
        self.isClosed = True
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self._deliver()

    def _nextTurn(self) -> None:
        self._tryCommit()
        self._turn = None
        self._lost = None
        self._deliver()

    def _tryCommit(self) -> None:
        try:
            self.commit()
        except LogFailed:
            # The waiters have the verdict.
            pass

    def _lose(self, error: LogFailed | OSError) -> LogFailed:
        self._lost = self._failure(error)
        try:
            self._revert()
        except (LogFailed, OSError) as unrevertible:
            self.fail(
                f"{self._what} could neither be written to nor cut off again ({unrevertible}): see to the disk, then"
                " restart"
            )
        self._judge(self._lost)
        self.wake()
        return self._lost

    def _judge(self, verdict: LogFailed | None) -> None:
        self._isPending = False
        self._pendingBytes = 0
        self._verdicts.extend([(callback, verdict) for callback in self._waiting])
        self._waiting.clear()

    def _deliver(self) -> None:
        if self._isDelivering:
            return
        self._isDelivering = True
        # Consequences of the callbacks are announced in the next turn, scheduled by then; after closing there is none.
        remaining = len(self._verdicts)
        while self._verdicts and (remaining > 0 or self.isClosed):
            remaining -= 1
            self._tell(*self._verdicts.popleft())
        self._announce()
        while self.isClosed and self._verdicts:
            # A listener has appended, and closed.
            self._tell(*self._verdicts.popleft())
        self._isDelivering = False

    def _tell(self, callback: CommitCallback, verdict: LogFailed | None) -> None:
        try:
            callback(verdict)
        except Exception:
            self._log.failure("{callback} raised when it was told of a commit", callback=callback)

    def _failure(self, error: LogFailed | OSError) -> LogFailed:
        reason = explain(error) if isinstance(error, OSError) else str(error)
        if self._failedSeconds is None:
            self._log.critical(
                "{what} cannot be written to: {reason} ({error})", what=self._what, reason=reason, error=error
            )
        self._failedSeconds = self._clock.seconds()
        self._failureReason = reason
        return LogFailed(reason)

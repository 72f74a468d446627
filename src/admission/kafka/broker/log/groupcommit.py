# -*- test-case-name: tests.unit.kafka.broker.log.test_groupcommit -*-
"""
Group commit: one transaction for everything that a turn of the reactor appends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import lmdb
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from .interface import CommitCallback, LogClosed, LogFailed
from .storage import explain

MAX_PENDING_BYTES: Final = 1 << 20
"""How much may be appended before it is committed in mid-turn."""

_CALM_SECONDS: Final = 10.0
_PROBLEM_SECONDS: Final = 60.0


class GroupCommit:
    """
    The only writer of an LMDB environment.

    Within a turn of the reactor appends go into one open transaction, which is
    committed in the next turn, or earlier if it grows too large.  Callbacks
    always run in a turn of their own, never inside an append.

    If anything fails, the transaction is lost with everything appended to
    it.  Nothing more is accepted in that turn, so that a caller that makes
    several appends and calls L{whenCommitted} once cannot miss a lost one.

    @ivar transaction: the open transaction, or L{None}; its default table is
        that of the batches.
    @ivar isClosed: whether appends are refused for good.
    """

    _log = Logger()

    def __init__(
        self,
        environment: lmdb.Environment,
        batches: lmdb._Database,
        clock: IReactorTime,
        *,
        prepare: Callable[[lmdb.Transaction[bytes]], None],
        settle: Callable[[], None],
        revert: Callable[[], None],
        announce: Callable[[], None],
        maxPendingBytes: int = MAX_PENDING_BYTES,
    ) -> None:
        """
        @param environment: the environment to write to.
        @param batches: the table that appends go to.
        @param clock: schedules the turns.
        @param prepare: called with a transaction of appends before its commit.
        @param settle: called after every commit, L{exclusive} ones included;
            must neither raise nor call this object.
        @param revert: called when a transaction of appends is lost, under the same
            conditions.
        @param announce: called after the callbacks of each turn; must not raise.
        @param maxPendingBytes: see L{MAX_PENDING_BYTES}.
        """
        self.transaction: lmdb.Transaction[bytes] | None = None
        self.isClosed = False
        self._environment = environment
        self._batches = batches
        self._clock = clock
        self._prepare = prepare
        self._settle = settle
        self._revert = revert
        self._announce = announce
        self._maxPendingBytes = maxPendingBytes
        self._pendingBytes = 0
        self._waiting: list[CommitCallback] = []
        self._verdicts: deque[tuple[CommitCallback, LogFailed | None]] = deque()
        self._turn: IDelayedCall | None = None
        self._lost: LogFailed | None = None
        self._failedSeconds: float | None = None
        self._failureReason = ""
        self._delivering = False

    @property
    def problem(self) -> str | None:
        """
        Why a write failed recently; L{None} if none did.
        """
        if self._failedSeconds is None or self._clock.seconds() - self._failedSeconds >= _PROBLEM_SECONDS:
            return None
        return f"the log cannot be written to: {self._failureReason}"

    def open(self) -> lmdb.Transaction[bytes]:
        """
        The transaction to append to.

        @raise LogFailed: if one failed in this turn, or none can be begun.
        @raise LogClosed: after L{close}.
        """
        if self.transaction is None:
            if self.isClosed:
                raise LogClosed("the log is closed")
            if self._lost is not None:
                raise LogFailed(str(self._lost))
            try:
                self.transaction = self._environment.begin(self._batches, write=True)
            except lmdb.Error as error:
                raise self.lose(error) from error
            self.wake()
        return self.transaction

    def appended(self, sizeBytes: int) -> None:
        """
        Count what was written to the transaction; commit it if it is large enough.

        @raise LogFailed: if that commit failed.
        """
        self._pendingBytes += sizeBytes
        if self._pendingBytes >= self._maxPendingBytes:
            self.flush()
            if self._lost is not None:
                raise LogFailed(str(self._lost))

    def lose(self, error: lmdb.Error) -> LogFailed:
        """
        Abort the open transaction after an error.

        @return: the exception to raise.
        """
        if self.transaction is not None:
            self.transaction.abort()
            self.transaction = None
        self._revert()
        self._lost = self._failure(error)
        self._judge(self._lost)
        self.wake()
        return self._lost

    def flush(self) -> None:
        """
        Commit what is pending.  Does not raise: a failure is passed to the
        waiting callbacks in the next turn.
        """
        transaction = self.transaction
        if transaction is None:
            return
        try:
            self._prepare(transaction)
            transaction.commit()
        except lmdb.Error as error:
            self.lose(error)
            return
        self.transaction = None
        self._succeeded()
        self._judge(None)

    @contextmanager
    def exclusive(self) -> Iterator[lmdb.Transaction[bytes]]:
        """
        A transaction of its own for changes that are committed at once,
        after everything pending.  Changes in memory belong behind
        the C{with} block.

        @raise LogFailed: if it cannot be begun or committed.
        @raise LogClosed: after L{close}.
        """
        if self.isClosed:
            raise LogClosed("the log is closed")
        self.flush()
        try:
            transaction = self._environment.begin(write=True)
        except lmdb.Error as error:
            raise self._failure(error) from error
        try:
            yield transaction
            transaction.commit()
        except lmdb.Error as error:
            raise self._failure(error) from error
        finally:
            # No effect after a commit.
            transaction.abort()
        self._succeeded()

    def whenCommitted(self, callback: CommitCallback) -> None:
        if self.transaction is not None:
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
        Commit what is pending, call all callbacks, and refuse further
        appends.  If a callback calls it, the other callbacks run after it returns.
        """
        self.flush()
        self.isClosed = True
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self._deliver()

    def _nextTurn(self) -> None:
        self.flush()
        self._turn = None
        self._lost = None
        self._deliver()

    def _judge(self, verdict: LogFailed | None) -> None:
        self._pendingBytes = 0
        self._verdicts.extend([(callback, verdict) for callback in self._waiting])
        self._waiting.clear()

    def _deliver(self) -> None:
        if self._delivering:
            return
        self._delivering = True
        # Consequences of the callbacks are announced in the next turn, scheduled by then; after closing there is none.
        remaining = len(self._verdicts)
        while self._verdicts and (remaining > 0 or self.isClosed):
            remaining -= 1
            self._tell(*self._verdicts.popleft())
        self._announce()
        self._delivering = False

    def _tell(self, callback: CommitCallback, verdict: LogFailed | None) -> None:
        try:
            callback(verdict)
        except Exception:
            self._log.failure("{callback} raised when it was told of a commit", callback=callback)

    def _succeeded(self) -> None:
        self._settle()
        # In a nearly full map small commits succeed between large ones that fail; a line for each would be too much.
        if self._failedSeconds is not None and self._clock.seconds() - self._failedSeconds >= _CALM_SECONDS:
            self._failedSeconds = None
            self._log.info("the log can be written to again")

    def _failure(self, error: lmdb.Error) -> LogFailed:
        reason = explain(error)
        if self._failedSeconds is None:
            self._log.critical("the log cannot be written to: {reason} ({error})", reason=reason, error=error)
        self._failedSeconds = self._clock.seconds()
        self._failureReason = reason
        return LogFailed(reason)

# -*- test-case-name: tests.unit.kafka.broker.log.test_syncing -*-
"""
Synchronising committed data with the disk, in the background.
"""

from collections.abc import Callable
from typing import Any

import lmdb
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from .storage import explain

DeferToThread = Callable[..., Deferred[Any]]
"""As L{twisted.internet.threads.deferToThread}."""


class BackgroundSync:
    """
    Synchronises at most once in an interval, only if something was written,
    and never twice at the same time.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        deferToThread: DeferToThread,
        sync: Callable[[], None],
        intervalSeconds: float,
        begins: Callable[[], None],
        succeeded: Callable[[], None],
    ) -> None:
        """
        @param clock: for the intervals.
        @param deferToThread: runs C{sync} away from the reactor.
        @param sync: synchronises; may block and raise.
        @param begins: called just before C{sync} is handed to a thread; data
            written later may or may not be covered.  Must not raise.
        @param succeeded: called when C{sync} has returned.  Must not raise.
        @param intervalSeconds: how long written data waits at most before its
            synchronisation starts, unless one is running.
        """
        self._clock = clock
        self._deferToThread = deferToThread
        self._sync = sync
        self._begins = begins
        self._reportSuccess = succeeded
        self._urgent = False
        self._intervalSeconds = intervalSeconds
        self._next: IDelayedCall | None = None
        self._running = False
        self._dirty = False
        self._failing = False
        self._failureReason = ""
        self._closed: Deferred[None] | None = None

    @property
    def problem(self) -> str | None:
        """
        Why the last attempt failed; L{None} if it succeeded.
        """
        return f"the log cannot be synchronised with the disk: {self._failureReason}" if self._failing else None

    def written(self) -> None:
        """
        Note that something has to be synchronised.
        """
        self._dirty = True
        if self._next is None and not self._running and self._closed is None:
            self._next = self._clock.callLater(self._intervalSeconds, self._start)

    def soon(self) -> None:
        """
        Synchronise what was written without waiting for the interval to end,
        because a client waits.
        """
        if not self._dirty or self._closed is not None:
            return
        self._urgent = True
        if not self._running:
            if self._next is not None:
                self._next.cancel()
            self._next = self._clock.callLater(0, self._start)

    def close(self) -> Deferred[None]:
        """
        Synchronise for the last time.  Call it once.

        @return: fires when that has succeeded or failed, and nothing is running
            any more; never with a failure.
        """
        self._closed = closed = Deferred[None]()
        self._dirty = True
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if not self._running:
            self._start()
        return closed

    def _start(self) -> None:
        self._next = None
        self._running = True
        self._dirty = self._urgent = False
        self._begins()
        done = maybeDeferred(self._deferToThread, self._sync)
        done.addCallbacks(self._succeeded, self._failed)
        done.addCallback(self._ended)

    def _succeeded(self, _: object) -> None:
        self._reportSuccess()
        if self._failing:
            self._failing = False
            self._log.info("the log is being synchronised with the disk again")

    def _failed(self, failure: Failure) -> None:
        # The last attempt is not repeated: nothing would end the repetition.
        self._dirty = self._dirty or self._closed is None
        if not self._failing:
            self._failing = True
            reason = explain(failure.value) if isinstance(failure.value, lmdb.Error) else str(failure.value)
            self._failureReason = reason
            self._log.critical(
                "the log cannot be synchronised with the disk and would not survive a loss of power: {reason}",
                reason=reason,
            )

    def _ended(self, _: object) -> None:
        self._running = False
        if self._closed is None:
            if self._dirty and self._urgent:
                self._start()
            elif self._dirty:
                self.written()
        elif self._dirty:
            self._start()
        else:
            self._closed.callback(None)

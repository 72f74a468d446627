# -*- test-case-name: tests.unit.test_operations -*-
"""
Operations that can be parked in a purgatory, until a condition holds or their
time is up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

from mypy_extensions import mypyc_attr
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from zope.interface import classImplements

from .interfaces import IDelayedOperation, IPurgatory


@mypyc_attr(allow_interpreted_subclasses=True)
class DelayedOperation:
    """
    An operation that waits.  Subclasses define when it can complete
    (L{tryComplete}), how it completes (L{onComplete}), and what else a timeout
    does (L{onExpiration}).  They keep the equality of L{object}: an
    operation equals nothing but itself.
    """

    # The purgatory may use four of them: IDelayedOperation says why.
    __slots__ = ("completed", "delaySeconds", "dueSeconds", "nextEntry", "parking", "previousEntry", "watcher")

    def __init__(self, delaySeconds: float) -> None:
        self.delaySeconds = delaySeconds
        self.completed = False
        self.watcher: IPurgatory | None = None
        self.dueSeconds = 0.0
        self.parking: Any = None
        self.previousEntry: Any = None
        self.nextEntry: Any = None

    def tryComplete(self) -> bool:
        """
        Check the condition; if it holds, return what L{forceComplete} returns.
        This one never holds.
        """
        return False

    def forceComplete(self) -> bool:
        """
        Complete now: leave the purgatory, then run L{onComplete}.

        @return: whether this call completed it.
        @raise Exception: any exception of L{onComplete}; the operation is over
            nevertheless.
        """
        if self.completed:
            return False
        self.completed = True
        watcher = self.watcher
        if watcher is not None:
            watcher.leave(self)
        self.onComplete()
        return True

    def expire(self) -> None:
        """
        Complete because the time is up, and then run L{onExpiration}.
        """
        if self.forceComplete():
            self.onExpiration()

    def cancel(self) -> bool:
        """
        Leave the purgatory without completing, for example when a client
        disconnects.  L{IPurgatory.cancelForKey} calls it.

        @return: whether it was parked.
        """
        watcher = self.watcher
        if watcher is None:
            return False
        watcher.leave(self)
        self.onCancel()
        return True

    def onComplete(self) -> None:
        """
        Finish the work.  Called exactly once.
        """

    def onExpiration(self) -> None:
        """
        Called after L{onComplete} if the time ran out.
        """

    def onCancel(self) -> None:
        """
        Called when the operation was taken out of the purgatory.  It has not
        completed and will not expire, but may be parked again.
        """


classImplements(DelayedOperation, IDelayedOperation)


class _Condition(DelayedOperation):
    """
    Waits on behalf of a L{Deferred}.
    """

    __slots__ = ("_condition", "_deferred", "_error")

    def __init__(self, condition: Callable[[], bool], timeoutSeconds: float, deferred: Deferred[None]) -> None:
        super().__init__(timeoutSeconds)
        self._condition = condition
        self._deferred: Deferred[None] | None = deferred
        self._error: Exception | None = None

    def tryComplete(self) -> bool:
        try:
            if not self._condition():
                return False
        except Exception as error:
            self._error = error
        return self.forceComplete()

    def expire(self) -> None:
        self._error = TimeoutError(self.delaySeconds, "the condition did not come true in time")
        super().expire()

    def onComplete(self) -> None:
        error, self._error = self._error, None
        self._fire(error)

    def onCancel(self) -> None:
        self._fire(CancelledError())

    def _fire(self, error: Exception | None) -> None:
        deferred, self._deferred = self._deferred, None
        if deferred is None:
            return
        if error is None:
            deferred.callback(None)
        else:
            deferred.errback(error)


def waitFor(
    purgatory: IPurgatory,
    keys: Collection[Hashable],
    condition: Callable[[], bool],
    timeoutSeconds: float,
) -> Deferred[None]:
    """
    Wait until C{condition} is true.  It is called now, and again at each
    C{checkAndComplete} for one of C{keys}.

    @param keys: at least one.
    @return: fires with L{None}; fails with
        L{twisted.internet.defer.TimeoutError} after C{timeoutSeconds}, with
        any exception of C{condition}, and with
        L{twisted.internet.defer.CancelledError} when it is cancelled or its
        operation is taken out by C{cancelForKey} or by the purgatory's
        shutdown.  Cancelling it takes the operation out of the purgatory.
    @raise ValueError: if there are no keys, or C{timeoutSeconds} is not a
        finite number.
    """

    def cancel(_: Deferred[None]) -> None:
        operation.cancel()

    deferred: Deferred[None] = Deferred(cancel)
    operation = _Condition(condition, timeoutSeconds, deferred)
    purgatory.tryCompleteElseWatch(operation, keys)
    return deferred

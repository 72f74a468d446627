# -*- test-case-name: tests.contracts.test_wheel -*-
"""
What a timing wheel holds: entries of any kind, and calls that it is to make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall
from zope.interface import implementer

if TYPE_CHECKING:
    from .wheel import TimingWheel


def _called() -> None:
    """
    Takes the place of the function of a call that was made.
    """


class TimerEntry(Protocol):
    """
    A link of the list that is one slot of a timing wheel: whatever a wheel
    holds has these attributes, so that holding it takes no further object.
    Operations do, see L{admission.interfaces.IDelayedOperation}.

    @ivar dueSeconds: when to expire, in seconds of the wheel's clock.
    @ivar previousEntry: the wheel's business, like C{nextEntry}; both are
        L{None} once it has left.
    """

    dueSeconds: float
    previousEntry: Any
    nextEntry: Any

    def expire(self) -> None:
        """
        The time is up.  Called by the wheel, which does not hold the entry
        any more.
        """


@implementer(IDelayedCall)
class WheelCall:
    """
    What L{TimingWheel.callLater} returns.
    """

    __slots__ = ("_args", "_function", "_wheel", "dueSeconds", "nextEntry", "previousEntry")

    dueSeconds: float
    previousEntry: Any
    nextEntry: Any

    def __init__(self, wheel: TimingWheel, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._wheel: TimingWheel | None = wheel
        self._function: Callable[..., object] | None = function
        self._args = args

    def getTime(self) -> float:
        """
        When the call is due, in seconds of the wheel's clock.
        """
        return self.dueSeconds

    def active(self) -> bool:
        """
        Whether the call is still to come.
        """
        return self._wheel is not None

    def cancel(self) -> None:
        """
        Do not call.

        @raise AlreadyCalled: if it was called.
        @raise AlreadyCancelled: if it was cancelled before.
        """
        wheel = self._wheel or self._refuse()
        wheel.discard(self)
        self._wheel = self._function = None
        self._args = ()

    def reset(self, secondsFromNow: float) -> None:
        """
        Call after C{secondsFromNow} instead, earlier or later than planned.

        @raise AlreadyCalled: if it was called.
        @raise AlreadyCancelled: if it was cancelled.
        @raise ValueError: if C{secondsFromNow} is not a finite number; the
            call stays as it was.
        """
        wheel = self._wheel or self._refuse()
        wheel.move(self, secondsFromNow)

    def delay(self, secondsLater: float) -> None:
        """
        Call C{secondsLater} than planned, or earlier if that is negative.

        @raise AlreadyCalled: if it was called.
        @raise AlreadyCancelled: if it was cancelled.
        @raise ValueError: if C{secondsLater} is not a finite number; the call
            stays as it was.
        """
        wheel = self._wheel or self._refuse()
        wheel.move(self, secondsLater, self.dueSeconds)

    def expire(self) -> None:
        """
        For the wheel.
        """
        function, args = self._function, self._args
        self._wheel, self._function, self._args = None, _called, ()
        assert function is not None
        function(*args)

    def _refuse(self) -> TimingWheel:
        raise AlreadyCancelled if self._function is None else AlreadyCalled

    def __repr__(self) -> str:
        if self._wheel is not None:
            return f"<WheelCall of {self._function!r}, due at {self.dueSeconds:.3f} s>"
        return f"<WheelCall {'cancelled' if self._function is None else 'called'}>"

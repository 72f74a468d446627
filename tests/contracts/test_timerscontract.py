"""L{admission.testing.timerscontract}, with timers of every kind that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.testing.timerscontract import TimersContract
from tests.kit.seededfaults import SeededFaultsTestCase


@implementer(IReactorTime)
class Timers:
    """Sound timers, for others to break."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def seconds(self) -> float:
        """The clock's time."""
        return self.clock.seconds()

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kwargs: object) -> IDelayedCall:
        """See L{IReactorTime.callLater}."""
        return self.clock.callLater(delay, callable, *args, **kwargs)

    def getDelayedCalls(self) -> Sequence[IDelayedCall]:
        """The clock's calls."""
        return self.clock.getDelayedCalls()


class Early(Timers):
    """Calls too early."""

    def callLater(self, delay: float, callable: Any, *args: Any, **kwargs: Any) -> IDelayedCall:
        return super().callLater(delay * 0.99, callable, *args, **kwargs)


class Late(Timers):
    """Calls when the next second begins."""

    def callLater(self, delay: float, callable: Any, *args: Any, **kwargs: Any) -> IDelayedCall:
        return super().callLater(ceil(delay), callable, *args, **kwargs)


class Twice(Timers):
    """Calls twice."""

    def callLater(self, delay: float, callable: Any, *args: Any, **kwargs: Any) -> IDelayedCall:
        super().callLater(delay, callable, *args, **kwargs)
        return super().callLater(delay, callable, *args, **kwargs)


class Wrapping(Timers):
    """Wraps what it calls."""

    isCalling = False

    def callLater(self, delay: float, callable: Any, *args: Any, **kwargs: Any) -> IDelayedCall:
        return super().callLater(delay, self.call, callable, *args, **kwargs)

    def call(self, callable: Any, *args: Any, **kwargs: Any) -> None:
        """Call it."""
        self.isCalling = True
        try:
            callable(*args, **kwargs)
        finally:
            self.isCalling = False


class Losing(Wrapping):
    """Loses what is set within a call."""

    def callLater(self, delay: float, callable: Any, *args: Any, **kwargs: Any) -> IDelayedCall:
        call = super().callLater(delay, callable, *args, **kwargs)
        if self.isCalling:
            self.clock.calls.remove(call)  # type: ignore[arg-type]
        return call


class Jumping(Wrapping):
    """
    Counts what is set within a call from when time was last looked at, as a
    wheel does that hurries after a clock.
    """

    def callLater(self, delay: float, callable: Any, *args: Any, **kwargs: Any) -> IDelayedCall:
        return super().callLater(delay + 0.5 if self.isCalling else delay, callable, *args, **kwargs)


class Deaf(Timers):
    """Does not hear of a call that was cancelled."""

    def callLater(self, delay: float, callable: Any, *args: Any, **kwargs: Any) -> IDelayedCall:
        call: Any = super().callLater(delay, callable, *args, **kwargs)
        super().callLater(delay, lambda: callable(*args, **kwargs) if call.cancelled else None)
        return call  # type: ignore[no-any-return]


class Rigid(Timers):
    """Does not hear of a call that was moved."""

    def callLater(self, delay: float, callable: Any, *args: Any, **kwargs: Any) -> IDelayedCall:
        call: Any = super().callLater(delay, callable, *args, **kwargs)
        call.reset = lambda secondsFromNow: None
        return call  # type: ignore[no-any-return]


class Eager(Timers):
    """Calls what has no delay at once."""

    def callLater(self, delay: float, callable: Any, *args: Any, **kwargs: Any) -> IDelayedCall:
        call = super().callLater(delay, callable, *args, **kwargs)
        if delay == 0:
            self.clock.advance(0)
        return call


class Curt(Timers):
    """Drops keywords."""

    def callLater(self, delay: float, callable: Any, *args: Any, **kwargs: Any) -> IDelayedCall:
        return super().callLater(delay, callable, *args)


class Discouraged(Wrapping):
    """Gives up when a call raises."""

    def call(self, callable: Any, *args: Any, **kwargs: Any) -> None:
        """Call it."""
        try:
            super().call(callable, *args, **kwargs)
        except Exception:
            self.clock.calls.clear()


class Hiding(Timers):
    """Does not say what is set."""

    def getDelayedCalls(self) -> Sequence[IDelayedCall]:
        return []


class ClockTests(TimersContract, SynchronousTestCase):
    """Clocks are what is expected of timers, for reference."""

    def buildTimers(self, clock: Clock) -> IReactorTime:
        """The clock itself."""
        return clock


class TimersContractTests(SeededFaultsTestCase):
    """L{TimersContract}."""

    def test_sound(self) -> None:
        """Sound timers pass."""
        self.assertSound(TimersContract, buildTimers=Timers)
        self.assertSound(TimersContract, buildTimers=Wrapping)

    def test_faults(self) -> None:
        """Each way in which timers may be wrong is found by the test that is for it."""
        for timers, test in [
            (Early, "test_neverEarly"),
            (Late, "test_neverEarly"),
            (Twice, "test_arguments"),
            (Losing, "test_nested"),
            (Jumping, "test_nested"),
            (Deaf, "test_cancelled"),
            (Rigid, "test_reset"),
            (Eager, "test_noDelay"),
            (Curt, "test_arguments"),
            (Discouraged, "test_callRaises"),
            (Hiding, "test_delayedCalls"),
        ]:
            self.assertBroken(TimersContract, test, timers.__name__, buildTimers=timers)

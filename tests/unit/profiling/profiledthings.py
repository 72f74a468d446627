"""A process that consists of things, for tests of the profiler."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase
from zope.interface import Interface, implementer

from admission.metrics.process import ProcessUsage
from admission.profiling.objectgroups import Group, Grouping, subclassOf
from admission.profiling.profiler import Profiler
from admission.testing.orderedclock import OrderedClock

MIB = 1 << 20


class IThing(Interface):
    """What some objects are."""


@implementer(IThing)
class Thing:
    """An object that has others."""

    def __init__(self, held: object = None) -> None:
        self.held = held


class Shared:
    """An object that all things refer to."""

    def __init__(self) -> None:
        self.treasure = bytes(1_000_000)


class Derived(Thing):
    """A thing that was not declared to be one."""


THINGS = Grouping([Group("things", subclassOf(Thing), ("held",))], subclassOf(Shared))

NAME = f"{__name__}.Thing"
"""What reports call a thing."""


class TickingClock(OrderedClock):
    """A clock on which looking at the time takes half a millisecond."""

    def seconds(self) -> float:
        """See L{OrderedClock}."""
        self.rightNow += 0.0005
        return float(self.rightNow)


class FakeUsage(ProcessUsage):
    """A process as a test wants it."""

    residentBytes = 0
    privateBytes = 0


class ProfilerTestCase(SynchronousTestCase):
    """A test with a profiler of a process that consists of things."""

    def setUp(self) -> None:
        self.clock = TickingClock()
        self.usage = FakeUsage()
        self.grow(50 * MIB)
        self.things: list[Any] = []
        self.garbage: list[Any] = []
        self.claims: dict[str, int] = {}
        self.profiler = Profiler(
            THINGS,
            lambda: self.claims,
            self.clock,
            lambda: 1_700_000_000.0 + self.clock.rightNow,
            "boot",
            usage=self.usage,
            objects=lambda: list(self.things),
            garbage=lambda maxObjects: list(self.garbage),
        )
        self.addCleanup(self.profiler.stop)

    def grow(self, sizeBytes: int) -> None:
        """Give the process so much more memory, and as much again for files."""
        self.usage.privateBytes += sizeBytes
        self.usage.residentBytes += 2 * sizeBytes

    def take(self) -> dict[str, Any]:
        """Take a snapshot, for as long as that takes."""
        taken = self.profiler.take()
        self.clock.advance(30)
        return self.successResultOf(taken)

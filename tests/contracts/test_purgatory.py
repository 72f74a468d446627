"""L{admission_plugins.purgatory}."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable, Collection, Hashable

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import IPurgatory, IPurgatoryFactory, PolicyContext
from admission.operations import DelayedOperation
from admission.plugins import PolicyError, buildPolicy
from admission.testing.purgatorycontract import PurgatoryContract
from admission.testing.scriptedoperation import ScriptedOperation
from admission_plugins.purgatory import CallLaterPurgatory, Watchers, WheelPurgatory
from admission_plugins.wheel import TimingWheel
from tests.contracts.test_wheel import SkewedClock

WATCHED = int(os.environ.get("ADMISSION_WATCHED", "5000"))
"""How many operations to watch when looking whether their memory comes back; 1000000 takes some minutes."""


class WheelContractTests(PurgatoryContract, SynchronousTestCase):
    """L{WheelPurgatory} is an L{IPurgatory}."""

    def buildPurgatory(self, clock: Clock) -> IPurgatory:
        """A purgatory on a wheel of its own."""
        return WheelPurgatory(TimingWheel(clock))


class SharedWheelContractTests(PurgatoryContract, SynchronousTestCase):
    """So are several of them on one wheel."""

    wheel: TimingWheel | None = None

    def buildPurgatory(self, clock: Clock) -> IPurgatory:
        """A purgatory on the wheel of all others with that clock."""
        if self.wheel is None or self.wheel.seconds != clock.seconds:
            self.wheel = TimingWheel(clock)
        return WheelPurgatory(self.wheel)


class CallLaterContractTests(PurgatoryContract, SynchronousTestCase):
    """L{CallLaterPurgatory} is an L{IPurgatory}."""

    def buildPurgatory(self, clock: Clock) -> IPurgatory:
        """A plain purgatory."""
        return CallLaterPurgatory(clock)


class WheelPurgatoryTests(SynchronousTestCase):
    """What a L{WheelPurgatory} makes of its wheel."""

    def test_shutdownSharesTheWheel(self) -> None:
        """Shutting one purgatory down leaves the others on its wheel alone."""
        clock = Clock()
        wheel = TimingWheel(clock)
        first, second = WheelPurgatory(wheel), WheelPurgatory(wheel)
        operation = ScriptedOperation(1.0)
        first.tryCompleteElseWatch(ScriptedOperation(1.0), ["key"])
        second.tryCompleteElseWatch(operation, ["key"])
        first.shutdown()
        clock.advance(1.0)
        self.assertEqual((operation.told, first.expirations, second.expirations), (["complete", "expire"], 0, 1))


class CallLaterPurgatoryTests(SynchronousTestCase):
    """What a L{CallLaterPurgatory} asks of its clock."""

    def test_reactorsRefuseNegativeDelays(self) -> None:
        """
        A reactor takes no negative delay, other than L{Clock}; such operations
        expire in the next turn all the same.
        """
        clock = SkewedClock()
        operation = ScriptedOperation(-1.0)
        CallLaterPurgatory(clock).tryCompleteElseWatch(operation, ["key"])
        clock.turn()
        self.assertEqual(operation.told, ["complete", "expire"])


class Waiting(DelayedOperation):
    """As small as an operation gets."""

    __slots__ = ()


class MemoryTests(SynchronousTestCase):
    """Once operations are over, the purgatory takes no more memory than before they came."""

    def check(self, keysOf: Callable[[int], Collection[Hashable]], stragglers: int) -> None:
        """Watch many operations and complete all but the last few."""
        purgatory = WheelPurgatory(TimingWheel(Clock()))
        # Keys exist before and afterwards.
        keys = [keysOf(index) for index in range(min(WATCHED, 5000))]
        gc.collect()
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        before, _ = tracemalloc.get_traced_memory()
        operations = [Waiting(30.0) for _ in range(WATCHED)]
        for index, operation in enumerate(operations):
            purgatory.tryCompleteElseWatch(operation, keys[index % len(keys)])
        self.assertEqual(purgatory.watched, WATCHED)
        grown = tracemalloc.get_traced_memory()[0] - before
        for operation in operations[: WATCHED - stragglers]:
            operation.forceComplete()
        self.assertEqual(purgatory.watched, stragglers)
        del operations, operation
        left = tracemalloc.get_traced_memory()[0] - before
        self.assertLess(left, grown * 0.02)

    def test_keys(self) -> None:
        """Be it all under the same keys, each under three of a hundred, or each under a key of its own."""
        for keysOf in (
            lambda _: ("a", "b", "c"),
            lambda index: (index % 100, index * 7 % 100, index * 31 % 100),
            lambda index: (("connection", index),),
        ):
            for stragglers in (0, 3):
                self.check(keysOf, stragglers)


class WatchersTests(SynchronousTestCase):
    """L{Watchers}."""

    def test_order(self) -> None:
        """Watchers are found under their keys in the order they came."""
        watchers: Watchers[str] = Watchers()
        for watcher, keys in [("x", "ab"), ("y", "b"), ("z", "aab")]:
            watchers.add(watcher, keys)
        self.assertEqual([list(watchers.under(key)) for key in "abc"], [["x", "z"], ["x", "y", "z"], []])
        self.assertEqual(sorted(watchers), ["x", "x", "y", "z", "z"])

    def test_discard(self) -> None:
        """A watcher leaves all its keys, and a key that nobody watches is not there."""
        watchers: Watchers[str] = Watchers()
        watchers.add("x", "aab")
        watchers.add("y", "b")
        watchers.discard("x", "aab")
        self.assertEqual(["a" in watchers, "b" in watchers, list(watchers)], [False, True, ["y"]])
        watchers.discard("y", "b")
        self.assertEqual(("b" in watchers, list(watchers)), (False, []))

    def test_orderAfterShrinking(self) -> None:
        """A watcher that stays keeps its place, however many leave."""
        watchers: Watchers[int] = Watchers()
        for watcher in range(5000):
            watchers.add(watcher, ["key", watcher])
        for watcher in range(5000):
            if watcher % 1000:
                watchers.discard(watcher, ["key", watcher])
        self.assertEqual(list(watchers.under("key")), [0, 1000, 2000, 3000, 4000])
        self.assertEqual([each for each in range(5000) if each in watchers], [0, 1000, 2000, 3000, 4000])


class DescriptionTests(SynchronousTestCase):
    """Purgatories as they are described on a command line."""

    context = PolicyContext(Clock(), lambda: 0.0)

    def build(self, description: str) -> IPurgatory:
        """Make a purgatory."""
        purgatory: IPurgatory = buildPolicy(IPurgatoryFactory, description, self.context)
        return purgatory

    def test_wheel(self) -> None:
        """C{wheel} has a tick and a size, by default 1 ms and 20."""
        for description, tickSeconds, size in [
            ("wheel", 0.001, 20),
            ("wheel:tick=10ms", 0.01, 20),
            ("wheel:tick=0.5s:size=64", 0.5, 64),
        ]:
            purgatory = self.build(description)
            assert isinstance(purgatory, WheelPurgatory)
            self.assertEqual((purgatory.wheel.tickSeconds, purgatory.wheel.size), (tickSeconds, size))

    def test_callLater(self) -> None:
        """C{calllater} has no arguments."""
        self.assertIsInstance(self.build("calllater"), CallLaterPurgatory)
        self.assertRaises(PolicyError, self.build, "calllater:1ms")

    def test_refused(self) -> None:
        """Arguments that make no sense are refused in words."""
        for description, words in [
            ("wheel:size=1", "at least 2 slots"),
            ("wheel:size=-3", "whole number from 2"),
            ("wheel:size=many", "whole number from 2"),
            ("wheel:tick=0ms", "must take some time"),
            ("wheel:tick=soon", "is not a duration"),
        ]:
            self.assertIn(words, str(self.assertRaises(PolicyError, self.build, description)))

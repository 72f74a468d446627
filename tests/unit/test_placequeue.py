"""L{admission.gate.placequeue}: who begins next."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import example, given, settings, strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.gate.placequeue import INTERVAL_SECONDS, TARGET_SECONDS, AwaitedPlace, PlaceQueue
from admission.interfaces import Places
from admission.testing.scriptedpool import ScriptedPool
from admission_plugins.orders import RandomRounds
from tests.kit.listpurgatory import ListPurgatory

PLACES = Places(4, 2.0)


class Queued(SynchronousTestCase):
    """A queue in front of a few places."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.pool = ScriptedPool(1000)
        self.queue = PlaceQueue(self.pool, self.clock, ListPurgatory(self.clock), RandomRounds(Random(0)))
        self.addCleanup(self.queue.close)
        self.told: list[tuple[str, str]] = []

    def wait(self, name: str, holder: str = "a", heldBytes: int = 0, then: Callable[[], object] = int) -> AwaitedPlace:
        """Let one wait, that remembers what becomes of it."""

        def waits() -> bool:
            return not self.mayBegin(holder)

        def told(word: str) -> Callable[[], None]:
            return lambda: (self.told.append((name, word)), then(), None)[2]

        awaited = AwaitedPlace(PLACES, holder, heldBytes, waits, told("begins"), told("expired"), told("gone"))
        self.queue.add(awaited, PLACES)
        return awaited

    def mayBegin(self, holder: str) -> bool:
        """Whether there was a place."""
        if self.places == 0:
            return False
        self.places -= 1
        return True

    places = 0

    def release(self, count: int = 1) -> None:
        """Some places are free."""
        self.places += count
        self.queue.freed()
        self.clock.advance(0)


class PlaceQueueTests(Queued):
    """Between holders, within one, and at the end of patience."""

    def test_oldestFirst(self) -> None:
        """While nobody waits for long, the oldest is next."""
        for name in "xyz":
            self.wait(name)
        self.release(2)
        self.assertEqual(self.told, [("x", "begins"), ("y", "begins")])

    def test_newestFirst(self) -> None:
        """When the oldest has waited for long, for a while, the newest is; and the oldest again when that is over."""
        self.wait("old")
        self.clock.advance(TARGET_SECONDS * 2)
        self.wait("x")
        self.wait("y")
        self.release()
        self.assertEqual(self.told, [("old", "begins")])
        self.wait("z")
        self.clock.advance(INTERVAL_SECONDS)
        self.queue.freed()
        self.clock.advance(0)
        self.clock.advance(INTERVAL_SECONDS)
        self.wait("new")
        self.release()
        self.assertEqual(self.told[1:], [("new", "begins")])
        self.release(3)
        self.wait("fresh")
        self.wait("later")
        self.release()
        self.assertEqual(self.told[-1], ("fresh", "begins"))

    def test_byTurns(self) -> None:
        """A holder with many does not keep another waiting."""
        for name in "pqr":
            self.wait(name)
        self.wait("other", "b")
        self.release(2)
        self.assertIn(("other", "begins"), self.told)

    def test_expires(self) -> None:
        """Patience ends."""
        self.wait("x")
        self.clock.advance(2.0)
        self.assertEqual((self.told, self.queue.waiting), ([("x", "expired")], 0))

    def test_room(self) -> None:
        """A full queue has room for a holder that has less in it, whose is the place of the oldest of the longest."""
        for name in "wxyz":
            self.assertTrue(self.queue.hasRoom(PLACES, "a", 0))
            self.wait(name)
        self.assertFalse(self.queue.hasRoom(PLACES, "a", 0))
        self.assertTrue(self.queue.hasRoom(PLACES, "b", 0))
        self.wait("other", "b")
        self.assertEqual((self.told, self.queue.waiting), ([("w", "expired")], 4))

    def test_memory(self) -> None:
        """The requests that wait have a quarter of the memory at most."""
        self.wait("x", heldBytes=200)
        self.assertTrue(self.queue.hasRoom(PLACES, "b", 50))
        self.assertFalse(self.queue.hasRoom(PLACES, "b", 51))

    def test_cancelled(self) -> None:
        """One that is cancelled waits no more; the others do."""
        one = self.wait("x")
        self.wait("y")
        one.cancel()
        self.release()
        self.assertEqual(self.told, [("x", "gone"), ("y", "begins")])

    def test_dismissed(self) -> None:
        """All are sent away."""
        self.wait("x")
        self.wait("y", "b")
        self.queue.dismiss()
        self.assertEqual(sorted(self.told), [("x", "expired"), ("y", "expired")])

    @settings(deadline=None)
    @example([("wait", 0, ""), ("wait", 0, ""), ("dismiss", 0, "cancel")])
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["wait", "release", "cancel", "time", "dismiss", "raise"]),
                st.integers(0, 5),
                st.sampled_from(["", "wait", "release", "cancel", "dismiss"]),
            ),
            max_size=40,
        )
    )
    def test_anyOrder(self, steps: list[tuple[str, int, str]]) -> None:
        """Whatever those do that are told, each is told once, and in the end nobody waits."""
        self.setUp()
        waiting: list[AwaitedPlace] = []
        names = iter(range(1000))
        within: list[tuple[str, int]] = []

        def inside() -> None:
            if within:
                do(*within.pop())

        def do(action: str, number: int) -> None:
            holder = "ab"[number % 2]
            if action == "wait" and self.queue.hasRoom(PLACES, holder, 10):
                waiting.append(self.wait(str(next(names)), holder, 10, inside))
            elif action == "release":
                self.places += number
                self.queue.freed()
            elif action == "cancel" and waiting:
                waiting.pop(number % len(waiting)).cancel()
            elif action == "time":
                self.clock.advance(number / 4)
            elif action == "dismiss":
                self.queue.dismiss()

        for action, number, then in steps:
            within[:] = [(then, number + 1)] if then else []
            do(action, number)
            self.clock.advance(0)
        within.clear()
        self.clock.advance(3.0)
        told: Any = [name for name, _ in self.told]
        self.assertEqual(len(told), len(set(told)))
        self.assertEqual((self.queue.waiting, len(told)), (0, next(names)))
        self.assertEqual(self.clock.getDelayedCalls(), [])

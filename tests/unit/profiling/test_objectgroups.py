"""Tests for L{admission.profiling.objectgroups}."""

from __future__ import annotations

from collections import deque

from twisted.trial.unittest import SynchronousTestCase

from admission.profiling.objectgroups import LARGE, Group, Grouping, flatBytes, implementing, referentsOf, subclassOf
from tests.unit.profiling.profiledthings import Derived, IThing, Thing


class GroupsTests(SynchronousTestCase):
    """Which objects belong together."""

    def test_implementing(self) -> None:
        """What a class implements is found, inherited or not, and nothing is declared of a class by asking."""

        class Plain:
            pass

        holds = implementing(IThing)
        self.assertEqual([holds(each) for each in (Thing, Derived, Plain, int)], [True, True, False, False])
        self.assertNotIn("__implemented__", vars(Plain))
        self.assertNotIn("__implemented__", vars(Derived))

    def test_firstWins(self) -> None:
        """A class belongs to the first group that holds it."""
        grouping = Grouping([Group("derived", subclassOf(Derived)), Group("things", subclassOf(Thing))])
        self.assertEqual([grouping.placeOf(each) for each in (Derived, Thing, int)], [0, 1, -1])


class ReferentsTests(SynchronousTestCase):
    """What an object takes and refers to."""

    def test_nothingIsMade(self) -> None:
        """To look at an object does not make a dictionary of its attributes."""
        thing = Thing(bytearray(100))
        referents = referentsOf(thing)
        self.assertIn(thing.held, referents.objects)
        self.assertNotIn(dict, map(type, referents.objects))
        self.assertEqual(referents.weight, 1.0)

    def test_large(self) -> None:
        """Of a large container there is a sample, which stands for all of it."""
        count = 10 * LARGE
        for container in (
            list(range(count)),
            tuple(range(count)),
            dict.fromkeys(range(count)),
            set(range(count)),
            frozenset(range(count)),
            deque(range(count)),
        ):
            objects, weight = referentsOf(container)
            self.assertLessEqual(len(objects), LARGE)
            self.assertAlmostEqual(len(objects) * weight, 2 * count if isinstance(container, dict) else count)

    def test_badSize(self) -> None:
        """A class that fails to say its size takes nothing."""

        class Broken:
            def __sizeof__(self) -> int:
                raise ValueError("no")

        broken = Broken()
        self.assertEqual(flatBytes(broken, referentsOf(broken)), 0)

"""Tests for L{admission.profiling.census}."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from random import Random
from typing import Any

from pympler import asizeof, summary
from twisted.trial.unittest import SynchronousTestCase

from admission.profiling.census import MAX_MEMBERS, Census, Sizing, containers, cyclicGarbage
from admission.profiling.objectgroups import Grouping
from tests.unit.profiling.profiledthings import NAME, THINGS, Shared, Thing


def exhaust(steps: Iterator[None]) -> int:
    """
    Take all steps.

    @return: how many there were.
    """
    return sum(1 for _ in steps)


def census(objects: list[Any], maxObjects: int = 1_000_000, grouping: Grouping = THINGS) -> Census:
    """Count C{objects}, and what only they refer to."""
    made = Census(grouping, Random(1), lambda: list(objects), maxObjects)
    exhaust(made.steps())
    return made


def sized(members: list[Any], **options: Any) -> Sizing:
    """Measure C{members}, which become none."""
    count = options.pop("count", len(members))
    made = Sizing(THINGS, **options)
    exhaust(made.steps(members, count))
    return made


class CensusTests(SynchronousTestCase):
    """Objects by their class."""

    def test_asPympler(self) -> None:
        """The counts are pympler's, and the sizes as well, up to rounding."""
        things = [Thing(bytearray(1000)) for _ in range(100)]
        rows = {row[0]: row for row in census([*things, things]).rows}
        self.assertEqual(rows[NAME][1], 100)
        ((_, count, sizeBytes),) = summary.summarize([thing.held for thing in things])
        self.assertEqual(rows["bytearray"][1], count)
        self.assertApproximates(rows["bytearray"][2], sizeBytes, 16 * count)

    def test_sharedOnce(self) -> None:
        """What many refer to counts once."""
        text = "".join(["not ", "interned"])
        holders = [[text] for _ in range(50)]
        del text
        (row,) = (row for row in census(list(holders)).rows if row[0] == "str")
        self.assertEqual(row[1], 1)

    def test_untracked(self) -> None:
        """
        What a dictionary of numbers and bytes holds is found, though before
        Python 3.14 the garbage collector does not know the dictionary.
        """
        thing = Thing({number: bytes(1000 + number) for number in range(300, 400)})
        known = [thing.held] if gc.is_tracked(thing.held) else []
        rows = {row[0]: row for row in census([thing, *known]).rows}
        self.assertEqual((rows["bytes"][1], rows["dict"][1]), (100, 1))

    def test_sample(self) -> None:
        """
        Of too many objects some are looked at, whatever the pattern in which
        they were made, and stand for the others.
        """
        objects = [each for _ in range(20_000) for each in (Thing(), [])]
        made = census(objects, 10_000)
        self.assertEqual(made.stride, 4)
        rows = {row[0]: row[1] for row in made.rows}
        self.assertApproximates(rows[NAME], 20_000, 1_000)
        self.assertApproximates(made.counts[0], 20_000, 1_000)
        self.assertEqual(len(made.members[0]), MAX_MEMBERS)

    def test_frozen(self) -> None:
        """What was frozen is counted like all else."""
        thing: list[Any] = []
        gc.freeze()
        self.addCleanup(gc.unfreeze)
        self.assertTrue(any(each is thing for each in containers()))

    def test_steps(self) -> None:
        """A container with very many others in it takes more than one step."""
        nested = [tuple(range(500 + number, 600 + number)) for number in range(1000)]
        # Tuples of numbers are no longer tracked when Python has looked at them, which it does sooner or later.
        gc.collect()
        made = Census(THINGS, Random(1), lambda: [nested])
        self.assertGreater(exhaust(made.steps()), 50)


class SizingTests(SynchronousTestCase):
    """What objects take with all that is theirs."""

    def test_asPympler(self) -> None:
        """The size is what pympler's asizeof says, up to how it counts attributes and rounds."""
        things = [Thing([bytes(5000), {"a": [number, (str(number), 1.5)]}]) for number in range(20)]
        expected = asizeof.asizeof(*[thing.held for thing in things])
        self.assertApproximates(sized(things).sizeBytes, expected, 0.05 * expected)

    def test_ends(self) -> None:
        """Neither other members nor what is shared counts, and neither do modules, classes and methods."""
        shared = Shared()
        other = Thing(bytearray(1_000_000))
        alone = sized([Thing([0])]).sizeBytes
        for held in (shared, other, other.__init__, Thing, asizeof):
            self.assertApproximates(sized([Thing([held])]).sizeBytes, alone, 32)

    def test_once(self) -> None:
        """What two members refer to counts once."""
        held = bytearray(1_000_000)
        self.assertLess(sized([Thing(held), Thing(held)]).sizeBytes, 1_001_000)

    def test_sample(self) -> None:
        """Members stand for those that are not there, and some elements of a container for the others."""
        self.assertApproximates(
            sized([Thing(bytes(1000)) for _ in range(10)], count=1000).sizeBytes, 1_100_000, 100_000
        )
        table = {number: bytearray(1000) for number in range(4000, 12_000)}
        sizing = sized([Thing(table)])
        self.assertApproximates(sizing.sizeBytes, 8000 * 1100, 800_000)
        self.assertFalse(sizing.isCut)

    def test_cut(self) -> None:
        """It ends after so many objects, says so, and goes by the members that it has seen."""
        sizing = sized([Thing([[] for _ in range(10)]) for _ in range(100)], maxVisits=100)
        self.assertTrue(sizing.isCut)
        whole = sized([Thing([[] for _ in range(10)]) for _ in range(100)]).sizeBytes
        self.assertApproximates(sizing.sizeBytes, whole, 0.15 * whole)

    def test_opaque(self) -> None:
        """Memory of which Python knows nothing counts as it is told."""
        alone = sized([Thing([Shared])]).sizeBytes
        grown = sized([Thing([range(3)])], opaque={range: lambda each: 5000 * len(each)}).sizeBytes
        self.assertApproximates(grown - alone, 15_000, 100)

    def test_nothing(self) -> None:
        """Nothing takes nothing."""
        self.assertEqual(sized([]).sizeBytes, 0)


class Knot:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.held = [self]


class CyclicGarbageTests(SynchronousTestCase):
    """What L{cyclicGarbage} finds."""

    def setUp(self) -> None:
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)

    def knotsIn(self, found: list[Any] | None) -> int:
        return sum(type(each) is Knot for each in found or ())

    def test_found(self) -> None:
        """
        It is what nothing can reach, also if it is old; and all is as before, what others keep as garbage included,
        until somebody collects.
        """
        kept, alive = object(), Knot()
        gc.garbage.append(kept)
        self.addCleanup(gc.garbage.clear)
        for _ in range(3):
            Knot()
        gone = weakref.ref(Knot())
        self.assertEqual(self.knotsIn(cyclicGarbage(10**9)), 4)
        self.assertEqual((gc.garbage, gc.get_debug()), ([kept], 0))
        self.assertEqual(self.knotsIn(cyclicGarbage(10**9)), 4)
        gc.collect()
        self.assertIsNone(gone())
        self.assertIs(alive.held[0], alive)

    def test_tooMuch(self) -> None:
        """Where there is more to look at than it may, it does not look."""
        Knot()
        self.assertIsNone(cyclicGarbage(1000))

"""Tests for L{admission.profiling.memorysnapshot}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.profiling.memorysnapshot import freeBytes
from admission.profiling.reports import htmlOf, textOf
from tests.unit.profiling.profiledthings import MIB, NAME, ProfilerTestCase, Thing


class AllocatorTests(SynchronousTestCase):
    """What the C library says."""

    def test_free(self) -> None:
        """It is an amount, or not known."""
        free = freeBytes()
        self.assertTrue(free is None or free >= 0)


class SnapshotTests(ProfilerTestCase):
    """What the process has is compared with what is known."""

    def test_parts(self) -> None:
        """
        What has grown is in the ledger, was measured and is in no ledger, or neither: what nobody has charged for is
        apart, as it may be a leak.
        """
        self.things = [Thing(bytearray(MIB)) for _ in range(3)]
        self.claims = {"held": 2 * MIB, "other": 5 * MIB, "empty": 0}
        self.grow(10 * MIB)
        document = self.take()
        things, other = document["groups"]
        self.assertEqual((things["name"], things["objects"], things["claimedBytes"]), ("things", 3, 2 * MIB))
        self.assertApproximates(things["measuredBytes"], 3 * MIB, 2000)
        self.assertEqual(things["unclaimedBytes"], things["measuredBytes"] - 2 * MIB)
        self.assertEqual((other["name"], other["objects"], other["claimedBytes"]), ("other", None, 5 * MIB))
        growth = document["growth"]
        self.assertEqual(growth["bytes"], 10 * MIB)
        self.assertEqual((growth["ledgerBytes"], growth["unclaimedBytes"]), (7 * MIB, things["unclaimedBytes"]))
        self.assertEqual(growth["unknownBytes"], 3 * MIB - things["unclaimedBytes"])
        self.assertApproximates(growth["unknownFraction"], 0.2, 0.001)
        self.assertEqual(document["process"]["startPrivateBytes"], 50 * MIB)
        self.assertEqual(document["process"]["fileBytes"], 60 * MIB)

    def test_claimsWin(self) -> None:
        """
        Where more is charged than can be measured nothing is without a ledger, and the rest is negative when more is
        charged than there is.
        """
        self.things = [Thing()]
        self.claims = {"held": 4 * MIB}
        self.grow(MIB)
        growth = self.take()["growth"]
        self.assertEqual(
            (growth["ledgerBytes"], growth["unclaimedBytes"], growth["unknownBytes"]), (4 * MIB, 0, -3 * MIB)
        )

    def test_leak(self) -> None:
        """Objects that are kept and charged to nobody grow in no ledger, and the text names their group first."""
        self.claims = {"held": 1 * MIB, "other": 0}
        self.take()
        self.things = [Thing(bytearray(MIB)) for _ in range(9)]
        self.claims = {"held": 1 * MIB, "other": 2 * MIB}
        self.grow(11 * MIB)
        document = self.take()
        (since,) = document["since"]
        self.assertApproximates(since["unclaimedBytes"], 8 * MIB, 10_000)
        self.assertEqual(since["ledgerBytes"], 2 * MIB)
        self.assertRegex(textOf(document), r"Grown since snapshot 1:\n.*\n +things +\+0 B +\+8 MiB\n +other +\+2 MiB")

    def test_garbage(self) -> None:
        """What only the garbage collector frees is apart: in no group, not among other objects, and not in the rest."""
        alive, lost = Thing(bytearray(MIB)), [Thing(bytearray(MIB)) for _ in range(5)]
        self.things, self.garbage = [alive, *lost], lost
        self.claims = {"held": MIB}
        self.take()
        self.things = [alive, *lost, *lost]
        self.garbage = [*lost, *(Thing(bytearray(2 * MIB)) for _ in range(2))]
        self.grow(12 * MIB)
        document = self.take()
        growth = document["growth"]
        self.assertEqual((document["groups"][0]["objects"], growth["ledgerBytes"]), (1, MIB))
        self.assertApproximates(growth["garbageBytes"], 9 * MIB, 5000)
        self.assertApproximates(growth["unknownBytes"], 2 * MIB, 5000)
        self.assertApproximates(document["since"][0]["garbageBytes"], 4 * MIB, 5000)
        self.assertLess(document["heap"]["bytes"], 1.1 * MIB)
        self.assertEqual(document["garbage"]["objects"], 7)
        self.assertEqual(document["garbage"]["largest"][0][:2], ["bytearray", 7])
        for text in (textOf(document), htmlOf(document)):
            self.assertIn("garbage in cycles +9 MiB, neither +2 MiB", text)
            self.assertRegex(text, "Largest of 7 containers of garbage in cycles(.*\n)+?.*bytearray")

    def test_garbageUnknown(self) -> None:
        """Where garbage was not looked for, that is said, and it is not counted."""
        self.profiler._garbage = lambda maxObjects: None
        self.things = [[]]
        document = self.take()
        self.assertEqual((document["garbage"], document["growth"]["garbageBytes"]), (None, 0))
        for text in (textOf(document), htmlOf(document)):
            self.assertIn("garbage in cycles was not looked for", text)
            self.assertNotIn("containers of garbage", text)

    def test_remainder(self) -> None:
        """The parts of the rest add up to it, and objects of no group are one of them."""
        self.take()
        self.things = [[bytearray(MIB)] for _ in range(4)]
        self.grow(10 * MIB)
        document = self.take()
        parts = {each["name"]: each["bytes"] for each in document["remainder"]}
        self.assertEqual(sum(parts.values()), document["growth"]["unknownBytes"])
        self.assertApproximates(parts["objects of no group, more than in snapshot 1"], 4 * MIB, 5000)

    def test_difference(self) -> None:
        """A snapshot says what has changed since the one before, and since the first, by class."""
        self.things = [Thing() for _ in range(10)]
        self.assertEqual(self.take()["since"], [])
        self.things = [Thing() for _ in range(25)]
        (only,) = self.take()["since"]
        self.assertEqual(only["number"], 1)
        self.things = [Thing() for _ in range(40)]
        self.grow(MIB)
        previous, first = self.take()["since"]
        self.assertEqual((previous["number"], first["number"]), (2, 1))
        for since, count in ((previous, 15), (first, 30)):
            changes = {row[0]: row[1] for row in since["most"]}
            self.assertEqual(changes[NAME], count)
            self.assertEqual(since["bytes"], MIB)

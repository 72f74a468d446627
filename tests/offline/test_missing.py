"""Tests for L{admission.offline.missing}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.offline.missing import MAX_NAMED, Missing


class MissingTests(SynchronousTestCase):
    """How much is missing, and why."""

    def test_nothing(self) -> None:
        """Nothing is said to be missing of a recording that is whole, or of which nobody has looked for that."""
        for missing in (Missing.of({}), Missing(events=100, droppedEvents=0)):
            self.assertEqual((missing.share, missing.inWords(), [*missing.causes()]), (0.0, "", []))
            self.assertFalse(missing.isTooMuch)

    def test_share(self) -> None:
        """The numbers of events and the sizes of unreadable files may tell of different losses; the larger counts."""
        for unreadableShare, share in ((0.05, 0.2), (0.3, 0.3)):
            missing = Missing(1, [("a", "b")], unreadableShare, events=80, missingEvents=20)
            self.assertEqual(missing.share, share)
            self.assertTrue(missing.isTooMuch)
        self.assertFalse(Missing(events=99, missingEvents=1).isTooMuch)
        # What was dropped before the first event that was recorded has no number.
        self.assertEqual(Missing(missingEvents=5).share, 0.0)

    def test_dropped(self) -> None:
        """The server is said to have dropped events if it counted that many, and no more than are missing."""
        [cause] = Missing(events=100, missingEvents=3, droppedEvents=7).causes()
        self.assertEqual(cause, "The server dropped 3 events, because it had no room to record them.")
        dropped, others = Missing(events=100, missingEvents=3, droppedEvents=1).causes()
        self.assertIn("dropped 1 event,", dropped)
        self.assertEqual(others, "2 events are in none of the files: some may have been removed.")
        [cause] = Missing(events=100, missingEvents=3).causes()
        self.assertIn("or the server dropped them, which it did not record", cause)

    def test_unreadable(self) -> None:
        """Unreadable files are named, a few of them, and nothing that they had is said to have been dropped."""
        problems = [{"path": f"requests/{number}\n", "problem": "cannot be read"} for number in range(100)]
        missing = Missing.of({"problems": problems, "unreadableFiles": 120, "unreadableShare": 0.4})
        [cause] = missing.causes()
        self.assertTrue(cause.startswith("120 files cannot be read: requests/0\\n (cannot be read); requests/1"), cause)
        self.assertTrue(cause.endswith(f"; and {120 - MAX_NAMED} more."), cause)
        [cause] = Missing(1, [("a", "b")], 0.1, events=100, missingEvents=10, droppedEvents=0).causes()
        self.assertEqual(cause, "1 file cannot be read: a (b).")

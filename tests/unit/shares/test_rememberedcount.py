"""How many servers there were, over restarts."""

from __future__ import annotations

import os

from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from admission.shares.rememberedcount import RememberedCount


class RememberedCountTests(SynchronousTestCase):
    """A number in a file."""

    def setUp(self) -> None:
        """In a folder of its own."""
        self.folder = self.mktemp()
        os.mkdir(self.folder)
        self.path = os.path.join(self.folder, "count")

    def readWarned(self) -> tuple[int, str]:
        """What is read, and what is said of it."""
        with capturedLogs() as events:
            count = RememberedCount(self.path).count
        return count, "\n".join(map(formatEvent, events))

    def test_remembered(self) -> None:
        """One server is the first; the next start finds what was stored last, and nothing else stays in the folder."""
        self.assertEqual(self.readWarned(), (1, ""))
        remembered = RememberedCount(self.path)
        for count in (3, 2):
            remembered.remember(count)
            self.assertEqual(self.readWarned(), (count, ""))
        self.assertEqual(os.listdir(self.folder), ["count"])

    def test_damaged(self) -> None:
        """What is no number of servers is said, and one is assumed, which the next number replaces."""
        for content in (b"", b"two", b"\xff\x00", b"9" * 1000):
            with open(self.path, "wb") as file:
                file.write(content)
            count, warned = self.readWarned()
            self.assertEqual(count, 1)
            self.assertIn(f"is not remembered: {self.path}", warned)
        RememberedCount(self.path).remember(4)
        self.assertEqual(self.readWarned(), (4, ""))

    def test_leastIsOne(self) -> None:
        """Fewer than one there cannot be."""
        for content in ("0", "-3"):
            with open(self.path, "w", encoding="ascii") as file:
                file.write(content)
            self.assertEqual(self.readWarned()[0], 1)

    def test_notStored(self) -> None:
        """A server whose disk fails goes on, and says so."""
        remembered = RememberedCount(self.path)
        os.rmdir(self.folder)
        with capturedLogs() as events:
            remembered.remember(2)
        self.assertIn(f"cannot be stored in {self.path}", formatEvent(events[0]))

"""Tests for L{admission.kafka.storage.storedtable}."""

import errno

from zope.interface.verify import verifyObject

from admission.kafka.storage.itable import LONGEST_KEY_BYTES, ITable, LogClosed, LogFailed
from tests.kit.logfixture import LogTestCase, storageError


class TableTests(LogTestCase):
    """Small facts in L{SegmentLog.table}."""

    def setUp(self) -> None:
        super().setUp()
        self.table = self.log.table("offsets")
        self.told: list[Exception | None] = []

    def wait(self) -> None:
        """Have it noted down what is told about the writes so far."""
        self.log.whenCommitted(self.told.append)

    def test_interface(self) -> None:
        """A table fulfils its contract."""
        verifyObject(ITable, self.table)

    def test_turn(self) -> None:
        """What was put and deleted in a turn is seen in that turn, and stays."""
        self.table.put(b"b", b"1")
        self.table.put(b"a", b"2")
        self.table.put(b"c", b"")
        self.table.delete(b"b")
        self.wait()
        for _ in range(2):
            self.assertEqual(list(self.table.items()), [(b"a", b"2"), (b"c", b"")])
            self.assertEqual([self.table.get(key) for key in (b"a", b"b", b"c")], [b"2", None, b""])
            self.clock.turn()
        self.assertEqual(self.told, [None])

    def test_writingMeanwhile(self) -> None:
        """A caller that goes through the items may write, and let turns pass."""
        for key in (b"a", b"b", b"c"):
            self.table.put(key, key)
        seen = []
        for key, value in self.table.items():
            seen.append((key, value))
            self.table.delete(key)
            self.table.put(b"d", value)
            self.clock.turn()
        self.assertEqual(seen, [(b"a", b"a"), (b"b", b"b"), (b"c", b"c")])
        self.assertEqual(list(self.table.items()), [(b"d", b"c")])

    def test_names(self) -> None:
        """A name is always the same table, and no other one; what the log itself keeps is none of them."""
        self.partition("events")
        self.table.put(b"a", b"1")
        self.assertEqual(list(self.log.table("offsets").items()), [(b"a", b"1")])
        self.assertEqual(list(self.log.table("other").items()), [])
        for name in ("", "Offsets", "a b", "a1", "ä", "a\n", *self.log._documents.tables.keys() - {"offsets"}):
            self.assertRaises(ValueError, self.log.table, name)

    def test_keys(self) -> None:
        """Keys that are empty or too long are refused, and nothing is lost."""
        self.table.put(b"a", b"1")
        for key in (b"", bytes(LONGEST_KEY_BYTES + 1)):
            self.assertIsNone(self.table.get(key))
            for use in (self.table.delete, lambda key: self.table.put(key, b"")):
                self.assertRaises(ValueError, use, key)
        longest = bytes(LONGEST_KEY_BYTES)
        self.table.put(longest, b"2")
        self.clock.turn()
        self.assertEqual((self.table.get(b"a"), self.table.get(longest)), (b"1", b"2"))

    def test_commitFails(self) -> None:
        """
        If the commit fails, what was put and deleted is lost together with what was appended, and those that wait are
        told.
        """
        events = self.partition()
        self.table.put(b"a", b"1")
        self.table.put(b"b", b"1")
        self.clock.turn()
        self.table.put(b"a", b"2")
        self.table.delete(b"b")
        self.append(events)
        self.wait()
        self.failCommits(storageError(errno.ENOSPC))
        self.clock.turn()
        self.failCommits(None)
        (verdict,) = self.told
        self.assertIsInstance(verdict, LogFailed)
        self.assertEqual(list(self.table.items()), [(b"a", b"1"), (b"b", b"1")])
        self.assertEqual(events.nextOffset, 0)

    def test_atOnce(self) -> None:
        """What is put counts for how much is pending: a turn that writes very much commits in between."""
        self.reopenLog(maxPendingBytes=1000)
        table = self.log.table("offsets")
        for number in range(9):
            table.put(b"%d" % number, bytes(99))
        self.assertTrue(self.log._documents.hasChanges)
        table.put(b"9", bytes(99))
        self.assertFalse(self.log._documents.hasChanges)

    def test_closed(self) -> None:
        """After the log tables are closed, too: they can only be read."""
        self.table.put(b"a", b"1")
        self.successResultOf(self.log.close())
        self.assertEqual(self.table.get(b"a"), b"1")
        for use in (lambda: self.table.put(b"a", b"1"), lambda: self.table.delete(b"a")):
            self.assertRaises(LogClosed, use)

"""
Tests for L{admission.kafka.broker.log.logtables}.
"""

import errno

from zope.interface.verify import verifyObject

from admission.kafka.broker.log.interface import LONGEST_KEY_BYTES, ITable, LogClosed, LogFailed
from tests.kit.logfixture import LogTestCase, storageError

MAP_SIZE_BYTES = 1 << 20


class TableTests(LogTestCase):
    """
    Small facts in L{LmdbLog.table}.
    """

    limits = {**LogTestCase.limits, "mapSizeBytes": MAP_SIZE_BYTES}

    def setUp(self) -> None:
        """
        Have an empty table.
        """
        super().setUp()
        self.table = self.log.table("facts")
        self.told: list[Exception | None] = []

    def wait(self) -> None:
        """
        Have it noted down what is told about the writes so far.
        """
        self.log.whenCommitted(self.told.append)

    def test_interface(self) -> None:
        """
        A table fulfils its contract.
        """
        verifyObject(ITable, self.table)

    def test_turn(self) -> None:
        """
        What was put and deleted in a turn is seen in that turn, and stays.
        """
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

    def test_replaced(self) -> None:
        """
        A key has the value that was put last.
        """
        self.table.put(b"a", b"1")
        self.clock.turn()
        self.table.put(b"a", b"2")
        self.assertEqual(self.table.get(b"a"), b"2")

    def test_deleteAbsent(self) -> None:
        """
        To delete what is not there is no error.
        """
        self.table.delete(b"a")
        self.wait()
        self.clock.turn()
        self.assertEqual(self.told, [None])

    def test_writingMeanwhile(self) -> None:
        """
        Who goes through the items may write, and let turns pass.
        """
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
        """
        A name is always the same table, and no other one; tables have nothing to
        do with what the log itself keeps.
        """
        self.partition("events")
        self.assertIs(self.log.table("facts"), self.table)
        self.table.put(b"a", b"1")
        for name in ("other", "topics", "batches"):
            self.assertEqual(list(self.log.table(name).items()), [])
        for name in ("", "Facts", "a b", "a1", "ä", "a\n"):
            self.assertRaises(ValueError, self.log.table, name)

    def test_manyNames(self) -> None:
        """
        There is room for two dozen tables; one too many is refused and hurts
        none of the others.
        """
        tables = [self.log.table("x" * (number + 1)) for number in range(24)]
        self.assertRaises(LogFailed, lambda: [self.log.table("y" * (number + 1)) for number in range(24)])
        for number, table in enumerate(tables):
            table.put(b"a", b"%d" % number)
        self.clock.turn()
        self.assertEqual([table.get(b"a") for table in tables], [b"%d" % number for number in range(24)])

    def test_madeInMidTurn(self) -> None:
        """
        Making a table commits what is pending; who waits for that is told in
        the next turn as ever.
        """
        self.table.put(b"a", b"1")
        self.wait()
        self.log.table("other").put(b"b", b"2")
        self.assertEqual(self.told, [])
        self.clock.turn()
        self.assertEqual((self.told, self.table.get(b"a"), self.log.table("other").get(b"b")), ([None], b"1", b"2"))

    def test_keys(self) -> None:
        """
        Keys that the storage would not take are refused, and nothing is lost.
        """
        self.table.put(b"a", b"1")
        for key in (b"", bytes(LONGEST_KEY_BYTES + 1)):
            for use in (self.table.get, self.table.delete, lambda key: self.table.put(key, b"")):
                self.assertRaises(ValueError, use, key)
        longest = bytes(LONGEST_KEY_BYTES)
        self.table.put(longest, b"2")
        self.clock.turn()
        self.assertEqual((self.table.get(b"a"), self.table.get(longest)), (b"1", b"2"))

    def test_restart(self) -> None:
        """
        After a restart everything is where it was.
        """
        self.table.put(b"a", b"1")
        self.reopenLog()
        self.assertEqual(list(self.log.table("facts").items()), [(b"a", b"1")])

    def test_commitFails(self) -> None:
        """
        If the commit fails, what was put and deleted is lost together with
        what was appended, and who waits is told.
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

    def test_mapFull(self) -> None:
        """
        What does not fit is refused, and takes what was written before it in
        the turn along; for the rest of the turn nothing is taken.
        """
        self.table.put(b"a", b"1")
        self.wait()
        self.assertIn("map size", str(self.assertRaises(LogFailed, self.table.put, b"b", bytes(2 * MAP_SIZE_BYTES))))
        self.assertRaises(LogFailed, self.table.put, b"c", b"1")
        self.assertRaises(LogFailed, self.table.delete, b"a")
        self.assertEqual(list(self.table.items()), [])
        self.clock.turn()
        self.assertIsInstance(self.told.pop(), LogFailed)
        self.table.put(b"c", b"1")
        self.wait()
        self.clock.turn()
        self.assertEqual((self.told, list(self.table.items())), ([None], [(b"c", b"1")]))

    def test_bound(self) -> None:
        """
        What is put counts for how much is pending: a turn that writes very much
        commits in between.
        """
        self.reopenLog(maxPendingBytes=1000)
        table = self.log.table("facts")
        for number in range(9):
            table.put(b"%d" % number, bytes(99))
        self.assertIsNotNone(self.log._commits.transaction)
        table.put(b"9", bytes(99))
        self.assertIsNone(self.log._commits.transaction)

    def test_closed(self) -> None:
        """
        After the log tables are closed, too.
        """
        self.successResultOf(self.log.close())
        for use in (
            lambda: self.table.get(b"a"),
            lambda: self.table.items(),
            lambda: self.table.put(b"a", b"1"),
            lambda: self.table.delete(b"a"),
            lambda: self.log.table("other"),
        ):
            self.assertRaises(LogClosed, use)

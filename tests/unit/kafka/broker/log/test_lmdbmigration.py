"""Tests for L{admission.kafka.broker.log.lmdbmigration}."""

import os
import struct
from pathlib import Path
from uuid import UUID

from admission.kafka.broker.log.interface import LogFailed, LogInUse
from admission.kafka.broker.log.lmdbmigration import Migrated, Migration, OldLog, compare
from admission.kafka.broker.log.logcheck import checkLog
from tests.kit.logfixture import LogTestCase, makeBatch
from tests.kit.oldlog import OldLogWriter

EVENTS = UUID(int=1)
OTHERS = UUID(int=2)


class MigrationTests(LogTestCase):
    def setUp(self) -> None:
        """
        Write an old log with two topics: one with records from offset 3 on in its second partition,
        one with none.
        """
        self.old = self.mktemp()
        self.writer = OldLogWriter(self.old)
        self.writer.topic("events", EVENTS, [5, 9], {"retention.ms": "-1"})
        self.writer.topic("others", OTHERS, [12], {})
        self.writer.counter(b"next partition number", 13)
        self.writer.counter(b"next producer id", 2000)
        self.writer.start(9, 3)
        for number in range(3):
            buffer, _ = makeBatch(
                number, number, producerId=7, producerEpoch=1, baseSequence=100 + 2 * number, valueBytes=500
            )
            self.writer.batch(9, 3 + 2 * number, buffer)
        self.writer.producer(9, 7, 1, [(104, 105, 7), (102, 103, 5)], "alice")
        self.writer.put(b"table quotas", b"alice", b"limits")
        self.writer.put(b"table offsets", struct.pack(">QQ", 1, 9), b"offset")
        super().setUp()
        self.successResultOf(self.log.close())

    def migrate(self) -> Migrated:
        """Migrate it, and open the new log."""
        self.writer.close()
        before = self.contents()
        log = OldLog(self.old)
        self.path = self.mktemp()
        told: list[int] = []
        try:
            migrated = Migration(log, self.path, told.append, 0.0).run()
        finally:
            log.close()
        self.assertEqual(before, self.contents())
        self.assertEqual(sum(each.sizeBytes for each in migrated.partitions), sum(told))
        self.assertEqual([], list(compare(migrated, checkLog(self.path))))
        self.log = self.openLog()
        return migrated

    def contents(self) -> dict[str, bytes]:
        """All files of the old directory."""
        return {name: Path(self.old, name).read_bytes() for name in os.listdir(self.old)}

    def test_topics(self) -> None:
        """Topics keep their ids, settings and the numbers of their partitions, and new ones get others."""
        self.migrate()
        topic = self.log.topic("events")
        self.assertEqual((EVENTS, {"retention.ms": "-1"}), (topic.topicId, topic.configs))
        self.assertEqual([5, 9], [each.number for each in topic.partitions])
        self.assertEqual([12], [each.number for each in self.log.topicById(OTHERS).partitions])
        self.assertEqual(13, self.log.createTopic("more", 1, {}).partitions[0].number)

    def test_records(self) -> None:
        """Records keep their offsets, and partitions their starts."""
        self.migrate()
        empty, filled = self.log.topic("events").partitions
        self.assertEqual((0, 0), (empty.logStartOffset, empty.nextOffset))
        self.assertEqual((3, 9), (filled.logStartOffset, filled.nextOffset))
        self.assertEqual(3, len(self.read(filled, 3)))
        self.assertEqual(9, self.append(filled).baseOffset)

    def test_manySegments(self) -> None:
        """They are rolled as the settings of the topic say."""
        self.writer.topic("events", EVENTS, [5, 9], {"segment.bytes": "2000"})
        migrated = self.migrate()
        self.assertEqual(3, migrated.partitions[1].batchCount)
        (directory,) = Path(self.path, "partitions").glob("events-1.9")
        self.assertEqual(3, len(list(directory.glob("*.log"))))
        self.assertEqual(3, len(list(directory.glob("*.index"))))
        self.assertEqual(3, len(self.batchesOf(3)))

    def batchesOf(self, offset: int) -> list[bytes]:
        """All batches from an offset on."""
        partition = self.log.topic("events").partitions[1]
        batches: list[bytes] = []
        while offset < partition.highWatermark:
            batches += self.read(partition, offset)
            offset += 2
        return batches

    def test_producers(self) -> None:
        """Producers go on where they were, under their owners, and new ones get other ids."""
        self.migrate()
        self.assertEqual([("alice", 7)], list(self.log.producers()))
        partition = self.log.topic("events").partitions[1]
        again = self.append(partition, 0, 0, producerId=7, producerEpoch=1, baseSequence=102)
        self.assertEqual((5, True), again)
        following = self.append(partition, 0, producerId=7, producerEpoch=1, baseSequence=106)
        self.assertEqual((9, False), following)
        self.assertEqual(2000, self.log.allocateProducerId())

    def test_firstProducerFormat(self) -> None:
        """So do producers whose state is in the oldest format, which had no owners."""
        stored = struct.pack(">hd", 1, 999_000.0) + struct.pack(">iiqiiq", 102, 103, 5, 104, 105, 7)
        self.writer.put(b"producers", struct.pack(">Iq", 9, 7), stored)
        self.migrate()
        partition = self.log.topic("events").partitions[1]
        again = self.append(partition, 0, 0, producerId=7, producerEpoch=1, baseSequence=104)
        self.assertEqual((7, True), again)

    def test_tables(self) -> None:
        """Groups, offsets and limits are what they were."""
        self.migrate()
        self.assertEqual(b"limits", self.log.table("quotas").get(b"alice"))
        self.assertEqual(b"offset", self.log.table("offsets").get(struct.pack(">QQ", 1, 9)))

    def test_clusterId(self) -> None:
        """The cluster keeps its id."""
        self.migrate()
        self.assertEqual("abcdefghijklmnopqrstuv", self.log.clusterId)

    def test_leftovers(self) -> None:
        """What a deleted topic has left is not copied."""
        buffer, _ = makeBatch(0)
        self.writer.batch(1, 0, buffer)
        self.writer.producer(1, 8, 0, [(0, 0, 0)], "bob")
        self.migrate()
        self.assertEqual(["events-1.9"], os.listdir(os.path.join(self.path, "partitions")))
        self.assertEqual([("alice", 7)], list(self.log.producers()))

    def refuse(self) -> str:
        """
        Try to migrate.

        @return: why not.
        """
        self.writer.close()

        def migrate() -> None:
            log = OldLog(self.old)
            try:
                Migration(log, self.mktemp(), lambda sizeBytes: None, 0.0).run()
            finally:
                log.close()

        return str(self.assertRaises(LogFailed, migrate))

    def test_damagedBatch(self) -> None:
        """A damaged batch is named."""
        buffer, _ = makeBatch(0, valueBytes=10)
        buffer[-1] ^= 0xFF
        self.writer.batch(9, 9, buffer)
        self.assertIn("events-1 of", message := self.refuse())
        self.assertIn("is damaged at offset 9", message)

    def test_gap(self) -> None:
        """So are missing offsets."""
        buffer, _ = makeBatch(0)
        self.writer.batch(9, 11, buffer)
        self.assertIn("lacks the offsets 9 to 10", self.refuse())

    def test_otherFormat(self) -> None:
        """A format that is not known is refused."""
        self.writer.counter(b"format", 7)
        self.assertIn("format 7", self.refuse())

    def test_damagedTopic(self) -> None:
        """A topic that cannot be read is named."""
        self.writer.put(b"topics", b"events", b"{}")
        self.assertIn("topic b'events' is damaged", self.refuse())

    def test_shortFile(self) -> None:
        """A file that is shorter than it says is refused, and does not end the process."""
        path = Path(self.old, "data.mdb")
        os.truncate(path, path.stat().st_size // 2)
        self.assertIn("shorter than it says", self.refuse())

    def test_otherDatabase(self) -> None:
        """Another database is refused."""
        Path(self.old, "data.mdb").write_bytes(b"no database" * 1000)
        self.assertIn("cannot be read", self.refuse())

    def test_inUse(self) -> None:
        """A directory that a broker uses is refused."""
        self.writer.close()
        self.path = self.old
        os.unlink(Path(self.old, "data.mdb"))
        self.log = self.openLog()
        self.assertRaises(LogInUse, OldLog, self.old)

    def test_compare(self) -> None:
        """What is missing of a copy is named."""
        migrated = self.migrate()
        self.successResultOf(self.log.close())
        for path in Path(self.path, "partitions").rglob("*.*"):
            if path.is_file():
                path.unlink()
        self.assertIn("events-1 has 0 records of 6", list(compare(migrated, checkLog(self.path))))

"""Segments are Kafka's own: its tools read ours, and the log reads what a Kafka has written."""

from __future__ import annotations

import shutil
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.batches import readBatch
from tests.kit.apachekafka import ApacheKafka, classPath, dumpSegments
from tests.kit.brokerprocess import PATIENCE_SECONDS, BrokerProcess
from tests.kit.logfixture import LogTestCase
from tests.kit.longform import longForm

COMPRESSIONS = ("none", "gzip", "lz4", "zstd")
RECORDS = 2_000


def produceAll(address: str, topic: str) -> None:
    """Produce with every compression, some of it idempotent, to two partitions."""
    for number, compression in enumerate(COMPRESSIONS):
        producer = Producer(
            {
                "bootstrap.servers": address,
                "compression.type": compression,
                "enable.idempotence": bool(number % 2),
                "batch.size": 20_000,
            }
        )
        for value in range(RECORDS):
            producer.produce(topic, b"%d " % value * 30, key=b"%d" % value, partition=value % 2)
        assert producer.flush(PATIENCE_SECONDS) == 0


class DumpTests(SynchronousTestCase):
    """Apache Kafka's C{DumpLogSegments} reads our segments."""

    def test_dump(self) -> None:
        """
        It finds the same offsets and counts that were produced, in every segment, all checksums valid, also of batches
        that were stamped on arrival and of those written after a kill -9, which have the next leader epoch.
        """
        classPath()
        broker = BrokerProcess("--set", "log.segment.bytes=100KiB").startedFor(self)
        admin = AdminClient({"bootstrap.servers": broker.address})
        topics = [NewTopic("kept", 2, 1), NewTopic("stamped", 2, 1, config={"message.timestamp.type": "LogAppendTime"})]
        for created in admin.create_topics(topics).values():
            created.result()
        for topic in ("kept", "stamped"):
            produceAll(broker.address, topic)
        broker.kill()
        broker.start()
        produceAll(broker.address, "kept")
        broker.stop()
        epochs = set()
        paths = sorted(Path(broker.dataPath, "partitions").glob("*/*.log"))
        described = dict(zip(paths, dumpSegments(paths), strict=True))
        for directory in {path.parent for path in paths}:
            segments = [path for path in paths if path.parent == directory]
            self.assertGreater(len(segments), 1)
            nextOffset = 0
            for segment in segments:
                self.assertEqual(int(segment.stem), nextOffset)
                for batch in described[segment]:
                    first, last, count = (int(batch[name]) for name in ("baseOffset", "lastOffset", "count"))
                    self.assertEqual((first, last, batch["isvalid"]), (nextOffset, first + count - 1, "true"))
                    self.assertIn("LogAppendTime" if "stamped" in directory.name else "CreateTime", batch)
                    epochs.add(int(batch["partitionLeaderEpoch"]))
                    nextOffset = last + 1
            produced = len(COMPRESSIONS) * RECORDS // 2
            self.assertEqual(nextOffset, produced * (2 if "kept" in directory.name else 1))
        self.assertEqual(epochs, {0, 1})


class ReadTests(LogTestCase):
    """The log reads the directory of a partition that a real Kafka has written."""

    @longForm
    def test_read(self) -> None:
        """
        Put into the place of an empty partition, it has all records, over several segments and with
        every compression.
        """
        kafka = ApacheKafka()
        self.addCleanup(kafka.remove)
        kafka.start()
        admin = AdminClient({"bootstrap.servers": kafka.address})
        (created,) = admin.create_topics(
            [NewTopic("events", 2, 1, config={"segment.bytes": str(1 << 20)})], request_timeout=PATIENCE_SECONDS
        ).values()
        created.result()
        for _ in range(4):
            produceAll(kafka.address, "events")
        kafka.stop()

        self.partition("events", 1)
        self.successResultOf(self.log.close())
        for index in range(2):
            shutil.copytree(
                kafka.dataPath / f"events-{index}", Path(self.path, "partitions", f"events-{index}.{index}")
            )
        self.log = self.openLog()
        for partition in self.log.topic("events").partitions:
            nextOffset = 0
            while nextOffset < partition.highWatermark:
                for content in self.read(partition, nextOffset):
                    batch = readBatch(content)
                    self.assertEqual(batch.baseOffset, nextOffset)
                    nextOffset = batch.lastOffset + 1
            self.assertEqual(nextOffset, 4 * len(COMPRESSIONS) * RECORDS // 2)

"""Tests for L{admission.kafka.broker.api.produceapi}, and for when Produce is answered."""

from __future__ import annotations

import errno
from collections import Counter
from itertools import count
from typing import Any
from unittest.mock import Mock

import cramjam
import lz4.frame
import zstandard
from attrs import evolve
from kio.schema.errors import ErrorCode

from admission.interfaces import PARKED, RESPONSES
from admission.kafka.storage.itable import LogFailed
from admission.kafka.wire.batches import HEADER_BYTES, decodeRecords, readBatch, readHeader
from tests.kit.brokerfixture import BrokerTestCase, batchOf, codes, produceFields
from tests.kit.hostilebatches import batch, gzipped, hostileBatches, record
from tests.kit.logfixture import batchesIn, storageError

DISK_FULL = storageError(errno.ENOSPC)


def unlinked(payload: bytes) -> bytes:
    """C{payload} in blocks of lz4 as clients make them."""
    return bytes(lz4.frame.compress(payload, block_linked=False))


def window(level: int) -> bytes:
    """A record as zstd compresses it at a level when it does not know how much will come."""
    packing = zstandard.ZstdCompressor(level).compressobj()
    return packing.compress(record()) + packing.flush()


def withFlag(batch: bytes, attributes: int) -> bytes:
    """C{batch}, made anew with these attributes."""
    return batchOf(*(record.value or b"" for record in decodeRecords(batch)), attributes=attributes)


class ProduceTests(BrokerTestCase):
    """Produce appends batches."""

    def setUp(self) -> None:
        super().setUp()
        self.events = self.topic("events", 2)
        self.client = self.connect()

    def test_everyVersion(self) -> None:
        """Batches are stored one after another, in every version that is served."""
        for offset, apiVersion in enumerate(range(3, 13)):
            result = self.client.produce("events", batchOf(b"%d" % apiVersion), apiVersion=apiVersion)
            self.assertEqual((result.error_code, result.base_offset), (0, offset))
            self.assertIsNone(result.log_append_time)
        (fetched,) = self.client.fetch(self.events, 9)
        (record,) = decodeRecords(fetched.records)
        self.assertEqual((record.value, record.offset), (b"12", 9))

    def test_compressed(self) -> None:
        """Every compression that there is passes through as it is, and one that is not there is refused."""
        nowMs = int(self.wallSeconds * 1000)
        for compression, pack in enumerate((bytes, gzipped, cramjam.snappy.compress_raw, unlinked, zstandard.compress)):
            payload = bytes(memoryview(pack(record() + record(1))))
            sent = batch(payload, nowMs, count=2, attributes=compression)
            result = self.client.produce("events", sent)
            self.assertEqual((result.error_code, result.base_offset), (0, 2 * compression))
            (fetched,) = self.client.fetch(self.events, 2 * compression)
            self.assertEqual(fetched.records[16:], sent[16:])
        refused = self.client.produce("events", withFlag(batchOf(b"1"), 5))
        self.assertEqual(refused.error_code, ErrorCode.unsupported_compression_type)

    def assertRefusal(self, records: bytes | None, errorCode: ErrorCode, *words: str, **others: Any) -> None:
        """A batch is refused in these words, and the connection stays."""
        result = self.client.produce("events", records, **others)
        self.assertEqual((result.error_code, result.base_offset), (errorCode, -1))
        for word in words:
            self.assertIn(word, result.error_message)
        self.assertEqual([partition.nextOffset for partition in self.events.partitions], [0, 0])
        self.assertFalse(self.client.isClosed)

    def test_noRecords(self) -> None:
        """Null and empty records are invalid, which no client retries."""
        for records in (None, b""):
            self.assertRefusal(records, ErrorCode.invalid_record, "there are no records")

    def test_corrupt(self) -> None:
        """A batch that was damaged on its way is corrupt, which clients retry."""
        batch = bytearray(batchOf(b"value"))
        batch[-2] ^= 1
        self.assertRefusal(bytes(batch), ErrorCode.corrupt_message, "checksum")
        self.assertRefusal(bytes(batch[:40]), ErrorCode.corrupt_message)

    def test_tooLarge(self) -> None:
        """A batch over C{max.message.bytes} is refused, by the topic's own limit if it has one."""
        self.assertRefusal(batchOf(bytes(1_048_589)), ErrorCode.message_too_large, "max.message.bytes")
        self.log.setTopicConfigs("events", {"max.message.bytes": "100"})
        self.assertRefusal(batchOf(bytes(100)), ErrorCode.message_too_large, "100 are allowed")
        self.assertEqual(self.client.produce("events", batchOf(bytes(10))).error_code, 0)

    def test_transactions(self) -> None:
        """There are no transactions: neither batches nor markers of them, nor requests within one."""
        for attributes in (0x10, 0x20):
            self.assertRefusal(withFlag(batchOf(b"1"), attributes), ErrorCode.invalid_record, "no transactions")
        self.assertRefusal(batchOf(b"1"), ErrorCode.invalid_request, "no transactions", transactionalId="t")

    def test_acks(self) -> None:
        """There are three kinds of acknowledgement."""
        for acks in (-2, 2):
            self.assertRefusal(batchOf(b"1"), ErrorCode.invalid_required_acks, f"acks is {acks}", acks=acks)
        for acks in (1, -1):
            self.assertEqual(self.client.produce("events", batchOf(b"1"), acks=acks).error_code, 0)

    def test_future(self) -> None:
        """A timestamp may be an hour ahead of the broker's clock, and no more, unless the topic says otherwise."""
        nowMs = int(self.wallSeconds * 1000)
        late = batchOf(b"1", timestampMs=nowMs + 3_600_001)
        self.assertRefusal(late, ErrorCode.invalid_timestamp, "message.timestamp.after.max")
        self.topic("patient", configs={"message.timestamp.after.max.ms": "7200000"})
        self.assertEqual(self.client.produce("patient", late).error_code, 0)
        for timestampMs in (nowMs + 3_600_000, 0, -1):
            self.assertEqual(self.client.produce("events", batchOf(b"1", timestampMs=timestampMs)).error_code, 0)

    def test_appendTime(self) -> None:
        """
        In a topic with C{LogAppendTime} records get the time of their arrival, whatever theirs was, and the batch the
        checksum to it.
        """
        self.topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
        nowMs = int(self.wallSeconds * 1000)
        for timestampMs in (-1, 7, 2**60):
            result = self.client.produce("stamped", batchOf(b"1", b"2", timestampMs=timestampMs))
            arrivedMs = result.log_append_time.timestamp() * 1000
            self.assertEqual((result.error_code, arrivedMs), (ErrorCode.none, nowMs))
        (partition,) = self.log.topic("stamped").partitions
        stored = [decodeRecords(batch) for batch in batchesIn(self.log.read(partition, 0, 1 << 20))]
        self.assertEqual([[record.timestampMs for record in records] for records in stored], [[nowMs, nowMs]] * 3)

    def test_unknown(self) -> None:
        """Topics and partitions that are not there are unknown; producing creates none."""
        for name, partition in (("none", 0), ("events", 2), ("events", -1)):
            result = self.client.produce(name, batchOf(b"1"), partition=partition)
            self.assertEqual(result.error_code, ErrorCode.unknown_topic_or_partition)
        self.assertEqual(set(self.log.topics), {"events"})

    def test_eachForItself(self) -> None:
        """What can be appended is, whatever becomes of the rest of the request."""
        partitions = [
            {"index": 0, "records": batchOf(b"1")},
            {"index": 7, "records": batchOf(b"2")},
            {"index": 1, "records": batchOf(b"3")},
        ]
        answer = self.client.ask("Produce", 9, acks=-1, topic_data=[{"name": "events", "partition_data": partitions}])
        results = answer.responses[0].partition_responses
        self.assertEqual([each.index for each in results], [0, 7, 1])
        self.assertEqual(codes(results), [0, ErrorCode.unknown_topic_or_partition, 0])

    def test_partitionTwice(self) -> None:
        """A partition that is named twice gets both batches, in their order."""
        partitions = [{"index": 0, "records": batchOf(value)} for value in (b"1", b"2")]
        answer = self.client.ask("Produce", 9, acks=1, topic_data=[{"name": "events", "partition_data": partitions}])
        self.assertEqual([each.base_offset for each in answer.responses[0].partition_responses], [0, 1])

    def test_nothing(self) -> None:
        """A request without partitions is answered."""
        self.assertEqual(self.client.ask("Produce", 9, acks=-1, topic_data=[]).responses, ())


class HostileBatchesTests(BrokerTestCase):
    """Batches with a right checksum and wrong contents are what they are to Apache Kafka."""

    def setUp(self) -> None:
        super().setUp()
        self.nowMs = int(self.wallSeconds * 1000)
        self.events = self.topic("events")
        self.client = self.connect()

    def test_answers(self) -> None:
        """Each is refused as Kafka refuses it, or stored, and what is sent next is stored behind it."""
        for name, each in hostileBatches(self.nowMs).items():
            before = self.events.partitions[0].nextOffset
            result = self.client.produce("events", each.batch)
            self.assertEqual(result.error_code, each.kafka if each.ours is None else each.ours, name)
            self.assertEqual(self.events.partitions[0].nextOffset > before, not result.error_code, name)
            self.assertEqual(bool(result.error_message), bool(result.error_code), name)
            self.assertEqual(self.client.produce("events", batchOf(b"next")).error_code, 0)

    def test_compressed(self) -> None:
        """Compressed records have to be records, too; what Kafka would mend is refused, and what Java cannot read."""
        for name, each in hostileBatches(self.nowMs).items():
            header = readHeader(each.batch)
            if header.compression or header.baseOffset or header.leaderEpoch > 0 or each.ours is not None:
                continue
            times = {"baseMs": header.baseTimestampMs, "maxMs": header.maxTimestampMs}
            packed = gzipped(each.batch[HEADER_BYTES:])
            compressed = batch(packed, 0, count=header.count, attributes=1 | header.attributes, **times)
            producer = header.producerId >= 0 or header.isControl or header.isTransactional
            if not producer:
                expected = ErrorCode.invalid_record if "delta" in name else each.kafka
                self.assertEqual(self.client.produce("events", compressed).error_code, expected, name)
        linked = batch(bytes(cramjam.lz4.compress(record())), self.nowMs, attributes=3)
        result = self.client.produce("events", linked)
        self.assertEqual(result.error_code, ErrorCode.invalid_record)
        self.assertIn("refer to others", result.error_message)

    def test_times(self) -> None:
        """What a batch says of its largest time is put right, as lookups go by that; so is whose time it is."""
        late = record(0, 1000)
        for attributes, maxMs in ((0, self.nowMs - 9), (8, self.nowMs)):
            sent = batch(late, self.nowMs, maxMs=maxMs, attributes=attributes)
            offset = self.client.produce("events", sent).base_offset
            (fetched,) = self.client.fetch(self.events, offset)
            stored = readBatch(fetched.records)
            self.assertEqual((stored.maxTimestampMs, stored.hasAppendTime), (self.nowMs + 1000, False))

    def test_appendTime(self) -> None:
        """Where records get the time of their arrival, theirs may be any, and no batch may say that it has that."""
        self.topic("stamped", configs={"message.timestamp.type": "LogAppendTime"})
        for name, each in hostileBatches(self.nowMs).items():
            expected = each.kafka if each.ours is None else each.ours
            expected = {"an append time": 32}.get(name, 0 if expected == 32 else expected)
            self.assertEqual(self.client.produce("stamped", each.batch).error_code, expected, name)

    def test_slices(self) -> None:
        """A bomb is gone over in slices, charged for, while others are served; the connection's next request waits."""
        self.patch(self.broker.timeSlices, "_creditSeconds", -1e9)
        bomb = batch(gzipped(record(value=bytes(4 << 20))), self.nowMs, attributes=1)
        other = self.connect()
        self.client.deliver("Produce", 9, **produceFields("events", bomb))
        self.assertEqual((self.client.waiting(), self.gate.turns.runningRequests), (0, 0))
        self.assertGreater(self.pool.usedBytesByPurpose[PARKED], 1 << 16)
        other.deliver("Produce", 9, **produceFields("events", batchOf(b"1")))
        self.clock.advance(0)
        (result,) = self.client.receive().responses[0].partition_responses
        self.assertEqual((result.error_code, result.base_offset), (0, 1))
        self.assertEqual(self.pool.usedBytesByPurpose.get(PARKED, 0), 0)

    def test_memory(self) -> None:
        """What takes much memory to decompress waits for room, and is refused if it would take more than is allowed."""
        values = {
            "snappy": (2, bytes(cramjam.snappy.compress_raw(record(value=bytes(4 << 20))))),
            "zstd": (4, window(19)),
        }
        for name, (codec, payload) in values.items():
            held = self.pool.charge(self.pool.availableBytes, RESPONSES)
            before = self.events.partitions[0].nextOffset
            self.client.deliver("Produce", 9, **produceFields("events", batch(payload, self.nowMs, attributes=codec)))
            self.clock.advance(1)
            self.assertEqual((self.client.waiting(), self.gate.answers.waiting), (0, 1), name)
            held.release()
            self.clock.pump([0, 0])
            self.assertEqual(self.client.receive().responses[0].partition_responses[0].base_offset, before, name)
        self.assertIn(
            "too much memory", self.client.produce("events", batch(window(22), self.nowMs, attributes=4)).error_message
        )

    def test_without(self) -> None:
        """Unless C{produce.batch.validation} is set: then only what stands in the header of a batch is looked at."""
        self.broker.settings = evolve(self.broker.settings, produceBatchValidation=False)
        batches = hostileBatches(self.nowMs)
        stored = [name for name, each in batches.items() if not self.client.produce("events", each.batch).error_code]
        for name in ("garbage", "gzip garbage", "a gzip bomb", "a time of 2^63 - 1 and a largest of now"):
            self.assertIn(name, stored)
        for name in ("a year ahead", "a control batch", "codec 5", "a producer without sequence"):
            self.assertNotIn(name, stored)


class IdempotenceTests(BrokerTestCase):
    """What clients may rely on who number their batches."""

    def setUp(self) -> None:
        """Get a producer id."""
        super().setUp()
        self.topic("events")
        self.client = self.connect()
        answer = self.client.ask("InitProducerId", 4, transactional_id=None)
        self.producer = {"producerId": answer.producer_id, "producerEpoch": answer.producer_epoch}

    def produce(self, baseSequence: int, **others: int) -> tuple[int, int]:
        """
        Produce a record.

        @return: the error code and the offset.
        """
        batch = batchOf(b"1", baseSequence=baseSequence, **{**self.producer, **others})
        result = self.client.produce("events", batch)
        return result.error_code, result.base_offset

    def test_duplicate(self) -> None:
        """A batch that is sent again is acknowledged again, with the offset it has."""
        self.assertEqual([self.produce(0), self.produce(1), self.produce(0)], [(0, 0), (0, 1), (0, 0)])
        self.assertEqual(self.log.topic("events").partitions[0].highWatermark, 2)

    def test_refused(self) -> None:
        """A batch that leaves others out is out of order, and a producer that has been replaced is refused."""
        self.produce(0, producerEpoch=1)
        self.assertEqual(self.produce(2, producerEpoch=1), (ErrorCode.out_of_order_sequence_number, -1))
        self.assertEqual(self.produce(1, producerEpoch=0), (ErrorCode.invalid_producer_epoch, -1))


class ManyPartitionsTests(BrokerTestCase):
    """A request to many partitions is worked on in slices."""

    COUNT = 200

    def setUp(self) -> None:
        super().setUp()
        self.events = self.topic("events", self.COUNT)
        self.clock.advance(0)
        self.client = self.connect()
        self.patch(self.broker.timeSlices, "_creditSeconds", -1e9)

    def deliver(self, acks: int = 1) -> None:
        """Send a batch for each partition, without letting a turn pass."""
        data = [{"index": index, "records": batchOf(b"%d" % index)} for index in range(self.COUNT)]
        topics = [{"name": "events", "partition_data": data}]
        self.client.deliver("Produce", 9, acks=acks, timeout=1000, topic_data=topics)

    def outcomes(self) -> Counter[int]:
        """How many partitions have which error."""
        self.clock.advance(0)
        (topic,) = self.client.receive().responses
        return Counter(each.error_code for each in topic.partition_responses)

    def stored(self) -> int:
        """How many partitions have their batch."""
        return sum(partition.highWatermark for partition in self.events.partitions)

    def test_inSlices(self) -> None:
        """Others are served meanwhile; what its connection has sent behind it comes after it."""
        self.deliver()
        self.client.deliver("ApiVersions", 4)
        self.assertEqual((self.stored(), self.gate.turns.runningRequests), (0, 0))
        self.assertGreater(self.frameBytes, 0)
        self.assertEqual(self.connect().ask("ApiVersions", 4).error_code, 0)
        self.assertEqual(self.outcomes(), {0: self.COUNT})
        self.assertEqual(self.client.receive().error_code, 0)
        self.assertEqual((self.stored(), self.frameBytes), (self.COUNT, 0))

    def test_synced(self) -> None:
        """With acks=all it is answered when the disk has all of it."""
        self.isHolding = True
        self.deliver(acks=-1)
        self.clock.advance(0)
        self.assertEqual((self.stored(), self.client.waiting()), (self.COUNT, 0))
        self.finishFlushes()
        self.assertEqual(self.outcomes(), {0: self.COUNT})

    def test_waits(self) -> None:
        """It waits for its files to be flushed, as others need files, too, but no longer than its timeout."""
        self.patch(self.log._openFiles, "_maxFiles", self.COUNT)
        self.isHolding = True
        self.deliver()
        self.clock.advance(0)
        self.assertIn(self.stored(), range(self.COUNT // 2 - 8, self.COUNT // 2 + 1))
        self.topic("others")
        other = self.connect()
        other.protocol.holder = "another"
        self.assertEqual(other.produce("others", batchOf(b"x"), acks=1).error_code, ErrorCode.none)
        while self.flushes:
            self.finishFlush()
        self.clock.advance(0)
        self.isHolding = False
        self.assertEqual(self.outcomes(), {0: self.COUNT})

    def test_waitsTooLong(self) -> None:
        """If they are not flushed in time, the rest is refused."""
        self.patch(self.log._openFiles, "_maxFiles", self.COUNT)
        self.isHolding = True
        self.deliver()
        self.clock.advance(0)
        stored = self.stored()
        self.clock.advance(1.0)
        self.assertEqual(self.outcomes(), {0: stored, ErrorCode.kafka_storage_error: self.COUNT - stored})
        self.finishFlushes()

    def test_failure(self) -> None:
        """Where the disk fails on the way, the rest is refused, and what is written stays."""
        append, calls = self.log.append, count()

        def failing(*arguments: Any) -> Any:
            if next(calls) == self.COUNT // 2:
                self.failCommits(DISK_FULL)
            return append(*arguments)

        self.patch(self.log, "append", failing)
        self.deliver()
        outcomes = self.outcomes()
        self.assertEqual(outcomes, {0: self.stored(), ErrorCode.kafka_storage_error: self.COUNT - self.stored()})
        self.assertIn(self.stored(), range(self.COUNT // 2 - 8, self.COUNT // 2 + 1))

    def test_unacknowledged(self) -> None:
        """A client that wants no answer may leave at once."""
        self.deliver(acks=0)
        self.client.disconnect()
        self.clock.advance(0)
        self.assertEqual((self.stored(), self.frameBytes), (self.COUNT, 0))

    def test_bug(self) -> None:
        """
        If it fails in a way that nobody has thought of, at once or later, the connection is closed
        and nothing is left.
        """

        def failing(*arguments: Any) -> Any:
            raise ZeroDivisionError

        self.patch(self.log, "append", failing)
        for creditSeconds in (-1e9, 1e9):
            self.broker.timeSlices._creditSeconds = creditSeconds
            self.client = self.connect()
            self.deliver()
            self.clock.advance(0)
            self.assertTrue(self.client.isClosed)
            self.assertEqual(self.frameBytes, 0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)

    def test_stopped(self) -> None:
        """When the broker stops, what is not written yet is not answered, and nothing is left."""
        self.deliver()
        self.broker.timeSlices.close()
        self.assertEqual((self.stored(), self.frameBytes, self.client.waiting()), (0, 0, 0))


class InitProducerIdTests(BrokerTestCase):
    """InitProducerId hands out numbers."""

    def test_everyVersion(self) -> None:
        """Each producer gets another id, and epoch 0."""
        client = self.connect()
        answers = [client.ask("InitProducerId", apiVersion, transactional_id=None) for apiVersion in range(6)]
        self.assertEqual(len({answer.producer_id for answer in answers}), 6)
        self.assertEqual({(answer.error_code, answer.producer_epoch) for answer in answers}, {(0, 0)})

    def test_again(self) -> None:
        """A producer that has an id already gets a new one."""
        answer = self.connect().ask("InitProducerId", 4, transactional_id=None, producer_id=12345, producer_epoch=3)
        self.assertEqual((answer.error_code, answer.producer_epoch), (0, 0))
        self.assertNotEqual(answer.producer_id, 12345)

    def test_transactional(self) -> None:
        """A transactional producer is refused, also one whose transaction has an empty name."""
        for name in ("t", ""):
            answer = self.connect().ask("InitProducerId", 4, transactional_id=name)
            self.assertEqual(
                (answer.error_code, answer.producer_id, answer.producer_epoch),
                (ErrorCode.transactional_id_authorization_failed, -1, -1),
            )

    def test_failingLog(self) -> None:
        """Where the log cannot reserve more ids, its error is told."""
        self.patch(self.log, "allocateProducerId", Mock(side_effect=LogFailed("full")))
        answer = self.connect().ask("InitProducerId", 4, transactional_id=None)
        self.assertEqual((answer.error_code, answer.producer_id), (ErrorCode.kafka_storage_error, -1))


class AcknowledgementTests(BrokerTestCase):
    """Nothing is acknowledged before it is committed."""

    def setUp(self) -> None:
        super().setUp()
        self.events = self.topic("events", 2)
        self.client = self.connect()

    def test_unacknowledged(self) -> None:
        """Without acknowledgements there is no response, and the next request is read at once."""
        for value in (b"1", b"2"):
            fields = produceFields("events", batchOf(value), acks=0)
            self.client.deliver("Produce", 9, answered=False, **fields)
        self.assertEqual(self.events.partitions[0].nextOffset, 2)
        self.assertEqual(self.client.ask("ApiVersions", 4).error_code, 0)
        self.assertEqual(self.client.waiting(), 0)

    def test_unacknowledgedRefusal(self) -> None:
        """A refusal that no response can tell closes the connection, and the log says why."""
        for fields in (
            produceFields("none", batchOf(b"1"), acks=0),
            produceFields("events", b"nonsense" * 10, acks=0),
            produceFields("events", batchOf(b"1"), acks=0, transactionalId="t"),
        ):
            client = self.connect()
            client.send("Produce", 9, answered=False, **fields)
            self.assertRefused(client, "and it wants no response: ")

    def test_failedCommit(self) -> None:
        """When the commit fails everybody who waits for it is told, and nothing is there to be read."""
        clients = [self.connect() for _ in range(3)]
        self.failCommits(DISK_FULL)
        for client in clients:
            client.deliver("Produce", 9, **produceFields("events", batchOf(b"1")))
        self.clock.advance(0)
        for client in clients:
            (result,) = client.receive().responses[0].partition_responses
            self.assertEqual((result.error_code, result.base_offset), (ErrorCode.kafka_storage_error, -1))
            self.assertTrue(result.error_message)
        self.assertEqual(self.events.partitions[0].highWatermark, 0)
        self.failCommits(None)
        self.assertEqual(self.client.produce("events", batchOf(b"1")).base_offset, 0)

    def test_refusedAndFailed(self) -> None:
        """What was refused keeps its own error when the commit of the rest fails."""
        partitions = [{"index": 0, "records": batchOf(b"1")}, {"index": 1, "records": None}]
        fields: dict[str, Any] = {"acks": -1, "topic_data": [{"name": "events", "partition_data": partitions}]}
        self.failCommits(DISK_FULL)
        self.client.deliver("Produce", 9, **fields)
        self.clock.advance(0)
        failed, refused = self.client.receive().responses[0].partition_responses
        self.assertEqual(codes([failed, refused]), [ErrorCode.kafka_storage_error, ErrorCode.invalid_record])
        self.assertEqual(refused.error_message, "there are no records")
        self.failCommits(None)

    def test_refusedWhileOthersAppend(self) -> None:
        """A request of which nothing was appended is answered, whatever becomes of others."""
        other = self.connect()
        other.deliver("Produce", 9, **produceFields("events", batchOf(b"1")))
        self.client.deliver("Produce", 9, **produceFields("events", None))
        self.clock.advance(0)
        self.assertEqual((self.client.waiting(), other.waiting()), (1, 1))

    def test_closedLog(self) -> None:
        """A log that takes nothing any more is an error of each partition."""
        self.successResultOf(self.log.close())
        self.assertEqual(self.client.produce("events", batchOf(b"1")).error_code, ErrorCode.kafka_storage_error)

    def test_deletedBeforeCommit(self) -> None:
        """Records of a topic that is deleted in the same turn are acknowledged; then they are gone."""
        self.client.deliver("Produce", 9, **produceFields("events", batchOf(b"1")))
        self.log.deleteTopic("events")
        self.clock.advance(0)
        (result,) = self.client.receive().responses[0].partition_responses
        self.assertEqual((result.error_code, result.base_offset), (0, 0))

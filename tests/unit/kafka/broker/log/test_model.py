"""L{admission.kafka.broker.log.segmentlog} against a model made of lists."""

import errno
import shutil
from bisect import bisect_right
from itertools import count

from attrs import define, field
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.interface import (
    InvalidProducerEpoch,
    ITable,
    LogFailed,
    OffsetOutOfRange,
    OutOfOrderSequence,
    Partition,
)
from admission.kafka.broker.log.partitionlog import PartitionLog
from admission.kafka.wire.batches import RecordBatch, decodeRecords
from tests.kit.logfixture import LogTestCase, makeBatch, storageError

PARTITIONS = 2
INDEX = st.integers(0, PARTITIONS - 1)
KEYS = (b"a", b"b", b"cc")
KEY = st.sampled_from(KEYS)
NOW_MS = 1_000_000_000
LARGE = makeBatch(NOW_MS, valueBytes=100_000)
"""A batch that is written at once."""
SEGMENT_BYTES = 200


@define
class Batch:
    """A batch that was appended."""

    baseOffset: int
    timestampsMs: list[int]
    sizeBytes: int


@define
class Producer:
    """
    What one producer did in one partition: its epoch, and the first and last
    sequence number and the offset of all its batches.
    """

    epoch: int
    batches: list[tuple[int, int, int]]


@define
class PartitionModel:
    """A partition, as simply as it can be told."""

    batches: list[Batch] = field(factory=list)
    nextOffset: int = 0
    producers: dict[int, Producer] = field(factory=dict)

    def copy(self) -> "PartitionModel":
        """What it is now, whatever happens to it later."""
        producers = {key: Producer(producer.epoch, list(producer.batches)) for key, producer in self.producers.items()}
        return PartitionModel(list(self.batches), self.nextOffset, producers)


class LogMachine(RuleBasedStateMachine):
    """Appends, commits, failures, retention, restarts and crashes in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.case = LogTestCase("openLog")
        self.case.limits = {**LogTestCase.limits, "segmentBytes": SEGMENT_BYTES}
        self.case.setUp()
        self.case.log.createTopic("events", PARTITIONS, {})
        self.paths = [self.case.path]
        self.appended = [PartitionModel() for _ in range(PARTITIONS)]
        self.committed = [PartitionModel() for _ in range(PARTITIONS)]
        self.puts: dict[bytes, bytes] = {}
        self.committedPuts: dict[bytes, bytes] = {}
        self.pending = self.lost = False
        # Whether there is something to write, which can fail.
        self.hasChanges = False
        self.tickets = count()
        self.waiting: list[int] = []
        self.expected: list[tuple[int, bool]] = []
        self.told: list[tuple[int, bool]] = []
        self.beforeSettling = (self.committed, self.committedPuts)
        # With which epoch and sequence producers have begun, by partition and id: in this turn, and in vain.
        self.begun: dict[tuple[int, int], tuple[int, int]] = {}
        self.missing: dict[tuple[int, int], tuple[int, int]] = {}

    def teardown(self) -> None:
        """Close the log and remove its directories: there are many."""
        self.case.doCleanups()
        for path in self.paths:
            shutil.rmtree(path)

    def table(self) -> ITable:
        """A table of the log."""
        table: ITable = self.case.log.table("offsets")
        return table

    def partitions(self) -> tuple[Partition, ...]:
        """The log's partitions."""
        return self.case.log.topic("events").partitions

    @precondition(lambda self: not self.lost)
    @rule(index=INDEX, timestampsMs=st.lists(st.integers(NOW_MS - 50, NOW_MS + 50), min_size=1, max_size=3))
    def append(self, index: int, timestampsMs: list[int]) -> None:
        """A batch without a producer is appended."""
        self.appendBatch(index, timestampsMs, *makeBatch(*timestampsMs))

    @precondition(lambda self: not self.lost)
    @rule(
        index=INDEX,
        producerId=st.integers(0, 1),
        epoch=st.integers(0, 1),
        back=st.integers(-1, 7),
        recordCount=st.integers(1, 2),
    )
    def produce(self, index: int, producerId: int, epoch: int, back: int, recordCount: int) -> None:
        """
        A batch of a producer is appended, known, or refused, as the rules of
        idempotence have it; C{back} is how many of its batches it goes back.
        """
        producer = self.appended[index].producers.get(producerId)
        past = producer.batches if producer and producer.epoch == epoch else []
        following = past[-1][1] + 1 if past else 0
        starts = [following + 1, following, *[first for first, _, _ in reversed(past)]]
        first = starts[min(back + 1, len(starts) - 1)]
        last = first + recordCount - 1
        timestampsMs = [NOW_MS] * recordCount
        batch = makeBatch(*timestampsMs, producerId=producerId, producerEpoch=epoch, baseSequence=first)
        duplicates = [offset for *sequences, offset in past[-5:] if sequences == [first, last]]
        if producer and epoch < producer.epoch:
            self.case.assertRaises(InvalidProducerEpoch, self.case.log.append, self.partitions()[index], *batch)
        elif duplicates:
            result = self.case.log.append(self.partitions()[index], *batch)
            self.case.assertEqual(result, (duplicates[0], True))
        elif (first != following) if producer else self.isGap((index, producerId), epoch, first):
            self.case.assertRaises(OutOfOrderSequence, self.case.log.append, self.partitions()[index], *batch)
        else:
            if not producer:
                self.begun[index, producerId] = (epoch, first)
                self.missing.pop((index, producerId), None)
            appended = (first, last, self.appended[index].nextOffset)
            self.appendBatch(index, timestampsMs, *batch)
            self.appended[index].producers[producerId] = Producer(epoch, [*past, appended])

    def isGap(self, key: tuple[int, int], epoch: int, first: int) -> bool:
        """Whether a new producer goes on although its first batch was lost."""
        missingEpoch, missingFirst = self.missing.get(key, (epoch, first))
        return epoch == missingEpoch and first != missingFirst

    def lose(self) -> None:
        """What was appended in this turn is lost, and the first batches of producers are missing."""
        for key, beginning in self.begun.items():
            if self.missing.get(key, (None, 0))[0] != beginning[0]:
                self.missing[key] = beginning
        self.begun.clear()
        self.appended = [model.copy() for model in self.committed]
        self.puts = dict(self.committedPuts)

    def appendBatch(self, index: int, timestampsMs: list[int], buffer: bytearray, batch: RecordBatch) -> None:
        """Append to the log and to the model."""
        model = self.appended[index]
        result = self.case.log.append(self.partitions()[index], buffer, batch)
        self.case.assertEqual(result, (model.nextOffset, False))
        model.batches.append(Batch(model.nextOffset, timestampsMs, len(buffer)))
        model.nextOffset += len(timestampsMs)
        self.pending = self.hasChanges = True

    @precondition(lambda self: not self.lost)
    @rule(key=KEY, value=st.binary(max_size=3))
    def put(self, key: bytes, value: bytes) -> None:
        """A fact is put into a table."""
        self.table().put(key, value)
        self.puts[key] = value
        self.pending = self.hasChanges = True

    @precondition(lambda self: not self.lost)
    @rule(key=KEY)
    def delete(self, key: bytes) -> None:
        """A fact is deleted, if it is there."""
        self.table().delete(key)
        self.hasChanges |= key in self.puts
        self.puts.pop(key, None)
        self.pending = True

    @rule()
    def wait(self) -> None:
        """Somebody waits for the commit; at once if there is none to come."""
        ticket = next(self.tickets)
        if self.pending or self.lost:
            self.waiting.append(ticket)
        else:
            self.expected.append((ticket, True))
        self.case.log.whenCommitted(lambda verdict: self.told.append((ticket, verdict is None)))

    @rule()
    def turn(self) -> None:
        """A turn passes: what is pending is committed."""
        self.case.clock.turn()
        self.settled(not self.lost)

    @precondition(lambda self: self.hasChanges)
    @rule()
    def failToCommit(self) -> None:
        """A turn passes, and the commit fails."""
        self.case.failCommits(storageError(errno.ENOSPC))
        self.case.clock.turn()
        self.case.failCommits(None)
        self.settled(False)

    @rule(index=INDEX)
    def failToAppend(self, index: int) -> None:
        """An append fails, and takes along what is pending; so does every other one until the turn is over."""
        self.case.failCommits(storageError(errno.ENOSPC))
        self.case.assertRaises(LogFailed, self.case.log.append, self.partitions()[index], *LARGE)
        self.case.failCommits(None)
        self.case.assertRaises(LogFailed, self.case.log.append, self.partitions()[index], *makeBatch(NOW_MS))
        self.lose()
        self.pending, self.hasChanges, self.lost = False, False, True

    @precondition(lambda self: not self.lost)
    @rule(maxBytes=st.integers(0, 400), maxAgeMs=st.integers(-1, 50))
    def retain(self, maxBytes: int, maxAgeMs: int) -> None:
        """Limits are set and a sweep enforces them, by whole segments."""
        configs = {"retention.bytes": str(maxBytes), "retention.ms": str(maxAgeMs)}
        self.case.log.setTopicConfigs("events", configs)
        self.settled(True)
        segments = [self.segments(index) for index in range(PARTITIONS)]
        self.case.sweep()
        self.case.log.setTopicConfigs("events", {})
        self.settled(True)
        for model, (*closed, last) in zip(self.appended, segments, strict=True):
            left = [*closed, last]
            while left[0] and (
                (len(left) > 1 and sum(batch.sizeBytes for segment in left[1:] for batch in segment) >= maxBytes)
                or (maxAgeMs >= 0 and max(max(batch.timestampsMs) for batch in left[0]) < NOW_MS - maxAgeMs)
            ):
                del left[0]
                if not left:
                    break
            model.batches = [batch for segment in left for batch in segment]
        self.committed = [model.copy() for model in self.appended]

    def segments(self, index: int) -> list[list[Batch]]:
        """The batches of a partition as they are spread over segments; the last one may be empty."""
        partition = self.partitions()[index]
        assert isinstance(partition, PartitionLog)
        bases = [segment.baseOffset for segment in partition.segments]
        batches = self.committed[index].batches
        segments: list[list[Batch]] = [[] for _ in bases] or [[]]
        for batch in batches:
            segments[bisect_right(bases, batch.baseOffset) - 1].append(batch)
        for segment in segments[:-1]:
            self.case.assertNotEqual(segment, [])
        return segments

    @rule()
    def reopen(self) -> None:
        """The log is closed, which commits what is pending, and opened again."""
        self.case.reopenLog()
        self.settled(not self.lost)
        self.forgetProducers(isClean=True)

    @rule(isFlushed=st.booleans())
    def crash(self, isFlushed: bool) -> None:
        """What is on the disk in this moment is opened as if the process had died."""
        if isFlushed:
            # Also writes checkpoints of closed segments.
            self.case.log._flusher.everything()
        path = f"{self.paths[0]}-{len(self.paths)}"
        shutil.copytree(self.case.path, path)
        self.case.successResultOf(self.case.log.close())
        self.settled(not self.lost)
        models, self.committedPuts = self.beforeSettling
        self.appended = [model.copy() for model in models]
        self.committed = [model.copy() for model in models]
        self.puts = dict(self.committedPuts)
        self.paths.append(path)
        self.case.path = path
        self.case.log = self.case.openLog()
        self.forgetProducers(isClean=False)

    @rule()
    def interval(self) -> None:
        """Time passes: everything is flushed."""
        self.case.clock.advance(1.0)
        self.settled(not self.lost)

    def forgetProducers(self, isClean: bool) -> None:
        """
        After a restart the batches of producers that are known are the last ones, and all that retention has
        left; after a clean one with records, all.  What has not been kept is forgotten.
        """
        self.missing.clear()
        for partition, model in zip(self.partitions(), self.appended, strict=True):
            for producerId, producer in list(model.producers.items()):
                state = self.case.log._producers.get((partition.number, producerId))
                known = [] if state is None else list(state.batches)
                last = producer.batches[-5:]
                start = partition.logStartOffset
                needed = last if isClean and partition.sizeBytes else [batch for batch in last if batch[2] >= start]
                self.case.assertGreaterEqual(len(known), len(needed))
                self.case.assertEqual(known, last[len(last) - len(known) :])
                producer.batches = known
                if not known:
                    del model.producers[producerId]
        self.committed = [model.copy() for model in self.appended]

    def settled(self, success: bool) -> None:
        """A turn is over, with or without a loss."""
        self.beforeSettling = (self.committed, self.committedPuts)
        if success:
            self.committed = [model.copy() for model in self.appended]
            self.committedPuts = dict(self.puts)
            self.begun.clear()
        else:
            self.lose()
        self.expected += [(ticket, success) for ticket in self.waiting]
        self.waiting.clear()
        self.pending = self.hasChanges = self.lost = False

    @invariant()
    def same(self) -> None:
        """The log is what the model says."""
        self.case.assertEqual(self.told, self.expected)
        self.case.assertEqual(list(self.table().items()), sorted(self.puts.items()))
        for key in KEYS:
            self.case.assertEqual(self.table().get(key), self.puts.get(key))
        for partition, appended, committed in zip(self.partitions(), self.appended, self.committed, strict=True):
            batches = committed.batches
            start = batches[0].baseOffset if batches else committed.nextOffset
            self.case.assertEqual(
                (partition.logStartOffset, partition.highWatermark, partition.nextOffset, partition.sizeBytes),
                (start, committed.nextOffset, appended.nextOffset, sum(batch.sizeBytes for batch in batches)),
            )
            stored = [decodeRecords(batch) for batch in self.case.readAll(partition)]
            self.case.assertEqual(
                [(records[0].offset, [record.timestampMs for record in records]) for records in stored],
                [(batch.baseOffset, batch.timestampsMs) for batch in batches],
            )
            for number, batch in enumerate(batches):
                expected = sum(later.sizeBytes for later in batches[number:])
                lastOffset = batch.baseOffset + len(batch.timestampsMs) - 1
                self.case.assertEqual(self.case.log.bytesAvailable(partition, lastOffset), expected)
            for offset in (start - 1, committed.nextOffset + 1):
                self.case.assertRaises(OffsetOutOfRange, self.case.log.read, partition, offset, 1000)


class ModelTests(SynchronousTestCase):
    """The log does what lists do."""

    def test_model(self) -> None:
        """Whatever happens in whatever order, the log holds what was committed and not deleted, and says so."""
        run_state_machine_as_test(
            LogMachine,
            settings=settings(
                max_examples=60,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )

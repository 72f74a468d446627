"""What the tests of the record log share."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.api import timelookup
from admission.kafka.broker.api.timelookup import TimestampedOffset
from admission.kafka.broker.log.interface import AppendResult, Partition
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.storage.disk import LocalDisk, LocalFile
from admission.kafka.wire.batches import Record, RecordBatch, encodeBatch, readBatch, readHeader
from admission.kafka.wire.recordwalk import FoundRecord, RecordWalk
from admission.timeslices import Steps

T = TypeVar("T")


def makeBatch(
    *timestampsMs: int,
    producerId: int = -1,
    producerEpoch: int = -1,
    baseSequence: int = -1,
    valueBytes: int = 0,
    attributes: int = 0,
) -> tuple[bytearray, RecordBatch]:
    """A batch of one record for each timestamp, and its header."""
    encoded = bytearray(
        encodeBatch(
            [Record(value=bytes(valueBytes), timestampMs=timestampMs) for timestampMs in timestampsMs],
            attributes=attributes,
            producerId=producerId,
            producerEpoch=producerEpoch,
            baseSequence=baseSequence,
        )
    )
    return encoded, readBatch(encoded)


class TurnClock(Clock):
    """
    A clock with turns, as a reactor has them: what is to be called without a
    delay is called by the next L{turn}, not by the one that is going on.
    """

    TURN_SECONDS = 2.0**-20

    def callLater(self, delay: float, callable: Callable[..., object], *args: object, **kw: object) -> IDelayedCall:
        """See L{twisted.internet.interfaces.IReactorTime.callLater}."""
        return super().callLater(max(delay, self.TURN_SECONDS), callable, *args, **kw)

    def turn(self) -> None:
        """Call what is due."""
        self.advance(self.TURN_SECONDS)


class Threads:
    """
    Threads that do nothing before they are told to.

    @ivar waiting: what they have been given.
    """

    def __init__(self) -> None:
        self.waiting: list[tuple[Deferred[Any], Callable[[], Any]]] = []

    def deferToThread(self, function: Callable[..., Any], *arguments: object) -> Deferred[Any]:
        """Keep a function for L{run}."""
        result: Deferred[Any] = Deferred()
        self.waiting.append((result, partial(function, *arguments)))
        return result

    def run(self) -> None:
        """Call the oldest function that waits."""
        result, function = self.waiting.pop(0)
        maybeDeferred(function).chainDeferred(result)

    def runAll(self) -> None:
        """Call all that wait, and those that come to wait because of that."""
        while self.waiting:
            self.run()


def storageError(code: int) -> OSError:
    """
    An error of the disk.

    @param code: one of L{errno}.
    """
    return OSError(code, os.strerror(code))


class FailingDisk(LocalDisk):
    """
    The disk of this machine, which can be made to fail.

    @ivar writeError: what writing raises; L{None} for nothing.
    @ivar flushError: what flushing raises.
    """

    writeError: OSError | None = None
    flushError: OSError | None = None

    def open(self, path: str, create: bool = False) -> "FailingFile":
        """As the disk does."""
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        return FailingFile(self, os.open(path, flags, 0o644))


class FailingFile(LocalFile):
    """A file on a L{FailingDisk}."""

    __slots__ = ("_disk",)

    def __init__(self, disk: FailingDisk, descriptor: int) -> None:
        super().__init__(descriptor)
        self._disk = disk

    def write(self, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        """Write a part, or all."""
        if self._disk.writeError is not None:
            super().write([b"".join(buffers)[:-1]], position)
            raise self._disk.writeError
        super().write(buffers, position)

    def flush(self) -> None:
        """Flush, or do not."""
        if self._disk.flushError is not None:
            raise self._disk.flushError
        super().flush()


def batchesIn(records: bytes) -> list[bytes]:
    """The single batches of what a log has read."""
    batches = []
    while records:
        sizeBytes = readHeader(records).sizeBytes
        batches.append(records[:sizeBytes])
        records = records[sizeBytes:]
    return batches


def finish(steps: Steps[T]) -> T:
    """Do work in one go that waits for nothing."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def goOver(walk: RecordWalk, times: tuple[int, int], memoryBytes: int) -> Steps[FoundRecord | None]:
    """L{RecordWalk.findOutside}, charged to nobody."""
    return (yield from walk.findOutside(*times))


class LogTestCase(SynchronousTestCase):
    """
    A test with a log.

    @ivar clock: the log's clock.
    @ivar wallSeconds: what the log takes for the time.
    @ivar path: the log's directory.
    @ivar disk: the log's disk.
    @ivar log: the log.
    @ivar limits: arguments for the log; records do not age unless they say so.
    """

    limits: dict[str, Any] = {"retentionSeconds": None}

    def setUp(self) -> None:
        # No test loses power, and what others write to the disk must not slow the tests down.
        for name in ("fdatasync", "fsync"):
            self.patch(os, name, lambda descriptor: None)
        self.clock = TurnClock()
        self.wallSeconds = 1_000_000.0
        self.disk = FailingDisk()
        self.path = self.mktemp()
        self.log = self.openLog()

    def openLog(self, **limits: Any) -> SegmentLog:
        """Open the log in the test's directory; closed when the test ends."""
        arguments = {"disk": self.disk, **self.limits, **limits}
        log = SegmentLog(self.path, self.clock, lambda: self.wallSeconds, maybeDeferred, **arguments)
        self.addCleanup(lambda: self.successResultOf(log.close()))
        self.clock.turn()
        return log

    def reopenLog(self, **limits: Any) -> None:
        """Close the log and open it again."""
        self.successResultOf(self.log.close())
        self.log = self.openLog(**limits)

    def offsetForTimestamp(self, partition: Partition, timestampMs: int) -> TimestampedOffset | None:
        """The first record that is not older than a time."""
        return finish(timelookup.offsetForTimestamp(self.log, partition, timestampMs, goOver))

    def maxTimestampOffset(self, partition: Partition) -> TimestampedOffset | None:
        """The first of the newest records."""
        return finish(timelookup.maxTimestampOffset(self.log, partition, goOver))

    def settle(self) -> None:
        """Let turns pass until nothing is left to be done soon."""
        while any(call.getTime() - self.clock.seconds() <= self.clock.TURN_SECONDS for call in self.clock.calls):
            self.clock.turn()

    def sweep(self) -> None:
        """Let the log sweep once from beginning to end."""
        self.settle()
        self.clock.advance(30.0)
        self.settle()

    def partition(self, topicName: str = "events", index: int = 0) -> Partition:
        """A partition of a topic; the topic is made if it is not there."""
        if topicName not in self.log.topics:
            self.log.createTopic(topicName, index + 1, {})
        return self.log.topic(topicName).partitions[index]

    def append(self, partition: Partition, *timestampsMs: int, holder: str = "", **header: int) -> AppendResult:
        """Append a batch of one record for each timestamp, or of one record."""
        buffer, batch = makeBatch(*(timestampsMs or (0,)), **header)
        return self.log.append(partition, buffer, batch, holder=holder)

    def read(self, partition: Partition, offset: int, maxBytes: int = 1 << 30, firstWhole: bool = True) -> list[bytes]:
        """The batches that the log returns from an offset on."""
        return batchesIn(self.log.read(partition, offset, maxBytes, firstWhole))

    def readAll(self, partition: Partition) -> list[bytes]:
        """All batches of a partition, in whatever segments they are."""
        batches: list[bytes] = []
        offset = partition.logStartOffset
        while offset < partition.highWatermark:
            batches += self.read(partition, offset)
            offset = readHeader(batches[-1]).lastOffset + 1
        return batches

    def failCommits(self, error: OSError | None) -> None:
        """Have the disk refuse to write from now on, or write again."""
        self.disk.writeError = error


class ShortSegmentsTestCase(LogTestCase):
    """A test with a log of short segments."""

    limits = {"retentionSeconds": None, "segmentBytes": 2000}

    def fill(self, count: int = 10, topicName: str = "events") -> None:
        """Append batches of two records, each in a commit of its own."""
        partition = self.partition(topicName)
        for number in range(count):
            self.append(partition, number, number, valueBytes=200)
            self.settle()

    def close(self) -> None:
        """Close the log."""
        self.successResultOf(self.log.close())

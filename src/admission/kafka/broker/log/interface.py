# -*- test-case-name: tests.unit.kafka.broker.log.test_lmdb_log -*-
"""
The interface between the broker and its record log.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple
from uuid import UUID

from attrs import define, field, frozen
from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from admission.kafka.wire.batches import RecordBatch

LEADER_EPOCH: Final = 0
"""The leader epoch written into every batch: there is one broker, and it always leads."""

LONGEST_KEY_BYTES: Final = 511
"""The length limit of keys of an L{ITable}, which is LMDB's."""


class LogRefusal(Exception):
    """
    The log refused a call, and nothing has changed.

    @cvar errorCode: the error of the Kafka protocol for it.
    """

    errorCode: ClassVar[int] = -1


class LogInUse(LogRefusal):
    """
    Another broker has the directory open.

    @ivar path: the directory.
    @ivar pid: the other process, or L{None} if it left no number.
    """

    def __init__(self, path: str, pid: int | None) -> None:
        super().__init__(f"{path} is in use by {'another process' if pid is None else f'process {pid}'}")
        self.path = path
        self.pid = pid


class LogFailed(LogRefusal):
    """
    The storage under the log failed; the message says what to do.
    """

    errorCode = 56


class LogClosed(LogRefusal):
    """
    The log is closed or about to be.
    """

    errorCode = 56


class UnknownTopic(LogRefusal):
    """
    The topic or partition does not exist, or no longer exists.
    """

    errorCode = 3


class TopicExists(LogRefusal):
    """
    A topic of that name exists.
    """

    errorCode = 36


class InvalidTopicName(LogRefusal):
    """
    Not 1 to 249 letters, digits, dots, underscores and hyphens.
    """

    errorCode = 17


class InvalidPartitionCount(LogRefusal):
    """
    A topic cannot have that many partitions, or the log cannot have that many in all.
    """

    errorCode = 37


class InvalidTopicConfig(LogRefusal):
    """
    The value of a topic's setting makes no sense.
    """

    errorCode = 40


class OffsetOutOfRange(LogRefusal):
    """
    The offset is below the start of the log or above the high watermark.
    """

    errorCode = 1


class OutOfOrderSequence(LogRefusal):
    """
    The batch does not continue its producer's sequence.
    """

    errorCode = 45


class InvalidProducerEpoch(LogRefusal):
    """
    The producer has been replaced by one of a newer epoch.
    """

    errorCode = 47


@define(eq=False)
class Partition:
    """
    One partition of a topic as the log has it in memory.  Only the log changes
    it.

    Positions count the bytes ever appended to the partition, so the difference
    of two positions is a size.

    @ivar topicName: the topic it belongs to.
    @ivar index: its index among the topic's partitions, from 0.
    @ivar number: the log's own number for it; never reused after deletion.
    @ivar logStartOffset: the first offset that can be read.
    @ivar highWatermark: the offset after the last committed record, where
        reading ends.
    @ivar nextOffset: the offset that the next record gets; ahead of
        C{highWatermark} while appended batches wait for their commit.
    @ivar startPosition: the position of C{logStartOffset}.
    @ivar committedPosition: the position of C{highWatermark}.
    @ivar endPosition: the position of C{nextOffset}.
    @ivar committedMaxTimestampMs: the largest timestamp among the committed
        records, in milliseconds; -1 if there is none.  It may be that of a
        record that has been deleted since, unless all were.
    @ivar maxTimestampMs: the same for the appended records.
    @ivar deleted: whether the topic has been deleted.
    """

    topicName: str
    index: int
    number: int
    logStartOffset: int = 0
    highWatermark: int = 0
    nextOffset: int = 0
    startPosition: int = 0
    committedPosition: int = 0
    endPosition: int = 0
    committedMaxTimestampMs: int = -1
    maxTimestampMs: int = -1
    deleted: bool = False

    @property
    def sizeBytes(self) -> int:
        """
        The size of all committed batches.
        """
        return self.committedPosition - self.startPosition


@frozen
class Topic:
    """
    A topic.  It never changes: changing a topic puts another object into
    L{ILog.topics}, with the same partitions.

    @ivar name: its name.
    @ivar topicId: chosen at random when it was created.
    @ivar partitions: its partitions by index.
    @ivar configs: its own settings, as the strings that were given.
    """

    name: str
    topicId: UUID
    partitions: tuple[Partition, ...] = field(repr=lambda partitions: f"<{len(partitions)}>")
    configs: Mapping[str, str]


class AppendResult(NamedTuple):
    """
    The place of an appended batch.

    @ivar baseOffset: the offset of its first record.
    @ivar duplicate: whether the log already had it, and nothing was appended.
    """

    baseOffset: int
    duplicate: bool


class TimestampedOffset(NamedTuple):
    """
    A record found by its timestamp.

    @ivar offset: the record's offset.
    @ivar timestampMs: the record's timestamp.
    """

    offset: int
    timestampMs: int


CommitCallback = Callable[[Exception | None], object]
"""Called with L{None} after a commit, or with an exception."""

PartitionsListener = Callable[[Sequence[Partition]], object]
"""Called with the partitions that changed, each once."""


class ITable(Interface):
    """
    Small facts of other components, kept with the log: bytes by bytes, sorted by
    key.

    Writing takes part in the open transaction of this turn, as appending does:
    L{ILog.whenCommitted} tells whether what was written will survive or is lost.
    If it is lost, the table is as it was, and a caller that has its contents in
    memory has to revert them.  Only the writes of one call are committed as one:
    a turn that writes very much commits in between.

    All methods raise L{LogClosed} after L{ILog.close}, L{LogFailed} if the
    storage fails, and L{ValueError} for a key that does not have 1 to
    L{LONGEST_KEY_BYTES} bytes.
    """

    def get(key: bytes) -> bytes | None:
        """
        The value of a key, also one put in this turn; L{None} if it has none.
        """

    def items() -> Iterator[tuple[bytes, bytes]]:
        """
        All keys and values at this moment, sorted by key, whatever
        is written during the iteration.
        """

    def put(key: bytes, value: bytes) -> None:
        """
        Set the value of a key.

        @raise LogFailed: as L{ILog.append} does, with the same consequences.
        """

    def delete(key: bytes) -> None:
        """
        Remove a key, if it exists.

        @raise LogFailed: as L{ILog.append} does, with the same consequences.
        """


class ILog(Interface):
    """
    Topics, their partitions, the record batches in them, and the state of
    producers.

    Appending writes into an open transaction that is committed in the next
    turn of the reactor, for all appends of this turn at once.  Committed
    records survive the death of the process.  They survive the loss of power
    once the log has synchronised them, which it does in the background.

    All methods are for the reactor's thread.  After L{close} every method that
    needs the storage raises L{LogClosed}.
    """

    topics: Mapping[str, Topic] = Attribute("All topics by name, in no particular order.  A live view.")
    commitCount: int = Attribute("How many commits there were since the log was opened.")
    syncedCount: int = Attribute("How many of them would survive the loss of power.")
    producerStateBytes: int = Attribute(
        "How much memory it takes to remember the producers, about, in bytes.  Asking costs nothing."
    )

    problems: Sequence[str] = Attribute(
        "What is wrong with the log now, for people to read: that it cannot be written to, or not be synchronised with "
        "the disk.  Empty if nothing is."
    )

    def topic(name: str) -> Topic:
        """
        @raise UnknownTopic: if no topic has that name.
        """

    def topicById(topicId: UUID) -> Topic:
        """
        @raise UnknownTopic: if no topic has that id.
        """

    def createTopic(name: str, partitionCount: int, configs: Mapping[str, str]) -> Topic:
        """
        Make a topic.  It is committed when this returns, and so is everything
        appended before; the same holds for all methods that change topics.

        @param name: 1 to 249 letters, digits, dots, underscores or hyphens.
        @param partitionCount: how many partitions; positive.
        @param configs: the topic's own settings.  The log obeys
            C{retention.bytes} and C{retention.ms} and keeps any other.
        @raise InvalidTopicName: if the name is not of that form.
        @raise TopicExists: if the name is taken.
        @raise InvalidPartitionCount: if the number is not positive or larger
            than the log allows.
        @raise InvalidTopicConfig: if a setting that the log obeys is no number.
        @raise LogFailed: if the storage fails.
        """

    def checkTopic(name: str, partitionCount: int, configs: Mapping[str, str]) -> None:
        """
        Raise what L{createTopic} would, except for failures of the storage, and
        change nothing.
        """

    def deleteTopic(name: str) -> None:
        """
        Remove a topic.  It is gone at once; its records are removed
        gradually afterwards, across restarts if need be.

        @raise UnknownTopic: if no topic has that name.
        @raise LogFailed: if the storage fails.
        """

    def addPartitions(name: str, partitionCount: int) -> Topic:
        """
        Give a topic more partitions.

        @param partitionCount: the new total.
        @raise UnknownTopic: if no topic has that name.
        @raise InvalidPartitionCount: unless the total is more than the topic has, and
            no more than the log allows.
        @raise LogFailed: if the storage fails.
        """

    def checkPartitions(name: str, partitionCount: int) -> None:
        """
        Raise what L{addPartitions} would, except for failures of the storage, and
        change nothing.
        """

    def setTopicConfigs(name: str, configs: Mapping[str, str]) -> Topic:
        """
        Replace all of a topic's own settings.

        @raise UnknownTopic: if no topic has that name.
        @raise InvalidTopicConfig: if a setting that the log obeys is no number.
        @raise LogFailed: if the storage fails.
        """

    def append(
        partition: Partition, buffer: bytearray | memoryview, batch: RecordBatch, owner: str = ""
    ) -> AppendResult:
        """
        Append a batch.  It cannot be read before it is
        committed; see L{whenCommitted}.

        @param buffer: the whole batch and nothing else, writable: its base
            offset and leader epoch are filled in.  Not kept.
        @param batch: its header, checked by the caller.  If it names a
            producer, the batch must continue that producer's sequence.
        @param owner: who appends; remembered with the producer's state.
        @raise UnknownTopic: if the topic has been deleted.
        @raise OutOfOrderSequence: if batches are missing before this one.
        @raise InvalidProducerEpoch: if the producer has been replaced.
        @raise LogFailed: if the storage fails.  Then everything appended
            since the last commit is lost as well, the callbacks are
            told, and nothing can be appended for the rest of this turn.
        """

    def whenCommitted(callback: CommitCallback) -> None:
        """
        Call C{callback} once everything appended in this turn of the
        reactor is committed: the caller's own appends, and any batch that one of
        them duplicated.

        If there is nothing to wait for, the callback runs before this returns.
        Exceptions that it raises are logged.  It may append, and close the log.

        @param callback: called exactly once with L{None}, or with an exception
            if what was appended is lost.
        """

    def sync() -> None:
        """
        Synchronise what is committed with the disk soon, because a client waits
        for it; one synchronisation serves all waiting clients.
        """

    def subscribeSynced(listener: Callable[[], object]) -> None:
        """
        Call C{listener} when C{syncedCount} has grown.  Exceptions that it raises
        are logged.
        """

    def subscribe(listener: PartitionsListener) -> None:
        """
        Call C{listener} after each commit that advanced the high watermark of
        partitions, and after each deletion, with those partitions.
        Exceptions that it raises are logged.  It may do anything that a callback may.
        """

    def read(partition: Partition, offset: int, maxBytes: int, firstWhole: bool = True) -> list[bytes]:
        """
        Copy committed batches.

        @param offset: where to begin; the batch that contains it comes first,
            with the records before C{offset} still in it.
        @param maxBytes: no further batch is read that would exceed this.
        @param firstWhole: whether to read the first batch even if it alone exceeds
            C{maxBytes}.
        @return: whole batches; none if C{offset} is the high watermark.
        @raise OffsetOutOfRange: if the log does not have that offset.
        @raise UnknownTopic: if the topic has been deleted.
        @raise LogFailed: if the storage fails.
        """

    def bytesAvailable(partition: Partition, offset: int) -> int:
        """
        How many bytes L{read} without a limit would return from C{offset}.
        Raises the exceptions of L{read}; reads no records.
        """

    def offsetForTimestamp(partition: Partition, timestampMs: int) -> TimestampedOffset | None:
        """
        The first record that is not older than a time.

        The result is exact if the batch that contains it is uncompressed and of
        moderate size.  Otherwise it is that batch's first offset together with its
        largest timestamp: clients that seek there read a few records too
        many, never one too few.  The same holds where a record with a larger
        timestamp has been deleted from the start of the log and thousands of
        older batches follow: then not all of them are searched.

        @param timestampMs: in milliseconds since 1970; not negative.
        @return: L{None} if all records are older.
        @raise UnknownTopic: if the topic has been deleted.
        @raise LogFailed: if the storage fails.
        """

    def maxTimestampOffset(partition: Partition) -> TimestampedOffset | None:
        """
        The first record with the largest timestamp, found as exactly as
        L{offsetForTimestamp} does; L{None} if there is none.
        """

    def table(name: str) -> ITable:
        """
        The table of that name, made if it does not exist; always the same object.
        Ask for it once, when the log has been opened: making a table
        commits what is pending.

        @param name: letters from C{a} to C{z}; there is room for two dozen tables.
        @raise ValueError: if the name is not of that form.
        @raise LogFailed: if the storage fails.
        """

    def producers() -> Iterator[tuple[str, int]]:
        """
        The remembered producers: each pair of an owner (empty if not
        known) and a producer id once, least recently used first.  Scans every
        producer.
        """

    def allocateProducerId() -> int:
        """
        A producer id that was never assigned before and never will be again, even if
        this process is killed.

        @raise LogFailed: if the storage fails.
        """

    def close() -> Deferred[None]:
        """
        Commit, call all callbacks, synchronise with the disk, and release the
        directory.  May be called again, even before it is done.

        @return: fires when the directory is released.
        """

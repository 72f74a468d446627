# -*- test-case-name: tests.unit.kafka.broker.log.test_lmdb_log -*-
"""
What the broker asks of its record log.
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
"""How long a key of an L{ITable} may be: what LMDB takes."""


class LogRefusal(Exception):
    """
    The log did not do what it was asked to, and nothing has changed.

    @cvar errorCode: the error of the Kafka protocol that says so.
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
    There is no such topic or partition, or there is none any more.
    """

    errorCode = 3


class TopicExists(LogRefusal):
    """
    There is a topic of that name.
    """

    errorCode = 36


class InvalidTopicName(LogRefusal):
    """
    Not 1 to 249 letters, digits, dots, underscores and hyphens.
    """

    errorCode = 17


class InvalidPartitionCount(LogRefusal):
    """
    A topic cannot have that many partitions, or the log not that many in all.
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
    The batch does not continue where its producer stopped.
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
    One partition of a topic as the log has it in memory.  The log keeps it up
    to date; all others only read.

    Positions count the bytes ever appended to the partition, so a difference
    of two is a size.

    @ivar topicName: the topic it belongs to.
    @ivar index: which one of the topic's partitions, from 0.
    @ivar number: what the log knows it by; never used again after deletion.
    @ivar logStartOffset: the first offset that can be read.
    @ivar highWatermark: the offset after the last committed record: where
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
    @ivar deleted: whether the topic is gone.
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
        How many bytes of committed batches there are.
        """
        return self.committedPosition - self.startPosition


@frozen
class Topic:
    """
    A topic.  It never changes: what alters the topic puts another object into
    L{ILog.topics}, with the same partitions.

    @ivar name: its name.
    @ivar topicId: chosen at random when it was created.
    @ivar partitions: its partitions by index.
    @ivar configs: its own settings, as the strings they were given as.
    """

    name: str
    topicId: UUID
    partitions: tuple[Partition, ...] = field(repr=lambda partitions: f"<{len(partitions)}>")
    configs: Mapping[str, str]


class AppendResult(NamedTuple):
    """
    Where a batch is.

    @ivar baseOffset: the offset of its first record.
    @ivar duplicate: whether it was there already, and nothing was appended.
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
"""Called with L{None} after a commit, or with what went wrong."""

PartitionsListener = Callable[[Sequence[Partition]], object]
"""Called with the partitions that changed, each once."""


class ITable(Interface):
    """
    Small facts of others, kept with the log: bytes by bytes, in the order of
    their keys.

    Writing takes part in the open transaction of this turn, as appending does,
    and shares its fate: L{ILog.whenCommitted} tells when what was written will
    survive, or that it is lost.  Then the table is as it was; a caller that has
    its contents in memory has to revert that.  Only what one call writes is
    committed as one: a turn that writes very much commits in between.

    All methods raise L{LogClosed} after L{ILog.close}, L{LogFailed} if the
    storage fails, and L{ValueError} for a key that does not have 1 to
    L{LONGEST_KEY_BYTES} bytes.
    """

    def get(key: bytes) -> bytes | None:
        """
        The value of a key, also one put in this turn; L{None} if there is none.
        """

    def items() -> Iterator[tuple[bytes, bytes]]:
        """
        All keys and values as they are now, in the order of the keys, whatever
        is written during the iteration.
        """

    def put(key: bytes, value: bytes) -> None:
        """
        Set the value of a key.

        @raise LogFailed: as L{ILog.append} does, with the same consequences.
        """

    def delete(key: bytes) -> None:
        """
        Remove a key; it need not be there.

        @raise LogFailed: as L{ILog.append} does, with the same consequences.
        """


class ILog(Interface):
    """
    Topics, their partitions, the record batches in them, and what must be
    remembered about producers.

    Appending writes into an open transaction that is committed in the next
    turn of the reactor, for all appends of this turn at once.  Committed
    records survive the death of the process; they survive the loss of power
    once the log has had them synchronised, which it does in the background.

    All methods are for the reactor's thread.  After L{close} whatever needs
    the storage raises L{LogClosed}.
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
        @raise UnknownTopic: if there is none of that name.
        """

    def topicById(topicId: UUID) -> Topic:
        """
        @raise UnknownTopic: if there is none of that id.
        """

    def createTopic(name: str, partitionCount: int, configs: Mapping[str, str]) -> Topic:
        """
        Make a topic.  Committed when this returns, and so is everything
        appended before; the same holds for all methods that change topics.

        @param name: 1 to 249 letters, digits, dots, underscores or hyphens.
        @param partitionCount: how many partitions; positive.
        @param configs: the topic's own settings.  The log obeys
            C{retention.bytes} and C{retention.ms} and keeps any other.
        @raise InvalidTopicName: if the name will not do.
        @raise TopicExists: if the name is taken.
        @raise InvalidPartitionCount: if the number is not positive or larger
            than what the log still takes.
        @raise InvalidTopicConfig: if a setting that the log obeys is no number.
        @raise LogFailed: if the storage fails.
        """

    def checkTopic(name: str, partitionCount: int, configs: Mapping[str, str]) -> None:
        """
        Raise what L{createTopic} would, the storage's failures excepted, and
        change nothing.
        """

    def deleteTopic(name: str) -> None:
        """
        Remove a topic.  It is gone at once; its records are removed bit by
        bit afterwards, across restarts if need be.

        @raise UnknownTopic: if there is none of that name.
        @raise LogFailed: if the storage fails.
        """

    def addPartitions(name: str, partitionCount: int) -> Topic:
        """
        Give a topic more partitions.

        @param partitionCount: how many it shall have in all.
        @raise UnknownTopic: if there is none of that name.
        @raise InvalidPartitionCount: unless that is more than it has, and no
            more than the log still takes.
        @raise LogFailed: if the storage fails.
        """

    def checkPartitions(name: str, partitionCount: int) -> None:
        """
        Raise what L{addPartitions} would, the storage's failures excepted, and
        change nothing.
        """

    def setTopicConfigs(name: str, configs: Mapping[str, str]) -> Topic:
        """
        Replace all of a topic's own settings.

        @raise UnknownTopic: if there is none of that name.
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
        Have something called once everything appended in this turn of the
        reactor is committed: the caller's own appends, and any batch of which
        one of them was a duplicate.

        Called before this returns if nothing is to be waited for.  What it
        raises is logged.  It may append, and close the log.

        @param callback: called exactly once with L{None}, or with an exception
            if what was appended is lost.
        """

    def sync() -> None:
        """
        Have what is committed synchronised with the disk soon, because
        a client waits for it; one synchronisation serves all that do.
        """

    def subscribeSynced(listener: Callable[[], object]) -> None:
        """
        Have something called when C{syncedCount} has grown.  What it raises is
        logged.
        """

    def subscribe(listener: PartitionsListener) -> None:
        """
        Have something called after each commit that let the high watermark of
        partitions advance, and after each deletion, with those partitions.
        What it raises is logged.  It may do anything that a callback may.
        """

    def read(partition: Partition, offset: int, maxBytes: int, firstWhole: bool = True) -> list[bytes]:
        """
        Copy committed batches.

        @param offset: where to begin; the batch that contains it comes first,
            with the records before C{offset} still in it.
        @param maxBytes: no further batch is read that would exceed this.
        @param firstWhole: whether to read the first one even if it alone does.
        @return: whole batches; none if C{offset} is the high watermark.
        @raise OffsetOutOfRange: if the offset is not there.
        @raise UnknownTopic: if the topic has been deleted.
        @raise LogFailed: if the storage fails.
        """

    def bytesAvailable(partition: Partition, offset: int) -> int:
        """
        How many bytes L{read} without a limit would return from C{offset}.
        Raises what L{read} raises; touches no records.
        """

    def offsetForTimestamp(partition: Partition, timestampMs: int) -> TimestampedOffset | None:
        """
        The first record that is not older than a time.

        Exact if the batch that contains it is uncompressed and of moderate
        size.  Otherwise the answer is that batch's first offset together with its
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
        A table for small facts, always the same one for a name; made if it is
        not there.  To be asked for once, when the log has been opened: making one
        commits what is pending.

        @param name: letters from C{a} to C{z}; there is room for two dozen tables.
        @raise ValueError: if the name will not do.
        @raise LogFailed: if the storage fails.
        """

    def producers() -> Iterator[tuple[str, int]]:
        """
        The remembered producers: each pair of an owner (empty if it is not
        known) and a producer id once, the longest unused first.  Looks at every
        producer.
        """

    def allocateProducerId() -> int:
        """
        A producer id that was never handed out before and never will be,
        whether this process is killed or not.

        @raise LogFailed: if the storage fails.
        """

    def close() -> Deferred[None]:
        """
        Commit, call all callbacks, synchronise with the disk, and release the
        directory.  May be called again, also before it is done.

        @return: fires when the directory is free.
        """

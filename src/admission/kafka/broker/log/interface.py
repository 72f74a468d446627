# -*- test-case-name: tests.unit.kafka.broker.log.test_segmentlog -*-
"""
The interface between the broker and its record log.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from attrs import define, field, frozen
from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface

from admission.kafka.storage.holdings import Holdings
from admission.kafka.storage.itable import CommitCallback, ITable, LogRefusal
from admission.kafka.wire.batches import RecordBatch
from admission.timeslices import Steps

MAX_OFFSET: Final = 1 << 62
"""Beyond any offset that a partition comes to; what says otherwise is damaged.  All arithmetic stays within 64 bits."""


class NoProducerId(LogRefusal):
    """
    There will be producer ids again in a moment.
    """

    errorCode = 14


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
    Not 1 to 249 letters, digits, dots, underscores and hyphens, or the name of another topic but for dots that are
    underscores there.
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

    @ivar topicName: the topic it belongs to.
    @ivar index: its index among the topic's partitions, from 0.
    @ivar number: the log's own number for it; never reused after deletion.
    @ivar logStartOffset: the first offset that can be read.
    @ivar highWatermark: the offset after the last committed record, where
        reading ends.
    @ivar nextOffset: the offset that the next record gets; ahead of
        C{highWatermark} while appended batches wait for their commit.
    @ivar sizeBytes: the size of all committed batches that have not been removed.
    @ivar deleted: whether the topic has been deleted.
    """

    topicName: str
    index: int
    number: int
    logStartOffset: int = 0
    highWatermark: int = 0
    nextOffset: int = 0
    sizeBytes: int = 0
    deleted: bool = False


@frozen
class Topic:
    """
    A topic.  It never changes: changing a topic puts another object into
    L{ILog.topics}, with the same partitions.

    @ivar name: its name.
    @ivar topicId: chosen at random when it was created.
    @ivar partitions: its partitions by index.
    @ivar configs: its own settings, as the strings that were given.
    @ivar holder: for whom it was created because they asked about it; empty if it was created on purpose.
    """

    name: str
    topicId: UUID
    partitions: tuple[Partition, ...] = field(repr=lambda partitions: f"<{len(partitions)}>")
    configs: Mapping[str, str]
    holder: str = ""


class AppendResult(NamedTuple):
    """
    The place of an appended batch.

    @ivar baseOffset: the offset of its first record.
    @ivar duplicate: whether the log already had it, and nothing was appended.
    """

    baseOffset: int
    duplicate: bool


class EpochEnd(NamedTuple):
    """
    Where the records of a leader epoch end.

    @ivar leaderEpoch: the largest epoch with records that is not above the one asked for; the one asked for if there
        is none; -1 if it is above that of the log.
    @ivar endOffset: the offset after its last record, or -1.
    """

    leaderEpoch: int
    endOffset: int


PartitionsListener = Callable[[Sequence[Partition]], object]
"""Called with the partitions that changed, each once."""


class ILog(Interface):
    """
    Topics, their partitions, the record batches in them, and the state of
    producers.

    What is appended is committed in the next turn of the reactor, together with
    all other appends of this turn: it is written to files, and so survives the
    death of the process.  It survives the loss of power once it is flushed to the disk,
    which happens in the background, and at once if somebody waits for it.

    If a flush fails, nothing is confirmed and nothing taken any more; records can
    still be read.

    All methods are for the reactor's thread.  After L{close} every method that
    needs the storage raises L{LogClosed}.
    """

    topics: Mapping[str, Topic] = Attribute("All topics by name, in no particular order.  A live view.")
    topicHoldings: Holdings = Attribute(
        "How many topics there are, for those who got them by asking about them; those made on purpose are nobody's."
    )
    partitionHoldings: Holdings = Attribute("The same for their partitions.")
    path: str = Attribute("Its directory.")
    clusterId: str = Attribute("The id of the cluster, made at random when the log was made.")
    leaderEpoch: int = Attribute(
        "The leader epoch that is written into every batch.  It grows with each start after which records may be "
        "missing."
    )
    endedUncleanly: bool = Attribute("Whether the log had not been closed when it was opened: records may be missing.")
    producerStateBytes: int = Attribute(
        "How much memory it takes to remember the producers, about, in bytes.  Asking costs nothing."
    )

    problems: Sequence[str] = Attribute(
        "What is wrong with the log now, for people to read: that it cannot be written to, that a flush has "
        "failed, or that one does not end.  Empty if nothing is."
    )

    def topic(name: str) -> Topic:
        """
        @raise UnknownTopic: if no topic has that name.
        """

    def topicById(topicId: UUID) -> Topic:
        """
        @raise UnknownTopic: if no topic has that id.
        """

    def createTopic(
        name: str, partitionCount: int, configs: Mapping[str, str], validateOnly: bool = False, holder: str = ""
    ) -> Topic:
        """
        Make a topic.  It is committed when this returns, and so is everything
        appended before; the same holds for all methods that change topics.
        Before a client is told, wait for the disk with L{whenFlushed}.

        @param name: 1 to 249 letters, digits, dots, underscores or hyphens.
        @param partitionCount: how many partitions; positive.
        @param configs: the topic's own settings.  The log obeys
            C{retention.bytes}, C{retention.ms}, C{segment.bytes} and
            C{segment.ms}, and keeps any other.
        @param validateOnly: whether to change nothing; failures of the storage
            are not raised then.
        @param holder: the principal, or the address, that gets it by asking about
            it.
        @return: the topic; without partitions if it was only validated.
        @raise InvalidTopicName: if the name is not of that form, or that of another topic but for dots and underscores.
        @raise TopicExists: if the name is taken.
        @raise InvalidPartitionCount: if the number is not positive or larger
            than the log allows.
        @raise InvalidTopicConfig: if a setting that the log obeys is no number.
        @raise LogFailed: if the storage fails.
        """

    def deleteTopic(name: str) -> None:
        """
        Remove a topic.  It is gone at once; its records are removed
        gradually afterwards, across restarts if need be.

        @raise UnknownTopic: if no topic has that name.
        @raise LogFailed: if the storage fails.
        """

    def addPartitions(name: str, partitionCount: int, validateOnly: bool = False) -> Topic:
        """
        Give a topic more partitions.

        @param partitionCount: the new total.
        @param validateOnly: whether to change nothing; failures of the storage
            are not raised then.
        @return: the topic with them; as it is if it was only validated.
        @raise UnknownTopic: if no topic has that name.
        @raise InvalidPartitionCount: unless the total is more than the topic has, and
            no more than the log allows.
        @raise LogFailed: if the storage fails.
        """

    def setTopicConfigs(name: str, configs: Mapping[str, str]) -> Topic:
        """
        Replace all of a topic's own settings.

        @raise UnknownTopic: if no topic has that name.
        @raise InvalidTopicConfig: if a setting that the log obeys is no number.
        @raise LogFailed: if the storage fails.
        """

    def setRetention(retentionBytes: int | None, retentionSeconds: float | None) -> None:
        """
        Keep more or less than until now of all topics that have no settings of their own for it; records go with the
        next sweep.

        @param retentionBytes: how much of a partition is kept at least; L{None} for all.
        @param retentionSeconds: how old records may become; L{None} for any age.
        """

    def append(
        partition: Partition,
        buffer: bytearray | memoryview,
        batch: RecordBatch,
        owner: str = "",
        isUrgent: bool = False,
        holder: str = "",
    ) -> AppendResult:
        """
        Append a batch.  It cannot be read before it is
        committed; see L{whenCommitted}.

        @param buffer: the whole batch and nothing else, writable: its base
            offset and leader epoch are filled in.  Not kept.
        @param batch: its header, checked by the caller.  If it names a
            producer, the batch must continue that producer's sequence.
        @param owner: who appends; remembered with the producer's state.
        @param isUrgent: whether somebody will wait for the disk to have it.
        @param holder: for whom: a principal, or an address.  Nobody has all the
            files that may wait to be flushed.
        @raise UnknownTopic: if the topic has been deleted.
        @raise OutOfOrderSequence: if batches are missing before this one.
        @raise InvalidProducerEpoch: if the producer has been replaced.
        @raise LogFailed: if the storage fails.  If that was in writing, everything appended
            since the last commit is lost as well, the callbacks are
            told, and nothing can be appended for the rest of this turn.
        """

    def whenRoom(holder: str, partitionCount: int, timeoutSeconds: float) -> Deferred[None] | None:
        """
        Whether some partitions may be appended to for a holder, whether their files wait to be flushed already or not.

        @return: L{None} if they may.  Otherwise fires after a flush, when they may, if no others came first, or after
            C{timeoutSeconds}.
        """

    def deleteRecords(partition: Partition, offset: int) -> None:
        """
        Let a partition begin at C{offset}, if it begins before.  Files that are not needed any more are removed later.
        Before a client is told, wait for the disk with L{whenFlushed}.

        @raise OffsetOutOfRange: if it is negative or above the high watermark.
        @raise UnknownTopic: if the topic has been deleted.
        @raise LogFailed: if the storage fails.
        """

    def commit() -> None:
        """
        Write at once all that was appended in this turn.  Callbacks are told in the next turn.

        @raise LogFailed: if it is lost.
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

    def whenFlushed(callback: CommitCallback) -> None:
        """
        Call C{callback} once the disk has everything for which somebody waits and that was committed by then, or is to
        be committed in this turn: urgent appends, changes of topics, and of tables that are flushed.  A flush begins
        at once, or when the present one has ended; one serves all that wait.

        @param callback: as of L{whenCommitted}; with an exception also if the flush failed, which is final.
        """

    def subscribe(listener: PartitionsListener) -> None:
        """
        Call C{listener} after each commit that advanced the high watermark of
        partitions, and after each deletion, with those partitions.
        Exceptions that it raises are logged.  It may do anything that a callback may.
        """

    def read(partition: Partition, offset: int, maxBytes: int, firstWhole: bool = True) -> bytes:
        """
        Read committed batches in one piece.

        @param offset: where to begin; the batch that contains it comes first,
            with the records before C{offset} still in it.
        @param maxBytes: no further batch is read that would exceed this.
        @param firstWhole: whether to read the first batch even if it alone exceeds
            C{maxBytes}.
        @return: whole batches one after another; none if C{offset} is the high watermark.
            There may be more, even within C{maxBytes}.
        @raise OffsetOutOfRange: if the log does not have that offset.
        @raise UnknownTopic: if the topic has been deleted.
        @raise LogFailed: if the storage fails.
        """

    def bytesAvailable(partition: Partition, offset: int) -> int:
        """
        How many bytes L{read} without a limit would return from C{offset}.
        Raises the exceptions of L{read}; reads no records.
        """

    def batchForTimestamp(partition: Partition, timestampMs: int, offset: int) -> Steps[bytes | None]:
        """
        The first batch that says it has records which are not older than a time.

        @param timestampMs: in milliseconds since 1970.
        @param offset: batches that end before it are passed over.
        @return: L{None} if there is none.  As the steps are done:
        @raise UnknownTopic: if the topic has been deleted.
        @raise LogFailed: if the storage fails.
        """

    def largestTimestampMs(partition: Partition) -> int:
        """
        The largest timestamp in the segments of a partition, in milliseconds since 1970; -1 if there is none.  Raises
        the exceptions of L{batchForTimestamp}.
        """

    def endOfEpoch(partition: Partition, leaderEpoch: int) -> EpochEnd:
        """
        Where the records of a leader epoch end: a consumer whose position is behind that has read records that a
        loss of power has taken back.

        @raise UnknownTopic: if the topic has been deleted.
        @raise LogFailed: if the storage fails.
        """

    def table(name: str, isFlushed: bool = False) -> ITable:
        """
        The table of that name, empty if nothing was ever put into it; always the same object.

        @param name: letters from C{a} to C{z}; none of the names of tables that the log keeps for itself.
        @param isFlushed: whether its changes are flushed for L{whenFlushed}; otherwise a loss of power may take back
            those of the last flush interval.
        @raise ValueError: for other names.
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
        this process is killed or power is lost.

        @raise LogFailed: if the storage fails.
        @raise NoProducerId: if the disk has not confirmed the next ones yet.
        """

    def close() -> Deferred[None]:
        """
        Commit, flush, call all callbacks, and release the
        directory.  May be called again, even before it is done.

        @return: fires when the directory is released.
        """

# -*- test-case-name: tests.unit.kafka.broker.log.test_topics -*-
"""
The topics: in the storage and in memory.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from uuid import UUID, uuid4

import lmdb
from attrs import evolve

from .batchlookup import BATCH_KEY, SEEK_KEY, lastOffset
from .groupcommit import GroupCommit
from .interface import InvalidPartitionCount, InvalidTopicName, Partition, Topic, TopicExists, UnknownTopic
from .storage import NUMBER, Storage

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")

_EXTENT: Final = struct.Struct(">qqqq")
"""
Log start offset, start position, next offset, end position of a partition.

The last two are as of when the record was written, and count only if no
batches are left, which would be more recent.
"""


def encodeExtent(partition: Partition, startOffset: int, startPosition: int) -> bytes:
    """
    The stored form of a partition's extent, with the given start.
    """
    return _EXTENT.pack(startOffset, startPosition, partition.highWatermark, partition.committedPosition)


class Topics:
    """
    All topics, by name and by id.  The methods that change and check topics keep
    the contract of the methods of L{admission.kafka.broker.log.interface.ILog}
    that call them.

    @ivar byName: topics by name; callers must not change it.
    @ivar partitionCount: how many partitions they have together.
    """

    def __init__(
        self, storage: Storage, commits: GroupCommit, maxPartitions: int, check: Callable[[Mapping[str, str]], object]
    ) -> None:
        """
        @param storage: has the records.
        @param commits: writes the changes.
        @param maxPartitions: how many partitions there may be in all.
        @param check: called with a topic's settings; raises if they are invalid.
        """
        self.byName: dict[str, Topic] = {}
        self.partitionCount = 0
        self._byId: dict[UUID, Topic] = {}
        self._storage = storage
        self._commits = commits
        self._maxPartitions = maxPartitions
        self._check = check

    def load(self, transaction: lmdb.Transaction[memoryview]) -> None:
        """
        Restore the topics after a restart.
        """
        for key, value in transaction.cursor(self._storage.topics):
            name = str(key, "ascii")
            stored = json.loads(bytes(value))
            partitions = tuple(
                self._loadPartition(transaction, Partition(name, index, number))
                for index, number in enumerate(stored["partitions"])
            )
            self._put(Topic(name, UUID(stored["id"]), partitions, stored["configs"]))

    def get(self, name: str) -> Topic:
        """
        @raise UnknownTopic: if no topic has that name.
        """
        try:
            return self.byName[name]
        except KeyError:
            raise UnknownTopic(f"there is no topic {name!r}") from None

    def getById(self, topicId: UUID) -> Topic:
        """
        @raise UnknownTopic: if no topic has that id.
        """
        try:
            return self._byId[topicId]
        except KeyError:
            raise UnknownTopic(f"there is no topic with id {topicId}") from None

    def partitions(self) -> Iterator[tuple[Topic, Partition]]:
        """
        All current partitions, even if topics change during the iteration.
        """
        for topic in list(self.byName.values()):
            for partition in topic.partitions:
                yield topic, partition

    def create(self, name: str, partitionCount: int, configs: Mapping[str, str]) -> Topic:
        self.checkNew(name, partitionCount, configs)
        with self._commits.exclusive() as transaction:
            topic = Topic(name, uuid4(), self._number(transaction, name, 0, partitionCount), dict(configs))
            self._write(transaction, topic)
        self._put(topic)
        return topic

    def checkNew(self, name: str, partitionCount: int, configs: Mapping[str, str]) -> None:
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise InvalidTopicName(f"{name!r} cannot be the name of a topic")
        if name in self.byName:
            raise TopicExists(f"there is a topic {name!r} already")
        if partitionCount < 1:
            raise InvalidPartitionCount(f"a topic cannot have {partitionCount} partitions")
        self._checkRoom(partitionCount)
        self._check(configs)

    def checkMore(self, name: str, partitionCount: int) -> Topic:
        """
        See L{admission.kafka.broker.log.interface.ILog.checkPartitions}.

        @return: the topic as it is.
        """
        topic = self.get(name)
        present = len(topic.partitions)
        if partitionCount <= present:
            raise InvalidPartitionCount(f"topic {name!r} has {present} partitions, and {partitionCount} are not more")
        self._checkRoom(partitionCount - present)
        return topic

    def addPartitions(self, name: str, partitionCount: int) -> Topic:
        topic = self.checkMore(name, partitionCount)
        present = len(topic.partitions)
        with self._commits.exclusive() as transaction:
            added = self._number(transaction, name, present, partitionCount)
            topic = evolve(topic, partitions=topic.partitions + added)
            self._write(transaction, topic)
        self._put(topic)
        return topic

    def setConfigs(self, name: str, configs: Mapping[str, str]) -> Topic:
        self._check(configs)
        topic = evolve(self.get(name), configs=dict(configs))
        with self._commits.exclusive() as transaction:
            self._write(transaction, topic)
        self._put(topic)
        return topic

    def delete(self, name: str) -> Topic:
        """
        See L{admission.kafka.broker.log.interface.ILog.deleteTopic}.  The data of
        its partitions is left to the sweep, which reads the tombstones.

        @return: the deleted topic.
        """
        topic = self.get(name)
        with self._commits.exclusive() as transaction:
            transaction.delete(name.encode("ascii"), db=self._storage.topics)
            for partition in topic.partitions:
                transaction.put(NUMBER.pack(partition.number), b"", db=self._storage.tombstones)
        del self.byName[name]
        del self._byId[topic.topicId]
        self.partitionCount -= len(topic.partitions)
        for partition in topic.partitions:
            partition.deleted = True
        return topic

    def _checkRoom(self, added: int) -> None:
        if self.partitionCount + added > self._maxPartitions:
            raise InvalidPartitionCount(
                f"{added} more partitions would make more than {self._maxPartitions}, which is the limit of this broker"
            )

    def _number(self, transaction: lmdb.Transaction[bytes], name: str, first: int, end: int) -> tuple[Partition, ...]:
        number = self._storage.advance(transaction, b"next partition number", end - first)
        return tuple(Partition(name, index, number + index - first) for index in range(first, end))

    def _write(self, transaction: lmdb.Transaction[bytes], topic: Topic) -> None:
        numbers = [partition.number for partition in topic.partitions]
        value = json.dumps({"id": topic.topicId.hex, "partitions": numbers, "configs": dict(topic.configs)})
        transaction.put(topic.name.encode("ascii"), value.encode("utf-8"), db=self._storage.topics)

    def _put(self, topic: Topic) -> None:
        old = self.byName.get(topic.name)
        self.partitionCount += len(topic.partitions) - (len(old.partitions) if old else 0)
        self.byName[topic.name] = self._byId[topic.topicId] = topic

    def _loadPartition(self, transaction: lmdb.Transaction[memoryview], partition: Partition) -> Partition:
        stored = transaction.get(NUMBER.pack(partition.number), db=self._storage.partitions)
        if stored:
            (
                partition.logStartOffset,
                partition.startPosition,
                partition.nextOffset,
                partition.endPosition,
            ) = _EXTENT.unpack(stored)
        cursor = transaction.cursor(self._storage.batches)
        moved = cursor.prev() if cursor.set_range(SEEK_KEY.pack(partition.number + 1, 0)) else cursor.last()
        if moved:
            number, _, maxTimestampMs, endPosition = BATCH_KEY.unpack(cursor.key())
            if number == partition.number:
                partition.nextOffset = lastOffset(cursor.value()) + 1
                partition.endPosition = endPosition
                partition.maxTimestampMs = maxTimestampMs
        partition.highWatermark = partition.nextOffset
        partition.committedPosition = partition.endPosition
        partition.committedMaxTimestampMs = partition.maxTimestampMs
        return partition

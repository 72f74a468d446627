# -*- test-case-name: tests.unit.kafka.broker.log.test_topics -*-
"""
The topics: in the documents and in memory.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, cast
from uuid import UUID, uuid4

from attrs import evolve

from admission.kafka.storage.documents import Documents
from admission.kafka.storage.holdings import Holdings
from admission.kafka.storage.itable import LogFailed

from .interface import (
    MAX_OFFSET,
    InvalidPartitionCount,
    InvalidTopicConfig,
    InvalidTopicName,
    Topic,
    TopicExists,
    UnknownTopic,
)
from .partitionlog import PartitionLog
from .retentionlimits import RetentionLimits

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")

_TOPICS: Final = "topics"
_STARTS: Final = "starts"
_TOMBSTONES: Final = "tombstones"
_COUNTERS: Final = "counters"
OWN_TABLES: Final = (_TOPICS, _STARTS, _COUNTERS)
"""The documents that topics are kept in."""

_NEXT_NUMBER: Final = b"next partition number"

NUMBER: Final = struct.Struct(">I")
"""The key of a fact about a partition: its number."""

_MAX_NUMBER: Final = 2**32 - 1
"""The largest number that fits into a key."""

_MAX_STRANGE_NUMBER: Final = 2**31 - 1
"""Behind a directory of this number there are still numbers for more partitions than any log makes."""

_NUMBER_AT_END: Final = re.compile(r"(?:.*\.)?([0-9]{1,10})", re.DOTALL)

_COUNTER: Final = struct.Struct(">q")

_DAMAGED: Final = (
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    struct.error,
    RecursionError,
    InvalidTopicConfig,
)
"""How it shows that a document is not what was written."""

_LONGEST_NAME: Final = 200
"""How much of a topic's name stands in the name of a directory, which the number tells apart."""


def directoryName(topicName: str, index: int, number: int) -> str:
    """
    The name of a partition's directory.  The topic is named for people; the number
    says which partition it is, also if the topic is deleted and made again.
    """
    return f"{topicName[:_LONGEST_NAME]}-{index}.{number}"


def numberIn(name: str) -> int | None:
    """
    The number of the partition whose directory has that name; L{None} if no partition's has.
    """
    matched = _NUMBER_AT_END.fullmatch(name)
    number = int(matched[1]) if matched else None
    # A larger one may be the date of a copy.
    return None if number is None or number > _MAX_NUMBER else number


def _isName(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


def _metricName(name: str) -> str:
    return name.replace(".", "_")


def partitionsOf(topic: Topic) -> tuple[PartitionLog, ...]:
    """
    The partitions of a topic with their segments.
    """
    # Made by Topics, which makes no others.
    return cast(tuple[PartitionLog, ...], topic.partitions)


class Topics:
    """
    All topics, by name and by id.  The methods that change and check topics keep
    the contract of the methods of L{admission.kafka.broker.log.interface.ILog}
    that call them.

    @ivar byName: topics by name; callers must not change it.
    @ivar topicHoldings: how many topics there are, for those who got them by asking about them; those that were
        created on purpose are nobody's.
    @ivar partitionHoldings: the same for their partitions.
    """

    def __init__(
        self,
        documents: Documents,
        commit: Callable[[], None],
        directory: str,
        maxPartitions: int,
        limitsOf: Callable[[Mapping[str, str]], RetentionLimits],
    ) -> None:
        """
        @param documents: has what is known of them.
        @param commit: commits what was put into the documents, or raises L{LogFailed} and reverts it.
        @param directory: where the partitions have their directories.
        @param maxPartitions: how many partitions there may be in all.
        @param limitsOf: the limits of a topic with some settings; raises if they are invalid.
        """
        self.byName: dict[str, Topic] = {}
        self.topicHoldings = Holdings()
        self.partitionHoldings = Holdings()
        self._byId: dict[UUID, Topic] = {}
        # Logs of before this was refused may have several topics of one such name.
        self._byMetricName: dict[str, set[str]] = {}
        self._documents = documents
        self._commit = commit
        self._directory = directory
        self._maxPartitions = maxPartitions
        self._limitsOf = limitsOf

    def load(self) -> None:
        """
        Know the topics of before a restart, with the starts of their partitions and nothing else of them.

        @raise LogFailed: if a document is damaged.
        """
        starts = self._documents.tables.get(_STARTS, {})
        for key, value in self._documents.tables.get(_TOPICS, {}).items():
            try:
                name = str(key, "ascii")
                if not _isName(name):
                    raise ValueError("no topic can have that name")
                stored = json.loads(value)
                if not all(isinstance(text, str) for text in stored["configs"].values()):
                    raise ValueError("settings are text")
                partitions = tuple(
                    self._partition(name, index, number, stored["configs"])
                    for index, number in enumerate(stored["partitions"])
                )
                for partition in partitions:
                    start = starts.get(NUMBER.pack(partition.number))
                    partition.logStartOffset = _COUNTER.unpack(start)[0] if start else 0
                    if not 0 <= partition.logStartOffset <= MAX_OFFSET:
                        raise ValueError(f"no partition starts at {partition.logStartOffset}")
                self._put(Topic(name, UUID(stored["id"]), partitions, stored["configs"], stored.get("holder", "")))
            except _DAMAGED as error:
                raise LogFailed(f"what is stored of topic {key!r} is damaged ({error!r})") from error
        try:
            numbers = [self._counter(_NEXT_NUMBER), *self.deletedNumbers]
            if not all(0 <= number <= _MAX_NUMBER for number in numbers):
                raise ValueError("no partition can have them")
        except _DAMAGED as error:
            raise LogFailed(f"what is stored of the numbers of partitions is damaged ({error!r})") from error

    def skipNumbers(self, numbers: Iterable[int]) -> None:
        """
        Give new partitions other numbers than these: directories of that number may have records of others.
        """
        following = max((number for number in numbers if number <= _MAX_STRANGE_NUMBER), default=-1) + 1
        if following > self._counter(_NEXT_NUMBER):
            self._documents.put(_COUNTERS, _NEXT_NUMBER, _COUNTER.pack(following))

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

    def partitions(self) -> Iterator[PartitionLog]:
        """
        All current partitions, even if topics change during the iteration.
        """
        for topic in list(self.byName.values()):
            yield from partitionsOf(topic)

    def create(
        self, name: str, partitionCount: int, configs: Mapping[str, str], validateOnly: bool, holder: str = ""
    ) -> Topic:
        if not _isName(name):
            raise InvalidTopicName(f"{name!r} cannot be the name of a topic")
        if name in self.byName:
            raise TopicExists(f"there is a topic {name!r} already")
        for other in self._byMetricName.get(_metricName(name), ()):
            raise InvalidTopicName(
                f"topic {name!r} collides with the topic {other!r}: a dot and an underscore are the same in metrics"
            )
        if partitionCount < 1:
            raise InvalidPartitionCount(f"a topic cannot have {partitionCount} partitions")
        self._checkRoom(partitionCount)
        self._limitsOf(configs)
        if validateOnly:
            return Topic(name, uuid4(), (), dict(configs))
        self._commit()
        topic = Topic(name, uuid4(), self._number(name, 0, partitionCount, configs), dict(configs), holder)
        self._write(topic)
        self._put(topic)
        return topic

    def addPartitions(self, name: str, partitionCount: int, validateOnly: bool) -> Topic:
        topic = self.get(name)
        present = len(topic.partitions)
        if partitionCount <= present:
            raise InvalidPartitionCount(f"topic {name!r} has {present} partitions, and {partitionCount} are not more")
        self._checkRoom(partitionCount - present)
        if validateOnly:
            return topic
        self._commit()
        added = self._number(name, present, partitionCount, topic.configs)
        topic = evolve(topic, partitions=topic.partitions + added)
        self._write(topic)
        self._put(topic)
        return topic

    def setConfigs(self, name: str, configs: Mapping[str, str]) -> Topic:
        limits = self._limitsOf(configs)
        topic = evolve(self.get(name), configs=dict(configs))
        self._commit()
        self._write(topic)
        self._put(topic)
        for partition in partitionsOf(topic):
            partition.limits = limits
        return topic

    def setLimits(self, limitsOf: Callable[[Mapping[str, str]], RetentionLimits]) -> None:
        """
        Give all topics other limits.

        @param limitsOf: in place of what this was made with.
        """
        self._limitsOf = limitsOf
        for topic in self.byName.values():
            limits = limitsOf(topic.configs)
            for partition in partitionsOf(topic):
                partition.limits = limits

    def delete(self, name: str) -> Topic:
        """
        See L{admission.kafka.broker.log.interface.ILog.deleteTopic}.  The
        directories of its partitions are left to the caller, and to the next start; call L{buried} when they are gone.

        @return: the deleted topic.
        """
        topic = self.get(name)
        self._commit()
        self._documents.delete(_TOPICS, name.encode("ascii"))
        for partition in topic.partitions:
            number = NUMBER.pack(partition.number)
            self._documents.delete(_STARTS, number)
            self._documents.put(_TOMBSTONES, number, b"")
        self._documents.urge()
        self._documents.makesRoom()
        self._commit()
        del self.byName[name]
        del self._byId[topic.topicId]
        names = self._byMetricName[_metricName(name)]
        names.remove(name)
        if not names:
            del self._byMetricName[_metricName(name)]
        self._count(topic, -1)
        for partition in topic.partitions:
            partition.deleted = True
        return topic

    @property
    def deletedNumbers(self) -> set[int]:
        """
        The numbers of partitions that were deleted and whose directories may still be there.  Only these may be
        removed: where a topic is missing without having been deleted, its documents are damaged.
        """
        return {NUMBER.unpack(key)[0] for key in self._documents.tables.get(_TOMBSTONES, {})}

    def buried(self, numbers: Iterable[int]) -> None:
        """
        The directories of some deleted partitions are gone, for good.  The caller commits that.
        """
        for number in numbers:
            self._documents.delete(_TOMBSTONES, NUMBER.pack(number))

    def setStart(self, partition: PartitionLog) -> None:
        """
        Store where a partition starts, before what comes before is removed.
        """
        self._documents.put(_STARTS, NUMBER.pack(partition.number), _COUNTER.pack(partition.logStartOffset))
        self._documents.urge()
        self._documents.makesRoom()

    def _checkRoom(self, added: int) -> None:
        if self.partitionHoldings.total + added > self._maxPartitions:
            raise InvalidPartitionCount(
                f"{added} more partitions would make more than {self._maxPartitions}, which is the limit of this broker"
            )

    def _number(self, name: str, first: int, end: int, configs: Mapping[str, str]) -> tuple[PartitionLog, ...]:
        number = self._counter(_NEXT_NUMBER)
        self._documents.put(_COUNTERS, _NEXT_NUMBER, _COUNTER.pack(number + end - first))
        return tuple(self._partition(name, index, number + index - first, configs) for index in range(first, end))

    def _counter(self, key: bytes) -> int:
        stored = self._documents.tables.get(_COUNTERS, {}).get(key)
        value: int = _COUNTER.unpack(stored)[0] if stored else 0
        return value

    def _partition(self, name: str, index: int, number: int, configs: Mapping[str, str]) -> PartitionLog:
        directory = os.path.join(self._directory, directoryName(name, index, number))
        return PartitionLog(name, index, number, directory=directory, limits=self._limitsOf(configs))

    def _write(self, topic: Topic) -> None:
        numbers = [partition.number for partition in topic.partitions]
        fields = {"id": topic.topicId.hex, "partitions": numbers, "configs": dict(topic.configs)}
        if topic.holder:
            fields["holder"] = topic.holder
        value = json.dumps(fields)
        self._documents.put(_TOPICS, topic.name.encode("ascii"), value.encode("utf-8"))
        self._documents.urge()
        self._commit()

    def _put(self, topic: Topic) -> None:
        old = self.byName.get(topic.name)
        if old is not None:
            self._count(old, -1)
        self._count(topic, 1)
        self.byName[topic.name] = self._byId[topic.topicId] = topic
        self._byMetricName.setdefault(_metricName(topic.name), set()).add(topic.name)

    def _count(self, topic: Topic, change: int) -> None:
        self.topicHoldings.add(topic.holder, change)
        self.partitionHoldings.add(topic.holder, change * len(topic.partitions))

# -*- test-case-name: tests.unit.kafka.client.test_consumer -*-
"""
Reading the partitions that are assigned, however they came to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from .backoff import Backoff
from .cluster import Cluster
from .commits import Commits
from .consumersettings import ConsumerSettings
from .errors import BrokerRefused
from .fetcher import Fetcher
from .metadata import Metadata
from .positions import Assigned, Positions
from .topicpartition import ConsumerRecord, TopicPartition


class Reading:
    """
    Finds leaders and positions for the assigned partitions, and fetches.

    @ivar subscribed: topics that are of interest, though perhaps none of
        their partitions is assigned.
    @ivar fetcher: what holds the records.
    @ivar onReady: called when L{take} may give or raise something new.
    @ivar onMetadata: called when the description has been refreshed.
    """

    log = Logger()

    def __init__(
        self,
        settings: ConsumerSettings,
        cluster: Cluster,
        clock: IReactorTime,
        backoff: Backoff,
        commits: Commits | None,
        metadata: Metadata,
    ) -> None:
        """
        @param commits: the offsets of the group, if there is one.
        """
        self._cluster = cluster
        self._metadata = metadata
        metadata.onRefreshed = self._refreshed
        self.fetcher = Fetcher(cluster, settings, clock, backoff)
        self.fetcher.onReady = self._ready
        self.fetcher.onLeaderChanged = metadata.refreshSoon
        self.fetcher.onOutOfRange = self._outOfRange
        self._positions = Positions(cluster, commits, settings.autoOffsetReset, clock, backoff)
        self._positions.onFound = self._ready
        self._positions.onLeaderUnknown = metadata.refreshSoon
        self.subscribed: frozenset[str] = frozenset()
        self._topicErrors: dict[str, BrokerRefused] = {}
        self.onReady: Callable[[], None] = lambda: None
        self.onMetadata: Callable[[], None] = lambda: None

    # Which partitions

    @property
    def partitions(self) -> list[TopicPartition]:
        """
        The partitions that are read.
        """
        return sorted(self.fetcher.assigned)

    @property
    def topics(self) -> frozenset[str]:
        """
        The topics that they belong to, and those subscribed to.
        """
        return self.subscribed.union(place.topic for place in self.fetcher.assigned)

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """
        The positions, as far as they are known.
        """
        return {
            place: assigned.position
            for place, assigned in self.fetcher.assigned.items()
            if assigned.position is not None
        }

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Read C{partitions} and nothing else.
        """
        self.fetcher.assign([TopicPartition(*place) for place in partitions])
        if any(place.topic not in self._cluster.topics for place in self.fetcher.assigned):
            self._metadata.refreshSoon(isUrgent=True)
        self._ready()

    def assigned(self, partition: TopicPartition) -> Assigned:
        """
        @raise KeyError: if C{partition} is not assigned.
        """
        return self.fetcher.assigned[TopicPartition(*partition)]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Hand over nothing of C{partitions}.  What was fetched of them goes, or
        it would take the room of others.

        @raise KeyError: if one is not assigned.
        """
        for assigned in [self.assigned(place) for place in partitions]:
            assigned.isPaused = True
            self.fetcher.drop(assigned)
        self._ready()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Hand over records of C{partitions} again.

        @raise KeyError: if one is not assigned.
        """
        for assigned in [self.assigned(place) for place in partitions]:
            assigned.isPaused = False
        self._ready()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """
        Go on with C{offset}.

        @raise KeyError: if the partition is not assigned.
        @raise ValueError: if the offset is negative.
        """
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        assigned = self.assigned(partition)
        assigned.position = offset
        # Which may have been that there is no position.
        self._positions.error = None
        self.fetcher.drop(assigned)
        self._ready()

    # Records

    def take(self, count: int) -> list[ConsumerRecord]:
        """
        The next records, at most C{count}; perhaps none.

        @raise ClientError: for what trying again does not cure.
        """
        error, self._positions.error = self._positions.error, None
        if error is None:
            topic = min(self._topicErrors, default=None)
            error = None if topic is None else self._topicErrors.pop(topic)
        if error is not None:
            raise error
        return self.fetcher.take(count)

    def advance(self) -> None:
        """
        Do whatever brings more records.
        """
        self._positions.find(self.fetcher.assigned.values())
        self.fetcher.fetch()

    def _ready(self) -> None:
        self.onReady()

    def _outOfRange(self, assigned: Assigned) -> None:
        self.log.warn(
            "{partition} has no offset {offset}: not any more, or not yet; going where auto.offset.reset says",
            partition=assigned.place,
            offset=assigned.position,
        )
        assigned.position = None
        assigned.isUncommitted = True

    def _refreshed(self) -> None:
        self._topicErrors.clear()
        for topic, errorCode in self._cluster.errors.items():
            if errorCode.retriable:
                self._metadata.refreshSoon()
            elif topic in self.topics:
                self._topicErrors[topic] = BrokerRefused(errorCode.value, f"looking for topic {topic!r}")
        self.onMetadata()
        self.onReady()

    def close(self) -> Deferred[Any]:
        """
        Read nothing any more, and close all connections.

        @return: fires once they are gone.
        """
        self.fetcher.close()
        self._positions.close()
        self._metadata.close()
        return self._cluster.close()

# -*- test-case-name: tests.unit.kafka.client.test_consumer -*-
"""
What a consumer has to do with its group.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.interfaces import IReactorTime

from .autocommit import AutoCommit
from .backoff import Backoff
from .cluster import Cluster
from .commits import Commits
from .consumersettings import ConsumerSettings
from .coordinator import Coordinator
from .leading import Leadership
from .membership import Membership
from .metadata import Metadata
from .reading import Reading
from .rebalance import PartitionsCallback, Rebalances
from .topicpartition import TopicPartition

CLOSE_TIMEOUT_SECONDS = 30.0
"""For how long closing waits for the application, and tries to commit."""


class Group:
    """
    A consumer's side of its group: membership once it has subscribed, and
    offsets in any case.

    @ivar membership: who we are to the coordinator.
    @ivar commits: the group's offsets.
    @ivar rebalances: how partitions change hands.
    """

    rebalances: Rebalances

    def __init__(
        self,
        groupId: str,
        settings: ConsumerSettings,
        cluster: Cluster,
        metadata: Metadata,
        clock: IReactorTime,
        backoff: Backoff,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._leadership = Leadership(metadata.refresh, cluster.partitionCounts)
        coordinator = Coordinator(cluster, groupId)
        self.membership = Membership(coordinator, settings, clock, backoff, self._leadership)
        self.commits = Commits(coordinator, self.membership, settings, clock, backoff)
        self._isPolling = False
        self._autoCommit: AutoCommit | None = None
        if settings.autoCommit:
            self._autoCommit = AutoCommit(
                clock,
                settings.autoCommitIntervalSeconds,
                self._committable,
                self.commit,
                settings.requestTimeoutSeconds,
            )

    def begin(self, reading: Reading) -> None:
        """
        Have C{reading} read what the group assigns.  To be called once, before
        anything below.
        """
        self._reading = reading
        self.rebalances = Rebalances(
            self.membership,
            reading,
            self._autoCommit,
            self._clock,
            self._settings.requestTimeoutSeconds,
            lambda: self._isPolling,
        )

    @property
    def topics(self) -> frozenset[str]:
        """
        The topics of all members, if we lead them.
        """
        return self._leadership.groupTopics

    @property
    def isMember(self) -> bool:
        """
        Whether the group assigns our partitions.
        """
        return bool(self._reading.subscribed)

    def subscribe(self, topics: frozenset[str], onRevoked: PartitionsCallback, onAssigned: PartitionsCallback) -> None:
        """
        See L{Consumer.subscribe <admission.kafka.client.consumer.Consumer.subscribe>}.
        """
        self.rebalances.subscribe(topics, onRevoked, onAssigned)
        self.startAutoCommit()

    # The application

    def polled(self) -> None:
        """
        The application waits for us, and is done with what it was given.
        """
        self._isPolling = True
        if self.isMember:
            self.membership.beating.polled()
        if self._autoCommit is not None:
            self._autoCommit.polled()

    def handedOver(self) -> None:
        """
        The application has something to work on.
        """
        self._isPolling = False
        if self.isMember:
            self.membership.beating.handedOver()
        if self._autoCommit is not None:
            self._autoCommit.handedOver()

    def settle(self) -> bool:
        """
        See to it that our partitions are what the group says.

        @return: whether they are; else a rebalance is going on.
        @raise ClientError: if we cannot be a member any more.
        """
        if self.isMember and not self.rebalances.isRunning:
            if self.membership.failure is not None:
                raise self.membership.failure
            if self.membership.rejoinNeeded:
                self.rebalances.begin()
                # Which may have been quick.
                return False
        return not self.rebalances.isRunning

    # Offsets

    def commit(self, offsets: Mapping[TopicPartition, int], timeoutSeconds: float) -> Deferred[None]:
        """
        See L{Commits.commit}.
        """
        return self.commits.commit(offsets, self.isMember, timeoutSeconds)

    def committed(self, partitions: Collection[TopicPartition]) -> Deferred[dict[TopicPartition, int]]:
        """
        See L{Commits.committed}.
        """
        return self.commits.committed(partitions)

    def startAutoCommit(self) -> None:
        """
        Commit what is polled from now on, if the settings say so.
        """
        if self._autoCommit is not None:
            self._autoCommit.start()

    def _committable(self) -> Mapping[TopicPartition, int]:
        return {} if self.isMember and not self.membership.mayCommit else self._reading.offsets

    # The end

    @inlineCallbacks
    def close(self, commit: bool) -> Generator[Deferred[Any], Any, None]:
        """
        Give up the partitions and leave.

        @param commit: whether what was polled is committed, if it would be
            without being asked.
        """
        self.rebalances.cancel()
        if self._autoCommit is not None:
            yield self._autoCommit.close(commit)
        if self.isMember:
            yield self.rebalances.revoke(CLOSE_TIMEOUT_SECONDS)
            yield self.membership.leave("the consumer was closed")
        elif self._autoCommit is not None:
            yield self._autoCommit.commitNow(CLOSE_TIMEOUT_SECONDS)
        self.membership.close()

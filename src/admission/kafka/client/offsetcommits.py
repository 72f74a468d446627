# -*- test-case-name: tests.unit.kafka.client.test_offsetcommits -*-
"""
Committing offsets, on request and automatically, and reading committed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, inlineCallbacks, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from .cluster import SharedCall
from .consumersettings import ConsumerSettings
from .coordinatorclient import NO_GENERATION, NO_MEMBER, CoordinatorClient, Identity
from .errors import Backoff, BrokerRefused, ClientError, CommitFailed, checkError
from .groupmember import COMPLETING, PREPARING, STABLE, UNJOINED, GroupMember
from .subscriptionstate import SubscriptionState, TopicPartition, byTopic

_MEMBERSHIP_LOST = frozenset(
    (
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_instance_id,
        ErrorCode.rebalance_in_progress,
    )
)
_NO_OFFSET = -1


class OffsetCommits:
    """
    The offsets of one group.

    If C{enable.auto.commit} is set, positions are committed now and then, at a
    poll or while the application waits in one: then it has processed all
    records of earlier polls.
    """

    log = Logger()

    def __init__(
        self,
        subscription: SubscriptionState,
        coordinator: CoordinatorClient,
        member: GroupMember,
        settings: ConsumerSettings,
        clock: IReactorTime,
        backoff: Backoff,
    ) -> None:
        """
        @param subscription: whether the group assigns the partitions, and how
            far they were read.
        @param clock: runs and measures timers; monotonic.
        """
        self._subscription = subscription
        self._coordinator = coordinator
        self._member = member
        self._settings = settings
        self._clock = clock
        self._backoff = backoff
        self._timer: IDelayedCall | None = None
        self._committing = SharedCall(lambda: self.commitPositions(settings.requestTimeoutSeconds))
        self._isDue = False
        self._isPolling = False
        self._isStopped = not settings.autoCommit
        self._lastCommitted: Mapping[TopicPartition, int] = {}

    @inlineCallbacks
    def commit(
        self, offsets: Mapping[TopicPartition, int], timeoutSeconds: float | None = None
    ) -> Generator[Deferred[Any], Any, None]:
        """
        Commit, as a member of the group if it assigns our partitions; try again
        for a while if the coordinator does not answer.

        @param offsets: for each partition the offset behind the last record
            processed.
        @param timeoutSeconds: how long to try; C{default.api.timeout.ms} unless
            given.
        @return: fails with L{CommitFailed} if the partitions are not ours any
            more, or another L{ClientError}.
        """
        if offsets:
            yield self._retry(lambda: self._commitOnce(offsets, bool(self._subscription.topics)), timeoutSeconds)

    @inlineCallbacks
    def _commitOnce(self, offsets: Mapping[TopicPartition, int], isMember: bool) -> Generator[Deferred[Any], Any, None]:
        identity = Identity(NO_GENERATION, NO_MEMBER)
        if isMember:
            self._checkMembership()
            identity = self._member.identity
        answer = yield self._coordinator.ask(
            "OffsetCommit",
            {
                "generation_id_or_member_epoch": identity.generation,
                "member_id": identity.memberId,
                "group_instance_id": self._settings.groupInstanceId if isMember else None,
                "topics": [
                    {
                        "name": topic,
                        "partitions": [
                            {
                                "partition_index": index,
                                "committed_offset": offsets[TopicPartition(topic, index)],
                                "committed_metadata": "",
                            }
                            for index in indexes
                        ],
                    }
                    for topic, indexes in byTopic(offsets).items()
                ],
            },
        )
        errors = [
            BrokerRefused(each.error_code, f"committing {topic.name}-{each.partition_index}")
            for topic in answer.topics
            for each in topic.partitions
            if each.error_code
        ]
        if not errors:
            return
        # A permanent error of one partition is one of the commit.
        error = min(errors, key=lambda error: error.isRetriable)
        if isMember:
            self._member.noteError(error, identity)
        else:
            self._coordinator.noteError(error)
        if error.errorCode in _MEMBERSHIP_LOST:
            raise CommitFailed(f"{error}; the next owner of the partitions begins at the last commit") from error
        raise error

    def _checkMembership(self) -> None:
        state = self._member.state
        if state in (PREPARING, COMPLETING):
            raise CommitFailed("the group is being rebalanced; commit from the callback for revoked partitions")
        if state == UNJOINED or self._member.isLost:
            raise CommitFailed("we are no member of the group any more, and its partitions may be another's")

    @inlineCallbacks
    def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Generator[Deferred[Any], Any, dict[TopicPartition, int]]:
        """
        The offsets committed last; partitions without are left out.

        @return: fails with a L{ClientError}.
        """
        if not partitions:
            return {}
        offsets: dict[TopicPartition, int] = yield self._retry(lambda: self._committedOnce(partitions))
        return offsets

    @inlineCallbacks
    def _committedOnce(
        self, partitions: Collection[TopicPartition]
    ) -> Generator[Deferred[Any], Any, dict[TopicPartition, int]]:
        topics = [{"name": topic, "partition_indexes": indexes} for topic, indexes in byTopic(partitions).items()]
        group = self._coordinator.groupId
        answer = yield self._coordinator.ask(
            "OffsetFetch", {"topics": topics, "groups": [{"group_id": group, "topics": topics}]}
        )
        # From version 8 on several groups can be asked about at once.
        for found in getattr(answer, "groups", [answer]):
            try:
                checkError(getattr(found, "error_code", 0), f"the offsets of group {group!r}")
                offsets = {}
                for topic in found.topics:
                    for each in topic.partitions:
                        checkError(each.error_code, f"the offset of {topic.name}-{each.partition_index}")
                        if each.committed_offset != _NO_OFFSET:
                            offsets[TopicPartition(topic.name, each.partition_index)] = each.committed_offset
            except BrokerRefused as error:
                self._coordinator.noteError(error)
                raise
            return offsets
        return {}

    @inlineCallbacks
    def _retry(
        self, attempt: Callable[[], Deferred[Any]], timeoutSeconds: float | None = None
    ) -> Generator[Deferred[Any], Any, Any]:
        if timeoutSeconds is None:
            timeoutSeconds = self._settings.defaultApiTimeoutSeconds
        deadline = self._clock.seconds() + timeoutSeconds
        failures = 0
        while True:
            try:
                return (yield attempt())
            except ClientError as error:
                failures += 1
                delaySeconds = self._backoff.delaySeconds(failures)
                if not error.isRetriable or self._clock.seconds() + delaySeconds >= deadline:
                    raise
            yield deferLater(self._clock, delaySeconds)

    # Automatic commits

    def start(self) -> None:
        """
        Commit automatically from now on, if the settings say so.
        """
        if self._timer is None and not self._isStopped:
            self._timer = self._clock.callLater(self._settings.autoCommitIntervalSeconds, self._timeToCommit)

    def pollStarted(self) -> None:
        self._isPolling = True
        self._commitIfDue()

    def recordsReturned(self) -> None:
        self._isPolling = False

    def _timeToCommit(self) -> None:
        self._timer = None
        self.start()
        self._isDue = True
        self._commitIfDue()

    def _commitIfDue(self) -> None:
        if self._isDue and self._isPolling:
            self._isDue = False
            self._committing.wait().addErrback(lambda failure: self.log.failure("a commit went wrong", failure))

    @inlineCallbacks
    def commitPositions(self, timeoutSeconds: float) -> Generator[Deferred[Any], Any, None]:
        """
        Commit automatically, for example because the partitions are about to be
        revoked; do nothing unless the settings say so.

        @return: never fails because of brokers: records behind the last commit
            are only read again.
        """
        subscription = self._subscription
        isAllowed = not subscription.topics or (self._member.state == STABLE and not self._member.isLost)
        offsets = subscription.offsets if isAllowed else {}
        if self._isStopped or not offsets or offsets == self._lastCommitted:
            return
        try:
            yield self.commit(offsets, timeoutSeconds)
            self._lastCommitted = offsets
        except ClientError as error:
            self.log.warn("what was polled could not be committed: {reason}", reason=error)

    def revoked(self) -> None:
        """
        Forget what was committed of the partitions that are revoked.
        """
        self._lastCommitted = {}

    def stop(self, commit: bool) -> Deferred[None]:
        """
        Start no automatic commits any more.

        @param commit: whether L{commitPositions} is still to do anything.
        @return: fires when a commit that was running has ended.
        """
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._isDue = False
        self._isStopped = self._isStopped or not commit
        return self._committing.wait().addErrback(lambda _: None) if self._committing.isRunning else succeed(None)

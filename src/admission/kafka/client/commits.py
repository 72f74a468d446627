# -*- test-case-name: tests.unit.kafka.client.test_commits -*-
"""
Committing offsets, and learning which were committed.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from .backoff import Backoff
from .cluster import checkError
from .consumersettings import ConsumerSettings
from .coordinator import NO_GENERATION, NO_MEMBER, Coordinator, Identity
from .errors import BrokerRefused, ClientError, CommitFailed
from .membership import COMPLETING, PREPARING, UNJOINED, Membership
from .topicpartition import TopicPartition

_MEMBERSHIP_LOST = frozenset(
    (
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_instance_id,
        ErrorCode.rebalance_in_progress,
    )
)
_NO_OFFSET = -1


class Commits:
    """
    The offsets of one group.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        membership: Membership,
        settings: ConsumerSettings,
        clock: IReactorTime,
        backoff: Backoff,
    ) -> None:
        self._coordinator = coordinator
        self._membership = membership
        self._settings = settings
        self._clock = clock
        self._backoff = backoff

    @inlineCallbacks
    def commit(
        self, offsets: Mapping[TopicPartition, int], isMember: bool, timeoutSeconds: float | None = None
    ) -> Generator[Deferred[Any], Any, None]:
        """
        Commit, trying again for a while if the coordinator is not there.

        @param offsets: for each partition where to go on: the offset behind
            the last record that is done with.
        @param isMember: whether the group assigned the partitions, so that
            the commit must come from a member.
        @param timeoutSeconds: for how long to try.
        @return: fails with L{CommitFailed} if the partitions are not ours any
            more, or another L{ClientError}.
        """
        if not offsets:
            return
        yield self._repeatedly(lambda: self._commitOnce(offsets, isMember), timeoutSeconds)

    @inlineCallbacks
    def _commitOnce(self, offsets: Mapping[TopicPartition, int], isMember: bool) -> Generator[Deferred[Any], Any, None]:
        identity = Identity(NO_GENERATION, NO_MEMBER)
        if isMember:
            self._checkMembership()
            identity = self._membership.identity
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
                            {"partition_index": index, "committed_offset": offset, "committed_metadata": ""}
                            for index, offset in partitions.items()
                        ],
                    }
                    for topic, partitions in _byTopic(offsets).items()
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
        # What holds for one for good holds for the commit.
        error = min(errors, key=lambda error: error.isRetriable)
        if isMember:
            self._membership.noteError(error, identity)
        else:
            self._coordinator.noteError(error)
        if error.errorCode in _MEMBERSHIP_LOST:
            raise CommitFailed(f"{error}; whoever gets the partitions begins at the last commit") from error
        raise error

    def _checkMembership(self) -> None:
        state = self._membership.state
        if state in (PREPARING, COMPLETING):
            raise CommitFailed("the group is being rebalanced; commit from the callback for revoked partitions")
        if state == UNJOINED or self._membership.isLost:
            raise CommitFailed("we are no member of the group any more, and its partitions may be another's")

    @inlineCallbacks
    def committed(
        self, partitions: Collection[TopicPartition], timeoutSeconds: float | None = None
    ) -> Generator[Deferred[Any], Any, dict[TopicPartition, int]]:
        """
        The offsets that were committed last, for those of C{partitions} for
        which there is one.

        @return: fails with a L{ClientError}.
        """
        if not partitions:
            return {}
        offsets: dict[TopicPartition, int] = yield self._repeatedly(
            lambda: self._committedOnce(partitions), timeoutSeconds
        )
        return offsets

    @inlineCallbacks
    def _committedOnce(
        self, partitions: Collection[TopicPartition]
    ) -> Generator[Deferred[Any], Any, dict[TopicPartition, int]]:
        topics = [
            {"name": topic, "partition_indexes": list(indexes)}
            for topic, indexes in _byTopic(dict.fromkeys(partitions, 0)).items()
        ]
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
    def _repeatedly(self, attempt: Any, timeoutSeconds: float | None) -> Generator[Deferred[Any], Any, Any]:
        """
        Try until it works, trying is of no use, or the time is over.
        """
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


def _byTopic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    byTopic: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in offsets.items():
        byTopic.setdefault(topic, {})[partition] = offset
    return byTopic

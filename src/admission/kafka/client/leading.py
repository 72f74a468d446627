# -*- test-case-name: tests.unit.kafka.client.test_groupmember -*-
"""
Leading a group: deciding who gets which partition, and noticing when that
should be decided anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, inlineCallbacks

from .assignors import ASSIGNORS
from .errors import BrokerRefused
from .protocol import MalformedMembership, encodeAssignment, subscribersOf


class Leadership:
    """
    What only the leader of a group knows.

    @ivar groupTopics: what all members want; empty while another leads.
    """

    def __init__(
        self,
        refreshMetadata: Callable[[], Deferred[Any]],
        partitionCounts: Callable[[Collection[str]], Mapping[str, int]],
    ) -> None:
        """
        @param refreshMetadata: asks how many partitions topics have,
            C{groupTopics} included.
        @param partitionCounts: what is known about that.
        """
        self._refreshMetadata = refreshMetadata
        self._partitionCounts = partitionCounts
        self._assignedCounts: Mapping[str, int] | None = None
        self.groupTopics: frozenset[str] = frozenset()

    @property
    def isOutdated(self) -> bool:
        """
        Whether a topic has more partitions than were assigned, or is there
        only now.
        """
        return self._assignedCounts is not None and self._partitionCounts(self.groupTopics) != self._assignedCounts

    def resign(self) -> None:
        """
        Another may lead now.
        """
        self._assignedCounts = None
        self.groupTopics = frozenset()

    @inlineCallbacks
    def assign(self, joined: Any) -> Generator[Deferred[Any], Any, list[dict[str, Any]]]:
        """
        Decide who gets what.

        @param joined: the response to JoinGroup that makes us the leader.
        @return: the assignments for SyncGroup; fails with a L{ClientError
            <admission.kafka.client.errors.ClientError>}.
        """
        try:
            members = subscribersOf(joined.members)
            assignor = ASSIGNORS[joined.protocol_name]
        except (MalformedMembership, KeyError) as error:
            raise BrokerRefused(
                ErrorCode.inconsistent_group_protocol.value,
                f"leading the group by {joined.protocol_name!r}",
                f"it makes no sense: {error}",
            ) from error
        self.groupTopics = frozenset[str]().union(*(member.topics for member in members))
        yield self._refreshMetadata()
        self._assignedCounts = self._partitionCounts(self.groupTopics)
        return [
            {"member_id": memberId, "assignment": encodeAssignment(partitions)}
            for memberId, partitions in assignor(members, self._assignedCounts).items()
        ]

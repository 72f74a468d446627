# -*- test-case-name: tests.unit.kafka.broker.groups.test_groupstate -*-
"""
What groups may take.
"""

from __future__ import annotations

from attrs import define, frozen


@frozen(kw_only=True)
class GroupLimits:
    """
    What groups may be and have.

    @ivar minSessionSeconds: the shortest session timeout to accept.
    @ivar maxSessionSeconds: the longest one.
    @ivar initialDelaySeconds: how long the first members of an empty group
        wait for more.
    @ivar maxMembers: members of one group.
    @ivar maxPending: of all groups together, who was given a member id and has
        not come back with it.
    @ivar maxGroups: groups in all.
    @ivar maxGroupBytes: what one group may take of memory.
    @ivar maxBytes: what all of them may.
    @ivar retentionSeconds: how long the offsets of an empty group are kept
        after its last use.
    @ivar checkSeconds: how often to look for what is not kept any longer.
    """

    minSessionSeconds: float = 6.0
    maxSessionSeconds: float = 1800.0
    initialDelaySeconds: float = 3.0
    maxMembers: int = 10_000
    maxPending: int = 10_000
    maxGroups: int = 10_000
    maxGroupBytes: int = 16 << 20
    maxBytes: int = 64 << 20
    retentionSeconds: float = 7 * 86400.0
    checkSeconds: float = 600.0

    def allow(self, groupBytes: int, allBytes: int, growthBytes: int) -> bool:
        """
        Whether a group may grow.

        @param groupBytes: what it takes.
        @param allBytes: what all groups take together.
        @param growthBytes: what it would take more; whoever needs no more is
            always let.
        """
        return growthBytes <= 0 or (
            groupBytes + growthBytes <= self.maxGroupBytes and allBytes + growthBytes <= self.maxBytes
        )


@define(eq=False)
class Tally:
    """
    What all groups have together.
    """

    sizeBytes: int = 0
    pendingCount: int = 0

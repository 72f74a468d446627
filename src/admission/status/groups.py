# -*- test-case-name: tests.unit.status.test_status_snapshot -*-
"""
The groups of consumers, as the status page shows them.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import nlargest
from typing import Any

from ..kafka.broker.groups.groupstate import Group, State
from .numbers import shortened

MAX_GROUPS = 20

MAX_OFFSETS = 20_000
"""How many committed offsets are compared with the log at a time; the lag of groups beyond that is not known."""


def lagOf(group: Group) -> int | None:
    """
    How many records lie beyond what a group has committed, in the partitions
    that it has committed anything for.

    @return: L{None} if there are none.
    """
    lags = [
        max(partition.highWatermark - offset.offset, 0)
        for partition, offset in group.offsets.items()
        if not partition.deleted
    ]
    return sum(lags) if lags else None


def groupsFields(groups: Collection[Group]) -> dict[str, Any]:
    """
    How many groups there are in each state, and those that lag most.
    """
    states = {state.value: 0 for state in State if state is not State.DEAD}
    offsetCount = memberCount = totalLag = uncounted = 0
    lags: list[tuple[int, int, Group]] = []
    for group in groups:
        states[group.state.value] += 1
        memberCount += len(group.members)
        lag = None
        if offsetCount + len(group.offsets) <= MAX_OFFSETS:
            offsetCount += len(group.offsets)
            lag = lagOf(group)
        else:
            uncounted += 1
        totalLag += lag or 0
        lags.append((-1 if lag is None else lag, len(group.members), group))
    return {
        "count": len(groups),
        "states": states,
        "memberCount": memberCount,
        "lagRecords": totalLag,
        "uncountedGroups": uncounted,
        "groups": [
            {
                "groupId": shortened(group.groupId),
                "state": group.state.value,
                "generation": group.generation,
                "memberCount": members,
                "protocol": group.protocolName,
                "lagRecords": None if lag < 0 else lag,
            }
            for lag, members, group in nlargest(MAX_GROUPS, lags, key=lambda each: each[:2])
        ],
    }

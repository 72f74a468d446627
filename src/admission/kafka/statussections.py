# -*- test-case-name: tests.unit.kafka.test_statussections -*-
"""
The connections of a broker and the clients behind them, as the status page
shows them: the worst of each kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from heapq import nlargest
from operator import attrgetter
from typing import Any

from attrs import asdict

from ..connection.pauses import Pause
from ..control import AdmissionControl, Explanation
from ..interfaces import Request
from ..status.sections import finite, shortened
from .session import KafkaConnection

MAX_CLIENTS = 20
MAX_CONNECTIONS = 20

RECENTLY_SECONDS = 10.0
"""For how long who was throttled is still shown; delays are often shorter than what one can read."""

_REASONS = (Pause.MEMORY, Pause.THROTTLED, Pause.BUSY, Pause.SERVER_FULL, Pause.UNSENT)

_Client = tuple[str, str, str]
"""A user, a client id and an address."""


def mutedFields(connections: Iterable[KafkaConnection]) -> dict[str, int]:
    """
    How many connections are not read, by reason; one may have several.
    """
    counts = {reason.value: 0 for reason in _REASONS}
    for connection in connections:
        for reason in connection.pauses.reasons:
            counts[reason.value] = counts.get(reason.value, 0) + 1
    return counts


def largestFields(connections: Collection[KafkaConnection], nowSeconds: float) -> list[dict[str, Any]]:
    """
    The connections that hold most memory, each with what it has of it.
    """
    return [
        {
            "peer": connection.peer,
            "user": shortened(connection.principal),
            "clientId": shortened(connection.clientId),
            "heldBytes": heldBytes,
            "requestBytes": connection.requestBytes,
            "bufferedBytes": connection.framer.bufferedBytes,
            "unsentBytes": connection.link.unsentBytes(),
            "mutedFor": [reason.value for reason in connection.pauses.reasons],
            "mutedSeconds": nowSeconds - min(connection.pauses.reasons.values(), default=nowSeconds),
        }
        for heldBytes, connection in nlargest(
            MAX_CONNECTIONS, ((each.heldBytes, each) for each in connections), key=lambda pair: pair[0]
        )
    ]


def throttledFields(
    connections: Iterable[KafkaConnection], nowSeconds: float, control: AdmissionControl
) -> dict[str, Any]:
    """
    The clients over a quota, now or shortly before, those first whose delay
    ends last; each with the limit that it is furthest beyond.
    """
    recent = [each for each in connections if each.throttledUntilSeconds > nowSeconds - RECENTLY_SECONDS]
    recent.sort(key=attrgetter("throttledUntilSeconds"), reverse=True)
    untilSeconds: dict[_Client, float] = {}
    count: Counter[_Client] = Counter()
    for connection in recent:
        client = (connection.principal, connection.clientId, connection.host)
        untilSeconds.setdefault(client, connection.throttledUntilSeconds)
        count[client] += 1
    shown = list(untilSeconds.items())[:MAX_CLIENTS]
    return {
        "count": len(untilSeconds),
        "clients": [
            {
                "user": shortened(client[0]),
                "clientId": shortened(client[1]),
                "ip": client[2],
                "connections": count[client],
                "delaySeconds": max(until - nowSeconds, 0.0),
                **_worstLimit(control.explain(Request("", client[0], client[1], client[2], 0), nowSeconds)),
            }
            for client, until in shown
        ],
    }


def _worstLimit(explanations: Iterable[Explanation]) -> dict[str, Any]:
    worst = max(
        (each for each in explanations if not each.isShadow),
        key=lambda each: (each.status.delaySeconds, each.status.utilization),
        default=None,
    )
    if worst is None:
        return {"policy": None, "limitName": None, "limit": None, "used": None, "usedFraction": None, "entity": None}
    status = worst.status
    return {
        "policy": worst.policyName,
        "limitName": status.limitName,
        "limit": finite(status.limit),
        "used": finite(status.used),
        "usedFraction": finite(status.utilization),
        "entity": {name: text and shortened(text) for name, text in asdict(status.entity).items()},
    }

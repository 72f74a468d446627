# -*- test-case-name: tests.unit.status.test_clients -*-
"""
The clients of a server, and which of them are over a limit: throttled, or refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from math import inf
from operator import attrgetter
from typing import Any

from attrs import asdict, define

from ..connection.debts import REFUSING_SECONDS
from ..control import AdmissionControl, Explanation
from ..interfaces import Request
from .sections import finite, shortened
from .servers import Server

MAX_CLIENTS = 20

RECENTLY_SECONDS = REFUSING_SECONDS
"""How long a client is still shown after it was throttled or refused; most delays are too short to be read."""


@define(eq=False)
class Client:
    """
    A client that has connections, or was told to wait or refused lately.

    @ivar ip: where it was heard of last.
    @ivar connections: how many it has; none if it was told to wait or refused and has left.
    @ivar untilSeconds: the end of its last delay.
    @ivar policy: the name of the policy that asked for that delay, or that refused the last request; L{None} if it is
        not known.
    @ivar refused: how many of its requests were refused one soon after the other.
    @ivar refusedSeconds: when the last of them was.
    """

    user: str
    clientId: str
    ip: str
    connections: int = 0
    untilSeconds: float = -inf
    policy: str | None = None
    refused: int = 0
    refusedSeconds: float = -inf

    @property
    def lastSeconds(self) -> float:
        """
        When it was over a limit last, or will be.
        """
        return max(self.untilSeconds, self.refusedSeconds)

    def fields(self, control: AdmissionControl, now: float) -> dict[str, Any]:
        """
        What the page shows of it, with the limit that it exceeds most: of the policy that delayed or refused it, if one
        did.
        """
        request = Request("", self.user, self.clientId, self.ip, 0)
        return {
            "user": shortened(self.user),
            "clientId": shortened(self.clientId),
            "ip": self.ip,
            "connections": self.connections,
            "delaySeconds": max(self.untilSeconds - now, 0.0),
            "refused": self.refused if self.refusedSeconds > now - RECENTLY_SECONDS else 0,
            **_worstLimit(control.explain(request, now), self.policy),
        }


def clientsOf(
    server: Server, anonymous: str, user: str | None = None, clientId: str | None = None, ip: str | None = None
) -> list[Client]:
    """
    The clients of a server that have connections, or were told to wait or refused lately; those that match what is said
    of them.

    @param anonymous: the user of a client that has not said who it is.
    """
    found: dict[tuple[str, str], Client] = {}

    def isMeant(name: tuple[str, str]) -> bool:
        return user in (None, name[0]) and clientId in (None, name[1])

    def foundAt(name: tuple[str, str], host: str) -> Client:
        client = found.get(name)
        if client is None:
            client = found[name] = Client(*name, host)
        return client

    for connection in server.connections:
        name = connection.principal or anonymous, connection.clientId
        if isMeant(name) and ip in (None, connection.host):
            client = foundAt(name, connection.host)
            client.connections += 1
            client.untilSeconds = max(client.untilSeconds, connection.throttledUntilSeconds)
    for name, debt in server.debts.items():
        if isMeant(name) and (name in found or ip in (None, debt.ip)):
            client = foundAt(name, debt.ip)
            client.untilSeconds = max(client.untilSeconds, debt.untilSeconds)
            client.policy = debt.policy
    for name, refusals in server.debts.refusals.items():
        if isMeant(name) and (name in found or ip in (None, refusals.ip)):
            client = foundAt(name, refusals.ip)
            client.refused, client.refusedSeconds = refusals.count, refusals.lastSeconds
            if client.untilSeconds < refusals.lastSeconds:
                client.policy = refusals.policy
    return list(found.values())


def slowest(clients: Iterable[Client]) -> list[Client]:
    """
    Those whose delays end last, and after them those that were refused last.
    """
    return nlargest(MAX_CLIENTS, clients, key=attrgetter("lastSeconds"))


def throttledFields(server: Server, anonymous: str, now: float) -> dict[str, Any]:
    """
    The clients that are throttled, or were throttled or refused recently, also those that have hung up since.
    """
    recent = [each for each in clientsOf(server, anonymous) if each.lastSeconds > now - RECENTLY_SECONDS]
    return {
        "count": len(recent),
        "throttledCount": sum(each.untilSeconds > now - RECENTLY_SECONDS for each in recent),
        "clients": [each.fields(server.control, now) for each in slowest(recent)],
    }


def _worstLimit(explanations: Iterable[Explanation], policy: str | None) -> dict[str, Any]:
    own = [each for each in explanations if not each.isShadow and policy in (None, each.policyName)]
    worst = max(own, key=lambda each: (each.status.delaySeconds, each.status.utilization), default=None)
    # What is counted may be forgotten before the delay for it ends: then one of several limits cannot be told.
    if worst is None or (policy is not None and len(own) > 1 and not worst.status.used):
        return {"policy": policy, "limitName": None, "limit": None, "used": None, "usedFraction": None, "entity": None}
    status = worst.status
    return {
        "policy": worst.policyName,
        "limitName": status.limitName,
        "limit": finite(status.limit),
        "used": finite(status.used),
        "usedFraction": finite(status.utilization),
        "entity": {name: text and shortened(text) for name, text in asdict(status.entity).items()},
    }

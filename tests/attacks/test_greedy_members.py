"""
Imitates members of groups that take the place of others: with requests that
count for much more than their size, and with member ids that nobody comes back
with.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from admission.kafka.wire.versions import BY_KEY, JOIN_GROUP
from tests.kit.attack import MIB, AttackTestCase
from tests.kit.costlyrequests import joining, protocolNames
from tests.kit.goodclient import HOST
from tests.kit.rawclient import RawClient

PROTOCOLS = (BY_KEY[JOIN_GROUP].maxElements, 500, 50, 5, 1)
"""How many to support: first as many as a request may name, then fewer, to take the rest."""

JOINS_EACH = 200

SESSION_MS = 1_800_000
"""The longest session that is allowed."""

HONEST_REBALANCE_MS = 2000
"""The group waits so long for those that have ids and do not come."""

GROUP_MAX_SIZE = 100


class GreedyMembersTests(AttackTestCase):
    """Two addresses that form groups."""

    poolBytes = 64 * MIB
    settings = ("group.initial.rebalance.delay.ms=0", f"group.max.size={GROUP_MAX_SIZE}")

    def joinHonestly(self, group: str) -> ErrorCode:
        """
        Join a group as consumers do, from another address.

        @return: the error of the last request.
        """
        with RawClient(self.broker.port, host=HOST) as client:
            named = client.ask(_joining(group))
            if named.error_code != ErrorCode.member_id_required:
                return ErrorCode(named.error_code)
            return ErrorCode(client.ask(_joining(group, named.member_id)).error_code)

    def test_memory(self) -> None:
        """
        A client that names many protocols leaves memory to the members of others, while it is there and when it has
        hung up.
        """
        self.assertEqual(self.joinHonestly("before"), ErrorCode.none)
        clients: list[RawClient] = []
        with self.attack("JoinGroup of many protocols"):
            for count in PROTOCOLS:
                for _ in range(JOINS_EACH):
                    clients.append(self.connect())
                    join = joining(f"greedy-{len(clients)}", 3, protocolNames(count), SESSION_MS, SESSION_MS)
                    if clients[-1].ask(join).error_code:
                        break
            during = self.joinHonestly("during")
        for client in clients:
            client.close()
        after = self.joinHonestly("after")
        print(f"{len(clients)} greedy members; the honest one got {during.name}, and {after.name} when they had gone")
        self.require(during == ErrorCode.none, f"while they are there the honest member gets {during.name}")
        self.require(after == ErrorCode.none, f"when they have gone the honest member gets {after.name}")
        self.assertAffordable()

    def test_places(self) -> None:
        """Ids that were handed out to clients that never joined leave the group's places to those that do."""
        with self.connect() as client:
            for _ in range(2 * GROUP_MAX_SIZE):
                answer = client.ask(_joining("shared"))
                self.assertIn(answer.error_code, (ErrorCode.member_id_required, ErrorCode.group_max_size_reached))
        self.assertEqual(self.joinHonestly("shared"), ErrorCode.none)


def _joining(group: str, memberId: str = "") -> Any:
    return joining(group, 5, ["range"], SESSION_MS, HONEST_REBALANCE_MS, memberId)

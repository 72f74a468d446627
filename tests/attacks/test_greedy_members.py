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
from tests.kit.brokerfixture import requestOf
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
    """
    Two addresses that form groups.
    """

    poolBytes = 64 * MIB
    settings = ("group.initial.rebalance.delay.ms=0", f"group.max.size={GROUP_MAX_SIZE}")

    def joinHonestly(self, group: str) -> ErrorCode:
        """
        Join a group as consumers do, from another address.

        @return: the error of the last request.
        """
        with RawClient(self.broker.port, host=HOST) as client:
            named = client.ask(_join(group, 5, ["range"]))
            if named.error_code != ErrorCode.member_id_required:
                return ErrorCode(named.error_code)
            return ErrorCode(client.ask(_join(group, 5, ["range"], named.member_id)).error_code)

    def test_memory(self) -> None:
        """
        Who names many protocols leaves memory to the members of others, while it is there and when it has hung up.
        """
        self.assertEqual(self.joinHonestly("before"), ErrorCode.none)
        clients: list[RawClient] = []
        with self.attack("JoinGroup of many protocols"):
            for count in PROTOCOLS:
                for _ in range(JOINS_EACH):
                    clients.append(self.connect())
                    join = _join(f"greedy-{len(clients)}", 3, _protocols(count), rebalanceMs=SESSION_MS)
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
        """
        Ids that were handed out to clients that never joined leave the group's places to those that do.
        """
        with self.connect() as client:
            for _ in range(2 * GROUP_MAX_SIZE):
                answer = client.ask(_join("shared", 5, ["range"]))
                self.assertIn(answer.error_code, (ErrorCode.member_id_required, ErrorCode.group_max_size_reached))
        self.assertEqual(self.joinHonestly("shared"), ErrorCode.none)


def _join(
    group: str, version: int, protocols: list[str], memberId: str = "", rebalanceMs: int = HONEST_REBALANCE_MS
) -> Any:
    return requestOf(
        "JoinGroup",
        version,
        group_id=group,
        session_timeout=SESSION_MS,
        rebalance_timeout=rebalanceMs,
        member_id=memberId,
        protocol_type="consumer",
        protocols=[{"name": name, "metadata": b""} for name in protocols],
    )


def _protocols(count: int) -> list[str]:
    return [f"{number:03x}"[-3:] for number in range(count)]

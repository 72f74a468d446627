"""
Imitates an administrator who changes the limit on new producer ids again and again, of a broker that remembers many
producers: the owners of ids from before there was a limit are told to the policy again, and 80 bytes cost 60 ms.
"""

from __future__ import annotations

from typing import Any

from benchmarks.rogueload import ProduceTemplate
from tests.kit.attack import AttackTestCase, sized
from tests.kit.brokerfixture import requestOf

PRODUCERS = 100_000
PARTITIONS = 1000
CONNECTIONS = sized(30, 60)
REQUESTS_EACH = sized(5, 20)


class AlterQuotasTests(AttackTestCase):
    """AlterClientQuotas, pipelined."""

    settings = (f"max.producer.ids={PRODUCERS}",)

    def test_changes(self) -> None:
        """What changes one limit is done in turns, however much the broker remembers."""
        first = self.connect()
        topic = {"name": "many", "num_partitions": PARTITIONS, "replication_factor": 1}
        (created,) = first.ask(requestOf("CreateTopics", 7, topics=[topic], timeout=30_000)).topics
        self.assertEqual(created.error_code, 0)
        template = ProduceTemplate("many", PARTITIONS, acks=1)
        for begin in range(0, PRODUCERS, PARTITIONS):
            first.sendBytes(template.withIds(begin + 1))
            first.receiveFrame()
        (entry,) = first.ask(_altering("c", 5)).entries
        self.assertFalse(entry.error_code)
        clients = [self.connect() for _ in range(CONNECTIONS)]
        with self.attack(f"{CONNECTIONS} x {REQUESTS_EACH} AlterClientQuotas with {PRODUCERS} producers remembered"):
            for client in clients:
                for number in range(REQUESTS_EACH):
                    client.send(_altering("c", 6 + number))
            for client in clients:
                for _ in range(REQUESTS_EACH):
                    client.receiveFrame()
        for client in [first, *clients]:
            client.close()
        self.assertAffordable()


def _altering(user: str, idsPerHour: float) -> Any:
    entity = [{"entity_type": "user", "entity_name": user}]
    operation = {"key": "producer_ids_rate", "value": idsPerHour, "remove": False}
    return requestOf("AlterClientQuotas", 1, entries=[{"entity": entity, "ops": [operation]}], validate_only=False)

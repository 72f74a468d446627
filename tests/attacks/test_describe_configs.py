"""
Imitates a tool that asks for the settings of all topics at once: each answer is
a hundred times as large as the question.
"""

from __future__ import annotations

from typing import Any

from tests.kit.attack import AttackTestCase, sized
from tests.kit.brokerfixture import requestOf

TOPICS = sized(2000, 10_000)
CREATED_AT_A_TIME = 1000
_TOPIC = 2


class DescribeConfigsTests(AttackTestCase):
    """DescribeConfigs of many topics."""

    settings = (f"max.topics={TOPICS + 1}", f"max.partitions={TOPICS + 1}")

    def test_manyTopics(self) -> None:
        """The answer is made in turns, and charged, or the request is refused."""
        names = [f"t{number:05d}" for number in range(TOPICS)]
        clients = [self.connect() for _ in range(sized(4, 4))]
        for begin in range(0, TOPICS, CREATED_AT_A_TIME):
            topics = [
                {"name": name, "num_partitions": 1, "replication_factor": 1}
                for name in names[begin : begin + CREATED_AT_A_TIME]
            ]
            answer = clients[0].ask(requestOf("CreateTopics", 7, topics=topics, timeout=30_000))
            self.assertEqual({topic.error_code for topic in answer.topics}, {0})
        clients[0].ask(_describing(names[:1]))
        with self.attack(f"{len(clients)} DescribeConfigs of {TOPICS} topics"):
            self.exchange(clients, _describing(names))
        for client in clients:
            client.close()
        self.assertAffordable()


def _describing(names: list[str]) -> Any:
    resources = [{"resource_type": _TOPIC, "resource_name": name, "configuration_keys": None} for name in names]
    return requestOf("DescribeConfigs", 4, resources=resources, include_synonyms=True, include_documentation=True)

"""
Tests for L{admission.kafka.serving.quotaapi} with kafka-python, which knows the
requests but has no method for them.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from kafka.admin import KafkaAdminClient
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import BrokerProcess

RATE = "producer_byte_rate"
CONNECTIONS = "connection_creation_rate"


class KafkaPythonQuotasTests(SynchronousTestCase):
    """kafka-python administers quotas."""

    def setUp(self) -> None:
        self.broker = BrokerProcess("--quota", "client-bytes:produce=1M", "--quota", "connections")
        self.addCleanup(self.broker.remove)
        self.broker.start()

    def send(self, request: Any) -> Any:
        """Send a request and return the response."""
        with closing(KafkaAdminClient(bootstrap_servers=self.broker.address)) as admin:
            return admin._manager.run(admin._manager.send, request)

    def alter(self, *entries: tuple[dict[str, str | None], dict[str, float | None]]) -> list[tuple[ErrorCode, str]]:
        """
        Alter limits.

        @return: the errors and what is said of them.
        """
        entry = AlterClientQuotasRequest.EntryData
        request = AlterClientQuotasRequest(
            entries=[
                entry(
                    entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
                    ops=[
                        entry.OpData(key=key, value=value or 0.0, remove=value is None)
                        for key, value in changes.items()
                    ],
                )
                for entity, changes in entries
            ],
            validate_only=False,
        )
        return [(ErrorCode(each.error_code), each.error_message) for each in self.send(request).entries]

    def described(self) -> list[tuple[dict[str, str | None], dict[str, float]]]:
        """All limits, by whom they are for."""
        answer = self.send(DescribeClientQuotasRequest(components=[], strict=False))
        self.assertEqual((answer.error_code, answer.error_message), (0, None))
        return [
            (
                {each.entity_type: each.entity_name for each in entry.entity},
                {each.key: each.value for each in entry.values},
            )
            for entry in answer.entries
        ]

    def test_quotas(self) -> None:
        """
        Limits are set, described and removed; they outlive the broker when it
        is killed, and the log says who set them.
        """
        default: tuple[dict[str, str | None], dict[str, float]] = ({"client-id": None}, {RATE: 1e6})
        self.assertEqual(self.described(), [default])
        (alice, nobody), (refused, reason), (address, _) = self.alter(
            ({"user": "alice", "client-id": "loader"}, {RATE: 5000.0, "consumer_byte_rate": 6000.0}),
            ({"user": "bob"}, {RATE: 0.5}),
            ({"ip": "192.0.2.1"}, {CONNECTIONS: 7.0}),
        )
        self.assertEqual((alice, refused, address), (ErrorCode.none, ErrorCode.invalid_request, ErrorCode.none))
        self.assertEqual((nobody, "whole" in reason), (None, True))
        self.broker.waitForLog(f"127.0.0.1 changed {CONNECTIONS} of address '192.0.2.1' from none to 7")
        expected = [
            default,
            ({"user": "alice", "client-id": "loader"}, {RATE: 5000.0, "consumer_byte_rate": 6000.0}),
            ({"ip": "192.0.2.1"}, {CONNECTIONS: 7.0}),
        ]
        self.assertCountEqual(self.described(), expected)
        self.broker.kill()
        self.broker.start()
        self.assertCountEqual(self.described(), expected)
        self.alter(({"ip": "192.0.2.1"}, {CONNECTIONS: None}), ({"user": "alice", "client-id": "loader"}, {RATE: None}))
        self.assertCountEqual(
            self.described(), [default, ({"user": "alice", "client-id": "loader"}, {"consumer_byte_rate": 6000.0})]
        )
        self.assertEqual(self.broker.complaints(), [])

"""Tests for L{admission.kafka.broker.api.transactionapi}."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from tests.kit.brokerfixture import BrokerTestCase, codes


class TransactionTests(BrokerTestCase):
    """Tools that look for transactions find none."""

    def test_listTransactions(self) -> None:
        """There are none in any state."""
        for apiVersion in (0, 1, 2):
            answer = self.connect().ask("ListTransactions", apiVersion, state_filters=["Ongoing"])
            self.assertEqual((answer.error_code, answer.transaction_states), (ErrorCode.none, ()))

    def test_describeProducers(self) -> None:
        """No producer has one open; partitions that are not there are told."""
        self.topic("events", 2)
        asked = [{"name": "events", "partition_indexes": [0, 2, 0]}, {"name": "none", "partition_indexes": [0]}]
        events, none = self.connect().ask("DescribeProducers", 0, topics=asked).topics
        self.assertEqual(codes(events.partitions), [ErrorCode.none, ErrorCode.unknown_topic_or_partition])
        self.assertEqual([each.active_producers for each in events.partitions], [(), ()])
        self.assertEqual(codes(none.partitions), [ErrorCode.unknown_topic_or_partition])

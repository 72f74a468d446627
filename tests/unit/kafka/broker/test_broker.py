"""
Tests for L{admission.kafka.broker.broker}.
"""

from __future__ import annotations

from tests.kit.brokerfixture import (
    POOL_BYTES,
    BrokerTestCase,
)


class BrokerTests(BrokerTestCase):
    """
    What L{Broker} knows.
    """

    properties = {"broker.id": "7", "fetch.max.bytes": "55MiB"}

    def test_nodeId(self) -> None:
        """
        The broker's number is configured.
        """
        self.assertEqual(self.broker.nodeId, 7)

    def test_largestResponse(self) -> None:
        """
        One response takes no more than a quarter of the pool, whatever C{fetch.max.bytes} says.
        """
        self.assertEqual(self.broker.largestResponseBytes, POOL_BYTES // 4)

"""The broker is a server whose requests policies admit, as L{admission.testing.servercontract} has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from admission.connection.factory import AdmittedFactory
from admission.control import AdmissionControl
from admission.testing.servercontract import WatchedPolicy
from tests.kit.brokerfixture import BrokerTestCase, fetchFields
from tests.kit.kafkacontract import WAIT_MS, KafkaServerContract


class BrokerContractTests(KafkaServerContract, BrokerTestCase):
    """Requests that are answered at once are Produce, and those that wait are Fetch."""

    def setUp(self) -> None:
        BrokerTestCase.setUp(self)
        self.policy = WatchedPolicy()
        self.takeControl(AdmissionControl([("watched", self.policy)], 20.0))
        self.server: AdmittedFactory = self.factory
        self.connected = []
        self.topic()
        self.read = self.topic("read")
        self.stored = 0

    def fetchedFields(self) -> Mapping[str, Any]:
        """There is no record yet."""
        return fetchFields(self.read, self.stored, maxWaitMs=WAIT_MS)

    def waiting(self) -> int:
        """What is in the purgatory."""
        return self.purgatory.delayed

    def release(self) -> None:
        """Let there be a record."""
        self.stored += 1
        self.store(self.read.partitions[0], b"a")

"""Tests for L{admission.kafka.broker.broker}."""

from __future__ import annotations

from collections.abc import Hashable

from admission.kafka.wire.batches import readBatch
from tests.kit.brokerfixture import BrokerTestCase, batchOf, fetchFields


class BrokerTests(BrokerTestCase):
    """What L{Broker} knows."""

    properties = {"broker.id": "7", "fetch.max.bytes": "55MiB"}

    def test_failingPurgatory(self) -> None:
        """If it cannot tell those who wait for the records of one partition, those who wait for another's are told."""
        events, others = (self.topic(name).partitions[0] for name in ("events", "others"))
        clients = [self.connect() for _ in range(2)]
        for client, name in zip(clients, ("events", "others"), strict=True):
            client.send("Fetch", 12, **fetchFields(self.log.topic(name), 0, maxWaitMs=60_000))
        check = self.purgatory.checkAndComplete

        def checkOthers(key: Hashable) -> int:
            if key == events:
                raise SystemExit
            return check(key)

        self.patch(self.purgatory, "checkAndComplete", checkOthers)
        for partition in (events, others):
            buffer = bytearray(batchOf(b"record"))
            self.log.append(partition, buffer, readBatch(buffer))
        self.clock.advance(0)
        self.assertEqual([client.waiting() for client in clients], [0, 1])
        self.assertIsNone(self.broker.changed)
        self.assertEqual(len(self.flushLoggedErrors(SystemExit)), 1)
        self.logged.clear()

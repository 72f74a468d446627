"""
Tests for L{admission.status.health}, and for what the service makes of it.
"""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

import lmdb
from twisted.internet import reactor
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.endpoints import serverFromString
from twisted.internet.threads import deferToThread

from admission.kafka.brokersettings import loadSettings
from admission.kafka.options import Listener
from admission.kafka.service import BrokerConfig, BrokerService
from admission.status.health import SHORTAGE_SECONDS, Health
from tests.kit.brokerfixture import LARGEST_BYTES, BrokerTestCase, batchOf, produceFields
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.unit.kafka.test_service import LOOPBACK, ServiceTestCase


class HealthTests(BrokerTestCase):
    """
    Health says what is wrong.
    """

    def setUp(self) -> None:
        """
        Look after a broker.
        """
        super().setUp()
        self.health = Health(
            self.gate, self.clock.seconds, lambda: self.log.problems, lambda: len(self.factory.connections)
        )

    def assertReason(self, *words: str) -> None:
        """
        There is one reason, in which these words are.
        """
        (reason,) = self.health.reasons
        for each in words:
            self.assertIn(each, reason)

    def test_well(self) -> None:
        """
        A broker that serves is well.
        """
        client = self.connect()
        client.ask("Metadata", 9, topics=[{"name": "events"}])
        client.produce("events", batchOf(b"1"))
        self.assertEqual(self.health.reasons, [])

    def test_shortage(self) -> None:
        """
        Memory may be short for a while; when it is for long, the reason says how many wait, until there is some again.
        """
        lease = self.pool.tryAllocate(LARGEST_BYTES)
        charge = self.pool.charge(self.pool.availableBytes, "test")
        self.topic()
        client = self.connect()
        client.deliver("Produce", 9, **produceFields("events", batchOf(b"1")))
        self.clock.advance(SHORTAGE_SECONDS - 0.1)
        self.assertEqual(self.health.reasons, [])
        self.clock.advance(0.1)
        self.assertReason("for 30 s", "1 connections wait", "queued.max.request.bytes")
        assert lease is not None
        lease.release()
        charge.release()
        self.clock.advance(0)
        self.assertEqual(self.health.reasons, [])
        client.receive()

    def test_draining(self) -> None:
        """
        A broker that is being stopped says how many it still waits for.
        """
        self.connect()
        self.health.isDraining = True
        self.assertReason("being stopped", "1 connections")

    def test_logNotWritable(self) -> None:
        """
        A log that cannot be written to is a reason, until it can, or until nobody has tried for a minute: else nobody
        would be sent here to try.
        """
        client = self.connect()
        self.topic()
        self.failCommits(lmdb.MapFullError("full"))
        client.produce("events", batchOf(b"1"))
        self.assertReason("the log cannot be written to", "full")
        self.clock.advance(60.0)
        self.assertEqual(self.health.reasons, [])
        client.produce("events", batchOf(b"1"))
        self.assertReason("the log cannot be written to")
        self.failCommits(None)
        self.clock.advance(10.0)
        client.produce("events", batchOf(b"1"))
        self.assertEqual(self.health.reasons, [])
        self.logged.clear()

    def test_logNotSynchronised(self) -> None:
        """
        So is one that cannot be synchronised with the disk.
        """
        error: list[Exception] = [OSError("the disk is gone")]

        def synchronise() -> None:
            if error:
                raise error[0]

        self.patch(self.log._sync, "_sync", synchronise)
        self.topic()
        self.clock.advance(1.0)
        self.assertReason("cannot be synchronised with the disk", "the disk is gone")
        error.clear()
        self.clock.advance(1.0)
        self.assertEqual(self.health.reasons, [])
        self.logged.clear()


class DrainTests(ServiceTestCase):
    """
    The status port outlives the ports of clients.
    """

    @inlineCallbacks
    def test_drain(self) -> Any:
        """
        While the last connections end, the port answers that nobody should come; then it closes.
        """
        status = Listener("status", serverFromString(reactor, LOOPBACK), None)
        config = BrokerConfig(
            loadSettings(None, ["queued.max.request.bytes=128MiB"]),
            [Listener("clients", serverFromString(reactor, LOOPBACK), None)],
            self.path,
            statusListener=status,
        )
        service = BrokerService(reactor, config)
        self.start(service)
        assert service._statusPort is not None and service._statusPort._port is not None
        port = service._statusPort._port.getHost().port  # type: ignore[attr-defined]
        code, body = yield self.get(port)
        self.assertEqual((code, body), (200, {"status": "ok"}))
        lingering: Deferred[None] = Deferred()
        self.patch(service.factory, "closeAll", lambda: lingering)
        stopped = service.stopService()
        code, body = yield self.get(port)
        self.assertEqual((code, body["status"]), (503, "unavailable"))
        self.assertEqual(service._ports, [])
        self.assertFalse(stopped.called)
        lingering.callback(None)
        yield stopped
        self.assertIs(service._statusPort._port, None)
        self.assertEqual(service._statusPort.site.channels, set())

    def get(self, port: int) -> Any:
        """
        The status and the body of C{/healthz}.
        """

        def ask() -> tuple[int, Any]:
            connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
            try:
                connection.request("GET", "/healthz")
                response = connection.getresponse()
                return response.status, json.load(response)
            finally:
                connection.close()

        return deferToThread(ask)

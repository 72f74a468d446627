"""The health of a broker that stops, asked over the network."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.endpoints import serverFromString
from twisted.internet.threads import deferToThread

from admission.kafka.broker.brokersettings import loadSettings
from admission.kafka.broker.service import BrokerConfig, BrokerService
from admission.kafka.serving.serveroptions import Listener
from tests.kit.brokerprocess import PATIENCE_SECONDS
from tests.unit.kafka.broker.test_service import LOOPBACK, ServiceTestCase


class StatusPortTestCase(ServiceTestCase):
    """A test with a broker that has a status port."""

    def startWithStatus(self) -> tuple[BrokerService, int]:
        """
        Start the broker.

        @return: it, and the number of the status port.
        """
        status = Listener("status", serverFromString(reactor, LOOPBACK), None)
        config = BrokerConfig(
            loadSettings(None, ["queued.max.request.bytes=128MiB"]),
            [Listener("clients", serverFromString(reactor, LOOPBACK), None)],
            self.path,
            statusListener=status,
        )
        service = self.start(BrokerService(reactor, config))
        assert service._statusPort is not None and service._statusPort._port is not None
        return service, service._statusPort._port.getHost().port  # type: ignore[attr-defined]

    def get(self, port: int) -> Any:
        """The status and the body of C{/healthz}."""

        def ask() -> tuple[int, Any]:
            connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
            try:
                connection.request("GET", "/healthz")
                response = connection.getresponse()
                return response.status, json.load(response)
            finally:
                connection.close()

        return deferToThread(ask)


class DrainTests(StatusPortTestCase):
    """The status port outlives the ports of clients."""

    @inlineCallbacks
    def test_drain(self) -> Any:
        """While the last connections end, the port answers that nobody should come; then it closes."""
        service, port = self.startWithStatus()
        assert service._statusPort is not None
        code, body = yield self.get(port)
        self.assertEqual((code, body), (200, {"status": "ok"}))
        lingering: Deferred[None] = Deferred()
        self.patch(service.factory, "closeAll", lambda: lingering)
        stopped = service.stopService()
        code, body = yield self.get(port)
        self.assertEqual((code, body["status"]), (503, "unavailable"))
        self.assertEqual(service._ports.open, [])
        self.assertFalse(stopped.called)
        lingering.callback(None)
        yield stopped
        self.assertIs(service._statusPort._port, None)
        self.assertEqual(service._statusPort.site.channels, set())

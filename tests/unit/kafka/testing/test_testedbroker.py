"""Tests for L{admission.kafka.testing.testedbroker}."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import DEFAULT, QuotaEntity
from admission.kafka.serving.serveroptions import buildControl
from admission.kafka.testing.testedbroker import OptionsForTests, Orders
from admission.metrics.registry import SensorRegistry
from tests.kit.brokerfixture import BrokerTestCase


class OptionsForTestsTests(SynchronousTestCase):
    """What is different from the broker's own defaults."""

    def parse(self, *arguments: str) -> OptionsForTests:
        options = OptionsForTests()
        options.parseOptions(["--set", "queued.max.request.bytes=1GiB", *arguments])
        return options

    def test_defaults(self) -> None:
        """Nobody waits for members or for the disk, and a client is throttled after a second's worth."""
        options = self.parse()
        settings = options["settings"]
        self.assertEqual((settings.groupInitialRebalanceDelaySeconds, settings.writeCaching), (0.0, True))
        self.assertEqual(options["quota"], ["client-bytes:algorithm=bucket", "request-time", "producer-ids"])

    def test_chosen(self) -> None:
        """What a test chooses is what it gets, on the command line or in a file."""
        path = self.mktemp()
        with open(path, "w") as file:
            file.write("write.caching=false\nquota=request-time\n")
        options = self.parse("--config", path, "--set", "group.initial.rebalance.delay.ms=3s")
        settings = options["settings"]
        self.assertEqual((settings.groupInitialRebalanceDelaySeconds, settings.writeCaching), (3.0, False))
        self.assertEqual(options["quota"], ["request-time"])


class OrdersTests(BrokerTestCase):
    """A broker that takes orders."""

    def setUp(self) -> None:
        super().setUp()
        sensors = SensorRegistry(self.clock.seconds)
        self.gate.addSensors(sensors)
        service = SimpleNamespace(broker=self.broker, sensors=sensors)
        self.transport = StringTransport()
        self.orders = Orders(cast(Any, service), self.mktemp())
        self.orders.makeConnection(self.transport)
        self.assertEqual(self.answer(), {"result": None})

    def answer(self) -> Any:
        text = self.transport.value()
        self.transport.clear()
        return json.loads(text)

    def order(self, *words: Any) -> Any:
        """Give an order, and return the answer."""
        self.orders.dataReceived(json.dumps(words).encode() + b"\n")
        self.clock.advance(0)
        return self.answer()

    def limits(self) -> dict[QuotaEntity, Any]:
        return dict(self.broker.limits.describe({}, False))

    def test_limits(self) -> None:
        """A limit is set and removed: of a client id, of a user, of both, or of all client ids."""
        self.takeControl(buildControl(self.broker.settings, ["client-bytes"], self.clock))
        self.broker.limits._control = self.broker.control
        for names, entity in (
            (("reports", None), QuotaEntity(clientId="reports")),
            ((None, "alice"), QuotaEntity(user="alice")),
            (("reports", "alice"), QuotaEntity(user="alice", clientId="reports")),
            ((None, None), QuotaEntity(clientId=DEFAULT)),
        ):
            self.assertEqual(self.order("limit", *names, {"producer_byte_rate": 1000}), {"result": None})
            self.assertEqual(self.limits(), {entity: {"producer_byte_rate": 1000.0}})
            self.assertEqual(self.order("limit", *names, {"producer_byte_rate": None}), {"result": None})
            self.assertEqual(self.limits(), {})

    def test_refused(self) -> None:
        """What the broker refuses is answered with its sentence."""
        refusal = self.order("limit", "reports", None, {"records_a_day": 1})["refused"]
        self.assertIn("records_a_day", refusal)
        self.assertEqual(self.limits(), {})

    def test_fullPool(self) -> None:
        """While memory is taken, not even a small request is read; it is answered afterwards."""
        client = self.connect()
        self.assertEqual(self.order("fill"), {"result": None})
        client.send("ApiVersions", 3)
        self.assertEqual(client.waiting(), 0)
        self.assertEqual(self.order("sensors")["result"]["ConnectionsWaitingForMemory"], 1)
        self.assertEqual(self.order("empty"), {"result": None})
        self.assertEqual(client.receive().error_code, 0)

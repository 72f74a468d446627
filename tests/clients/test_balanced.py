"""A client library whose connections a load balancer passes on."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from urllib.request import urlopen

from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import PATIENCE_SECONDS, BrokerProcess, endpoint, freePort
from tests.kit.libraries import Message, Settings, consumeAll, makeProducer, produceAll
from tests.kit.proxyheaders import Balancer

CLIENT = "192.0.2.7"


class BalancedTests(SynchronousTestCase):
    """The broker goes by the client's address, and tells clients the one that they have reached."""

    def test_believed(self) -> None:
        """By Twisted's C{haproxy:}, where everybody is believed."""
        port = freePort()
        self.behaves(port, "--listen", f"haproxy:{endpoint(port)}")

    def test_trusted(self) -> None:
        """By C{trusted.proxies}, where the balancer is."""
        port = freePort()
        self.behaves(port, "--listen", endpoint(port), "--set", "trusted.proxies=127.0.0.0/8")

    def behaves(self, port: int, *options: str) -> None:
        """A client produces and consumes; more connections of its address than allowed are refused in its name."""
        statusPort = freePort()
        broker = BrokerProcess(
            *(*options, "--status", endpoint(statusPort)),
            *("--quota", "client-bytes:produce=100M", "--set", "max.connections.per.ip=8"),
            *("--set", "group.initial.rebalance.delay.ms=0"),
        ).startedFor(self)
        balancer = Balancer(port, CLIENT)
        self.addCleanup(balancer.close)
        settings = Settings("kafka-python", f"127.0.0.1:{balancer.port}")
        produceAll(settings, "balanced", [Message(b"%d" % number) for number in range(10)])
        received = consumeAll(settings, "balanced", 10)
        self.assertEqual([each.value for each in received], [b"%d" % number for number in range(10)])

        with closing(makeProducer(settings)) as producer:
            producer.send("balanced", Message(b"more"), lambda offset, error: None)
            producer.flush()
            with urlopen(f"http://127.0.0.1:{statusPort}/explain?ip={CLIENT}", timeout=PATIENCE_SECONDS) as response:
                told = json.load(response)
            self.assertEqual((told["ip"], {each["ip"] for each in told["clients"]}), (CLIENT, {CLIENT}))
        begin = broker.mark()
        silent = [socket.create_connection(("127.0.0.1", balancer.port)) for _ in range(9)]
        try:
            broker.waitForLog(rf"{CLIENT}:40000: there are 8 connections from its address already", begin)
        finally:
            for each in silent:
                each.close()
        produceAll(settings, "balanced", [Message(b"last")])
        self.assertEqual(broker.complaints(), [])

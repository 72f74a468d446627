"""Logins that a gateway passes on, with TLS on both sides of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from twisted.trial.unittest import SynchronousTestCase

from tests.clients.gateway.gatewaycases import IS_DIRECT
from tests.kit.brokerprocess import (
    ENVIRONMENT,
    PATIENCE_SECONDS,
    certificates,
    endpoint,
    freePort,
    strangersAuthority,
    tlsEndpoint,
    until,
)
from tests.kit.gatewayprocess import NODES, GatewayProcess
from tests.kit.kafkacluster import PASSWORD, USER, KafkaCluster


@cache
def securedCluster() -> KafkaCluster:
    """One that wants logins and TLS, for all tests of this module."""
    cluster = KafkaCluster(sasl=True, tls=True)
    cluster.start()
    return cluster


def whyUnhealthy(statusPort: int) -> str:
    """What the gateway says when it is asked whether it is healthy, and is not."""
    try:
        urlopen(f"http://127.0.0.1:{statusPort}/healthz", timeout=PATIENCE_SECONDS).close()
    except HTTPError as error:
        with error:
            return error.read().decode()
    raise AssertionError("it is healthy")


class LoginTests(SynchronousTestCase):
    """A cluster that wants logins and TLS, behind a gateway that speaks TLS with its clients, too."""

    if IS_DIRECT:
        skip = "this is about the gateway, and ADMISSION_GATEWAY_DIRECT leaves it out"

    def setUp(self) -> None:
        self.cluster = securedCluster()
        self.directory = Path(tempfile.mkdtemp(prefix="admission-gateway-"))
        self.addCleanup(shutil.rmtree, self.directory)
        self.password = self.directory / "password"
        self.password.write_text(PASSWORD + "\n", "utf-8")
        self.port, self.statusPort = freePort(count=NODES + 2), freePort()

    def start(self, authority: Path) -> GatewayProcess:
        """
        Start a gateway.

        @param authority: whose certificates it trusts.
        """
        trusted = self.directory / "authorities"
        trusted.mkdir()
        shutil.copy(authority, trusted / "authority.pem")
        servers = [f"tls:{address}:trustRoots={trusted}" for address in self.cluster.bootstrap.split(",")]
        return GatewayProcess(
            servers[0],
            *(f"--upstream={each}" for each in servers[1:]),
            *("--listen", tlsEndpoint(self.port)),
            *("--upstream-login", f"SCRAM-SHA-256:{USER}:{self.password}", "--require-login"),
            *("--quota", "client-bytes", f"--set=super.users=User:{USER}"),
            *("--status", endpoint(self.statusPort)),
        ).startedFor(self)

    def settings(self, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
        """How a client logs in."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.port}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": password,
            "ssl.ca.location": str(certificates().authority),
            "log_level": 0,
        }

    def admission(self, *arguments: str) -> str:
        """What the command says."""
        command = [sys.executable, "-m", "admission", *arguments]
        ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

    def explained(self, *arguments: str) -> Any:
        """The limits of a client, as the gateway explains them."""
        status = f"http://127.0.0.1:{self.statusPort}"
        return json.loads(self.admission("explain", "--json", "--status", status, *arguments))

    def test_passedOn(self) -> None:
        """
        A client that logs in by PLAIN or SCRAM produces and consumes, is known by the name that the node has confirmed,
        and changes limits if that is a super user.
        """
        gateway = self.start(certificates().authority)
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            topic = f"logins.{mechanism}"
            self.cluster.createTopic(topic)
            producer = Producer(self.settings(mechanism))
            producer.produce(topic, b"value")
            self.assertEqual(producer.flush(PATIENCE_SECONDS), 0)
            settings = {**self.settings(mechanism), "group.id": topic, "auto.offset.reset": "earliest"}
            consumer = Consumer(settings)
            consumer.subscribe([topic])
            try:
                until(lambda consumer=consumer: consumer.poll(1.0))
            finally:
                consumer.close()
        authority = str(certificates().authority)
        self.admission(
            *("quotas", "set", "--broker", f"127.0.0.1:{self.port}", "--tls", authority),
            *("--login", USER, "--password-file", str(self.password), "--user", USER, "producer_byte_rate=50k"),
        )
        producer = Producer({**self.settings("SCRAM-SHA-512"), "batch.size": 20_000, "linger.ms": 0})
        begin = time.monotonic()
        for _ in range(60):
            producer.produce("logins.PLAIN", bytes(15_000))
        self.assertEqual(producer.flush(PATIENCE_SECONDS), 0)
        # 900 kB, of which a burst of eleven windows is free.
        self.assertGreater(time.monotonic() - begin, 4.0)
        [limit] = self.explained("--user", USER)["limits"]
        self.assertEqual((limit["limitName"], limit["limit"]), ("producer_byte_rate", 50_000))
        self.assertGreater(limit["used"], 10_000)
        self.assertEqual(gateway.complaints(), [])

    def test_wrongPassword(self) -> None:
        """The node's own refusal reaches the client, and nobody is known by the name that it claimed."""
        gateway = self.start(certificates().authority)
        errors: list[str] = []
        producer = Producer({**self.settings("PLAIN", "wrong"), "error_cb": lambda error: errors.append(error.str())})
        until(lambda: producer.poll(0.2) or any("Authentication failed" in each for each in errors))
        self.assertEqual(gateway.complaints(), [])

    def test_strangeCertificate(self) -> None:
        """Nodes whose certificates nobody vouches for are not connected to, which the log and the health say."""
        gateway = self.start(Path(strangersAuthority()))
        line = gateway.waitForLog("does not say which nodes it has")
        self.assertIn("certificate verify failed", line)
        self.assertIn("certificate verify failed", whyUnhealthy(self.statusPort))
        with self.assertRaises(KafkaException):
            AdminClient({**self.settings("PLAIN"), "socket.timeout.ms": 1000}).list_topics(timeout=1)
        self.assertEqual(gateway.complaints(), [])

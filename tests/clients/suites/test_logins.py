"""Logins and TLS, of which the gateway ends TLS and passes the logins on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from tests.clients.gateway.test_logins import securedCluster
from tests.clients.suites.programs.pythons import RECORDS, roundTrip
from tests.clients.suites.results import GATEWAY, Outcome, Suite
from tests.clients.suites.suitecase import SuiteCase
from tests.kit.brokerprocess import certificates, freePort, tlsEndpoint, until
from tests.kit.gatewayprocess import NODES, GatewayProcess
from tests.kit.kafkacluster import PASSWORD, USER
from tests.kit.libraries import LIBRARIES, Settings

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class LoginsTests(SuiteCase):
    """Python's libraries, with TLS on both sides of the gateway and a cluster that wants logins."""

    suite = Suite("logins", "Logins and TLS", "Python, and Java and Maven for the cluster")
    page = GATEWAY
    isLong = True

    def prepare(self) -> None:
        """See L{SuiteCase.prepare}."""
        self.cluster = securedCluster()

    def startServer(self) -> str:
        """See L{SuiteCase.startServer}."""
        self.addCleanup(self.cluster.clear)
        trusted = Path(self.mktemp()).absolute()
        trusted.mkdir()
        (trusted / "authority.pem").write_bytes(certificates().authority.read_bytes())
        password = trusted / "password"
        password.write_text(PASSWORD, "utf-8")
        first, *others = [f"tls:{address}:trustRoots={trusted}" for address in self.cluster.bootstrap.split(",")]
        port = freePort(count=NODES + 2)
        GatewayProcess(
            first,
            *(f"--upstream={each}" for each in others),
            *("--listen", tlsEndpoint(port)),
            *("--upstream-login", f"SCRAM-SHA-256:{USER}:{password}", "--require-login"),
        ).startedFor(self)
        return f"127.0.0.1:{port}"

    def test_logins(self) -> None:
        """Everything is as the results say."""
        for library in LIBRARIES:
            for mechanism in MECHANISMS:
                settings = Settings(
                    library, self.address, self.login(mechanism), authority=str(certificates().authority)
                )
                seen = roundTrip(settings, f"{library}.{mechanism}")
                what = f"{library}: SASL_SSL and {mechanism}, idempotent producer and a group"
                self.found(what, seen, f"read {RECORDS}")
        refused = self.refusal(self.login("PLAIN", "wrong"))
        self.found("confluent: PLAIN, with another password", refused, "Authentication failed", Outcome.REFUSED)
        strange = self.login("OAUTHBEARER") | {"oauth_cb": lambda _: ("token", time.time() + 3600)}
        wanted = "Unsupported SASL mechanism"
        self.found("confluent: OAUTHBEARER", self.refusal(strange), wanted, Outcome.REFUSED)
        self.check()

    def login(self, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
        """How a client logs in."""
        named = {} if mechanism == "OAUTHBEARER" else {"sasl.username": USER, "sasl.password": password}
        return {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, **named}

    def refusal(self, properties: dict[str, Any]) -> str:
        """What librdkafka says when it is refused."""
        errors: list[str] = []
        place = {"bootstrap.servers": self.address, "ssl.ca.location": str(certificates().authority), "log_level": 0}
        producer = Producer({**place, **properties, "error_cb": lambda error: errors.append(error.str())})
        until(lambda: producer.poll(0.2) or any("SASL" in each for each in errors))
        return "; ".join(errors)

"""Tests for L{admission.status.document}, with a server that knows no Kafka."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from admission._version import __version__
from admission.connection.factory import ConnectionLimits
from admission.metrics.registry import SensorRegistry
from admission.status.document import FULL_SECONDS, KEPT_SECONDS, MAX_CONNECTIONS, SHORTAGE_SECONDS, StatusDocument
from admission.status.sections import LONGEST_NAME, Section
from tests.kit.statusfixture import NOW_SECONDS
from tests.kit.wrapped import KIB, echo, wrapped


class DocumentTestCase(SynchronousTestCase):
    """A test with a wrapped server and its document."""

    def setUp(self) -> None:
        self.problems: Sequence[str] = ()
        self.serve()

    def serve(self, **kwargs: Any) -> None:
        """
        Make a server.

        @param kwargs: see L{wrapFactory}.
        """
        self.server = wrapped(self, **kwargs)
        self.server.behave = echo
        self.clock, self.factory = self.server.clock, self.server.factory
        self.sensors = SensorRegistry(self.clock.seconds)
        self.factory.addSensors(self.sensors)
        self.document = StatusDocument(
            self.factory,
            self.sensors,
            lambda: NOW_SECONDS,
            [Section("answers", lambda now: {"atSeconds": now})],
            [lambda now: self.problems],
            ["memory"],
            "--memory",
        )
        self.document.addSensors()

    def look(self) -> Any:
        """How the server is now."""
        self.clock.advance(KEPT_SECONDS)
        return json.loads(self.document.text)


class DocumentTests(DocumentTestCase):
    """The document says how a server is, whatever it serves."""

    def test_everyServer(self) -> None:
        """Every server has the same parts, and what its driver adds."""
        self.server.connect()
        seen = self.look()
        self.assertEqual((seen["version"], seen["atSeconds"], seen["uptimeSeconds"]), (__version__, NOW_SECONDS, 1.0))
        self.assertEqual(seen["health"], {"status": "ok", "reasons": []})
        self.assertEqual((seen["pool"]["sizeBytes"], seen["pool"]["usedBytes"]), (1024 * KIB, 8 * KIB))
        self.assertEqual(seen["ledger"]["connections"], 8 * KIB)
        self.assertEqual(seen["muted"], {"memory": 0})
        self.assertEqual(seen["policies"], {})
        self.assertGreater(seen["process"]["residentBytes"], 0)
        self.assertEqual(seen["answers"], {"atSeconds": 1.0})

    def test_keptForASecond(self) -> None:
        """However many ask, the server is looked at once in a second."""
        self.look()
        self.server.connect()
        self.clock.advance(KEPT_SECONDS / 2)
        self.assertEqual(json.loads(self.document.text)["connections"]["open"], 0)
        self.assertIs(self.document.fields, self.document.fields)
        self.assertIs(self.document.text, self.document.text)
        self.clock.advance(KEPT_SECONDS / 2)
        self.assertEqual(json.loads(self.document.text)["connections"]["open"], 1)

    def test_responses(self) -> None:
        """Answers of sites are counted by status, and by kind of request; where there is no site, there is nothing."""
        self.assertNotIn("responses", self.look())
        rows = [(("GET", "2xx"), 3), (("PUT", "429"), 5), (("PUT", ""), 1), (("PUT", "2xx"), 1)]
        self.sensors.addFamily("Responses", ("request", "status"), lambda now: rows, isCounter=True)
        kinds = [{"kind": "PUT", "429": 5, "left": 1, "2xx": 1}, {"kind": "GET", "2xx": 3}]
        self.assertEqual(self.look()["responses"], {"2xx": 4, "429": 5, "left": 1, "kinds": kinds})

    def test_unboundedPool(self) -> None:
        """A pool without a bound has none to show."""
        self.patch(self.factory.gate.pool, "sizeBytes", 2**63 - 1)
        self.assertIs(self.look()["pool"]["sizeBytes"], None)

    def test_connections(self) -> None:
        """Connections are listed by the memory that they hold, with their peers."""
        slow = "client-bytes:produce=500:fetch=500:algorithm=bucket"
        self.serve(quota=slow, nameOf=lambda protocol: ("alice", "diary") if protocol.received else None)
        self.server.connect(host="192.0.2.7")
        _, transport = self.server.connect(isTLS=True)
        transport.peerSends(b"x" * KIB)
        self.server.settle()
        largest, other = self.look()["connections"]["largest"]
        self.assertEqual((largest["user"], largest["clientId"], largest["heldBytes"]), ("alice", "diary", 48 * KIB))
        self.assertEqual((largest["mutedFor"], largest["mutedSeconds"]), (["sent quota", "quota"], 1.0))
        self.assertEqual((other["user"], other["clientId"], other["heldBytes"]), ("", "192.0.2.7", 8 * KIB))
        self.assertEqual((other["requestBytes"], other["bufferedBytes"], other["unsentBytes"]), (0, 0, 0))
        self.assertEqual(self.document.fields["muted"], {"memory": 0, "quota": 1, "sent quota": 1})
        self.assertEqual(self.document.fields["policies"], {"client-bytes": {"throttles": 2, "refusals": 0}})

    def test_manyConnections(self) -> None:
        """Of many connections, some are listed, and all are counted."""
        for _ in range(MAX_CONNECTIONS + 1):
            self.server.connect()
        seen = self.look()["connections"]
        self.assertEqual((seen["open"], len(seen["largest"])), (MAX_CONNECTIONS + 1, MAX_CONNECTIONS))

    def test_longNames(self) -> None:
        """A client may have a long name, and the beginning of it is shown."""
        self.serve(nameOf=lambda protocol: ("a" * 30_000, "b" * 30_000))
        self.server.connect()
        (row,) = self.look()["connections"]["largest"]
        self.assertEqual((len(row["user"]), len(row["clientId"])), (LONGEST_NAME, LONGEST_NAME))

    def test_sensors(self) -> None:
        """What no other sensor says is published beside what the server publishes itself."""
        self.clock.advance(1.0)
        for name, value in (
            ("Connections", 0),
            ("ConnectionsAllowed", 10_000),
            ("MemoryPoolSize", 1024 * KIB),
            ("Healthy", 1),
            ("UptimeSeconds", 1.0),
        ):
            self.assertEqual(self.sensors[name], value, name)
        self.assertEqual(list(self.sensors.families["BuildInfo"].read(0.0)), [((__version__,), 1)])
        self.assertRaises(ValueError, self.document.addSensors)


class HealthTests(DocumentTestCase):
    """Health is what the checks say."""

    def test_checks(self) -> None:
        """What is wrong with the driver is a reason at once."""
        self.problems = ["the disk is full"]
        self.assertEqual(self.document.reasons, ["the disk is full"])
        self.assertEqual(self.look()["health"], {"status": "unavailable", "reasons": ["the disk is full"]})
        self.assertEqual(self.sensors["Healthy"], 0)

    def test_shortage(self) -> None:
        """Memory may be short for a while; after that the reason names the setting, until there is memory again."""
        pool = self.factory.gate.pool
        charge = pool.charge(pool.availableBytes, "test")
        self.factory.gate.pressure.begin()
        self.clock.advance(SHORTAGE_SECONDS - 0.1)
        self.assertEqual(self.document.reasons, [])
        self.clock.advance(0.1)
        (reason,) = self.document.reasons
        self.assertEqual(reason, "for 30 s the memory pool has been short, and 0 connections wait for it (--memory)")
        charge.release()
        self.clock.advance(0)
        self.assertEqual(self.document.reasons, [])

    def test_full(self) -> None:
        """
        A server that had to refuse newcomers, wherever they come from, says so for a while; a client that is one too
        many from its own address is no reason.
        """
        self.serve(limits=ConnectionLimits(maxConnections=2, maxConnectionsPerAddress=1))
        for host in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
            self.server.connect(host=host)
        self.assertEqual(self.document.reasons, [])
        self.server.connect(host="192.0.2.3")
        self.clock.advance(FULL_SECONDS - 0.1)
        (reason,) = self.document.reasons
        self.assertEqual(
            reason, "newcomers are refused: of 2 connections that are allowed 2 are open (maxConnections, ulimit -n)"
        )
        self.clock.advance(0.1)
        self.assertEqual(self.document.reasons, [])

"""The soak runs, and finds what it looks for."""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.soak import Books, isBad, lineThrough, lowest
from benchmarks.soakclients import CONSUMER, PRODUCER, ClientSettings, keyOf, readKey, spansOf
from tests.kit.brokerprocess import ENVIRONMENT, MeasuredBroker
from tests.kit.checkout import ROOT
from tests.kit.libraries import Settings
from tests.kit.longform import longForm
from tests.kit.rawclient import RawClient

PATIENCE_SECONDS = 600


class LineTests(SynchronousTestCase):
    """What rises, beneath what is held for a moment."""

    def rise(self, perPoint: float) -> tuple[float, float]:
        """
        The rise that is found of what grows by C{perPoint}, comes with noise ten times as large, and is hidden by
        what an attack holds in half of the points; and twice its standard error.
        """
        random = Random(17)
        points = [
            (float(number), 100 + perPoint * number + random.uniform(0, 1) + random.choice([0, 50]))
            for number in range(100)
        ]
        line = lineThrough(lowest(points))
        return line.rise, 2 * line.errorOfRise

    def test_flat(self) -> None:
        """What is held during attacks is no rise."""
        rise, give = self.rise(0.0)
        self.assertLess(abs(rise), max(1.0, give))

    def test_rises(self) -> None:
        """What never comes back is one, as large as it is."""
        rise, give = self.rise(0.1)
        self.assertLess(abs(rise - 10.0), 2.0)
        self.assertGreater(rise, give)

    def test_verdicts(self) -> None:
        """A bad verdict is written large, and only that."""
        self.assertTrue(isBad({"verdict": "RISES"}))
        self.assertFalse(isBad({"verdict": "too short"}))
        self.assertFalse(isBad({"count": 3}))


class BooksTests(SynchronousTestCase):
    """What clients say that they did."""

    def test_spans(self) -> None:
        """Numbers in any order are runs of them."""
        self.assertEqual(spansOf([5, 1, 2, 9, 3]), [[1, 3], [5, 5], [9, 9]])
        self.assertEqual(readKey(keyOf("producer-3:x", 12)), ("producer-3:x", 12))

    def test_read(self) -> None:
        """An offset counts as read once, however many members of a group have read it."""
        books = Books()
        member = ClientSettings("c", CONSUMER, Settings("confluent", "", {"group.id": "g"}))
        books.note(member, "done", [[0, 0, 4], [0, 6, 9]])
        books.note(member, "done", [[0, 3, 4]])
        self.assertEqual(books.read["g", 0], b"\1\1\1\1\1\0\1\1\1\1")

    def test_gaveUp(self) -> None:
        """Records that a producer has given up, or has not sent, are known by its name."""
        books = Books()
        producer = ClientSettings("p", PRODUCER, Settings("confluent", ""))
        books.note(producer, "acked", [[0, 4], [6, 6]])
        books.note(producer, "failed", "timed out")
        books.note(producer, "left", 2)
        self.assertEqual((books.ackedCount, books.gaveUp["p"]), (6, 3))


class AuditTests(SynchronousTestCase):
    """What a measured broker counts anew."""

    def test_leases(self) -> None:
        """The leases that there are explain the ledger, with one for each connection."""
        broker = MeasuredBroker()
        self.addCleanup(broker.remove)
        broker.start()
        clients = [RawClient(broker.port) for _ in range(3)]
        for client in clients:
            self.addCleanup(client.close)
            client.metadata("audited")
        report = broker.audit()
        audit = report["audit"]
        self.assertEqual(audit["leasedBytes"], report["ledger"])
        self.assertEqual(audit["leases"], {"connections": 3})
        self.assertEqual((audit["connections"], audit["topics"], audit["paused"]), (3, 1, {}))
        broker.stop()


@longForm
class SoakTests(SynchronousTestCase):
    """The soak as a person starts it, for a minute."""

    def test_minute(self) -> None:
        """
        Connections cost what the manual says, nothing is lost, nothing is stored twice, and nothing is left when all
        have gone.
        """
        command = [sys.executable, "-m", "benchmarks.soak"]
        result = subprocess.run(
            [*command, "--minutes", "1", "--idle", "200", "--paused", "50", "--json"],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        found = json.loads(result.stdout)
        kinds = {row["kind"]: row["count"] for row in found["connections"]}
        self.assertEqual(
            kinds,
            {
                "idle, TCP": 160,
                "idle, TLS": 40,
                "throttled, TCP": 50,
                "Fetch waits, TCP": 50,
                "paused for memory, TCP": 50,
            },
        )
        self.assertEqual({row["verdict"] for row in found["second half"]}, {"too short"})
        counts = {row["what"]: row["count"] for row in found["clients"]}
        self.assertGreater(counts["records acknowledged"], 1000)
        self.assertGreater(counts["clients killed"], 0)
        self.assertGreater(counts["attacks"], 2)

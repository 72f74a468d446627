"""Tests for L{admission.kafka.storage.tablestore}."""

import errno
import shutil
from typing import Any

from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from admission.control import AdmissionControl
from admission.interfaces import DEFAULT, QuotaEntity
from admission.kafka.serving.quotalimits import KAFKA_LIMITS, QuotaLimits
from admission.kafka.storage.itable import ITable, LogClosed, LogFailed, LogInUse
from admission.kafka.storage.tablestore import TableStore
from admission.quotas.metering import Windows
from admission_plugins.clientquotas import ClientBytes, ConnectionRate
from admission_plugins.producerids import ProducerIds
from tests.kit.checkout import ROOT
from tests.kit.logfixture import FailingDisk, Threads, TurnClock, storageError


class TableStoreTests(SynchronousTestCase):
    """Tables without a log."""

    store: Any = None

    def setUp(self) -> None:
        self.path = self.mktemp()
        self.told: list[Exception | None] = []
        self.start()
        self.addCleanup(self.close)

    def start(self, **others: Any) -> None:
        """Open the store, as a server does when it starts."""
        self.clock = TurnClock()
        self.threads = Threads()
        self.store = TableStore(self.path, self.clock, self.threads.deferToThread, **others)

    def close(self) -> None:
        """Close it, if it is open."""
        store, self.store = self.store, None
        if store is not None:
            closed = store.close()
            self.threads.runAll()
            self.successResultOf(closed)

    def put(self, key: bytes = b"key", value: bytes = b"value") -> None:
        """Change a table, and wait for the disk to have it."""
        self.store.table("quotas", isFlushed=True).put(key, value)
        self.store.whenFlushed(self.told.append)

    def test_kept(self) -> None:
        """What was put is there after a restart, and a caller that waits is told when the disk has it, not before."""
        verifyObject(ITable, self.store.table("quotas"))
        self.put()
        self.clock.turn()
        self.assertEqual(self.told, [])
        self.threads.runAll()
        self.assertEqual(self.told, [None])
        self.put(b"other")
        self.close()
        self.assertEqual(self.told, [None, None])
        self.start()
        self.assertEqual(list(self.store.table("quotas").items()), [(b"key", b"value"), (b"other", b"value")])

    def test_duringFlush(self) -> None:
        """What is put while the disk is busy waits for the next flush."""
        self.put()
        self.clock.turn()
        self.put(b"other")
        self.clock.turn()
        self.threads.run()
        self.assertEqual(self.told, [None])
        self.threads.runAll()
        self.assertEqual(self.told, [None, None])

    def test_unawaited(self) -> None:
        """What nobody waits for is on the disk a second later."""
        self.store.table("policies").put(b"key", b"value")
        self.clock.turn()
        self.assertEqual(self.threads.waiting, [])
        self.clock.advance(1.0)
        self.assertEqual(len(self.threads.waiting), 1)
        self.threads.runAll()

    def test_inUse(self) -> None:
        """One at a time uses a directory."""
        self.assertRaises(LogInUse, TableStore, self.path, self.clock, self.threads.deferToThread)

    def test_closed(self) -> None:
        """Nothing is put into what is closed."""
        table = self.store.table("quotas")
        self.close()
        self.assertRaises(LogClosed, table.put, b"key", b"value")

    def test_full(self) -> None:
        """What cannot be written is refused and forgotten; a flush that fails is the end, and said to all who wait."""
        self.close()
        disk = FailingDisk()
        self.start(disk=disk)
        disk.writeError = storageError(errno.ENOSPC)
        self.put()
        with capturedLogs() as events:
            self.clock.turn()
        self.assertIn("the store of limits cannot be written to: the disk is full", str(formatEvent(events[0])))
        self.assertIsInstance(self.told.pop(), LogFailed)
        self.assertIs(self.store.table("quotas").get(b"key"), None)
        disk.writeError, disk.flushError = None, storageError(errno.EIO)
        self.clock.turn()
        self.put()
        self.clock.turn()
        self.threads.runAll()
        self.assertIsInstance(self.told.pop(), LogFailed)
        self.assertRaises(LogFailed, self.put)

    def test_ofBefore(self) -> None:
        """The limits that a gateway has kept in a log, before it had a store, are in force again by their names."""
        self.close()
        shutil.rmtree(self.path)
        shutil.copytree(ROOT / "tests/kept/gateway", self.path)
        self.start()
        self.store.producers = lambda: iter(())
        policies = [
            ("client-bytes", ClientBytes(Windows(11, 1.0))),
            ("producer-ids", ProducerIds()),
            ("connections", ConnectionRate(1.0)),
        ]
        control = AdmissionControl(policies, 60.0, shownAliases=KAFKA_LIMITS)
        limits = QuotaLimits(self.store, control, {}, self.clock.seconds)
        expected = {
            QuotaEntity(user="alice", clientId="reports"): {"producer_byte_rate": 4e6, "consumer_byte_rate": 8e6},
            QuotaEntity(user=DEFAULT): {"producer_ids_rate": 10.0},
            QuotaEntity(ip="192.0.2.1"): {"connection_creation_rate": 5.0},
            QuotaEntity(clientId=DEFAULT): {"producer_byte_rate": 1e6},
        }
        self.assertEqual(dict(limits.describe({}, False)), expected)
        self.assertEqual(control.limits, expected)

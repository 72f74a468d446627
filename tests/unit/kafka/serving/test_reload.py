"""L{admission.kafka.serving.reload}, and what a service does with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase, TestCase

from admission.interfaces import DEFAULT, QuotaEntity
from admission.kafka.broker.brokeroptions import Options
from admission.kafka.broker.brokersettings import PROPERTIES, loadSettings
from admission.kafka.broker.service import BrokerService, makeService
from admission.kafka.property import SettingsError
from admission.kafka.serving.quotalimits import Alteration
from admission.kafka.serving.reload import Change, ReloadSignal, takeOver

RATE = "producer_byte_rate"
ANYBODY = QuotaEntity(clientId=DEFAULT)


class TakeOverTests(SynchronousTestCase):
    """Which of the settings found are in force."""

    def test_taken(self) -> None:
        """What may change is taken over, with its place, and told with both values."""
        found = loadSettings(None, ["num.partitions=3", "log.retention.hours=1"])
        settings, changes, waiting = takeOver(loadSettings(), found)
        self.assertEqual((settings.numPartitions, settings.logRetentionSeconds), (3, 3600.0))
        self.assertEqual(
            changes, [Change("num.partitions", "1", "3"), Change("log.retention.ms", "604800000", "3600000")]
        )
        self.assertEqual(set(settings.places), {"num.partitions", "log.retention.hours"})
        self.assertEqual(waiting, [])

    def test_default(self) -> None:
        """What is no longer in the file has its default again, as if it never had been there."""
        before = loadSettings(None, ["num.partitions=3", "broker.id=7"])
        settings, changes, waiting = takeOver(before, loadSettings(None, ["broker.id=7"]))
        self.assertEqual(settings, loadSettings(None, ["broker.id=7"]))
        self.assertEqual((len(changes), waiting), (1, []))

    def test_waiting(self) -> None:
        """What may not change stays, and is named however often one asks."""
        before = loadSettings(None, ["queued.max.request.bytes=1GiB"])
        found = loadSettings(None, ["queued.max.request.bytes=2GiB", "broker.id=7"])
        for _ in range(2):
            before, changes, waiting = takeOver(before, found)
            self.assertEqual((before.brokerId, before.queuedMaxRequestBytes), (1, 1 << 30))
            self.assertEqual(changes, [])
            self.assertEqual(waiting, ["queued.max.request.bytes", "broker.id"])

    def test_contradiction(self) -> None:
        """What makes no sense beside what cannot change is refused."""
        found = loadSettings(None, ["num.partitions=300", "max.partitions=400"])
        before = loadSettings(None, ["max.partitions=200"])
        error = self.assertRaises(SettingsError, takeOver, before, found)
        self.assertIn("must not exceed max.partitions (200)", str(error))


class SignalTests(SynchronousTestCase):
    """SIGHUP."""

    def setUp(self) -> None:
        """A reactor whose threads call back at once."""
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGHUP, before)
        self.calls: list[str] = []
        self.hasTerminal = False
        self.patch(os, "isatty", lambda descriptor: self.hasTerminal)
        test = self

        class Reactor:
            def callFromThread(self, function: Any, *args: Any) -> None:
                function(*args)

            def stop(self) -> None:
                test.calls.append("stop")

        self.signal = ReloadSignal(Reactor(), lambda: self.calls.append("reload"))

    def test_reload(self) -> None:
        """It reloads as long as it is wanted; what was before is there again afterwards."""
        self.signal.start()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
        self.assertEqual(self.calls, ["reload", "reload"])
        for _ in range(2):
            self.signal.stop()
            self.assertEqual(signal.getsignal(signal.SIGHUP), signal.SIG_IGN)

    def test_terminal(self) -> None:
        """As long as its terminal is there, it reloads; when that has gone, it stops."""
        self.hasTerminal = True
        self.signal.start()
        self.addCleanup(self.signal.stop)
        os.kill(os.getpid(), signal.SIGHUP)
        self.hasTerminal = False
        os.kill(os.getpid(), signal.SIGHUP)
        self.assertEqual(self.calls, ["reload", "stop"])

    def test_taken(self) -> None:
        """A signal that something else in the process wants is left to that."""
        received: list[int] = []
        signal.signal(signal.SIGHUP, lambda number, frame: received.append(number))
        self.signal.start()
        os.kill(os.getpid(), signal.SIGHUP)
        self.signal.stop()
        os.kill(os.getpid(), signal.SIGHUP)
        self.assertEqual((len(received), self.calls), (2, []))


class ServiceTests(TestCase):
    """A broker that reads its file again."""

    def setUp(self) -> None:
        self.file = Path(self.mktemp())

    def start(self, *lines: str, arguments: tuple[str, ...] = ()) -> BrokerService:
        """A running broker with such a file."""
        self.write("queued.max.request.bytes=128MiB", "listeners=tcp:0:interface=127.0.0.1", *lines)
        options = Options()
        options.parseOptions(["--config", str(self.file), "--data", self.mktemp(), *arguments])
        service = makeService(options)
        service.privilegedStartService()
        service.startService()
        self.addCleanup(service.stopService)
        return service

    def write(self, *lines: str) -> None:
        self.file.write_text("\n".join(lines) + "\n")

    def reload(self, service: BrokerService, *lines: str) -> list[str]:
        """
        Have it read other lines.

        @return: what it logs, after the level.
        """
        self.write("queued.max.request.bytes=128MiB", "listeners=tcp:0:interface=127.0.0.1", *lines)
        with capturedLogs() as events:
            service.reload()
        for event in events:
            self.assertIn(event["log_level"], (LogLevel.info, LogLevel.warn, LogLevel.error))
        return [f"{event['log_level'].name} {formatEvent(event)}" for event in events]

    def rates(self, service: BrokerService) -> dict[QuotaEntity, float]:
        """The limits of producers that are in force."""
        return {entity: limits[RATE] for entity, limits in service.server.control.limits.items() if RATE in limits}

    def test_settings(self) -> None:
        """Settings are in force wherever they are used."""
        service = self.start("max.connections=100")
        broker = service.broker
        broker.log.createTopic("events", 1, {})
        lines = self.reload(
            service,
            *("max.connections=50", "num.partitions=3", "log.retention.bytes=1000", "super.users=User:alice"),
            "group.max.size=7",
        )
        self.assertIn("info max.connections was 100 and is 50", lines)
        self.assertEqual(len(lines), 5)
        self.assertEqual(service.factory.limits.maxConnections, 50)
        self.assertEqual(broker.settings.numPartitions, 3)
        self.assertEqual(broker.superUsers.names, {"alice"})
        self.assertEqual(broker.groups.limits.maxMembers, 7)
        partition: Any = broker.log.topic("events").partitions[0]
        self.assertEqual(partition.limits.maxBytes, 1000)
        broker.log.createTopic("own", 1, {"retention.bytes": "5"})
        self.reload(service)
        own: Any = broker.log.topic("own").partitions[0]
        self.assertEqual((partition.limits.maxBytes, own.limits.maxBytes), (None, 5))

    def test_unchanged(self) -> None:
        """Nothing happens where nothing has changed."""
        service = self.start("num.partitions=3", "quota=client-bytes:produce=4M")
        (line,) = self.reload(service, "num.partitions=3", "quota=client-bytes:produce=4M")
        self.assertEqual(line, f"info nothing to reload has changed in {os.path.abspath(self.file)}")

    def test_mistake(self) -> None:
        """A mistake in the file is told with its place, and changes nothing."""
        service = self.start()
        for line, words in (
            ("num.partition=3", ":4: unknown property 'num.partition'"),
            ("quota=nonsense", "no quota policy is called 'nonsense'"),
            ("quota.producer.default=none", "quota.producer.default"),
        ):
            (logged,) = self.reload(service, "num.partitions=5", line)
            self.assertTrue(logged.startswith("error nothing is reloaded: "), logged)
            self.assertIn(words, logged)
        self.file.unlink()
        with capturedLogs() as events:
            service.reload()
        self.assertIn("cannot be read", formatEvent(events[0]))
        self.assertEqual(service.broker.settings.numPartitions, 1)

    def test_waiting(self) -> None:
        """What is in force only after a restart is named, each time."""
        service = self.start("pool=bounded:128MiB")
        for _ in range(2):
            (line,) = self.reload(service, "pool=bounded:256MiB", "log.format=json", "broker.id=2")
            self.assertEqual(line, "warn in force only after a restart: broker.id, pool, log.format")

    def test_limits(self) -> None:
        """Limits in properties and in descriptions are in force at once, below those that were set meanwhile."""
        service = self.start("quota=client-bytes:produce=4M", "quota.producer.override=loader:1M")
        loader, alice = QuotaEntity(clientId="loader"), QuotaEntity(user="alice")
        self.assertEqual(self.rates(service), {ANYBODY: 4e6, loader: 1e6})
        service.server.limits.alter([Alteration(ANYBODY, {RATE: 9e6})], False, "an admin")
        service.broker.log.commit()
        flushed: Any = service.server.limits.alter([Alteration(alice, {RATE: 3e6})], False, "an admin")

        def changed(_: object) -> None:
            lines = self.reload(
                service, "quota=client-bytes:produce=5M:fetch=8M", "quota.producer.override=loader:2M,other:3M"
            )
            self.assertEqual(
                self.rates(service), {ANYBODY: 9e6, loader: 2e6, alice: 3e6, QuotaEntity(clientId="other"): 3e6}
            )
            self.assertIn("from none to 8000000", "\n".join(lines))
            self.assertIn("the reloaded configuration changed producer_byte_rate of client id 'loader'", "".join(lines))
            self.reload(service, "quota=client-bytes:produce=5M")
            self.assertEqual(self.rates(service), {ANYBODY: 9e6, alice: 3e6})
            self.assertNotIn("consumer_byte_rate", service.server.control.limits[ANYBODY])

        return flushed.addCallback(changed)  # type: ignore[no-any-return]

    def test_otherPolicies(self) -> None:
        """
        Other policies want a restart, and so do limits where it is not known whose they are; the limits of properties
        do not.
        """
        shadow = "quota=client-bytes:produce=2M:shadow=yes"
        service = self.start("quota=client-bytes:produce=4M", shadow)
        for lines in (
            ("quota=client-bytes:produce=5M", shadow),
            ("quota=client-bytes:produce=5M",),
            ("quota=client-bytes:produce=4M", "quota=concurrency:limit=3"),
            (),
        ):
            logged = self.reload(service, *lines, "quota.consumer.default=7M")
            self.assertIn("warn in force only after a restart: quota", logged)
            self.assertEqual(self.rates(service), {ANYBODY: 4e6})
        self.assertEqual(service.server.control.limits[ANYBODY]["consumer_byte_rate"], 7e6)

    def test_commandLine(self) -> None:
        """What is on the command line stays, and is not wanted in the file as well."""
        service = self.start(arguments=("--quota", "client-bytes:produce=4M", "--set", "num.partitions=3"))
        self.reload(service, "quota.consumer.default=7M")
        self.assertEqual(self.rates(service), {ANYBODY: 4e6})
        self.assertEqual(service.broker.settings.numPartitions, 3)
        (line,) = self.reload(service, "quota=client-bytes:produce=5M")
        self.assertIn("error nothing is reloaded: --quota is given, and quota at", line)
        (line,) = self.reload(service, "num.partitions=4", "quota.consumer.default=7M")
        self.assertIn("num.partitions is", line)
        self.assertIn("keep one of them", line)

    def test_withoutFile(self) -> None:
        """Without a file there is nothing to read, and the log says so."""
        options = Options()
        options.parseOptions(["--listen", "tcp:0:interface=127.0.0.1", "--data", self.mktemp()])
        service = makeService(options)
        with capturedLogs() as events:
            service.reload()
        self.assertIn("--config", formatEvent(events[0]))

    def test_everyProperty(self) -> None:
        """
        Nothing that may change is copied anywhere: in a broker that has read new values, and in one that was started
        with them, the objects that use them have the same.
        """
        lines = {
            "max.connections": "77",
            "max.connections.per.ip": "66",
            "connections.max.idle.ms": "5s",
            "request.receive.timeout": "6s",
            "response.send.timeout": "7s",
            "tls.handshake.timeout": "8s",
            "close.grace.timeout": "9s",
            "group.max.size": "5",
            "max.groups": "6",
            "offsets.retention.ms": "7s",
            "log.retention.ms": "8s",
        }
        service = self.start()
        self.reload(service, *(f"{name}={value}" for name, value in lines.items()))
        started = self.start(*(f"{name}={value}" for name, value in lines.items()))
        for one, other in (
            (service.factory.limits, started.factory.limits),
            (service.broker.groups.limits, started.broker.groups.limits),
            (service.broker.settings.asProperties(), started.broker.settings.asProperties()),
        ):
            self.assertEqual(one, other)
        self.assertLessEqual(set(lines), {each.name for each in PROPERTIES.values() if each.isReloaded})

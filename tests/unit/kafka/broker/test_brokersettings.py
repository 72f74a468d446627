"""Tests for L{admission.kafka.broker.brokersettings}."""

from __future__ import annotations

from pathlib import Path

from attrs import evolve, fields
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.brokersettings import PROPERTIES, Settings, loadSettings
from admission.kafka.property import SettingsError
from admission.kafka.serving import serversettings as module


class LoadSettingsTests(SynchronousTestCase):
    """L{loadSettings} puts a file, assignments and other options together."""

    def file(self, text: str) -> str:
        """Write a file of properties and return its path."""
        path = Path(self.mktemp())
        path.write_text(text, encoding="utf-8")
        return str(path)

    def refusal(self, *arguments: object) -> str:
        """The message with which L{loadSettings} refuses C{arguments}."""
        return str(self.assertRaises(SettingsError, loadSettings, *arguments))

    def test_nothingGiven(self) -> None:
        """Without any input everything has its default and no place."""
        settings = loadSettings()
        self.assertEqual(settings, Settings())
        self.assertEqual(settings.places, {})
        self.assertEqual(settings.messageMaxBytes, 1048588)
        self.assertEqual(settings.fetchMaxBytes, 57671680)
        self.assertEqual(settings.connectionsMaxIdleSeconds, 600.0)
        self.assertEqual(settings.logRetentionSeconds, 604800.0)
        self.assertIs(settings.logRetentionBytes, None)
        self.assertIs(settings.autoCreateTopicsEnable, True)

    def test_everyPlace(self) -> None:
        """Values come from the file and from assignments, and the settings know from where."""
        path = self.file("# ours\nnum.partitions=3\nconnections.max.idle.ms=1500\n")
        settings = loadSettings(path, ["max.topics = 7"])
        self.assertEqual(settings.numPartitions, 3)
        self.assertEqual(settings.connectionsMaxIdleSeconds, 1.5)
        self.assertEqual(settings.maxTopics, 7)
        self.assertEqual(
            settings.places,
            {
                "num.partitions": f"{path}:2",
                "connections.max.idle.ms": f"{path}:3",
                "max.topics": "--set max.topics = 7",
            },
        )

    def test_retentionPrecedence(self) -> None:
        """Of the names for retention, milliseconds go before minutes and minutes before hours, as in Kafka."""
        hours, minutes, milliseconds = "log.retention.hours=1", "log.retention.minutes=2", "log.retention.ms=3"
        self.assertEqual(loadSettings(None, [hours]).logRetentionSeconds, 3600.0)
        self.assertEqual(loadSettings(None, [hours, minutes]).logRetentionSeconds, 120.0)
        self.assertEqual(loadSettings(None, [hours, minutes, milliseconds]).logRetentionSeconds, 0.003)

    def test_notUsed(self) -> None:
        """A property of Kafka's that means nothing here is refused with the reason, or with what to use instead."""
        self.assertIn("there is no ZooKeeper", self.refusal(None, ["zookeeper.connect=localhost:2181"]))
        self.assertIn("use --data", self.refusal(None, ["log.dirs=/tmp"]))

    def test_sessionTimeouts(self) -> None:
        """There are session timeouts that members of groups may ask for."""
        self.assertIn(
            "group.min.session.timeout.ms (1h) must not exceed group.max.session.timeout.ms (30m)",
            self.refusal(None, ["group.min.session.timeout.ms=1h"]),
        )

    def test_largestBatch(self) -> None:
        """A batch may not be larger than any request; one that nobody has set is as large as requests are."""
        self.assertEqual(
            self.refusal(None, ["message.max.bytes=2MiB", "socket.request.max.bytes=1MiB"]),
            "message.max.bytes (2MiB, --set message.max.bytes=2MiB) must not exceed socket.request.max.bytes (1MiB, "
            "--set socket.request.max.bytes=1MiB): no request could carry such a batch; make the one smaller or the "
            "other larger",
        )
        self.assertIn("(100MiB, the default)", self.refusal(None, ["message.max.bytes=200MiB"]))
        self.assertEqual(loadSettings(None, ["socket.request.max.bytes=64KiB"]).socketRequestMaxBytes, 64 << 10)

    def test_partitionsOfOneTopic(self) -> None:
        """A topic cannot by default have more partitions than there may be."""
        self.assertIn(
            "must not exceed max.partitions (2)", self.refusal(None, ["num.partitions=3", "max.partitions=2"])
        )


class PoolSizeTests(SynchronousTestCase):
    """The pool and the largest request fit each other."""

    def memory(self, limitBytes: int) -> None:
        """Let the process have C{limitBytes} of memory."""
        self.patch(module, "memoryLimitBytes", lambda: limitBytes)

    def test_defaults(self) -> None:
        """By default the pool is a quarter of the memory, and the largest request is 100 MiB."""
        self.memory(8 << 30)
        settings = loadSettings()
        self.assertEqual(settings.queuedMaxRequestBytes, 2 << 30)
        self.assertEqual(settings.socketRequestMaxBytes, 100 << 20)

    def test_wholeMebibytes(self) -> None:
        """The default pool is a number of MiB, and at least one."""
        self.memory((1 << 32) + 12345678)
        self.assertEqual(loadSettings().queuedMaxRequestBytes, (1 << 30) + (2 << 20))
        self.memory(1000)
        self.assertEqual(loadSettings().queuedMaxRequestBytes, 1 << 20)

    def test_littleMemory(self) -> None:
        """Where the default pool is smaller than 100 MiB, so is the largest request."""
        self.memory(256 << 20)
        settings = loadSettings()
        self.assertEqual(settings.queuedMaxRequestBytes, 64 << 20)
        self.assertEqual(settings.socketRequestMaxBytes, 64 << 20)

    def test_largestRequestAgainstDefaultPool(self) -> None:
        """A largest request that was asked for is not lowered to a default pool but refused."""
        self.memory(256 << 20)
        message = str(self.assertRaises(SettingsError, loadSettings, None, ["socket.request.max.bytes=65MiB"]))
        self.assertIn("queued.max.request.bytes (64MiB, the default)", message)

    def test_tooSmallPool(self) -> None:
        """
        A pool that is smaller than the largest request is refused, naming both
        settings, where they come from, and the remedies.
        """
        message = str(self.assertRaises(SettingsError, loadSettings, None, ["queued.max.request.bytes=4MiB"]))
        self.assertEqual(
            message,
            "queued.max.request.bytes (4MiB, --set queued.max.request.bytes=4MiB) must not be less than"
            " socket.request.max.bytes (100MiB, the default); set socket.request.max.bytes to at most 4MiB,"
            " or queued.max.request.bytes to at least 100MiB, or to 0 for no pool",
        )

    def test_equalSizes(self) -> None:
        """A pool of exactly the largest request is fine."""
        settings = loadSettings(None, ["queued.max.request.bytes=4MiB", "socket.request.max.bytes=4MiB"])
        self.assertEqual(settings.queuedMaxRequestBytes, settings.socketRequestMaxBytes)

    def test_off(self) -> None:
        """
        Zero and every negative number turn the pool off, which is the same
        value, and leave the largest request alone.
        """
        for assignments in (
            ["queued.max.request.bytes=0"],
            ["queued.max.request.bytes=-1", "queued.max.request.bytes=0"],
        ):
            settings = loadSettings(None, assignments)
            self.assertEqual(settings.queuedMaxRequestBytes, 0)
            self.assertEqual(settings.socketRequestMaxBytes, 100 << 20)


class TableTests(SynchronousTestCase):
    """The table agrees with itself."""

    def test_attributeNames(self) -> None:
        """An attribute is its property's name in camelCase, with the unit in which the broker counts at the end."""
        for attribute, listed in PROPERTIES.items():
            words = listed.name.removesuffix(".ms").removesuffix(".seconds").split(".")
            unit = "Seconds" if listed.kind.unit in ("ms", "s") else ""
            self.assertEqual(attribute, words[0] + "".join(map(str.capitalize, words[1:])) + unit)

    def test_everyField(self) -> None:
        """Every field is a property, except the one that says where they are from."""
        self.assertEqual([each.name for each in fields(Settings) if each.name not in PROPERTIES], ["places"])

    def test_asPropertiesOnce(self) -> None:
        """They are written once, since some requests need them thousands of times; other settings are written anew."""
        settings = loadSettings(None, ["num.partitions=2"])
        self.assertIs(settings.asProperties(), settings.asProperties())
        changed = evolve(settings, numPartitions=3)
        self.assertEqual(
            (settings.asProperties()["num.partitions"], changed.asProperties()["num.partitions"]), ("2", "3")
        )

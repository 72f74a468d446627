"""Tests for L{admission.kafka.broker.statussections}."""

from __future__ import annotations

import errno
import json
from math import isnan
from socket import gethostname
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.trial.unittest import SynchronousTestCase

from admission.control import AdmissionControl
from admission.interfaces import DEFAULT, QuotaEntity
from admission.kafka.broker import statussections
from admission.kafka.broker.brokeroptions import Options
from admission.kafka.broker.groups.groupstate import Group, GroupTotals, Offset, State
from admission.kafka.broker.log.interface import Partition
from admission.kafka.broker.service import BrokerConfig, BrokerService
from admission.kafka.broker.statussections import (
    DISK_SECONDS,
    MAX_GROUPS,
    MAX_TOPICS,
    OTHER_TOPICS,
    BrokerStatus,
    groupsFields,
    lagOf,
)
from admission.kafka.serving.serverstatus import describeAddresses
from admission.metrics.registry import SensorRegistry
from admission.quotas.metering import Windows
from admission.status.clients import MAX_CLIENTS, RECENTLY_SECONDS
from admission.status.document import KEPT_SECONDS, SHORTAGE_SECONDS
from admission.status.sections import LONGEST_NAME
from admission_plugins.clientquotas import ClientBytes
from tests.kit.brokerfixture import (
    LARGEST_BYTES,
    POOL_BYTES,
    BrokerTestCase,
    Client,
    batchOf,
    fetchFields,
    produceFields,
    requestOf,
)
from tests.kit.logfixture import storageError
from tests.kit.statusfixture import StatusTestCase

LIMIT = 1000.0
LENGTH_BYTES = 4


class DescribeTests(SynchronousTestCase):
    """L{describeAddresses} is short."""

    def test_rows(self) -> None:
        """Ports in a row are one, on one address."""
        addresses = [
            *(IPv4Address("TCP", "127.0.0.1", port) for port in (9092, 9093, 9094, 9192)),
            *(IPv4Address("TCP", "10.0.0.1", port) for port in (9193, 9194)),
            IPv6Address("TCP", "::1", 9195),
        ]
        self.assertEqual(
            describeAddresses(addresses),
            ["127.0.0.1:9092 to 9094", "127.0.0.1:9192", "10.0.0.1:9193 to 9194", "[::1]:9195"],
        )
        self.assertEqual(describeAddresses([]), [])


class BrokerStatusTestCase(BrokerTestCase):
    """A broker with a quota, and its status."""

    def setUp(self) -> None:
        super().setUp()
        self.policy = ClientBytes(Windows(11, 1.0))
        shadow = ClientBytes(Windows(11, 1.0), isShadow=True)
        self.control = AdmissionControl([("client-bytes", self.policy), ("trial", shadow)], 20.0)
        self.control.configure(QuotaEntity(clientId=DEFAULT), {"producer_byte_rate": LIMIT}, self.clock.seconds())
        shadow.configure(QuotaEntity(clientId=DEFAULT), {"received_byte_rate": 1.0}, self.clock.seconds())
        self.takeControl(self.control)
        self.sensors = SensorRegistry(self.clock.seconds)
        self.space: tuple[int, int] | None = (100 << 30, 60 << 30)
        self.asked = 0
        self.status = BrokerStatus(
            self.broker, self.factory, self.sensors, lambda: ["127.0.0.1:9092"], self.askForSpace
        )
        self.document = self.status.document
        self.control.addSensors(self.sensors)
        self.status.addSensors()
        self.events = self.topic()

    def look(self) -> Any:
        """The document of this moment, as a client of the port reads it."""
        self.clock.advance(KEPT_SECONDS)
        return json.loads(self.document.text)

    def askForSpace(self) -> tuple[int, int]:
        """The size of the disk, and how much of it is free."""
        self.asked += 1
        if self.space is None:
            raise OSError(errno.EIO, "no disk")
        return self.space

    def overdraw(self, client: Client, factor: float = 11.0) -> None:
        """Have a client take more than its limit; by default it is throttled for a second."""
        client.produce("events", batchOf(b"x" * int(factor * LIMIT)))


class DiskTests(BrokerStatusTestCase):
    """The document says how much of the disk is used, by which topics, and how much is free."""

    def test_used(self) -> None:
        """The largest topics are listed, and the rest is summed up."""
        for number in range(MAX_TOPICS + 2):
            (partition,) = self.broker.log.createTopic(f"topic{number}", 1, {}).partitions
            partition.sizeBytes = 1000 + number
        (partition,) = self.events.partitions
        partition.sizeBytes = 5000
        seen = self.look()["disk"]
        self.assertEqual((seen["totalBytes"], seen["freeBytes"]), (100 << 30, 60 << 30))
        self.assertEqual((seen["topicCount"], len(seen["topics"])), (MAX_TOPICS + 3, MAX_TOPICS))
        self.assertEqual(seen["partitionCount"], MAX_TOPICS + 3)
        self.assertEqual(seen["topics"][0], {"topic": "events", "partitionCount": 1, "usedBytes": 5000})
        self.assertEqual(seen["otherBytes"], 1000 + 1001 + 1002)
        self.assertEqual(seen["usedBytes"], sum(each["usedBytes"] for each in seen["topics"]) + 3003)

    def test_sensors(self) -> None:
        """The same is measured, with a bounded number of labels."""
        for number in range(MAX_TOPICS + 2):
            self.broker.log.createTopic(f"topic{number}", 2, {})
        (partition,) = self.events.partitions
        partition.sizeBytes = 5000
        self.look()
        self.assertEqual(
            (self.sensors["LogUsedBytes"], self.sensors["LogFreeBytes"], self.sensors["LogDiskBytes"]),
            (5000, 60 << 30, 100 << 30),
        )
        self.assertEqual(
            (self.sensors["Topics"], self.sensors["Partitions"]), (MAX_TOPICS + 3, 1 + 2 * (MAX_TOPICS + 2))
        )
        rows = dict(self.sensors.families["TopicBytes"].read(self.clock.seconds()))
        self.assertEqual((rows[("events",)], rows[(OTHER_TOPICS,)]), (5000, 0))
        self.assertEqual(len(rows), MAX_TOPICS + 1)

    def test_rarely(self) -> None:
        """The file system is asked now and then, however often the document is."""
        for _ in range(10):
            self.look()
        self.assertEqual(self.asked, 2)
        self.clock.advance(DISK_SECONDS)
        self.look()
        self.assertEqual(self.asked, 3)

    def test_unknown(self) -> None:
        """A file system that does not answer is no reason to say nothing."""
        self.space = None
        self.assertEqual((self.look()["disk"]["freeBytes"], self.look()["disk"]["totalBytes"]), (None, None))
        self.assertTrue(isnan(self.sensors["LogFreeBytes"]))


class DocumentTests(BrokerStatusTestCase):
    """The document says how the broker is."""

    def test_idle(self) -> None:
        """All fields are there while there is no client."""
        seen = self.look()
        self.assertEqual(seen["health"], {"status": "ok", "reasons": []})
        self.assertEqual(seen["uptimeSeconds"], KEPT_SECONDS)
        self.assertEqual(seen["listeners"], ["127.0.0.1:9092"])
        self.assertEqual(
            seen["pool"], {"sizeBytes": POOL_BYTES, "usedBytes": 0, "idleBytes": 0, "isShort": False, "waiting": 0}
        )
        self.assertEqual(set(seen["muted"].values()), {0})
        self.assertEqual(seen["throttled"], {"count": 0, "throttledCount": 0, "clients": []})
        self.assertEqual(seen["connections"]["largest"], [])
        self.assertEqual(seen["groups"]["count"], 0)
        self.assertIs(seen["purgatory"]["waitMedianSeconds"], None)

    def test_requests(self) -> None:
        """Requests are counted, and so are their bytes."""
        client = self.connect()
        frame = client.frame(requestOf("Metadata", 9, topics=[]))
        client.sendBytes(frame)
        client.receive()
        seen = self.look()["requests"]
        self.assertEqual(seen["read"], 1)
        self.assertEqual(self.look()["traffic"]["inBytes"], len(frame) - LENGTH_BYTES)

    def test_sensors(self) -> None:
        """What no other sensor tells is published."""
        self.overdraw(self.connect())
        self.clock.advance(KEPT_SECONDS)
        for name, value in (
            ("ConnectionsRefused", 0),
            ("ClientsThrottled", 1),
            ("GroupMembers", 0),
            ("RequestsRead", 1),
        ):
            self.assertEqual(self.sensors[name], value, name)
        muted = {
            labels[0]: value for labels, value in self.sensors.families["ConnectionsMuted"].read(self.clock.seconds())
        }
        self.assertEqual(muted["memory"], 0)


class ClientsTests(BrokerStatusTestCase):
    """The clients and their connections."""

    def test_throttled(self) -> None:
        """A client over its quota is shown with how much of it is used, and for a while after."""
        self.overdraw(self.connect(), 21.0)
        seen = self.look()
        (row,) = seen["throttled"]["clients"]
        self.assertEqual((row["user"], row["clientId"], row["ip"]), ("ANONYMOUS", "test", "192.0.2.1"))
        self.assertEqual((row["policy"], row["limitName"], row["limit"]), ("client-bytes", "received_byte_rate", LIMIT))
        self.assertEqual(row["entity"], {"user": None, "clientId": DEFAULT, "ip": None})
        self.assertGreater(row["usedFraction"], 1.9)
        self.assertGreater(row["delaySeconds"], 5.0)
        self.assertEqual(seen["muted"]["quota"], 1)
        self.assertEqual(seen["policies"]["client-bytes"], {"throttles": 1, "refusals": 0})
        self.clock.advance(row["delaySeconds"])
        (row,) = self.look()["throttled"]["clients"]
        self.assertEqual(row["delaySeconds"], 0.0)
        self.clock.advance(RECENTLY_SECONDS)
        self.assertEqual(self.look()["throttled"]["clients"], [])

    def test_oneClient(self) -> None:
        """Several connections of a client are one row."""
        clients = [self.connect() for _ in range(2)]
        for client in clients:
            client.produce("events", batchOf(b"x"))
        for client in clients:
            self.overdraw(client)
        (row,) = self.look()["throttled"]["clients"]
        self.assertEqual(row["connections"], 2)

    def test_hungUp(self) -> None:
        """
        A client that is throttled and hangs up is still shown and counted, until its delay is over and for a while
        after; a change of limits forgives it.
        """
        client = self.connect()
        self.overdraw(client, 21.0)
        client.disconnect()
        self.assertEqual(len(self.factory.connections), 0)
        seen = self.look()["throttled"]
        (row,) = seen["clients"]
        self.assertEqual((seen["count"], row["connections"], row["ip"]), (1, 0, "192.0.2.1"))
        self.assertEqual([each.policy for _, each in self.broker.debts.items()], ["client-bytes"])
        self.assertGreater(row["delaySeconds"], 5.0)
        self.assertEqual(self.sensors["ClientsThrottled"], 1)
        self.clock.advance(row["delaySeconds"] + RECENTLY_SECONDS)
        self.assertEqual(self.look()["throttled"], {"count": 0, "throttledCount": 0, "clients": []})
        client = self.connect()
        self.overdraw(client, 21.0)
        client.disconnect()
        self.broker.debts.limitsChanged(self.clock.seconds())
        self.assertEqual(self.look()["throttled"]["count"], 0)

    def test_fetching(self) -> None:
        """A client that is throttled for what it fetches counts, too."""
        self.broker.debts.owes("ANONYMOUS", "reader", "192.0.2.1", self.clock.seconds() + 5.0, isHeldBack=False)
        (row,) = self.look()["throttled"]["clients"]
        self.assertEqual((row["clientId"], round(row["delaySeconds"])), ("reader", 4))
        self.assertLessEqual(self.broker.debts.heldSeconds("ANONYMOUS", "reader", self.clock.seconds()), 0.0)

    def test_manyClients(self) -> None:
        """Of many clients, those are shown whose delays end last, and all are counted."""
        for number in range(MAX_CLIENTS + 2):
            connection = self.connect().protocol
            connection.clientId = f"client-{number}"
            connection.driver.throttledUntilSeconds = 100.0 + number
        seen = self.look()["throttled"]
        self.assertEqual(seen["count"], MAX_CLIENTS + 2)
        self.assertEqual(
            [each["clientId"] for each in seen["clients"]],
            [f"client-{number}" for number in range(MAX_CLIENTS + 1, 1, -1)],
        )

    def test_longNames(self) -> None:
        """A client's name may be long, and what is shown of it is not."""
        client = self.connect()
        client.protocol.clientId = "a" * 30_000
        client.protocol.driver.throttledUntilSeconds = 100.0
        seen = self.look()
        for row in (seen["throttled"]["clients"][0], seen["connections"]["largest"][0]):
            self.assertEqual(len(row["clientId"]), LONGEST_NAME)

    def test_largest(self) -> None:
        """
        Connections are shown with the memory that they hold: being open, unread bytes, requests and
        unsent responses.
        """
        idle, reading, waiting = self.connect(), self.connect(), self.connect()
        reading.sendBytes((1024).to_bytes(4, "big") + b"\0\0\0\x09 and so on")
        self.overdraw(waiting, 21.0)
        waiting.protocol.dataReceived(b"\0" * 500)
        shown = self.look()["connections"]["largest"]
        held = [each["heldBytes"] for each in shown]
        open_ = idle.protocol.heldBytes
        self.assertEqual(held, [open_ + 1024, open_ + 500, open_])
        self.assertEqual([each["requestBytes"] for each in shown], [1024, 0, 0])
        self.assertEqual([each["bufferedBytes"] for each in shown], [0, 500, 0])
        self.assertEqual([each["mutedFor"] for each in shown], [[], ["quota"], []])
        self.assertGreaterEqual(shown[1]["mutedSeconds"], KEPT_SECONDS)

    def test_unsent(self) -> None:
        """A response that its client does not take counts as that connection's."""
        self.store(self.events.partitions[0], b"x" * 300_000)
        client = self.connect()
        client.transport.isTaking = False
        client.send("Fetch", 12, **fetchFields(self.events, 0))
        (row,) = self.look()["connections"]["largest"]
        self.assertGreater(row["unsentBytes"], 200_000)
        self.assertEqual(row["heldBytes"], client.protocol.heldBytes)


class GroupsTests(SynchronousTestCase):
    """The groups and their lag."""

    def group(self, name: str, *lags: int, members: int = 0) -> Group:
        """A group that has this lag in as many partitions."""
        group = Group(name, 1, GroupTotals(), 0.0)
        for index, lag in enumerate(lags):
            partition = Partition("events", index, index)
            partition.highWatermark = 100
            group.setOffset(partition, Offset(100 - lag, -1, "", 0.0))
        group.members = {str(number): None for number in range(members)}  # type: ignore[misc]
        return group

    def test_lag(self) -> None:
        """Lag is what lies between what was committed and the end of the log; where that was cut off, there is none."""
        self.assertEqual(lagOf(self.group("readers", 5, 0, 7)), 12)
        self.assertEqual(lagOf(self.group("readers", -3, 1)), 1)

    def test_noLag(self) -> None:
        """
        A group that has not committed anything has no lag that could be known; a topic that is gone
        does not count.
        """
        self.assertIs(lagOf(self.group("readers")), None)
        group = self.group("readers", 5, 6)
        next(iter(group.offsets)).deleted = True
        self.assertEqual(lagOf(group), 6)

    def test_fields(self) -> None:
        """States, members and lag are counted; those come first that lag most."""
        stable = self.group("stable", 5, members=2)
        stable.state = State.STABLE
        seen = groupsFields([stable, self.group("none"), self.group("far", 50)])
        self.assertEqual((seen["count"], seen["memberCount"], seen["lagRecords"]), (3, 2, 55))
        self.assertEqual(seen["states"], {"Empty": 2, "PreparingRebalance": 0, "CompletingRebalance": 0, "Stable": 1})
        self.assertEqual(
            [(each["groupId"], each["lagRecords"]) for each in seen["groups"]],
            [("far", 50), ("stable", 5), ("none", None)],
        )

    def test_bounds(self) -> None:
        """Rows are bounded, and so are the offsets that are looked at; further groups are counted."""
        self.patch(statussections, "MAX_OFFSETS", 3)
        seen = groupsFields([self.group("two", 1, 1), self.group("three", 1, 1, 1), self.group("one", 1)])
        self.assertEqual((seen["uncountedGroups"], seen["lagRecords"]), (1, 3))
        seen = groupsFields([self.group(str(number)) for number in range(MAX_GROUPS + 5)])
        self.assertEqual((seen["count"], len(seen["groups"])), (MAX_GROUPS + 5, MAX_GROUPS))


class HealthTests(BrokerStatusTestCase):
    """Health says what is wrong."""

    def assertReason(self, *words: str) -> None:
        """There is one reason, in which these words are."""
        (reason,) = self.document.reasons
        for each in words:
            self.assertIn(each, reason)

    def test_shortage(self) -> None:
        """
        Memory may be short for a while; when it is for long, the reason says how many wait, until
        there is some again.
        """
        self.exhaustReserve()
        lease = self.pool.tryAllocate(LARGEST_BYTES)
        charge = self.pool.charge(self.pool.availableBytes, "test")
        client = self.connect()
        client.deliver("Produce", 9, **produceFields("events", batchOf(b"1")))
        self.clock.advance(SHORTAGE_SECONDS - 0.1)
        self.assertEqual(self.document.reasons, [])
        self.clock.advance(0.1)
        self.assertReason("for 30 s", "1 connections wait", "queued.max.request.bytes")
        assert lease is not None
        lease.release()
        charge.release()
        self.clock.advance(0)
        self.assertEqual(self.document.reasons, [])
        client.receive()

    def test_draining(self) -> None:
        """A broker that is being stopped says how many it still waits for."""
        self.connect()
        self.status.isDraining = True
        self.assertReason("being stopped", "1 connections")

    def test_logNotWritable(self) -> None:
        """
        A log that cannot be written to is a reason, until it can, or until nobody has tried for a minute: else nobody
        would be sent here to try.
        """
        client = self.connect()
        self.failCommits(storageError(errno.ENOSPC))
        client.produce("events", batchOf(b"1"))
        self.assertReason("the log cannot be written to", "full")
        self.clock.advance(60.0)
        self.assertEqual(self.document.reasons, [])
        client.produce("events", batchOf(b"1"))
        self.assertReason("the log cannot be written to")
        self.failCommits(None)
        self.clock.advance(10.0)
        client.produce("events", batchOf(b"1"))
        self.assertEqual(self.document.reasons, [])
        self.logged.clear()


class OptionsTests(StatusTestCase):
    """C{--status} opens the port."""

    def parse(self, *arguments: str) -> Options:
        """Parse a command line of C{twistd admission}."""
        options = Options()
        options.parseOptions([*arguments, "--set", "queued.max.request.bytes=128MiB"])
        return options

    def test_names(self) -> None:
        """The port goes by the names that clients are told, and by that of the machine."""
        options = self.parse("--advertise", "kafka.example:9092", "--status", "tcp:9090")
        config = BrokerConfig(
            options["settings"], options["listeners"], "data", statusListener=options["statusListener"]
        )
        service = BrokerService(self.clock, config)
        assert service._statusPort is not None
        service._statusPort.serve(self.root)
        self.site = service._statusPort.site
        for host in ("kafka.example:9090", gethostname()):
            self.assertEqual(self.get("/quotas", host=host).code, 200, host)
        self.assertEqual(self.get("/quotas", host="evil.example").code, 403)

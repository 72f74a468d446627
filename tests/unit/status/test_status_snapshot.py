"""
Tests for L{admission.status.snapshot} and what it consists of.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from admission.control import AdmissionControl
from admission.interfaces import DEFAULT, QuotaEntity
from admission.kafka.broker.groups.groupstate import Group, GroupTotals, Offset, State
from admission.kafka.broker.log.interface import Partition
from admission.metrics.process import ProcessUsage
from admission.metrics.registry import SensorRegistry
from admission.quotas.meters import Windows
from admission.status import groups as groupsModule
from admission.status.clients import MAX_CLIENTS, MAX_CONNECTIONS, RECENTLY_SECONDS
from admission.status.groups import MAX_GROUPS, groupsFields, lagOf
from admission.status.health import Health
from admission.status.numbers import LONGEST_NAME
from admission.status.snapshot import KEPT_SECONDS, Snapshot
from admission_plugins.clientquota import ClientBytes
from tests.kit.brokerfixture import LARGEST_BYTES, POOL_BYTES, BrokerTestCase, Client, batchOf, fetchFields, requestOf

LIMIT = 1000.0
LENGTH_BYTES = 4


class SnapshotTestCase(BrokerTestCase):
    """
    A broker with a quota, and a snapshot of it.
    """

    def setUp(self) -> None:
        """
        Make them.
        """
        super().setUp()
        self.policy = ClientBytes(Windows(11, 1.0))
        shadow = ClientBytes(Windows(11, 1.0), isShadow=True)
        self.control = AdmissionControl([("client-bytes", self.policy), ("trial", shadow)], 20.0)
        self.control.configure(QuotaEntity(clientId=DEFAULT), {"producer_byte_rate": LIMIT}, self.clock.seconds())
        shadow.configure(QuotaEntity(clientId=DEFAULT), {"producer_byte_rate": 1.0}, self.clock.seconds())
        self.broker.control = self.control
        self.sensors = SensorRegistry(self.clock.seconds)
        self.health = Health(self.gate, self.clock.seconds, list, lambda: len(self.factory.connections))
        self.snapshot = Snapshot(
            self.broker,
            self.factory,
            self.health,
            ProcessUsage(),
            lambda: ["127.0.0.1:9092"],
            self.clock.seconds,
        )
        self.control.addSensors(self.sensors)
        self.snapshot.addSensors(self.sensors)
        self.events = self.topic()

    def look(self) -> Any:
        """
        How it is now, as whoever asks the port would read it.
        """
        self.clock.advance(KEPT_SECONDS)
        return json.loads(self.snapshot.text)

    def overdraw(self, client: Client, factor: float = 11.0) -> None:
        """
        Have a client take more than its limit; by default it is throttled for a second.
        """
        client.produce("events", batchOf(b"x" * int(factor * LIMIT)))


class SnapshotTests(SnapshotTestCase):
    """
    A snapshot tells how the broker is.
    """

    def test_idle(self) -> None:
        """
        Of a broker that nobody uses, everything is there all the same.
        """
        seen = self.look()
        self.assertEqual(seen["health"], {"status": "ok", "reasons": []})
        self.assertEqual(seen["uptimeSeconds"], KEPT_SECONDS)
        self.assertEqual(seen["listeners"], ["127.0.0.1:9092"])
        self.assertEqual(
            seen["pool"], {"sizeBytes": POOL_BYTES, "usedBytes": 0, "idleBytes": 0, "isShort": False, "waiting": 0}
        )
        self.assertEqual(set(seen["muted"].values()), {0})
        self.assertEqual(seen["throttled"], {"count": 0, "clients": []})
        self.assertEqual(seen["connections"]["largest"], [])
        self.assertEqual(seen["groups"]["count"], 0)
        self.assertIs(seen["purgatory"]["waitMedianSeconds"], None)

    def test_keptForASecond(self) -> None:
        """
        However many ask, the broker is looked at once in a second.
        """
        self.look()
        self.connect()
        self.clock.advance(KEPT_SECONDS / 2)
        self.assertEqual(json.loads(self.snapshot.text)["connections"]["open"], 0)
        self.assertIs(self.snapshot.fields, self.snapshot.fields)
        self.assertIs(self.snapshot.text, self.snapshot.text)
        self.clock.advance(KEPT_SECONDS / 2)
        self.assertEqual(json.loads(self.snapshot.text)["connections"]["open"], 1)

    def test_requests(self) -> None:
        """
        Requests are counted, and so are their bytes.
        """
        client = self.connect()
        frame = client.frame(requestOf("Metadata", 9, topics=[]))
        client.sendBytes(frame)
        client.receive()
        seen = self.look()["requests"]
        self.assertEqual((seen["read"], seen["readBytes"]), (1, len(frame) - LENGTH_BYTES))

    def test_unhealthy(self) -> None:
        """
        What is wrong is in it.
        """
        self.health.isDraining = True
        self.assertEqual(self.look()["health"]["status"], "unavailable")
        self.assertIn("being stopped", self.look()["health"]["reasons"][0])

    def test_unboundedPool(self) -> None:
        """
        A pool without a bound has none to show.
        """
        self.patch(self.pool, "sizeBytes", 2**63 - 1)
        self.assertIs(self.look()["pool"]["sizeBytes"], None)

    def test_shortPool(self) -> None:
        """
        Who waits for memory is counted.
        """
        lease = self.pool.tryAllocate(LARGEST_BYTES)
        charge = self.pool.charge(self.pool.availableBytes, "test")
        client = self.connect()
        client.send("Metadata", 9, topics=[])
        seen = self.look()
        self.assertEqual((seen["pool"]["isShort"], seen["pool"]["waiting"], seen["muted"]["memory"]), (True, 1, 1))
        assert lease is not None
        lease.release()
        charge.release()
        self.clock.advance(0)
        client.receive()

    def test_sensors(self) -> None:
        """
        What no other sensor tells is published.
        """
        client = self.connect()
        self.overdraw(client)
        self.clock.advance(KEPT_SECONDS)
        for name, value in (
            ("Connections", 1),
            ("ConnectionsAllowed", 10_000),
            ("ConnectionsRefused", 0),
            ("ClientsThrottled", 1),
            ("GroupMembers", 0),
            ("Healthy", 1),
            ("MemoryPoolSize", POOL_BYTES),
            ("RequestsRead", 1),
            ("UptimeSeconds", KEPT_SECONDS),
        ):
            self.assertEqual(self.sensors[name], value, name)
        muted = {
            labels[0]: value for labels, value in self.sensors.families["ConnectionsMuted"].read(self.clock.seconds())
        }
        self.assertEqual(muted["memory"], 0)


class ClientsTests(SnapshotTestCase):
    """
    The clients and their connections.
    """

    def test_throttled(self) -> None:
        """
        A client over its quota is shown with how much of it is used, and for a while after.
        """
        client = self.connect()
        self.overdraw(client, 21.0)
        seen = self.look()
        (row,) = seen["throttled"]["clients"]
        self.assertEqual((row["user"], row["clientId"], row["ip"]), ("ANONYMOUS", "test", "192.0.2.1"))
        self.assertEqual((row["policy"], row["limitName"], row["limit"]), ("client-bytes", "producer_byte_rate", LIMIT))
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
        """
        Several connections of a client are one row.
        """
        for _ in range(2):
            self.overdraw(self.connect())
        (row,) = self.look()["throttled"]["clients"]
        self.assertEqual(row["connections"], 2)

    def test_noLimitAnyMore(self) -> None:
        """
        A client may be shown whose limit is gone.
        """
        self.overdraw(self.connect())
        self.control.configure(QuotaEntity(clientId=DEFAULT), {"producer_byte_rate": None}, self.clock.seconds())
        (row,) = self.look()["throttled"]["clients"]
        self.assertEqual((row["limitName"], row["usedFraction"]), (None, None))

    def test_manyClients(self) -> None:
        """
        Of many clients, those are shown whose delays end last, and all are counted.
        """
        for number in range(MAX_CLIENTS + 2):
            connection = self.connect().protocol
            connection.clientId = f"client-{number}"
            connection.throttledUntilSeconds = 100.0 + number
        seen = self.look()["throttled"]
        self.assertEqual(seen["count"], MAX_CLIENTS + 2)
        self.assertEqual(
            [each["clientId"] for each in seen["clients"]],
            [f"client-{number}" for number in range(MAX_CLIENTS + 1, 1, -1)],
        )

    def test_longNames(self) -> None:
        """
        A client's name may be long, and what is shown of it is not.
        """
        client = self.connect()
        client.protocol.clientId = "a" * 30_000
        client.protocol.throttledUntilSeconds = 100.0
        seen = self.look()
        for row in (seen["throttled"]["clients"][0], seen["connections"]["largest"][0]):
            self.assertEqual(len(row["clientId"]), LONGEST_NAME)

    def test_largest(self) -> None:
        """
        Connections are shown with the memory that they hold: being open, unread bytes, requests and unsent responses.
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
        """
        A response that its client does not take counts as that connection's.
        """
        self.store(self.events.partitions[0], b"x" * 300_000)
        client = self.connect()
        client.transport.isTaking = False
        client.send("Fetch", 12, **fetchFields(self.events, 0))
        (row,) = self.look()["connections"]["largest"]
        self.assertGreater(row["unsentBytes"], 200_000)
        self.assertEqual(row["heldBytes"], client.protocol.heldBytes)

    def test_manyConnections(self) -> None:
        """
        Of many connections, some are shown, and all are counted.
        """
        for _ in range(MAX_CONNECTIONS + 1):
            self.connect()
        seen = self.look()["connections"]
        self.assertEqual((seen["open"], len(seen["largest"])), (MAX_CONNECTIONS + 1, MAX_CONNECTIONS))


class GroupsTests(SynchronousTestCase):
    """
    The groups and their lag.
    """

    def group(self, name: str, *lags: int, members: int = 0) -> Group:
        """
        A group that has this lag in as many partitions.
        """
        group = Group(name, 1, GroupTotals(), 0.0)
        for index, lag in enumerate(lags):
            partition = Partition("events", index, index)
            partition.highWatermark = 100
            group.setOffset(partition, Offset(100 - lag, -1, "", 0.0))
        group.members = {str(number): None for number in range(members)}  # type: ignore[misc]
        return group

    def test_lag(self) -> None:
        """
        Lag is what lies between what was committed and the end of the log; where that was cut off, there is none.
        """
        self.assertEqual(lagOf(self.group("readers", 5, 0, 7)), 12)
        self.assertEqual(lagOf(self.group("readers", -3, 1)), 1)

    def test_noLag(self) -> None:
        """
        A group that has not committed anything has no lag that could be known; a topic that is gone does not count.
        """
        self.assertIs(lagOf(self.group("readers")), None)
        group = self.group("readers", 5, 6)
        next(iter(group.offsets)).deleted = True
        self.assertEqual(lagOf(group), 6)

    def test_fields(self) -> None:
        """
        States, members and lag are counted; those come first that lag most.
        """
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
        """
        There are so many rows, and so many offsets are looked at; groups beyond that are counted.
        """
        self.patch(groupsModule, "MAX_OFFSETS", 3)
        seen = groupsFields([self.group("two", 1, 1), self.group("three", 1, 1, 1), self.group("one", 1)])
        self.assertEqual((seen["uncountedGroups"], seen["lagRecords"]), (1, 3))
        seen = groupsFields([self.group(str(number)) for number in range(MAX_GROUPS + 5)])
        self.assertEqual((seen["count"], len(seen["groups"])), (MAX_GROUPS + 5, MAX_GROUPS))

"""A broker that runs under C{twistd} is told to stop while real clients are busy with it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from tests.clients.test_confluent import settingsOf
from tests.kit.brokerfixture import batchOf
from tests.kit.brokerprocess import PATIENCE_SECONDS, BrokerProcess, isReadable, until
from tests.kit.costlyrequests import joining
from tests.kit.eagerproducer import EagerProducer
from tests.kit.faults import Busy, copiesIn
from tests.kit.libraries import confluentArguments
from tests.kit.rawclient import RawClient, fetchRequest

MIB = 1 << 20


class StoppingTestCase(SynchronousTestCase):
    """A test with a broker of its own."""

    def start(self, *options: str) -> BrokerProcess:
        """Start it; nothing of it is left when the test ends."""
        return BrokerProcess(*options).startedFor(self)

    def assertStopped(self, broker: BrokerProcess) -> None:
        """It has ended in order."""
        self.assertEqual(broker.process.wait(PATIENCE_SECONDS), -signal.SIGTERM)
        broker.waitForLog("stopped: the log at .* is closed")
        self.assertEqual(broker.complaints(), [])


class RestartTests(StoppingTestCase):
    """A broker that is restarted on its port."""

    def test_nothingIsLost(self) -> None:
        """
        An idempotent producer and a group's consumer work through two restarts: every record that was acknowledged is
        there once, and the consumer goes on as the member that it was, where it had committed.
        """
        broker = self.start("--set", "group.initial.rebalance.delay.ms=0")
        with RawClient(broker.port) as client:
            client.createTopic("events")
        producer = EagerProducer(broker.address, "events", {"enable.idempotence": True})
        reader = Reader(broker)

        def awaitProgress() -> None:
            before = len(producer.acknowledged), len(reader.received)
            until(lambda: len(producer.acknowledged) > before[0] + 100 and len(reader.received) > before[1] + 100)

        with Busy(lambda: producer.send(10)), Busy(reader.read):
            for _ in range(2):
                awaitProgress()
                self.assertEqual(broker.stop(), -signal.SIGTERM)
                broker.start()
            awaitProgress()
        reader.close()
        self.assertEqual((producer.flush(), producer.errors), (0, []))
        stored = copiesIn(broker.port, "events")
        self.assertEqual([value for value, copies in stored.items() if len(copies) > 1], [])
        self.assertEqual(set(producer.acknowledged.values()) - set(stored), set())
        # Nobody else has joined meanwhile, so nothing changed hands.
        self.assertEqual(len(reader.assignments), 1)
        self.assertEqual(sorted(reader.received), list(range(len(reader.received))))
        broker.stop()
        self.assertStopped(broker)


class Reader:
    """
    A member of a group that commits each record that it has read.

    @ivar received: the offsets that it has read and committed.
    @ivar assignments: what it was assigned each time.
    """

    def __init__(self, broker: BrokerProcess) -> None:
        self.received: list[int] = []
        self.assignments: list[Any] = []
        settings = settingsOf(
            broker,
            group_id="readers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
        )
        self._consumer: Any = Consumer(confluentArguments(settings))
        self._consumer.subscribe(["events"], on_assign=lambda _, partitions: self.assignments.append(partitions))

    def read(self) -> None:
        """Receive some, and commit them."""
        messages = self._consumer.consume(50, 0.1)
        if messages:
            self._commit()
        self.received += [message.offset() for message in messages]

    def close(self) -> None:
        self._consumer.close()

    def _commit(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._consumer.commit(asynchronous=False)
                return
            except KafkaException as error:
                # The broker is away for a moment.
                if not error.args[0].retriable() and error.args[0].code() != KafkaError._TRANSPORT:
                    raise
                if time.monotonic() > deadline:
                    raise


class LastAnswersTests(StoppingTestCase):
    """Clients of a broker that is being stopped hear of what they have asked for."""

    def test_parked(self) -> None:
        """A fetch that would wait for a minute is answered, and so is a member that waits for others to join."""
        broker = self.start("--set", "group.initial.rebalance.delay.ms=60s", "--set", "close.grace.timeout=60s")
        with RawClient(broker.port) as fetching, RawClient(broker.port) as member:
            fetching.createTopic("events")
            fetching.send(fetchRequest("events", 0, waitMs=60_000))
            member.send(joining("readers", 3, ["range"], 30_000, 30_000))
            self._awaitTurns(broker)
            os.kill(broker.process.pid, signal.SIGTERM)
            self.assertEqual(fetching.receive(1, 12).responses[0].partitions[0].error_code, ErrorCode.none)
            self.assertEqual(member.receive(11, 3).error_code, ErrorCode.not_coordinator)
            self.assertTrue(fetching.isClosedByPeer() and member.isClosedByPeer())
            fetching.close()
            member.close()
            self.assertStopped(broker)

    def test_wholeResponse(self) -> None:
        """A client that sends on and on gets its last response to the last byte, not a connection that is reset."""
        broker = self.start("--set", "message.max.bytes=32MiB", "--set", "fetch.max.bytes=32MiB")
        with RawClient(broker.port, receiveBufferBytes=1 << 16) as client:
            client.createTopic("events")
            batch = batchOf(bytes(16 * MIB))
            client.produce("events", batch)
            client.send(fetchRequest("events", 0))
            isReadable(client.socket, PATIENCE_SECONDS)
            os.kill(broker.process.pid, signal.SIGTERM)
            broker.waitForLog("stopping: 1 connections")
            pipelined = fetchRequest("events", 0)
            received, expectedBytes = bytearray(), len(batch)
            while len(received) < expectedBytes:
                chunk = client.socket.recv(1 << 16)
                self.assertNotEqual(chunk, b"")
                received += chunk
                client.send(pipelined)
            while chunk := client.socket.recv(1 << 16):
                received += chunk
            self.assertEqual(int.from_bytes(received[:4], "big") + 4, len(received))
        self.assertStopped(broker)

    def test_secondSignal(self) -> None:
        """
        A client that does not take its response can have its grace period; told to stop again, the broker ends
        without it.
        """
        broker = self.start(
            *("--set", "close.grace.timeout=1h", "--set", "response.send.timeout=1h"),
            *("--set", "message.max.bytes=32MiB", "--set", "fetch.max.bytes=32MiB"),
        )
        with RawClient(broker.port, receiveBufferBytes=1 << 16) as client:
            client.createTopic("events")
            client.produce("events", batchOf(bytes(16 * MIB)))
            client.send(fetchRequest("events", 0))
            isReadable(client.socket, PATIENCE_SECONDS)
            os.kill(broker.process.pid, signal.SIGTERM)
            broker.waitForLog("stopping: 1 connections end after their last response, within 1h")
            self.assertTrue(broker.isRunning())
            os.kill(broker.process.pid, signal.SIGTERM)
            broker.waitForLog("asked to stop again: 1 connections are cut off")
            self.assertStopped(broker)

    def _awaitTurns(self, broker: BrokerProcess) -> None:
        """
        Wait until all that was sent before has been read, as a client on a connection of its own is then answered
        twice.
        """
        with RawClient(broker.port) as other:
            for _ in range(2):
                other.metadata()

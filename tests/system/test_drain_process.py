"""A broker that runs under C{twistd} is told to stop while real clients are busy with it."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections import Counter
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from tests.clients.test_confluent import settingsOf
from tests.kit.brokerfixture import batchOf, requestOf
from tests.kit.brokerprocess import PATIENCE_SECONDS, BrokerProcess, until
from tests.kit.libraries import confluentArguments
from tests.kit.rawclient import RawClient, fetchRequest

MIB = 1 << 20


class StoppingTestCase(SynchronousTestCase):
    """A test with a broker of its own."""

    def start(self, *options: str) -> BrokerProcess:
        """Start it; nothing of it is left when the test ends."""
        broker = BrokerProcess(*options)
        self.addCleanup(broker.remove)
        broker.start()
        return broker

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
        acknowledged: list[bytes] = []
        failed: list[KafkaError] = []
        isOver = threading.Event()
        producing = threading.Thread(target=self._produce, args=(broker, isOver, acknowledged, failed), daemon=True)
        reading = Reading(broker, isOver)
        for thread in (producing, reading.thread):
            thread.start()
            self.addCleanup(thread.join, PATIENCE_SECONDS)
        self.addCleanup(isOver.set)
        for _ in range(2):
            before = len(acknowledged), len(reading.received)
            until(lambda: len(acknowledged) > before[0] + 100 and len(reading.received) > before[1] + 100)  # noqa: B023
            self.assertEqual(broker.stop(), -signal.SIGTERM)
            broker.start()
        before = len(acknowledged), len(reading.received)
        until(lambda: len(acknowledged) > before[0] + 100 and len(reading.received) > before[1] + 100)
        isOver.set()
        producing.join(PATIENCE_SECONDS)
        stored = self._stored(broker)
        self.assertEqual(failed, [])
        self.assertEqual([value for value, count in Counter(stored).items() if count > 1], [])
        self.assertEqual(set(acknowledged) - set(stored), set())
        reading.thread.join(PATIENCE_SECONDS)
        self.assertEqual(reading.errors, [])
        # Nobody else has joined meanwhile, so nothing changed hands.
        self.assertEqual(len(reading.assignments), 1)
        self.assertEqual(sorted(reading.received), list(range(len(reading.received))))
        self.assertStoppable(broker)

    def assertStoppable(self, broker: BrokerProcess) -> None:
        """It ends in order now."""
        broker.stop()
        self.assertStopped(broker)

    def _produce(
        self, broker: BrokerProcess, isOver: threading.Event, acknowledged: list[bytes], failed: list[KafkaError]
    ) -> None:
        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                acknowledged.append(message.value())
            else:
                failed.append(error)

        producer = Producer(confluentArguments(settingsOf(broker, enable_idempotence=True, linger_ms=1)))
        number = 0
        while not isOver.wait(0.001):
            producer.produce("events", b"%d" % number, on_delivery=delivered)
            producer.poll(0)
            number += 1
        producer.flush(PATIENCE_SECONDS)

    def _stored(self, broker: BrokerProcess) -> list[bytes]:
        values: list[bytes] = []
        consumer = Consumer(confluentArguments(settingsOf(broker, group_id="audit", auto_offset_reset="earliest")))
        with closing(consumer):
            consumer.subscribe(["events"])
            with RawClient(broker.port) as client:
                end = client.endOffset("events")
            while len(values) < end:
                message = consumer.poll(PATIENCE_SECONDS)
                assert message is not None and message.error() is None, message
                values.append(message.value())
        return values


class Reading:
    """
    A member of a group that commits each record that it has read.

    @ivar received: the offsets that it has read and committed.
    @ivar assignments: what it was assigned each time.
    @ivar errors: what it could not do.
    """

    def __init__(self, broker: BrokerProcess, isOver: threading.Event) -> None:
        self.received: list[int] = []
        self.assignments: list[Any] = []
        self.errors: list[Exception] = []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self._broker = broker
        self._isOver = isOver

    def _read(self) -> None:
        settings = settingsOf(
            self._broker,
            group_id="readers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
        )
        consumer = Consumer(confluentArguments(settings))
        consumer.subscribe(["events"], on_assign=lambda _, partitions: self.assignments.append(partitions))
        with closing(consumer):
            while not self._isOver.is_set():
                try:
                    messages = consumer.consume(50, 0.1)
                    if messages:
                        self._commit(consumer)
                    self.received += [message.offset() for message in messages]
                except Exception as error:
                    self.errors.append(error)
                    return

    def _commit(self, consumer: Any) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                consumer.commit(asynchronous=False)
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
        with RawClient(broker.port) as fetching, RawClient(broker.port) as joining:
            fetching.createTopic("events")
            fetching.send(fetchRequest("events", 0, waitMs=60_000))
            request = requestOf(
                "JoinGroup",
                3,
                group_id="readers",
                session_timeout=30_000,
                rebalance_timeout=30_000,
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": b"all"}],
            )
            joining.send(request)
            self._awaitTurns(broker)
            os.kill(broker.process.pid, signal.SIGTERM)
            self.assertEqual(fetching.receive(1, 12).responses[0].partitions[0].error_code, ErrorCode.none)
            self.assertEqual(joining.receive(11, 3).error_code, ErrorCode.not_coordinator)
            self.assertTrue(fetching.isClosedByPeer() and joining.isClosedByPeer())
            fetching.close()
            joining.close()
            self.assertStopped(broker)

    def test_wholeResponse(self) -> None:
        """A client that sends on and on gets its last response to the last byte, not a connection that is reset."""
        broker = self.start("--set", "message.max.bytes=32MiB", "--set", "fetch.max.bytes=32MiB")
        with RawClient(broker.port, receiveBufferBytes=1 << 16) as client:
            client.createTopic("events")
            batch = batchOf(bytes(16 * MIB))
            client.produce("events", batch)
            client.send(fetchRequest("events", 0))
            select.select([client.socket], [], [], PATIENCE_SECONDS)
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
            select.select([client.socket], [], [], PATIENCE_SECONDS)
            os.kill(broker.process.pid, signal.SIGTERM)
            broker.waitForLog("stopping: 1 connections end after their last response, within 1h")
            self.assertTrue(broker.isRunning())
            os.kill(broker.process.pid, signal.SIGTERM)
            broker.waitForLog("asked to stop again: 1 connections are cut off")
            self.assertStopped(broker)

    def _awaitTurns(self, broker: BrokerProcess) -> None:
        """Who is answered twice on a connection of its own was read after what had been sent by then."""
        with RawClient(broker.port) as other:
            for _ in range(2):
                other.metadata()

"""Tests for what L{admission.kafka.broker} remembers when it is killed, and how it ends when it is asked to."""

from __future__ import annotations

import signal
from contextlib import closing

from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.batches import Record, decodeRecords, encodeBatch
from tests.kit.brokerprocess import BrokerProcess, until
from tests.kit.eagerproducer import EagerProducer
from tests.kit.rawclient import RawClient, fetchRequest, tlsContext

KILLS = 3
ACKNOWLEDGED_BETWEEN_KILLS = 300
LONG_POLL_MS = 600_000


def batch(producerId: int, epoch: int, sequence: int, count: int = 3) -> bytes:
    """A batch of an idempotent producer."""
    return encodeBatch(
        [Record(value=b"%d" % number, timestampMs=1_700_000_000_000) for number in range(count)],
        producerId=producerId,
        producerEpoch=epoch,
        baseSequence=sequence,
    )


def storedValues(broker: BrokerProcess, topic: str) -> list[bytes | None]:
    """The values of all records of a topic's first partition, by offset."""
    with RawClient(broker.port) as raw:
        return [record.value for _, content in raw.batches(topic) for record in decodeRecords(content)]


class KilledTests(SynchronousTestCase):
    """What clients were told is stored is stored, and what the broker knows of producers it knows again."""

    def setUp(self) -> None:
        """Start a broker."""
        self.broker = BrokerProcess()
        self.addCleanup(self.broker.remove)
        self.broker.start()

    def restart(self) -> None:
        """Kill the broker and start another one on its data."""
        self.broker.kill()
        self.broker.start()

    def test_acknowledgedSurvives(self) -> None:
        """
        Whatever was acknowledged is where it was said to be after any number
        of kills, with C{acks=1} as with C{acks=all}; an idempotent producer
        that goes on through all of them stores each value once, in order.  No
        producer id is ever given twice.
        """
        producerIds: list[int] = []
        once = EagerProducer(self.broker.address, "once", {"enable.idempotence": True, "acks": -1})
        ordinary = EagerProducer(self.broker.address, "ordinary", {"acks": 1})
        for _ in range(KILLS):
            wanted = {each: len(each.acknowledged) + ACKNOWLEDGED_BETWEEN_KILLS for each in (once, ordinary)}

            def isAcknowledged(wanted: dict[EagerProducer, int] = wanted) -> bool:
                for each in wanted:
                    each.send(10)
                return all(len(each.acknowledged) >= count for each, count in wanted.items())

            until(isAcknowledged)
            with RawClient(self.broker.port) as raw:
                producerIds += [raw.producerId() for _ in range(5)]
            self.restart()
        with RawClient(self.broker.port) as raw:
            producerIds += [raw.producerId(), *{batch.producerId for batch, _ in raw.batches("once")}]
        self.assertEqual(len(set(producerIds)), 5 * KILLS + 2)
        for each in (once, ordinary):
            self.assertEqual((each.flush(), each.errors), (0, []))
            values = storedValues(self.broker, each.topic)
            self.assertEqual({offset: values[offset] for offset in each.acknowledged}, each.acknowledged)
        self.assertEqual(storedValues(self.broker, "once"), [b"%d" % number for number in range(once.sentCount)])
        self.assertEqual(self.broker.complaints(), [])

    def test_sequences(self) -> None:
        """
        A repeated batch gets the offset it was stored at, a gap error 45, a
        producer that was replaced error 47; all that after a kill as before.
        """
        with RawClient(self.broker.port) as raw:
            raw.createTopic("topic")
            producerId = raw.producerId()
            for sequence in range(0, 18, 3):
                self.assertEqual(raw.produce("topic", batch(producerId, 0, sequence)), (0, sequence))
            self.checkSequences(raw, producerId)
        self.restart()
        with RawClient(self.broker.port) as raw:
            self.checkSequences(raw, producerId)
            self.assertEqual(raw.produce("topic", batch(producerId, 0, 18)), (0, 18))
            self.assertEqual(raw.produce("topic", batch(producerId, 1, 5))[0], ErrorCode.out_of_order_sequence_number)
            self.assertEqual(raw.produce("topic", batch(producerId, 1, 0)), (0, 21))
        self.restart()
        with RawClient(self.broker.port) as raw:
            self.assertEqual(raw.produce("topic", batch(producerId, 0, 21))[0], ErrorCode.invalid_producer_epoch)
            self.assertEqual(raw.produce("topic", batch(producerId, 1, 0)), (0, 21))
            self.assertEqual(raw.produce("topic", batch(producerId, 1, 3)), (0, 24))
            self.assertEqual(raw.endOffset("topic"), 27)

    def checkSequences(self, raw: RawClient, producerId: int) -> None:
        """Six batches of three records have been stored: nothing else is."""
        for sequence in range(3, 18, 3):
            self.assertEqual(raw.produce("topic", batch(producerId, 0, sequence)), (0, sequence))
        for forgotten, count in ((0, 3), (3, 2), (21, 3), (19, 3)):
            refused = raw.produce("topic", batch(producerId, 0, forgotten, count))
            self.assertEqual(refused, (ErrorCode.out_of_order_sequence_number, -1))
        self.assertEqual(raw.endOffset("topic"), 18)


class TerminatedTests(SynchronousTestCase):
    """C{SIGTERM} ends the broker in order."""

    def test_sigterm(self) -> None:
        """
        The broker answers who waits, closes its connections, those that take
        no part included, ends as C{twistd} does, and leaves behind all that
        was acknowledged.
        """
        broker = BrokerProcess("--set", "close.grace.timeout=1s")
        self.addCleanup(broker.remove)
        broker.start()
        producer = EagerProducer(broker.address, "topic", {"enable.idempotence": True})
        with closing(RawClient(broker.port)) as waiting, closing(RawClient(broker.tlsPort, tlsContext())) as silent:
            waiting.createTopic("waiting")
            silent.createTopic("silent")
            waiting.send(fetchRequest("waiting", 0, waitMs=LONG_POLL_MS))

            def isProducing() -> bool:
                producer.send(10)
                return len(producer.acknowledged) > 100

            until(isProducing)
            # Twisted takes care to end a process by the signal that ended its reactor.
            self.assertEqual(broker.stop(), -signal.SIGTERM)
            self.assertEqual(waiting.receive(1, 12).responses[0].partitions[0].records, b"")
            self.assertTrue(waiting.isClosedByPeer())
        self.assertIn("Server Shut Down", broker.log())
        self.assertEqual(broker.complaints(), [])
        broker.start()
        self.assertEqual((producer.flush(), producer.errors), (0, []))
        self.assertEqual(storedValues(broker, "topic"), [b"%d" % number for number in range(producer.sentCount)])

"""
What every Kafka client must be able to do with the broker.

Each client has a module of its own, which says how it is made to produce and
to consume; the tests are the same for all.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import evolve, frozen
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from admission.kafka.wire.batches import Record, encodeBatch
from tests.kit.brokerprocess import (
    PATIENCE_SECONDS,
    BrokerProcess,
    certificates,
    sharedBroker,
    sharedMeasuredBroker,
    strangersAuthority,
)
from tests.kit.droppingproxy import DroppingProxy
from tests.kit.rawclient import RawClient, tlsContext

PARTITIONS = 3
LARGEST_BATCH_BYTES = 1048588
LONG_POLL_MS = 120_000

COMPRESSIONS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""By the number that batches have of them."""

EARLIEST = -2
LATEST = -1

_PAUSE_SECONDS = 0.005

_numbers = itertools.count()


@frozen
class Message:
    """
    A record as clients have it.

    @ivar offset: where it was found.
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestampMs: int = 1_700_000_000_000
    partition: int = 0
    offset: int = -1


@frozen
class Place:
    """
    Where the broker is.

    @ivar address: HOST:PORT.
    @ivar authority: the path of the certificate that the broker's own must be
        signed with; L{None} for no TLS.
    """

    address: str
    authority: str | None = None


@frozen
class ProducerSettings:
    """
    How to produce.

    @ivar acks: 0, 1 or -1 for all.
    @ivar batchBytes: about how large a batch may become.
    """

    acks: int = -1
    compression: str | None = None
    isIdempotent: bool = False
    batchBytes: int = 1 << 20


class ProduceFailed(Exception):
    """
    A message was not acknowledged.

    @ivar errorCode: the error of the Kafka protocol, if that is why.
    """

    def __init__(self, errorCode: int, reason: str) -> None:
        super().__init__(errorCode, reason)
        self.errorCode = errorCode


class NoConnection(Exception):
    """The client does not talk to the broker."""


def plain(broker: BrokerProcess) -> Place:
    """The broker's port for TCP."""
    return Place(broker.address)


def secure(broker: BrokerProcess) -> Place:
    """The broker's port for TLS."""
    return Place(broker.tlsAddress, str(certificates().authority))


@cache
def unreliableBroker() -> tuple[DroppingProxy, BrokerProcess]:
    """A broker whose clients are sent through a network that loses every seventh response."""
    proxy = DroppingProxy(dropEvery=7)
    broker = BrokerProcess(advertisedHost="127.0.0.1", advertisedPort=proxy.port)
    broker.start()
    proxy.start(broker.port)
    return proxy, broker


@cache
def relocatedBroker() -> BrokerProcess:
    """A broker that sends its clients to localhost, each to its own port."""
    broker = BrokerProcess("--set", f"num.partitions={PARTITIONS}", advertisedHost="localhost")
    broker.start()
    return broker


# Only a mixin at run time, or the tests of this class would be run without a client.
if TYPE_CHECKING:
    _Base = SynchronousTestCase
else:
    _Base = object


class ClientCases(_Base):
    """
    The tests.  What a client's own class must define comes first.

    @cvar missingLibraries: what it would need to compress, by what it cannot compress with here.
    @cvar unknownTopicError: what L{produceToUnknown} is expected to return.
    """

    missingLibraries: ClassVar[Mapping[str, str]] = {}
    unknownTopicError: ClassVar[str]

    def produce(self, place: Place, topic: str, messages: Sequence[Message], settings: ProducerSettings) -> list[int]:
        """
        Send all C{messages} without waiting in between, then wait.

        @return: their offsets.
        @raise ProduceFailed: if one was refused.
        """
        raise NotImplementedError

    def consume(
        self,
        place: Place,
        topic: str,
        partition: int,
        start: int,
        count: int,
        *,
        reset: str = "error",
        waitMs: int = 500,
    ) -> list[Message]:
        """
        Read at least C{count} records of a partition that is assigned by hand.

        @param start: an offset, L{EARLIEST} or L{LATEST}.
        @param reset: what to do if it is not there: C{error}, C{earliest} or C{latest}.
        @param waitMs: how long the broker may wait for records.
        """
        raise NotImplementedError

    def offsetForTime(self, place: Place, topic: str, timestampMs: int) -> int | None:
        """The first offset of partition 0 whose time is C{timestampMs} or later."""
        raise NotImplementedError

    def connect(self, place: Place) -> None:
        """
        Talk to the broker in any way.

        @raise NoConnection: if that is not possible.
        """
        raise NotImplementedError

    def produceToUnknown(self, place: Place, topic: str) -> str:
        """
        Send a message to a topic that does not exist and is not created.

        @return: the name of the client's error.
        """
        raise NotImplementedError

    # The rest is the same for all

    def setUp(self) -> None:
        """A topic of its own for each test, in a broker that all share."""
        self.broker = sharedBroker("--set", f"num.partitions={PARTITIONS}")
        self.topic = f"{type(self).__name__}.{self._testMethodName}.{next(_numbers)}"
        begin = self.broker.mark()
        self.addCleanup(lambda: self.assertEqual(self.broker.complaints(begin), []))

    def roundTrip(self, place: Place) -> None:
        """Produce to every partition and read it again."""
        messages = [
            Message(
                None if number % 6 == 3 else b"value %d" % number,
                None if number % 3 == 1 else b"key %d" % number,
                (("a", b"1"), ("b", b"\x00\xff"), ("a", b"")) if number % 2 else (),
                1_700_000_000_000 + number,
                number % PARTITIONS,
            )
            for number in range(300)
        ]
        offsets = self.produce(place, self.topic, messages, ProducerSettings())
        for partition in range(PARTITIONS):
            expected = [
                evolve(message, offset=offset)
                for message, offset in zip(messages, offsets, strict=True)
                if message.partition == partition
            ]
            self.assertEqual([message.offset for message in expected], list(range(len(expected))))
            self.assertEqual(self.consume(place, self.topic, partition, EARLIEST, len(expected)), expected)

    def test_roundTrip(self) -> None:
        """
        Keys, values, headers and times come back from every partition as they
        were sent, in order, at the offsets that were acknowledged.
        """
        self.roundTrip(plain(self.broker))

    def test_roundTripWithTLS(self) -> None:
        """The same holds through TLS with a certificate that is verified."""
        self.roundTrip(secure(self.broker))

    def test_wrongAuthority(self) -> None:
        """A client that trusts somebody else does not talk to the broker."""
        self.assertRaises(NoConnection, self.connect, Place(self.broker.tlsAddress, strangersAuthority()))
        self.connect(secure(self.broker))

    def test_acks(self) -> None:
        """Records arrive, in order, whatever acknowledgement their producer wants."""
        for place in (plain(self.broker), secure(self.broker)):
            for acks in (0, 1, -1):
                topic = f"{self.topic}.{acks}.{place.authority is not None}"
                values = [b"%d" % number for number in range(100)]
                self.produce(place, topic, [Message(value) for value in values], ProducerSettings(acks))
                received = self.consume(place, topic, 0, EARLIEST, len(values))
                self.assertEqual([message.value for message in received], values)

    def roundTripCompressed(self, compression: str) -> None:
        """Compress, see that what is stored is what was sent, and read it again."""
        if compression in self.missingLibraries:
            raise SkipTest(f"for {compression} this client needs {self.missingLibraries[compression]}")
        for place in (plain(self.broker), secure(self.broker)):
            topic = f"{self.topic}.{place.authority is not None}"
            messages = [Message(b"%d" % number * 500, b"key") for number in range(50)]
            self.produce(place, topic, messages, ProducerSettings(compression=compression))
            received = self.consume(place, topic, 0, EARLIEST, len(messages))
            self.assertEqual([evolve(message, offset=-1) for message in received], messages)
            with RawClient(self.broker.port) as raw:
                batches = [batch for batch, _ in raw.batches(topic)]
            self.assertEqual({batch.compression for batch in batches}, {COMPRESSIONS[compression]})
            self.assertLess(sum(batch.sizeBytes for batch in batches), 25_000)

    def test_gzip(self) -> None:
        """Batches compressed with gzip are stored as they are, and read again."""
        self.roundTripCompressed("gzip")

    def test_snappy(self) -> None:
        """Batches compressed with snappy are stored as they are, and read again."""
        self.roundTripCompressed("snappy")

    def test_lz4(self) -> None:
        """Batches compressed with lz4 are stored as they are, and read again."""
        self.roundTripCompressed("lz4")

    def test_zstd(self) -> None:
        """Batches compressed with zstd are stored as they are, and read again."""
        self.roundTripCompressed("zstd")

    def test_idempotence(self) -> None:
        """An idempotent producer's batches carry its id and an unbroken sequence."""
        messages = [Message(b"%d" % number) for number in range(200)]
        self.produce(plain(self.broker), self.topic, messages, ProducerSettings(isIdempotent=True, batchBytes=1000))
        with RawClient(self.broker.port) as raw:
            batches = [batch for batch, _ in raw.batches(self.topic)]
        self.assertEqual(len({batch.producerId for batch in batches}), 1)
        self.assertGreaterEqual(batches[0].producerId, 0)
        self.assertEqual([batch.baseSequence for batch in batches], [batch.baseOffset for batch in batches])
        self.assertGreater(len(batches), 1)

    def test_lostResponses(self) -> None:
        """
        When the network loses every seventh response, an idempotent producer
        still stores each message exactly once and in order; one that is not
        stores some twice.
        """
        proxy, broker = unreliableBroker()
        place = Place(f"127.0.0.1:{proxy.port}")
        values = [b"%04d" % number * 20 for number in range(500)]
        messages = [Message(value) for value in values]
        droppedBefore = proxy.droppedResponses
        once, again = f"{self.topic}.once", f"{self.topic}.again"
        self.produce(place, once, messages, ProducerSettings(isIdempotent=True, batchBytes=1000))
        self.assertGreater(proxy.droppedResponses, droppedBefore + 3)
        received = self.consume(place, once, 0, EARLIEST, len(values))
        self.assertEqual([message.value for message in received], values)
        self.produce(place, again, messages, ProducerSettings(batchBytes=1000))
        with RawClient(broker.port) as raw:
            self.assertEqual(raw.endOffset(once), len(values))
            self.assertGreater(raw.endOffset(again), len(values))
        self.assertEqual(broker.complaints(), [])

    def test_largestBatch(self) -> None:
        """
        A batch of exactly C{message.max.bytes} is stored; one byte more is
        refused with the error that says so, and what follows is stored again.
        """
        overheadBytes = len(encodeBatch([Record(value=bytes(1_000_000))])) - 1_000_000
        largest = bytes(LARGEST_BATCH_BYTES - overheadBytes)
        for place in (plain(self.broker), secure(self.broker)):
            topic = f"{self.topic}.{place.authority is not None}"
            self.assertEqual(self.produce(place, topic, [Message(largest)], ProducerSettings()), [0])
            failure = self.assertRaises(
                ProduceFailed, self.produce, place, topic, [Message(largest + b"x")], ProducerSettings()
            )
            self.assertEqual(failure.errorCode, ErrorCode.message_too_large)
            self.assertEqual(self.produce(place, topic, [Message(b"small")], ProducerSettings()), [1])
            received = self.consume(place, topic, 0, EARLIEST, 2)
            self.assertEqual([message.value for message in received], [largest, b"small"])
            with RawClient(self.broker.port) as raw:
                self.assertEqual(raw.batches(topic)[0][0].sizeBytes, LARGEST_BATCH_BYTES)

    def test_topicsAreNotCreated(self) -> None:
        """
        Where automatic creation is off, producing to a topic that is not there
        fails with an error of the client's, and makes none.
        """
        broker = sharedBroker("--set", "auto.create.topics.enable=false")
        error = self.produceToUnknown(plain(broker), self.topic)
        self.assertEqual(error, self.unknownTopicError)
        with RawClient(broker.port) as raw:
            self.assertRaisesRegex(AssertionError, "unknown_topic_or_partition", raw.createTopic, self.topic)

    def test_offsetsForTimes(self) -> None:
        """Offsets are found by time."""
        place = plain(self.broker)
        messages = [Message(b"%d" % number, timestampMs=1_700_000_000_000 + 100 * number) for number in range(20)]
        self.produce(place, self.topic, messages, ProducerSettings())
        for timestampMs, offset in (
            (1_600_000_000_000, 0),
            (1_700_000_000_000, 0),
            (1_700_000_000_001, 1),
            (1_700_000_001_000, 10),
            (1_700_000_001_900, 19),
            (1_700_000_001_901, None),
        ):
            self.assertEqual(self.offsetForTime(place, self.topic, timestampMs), offset)

    def test_start(self) -> None:
        """
        A consumer starts where it is told to; where there is nothing, it
        begins again at the earliest record if it is told that.
        """
        place = plain(self.broker)
        self.produce(place, self.topic, [Message(b"%d" % number) for number in range(50)], ProducerSettings())
        for start, reset, first in ((0, "error", 0), (37, "error", 37), (EARLIEST, "error", 0), (10**9, "earliest", 0)):
            received = self.consume(place, self.topic, 0, start, 50 - first, reset=reset)
            self.assertEqual([message.offset for message in received], list(range(first, 50)))

    def test_severalConsumers(self) -> None:
        """Consumers of the same partition all get all of it at the same time."""
        place = plain(self.broker)
        values = [b"%d" % number * 100 for number in range(500)]
        self.produce(place, self.topic, [Message(value) for value in values], ProducerSettings(batchBytes=5000))
        with ThreadPoolExecutor() as threads:
            consuming = [threads.submit(self.consume, place, self.topic, 0, EARLIEST, len(values)) for _ in range(4)]
            for each in consuming:
                self.assertEqual([message.value for message in each.result(PATIENCE_SECONDS)], values)

    def test_longPoll(self) -> None:
        """A consumer that waits at the end gets the next record when it arrives, long before its time is up."""
        broker = sharedMeasuredBroker()
        place = plain(broker)
        self.produce(place, self.topic, [Message(b"before")], ProducerSettings())
        with ThreadPoolExecutor() as threads:
            consuming = threads.submit(self.consume, place, self.topic, 0, LATEST, 1, waitMs=LONG_POLL_MS)
            broker.waitUntil(lambda report: report["sensors"]["RequestPurgatorySize"] > 0)
            self.produce(place, self.topic, [Message(b"after")], ProducerSettings())
            self.assertEqual([message.value for message in consuming.result(PATIENCE_SECONDS)], [b"after"])
        broker.waitUntilWhole()

    def test_advertisedAddresses(self) -> None:
        """With two listeners each client is told the address that goes with its own, and finds its way back."""
        broker = relocatedBroker()
        for port, tls in ((broker.port, None), (broker.tlsPort, tlsContext())):
            with RawClient(port, tls) as raw:
                self.assertEqual(raw.brokers(), [("localhost", port)])
        self.roundTrip(plain(broker))
        self.topic += ".tls"
        self.roundTrip(secure(broker))
        self.assertEqual(broker.complaints(), [])


def until(condition: Callable[[], Any]) -> None:
    """
    Call C{condition} again and again until it returns something true.

    @raise AssertionError: if it never does.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{condition} never came true")
        time.sleep(_PAUSE_SECONDS)

"""
What clients can do wrong, by accident or on purpose, to a real broker: it says
why in words, serves everybody else, and gives back all memory.
"""

from __future__ import annotations

import itertools
import re
import ssl
import struct
from contextlib import ExitStack
from dataclasses import fields

from attrs import frozen
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.batches import Record, encodeBatch
from admission.kafka.wire.versions import APIS, METADATA, PRODUCE
from tests.kit.brokerfixture import framed, requestFrame, requestOf
from tests.kit.brokerprocess import BrokerProcess, sharedMeasuredBroker
from tests.kit.rawclient import RawClient, fetchRequest, produceRequest, rawRequest, tlsContext

MIB = 1 << 20
POOL_BYTES = 16 * MIB
LARGEST_BYTES = 2 * MIB
SILENT_CONNECTIONS = 200
LONG_POLL_MS = 600_000

_LIMITS = [
    word
    for setting in (
        f"queued.max.request.bytes={POOL_BYTES}",
        f"socket.request.max.bytes={LARGEST_BYTES}",
        "request.receive.timeout=1s",
        "close.grace.timeout=1s",
        # The log is told of so many refusals between two looks for idle connections, which come the more often.
        "connections.max.idle.ms=10s",
    )
    for word in ("--set", setting)
]

_numbers = itertools.count()


@frozen
class Attack:
    """
    Bytes that end their connection.

    @ivar sent: the bytes.
    @ivar words: what the log says of them, as a regular expression.
    """

    sent: bytes
    words: str


def _header(apiKey: int, apiVersion: int, clientId: bytes) -> bytes:
    return framed(struct.pack(">hhi", apiKey, apiVersion, 1) + clientId)


ATTACKS = {
    "an oversize request": Attack(
        struct.pack(">i", LARGEST_BYTES + 1),
        rf"a request of {LARGEST_BYTES + 1} bytes was announced, and {LARGEST_BYTES} are allowed",
    ),
    "a request that is large for its kind": Attack(
        struct.pack(">ihh", MIB + 1, METADATA, 12),
        rf"a Metadata request of {MIB + 1} bytes was announced, and {MIB} are allowed",
    ),
    "the largest length": Attack(b"\x7f\xff\xff\xff", "a request of 2147483647 bytes was announced"),
    "a negative length": Attack(b"\xff\xff\xff\xff", "a frame of -1 bytes was announced"),
    "the least length": Attack(b"\x80\x00\x00\x00", "a frame of -2147483648 bytes was announced"),
    "an empty frame": Attack(framed(b""), "a request of 0 bytes ends within its header"),
    "a short frame": Attack(framed(b"\x00\x03\x00"), "a request of 3 bytes ends within its header"),
    "an API that is unknown": Attack(rawRequest(999, 0, b""), "API key 999, which is not served"),
    "an API that is negative": Attack(rawRequest(-1, 0, b""), "API key -1, which is not served"),
    "a version of the future": Attack(rawRequest(METADATA, 99, b""), "it sent Metadata in version 99"),
    "a negative version": Attack(rawRequest(METADATA, -1, b""), "it sent Metadata in version -1"),
    "a version that is only advertised": Attack(rawRequest(PRODUCE, 2, bytes(10)), "it sent Produce in version 2"),
    "a client id of negative length": Attack(_header(METADATA, 1, b"\xff\xfe"), "says that its client id has -2 bytes"),
    "a client id without an end": Attack(_header(METADATA, 1, b"\x7f\xffraw"), "ends within its header"),
    "a client id that is no text": Attack(_header(METADATA, 1, b"\x00\x01\xff"), "is not UTF-8"),
    "a frame of 21 bytes that would abort the process": Attack(
        framed(struct.pack(">hhih", METADATA, 12, 1, -1) + b"\x00" + b"\xff\xff\xff\xff\x7f" + b"\x00"),
        "topics announces 34359738366 elements",
    ),
    "more elements than are allowed": Attack(
        rawRequest(METADATA, 1, struct.pack(">i", 60_000) + 60_000 * b"\x00\x01a"),
        "topics announces 60000 elements with .* and 20000 elements allowed",
    ),
    "a request over HTTP": Attack(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", "it looks like an HTTP request"),
    "a body that never arrives": Attack(
        struct.pack(">ihh", 1000, METADATA, 1), r"4 of the 1000 bytes of its request have come, and for 1 s hardly any"
    ),
    "a large body that never arrives": Attack(
        struct.pack(">ihh", LARGEST_BYTES, PRODUCE, 9), rf"4 of the {LARGEST_BYTES} bytes of its request have come"
    ),
    "records for nobody to refuse": Attack(
        requestFrame(produceRequest("hostile", b"nonsense", acks=0), 1), "was refused, and it wants no response"
    ),
}
"""By what they are."""


def batch(**header: int) -> bytearray:
    """A good batch, to be made bad."""
    return bytearray(encodeBatch([Record(value=b"value")] * 3, **header))


def corrupt() -> bytes:
    """A batch with another checksum; L{tests.unit.kafka.broker.api.test_produceapi} has all that can be wrong."""
    made = batch()
    made[-1] ^= 1
    return bytes(made)


class HostileCases(SynchronousTestCase):
    """A broker with narrow limits, and a client that behaves and must not notice anything."""

    broker: BrokerProcess

    def useBroker(self, broker: BrokerProcess) -> None:
        """Begin: from here on nothing may go wrong with C{broker}."""
        self.broker = broker
        self.begin = broker.mark()
        self.bystander = RawClient(broker.port)
        self.addCleanup(self.bystander.close)
        self.topic = f"{type(self).__name__}.{self._testMethodName}.{next(_numbers)}"
        self.bystander.createTopic(self.topic)
        self.served = 0

    def assertUndisturbed(self) -> None:
        """The bystander is served, and the log is free of tracebacks."""
        self.assertEqual(self.bystander.produce(self.topic, bytes(batch())), (0, 3 * self.served))
        self.served += 1
        self.assertEqual(len(self.bystander.batches(self.topic)), self.served)
        self.assertEqual(self.broker.complaints(self.begin), [])

    def assertRefused(self, attack: Attack, tls: ssl.SSLContext | None = None) -> None:
        """The attack gets its connection closed, and the log says why."""
        words = re.compile(attack.words)
        line = ""
        # Of many refusals in a short time the log tells only the number.  Then the next one is told again.
        while not words.search(line):
            begin = self.broker.mark()
            with RawClient(self.broker.port if tls is None else self.broker.tlsPort, tls) as client:
                client.sendBytes(attack.sent)
                self.assertTrue(client.isClosedByPeer(), attack)
            line = self.broker.waitForLog(
                f"{attack.words}|closed [0-9]+ more connections of .* for such reasons", begin
            )


class RefusedTests(HostileCases):
    """What C{twistd admission} refuses, and in which words."""

    def setUp(self) -> None:
        """Share a broker."""
        self.useBroker(sharedMeasuredBroker(*_LIMITS))

    def test_garbage(self) -> None:
        """A body of garbage closes the connection, in every version of every API that has one."""
        for api in APIS:
            for apiVersion in range(api.minVersion, api.maxVersion + 1):
                if not api.isFlexible(apiVersion) and not fields(load_request_schema(api.apiKey, apiVersion)):
                    # Without a body there is none to spoil.
                    continue
                self.assertRefused(
                    Attack(rawRequest(api.apiKey, apiVersion, b"\x7f" * 100), "it sent a request that cannot be read: ")
                )
            # Each time: all of them may take longer than a connection may be idle.
            self.assertUndisturbed()

    def test_tlsHello(self) -> None:
        """TLS on a port without it is closed, and recognised."""
        self.assertRaises((ssl.SSLError, ConnectionError), RawClient, self.broker.port, tlsContext(), host="127.0.0.8")
        self.broker.waitForLog("it looks like a TLS handshake on a port that has no TLS", self.begin)
        self.assertUndisturbed()

    def test_plaintextForTLS(self) -> None:
        """Plaintext on a port for TLS is closed, and the log says that TLS failed."""
        for sent in (requestFrame(requestOf("Metadata", 12, topics=None), 1), b"GET / HTTP/1.1\r\n\r\n"):
            begin = self.broker.mark()
            # The log says only so much of one address in ten seconds, and other tests have theirs.
            with RawClient(self.broker.tlsPort, host="127.0.0.7") as client:
                client.sendBytes(sent)
                self.assertTrue(client.isClosedByPeer())
            self.broker.waitForLog("TLS failed: ", begin)
        self.assertUndisturbed()

    def test_attacksThroughTLS(self) -> None:
        """What is refused without TLS is refused with it."""
        for name in ("a negative length", "an oversize request", "a version of the future", "an empty frame"):
            self.assertRefused(ATTACKS[name], tlsContext())
        self.assertUndisturbed()

    def test_pipelinedHalfBad(self) -> None:
        """
        Of many requests sent at once each gets its own answer, in order, the
        bad ones an error; the first that cannot be answered ends it.
        """
        good, bad = bytes(batch()), corrupt()
        with RawClient(self.broker.port) as client:
            client.createTopic(f"{self.topic}.pipelined")
            requests = [
                requestFrame(produceRequest(f"{self.topic}.pipelined", bad if number % 2 else good), number)
                for number in range(100)
            ]
            client.sendBytes(b"".join([*requests, ATTACKS["an empty frame"].sent, *requests]))
            for number in range(100):
                answer = client.receive(PRODUCE, 9, number)
                result = answer.responses[0].partition_responses[0]
                expected = (ErrorCode.corrupt_message, -1) if number % 2 else (ErrorCode.none, 3 * number // 2)
                self.assertEqual((result.error_code, result.base_offset), expected)
            self.assertTrue(client.isClosedByPeer())
        self.assertEqual(self.bystander.endOffset(f"{self.topic}.pipelined"), 150)
        self.assertUndisturbed()


class PoolTests(HostileCases):
    """Whatever clients do, the memory comes back."""

    def setUp(self) -> None:
        """Share a broker that tells what it holds."""
        self.measured = sharedMeasuredBroker(*_LIMITS)
        self.measured.waitUntilWhole()
        self.useBroker(self.measured)

    def assertWhole(self) -> None:
        """The broker has served everybody; when the last one goes it holds nothing."""
        self.assertUndisturbed()
        self.bystander.close()
        self.measured.waitUntilWhole()
        self.assertEqual(self.measured.report()["reclaimedLeases"], 0)
        self.assertTrue(self.measured.isRunning())

    def test_closed(self) -> None:
        """
        What cannot be answered closes the connection, for a reason that is in the log, and disturbs nobody; refusing
        costs nothing.
        """
        for attack in ATTACKS.values():
            self.assertRefused(attack)
            self.assertUndisturbed()
        with RawClient(self.broker.port) as client:
            self.assertEqual(client.produce(self.topic, corrupt()), (ErrorCode.corrupt_message, -1))
        self.assertRaises((ssl.SSLError, ConnectionError), RawClient, self.broker.port, tlsContext(), host="127.0.0.8")
        with RawClient(self.broker.tlsPort) as client:
            client.sendBytes(ATTACKS["a request over HTTP"].sent)
            self.assertTrue(client.isClosedByPeer())
        self.assertWhole()

    def test_truncatedThenClosed(self) -> None:
        """A request that breaks off is forgotten at every point of it, whether the client says farewell or not."""
        request = requestFrame(produceRequest(self.topic, bytes(batch())), 1)
        for cut in range(1, len(request), 7):
            with RawClient(self.broker.port) as client:
                client.sendBytes(request[:cut])
            leaving = RawClient(self.broker.port)
            leaving.sendBytes(request[:cut])
            leaving.reset()
        for largest in (MIB, LARGEST_BYTES):
            with RawClient(self.broker.port) as client:
                client.sendBytes(struct.pack(">ihh", largest, PRODUCE, 9) + bytes(MIB - 100))
        self.assertWhole()

    def test_silentConnections(self) -> None:
        """
        Hundreds of connections that say nothing, with and without TLS, are in
        nobody's way; the oldest make room for the last.
        """
        with ExitStack() as stack:
            for number in range(SILENT_CONNECTIONS):
                stack.enter_context(RawClient(self.broker.tlsPort if number % 4 == 0 else self.broker.port))
            self.measured.waitUntil(lambda report: report["sensors"]["Connections"] > SILENT_CONNECTIONS * 3 // 4)
            self.assertUndisturbed()
        self.assertWhole()

    def test_goneWhileWaiting(self) -> None:
        """
        A client that leaves while its Fetch waits is gone at once, with more
        Fetches behind it as without; records that it sent last are stored.
        """
        waiting = requestFrame(fetchRequest(self.topic, 0, waitMs=LONG_POLL_MS), 1)
        last = requestFrame(produceRequest(self.topic, bytes(batch()), acks=0), 2)
        for port, tls in ((self.broker.port, None), (self.broker.tlsPort, tlsContext())):
            for sent in (waiting, waiting * 3):
                with RawClient(port, tls) as client:
                    client.sendBytes(sent)
                    self.measured.waitUntil(lambda report: report["sensors"]["RequestPurgatorySize"] == 1)
                self.measured.waitUntil(lambda report: report["sensors"]["Connections"] == 1)
        with RawClient(self.broker.port) as client:
            client.sendBytes(waiting + last)
            self.measured.waitUntil(lambda report: report["sensors"]["RequestPurgatorySize"] == 1)
        self.measured.waitUntil(lambda report: report["sensors"]["Connections"] == 1)
        self.assertEqual(self.bystander.endOffset(self.topic), 3)
        self.served = 1
        self.assertWhole()

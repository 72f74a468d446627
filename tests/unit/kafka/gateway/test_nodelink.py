"""Tests for L{admission.kafka.gateway.nodelink}."""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import inf
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import ILease
from admission.kafka.gateway.nodelink import CLOSE_SECONDS, PIECE_BYTES, NodeLink, ResponseRefused
from admission.kafka.gateway.nodes import GIVEN_UP_SECONDS, Node
from admission.testing.faketransport import FakeTLSTransport, FakeTransport
from admission_plugins.bounded import BoundedPool
from admission_plugins.orders import FirstInFirstOut
from tests.kit.brokerfixture import framed

POOL_BYTES = 4 << 20


class RecordingUser:
    """
    Takes responses.

    @ivar responses: those that have come whole, with their numbers.
    @ivar sizes: the sizes that were announced.
    @ivar reasons: why the link was lost.
    @ivar refused: the numbers to refuse.
    """

    def __init__(self) -> None:
        self.responses: list[tuple[int, bytes]] = []
        self.sizes: list[int] = []
        self.reasons: list[str] = []
        self.refused: set[int] = set()
        self.isReading = False

    def responseBegun(self, sizeBytes: int, correlationId: int) -> Callable[[bytes, bool], None]:
        """Take a response, or refuse it."""
        if correlationId in self.refused:
            raise ResponseRefused("not that one")
        self.sizes.append(sizeBytes)
        parts: list[bytes] = []

        def take(part: bytes, isLast: bool) -> None:
            parts.append(part)
            if isLast:
                self.responses.append((correlationId, b"".join(parts)))

        return take

    def linkLost(self, reason: str) -> None:
        """Remember why."""
        self.reasons.append(reason)


class More:
    """Has more to send when the node has room again."""

    wantedBytes, holder = 4, ""

    def __init__(self, case: Any, sent: list[bytes]) -> None:
        self._case, self._sent = case, sent

    def allocateAgain(self) -> None:
        self._sent.append(b"more")
        self._case.send(b"more")


def response(number: int, body: bytes) -> bytes:
    """A response with that number."""
    return framed(struct.pack(">i", number) + body)


class LinkTestCase(SynchronousTestCase):
    """A test with one link."""

    transportType: type[FakeTransport] = FakeTransport

    def setUp(self) -> None:
        self.clock = Clock()
        self.pool = BoundedPool(POOL_BYTES)
        self.node = Node(1, 1 << 20, FirstInFirstOut())
        self.user = RecordingUser()
        self.link = NodeLink(self.user, self.node, self.clock, 10.0)
        self.addCleanup(self.checkWhole)

    def checkWhole(self) -> None:
        """However it ended, nothing is held."""
        self.link.abort()
        self.clock.advance(CLOSE_SECONDS)
        self.assertEqual(self.pool.availableBytes, POOL_BYTES)
        self.assertEqual((self.node.heldBytes, self.node.linkCount, self.node.unanswered), (0, 0, 0))
        self.assertEqual((self.node.stalledLinks, self.node.owingLinks), ({}, {}))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def connect(self) -> None:
        """Connect it."""
        self.transport = self.transportType(self.clock, self.link, IPv4Address("TCP", "192.0.2.9", 9092))
        self.transport.connect()
        if isinstance(self.transport, FakeTLSTransport):
            self.transport.peerFinishesHandshake()
        self.clock.advance(0)

    def send(self, body: bytes, isAwaited: bool = True, waitSeconds: float = 0.0) -> None:
        """Send a request."""
        lease: ILease | None = self.pool.tryAllocate(len(body))
        assert lease is not None and lease.buffer is not None
        lease.buffer[:] = body
        self.node.hold(len(body))
        self.link.send(lease, isAwaited, waitSeconds)
        self.clock.advance(0)

    def hear(self, data: bytes) -> None:
        """Have the node send something."""
        self.transport.peerSends(data)
        self.clock.advance(0)


class RequestTests(LinkTestCase):
    """Requests go up."""

    def test_beforeConnected(self) -> None:
        """Requests may be given to it before it is connected, and leave in their order."""
        self.send(b"one")
        self.send(b"two")
        self.assertEqual(self.node.heldBytes, 6)
        self.connect()
        self.assertEqual(bytes(self.transport.received), framed(b"one") + framed(b"two"))
        self.assertEqual(self.node.heldBytes, 0)

    def test_options(self) -> None:
        """Its connection does not wait to gather more, and is watched by the system."""
        self.connect()
        self.assertTrue(self.transport.isNoDelay and self.transport.isKeepAlive)

    def test_large(self) -> None:
        """A large request leaves in pieces, no more than the transport takes, and keeps its memory until the last."""
        body = bytes(range(256)) * 2000
        self.connect()
        self.transport.isTaking = False
        self.send(body)
        self.assertLessEqual(len(self.transport.unsent), 2 * PIECE_BYTES + 4)
        self.assertEqual(self.node.heldBytes, len(body))
        self.transport.isTaking = True
        self.transport.wake()
        self.clock.advance(0)
        self.assertEqual(bytes(self.transport.received), framed(body))
        self.assertEqual(self.node.heldBytes, 0)

    @given(sizes=st.lists(st.integers(1, 200_000), max_size=8), takes=st.lists(st.booleans(), max_size=8))
    @settings(max_examples=40, deadline=None)
    def test_anySizes(self, sizes: list[int], takes: list[bool]) -> None:
        """Whatever their sizes and however the node takes them, requests arrive as they are."""
        self.setUp()
        self.connect()
        bodies = [bytes((index + 1,)) * size for index, size in enumerate(sizes)]
        for body, isTaking in zip(bodies, [*takes, *[True] * len(bodies)], strict=False):
            self.transport.isTaking = isTaking
            self.transport.wake()
            self.send(body)
        self.transport.isTaking = True
        self.transport.wake()
        self.clock.advance(0)
        self.assertEqual(bytes(self.transport.received), b"".join(map(framed, bodies)))
        self.checkWhole()

    @given(
        st.lists(st.tuples(st.integers(1, 2000) | st.integers(1, 80_000), st.booleans()), max_size=30),
        st.lists(st.none() | st.integers(0, 5000), max_size=20),
    )
    @settings(max_examples=60, deadline=None)
    def test_direct(self, requests: list[tuple[int, bool]], takes: list[int | None]) -> None:
        """
        So they do where the kernel is given several at once, and takes some of that or nothing; also if more is sent
        when the memory of one is free.
        """
        self.setUp()
        self.connect()
        kernel = SimpleNamespace(sendmsg=lambda parts: self.taken(parts, takes))
        self.patch(self.link, "_directHandle", lambda: None if self.transport.unsent else kernel)
        sent: list[bytes] = []
        more = More(self, sent)
        for index, (size, self.user.isReading) in enumerate(requests):
            self.node.wait(more)
            sent.append(bytes((index + 1,)) * size)
            self.send(sent[-1])
        self.user.isReading = False
        self.node.forget(more)
        self.link.pump()
        self.clock.advance(0)
        self.assertEqual(bytes(self.transport.received), b"".join(map(framed, sent)))
        self.checkWhole()

    def taken(self, parts: list[Any], takes: list[int | None]) -> int:
        """Take as much as is said of what a kernel is given; all of it when nothing is said any more."""
        offered = b"".join(parts)
        limitBytes = takes.pop(0) if takes else len(offered)
        if limitBytes is None:
            raise BlockingIOError
        sizeBytes = min(limitBytes, len(offered))
        self.transport.received += offered[:sizeBytes]
        return sizeBytes

    def test_stopped(self) -> None:
        """A node that takes nothing for a time is given up, and why is said once."""
        self.connect()
        self.transport.isTaking = False
        self.send(bytes(200_000))
        self.clock.advance(4.0)
        self.assertEqual(self.node.stalledLinks, {self.link: 0.0})
        self.clock.advance(6.0)
        reason = "it has taken nothing for 10 s (upstream.send.timeout)"
        self.assertEqual(self.user.reasons, [f"node 1: {reason}"])
        self.assertEqual((self.node.lastError, self.node.lastErrorSeconds), (reason, 10.0))
        self.assertTrue(self.transport.isLost)


class ResponseTests(LinkTestCase):
    """Responses come down."""

    @given(
        bodies=st.lists(st.binary(max_size=40), max_size=6), cuts=st.lists(st.integers(1, 30), min_size=1, max_size=30)
    )
    @settings(max_examples=100, deadline=None)
    def test_anyPieces(self, bodies: list[bytes], cuts: list[int]) -> None:
        """However they are cut, they come out whole."""
        self.setUp()
        self.connect()
        for _ in bodies:
            self.send(b"one")
        data = b"".join(response(number, body) for number, body in enumerate(bodies))
        turn = 0
        while data:
            size = cuts[turn % len(cuts)]
            turn += 1
            self.transport.peerSends(data[:size])
            self.clock.advance(0)
            data = data[size:]
        self.assertEqual(self.user.responses, list(enumerate(bodies)))
        self.assertEqual(self.user.sizes, [len(body) for body in bodies])
        self.checkWhole()

    def test_refused(self) -> None:
        """One that is refused ends the link; what comes behind it is not looked at."""
        self.user.refused = {2}
        self.connect()
        self.send(b"one")
        self.transport.peerSends(response(1, b"a") + response(2, b"b") + response(3, b"c"))
        self.clock.advance(0)
        self.assertEqual(self.user.responses, [(1, b"a")])
        self.assertEqual(self.user.reasons, ["node 1: not that one"])
        self.assertTrue(self.transport.isLost)

    def test_length(self) -> None:
        """So does one whose length makes no sense."""
        self.connect()
        self.transport.peerSends(struct.pack(">ii", -1, 0))
        self.clock.advance(0)
        self.assertEqual(self.user.reasons, ["node 1: it has sent a response of -1 bytes"])

    def test_paused(self) -> None:
        """While it is paused nothing is read, also if it was paused before it was connected."""
        self.link.pauseReading()
        self.link.pauseReading()
        self.connect()
        self.send(b"one")
        self.transport.peerSends(response(1, b"a"))
        self.clock.advance(0)
        self.assertEqual(self.user.responses, [])
        self.link.resumeReading()
        self.clock.advance(0)
        self.assertEqual(self.user.responses, [(1, b"a")])


class OwingTests(LinkTestCase):
    """For how long a node has owed an answer."""

    def assertOwedFor(self, seconds: float) -> None:
        """That is what the node says."""
        self.assertEqual(self.node.unansweredSeconds(self.clock.seconds()), seconds)

    def test_first(self) -> None:
        """The first unanswered request counts; the next one counts from when that is answered."""
        self.connect()
        self.send(b"one")
        self.clock.advance(2.0)
        self.send(b"two")
        self.clock.advance(1.0)
        self.assertOwedFor(3.0)
        self.hear(response(1, b"a"))
        self.assertOwedFor(0.0)
        self.clock.advance(4.0)
        self.assertOwedFor(4.0)
        self.hear(response(2, b"b"))
        self.clock.advance(9.0)
        self.assertOwedFor(0.0)

    def test_mayWait(self) -> None:
        """One that may wait counts from when it may no longer, and one of which nobody can say that does not count."""
        self.connect()
        self.send(b"one", waitSeconds=30.0)
        self.send(b"two", waitSeconds=inf)
        self.clock.advance(30.0)
        self.assertOwedFor(0.0)
        self.clock.advance(2.0)
        self.assertOwedFor(2.0)
        self.hear(response(1, b"a"))
        self.clock.advance(1000.0)
        self.assertOwedFor(0.0)

    def test_pieces(self) -> None:
        """A node that is sending a response owes the rest of it since the last piece."""
        self.connect()
        self.send(b"one", waitSeconds=inf)
        whole = response(1, bytes(100))
        for begin in range(0, 80, 20):
            self.clock.advance(4.0)
            self.hear(whole[begin : begin + 20])
            self.assertOwedFor(0.0)
        self.clock.advance(4.0)
        self.assertOwedFor(4.0)
        self.hear(whole[80:])
        self.assertOwedFor(0.0)

    def test_notRead(self) -> None:
        """While its responses are not read, because the client does not read them, it owes nothing."""
        self.connect()
        self.send(b"one")
        self.clock.advance(4.0)
        self.link.pauseReading()
        self.assertOwedFor(0.0)
        self.clock.advance(4.0)
        self.link.resumeReading()
        self.clock.advance(1.0)
        self.assertOwedFor(1.0)

    def test_notConnected(self) -> None:
        """It owes nothing before it is connected."""
        self.send(b"one")
        self.clock.advance(4.0)
        self.assertOwedFor(0.0)
        self.connect()
        self.clock.advance(1.0)
        self.assertOwedFor(1.0)

    def test_throttled(self) -> None:
        """
        It owes nothing while it throttles the client; after a request without a response it may do so without saying
        it.
        """
        self.connect()
        self.link.throttled(5.0)
        self.send(b"one")
        self.clock.advance(6.0)
        self.assertOwedFor(1.0)
        self.hear(response(1, b"a"))
        self.send(b"two", isAwaited=False)
        self.send(b"three")
        self.clock.advance(6.0)
        self.assertOwedFor(0.0)

    def test_clientLeaves(self) -> None:
        """A client that gives up does not make the node answer; it counts for a while longer, unless it is heard of."""
        for isHeard in (False, True):
            self.setUp()
            self.connect()
            self.send(b"one")
            self.clock.advance(3.0)
            self.link.close()
            self.assertOwedFor(3.0)
            if isHeard:
                self.link = NodeLink(self.user, self.node, self.clock, 10.0)
                self.connect()
                self.clock.advance(1.0)
                self.send(b"two")
                self.hear(response(2, b"b"))
                self.assertOwedFor(0.0)
            self.clock.advance(GIVEN_UP_SECONDS)
            self.assertOwedFor(0.0 if isHeard else 3.0 + GIVEN_UP_SECONDS)
            self.clock.advance(1.0)
            self.assertOwedFor(0.0)
            self.checkWhole()

    def test_clientsLeave(self) -> None:
        """While clients come and give up again and again, all of that time counts."""
        for _ in range(5):
            self.connect()
            self.send(b"one")
            self.clock.advance(3.0)
            self.link.close()
            self.link = NodeLink(self.user, self.node, self.clock, 10.0)
        self.assertOwedFor(15.0)

    def test_nodeLeaves(self) -> None:
        """A node that hangs up owes nothing, as it is not frozen."""
        self.connect()
        self.send(b"one")
        self.clock.advance(3.0)
        self.transport.peerCloses()
        self.clock.advance(0)
        self.assertOwedFor(0.0)


class EndingTests(LinkTestCase):
    """How it ends."""

    def test_nodeCloses(self) -> None:
        """When the node goes, the session is told."""
        self.connect()
        self.transport.peerCloses()
        self.clock.advance(0)
        self.assertEqual(self.user.reasons, ["node 1: it has closed the connection"])

    def test_failed(self) -> None:
        """When it cannot be connected, the session is told, and what was to be sent is released."""
        self.send(b"one")
        self.link.failed("no way")
        self.link.failed("no way again")
        self.assertEqual(self.user.reasons, ["no way"])
        self.assertEqual((self.node.lastError, self.node.heldBytes), ("no way", 0))
        self.send(b"two")
        self.assertEqual(self.node.heldBytes, 0)

    def test_closed(self) -> None:
        """Once the session has closed it, it is told nothing any more."""
        self.connect()
        self.link.close()
        self.transport.peerSends(response(1, b"a"))
        self.clock.advance(0)
        self.assertTrue(self.transport.isLost)
        self.assertEqual((self.user.reasons, self.user.responses), ([], []))
        self.checkWhole()

    def test_flushed(self) -> None:
        """What was accepted is sent before that, if the node takes it in time."""
        for isTaken in (True, False):
            self.setUp()
            self.connect()
            self.transport.isTaking = False
            body = bytes(300_000)
            self.send(body, isAwaited=False)
            self.link.close()
            self.clock.advance(CLOSE_SECONDS / 2)
            self.assertFalse(self.transport.isLost)
            self.transport.isTaking = isTaken
            self.transport.wake()
            self.clock.advance(0 if isTaken else CLOSE_SECONDS / 2)
            self.assertTrue(self.transport.isLost)
            self.assertEqual(bytes(self.transport.received) == framed(body), isTaken)
            self.checkWhole()

    def test_flushedLater(self) -> None:
        """Also if it is connected only then."""
        self.send(b"one", isAwaited=False)
        self.link.close()
        self.connect()
        self.assertEqual(bytes(self.transport.received), framed(b"one"))
        self.assertTrue(self.transport.isLost)

    def test_connectedTooLate(self) -> None:
        """A connection that nobody needs any more is aborted."""
        self.link.close()
        self.connect()
        self.assertTrue(self.transport.isLost)


class TLSTests(LinkTestCase):
    """The same with TLS."""

    transportType = FakeTLSTransport

    def test_closed(self) -> None:
        """Closing does not have to be given up, although TLS waits for its producer and for the node's answer."""
        for isPaused in (False, True):
            self.setUp()
            self.connect()
            self.send(b"one")
            if isPaused:
                self.link.pauseReading()
            self.link.close()
            self.clock.advance(0)
            self.assertTrue(self.transport.isLost)
            self.assertEqual(bytes(self.transport.received), framed(b"one"))
            self.checkWhole()

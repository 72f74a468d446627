"""L{admission.connection.responses}."""

from __future__ import annotations

from hypothesis import given, strategies as st
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.responses import TRANSPORT_BUFFER_BYTES, ResponseQueue, WrittenQueue
from admission.interfaces import RESPONSES
from admission.testing.faketransport import FakeTransport
from admission.testing.scriptedpool import ScriptedPool
from tests.kit.admitted import runNext

MIB = 1 << 20


class ResponseQueueTests(SynchronousTestCase):
    """L{ResponseQueue}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.pool = ScriptedPool(1 << 30)
        self.transport = FakeTransport(self.clock, Protocol())
        self.blocked: list[bool] = []
        self.grown: list[int] = []
        self.queue = ResponseQueue(
            self.transport,
            self.pool,
            self.clock.seconds,
            self.blocked.append,
            lambda: self.grown.append(self.queue.largestBytes),
        )

    def write(self, *parts: bytes) -> None:
        """Send C{parts}."""
        self.queue.write(parts, sum(map(len, parts)))

    def charged(self) -> int:
        """What the pool says is held for responses."""
        return self.pool.usedBytesByPurpose.get(RESPONSES, 0)

    def settle(self) -> None:
        """Let the transport do what it can."""
        while self.transport.isBusy:
            self.clock.advance(0)

    def stall(self) -> None:
        """Have a peer that takes nothing."""
        self.transport.isTaking = False

    def unstall(self) -> None:
        """Have it take everything again."""
        self.transport.isTaking = True
        self.transport.wake()
        self.settle()

    def test_smallResponses(self) -> None:
        """What the transport takes without complaint is neither charged nor reported."""
        self.write(b"one", b"two")
        self.write(b"three")
        self.assertEqual((self.charged(), self.queue.heldBytes), (0, 0))
        self.settle()
        self.assertEqual((self.transport.received, self.blocked), (b"onetwothree", []))

    def test_smallOnesAddUp(self) -> None:
        """
        Small responses to a peer that takes none are charged as soon as they
        are more than the transport likes to hold, and what comes after that
        waits here.
        """
        self.stall()
        for _ in range(100):
            self.write(b"x" * 1000)
        self.assertEqual(self.blocked, [True])
        self.assertLessEqual(len(self.transport.unsent), TRANSPORT_BUFFER_BYTES + 1000)
        self.assertEqual(self.charged(), self.queue.heldBytes)
        self.assertGreaterEqual(self.charged(), len(self.transport.unsent) - 1000)
        self.assertGreaterEqual(self.charged() + TRANSPORT_BUFFER_BYTES, 100_000)
        self.unstall()
        self.assertEqual((self.charged(), self.queue.heldBytes, self.blocked), (0, 0, [True, False]))
        self.assertEqual(self.transport.received, b"x" * 100_000)

    def test_largeResponse(self) -> None:
        """
        A large response is charged in full before any of it is sent, stays
        charged until it is, and reaches the transport no faster than it is
        taken.
        """
        self.stall()
        self.write(b"h" * 10, b"b" * (5 * MIB))
        self.assertEqual((self.charged(), self.queue.heldBytes), (5 * MIB + 10, 5 * MIB + 10))
        self.assertLessEqual(len(self.transport.unsent), MIB + 10)
        self.assertFalse(self.queue.isEmpty())
        self.unstall()
        self.assertEqual(self.transport.received, b"h" * 10 + b"b" * (5 * MIB))
        self.assertEqual((self.charged(), self.queue.isEmpty()), (0, True))

    def test_chargeShrinks(self) -> None:
        """What the peer has taken is not charged any more while the rest still waits."""
        self.stall()
        self.write(b"b" * (5 * MIB))
        self.transport.isTaking = True
        self.transport.wake()
        for _ in range(20):
            runNext(self.clock)
        self.assertTrue(0 < self.charged() < 5 * MIB)
        self.settle()

    def test_blockedSince(self) -> None:
        """
        It tells since when the peer has taken nothing, anew each time it has
        taken something, and that it takes everything.
        """
        self.clock.advance(5)
        self.stall()
        self.write(b"b" * (2 * MIB))
        self.assertEqual(self.queue.pausedSinceSeconds, 5.0)
        self.clock.advance(3)
        self.transport.isTaking = True
        self.transport.wake()
        while self.queue.pausedSinceSeconds == 5.0:
            runNext(self.clock)
        self.assertEqual((self.queue.pausedSinceSeconds, self.blocked), (8.0, [True, True]))
        self.settle()
        self.assertEqual((self.queue.pausedSinceSeconds, self.blocked[-1]), (None, False))

    def test_pausedTwice(self) -> None:
        """Transports may ask for a pause more than once; it counts from the first."""
        self.queue.pauseProducing()
        self.clock.advance(4)
        self.queue.pauseProducing()
        self.assertEqual((self.queue.pausedSinceSeconds, self.blocked), (0.0, [True]))

    def test_discard(self) -> None:
        """Discarding forgets everything and is charged for nothing, twice if need be."""
        self.stall()
        self.write(b"b" * (3 * MIB))
        self.queue.discard()
        self.queue.discard()
        self.assertEqual((self.charged(), self.queue.heldBytes, self.queue.isEmpty()), (0, 0, True))

    def test_lostTransport(self) -> None:
        """A transport that is lost gives back what waited for it."""
        self.transport.connect()
        self.stall()
        self.write(b"b" * (3 * MIB))
        self.transport.abortConnection()
        self.clock.advance(0)
        self.assertEqual(self.charged(), 0)

    @given(
        steps=st.lists(
            st.one_of(
                st.lists(st.integers(0, 300_000), min_size=1, max_size=4), st.sampled_from(["stall", "unstall", "turn"])
            ),
            max_size=30,
        )
    )
    def test_everythingInOrder(self, steps: list[list[int] | str]) -> None:
        """
        Whatever is written while the peer stalls and goes on: it receives the
        same bytes in the same order, what is held is what is charged, at most
        the last piece beyond what transports hold is with the transport, and
        nothing stays charged.
        """
        self.setUp()
        expected = bytearray()
        for number, step in enumerate(steps):
            if step == "stall":
                self.stall()
            elif step == "unstall":
                self.transport.isTaking = True
                self.transport.wake()
            elif step == "turn":
                runNext(self.clock)
            else:
                assert isinstance(step, list)
                parts = [bytes([number % 256]) * sizeBytes for sizeBytes in step]
                self.write(*parts)
                expected += b"".join(parts)
            self.assertEqual(self.charged(), self.queue.heldBytes)
            self.assertLessEqual(len(self.transport.unsent), TRANSPORT_BUFFER_BYTES + MIB + 300_000)
        self.unstall()
        self.assertEqual(self.transport.received, expected)
        self.assertEqual((self.charged(), self.queue.pausedSinceSeconds), (0, None))


class WrittenQueueTests(SynchronousTestCase):
    """L{WrittenQueue}."""

    def setUp(self) -> None:
        clock = Clock()
        self.transport = FakeTransport(clock, Protocol())
        self.written: list[bytes] = []
        self.patch(self.transport, "write", self.written.append)
        self.queue = WrittenQueue(
            self.transport, ScriptedPool(1 << 30), clock.seconds, lambda isBlocked: None, lambda: None
        )

    def write(self, *sizes: int) -> None:
        """Write so much at a time."""
        for sizeBytes in sizes:
            self.queue.write([bytes(sizeBytes)], sizeBytes)

    def test_gathered(self) -> None:
        """What is written while it gathers leaves together, once it is flushed; what is written later does at once."""
        self.queue.gather()
        self.write(1, 2)
        self.assertEqual(self.written, [])
        self.queue.flush()
        self.assertEqual(self.written, [bytes(3)])
        self.write(4, 5)
        self.queue.flush()
        self.assertEqual(self.written, [bytes(3), bytes(4), bytes(5)])

    def test_large(self) -> None:
        """No more is gathered than a transport takes, which is charged for by being open; that goes in small pieces."""
        self.queue.gather()
        self.write(1, TRANSPORT_BUFFER_BYTES, 2)
        self.assertEqual(b"".join(self.written), bytes(1 + TRANSPORT_BUFFER_BYTES))
        self.assertLess(max(map(len, self.written)), 2 * TRANSPORT_BUFFER_BYTES)
        self.queue.flush()
        self.assertEqual(b"".join(self.written), bytes(3 + TRANSPORT_BUFFER_BYTES))

    def test_discarded(self) -> None:
        """What was gathered is dropped with the rest."""
        self.queue.gather()
        self.write(1)
        self.queue.discard()
        self.queue.flush()
        self.assertEqual(self.written, [])

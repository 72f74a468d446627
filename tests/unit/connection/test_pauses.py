"""L{admission.connection.pauses}."""

from __future__ import annotations

from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.pauses import Pause, Pauses
from admission.testing.faketransport import FakeTLSTransport, FakeTransport


class PausesTests(SynchronousTestCase):
    """L{Pauses}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.transport = FakeTransport(self.clock, Protocol())
        self.heldBytes = 0
        self.failures: list[Failure] = []
        self.changes: list[tuple[bool, bool]] = []
        self.pauses = self.pausesOf(self.transport)

    def pausesOf(self, transport: FakeTransport) -> Pauses:
        """The mute of C{transport}; changes are kept with whether it reads then."""
        return Pauses(
            transport,
            self.clock,
            lambda: self.heldBytes,
            lambda isPaused: self.changes.append((isPaused, transport.isReading)),
            lambda: self.failures.append(Failure()),
        )

    def test_wishesWait(self) -> None:
        """Reasons that come and go before the mute is settled never touch the transport."""
        self.pauses.add(Pause.MEMORY)
        self.pauses.discard(Pause.MEMORY)
        self.pauses.settle()
        self.assertEqual((self.transport.pauses, self.changes), (0, []))

    def test_everyReasonMutes(self) -> None:
        """Each reason but C{BUSY} stops reading when settled."""
        for reason in set(Pause) - {Pause.BUSY}:
            self.pauses.add(reason)
            self.pauses.settle()
            self.assertFalse(self.transport.isReading, reason)
            self.pauses.discard(reason)
            self.pauses.settle()
            self.assertTrue(self.transport.isReading, reason)

    def test_requestIsLazy(self) -> None:
        """C{BUSY} alone stops reading only once something has come meanwhile."""
        self.pauses.add(Pause.BUSY)
        self.pauses.settle()
        self.assertTrue(self.transport.isReading)
        self.heldBytes = 1
        self.pauses.settle()
        self.assertFalse(self.transport.isReading)

    def test_requestWithAnother(self) -> None:
        """With another reason C{BUSY} does not wait for anything."""
        self.pauses.add(Pause.BUSY)
        self.pauses.add(Pause.THROTTLED)
        self.pauses.settle()
        self.assertFalse(self.transport.isReading)

    def test_lastReason(self) -> None:
        """Reading starts again with the last reason gone, whatever the order and however often each was given."""
        for reason in (Pause.MEMORY, Pause.THROTTLED, Pause.MEMORY):
            self.pauses.add(reason)
        self.pauses.settle()
        self.pauses.discard(Pause.MEMORY)
        self.pauses.settle()
        self.assertFalse(self.transport.isReading)
        self.pauses.discard(Pause.THROTTLED)
        self.pauses.discard(Pause.THROTTLED)
        self.pauses.settle()
        self.assertTrue(self.transport.isReading)
        self.assertEqual(self.transport.pauses, 1)

    def test_changesAreTold(self) -> None:
        """A change is told once, both times while the transport does not read, so that nothing can come in between."""
        self.pauses.add(Pause.MEMORY)
        self.pauses.settle()
        self.pauses.settle()
        self.pauses.discard(Pause.MEMORY)
        self.pauses.settle()
        self.pauses.settle()
        self.assertEqual(self.changes, [(True, False), (False, False)])

    def test_lift(self) -> None:
        """Resuming reads whatever the reasons say, and tells so."""
        self.pauses.lift()
        self.assertEqual(self.changes, [])
        self.pauses.add(Pause.MEMORY)
        self.pauses.settle()
        self.pauses.lift()
        self.assertTrue(self.transport.isReading)
        self.assertEqual((self.changes[-1], list(self.pauses.reasons)), ((False, False), [Pause.MEMORY]))

    def test_handshakeFirst(self) -> None:
        """TLS is not muted before its handshake is over; settling again is what it takes then."""
        transport = FakeTLSTransport(self.clock, Protocol())
        transport.connect()
        mute = self.pausesOf(transport)
        mute.add(Pause.MEMORY)
        mute.settle()
        self.assertEqual((transport.isReading, mute.isApplied, self.changes), (True, False, []))
        transport.peerFinishesHandshake()
        self.clock.advance(0)
        mute.settle()
        self.assertEqual((transport.isReading, mute.isApplied), (False, True))

    def test_anyTransport(self) -> None:
        """Any transport of Twisted's will do, adapted when it is first muted."""
        transport = StringTransport()
        mute = Pauses(transport, self.clock, lambda: 0, lambda isPaused: None, lambda: None)
        mute.add(Pause.MEMORY)
        mute.settle()
        self.assertEqual(transport.producerState, "paused")

    def test_notATransport(self) -> None:
        """What no adapter fits cannot be muted, and says so each time."""
        mute = Pauses(object(), self.clock, lambda: 0, lambda isPaused: None, lambda: None)
        mute.add(Pause.MEMORY)
        for _ in range(2):
            self.assertRaises(TypeError, mute.settle)
        self.assertFalse(mute.isApplied)

    def test_repr(self) -> None:
        """It names each reason and for how long it has held, from the first time it was given."""
        self.assertEqual(repr(self.pauses), "not muted")
        self.pauses.add(Pause.MEMORY)
        self.clock.advance(2.25)
        self.pauses.add(Pause.THROTTLED)
        self.pauses.add(Pause.MEMORY)
        self.clock.advance(1)
        self.assertEqual(repr(self.pauses), "muted: memory 3.2 s, quota 1.0 s")

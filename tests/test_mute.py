"""
L{admission.connection.mute}.
"""

from __future__ import annotations

from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.mute import MEMORY, QUOTA, REQUEST, REQUESTS, RESPONSES, Mute
from admission.testing.transports import FakeTLSTransport, FakeTransport


class MuteTests(SynchronousTestCase):
    """
    L{Mute}.
    """

    def setUp(self) -> None:
        self.clock = Clock()
        self.transport = FakeTransport(self.clock, Protocol())
        self.hasBuffered = False
        self.changes: list[tuple[bool, bool]] = []
        self.mute = self.muteOf(self.transport)

    def muteOf(self, transport: FakeTransport) -> Mute:
        """
        The mute of C{transport}; changes are kept with whether it reads then.
        """
        return Mute(
            transport,
            self.clock.seconds,
            lambda: self.hasBuffered,
            lambda isMuted: self.changes.append((isMuted, transport.isReading)),
        )

    def test_wishesWait(self) -> None:
        """
        Reasons that come and go before the mute is settled never touch the
        transport.
        """
        self.mute.add(MEMORY)
        self.mute.discard(MEMORY)
        self.mute.settle()
        self.assertEqual((self.transport.pauses, self.changes), (0, []))

    def test_everyReasonMutes(self) -> None:
        """
        Each reason but C{REQUEST} stops reading when settled.
        """
        for reason in (MEMORY, REQUESTS, RESPONSES, QUOTA, "anything else"):
            self.mute.add(reason)
            self.mute.settle()
            self.assertFalse(self.transport.isReading, reason)
            self.mute.discard(reason)
            self.mute.settle()
            self.assertTrue(self.transport.isReading, reason)

    def test_requestIsLazy(self) -> None:
        """
        C{REQUEST} alone stops reading only once something has come meanwhile.
        """
        self.mute.add(REQUEST)
        self.mute.settle()
        self.assertTrue(self.transport.isReading)
        self.hasBuffered = True
        self.mute.settle()
        self.assertFalse(self.transport.isReading)

    def test_requestWithAnother(self) -> None:
        """
        With another reason C{REQUEST} does not wait for anything.
        """
        self.mute.add(REQUEST)
        self.mute.add(QUOTA)
        self.mute.settle()
        self.assertFalse(self.transport.isReading)

    def test_lastReason(self) -> None:
        """
        Reading starts again with the last reason gone, whatever the order and
        however often each was given.
        """
        for reason in (MEMORY, QUOTA, MEMORY):
            self.mute.add(reason)
        self.mute.settle()
        self.mute.discard(MEMORY)
        self.mute.settle()
        self.assertFalse(self.transport.isReading)
        self.mute.discard(QUOTA)
        self.mute.discard(QUOTA)
        self.mute.settle()
        self.assertTrue(self.transport.isReading)
        self.assertEqual(self.transport.pauses, 1)

    def test_changesAreTold(self) -> None:
        """
        A change is told once, both times while the transport does not read, so
        that nothing can come in between.
        """
        self.mute.add(MEMORY)
        self.mute.settle()
        self.mute.settle()
        self.mute.discard(MEMORY)
        self.mute.settle()
        self.mute.settle()
        self.assertEqual(self.changes, [(True, False), (False, False)])

    def test_resume(self) -> None:
        """
        Resuming reads whatever the reasons say, and tells so.
        """
        self.mute.resume()
        self.assertEqual(self.changes, [])
        self.mute.add(MEMORY)
        self.mute.settle()
        self.mute.resume()
        self.assertTrue(self.transport.isReading)
        self.assertEqual((self.changes[-1], list(self.mute.reasons)), ((False, False), [MEMORY]))

    def test_handshakeFirst(self) -> None:
        """
        TLS is not muted before its handshake is over; settling again is what
        it takes then.
        """
        transport = FakeTLSTransport(self.clock, Protocol())
        transport.connect()
        mute = self.muteOf(transport)
        mute.add(MEMORY)
        mute.settle()
        self.assertEqual((transport.isReading, mute.isApplied, self.changes), (True, False, []))
        transport.peerFinishesHandshake()
        self.clock.advance(0)
        mute.settle()
        self.assertEqual((transport.isReading, mute.isApplied), (False, True))

    def test_anyTransport(self) -> None:
        """
        Any transport of Twisted's will do, adapted when it is first muted.
        """
        transport = StringTransport()
        mute = Mute(transport, self.clock.seconds, lambda: False, lambda isMuted: None)
        mute.add(MEMORY)
        mute.settle()
        self.assertEqual(transport.producerState, "paused")

    def test_notATransport(self) -> None:
        """
        What no adapter fits cannot be muted, and says so each time.
        """
        mute = Mute(object(), self.clock.seconds, lambda: False, lambda isMuted: None)
        mute.add(MEMORY)
        for _ in range(2):
            self.assertRaises(TypeError, mute.settle)
        self.assertFalse(mute.isApplied)

    def test_repr(self) -> None:
        """
        It names each reason and for how long it has held, from the first time
        it was given.
        """
        self.assertEqual(repr(self.mute), "not muted")
        self.mute.add(MEMORY)
        self.clock.advance(2.25)
        self.mute.add(QUOTA)
        self.mute.add(MEMORY)
        self.clock.advance(1)
        self.assertEqual(repr(self.mute), "muted: memory 3.2 s, quota 1.0 s")

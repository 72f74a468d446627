# -*- test-case-name: tests.contracts.test_mutabilitycontract -*-
"""
The rules for transports that are muted.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen
from twisted.internet.interfaces import IProtocol
from twisted.internet.protocol import Protocol
from zope.interface.verify import verifyObject

from ..interfaces import ITransportMutability
from .contract import Contract

_MORE_THAN_A_READ = bytes(range(256)) * 1024
_LESS_THAN_A_READ = bytes(range(256)) * 32


@frozen
class MutableTransport:
    """
    A connected transport, past its handshake if it has one.

    @ivar mutability: its adapter.
    @ivar isReading: tells whether it reads.
    @ivar peerSends: has the peer send bytes.
    @ivar settle: runs everything that follows from earlier calls.
    """

    mutability: ITransportMutability
    isReading: Callable[[], bool]
    peerSends: Callable[[bytes], object]
    settle: Callable[[], object]


class _Receiver(Protocol):
    def __init__(self, onData: Callable[[], object] = lambda: None) -> None:
        self.received = b""
        self.onData = onData

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        self.onData()


class TransportMutabilityContract(Contract):
    """
    The rules for an adapter to L{ITransportMutability} whose transport may
    be muted.  Subclasses say how to make one.
    """

    def buildMutability(self, protocol: IProtocol) -> MutableTransport:
        """
        Make an adapter for a fresh transport that reads, and connect
        C{protocol} to it.
        """
        raise NotImplementedError

    def setUp(self) -> None:
        """
        Connect a protocol.
        """
        self.protocol = _Receiver()
        self.connected = self.buildMutability(self.protocol)
        self.mutability = self.connected.mutability

    def test_providesItsInterface(self) -> None:
        """
        The adapter has all methods of L{ITransportMutability}.
        """
        verifyObject(ITransportMutability, self.mutability)

    def test_answersAreBooleans(self) -> None:
        """
        The two questions are answered with L{True} or L{False}, and asking
        changes nothing.
        """
        self.assertIs(self.mutability.isInMutableState(), True)
        self.assertIs(self.mutability.hasBytesBuffered(), False)
        self.assertTrue(self.connected.isReading())

    def test_muteAndUnmute(self) -> None:
        """
        C{mute} stops reading and C{unmute} starts it again, as often as one
        likes.
        """
        for _ in range(2):
            self.mutability.mute()
            self.assertFalse(self.connected.isReading())
            self.mutability.unmute()
            self.assertTrue(self.connected.isReading())

    def test_repetitionIsHarmless(self) -> None:
        """
        Muting twice takes one C{unmute} to undo, and unmuting what reads does
        nothing.
        """
        self.mutability.unmute()
        self.mutability.mute()
        self.mutability.mute()
        self.assertFalse(self.connected.isReading())
        self.mutability.unmute()
        self.assertTrue(self.connected.isReading())

    def test_nothingArrivesWhileMuted(self) -> None:
        """
        What the peer sends to a muted transport stays there, and arrives once
        it is unmuted, whole and in order.
        """
        self.connected.peerSends(b"before")
        self.connected.settle()
        self.mutability.mute()
        self.connected.peerSends(_MORE_THAN_A_READ)
        self.connected.settle()
        self.assertEqual(self.protocol.received, b"before")
        self.mutability.unmute()
        self.connected.settle()
        self.assertTrue(self.protocol.received == b"before" + _MORE_THAN_A_READ, "not what was sent")

    def test_nothingIsStranded(self) -> None:
        """
        A protocol that mutes while it is given data gets the rest, whole and in
        order: first, from C{readBuffered}, the bytes of which C{hasBytesBuffered}
        tells, and the rest after C{unmute}.  It does not matter
        whether the protocol mutes again from within that.
        """
        for sent in (_MORE_THAN_A_READ, _LESS_THAN_A_READ):
            self.protocol.received = b""
            self.protocol.onData = self.mutability.mute
            self.connected.peerSends(sent)
            self.connected.settle()
            while self.mutability.hasBytesBuffered():
                self.assertFalse(self.connected.isReading())
                receivedBytes = len(self.protocol.received)
                self.mutability.readBuffered()
                self.assertFalse(self.connected.isReading(), "it reads by itself")
                self.assertGreater(len(self.protocol.received), receivedBytes, "nothing was delivered")
            self.assertFalse(self.connected.isReading())
            self.protocol.onData = lambda: None
            self.mutability.unmute()
            self.connected.settle()
            self.assertTrue(self.protocol.received == sent, "not what was sent")

    def test_nothingIsBuffered(self) -> None:
        """
        C{readBuffered} does nothing when C{hasBytesBuffered} says no; least of
        all does it read.
        """
        self.mutability.mute()
        self.connected.peerSends(b"unread")
        self.connected.settle()
        self.mutability.readBuffered()
        self.assertEqual(self.protocol.received, b"")
        self.assertFalse(self.connected.isReading())

# -*- test-case-name: tests.contracts.test_faketransport -*-
"""
Transports without sockets, which treat a protocol as Twisted's do, including
their awkward habits.
"""

from __future__ import annotations

from typing import Any

from attrs import define
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IConsumer,
    IDelayedCall,
    IHandshakeListener,
    IProtocol,
    IPushProducer,
    IReactorTime,
    ISSLTransport,
    ITCPTransport,
)
from twisted.python.failure import Failure
from zope.interface import implementer

READ_BYTES = 1 << 16
"""The most that one turn of a reactor receives."""

RECORD_BYTES = 1 << 14
"""The most that one call of C{dataReceived} delivers on TLS."""

SEND_BYTES = 1 << 17
"""The most that one turn of a reactor sends."""

FULL_BYTES = 1 << 16
"""How much a transport buffers before it pauses its producer."""


@implementer(ITCPTransport, IConsumer, IPushProducer)
class FakeTransport:
    """
    A server's end of a plain connection.

    Nothing reaches the protocol from within a call that it makes: the peer's
    actions, and the consequences of closing, happen in a turn of C{clock}.  So
    advance it, by zero if need be, until L{isBusy} is L{False}.

    @ivar isReading: whether data from the peer is received.
    @ivar isTaking: whether the peer takes what is sent to it; set it at will
        and call L{wake}.
    @ivar received: the data that the peer has received.
    @ivar unsent: data that was written and is not sent yet.
    @ivar pauses: how often reading was paused while it went on.
    @ivar isLost: whether the protocol has been told that the connection is gone.
    """

    def __init__(self, clock: IReactorTime, protocol: IProtocol, peer: Any = None) -> None:
        """
        @param protocol: the protocol to connect; see L{connect}.
        @param peer: its address; by default one reserved for documentation.
        """
        self._clock = clock
        self._protocol = protocol
        self._peer = IPv4Address("TCP", "192.0.2.1", 50_000) if peer is None else peer
        self._arrived = bytearray()
        self._hasFinArrived = False
        self._turn: IDelayedCall | None = None
        self._aborting: IDelayedCall | None = None
        self._producer: Any = None
        self._isProducerPaused = False
        self.isReading = True
        self.isTaking = True
        self.isLost = False
        self.disconnecting = False
        self.received = bytearray()
        self.unsent = bytearray()
        self.pauses = 0
        self.isNoDelay = False
        self.isKeepAlive = False

    def connect(self) -> None:
        """
        Make the protocol's connection.
        """
        self._protocol.makeConnection(self)
        self.wake()

    # The peer

    def peerSends(self, data: bytes) -> None:
        """
        The peer sends C{data}, which is received when the transport reads.
        """
        self._arrived += data
        self.wake()

    def peerCloses(self) -> None:
        """
        The peer closes its side, which shows after all earlier data has been received.
        """
        self._hasFinArrived = True
        self.wake()

    def wake(self) -> None:
        """
        Schedule a turn, if there is anything to do in it.
        """
        if self._turn is None and not self.isLost and self._aborting is None and self._hasWork():
            self._turn = self._clock.callLater(0, self._takeTurn)

    @property
    def isBusy(self) -> bool:
        """
        Whether a turn is due.
        """
        return self._turn is not None or self._aborting is not None

    @property
    def unread(self) -> bytes:
        """
        Data from the peer that has not been read.
        """
        return bytes(self._arrived)

    # IPushProducer

    def pauseProducing(self) -> None:
        self.pauses += self.isReading
        self.isReading = False

    def resumeProducing(self) -> None:
        """
        Read again, except on a connection that is closing.
        """
        if not (self.isLost or self.disconnecting):
            self.isReading = True
            self.wake()

    def stopProducing(self) -> None:
        self.loseConnection()

    # ITransport and IConsumer

    def write(self, data: bytes) -> None:
        """
        Send C{data} in a later turn.
        """
        if self.isLost or self._aborting is not None or not data:
            return
        self.unsent += data
        if self._producer is not None and len(self.unsent) > FULL_BYTES:
            self._isProducerPaused = True
            self._producer.pauseProducing()
        self.wake()

    def writeSequence(self, iovec: Any) -> None:
        """
        Send all of C{iovec} in a later turn.
        """
        self.write(b"".join(iovec))

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """
        Tell C{producer} when to stop writing and when to go on.

        @raise RuntimeError: if there is one already.
        """
        if self._producer is not None:
            raise RuntimeError(f"{self._producer!r} was never unregistered")
        if self.isLost:
            producer.stopProducing()
        else:
            self._producer = producer

    def unregisterProducer(self) -> None:
        self._producer = None
        self._isProducerPaused = False
        self.wake()

    def loseConnection(self) -> None:
        if not self.isLost:
            self.disconnecting = True
            self.wake()

    def abortConnection(self) -> None:
        if self.isLost or self._aborting is not None:
            return
        self.isReading = False
        self.disconnecting = True
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self._aborting = self._clock.callLater(0, self._lose, self._abortReason())

    def loseWriteConnection(self) -> None:
        """
        @raise NotImplementedError: always.
        """
        raise NotImplementedError

    def getPeer(self) -> Any:
        return self._peer

    def getHost(self) -> Any:
        return IPv4Address("TCP", "192.0.2.2", 9092)

    def getTcpNoDelay(self) -> bool:
        return self.isNoDelay

    def setTcpNoDelay(self, enabled: bool) -> None:
        self.isNoDelay = enabled

    def getTcpKeepAlive(self) -> bool:
        return self.isKeepAlive

    def setTcpKeepAlive(self, enabled: bool) -> None:
        self.isKeepAlive = enabled

    # One turn

    def _hasWork(self) -> bool:
        return (
            (self.isReading and bool(self._arrived or self._hasFinArrived))
            or (self.isTaking and bool(self.unsent))
            or self._canClose()
        )

    def _takeTurn(self) -> None:
        self._turn = None
        if self.isReading and self._arrived:
            chunk = bytes(self._arrived[:READ_BYTES])
            del self._arrived[:READ_BYTES]
            self._deliver(chunk)
        elif self.isReading and self._hasFinArrived:
            self._lose(ConnectionDone())
        if self.isTaking and self.unsent and not self.isLost and self._aborting is None:
            self._send()
        if self._canClose() and not self.isLost and self._aborting is None:
            self._close()
        self.wake()

    def _deliver(self, chunk: bytes) -> None:
        self._protocol.dataReceived(chunk)

    def _send(self) -> None:
        self.received += self.unsent[:SEND_BYTES]
        del self.unsent[:SEND_BYTES]
        if not self.unsent and self._isProducerPaused:
            self._isProducerPaused = False
            self._producer.resumeProducing()

    def _canClose(self) -> bool:
        return self.disconnecting and not self.unsent and not self._isProducerPaused

    def _close(self) -> None:
        self._lose(ConnectionDone())

    def _abortReason(self) -> Exception:
        return ConnectionAborted()

    def _lose(self, reason: Exception) -> None:
        self._aborting = None
        self.isLost = True
        self.isReading = False
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.stopProducing()
        self._protocol.connectionLost(Failure(reason))  # type: ignore[no-untyped-call]


@define
class FakeTLSHandle:
    """
    The part of an L{OpenSSL.SSL.Connection} that tells whether the handshake is over.
    """

    isHandshakeDone: bool = False

    def get_peer_finished(self) -> bytes | None:
        """
        The peer's last handshake message, if it has arrived.
        """
        return b"finished" if self.isHandshakeDone else None


@implementer(ISSLTransport)
class FakeTLSTransport(FakeTransport):
    """
    A server's end of a TLS connection.

    It differs from a plain one as Twisted's do.  The protocol is connected
    before the handshake, which stalls if reading is paused.  Received data is
    delivered, a record at a time, even when reading is paused in between.
    Closing waits for the peer's answer, and so for reading to resume; data that
    arrives meanwhile is delivered.  Aborting a lost connection raises.

    @ivar answersClose: whether the peer answers when we close.
    """

    def __init__(self, clock: IReactorTime, protocol: IProtocol, peer: Any = None) -> None:
        super().__init__(clock, protocol, peer)
        self.answersClose = True
        self._handle: FakeTLSHandle | None = FakeTLSHandle()
        self._hasFinishedArrived = False
        self._isTLSClosing = False

    def peerFinishesHandshake(self) -> None:
        """
        The peer sends the last message of the handshake.
        """
        self._hasFinishedArrived = True
        self.wake()

    @property
    def isHandshakeDone(self) -> bool:
        return self._handle is not None and self._handle.isHandshakeDone

    def getHandle(self) -> FakeTLSHandle | None:
        """
        The state of TLS; L{None} when the connection is lost.
        """
        return self._handle

    def getPeerCertificate(self) -> None:
        pass

    def loseConnection(self) -> None:
        if not (self.isLost or self._isTLSClosing):
            if not self.isHandshakeDone:
                self.abortConnection()
            self._isTLSClosing = True
            self.wake()

    def abortConnection(self) -> None:
        """
        Close without sending what is unsent.

        @raise AttributeError: if the connection is lost, as Twisted does.
        """
        if self.isLost:
            raise AttributeError("'NoneType' object has no attribute 'shutdown'")
        super().abortConnection()

    def _hasWork(self) -> bool:
        if not self.isHandshakeDone:
            return self.isReading and (self._hasFinishedArrived or self._hasFinArrived)
        return super()._hasWork()

    def _takeTurn(self) -> None:
        if self._handle is not None and not self.isHandshakeDone and self._hasFinishedArrived:
            self._handle.isHandshakeDone = True
            if IHandshakeListener.providedBy(self._protocol):
                self._protocol.handshakeCompleted()
        if not self.isHandshakeDone:
            # What it has sent can only be read behind the handshake.
            self._arrived.clear()
        super()._takeTurn()

    def _deliver(self, chunk: bytes) -> None:
        for start in range(0, len(chunk), RECORD_BYTES):
            if self.isLost or self._aborting is not None:
                break
            self._protocol.dataReceived(chunk[start : start + RECORD_BYTES])

    def _canClose(self) -> bool:
        return (
            self._isTLSClosing
            and self._producer is None
            and not self.unsent
            and self.answersClose
            and self.isReading
            and not self._arrived
        )

    def _abortReason(self) -> Exception:
        return ConnectionLost()

    def _lose(self, reason: Exception) -> None:
        super()._lose(reason)
        self._handle = None

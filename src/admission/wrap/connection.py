# -*- test-case-name: tests.test_wrap -*-
"""
One connection of a server that knows nothing of us.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener, ISSLTransport
from twisted.internet.protocol import connectionDone
from twisted.protocols.policies import ProtocolWrapper
from twisted.python.failure import Failure
from zope.interface import directlyProvides, implementer, providedBy

from ..connection.deadline import Deadline
from ..connection.pauses import Pause, Pauses
from ..connection.protocol import PLAIN_CONNECTION_BYTES, TLS_CONNECTION_BYTES, hostOf, peerName
from ..interfaces import CONNECTION, CONNECTIONS, RECEIVED, SENT, ILease, Request, Usage
from .incoming import Incoming
from .outgoing import Outgoing
from .throttle import Throttle

if TYPE_CHECKING:
    from . import WrappedFactory

MOST_HELD_BYTES = 1 << 20
"""What a transport may deliver that was told to stop; Twisted's TLS delivers 80 KiB at most."""


@implementer(IHandshakeListener)
class WrappedConnection(ProtocolWrapper):
    """
    Stands between a transport and a protocol, and is each to the other.

    What the protocol pauses stays paused until the protocol resumes it, and
    what we stop stays stopped as long as we have a reason.

    @ivar factory: the L{WrappedFactory <admission.wrap.WrappedFactory>} that made it.
    @ivar wrappedProtocol: the protocol; L{None} when the connection is gone.
    @ivar peer: who is at the other end, in words; known once connected.
    @ivar host: the peer's address without its port.
    @ivar closeReason: why we close it, in words, if we do; the factory says.
    """

    factory: Any
    transport: Any
    wrappedProtocol: Any

    peer = host = ""
    closeReason: str | None = None
    isTLS = False
    isClosing = False
    isLost = False

    _activeSeconds = 0.0
    _isAborting = False
    _isHalfClosing = False
    _isCloseHandedOn = False
    _isIntroduced = False
    _openCharge: ILease | None = None

    def __init__(self, factory: WrappedFactory) -> None:
        """
        @param factory: who then sets C{wrappedProtocol}.
        """
        super().__init__(factory, None)  # type: ignore[arg-type]

    # What the transport calls

    def makeConnection(self, transport: Any) -> None:
        """
        Set up, ask the policies about the connection, and only then tell the protocol.
        """
        factory, clock = self.factory, self.factory.clock
        address = transport.getPeer()
        self.peer, self.host = peerName(address), hostOf(address)
        self.isTLS = ISSLTransport.providedBy(transport)
        self.transport = transport
        self.connected = 1
        self._provide()
        self._activeSeconds = clock.seconds()
        self._received = Throttle(factory.quotas, clock, partial(self._asked, RECEIVED), self._holdReceived)
        self._sent = Throttle(factory.quotas, clock, partial(self._asked, SENT), self._holdSent)
        self._chargeOpen()
        self._incoming = Incoming(factory, transport, self._deliver, self._holder)
        self._opening = Deadline(clock, partial(self._incoming.resume, Pause.OPENING))
        self._grace = Deadline(clock, self.abortConnection)
        self._outgoing = Outgoing(factory, transport, self._sendingBlocked, self.cutOff, self._failed)
        factory.connected(self)
        if self._mayOpen():
            self._isIntroduced = True
            self.wrappedProtocol.makeConnection(self)

    def dataReceived(self, data: bytes) -> None:
        """
        Hand C{data} over, or hold it; and count it.
        """
        if self.isClosing or self.isLost:
            return
        self._activeSeconds = self.factory.clock.seconds()
        self._incoming.add(data)
        # Only now: it may have told who it is from.
        self._received.count(len(data), Usage(requestBytes=len(data)))
        if self._incoming.heldBytes > MOST_HELD_BYTES:
            self.cutOff(f"{self._incoming.heldBytes} bytes have come although it is not read ({self.pauses!r})")

    def handshakeCompleted(self) -> None:
        """
        From now on it can be muted; the protocol may want to know as well.
        """
        if self._isIntroduced and IHandshakeListener.providedBy(self.wrappedProtocol):
            self.wrappedProtocol.handshakeCompleted()
        self._incoming.settle()

    def readConnectionLost(self) -> None:
        """
        The peer sends no more, and the protocol wants to know.
        """
        self._incoming.isReadClosed = True
        self._incoming.handOver()
        if not self.isLost:
            self.wrappedProtocol.readConnectionLost()

    def writeConnectionLost(self) -> None:
        """
        Our side is closed, and the protocol wants to know.
        """
        self.wrappedProtocol.writeConnectionLost()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Hand over what the peer sent before it left, and give back everything.
        """
        self.isLost = True
        self.connected = 0
        for timer in (self._received, self._sent, self._opening, self._grace, self._outgoing):
            timer.close()
        self._incoming.unwatch()
        if self._isIntroduced and not self.isClosing:
            self._incoming.handOver()
        self._incoming.close()
        if self._openCharge is not None:
            self._openCharge.release()
            self._openCharge = None
        self.factory.disconnected(self)
        self._outgoing.supply.stop()
        wrapped, self.wrappedProtocol = self.wrappedProtocol, None
        if self._isIntroduced:
            wrapped.connectionLost(reason)

    # What the protocol calls

    def write(self, data: bytes) -> None:
        """
        Send C{data}.
        """
        self.writeSequence((data,))

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """
        Send all of C{data}.

        @raise TypeError: if any of it is not bytes.
        """
        parts = list(data)
        if not all(isinstance(part, bytes) for part in parts):
            raise TypeError("Data must be bytes")
        sizeBytes = sum(map(len, parts))
        if sizeBytes and not (self.isLost or self._isAborting or self._isCloseHandedOn):
            self._activeSeconds = self.factory.clock.seconds()
            self._outgoing.write(parts, sizeBytes)
            self._sent.count(sizeBytes, Usage(responseBytes=sizeBytes))

    def pauseProducing(self) -> None:
        """
        Do not read until the protocol says so.
        """
        self._incoming.pause(Pause.PROTOCOL)

    def resumeProducing(self) -> None:
        """
        Read again, as far as the protocol is concerned.
        """
        self._incoming.resume(Pause.PROTOCOL)

    def stopProducing(self) -> None:
        """
        See L{loseConnection}.
        """
        self.loseConnection()

    def stopReading(self) -> None:
        """
        See L{pauseProducing}.
        """
        self.pauseProducing()

    def startReading(self) -> None:
        """
        See L{resumeProducing}.
        """
        self.resumeProducing()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """
        Have C{producer} write as fast as the peer and the quotas allow.

        @raise RuntimeError: if there is one already.
        """
        if self.isLost:
            producer.stopProducing()
        else:
            self._outgoing.supply.register(producer, streaming)

    def unregisterProducer(self) -> None:
        """
        The producer is done.
        """
        self._outgoing.supply.unregister()
        self._closeWhenSent()

    def stopConsuming(self) -> None:
        """
        Do without the producer, and close.
        """
        self.unregisterProducer()
        self.loseConnection()

    def loseConnection(self) -> None:
        """
        Close when everything is sent.  As it is with the transport underneath,
        that includes what a producer has yet to write if it is a pull producer,
        or on TLS, and not otherwise.
        """
        if self.isClosing or self.isLost:
            return
        self._beginClosing()
        if self.isTLS:
            # Its close needs the peer's answer, so reading goes on; what it brings is dropped.
            self.pauses.lift()
        self._closeWhenSent()

    def loseWriteConnection(self) -> None:
        """
        Close our side when everything is sent.
        """
        self._isHalfClosing = True
        self._closeWhenSent()

    def abortConnection(self) -> None:
        """
        Close at once.
        """
        if not (self._isAborting or self.isLost):
            self._isAborting = True
            self._beginClosing()
            self.transport.abortConnection()

    def startTLS(self, *args: Any, **kwargs: Any) -> None:
        """
        Go on with TLS.  What came before must not be taken for what comes after:
        if some of it was not handed over yet, the connection is cut off, and so
        it is if what was written before is not sent.
        """
        if self._incoming.heldBytes or not self._outgoing.isTaken:
            self.cutOff("TLS was to begin, and there was more from before it, in one direction or the other")
            return
        self.transport.startTLS(*args, **kwargs)
        self.isTLS = True
        self._provide()
        self._chargeOpen()
        # A handshake that is not read never ends.
        self.pauses.lift()

    # What the factory calls

    @property
    def pauses(self) -> Pauses:
        """
        Why it is not read, if it is not.
        """
        return self._incoming.pauses

    @property
    def lastActiveSeconds(self) -> float:
        """
        When anything was received or written last, or it was last let go on.
        """
        return max(self._activeSeconds, self._incoming.resumedSeconds)

    def closeGracefully(self) -> None:
        """
        Close when everything is sent, or after the grace period.
        """
        self.loseConnection()
        self._closeWithin(self.factory.limits.closeGraceSeconds)

    def drain(self) -> None:
        """
        The same: nobody can tell which request is the last.
        """
        self.closeGracefully()

    def cutOff(self, reason: str) -> None:
        """
        Close at once, after telling the log why.
        """
        if not (self._isAborting or self.isLost):
            self.factory.refused(self, reason)
            self.abortConnection()

    # Deciding

    def _mayOpen(self) -> bool:
        quotas = self.factory.quotas
        if not quotas.isLimiting:
            return True
        request = self._asked(CONNECTION, 0)
        decision = quotas.decide(request)
        if not decision.admitted:
            self.cutOff(decision.reason)
            return False
        delaySeconds = quotas.record(request, Usage(connections=1)).delaySeconds
        if delaySeconds > 0:
            self._opening.start(delaySeconds)
            self._incoming.pause(Pause.OPENING)
        # Who is over a quota does not get round it by another connection.
        self._received.ask()
        self._sent.ask()
        return True

    def _asked(self, kind: str, sizeBytes: int) -> Request:
        principal, clientId = self._name() or ("", self.host)
        return Request(kind, principal, clientId, self.host, sizeBytes)

    def _holder(self) -> str:
        principal, _ = self._name() or ("", "")
        return principal or self.host

    def _name(self) -> tuple[str, str] | None:
        """
        The principal and the client id, if anybody knows them.
        """
        name: tuple[str, str] | None = None
        if self.factory.nameOf is not None and self._isIntroduced and not self.isLost:
            try:
                name = self.factory.nameOf(self.wrappedProtocol)
                if not (name is None or (isinstance(name, tuple) and len(name) == 2)):
                    raise TypeError(f"nameOf must return (principal, clientId) or None, not {name!r}")
            except Exception:
                name = None
                self._failed()
        return name

    def _deliver(self, data: bytes) -> None:
        try:
            self.wrappedProtocol.dataReceived(data)
        except Exception:
            self._failed()

    def _failed(self) -> None:
        self.factory.log.failure("the protocol of {peer} failed", peer=self.peer)
        self.abortConnection()

    def _holdReceived(self, isHeld: bool) -> None:
        if isHeld:
            self._incoming.pause(Pause.THROTTLED)
        else:
            self._incoming.resume(Pause.THROTTLED)

    def _holdSent(self, isHeld: bool) -> None:
        if isHeld:
            self._outgoing.supply.hold(Pause.SENT_THROTTLED)
            self._incoming.pause(Pause.SENT_THROTTLED)
        else:
            self._outgoing.supply.release(Pause.SENT_THROTTLED)
            self._incoming.resume(Pause.SENT_THROTTLED)

    def _sendingBlocked(self, isBlocked: bool) -> None:
        if isBlocked:
            self._incoming.pause(Pause.UNSENT)
        else:
            self._activeSeconds = self.factory.clock.seconds()
            self._incoming.responsesTaken()
            self._closeWhenSent()

    # Closing

    def _beginClosing(self) -> None:
        self.isClosing = True
        self.disconnecting = 1
        self._incoming.close()

    def _closeWhenSent(self) -> None:
        if self.isLost or self._isAborting or self._isCloseHandedOn or not (self.isClosing or self._isHalfClosing):
            return
        supply = self._outgoing.supply
        isSupplied = supply.producer is not None and (self.isTLS or not supply.isStreaming)
        if isSupplied or not self._outgoing.isTaken:
            return
        # TLS waits for its producer to go before it closes.
        self.transport.unregisterProducer()
        if self.isClosing:
            self._isCloseHandedOn = True
            self.transport.loseConnection()
            self._closeWithin(self.factory.limits.sendSeconds)
        else:
            self.transport.loseWriteConnection()

    def _closeWithin(self, graceSeconds: float) -> None:
        due = self._grace.dueSeconds
        if not self.isLost and (due is None or due > self.factory.clock.seconds() + graceSeconds):
            self._grace.start(graceSeconds)

    def _chargeOpen(self) -> None:
        charge = self._openCharge
        costBytes = TLS_CONNECTION_BYTES if self.isTLS else PLAIN_CONNECTION_BYTES
        self._openCharge = self.factory.gate.pool.charge(costBytes, CONNECTIONS)
        if charge is not None:
            charge.release()

    def _provide(self) -> None:
        interfaces = [IHalfCloseableProtocol] if IHalfCloseableProtocol.providedBy(self.wrappedProtocol) else []
        directlyProvides(self, providedBy(self.transport), *interfaces)

    def __repr__(self) -> str:
        state = "lost" if self.isLost else "closing" if self.isClosing else repr(self.pauses)
        return f"<{type(self).__name__} {self.peer} {state}>"

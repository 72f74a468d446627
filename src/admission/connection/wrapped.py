# -*- test-case-name: tests.unit.connection.test_wrapping -*-
"""
One connection of a server that knows nothing of us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any, Protocol as TypingProtocol

from twisted.internet.interfaces import IAddress, IHalfCloseableProtocol, IHandshakeListener, ISSLTransport
from twisted.internet.protocol import connectionDone
from twisted.protocols.policies import ProtocolWrapper
from twisted.python.failure import Failure
from zope.interface import alsoProvides, directlyProvides, implementer, providedBy

from ..interfaces import (
    RECEIVED,
    RECEIVED_TRAITS,
    SENT,
    SENT_TRAITS,
    Request,
    Traits,
    Usage,
)
from ..names import boundedName
from ..policyfailure import FAILURES
from ..request import ServerRequest
from ..units import formatBytes
from .bytequota import ByteQuota
from .driver import RequestDriver
from .factory import AdmittedFactory
from .inbound import InboundBuffer
from .link import CLOSED, CLOSING, Link, Linked
from .pauses import Pause
from .responses import WrittenQueue
from .wrappedproducer import WrappedProducer

MAX_HELD_BYTES = 1 << 20
"""What a transport may still deliver after it was told to stop; Twisted's TLS delivers 80 KiB at most."""


class Messages(TypingProtocol):
    """
    Has the messages that a connection receives admitted.
    """

    def received(self, data: bytes) -> int:
        """
        Hand over what has come, by L{WrappedConnection.pass_}, as far as it is admitted.

        @return: how many bytes of it need not come again; all of them if nothing follows.
        """

    def close(self) -> None:
        """
        Nothing is read any more.  May be called twice.
        """


@implementer(IHandshakeListener)
class WrappedConnection(Linked, ProtocolWrapper):
    """
    Stands between a transport and a protocol, and is each to the other.

    What the protocol pauses stays paused until the protocol resumes it, and
    what we stop stays stopped as long as we have a reason.

    @ivar factory: the L{WrappedFactory <admission.connection.wrapping.WrappedFactory>} that made it, whose C{nameOf}
        and C{maxUnsentBytes} it goes by.
    @ivar builtFor: what the wrapped factory is told of the peer.
    @ivar wrappedProtocol: the protocol; L{None} until the connection was admitted, and when it is gone.
    @ivar peer: the peer's address, for messages; known once connected.
    @ivar host: the peer's address without its port.
    @ivar whenLost: called when the connection is lost, after the protocol was told.
    """

    factory: Any
    transport: Any
    builtFor: IAddress | None
    wrappedProtocol: Any

    peer = host = ""
    _hostAddress: IAddress
    _peerAddress: IAddress
    _isHandshakeListener = False
    _isHalfCloseable = False
    _isHalfClosing = False
    _isFull = False
    _isIntroduced = False
    _isNaming = False
    _knownName: tuple[str, str] | None = None
    _messages: Messages | None = None

    def __init__(self, factory: AdmittedFactory) -> None:
        """
        @param factory: the factory, which then sets C{builtFor}.
        """
        super().__init__(factory, None)  # type: ignore[arg-type]
        self._countsReceived: bool = factory.countsBytes  # type: ignore[attr-defined]
        self._countsSent = self._countsReceived
        self.whenLost: list[Callable[[], object]] = []

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """
        On TLS it passes for an instance of Twisted's own class as well: Autobahn and others look for that, to bind a
        login to the channel.
        """
        if not ISSLTransport.providedBy(self.transport):
            return type(self)
        from twisted.protocols.tls import TLSMemoryBIOProtocol

        return TLSMemoryBIOProtocol

    requestBytes = 0
    """Nobody can tell requests apart."""

    makeRequest = ServerRequest
    """For the policies the opening of the connection is a request."""

    hasPeerGone = False

    isWaiting = False
    """Nobody can tell what the protocol waits for while it has paused its transport."""

    @property
    def principal(self) -> str | None:
        """
        The name of the peer, as far as it is known.
        """
        return (self._name() or (None, ""))[0]

    @property
    def clientId(self) -> str:
        """
        What the client calls itself; its address as long as nobody knows.
        """
        return (self._name() or ("", self.factory.clientIdAt(self.host)))[1]

    @property
    def whyClosed(self) -> str | None:
        return self.closeReason

    @property
    def holder(self) -> str:
        """
        The holder of the memory that it last asked for.
        """
        return self._incoming.holder or self.host

    @property
    def hasMessages(self) -> bool:
        """
        Whether what it receives are messages that are told apart.
        """
        return self._messages is not None

    @property
    def throttledUntilSeconds(self) -> float:
        """
        When the last delay of its peer ends or ended.
        """
        return max(self._received.untilSeconds, self._sent.untilSeconds)

    @property
    def heldBytes(self) -> int:
        """
        All memory that is charged for it.
        """
        link = self.link
        return self._incoming.heldBytes + link.unsentBytes() + link.openBytes

    # What the transport calls

    def makeConnection(self, transport: Any) -> None:
        """
        Set up, ask the policies about the connection, and only then tell the protocol.
        """
        factory, clock = self.factory, self.factory.clock
        self.transport = transport
        self.connected = 1
        self._producer = WrappedProducer(clock, self._failed)
        link = self.link = Link(self, factory, transport, WrittenQueue)
        self._responses: WrittenQueue = link.responses  # type: ignore[assignment]
        self._namePeer()
        self._received, self._sent = (
            ByteQuota(factory.control, clock, partial(self._asked, kind, traits), holds, factory.debts)
            for kind, traits, holds in (
                (RECEIVED, RECEIVED_TRAITS, self._holdReceived),
                (SENT, SENT_TRAITS, self._holdSent),
            )
        )
        self._incoming = InboundBuffer(link, factory.gate, clock, self._deliver, self._received.askAgain, self._holder)
        self._driver = RequestDriver(self)
        if factory.messagesOf is not None:
            self.tellApart(factory.messagesOf(self))
        isKnown = link.proxyHeader is None
        factory.connected(self, isStranger=link.handshake is not None or not isKnown)
        if not isKnown or self._mayOpen():
            self._introduce()

    def dataReceived(self, data: bytes) -> None:
        """
        Hand C{data} over, or hold it.
        """
        link = self.link
        if link.state >= CLOSING:
            return
        link.lastActiveSeconds = self.factory.clock.seconds()
        if link.handshake is not None:
            self._handshakeOver()
        if link.proxyHeader is not None:
            link.peerKnown()
            if link.state >= CLOSING:
                return
        self._incoming.add(data)
        if self._incoming.heldBytes > MAX_HELD_BYTES:
            self.cutOff(f"{self._incoming.heldBytes} bytes have come although it is not read ({link.pauses!r})")

    def handshakeCompleted(self) -> None:
        """
        From now on it can be muted; the protocol may want to know as well.
        """
        self._handshakeOver()
        if self._isIntroduced and self._isHandshakeListener:
            self.wrappedProtocol.handshakeCompleted()
        self.link.settle()

    def readConnectionLost(self) -> None:
        """
        The peer sends no more, and the protocol wants to know.
        """
        self.link.readClosed()
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
        wasClosing = self.isClosing
        self.link.lost()
        self.connected = 0
        self._received.close()
        self._sent.close()
        self._driver.lost()
        if self._isIntroduced and not wasClosing:
            self._incoming.handOver()
        self._incoming.close()
        if self._messages is not None:
            self._messages.close()
        self._producer.stop()
        wrapped, self.wrappedProtocol = self.wrappedProtocol, None
        try:
            if self._isIntroduced:
                wrapped.connectionLost(reason)
        finally:
            # Only now, when the protocol has dropped what it held, is its place free.
            del wrapped
            self._incoming.releaseLease()
            for lost in self.whenLost:
                lost()
            self.factory.disconnected(self)

    # What the protocol calls

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def write(self, data: bytes) -> None:
        """
        Send C{data}, unless the peer has left so much untaken that it gets no more than what was accepted before.

        @raise TypeError: if it is not bytes.
        """
        if not isinstance(data, bytes):
            raise TypeError("Data must be bytes")
        factory, link = self.factory, self.link
        if not data or link.state >= CLOSED or self._isFull:
            return
        link.lastActiveSeconds = link.answeredSeconds = factory.clock.seconds()
        responses, sizeBytes = self._responses, len(data)
        # The largest write is accepted whatever its size, since it is in memory already; so are writes that belong to
        # it.
        if responses.heldBytes - responses.largestBytes >= factory.maxUnsentBytes:
            self._tooMuchWritten()
            return
        responses.write((data,), sizeBytes)
        if not self._producer.isStreaming:
            self._producer.wrote()
        factory.responseBytes += sizeBytes
        if self._countsSent:
            self._sent.count(sizeBytes, Usage(responseBytes=sizeBytes))
            self._noteDebt()

    def getHost(self) -> IAddress:
        return self._hostAddress

    def getPeer(self) -> IAddress:
        return self._peerAddress

    def pauseProducing(self) -> None:
        """
        Do not read until the protocol says so.
        """
        self.link.pause(Pause.PROTOCOL)

    def resumeProducing(self) -> None:
        """
        Read again, as far as the protocol is concerned.  Some protocols call this after each of their answers.
        """
        if Pause.PROTOCOL in self.link.pauses.reasons:
            self.link.resume(Pause.PROTOCOL)

    def stopProducing(self) -> None:
        self.loseConnection()

    def stopReading(self) -> None:
        self.pauseProducing()

    def startReading(self) -> None:
        self.resumeProducing()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """
        Have C{producer} write as fast as the peer and the quotas allow.

        @raise RuntimeError: if there is one already.
        """
        if self.isLost:
            producer.stopProducing()
        else:
            self._producer.register(producer, streaming)

    def unregisterProducer(self) -> None:
        self._producer.unregister()
        self._closeWhenSent()

    def stopConsuming(self) -> None:
        """
        Do without the producer, and close.
        """
        self.unregisterProducer()
        self.loseConnection()

    def loseConnection(self) -> None:
        """
        Close when everything is sent.  As with the transport underneath, what a producer has yet to write is included
        if it is a pull producer or the connection has TLS, and not otherwise.
        """
        link = self.link
        if link.state < CLOSING:
            # A TLS close needs the peer's answer.
            link.beginClosing(isReadOn=link.isTLS)
            self._closeWhenSent()

    def loseWriteConnection(self) -> None:
        """
        Close our side when everything is sent.
        """
        self._isHalfClosing = True
        self._closeWhenSent()

    def abortConnection(self) -> None:
        self.link.abort()

    def startTLS(self, *args: Any, **kwargs: Any) -> None:
        """
        Go on with TLS.  What came before must not be taken for what comes after, so the connection is cut off if some
        of it was not handed over yet.  It is also cut off if something that was written before is not sent.
        """
        link = self.link
        self._responses.flush()
        if self._incoming.heldBytes or link.pauses.hasBytesBuffered() or not link.responses.isTaken:
            self.cutOff("TLS was to begin, and there was more from before it, in one direction or the other")
            return
        self.transport.startTLS(*args, **kwargs)
        if not ISSLTransport.providedBy(self.transport):
            # Twisted's own wrappers go on saying what was under them when they were connected.
            alsoProvides(self.transport, ISSLTransport)
        self._provide()
        link.tlsStarted()

    # What the link asks

    def unservedBytes(self) -> int:
        return self._incoming.heldBytes

    def provided(self, isProvided: bool) -> None:
        """
        Called by a protocol that has been granted memory for what comes: it is read even if the pool is empty, until
        this is called again.
        """
        self._incoming.isProvided = isProvided

    def serve(self) -> None:
        self._incoming.serve()

    def sendingBlocked(self, isBlocked: bool) -> None:
        if isBlocked:
            self._producer.hold(Pause.UNSENT)
            return
        self._producer.release(Pause.UNSENT)
        # The producer may have filled the transport again.
        if self.link.responses.isTaken:
            self._incoming.releaseLease()
            self._closeWhenSent()

    def peerKnown(self) -> None:
        self._namePeer()
        if self.link.handshake is None:
            self.factory.introduced(self)
        if self.factory.peerKnown(self):
            self._mayOpen()

    def peerHungUp(self, isReset: bool) -> None:
        link = self.link
        # A protocol that does not read may still want to answer a peer that has closed only its own side.
        isWaitedFor = Pause.PROTOCOL in link.pauses.reasons
        if isReset or not (isWaitedFor or link.hasUnserved):
            # All that is left to read is the end, which the transport reports in its own way.
            link.pauses.lift()

    def closing(self) -> None:
        self.disconnecting = 1
        self._incoming.close()
        if self._messages is not None:
            self._messages.close()

    # What the factory calls

    def closeGracefully(self) -> None:
        """
        Close when everything is sent, or after the grace period.
        """
        self.loseConnection()
        self.link.closeWithin(self.factory.limits.closeGraceSeconds)

    def drain(self) -> None:
        """
        Close when what the protocol works on is over, or after the grace period; close at once if nobody can tell what
        that is.
        """
        drain = self.factory.drainConnection
        if drain is None or self.isClosing or not self._isIntroduced:
            self.closeGracefully()
            return
        self.link.closeWithin(self.factory.limits.closeGraceSeconds)
        drain(self)

    def cutOff(self, reason: str) -> None:
        """
        Close at once, after telling the log why.
        """
        self.link.cutOff(reason)

    # What a site tells it

    def countBytesOf(self, name: tuple[str, str]) -> None:
        """
        From now on the requests of its protocol cannot be told apart: its bytes count, as those of one client.

        @param name: the principal and the client id.
        """
        self._knownName = name
        self._countsReceived = self._countsSent = True
        self._askQuotas()

    def tellApart(self, messages: Messages, name: tuple[str, str] | None = None) -> None:
        """
        What it receives from now on are messages, which are charged for; what is sent counts by its bytes.

        @param name: whose they are, if that is known: the principal and the client id.
        """
        self._knownName = name
        self._messages = messages
        self._countsReceived, self._countsSent = False, True
        self._sent.ask()

    # What its messages tell it

    def pass_(self, data: bytes) -> None:
        """
        Hand C{data} over to the protocol.
        """
        try:
            self.wrappedProtocol.dataReceived(data)
        except FAILURES:
            self._failed()

    # What its driver tells it

    def close(self, reason: str) -> None:
        """
        The policies refuse the connection.
        """
        self.cutOff(reason)

    def throttled(self, delaySeconds: float) -> None:
        """
        Its address opens connections too fast.
        """
        self.link.pause(Pause.OPENING)

    def throttleOver(self) -> None:
        self.link.resume(Pause.OPENING)

    # Deciding

    def _namePeer(self) -> None:
        # The name is kept, since a closed socket cannot tell it any more, and the protocol may still be handed what
        # came before.
        self._hostAddress, self._peerAddress = self.transport.getHost(), self.transport.getPeer()
        self.peer, self.host = self.link.peer, self.link.host

    def _handshakeOver(self) -> None:
        self.link.handshakeCompleted()
        self.factory.introduced(self)

    def _introduce(self) -> None:
        # Only now: a factory that counts its protocols would go on counting those of refused connections.
        try:
            wrapped = self.factory.wrappedFactory.buildProtocol(self.builtFor)
        except FAILURES:
            self._failed()
            return
        if wrapped is None:
            self.abortConnection()
            return
        self.wrappedProtocol = wrapped
        # Before it is connected: from then on Twisted's own wrappers provide whatever we do, and call us for it.
        self._isHandshakeListener = IHandshakeListener.providedBy(wrapped)
        self._isHalfCloseable = IHalfCloseableProtocol.providedBy(wrapped)
        self._provide()
        self._isIntroduced = True
        wrapped.makeConnection(self)

    def _mayOpen(self) -> bool:
        if not self.factory.control.isLimiting:
            return True
        self._driver.opened()
        if self.isClosing:
            return False
        if self._countsReceived:
            self._askQuotas()
        return True

    def _askQuotas(self) -> None:
        # A client over a quota does not get round it by another connection.
        self._received.ask()
        self._sent.ask()

    def _asked(self, kind: str, traits: Traits, sizeBytes: int) -> Request:
        principal, clientId = self._name() or ("", self.factory.clientIdAt(self.host))
        return Request(kind, principal, clientId, self.host, sizeBytes, traits=traits)

    def _noteDebt(self) -> None:
        longest = max(self._received, self._sent, key=attrgetter("untilSeconds"))
        # The charge was just now, so the clock need not be asked again.
        if longest.untilSeconds > self.link.lastActiveSeconds:
            principal, clientId = self._name() or ("", self.factory.clientIdAt(self.host))
            self.factory.debts.owes(principal, clientId, self.host, longest.untilSeconds, longest.policy)

    def _holder(self) -> str:
        principal, _ = self._name() or ("", "")
        return principal or self.host

    def _name(self) -> tuple[str, str] | None:
        """
        The principal and the client id, if anybody knows them.
        """
        if self._knownName is not None:
            return self._knownName
        name: tuple[str, str] | None = None
        # Twisted's own wrappers look up in us what they do not have, so this may be called for them.
        if self.factory.nameOf is not None and self._isIntroduced and not (self.isLost or self._isNaming):
            self._isNaming = True
            try:
                name = self.factory.nameOf(self.wrappedProtocol)
                if not (name is None or (isinstance(name, tuple) and len(name) == 2)):
                    raise TypeError(f"nameOf must return (principal, clientId) or None, not {name!r}")
                if name is not None:
                    name = boundedName(name[0]), boundedName(name[1])
            except FAILURES:
                name = None
                self._failed()
            finally:
                self._isNaming = False
        return name

    def _deliver(self, data: bytes) -> None:
        messages = self._messages
        self._responses.gather()
        if messages is None:
            self.pass_(data)
        else:
            takenBytes = messages.received(data)
            self._incoming.putBack(data[takenBytes:])
            data = data[:takenBytes]
        self._responses.flush()
        # Only now: the data may have told who the client is.
        self.factory.requestBytes += len(data)
        if self._countsReceived:
            self._received.count(len(data), Usage(requestBytes=len(data)))
            self._noteDebt()

    def _failed(self) -> None:
        self.factory.log.failure("the protocol of {peer} failed", peer=self.peer)
        self.abortConnection()

    def _holdReceived(self, isHeld: bool) -> None:
        if isHeld:
            self.link.pause(Pause.THROTTLED)
        else:
            self.link.resume(Pause.THROTTLED)

    def _holdSent(self, isHeld: bool) -> None:
        if isHeld:
            self._producer.hold(Pause.SENT_THROTTLED)
            self.link.pause(Pause.SENT_THROTTLED)
        else:
            # In this order, because the producer may write at once, and so much that this is called again.
            self.link.resume(Pause.SENT_THROTTLED)
            self._producer.release(Pause.SENT_THROTTLED)

    # Closing

    def _tooMuchWritten(self) -> None:
        self._isFull = True
        unsentBytes, maxBytes = self.link.responses.heldBytes, self.factory.maxUnsentBytes
        self.factory.refused(
            self,
            f"{formatBytes(unsentBytes)} wait to be sent, and more is written: that much is sent, and nothing more; "
            f"register a producer, which is paused meanwhile, or allow more than maxUnsentBytes={maxBytes}",
        )
        self.loseConnection()

    def _closeWhenSent(self) -> None:
        link, producer = self.link, self._producer
        isClosing = link.state is CLOSING
        if not (isClosing or (self._isHalfClosing and link.state < CLOSING)):
            return
        self._responses.flush()
        isSupplied = producer.producer is not None and (link.isTLS or not producer.isStreaming)
        if (isSupplied and not self._isFull) or not link.responses.isTaken:
            return
        if isClosing:
            link.closeWhenSent()
            link.closeWithin(self.factory.limits.sendSeconds)
        else:
            self._isHalfClosing = False
            # TLS waits for its producer to go before it closes.
            self.transport.unregisterProducer()
            self.transport.loseWriteConnection()

    def _provide(self) -> None:
        interfaces = [IHalfCloseableProtocol] if self._isHalfCloseable else []
        directlyProvides(self, providedBy(self.transport), IHandshakeListener, *interfaces)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.link!r}>"

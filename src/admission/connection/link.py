# -*- test-case-name: tests.unit.connection.test_link -*-
"""
The part of a connection that deals with its transport, for any protocol.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Protocol

from twisted.internet.interfaces import IHalfCloseableDescriptor, ISSLTransport

from ..interfaces import CONNECTIONS, ILease
from .deadline import Deadline
from .factory import HANDSHAKE_BYTES, TLS_CONNECTION_BYTES, AdmittedFactory, hostOf, peerName
from .handshake import Handshake
from .hangup import filenoOf, unreadBytes
from .pauses import BUSY, Pause, Pauses
from .proxyheader import ProxyHeader, readerOfHeader
from .responses import ResponseQueue, descriptorOf, dropUnsent

PLAIN_CONNECTION_BYTES = 8 << 10
"""
What an open connection is charged for: objects and kernel-side leftovers.  With
TLS it is L{TLS_CONNECTION_BYTES}, and L{HANDSHAKE_BYTES} until the handshake is over.
"""

_LARGEST_CLOSE_NOTIFY_BYTES = 85
"""What a TLS peer sends to say that it closes, at most."""


def keepAlive(transport: Any) -> None:
    """
    Have the system find out whether the peer of C{transport} still exists, if it can do so for transports of this kind.
    """
    setKeepAlive = getattr(transport, "setTcpKeepAlive", None)
    if setKeepAlive is not None:
        try:
            setKeepAlive(True)
        except OSError:
            # The connection is gone already, which it will say itself.
            pass


class LinkState(IntEnum):
    """
    The life of a connection.  It goes forward only, and may skip states.
    """

    OPEN = 0
    """It reads and answers."""

    DRAINING = 1
    """It answers what was read, and reads nothing more."""

    CLOSING = 2
    """It sends what is unsent; what comes is dropped."""

    CLOSED = 3
    """All is sent, and the transport has been told to close."""

    ABORTED = 4
    """The transport has been told to close at once."""

    LOST = 5
    """The transport has said that it is gone."""


# Looked up once: every request compares its connection's state with these, and until Python 3.12 a look costs as much
# as a call.
DRAINING, CLOSING, CLOSED, LOST = LinkState.DRAINING, LinkState.CLOSING, LinkState.CLOSED, LinkState.LOST


class LinkOwner(Protocol):
    """
    What a link asks of its connection.
    """

    @property
    def holder(self) -> str:
        """
        The holder of its memory, see L{IMemoryPool.tryAllocate}.
        """

    @property
    def isWaiting(self) -> bool:
        """
        Whether its request waits for an event, for as long as the peer wanted.
        """

    def unservedBytes(self) -> int:
        """
        The number of bytes received and not served yet.
        """

    def serve(self) -> None:
        """
        Serve what was received as far as the pauses allow, then call L{Link.settle}; now or soon.
        """

    def sendingBlocked(self, isBlocked: bool) -> None:
        """
        The peer has stopped taking bytes, or it has taken all of them.
        """

    def peerHungUp(self, isReset: bool) -> None:
        """
        The peer has closed its side while the connection is paused.

        @param isReset: the connection has failed, and nothing can be read from it.
        """

    def peerKnown(self) -> None:
        """
        The peer is known only now, since the connection is behind a load balancer; it is another than it seemed when
        the connection was made.  Called once, before anything is received, and only if L{Link.proxyHeader} was set.
        """

    def closing(self) -> None:
        """
        Nothing is read from now on: drop what was received, and wait for
        nothing.  Called once, unless the connection is lost first.
        """


class Link:
    """
    Pauses and watches the transport of a connection, charges for what that costs, sends, and closes.

    For the L{Gate <admission.gate.gate.Gate>} it is the reader that may have stalled.

    @ivar state: see L{LinkState}; changed here only.
    @ivar peer: the peer's address, for messages.
    @ivar host: the peer's address without its port.
    @ivar isTLS: whether it is encrypted.
    @ivar handshake: its handshake, until somebody says that it is over.
    @ivar proxyHeader: the header of a load balancer, until it has come; the peer seems to be the balancer until then.
    @ivar pauses: the reasons not to read.
    @ivar responses: what is to be sent.
    @ivar heldCharge: the charge of L{chargeHeld}, if there is one.
    @ivar isServing: whether its owner is serving, and will settle the pauses
        after that; set by the owner.
    @ivar isReadClosed: whether the peer has closed its side, so that there is
        nothing to pause.
    @ivar lastActiveSeconds: when the peer last sent or took something or was
        resumed, in seconds of the factory's clock.
    @ivar answeredSeconds: when it was last answered; zero if it never was.
    @ivar resumedSeconds: when reading was resumed last.
    @ivar closeReason: why we close it, if we do.
    """

    __slots__ = (
        "_awaitsPeer",
        "_descriptor",
        "_factory",
        "_grace",
        "_openCharge",
        "_owner",
        "_sendDeadline",
        "_transport",
        "_watchedFileno",
        "answeredSeconds",
        "closeReason",
        "handshake",
        "heldCharge",
        "host",
        "isReadClosed",
        "isServing",
        "isTLS",
        "lastActiveSeconds",
        "pauses",
        "peer",
        "proxyHeader",
        "responses",
        "resumedSeconds",
        "state",
    )

    def __init__(
        self, owner: LinkOwner, factory: AdmittedFactory, transport: Any, queue: type[ResponseQueue] = ResponseQueue
    ) -> None:
        """
        @param transport: what has just been connected.
        @param queue: makes the queue of responses.
        """
        clock = factory.clock
        self._owner = owner
        self._factory = factory
        self._transport = transport
        self._descriptor = descriptorOf(transport)
        self.state = LinkState.OPEN
        self._namePeer()
        reader = readerOfHeader(transport)
        self.proxyHeader: ProxyHeader | None = None if reader is None else ProxyHeader(reader, self.peerKnown)
        self.isTLS = ISSLTransport.providedBy(transport)
        self.isServing = self.isReadClosed = self._awaitsPeer = False
        self.closeReason: str | None = None
        self.lastActiveSeconds = self.resumedSeconds = clock.seconds()
        self.answeredSeconds = 0.0
        self.pauses = Pauses(transport, clock, owner.unservedBytes, self._readingChanged, self.readingFailed)
        self._watchedFileno: int | None = None
        self._grace = Deadline(clock, self.abort)
        self._sendDeadline = Deadline(clock, self._sendingStopped)
        self.heldCharge: ILease | None = None
        self._openCharge: ILease | None = None
        self.handshake: Handshake | None = None
        if self.isTLS and self.pauses.isHandshaking():
            self._beginHandshake()
        self._chargeOpen()
        self.readAtOnce(factory.readBytes)
        keepAlive(transport)
        self.responses = queue(transport, factory.gate.pool, clock.seconds, self._sendingBlocked, self._unsentGrew)

    # Reading

    def pause(self, reason: Pause) -> None:
        """
        Do not read, for C{reason}.
        """
        self.pauses.add(reason)
        self.settle()

    def resume(self, reason: Pause) -> None:
        """
        C{reason} is gone: if it was the last, serve what was received, then
        read again.
        """
        self.pauses.discard(reason)
        self._owner.serve()

    def settle(self) -> None:
        """
        Pause or resume the transport as the pauses say.  What was received must
        have been served as far as they allow.
        """
        if not (self.isServing or self.isReadClosed) and self.state < CLOSING:
            self.pauses.settle()

    def readAtOnce(self, sizeBytes: int) -> None:
        """
        Have the transport read at most C{sizeBytes} in a turn of the reactor: that much is received before anything can
        be paused.
        """
        if self._descriptor is not None:
            self._descriptor.bufferSize = sizeBytes

    def chargeHeld(self) -> None:
        """
        Charge for what was received and is not served.  It is in memory already,
        and may grow although the transport is paused: TLS delivers what it has
        decrypted.
        """
        charge, heldBytes = self.heldCharge, self._owner.unservedBytes()
        if self.state is LOST or heldBytes == (0 if charge is None else charge.sizeBytes):
            return
        self.heldCharge = self._factory.gate.pool.charge(heldBytes, CONNECTIONS) if heldBytes else None
        if charge is not None:
            charge.release()

    @property
    def openBytes(self) -> int:
        """
        The bytes that are charged for the connection's being open.
        """
        return 0 if self._openCharge is None else self._openCharge.sizeBytes

    def isIdle(self, sinceSeconds: float) -> bool:
        """
        Whether nothing has happened since C{sinceSeconds} although it was the peer's turn: the connection is read, or
        waits for an event because the peer wanted that.  As long as we keep it from going on, for whatever reason, it
        is not idle.
        """
        if self.lastActiveSeconds > sinceSeconds or self.answeredSeconds > sinceSeconds:
            return False
        reasons = self.pauses.reasons
        if not reasons:
            return not self.pauses.isApplied
        return len(reasons) == 1 and BUSY in reasons and self._owner.isWaiting

    @property
    def hasSpoken(self) -> bool:
        """
        Whether the peer of a new connection has sent anything, read or not.
        """
        if self.handshake is not None:
            if self.handshake.receivedBytes:
                return True
        elif self._owner.unservedBytes() or self.isTLS:
            return True
        fileno = filenoOf(self._transport)
        return fileno is not None and unreadBytes(fileno) > 0

    @property
    def hasUnserved(self) -> bool:
        """
        Whether the peer has sent anything that was not served, wherever it is
        buffered.
        """
        if self._owner.unservedBytes() or self.pauses.hasBytesBuffered():
            return True
        fileno = filenoOf(self._transport)
        return fileno is not None and unreadBytes(fileno) > (_LARGEST_CLOSE_NOTIFY_BYTES if self.isTLS else 0)

    def readingFailed(self) -> None:
        """
        Log the exception that is being handled, and close: what was received
        cannot be served.
        """
        self._factory.log.failure("reading from {peer} failed", peer=self.peer)
        self.cutOff("what it sent could not be read")

    def readClosed(self) -> None:
        """
        The peer has closed its side, and the owner goes on.
        """
        self.isReadClosed = True
        self.pauses.stop()

    def tlsStarted(self) -> None:
        """
        The transport has started TLS.  It is read whatever the pauses say, because a handshake that is not read never
        ends.
        """
        self.isTLS = True
        self._beginHandshake()
        self._chargeOpen()
        self.pauses.lift()

    def handshakeCompleted(self) -> None:
        """
        The handshake is over, or something was received, which tells as much.
        No effect the second time.
        """
        if self.handshake is not None:
            self.handshake.close()
            self.handshake = None
            if self.state is not LOST:
                self._chargeOpen()

    def peerKnown(self) -> None:
        """
        The header of a load balancer has come, or something was received behind it, which tells as much.  No effect
        the second time, nor if the connection is closing.
        """
        if self.proxyHeader is not None and self.state < CLOSING:
            self.proxyHeader.close()
            self.proxyHeader = None
            self._namePeer()
            self._chargeOpen()
            self._owner.peerKnown()

    # What the gate calls

    @property
    def holder(self) -> str:
        """
        The holder of the connection's memory, see L{LinkOwner}.
        """
        return self._owner.holder

    def unsentBytes(self) -> int:
        """
        The number of bytes that the peer has not taken.
        """
        return self.responses.heldBytes

    def largestWriteBytes(self) -> int:
        """
        The size of the largest write among these.
        """
        return self.responses.largestBytes

    def stalledSeconds(self) -> float:
        """
        For how long the peer has taken nothing.
        """
        since = self.responses.pausedSinceSeconds
        return 0.0 if since is None else self._factory.clock.seconds() - since

    def cutOff(self, reason: str) -> None:
        """
        Log why, and close at once.
        """
        if self.state < LinkState.ABORTED:
            self._factory.refused(self._owner, reason)
            self.abort()

    # Ending

    def explain(self, reason: str) -> None:
        """
        Set the reason for closing, unless there is one.
        """
        self.closeReason = self.closeReason or reason

    def drain(self) -> None:
        """
        Read nothing more.  The owner closes when what was read is answered, or
        else the grace period ends.  No effect unless it is open.
        """
        if self.state is not LinkState.OPEN:
            return
        self.state = DRAINING
        self._awaitsPeer = not self.responses.isEmpty()
        self.closeWithin(self._factory.limits.closeGraceSeconds)
        self.pause(Pause.DRAINING)

    def answerSent(self) -> None:
        """
        While draining: an answer was just sent.
        """
        self._awaitsPeer = True

    def beginClosing(self, isReadOn: bool) -> None:
        """
        Serve nothing more, and drop what is received; L{closeWhenSent} closes.
        No effect the second time.

        @param isReadOn: read and drop whatever the pauses say, because the peer
            has to answer the close of TLS.
        """
        if self.state < CLOSING:
            self._end(CLOSING)
            if isReadOn:
                self.pauses.lift()

    def closeWhenSent(self) -> None:
        """
        Close, if closing has begun and the peer has taken everything.
        """
        if self.state is not CLOSING or not self.responses.isTaken:
            return
        self.state = CLOSED
        transport = self._transport
        # TLS waits for its producer to go before it closes.
        transport.unregisterProducer()
        isHalfCloseable = IHalfCloseableDescriptor.providedBy(transport) and not ISSLTransport.providedBy(transport)
        if self._awaitsPeer and isHalfCloseable:
            # A socket that is closed with requests unread resets the connection, and takes back what the peer
            # does not have yet.  So these are read, and dropped, until the peer has everything and hangs up.
            transport.loseWriteConnection()
        else:
            transport.loseConnection()

    def closeWithin(self, seconds: float) -> None:
        """
        Abort after C{seconds}, or earlier if it was called before.
        """
        due = self._grace.dueSeconds
        if self.state is not LOST and (due is None or due > self._factory.clock.seconds() + seconds):
            self._grace.start(seconds)

    def abort(self) -> None:
        """
        Close at once, whatever is unsent.
        """
        if self.state < LinkState.ABORTED:
            self._end(LinkState.ABORTED)
            self._transport.abortConnection()
            # Its memory is free for others now, and not only when the transport says that it is gone.
            dropUnsent(self._transport)
            self.responses.discard()

    def lost(self) -> None:
        """
        The transport is gone: release all charges, and cancel all timers.
        """
        self.state = LOST
        dropUnsent(self._transport)
        self.pauses.stop()
        self._unwatch()
        self._factory.gate.readers.note(self, False)
        self.responses.discard()
        self._grace.close()
        self._sendDeadline.close()
        if self.handshake is not None:
            self.handshake.close()
        if self.proxyHeader is not None:
            self.proxyHeader.close()
        for charge in (self._openCharge, self.heldCharge):
            if charge is not None:
                charge.release()
        self._openCharge = self.heldCharge = None

    def _end(self, state: LinkState) -> None:
        isFirst = self.state < CLOSING
        self.state = state
        if isFirst:
            self.pauses.stop()
            self._owner.closing()
            self.chargeHeld()

    def _chargeOpen(self) -> None:
        charge = self._openCharge
        if self.handshake is not None or self.proxyHeader is not None:
            costBytes = HANDSHAKE_BYTES
        else:
            costBytes = TLS_CONNECTION_BYTES if self.isTLS else PLAIN_CONNECTION_BYTES
        self._openCharge = self._factory.gate.pool.charge(costBytes, CONNECTIONS)
        if charge is not None:
            charge.release()

    def _namePeer(self) -> None:
        address = self._transport.getPeer()
        self.peer = peerName(address)
        self.host = hostOf(address)

    def _beginHandshake(self) -> None:
        factory = self._factory
        self.handshake = Handshake(
            self._transport,
            factory.clock,
            factory.limits.handshakeSeconds,
            factory.limits.settingOf("handshakeSeconds"),
            lambda: not self.pauses.isHandshaking(),
            self.handshakeCompleted,
            self.cutOff,
        )

    # What pauses, the watch and the queue call

    def _readingChanged(self, isPaused: bool) -> None:
        if not isPaused:
            self._unwatch()
            self.lastActiveSeconds = self.resumedSeconds = self._factory.clock.seconds()
            return
        self.chargeHeld()
        self._watchedFileno = filenoOf(self._transport)
        if self._watchedFileno is not None:
            self._factory.hangUpWatch.add(self._watchedFileno, self._peerHungUp)

    def _unwatch(self) -> None:
        if self._watchedFileno is not None:
            self._factory.hangUpWatch.discard(self._watchedFileno)
            self._watchedFileno = None

    def _peerHungUp(self, isReset: bool) -> None:
        if self._watchedFileno is not None:
            self._watchedFileno = None
            self._owner.peerHungUp(isReset)

    def _sendingBlocked(self, isBlocked: bool) -> None:
        if self.state is LOST:
            return
        self._factory.gate.readers.note(self, isBlocked)
        if isBlocked:
            self._sendDeadline.start(self._factory.limits.sendSeconds)
            self._owner.sendingBlocked(True)
            if self.state < CLOSING:
                self.pause(Pause.UNSENT)
            return
        self._sendDeadline.stop()
        self._owner.sendingBlocked(False)
        # The owner may have filled the transport again, or closed.
        if self.responses.isTaken and self._descriptor is not None and self._descriptor.disconnecting:
            # The peer has ended TLS meanwhile, so nothing is read any more.  The transport under TLS would have closed
            # after sending everything, but it has just asked its producer for more instead, and does not come back to
            # closing by itself.
            self._transport.unregisterProducer()
        if self.responses.isTaken and self.state < CLOSING:
            self.lastActiveSeconds = self._factory.clock.seconds()
            self.resume(Pause.UNSENT)

    def _unsentGrew(self) -> None:
        if self.state is not LOST:
            self._factory.gate.readers.grew(self)

    def _sendingStopped(self) -> None:
        queue, limits = self.responses, self._factory.limits
        self.cutOff(
            f"{queue.heldBytes} {queue.heldWords}, and for {limits.sendSeconds:g} s it has taken none "
            f"({limits.settingOf('sendSeconds')})"
        )

    def __repr__(self) -> str:
        if self.state < CLOSING:
            return f"{self.peer} {self.pauses!r}"
        return f"{self.peer} " + ("lost" if self.state is LOST else "closing")


class Linked:
    """
    What both kinds of connection pass on from their link.

    @ivar link: between the connection and its transport.
    """

    link: Link

    @property
    def closeReason(self) -> str | None:
        """
        Why we close it, if we do.
        """
        return self.link.closeReason

    @property
    def isTLS(self) -> bool:
        return self.link.isTLS

    @property
    def isClosing(self) -> bool:
        """
        Whether nothing more is read or sent.
        """
        return self.link.state >= CLOSING

    @property
    def isLost(self) -> bool:
        return self.link.state is LOST

# -*- test-case-name: tests.test_protocol -*-
"""
One connection: frames in, each into memory that was asked for first; one
request at a time; responses out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IAddress, IDelayedCall, IHalfCloseableDescriptor, ISSLTransport, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from ..interfaces import CONNECTIONS, ILease, IWaiter
from ..request import ServerRequest
from .deadline import Deadline
from .framing import Framer, FrameRefused
from .hangup import filenoOf, unreadBytes
from .pauses import BUSY, Pause, Pauses
from .responses import ResponseQueue

if TYPE_CHECKING:
    from .factory import AdmittedFactory

PLAIN_CONNECTION_BYTES = 8 << 10
"""What an open connection is charged for: objects and kernel-side leftovers."""

TLS_CONNECTION_BYTES = 48 << 10
"""The same with TLS state, an incomplete record included."""

_BODY_SHARE = 16

_MAPPED = "::ffff:"
"""How IPv6 writes addresses of IPv4."""

_LARGEST_CLOSE_NOTIFY_BYTES = 85

HUNG_UP = "the client hung up"
FAILED = "its request could not be answered"


def peerName(address: IAddress) -> str:
    """
    C{address} in words.
    """
    host, port = getattr(address, "host", None), getattr(address, "port", None)
    if host is None:
        return str(address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def hostOf(address: IAddress | None) -> str:
    """
    C{address} without its port: what limits by address go by.  One of IPv4 is
    the same at a port that listens on IPv6.
    """
    host = str(getattr(address, "host", ""))
    mapped = host.removeprefix(_MAPPED)
    return host if ":" in mapped else mapped


@implementer(IWaiter)
class AdmittedProtocol(Protocol):
    """
    A protocol of length-prefixed requests behind a L{Gate <admission.gate.Gate>}.

    Subclasses say what to do with a request, in L{requestReceived}, and answer
    it with L{respond} or L{finish}, then or later.  The next request is read
    after that.

    @cvar headBytes: how much of a frame's body L{refuseFrame} wants to see.
    @cvar makeRequest: makes a request of one whose length has been read, given
        what L{ServerRequest} is given.
    @ivar factory: the L{AdmittedFactory} that made it.
    @ivar request: the request that is read or worked on, if there is one.
    @ivar holder: whose memory it asks for: its principal, or its address while
        that is not known.
    @ivar requestCount: how many requests have come, those included that were refused.
    @ivar connectionId: its number among those that observers were told of; zero
        if nobody wants to know.
    @ivar openedSeconds: when it was opened, in seconds of the factory's clock.
    @ivar listener: the port that it came by, as the operator describes it.
    @ivar principal: who is at the other end, as far as that is known.
    @ivar peer: who is at the other end, in words; known once connected.
    @ivar host: the peer's address without its port.
    @ivar pauses: why it is not read, if it is not.
    @ivar wantedBytes: the memory it waits for, while it does.
    @ivar throttledUntilSeconds: when the last delay of L{throttle} ends or
        ended, in seconds of the factory's clock.
    @ivar closeReason: why we close it, in words, if we do; the factory says.
    @ivar isDraining: whether the request that has been read is the last one, see L{drain}.
    """

    factory: AdmittedFactory
    transport: Any
    headBytes = 0
    makeRequest: Callable[..., ServerRequest] = ServerRequest

    peer = host = holder = ""
    request: ServerRequest | None = None
    requestCount = 0
    connectionId = 0
    listener = ""
    principal: str | None = None
    isTLS = False
    hasPeerGone = False
    isDraining = False
    isClosing = False
    isLost = False
    openedSeconds = lastActiveSeconds = 0.0
    throttledUntilSeconds = 0.0
    closeReason: str | None = None

    _isRunning = False
    _hasTurn = False
    _hasFarewell = False
    _openRequests = 0
    _openCharge: ILease | None = None
    _bufferCharge: ILease | None = None
    _body: ILease | None = None
    _bodyMark = 0
    _quotaCall: IDelayedCall | None = None
    _graceCall: IDelayedCall | None = None
    _watchedFileno: int | None = None

    # What a subclass says

    def requestReceived(self, request: Any) -> None:
        """
        A whole request is there, in C{request.frame}.  Its memory is released
        when it is over; call L{releaseRequest} to be rid of it earlier.

        @param request: what C{makeRequest} made.

        Whatever this raises is logged, and closes the connection.
        """
        raise NotImplementedError

    def refuseFrame(self, sizeBytes: int, head: bytes) -> str | None:
        """
        May a frame of C{sizeBytes}, which begins with C{head}, be read?  May
        be called twice for a frame: before the head is there with an empty one.

        @return: why not, or L{None}.
        """
        largestBytes = self.factory.gate.pool.largestBytes
        if sizeBytes > largestBytes:
            return f"a frame of {sizeBytes} bytes was announced, and the largest allowed is {largestBytes}"
        return None

    def requestsAbandoned(self) -> None:
        """
        The connection is lost: end what waits on behalf of the client.
        """

    @property
    def whyClosed(self) -> str | None:
        """
        Why we close it, as far as that may be recorded.
        """
        return self.closeReason

    def peerGone(self) -> None:
        """
        The peer has hung up, and requests that it sent before are still to be
        served: make what waits only in order to answer it wait no longer.
        From now on C{hasPeerGone} is L{True}.
        """

    def throttleLess(self, delaySeconds: float) -> None:
        """
        Of the delay of L{throttle} that has yet to pass, leave C{delaySeconds}
        at most.
        """
        untilSeconds = self.factory.clock.seconds() + max(delaySeconds, 0.0)
        if self._quotaCall is not None and untilSeconds < self.throttledUntilSeconds:
            self.throttledUntilSeconds = untilSeconds
            self._quotaCall.reset(max(delaySeconds, 0.0))

    def throttleOver(self) -> None:
        """
        The delay of L{throttle} has passed; reading goes on after this.
        """

    # What a subclass calls

    def respond(self, parts: Sequence[bytes], delaySeconds: float = 0.0) -> None:
        """
        Answer the request: send C{parts}, and read the next request, after
        C{delaySeconds} if the client is over its quota.
        """
        request, self.request = self.request, None
        self.send(parts)
        if request is not None:
            self.requestAnswered(request, self.factory.clock.seconds(), delaySeconds)
        self.finish(delaySeconds)

    def requestAnswered(self, request: ServerRequest, now: float, delaySeconds: float = 0.0) -> None:
        """
        The answer to C{request} was handed over, or would have been if the client
        still got it; or it wants none.

        @param delaySeconds: the delay that the client is told.
        """
        if self.isLost or self.isClosing:
            request.expire(self.whyExpired)
        else:
            request.answer(now, delaySeconds)
        self.requestOver(request, now)

    def send(self, parts: Sequence[bytes]) -> None:
        """
        Send C{parts}, unless the connection is lost or closing: the answer to
        a request that is over already.
        """
        if not (self.isLost or self.isClosing):
            self._hasFarewell = self.isDraining
            self.responses.write(parts, sum(map(len, parts)))

    def finish(self, delaySeconds: float = 0.0) -> None:
        """
        The request is over, answered or not.
        """
        request, self.request = self.request, None
        if request is not None:
            self.requestOver(request, self.factory.clock.seconds())
        if self._hasTurn:
            self._endTurn()
        if self.isLost or self.isClosing:
            return
        if self.isDraining:
            self.closeGracefully()
            return
        if delaySeconds > 0:
            self.throttle(delaySeconds)
        self.resume(BUSY)

    def throttle(self, delaySeconds: float) -> None:
        """
        Do not read for C{delaySeconds}: the client is over its quota.  Of two
        delays the one that ends later holds.
        """
        clock = self.factory.clock
        untilSeconds = clock.seconds() + delaySeconds
        if untilSeconds <= self.throttledUntilSeconds or self.isLost or self.isClosing:
            return
        self.throttledUntilSeconds = untilSeconds
        if self._quotaCall is not None:
            self._quotaCall.cancel()
        self._quotaCall = clock.callLater(delaySeconds, self._throttleOver)
        self.pause(Pause.THROTTLED)

    def park(self) -> None:
        """
        The request will be answered later, and until then nothing works on it:
        give back its memory and its turn.
        """
        request = self.request
        assert request is not None
        request.park(self.factory.clock.seconds())
        self._endTurn()

    def requestOver(self, request: ServerRequest, now: float) -> None:
        """
        Nothing is left to do for C{request}, which is no longer the connection's:
        tell whoever wants to know.
        """
        self._openRequests -= 1
        if request.answered is None and request.rejectReason is None and request.expireReason is None:
            request.expire(self.whyExpired)
        request.end(now)
        for observer in self.factory.observers:
            observer.requestOver(request)

    @property
    def whyExpired(self) -> str:
        """
        Why a request that is not answered is not.
        """
        return self.whyClosed or (HUNG_UP if self.isLost or self.hasPeerGone else FAILED)

    def releaseRequest(self) -> None:
        """
        Give back the request's memory, if that has not been done.
        """
        request = self.request
        if request is not None and request.lease is not None:
            request.release(self.factory.clock.seconds())

    def workAgain(self) -> None:
        """
        Have L{requestReceived} called again for a request that it put off: it
        returned without answering and without giving up the lease.
        """
        self._isRunning = True
        try:
            self._work(self.factory.clock.seconds())
        finally:
            self._isRunning = False
        self._run()

    def pause(self, reason: Pause) -> None:
        """
        Do not read, for C{reason}.
        """
        self.pauses.add(reason)
        if not (self._isRunning or self.isClosing or self.isLost):
            self.pauses.settle()

    def resume(self, reason: Pause) -> None:
        """
        C{reason} is gone: if it was the last, serve what is buffered, then
        read again.
        """
        self.pauses.discard(reason)
        pauses, framer = self.pauses, self.framer
        # After most requests there is nothing to do.
        if pauses.reasons or pauses.isApplied or framer.bufferedBytes or framer.lease is not None:
            self._run()

    def close(self, reason: str) -> None:
        """
        Close because of what the peer did, after telling the log why; unsent
        responses are sent, within the grace period.
        """
        if not (self.isClosing or self.isLost):
            self.factory.refused(self, reason)
            self.closeGracefully()

    def cutOff(self, reason: str) -> None:
        """
        Close at once.
        """
        if not self.isLost:
            self.factory.refused(self, reason)
            self.isClosing = True
            self.factory.gate.forget(self)
            self.transport.abortConnection()

    def drain(self) -> None:
        """
        Read no more requests, answer the one that has been read to its end, if
        there is one, and close then; or after the grace period.
        """
        if self.isDraining or self.isClosing or self.isLost:
            return
        self.isDraining = True
        self._hasFarewell = not self.responses.isEmpty()
        self.startGrace()
        self.pause(Pause.DRAINING)
        if BUSY not in self.pauses.reasons:
            self.closeGracefully()

    def closeGracefully(self) -> None:
        """
        Read no more requests; close when what was answered is sent, or after
        the grace period whether or not the peer takes part.
        """
        if self.isClosing or self.isLost:
            return
        self.isClosing = True
        self.factory.gate.forget(self)
        self.framer.discard()
        if not self._hasTurn:
            self.releaseRequest()
        self.startGrace()
        # A TLS close needs the peer's answer, so reading goes on; what it
        # brings is dropped.
        self.pauses.lift()
        self._loseWhenSent()

    def abortConnection(self) -> None:
        """
        Close at once, whatever is unsent.
        """
        if not self.isLost:
            self.transport.abortConnection()

    def startGrace(self) -> None:
        """
        From now on closing takes no longer than the grace period, which begins once.
        """
        if self._graceCall is None:
            self._graceCall = self.factory.clock.callLater(self.factory.limits.closeGraceSeconds, self._graceExpired)

    # What Twisted calls

    def makeConnection(self, transport: Any) -> None:
        """
        Set up before anybody can be told that we are connected.
        """
        factory = self.factory
        clock = factory.clock
        address = transport.getPeer()
        self.peer = peerName(address)
        self.host = self.holder = hostOf(address)
        self.isTLS = ISSLTransport.providedBy(transport)
        self._farewellBytes = _LARGEST_CLOSE_NOTIFY_BYTES if self.isTLS else 0
        self.framer = Framer(self._allocate, self._announced, self.headBytes)
        self.pauses = Pauses(transport, clock.seconds, self._hasBuffered, self._muteChanged)
        self._bodyDeadline = Deadline(clock, self._bodyStopped)
        self._sendDeadline = Deadline(clock, self._sendingStopped)
        self.openedSeconds = self.lastActiveSeconds = clock.seconds()
        if ITCPTransport.providedBy(transport):
            try:
                transport.setTcpNoDelay(True)
            except OSError:
                # A UNIX socket says that it is TCP.
                pass
        self.responses = ResponseQueue(transport, factory.gate.pool, clock.seconds, self._responsesBlocked)
        self._openCharge = factory.gate.pool.charge(
            TLS_CONNECTION_BYTES if self.isTLS else PLAIN_CONNECTION_BYTES, CONNECTIONS
        )
        factory.connected(self)
        for observer in factory.observers:
            observer.connectionOpened(self)
        Protocol.makeConnection(self, transport)  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        """
        Read what has come, as far as the reasons to be mute allow.
        """
        if self.isClosing or self.isLost:
            return
        self.lastActiveSeconds = self.factory.clock.seconds()
        self.framer.feed(data)
        if self.pauses.isApplied:
            self._chargeBuffer()
        if not self._isRunning:
            self._run()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Give back everything; a request that is being worked on keeps its lease
        until it is over, since somebody may be reading it.
        """
        self.isLost = True
        if self.isTLS and not self.isClosing:
            self._explainFailure(reason)
        self._unwatch()
        self.factory.gate.forget(self)
        self.factory.gate.responsesStalled(self, False)
        self.framer.discard()
        self.responses.discard()
        self._bodyDeadline.close()
        self._sendDeadline.close()
        self._body = None
        for call in (self._quotaCall, self._graceCall):
            if call is not None:
                call.cancel()
        self._quotaCall = self._graceCall = None
        for charge in (self._openCharge, self._bufferCharge):
            if charge is not None:
                charge.release()
        self._openCharge = self._bufferCharge = None
        if not self._hasTurn:
            self.releaseRequest()
        self.requestsAbandoned()
        request = self.request
        if request is not None and not request.isWorkedOn:
            self.request = None
            self.requestOver(request, self.factory.clock.seconds())
        for observer in self.factory.observers:
            observer.connectionClosed(self, reason)
        self.factory.disconnected(self)

    # What the gate calls

    @property
    def wantedBytes(self) -> int:
        """
        The memory it waits for.
        """
        return self.framer.wantedBytes or 0

    def leaseGranted(self, lease: ILease) -> None:
        """
        The memory is there.
        """
        if self.request is not None:
            self.request.granted = self.factory.clock.seconds()
        self.framer.grant(lease)
        self.resume(Pause.MEMORY)

    def turnGranted(self) -> None:
        """
        The request that waits may be worked on.
        """
        self._hasTurn = True
        self.pauses.discard(Pause.SERVER_FULL)
        self.workAgain()

    def unsentBytes(self) -> int:
        """
        Bytes of responses that the peer has not taken.
        """
        return self.responses.heldBytes

    def stalledSeconds(self) -> float:
        """
        For how long it has taken none.
        """
        since = self.responses.pausedSinceSeconds
        return 0.0 if since is None else self.factory.clock.seconds() - since

    @property
    def heldBytes(self) -> int:
        """
        All memory that it stands for: being open, what has come and is not
        parsed, requests that are read or worked on, and unsent responses.
        """
        heldBytes = self.framer.bufferedBytes + self.responses.heldBytes
        for lease in (self._openCharge, self.framer.lease, self._requestLease):
            if lease is not None:
                heldBytes += lease.sizeBytes
        return heldBytes

    @property
    def requestBytes(self) -> int:
        """
        The part of L{heldBytes} that requests have: the one that is being read
        and the one that is worked on.
        """
        return sum(lease.sizeBytes for lease in (self.framer.lease, self._requestLease) if lease is not None)

    @property
    def isThrottled(self) -> bool:
        """
        Whether a delay of L{throttle} has yet to pass.
        """
        return self._quotaCall is not None

    # The way of one request

    def _run(self) -> None:
        """
        Parse until there is a reason not to, then let the transport follow.
        """
        if self._isRunning or self.isLost or self.isClosing:
            return
        self._isRunning = True
        reasons = self.pauses.reasons
        try:
            while not reasons and not self.isClosing:
                lease = self.framer.advance()
                if lease is None:
                    break
                self._begin(lease)
        except FrameRefused as refusal:
            self._frameRefused(str(refusal))
        except Exception:
            self.factory.log.failure("reading from {peer} failed", peer=self.peer)
            self.close("what it sent could not be read")
        finally:
            self._isRunning = False
        if self.isClosing or self.isLost:
            return
        if self._bufferCharge is not None and not self.framer.bufferedBytes:
            self._chargeBuffer()
        self._watchBody()
        self.pauses.settle()

    def _frameRefused(self, reason: str) -> None:
        """
        A frame is not read, and so nothing behind it can be: close.
        """
        request, self.request = self.request, None
        if request is None:
            # A length that is negative is refused before there is a request.
            factory = self.factory
            self.requestCount += 1
            self._openRequests += 1
            request = self.makeRequest(
                self, 0, factory.clock.seconds(), self._openRequests, factory.gate.pool.availableBytes
            )
        request.reject(reason)
        self.requestOver(request, self.factory.clock.seconds())
        self.close(reason)

    @property
    def _requestLease(self) -> ILease | None:
        return None if self.request is None else self.request.lease

    def _announced(self, sizeBytes: int, head: bytes) -> str | None:
        if self.request is None:
            factory = self.factory
            self.requestCount += 1
            self._openRequests += 1
            self.request = self.makeRequest(
                self, sizeBytes, factory.clock.seconds(), self._openRequests, factory.gate.pool.availableBytes
            )
        else:
            # What follows the length was late, and memory is asked for only now.
            self.request.asked = self.factory.clock.seconds()
        return self.refuseFrame(sizeBytes, head)

    def _allocate(self, sizeBytes: int) -> ILease | None:
        request = self.request
        assert request is not None
        if request.asked is None:
            request.asked = request.arrived
        lease = self.factory.gate.tryAllocate(self, sizeBytes)
        if lease is None:
            self.pauses.add(Pause.MEMORY)
        else:
            request.granted = request.asked
        return lease

    def _begin(self, lease: ILease) -> None:
        request = self.request
        assert request is not None
        request.lease = lease
        # The last of it came just now, unless it lay here before there was memory for it.
        granted, now = request.granted, self.lastActiveSeconds
        if granted is not None and granted > now:
            now = granted
        request.complete = now
        self.factory.requestCount += 1
        self.factory.requestBytes += lease.sizeBytes
        self.pauses.add(BUSY, self.lastActiveSeconds)
        if self.factory.gate.tryBegin(self):
            self._hasTurn = True
            self._work(now)
        else:
            self.pauses.add(Pause.SERVER_FULL)

    def _work(self, now: float) -> None:
        request = self.request
        assert request is not None
        request.begin(now)
        try:
            self.requestReceived(request)
            return
        except Exception:
            self.factory.log.failure("a request of {peer} failed", peer=self.peer)
        # Only now: what the exception knows of would keep the buffer from being used again.
        self.finish()
        self.close("its request could not be answered")

    def _endTurn(self) -> None:
        self._hasTurn = False
        self.factory.gate.end()

    def _throttleOver(self) -> None:
        self._quotaCall = None
        self.throttleOver()
        self.resume(Pause.THROTTLED)

    def _hasBuffered(self) -> bool:
        return self.framer.bufferedBytes > 0

    def _muteChanged(self, isMuted: bool) -> None:
        if isMuted:
            self._chargeBuffer()
            fileno = filenoOf(self.transport)
            if fileno is not None:
                self._watchedFileno = fileno
                self.factory.hangUpWatch.add(fileno, self._peerHungUp)
        else:
            self._unwatch()
            self.lastActiveSeconds = self.factory.clock.seconds()
            if self._body is not None:
                self._bodyDeadline.start(self.factory.limits.receiveSeconds)

    def _unwatch(self) -> None:
        if self._watchedFileno is not None:
            self.factory.hangUpWatch.discard(self._watchedFileno)
            self._watchedFileno = None

    def _chargeBuffer(self) -> None:
        """
        While it is mute, what has come all the same is charged; it stays
        charged until the last of it is parsed, which many small requests may
        share.
        """
        charge, bufferedBytes = self._bufferCharge, self.framer.bufferedBytes
        if charge is not None:
            if charge.sizeBytes == bufferedBytes:
                return
            self._bufferCharge = None
            charge.release()
        if bufferedBytes:
            self._bufferCharge = self.factory.gate.pool.charge(bufferedBytes, CONNECTIONS)

    def _watchBody(self) -> None:
        """
        A body must arrive: at least a sixteenth of it in each timeout, so that
        neither silence nor a drip can hold memory for long.
        """
        body = self.framer.lease
        if body is None:
            if self._body is not None:
                self._body = None
                self._bodyDeadline.stop()
            return
        filledBytes = self.framer.filledBytes
        if body is not self._body or filledBytes - self._bodyMark >= body.sizeBytes // _BODY_SHARE:
            self._body = body
            self._bodyMark = filledBytes
            self._bodyDeadline.start(self.factory.limits.receiveSeconds)

    def _bodyStopped(self) -> None:
        body = self._body
        if body is None:
            return
        if self.pauses.isApplied:
            self._bodyDeadline.start(self.factory.limits.receiveSeconds)
            return
        self.close(
            f"{self.framer.filledBytes} of the {body.sizeBytes} bytes of its request have come, and for "
            f"{self.factory.limits.receiveSeconds:g} s hardly any (request.receive.timeout)"
        )

    def _responsesBlocked(self, isBlocked: bool) -> None:
        self.factory.gate.responsesStalled(self, isBlocked)
        if isBlocked:
            self._sendDeadline.start(self.factory.limits.sendSeconds)
            if not self.isClosing:
                self.pause(Pause.UNSENT)
            return
        self._sendDeadline.stop()
        if self.isClosing:
            self._loseWhenSent()
        else:
            self.lastActiveSeconds = self.factory.clock.seconds()
            self.resume(Pause.UNSENT)

    def _sendingStopped(self) -> None:
        self.cutOff(
            f"{self.responses.heldBytes} bytes of responses wait, and for "
            f"{self.factory.limits.sendSeconds:g} s it has taken none (response.send.timeout)"
        )

    def _loseWhenSent(self) -> None:
        if self.responses.isEmpty():
            # TLS waits for its producer to go before it closes.
            self.transport.unregisterProducer()
            isHalfCloseable = IHalfCloseableDescriptor.providedBy(self.transport)
            if self._hasFarewell and isHalfCloseable and not ISSLTransport.providedBy(self.transport):
                # A socket that is closed with requests unread resets the connection, and takes back what the peer
                # does not have yet.  So these are read, and dropped, until the peer has everything and hangs up.
                self.transport.loseWriteConnection()
            else:
                self.transport.loseConnection()

    def _graceExpired(self) -> None:
        self._graceCall = None
        self.abortConnection()

    def _peerHungUp(self, isReset: bool) -> None:
        fileno, self._watchedFileno = self._watchedFileno, None
        if self.isLost or fileno is None:
            return
        if not isReset and (self.framer.bufferedBytes or unreadBytes(fileno) > self._farewellBytes):
            # It has sent requests and gone; a producer that wants no
            # acknowledgement does that.  They are read in their turn, and then
            # its end is.
            self.hasPeerGone = True
            self.peerGone()
            return
        self.transport.abortConnection()

    def _explainFailure(self, reason: Failure) -> None:
        """
        TLS closes by itself when a peer does not speak it, or does not like
        our certificate; the log should say so.
        """
        from OpenSSL.SSL import Error

        errors = reason.value.args[:1] if isinstance(reason.value, Error) else ()
        if errors and isinstance(errors[0], list):
            words = ", ".join(error[-1] for error in errors[0])
            self.factory.refused(self, f"TLS failed: {words}")

    def __repr__(self) -> str:
        state = "lost" if self.isLost else "closing" if self.isClosing else repr(self.pauses)
        return f"<{type(self).__name__} {self.peer} {state}>"

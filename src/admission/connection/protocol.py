# -*- test-case-name: tests.unit.connection.test_protocol -*-
"""
One connection: frames in, each into memory allocated first; one request at a
time; responses out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol as TypingProtocol

from twisted.internet.interfaces import IHandshakeListener, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from ..interfaces import ILease, IWaiter
from ..names import nameIn
from ..policyfailure import FAILURES, raiseInterrupt
from ..request import ServerRequest
from ..tlsfailure import whyTlsFailed
from .bodywatch import BodyWatch
from .driver import FAILED, RequestDriver
from .factory import MAX_READ_BYTES, AdmittedFactory
from .framing import Framer, FrameRefused, Framing
from .framings import INT32
from .link import CLOSING, DRAINING, Link, Linked, LinkState
from .pauses import BUSY, UNANSWERED, Pause


class Budget(TypingProtocol):
    """
    A budget that the memory of requests counts against, besides the pool.
    """

    def take(self, request: Any, sizeBytes: int) -> bool:
        """
        Count C{sizeBytes} for C{request}, if there is room.  Otherwise pause the connection, and tell it later to ask
        again.
        """


@implementer(IWaiter, IHandshakeListener)
class FrameProtocol(Linked, Protocol):
    """
    A protocol of requests in frames, read into memory that a L{Gate <admission.gate.gate.Gate>} has granted, and served
    in turns.

    A subclass works on a request in L{frameReceived}, and answers it with L{respond} or L{finish}, then or later.  The
    next request is read after that; or earlier, if this one is set aside with L{setAside}.

    @cvar framing: how frames begin and end; one of L{admission.connection.framings}, or what is like these.
    @cvar headBytes: how much of a frame's body L{refuseFrame} wants to see.
    @cvar hasBoundedAnswers: whether a subclass bounds what it answers while memory is short, with
        L{AnswerRoom.whenRoom <admission.gate.answerroom.AnswerRoom.whenRoom>}.
    @cvar makeRequest: makes the object for a request whose length has been read, given what L{ServerRequest} is given.
    @cvar maxInFlight: how many requests may be set aside before no more are read.
    @ivar factory: the L{AdmittedFactory} that made it.
    @ivar link: between it and its transport; set once connected.
    @ivar driver: takes its requests through the rule; set once connected.
    @ivar request: the request that is read or worked on, if there is one.
    @ivar unanswered: the requests that were set aside and are not over, in the order of their arrival.
    @ivar holder: its principal, or its address while that is not known.
    @ivar requestCount: how many requests have come, including refused ones.
    @ivar connectionId: its number for observers; zero if there are none.
    @ivar openedSeconds: when it was opened, in seconds of the factory's clock.
    @ivar listener: the port that it was accepted on, as the operator describes it.
    @ivar principal: the authenticated client, once known.
    @ivar clientId: what the client calls itself; may be empty.
    @ivar peer: the peer's address, for messages; set once connected.
    @ivar host: the peer's address without its port.
    @ivar pauses: the reasons not to read.
    @ivar budget: what is asked before the pool is, if there is anything.
    @ivar whenServed: called when what was received has been served, as far as the pauses allow, if anybody wants that.
    """

    factory: AdmittedFactory
    transport: Any
    framing: Framing = INT32
    headBytes = 0
    hasBoundedAnswers = False
    makeRequest: Callable[..., ServerRequest] = ServerRequest
    maxInFlight = 1
    budget: Budget | None = None
    whenServed: Callable[[], None] | None = None

    peer = host = holder = clientId = ""
    request: ServerRequest | None = None
    requestCount = 0
    connectionId = 0
    listener = ""
    principal: str | None = None
    hasPeerGone = False
    openedSeconds = 0.0

    _isConnected = False
    _isOpen = False
    _hasTurn = False
    _body: ILease | None = None

    # What a subclass says

    def frameReceived(self, request: Any) -> None:
        """
        A whole frame has its turn: have the policies admit it, by way of L{driver}, and work on it.  Its bytes are
        C{request.frame}; its memory is released when it is over, or earlier by L{releaseRequest}.  Called again for a
        request that had to wait.  An exception is logged, and closes the connection.

        @param request: what C{makeRequest} made.
        """
        raise NotImplementedError

    def refuseFrame(self, sizeBytes: int, head: bytes) -> str | None:
        """
        Decide whether a frame of C{sizeBytes} that begins with C{head} may be
        read.  Called twice if the head comes late, first with an empty one.

        @return: why not, or L{None} if it may.
        """
        largestBytes = self.factory.gate.pool.largestBytes
        if sizeBytes > largestBytes:
            return f"a frame of {sizeBytes} bytes was announced, and the largest allowed is {largestBytes}"
        return None

    def opened(self) -> None:
        """
        The peer's address is known, which behind a load balancer may be later than C{connectionMade}, and the policies
        have been asked about the connection.  Nothing was received yet.
        """

    def requestsAbandoned(self) -> None:
        """
        The connection is lost: cancel what waits on behalf of the client.
        """
        self._cancelSteps()
        self.abandonAll()

    def answerNow(self) -> None:
        """
        The connection closes as soon as the requests that were set aside are over: do not put their answers off.
        """

    @property
    def isDraining(self) -> bool:
        """
        Whether the request that has been read is the last one, see L{drain}.
        """
        return self.link.state is DRAINING

    @property
    def whyClosed(self) -> str | None:
        """
        Why we close it, if that may be recorded.
        """
        return self.closeReason

    def peerGone(self) -> None:
        """
        The peer has hung up, and requests that it sent before are still to be
        served.  Cancel what waits only to answer it.  C{hasPeerGone} is L{True}
        from now on.
        """
        self._cancelSteps()

    # What a subclass calls

    def authenticated(self, principal: str) -> None:
        """
        It is known who the client is.
        """
        self.principal = self.holder = nameIn("principal", principal)

    def respond(self, parts: Sequence[bytes], delaySeconds: float = 0.0) -> None:
        """
        Answer the request: send C{parts}, and read the next request after
        C{delaySeconds}, for which the client is throttled.
        """
        request, self.request = self.request, None
        self.send(parts)
        if request is not None:
            self.requestAnswered(request, self.factory.clock.seconds(), delaySeconds)
        self.finish(delaySeconds)

    def requestAnswered(self, request: ServerRequest, now: float, delaySeconds: float = 0.0) -> None:
        """
        The answer to C{request} was sent, or would have been if the client were
        still there; or it wants none.

        @param delaySeconds: the delay that the client is told.
        """
        link = self.link
        if link.state < CLOSING:
            link.answeredSeconds = now
        self.unanswered.pop(request, None)
        self.driver.answered(request, now, delaySeconds)

    def setAside(self, request: ServerRequest) -> None:
        """
        Let a request wait for its answer beside others: call L{finish} then, which has the next one read unless
        C{maxInFlight} wait.  The request is over with L{requestAnswered} or L{abandon}; call L{readOn} after that.  If
        the connection is lost, it is over at once.
        """
        self.request = None
        request.isWorkedOn = False
        if self.isLost:
            self.driver.over(request, self.factory.clock.seconds())
            return
        self.unanswered[request] = None
        if len(self.unanswered) >= self.maxInFlight:
            self.pauses.add(UNANSWERED)

    def abandon(self, request: ServerRequest) -> float:
        """
        A request that was set aside is over without an answer.

        @return: the delay that its client is given for that, in seconds.
        """
        del self.unanswered[request]
        return self.driver.over(request, self.factory.clock.seconds())

    def abandonAll(self) -> None:
        """
        Abandon all requests that were set aside, and are not being worked on.
        """
        for request in list(self.unanswered):
            if not request.isWorkedOn:
                self.abandon(request)

    def readOn(self) -> None:
        """
        Requests that were set aside are over: read on, or close if closing has waited for them.
        """
        reasons = self.pauses.reasons
        if UNANSWERED in reasons and len(self.unanswered) < self.maxInFlight:
            self.resume(UNANSWERED)
        if not self.unanswered and Pause.CLOSING in reasons and not self.isLost:
            self.closeGracefully()

    def send(self, parts: Sequence[bytes]) -> None:
        """
        Send C{parts}, the answer to a request that is over already; no effect if
        the connection is lost or closing.
        """
        link = self.link
        if link.state < CLOSING:
            if link.state is DRAINING:
                link.answerSent()
            sizeBytes = sum(map(len, parts))
            self.factory.responseBytes += sizeBytes
            link.responses.write(parts, sizeBytes)

    def finish(self, delaySeconds: float = 0.0) -> None:
        """
        End the request, answered or not.
        """
        request, self.request = self.request, None
        if request is not None:
            delaySeconds = max(delaySeconds, self.driver.over(request, self.factory.clock.seconds()))
        self.endTurn()
        state = self.link.state
        if state >= DRAINING:
            if state is DRAINING:
                self.closeGracefully()
            return
        if delaySeconds > 0:
            self.throttle(delaySeconds)
        self.resume(BUSY)

    def throttle(self, delaySeconds: float) -> None:
        """
        Do not read for C{delaySeconds}, because the client is over its quota.
        Of two delays the one that ends later holds.
        """
        self.driver.throttle(delaySeconds)

    def park(self) -> None:
        """
        Let the request wait for an event: release its memory and its turn.
        """
        request = self.request
        assert request is not None
        self.driver.park(request)
        self.endTurn()

    def releaseRequest(self) -> None:
        """
        Release the request's memory, unless it has been.
        """
        request = self.request
        if request is not None and request.lease is not None:
            request.release(self.factory.clock.seconds())

    def workAgain(self) -> None:
        """
        Call C{requestReceived} again for a request that it postponed: it
        returned without an answer and without releasing the lease.
        """
        self.link.isServing = True
        try:
            self._work(self.factory.clock.seconds())
        finally:
            self.link.isServing = False
        self.serve()

    def pause(self, reason: Pause) -> None:
        """
        Do not read, for C{reason}.
        """
        self.link.pause(reason)

    def resume(self, reason: Pause) -> None:
        """
        C{reason} is gone: if it was the last, serve what is buffered, then
        read again.
        """
        pauses, framer = self.pauses, self.framer
        pauses.reasons.pop(reason, None)
        # After most requests there is nothing to do.
        if pauses.reasons or pauses.isApplied or framer.bufferedBytes or framer.lease is not None:
            self.serve()

    def close(self, reason: str) -> None:
        """
        Log what the peer did wrong, and close; unsent responses are sent, within
        the grace period.
        """
        if self.link.state < CLOSING:
            self.factory.refused(self, reason)
            self.closeGracefully()

    def cutOff(self, reason: str) -> None:
        self.link.cutOff(reason)

    def drain(self) -> None:
        """
        Read no more requests; close when the one that has been read is answered, even if its client owes time, or after
        the grace period.
        """
        link = self.link
        isHeld = self._letGo(isForgiven=True)
        if link.state is LinkState.OPEN:
            link.drain()
            if BUSY not in self.pauses.reasons:
                self.closeGracefully()
        if isHeld:
            self.workAgain()

    def closeGracefully(self) -> None:
        """
        Read no more requests; close when those that were set aside are answered and all answers are sent, or after the
        grace period.
        """
        link = self.link
        if link.state >= CLOSING:
            return
        if self.unanswered:
            self.startGrace()
            self.pause(Pause.CLOSING)
            self.answerNow()
        else:
            link.beginClosing(isReadOn=True)
            self.startGrace()
            link.closeWhenSent()

    def abortConnection(self) -> None:
        self.link.abort()

    def startGrace(self) -> None:
        """
        Start the grace period, in which closing has to end; no effect the second
        time.
        """
        self.link.closeWithin(self.factory.limits.closeGraceSeconds)

    # What Twisted calls

    def makeConnection(self, transport: Any) -> None:
        """
        Set up before the protocol can be told that it is connected.
        """
        factory = self.factory
        try:
            link = Link(self, factory, transport)
        except BaseException:
            # Nobody else would close it, and nothing can be done on it.
            transport.abortConnection()
            raise
        self.link = link
        self._isConnected = True
        self.pauses = link.pauses
        self._namePeer()
        self.openedSeconds = link.lastActiveSeconds
        self.unanswered: dict[ServerRequest, None] = {}
        self.driver = RequestDriver(self)
        # Kafka's way to frame is the one that is built in.
        self.framer = Framer(
            self.allocate, self._announced, self.headBytes, None if self.framing is INT32 else self.framing
        )
        self._bodyWatch = BodyWatch(factory.gate.bodies, factory.clock, factory.limits, link, self.close)
        if ITCPTransport.providedBy(transport):
            try:
                transport.setTcpNoDelay(True)
            except OSError:
                # A UNIX socket says that it is TCP.
                pass
        factory.connected(self, isStranger=True)
        Protocol.makeConnection(self, transport)  # type: ignore[no-untyped-call]
        if link.proxyHeader is None:
            self._open()

    def dataReceived(self, data: bytes) -> None:
        """
        Read what was received, as far as the pauses allow.
        """
        link = self.link
        if link.state >= CLOSING:
            return
        link.lastActiveSeconds = self.factory.clock.seconds()
        if link.handshake is not None:
            link.handshakeCompleted()
        if link.proxyHeader is not None:
            link.peerKnown()
            if link.state >= CLOSING:
                return
        self.framer.feed(data)
        if self.pauses.isApplied:
            link.chargeHeld()
        if not link.isServing:
            self.serve()

    def handshakeCompleted(self) -> None:
        self.link.handshakeCompleted()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Release everything.  A request that is being worked on keeps its lease
        until it is over, since that work may read it.
        """
        if not self._isConnected:
            return
        link = self.link
        wasClosing = link.state >= CLOSING
        link.lost()
        if link.isTLS and not wasClosing:
            failure = whyTlsFailed(reason)
            if failure is not None:
                self.factory.refused(self, failure)
        self.factory.gate.forget(self)
        self.framer.discard()
        self._bodyOver()
        self._bodyWatch.close()
        self._letGo()
        self.driver.lost()
        if not self._hasTurn:
            self.releaseRequest()
        self.requestsAbandoned()
        request = self.request
        if request is not None and not request.isWorkedOn:
            self.request = None
            self.driver.over(request, self.factory.clock.seconds())
        if self._isOpen:
            for observer in self.factory.observers:
                observer.connectionClosed(self, reason)
        self.factory.disconnected(self)

    # What the gate calls

    @property
    def wantedBytes(self) -> int:
        return self.framer.wantedBytes or 0

    def leaseGranted(self, lease: ILease) -> None:
        if self.request is not None:
            self.request.granted = self.factory.clock.seconds()
        self.framer.grant(lease)
        self.resume(Pause.MEMORY)

    def turnGranted(self) -> None:
        """
        Work on the request that has waited.
        """
        self._hasTurn = True
        self.pauses.discard(Pause.SERVER_FULL)
        self.workAgain()

    @property
    def heldBytes(self) -> int:
        """
        All memory that it accounts for: the open connection, unparsed bytes,
        requests that are read or worked on, and unsent responses.
        """
        link = self.link
        return self.framer.bufferedBytes + link.responses.heldBytes + link.openBytes + self.requestBytes

    @property
    def requestBytes(self) -> int:
        """
        The part of L{heldBytes} that belongs to the request being read and to
        the one being worked on.
        """
        return sum(lease.sizeBytes for lease in (self.framer.lease, self._requestLease) if lease is not None)

    @property
    def throttledUntilSeconds(self) -> float:
        """
        When the last delay of L{throttle} ends or ended, in seconds of the factory's clock.
        """
        return self.driver.throttledUntilSeconds

    # What its driver tells it

    def throttled(self, delaySeconds: float) -> None:
        """
        The client has to wait: nothing of it is read for C{delaySeconds}.
        """
        self.pause(Pause.THROTTLED)

    def throttleOver(self) -> None:
        """
        The delay of L{throttle} has passed: begin with a request that was held back, and read again.
        """
        if self._letGo():
            self.workAgain()
        # Unless that has served the request that waited, which was given a delay of its own.
        if not self.driver.isThrottled:
            self.resume(Pause.THROTTLED)

    # What the link asks

    @property
    def isWaiting(self) -> bool:
        request = self.request
        return request is not None and request.parked is not None and request.resumed is None

    def unservedBytes(self) -> int:
        return self.framer.bufferedBytes

    def serve(self) -> None:
        """
        Parse until there is a reason to pause, then settle the transport.
        """
        link = self.link
        if link.isServing or link.state >= CLOSING:
            return
        link.isServing = True
        pauses = self.pauses
        try:
            while not pauses.reasons and link.state < CLOSING:
                lease = self.framer.advance()
                if lease is None:
                    break
                self._begin(lease)
        except FrameRefused as refusal:
            self._frameRefused(str(refusal))
        except FAILURES:
            self.factory.log.failure("reading from {peer} failed", peer=self.peer)
            self.close("what it sent could not be read")
        finally:
            link.isServing = False
        if link.state >= CLOSING:
            return
        if self.whenServed is not None:
            self.whenServed()
        if link.heldCharge is not None and not self.framer.bufferedBytes:
            # Until the last of it is parsed it stays charged, since many small requests may share it.
            link.chargeHeld()
        self._watchBody()
        pauses.settle()

    def peerKnown(self) -> None:
        self._namePeer()
        if self.factory.peerKnown(self):
            self._open()

    def sendingBlocked(self, isBlocked: bool) -> None:
        if not isBlocked:
            self.link.closeWhenSent()

    def peerHungUp(self, isReset: bool) -> None:
        self.hasPeerGone = True
        if isReset or not self.link.hasUnserved:
            self.link.abort()
        else:
            # It has sent requests and gone; a producer that wants no
            # acknowledgement does that.  They are read in their turn, and then
            # its end is.
            self.peerGone()
            if self.driver.heldSeconds is not None:
                self.closeGracefully()

    def closing(self) -> None:
        self._bodyOver()
        self._letGo()
        self.factory.gate.forget(self)
        self.framer.discard()
        if not self._hasTurn:
            self.releaseRequest()

    # The way of one request

    def _namePeer(self) -> None:
        self.peer = self.link.peer
        self.host = self.holder = self.link.host

    def _open(self) -> None:
        self._isOpen = True
        for observer in self.factory.observers:
            observer.connectionOpened(self)
        self.driver.opened()
        if self.link.state < CLOSING:
            self.opened()

    def _frameRefused(self, reason: str) -> None:
        """
        A frame is refused, so nothing behind it can be read: close.
        """
        request, self.request = self.request, None
        if request is None:
            # A length that is negative is refused before there is a request.
            request = self._requestArrived(0)
        request.reject(reason)
        self.driver.over(request, self.factory.clock.seconds())
        self.close(reason)

    @property
    def _requestLease(self) -> ILease | None:
        return None if self.request is None else self.request.lease

    def _announced(self, sizeBytes: int, head: bytes) -> str | None:
        if self.request is None:
            self.request = self._requestArrived(sizeBytes)
        else:
            # The head of the body was late, and memory is asked for only now.
            self.request.asked = self.factory.clock.seconds()
        reason = self.refuseFrame(sizeBytes, head)
        if self.link.state >= CLOSING and reason is None:
            # The connection was closed on the way, and nothing may be read any more.
            reason = self.closeReason or FAILED
        if reason is None and self.requestCount == 1 and (head or not self.headBytes or not sizeBytes):
            # From now on the request may have to wait for memory, and its body is watched.
            self.factory.introduced(self)
        return reason

    def _requestArrived(self, sizeBytes: int) -> ServerRequest:
        self.requestCount += 1
        return self.driver.arrived(sizeBytes)

    def allocate(self, sizeBytes: int) -> ILease | None:
        request = self.request
        assert request is not None
        if request.asked is None:
            request.asked = request.arrived
        if self.budget is not None and not self.budget.take(request, sizeBytes):
            return None
        lease = self.factory.gate.memory.tryAllocate(self, sizeBytes)
        if lease is None:
            self.pauses.add(Pause.MEMORY)
        else:
            request.granted = request.asked
        return lease

    def _begin(self, lease: ILease) -> None:
        request = self.request
        assert request is not None
        request.lease = lease
        # The last byte of it came just now, unless the bytes lay here before there was memory for them.
        granted, now = request.granted, self.link.lastActiveSeconds
        if granted is not None and granted > now:
            now = granted
        request.complete = now
        self.factory.requestCount += 1
        self.factory.requestBytes += lease.sizeBytes
        # This reason does not hold yet, or the frame would not have been read.
        self.pauses.reasons[BUSY] = self.link.lastActiveSeconds
        if self.factory.gate.turns.tryBegin(self):
            self._hasTurn = True
            self._work(now)
        else:
            self.pauses.add(Pause.SERVER_FULL)

    def _work(self, now: float) -> None:
        request = self.request
        assert request is not None
        request.begin(now)
        try:
            self.frameReceived(request)
            return
        except FAILURES:
            raiseInterrupt()
            self.factory.log.failure("a request of {peer} failed", peer=self.peer)
        # Only now: while the exception refers to the frame its buffer cannot be used again.
        self.finish()
        self.close(FAILED)

    def _cancelSteps(self) -> None:
        if self.request is not None:
            self.request.cancel()
        for request in list(self.unanswered):
            request.cancel()

    def holdBack(self, request: ServerRequest) -> bool:
        """
        Hold a request back, if its client still has to wait because of an earlier connection; see
        L{RequestDriver.holdBack}.

        @return: whether it is held back, or given up because its client has gone.
        """
        if not self.driver.holdBack(request):
            return False
        if self.hasPeerGone:
            self.finish()
            self.closeGracefully()
        else:
            self.endTurn()
            self.factory.gate.bodies.started(self)
        return True

    def _letGo(self, isForgiven: bool = False) -> bool:
        isHeld = self.driver.letGo(isForgiven)
        if isHeld:
            self.factory.gate.bodies.over(self)
        return isHeld

    def endTurn(self) -> None:
        if self._hasTurn:
            self._hasTurn = False
            self.factory.gate.turns.end()

    def _watchBody(self) -> None:
        body = self.framer.lease
        if body is None:
            self._bodyOver()
        elif body is not self._body:
            # There is memory for what comes next.
            self._body = body
            self.link.readAtOnce(min(max(body.sizeBytes, self.factory.readBytes), MAX_READ_BYTES))
            self._bodyWatch.start(body.sizeBytes, self.framer.filledBytes)
        else:
            self._bodyWatch.filled(self.framer.filledBytes)

    def _bodyOver(self) -> None:
        if self._body is not None:
            self._body = None
            self._bodyWatch.stop()
            self.link.readAtOnce(self.factory.readBytes)

    # What the gate asks while a request is held back: its memory is as good as claimed

    def idleSeconds(self, now: float) -> float:
        heldSeconds = self.driver.heldSeconds
        return 0.0 if heldSeconds is None else now - heldSeconds

    def missingBytes(self) -> int:
        return self.requestBytes

    def giveWay(self) -> None:
        """
        Give its memory to others, which wait for it.
        """
        self.close(
            f"its client has to wait, and others wait for the {self.requestBytes} bytes of memory that its request has"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.link!r}>"

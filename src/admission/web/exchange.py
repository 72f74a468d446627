# -*- test-case-name: tests.unit.web.test_site -*-
"""
One HTTP request, on its way through the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any
from weakref import ref

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.python.failure import Failure
from twisted.web.http import SWITCHING
from zope.interface import implementer

from ..connection.bodywatch import BodyWatch
from ..connection.deadline import Deadline
from ..connection.driver import FAILED, RequestDriver
from ..connection.unitofwork import admitWork
from ..connection.wrapped import WrappedConnection
from ..interfaces import CONNECTIONS, Decision, ILease, IWaiter, Refusal
from ..names import nameIn
from ..policyfailure import FAILURES, raiseInterrupt
from ..recording.events import UNKNOWN
from ..request import ServerRequest
from .body import LeasedBody, SpooledBody
from .channels import HTTP2, Channel, asksForWebSocket, hasMore, isUpgraded
from .forwarded import ClientHeader
from .refusalanswers import TOO_LARGE, TOO_MANY, UNAVAILABLE
from .requestkinds import METHODS, OTHER
from .servedsite import ServedSite
from .webcolumns import WebRequestEvent
from .websocketmessages import WebSocketMessages

UNCHARGED_HEAD_BYTES = 8 << 10
"""A head that takes more is charged while its request is in progress; others are part of what a connection costs."""

SMALL_UNREAD_BYTES = 64 << 10
"""The rest of a refused body is read and dropped if it is no longer than this, and the connection goes on."""

UNREAD_BYTES = 16 << 20
UNREAD_SECONDS = 10.0
"""How much of a longer one is, and for how long, so that its sender sees the answer; then the connection ends."""


@implementer(IWaiter)
class Exchange:
    """
    A request of twisted.web, from its headers to its answer.  To the driver it is what a connection is, since requests
    of one connection may be of different clients.

    It is announced, waits for memory if it has a body, takes it, and is whole.  Then the rule is asked, and it begins,
    and is finished; or it is refused on the way, once, or lost.

    @ivar request: what becomes of it; set once its headers are known.
    @ivar isMultiplexed: whether it is a stream beside others of its connection.
    """

    # What the driver asks of a connection.
    hasPeerGone = isLost = isClosing = False
    whyClosed: str | None = None
    listener = ""
    makeRequest = ServerRequest
    hasBoundedAnswers = False

    principal: str | None = None
    wantedBytes = 0
    request: ServerRequest

    _arguments: tuple[bytes, ...] | None = None
    _isAnnounced = False
    _hasBody = False
    _isWaiting = False
    _goOn: Callable[[], None] | None = None
    _isQueued = False
    _isWaitingForTurn = _hasTurn = False
    _isBegun = False
    _isOver = False
    _receivedBytes = 0
    _atMostBytes = 0
    _spoolBytes = 0
    _spooledBytes = 0
    _lease: ILease | None = None
    _head: ILease | None = None
    _body: SpooledBody | None = None
    _watch: BodyWatch | None = None
    _refused: tuple[int, Decision] | None = None
    _isAnswered = False
    _hasEnded = False
    _isCounted = False
    _unread: Deadline | None = None
    _unloggedAt: Any = None
    _continues = False
    _refusal = Refusal.ERROR
    _isForm = False
    _method: str | None = None
    _status = UNKNOWN

    def __init__(self, served: ServedSite, web: Any, connection: WrappedConnection, channel: Channel) -> None:
        """
        @param web: the request of twisted.web.
        @param connection: the one that it came by.
        @param channel: how it came.
        """
        self.factory = served.admission
        self._served = served
        self._web = web
        self._connection = connection
        self._channel = channel
        self.isMultiplexed = channel is HTTP2
        self.host = self.holder = connection.host
        self.connectionId = next(self.factory.workNumbers)
        self._early: list[bytes] = []
        channel.began(connection, web)

    # What the request of twisted.web tells

    def announced(self, sizeBytes: int | None) -> None:
        """
        All of its headers have come, and a body will.

        @param sizeBytes: the length of the body, if that is known.
        """
        self._hasBody = True
        self._arrived(sizeBytes or 0, *self._channel.head(self._web))
        self._atMostBytes = self._served.maxBodyBytesOf(self.request.kind or "")
        if sizeBytes is not None and sizeBytes > self._atMostBytes:
            words = f"a body of {sizeBytes} bytes was announced, and the largest allowed is {self._atMostBytes}"
            self._refuse(TOO_LARGE, Decision(False, reason=words))
            return
        decision = admitWork(self.factory, self._driver, self.request, self._refusal, isAtHead=True)
        if decision.admitted:
            self._wantMemory(self._atMostBytes if sizeBytes is None else sizeBytes)
        else:
            self._refusedBy(decision)

    def takes(self, data: bytes) -> bool:
        """
        Some of the body has come.

        @return: whether the request is to take it now.
        """
        self._receivedBytes += len(data)
        if self._isOver:
            return False
        if self._refused is not None:
            if self._unread is not None and self._receivedBytes > UNREAD_BYTES:
                # Not from within the parser, which may have more of it.
                self._unread.start(0.0)
            return False
        if self._receivedBytes > self._atMostBytes:
            words = f"its body has more than {self._atMostBytes} bytes, the most that is allowed"
            self._refuse(TOO_LARGE, Decision(False, reason=words))
            return False
        if self._isWaiting:
            self._early.append(data)
            return False
        if self._watch is not None:
            self._watch.filled(self._receivedBytes)
        return True

    def took(self) -> None:
        """
        It has taken it; if it has to be written to a file now, nothing more is read.
        """
        if self._body is not None and self._body.isWriting:
            self._pause()

    def whole(self, *arguments: bytes) -> None:
        """
        All of it has come.

        @param arguments: its method, path and version.
        """
        self._arguments = arguments
        if self._isOver:
            return
        if self._hasEnded:
            web = self._web
            self._end()
            self._channel.wasRead(web)
            return
        if self.isMultiplexed and self._channel.isGone(self._connection, self._web):
            # Twisted goes through all that it has read, though the connection was cut off for a stream before this one,
            # or what follows resets this one.
            if not self._isAnnounced:
                self._arrived(0, *arguments)
            return
        if self._isAnswered:
            self._web.finish()
            return
        if not self._isAnnounced:
            self._arrived(0, *arguments)
        elif self._watch is not None:
            self._bodyOver(self._watch)
        self._advance()

    def wrote(self, sizeBytes: int) -> None:
        """
        Some of its answer was written to a stream, which may hold it.
        """
        if not self.isLost:
            self._channel.wrote(self._connection, self._web, sizeBytes)

    def finished(self) -> None:
        """
        Its answer is written.
        """
        if not self._isOver:
            self._over(self._web.code)

    def _over(self, status: int) -> None:
        self._status = status
        if self._isBegun:
            now, driver, request = self.factory.clock.seconds(), self._driver, self.request
            request.responseBytes = self._web.sentLength
            request.answer(now, driver.chargeAnswered(request, now))
        self._end()

    def lost(self) -> None:
        """
        Its client has gone.  Work that has begun goes on, in threads and Deferreds, and nothing says when it is done:
        it is over when it is finished all the same, or the request is forgotten.
        """
        self.hasPeerGone = self.isLost = True
        if self._isOver or not self._isAnnounced:
            return
        if not self._isBegun:
            if not self._isQueued and self._refused is None:
                self._count()
            self._end()
            return
        self._dropBody()
        # What was sent is charged when the work is over.
        self.request.responseBytes = self._web.sentLength
        self.request.release(self.factory.clock.seconds())
        web, self._web = self._web, None
        self._served.abandoned.count += 1
        # Garbage is collected at any moment: in the middle of another request's decision, or in another thread.
        self._forgotten = ref(web, lambda _: self.factory.clock.callLater(0, self._end))

    def finishedLate(self) -> None:
        """
        The work has ended whose client has gone.
        """
        if self._isBegun and self.isLost:
            self._end()

    # What the gate calls

    def leaseGranted(self, lease: ILease) -> None:
        """
        There is memory for its body.
        """
        self._isWaiting = False
        self._receiveInto(lease)
        if self._refused is not None:
            return
        web = self._web
        if self._continues and not self._early and self._arguments is None:
            web.channel._send100Continue()
        early, self._early = self._early, []
        for data in early:
            web.takeBody(data)
        self._resume()
        self.took()
        self._advance()

    def turnGranted(self) -> None:
        """
        It is its turn among streams that came together.
        """
        self._isWaitingForTurn = False
        self._hasTurn = True
        try:
            # Those before it may have had the connection cut off.
            if not self._channel.isGone(self._connection, self._web):
                self._advance()
        finally:
            self.factory.gate.turns.end()

    # What a recording asks

    def makeEvent(self, connectionId: int, arrivedSeconds: float) -> WebRequestEvent:
        """
        What is recorded of it, with what only a site knows.
        """
        return WebRequestEvent(connectionId, arrivedSeconds, method=self._method, status=self._status)

    # What its driver tells it

    def close(self, reason: str) -> None:
        """
        Not called: it opens no connection.
        """

    def throttled(self, delaySeconds: float) -> None:
        """
        Its client has to wait; only this request does.
        """

    def throttleOver(self) -> None:
        """
        It has waited, or its server stops.
        """
        if not self._isOver and self._driver.letGo():
            self._advance()

    # Its way

    def _arrived(self, sizeBytes: int, method: bytes, uri: bytes, version: bytes) -> None:
        web, served = self._web, self._served
        # Twisted says so only when all of it has come.
        web.method, web.uri, web.clientproto = method, uri, version
        self._method = method.decode() if method in METHODS else OTHER
        web.path = uri.partition(b"?")[0]
        if web.headBytes > UNCHARGED_HEAD_BYTES:
            self._head = self.factory.gate.pool.charge(web.headBytes, CONNECTIONS)
        if served.clientHeader is not None:
            self._behindProxy(served.clientHeader)
        self._refusal = served.refusalOf(web)
        driver = self._driver = RequestDriver(self)
        request = self.request = driver.arrived(sizeBytes)
        request.kind = nameIn("kind", served.kindOf(web))
        name = served.nameOf(web) if served.nameOf is not None else None
        if name is None:
            self.principal, clientId = "", ""
        else:
            self.principal, clientId = nameIn("principal", name[0]), nameIn("clientId", name[1])
        request.principal = self.principal
        request.clientId = clientId or self.principal or self.host
        if self.principal:
            self.holder = self.principal
        # Only now: what the site says of it may have raised.
        self._isAnnounced = True

    def _behindProxy(self, header: ClientHeader) -> None:
        """
        Go by the client's address, as the site does then.
        """
        host = header.clientOf(self._web.requestHeaders, self.host)
        if host != self.host:
            self.host = self.holder = host
            self._web.client = (IPv6Address if ":" in host else IPv4Address)("TCP", host, 0)

    def _wantMemory(self, mostBytes: int) -> None:
        served, gate = self._served, self.factory.gate
        largestBytes = gate.pool.largestBytes
        copies = served.formCopies(self._web)
        if copies:
            self._isForm = True
            self._atMostBytes = mostBytes = min(mostBytes, largestBytes // copies)
            self.wantedBytes = mostBytes * copies
        else:
            self.wantedBytes = min(mostBytes, served.spoolBytes, largestBytes)
            self._spoolBytes = mostBytes - self.wantedBytes
        request = self.request
        if request.sizeBytes > mostBytes:
            words = f"a form of {request.sizeBytes} bytes is larger than there is memory to parse, which is {mostBytes}"
            self._refuse(TOO_LARGE, Decision(False, reason=words))
            return
        if not self.wantedBytes:
            # In chunks, of which there must be none.
            self._web.content = BytesIO()
            return
        request.asked = request.arrived
        lease = gate.memory.tryAllocate(self, self.wantedBytes)
        if lease is not None:
            self._receiveInto(lease)
            return
        self._isWaiting = True
        self._pause()
        # Its sender waits, too, until there is memory.
        self._continues = self._web.requestHeaders.hasHeader(b"Expect")
        self._web.requestHeaders.removeHeader(b"Expect")

    def _receiveInto(self, lease: ILease) -> None:
        self._lease = lease
        self.request.granted = self.factory.clock.seconds()
        if not self._spoolBytes:
            self._web.content = LeasedBody(lease)
        elif self._served.spool.take(self._spoolBytes):
            self._spooledBytes = self._spoolBytes
            self._body = self._web.content = SpooledBody(lease, self._served.inThread, self._written, self._unwritten)
        else:
            words = "there is no room for another body that has to go to a file"
            self._refuse(UNAVAILABLE, Decision(False, 1.0, words))
            return
        if self._arguments is None:
            self._watch = self._channel.expect(self._connection, self._tooSlow)
            self._watch.start(lease.sizeBytes)

    def _advance(self) -> None:
        """
        Go on as far as it can.
        """
        if self._isOver or self._isBegun or self._isQueued or self._isWaiting or self._arguments is None:
            return
        if self._isWaitingForTurn:
            return
        if self._refused is not None:
            self._answerRefusal()
            return
        body = self._body
        if body is not None:
            if body.isWriting or self._goOn is not None:
                return
            if not body.isStored:
                body.flush()
                return
            self._body = None
            self._web.content = body.asFile()
            if not body.isInMemory:
                self._releaseLease()
        if self.isMultiplexed and not self._mayBegin():
            return
        request, now = self.request, self.factory.clock.seconds()
        request.sizeBytes = self._receivedBytes
        request.complete = now
        if self._isForm and self._served.hasTooManyFields(self._web, self._web.content.getvalue()):
            words = f"a form may have {self._served.maxFormFields} fields at most"
            self._refuse(TOO_LARGE, Decision(False, reason=words))
            return
        request.lease, self._lease = self._lease, None
        request.begin(now)
        refusal = self._refusal
        if refusal is Refusal.DELAY and not self.factory.isStopping and self._driver.holdBack(request):
            self._lease, request.lease = request.lease, None
            return
        decision = admitWork(self.factory, self._driver, request, refusal, mayWait=True)
        if decision.places is not None:
            self._isQueued = True
            self._served.abandoned.missed()
            self._driver.awaitPlace(request, decision, refusal, self._placed, lambda: None)
        else:
            self._decided(decision)

    def _mayBegin(self) -> bool:
        """
        Whether this turn of the reactor has time for it: many streams may have come in one read, of which each takes
        its time.
        """
        if not self._hasTurn:
            turns = self.factory.gate.turns
            self._hasTurn = turns.tryBegin(self)
            if not self._hasTurn:
                self._isWaitingForTurn = True
                return False
            turns.end()
        return True

    def _placed(self, decision: Decision) -> None:
        self._isQueued = False
        if not self._isOver:
            self._decided(decision)

    def _decided(self, decision: Decision) -> None:
        if not decision.admitted:
            self._refusedBy(decision)
            return
        assert self._arguments is not None
        request = self.request
        if request.begun is None:
            request.begin(self.factory.clock.seconds())
        self._driver.begin(request)
        self._isBegun = True
        self.factory.workBegun(self)
        self._connection.factory.requestCount += 1
        try:
            self._web.begin(*self._arguments)
        except FAILURES:
            raiseInterrupt()
            self._served.log.failure("a request of {peer} failed", peer=self._connection.peer)
            self._channel.cutOff(self._connection, self._web, FAILED)
            self._end()
            return
        if not (self._isOver or self.isMultiplexed):
            self._mayBeUpgraded()

    def _mayBeUpgraded(self) -> None:
        """
        Its connection may speak something else from now on, or later, and nobody says when the request is over then.
        """
        connection = self._connection
        if connection.wrappedProtocol is not None and isUpgraded(connection):
            name = (self.principal or "", self.request.clientId or self.host)
            if not asksForWebSocket(self._web):
                connection.countBytesOf(name)
            elif hasMore(self._web):
                # What is in the middle of a message would be taken for its beginning.
                connection.cutOff("something came by websocket before the server had agreed to have one")
            else:
                served = self._served
                connection.tellApart(WebSocketMessages(served.admission, connection, served.maxMessageBytes), name)
            self._over(SWITCHING)
        else:
            connection.whenLost.append(self._connectionLost)

    def _connectionLost(self) -> None:
        if not (self._isOver or self.isLost):
            # The code that has taken the transport out of its channel has told it, or nobody has.
            self._over(SWITCHING if self._web.code == SWITCHING else UNKNOWN)

    def _count(self) -> None:
        """
        Its client has gone before it began.  It counts as a request all the same, or nothing would limit clients that
        reset what they ask for: it is asked about as if it were whole, and begins and ends at once.
        """
        request = self.request
        request.sizeBytes = self._receivedBytes
        request.begin(self.factory.clock.seconds())
        if admitWork(self.factory, self._driver, request, self._refusal).admitted:
            self._driver.begin(request)

    def _written(self) -> None:
        if self._isOver or self._refused is not None:
            self._dropBody()
            return
        self._resume()
        self._advance()

    def _unwritten(self, failure: Failure) -> None:
        self._served.log.failure("a body could not be written to a file", failure)
        if not self._isOver:
            self._refuse(UNAVAILABLE, Decision(False, 1.0, "its body could not be written to a file"))

    def _tooSlow(self, reason: str) -> None:
        """
        Its body does not come.
        """
        self.whyClosed = reason
        self._channel.cutOff(self._connection, self._web, reason)

    # Refusing

    def _refusedBy(self, decision: Decision) -> None:
        """
        The policies refuse it.
        """
        self._refuse(UNAVAILABLE if decision.isForAll else TOO_MANY, decision)

    def _refuse(self, status: int, decision: Decision) -> None:
        request = self.request
        if request.rejectReason is None:
            request.reject(decision.reason)
        if status != TOO_LARGE:
            self._served.abandoned.missed()
        self._refused = status, decision
        # From now on what nobody wants is counted.
        self._receivedBytes = 0
        self._dropBody()
        if self._arguments is not None:
            self._answerRefusal()
            return
        # Not from within the parser, which has not seen all of it.
        self._continues = self._web.requestHeaders.hasHeader(b"Expect")
        self._web.requestHeaders.removeHeader(b"Expect")
        self.factory.clock.callLater(0, self._answerRefusal)

    def _answerRefusal(self) -> None:
        if self._isAnswered or self._isOver:
            return
        self._isAnswered = True
        assert self._refused is not None
        status, decision = self._refused
        web = self._web
        if self._channel.turnsAway(self._connection, web):
            return
        isWhole = self._arguments is not None
        if not isWhole and (self._continues or not 0 < self.request.sizeBytes <= SMALL_UNREAD_BYTES):
            self._channel.endsWith(web)
        self._status = status
        # Not when its body is over, which comes after the client has read this.
        self._countAnswer()
        self._served.refusals.write(web, status, decision.delaySeconds, decision.policy, decision.message)
        if isWhole:
            web.finish()
        else:
            # Twisted writes its access log when a request is finished, which one is not whose rest never comes.
            self._unloggedAt = getattr(web.channel, "factory", None)
            self._hasEnded = self._channel.endsUnread(web)
            self._unread = Deadline(self.factory.clock, self._hangUp)
            self._unread.start(UNREAD_SECONDS)

    def _countAnswer(self) -> None:
        if not self._isCounted:
            self._isCounted = True
            self._served.answered(self.request.kind or "", self._status)

    def _hangUp(self) -> None:
        self._channel.hangUp(self._connection, self._web)

    # Reading

    def _pause(self) -> None:
        if self._goOn is None:
            self._goOn = self._channel.pause(self._connection, self._web)

    def _resume(self) -> None:
        goOn, self._goOn = self._goOn, None
        if goOn is not None:
            goOn()

    # Its end

    def _dropBody(self) -> None:
        """
        Give back what it has for a body that nobody wants any more.
        """
        if not self._hasBody:
            return
        if self._isWaiting:
            self._isWaiting = False
            self.factory.gate.memory.forget(self)
        self._resume()
        self._early.clear()
        if self._watch is not None:
            self._bodyOver(self._watch)
        body = self._body
        if body is not None:
            body.close()
            if body.isWriting:
                # It is called again when that is over: a thread reads the memory.
                return
            self._body = None
        self._releaseLease()
        if self._spooledBytes:
            self._served.spool.giveBack(self._spooledBytes)
            self._spooledBytes = 0

    def _bodyOver(self, watch: BodyWatch) -> None:
        self._watch = None
        self._channel.expectNoMore(self._connection, watch)

    def _releaseLease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def _end(self) -> None:
        if self._isOver:
            return
        self._isOver = True
        if self._head is not None:
            self._head.release()
        if self._isWaitingForTurn:
            self.factory.gate.turns.forget(self)
        if self._unread is not None:
            self._unread.close()
        self._dropBody()
        now = self.factory.clock.seconds()
        if self._isQueued:
            self.request.cancel()
        self._driver.lost()
        if self._unloggedAt is not None and not self._web.finished:
            self._unloggedAt.log(self._web)
        if self._refused is not None and self._isAnswered and (self._hasEnded or not self.isLost):
            self.request.answer(now, self._refused[1].delaySeconds)
        self._driver.over(self.request, now)
        self._countAnswer()
        if self._isBegun:
            if self._connectionLost in self._connection.whenLost:
                # It took longer than its site's first turn.
                self._connection.whenLost.remove(self._connectionLost)
            if self.isLost:
                self._served.abandoned.over()
            self.factory.workOver(self)
        # They refer to each other, and what a request has, such as the fields of its form, is not to stay until garbage
        # is collected.
        self._web = self.request.connection = None
        del self._driver

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.request.kind if self._isAnnounced else 'of something'} of {self.host}>"

# -*- test-case-name: tests.unit.web.test_websocketmessages -*-
"""
What clients send by websocket, a message at a time.
"""

from __future__ import annotations

from attrs import frozen
from zope.interface import implementer

from ..admission import Admission
from ..connection.bodywatch import BodyWatch
from ..connection.driver import RequestDriver
from ..connection.link import CLOSING
from ..connection.pauses import Pause
from ..connection.unitofwork import admitWork
from ..connection.wrapped import WrappedConnection
from ..interfaces import ILease, IWaiter, Refusal, Traits
from ..request import ServerRequest
from ..units import formatBytes

MESSAGE, CONTROL, HANDSHAKE = "websocket-message", "websocket-control", "websocket-handshake"
"""Kinds of requests: text or bytes; a ping, pong or close; and what asks for a websocket, where no site does that."""

MAX_MESSAGE_BYTES = 1 << 20

GOING_AWAY, PROTOCOL_ERROR, TOO_BIG, TRY_AGAIN_LATER = 1001, 1002, 1009, 1013
"""Why a connection is closed (RFC 6455, section 7.4.1, and the registry that it makes)."""

_TRAITS = Traits(countsSent=False)
"""Nobody can tell which message answers which: what is sent counts as bytes."""

_MAX_HANDSHAKE_BYTES = 16 << 10
_HANDSHAKE_END = b"\r\n\r\n"
_MAX_HEAD_BYTES = 14
_MAX_CONTROL_BYTES = 125


@frozen
class _Frame:
    """
    How a frame begins (RFC 6455, section 5.2).
    """

    headBytes: int
    sizeBytes: int
    isLast: bool = True
    kind: str = MESSAGE

    @classmethod
    def of(cls, head: bytes) -> _Frame | None:
        """
        The frame that begins with C{head}, if that much has come.
        """
        if len(head) < 2:
            return None
        headBytes, sizeBytes = 2, head[1] & 0x7F
        if sizeBytes >= 126:
            headBytes = 4 if sizeBytes == 126 else 10
            sizeBytes = int.from_bytes(head[2:headBytes], "big")
        headBytes += 4 * (head[1] >> 7)
        if len(head) < headBytes:
            return None
        return cls(headBytes, sizeBytes, bool(head[0] & 0x80), CONTROL if head[0] & 0x08 else MESSAGE)


def checkMessageBytes(maxMessageBytes: int) -> None:
    """
    @raise ValueError: if it is no size of a message.
    """
    if not (isinstance(maxMessageBytes, int) and maxMessageBytes >= 1):
        raise ValueError(f"maxMessageBytes={maxMessageBytes!r}: write a number of bytes, 1 or more")


def closeWith(connection: WrappedConnection, code: int) -> None:
    """
    Tell a client why its connection is closed, and close it.
    """
    connection.write(b"\x88\x02" + code.to_bytes(2, "big"))
    # With the producer, which the channel of a site has left there, TLS would wait for more.
    connection.stopConsuming()


def goAway(connection: WrappedConnection) -> None:
    """
    Close the connection of a client, since the server stops.
    """
    closeWith(connection, GOING_AWAY)


@implementer(IWaiter)
class WebSocketMessages:
    """
    Has each message of a websocket admitted before the protocol has all of it, whatever implements that protocol.

    A message that does not come at once has memory before any of it is handed over; one in several frames, whose size
    nobody knows, as much as a message may have.  One that is too large is not read: its connection is closed, with the
    code 1009.  Policies delay messages and refuse none: a client that is over its quota is not read meanwhile.
    Pings, pongs and closes are requests, too.
    """

    # What its driver asks.
    makeRequest = ServerRequest
    listener = ""
    hasPeerGone = False

    # What the gate asks.
    hasBoundedAnswers = False
    wantedBytes = 0

    _lease: ILease | None = None
    _isEnd = False

    def __init__(
        self,
        admission: Admission,
        connection: WrappedConnection,
        maxMessageBytes: int = MAX_MESSAGE_BYTES,
        isHandshaking: bool = False,
    ) -> None:
        """
        @param connection: the connection, which knows who its client is.
        @param isHandshaking: whether the request that asks for a websocket is still to come.
        """
        self.factory = admission
        self.connectionId = next(admission.workNumbers)
        self.host = connection.host
        self._connection = connection
        self._link = connection.link
        self._driver = RequestDriver(self)
        self._maxMessageBytes = min(maxMessageBytes, admission.gate.pool.largestBytes)
        self._isHandshaking = isHandshaking
        self._handshakeBytes = 0
        # The end of what has come and is not enough to tell what follows.
        self._head = b""
        # The frame of which some was handed over, and what is left of it.
        self._frame: _Frame | None = None
        self._leftBytes = 0
        # Of the message: what its frames before this one have, and how much was handed over.
        self._beforeBytes = self._filledBytes = 0
        self._requests: dict[str, ServerRequest] = {}
        self._watch = BodyWatch(
            admission.gate.bodies, admission.clock, connection.factory.limits, connection.link, connection.cutOff
        )

    # What its connection tells it

    def received(self, data: bytes) -> int:
        """
        Hand over what has come, as far as it is admitted.

        @return: how much of it need not come again.
        """
        link, begin = self._link, 0
        reasons = link.pauses.reasons
        # What came before the end is handed over whatever the reasons say.
        isEnd = self._isEnd = link.isReadClosed or link.state >= CLOSING
        while begin < len(data) and (isEnd or (link.state < CLOSING and not reasons)):
            sizeBytes = self._handshake(data) if self._isHandshaking else self._read(data, begin)
            if sizeBytes is None:
                break
            begin += sizeBytes
        return len(data) if isEnd else begin

    def close(self, reason: str = "") -> None:
        """
        Nothing is read any more.
        """
        factory, now = self.factory, self.factory.clock.seconds()
        factory.gate.forget(self)
        self._driver.lost()
        requests, self._requests = self._requests, {}
        for each in requests.values():
            self._driver.over(each, now)
        self._watch.close()
        self._useMemory(None)

    # What its driver asks and tells

    @property
    def principal(self) -> str | None:
        return self._connection.principal

    @property
    def holder(self) -> str:
        return self.principal or self.host

    @property
    def isLost(self) -> bool:
        return self._connection.isLost

    @property
    def isClosing(self) -> bool:
        return self._connection.isClosing

    @property
    def whyClosed(self) -> str | None:
        return self._connection.whyClosed

    def throttled(self, delaySeconds: float) -> None:
        self._link.pause(Pause.THROTTLED)

    def throttleOver(self) -> None:
        self._driver.letGo()
        self._link.resume(Pause.THROTTLED)

    # What the gate calls

    def leaseGranted(self, lease: ILease) -> None:
        self._useMemory(lease)
        self._link.resume(Pause.MEMORY)

    def turnGranted(self) -> None:
        """
        Not called: what comes here has had its turn.
        """

    # Reading

    def _handshake(self, data: bytes) -> int | None:
        seen = self._head + data
        end = seen.find(_HANDSHAKE_END)
        isWhole = end >= 0
        sizeBytes = end + len(_HANDSHAKE_END) - len(self._head) if isWhole else len(data)
        totalBytes = self._handshakeBytes + sizeBytes
        if totalBytes > _MAX_HANDSHAKE_BYTES:
            self._connection.cutOff(f"what asks for a websocket has more than {formatBytes(_MAX_HANDSHAKE_BYTES)}")
            return None
        if isWhole and not self._mayEnd(HANDSHAKE, totalBytes):
            return None
        self._handshakeBytes = totalBytes
        self._isHandshaking = not isWhole
        self._head = b"" if isWhole else seen[1 - len(_HANDSHAKE_END) :]
        self._handOver(data[:sizeBytes], HANDSHAKE if isWhole else None)
        return sizeBytes

    def _read(self, data: bytes, begin: int) -> int | None:
        """
        Hand over a frame, or some of it.

        @return: how much that is; L{None} if it has to wait, and then nothing has become of it.
        """
        frame, end, head = self._frame, begin + self._leftBytes, b""
        bodyAt = begin
        if frame is None:
            head = self._head + data[begin : begin + _MAX_HEAD_BYTES]
            frame = _Frame.of(head)
            if frame is None:
                self._head = head
                return len(data) - begin
            head = head[: frame.headBytes]
            bodyAt += frame.headBytes - len(self._head)
            end = bodyAt + frame.sizeBytes
            if not self._mayBegin(frame, isWhole=self._isEnd or (frame.isLast and end <= len(data))):
                return None
        isLast = frame.isLast and end <= len(data)
        if isLast and not self._mayEnd(frame.kind, self._beforeOf(frame) + frame.sizeBytes):
            return None
        piece = data[bodyAt:end]
        self._head = b""
        self._leftBytes = end - bodyAt - len(piece)
        self._frame = frame if self._leftBytes else None
        if frame.kind is MESSAGE:
            self._filledBytes += len(piece)
            if isLast:
                self._beforeBytes = self._filledBytes = 0
            else:
                self._watch.filled(self._filledBytes)
                if not self._leftBytes:
                    self._beforeBytes += frame.sizeBytes
        self._handOver(head + piece, frame.kind if isLast else None)
        return bodyAt + len(piece) - begin

    def _beforeOf(self, frame: _Frame) -> int:
        return self._beforeBytes if frame.kind is MESSAGE else 0

    def _mayBegin(self, frame: _Frame, isWhole: bool) -> bool:
        """
        Whether a frame may come that is announced, and has memory, unless its message is here as a whole.
        """
        if frame.kind is CONTROL:
            if frame.sizeBytes > _MAX_CONTROL_BYTES or not frame.isLast:
                self._refuse(PROTOCOL_ERROR, "a ping, pong or close of a websocket is too large, or in several frames")
                return False
            return True
        sizeBytes, mostBytes = self._beforeBytes + frame.sizeBytes, self._maxMessageBytes
        if sizeBytes > mostBytes:
            words = f"a message of {sizeBytes} bytes or more was announced by websocket, and the largest allowed"
            self._refuse(TOO_BIG, f"{words} is {mostBytes} (maxMessageBytes)")
            return False
        request = self._request(MESSAGE)
        if isWhole or self._lease is not None:
            return True
        self.wantedBytes = (sizeBytes if frame.isLast else mostBytes) or 1
        request.asked = self.factory.clock.seconds()
        lease = self.factory.gate.memory.tryAllocate(self, self.wantedBytes)
        if lease is None:
            self._link.pause(Pause.MEMORY)
            return False
        self._useMemory(lease)
        return True

    def _mayEnd(self, kind: str, sizeBytes: int) -> bool:
        """
        Whether the policies admit what has come as a whole.
        """
        driver, request = self._driver, self._request(kind)
        if not self._isEnd and driver.holdBack(request):
            return False
        now = self.factory.clock.seconds()
        request.sizeBytes = sizeBytes
        request.complete = now
        request.begin(now)
        decision = admitWork(self.factory, driver, request, Refusal.DELAY)
        if not decision.admitted:
            self._refuse(TRY_AGAIN_LATER, decision.reason)
            return False
        driver.begin(request)
        return True

    def _handOver(self, data: bytes, ended: str | None) -> None:
        """
        @param ended: the kind of the request that ends with it, if one does.
        """
        request = None if ended is None else self._requests.pop(ended)
        self._connection.pass_(data)
        if request is None:
            return
        driver, now = self._driver, self.factory.clock.seconds()
        self._connection.factory.requestCount += 1
        delaySeconds = driver.chargeAnswered(request, now)
        if ended is MESSAGE:
            self._watch.stop()
            self._useMemory(None)
        driver.answered(request, now, delaySeconds)
        if delaySeconds > 0:
            driver.throttle(delaySeconds)

    def _request(self, kind: str) -> ServerRequest:
        request = self._requests.get(kind)
        if request is None:
            request = self._requests[kind] = self._driver.arrived(0)
            request.kind, request.traits = kind, _TRAITS
            request.principal, request.clientId = self.principal, self._connection.clientId
        return request

    def _useMemory(self, lease: ILease | None) -> None:
        before, self._lease = self._lease, lease
        self._connection.provided(lease is not None)
        if before is not None:
            before.release()
        if lease is not None:
            self._requests[MESSAGE].granted = self.factory.clock.seconds()
            self._watch.start(lease.sizeBytes, self._filledBytes)

    def _refuse(self, code: int, reason: str) -> None:
        connection = self._connection
        connection.factory.refused(connection, reason)
        closeWith(connection, code)

# -*- test-case-name: tests.unit.kafka.client.test_clientconnection -*-
"""
A client's connection to a broker: requests out, responses in.
"""

from __future__ import annotations

import datetime
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from attrs import define
from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

from ..wire.requests import ClientApi, MalformedResponse, clientApi, decodeResponse, encodeRequest, readCorrelationId
from ..wire.versions import API_VERSIONS
from .errors import Disconnected, RequestTimedOut, UnsupportedApi

MAX_RESPONSE_BYTES = 100_000_000
"""The largest response that is read, unless told otherwise; librdkafka's default."""

REQUEST_TIMEOUT_SECONDS = 30.0
"""For how long a response is waited for, unless told otherwise; Kafka's default."""

CLOSE_GRACE_SECONDS = 2.0
"""How long closing may take before the connection is aborted."""

_LENGTH = struct.Struct(">i")
_ERROR = struct.Struct(">ih")
_MILLISECOND = datetime.timedelta(milliseconds=1)
_LARGEST_CORRELATION_ID = 2**31 - 1


@define(eq=False)
class _Pending:
    """
    A request that has not been answered.
    """

    api: ClientApi
    apiVersion: int
    fields: Mapping[str, Any]
    timeoutSeconds: float
    answer: Deferred[Any] | None
    correlationId: int = 0
    timer: IDelayedCall | None = None

    def finish(self, result: Any) -> None:
        """
        Tell whoever asked, unless they do not care any more.
        """
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        answer, self.answer = self.answer, None
        if answer is not None:
            answer.callback(result)


class ClientConnection(Protocol):
    """
    One connection.  Requests may be made before the last one is answered;
    responses come in their order.

    While the broker has the client throttled (C{throttle_time_ms}, KIP-219),
    requests are throttled; their timeout begins when they leave.

    @ivar peer: who is at the other end, in words.
    @ivar versions: for each API key the oldest and the newest version that
        the broker speaks; set once that is known
        (L{admission.kafka.client.connecting.negotiate}).
    @ivar onThrottle: called with seconds, zero included, for each response
        that names a throttle time.
    """

    transport: Any

    def __init__(
        self,
        clock: IReactorTime,
        clientId: str | None,
        *,
        requestTimeoutSeconds: float = REQUEST_TIMEOUT_SECONDS,
        maxResponseBytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        """
        @param clock: measures timeouts; monotonic.
        @param clientId: the name that the client gives itself, if any.
        @param maxResponseBytes: the largest response to read.
        """
        self._clock = clock
        self._clientId = clientId
        self._requestTimeoutSeconds = requestTimeoutSeconds
        self._maxResponseBytes = maxResponseBytes
        self._pending: deque[_Pending] = deque()
        self._held: deque[_Pending] = deque()
        self._lastCorrelationId = 0
        self._quietUntilSeconds = float("-inf")
        self._quietTimer: IDelayedCall | None = None
        self._chunks: list[bytes] = []
        self._receivedBytes = 0
        self._neededBytes = _LENGTH.size
        self._isBody = False
        self._lost: Disconnected | None = None
        self._closing: list[Deferred[None]] = []
        self._aborting: IDelayedCall | None = None
        self.peer = "the broker"
        self.versions: Mapping[int, tuple[int, int]] = {}
        self.onThrottle: Callable[[float], None] = lambda throttleSeconds: None

    @property
    def isOpen(self) -> bool:
        """
        Whether requests can be made.
        """
        return self._lost is None and self.connected != 0

    def connectionMade(self) -> None:
        """
        Requests are small and somebody waits for each.
        """
        peer = self.transport.getPeer()
        self.peer = f"the broker at {getattr(peer, 'host', peer)}:{getattr(peer, 'port', '?')}"
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)

    # Requests

    def versionOf(self, apiName: str) -> int:
        """
        The version in which an API will be asked: the newest that both speak.

        @raise UnsupportedApi: if there is none.
        @raise ValueError: if there is no such API.
        """
        api = clientApi(apiName)
        offered = self.versions.get(api.apiKey)
        version = None if offered is None else api.newestVersion(*offered)
        if version is None:
            spoken = "not at all" if offered is None else f"in versions {offered[0]} to {offered[1]}"
            raise UnsupportedApi(
                f"{self.peer} speaks {apiName} {spoken}, we speak versions {api.minVersion} to {api.maxVersion}"
            )
        return version

    def request(self, apiName: str, fields: Mapping[str, Any], timeoutSeconds: float | None = None) -> Deferred[Any]:
        """
        Ask the broker something, in the newest version that both speak.

        @param apiName: as Kafka's documentation spells it: C{"JoinGroup"}.
        @param fields: one dictionary for all versions; see
            L{admission.kafka.wire.requests.encodeRequest}.
        @param timeoutSeconds: how long to wait for the response, from when
            the request leaves; then the connection is aborted.
        @return: fires with what L{admission.kafka.wire.requests.decodeResponse}
            returns, whatever error codes it carries.  Fails with
            L{Disconnected} when the connection is gone, with
            L{RequestTimedOut}, or with L{UnsupportedApi}.  When it is
            cancelled, the response is dropped.
        """
        try:
            apiVersion = self.versionOf(apiName)
        except UnsupportedApi:
            return fail()
        return self.requestIn(clientApi(apiName), apiVersion, fields, timeoutSeconds)

    def requestIn(
        self, api: ClientApi, apiVersion: int, fields: Mapping[str, Any], timeoutSeconds: float | None = None
    ) -> Deferred[Any]:
        """
        Do the same in a version of the caller's choice.
        """
        if not self.isOpen:
            return fail(self._lost or Disconnected(f"there is no connection to {self.peer}"))
        pending = _Pending(
            api,
            apiVersion,
            fields,
            self._requestTimeoutSeconds if timeoutSeconds is None else timeoutSeconds,
            None,
        )

        def cancel(answer: Deferred[Any]) -> None:
            pending.answer = None
            if pending in self._held:
                self._held.remove(pending)

        answer: Deferred[Any] = Deferred(cancel)
        pending.answer = answer
        if self._held or self._quietUntilSeconds > self._clock.seconds():
            self._held.append(pending)
            self._waitForQuiet()
        else:
            self._send(pending)
        return answer

    def _send(self, pending: _Pending) -> None:
        correlationId = self._lastCorrelationId = (self._lastCorrelationId + 1) & _LARGEST_CORRELATION_ID
        pending.correlationId = correlationId
        try:
            frame = encodeRequest(pending.api, pending.apiVersion, correlationId, self._clientId, pending.fields)
        except Exception:
            pending.finish(Failure())  # type: ignore[no-untyped-call]
            return
        pending.timer = self._clock.callLater(pending.timeoutSeconds, self._timedOut, pending)
        self._pending.append(pending)
        self.transport.write(b"".join(frame))

    def _timedOut(self, pending: _Pending) -> None:
        pending.timer = None
        self._fail(
            RequestTimedOut(f"{self.peer} did not answer {pending.api.name} within {pending.timeoutSeconds:g} seconds")
        )

    # Responses

    def dataReceived(self, data: bytes) -> None:
        """
        Collect responses.  Memory is taken as bytes arrive, not as they are
        announced.
        """
        while data and self._lost is None:
            taken = data[: self._neededBytes - self._receivedBytes]
            data = data[len(taken) :]
            self._chunks.append(taken)
            self._receivedBytes += len(taken)
            if self._receivedBytes == self._neededBytes:
                self._collected()

    def _collected(self) -> None:
        whole = b"".join(self._chunks)
        self._chunks.clear()
        self._receivedBytes = 0
        if self._isBody:
            self._isBody = False
            self._neededBytes = _LENGTH.size
            self._responseReceived(whole)
            return
        (sizeBytes,) = _LENGTH.unpack(whole)
        if not _LENGTH.size <= sizeBytes <= self._maxResponseBytes:
            self._fail(
                Disconnected(
                    f"{self.peer} announced a response of {sizeBytes} bytes, not from 4 to {self._maxResponseBytes}"
                )
            )
            return
        self._isBody = True
        self._neededBytes = sizeBytes

    def _responseReceived(self, frame: bytes) -> None:
        correlationId = readCorrelationId(frame)
        if not self._pending or self._pending[0].correlationId != correlationId:
            self._fail(Disconnected(f"{self.peer} answered request {correlationId}, which was not the next to be"))
            return
        pending = self._pending[0]
        try:
            response = self._decode(pending, frame)
        except MalformedResponse as malformed:
            self._fail(Disconnected(f"{self.peer} breaks the protocol: {malformed}"))
            return
        self._pending.popleft()
        self._noteThrottle(response)
        pending.finish(response)

    def _decode(self, pending: _Pending, frame: bytes) -> Any:
        apiVersion = pending.apiVersion
        if pending.api.apiKey == API_VERSIONS and len(frame) >= _ERROR.size:
            _, errorCode = _ERROR.unpack_from(frame)
            if errorCode == ErrorCode.unsupported_version.value:
                apiVersion = 0
        return decodeResponse(pending.api, apiVersion, frame)

    def _noteThrottle(self, response: Any) -> None:
        throttleMs = getattr(response, "throttleTimeMs", None)
        if throttleMs is None:
            throttle = getattr(response, "throttle_time", None)
            if throttle is None:
                return
            throttleMs = throttle / _MILLISECOND
        throttleSeconds = max(throttleMs, 0) / 1000
        if throttleSeconds:
            until = self._clock.seconds() + throttleSeconds
            self._quietUntilSeconds = max(self._quietUntilSeconds, until)
        self.onThrottle(throttleSeconds)

    def _waitForQuiet(self) -> None:
        if self._quietTimer is None:
            delaySeconds = max(self._quietUntilSeconds - self._clock.seconds(), 0.0)
            self._quietTimer = self._clock.callLater(delaySeconds, self._quietIsOver)

    def _quietIsOver(self) -> None:
        self._quietTimer = None
        if self._quietUntilSeconds > self._clock.seconds():
            self._waitForQuiet()
            return
        while self._held and self._lost is None:
            self._send(self._held.popleft())

    # The end

    def close(self) -> Deferred[None]:
        """
        Close.  What is unanswered fails with L{Disconnected}.

        @return: fires once the connection is gone.
        """
        if not self.connected:
            return succeed(None)
        closed: Deferred[None] = Deferred()
        self._closing.append(closed)
        if self._aborting is None:
            self._aborting = self._clock.callLater(CLOSE_GRACE_SECONDS, self._abort)
            self.transport.loseConnection()
        self._give(Disconnected(f"the connection to {self.peer} was closed"))
        return closed

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        Whoever waits for a response waits in vain.
        """
        self.connected = 0
        self._give(Disconnected(f"{self.peer} closed the connection: {reason.getErrorMessage()}"))
        if self._aborting is not None and self._aborting.active():
            self._aborting.cancel()
        closing, self._closing = self._closing, []
        for closed in closing:
            closed.callback(None)

    def _fail(self, reason: Disconnected) -> None:
        """
        Give up the connection for a reason of our own.
        """
        self._give(reason)
        self._abort()

    def _give(self, reason: Disconnected) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        self._chunks.clear()
        if self._quietTimer is not None:
            self._quietTimer.cancel()
            self._quietTimer = None
        unanswered = [*self._pending, *self._held]
        self._pending.clear()
        self._held.clear()
        for pending in unanswered:
            pending.finish(Failure(reason))  # type: ignore[no-untyped-call]

    def _abort(self) -> None:
        if self.connected:
            self.transport.abortConnection()

# -*- test-case-name: tests.unit.kafka.client.test_clientconnection -*-
"""
A client's connection to a broker: connecting, requests out, responses in.
"""

from __future__ import annotations

import datetime
import struct
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any

from attrs import define, frozen
from kio.schema.errors import ErrorCode
from twisted.internet.defer import CancelledError, Deferred, TimeoutError, fail, inlineCallbacks, succeed
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.interfaces import (
    IDelayedCall,
    IOpenSSLClientConnectionCreator,
    IReactorTime,
    IStreamClientEndpoint,
    ITCPTransport,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from admission._version import __version__
from admission.tlsfailure import whyTlsFailed

from ..wire.primitives import MalformedResponse
from ..wire.requests import MAX_ELEMENTS, ClientApi, clientApi, decodeResponse, encodeRequest, readCorrelationId
from ..wire.versions import API_VERSIONS
from .errors import (
    AuthenticationFailed,
    ClientError,
    Disconnected,
    RequestTimedOut,
    UnsupportedApi,
    checkError,
)
from .sasl import PLAIN, Credentials, PlainConversation, ScramConversation

CLOSE_GRACE_SECONDS = 2.0
"""How long closing may take before the connection is aborted."""

_NEWEST_API_VERSIONS = 3
_LENGTH = struct.Struct(">i")
_ERROR = struct.Struct(">ih")
_MILLISECOND = datetime.timedelta(milliseconds=1)
_LARGEST_CORRELATION_ID = 2**31 - 1


@frozen(kw_only=True)
class ConnectionSettings:
    """
    What all connections of a client have in common.  The defaults are those of
    Kafka's clients, C{maxResponseBytes} that of librdkafka.

    @ivar clientId: the name that the client gives itself, if any.
    @ivar tls: given a broker's host name, makes the options of a TLS
        connection (L{twisted.internet.ssl.optionsForClientTLS} will do);
        L{None} for plain TCP.
    @ivar credentials: to log in with, if the brokers ask for a login.
    @ivar requestTimeoutSeconds: how long to wait for a response.
    @ivar connectTimeoutSeconds: how long connecting may take, negotiating and
        logging in included.
    @ivar maxResponseBytes: the largest response to read.
    @ivar maxElements: how many array elements it may have, at all depths together; each takes some hundred
        bytes beside its own.
    """

    clientId: str | None = "admission"
    tls: Callable[[str], IOpenSSLClientConnectionCreator] | None = None
    credentials: Credentials | None = None
    requestTimeoutSeconds: float = 30.0
    connectTimeoutSeconds: float = 30.0
    maxResponseBytes: int = 100_000_000
    maxElements: int = MAX_ELEMENTS


@define(eq=False)
class _Pending:
    """
    A request without an answer yet.
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
        Fire with C{result}, unless the request was cancelled.
        """
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        answer, self.answer = self.answer, None
        if answer is not None:
            answer.callback(result)


class ClientConnection(Protocol):
    """
    One connection.  Requests may be pipelined; responses come in their order.

    While the broker throttles the client (C{throttle_time_ms}, KIP-219),
    requests wait; their timeout begins when they are sent.

    @ivar peer: what to call the broker in errors.
    @ivar versions: for each API key the oldest and the newest version that
        the broker speaks, once L{negotiate} knows.
    @ivar isOpen: whether requests can be made.
    @ivar onThrottle: called with seconds, zero included, for each response
        that names a throttle time.
    """

    transport: Any

    def __init__(self, clock: IReactorTime, settings: ConnectionSettings) -> None:
        """
        @param clock: measures timeouts; monotonic.
        """
        self._clock = clock
        self._settings = settings
        self._pending: deque[_Pending] = deque()
        self._throttled: deque[_Pending] = deque()
        self._lastCorrelationId = 0
        self._throttledUntilSeconds = float("-inf")
        self._throttleTimer: IDelayedCall | None = None
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
        return self._lost is None and self.connected != 0

    def connectionMade(self) -> None:
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
        Send a request in the newest version that both sides speak.

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
        if not self.isOpen:
            return fail(self._lost or Disconnected(f"there is no connection to {self.peer}"))
        if timeoutSeconds is None:
            timeoutSeconds = self._settings.requestTimeoutSeconds

        def cancel(answer: Deferred[Any]) -> None:
            pending.answer = None
            if pending in self._throttled:
                self._throttled.remove(pending)

        answer: Deferred[Any] = Deferred(cancel)
        pending = _Pending(api, apiVersion, fields, timeoutSeconds, answer)
        if self._throttled or self._throttledUntilSeconds > self._clock.seconds():
            self._throttled.append(pending)
            self._waitForThrottle()
        else:
            self._send(pending)
        return answer

    def _send(self, pending: _Pending) -> None:
        correlationId = self._lastCorrelationId = (self._lastCorrelationId + 1) & _LARGEST_CORRELATION_ID
        pending.correlationId = correlationId
        try:
            clientId = self._settings.clientId
            frame = encodeRequest(pending.api, pending.apiVersion, correlationId, clientId, pending.fields)
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
        # Memory is taken as bytes arrive, not as they are announced.
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
        maxBytes = self._settings.maxResponseBytes
        if not _LENGTH.size <= sizeBytes <= maxBytes:
            self._fail(Disconnected(f"{self.peer} announced a response of {sizeBytes} bytes, not from 4 to {maxBytes}"))
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
        return decodeResponse(pending.api, apiVersion, frame, self._settings.maxElements)

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
            self._throttledUntilSeconds = max(self._throttledUntilSeconds, until)
        self.onThrottle(throttleSeconds)

    def _waitForThrottle(self) -> None:
        if self._throttleTimer is None:
            delaySeconds = max(self._throttledUntilSeconds - self._clock.seconds(), 0.0)
            self._throttleTimer = self._clock.callLater(delaySeconds, self._throttleIsOver)

    def _throttleIsOver(self) -> None:
        self._throttleTimer = None
        if self._throttledUntilSeconds > self._clock.seconds():
            self._waitForThrottle()
            return
        while self._throttled and self._lost is None:
            self._send(self._throttled.popleft())

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
        self._failAll(Disconnected(f"the connection to {self.peer} was closed"))
        return closed

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.connected = 0
        failure = whyTlsFailed(reason)
        self._failAll(
            Disconnected(
                f"{self.peer} closed the connection: {reason.getErrorMessage()}"
                if failure is None
                else f"{self.peer}: {failure}"
            )
        )
        if self._aborting is not None and self._aborting.active():
            self._aborting.cancel()
        closing, self._closing = self._closing, []
        for closed in closing:
            closed.callback(None)

    def _fail(self, reason: Disconnected) -> None:
        """
        Abort the connection for a reason of our own.
        """
        self._failAll(reason)
        self._abort()

    def _failAll(self, reason: Disconnected) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        self._chunks.clear()
        if self._throttleTimer is not None:
            self._throttleTimer.cancel()
            self._throttleTimer = None
        unanswered = [*self._pending, *self._throttled]
        self._pending.clear()
        self._throttled.clear()
        for pending in unanswered:
            pending.finish(Failure(reason))  # type: ignore[no-untyped-call]

    def _abort(self) -> None:
        if self.connected:
            self.transport.abortConnection()


#: Makes the endpoint for a broker's host and port.
EndpointMaker = Callable[[str, int], IStreamClientEndpoint]


def endpointsOf(reactor: Any, settings: ConnectionSettings) -> EndpointMaker:
    """
    Endpoints on the network, with TLS if C{settings} say so.
    """

    def endpointFor(host: str, port: int) -> IStreamClientEndpoint:
        endpoint = HostnameEndpoint(reactor, host.encode("idna"), port, timeout=settings.connectTimeoutSeconds)
        return endpoint if settings.tls is None else wrapClientTLS(settings.tls(host), endpoint)

    return endpointFor


@inlineCallbacks
def negotiate(connection: ClientConnection) -> Generator[Deferred[Any], Any, None]:
    """
    Learn which versions the broker speaks (C{ApiVersions}).

    @return: fails with a L{ClientError} if the broker does not say.
    """
    api = clientApi("ApiVersions")
    software = {"client_software_name": "admission", "client_software_version": __version__}
    response = yield connection.requestIn(api, _NEWEST_API_VERSIONS, software)
    if response.error_code == ErrorCode.unsupported_version:
        # Then the body is that of version 0, and may tell what would have been right (KIP-511).
        offered = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        version = api.newestVersion(*offered.get(api.apiKey, (0, 0)))
        if version is None or version >= _NEWEST_API_VERSIONS:
            raise UnsupportedApi(f"{connection.peer} does not tell what it speaks")
        response = yield connection.requestIn(api, version, software)
    checkError(response.error_code, api.name)
    connection.versions = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}


@inlineCallbacks
def authenticate(connection: ClientConnection, credentials: Credentials) -> Generator[Deferred[Any], Any, None]:
    """
    Log in.

    @param connection: one that has negotiated versions.
    @return: fails with L{AuthenticationFailed}, or what
        L{ClientConnection.request} fails with.
    """
    mechanism = credentials.mechanism
    response = yield connection.request("SaslHandshake", {"mechanism": mechanism})
    if response.error_code:
        raise AuthenticationFailed(
            f"{connection.peer} does not know {mechanism}, only {', '.join(response.mechanisms) or 'nothing'}"
        )
    conversation = PlainConversation(credentials) if mechanism == PLAIN else ScramConversation(credentials)
    message: bytes | None = conversation.first()
    while message is not None:
        response = yield connection.request("SaslAuthenticate", {"auth_bytes": message})
        if response.error_code:
            reason = response.error_message or ErrorCode(response.error_code).name
            raise AuthenticationFailed(f"{connection.peer} refuses {credentials.username!r}: {reason}")
        message = conversation.reply(response.auth_bytes)


@inlineCallbacks
def connectTo(
    endpoint: IStreamClientEndpoint, clock: IReactorTime, settings: ConnectionSettings, place: str = "the broker"
) -> Generator[Deferred[Any], Any, ClientConnection]:
    """
    Connect, learn the broker's versions (L{negotiate}) and log in.

    @param clock: measures timeouts; monotonic.
    @param place: what to call the broker in errors.
    @return: fires with a connection that is ready for requests; fails with
        a L{ClientError}.  It can be cancelled.
    """
    connection = ClientConnection(clock, settings)
    deadline = clock.seconds() + settings.connectTimeoutSeconds

    def timed(step: Deferred[Any]) -> Deferred[Any]:
        return step.addTimeout(max(deadline - clock.seconds(), 0.0), clock)

    try:
        factory: Any = Factory.forProtocol(lambda: connection)
        factory.noisy = False
        yield timed(endpoint.connect(factory))
        yield timed(negotiate(connection))
        if settings.credentials is not None:
            yield timed(authenticate(connection, settings.credentials))
    except TimeoutError as error:
        connection.close()
        raise Disconnected(f"{place} was not ready within {settings.connectTimeoutSeconds:g} seconds") from error
    except (ConnectError, DNSLookupError) as error:
        raise Disconnected(f"cannot connect to {place}: {error}") from error
    except (ClientError, CancelledError):
        connection.close()
        raise
    except Exception as error:
        connection.close()
        raise Disconnected(f"cannot talk to {place}: {error}") from error
    return connection


def connect(
    reactor: Any, clock: IReactorTime, host: str, port: int, settings: ConnectionSettings | None = None
) -> Deferred[ClientConnection]:
    """
    Connect to one broker on the network, without a consumer.

    @param reactor: where to connect.
    @param clock: measures timeouts: a L{admission.clock.MonotonicClock}.
    @return: as L{connectTo}.
    """
    settings = settings or ConnectionSettings()
    return connectTo(endpointsOf(reactor, settings)(host, port), clock, settings, f"{host}:{port}")

# -*- test-case-name: tests.unit.kafka.serving.test_session -*-
"""
One client connection, whatever answers it: how large its requests may be, and the rule that admits them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final, Protocol, TypeVar

from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from admission.connection.factory import AdmittedFactory
from admission.connection.pauses import Pause
from admission.connection.protocol import FrameProtocol
from admission.interfaces import Decision, IWaiter, Refusal, Usage
from admission.recording.events import UNKNOWN

from ..wire.batches import producerIdOf, readHeader
from ..wire.headers import parseRequestHeader
from ..wire.primitives import MalformedRequest
from ..wire.produce import ProduceRequest, producerIds
from ..wire.versions import BY_KEY, FLEXIBLE_FROM
from .kafkarequest import Address, KafkaRequest
from .refusedsequences import RefusedSequences
from .server import ANONYMOUS, Server

S = TypeVar("S", bound=Server[Any])

BEHIND = Decision(False, reason="a batch that comes before it was refused; send that one first")
"""The decision on an idempotent producer's batches that leave a gap."""

_NEVER_HELD_BACK: Final = frozenset(
    (
        *("SaslHandshake", "SaslAuthenticate"),
        *("ApiVersions", "Fetch", "FindCoordinator", "Heartbeat", "JoinGroup", "LeaveGroup", "OffsetCommit"),
        *("OffsetFetch", "SyncGroup", "AlterClientQuotas", "DescribeClientQuotas"),
    )
)
"""What clients need to say who they are, to stay in groups, or to change limits; and Fetch, which waits anyway."""

_TLS_HANDSHAKE = b"\x16\x03"
_OTHER_PROTOCOLS = {
    b"GET ": "an HTTP request",
    b"POST": "an HTTP request",
    b"HEAD": "an HTTP request",
    b"PUT ": "an HTTP request",
    b"OPTI": "an HTTP request",
    b"SSH-": "SSH",
}


def describeLength(sizeBytes: int) -> str:
    """
    Explain, for the log, what an implausible length probably is.

    @return: the end of a sentence, or an empty string.
    """
    prefix = sizeBytes.to_bytes(4, "big")
    if prefix.startswith(_TLS_HANDSHAKE):
        return "; it looks like a TLS handshake on a port that has no TLS"
    other = _OTHER_PROTOCOLS.get(prefix)
    return "" if other is None else f"; it looks like {other}"


def whyRejected(error: Exception) -> str:
    """
    Why a request is rejected, for the log.
    """
    return f"it sent a request that cannot be read: {error}" if isinstance(error, MalformedRequest) else str(error)


class KnownApi(Protocol):
    """
    What a session knows of an API.

    @ivar largestFrameBytes: the largest request; L{None} where the limit for all requests alone counts.
    """

    @property
    def name(self) -> str: ...

    @property
    def largestFrameBytes(self) -> int | None: ...


class SessionFactory(AdmittedFactory):
    """
    The connections of a server that speaks Kafka.
    """

    def clientIdAt(self, host: str) -> str:
        return ""


class IShareWaiter(IWaiter):
    """
    Waits until its backend has a share of the pool for it.
    """

    def allocateAgain() -> None:
        """
        Ask for C{wantedBytes} again.
        """

    def cutOff(reason: str) -> None:
        """
        Wait no more, since nothing will be free.
        """


class Backend:
    """
    What answers the requests of one session: the broker itself, or a node of a cluster.  It is told of them and of what
    happens to the connection, and calls the session.

    @cvar apis: the APIs that clients may use, by key.
    @cvar flexibleFrom: see L{parseRequestHeader}.
    """

    apis: Mapping[int, KnownApi] = BY_KEY
    flexibleFrom = FLEXIBLE_FROM

    @property
    def mayBeStranger(self) -> bool:
        """
        Whether the client says who it is only later.
        """
        return True

    @property
    def needsLogin(self) -> bool:
        """
        Whether we want a login of it, unless it has a certificate.
        """
        return False

    @property
    def isLoggingIn(self) -> bool:
        """
        Whether it may not ask for anything else yet.
        """
        return False

    def received(self, request: KafkaRequest, buffer: memoryview) -> None:
        """
        Work on a request whose header has been read.  Called again for one that had to wait.

        @param buffer: its bytes.
        @raise MalformedRequest: if it cannot be read; then it is rejected.
        """
        raise NotImplementedError

    def refuseBeforeLogin(self, sizeBytes: int, head: bytes) -> str | None:
        """
        Refuse a frame that may not come before a login; see L{FrameProtocol.refuseFrame}.
        """
        return None

    def connected(self) -> None:
        """
        The client is connected.
        """

    def answerNow(self) -> None:
        """
        See L{FrameProtocol.answerNow}.
        """

    def throttleOver(self) -> None:
        """
        The delay of the client has passed, and it is about to be read again.
        """

    def sendingBlocked(self, isBlocked: bool) -> None:
        """
        The client has stopped taking answers, or it has taken all of them.
        """

    def closing(self) -> None:
        """
        Nothing more is read.
        """

    def abandoned(self) -> None:
        """
        The connection is lost, and the requests that waited are over: stop all else that is done for the client.
        """

    def lost(self) -> None:
        """
        Nothing of the connection is left.
        """


@implementer(IShareWaiter)
class KafkaSession(FrameProtocol):
    """
    Speaks the Kafka protocol with one client.  Its C{backend} answers, in the order of the requests.

    @ivar backend: what answers its requests.
    @ivar advertised: where the client is told to find the server; L{None} for
        the address that it has reached.
    @ivar principal: the authenticated name of the client.
    @ivar clientId: the client id in the client's last request.
    @ivar longestDelaySeconds: how long the client may be kept waiting, or its group would miss it.
    @ivar recordedReason: why the connection is closed, where the reason in the log is not for recordings.
    """

    headBytes = 2
    hasBoundedAnswers = True
    makeRequest = KafkaRequest
    maxInFlight = 128
    principal: str = ANONYMOUS
    advertised: Address | None = None
    longestDelaySeconds = inf
    recordedReason: str | None = None
    request: KafkaRequest | None
    unanswered: dict[KafkaRequest, None]  # type: ignore[assignment]

    def __init__(self, server: S, makeBackend: Callable[[KafkaSession, S], Backend]) -> None:
        self._server = server
        self._requestLimitBytes = min(server.settings.socketRequestMaxBytes, server.gate.pool.largestBytes)
        self._refusedSequences: RefusedSequences | None = None
        self.backend: Backend = makeBackend(self, server)

    @property
    def mayBeStranger(self) -> bool:
        return self.backend.mayBeStranger

    @property
    def needsLogin(self) -> bool:
        return self.backend.needsLogin

    @property
    def whyClosed(self) -> str | None:
        return self.recordedReason or self.closeReason

    # What happens to the connection

    def connectionMade(self) -> None:
        self.backend.connected()

    def drain(self) -> None:
        """
        Also give up a login that has not finished.
        """
        if self.backend.isLoggingIn:
            self.closeGracefully()
        else:
            super().drain()

    def answerNow(self) -> None:
        self.backend.answerNow()

    def sendingBlocked(self, isBlocked: bool) -> None:
        self.backend.sendingBlocked(isBlocked)
        super().sendingBlocked(isBlocked)

    def closing(self) -> None:
        self.backend.closing()
        super().closing()

    def requestsAbandoned(self) -> None:
        super().requestsAbandoned()
        self.backend.abandoned()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        self.backend.lost()

    # The way of one request

    def reachedAddress(self) -> Address:
        """
        Where the client is told to find the server.
        """
        if self.advertised is None:
            assert self.transport is not None
            reached = self.transport.getHost()
            self.advertised = Address(getattr(reached, "host", "localhost"), getattr(reached, "port", -1))
        return self.advertised

    def refuseFrame(self, sizeBytes: int, head: bytes) -> str | None:
        """
        Refuse a frame that exceeds the limit for all requests or for its API,
        before any memory is allocated for it.
        """
        isHeaded = len(head) == self.headBytes
        if isHeaded:
            request = self.request
            assert request is not None
            apiKey = request.apiKey = int.from_bytes(head, "big", signed=True)
            api = self.backend.apis.get(apiKey)
            if api is not None:
                request.isOf(api.name)
        if sizeBytes > self._requestLimitBytes:
            return (
                f"a request of {sizeBytes} bytes was announced, and {self._requestLimitBytes} are allowed "
                f"(socket.request.max.bytes){describeLength(sizeBytes)}"
            )
        reason = self.backend.refuseBeforeLogin(sizeBytes, head)
        if reason is not None:
            return reason
        if isHeaded:
            if api is None:
                return f"it sent a request with API key {apiKey}, which is not served"
            limitBytes = api.largestFrameBytes
            if limitBytes is not None and sizeBytes > limitBytes:
                return f"a {api.name} request of {sizeBytes} bytes was announced, and {limitBytes} are allowed"
        return None

    def allocateAgain(self) -> None:
        if self.isClosing:
            return
        self.pauses.discard(Pause.UPSTREAM)
        lease = self.allocate(self.wantedBytes)
        if lease is not None:
            self.leaseGranted(lease)

    def frameReceived(self, request: KafkaRequest) -> None:
        reason = None
        try:
            buffer = request.frame
            header = request.header = parseRequestHeader(buffer, 0, self.backend.flexibleFrom)
            self.clientId = request.clientId = header.clientId or ""
            request.principal = self.principal
            self.backend.received(request, buffer)
        except MalformedRequest as refusal:
            reason = whyRejected(refusal)
        if reason is not None:
            # After the exception, whose traceback would keep the buffer from being reused.
            self.reject(request, reason)

    def reject(self, request: KafkaRequest, reason: str) -> None:
        """
        Refuse a request without an answer, and close.
        """
        request.reject(reason)
        self.finish()
        self.close(reason)

    # What a backend calls

    def admitProduce(self, request: KafkaRequest, produced: ProduceRequest) -> Decision:
        """
        Have the policies admit a Produce request, and begin it.  What depends on a refused one is refused, too.
        """
        identities = request.identities = producerIds(produced)
        if identities:
            request.producerEpoch = _epochIn(produced)
        decision = self.driver.admit(request, Refusal.ERROR)
        if not decision.admitted:
            if self._refusedSequences is None:
                self._refusedSequences = RefusedSequences()
            self._refusedSequences.add(produced)
        elif self._refusedSequences is not None and self._refusedSequences.blocks(produced):
            request.reject(BEHIND.reason)
            return BEHIND
        else:
            self.driver.begin(request)
        return decision

    def charge(self, request: KafkaRequest, usage: Usage, now: float) -> float:
        """
        Charge the usage of a request to its client.

        @return: the delay that the client is given, in seconds.
        """
        # Only a refusal without a response has a delay and is admitted.
        maxRefusalSeconds = self._server.longestRefusalSeconds(self) if request.decision.delaySeconds else inf
        # Fetches have limits of their own, and are never held back.
        isHeldBack = request.kind != "Fetch"
        return min(self.driver.charge(request, usage, now, maxRefusalSeconds, isHeldBack), self.longestDelaySeconds)

    # Waiting

    def throttle(self, delaySeconds: float) -> None:
        super().throttle(min(delaySeconds, self.longestDelaySeconds))

    def throttled(self, delaySeconds: float) -> None:
        """
        Also keep the members of groups from being missed meanwhile.
        """
        super().throttled(delaySeconds)
        self._server.throttled(self, delaySeconds)

    def throttleOver(self) -> None:
        self.backend.throttleOver()
        super().throttleOver()

    def holdBackFirst(self, apiName: str, request: KafkaRequest) -> bool:
        """
        Hold back the first request of a client that has to wait, unless it is of those that clients cannot do without.
        """
        return apiName not in _NEVER_HELD_BACK and self.holdBack(request)


def _epochIn(produced: ProduceRequest) -> int:
    """
    The epoch of the first producer in a request that has one.
    """
    for _, _, records in produced.partitions:
        if records and producerIdOf(records) >= 0:
            return readHeader(records).producerEpoch
    return UNKNOWN

# -*- test-case-name: tests.unit.kafka.test_session -*-
"""
One client connection, whatever answers it: how large its requests may be, and the rule that admits them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from ..clock import wholeMicroseconds
from ..connection.factory import AdmittedFactory
from ..connection.protocol import AdmittedProtocol
from ..interfaces import CONNECTION, Decision, Refusal, Request, Usage
from ..recording.events import UNKNOWN
from .kafkarequest import Address, KafkaRequest
from .refusedsequences import RefusedSequences
from .server import ANONYMOUS, Server
from .wire.batches import producerIdOf, readHeader
from .wire.headers import parseRequestHeader
from .wire.primitives import MalformedRequest
from .wire.produce import ProduceRequest, producerIds
from .wire.versions import BY_KEY, FLEXIBLE_FROM

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

    asksPolicies = True


class KafkaSession(AdmittedProtocol):
    """
    Speaks the Kafka protocol with one client.  A subclass answers it, in the
    order of its requests: see L{headerRead}.

    @cvar apis: the APIs that clients may use, by key.
    @cvar flexibleFrom: see L{parseRequestHeader}.
    @ivar advertised: where the client is told to find the server; L{None} for
        the address that it has reached.
    @ivar principal: the authenticated name of the client.
    @ivar clientId: the client id in the client's last request.
    @ivar lastAdmitted: the last request that the quota policies did not refuse,
        as they see it.
    """

    headBytes = 2
    hasBoundedAnswers = True
    makeRequest = KafkaRequest
    apis: Mapping[int, KnownApi] = BY_KEY
    flexibleFrom = FLEXIBLE_FROM
    principal: str = ANONYMOUS
    lastAdmitted: Request | None = None
    advertised: Address | None = None
    request: KafkaRequest | None

    def __init__(self, server: Server[Any]) -> None:
        self._server = server
        self._requestLimitBytes = min(server.settings.socketRequestMaxBytes, server.gate.pool.largestBytes)
        self._refusedSequences: RefusedSequences | None = None
        # Whether it is known not to owe any time, and since when its first request is held back because it does.
        self._isKnown = False
        self._heldSeconds: float | None = None

    # What a subclass says

    def headerRead(self, request: KafkaRequest, buffer: memoryview) -> None:
        """
        Work on a request whose header has been read.

        @raise MalformedRequest: if it cannot be read; then it is rejected.
        """
        raise NotImplementedError

    def refuseBeforeLogin(self, sizeBytes: int, head: bytes) -> str | None:
        """
        Refuse a frame that may not come before a login; see L{refuseFrame}.
        """
        return None

    @property
    def mayBeStranger(self) -> bool:
        """
        Whether a new connection says who it is only later.
        """
        raise NotImplementedError

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
            assert self.request is not None
            apiKey = self.request.apiKey = int.from_bytes(head, "big", signed=True)
        if sizeBytes > self._requestLimitBytes:
            return (
                f"a request of {sizeBytes} bytes was announced, and {self._requestLimitBytes} are allowed "
                f"(socket.request.max.bytes){describeLength(sizeBytes)}"
            )
        reason = self.refuseBeforeLogin(sizeBytes, head)
        if reason is not None:
            return reason
        if isHeaded:
            api = self.apis.get(apiKey)
            if api is None:
                return f"it sent a request with API key {apiKey}, which is not served"
            limitBytes = api.largestFrameBytes
            if limitBytes is not None and sizeBytes > limitBytes:
                return f"a {api.name} request of {sizeBytes} bytes was announced, and {limitBytes} are allowed"
        return None

    def requestReceived(self, request: KafkaRequest) -> None:
        reason = None
        try:
            buffer = request.frame
            header = request.header = parseRequestHeader(buffer, 0, self.flexibleFrom)
            request.apiKey = header.apiKey
            self.clientId = request.clientId = header.clientId or ""
            request.principal = self.principal
            self.headerRead(request, buffer)
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

    def opened(self) -> None:
        """
        Connections may be limited, too.
        """
        if not self._server.control.wants.decision:
            return
        opening = KafkaRequest(self, 0, self.factory.clock.seconds(), 1, self.factory.gate.pool.availableBytes)
        opening.begin(opening.arrived)
        opening.kind, opening.principal, opening.clientId = CONNECTION, ANONYMOUS, ""
        opening.serviceSeconds = 0.0
        isAdmitted = self._admit(opening, Refusal.ERROR).admitted
        now = self.factory.clock.seconds()
        if isAdmitted:
            delaySeconds = self._charge(opening, Usage(connections=1), now)
            if delaySeconds > 0:
                self.throttle(delaySeconds)
            opening.answer(now)
        else:
            self.close(opening.decision.message)
        self._openRequests += 1
        self.requestOver(opening, now)

    def _admit(self, request: KafkaRequest, refusal: Refusal, identities: Sequence[int] = ()) -> Decision:
        """
        Ask the quota policies whether a request may go ahead.
        """
        assert request.kind is not None
        request.view = Request(request.kind, self.principal, request.clientId, self.host, request.sizeBytes, identities)
        now = wholeMicroseconds(self.factory.clock.seconds())
        decision = self._server.control.admitRequest(request, now, refusal)
        # A refusal, even one that became a delay, is no debt: it does not end when limits change.
        self.lastAdmitted = request.view if decision.admitted and not decision.delays else None
        return decision

    def _admitProduce(self, request: KafkaRequest, produced: ProduceRequest) -> Decision:
        """
        The same for a Produce request: what depends on a refused one is refused, too.
        """
        identities = request.identities = producerIds(produced)
        if identities:
            request.producerEpoch = _epochIn(produced)
        decision = self._admit(request, Refusal.ERROR, identities)
        if not decision.admitted:
            if self._refusedSequences is None:
                self._refusedSequences = RefusedSequences()
            self._refusedSequences.add(produced)
        elif self._refusedSequences is not None and self._refusedSequences.blocks(produced):
            request.reject(BEHIND.reason)
            return BEHIND
        else:
            self._server.control.beginRequest(request, self.factory.clock.seconds())
        return decision

    def _usageOf(self, request: KafkaRequest, responseBytes: int, now: float) -> Usage:
        """
        What a request has used.  The time worked on it is what a recording has, or sums of it would not be the same.
        """
        serviceSeconds = request.serviceSeconds = wholeMicroseconds(request.workedSeconds(now))
        return Usage(request.sizeBytes, responseBytes, serviceSeconds)

    def _charge(self, request: KafkaRequest, usage: Usage, now: float) -> float:
        """
        Charge the usage of a request to its client.

        @return: the delay that the client is given, in seconds.
        """
        server = self._server
        # Only a refusal without a response has a delay and is admitted.
        maxRefusalSeconds = server.longestRefusalSeconds(self) if request.decision.delaySeconds else 0.0
        delaySeconds = server.control.chargeRequest(request, usage, wholeMicroseconds(now), maxRefusalSeconds)
        if delaySeconds > 0:
            # Fetches have limits of their own, and are never held back.
            isHeldBack = request.kind != "Fetch"
            server.debts.owes(
                self.principal, request.clientId, self.host, now + delaySeconds, request.policy, isHeldBack
            )
        return delaySeconds

    # Waiting

    def throttle(self, delaySeconds: float) -> None:
        """
        Also keep the members of groups from being missed meanwhile.
        """
        super().throttle(delaySeconds)
        if self.isThrottled:
            self._server.throttled(self, delaySeconds)

    def throttleOver(self) -> None:
        """
        Also begin with the request that was held back.
        """
        self._server.unthrottled(self)
        if self._heldSeconds is not None:
            self._letGo()
            self.workAgain()

    @property
    def isHeldBack(self) -> bool:
        """
        Whether its first request waits because its client owes time.
        """
        return self._heldSeconds is not None

    def holdBack(self, apiName: str, request: KafkaRequest) -> bool:
        """
        Hold the first request of a connection back while its client has to wait: or whoever is told to wait would
        connect anew.

        @return: whether it is held back.
        """
        if self._isKnown or apiName in _NEVER_HELD_BACK:
            return False
        now = self.factory.clock.seconds()
        delaySeconds = self._server.debts.heldSeconds(self.principal, request.clientId, now)
        self._isKnown = delaySeconds <= 0
        if self._isKnown:
            return False
        if self.hasPeerGone:
            self.finish()
            self.closeGracefully()
            return True
        request.postpone()
        self._endTurn()
        self.throttle(delaySeconds)
        # It has not begun: its memory is as good as claimed.
        self._heldSeconds = now
        self.factory.gate.bodies.started(self)
        return True

    def _letGo(self) -> None:
        if self._heldSeconds is not None:
            self._heldSeconds = None
            self.factory.gate.bodies.over(self)

    def idleSeconds(self, now: float) -> float:
        return super().idleSeconds(now) if self._heldSeconds is None else now - self._heldSeconds

    def missingBytes(self) -> int:
        return super().missingBytes() if self._heldSeconds is None else self.requestBytes

    # Ending

    def drain(self) -> None:
        """
        Also hold no request back.
        """
        isHeld = self._heldSeconds is not None
        self._letGo()
        super().drain()
        if isHeld:
            self._isKnown = True
            self.workAgain()

    def closing(self) -> None:
        self._letGo()
        super().closing()

    def peerGone(self) -> None:
        """
        Requests that the client sent before it left are still served, but for one that is held back.
        """
        if self._heldSeconds is not None:
            self.closeGracefully()

    def requestsAbandoned(self) -> None:
        self._letGo()
        self._server.unthrottled(self)


def _epochIn(produced: ProduceRequest) -> int:
    """
    The epoch of the first producer in a request that has one.
    """
    for _, _, records in produced.partitions:
        if records and producerIdOf(records) >= 0:
            return readHeader(records).producerEpoch
    return UNKNOWN

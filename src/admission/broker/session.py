# -*- test-case-name: tests.test_session -*-
"""
One client connection: frames in, responses out in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from ..clock import wholeMicroseconds
from ..connection.protocol import AdmittedProtocol
from ..interfaces import CONNECTION, NOTHING, PARKED, Decision, ILease, Request, Usage
from ..wire.codec import decodeRequest, encodeResponse
from ..wire.headers import RequestHeader, frame, parseRequestHeader
from ..wire.primitives import MalformedRequest
from ..wire.produce import PartitionResult, ProduceRequest, parseProduce
from ..wire.versions import API_VERSIONS, BY_KEY, PRODUCE, Api, served
from .api import configs, fetch, groupadmin, groups, metadata, offsets, produce, quotas, security, topics
from .broker import ANONYMOUS, Address, Answer, Body, Broker, Call, Serve, Work
from .gaps import Gap
from .producing import ALL, CLOSING, Producing, throttleTimeMs
from .recording import NO_LOGIN, RecordedRequest
from .security.login import Authenticator

DECODED_ELEMENT_BYTES = 256
"""What one element of a decoded request is charged for."""

_SERVED_BY: Mapping[str, Serve] = {
    "AlterClientQuotas": quotas.alterClientQuotas,
    "ApiVersions": metadata.apiVersions,
    "CreatePartitions": topics.createPartitions,
    "CreateTopics": topics.createTopics,
    "DeleteGroups": groupadmin.deleteGroups,
    "DeleteTopics": topics.deleteTopics,
    "DescribeClientQuotas": quotas.describeClientQuotas,
    "DescribeCluster": metadata.describeCluster,
    "DescribeConfigs": configs.describeConfigs,
    "DescribeGroups": groupadmin.describeGroups,
    "Fetch": fetch.fetch,
    "FindCoordinator": metadata.findCoordinator,
    "Heartbeat": groups.heartbeat,
    "IncrementalAlterConfigs": configs.incrementalAlterConfigs,
    "InitProducerId": produce.initProducerId,
    "JoinGroup": groups.joinGroup,
    "LeaveGroup": groups.leaveGroup,
    "ListGroups": groupadmin.listGroups,
    "ListOffsets": fetch.listOffsets,
    "Metadata": metadata.metadata,
    "OffsetCommit": offsets.offsetCommit,
    "OffsetDelete": offsets.offsetDelete,
    "OffsetFetch": offsets.offsetFetch,
    "SyncGroup": groups.syncGroup,
}

_REFUSED_BY: Mapping[str, Callable[[Call], Answer]] = {
    "Fetch": fetch.refused,
    "InitProducerId": produce.refusedProducerId,
}
"""How to say, beside Produce, that a quota policy has refused; no other API is put to them."""

BEHIND = Decision(False, reason="a batch that comes before it was refused; send that one first")
"""What becomes of an idempotent producer's batches that leave a gap."""

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
    What a length that is far too large may be in truth, for the log.

    @return: a sentence's end, or nothing.
    """
    prefix = sizeBytes.to_bytes(4, "big")
    if prefix.startswith(_TLS_HANDSHAKE):
        return "; it looks like a TLS handshake on a port that has no TLS"
    other = _OTHER_PROTOCOLS.get(prefix)
    return "" if other is None else f"; it looks like {other}"


def _encoded(header: RequestHeader, answer: Answer, throttleMs: int) -> list[bytes]:
    if isinstance(answer, Body):
        return answer.encode(throttleMs)
    fields = {**answer, "throttle_time_ms": throttleMs} if throttleMs else answer
    return encodeResponse(header.apiKey, header.apiVersion, fields)


class KafkaConnection(AdmittedProtocol):
    """
    Speaks the Kafka protocol with one client.

    @ivar advertised: where the client is told to find the broker; L{None} for
        the address that it has reached.
    @ivar principal: who is at the other end.
    @ivar clientId: what the client has called itself in its last request.
    @ivar recorded: what is recorded of the request that is read or worked on;
        L{None} while there is none, and always unless requests are recorded.
    @ivar authenticator: finds that out.
    @ivar askedLast: what the quota policies were last asked about and did not refuse.
    """

    headBytes = 2
    askedLast: Request | None = None
    recorded: RecordedRequest | None = None
    _loginCall: IDelayedCall | None = None
    advertised: Address | None = None
    principal = ANONYMOUS
    clientId = ""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.authenticator = Authenticator(broker.logins, self, self._loggedIn)
        self._requestLimitBytes = min(broker.settings.socketRequestMaxBytes, broker.gate.pool.largestBytes)
        self._parked: Deferred[Any] | None = None
        self._producing = Producing(self)
        self._gap: Gap | None = None
        # Whether a request of another kind waits until all that were produced before it are answered.
        self._isPutOff = False

    def refuseFrame(self, sizeBytes: int, head: bytes) -> str | None:
        """
        Refuse what is too large, for a request or for one of its kind, before
        any memory is asked for.
        """
        if sizeBytes > self._requestLimitBytes:
            return (
                f"a request of {sizeBytes} bytes was announced, and {self._requestLimitBytes} are allowed "
                f"(socket.request.max.bytes){describeLength(sizeBytes)}"
            )
        if not self.authenticator.isSettled:
            reason = self.authenticator.refuseFrame(sizeBytes, head)
            if reason is not None:
                return reason
        if len(head) == self.headBytes:
            apiKey = int.from_bytes(head, "big", signed=True)
            api = BY_KEY.get(apiKey)
            if api is None:
                return f"it sent a request with API key {apiKey}, which is not served"
            limitBytes = api.largestFrameBytes
            if limitBytes is not None and sizeBytes > limitBytes:
                return f"a {api.name} request of {sizeBytes} bytes was announced, and {limitBytes} are allowed"
        return None

    def requestReceived(self, lease: ILease) -> None:
        """
        Answer a request, now or later.
        """
        buffer = lease.buffer
        assert buffer is not None
        reason = None
        try:
            header = parseRequestHeader(buffer)
            self.clientId = header.clientId or ""
            if self.recorded is not None:
                self.recorded.reads(header)
            api = served(header.apiKey, header.apiVersion)
            if self._producing.isOutstanding and header.apiKey != PRODUCE:
                # Responses leave in the order of the requests.
                self._isPutOff = True
                if self.recorded is not None:
                    self.recorded.putsOff()
            elif api is None:
                self._refuseVersion(header)
            elif api.apiKey == PRODUCE:
                self._produce(header, buffer)
            elif api.name in security.SERVED_BY:
                self._logIn(api, header, buffer)
            else:
                self._serve(api, header, buffer)
        except MalformedRequest as refusal:
            reason = f"it sent a request that cannot be read: {refusal}"
        if reason is not None:
            # Only now: what the exception knows of would keep the buffer from being used again.
            self._reject(reason)

    def drain(self) -> None:
        """
        See L{AdmittedProtocol.drain}.  A login that is not over is given up.
        """
        if self.authenticator.isSettled:
            super().drain()
        else:
            self.closeGracefully()

    def closeGracefully(self) -> None:
        """
        See L{AdmittedProtocol.closeGracefully}.  A client whose records wait
        for their commit is told of it first.
        """
        if self._producing.isOutstanding:
            self.startGrace()
            self.muteFor(CLOSING)
            self._producing.answer()
        else:
            super().closeGracefully()

    def connectionMade(self) -> None:
        """
        Connecting may be limited, too, and strangers have to say who they are.
        """
        if self.broker.logins.portal is not None:
            self._loginCall = self.factory.clock.callLater(self.broker.settings.loginTimeoutSeconds, self._loginOverdue)
        if not self.broker.control.isLimiting:
            return
        asked = self.askedLast = Request(CONNECTION, ANONYMOUS, "", self.host, 0)
        decision = self.askPolicies(asked)
        if not decision.admitted:
            self.close(decision.message)
            return
        delaySeconds = self.tellPolicies(asked, Usage(connections=1))
        if delaySeconds > 0:
            self.throttle(delaySeconds)

    def askPolicies(self, asked: Request) -> Decision:
        """
        Ask the quota policies whether a request may go ahead.
        """
        return self.broker.control.admit(asked, wholeMicroseconds(self.factory.clock.seconds()))

    def tellPolicies(self, asked: Request, usage: Usage) -> float:
        """
        Tell the quota policies what it took.

        @return: for how long the client is to be held back, in seconds.
        """
        now = wholeMicroseconds(self.factory.clock.seconds())
        return self.broker.control.charge(asked, usage, now).delaySeconds

    def throttle(self, delaySeconds: float) -> None:
        """
        See L{AdmittedProtocol.throttle}.
        """
        super().throttle(delaySeconds)
        if self.isThrottled:
            self.broker.heldBack(self, delaySeconds)

    def throttleOver(self) -> None:
        """
        See L{AdmittedProtocol.throttleOver}.  An answer that was to be late
        leaves now.
        """
        self.broker.heldBackNoMore(self)
        self._producing.answer()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        What waits on behalf of the client waits no longer.
        """
        super().connectionLost(reason)
        self._stopLoginCall()
        self.broker.heldBackNoMore(self)
        self._cancelParked()
        self._producing.cancel()
        self.broker.groups.disconnected(self)

    def peerGone(self) -> None:
        """
        The same; requests that it sent before it left are still served.
        """
        self._cancelParked()

    def _refuseVersion(self, header: RequestHeader) -> None:
        if header.apiKey == API_VERSIONS:
            # The one request that may ask for too much: the answer says what there is (KIP-511).
            self._respond(header, metadata.apiVersions(self.broker, self._call(header, None)), 0.0)
            return
        api = BY_KEY.get(header.apiKey)
        name = f"API key {header.apiKey}" if api is None else api.name
        self._reject(f"it sent {name} in version {header.apiVersion}, which is not served")

    def _reject(self, reason: str) -> None:
        if self.recorded is not None:
            self.recorded.rejects(reason)
        self.finish()
        self.close(reason)

    def _serve(self, api: Api, header: RequestHeader, buffer: memoryview) -> None:
        startedSeconds = self.factory.clock.seconds()
        entity, elementCount = decodeRequest(api, header.apiVersion, buffer[header.bodyOffset :])
        asked = self._asked(api.name, header, len(buffer))
        # Nothing of the frame is needed any more.
        self.releaseRequest()
        if self.recorded is not None:
            self.recorded.decodes(entity)
        call = self._call(header, entity, asked)
        if asked is not None and api.name in _REFUSED_BY:
            decision = self.askPolicies(asked)
            if not decision.admitted:
                self.askedLast = None
                self._respond(header, _REFUSED_BY[api.name](call), decision.delaySeconds)
                return
        answer = _SERVED_BY[api.name](self.broker, call)
        if not isinstance(answer, Deferred):
            self._answer(header, asked, startedSeconds, answer)
            return
        # What decoding created outlives this turn only here, so only here is it charged.
        parked = self.factory.gate.pool.charge(elementCount * DECODED_ELEMENT_BYTES, PARKED)
        self._parked = answer
        self.park()
        workedSeconds = self.factory.clock.seconds() - startedSeconds
        answer.addBoth(self._unpark, parked)
        answer.addCallback(partial(self._answerLate, header, asked, workedSeconds))
        answer.addErrback(self._parkedFailed)
        if self.hasPeerGone:
            self._cancelParked()

    def _logIn(self, api: Api, header: RequestHeader, buffer: memoryview) -> None:
        entity, _ = decodeRequest(api, header.apiVersion, buffer[header.bodyOffset :])
        parked = self.factory.gate.pool.charge(len(buffer), PARKED)
        answer = self._parked = security.SERVED_BY[api.name](self.authenticator, entity)
        self.park()
        answer.addBoth(self._unpark, parked)
        answer.addCallback(partial(self._answerLogin, header))
        answer.addErrback(self._parkedFailed)
        if self.hasPeerGone:
            self._cancelParked()

    def _answerLogin(self, header: RequestHeader, answer: Mapping[str, Any]) -> None:
        response = frame(header, encodeResponse(header.apiKey, header.apiVersion, answer))
        refusal = self.authenticator.refusal
        if refusal is None:
            self.respond(response)
            return
        if self.recorded is not None:
            self.recorded.rejects(NO_LOGIN)
            self.recorded.answers(response)
        self.send(response)
        # What else it has sent must not be read.
        self.close(refusal)
        self.finish()

    def _loggedIn(self, principal: str) -> None:
        self._stopLoginCall()
        self.principal = principal

    def _loginOverdue(self) -> None:
        self._loginCall = None
        self.close("it has not logged in within login.timeout")

    def _stopLoginCall(self) -> None:
        if self._loginCall is not None:
            self._loginCall.cancel()
            self._loginCall = None

    def _asked(
        self, kind: str, header: RequestHeader, sizeBytes: int, identities: Sequence[int] = ()
    ) -> Request | None:
        """
        What the quota policies are to be asked about, if any of them limits
        anybody.
        """
        if not self.broker.control.isLimiting:
            return None
        self.askedLast = Request(kind, self.principal, header.clientId or "", self.host, sizeBytes, identities)
        return self.askedLast

    def _tell(self, asked: Request | None, responseBytes: int, serviceSeconds: float, isCounted: bool = True) -> float:
        """
        Tell whoever wants to know what a request took.

        @param isCounted: whether the policies are to count it.
        """
        if self.recorded is not None:
            self.recorded.took(responseBytes, serviceSeconds)
        if asked is None:
            return 0.0
        return self.tellPolicies(asked, Usage(asked.sizeBytes, responseBytes, serviceSeconds) if isCounted else NOTHING)

    def _call(self, header: RequestHeader, entity: Any, asked: Request | None = None) -> Call:
        if self.advertised is None:
            assert self.transport is not None
            reached = self.transport.getHost()
            self.advertised = Address(getattr(reached, "host", "localhost"), getattr(reached, "port", -1))
        return Call(
            header.apiVersion, entity, self.advertised, self.principal, header.clientId or "", self.host, asked, self
        )

    def _answerLate(
        self, header: RequestHeader, asked: Request | None, workedSeconds: float, answer: Answer | Work
    ) -> None:
        startedSeconds = self.factory.clock.seconds() - workedSeconds
        self._answer(header, asked, startedSeconds, answer() if callable(answer) else answer)

    def _answer(self, header: RequestHeader, asked: Request | None, startedSeconds: float, answer: Answer) -> None:
        """
        @param startedSeconds: when the work began, as if there had been no wait.
        """
        body = _encoded(header, answer, 0)
        delaySeconds = 0.0
        if asked is not None or self.recorded is not None:
            serviceSeconds = self.factory.clock.seconds() - startedSeconds
            isCounted = not isinstance(answer, Body) or answer.isCounted
            delaySeconds = self._tell(asked, sum(map(len, body)), serviceSeconds, isCounted)
            if delaySeconds > 0:
                body = _encoded(header, answer, throttleTimeMs(delaySeconds))
        self.respond(frame(header, body), delaySeconds)

    def _respond(self, header: RequestHeader, answer: Answer, delaySeconds: float) -> None:
        self.respond(frame(header, _encoded(header, answer, throttleTimeMs(delaySeconds))), delaySeconds)

    def _unpark(self, result: Any, parked: ILease) -> Any:
        self._parked = None
        parked.release()
        if self.recorded is not None:
            self.recorded.unparks()
        return result

    def _cancelParked(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.cancel()

    def _parkedFailed(self, failure: Failure) -> None:
        if not isinstance(failure.value, CancelledError):
            self.factory.log.failure("a request of {peer} failed", failure, peer=self.peer)
            self.close("its request could not be answered")
        self.finish()

    def _produce(self, header: RequestHeader, buffer: memoryview) -> None:
        clock, policies = self.factory.clock, self.broker.control
        startedSeconds = clock.seconds()
        request = parseProduce(buffer, header.bodyOffset, header.apiVersion)
        acks, timeoutSeconds = request.acks, max(request.timeoutMs, 0) / 1000
        delaySeconds = 0.0
        asked = None
        recorded = self.recorded
        identities: Sequence[int] = ()
        results: list[PartitionResult] | None = None
        if policies.isLimiting or recorded is not None:
            identities = produce.identities(request)
        if recorded is not None:
            recorded.produces(request, identities)
        if policies.isLimiting:
            asked = self._asked("Produce", header, len(buffer), identities)
            assert asked is not None
            decision = self._decideProduce(asked, request)
            if not decision.admitted:
                self.askedLast = None
                results = produce.refused(request, decision)
                delaySeconds = decision.delaySeconds
        if results is None:
            results = produce.append(self.broker, request, self.principal)
            if asked is not None or recorded is not None:
                # There is no response yet.
                delaySeconds = self._tell(asked, 0, clock.seconds() - startedSeconds)
        # A slice that lives on would keep the buffer from being used again.
        del request
        self.releaseRequest()
        if acks == 0:
            if recorded is not None:
                recorded.answersNothing()
            self._produceUnacknowledged(results, delaySeconds)
            return
        if recorded is not None:
            recorded.leaves()
        # The next request may be read: what is appended together is committed together.
        self._producing.add(header, results, acks == ALL, timeoutSeconds, delaySeconds, recorded)
        self.finish(delaySeconds)

    def _decideProduce(self, asked: Request, request: ProduceRequest) -> Decision:
        decision = self.askPolicies(asked)
        if not decision.admitted:
            if self._gap is None:
                self._gap = Gap()
            self._gap.begin(request)
        elif self._gap is not None and self._gap.isBefore(request):
            if self.recorded is not None:
                self.recorded.rejects(BEHIND.reason)
            return BEHIND
        return decision

    def _produceUnacknowledged(self, results: Sequence[PartitionResult], delaySeconds: float) -> None:
        self.finish(delaySeconds)
        refused = next((result for result in results if result.errorCode), None)
        if refused is not None:
            # There is no response to say it in; closing makes the client look again.
            self.close(
                f"a batch for partition {refused.partitionIndex} of topic {refused.topicName!r:.300} was refused, "
                f"and it wants no response: {refused.errorMessage}"
            )

    def produceAnswered(self) -> None:
        """
        Every Produce request read so far has been answered, or the client is
        gone.
        """
        if CLOSING in self.mute.reasons and not self.isLost:
            self.closeGracefully()
        if self._isPutOff:
            self._isPutOff = False
            if self.isLost or self.isClosing:
                self.finish()
            else:
                self.workAgain()

# -*- test-case-name: tests.unit.kafka.gateway.test_clusterbackend -*-
"""
Has a node of the cluster answer the requests of a session.  Requests are passed on once they are admitted, and
responses come back with the gateway's addresses in place of the nodes'.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred

from admission.connection.pauses import Pause
from admission.interfaces import ADMITTED, CONNECTIONS, PARKED, RESPONSES, Decision, Refusal

from ..security.login import SERVED_BEFORE_LOGIN
from ..serving import quotaapi
from ..serving.kafkarequest import KafkaRequest
from ..serving.quotaapi import quotasForbidden
from ..serving.refusals import refusedProducerId
from ..serving.session import Backend, KafkaSession
from ..wire.addresses import metadataHead, withAddresses
from ..wire.codec import decodeRequest, encodeResponse
from ..wire.headers import frame, hasResponseTags
from ..wire.overheard import authBytes, maxWaitMs, saslMechanism, sessionTimeoutMs
from ..wire.passing import AddressEraser
from ..wire.primitives import NO_TAGS, MalformedRequest, MalformedResponse, skipTags
from ..wire.produce import encodeProduceResponse, parseProduce, producerIds, refuseAll
from ..wire.relayedapis import (
    RELAYED_BY_KEY,
    RELAYED_FLEXIBLE_FROM,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    RelayedApi,
    hasAddresses,
    relayed,
    throttleTimeOffset,
)
from ..wire.throttletime import throttleTimeMs, withLongerThrottle
from ..wire.versioncut import cutApiVersions
from ..wire.versions import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    BY_KEY,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    FETCH,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from .gateway import Gateway
from .nodelink import NodeLink, ResponseRefused
from .nodes import Node, NodePorts
from .observedlogin import MECHANISMS, LoginRefused, ObservedLogin

UNANSWERED_BYTES: Final = 1 << 10
"""What one of them is charged for."""

COLLECTED_BYTES: Final = 64 << 10
"""A larger response is passed on as it comes."""

LARGEST_COLLECTED_BYTES: Final = 1 << 20
"""
The largest response that is collected because only the whole can be understood: the coordinators of 20,000 groups, or
10,000 nodes.  It is looked through in one turn.
"""

HEAD_BYTES: Final = 1 << 10
"""
How much of a large response has to come before anything is passed on: what is changed in it comes early.  If that is
not enough, twice as much has to come, and so on.
"""

GROUP_SESSION_SECONDS: Final = 45.0
"""The session timeout of members whose coordinator sets it (KIP-848), if the coordinator has its default."""

_NEVER_REFUSED: Final = frozenset(
    ("ApiVersions", "SaslHandshake", "SaslAuthenticate", "LeaveGroup", "AddPartitionsToTxn", "EndTxn")
)
_IN_GROUPS: Final = frozenset(("ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "StreamsGroupHeartbeat"))
_CHANGING_TOPICS: Final = frozenset(
    (
        "DeleteTopics",
        "DeleteRecords",
        "CreatePartitions",
        "AlterConfigs",
        "IncrementalAlterConfigs",
        "AlterPartitionReassignments",
        "ElectLeaders",
    )
)
"""
Requests that, if they are about the gateways' own topics, could keep gateways from telling each other what clients
take.
"""

_BY_NAMES: Final = {DELETE_TOPICS: 5}
"""The newest versions of these that name topics only by names, which can be told from the gateways' own."""

_LIMITS: Final = frozenset((DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS))
_ANSWERED_ALONE: Final = frozenset(
    (
        *("ApiVersions", "SaslHandshake", "SaslAuthenticate", "Metadata", "FindCoordinator", "ListOffsets"),
        *("OffsetForLeaderEpoch", "DescribeCluster", "DescribeConfigs", "DescribeTopicPartitions", "ListGroups"),
    )
)
"""
Requests that a node answers without waiting for a client, for another node or for the controller, which may be frozen
itself.  In groups and transactions even a Heartbeat may wait until what was written before it is replicated.
"""

_FETCHES: Final = frozenset((FETCH, SHARE_FETCH))
_LOGINS: Final = frozenset((SASL_HANDSHAKE, SASL_AUTHENTICATE))
_PASSED_WITH_ADDRESSES: Final = frozenset((METADATA, PRODUCE, FETCH, SHARE_FETCH, SHARE_ACKNOWLEDGE))
_OWN_VERSIONS: Final = {
    "api_keys": [
        {
            "api_key": API_VERSIONS,
            "min_version": RELAYED_BY_KEY[API_VERSIONS].minVersion,
            "max_version": RELAYED_BY_KEY[API_VERSIONS].maxVersion,
        }
    ]
}
_HEAD: Final = struct.Struct(">ii")
_CORRELATION_BYTES: Final = 4
_WITHOUT_ACKS: Final = "a batch was refused, and it wants no response: "


class ClusterBackend(Backend):
    """
    Passes the requests of one client to one node.

    Responses leave in the order of requests.  An answer of the gateway's own waits for the responses before it.

    @ivar nodeId: the node that the client's port is for; L{None} at the port to begin with.
    @ivar ports: which ports there are beside it.
    """

    apis = RELAYED_BY_KEY
    flexibleFrom = RELAYED_FLEXIBLE_FROM

    nodeId: int | None = None
    ports: NodePorts

    def __init__(self, session: KafkaSession, gateway: Gateway) -> None:
        self.gateway = gateway
        self.session = session
        session.budget = self
        session.whenServed = self._sendRequests
        self._login = ObservedLogin(gateway.mayHide)
        self._nodeLink: NodeLink | None = None
        self._connecting: Deferred[None] | None = None

    @property
    def node(self) -> Node:
        """
        The node that its requests go to.
        """
        if self._nodeLink is not None:
            return self._nodeLink.node
        return self.gateway.bootstrap if self.nodeId is None else self.gateway.nodes.of(self.nodeId)

    # Requests

    def received(self, request: KafkaRequest, buffer: memoryview) -> None:
        session = self.session
        header = request.header
        api = relayed(header.apiKey, header.apiVersion)
        if api is None:
            if header.apiKey == API_VERSIONS:
                # This is the only request whose version may be too new: the answer says which versions are understood
                # (KIP-511).
                self._answerHere(request)
                self._answer(request, encodeResponse(API_VERSIONS, header.apiVersion, _OWN_VERSIONS))
                return
            name = RELAYED_BY_KEY[header.apiKey].name
            session.reject(request, f"it sent {name} in version {header.apiVersion}, which the gateway does not know")
            return
        # A member of a group is not held back: it would be missed there.
        if (
            not session.driver.owesNothing
            and session.longestDelaySeconds == inf
            and session.holdBackFirst(api.name, request)
        ):
            return
        if api.apiKey == PRODUCE:
            self._produce(request, buffer)
            return
        if self.gateway.ownTopics and api.name in _CHANGING_TOPICS:
            if header.apiVersion > _BY_NAMES.get(api.apiKey, header.apiVersion):
                words = f"in version {header.apiVersion}, which may name topics by ids, and some are the gateways' own"
                session.reject(request, f"it sent {api.name} {words}")
                return
            if self._namesOwnTopics(buffer):
                session.reject(request, f"it sent {api.name} about a topic by which gateways tell each other something")
                return
        if api.apiKey == JOIN_GROUP:
            sessionSeconds = sessionTimeoutMs(header.apiVersion, buffer[header.bodyOffset :]) / 1000
            session.longestDelaySeconds = max(sessionSeconds, 0.0) / 3
        elif api.name in _IN_GROUPS:
            session.longestDelaySeconds = min(session.longestDelaySeconds, GROUP_SESSION_SECONDS / 3)
        elif api.apiKey in _LIMITS and self.gateway.hasLimits:
            self._answerLimits(request, buffer)
            return
        elif api.apiKey in _LOGINS and not self._passLogin(request, buffer):
            return
        if self.gateway.control.wants.usage:
            decision = session.driver.admit(request, _refusalOf(api))
            if not decision.admitted:
                self._refuseProducerId(request, decision)
                return
            session.driver.begin(request)
        if api.apiKey in _FETCHES:
            waitSeconds = maxWaitMs(api.apiKey, header.apiVersion, buffer[header.bodyOffset :]) / 1000
        else:
            waitSeconds = 0.0 if api.name in _ANSWERED_ALONE else inf
        self._relay(request, waitSeconds)

    def _produce(self, request: KafkaRequest, buffer: memoryview) -> None:
        session = self.session
        header = request.header
        produced = parseProduce(buffer, header.bodyOffset, header.apiVersion)
        request.acks = produced.acks
        ownTopics = self.gateway.ownTopics
        if ownTopics and not ownTopics.isdisjoint(each.topicName for each in produced.partitions):
            reason = (
                f"nothing is written to {' and '.join(sorted(ownTopics))} by clients: gateways tell each other there"
            )
            results = refuseAll(produced, ErrorCode.topic_authorization_failed, reason)
            del produced
            request.reject(reason)
            if request.acks:
                self._answerHere(request)
                self._answer(request, [encodeProduceResponse(header.apiVersion, results)])
            else:
                session.reject(request, _WITHOUT_ACKS + reason)
            return
        if self.gateway.control.wants.usage:
            decision = session.admitProduce(request, produced)
        else:
            # They are noted even without a limit, so that the first limit that is set does not make them new.
            decision, request.identities = ADMITTED, producerIds(produced)
        if not decision.admitted:
            results = refuseAll(produced, ErrorCode.throttling_quota_exceeded, decision.message)
            del produced
            if request.acks:
                delayMs = throttleTimeMs(decision.delaySeconds)
                self._answerHere(request, decision.delaySeconds)
                self._answer(request, [encodeProduceResponse(header.apiVersion, results, delayMs)])
            else:
                session.reject(request, _WITHOUT_ACKS + decision.message)
            return
        # The node waits for nothing but the acknowledgements of replicas.
        waitSeconds = 0.0 if produced.acks == 1 else max(produced.timeoutMs, 0) / 1000
        # A slice that survives would keep the buffer from being reused.
        del produced
        if request.identities and self.gateway.known is not None:
            self.gateway.known.note(session.principal, request.identities)
        delaySeconds = 0.0
        if request.view is not None:
            now = session.factory.clock.seconds()
            # There is no response yet to charge for, and the request that was sent cannot be taken back.
            delaySeconds = request.delaySeconds = session.charge(request, session.driver.usageOf(request, 0, now), now)
            request.throttledUntilSeconds = now + delaySeconds
        self._relay(request, waitSeconds, delaySeconds)

    def _namesOwnTopics(self, buffer: memoryview) -> bool:
        """
        Whether a small request names one of the topics by which gateways tell each other what clients take.
        """
        body = bytes(buffer)
        return any(each.encode() in body for each in self.gateway.ownTopics)

    def _refuseProducerId(self, request: KafkaRequest, decision: Decision) -> None:
        fields = {**refusedProducerId(request), "throttle_time_ms": throttleTimeMs(decision.delaySeconds)}
        self._answerHere(request, decision.delaySeconds)
        self._answer(request, encodeResponse(INIT_PRODUCER_ID, request.header.apiVersion, fields))

    def _passLogin(self, request: KafkaRequest, buffer: memoryview) -> bool:
        """
        Look at a message of a login.

        @return: whether it may be passed on.
        """
        session = self.session
        header = request.header
        if any(each.header.apiKey in _LOGINS for each in session.unanswered):
            # Otherwise the answer to one message would be taken for the answer to another.
            session.reject(request, "it went on with its login before it was answered")
            return False
        body = buffer[header.bodyOffset :]
        try:
            if header.apiKey == SASL_HANDSHAKE:
                self._login.begin(saslMechanism(body))
            else:
                self._login.claim(authBytes(header.apiVersion, body))
        except LoginRefused as refusal:
            reason = str(refusal)
        else:
            return True
        finally:
            del body
        if header.apiKey != SASL_HANDSHAKE:
            session.reject(request, reason)
            return False
        request.reject(reason)
        session.factory.refused(session, reason)
        fields = {"error_code": ErrorCode.unsupported_sasl_mechanism.value, "mechanisms": MECHANISMS}
        self._answerHere(request)
        self._answer(request, encodeResponse(SASL_HANDSHAKE, header.apiVersion, fields))
        return False

    def refuseBeforeLogin(self, sizeBytes: int, head: bytes) -> str | None:
        if not self.gateway.requiresLogin or self._login.principal is not None or len(head) < self.session.headBytes:
            return None
        apiKey = int.from_bytes(head, "big", signed=True)
        if apiKey in SERVED_BEFORE_LOGIN:
            return None
        api = self.apis.get(apiKey)
        return f"it sent {f'API key {apiKey}' if api is None else api.name} before it had logged in (--require-login)"

    def _answerLimits(self, request: KafkaRequest, buffer: memoryview) -> None:
        """
        Tell or change the gateway's own limits.
        """
        header = request.header
        request.entity, _ = decodeRequest(BY_KEY[header.apiKey], header.apiVersion, buffer[header.bodyOffset :])
        self._answerHere(request)
        if header.apiKey == DESCRIBE_CLIENT_QUOTAS:
            self._answerFields(quotaapi.describeClientQuotas(self.gateway, request), request)
            return
        reason = self.gateway.superUsers.refusal(self.session.principal)
        if reason is not None:
            request.reject(reason)
            self._answerFields(quotasForbidden(request, reason), request)
            return
        quotaapi.alterClientQuotas(self.gateway, request).addCallback(self._answerFields, request)

    def _answerFields(self, fields: Any, request: KafkaRequest) -> None:
        if request.ended is None:
            self._answer(request, encodeResponse(request.header.apiKey, request.header.apiVersion, fields))

    def _relay(self, request: KafkaRequest, waitSeconds: float, delaySeconds: float = 0.0) -> None:
        """
        Pass a request on, and read the next.

        @param waitSeconds: see L{NodeLink.send}.
        """
        session = self.session
        lease, request.lease = request.lease, None
        assert lease is not None
        if self.nodeId is not None:
            request.nodeId = self.nodeId
        session.request = None
        now = request.released = session.driver.park(request)
        if session.isLost:
            # Policies may have closed it when they were told that the request waits.
            lease.release()
            session.setAside(request)
            session.finish()
            return
        # From here on the link says when the node's share has room again.
        request.node = None
        link = self._linked()
        if request.acks or request.header.apiKey != PRODUCE:
            self._await(request)
            link.send(lease, waitSeconds=waitSeconds)
        else:
            link.send(lease, isAwaited=False)
            session.requestAnswered(request, now, delaySeconds)
        session.finish(delaySeconds)

    def _answerHere(self, request: KafkaRequest, delaySeconds: float = 0.0) -> None:
        """
        Answer a request by L{_answer}, and do not pass it on.
        """
        request.isOwn = True
        request.delaySeconds = delaySeconds
        self.session.releaseRequest()
        request.leaveNode()
        self._await(request)
        self.session.finish(delaySeconds)

    def _answer(self, request: KafkaRequest, body: list[bytes]) -> None:
        """
        Answer a request when it is its turn.
        """
        request.parts = frame(request.header, body, RELAYED_FLEXIBLE_FROM)
        request.responseBytes = sum(map(len, body))
        self._answerOwn()
        self.session.readOn()

    def _await(self, request: KafkaRequest) -> None:
        request.decoded = self.session.factory.gate.pool.charge(UNANSWERED_BYTES, PARKED)
        self.session.setAside(request)

    def _linked(self) -> NodeLink:
        link = self._nodeLink
        if link is None:
            gateway = self.gateway
            charge = gateway.gate.pool.charge(gateway.linkBytes, CONNECTIONS)
            sendSeconds = gateway.settings.upstreamSendTimeoutSeconds
            link = self._nodeLink = NodeLink(self, self.node, gateway.clock, sendSeconds, charge)
            self._connecting = gateway.connect(self.nodeId, link)
            self._connecting.addBoth(self._connected)
        return link

    def _connected(self, result: Any) -> None:
        self._connecting = None

    @property
    def isReading(self) -> bool:
        return self.session.link.isServing

    def _sendRequests(self) -> None:
        if self._nodeLink is not None:
            self._nodeLink.pump()

    # Memory of one node

    def take(self, request: KafkaRequest, sizeBytes: int) -> bool:
        session, node = self.session, self.node
        if node.hasRoom(sizeBytes):
            request.node = node
            node.hold(sizeBytes)
            return True
        session.pauses.add(Pause.UPSTREAM)
        node.wait(session)
        return False

    # Responses

    def responseBegun(self, sizeBytes: int, correlationId: int) -> Callable[[bytes, bool], None]:
        request = next(iter(self.session.unanswered), None)
        if request is None or request.isOwn or request.header.correlationId != correlationId:
            raise ResponseRefused(f"it has sent a response with the number {correlationId}, which is not the next")
        if sizeBytes <= COLLECTED_BYTES or not _isPassable(request):
            if sizeBytes > LARGEST_COLLECTED_BYTES:
                raise ResponseRefused(
                    f"its answer to {request.kind} has {sizeBytes} bytes, and the gateway can collect "
                    f"{LARGEST_COLLECTED_BYTES}"
                )
            return CollectedResponse(
                partial(self._respondWhole, request), partial(self.chargeCollected, request, sizeBytes)
            ).take
        return PassedResponse(self, request, sizeBytes).take

    def chargeCollected(self, request: KafkaRequest, sizeBytes: int) -> None:
        """
        Charge for C{sizeBytes} of a response that are kept until more of it comes.
        """
        request.releaseDecoded()
        request.decoded = self.session.factory.gate.pool.charge(UNANSWERED_BYTES + sizeBytes, RESPONSES)

    def _respondWhole(self, request: KafkaRequest, response: bytes) -> None:
        session = self.session
        header = request.header
        try:
            body = self.readdressed(request, response)
            delaySeconds = self.charged(request, len(body))
            delayMs = throttleTimeMs(delaySeconds)
            body, request.upstreamThrottleMs = withLongerThrottle(header.apiKey, header.apiVersion, body, delayMs)
        except (MalformedRequest, MalformedResponse) as malformed:
            # Varints and tagged fields are read alike in both.
            raise ResponseRefused(str(malformed)) from malformed
        if header.apiKey == SASL_AUTHENTICATE and self._login.answered(body):
            assert self._login.principal is not None
            session.principal = session.holder = self._login.principal
        session.send(frame(header, [body], RELAYED_FLEXIBLE_FROM))
        self.responseOver(request, delaySeconds)

    def readdressed(self, request: KafkaRequest, response: bytes) -> bytes:
        """
        The body of a whole response, with our addresses.
        """
        apiKey, apiVersion = request.header.apiKey, request.header.apiVersion
        body = response
        if hasResponseTags(apiKey, apiVersion, RELAYED_FLEXIBLE_FROM):
            body = response[skipTags(response, 0) :]
        if apiKey == API_VERSIONS:
            return cutApiVersions(apiVersion, body, _BY_NAMES if self.gateway.ownTopics else {})
        return withAddresses(apiKey, apiVersion, body, self.addressOf) if hasAddresses(apiKey, apiVersion) else body

    def addressOf(self, nodeId: int, host: str, port: int) -> tuple[str, int]:
        """
        The address at which clients reach a node.
        """
        self.gateway.nodes.learn(nodeId, host, port)
        return self.ports.addressOf(nodeId, self.session.transport.getHost().host)

    def charged(self, request: KafkaRequest, responseBytes: int) -> float:
        """
        Charge what a request used.

        @return: the delay to tell the client, in seconds.
        """
        session = self.session
        now = session.factory.clock.seconds()
        request.responseBytes = responseBytes
        if request.view is None:
            return 0.0
        if request.header.apiKey == PRODUCE:
            return max(request.throttledUntilSeconds - now, 0.0) if request.delaySeconds else 0.0
        delaySeconds = session.charge(request, session.driver.usageOf(request, responseBytes, now), now)
        return 0.0 if request.refusal is Refusal.NEVER else delaySeconds

    def responseOver(self, request: KafkaRequest, delaySeconds: float) -> None:
        """
        The whole answer to the first request has been handed over.
        """
        session = self.session
        if request.released is not None:
            request.upstreamSeconds = session.factory.clock.seconds() - request.released
        self.node.throttles.add(delaySeconds > 0, request.upstreamThrottleMs > 0)
        if request.upstreamThrottleMs > 0 and self._nodeLink is not None:
            self._nodeLink.throttled(request.upstreamThrottleMs / 1000)
        self._answered(request, delaySeconds)
        if delaySeconds and request.header.apiKey != PRODUCE:
            session.throttle(delaySeconds)
        self._answerOwn()
        session.readOn()

    def _answered(self, request: KafkaRequest, delaySeconds: float) -> None:
        self.session.requestAnswered(request, self.session.factory.clock.seconds(), delaySeconds)

    def _answerOwn(self) -> None:
        """
        Send the gateway's own answers that have waited for responses before them.
        """
        while (request := next(iter(self.session.unanswered), None)) is not None and request.parts is not None:
            self.session.send(request.parts)
            self._answered(request, request.delaySeconds)

    def sendingBlocked(self, isBlocked: bool) -> None:
        """
        Pause the client as usual, and take no more from the node meanwhile.
        """
        link = self._nodeLink
        if link is not None:
            if isBlocked:
                link.pauseReading()
            else:
                link.resumeReading()

    # Ending

    def linkLost(self, reason: str) -> None:
        """
        Answer the requests that can be answered, and close.
        """
        session = self.session
        if session.unanswered:
            self.node.failed(reason, session.factory.clock.seconds())
        session.link.explain(reason)
        session.abandonAll()
        self._nodeLink = None
        session.closeGracefully()

    def closing(self) -> None:
        session = self.session
        self._sendRequests()
        self.node.forget(session)
        if session.request is not None:
            session.request.leaveNode()

    def abandoned(self) -> None:
        self.node.forget(self.session)
        connecting, self._connecting = self._connecting, None
        link, self._nodeLink = self._nodeLink, None
        if link is not None:
            link.close()
            if connecting is not None and link.isLost:
                connecting.cancel()


class CollectedResponse:
    """
    A response that is handed on when it is whole.
    """

    __slots__ = ("_kept", "_parts", "_whole")

    def __init__(self, whole: Callable[[bytes], None], kept: Callable[[], None]) -> None:
        """
        @param kept: called once, if it does not come at once.
        """
        self._whole = whole
        self._kept = kept
        self._parts: list[bytes] = []

    def take(self, part: bytes, isLast: bool) -> None:
        if not isLast:
            if not self._parts:
                self._kept()
            self._parts.append(part)
            return
        if self._parts:
            part = b"".join((*self._parts, part))
        self._whole(part)


class PassedResponse:
    """
    A response that is handed on as it comes, with only its beginning changed.
    """

    __slots__ = (
        "_backend",
        "_delaySeconds",
        "_eraser",
        "_head",
        "_isBegun",
        "_request",
        "_sizeBytes",
        "_wantedBytes",
    )

    def __init__(self, backend: ClusterBackend, request: KafkaRequest, sizeBytes: int) -> None:
        self._backend = backend
        self._request = request
        self._sizeBytes = sizeBytes
        self._head = b""
        self._wantedBytes = min(HEAD_BYTES, sizeBytes)
        self._isBegun = False
        self._eraser: AddressEraser | None = None
        self._delaySeconds = 0.0

    def take(self, part: bytes, isLast: bool) -> None:
        try:
            if self._isBegun:
                self._backend.session.send([part if self._eraser is None else self._eraser.feed(part)])
            else:
                self._head += part
                if len(self._head) >= self._wantedBytes:
                    self._begin()
        except (MalformedRequest, MalformedResponse) as malformed:
            # Varints and tagged fields are read alike in both.
            raise ResponseRefused(str(malformed)) from malformed
        if isLast and not self._isBegun:
            raise ResponseRefused(f"its answer to {self._request.kind} ends before its fields do")
        if isLast:
            self._backend.responseOver(self._request, self._delaySeconds)
        elif len(self._head) > LARGEST_COLLECTED_BYTES:
            raise ResponseRefused(f"its answer to {self._request.kind} does not say who its nodes are")

    def _begin(self) -> None:
        """
        Hand on what has come, once it is enough to be changed.
        """
        backend, header, head = self._backend, self._request.header, self._head
        apiKey, apiVersion = header.apiKey, header.apiVersion
        begin = skipTags(head, 0) if hasResponseTags(apiKey, apiVersion, RELAYED_FLEXIBLE_FROM) else 0
        body = head[begin:]
        sizeBytes = self._sizeBytes - begin
        if apiKey == METADATA:
            found = metadataHead(apiVersion, body, backend.addressOf)
            if found is None:
                # The next piece would often not be enough either, and each time everything is looked through again.
                self._wantedBytes = min(2 * len(head), self._sizeBytes, LARGEST_COLLECTED_BYTES)
                backend.chargeCollected(self._request, self._wantedBytes)
                return
            end, replacement = found
            sizeBytes += len(replacement) - end
            body = replacement + body[end:]
            if self._wantedBytes > HEAD_BYTES:
                backend.chargeCollected(self._request, 0)
        self._isBegun = True
        self._head = b""
        delaySeconds = self._delaySeconds = backend.charged(self._request, sizeBytes)
        if throttleTimeOffset(apiKey, apiVersion) is not None:
            delayMs = throttleTimeMs(delaySeconds)
            body, self._request.upstreamThrottleMs = withLongerThrottle(apiKey, apiVersion, body, delayMs)
        if apiKey != METADATA and hasAddresses(apiKey, apiVersion):
            self._eraser = AddressEraser(apiKey, apiVersion)
            body = self._eraser.feed(body)
        tags = NO_TAGS if begin else b""
        backend.session.send(
            [_HEAD.pack(_CORRELATION_BYTES + len(tags) + sizeBytes, header.correlationId) + tags, body]
        )


def _isPassable(request: KafkaRequest) -> bool:
    """
    Whether a large response to C{request} can be handed on as it comes.
    """
    header = request.header
    if header.apiKey in _PASSED_WITH_ADDRESSES:
        return True
    return header.apiKey != API_VERSIONS and not hasAddresses(header.apiKey, header.apiVersion)


def _refusalOf(api: RelayedApi) -> Refusal:
    if api.apiKey == INIT_PRODUCER_ID:
        return Refusal.ERROR
    return Refusal.NEVER if api.name in _NEVER_REFUSED else Refusal.DELAY

# -*- test-case-name: tests.test_session -*-
"""
One client connection: frames in, responses out in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from ..connection.protocol import AdmittedProtocol
from ..interfaces import PARKED, ILease
from ..operations import waitFor
from ..wire.codec import decodeRequest, encodeResponse
from ..wire.headers import RequestHeader, frame, parseRequestHeader
from ..wire.primitives import MalformedRequest
from ..wire.produce import PartitionResult, encodeProduceResponse, parseProduce
from ..wire.versions import API_VERSIONS, BY_KEY, PRODUCE, Api, served
from .api import configs, fetch, metadata, produce, topics
from .broker import ANONYMOUS, SYNCED, Address, Answer, Broker, Call, Serve

CLOSING = "closing"
"""A reason to be mute: the connection closes after the next response."""

DECODED_ELEMENT_BYTES = 256
"""What one element of a decoded request is charged for."""

UNANSWERED = "unanswered"
"""So many of its Produce requests wait for the disk that no more are read."""

MOST_UNANSWERED = 128
UNANSWERED_BYTES = 512
"""What one of them is charged for while it waits."""

ALL = -1
"""What C{acks} says when records are to survive more than the broker's death."""


class Unanswered(NamedTuple):
    """
    A Produce request whose records are committed.

    @ivar commit: the commit that must be on the disk before it is answered, or 0.
    @ivar timeoutSeconds: for how long it may wait for that.
    """

    header: RequestHeader
    results: list[PartitionResult]
    commit: int
    timeoutSeconds: float


_SERVED_BY: Mapping[str, Serve] = {
    "ApiVersions": metadata.apiVersions,
    "CreatePartitions": topics.createPartitions,
    "CreateTopics": topics.createTopics,
    "DeleteTopics": topics.deleteTopics,
    "DescribeCluster": metadata.describeCluster,
    "DescribeConfigs": configs.describeConfigs,
    "Fetch": fetch.fetch,
    "FindCoordinator": metadata.findCoordinator,
    "IncrementalAlterConfigs": configs.incrementalAlterConfigs,
    "InitProducerId": produce.initProducerId,
    "ListOffsets": fetch.listOffsets,
    "Metadata": metadata.metadata,
}

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


class KafkaConnection(AdmittedProtocol):
    """
    Speaks the Kafka protocol with one client.

    @ivar advertised: where the client is told to find the broker; L{None} for
        the address that it has reached.
    @ivar principal: who is at the other end.
    """

    headBytes = 2
    advertised: Address | None = None
    principal = ANONYMOUS

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._requestLimitBytes = min(broker.settings.socketRequestMaxBytes, broker.gate.pool.largestBytes)
        self._parked: Deferred[Any] | None = None
        # Produce requests that wait for their commit; those that wait for the disk or for others before them; and
        # whether a request of another kind waits for all of these.
        self._uncommitted = 0
        self._unanswered: deque[Unanswered] = deque()
        self._syncing: Deferred[None] | None = None
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
            api = served(header.apiKey, header.apiVersion)
            if self._isAnswering() and header.apiKey != PRODUCE:
                # Responses leave in the order of the requests.
                self._isPutOff = True
            elif api is None:
                self._refuseVersion(header)
            elif api.apiKey == PRODUCE:
                self._produce(header, buffer)
            else:
                self._serve(api, header, buffer)
        except MalformedRequest as refusal:
            reason = f"it sent a request that cannot be read: {refusal}"
        if reason is not None:
            # Only now: what the exception knows of would keep the buffer from being used again.
            self.finish()
            self.close(reason)

    def closeGracefully(self) -> None:
        """
        See L{AdmittedProtocol.closeGracefully}.  A client whose records wait
        for their commit is told of it first.
        """
        if self._isAnswering():
            self.muteFor(CLOSING)
        else:
            super().closeGracefully()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        What waits on behalf of the client waits no longer.
        """
        super().connectionLost(reason)
        self._cancelParked()
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            syncing.cancel()
            self._answerProduced()

    def peerGone(self) -> None:
        """
        The same; requests that it sent before it left are still served.
        """
        self._cancelParked()

    def _refuseVersion(self, header: RequestHeader) -> None:
        if header.apiKey == API_VERSIONS:
            # The one request that may ask for too much: the answer says what there is (KIP-511).
            self._answer(header, metadata.apiVersions(self.broker, self._call(header, None)))
            return
        api = BY_KEY.get(header.apiKey)
        name = f"API key {header.apiKey}" if api is None else api.name
        self.finish()
        self.close(f"it sent {name} in version {header.apiVersion}, which is not served")

    def _serve(self, api: Api, header: RequestHeader, buffer: memoryview) -> None:
        entity, elementCount = decodeRequest(api, header.apiVersion, buffer[header.bodyOffset :])
        # Nothing of the frame is needed any more.
        self.releaseRequest()
        answer = _SERVED_BY[api.name](self.broker, self._call(header, entity))
        if not isinstance(answer, Deferred):
            self._answer(header, answer)
            return
        # What decoding created outlives this turn only here, so only here is it charged.
        parked = self.factory.gate.pool.charge(elementCount * DECODED_ELEMENT_BYTES, PARKED)
        self._parked = answer
        self.park()
        answer.addBoth(self._unpark, parked)
        answer.addCallback(partial(self._answer, header))
        answer.addErrback(self._parkedFailed)
        if self.hasPeerGone:
            self._cancelParked()

    def _call(self, header: RequestHeader, entity: Any) -> Call:
        if self.advertised is None:
            assert self.transport is not None
            reached = self.transport.getHost()
            self.advertised = Address(getattr(reached, "host", "localhost"), getattr(reached, "port", -1))
        return Call(header.apiVersion, entity, self.advertised, self.principal, header.clientId or "", self.host)

    def _answer(self, header: RequestHeader, answer: Answer) -> None:
        body = encodeResponse(header.apiKey, header.apiVersion, answer) if isinstance(answer, Mapping) else list(answer)
        self.respond(frame(header, body))

    def _unpark(self, result: Any, parked: ILease) -> Any:
        self._parked = None
        parked.release()
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
        request = parseProduce(buffer, header.bodyOffset, header.apiVersion)
        acks, timeoutSeconds = request.acks, max(request.timeoutMs, 0) / 1000
        results = produce.append(self.broker, request)
        # A slice that lives on would keep the buffer from being used again.
        del request
        self.releaseRequest()
        if acks == 0:
            self._produceUnacknowledged(results)
            return
        # The next request may be read: what is appended together is committed together.
        self._uncommitted += 1
        if self._uncommitted + len(self._unanswered) >= MOST_UNANSWERED:
            self.mute.add(UNANSWERED)
        self.broker.log.whenCommitted(partial(self._committed, header, results, acks == ALL, timeoutSeconds))
        self.finish()

    def _produceUnacknowledged(self, results: Sequence[PartitionResult]) -> None:
        self.finish()
        refused = next((result for result in results if result.errorCode), None)
        if refused is not None:
            # There is no response to say it in; closing makes the client look again.
            self.close(
                f"a batch for partition {refused.partitionIndex} of topic {refused.topicName!r:.300} was refused, "
                f"and it wants no response: {refused.errorMessage}"
            )

    def _committed(
        self,
        header: RequestHeader,
        results: list[PartitionResult],
        wantsSync: bool,
        timeoutSeconds: float,
        error: Exception | None,
    ) -> None:
        self._uncommitted -= 1
        log = self.broker.log
        commit = 0
        if error is not None:
            results = produce.failed(results, error)
        elif wantsSync and not all(result.errorCode for result in results):
            commit = log.commitCount
        self._unanswered.append(Unanswered(header, results, commit, timeoutSeconds))
        if not self._uncommitted:
            self._answerProduced()

    def _isAnswering(self) -> bool:
        return bool(self._uncommitted or self._unanswered)

    def _answerProduced(self) -> None:
        """
        Answer Produce requests in their order, as far as their records are as
        safe as they asked for.
        """
        if self.isLost:
            self._unanswered.clear()
            if self._isPutOff:
                self._isPutOff = False
                self.finish()
            return
        syncedCount = self.broker.log.syncedCount
        responses: list[bytes] = []
        while self._unanswered and self._unanswered[0].commit <= syncedCount:
            header, results, _, _ = self._unanswered.popleft()
            responses += frame(header, [encodeProduceResponse(header.apiVersion, results)])
        if responses:
            self.send(responses)
        if self._unanswered:
            self._awaitSync(self._unanswered[0])
        if UNANSWERED in self.mute.reasons and len(self._unanswered) < MOST_UNANSWERED:
            self.unmuteFor(UNANSWERED)
        if self._isAnswering():
            return
        if CLOSING in self.mute.reasons:
            self.closeGracefully()
        elif self._isPutOff:
            self._isPutOff = False
            self.workAgain()

    def _awaitSync(self, first: Unanswered) -> None:
        if self._syncing is not None:
            return
        log = self.broker.log
        log.sync()
        parked = self.factory.gate.pool.charge(len(self._unanswered) * UNANSWERED_BYTES, PARKED)
        syncing = self._syncing = waitFor(
            self.broker.purgatory, (SYNCED,), lambda: log.syncedCount >= first.commit, first.timeoutSeconds
        )
        syncing.addBoth(self._syncOver, parked)
        syncing.addErrback(self._syncFailed)

    def _syncOver(self, result: Any, parked: ILease) -> Any:
        parked.release()
        self._syncing = None
        if not isinstance(result, Failure):
            self._answerProduced()
        return result

    def _syncFailed(self, failure: Failure) -> None:
        if isinstance(failure.value, TimeoutError):
            first = self._unanswered[0]
            self._unanswered[0] = first._replace(results=produce.timedOut(first.results), commit=0)
            self._answerProduced()
        elif not isinstance(failure.value, CancelledError):
            self.factory.log.failure("a request of {peer} failed", failure, peer=self.peer)
            self.closeGracefully()

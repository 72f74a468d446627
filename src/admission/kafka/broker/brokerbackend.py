# -*- test-case-name: tests.unit.kafka.serving.test_session -*-
"""
Answers the requests of a session from the log, the groups and the limits of the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.python.failure import Failure

from admission.connection.driver import FAILED
from admission.gate.answerroom import SMALL_ANSWER_BYTES
from admission.interfaces import ADMITTED, NOTHING, PARKED, RESPONSES, ILease
from admission.timeslices import Steps, begun

from ..security import saslapi
from ..security.login import Authenticator
from ..serving.kafkarequest import KafkaRequest, groupOf
from ..serving.session import Backend, KafkaSession, whyRejected
from ..wire.codec import decodeCounted, decodeRequest, encodeInSteps, encodeResponse, isSmallResponse, withThrottleTime
from ..wire.guard import countElements
from ..wire.headers import frame
from ..wire.primitives import MalformedRequest
from ..wire.produce import PartitionResult, encodeProduceResponse, parseProduce, refuseAll
from ..wire.throttletime import throttleTimeMs
from ..wire.versions import API_VERSIONS, BY_KEY, PRODUCE, Api, served
from .api import metadataapi, produceapi
from .broker import Answer, Body, Broker, Waiting, Work
from .produceresponses import ProduceResponses
from .servedapis import SERVED

DECODED_ELEMENT_BYTES = 512
"""The memory charged for one element of a decoded request, and for what is found out about it."""

PARKED_REQUEST_BYTES = 4 << 10
"""
The memory charged for a request that waits, besides its elements: it, its operation and their place in the purgatory.
Measured (2000 Fetches of one partition that wait): 6 KiB more for each than for an idle connection, elements included.
"""

LARGE_ANSWER_BYTES: Final = SMALL_ANSWER_BYTES
"""What an answer may have before it has to wait for memory, and is charged while it is made."""

LOGIN_FAILED = "its login failed"
"""The recorded reason, which says no more on purpose."""

_SMALL_REQUEST_BYTES: Final = 1024
"""What is read and answered in no time."""

T = TypeVar("T")


class AnswerTooLarge(Exception):
    """
    The answer to a request would have more bytes than the broker has memory for.
    """


def _encoded(request: KafkaRequest, answer: Answer, throttleMs: int) -> list[bytes]:
    if isinstance(answer, Body):
        return answer.encode(throttleMs)
    fields = {**answer, "throttle_time_ms": throttleMs} if throttleMs else answer
    return encodeResponse(request.header.apiKey, request.header.apiVersion, fields)


class BrokerBackend(Backend):
    """
    Answers requests from the broker's log, its groups and its limits, parks those that have to wait, and logs clients
    in.

    @ivar authenticator: determines the session's C{principal}.
    """

    _loginCall: IDelayedCall | None = None

    def __init__(self, session: KafkaSession, broker: Broker) -> None:
        self.broker = broker
        self.session = session
        self.authenticator = Authenticator(broker.logins, session, self._loggedIn)
        self._produced = ProduceResponses(session, broker, self._produceAnswered)
        # Whether a request of another kind waits until all that were produced before it are answered.
        self._isPutOff = False

    @property
    def mayBeStranger(self) -> bool:
        return self.session.isTLS or self.needsLogin

    @property
    def needsLogin(self) -> bool:
        return self.authenticator.isNeeded

    @property
    def isLoggingIn(self) -> bool:
        return not self.authenticator.isSettled

    def refuseBeforeLogin(self, sizeBytes: int, head: bytes) -> str | None:
        return None if self.authenticator.isSettled else self.authenticator.refuseFrame(sizeBytes, head)

    def received(self, request: KafkaRequest, buffer: memoryview) -> None:
        session, header = self.session, request.header
        api = served(header.apiKey, header.apiVersion)
        if session.unanswered and header.apiKey != PRODUCE:
            # Responses leave in the order of the requests.
            self._isPutOff = True
            request.postpone()
        elif api is None:
            self._refuseVersion(request, buffer)
        elif not session.driver.owesNothing and session.holdBackFirst(api.name, request):
            pass
        elif api.apiKey == PRODUCE:
            self._produce(request, buffer)
        elif api.name in saslapi.SERVED_BY:
            self._logIn(api, request, buffer)
        else:
            self._serve(api, request, buffer)

    def connected(self) -> None:
        """
        Clients may have to log in.
        """
        if self.needsLogin:
            clock = self.session.factory.clock
            self._loginCall = clock.callLater(self.broker.settings.loginTimeoutSeconds, self._loginOverdue)

    def answerNow(self) -> None:
        self._produced.answer()

    def throttleOver(self) -> None:
        """
        Send the answers that were delayed.
        """
        self._produced.answer()

    def abandoned(self) -> None:
        self._stopLoginCall()
        self._produced.cancel()
        self._produceAnswered()

    def lost(self) -> None:
        """
        The client's groups are told last.
        """
        self.broker.groups.disconnected(self.session)

    def _refuseVersion(self, request: KafkaRequest, buffer: memoryview) -> None:
        header = request.header
        if header.apiKey == API_VERSIONS:
            # The one request whose version may be too new: the answer says which are served (KIP-511).
            self._respond(request, metadataapi.apiVersions(self.broker, request), 0.0)
            return
        api = BY_KEY.get(header.apiKey)
        name = f"API key {header.apiKey}" if api is None else api.name
        reason = f"it sent {name} in version {header.apiVersion}, which is not served"
        if api is not None and api.apiKey == PRODUCE and 0 <= header.apiVersion < api.minVersion:
            # That it is advertised is for librdkafka; see APIS.
            produced = parseProduce(buffer, header.bodyOffset, header.apiVersion)
            if produced.acks:
                results = refuseAll(produced, ErrorCode.unsupported_version, reason)
                body = encodeProduceResponse(header.apiVersion, results)
                self._answerAndClose(request, [body], reason, reason)
                return
        self.session.reject(request, reason)

    def _serve(self, api: Api, request: KafkaRequest, buffer: memoryview) -> None:
        session = self.session
        header = request.header
        if request.sizeBytes <= _SMALL_REQUEST_BYTES:
            request.entity, elementCount = decodeRequest(api, header.apiVersion, buffer[header.bodyOffset :])
            # The frame is no longer needed.
            session.releaseRequest()
            self._serveDecoded(api, request, elementCount)
            return

        def decode() -> Steps[int]:
            yield None
            body = buffer[header.bodyOffset :]
            elementCount = countElements(api, header.apiVersion, body)
            room = session.factory.gate.answers.whenRoom(session.holder, elementCount * DECODED_ELEMENT_BYTES)
            if room is not None:
                yield room
            # Before anybody else asks for room.
            self._chargeDecoded(request, elementCount)
            yield None
            request.entity = decodeCounted(api, header.apiVersion, body)
            return elementCount

        decoding = self._workOnFrame(request, decode(), partial(self._serveDecoded, api, request))
        if decoding is not None:
            request.step = decoding

    def _workOnFrame(
        self, request: KafkaRequest, steps: Steps[T], then: Callable[[T], object]
    ) -> Deferred[None] | None:
        """
        Do work that reads the frame of a request, and release that.  From here on the memory belongs to the work,
        whatever becomes of the connection.

        @param then: called with the result.
        @return: L{None} if it is done; otherwise to be cancelled if nobody wants it any more.
        """
        lease, request.lease = request.lease, None
        assert lease is not None

        def release(result: Any = None) -> Any:
            lease.release()
            request.released = self.session.factory.clock.seconds()
            return result

        try:
            result = self._runInSlices(request, steps)
        except BaseException:
            release()
            raise
        if not isinstance(result, Deferred):
            release()
            then(result)
            return None
        self.session.endTurn()
        result.addBoth(release)
        result.addBoth(self._stepOver, request)
        late: Deferred[Any] = result.addCallback(then)
        late.addErrback(self._parkedFailed)
        return late

    def _serveDecoded(self, api: Api, request: KafkaRequest, elementCount: int) -> None:
        session = self.session
        servedApi = SERVED[api.name]
        wants = self.broker.control.wants
        if wants.details:
            request.groupId = groupOf(request.entity)
        if wants.usage:
            decision = session.driver.admit(request, servedApi.refusal)
            if not decision.admitted:
                assert servedApi.refuse is not None
                self._respond(request, servedApi.refuse(request), decision.delaySeconds)
                return
            session.driver.begin(request)
        work = servedApi.answer(self.broker, request)
        answer: Answer | Waiting
        if isinstance(work, Generator):
            answer = self.broker.timeSlices.run(session.holder, work, request.workedInSlices)
        else:
            answer = work
        if not isinstance(answer, Deferred):
            self._answer(request, answer)
            return
        # The objects that decoding created outlive this turn only here, so they are charged only here.
        self._chargeDecoded(request, elementCount)
        self._parkUntil(answer, request.releaseDecoded)
        late: Deferred[Any] = answer.addCallback(self._workLate, request)
        late.addCallback(lambda answered: self._answer(request, answered))
        late.addErrback(self._parkedFailed)
        if session.hasPeerGone:
            request.cancel()

    def _workLate(self, answered: Answer | Work, request: KafkaRequest) -> Answer | Deferred[Answer]:
        """
        Do what is left to do once a request has waited.
        """
        if not callable(answered):
            return answered
        answer = self._runInSlices(request, answered())
        if isinstance(answer, Deferred):
            request.step = answer
            answer.addBoth(self._stepOver, request)
        return answer

    def _runInSlices(self, request: KafkaRequest, steps: Steps[T]) -> T | Deferred[T]:
        """
        Do work that was not parked, or is not any more.
        """
        session = self.session
        began = session.factory.clock.seconds()

        def finished(usedSeconds: float) -> None:
            # Nobody is charged for the time between slices.
            request.workedInSlices(usedSeconds - (session.factory.clock.seconds() - began))

        return self.broker.timeSlices.run(session.holder, steps, finished)

    def _logIn(self, api: Api, request: KafkaRequest, buffer: memoryview) -> None:
        header = request.header
        entity, _ = decodeRequest(api, header.apiVersion, buffer[header.bodyOffset :])
        answer = saslapi.SERVED_BY[api.name](self.authenticator, entity)
        self._parkUntil(answer, self.session.factory.gate.pool.charge(request.sizeBytes, PARKED).release)
        answer.addCallback(lambda answered: self._answerLogin(request, answered))
        answer.addErrback(self._parkedFailed)
        if self.session.hasPeerGone:
            request.cancel()

    def _answerLogin(self, request: KafkaRequest, answer: Mapping[str, Any]) -> None:
        refusal = self.authenticator.refusal
        if refusal is None:
            self._respond(request, answer, 0.0)
            return
        response = encodeResponse(request.header.apiKey, request.header.apiVersion, answer)
        self._answerAndClose(request, response, LOGIN_FAILED, refusal)

    def _answerAndClose(self, request: KafkaRequest, body: list[bytes], recorded: str, reason: str) -> None:
        """
        Refuse a request with an answer, the last one.
        """
        session = self.session
        request.responseBytes = sum(map(len, body))
        request.reject(recorded)
        session.request = None
        session.send(frame(request.header, body))
        session.requestAnswered(request, session.factory.clock.seconds())
        if session.closeReason is None:
            session.recordedReason = recorded
        # Nothing else that it has sent may be read.
        session.close(reason)
        session.finish()

    def _loggedIn(self, principal: str) -> None:
        self._stopLoginCall()
        self.session.principal = self.session.holder = principal

    def _loginOverdue(self) -> None:
        self._loginCall = None
        self.session.close("it has not logged in within login.timeout")

    def _stopLoginCall(self) -> None:
        if self._loginCall is not None:
            self._loginCall.cancel()
            self._loginCall = None

    def _answer(self, request: KafkaRequest, answer: Answer) -> None:
        header = request.header
        if isinstance(answer, Body) or isSmallResponse(header.apiKey, header.apiVersion, answer):
            self._answerWith(request, answer, _encoded(request, answer, 0))
            return
        try:
            body = self._runInSlices(request, self._encode(request, answer))
        except AnswerTooLarge as tooLarge:
            self.session.reject(request, str(tooLarge))
            return
        if not isinstance(body, Deferred):
            self._answerWith(request, answer, body)
            return
        self.session.endTurn()
        request.step = body
        body.addBoth(self._stepOver, request)
        body.addCallback(lambda parts: self._answerWith(request, answer, parts))
        body.addErrback(self._parkedFailed)

    def _encode(self, request: KafkaRequest, answer: Mapping[str, Any]) -> Steps[list[bytes]]:
        """
        Encode an answer of any size: a large one when it is its turn and there is memory, and charged from then on.
        """
        session = self.session
        broker, header = self.broker, request.header
        steps = encodeInSteps(header.apiKey, header.apiVersion, answer)
        hasPlace = False
        charge: ILease | None = None
        try:
            while True:
                try:
                    sizeBytes = next(steps)
                except StopIteration as end:
                    encoded: list[bytes] = end.value
                    return encoded
                if sizeBytes > broker.largestResponseBytes:
                    raise AnswerTooLarge(
                        f"the answer to its {request.kind} would have more than {broker.largestResponseBytes} bytes, a"
                        " quarter of the memory for requests or fetch.max.bytes: it has to ask for less at a time"
                    )
                if not hasPlace and sizeBytes > LARGE_ANSWER_BYTES:
                    # A request that has a place waits for nobody: others wait for the place, and hold memory meanwhile.
                    room = session.factory.gate.answers.whenRoom(session.holder, sizeBytes, request.decodedBytes)
                    if room is not None:
                        yield room
                    place = broker.largeAnswers.take(session.holder)
                    if place is not None:
                        yield place
                    hasPlace = True
                if hasPlace and (charge is None or sizeBytes > charge.sizeBytes + LARGE_ANSWER_BYTES):
                    if charge is not None:
                        charge.release()
                    charge = session.factory.gate.pool.charge(sizeBytes, RESPONSES)
                yield None
        finally:
            if charge is not None:
                charge.release()
            if hasPlace:
                broker.largeAnswers.give()

    def _answerWith(self, request: KafkaRequest, answer: Answer, body: list[bytes]) -> None:
        session = self.session
        delaySeconds = 0.0
        if request.view is not None:
            now = session.factory.clock.seconds()
            responseBytes = request.responseBytes = sum(map(len, body))
            usage = session.driver.usageOf(request, responseBytes, now)
            isCounted = not isinstance(answer, Body) or answer.isCounted
            delaySeconds = session.charge(request, usage if isCounted else NOTHING, now)
            if delaySeconds > 0:
                header, delayMs = request.header, throttleTimeMs(delaySeconds)
                throttled = (
                    None
                    if isinstance(answer, Body)
                    else withThrottleTime(header.apiKey, header.apiVersion, body, delayMs)
                )
                body = _encoded(request, answer, delayMs) if throttled is None else throttled
        if isinstance(answer, Body) and answer.backOffSeconds > delaySeconds:
            body = answer.encode(throttleTimeMs(answer.backOffSeconds))
            # No policy has asked for it.
            session.throttle(answer.backOffSeconds)
        session.respond(frame(request.header, body), delaySeconds)

    def _respond(self, request: KafkaRequest, answer: Answer, delaySeconds: float) -> None:
        body = _encoded(request, answer, throttleTimeMs(delaySeconds))
        request.responseBytes = sum(map(len, body))
        self.session.respond(frame(request.header, body), delaySeconds)

    def _stepOver(self, result: Any, request: KafkaRequest) -> Any:
        request.step = None
        return result

    def _chargeDecoded(self, request: KafkaRequest, elementCount: int) -> None:
        if request.decoded is None:
            sizeBytes = PARKED_REQUEST_BYTES + elementCount * DECODED_ELEMENT_BYTES
            request.decoded = self.session.factory.gate.pool.charge(sizeBytes, PARKED)

    def _parkUntil(self, answer: Deferred[Any], release: Callable[[], object]) -> None:
        session = self.session
        request = session.request
        assert request is not None
        request.step = answer
        session.park()

        def resume(result: Any) -> Any:
            request.step = None
            release()
            request.resume(session.factory.clock.seconds())
            return result

        answer.addBoth(resume)

    def _parkedFailed(self, failure: Failure) -> None:
        session = self.session
        if isinstance(failure.value, (AnswerTooLarge, MalformedRequest)):
            assert session.request is not None
            session.reject(session.request, whyRejected(failure.value))
            return
        if not isinstance(failure.value, CancelledError):
            session.factory.log.failure("a request of {peer} failed", failure, peer=session.peer)
            session.close(FAILED)
        session.finish()

    def _produce(self, request: KafkaRequest, buffer: memoryview) -> None:
        session = self.session
        header = request.header
        produced = parseProduce(buffer, header.bodyOffset, header.apiVersion)
        if produceapi.isLarge(produced):
            session.factory.gate.turns.beginNoMore()
        request.acks = produced.acks
        request.timeoutSeconds = max(produced.timeoutMs, 0) / 1000
        decision = session.admitProduce(request, produced) if self.broker.control.wants.usage else ADMITTED
        if not decision.admitted:
            self._acknowledge(
                request,
                refuseAll(produced, ErrorCode.throttling_quota_exceeded, decision.message),
                False,
                decision.delaySeconds,
            )
            return
        wantsFlush = produceapi.wantsFlush(self.broker, produced)
        isLarge = produceapi.isLarge(produced)
        if isLarge:
            self._chargeDecoded(request, len(produced.partitions))
        goOver = partial(self.broker.goOver, request)
        steps = produceapi.append(self.broker, produced, session.principal, session.holder, wantsFlush, goOver)
        # A slice that survives would keep the buffer from being reused.
        del produced
        if not isLarge:
            try:
                first = next(steps)
            except StopIteration as end:
                results = end.value
            else:
                steps = begun(first, steps)
                results = None
            if results is not None:
                self._appended(request, results, wantsFlush)
                return
        # It goes on if the client leaves, as what is appended at once does.
        self._workOnFrame(request, steps, partial(self._appended, request, wantsFlush=wantsFlush, isCommitted=isLarge))

    def _appended(
        self, request: KafkaRequest, results: list[PartitionResult], wantsFlush: bool, isCommitted: bool = False
    ) -> None:
        session = self.session
        delaySeconds = 0.0
        if request.view is not None:
            now = session.factory.clock.seconds()
            # The response does not exist yet.
            delaySeconds = session.charge(request, session.driver.usageOf(request, 0, now), now)
        self._acknowledge(request, results, wantsFlush, delaySeconds, isCommitted)

    def _acknowledge(
        self,
        request: KafkaRequest,
        results: list[PartitionResult],
        wantsFlush: bool,
        delaySeconds: float,
        isCommitted: bool = False,
    ) -> None:
        request.results = results
        if request.acks == 0:
            self._produceUnacknowledged(request, delaySeconds)
        else:
            # The next request may be read: records that are appended together are committed together.
            self._produced.add(request, wantsFlush, delaySeconds, isCommitted)
            self.session.finish(delaySeconds)

    def _produceUnacknowledged(self, request: KafkaRequest, delaySeconds: float) -> None:
        session = self.session
        session.request = None
        session.requestAnswered(request, session.factory.clock.seconds())
        session.finish(delaySeconds)
        refused = next((result for result in request.results if result.errorCode), None)
        if refused is not None:
            # There is no response to carry the error; after a close, the client looks again.
            session.close(
                f"a batch for partition {refused.partitionIndex} of topic {refused.topicName!r:.300} was refused, "
                f"and it wants no response: {refused.errorMessage}"
            )

    def _produceAnswered(self) -> None:
        """
        Every Produce request read so far has been answered, or the client is gone.
        """
        session = self.session
        if self._isPutOff:
            self._isPutOff = False
            if session.isLost or session.isClosing:
                session.finish()
            else:
                session.workAgain()

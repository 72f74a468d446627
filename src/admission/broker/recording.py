# -*- test-case-name: tests.test_recording -*-
"""
What is recorded of one request, from its length to its answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..connection.mute import MEMORY, REQUESTS
from ..control import Charge
from ..interfaces import CONNECTION, Decision, Request
from ..metrics.events import EXPIRE, MUTE, REJECT, THROTTLE, UNKNOWN_SECONDS, RequestEvent
from ..wire.batches import producerIdOf, readHeader
from ..wire.headers import RequestHeader
from ..wire.produce import ProduceRequest
from ..wire.versions import BY_KEY, SASL_AUTHENTICATE
from .producing import throttleTimeMs

if TYPE_CHECKING:
    from .recordedconnection import RecordedConnection

HUNG_UP = "the client hung up"
FAILED = "its request could not be answered"
NO_MEMORY = "it waited for memory"
OVER_QUOTA = "over its quota"
NO_LOGIN = "its login failed"

LOGIN_GRAIN_BYTES = 256
"""What the size of a login is rounded up to, or it would tell how long a password is."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def withoutNumbers(reason: str) -> str:
    """
    C{reason} with an N for each number: there is room for a few thousand
    texts, and clients could make as many out of one.
    """
    return _NUMBER.sub("N", reason)


def groupOf(entity: Any) -> str | None:
    """
    The consumer group that a decoded request is about, if it is about one.
    """
    groupId: str | None = getattr(entity, "group_id", None)
    if groupId is None:
        groups: Sequence[Any] = getattr(entity, "groups", None) or getattr(entity, "groups_names", None) or ()
        if len(groups) == 1:
            groupId = getattr(groups[0], "group_id", groups[0])
    return groupId


class RecordedRequest:
    """
    Fills in the event of one request, and has it recorded when it is over.

    What is not a number stands for a moment that there was not.

    @ivar event: the event.
    @ivar isWorking: whether somebody works on it at this moment, and so brings
        it to its end whatever happens.
    """

    __slots__ = (
        "_connection",
        "_isAnswered",
        "_isQueued",
        "_memorySeconds",
        "_parkedSeconds",
        "_seconds",
        "_startedSeconds",
        "_toldSeconds",
        "_wholeSeconds",
        "event",
        "isWorking",
    )

    def __init__(self, connection: RecordedConnection, sizeBytes: int, inFlight: int) -> None:
        """
        Its length has just been read.

        @param sizeBytes: see L{RequestEvent}, like C{inFlight}.
        """
        self._connection = connection
        self._seconds = connection.factory.clock.seconds
        now = self._memorySeconds = self._seconds()
        pool = connection.factory.gate.pool
        event = self.event = RequestEvent(connection.connectionId, now, connection.listener, connection.host)
        event.requestBytes = sizeBytes
        event.inFlight = inFlight
        event.poolAvailableBytes = pool.availableBytes
        event.poolUsedBytes = pool.sizeBytes - event.poolAvailableBytes
        event.serviceSeconds = UNKNOWN_SECONDS
        self._wholeSeconds = self._startedSeconds = self._toldSeconds = self._parkedSeconds = UNKNOWN_SECONDS
        self.isWorking = self._isQueued = self._isAnswered = False

    # How it comes in

    def knows(self, head: bytes) -> None:
        """
        C{head}, what follows its length, has been read as far as it is there.
        """
        if len(head) == 2:
            self.event.apiKey = int.from_bytes(head, "big", signed=True)

    def connects(self) -> None:
        """
        It is none, but the opening of the connection: it needs no memory, and
        takes no time that counts.
        """
        self.event.kind = CONNECTION
        self.event.serviceSeconds = 0.0
        self._memorySeconds = UNKNOWN_SECONDS
        self.worksOn()

    def asksForMemory(self) -> None:
        """
        Memory is asked for only now.
        """
        self._memorySeconds = self._seconds()

    def refusesFrame(self, reason: str) -> None:
        """
        It is not read.
        """
        self._memorySeconds = UNKNOWN_SECONDS
        self.rejects(reason)
        self.over()

    def memoryGranted(self) -> None:
        """
        It had to wait for memory, and has it now.
        """
        now = self._seconds()
        self.event.poolWaitSeconds = now - self._memorySeconds
        self.event.decision, self.event.reason = MUTE, NO_MEMORY
        self._memorySeconds = now

    def memoryReleased(self) -> None:
        """
        It holds no memory of the pool any more, or waits for none.
        """
        since = self._memorySeconds
        if since != since:
            return
        self._memorySeconds = UNKNOWN_SECONDS
        if MEMORY in self._connection.mute.reasons:
            self.event.poolWaitSeconds = self._seconds() - since
        else:
            self.event.poolHoldSeconds = self._seconds() - since

    def turnGranted(self) -> None:
        """
        It was whole before, and may be worked on now.
        """
        self._wholeSeconds = self._connection.mute.reasons.get(REQUESTS, UNKNOWN_SECONDS)

    def worksOn(self) -> None:
        """
        The work begins, or begins again.
        """
        now = self._startedSeconds = self._seconds()
        if self._wholeSeconds != self._wholeSeconds:
            self._wholeSeconds = now
        self.event.queueSeconds = now - self._wholeSeconds
        self.isWorking, self._isQueued = True, False

    def putsOff(self) -> None:
        """
        It has to wait until those before it are answered.
        """
        self.isWorking, self._isQueued = False, True

    def reads(self, header: RequestHeader) -> None:
        """
        It is known what it is.
        """
        event = self.event
        event.apiKey = header.apiKey
        event.apiVersion = header.apiVersion
        event.correlationId = header.correlationId
        event.clientId = header.clientId
        event.principal = self._connection.principal

    def decodes(self, entity: Any) -> None:
        """
        It has been decoded.
        """
        self.event.groupId = groupOf(entity)

    def produces(self, request: ProduceRequest, identities: Sequence[int]) -> None:
        """
        It is a Produce request with batches of the producers C{identities}.
        """
        if not identities:
            return
        self.event.producerIds = identities
        for _, _, records in request.partitions:
            if records and producerIdOf(records) >= 0:
                self.event.producerEpoch = readHeader(records).producerEpoch
                break

    # What becomes of it

    def asks(self, asked: Request, atSeconds: float) -> None:
        """
        The policies are about to be asked whether it may go ahead.

        @param atSeconds: the moment that they go by.
        """
        self._toldSeconds = atSeconds
        isKnown = self._connection.broker.control.isKnown(asked, atSeconds) if asked.identities else None
        if isKnown is not None:
            self.event.bloomSeen = isKnown

    def refuses(self, decision: Decision) -> None:
        """
        It may not.
        """
        name = decision.policy
        self.rejects(decision.reason)
        event = self.event
        event.policy = name
        event.decidedSeconds = self._toldSeconds
        names = self._connection.broker.control.policyNames
        event.policyDelaysSeconds = [decision.delaySeconds if each == name else 0.0 for each in names]
        event.throttleTimeMs = throttleTimeMs(decision.delaySeconds)

    def rejects(self, reason: str) -> None:
        """
        Nothing is done of it.
        """
        self.event.decision, self.event.reason = REJECT, withoutNumbers(reason)

    def took(self, responseBytes: int, serviceSeconds: float) -> None:
        """
        What it took is known.
        """
        self.event.responseBytes = responseBytes
        self.event.serviceSeconds = serviceSeconds

    def tells(self, atSeconds: float) -> None:
        """
        The policies are about to be told of it.

        @param atSeconds: the moment that they go by.
        """
        self._toldSeconds = atSeconds

    def charged(self, charge: Charge, isCounted: bool) -> None:
        """
        They were.

        @param isCounted: whether of what it took, and not of nothing.
        """
        event = self.event
        event.decidedSeconds = self._toldSeconds
        event.isCounted = isCounted
        event.policyDelaysSeconds = charge.shares
        if charge.delaySeconds > 0:
            event.decision, event.reason = THROTTLE, OVER_QUOTA
            event.policy = self._connection.broker.control.strictest(charge)
            event.throttleTimeMs = throttleTimeMs(charge.delaySeconds)

    def parks(self) -> None:
        """
        It waits, and nobody works on it.
        """
        self.isWorking = False
        self._parkedSeconds = self._seconds()

    def unparks(self) -> None:
        """
        It waits no longer.
        """
        self.isWorking = True
        self.event.purgatoryWaitSeconds += self._seconds() - self._parkedSeconds
        self._parkedSeconds = UNKNOWN_SECONDS

    def expires(self, reason: str) -> None:
        """
        Its time has run out, and the client hears of that.
        """
        self.event.decision, self.event.reason = EXPIRE, withoutNumbers(reason)

    def givesUp(self) -> None:
        """
        The client does not hear of it any more.
        """
        connection = self._connection
        reason = HUNG_UP if connection.isLost or connection.hasPeerGone else FAILED
        self.expires(connection.whyClosed or reason)
        self.event.throttleTimeMs = 0

    # How it ends

    def answers(self, parts: Sequence[bytes]) -> None:
        """
        It is about to be answered.

        @param parts: the header of the response, and the rest.
        """
        self._isAnswered = True
        if self.event.serviceSeconds != self.event.serviceSeconds:
            self.event.responseBytes = sum(map(len, parts)) - len(parts[0])
        self._giveUpIfClosing()

    def answersLate(self, toldMs: int) -> None:
        """
        The same for one that has left, and so it is over.

        @param toldMs: the delay that the client is told.
        """
        self.event.throttleTimeMs = toldMs
        self._giveUpIfClosing()
        self.over()

    def answersNothing(self) -> None:
        """
        It wants no answer, or there can be none.
        """
        self._isAnswered = True
        self.event.throttleTimeMs = 0

    def leaves(self) -> None:
        """
        All that is left is to answer it, and meanwhile the connection goes on
        to others.
        """
        self._isAnswered = True
        self.parks()
        self._connection.recorded = None
        if self._connection.isLost:
            # While it was worked on, so nobody has told of it yet.
            self.givesUp()
            self.over()

    def over(self) -> None:
        """
        There is nothing left to do for it: have it recorded.
        """
        if self._memorySeconds == self._memorySeconds:
            self.memoryReleased()
        event, now = self.event, self._seconds()
        parkedSeconds = self._parkedSeconds
        if parkedSeconds == parkedSeconds:
            event.purgatoryWaitSeconds += now - parkedSeconds
        if event.serviceSeconds != event.serviceSeconds:
            self._endWithoutUsage(now)
        if not self._isAnswered and event.decision != REJECT:
            self.givesUp()
        if event.principal is None:
            event.principal = self._connection.principal
        if event.apiKey == SASL_AUTHENTICATE:
            event.requestBytes += -event.requestBytes % LOGIN_GRAIN_BYTES
        if event.kind is None:
            api = BY_KEY.get(event.apiKey)
            event.kind = None if api is None else api.name
        event.sentSeconds = now
        self._connection.requestOver(self)

    def _endWithoutUsage(self, nowSeconds: float) -> None:
        """
        Work out what L{took} has not been told.
        """
        event, reasons = self.event, self._connection.mute.reasons
        isWaiting = self._isQueued or REQUESTS in reasons
        if isWaiting:
            event.queueSeconds = nowSeconds - reasons.get(REQUESTS, self._wholeSeconds)
        hasBegun = not isWaiting and self._startedSeconds == self._startedSeconds
        event.serviceSeconds = nowSeconds - self._startedSeconds - event.purgatoryWaitSeconds if hasBegun else 0.0

    def _giveUpIfClosing(self) -> None:
        if self._connection.isLost or self._connection.isClosing:
            self.givesUp()

# -*- test-case-name: tests.unit.kafka.broker.test_recording -*-
"""
Makes the event of a request that is over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeVar

from ..request import ServerRequest
from .events import EXPIRE, MAX_COUNT, MUTE, REJECT, THROTTLE, RequestEvent

NO_MEMORY = "it waited for memory"
OVER_QUOTA = "over its quota"

_LONGEST_MS = 2**31 - 1

_NUMBER = re.compile(r"\d+(?:\.\d+)?")

_Event = TypeVar("_Event", bound=RequestEvent)


def withoutNumbers(reason: str) -> str:
    """
    C{reason} with an N for each number: there is room for a few thousand texts, and clients could make as many from
    one.
    """
    return _NUMBER.sub("N", reason)


def eventOf(request: ServerRequest, makeEvent: Callable[[int, float], _Event]) -> _Event:
    """
    The event of C{request}, as far as every server knows it.

    @param request: one that is over.
    @param makeEvent: L{RequestEvent} or a driver's subclass of it.
    """
    ended = request.ended
    assert ended is not None, f"{request!r} is not over"
    connection = request.connection
    event = makeEvent(connection.connectionId, request.arrived)
    event.listener = connection.listener
    event.peer = connection.host
    event.principal = connection.principal if request.principal is None else request.principal
    event.clientId = request.clientId
    if request.kind is not None:
        event.kind = request.kind
        event.traits = request.traits.code
    event.requestBytes = request.sizeBytes
    event.responseBytes = request.responseBytes
    event.inFlight = min(request.inFlight, MAX_COUNT)
    event.poolAvailableBytes = request.poolAvailableBytes
    event.poolUsedBytes = connection.factory.gate.pool.sizeBytes - request.poolAvailableBytes
    granted, complete, begun = request.granted, request.complete, request.begun
    if request.asked is not None:
        event.poolWaitSeconds = (ended if granted is None else granted) - request.asked
        if granted is not None:
            event.poolHoldSeconds = (ended if request.released is None else request.released) - granted
    if complete is not None:
        event.queueSeconds = (ended if begun is None else begun) - complete
    event.purgatoryWaitSeconds = request.parkedSeconds(ended)
    serviceSeconds = request.serviceSeconds
    event.serviceSeconds = request.workedSeconds(ended) if serviceSeconds is None else serviceSeconds
    event.sentSeconds = ended
    if request.charge is not None:
        event.policyDelaysSeconds = request.charge
    event.identities = request.identities
    if request.decided is not None:
        event.decidedSeconds = request.decided
    if request.admitted is not None:
        # Of what is recorded of its arrival, or the sum would not be that moment.
        event.begunSeconds = request.admitted - round(request.arrived, 6)
    if request.lagSeconds is not None:
        event.lagSeconds = request.lagSeconds
    if request.isCounted is not None:
        event.isCounted = request.isCounted
    if request.isKnown is not None:
        event.isKnown = request.isKnown
    if request.refusal is not None:
        event.refusal = request.refusal.value
    event.policy = request.policy
    if request.answered is not None:
        event.throttleTimeMs = min(max(math.ceil(request.delaySeconds * 1000), 0), _LONGEST_MS)
    if request.expireReason is not None:
        event.decision, event.reason = EXPIRE, withoutNumbers(request.expireReason)
    elif request.rejectReason is not None:
        event.decision, event.reason = REJECT, withoutNumbers(request.rejectReason)
    elif request.policy is not None:
        event.decision, event.reason = THROTTLE, OVER_QUOTA
    elif event.poolWaitSeconds > 0:
        event.decision, event.reason = MUTE, NO_MEMORY
    return event

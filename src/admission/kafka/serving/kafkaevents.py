# -*- test-case-name: tests.unit.kafka.broker.test_recording -*-
"""
What is recorded of requests of Kafka's protocol.
"""

from __future__ import annotations

from admission.recording.eventof import eventOf

from ..wire.versions import BY_KEY, SASL_AUTHENTICATE
from .kafkarequest import KafkaRequest
from .recordedcolumns import KafkaRequestEvent
from .session import KafkaSession

_LARGEST = 2**15 - 1

LOGIN_GRAIN_BYTES = 256
"""The size of a login is rounded up to a multiple of this, or it would disclose the length of the password."""


def kafkaEventOf(request: KafkaRequest) -> KafkaRequestEvent:
    """
    The event to record for C{request}, which has ended.
    """
    event = eventOf(request, KafkaRequestEvent)
    apiKey = event.apiKey = request.apiKey
    header = request.header
    event.clientId = None if header is None else header.clientId
    if header is not None:
        event.apiVersion = header.apiVersion
        event.correlationId = header.correlationId
    if event.kind is None:
        api = BY_KEY.get(apiKey)
        event.kind = None if api is None else api.name
    if apiKey == SASL_AUTHENTICATE:
        event.requestBytes += -event.requestBytes % LOGIN_GRAIN_BYTES
    event.producerEpoch = request.producerEpoch
    event.groupId = request.groupId
    if request.nodeId <= _LARGEST:
        event.nodeId = request.nodeId
    event.upstreamSeconds = request.upstreamSeconds
    event.upstreamThrottleMs = min(request.upstreamThrottleMs, _LARGEST)
    return event


def principalAtFirst(session: KafkaSession) -> str | None:
    """
    The principal of a client that has just connected; L{None} if it may say so later.
    """
    return None if session.mayBeStranger else session.principal

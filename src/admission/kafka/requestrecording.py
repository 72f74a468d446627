# -*- test-case-name: tests.unit.kafka.test_recording -*-
"""
Recording connections and requests.
"""

from __future__ import annotations

from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.python.failure import Failure

from ..connection.driver import HUNG_UP
from ..connection.protocol import FrameProtocol
from ..recording.eventof import eventOf, withoutNumbers
from ..recording.recorder import EventRecorder
from ..request import ServerRequest
from .kafkarequest import KafkaRequest
from .recordedcolumns import KafkaRequestEvent
from .session import KafkaSession
from .wire.versions import BY_KEY, SASL_AUTHENTICATE

BROKE = "the connection broke"

_LARGEST = 2**15 - 1

LOGIN_GRAIN_BYTES = 256
"""The size of a login is rounded up to a multiple of this, or it would disclose the length of the password."""


class RequestRecording:
    """
    Records an event for each request that ends, and for each connection
    that is opened or closed.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def connectionOpened(self, connection: FrameProtocol) -> None:
        assert isinstance(connection, KafkaSession)
        principal = None if connection.mayBeStranger else connection.principal
        connection.connectionId = self._recorder.connectionOpened(connection.listener, connection.host, principal)

    def requestOver(self, request: ServerRequest) -> None:
        assert isinstance(request, KafkaRequest)
        self._recorder.requestAnswered(kafkaEventOf(request))

    def connectionClosed(self, connection: FrameProtocol, reason: Failure) -> None:
        ending = HUNG_UP if isinstance(reason.value, ConnectionDone | ConnectionAborted) else BROKE
        self._recorder.connectionClosed(
            connection.connectionId,
            connection.listener,
            connection.host,
            connection.principal,
            withoutNumbers(connection.whyClosed or ending),
            connection.requestCount,
            connection.factory.clock.seconds() - connection.openedSeconds,
        )


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
    event.identities = request.identities
    event.producerEpoch = request.producerEpoch
    event.groupId = request.groupId
    if request.nodeId <= _LARGEST:
        event.nodeId = request.nodeId
    event.upstreamSeconds = request.upstreamSeconds
    event.upstreamThrottleMs = min(request.upstreamThrottleMs, _LARGEST)
    return event

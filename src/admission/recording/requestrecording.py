# -*- test-case-name: tests.unit.kafka.broker.test_recording -*-
"""
Recording connections and requests, whatever their protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.python.failure import Failure

from ..request import HUNG_UP, ServerRequest
from .eventof import eventOf, withoutNumbers
from .events import RequestEvent
from .recorder import EventRecorder

BROKE = "the connection broke"


def plainEventOf(request: ServerRequest) -> RequestEvent:
    """
    The event of C{request}, with what every server knows of it, or what C{makeEvent} of its connection makes.
    """
    makeEvent: Callable[[int, float], RequestEvent] = getattr(request.connection, "makeEvent", RequestEvent)
    return eventOf(request, makeEvent)


class RequestRecording:
    """
    Records an event for each request that ends, and for each connection that is opened or closed.  An observer of
    L{AdmittedFactory <admission.connection.factory.AdmittedFactory>}.
    """

    def __init__(
        self,
        recorder: EventRecorder,
        makeEvent: Callable[[Any], RequestEvent] = plainEventOf,
        principalOf: Callable[[Any], str | None] = lambda connection: connection.principal,
    ) -> None:
        """
        @param makeEvent: makes the event of a request that is over.
        @param principalOf: the principal of a connection that has just been opened, if that is known.
        """
        self._recorder = recorder
        self._makeEvent = makeEvent
        self._principalOf = principalOf

    def connectionOpened(self, connection: Any) -> None:
        principal = self._principalOf(connection)
        connection.connectionId = self._recorder.connectionOpened(connection.listener, connection.host, principal)

    def requestOver(self, request: ServerRequest) -> None:
        self._recorder.requestAnswered(self._makeEvent(request))

    def connectionClosed(self, connection: Any, reason: Failure) -> None:
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

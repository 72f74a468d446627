# -*- test-case-name: tests.unit.web.test_websocketmessages -*-
"""
A server of websockets, without a site around it, whose every message is admitted.
"""

from __future__ import annotations

from typing import Any

from ..admission import Admission
from ..connection.wrapped import WrappedConnection
from ..connection.wrapping import NameOf, WrappedFactory
from .websocketmessages import MAX_MESSAGE_BYTES, WebSocketMessages, checkMessageBytes, goAway


def protectWebSockets(
    admission: Admission,
    factory: Any,
    *,
    nameOf: NameOf | None = None,
    maxUnsentBytes: int | None = None,
    maxMessageBytes: int = MAX_MESSAGE_BYTES,
) -> WrappedFactory:
    """
    Have every message admitted that clients send by websocket, to a factory that speaks nothing else, such as
    Autobahn's C{WebSocketServerFactory}: what this returns goes wherever C{factory} went.  Websockets that are
    resources of a site are protected with it, see L{protectSite <admission.web.protectedsite.protectSite>}.

    Messages are requests of the kind C{websocket-message}; pings, pongs and closes of the kind C{websocket-control};
    what asks for the websocket of the kind C{websocket-handshake}.  A client that is over its quota is read later.
    What is sent counts as bytes, as with L{wrapFactory <admission.admission.wrapFactory>}.

    @param nameOf: see L{wrapFactory <admission.admission.wrapFactory>}, as for C{maxUnsentBytes}.
    @param maxMessageBytes: the largest message that a client may send; a longer one closes the connection.
    @raise TypeError: for a factory or a function that is none.
    @raise ValueError: for numbers that mean nothing, or a factory that is protected already.
    """
    checkMessageBytes(maxMessageBytes)

    def messagesOf(connection: WrappedConnection) -> WebSocketMessages:
        return WebSocketMessages(admission, connection, maxMessageBytes, isHandshaking=True)

    wrapped = admission.wrap(factory, nameOf=nameOf, maxUnsentBytes=maxUnsentBytes, countsBytes=False)
    wrapped.messagesOf = messagesOf
    if admission.trustedProxies is not None:
        # There is no header of HTTP that could tell the client.
        wrapped.believe(admission.trustedProxies, isHeaderOptional=False)
    wrapped.drainConnection = goAway
    return wrapped

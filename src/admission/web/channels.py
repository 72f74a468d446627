# -*- test-case-name: tests.unit.web.test_site -*-
"""
What a request can have its connection do, in the two versions of HTTP that twisted.web speaks.

Twisted has no public way to most of it: what is private of its channels is used here, and nowhere else.
"""

from __future__ import annotations

from typing import Any, Protocol

from twisted.internet.error import ConnectionAborted
from twisted.python.failure import Failure

from ..connection.pauses import Pause
from ..connection.wrapped import WrappedConnection


class Channel(Protocol):
    """
    How requests of one version come.
    """

    def head(self, web: Any) -> tuple[bytes, bytes, bytes]:
        """
        The method, the path and the version of a request whose headers have come.
        """

    def pause(self, connection: WrappedConnection, web: Any) -> None:
        """
        Take nothing more of its body.
        """

    def resume(self, connection: WrappedConnection, web: Any) -> None:
        """
        Take what comes of it.
        """

    def provided(self, connection: WrappedConnection, isProvided: bool) -> None:
        """
        There is memory for what comes of it, or there is nothing to come any more.
        """

    def endsWith(self, web: Any) -> None:
        """
        Its connection ends with its answer, as far as others do not need it.
        """

    def hangUp(self, connection: WrappedConnection, web: Any) -> None:
        """
        Read no more of it, once what was written is sent.
        """

    def cutOff(self, connection: WrappedConnection, web: Any, reason: str) -> None:
        """
        End it at once, for what its peer does.
        """


class _Http1:
    def head(self, web: Any) -> tuple[bytes, bytes, bytes]:
        channel = web.channel
        return channel._command, channel._path, channel._version

    def pause(self, connection: WrappedConnection, web: Any) -> None:
        connection.link.pause(Pause.MEMORY)

    def resume(self, connection: WrappedConnection, web: Any) -> None:
        connection.link.resume(Pause.MEMORY)

    def provided(self, connection: WrappedConnection, isProvided: bool) -> None:
        connection.provided(isProvided)

    def endsWith(self, web: Any) -> None:
        web.responseHeaders.setRawHeaders(b"Connection", [b"close"])
        web.channel.persistent = False

    def hangUp(self, connection: WrappedConnection, web: Any) -> None:
        web.channel.loseConnection()

    def cutOff(self, connection: WrappedConnection, web: Any, reason: str) -> None:
        connection.cutOff(reason)


class _Http2:
    def head(self, web: Any) -> tuple[bytes, bytes, bytes]:
        channel = web.channel
        return channel.command, channel.path, b"HTTP/2"

    def pause(self, connection: WrappedConnection, web: Any) -> None:
        web.channel.pauseProducing()

    def resume(self, connection: WrappedConnection, web: Any) -> None:
        web.channel.resumeProducing()

    def provided(self, connection: WrappedConnection, isProvided: bool) -> None:
        pass

    def endsWith(self, web: Any) -> None:
        pass

    def hangUp(self, connection: WrappedConnection, web: Any) -> None:
        # Twisted does not tell the request of a stream that it resets.
        web.channel.abortConnection()
        web.connectionLost(Failure(ConnectionAborted()))  # type: ignore[no-untyped-call]

    def cutOff(self, connection: WrappedConnection, web: Any, reason: str) -> None:
        connection.factory.refused(connection, reason)
        self.hangUp(connection, web)


HTTP1: Channel = _Http1()
HTTP2: Channel = _Http2()

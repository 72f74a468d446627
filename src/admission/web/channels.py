# -*- test-case-name: tests.unit.web.test_site -*-
"""
What a request can have its connection do, in the two versions of HTTP that twisted.web speaks.

Twisted has no public way to most of it: what is private of its channels is used here, in
L{admission.web.http2}, and in L{admission.web.watchedchannels} and L{admission.web.watchedhttp2}, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from twisted.internet.defer import gatherResults
from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.protocols.policies import ProtocolWrapper
from twisted.python.failure import Failure

from ..connection.bodywatch import BodyWatch
from ..connection.link import LinkState
from ..connection.pauses import Pause
from ..connection.wrapped import WrappedConnection
from .http2 import HeldStream, StreamAnswers, waitForWindows
from .websocketmessages import goAway

HEADER_BYTES = 200
"""What a header takes in memory beside what it says."""

_GOAWAY = b"\0\0\x08\x07" + bytes(5)
"""The head of the frame; the last stream that is answered follows, and an error."""

NO_ERROR, REFUSED_STREAM = 0, 7


def connectionOf(transport: Any) -> WrappedConnection:
    """
    The connection under a channel; between them may be one of Twisted's own wrappers.
    """
    while not isinstance(transport, WrappedConnection):
        transport = transport.transport
    return transport


class Channel(Protocol):
    """
    How requests of one version come.
    """

    def began(self, connection: WrappedConnection, web: Any) -> None:
        """
        A request has come.
        """

    def head(self, web: Any) -> tuple[bytes, bytes, bytes]:
        """
        The method, the path and the version of a request whose headers have come.
        """

    def pause(self, connection: WrappedConnection, web: Any) -> Callable[[], None]:
        """
        Take nothing more of its body.

        @return: has it taken again, or what was held is dropped if it has ended.
        """

    def expect(self, connection: WrappedConnection, tooSlow: Callable[[str], None]) -> BodyWatch:
        """
        There is memory for its body.

        @param tooSlow: called with the reason if that does not come.
        @return: watches it once it is started, until L{expectNoMore} is called.
        """

    def expectNoMore(self, connection: WrappedConnection, watch: BodyWatch) -> None:
        """
        Nothing of it is to come any more.
        """

    def isGone(self, connection: WrappedConnection, web: Any) -> bool:
        """
        Whether nobody waits for its answer any more, though its request has not been told so.
        """

    def endsWith(self, web: Any) -> None:
        """
        Its connection ends with its answer, as far as others do not need it.
        """

    def endsUnread(self, web: Any) -> bool:
        """
        Send the end of its answer, though not all of it has been read, where each side ends on its own.

        @return: whether it was sent; if the rest is read after all, L{wasRead} has to be called.
        """

    def wasRead(self, web: Any) -> None:
        """
        It is over.
        """

    def turnsAway(self, connection: WrappedConnection, web: Any) -> bool:
        """
        Instead of an answer, say that nothing was done for it, if its connection had been told before it came that no
        more are taken; its client may ask elsewhere.

        @return: whether that was so; then it is over.
        """

    def drain(self, connection: WrappedConnection, channel: Any) -> None:
        """
        Have a connection end once what was begun on it is answered; at once if there is nothing.
        """

    def hangUp(self, connection: WrappedConnection, web: Any) -> None:
        """
        Read no more of it, once what was written is sent.
        """

    def cutOff(self, connection: WrappedConnection, web: Any, reason: str) -> None:
        """
        End it at once, for what its peer does.
        """

    def wrote(self, connection: WrappedConnection, web: Any, sizeBytes: int) -> None:
        """
        Some of its answer was written.
        """


class _Http1:
    def __init__(self) -> None:
        # Of connections that are not lost: one after another, since each has a timer that is costly to make.
        self._watches: dict[WrappedConnection, BodyWatch] = {}

    def headBytes(self, channel: Any) -> int:
        """
        About what the head takes in memory that has just come.
        """
        return int(channel._receivedHeaderSize + channel._receivedHeaderCount * HEADER_BYTES)

    def began(self, connection: WrappedConnection, web: Any) -> None:
        pass

    def head(self, web: Any) -> tuple[bytes, bytes, bytes]:
        channel = web.channel
        return channel._command, channel._path, channel._version

    def pause(self, connection: WrappedConnection, web: Any) -> Callable[[], None]:
        connection.link.pause(Pause.MEMORY)
        return partial(connection.link.resume, Pause.MEMORY)

    def expect(self, connection: WrappedConnection, tooSlow: Callable[[str], None]) -> BodyWatch:
        connection.provided(True)
        watch = self._watches.get(connection)
        if watch is None:
            watch = self._watches[connection] = _watchOf(connection, tooSlow)
            connection.whenLost += [watch.close, partial(self._watches.pop, connection)]
        watch.tooSlow = tooSlow
        return watch

    def expectNoMore(self, connection: WrappedConnection, watch: BodyWatch) -> None:
        watch.stop()
        connection.provided(False)

    def isGone(self, connection: WrappedConnection, web: Any) -> bool:
        return False

    def endsWith(self, web: Any) -> None:
        web.responseHeaders.setRawHeaders(b"Connection", [b"close"])
        web.channel.persistent = False

    def endsUnread(self, web: Any) -> bool:
        return False

    def wasRead(self, web: Any) -> None:
        pass

    def turnsAway(self, connection: WrappedConnection, web: Any) -> bool:
        return False

    def drain(self, connection: WrappedConnection, channel: Any) -> None:
        if channel.requests:
            # Also if its answer has begun, and does not say so.
            channel.persistent = False
            for web in list(channel.requests):
                web.waitNoMore()
        elif not (channel._buffer or connection.link.hasUnserved):
            channel.loseConnection()

    def hangUp(self, connection: WrappedConnection, web: Any) -> None:
        web.channel.loseConnection()

    def cutOff(self, connection: WrappedConnection, web: Any, reason: str) -> None:
        connection.cutOff(reason)

    def wrote(self, connection: WrappedConnection, web: Any, sizeBytes: int) -> None:
        pass


class _Http2:
    def __init__(self) -> None:
        # Of connections that are not lost.
        self._answers: dict[WrappedConnection, StreamAnswers] = {}
        # Of those that are drained, the last stream that is answered.
        self._lastStreams: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def began(self, connection: WrappedConnection, web: Any) -> None:
        connection.provided(True)
        waitForWindows(web.channel)

    def head(self, web: Any) -> tuple[bytes, bytes, bytes]:
        channel = web.channel
        return channel.command, channel.path, b"HTTP/2"

    def pause(self, connection: WrappedConnection, web: Any) -> Callable[[], None]:
        return HeldStream(connection, web.channel).release

    def expect(self, connection: WrappedConnection, tooSlow: Callable[[str], None]) -> BodyWatch:
        # Of several streams at the same time; and all of them are read anyway.
        return _watchOf(connection, tooSlow)

    def expectNoMore(self, connection: WrappedConnection, watch: BodyWatch) -> None:
        watch.close()

    def isGone(self, connection: WrappedConnection, web: Any) -> bool:
        if connection.link.state >= LinkState.ABORTED:
            return True
        stream = web.channel._conn.conn.streams.get(web.channel.streamID)
        return stream is None or stream.closed

    def endsWith(self, web: Any) -> None:
        pass

    def endsUnread(self, web: Any) -> bool:
        # Twisted forgets a stream that it ends, and what still comes of it would end the connection.
        http2, stream = web.channel._conn, web.channel.streamID
        data = b"".join(http2._outboundStreamQueues[stream])
        if len(data) > min(http2.conn.local_flow_control_window(stream), http2.conn.max_outbound_frame_size):
            return False
        http2.conn.send_data(stream, data, end_stream=True)
        http2._outboundStreamQueues[stream].clear()
        http2.priority.block(stream)
        http2._tryToWriteControlData()
        return True

    def wasRead(self, web: Any) -> None:
        web.channel._conn._requestDone(web.channel.streamID)
        web.connectionLost(Failure(ConnectionDone()))  # type: ignore[no-untyped-call]

    def turnsAway(self, connection: WrappedConnection, web: Any) -> bool:
        stream = web.channel.streamID
        isLate = bool(stream > self._lastStreams.get(web.channel._conn, stream))
        if isLate:
            self._reset(connection, web, REFUSED_STREAM)
        return isLate

    def drain(self, connection: WrappedConnection, channel: Any) -> None:
        transport = channel.transport
        last = self._lastStreams.setdefault(channel, channel.conn.highest_inbound_stream_id)
        # Not by h2, for which nothing comes after it.
        transport.write(_GOAWAY + last.to_bytes(4, "big") + NO_ERROR.to_bytes(4, "big"))

        for stream in list(channel.streams.values()):
            stream._request.waitNoMore()

        def over(_: object) -> None:
            # TLS waits for its producer to go before it closes.
            transport.unregisterProducer()
            transport.loseConnection()

        gatherResults(list(channel._streamCleanupCallbacks.values())).addCallback(over)

    def hangUp(self, connection: WrappedConnection, web: Any) -> None:
        self._reset(connection, web, NO_ERROR)

    def cutOff(self, connection: WrappedConnection, web: Any, reason: str) -> None:
        connection.factory.refused(connection, reason)
        self.hangUp(connection, web)

    def wrote(self, connection: WrappedConnection, web: Any, sizeBytes: int) -> None:
        answers = self._answers.get(connection)
        if answers is None:
            answers = self._answers[connection] = StreamAnswers(connection, web.channel._conn)
            connection.whenLost += [answers.close, partial(self._answers.pop, connection)]
        answers.wrote(sizeBytes)

    def _reset(self, connection: WrappedConnection, web: Any, code: int) -> None:
        http2, stream = web.channel._conn, web.channel.streamID
        if http2.conn.state_machine.state.name == "CLOSED":
            # Twisted has said so because it was idle, and waits for the peer to hang up.
            connection.abortConnection()
            return
        http2.conn.reset_stream(stream, code)
        if http2._tryToWriteControlData():
            http2._requestDone(stream)
        # Twisted does not tell the request of a stream that it resets.
        web.connectionLost(Failure(ConnectionAborted()))  # type: ignore[no-untyped-call]


def _watchOf(connection: WrappedConnection, tooSlow: Callable[[str], None]) -> BodyWatch:
    factory = connection.factory
    return BodyWatch(factory.gate.bodies, factory.clock, factory.limits, connection.link, tooSlow)


HTTP1 = _Http1()
HTTP2: Channel = _Http2()


def drain(connection: WrappedConnection) -> None:
    """
    Have a connection end once what was begun on it is answered; one that speaks something else by now at once, since
    nobody can tell what it has begun.
    """
    channel = _channelOf(connection)
    if isUpgraded(connection):
        if connection.hasMessages:
            goAway(connection)
        else:
            connection.loseConnection()
    else:
        (HTTP2 if hasattr(channel, "streams") else HTTP1).drain(connection, channel)


def isUpgraded(connection: WrappedConnection) -> bool:
    """
    Whether what it speaks is not HTTP any more, but for example a websocket: another protocol is in the place of
    twisted.web's, as Autobahn has it, or is handed what twisted.web's receives.
    """
    channel = _channelOf(connection)
    return not hasattr(channel, "requestFactory") or "connectionLost" in vars(channel)


def asksForWebSocket(web: Any) -> bool:
    """
    Whether a request asks for a websocket.
    """
    words = web.requestHeaders.getRawHeaders(b"Upgrade", [])
    return any(each.strip().lower() == b"websocket" for each in words)


def hasMore(web: Any) -> bool:
    """
    Whether something that came after a request, by HTTP/1.1, was read and not parsed.
    """
    return bool(web.channel._buffer or web.channel._dataBuffer)


def _channelOf(connection: WrappedConnection) -> Any:
    protocol = connection.wrappedProtocol
    # Between may be one of Twisted's own wrappers, or TLS.
    while isinstance(protocol, ProtocolWrapper):
        protocol = protocol.wrappedProtocol
    # Twisted's own protocol is one of HTTP/1.1 or HTTP/2, as soon as it knows.
    return getattr(protocol, "_channel", protocol)

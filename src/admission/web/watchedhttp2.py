# -*- test-case-name: tests.unit.web.test_watchedchannels -*-
"""
Connections of HTTP/2 that say why Twisted ends them, and keep no heads without end.  It needs what the extra C{web}
installs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from priority.priority import PriorityError  # type: ignore[import-untyped]
from twisted.python.failure import Failure

from ..connection.heldcharge import HeldCharge
from ..interfaces import CONNECTIONS
from ..units import formatBytes
from .channels import HEADER_BYTES, REFUSED_STREAM, connectionOf
from .refusalanswers import UNAVAILABLE
from .requestkinds import OTHER
from .servedsite import ServedSite

MAX_HEAD_BYTES = 32 << 10
"""
How large a head may be, twice as much as by HTTP/1.1, and what may have come of one whose end has not.  By itself h2
keeps a MiB, and no connection is charged for that.
"""

STREAM_BYTES = 6 << 10
"""What a stream takes beside its body and its answer: the request, and what Twisted keeps of the stream."""

SPARED_BYTES = 64 << 10
"""While memory is short, streams are refused of connections whose streams take more than that already."""


class WatchedHttp2:
    """
    Comes before Twisted's class.

    @ivar isUnended: whether the stream that has just come is not over with its head.
    """

    conn: Any
    transport: Any
    streams: Any
    isUnended = False
    _stillProducing: bool
    _served: ServedSite
    _streamBytes: dict[int, int]
    _charge: HeldCharge

    def boundHeads(self, served: ServedSite) -> None:
        """
        Tell the peer, and do not wait until it has heard of it.
        """
        self.conn.update_settings({SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES})
        self.conn.decoder.max_header_list_size = MAX_HEAD_BYTES
        self._served = served
        self._streamBytes = {}
        self._charge = HeldCharge(self._connection.factory.gate.pool, CONNECTIONS)
        self._connection.whenLost.append(self._release)

    # Of twisted.web

    def _requestReceived(self, event: Any) -> None:
        connection, stream = self._connection, event.stream_id
        charge = self._charge
        if charge.sizeBytes > SPARED_BYTES and connection.factory.gate.pool.isOutOfMemory():
            self._served.answered(OTHER, UNAVAILABLE)
            # It may have been reset by what came with it.
            with suppress(ProtocolError):
                self.conn.reset_stream(stream, REFUSED_STREAM)
            return
        headers = event.headers
        headBytes = STREAM_BYTES + HEADER_BYTES * len(headers) + sum(len(name) + len(text) for name, text in headers)
        self._streamBytes[stream] = headBytes
        charge.hold(charge.sizeBytes + headBytes)
        self.isUnended = event.stream_ended is None
        super()._requestReceived(event)  # type: ignore[misc]

    def _requestDataReceived(self, event: Any) -> None:
        if event.stream_id in self.streams:
            super()._requestDataReceived(event)  # type: ignore[misc]
        elif event.flow_controlled_length:
            # Of one that was refused: its peer may send as much for others.
            self.conn.increment_flow_control_window(event.flow_controlled_length)

    def _requestEnded(self, event: Any) -> None:
        if event.stream_id in self.streams:
            super()._requestEnded(event)  # type: ignore[misc]

    def _requestAborted(self, event: Any) -> None:
        if event.stream_id in self.streams:
            super()._requestAborted(event)  # type: ignore[misc]

    def _requestDone(self, streamID: int) -> None:
        super()._requestDone(streamID)  # type: ignore[misc]
        self._charge.hold(self._charge.sizeBytes - self._streamBytes.pop(streamID, 0))

    def dataReceived(self, data: bytes) -> None:
        try:
            super().dataReceived(data)  # type: ignore[misc]
        except PriorityError as error:
            # Of more streams than it knows, whether or not they were opened.
            self._connection.cutOff(f"HTTP/2: {error}")
            return
        except KeyError:
            # Twisted goes through all that it has read, also of streams that it has dropped as it ended the connection.
            if self._stillProducing:
                raise
            return
        headBytes = sum(len(frame.data) for frame in self.conn.incoming_buffer._headers_buffer)
        if headBytes > MAX_HEAD_BYTES:
            self._connection.cutOff(
                f"HTTP/2: {headBytes} bytes of a head have come without its end, and {formatBytes(MAX_HEAD_BYTES)} may"
            )

    def _terminate(self, reason: Failure) -> None:
        # Floods of resets, and what breaks the rules of HTTP/2.
        connection = self._connection
        # It may do so again for what came with it.
        if not connection.isClosing:
            connection.factory.refused(connection, f"HTTP/2: {reason.getErrorMessage()}")
        super()._terminate(reason)  # type: ignore[misc]

    def _tryToWriteControlData(self) -> bool:
        connection = self._connection
        wasClosing = connection.isClosing
        isAlive: bool = super()._tryToWriteControlData()  # type: ignore[misc]
        if not (isAlive or wasClosing):
            connection.factory.refused(connection, "HTTP/2: too many control frame bytes buffered, and it takes none")
        return isAlive

    def _release(self) -> None:
        self._streamBytes.clear()
        self._charge.hold(0)

    @property
    def _connection(self) -> Any:
        return connectionOf(self.transport)

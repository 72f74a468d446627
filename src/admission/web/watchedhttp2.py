# -*- test-case-name: tests.unit.web.test_watchedchannels -*-
"""
Connections of HTTP/2 that say why Twisted ends them, and keep no heads without end.  It needs what the extra C{web}
installs.
"""

from __future__ import annotations

from typing import Any

from h2.settings import SettingCodes
from priority.priority import PriorityError  # type: ignore[import-untyped]
from twisted.python.failure import Failure

from ..units import formatBytes
from .channels import connectionOf

MAX_HEAD_BYTES = 32 << 10
"""
How large a head may be, twice as much as by HTTP/1.1, and what may have come of one whose end has not.  By itself h2
keeps a MiB, and no connection is charged for that.
"""


class WatchedHttp2:
    """
    Comes before Twisted's class.
    """

    conn: Any
    transport: Any
    _stillProducing: bool

    def boundHeads(self) -> None:
        """
        Tell the peer, and do not wait until it has heard of it.
        """
        self.conn.update_settings({SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEAD_BYTES})
        self.conn.decoder.max_header_list_size = MAX_HEAD_BYTES

    # Of twisted.web

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

    @property
    def _connection(self) -> Any:
        return connectionOf(self.transport)

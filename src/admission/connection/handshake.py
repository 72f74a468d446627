# -*- test-case-name: tests.unit.connection.test_handshake -*-
"""
The handshake of a connection with TLS.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IReactorTime, ISSLTransport

from .deadline import Deadline

MAX_HANDSHAKE_BYTES = 32 << 10
"""
What a peer may send for its handshake, as in Java.  OpenSSL would take a greeting
of 128 KiB, and keep 241 for it.
"""


class Handshake:
    """
    A handshake of which nobody has said yet that it is over.  It bounds how long that may take, and how much the peer
    may send.

    @ivar receivedBytes: what the peer has sent; not counted after STARTTLS,
        where the transport is another.
    """

    __slots__ = (
        "_deadline",
        "_failed",
        "_isOver",
        "_over",
        "_receive",
        "_seconds",
        "_setting",
        "_transport",
        "receivedBytes",
    )

    def __init__(
        self,
        transport: Any,
        clock: IReactorTime,
        seconds: float,
        setting: str,
        isOver: Callable[[], bool],
        over: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        """
        @param seconds: how long it may take; C{math.inf} is for ever.
        @param setting: the name of that setting.
        @param isOver: asks the transport.
        @param over: called when the transport turns out to have finished it without saying so.
        @param failed: called with the reason when it takes too long or too much.
        """
        self._transport = transport
        self._isOver = isOver
        self._over = over
        self._failed = failed
        self._seconds = seconds
        self._setting = setting
        self._deadline = Deadline(clock, self._overdue)
        self.receivedBytes = 0
        self._receive: Callable[[bytes], None] | None = None
        # Wrappers between TLS and us receive only what comes after the handshake.
        while ISSLTransport.providedBy(getattr(self._transport, "transport", None)):
            self._transport = self._transport.transport
        if ISSLTransport.providedBy(self._transport) and hasattr(self._transport, "dataReceived"):
            # Until it is over all data pass through here, since nobody else can tell how much there is.
            self._receive = self._transport.dataReceived
            self._transport.dataReceived = self._received
        if seconds < math.inf:
            self._deadline.start(seconds)

    def close(self) -> None:
        """
        It is over, or the connection is gone.
        """
        self._deadline.close()
        if self._receive is not None:
            self._receive = None
            del self._transport.dataReceived

    def _received(self, data: bytes) -> None:
        receive = self._receive
        assert receive is not None
        self.receivedBytes += len(data)
        receive(data)
        # Only now: data may have come with the end of the handshake.
        if self._receive is not None and self.receivedBytes > MAX_HANDSHAKE_BYTES and not self._isOver():
            self._failed(f"it has sent {self.receivedBytes} bytes for its TLS handshake, which is not over")

    def _overdue(self) -> None:
        if self._isOver():
            # A wrapper between the transport and us has not passed the news on.
            self._over()
        else:
            self._failed(f"its TLS handshake is not over after {self._seconds:g} s ({self._setting})")

"""L{admission.connection.handshake}."""

from __future__ import annotations

import math
from typing import Any

from twisted.internet.interfaces import ISSLTransport
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.connection.handshake import MAX_HANDSHAKE_BYTES, Handshake


@implementer(ISSLTransport)
class Transport:
    """What has passed through TLS."""

    def __init__(self) -> None:
        self.received = b""
        self.isOver = False

    def dataReceived(self, data: bytes) -> None:
        """Take what comes from the socket."""
        self.received += data
        self.isOver = self.isOver or data.endswith(b"finished")


class HandshakeTests(SynchronousTestCase):
    """L{Handshake}."""

    def begin(self, seconds: float = 10.0, transport: Any = None) -> tuple[Handshake, Any]:
        """Begin one."""
        self.clock = Clock()
        self.told: list[str] = []
        made = Transport() if transport is None else transport
        handshake = Handshake(
            made,
            self.clock,
            seconds,
            "a.timeout",
            lambda: made.isOver,
            lambda: self.told.append("over"),
            self.told.append,
        )
        return handshake, made

    def test_tooLong(self) -> None:
        """It fails when the time is over, unless it is over itself."""
        for isOver, expected in ((False, "its TLS handshake is not over after 10 s (a.timeout)"), (True, "over")):
            _, transport = self.begin()
            transport.isOver = isOver
            self.clock.advance(9.9)
            self.assertEqual(self.told, [])
            self.clock.advance(0.1)
            self.assertEqual(self.told, [expected])

    def test_forEver(self) -> None:
        """Without a time limit there is no timer."""
        self.begin(math.inf)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_tooMuch(self) -> None:
        """It fails when the peer has sent too much for it, in however many pieces."""
        handshake, transport = self.begin()
        for _ in range(4):
            transport.dataReceived(bytes(MAX_HANDSHAKE_BYTES // 4))
        self.assertEqual((self.told, handshake.receivedBytes), ([], MAX_HANDSHAKE_BYTES))
        transport.dataReceived(b"x")
        self.assertEqual(
            self.told, [f"it has sent {MAX_HANDSHAKE_BYTES + 1} bytes for its TLS handshake, which is not over"]
        )

    def test_tooMuchUnderOthers(self) -> None:
        """What lies between TLS and the connection, such as a wrapper of Twisted's, changes nothing."""
        tls = Transport()
        above = Transport()
        above.transport = tls  # type: ignore[attr-defined]
        self.begin(transport=above)
        tls.dataReceived(bytes(MAX_HANDSHAKE_BYTES + 1))
        self.assertEqual(len(self.told), 1)

    def test_dataBehindIt(self) -> None:
        """What came together with its end counts for nothing."""
        _, transport = self.begin()
        transport.dataReceived(bytes(2 * MAX_HANDSHAKE_BYTES) + b"finished")
        self.assertEqual(self.told, [])

    def test_close(self) -> None:
        """When it is closed, from within what comes or not, nothing is in the way any more, and no timer is left."""
        handshake, transport = self.begin()
        handshake.close()
        handshake.close()
        transport.dataReceived(bytes(2 * MAX_HANDSHAKE_BYTES))
        self.assertEqual((self.told, len(transport.received)), ([], 2 * MAX_HANDSHAKE_BYTES))
        self.assertEqual((vars(transport).keys(), self.clock.getDelayedCalls()), ({"received", "isOver"}, []))

        class Closing(Transport):
            def dataReceived(self, data: bytes) -> None:
                super().dataReceived(data)
                handshake.close()

        handshake, closing = self.begin(transport=Closing())
        closing.dataReceived(bytes(2 * MAX_HANDSHAKE_BYTES))
        self.assertEqual(self.told, [])

    def test_afterStartTLS(self) -> None:
        """Where the transport is not what receives, only the time is limited."""
        handshake, _ = self.begin(transport=type("Plain", (), {"isOver": False})())
        self.clock.advance(10.0)
        self.assertEqual((len(self.told), handshake.receivedBytes), (1, 0))

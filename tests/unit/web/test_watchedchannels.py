"""L{admission.web.watchedchannels} and L{admission.web.watchedhttp2}: what Twisted refuses by itself is explained."""

from __future__ import annotations

from typing import Any

import twisted.internet
from hyperframe.frame import ContinuationFrame, HeadersFrame, PingFrame, PriorityFrame
from twisted.trial.unittest import SynchronousTestCase

from tests.kit.website import Visitor, WebServer
from tests.unit.web.test_http2 import KIB, Streams


class RefusedByTwistedTests(SynchronousTestCase):
    """A site whose connections are cut off."""

    def setUp(self) -> None:
        self.server = WebServer(self)
        self.patch(twisted.internet, "reactor", self.server.clock)
        self.reasons: list[str] = []
        self.patch(self.server.factory, "refused", lambda connection, reason: self.reasons.append(reason))

    def assertExplained(self, visitor: Visitor, words: str) -> None:
        """A connection has ended, and the only reason given has some words."""
        [reason] = self.reasons
        self.assertIn(words, reason)
        self.assertTrue(visitor.transport.isLost)

    def frames(self, client: Streams, *frames: Any) -> None:
        """Send frames that are made by hand."""
        client.transport.peerSends(b"".join(each.serialize() for each in frames))
        self.server.settle()

    def test_malformed(self) -> None:
        """By HTTP/1.1, a request that is none, and a head that is too large."""
        visitor = self.server.connect()
        visitor.raw(b"nonsense\r\n\r\n")
        self.assertEqual(visitor.answer().status, 400)
        self.assertExplained(visitor, "a request is malformed, or its head too large")

    def test_rules(self) -> None:
        """By HTTP/2, what breaks its rules."""
        client = Streams(self.server)
        self.frames(client, ContinuationFrame(1, b"x"))
        self.assertExplained(client.visitor, "HTTP/2: ")

    def test_resets(self) -> None:
        """A flood of resets, also of streams that Twisted drops for it."""
        client = Streams(self.server)
        asked = [client.ask("GET", "/later") for _ in range(50)]
        for _ in range(1100):
            client.conn.reset_stream(client.ask("GET", "/"))
        for stream in asked:
            client.conn.reset_stream(stream)
        client.flush()
        self.assertExplained(client.visitor, "Too many stream resets")

    def test_priorities(self) -> None:
        """More streams with priorities than Twisted knows."""
        client = Streams(self.server)
        self.frames(client, *(PriorityFrame(each) for each in range(1, 3000, 2)))
        self.assertExplained(client.visitor, "HTTP/2: Refusing to insert")
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_control(self) -> None:
        """A client that takes no answers to what it asks of the connection itself."""
        client = Streams(self.server)
        [connection] = self.server.factory.connections
        connection.wrappedProtocol._channel.pauseProducing()
        self.frames(client, *([PingFrame(0, b"12345678")] * 1100))
        self.assertExplained(client.visitor, "control frame bytes buffered")
        self.flushLoggedErrors()

    def test_headWithoutEnd(self) -> None:
        """A head may have no end for a while, and then it may not; one of as much that has an end is served."""
        client = Streams(self.server)
        stream = client.begin("GET", "/", *((f"x-{each}", "y" * 2000) for each in range(15)))
        self.assertEqual(client.status(stream), 200)
        self.frames(client, HeadersFrame(3, bytes(16 * KIB)), ContinuationFrame(3, bytes(16 * KIB)))
        self.assertFalse(client.transport.isLost)
        self.frames(client, ContinuationFrame(3, bytes(1)))
        self.assertExplained(client.visitor, "32769 bytes of a head have come without its end, and 32KiB may")

    def test_largeHead(self) -> None:
        """A head that is larger is refused, and its client has been told how large it may be."""
        client = Streams(self.server)
        client.begin("GET", "/", *((f"x-{each}", "y" * 2000) for each in range(17)))
        self.assertExplained(client.visitor, "A header list larger than 32768 has been received")
        self.assertEqual(client.conn.remote_settings.max_header_list_size, 32 * KIB)

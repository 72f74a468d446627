"""Tests for L{admission.status.pageresource}."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from twisted.web.http import ACCEPTED

from admission.status.pageresource import BadQuestion, Page
from tests.kit.statusfixture import StatusTestCase


class DeliveryTests(StatusTestCase):
    """A page leaves in pieces."""

    def setUp(self) -> None:
        super().setUp()
        self.made = 0
        page = Page(self.clock, "Counts.", self.count, ["until"], b"text/plain", lambda: ACCEPTED)
        self.root.putChild(b"count", page)

    def count(self, question: Mapping[str, str]) -> Iterator[str]:
        """One number in each piece."""
        until = int(question.get("until", "5"))
        if until < 0:
            raise BadQuestion("it counts upwards")
        for self.made in range(1, until + 1):
            if self.made == 4:
                raise ValueError("it cannot count to four")
            yield f"{self.made} "

    def test_turns(self) -> None:
        """Each piece has a turn of its own."""
        _channel, transport = self.send(b"GET /count?until=3 HTTP/1.0\r\n\r\n")
        for written in ("1 ", "1 2 ", "1 2 3 "):
            self.assertEqual(transport.value().decode().partition("\r\n\r\n")[2], written)
            self.assertFalse(transport.disconnecting)
            self.turn(1)
        self.assertTrue(transport.disconnecting)

    def test_backpressure(self) -> None:
        """Nothing is made while the client does not read."""
        channel, transport = self.send(b"GET /count?until=3 HTTP/1.1\r\n\r\n")
        channel.pauseProducing()
        channel.pauseProducing()
        self.turn()
        self.assertEqual(self.made, 1)
        channel.resumeProducing()
        channel.resumeProducing()
        self.turn()
        self.assertEqual(self.made, 3)
        self.assertTrue(transport.disconnecting)

    def test_clientLeaves(self) -> None:
        """Nothing more is made for a client that has gone."""
        channel, _ = self.send(b"GET /count?until=3 HTTP/1.1\r\n\r\n")
        channel.stopProducing()
        self.disconnect(channel)
        self.turn()
        self.assertEqual(self.made, 1)

    def test_headMakesOne(self) -> None:
        """For HEAD one piece is made, to know whether there is anything."""
        self.assertEqual(self.get("/count", method="HEAD").code, 202)
        self.assertEqual(self.made, 1)
        self.assertEqual(self.get("/count?until=-1", method="HEAD").code, 400)

    def test_fails(self) -> None:
        """A page that fails says so, and the log says why."""
        self.assertRefused(self.get("/count?until=many"), 500, "the server's log")
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_failsHalfway(self) -> None:
        """A page that fails halfway is cut off, so that nobody takes it for whole."""
        _channel, transport = self.send(b"GET /count?until=5 HTTP/1.1\r\n\r\n")
        self.turn()
        self.assertTrue(transport.isAborted)
        self.assertFalse(transport.value().endswith(b"0\r\n\r\n"))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

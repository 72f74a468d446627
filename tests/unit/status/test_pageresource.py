"""Tests for L{admission.status.pageresource}."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure
from twisted.web.http import ACCEPTED

from admission.status.pageresource import Answer, BadQuestion, LaterPage, Page, Unavailable
from tests.kit.statusfixture import StatusTestCase


class DeliveryTests(StatusTestCase):
    """A page leaves in pieces."""

    def setUp(self) -> None:
        super().setUp()
        self.made = 0
        self.page = Page(self.clock, "Counts.", self.count, ["until"], b"text/plain", lambda: ACCEPTED)
        self.root.putChild(b"count", self.page)

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

    def test_answer(self) -> None:
        """Without HTTP a page is made in the same turns, and is there as a whole."""
        answer = self.page.answer({"until": "3"})
        for made in (1, 2, 3):
            self.assertNoResult(answer)
            self.assertEqual(self.made, made)
            self.turn(1)
        self.assertEqual(self.successResultOf(answer), (202, "1 2 3 "))

    def test_answerRefused(self) -> None:
        """What a page cannot answer is refused in the words that HTTP has for it; also what fails halfway."""
        for question, code, words in (
            ({"until": "-1"}, 400, "it counts upwards"),
            ({"since": "1"}, 400, "no parameter 'since'; this page may have until"),
            ({"until": "many"}, 500, "the server's log says why"),
            ({"until": "5"}, 500, "the server's log says why"),
        ):
            answer = self.page.answer(question)
            self.turn()
            told, text = self.successResultOf(answer)
            self.assertEqual((told, list(json.loads(text))), (code, ["error"]))
            self.assertIn(words, json.loads(text)["error"])
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 2)

    def test_answerCancelled(self) -> None:
        """Nothing more is made of an answer that nobody wants."""
        answer = self.page.answer({"until": "3"})
        answer.cancel()
        self.failureResultOf(answer, CancelledError)
        self.turn()
        self.assertEqual((self.made, self.clock.getDelayedCalls()), (1, []))


class LaterTests(StatusTestCase):
    """A page that somebody else makes."""

    def setUp(self) -> None:
        super().setUp()
        self.ended: list[Any] = []
        self.answer: Deferred[Answer] = Deferred(self.ended.append)
        page = LaterPage(self.clock, "Waits.", lambda question: self.answer, ["for"], b"text/plain")
        self.root.putChild(b"later", page)

    def test_whole(self) -> None:
        """It is sent when it is there."""
        _channel, transport = self.send(b"GET /later?for=it HTTP/1.0\r\n\r\n")
        self.assertEqual(transport.value(), b"")
        self.answer.callback((202, "at last"))
        self.assertTrue(transport.disconnecting)
        self.assertTrue(transport.value().startswith(b"HTTP/1.0 202 "))
        self.assertTrue(transport.value().endswith(b"\r\n\r\nat last"))

    def test_refused(self) -> None:
        """A refusal is one, whether it was known at once or later."""
        self.assertRefused(self.get("/later?until=it"), 400, "may have for")
        for error, code, words in (
            (BadQuestion("ask for more"), 400, "ask for more"),
            (Unavailable("it is gone"), 503, "it is gone"),
            (ZeroDivisionError(), 500, "the server's log says why"),
        ):
            self.answer = Deferred()
            self.answer.errback(Failure(error))
            self.assertRefused(self.get("/later"), code, words)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_head(self) -> None:
        """For HEAD it is made as well, to know whether there is anything."""
        self.answer.callback((503, "no"))
        response = self.get("/later", method="HEAD")
        self.assertEqual((response.code, response.body), (503, ""))

    def test_clientLeaves(self) -> None:
        """What is made for a client that has gone is cancelled."""
        channel, transport = self.send(b"GET /later HTTP/1.1\r\n\r\n")
        self.disconnect(channel)
        self.assertEqual((self.ended, transport.value()), ([self.answer], b""))

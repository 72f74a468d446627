# -*- test-case-name: tests.unit.status.test_pages -*-
"""
What every page of the status port has in common: the question it is asked,
the refusal of one that makes no sense, and an answer that leaves in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import BAD_REQUEST, INTERNAL_SERVER_ERROR, NOT_FOUND
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

JSON = b"application/json"


class BadQuestion(Exception):
    """
    A page cannot answer what it was asked; the message says what would do.
    """


def refuse(request: Any, code: int, sentence: str) -> bytes:
    """
    Say in words what is wrong.

    @param code: the status of the response.
    @return: its body, for C{render} to return.
    """
    request.setResponseCode(code)
    request.setHeader(b"Content-Type", JSON)
    return json.dumps({"error": sentence}).encode() + b"\n"


class Refusal(Resource):
    """
    Refuses whatever it is asked.
    """

    isLeaf = True

    def __init__(self, code: int, sentence: str, allowed: bytes | None = None) -> None:
        """
        @param allowed: the methods that would do, if that was what is wrong.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._code = code
        self._sentence = sentence
        self._allowed = allowed

    def render(self, request: Any) -> bytes:
        """
        Refuse, to HEAD without a word.
        """
        if self._allowed is not None:
            request.setHeader(b"Allow", self._allowed)
        body = refuse(request, self._code, self._sentence)
        return b"" if request.method == b"HEAD" else body


class Page(Resource):
    """
    A page that is made anew each time it is asked for, and made in pieces, a
    turn of the reactor each and no faster than they are read, so that a large
    one keeps nobody waiting.

    @cvar title: what the page shows, in a sentence.
    @cvar parameters: what may be in the question.
    @cvar contentType: what C{pieces} returns.
    """

    log = Logger()
    title: str
    parameters: Collection[str] = ()
    contentType = JSON

    def __init__(self, clock: IReactorTime) -> None:
        """
        @param clock: for the turns.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock

    def pieces(self, question: Mapping[str, str]) -> Iterator[str]:
        """
        Make the page: at least one piece, none of which takes long.

        @param question: the parameters that were given.
        @raise BadQuestion: before the first piece.
        """
        raise NotImplementedError

    def getChild(self, path: bytes, request: Any) -> Resource:
        """
        There is nothing below a page that was not put there.
        """
        return Refusal(NOT_FOUND, "there is no such page; /help lists those that there are")

    def render(self, request: Any) -> Any:
        """
        Answer, or say why not.
        """
        try:
            pieces = self.pieces(self._question(request))
            first = next(pieces)
        except BadQuestion as refusal:
            body = refuse(request, BAD_REQUEST, str(refusal))
        except Exception:
            self.log.failure("the status page {path} failed", path=request.path)
            body = refuse(request, INTERNAL_SERVER_ERROR, "this page has failed; the broker's log says why")
        else:
            request.setHeader(b"Content-Type", self.contentType)
            if request.method != b"HEAD":
                _Delivery(request, first, pieces, self._clock)
                return NOT_DONE_YET
        return b"" if request.method == b"HEAD" else body

    def _question(self, request: Any) -> dict[str, str]:
        question: dict[str, str] = {}
        for key, values in (request.args or {}).items():
            try:
                name, *given = (each.decode() for each in (key, *values))
            except UnicodeDecodeError:
                raise BadQuestion("the question is not UTF-8") from None
            if name not in self.parameters:
                known = f"may have {', '.join(self.parameters)}" if self.parameters else "has no parameters"
                raise BadQuestion(f"there is no parameter {name!r}; this page {known}")
            if len(given) > 1:
                raise BadQuestion(f"{name} is given {len(given)} times; give it once")
            question[name] = given[0]
        return question


@implementer(IPushProducer)
class _Delivery:
    """
    Writes one response.
    """

    def __init__(self, request: Any, first: str, rest: Iterator[str], clock: IReactorTime) -> None:
        self._request = request
        self._rest = rest
        self._clock = clock
        self._turn: IDelayedCall | None = None
        request.notifyFinish().addErrback(self._hasGone)
        request.registerProducer(self, True)
        self.resumeProducing()
        request.write(first.encode())

    def resumeProducing(self) -> None:
        """
        Have a turn.
        """
        if self._turn is None:
            self._turn = self._clock.callLater(0, self._writeNext)

    def pauseProducing(self) -> None:
        """
        Have none until there is room.
        """
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def stopProducing(self) -> None:
        """
        The client has gone.
        """
        self.pauseProducing()

    def _hasGone(self, reason: Failure) -> None:
        self.pauseProducing()

    def _writeNext(self) -> None:
        self._turn = None
        try:
            piece = next(self._rest, None)
        except Exception:
            Page.log.failure("the status page {path} failed halfway", path=self._request.path)
            # Only a response that is cut off can still say so.
            self._request.transport.abortConnection()
            return
        if piece is None:
            self._request.unregisterProducer()
            self._request.finish()
        else:
            # In this order, because writing may pause.
            self.resumeProducing()
            self._request.write(piece.encode())

# -*- test-case-name: tests.unit.status.test_pages -*-
"""
What the pages of the status port have in common: the parameters of a request,
the refusal of a bad one, responses that are sent in pieces, and answers without HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import BAD_REQUEST, INTERNAL_SERVER_ERROR, NOT_FOUND, OK, SERVICE_UNAVAILABLE
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

from ..policyfailure import FAILURES

JSON = b"application/json"

NO_PAGE = "there is no such page; /help lists all pages"

Answer = tuple[int, str]
"""The HTTP status and the text of a page."""


class BadQuestion(Exception):
    """
    A page cannot answer a question; the message says what it could answer.
    """


class Unavailable(Exception):
    """
    There is nothing to answer with now; the message says why.
    """


def encoded(document: Any) -> str:
    """
    The text of a page of JSON.
    """
    return json.dumps(document, allow_nan=False) + "\n"


def errorText(sentence: str) -> str:
    """
    The text of a refusal.
    """
    return encoded({"error": sentence})


def refuse(request: Any, code: int, sentence: str) -> bytes:
    """
    Set up an error response.

    @param code: the HTTP status.
    @return: the body, for C{render} to return.
    """
    request.setResponseCode(code)
    request.setHeader(b"Content-Type", JSON)
    return b"" if request.method == b"HEAD" else errorText(sentence).encode()


class Refused(Resource):
    """
    Refuses every request in the same way.
    """

    isLeaf = True

    def __init__(self, code: int, sentence: str, allowed: bytes | None = None) -> None:
        """
        @param allowed: the allowed methods, if the method was wrong.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._code = code
        self._sentence = sentence
        self._allowed = allowed

    def render(self, request: Any) -> bytes:
        if self._allowed is not None:
            request.setHeader(b"Allow", self._allowed)
        return refuse(request, self._code, self._sentence)


Pieces = Callable[[Mapping[str, str]], Iterator[str]]
"""
Makes a page, given the parameters of the request: yields at least one piece,
none of which takes long.  Raises L{BadQuestion} before the first.
"""


class Page(Resource):
    """
    A page that is made anew for each request, in pieces: one in a turn of the
    reactor, and none while the client does not read, so that a large page
    delays nothing else.

    @ivar title: what the page shows, in a sentence.
    @ivar parameters: the parameters that a request may have.
    @ivar contentType: the type of the body.
    """

    log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        title: str,
        pieces: Pieces,
        parameters: Collection[str] = (),
        contentType: bytes = JSON,
        code: Callable[[], int] = lambda: OK,
    ) -> None:
        """
        @param clock: schedules the turns.
        @param code: returns the HTTP status of a page that has not failed.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.title = title
        self.parameters = parameters
        self.contentType = contentType
        self._clock = clock
        self._pieces = pieces
        self._code = code

    def getChild(self, path: bytes, request: Any) -> Resource:
        return Refused(NOT_FOUND, NO_PAGE)

    def render(self, request: Any) -> Any:
        try:
            pieces = self._pieces(self.question(request))
            first = next(pieces)
            request.setResponseCode(self._code())
        except FAILURES as error:
            return refuse(request, *self._refusalOf(error))
        request.setHeader(b"Content-Type", self.contentType)
        if request.method == b"HEAD":
            return b""
        _Delivery(request, first, pieces, self._clock)
        return NOT_DONE_YET

    def answer(self, question: Mapping[str, str]) -> Deferred[Answer]:
        """
        The page without HTTP, made in the same turns.

        @return: fires with the page, or with the status and the text of a refusal; fails only if it is cancelled,
            which ends the work.
        """
        return Deferred.fromCoroutine(self._answer(question))

    async def _answer(self, question: Mapping[str, str]) -> Answer:
        try:
            self.check(question)
            return await self.whole(question)
        except CancelledError:
            raise
        except FAILURES as error:
            code, sentence = self._refusalOf(error)
            return code, errorText(sentence)

    async def whole(self, question: Mapping[str, str]) -> Answer:
        """
        The page, given parameters that it has.
        """
        pieces = self._pieces(question)
        texts = [next(pieces)]
        code = self._code()
        await deferLater(self._clock, 0)
        for piece in pieces:
            texts.append(piece)
            await deferLater(self._clock, 0)
        return code, "".join(texts)

    def _refusalOf(self, error: BaseException) -> Answer:
        """
        The status, and the sentence that says why.  It is called while the exception is handled.
        """
        if isinstance(error, BadQuestion):
            return BAD_REQUEST, str(error)
        if isinstance(error, Unavailable):
            return SERVICE_UNAVAILABLE, str(error)
        self.log.failure("the status page {title!r} failed", title=self.title)
        return INTERNAL_SERVER_ERROR, "this page has failed; the server's log says why"

    def check(self, question: Mapping[str, str]) -> None:
        """
        @raise BadQuestion: for a parameter that the page has not.
        """
        for name in question:
            if name not in self.parameters:
                known = f"may have {', '.join(self.parameters)}" if self.parameters else "has no parameters"
                raise BadQuestion(f"there is no parameter {name!r}; this page {known}")

    def question(self, request: Any) -> dict[str, str]:
        """
        The parameters of a request.

        @raise BadQuestion: if the page has no such parameters.
        """
        question: dict[str, str] = {}
        for key, values in (request.args or {}).items():
            try:
                name, *given = (each.decode() for each in (key, *values))
            except UnicodeDecodeError:
                raise BadQuestion("the question is not UTF-8") from None
            if len(given) > 1:
                raise BadQuestion(f"{name} is given {len(given)} times; give it once")
            question[name] = given[0]
        self.check(question)
        return question


class LaterPage(Page):
    """
    A page that others make, such as another process, and that is there as a whole when they have.
    """

    def __init__(
        self,
        clock: IReactorTime,
        title: str,
        ask: Callable[[Mapping[str, str]], Awaitable[Answer]],
        parameters: Collection[str] = (),
        contentType: bytes = JSON,
    ) -> None:
        """
        @param ask: makes the page, given the parameters of the request; raises L{BadQuestion} or L{Unavailable} where
            it cannot.  Cancelled if nobody wants the page any more.
        """
        super().__init__(clock, title, lambda question: iter(()), parameters, contentType)
        self._ask = ask

    def render(self, request: Any) -> Any:
        try:
            question = self.question(request)
        except BadQuestion as refusal:
            return refuse(request, BAD_REQUEST, str(refusal))
        answer = self.answer(question)
        request.notifyFinish().addErrback(lambda gone: answer.cancel())
        answer.addCallbacks(self._deliver, lambda gone: None, (request,))
        return NOT_DONE_YET

    async def whole(self, question: Mapping[str, str]) -> Answer:
        return await self._ask(question)

    def _deliver(self, answer: Answer, request: Any) -> None:
        code, text = answer
        request.setResponseCode(code)
        # What is no page is a refusal, or says as JSON what is wrong.
        request.setHeader(b"Content-Type", self.contentType if code == OK else JSON)
        request.write(text.encode())
        request.finish()


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
        request.notifyFinish().addErrback(self._clientLeft)
        request.registerProducer(self, True)
        self.resumeProducing()
        request.write(first.encode())

    def resumeProducing(self) -> None:
        if self._turn is None:
            self._turn = self._clock.callLater(0, self._writeNext)

    def pauseProducing(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def stopProducing(self) -> None:
        self.pauseProducing()

    def _clientLeft(self, reason: Failure) -> None:
        self.pauseProducing()

    def _writeNext(self) -> None:
        self._turn = None
        try:
            piece = next(self._rest, None)
        except FAILURES:
            Page.log.failure("the status page {path} failed halfway", path=self._request.path)
            # The status line has been sent, so only an incomplete response can still show that it failed.
            self._request.transport.abortConnection()
            return
        if piece is None:
            self._request.unregisterProducer()
            self._request.finish()
        else:
            # In this order, because writing may pause.
            self.resumeProducing()
            self._request.write(piece.encode())

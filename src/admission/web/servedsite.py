# -*- test-case-name: tests.unit.web.test_site -*-
"""
What all requests of a protected site go by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from ..admission import Admission
from ..interfaces import Refusal
from .abandoned import AbandonedRequests
from .forwarded import ClientHeader
from .refusalanswers import REFUSED, Refusals
from .requestkinds import OTHER

MAX_BODY_BYTES = 16 << 20

MAX_COUNTED = 500
"""How many kinds with classes of status are counted; those that come later count as other kinds."""

# Of all sites that have one admission: their answers, and what their clients have left.
_COUNTED: WeakKeyDictionary[Admission, tuple[Counter[tuple[str, str]], AbandonedRequests]] = WeakKeyDictionary()

KindOf = Callable[[Any], str]
NameOf = Callable[[Any], tuple[str, str] | None]
RefusalOf = Callable[[Any], Refusal]

URLENCODED = b"application/x-www-form-urlencoded"

FORM_COPIES: Mapping[bytes, int] = {URLENCODED: 28, b"multipart/form-data": 16}
"""
How many times its size a form takes while Twisted 26.10 parses it, measured with many small fields; the body as it came
is among it.
"""


class Budget:
    """
    How many bytes of bodies may be in files.

    @ivar usedBytes: how many are promised to bodies.
    """

    def __init__(self, sizeBytes: int) -> None:
        self.sizeBytes = sizeBytes
        self.usedBytes = 0

    def take(self, sizeBytes: int) -> bool:
        """
        @return: whether there is room; then it is taken.
        """
        if self.usedBytes + sizeBytes > self.sizeBytes:
            return False
        self.usedBytes += sizeBytes
        return True

    def giveBack(self, sizeBytes: int) -> None:
        self.usedBytes -= sizeBytes


class ServedSite:
    """
    The settings of a protected site; see L{protectSite <admission.web.protectedsite.protectSite>}, which makes it.
    """

    log = Logger()

    def __init__(
        self,
        admission: Admission,
        kindOf: KindOf,
        nameOf: NameOf | None,
        refusalOf: RefusalOf | None,
        maxBodyBytes: int | Mapping[str, int],
        spoolBytes: int,
        spool: Budget,
        maxFormFields: int,
        refusals: Refusals,
        clientHeader: ClientHeader | None,
        inThread: Callable[[Callable[[], None]], Deferred[None]],
        maxMessageBytes: int,
    ) -> None:
        self.admission = admission
        self.kindOf = kindOf
        self.nameOf = nameOf
        self.refusalOf: RefusalOf = _refusalOf if refusalOf is None else refusalOf
        self.spoolBytes = spoolBytes
        self.spool = spool
        self.maxFormFields = maxFormFields
        self.refusals = refusals
        self.clientHeader = clientHeader
        self.inThread = inThread
        self.maxMessageBytes = maxMessageBytes
        self._responses, self.abandoned = _COUNTED.get(admission) or _counted(admission)
        self._bodyBytes: Mapping[str, int] = {} if isinstance(maxBodyBytes, int) else maxBodyBytes
        self._anyBodyBytes = maxBodyBytes if isinstance(maxBodyBytes, int) else maxBodyBytes.get(OTHER, MAX_BODY_BYTES)

    def answered(self, kind: str, status: int) -> None:
        """
        A request is answered, or over without an answer.

        @param status: of its answer; negative if there is none.
        """
        responses = self._responses
        # Refusals are what is looked for.
        word = f"{status}" if status in REFUSED else f"{status // 100}xx" if status > 0 else ""
        place = kind, word
        if place not in responses and len(responses) >= MAX_COUNTED:
            place = OTHER, place[1]
        responses[place] += 1

    def maxBodyBytesOf(self, kind: str) -> int:
        """
        The largest body that a request may have.
        """
        return self._bodyBytes.get(kind, self._anyBodyBytes)

    @staticmethod
    def formCopies(web: Any) -> int:
        """
        How many times its size the body of a request takes when twisted.web parses it, as it does with forms; zero for
        what it does not parse.
        """
        if web.method != b"POST" or not getattr(web, "_parsePOSTFormSubmission", True):
            return 0
        kind, _ = _contentTypeOf(web)
        return FORM_COPIES.get(kind, 0)

    def hasTooManyFields(self, web: Any, body: bytes) -> bool:
        """
        Whether a form has more fields than may be parsed, in one turn of the reactor.
        """
        kind, parameters = _contentTypeOf(web)
        if kind == URLENCODED:
            # Twisted takes both for what is between fields.
            return body.count(b"&") + body.count(b";") >= self.maxFormFields
        named = (each.strip() for each in parameters.split(b";"))
        boundary = next((each[9:].strip(b'"') for each in named if each.lower().startswith(b"boundary=")), b"")
        return body.count(b"--" + boundary) > self.maxFormFields + 1


def _refusalOf(web: Any) -> Refusal:
    has = web.requestHeaders.hasHeader
    # A browser asks what a script may ask, which its user has no part in.
    isPreflight = web.method == b"OPTIONS" and has(b"Origin") and has(b"Access-Control-Request-Method")
    return Refusal.NEVER if isPreflight else Refusal.ERROR


def _counted(admission: Admission) -> tuple[Counter[tuple[str, str]], AbandonedRequests]:
    counted = _COUNTED[admission] = Counter(), AbandonedRequests(admission.clock)
    responses, abandoned = counted
    admission.sensors.addFamily("Responses", ("request", "status"), lambda now: list(responses.items()), isCounter=True)
    admission.sensors.addGauge("RequestsAbandoned", lambda now: abandoned.count)
    return counted


def _contentTypeOf(web: Any) -> tuple[bytes, bytes]:
    contentType: bytes = web.requestHeaders.getRawHeaders(b"Content-Type", [b""])[0]
    kind, _, parameters = contentType.partition(b";")
    return kind.strip().lower(), parameters

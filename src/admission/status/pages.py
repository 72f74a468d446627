# -*- test-case-name: tests.unit.status.test_pages -*-
"""
The pages of the status port.

Their keys are in camel case with units; a value that does not exist, or that JSON
cannot hold, is C{null}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import asdict
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure
from twisted.web.http import BAD_REQUEST, INTERNAL_SERVER_ERROR, OK, SERVICE_UNAVAILABLE
from twisted.web.server import NOT_DONE_YET

from ..interfaces import IHistogram, QuotaStatus, Request
from ..metrics.prometheus import CONTENT_TYPE, exposition
from ..metrics.prometheusnames import Naming
from ..names import boundedName, canonicalAddress
from ..profiling.profiler import Profiler, ProfilerStopped
from .clients import clientsOf, slowest
from .document import StatusDocument
from .history import History
from .pageresource import BadQuestion, Page, Pieces, refuse
from .sections import finite

ROWS_PER_PIECE = 200
"""How many rows of a long list are written in one turn."""

MAX_ROWS = 1000
"""How many rows of a family are in C{/sensors}; clients may make any number of names."""

_ASSETS = Path(__file__).parent / "assets"

_HTML, _TEXT = b"text/html; charset=utf-8", b"text/plain; charset=utf-8"

_ASSET_TYPES = {
    "page.css": b"text/css; charset=utf-8",
    "page.js": b"text/javascript; charset=utf-8",
    "plots.js": b"text/javascript; charset=utf-8",
    "icon.svg": b"image/svg+xml",
}


class StatusPages:
    """
    The pages of the status port.

    @ivar root: the page for people, which is the parent of all others.
    @ivar history: the last hour; to be started and stopped by who serves the pages.
    """

    def __init__(
        self,
        clock: IReactorTime,
        document: StatusDocument,
        namings: Sequence[Naming] = (),
        profiler: Profiler | None = None,
    ) -> None:
        """
        @param clock: for the turns in which long pages are written.
        @param namings: the Prometheus names of the driver's sensors.
        @param profiler: takes snapshots of the memory; L{None} if that is not possible.
        """
        self._document = document
        self.history = History(document, clock)
        self._sensors = sensors = document.sensors
        front = (_ASSETS / "page.html").read_text("utf-8")

        def page(title: str, pieces: Pieces, *parameters: str, **options: Any) -> Page:
            return Page(clock, title, pieces, parameters, **options)

        self._pages = {
            "": page("The page for people, with live plots.", _constant(front), contentType=_HTML),
            "status.json": page(
                "The state of the server at this moment; its lists are of the largest.",
                lambda question: iter((document.text,)),
            ),
            "history": page(
                "The numbers of status.json every ten seconds of the last hour.",
                lambda question: self.history.pieces(),
            ),
            "explain": page(
                "Which limits hold for a client, whom they were set for, and how much of each is used.",
                self._explain,
                *("clientId", "user", "ip"),
            ),
            "quotas": page("The limits in force, by whom they are for.", self._quotas),
            "sensors": page("Everything that is measured, as it is now.", self._measured),
            "metrics": page(
                "Everything that is measured, in the text format of Prometheus.",
                lambda question: exposition(sensors, namings),
                contentType=CONTENT_TYPE.encode("ascii"),
            ),
            "healthz": page(
                "Whether all is well; if not, the status is 503, and the reasons are here.",
                self._health,
                code=lambda: SERVICE_UNAVAILABLE if document.reasons else OK,
            ),
            **({} if profiler is None else {"memory": MemoryPage(clock, profiler)}),
            "help": page("This list.", self._help, contentType=_TEXT),
        }
        self.root = self._pages[""]
        for name, each in self._pages.items():
            self.root.putChild(name.encode("ascii"), each)
        for name, contentType in _ASSET_TYPES.items():
            pieces = _constant((_ASSETS / name).read_text("utf-8"))
            asset = page("A part of the page for people.", pieces, contentType=contentType)
            self.root.putChild(name.encode("ascii"), asset)

    # The contents of the pages

    def _help(self, question: Mapping[str, str]) -> Iterator[str]:
        for name, page in self._pages.items():
            query = "&".join(f"{parameter}=" for parameter in page.parameters)
            yield f"/{name}{query and '?'}{query}\n    {page.title}\n"

    def _health(self, question: Mapping[str, str]) -> Iterator[str]:
        reasons = self._document.reasons
        yield _encoded({"status": "unavailable", "reasons": reasons} if reasons else {"status": "ok"})

    def _explain(self, question: Mapping[str, str]) -> Iterator[str]:
        if not question:
            raise BadQuestion("say which client: /explain?clientId=C&user=U&ip=A, or some of the three")
        for name in ("user", "ip"):
            if question.get(name) == "":
                raise BadQuestion(f"{name} is empty: leave it out to mean any")
        ip = question.get("ip", "")
        if "ip" in question:
            try:
                ip = canonicalAddress(ip)
            except ValueError:
                raise BadQuestion(f"{ip!r} is not an address; write 192.0.2.1 or 2001:db8::1, without a port") from None
        document, server, now = self._document, self._document.server, self._document.sensors.seconds()
        asked = {name: boundedName(question[name]) for name in ("user", "clientId") if name in question}
        clients = clientsOf(server, document.anonymous, **asked, ip=ip or None)
        if len(clients) == 1:
            # What was not said of it is known.
            user, clientId = clients[0].user, clients[0].clientId
        else:
            user = asked.get("user", document.anonymous)
            clientId = asked.get("clientId", "" if "user" in asked else server.clientIdAt(ip))
        request, wallSeconds = Request("", user, clientId, ip, 0), document.wallSeconds()
        delaySeconds = max([0.0, *(each.untilSeconds - now for each in clients)])
        yield _encoded(
            {
                "user": user,
                "clientId": clientId,
                "ip": ip or None,
                "connections": sum(each.connections for each in clients),
                "delaySeconds": delaySeconds,
                "delayEndsAtSeconds": wallSeconds + delaySeconds if delaySeconds > 0 else None,
                "clientCount": len(clients),
                "limitShare": server.control.limitShare,
                "sharing": document.fields.get("sharing"),
                "clients": [each.fields(server.control, now) for each in slowest(clients)],
                "limits": [
                    {"policy": policy, "isShadow": isShadow, **_limitFields(status, wallSeconds)}
                    for policy, isShadow, status in server.control.explain(request, now)
                    if ip or status.entity.ip is None
                ],
            }
        )

    def _quotas(self, question: Mapping[str, str]) -> Iterator[str]:
        control = self._document.server.control
        limited = list(control.limits.items())
        yield f'{{"limitShare": {json.dumps(control.limitShare)}, "quotas": ['
        yield from _rows({**asdict(entity), "limits": dict(limits)} for entity, limits in limited)
        yield "]}\n"

    def _measured(self, question: Mapping[str, str]) -> Iterator[str]:
        """
        An object of C{values}, C{histograms} and C{families}.  A family has the
        names of its C{labels} and a list of C{values}; each of them is a list of
        the labels' texts and the value.  Of more than L{MAX_ROWS} the rest is only
        counted: C{leftOut}.
        """
        values = {name: finite(value) for name, value in self._sensors}
        histograms = {
            name: fields
            for name, each in self._sensors.histograms.items()
            if (fields := self._sensors.tryRead(name, partial(_histogramFields, each))) is not None
        }
        yield f'{{"values": {json.dumps(values)},\n"histograms": {json.dumps(histograms)},\n"families": {{'
        separator = "\n"
        for name, family in list(self._sensors.families.items()):
            labels = json.dumps(family.labelNames)
            yield f'{separator}{json.dumps(name)}: {{"isCounter": {json.dumps(family.isCounter)}, "labels": {labels}, '
            yield '"values": ['
            rows = iter(family.read(self._sensors.seconds()))
            yield from _rows([*labelValues, finite(value)] for labelValues, value in islice(rows, MAX_ROWS))
            leftOut = 0
            while some := sum(1 for _ in islice(rows, ROWS_PER_PIECE)):
                leftOut += some
                yield ""
            yield f'], "leftOut": {leftOut}}}'
            separator = ",\n"
        yield "}}\n"


class MemoryPage(Page):
    """
    C{/memory}: a snapshot of the memory, for C{admission memory}.  The server
    takes a few seconds for it, in small steps.  The profiler takes one snapshot at
    a time, and at most one in ten seconds.
    """

    def __init__(self, clock: IReactorTime, profiler: Profiler) -> None:
        title = "Where the memory is; taken when asked for, and kept for ten seconds."
        super().__init__(clock, title, lambda question: iter(()))
        self._profiler = profiler

    def render(self, request: Any) -> Any:
        try:
            self.question(request)
        except BadQuestion as refusal:
            return refuse(request, BAD_REQUEST, str(refusal))
        request.setHeader(b"Content-Type", self.contentType)
        if request.method == b"HEAD":
            return b""
        asked: Deferred[Any] = self._profiler.ask()
        request.notifyFinish().addErrback(lambda gone: asked.cancel())
        asked.addCallback(self._answer, request).addErrback(self._failed, request)
        return NOT_DONE_YET

    def _answer(self, snapshot: Any, request: Any) -> None:
        request.write(_encoded(snapshot).encode())
        request.finish()

    def _failed(self, failure: Failure, request: Any) -> None:
        if isinstance(failure.value, CancelledError):
            # The client has gone.
            return
        if isinstance(failure.value, ProfilerStopped):
            body = refuse(request, SERVICE_UNAVAILABLE, "the server is being stopped")
        else:
            self.log.failure("there is no memory snapshot", failure)
            body = refuse(
                request, INTERNAL_SERVER_ERROR, "the snapshot of memory has failed; the server's log says why"
            )
        request.write(body)
        request.finish()


def _constant(text: str) -> Pieces:
    return lambda question: iter((text,))


def _limitFields(status: QuotaStatus, wallSeconds: float) -> dict[str, Any]:
    return {
        "limitName": status.limitName,
        "limit": finite(status.limit),
        "entity": asdict(status.entity),
        "fraction": finite(status.fraction),
        "used": finite(status.used),
        "usedHere": finite(status.usedHere),
        "usedElsewhere": None if status.usedElsewhere is None else finite(status.usedElsewhere),
        "usedFraction": finite(status.utilization),
        "delaySeconds": finite(status.delaySeconds),
        "delayEndsAtSeconds": finite(wallSeconds + status.delaySeconds) if status.delaySeconds > 0 else None,
    }


def _histogramFields(histogram: IHistogram) -> dict[str, Any]:
    """
    A histogram as JSON.  The range whose bound is L{None} is above all other bounds.
    """
    bounds: Sequence[float | None] = (*histogram.bounds, None)
    return {
        "count": histogram.count,
        "total": finite(histogram.total),
        "median": finite(histogram.quantile(0.5)),
        "percentile99": finite(histogram.quantile(0.99)),
        "ranges": [
            {"upTo": bound, "count": count} for bound, count in zip(bounds, histogram.counts, strict=True) if count
        ],
    }


def _encoded(document: Any) -> str:
    return json.dumps(document, allow_nan=False) + "\n"


def _rows(rows: Iterator[Any]) -> Iterator[str]:
    """
    The elements of an array, L{ROWS_PER_PIECE} in a piece; C{rows} are read
    piece by piece.
    """
    separator = "\n"
    while some := list(islice(rows, ROWS_PER_PIECE)):
        yield separator + ",\n".join(json.dumps(row, allow_nan=False) for row in some)
        separator = ",\n"

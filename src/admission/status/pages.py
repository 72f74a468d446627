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
from typing import Any

from attrs import asdict
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.web.http import NOT_FOUND, OK, SERVICE_UNAVAILABLE

from ..interfaces import IHistogram, QuotaStatus, Request
from ..metrics.prometheus import CONTENT_TYPE, exposition
from ..metrics.prometheusnames import Naming
from ..names import boundedName, canonicalAddress
from ..profiling.profiler import Profiler, ProfilerStopped
from .clients import clientsOf, slowest
from .document import KEPT_SECONDS, StatusDocument
from .frontpage import frontPage
from .history import History
from .pageresource import NO_PAGE, Answer, BadQuestion, LaterPage, Page, Pieces, Unavailable, encoded, errorText
from .sections import finite

ROWS_PER_PIECE = 200
"""How many rows of a long list are written in one turn."""

MAX_ROWS = 1000
"""How many rows of a family are in C{/sensors}; clients may make any number of names."""


class StatusPages:
    """
    The pages of the status port.

    @ivar root: the page for people, which is the parent of all others.
    @ivar history: the last hour; to be started and stopped by the server of the pages.
    """

    def __init__(
        self,
        clock: IReactorTime,
        document: StatusDocument,
        namings: Sequence[Naming] = (),
        profiler: Profiler | None = None,
        process: int | None = None,
    ) -> None:
        """
        @param clock: for the turns in which long pages are written.
        @param namings: the Prometheus names of the driver's sensors.
        @param profiler: takes snapshots of the memory; L{None} if that is not possible.
        @param process: the number of the process, from 1, if the server is one of several processes of a whole.
        """
        self._document = document
        self._profiler = profiler
        self.history = History(lambda: succeed(document.fields), clock)
        self._sensors = sensors = document.sensors
        labels = {} if process is None else {"process": str(process)}
        if process is not None:
            # The process that asks for the whole keeps it as long, and should not be given the same twice.
            document.keptSeconds = KEPT_SECONDS / 2

        def page(title: str, pieces: Pieces, *parameters: str, **options: Any) -> Page:
            return Page(clock, title, pieces, parameters, **options)

        self._pages: dict[str, Page] = {
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
                lambda question: exposition(sensors, namings, labels),
                contentType=CONTENT_TYPE.encode("ascii"),
            ),
            "healthz": page(
                "Whether all is well; if not, the status is 503, and the reasons are here.",
                self._health,
                code=lambda: SERVICE_UNAVAILABLE if document.reasons else OK,
            ),
        }
        if profiler is not None:
            title = "Where the memory is; taken when asked for, in a few seconds, and kept for ten seconds."
            self._pages["memory"] = LaterPage(clock, title, self._memory)
        self.root = frontPage(clock, self._pages)

    def answer(self, name: str, question: Mapping[str, str]) -> Deferred[Answer]:
        """
        A page without HTTP, made in turns if it is long.

        @param name: that of a page other than the one for people.
        @param question: its parameters.
        @return: fires with the page, or with the status and the text of a refusal; fails only if it is cancelled,
            which ends the work.
        """
        page = self._pages.get(name)
        return succeed((NOT_FOUND, errorText(NO_PAGE))) if page is None else page.answer(question)

    # The contents of the pages

    def _health(self, question: Mapping[str, str]) -> Iterator[str]:
        reasons = self._document.reasons
        yield encoded({"status": "unavailable", "reasons": reasons} if reasons else {"status": "ok"})

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
        yield encoded(
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

    async def _memory(self, question: Mapping[str, str]) -> Answer:
        assert self._profiler is not None
        try:
            return OK, encoded(await self._profiler.ask())
        except ProfilerStopped:
            raise Unavailable("the server is being stopped") from None


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


def _rows(rows: Iterator[Any]) -> Iterator[str]:
    """
    The elements of an array, L{ROWS_PER_PIECE} in a piece; C{rows} are read
    piece by piece.
    """
    separator = "\n"
    while some := list(islice(rows, ROWS_PER_PIECE)):
        yield separator + ",\n".join(json.dumps(row, allow_nan=False) for row in some)
        separator = ",\n"

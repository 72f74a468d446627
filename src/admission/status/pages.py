# -*- test-case-name: tests.unit.status.test_pages -*-
"""
The pages of the status port.

Their keys are in camel case with units; what has no value, or none that JSON
could say, is C{null}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import asdict
from twisted.internet.interfaces import IReactorTime
from twisted.web.http import SERVICE_UNAVAILABLE

from ..control import AdmissionControl
from ..interfaces import QuotaStatus, Request
from ..kafka.broker.broker import ANONYMOUS
from ..metrics.prometheus import CONTENT_TYPE, exposition
from ..metrics.registry import SensorRegistry
from ..profiling.profiler import Profiler
from .document import Snapshot
from .health import Health
from .memory import MemoryPage
from .pageresource import BadQuestion, Page
from .sections import finite, histogramFields

ROWS_PER_PIECE = 200
"""How much of a long list is written in one turn."""


_ASSETS = Path(__file__).parent / "assets"


def statusPages(
    clock: IReactorTime,
    control: AdmissionControl,
    sensors: SensorRegistry,
    wallSeconds: Callable[[], float],
    snapshot: Snapshot,
    health: Health,
    profiler: Profiler | None = None,
) -> AssetPage:
    """
    Everything that the status port shows.

    @param clock: for the turns in which long pages are written.
    @param wallSeconds: seconds since the epoch.
    @param profiler: where the memory is, if that can be asked.
    @return: the page for people, which has all others below it.
    """
    front = AssetPage(clock, "page.html", b"text/html; charset=utf-8")
    front.title = "The page for people, with live plots."
    pages: dict[str, Page] = {
        "": front,
        "status.json": SnapshotPage(clock, snapshot),
        "explain": ExplainPage(clock, control, sensors.seconds, wallSeconds),
        "quotas": QuotasPage(clock, control),
        "sensors": SensorsPage(clock, sensors),
        "metrics": MetricsPage(clock, sensors),
        "healthz": HealthPage(clock, health),
        **({} if profiler is None else {"memory": MemoryPage(clock, profiler)}),
    }
    pages["help"] = HelpPage(clock, pages)
    assets = {
        "page.css": AssetPage(clock, "page.css", b"text/css; charset=utf-8"),
        "page.js": AssetPage(clock, "page.js", b"text/javascript; charset=utf-8"),
        "plots.js": AssetPage(clock, "plots.js", b"text/javascript; charset=utf-8"),
        "icon.svg": AssetPage(clock, "icon.svg", b"image/svg+xml"),
    }
    for name, page in {**pages, **assets}.items():
        front.putChild(name.encode("ascii"), page)
    return front


class AssetPage(Page):
    """
    A file that comes with us, as it is.
    """

    title = "A part of the page for people."

    def __init__(self, clock: IReactorTime, name: str, contentType: bytes) -> None:
        super().__init__(clock)
        self.contentType = contentType
        self._text = _ASSETS.joinpath(name).read_text(encoding="utf-8")

    def pieces(self, question: Mapping[str, str]) -> Iterator[str]:
        """
        The whole file, which is small.
        """
        yield self._text


class HelpPage(Page):
    """
    C{/help}: what there is.
    """

    title = "This list."
    contentType = b"text/plain; charset=utf-8"

    def __init__(self, clock: IReactorTime, pages: Mapping[str, Page]) -> None:
        """
        @param pages: by their names; a live view.
        """
        super().__init__(clock)
        self._pages = pages

    def pieces(self, question: Mapping[str, str]) -> Iterator[str]:
        """
        A line for each page, and one for what it shows.
        """
        for name, page in self._pages.items():
            query = "&".join(f"{parameter}=" for parameter in page.parameters)
            yield f"/{name}{query and '?'}{query}\n    {page.title}\n"


class SnapshotPage(Page):
    """
    C{/status.json}: how the broker is, as C{/} and C{admission top} show it.
    """

    title = "How the broker is at this moment; the lists in it are of the largest."

    def __init__(self, clock: IReactorTime, snapshot: Snapshot) -> None:
        super().__init__(clock)
        self._snapshot = snapshot

    def pieces(self, question: Mapping[str, str]) -> Iterator[str]:
        """
        One object.
        """
        yield self._snapshot.text


class HealthPage(Page):
    """
    C{/healthz}: whether to send clients here.
    """

    title = "Whether all is well; if not, the status is 503, and the reasons are here."

    def __init__(self, clock: IReactorTime, health: Health) -> None:
        super().__init__(clock)
        self._health = health

    def render(self, request: Any) -> Any:
        """
        See L{Page.render}.
        """
        if self._health.reasons:
            request.setResponseCode(SERVICE_UNAVAILABLE)
        return super().render(request)

    def pieces(self, question: Mapping[str, str]) -> Iterator[str]:
        """
        One object of C{status} and, unless that is C{ok}, C{reasons}.
        """
        reasons = self._health.reasons
        yield _encoded({"status": "unavailable", "reasons": reasons} if reasons else {"status": "ok"})


class MetricsPage(Page):
    """
    C{/metrics}: everything that is measured, for Prometheus.
    """

    title = "Everything that is measured, in the text format of Prometheus."
    contentType = CONTENT_TYPE.encode("ascii")

    def __init__(self, clock: IReactorTime, sensors: SensorRegistry) -> None:
        super().__init__(clock)
        self._sensors = sensors

    def pieces(self, question: Mapping[str, str]) -> Iterator[str]:
        """
        A metric at a time.
        """
        return exposition(self._sensors)


class ExplainPage(Page):
    """
    C{/explain}: how one client stands with all limits that hold for it.
    """

    title = "Which limits hold for a client, whom they were set for, and how much of each is used."
    parameters = ("clientId", "user", "ip")

    def __init__(
        self,
        clock: IReactorTime,
        control: AdmissionControl,
        seconds: Callable[[], float],
        wallSeconds: Callable[[], float],
    ) -> None:
        """
        @param seconds: the monotonic clock that policies are told the time by.
        @param wallSeconds: seconds since the epoch.
        """
        super().__init__(clock)
        self._control = control
        self._seconds = seconds
        self._wallSeconds = wallSeconds

    def pieces(self, question: Mapping[str, str]) -> Iterator[str]:
        """
        One object, whose C{limits} is a list.
        """
        if not question:
            raise BadQuestion("say which client: /explain?clientId=C&user=U&ip=A, or some of the three")
        ip = question.get("ip", "")
        if "ip" in question:
            try:
                ip = str(ip_address(ip))
            except ValueError:
                raise BadQuestion(f"{ip!r} is not an address; write 192.0.2.1 or 2001:db8::1, without a port") from None
        user, clientId = question.get("user", ANONYMOUS), question.get("clientId", "")
        request, nowSeconds = Request("", user, clientId, ip, 0), self._wallSeconds()
        yield _encoded(
            {
                "user": user,
                "clientId": clientId,
                "ip": ip or None,
                "limits": [
                    {"policy": policy, "isShadow": isShadow, **statusFields(status, nowSeconds)}
                    for policy, isShadow, status in self._control.explain(request, self._seconds())
                    if ip or status.entity.ip is None
                ],
            }
        )


class QuotasPage(Page):
    """
    C{/quotas}: the limits that are set.
    """

    title = "The limits that are set, by whom they are for."

    def __init__(self, clock: IReactorTime, control: AdmissionControl) -> None:
        super().__init__(clock)
        self._control = control

    def pieces(self, question: Mapping[str, str]) -> Iterator[str]:
        """
        One object, whose C{quotas} is a list.
        """
        limited = list(self._control.limits.items())
        yield '{"quotas": ['
        yield from _rows({**asdict(entity), "limits": dict(limits)} for entity, limits in limited)
        yield "]}\n"


class SensorsPage(Page):
    """
    C{/sensors}: everything that is measured.
    """

    title = "Everything that is measured, as it is now."

    def __init__(self, clock: IReactorTime, sensors: SensorRegistry) -> None:
        super().__init__(clock)
        self._sensors = sensors

    def pieces(self, question: Mapping[str, str]) -> Iterator[str]:
        """
        One object of C{values}, C{histograms} and C{families}.  A family has
        the names of its C{labels} and a list of C{values}, each of them a list
        of what the labels are, and the value.
        """
        values = {name: finite(value) for name, value in self._sensors}
        histograms = {name: histogramFields(each) for name, each in self._sensors.histograms.items()}
        yield f'{{"values": {json.dumps(values)},\n"histograms": {json.dumps(histograms)},\n"families": {{'
        separator = "\n"
        for name, family in list(self._sensors.families.items()):
            labels = json.dumps(family.labelNames)
            yield f'{separator}{json.dumps(name)}: {{"isCounter": {json.dumps(family.isCounter)}, "labels": {labels}, '
            yield '"values": ['
            yield from _rows(
                [*labelValues, finite(value)] for labelValues, value in family.read(self._sensors.seconds())
            )
            yield "]}"
            separator = ",\n"
        yield "}}\n"


def statusFields(status: QuotaStatus, nowSeconds: float) -> dict[str, Any]:
    """
    How a client stands with one limit, as JSON.

    @param nowSeconds: seconds since the epoch, from which delays count.
    """
    return {
        "limitName": status.limitName,
        "limit": finite(status.limit),
        "entity": asdict(status.entity),
        "used": finite(status.used),
        "usedFraction": finite(status.utilization),
        "delaySeconds": finite(status.delaySeconds),
        "delayEndsAtSeconds": finite(nowSeconds + status.delaySeconds) if status.delaySeconds > 0 else None,
    }


def _encoded(document: Mapping[str, Any]) -> str:
    return json.dumps(document, allow_nan=False) + "\n"


def _rows(rows: Iterator[Any]) -> Iterator[str]:
    """
    The elements of an array, some at a time; so are C{rows} read.
    """
    separator = "\n"
    while some := list(islice(rows, ROWS_PER_PIECE)):
        yield separator + ",\n".join(json.dumps(row, allow_nan=False) for row in some)
        separator = ",\n"

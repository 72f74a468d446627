# -*- test-case-name: tests.offline.test_report -*-
"""
The page as a whole.
"""

from __future__ import annotations

import re
from importlib.resources import files

from twisted.web.template import Tag, tags

from ..syntheticserver import BROKER_ID
from .answers import clientsSection, openLoopSection, verdictSection
from .assumptions import askedSection, assumptionsSection, filesSection
from .checks import auditSection, gateSection, missingSection, recordedSection
from .elements import markup, named, parsed
from .lines import Times
from .pools import poolSection
from .resultfiles import Results
from .timecourse import delayPlot, fairnessPlot, fairnessSection, throttlePlot, throttlingSection
from .verdict import Verdict, reach
from .words import count, plural, shown

_WITH_BROKERS = ("replay_fidelity", "replay_fairness", "fairness_minute", "pool_minute", "replay_pool")


def pageOf(results: Results) -> str:
    """
    The report on these results.

    @return: a self-contained HTML page.
    @raise admission.offline.report.writing.ReportError: if results cannot be read.
    """
    times = Times.of(results)
    verdict = reach(results, times)
    throttling = [throttlePlot(verdict, times), delayPlot(results, verdict)]
    page = parsed(_asset("page.html"))
    page.fillSlots(
        style=_asset("page.css"),
        facts=_facts(results, verdict),
        sections=[
            verdictSection(results, verdict),
            clientsSection(results, verdict),
            throttlingSection(throttling),
            fairnessSection(results, verdict, fairnessPlot(verdict, times)),
            poolSection(results),
            openLoopSection(results),
            recordedSection(results),
            auditSection(results),
            gateSection(verdict.gate),
            missingSection(results, verdict.gate),
            assumptionsSection(results),
            askedSection(results),
            filesSection(results),
        ],
    )
    return f"<!DOCTYPE html>\n{markup(page)}\n"


def isSynthetic(results: Results) -> bool:
    """
    Whether any run is of a synthetic server.
    """
    for name in _WITH_BROKERS:
        brokers = results.table(name, ["broker_id"])
        if brokers is not None and BROKER_ID in brokers["broker_id"].unique().to_pylist():
            return True
    return results.says("isSynthetic", bool) is True


def _facts(results: Results, verdict: Verdict) -> list[Tag]:
    parts = []
    if isSynthetic(results):
        parts.append(
            tags.p(
                "Synthetic data: what follows is about a server and clients that do not exist. It shows how policies "
                "behave, and says nothing of yours.",
                class_="synthetic",
            )
        )
    recording, requests = results.says("recording", str), results.says("requests", int)
    runs = results.objects("runs")
    if recording is not None:
        words = [] if requests is None else [f": {plural(requests, 'request')}"]
        asked = None if verdict.recorded is None else int(verdict.recorded.total["requests"])
        if requests is not None and asked is not None and asked < requests:
            words.append(f" (policies were asked about {count(asked)} of them; not about logins, for instance)")
        begins, ends = ([str(each[key]) for each in runs if each.get(key)] for key in ("begin", "end"))
        if begins and ends:
            words.append(
                f" in {plural(len(runs), 'run')} of a server, from {_second(min(begins))} to {_second(max(ends))}"
            )
        parts.append(
            tags.p("From the recording in ", named(shown(recording, 500)), shown("".join(words), 200), class_="facts")
        )
    return parts


def _second(moment: str) -> str:
    return re.sub(r"^(\S+)T([\d:]+)(\.\d+)?\+00:00$", r"\1 \2 UTC", moment)


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text("utf-8")

# -*- test-case-name: tests.offline.test_report -*-
"""
The question, the assumptions of the answers, and the files with the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from twisted.web.template import Tag, tags

from ...units import formatShare
from ..evaluation import EVALUATION
from ..outputtables import OUTPUTS
from ..simulate.totals import MAX_EXHAUSTED_SHARE
from .elements import absent, bullets, named, section
from .resultfiles import Results
from .sharingwords import SHARING_ASSUMPTION, isAnyTogether
from .words import plural, share, shown

MAX_ANSWERS = 100
"""The most lines shown for one question of C{evaluation.json}."""

_ASSUMPTIONS = (
    "Clients are closed loops. A client sends its next request when it has the answer to the last one, was let go and "
    "has thought, and how long it thinks does not depend on how fast it is served. Real clients also give up, retry "
    "and time out; where that is more than rare, the answers are rough.",
    "Requests that were sent before the last one was answered follow the one before them at the recorded distance, "
    "but none before its connection is read again. Requests that were refused and sent once more still are.",
    "The server takes as long for each request as it was recorded to. A server with less to do would be faster, and "
    "one with more to do slower.",
    "How late each request was when the policies were asked, and how much memory was free, stays as recorded.",
    "Nobody sends more than was recorded. A connection that is done early might have gone on; with more than "
    f"{share(MAX_EXHAUSTED_SHARE)} of the connections done early there is no point estimate.",
    "A candidate takes the place of the recorded policies of its kind. All other policies keep the delays and "
    "refusals that they were recorded with, and the longest delay counts.",
    "What is said of a policy that wants to know which requests are under way is approximate: it is asked about a "
    "request, and told what that took, at the recorded moment at which the work on it began, and every request is "
    "taken to be answered as fast as it was, however many others there are.",
    "Delays are cut off at the longest that the server allowed. Limits that were set while the server ran are set "
    "again at the same moments, unless the candidate says otherwise. A server that enforced a share of each limit "
    "enforces the same share of the candidate's.",
    "What comes after the end of the recording is not counted. Of events that are missing nobody knows what they "
    "would have changed.",
    "A memory pool is tried with quota delays, service times and the times that requests keep their memory as "
    "recorded, and with the recorded seed. Waits agree in number and length, not each of them. What else is charged "
    "to the pool is known once a second.",
)


def assumptionsSection(results: Results) -> Tag:
    items: list[Any] = list(_ASSUMPTIONS)
    if isAnyTogether(results):
        items.append(SHARING_ASSUMPTION)
    approximate = results.says("approximate", list)
    if approximate:
        names = ", ".join(shown(each) for each in approximate[:MAX_ANSWERS])
        items.insert(0, ("Approximate, because they want to know which requests are under way: ", named(names), "."))
    sample = results.says("sample", str)
    if sample is not None:
        items.insert(
            0,
            f"Only a sample of the clients was taken ({shown(sample)}). Sums and the busiest minute are those of the "
            "sample. No candidate has a limit that clients in the sample share with others.",
        )
    return section("assumptions", "What this takes for granted", bullets(items))


def askedSection(results: Results) -> Tag:
    """
    The question, from C{evaluation.json}.
    """
    answers = [(name, texts) for name, texts in _asked(results) if texts]
    if not answers:
        return section("asked", "What was asked", absent(f"Nobody has written {EVALUATION}."))
    listed = [
        (tags.dt(name), [tags.dd(named(shown(text, 2000))) for text in texts[:MAX_ANSWERS]]) for name, texts in answers
    ]
    return section("asked", "What was asked", tags.dl(*listed), absent(f"{EVALUATION} has all of it."))


def _asked(results: Results) -> Iterator[tuple[str, Sequence[str]]]:
    """
    What is known of the question, with its answers; empty ones if it was not said.
    """
    say = results.says
    yield "Recording", _texts(say("recording", str))
    since, until = say("since", str), say("until", str)
    yield "Time", _texts(" ".join(filter(None, (since and f"from {since}", until and f"to {until}"))))
    yield "Clients", _texts((sample := say("sample", str)) and f"a sample of {sample}")
    runs = results.objects("runs")
    inForce = [
        [*_listed(each.get("policies")), *_texts(each.get("pool")), *_texts(_share(each.get("limitShare")))]
        for each in runs
    ]
    yield "In force", list(dict.fromkeys(text for each in inForce for text in each))
    yield "Candidates", _candidates(results, "candidates")
    yield "Pools", _candidates(results, "pools")
    yield "Replayed", [f"{each} loop" for each in _listed(say("modes", list))]
    versions = (("admission", say("admission", str)), ("PySpark", say("pyspark", str)))
    yield "By", _texts(", ".join(f"{name} {version}" for name, version in versions if version))
    yield "Notes", _listed(say("notes", list))


def _share(limitShare: Any) -> str | None:
    isPart = isinstance(limitShare, float) and 0 < limitShare < 1
    return f"limits are enforced by a share of {formatShare(limitShare)}" if isPart else None


def _candidates(results: Results, name: str) -> list[str]:
    pairs = ((str(each.get("label")), str(each.get("description"))) for each in results.objects(name))
    return [label if label == description else f"{label}: {description}" for label, description in pairs]


def _listed(values: Any) -> list[str]:
    return [str(each) for each in values] if isinstance(values, list) else []


def _texts(value: Any) -> list[str]:
    return [str(value)] if value else []


def filesSection(results: Results) -> Tag:
    words = {table.name: table.words for table in OUTPUTS}
    items: list[Any] = []
    for file in results.files():
        links: list[Any] = [_link(file.parquet, "Parquet")]
        if file.csv is not None:
            links += [" and ", _link(file.csv, "CSV")]
        each = f", each {words[file.name]}" if file.name in words else ""
        items.append((named(shown(file.name)), f": {plural(file.rows, 'row')}{each}: ", links))
    if (results.directory / EVALUATION).exists():
        items.append((_link(EVALUATION, EVALUATION), ": what was asked"))
    return section("files", "Where the numbers are", bullets(items))


def _link(path: str, words: str) -> Tag:
    return tags.a(words, href=quote(path))

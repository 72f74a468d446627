# -*- test-case-name: tests.unit.profiling.test_profiling -*-
"""
A snapshot as a page that needs no other file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from ..units import roundedBytes
from .text import TITLES, Document, groupRowsOf, notesOf, sentencesOf, signed, titleOf

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
  color: #1d2430; background: #fff; }
h1 { font-size: 1.35rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; border-bottom: 1px solid #d9dee7; }
td:not(.name), th:not(.name) { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.name { text-align: left; overflow-wrap: anywhere; }
.bar { display: flex; height: 1.4rem; margin: 1rem 0; background: #e6eaf1; }
.known { background: #2f6fb2; } .unknown { background: #c2571a; }
@media (prefers-color-scheme: dark) { body { color: #dde3ec; background: #161b22; }
  td, th { border-color: #313a48; } .bar { background: #2a3240; } }
"""


def htmlOf(document: Document) -> str:
    """
    All of it.
    """
    return "".join(_parts(document))


def _parts(document: Document) -> Iterator[str]:
    title = escape(titleOf(document))
    yield '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n'
    yield f"<title>{title}</title>\n<style>{_STYLE}</style>\n<h1>{title}</h1>\n"
    yield "".join(f"<p>{escape(sentence)}.</p>\n" for sentence in sentencesOf(document))
    yield _bar(document)
    yield "<h2>What is known</h2>\n"
    yield _table(TITLES, groupRowsOf(document))
    yield "<h2>Where the unexplained may be</h2>\n"
    yield _table(("", "since the start"), [(each["name"], signed(each["bytes"])) for each in document["remainder"]])
    for since in document["since"]:
        yield f"<h2>Changed most since snapshot {since['number']}</h2>\n"
        yield _summary(since["most"], isChange=True)
    heap = document["heap"]
    yield f"<h2>Largest of {heap['objects']:,} objects, {roundedBytes(heap['bytes'])}</h2>\n"
    yield _summary(heap["largest"], isChange=False)
    yield "".join(f"<p>Note: {escape(note)}.</p>\n" for note in notesOf(document))


def _bar(document: Document) -> str:
    """
    Private memory: what there was at the start, what is explained, what is not.
    """
    whole = max(document["process"]["privateBytes"], 1)
    growth = document["growth"]
    parts = (("known", growth["explainedBytes"]), ("unknown", growth["unexplainedBytes"]))
    start = document["process"]["startPrivateBytes"]
    pieces = "".join(
        f'<span class="{kind}" style="width: {100 * max(held, 0) / whole:.1f}%" title="{kind}"></span>'
        for kind, held in (("start", start), *parts)
    )
    return f'<div class="bar">{pieces}</div>\n'


def _summary(rows: Sequence[Sequence[Any]], isChange: bool) -> str:
    write = signed if isChange else roundedBytes
    number = "{:+,}" if isChange else "{:,}"
    return _table(
        ("class", "objects", "size"), [(name, number.format(count), write(held)) for name, count, held in rows]
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row("th", titles), *(_row("td", row) for row in rows)]
    return f"<table>\n{''.join(lines)}</table>\n"


def _row(tag: str, cells: Sequence[str]) -> str:
    name, *numbers = map(escape, cells)
    return f'<tr><{tag} class="name">{name}</{tag}>{"".join(f"<{tag}>{each}</{tag}>" for each in numbers)}</tr>\n'

# -*- test-case-name: tests.offline.test_report -*-
"""
The elements of the page.  All text becomes markup here and in L{twisted.web.template}, which escapes it; no markup is
concatenated from strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from twisted.python.failure import Failure
from twisted.web.template import Flattenable, Tag, XMLString, flattenString, tags

Cell = Any
"""Text, or a tag."""


def markup(root: Flattenable) -> str:
    """
    The markup as a browser reads it.

    @raise Exception: if it cannot be made.
    """
    done: list[Any] = []
    flattenString(None, root).addBoth(done.append)
    [result] = done
    if isinstance(result, Failure):
        result.raiseException()
    return str(result, "utf-8")


def parsed(xml: str) -> Tag:
    """
    Parse our own markup as a tag.
    """
    [root] = XMLString(xml).load()
    assert isinstance(root, Tag)
    return root


def section(name: str, title: str, *children: Any) -> Tag:
    """
    A section of the page.

    @param name: the name to link to.
    """
    return tags.section(tags.h2(title, id=f"{name}-title"), *children, id=name, **{"aria-labelledby": f"{name}-title"})


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Cell]], words: int = 1) -> Tag:
    """
    A table, which scrolls by itself where it is too wide.

    @param words: how many columns, from the left, are text; the others are numbers.
    """
    kinds = ["words" if place < words else "number" for place in range(len(heads))]
    head = tags.tr(tags.th(each, scope="col", class_=kind) for each, kind in zip(heads, kinds, strict=True))
    body = [
        tags.tr(
            tags.th(row[0], scope="row"),
            *(tags.td(each, class_=kind) for each, kind in zip(row[1:], kinds[1:], strict=True)),
        )
        for row in rows
    ]
    made = tags.table(tags.caption(caption), tags.thead(head), tags.tbody(body))
    return tags.div(made, class_="scroll", role="region", tabindex="0", **{"aria-label": caption})


def named(text: str) -> Tag:
    """
    A name chosen by a client or user, isolated so that its writing direction affects nothing else.
    """
    return tags.bdi(text)


def absent(what: str) -> Tag:
    """
    The text in place of a missing part.
    """
    return tags.p(what, class_="absent")


def beside(*parts: list[Any]) -> Tag:
    """
    Parts of a section, beside each other where there is room.
    """
    return tags.div((tags.div(part, class_="part") for part in parts), class_="beside")


def bullets(items: Iterable[Any]) -> Tag:
    return tags.ul(tags.li(each) for each in items)

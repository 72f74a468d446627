# -*- test-case-name: tests.unit.status.test_pages -*-
"""
The page for people, under which all others are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from twisted.internet.interfaces import IReactorTime

from .pageresource import Page, Pieces

_ASSETS = Path(__file__).parent / "assets"

_HTML, _TEXT = b"text/html; charset=utf-8", b"text/plain; charset=utf-8"

_ASSET_TYPES = {
    "page.css": b"text/css; charset=utf-8",
    "page.js": b"text/javascript; charset=utf-8",
    "plots.js": b"text/javascript; charset=utf-8",
    "icon.svg": b"image/svg+xml",
}


def frontPage(clock: IReactorTime, pages: Mapping[str, Page]) -> Page:
    """
    The page for people, which is the parent of all others, of a list of them, and of the files that it is made of.

    @param pages: the others, by name.
    """

    def listed(question: Mapping[str, str]) -> Iterator[str]:
        for name, page in every.items():
            query = "&".join(f"{parameter}=" for parameter in page.parameters)
            yield f"/{name}{query and '?'}{query}\n    {page.title}\n"

    root = Page(clock, "The page for people, with live plots.", _file("page.html"), contentType=_HTML)
    every = {"": root, **pages, "help": Page(clock, "This list.", listed, contentType=_TEXT)}
    files = {
        name: Page(clock, "A part of the page for people.", _file(name), contentType=contentType)
        for name, contentType in _ASSET_TYPES.items()
    }
    for name, page in {**every, **files}.items():
        root.putChild(name.encode("ascii"), page)
    return root


def _file(name: str) -> Pieces:
    text = (_ASSETS / name).read_text("utf-8")
    return lambda question: iter((text,))

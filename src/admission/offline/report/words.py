# -*- test-case-name: tests.offline.test_report -*-
"""
Numbers and names as the report writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...plaintext import printable
from ...units import roundedBytes, roundedSeconds

NOTHING = "\N{EN DASH}"
"""Shown in place of a missing value."""

LONGEST_NAME = 80
"""In characters; longer names are cut."""


def duration(seconds: float | None) -> str:
    """
    A time, to about three digits.
    """
    if seconds is None:
        return NOTHING
    return "less than 1 ms" if 0 < seconds < 0.0005 else _signed(roundedSeconds(seconds))


def size(sizeBytes: float | None) -> str:
    """
    An amount of memory or data, in units of powers of two.
    """
    return NOTHING if sizeBytes is None else _signed(roundedBytes(sizeBytes))


def count(number: float | None) -> str:
    return NOTHING if number is None else f"{number:,.0f}"


def share(fraction: float | None) -> str:
    """
    A part of the whole, as a percentage that is 0 or 100 only if it is exactly.
    """
    if fraction is None:
        return NOTHING
    percent = fraction * 100
    if 0 < percent < 0.05:
        return "less than 0.1 %"
    if 99.95 <= percent < 100:
        return "more than 99.9 %"
    return f"{percent:.1f} %".replace(".0 %", " %")


def index(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def shown(text: Any, longest: int = LONGEST_NAME) -> str:
    """
    A name chosen by a client or user, on one line: unprintable characters are escaped as in Python, and long names are
    cut.
    """
    written = printable(str(text)[: longest + 1])
    return written if len(written) <= longest else f"{written[:longest]}\N{HORIZONTAL ELLIPSIS}"


def client(principal: str | None, clientId: str | None) -> str:
    """
    The name of a client; of connections before a login if neither is known.
    """
    if principal is None and clientId is None:
        return "before login"
    return f"{shown(clientId) if clientId else 'no client id'} ({shown(principal) if principal else 'no user'})"


def enumerated(names: Iterable[Any]) -> str:
    """
    Names as a part of a sentence; none is nobody.
    """
    *others, last = [shown(each) for each in names] or ["nobody"]
    return f"{', '.join(others)} and {last}" if others else last


def plural(number: int, one: str, several: str = "") -> str:
    """
    A number and its noun: C{1 request}, C{2 requests}.
    """
    return f"{count(number)} {one if number == 1 else several or f'{one}s'}"


def _signed(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")

# -*- test-case-name: tests.unit.test_plaintext -*-
"""
Text for terminals and text files.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any


def printable(text: str) -> str:
    """
    Escape control characters for a terminal, as Python does in a string: clients choose their names.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def escapeUnencodable(*streams: Any) -> None:
    """
    Have text streams write characters that their encoding lacks as Python's escapes, where they would raise
    L{UnicodeEncodeError}: clients choose their names, and terminals their encodings.  Other streams stay as they are.
    """
    for stream in streams:
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def table(rows: Sequence[Sequence[str]], alignment: str = "", indent: str = "") -> str:
    """
    Write rows in columns that are as wide as their widest cell.  Cells are made L{printable}.

    @param rows: of equal length; the first one usually has the titles.
    @param alignment: C{<} or C{>} for each column; further columns are aligned to the left.
    @param indent: the beginning of each line.
    """
    safe = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    sides = alignment.ljust(len(widths), "<")
    line = indent + "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return "".join(line.format(*row).rstrip() + "\n" for row in safe)

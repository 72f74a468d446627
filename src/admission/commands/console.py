# -*- test-case-name: tests.unit.test_cli -*-
"""
How commands talk to whoever runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.python.usage import Options, UsageError

from ..units import parseSeconds


class CommandFailed(Exception):
    """
    A command could not do what it was asked to; the message is a sentence
    that says why, and what would help.
    """


class CommandGroup(Options):
    """
    A command that consists of others.
    """

    subCommands: Sequence[Sequence[Any]] = ()

    def getSynopsis(self) -> str:
        """
        How it is called: up to the command among them that was chosen, which
        has a synopsis of its own.
        """
        before = "Usage: admission" if self.parent is None else f"{self.parent.getSynopsis()} {self.parent.subCommand}"
        return before if self.subCommand is not None else f"{before} COMMAND [options]"

    def postOptions(self) -> None:
        """
        @raise UsageError: if none was chosen.
        """
        if self.subCommand is None:
            names: list[str] = [command[0] for command in self.subCommands]
            raise UsageError(f"say what to do: {', '.join(names[:-1])} or {names[-1]}")


def parseTimeout(text: str) -> float:
    """
    Read C{--timeout}, in seconds.

    @raise UsageError: if it is no duration, or none in which anything can happen.
    """
    try:
        seconds = parseSeconds(text)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from error
    if not seconds:
        raise UsageError(f"--timeout {text}: nothing answers in no time; write 10s or the like")
    return seconds


def printable(text: str) -> str:
    """
    C{text} without anything that a terminal would obey: names of clients are
    whatever their programmers chose.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def table(rows: Sequence[Sequence[str]]) -> str:
    """
    Rows in columns, as wide as they need to be.

    @param rows: the first one has the titles.
    """
    safe = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in safe
    )

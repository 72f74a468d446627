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

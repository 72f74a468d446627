# -*- test-case-name: tests.unit.test_cli -*-
"""
Commands that are about one directory, which may come first.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.python.usage import Options, UsageError


class DirectoryOptions(Options):
    """
    Options with a directory before or behind them.

    After parsing, C{directory} is a key as well.
    """

    which = "name one directory"
    """What to say unless there is one."""

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """
        See L{Options}, which would take nothing for an option any more after a
        directory that comes first.
        """
        words = list(options or ())
        if words and not words[0].startswith("-"):
            words.append(words.pop(0))
        super().parseOptions(words)  # type: ignore[no-untyped-call]

    def parseArgs(self, *directories: str) -> None:
        """
        Take the directory.
        """
        if len(directories) != 1 or not directories[0]:
            raise UsageError(self.which)
        self["directory"] = directories[0]

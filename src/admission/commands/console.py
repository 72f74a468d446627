# -*- test-case-name: tests.unit.test_cli -*-
"""
What all commands have in common: their usage, and how they fail.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from getopt import GetoptError, gnu_getopt
from getpass import GetPassWarning, getpass
from typing import Any, ClassVar, TextIO

from twisted.python.usage import Options, UsageError

from .._version import __version__
from ..clock import monotonicSeconds
from ..completions import DIRECTORIES, completing
from ..units import parseSeconds, roundedBytes


class CommandFailed(Exception):
    """
    A command has failed.  The message is a sentence that says why, and what
    would help.
    """


def askPassword(option: str, prompt: str) -> str:
    """
    Ask for a password without showing it.

    @param option: the one that gives it otherwise.
    @raise CommandFailed: if there is no terminal to ask at.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", GetPassWarning)
        try:
            return getpass(prompt)
        except GetPassWarning as error:
            raise CommandFailed(f"a password is needed, and there is no terminal to ask at; give {option}") from error


class CommandOptions(Options):
    """
    The options of a command, with examples in the usage text.

    @cvar examples: command lines, without C{admission}.
    @cvar note: what follows the examples.
    """

    examples: ClassVar[Sequence[str]] = ()
    note: ClassVar[str] = ""

    def opt_version(self) -> None:
        """
        Write the version and exit.
        """
        sys.stdout.write(f"admission {__version__}\n")
        raise SystemExit(0)

    def parseArgs(self, *words: str) -> None:
        """
        @raise UsageError: if there are any: a command that takes some has a method of its own.
        """
        if words:
            raise UsageError(f"there is no place for {words[0]!r:.300}: this command takes nothing but options")

    def getUsage(self, width: int | None = None) -> str:
        """
        The usage text.  Twisted would wrap examples that were part of C{longdesc}.
        """
        parts = [super().getUsage(width)]
        if self.examples:
            parts.append("Examples:\n" + "".join(f"  admission {each}\n" for each in self.examples))
        if self.note:
            parts.append(f"{self.note}\n")
        return "\n".join(parts)


class CommandGroup(CommandOptions):
    """
    A command with subcommands.
    """

    subCommands: Sequence[Sequence[Any]] = ()

    def getSynopsis(self) -> str:
        """
        The synopsis up to the chosen subcommand, which has a synopsis of its own.
        """
        before = "Usage: admission" if self.parent is None else f"{self.parent.getSynopsis()} {self.parent.subCommand}"
        return before if self.subCommand is not None else f"{before} COMMAND [options]"

    def postOptions(self) -> None:
        """
        @raise UsageError: if no subcommand was chosen.
        """
        if self.subCommand is None:
            names: list[str] = [command[0] for command in self.subCommands]
            raise UsageError(f"say what to do: {', '.join(names[:-1])} or {names[-1]}")


class ArgumentOptions(CommandOptions):
    """
    Options with any number of arguments before, between and after them.
    """

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """
        Also parse options after arguments, which L{Options <twisted.python.usage.Options>} would take for arguments.
        """
        try:
            given, arguments = gnu_getopt(list(options or ()), self.shortOpt, self.longOpt)
        except GetoptError as error:
            raise UsageError(str(error)) from error
        words: list[str] = []
        for name, value in given:
            takesValue = f"{name[2:]}=" in self.longOpt or f"{name[1:]}:" in self.shortOpt
            words += [name, value] if takesValue else [name]
        super().parseOptions([*words, "--", *arguments])  # type: ignore[no-untyped-call]


class DirectoryOptions(ArgumentOptions):
    """
    Options with a directory before or after them.

    After parsing, C{directory} is a key as well.

    @cvar missing: the error message unless exactly one directory is given.
    """

    missing: ClassVar[str] = "name one directory"
    compData = completing(DIRECTORIES)

    def parseArgs(self, *directories: str) -> None:
        """
        @raise UsageError: unless there is one directory.
        """
        if len(directories) != 1 or not directories[0]:
            raise UsageError(self.missing)
        self["directory"] = directories[0]


class Progress:
    """
    How far a long work is, for the person who waits for it: one line that is written again each second, or a line every
    ten seconds where the output is no terminal.  Work that takes less writes nothing.
    """

    def __init__(
        self, what: str, totalBytes: int, stream: TextIO | None = None, seconds: Callable[[], float] = monotonicSeconds
    ) -> None:
        """
        @param what: what is being done, such as C{"reading"}.
        @param totalBytes: about how much there is to do.
        @param stream: by default the standard error.
        """
        self._what = what
        self._totalBytes = totalBytes
        self._stream = sys.stderr if stream is None else stream
        self._seconds = seconds
        self._isTerminal = self._stream.isatty()
        self._intervalSeconds = 1.0 if self._isTerminal else 10.0
        self._nextSeconds = seconds() + self._intervalSeconds
        self._doneBytes = 0
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()

    def __call__(self, sizeBytes: int) -> None:
        """
        Note that more bytes are done.
        """
        self._doneBytes += sizeBytes
        if self._seconds() >= self._nextSeconds:
            self._nextSeconds = self._seconds() + self._intervalSeconds
            # What grows meanwhile is done as well.
            totalBytes = max(self._totalBytes, self._doneBytes)
            percent = self._doneBytes * 100 // totalBytes
            line = f"{self._what}: {roundedBytes(self._doneBytes)} of {roundedBytes(totalBytes)}, {percent}%"
            if self._isTerminal:
                self._stream.write("\r" + line.ljust(self._width))
                self._width = max(self._width, len(line))
            else:
                self._stream.write(line + "\n")
            self._stream.flush()


def chosen(options: Options, option: str, variable: str, default: str) -> tuple[str, str]:
    """
    The value of an option, or else of an environment variable, or else a default.

    @return: what it was given by, for messages, and the value.
    @raise UsageError: if the variable is set to nothing.
    """
    given: str | None = options[option]
    if given is not None:
        return f"--{option}", given
    inherited = os.environ.get(variable, default)
    if not inherited.strip():
        raise UsageError(f"{variable} is empty: unset it, or give --{option}")
    return variable, inherited


def parseTimeout(text: str) -> float:
    """
    Read C{--timeout}, in seconds.

    @raise UsageError: if it is not a duration, or zero.
    """
    try:
        seconds = parseSeconds(text)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from error
    if not seconds:
        raise UsageError(f"--timeout {text}: nothing answers in no time; write 10s or the like")
    return seconds

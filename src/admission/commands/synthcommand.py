# -*- test-case-name: tests.offline.test_syntheticserver -*-
"""
The command C{admission synth}: a recording of clients that do not exist.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from twisted.python.usage import UsageError

from ..interfaces import IMemoryPoolFactory, IQuotaPolicyFactory
from ..offline.population import Population
from ..offline.syntheticserver import RecordingFailed, SyntheticServer, recordSynthetic
from ..plugins import PolicyKind, PolicyOptionsMixin
from ..units import parseBytes, parseSeconds
from .console import CommandFailed, DirectoryOptions

_ROWS_HELP = (
    "About how many requests there would be if nobody were throttled; by default one each second on each "
    "connection.  A client that has too much to do for its connections sends fewer."
)


class SynthOptions(DirectoryOptions, PolicyOptionsMixin):
    """
    After parsing, C{directory} and C{server} are keys as well: where to write, and a
    L{SyntheticServer}.
    """

    synopsis = "DIRECTORY [options]"
    examples = (
        "synth recordings/small --clients 20 --seconds 1m",
        "synth recordings/throttled --quota client-bytes:produce=64KiB:fetch=1M --hot 0.5",
        "synth recordings/short-of-memory --pool bounded:20MiB --rows 1000000",
    )
    note = (
        "The first of these is read, audited and replayed like a recording of a broker that was\n"
        "started with --export spark:recordings/small."
    )
    missing = "say where to write: admission synth DIRECTORY"
    longdesc = (
        "Makes up clients from a seed, lets them work against the real quota policies and the real memory pool in "
        "virtual time, and writes to DIRECTORY what a broker would have recorded.  Each client has some connections, "
        "and each of these thinks, sends a request, waits for the answer and thinks again; how large its requests are "
        "and how long it thinks depends on the seed, and never on the policies.  So two runs that differ in --quota "
        "or --pool alone show what the difference does, and the same arguments make the same recording."
    )
    policyKinds = (PolicyKind("quota", IQuotaPolicyFactory, repeatable=True), PolicyKind("pool", IMemoryPoolFactory))
    optParameters = [
        ["clients", "c", "200", "How many clients there are, 2000 at most."],
        ["connections", None, "4", "How many connections each of them has."],
        ["seconds", "t", "600", "For how long, in seconds or as in 10m."],
        ["seed", "s", "7", "The whole number that everything comes from."],
        ["rows", "n", None, _ROWS_HELP],
        [
            "hot",
            None,
            None,
            "The share of requests that one client has, as in 0.5; by default Zipf's law decides.",
        ],
        ["largest", None, "1MiB", "The largest request, and the largest answer."],
        ["begin", None, "2024-01-01T00:00:00+00:00", "When it happens: a date, or a time in ISO 8601."],
    ]

    def postOptions(self) -> None:
        """
        Check all options before anything is written.
        """
        # The population's names for them, and the options' names.
        rows, hot = self["rows"], self["hot"]
        numbers: dict[str, Any] = {
            "seed": self._parsed("seed", _wholeNumber),
            "clients": self._parsed("clients", _wholeNumber),
            "connections": self._parsed("connections", _wholeNumber),
            "seconds": self._parsed("seconds", parseSeconds),
            "requests": None if rows is None else self._parsed("rows", _wholeNumber),
            "hotShare": None if hot is None else self._parsed("hot", _fraction),
            "largestBytes": self._parsed("largest", parseBytes),
        }
        beginSeconds = self._parsed("begin", _moment)
        try:
            population = Population(**numbers)
        except ValueError as error:
            name, _, problem = str(error).partition(" ")
            option = {"requests": "rows", "hotShare": "hot", "largestBytes": "largest"}.get(name, name)
            raise UsageError(f"--{option} {problem}") from error
        try:
            self["server"] = SyntheticServer(population, self["quota"], self["pool"], beginSeconds)
        except ValueError as error:
            raise UsageError(str(error)) from error

    def _parsed(self, name: str, parse: Callable[[str], Any]) -> Any:
        try:
            return parse(self[name])
        except ValueError as error:
            raise UsageError(f"--{name}: {error}") from error


def run(options: SynthOptions, stdin: TextIO, stdout: TextIO) -> None:
    server: SyntheticServer = options["server"]
    population = server.population

    def progress(rows: int, seconds: float) -> None:
        sys.stderr.write(f"{rows} rows, {seconds:.0f} of {population.seconds:g} s\n")

    try:
        recordSynthetic(options["directory"], server, progress)
    except RecordingFailed as error:
        raise CommandFailed(str(error)) from error
    counts = ", ".join(f"{decision}={count}" for decision, count in server.decisions.items())
    stdout.write(f"{options['directory']}: {server.requestCount} requests ({counts})\n")


def _wholeNumber(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number; write a share such as 0.5") from None


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write one such as 2024-01-31 or 2024-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if not 1970 <= moment.year < 2200:
        raise ValueError(f"{text} is not from 1970 to 2199")
    return moment.timestamp()

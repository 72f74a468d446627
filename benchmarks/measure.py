"""
What the benchmarks share: clocks, medians, tables, the command line.

Everything is measured in CPU time, which other processes of the machine disturb less than time on the wall, and
competitors take turns within one run, so that what disturbs one disturbs all.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from attrs import define, field

from admission._version import isCompiled

KIB = 1 << 10
MIB = 1 << 20

_REST_SECONDS = 0.003
_MAX_LOOKS = 100

Row = Mapping[str, Any]

T = TypeVar("T")


def cpuSecondsOf(pid: int) -> float:
    """
    User and system time that a process has used, all its threads together, once it has come to rest.

    Linux numbers the CPU clock of a process by its id, see clock_getcpuclockid(3); it counts nanoseconds where
    /proc/PID/stat counts hundredths of a second, but is brought up to date only when the process pauses.

    @raise OSError: if there is no such process.
    """
    used, before = time.clock_gettime(~pid << 3 | 2), -1.0
    for _ in range(_MAX_LOOKS):
        if used == before:
            break
        time.sleep(_REST_SECONDS)
        used, before = time.clock_gettime(~pid << 3 | 2), used
    return used


def cpuSeconds() -> float:
    """
    The same for this process.
    """
    return time.process_time()


def wallSeconds() -> float:
    """
    Seconds since some point in the past.
    """
    return time.monotonic()


@contextmanager
def noCollections() -> Iterator[None]:
    """
    Keep the garbage collector away from a block.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def inTurns(competitors: Iterable[str], rounds: int, measure: Callable[[str], T], name: str) -> dict[str, list[T]]:
    """
    Measure all competitors in each round, every other round backwards.

    @param name: what is measured, for the line of progress.
    @return: for each competitor its figures, one of each round, in the order of the rounds.
    """
    names = list(competitors)
    figures: dict[str, list[T]] = {competitor: [] for competitor in names}
    for number in range(rounds):
        progress(f"{name}, round {number + 1} of {rounds}")
        for competitor in names if number % 2 == 0 else reversed(names):
            figures[competitor].append(measure(competitor))
    return figures


def median(figures: Sequence[float]) -> float:
    """
    The median.
    """
    return statistics.median(figures)


def spreadPercent(figures: Sequence[float]) -> float:
    """
    How far apart the middle half of the figures lies, in percent of their median: how noisy the machine was.
    """
    lower, middle, upper = statistics.quantiles(figures, n=4, method="inclusive")
    return (upper - lower) / middle * 100


def ratio(figures: Sequence[float], others: Sequence[float]) -> float:
    """
    How many times C{others} the C{figures} are: the median over the rounds, each round's figures being compared with
    each other, since they saw the same machine.
    """
    return statistics.median(one / other for one, other in zip(figures, others, strict=True))


def progress(text: str) -> None:
    """
    Tell a person who waits where we are.
    """
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def sizeName(sizeBytes: int) -> str:
    """
    A size in words: C{64 KiB}.
    """
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if sizeBytes >= unit and sizeBytes % unit == 0:
            return f"{sizeBytes // unit} {name}"
    return f"{sizeBytes} B"


@define
class Report:
    """
    What a benchmark found: named tables whose rows all have the same keys.

    @ivar title: the sentence above the tables.
    @ivar quick: whether this was the short run, good for seeing that it works.
    @ivar numbers: the values of further options, by their names.
    @ivar tables: the rows by the name of their table.
    """

    title: str
    quick: bool
    numbers: Mapping[str, int] = field(factory=dict)
    tables: dict[str, list[Row]] = field(factory=dict)

    def add(self, table: str, **row: Any) -> None:
        """
        Put a row into a table.  Where the hot modules are compiled, it says so in a column of its own.
        """
        self.tables.setdefault(table, []).append({**row, "compiled": "yes"} if isCompiled() else row)

    def asJson(self) -> str:
        """
        Everything as JSON, and what it was measured on.
        """
        loads = os.getloadavg()
        machine = {
            "python": platform.python_version(),
            "cpuCount": os.cpu_count(),
            "loadAverage": round(loads[0], 2),
        }
        return json.dumps({"title": self.title, "quick": self.quick, "machine": machine, **self.tables}, indent=2)

    def asText(self) -> str:
        """
        Everything for people.
        """
        lines = [
            self.title,
            f"CPython {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        ]
        if self.quick:
            lines.append("A quick run: good for seeing that it works, not for figures.")
        for name, rows in self.tables.items():
            lines += "", name, *_aligned(rows)
        return "\n".join(lines)


def _aligned(rows: Sequence[Row]) -> Iterator[str]:
    cells = [[*rows[0]], *([_cell(key, value) for key, value in row.items()] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    for line in cells:
        yield "  " + "  ".join(
            # Words to the left, figures to the right.
            cell.ljust(width) if isinstance(value, str) else cell.rjust(width)
            for cell, width, value in zip(line, widths, rows[0].values(), strict=True)
        )


def _cell(key: str, value: Any) -> str:
    if key.endswith("Bytes") and isinstance(value, int):
        return sizeName(value)
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)


def run(
    title: str, description: str, measure: Callable[[Report], None], numbers: Mapping[str, str] = MappingProxyType({})
) -> None:
    """
    The command line of a benchmark: C{--json} and C{--quick}.

    @param measure: fills the report that it is given.
    @param numbers: further options, each with its help; their values are in the report.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print JSON and no tables")
    parser.add_argument("--quick", action="store_true", help="take few seconds and measure little")
    for name, text in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=0, help=text)
    options = parser.parse_args()
    report = Report(title, options.quick, {name: getattr(options, name) for name in numbers})
    measure(report)
    progress("")
    print(report.asJson() if options.json else report.asText())

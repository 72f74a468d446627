"""
Draws a site under two attacks at a time, as it is and protected: its memory, and how long a client of good manners
waits.

C{python -m tests.attacks.sitesplot FILE}, a minute; the attacks are those of L{tests.attacks.siteattacks}, in the long
form if that is asked for.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from attrs import frozen
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MultipleLocator, NullLocator
from matplotlib.transforms import Transform

from tests.attacks.siteattacks import ATTACKS
from tests.attacks.test_sites import POOL_BYTES, Good, anonymousBytes
from tests.kit.attack import MIB, WAIT_SECONDS
from tests.kit.brokerprocess import ENVIRONMENT
from tests.kit.plotting import PLAIN, PROTECTED, figureOf, finish, plotLine, save

READERS, FORMS = "silent readers", "forms of many fields"

_CALM_SECONDS = 5.0
_ATTACKED_SECONDS = 15.0
_EVERY_SECONDS = 0.05
_SHOWN_SECONDS = 0.25
"""Of the waits of so long the longest is drawn."""

Points = Sequence[tuple[float, float]]
"""Seconds since the attacks began, and a value."""


@frozen
class Course:
    """
    What became of a site.

    @ivar mebibytes: its memory.
    @ivar waits: in seconds, for each request of the good client, by when it was sent.
    """

    mebibytes: Points
    waits: Points

    @property
    def peakMebibytes(self) -> float:
        """The most memory."""
        return max(value for _, value in self.mebibytes)

    @property
    def size(self) -> str:
        """The same in words."""
        return f"{self.peakMebibytes / 1024:.1f} GiB" if self.peakMebibytes >= 1000 else f"{self.peakMebibytes:.0f} MiB"

    @property
    def longest(self) -> Points:
        """The longest waits, one for each quarter of a second in which anything was asked."""
        found: dict[float, float] = {}
        for at, value in self.waits:
            place = at // _SHOWN_SECONDS * _SHOWN_SECONDS
            found[place] = max(found.get(place, 0.0), value)
        return [*found.items()]

    @property
    def longestWait(self) -> str:
        """The longest that any request waited, in words."""
        return shown(max(value for _, value in self.waits))


def started(module: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that ends with its standard input."""
    command = [sys.executable, "-m", f"tests.attacks.{module}", *arguments]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def lineOf(process: subprocess.Popen[str]) -> str:
    """Wait for what a process says when it has begun."""
    assert process.stdout is not None
    return process.stdout.readline()


def course(how: str) -> Course:
    """Attack a site, C{plain} or C{protected}."""
    server = started("attackedsite", how, str(POOL_BYTES))
    ports = lineOf(server).split()[:2]
    good, isOver = Good(server.pid, int(ports[0])), threading.Event()
    thread = threading.Thread(target=good.run, args=(isOver,))
    thread.start()
    memory: list[tuple[float, float]] = []

    def lookFor(seconds: float) -> None:
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            memory.append((now, anonymousBytes(server.pid) / MIB))
            time.sleep(_EVERY_SECONDS)

    lookFor(_CALM_SECONDS)
    attackers = [started("siteattacks", attack, *ports) for attack in (READERS, FORMS)]
    lineOf(attackers[0])
    begun = time.monotonic()
    lookFor(_ATTACKED_SECONDS)
    isOver.set()
    thread.join()
    for process in (*attackers, server):
        process.kill()
        process.communicate()
    waits = zip(good.asked, good.latencies, strict=True)
    return Course([(at - begun, size) for at, size in memory], [(at - begun, wait) for at, wait in waits])


def shown(seconds: float) -> str:
    """A time as one says it."""
    return f"{seconds:.2g} s" if seconds >= 1 else f"{float(f'{1000 * seconds:.2g}'):g} ms"


def main(path: str) -> None:
    """Draw it, and print its title."""
    courses = {how: course(how) for how in (PLAIN, PROTECTED)}
    plain, protected = courses[PLAIN], courses[PROTECTED]
    title = (
        f"Under attack, a plain site takes {plain.size} and its visitors wait for up to {plain.longestWait}.\n"
        f"The same site, protected, takes {protected.size}, and they wait for up to {protected.longestWait}."
    )
    figure = figureOf(title, 5.6)
    memory, waits = figure.subplots(2, 1, sharex=True)
    for how, each in courses.items():
        for axes, points in ((memory, each.mebibytes), (waits, each.longest)):
            seconds, values = zip(*points, strict=True)
            plotLine(axes, how, seconds, values, label=values[-1])
    memory.set(ylim=(0, 1.4 * plain.peakMebibytes), xlim=(-_CALM_SECONDS, _ATTACKED_SECONDS))
    memory.xaxis.set_major_locator(MultipleLocator(5))
    finish(memory, "memory of the site's process, in MiB")
    waits.set(yscale="log", ylim=(1e-4, 2 * WAIT_SECONDS), xlabel="seconds since the attack began")
    waits.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: shown(seconds)))
    waits.yaxis.set_minor_locator(NullLocator())
    waits.axhline(WAIT_SECONDS, color="0.4", linewidth=0.8)
    _note(waits, "gives up", (-_CALM_SECONDS, WAIT_SECONDS), "data")
    finish(waits, "how long a well-behaved visitor waits for a small page")
    for axes in (memory, waits):
        axes.axvspan(0, _ATTACKED_SECONDS, color="0.93", zorder=0)
    readers, forms = ATTACKS[READERS].clients, ATTACKS[FORMS].clients
    words = f"under attack: {readers} visitors ask for 16 MiB and read nothing,\n{forms} send huge forms"
    _note(memory, words, (0, 1), memory.get_xaxis_transform())
    save(figure, path)
    print(title)


def _note(axes: Axes, words: str, place: tuple[float, float], coordinates: str | Transform) -> None:
    axes.annotate(words, place, (4, -4), coordinates, textcoords="offset points", va="top", fontsize=11)


if __name__ == "__main__":
    main(sys.argv[1])

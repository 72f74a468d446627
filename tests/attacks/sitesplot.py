"""
Draws a site under attack, as it is and protected: its memory, and how long a client of good manners waits.

C{python -m tests.attacks.sitesplot FILE}
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.attacks.test_sites import POOL_BYTES, Good, anonymousBytes
from tests.kit.attack import MIB
from tests.kit.brokerprocess import ENVIRONMENT

SHOWN = ("silent readers", "forms of many fields")

_CALM_SECONDS = 3.0
_ATTACKED_SECONDS = 12.0
_EVERY_SECONDS = 0.05

Course = Sequence[tuple[float, float, float]]
"""Moments: seconds since the attack began, MiB of memory, and milliseconds until an answer."""


def started(module: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that ends with its standard input."""
    command = [sys.executable, "-m", f"tests.attacks.{module}", *arguments]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def course(how: str, attack: str) -> Course:
    """What becomes of a site, C{plain} or C{protected}."""
    server = started("attackedsite", how, str(POOL_BYTES))
    assert server.stdout is not None
    ports = server.stdout.readline().split()
    good, isOver = Good(server.pid, int(ports[0])), threading.Event()
    thread = threading.Thread(target=good.run, args=(isOver,))
    thread.start()
    moments: list[tuple[float, float, float]] = []
    begun, attacker = time.monotonic() + _CALM_SECONDS, None
    while (now := time.monotonic() - begun) < _ATTACKED_SECONDS:
        if attacker is None and now >= 0:
            attacker = started("siteattacks", attack, *ports[:2])
        since = len(good.latencies)
        time.sleep(_EVERY_SECONDS)
        answered = [1000 * each for each in good.latencies[since:]]
        # One that has not come yet takes longer still.
        waited = max(answered) if answered else (moments[-1][2] if moments else 0.0) + 1000 * _EVERY_SECONDS
        moments.append((now, anonymousBytes(server.pid) / MIB, waited))
    isOver.set()
    thread.join()
    for process in filter(None, (attacker, server)):
        process.kill()
        process.communicate()
    return moments


def main(path: str) -> None:
    """Draw it."""
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    for column, attack in enumerate(SHOWN):
        memory, waits = (figure.add_subplot(2, 2, 1 + column + 2 * row) for row in range(2))
        for how in ("plain", "protected"):
            moments = course(how, attack)
            seconds, mebibytes, milliseconds = zip(*moments, strict=True)
            memory.plot(seconds, mebibytes, label=how)
            waits.plot(seconds, [max(each, 0.1) for each in milliseconds], label=how, linewidth=0.8)
        memory.set_title(attack, fontsize="medium")
        memory.set(ylabel="MiB of memory", ylim=(0, None))
        waits.set(ylabel="ms until an answer", yscale="log", xlabel="seconds of the attack")
        for axes in (memory, waits):
            axes.grid(alpha=0.3)
            axes.legend(loc="center right")
    figure.savefig(path, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(sys.argv[1])

"""
What clients still get of a site that is asked for three times what it can do: as it is, and protected.

A page takes 20 ms, one at a time, so that the site can answer 50 requests a second.  It is asked 150 times a second, at
random moments that a seed says, whether it answers or not, by clients that give up after half a second.  An answer
counts if it came in time.

    python -m benchmarks.goodput [--seconds 20] [--seed 0] [--plot FILE] [--json] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from statistics import quantiles

from attrs import define, field

from .measure import Report, progress
from .servers import running

WORK_SECONDS = 0.02
CAPACITY = 50
"""How many requests a second the site can answer."""

OFFERED = 150
PATIENCE_SECONDS = 0.5

QUOTA = "concurrency:total=1:queue=100:wait=2s"

SITES = {
    "plain": ["no"],
    "plain, looks for hang-ups": ["yes"],
    "protected": ["no", QUOTA],
}

_ANSWERED, _REFUSED = 200, 503

_REQUEST = b"GET /page HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n"


@define
class Outcomes:
    """
    What became of the requests to a site.

    @ivar answeredAfter: for each answer that came in time, how long it took.
    @ivar answeredIn: how many came in time in each second, by when they came.
    """

    askedCount: int = 0
    refusedCount: int = 0
    gaveUpCount: int = 0
    answeredAfter: list[float] = field(factory=list)
    answeredIn: Counter[int] = field(factory=Counter)


def arrivals(seed: int, seconds: float) -> Iterator[float]:
    """
    The moments when clients ask.
    """
    random, at = Random(seed), 0.0
    while (at := at + random.expovariate(OFFERED)) < seconds:
        yield at


async def askOnce(port: int, begin: float, at: float, outcomes: Outcomes) -> None:
    """
    Be a client that asks once, and has left half a second after it wanted to ask.
    """
    loop = asyncio.get_running_loop()
    outcomes.askedCount += 1
    writer = None
    try:
        async with asyncio.timeout_at(begin + at + PATIENCE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_REQUEST)
            answer = await reader.read()
        status = int(answer.split(b" ", 2)[1])
        if status == _ANSWERED:
            now = loop.time() - begin
            outcomes.answeredAfter.append(now - at)
            outcomes.answeredIn[int(now)] += 1
        elif status == _REFUSED:
            outcomes.refusedCount += 1
        else:
            raise RuntimeError(f"the site answered {answer!r}")
    except TimeoutError:
        outcomes.gaveUpCount += 1
    finally:
        if writer is not None:
            writer.transport.abort()


async def visit(ports: dict[str, int], seed: int, seconds: float) -> dict[str, Outcomes]:
    """
    Have all sites asked at the same moments.
    """
    outcomes = {name: Outcomes() for name in ports}
    begin = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as clients:
        for at in arrivals(seed, seconds):
            await asyncio.sleep(begin + at - asyncio.get_running_loop().time())
            for name, port in ports.items():
                clients.create_task(askOnce(port, begin, at, outcomes[name]))
            progress(f"{at:.0f} of {seconds:g} s")
    return outcomes


def percentOfCapacity(outcomes: Outcomes, seconds: float) -> float:
    """
    How much was answered in time of what the site could answer until the last client had left.
    """
    return len(outcomes.answeredAfter) / (CAPACITY * (seconds + PATIENCE_SECONDS)) * 100


def plot(path: str, outcomes: dict[str, Outcomes], seconds: float) -> None:
    """
    Draw the answers that came in time, as a share of what the site can do, over time.
    """
    from tests.kit.plotting import PLAIN, PROTECTED, figureOf, finish, plotLine, save

    stepSeconds = max(int(seconds) // 60, 1)
    starts = range(0, int(seconds) // stepSeconds * stepSeconds, stepSeconds)
    done = {name: percentOfCapacity(each, seconds) for name, each in outcomes.items()}
    figure = figureOf(
        f"Asked for three times what it can do, the plain site does {done[PLAIN]:.0f} % of that in time.\n"
        f"The same site, protected, does {done[PROTECTED]:.0f} %.",
        3.8,
    )
    axes = figure.subplots()
    for name, each in outcomes.items():
        counts = [sum(each.answeredIn[start + second] for second in range(stepSeconds)) for start in starts]
        shares = [count / (CAPACITY * stepSeconds) * 100 for count in counts]
        plotLine(axes, name, starts, shares, label=done[name] if name == PLAIN else max(done[name], 14))
    axes.set(ylim=(-2, 105), xlim=(0, seconds), xlabel="seconds")
    finish(axes, "answers within half a second, in % of what the site can do")
    save(figure, path)


def main() -> None:
    """
    The command line.
    """
    parser = argparse.ArgumentParser(description="What clients still get of a site that is asked for too much.")
    parser.add_argument("--seconds", type=float, default=20.0, help="for how long; 20 by default, 300 to be sure")
    parser.add_argument("--seed", type=int, default=0, help="of the moments when clients ask")
    parser.add_argument("--plot", metavar="FILE", help="where to draw it, as PNG")
    parser.add_argument("--json", action="store_true", help="print JSON and no tables")
    parser.add_argument("--quick", action="store_true", help="the same for three seconds")
    options = parser.parse_args()
    seconds = 3.0 if options.quick else options.seconds
    report = Report(
        f"Answers in time of a site that can answer {CAPACITY} requests a second, asked {OFFERED} for {seconds:g} s",
        options.quick,
    )
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(running("slowWeb", str(WORK_SECONDS), *arguments))
            for name, arguments in SITES.items()
        }
        ports = {name: server.port for name, server in servers.items()}
        outcomes = asyncio.run(visit(ports, options.seed, seconds))
    for name, each in outcomes.items():
        inTime = len(each.answeredAfter)
        cuts = quantiles(each.answeredAfter, n=100, method="inclusive") if inTime > 1 else [0.0] * 99
        report.add(
            "goodput",
            site=name,
            asked=each.askedCount,
            inTime=inTime,
            percentOfCapacity=percentOfCapacity(each, seconds),
            refused=each.refusedCount,
            gaveUp=each.gaveUpCount,
            medianMilliseconds=cuts[49] * 1000,
            p99Milliseconds=cuts[98] * 1000,
        )
    if options.plot:
        plot(options.plot, outcomes, seconds)
    progress("")
    print(report.asJson() if options.json else report.asText())


if __name__ == "__main__":
    main()

"""
What it costs to have requests wait for their completion or their timeout, in a purgatory and otherwise.

    python -m benchmarks.purgatory [--json] [--quick]
"""

from __future__ import annotations

import gc
import tracemalloc
from itertools import islice

from twisted.internet.task import Clock

from admission.operations import DelayedOperation
from admission_plugins.purgatory import WheelPurgatory
from admission_plugins.wheel import TimingWheel

from .loops import Processes
from .measure import MIB, Report, inTurns, median, ratio, run, spreadPercent
from .parking import ADD_TIMEOUT, CALL_LATER, NOTHING, TIMEOUT_SECONDS, WAYS
from .workload import DATA_BYTES, KEYS, LATENCIES, Outcome, Scenario, endlessKeys, measureLoad

MAX_REQUESTS = 1_000_000
OFFERED_PER_SECOND = [105_000, 25_000]


class Opened(DelayedOperation):
    """
    Completes as soon as it is checked after C{isOpen} was set.
    """

    __slots__ = ("data",)

    isOpen = False

    def __init__(self) -> None:
        super().__init__(TIMEOUT_SECONDS)
        self.data = bytes(DATA_BYTES)

    def tryComplete(self) -> bool:
        """
        See L{DelayedOperation}.
        """
        return self.isOpen and self.forceComplete()


def measureReturn(count: int) -> tuple[int, int]:
    """
    Watch operations, then complete them all by their keys.

    @return: the memory that Python had allocated at most, and what is left of it, both in bytes.
    """
    purgatory = WheelPurgatory(TimingWheel(Clock()))
    # They exist before and afterwards.
    keys = list(islice(endlessKeys(), count))
    Opened.isOpen = False
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for each in keys:
            purgatory.tryCompleteElseWatch(Opened(), each)
        assert purgatory.watched == count
        Opened.isOpen = True
        for key in KEYS:
            purgatory.checkAndComplete(key)
        assert purgatory.watched == 0
        gc.collect()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - before, after - before


def measureSaturation(report: Report, processes: Processes) -> None:
    """
    Requests as fast as they can be made.
    """
    rounds, warmSeconds, seconds = (1, 0.22, 0.05) if report.quick else (3, 0.5, 1.2)
    for workload in LATENCIES:

        def measure(way: str, workload: str = workload) -> Outcome:
            return processes.run(measureLoad, Scenario(way, workload, 0, warmSeconds, MAX_REQUESTS, seconds))

        outcomes = inTurns(WAYS, rounds, measure, f"saturation, {workload}")
        rates = {way: [outcome.requestsPerSecond for outcome in each] for way, each in outcomes.items()}
        for way, each in outcomes.items():
            if way == NOTHING:
                report.add("harness", workload=workload, cpuMicroseconds=cpuMicroseconds(each))
                continue
            report.add(
                "saturation",
                workload=workload,
                way=way,
                requestsPerSecond=median(rates[way]),
                cpuMicroseconds=cpuMicroseconds(each),
                **lateness(each),
                ratioToCallLater=ratio(rates[way], rates[CALL_LATER]),
                spreadPercent=spreadPercent(rates[way]) if rounds > 1 else 0.0,
            )


def measureSteady(report: Report, processes: Processes) -> None:
    """
    Requests that arrive by themselves, half of which time out.
    """
    rounds, warmSeconds, seconds = (1, 0.22, 0.05) if report.quick else (2, 0.5, 1.5)
    for perSecond in OFFERED_PER_SECOND:

        def measure(way: str, perSecond: int = perSecond) -> Outcome:
            scenario = Scenario(way, "heavy", perSecond, warmSeconds, MAX_REQUESTS, seconds)
            return processes.run(measureLoad, scenario)

        # Those that cannot keep up with the higher rate would only show how they fail.
        ways = [way for way in WAYS if way != NOTHING and (way != ADD_TIMEOUT or perSecond < max(OFFERED_PER_SECOND))]
        outcomes = inTurns(ways, rounds, measure, f"{perSecond:,} requests/s")
        for way, each in outcomes.items():
            report.add(
                "steady",
                offeredPerSecond=perSecond,
                way=way,
                sustained=all(outcome.sustained for outcome in each),
                cpuMicroseconds=cpuMicroseconds(each),
                **lateness(each),
                largestLagMilliseconds=max(outcome.largestLagMilliseconds for outcome in each),
                peakKibibytes=max(outcome.peakKibibytes for outcome in each),
            )


def measureMemory(report: Report, processes: Processes) -> None:
    """
    What is left of a million operations.
    """
    operations = 50_000 if report.quick else 1_000_000
    peak, left = processes.run(measureReturn, operations)
    report.add(
        "memory",
        operations=operations,
        peakMebibytes=peak / MIB,
        leftBytes=left,
        leftPercent=left / peak * 100,
    )


def cpuMicroseconds(outcomes: list[Outcome]) -> float:
    """
    For each request.
    """
    return median([outcome.cpuMicroseconds for outcome in outcomes])


def lateness(outcomes: list[Outcome]) -> dict[str, float]:
    """
    How late requests timed out.
    """
    return {
        "lateP50Milliseconds": median([outcome.lateMilliseconds[49] for outcome in outcomes]),
        "lateP99Milliseconds": median([outcome.lateMilliseconds[98] for outcome in outcomes]),
    }


def measure(report: Report) -> None:
    """
    Everything.
    """
    with Processes(fresh=not report.quick) as processes:
        measureSaturation(report, processes)
        measureSteady(report, processes)
        measureMemory(report, processes)


if __name__ == "__main__":
    run(
        "Requests that wait: CPU time for each, and how late they time out",
        "What it costs to have requests wait for their completion or their timeout.",
        measure,
    )

"""
What it costs to have requests wait for their completion or their timeout, in a purgatory and otherwise.

    python -m benchmarks.purgatory [--json] [--quick]

The workload is that of Kafka's own benchmark of its purgatory.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cache
from itertools import accumulate, cycle, islice, repeat
from math import ceil, log
from pathlib import Path
from random import Random
from statistics import NormalDist, quantiles
from typing import Any

from attrs import frozen
from twisted.internet.task import Clock

from admission.operations import DelayedOperation, KeySet
from admission_plugins.purgatory import WheelPurgatory
from admission_plugins.wheel import TimingWheel

from .loops import Processes, Turns
from .measure import MIB, Report, cpuSeconds, inTurns, median, ratio, run, spreadPercent
from .parking import ADD_TIMEOUT, ASYNCIO, CALL_LATER, NOTHING, TIMEOUT_SECONDS, WAYS, Keys, Parking

LATENCIES = {"light": (0.020, 0.060), "heavy": (0.200, 0.400)}
"""The median and the upper quartile of how long requests would take without a timeout, in seconds."""

KEYS = [f"key {number}" for number in range(100)]
KEYS_EACH = 3
FIXED, FRESH = "fixed", "fresh"

DATA_BYTES = 100
BATCH = 100
"""How many requests arrive in a turn of the loop when it is saturated."""

MOST_REQUESTS = 1_000_000

OFFERED_PER_SECOND = [105_000, 25_000]
PAUSE_SECONDS = 0.001
"""How long the loop may rest when it is not."""

MOST_LAG_SECONDS = 0.25
"""Who falls further behind what is offered does not sustain it."""

_RANDOM_REQUESTS = 1 << 16
"""Random numbers are drawn for so many requests and then used again."""

_TICKS_PER_SECOND = 1000
# More than the timeout.
_CALENDAR_TICKS = 256

# Each request reads the clock; this spares a frame.
_seconds = time.monotonic


@frozen
class Scenario:
    """
    What to measure.

    @ivar way: one of L{WAYS}.
    @ivar workload: one of L{LATENCIES}.
    @ivar keys: C{FIXED}: all under one L{KeySet}; C{FRESH}: each under a tuple of its own.
    @ivar offeredPerSecond: how many requests arrive; C{0}: as many as can be made.
    @ivar warmSeconds: begin to measure after so many seconds.
    @ivar requests: stop measuring after so many requests.
    @ivar seconds: stop measuring after so many seconds.
    """

    way: str
    workload: str
    keys: str
    offeredPerSecond: int
    warmSeconds: float
    requests: int
    seconds: float


@frozen
class Outcome:
    """
    What was found.

    @ivar requests: how many were made while measuring.
    @ivar cpuSeconds: what all of it took.
    @ivar lateMilliseconds: how much after their deadline requests timed out, the percentiles from the first on.
    @ivar largestLagMilliseconds: how far the load was behind what was offered.
    @ivar peakKibibytes: by how much the process grew.
    """

    requests: int
    cpuSeconds: float
    lateMilliseconds: list[float]
    largestLagMilliseconds: float
    peakKibibytes: int

    @property
    def cpuMicroseconds(self) -> float:
        """
        For each request.
        """
        return self.cpuSeconds / self.requests * 1e6

    @property
    def requestsPerSecond(self) -> float:
        """
        On a core of its own.
        """
        return self.requests / self.cpuSeconds

    @property
    def sustained(self) -> bool:
        """
        Whether the load kept up with what was offered.
        """
        return self.largestLagMilliseconds < MOST_LAG_SECONDS * 1000


@cache
def completionTicks(workload: str) -> array[int]:
    """
    After how many milliseconds each request completes; C{0} if that is after its timeout.
    """
    half, threeQuarters = LATENCIES[workload]
    sigma = log(threeQuarters / half) / NormalDist().inv_cdf(0.75)
    random = Random(1)
    latencies = (random.lognormvariate(log(half), sigma) for _ in range(_RANDOM_REQUESTS))
    return array("h", (ceil(seconds * _TICKS_PER_SECOND) if seconds < TIMEOUT_SECONDS else 0 for seconds in latencies))


@cache
def drawnKeys() -> list[list[str]]:
    """
    The keys of each request.
    """
    random = Random(2)
    return [random.sample(KEYS, KEYS_EACH) for _ in range(_RANDOM_REQUESTS)]


def keysOf(kind: str) -> Iterable[Keys]:
    """
    What each request is watched under, for ever.  Each tuple is made when it is asked for.
    """
    if kind == FIXED:
        return repeat(KeySet(KEYS[:KEYS_EACH]))
    return zip(*(cycle([keys[place] for keys in drawnKeys()]) for place in range(KEYS_EACH)), strict=True)


def arrivalSeconds(perSecond: int, count: int) -> array[float]:
    """
    When each request arrives.
    """
    random = Random(3)
    return array("d", accumulate(random.expovariate(perSecond) for _ in range(count)))


class Load:
    """
    Makes and completes requests, some in each turn.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._requests = zip(cycle(completionTicks(scenario.workload)), keysOf(scenario.keys), strict=True)
        self._arrivals = array("d")
        if scenario.offeredPerSecond:
            # More than are needed, since the end is only looked for between turns.
            seconds = scenario.warmSeconds + scenario.seconds + 1.0
            self._arrivals = arrivalSeconds(scenario.offeredPerSecond, int(scenario.offeredPerSecond * seconds))
        self._late = array("d")
        self._made = 0
        self._lagSeconds = 0.0

    def expired(self, deadline: float) -> None:
        """
        A request has timed out.
        """
        self._late.append(_seconds() - deadline)

    def run(self, parking: Parking) -> Outcome:
        """
        Everything.
        """
        outcomes: list[Outcome] = []
        parking.loop.run(self._turns(parking, outcomes.append))
        (outcome,) = outcomes
        return outcome

    def _turns(self, parking: Parking, report: Callable[[Outcome], object]) -> Turns:
        scenario = self._scenario
        pauseSeconds = PAUSE_SECONDS if scenario.offeredPerSecond else 0.0
        turn = self._turn(parking)
        residentKibibytes = memoryKibibytes("VmRSS")
        started = _seconds()
        while _seconds() - started < scenario.warmSeconds:
            turn(started)
            yield pauseSeconds
        self._late = array("d")
        self._lagSeconds = 0.0
        madeBefore, cpuBefore, measuringSince = self._made, cpuSeconds(), _seconds()
        while (self._made - madeBefore < scenario.requests and _seconds() - measuringSince < scenario.seconds) or (
            parking.timesOut and len(self._late) < 2
        ):
            turn(started)
            yield pauseSeconds
        report(
            Outcome(
                requests=self._made - madeBefore,
                cpuSeconds=cpuSeconds() - cpuBefore,
                lateMilliseconds=[1000 * late for late in quantiles(self._late, n=100)] if parking.timesOut else [],
                largestLagMilliseconds=1000 * self._lagSeconds,
                peakKibibytes=memoryKibibytes("VmHWM") - residentKibibytes,
            )
        )

    def _turn(self, parking: Parking) -> Callable[[float], None]:
        """
        What to do in each turn: complete what is due, then make what has arrived.
        """
        park, complete, requests = parking.park, parking.complete, self._requests
        # What completes in each of the milliseconds to come.
        calendar: list[list[Any]] = [[] for _ in range(_CALENDAR_TICKS)]
        passed = int(_seconds() * _TICKS_PER_SECOND)

        def turn(started: float) -> None:
            nonlocal passed
            now = _seconds()
            nowTick = int(now * _TICKS_PER_SECOND)
            for tick in range(max(passed, nowTick - _CALENDAR_TICKS) + 1, nowTick + 1):
                due = calendar[tick % _CALENDAR_TICKS]
                for request in due:
                    complete(request)
                due.clear()
            passed = nowTick
            number = self._made
            for ticks, keys in islice(requests, self._arrived(now - started)):
                request = park(number, bytes(DATA_BYTES), keys, _seconds() + TIMEOUT_SECONDS)
                if ticks:
                    calendar[(nowTick + ticks) % _CALENDAR_TICKS].append(request)
                number += 1
            self._made = number

        return turn

    def _arrived(self, elapsedSeconds: float) -> int:
        """
        How many requests to make now.
        """
        arrivals, made = self._arrivals, self._made
        if not arrivals:
            return BATCH
        count = bisect_right(arrivals, elapsedSeconds, made) - made
        if count:
            self._lagSeconds = max(self._lagSeconds, elapsedSeconds - arrivals[made])
        return count


def memoryKibibytes(name: str) -> int:
    """
    A figure of this process: C{VmRSS}, what is resident, or C{VmHWM}, the most that ever was.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"this system does not tell {name}")


def measureLoad(scenario: Scenario) -> Outcome:
    """
    One scenario in this process.
    """
    load = Load(scenario)
    return load.run(WAYS[scenario.way](load.expired))


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


def measureReturn(kind: str, count: int) -> tuple[int, int]:
    """
    Watch operations, then complete them all by their keys.

    @return: the memory that Python had allocated at most, and what is left of it, both in bytes.
    """
    purgatory = WheelPurgatory(TimingWheel(Clock()))
    # They exist before and afterwards.
    keys = list(islice(keysOf(kind), count))
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
        for keys in (FIXED, FRESH):
            # Ways without keys are as fast with others; of them, the one to compare with is enough.
            ways = [way for way in WAYS if keys == FIXED or way not in (ADD_TIMEOUT, ASYNCIO)]

            def measure(way: str, workload: str = workload, keys: str = keys) -> Outcome:
                return processes.run(measureLoad, Scenario(way, workload, keys, 0, warmSeconds, MOST_REQUESTS, seconds))

            outcomes = inTurns(ways, rounds, measure, f"saturation, {workload}, {keys} keys")
            rates = {way: [outcome.requestsPerSecond for outcome in each] for way, each in outcomes.items()}
            for way, each in outcomes.items():
                if way == NOTHING:
                    report.add("harness", workload=workload, keys=keys, cpuMicroseconds=cpuMicroseconds(each))
                    continue
                report.add(
                    "saturation",
                    workload=workload,
                    keys=keys,
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
            scenario = Scenario(way, "heavy", FIXED, perSecond, warmSeconds, MOST_REQUESTS, seconds)
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
    for keys in (FIXED, FRESH):
        peak, left = processes.run(measureReturn, keys, operations)
        report.add(
            "memory",
            keys=keys,
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

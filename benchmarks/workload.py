"""
The workload of Kafka's own benchmark of its purgatory, made as fast as possible or at a given rate.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cache
from itertools import accumulate, cycle, islice
from math import ceil, log
from pathlib import Path
from random import Random
from statistics import NormalDist, quantiles
from typing import Any

from attrs import frozen

from admission.garbage import GarbageCollection

from .loops import EpollLoop, Turns
from .measure import cpuSeconds
from .parking import TIMEOUT_SECONDS, WAYS, Keys, Parking

LATENCIES = {"light": (0.020, 0.060), "heavy": (0.200, 0.400)}
"""The median and the upper quartile of how long requests would take without a timeout, in seconds."""

KEYS = [f"key {number}" for number in range(100)]
KEYS_EACH = 3

DATA_BYTES = 100
BATCH = 100
"""How many requests arrive in a turn of the loop when it is saturated."""

PAUSE_SECONDS = 0.001
"""How long the loop may rest when it is not."""

MAX_LAG_SECONDS = 0.25
"""A server that falls further behind the load that is offered does not sustain it."""

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
    @ivar offeredPerSecond: how many requests arrive; C{0}: as many as can be made.
    @ivar warmSeconds: begin to measure after so many seconds.
    @ivar requests: stop measuring after so many requests.
    @ivar seconds: stop measuring after so many seconds.
    """

    way: str
    workload: str
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
        return self.largestLagMilliseconds < MAX_LAG_SECONDS * 1000


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


def endlessKeys() -> Iterable[Keys]:
    """
    What each request is watched under, for ever.  Each tuple is made when it is asked for, as by a broker's Fetch.
    """
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
        self._requests = zip(cycle(completionTicks(scenario.workload)), endlessKeys(), strict=True)
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
        with ExitStack() as ended:
            if self._scenario.offeredPerSecond and isinstance(parking.loop, EpollLoop):
                # As in the broker: what is late should not be so because of a collection of everything.
                collection = GarbageCollection(parking.loop.reactor)
                collection.start()
                ended.callback(collection.stop)
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

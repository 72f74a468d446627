"""
What timers cost: setting, cancelling and expiring them while many are outstanding, and their memory.

    python -m benchmarks.timers [--json] [--quick]
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from random import Random
from typing import Any

from attrs import frozen
from twisted.internet.interfaces import IReactorTime

from admission_plugins.wheel import TimingWheel

from .loops import AsyncioLoop, EpollLoop, HeapLoop, Loop, Processes, SteppedTime, Turns
from .measure import Report, cpuSeconds, inTurns, median, ratio, run, spreadPercent

MAX_DELAY_SECONDS = 60.0
PER_TURN = 1000
"""How many timers are set in a turn of the loop, so that the turn itself does not count."""

EXPIRING_PER_TURN = 200
"""About how many expire in a turn: fewer, because wheels limit what they do in one."""

_RANDOM_DELAYS = 1 << 17

CALL_LATER = "reactor.callLater"


class WheelLoop:
    """
    A timing wheel on the epoll reactor.
    """

    def __init__(self, time: SteppedTime) -> None:
        """
        @param time: what the reactor goes by.
        """
        loop = EpollLoop(time)
        self.callLater = TimingWheel(IReactorTime(loop.reactor)).callLater
        self.cancel = loop.cancel
        self.run = loop.run


LOOPS: dict[str, Callable[[SteppedTime], Loop]] = {
    CALL_LATER: EpollLoop,
    "asyncio": AsyncioLoop,
    "heapq": HeapLoop,
    "TimingWheel": WheelLoop,
}


@frozen
class Costs:
    """
    What was found, for each timer.

    @ivar cancelSeconds: replacing a timer by another.
    @ivar expireSeconds: setting a timer, and calling what it calls.
    """

    cancelSeconds: float
    expireSeconds: float


def randomDelays() -> Iterator[float]:
    """
    Delays of up to a minute, for ever.
    """
    random = Random(1)
    delays = [random.uniform(0.001, MAX_DELAY_SECONDS) for _ in range(_RANDOM_DELAYS)]
    # As itertools.cycle, which would make a copy while memory is measured.
    return chain.from_iterable(repeat(delays))


def nothing(*arguments: object) -> None:
    """
    What timers call.
    """


def filling(
    loop: Loop, calls: list[Any], delays: Iterator[float], function: Callable[..., object], *arguments: object
) -> Turns:
    """
    Set as many timers as there is room for in C{calls}.
    """
    for index in range(len(calls)):
        calls[index] = loop.callLater(next(delays), function, *arguments)
        if index % PER_TURN == 0:
            yield 0.0
    # A reactor takes what was set in one turn into its heap in the next.
    yield 0.0


def measureCosts(name: str, outstanding: int, operations: int, collected: bool) -> Costs:
    """
    Cancel and expire timers while others are outstanding.

    @param outstanding: how many.
    @param operations: how many are cancelled, and at least how many expire.
    @param collected: whether the garbage collector runs.
    """
    costs: list[Costs] = []
    time = SteppedTime()
    loop = LOOPS[name](time)
    (gc.enable if collected else gc.disable)()
    try:
        loop.run(_costs(loop, time, outstanding, operations, costs.append))
    finally:
        gc.enable()
    (found,) = costs
    return found


def _costs(
    loop: Loop, time: SteppedTime, outstanding: int, operations: int, report: Callable[[Costs], object]
) -> Turns:
    delays = randomDelays()
    calls: list[Any] = [None] * outstanding
    expired = 0

    def expire() -> None:
        nonlocal expired
        expired += 1
        # As many remain outstanding as there were.
        loop.callLater(next(delays), expire)

    yield from filling(loop, calls, delays, expire)
    random = Random(2)
    victims = [random.randrange(outstanding) for _ in range(operations)]

    callLater, cancel = loop.callLater, loop.cancel
    started = cpuSeconds()
    for begin in range(0, operations, PER_TURN):
        # The time stands still, so that none expires.
        for victim in victims[begin : begin + PER_TURN]:
            cancel(calls[victim])
            calls[victim] = callLater(next(delays), expire)
        yield 0.0
    cancelSeconds = (cpuSeconds() - started) / operations

    calls.clear()
    stepSeconds = MAX_DELAY_SECONDS * EXPIRING_PER_TURN / outstanding
    started = cpuSeconds()
    while expired < operations:
        time.advance(stepSeconds)
        yield 0.0
    report(Costs(cancelSeconds, (cpuSeconds() - started) / expired))


def measureBytes(name: str, outstanding: int, arguments: Sequence[object]) -> float:
    """
    The memory that Python allocates for each timer.

    @param arguments: what it calls its function with.
    """
    sizes: list[int] = []
    loop = LOOPS[name](SteppedTime())
    calls: list[Any] = [None] * outstanding
    delays = randomDelays()

    def turns() -> Turns:
        yield 0.0
        tracemalloc.start()
        try:
            yield from filling(loop, calls, delays, nothing, *arguments)
            sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()

    loop.run(turns())
    return sizes[0] / outstanding


def measureTimes(report: Report, processes: Processes) -> None:
    """
    Nanoseconds for each timer.
    """
    # Setting a million of the slow ones takes most of the time.
    plan = (
        [(10_000, 2, 10_000), (100_000, 2, 10_000)]
        if report.quick
        else [(10_000, 3, 200_000), (100_000, 3, 200_000), (1_000_000, 2, 100_000)]
    )
    for outstanding, rounds, operations in plan:
        for collected in (True, False):

            def measure(
                name: str, outstanding: int = outstanding, operations: int = operations, collected: bool = collected
            ) -> Costs:
                return processes.run(measureCosts, name, outstanding, operations, collected)

            costs = inTurns(LOOPS, rounds, measure, f"{outstanding:,} outstanding, gc {collected}")
            for operation, secondsOf in (
                ("insert+cancel", lambda each: each.cancelSeconds),
                ("insert+expire", lambda each: each.expireSeconds),
            ):
                seconds = {name: list(map(secondsOf, each)) for name, each in costs.items()}
                for name, each in seconds.items():
                    report.add(
                        "times",
                        operation=operation,
                        outstanding=outstanding,
                        garbageCollector="on" if collected else "off",
                        timers=name,
                        nanoseconds=median(each) * 1e9,
                        callLaterRatio=ratio(seconds[CALL_LATER], each),
                        spreadPercent=spreadPercent(each),
                    )


def measureMemory(report: Report, processes: Processes) -> None:
    """
    Memory of each timer.
    """
    outstanding = 20_000 if report.quick else 100_000
    for name in LOOPS:
        report.add(
            "memory",
            timers=name,
            outstanding=outstanding,
            bytesEach=processes.run(measureBytes, name, outstanding, ()),
            bytesEachWithArgument=processes.run(measureBytes, name, outstanding, (nothing,)),
        )


def measure(report: Report) -> None:
    """
    Everything.
    """
    with Processes(fresh=not report.quick) as processes:
        measureTimes(report, processes)
        measureMemory(report, processes)


if __name__ == "__main__":
    run(
        "CPU time for each timer, in nanoseconds, and its memory",
        "What it costs to set, cancel and expire timers while many are outstanding.",
        measure,
    )

"""
What a client notices of another one that floods the broker, with a quota for that one and without; and what quotas cost
each request.

    python -m benchmarks.fairness [--json] [--quick]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import quantiles
from tempfile import TemporaryDirectory

from .broker import fillForFetch, perRequest, produceResponseBytes
from .crowd import Timing, converse, flooded, produceInSequence
from .load import Cost, Loader, ask, batchOf, exchange, fetchRequest, produceRequest
from .measure import KIB, Report, inTurns, median, ratio, run, spreadPercent
from .servers import FETCHED_TOPIC, TOPIC, Server, running

ALONE = "alone"
FLOODS = {"flood": "unlimited", "limited flood": "limited"}
"""The client ids of those who flood."""

FLOOD_QUOTA = [
    *("--quota", "client-bytes:algorithm=bucket:burst=10ms"),
    *("--set", f"quota.producer.override={FLOODS['limited flood']}:1M"),
]

NO_LIMITS = "none"
HIGH_LIMITS = "not reached"
LIMITS: dict[str, Sequence[str]] = {
    NO_LIMITS: (),
    HIGH_LIMITS: (
        *("--quota", "client-bytes:produce=1T:fetch=1T"),
        *("--quota", "request-time:percent=1000000"),
        *("--quota", "producer-ids:rate=10000"),
    ),
}

WELL_BEHAVED_BYTES = 16 * KIB
PARTITION = 1
"""The floods go to another one."""

FETCHED_BYTES = 16 * KIB


def throughputOf(timing: Timing) -> float:
    """
    Requests for each second.
    """
    return len(timing.latencySeconds) / timing.wallSeconds


def percentileOf(timing: Timing, percent: int) -> float:
    """
    The latency that so many percent of the requests do not exceed.
    """
    return quantiles(timing.latencySeconds, n=100)[percent - 1]


def measureFairness(report: Report) -> None:
    """
    A client that always waits for its answer: how often it gets one, and after how long.
    """
    rounds, seconds = (2, 0.2) if report.quick else (11, 1.0)
    request = produceRequest(TOPIC, PARTITION, batchOf(WELL_BEHAVED_BYTES))
    with (
        TemporaryDirectory(prefix="admission-benchmark-") as data,
        Loader() as loader,
        running("broker", f"{data}/admission", *FLOOD_QUOTA) as broker,
    ):

        def measure(beside: str) -> Timing:
            with nullcontext() if beside == ALONE else flooded(broker.port, FLOODS[beside]):
                return loader.run(converse, broker.port, request, produceResponseBytes(), seconds)

        figures = inTurns([ALONE, *FLOODS], rounds, measure, "one client and a flood")
    for beside, timings in figures.items():

        def toAlone(figure: Callable[[Timing], float], timings: Sequence[Timing] = timings) -> float:
            return ratio([*map(figure, timings)], [*map(figure, figures[ALONE])])

        report.add(
            "fairness",
            beside=beside,
            batchBytes=WELL_BEHAVED_BYTES,
            requestsPerSecond=median([*map(throughputOf, timings)]),
            p50Milliseconds=median([percentileOf(timing, 50) for timing in timings]) * 1000,
            p99Milliseconds=median([percentileOf(timing, 99) for timing in timings]) * 1000,
            throughputToAlone=toAlone(throughputOf),
            p50ToAlone=toAlone(lambda timing: percentileOf(timing, 50)),
            p99ToAlone=toAlone(lambda timing: percentileOf(timing, 99)),
            spreadPercent=spreadPercent([*map(throughputOf, timings)]),
        )


def measureCosts(report: Report) -> None:
    """
    Requests of a broker without limits, and of one with limits of every kind that nobody reaches: bytes, time, and
    producer ids.
    """
    rounds, count = (2, 160) if report.quick else (15, 2400)
    with (
        TemporaryDirectory(prefix="admission-benchmark-") as data,
        Loader() as loader,
        running("broker", f"{data}/none", *LIMITS[NO_LIMITS]) as unlimited,
        running("broker", f"{data}/limits", *LIMITS[HIGH_LIMITS]) as limited,
    ):
        brokers = {NO_LIMITS: unlimited, HIGH_LIMITS: limited}
        for broker in brokers.values():
            fillForFetch(loader, broker, 0, FETCHED_BYTES)
        fetch = fetchRequest(FETCHED_TOPIC, 0, 0, FETCHED_BYTES)
        fetchedBytes = len(ask(unlimited.port, fetch))

        def produceOn(broker: Server, depth: int) -> Cost:
            return loader.run(produceInSequence, broker.pid, broker.port, KIB, produceResponseBytes(), depth, count)

        def fetchFrom(broker: Server, depth: int) -> Cost:
            return loader.run(exchange, broker.pid, broker.port, [fetch] * 8, fetchedBytes, depth, count)

        for kind, batchBytes, load in (("Produce", KIB, produceOn), ("Fetch", FETCHED_BYTES, fetchFrom)):
            for depth in (1, 16):

                def measure(limits: str, depth: int = depth, load: Callable[[Server, int], Cost] = load) -> Cost:
                    return load(brokers[limits], depth)

                inTurns(brokers, 1, measure, f"{kind}, first")
                figures = inTurns(brokers, rounds, measure, f"{kind}, {depth} in flight")
                for limits, costs in figures.items():
                    report.add(
                        "costs",
                        kind=kind,
                        batchBytes=batchBytes,
                        inFlight=depth,
                        limits=limits,
                        **perRequest(costs, count),
                        ratioToNone=ratio(
                            [cost.cpuSeconds for cost in costs], [cost.cpuSeconds for cost in figures[NO_LIMITS]]
                        ),
                    )


def measure(report: Report) -> None:
    """
    Everything.
    """
    measureFairness(report)
    measureCosts(report)


if __name__ == "__main__":
    run(
        "What a client gets beside another that floods the broker, and CPU time of the broker for each request",
        "What quotas do for a client beside one that floods the broker, and what they cost.",
        measure,
    )

"""
What a lease costs, beside a bytearray; and what producers and consumers get through the broker with and without a
bound on its memory.

    python -m benchmarks.pool [--json] [--quick]
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryDirectory

from admission.interfaces import IMemoryPool
from admission_plugins.bounded import BoundedPool, UnboundedPool

from .broker import FETCHERS, fillForFetch, perRequest, produceResponseBytes
from .load import Cost, Loader, batchOf, exchange, produceRequest
from .measure import KIB, MIB, Report, cpuSeconds, inTurns, median, noCollections, ratio, run, sizeName, spreadPercent
from .servers import PARTITIONS, TOPIC, running

SIZES = [100, KIB, 16 * KIB, 256 * KIB, MIB, 8 * MIB]
POOL_BYTES = 1 << 30
PAGE_BYTES = 4096

UNBOUNDED = "unbounded"
POOLS = [UNBOUNDED, "bounded:256MiB", "bounded:4MiB"]
"""The last one has room for a quarter of what the producers keep in flight."""

BATCH_BYTES = MIB
IN_FLIGHT = 2


def leaseWarm(pool: IMemoryPool, sizeBytes: int, count: int) -> None:
    """
    Take and give back, one at a time.
    """
    for _ in range(count):
        lease = pool.tryAllocate(sizeBytes)
        assert lease is not None
        lease.release()


def leaseBurst(pool: IMemoryPool, sizeBytes: int, count: int) -> None:
    """
    Take many, touch every page as reading from a socket does, give all back.
    """
    leases = []
    touched = bytes(-(-sizeBytes // PAGE_BYTES))
    for _ in range(count):
        lease = pool.tryAllocate(sizeBytes)
        assert lease is not None and lease.buffer is not None
        lease.buffer[::PAGE_BYTES] = touched
        leases.append(lease)
    for lease in leases:
        lease.release()


def bytearrayWarm(sizeBytes: int, count: int) -> None:
    """
    As L{leaseWarm}.
    """
    for _ in range(count):
        bytearray(sizeBytes)


def bytearrayBurst(sizeBytes: int, count: int) -> None:
    """
    As L{leaseBurst}.
    """
    buffers = []
    touched = bytes(-(-sizeBytes // PAGE_BYTES))
    for _ in range(count):
        buffer = bytearray(sizeBytes)
        memoryview(buffer)[::PAGE_BYTES] = touched
        buffers.append(buffer)
    buffers.clear()


def measureLeases(report: Report) -> None:
    """
    Nanoseconds for each lease.
    """
    rounds = 3 if report.quick else 15
    for pattern, takeBytearrays, takeLeases in (
        ("warm", bytearrayWarm, leaseWarm),
        ("burst", bytearrayBurst, leaseBurst),
    ):
        totalBytes = 32 * MIB if pattern == "burst" else 512 * MIB
        for sizeBytes in SIZES:
            count = max(2, min(totalBytes // sizeBytes, 20_000) // (8 if report.quick else 1))
            # Pools of their own for each size, or slabs of another size would fill what may be kept.
            pools: dict[str, Callable[[int, int], None]] = {
                "bytearray": takeBytearrays,
                "BoundedPool": partial(takeLeases, BoundedPool(POOL_BYTES)),
                "UnboundedPool": partial(takeLeases, UnboundedPool()),
            }

            def measure(
                name: str,
                pools: dict[str, Callable[[int, int], None]] = pools,
                sizeBytes: int = sizeBytes,
                count: int = count,
            ) -> float:
                with noCollections():
                    started = cpuSeconds()
                    pools[name](sizeBytes, count)
                    return (cpuSeconds() - started) / count

            # The first round brings the heap and the slabs into the state that they stay in.
            inTurns(pools, 1, measure, f"{pattern}, {sizeName(sizeBytes)}")
            figures = inTurns(pools, rounds, measure, f"{pattern}, {sizeName(sizeBytes)}")
            for name, seconds in figures.items():
                report.add(
                    "leases",
                    pattern=pattern,
                    leaseBytes=sizeBytes,
                    pool=name,
                    nanoseconds=median(seconds) * 1e9,
                    ratioToBytearray=ratio(seconds, figures["bytearray"]),
                    spreadPercent=spreadPercent(seconds),
                )


def measureThroughput(report: Report) -> None:
    """
    Producers and consumers through the broker, under several pools.
    """
    rounds, produced, fetched = (2, 16, 16) if report.quick else (7, 64, 128)
    batch = batchOf(BATCH_BYTES)
    requests = [produceRequest(TOPIC, partition, batch) for partition in range(PARTITIONS)]
    with ExitStack() as stack:
        data = stack.enter_context(TemporaryDirectory(prefix="admission-benchmark-"))
        loader = stack.enter_context(Loader())
        brokers = {
            pool: stack.enter_context(running("broker", f"{data}/{number}", "--pool", pool))
            for number, pool in enumerate(POOLS)
        }
        fetches = {pool: fillForFetch(loader, broker, 0, BATCH_BYTES) for pool, broker in brokers.items()}

        def produce(pool: str) -> Cost:
            broker = brokers[pool]
            return loader.run(exchange, broker.pid, broker.port, requests, produceResponseBytes(), IN_FLIGHT, produced)

        def fetch(pool: str) -> Cost:
            broker, (request, responseBytes) = brokers[pool], fetches[pool]
            return loader.run(exchange, broker.pid, broker.port, [request] * FETCHERS, responseBytes, 1, fetched)

        for role, load, count in (("producers", produce, produced), ("consumers", fetch, fetched)):
            figures = inTurns(POOLS, rounds, load, role)
            for pool, costs in figures.items():
                report.add(
                    "throughput",
                    role=role,
                    pool=pool,
                    batchBytes=BATCH_BYTES,
                    mebibytesPerSecond=count * BATCH_BYTES / MIB / median([cost.wallSeconds for cost in costs]),
                    **perRequest(costs, count),
                    ratioToUnbounded=ratio(
                        [cost.cpuSeconds for cost in costs], [cost.cpuSeconds for cost in figures[UNBOUNDED]]
                    ),
                )


def measure(report: Report) -> None:
    """
    Everything.
    """
    measureLeases(report)
    measureThroughput(report)


if __name__ == "__main__":
    run(
        "CPU time for each lease, in nanoseconds, and for each request, in microseconds",
        "What a lease costs, and what a bound on memory costs producers and consumers.",
        measure,
    )

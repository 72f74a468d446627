"""
What quotas cost: one record by the number of clients, the memory of a client, and all policies together for a request;
beside other rate limiters.

    python -m benchmarks.quotas [--json] [--quick]
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from random import Random
from types import SimpleNamespace
from typing import Any

from attrs import define
from twisted.protocols.htb import Bucket
from twisted.protocols.policies import ThrottlingFactory

from admission.control import AdmissionControl
from admission.interfaces import (
    CONNECTION,
    CONNECTION_TRAITS,
    DEFAULT,
    IQuotaPolicy,
    QuotaEntity,
    Request,
    Traits,
    Usage,
)
from admission.metrics.registry import SensorRegistry
from admission.quotas.metering import Algorithm, Buckets, Windows
from admission_plugins.clientquotas import (
    CONNECTION_CREATION_RATE,
    RECEIVED_BYTE_RATE,
    REQUEST_PERCENTAGE,
    SENT_BYTE_RATE,
    ClientBytes,
    ConnectionRate,
    RequestTime,
)

from .measure import Report, cpuSeconds, inTurns, median, noCollections, progress, ratio, run, spreadPercent

PRODUCE = "Produce"

TRAITS = {
    PRODUCE: Traits(countsSent=False),
    "Fetch": Traits(countsReceived=False, waitsForOthers=True),
    CONNECTION: CONNECTION_TRAITS,
}
"""What is measured of all policies together."""

RATE = 1e12
"""Nobody gets there."""

LOW_RATE = 1.0
"""Everybody is beyond it."""

REQUEST_BYTES = 100

WINDOW = "window"
BUCKET = "bucket"
HARNESS = "harness"

Record = Callable[[str], object]
"""Counts one request of the client of that id."""


@define(slots=True)
class Asking:
    """
    Stands in for a L{Request}, of which a million would be most of the memory that there is to look up.
    """

    clientId: str = ""
    kind: str = PRODUCE
    principal: str = "alice"
    peer: str = "192.0.2.1"
    traits: Traits = TRAITS[PRODUCE]


def nothing(maxClients: int) -> Record:
    """
    Counts nothing: what the measurement itself costs, which is part of all other figures.
    """
    asking = Asking()

    def record(clientId: str) -> None:
        asking.clientId = clientId

    return record


def clientBytes(algorithm: Algorithm) -> Callable[[int], Record]:
    """
    Our policy.
    """

    def build(maxClients: int) -> Record:
        policy: Any = ClientBytes(algorithm, maxClients)
        policy.configure(QuotaEntity(clientId=DEFAULT), {RECEIVED_BYTE_RATE: RATE}, time.monotonic())
        asking, usage, count = Asking(), Usage(REQUEST_BYTES), policy.record

        def record(clientId: str) -> None:
            asking.clientId = clientId
            count(asking, usage, time.monotonic())

        return record

    return build


def htb(maxClients: int) -> Record:
    """
    The buckets of Twisted's hierarchical token buckets, by client id.
    """
    buckets: dict[str, Any] = {}

    def record(clientId: str) -> None:
        bucket = buckets.get(clientId)
        if bucket is None:
            bucket = buckets[clientId] = Bucket()  # type: ignore[no-untyped-call]
            bucket.rate = bucket.maxburst = RATE
        bucket.add(REQUEST_BYTES)

    return record


def throttlingFactory(maxClients: int) -> Record:
    """
    Twisted's policy for a whole factory: it adds up the bytes of all clients, and once in a second it compares.
    """
    factory = ThrottlingFactory(SimpleNamespace(doStop=None), readLimit=RATE)  # type: ignore[arg-type, no-untyped-call]

    def record(clientId: str) -> None:
        factory.registerRead(REQUEST_BYTES)  # type: ignore[no-untyped-call]

    return record


def limits(strategyName: str) -> Callable[[int], Record]:
    """
    The library of that name, in memory.  It counts requests: what it counts it stores one by one.
    """

    def build(maxClients: int) -> Record:
        strategies, storage = import_module("limits.strategies"), import_module("limits.storage")
        item = import_module("limits").RateLimitItemPerSecond(10**9)
        hit = getattr(strategies, strategyName)(storage.MemoryStorage()).hit
        return lambda clientId: hit(item, clientId)

    return build


def pyrateLimiter(maxClients: int) -> Record:
    """
    The library of that name, a bucket in memory for each client.  It counts requests too.
    """
    library: Any = import_module("pyrate_limiter")
    rates = [library.Rate(10**9, library.Duration.SECOND)]
    clock = library.MonotonicClock()
    buckets: dict[str, Any] = {}

    class PerClient(library.BucketFactory):  # type: ignore[misc]
        def wrap_item(self, name: str, weight: int = 1) -> Any:
            return library.RateItem(name, clock.now(), weight)

        def get(self, item: Any) -> Any:
            bucket = buckets.get(item.name)
            if bucket is None:
                # Not by way of create, which has a thread look at every bucket now and then.
                bucket = buckets[item.name] = library.InMemoryBucket(rates)
            return bucket

    tryAcquire = library.Limiter(PerClient()).try_acquire
    return lambda clientId: tryAcquire(clientId, blocking=False)


OURS: dict[str, Callable[[int], Record]] = {
    WINDOW: clientBytes(Windows(11, 1.0)),
    BUCKET: clientBytes(Buckets(1.0)),
}

TWISTED: dict[str, Callable[[int], Record]] = {"htb": htb, "ThrottlingFactory": throttlingFactory}

LIBRARIES: dict[str, tuple[str, Callable[[int], Record]]] = {
    "limits, fixed window": ("limits", limits("FixedWindowRateLimiter")),
    "limits, sliding window": ("limits", limits("SlidingWindowCounterRateLimiter")),
    "limits, moving window": ("limits", limits("MovingWindowRateLimiter")),
    "pyrate-limiter": ("pyrate_limiter", pyrateLimiter),
}


def limiters(report: Report) -> dict[str, Callable[[int], Record]]:
    """
    Everybody who can be measured here.
    """
    found = {HARNESS: nothing, **OURS, **TWISTED}
    for name, (module, build) in LIBRARIES.items():
        if find_spec(module) is None:
            report.add("notInstalled", module=module, limiter=name)
        else:
            found[name] = build
    return found


def clientIds(count: int) -> list[str]:
    """
    So many ids.
    """
    return [f"client-{number}" for number in range(count)]


def measureRecords(report: Report, builders: dict[str, Callable[[int], Record]]) -> None:
    """
    Nanoseconds for each record, client ids in random order.
    """
    rounds, operations = (2, 2000) if report.quick else (5, 50_000)
    for count in (1, 1000) if report.quick else (1, 10_000, 1_000_000):
        # A million clients of the libraries take minutes and gigabytes.
        names = [name for name in builders if count <= 10_000 or name not in LIBRARIES]
        ids = clientIds(count)
        random = Random(1)
        chosen = [ids[random.randrange(count)] for _ in range(operations)]
        records: dict[str, Record] = {}
        for name in names:
            progress(f"{count:,} clients of {name}")
            record = records[name] = builders[name](count)
            for clientId in ids:
                record(clientId)

        def measure(name: str, records: dict[str, Record] = records, chosen: Sequence[str] = chosen) -> float:
            record = records[name]
            with noCollections():
                started = cpuSeconds()
                for clientId in chosen:
                    record(clientId)
                return (cpuSeconds() - started) / len(chosen)

        figures = inTurns(names, rounds, measure, f"{count:,} clients")
        for name, seconds in figures.items():
            report.add(
                "record",
                clients=count,
                limiter=name,
                nanoseconds=median(seconds) * 1e9,
                ratioToBucket=ratio(seconds, figures[BUCKET]),
                spreadPercent=spreadPercent(seconds),
            )


def measureMemory(report: Report, builders: dict[str, Callable[[int], Record]]) -> None:
    """
    What is kept for a client that has sent one request, without its id; and once our own have swept the idle.
    """
    count = 2000 if report.quick else 20_000
    ids = clientIds(count)
    for name, build in builders.items():
        if name in (HARNESS, "ThrottlingFactory"):
            continue
        progress(f"memory of {name}")
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            record = build(count)
            for clientId in ids:
                record(clientId)
            bytesEach = (tracemalloc.get_traced_memory()[0] - before) / count
        finally:
            tracemalloc.stop()
        report.add("memory", limiter=name, clients=count, bytesEach=bytesEach)


def measureCap(report: Report) -> None:
    """
    What a flood of client ids takes, each seen once, with the default cap.
    """
    count = 20_000 if report.quick else 1_000_000
    for name, algorithm in ((WINDOW, Windows(11, 1.0)), (BUCKET, Buckets(1.0))):
        progress(f"a flood of {count:,} clients, {name}")
        policy: Any = ClientBytes(algorithm)
        policy.configure(QuotaEntity(clientId=DEFAULT), {RECEIVED_BYTE_RATE: RATE}, time.monotonic())
        asking, usage = Asking(), Usage(REQUEST_BYTES)
        started = cpuSeconds()
        for number in range(count):
            asking.clientId = f"client-{number}"
            policy.record(asking, usage, time.monotonic())
        seconds = cpuSeconds() - started
        registry = SensorRegistry(time.monotonic)
        policy.addSensors(registry, "flood")
        report.add(
            "flood",
            algorithm=name,
            clients=count,
            meters=int(registry["flood.Received.meters"]),
            nanoseconds=seconds / count * 1e9,
        )


def buildControl(limit: float | None, isAll: bool) -> AdmissionControl:
    """
    Our policies together.

    @param limit: what everybody has of everything; L{None} for no limit.
    @param isAll: whether all policies limit, or client-bytes alone.
    """
    policies: list[tuple[str, IQuotaPolicy]] = [
        ("client-bytes", ClientBytes(Windows(11, 1.0))),
        ("request-time", RequestTime(11, 1.0)),
        ("connections", ConnectionRate(1.0)),
    ]
    control, now = AdmissionControl(policies, 20.0), time.monotonic()
    if limit is not None:
        client = QuotaEntity(clientId=DEFAULT)
        control.configure(client, {RECEIVED_BYTE_RATE: limit, SENT_BYTE_RATE: limit}, now)
        if isAll:
            control.configure(client, {REQUEST_PERCENTAGE: limit}, now)
            control.configure(QuotaEntity(ip=DEFAULT), {CONNECTION_CREATION_RATE: limit}, now)
    return control


def measureRequests(report: Report) -> None:
    """
    Microseconds for each request that is put to all policies, as the broker does: ask for a decision, ask Fetch for its
    budget, charge.
    """
    rounds, operations = (2, 2000) if report.quick else (7, 50_000)
    clients = 10_000
    together = {
        "no limits": buildControl(None, isAll=False),
        "client-bytes": buildControl(RATE, isAll=False),
        "all": buildControl(RATE, isAll=True),
        "all, everybody over": buildControl(LOW_RATE, isAll=True),
    }
    usage = Usage(REQUEST_BYTES, REQUEST_BYTES, 0.0001, 1)
    random = Random(1)
    for kind, traits in TRAITS.items():
        requests = [
            Request(kind, "alice", f"client-{number}", f"192.0.2.{number % 256}", REQUEST_BYTES, (), traits)
            for number in range(clients)
        ]
        chosen = [requests[random.randrange(clients)] for _ in range(operations)]
        isRead = kind == "Fetch"

        def measure(name: str, chosen: Sequence[Request] = chosen, isRead: bool = isRead) -> float:
            control, seconds = together[name], time.monotonic
            admit, budgetBytes, charge = control.admit, control.budgetBytes, control.charge
            with noCollections():
                started = cpuSeconds()
                for request in chosen:
                    if control.isLimiting:
                        admit(request, seconds())
                        if isRead:
                            budgetBytes(request, seconds())
                        charge(request, usage, seconds())
                return (cpuSeconds() - started) / len(chosen)

        inTurns(together, 1, measure, f"{kind} requests, first")
        for name, seconds in inTurns(together, rounds, measure, f"{kind} requests").items():
            report.add(
                "requests",
                kind=kind,
                policies=name,
                microseconds=median(seconds) * 1e6,
                spreadPercent=spreadPercent(seconds),
            )


def measure(report: Report) -> None:
    """
    Everything.
    """
    builders = limiters(report)
    measureRecords(report, builders)
    measureMemory(report, builders)
    measureCap(report)
    measureRequests(report)


if __name__ == "__main__":
    run(
        "CPU time for each record of a rate limiter, in nanoseconds, and its memory",
        "What it costs to count what clients take, and to ask all policies.",
        measure,
    )

"""
What it costs to know producer ids again: time for each id, memory for each id, and how often a filter takes an id for
known that is not, by the pattern that ids have.

    python -m benchmarks.bloom [--json] [--quick]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from random import Random
from typing import Any, Protocol

from attrs import define, field
from rbloom import Bloom

from admission.interfaces import DEFAULT, QuotaEntity, Request, Usage
from admission_plugins.bloom import LayeredBloom
from admission_plugins.producerids import NEW_IDENTITY_RATE, PRODUCE, ProducerIds

from .measure import Report, cpuSeconds, inTurns, median, noCollections, ratio, run, spreadPercent

WINDOW_SECONDS = 60.0
TURNS = 4
TURN_SECONDS = WINDOW_SECONDS / TURNS
FALSE_POSITIVES = 0.01
KEY = 0x1234_5678_9ABC_DEF

LAYERED = "LayeredBloom"
SETS = "sets in layers"

SET = "set"
RBLOOM = "rbloom"
ONE_LAYER = "LayeredBloom of one layer"

# An integer object of that size, which a set holds and a filter does not.
_INTEGER_BYTES = 32


class Seen(Protocol):
    """
    What knows ids again within a window.
    """

    def track(self, member: int, nowSeconds: float) -> bool:
        """
        See L{LayeredBloom.track}.
        """

    def contains(self, member: int, nowSeconds: float) -> bool:
        """
        See L{LayeredBloom.contains}.
        """


@define(eq=False)
class LayeredSets:
    """
    What L{LayeredBloom} does, by exact sets: no errors, and much more memory.
    """

    turnEndsSeconds: float = 0.0
    layers: list[tuple[float, set[int]]] = field(factory=list)

    def track(self, member: int, nowSeconds: float) -> bool:
        """
        See L{LayeredBloom.track}.
        """
        if nowSeconds >= self.turnEndsSeconds:
            self.turnEndsSeconds = nowSeconds + TURN_SECONDS
            live = [layer for layer in self.layers if nowSeconds < layer[0]]
            self.layers = [(self.turnEndsSeconds + WINDOW_SECONDS, set()), *live]
        newest = self.layers[0][1]
        if member in newest:
            return False
        isNew = True
        for _, older in self.layers[1:]:
            if member in older:
                isNew = False
                break
        newest.add(member)
        return isNew

    def contains(self, member: int, nowSeconds: float) -> bool:
        """
        See L{LayeredBloom.contains}.
        """
        return any(member in layer for expiresSeconds, layer in self.layers if nowSeconds < expiresSeconds)

    @property
    def sizeBytes(self) -> int:
        """
        How much memory they take.
        """
        return sum(sys.getsizeof(layer) + _INTEGER_BYTES * len(layer) for _, layer in self.layers)


def buildSeen(name: str, capacity: int) -> LayeredBloom | LayeredSets:
    """
    Make one of the competitors.
    """
    if name == SETS:
        return LayeredSets()
    return LayeredBloom(capacity, WINDOW_SECONDS, TURNS, FALSE_POSITIVES, key=KEY)


def trackAll(seen: Seen, members: Iterable[int], nowSeconds: float) -> None:
    """
    See them all, at one time.
    """
    for member in members:
        seen.track(member, nowSeconds)


def nanosecondsEach(function: Callable[[], object], count: int) -> float:
    """
    CPU time of one of C{count} things that C{function} does.
    """
    with noCollections():
        started = cpuSeconds()
        function()
        return (cpuSeconds() - started) / count * 1e9


def groupsOf(count: int) -> list[range]:
    """
    Sequential ids for each turn, and ids that no turn sees.
    """
    return [range(10_000 + turn * count, 10_000 + (turn + 1) * count) for turn in range(TURNS + 1)]


def measureTracking(report: Report) -> None:
    """
    Nanoseconds for each id, four layers being there.
    """
    rounds, count = (2, 1000) if report.quick else (9, 10_000)
    *groups, new = groupsOf(count)
    now = (TURNS - 1) * TURN_SECONDS

    def measure(name: str) -> dict[str, float]:
        # The ids of the oldest layer and the new ones have to fit beside those of the newest.
        seen = buildSeen(name, 3 * count)
        for turn, group in enumerate(groups):
            trackAll(seen, group, turn * TURN_SECONDS)
        return {
            case: nanosecondsEach(lambda members=members: trackAll(seen, members, now), count)
            for case, members in (("known, newest", groups[-1]), ("known, oldest", groups[0]), ("new", new))
        }

    competitors = (LAYERED, SETS)
    figures = inTurns(competitors, rounds, measure, "track")
    for case in figures[LAYERED][0]:
        each = {name: [costs[case] for costs in figures[name]] for name in competitors}
        for name in competitors:
            report.add(
                "track",
                case=case,
                seen=name,
                nanoseconds=median(each[name]),
                ratioToSets=ratio(each[name], each[SETS]),
                spreadPercent=spreadPercent(each[name]),
            )


def measureMemory(report: Report) -> None:
    """
    Bytes for each id that is active, every layer being full and one more about to go.
    """
    count = 2000 if report.quick else 100_000
    for name in (LAYERED, SETS):
        seen = buildSeen(name, count)
        for turn in range(TURNS + 1):
            trackAll(seen, range(count), turn * TURN_SECONDS)
        report.add("memory", seen=name, ids=count, bytesEach=seen.sizeBytes / count)


def measureRequests(report: Report) -> None:
    """
    Nanoseconds for each request that a policy decides on and counts.
    """
    rounds, count = (2, 1000) if report.quick else (9, 10_000)
    usage = Usage(requestBytes=1000)

    def exchange(policy: ProducerIds, requests: Sequence[Request]) -> None:
        for request in requests:
            if policy.decide(request, 0.0).admitted:
                policy.record(request, usage, 0.0)

    def measure(case: str) -> float:
        policy = ProducerIds(key=KEY)
        policy.configure(QuotaEntity(user=DEFAULT), {NEW_IDENTITY_RATE: float(2 * count)}, 0.0)
        known, new = (
            [Request(PRODUCE, "user", "", "", 1000, [each]) for each in group] for group in groupsOf(count)[:2]
        )
        exchange(policy, known)
        if case == "refused":
            policy.configure(QuotaEntity(user=DEFAULT), {NEW_IDENTITY_RATE: 0.001}, 0.0)
        return nanosecondsEach(lambda: exchange(policy, known if case == "known id" else new), count)

    for case, nanoseconds in inTurns(("known id", "new id", "refused"), rounds, measure, "requests").items():
        report.add("requests", case=case, nanoseconds=median(nanoseconds), spreadPercent=spreadPercent(nanoseconds))


@define(eq=False)
class OneLayer:
    """
    A L{LayeredBloom} at a moment, with the shape of a set.
    """

    seen: LayeredBloom

    def add(self, member: int) -> None:
        """
        As of a set.
        """
        self.seen.track(member, 0.0)

    def __contains__(self, member: int) -> bool:
        return self.seen.contains(member, 0.0)


def buildOneLayer(count: int) -> OneLayer:
    """
    A layer that errs as often as the other filters.
    """
    # Of what a stack may err, the first layer of the only turn gets nine tenths of one half.
    return OneLayer(LayeredBloom(count, WINDOW_SECONDS, 1, FALSE_POSITIVES / 0.45, key=KEY))


FILTERS: dict[str, Callable[[int], Any]] = {
    SET: lambda count: set[int](),
    RBLOOM: lambda count: Bloom(count, FALSE_POSITIVES),
    ONE_LAYER: buildOneLayer,
}

PEERS = {
    "fastbloom_rs": lambda module, count: module.BloomFilter(count, FALSE_POSITIVES),
    "pybloom_live": lambda module, count: module.BloomFilter(count, FALSE_POSITIVES),
    "bloom_filter2": lambda module, count: module.BloomFilter(count, FALSE_POSITIVES),
}
"""Measured if they are installed, which nothing else here needs."""


def installedFilters(report: Report) -> dict[str, Callable[[int], Any]]:
    """
    What makes each filter that there is; which are not is reported.
    """
    filters = dict(FILTERS)
    for name, build in PEERS.items():
        try:
            module = import_module(name)
        except ImportError:
            report.add("notInstalled", module=name)
        else:
            filters[name] = lambda count, build=build, module=module: build(module, count)
    return filters


def measureFilters(report: Report, filters: dict[str, Callable[[int], Any]]) -> None:
    """
    Nanoseconds for each id, of single filters.
    """
    rounds, count = (2, 1000) if report.quick else (9, 100_000)
    members, others = range(10_000, 10_000 + count), range(10_000_000, 10_000_000 + count)

    def measure(name: str) -> dict[str, float]:
        container = filters[name](count)

        def addAll() -> None:
            add = container.add
            for member in members:
                add(member)

        def findAll(ids: range) -> None:
            for each in ids:
                each in container  # noqa: B015

        return {
            "add": nanosecondsEach(addAll, count),
            "hit": nanosecondsEach(lambda: findAll(members), count),
            "miss": nanosecondsEach(lambda: findAll(others), count),
        }

    for name, costs in inTurns(filters, rounds, measure, "filters").items():
        for case in costs[0]:
            nanoseconds = [each[case] for each in costs]
            report.add(
                "filters",
                filter=name,
                case=case,
                nanoseconds=median(nanoseconds),
                spreadPercent=spreadPercent(nanoseconds),
            )


def idPatterns(count: int) -> Iterator[tuple[str, Sequence[int]]]:
    """
    Ids as servers give them out, and as would be hardest to tell apart.

    @param count: how many of each.
    """
    start = 123_000
    for stride in (1, *(1 << power for power in range(1, 17)), 3, 1000):
        yield f"stride {stride}", range(start, start + stride * count, stride)
    # Brokers take blocks of a thousand from the controller, and use up few of some.
    yield "blocks", [start + number // 10 * 1000 + number % 10 for number in range(count)]
    yield "high bits", [number << 63 - count.bit_length() for number in range(count)]
    yield "upper half", [number << 32 for number in range(count)]
    random = Random(7)
    yield "random", [random.getrandbits(63) for _ in range(count)]


def mistaken(isKnown: Callable[[int], bool], others: Sequence[int]) -> float:
    """
    How many of C{others}, which were not seen, are taken for known, as a multiple of how many may be.
    """
    return sum(map(isKnown, others)) / len(others) / FALSE_POSITIVES


def measureErrors(report: Report) -> None:
    """
    False positives of full filters by pattern, as a multiple of what was asked for.
    """
    count, otherCount = (1000, 5000) if report.quick else (10_000, 200_000)
    now = TURNS * TURN_SECONDS
    for pattern, ids in idPatterns((TURNS + 1) * count + otherCount):
        others = ids[-otherCount:]
        seen = buildSeen(LAYERED, count)
        for turn in range(TURNS + 1):
            trackAll(seen, ids[turn * count : (turn + 1) * count], turn * TURN_SECONDS)
        bare = Bloom(count, FALSE_POSITIVES)
        bare.update(ids[:count])
        report.add(
            "falsePositives",
            pattern=pattern,
            layeredBloom=mistaken(lambda member, seen=seen: seen.contains(member, now), others),
            rbloom=mistaken(bare.__contains__, others),
        )


def measure(report: Report) -> None:
    """
    Everything.
    """
    measureTracking(report)
    measureMemory(report)
    measureRequests(report)
    measureFilters(report, installedFilters(report))
    measureErrors(report)


if __name__ == "__main__":
    run(
        "CPU time for each id, in nanoseconds; memory; false positives as a multiple of those asked for",
        "What it costs to know producer ids again.",
        measure,
    )

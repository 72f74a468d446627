"""L{admission.quotas.metering}."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import DEFAULT, QuotaEntity, Request
from admission.metrics.rate import SampledTotal
from admission.metrics.registry import SensorRegistry
from admission.names import boundedName
from admission.quotas.limits import ADDRESS_KINDS, CLIENT_KINDS, EntityKind, Limit, LimitTable
from admission.quotas.metering import (
    OVERFLOW,
    Bucket,
    Buckets,
    Meter,
    Meters,
    SharedBuckets,
    Window,
    Windows,
    byAddress,
    byUser,
)

RATE = "rate"

ALICE_APP = QuotaEntity("alice", "app")
ALICE_DEFAULT = QuotaEntity("alice", DEFAULT)
ALICE = QuotaEntity("alice")
DEFAULT_APP = QuotaEntity(DEFAULT, "app")
DEFAULT_DEFAULT = QuotaEntity(DEFAULT, DEFAULT)
DEFAULT_USER = QuotaEntity(DEFAULT)
APP = QuotaEntity(None, "app")
DEFAULT_CLIENT = QuotaEntity(None, DEFAULT)

Taken = list[tuple[float, float]]
"""When something was taken, and how much."""


def limitOf(value: float) -> Limit:
    """A limit of somebody."""
    return Limit("rate", value, QuotaEntity("alice"))


def obey(meter: Meter, steps: Sequence[tuple[float, float]], startSeconds: float = 0.0) -> Taken:
    """Take one amount after the other, each after a pause and whatever the meter has asked to wait."""
    now = startSeconds
    taken = []
    for pauseSeconds, amount in steps:
        now += pauseSeconds
        taken.append((now, amount))
        now += meter.spend(amount, now)
    return taken


def excess(taken: Taken, limit: float, longestSeconds: float = float("inf")) -> float:
    """
    By how much any stretch of time that is no longer than C{longestSeconds}
    went beyond the limit, its last amount excepted.
    """
    worst = 0.0
    sums = [0.0, *accumulate(amount for _, amount in taken)]
    for last, (end, _) in enumerate(taken):
        for first in range(last, -1, -1):
            seconds = end - taken[first][0]
            if seconds > longestSeconds:
                break
            worst = max(worst, sums[last] - sums[first] - limit * seconds)
    return worst


def by(principal: str, clientId: str) -> Request:
    """A request of somebody."""
    return Request("Produce", principal, clientId, "192.0.2.1", 100)


def at(ip: str) -> Request:
    """A request that comes from somewhere."""
    return Request("Produce", "alice", "app", ip, 100)


class MetersTestCase(SynchronousTestCase):
    """A limit of 100 a second with buckets for a second, for any entity."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.limits = LimitTable([RATE])
        self.meters = Meters(self.limits, RATE, Buckets(1.0).build, 10)

    def configure(self, entity: QuotaEntity, value: float | None = 100.0) -> None:
        """Set or remove a limit."""
        self.limits.configure(entity, {RATE: value})
        self.meters.refresh(entity, self.clock.seconds())

    def spend(self, request: Request, amount: float) -> float:
        return self.meters.spend(request, amount, self.clock.seconds())

    def budget(self, request: Request) -> int | None:
        return self.meters.budget(request, self.clock.seconds())

    def owed(self, *requests: Request) -> list[float]:
        """How long each of these has to wait."""
        return [self.meters.delaySeconds(request, self.clock.seconds()) for request in requests]


class SharingTests(MetersTestCase):
    """The clients that share a meter."""

    def assertShare(self, entity: QuotaEntity, keys: dict[tuple[str, str], Any]) -> None:
        """
        With that one limit, clients share a meter exactly if they have the same
        value in C{keys}; L{None} for those who have no limit.
        """
        for spender in keys:
            self.setUp()
            self.configure(entity)
            self.spend(by(*spender), 200)
            for other in keys:
                delaySeconds = self.meters.delaySeconds(by(*other), self.clock.seconds())
                isShared = keys[spender] is not None and keys[other] == keys[spender]
                self.assertEqual(delaySeconds, 1.0 if isShared else 0.0, (entity, spender, other))
                if keys[spender] is not None and keys[other] is not None:
                    isSame = self.meters.keyOf(by(*other)) == self.meters.keyOf(by(*spender))
                    self.assertEqual(isSame, isShared)

    def test_mostSpecificDecides(self) -> None:
        """
        With a user's limit all its client ids share; with a client id's limit
        all its users do; under a default each has its own.
        """
        everybody = [("alice", "app"), ("alice", "other"), ("alice", ""), ("bob", "app"), ("bob", "other"), ("bob", "")]
        byUser = {each: each[0] for each in everybody}
        byClient = {each: each[1] for each in everybody}
        byBoth = {each: each for each in everybody}
        for entity, keys in [
            (ALICE_APP, {each: each if each == ("alice", "app") else None for each in everybody}),
            (ALICE_DEFAULT, {each: each if each[0] == "alice" else None for each in everybody}),
            (ALICE, {each: "alice" if each[0] == "alice" else None for each in everybody}),
            (DEFAULT_APP, {each: each if each[1] == "app" else None for each in everybody}),
            (DEFAULT_DEFAULT, byBoth),
            (DEFAULT_USER, byUser),
            (APP, {each: "app" if each[1] == "app" else None for each in everybody}),
            (DEFAULT_CLIENT, byClient),
        ]:
            self.assertShare(entity, keys)

    def test_addresses(self) -> None:
        """Each address has a meter of its own, whichever clients come from there."""
        self.limits = LimitTable([RATE], ADDRESS_KINDS)
        self.meters = Meters(self.limits, RATE, Buckets(1.0).build, 10, byAddress)
        one, other = at("192.0.2.1"), at("192.0.2.2")
        self.assertEqual(self.spend(one, 200), 0.0)
        self.configure(QuotaEntity(ip=DEFAULT))
        self.assertEqual(self.spend(one, 200), 1.0)
        self.assertEqual(self.owed(one, other), [1.0, 0.0])
        self.assertEqual(self.spend(other, 0), 0.0)
        self.assertEqual((self.budget(one), self.budget(other)), (0, 100))
        self.assertNotEqual(self.meters.keyOf(one), self.meters.keyOf(other))
        self.configure(QuotaEntity(ip="192.0.2.1"), 200.0)
        self.assertEqual(self.owed(one, other), [0.5, 0.0])

    def test_otherKinds(self) -> None:
        """Where a table has limits of clients and of addresses, meters of one kind go on when the other's change."""
        limits = LimitTable([RATE], (*CLIENT_KINDS, *ADDRESS_KINDS))
        ofClients = Meters(limits, RATE, Buckets(1.0).build, 10)
        ofAddresses = Meters(limits, RATE, Buckets(1.0).build, 10, byAddress)
        for entity, value in ((DEFAULT_CLIENT, 100.0), (QuotaEntity(ip=DEFAULT), 50.0), (DEFAULT_CLIENT, None)):
            limits.configure(entity, {RATE: value})
            dropped = [meters.refresh(entity, 0.0) for meters in (ofClients, ofAddresses)]
            for meters in (ofClients, ofAddresses):
                meters.spend(at("192.0.2.1"), 10, 0.0)
        self.assertEqual([len(each) for each in dropped], [1, 0])
        self.assertEqual((len(ofClients), len(ofAddresses)), (0, 1))
        self.assertEqual(ofAddresses.budget(at("192.0.2.1"), 0.0), 30)

    @given(spending=st.lists(st.tuples(st.sampled_from(["b", "c"]), st.integers(1, 500), st.floats(0, 2))))
    def test_nobodyElseMoves(self, spending: list[tuple[str, int, float]]) -> None:
        """What one client takes, however much, never shows in what another is told."""
        self.setUp()
        self.configure(DEFAULT_CLIENT)
        alone = Meters(self.limits, RATE, Buckets(1.0).build, 10)
        for clientId, amount, pauseSeconds in spending:
            self.clock.advance(pauseSeconds)
            self.spend(by("alice", clientId), amount)
            request = by("alice", "a")
            self.assertEqual(self.spend(request, 30), alone.spend(request, 30, self.clock.seconds()))
            self.assertEqual(
                self.meters.status(request, self.clock.seconds()), alone.status(request, self.clock.seconds())
            )

    def test_users(self) -> None:
        """
        By user, all client ids of a user share one, and a limit that stands for
        none exempts a user from the default.
        """
        limits, now = LimitTable([RATE], [EntityKind.USER], unlimited=1000.0), self.clock.seconds()
        meters = Meters(limits, RATE, Buckets(1.0).build, 10, byUser)
        limits.configure(DEFAULT_USER, {RATE: 100.0})
        limits.configure(ALICE, {RATE: 1000.0})
        self.assertEqual([meters.spend(by("bob", name), 150, now) for name in ("app", "other")], [0.5, 2.0])
        self.assertEqual((meters.spend(by("alice", "app"), 1e9, now), len(meters)), (0.0, 1))
        self.assertTrue(limits.isLimiting)
        limits.configure(DEFAULT_USER, {RATE: 2000.0})
        self.assertEqual((len(meters.refresh(DEFAULT_USER, now)), limits.isLimiting), (1, False))


class ChangingTests(MetersTestCase):
    """Limits that change while they are used."""

    def test_bound(self) -> None:
        """A new bound holds at once, and what was taken stays counted."""
        self.configure(DEFAULT_CLIENT)
        self.spend(by("alice", "app"), 300)
        self.assertEqual(self.owed(by("alice", "app")), [2.0])
        self.configure(DEFAULT_CLIENT, 50.0)
        self.assertEqual(self.owed(by("alice", "app")), [4.0])
        self.clock.advance(1.0)
        self.configure(DEFAULT_CLIENT, 300.0)
        self.assertEqual(self.owed(by("alice", "app")), [0.5])

    def test_ownLimitKeepsWhatIsCounted(self) -> None:
        """
        A client that is given a limit of its own where it had the default's,
        or loses it again, still owes what it took: its meter is the same.
        """
        self.configure(DEFAULT_CLIENT)
        self.spend(by("alice", "app"), 300)
        self.configure(APP, 200.0)
        self.assertEqual(self.owed(by("alice", "app")), [1.0])
        self.configure(APP, None)
        self.assertEqual(self.owed(by("alice", "app")), [2.0])

    def test_otherEntity(self) -> None:
        """
        When a limit of another kind takes over, counting begins afresh, and
        what was counted before is still there when that goes.
        """
        self.configure(DEFAULT_CLIENT)
        self.spend(by("alice", "app"), 300)
        self.configure(ALICE)
        self.assertEqual(self.owed(by("alice", "app"), by("bob", "app")), [0.0, 2.0])
        self.configure(ALICE, None)
        self.assertEqual(self.owed(by("alice", "app")), [2.0])

    def test_removed(self) -> None:
        """A client that has no limit any more is free at once, and nothing is remembered."""
        self.configure(DEFAULT_CLIENT)
        self.spend(by("alice", "app"), 300)
        self.configure(DEFAULT_CLIENT, None)
        self.assertEqual((self.spend(by("alice", "app"), 300), len(self.meters)), (0.0, 0))
        self.assertIs(self.budget(by("alice", "app")), None)
        self.configure(DEFAULT_CLIENT)
        self.assertEqual(self.owed(by("alice", "app")), [0.0])

    def test_everyDefault(self) -> None:
        """
        Whatever limit changes, each meter goes by the most specific that is
        left for it, and is dropped when none is.
        """
        entities = [ALICE_APP, ALICE_DEFAULT, DEFAULT_APP, DEFAULT_DEFAULT]
        for value, entity in enumerate(entities, 1):
            self.configure(entity, 100.0 * value)
        self.spend(by("alice", "app"), 2100)
        delays = []
        for entity in (None, *entities):
            if entity is not None:
                self.configure(entity, None)
            delays.append(self.owed(by("alice", "app"))[0])
        self.assertEqual(([round(each, 3) for each in delays], len(self.meters)), ([20.0, 10.0, 6.667, 5.0, 0.0], 0))

        self.configure(DEFAULT_USER)
        self.configure(ALICE, 200.0)
        for name in ("alice", "bob"):
            self.spend(by(name, "app"), 1000)
        self.configure(DEFAULT_USER, 50.0)
        self.assertEqual(self.owed(by("alice", "app"), by("bob", "app")), [4.0, 18.0])
        self.configure(ALICE, None)
        self.assertEqual(self.owed(by("alice", "app")), [16.0])

    def test_limitForSomebodyNew(self) -> None:
        """A client that has been seen to have no limit has one as soon as it is set."""
        self.configure(APP)
        self.assertEqual(self.spend(by("alice", "other"), 200), 0.0)
        self.configure(DEFAULT_CLIENT)
        self.assertEqual(self.spend(by("alice", "other"), 200), 1.0)


class AskingTests(MetersTestCase):
    """Asking without spending."""

    def test_budget(self) -> None:
        """The budget is what there is room for, at least one for a client within its limit, and nothing for others."""
        request = by("alice", "app")
        self.assertIs(self.budget(request), None)
        self.configure(DEFAULT_CLIENT)
        budgets = [self.budget(request)]
        for amount in (30, 69.5, 0.5, 1):
            self.spend(request, amount)
            budgets.append(self.budget(request))
        self.assertEqual(budgets, [100, 70, 1, 1, 0])

    def test_nothingSpent(self) -> None:
        """A client that only asks, or spends nothing, gets no meter."""
        self.configure(DEFAULT_CLIENT)
        request = by("alice", "app")
        self.spend(request, 0)
        self.budget(request)
        self.meters.delaySeconds(request, self.clock.seconds())
        self.assertEqual((self.meters.status(request, self.clock.seconds()).used, len(self.meters)), (0.0, 0))  # type: ignore[union-attr]

    def test_status(self) -> None:
        """The status tells the limit, for whom it was set, and how it stands."""
        request = by("alice", "app")
        self.assertIs(self.meters.status(request, self.clock.seconds()), None)
        self.configure(DEFAULT_CLIENT)
        self.spend(request, 150)
        status = self.meters.status(request, self.clock.seconds())
        assert status is not None
        self.assertEqual(
            (status.limitName, status.limit, status.entity, status.used, status.delaySeconds, status.utilization),
            (RATE, 100.0, DEFAULT_CLIENT, 150.0, 0.5, 1.5),
        )


class CardinalityTests(MetersTestCase):
    """More clients than there is room for."""

    def test_overflow(self) -> None:
        """The first ten have a meter each, all others share one under the same limit, and harm only each other."""
        self.configure(DEFAULT_CLIENT)
        for number in range(10):
            self.assertEqual(self.spend(by("alice", str(number)), 60), 0.0)
        now = self.clock.seconds()
        delays = [self.meters.spend(by("alice", f"new-{number}"), 60, now) for number in range(3)]
        self.assertEqual(delays, [0.0, 0.2, 0.8])
        self.assertEqual(self.owed(by("alice", "new-9"), by("alice", "3")), [0.8, 0.0])
        self.assertEqual(self.budget(by("alice", "new-9")), 0)

    def test_sizeBytes(self) -> None:
        """
        What the meters and the names that they keep take is known, within a fifth of the truth, and is nothing when
        all have been forgotten.
        """
        for algorithm in (Windows(11, 1.0), Buckets(1.0), SharedBuckets(1.0)):
            for length in (8, 240):
                self.limits = LimitTable([RATE])
                self.meters = Meters(self.limits, RATE, algorithm.build, 2000, meterBytes=algorithm.meterBytes)
                self.configure(DEFAULT_CLIENT)
                gc.collect()
                tracemalloc.start()
                try:
                    for number in range(2000):
                        self.meters.spend(by("alice", f"{number:0{length}}"), 1, 1.0)
                    grownBytes, _ = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
                self.assertLess(abs(self.meters.sizeBytes / grownBytes - 1), 0.2, (algorithm, length))
                self.meters.sweep(1000.0)
                self.assertEqual((len(self.meters), self.meters.sizeBytes), (0, 0))

    def test_sizeOfDropped(self) -> None:
        """
        A meter that is dropped because its limit is gone takes its name with it; names without a limit count while
        they are remembered.
        """
        self.configure(QuotaEntity(clientId="named"))
        self.meters.spend(by("alice", "named"), 1, 0.0)
        self.configure(QuotaEntity(clientId="named"), None)
        self.assertEqual(self.meters.sizeBytes, 0)
        self.meters.spend(by("alice", "x" * 200), 1, 0.0)
        self.assertEqual(len(self.meters), 0)
        self.assertGreater(self.meters.sizeBytes, 200)

    def test_longName(self) -> None:
        """A limit that is set for a long name holds for requests, whose names are bounded."""
        name = "x" * 400
        self.configure(QuotaEntity(clientId=name))
        request = by("alice", boundedName(name))
        self.meters.spend(request, 200, 0.0)
        self.assertEqual(self.owed(request, by("alice", boundedName("x" * 399))), [1.0, 0.0])
        self.configure(QuotaEntity(clientId=name), 50.0)
        self.assertEqual(self.owed(request), [2.0])

    def test_overflowOfEachDefault(self) -> None:
        """Each default has an overflow of its own, since their limits differ; it goes with its limit."""
        self.configure(DEFAULT_CLIENT)
        self.configure(ALICE_DEFAULT, 50.0)
        for number in range(10):
            self.spend(by("bob", str(number)), 10)
        self.assertEqual(self.spend(by("bob", "x"), 200), 1.0)
        self.assertEqual(self.spend(by("alice", "x"), 200), 3.0)
        self.configure(ALICE_DEFAULT, 150.0)
        self.assertEqual(self.owed(by("alice", "y"), by("bob", "y")), [1.0, 1.0])
        self.configure(ALICE_DEFAULT, None)
        self.assertEqual((len(self.meters), self.owed(by("alice", "y"))), (11, [1.0]))

    def test_overflowOfEachAddress(self) -> None:
        """A flood of names from one address harms those that are new there, and not those that are new at another."""
        self.meters = Meters(self.limits, RATE, Buckets(1.0).build, 20)
        self.configure(DEFAULT_CLIENT)

        def new(name: str, peer: str) -> Request:
            return Request("Produce", "alice", name, peer, 100)

        for number in range(25):
            self.spend(new(str(number), "192.0.2.66"), 100)
        for peer, expected in (("192.0.2.66", 4.0), ("192.0.2.1", 0.0)):
            self.assertEqual(self.owed(new("another", peer)), [expected])
            self.spend(new("another", peer), 100)
        # Beyond some addresses, all others share.
        for peer in ("192.0.2.2", "192.0.2.3"):
            self.spend(new("another", peer), 100)
        self.assertEqual(self.owed(new("more", "192.0.2.4")), [1.0])
        self.assertEqual(len(self.meters), 20 + 2 + 1)
        self.configure(DEFAULT_CLIENT, None)
        self.assertEqual(len(self.meters), 0)

    def test_roomAgain(self) -> None:
        """Meters that are idle make room for newcomers, swept or not."""
        self.configure(DEFAULT_CLIENT)
        for number in range(10):
            self.spend(by("alice", str(number)), 60)
        shared = by("alice", "new")
        self.spend(shared, 150)
        self.clock.advance(0.6)
        for number in range(11):
            self.spend(by("alice", f"{number} more"), 10)
        self.assertEqual(self.owed(shared), [0.0])
        self.assertEqual(self.spend(shared, 150), 0.5)
        self.assertEqual(self.owed(by("alice", "newer")), [0.0])

    def test_sweep(self) -> None:
        """Sweeping drops idle clients, and one that comes back is counted anew."""
        self.configure(DEFAULT_CLIENT)
        self.spend(by("alice", "a"), 50)
        self.spend(by("alice", "b"), 200)
        self.clock.advance(1.0)
        self.meters.sweep(self.clock.seconds())
        self.assertEqual((len(self.meters), self.owed(by("alice", "b"))), (1, [0.0]))
        self.assertEqual([self.spend(by("alice", "a"), 150) for _ in range(2)], [0.5, 2.0])

    def test_aMillionClients(self) -> None:
        """
        However many client ids come by, there are no more meters than agreed,
        and no more memory is taken for the last than for the first.
        """
        self.meters = Meters(self.limits, RATE, Buckets(1.0).build, 1000)
        self.configure(DEFAULT_CLIENT)
        self.configure(QuotaEntity("alice"))
        tracemalloc.start()
        try:
            sizes = []
            for first in range(0, 6000, 2000):
                for number in range(first, first + 2000):
                    for user in ("alice", "bob"):
                        self.spend(by(user, f"client-{number}"), 10)
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        self.assertEqual(len(self.meters), 1002)
        self.assertLess(max(sizes), 1_500_000)
        self.assertLess(sizes[2] - sizes[0], 200_000)
        for number in range(10_000):
            self.spend(by("bob", str(number)), 10)
        self.assertEqual(len(self.meters), 1002)

    def test_roomOfNamed(self) -> None:
        """
        Room is for clients without a name, also after clients with one have
        come, been swept and lost their limits.
        """
        self.configure(DEFAULT_CLIENT)
        for name in ("swept", "removed", "kept"):
            self.configure(QuotaEntity(clientId=name), 50.0)
            self.spend(by("alice", name), 10 if name == "swept" else 200)
        for number in range(10):
            self.spend(by("alice", str(number)), 200)
        self.assertEqual((len(self.meters), self.meters.overflows), (13, 0))
        self.clock.advance(0.5)
        self.meters.sweep(self.clock.seconds())
        self.configure(QuotaEntity(clientId="removed"), None)
        self.assertEqual(len(self.meters), 12)
        self.spend(by("alice", "new"), 10)
        self.assertEqual((len(self.meters), self.meters.overflows), (13, 1))

    def test_sweepingIsAmortised(self) -> None:
        """A flood of new clients looks for room once for as many of them as there are meters, and not each time."""
        looks = 0

        class Counting:
            delays = None

            def __init__(self, limit: Limit, now: float) -> None:
                self.limit = limit
                self.bucket = Bucket(limit, 1.0, now)

            def spend(self, amount: float, now: float) -> float:
                return self.bucket.spend(amount, now)

            def isIdle(self, now: float) -> bool:
                nonlocal looks
                looks += 1
                return self.bucket.isIdle(now)

        build: Any = Counting
        meters = Meters(self.limits, RATE, build, 100)
        self.limits.configure(DEFAULT_CLIENT, {RATE: 100.0})
        for number in range(1100):
            meters.spend(by("alice", str(number)), 1, self.clock.seconds())
        self.assertEqual((len(meters), meters.overflows), (101, 1000))
        # The first one finds no meter that is shared.
        self.assertEqual(looks, 10 * 101 - 1)

    def test_needsRoom(self) -> None:
        """Meters without room for anybody are a mistake."""
        self.assertRaises(ValueError, Meters, self.limits, RATE, Buckets(1.0).build, 0)

    def test_dropped(self) -> None:
        """Refreshing tells which meters no limit holds for any more, shared ones too."""
        meters = Meters(self.limits, RATE, Buckets(1.0).build, 1)
        self.limits.configure(DEFAULT_CLIENT, {RATE: 100.0})
        for name in "ab":
            meters.spend(by("alice", name), 50, self.clock.seconds())
        found = [meters.find(by("alice", name), self.clock.seconds()) for name in "ab"]
        self.assertEqual(meters.refresh(DEFAULT_CLIENT, self.clock.seconds()), [])
        self.limits.configure(DEFAULT_CLIENT, {RATE: None})
        self.assertEqual(meters.refresh(DEFAULT_CLIENT, self.clock.seconds()), found)
        self.assertEqual(len(meters), 0)

    @settings(max_examples=30, deadline=None)
    @given(steps=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 300), st.floats(0, 1)), max_size=100))
    def test_sharedMetersHoldTheirLimit(self, steps: list[tuple[int, int, float]]) -> None:
        """
        Whichever client comes when, there are never more meters than agreed, and nobody is told to wait for longer than
        what was taken by all can make it.
        """
        self.setUp()
        self.configure(DEFAULT_CLIENT)
        total = 0
        for client, amount, pauseSeconds in steps:
            self.clock.advance(pauseSeconds)
            delaySeconds = self.spend(by("alice", str(client)), amount)
            total += amount
            self.assertLessEqual(delaySeconds, max(total / 100 - 1.0, 0.0) + 1e-9)
            self.assertLessEqual(len(self.meters), 11)


class SensorTests(MetersTestCase):
    """What is published."""

    def read(self, registry: SensorRegistry, name: str) -> dict[tuple[str, ...], float]:
        """The values of a family by their labels."""
        return {tuple(labels): value for labels, value in registry.families[name].read(self.clock.seconds())}

    def test_families(self) -> None:
        """
        Every meter shows under whom it is for, with what does not matter left
        empty, and those who share under a word of their own.
        """
        registry = SensorRegistry(self.clock.seconds)
        self.meters.addSensors(registry, "client-bytes.Produce", Buckets(1.0).reads("byte-rate"))
        self.configure(DEFAULT_CLIENT)
        self.configure(ALICE)
        self.spend(by("alice", "app"), 150)
        for number in range(11):
            self.spend(by("bob", str(number)), 100 + number)
        tokens = self.read(registry, "client-bytes.Produce.tokens")
        self.assertEqual(len(tokens), 12)
        self.assertEqual((tokens["alice", ""], tokens["", "0"], tokens["", OVERFLOW]), (-50.0, 0.0, -10.0))
        self.assertEqual(self.read(registry, "client-bytes.Produce.utilization")["alice", ""], 1.5)
        delays = self.read(registry, "client-bytes.Produce.throttle-time")
        self.assertEqual((delays["alice", ""], str(delays["", "0"])), (500.0, "nan"))
        self.assertEqual(registry.families["client-bytes.Produce.tokens"].labelNames, ("user", "client-id"))
        self.assertEqual(dict(registry), {"client-bytes.Produce.meters": 12, "client-bytes.Produce.overflows": 1})

    def test_throttleTime(self) -> None:
        """The throttle time is the mean of the last minute's delays, in milliseconds, and none once that has passed."""
        registry = SensorRegistry(self.clock.seconds)
        self.meters.addSensors(registry, "x", Buckets(1.0).reads("byte-rate"))
        self.configure(DEFAULT_CLIENT)
        self.spend(by("alice", "app"), 200)
        self.spend(by("alice", "app"), 200)
        self.assertEqual(self.read(registry, "x.throttle-time"), {("", "app"): 2000.0})
        self.clock.advance(60.0)
        self.assertEqual(str(self.read(registry, "x.throttle-time")["", "app"]), "nan")

    def test_labelsAreUnique(self) -> None:
        """
        A client that calls itself by the word for those who share does not
        show beside them, and no labels come twice.
        """
        registry = SensorRegistry(self.clock.seconds)
        self.meters.addSensors(registry, "x", Buckets(1.0).reads("byte-rate"))
        self.configure(DEFAULT_CLIENT)
        self.spend(by("alice", OVERFLOW), 70)
        for number in range(10):
            self.spend(by("alice", str(number)), 20)
        labels = [tuple(labels) for labels, _ in registry.families["x.tokens"].read(self.clock.seconds())]
        self.assertEqual((len(labels), len(set(labels))), (10, 10))
        self.spend(by("alice", "more"), 30)
        self.assertEqual(self.read(registry, "x.tokens")["", OVERFLOW], 50.0)

    def test_addresses(self) -> None:
        """Addresses have one label."""
        registry = SensorRegistry(self.clock.seconds)
        limits = LimitTable([RATE], ADDRESS_KINDS)
        meters = Meters(limits, RATE, Buckets(1.0).build, 1, byAddress)
        limits.configure(QuotaEntity(ip=DEFAULT), {RATE: 100.0})
        meters.refresh(QuotaEntity(ip=DEFAULT), self.clock.seconds())
        meters.addSensors(registry, "x", Buckets(1.0).reads("rate"), ("ip",))
        for number in (1, 2):
            meters.spend(at(f"192.0.2.{number}"), 10, self.clock.seconds())
        self.assertEqual(self.read(registry, "x.tokens"), {("192.0.2.1",): 90.0, (OVERFLOW,): 90.0})
        self.assertEqual(registry.families["x.tokens"].labelNames, ("ip",))


class WindowTests(SynchronousTestCase):
    """L{Window}: the arithmetic of Kafka's quotas."""

    def build(self, limit: float, samples: int = 11, windowSeconds: float = 1.0) -> Window:
        """Make a meter."""
        return Windows(samples, windowSeconds).build(limitOf(limit), 0.0)

    def test_example(self) -> None:
        """
        With a limit of 1000 a second and a rate of 1200 over ten seconds, the
        delay is (1200 - 1000) / 1000 * 10 = 2 seconds.
        """
        meter = self.build(1000.0)
        self.assertEqual(meter.spend(12_000, 0.0), 2.0)
        self.assertEqual((meter.used(0.0), meter.delaySeconds(0.0), meter.room(0.0)), (1200.0, 2.0, -2000.0))

    def test_equalIsAllowed(self) -> None:
        """A client that takes exactly the limit is not throttled; with one more, it is."""
        meter = self.build(1000.0)
        self.assertEqual(meter.spend(10_000, 0.0), 0.0)
        self.assertEqual((meter.used(0.0), meter.room(0.0)), (1000.0, 0.0))
        self.assertAlmostEqual(meter.spend(1, 0.0), 0.001)

    def test_microsecondBack(self) -> None:
        """
        Callers that round the time may be a microsecond behind those that do not: for the windows that is the same
        moment, also at a first record.
        """
        meter = self.build(1000.0)
        for now in (100.0, 100.5, 250.0):
            meter.spend(11_000.0, now)
            earlier, present = meter.measure(now - 1e-6), meter.measure(now)
            self.assertEqual(earlier[0], present[0])
            self.assertAlmostEqual(earlier[1], present[1], places=5)
            self.assertAlmostEqual(meter.spend(0.0, now - 1e-6), meter.delaySeconds(now), places=5)
            self.assertFalse(meter.isIdle(now - 1e-6))

    def test_hugeDelays(self) -> None:
        """3,000,000 bytes at 1 byte a second are 2,999,990 seconds and never negative."""
        meter = self.build(1.0)
        self.assertEqual(meter.spend(3_000_000, 0.0), 2_999_990.0)
        self.assertEqual(meter.spend(2**62, 0.5), (3_000_000 + 2**62) - 10.5)

    def test_cap(self) -> None:
        """It asks for no longer delay than it is to."""
        meter = Windows(11, 1.0, maxDelaySeconds=1.0).build(limitOf(100.0), 0.0)
        self.assertEqual(meter.spend(1050, 0.0), 0.5)
        self.assertEqual(meter.spend(1e6, 0.0), 1.0)

    def test_setLimit(self) -> None:
        """Another limit holds at once, for what was counted before too."""
        meter = self.build(1000.0)
        meter.spend(20_000, 0.0)
        meter.setLimit(limitOf(4000.0), 0.0)
        self.assertEqual((meter.delaySeconds(0.0), meter.room(0.0)), (0.0, 20_000.0))
        self.assertEqual(meter.spend(21_000, 0.0), 0.25)
        meter.setLimit(limitOf(1000.0), 0.0)
        self.assertEqual(meter.delaySeconds(0.0), 31.0)

    def test_isIdle(self) -> None:
        """It is idle once nothing counts."""
        meter = self.build(1000.0)
        self.assertTrue(meter.isIdle(0.0))
        meter.spend(1, 0.0)
        self.assertEqual([meter.isIdle(at) for at in (10.9, 11.0)], [False, True])

    @given(
        samples=st.integers(1, 5),
        windowSeconds=st.integers(1, 4),
        limit=st.integers(1, 50),
        steps=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 100)), max_size=40),
    )
    def test_sameAsTheSampledTotal(
        self, samples: int, windowSeconds: int, limit: int, steps: list[tuple[int, int]]
    ) -> None:
        """Its short cuts do not show: the delay is always that of the sampled total and its span."""
        meter, sampled = self.build(limit, samples, windowSeconds), SampledTotal(samples, windowSeconds)
        now = 0
        for pause, amount in steps:
            now += pause
            sampled.record(amount, now)
            total, spanSeconds = sampled.measure(now)
            delaySeconds = max(total / limit - spanSeconds, 0.0)
            self.assertEqual(meter.spend(amount, now), delaySeconds)
            self.assertEqual(meter.delaySeconds(now), delaySeconds)

    @settings(deadline=None)
    @given(
        limit=st.sampled_from([1000.0, 12.5, 1e9]),
        steps=st.lists(
            st.tuples(st.sampled_from([0.0, 0.001, 0.1, 0.999, 1.0, 3.0, 11.0]), st.floats(0.001, 1)), max_size=60
        ),
    )
    def test_neverFarOver(self, limit: float, steps: list[tuple[float, float]]) -> None:
        """
        Requests of up to what the limit allows in one window: over any stretch
        of time somebody who waits as told takes no more than the limit, plus
        what all windows together hold, plus one request.
        """
        taken = obey(self.build(limit), [(pause, share * limit) for pause, share in steps])
        self.assertLessEqual(excess(taken, limit), limit * 11 * (1 + 1e-9))

    @settings(deadline=None)
    @given(
        steps=st.lists(
            st.tuples(st.sampled_from([0.0, 0.1, 1.0, 3.0, 11.0]), st.sampled_from([1, 999, 10_001, 21_000, 500_000])),
            max_size=60,
        )
    )
    def test_largeRequests(self, steps: list[tuple[float, float]]) -> None:
        """With requests of any size the same is true of stretches that are no longer than what the windows cover."""
        taken = obey(self.build(1000.0), steps)
        self.assertLessEqual(excess(taken, 1000.0, longestSeconds=10.0), 12_000 * (1 + 1e-9))

    @settings(deadline=None)
    @given(
        pauses=st.lists(st.floats(0.001, 1.0), min_size=5, max_size=40),
        shares=st.lists(st.floats(0.0, 1.0), min_size=40, max_size=40),
    )
    def test_conformingIsFree(self, pauses: list[float], shares: list[float]) -> None:
        """A client that takes up to ten elevenths of the limit at least once a window is never throttled."""
        meter = self.build(1000.0)
        now = 0.0
        for pause, share in zip(pauses, shares, strict=False):
            now += pause
            self.assertEqual(meter.spend(share * pause * 1000.0 * 10 / 11, now), 0.0)


class BucketTests(SynchronousTestCase):
    """L{Bucket}."""

    def build(self, limit: float, burstSeconds: float = 1.0) -> Bucket:
        """Make a meter."""
        return Buckets(burstSeconds).build(limitOf(limit), 0.0)

    def test_used(self) -> None:
        """A full bucket is not used at all, an empty one wholly, one that owes more."""
        meter = self.build(1000.0)
        used = [meter.used(0.0)]
        for amount in (500, 500, 1000):
            meter.spend(amount, 0.0)
            used.append(meter.used(0.0))
        self.assertEqual(used, [0.0, 500.0, 1000.0, 2000.0])
        self.assertEqual((meter.room(0.0), meter.room(1.5)), (-1000.0, 500.0))

    def test_rate(self) -> None:
        """It can tell what was taken each second lately, whatever that owes."""
        meter = self.build(1000.0)
        for atSeconds in range(10):
            meter.spend(3000, float(atSeconds))
        self.assertEqual(Buckets(1.0).reads("byte-rate")["byte-rate"](meter, 10.0), 3000.0)

    def test_setLimit(self) -> None:
        """Another limit is the rate from that moment on; what is owed stays owed."""
        meter = self.build(1000.0)
        meter.spend(3000, 0.0)
        meter.setLimit(limitOf(100.0), 1.0)
        self.assertEqual((meter.delaySeconds(1.0), meter.limit.value, meter.used(1.0)), (10.0, 100.0, 1100.0))

    def test_sinceAReading(self) -> None:
        """
        The recent rate is that since a reading ten seconds ago or longer,
        however often somebody reads it, and a number from the beginning.
        """
        meter = Buckets(1.0).build(limitOf(1000.0), 100.0)
        rates = [meter.recentRate(100.0)]
        for amount, at in ((50, 105.0), (150, 110.0), (0, 114.0), (300, 120.0), (0, 125.0), (0, 130.0)):
            meter.spend(amount, at)
            rates.append(meter.recentRate(at))
        # From 120 s on the reading at 110 s counts.
        self.assertEqual(rates, [0.0, 10.0, 20.0, 200.0 / 14, 30.0, 20.0, 0.0])

    @settings(deadline=None)
    @given(
        limit=st.sampled_from([1000.0, 12.5, 1e9]),
        burstSeconds=st.sampled_from([0.1, 1.0, 11.0]),
        steps=st.lists(st.tuples(st.sampled_from([0.0, 0.001, 0.1, 1.0, 3.0]), st.floats(0.0001, 50)), max_size=60),
    )
    def test_neverOver(self, limit: float, burstSeconds: float, steps: list[tuple[float, float]]) -> None:
        """
        Over any stretch of time somebody who waits as told takes no more than
        the limit, plus the burst, plus one request, whatever its size.
        """
        taken = obey(self.build(limit, burstSeconds), [(pause, share * limit) for pause, share in steps])
        self.assertLessEqual(excess(taken, limit), max(limit * burstSeconds, 1.0) + limit * 1e-3)

    @settings(deadline=None)
    @given(steps=st.lists(st.tuples(st.floats(0.001, 30.0), st.floats(0.0, 1.0)), min_size=5, max_size=40))
    def test_conformingIsFree(self, steps: list[tuple[float, float]]) -> None:
        """
        A client that takes no more than the limit allows in each pause, and no more than the burst at once, is never
        throttled.
        """
        meter = self.build(1000.0)
        now = 0.0
        for pause, share in steps:
            now += pause
            self.assertEqual(meter.spend(share * min(pause, 1.0) * 1000.0, now), 0.0)

    def test_exactOverTenSeconds(self) -> None:
        """
        Once the burst is spent, any ten seconds bring the limit within 2 % or
        one request: to a steady client, a bursty one, and one that has ten
        times as much, whatever the size of its requests.
        """
        limit = 1000.0
        for amount in (1.0, 37.0, 1000.0, 4000.0, 9999.0, 30_000.0):
            requestSeconds = amount / limit
            # More than the burst has room for, twice as often as the limit allows.
            together = max(2, int(4 / requestSeconds))
            for name, arrival in {
                "steady": lambda number: number * 0.9,
                "tenfold": lambda number: number * 0.1,
                "bursty": lambda number: number // together * together * 0.5,  # noqa: B023
            }.items():
                meter, readySeconds, spent, taken = self.build(limit), 0.0, 0, []
                for number in range(int(60 / requestSeconds) + 10):
                    now = max(arrival(number) * requestSeconds, readySeconds)
                    taken.append((now, amount))
                    readySeconds = now + meter.spend(amount, now)
                    if not spent and readySeconds > now:
                        spent = len(taken)
                sizes = list(self.sizesOfTenSeconds(taken[spent:]))
                self.assertTrue(sizes)
                for size in sizes:
                    tolerated = max(0.02 * 10 * limit, amount) * (1 + 1e-9)
                    self.assertLessEqual(abs(size - 10 * limit), tolerated, (name, amount))

    def sizesOfTenSeconds(self, taken: Taken) -> Iterator[float]:
        """How much was taken in the ten seconds from each request on."""
        end, total = 0, 0.0
        for start, amount in taken:
            while end < len(taken) and taken[end][0] < start + 10.0:
                total += taken[end][1]
                end += 1
            if end == len(taken):
                return
            yield total
            total -= amount


class SharedBucketTests(SynchronousTestCase):
    """L{SharedBucket}: what is used here, and what elsewhere."""

    def setUp(self) -> None:
        self.algorithm = SharedBuckets(1.0)
        self.meter = self.algorithm.build(limitOf(1000.0), 0.0)

    def test_used(self) -> None:
        """What others have told of is used elsewhere; time pays for both alike, until nothing is used."""
        elsewhere = [self.meter.usedElsewhere(0.0)]
        self.meter.spend(600, 0.0)
        elsewhere.append(self.meter.usedElsewhere(0.0))
        self.meter.spendElsewhere(200, 0.0)
        elsewhere.append(self.meter.usedElsewhere(0.0))
        self.assertEqual(self.meter.tell(0.0), 600.0)
        elsewhere += [self.meter.usedElsewhere(now) for now in (0.0, 0.4, 0.8)]
        self.assertEqual([round(each, 9) for each in elsewhere], [0.0, 0.0, 200.0, 200.0, 100.0, 0.0])
        # Full again, it has forgotten who took what.
        self.meter.spend(500, 1.0)
        self.meter.tell(1.0)
        self.assertEqual(self.meter.usedElsewhere(1.0), 0.0)

    def test_fraction(self) -> None:
        """Of a part of a limit the same part is used, whatever it is a part of."""
        self.algorithm.fraction, self.algorithm.count = 0.5, 2
        self.meter.shared(0.0)
        self.meter.spendElsewhere(250, 0.0)
        self.assertEqual(
            (self.meter.fraction, self.meter.used(0.0), self.meter.usedElsewhere(0.0)), (0.5, 500.0, 500.0)
        )
        self.assertEqual(self.algorithm.reads("byte-rate")["utilization"](self.meter, 0.0), 1.0)

    def test_debt(self) -> None:
        """A debt is as large a part of a limit however many servers share it, and all is used when it begins."""
        used = []
        for count in (1, 2, 4):
            self.algorithm.count = count
            meter = self.algorithm.build(limitOf(1000.0), 0.0)
            meter.spend(meter.burst, 0.0)
            atOnce = meter.used(0.0)
            meter.spend(19_000, 0.0)
            used.append((atOnce, meter.used(0.0)))
        self.assertEqual(used, [(1000.0, 20_000.0)] * 3)

    @settings(deadline=None)
    @given(
        steps=st.lists(
            st.tuples(
                st.sampled_from([0.0, 0.001, 0.1, 3.0]),
                st.sampled_from(["here", "elsewhere", "told"]),
                st.floats(0, 3000),
            ),
            max_size=40,
        )
    )
    def test_partOfWhatIsUsed(self, steps: list[tuple[float, str, float]]) -> None:
        """What is used elsewhere is part of what is used, whatever happens."""
        meter, now = self.algorithm.build(limitOf(1000.0), 0.0), 0.0
        for pause, what, amount in steps:
            now += pause
            if what == "told":
                meter.tell(now)
            else:
                (meter.spend if what == "here" else meter.spendElsewhere)(amount, now)
            self.assertTrue(0.0 <= meter.usedElsewhere(now) <= meter.used(now), steps)

    def test_twoServers(self) -> None:
        """While clients take thrice as much elsewhere as here, about three quarters of the limit are used there."""
        now = 0.0
        for _ in range(100):
            now += 0.1
            for _ in range(5):
                self.meter.spend(5, now)
            self.meter.spendElsewhere(75, now)
            self.meter.tell(now)
        self.assertTrue(0.65 <= self.meter.usedElsewhere(now) / self.meter.used(now) <= 0.85)


class AlgorithmTests(SynchronousTestCase):
    """L{Windows} and L{Buckets}."""

    def test_horizons(self) -> None:
        """Windows are forgotten, debts are not."""
        self.assertEqual((Windows(11, 2.0).horizonSeconds, Buckets(1.0).horizonSeconds), (24.0, None))

    def test_refusesWhatIsNotPositive(self) -> None:
        """No windows, windows without length, and no burst are mistakes."""
        builders: list[Callable[[], object]] = [lambda: Windows(0, 1.0), lambda: Windows(11, 0.0), lambda: Buckets(0.0)]
        for build in builders:
            self.assertRaises(ValueError, build)

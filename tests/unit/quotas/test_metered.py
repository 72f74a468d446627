"""
L{admission.quotas.metered}.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import DEFAULT, QuotaEntity, Request
from admission.metrics.registry import SensorRegistry
from admission.quotas.limits import ADDRESS_KINDS, LimitTable
from admission.quotas.metered import OVERFLOW, MeteredAddressLimit, MeteredLimit
from admission.quotas.meters import Buckets

RATE = "rate"

ALICE_APP = QuotaEntity("alice", "app")
ALICE_DEFAULT = QuotaEntity("alice", DEFAULT)
ALICE = QuotaEntity("alice")
DEFAULT_APP = QuotaEntity(DEFAULT, "app")
DEFAULT_DEFAULT = QuotaEntity(DEFAULT, DEFAULT)
DEFAULT_USER = QuotaEntity(DEFAULT)
APP = QuotaEntity(None, "app")
DEFAULT_CLIENT = QuotaEntity(None, DEFAULT)


def by(principal: str, clientId: str) -> Request:
    """
    A request of somebody.
    """
    return Request("Produce", principal, clientId, "192.0.2.1", 100)


def at(ip: str) -> Request:
    """
    A request that comes from somewhere.
    """
    return Request("Produce", "alice", "app", ip, 100)


class MeteredTestCase(SynchronousTestCase):
    """
    A limit of 100 a second with buckets for a second, whoever has it.
    """

    def setUp(self) -> None:
        """
        Make a limit that nobody has, for ten clients without a name.
        """
        self.clock = Clock()
        self.limits = LimitTable([RATE])
        self.metered = MeteredLimit(self.limits, RATE, Buckets(1.0), 10)

    def configure(self, entity: QuotaEntity, value: float | None = 100.0) -> None:
        """
        Set or remove a limit.
        """
        self.limits.configure(entity, {RATE: value})
        self.metered.refresh(entity, self.clock.seconds())

    def owed(self, *requests: Request) -> list[float]:
        """
        How long each of these has to wait.
        """
        return [self.metered.delaySeconds(request, self.clock.seconds()) for request in requests]


class SharingTests(MeteredTestCase):
    """
    Who shares a meter.
    """

    def assertShare(self, entity: QuotaEntity, keys: dict[tuple[str, str], Any]) -> None:
        """
        With that one limit, clients share a meter exactly if they have the same
        value in C{keys}; L{None} for those who have no limit.
        """
        for spender in keys:
            self.setUp()
            self.configure(entity)
            self.metered.spend(by(*spender), 200, self.clock.seconds())
            for other in keys:
                delaySeconds = self.metered.delaySeconds(by(*other), self.clock.seconds())
                isShared = keys[spender] is not None and keys[other] == keys[spender]
                self.assertEqual(delaySeconds, 1.0 if isShared else 0.0, (entity, spender, other))
                if keys[spender] is not None and keys[other] is not None:
                    isSame = self.metered.keyOf(by(*other)) == self.metered.keyOf(by(*spender))
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
        """
        Each address has a meter of its own, whoever comes from there.
        """
        limits = LimitTable([RATE], ADDRESS_KINDS)
        metered = MeteredAddressLimit(limits, RATE, Buckets(1.0), 10)
        self.assertEqual(metered.spend(at("192.0.2.1"), 200, self.clock.seconds()), 0.0)
        limits.configure(QuotaEntity(ip=DEFAULT), {RATE: 100.0})
        metered.refresh(QuotaEntity(ip=DEFAULT), self.clock.seconds())
        self.assertEqual(metered.spend(at("192.0.2.1"), 200, self.clock.seconds()), 1.0)
        self.assertEqual(
            [metered.delaySeconds(at(ip), self.clock.seconds()) for ip in ("192.0.2.1", "192.0.2.2")], [1.0, 0.0]
        )
        self.assertEqual(metered.spend(at("192.0.2.2"), 0, self.clock.seconds()), 0.0)
        self.assertEqual(
            (
                metered.budget(at("192.0.2.1"), self.clock.seconds()),
                metered.budget(at("192.0.2.2"), self.clock.seconds()),
            ),
            (0, 100),
        )
        self.assertNotEqual(metered.keyOf(at("192.0.2.1")), metered.keyOf(at("192.0.2.2")))
        limits.configure(QuotaEntity(ip="192.0.2.1"), {RATE: 200.0})
        metered.refresh(QuotaEntity(ip="192.0.2.1"), self.clock.seconds())
        self.assertEqual(
            [metered.delaySeconds(at(ip), self.clock.seconds()) for ip in ("192.0.2.1", "192.0.2.2")], [0.5, 0.0]
        )

    @given(spending=st.lists(st.tuples(st.sampled_from(["b", "c"]), st.integers(1, 500), st.floats(0, 2))))
    def test_nobodyElseMoves(self, spending: list[tuple[str, int, float]]) -> None:
        """
        What one client takes, however much, never shows in what another is told.
        """
        self.setUp()
        self.configure(DEFAULT_CLIENT)
        alone = MeteredLimit(self.limits, RATE, Buckets(1.0), 10)
        for clientId, amount, pauseSeconds in spending:
            self.clock.advance(pauseSeconds)
            self.metered.spend(by("alice", clientId), amount, self.clock.seconds())
            request = by("alice", "a")
            self.assertEqual(
                self.metered.spend(request, 30, self.clock.seconds()), alone.spend(request, 30, self.clock.seconds())
            )
            self.assertEqual(
                self.metered.status(request, self.clock.seconds()), alone.status(request, self.clock.seconds())
            )


class ChangingTests(MeteredTestCase):
    """
    Limits that change while they are used.
    """

    def test_bound(self) -> None:
        """
        A new bound holds at once, and what was taken stays counted.
        """
        self.configure(DEFAULT_CLIENT)
        self.metered.spend(by("alice", "app"), 300, self.clock.seconds())
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
        self.metered.spend(by("alice", "app"), 300, self.clock.seconds())
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
        self.metered.spend(by("alice", "app"), 300, self.clock.seconds())
        self.configure(ALICE)
        self.assertEqual(self.owed(by("alice", "app"), by("bob", "app")), [0.0, 2.0])
        self.configure(ALICE, None)
        self.assertEqual(self.owed(by("alice", "app")), [2.0])

    def test_removed(self) -> None:
        """
        Who has no limit any more is free at once, and nothing is remembered.
        """
        self.configure(DEFAULT_CLIENT)
        self.metered.spend(by("alice", "app"), 300, self.clock.seconds())
        self.configure(DEFAULT_CLIENT, None)
        self.assertEqual(
            (self.metered.spend(by("alice", "app"), 300, self.clock.seconds()), len(self.metered)), (0.0, 0)
        )
        self.assertIs(self.metered.budget(by("alice", "app"), self.clock.seconds()), None)
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
        self.metered.spend(by("alice", "app"), 2100, self.clock.seconds())
        delays = []
        for entity in (None, *entities):
            if entity is not None:
                self.configure(entity, None)
            delays.append(self.owed(by("alice", "app"))[0])
        self.assertEqual(([round(each, 3) for each in delays], len(self.metered)), ([20.0, 10.0, 6.667, 5.0, 0.0], 0))

        self.configure(DEFAULT_USER)
        self.configure(ALICE, 200.0)
        for name in ("alice", "bob"):
            self.metered.spend(by(name, "app"), 1000, self.clock.seconds())
        self.configure(DEFAULT_USER, 50.0)
        self.assertEqual(self.owed(by("alice", "app"), by("bob", "app")), [4.0, 18.0])
        self.configure(ALICE, None)
        self.assertEqual(self.owed(by("alice", "app")), [16.0])

    def test_limitForSomebodyNew(self) -> None:
        """
        Who has been seen to have no limit has one as soon as it is set.
        """
        self.configure(APP)
        self.assertEqual(self.metered.spend(by("alice", "other"), 200, self.clock.seconds()), 0.0)
        self.configure(DEFAULT_CLIENT)
        self.assertEqual(self.metered.spend(by("alice", "other"), 200, self.clock.seconds()), 1.0)


class AskingTests(MeteredTestCase):
    """
    Asking without spending.
    """

    def test_budget(self) -> None:
        """
        The budget is what there is room for, at least one for who is not over
        the limit, and nothing for who is.
        """
        request = by("alice", "app")
        self.assertIs(self.metered.budget(request, self.clock.seconds()), None)
        self.configure(DEFAULT_CLIENT)
        budgets = [self.metered.budget(request, self.clock.seconds())]
        for amount in (30, 69.5, 0.5, 1):
            self.metered.spend(request, amount, self.clock.seconds())
            budgets.append(self.metered.budget(request, self.clock.seconds()))
        self.assertEqual(budgets, [100, 70, 1, 1, 0])

    def test_nothingSpent(self) -> None:
        """
        Who only asks, or spends nothing, gets no meter.
        """
        self.configure(DEFAULT_CLIENT)
        request = by("alice", "app")
        self.metered.spend(request, 0, self.clock.seconds())
        self.metered.budget(request, self.clock.seconds())
        self.metered.delaySeconds(request, self.clock.seconds())
        self.assertEqual((self.metered.status(request, self.clock.seconds()).used, len(self.metered)), (0.0, 0))  # type: ignore[union-attr]

    def test_status(self) -> None:
        """
        The status tells the limit, for whom it was set, and how it stands.
        """
        request = by("alice", "app")
        self.assertIs(self.metered.status(request, self.clock.seconds()), None)
        self.configure(DEFAULT_CLIENT)
        self.metered.spend(request, 150, self.clock.seconds())
        status = self.metered.status(request, self.clock.seconds())
        assert status is not None
        self.assertEqual(
            (status.limitName, status.limit, status.entity, status.used, status.delaySeconds, status.utilization),
            (RATE, 100.0, DEFAULT_CLIENT, 150.0, 0.5, 1.5),
        )


class CardinalityTests(MeteredTestCase):
    """
    More clients than there is room for.
    """

    def test_overflow(self) -> None:
        """
        The first ten have a meter each, all others share one under the same
        limit, and harm only each other.
        """
        self.configure(DEFAULT_CLIENT)
        for number in range(10):
            self.assertEqual(self.metered.spend(by("alice", str(number)), 60, self.clock.seconds()), 0.0)
        now = self.clock.seconds()
        delays = [self.metered.spend(by("alice", f"new-{number}"), 60, now) for number in range(3)]
        self.assertEqual(delays, [0.0, 0.2, 0.8])
        self.assertEqual(self.owed(by("alice", "new-9"), by("alice", "3")), [0.8, 0.0])
        self.assertEqual(self.metered.budget(by("alice", "new-9"), self.clock.seconds()), 0)

    def test_namedHaveTheirOwn(self) -> None:
        """
        Who has a limit by name never shares, and takes nobody's room.
        """
        self.configure(DEFAULT_CLIENT)
        for number in range(5):
            self.configure(QuotaEntity(clientId=f"named-{number}"), 50.0)
        for number in range(100):
            self.metered.spend(by("alice", str(number)), 60, self.clock.seconds())
        delays = [self.metered.spend(by("alice", f"named-{number}"), 60, self.clock.seconds()) for number in range(5)]
        self.assertEqual(delays, [0.2] * 5)
        self.assertEqual(len(self.metered), 10 + 1 + 5)

    def test_overflowOfEachDefault(self) -> None:
        """
        Each default has an overflow of its own, since their limits differ; it
        goes with its limit.
        """
        self.configure(DEFAULT_CLIENT)
        self.configure(ALICE_DEFAULT, 50.0)
        for number in range(10):
            self.metered.spend(by("bob", str(number)), 10, self.clock.seconds())
        self.assertEqual(self.metered.spend(by("bob", "x"), 200, self.clock.seconds()), 1.0)
        self.assertEqual(self.metered.spend(by("alice", "x"), 200, self.clock.seconds()), 3.0)
        self.configure(ALICE_DEFAULT, 150.0)
        self.assertEqual(self.owed(by("alice", "y"), by("bob", "y")), [1.0, 1.0])
        self.configure(ALICE_DEFAULT, None)
        self.assertEqual((len(self.metered), self.owed(by("alice", "y"))), (11, [1.0]))

    def test_roomAgain(self) -> None:
        """
        Meters that are idle make room for newcomers, swept or not.
        """
        self.configure(DEFAULT_CLIENT)
        for number in range(10):
            self.metered.spend(by("alice", str(number)), 60, self.clock.seconds())
        shared = by("alice", "new")
        self.metered.spend(shared, 150, self.clock.seconds())
        self.clock.advance(0.6)
        for number in range(11):
            self.metered.spend(by("alice", f"{number} more"), 10, self.clock.seconds())
        self.assertEqual(self.owed(shared), [0.0])
        self.assertEqual(self.metered.spend(shared, 150, self.clock.seconds()), 0.5)
        self.assertEqual(self.owed(by("alice", "newer")), [0.0])

    def test_sweep(self) -> None:
        """
        Sweeping drops who is idle, and whoever comes back is counted anew.
        """
        self.configure(DEFAULT_CLIENT)
        self.metered.spend(by("alice", "a"), 50, self.clock.seconds())
        self.metered.spend(by("alice", "b"), 200, self.clock.seconds())
        self.clock.advance(1.0)
        self.metered.sweep(self.clock.seconds())
        self.assertEqual((len(self.metered), self.owed(by("alice", "b"))), (1, [0.0]))
        self.assertEqual(
            [self.metered.spend(by("alice", "a"), 150, self.clock.seconds()) for _ in range(2)], [0.5, 2.0]
        )

    def test_aMillionClients(self) -> None:
        """
        However many client ids come by, there are no more meters than agreed,
        and no more memory is taken for the last than for the first.
        """
        self.metered = MeteredLimit(self.limits, RATE, Buckets(1.0), 1000)
        self.configure(DEFAULT_CLIENT)
        self.configure(QuotaEntity("alice"))
        tracemalloc.start()
        try:
            sizes = []
            for first in range(0, 12_000, 4000):
                for number in range(first, first + 4000):
                    for user in ("alice", "bob"):
                        self.metered.spend(by(user, f"client-{number}"), 10, self.clock.seconds())
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        self.assertEqual(len(self.metered), 1002)
        self.assertLess(max(sizes), 1_500_000)
        self.assertLess(sizes[2] - sizes[0], 200_000)
        for number in range(100_000):
            self.metered.spend(by("bob", str(number)), 10, self.clock.seconds())
        self.assertEqual(len(self.metered), 1002)

    @settings(max_examples=30, deadline=None)
    @given(steps=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 300), st.floats(0, 1)), max_size=100))
    def test_sharedMetersHoldTheirLimit(self, steps: list[tuple[int, int, float]]) -> None:
        """
        Whoever comes when, there are never more meters than agreed, and nobody
        is told to wait for longer than what was taken by all can make it.
        """
        self.setUp()
        self.configure(DEFAULT_CLIENT)
        total = 0
        for client, amount, pauseSeconds in steps:
            self.clock.advance(pauseSeconds)
            delaySeconds = self.metered.spend(by("alice", str(client)), amount, self.clock.seconds())
            total += amount
            self.assertLessEqual(delaySeconds, max(total / 100 - 1.0, 0.0) + 1e-9)
            self.assertLessEqual(len(self.metered), 11)


class SensorTests(MeteredTestCase):
    """
    What is published.
    """

    def read(self, registry: SensorRegistry, name: str) -> dict[tuple[str, ...], float]:
        """
        The values of a family by their labels.
        """
        return {tuple(labels): value for labels, value in registry.families[name].read(self.clock.seconds())}

    def test_families(self) -> None:
        """
        Every meter shows under whom it is for, with what does not matter left
        empty, and those who share under a word of their own.
        """
        registry = SensorRegistry(self.clock.seconds)
        self.metered.addSensors(registry, "client-bytes.Produce", "byte-rate")
        self.configure(DEFAULT_CLIENT)
        self.configure(ALICE)
        self.metered.spend(by("alice", "app"), 150, self.clock.seconds())
        for number in range(11):
            self.metered.spend(by("bob", str(number)), 100 + number, self.clock.seconds())
        tokens = self.read(registry, "client-bytes.Produce.tokens")
        self.assertEqual(len(tokens), 12)
        self.assertEqual((tokens["alice", ""], tokens["", "0"], tokens["", OVERFLOW]), (-50.0, 0.0, -10.0))
        self.assertEqual(self.read(registry, "client-bytes.Produce.utilization")["alice", ""], 1.5)
        delays = self.read(registry, "client-bytes.Produce.throttle-time")
        self.assertEqual((delays["alice", ""], str(delays["", "0"])), (500.0, "nan"))
        self.assertEqual(registry.families["client-bytes.Produce.tokens"].labelNames, ("user", "client-id"))
        self.assertEqual(dict(registry), {"client-bytes.Produce.meters": 12, "client-bytes.Produce.overflows": 1})

    def test_throttleTime(self) -> None:
        """
        The throttle time is the mean of the last minute's delays, in
        milliseconds, and none once that has passed.
        """
        registry = SensorRegistry(self.clock.seconds)
        self.metered.addSensors(registry, "x", "byte-rate")
        self.configure(DEFAULT_CLIENT)
        self.metered.spend(by("alice", "app"), 200, self.clock.seconds())
        self.metered.spend(by("alice", "app"), 200, self.clock.seconds())
        self.assertEqual(self.read(registry, "x.throttle-time"), {("", "app"): 2000.0})
        self.clock.advance(60.0)
        self.assertEqual(str(self.read(registry, "x.throttle-time")["", "app"]), "nan")

    def test_labelsAreUnique(self) -> None:
        """
        A client that calls itself by the word for those who share does not
        show beside them, and no labels come twice.
        """
        registry = SensorRegistry(self.clock.seconds)
        self.metered.addSensors(registry, "x", "byte-rate")
        self.configure(DEFAULT_CLIENT)
        self.metered.spend(by("alice", OVERFLOW), 70, self.clock.seconds())
        for number in range(10):
            self.metered.spend(by("alice", str(number)), 20, self.clock.seconds())
        labels = [tuple(labels) for labels, _ in registry.families["x.tokens"].read(self.clock.seconds())]
        self.assertEqual((len(labels), len(set(labels))), (10, 10))
        self.metered.spend(by("alice", "more"), 30, self.clock.seconds())
        self.assertEqual(self.read(registry, "x.tokens")["", OVERFLOW], 50.0)

    def test_addresses(self) -> None:
        """
        Addresses have one label.
        """
        registry = SensorRegistry(self.clock.seconds)
        limits = LimitTable([RATE], ADDRESS_KINDS)
        metered = MeteredAddressLimit(limits, RATE, Buckets(1.0), 1)
        limits.configure(QuotaEntity(ip=DEFAULT), {RATE: 100.0})
        metered.refresh(QuotaEntity(ip=DEFAULT), self.clock.seconds())
        metered.addSensors(registry, "x", "rate")
        for number in (1, 2):
            metered.spend(at(f"192.0.2.{number}"), 10, self.clock.seconds())
        self.assertEqual(self.read(registry, "x.tokens"), {("192.0.2.1",): 90.0, (OVERFLOW,): 90.0})
        self.assertEqual(registry.families["x.tokens"].labelNames, ("ip",))

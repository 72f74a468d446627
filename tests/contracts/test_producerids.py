"""L{admission_plugins.producerids}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from admission.interfaces import (
    ADMITTED,
    DEFAULT,
    NOTHING,
    Decision,
    IQuotaPolicy,
    IQuotaPolicyFactory,
    IRestorable,
    IShared,
    PolicyContext,
    QuotaEntity,
    QuotaStatus,
    Request,
    Taken,
    Usage,
)
from admission.metrics.registry import SensorRegistry
from admission.plugins import PolicyError, buildPolicy
from admission.testing.quotacontract import QuotaPolicyContract
from admission.testing.sharedlimitscontract import SharedLimitsContract
from admission_plugins.producerids import MIN_MAX_BYTES, NEW_IDENTITY_RATE, PRODUCE, UNLIMITED, ProducerIds

WINDOW_SECONDS = 3600.0
KEY = 0x1234_5678_9ABC_DEF
USAGE = Usage(requestBytes=100)


def produce(*identities: int, user: str = "alice", clientId: str = "") -> Request:
    """A Produce request with these producer ids."""
    return Request(PRODUCE, user, clientId, "192.0.2.1", 100, identities)


class ContractTests(QuotaPolicyContract, SynchronousTestCase):
    """L{ProducerIds} is an L{IQuotaPolicy}."""

    limitName = NEW_IDENTITY_RATE
    limit = 10.0
    isRefusing = True

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """See L{QuotaPolicyContract}, like the others."""
        policy: IQuotaPolicy = ProducerIds(isRefusing=self.isRefusing, isShadow=isShadow, key=KEY)
        return policy

    def entity(self, client: int) -> QuotaEntity:
        """A user."""
        return QuotaEntity(user=f"user{client}")

    def refusedEntity(self) -> QuotaEntity:
        """A client id."""
        return QuotaEntity(user="user0", clientId="client")

    def request(self, client: int, number: int = 0) -> Request:
        """Each has an id of its own."""
        return produce(number, user=f"user{client}", clientId=f"client{number}")

    def usage(self, request: Request) -> Usage:
        """What counts is the id."""
        return USAGE


class ThrottlingContractTests(ContractTests):
    """So it is if it never refuses."""

    isRefusing = False

    def excess(self, client: int) -> Sequence[Request]:
        """An id is new once only, so every excess has ids of its own."""
        self.excesses += 1
        return [self.request(client, 1000 * self.excesses + number) for number in range(50)]

    excesses = 0


class SharedContractTests(SharedLimitsContract, ContractTests):
    """L{ProducerIds} is an L{IShared}, if it is told so."""

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """See L{QuotaPolicyContract}."""
        policy: IQuotaPolicy = ProducerIds(isRefusing=self.isRefusing, isShadow=isShadow, key=KEY, isShared=True)
        return policy


class SharedThrottlingContractTests(SharedContractTests, ThrottlingContractTests):
    """So it is if it never refuses."""


class ProducerIdsTestCase(SynchronousTestCase):
    """Sends requests to a policy."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(1000.0)

    def build(self, rate: float = 10.0, **options: Any) -> ProducerIds:
        """Make a policy with a limit for everybody."""
        policy = ProducerIds(WINDOW_SECONDS, key=KEY, **options)
        policy.configure(QuotaEntity(user=DEFAULT), {NEW_IDENTITY_RATE: rate}, self.clock.seconds())
        return policy

    def send(self, policy: ProducerIds, *identities: int, user: str = "alice", clientId: str = "") -> Decision:
        """
        Treat a request as a server does.

        @return: the decision; for a client that is throttled, one with the delay.
        """
        request = produce(*identities, user=user, clientId=clientId)
        decision = policy.decide(request, self.clock.seconds())
        if not decision.admitted:
            return decision
        return Decision(delaySeconds=policy.record(request, USAGE, self.clock.seconds()))

    def sendEach(self, policy: ProducerIds, identities: Sequence[int], user: str = "alice") -> int:
        """
        Send a request for each id.

        @return: how many were let in and not throttled.
        """
        return sum(self.send(policy, identity, user=user) == ADMITTED for identity in identities)

    def sensors(self, policy: ProducerIds) -> Mapping[str, Mapping[str, float]]:
        """What the families show, by name and user."""
        registry = SensorRegistry(self.clock.seconds)
        policy.addSensors(registry, "ids")
        return {
            name: {labels[0]: value for labels, value in family.read(self.clock.seconds())}
            for name, family in registry.families.items()
        }


class RefusingTests(ProducerIdsTestCase):
    """Clients that bring more new ids than the limit are refused."""

    def test_interfaces(self) -> None:
        """It is a quota policy that can be warmed up."""
        policy = self.build()
        verifyObject(IQuotaPolicy, policy)
        verifyObject(IRestorable, policy)

    def test_burstIsTheRate(self) -> None:
        """As many new ids as the limit says are let in at once, and not one more."""
        for rate in (1.0, 10.0, 100.0, 333.0):
            self.assertEqual(self.sendEach(self.build(rate), range(500)), rate)

    def test_throttleTime(self) -> None:
        """
        A refusal says when there will be tokens: what is missing, divided by how fast they come.  A client that comes
        back then is let in.
        """
        policy = self.build(100.0)
        self.sendEach(policy, range(100))
        self.clock.advance(7.0)
        decision = self.send(policy, 500, 501, 502)
        self.assertEqual((decision.admitted, round(decision.delaySeconds, 6)), (False, 3 * 36 - 7))
        self.assertEqual(decision.reason, "3 new producer ids, with 0 left of 100 in 1h")
        self.clock.advance(decision.delaySeconds)
        self.assertEqual(self.send(policy, 500, 501, 502), ADMITTED)

    def test_allOrNothing(self) -> None:
        """
        Of several new ids in a request, all are let in or none; what is known,
        comes twice, or stands for no producer does not count.
        """
        policy = self.build(10.0)
        self.sendEach(policy, range(8))
        self.assertEqual(self.send(policy, 100, 101, 102).admitted, False)
        self.assertEqual(self.send(policy, 100, 101, 100, -1, 3, 101), ADMITTED)
        self.assertEqual(self.send(policy, 102).admitted, False)
        self.assertEqual(self.send(policy, 100, 101), ADMITTED)

    def test_neverFits(self) -> None:
        """A request with more new ids than the limit is refused with a reason that says that waiting will not help."""
        decision = self.send(self.build(10.0), *range(11))
        self.assertEqual((decision.admitted, decision.delaySeconds), (False, 360.0))
        self.assertEqual(
            decision.reason, "11 new producer ids in one request can never be let in, the limit being 10 in 1h"
        )

    def test_lessThanOne(self) -> None:
        """A limit below one in a window lets one id in all the same, now and then."""
        policy = self.build(0.5)
        self.assertEqual([self.send(policy, identity).admitted for identity in (1, 2)], [True, False])
        self.clock.advance(2 * WINDOW_SECONDS)
        self.assertEqual([self.send(policy, identity).admitted for identity in (2, 3)], [True, False])

    def test_withoutIds(self) -> None:
        """Requests without producer ids are no concern of it and leave no trace."""
        policy = self.build(1.0)
        self.send(policy, 1)
        for request in (produce(), produce(-1)):
            self.assertEqual(
                (policy.decide(request, self.clock.seconds()), policy.record(request, USAGE, self.clock.seconds())),
                (ADMITTED, 0.0),
            )
        self.assertEqual(self.sensors(policy)["ids.tokens"], {"alice": 0.0})

    @given(
        rate=st.integers(1, 20),
        steps=st.lists(
            st.tuples(
                st.sampled_from([0.0, 0.0, 1.0, 100.0, 2000.0, 5000.0]),
                st.lists(st.integers(-1, 60), min_size=1, max_size=6),
            ),
            max_size=60,
        ),
    )
    def test_bound(self, rate: int, steps: list[tuple[float, list[int]]]) -> None:
        """
        Whatever comes when, no window lets in more new ids than twice the
        limit, nobody who was let in within a window is refused, and nothing is
        ever owed.
        """
        clock = Clock()
        policy = ProducerIds(WINDOW_SECONDS, key=KEY)
        policy.configure(QuotaEntity(user=DEFAULT), {NEW_IDENTITY_RATE: float(rate)}, self.clock.seconds())
        lastSeconds: dict[int, float] = {}
        arrivals: list[float] = []
        for pauseSeconds, identities in steps:
            clock.advance(pauseSeconds)
            now = clock.seconds()
            ages = {each: now - lastSeconds.get(each, -1e9) for each in identities if each >= 0}
            admitted = self.send(policy, *identities).admitted
            self.assertTrue(admitted or max(ages.values()) > WINDOW_SECONDS)
            if admitted:
                lastSeconds.update(dict.fromkeys(ages, now))
                # Between a window and a turn more, an id may be known or not.
                arrivals += [now for age in ages.values() if age > 1.25 * WINDOW_SECONDS]
            self.assertEqual(policy.record(produce(*identities), NOTHING, self.clock.seconds()), 0.0)
            self.assertLessEqual(sum(now - each <= WINDOW_SECONDS for each in arrivals), 2 * rate)


class ThrottlingTests(ProducerIdsTestCase):
    """Clients are throttled where nobody is refused."""

    def test_throttled(self) -> None:
        """Every id is let in, and a client whose id finds no token is throttled until nothing is owed."""
        policy = self.build(10.0, isRefusing=False)
        self.assertEqual(self.sendEach(policy, range(10)), 10)
        self.assertEqual([round(self.send(policy, each).delaySeconds, 6) for each in (10, 11)], [360.0, 720.0])
        self.clock.advance(720.0)
        self.assertEqual(round(self.send(policy, 12).delaySeconds, 6), 360.0)

    def test_knownIdsAreNot(self) -> None:
        """Producers that are known are not throttled for what others of their user owe."""
        policy = self.build(10.0, isRefusing=False)
        self.sendEach(policy, range(12))
        self.assertEqual(self.sendEach(policy, range(12)), 12)

    def test_cannotBeRefused(self) -> None:
        """
        Where nobody asks whether a request may go ahead, its ids are counted, and the client that brought them is
        throttled, refusing or not.
        """
        policy = self.build(10.0)
        delays = [round(policy.record(produce(each), USAGE, self.clock.seconds()), 6) for each in range(12)]
        self.assertEqual(delays, [0.0] * 10 + [360.0, 720.0])
        decision = self.send(policy, 100)
        self.assertEqual((round(decision.delaySeconds, 6), decision.reason), (
            1080.0, "1 new producer id, with 0 left of 10 in 1h"))  # fmt: skip


class ShadowTests(ProducerIdsTestCase):
    """A shadow policy."""

    def test_countsWhatItWouldLetIn(self) -> None:
        """
        A request that is let in although it would be refused is neither
        remembered nor counted, so that the policy says the same as in earnest.
        """
        policy, earnest = self.build(10.0, isShadow=True), self.build(10.0)
        for number in range(200):
            request = produce(number % 40)
            decision = policy.decide(request, self.clock.seconds())
            self.assertEqual(decision, earnest.decide(request, self.clock.seconds()))
            self.assertEqual(policy.record(request, USAGE, self.clock.seconds()), 0.0)
            if decision.admitted:
                earnest.record(request, USAGE, self.clock.seconds())
            self.clock.advance(60.0)


class LimitTests(ProducerIdsTestCase):
    """The limit that holds, and since when."""

    def test_unlimitedIsFree(self) -> None:
        """Where nobody has a limit there is nothing to ask, and nothing is remembered of anybody."""
        policy = ProducerIds()
        policy.configure(QuotaEntity(user="bob"), {NEW_IDENTITY_RATE: UNLIMITED}, self.clock.seconds())
        self.assertFalse(policy.isLimiting)
        self.assertEqual(self.sendEach(policy, range(50)), 50)
        policy.restore("alice", range(50), self.clock.seconds())
        self.assertEqual((policy.memory.usedBytes, self.sensors(policy)["ids.tokens"]), (0, {}))

    def test_change(self) -> None:
        """Another limit holds at once; what is known and spent stays so."""
        policy = self.build(10.0)
        self.sendEach(policy, range(10))
        policy.configure(QuotaEntity(user="alice"), {NEW_IDENTITY_RATE: 3600.0}, self.clock.seconds())
        self.assertEqual(self.sendEach(policy, [*range(10), 100]), 10)
        self.clock.advance(5.0)
        self.assertEqual(self.sendEach(policy, range(100, 120)), 5)
        policy.configure(QuotaEntity(user="alice"), {NEW_IDENTITY_RATE: None}, self.clock.seconds())
        self.clock.advance(360.0)
        self.assertEqual(self.sendEach(policy, range(100, 120)), 5 + 1)

    def test_removal(self) -> None:
        """A user that has no limit any more is forgotten at once."""
        policy = self.build(10.0)
        self.sendEach(policy, range(20))
        policy.configure(QuotaEntity(user=DEFAULT), {NEW_IDENTITY_RATE: None}, self.clock.seconds())
        self.assertEqual((policy.memory.usedBytes, self.sensors(policy)["ids.tokens"]), (0, {}))
        self.assertEqual((policy.isLimiting, self.sendEach(policy, range(20, 40))), (False, 20))

    def test_explain(self) -> None:
        """It tells how much of the limit is used, and how long a new id would have to wait."""
        entity = QuotaEntity(user=DEFAULT)
        for isRefusing, delaySeconds in ((True, 360.0), (False, 0.0)):
            policy = self.build(10.0, isRefusing=isRefusing)
            self.assertEqual(
                policy.explain(produce(), self.clock.seconds()),
                [QuotaStatus(NEW_IDENTITY_RATE, 10.0, entity, 0.0, 0.0)],
            )
            self.sendEach(policy, range(10))
            self.assertEqual(
                policy.explain(produce(), self.clock.seconds()),
                [QuotaStatus(NEW_IDENTITY_RATE, 10.0, entity, 10.0, delaySeconds)],
            )

    def test_explainShared(self) -> None:
        """Where a limit is shared, the ids of other servers are told apart, and how much of it is enforced here."""
        policy = self.build(10.0, isShared=True)
        now = self.clock.seconds()
        self.sendEach(policy, range(2))
        for number in range(10, 16):
            taken = Taken(NEW_IDENTITY_RATE, QuotaEntity(user="alice"), 1.0, (number,))
            IShared(policy).takenElsewhere(taken, False, now)
        [status] = policy.explain(produce(), now)
        self.assertEqual((status.used, status.fraction), (8.0, 1.0))
        self.assertAlmostEqual(status.usedElsewhere or 0.0, 6.0)
        IShared(policy).share(0.5, 2, now)
        [status] = policy.explain(produce(), now)
        self.assertEqual([status.utilization, status.fraction], [status.used / 5.0, 0.5])


class RestoringTests(ProducerIdsTestCase):
    """What was known before a restart."""

    def test_free(self) -> None:
        """Restored ids are known and have taken no token, however many they are."""
        policy = self.build(10.0)
        policy.restore("alice", range(-1, 1000), self.clock.seconds())
        self.assertEqual(self.sendEach(policy, range(1000)), 1000)
        self.assertEqual(self.sendEach(policy, range(1000, 1100)), 10)
        self.assertEqual(self.sendEach(policy, range(20), user="bob"), 10)

    def test_forgottenLikeOthers(self) -> None:
        """They are forgotten unless they come within a window."""
        policy = self.build(10.0)
        policy.restore("alice", range(1000), self.clock.seconds())
        self.clock.advance(WINDOW_SECONDS)
        self.assertEqual(self.sendEach(policy, range(500)), 500)
        self.clock.advance(WINDOW_SECONDS)
        self.assertEqual((self.sendEach(policy, range(500)), self.sendEach(policy, range(500, 1000))), (500, 10))


class MemoryTests(ProducerIdsTestCase):
    """How much is remembered."""

    def test_idle(self) -> None:
        """A user who has been idle is forgotten once no id is known any more, and not before."""
        policy = self.build(10.0)
        self.sendEach(policy, range(20))
        self.clock.advance(WINDOW_SECONDS)
        policy.sweep(self.clock.seconds())
        self.assertEqual(set(self.sensors(policy)["ids.tokens"]), {"alice"})
        self.assertEqual(self.sendEach(policy, [3], user="bob"), 1)
        self.clock.advance(1.25 * WINDOW_SECONDS)
        policy.sweep(self.clock.seconds())
        self.assertEqual((policy.memory.usedBytes, self.sensors(policy)["ids.tokens"]), (0, {}))

    def test_cleanup(self) -> None:
        """Sweeping more often than agreed does nothing."""
        policy = self.build(10.0, cleanupSeconds=100_000.0)
        policy.sweep(self.clock.seconds())
        self.sendEach(policy, [1])
        for expected in ({"alice"}, set[str]()):
            self.clock.advance(50_000.0)
            policy.sweep(self.clock.seconds())
            self.assertEqual(set(self.sensors(policy)["ids.tokens"]), expected)

    def test_flood(self) -> None:
        """
        However many ids one user brings where nobody is refused, memory stays
        within its bound, another user's ids stay known, and what was dropped
        is counted.
        """
        policy = self.build(10.0, isRefusing=False, maxBytes=MIN_MAX_BYTES)
        self.sendEach(policy, range(5), user="bob")
        for identity in range(60_000):
            policy.record(produce(identity), USAGE, self.clock.seconds())
        self.assertLessEqual(policy.memory.usedBytes, MIN_MAX_BYTES)
        self.assertGreater(policy.memory.droppedLayers, 0)
        self.assertEqual(self.sendEach(policy, range(5), user="bob"), 5)
        self.assertEqual(self.sendEach(policy, range(5, 20), user="bob"), 5)

    def test_largeLimit(self) -> None:
        """A limit that filters within the bound cannot be made for takes no more than the bound."""
        policy = self.build(1e9, maxBytes=MIN_MAX_BYTES)
        self.assertEqual(self.sendEach(policy, range(2000)), 2000)
        self.assertLessEqual(policy.memory.usedBytes, MIN_MAX_BYTES)

    def test_manyUsers(self) -> None:
        """Of users with the default limit so many are told apart; those beyond share tokens, until there is room."""
        policy = self.build(10.0, maxMeters=2)
        policy.configure(QuotaEntity(user="carol"), {NEW_IDENTITY_RATE: 10.0}, self.clock.seconds())
        admitted = [self.sendEach(policy, range(6), user=user) for user in ("alice", "bob", "carol")]
        self.assertEqual(admitted, [6, 6, 6])
        self.assertEqual(self.sendEach(policy, range(6), user="dave"), 6)
        self.assertEqual(self.sendEach(policy, range(10, 16), user="erin"), 4)
        sensors = self.sensors(policy)
        self.assertEqual(set(sensors["ids.tokens"]), {"alice", "bob", "carol", "<overflow>"})
        policy.configure(QuotaEntity(user=DEFAULT), {NEW_IDENTITY_RATE: None}, self.clock.seconds())
        self.assertEqual(set(self.sensors(policy)["ids.tokens"]), {"carol"})

    def test_sensors(self) -> None:
        """It shows the rate, the tokens, the refusals and the filter of each user, and what all together take."""
        policy = self.build(1000.0)
        self.assertEqual(self.sendEach(policy, range(600)), 600)
        self.clock.advance(180.0)
        self.sendEach(policy, [9000])
        sensors = {name: values["alice"] for name, values in self.sensors(policy).items()}
        self.assertEqual((round(sensors["ids.tokens"]), sensors["ids.filter-layers"]), (449, 1.0))
        self.assertTrue(600 <= sensors["ids.rate"] <= 670, sensors)
        self.assertTrue(3000 < sensors["ids.filter-bytes"] < 4000, sensors)
        self.assertTrue(0 < sensors["ids.false-positives"] < 0.0018, sensors)
        self.assertNotEqual(sensors["ids.throttle-time"], sensors["ids.throttle-time"])
        self.assertFalse(self.send(policy, *range(10_000, 10_459)).admitted)
        throttled = self.sensors(policy)["ids.throttle-time"]["alice"]
        self.assertEqual(round(throttled), 36_000)
        registry = SensorRegistry(self.clock.seconds)
        policy.addSensors(registry, "ids")
        self.assertEqual(registry["ids.memory-bytes"], sensors["ids.filter-bytes"])
        self.assertEqual([registry[f"ids.{name}"] for name in ("meters", "overflows", "dropped-layers")], [1, 0, 0])


class SharingTests(ProducerIdsTestCase):
    """What other servers tell."""

    def test_withoutUser(self) -> None:
        """What is told of no user is taken from nobody: clients without a name are a user, too."""
        policy = self.build(2.0, isShared=True)
        for entity in (QuotaEntity(ip="192.0.2.1"), QuotaEntity(clientId="app"), QuotaEntity()):
            policy.takenElsewhere(Taken(NEW_IDENTITY_RATE, entity, 1.0, (7,)), False, self.clock.seconds())
        self.assertEqual(self.sendEach(policy, [1, 2, 3], user=""), 2)
        policy.takenElsewhere(Taken(NEW_IDENTITY_RATE, QuotaEntity(user=""), 1.0, (8,)), True, self.clock.seconds())
        self.assertEqual(self.sendEach(policy, [7, 8], user=""), 1)


class BuildTests(SynchronousTestCase):
    """Descriptions."""

    def build(self, description: str) -> ProducerIds:
        """Make what is described."""
        context = PolicyContext(Clock(), lambda: 0.0)
        policy: ProducerIds = buildPolicy(IQuotaPolicyFactory, description, context)
        return policy

    def test_defaults(self) -> None:
        """Without arguments nobody has a limit, and the window is an hour."""
        policy = self.build("producer-ids")
        self.assertEqual((policy.isLimiting, policy.isRefusing, policy.isShadow), (False, True, False))
        self.assertEqual((policy.windowSeconds, policy.memory.maxBytes), (3600.0, 64 << 20))

    def test_arguments(self) -> None:
        """Every argument arrives."""
        policy = self.build(
            "producer-ids:rate=100:window=10m:windows=5:layers=2:falsePositives=0.001:maxBytes=1MiB:mode=throttle"
            ":shadow=yes:cleanup=1m:meters=7"
        )
        self.assertEqual(policy.limits, {QuotaEntity(user=DEFAULT): {NEW_IDENTITY_RATE: 100.0}})
        self.assertEqual((policy.isLimiting, policy.isRefusing, policy.isShadow), (True, False, True))
        self.assertEqual((policy.windowSeconds, policy.memory.maxBytes), (600.0, 1 << 20))

    def test_nonsense(self) -> None:
        """Arguments that make no sense are refused in one sentence."""
        for arguments, complaint in (
            ("rate=many", "rate=many: write a number"),
            ("rate=0", "finite and more than zero"),
            ("rate=nan", "finite and more than zero"),
            ("window=0s", "window=0s: write a time of more than nothing"),
            ("layers=0", "layers=0: write a whole number, 1 or more"),
            ("layers=101", "1 to 100 layers"),
            ("falsePositives=1", "from 1e-09 to less than 1"),
            ("falsePositives=nan", "from 1e-09 to less than 1"),
            ("falsePositives=few", "falsePositives=few: write a number"),
            ("windows=0", "windows=0: write a whole number, 1 or more"),
            ("maxBytes=1k", "filters need 64KiB"),
            ("mode=ignore", "mode=ignore: say refuse or throttle"),
            ("shadow=maybe", "shadow=maybe: say yes or no"),
        ):
            error = self.assertRaises(PolicyError, self.build, f"producer-ids:{arguments}")
            self.assertIn(complaint, str(error))

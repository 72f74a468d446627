# -*- test-case-name: tests.test_testing_quotas -*-
"""
A quota policy that does as it is told, and what every quota policy must do.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import inf, isfinite, nan
from typing import TYPE_CHECKING, Any

from attrs import define, field
from twisted.internet.task import Clock
from zope.interface import implementer
from zope.interface.verify import verifyObject

from ..interfaces import (
    ADMITTED,
    CONNECTION,
    NOTHING,
    Decision,
    IQuotaPolicy,
    QuotaEntity,
    QuotaStatus,
    Request,
    Usage,
)
from ..metrics.registry import SensorRegistry

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase as _TestCase
else:
    _TestCase = object


@implementer(IQuotaPolicy)
@define(eq=False)
class CuedQuota:
    """
    Answers as it is told, and remembers what it was asked.

    @ivar decision: what it says to everybody.
    @ivar budget: how much anybody may read.
    @ivar delaySeconds: for how long it holds everybody back.
    @ivar failing: the methods that raise L{ZeroDivisionError}.
    @ivar recorded: the requests that were recorded, and what each took.
    @ivar sweeps: how often it was swept.
    """

    limitNames: Sequence[str] = ("cued_rate",)
    isShadow: bool = False
    decision: Decision = ADMITTED
    budget: int | None = None
    delaySeconds: float = 0.0
    failing: frozenset[str] = frozenset()
    recorded: list[tuple[Request, Usage]] = field(factory=list)
    sweeps: int = 0
    limits: dict[QuotaEntity, dict[str, float]] = field(factory=dict)
    horizonSeconds: float | None = 0.0

    @property
    def isLimiting(self) -> bool:
        """
        Whether it has been given a limit; what it says does not depend on it.
        """
        return bool(self.limits)

    def decide(self, request: Request) -> Decision:
        """
        Say what it was told to.
        """
        self._fail("decide")
        return self.decision

    def budgetBytes(self, request: Request) -> int | None:
        """
        Say what it was told to.
        """
        self._fail("budgetBytes")
        return self.budget

    def record(self, request: Request, usage: Usage) -> float:
        """
        Remember, and say what it was told to.
        """
        self._fail("record")
        self.recorded.append((request, usage))
        return self.delaySeconds

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None]) -> None:
        """
        Remember limits of more than zero.

        @raise ValueError: for others.
        """
        self._fail("configure")
        for name, value in limits.items():
            if name not in self.limitNames or (value is not None and not value > 0):
                raise ValueError(f"{name} cannot be {value}")
        merged = {**self.limits.pop(entity, {}), **limits}
        left = {name: value for name, value in merged.items() if value is not None}
        if left:
            self.limits[entity] = left

    def explain(self, request: Request) -> Sequence[QuotaStatus]:
        """
        Every limit there is, half used.
        """
        self._fail("explain")
        return [
            QuotaStatus(name, value, entity, value / 2, self.delaySeconds)
            for entity, values in self.limits.items()
            for name, value in values.items()
        ]

    def sweep(self) -> None:
        """
        Count it.
        """
        self._fail("sweep")
        self.sweeps += 1

    def replayKey(self, request: Request) -> Hashable:
        """
        Everybody is somebody else.
        """
        return (request.principal, request.clientId, request.peer)

    def addSensors(self, registry: SensorRegistry, name: str) -> None:
        """
        Publish how often it was swept.
        """
        registry.addGauge(f"{name}.sweeps", lambda: self.sweeps)

    def _fail(self, method: str) -> None:
        if method in self.failing:
            raise ZeroDivisionError("as cued")


class QuotaPolicyContract(_TestCase):
    """
    What an L{IQuotaPolicy} must do.  Say how to build one, whom it limits, and
    what is too much.

    Two policies that were treated alike are compared, so none may be random.

    @cvar limitName: one of its limits.
    @cvar limit: a value of that limit which L{excess} goes well beyond.
    """

    limitName: str
    limit: float

    forgetSeconds = 1e7
    """After this time the excess of L{excess} is forgiven."""

    def buildPolicy(self, clock: Clock, isShadow: bool = False) -> IQuotaPolicy:
        """
        Make a policy without limits that takes its time from C{clock}.
        """
        raise NotImplementedError

    def entity(self, client: int) -> QuotaEntity:
        """
        Whom to set C{limitName} for, so that it holds for that client; another
        entity for each.
        """
        raise NotImplementedError

    def refusedEntity(self) -> QuotaEntity:
        """
        A well-formed entity that the policy cannot limit.
        """
        raise NotImplementedError

    def request(self, client: int, number: int = 0) -> Request:
        """
        One of many requests of a client, of a kind that is limited.
        """
        raise NotImplementedError

    def usage(self, request: Request) -> Usage:
        """
        What C{request} takes: at most a tenth of what a client may take at once.
        """
        raise NotImplementedError

    def excess(self, client: int) -> Sequence[Request]:
        """
        Requests that together, each with its L{usage}, go beyond the limit.
        """
        return [self.request(client, number) for number in range(100)]

    def build(self, isShadow: bool = False, clients: int = 2) -> IQuotaPolicy:
        """
        Make a policy on L{clock} that limits so many clients.
        """
        policy = self.buildPolicy(self.clock, isShadow)
        for client in range(clients):
            policy.configure(self.entity(client), {self.limitName: self.limit})
        return policy

    def send(self, policy: IQuotaPolicy, request: Request) -> tuple[Any, ...]:
        """
        Treat a request as a server does.

        @return: what the policy said to it.
        """
        decision = policy.decide(request)
        delaySeconds = policy.record(request, self.usage(request)) if decision.admitted else decision.delaySeconds
        return (decision, delaySeconds, policy.budgetBytes(request))

    def exceed(self, policy: IQuotaPolicy, client: int = 0) -> list[tuple[Any, ...]]:
        """
        Have a client go beyond its limit.

        @return: what the policy said to each request.
        """
        return [self.send(policy, request) for request in self.excess(client)]

    def isHeldBack(self, answers: Sequence[tuple[Any, ...]]) -> bool:
        """
        Whether any of these requests was refused or held back.
        """
        return any(not decision.admitted or delaySeconds > 0 for decision, delaySeconds, _ in answers)

    def assertUnaffectedBy(self, what: Callable[[IQuotaPolicy], object]) -> None:
        """
        A policy to which something is done at every opportunity behaves as one
        that is left alone, before the limit, beyond it, and long after.
        """
        disturbed, alone = self.build(), self.build()
        for pauseSeconds in (0.0, 0.4, 3.0, 11.0, 50.0):
            self.clock.advance(pauseSeconds)
            for request in self.excess(0)[:: 1 if pauseSeconds else 7]:
                what(disturbed)
                self.assertEqual(self.send(disturbed, request), self.send(alone, request))
                what(disturbed)

    def setUp(self) -> None:
        """
        Make a clock.
        """
        self.clock = Clock()

    def test_providesItsInterface(self) -> None:
        """
        The policy has all attributes and methods of L{IQuotaPolicy}.
        """
        policy = self.build()
        verifyObject(IQuotaPolicy, policy)
        self.assertIn(self.limitName, policy.limitNames)
        self.assertIs(policy.isShadow, False)

    def test_unlimited(self) -> None:
        """
        Without limits it limits nobody, has nothing to explain, and says so.
        """
        policy = self.build(clients=0)
        self.assertEqual((bool(policy.isLimiting), dict(policy.limits)), (False, {}))
        self.assertFalse(self.isHeldBack(self.exceed(policy)))
        request = self.request(0)
        self.assertEqual((policy.budgetBytes(request), list(policy.explain(request))), (None, []))

    def test_configure(self) -> None:
        """
        A limit that is set is there, with the entity it was set for, until it
        is removed; removing what is not there does nothing.
        """
        policy = self.build(clients=0)
        entity, other = self.entity(0), self.entity(1)
        policy.configure(entity, {self.limitName: self.limit})
        policy.configure(other, {self.limitName: None})
        self.assertTrue(policy.isLimiting)
        self.assertEqual({each: dict(values) for each, values in policy.limits.items()},
                         {entity: {self.limitName: self.limit}})  # fmt: skip
        policy.configure(entity, {self.limitName: None})
        self.assertEqual((bool(policy.isLimiting), dict(policy.limits)), (False, {}))

    def test_configureRefuses(self) -> None:
        """
        Limits that make no sense are refused, those of the same call too, and
        nothing is changed.
        """
        policy = self.build(clients=1)
        before = {entity: dict(values) for entity, values in policy.limits.items()}
        for entity, limits in [
            *[(self.entity(1), {self.limitName: value}) for value in (0.0, -1.0, nan, inf)],
            (self.entity(0), {self.limitName: 2 * self.limit, "no_such_limit": 1.0}),
            (self.refusedEntity(), {self.limitName: self.limit}),
            (QuotaEntity(), {self.limitName: self.limit}),
            (QuotaEntity(user="", clientId=None), {self.limitName: self.limit}),
            (QuotaEntity(user="alice", ip="192.0.2.1"), {self.limitName: self.limit}),
        ]:
            self.assertRaises(ValueError, policy.configure, entity, limits)
            self.assertEqual({entity: dict(values) for entity, values in policy.limits.items()}, before)

    def test_excess(self) -> None:
        """
        Who goes beyond the limit is held back or refused, for a time that is a
        number of seconds; a refusal says why; nobody else notices.
        """
        policy = self.build()
        answers = self.exceed(policy)
        self.assertTrue(self.isHeldBack(answers))
        for decision, delaySeconds, _ in answers:
            self.assertTrue(isfinite(delaySeconds) and delaySeconds >= 0, delaySeconds)
            self.assertEqual(decision.admitted, not decision.reason)
            self.assertTrue(decision.admitted or decision.delaySeconds > 0)
        self.assertEqual(self.send(policy, self.request(1)), self.send(self.build(), self.request(1)))

    def test_withinTheLimit(self) -> None:
        """
        A first request is neither held back nor refused.
        """
        decision, delaySeconds, budgetBytes = self.send(self.build(), self.request(0))
        self.assertEqual((decision.admitted, delaySeconds), (True, 0.0))
        self.assertNotEqual(budgetBytes, 0)

    def test_forgives(self) -> None:
        """
        Whatever somebody took, in time they are as welcome as at first.
        """
        policy = self.build()
        first = self.exceed(policy)
        self.clock.advance(self.forgetSeconds)
        self.assertEqual(self.exceed(policy), first)

    def test_horizon(self) -> None:
        """
        What happened longer ago than the horizon does not matter.
        """
        policy = self.build()
        if policy.horizonSeconds is not None:
            first = self.exceed(policy)
            self.clock.advance(policy.horizonSeconds)
            self.assertEqual(self.exceed(policy), first)

    def test_otherKinds(self) -> None:
        """
        A kind of request that the policy has never heard of, and a connection
        being opened, are no reason to fail.
        """
        policy = self.build()
        for kind in (CONNECTION, "no such kind"):
            request = Request(kind, "", "", "", 0)
            decision, delaySeconds, _ = self.send(policy, request)
            self.assertEqual((decision.admitted, delaySeconds), (True, 0.0))
            hash(policy.replayKey(request))

    def test_replayKey(self) -> None:
        """
        All requests of a client have one key, and its excess moves nobody who
        has another.
        """
        policy = self.build()
        keys = [{policy.replayKey(request) for request in self.excess(client)} for client in (0, 1)]
        self.assertEqual([len(each) for each in keys], [1, 1])
        self.assertNotEqual(*keys)
        alone = self.build()
        self.exceed(policy, client=0)
        self.assertEqual(self.exceed(policy, client=1), self.exceed(alone, client=1))

    def test_deciding(self) -> None:
        """
        Asking whether a request may go ahead changes nothing.
        """
        self.assertUnaffectedBy(lambda policy: [policy.decide(request) for request in self.excess(0)])

    def test_budgeting(self) -> None:
        """
        Asking how much may be read changes nothing.
        """
        self.assertUnaffectedBy(lambda policy: policy.budgetBytes(self.request(0)))

    def test_recordingNothing(self) -> None:
        """
        Recording an empty usage changes nothing, and tells for how long the
        client is held back.
        """
        self.assertUnaffectedBy(lambda policy: policy.record(self.request(0, 99), NOTHING))
        policy = self.build()
        for request in self.excess(0):
            decision = policy.decide(request)
            if decision.admitted:
                delaySeconds = policy.record(request, self.usage(request))
                self.assertEqual(policy.record(request, NOTHING), delaySeconds)

    def test_explaining(self) -> None:
        """
        Explaining changes nothing.
        """
        self.assertUnaffectedBy(lambda policy: policy.explain(self.request(0)))

    def test_explains(self) -> None:
        """
        It tells which limit holds, for whom it was set, and how much is used:
        nothing at first, and more once something was taken.
        """
        policy = self.build()
        [status] = [each for each in policy.explain(self.request(0)) if each.limitName == self.limitName]
        self.assertEqual((status.limit, status.entity), (self.limit, self.entity(0)))
        self.assertEqual((status.used, status.delaySeconds, status.utilization), (0.0, 0.0, 0.0))
        self.exceed(policy)
        [status] = [each for each in policy.explain(self.request(0)) if each.limitName == self.limitName]
        self.assertGreater(status.used, 0.0)
        self.assertTrue(isfinite(status.delaySeconds) and status.delaySeconds >= 0.0)

    def test_sweeping(self) -> None:
        """
        Sweeping forgets only what makes no difference.
        """
        self.assertUnaffectedBy(lambda policy: policy.sweep())

    def test_raisingTheLimit(self) -> None:
        """
        A limit that is raised far enough holds nobody back any more from the
        next request on, once what was owed is paid.
        """
        policy = self.build()
        self.exceed(policy)
        policy.configure(self.entity(0), {self.limitName: self.limit * 1e6})
        self.clock.advance(1.0)
        self.assertFalse(self.isHeldBack(self.exceed(policy)))

    def test_removingTheLimit(self) -> None:
        """
        Who has no limit any more is free at once, and others are not.
        """
        policy = self.build()
        for client in (0, 1):
            self.exceed(policy, client)
        policy.configure(self.entity(0), {self.limitName: None})
        self.assertFalse(self.isHeldBack(self.exceed(policy, 0)))
        self.assertTrue(self.isHeldBack(self.exceed(policy, 1)))

    def test_shadow(self) -> None:
        """
        On trial it says what it would say otherwise.
        """
        policy = self.build(isShadow=True)
        self.assertIs(policy.isShadow, True)
        self.assertEqual(self.exceed(policy), self.exceed(self.build()))

    def test_sensors(self) -> None:
        """
        Two policies can publish their sensors under different names, and
        reading them changes nothing.
        """
        registry = SensorRegistry()
        self.build().addSensors(registry, "first")
        self.build().addSensors(registry, "second")

        def read(policy: IQuotaPolicy) -> None:
            sensors = SensorRegistry()
            policy.addSensors(sensors, "third")
            dict(sensors)
            for family in sensors.families.values():
                for labels, value in family.read():
                    self.assertEqual(len(labels), len(family.labelNames))
                    float(value)

        self.assertUnaffectedBy(read)

    def test_holdsNoTimer(self) -> None:
        """
        It reads the clock and sets no timers, so that a trace can be replayed
        on any clock.
        """
        self.exceed(self.build())
        self.assertEqual(list(self.clock.getDelayedCalls()), [])

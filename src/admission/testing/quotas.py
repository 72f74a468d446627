# -*- test-case-name: tests.test_testing_quotas -*-
"""
What every quota policy must do.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from math import inf, isfinite, nan

from zope.interface.verify import verifyObject

from ..interfaces import CONNECTION, NOTHING, IQuotaPolicy, QuotaEntity, Request
from ..metrics.registry import SensorRegistry
from .quotafixture import QuotaFixture


class QuotaPolicyContract(QuotaFixture):
    """
    What an L{IQuotaPolicy} must do.  Say how to build one, whom it limits, and
    what is too much; see L{QuotaFixture}.

    Two policies that were treated alike are compared, so none may be random.
    """

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
        number of seconds; a refusal says why; nobody else notices, unless all
        share by design.
        """
        policy = self.build()
        answers = self.exceed(policy)
        self.assertTrue(self.isHeldBack(answers))
        for decision, delaySeconds, _ in answers:
            self.assertTrue(isfinite(delaySeconds) and delaySeconds >= 0, delaySeconds)
            self.assertEqual(decision.admitted, not decision.reason)
            self.assertTrue(decision.admitted or decision.delaySeconds > 0)
        if not self.isShared:
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
        has another; who shares by design has the same one.  It is not L{None},
        which is for requests that the policy takes no notice of.
        """
        policy = self.build()
        keys = [{policy.replayKey(request) for request in self.excess(client)} for client in (0, 1)]
        self.assertEqual([len(each) for each in keys], [1, 1])
        self.assertNotIn({None}, keys)
        if self.isShared:
            self.assertEqual(*keys)
            return
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

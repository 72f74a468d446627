# -*- test-case-name: tests.contracts.test_quotacontract -*-
"""
The rules for every quota policy.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite, nan
from typing import Any

from zope.interface.verify import verifyObject

from ..interfaces import (
    CONNECTION,
    CONNECTION_TRAITS,
    NOTHING,
    ORDINARY,
    IAccountable,
    IIdentityAudit,
    IPersistent,
    IQuotaPolicy,
    IReplayable,
    IRequestLifecycle,
    IRestorable,
    Outcome,
    QuotaEntity,
    Request,
    Usage,
)
from ..metrics.registry import SensorRegistry
from .contract import Contract


class QuotaFixture(Contract):
    """
    Two clients of a policy, and requests of theirs.

    @cvar limitName: one of the policy's limits; empty if none can be set.
    @cvar limit: a value of that limit which L{excess} goes well beyond.
    @ivar now: the time that the policy is told; add to it.
    """

    limitName = ""
    limit = 0.0

    isShared = False
    """Whether clients influence each other by design, so that all their requests have one key for replay."""

    isAdaptive = False
    """Whether the policy learns from requests, so that a client that comes back may get more or less than at first."""

    forgetSeconds = 1e7
    """After this time the excess of L{excess} is forgiven; set it if that takes longer."""

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """
        Make a policy; if it has limits that can be set, then without any.
        """
        raise NotImplementedError

    def entity(self, client: int) -> QuotaEntity:
        """
        The entity to set C{limitName} for, so that it holds for that client; a
        different one for each client.
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
        The usage of C{request}: at most a tenth of what a client may take at once.
        """
        raise NotImplementedError

    def excess(self, client: int) -> Sequence[Request]:
        """
        Requests that together, each with its L{usage}, go beyond the limit.
        """
        return [self.request(client, number) for number in range(100)]

    def build(self, isShadow: bool = False, clients: int = 2) -> IQuotaPolicy:
        """
        Make a policy that limits C{clients} clients, or all if no limits can be set.
        """
        policy = self.buildPolicy(isShadow)
        for client in range(clients if self.limitName else 0):
            policy.configure(self.entity(client), {self.limitName: self.limit}, self.now)
        return policy

    def send(self, policy: IQuotaPolicy, request: Request) -> tuple[Any, ...]:
        """
        Treat a request as a server does, but for its end: if the policy follows requests, it is in progress until
        L{passSeconds}.

        @return: the answers of the policy.
        """
        decision = policy.decide(request, self.now)
        delaySeconds = decision.delaySeconds
        if decision.admitted:
            if IRequestLifecycle.providedBy(policy) and request.traits.isRequest:
                IRequestLifecycle(policy).begun(request, self.now)
                self._inProgress.append((policy, request))
            delaySeconds = policy.record(request, self.usage(request), self.now)
        return (decision, delaySeconds, policy.budgetBytes(request, self.now))

    def passSeconds(self, seconds: float) -> None:
        """
        Let all requests in progress end, and then let time pass.
        """
        while self._inProgress:
            policy, request = self._inProgress.pop()
            IRequestLifecycle(policy).ended(request, Outcome(), self.now)
        self.now += seconds

    def exceed(self, policy: IQuotaPolicy, client: int = 0) -> list[tuple[Any, ...]]:
        """
        Have a client exceed its limit.

        @return: the answers of the policy, for each request.
        """
        return [self.send(policy, request) for request in self.excess(client)]

    def assertSameAnswers(
        self, answers: Sequence[tuple[Any, ...]], expected: Sequence[tuple[Any, ...]], remedy: str = ""
    ) -> None:
        """
        Check that a policy gave the same answers twice, and show the first that differs.
        """
        self.assertEqual(len(answers), len(expected))
        for index, (answer, other) in enumerate(zip(answers, expected, strict=True)):
            self.assertEqual(answer, other, f"answers to request {index} of {len(answers)}{remedy}")

    def isThrottled(self, answers: Sequence[tuple[Any, ...]]) -> bool:
        """
        Whether any of these requests was refused or throttled.
        """
        return any(not decision.admitted or delaySeconds > 0 for decision, delaySeconds, _ in answers)

    def assertUnaffectedBy(self, what: Callable[[IQuotaPolicy], object]) -> None:
        """
        Check that calls of C{what} at every opportunity do not change how a policy
        behaves: before the limit, beyond it, and long after.
        """
        disturbed, alone = self.build(), self.build()
        for pauseSeconds in (0.0, 0.4, 3.0, 11.0, 50.0):
            self.now += pauseSeconds
            for request in self.excess(0)[:: 1 if pauseSeconds else 7]:
                what(disturbed)
                self.assertEqual(self.send(disturbed, request), self.send(alone, request))
                what(disturbed)

    def setUp(self) -> None:
        self.now = 1000.0
        self._inProgress: list[tuple[IQuotaPolicy, Request]] = []


class FixedQuotaPolicyContract(QuotaFixture):
    """
    The rules for an L{IQuotaPolicy} without limits that can be set, and for the other
    interfaces that it provides.  Subclasses say how to build one, and
    what is too much; see L{QuotaFixture}.

    Two policies that were treated alike are compared, so none may be random.
    """

    def test_providesItsInterface(self) -> None:
        """
        The policy has all attributes and methods of L{IQuotaPolicy}, and of
        every other interface that it says it provides.
        """
        policy = self.build()
        verifyObject(IQuotaPolicy, policy)
        for interface in (IAccountable, IReplayable, IRequestLifecycle, IRestorable, IPersistent, IIdentityAudit):
            if interface.providedBy(policy):
                verifyObject(interface, policy)
        self.assertIs(policy.isShadow, False)
        self.assertTrue(policy.isLimiting)

    def test_unknownLimit(self) -> None:
        """
        A limit that the policy does not have is refused, naming it.
        """
        policy = self.build()
        entity = QuotaEntity(user="alice")
        error = self.assertRaises(ValueError, policy.configure, entity, {"no_such_limit": 1.0}, self.now)
        self.assertIn("no_such_limit", str(error))

    def test_excess(self) -> None:
        """
        A client that exceeds the limit is throttled or refused, for a finite time;
        a refusal says why.  Other clients are not affected, unless all
        share by design.
        """
        policy = self.build()
        answers = self.exceed(policy)
        self.assertTrue(self.isThrottled(answers))
        for decision, delaySeconds, _ in answers:
            self.assertTrue(isfinite(delaySeconds) and delaySeconds >= 0, delaySeconds)
            self.assertEqual(decision.admitted, not decision.reason)
            self.assertTrue(decision.admitted or decision.delaySeconds > 0)
        if not self.isShared:
            self.assertEqual(self.send(policy, self.request(1)), self.send(self.build(), self.request(1)))

    def test_withinTheLimit(self) -> None:
        """
        A first request is neither throttled nor refused.
        """
        decision, delaySeconds, budgetBytes = self.send(self.build(), self.request(0))
        self.assertEqual((decision.admitted, delaySeconds), (True, 0.0))
        self.assertNotEqual(budgetBytes, 0)

    def test_forgives(self) -> None:
        """
        However much a client took, in time it is treated as at first; if the policy learns, then at least its first
        request is.
        """
        policy = self.build()
        first = self.exceed(policy)
        self.passSeconds(self.forgetSeconds)
        again = self.exceed(policy)
        judged = 1 if self.isAdaptive else len(first)
        self.assertSameAnswers(
            again[:judged],
            first[:judged],
            f"; if forgiving takes longer than {self.forgetSeconds:.0f} s, set forgetSeconds of the test case",
        )

    def test_forgetsClients(self) -> None:
        """
        What an L{IAccountable} keeps about clients that have left goes with time: there may be any number of them.
        """
        policy = self.build()
        if not IAccountable.providedBy(policy):
            return
        beforeBytes = IAccountable(policy).sizeBytes
        for client in range(500):
            self.send(policy, self.request(client))
        for _ in range(10):
            self.passSeconds(self.forgetSeconds / 10)
            policy.sweep(self.now)
        self.assertLessEqual(IAccountable(policy).sizeBytes, beforeBytes)

    def test_horizon(self) -> None:
        """
        What happened longer ago than the horizon of an L{IReplayable} does not
        matter.
        """
        policy = self.build()
        horizonSeconds = IReplayable(policy).horizonSeconds if IReplayable.providedBy(policy) else None
        if horizonSeconds is not None:
            first = self.exceed(policy)
            self.passSeconds(horizonSeconds)
            self.assertSameAnswers(self.exceed(policy), first)

    def test_otherKinds(self) -> None:
        """
        A kind of request that the policy has never heard of, and a connection
        being opened, are no reason to fail.
        """
        policy = self.build()
        for kind, traits in ((CONNECTION, CONNECTION_TRAITS), ("no such kind", ORDINARY)):
            request = Request(kind, "", "", "", 0, traits=traits)
            decision, delaySeconds, _ = self.send(policy, request)
            self.assertEqual((decision.admitted, delaySeconds), (True, 0.0))
            if IReplayable.providedBy(policy):
                hash(IReplayable(policy).replayKey(request))
            if IIdentityAudit.providedBy(policy):
                self.assertIsNone(IIdentityAudit(policy).isKnown(request, self.now))

    def test_replayKey(self) -> None:
        """
        All requests of a client of an L{IReplayable} have one key, and its
        excess does not affect clients with another key; clients that share by design
        have the same key.  The key is not L{None}, which is for requests that the
        policy ignores.
        """
        policy = self.build()
        if not IReplayable.providedBy(policy):
            return
        keys = [{IReplayable(policy).replayKey(request) for request in self.excess(client)} for client in (0, 1)]
        self.assertEqual([len(each) for each in keys], [1, 1])
        self.assertNotIn({None}, keys)
        if self.isShared:
            self.assertEqual(*keys)
            return
        self.assertNotEqual(*keys)
        alone = self.build()
        self.exceed(policy, client=0)
        self.assertSameAnswers(self.exceed(policy, client=1), self.exceed(alone, client=1))

    def test_deciding(self) -> None:
        """
        Asking whether a request may go ahead changes nothing.
        """
        self.assertUnaffectedBy(lambda policy: [policy.decide(request, self.now) for request in self.excess(0)])

    def test_budgeting(self) -> None:
        """
        Asking how much may be read changes nothing.
        """
        self.assertUnaffectedBy(lambda policy: policy.budgetBytes(self.request(0), self.now))

    def test_recordingNothing(self) -> None:
        """
        Recording an empty usage changes nothing, and tells for how long the
        client is throttled.
        """
        self.assertUnaffectedBy(lambda policy: policy.record(self.request(0, 99), NOTHING, self.now))
        policy = self.build()
        for request in self.excess(0):
            decision = policy.decide(request, self.now)
            if decision.admitted:
                delaySeconds = policy.record(request, self.usage(request), self.now)
                self.assertEqual(policy.record(request, NOTHING, self.now), delaySeconds)

    def test_explaining(self) -> None:
        """
        Explaining changes nothing.
        """
        self.assertUnaffectedBy(lambda policy: policy.explain(self.request(0), self.now))

    def test_sweeping(self) -> None:
        """
        Sweeping forgets only what makes no difference.
        """
        self.assertUnaffectedBy(lambda policy: policy.sweep(self.now))

    def test_shadow(self) -> None:
        """
        A shadow policy gives the same answers.
        """
        policy = self.build(isShadow=True)
        self.assertIs(policy.isShadow, True)
        self.assertSameAnswers(self.exceed(policy), self.exceed(self.build()))

    def test_restoring(self) -> None:
        """
        Identities that an L{IRestorable} is told of cost nothing any more; nothing
        is restored for a client without a limit.
        """
        policy = self.build()
        if IRestorable.providedBy(policy):
            requests = self.excess(0)
            identities = [identity for request in requests for identity in request.identities]
            IRestorable(policy).restore(requests[0].principal, identities, self.now)
            self.assertFalse(self.isThrottled([self.send(policy, request) for request in requests]))
            IRestorable(self.build(clients=0)).restore("nobody", identities, self.now)

    def test_resuming(self) -> None:
        """
        An L{IPersistent} continues after a restart where it was, and forgets what was stored when it makes no
        difference any more.
        """
        policy, alone = self.build(), self.build()
        if not IPersistent.providedBy(policy):
            return
        self.assertUnaffectedBy(lambda policy: IPersistent(policy).takeChanges())
        kept: dict[str, float] = {}
        requests = self.excess(0)
        for part in (requests[:3], requests[3:6], requests[6:]):
            answers = [self.send(policy, request) for request in part]
            self.assertSameAnswers(answers, [self.send(alone, request) for request in part])
            kept.update(IPersistent(policy).takeChanges())
            policy = self.build()
            IPersistent(policy).resume({key: number for key, number in kept.items() if number > 0}, self.now)
        self.passSeconds(self.forgetSeconds)
        restarted = self.build()
        IPersistent(restarted).resume(dict(kept), self.now)
        for each in (policy, restarted):
            each.sweep(self.now)
            left = {**kept, **IPersistent(each).takeChanges()}
            self.assertEqual({key: number for key, number in left.items() if number > 0}, {})
        self.assertSameAnswers(self.exceed(restarted), self.exceed(self.build()))

    def test_auditing(self) -> None:
        """
        An L{IIdentityAudit} knows an identity once it was recorded, and
        not by asking.
        """
        policy = self.build()
        if IIdentityAudit.providedBy(policy):
            request = self.request(0)
            answers = []
            for _ in range(2):
                answers.append(IIdentityAudit(policy).isKnown(request, self.now))
            self.send(policy, request)
            answers.append(IIdentityAudit(policy).isKnown(request, self.now))
            self.assertEqual(answers, [False, False, True])
            self.assertUnaffectedBy(lambda policy: IIdentityAudit(policy).isKnown(self.request(0), self.now))

    def test_sensors(self) -> None:
        """
        Two policies can publish their sensors under different names, and
        reading them changes nothing.
        """
        registry = SensorRegistry(lambda: self.now)
        self.build().addSensors(registry, "first")
        self.build().addSensors(registry, "second")

        def read(policy: IQuotaPolicy) -> None:
            sensors = SensorRegistry(lambda: self.now)
            policy.addSensors(sensors, "third")
            dict(sensors)
            for family in sensors.families.values():
                list(family.read(self.now))
            self.assertEqual(sensors.failures, {}, "these sensors cannot be read")

        self.assertUnaffectedBy(read)


class QuotaPolicyContract(FixedQuotaPolicyContract):
    """
    The rules for an L{IQuotaPolicy} with limits that can be set.  Subclasses also say
    whom it limits.
    """

    def test_limitNames(self) -> None:
        """
        The limit that is tried is among the names that the policy gives.
        """
        self.assertIn(self.limitName, self.build().limitNames)

    def test_unlimited(self) -> None:
        """
        Without limits the policy limits no client, explains nothing, and says so.
        """
        policy = self.build(clients=0)
        self.assertEqual((bool(policy.isLimiting), dict(policy.limits)), (False, {}))
        self.assertFalse(self.isThrottled(self.exceed(policy)))
        request = self.request(0)
        self.assertEqual((policy.budgetBytes(request, self.now), list(policy.explain(request, self.now))), (None, []))

    def test_configure(self) -> None:
        """
        A limit that is set is there, with the entity it was set for, until it
        is removed; removing what is not there does nothing.
        """
        policy = self.build(clients=0)
        entity, other = self.entity(0), self.entity(1)
        policy.configure(entity, {self.limitName: self.limit}, self.now)
        policy.configure(other, {self.limitName: None}, self.now)
        self.assertTrue(policy.isLimiting)
        self.assertEqual({each: dict(values) for each, values in policy.limits.items()},
                         {entity: {self.limitName: self.limit}})  # fmt: skip
        policy.configure(entity, {self.limitName: None}, self.now)
        self.assertEqual((bool(policy.isLimiting), dict(policy.limits)), (False, {}))

    def test_configureRefuses(self) -> None:
        """
        Limits that make no sense are refused, with the others of the same call, and
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
            self.assertRaises(ValueError, policy.configure, entity, limits, self.now)
            self.assertEqual({entity: dict(values) for entity, values in policy.limits.items()}, before)

    def test_explains(self) -> None:
        """
        It tells which limit holds, for whom it was set, and how much is used:
        nothing at first, and more once something was taken.
        """
        policy = self.build()
        [status] = [each for each in policy.explain(self.request(0), self.now) if each.limitName == self.limitName]
        self.assertEqual((status.limit, status.entity), (self.limit, self.entity(0)))
        self.assertEqual((status.used, status.delaySeconds, status.utilization), (0.0, 0.0, 0.0))
        self.exceed(policy)
        [status] = [each for each in policy.explain(self.request(0), self.now) if each.limitName == self.limitName]
        self.assertGreater(status.used, 0.0)
        self.assertTrue(isfinite(status.delaySeconds) and status.delaySeconds >= 0.0)

    def test_raisingTheLimit(self) -> None:
        """
        A limit that is raised far enough throttles no client any more from the
        next request on, once what was owed is paid.
        """
        policy = self.build()
        self.exceed(policy)
        policy.configure(self.entity(0), {self.limitName: self.limit * 1e6}, self.now)
        self.passSeconds(1.0)
        self.assertFalse(self.isThrottled(self.exceed(policy)))

    def test_removingTheLimit(self) -> None:
        """
        A client whose limit is removed is free at once, and others are not.
        """
        policy = self.build()
        for client in (0, 1):
            self.exceed(policy, client)
        policy.configure(self.entity(0), {self.limitName: None}, self.now)
        self.assertFalse(self.isThrottled(self.exceed(policy, 0)))
        self.assertTrue(self.isThrottled(self.exceed(policy, 1)))


class RequestLifecycleContract(QuotaFixture):
    """
    The rules for an L{IRequestLifecycle}; mix it in besides one of the others.
    """

    def test_countsParked(self) -> None:
        """
        The policy says whether parked requests count.
        """
        policy = self.build()
        verifyObject(IRequestLifecycle, policy)
        self.assertIn(IRequestLifecycle(policy).countsParked, (True, False))

    def test_pairs(self) -> None:
        """
        However requests end, and in whatever order, once all of them have, and the time has passed in which an excess
        is forgiven, the client is treated as before the first.
        """
        policy, outcomes = self.build(), (Outcome(), Outcome(False), Outcome(True, 0.1, 5.0))
        lifecycle = IRequestLifecycle(policy)
        before = policy.decide(self.request(0), self.now)
        for order in (1, -1):
            requests = self.excess(0)
            for request in requests:
                lifecycle.begun(request, self.now)
            for number, request in enumerate(requests[::order]):
                lifecycle.ended(request, outcomes[number % len(outcomes)], self.now)
            self.now += self.forgetSeconds
            self.assertEqual(policy.decide(self.request(0), self.now), before)

    def test_nobodyInForce(self) -> None:
        """
        Requests that have begun may end when no client is limited any more.
        """
        policy, request = self.build(clients=1), self.request(0)
        IRequestLifecycle(policy).begun(request, self.now)
        if self.limitName:
            policy.configure(self.entity(0), {self.limitName: None}, self.now)
        IRequestLifecycle(policy).ended(request, Outcome(), self.now)

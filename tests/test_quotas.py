"""
L{admission.quotas}.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, nan
from typing import Any

from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import ADMITTED, DEFAULT, NOTHING, Decision, QuotaEntity, QuotaStatus, Request, Usage
from admission.metrics.registry import SensorRegistry
from admission.quotas import FAILURE_SECONDS, SWEEP_SECONDS, Quotas
from admission.quotas.meters import Windows
from admission.testing.cuedquota import CuedQuota
from admission_plugins.clientquota import ClientBytes
from admission_plugins.connectionrate import ConnectionRate
from admission_plugins.requesttime import RequestTime

ALICE = QuotaEntity("alice")
REQUEST = Request("Produce", "alice", "app", "192.0.2.1", 100)
USAGE = Usage(100, 200, 0.01)


class QuotasTestCase(SynchronousTestCase):
    """
    Policies on cue.
    """

    def setUp(self) -> None:
        """
        Make a clock.
        """
        self.clock = Clock()

    def compose(self, **policies: Any) -> Quotas:
        """
        Make one of several, each with a limit of its own.
        """
        for policy in policies.values():
            policy.limits[ALICE] = dict.fromkeys(policy.limitNames, 1.0)
        return Quotas(list(policies.items()), self.clock, 20.0)


class AnsweringTests(QuotasTestCase):
    """
    Several answers become one.
    """

    def test_nobodyLimits(self) -> None:
        """
        Policies without limits are not asked anything.
        """
        policies = [CuedQuota(delaySeconds=5.0, budget=1, decision=Decision(False, 1.0, "no")) for _ in range(2)]
        quotas = Quotas([(str(number), policy) for number, policy in enumerate(policies)], self.clock, 20.0)
        self.assertFalse(quotas.isLimiting)
        self.assertEqual((quotas.decide(REQUEST), quotas.budgetBytes(REQUEST)), (ADMITTED, None))
        self.assertEqual(quotas.record(REQUEST, USAGE), (0.0, (0.0, 0.0)))
        self.assertEqual([policy.recorded for policy in policies], [[], []])

    def test_noPolicies(self) -> None:
        """
        There may be no policies at all.
        """
        quotas = Quotas([], self.clock, 20.0)
        self.assertEqual((quotas.isLimiting, quotas.record(REQUEST, USAGE), quotas.limitNames), (False, (0.0, ()), []))
        error = self.assertRaises(ValueError, quotas.configure, ALICE, {"cued_rate": 1.0})
        self.assertIn("known: none", str(error))

    def test_largestDelayWins(self) -> None:
        """
        Every policy is told of the usage, the largest delay wins, and each
        one's share is in its place.
        """
        policies = {name: CuedQuota(delaySeconds=delay) for name, delay in (("a", 1.0), ("b", 3.0), ("c", 2.0))}
        quotas = self.compose(**policies)
        self.assertTrue(quotas.isLimiting)
        self.assertEqual(quotas.record(REQUEST, USAGE), (3.0, (1.0, 3.0, 2.0)))
        for policy in policies.values():
            self.assertEqual(policy.recorded, [(REQUEST, USAGE)])

    def test_placesOfThoseWithoutLimits(self) -> None:
        """
        Who limits nobody keeps its place among the shares.
        """
        quotas = self.compose(a=CuedQuota(delaySeconds=1.0), b=CuedQuota(("b_rate",)), c=CuedQuota(delaySeconds=2.0))
        quotas.configure(ALICE, {"b_rate": None})
        self.assertEqual(quotas.record(REQUEST, NOTHING), (2.0, (1.0, 0.0, 2.0)))

    def test_firstRefusal(self) -> None:
        """
        The first refusal wins, and tells whose it is.
        """
        refusing = CuedQuota(decision=Decision(False, 7.0, "too many"))
        quotas = self.compose(a=CuedQuota(), b=refusing, c=CuedQuota(decision=Decision(False, 9.0, "no")))
        self.assertEqual(quotas.decide(REQUEST), Decision(False, 7.0, "b: too many"))
        refusing.decision = ADMITTED
        self.assertEqual(quotas.decide(REQUEST).reason, "c: no")

    def test_smallestBudget(self) -> None:
        """
        The smallest budget wins; no limit is more than any.
        """
        for budgets, expected in [((None, None), None), ((None, 5), 5), ((7, 5), 5), ((0, 5), 0), ((5, -3), 0)]:
            quotas = self.compose(**{name: CuedQuota(budget=each) for name, each in zip("ab", budgets, strict=True)})
            self.assertEqual(quotas.budgetBytes(REQUEST), expected)

    def test_explain(self) -> None:
        """
        Every status is told with the policy that it comes from.
        """
        quotas = self.compose(a=CuedQuota(delaySeconds=1.0), b=CuedQuota(isShadow=True))
        self.assertEqual(
            quotas.explain(REQUEST),
            [
                ("a", False, QuotaStatus("cued_rate", 1.0, ALICE, 0.5, 1.0)),
                ("b", True, QuotaStatus("cued_rate", 1.0, ALICE, 0.5, 0.0)),
            ],
        )

    def test_namesDiffer(self) -> None:
        """
        Two policies of one name could not be told apart.
        """
        self.assertRaises(ValueError, Quotas, [("a", CuedQuota()), ("a", CuedQuota())], self.clock, 20.0)


class SafetyTests(QuotasTestCase):
    """
    What policies say is made safe.
    """

    def test_delays(self) -> None:
        """
        Delays are clamped, and what is no sensible number is no delay.
        """
        policy = CuedQuota()
        quotas = self.compose(a=policy)
        for said, expected in [
            (-1.0, 0.0),
            (nan, 0.0),
            (-inf, 0.0),
            (0.0, 0.0),
            (19.0, 19.0),
            (21.0, 20.0),
            (inf, 20.0),
        ]:
            policy.delaySeconds = said
            self.assertEqual(quotas.record(REQUEST, USAGE), (expected, (expected,)))
            policy.decision = Decision(False, said, "no")
            self.assertEqual(quotas.decide(REQUEST).delaySeconds, expected)
            policy.decision = ADMITTED

    def test_hugeDelay(self) -> None:
        """
        3,000,000 bytes at 1 byte a second hold the client back for as long as
        anybody is held back.
        """
        quotas = Quotas([("bytes", ClientBytes(Windows(11, 1.0), self.clock.seconds))], self.clock, 20.0)
        quotas.configure(QuotaEntity(clientId=DEFAULT), {"producer_byte_rate": 1.0})
        self.assertEqual(quotas.record(REQUEST, Usage(3_000_000)), (20.0, (20.0,)))

    def test_failing(self) -> None:
        """
        A policy that raises has no say, and the others have theirs.
        """
        failing = CuedQuota(failing=frozenset({"decide", "budgetBytes", "record", "explain", "sweep"}))
        sound = CuedQuota(delaySeconds=2.0, budget=5)
        quotas = self.compose(a=failing, b=sound)
        self.assertEqual((quotas.decide(REQUEST), quotas.budgetBytes(REQUEST)), (ADMITTED, 5))
        self.assertEqual(quotas.record(REQUEST, USAGE), (2.0, (0.0, 2.0)))
        self.assertEqual([each.policyName for each in quotas.explain(REQUEST)], ["b"])
        quotas.sweep()
        self.assertEqual(sound.sweeps, 1)
        self.assertTrue(self.flushLoggedErrors(ZeroDivisionError))

    def test_nonsense(self) -> None:
        """
        A policy that answers with something else than it should counts as one
        that raises.
        """
        policy: Any = CuedQuota(delaySeconds="soon", budget="some", decision=None)  # type: ignore[arg-type]
        quotas = self.compose(a=policy, b=CuedQuota(budget=5))
        self.assertEqual((quotas.decide(REQUEST), quotas.budgetBytes(REQUEST)), (ADMITTED, 5))
        self.assertEqual(quotas.record(REQUEST, USAGE), (0.0, (0.0, 0.0)))
        self.assertTrue(self.flushLoggedErrors(AttributeError, TypeError))

    def test_failuresAreLoggedNowAndThen(self) -> None:
        """
        The log tells of a failing policy at once, and then now and then, with
        how often it failed.
        """
        quotas = self.compose(a=CuedQuota(failing=frozenset({"record"})))
        told = []
        for pauseSeconds in (0.0, 0.0, FAILURE_SECONDS - 1, 1.0, 0.0):
            self.clock.advance(pauseSeconds)
            with capturedLogs() as events:
                quotas.record(REQUEST, USAGE)
            told.append([formatEvent(event) for event in events])
        self.assertEqual([len(each) for each in told], [1, 0, 0, 1, 0])
        self.assertIn("the quota policy a failed (1 times since the last report)", told[0][0])
        self.assertIn("(3 times since the last report)", told[3][0])
        self.flushLoggedErrors(ZeroDivisionError)


class ShadowTests(QuotasTestCase):
    """
    A policy on trial.
    """

    def test_noSay(self) -> None:
        """
        It is asked and told like the others, and nobody is refused, held back
        or given less for it.
        """
        shadow = CuedQuota(isShadow=True, delaySeconds=9.0, budget=1, decision=Decision(False, 1.0, "no"))
        quotas = self.compose(shadow=shadow, real=CuedQuota(delaySeconds=2.0, budget=5))
        self.assertEqual((quotas.decide(REQUEST), quotas.budgetBytes(REQUEST)), (ADMITTED, 5))
        self.assertEqual(quotas.record(REQUEST, USAGE), (2.0, (9.0, 2.0)))
        self.assertEqual(shadow.recorded, [(REQUEST, USAGE)])

    def test_onlyShadow(self) -> None:
        """
        With nothing but policies on trial, they are asked, and nothing happens.
        """
        quotas = self.compose(shadow=CuedQuota(isShadow=True, delaySeconds=9.0))
        self.assertTrue(quotas.isLimiting)
        self.assertEqual(quotas.record(REQUEST, USAGE), (0.0, (9.0,)))

    def test_refusalBehindIt(self) -> None:
        """
        The refusal of one that has a say comes through behind it.
        """
        shadow = CuedQuota(isShadow=True, decision=Decision(False, 1.0, "no"))
        quotas = self.compose(shadow=shadow, real=CuedQuota(decision=Decision(False, 2.0, "really")))
        self.assertEqual(quotas.decide(REQUEST), Decision(False, 2.0, "real: really"))


class ConfigureTests(QuotasTestCase):
    """
    Limits go to the policies that know them.
    """

    def setUp(self) -> None:
        """
        Make three policies, two of which share a limit.
        """
        super().setUp()
        self.policies = {
            "a": CuedQuota(("read", "write")),
            "b": CuedQuota(("write", "time")),
            "c": CuedQuota(("time",), isShadow=True),
        }
        self.quotas = Quotas(list(self.policies.items()), self.clock, 20.0)

    def limits(self) -> list[Mapping[str, float]]:
        """
        What each policy has for alice.
        """
        return [policy.limits.get(ALICE, {}) for policy in self.policies.values()]

    def test_routing(self) -> None:
        """
        Every policy that knows a limit gets it, and no other.
        """
        self.assertEqual(self.quotas.limitNames, ["read", "time", "write"])
        self.quotas.configure(ALICE, {"read": 1.0, "write": 2.0})
        self.assertEqual(self.limits(), [{"read": 1.0, "write": 2.0}, {"write": 2.0}, {}])
        self.quotas.configure(ALICE, {"write": None, "time": 3.0})
        self.assertEqual(self.limits(), [{"read": 1.0}, {"time": 3.0}, {"time": 3.0}])
        self.assertEqual(self.quotas.limits, {ALICE: {"read": 1.0, "time": 3.0}})

    def test_limitsInForce(self) -> None:
        """
        Where policies have been built with different limits, that of the one
        on trial is not the one that is told.
        """
        self.policies["c"].limits[ALICE] = {"time": 5.0}
        self.assertEqual(self.quotas.limits, {ALICE: {"time": 5.0}})
        self.policies["b"].limits[ALICE] = {"time": 6.0}
        self.assertEqual(self.quotas.limits, {ALICE: {"time": 6.0}})

    def test_noticed(self) -> None:
        """
        Who begins to limit is asked from then on, and who ends is not.
        """
        self.policies["a"].delaySeconds = self.policies["b"].delaySeconds = 1.0
        delays = []
        for limits in ({}, {"write": 1.0}, {"write": None}, {"read": 1.0}):
            self.quotas.configure(ALICE, limits)
            delays.append((self.quotas.isLimiting, self.quotas.record(REQUEST, USAGE).shares))
        self.assertEqual(
            delays,
            [
                (False, (0.0, 0.0, 0.0)),
                (True, (1.0, 1.0, 0.0)),
                (False, (0.0, 0.0, 0.0)),
                (True, (1.0, 0.0, 0.0)),
            ],
        )

    def test_unknown(self) -> None:
        """
        A limit that no policy knows is refused, telling those that are known,
        and the others of that call are not set.
        """
        error = self.assertRaises(ValueError, self.quotas.configure, ALICE, {"read": 1.0, "sing": 2.0})
        self.assertIn("sing; known: read, time, write", str(error))
        self.assertEqual(self.limits(), [{}, {}, {}])

    def test_allOrNothing(self) -> None:
        """
        What one policy refuses is undone in all others, to what it was before.
        """
        self.quotas.configure(ALICE, {"read": 1.0, "time": 3.0})
        before = [dict(each) for each in self.limits()]
        self.assertRaises(ValueError, self.quotas.configure, ALICE, {"read": 5.0, "write": 6.0, "time": -1.0})
        self.assertEqual(self.limits(), before)
        self.policies["c"].failing = frozenset({"configure"})
        self.assertRaises(ZeroDivisionError, self.quotas.configure, ALICE, {"write": 6.0, "time": 1.0})
        self.assertEqual(self.limits(), before)

    def test_undoneIsNoticed(self) -> None:
        """
        What was undone limits nobody.
        """
        self.assertRaises(ValueError, self.quotas.configure, ALICE, {"read": 5.0, "time": -1.0})
        self.assertFalse(self.quotas.isLimiting)


class SweepTests(QuotasTestCase):
    """
    Forgetting who has been idle.
    """

    def test_nowAndThen(self) -> None:
        """
        All policies are swept from the start on to the stop, those without
        limits and those behind a failing one as well, and no timer is left.
        """
        failing, sound = CuedQuota(failing=frozenset({"sweep"})), CuedQuota()
        quotas = Quotas([("a", failing), ("b", sound)], self.clock, 20.0)
        quotas.start()
        quotas.start()
        self.assertEqual(sound.sweeps, 0)
        for _ in range(3):
            self.clock.advance(SWEEP_SECONDS)
        self.assertEqual(sound.sweeps, 3)
        quotas.stop()
        quotas.stop()
        self.assertEqual(list(self.clock.getDelayedCalls()), [])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)


class SensorTests(QuotasTestCase):
    """
    What is published.
    """

    def test_counts(self) -> None:
        """
        Throttles and refusals are counted for each policy, those on trial
        apart, and so are failures.
        """
        quotas = self.compose(
            real=CuedQuota(delaySeconds=1.0, decision=Decision(False, 1.0, "no")),
            shadow=CuedQuota(delaySeconds=1.0, isShadow=True),
            failing=CuedQuota(failing=frozenset({"record"})),
        )
        registry = SensorRegistry()
        quotas.addSensors(registry)
        for _ in range(2):
            quotas.record(REQUEST, USAGE)
        quotas.decide(REQUEST)
        self.flushLoggedErrors(ZeroDivisionError)
        counts = {
            name: {labels[0]: value for labels, value in family.read()} for name, family in registry.families.items()
        }
        self.assertEqual(
            counts,
            {
                "QuotaThrottles": {"real": 2, "failing": 0},
                "QuotaRefusals": {"real": 1, "failing": 0},
                "QuotaShadowThrottles": {"shadow": 2},
                "QuotaShadowRefusals": {"shadow": 0},
                "QuotaPolicyFailures": {"real": 0, "shadow": 0, "failing": 2},
            },
        )
        self.assertTrue(all(family.isCounter for family in registry.families.values()))

    def test_ofPolicies(self) -> None:
        """
        What the policies publish comes along, each under its own name.
        """
        registry = SensorRegistry()
        self.compose(a=CuedQuota(), b=CuedQuota()).addSensors(registry)
        self.assertEqual(list(registry), [("a.sweeps", 0), ("b.sweeps", 0)])


class DefaultPoliciesTests(QuotasTestCase):
    """
    The policies that come with us, together.
    """

    def test_together(self) -> None:
        """
        Each limits what it is for, and the one that asks for most wins.
        """
        seconds = self.clock.seconds
        quotas = Quotas(
            [
                ("client-bytes", ClientBytes(Windows(11, 1.0), seconds)),
                ("request-time", RequestTime(11, 1.0, seconds)),
                ("connections", ConnectionRate(1.0, seconds)),
            ],
            self.clock,
            20.0,
        )
        quotas.configure(QuotaEntity(clientId=DEFAULT), {"producer_byte_rate": 1000.0, "request_percentage": 100.0})
        quotas.configure(QuotaEntity(ip=DEFAULT), {"connection_creation_rate": 1.0})
        self.assertEqual(quotas.record(REQUEST, Usage(10_100, 0, 10.3)).shares[2], 0.0)
        charge = quotas.record(REQUEST, NOTHING)
        self.assertEqual([round(share, 6) for share in charge.shares], [0.1, 0.3, 0.0])
        self.assertAlmostEqual(charge.delaySeconds, 0.3)
        connection = Request("connection", "", "", "192.0.2.1", 0)
        self.assertEqual([quotas.record(connection, Usage(connections=1)).delaySeconds for _ in range(2)], [0.0, 1.0])
        self.assertEqual(len(quotas.explain(REQUEST)), 3)

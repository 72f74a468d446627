"""L{admission.control}."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, nan
from signal import SIGINT, default_int_handler, signal
from typing import Any, ClassVar

from attrs import evolve
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.control import FAILURE_LOG_SECONDS, NONE_BEGUN, AdmissionControl, Wants
from admission.interfaces import (
    ADMITTED,
    CONNECTION_TRAITS,
    DEFAULT,
    NOTHING,
    RECEIVED_TRAITS,
    SENT_TRAITS,
    Decision,
    IAccountable,
    IAliasedLimits,
    IIdentityAudit,
    IQuotaPolicy,
    IRequestLifecycle,
    ISensorRegistry,
    IShared,
    Outcome,
    QuotaEntity,
    QuotaStatus,
    Refusal,
    Request,
    Taken,
    Usage,
)
from admission.metrics.registry import SensorRegistry
from admission.quotas.metering import Windows
from admission.quotas.policy import QuotaPolicy
from admission.request import ServerRequest
from admission.testing.quotacontract import FixedQuotaPolicyContract
from admission.testing.scriptedquota import ScriptedQuota
from admission_plugins.clientquotas import ClientBytes
from tests.kit.startable import Startable

ALICE = QuotaEntity("alice")
REQUEST = Request("Produce", "alice", "app", "192.0.2.1", 100)
USAGE = Usage(100, 200, 0.01)


@implementer(IRequestLifecycle, IIdentityAudit, IAccountable)
class EndingQuota(ScriptedQuota):
    """
    Wants the process to end, whatever it is asked.

    @ivar error: what it raises.
    """

    error: type[BaseException] = SystemExit
    countsParked = True

    @property
    def sizeBytes(self) -> int:
        """Raise."""
        raise self.error

    def begun(self, request: Request, now: float) -> None:
        """Raise."""
        raise self.error

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        """Raise."""
        raise self.error

    def isKnown(self, request: Request, now: float) -> bool | None:
        """Raise."""
        raise self.error

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        """Publish one that raises."""
        registry.addGauge("a.ending", lambda now: self._fail("gauge"))  # type: ignore[arg-type, return-value]

    def _fail(self, method: str) -> None:
        raise self.error


class ControlTestCase(SynchronousTestCase):
    """Policies on cue."""

    def setUp(self) -> None:
        self.now = 100.0

    def compose(self, **policies: Any) -> AdmissionControl:
        """Make one of several, each with a limit of its own."""
        for policy in policies.values():
            policy.limits[ALICE] = dict.fromkeys(policy.limitNames, 1.0)
        return AdmissionControl(list(policies.items()), 20.0)

    def assertAdmits(self, control: AdmissionControl, budgetBytes: int | None) -> None:
        """A request is admitted, and has that budget."""
        self.assertEqual(control.admit(REQUEST, self.now), ADMITTED)
        self.assertEqual(control.budgetBytes(REQUEST, self.now), budgetBytes)


class ConstructorTests(ControlTestCase):
    """What L{AdmissionControl} is made of."""

    def test_mistakes(self) -> None:
        """What is no pair of a name and a policy is refused in words."""
        policy = ScriptedQuota()
        for given in ([object()], [policy], policy, ["client-bytes"], [("a", None)], [(1, policy)], {"a": policy}):
            error = self.assertRaises(TypeError, AdmissionControl, given)
            self.assertIn(": give pairs of a name and an IQuotaPolicy", str(error))


class AnsweringTests(ControlTestCase):
    """Several answers become one."""

    def test_nobodyLimits(self) -> None:
        """Policies without limits are not asked anything."""
        policies = [ScriptedQuota(delaySeconds=5.0, budget=1, decision=Decision(False, 1.0, "no")) for _ in range(2)]
        control = AdmissionControl([(str(number), policy) for number, policy in enumerate(policies)], 20.0)
        self.assertFalse(control.isLimiting)
        self.assertAdmits(control, None)
        self.assertEqual(control.charge(REQUEST, USAGE, self.now), (0.0, (0.0, 0.0)))
        self.assertEqual([policy.recorded for policy in policies], [[], []])

    def test_noPolicies(self) -> None:
        """There may be no policies at all."""
        control = AdmissionControl([], 20.0)
        self.assertEqual(
            (control.isLimiting, control.charge(REQUEST, USAGE, self.now), control.limitNames), (False, (0.0, ()), [])
        )
        error = self.assertRaises(ValueError, control.configure, ALICE, {"scripted_rate": 1.0}, self.now)
        self.assertIn("known: none", str(error))

    def test_largestDelayWins(self) -> None:
        """Every policy is told of the usage, the largest delay wins, and each one's share is in its place."""
        policies = {name: ScriptedQuota(delaySeconds=delay) for name, delay in (("a", 1.0), ("b", 3.0), ("c", 2.0))}
        control = self.compose(**policies)
        self.assertTrue(control.isLimiting)
        self.assertEqual(control.charge(REQUEST, USAGE, self.now), (3.0, (1.0, 3.0, 2.0)))
        for policy in policies.values():
            self.assertEqual(policy.recorded, [(REQUEST, USAGE)])

    def test_placesOfThoseWithoutLimits(self) -> None:
        """A policy that limits nobody keeps its place among the shares."""
        control = self.compose(
            a=ScriptedQuota(delaySeconds=1.0), b=ScriptedQuota(("b_rate",)), c=ScriptedQuota(delaySeconds=2.0)
        )
        control.configure(ALICE, {"b_rate": None}, self.now)
        self.assertEqual(control.charge(REQUEST, NOTHING, self.now), (2.0, (1.0, 0.0, 2.0)))

    def test_firstRefusal(self) -> None:
        """The first refusal wins, and tells whose it is."""
        refusing = ScriptedQuota(decision=Decision(False, 7.0, "too many"))
        control = self.compose(a=ScriptedQuota(), b=refusing, c=ScriptedQuota(decision=Decision(False, 9.0, "no")))
        self.assertEqual(control.admit(REQUEST, self.now), Decision(False, 7.0, "too many", "b"))
        self.assertEqual(control.admit(REQUEST, self.now).message, "b: too many")
        refusing.decision = ADMITTED
        self.assertEqual(control.admit(REQUEST, self.now).message, "c: no")

    def test_smallestBudget(self) -> None:
        """The smallest budget wins; no limit is more than any."""
        for budgets, expected in [((None, None), None), ((None, 5), 5), ((7, 5), 5), ((0, 5), 0), ((5, -3), 0)]:
            control = self.compose(
                **{name: ScriptedQuota(budget=each) for name, each in zip("ab", budgets, strict=True)}
            )
            self.assertEqual(control.budgetBytes(REQUEST, self.now), expected)

    def test_explain(self) -> None:
        """Every status is told with the policy that it comes from."""
        control = self.compose(a=ScriptedQuota(delaySeconds=1.0), b=ScriptedQuota(isShadow=True))
        self.assertEqual(
            control.explain(REQUEST, self.now),
            [
                ("a", False, QuotaStatus("scripted_rate", 1.0, ALICE, 0.5, 1.0)),
                ("b", True, QuotaStatus("scripted_rate", 1.0, ALICE, 0.5, 0.0)),
            ],
        )

    def test_namesDiffer(self) -> None:
        """Two policies of one name could not be told apart."""
        self.assertRaises(ValueError, AdmissionControl, [("a", ScriptedQuota()), ("a", ScriptedQuota())])


class SafetyTests(ControlTestCase):
    """What policies say is made safe."""

    def test_delays(self) -> None:
        """Delays, those in place of a refusal included, are clamped, and what is no sensible number is no delay."""
        policy = ScriptedQuota()
        control = self.compose(a=policy)
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
            self.assertEqual(control.charge(REQUEST, USAGE, self.now), (expected, (expected,)))
            policy.decision = Decision(False, said, "no")
            self.assertEqual(control.admit(REQUEST, self.now).delaySeconds, expected)
            decision = control.admit(REQUEST, self.now, Refusal.DELAY)
            self.assertEqual((decision.admitted, decision.delaySeconds), (True, expected))
            self.assertEqual(control.charge(REQUEST, USAGE, self.now, decision).delaySeconds, expected)
            policy.decision = ADMITTED

    def test_failing(self) -> None:
        """A policy that raises, even what ends a process, has no say, whatever it is asked; the others have theirs."""
        self.handleInterrupts(lambda number, frame: None)
        for error in (ZeroDivisionError, SystemExit, KeyboardInterrupt):
            ending = EndingQuota()
            ending.error = error
            control = self.compose(a=ending, b=ScriptedQuota(delaySeconds=2.0, budget=5))
            request = ServerRequest(None, 100, self.now)
            request.view = REQUEST
            self.assertTrue(control.admitRequest(request, self.now, Refusal.ERROR).admitted)
            control.beginRequest(request, self.now)
            control.end((control._members[0],), REQUEST, request.outcome(self.now), self.now)
            self.assertEqual(control.chargeRequest(request, USAGE, self.now), 2.0)
            self.assertEqual(control.budgetBytes(REQUEST, self.now), 5)
            self.assertEqual([each.policyName for each in control.explain(REQUEST, self.now)], ["b"])
            self.assertIsNone(control.isKnown(REQUEST, self.now))
            self.assertEqual(control.sizeBytes, 0)
            control.sweep(self.now)
            registry = SensorRegistry(lambda: self.now)
            control.addSensors(registry)
            self.assertEqual(dict(registry), {"b.sweeps": 1})
            self.assertRaises(error, control.configure, ALICE, {"scripted_rate": 2.0}, self.now)
            self.assertTrue(self.flushLoggedErrors(error))

    def test_interrupted(self) -> None:
        """Where Python itself makes an exception of Ctrl-C, as in a replay, that ends what is being done."""
        self.handleInterrupts(default_int_handler)
        ending = EndingQuota()
        ending.error = KeyboardInterrupt
        control = self.compose(a=ending)
        self.assertRaises(KeyboardInterrupt, control.admit, REQUEST, self.now)
        self.assertRaises(KeyboardInterrupt, control.charge, REQUEST, USAGE, self.now)
        ending.error = SystemExit
        self.assertTrue(control.admit(REQUEST, self.now).admitted)
        self.flushLoggedErrors(SystemExit)

    def handleInterrupts(self, handler: Any) -> None:
        """Have C{handler} deal with Ctrl-C, in the end as before."""
        self.addCleanup(signal, SIGINT, signal(SIGINT, handler))

    def test_explainsNonsense(self) -> None:
        """What a policy explains in another form than it should is left out, and limits that are none, too."""
        right = QuotaStatus("scripted_rate", 1.0, ALICE, 0.5, 0.0)
        wrong: Any = [
            None,
            ("scripted_rate", 1.0),
            evolve(right, limitName=5),
            evolve(right, limit="much"),
            evolve(right, used=None),
            evolve(right, used=10**400),
            evolve(right, delaySeconds="soon"),
            evolve(right, usedElsewhere="some"),
            evolve(right, fraction=None),
            evolve(right, entity="alice"),
            evolve(right, entity=QuotaEntity(user=5)),  # type: ignore[arg-type]
        ]
        policy = ScriptedQuota()
        control = self.compose(a=policy, b=ScriptedQuota())
        for status in wrong:
            self.patch(ScriptedQuota, "explain", lambda each, *_: [status if each is policy else right])  # noqa: B023
            self.assertEqual([each.policyName for each in control.explain(REQUEST, self.now)], ["b"], status)
            self.assertEqual(control._members[0].failures, wrong.index(status) + 1)
        self.flushLoggedErrors(TypeError, OverflowError)
        limits: Any
        for limits in (None, {"alice": {"scripted_rate": 1.0}}, {ALICE: {"scripted_rate": "much"}}, {ALICE: 5}):
            policy.limits = limits
            self.assertEqual(control.limits, {ALICE: {"scripted_rate": 1.0}})

    def test_limitOfZero(self) -> None:
        """All of a limit of zero is used, and more."""
        self.assertEqual(QuotaStatus("scripted_rate", 0.0, ALICE, 0.0, 0.0).utilization, inf)

    def test_fraction(self) -> None:
        """How far a limit is used goes by what is enforced of it; what is used here is what is not used elsewhere."""
        status = QuotaStatus("scripted_rate", 8.0, ALICE, 3.0, 0.0, usedElsewhere=1.0, fraction=0.5)
        self.assertEqual((status.utilization, status.usedHere), (0.75, 2.0))
        self.assertEqual(QuotaStatus("scripted_rate", 8.0, ALICE, 3.0, 0.0).usedHere, 3.0)

    def test_nonsense(self) -> None:
        """A policy that answers with something else than it should counts as one that raises."""
        policy: Any = ScriptedQuota(delaySeconds="soon", budget="some", decision=None)  # type: ignore[arg-type]
        control = self.compose(a=policy, b=ScriptedQuota(budget=5))
        self.assertAdmits(control, 5)
        self.assertEqual(control.charge(REQUEST, USAGE, self.now), (0.0, (0.0, 0.0)))
        self.assertTrue(self.flushLoggedErrors(AttributeError, TypeError))

    def test_failuresAreLoggedNowAndThen(self) -> None:
        """The log tells of a failing policy at once, and then now and then, with how often it failed."""
        control = self.compose(a=ScriptedQuota(failing=frozenset({"record"})))
        told = []
        for pauseSeconds in (0.0, 0.0, FAILURE_LOG_SECONDS - 1, 1.0, 0.0):
            self.now += pauseSeconds
            with capturedLogs() as events:
                control.charge(REQUEST, USAGE, self.now)
            told.append([formatEvent(event) for event in events])
        self.assertEqual([len(each) for each in told], [1, 0, 0, 1, 0])
        self.assertIn("the quota policy a failed (1 times since the last report)", told[0][0])
        self.assertIn("(3 times since the last report)", told[3][0])
        self.flushLoggedErrors(ZeroDivisionError)


@implementer(IAccountable)
class AccountableQuota(ScriptedQuota):
    """Says how much memory it keeps."""

    def __init__(self, sizeBytes: Any) -> None:
        super().__init__()
        self.sizeBytes = sizeBytes


class SharingTests(SynchronousTestCase):
    """What policies say of limits that several servers enforce together."""

    def test_taken(self) -> None:
        """What a policy says and is no L{Taken} is a failure of that policy; what it said before that is told."""

        @implementer(IShared)
        class Shared(ScriptedQuota):
            says: ClassVar[list[Any]] = []

            def taken(self, leastSeconds: float, now: float) -> Iterator[Taken]:
                return iter(self.says)

            def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
                pass

            def share(self, fraction: float, count: int, now: float) -> None:
                pass

        wrong, right = Shared(), Shared()
        control = AdmissionControl([("wrong", wrong), ("right", right)])
        taken = Taken("scripted_rate", QuotaEntity("alice"), 1.0, (0, (1 << 63) - 1))
        right.says = [taken]  # type: ignore[misc]
        for each in (
            None,
            tuple(taken),
            taken._replace(limitName=None),  # type: ignore[arg-type]
            taken._replace(entity="alice"),  # type: ignore[arg-type]
            taken._replace(entity=QuotaEntity(5)),  # type: ignore[arg-type]
            *(taken._replace(amount=amount) for amount in (-1.0, nan, inf, "1", 10**400)),
            *(taken._replace(identities=identities) for identities in ((-1,), (1 << 63,), ("id",), 1)),
        ):
            wrong.says = [taken, each]  # type: ignore[misc]
            self.assertEqual(list(control.untold(0.0, 0.0)), [taken, taken], repr(each)[:80])
        self.flushLoggedErrors()


class AccountTests(ControlTestCase):
    """What policies keep is in the ledger."""

    def test_sizeBytes(self) -> None:
        """It is the sum of what policies say; one that says nothing, or nonsense, takes nothing from the others."""
        control = self.compose(
            a=AccountableQuota(5), b=ScriptedQuota(), c=AccountableQuota("much"), d=AccountableQuota(7)
        )
        self.assertEqual(control.sizeBytes, 12)


class ShadowTests(ControlTestCase):
    """A shadow policy."""

    def test_noSay(self) -> None:
        """It is asked and told like the others, and nobody is refused, throttled or given less for it."""
        shadow = ScriptedQuota(isShadow=True, delaySeconds=9.0, budget=1, decision=Decision(False, 1.0, "no"))
        control = self.compose(shadow=shadow, real=ScriptedQuota(delaySeconds=2.0, budget=5))
        self.assertAdmits(control, 5)
        self.assertEqual(control.charge(REQUEST, USAGE, self.now), (2.0, (9.0, 2.0)))
        self.assertEqual(shadow.recorded, [(REQUEST, USAGE)])

    def test_onlyShadow(self) -> None:
        """With nothing but shadow policies, they are asked, and nothing happens."""
        control = self.compose(shadow=ScriptedQuota(isShadow=True, delaySeconds=9.0))
        self.assertTrue(control.isLimiting)
        self.assertEqual(control.charge(REQUEST, USAGE, self.now), (0.0, (9.0,)))

    def test_refusalBehindIt(self) -> None:
        """The refusal of one that has a say comes through behind it."""
        shadow = ScriptedQuota(isShadow=True, decision=Decision(False, 1.0, "no"))
        control = self.compose(shadow=shadow, real=ScriptedQuota(decision=Decision(False, 2.0, "really")))
        self.assertEqual(control.admit(REQUEST, self.now), Decision(False, 2.0, "really", "real"))


@implementer(IAliasedLimits)
class Renamed(ScriptedQuota):
    """A policy with other names for its limits."""

    limitAliases: ClassVar = {"got": "received", "left": "sent", "went": "sent", "came": "received"}


class ConfigureTests(ControlTestCase):
    """Limits go to the policies that know them."""

    def setUp(self) -> None:
        """Make three policies, two of which share a limit."""
        super().setUp()
        self.policies = {
            "a": ScriptedQuota(("read", "write")),
            "b": ScriptedQuota(("write", "time")),
            "c": ScriptedQuota(("time",), isShadow=True),
        }
        self.control = AdmissionControl(list(self.policies.items()), 20.0)

    def limits(self) -> list[Mapping[str, float]]:
        """What each policy has for alice."""
        return [policy.limits.get(ALICE, {}) for policy in self.policies.values()]

    def test_routing(self) -> None:
        """Every policy that knows a limit gets it, and no other."""
        self.assertEqual(self.control.limitNames, ["read", "time", "write"])
        self.control.configure(ALICE, {"read": 1.0, "write": 2.0}, self.now)
        self.assertEqual(self.limits(), [{"read": 1.0, "write": 2.0}, {"write": 2.0}, {}])
        self.control.configure(ALICE, {"write": None, "time": 3.0}, self.now)
        self.assertEqual(self.limits(), [{"read": 1.0}, {"time": 3.0}, {"time": 3.0}])
        self.assertEqual(self.control.limits, {ALICE: {"read": 1.0, "time": 3.0}})

    def test_limitsInForce(self) -> None:
        """Where policies have been built with different limits, that of a shadow policy is not the one that is told."""
        self.policies["c"].limits[ALICE] = {"time": 5.0}
        self.assertEqual(self.control.limits, {ALICE: {"time": 5.0}})
        self.policies["b"].limits[ALICE] = {"time": 6.0}
        self.assertEqual(self.control.limits, {ALICE: {"time": 6.0}})

    def test_noticed(self) -> None:
        """A policy that begins to limit is asked from then on, and one that ends is not."""
        self.policies["a"].delaySeconds = self.policies["b"].delaySeconds = 1.0
        delays = []
        for limits in ({}, {"write": 1.0}, {"write": None}, {"read": 1.0}):
            self.control.configure(ALICE, limits, self.now)
            delays.append((self.control.isLimiting, self.control.charge(REQUEST, USAGE, self.now).shares))
        self.assertEqual(
            delays,
            [(False, (0.0, 0.0, 0.0)), (True, (1.0, 1.0, 0.0)), (False, (0.0, 0.0, 0.0)), (True, (1.0, 0.0, 0.0))],
        )

    def test_unknown(self) -> None:
        """
        A limit that no policy knows is refused, telling those that are known,
        and the others of that call are not set.
        """
        error = self.assertRaises(ValueError, self.control.configure, ALICE, {"read": 1.0, "sing": 2.0}, 0.0)
        self.assertEqual("no quota policy knows the limit sing; known: read, time, write", str(error))
        self.assertEqual(self.limits(), [{}, {}, {}])

    def test_allOrNothing(self) -> None:
        """What one policy refuses is undone in all others, to what it was before."""
        self.control.configure(ALICE, {"read": 1.0, "time": 3.0}, self.now)
        before = [dict(each) for each in self.limits()]
        self.assertRaises(ValueError, self.control.configure, ALICE, {"read": 5.0, "write": 6.0, "time": -1.0}, 0.0)
        self.assertEqual(self.limits(), before)
        self.policies["c"].failing = frozenset({"configure"})
        self.assertRaises(ZeroDivisionError, self.control.configure, ALICE, {"write": 6.0, "time": 1.0}, 0.0)
        self.assertEqual(self.limits(), before)

    def test_otherNames(self) -> None:
        """A limit is known by the policy's name, by aliases, and by what the server shows, which is told everywhere."""
        policy, own = Renamed(("received", "sent")), ScriptedQuota(("came", "sung"))
        control = AdmissionControl([("renamed", policy), ("own", own)], shownAliases=("went", "nothing"))
        told: list[Mapping[str, float | None]] = []
        control.whenConfigured.append(lambda entity, limits, now: told.append(limits))
        self.assertEqual(control.limitNames, ["came", "received", "sung", "went"])
        self.assertEqual(
            [control.limitNamed(each) for each in ("got", "sent", "left", "x")], ["received", "went", "went", "x"]
        )
        for number, name in enumerate(("sent", "left", "went"), 1):
            control.configure(ALICE, {name: number, "got": 1.0}, 0.0)
            self.assertEqual(policy.limits, {ALICE: {"sent": number, "received": 1.0}})
            self.assertEqual(control.limits, {ALICE: {"went": number, "received": 1.0}})
            self.assertEqual(told.pop(), {"went": number, "received": 1.0})
        self.assertEqual(sorted(each.status.limitName for each in control.explain(REQUEST, 0.0)), ["received", "went"])
        self.assertIn(
            "two of these",
            str(self.assertRaises(ValueError, control.configure, ALICE, {"left": 1.0, "went": 2.0}, 0.0)),
        )
        self.assertIn("went cannot", str(self.assertRaises(ValueError, control.configure, ALICE, {"sent": -1.0}, 0.0)))
        # Another policy's own name goes before an alias, whichever comes first.
        control.configure(ALICE, {"came": 7.0}, 0.0)
        self.assertEqual((policy.limits[ALICE]["received"], own.limits[ALICE]), (7.0, {"came": 7.0}))
        reversed_ = AdmissionControl([("own", own), ("renamed", policy)])
        self.assertEqual(reversed_.limitNames, ["came", "received", "sent", "sung"])
        self.assertEqual(reversed_.limitNamed("came"), "came")

    def test_undoneIsNoticed(self) -> None:
        """What was undone limits nobody."""
        self.assertRaises(ValueError, self.control.configure, ALICE, {"read": 5.0, "time": -1.0}, 0.0)
        self.assertFalse(self.control.isLimiting)


class SweepTests(ControlTestCase):
    """Forgetting who has been idle."""

    def test_all(self) -> None:
        """
        All policies are swept, those without limits and those behind a failing
        one as well, and told what time it is.
        """
        failing, sound = ScriptedQuota(failing=frozenset({"sweep"})), ScriptedQuota()
        control = AdmissionControl([("a", failing), ("b", sound)])
        for now in (5.0, 15.0):
            control.sweep(now)
        self.assertEqual(sound.moments, [5.0, 15.0])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)


class RefusalTests(ControlTestCase):
    """Requests that cannot be refused, or not with words."""

    def test_never(self) -> None:
        """Of what can never be refused, nobody is asked."""
        control = self.compose(a=ScriptedQuota(failing=frozenset({"decide"}), decision=Decision(False, 1.0, "no")))
        self.assertIs(control.admit(REQUEST, self.now, Refusal.NEVER), ADMITTED)

    def test_delay(self) -> None:
        """
        Where it cannot be told, the refusal with the longest delay becomes that
        delay: all policies are asked, the request is admitted, and it is charged
        with the delay that wins, each policy's share being its own.
        """
        policies = {
            "a": ScriptedQuota(decision=Decision(False, 3.0, "no")),
            "b": ScriptedQuota(decision=Decision(False, 7.0, "never"), delaySeconds=2.0),
            "c": ScriptedQuota(delaySeconds=5.0),
            "shadow": ScriptedQuota(decision=Decision(False, 9.0, "no"), isShadow=True),
        }
        control = self.compose(**policies)
        decision = control.admit(REQUEST, self.now, Refusal.DELAY)
        self.assertEqual(decision, Decision(True, 7.0, "never", "b", (("a", 3.0), ("b", 7.0))))
        charge = control.charge(REQUEST, USAGE, self.now, decision)
        self.assertEqual(charge, (7.0, (3.0, 7.0, 5.0, 0.0)))
        self.assertEqual(control.strictest(charge), "b")
        policies["c"].delaySeconds = 8.0
        charge = control.charge(REQUEST, USAGE, self.now, decision)
        self.assertEqual((charge, control.strictest(charge)), ((8.0, (3.0, 7.0, 8.0, 0.0)), "c"))

    def test_connections(self) -> None:
        """
        A policy that follows requests is not asked whether a connection may be opened, nor about bytes without
        requests: how many requests are in progress is no reason to close one.  Others are asked.
        """
        never = Decision(False, 1.0, "never")
        following = self.compose(a=Follower(decision=never))
        both = self.compose(a=Follower(decision=never), b=ScriptedQuota(decision=never))
        for traits in (CONNECTION_TRAITS, RECEIVED_TRAITS, SENT_TRAITS):
            request = REQUEST._replace(traits=traits)
            self.assertTrue(following.admit(request, self.now).admitted)
            self.assertEqual(both.admit(request, self.now).policy, "b")
        self.assertEqual(both.admit(REQUEST, self.now).policy, "a")

    def test_endsWhileItIsParked(self) -> None:
        """A policy that is told that a request is parked may end it: each is told once."""
        control, request = self.compose(), ServerRequest(None, 10, 1.0)

        class Ending(Follower):
            countsParked = False

            def ended(self, view: Request, outcome: Outcome, now: float) -> None:
                super().ended(view, outcome, now)
                control.endRequest(request, now)

        followers = Ending(), Follower()
        control = self.compose(a=followers[0], b=followers[1])
        request.view = REQUEST
        control.beginRequest(request, 1.0)
        control.parkRequest(request, 2.0)
        for follower in followers:
            self.assertEqual(follower.told, [("begun", 1.0), ("ended", 2.0)])

    def test_reasonsAreSafe(self) -> None:
        """Reasons are short, can be encoded, and are words."""
        for said, expected in (("n" * 1001, "n" * 1000), ("no\ud800", "no?"), (None, ""), (5, "5")):
            reason: Any = said
            control = self.compose(a=ScriptedQuota(decision=Decision(False, 1.0, reason)))
            for refusal in (Refusal.ERROR, Refusal.DELAY):
                self.assertEqual(control.admit(REQUEST, self.now, refusal).reason, expected)

    def test_isKept(self) -> None:
        """How a request could be refused is kept of it, also while nobody is limited: others might have refused it."""
        for control in (self.compose(), self.compose(a=ScriptedQuota())):
            request = ServerRequest(None, 10, self.now)
            request.view = REQUEST
            control.admitRequest(request, self.now, Refusal.DELAY)
            self.assertIs(request.refusal, Refusal.DELAY)

    def test_largestRefusal(self) -> None:
        """How much of it is imposed may be limited; the share is all of it."""
        control = self.compose(a=ScriptedQuota(decision=Decision(False, 7.0, "no"), delaySeconds=1.0))
        decision = control.admit(REQUEST, self.now, Refusal.DELAY)
        for largestSeconds, expected in ((3.0, 3.0), (0.5, 1.0), (9.0, 7.0)):
            charge = control.charge(REQUEST, USAGE, self.now, decision, largestSeconds)
            self.assertEqual(charge, (expected, (7.0,)))
        control = self.compose(
            a=ScriptedQuota(decision=Decision(False, 7.0, "no")),
            b=ScriptedQuota(delaySeconds=5.0),
            c=ScriptedQuota(delaySeconds=1.0),
        )
        decision = control.admit(REQUEST, self.now, Refusal.DELAY)
        for largestSeconds, expected in ((9.0, "a"), (3.0, "b")):
            charge = control.charge(REQUEST, USAGE, self.now, decision, largestSeconds)
            self.assertEqual(control.strictest(charge), expected)


@implementer(IRequestLifecycle)
class Follower(ScriptedQuota):
    """Remembers which requests it was told of."""

    countsParked = True

    def __init__(self, **cues: Any) -> None:
        super().__init__(**cues)
        self.told: list[tuple[str, float]] = []

    def begun(self, request: Request, now: float) -> None:
        self._fail("begun")
        self.told.append(("begun", now))

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        self.told.append(("ended", now))
        self._fail("ended")


class Undecided(Follower):
    """Fails when it is asked whether it counts requests that are parked."""

    @property
    def countsParked(self) -> bool:  # type: ignore[override]
        raise ZeroDivisionError


class LifecycleTests(ControlTestCase):
    """Policies that want to know which requests are under way."""

    def test_failingWhenParked(self) -> None:
        """A policy that fails when a request is parked is told of its end all the same, as the others are, and once."""
        undecided, sound = Undecided(), Follower()
        control = self.compose(a=undecided, b=sound)
        left = control.park(control.begin(REQUEST, 1.0), REQUEST, Outcome(), 2.0)
        control.end(left, REQUEST, Outcome(), 3.0)
        for follower in (undecided, sound):
            self.assertEqual(follower.told, [("begun", 1.0), ("ended", 3.0)])
        self.assertTrue(self.flushLoggedErrors(ZeroDivisionError))

    def test_told(self) -> None:
        """
        A policy that follows requests is told of the beginning and the end, a shadow policy as well; those that do not
        or limit nobody are not.
        """
        followers = {"a": Follower(), "b": Follower(isShadow=True)}
        policies = {**followers, "c": ScriptedQuota()}
        idle = Follower(limitNames=("idle_rate",))
        control = self.compose(**policies)
        withIdle = AdmissionControl([*policies.items(), ("idle", idle)])
        begun = control.begin(REQUEST, 1.0)
        control.end(begun, REQUEST, Outcome(), 2.0)
        for follower in followers.values():
            self.assertEqual(follower.told, [("begun", 1.0), ("ended", 2.0)])
        withIdle.end(withIdle.begin(REQUEST, 3.0), REQUEST, Outcome(), 4.0)
        self.assertEqual(idle.told, [])
        self.assertEqual(AdmissionControl([("c", ScriptedQuota())]).begin(REQUEST, 1.0), NONE_BEGUN)

    def test_failing(self) -> None:
        """
        A policy that fails when it begins is not told of the end; one that fails at the end keeps nobody from being
        told; each is told once.
        """
        policies = {
            "a": Follower(failing=frozenset({"begun"})),
            "b": Follower(failing=frozenset({"ended"})),
            "c": Follower(),
        }
        control = self.compose(**policies)
        control.end(control.begin(REQUEST, 1.0), REQUEST, Outcome(False), 2.0)
        told = [("begun", 1.0), ("ended", 2.0)]
        self.assertEqual([policy.told for policy in policies.values()], [[], told, told])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)

    def test_limitsChange(self) -> None:
        """
        A policy that was told of the beginning is told of the end, though it limits nobody any more; one that limits
        only since then is not.
        """
        before, after = Follower(limitNames=("a_rate",)), Follower(limitNames=("b_rate",))
        control = AdmissionControl([("a", before), ("b", after)])
        control.configure(ALICE, {"a_rate": 1.0}, 0.0)
        begun = control.begin(REQUEST, 1.0)
        control.configure(ALICE, {"a_rate": None, "b_rate": 1.0}, 2.0)
        control.end(begun, REQUEST, Outcome(), 3.0)
        self.assertEqual((before.told, after.told), ([("begun", 1.0), ("ended", 3.0)], []))


@implementer(IIdentityAudit)
class Auditor(ScriptedQuota):
    """Knows everybody."""

    def isKnown(self, request: Request, now: float) -> bool | None:
        return True


class WantsTests(ControlTestCase):
    """What drivers are to find out."""

    def test_combinations(self) -> None:
        """
        While nobody limits and nobody observes, nothing; a decision only while
        somebody limits; what a request takes and carries for either; the details for observers only; and what was
        known for observers, if a policy that limits can tell.
        """
        for isObserved in (False, True):
            for policy, canTell in ((ScriptedQuota(), False), (Auditor(), True)):
                control = AdmissionControl([("a", policy)], isObserved=isObserved)
                for limit in (None, 1.0, None):
                    control.configure(ALICE, {"scripted_rate": limit}, 0.0)
                    isLimiting = limit is not None
                    isWanted = isObserved or isLimiting
                    expected = Wants(isLimiting, isWanted, isObserved and isLimiting and canTell, isObserved)
                    self.assertEqual((control.wants, control.isLimiting), (expected, isLimiting))


class OneASecond(QuotaPolicy):
    """A policy of two methods: one request in a second for everybody together."""

    nextSeconds = 0.0

    def decide(self, request: Request, now: float) -> Decision:
        waitSeconds = self.nextSeconds - now
        return Decision(False, waitSeconds, "one at a time") if waitSeconds > 0 else ADMITTED

    def record(self, request: Request, usage: Usage, now: float) -> float:
        self.nextSeconds = now + 1.0 if usage.requestBytes else self.nextSeconds
        return 0.0


class StartableTests(SynchronousTestCase):
    """Policies that are told when their server begins and ends."""

    def test_all(self) -> None:
        """All are told, whatever others do; the server waits for all of them."""
        policies = [Startable("start"), Startable("stop"), Startable()]
        control = AdmissionControl([(f"p{index}", each) for index, each in enumerate(policies)])
        control.start(1.0)
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        self.assertEqual([each.calls for each in policies], [["start"]] * 3)
        stopped = control.stop()
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        policies[0].stopped.callback(None)
        self.assertNoResult(stopped)
        policies[2].stopped.callback(None)
        self.successResultOf(stopped)
        self.assertEqual([each.calls for each in policies], [["start", "stop"]] * 3)


class TwoMethodsTests(FixedQuotaPolicyContract, SynchronousTestCase):
    """A policy that has the two methods that L{QuotaPolicy} leaves to be written, and nothing else."""

    isShared = True

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        policy = OneASecond()
        policy.isShadow = isShadow
        return policy

    def request(self, client: int, number: int = 0) -> Request:
        """Any will do."""
        return Request("Produce", f"user-{client}", "app", "192.0.2.1", 100)

    def usage(self, request: Request) -> Usage:
        """So will its size."""
        return Usage(requestBytes=request.sizeBytes)

    def test_inForce(self) -> None:
        """A control works with it, and has no limits to set or to tell of."""
        control = AdmissionControl([("one", OneASecond())])
        answers = []
        for now in (1.0, 1.5, 2.0):
            decision = control.admit(REQUEST, now)
            answers.append(decision.message)
            if decision.admitted:
                control.charge(REQUEST, USAGE, now)
        self.assertEqual(answers, ["", "one: one at a time", ""])
        self.assertTrue(control.isLimiting)
        self.assertEqual((control.limitNames, control.limits, control.explain(REQUEST, 2.0)), ([], {}, []))
        self.assertIsNone(control.budgetBytes(REQUEST, 2.0))
        control.sweep(3.0)
        control.addSensors(SensorRegistry(lambda: 3.0))
        self.assertRaises(ValueError, control.configure, ALICE, {"rate": 1.0}, 3.0)

    def test_bothAreNeeded(self) -> None:
        """Without one of the two nothing can be built."""

        class Half(QuotaPolicy):
            def decide(self, request: Request, now: float) -> Decision:
                return ADMITTED

        build: Any = Half
        self.assertRaises(TypeError, build)


class SensorTests(ControlTestCase):
    """What is published."""

    def test_counts(self) -> None:
        """Throttles and refusals are counted for each policy, shadows apart, and so are failures."""
        control = self.compose(
            real=ScriptedQuota(delaySeconds=1.0, decision=Decision(False, 1.0, "no")),
            shadow=ScriptedQuota(delaySeconds=1.0, isShadow=True),
            failing=ScriptedQuota(failing=frozenset({"record"})),
        )
        registry = SensorRegistry(lambda: self.now)
        control.addSensors(registry)
        for _ in range(2):
            control.charge(REQUEST, USAGE, self.now)
        control.admit(REQUEST, self.now)
        self.flushLoggedErrors(ZeroDivisionError)
        counts = {
            name: {labels[0]: value for labels, value in family.read(self.now)}
            for name, family in registry.families.items()
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

    def test_askedTwice(self) -> None:
        """A driver that asks more than once about a request has each refusal of it counted once."""
        shadow = ScriptedQuota(isShadow=True, decision=Decision(False, 1.0, "no"))
        control = self.compose(shadow=shadow, real=ScriptedQuota(decision=Decision(False, 1.0, "no")))
        request = ServerRequest(None, 100, self.now)
        request.view = REQUEST
        for _ in range(2):
            control.admitRequest(request, self.now, Refusal.DELAY)
        refusedBy: list[str] = []
        for _ in range(2):
            control.admit(REQUEST, self.now, refusedBy=refusedBy)
        self.assertEqual((request.refusedBy, refusedBy), (["shadow", "real"], ["shadow", "real"]))
        self.assertEqual([each.refusals for each in control._members], [2, 2])

    def test_asking(self) -> None:
        """Asking for a delay counts no throttled request; a request that used nothing and is told to wait counts."""
        control = self.compose(a=ScriptedQuota(delaySeconds=1.0))
        self.assertEqual(control.charge(REQUEST, NOTHING, self.now).delaySeconds, 1.0)
        self.assertEqual(control._members[0].throttles, 0)
        request = ServerRequest(None, 100, self.now)
        request.view = REQUEST
        self.assertEqual(control.chargeRequest(request, NOTHING, self.now), 1.0)
        self.assertEqual(control._members[0].throttles, 1)

    def test_ofPolicies(self) -> None:
        """What the policies publish comes along, each under its own name."""
        registry = SensorRegistry(lambda: self.now)
        self.compose(a=ScriptedQuota(), b=ScriptedQuota()).addSensors(registry)
        self.assertEqual(list(registry), [("a.sweeps", 0), ("b.sweeps", 0)])


class DefaultPoliciesTests(ControlTestCase):
    """The policies that come with us, together."""

    def test_whoMayRefuseIsAsked(self) -> None:
        """What throttles without refusing is not asked, unless it decides for itself after all."""

        class Strict(ClientBytes):
            def decide(self, request: Request, now: float) -> Decision:
                return Decision(False, 1.0, "no")

        entity, limit = QuotaEntity(clientId=DEFAULT), {"received_byte_rate": 1.0}
        for policy, isAsked in ((ClientBytes(Windows(11, 1.0)), False), (Strict(Windows(11, 1.0)), True)):
            control = AdmissionControl([("client-bytes", policy)])
            control.configure(entity, limit, self.now)
            control.charge(REQUEST, Usage(1000, 0, 0.0), self.now)
            self.assertEqual(control.admit(REQUEST, self.now).admitted, not isAsked)
            self.assertEqual([each.status.limitName for each in control.explain(REQUEST, self.now)], [*limit])

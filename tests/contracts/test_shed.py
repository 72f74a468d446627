"""L{admission_plugins.shed}."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.control import AdmissionControl
from admission.interfaces import (
    CONNECTION,
    CONNECTION_TRAITS,
    IQuotaPolicy,
    IQuotaPolicyFactory,
    Outcome,
    PolicyContext,
    QuotaEntity,
    Refusal,
    Request,
    Usage,
)
from admission.metrics.registry import SensorRegistry
from admission.plugins import PolicyError, buildPolicy
from admission.testing.quotacontract import FixedQuotaPolicyContract, RequestLifecycleContract
from admission_plugins.concurrency import CONCURRENT_REQUESTS, START, AdaptiveLimit
from admission_plugins.shed import LAG, POOL_USED, RETRY_SECONDS, Shedding

SECOND = Outcome(True, 1.0)


def request(kind: str = "report", clientId: str = "app", lagSeconds: float = 0.0, freeShare: float = 1.0) -> Request:
    """One that came to a server that is busy, or is not."""
    return Request(kind, "alice", clientId, "192.0.2.1", 0, lagSeconds=lagSeconds, poolFreeShare=freeShare)


def built(description: str) -> Any:
    """What a server would build."""
    return buildPolicy(IQuotaPolicyFactory, description, PolicyContext(Clock(), lambda: 0.0))


class ContractTests(RequestLifecycleContract, FixedQuotaPolicyContract, SynchronousTestCase):
    """L{Shedding} is an L{IQuotaPolicy} and follows requests."""

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """By lag and memory."""
        return Shedding(("report",), (), 0.1, 0.2, isShadow=isShadow)

    def request(self, client: int, number: int = 0) -> Request:
        """One in five comes while the reactor is late."""
        return request(clientId=f"client-{client}", lagSeconds=0.2 if number % 5 == 4 else 0.0)

    def usage(self, request: Request) -> Usage:
        """Nothing at all."""
        return Usage()


class AdaptiveContractTests(ContractTests):
    """The same of requests in progress."""

    isShared = isAdaptive = True

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """By requests in progress alone."""
        return Shedding(("report",), adaptive=AdaptiveLimit(0.1, 1000), isShadow=isShadow)

    def request(self, client: int, number: int = 0) -> Request:
        """All come to a server that is on time."""
        return request(clientId=f"client-{client}")


class SheddingTests(SynchronousTestCase):
    """L{Shedding}."""

    def isAdmitted(self, policy: Any, of: Request, now: float = 0.0) -> bool:
        """Whether a request is; what refuses it says so to everybody alike, and when to come again."""
        decision = policy.decide(of, now)
        if not decision.admitted:
            self.assertEqual((decision.delaySeconds, decision.isForAll), (RETRY_SECONDS, True))
        return bool(decision.admitted)

    def test_whatCanWait(self) -> None:
        """Kinds, users and client ids that can wait are refused while the server is late, and nothing else is."""
        policy = built("shed:kinds=report+export:clients=crawler+bob")
        for each, canWait in (
            (request("report"), True),
            (request("export", "web"), True),
            (request("login"), False),
            (request("login", "crawler"), True),
            (request("login")._replace(principal="bob"), True),
            (request()._replace(kind=CONNECTION, traits=CONNECTION_TRAITS), False),
        ):
            late = each._replace(lagSeconds=0.2)
            self.assertEqual([self.isAdmitted(policy, of) for of in (each, late)], [True, not canWait])

    def test_conditions(self) -> None:
        """Lag and free memory hold together unless one of the three is asked for; at the limit nobody is refused."""
        late, short = request(lagSeconds=0.101), request(freeShare=0.199)
        both = request(lagSeconds=0.1, freeShare=0.2)
        for conditions, admitted in (
            ("", [False, False, True]),
            (":lag=100ms", [False, True, True]),
            (":free=20%", [True, False, True]),
            (":free=20:lag=1s", [True, False, True]),
            (":free=21", [True, False, False]),
            (":target=100ms", [True, True, True]),
        ):
            policy = built(f"shed:kinds=report{conditions}")
            self.assertEqual([self.isAdmitted(policy, of) for of in (late, short, both)], admitted, conditions)

    def test_reasons(self) -> None:
        """A refusal says what it goes by."""
        policy = built("shed:kinds=report")
        self.assertEqual(
            [policy.decide(of, 0.0).reason for of in (request(lagSeconds=0.25), request(freeShare=-0.5))],
            [
                "it is 0.250 s late, and what can wait is refused beyond 0.1 s",
                "-50 % of the memory pool is free, and what can wait is refused below 20 %",
            ],
        )

    def test_adaptive(self) -> None:
        """
        All requests count towards the limit that is found out, which grows no further than it is told, and those that
        can wait are refused there.
        """
        policy = built("shed:kinds=report:target=100ms:max=21")
        for _ in range(START - 1):
            policy.begun(request("login"), 0.0)
        self.assertTrue(self.isAdmitted(policy, request()))
        policy.begun(request("login"), 0.0)
        self.assertFalse(self.isAdmitted(policy, request()))
        self.assertTrue(self.isAdmitted(policy, request("login")))
        self.assertIn("20 requests are in progress, and what can wait", policy.decide(request(), 0.0).reason)
        for now in range(1, 10):
            policy.ended(request("login"), SECOND, float(now))
            policy.begun(request("login"), float(now))
        self.assertIn("is refused at 8", policy.decide(request(), 9.0).reason)
        self.assertFalse(self.isAdmitted(policy, request(), 9.0))

    def test_explain(self) -> None:
        """What it goes by is explained as it was when it was last asked."""
        policy = built("shed:kinds=report:lag=100ms:free=20%:target=1s")
        policy.decide(request("login", lagSeconds=0.2, freeShare=0.5), 0.0)
        policy.begun(request("login"), 0.0)
        lag, memory, running = policy.explain(request(""), 0.0)
        self.assertEqual(
            [(each.limitName, each.limit, each.used, each.delaySeconds) for each in (lag, memory, running)],
            [
                (LAG, 0.1, 0.2, RETRY_SECONDS),
                (POOL_USED, 0.8, 0.5, 0.0),
                (CONCURRENT_REQUESTS, float(START), 1.0, 0.0),
            ],
        )
        self.assertEqual({each.entity for each in (lag, memory, running)}, {QuotaEntity()})

    def test_sensors(self) -> None:
        """Where it is adaptive, it publishes how many requests are in progress, and may be."""
        for conditions, names in (("", set()), (":target=1s", {"shed.running", "shed.limit"})):
            registry = SensorRegistry(lambda: 0.0)
            built(f"shed:kinds=report{conditions}").addSensors(registry, "shed")
            self.assertEqual({name for name, _ in registry}, names)

    def test_replayKey(self) -> None:
        """By lag and memory each request is decided for itself, and those that cannot wait are nothing to it."""
        policy, adaptive = built("shed:kinds=report"), built("shed:kinds=report:target=1s")
        self.assertEqual(policy.replayKey(request()), ("report", "alice", "app"))
        self.assertIsNone(policy.replayKey(request("login")))
        self.assertEqual([adaptive.replayKey(request(kind)) for kind in ("login", "report")], [(), ()])

    def test_shadow(self) -> None:
        """A shadow policy counts what it would have refused; where nothing can be refused, the client is throttled."""
        for description, refusal, isAdmitted, delaySeconds in (
            ("shed:kinds=report:shadow=yes", Refusal.ERROR, True, 0.0),
            ("shed:kinds=report", Refusal.ERROR, False, RETRY_SECONDS),
            ("shed:kinds=report", Refusal.DELAY, True, RETRY_SECONDS),
        ):
            control = AdmissionControl([("shed", built(description))])
            decision = control.admit(request(lagSeconds=0.2), 0.0, refusal)
            self.assertEqual((decision.admitted, decision.delaySeconds), (isAdmitted, delaySeconds))

    def test_mistakes(self) -> None:
        """A description that makes no sense is refused in a sentence."""
        for description, words in (
            ("shed", "say what can wait: kinds="),
            ("shed:lag=1s", "say what can wait: kinds="),
            ("shed:kinds=", "kinds=: write kinds of requests"),
            ("shed:clients=a++b", "clients=a++b: write users and client ids"),
            ("shed:kinds=a:lag=0", "lag=0: write a time of more than nothing"),
            ("shed:kinds=a:free=100%", "below all of it"),
            ("shed:kinds=a:free=half", "free=half: write a whole number"),
            ("shed:kinds=a:max=5", "max=5 goes with target only"),
            ("shed:kinds=a:target=1s:max=0", "max=0: write a whole number"),
            ("shed:kinds=a:shadow=maybe", "yes or no"),
        ):
            self.assertIn(words, str(self.assertRaises(PolicyError, built, description)))

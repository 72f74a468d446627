"""L{admission.testing.quotacontract} and L{admission.testing.scriptedquota}, with policies that are wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC
from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from admission.interfaces import (
    ADMITTED,
    Decision,
    IQuotaPolicy,
    IRequestLifecycle,
    ISensorRegistry,
    Outcome,
    QuotaEntity,
    QuotaStatus,
    Request,
    Usage,
)
from admission.quotas.metering import Algorithm, Buckets, Windows
from admission.quotas.policy import QuotaPolicy
from admission.testing.quotacontract import FixedQuotaPolicyContract, RequestLifecycleContract
from admission.testing.scriptedquota import ScriptedQuota
from admission_plugins.clientquotas import ClientBytes
from examples.daily_budget import DailyBudget
from tests.contracts import test_clientquotas
from tests.contracts.test_clientquotas import produce, produced
from tests.kit.seededfaults import SeededFaultsTestCase


class ScriptedQuotaTests(SynchronousTestCase):
    """L{ScriptedQuota}."""

    def test_onCue(self) -> None:
        """It says what it is told to, remembers what it was asked, and fails where it is to."""
        policy = ScriptedQuota(delaySeconds=2.0, budget=7, decision=Decision(False, 1.0, "no"))
        verifyObject(IQuotaPolicy, policy)
        self.assertFalse(policy.isLimiting)
        policy.configure(QuotaEntity("alice"), {"scripted_rate": 1.0}, 0.0)
        self.assertTrue(policy.isLimiting)
        usage = produced(1)
        self.assertEqual(policy.record(produce(), usage, 0.0), 2.0)
        self.assertEqual((policy.recorded, policy.budgetBytes(produce(), 0.0)), ([(produce(), usage)], 7))
        self.assertEqual(policy.decide(produce(), 0.0).reason, "no")
        policy.failing = frozenset({"record"})
        self.assertRaises(ZeroDivisionError, policy.record, produce(), usage, 0.0)
        self.assertEqual(policy.decide(produce(), 0.0).reason, "no")
        self.assertRaises(ValueError, policy.configure, QuotaEntity("alice"), {"scripted_rate": 0.0}, 0.0)
        policy.configure(QuotaEntity("alice"), {"scripted_rate": None}, 0.0)
        self.assertFalse(policy.isLimiting)


class Policy(ClientBytes):
    """A sound policy, for others to break."""

    algorithm: Algorithm = Buckets(1.0)

    def __init__(self, isShadow: bool) -> None:
        super().__init__(self.algorithm, isShadow=isShadow)


class SpendsWhenDeciding(Policy):
    def decide(self, request: Request, now: float) -> Decision:
        self.record(request, produced(1), now)
        return ADMITTED


class SpendsWhenBudgeting(Policy):
    def budgetBytes(self, request: Request, now: float) -> int | None:
        self.record(request, produced(1), now)
        return None


class SpendsWhenAsked(Policy):
    def record(self, request: Request, usage: Usage, now: float) -> float:
        return super().record(request, usage._replace(requestBytes=max(usage.requestBytes, 1)), now)


class SpendsWhenExplaining(Policy):
    def explain(self, request: Request, now: float) -> Sequence[QuotaStatus]:
        self.record(request, produced(1), now)
        return super().explain(request, now)


class SpendsWhenRead(Policy):
    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        registry.addGauge(name, lambda now: self.record(produce("client-0"), produced(1), now))


class Unreadable(Policy):
    """A sensor of it returns no number."""

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        registry.addGauge(name, lambda now: "much")  # type: ignore[arg-type, return-value]


class Amnesiac(Policy):
    """Sweeping forgets debts."""

    def sweep(self, now: float) -> None:
        for entity, limits in list(self.limits.items()):
            values = dict(limits)
            self.configure(entity, dict.fromkeys(values), now)
            self.configure(entity, values, now)


class OneForAll(Policy):
    """All clients share."""

    def record(self, request: Request, usage: Usage, now: float) -> float:
        return super().record(request._replace(clientId="client-0"), usage, now)


class KeyOfRequest(Policy):
    count = 0

    def replayKey(self, request: Request) -> Hashable:
        self.count += 1
        return self.count


class OneKey(Policy):
    def replayKey(self, request: Request) -> Hashable:
        return "everybody"


class HalfConfigured(Policy):
    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        for name, value in limits.items():
            super().configure(entity, {name: value}, now)


class Lenient(Policy):
    """Takes any limit for what it is not."""

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        try:
            super().configure(entity, limits, now)
        except ValueError:
            pass


class Unforgiving(Policy):
    total = 0

    def record(self, request: Request, usage: Usage, now: float) -> float:
        self.total += usage.requestBytes
        return 1.0 if self.isLimiting and self.total > 5000 else 0.0


class ShortSighted(Policy):
    """Remembers for longer than it says."""

    algorithm = Windows(11, 1.0)

    def __init__(self, isShadow: bool) -> None:
        super().__init__(isShadow)
        self.horizonSeconds = 1.0


class Stubborn(Policy):
    """Keeps limits that are removed."""

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        super().configure(entity, {name: value or 1000.0 for name, value in limits.items()}, now)


class FirstLimitOnly(Policy):
    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        before = {name: self.limits.get(entity, {}).get(name) for name in limits}
        super().configure(entity, limits, now)
        super().configure(entity, {name: before[name] or value for name, value in limits.items()}, now)


class Negative(Policy):
    def record(self, request: Request, usage: Usage, now: float) -> float:
        return super().record(request, usage, now) - 1e-6


class Endless(Policy):
    def record(self, request: Request, usage: Usage, now: float) -> float:
        return float("inf") if super().record(request, usage, now) else 0.0


class WithoutReason(Policy):
    def decide(self, request: Request, now: float) -> Decision:
        return Decision(False, 1.0) if super().record(request, Usage(), now) else ADMITTED


class Harmless(Policy):
    def record(self, request: Request, usage: Usage, now: float) -> float:
        super().record(request, usage, now)
        return 0.0


class Impatient(Policy):
    """Throttles the first request already."""

    def record(self, request: Request, usage: Usage, now: float) -> float:
        return super().record(request, usage._replace(requestBytes=usage.requestBytes * 100), now)


class TimidShadow(Policy):
    def record(self, request: Request, usage: Usage, now: float) -> float:
        return 0.0 if self.isShadow else super().record(request, usage, now)


class FixedNames(Policy):
    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        super().addSensors(registry, "client-bytes")


class KnowsItsKindsOnly(Policy):
    def record(self, request: Request, usage: Usage, now: float) -> float:
        return {"Produce": super().record}[request.kind](request, usage, now)


class Hoarder(Policy):
    """Keeps all clients that there ever were."""

    def sweep(self, now: float) -> None:
        pass


class Secretive(Policy):
    def __init__(self, isShadow: bool) -> None:
        super().__init__(isShadow)
        self.limits = {}


class AlwaysLimiting(Policy):
    isLimiting = True


class Mistaken(Policy):
    """Explains the wrong limit."""

    def explain(self, request: Request, now: float) -> Sequence[QuotaStatus]:
        return [evolve(status, entity=QuotaEntity("eve")) for status in super().explain(request, now)]


class RefusesToAsk(Policy):
    """Cannot do with nothing."""

    def record(self, request: Request, usage: Usage, now: float) -> float:
        if not usage.requestBytes:
            raise ValueError("a request takes something")
        return super().record(request, usage, now)


class OneBudget(Policy):
    """All clients share, and are of one key."""

    def record(self, request: Request, usage: Usage, now: float) -> float:
        return super().record(request._replace(clientId="client-0"), usage, now)

    def replayKey(self, request: Request) -> Hashable:
        return "everybody"


class WithoutKey(OneBudget):
    """All clients share, and seem to be left alone."""

    def replayKey(self, request: Request) -> Hashable:
        return None


@implementer(IRequestLifecycle)
class AtATime(QuotaPolicy):
    """A sound policy of so many requests at a time, for others to break."""

    countsParked: Any = True

    def __init__(self, isShadow: bool = False) -> None:
        self.isShadow = isShadow
        self.underWay: Counter[str] = Counter()

    def decide(self, request: Request, now: float) -> Decision:
        isFull = self.underWay[request.principal] >= 3
        return Decision(False, 0.1, "three are under way") if isFull else ADMITTED

    def record(self, request: Request, usage: Usage, now: float) -> float:
        return 0.0

    def begun(self, request: Request, now: float) -> None:
        self.underWay[request.principal] += 1

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        self.underWay[request.principal] -= 1


class ForgetsTheUnanswered(AtATime):
    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        if outcome.isAnswered:
            super().ended(request, outcome, now)


class EndsInOrder(AtATime):
    """Takes it that requests end in the order in which they began."""

    def __init__(self, isShadow: bool = False) -> None:
        super().__init__(isShadow)
        self.queue: list[Request] = []

    def begun(self, request: Request, now: float) -> None:
        super().begun(request, now)
        self.queue.append(request)

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        if self.queue.pop(0) == request:
            super().ended(request, outcome, now)


class Undecided(AtATime):
    countsParked = None


class Forgetful(DailyBudget):
    """Knows nothing after a restart."""

    def resume(self, kept: Mapping[str, float], now: float) -> None:
        self.sweep(now)


class ForgetsWhatItTold(DailyBudget):
    """Forgets what it has told."""

    def takeChanges(self) -> Mapping[str, float]:
        changes = dict(super().takeChanges())
        self._used.clear()
        return changes


class KeepsForEver(DailyBudget):
    def takeChanges(self) -> Mapping[str, float]:
        return {key: number for key, number in super().takeChanges().items() if number}


class LifecycleTests(RequestLifecycleContract, SynchronousTestCase):
    """A sound policy that follows requests passes."""

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """Make one."""
        return AtATime(isShadow)

    def request(self, client: int, number: int = 0) -> Request:
        """They differ by their sizes."""
        return Request("Produce", f"user-{client}", "app", "192.0.2.1", 100 + number)


class LifecycleContractTests(SeededFaultsTestCase):
    """L{RequestLifecycleContract}."""

    def test_faults(self) -> None:
        """Each way in which a policy that follows requests may be wrong is found by the test that is for it."""
        for policy, test in (
            (ForgetsTheUnanswered, "test_pairs"),
            (EndsInOrder, "test_pairs"),
            (Undecided, "test_countsParked"),
        ):
            self.assertBroken(LifecycleTests, test, policy.__name__, buildPolicy=policy)


class QuotaPolicyContractTests(SeededFaultsTestCase):
    """L{QuotaPolicyContract}."""

    def hooks(self, policy: type[Policy]) -> dict[str, Any]:
        """What the contract wants to know, besides what it knows of clients."""
        sizeBytes = 1000 if isinstance(policy.algorithm, Windows) else 100
        return {"buildPolicy": lambda isShadow=False: policy(isShadow), "usage": lambda request: produced(sizeBytes)}

    def test_sound(self) -> None:
        """A sound policy passes."""
        self.assertSound(test_clientquotas.BucketContractTests, **self.hooks(Policy))

    def test_persistent(self) -> None:
        """Each way in which a policy may be wrong after a restart is found."""
        for policy in (DailyBudget, Forgetful, ForgetsWhatItTold, KeepsForEver):
            hooks: dict[str, Any] = {
                "forgetSeconds": 10 * 86_400.0,
                "buildPolicy": lambda isShadow=False, policy=policy: policy(1000, UTC, 1.7e9, isShadow),
                "request": lambda client, number=0: produce(principal=f"user-{client}"),
                "usage": lambda request: produced(100),
            }
            if policy is DailyBudget:
                self.assertSound(FixedQuotaPolicyContract, **hooks)
            else:
                self.assertBroken(FixedQuotaPolicyContract, "test_resuming", policy.__name__, **hooks)

    def test_shared(self) -> None:
        """
        A policy whose clients influence each other passes if its author says
        so and all have one key, and fails if either is missing.
        """
        contract = test_clientquotas.BucketContractTests
        for test in ("test_excess", "test_replayKey"):
            self.assertEqual(self.outcome(contract, test, isShared=True, **self.hooks(OneBudget)), "")
            self.assertBroken(contract, test, "OneBudget", **self.hooks(OneBudget))
        for policy in (OneForAll, WithoutKey):
            self.assertBroken(contract, "test_replayKey", policy.__name__, isShared=True, **self.hooks(policy))

    def test_faults(self) -> None:
        """Each way in which a policy may be wrong is found by the test that is for it."""
        for policy, test in [
            (SpendsWhenDeciding, "test_deciding"),
            (SpendsWhenBudgeting, "test_budgeting"),
            (SpendsWhenAsked, "test_recordingNothing"),
            (SpendsWhenExplaining, "test_explaining"),
            (SpendsWhenRead, "test_sensors"),
            (Unreadable, "test_sensors"),
            (Amnesiac, "test_sweeping"),
            (Hoarder, "test_forgetsClients"),
            (OneForAll, "test_replayKey"),
            (KeyOfRequest, "test_replayKey"),
            (OneKey, "test_replayKey"),
            (HalfConfigured, "test_configureRefuses"),
            (Lenient, "test_configureRefuses"),
            (Unforgiving, "test_forgives"),
            (ShortSighted, "test_horizon"),
            (Stubborn, "test_removingTheLimit"),
            (FirstLimitOnly, "test_raisingTheLimit"),
            (Negative, "test_excess"),
            (Endless, "test_excess"),
            (WithoutReason, "test_excess"),
            (Harmless, "test_excess"),
            (Impatient, "test_withinTheLimit"),
            (TimidShadow, "test_shadow"),
            (FixedNames, "test_sensors"),
            (KnowsItsKindsOnly, "test_otherKinds"),
            (Secretive, "test_configure"),
            (AlwaysLimiting, "test_unlimited"),
            (Mistaken, "test_explains"),
            (RefusesToAsk, "test_recordingNothing"),
        ]:
            self.assertBroken(test_clientquotas.BucketContractTests, test, policy.__name__, **self.hooks(policy))

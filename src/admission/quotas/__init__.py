# -*- test-case-name: tests.test_quotas -*-
"""
Several quota policies as one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from attrs import define
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ..interfaces import (
    ADMITTED,
    Decision,
    IIdentityAudit,
    IQuotaPolicy,
    IRestorable,
    QuotaEntity,
    QuotaStatus,
    Request,
    Usage,
)
from ..metrics.registry import SensorRegistry

SWEEP_SECONDS = 10.0
"""How often policies are told to forget who has been idle."""

FAILURE_SECONDS = 60.0
"""How often, at most, the log says that a policy fails."""


class Charge(NamedTuple):
    """
    What recording a request came to.

    @ivar delaySeconds: for how many seconds the client is to be held back; the
        largest delay of any policy, those on trial excepted.
    @ivar shares: the delay that each policy asks for, in the order of the
        policies and including those on trial.
    """

    delaySeconds: float
    shares: tuple[float, ...]


class Explanation(NamedTuple):
    """
    How one limit of one policy stands.
    """

    policyName: str
    isShadow: bool
    status: QuotaStatus


@define(eq=False)
class _Member:
    """
    A policy and what became of its advice.
    """

    index: int
    name: str
    policy: IQuotaPolicy
    isShadow: bool
    throttles: int = 0
    refusals: int = 0
    failures: int = 0
    untoldFailures: int = 0
    silentUntilSeconds: float = float("-inf")


class Quotas:
    """
    Asks every policy that limits anybody, and lets the strictest win.

    A policy on trial (C{isShadow}) is asked and counted, and has no say.  One
    that raises has no say in that request either, and the log tells: a broken
    policy lets requests through rather than ending them.  What policies say is
    made safe: delays are clamped to C{largestDelaySeconds}, and what is no
    number is none.

    All methods are for the reactor's thread.

    @ivar isLimiting: whether any policy limits anybody; read it before asking,
        and it costs nothing while none does.
    @ivar largestDelaySeconds: the longest delay anybody is given at a time;
        what is owed beyond it is owed still.
    @ivar limitNames: the limits that any of the policies understands.
    @ivar policyNames: what the policies are called, in the order of
        L{Charge.shares}.
    """

    _log = Logger()

    def __init__(
        self,
        policies: Sequence[tuple[str, IQuotaPolicy]],
        clock: IReactorTime,
        largestDelaySeconds: float,
        sweepSeconds: float = SWEEP_SECONDS,
    ) -> None:
        """
        @param policies: what each is called, and the policy.  Once they are
            here, they are configured here.
        @param clock: for the sweep; monotonic.
        @raise ValueError: if two have the same name.
        """
        names = [name for name, _ in policies]
        if len(set(names)) < len(names):
            raise ValueError(f"each policy needs a name of its own, not {', '.join(names)}")
        self.policyNames: Sequence[str] = tuple(names)
        self.largestDelaySeconds = largestDelaySeconds
        self._clock = clock
        self._sweepSeconds = sweepSeconds
        self._sweeping = LoopingCall(self.sweep)
        self._sweeping.clock = clock
        self._members = [
            _Member(index, name, policy, bool(policy.isShadow)) for index, (name, policy) in enumerate(policies)
        ]
        self.limitNames: Sequence[str] = sorted({name for _, policy in policies for name in policy.limitNames})
        self._nothingDue = Charge(0.0, (0.0,) * len(policies))
        self._findLimiting()

    @property
    def limits(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """
        The limits in force in any policy, by entity.  Where policies differ,
        those that are not on trial come first.
        """
        limits: dict[QuotaEntity, dict[str, float]] = {}
        for member in sorted(self._members, key=lambda member: member.isShadow):
            for entity, values in member.policy.limits.items():
                limits[entity] = {**values, **limits.get(entity, {})}
        return limits

    def decide(self, request: Request) -> Decision:
        """
        May C{request} go ahead?

        @return: the first refusal of a policy that has a say, its reason
            beginning with the policy's name; else L{ADMITTED}.
        """
        for member in self._limiting:
            try:
                decision = member.policy.decide(request)
                if decision.admitted:
                    continue
                delaySeconds = self._clamped(decision.delaySeconds)
                reason = f"{member.name}: {decision.reason}"
            except Exception:
                self._failed(member)
                continue
            member.refusals += 1
            if not member.isShadow:
                return Decision(False, delaySeconds, reason)
        return ADMITTED

    def budgetBytes(self, request: Request) -> int | None:
        """
        How much a read may return now.

        @return: bytes, the least that any policy with a say allows; zero if the
            client is over a quota.  L{None} for no limit.
        """
        least: int | None = None
        for member in self._limiting:
            if member.isShadow:
                continue
            try:
                budgetBytes = member.policy.budgetBytes(request)
                if budgetBytes is not None and (least is None or budgetBytes < least):
                    least = max(budgetBytes, 0)
            except Exception:
                self._failed(member)
        return least

    def record(self, request: Request, usage: Usage) -> Charge:
        """
        Count what an admitted request took.  With an empty usage this only asks
        who is over a limit.
        """
        delaySeconds = 0.0
        shares: list[float] | None = None
        for member in self._limiting:
            try:
                share = member.policy.record(request, usage)
                if not share > 0.0:
                    continue
                share = self._clamped(share)
            except Exception:
                self._failed(member)
                continue
            member.throttles += 1
            if shares is None:
                shares = [0.0] * len(self._members)
            shares[member.index] = share
            if share > delaySeconds and not member.isShadow:
                delaySeconds = share
        return self._nothingDue if shares is None else Charge(delaySeconds, tuple(shares))

    def strictest(self, charge: Charge) -> str | None:
        """
        The name of the policy whose delay C{charge} came to; L{None} if it
        came to none.
        """
        if not charge.delaySeconds:
            return None
        members = (member for member in self._members if not member.isShadow)
        return next((each.name for each in members if charge.shares[each.index] == charge.delaySeconds), None)

    def isKnown(self, request: Request) -> bool | None:
        """
        Whether the first identity of C{request} is known, for whoever records
        it: see L{IIdentityAudit}.

        @return: what the first policy says that can tell; L{None} if none can.
        """
        for member in self._auditing:
            try:
                isKnown = IIdentityAudit(member.policy).isKnown(request)
            except Exception:
                self._failed(member)
                continue
            if isKnown is not None:
                return isKnown
        return None

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None]) -> None:
        """
        Set or (with L{None}) remove limits of one entity, each in every policy
        that knows it.

        @raise ValueError: for a limit that no policy knows, or whatever a
            policy refuses; nothing is changed in any of them then.
        """
        unknown = sorted(set(limits).difference(self.limitNames))
        if unknown:
            known = ", ".join(self.limitNames) or "none"
            raise ValueError(f"no quota policy knows the limit {', '.join(unknown)}; known: {known}")
        done: list[tuple[IQuotaPolicy, dict[str, float | None]]] = []
        try:
            for member in self._members:
                policy = member.policy
                own = {name: value for name, value in limits.items() if name in policy.limitNames}
                if own:
                    before = policy.limits.get(entity, {})
                    previous = {name: before.get(name) for name in own}
                    policy.configure(entity, own)
                    done.append((policy, previous))
        except Exception:
            for policy, previous in reversed(done):
                policy.configure(entity, previous)
            raise
        finally:
            self._findLimiting()

    def restore(self, limitNames: Collection[str], established: Iterable[tuple[str, int]]) -> None:
        """
        Tell policies of what was there before them: before a restart, or
        before anybody had a limit.

        @param limitNames: the limits that have been set; policies that know none
            of them are not told.
        @param established: principals and their identities, the most recent last;
            not looked at if nobody wants to know.
        """
        told = [
            member
            for member in self._limiting
            if IRestorable.providedBy(member.policy) and not set(limitNames).isdisjoint(member.policy.limitNames)
        ]
        if not told:
            return
        identities: dict[str, list[int]] = {}
        for principal, identity in established:
            identities.setdefault(principal, []).append(identity)
        for member in told:
            try:
                for principal, each in identities.items():
                    IRestorable(member.policy).restore(principal, each)
            except Exception:
                self._failed(member)

    def explain(self, request: Request) -> list[Explanation]:
        """
        Which limits hold for whoever would send C{request}, whatever its kind,
        and how each stands.
        """
        explanations: list[Explanation] = []
        for member in self._limiting:
            try:
                statuses = list(member.policy.explain(request))
            except Exception:
                self._failed(member)
                continue
            explanations += [Explanation(member.name, member.isShadow, status) for status in statuses]
        return explanations

    def sweep(self) -> None:
        """
        Have every policy forget who has been idle.  Those without limits may
        remember who had some.
        """
        for member in self._members:
            try:
                member.policy.sweep()
            except Exception:
                self._failed(member)

    def start(self) -> None:
        """
        Sweep now and then, until L{stop}.
        """
        if not self._sweeping.running:
            self._sweeping.start(self._sweepSeconds, now=False)

    def stop(self) -> None:
        """
        Sweep no more.
        """
        if self._sweeping.running:
            self._sweeping.stop()

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish, for each policy, how often it held back, refused, would have
        done so (while on trial) and raised; and what the policies publish
        themselves.

        @raise ValueError: if there are sensors of these names.
        """

        def count(attribute: str, isShadow: bool | None = None) -> Iterator[tuple[tuple[str], float]]:
            for member in self._members:
                if isShadow in (None, member.isShadow):
                    yield (member.name,), getattr(member, attribute)

        for name, read in (
            ("QuotaThrottles", lambda: count("throttles", False)),
            ("QuotaRefusals", lambda: count("refusals", False)),
            ("QuotaShadowThrottles", lambda: count("throttles", True)),
            ("QuotaShadowRefusals", lambda: count("refusals", True)),
            ("QuotaPolicyFailures", lambda: count("failures")),
        ):
            registry.addFamily(name, ("policy",), read, isCounter=True)
        for member in self._members:
            member.policy.addSensors(registry, member.name)

    def _findLimiting(self) -> None:
        self._limiting = tuple(member for member in self._members if member.policy.isLimiting)
        self._auditing = tuple(member for member in self._limiting if IIdentityAudit.providedBy(member.policy))
        self.isLimiting = bool(self._limiting)

    def _clamped(self, delaySeconds: float) -> float:
        # What is not a number fails the first comparison.
        return min(delaySeconds, self.largestDelaySeconds) if delaySeconds > 0.0 else 0.0

    def _failed(self, member: _Member) -> None:
        member.failures += 1
        member.untoldFailures += 1
        nowSeconds = self._clock.seconds()
        if nowSeconds >= member.silentUntilSeconds:
            self._log.failure(
                "the quota policy {name} failed ({count} times since the last report); it has no say where it does",
                name=member.name,
                count=member.untoldFailures,
            )
            member.untoldFailures = 0
            member.silentUntilSeconds = nowSeconds + FAILURE_SECONDS

# -*- test-case-name: tests.unit.test_control -*-
"""
The rule that admits requests: decide, let the work be done, charge what it
took, and say for how long the client has to wait.

Nothing here knows a socket, a reactor or a clock; whoever drives it says what
time it is.  A broker, a gateway, a wrapped server, a replay and a simulation
all drive this one object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from attrs import define, evolve
from twisted.logger import Logger

from .interfaces import (
    ADMITTED,
    NOTHING,
    Decision,
    IIdentityAudit,
    IQuotaPolicy,
    IRequestLifecycle,
    IRestorable,
    Outcome,
    QuotaEntity,
    QuotaStatus,
    Refusal,
    Request,
    Usage,
)
from .metrics.registry import SensorRegistry
from .request import ServerRequest

SWEEP_SECONDS = 10.0
"""How often whoever drives a control calls L{AdmissionControl.sweep}."""

LONGEST_REASON = 1000
"""How many characters of a policy's reason to refuse are told."""

FAILURE_LOG_SECONDS = 60.0
"""How often, at most, the log says that a policy fails."""


class Charge(NamedTuple):
    """
    What charging a request came to.

    @ivar delaySeconds: for how many seconds the client has to wait: the largest
        delay of any policy, shadow policies excepted.
    @ivar shares: the delay that each policy asks for, in the order of
        L{AdmissionControl.policyNames}, shadow policies included.
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


class Wants(NamedTuple):
    """
    What the policies in force and the observers want to know of requests.
    Drivers find out nothing else.

    @ivar decision: whether it may go ahead: some policy limits somebody.
    @ivar usage: what it takes, who sends it and which identities it carries.
    @ivar isKnown: whether the first of them was known before it was charged,
        see L{AdmissionControl.isKnown}.
    @ivar details: what else a driver records of its requests.
    """

    decision: bool = False
    usage: bool = False
    isKnown: bool = False
    details: bool = False


@define(eq=False)
class _Member:
    """
    A policy and what became of its advice.

    @ivar decide: the policy's, looked up once, like C{record}: they run for
        every request.
    """

    index: int
    name: str
    policy: IQuotaPolicy
    isShadow: bool
    decide: Callable[[Request, float], Decision]
    record: Callable[[Request, Usage, float], float]
    throttles: int = 0
    refusals: int = 0
    failures: int = 0
    unloggedFailures: int = 0
    silentUntilSeconds: float = -inf


# The members of an Enum are looked up by code of Python, until 3.12.
_ERROR, _NEVER = Refusal.ERROR, Refusal.NEVER

Begun = tuple[_Member, ...]
"""Which policies were told that a request begins; see L{AdmissionControl.begin}."""

NONE_BEGUN: Begun = ()


def _inWords(reason: object) -> str:
    return str(reason or "")[:LONGEST_REASON].encode("utf-8", "replace").decode()


class AdmissionControl:
    """
    Asks every policy that limits anybody, and lets the strictest win.

    A shadow policy (C{isShadow}) is asked and counted, and has no say.  One
    that raises has no say in that request either, and the log tells: a broken
    policy lets requests through rather than ending them.  What policies say is
    made safe: delays are clamped to C{maxDelaySeconds}, what is not a number is
    none, and reasons are short and can be encoded.

    C{now} is always in seconds of one monotonic clock.  All methods are for the
    reactor's thread, or whatever takes its place.

    @ivar isLimiting: whether any policy limits anybody.
    @ivar wants: what drivers are to find out; changes with the limits.
    @ivar maxDelaySeconds: the longest delay anybody is given at a time; what is
        owed beyond it is still owed.
    @ivar limitNames: the limits that any of the policies understands.
    @ivar policyNames: what the policies are called, in the order of
        L{Charge.shares}.
    """

    _log = Logger()

    def __init__(
        self,
        policies: Sequence[tuple[str, IQuotaPolicy]] = (),
        maxDelaySeconds: float = inf,
        isObserved: bool = False,
    ) -> None:
        """
        @param policies: what each is called, and the policy.  Once they are
            here, they are configured here.
        @param isObserved: whether somebody wants to know what became of each
            request, whether or not it is limited.
        @raise ValueError: if two have the same name.
        """
        names = [name for name, _ in policies]
        if len(set(names)) < len(names):
            raise ValueError(f"each policy needs a name of its own, not {', '.join(names)}")
        self.policyNames: Sequence[str] = tuple(names)
        self.maxDelaySeconds = maxDelaySeconds
        self._isObserved = isObserved
        self._members = [
            _Member(index, name, policy, bool(policy.isShadow), policy.decide, policy.record)
            for index, (name, policy) in enumerate(policies)
        ]
        self.limitNames: Sequence[str] = sorted({name for _, policy in policies for name in policy.limitNames})
        self._nothingDue = Charge(0.0, (0.0,) * len(policies))
        self._findLimiting()

    @property
    def limits(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """
        The limits in force in any policy, by entity.  Where policies differ,
        shadow policies come last.
        """
        limits: dict[QuotaEntity, dict[str, float]] = {}
        for member in sorted(self._members, key=lambda member: member.isShadow):
            for entity, values in member.policy.limits.items():
                limits[entity] = {**values, **limits.get(entity, {})}
        return limits

    def admit(self, request: Request, now: float, refusal: Refusal = _ERROR) -> Decision:
        """
        May C{request} go ahead?  Changes nothing but counters.

        @param refusal: how it can be refused.  Where it cannot be told, a
            refusal becomes a delay: the request is admitted, and its decision
            has the delay that L{charge} is to know of.
        @return: the first refusal of a policy that has a say; else an admission.
        """
        if refusal is _NEVER:
            return ADMITTED
        strictest = ADMITTED
        delays: tuple[tuple[str, float], ...] = ()
        for member in self._limiting:
            try:
                decision = member.decide(request, now)
                if decision.admitted:
                    continue
                delaySeconds, reason = self._clamped(decision.delaySeconds), _inWords(decision.reason)
            except Exception:
                self._failed(member, now)
                continue
            member.refusals += 1
            if member.isShadow:
                continue
            if refusal is _ERROR:
                return Decision(False, delaySeconds, reason, member.name)
            if delaySeconds > 0.0:
                delays += ((member.name, delaySeconds),)
                if delaySeconds > strictest.delaySeconds:
                    strictest = Decision(True, delaySeconds, reason, member.name)
        return evolve(strictest, delays=delays) if delays else ADMITTED

    def budgetBytes(self, request: Request, now: float) -> int | None:
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
                budgetBytes = member.policy.budgetBytes(request, now)
                if budgetBytes is not None and (least is None or budgetBytes < least):
                    least = max(budgetBytes, 0)
            except Exception:
                self._failed(member, now)
        return least

    def charge(
        self,
        request: Request,
        usage: Usage,
        now: float,
        decision: Decision = ADMITTED,
        maxRefusalSeconds: float = inf,
    ) -> Charge:
        """
        Count what an admitted request took.  With an empty usage this only asks
        who is over a limit.

        @param decision: what L{admit} said to it.
        @param maxRefusalSeconds: of a refusal that became a delay, how much to
            impose; the shares of the policies that refused are all of theirs.
        """
        delaySeconds = 0.0
        shares: list[float] | None = None
        for member in self._limiting:
            try:
                share = member.record(request, usage, now)
                if not share > 0.0:
                    continue
                share = self._clamped(share)
            except Exception:
                self._failed(member, now)
                continue
            member.throttles += 1
            if shares is None:
                shares = [0.0] * len(self._members)
            shares[member.index] = share
            if share > delaySeconds and not member.isShadow:
                delaySeconds = share
        for name, share in decision.delays:
            if shares is None:
                shares = [0.0] * len(self._members)
            index = self.policyNames.index(name)
            shares[index] = max(shares[index], share)
            delaySeconds = max(delaySeconds, min(share, maxRefusalSeconds))
        return self._nothingDue if shares is None else Charge(delaySeconds, tuple(shares))

    def begin(self, request: Request, now: float) -> Begun:
        """
        Every policy has admitted C{request}: tell those that want to know.

        @return: what L{end} is to be given, exactly once.
        """
        if not self._following:
            return NONE_BEGUN
        begun = []
        for member in self._following:
            try:
                IRequestLifecycle(member.policy).begun(request, now)
            except Exception:
                self._failed(member, now)
                continue
            begun.append(member)
        return tuple(begun)

    def park(self, begun: Begun, request: Request, outcome: Outcome, now: float) -> Begun:
        """
        C{request} is parked: to policies that do not count parked requests it is
        over.

        @param begun: what L{begin} returned for it.
        @return: what is left to give to L{end}.
        """
        counting = []
        for member in begun:
            try:
                if IRequestLifecycle(member.policy).countsParked:
                    counting.append(member)
                else:
                    self.end((member,), request, outcome, now)
            except Exception:
                self._failed(member, now)
                # It is told of the end, at least.
                counting.append(member)
        return tuple(counting)

    def end(self, begun: Begun, request: Request, outcome: Outcome, now: float) -> None:
        """
        C{request} is over.

        @param begun: what L{begin} returned for it, or L{park} later.
        """
        for member in begun:
            try:
                IRequestLifecycle(member.policy).ended(request, outcome, now)
            except Exception:
                self._failed(member, now)

    # The same of a request that keeps what was said

    def admitRequest(self, request: ServerRequest, now: float, refusal: Refusal) -> Decision:
        """
        May C{request} go ahead?  Before anything is done of it; see L{admit}.

        @param request: with the policies' view of it.
        @param now: in whole microseconds, since it is recorded, see
            L{admission.clock.wholeMicroseconds}; as below.
        """
        request.refusal = refusal
        if not self._limiting:
            return ADMITTED
        view = request.view
        assert view is not None
        if self.wants.isKnown and view.identities:
            request.isKnown = self.isKnown(view, now)
        decision = request.decision = self.admit(view, now, refusal)
        if not decision.admitted:
            policy = request.policy = decision.policy
            request.charge = tuple(decision.delaySeconds if name == policy else 0.0 for name in self.policyNames)
            request.decided = now
            request.reject(decision.reason)
        return decision

    def beginRequest(self, request: ServerRequest, now: float) -> None:
        """
        The work on C{request} begins; see L{begin}.
        """
        if self._following:
            assert request.view is not None
            request.begunPolicies = self.begin(request.view, now)

    def chargeRequest(self, request: ServerRequest, usage: Usage, now: float, maxRefusalSeconds: float = inf) -> float:
        """
        Count what C{request} took, see L{charge}; once.

        @return: the delay that its client is given, in seconds.
        """
        if not self._limiting:
            return 0.0
        assert request.view is not None
        charge = self.charge(request.view, usage, now, request.decision, maxRefusalSeconds)
        request.decided = now
        request.isCounted = usage is not NOTHING
        request.charge = charge.shares
        request.policy = self.strictest(charge)
        return charge.delaySeconds

    def parkRequest(self, request: ServerRequest, now: float) -> None:
        """
        Nobody works on C{request}, which waits; see L{park}.
        """
        request.park(now)
        if request.begunPolicies:
            assert request.view is not None
            # Whoever is told may end it.
            begun, request.begunPolicies = request.begunPolicies, NONE_BEGUN
            begun = self.park(begun, request.view, request.outcome(now), now)
            if request.ended is None:
                request.begunPolicies = begun
            else:
                self.end(begun, request.view, request.outcome(now), now)

    def endRequest(self, request: ServerRequest, now: float) -> None:
        """
        C{request} is over; see L{end}.
        """
        request.end(now)
        if request.begunPolicies:
            assert request.view is not None
            begun, request.begunPolicies = request.begunPolicies, NONE_BEGUN
            self.end(begun, request.view, request.outcome(now), now)

    # The limits

    def strictest(self, charge: Charge) -> str | None:
        """
        The name of the policy whose delay C{charge} came to; L{None} if it
        came to none.
        """
        if not charge.delaySeconds:
            return None
        shares = [(charge.shares[member.index], member.name) for member in self._members if not member.isShadow]
        for share, name in shares:
            if share == charge.delaySeconds:
                return name
        # Not all of the longest was imposed, see L{charge}.
        return max(shares, key=lambda each: each[0])[1]

    def isKnown(self, request: Request, now: float) -> bool | None:
        """
        Whether the first identity of C{request} is known; see
        L{IIdentityAudit.isKnown}.

        @return: what the first policy says that can tell; L{None} if none can.
        """
        for member in self._auditing:
            try:
                isKnown = IIdentityAudit(member.policy).isKnown(request, now)
            except Exception:
                self._failed(member, now)
                continue
            if isKnown is not None:
                return isKnown
        return None

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
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
                    policy.configure(entity, own, now)
                    done.append((policy, previous))
        except Exception:
            for policy, previous in reversed(done):
                policy.configure(entity, previous, now)
            raise
        finally:
            self._findLimiting()

    def restore(self, limitNames: Collection[str], established: Iterable[tuple[str, int]], now: float) -> None:
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
                    IRestorable(member.policy).restore(principal, each, now)
            except Exception:
                self._failed(member, now)

    def explain(self, request: Request, now: float) -> list[Explanation]:
        """
        Which limits hold for whoever would send C{request}, whatever its kind,
        and how each stands.
        """
        explanations: list[Explanation] = []
        for member in self._limiting:
            try:
                statuses = list(member.policy.explain(request, now))
            except Exception:
                self._failed(member, now)
                continue
            explanations += [Explanation(member.name, member.isShadow, status) for status in statuses]
        return explanations

    def sweep(self, now: float) -> None:
        """
        Have every policy forget who has been idle; to be called every
        L{SWEEP_SECONDS} or so.  Those without limits may remember who had some.
        """
        for member in self._members:
            try:
                member.policy.sweep(now)
            except Exception:
                self._failed(member, now)

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish, for each policy, how often it throttled, refused, would have
        done so (shadow policies) and raised; and what the policies publish
        themselves.

        @raise ValueError: if there are sensors of these names.
        """

        def count(attribute: str, isShadow: bool | None = None) -> Iterator[tuple[tuple[str], float]]:
            for member in self._members:
                if isShadow in (None, member.isShadow):
                    yield (member.name,), getattr(member, attribute)

        for name, read in (
            ("QuotaThrottles", lambda now: count("throttles", False)),
            ("QuotaRefusals", lambda now: count("refusals", False)),
            ("QuotaShadowThrottles", lambda now: count("throttles", True)),
            ("QuotaShadowRefusals", lambda now: count("refusals", True)),
            ("QuotaPolicyFailures", lambda now: count("failures")),
        ):
            registry.addFamily(name, ("policy",), read, isCounter=True)
        for member in self._members:
            member.policy.addSensors(registry, member.name)

    def _findLimiting(self) -> None:
        self._limiting = tuple(member for member in self._members if member.policy.isLimiting)
        self._following = tuple(member for member in self._limiting if IRequestLifecycle.providedBy(member.policy))
        self._auditing = tuple(member for member in self._limiting if IIdentityAudit.providedBy(member.policy))
        self.isLimiting = bool(self._limiting)
        self.wants = Wants(
            decision=self.isLimiting,
            usage=self.isLimiting or self._isObserved,
            isKnown=self._isObserved and bool(self._auditing),
            details=self._isObserved,
        )

    def _clamped(self, delaySeconds: float) -> float:
        # What is not a number fails the first comparison.
        return min(delaySeconds, self.maxDelaySeconds) if delaySeconds > 0.0 else 0.0

    def _failed(self, member: _Member, now: float) -> None:
        member.failures += 1
        member.unloggedFailures += 1
        if now >= member.silentUntilSeconds:
            self._log.failure(
                "the quota policy {name} failed ({count} times since the last report); it has no say where it does",
                name=member.name,
                count=member.unloggedFailures,
            )
            member.unloggedFailures = 0
            member.silentUntilSeconds = now + FAILURE_LOG_SECONDS

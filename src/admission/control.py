# -*- test-case-name: tests.unit.test_control -*-
"""
The rule that admits requests: decide, let the work be done, charge what it
used, and say how long the client is throttled.

Nothing here knows a socket, a reactor or a clock; callers pass the time.  A
broker, a wrapped server, a replay and a simulation all drive this one object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from attrs import define, evolve
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.logger import Logger

from .interfaces import (
    ADMITTED,
    NOTHING,
    Decision,
    IAccountable,
    IIdentityAudit,
    IPersistent,
    IQuotaPolicy,
    IRequestLifecycle,
    IRestorable,
    IShared,
    IStartable,
    Outcome,
    Places,
    QuotaEntity,
    QuotaStatus,
    Refusal,
    Request,
    Taken,
    Usage,
)
from .metrics.registry import SensorRegistry
from .policyfailure import FAILURES, raiseInterrupt
from .quotas.policy import LifecyclePolicy, MeteredPolicy, enforceShare, limitsByName
from .request import ServerRequest

SWEEP_SECONDS = 10.0
"""How often a driver calls L{AdmissionControl.sweep}."""

LONGEST_REASON = 1000
"""How many characters of a policy's reason to refuse are told."""

FAILURE_LOG_SECONDS = 60.0
"""How often, at most, the log says that a policy fails."""


class Charge(NamedTuple):
    """
    The result of charging a request.

    @ivar delaySeconds: for how many seconds the client is throttled: the largest
        delay of any policy that is not a shadow.
    @ivar shares: the delay that each policy asks for, in the order of
        L{AdmissionControl.policyNames}, shadow policies included.
    """

    delaySeconds: float
    shares: tuple[float, ...]


class Explanation(NamedTuple):
    """
    How much of one limit of one policy is used.
    """

    policyName: str
    isShadow: bool
    status: QuotaStatus


class Wants(NamedTuple):
    """
    What the policies in force and the observers need to know of requests.
    Drivers find out nothing else.

    @ivar decision: whether a request may go ahead: some policy limits a client.
    @ivar usage: what it used, who sent it and which identities it carries.
    @ivar isKnown: whether the first identity was known before the request was
        charged, see L{AdmissionControl.isKnown}.
    @ivar details: what else a driver records of its requests.
    """

    decision: bool = False
    usage: bool = False
    isKnown: bool = False
    details: bool = False


@define(eq=False)
class _Member:
    """
    A policy and its counters.

    @ivar decide: the policy's method, looked up once, like C{record} and C{lifecycle}, because
        all of them run for every request.
    @ivar lifecycle: the policy again, an L{IRequestLifecycle}; L{None} if it does not follow requests.
    @ivar limits: what the policy calls its limits, by every name that they have.
    """

    index: int
    name: str
    policy: IQuotaPolicy
    isShadow: bool
    decide: Callable[[Request, float], Decision]
    record: Callable[[Request, Usage, float], float]
    lifecycle: Any
    limits: Mapping[str, str]
    throttles: int = 0
    refusals: int = 0
    failures: int = 0
    unloggedFailures: int = 0
    silentUntilSeconds: float = -inf


# The members of an Enum are looked up by code of Python, until 3.12.
_ERROR, _NEVER = Refusal.ERROR, Refusal.NEVER

Begun = tuple[_Member, ...]
"""The policies that were told that a request begins; see L{AdmissionControl.begin}."""

NONE_BEGUN: Begun = ()


def _inWords(reason: object) -> str:
    return str(reason or "")[:LONGEST_REASON].encode("utf-8", "replace").decode()


def _checked(status: QuotaStatus) -> QuotaStatus:
    """
    Check C{status}, by which a policy explains a limit, and return it.

    @raise TypeError: if it is no such thing; the functions below raise it likewise.
    """
    if not (isinstance(status, QuotaStatus) and isinstance(status.limitName, str)):
        raise TypeError(f"explain has to return QuotaStatus with the name of a limit, not {status!r:.300}")
    _checkedEntity(status.entity)
    _numbers(
        {
            "limit": status.limit,
            "used": status.used,
            "delaySeconds": status.delaySeconds,
            "usedElsewhere": 0.0 if status.usedElsewhere is None else status.usedElsewhere,
            "fraction": status.fraction,
        }
    )
    return status


def _checkedEntity(entity: QuotaEntity) -> QuotaEntity:
    isEntity = isinstance(entity, QuotaEntity)
    if not (isEntity and all(isinstance(each, str | None) for each in (entity.user, entity.clientId, entity.ip))):
        raise TypeError(f"a limit is for a QuotaEntity of texts, not for {entity!r:.300}")
    return entity


def _checkedTaken(taken: Taken) -> Taken:
    if not (isinstance(taken, Taken) and isinstance(taken.limitName, str) and isinstance(taken.identities, tuple)):
        raise TypeError(f"taken has to return Taken with the name of a limit, not {taken!r:.300}")
    _checkedEntity(taken.entity)
    _numbers({"amount": taken.amount})
    if not 0 <= taken.amount < inf:
        raise ValueError(f"what is taken is finite and not negative, unlike {taken.amount}")
    for identity in taken.identities:
        if not (isinstance(identity, int) and 0 <= identity < 1 << 63):
            raise ValueError(f"an identity has 63 bits, unlike {identity!r:.300}")
    return taken


def _numbers(values: Mapping[str, float]) -> Mapping[str, float]:
    for name, value in values.items():
        if not (isinstance(name, str) and isinstance(value, int | float)):
            raise TypeError(f"{name!r:.300} has to be a number, not {value!r:.300}")
        # A number that is too large for a float would fail wherever it is shown.
        float(value)
    return values


def _mayRefuse(policy: IQuotaPolicy) -> bool:
    """
    Whether C{policy} has to be asked: L{MeteredPolicy.decide} admits all requests.
    """
    return getattr(policy.decide, "__func__", None) is not MeteredPolicy.decide


def _mayThrottle(policy: IQuotaPolicy) -> bool:
    """
    Likewise: L{LifecyclePolicy.record} charges nothing.
    """
    return getattr(policy.record, "__func__", None) is not LifecyclePolicy.record


class AdmissionControl:
    """
    Asks every policy that limits a client, and lets the strictest win.

    A shadow policy (C{isShadow}) is asked and counted, and decides nothing.  A policy that raises decides nothing for
    that request, and the log says so: a broken policy lets requests through.  Delays are clamped to C{maxDelaySeconds},
    a delay that is not a number counts as none, and reasons are shortened and made fit to be encoded.

    C{now} is always in seconds of one monotonic clock.  All methods are for the
    reactor's thread, or for the one thread of another driver.

    @ivar isLimiting: whether any policy limits a client.
    @ivar wants: what drivers have to find out about requests; it changes with the limits.
    @ivar maxDelaySeconds: the longest delay at a time; the rest of a debt
        remains.
    @ivar limitShare: how much of each limit that is set the policies enforce, see L{enforceShare}.
    @ivar limitNames: the limits that any of the policies understands, by the names that this server shows.
    @ivar policyNames: what the policies are called, in the order of
        L{Charge.shares}.
    @ivar whenConfigured: what L{configure} calls when a limit is another, with its own arguments.
    """

    _log = Logger()

    def __init__(
        self,
        policies: Sequence[tuple[str, IQuotaPolicy]] = (),
        maxDelaySeconds: float = inf,
        isObserved: bool = False,
        shownAliases: Collection[str] = (),
    ) -> None:
        """
        @param policies: the name and the policy of each.  From now on only
            L{configure} configures them.
        @param isObserved: whether an observer needs the usage of each request,
            whether or not it is limited.
        @param shownAliases: other names of limits, by which this server shows them.
        @raise ValueError: if two have the same name.
        @raise TypeError: if there is anything but names and policies.
        """
        for each in policies if isinstance(policies, Collection) else (policies,):
            if not (
                isinstance(each, tuple | list)
                and len(each) == 2
                and isinstance(each[0], str)
                and IQuotaPolicy.providedBy(each[1])
            ):
                raise TypeError(f"policies={each!r}: give pairs of a name and an IQuotaPolicy")
        names = [name for name, _ in policies]
        if len(set(names)) < len(names):
            raise ValueError(f"each policy needs a name of its own, not {', '.join(names)}")
        self.policyNames: Sequence[str] = tuple(names)
        self.maxDelaySeconds = maxDelaySeconds
        self.limitShare = 1.0
        self.whenConfigured: list[Callable[[QuotaEntity, Mapping[str, float | None], float], object]] = []
        self._isObserved = isObserved
        self._members = [
            _Member(
                index,
                name,
                policy,
                bool(policy.isShadow),
                policy.decide,
                policy.record,
                IRequestLifecycle(policy, None),
                limitsByName(policy),
            )
            for index, (name, policy) in enumerate(policies)
        ]
        called = [(name, own) for member in self._members for name, own in member.limits.items()]
        self._shownLimits = {own: name for name, own in called if name in shownAliases}
        # The shown name by every name; a policy's own name goes before another's alias.
        called.sort(key=lambda each: each[0] == each[1])
        self._named = {name: self._shown(own) for name, own in called}
        self.limitNames: Sequence[str] = sorted(set(self._named.values()))
        self._accountable = [member for member in self._members if IAccountable.providedBy(member.policy)]
        self._sharing = [member for member in self._members if IShared.providedBy(member.policy)]
        self._nothingDue = Charge(0.0, (0.0,) * len(policies))
        self._findLimiting()

    @property
    def sizeBytes(self) -> int:
        """
        About how much memory the policies keep about clients, as far as they say.
        """
        total = 0
        for member in self._accountable:
            try:
                total += int(IAccountable(member.policy).sizeBytes)
            except FAILURES:
                raiseInterrupt()
                # The ledger shows what the others hold.
                member.failures += 1
        return total

    @property
    def sharedNames(self) -> Sequence[str]:
        """
        The names of the policies whose limits can be enforced by several servers together, see L{IShared}.
        """
        return [member.name for member in self._sharing]

    @property
    def sharesLimits(self) -> bool:
        """
        Whether several policies know a limit of the same name.
        """
        return sum(len(member.policy.limitNames) for member in self._members) > len(self.limitNames)

    @property
    def limits(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """
        The limits in force in any policy, by entity.  Where policies differ,
        those that are no shadows win.
        """
        limits: dict[QuotaEntity, dict[str, float]] = {}
        for member in sorted(self._members, key=lambda member: member.isShadow):
            try:
                own = {
                    _checkedEntity(entity): {self._shown(name): value for name, value in _numbers(values).items()}
                    for entity, values in member.policy.limits.items()
                }
            except FAILURES:
                raiseInterrupt()
                member.failures += 1
                continue
            for entity, values in own.items():
                limits[entity] = {**values, **limits.get(entity, {})}
        return limits

    def limitNamed(self, name: str) -> str:
        """
        What this server calls the limit C{name}, be that an alias or what the policy calls it.  An unknown name is
        returned as it is.
        """
        return self._named.get(name, name)

    def admit(
        self,
        request: Request,
        now: float,
        refusal: Refusal = _ERROR,
        refusedBy: list[str] | None = None,
        mayWait: Callable[[Places], bool] | None = None,
    ) -> Decision:
        """
        Decide whether C{request} may go ahead.  Changes only counters.

        @param refusal: how it can be refused.  Where the protocol has no way to
            refuse, a refusal becomes a delay: the request is admitted, and its
            decision has the delay for L{charge}.
        @param refusedBy: for a driver that asks more than once about a request: the policies that have refused it, to
            which those are added that refuse it now; each is counted once.
        @param mayWait: whether it may wait for a place, if it can wait at all.
        @return: the first refusal of a policy that is no shadow; else, with C{places}, that it has to wait, which
            counts as no refusal; else an admission.
        """
        if refusal is _NEVER:
            return ADMITTED
        strictest = ADMITTED
        delays: tuple[tuple[str, float], ...] = ()
        waits: Decision | None = None
        for member in self._deciding if request.traits.isRequest else self._decidingAlways:
            try:
                decision = member.decide(request, now)
                if decision.admitted:
                    continue
                delaySeconds, reason = self._clamped(decision.delaySeconds), _inWords(decision.reason)
                places = None if member.isShadow else decision.places
            except FAILURES:
                self._failed(member, now)
                continue
            if places is not None and mayWait is not None and mayWait(places):
                waits = waits or Decision(False, delaySeconds, reason, member.name, (), places, decision.isForAll)
                continue
            if refusedBy is None:
                member.refusals += 1
            elif member.name not in refusedBy:
                refusedBy.append(member.name)
                member.refusals += 1
            if member.isShadow:
                continue
            if refusal is _ERROR:
                return Decision(False, delaySeconds, reason, member.name, (), None, decision.isForAll)
            if delaySeconds > 0.0:
                delays += ((member.name, delaySeconds),)
                if delaySeconds > strictest.delaySeconds:
                    strictest = Decision(True, delaySeconds, reason, member.name)
        if waits is not None:
            return waits
        return evolve(strictest, delays=delays) if delays else ADMITTED

    def countRefusal(self, policyName: str) -> None:
        """
        A driver has refused a request whose client has to wait for what that policy asked.
        """
        for member in self._members:
            if member.name == policyName:
                member.refusals += 1

    def budgetBytes(self, request: Request, now: float) -> int | None:
        """
        How much a read may return now.

        @return: bytes, the minimum that policies allow, shadows apart; zero if
            the client is over a quota.  L{None} for no limit.
        """
        least: int | None = None
        for member in self._limiting:
            if member.isShadow:
                continue
            try:
                budgetBytes = member.policy.budgetBytes(request, now)
                if budgetBytes is not None and (least is None or budgetBytes < least):
                    least = max(int(budgetBytes), 0)
            except FAILURES:
                self._failed(member, now)
        return least

    def charge(
        self,
        request: Request,
        usage: Usage,
        now: float,
        decision: Decision = ADMITTED,
        maxRefusalSeconds: float = inf,
        isThrottled: bool = False,
    ) -> Charge:
        """
        Count what an admitted request used.  With L{NOTHING} this only asks whether the client is over a limit, and no
        throttle is counted.

        @param decision: what L{admit} returned for it.
        @param maxRefusalSeconds: how much to impose of a refusal that became a delay; the shares in the result have the
            whole delay of each policy that refused.
        @param isThrottled: whether a delay is imposed whatever the usage, and counts.
        """
        isThrottled = isThrottled or usage is not NOTHING
        delaySeconds = 0.0
        shares: list[float] | None = None
        for member in self._charging:
            try:
                share = member.record(request, usage, now)
                if not share > 0.0:
                    continue
                share = self._clamped(share)
            except FAILURES:
                self._failed(member, now)
                continue
            member.throttles += isThrottled
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
        Tell the policies that follow requests that C{request} begins: every
        policy has admitted it.

        @return: what to pass to L{end}, exactly once.
        """
        if not self._following:
            return NONE_BEGUN
        begun = []
        for member in self._following:
            try:
                member.lifecycle.begun(request, now)
            except FAILURES:
                self._failed(member, now)
                continue
            begun.append(member)
        return tuple(begun)

    def park(self, begun: Begun, request: Request, outcome: Outcome, now: float) -> Begun:
        """
        C{request} is parked: for policies that do not count parked requests it
        is over.

        @param begun: what L{begin} returned for it.
        @return: what to pass to L{end}.
        """
        counting = []
        for member in begun:
            try:
                if member.lifecycle.countsParked:
                    counting.append(member)
                else:
                    self.end((member,), request, outcome, now)
            except FAILURES:
                self._failed(member, now)
                # The policy is told of the end, at least.
                counting.append(member)
        return tuple(counting)

    def end(self, begun: Begun, request: Request, outcome: Outcome, now: float) -> None:
        """
        C{request} is over.

        @param begun: what L{begin} returned for it, or L{park} later.
        """
        for member in begun:
            try:
                member.lifecycle.ended(request, outcome, now)
            except FAILURES:
                self._failed(member, now)

    # The same of a request that keeps what was said

    def admitRequest(
        self,
        request: ServerRequest,
        now: float,
        refusal: Refusal,
        mayWait: Callable[[Places], bool] | None = None,
    ) -> Decision:
        """
        Decide whether C{request} may go ahead, before any work on it; see
        L{admit}.

        @param request: with the policies' view of it.
        @param now: in whole microseconds, because it is recorded, see
            L{admission.clock.wholeMicroseconds}; so in the methods below.
        """
        request.refusal = refusal
        if not self._limiting:
            return ADMITTED
        view = request.view
        assert view is not None
        if self.wants.isKnown and view.identities:
            request.isKnown = self.isKnown(view, now)
        decision = self.admit(view, now, refusal, request.refusedBy, mayWait)
        if decision.places is not None:
            return decision
        request.decision = decision
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
        Count what C{request} used, once; see L{charge}.  If nobody has a limit now, the request counts for no limit
        that is set before it is over.  It is charged all the same if a policy was told that it began, since that policy
        has counted it and a replay has to know.

        @return: the delay that its client is given, in seconds.
        """
        if not self._limiting and not request.begunPolicies:
            request.charge = ()
            return 0.0
        assert request.view is not None
        charge = self.charge(request.view, usage, now, request.decision, maxRefusalSeconds, isThrottled=True)
        request.decided = now
        request.isCounted = usage is not NOTHING
        request.charge = charge.shares
        request.policy = self.strictest(charge)
        return charge.delaySeconds

    def parkRequest(self, request: ServerRequest, now: float) -> None:
        """
        C{request} waits for an event; see L{park}.
        """
        request.park(now)
        if request.begunPolicies:
            assert request.view is not None
            # A policy that is told may end the request.
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
        The name of the policy whose delay is the longest in C{charge}; L{None} if there is no delay.
        """
        if not charge.delaySeconds:
            return None
        shares = [(charge.shares[member.index], member.name) for member in self._members if not member.isShadow]
        for share, name in shares:
            if share == charge.delaySeconds:
                return name
        # The longest delay was not imposed as a whole, see L{charge}.
        return max(shares, key=lambda each: each[0])[1]

    def isKnown(self, request: Request, now: float) -> bool | None:
        """
        Whether the first identity of C{request} is known; see
        L{IIdentityAudit.isKnown}.

        @return: the answer of the first policy that can tell; L{None} if none can.
        """
        for member in self._auditing:
            try:
                isKnown = IIdentityAudit(member.policy).isKnown(request, now)
            except FAILURES:
                self._failed(member, now)
                continue
            if isKnown is not None:
                return bool(isKnown)
        return None

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        """
        Set the limits of one entity, or remove those that are L{None}, each in
        every policy that knows it.

        @param limits: by any of their names.
        @raise ValueError: for a limit that no policy knows, or that a policy
            refuses; no policy has changed then.
        """
        shown = {self.limitNamed(name): value for name, value in limits.items()}
        unknown = sorted(shown.keys() - set(self.limitNames))
        if unknown:
            known = ", ".join(self.limitNames) or "none"
            raise ValueError(f"no quota policy knows the limit {', '.join(unknown)}; known: {known}")
        if len(shown) < len(limits):
            raise ValueError(f"{', '.join(sorted(limits))}: two of these are the same limit; give it one value")
        done: list[tuple[IQuotaPolicy, dict[str, float | None]]] = []
        isChanged = False
        try:
            for member in self._members:
                policy = member.policy
                own = {member.limits[name]: value for name, value in limits.items() if name in member.limits}
                if own:
                    before = policy.limits.get(entity, {})
                    previous = {name: before.get(name) for name in own}
                    policy.configure(entity, own, now)
                    done.append((policy, previous))
                    isChanged = isChanged or previous != own
        except FAILURES as error:
            for policy, previous in reversed(done):
                policy.configure(entity, previous, now)
            if type(error) is ValueError and self._shownLimits:
                raise ValueError(self._inShownNames(str(error))) from error
            raise
        finally:
            self._findLimiting()
        for told in self.whenConfigured if isChanged else ():
            told(entity, shown, now)

    def enforceShare(self, share: float, now: float) -> None:
        """
        Have each policy enforce a part of the limits that it was built with, where several servers enforce them
        together.  L{configure} takes what is to be enforced.

        @raise ValueError: if a policy refuses one.
        """
        self.limitShare = share
        if share != 1.0:
            for member in self._members:
                enforceShare(member.policy, share, now)
            self._findLimiting()

    def _shown(self, name: str) -> str:
        return self._shownLimits.get(name, name)

    def _inShownName(self, status: QuotaStatus) -> QuotaStatus:
        shown = self._shown(status.limitName)
        return status if shown == status.limitName else evolve(status, limitName=shown)

    def _inShownNames(self, text: str) -> str:
        for own, shown in self._shownLimits.items():
            text = text.replace(own, shown)
        return text

    def restore(self, limitNames: Collection[str], established: Iterable[tuple[str, int]], now: float) -> None:
        """
        Tell policies what was known before a restart, or before there was a
        limit.

        @param limitNames: the limits that have been set, as shown; policies that know none
            of them are not told.
        @param established: principals and their identities, the most recent last;
            not read if no policy needs them.
        """
        told = [
            member
            for member in self._limiting
            if IRestorable.providedBy(member.policy) and not member.limits.keys().isdisjoint(limitNames)
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
            except FAILURES:
                self._failed(member, now)

    def resume(self, kept: Mapping[str, Mapping[str, float]], now: float) -> None:
        """
        Tell policies what L{takeChanges} said before a restart: all of it, and before the first request.

        @param kept: numbers by key, by the name of the policy.
        """
        for member in self._members:
            numbers = kept.get(member.name)
            if numbers and IPersistent.providedBy(member.policy):
                try:
                    IPersistent(member.policy).resume(numbers, now)
                except FAILURES:
                    self._failed(member, now)

    def takeChanges(self, now: float) -> dict[str, Mapping[str, float]]:
        """
        What policies want to know after a restart, as far as it has changed since the last call.

        @return: numbers by key, by the name of the policy; zero for one to forget.
        """
        changes = {}
        for member in self._members:
            if IPersistent.providedBy(member.policy):
                try:
                    changes[member.name] = _numbers(dict(IPersistent(member.policy).takeChanges()))
                except FAILURES:
                    self._failed(member, now)
        return changes

    def start(self, now: float) -> None:
        """
        Tell policies that the server begins to serve; see L{IStartable}.
        """
        for member in self._members:
            if IStartable.providedBy(member.policy):
                try:
                    IStartable(member.policy).start()
                except FAILURES:
                    self._failed(member, now)

    def stop(self) -> Deferred[Any]:
        """
        Tell policies that the last client has gone.

        @return: fires when all have stopped, also if some have failed.
        """
        return DeferredList([self._stopped(each) for each in self._members if IStartable.providedBy(each.policy)])

    def _stopped(self, member: _Member) -> Deferred[Any]:
        stopping: Deferred[Any] = maybeDeferred(IStartable(member.policy).stop)
        return stopping.addErrback(
            lambda failure: self._log.failure("the quota policy {name} cannot be stopped", failure, name=member.name)
        )

    def untold(self, leastSeconds: float, now: float) -> Iterator[Taken]:
        """
        What clients have taken here of limits that several servers enforce together, and the other servers have not
        been told; see L{IShared.taken}.
        """
        for member in self._sharing:
            try:
                for each in IShared(member.policy).taken(leastSeconds, now):
                    yield _checkedTaken(each)
            except FAILURES:
                self._failed(member, now)

    def takenElsewhere(self, taken: Taken, isOld: bool, now: float) -> None:
        """
        Clients of another server have taken something; see L{IShared.takenElsewhere}.

        @param now: in whole microseconds, as it is recorded.
        """
        for member in self._sharing:
            if taken.limitName in member.policy.limitNames:
                try:
                    IShared(member.policy).takenElsewhere(taken, isOld, now)
                except FAILURES:
                    self._failed(member, now)

    def share(self, fraction: float, count: int, now: float) -> None:
        """
        Have policies enforce that fraction of each limit from now on; see L{IShared.share}.

        @param now: in whole microseconds, as it is recorded.
        """
        for member in self._sharing:
            try:
                IShared(member.policy).share(fraction, count, now)
            except FAILURES:
                self._failed(member, now)

    def explain(self, request: Request, now: float) -> list[Explanation]:
        """
        The limits that hold for the client of C{request}, whatever its kind, and
        how much of each is used.
        """
        explanations: list[Explanation] = []
        for member in self._limiting:
            try:
                statuses = [self._inShownName(_checked(each)) for each in member.policy.explain(request, now)]
            except FAILURES:
                self._failed(member, now)
                continue
            explanations += [Explanation(member.name, member.isShadow, status) for status in statuses]
        return explanations

    def sweep(self, now: float) -> None:
        """
        Have every policy forget idle clients.  Call it every L{SWEEP_SECONDS} or
        so, policies without limits included: they may remember clients that had
        some.
        """
        for member in self._members:
            try:
                member.policy.sweep(now)
            except FAILURES:
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
        self._deciding = tuple(member for member in self._limiting if _mayRefuse(member.policy))
        self._charging = tuple(member for member in self._limiting if _mayThrottle(member.policy))
        self._following = tuple(member for member in self._limiting if member.lifecycle is not None)
        self._decidingAlways = tuple(member for member in self._deciding if member not in self._following)
        self._auditing = tuple(member for member in self._limiting if IIdentityAudit.providedBy(member.policy))
        self.isLimiting = bool(self._limiting)
        self.wants = Wants(
            decision=self.isLimiting,
            usage=self.isLimiting or self._isObserved,
            isKnown=self._isObserved and bool(self._auditing),
            details=self._isObserved,
        )

    def _clamped(self, delaySeconds: float) -> float:
        # A delay that is not a number fails the first comparison.
        return min(delaySeconds, self.maxDelaySeconds) if delaySeconds > 0.0 else 0.0

    def _failed(self, member: _Member, now: float) -> None:
        raiseInterrupt()
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

# -*- test-case-name: tests.offline.simulate.test_trials -*-
"""
A policy applied to a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Any

from twisted.python.components import proxyForInterface
from zope.interface import alsoProvides

from admission.control import SWEEP_SECONDS, AdmissionControl, Begun
from admission.interfaces import (
    NOTHING,
    IPersistent,
    IQuotaPolicy,
    IReplayable,
    IRequestLifecycle,
    IRestorable,
    IShared,
    Outcome,
    Refusal,
    Request,
    Taken,
    Usage,
    traitsOf,
)
from admission.recording.sharedusage import SHARED, isOfSharing, recordedShare, recordedTaken

from .runs import LimitChange

REFUSALS: Sequence[Refusal] = (Refusal.ERROR, Refusal.DELAY, Refusal.NEVER)
"""How requests can be refused; a replay stores the index."""

ADMITTED_AT_ONCE = (0, False)
"""The result of L{LivePolicy.answer} for most requests."""

LAST = 2**63
"""More than the number of any event."""

EVERYTHING = "everything"
"""The key of all requests, for a policy without L{IReplayable}."""

REQUESTER = ("kind", "principal", "client_id", "peer", "traits")
"""The columns of a L{Requester}."""

Requester = tuple[str, str, str, str, int]
"""The kind, principal, client id and peer of a request, and the code of its L{Traits}."""

# Without the named tuples' own calls: these run for every request of a recording.
newRequest: Callable[[tuple[Any, ...]], Request] = partial(tuple.__new__, Request)
"""Makes a request of all its fields."""

newUsage: Callable[[tuple[Any, ...]], Usage] = partial(tuple.__new__, Usage)
"""Makes a usage of all its fields."""

_NOTHING_KEPT: Mapping[str, float] = {}

_MAX_MET = 1_000_000
"""More identities than this are not restored: they take memory."""

_SWEEP_US = round(SWEEP_SECONDS * 1e6)


def requesterOf(values: Sequence[Any]) -> Requester:
    """
    The requester whose columns are C{values}; a name that is null is empty.
    """
    kind, principal, clientId, peer, traits = values
    return kind or "", principal or "", clientId or "", peer or "", traits


class _WithSay(proxyForInterface(IQuotaPolicy)):  # type: ignore[misc]
    """
    A shadow policy that decides, so that it can be judged.
    """

    isShadow = False


class _FollowingWithSay(_WithSay, proxyForInterface(IRequestLifecycle)):  # type: ignore[misc]
    """
    The same for a policy that follows requests.
    """


def _withSay(policy: Any) -> Any:
    proxy = (_FollowingWithSay if IRequestLifecycle.providedBy(policy) else _WithSay)(policy)
    if IShared.providedBy(policy):
        proxy.taken, proxy.takenElsewhere, proxy.share = policy.taken, policy.takenElsewhere, policy.share
        alsoProvides(proxy, IShared)
    return proxy


class LivePolicy:
    """
    Asks a policy as a server would, at the moments of a trace: its limits change as recorded, and it is swept
    regularly.

    A policy that is an L{IRequestLifecycle} is told when requests begin and end, in time order, and its decisions are
    approximate:

      - it is asked and charged when the work on a request begins, so its delays begin then, too,
      - it is not told about requests that no policy was asked about,
      - every request is taken to be answered, and as fast as recorded,
      - all time besides service counts as parked, after the work.

    @ivar policy: the policy itself.
    @ivar isDebt: whether the delay of the last answer is a debt, which changed limits may shorten, and no refusal.
    @ivar changeUs: when a limit changes next.
    @ivar isSharing: whether its server hears from others that enforce the same limits.
    """

    isDebt = True
    isSharing = False

    def __init__(
        self,
        policy: IQuotaPolicy,
        beginUs: int,
        changes: Sequence[LimitChange],
        maxDelayUs: int,
        hasSay: bool = True,
        kept: Mapping[str, float] = _NOTHING_KEPT,
    ) -> None:
        """
        @param policy: a new policy, not asked before.
        @param beginUs: when the trace begins.
        @param changes: the limit changes, in time order; also of limits that the policy does not know.
        @param maxDelayUs: the longest delay to give at a time.
        @param hasSay: whether it can refuse; its delays are returned in any case.
        @param kept: what it knows from before a restart, if it is an L{IPersistent}.
        """
        self.policy = policy
        self._isFollowing = IRequestLifecycle.providedBy(policy)
        self._isRestorable = IRestorable.providedBy(policy)
        # The principals and identities that it was asked about.
        self._met: set[tuple[str, int]] = set()
        self._control = AdmissionControl([("", _withSay(policy) if policy.isShadow else policy)], maxDelayUs / 1e6)
        # Looked up once, since this runs for every request.
        self._admit = self._control.admit
        self._charge = self._control.charge
        self._refusals = REFUSALS if hasSay else (Refusal.NEVER,) * len(REFUSALS)
        self._changes = [change for change in changes if not change.isStart]
        self._changed = 0
        # The ends of requests: when, in which order they began, and what the policy is then told.
        self._ends: list[tuple[int, int, Begun, Request, Outcome]] = []
        self._begunCount = 0
        self._isLimiting = self._control.isLimiting
        for change in changes:
            if change.isStart:
                self._change(change, beginUs)
        if kept and IPersistent.providedBy(policy):
            IPersistent(policy).resume(kept, beginUs / 1e6)
        self._sweepUs: float = beginUs + _SWEEP_US
        self._nextUs: float = beginUs
        self._findNext()

    def keyOf(self, requester: Requester) -> Hashable:
        """
        The key of the requests that have to be replayed with this requester's, see L{IReplayable}.
        """
        policy = self.policy
        *names, traits = requester
        request = newRequest((*names, 0, (), traitsOf(traits), 0.0, 1.0))
        return policy.replayKey(request) if IReplayable.providedBy(policy) else EVERYTHING

    def advance(self, atUs: int, seq: int = LAST) -> None:
        """
        Advance the time, applying limit changes, sweeps and ends of requests on the way.

        @param seq: of the event that comes next; limits that changed at C{atUs}, and later than that, are left.
        """
        while self.isChangeDue(atUs, seq):
            self.applyChange()
        self._endUntil(atUs)
        if atUs >= self._sweepUs:
            self._sweepUs = atUs + _SWEEP_US
            self._control.sweep(atUs / 1e6)
        self._findNext()

    def isChangeDue(self, atUs: int, seq: int) -> bool:
        """
        Whether the next limit change comes before the event number C{seq}, which is at C{atUs}.
        """
        changeUs = self.changeUs
        return changeUs < atUs or (changeUs == atUs and self._changes[self._changed].seq < seq)

    def applyChange(self) -> None:
        """
        Advance the time to the next limit change, and apply it alone: others may come at the same moment.
        """
        change = self._changes[self._changed]
        self._endUntil(change.atUs)
        self._changed += 1
        self._change(change, change.atUs)
        self._findNext()

    def answer(
        self,
        atUs: int,
        seq: int,
        request: Request,
        usage: Usage,
        refusal: int,
        isKnown: bool = False,
        serviceUs: int = 0,
        answerUs: int = 0,
    ) -> tuple[int, bool]:
        """
        Ask the policy about a request and charge it, as the server does when it has served it.

        @param atUs: when, not before the last one.
        @param seq: the number of its event.
        @param usage: what the policy is charged; L{NOTHING} where the server charged nothing.
        @param refusal: how it can be refused: an index into L{REFUSALS}.
        @param isKnown: whether the server knew the first of its identities.
        @param serviceUs: how long the work took; this and the next for policies that follow requests.
        @param answerUs: how much later its answer is sent.
        @return: the delay in microseconds, and whether it was refused.
        """
        if atUs >= self._nextUs:
            self.advance(atUs, seq)
        if not self._isLimiting:
            return ADMITTED_AT_ONCE
        now = atUs / 1e6
        if self._isRestorable and request.identities:
            self._meet(request, isKnown, now)
        decision = self._admit(request, now, self._refusals[refusal])
        self.isDebt = decision.admitted and not decision.delays
        if not decision.admitted:
            return round(decision.delaySeconds * 1e6), True
        if self._isFollowing:
            self._begin(request, atUs, serviceUs, answerUs)
        delaySeconds = self._charge(request, usage, now, decision).delaySeconds
        return (round(delaySeconds * 1e6), False) if delaySeconds else ADMITTED_AT_ONCE

    def restUs(self, request: Request, atUs: int) -> int:
        """
        For how long the client of C{request}, which was answered, still has to wait, in microseconds.
        """
        return round(self._charge(request, NOTHING, atUs / 1e6).delaySeconds * 1e6)

    def taken(self, atUs: int) -> list[Taken]:
        """
        What clients have taken of limits that servers can enforce together, since this was last asked.
        """
        return list(self._control.untold(0.0, atUs / 1e6))

    def takenElsewhere(self, taken: Taken, atUs: int) -> None:
        """
        Clients of another server have taken something.
        """
        self._control.takenElsewhere(taken, False, atUs / 1e6)

    def finish(self) -> None:
        """
        End all requests that are under way; no more will come.
        """
        self._endUntil(inf)

    def _meet(self, request: Request, isKnown: bool, now: float) -> None:
        """
        Restore an identity that the server knew when it was first asked about it: from before the recording, or from
        when there was no limit.
        """
        principal, identity = request.principal, request.identities[0]
        if (principal, identity) not in self._met and len(self._met) < _MAX_MET:
            self._met.add((principal, identity))
            if isKnown:
                IRestorable(self.policy).restore(principal, [identity], now)

    def _begin(self, request: Request, atUs: int, serviceUs: int, answerUs: int) -> None:
        if not request.traits.isRequest:
            return
        begun = self._control.begin(request, atUs / 1e6)
        if not begun:
            return
        # A policy that does not count parked requests is told when the work is done.
        lastUs = answerUs if IRequestLifecycle(self.policy).countsParked else min(serviceUs, answerUs)
        outcome = Outcome(True, serviceUs / 1e6, max(lastUs - serviceUs, 0) / 1e6)
        heappush(self._ends, (atUs + lastUs, self._begunCount, begun, request, outcome))
        self._begunCount += 1
        if atUs + lastUs < self._nextUs:
            self._nextUs = atUs + lastUs

    def _endUntil(self, atUs: float) -> None:
        ends = self._ends
        while ends and ends[0][0] <= atUs:
            endUs, _, begun, request, outcome = heappop(ends)
            self._control.end(begun, request, outcome, endUs / 1e6)

    def _change(self, change: LimitChange, atUs: int) -> None:
        if isOfSharing(change.name):
            value = change.value or 0.0
            share = recordedShare(change.name, value)
            if share is not None:
                self.isSharing = change.name == SHARED
                self._control.share(*share, atUs / 1e6)
            else:
                self._control.takenElsewhere(*recordedTaken(change.name, change.entity, value), atUs / 1e6)
        elif change.name in self.policy.limitNames:
            self._control.configure(change.entity, {change.name: change.value}, atUs / 1e6)
            self._isLimiting = self._control.isLimiting
            self._met.clear()

    def _findNext(self) -> None:
        changes = self._changes
        self.changeUs = changes[self._changed].atUs if self._changed < len(changes) else inf
        endUs = self._ends[0][0] if self._ends else inf
        self._nextUs = min(self.changeUs, self._sweepUs, endUs)

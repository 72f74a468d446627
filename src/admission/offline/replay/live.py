# -*- test-case-name: tests.test_replay_trials -*-
"""
A policy at work on a trace.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf
from typing import Any

from twisted.python.components import proxyForInterface

from ...control import SWEEP_SECONDS, AdmissionControl
from ...interfaces import CONNECTION, NOTHING, IQuotaPolicy, IReplayable, Refusal, Request, Usage
from .boots import LimitChange

REFUSALS: Sequence[Refusal] = (Refusal.ERROR, Refusal.DELAY, Refusal.NEVER)
"""How requests can be refused, by the numbers that a replay has for it."""

ADMITTED_AT_ONCE = (0, False)
"""What L{LivePolicy.answer} returns for most requests."""

EVERYTHING = "everything"
"""The key of all requests, of a policy that does not say who influences whom."""

Requester = tuple[str, str, str, str]
"""The kind, principal, client id and peer of a request."""

# Looked up once, like the methods below: this runs for every request of a recording.  So are named tuples made
# without the call that gives their fields names.
_newTuple: Any = tuple.__new__

_SWEEP_US = round(SWEEP_SECONDS * 1e6)


class _WithSay(proxyForInterface(IQuotaPolicy)):  # type: ignore[misc]
    """
    A shadow policy that is to be judged, and so as if it were none.
    """

    isShadow = False


class LivePolicy:
    """
    Asks a policy what a server would ask it, at the moments of a trace: limits
    change as they did, and now and then it is swept.

    @ivar policy: which one.
    """

    def __init__(
        self,
        policy: IQuotaPolicy,
        beginUs: int,
        changes: Sequence[LimitChange],
        mostDelayUs: int,
        hasSay: bool = True,
    ) -> None:
        """
        @param policy: one that nobody has asked anything.
        @param beginUs: when the trace begins.
        @param changes: in their order.
        @param mostDelayUs: the longest delay to give at a time.
        @param hasSay: whether it can refuse; what delays it asks for is told in any case.
        """
        self.policy = policy
        self._control = AdmissionControl([("", _WithSay(policy) if policy.isShadow else policy)], mostDelayUs / 1e6)
        # Looked up here, for what runs for every request.
        self._admit = self._control.admit
        self._charge = self._control.charge
        self._refusals = REFUSALS if hasSay else (Refusal.NEVER,) * len(REFUSALS)
        self._changes = [change for change in changes if not change.isStart]
        self._changed = 0
        self._isLimiting = self._control.isLimiting
        for change in changes:
            if change.isStart:
                self._change(change, beginUs)
        self._sweepUs: float = beginUs + _SWEEP_US
        self._findNext()

    def keyOf(self, requester: Requester) -> Hashable:
        """
        With whose other requests theirs have to be replayed, see L{IReplayable}.
        """
        policy = self.policy
        return policy.replayKey(Request(*requester, 0)) if IReplayable.providedBy(policy) else EVERYTHING

    def advance(self, atUs: int) -> None:
        """
        Let time pass, and what happens meanwhile happen.
        """
        changes = self._changes
        while self._changed < len(changes) and changes[self._changed].atUs <= atUs:
            change = changes[self._changed]
            self._changed += 1
            self._change(change, change.atUs)
        if atUs >= self._sweepUs:
            self._sweepUs = atUs + _SWEEP_US
            self._control.sweep(atUs / 1e6)
        self._findNext()

    def answer(
        self,
        atUs: int,
        requester: Requester,
        requestBytes: int,
        responseBytes: int,
        serviceUs: int,
        identities: Sequence[int],
        isCounted: bool,
        refusal: int,
    ) -> tuple[int, bool]:
        """
        Put a request to the policy, as the server does when it has served it.

        @param atUs: when, not before the last one.
        @param isCounted: whether the policy is told what it took.
        @param refusal: how it can be refused: its place in L{REFUSALS}.
        @return: the delay in microseconds, and whether it was refused.
        """
        if atUs >= self._nextUs:
            self.advance(atUs)
        if not self._isLimiting:
            return ADMITTED_AT_ONCE
        now = atUs / 1e6
        request = _newTuple(Request, (*requester, requestBytes, identities))
        decision = self._admit(request, now, self._refusals[refusal])
        if not decision.admitted:
            return round(decision.delaySeconds * 1e6), True
        usage = NOTHING
        if isCounted:
            usage = _newTuple(
                Usage, (requestBytes, responseBytes, serviceUs / 1e6, 1 if requester[0] == CONNECTION else 0)
            )
        delaySeconds = self._charge(request, usage, now, decision).delaySeconds
        return (round(delaySeconds * 1e6), False) if delaySeconds else ADMITTED_AT_ONCE

    def _change(self, change: LimitChange, atUs: int) -> None:
        self._control.configure(change.entity, {change.name: change.value}, atUs / 1e6)
        self._isLimiting = self._control.isLimiting

    def _findNext(self) -> None:
        changes = self._changes
        changeUs = changes[self._changed].atUs if self._changed < len(changes) else inf
        self._nextUs = min(changeUs, self._sweepUs)

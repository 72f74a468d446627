# -*- test-case-name: tests.test_replay_trials -*-
"""
A policy at work on a trace.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from typing import Any

from ...interfaces import CONNECTION, NOTHING, Request, Usage
from ...quotas import SWEEP_SECONDS
from .boots import LimitChange
from .clock import VirtualClock

REFUSABLE = frozenset({"Produce", "Fetch", "InitProducerId"})
"""The kinds of requests that the server's protocol has a way to refuse."""

ADMITTED_AT_ONCE = (0, False)
"""What L{LivePolicy.answer} returns for most requests."""

Requester = tuple[str, str, str, str]
"""The kind, principal, client id and peer of a request."""

_SWEEP_US = round(SWEEP_SECONDS * 1e6)


class LivePolicy:
    """
    Asks a policy what a server would ask it, at the moments of a trace: limits
    change as they did, and now and then it is swept.

    @ivar policy: which one.
    """

    def __init__(
        self,
        policy: Any,
        clock: VirtualClock,
        changes: Sequence[LimitChange],
        mostDelayUs: int,
        refusable: Collection[str] = REFUSABLE,
    ) -> None:
        """
        @param policy: an L{admission.interfaces.IQuotaPolicy} that nobody has
            asked anything.
        @param clock: the one that it was built with, where the trace begins.
        @param changes: in their order.
        @param mostDelayUs: the longest delay to give at a time.
        @param refusable: the kinds of requests that can be refused.
        """
        self.policy = policy
        self._clock = clock
        # Looked up here, for what runs for every request.
        self._decide = policy.decide
        self._record = policy.record
        self._mostDelaySeconds = mostDelayUs / 1e6
        self._refusable = refusable
        self._changes = [change for change in changes if not change.isStart]
        self._changed = 0
        for change in changes:
            if change.isStart:
                policy.configure(change.entity, {change.name: change.value})
        self._isLimiting = bool(policy.isLimiting)
        self._sweepUs: float = clock.rightNow * 1e6 + _SWEEP_US
        self._findNext()

    def advance(self, atUs: int) -> None:
        """
        Let time pass, and what happens meanwhile happen.
        """
        changes = self._changes
        while self._changed < len(changes) and changes[self._changed].atUs <= atUs:
            change = changes[self._changed]
            self._changed += 1
            self._clock.moveTo(change.atUs / 1e6)
            self.policy.configure(change.entity, {change.name: change.value})
            self._isLimiting = bool(self.policy.isLimiting)
        self._clock.moveTo(atUs / 1e6)
        if atUs >= self._sweepUs:
            self._sweepUs = atUs + _SWEEP_US
            self.policy.sweep()
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
    ) -> tuple[int, bool]:
        """
        Put a request to the policy, as the server does when it has served it.

        @param atUs: when, not before the last one.
        @param isCounted: whether the policy is told what it took.
        @return: the delay in microseconds, and whether it was refused.
        """
        clock = self._clock
        if atUs >= self._nextUs or clock.calls:
            self.advance(atUs)
        clock.rightNow = atUs / 1e6
        if not self._isLimiting:
            return ADMITTED_AT_ONCE
        kind, principal, clientId, peer = requester
        request = Request(kind, principal, clientId, peer, requestBytes, identities)
        if kind in self._refusable:
            decision = self._decide(request)
            if not decision.admitted:
                return round(self._clamped(decision.delaySeconds) * 1e6), True
        usage = NOTHING
        if isCounted:
            usage = Usage(requestBytes, responseBytes, serviceUs / 1e6, 1 if kind == CONNECTION else 0)
        delaySeconds = self._record(request, usage)
        return (round(self._clamped(delaySeconds) * 1e6), False) if delaySeconds else ADMITTED_AT_ONCE

    def _clamped(self, delaySeconds: float) -> float:
        # As the server does: what is not a number fails the first comparison.
        return min(delaySeconds, self._mostDelaySeconds) if delaySeconds > 0.0 else 0.0

    def _findNext(self) -> None:
        changes = self._changes
        changeUs = changes[self._changed].atUs if self._changed < len(changes) else inf
        self._nextUs = min(changeUs, self._sweepUs)

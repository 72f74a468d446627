"""Policies that the framework has none of, to be replayed."""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Sequence
from typing import Any

from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.commands import offlinecommands
from admission.interfaces import (
    ADMITTED,
    Decision,
    IQuotaPolicyFactory,
    IReplayable,
    IRequestLifecycle,
    Outcome,
    PolicyContext,
    Request,
    Usage,
)
from admission.offline import syntheticserver
from admission.offline.simulate import trials
from admission.offline.simulate.candidates import Candidate, resolveCandidate
from admission.plugins import buildPolicy
from admission.quotas.policy import QuotaPolicy
from admission.testing.scriptedquota import ScriptedQuota
from tests.kit import replaymodel


class PerSecond(QuotaPolicy):
    """So many requests of each client in a second, of whatever kind; more are refused until there are fewer."""

    def __init__(self, context: PolicyContext | None, most: str) -> None:
        self._most = int(most)
        self._moments: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=self._most))

    def decide(self, request: Request, now: float) -> Decision:
        """Refuse what comes too early."""
        moments = self._moments[request.clientId]
        if len(moments) < self._most or now - moments[0] >= 1.0:
            return ADMITTED
        return Decision(False, 1.0 - (now - moments[0]), "more than so many in a second")

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """It counts."""
        self._moments[request.clientId].append(now)
        return 0.0


@implementer(IRequestLifecycle)
class AtMost(QuotaPolicy):
    """
    So many requests of each client at a time; more are refused.

    @ivar told: what it was told, in order: whether a request began, whose it
        is, when, and how it ended.
    """

    made: list[AtMost] = []
    """All there are, if somebody wants to know; else nothing."""

    def __init__(self, context: PolicyContext | None, most: str, parked: str = "yes") -> None:
        self._most = int(most)
        self.countsParked = parked == "yes"
        self.underWay: Counter[str] = Counter()
        self.told: list[tuple[bool, str, float, Outcome | None]] = []
        self.made.append(self)

    def decide(self, request: Request, now: float) -> Decision:
        """Refuse what is too much."""
        if self.underWay[request.clientId] < self._most:
            return ADMITTED
        return Decision(False, 0.05, "too many at a time")

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """Nobody has to wait."""
        return 0.0

    def begun(self, request: Request, now: float) -> None:
        """One more."""
        self.underWay[request.clientId] += 1
        self.told.append((True, request.clientId, now, None))

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        """One less."""
        self.underWay[request.clientId] -= 1
        self.told.append((False, request.clientId, now, outcome))


@implementer(IRequestLifecycle)
class Following(ScriptedQuota):
    """Does as it is told, and notes which requests begin and end."""

    def __init__(self, countsParked: bool) -> None:
        super().__init__()
        self.countsParked = countsParked
        self.begunAt: list[float] = []
        self.endedAt: list[tuple[float, Outcome]] = []

    def begun(self, request: Request, now: float) -> None:
        """Note it."""
        self.begunAt.append(now)

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        """Note it."""
        self.endedAt.append((now, outcome))


@implementer(IReplayable)
class AtMostOfClient(AtMost):
    """The same, spread over clients."""

    horizonSeconds = 1.0

    def replayKey(self, request: Request) -> Hashable:
        """Clients do not influence each other."""
        return request.clientId


class Unrecorded(QuotaPolicy):
    """
    Delays each seventh size of request by 50 ms. What a client sends within some seconds of the server's life it delays
    by 100 ms instead, if the environment says so, of which a recording knows nothing.
    """

    VARIABLE = "ADMISSION_TESTS_UNRECORDED"

    def __init__(self, context: PolicyContext | None, clientId: str, since: str, until: str) -> None:
        self._clientId, self._since, self._until = clientId, float(since), float(until)
        self._isOn = self.VARIABLE in os.environ

    def decide(self, request: Request, now: float) -> Decision:
        """Admit."""
        return ADMITTED

    def record(self, request: Request, usage: Usage, now: float) -> float:
        """Delay some."""
        if self._isOn and request.clientId == self._clientId and self._since <= now < self._until:
            return 0.1
        return 0.0 if request.sizeBytes % 7 else 0.05


_CLASSES: dict[str, Any] = {
    "per-second": PerSecond,
    "at-most": AtMost,
    "at-most-of-client": AtMostOfClient,
    "unrecorded": Unrecorded,
}


def candidate(description: str, label: str = "") -> Candidate:
    """One of these as C{NAME:ARGUMENT:KEYWORD=VALUE}."""
    name, *args = description.split(":")
    words = [arg for arg in args if "=" not in arg]
    named = dict(arg.split("=") for arg in args if "=" in arg)
    implementation = f"{__name__}.{_CLASSES[name].__name__}"
    return Candidate(label or description, name, description, implementation, words, named)


def install(test: SynchronousTestCase) -> None:
    """Let servers, trials and commands know them besides those that are installed, until C{test} is over."""

    def build(interface: Any, description: str, context: PolicyContext) -> Any:
        if description.partition(":")[0] not in _CLASSES:
            return buildPolicy(interface, description, context)
        found = candidate(description)
        return _CLASSES[found.name](context, *found.args, **found.kwargs)

    def resolve(text: str, interface: Any = IQuotaPolicyFactory) -> Candidate:
        return candidate(text) if text.partition(":")[0] in _CLASSES else resolveCandidate(text, interface)

    made: Sequence[AtMost] = []
    for module in (replaymodel, syntheticserver):
        test.patch(module, "buildPolicy", build)
    for module in (trials, offlinecommands):
        test.patch(module, "resolveCandidate", resolve)
    test.patch(AtMost, "made", made)

"""Policies that raise in one of their methods."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from zope.interface import implementer

from admission import (
    ADMITTED,
    Decision,
    IMemoryPoolFactory,
    IPurgatoryFactory,
    PolicyContext,
    Request,
    Usage,
    buildPolicy,
)
from admission.interfaces import (
    IAccountable,
    IIdentityAudit,
    IPersistent,
    IQuotaPolicy,
    IRequestLifecycle,
    IRestorable,
    Outcome,
)
from admission.quotas import QuotaPolicy

PLUGINS = """
from admission.interfaces import IMemoryPoolFactory, IPurgatoryFactory, IQuotaPolicyFactory
from admission.plugins import PolicyFactory

pool, purgatory, quota = (
    PolicyFactory(
        interface,
        name=f"faulty-{name}",
        format=f"faulty-{name}:METHOD:every=NUMBER",
        help="For tests.",
        implementation=f"tests.faults.faultypolicies.build{name.capitalize()}",
    )
    for name, interface in (
        ("pool", IMemoryPoolFactory),
        ("purgatory", IPurgatoryFactory),
        ("quota", IQuotaPolicyFactory),
    )
)
"""
"""A module for a directory C{twisted/plugins} that has them."""

_T = TypeVar("_T")


class Fault(Exception):
    """What they raise."""


@implementer(IAccountable, IIdentityAudit, IPersistent, IRequestLifecycle, IRestorable)
class Watching(QuotaPolicy):
    """Has every method that a quota policy may have, and limits nobody."""

    countsParked = True
    sizeBytes = 0

    def decide(self, request: Request, now: float) -> Decision:
        return ADMITTED

    def record(self, request: Request, usage: Usage, now: float) -> float:
        return 0.0

    def begun(self, request: Request, now: float) -> None:
        pass

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        pass

    def isKnown(self, request: Request, now: float) -> bool | None:
        return None

    def restore(self, principal: str, identities: Sequence[int], now: float) -> None:
        pass

    def takeChanges(self) -> Mapping[str, float]:
        return {}

    def resume(self, kept: Mapping[str, float], now: float) -> None:
        pass

    def restorePrincipals(self, principals: Collection[str], now: float) -> None:
        pass


def buildQuota(context: PolicyContext, method: str, **fault: str) -> IQuotaPolicy:
    """C{faulty-quota:METHOD:every=NUMBER}."""
    return _withFault(Watching(), method, **fault)


def buildPool(context: PolicyContext, method: str, **fault: str) -> Any:
    """C{faulty-pool:METHOD:every=NUMBER}."""
    return _withFault(buildPolicy(IMemoryPoolFactory, "bounded:64MiB", context), method, **fault)


def buildPurgatory(context: PolicyContext, method: str, **fault: str) -> Any:
    """C{faulty-purgatory:METHOD:every=NUMBER}."""
    return _withFault(buildPolicy(IPurgatoryFactory, "wheel", context), method, **fault)


def _withFault(policy: _T, method: str, every: str) -> _T:
    """@param every: which calls of the method have the fault: each of that number."""
    numbers = count(1)
    # Of the class: some have no room for attributes of their own.
    actual = getattr(type(policy), method)

    def faulty(*args: Any, **kwargs: Any) -> Any:
        if next(numbers) % int(every) == 0:
            raise Fault(method)
        return actual(*args, **kwargs)

    setattr(type(policy), method, faulty)
    return policy

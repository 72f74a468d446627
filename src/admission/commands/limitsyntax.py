# -*- test-case-name: tests.unit.commands.test_limitsyntax -*-
"""
Limits and their entities as people write them.
"""

from __future__ import annotations

import difflib
import math
import shlex
from collections.abc import Collection, Mapping
from decimal import Decimal

from ..interfaces import DEFAULT, QuotaEntity
from ..quotas.limits import UNLIMITED
from ..units import formatBytes, formatShare, parseRate

ATTRIBUTES = {"user": "user", "client-id": "clientId", "ip": "ip"}
"""The attribute of L{QuotaEntity} for each type of entity, as the protocol and our options name the types."""

_NOT_BY_TIME = ("new_identity_rate", "producer_ids_rate")
"""Limits that are called rates but count in windows of any length, so that no unit of time fits."""


_LIKENESS = 0.9
"""Of a slip, by difflib's ratio: one letter or two."""


def parseAmount(name: str, text: str, known: Collection[str] = ()) -> float:
    """
    Read the value of the limit C{name}.

    @param known: names of limits, of which one may be meant.
    @raise ValueError: if it is not a positive number, or not a rate where the limit is one, be it because the name is
        misspelt.
    """
    if _isRate(name):
        amount = parseRate(text)
    else:
        try:
            amount = float(text)
        except ValueError:
            if name not in known and (meant := difflib.get_close_matches(name, known, 1, _LIKENESS)):
                raise ValueError(f"no limit has this name; the nearest is {meant[0]}") from None
            raise ValueError(f"{text!r} is not a number") from None
    if not (math.isfinite(amount) and amount > 0):
        raise ValueError(f"a limit is a number greater than zero, not {text!r}")
    return amount


def formatAmount(name: str, amount: float) -> str:
    """
    Write the value of the limit C{name} as L{parseAmount} reads it, to 15 digits.

    @param amount: from 1e-24 to 1e39.
    """
    if amount == UNLIMITED:
        # Which is Kafka's largest number as a double.
        return str(2**63 - 1)
    if name.endswith("_byte_rate") and amount.is_integer():
        return formatBytes(int(amount))
    # Rates have no exponents.
    return f"{Decimal(f'{amount:.15g}'):f}"


def limitTitles(title: str, share: float) -> tuple[str, ...]:
    """
    The titles of the columns that L{limitColumns} makes: a second one where several servers enforce limits together.

    @param share: how much of each limit a server enforces.
    """
    return (title,) if share == 1.0 else (title, f"Of which this gateway enforces {formatShare(share)}")


def limitColumns(limits: Mapping[str, float], share: float) -> tuple[str, ...]:
    """
    Write the limits of one entity as they were set, and what a server enforces of them where that is less.

    @param limits: as they are enforced, by name.
    """
    # A third of a limit three times is that limit to 15 digits.
    whole = {name: float(f"{limit / share:.15g}") for name, limit in limits.items()}
    shown = (limits,) if share == 1.0 else (whole, limits)
    return tuple(" ".join(f"{name}={formatAmount(name, each[name])}" for name in limits) for each in shown)


def asArguments(entity: QuotaEntity) -> str:
    """
    The options for C{entity}, quoted for a shell; nothing if all clients share the limit.
    """
    return " ".join(
        f"--{kind}-default" if name == DEFAULT else f"--{kind} {shlex.quote(name)}"
        for kind, name in componentsOf(entity).items()
    )


def componentsOf(entity: QuotaEntity) -> dict[str, str]:
    """
    The names in an entity, or L{DEFAULT}, by the keys of L{ATTRIBUTES}.
    """
    names = {kind: getattr(entity, attribute) for kind, attribute in ATTRIBUTES.items()}
    return {kind: name for kind, name in names.items() if name is not None}


def _isRate(name: str) -> bool:
    return name.endswith("_rate") and name not in _NOT_BY_TIME

# -*- test-case-name: tests.unit.shares.test_limitsharing,tests.unit.shares.test_erratic -*-
"""
What servers that enforce limits together tell each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import astuple, frozen

from ..interfaces import QuotaEntity, Taken

VERSION = 1
"""A server ignores messages of another."""

MAX_MESSAGE_BYTES = 256 << 10
MAX_ROWS = 1000
"""How much one message says at most."""

MAX_NAME = 1000
"""The longest name of a limit or of a client, in characters."""

_LONGEST_ROW_BYTES = 40_000
_MAX_ROWS_BYTES = MAX_MESSAGE_BYTES - 1000
_MAX_AMOUNT = 2.0**63
_MAX_IDENTITY = (1 << 63) - 1


class NotUnderstood(ValueError):
    """
    A message makes no sense, or is of another version.
    """


@frozen
class SetLimits:
    """
    All limits that one entity has been given while servers run.

    @ivar limits: by name; empty if it has none any more.
    @ivar by: who has set them, for the log.
    """

    entity: QuotaEntity
    limits: Mapping[str, float]
    by: str


@frozen
class UsageMessage:
    """
    A message of one server.

    @ivar server: which one; another for each start of it.
    @ivar number: its number among those of that server.
    @ivar taken: what its clients have taken.
    @ivar limits: limits that were set there while it ran; L{None} if it tells of none.
    """

    server: str
    number: int
    taken: Sequence[Taken] = ()
    limits: SetLimits | None = None

    def encoded(self) -> bytes:
        rows = [_row(each) for each in self.taken]
        told: dict[str, Any] = {"version": VERSION, "server": self.server, "number": self.number, "taken": rows}
        if self.limits is not None:
            told["limits"] = [*astuple(self.limits.entity), dict(self.limits.limits), self.limits.by]
        return json.dumps(told, separators=(",", ":")).encode("ascii")

    @classmethod
    def of(cls, encoded: bytes) -> UsageMessage:
        """
        @raise NotUnderstood: if C{encoded} is none.
        """
        try:
            if len(encoded) > MAX_MESSAGE_BYTES:
                raise ValueError(f"it has {len(encoded)} bytes")
            told = json.loads(encoded)
            if told["version"] != VERSION:
                raise ValueError(f"it is of version {told['version']!r}, and {VERSION} is known")
            server, number = told["server"], told["number"]
            if not (_isName(server) and isinstance(number, int)):
                raise ValueError("it does not say whose it is")
            limits = told.get("limits")
            taken = [_takenOf(row) for row in told["taken"][:MAX_ROWS]]
            return cls(server, number, taken, None if limits is None else _limitsOf(limits))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise NotUnderstood(f"{type(error).__name__}: {error}") from error


def fitting(taken: Iterable[Taken], maxRows: int) -> Iterator[Taken]:
    """
    The first of C{taken} that one message has room for, C{maxRows} at most.
    """
    leftBytes = _MAX_ROWS_BYTES
    for count, each in enumerate(taken, 1):
        yield each
        leftBytes -= len(json.dumps(_row(each)))
        # The longest row: what is taken out of C{taken} has to be told.
        if count >= min(maxRows, MAX_ROWS) or leftBytes < _LONGEST_ROW_BYTES:
            return


def _row(taken: Taken) -> list[Any]:
    entity = taken.entity
    row: list[Any] = [taken.limitName, entity.user, entity.clientId, entity.ip, taken.amount]
    return [*row, taken.identities] if taken.identities else row


def _takenOf(row: Any) -> Taken:
    limitName, user, clientId, ip, amount, *others = row
    names = (user, clientId, ip)
    if not (_isName(limitName) and all(each is None or _isName(each) for each in names)):
        raise ValueError("a name is none")
    # JSON has integers that are too large for a float.
    isAmount = isinstance(amount, int | float) and 0 <= amount <= _MAX_AMOUNT
    identities = tuple(others[0]) if others else ()
    if not (isAmount and all(isinstance(each, int) and 0 <= each <= _MAX_IDENTITY for each in identities)):
        raise ValueError("an amount is none")
    return Taken(limitName, QuotaEntity(*names), float(amount), identities)


def _limitsOf(row: Any) -> SetLimits:
    user, clientId, ip, limits, by = row
    names = (user, clientId, ip)
    if not (_isName(by) and all(each is None or _isName(each) for each in names) and any(names)):
        raise ValueError("limits are of nobody")
    for name, value in limits.items():
        if not (_isName(name) and isinstance(value, int | float) and 0 < value <= _MAX_AMOUNT):
            raise ValueError("a limit is none")
    return SetLimits(QuotaEntity(*names), {name: float(value) for name, value in limits.items()}, by)


def _isName(name: Any) -> bool:
    return isinstance(name, str) and len(name) <= MAX_NAME

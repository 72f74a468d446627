# -*- test-case-name: tests.unit.offline.test_report -*-
"""
Who gains and who loses under a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen

from ..simulate.decisions import CLOSED
from ..simulate.trials import BASELINE
from .resultfiles import Results, only
from .words import NOTHING, client, count, duration, plural

HEADS = (
    "Client",
    "Throttled for, recorded",
    "Candidate",
    "Difference",
    "Requests refused, recorded",
    "Candidate",
    "Difference",
)
"""The columns of L{Difference.cells}."""

_LEAST_SECONDS = 0.001

_COLUMNS = ("candidate", "mode", "principal", "client_id", "throttle_s", "refused")


@frozen
class Difference:
    """
    What a candidate changes for a client.

    @ivar name: of the client, fit to be shown.
    @ivar isClient: whether it is one, and not connections before their login.
    @ivar recordedSeconds: for how long it was throttled.
    @ivar seconds: for how long it would have been.
    @ivar recordedRefused: how many of its requests were refused.
    @ivar refused: how many would have been.
    """

    name: str
    isClient: bool
    recordedSeconds: float
    seconds: float
    recordedRefused: int
    refused: int

    @property
    def gain(self) -> int:
        """
        1 if the client is throttled for a shorter time, or else fewer of its requests are refused; -1 if it is the
        other way round; and 0 if neither changes.
        """
        shorter = self.recordedSeconds - self.seconds
        fewer = self.recordedRefused - self.refused
        change = shorter if abs(shorter) >= _LEAST_SECONDS else fewer
        return (change > 0) - (change < 0)

    def cells(self) -> Sequence[str]:
        """
        The row of a table, see L{HEADS}.
        """
        return (
            self.name,
            duration(self.recordedSeconds),
            duration(self.seconds),
            signed(self.seconds - self.recordedSeconds),
            count(self.recordedRefused),
            count(self.refused),
            signedCount(self.refused - self.recordedRefused),
        )


@frozen
class Differences:
    """
    What a candidate changes for all clients.

    @ivar changed: who gains or loses, those with the largest difference first; connections before their login are
        one of them.
    @ivar gaining: how many clients gain.
    @ivar losing: how many lose.
    @ivar unchanged: how many other clients there are.
    """

    changed: Sequence[Difference]
    gaining: int
    losing: int
    unchanged: int

    def inWords(self) -> str:
        """
        How many clients gain and lose.
        """
        gain = f"{_clients(self.gaining)} {'gain' if self.gaining > 1 else 'gains'}"
        lose = f"{_clients(self.losing)} {'lose' if self.losing > 1 else 'loses'}"
        return f"{gain}, {lose}, and for {count(self.unchanged)} nothing changes."

    def beyond(self, most: int) -> str:
        """
        How many clients gain or lose less than the first ones; empty if there are no more.
        """
        more = len(self.changed) - most
        return f"{plural(more, 'more client')} with smaller differences: see replay_client." if more > 0 else ""


def differencesOf(results: Results, label: str) -> Differences | None:
    """
    Compare a candidate with the recording, closed loop.

    @return: L{None} if the clients were not counted.
    """
    table = results.table("replay_client", _COLUMNS)
    if table is None:
        return None
    clients = only(table, mode=CLOSED)
    recorded, candidate = (_byClient(only(clients, candidate=each)) for each in (BASELINE, label))
    nothing = (0.0, 0)
    found = [
        Difference(client(*who), who != (None, None), seconds, candidateSeconds, refused, candidateRefused)
        for who in {**recorded, **candidate}
        for (seconds, refused), (candidateSeconds, candidateRefused) in [
            (recorded.get(who, nothing), candidate.get(who, nothing))
        ]
    ]
    changed = [each for each in found if each.gain]
    changed.sort(
        key=lambda each: (
            -abs(each.seconds - each.recordedSeconds),
            -abs(each.refused - each.recordedRefused),
            each.name,
        )
    )
    clients = {**recorded, **candidate}.keys() - {(None, None)}
    gaining, losing = (sum(each.gain == gain and each.isClient for each in changed) for gain in (1, -1))
    return Differences(changed, gaining, losing, len(clients) - gaining - losing)


def signed(seconds: float | None) -> str:
    """
    A difference of durations, with its sign.
    """
    if seconds is None:
        return NOTHING
    if abs(seconds) < _LEAST_SECONDS:
        return duration(0)
    return f"+{duration(seconds)}" if seconds > 0 else duration(seconds)


def signedCount(number: int) -> str:
    return f"{number:+,}".replace("-", "\N{MINUS SIGN}") if number else "0"


def _clients(number: int) -> str:
    return plural(number, "client") if number else "no client"


def _byClient(table: pa.Table) -> dict[tuple[str | None, str | None], tuple[float, int]]:
    return {(row["principal"], row["client_id"]): (row["throttle_s"], row["refused"]) for row in table.to_pylist()}

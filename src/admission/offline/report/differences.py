# -*- test-case-name: tests.offline.test_report -*-
"""
The clients that gain and those that lose under a candidate.
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

AT_LEAST = "\N{GREATER-THAN OR EQUAL TO} "

_LEAST_SECONDS = 0.001

_SLACK_SHARE = 0.01
"""A smaller part of the time throttled is no difference."""

_COLUMNS = ("candidate", "mode", "principal", "client_id", "throttle_s", "refused", "ran_out_share")


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
    @ivar ranOut: whether it ran out of recorded requests, so that it may be throttled for longer.
    """

    name: str
    isClient: bool
    recordedSeconds: float
    seconds: float
    recordedRefused: int
    refused: int
    ranOut: bool = False

    @property
    def gain(self) -> int:
        """
        1 if the client is throttled for a shorter time or fewer of its requests are refused, -1 if it is the other way
        round; and 0 if neither changes, or if one is better and the other worse.
        """
        shorter = self.recordedSeconds - self.seconds
        least = max(_LEAST_SECONDS, _SLACK_SHARE * max(self.recordedSeconds, self.seconds))
        fewer = self.recordedRefused - self.refused
        directions = {(shorter > 0) - (shorter < 0) if abs(shorter) >= least else 0, (fewer > 0) - (fewer < 0)} - {0}
        return directions.pop() if len(directions) == 1 else 0

    def cells(self) -> Sequence[str]:
        """
        The row of a table, see L{HEADS}.
        """
        return (
            self.name,
            duration(self.recordedSeconds),
            f"{AT_LEAST if self.ranOut else ''}{duration(self.seconds)}",
            f"{AT_LEAST if self.ranOut else ''}{signed(self.seconds - self.recordedSeconds)}",
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

    def losersInWords(self) -> str:
        """
        The clients that lose, as a part of a sentence.
        """
        losing = [each.name for each in self.changed if each.isClient and each.gain < 0]
        if not losing:
            return "nobody is worse off"
        others = f" and {plural(len(losing) - 1, 'other client')}" if len(losing) > 1 else ""
        return f"{losing[0]}{others} {'are' if others else 'is'} worse off"

    @property
    def ranOut(self) -> str:
        """
        What the sign in the rows of those means that ran out of recorded requests; empty if there are none.
        """
        if not any(each.ranOut for each in self.changed):
            return ""
        return (
            f"{AT_LEAST.strip()}: the client ran out of recorded requests. What else it would have sent is not known, "
            "and may be throttled or refused besides."
        )

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
    nothing = (0.0, 0, False)
    found = [
        Difference(client(*who), who != (None, None), seconds, candidateSeconds, refused, candidateRefused, ranOut)
        for who in {**recorded, **candidate}
        for (seconds, refused, _), (candidateSeconds, candidateRefused, ranOut) in [
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


def _byClient(table: pa.Table) -> dict[tuple[str | None, str | None], tuple[float, int, bool]]:
    return {
        (row["principal"], row["client_id"]): (row["throttle_s"], row["refused"], row["ran_out_share"] > 0)
        for row in table.to_pylist()
    }

# -*- test-case-name: tests.offline.simulate.test_together -*-
"""
Runs whose servers enforced limits together, replayed together, by the calendar.

Each has a policy of its own, at its own moments.  What clients take at one is told to the others ten times a second, as
servers do it; by the calendar, since their clocks have nothing else in common, which takes these for right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from .live import LAST, LivePolicy
from .ordered import numbersOf
from .sharedruns import startUs
from .trials import Trial

INTERVAL_US: Final = 100_000
"""How often policies are told what clients have taken at the others: as often as servers tell it by default."""

MOMENTS: Final = ("at_us", "arrived_us", "sent_us", "released_us")
"""The columns of arrivals that are moments."""

Together = Sequence[Trial]
"""The trials of one candidate in runs that are replayed together; of most, one in one run."""


class Server:
    """
    One run in a replay.

    @ivar trial: the candidate in it.
    @ivar shiftUs: added to its moments to get those of the replay, which are its own if it is replayed alone.
    @ivar startUs: when it begins, at a moment of the replay.
    @ivar horizonUs: when it ends, likewise.
    @ivar live: its policy; L{None} until that is needed.
    """

    __slots__ = ("horizonUs", "live", "shiftUs", "startUs", "trial")

    def __init__(self, trial: Trial, shiftUs: int) -> None:
        self.trial = trial
        self.shiftUs = shiftUs
        self.startUs = startUs(trial.run) - trial.run.wallOffsetUs + shiftUs
        self.horizonUs = trial.run.horizonUs + shiftUs
        self.live: LivePolicy | None = None

    @property
    def changeUs(self) -> float:
        """
        When a limit changes next, at a moment of the replay.
        """
        return inf if self.live is None else self.live.changeUs + self.shiftUs

    def begin(self, atUs: int, seq: int = LAST) -> LivePolicy:
        """
        Build its policy, with the limits that hold just before the event number C{seq}.

        @param atUs: a moment of the replay.
        """
        live = self.live = self.trial.begin(atUs - self.shiftUs)
        live.advance(atUs - self.shiftUs, seq)
        return live


def serversOf(together: Together) -> list[Server]:
    isAlone = len(together) == 1
    return [Server(trial, 0 if isAlone else trial.run.wallOffsetUs) for trial in together]


class Exchange:
    """
    Tells each server's policy what clients have taken at the others.

    As in a server, one that does not hear from the others tells them nothing and is told nothing, but identities, which
    everybody is told sooner or later.

    @ivar dueUs: when it does so next, at a moment of the replay; infinite while nothing can have been taken.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers
        self.dueUs: float = inf

    def asked(self, atUs: int) -> None:
        """
        A policy was asked about a request.
        """
        if self.dueUs == inf:
            self.dueUs = (atUs // INTERVAL_US + 1) * INTERVAL_US

    def tell(self) -> None:
        """
        Tell them, at L{dueUs}.
        """
        dueUs = int(self.dueUs)
        lives = []
        for server in self._servers:
            # What was taken last is told after the end.
            if server.startUs <= dueUs <= server.horizonUs + INTERVAL_US:
                live = server.live or server.begin(dueUs)
                live.advance(dueUs - server.shiftUs)
                lives.append((live, dueUs - server.shiftUs))
        told = [(live, live.taken(atUs)) for live, atUs in lives]
        for teller, taken in told:
            for each in taken:
                # One by one, as servers hear them.
                parts = [each._replace(amount=1.0, identities=(one,)) for one in each.identities] or [each]
                for live, atUs in lives:
                    if live is not teller and (each.identities or (teller.isSharing and live.isSharing)):
                        for part in parts:
                            live.takenElsewhere(part, atUs)
        # And once more: what a policy enforces in part, since too much was untold, is whole again when it next tells.
        self.dueUs = dueUs + INTERVAL_US if any(taken for _, taken in told) else inf


def onCalendar(arrivals: pa.RecordBatch, together: Together, place: int) -> pa.RecordBatch:
    """
    Arrivals of one of several runs as those of all of them: at moments of the calendar, in microseconds since the
    epoch, and on connections whose numbers no other run has.

    @param together: if it is one, nothing changes.
    @param place: which of them.
    """
    if len(together) == 1:
        return arrivals
    shiftUs = together[place].run.wallOffsetUs
    columns = dict(zip(arrivals.schema.names, arrivals.columns, strict=True))
    for name in MOMENTS:
        columns[name] = pa.array(numbersOf(columns[name]) + shiftUs)
    columns["conn_id"] = pa.array(sharedNumber(numbersOf(columns["conn_id"]), together, place))
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=arrivals.schema)


def apart(rows: pa.RecordBatch, together: Together) -> Iterator[tuple[Trial, Any, pa.RecordBatch]]:
    """
    What L{onCalendar} made of arrivals, as those of each run again.

    @return: with each run's trial, and which of the rows they are; C{at_us} is the only moment that is changed back.
    """
    if len(together) == 1:
        yield together[0], slice(None), rows
        return
    numbers = numbersOf(rows.column("conn_id"))
    for place, trial in enumerate(together):
        isHere = numbers % len(together) == place
        own = rows.filter(pa.array(isHere))
        columns = dict(zip(own.schema.names, own.columns, strict=True))
        columns["conn_id"] = pa.array(numbers[isHere] // len(together))
        columns["at_us"] = pa.array(numbersOf(columns["at_us"]) - trial.run.wallOffsetUs)
        yield trial, isHere, pa.RecordBatch.from_arrays(list(columns.values()), schema=own.schema)


def sharedNumber(connectionId: Any, together: Together, place: int) -> Any:
    """
    The number of a connection, or an array of them, among those of all runs: the remainder by how many these are says
    of which it is.
    """
    return connectionId * len(together) + place

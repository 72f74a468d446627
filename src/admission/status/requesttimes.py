# -*- test-case-name: tests.unit.status.test_requesttimes -*-
"""
How long requests take, by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from twisted.python.failure import Failure

from ..metrics.histogram import Histogram
from ..request import ServerRequest
from .sections import finite

WINDOW_SECONDS = 300.0
"""Quantiles are of what has ended in this window, and in the one before."""

QUANTILES = (0.5, 0.99)

MAX_KINDS = 100
"""How many kinds are counted on their own; kinds that come after as many others count together."""

OTHERS = "others"


class RequestTimes:
    """
    The distribution of the time from a request's length to its answer, by kind, as far as that is known: Kafka's total
    time.  A request may wait for other clients in between.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        """
        @param seconds: a monotonic clock.
        """
        self._seconds = seconds
        self._beganSeconds = seconds()
        self._recent: dict[str, Histogram] = {}
        self._before: dict[str, Histogram] = {}

    def connectionOpened(self, connection: Any) -> None:
        pass

    def connectionClosed(self, connection: Any, reason: Failure) -> None:
        pass

    def requestOver(self, request: ServerRequest) -> None:
        kind = request.kind
        if request.answered is None or kind is None or not request.traits.isRequest:
            return
        if request.answered - self._beganSeconds >= WINDOW_SECONDS:
            self._turn()
        histogram = self._recent.get(kind)
        if histogram is None:
            if len(self._recent) >= MAX_KINDS:
                kind = OTHERS
            histogram = self._recent.setdefault(kind, Histogram())
        histogram.record(request.answered - request.arrived)

    def fields(self, now: float) -> list[dict[str, Any]]:
        """
        For each kind its name, how many have ended lately, and quantiles in seconds, the most frequent first.
        """
        if now - self._beganSeconds >= WINDOW_SECONDS:
            self._turn()
        rows = []
        for kind in {**self._recent, **self._before}:
            both = Histogram()
            for histogram in (self._recent.get(kind), self._before.get(kind)):
                if histogram is not None:
                    both.counts = [mine + other for mine, other in zip(both.counts, histogram.counts, strict=True)]
            median, slowest = (finite(both.quantile(share)) for share in QUANTILES)
            rows.append(
                {
                    "kind": kind,
                    "count": both.count,
                    "medianSeconds": median,
                    "percentile99Seconds": slowest,
                }
            )
        return sorted(rows, key=lambda row: -row["count"])

    def read(self, now: float) -> Iterator[tuple[tuple[str, str], float]]:
        """
        The same as a family by kind and quantile, for L{SensorRegistry<admission.metrics.registry.SensorRegistry>}.
        """
        for row in self.fields(now):
            for share, name in zip(QUANTILES, ("medianSeconds", "percentile99Seconds"), strict=True):
                if row[name] is not None:
                    yield (row["kind"], f"{share:g}"), row[name]

    def _turn(self) -> None:
        now = self._seconds()
        # A server that was idle for long begins anew.
        self._before = self._recent if now - self._beganSeconds < 2 * WINDOW_SECONDS else {}
        self._recent = {}
        self._beganSeconds = now

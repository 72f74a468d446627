# -*- test-case-name: tests.offline.simulate.test_estimates -*-
"""
What a sample of the clients says of all clients.

Each client is in the sample with the same probability C{p}, whatever the others are, and of all clients it is known how
many requests they sent.  A sum over all clients is estimated by that over the sample, times the requests of all and
divided by those of the sample: the ratio estimator, see Cochran, Sampling Techniques, 3rd edition, chapter 6.  Its
standard error is estimated by the square root of C{(1 - p)} times the sum of the squares of what each client is off
that ratio, times the same factor.

That says nothing of a client unlike all others which the sample leaves out.  So there is no estimate if a large one is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf, sqrt
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen

from .keys import KeyFinder
from .live import Requester
from .trials import Trial

ESTIMATED: Final[Sequence[str]] = ("throttle_s", "throttled", "refused")
"""The columns of totals by client that are estimated."""

STANDARD_ERRORS: Final = 3.0
"""How far the bounds are from the estimate: clients are unequal, and normal bounds too narrow."""

MAX_ERROR: Final = 0.5
"""With wider bounds there is no estimate."""

MAX_LEFT_OUT: Final = 0.02
"""There is no estimate either if a client that is left out sent a larger share of all requests."""

Name = tuple[str, str]
"""The principal and the client id of a client."""


@frozen
class Sampled:
    """
    A sample of the clients.

    @ivar share: of the clients that were to be in it.
    @ivar chosen: how many requests of each are in it.
    @ivar everybody: how many each sent.
    """

    share: float
    chosen: Mapping[Name, int]
    everybody: Mapping[Name, int]

    @property
    def largestLeftOut(self) -> float:
        """
        The share of all requests of the largest client that is left out.
        """
        most = max((count - self.chosen.get(name, 0) for name, count in self.everybody.items()), default=0)
        return most / max(sum(self.everybody.values()), 1)

    def estimate(self, values: Mapping[Name, float]) -> tuple[float, float]:
        """
        Estimate a sum over all clients.

        @param values: of those in the sample, none of which is negative; absent ones are zero.
        @return: the estimate, and how far the sum may be from it, as a share of it: infinite if it is zero.
        """
        found, requests = sum(values.values()), sum(self.chosen.values())
        if not found:
            # Which may be chance.
            return 0.0, inf
        ratio = found / requests
        squares = sum((values.get(name, 0.0) - ratio * count) ** 2 for name, count in self.chosen.items())
        return ratio * sum(self.everybody.values()), STANDARD_ERRORS * sqrt((1 - self.share) * squares) / found

    def estimateAll(self, clients: pa.Table) -> Iterator[dict[str, Any]]:
        """
        Estimate what all clients would have done under each candidate.

        @param clients: L{admission.offline.simulate.tally.Totals.clients}, of what is to be estimated.
        @return: C{candidate}, C{column}, C{total} and C{error}; that is null if no client of the sample has any.
        """
        found: dict[tuple[str, str], dict[Name, float]] = {}
        for row in clients.select(["candidate", "principal", "client_id", *ESTIMATED]).to_pylist():
            name = row["principal"] or "", row["client_id"] or ""
            for column in ESTIMATED:
                found.setdefault((row["candidate"], column), {})[name] = row[column] or 0.0
        for (candidate, column), values in sorted(found.items()):
            total, error = self.estimate(values)
            yield {"candidate": candidate, "column": column, "total": total, "error": error if total else None}


def requestsOf(requesters: Mapping[Requester, int]) -> Counter[Name]:
    """
    How many requests each client sent.
    """
    counts: Counter[Name] = Counter()
    for (_, principal, clientId, *_), count in requesters.items():
        counts[principal, clientId] += count
    return counts


def keysBeyond(trial: Trial, chosen: Mapping[Requester, int], everybody: Mapping[Requester, int]) -> list[str]:
    """
    The keys of a policy that requests in a sample share with others, so that the sample does not tell what it would do.

    @param chosen: how many requests of each requester are in the sample.
    @param everybody: how many there are.
    """
    finder = KeyFinder(trial)
    inside, _ = finder.findAll(list(chosen))
    outside, _ = finder.findAll([each for each, count in everybody.items() if count > chosen.get(each, 0)])
    keys, others = ({key for found in each.values() for key in found} for each in (inside, outside))
    return sorted(keys & others)

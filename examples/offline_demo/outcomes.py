"""
What has become of clients, from recordings and from replays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from attrs import frozen

from admission.offline import CLOSED


@frozen
class Outcome:
    """
    What has become of a client's requests.

    @ivar requests: how many there were.
    @ivar throttled: how many of them were throttled.
    @ivar throttleSeconds: for how long in all, as the policy wanted it.
    @ivar heldSeconds: for how long in all, by whatever policy.
    @ivar refused: how many of them were refused.
    """

    requests: int = 0
    throttled: int = 0
    throttleSeconds: float = 0.0
    heldSeconds: float = 0.0
    refused: int = 0

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.requests + other.requests,
            self.throttled + other.throttled,
            self.throttleSeconds + other.throttleSeconds,
            self.heldSeconds + other.heldSeconds,
            self.refused + other.refused,
        )


Outcomes = Mapping[str, Outcome]
"""By client id."""


def inAll(outcomes: Outcomes) -> Outcome:
    """
    The outcome of all clients together.
    """
    return sum(outcomes.values(), Outcome())


def recorded(recording: Path, clientIds: Sequence[str]) -> Outcomes:
    """
    What really happened under the first policy of a broker.

    @param recording: the directory.
    @param clientIds: of whom.
    """
    columns = ["client_id", "kind", "policy_delays_us"]
    requests = pq.ParquetDataset(recording / "requests", partitioning=None).read(columns=columns)
    delays = [
        (clientId, (delaysUs or [0])[0])
        for clientId, kind, delaysUs in zip(*(requests[name].to_pylist() for name in columns), strict=True)
        if kind == "Produce"
    ]
    return counted(delays, clientIds)


def counted(delaysUs: Iterable[tuple[str, int]], clientIds: Sequence[str]) -> Outcomes:
    """
    Sum up single delays.

    @param delaysUs: for each request whose it was, and the delay in microseconds.
    @param clientIds: who is of interest.
    """
    requests, throttled, totalUs = (dict.fromkeys(clientIds, 0) for _ in range(3))
    for clientId, delayUs in delaysUs:
        if clientId in requests:
            requests[clientId] += 1
            throttled[clientId] += delayUs > 0
            totalUs[clientId] += delayUs
    return {each: Outcome(requests[each], throttled[each], totalUs[each] / 1e6) for each in clientIds}


def predicted(results: Path, label: str, clientIds: Sequence[str], mode: str = CLOSED) -> Outcomes:
    """
    What a replay says would have happened.

    @param results: what C{admission replay --out} was given.
    @param label: of the candidate.
    @param mode: of L{admission.offline.simulate.decisions}.
    """
    rows = pq.read_table(results / "replay_client.parquet", page_checksum_verification=True).to_pylist()
    names = ("requests", "throttled", "delay_s", "throttle_s", "refused")
    found = {
        row["client_id"]: Outcome(*(row[name] for name in names))
        for row in rows
        if (row["candidate"], row["mode"]) == (label, mode)
    }
    return {each: found.get(each, Outcome()) for each in clientIds}

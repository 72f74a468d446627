"""L{admission.offline.simulate.pool}."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from attrs import frozen
from hypothesis import given, strategies as st
from pyarrow import parquet as pq
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import IMemoryPool, IMemoryPoolFactory
from admission.offline.population import Population
from admission.offline.simulate import pooltrace
from admission.offline.simulate.candidates import Candidate, resolveCandidate
from admission.offline.simulate.pool import defaultOrder, replayPools
from admission.offline.simulate.pooltrace import POOL_COLUMNS
from admission.offline.simulate.totals import MINUTE_US
from admission.offline.syntheticserver import SyntheticServer, recordSynthetic
from admission.recording.arrow import arrowSchema
from admission.recording.tables import REQUESTS
from admission.testing.scriptedpool import ScriptedPool

SECOND = 1_000_000
WALL_US = 1_700_000_040 * SECOND
"""Where a minute begins."""

SCHEMA = pa.schema([arrowSchema(REQUESTS).field(name) for name in POOL_COLUMNS])


ORDER = defaultOrder()


def rowsOf(*requests: Mapping[str, Any]) -> pa.RecordBatch:
    """
    A batch of requests: of one byte each, in the order given, on a connection
    of their own at a time of their own, unless they say otherwise.
    """
    rows = []
    for place, request in enumerate(requests):
        arrivedUs = request.get("mono_us", place * SECOND)
        rows.append(
            {
                "broker_id": "0",
                "boot_id": "boot",
                "seq": place + 1,
                "ts": WALL_US + arrivedUs,
                "mono_us": arrivedUs,
                "gate_seed": 17,
                "conn_id": place,
                "peer": "192.0.2.1",
                "principal": "alice",
                "client_id": f"client {request.get('conn_id', place)}",
                "request_bytes": 1,
                "service_us": 0,
                "pool_wait_us": 0,
                "pool_hold_us": 0,
                "sent_mono_us": arrivedUs,
                "pool_used_bytes": 0,
                **request,
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@frozen
class Replayed:
    """
    What came of one candidate.

    @ivar clients: by client id.
    """

    total: dict[str, Any]
    steps: list[dict[str, Any]]
    clients: dict[str, dict[str, Any]]


@cache
def candidateFor(description: str) -> Candidate:
    """Looking for plug-ins takes longer than replaying a small recording."""
    return resolveCandidate(description, IMemoryPoolFactory)


def replay(
    description: str,
    *batches: pa.RecordBatch,
    horizons: Mapping[tuple[str, str], int] | None = None,
    stepUs: int = MINUTE_US,
) -> Replayed:
    """Put rows to a pool."""
    candidate = candidateFor(description)
    rows = [row for batch in replayPools(batches, [candidate], horizons, ORDER, stepUs) for row in batch.to_pylist()]
    found = {part: [row[part] for row in rows if row[part]] for part in ("total", "step", "client")}
    (total,) = found["total"]
    return Replayed(total, found["step"], {each["client_id"]: each for each in found["client"]})


class PoolTests(SynchronousTestCase):
    """Small recordings of which one can say what comes out."""

    def test_queue(self) -> None:
        """
        A request that finds nothing left waits until there is something again, and what was seen meanwhile is told by
        the minute, by wall time.
        """
        request = {"request_bytes": 100, "pool_hold_us": 50 * SECOND}
        rows = rowsOf(request, *({**request, "mono_us": 2 * SECOND} for _ in range(2)))
        # The last minute would otherwise end with the last arrival.
        replayed = replay("bounded:100B", rows, horizons={("0", "boot"): 160 * SECOND})
        total = replayed.total
        self.assertEqual((total["requests"], total["waits"], total["unserved"]), (3, 2, 0))
        # One of the others is let in after fifty seconds, the last after a hundred.
        waitsUs = [total[name] for name in ("wait_p50_us", "wait_p99_us", "wait_max_us")]
        self.assertEqual(waitsUs, [48 * SECOND, 98 * SECOND, 98 * SECOND])
        self.assertEqual(total["muted_us"], (48 + 98) * SECOND)
        self.assertEqual((total["peak_bytes"], total["span_us"], total["unreleased_bytes"]), (100, 160 * SECOND, 0))
        self.assertEqual(total["depleted_share"], round(150 / 160, 9))
        shown = [
            tuple(each[name] for name in ("used_max_bytes", "available_min_bytes", "depleted_share", "waiting_max"))
            for each in replayed.steps
        ]
        self.assertEqual(shown, [(100, 0, 1.0, 2), (100, 0, 1.0, 1), (100, 0, 0.75, 0)])
        self.assertEqual([each["muted_us"] // SECOND for each in replayed.steps], [48 + 58, 40, 0])
        self.assertEqual([each["begin"].timestamp() * SECOND - WALL_US for each in replayed.steps], [0, 6e7, 12e7])
        self.assertEqual([each["span_us"] for each in replayed.steps], [60 * SECOND, 60 * SECOND, 40 * SECOND])

    def test_steps(self) -> None:
        """In shorter steps the same is told, and no time of it is lost."""
        request = {"request_bytes": 100, "pool_hold_us": 50 * SECOND}
        rows = rowsOf(request, *({**request, "mono_us": 2 * SECOND} for _ in range(2)))
        horizons = {("0", "boot"): 160 * SECOND}
        minutes, steps = (replay("bounded:100B", rows, horizons=horizons, stepUs=us) for us in (MINUTE_US, 5 * SECOND))
        self.assertEqual(steps.total, minutes.total)
        self.assertEqual([each["span_us"] for each in steps.steps], [5 * SECOND] * 32)
        self.assertEqual([each["depleted_share"] for each in steps.steps], [1.0] * 30 + [0.0] * 2)
        self.assertEqual(steps.steps[-1]["begin"].timestamp() * SECOND - WALL_US, 155 * SECOND)

    def test_closedLoop(self) -> None:
        """
        What follows on a connection is as much later as the request before it
        was, and so is spared when that has to wait no longer.
        """
        hog = {"conn_id": 1, "request_bytes": 100, "pool_hold_us": 10 * SECOND}
        after = {"conn_id": 2, "request_bytes": 100}
        rows = rowsOf(
            hog, {**after, "mono_us": SECOND}, {**hog, "mono_us": 13 * SECOND}, {**after, "mono_us": 15 * SECOND}
        )
        # From ten on the second has memory, so its next request comes at 24 and not at 15, when it would find none.
        waits = replay("bounded:100B", rows, horizons={("0", "boot"): 60 * SECOND}).clients
        self.assertEqual((waits["client 2"]["waits"], waits["client 2"]["wait_us"]), (1, 9 * SECOND))
        recorded = [9 * SECOND if row == 1 else 0 for row in range(4)]
        withWait = rows.set_column(POOL_COLUMNS.index("pool_wait_us"), "pool_wait_us", pa.array(recorded, pa.int64()))
        again = replay("bounded:100B", withWait, horizons={("0", "boot"): 60 * SECOND}).clients["client 2"]
        # Recorded with that wait, it comes at 15 again, and waits until 23.
        self.assertEqual((again["waits"], again["wait_us"], again["wait_max_us"]), (2, 17 * SECOND, 9 * SECOND))
        # Without a bound it comes at 6, and nobody waits.
        self.assertEqual(replay("unbounded", withWait).total["waits"], 0)

    def test_unknownHold(self) -> None:
        """Where it is not known how long memory was held, it was while the request was worked on."""
        rows = rowsOf(
            {"pool_hold_us": None, "service_us": 5 * SECOND}, {"pool_hold_us": 0, "service_us": 5 * SECOND}, {}
        )
        replayed = replay("bounded:1B", rows, horizons={("0", "boot"): 60 * SECOND})
        self.assertEqual(replayed.clients["client 1"]["wait_us"], 4 * SECOND)
        self.assertEqual(replayed.clients["client 2"]["wait_us"], 3 * SECOND)

    def test_oversized(self) -> None:
        """
        What is larger than the pool hands out is counted, and holds nobody up,
        and what has no size needs no memory.
        """
        large = {"request_bytes": 101, "pool_hold_us": 50 * SECOND}
        rows = rowsOf(large, {"request_bytes": 100, "pool_hold_us": SECOND}, {"request_bytes": 0}, large)
        total = replay("bounded:100B", rows).total
        self.assertEqual((total["oversized"], total["waits"], total["requests"], total["peak_bytes"]), (2, 0, 4, 100))

    def test_charges(self) -> None:
        """What the recorded pool was charged besides requests is charged again."""
        rows = rowsOf(
            {"request_bytes": 200, "pool_hold_us": 9 * SECOND, "pool_used_bytes": 500},
            {"request_bytes": 200, "pool_hold_us": 9 * SECOND, "pool_used_bytes": 700},
            {"request_bytes": 200, "pool_hold_us": 9 * SECOND, "pool_used_bytes": 900},
        )
        total = replay("bounded:600B", rows, horizons={("0", "boot"): 60 * SECOND}).total
        # 500 are taken: the first request goes below nothing, so the others wait for it, one by one.
        self.assertEqual((total["waits"], total["wait_max_us"], total["peak_bytes"]), (2, 16 * SECOND, 700))
        self.assertEqual(total["unreleased_bytes"], 0)
        self.assertEqual(replay("bounded:1100B", rows).total["waits"], 0)

    def test_horizon(self) -> None:
        """What would come behind the end does not count, and a request that waits at the end has waited until then."""
        rows = rowsOf(*({"request_bytes": 100, "pool_hold_us": 50 * SECOND} for _ in range(4)))
        replayed = replay("bounded:100B", rows, horizons={("0", "boot"): 2 * SECOND})
        total = replayed.total
        self.assertEqual((total["requests"], total["unserved"], total["waits"]), (3, 2, 2))
        self.assertEqual((total["wait_max_us"], total["unreleased_bytes"]), (SECOND, 0))
        self.assertEqual(replayed.clients["client 3"]["requests"], 0)

    def test_exhausted(self) -> None:
        """A connection that is done more than a second early might have sent more."""
        waited = {"conn_id": 1, "pool_wait_us": 3 * SECOND}
        rows = rowsOf(waited, {"conn_id": 1, "mono_us": 5 * SECOND}, {"conn_id": 2, "mono_us": 6 * SECOND})
        total = replay("unbounded", rows).total
        self.assertEqual((total["connections"], total["exhausted_connections"]), (2, 1))

    def test_runs(self) -> None:
        """Each run of each server is for itself, and so is each candidate."""
        requests = [{"request_bytes": 100, "pool_hold_us": 50 * SECOND} for _ in range(3)]
        runs = [rowsOf(*({**each, "boot_id": run} for each in requests[:count])) for run, count in (("a", 1), ("b", 3))]
        both = pa.Table.from_batches(runs).combine_chunks().to_batches()
        candidates = [candidateFor(each) for each in ("bounded:100B", "plenty=bounded:1k")]
        rows = [row for batch in replayPools(both, candidates) for row in batch.to_pylist() if row["total"]]
        found = {(row["boot_id"], row["candidate"]): row["total"]["waits"] for row in rows}
        self.assertEqual(
            found, {("a", "bounded:100B"): 0, ("a", "plenty"): 0, ("b", "bounded:100B"): 2, ("b", "plenty"): 0}
        )

    def test_nothing(self) -> None:
        """Of nothing comes nothing, and one request is enough."""
        candidates = [candidateFor("unbounded")]
        self.assertEqual(list(replayPools([], candidates)), [])
        self.assertEqual(list(replayPools([rowsOf()], candidates)), [])
        replayed = replay("unbounded", rowsOf({}))
        self.assertEqual((replayed.total["requests"], replayed.total["wait_max_us"], len(replayed.steps)), (1, None, 1))

    def test_holders(self) -> None:
        """
        The pool is told who asked: the principal, or else the address of the
        connection, or nobody where neither was recorded.
        """
        asked: list[tuple[int, str]] = []

        class Told:
            label = "told"

            def build(self, clock: Any) -> IMemoryPool:
                pool = ScriptedPool()
                tryAllocate = pool.tryAllocate

                def told(sizeBytes: int, holder: str = "") -> Any:
                    asked.append((sizeBytes, holder))
                    return tryAllocate(sizeBytes, holder)

                pool.tryAllocate = told  # type: ignore[method-assign]
                return pool

        people = [("alice", "192.0.2.1"), ("ANONYMOUS", "192.0.2.2"), (None, "192.0.2.3"), ("", None)]
        rows = [
            {"principal": principal, "peer": peer, "request_bytes": place}
            for place, (principal, peer) in enumerate(people, 1)
        ]
        list(replayPools([rowsOf(*rows)], [Told()]))
        self.assertEqual(asked, [(1, "alice"), (2, "192.0.2.2"), (3, "192.0.2.3"), (4, "")])


traces = st.lists(
    st.fixed_dictionaries(
        {
            "mono_us": st.integers(0, 5 * SECOND),
            "conn_id": st.integers(1, 5),
            "request_bytes": st.integers(0, 120),
            "pool_wait_us": st.integers(0, SECOND // 2),
            "pool_hold_us": st.one_of(st.none(), st.integers(0, 2 * SECOND)),
            "service_us": st.integers(0, SECOND),
            "pool_used_bytes": st.integers(0, 300),
        }
    ),
    min_size=1,
    max_size=30,
).map(lambda requests: sorted(requests, key=lambda request: request["mono_us"]))
"""Requests in the order of their arrival, however little sense they make."""


class AnyTraceTests(SynchronousTestCase):
    """What holds for every recording."""

    @given(traces, st.sampled_from(["bounded:100B", "bounded:50B:strict=yes", "bounded:1k:max=60B", "fair:100B"]))
    def test_conserved(self, requests: Sequence[Mapping[str, Any]], pool: str) -> None:
        """
        All memory comes back, every request that waited did so for some time,
        and given time every request is served.
        """
        replayed = replay(pool, rowsOf(*requests), horizons={("0", "boot"): 1000 * SECOND})
        total = replayed.total
        self.assertEqual((total["unreleased_bytes"], total["unserved"]), (0, 0))
        self.assertEqual(total["requests"], len(requests))
        self.assertEqual(total["muted_us"], sum(each["wait_us"] for each in replayed.clients.values()))
        self.assertEqual(total["waits"], sum(each["waits"] for each in replayed.clients.values()))
        self.assertEqual(sum(each["span_us"] for each in replayed.steps), 1000 * SECOND - requests[0]["mono_us"])

    @given(traces, st.integers(1, 30), st.integers(1, 7))
    def test_batches(self, requests: Sequence[Mapping[str, Any]], rowCount: int, chunkRows: int) -> None:
        """How rows are cut into batches, and read back, makes no difference."""
        rows = rowsOf(*requests)
        whole = replay("bounded:100B", rows)
        parts = [rows.slice(start, rowCount) for start in range(0, rows.num_rows, rowCount)]
        original = pooltrace._CHUNK_ROWS
        pooltrace._CHUNK_ROWS = chunkRows
        try:
            self.assertEqual(replay("bounded:100B", *parts), whole)
        finally:
            pooltrace._CHUNK_ROWS = original


class SyntheticTests(SynchronousTestCase):
    """Replayed, a recording is what it was."""

    def record(self, pool: str) -> pa.Table:
        """What a small population did with a pool."""
        directory = self.mktemp()
        population = Population(seed=13, clients=12, connections=3, seconds=60.0, requests=3000, largestBytes=256 << 10)
        recordSynthetic(directory, SyntheticServer(population, ["client-bytes:produce=200k:fetch=1M"], pool))
        table = pq.ParquetDataset(str(Path(directory, "requests")), partitioning=None).read(columns=list(POOL_COLUMNS))
        return table.sort_by([("mono_us", "ascending"), ("seq", "ascending")])

    def test_recordedPool(self) -> None:
        """With the pool that it was recorded with, each client waits as often and as long as it did."""
        table = self.record("bounded:400KiB")
        horizons = {("synthetic", "synthetic-13"): 60 * SECOND}
        replayed = replay("bounded:400KiB", *table.to_batches(500), horizons=horizons)
        waits: dict[str, list[int]] = {}
        for clientId, waitUs in _waitsIn(table):
            waits.setdefault(clientId, []).append(waitUs)
        self.assertGreater(sum(map(len, waits.values())), 100)
        found = {
            clientId: (each["waits"], each["wait_us"], each["wait_max_us"])
            for clientId, each in replayed.clients.items()
            if each["waits"]
        }
        self.assertEqual(found, {clientId: (len(each), sum(each), max(each)) for clientId, each in waits.items()})
        self.assertEqual(replayed.total["exhausted_connections"], 0)


def _waitsIn(table: Iterable[Any] | pa.Table) -> Iterator[tuple[str, int]]:
    """The clients that had to wait, and for how long."""
    for clientId, waitUs in zip(table["client_id"].to_pylist(), table["pool_wait_us"].to_pylist(), strict=True):
        if waitUs:
            yield clientId, waitUs

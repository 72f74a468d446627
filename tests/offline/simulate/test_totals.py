"""Tests for L{admission.offline.simulate.totals}."""

from __future__ import annotations

from math import ceil
from random import Random
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given, settings, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.offline.simulate.decisions import DECISIONS
from admission.offline.simulate.totals import (
    DELAY_BOUNDS_US,
    PLACE,
    TIMES,
    TOTAL_COLUMNS,
    addUp,
    countTimes,
    mergeTimes,
)

MINUTE_US = 60_000_000


def decision(**changes: Any) -> dict[str, Any]:
    """What became of a request."""
    return {
        "candidate": "a",
        "mode": "closed",
        "broker_id": "1",
        "boot_id": "boot",
        "replay_key": "k",
        "seq": 1,
        "conn_id": 1,
        "principal": "user",
        "client_id": "app",
        "kind": "Produce",
        "at_us": 5,
        "wall_us": 90 * MINUTE_US + 5,
        "request_bytes": 100,
        "response_bytes": 10,
        "delay_us": 0,
        "held_us": 0,
        "is_refused": False,
        "is_barred": False,
        "is_poisoned": False,
        "is_first": False,
        "is_exhausted": False,
        **changes,
    }


def randomDecisions(seed: int, count: int) -> list[dict[str, Any]]:
    """Decisions of all sorts."""
    random = Random(seed)
    return [
        decision(
            candidate=random.choice("ab"),
            mode=random.choice(["open", "closed"]),
            replay_key=random.choice(["k", "l", None]),
            client_id=random.choice(["app", "other", ""]),
            at_us=random.randrange(10**8),
            wall_us=random.randrange(3 * MINUTE_US),
            request_bytes=random.randrange(1000),
            delay_us=random.choice([0, 0, random.randrange(1, 10**10)]),
            held_us=random.randrange(10**7),
            is_refused=random.random() < 0.1,
            is_barred=random.random() < 0.1,
            is_poisoned=random.random() < 0.1,
            is_first=random.random() < 0.3,
            is_exhausted=random.random() < 0.1,
        )
        for _ in range(count)
    ]


def minutesOf(rows: list[dict[str, Any]], batchRows: int = 100) -> pa.RecordBatch:
    """Count decisions."""
    batches = pa.Table.from_pylist(rows, DECISIONS).to_batches(batchRows)
    return mergeTimes(countTimes(batches))


class MinutesTests(SynchronousTestCase):
    """L{countTimes} and L{mergeTimes}."""

    def test_one(self) -> None:
        """A minute of a client, in which refusals are counted, and their delays are no time throttled."""
        rows = [
            decision(is_first=True),
            decision(delay_us=1000, held_us=2000, wall_us=91 * MINUTE_US - 1),
            decision(delay_us=5000, held_us=5000, is_refused=True, at_us=9, is_exhausted=True),
            decision(held_us=3000, is_barred=True, is_poisoned=True),
        ]
        [row] = minutesOf(rows).to_pylist()
        bins = row.pop("delay_bins")
        self.assertEqual(row.pop("begin").isoformat(), "1970-01-01T01:30:00+00:00")
        self.assertEqual(
            row,
            {
                **{name: rows[0][name] for name in PLACE[:-1]},
                "requests": 4,
                "throttled": 1,
                "refused": 2,
                "poisoned": 1,
                "demanded_bytes": 440,
                "admitted_bytes": 220,
                "delay_us": 1000,
                "throttle_us": 2000,
                "connections": 1,
                "exhausted": 1,
                "most_delay_us": 1000,
                "most_throttle_us": 2000,
                "exhausted_from_us": 9,
            },
        )
        self.assertEqual((bins[0], sum(bins[1:]), sum(bins)), (3, 1, 4))

    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 10**6), st.integers(0, 120), st.integers(1, 50), st.integers(1, 4))
    def test_merging(self, seed: int, count: int, batchRows: int, parts: int) -> None:
        """However decisions are spread over batches and tasks, the sums are those of a plain count."""
        rows = randomDecisions(seed, count)
        merged = mergeTimes(minutesOf(rows[part::parts], batchRows) for part in range(parts))
        found = {(*(row[name] for name in PLACE[:-1]), row["begin"].timestamp()): row for row in merged.to_pylist()}
        self.assertEqual(len(found), merged.num_rows)
        expected: dict[Any, list[dict[str, Any]]] = {}
        for row in rows:
            place = (*(row[name] for name in PLACE[:-1]), row["wall_us"] // MINUTE_US * 60.0)
            expected.setdefault(place, []).append(row)
        self.assertEqual(set(found), set(expected))
        for place, row in found.items():
            here = expected[place]
            admitted = [each for each in here if not (each["is_refused"] or each["is_barred"])]
            self.assertEqual(row["requests"], len(here))
            self.assertEqual(row["throttled"], sum(each["held_us"] > 0 for each in admitted))
            self.assertEqual(row["refused"], len(here) - len(admitted))
            self.assertEqual(row["delay_us"], sum(each["delay_us"] for each in admitted))
            self.assertEqual(row["throttle_us"], sum(each["held_us"] for each in admitted))
            self.assertEqual(row["admitted_bytes"], sum(each["request_bytes"] + 10 for each in admitted))
            self.assertEqual(row["most_throttle_us"], max((each["held_us"] for each in admitted), default=0))
            self.assertEqual(sum(row["delay_bins"]), len(here))
            ends = [each["at_us"] for each in here if each["is_exhausted"]]
            self.assertEqual(row["exhausted_from_us"], min(ends, default=None))

    def test_nothing(self) -> None:
        """Nothing comes to nothing."""
        self.assertEqual(mergeTimes([]).schema, TIMES)
        self.assertEqual(list(countTimes([])), [])


class TotalTests(SynchronousTestCase):
    """L{addUp}."""

    def test_forecast(self) -> None:
        """
        With more than a twentieth of connections that ran out of requests there is no forecast for any client; open
        loop there is never one.
        """
        for exhausted, isForecast in [(0, True), (2, True), (3, False)]:
            rows = [
                decision(
                    client_id=f"client {number % 2}", is_first=True, is_exhausted=number < exhausted, at_us=number + 7
                )
                for number in range(40)
            ]
            totals = addUp(minutesOf(rows), ["client_id"]).to_pylist()
            self.assertEqual([row["client_id"] for row in totals], ["client 0", "client 1"])
            for row in totals:
                self.assertEqual((row["requests"], row["connections"], row["exhausted"]), (20, 40, exhausted))
                self.assertEqual((row["exhausted_share"], row["is_forecast"]), (exhausted / 40, isForecast))
                self.assertEqual(row["exhausted_from_us"], 7 if exhausted else None)
        [opened] = addUp(minutesOf([decision(mode="open")]), []).to_pylist()
        self.assertFalse(opened["is_forecast"])

    def test_whoRanOut(self) -> None:
        """
        One connection of many may have most of the bytes, or of the time throttled: if that runs out there is no
        forecast.
        """
        others = [decision(client_id="small", is_first=True, request_bytes=10, response_bytes=0) for _ in range(40)]
        for large, isForecast in (
            ({"request_bytes": 20, "response_bytes": 0}, True),
            ({"request_bytes": 200, "response_bytes": 0}, False),
            ({"request_bytes": 20, "response_bytes": 0, "held_us": 1}, False),
        ):
            rows = [*others, decision(client_id="large", is_first=True, is_exhausted=True, **large)]
            [total] = addUp(minutesOf(rows), []).to_pylist()
            self.assertLess(total["exhausted_share"], 0.03)
            self.assertEqual((total["is_forecast"], total["ran_out_share"] <= 0.05), (isForecast, isForecast))
            clients = {row["client_id"]: row for row in addUp(minutesOf(rows), ["client_id"]).to_pylist()}
            self.assertEqual([clients[name]["ran_out_share"] for name in ("large", "small")], [1.0, 0.0])
            self.assertEqual({row["is_forecast"] for row in clients.values()}, {isForecast})

    def test_otherThreshold(self) -> None:
        """How many are too many can be said."""
        rows = [decision(is_first=True, is_exhausted=number < 3) for number in range(40)]
        self.assertEqual(addUp(minutesOf(rows), [], maxExhaustedShare=0.1)["is_forecast"].to_pylist(), [True])

    def test_columns(self) -> None:
        """Times are in seconds, and everything that is told apart comes first."""
        rows = [decision(delay_us=1_500_000, held_us=2_000_000), decision(candidate="b")]
        totals = addUp(minutesOf(rows), ["candidate", "replay_key"])
        self.assertEqual(totals.column_names, ["candidate", "mode", "replay_key", *(name for name, _ in TOTAL_COLUMNS)])
        first, second = totals.to_pylist()
        self.assertEqual((first["delay_s"], first["throttle_s"], first["most_delay_s"]), (1.5, 2.0, 1.5))
        self.assertEqual((second["candidate"], second["delay_s"]), ("b", 0.0))

    @given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200))
    def test_percentiles(self, delays: list[int]) -> None:
        """A percentile is no less than the exact one, and no more than a range above it."""
        [total] = addUp(minutesOf([decision(held_us=delay) for delay in delays]), []).to_pylist()
        for name, share in (("p50_throttle_s", 0.5), ("p99_throttle_s", 0.99)):
            exact = sorted(delays)[ceil(share * len(delays)) - 1]
            bound = min((bound for bound in DELAY_BOUNDS_US if bound >= exact), default=10**10)
            self.assertGreaterEqual(total[name] * 1e6, exact - 1e-3)
            self.assertLessEqual(total[name] * 1e6, bound + 1e-3)

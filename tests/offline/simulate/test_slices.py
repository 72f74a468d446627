"""Tests for L{admission.offline.simulate.slices}."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given, settings, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.offline.simulate.candidates import resolveCandidates
from admission.offline.simulate.slices import CUTS, SPANS, addSlices, countSpans, findCuts
from admission.offline.simulate.trials import Trial, TrialKey, planTrials
from tests.kit.replaymodel import Client, Recording, Step, openLoop, population, serve

SECOND = 1_000_000


def pausing(pauseSeconds: float, every: int = 40) -> Recording:
    """A client that sends fast, and now and then nothing for a while."""

    def steps(client: Client) -> Iterator[Step]:
        random = Random(5)
        for number in range(10**9):
            thinkUs = random.randrange(1, 200_000)
            pauseUs = round(pauseSeconds * SECOND * random.uniform(0.9, 1.4)) if number % every == every - 1 else 0
            yield Step(thinkUs + pauseUs, random.randrange(1, 20_000), 100, 100)

    return serve({"client-bytes": "client-bytes:produce=1M"}, population(1, 1), steps, 400 * SECOND)


class SlicesTests(SynchronousTestCase):
    """A key is cut only where that changes nothing."""

    def replay(self, recording: Recording, *texts: str, minRequests: int = 1) -> dict[str, tuple[pa.Table, int]]:
        """
        Replay candidates in slices.

        @return: for each its decisions, and how many slices there were.
        """
        found: dict[str, tuple[pa.Table, int]] = {}
        for key, trial in planTrials(resolveCandidates(texts), recording.runs()).items():
            one = {key: trial}
            sliced: set[int] = set()

            def cut(
                arrivals: list[pa.RecordBatch], one: dict[TrialKey, Trial] = one, sliced: set[int] = sliced
            ) -> Iterable[pa.RecordBatch]:
                cuts = findCuts(countSpans(arrivals, one), one, minRequests)
                for batch in addSlices(arrivals, cuts):
                    sliced.update(batch.column("slice").to_pylist())
                    yield batch

            found[key[0]] = openLoop(recording, one, prepare=cut), len(sliced)
            self.assertEqual(found[key[0]][0], openLoop(recording, one))
        return found

    def test_windows(self) -> None:
        """Sampled windows are cut where the client was idle for their horizon, without a single other decision."""
        recording = pausing(18.0)
        decisions, slices = self.replay(recording, "client-bytes:produce=20k")["client-bytes:produce=20k"]
        self.assertGreater(slices, 5)
        self.assertGreater(sum(delay > 0 for delay in decisions["delay_us"].to_pylist()), 200)

    def test_bucket(self) -> None:
        """A bucket may owe for ever, so it is never cut."""
        text = "client-bytes:produce=20k:algorithm=bucket"
        self.assertEqual(self.replay(pausing(60.0), text)[text][1], 1)

    def test_busy(self) -> None:
        """A client that is never idle for long enough is not cut."""
        text = "client-bytes:produce=20k"
        self.assertEqual(self.replay(pausing(6.0), text)[text][1], 1)

    def test_minRequests(self) -> None:
        """Slices are not smaller than they are to be."""
        recording = pausing(18.0)
        text = "client-bytes:produce=20k"
        slices = self.replay(recording, text, minRequests=len(recording.rows) // 3)[text][1]
        self.assertIn(slices, (2, 3))

    @settings(max_examples=8, deadline=None)
    @given(st.floats(8.0, 30.0), st.integers(5, 60), st.sampled_from(["5", "11"]))
    def test_exact(self, pauseSeconds: float, every: int, windows: str) -> None:
        """Whenever the client pauses, slices decide what the whole decides."""
        self.replay(pausing(pauseSeconds, every), f"client-bytes:produce=20k:windows={windows}")

    def test_nothing(self) -> None:
        """Without requests there are no spans and no cuts."""
        self.assertEqual(findCuts([], {}), pa.RecordBatch.from_pylist([], CUTS))
        self.assertEqual(findCuts([pa.RecordBatch.from_pylist([], SPANS)], {}), pa.RecordBatch.from_pylist([], CUTS))

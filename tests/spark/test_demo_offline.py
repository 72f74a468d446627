"""
The offline demonstration: a recording of a real broker is replayed as it was, and what that says of another policy is
what then really happens.
"""

from __future__ import annotations

import atexit
import io
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from unittest import mock

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from attrs import evolve, frozen
from twisted.trial.unittest import SynchronousTestCase

from admission.offline.simulate.candidates import resolveCandidates
from admission.offline.simulate.runs import Run
from admission.offline.simulate.trials import planTrials
from admission.recording.schema import CONNECTIONS, LIMITS, SENSORS, Table
from admission.recording.tables import REQUESTS
from examples.offline_demo.__main__ import CANDIDATES, main
from examples.offline_demo.counterfactual import IN_FORCE, difference, run
from examples.offline_demo.libraries import LIBRARIES
from examples.offline_demo.outcomes import Outcome, counted, inAll, recorded
from examples.offline_demo.seeded import Crowd
from tests.kit.brokerprocess import ENVIRONMENT
from tests.kit.browser import consoleErrors, openBrowser
from tests.kit.identitygate import gate, readRecording
from tests.kit.longform import longForm
from tests.kit.pictures import arePicturesTaken, takePictures
from tests.kit.replaymodel import Recording, closedLoop, openLoop
from tests.kit.sparksession import sharedSession

CROWD = Crowd(connections=14, seconds=7.0)
STRICTER = "client-bytes:produce=50k"
DEMO_SECONDS = "20"
PICTURED_SECONDS = "60"

_PLOTS = (
    "return [...document.querySelectorAll('svg')].filter((each) => each.querySelectorAll('path').length > 3).length"
)


def rowsOf(recording: Path, table: Table) -> list[dict[str, object]]:
    """The rows of a table."""
    rows: list[dict[str, object]] = (
        pq.ParquetDataset(recording / table.name, partitioning=None).read().sort_by("seq").to_pylist()
    )
    return rows


@frozen
class RealRun:
    """What is left of a real broker and a crowd."""

    path: Path
    answers: Counter[str]

    def asRecording(self) -> Recording:
        """As replays of the model take it."""
        return readRecording(str(self.path))


@cache
def realRuns() -> Mapping[str, RealRun]:
    """Let the crowd work under either policy, by which they are found; at the same time, and once for all tests."""
    scratch = tempfile.TemporaryDirectory(prefix="admission-demo-", ignore_cleanup_errors=True)
    atexit.register(scratch.cleanup)
    policies = [IN_FORCE, STRICTER]
    with mock.patch.dict("os.environ", ENVIRONMENT), ThreadPoolExecutor(len(policies)) as threads:
        runs = threads.map(lambda policy: run(Path(scratch.name, str(policies.index(policy))), policy, CROWD), policies)
        return {policy: RealRun(*each) for policy, each in zip(policies, runs, strict=True)}


def withoutGaps(run: Run) -> Run:
    """The model counts the events of two tables only; L{RealRecordingTests.test_complete} that of all."""
    return evolve(run, gaps=[])


class RealRecordingTests(SynchronousTestCase):
    """What was recorded of a real broker with real connections."""

    def test_complete(self) -> None:
        """No event is missing, and every answer that clients have counted is there."""
        real = realRuns()[IN_FORCE]
        numbers = sorted(
            int(str(row["seq"]))
            for table in (REQUESTS, CONNECTIONS, LIMITS, SENSORS)
            for row in rowsOf(real.path, table)
        )
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))
        for clientId, outcome in recorded(real.path, CROWD.clientIds).items():
            # Each connection may have been waiting for an answer when its time was over.
            self.assertGreater(real.answers[clientId], CROWD.connections)
            self.assertIn(outcome.requests - real.answers[clientId], range(CROWD.connections + 1))

    def test_gate(self) -> None:
        """
        The policy that was in force says what it said, in more than a hundred decisions to throttle a client, however
        slow the machine is.
        """
        for each in gate(realRuns()[IN_FORCE].asRecording(), withoutGaps):
            self.assertGreaterEqual(each.throttled, 100)
            self.assertGreaterEqual(each.matchShare, 0.999, each.inWords())
            self.assertTrue(each.isTrusted, each.inWords())

    def test_forecast(self) -> None:
        """
        What a stricter policy does to the same clients is what the closed-loop replay says, and the open-loop replay is
        far from it.
        """
        truth = inAll(recorded(realRuns()[STRICTER].path, CROWD.clientIds))
        recording = realRuns()[IN_FORCE].asRecording()
        trials = planTrials(resolveCandidates([STRICTER]), [*map(withoutGaps, recording.runs())])

        def forecast(replay: Callable[..., pa.Table]) -> Outcome:
            decisions = replay(recording, trials)
            delays = zip(decisions["client_id"].to_pylist(), decisions["delay_us"].to_pylist(), strict=True)
            return inAll(counted(delays, CROWD.clientIds))

        closed, opened = forecast(closedLoop), forecast(openLoop)
        # It comes within a few percent; this is for machines that are busy in one of the runs.
        self.assertTrue(0.5 < closed.requests / truth.requests < 2, (closed, truth))
        self.assertTrue(0.5 < closed.throttleSeconds / truth.throttleSeconds < 2, (closed, truth))
        self.assertGreater(opened.throttleSeconds, 5 * truth.throttleSeconds)


class CrowdTests(SynchronousTestCase):
    """Clients that can be had again."""

    def test_again(self) -> None:
        """Every connection asks for the same again, and no two for the same."""
        first, again = ([[stream.next() for _ in range(20)] for stream in CROWD.streams()] for _ in range(2))
        self.assertEqual(first, again)
        self.assertEqual(len({tuple(drafts) for drafts in first}), len(CROWD.clientIds) * CROWD.connections)
        other = [[stream.next() for _ in range(20)] for stream in evolve(CROWD, seed=8).streams()]
        self.assertNotEqual(first, other)

    def test_difference(self) -> None:
        """Predictions are compared with what is true."""
        self.assertEqual(difference(90.0, 100.0), "-10.0%")
        self.assertEqual(difference(1.0, 0.0), "all")
        self.assertEqual(difference(0.0, 0.0), "-")


class DemonstrationTests(SynchronousTestCase):
    """The demonstration as a person starts it, in its short form."""

    def demonstrate(self, directory: Path, seconds: str = DEMO_SECONDS) -> tuple[int, str]:
        """
        Run it.

        @return: its exit status, and what it says.
        """
        said = io.StringIO()
        with (
            mock.patch.dict("os.environ", ENVIRONMENT),
            mock.patch.object(sys, "stderr", said),
            mock.patch.object(sys, "stdout", said),
        ):
            return main(["--seconds", seconds, "--out", str(directory)]), said.getvalue()

    @longForm
    def test_report(self) -> None:
        """
        It ends with a page about its candidates, which a browser shows with its plots and without an error, and says
        what the page begins with.
        """
        sharedSession()
        # The page says where the recording is, and is pictured.
        scratch = tempfile.TemporaryDirectory(prefix="admission-")
        self.addCleanup(scratch.cleanup)
        directory = Path(scratch.name, "demo")
        status, said = self.demonstrate(directory, PICTURED_SECONDS if arePicturesTaken() else DEMO_SECONDS)
        self.assertEqual(status, 0, said)
        report = directory / "results" / "report.html"
        self.assertTrue(said.endswith(f"the report is {report}\n"), said)
        self.assertRegex(
            said,
            r"orders would have waited [\d.]+ s instead of [\d.]+ s for its job .*, and nobody else would wait longer",
        )
        users = {row["principal"] for row in rowsOf(directory / "recording", REQUESTS) if row["kind"] == "Produce"}
        self.assertEqual({*LIBRARIES}, users)
        with openBrowser() as browser:
            browser.get(report.as_uri())
            self.assertEqual(consoleErrors(browser), [])
            self.assertGreaterEqual(browser.execute_script(_PLOTS), 2)
            text = browser.execute_script("return document.body.innerText")
            if arePicturesTaken():
                takePictures(browser, "report", maxHeight=1800)
        for candidate in CANDIDATES:
            self.assertIn(candidate.partition("=")[0], text)
        # Terminal and page begin with the same advice.
        [advice] = re.findall(
            r"^Set client-bytes:produce=200k \(doubled\) if the server can take more: .*$", said, re.MULTILINE
        )
        self.assertIn(advice, text)

    def test_occupied(self) -> None:
        """Where there is something already nothing is overwritten, and a sentence says what to do."""
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        status, said = self.demonstrate(directory)
        self.assertEqual(status, 1)
        self.assertIn(f"{directory} is there already; remove it, or name another place with --out", said)
        self.assertEqual(list(directory.iterdir()), [])

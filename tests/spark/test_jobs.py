"""
Tests for L{admission.offline.jobs}, L{admission.offline.evaluation},
L{admission.offline.survey}, L{admission.offline.running} and the commands that
are made of them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

from attrs import evolve
from pyarrow import parquet  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from admission.cli import FAILED, AdmissionOptions, main
from admission.interfaces import DEFAULT, IMemoryPoolFactory
from admission.offline import (
    CLOSED,
    OPEN,
    Question,
    Selection,
    Work,
    jobs,
    replay,
    resolveCandidate,
    resolveCandidates,
    running,
)
from admission.offline.evaluation import Evaluation
from admission.offline.failures import JavaMissing, OutputError, ServerMissing, SparkMissing, TraceError
from admission.offline.missing import Missing
from admission.offline.outputtables import OUTPUTS
from admission.offline.population import Population
from admission.offline.recording import Recording
from admission.offline.running import Progress, lastWords, runJob
from admission.offline.simulate.totals import MAX_EXHAUSTED_SHARE
from admission.offline.simulate.trials import BASELINE
from admission.offline.survey import DROPPED, countDropped, cutRuns, limitsFromTheStart
from admission.offline.syntheticserver import BEGIN_SECONDS, BROKER_ID, SyntheticServer, recordSynthetic
from admission.recording import RequestEvent
from admission.recording.events import LimitEvent, Origin, SensorSample
from admission.recording.recordlayout import SLOT_BYTES
from admission.recording.segments import SUFFIX
from admission.recording.sharedusage import SHARED, TOLD_BY
from admission.recording.tables import REQUESTS
from pyspark_admission.files import SEGMENTS, isRecording
from tests.kit import replaypolicies
from tests.kit.checkout import ROOT
from tests.kit.keptevents import Kept
from tests.kit.recordings import WALL_SECONDS, writeRecording
from tests.kit.sparksession import sharedSession

SILENT = Progress(lambda line: None)

_SEGMENTS = 5

_WITHOUT_SPARK = """
import sys
from admission.cli import COMMANDS
for command in COMMANDS:
    command.makeOptions(), command.resolve()
assert not {"pyspark", "pyarrow", "pandas"} & set(sys.modules), sorted(sys.modules)
"""


class CommandTests(SynchronousTestCase):
    """What the commands are told, and how they fail."""

    def setUp(self) -> None:
        """Catch what is written."""
        self.stdout, self.stderr = StringIO(), StringIO()
        self.patch(sys, "stdout", self.stdout)
        self.patch(sys, "stderr", self.stderr)

    def parse(self, line: str) -> Any:
        """The options of a command line."""
        options: Any = AdmissionOptions()
        options.parseOptions(shlex.split(line))
        return options.subOptions

    def assertFails(self, line: str, words: str) -> None:
        """A command ends with a sentence in which these words are."""
        self.stderr.truncate(0)
        self.stderr.seek(0)
        self.assertEqual(main(shlex.split(line)), FAILED)
        [sentence] = self.stderr.getvalue().splitlines()
        self.assertIn(words, sentence)

    def recording(self) -> str:
        """A directory that looks like a recording and has nothing in it."""
        directory = Path(self.mktemp())
        directory.joinpath(SEGMENTS).mkdir(parents=True)
        self.assertTrue(isRecording(str(directory)))
        return str(directory)

    def test_options(self) -> None:
        """Candidates and pools may have labels, and the directory comes first or last."""
        words = (
            "--out there --candidate client-bytes:produce=4M --candidate mean=client-bytes:produce=1M "
            "--pool bounded:32MiB --mode closed,open --from 2026-03-01 --to 2026-03-02"
        )
        for line in (f"evaluate here {words}", f"replay {words} here"):
            options = self.parse(line)
            self.assertEqual([each.label for each in options["candidate"]], ["client-bytes:produce=4M", "mean"])
            self.assertEqual([each.description for each in options["pool"]], ["bounded:32MiB"])
            self.assertEqual(
                (options["directory"], options["out"], options["mode"]), ("here", "there", ["closed", "open"])
            )
        self.assertEqual(self.parse("audit here --out there --until 2026-03-02")["to"], "2026-03-02")
        self.assertEqual(self.parse("audit here --out file:///there")["out"], "/there")
        self.assertEqual(self.parse("report s3a://there/out/")["out"], "s3a://there/out")

    def test_mistakes(self) -> None:
        """What makes no sense is refused with a sentence before Spark is started."""
        for line, words in (
            ("evaluate --out there --candidate client-bytes", "name one directory with a recording"),
            ("aggregate here", "say where results go: --out OUT"),
            ("evaluate here --out there", "say what to try: --candidate "),
            ("evaluate here --out there --candidate client-byte:produce=4M", "no quota policy is called 'client-byte'"),
            ("evaluate here --out there --candidate client-bytes:produce=fast", "'fast' is not a rate"),
            ("evaluate here --out there --candidate client-bytes:fast=4M", "expected client-bytes[:received=RATE]"),
            ("replay here --out there --pool bounded:much", "--pool: "),
            ("replay here --out there --pool bounded:1M --pool bounded:1M", "two are called 'bounded:1M'"),
            (
                "replay here --out there --pool bounded:1M --mode ajar",
                "--mode ajar: write closed, open, or closed,open",
            ),
            ("aggregate here --out there --stream --sample 10%", "leave --sample out"),
            ("replay here --out there --pool bounded:1M --sample 10%", "--pool is shared by all clients, and --sample"),
            ("aggregate here --out s3a://there/out --stream", "s3a://there/out is elsewhere; name a directory"),
            ("audit here --out ftp://there", "ftp://there is in storage of an unknown kind"),
            ("audit here --out there --master local --remote sc://there", "both say where Spark runs; give one"),
            ("audit here --out there --master there:7077", "--master there:7077: write spark://HOST:7077"),
            ("audit here --out there --remote spark://there", "--remote spark://there: write sc://HOST:15002"),
            ("report", "name one directory with results"),
            ("report ftp://there", "ftp://there is in storage of an unknown kind"),
        ):
            error = self.assertRaises(UsageError, self.parse, line)
            self.assertIn(words, str(error))
            self.assertNotIn("\n", str(error))

    def test_saidTwice(self) -> None:
        """Where Spark runs is not said both by an option and by what is there already."""
        for variable, remedy in (
            ("SPARK_REMOTE", "unset it"),
            ("PYSPARK_GATEWAY_PORT", "give --master to spark-submit"),
        ):
            self.patch(os, "environ", {**os.environ, variable: "1"})
            told = str(self.assertRaises(UsageError, self.parse, "audit here --out there --master local[2]"))
            self.assertIn(f"{variable} says where Spark runs, too: {remedy}, or leave --master out", told)
            self.patch(os, "environ", {name: text for name, text in os.environ.items() if name != variable})

    def test_manual(self) -> None:
        """What the manual has for commands parses."""
        manual = ROOT.joinpath("docs", "evaluate-offline.md").read_text("utf-8")
        lines = [line.removeprefix("$ admission ") for line in manual.splitlines() if line.startswith("$ admission ")]
        lines += [line.split("spark_job.py ")[1] for line in manual.splitlines() if line.startswith("$ spark-submit ")]
        self.assertGreater(len(lines), 3)
        for line in lines:
            self.parse(line)

    def test_withoutSpark(self) -> None:
        """Commands are there without what only the jobs need being imported."""
        subprocess.run([sys.executable, "-c", _WITHOUT_SPARK], check=True, timeout=60)

    def test_nothingThere(self) -> None:
        """A directory, a time or a sample that cannot be is told of before Spark is started."""
        here = self.recording()
        for line, words in (
            ("audit nowhere", "there is no directory nowhere"),
            (f"audit {here} --from yesterday", "'yesterday' is not a moment"),
            (f"audit {here} --from 2026-03-02 --to 2026-03-01", "the first has to be before the second"),
            (f"audit {here} --sample 0%", "'0%' is no share of the clients"),
            ("aggregate nowhere --stream", "there is no directory nowhere"),
        ):
            self.patch(running, "openSession", None)
            self.assertFails(f"{line} --out {self.mktemp()}", words)
        self.assertFails(f"report {self.mktemp()}", "there are no results in")

    def test_noSpark(self) -> None:
        """Without the packages, a Java or a server there is a sentence that says which."""
        line = f"audit {self.recording()} --out {self.mktemp()}"
        for name, error in (
            ("openSession", JavaMissing("no Java")),
            ("openSession", ServerMissing("no master")),
            ("checkPackages", SparkMissing("no Spark")),
        ):

            def fail(*args: Any, error: Exception = error) -> None:
                raise error

            # A session that another test has opened would do.
            self.patch(running, name, fail)
            self.assertFails(line, str(error))

    def test_sparkFails(self) -> None:
        """Of what Spark says when it fails the point is told."""

        def fail(*args: Any) -> None:
            raise PySparkException("[PATH_NOT_FOUND] It is not there.\n== SQL ==\nselect\n")

        self.patch(running, "openSession", fail)
        self.assertFails(
            f"audit {self.recording()} --out {self.mktemp()}", "Spark has failed: [PATH_NOT_FOUND] It is not there."
        )
        trace = (
            'An exception was thrown:\nTraceback (most recent call last):\n  File "a", line 1\nOutOfOrder: sort it\n'
        )
        self.assertEqual(lastWords(trace), "OutOfOrder: sort it")
        self.assertEqual(lastWords(" \n"), "it does not say why")

    def test_rootCause(self) -> None:
        """Of exceptions of Java the deepest that says anything is told, with the remedy if memory was too little."""
        call = (
            "An error occurred while calling o1.getResult.\n: org.apache.spark.SparkException: thrown\n\tat a.b(C:1)\n"
        )
        self.assertEqual(lastWords(call), "org.apache.spark.SparkException: thrown")
        broadcast = (
            f"{call}Caused by: java.util.concurrent.ExecutionException: it failed\n\t... 2 more\n"
            "Caused by: java.lang.OutOfMemoryError: Not enough memory to broadcast the table\n\tat a.b(C:1)\n"
            "Caused by: java.lang.OutOfMemoryError\n\t... 3 more\n"
        )
        told = lastWords(broadcast)
        self.assertTrue(told.startswith("java.lang.OutOfMemoryError: Not enough memory to broadcast the table; "), told)
        self.assertIn("spark.driver.memory", told)
        python = (
            f"{call}Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            '  File "a", line 1\nKeyError: 1\n\nDuring handling of that, another one:\n\n'
            'Traceback (most recent call last):\n  File "b", line 2\n    c()\n\nOutOfOrder: sort it\n\n\tat a.b(C:1)\n'
            "Driver stacktrace:\n"
        )
        self.assertEqual(lastWords(python), "OutOfOrder: sort it")

    def test_stream(self) -> None:
        """A stream's results have directories of their own, and each is waited for."""
        appended: list[tuple[bool, str, str]] = []
        waited: list[int] = []

        class Query:
            def awaitTermination(self) -> None:
                waited.append(len(appended))

        def append(results: Any, directory: str, name: str) -> Query:
            appended.append((results.isStreaming, directory, name))
            return Query()

        self.patch(jobs, "appendAvailable", append)
        sharedSession()
        out = self.mktemp()
        self.assertEqual(main(["aggregate", self.recording(), "--stream", "--out", out]), 0)
        names = ["client_minute_stream", "throttle_minute_stream"]
        self.assertEqual(appended, [(True, f"file://{Path(out, name).absolute()}", name) for name in names])
        self.assertEqual(waited, [1, 2])


class EvaluationTests(SynchronousTestCase):
    """C{evaluation.json}."""

    def test_sameSelection(self) -> None:
        """Jobs add to what others have said of the same selection, and what is of another one is left alone."""
        out = self.mktemp()
        selection = Selection("recording", "2026-03-01", None, "10%")
        Evaluation.open(out, selection).tell({"requests": 3})
        Evaluation.open(out, selection).tell({"modes": ["open"]})
        found = json.loads(Path(out, "evaluation.json").read_text("utf-8"))
        self.assertEqual((found["requests"], found["modes"], found["sample"]), (3, ["open"], "10%"))
        error = self.assertRaises(OutputError, Evaluation.open, out, Selection("recording", "2026-03-01"))
        self.assertIn("has results with --sample 10%, and not without it; name another directory", str(error))

    def test_unusable(self) -> None:
        """What cannot be read or written is told with the remedy."""
        out = Path(self.mktemp())
        out.mkdir()
        path = out / "evaluation.json"
        for text in ("{", "[]"):
            path.write_text(text)
            error = self.assertRaises(OutputError, Evaluation.open, out, Selection("recording"))
            self.assertIn("name another directory with --out", str(error))
        # In the place of a directory there is a file.
        evaluation = Evaluation(path / "evaluation.json")
        self.assertIn("cannot be written", str(self.assertRaises(OutputError, evaluation.tell, {})))


def plans() -> list[str]:
    """How Spark has done each query of this process."""
    session: Any = sharedSession()
    executions = session._jsparkSession.sharedState().statusStore().executionsList()
    return [executions.apply(place).physicalPlanDescription() for place in range(executions.size())]


class EvaluateTests(SynchronousTestCase):
    """C{admission evaluate} on a recording, in Spark."""

    def test_dropped(self) -> None:
        """What servers counted as dropped is counted from their start, or since the selected time."""
        directory = self.mktemp()
        for boot, counts in (("one", (0.0, 3.0, 10.0)), ("two", (0.0, 0.0, 2.0))):
            samples = [SensorSample(60.0 * minute, DROPPED, "counter", each) for minute, each in enumerate(counts)]
            writeRecording(directory, samples, Origin("0", boot))
        for since, expected in ((None, 12), (str(WALL_SECONDS + 30.0), 9), (str(WALL_SECONDS + 300.0), None)):
            self.assertEqual(countDropped(Recording.open(sharedSession(), directory, since)), expected)

    def test_together(self) -> None:
        """
        Runs that enforced limits together are replayed together; where they counted servers that are not there, a
        candidate with such limits is no forecast, and others are.
        """
        population = Population(clients=3, connections=1, seconds=20.0, requests=300)
        server = SyntheticServer(population, ["client-bytes:received=16KiB:shared=yes"])
        kept = Kept()
        server.run(kept)
        texts = ["shared=client-bytes:received=12KiB:shared=yes", "alone=client-bytes:received=12KiB:algorithm=bucket"]
        for counted, isComplete in ((2, True), (3, False)):
            directory = self.mktemp()
            for boot in ("one", "two"):
                # So late that it changes nothing.
                counts = LimitEvent(BEGIN_SECONDS + 20.0, DEFAULT, None, None, SHARED, float(counted), TOLD_BY)
                events = [*kept.events, evolve(counts, seq=len(kept.events) + 1)]
                writeRecording(directory, events, evolve(server.origin, bootId=boot))
            work = Work.begin(sharedSession(), Selection(directory), self.mktemp(), lambda line: None)
            answer = replay(work, Question(resolveCandidates(texts), [], [CLOSED]))
            facts = work.evaluation.facts
            self.assertEqual((facts["shared"], facts["alone"]), (["shared"], ["alone"]))
            self.assertEqual(
                facts["sharedRuns"],
                [{"runs": 2, "counted": counted, "isComplete": isComplete, "clocksDifferBySeconds": None}],
            )
            self.assertTrue(facts["isTrusted"], facts["trust"])
            forecasts = {row["candidate"]: row["is_forecast"] for row in answer.totals.summary.to_pylist()}
            self.assertEqual((forecasts["shared"], forecasts["alone"]), (isComplete, True))

    def test_refusedLess(self) -> None:
        """
        A candidate that refuses fewer requests than were refused is no forecast, though few connections run out; one
        that refuses as many may be.
        """
        population = Population(clients=40, connections=1, seconds=20.0, requests=1000)
        server = SyntheticServer(population, ["requests:rate=12"])
        kept, directory = Kept(), self.mktemp()
        server.run(kept)
        # As those of a site, each of whose requests may have a connection of its own.
        events = [
            evolve(each, connectionId=number) if isinstance(each, RequestEvent) else each
            for number, each in enumerate(kept.events, 1000)
        ]
        writeRecording(directory, events, server.origin)
        work = Work.begin(sharedSession(), Selection(directory), self.mktemp(), lambda line: None)
        candidates = resolveCandidates(["same=requests:rate=12", "wide=requests:rate=1M"])
        summary = replay(work, Question(candidates, [], [CLOSED])).totals.summary.to_pylist()
        self.assertLess(max(row["exhausted_share"] for row in summary), MAX_EXHAUSTED_SHARE)
        found = {row["candidate"]: (row["refused"], row["is_forecast"]) for row in summary}
        self.assertGreater(found[BASELINE][0], 0)
        self.assertEqual((found["same"], found["wide"]), ((found[BASELINE][0], True), (0, False)))

    def test_recordingThatGrows(self) -> None:
        """
        What a server has recorded since a job began is replayed or left out, alike by both loops,
        and accounted for.
        """
        server = SyntheticServer(
            Population(clients=4, connections=2, seconds=60.0, requests=1500),
            ["client-bytes:produce=16KiB:fetch=64KiB"],
        )
        kept = Kept()
        server.run(kept)
        directory = self.mktemp()
        [name] = writeRecording(directory, kept.events, server.origin, isSealed=False)
        path = Path(directory, SEGMENTS, f"{name}{SUFFIX}")
        whole = path.read_bytes()
        lastSlot = len(whole.rstrip(b"\0")) * 9 // 10 // SLOT_BYTES * SLOT_BYTES
        path.write_bytes(whole[:lastSlot])
        work = Work.begin(sharedSession(), Selection(directory), self.mktemp(), lambda line: None)
        path.write_bytes(whole)
        strict = resolveCandidates(["client-bytes:produce=8KiB:fetch=64KiB"])
        answer = replay(work, Question(strict, [], [CLOSED, OPEN]))
        # The stricter candidate slows clients down, so that closed loop some requests come after the end.
        recorded = [row for row in answer.totals.summary.to_pylist() if row["candidate"].startswith("recorded ")]
        requests = len(kept.of(RequestEvent))
        self.assertEqual(
            [(row["mode"], row["requests"]) for row in recorded], [("closed", requests), ("open", requests)]
        )
        for fidelity in answer.fidelities:
            self.assertTrue(fidelity.isTrusted, fidelity.inWords())
        missing = Missing.of(work.evaluation.facts)
        self.assertEqual((missing.inWords(), missing.events, missing.droppedEvents), ("", len(kept.events), 0))

    def test_evaluate(self) -> None:
        """
        One command leaves every result, what they are results of, and a page
        about them; a policy in force does again what it did.
        """
        directory = self.mktemp()
        server = SyntheticServer(
            Population(clients=8, connections=2, seconds=100.0, requests=2500),
            ["client-bytes:produce=32KiB:fetch=128KiB", "producer-ids"],
            "bounded:8MiB",
        )
        recordSynthetic(directory, server)
        dropped = _drop(directory)
        begun = len(plans())
        stdout, out = StringIO(), self.mktemp()
        self.patch(sys, "stdout", stdout)
        # All limits were set before that, and all requests came after.
        since = ["--from", str(BEGIN_SECONDS + 0.001)]
        tried = ["--candidate", "strict=client-bytes:produce=8KiB", "--pool", "bounded:1MiB"]
        self.assertEqual(main(["evaluate", directory, "--out", out, *since, *tried]), 0)
        # Spark takes compressed columns for less than they are, and a driver has no room for millions of rows.
        Recording.open(sharedSession(), directory, sample="50%").requests().count()
        joins = [plan for plan in plans()[begun:] if "Join" in plan]
        self.assertGreater(len(joins), 3)
        self.assertEqual([plan for plan in joins if "Broadcast" in plan], [])

        names = sorted(path.name for path in Path(out).iterdir())
        expected = [f"{table.name}.{suffix}" for table in OUTPUTS for suffix in ("csv", "parquet")]
        self.assertEqual(names, sorted([*expected, "evaluation.json", "report.html"]))
        facts = json.loads(Path(out, "evaluation.json").read_text("utf-8"))
        [gap] = facts["gaps"]
        self.assertEqual((gap["missing"], gap["seq"], facts["seqGaps"]), (1, dropped + 1, 1))
        self.assertEqual((facts["isSynthetic"], facts["problems"], facts["brokenRows"]), (True, [], 0))
        self.assertEqual(facts["candidates"], [{"label": "strict", "description": "client-bytes:produce=8KiB"}])
        self.assertEqual(facts["runs"][0]["policies"], ["client-bytes:produce=32KiB:fetch=128KiB", "producer-ids"])
        self.assertIn("pools took 2 tasks", facts["notes"][0])
        self.assertTrue(facts["isTrusted"], facts["trust"])

        recorded = parquet.read_table(Path(directory, REQUESTS.name)).to_pylist()
        self.assertEqual(facts["requests"], len(recorded))
        heldSeconds = sum(row["policy_delays_us"][0] for row in recorded if row["policy_delays_us"]) / 1e6
        summary = {row["candidate"]: row for row in parquet.read_table(Path(out, "replay_summary.parquet")).to_pylist()}
        self.assertEqual(sorted(summary), ["recorded", "recorded client-bytes", "recorded producer-ids", "strict"])
        # What was recorded is summed up like a candidate, and like its own replay.
        same = ("requests", "throttled", "refused", "throttle_s", "admitted_bytes", "most_throttle_s")
        for name in same:
            self.assertEqual(summary["recorded"][name], summary["recorded client-bytes"][name], name)
        self.assertEqual(summary["recorded client-bytes"]["requests"], len(recorded))
        self.assertAlmostEqual(summary["recorded client-bytes"]["throttle_s"] / heldSeconds, 1.0, delta=0.01)
        self.assertGreater(summary["strict"]["throttled"] / summary["strict"]["requests"], 0.01)
        self.assertIn("Keep what is set", stdout.getvalue())
        self.assertIn(f"{out}/report.html", stdout.getvalue())

        # What was set before the time that is asked for holds all the same.
        recording = Recording.open(sharedSession(), directory, since[1])
        self.assertEqual((recording.limits().count(), limitsFromTheStart(recording).count()), (0, 2))
        # So it can be told that a run began before that time.
        self.assertEqual(cutRuns(recording), {(BROKER_ID, facts["runs"][0]["bootId"])})
        self.assertEqual(cutRuns(Recording.open(sharedSession(), directory)), set())
        late = Selection(directory, "2030-01-01")
        error = self.assertRaises(running.JobFailed, runJob, jobs.audit, late, self.mktemp(), SILENT)
        self.assertIn("there are no requests in", str(error))


class SampleTests(SynchronousTestCase):
    """A replay of a sample of the clients."""

    def test_bounds(self) -> None:
        """
        What the sample says of all clients has bounds, within which the truth is; what clients in the sample share with
        others is refused.
        """
        directory, out = self.mktemp(), self.mktemp()
        population = Population(clients=60, connections=1, seconds=60.0, requests=2000)
        recordSynthetic(directory, SyntheticServer(population, ["client-bytes:produce=8KiB"]))
        stdout, stderr = StringIO(), StringIO()
        self.patch(sys, "stdout", stdout)
        self.patch(sys, "stderr", stderr)
        line = ["replay", directory, "--sample", "80%", "--out", out]
        self.assertEqual(main([*line, "--candidate", "producer-ids:rate=100"]), FAILED)
        [told] = stderr.getvalue().splitlines()
        self.assertIn("a sample of 80% of the clients does not tell what producer-ids:rate=100 would do", told)
        self.assertEqual(main([*line, "--candidate", "client-bytes:produce=4KiB"]), 0)
        self.assertIn("All numbers are of a sample, 80% of the clients.", stdout.getvalue())
        facts = json.loads(Path(out, "evaluation.json").read_text("utf-8"))
        estimates = {(each["candidate"], each["column"]): each for each in facts["estimates"]}
        throttled = estimates["recorded", "throttle_s"]
        rows = parquet.read_table(Path(directory, REQUESTS.name)).to_pylist()
        truth = sum(row["throttle_ms"] or 0 for row in rows) / 1e3
        self.assertLess(abs(throttled["total"] - truth), throttled["error"] * throttled["total"])
        self.assertGreater(facts["largestLeftOut"], 0.0)
        refused = Question([], [resolveCandidate("bounded:1MiB", IMemoryPoolFactory)], [CLOSED])
        work = Work.begin(sharedSession(), Selection(directory, sample="80%"), out, lambda line: None)
        self.assertIn("shared by all clients", str(self.assertRaises(TraceError, jobs.replay, work, refused)))


class DisagreementTests(SynchronousTestCase):
    """A recording that one of its policies in force cannot reproduce: one client's decisions of five seconds."""

    OWN = "unrecorded:client-0:40:45"

    def setUp(self) -> None:
        """Record a server with such a policy and another one, and catch what is written."""
        replaypolicies.install(self)
        variable = replaypolicies.Unrecorded.VARIABLE
        os.environ[variable] = "on"
        try:
            server = SyntheticServer(
                Population(clients=6, connections=2, seconds=100.0, requests=6000),
                ["client-bytes:produce=32KiB:fetch=128KiB", self.OWN],
            )
            self.directory = self.mktemp()
            recordSynthetic(self.directory, server)
        finally:
            del os.environ[variable]
        sharedSession()

    def said(self, words: Sequence[str], status: int) -> tuple[str, str]:
        """What a command writes, and complains about."""
        stdout, stderr = StringIO(), StringIO()
        self.patch(sys, "stdout", stdout)
        self.patch(sys, "stderr", stderr)
        self.assertEqual(main(list(words)), status, stdout.getvalue() + stderr.getvalue())
        return stdout.getvalue(), stderr.getvalue()

    def test_explained(self) -> None:
        """
        The verdict says which policy, client and minute disagree, why, and what to do: the command that it names is
        trusted. Answers that do not depend on that policy are trusted all the same, and the others are labelled.
        """
        out = self.mktemp()
        tried = ["--candidate", "strict=client-bytes:produce=16KiB:fetch=128KiB", "--candidate", self.OWN]
        begun = len(plans())
        said, complaint = self.said(["replay", self.directory, "--out", out, *tried], FAILED)
        self.assertEqual([plan for plan in plans()[begun:] if "Broadcast" in plan], [])
        begin = datetime.fromtimestamp(BEGIN_SECONDS, UTC)
        wrong = [
            row["ts"]
            for row in parquet.read_table(Path(self.directory, REQUESTS.name)).to_pylist()
            if row["policy_delays_us"] and row["policy_delays_us"][1] == 100_000
        ]
        self.assertGreater(len(wrong), 20)
        self.assertEqual(
            complaint,
            f"admission: the answers about {self.OWN} cannot be trusted: the replay of unrecorded disagrees with the "
            "recording\n",
        )
        self.assertTrue(said.startswith(f"The answers about {self.OWN} cannot be trusted: "), said)
        self.assertIn("All other answers can be trusted. The replay of the other policies in force agrees", said)
        [reason] = [line for line in said.splitlines() if line.startswith("- ")]
        first, after = (f"{each:%Y-%m-%dT%H:%M:%S}" for each in (min(wrong), max(wrong) + timedelta(seconds=1)))
        self.assertRegex(
            reason,
            f"^- unrecorded, boot .* of broker synthetic: the replay disagrees in {len(wrong)} of [0-9,]+ decisions, "
            rf"about requests from {first} to {after}\. By minute: {len(wrong)} in {begin:%Y-%m-%dT%H:%M}\. "
            rf"By client: {len(wrong)} of client-0 \(user-0\)\. Likely cause: the policy is not one of admission's, "
            "and no other disagrees: it may depend on something that is not recorded, such as a file, chance or a "
            r"clock of its own\.$",
        )
        rows = [line.split() for line in said.splitlines() if line.startswith(("strict ", f"{self.OWN} "))]
        forecasts = {row[0]: row[-1] for row in rows}
        self.assertEqual(forecasts, {"strict": "yes", self.OWN: "untrusted"})
        facts = json.loads(Path(out, "evaluation.json").read_text("utf-8"))
        self.assertEqual((facts["isTrusted"], facts["untrusted"]), (False, [self.OWN]))
        self.assertEqual(facts["narrower"], {"since": after, "until": None})
        [found] = facts["disagreements"]
        self.assertEqual((found["policy"], found["decisions"]), ("recorded unrecorded", len(wrong)))

        commands = [shlex.split(line)[1:] for line in said.splitlines() if line.startswith("  admission ")]
        self.assertEqual([("--from" in words, self.OWN in words) for words in commands], [(True, True), (False, False)])
        again, _ = self.said(commands[0], 0)
        self.assertIn("can be trusted.", again)
        self.assertNotIn("cannot be trusted", again)

        self.said(["report", out], FAILED)
        page = Path(out, "report.html").read_text("utf-8")
        self.assertIn('class="trust partly"', page)
        self.assertIn(f"By client: {len(wrong)} of client-0", page)
        self.assertIn(f"--from {after}", page)


class DamagedRecordingTests(SynchronousTestCase):
    """A recording of which files cannot be read."""

    def setUp(self) -> None:
        """Record a server in sealed segments, about the same number of events in each."""
        server = SyntheticServer(
            Population(clients=8, connections=2, seconds=100.0, requests=2500),
            ["client-bytes:produce=32KiB:fetch=128KiB"],
        )
        kept = Kept()
        server.run(kept)
        self.directory, self.out = self.mktemp(), self.mktemp()
        self.events = len(kept.events)
        size = self.events // _SEGMENTS + 1
        for first in range(0, self.events, size):
            writeRecording(self.directory, kept.events[first : first + size], server.origin)
        self.paths = sorted(Path(self.directory, REQUESTS.name).rglob("*.parquet"))
        self.assertEqual(len(self.paths), _SEGMENTS)

    def damage(self, path: Path) -> float:
        """
        Cut off the end of a file.

        @return: the share of all events that it had.
        """
        lost: int = parquet.read_metadata(path).num_rows
        path.write_bytes(path.read_bytes()[:-100])
        return lost / self.events

    def test_told(self) -> None:
        """
        If much of the recording cannot be read, that is the first thing that the terminal, the complaint and the page
        say, with the file, and nothing is forecast.
        """
        path = self.paths[2]
        lostShare = self.damage(path)
        sharedSession()
        stdout, stderr = StringIO(), StringIO()
        self.patch(sys, "stdout", stdout)
        self.patch(sys, "stderr", stderr)
        tried = ["--candidate", "strict=client-bytes:produce=16KiB:fetch=128KiB"]
        self.assertEqual(main(["replay", self.directory, "--out", self.out, *tried]), FAILED)
        said, complaint = stdout.getvalue(), stderr.getvalue()
        self.assertEqual(len(complaint.splitlines()), 1)
        for text, start in ((said, "These"), (complaint, "admission: these")):
            words = rf"^{start} answers cannot be trusted: about ([\d.]+) % of the recorded events are missing"
            match = re.match(words, text)
            assert match is not None, text
            self.assertApproximates(float(match[1]) / 100, lostShare, 0.0005)
        self.assertIn(str(path.relative_to(self.directory)), said)
        self.assertNotIn("no room", said)
        [forecast] = [line.split()[-1] for line in said.splitlines() if line.startswith("strict ")]
        self.assertEqual(forecast, "untrusted")
        facts = json.loads(Path(self.out, "evaluation.json").read_text("utf-8"))
        self.assertFalse(facts["isTrusted"])
        [summary] = parquet.read_table(
            Path(self.out, "replay_summary.parquet"), filters=[("candidate", "=", "strict")]
        ).to_pylist()
        self.assertFalse(summary["is_forecast"])

        self.assertEqual(main(["report", self.out]), FAILED)
        page = Path(self.out, "report.html").read_text("utf-8")
        self.assertIn('class="trust refuted"', page)
        self.assertNotIn('class="trust trusted"', page)
        self.assertIn(path.name, page.partition('class="answer"')[0])
        self.assertNotIn("no room", page.partition('id="assumptions"')[0])

    def test_end(self) -> None:
        """At the end of the recording, where no number of an event tells how many are missing, the file's size does."""
        lostShare = self.damage(self.paths[-1])
        work = Work.begin(sharedSession(), Selection(self.directory), self.out, lambda line: None)
        self.assertApproximates(work.unreadable["unreadableShare"], lostShare, lostShare * 0.25)

    def test_allOfIt(self) -> None:
        """If no requests can be read, the first unreadable file is named."""
        path, *others = self.paths
        self.damage(path)
        for each in others:
            each.unlink()
        error = self.assertRaises(running.JobFailed, runJob, jobs.audit, Selection(self.directory), self.out, SILENT)
        self.assertIn(f"can be read: {path.relative_to(self.directory)} cannot be read: ", str(error))
        self.assertNotIn("\n", str(error))


def _drop(directory: str) -> int:
    """
    Lose a late request of a client that nobody ever throttled.

    @return: its number.
    """
    [path] = Path(directory, REQUESTS.name).rglob("*.parquet")
    table = parquet.ParquetFile(path).read()
    rows = table.to_pylist()
    held = {row["client_id"] for row in rows if row["decision"] != "admit"}
    lost = [row["seq"] for row in rows if row["client_id"] not in held][-20]
    parquet.write_table(table.filter([seq != lost for seq in table["seq"].to_pylist()]), path)
    return int(lost)

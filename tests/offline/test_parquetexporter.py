"""L{admission_plugins.parquetexporter}, and what it makes and seals segments with."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from typing import Any

from pyarrow import parquet as pq
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from admission import extras
from admission.interfaces import IMetricsExporter, IMetricsExporterFactory, PolicyContext
from admission.kafka.recordedcolumns import KafkaRequestEvent
from admission.metrics.registry import SensorRegistry
from admission.plugins import PolicyError, buildPolicy
from admission.recording.events import Origin, SensorSample
from admission.recording.recordlayout import SLOT_BYTES
from admission.recording.schema import SENSORS
from admission.recording.segmentheader import Header
from admission.recording.segments import Segment, SegmentWriter, segmentPaths
from admission.recording.tables import REQUESTS, TABLES
from admission.testing.exportercontract import MetricsExporterContract
from admission.testing.scriptedthreads import ScriptedThreads
from admission_plugins import parquetexporter
from admission_plugins.parquetexporter import (
    LOOK_SECONDS,
    SMALLEST_CAP_BYTES,
    ParquetExporter,
    SealingFailed,
    sealInProcess,
)
from admission_plugins.sealing import sealAll
from admission_plugins.sealreport import SealReport
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, ROOT
from tests.kit.longform import longForm

ORIGIN = Origin("3", "boot", 17)
CAP_BYTES = SMALLEST_CAP_BYTES
SEGMENT_BYTES = CAP_BYTES // 32
MAX_SEGMENTS = 8
"""How many of that size a fourth of the bound holds."""

ROTATE_SECONDS = 60.0


class ExporterTestCase(SynchronousTestCase):
    """Has an exporter whose time and threads are the test's."""

    def setUp(self) -> None:
        self.directory = self.mktemp()
        self.clock = Clock()
        self.threads = ScriptedThreads()
        self.passes = 0
        self.sealFailure: Exception | None = None
        self.evictAtBytes = 0
        self.wallSeconds = 0.0
        self.seq = 0
        self.warnings: list[str] = []
        globalLogPublisher.addObserver(self.observe)
        self.addCleanup(globalLogPublisher.removeObserver, self.observe)
        self.exporter = self.start()

    def observe(self, event: Any) -> None:
        """Keep what the log says."""
        if event.get("log_namespace", "").startswith("admission_plugins.") and event["log_level"] >= LogLevel.warn:
            self.warnings.append(event["log_format"].format(**event))

    def seal(self, directory: str, capBytes: int) -> SealReport:
        """Seal in this process, unless the test says no."""
        self.passes += 1
        if self.sealFailure is not None:
            raise self.sealFailure
        return sealAll(directory, self.evictAtBytes or capBytes)

    def start(self, bootId: str = "boot") -> ParquetExporter:
        """An exporter that has been started."""
        exporter = ParquetExporter(
            self.directory, self.clock, lambda: self.wallSeconds, ROTATE_SECONDS, CAP_BYTES, self.seal
        )
        exporter.start(Origin("3", bootId), self.threads.deferToThread)
        return exporter

    def record(self, count: int) -> None:
        """Events with numbers that go on."""
        for _ in range(count):
            self.seq += 1
            self.exporter.exportEvent(KafkaRequestEvent(1, self.clock.seconds(), seq=self.seq))

    def recordUntilFull(self) -> int:
        """
        Record until the first event is dropped.

        @return: how many were not.
        """
        while not self.exporter.droppedEvents:
            self.record(1)
        return self.seq - 1

    def unsealed(self) -> list[int]:
        """The numbers of what is in segments."""
        found = [Segment.load(path) for path in segmentPaths(os.path.join(self.directory, "_segments"))]
        return [row["seq"] for segment in found if segment is not None for row in segment.rows(REQUESTS)]

    def sealed(self) -> list[int]:
        """The numbers of what is in Parquet files."""
        return sealedSeqs(self.directory)


def sealedSeqs(directory: str, pattern: str = "requests/**/*.parquet") -> list[int]:
    """The numbers of what is in all Parquet files that match, ascending."""
    paths = Path(directory).glob(pattern)
    return sorted(seq for path in paths for seq in pq.read_table(path, partitioning=None)["seq"].to_pylist())


class ContractTests(MetricsExporterContract, SynchronousTestCase):
    """L{ParquetExporter} is an L{IMetricsExporter}."""

    def buildExporter(self, clock: Clock) -> IMetricsExporter:
        """With a directory of its own."""
        return ParquetExporter(self.mktemp(), clock, lambda: 0.0, ROTATE_SECONDS, CAP_BYTES, sealAll)

    def arrived(self, exporter: IMetricsExporter) -> list[int]:
        """What is in Parquet files, and in segments that are yet to be sealed."""
        assert isinstance(exporter, ParquetExporter)
        unsealed = [Segment.load(path) for path in segmentPaths(os.path.join(exporter.directory, "_segments"))]
        return sealedSeqs(exporter.directory, "**/*.parquet") + [
            row["seq"] for segment in unsealed if segment is not None for table in TABLES for row in segment.rows(table)
        ]


class BuildTests(SynchronousTestCase):
    """C{--export spark:...}"""

    def build(self, description: str) -> ParquetExporter:
        """What a description makes."""
        clock = Clock()
        exporter: ParquetExporter = buildPolicy(
            IMetricsExporterFactory, description, PolicyContext(clock, clock.seconds)
        )
        return exporter

    def test_defaults(self) -> None:
        """Only the directory has to be said; it does not follow when the process changes its own."""
        exporter = self.build("spark:events")
        self.assertTrue(verifyObject(IMetricsExporter, exporter))
        self.assertEqual(exporter.directory, os.path.abspath("events"))
        self.assertEqual((exporter.rotateSeconds, exporter.capBytes), (60.0, 2 << 30))
        self.assertFalse(os.path.exists("events"))

    def test_arguments(self) -> None:
        """C{rotate} and C{cap} are durations and sizes as elsewhere."""
        exporter = self.build(r"spark:/tmp/a\:b:rotate=5m:cap=100M")
        self.assertEqual(exporter.directory, "/tmp/a:b")
        self.assertEqual((exporter.rotateSeconds, exporter.capBytes), (300.0, 100_000_000))

    def test_refused(self) -> None:
        """What makes no sense is refused in one sentence."""
        for arguments, sentence in [
            ("", "the directory to record to is missing"),
            ("a:rotate=10ms", "rotate must be 1s at least, not 10ms"),
            ("a:cap=1MiB", "cap must be 4MiB at least, not 1MiB"),
            ("a:cap=much", "'much' is not a size: "),
            ("a:sealing=later", "sealing=later: say process or inline"),
        ]:
            refusal = str(self.assertRaises(PolicyError, self.build, f"spark:{arguments}"))
            self.assertIn(sentence, refusal)
            self.assertNotIn("\n", refusal)

    def test_missingLibrary(self) -> None:
        """A library that is not installed is named, with the extra that brings it."""
        self.patch(extras, "find_spec", lambda name: None if name == "pyarrow" else name)
        refusal = str(self.assertRaises(PolicyError, self.build, "spark:a"))
        self.assertIn("'spark:a': the exporter needs pyarrow: pip install 'admission[spark]'", refusal)

    def test_light(self) -> None:
        """Neither pyarrow nor numpy is in the memory of a server that records."""
        code = "import sys, {}; print([m for m in ('numpy', 'pyarrow') if m in sys.modules])"
        code = code.format(parquetexporter.__name__)
        result = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
        self.assertEqual((result.stdout.strip(), result.returncode), ("[]", 0), result.stderr)


class RecordingTests(ExporterTestCase):
    """L{ParquetExporter} while all is well."""

    def test_atOnce(self) -> None:
        """An event is in a file when the exporter returns; samples are, too."""
        self.record(3)
        self.assertEqual(self.unsealed(), [1, 2, 3])
        self.exporter.exportSamples([SensorSample(1.0, "Used", "gauge", value) for value in (1.0, 2.0)])
        segment = Segment.load(segmentPaths(os.path.join(self.directory, "_segments"))[0])
        assert segment is not None
        self.assertEqual([row["value"] for row in segment.rows(SENSORS)], [1.0, 2.0])
        self.assertEqual((self.exporter.recordedEvents, self.exporter.droppedEvents), (5, 0))

    def test_rotate(self) -> None:
        """At the interval, what was recorded is sealed, and recording goes on in the next segment."""
        self.record(3)
        self.clock.advance(ROTATE_SECONDS - 1)
        self.assertEqual((self.sealed(), self.passes), ([], 0))
        self.clock.advance(1)
        self.assertEqual((self.sealed(), self.unsealed(), self.passes), ([1, 2, 3], [], 1))
        self.record(2)
        self.assertEqual(self.unsealed(), [4, 5])
        self.clock.advance(ROTATE_SECONDS)
        self.assertEqual((self.sealed(), self.exporter.sealedRows), ([1, 2, 3, 4, 5], 5))

    def test_nothingToSeal(self) -> None:
        """While nothing happens, nothing is sealed, however long that is."""
        for _ in range(5):
            self.clock.advance(ROTATE_SECONDS)
        self.assertEqual(self.passes, 0)
        self.assertEqual(len(os.listdir(os.path.join(self.directory, "_segments"))), 2)

    def test_full(self) -> None:
        """
        A full segment is followed by the next without a loss, and sealed
        before the interval ends if that makes many of them.
        """
        self.record(3000)
        self.assertEqual(self.exporter.droppedEvents, 0)
        self.assertGreater(self.passes, 1)
        self.assertEqual(sorted(self.sealed() + self.unsealed()), list(range(1, 3001)))
        self.assertGreater(len(self.sealed()), 2000)

    def test_busy(self) -> None:
        """
        A segment that is made while segments fill before their time is in
        memory at once, any other as it is written.
        """
        made: list[bool] = []

        def make(path: str, sizeBytes: int, isPopulated: bool) -> SegmentWriter:
            made.append(isPopulated)
            return SegmentWriter(path, sizeBytes, isPopulated)

        self.patch(parquetexporter, "SegmentWriter", make)
        self.record(1)
        self.clock.advance(ROTATE_SECONDS)
        self.record(SEGMENT_BYTES // SLOT_BYTES)
        self.clock.advance(ROTATE_SECONDS)
        self.assertEqual(made, [False, True, False])

    def test_timeIsOfTheSegment(self) -> None:
        """Each segment tells wall time by its own beginning, so that it follows when the machine's clock is set."""
        self.record(1)
        self.wallSeconds = 1_000_000.0
        self.clock.advance(ROTATE_SECONDS)
        self.record(1)
        self.clock.advance(ROTATE_SECONDS)
        moments = [
            pq.read_table(path, partitioning=None)["ts"].to_pylist()[0].timestamp()
            for path in Path(self.directory).rglob("*.parquet")
        ]
        self.assertEqual(sorted(moments), [0.0, 1_000_000.0])

    def test_sensors(self) -> None:
        """What was recorded, sealed and removed can be seen, and so can texts that found no room."""
        registry = SensorRegistry(self.clock.seconds)
        self.exporter.addSensors(registry, "spark")
        for number in range(200):
            self.exporter.exportEvent(KafkaRequestEvent(1, 0.0, clientId=f"client {number}"))
        self.clock.advance(ROTATE_SECONDS)
        self.record(1)
        self.assertEqual(registry["spark.recorded-events"], 201)
        self.assertEqual(registry["spark.sealed-rows"], 200)
        self.assertEqual(registry["spark.text-overflows"], 200 - SEGMENT_BYTES // SLOT_BYTES // 8)
        self.assertEqual((registry["spark.evicted-files"], registry["spark.failures"]), (0, 0))
        [path] = Path(self.directory).rglob("*.parquet")
        self.assertEqual(registry["spark.sealed-bytes"], path.stat().st_size)

    def test_stop(self) -> None:
        """At the end everything is sealed and nothing is left to do, not even by the clock."""
        self.record(3)
        self.successResultOf(self.exporter.stop())
        self.assertEqual((self.sealed(), os.listdir(os.path.join(self.directory, "_segments"))), ([1, 2, 3], []))
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.record(1)
        self.assertEqual(self.exporter.droppedEvents, 1)

    def test_stopEmpty(self) -> None:
        """Where nothing was recorded, ending takes no sealing and leaves no files."""
        self.successResultOf(self.exporter.stop())
        self.assertEqual((self.passes, os.listdir(os.path.join(self.directory, "_segments"))), (0, []))

    def test_stopWaits(self) -> None:
        """The end is when threads are done: with sealing, and with a segment that was being made, which goes."""
        self.threads.isIdle = True
        self.record(3)
        self.clock.advance(ROTATE_SECONDS)
        self.record(1)
        stopped = self.exporter.stop()
        self.assertNoResult(stopped)
        self.threads.work()
        self.successResultOf(stopped)
        self.assertEqual((self.sealed(), os.listdir(os.path.join(self.directory, "_segments"))), ([1, 2, 3, 4], []))

    def test_cannotStart(self) -> None:
        """A directory that cannot be made is noticed at the start."""
        Path(self.directory + "x").write_text("in the way")
        self.directory += "x"
        self.assertRaises(OSError, self.start)


class TroubleTests(ExporterTestCase):
    """L{ParquetExporter} when it is not."""

    def test_noSpare(self) -> None:
        """
        Events are dropped while the next segment is not ready, and counted;
        recording goes on as soon as it is, and the log says how many are
        missing.
        """
        self.threads.isIdle = True
        self.record(1)
        self.clock.advance(ROTATE_SECONDS)
        kept = self.recordUntilFull()
        self.record(9)
        self.assertEqual(self.exporter.droppedEvents, 10)
        self.threads.work()
        self.record(1)
        self.assertEqual(self.exporter.droppedEvents, 10)
        self.assertEqual(self.warnings, ["10 events were dropped before there was room to record to"])
        self.successResultOf(self.stopAndWork())
        self.assertEqual(self.sealed(), [*range(1, kept + 1), kept + 11])

    def stopAndWork(self) -> Deferred[Any]:
        """Stop, with the threads' help."""
        stopped = self.exporter.stop()
        self.threads.work()
        return stopped

    def test_diskFull(self) -> None:
        """
        When the disk has no room, what was recorded stays, the log says so once
        and the reason, and making a segment is tried again each second.
        """
        attempts = 0

        def fail(*args: Any) -> SegmentWriter:
            nonlocal attempts
            attempts += 1
            raise OSError(errno.ENOSPC, "No space left on device")

        patch = self.patch(parquetexporter, "SegmentWriter", fail)
        kept = self.recordUntilFull()
        self.record(100)
        self.assertEqual(attempts, 1)
        for _ in range(3):
            self.clock.advance(1)
        self.assertEqual(attempts, 4)
        [warning] = self.warnings
        self.assertIn("events are dropped until there is: [Errno 28] No space left on device", warning)
        self.assertEqual(sorted(self.sealed() + self.unsealed()), list(range(1, kept + 1)))
        patch.restore()
        self.clock.advance(1)
        self.record(1)
        self.assertEqual((self.exporter.droppedEvents, self.unsealed()[-1]), (101, self.seq))
        registry = SensorRegistry(self.clock.seconds)
        self.exporter.addSensors(registry, "spark")
        self.assertEqual(registry["spark.failures"], 4)

    def test_cleared(self) -> None:
        """
        When the whole directory is removed, what was there is lost, and so is what was recorded to files that are gone
        until that is noticed; all of it counts as dropped, and the log says so once.  The next segment is in a new
        directory.
        """
        self.record(3)
        rmtree(self.directory)
        self.record(1)
        self.assertEqual((self.exporter.recordedEvents, self.exporter.droppedEvents), (4, 0))
        self.clock.advance(LOOK_SECONDS)
        self.assertEqual((self.exporter.recordedEvents, self.exporter.droppedEvents), (0, 4))
        [warning] = self.warnings
        self.assertIn("4 recorded events are lost, as ", warning)
        self.record(2)
        self.assertEqual(self.unsealed(), [5, 6])
        self.clock.advance(ROTATE_SECONDS)
        self.record(1)
        self.assertEqual((self.unsealed(), self.sealed()), ([7], [5, 6]))
        self.assertEqual((self.exporter.recordedEvents, self.exporter.droppedEvents), (3, 4))
        self.assertEqual(len(self.warnings), 1)

    def test_segmentRemoved(self) -> None:
        """Where only the segment that is written is deleted, the next one goes on; it is noticed at the end as well."""
        segments = os.path.join(self.directory, "_segments")
        for lookedSeconds in (LOOK_SECONDS, 0.0):
            self.record(3)
            first, *_ = segmentPaths(segments)
            os.unlink(first)
            self.clock.advance(lookedSeconds)
        self.successResultOf(self.exporter.stop())
        self.assertEqual((self.exporter.droppedEvents, self.exporter.recordedEvents), (6, 0))
        self.assertEqual(len(self.warnings), 2)
        self.exporter = self.start("another")

    def test_cannotSeal(self) -> None:
        """
        While sealing fails, nothing that was recorded is given up for what is
        new; segments take their share of the bound and no more.
        """
        self.sealFailure = SealingFailed("no reason")
        kept = self.recordUntilFull()
        self.record(1000)
        segments = segmentPaths(os.path.join(self.directory, "_segments"))
        self.assertEqual(len(segments), MAX_SEGMENTS)
        self.assertLessEqual(sum(map(os.path.getsize, segments)), CAP_BYTES // 4)
        self.assertEqual(self.unsealed(), list(range(1, kept + 1)))
        self.assertIn("recorded events cannot be sealed: no reason", self.warnings)
        self.assertTrue(any("of the 1MiB that cap leaves to them" in each for each in self.warnings), self.warnings)
        self.sealFailure = None
        self.clock.advance(ROTATE_SECONDS)
        self.assertEqual(len(self.sealed()), kept - len(self.unsealed()))
        self.clock.advance(1)
        self.record(1)
        self.assertEqual(self.exporter.droppedEvents, 1001)

    def test_sealedAgain(self) -> None:
        """What could not be sealed is sealed at the next interval, even if nothing has happened since."""
        self.sealFailure = SealingFailed("no reason")
        self.record(3)
        self.clock.advance(ROTATE_SECONDS)
        self.assertEqual((self.passes, self.sealed()), (1, []))
        self.sealFailure = None
        self.clock.advance(ROTATE_SECONDS)
        self.assertEqual((self.passes, self.sealed()), (2, [1, 2, 3]))
        self.clock.advance(ROTATE_SECONDS)
        self.assertEqual(self.passes, 2)

    def test_problems(self) -> None:
        """Whatever sealing complains of is logged."""
        Path(self.directory, "_segments", "bad.segment").write_bytes(b"x" * 5000)
        self.record(1)
        self.clock.advance(ROTATE_SECONDS)
        [warning] = self.warnings
        self.assertTrue(warning.startswith("recorded events: bad.segment is set aside: "), warning)
        self.assertEqual(self.sealed(), [1])

    def test_leftBehind(self) -> None:
        """What an earlier run left behind is sealed at the start, nothing of it twice."""
        self.record(3)
        segments = os.path.join(self.directory, "_segments")
        copies = {path: Path(path).read_bytes() for path in segmentPaths(segments)}
        self.assertEqual(len(copies), 2)
        self.exporter.exportEvent(KafkaRequestEvent(1, 0.0, seq=4))
        self.successResultOf(self.exporter.stop())
        for path in Path(self.directory).rglob("*.parquet"):
            path.unlink()
        for path, content in copies.items():
            Path(path).write_bytes(content)
        self.exporter = self.start("another boot")
        self.assertEqual(self.sealed(), [1, 2, 3])
        self.record(1)
        self.assertEqual(self.unsealed(), [4])
        self.assertEqual(len(segmentPaths(segments)), 2)

    def test_leftBehindTooMuch(self) -> None:
        """Segments that were left behind and have taken their share already do not keep a server from starting."""
        self.sealFailure = SealingFailed("no reason")
        self.recordUntilFull()
        before = self.exporter
        self.exporter = self.start("another boot")
        self.record(1)
        self.assertEqual((self.exporter.droppedEvents, self.unsealed()[0]), (0, self.seq))
        self.sealFailure = None
        self.successResultOf(self.exporter.stop())
        self.successResultOf(before.stop())

    def test_bound(self) -> None:
        """However much is recorded, Parquet files stay within the bound, and it is counted what had to go for that."""
        self.evictAtBytes = 100_000
        for _ in range(10):
            self.record(800)
            self.clock.advance(ROTATE_SECONDS)
            held = sum(path.stat().st_size for path in Path(self.directory).rglob("*.parquet"))
            self.assertLessEqual(held, self.evictAtBytes)
        registry = SensorRegistry(self.clock.seconds)
        self.exporter.addSensors(registry, "spark")
        self.assertGreater(registry["spark.evicted-files"], 0)
        self.assertEqual(self.sealed()[-1], self.seq)


class SealInProcessTests(SynchronousTestCase):
    """L{sealInProcess}."""

    def test_seals(self) -> None:
        """What the process reports is what it did."""
        directory = self.mktemp()
        os.makedirs(os.path.join(directory, "_segments"))
        writer = SegmentWriter(os.path.join(directory, "_segments", "a.segment"), SEGMENT_BYTES)
        writer.begin(Header(ORIGIN, 1, 0.0, 0.0))
        writer.append(KafkaRequestEvent(1, 1.0, seq=7))
        writer.close()
        report = sealInProcess(directory, CAP_BYTES)
        self.assertEqual((report.sealedSegments, report.sealedRows), (1, 1))
        self.assertEqual(sealedSeqs(directory), [7])

    def test_fails(self) -> None:
        """When the process ends badly, its last word is the reason."""
        much: Any = "much"
        failure = self.assertRaises(SealingFailed, sealInProcess, self.mktemp(), much)
        self.assertEqual(str(failure), "ValueError: invalid literal for int() with base 10: 'much'")

    def test_silent(self) -> None:
        """When it ends without a word, its status is."""
        self.patch(parquetexporter.sys, "executable", "/bin/false")
        failure = self.assertRaises(SealingFailed, sealInProcess, self.mktemp(), 0)
        self.assertEqual(str(failure), "it ended with status 1")


class BenchmarkTests(SynchronousTestCase):
    """C{benchmarks.recording}."""

    @longForm
    def test_quick(self) -> None:
        """It runs, measures all that it says, and accounts for every event.  Beside busy processes it may drop some."""
        result = subprocess.run(
            [sys.executable, "-m", "benchmarks.recording", "--quick", "--json"],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(len(report["events"]), 4)
        for row in report["events"]:
            self.assertGreater(row["cpuMicroseconds"], 0)
        ticks = {row["sealed"]: row for row in report["ticks"]}
        self.assertEqual(set(ticks), {"not recorded", "packed only", "not sealed", "in a process", "in a thread"})
        for name, row in ticks.items():
            sealedRows = row["events"] - row["droppedEvents"] if name.startswith("in a ") else 0
            self.assertEqual(row["sealedRows"], sealedRows, name)

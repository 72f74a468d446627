"""L{admission_plugins.sealing}."""

from __future__ import annotations

import os
from errno import EACCES
from pathlib import Path
from typing import Any

from hypothesis import given, strategies as st
from pyarrow import int64, list_, parquet as pq, string, timestamp
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.serving.recordedcolumns import KafkaRequestEvent
from admission.recording.arrow import arrowTable
from admission.recording.events import ConnectionEvent, LimitEvent, Origin, SensorSample
from admission.recording.schema import CONNECTIONS, LIMITS, SENSORS, ColumnType
from admission.recording.segmentheader import Header
from admission.recording.segments import SMALLEST_SEGMENT_BYTES, Segment, SegmentWriter, lockAbandoned
from admission.recording.tables import REQUESTS, TABLES
from admission_plugins import sealing
from admission_plugins.sealing import evict, main, sealAll
from admission_plugins.sealreport import SealReport
from tests.kit.checkout import ROOT

CAP_BYTES = 1 << 30
WALL_SECONDS = 1_714_554_000.0
"""2024-05-01 09:00:00 UTC."""

HOUR = "dt=2024-05-01/hour=09"


class SealingTestCase(SynchronousTestCase):
    """Has a directory that something was recorded to."""

    def setUp(self) -> None:
        self.root = Path(self.mktemp())
        self.segments = self.root / "_segments"
        self.segments.mkdir(parents=True)

    def writer(self, name: str, wallSeconds: float = WALL_SECONDS, sizeBytes: int = 1 << 20) -> SegmentWriter:
        """A segment that is written.  The monotonic clock began with it."""
        writer = SegmentWriter(str(self.segments / f"{name}.segment"), sizeBytes)
        writer.begin(Header(Origin("3", "boot", 17, ("bandwidth",)), 1, 0.0, wallSeconds))
        return writer

    def record(self, name: str, *events: Any, wallSeconds: float = WALL_SECONDS) -> str:
        """
        A segment with these events that nobody writes any more.

        @return: its path.
        """
        writer = self.writer(name, wallSeconds)
        for event in events:
            self.assertTrue(writer.append(event))
        writer.close()
        return writer.path

    def files(self) -> list[str]:
        """Everything there is, besides directories."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())

    def seqs(self, table: str = "requests") -> list[int]:
        """The numbers of all events in Parquet files of a table."""
        paths = sorted((self.root / table).rglob("*.parquet"))
        return [seq for path in paths for seq in pq.read_table(path, partitioning=None)["seq"].to_pylist()]


class ArrowTests(SealingTestCase):
    """L{arrowTable} agrees with L{Segment.rows}, which reads the same records one by one."""

    def check(self, path: str) -> None:
        """Both read the same."""
        segment = Segment.load(path)
        assert segment is not None
        for table in TABLES:
            rows = list(segment.rows(table))
            found = arrowTable(segment, table)
            if found is None:
                self.assertEqual(rows, [])
                continue
            read = found.set_column(4, "ts", found["ts"].cast(int64())).to_pylist()
            self.assertEqual(read, rows)

    @given(
        st.lists(
            st.builds(
                KafkaRequestEvent,
                connectionId=st.integers(-(2**63), 2**63 - 1),
                arrivedSeconds=st.floats(0, 1e7),
                clientId=st.none() | st.text(max_size=5),
                principal=st.none() | st.text(max_size=5),
                identities=st.lists(st.integers(0, 2**63 - 1), max_size=6),
                policyDelaysSeconds=st.lists(st.floats(), max_size=7),
                serviceSeconds=st.floats(),
                isCounted=st.sampled_from([-1, False, True]),
                apiKey=st.integers(-(2**15), 2**15 - 1),
            ),
            min_size=1,
            max_size=8,
        )
    )
    def test_requests(self, events: list[KafkaRequestEvent]) -> None:
        """Whatever the values are."""
        path = self.record("a", *events)
        self.check(path)
        os.unlink(path)

    def test_allTables(self) -> None:
        """For all tables, and with several records of each."""
        self.check(
            self.record(
                "a",
                ConnectionEvent(1, 1.0, "opened", "tcp", "::1"),
                KafkaRequestEvent(1, 2.0, listener="tcp", clientId="a", identities=[1, 2]),
                LimitEvent(3.0, "me", None, None, "rate", float("nan")),
                SensorSample(4.0, "Used", "gauge", 5.5),
                KafkaRequestEvent(1, 5.0, listener="tcp", clientId="b", isKnown=True, policyDelaysSeconds=[0.5]),
                ConnectionEvent(1, 6.0, "closed", "tcp", "::1", "me", "idle", 2, 5.0),
            )
        )

    def test_lostText(self) -> None:
        """Where a text did not reach the disk."""
        path = self.record("a", KafkaRequestEvent(1, 1.0, clientId="lost", principal="me"))
        raw = Path(path).read_bytes()
        place = raw.index(b"lost".ljust(250, b"\0"))
        Path(path).write_bytes(raw[:place] + bytes(256) + raw[place + 256 :])
        segment = Segment.load(path)
        assert segment is not None
        [row] = segment.rows(REQUESTS)
        self.assertEqual((row["client_id"], row["principal"]), ("<overflow>", "me"))
        self.check(path)

    def test_olderVersion(self) -> None:
        """Where the segment lacks columns, as that of the first version does."""
        self.check(str(ROOT / "tests" / "unit" / "recording" / "data" / "version1.segment"))


class SealTests(SealingTestCase):
    """L{sealAll}."""

    def test_seal(self) -> None:
        """
        Every table of a segment becomes a Parquet file of its name in the
        partition of its hour, and the segment goes.
        """
        self.record(
            "boot-000001",
            KafkaRequestEvent(1, 1.0, clientId="a", seq=1),
            ConnectionEvent(1, 2.0, "closed", seq=2),
            KafkaRequestEvent(1, 3.0, clientId="b", seq=3),
        )
        report = sealAll(self.root, CAP_BYTES)
        self.assertEqual(self.files(), [f"{table}/{HOUR}/boot-000001.parquet" for table in ("connections", "requests")])
        self.assertEqual((report.sealedSegments, report.sealedRows, report.problems), (1, 3, []))
        self.assertEqual(report.sealedBytes, sum(os.path.getsize(self.root / name) for name in self.files()))
        rows = pq.read_table(self.root / f"requests/{HOUR}/boot-000001.parquet", partitioning=None).to_pylist()
        self.assertEqual(
            [(row["seq"], row["client_id"], row["gate_seed"]) for row in rows], [(1, "a", 17), (3, "b", 17)]
        )
        self.assertEqual(str(rows[0]["ts"]), "2024-05-01 09:00:01+00:00")

    def test_schema(self) -> None:
        """
        Files have all columns, in the types that can be read for ever: whole
        numbers of 64 bits, microseconds in UTC.
        """
        self.record(
            "a",
            KafkaRequestEvent(1, 1.0),
            ConnectionEvent(1, 2.0, "closed"),
            LimitEvent(3.0, None, None, None, "rate", 1.0),
            SensorSample(4.0, "Used", "gauge", 1.0),
        )
        sealAll(self.root, CAP_BYTES)
        for table in (REQUESTS, CONNECTIONS, LIMITS, SENSORS):
            schema = pq.read_schema(self.root / table.name / HOUR / "a.parquet").remove_metadata()
            self.assertEqual(schema.names, [column.name for column in table.columns])
            for column in table.columns:
                type = schema.field(column.name).type
                if column.type in (ColumnType.INTEGER, ColumnType.IDENTITY, ColumnType.SECONDS):
                    self.assertEqual(type, int64())
                elif column.type.isText:
                    self.assertEqual(type.value_type, string())
                elif column.type in (ColumnType.INTEGERS, ColumnType.DURATIONS):
                    self.assertEqual(type, list_(int64()))
            self.assertEqual(schema.field("ts").type, timestamp("us", "UTC"))

    def test_hours(self) -> None:
        """Each event is in the hour that it happened in, whatever segment it was recorded in."""
        self.record("a", *(KafkaRequestEvent(1, each * 1000.0, seq=each) for each in range(8)))
        self.record("b", KafkaRequestEvent(1, float("nan"), seq=9))
        sealAll(self.root, CAP_BYTES)
        found = {
            str(path.relative_to(self.root)): pq.read_table(path, partitioning=None)["seq"].to_pylist()
            for path in self.root.rglob("*.parquet")
        }
        self.assertEqual(
            found,
            {
                f"requests/{HOUR}/a.parquet": [0, 1, 2, 3],
                "requests/dt=2024-05-01/hour=10/a.parquet": [4, 5, 6, 7],
                f"requests/{HOUR}/b.parquet": [9],
            },
        )

    def test_interrupted(self) -> None:
        """
        A process that is interrupted, however far it got, leaves something that is sealed again; then everything is
        there once.
        """
        for function in ("fsync", "unlink"):
            path = self.record(function, KafkaRequestEvent(1, 1.0, seq=1), ConnectionEvent(1, 1.0, "opened", seq=2))
            with self.subTest(function):

                def interrupt(*args: Any) -> None:
                    raise KeyboardInterrupt

                patch = self.patch(os, function, interrupt)
                self.assertRaises(KeyboardInterrupt, sealAll, self.root, CAP_BYTES)
                patch.restore()
                self.assertTrue(os.path.exists(path))
                sealAll(self.root, CAP_BYTES)
                self.assertEqual(
                    self.files(), [f"{table}/{HOUR}/{function}.parquet" for table in ("connections", "requests")]
                )
                self.assertEqual((self.seqs(), self.seqs("connections")), ([1], [2]))
            for name in self.files():
                os.unlink(self.root / name)

    def test_unfinishedIsInvisible(self) -> None:
        """While a file is written its name is one that Spark passes over."""
        seen: list[list[str]] = []
        real = os.fsync

        def look(fileno: int) -> None:
            seen.append(self.files())
            real(fileno)

        self.record("a", KafkaRequestEvent(1, 1.0))
        self.patch(os, "fsync", look)
        sealAll(self.root, CAP_BYTES)
        self.assertEqual(seen[0], ["_segments/a.segment", f"requests/{HOUR}/.a.parquet.tmp"])

    def test_written(self) -> None:
        """A segment that is still written is left alone, ready or not."""
        written = self.writer("written")
        self.addCleanup(written.close)
        written.append(KafkaRequestEvent(1, 1.0, seq=1))
        spare = SegmentWriter(str(self.segments / "spare.segment"), SMALLEST_SEGMENT_BYTES)
        self.addCleanup(spare.close)
        self.record("left", KafkaRequestEvent(1, 1.0, seq=2))
        self.assertEqual(sealAll(self.root, CAP_BYTES).sealedSegments, 1)
        self.assertEqual(
            self.files(), ["_segments/spare.segment", "_segments/written.segment", f"requests/{HOUR}/left.parquet"]
        )

    def test_nothingInThem(self) -> None:
        """Segments that were made and never used go without a trace."""
        (self.segments / "spare.segment").write_bytes(bytes(SMALLEST_SEGMENT_BYTES))
        (self.segments / "unfinished.segment.new").write_bytes(b"")
        report = sealAll(self.root, CAP_BYTES)
        self.assertEqual((self.files(), report.sealedSegments, report.problems), ([], 0, []))

    def test_damaged(self) -> None:
        """What cannot be read is set aside, once and with the reason; the others are sealed."""
        (self.segments / "a.segment").write_bytes(b"x" * 5000)
        path = self.record("b", KafkaRequestEvent(1, 1.0, seq=1))
        # A header that can be read and makes no sense.
        Path(path).write_bytes(Path(path).read_bytes().replace(b'"seq", "integer", "q"', b'"seq", "integer", "Z"'))
        self.record("c", KafkaRequestEvent(1, 1.0, seq=1))
        os.truncate(self.record("d", KafkaRequestEvent(1, 1.0, seq=1)), 1 << 40)
        problems = sealAll(self.root, 2 << 40).problems
        for name, problem in zip("abd", problems, strict=True):
            self.assertTrue(problem.startswith(f"{name}.segment is set aside: "), problem)
        self.assertEqual(
            self.files(), [*(f"_segments/{each}.segment.damaged" for each in "abd"), f"requests/{HOUR}/c.parquet"]
        )
        self.assertEqual(sealAll(self.root, CAP_BYTES).problems, [])

    def test_strangeYear(self) -> None:
        """A segment with a record of a year that no calendar has is set aside, and not tried again each time."""
        for seconds in (9e11, -9e11):
            self.record("a", KafkaRequestEvent(1, seconds, seq=1))
            [problem] = sealAll(self.root, CAP_BYTES).problems
            self.assertTrue(problem.startswith("a.segment is set aside: "), problem)
            self.assertEqual(sealAll(self.root, CAP_BYTES).problems, [])

    def test_cannotSeal(self) -> None:
        """What cannot be sealed now stays, and the others are sealed."""
        self.record("a", KafkaRequestEvent(1, 1.0, seq=1))
        self.record("b", ConnectionEvent(1, 1.0, "opened", seq=2))
        (self.root / "requests").write_text("in the way")
        [problem] = sealAll(self.root, CAP_BYTES).problems
        self.assertTrue(problem.startswith("a.segment cannot be sealed now: "), problem)
        self.assertEqual(self.seqs("connections"), [2])
        (self.root / "requests").unlink()
        self.assertEqual(sealAll(self.root, CAP_BYTES).problems, [])
        self.assertEqual(self.seqs(), [1])

    def test_cannotOpen(self) -> None:
        """A segment that may not be opened stays, and the others are sealed."""
        self.record("a", KafkaRequestEvent(1, 10.0, seq=1))
        self.record("b", KafkaRequestEvent(1, 10.0, seq=2))

        def lock(path: str) -> int | None:
            if path.endswith("a.segment"):
                raise PermissionError(EACCES, "Permission denied", path)
            return lockAbandoned(path)

        self.patch(sealing, "lockAbandoned", lock)
        report = sealAll(self.root, CAP_BYTES)
        (problem,) = report.problems
        self.assertTrue(problem.startswith("a.segment cannot be sealed now: [Errno 13] Permission denied"), problem)
        self.assertEqual(self.seqs(), [2])
        self.assertIn("_segments/a.segment", self.files())

    def test_command(self) -> None:
        """As a process it is told where and how much, and prints what came of it."""
        self.record("a", KafkaRequestEvent(1, 1.0))
        written: list[str] = []
        self.patch(os, "nice", lambda niceness: self.assertGreater(niceness, 0))
        self.patch(sealing.sys.stdout, "write", written.append)
        main([str(self.root), str(CAP_BYTES)])
        report = SealReport.fromJson("".join(written))
        self.assertEqual((report.sealedSegments, report.sealedRows), (1, 1))


class EvictionTests(SealingTestCase):
    """L{evict}."""

    def file(self, name: str, sizeBytes: int, ageSeconds: int = 0) -> None:
        """A file like those that sealing makes."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(sizeBytes))
        os.utime(path, (WALL_SECONDS - ageSeconds,) * 2)

    def evict(self, capBytes: int) -> SealReport:
        """Keep the bound."""
        report = SealReport()
        evict(self.root, capBytes, report)
        return report

    def test_oldestFirst(self) -> None:
        """
        The oldest go, of whatever table, until three quarters of the bound
        hold all; emptied partitions go as well.
        """
        self.file("requests/dt=2024-05-01/hour=09/a.parquet", 100)
        self.file("sensors/dt=2024-05-01/hour=08/a.parquet", 100)
        self.file("requests/dt=2024-04-30/hour=23/a.parquet", 100)
        self.file("requests/dt=2024-05-01/hour=10/a.parquet", 100)
        report = self.evict(400)
        self.assertEqual((report.evictedFiles, report.evictedBytes, report.sealedBytes), (1, 100, 300))
        self.assertFalse((self.root / "requests/dt=2024-04-30").exists())
        self.evict(300)
        self.assertEqual(
            self.files(), ["requests/dt=2024-05-01/hour=09/a.parquet", "requests/dt=2024-05-01/hour=10/a.parquet"]
        )
        self.assertFalse((self.root / "sensors/dt=2024-05-01").exists())

    def test_withinTheHour(self) -> None:
        """Within an hour the one goes first that was sealed first."""
        self.file("requests/dt=2024-05-01/hour=09/b.parquet", 100, ageSeconds=60)
        self.file("requests/dt=2024-05-01/hour=09/a.parquet", 100)
        self.evict(200)
        self.assertEqual(self.files(), ["requests/dt=2024-05-01/hour=09/a.parquet"])

    def test_limitsLast(self) -> None:
        """Limits stay as long as there is anything else."""
        self.file("limits/dt=2020-01-01/hour=00/a.parquet", 100)
        self.file("requests/dt=2024-05-01/hour=09/a.parquet", 100)
        self.evict(200)
        self.assertEqual(self.files(), ["limits/dt=2020-01-01/hour=00/a.parquet"])
        self.evict(100)
        self.assertEqual(self.files(), [])

    def test_enoughRoom(self) -> None:
        """Nothing goes while there is room, and what is not ours never does."""
        self.file("requests/dt=2024-05-01/hour=09/a.parquet", 300)
        mine = ["copy/dt=2024-05-01/hour=09/a.parquet", "notes.parquet"]
        for name in mine:
            self.file(name, 1000)
        self.assertEqual(self.evict(400).evictedFiles, 0)
        self.evict(10)
        self.assertEqual(self.files(), mine)

    def test_twoAtATime(self) -> None:
        """Files and directories that somebody else removes meanwhile are no error."""
        names = [f"requests/dt=2024-05-0{day}/hour=09/a.parquet" for day in (1, 2, 3)]
        for name in names:
            self.file(name, 100)
        stat = Path.stat

        def statAfterRemoval(path: Path, **arguments: Any) -> os.stat_result:
            if str(path).endswith(names[0]):
                path.unlink()
                path.parent.rmdir()
            return stat(path, **arguments)

        self.patch(Path, "stat", statAfterRemoval)
        self.assertEqual(self.evict(200).evictedFiles, 1)
        self.assertEqual(self.files(), names[2:])

    def test_damaged(self) -> None:
        """Segments that were set aside count, and go first."""
        self.file("_segments/a.segment.damaged", 100)
        self.file("requests/dt=2024-05-01/hour=09/a.parquet", 100)
        self.assertEqual(self.evict(250).evictedFiles, 1)
        self.assertEqual(self.files(), ["requests/dt=2024-05-01/hour=09/a.parquet"])
        self.assertTrue(self.segments.is_dir())

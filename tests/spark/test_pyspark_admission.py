"""L{pyspark_admission} as far as it goes without Spark's Java."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings, strategies as st
from pyarrow import parquet as pq
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark.sql.types import IntegerType, LongType, StructType
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.serving.recordedcolumns import KafkaRequestEvent
from admission.recording import places
from admission.recording.events import ConnectionEvent, Event, LimitEvent, Origin, SensorSample
from admission.recording.places import StorageFailed
from admission.recording.schema import SENSORS, VERSION
from admission.recording.segmentheader import Header
from admission.recording.segments import Segment, SegmentWriter
from admission.recording.tables import REQUESTS, TABLES
from admission_plugins import sealing, sealreport
from admission_plugins.sealing import sealAll, sealSegment
from pyspark_admission import DefaultSource, batch, files
from pyspark_admission.columns import columnsOf
from pyspark_admission.files import processAndNumber, sealedFiles, segmentNames, segmentPath
from pyspark_admission.options import Options, parseMoment
from pyspark_admission.segmentreading import BATCH_ROWS, merged
from pyspark_admission.stream import StreamReader
from tests.kit.brokerprocess import ENVIRONMENT
from tests.kit.recordings import SEGMENT_BYTES, WALL_SECONDS, writeRecording

HOUR_SECONDS = 3600.0
CAP_BYTES = 1 << 30


def someEvents(count: int = 10) -> list[Event]:
    """Events of all tables, a few of each, over some hours."""
    events: list[Event] = []
    for number in range(count):
        atSeconds = number * 1000.5
        events += [
            KafkaRequestEvent(
                number,
                atSeconds,
                principal="alice",
                clientId=f"client {number % 3}",
                identities=range(number),
                policyDelaysSeconds=[0.25, 0.0],
                decidedSeconds=atSeconds + 0.5,
                isCounted=number % 2,
            ),
            ConnectionEvent(number, atSeconds, "opened", peer="127.0.0.1"),
            LimitEvent(atSeconds, "alice", None, None, "rate", float("nan") if number % 2 else 5.0),
            SensorSample(atSeconds, "Used", "gauge", 1.5),
        ]
    return events


def reader(directory: str | Path, columns: StructType | None = None, **options: str) -> Any:
    """What Spark makes of a source with these options, in each of its processes."""
    source = pickle.loads(pickle.dumps(DefaultSource(CaseInsensitiveDict({"path": str(directory), **options}))))
    return source.reader(source.schema() if columns is None else columns)


def readPartitions(reader: Any, partitions: list[InputPartition]) -> list[dict[str, Any]]:
    """The rows of partitions, each of which goes to another process."""
    rows: list[dict[str, Any]] = []
    for partition in pickle.loads(pickle.dumps(partitions)):
        for found in reader.read(partition):
            rows += found.to_pylist()
    return rows


def readAll(directory: str | Path, columns: StructType | None = None, **options: str) -> list[dict[str, Any]]:
    """The rows of a recording."""
    batches = reader(directory, columns, **options)
    return readPartitions(batches, batches.partitions())


def seqs(rows: list[dict[str, Any]]) -> list[int]:
    """The numbers of events, ascending."""
    return sorted(row["seq"] for row in rows)


def segmentFile(directory: Path, name: str) -> Path:
    """The file of a segment that is not sealed."""
    return Path(segmentPath(str(directory), name))


class RecordedTestCase(SynchronousTestCase):
    """Has a directory to record to, and keeps what the log says."""

    def setUp(self) -> None:
        self.directory = Path(self.mktemp()).absolute()
        self.told: list[str] = []
        self.patch(batch.log, "warning", lambda form, *values: self.told.append(form % values))

    def record(
        self,
        *numbers: int,
        isSealed: bool = True,
        process: str = "boot",
        hour: int = 0,
        segmentNumber: int | None = None,
    ) -> str:
        """
        Record a segment of requests with these numbers.

        @return: its name.
        """
        events = [KafkaRequestEvent(1, hour * HOUR_SECONDS + number, seq=number) for number in numbers]
        [name] = writeRecording(self.directory, events, Origin("3", process), isSealed, firstNumber=segmentNumber)
        return name

    def parquet(self, name: str) -> Path:
        """The file of a segment, if there is one."""
        [path] = self.directory.rglob(f"{name}.parquet")
        return path

    def sealPartly(self, name: str) -> None:
        """Seal a segment that has not gone yet."""
        path = segmentFile(self.directory, name)
        contents = path.read_bytes()
        sealSegment(self.directory, str(path))
        path.write_bytes(contents)


class OptionsTests(RecordedTestCase):
    """L{Options}"""

    def parse(self, **options: str) -> Options:
        """What options for the directory mean."""
        return Options.parse(CaseInsensitiveDict({"path": str(self.directory), **options}))

    def test_defaults(self) -> None:
        """Only the directory has to be said; it is all requests then."""
        self.record(1)
        self.assertEqual(self.parse(), Options(str(self.directory), REQUESTS))
        self.assertFalse(self.parse().range.isBounded)

    def test_given(self) -> None:
        """Names are taken in any case, as Spark's own are."""
        self.record(1)
        options = self.parse(
            TABLE="sensors", Since="0", until="1", broker="7", maxfilespertrigger="5", segments="a-1,b-2"
        )
        self.assertEqual(options.table, SENSORS)
        self.assertEqual((options.range.since, options.range.until), (0, 1_000_000))
        self.assertEqual((options.brokerId, options.filesPerTrigger, options.segments), ("7", 5, ("a-1", "b-2")))

    def test_fileScheme(self) -> None:
        """The directory may be written as Spark writes it."""
        self.record(1)
        for scheme in ["file:", "file://"]:
            self.assertEqual(Options.parse({"path": scheme + str(self.directory)}).directory, str(self.directory))

    def test_moments(self) -> None:
        """A moment is ISO 8601 or seconds since the epoch, to the microsecond."""
        for text, expected in [
            ("1970-01-02", 86_400_000_000),
            ("1970-01-01T00:01", 60_000_000),
            ("1970-01-01T01:00:00.000001+01:00", 1),
            ("1970-01-01 00:00:02Z", 2_000_000),
            (" 1700000000.123456 ", 1_700_000_000_123_456),
            ("-1.5", -1_500_000),
        ]:
            self.assertEqual(parseMoment(text), expected, text)

    def test_refused(self) -> None:
        """What makes no sense is refused in one sentence, with the remedy."""
        self.record(1)
        for options, sentence in [
            ({"sinse": "0"}, "there is no option sinse: is it since?"),
            ({"zzzzzz": "0"}, "there is no option zzzzzz: there are table, since, until, broker, segments and maxF"),
            ({"table": "request"}, "there is no table request: there are requests, connections, limits, sensors and"),
            ({"since": "yesterday"}, "'yesterday' is not a moment: write 2026-03-01, "),
            ({"since": "1700000000000"}, "'1700000000000' is not a moment: "),
            ({"until": "2026-13-01"}, "'2026-13-01' is not a moment: "),
            ({"since": "7", "until": "7"}, "there is no time from 7 to 7: the first has to be before"),
            ({"maxFilesPerTrigger": "0"}, "maxFilesPerTrigger is a number of files, from 1, and not '0'"),
            ({"maxFilesPerTrigger": "many"}, "maxFilesPerTrigger is a number of files, from 1, and not 'many'"),
            ({"path": ""}, "say which recording to read, one directory at a time: .load(DIRECTORY)"),
            ({"path": "ftp://a/b"}, "ftp://a/b is in storage of an unknown kind: name a directory, or a URL with"),
            ({"path": "s3a://me:secret@a/b"}, "a URL with a password would be stored with results: leave it out, "),
            ({"path": "/nowhere"}, "there is no directory /nowhere: name the one that was given to --export spark:"),
            ({"path": "/"}, "there is no recording in /: name the directory given to --export spark:DIRECTORY"),
        ]:
            refusal = str(self.assertRaises(ValueError, self.parse, **options))
            self.assertIn(sentence, refusal)
            self.assertNotIn("\n", refusal)

    def test_severalDirectories(self) -> None:
        """Several directories at a time are refused, which Spark hands on as an option of its own."""
        refusal = str(self.assertRaises(ValueError, Options.parse, {"paths": '["a", "b"]'}))
        self.assertIn("one directory at a time", refusal)

    def test_sparksOwn(self) -> None:
        """What Spark may add, which has dots, is let pass."""
        self.record(1)
        self.assertEqual(self.parse(**{"serialization.format": "1"}), self.parse())


class FilesTests(RecordedTestCase):
    """L{pyspark_admission.files}"""

    def test_sameAsExporter(self) -> None:
        """The names are those that the exporter gives, which cannot be imported from there."""
        self.assertEqual((files.SEGMENTS, files.DAMAGED_SUFFIX), (sealreport.SEGMENTS, sealing.DAMAGED_SUFFIX))

    def test_sealed(self) -> None:
        """
        Files come by hour and by name, with their sizes; what is being made or
        was put there by somebody else does not.
        """
        second = self.record(1, hour=30)
        first = self.record(2, hour=2)
        path = self.parquet(first)
        path.with_name(".x.parquet.tmp").write_text("x")
        path.with_name(".x.parquet").write_text("x")
        path.with_name("x.txt").write_text("x")
        os.mkfifo(path.with_name("x.parquet"))
        path.parent.with_name("hour=noon").mkdir()
        path.parent.with_name("hour=noon").joinpath("x.parquet").write_text("x")
        path.parent.parent.with_name("dt=2023-11-17").write_text("x")
        found = sealedFiles(str(self.directory), REQUESTS)
        self.assertEqual([file.name for file in found], [first, second])
        self.assertEqual((found[0].path, found[0].sizeBytes), (str(path), path.stat().st_size))
        began = int((WALL_SECONDS + 2 * HOUR_SECONDS) // HOUR_SECONDS * HOUR_SECONDS)
        self.assertEqual((found[0].hour, found[0].endOfHour), (began * 1_000_000, (began + 3600) * 1_000_000))
        self.assertEqual([file.name for file in sealedFiles(str(self.directory), REQUESTS, [first])], [second])
        self.assertEqual(sealedFiles(str(self.directory), SENSORS), [])

    def test_segments(self) -> None:
        """Segments are known by their names; one that is only being made is not."""
        name = self.record(1, isSealed=False)
        segmentFile(self.directory, name).with_name("boot-000002.segment.new").write_bytes(b"")
        self.assertEqual(segmentNames(str(self.directory)), [name])

    def test_names(self) -> None:
        """A name tells the process and the number of a segment, or nothing."""
        self.assertEqual(processAndNumber("a-b-000012"), ("a-b", 12))
        for name in ["part-00000-3c.c000", "-000001", "000001", "a-", "a-²"]:
            self.assertIs(processAndNumber(name), None, name)


class ColumnsTests(RecordedTestCase):
    """L{pyspark_admission.columns}"""

    def test_arrow(self) -> None:
        """What is read of each table has the types that Spark expects, to the letter: it compares them."""
        writeRecording(self.directory, someEvents(), isSealed=True)
        writeRecording(self.directory, someEvents(), isSealed=False)
        for table in ["requests", "connections", "limits", "sensors"]:
            batches = reader(self.directory, table=table)
            found = [found for each in batches.partitions() for found in batches.read(each)]
            self.assertGreater(len(found), 1)
            columns = columnsOf(next(each for each in TABLES if each.name == table))
            for each in found:
                self.assertEqual(each.schema, to_arrow_schema(columns, timezone="UTC"))

    def test_problems(self) -> None:
        """So has the table of problems."""
        self.parquet(self.record(1)).write_text("x")
        batches = reader(self.directory, table="problems")
        [found] = [found for each in batches.partitions() for found in batches.read(each)]
        self.assertEqual(found.schema, to_arrow_schema(columnsOf(None), timezone="UTC"))

    def test_chosen(self) -> None:
        """Some of the columns can be asked for, in any order, along with a range of time that takes others."""
        self.record(1, 2, 3)
        columns = StructType().add("seq", LongType()).add("v", LongType())
        rows = readAll(self.directory, columns, since=str(WALL_SECONDS + 2), broker="3")
        self.assertEqual(rows, [{"seq": 2, "v": VERSION}, {"seq": 3, "v": VERSION}])
        self.assertEqual(list(rows[0]), ["seq", "v"])

    def test_unknown(self) -> None:
        """A column that there is not, or of another type, is refused."""
        self.record(1)
        for columns, sentence in [
            (StructType().add("sec", LongType()), "there is no column sec: leave .schema(...) out to see all"),
            (StructType().add("seq", IntegerType()), "seq is bigint: read it so, and cast it to int afterwards"),
        ]:
            self.assertEqual(str(self.assertRaises(ValueError, reader, self.directory, columns)), sentence)


class BatchTests(RecordedTestCase):
    """L{batch.BatchReader}"""

    def test_everything(self) -> None:
        """Every value of every table is what was recorded, sealed or not."""
        writeRecording(self.directory, someEvents(), isSealed=True)
        other = self.mktemp()
        [name] = writeRecording(other, someEvents(), isSealed=False)
        segment = Segment.load(segmentFile(Path(other), name))
        assert segment is not None
        for table in TABLES:
            expected = list(segment.rows(table))
            self.assertEqual(len(expected), 10)
            for directory in (self.directory, other):
                rows = readAll(directory, table=table.name)
                for row in rows:
                    row["ts"] = round(row["ts"].timestamp() * 1e6)
                self.assertEqual(rows, expected)

    def test_union(self) -> None:
        """What is sealed and what is not are one set, whatever the process."""
        self.record(1, 2)
        self.record(3, isSealed=False)
        self.record(4, isSealed=False, process="other")
        self.assertEqual(seqs(readAll(self.directory)), [1, 2, 3, 4])

    def test_beingWritten(self) -> None:
        """A segment that is being written is read as far as it is, and one that is ready to be is empty."""
        self.record(1)
        path = segmentFile(self.directory, "boot-000002")
        writer = SegmentWriter(str(path), SEGMENT_BYTES)
        self.addCleanup(writer.close)
        self.assertEqual(seqs(readAll(self.directory)), [1])
        writer.begin(Header(Origin("3", "boot"), 2, 0.0, WALL_SECONDS))
        writer.append(KafkaRequestEvent(1, 0.0, seq=2))
        self.assertEqual(seqs(readAll(self.directory)), [1, 2])
        self.assertEqual(self.told, [])

    def test_beingSealed(self) -> None:
        """A segment whose Parquet files are there while it has not gone yet is read once."""
        self.sealPartly(self.record(1, 2, isSealed=False))
        self.record(3, isSealed=False)
        self.assertEqual(seqs(readAll(self.directory)), [1, 2, 3])

    def test_sealedMeanwhile(self) -> None:
        """
        A segment that is sealed after it was planned to be read, is read from
        its Parquet files, all of its hours.
        """
        [name] = writeRecording(self.directory, someEvents(), isSealed=False)
        batches = reader(self.directory, since=str(WALL_SECONDS + 2000))
        partitions = batches.partitions()
        sealAll(self.directory, CAP_BYTES)
        self.assertEqual(segmentNames(str(self.directory)), [])
        self.assertGreater(len(list(self.directory.rglob(f"requests/*/*/{name}.parquet"))), 1)
        rows = readPartitions(batches, partitions)
        self.assertEqual(seqs(rows), [1 + 4 * number for number in range(2, 10)])
        self.assertEqual(self.told, [])

    def test_setAsideMeanwhile(self) -> None:
        """One that could not be sealed is told of, not passed over."""
        name = self.record(1, isSealed=False)
        batches = reader(self.directory)
        partitions = batches.partitions()
        path = segmentFile(self.directory, name)
        path.write_text("no segment")
        sealAll(self.directory, CAP_BYTES)
        self.assertEqual(readPartitions(batches, partitions), [])
        self.assertEqual(self.told, [f"{path}.damaged was set aside when it could not be sealed"])

    def test_evictedMeanwhile(self) -> None:
        """A file that was removed for want of room is told of; the rest is read."""
        gone = self.parquet(self.record(1))
        self.record(2)
        batches = reader(self.directory)
        partitions = batches.partitions()
        gone.unlink()
        self.assertEqual(seqs(readPartitions(batches, partitions)), [2])
        self.assertEqual(self.told, [f"{gone} has been removed"])

    def test_range(self) -> None:
        """
        C{since} is the first moment and C{until} the one after the last, to the
        microsecond and for segments, too; files of other hours are not opened.
        """
        for isSealed in (True, False):
            self.record(1, hour=0, isSealed=isSealed)
            self.record(2, hour=1, isSealed=isSealed)
            self.record(3, 4, 5, hour=2, isSealed=isSealed)
        self.parquet("boot-000001").write_text("not to be opened")
        at = WALL_SECONDS + 2 * HOUR_SECONDS
        for since, until, expected in [
            (at + 4, at + 5, [4]),
            (at + 4.000001, at + 5.000001, [5]),
            (at + 9, at + 99, []),
        ]:
            rows = readAll(self.directory, since=f"{since:.6f}", until=f"{until:.6f}")
            self.assertEqual(seqs(rows), sorted(expected * 2))
        self.assertEqual(self.told, [])
        [sealed] = [each for each in reader(self.directory, since=str(at)).partitions() if "requests" in each.value[0]]
        self.assertEqual(sealed.value, (str(self.parquet("boot-000003")),))

    def test_broker(self) -> None:
        """One broker's rows can be asked for."""
        self.record(1)
        writeRecording(self.directory, [KafkaRequestEvent(1, 0.0, seq=2)], Origin("4", "other"))
        self.assertEqual(seqs(readAll(self.directory, broker="4")), [2])
        self.assertEqual(readAll(self.directory, broker="5"), [])

    def test_onlySegments(self) -> None:
        """Segments can be asked for by name, sealed or not; there may be none."""
        sealed = self.record(1)
        self.record(2)
        unsealed = self.record(3, isSealed=False)
        self.record(4, isSealed=False)
        self.assertEqual(seqs(readAll(self.directory, segments=f"{sealed},{unsealed}")), [1, 3])
        self.assertEqual(readAll(self.directory, segments=""), [])

    def test_older(self) -> None:
        """
        A file of an older version, with fewer columns and fewer bits, has nulls
        where it says nothing; what a newer one says besides is passed over.
        """
        path = self.parquet(self.record(7))
        table = pq.read_table(path, partitioning=None).select(["seq", "ts", "conn_id", "client_id", "policy_delays_us"])
        table = table.set_column(0, "seq", table["seq"].cast(pa.int32()))
        table = table.set_column(1, "ts", table["ts"].cast(pa.timestamp("ms", "UTC")))
        table = table.set_column(4, "policy_delays_us", table["policy_delays_us"].cast(pa.list_(pa.int16())))
        pq.write_table(table.append_column("unheard_of", pa.array(["x"])), path)
        [row] = readAll(self.directory)
        self.assertEqual(list(row), columnsOf(REQUESTS).names)
        self.assertEqual((row["seq"], row["conn_id"], row["ts"].timestamp()), (7, 1, WALL_SECONDS + 7))
        self.assertEqual({row[name] for name in row if name not in table.column_names}, {None})
        self.assertEqual(self.told, [])
        self.assertEqual(readAll(self.directory, broker="3"), [])

    def test_bounded(self) -> None:
        """Files that follow each other are read by one task until they are too large together."""
        names = [self.record(number) for number in range(1, 6)]
        self.assertEqual(len(reader(self.directory).partitions()), 1)
        self.patch(batch, "PARTITION_BYTES", 3 * batch.OPENING_BYTES)
        packs = [partition.value for partition in reader(self.directory).partitions()]
        self.assertEqual([len(pack) for pack in packs], [2, 2, 1])
        self.assertEqual([Path(path).stem for pack in packs for path in pack], names)

    def test_merged(self) -> None:
        """Batches are neither small nor large, and keep their order."""
        small = [pa.RecordBatch.from_pydict({"a": [number] * 1000}) for number in range(100)]
        found = list(merged(small))
        self.assertEqual([each.num_rows for each in found], [33_000, 33_000, 33_000, 1_000])
        self.assertEqual(pa.Table.from_batches(found), pa.Table.from_batches(small).combine_chunks())
        self.assertLess(BATCH_ROWS, 33_001)

    def test_light(self) -> None:
        """
        Spark imports the source to learn its name, at its first use of any;
        what takes long to import waits until something is read.
        """
        code = (
            "import sys, pyspark_admission as source; "
            "print(source.DefaultSource.name(), [m for m in ('numpy', 'pyarrow', 'twisted') if m in sys.modules])"
        )
        result = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
        self.assertEqual(result.stdout.strip(), "admission []", result.stderr)


class DamageTests(RecordedTestCase):
    """Files that cannot be read."""

    def damage(self) -> dict[str, str]:
        """
        Have a good file and a good segment, and some of each that are not.

        @return: what is the matter with those.
        """
        self.record(1)
        self.record(2, isSealed=False)
        empty = self.parquet(self.record(3))
        empty.write_bytes(b"")
        half = self.parquet(self.record(4))
        half.write_bytes(half.read_bytes()[:1000])
        other = self.parquet(self.record(5))
        pq.write_table(pa.table({"seq": ["five"]}), other)
        damaged = segmentFile(self.directory, self.record(6, isSealed=False))
        damaged.write_bytes(b"\1" + damaged.read_bytes()[1:])
        return {
            str(empty): "Parquet file size is 0 bytes",
            str(half): "Parquet magic bytes not found in footer",
            str(other): "Failed to parse string: 'five' as a scalar of type int64",
            str(damaged): "this is no segment: it does not begin as one",
        }

    def test_told(self) -> None:
        """Each is told of on one line of the log, and all others are read."""
        expected = self.damage()
        self.assertEqual(seqs(readAll(self.directory)), [1, 2])
        self.assertEqual(len(self.told), len(expected))
        for line in self.told:
            path, _, problem = line.partition(" cannot be read: ")
            self.assertIn(expected.pop(path), problem)
            self.assertNotIn("\n", line)

    def test_problems(self) -> None:
        """The table of problems has the same, for all tables, and segments that were set aside; nothing else."""
        expected = self.damage()
        sensors = self.directory / "sensors" / self.parquet("boot-000001").relative_to(self.directory / "requests")
        sensors.parent.mkdir(parents=True)
        sensors.write_bytes(b"")
        aside = segmentFile(self.directory, "boot-000099").with_suffix(".segment.damaged")
        aside.write_bytes(b"")
        expected.update({str(sensors): "Parquet file size is 0 bytes", str(aside): "was set aside"})
        rows = readAll(self.directory, table="problems")
        self.assertEqual(sorted(row["path"] for row in rows), sorted(expected))
        for row in rows:
            self.assertIn(expected[row["path"]], row["problem"])
        self.assertEqual(self.told, [])

    def test_damagedPage(self) -> None:
        """Damage in the middle of a file, which its footer knows nothing of, is told of, too."""
        path = self.parquet(self.record(*range(1, 200)))
        contents = bytearray(path.read_bytes())
        contents[4:2000] = b"\xff" * 1996
        path.write_bytes(contents)
        self.assertEqual(readAll(self.directory), [])
        self.assertEqual(len(self.told), 1)
        self.assertEqual([row["path"] for row in readAll(self.directory, table="problems")], [str(path)])

    def test_notAllowed(self) -> None:
        """A file that is whole and may not be read is the user's to see to."""
        self.record(1, isSealed=False)

        def load(path: str) -> None:
            raise PermissionError(13, "Permission denied", path)

        self.patch(Segment, "load", load)
        error = str(self.assertRaises(PermissionError, readAll, self.directory))
        self.assertIn("boot-000001.segment may not be read: run Spark as the user that records", error)


class OtherStorageTests(RecordedTestCase):
    """Recordings named by a URL."""

    def setUp(self) -> None:
        super().setUp()
        storage = SubTreeFileSystem(str(self.directory), LocalFileSystem())
        self.patch(places, "_storage", lambda scheme, authority: (storage, ""))

    def test_same(self) -> None:
        """All that can be in a recording is found and read by its URL."""
        self.record(1, hour=2)
        self.record(2, isSealed=False)
        self.sealPartly(self.record(3, isSealed=False))
        damaged = self.parquet(self.record(4))
        damaged.write_bytes(damaged.read_bytes()[:1000])
        segmentFile(self.directory, "boot-000099").with_suffix(".segment.damaged").write_bytes(b"")
        self.assertEqual(seqs(readAll("s3a://recording/")), [1, 2, 3])
        url = "s3a://recording"
        self.assertEqual(self.told, [each for each in self.told if each.startswith(f"{url}/requests/")])
        problems = [row["path"].removeprefix(url) for row in readAll(url, table="problems")]
        expected = [damaged, segmentFile(self.directory, "boot-000099").with_suffix(".segment.damaged")]
        self.assertEqual(sorted(problems), sorted(str(path).removeprefix(str(self.directory)) for path in expected))

    def test_refused(self) -> None:
        """A file that storage does not hand out is not taken for a damaged one: the job fails, and says why."""
        self.record(1)
        batches = reader("s3a://recording")
        partitions = batches.partitions()

        def refuse(scheme: str, authority: str) -> None:
            raise OSError("AWS Error ACCESS_DENIED")

        self.patch(places, "_storage", refuse)
        error = str(self.assertRaises(StorageFailed, readPartitions, batches, partitions))
        self.assertIn(".parquet cannot be reached (AWS Error ACCESS_DENIED): ", error)
        self.assertIn("AWS_ACCESS_KEY_ID", str(self.assertRaises(ValueError, reader, "s3a://recording")))
        self.assertEqual(self.told, [])


class StreamTests(RecordedTestCase):
    """L{StreamReader}"""

    def stream(self, **options: str) -> StreamReader:
        """What Spark makes when a query begins, or begins again."""
        source = DefaultSource(CaseInsensitiveDict({"path": str(self.directory), **options}))
        made = source.streamReader(source.schema())
        assert isinstance(made, StreamReader)
        return made

    def latest(self, start: Mapping[str, int], **options: str) -> dict[str, int]:
        """How far a stream goes from C{start} on."""
        stream = self.stream(**options)
        return stream.latestOffset(dict(start), stream.getDefaultReadLimit())

    def between(self, start: Mapping[str, int], end: Mapping[str, int], **options: str) -> list[int]:
        """The numbers of the events between two offsets, as they come."""
        stream = self.stream(**options)
        return [row["seq"] for row in readPartitions(stream, stream.partitions(dict(start), dict(end)))]

    def test_beingSealed(self) -> None:
        """A segment that has not gone yet may not have all its files, so they wait."""
        self.record(1)
        name = self.record(2, isSealed=False)
        self.sealPartly(name)
        end = self.latest({})
        self.assertEqual(self.between({}, end), [1])
        segmentFile(self.directory, name).unlink()
        self.assertEqual(self.between(end, self.latest(end)), [2])

    def test_firstBeingSealed(self) -> None:
        """If that is the first of all, there is nothing yet."""
        self.sealPartly(self.record(1, isSealed=False))
        self.assertEqual(self.latest({}), {})

    def test_sealedBehind(self) -> None:
        """
        What could not be sealed in its turn holds up what its process recorded
        after it, and nobody else; nothing is lost.
        """
        stuck = self.record(1, isSealed=False)
        self.record(2)
        self.record(10, process="other")
        end = self.latest({})
        self.assertEqual(self.between({}, end), [10])
        sealSegment(self.directory, str(segmentFile(self.directory, stuck)))
        self.assertEqual(self.between(end, self.latest(end)), [1, 2])

    def test_order(self) -> None:
        """
        Rows come by the hours of their files, and those of a process in the
        order of its segments even if one has rows of an hour before.
        """
        self.record(5, process="late", hour=9)
        self.record(1, process="early", hour=0)
        self.record(2, process="early", hour=3)
        self.record(3, process="early", hour=2)
        self.record(4, process="between", hour=5)
        self.assertEqual(self.between({}, self.latest({})), [1, 2, 3, 4, 5])

    def test_sameAgain(self) -> None:
        """A batch that is run again after a crash has the same rows, whatever has come since."""
        self.record(1)
        end = self.latest({})
        self.record(2)
        self.record(3, process="other")
        self.assertEqual(self.between({}, end), [1])

    def test_text(self) -> None:
        """An offset that is the same is the same text, by which Spark knows that there is nothing new."""
        for process in ["b", "a", "c"]:
            self.record(1, process=process, hour=ord(process) % 2)
        self.assertEqual(list(self.latest({"c": 1, "a": 1}).items()), [("a", 1), ("b", 1), ("c", 1)])

    def test_evicted(self) -> None:
        """Files that were removed are not missed, and processes of which nothing is left are forgotten."""
        first = self.parquet(self.record(1))
        second = self.parquet(self.record(2))
        self.record(3, process="other")
        end = self.latest({})
        first.unlink()
        self.assertEqual(self.between({}, end), [2, 3])
        second.unlink()
        self.assertEqual(self.latest(end), {"other": 1})
        self.record(4, process="other")
        self.assertEqual(self.between({"other": 1}, self.latest({"other": 1})), [4])

    def test_neverBack(self) -> None:
        """An offset never goes back, though the file be gone that it is named after."""
        self.record(1)
        second = self.parquet(self.record(2))
        end = self.latest({})
        second.unlink()
        self.assertEqual(self.latest(end), end)

    def test_limited(self) -> None:
        """So many files are taken at a time, and all of a segment's."""
        for number in range(1, 6):
            self.record(number)
        offset: dict[str, int] = {}
        batches = []
        for _ in range(4):
            end = self.latest(offset, maxFilesPerTrigger="2")
            batches.append(self.between(offset, end))
            offset = end
        self.assertEqual(batches, [[1, 2], [3, 4], [5], []])

    def test_limitedBelowOne(self) -> None:
        """A segment of more files than may be taken is taken, or there would be no end to it."""
        writeRecording(self.directory, someEvents())
        self.assertGreater(len(sealedFiles(str(self.directory), REQUESTS)), 1)
        self.assertEqual(self.latest({}, maxFilesPerTrigger="1"), {"boot": 1})

    def test_limitLifted(self) -> None:
        """Spark's own wish goes before the option."""
        self.record(1)
        self.record(2)
        stream = self.stream(maxFilesPerTrigger="1")
        self.assertEqual(stream.getDefaultReadLimit(), ReadMaxFiles(1))
        self.assertEqual(stream.latestOffset({}, ReadAllAvailable()), {"boot": 2})

    def test_availableNow(self) -> None:
        """A query of what there is ends, whatever comes while it runs."""
        self.record(1)
        self.record(2)
        stream = self.stream(maxFilesPerTrigger="1")
        stream.prepareForTriggerAvailableNow()
        self.record(3)
        offset: dict[str, int] = {}
        seen = []
        while (end := stream.latestOffset(offset, ReadMaxFiles(1))) != offset:
            seen += self.between(offset, end)
            offset = end
        self.assertEqual(seen, [1, 2])

    def test_range(self) -> None:
        """Rows out of the range do not come, and do not come later."""
        self.record(1)
        self.record(2, hour=4)
        end = self.latest({}, since=str(WALL_SECONDS + HOUR_SECONDS))
        self.assertEqual(end, {"boot": 2})
        self.assertEqual(self.between({}, end, since=str(WALL_SECONDS + HOUR_SECONDS)), [2])

    def test_strangers(self) -> None:
        """Files of other names have no place in the order, and are not streamed."""
        path = self.parquet(self.record(1))
        path.with_name("part-00000.c000.parquet").write_bytes(path.read_bytes())
        self.assertEqual(self.between({}, self.latest({})), [1])
        self.assertEqual(seqs(readAll(self.directory)), [1, 1])

    def test_refused(self) -> None:
        """Problems cannot be streamed, nor single segments."""
        self.record(1)
        for options in [{"table": "problems"}, {"segments": "boot-000001"}]:
            self.assertIn("cannot be streamed: ", str(self.assertRaises(ValueError, self.stream, **options)))

    @settings(max_examples=40)
    @given(st.lists(st.tuples(st.sampled_from(["record", "seal", "restart", "read", "evict"]), st.integers(0, 5))))
    def test_exactlyOnce(self, steps: list[tuple[str, int]]) -> None:
        """
        Whatever is recorded, sealed in any order, removed and read, by streams
        that begin again and repeat a batch, each row comes once unless it was
        removed before, and those of a process in order.
        """
        self.directory = Path(self.mktemp()).absolute()
        self.directory.joinpath(files.SEGMENTS).mkdir(parents=True)
        process, recorded, offset = 0, 0, dict[str, int]()
        lost: set[int] = set()
        seen: list[int] = []
        for step, which in [*steps, ("sealAll", 0), ("read", 0)]:
            unsealed = segmentNames(str(self.directory))
            sealed = sorted(self.directory.rglob("*.parquet"))
            if step == "record":
                recorded += 1
                # Numbers of segments may have gaps, and go on when all before have been removed.
                self.record(recorded, isSealed=False, process=f"p{process}", hour=which, segmentNumber=recorded)
            elif step == "restart":
                process += 1
            elif step == "seal" and unsealed:
                path = segmentFile(self.directory, unsealed[which % len(unsealed)])
                sealSegment(self.directory, str(path))
            elif step == "sealAll":
                sealAll(self.directory, CAP_BYTES)
            elif step == "evict" and sealed:
                lost.update(pq.read_table(sealed[0], partitioning=None)["seq"].to_pylist())
                sealed[0].unlink()
            elif step == "read":
                end = self.latest(offset)
                rows = self.between(offset, end)
                self.assertEqual(self.between(offset, end), rows)
                seen += rows
                offset = end
        self.assertEqual(len(seen), len(set(seen)))
        self.assertEqual(set(seen) | lost, set(range(1, recorded + 1)))

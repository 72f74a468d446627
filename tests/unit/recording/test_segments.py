"""L{admission.recording.segmentheader} and L{admission.recording.segments}."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.serving.recordedcolumns import KafkaRequestEvent
from admission.recording.events import REJECT, ConnectionEvent, LimitEvent, Origin, SensorSample
from admission.recording.recordlayout import SLOT_BYTES
from admission.recording.schema import CONNECTIONS, LIMITS, OVERFLOW, SENSORS, VERSION
from admission.recording.segmentheader import PAGE_BYTES, DamagedSegment, Header
from admission.recording.segments import SMALLEST_SEGMENT_BYTES, Segment, SegmentWriter, lockAbandoned, segmentPaths
from admission.recording.tables import REQUESTS, TABLES, recordedTable

ORIGIN = Origin("3", "boot", 17, ("bandwidth", "ids"))


class SegmentTestCase(SynchronousTestCase):
    """Has a directory for segments."""

    def setUp(self) -> None:
        self.directory = self.mktemp()
        os.mkdir(self.directory)
        self.path = os.path.join(self.directory, "a.segment")

    def writer(self, sizeBytes: int = SMALLEST_SEGMENT_BYTES, path: str | None = None) -> SegmentWriter:
        """A segment with a header."""
        writer = SegmentWriter(path or self.path, sizeBytes)
        self.addCleanup(self.letGo, writer)
        writer.begin(Header(ORIGIN, 1, 100.0, 1_700_000_000.0))
        return writer

    def letGo(self, writer: SegmentWriter) -> None:
        """Close a segment, unless the test has."""
        try:
            writer.close()
        except (OSError, ValueError):
            pass

    def load(self) -> Segment:
        """The segment, from its file."""
        segment = Segment.load(self.path)
        assert segment is not None
        return segment

    def seqs(self) -> list[int]:
        """The numbers of the requests in the segment."""
        return [row["seq"] for row in self.load().rows(REQUESTS)]


class HeaderTests(SegmentTestCase):
    """A header that can be read and makes no sense."""

    def test_senseless(self) -> None:
        """It is refused when the segment is loaded."""
        header = Header(ORIGIN, 1, 100.0, 1_700_000_000.0)
        for changed in (
            {"slotBytes": 0},
            {"slotBytes": -256},
            {"slotBytes": 2},
            {"slotBytes": 5},
            {"slotBytes": 255},
            {"slotBytes": 1e3},
            {"slotBytes": None},
            {"slotBytes": 2**40},
            {"wallSeconds": "1"},
            {"monotonicSeconds": None},
        ):
            Path(self.path).write_bytes(evolve(header, **changed).toBytes() + bytes(SLOT_BYTES))
            self.assertRaises(DamagedSegment, self.load)

    def test_serverId(self) -> None:
        """The server's number has the name in a header that it has had in all versions."""
        raw = Header(ORIGIN, 1, 100.0, 1_700_000_000.0).toBytes()
        self.assertIn(b'"origin": {"brokerId": "3", "bootId": "boot", ', raw)
        read = Header.fromBytes(raw)
        assert read is not None
        self.assertEqual(read[0].origin.serverId, ORIGIN.serverId)

    def test_large(self) -> None:
        """What readers would have to parse, or repeat for each event, is bounded, for readers and for writers."""
        raw = Header(ORIGIN, 1, 100.0, 1_700_000_000.0).toBytes()
        for name, sizeBytes in (("bandwidth", 8 << 10), ("wallSeconds", 64 << 10)):
            text = raw[16:].rstrip(b"\0").replace(name.encode(), name.encode() + b"x" * sizeBytes)
            Path(self.path).write_bytes(struct.pack("<8sII", raw[:8], 16 + len(text), len(text)) + text)
            self.assertIn(" may be", str(self.assertRaises(DamagedSegment, self.load)))
        header = Header(evolve(ORIGIN, poolDescription="x" * (8 << 10)), 1, 100.0, 1_700_000_000.0)
        self.assertIn(" may be", str(self.assertRaises(ValueError, header.toBytes)))


class WritingTests(SegmentTestCase):
    """L{SegmentWriter}, and L{Segment} reading what it writes."""

    def test_allKinds(self) -> None:
        """Events of all kinds are read by table and in order, with all columns."""
        writer = self.writer()
        events = [
            ConnectionEvent(1, 101.0, "opened", "tcp", "::1", seq=1),
            KafkaRequestEvent(1, 101.5, clientId="a", identities=[5, 6], policyDelaysSeconds=(0.0, 0.5), seq=2),
            LimitEvent(102.0, "me", None, None, "rate", 5.0, seq=3),
            KafkaRequestEvent(1, 103.0, clientId="b", seq=4),
            SensorSample(104.0, "Used", "gauge", 7.5, seq=5),
        ]
        for event in events:
            self.assertTrue(writer.append(event))
        self.assertEqual(writer.recordCount, 5)
        segment = self.load()
        for table in TABLES:
            for row in segment.rows(table):
                self.assertEqual(list(row), [column.name for column in table.columns])
                self.assertEqual((row["v"], row["broker_id"], row["boot_id"]), (VERSION, "3", "boot"))
        first, second = segment.rows(REQUESTS)
        self.assertEqual((first["seq"], first["client_id"], first["gate_seed"]), (2, "a", 17))
        self.assertEqual((first["producer_ids"], first["policy_delays_us"]), ([5, 6], [0, 500_000]))
        self.assertEqual(first["policy_names"], ["bandwidth", "ids"])
        self.assertEqual((second["seq"], second["client_id"], second["producer_ids"]), (4, "b", []))
        [opened] = segment.rows(CONNECTIONS)
        [limit] = segment.rows(LIMITS)
        [sample] = segment.rows(SENSORS)
        self.assertEqual((opened["state"], limit["value"], sample["sensor"]), ("opened", 5.0, "Used"))

    def test_wallTime(self) -> None:
        """Wall time is that of the segment's beginning, and what has passed since by the monotonic clock."""
        self.writer().append(KafkaRequestEvent(1, 99.75))
        [row] = self.load().rows(REQUESTS)
        self.assertEqual((row["mono_us"], row["ts"]), (99_750_000, 1_699_999_999_750_000))

    def test_survives(self) -> None:
        """What has been appended is in the file, though nobody has closed it."""
        writer = self.writer()
        for seq in range(10):
            writer.append(KafkaRequestEvent(1, 100.0, seq=seq))
            self.assertEqual(self.seqs(), list(range(seq + 1)))

    def test_interrupted(self) -> None:
        """
        A record that was not finished is passed over, and those behind it are
        read, with the texts that it was the first to need.
        """
        writer = self.writer()
        writer.append(KafkaRequestEvent(1, 100.0, seq=1))
        self.assertRaises(struct.error, writer.append, KafkaRequestEvent(1 << 70, 100.0, clientId="new", seq=2))
        writer.append(KafkaRequestEvent(1, 100.0, clientId="new", seq=3))
        self.assertEqual(writer.recordCount, 2)
        self.assertEqual(
            [(row["seq"], row["client_id"]) for row in self.load().rows(REQUESTS)], [(1, None), (3, "new")]
        )

    def test_full(self) -> None:
        """A full segment takes no more, and nothing in it has suffered."""
        writer = self.writer()
        seq = 0
        while writer.append(KafkaRequestEvent(1, 100.0, clientId=f"client {seq % 20}", seq=seq)):
            seq += 1
        self.assertFalse(writer.append(KafkaRequestEvent(1, 100.0, seq=seq)))
        rows = list(self.load().rows(REQUESTS))
        self.assertEqual([row["seq"] for row in rows], list(range(seq)))
        self.assertEqual([row["client_id"] for row in rows], [f"client {each % 20}" for each in range(seq)])
        slots = (SMALLEST_SEGMENT_BYTES - PAGE_BYTES * 2) // SLOT_BYTES
        self.assertGreater(seq, slots - 40)

    def test_hostileTexts(self) -> None:
        """
        Clients that call themselves something else each time do not displace
        what the server knows better, and it is counted how often there was no
        room for their names.
        """
        writer = self.writer()
        count = 0
        while writer.append(KafkaRequestEvent(1, 100.0, clientId=f"client {count}", principal=f"user {count % 10}")):
            count += 1
        rows = list(self.load().rows(REQUESTS))
        named = [row["client_id"] for row in rows if row["client_id"] != OVERFLOW]
        self.assertEqual(named, [f"client {each}" for each in range(SMALLEST_SEGMENT_BYTES // SLOT_BYTES // 8)])
        self.assertEqual([row["principal"] for row in rows], [f"user {each % 10}" for each in range(count)])
        self.assertEqual(writer.textOverflows, count - len(named))

    def test_textsAtTheEnd(self) -> None:
        """An event that needs many new texts still finds room for all of them when it is the last one."""
        recorded = recordedTable(KafkaRequestEvent).columns
        names = [column.attribute for column in recorded if column.type.isText and column.attribute]
        writer = self.writer()
        while writer.append(KafkaRequestEvent(1, 100.0)):
            pass
        capacity = writer.recordCount
        writer = self.writer(path=self.path + "2")
        while writer.recordCount < capacity - 1:
            writer.append(KafkaRequestEvent(1, 100.0))
        last: dict[str, Any] = {name: f"{name} is new" for name in names}
        self.assertTrue(writer.append(KafkaRequestEvent(1, 100.0, **last)))
        segment = Segment.load(self.path + "2")
        assert segment is not None
        *_, row = segment.rows(REQUESTS)
        columns = {column.attribute: column.name for column in REQUESTS.columns if column.attribute}
        self.assertEqual({name: row[columns[name]] for name in names}, last)
        self.assertEqual(writer.textOverflows, 0)

    def test_close(self) -> None:
        """A closed segment takes no more room than it needs, and no more events."""
        writer = self.writer(1 << 20)
        for seq in range(100):
            writer.append(KafkaRequestEvent(1, 100.0, seq=seq))
        self.assertEqual(os.path.getsize(self.path), 1 << 20)
        writer.close()
        self.assertLess(os.path.getsize(self.path), 102 * SLOT_BYTES + 2 * PAGE_BYTES)
        self.assertEqual(self.seqs(), list(range(100)))
        self.assertFalse(writer.append(KafkaRequestEvent(1, 100.0)))

    def test_closeEmpty(self) -> None:
        """A segment without any records leaves no file, begun or not."""
        self.writer().close()
        self.assertEqual(os.listdir(self.directory), [])
        SegmentWriter(self.path, SMALLEST_SEGMENT_BYTES).close()
        self.assertEqual(os.listdir(self.directory), [])

    def test_notBegun(self) -> None:
        """Nothing can be appended before there is a header, and the file says so."""
        writer = SegmentWriter(self.path, SMALLEST_SEGMENT_BYTES)
        self.addCleanup(writer.close)
        self.assertFalse(writer.append(KafkaRequestEvent(1, 100.0)))
        self.assertIs(Segment.load(self.path), None)

    def test_roomIsTaken(self) -> None:
        """All the room is taken from the disk at once, since a write to memory cannot be refused."""
        self.writer(1 << 20)
        self.assertGreaterEqual(os.stat(self.path).st_blocks * 512, 1 << 20)

    def test_populated(self) -> None:
        """A segment that is in memory before it is written to is like any other."""
        writer = SegmentWriter(self.path, SMALLEST_SEGMENT_BYTES, isPopulated=True)
        self.addCleanup(self.letGo, writer)
        self.assertIs(Segment.load(self.path), None)
        writer.begin(Header(ORIGIN, 1, 100.0, 0.0))
        writer.append(KafkaRequestEvent(1, 100.0, seq=7))
        self.assertEqual(self.seqs(), [7])
        writer.close()
        self.assertEqual(self.seqs(), [7])

    def test_noRoom(self) -> None:
        """Where there is no room, that is said at once, and no file is left."""

        def allocate(fileno: int, offset: int, length: int) -> None:
            raise OSError(28, "No space left on device")

        self.patch(os, "posix_fallocate", allocate)
        before = set(os.listdir("/proc/self/fd"))
        self.assertRaises(OSError, SegmentWriter, self.path, SMALLEST_SEGMENT_BYTES)
        self.assertEqual(os.listdir(self.directory), [])
        self.assertEqual(set(os.listdir("/proc/self/fd")), before)

    def test_sizes(self) -> None:
        """Sizes that are no pages, or too few, are refused."""
        for sizeBytes in (SMALLEST_SEGMENT_BYTES - PAGE_BYTES, SMALLEST_SEGMENT_BYTES + 1):
            self.assertRaises(ValueError, SegmentWriter, self.path, sizeBytes)

    def test_exists(self) -> None:
        """A segment does not take the place of another, which it leaves alone."""
        for suffix in (".new", ""):
            other = Path(self.path + suffix)
            other.write_text("mine")
            self.assertRaises(FileExistsError, SegmentWriter, self.path, SMALLEST_SEGMENT_BYTES)
            self.assertEqual(other.read_text(), "mine")
            other.unlink()


DATA = Path(__file__).parent / "data"


class OlderTests(SynchronousTestCase):
    """A segment that the first version of the schema wrote, and what was read of it then."""

    def test_readAsBefore(self) -> None:
        """It is read as it was; columns that have come since are null, and limits were enforced whole."""
        segment = Segment.load(DATA / "version1.segment")
        assert segment is not None
        before = json.loads(DATA.joinpath("version1.json").read_text("utf-8"))
        for table in TABLES:
            new = ("refusal", "node_id", "upstream_us", "upstream_throttle_ms", "traits", "method", "status")
            new += ("lag_us", "begun_us")
            added = {**dict.fromkeys(new), "limit_share": 1.0} if table.name == "requests" else {}
            self.assertEqual([*segment.rows(table)], [{**row, **added} for row in before[table.name]])

    def test_writtenAsBefore(self) -> None:
        """
        The same event is recorded in the same bytes, those of columns that have come since and the places of fields
        apart.
        """
        segment = Segment.load(DATA / "version1.segment")
        assert segment is not None
        event = KafkaRequestEvent(
            2, 103.0, "tls", "::1", None, None, apiKey=9999, requestBytes=3 << 20, decision=REJECT, seq=3
        )
        event.reason, event.sentSeconds = "it sent a request with API key N, which is not served", 103.0
        writer = SegmentWriter(self.mktemp(), SMALLEST_SEGMENT_BYTES)
        writer.begin(evolve(segment.header, layouts=Header(segment.header.origin, 1, 0.0, 0.0).layouts))
        writer.append(event)
        writer.close()
        written = Segment.load(writer.path)
        assert written is not None
        [row] = written.rows(REQUESTS)
        [before] = [row for row in segment.rows(REQUESTS) if row["seq"] == 3]
        self.assertEqual(row, before)


class ReadingTests(SegmentTestCase):
    """What else L{Segment} may find."""

    def test_damaged(self) -> None:
        """What is no segment is refused, whatever it is."""
        self.writer().append(KafkaRequestEvent(1, 100.0))
        good = Path(self.path).read_bytes()
        torn = bytes(PAGE_BYTES) + good[PAGE_BYTES:]
        for bad in (
            torn,
            b"x" * 5000,
            good[:100],
            good[:8] + b"\xff" * 8 + good[16:],
            good.replace(b'"layouts"', b'"laxouts"'),
        ):
            Path(self.path).write_bytes(bad)
            self.assertRaises(DamagedSegment, Segment.load, self.path)

    def test_noSegment(self) -> None:
        """A file that is larger than any segment is not read, however little of it there is; nor is a pipe."""
        self.writer().append(KafkaRequestEvent(1, 100.0))
        os.truncate(self.path, 3 << 30)
        damaged = self.assertRaises(DamagedSegment, Segment.load, self.path)
        self.assertEqual(str(damaged), "this is no segment: it has more than 16MiB")
        os.unlink(self.path)
        os.mkfifo(self.path)
        damaged = self.assertRaises(DamagedSegment, Segment.load, self.path)
        self.assertEqual(str(damaged), "this is no segment: it is not a regular file")

    def test_cutOff(self) -> None:
        """Of a file that was cut off, whole records are read: here one text and five requests."""
        writer = self.writer()
        for seq in range(10):
            writer.append(KafkaRequestEvent(1, 100.0, seq=seq))
        headerBytes = len(Header(ORIGIN, 1, 100.0, 0.0).toBytes())
        os.truncate(self.path, headerBytes + 6 * SLOT_BYTES + 7)
        self.assertEqual(self.seqs(), list(range(5)))

    def test_empty(self) -> None:
        """A file of nothing holds nothing."""
        Path(self.path).write_bytes(b"")
        self.assertIs(Segment.load(self.path), None)

    def test_olderVersion(self) -> None:
        """
        A segment without one of today's columns is read with nulls there, and
        one without a table has none of its rows.
        """
        header = Header(ORIGIN, 1, 100.0, 0.0)
        [requests, *_] = header.layouts
        requests.fields[:] = [each for each in requests.fields if each.name != "client_id"]  # type: ignore[index]
        older = Header(ORIGIN, 1, 100.0, 0.0, version=0, layouts=[requests])
        writer = SegmentWriter(self.path, SMALLEST_SEGMENT_BYTES)
        self.addCleanup(writer.close)
        writer.begin(older)
        writer.append(KafkaRequestEvent(1, 100.0, clientId="a", principal="me"))
        writer.append(ConnectionEvent(1, 100.0, "opened"))
        segment = self.load()
        [row] = segment.rows(REQUESTS)
        self.assertEqual((row["v"], row["client_id"], row["principal"]), (0, None, "me"))
        self.assertEqual(list(segment.rows(CONNECTIONS)), [])


class AbandonedTests(SegmentTestCase):
    """L{segmentPaths} and L{lockAbandoned}."""

    def test_locked(self) -> None:
        """A segment that is written is nobody else's; closed, it is, for one at a time."""
        writer = self.writer()
        writer.append(KafkaRequestEvent(1, 100.0))
        self.assertIs(lockAbandoned(self.path), None)
        writer.close()
        fileno = lockAbandoned(self.path)
        assert fileno is not None
        self.assertIs(lockAbandoned(self.path), None)
        os.close(fileno)

    def test_gone(self) -> None:
        """
        A segment that somebody else has sealed in between is not there any more, even for a process that had found it
        before.
        """
        self.assertIs(lockAbandoned(self.path), None)
        Path(self.path).write_bytes(b"")
        real = os.open

        def openLate(path: str, flags: int) -> int:
            fileno = real(path, flags)
            os.unlink(path)
            return fileno

        self.patch(os, "open", openLate)
        self.assertIs(lockAbandoned(self.path), None)

    def test_paths(self) -> None:
        """Segments are found in the order they were made, unfinished ones too, and nothing else."""
        for name in ("b-000002.segment", "b-000001.segment", "c.parquet", "b-000003.segment.new", "x.segment.damaged"):
            Path(self.directory, name).touch()
        found = [os.path.basename(path) for path in segmentPaths(self.directory)]
        self.assertEqual(found, ["b-000001.segment", "b-000002.segment", "b-000003.segment.new"])
        self.assertEqual(segmentPaths(os.path.join(self.directory, "missing")), [])

    def test_strangers(self) -> None:
        """Directories, links and pipes are no segments, so that nobody waits for a pipe that nobody writes to."""
        Path(self.path).touch()
        os.mkdir(os.path.join(self.directory, "directory.segment"))
        os.symlink(self.path, os.path.join(self.directory, "link.segment"))
        os.symlink("nowhere", os.path.join(self.directory, "nowhere.segment"))
        os.mkfifo(os.path.join(self.directory, "pipe.segment"))
        self.assertEqual(segmentPaths(self.directory), [self.path])

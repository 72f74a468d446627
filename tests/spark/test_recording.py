"""L{admission.offline.recording}, by Spark itself."""

from __future__ import annotations

import os
import re
from contextlib import redirect_stdout
from io import StringIO
from operator import itemgetter
from pathlib import Path
from random import Random

import pyarrow as pa
from pyarrow import parquet as pq
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import CONNECTION
from admission.kafka.serving.recordedcolumns import KafkaRequestEvent
from admission.offline.failures import RecordingError
from admission.offline.recording import Recording, parseSample
from admission.recording.events import ConnectionEvent, Event, LimitEvent
from admission.recording.schema import VERSION
from admission.recording.tables import TABLES
from admission_plugins.sealing import sealAll
from pyspark_admission.columns import columnsOf
from tests.kit.recordings import WALL_SECONDS, noisy, writeRecording
from tests.kit.sparksession import sharedSession
from tests.spark.test_pyspark_admission import CAP_BYTES, HOUR_SECONDS, RecordedTestCase, segmentFile, someEvents
from tests.spark.test_spark_source import numbersOf


class RecordingTests(RecordedTestCase):
    """L{Recording}"""

    def setUp(self) -> None:
        super().setUp()
        self.directory /= "a [b]{c,d}*?"

    def open(self, **options: str) -> Recording:
        """The recording in the directory."""
        return Recording.open(sharedSession(), str(self.directory), **options)

    def checkTables(self, count: int) -> None:
        """Each table has its columns and as many rows, the ones that the data source reads."""
        recording = self.open()
        for table in TABLES:
            rows = getattr(recording, table.name)()
            self.assertEqual(rows.schema, columnsOf(table))
            source = sharedSession().read.format("admission").option("table", table.name)
            expected = source.load(str(self.directory)).collect()
            self.assertEqual(len(expected), count)
            self.assertEqual(sorted(rows.collect(), key=itemgetter("seq")), sorted(expected, key=itemgetter("seq")))

    def test_tables(self) -> None:
        """It makes no difference whether some of it is sealed or all."""
        writeRecording(self.directory, someEvents(2), isSealed=False)
        writeRecording(self.directory, someEvents(2))
        self.checkTables(4)
        sealAll(self.directory, CAP_BYTES)
        self.checkTables(4)

    def test_emptyTable(self) -> None:
        """A table that nothing was recorded of is empty."""
        self.record(1)
        rows = self.open().limits()
        self.assertEqual((rows.columns[-1], rows.count()), ("changed_by", 0))

    def test_once(self) -> None:
        """Nothing is read twice or missed, whatever is being sealed when it is planned or sealed before it is read."""
        self.record(1, 2)
        self.sealPartly(self.record(3, isSealed=False))
        self.record(4, isSealed=False)
        rows = self.open().requests()
        self.assertEqual(numbersOf(rows), [1, 2, 3, 4])
        sealAll(self.directory, CAP_BYTES)
        self.assertEqual(numbersOf(rows), [1, 2, 3, 4])
        self.assertEqual(numbersOf(self.open().requests()), [1, 2, 3, 4])

    def test_range(self) -> None:
        """The same rows are chosen of what is sealed and of what is not."""
        for isSealed in (True, False):
            for hour in range(3):
                self.record(3 * hour + 1, 3 * hour + 2, isSealed=isSealed, hour=hour)
        at = WALL_SECONDS + HOUR_SECONDS
        for since, until, expected in [
            (f"{at + 4:.6f}", f"{at + 5:.6f}", [4]),
            (f"{at + 4.000001:.6f}", f"{at + 5.000001:.6f}", [5]),
            ("2023-11-14T23:00", "2023-11-15", [4, 5]),
        ]:
            self.assertEqual(numbersOf(self.open(since=since, until=until).requests()), sorted(expected * 2))
        self.assertEqual(numbersOf(self.open(since="2023-11-15").requests()), [7, 7, 8, 8])
        self.assertEqual(numbersOf(self.open(until="2023-11-14T23:00").requests()), [1, 1, 2, 2])

    def test_otherHours(self) -> None:
        """Files of other hours are not opened: Spark chooses by directories."""
        self.record(1)
        for options, condition in [
            ({"since": "2023-11-14T23:00"}, ">= 472223)"),
            ({"until": "2023-11-14T23:00"}, "<= 472223)"),
        ]:
            plan = StringIO()
            with redirect_stdout(plan):
                self.open(**options).requests().explain()
            [filters] = re.findall(r"PartitionFilters: \[(.*?)\], ", plan.getvalue())
            self.assertIn(condition, filters)

    def test_problems(self) -> None:
        """What cannot be read is left out and told of."""
        self.record(1)
        half = self.parquet(self.record(2))
        half.write_bytes(half.read_bytes()[:1000])
        empty = self.parquet(self.record(3))
        empty.write_bytes(b"")
        segment = segmentFile(self.directory, self.record(4, isSealed=False))
        segment.write_bytes(b"\1" + segment.read_bytes())
        recording = self.open()
        self.assertEqual(numbersOf(recording.requests()), [1])
        problems = recording.problems()
        paths = [path for path, _ in problems]
        self.assertEqual(paths, [str(each.relative_to(self.directory)) for each in (segment, half, empty)])
        # Of four files with an event each three cannot be read, however little is left of them.
        self.assertApproximates(recording.shareIn(paths), 0.85, 0.15)
        self.assertEqual(recording.shareIn([]), 0.0)
        # What was never a segment has no events, whatever size it says it has.
        strange = segment.with_suffix(".segment.damaged")
        strange.touch()
        os.truncate(strange, 1 << 40)
        share = recording.shareIn([*paths, str(strange.relative_to(self.directory))])
        self.assertEqual(share, recording.shareIn(paths))
        for (_, problem), expected in zip(
            problems, ["this is no segment", "magic bytes not found", "0 bytes"], strict=True
        ):
            self.assertIn(expected, problem)

    def test_noise(self) -> None:
        """Noise in a column, which would decode as other numbers, is a problem of its file, and none of it is read."""
        self.record(1)
        random = Random(1)
        events = [KafkaRequestEvent(1, 2.0, requestBytes=random.getrandbits(62)) for _ in range(3000)]
        path = self.parquet(writeRecording(self.directory, events)[0])
        noisy(path, "request_bytes")
        recording = self.open()
        self.assertEqual([row["request_bytes"] for row in recording.requests().select("request_bytes").collect()], [0])
        source = sharedSession().read.format("admission").load(str(self.directory))
        self.assertEqual([row["request_bytes"] for row in source.select("request_bytes").collect()], [0])
        [(name, problem)] = recording.problems()
        self.assertEqual(name, str(path.relative_to(self.directory)))
        self.assertIn("CRC", problem)

    def test_removed(self) -> None:
        """A file that is removed after it was planned to be read is not missed."""
        gone = self.parquet(self.record(1))
        self.record(2)
        rows = self.open().requests()
        gone.unlink()
        self.assertEqual(numbersOf(rows), [2])

    def test_older(self) -> None:
        """Files of older versions are read together with those of today."""
        path = self.parquet(self.record(1))
        self.record(2)
        table = pq.read_table(path, partitioning=None).select(["seq", "ts", "client_id"])
        pq.write_table(table.set_column(0, "seq", table["seq"].cast(pa.int16())), path)
        rows = self.open().requests().orderBy("seq").select("seq", "v", "policy_names").collect()
        self.assertEqual([tuple(row) for row in rows], [(1, None, None), (2, VERSION, [])])


class SampleTests(SynchronousTestCase):
    """C{sample} of L{Recording.open}"""

    def test_connections(self) -> None:
        """
        A sample has whole connections, with what came before a login; all
        connections of a client or none; and always the same.
        """
        directory = self.mktemp()
        events: list[Event] = [LimitEvent(0.0, None, None, "::1", "rate", 1.0)]
        for connection in range(200):
            client = f"client {connection % 40}"
            events += [
                ConnectionEvent(connection, 1.0, "opened"),
                KafkaRequestEvent(connection, 1.0, kind="ApiVersions"),
                KafkaRequestEvent(connection, 2.0, kind="Produce", principal="alice", clientId=client),
                KafkaRequestEvent(connection, 1.0, kind=CONNECTION),
                ConnectionEvent(connection, 3.0, "closed"),
            ]
        writeRecording(directory, events[:500])
        writeRecording(directory, events[500:], isSealed=False)
        recording = Recording.open(sharedSession(), directory, sample="30%")
        requests = recording.requests().select("conn_id", "kind").collect()
        kept = {row["conn_id"] for row in requests}
        self.assertEqual(len(requests), 3 * len(kept))
        clients = {connection % 40 for connection in kept}
        self.assertEqual(kept, {connection for connection in range(200) if connection % 40 in clients})
        self.assertTrue(4 <= len(clients) <= 20, clients)
        opened = recording.connections().select("conn_id").collect()
        self.assertEqual(sorted(row["conn_id"] for row in opened), sorted([*kept, *kept]))
        self.assertEqual(recording.limits().count(), 1)
        again = Recording.open(sharedSession(), directory, sample="0.3").requests()
        self.assertEqual({row["conn_id"] for row in again.select("conn_id").collect()}, kept)
        self.assertEqual(Recording.open(sharedSession(), directory, sample="100%").requests().count(), 600)

    def test_shares(self) -> None:
        """A share is a fraction or a percentage."""
        for text, expected in [("0.1", 0.1), ("10%", 0.1), ("1", 1), ("100 %", 1), ("0.5%", 0.005)]:
            self.assertEqual(float(parseSample(text)), expected)

    def test_refused(self) -> None:
        """Anything else is refused, with the right form."""
        for text in ["0", "0%", "1.1", "101%", "-1", "a tenth", "", "nan"]:
            refusal = str(self.assertRaises(RecordingError, parseSample, text))
            self.assertIn(f"{text!r} is no share of the clients: write a fraction of the clients, as 0.1", refusal)


class OpenTests(SynchronousTestCase):
    """What cannot be opened."""

    def refusal(self, directory: str, **options: str) -> str:
        """What is said instead."""
        return str(self.assertRaises(RecordingError, Recording.open, sharedSession(), directory, **options))

    def test_noRecording(self) -> None:
        """A directory that is not there, has no recording, or an empty one, is told apart."""
        directory = Path(self.mktemp()).absolute()
        self.assertIn(f"there is no directory {directory}: name the one", self.refusal(str(directory)))
        directory.mkdir()
        self.assertIn(f"there is no recording in {directory}: name the", self.refusal(str(directory)))
        directory.joinpath("_segments").mkdir()
        self.assertIn(f"nothing has been recorded in {directory}", self.refusal(str(directory)))

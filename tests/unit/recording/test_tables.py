"""Tests for L{admission.recording.tables}."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from warnings import catch_warnings, simplefilter

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.serving.recordedcolumns import KafkaRequestEvent
from admission.recording import schema
from admission.recording.events import Origin, RequestEvent
from admission.recording.schema import integer
from admission.recording.segmentheader import Header
from admission.recording.segments import Segment, SegmentWriter
from admission.recording.tables import (
    ENTRY_POINT_GROUP,
    OURS,
    RECORDED_REQUESTS,
    RECORDED_TABLES,
    REQUESTS,
    extendedBy,
    recordedTable,
)
from admission.web.webcolumns import WebRequestEvent

HOPS = {"kind": (integer("hops", "hops"),)}
TAKEN = {"kind": (integer("API_Key", "hops"),)}
HUGE = {"kind": [integer(f"column{number}", "hops") for number in range(100)]}


def entry(name: str, value: str) -> EntryPoint:
    """Columns as a distribution names them."""
    return EntryPoint(name, value, ENTRY_POINT_GROUP)


class ExtendedByTests(SynchronousTestCase):
    """Columns of drivers."""

    def test_columns(self) -> None:
        """They stand behind the columns that they name."""
        found, _ = extendedBy(schema.REQUESTS, [entry("hops", f"{__name__}:HOPS")])
        names = [column.name for column in found.columns]
        self.assertEqual(names[names.index("kind") + 1], "hops")
        self.assertEqual(len(names), len(schema.REQUESTS.columns) + 1)

    def test_takenName(self) -> None:
        """A column whose name is taken is left out, and Kafka's are not the ones that go."""
        with catch_warnings(record=True) as warned:
            simplefilter("always")
            found, _ = extendedBy(schema.REQUESTS, [*OURS, entry("a", f"{__name__}:TAKEN")])
        self.assertEqual(found, REQUESTS)
        self.assertIn("requests would have api_key twice", str(warned[0].message))

    def test_withoutEntryPoints(self) -> None:
        """The columns of Kafka's driver are there wherever the code is, be that in a zip."""
        names = {column.name for column in extendedBy(schema.REQUESTS, OURS)[0].columns}
        self.assertTrue({"api_key", "producer_ids", "group_id"} <= names)

    def test_broken(self) -> None:
        """
        Columns that cannot be imported, that stand behind none, or that find no
        room are left out with a warning; others are not affected.
        """
        values = ("no_such_module:COLUMNS", f"{__name__}:HUGE", f"{__name__}:entry")
        entries = [*(entry(f"a{number}", value) for number, value in enumerate(values)), entry("z", f"{__name__}:HOPS")]
        with catch_warnings(record=True) as warned:
            simplefilter("always")
            found, _ = extendedBy(schema.REQUESTS, entries)
        self.assertIn("hops", {column.name for column in found.columns})
        self.assertEqual(len(found.columns), len(schema.REQUESTS.columns) + 1)
        for warning, value in zip(warned, values, strict=True):
            self.assertIn(f"({value}) records are left out: ", str(warning.message))


class RecordedTests(SynchronousTestCase):
    """Each driver has the room of a record for itself."""

    def test_ownRoom(self) -> None:
        """Kafka's have the number that they always had; others have their own, and the columns that they know."""
        self.assertEqual(RECORDED_REQUESTS[0].number, schema.REQUESTS.number)
        self.assertEqual(len({table.number for table in RECORDED_TABLES}), len(RECORDED_TABLES))
        for eventType, name, missing in (
            (KafkaRequestEvent, "api_key", "status"),
            (WebRequestEvent, "status", "api_key"),
            (RequestEvent, "api_key", "status"),
        ):
            names = {column.name for column in recordedTable(eventType).columns}
            self.assertTrue(name in names and missing not in names)
            self.assertTrue({name, missing} <= {column.name for column in REQUESTS.columns})


class EventClassTests(SynchronousTestCase):
    """What a segment takes."""

    def test_severalDrivers(self) -> None:
        """Requests of several protocols in one segment are one table, in their order, with what each knows."""
        path = self.mktemp()
        writer = SegmentWriter(path, 1 << 20)
        self.addCleanup(writer.close)
        writer.begin(Header(Origin("server", "run", 1), 1, 100.0, 0.0))
        for number in range(4):
            eventType = (KafkaRequestEvent, WebRequestEvent)[number % 2]
            writer.append(eventType(number, 100.0 + number, kind=f"kind {number}"))
        writer.append(WebRequestEvent(9, 105.0, kind="GET /", method="GET", status=200))
        segment = Segment.load(path)
        assert segment is not None
        rows = list(segment.rows(REQUESTS))
        self.assertEqual([row["kind"] for row in rows], ["kind 0", "kind 1", "kind 2", "kind 3", "GET /"])
        self.assertEqual([row["status"] for row in rows], [None, None, None, None, 200])
        self.assertEqual([row["api_key"] for row in rows], [-1, None, -1, None, None])

    def test_foreign(self) -> None:
        """An object that is no event is refused by the name of its class."""
        writer = SegmentWriter(self.mktemp(), 1 << 20)
        self.addCleanup(writer.close)
        writer._lastOffset = 1 << 19
        error = self.assertRaises(TypeError, writer.append, 5)
        self.assertEqual(str(error), "int is no event that is recorded")

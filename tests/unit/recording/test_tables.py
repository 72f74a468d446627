"""Tests for L{admission.recording.tables}."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from warnings import catch_warnings, simplefilter

from twisted.trial.unittest import SynchronousTestCase

from admission.recording import schema
from admission.recording.schema import integer
from admission.recording.segments import SegmentWriter
from admission.recording.tables import ENTRY_POINT_GROUP, OURS, REQUESTS, extendedBy

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
        found = extendedBy(schema.REQUESTS, [entry("hops", f"{__name__}:HOPS")])
        names = [column.name for column in found.columns]
        self.assertEqual(names[names.index("kind") + 1], "hops")
        self.assertEqual(len(names), len(schema.REQUESTS.columns) + 1)

    def test_takenName(self) -> None:
        """A column whose name is taken is left out, and Kafka's are not the ones that go."""
        with catch_warnings(record=True) as warned:
            simplefilter("always")
            found = extendedBy(schema.REQUESTS, [*OURS, entry("a", f"{__name__}:TAKEN")])
        self.assertEqual(found, REQUESTS)
        self.assertIn("requests would have api_key twice", str(warned[0].message))

    def test_withoutEntryPoints(self) -> None:
        """Those of Kafka's driver are there wherever the code is, be that in a zip."""
        names = {column.name for column in extendedBy(schema.REQUESTS, OURS).columns}
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
            found = extendedBy(schema.REQUESTS, entries)
        self.assertIn("hops", {column.name for column in found.columns})
        self.assertEqual(len(found.columns), len(schema.REQUESTS.columns) + 1)
        for warning, value in zip(warned, values, strict=True):
            self.assertIn(f"({value}) records are left out: ", str(warning.message))


class EventClassTests(SynchronousTestCase):
    """What a segment takes."""

    def test_foreign(self) -> None:
        """An object that is no event is refused by the name of its class."""
        writer = SegmentWriter(self.mktemp(), 1 << 20)
        self.addCleanup(writer.close)
        writer._lastOffset = 1 << 19
        error = self.assertRaises(TypeError, writer.append, 5)
        self.assertEqual(str(error), "int is no event that is recorded")

"""L{admission.shipping.pseudonyms}"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve
from hypothesis import given, strategies as st
from pyarrow import parquet
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import DEFAULT
from admission.kafka.serving.recordedcolumns import KafkaRequestEvent
from admission.offline.population import Population
from admission.offline.syntheticserver import SyntheticServer, recordSynthetic
from admission.recording import TABLES
from admission.recording.events import GAUGE, KEPT, ConnectionEvent, LimitEvent, SensorSample
from admission.recording.schema import ColumnType
from admission.shipping.pseudonyms import HARMLESS, KINDS, DamagedFile, KeyRefused, Pseudonyms, readKey
from admission.shipping.shipper import Shipper
from admission.shipping.target import Target
from tests.kit.identitygate import assertAsRecorded, gate, readRecording
from tests.kit.recordings import writeRecording

KEY = b"a key of the tests, long enough"

NAMES = (
    "alice",
    "bob",
    "nightly",
    "billing",
    "secrets",
    "192.0.2.7",
    "192.0.2.8",
    "192.0.2.9",
    "reports",
    "carol",
    "2026-03-01 alice",
)

_OF_SENSOR = "client-bytes.received"


def rewritten(table: pa.Table) -> pa.Table:
    """What a table becomes."""
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    return parquet.read_table(pa.BufferReader(Pseudonyms(KEY).rewritten(sink.getvalue().to_pybytes())))


class PseudonymsTests(SynchronousTestCase):
    """L{Pseudonyms}"""

    def test_same(self) -> None:
        """A name has one pseudonym, whatever file and column it is in, and with another key it has another."""
        pseudonyms = Pseudonyms(KEY)
        name = pseudonyms.of("user", "alice")
        self.assertRegex(name, r"^user-[0-9a-f]{16}$")
        self.assertEqual(pseudonyms.of("client", "alice").partition("-")[2], name.partition("-")[2])
        self.assertNotEqual(Pseudonyms(KEY + b".").of("user", "alice"), name)
        self.assertNotEqual(Pseudonyms(KEY + b".").fingerprint, pseudonyms.fingerprint)

    @given(st.lists(st.one_of(st.none(), st.just(DEFAULT), st.text()), min_size=1))
    def test_joined(self, names: list[str | None]) -> None:
        """Rows that agreed in a name still do, others do not, and those without one have none."""
        table = rewritten(pa.table({"user": pa.array(names, pa.string())}))
        found = table.column("user").to_pylist()
        self.assertEqual([each is None for each in found], [each is None for each in names])
        self.assertEqual([each == DEFAULT for each in found], [each == DEFAULT for each in names])
        pairs = set(zip(names, found, strict=True))
        self.assertEqual((len(pairs), len(pairs)), (len(set(names)), len(set(found))))

    def test_known_columns(self) -> None:
        """Of each column that may have text it is decided whether it has names."""
        texts = {
            column.name
            for table in TABLES
            for column in table.columns
            if column.type.isText or column.type is ColumnType.TEXTS
        }
        self.assertEqual(texts, set(KINDS) | HARMLESS)

    def test_foreign(self) -> None:
        """Texts in columns that nobody knows are names; what may have texts in another form is left out."""
        table = rewritten(
            pa.table(
                {
                    "tenant": ["alice"],
                    "tenants": [["alice"]],
                    "raw": [b"alice"],
                    "struct": [{"name": "alice"}],
                    "numbers": [[1, 2]],
                    "number": [1.5],
                }
            )
        )
        [row] = table.to_pylist()
        self.assertEqual(row.pop("tenant"), Pseudonyms(KEY).of("name", "alice"))
        self.assertEqual(row, {"tenants": None, "raw": None, "struct": None, "numbers": [1, 2], "number": 1.5})

    def test_metadata(self) -> None:
        """What others have written beside the columns is left out."""
        table = pa.table({"seq": [1]}).replace_schema_metadata({"by": "alice"})
        self.assertIsNone(rewritten(table).schema.metadata)

    def test_dictionary(self) -> None:
        """A column without names has none where readers do not look: sealed ones may have all texts of a segment."""
        kinds = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int32()), pa.array(["Produce", "alice"]))
        sink = pa.BufferOutputStream()
        parquet.write_table(pa.table({"kind": kinds}), sink)
        content = sink.getvalue().to_pybytes()
        for each, found in ((content, ["Produce", "alice"]), (Pseudonyms(KEY).rewritten(content), ["Produce"])):
            column = parquet.read_table(pa.BufferReader(each)).column("kind").combine_chunks()
            self.assertEqual(column.dictionary.to_pylist(), found)

    def test_damaged(self) -> None:
        """A file that is damaged is refused, wherever the damage is."""
        sink = pa.BufferOutputStream()
        parquet.write_table(pa.table({"user": ["alice" * 9]}), sink, compression=None, write_page_checksum=True)
        content = sink.getvalue().to_pybytes()
        for broken in (b"", b"PAR1", content[:-9], content.replace(b"alicealice", b"alicemalic")):
            self.assertRaises(DamagedFile, Pseudonyms(KEY).rewritten, broken)


class FileTests(SynchronousTestCase):
    """Whole recordings."""

    def _ship(self, directory: str) -> str:
        there = os.path.abspath(self.mktemp())
        shipper = Shipper(directory, lambda: Target.open(f"file://{there}"), Pseudonyms(KEY))
        shipper.look()
        self.assertEqual(shipper.problem, "")
        return there

    def test_nowhere(self) -> None:
        """No name is left in any file, whatever column it was in."""
        directory = os.path.abspath(self.mktemp())
        request = KafkaRequestEvent(1, 1.0, "tcp:9092", "192.0.2.7", "alice", "nightly", "Produce")
        request.reason, request.groupId = "'secrets' is no topic", "billing"
        events: list[Any] = [
            request,
            ConnectionEvent(1, 2.0, "closed", "tcp:9092", "192.0.2.8", "bob", "bob has left"),
            LimitEvent(3.0, "alice", "reports", None, "received_byte_rate", 1.0, "carol"),
            LimitEvent(3.0, None, None, "192.0.2.9", "connection_creation_rate", 1.0),
            LimitEvent(3.0, "2026-03-01 alice", None, None, f"{KEPT}daily", 1.0),
            SensorSample(4.0, _OF_SENSOR, GAUGE, 1.0, "alice,nightly"),
            SensorSample(4.0, "LedgerBytes", GAUGE, 1.0, "responses"),
        ]
        writeRecording(directory, events)
        there = self._ship(directory)
        for column, texts in self._texts(there).items():
            self.assertEqual([text for text in texts if any(name in text for name in NAMES)], [], column)
        rows = {path.parts[-4]: parquet.read_table(path, partitioning=None) for path in Path(there).rglob("*.parquet")}
        of = Pseudonyms(KEY).of
        [row] = rows["requests"].select(["principal", "peer", "client_id", "group_id", "kind"]).to_pylist()
        self.assertEqual(
            row,
            {
                "principal": of("user", "alice"),
                "peer": of("address", "192.0.2.7"),
                "client_id": of("client", "nightly"),
                "group_id": of("group", "billing"),
                "kind": "Produce",
            },
        )
        self.assertEqual(rows["limits"].column("user")[0].as_py(), row["principal"])
        self.assertEqual(rows["limits"].column("ip")[1].as_py(), of("address", "192.0.2.9"))
        self.assertEqual(rows["sensors"].column("entity")[1].as_py(), "responses")

    def test_replayed(self) -> None:
        """A replay under pseudonyms says what a replay under names does, and what was recorded."""
        directory = os.path.abspath(self.mktemp())
        population = Population(seed=5, clients=12, connections=3, seconds=30.0, requests=1500, largestBytes=256 << 10)
        quotas = ("client-bytes:produce=20k:fetch=60k", "request-time:percent=0.2")
        recordSynthetic(directory, SyntheticServer(population, quotas, "bounded:400KiB"), lambda rows, seconds: None)
        there = self._ship(directory)
        named, hidden = (gate(readRecording(each), lambda run: evolve(run, gaps=[])) for each in (directory, there))
        assertAsRecorded(self, hidden)
        self.assertEqual(hidden, named)
        self.assertGreater(min(each.throttled for each in hidden), 20)

    def _texts(self, directory: str) -> dict[str, set[str]]:
        """All that is in the dictionaries of a recording's columns, used or not."""
        found: dict[str, set[str]] = {}
        for path in Path(directory).rglob("*.parquet"):
            table = parquet.read_table(path, partitioning=None)
            for name in table.column_names:
                column = table.column(name).combine_chunks()
                if pa.types.is_dictionary(column.type):
                    found.setdefault(name, set()).update(column.dictionary.to_pylist())
        return found


class KeyTests(SynchronousTestCase):
    """L{readKey}"""

    def _file(self, content: bytes) -> str:
        path = self.mktemp()
        Path(path).write_bytes(content)
        return path

    def test_read(self) -> None:
        """The key is what the file has."""
        self.assertEqual(readKey(self._file(KEY + b"\n")), KEY + b"\n")

    def test_refused(self) -> None:
        """A file that is too short or too long, a device or none is no key."""
        for path, words in (
            (self._file(b"x" * 15 + b"\n\n\n"), "16 bytes"),
            (self._file(bytes(70_000)), "64KiB"),
            ("/dev/zero", "not a regular file"),
            ("/nowhere", "No such file"),
        ):
            self.assertIn(words, str(self.assertRaises(KeyRefused, readKey, path)))

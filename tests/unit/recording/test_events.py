"""L{admission.recording.schema}, L{admission.recording.events} and L{admission.recording.recordlayout}."""

from __future__ import annotations

import json
import struct
from math import inf, nan
from typing import Any

from attrs import evolve, fields
from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.serving.recordedcolumns import KAFKA_COLUMNS, KafkaRequestEvent
from admission.recording import schema
from admission.recording.events import (
    UNKNOWN,
    UNKNOWN_SECONDS,
    ConnectionEvent,
    LimitEvent,
    Origin,
    RequestEvent,
    SensorSample,
)
from admission.recording.recordlayout import (
    LONGEST_TEXT_BYTES,
    OVERFLOW_CODE,
    SLOT_BYTES,
    Layout,
    TextCodes,
    microseconds,
    packer,
    packText,
    unpackText,
)
from admission.recording.schema import CONNECTIONS, LIMITS, OVERFLOW, SENSORS, Column, ColumnType, Table
from admission.recording.tables import RECORDED_TABLES, REQUESTS, TABLES, recordedTable
from admission.web.webcolumns import WEB_COLUMNS, WebRequestEvent

KAFKA_REQUESTS = recordedTable(KafkaRequestEvent)

EVENT_OF = {
    KAFKA_REQUESTS: KafkaRequestEvent,
    recordedTable(WebRequestEvent): WebRequestEvent,
    CONNECTIONS: ConnectionEvent,
    LIMITS: LimitEvent,
    SENSORS: SensorSample,
}

FIRST_VERSION = {
    "requests": (
        "v broker_id boot_id seq ts mono_us gate_seed conn_id listener peer principal client_id kind api_key "
        "api_version correlation_id request_bytes response_bytes producer_id producer_epoch producer_id_count "
        "producer_ids group_id inflight decision reason policy policy_names policy_delays_us decided_mono_us "
        "is_counted throttle_ms pool_wait_us queue_us service_us purgatory_wait_us pool_hold_us sent_mono_us "
        "pool_used_bytes pool_available_bytes bloom_seen"
    ),
    "connections": "v broker_id boot_id seq ts mono_us conn_id state listener peer principal reason requests open_us",
    "limits": "v broker_id boot_id seq ts mono_us user client_id ip limit_name value changed_by",
    "sensors": "v broker_id boot_id seq ts mono_us sensor entity kind value",
}
"""What has been written to disks and must be readable for ever."""

TEXTS = st.none() | st.text(max_size=40)
COUNTS = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
SHORTS = st.integers(-(2**15), 2**15 - 1)
SECONDS = st.floats(-1e9, 1e9)


def record(table: Table, event: Any) -> dict[str, Any]:
    """What is read of C{event} after it was recorded."""
    texts: dict[int, str] = {}

    def define(text: str) -> int:
        texts[len(texts) + 2] = text
        return len(texts) + 1

    slot = bytearray(SLOT_BYTES)
    packer(table, type(event))(slot, 0, TextCodes(1000, define), TextCodes(1000, define), event)
    assert slot[-1] == table.number
    return Layout.of(table).reader(texts)(slot, 0)


class SchemaTests(SynchronousTestCase):
    """The tables."""

    def test_columnsStay(self) -> None:
        """
        The first version's columns are all there, at the beginning of their
        tables and in their order, however many have been added.
        """
        tables = {table.name: [column.name for column in table.columns] for table in TABLES}
        for name, columns in FIRST_VERSION.items():
            first = columns.split()
            self.assertEqual(tables[name][: len(first)], first)

    def test_unitsAreInNames(self) -> None:
        """Times end in their unit, and nothing else does."""
        times = (ColumnType.SECONDS, ColumnType.DURATIONS)
        for table in TABLES:
            for column in table.columns:
                self.assertEqual(column.name.endswith("_us"), column.type in times, column.name)

    def test_everyAttributeIsRecorded(self) -> None:
        """Events and tables name the same things."""
        for table, kind in EVENT_OF.items():
            recorded = {column.attribute for column in table.recorded}
            derived = {
                name for each in kind.__mro__ for name, value in vars(each).items() if isinstance(value, property)
            }
            self.assertEqual(recorded, derived.union(each.name for each in fields(kind)), table.name)

    def test_extended(self) -> None:
        """Columns that a driver declares stand behind those that it names, and no others do."""
        added = Column("extra", ColumnType.INTEGER, "extra", "q")
        names = [column.name for column in SENSORS.extended({"kind": [added]}).columns]
        self.assertEqual(names[-3:], ["kind", "extra", "value"])
        self.assertEqual(SENSORS.extended({}), SENSORS)
        refusal = self.assertRaises(ValueError, SENSORS.extended, {"none": [added]})
        self.assertEqual(str(refusal), "sensors has no column none to add others behind")

    def test_coreKnowsNoKafka(self) -> None:
        """What Kafka's drivers declare is in the table that is recorded, and not in the core's."""
        own = (*KAFKA_COLUMNS.values(), *WEB_COLUMNS.values())
        declared = {column.name for columns in own for column in columns}
        core = {column.name for column in schema.REQUESTS.columns}
        self.assertEqual(declared & core, set())
        self.assertEqual(declared | core, {column.name for column in REQUESTS.columns})

    def test_numbersDiffer(self) -> None:
        """A record tells its table by its number, and none looks like an empty slot or a text."""
        numbers = [table.number for table in RECORDED_TABLES]
        self.assertEqual(len(set(numbers)), len(numbers))
        self.assertTrue(all(0 < number < 255 for number in numbers))

    def test_tooLarge(self) -> None:
        """A table whose records do not fit into a slot is refused."""
        columns = [Column(f"c{number}", ColumnType.INTEGER, "seq", "q") for number in range(32)]
        refusal = self.assertRaises(ValueError, Layout.of, Table("large", 9, columns))
        self.assertEqual(str(refusal), "a record of large takes 1 bytes more than a slot has")

    def test_fieldsDoNotOverlap(self) -> None:
        """Every byte of a slot belongs to one field at most, and the last to none."""
        for table in RECORDED_TABLES:
            ends = 0
            for each in sorted(Layout.of(table).fields, key=lambda each: each.offset):
                self.assertGreaterEqual(each.offset, ends)
                sizes = {"q": 8, "d": 8, "i": 4, "f": 4, "h": 2, "H": 2, "b": 1}
                ends = each.offset + sizes[each.code] * each.capacity + each.type.isList
            self.assertLess(ends, SLOT_BYTES)


class OriginTests(SynchronousTestCase):
    """L{Origin}."""

    def test_seed(self) -> None:
        """A seed that does not fit into the column is refused before anything is recorded."""
        self.assertEqual(Origin("0", "boot", 2**63 - 1).gateSeed, 2**63 - 1)
        for seed in (2**63, -2):
            self.assertRaises(ValueError, Origin, "0", "boot", seed)


class RecordTests(SynchronousTestCase):
    """Events survive being recorded."""

    @given(
        st.builds(
            KafkaRequestEvent,
            connectionId=COUNTS,
            arrivedSeconds=SECONDS,
            listener=TEXTS,
            peer=TEXTS,
            principal=TEXTS,
            clientId=TEXTS,
            kind=TEXTS,
            groupId=TEXTS,
            apiKey=SHORTS,
            requestBytes=COUNTS,
            identities=st.lists(COUNTS, max_size=6),
            policyDelaysSeconds=st.lists(st.floats(0, 3600), max_size=6),
            decidedSeconds=st.floats(),
            throttleTimeMs=INT32,
            isCounted=st.sampled_from([UNKNOWN, False, True]),
            seq=COUNTS,
        )
    )
    def test_requests(self, event: KafkaRequestEvent) -> None:
        """Whatever a request's values are, they are read as they were, rounded to microseconds."""
        read = record(KAFKA_REQUESTS, event)
        for name, attribute in [
            ("conn_id", "connectionId"),
            ("listener", "listener"),
            ("peer", "peer"),
            ("principal", "principal"),
            ("client_id", "clientId"),
            ("kind", "kind"),
            ("group_id", "groupId"),
            ("api_key", "apiKey"),
            ("request_bytes", "requestBytes"),
            ("throttle_ms", "throttleTimeMs"),
            ("seq", "seq"),
        ]:
            self.assertEqual(read[name], getattr(event, attribute), name)
        self.assertEqual(read["mono_us"], microseconds(event.arrivedSeconds))
        self.assertEqual(read["decided_mono_us"], microseconds(event.decidedSeconds))
        self.assertEqual(read["producer_ids"], list(event.identities[:4]))
        self.assertEqual(read["policy_delays_us"], [round(each * 1e6) for each in event.policyDelaysSeconds])
        self.assertEqual(read["is_counted"], None if event.isCounted == UNKNOWN else bool(event.isCounted))

    def test_unknown(self) -> None:
        """What is not known is null, and only that."""
        read = record(KAFKA_REQUESTS, KafkaRequestEvent(0, 0.0))
        nulls = {name for name, value in read.items() if value is None}
        self.assertEqual(
            nulls,
            {
                "listener",
                "peer",
                "principal",
                "client_id",
                "kind",
                "producer_id",
                "producer_epoch",
                "group_id",
                "reason",
                "policy",
                "decided_mono_us",
                "is_counted",
                "sent_mono_us",
                "bloom_seen",
                "refusal",
                "node_id",
                "upstream_us",
                "upstream_throttle_ms",
                "lag_us",
                "begun_us",
                "traits",
            },
        )
        # What it does not have, because only some drivers do, is not known either.
        self.assertEqual(record(KAFKA_REQUESTS, RequestEvent(0, 0.0)), read)
        self.assertEqual((read["producer_ids"], read["policy_delays_us"]), ([], []))
        self.assertEqual(record(KAFKA_REQUESTS, KafkaRequestEvent(0, 0.0, clientId=""))["client_id"], "")

    def test_smallTables(self) -> None:
        """Connections, limits and samples are read as they were."""
        read = record(CONNECTIONS, ConnectionEvent(7, 1.5, "closed", "tcp:1", "::1", "me", "idle", 12, 0.25, 3))
        self.assertEqual(
            read,
            {
                "seq": 3,
                "mono_us": 1_500_000,
                "conn_id": 7,
                "state": "closed",
                "listener": "tcp:1",
                "peer": "::1",
                "principal": "me",
                "reason": "idle",
                "requests": 12,
                "open_us": 250_000,
            },
        )
        removed = record(LIMITS, LimitEvent(2.0, "me", None, None, "rate", UNKNOWN_SECONDS, "admin"))
        self.assertEqual((removed["user"], removed["client_id"], removed["value"]), ("me", None, None))
        sample = record(SENSORS, SensorSample(2.0, "Used", "gauge", inf, "a=b"))
        self.assertEqual((sample["sensor"], sample["entity"], sample["value"]), ("Used", "a=b", inf))

    def test_impossible(self) -> None:
        """A value that does not fit raises, and leaves no record."""
        slot = bytearray(SLOT_BYTES)
        pack = packer(KAFKA_REQUESTS, KafkaRequestEvent)
        for event in (KafkaRequestEvent(0, 0.0, apiKey=1 << 15), KafkaRequestEvent(2**63, 0.0)):
            self.assertRaises(struct.error, pack, slot, 0, TextCodes(9, len), TextCodes(9, len), event)
            self.assertEqual(slot[-1], 0)

    def test_otherVersions(self) -> None:
        """
        A layout says all that is needed to read a record, so that those of
        versions with fewer, more or other columns can be read.
        """
        later = evolve(SENSORS, columns=[*SENSORS.columns, Column("extra", ColumnType.INTEGER, "seq", "q")])
        described = json.loads(json.dumps(Layout.of(later).toJson()))
        slot = bytearray(SLOT_BYTES)
        packer(later, SensorSample)(
            slot, 0, TextCodes(9, len), TextCodes(9, len), SensorSample(1.0, "", "", 2.5, seq=7)
        )
        read = Layout.fromJson(described).reader({})(slot, 0)
        self.assertEqual((read["extra"], read["seq"], read["value"]), (7, 7, 2.5))
        described["fields"][0][1] = "a type to come"
        self.assertEqual(len(Layout.fromJson(described).fields), len(described["fields"]) - 1)

    def test_microseconds(self) -> None:
        """What is no moment is none, and does not overflow."""
        self.assertEqual([microseconds(each) for each in (nan, inf, -inf, 1e30)], [None] * 4)
        self.assertEqual(microseconds(1.0000016), 1_000_002)


class TextTests(SynchronousTestCase):
    """Texts and their codes."""

    def test_codes(self) -> None:
        """A text is defined once, and none has the code of no text."""
        defined: list[str] = []

        def define(text: str) -> int:
            defined.append(text)
            return 1 + len(defined)

        codes = TextCodes(5, define)
        self.assertEqual([codes[each] for each in ("a", "b", "a", None)], [2, 3, 2, 0])
        self.assertEqual((defined, codes.overflows), (["a", "b"], 0))

    def test_bound(self) -> None:
        """
        However many texts come, no more than there is room for are kept; the
        others share a code, and are counted.
        """
        codes = TextCodes(3, lambda text: int(text))
        self.assertEqual([codes[str(each)] for each in range(10, 16)], [10, 11, 12] + [OVERFLOW_CODE] * 3)
        self.assertEqual((codes["11"], len(codes), codes.overflows), (11, 4, 3))

    def test_longTexts(self) -> None:
        """Of a long text no more is kept than a record holds, however often it comes, and it has one code."""
        defined: list[str] = []
        codes = TextCodes(3, lambda text: defined.append(text) or len(defined))  # type: ignore[func-returns-value]
        texts = ["x" * 30_000 + end for end in "aab"]
        self.assertEqual([codes[each] for each in texts], [1, 1, 2])
        self.assertEqual(len(codes), 3)
        self.assertLess(max(len(each) for each in codes if each is not None), 300)

    def test_unknownCode(self) -> None:
        """A code whose text did not reach the disk is read as an overflow, and not as if there had been none."""
        slot = bytearray(SLOT_BYTES)
        lost = SensorSample(0.0, "lost", "", 0.0)
        packer(SENSORS, SensorSample)(slot, 0, TextCodes(9, lambda text: 77), TextCodes(9, len), lost)
        self.assertEqual(Layout.of(SENSORS).reader({})(slot, 0)["sensor"], OVERFLOW)

    @given(st.text(max_size=400))
    def test_texts(self, text: str) -> None:
        """A text is read as it was, unless it is too long or cannot be encoded."""
        slot = bytearray(SLOT_BYTES)
        packText(slot, 0, 5, text)
        code, read = unpackText(slot, 0, SLOT_BYTES)
        self.assertEqual(code, 5)
        if len(text.encode("utf-8", "backslashreplace")) <= LONGEST_TEXT_BYTES:
            self.assertEqual(read, text.encode("utf-8", "backslashreplace").decode())
        else:
            self.assertLessEqual(len(read.encode()), LONGEST_TEXT_BYTES)
            self.assertRegex(read, r"\.\.\.[0-9a-f]{8}\Z")

    def test_longTextsDiffer(self) -> None:
        """Texts that are too long and begin alike are not taken for each other."""
        read = set()
        for end in ("a", "b"):
            slot = bytearray(SLOT_BYTES)
            packText(slot, 0, 5, "ä" * 500 + end)
            read.add(unpackText(slot, 0, SLOT_BYTES)[1])
        self.assertEqual(len(read), 2)
        self.assertEqual({each[:100] for each in read}, {"ä" * 100})

    def test_lonelySurrogate(self) -> None:
        """What is no proper text is written in escapes."""
        slot = bytearray(SLOT_BYTES)
        packText(slot, 0, 5, "a\udc80")
        self.assertEqual(unpackText(slot, 0, SLOT_BYTES)[1], "a\\udc80")

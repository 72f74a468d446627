"""Tests for L{admission.kafka.wire.recordwalk}."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import example, given, settings, strategies as st
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.batches import HEADER_BYTES, BatchRefused, Record, encodeBatch, readBatch, recordsOf
from admission.kafka.wire.recordwalk import ANY_TIME, FoundRecord, RecordWalk
from tests.kit.hostilebatches import batch, record

NOTHING = st.none() | st.binary(max_size=70)
RECORDS = st.lists(
    st.builds(
        Record,
        NOTHING,
        NOTHING | st.builds(bytes, st.integers(0, 20_000)),
        st.integers(-(2**40), 2**40),
        st.lists(st.tuples(st.text(max_size=70), NOTHING), max_size=80).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


def pieces(payload: bytes, sizeBytes: int) -> Iterator[bytes]:
    """C{payload} in chunks, and an empty one before each."""
    for at in range(0, len(payload), sizeBytes):
        yield b""
        yield payload[at : at + sizeBytes]


def walked(
    value: bytes, times: tuple[int, int] = ANY_TIME, chunkBytes: int = 1 << 16
) -> tuple[RecordWalk, object, int]:
    """
    Go over a batch.

    @return: what was found, and how many steps that took.
    """
    walk = RecordWalk(readBatch(value), pieces(value[HEADER_BYTES:], chunkBytes), 1 << 20)
    steps, count = walk.findOutside(*times), 0
    try:
        while True:
            next(steps)
            count += 1
    except StopIteration as end:
        return walk, end.value, count


class WalkTests(SynchronousTestCase):
    """L{RecordWalk} finds what decoding all records finds."""

    @settings(max_examples=200, deadline=None)
    @given(RECORDS, st.integers(1, 300), st.integers(0, 8))
    def test_model(self, records: Sequence[Record], chunkBytes: int, number: int) -> None:
        """However records are cut into chunks, all are gone over, and the first that is late is found."""
        value = encodeBatch(records)
        walk, found, _ = walked(value, chunkBytes=chunkBytes)
        largestMs = max(-1, *(each.timestampMs for each in records))
        self.assertEqual(
            (found, walk.count, walk.maxTimestampMs, walk.isInOrder), (None, len(records), largestMs, True)
        )
        endMs = records[number % len(records)].timestampMs
        _, found, _ = walked(value, (ANY_TIME[0], endMs), chunkBytes)
        late = next(at for at, each in enumerate(records) if each.timestampMs >= endMs)
        self.assertEqual(found, FoundRecord(late, records[late].timestampMs))

    @settings(max_examples=300, deadline=None)
    @given(RECORDS, st.integers(1, 300), st.integers(0, 10**6), st.integers(0, 255))
    @example([Record(None, b"", 0)], 1, 6, 1)
    def test_damaged(self, records: Sequence[Record], chunkBytes: int, at: int, byte: int) -> None:
        """A damaged byte is refused where decoding refuses it, and nowhere else, but for names that are not UTF-8."""
        value = bytearray(encodeBatch(records))
        value[HEADER_BYTES + at % (len(value) - HEADER_BYTES)] = byte
        value = bytearray(batch(bytes(value[HEADER_BYTES:]), records[0].timestampMs, count=len(records)))
        try:
            recordsOf(readBatch(value), bytes(value[HEADER_BYTES:]))
        except BatchRefused as refusal:
            if "UTF-8" not in refusal.reason:
                self.assertRaises(BatchRefused, walked, bytes(value), ANY_TIME, chunkBytes)
        else:
            walked(bytes(value), ANY_TIME, chunkBytes)

    def test_order(self) -> None:
        """Offsets that do not follow one another are told, and no more."""
        for deltas in ((1000,), (0, 0, 0), (2, 1, 0), (-1,), (0, 2)):
            walk, _, _ = walked(batch(b"".join(record(delta) for delta in deltas), 0, count=len(deltas)))
            self.assertFalse(walk.isInOrder, deltas)

    def test_steps(self) -> None:
        """Neither many records, nor many headers, nor a long value, nor much of nothing is gone over in one step."""
        for payload, count in [
            (b"".join(record(number) for number in range(20_000)), 20_000),
            (record(headerCount=100_000, tail=b"\0\1" * 100_000), 1),
            (record(value=bytes(900_000)), 1),
        ]:
            _, found, steps = walked(batch(payload, 0, count=count), chunkBytes=1 << 14)
            self.assertIsNone(found)
            self.assertGreater(steps, 20)
        empty = RecordWalk(readBatch(batch(record(), 0)), iter([b""] * 50)).findOutside(*ANY_TIME)
        self.assertGreater(len([*zip(range(40), empty, strict=False)]), 30)

    def test_tooLarge(self) -> None:
        """Records have a largest size in all, which is asked of each chunk."""
        value = batch(record(value=bytes(2 << 20)), 0)
        refusal = self.assertRaises(BatchRefused, walked, value)
        self.assertEqual(refusal.errorCode, ErrorCode.message_too_large)
        self.assertIn("more than 1048576 bytes", refusal.reason)

    def test_words(self) -> None:
        """A refusal says which record it is, and what is wrong with it."""
        for payload, count, words in [
            (record() + record(1, length=-8), 2, "record 1 of 2 is not one: it has -8 bytes"),
            (record(headerCount=-1), 1, "-1 headers"),
            (record(headerCount=1, tail=b"\1\1"), 1, "a header has no name"),
            (record(length=9), 1, "says 9"),
            (record(valueLength=1000), 1, "end before it does"),
            (b"\x80" * 11, 1, "a varint runs over 5 bytes"),
            (record() + b"x", 1, "bytes follow the last of 1 records"),
        ]:
            refusal = self.assertRaises(BatchRefused, walked, batch(payload, 0, count=count))
            self.assertEqual(refusal.errorCode, ErrorCode.invalid_record)
            self.assertIn(words, refusal.reason)

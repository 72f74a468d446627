# -*- test-case-name: tests.unit.kafka.wire.test_recordwalk -*-
"""
Going over the records of a batch without making objects of them: whether they are what the batch says, and which is the
first of some time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from .batches import BatchRefused, RecordBatch
from .primitives import MalformedRequest, readSignedVarint, readSignedVarlong

RECORDS_AT_ONCE: Final = 500
"""How many records are gone over in one step: about half a millisecond."""

MAX_RECORD_BYTES: Final = 100 << 20
"""
What all records of a batch may have after decompression: a tenth of a second of gzip, and what our own consumer reads.
"""

ANY_TIME: Final = (-(1 << 65), 1 << 65)
"""A range of timestamps that has all there are."""

_LONGEST_VARINT_BYTES: Final = 10
_HEADERS_AT_ONCE: Final = 64


class FoundRecord(NamedTuple):
    """
    @ivar offsetDelta: its offset, counted from the batch's.
    @ivar timestampMs: its own.
    """

    offsetDelta: int
    timestampMs: int


class RecordWalk:
    """
    Goes over the records of one batch.

    Almost all are looked at by one loop, L{_usual}, which knows the usual record that is whole in its chunk.  What it
    does not know is looked at a field at a time, and refused if need be.

    @ivar count: how many records it has gone over.
    @ivar maxTimestampMs: the largest timestamp of theirs; -1 if there is none.
    @ivar isInOrder: whether their offsets follow one another from the batch's on.
    """

    def __init__(self, batch: RecordBatch, chunks: Iterator[bytes], maxBytes: int = MAX_RECORD_BYTES) -> None:
        """
        @param chunks: the records, decompressed; some may be empty.
        @param maxBytes: how much that may be in all.
        """
        self.count = 0
        self.maxTimestampMs = -1
        self.isInOrder = True
        self.readBytes = 0
        self._expected = batch.count
        self._baseMs = batch.baseTimestampMs
        self._chunks = chunks
        self._maxBytes = maxBytes
        self._data = b""
        self._at = 0

    def findOutside(self, minMs: int, endMs: int) -> Generator[None, None, FoundRecord | None]:
        """
        Go on to the next record whose timestamp is not from C{minMs} to before C{endMs}, yielding at least once in a
        millisecond.

        @return: L{None} if there is none: all records have been gone over, and nothing is behind them.
        @raise BatchRefused: C{invalid_record} if the records contradict each other or the batch, C{message_too_large}
            if they have more than C{maxBytes}, or whatever C{chunks} raises.
        """
        isJoined = False
        while self.count < self._expected:
            before = self.count
            found = self._walk(minMs, endMs)
            if found is not None:
                return found
            if self.count > before:
                isJoined = False
            elif not isJoined and self._fill():
                isJoined = True
                if not before:
                    continue
            else:
                # It is not in two chunks, either, or not a usual one.
                found = yield from self._one(minMs, endMs)
                if found is not None:
                    return found
            if self.count < self._expected:
                yield None
        while self._at == len(self._data):
            if not self._fill():
                return None
            if not self._data:
                yield None
        raise BatchRefused(ErrorCode.invalid_record, f"bytes follow the last of {self._expected} records")

    def _walk(self, minMs: int, endMs: int) -> FoundRecord | None:
        last = min(self._expected, self.count + RECORDS_AT_ONCE)
        self._at, self.count, self.maxTimestampMs, isInOrder, found = _usual(
            self._data, self._at, self.count, last, self._baseMs, self.maxTimestampMs, minMs, endMs
        )
        self.isInOrder = self.isInOrder and isInOrder
        return found

    def _one(self, minMs: int, endMs: int) -> Generator[None, None, FoundRecord | None]:
        """
        Go over any record.
        """
        size = yield from self._varint()
        begin = self._position
        if size < 0:
            raise self._refused(f"it has {size} bytes")
        yield from self._skip(1)
        timeDelta = yield from self._varint(isLong=True)
        delta = yield from self._varint()
        # A key, and a value.
        for _ in range(2):
            yield from self._skip((yield from self._varint()))
        headers = yield from self._varint()
        if not 0 <= headers <= size:
            raise self._refused(f"it has {headers} headers")
        for number in range(headers):
            nameBytes = yield from self._varint()
            if nameBytes < 0:
                raise self._refused("a header has no name")
            yield from self._skip(nameBytes)
            yield from self._skip((yield from self._varint()))
            if not number % _HEADERS_AT_ONCE:
                yield None
        if self._position != begin + size:
            raise self._refused(f"it has {self._position - begin} bytes, and says {size}")
        if delta != self.count:
            self.isInOrder = False
        self.count += 1
        timestampMs = self._baseMs + timeDelta
        self.maxTimestampMs = max(self.maxTimestampMs, timestampMs)
        return None if minMs <= timestampMs < endMs else FoundRecord(delta, timestampMs)

    @property
    def _position(self) -> int:
        return self.readBytes - len(self._data) + self._at

    def _fill(self) -> bool:
        """
        Have another chunk, and forget what was gone over.
        """
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self.readBytes += len(chunk)
        if self.readBytes > self._maxBytes:
            raise BatchRefused(
                ErrorCode.message_too_large,
                f"the records have more than {self._maxBytes} bytes when they are decompressed; send smaller batches",
            )
        self._data = chunk if self._at == len(self._data) else self._data[self._at :] + chunk
        self._at = 0
        return True

    def _varint(self, isLong: bool = False) -> Generator[None, None, int]:
        while len(self._data) - self._at < _LONGEST_VARINT_BYTES and self._fill():
            yield None
        try:
            value, self._at = (readSignedVarlong if isLong else readSignedVarint)(self._data, self._at)
        except IndexError:
            raise self._ended() from None
        except MalformedRequest as malformed:
            raise self._refused(str(malformed)) from None
        return value

    def _skip(self, sizeBytes: int) -> Generator[None, None, None]:
        """
        Skip some bytes, or a null.
        """
        self._at += max(sizeBytes, 0)
        while self._at > len(self._data):
            missing = self._at - len(self._data)
            self._at = len(self._data)
            if not self._fill():
                raise self._ended()
            self._at = missing
            yield None

    def _ended(self) -> BatchRefused:
        return self._refused("the records end before it does")

    def _refused(self, why: str) -> BatchRefused:
        return BatchRefused(ErrorCode.invalid_record, f"record {self.count} of {self._expected} is not one: {why}")


def usualRecords(batch: RecordBatch, payload: bytes, minMs: int, endMs: int) -> int | None:
    """
    The largest timestamp of the records of a batch, in one go.

    @param payload: not compressed.
    @return: L{None} if L{RecordWalk} has to go over them: they are many, or unusual, or something is wrong.
    """
    count = batch.count
    if count > RECORDS_AT_ONCE:
        return None
    at, number, maxMs, _, found = _usual(payload, 0, 0, count, batch.baseTimestampMs, -1, minMs, endMs)
    return maxMs if number == count and found is None and at == len(payload) else None


def _usual(
    data: bytes, at: int, number: int, last: int, baseMs: int, maxMs: int, minMs: int, endMs: int
) -> tuple[int, int, int, bool, FoundRecord | None]:
    """
    Go over usual records, and stop before any other.

    @param at: where the first one begins.
    @param number: how many there are before it.
    @param last: up to which number.
    @param maxMs: the largest timestamp so far.
    @return: C{at}, C{number} and C{maxMs} anew, whether their offsets follow one another, and the record behind which
        it has stopped, because of its timestamp.
    """
    available = len(data)
    isInOrder = True
    found = None
    start = at
    try:
        while number < last:
            start = at
            # Varints of one byte and, where they are usual, of two are read here: a call would take as long as all
            # the rest.  The lowest bit is the sign.
            size = data[at]
            if size & 1:
                break
            if size < 0x80:
                at += 1
                end = at + (size >> 1)
            elif data[at + 1] < 0x80:
                end = at + 2 + ((size & 0x7F | data[at + 1] << 7) >> 1)
                at += 2
            else:
                size, at = readSignedVarint(data, at)
                end = at + size
            if end > available:
                break
            # Behind the attributes.
            value = data[at + 1]
            if value < 0x80:
                timestampMs = baseMs + ((value >> 1) ^ -(value & 1))
                at += 2
            elif data[at + 2] < 0x80:
                value = value & 0x7F | data[at + 2] << 7
                timestampMs = baseMs + ((value >> 1) ^ -(value & 1))
                at += 3
            else:
                value, at = readSignedVarlong(data, at + 1)
                timestampMs = baseMs + value
            delta = data[at]
            if delta < 0x80:
                delta = (delta >> 1) ^ -(delta & 1)
                at += 1
            elif data[at + 1] < 0x80:
                delta = delta & 0x7F | data[at + 1] << 7
                delta = (delta >> 1) ^ -(delta & 1)
                at += 2
            else:
                delta, at = readSignedVarint(data, at)
            # The key.
            size = data[at]
            if size < 0x80:
                at += 1 if size & 1 else 1 + (size >> 1)
            else:
                size, at = readSignedVarint(data, at)
                at += max(size, 0)
            # The value.
            size = data[at]
            if size < 0x80:
                at += 1 if size & 1 else 1 + (size >> 1)
            elif data[at + 1] < 0x80 and not size & 1:
                at += 2 + ((size & 0x7F | data[at + 1] << 7) >> 1)
            else:
                size, at = readSignedVarint(data, at)
                at += max(size, 0)
            headers = data[at]
            at += 1
            if headers:
                if headers & 1 or headers > 2 * _HEADERS_AT_ONCE - 2:
                    break
                at = _skipHeaders(data, at, headers >> 1)
            if at != end:
                break
            if delta != number:
                isInOrder = False
            number += 1
            start = at
            if timestampMs > maxMs:
                maxMs = timestampMs
            if not minMs <= timestampMs < endMs:
                found = FoundRecord(delta, timestampMs)
                break
    except (IndexError, MalformedRequest):
        pass
    return start, number, maxMs, isInOrder, found


def _skipHeaders(data: bytes, at: int, count: int) -> int:
    """
    @raise IndexError: if they are not whole.
    """
    for _ in range(count):
        size = data[at]
        at += 1
        if size > 0x7F:
            size, at = readSignedVarint(data, at - 1)
            size <<= 1
        if size & 1 or size < 0:
            raise IndexError
        at += size >> 1
        size = data[at]
        at += 1
        if size > 0x7F:
            size, at = readSignedVarint(data, at - 1)
            if size > 0:
                at += size
        elif not size & 1:
            at += size >> 1
    return at

"""
Record batches of format 2: the header of a batch, the checks that a batch must
pass, and the records inside, for tests and consumers.

Sizes, offsets of fields and the range of the checksum are those of Kafka's
record format; base offset and leader epoch lie outside the checksum, so a
broker can fill them in.
"""

import struct
from collections.abc import Sequence
from typing import Final

from attrs import define, frozen
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from .primitives import PAST_THE_END, Buffer, MalformedRequest, readSignedVarint, readSignedVarlong, signedVarint

#: The header of a batch, which an empty batch consists of.
HEADER_BYTES: Final = 61

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")

_PRODUCER_ID: Final = struct.Struct(">q")
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q")

_LEADER_EPOCH_AT: Final = 12
_PRODUCER_ID_AT: Final = 43
_MAX_TIMESTAMP_AT: Final = 35
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
# The length field does not count itself, nor what comes before it.
_UNCOUNTED_BYTES: Final = 12
_CHECKED_FROM: Final = 21

_MAGIC: Final = 2
_NO_ATTRIBUTES: Final = b"\x00"
_ATTRIBUTES_BYTES: Final = 1
_NULL: Final = signedVarint(-1)
_COMPRESSION_BITS: Final = 0x07
_LOG_APPEND_TIME_BIT: Final = 0x08
_TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20
_NEWEST_COMPRESSION: Final = 4

_MIN_RECORD_BYTES: Final = 7
"""A record without key, value and headers: seven varints of a byte each."""

_MAX_RECORDS_PER_COMPRESSED_BYTE: Final = 1000
"""
More than any codec gets into a byte: each record has another offset, so no more than some hundred of them look like
those before.
"""


class BatchRefused(Exception):
    """
    A record batch cannot be stored or read.

    @ivar errorCode: the error for the client.
    @ivar reason: an explanation.
    """

    def __init__(self, errorCode: ErrorCode, reason: str) -> None:
        super().__init__(errorCode, reason)
        self.errorCode = errorCode
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.errorCode.name}: {self.reason}"


@define
class RecordBatch:
    """
    The header of a record batch, in the order of the wire.  Do not change it;
    frozen it would cost five times as much to create.

    @ivar baseOffset: the offset of its first record.
    @ivar lengthBytes: as on the wire; see L{sizeBytes} for the whole.
    @ivar leaderEpoch: of the broker that stored it.
    @ivar magic: always 2.
    @ivar crc: CRC-32C of everything from the attributes on.
    @ivar attributes: compression and flags.
    @ivar lastOffsetDelta: the last record's offset, counted from the first.
    @ivar baseTimestampMs: of the first record.
    @ivar maxTimestampMs: the latest of all records.
    @ivar producerId: the producer's id, or -1.
    @ivar producerEpoch: the producer's epoch, or -1.
    @ivar baseSequence: the producer's number for the first record, or -1.
    @ivar count: how many records it has.
    """

    baseOffset: int
    lengthBytes: int
    leaderEpoch: int
    magic: int
    crc: int
    attributes: int
    lastOffsetDelta: int
    baseTimestampMs: int
    maxTimestampMs: int
    producerId: int
    producerEpoch: int
    baseSequence: int
    count: int

    @property
    def sizeBytes(self) -> int:
        """
        The size of the whole batch, header included.
        """
        return self.lengthBytes + _UNCOUNTED_BYTES

    @property
    def compression(self) -> int:
        """
        0 for none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5 to 7 are not assigned.
        """
        return self.attributes & _COMPRESSION_BITS

    @property
    def hasAppendTime(self) -> bool:
        """
        Whether all records have the time at which the broker got them, which is C{maxTimestampMs}.
        """
        return bool(self.attributes & _LOG_APPEND_TIME_BIT)

    @property
    def isTransactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def isControl(self) -> bool:
        """
        Whether the batch is a marker that only brokers may write.
        """
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def lastOffset(self) -> int:
        return self.baseOffset + self.lastOffsetDelta


def producerIdOf(buffer: Buffer) -> int:
    """
    The producer id in an unchecked batch.

    @return: -1 if it has none.
    """
    if len(buffer) < HEADER_BYTES:
        return -1
    producerId: int = _PRODUCER_ID.unpack_from(buffer, _PRODUCER_ID_AT)[0]
    return producerId


def readHeader(view: Buffer) -> RecordBatch:
    """
    Read the header at the beginning of C{view}, which must have
    L{HEADER_BYTES} or more.  Nothing is checked.
    """
    return RecordBatch(*_HEADER.unpack_from(view))


def readBatch(view: Buffer) -> RecordBatch:
    """
    Read and check one batch that fills C{view} exactly.

    The records inside are looked at only through the checksum; see L{admission.kafka.wire.recordwalk} for the rest.

    @raise BatchRefused: C{unsupported_for_message_format} for the message sets
        of before Kafka 0.11, C{invalid_record} for more than one batch or an
        impossible number of records, C{unsupported_compression_type}, or
        C{corrupt_message} for everything else, which clients retry.
    """
    sizeBytes = len(view)
    # Old messages may be shorter than the header of a batch, and have their magic in the same place.
    if sizeBytes > _MAGIC_AT and view[_MAGIC_AT] < _MAGIC:
        raise BatchRefused(
            ErrorCode.unsupported_for_message_format,
            f"the records are a message set of format {view[_MAGIC_AT]}, not a record batch",
        )
    if sizeBytes < HEADER_BYTES:
        raise BatchRefused(
            ErrorCode.corrupt_message,
            f"{sizeBytes} bytes are too few for a record batch, which has {HEADER_BYTES} or more",
        )
    batch = readHeader(view)
    if batch.magic != _MAGIC:
        raise BatchRefused(ErrorCode.corrupt_message, f"format {batch.magic} of record batches does not exist")
    if batch.sizeBytes < HEADER_BYTES or batch.sizeBytes > sizeBytes:
        raise BatchRefused(
            ErrorCode.corrupt_message, f"the batch gives its size as {batch.sizeBytes} bytes and came with {sizeBytes}"
        )
    if batch.sizeBytes < sizeBytes:
        raise BatchRefused(
            ErrorCode.invalid_record,
            f"{sizeBytes - batch.sizeBytes} bytes follow the batch; one request brings a partition one batch",
        )
    # Checked before anything else in the header: a damaged batch is worth a retry, an invalid one is not.
    if crc32c(memoryview(view)[_CHECKED_FROM:]) != batch.crc:
        raise BatchRefused(ErrorCode.corrupt_message, "the checksum does not match the batch")
    if batch.count < 1 or batch.count != batch.lastOffsetDelta + 1:
        raise BatchRefused(
            ErrorCode.invalid_record,
            f"the batch counts {batch.count} records and its last offset is {batch.lastOffsetDelta} past the first",
        )
    payloadBytes = sizeBytes - HEADER_BYTES
    # Or a small batch could use up the offsets of a partition, for records that nobody can read.
    maxCount = (
        payloadBytes * _MAX_RECORDS_PER_COMPRESSED_BYTE if batch.compression else payloadBytes // _MIN_RECORD_BYTES
    )
    if batch.count > maxCount:
        raise BatchRefused(
            ErrorCode.invalid_record,
            f"the batch counts {batch.count} records, and its {payloadBytes} bytes hold {maxCount} at most",
        )
    if batch.compression > _NEWEST_COMPRESSION:
        raise BatchRefused(
            ErrorCode.unsupported_compression_type, f"nothing is known of compression type {batch.compression}"
        )
    return batch


def assignOffset(buffer: bytearray | memoryview, baseOffset: int, leaderEpoch: int) -> None:
    """
    Write the offset and the leader epoch of a batch into it.

    @param buffer: the batch; must be writable.
    @param baseOffset: the offset of its first record.
    @param leaderEpoch: of this broker.
    """
    _BASE_OFFSET.pack_into(buffer, 0, baseOffset)
    _LEADER_EPOCH.pack_into(buffer, _LEADER_EPOCH_AT, leaderEpoch)


def stampBatch(buffer: bytearray | memoryview, timestampMs: int, isAppendTime: bool = True) -> RecordBatch:
    """
    Give all records of a batch the time of their arrival, or the batch the largest of theirs, and a new checksum.

    @param buffer: the batch; must be writable.
    @param timestampMs: in milliseconds since the epoch.
    @param isAppendTime: whether it is the time of their arrival.
    @return: its new header.
    """
    view = memoryview(buffer)
    attributes = _ATTRIBUTES.unpack_from(view, _CHECKED_FROM)[0] & ~_LOG_APPEND_TIME_BIT
    _ATTRIBUTES.pack_into(view, _CHECKED_FROM, attributes | _LOG_APPEND_TIME_BIT if isAppendTime else attributes)
    _MAX_TIMESTAMP.pack_into(view, _MAX_TIMESTAMP_AT, timestampMs)
    _CRC.pack_into(view, _CRC_AT, crc32c(view[_CHECKED_FROM:]))
    return readHeader(view)


@frozen
class Record:
    """
    One record.

    @ivar key: its key, if any.
    @ivar value: its value; L{None} deletes the key from a compacted topic.
    @ivar timestampMs: in milliseconds since the epoch.
    @ivar headers: names and values, in order; a name may occur twice.
    @ivar offset: its offset in the log; has no meaning before it is stored.
    """

    key: bytes | None = None
    value: bytes | None = None
    timestampMs: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = 0


def encodeBatch(
    records: Sequence[Record],
    *,
    baseOffset: int = 0,
    leaderEpoch: int = -1,
    attributes: int = 0,
    producerId: int = -1,
    producerEpoch: int = -1,
    baseSequence: int = -1,
) -> bytes:
    """
    Make an uncompressed batch; the records' C{offset}s are ignored.

    @param records: one or more.
    @raise ValueError: if there are no records.
    """
    if not records:
        raise ValueError("a batch has one record or more")
    baseTimestampMs = records[0].timestampMs
    encoded = [_encodeRecord(record, delta, baseTimestampMs) for delta, record in enumerate(records)]
    batch = bytearray(HEADER_BYTES) + b"".join(encoded)
    _HEADER.pack_into(
        batch,
        0,
        baseOffset,
        len(batch) - _UNCOUNTED_BYTES,
        leaderEpoch,
        _MAGIC,
        0,
        attributes,
        len(records) - 1,
        baseTimestampMs,
        max(record.timestampMs for record in records),
        producerId,
        producerEpoch,
        baseSequence,
        len(records),
    )
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_CHECKED_FROM:]))
    return bytes(batch)


def _encodeRecord(record: Record, offsetDelta: int, baseTimestampMs: int) -> bytes:
    parts = [
        _NO_ATTRIBUTES,
        signedVarint(record.timestampMs - baseTimestampMs),
        signedVarint(offsetDelta),
        _encodeBytes(record.key),
        _encodeBytes(record.value),
        signedVarint(len(record.headers)),
    ]
    for name, value in record.headers:
        parts += _encodeBytes(name.encode()), _encodeBytes(value)
    body = b"".join(parts)
    return signedVarint(len(body)) + body


def _encodeBytes(value: bytes | None) -> bytes:
    return _NULL if value is None else signedVarint(len(value)) + value


def decodeRecords(view: Buffer) -> list[Record]:
    """
    The records of one uncompressed batch that fills C{view} exactly, copied
    out of it.

    @raise BatchRefused: like L{readBatch};
        C{unsupported_compression_type} if the batch is compressed, or
        C{corrupt_message} if the records contradict the header.
    """
    batch = readBatch(view)
    if batch.compression:
        raise BatchRefused(ErrorCode.unsupported_compression_type, "the records of this batch are compressed")
    return recordsOf(batch, memoryview(view)[HEADER_BYTES:])


def recordsOf(batch: RecordBatch, payload: Buffer) -> list[Record]:
    """
    The records of a batch, copied out of the bytes that follow its header.

    @param payload: uncompressed.
    @raise BatchRefused: C{corrupt_message} if the records contradict the
        header.
    """
    try:
        offset = 0
        records = []
        for _ in range(batch.count):
            record, offset = _decodeRecord(payload, offset, batch)
            records.append(record)
    except PAST_THE_END:
        raise BatchRefused(ErrorCode.corrupt_message, "the batch ends before its records do") from None
    except MalformedRequest as malformed:
        raise BatchRefused(ErrorCode.corrupt_message, str(malformed)) from None
    except UnicodeDecodeError:
        raise BatchRefused(ErrorCode.corrupt_message, "the name of a record's header is not UTF-8") from None
    if offset != len(payload):
        raise BatchRefused(ErrorCode.corrupt_message, "the batch does not end where its records do")
    return records


def _decodeRecord(view: Buffer, offset: int, batch: RecordBatch) -> tuple[Record, int]:
    sizeBytes, offset = readSignedVarint(view, offset)
    end = offset + sizeBytes
    timestampDeltaMs, offset = readSignedVarlong(view, offset + _ATTRIBUTES_BYTES)
    offsetDelta, offset = readSignedVarint(view, offset)
    key, offset = _decodeBytes(view, offset)
    value, offset = _decodeBytes(view, offset)
    headerCount, offset = readSignedVarint(view, offset)
    if headerCount < 0:
        raise MalformedRequest(f"a record has {headerCount} headers")
    headers = []
    for _ in range(headerCount):
        name, offset = _decodeBytes(view, offset)
        headerValue, offset = _decodeBytes(view, offset)
        if name is None:
            raise MalformedRequest("a record's header has no name")
        headers.append((name.decode(), headerValue))
    if offset != end:
        raise MalformedRequest("a record does not end where it says")
    timestampMs = batch.maxTimestampMs if batch.hasAppendTime else batch.baseTimestampMs + timestampDeltaMs
    return Record(key, value, timestampMs, tuple(headers), batch.baseOffset + offsetDelta), offset


def _decodeBytes(view: Buffer, offset: int) -> tuple[bytes | None, int]:
    sizeBytes, offset = readSignedVarint(view, offset)
    if sizeBytes < 0:
        return None, offset
    return bytes(view[offset : offset + sizeBytes]), offset + sizeBytes

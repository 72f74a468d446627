"""
Record batches as brokers store and return them: several in a row, the last
perhaps cut off, some with fewer records than they once had.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from .batches import HEADER_BYTES, BatchRefused, RecordBatch, readHeader
from .primitives import Buffer

_CHECKED_FROM: Final = 21
_MAGIC_AT: Final = 16
_MAGIC: Final = 2


def batchesIn(records: Buffer) -> Iterator[tuple[RecordBatch, memoryview]]:
    """
    The whole batches of one partition in a Fetch response.

    Unlike a producer's, a stored batch may have lost some or all of its records
    to compaction, and may be a transaction marker.

    @return: header and payload of each; the payload, still compressed, is a
        view of C{records}.  A batch that is cut off at the end is skipped.
    @raise BatchRefused: C{unsupported_for_message_format} for the message sets
        of before Kafka 0.11, or C{corrupt_message}; after the batches before it.
    """
    view = memoryview(records)
    while len(view) > _MAGIC_AT:
        if view[_MAGIC_AT] != _MAGIC:
            raise BatchRefused(
                ErrorCode.unsupported_for_message_format,
                f"the records are of format {view[_MAGIC_AT]}, not record batches",
            )
        if len(view) < HEADER_BYTES:
            return
        batch = readHeader(view)
        if batch.sizeBytes < HEADER_BYTES or batch.count < 0 or batch.lastOffsetDelta < 0:
            raise BatchRefused(
                ErrorCode.corrupt_message,
                f"a batch gives its size as {batch.sizeBytes} bytes, with {batch.count} records"
                f" and the last of them {batch.lastOffsetDelta} past the first",
            )
        if batch.sizeBytes > len(view):
            return
        if crc32c(view[_CHECKED_FROM : batch.sizeBytes]) != batch.crc:
            raise BatchRefused(
                ErrorCode.corrupt_message, f"the checksum does not match the batch at offset {batch.baseOffset}"
            )
        yield batch, view[HEADER_BYTES : batch.sizeBytes]
        view = view[batch.sizeBytes :]

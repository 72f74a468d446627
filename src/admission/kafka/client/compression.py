# -*- test-case-name: tests.unit.kafka.client.test_recordsets -*-
"""
What producers have compressed.

gzip needs nothing; snappy, lz4 and zstd need cramjam, which the extra
C{consumer} brings.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from ..wire.batches import BatchRefused
from ..wire.primitives import Buffer

GZIP = 1
SNAPPY = 2
LZ4 = 3
ZSTD = 4

_ANY_GZIP_HEADER = 16 + zlib.MAX_WBITS
# snappy-java's own framing: magic, two version numbers, and then blocks behind their lengths.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_BLOCK_LENGTH = struct.Struct(">i")


def decompress(compression: int, payload: Buffer, maxBytes: int) -> Buffer:
    """
    Decompress the payload of a batch.

    @param compression: 0 to 4, as L{admission.kafka.wire.batches.RecordBatch} has it.
    @param maxBytes: the largest result; memory for more is never taken.
    @raise BatchRefused: if the payload is damaged or the result too large, or
        C{unsupported_compression_type} without a library for it.
    """
    if not compression:
        return payload
    try:
        if compression == GZIP:
            return _gunzip(payload, maxBytes)
        return _withCramjam(compression, payload, maxBytes)
    except BatchRefused:
        raise
    except Exception as error:
        # cramjam raises what its Rust libraries make up.
        raise BatchRefused(ErrorCode.corrupt_message, f"the batch cannot be decompressed: {error}") from error


def _gunzip(payload: Buffer, maxBytes: int) -> Buffer:
    decompressor = zlib.decompressobj(_ANY_GZIP_HEADER)
    result = decompressor.decompress(payload, maxBytes)
    if not decompressor.eof:
        # Either more is to come than is allowed, or nothing where something should.
        raise (
            _tooLarge(maxBytes)
            if len(result) >= maxBytes
            else BatchRefused(ErrorCode.corrupt_message, "the compressed records are cut off")
        )
    return result


def _withCramjam(compression: int, payload: Buffer, maxBytes: int) -> Buffer:
    try:
        import cramjam
    except ImportError:
        raise BatchRefused(
            ErrorCode.unsupported_compression_type,
            "the records are compressed in a way that needs cramjam: pip install admission[consumer]",
        ) from None
    if compression == SNAPPY:
        return _snappy(cramjam, payload, maxBytes)
    if compression == LZ4:
        return _into(cramjam.lz4.decompress_into, payload, maxBytes)
    if compression == ZSTD:
        return _into(cramjam.zstd.decompress_into, payload, maxBytes)
    raise BatchRefused(ErrorCode.unsupported_compression_type, f"nothing is known of compression type {compression}")


def _into(decompressInto: Callable[[Any, Any], int], payload: Buffer, maxBytes: int) -> Buffer:
    """
    Decompress into memory that is mapped but not taken before it is written
    to, because only the end tells how much there is.
    """
    with mmap.mmap(-1, maxBytes) as room:
        try:
            sizeBytes = decompressInto(bytes(payload), room)
        except Exception as error:
            if "whole buffer" in str(error):
                raise _tooLarge(maxBytes) from None
            raise
        return room[:sizeBytes]


def _snappy(cramjam: Any, payload: Buffer, maxBytes: int) -> Buffer:
    result = bytearray()
    for block in _snappyBlocks(bytes(payload)):
        # Here the beginning tells how much there is, and the library takes memory for what it says.
        if len(result) + cramjam.snappy.decompress_raw_len(block) > maxBytes:
            raise _tooLarge(maxBytes)
        result += bytes(cramjam.snappy.decompress_raw(block))
    return bytes(result)


def _snappyBlocks(data: bytes) -> Iterator[bytes]:
    if not data.startswith(_XERIAL_MAGIC):
        yield data
        return
    offset = _XERIAL_HEADER_BYTES
    while offset < len(data):
        (sizeBytes,) = _BLOCK_LENGTH.unpack_from(data, offset)
        offset += _BLOCK_LENGTH.size
        if not 0 <= sizeBytes <= len(data) - offset:
            raise BatchRefused(ErrorCode.corrupt_message, "a block of snappy-compressed records is cut off")
        yield data[offset : offset + sizeBytes]
        offset += sizeBytes


def _tooLarge(maxBytes: int) -> BatchRefused:
    return BatchRefused(ErrorCode.corrupt_message, f"the batch would decompress to more than {maxBytes} bytes")

# -*- test-case-name: tests.unit.kafka.wire.test_compression -*-
"""
Compressed records, decompressed a chunk at a time: what a few bytes become may be a thousand times as much.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

import cramjam
import zstandard
from kio.schema.errors import ErrorCode
from lz4.frame import LZ4FrameDecompressor  # type: ignore[import-untyped]

from .batches import BatchRefused
from .primitives import Buffer

GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CHUNK_BYTES: Final = 64 << 10
"""How much is decompressed at once: about half a millisecond of gzip."""

MAX_BLOCK_BYTES: Final = 8 << 20
"""
How much may be in memory at once: of snappy a block, which is decompressed in one piece, in about five milliseconds;
of zstd what it may refer back to.

librdkafka makes one block of a whole batch, a megabyte unless it is told otherwise.  8 MiB is what RFC 8878 wants
decoders of zstd to have; levels up to 19 need no more.
"""

MAX_XERIAL_BLOCK_BYTES: Final = 1 << 20
"""The same for the blocks of snappy-java, which has 32 KiB in each."""

_ANY_GZIP_HEADER: Final = 16 + zlib.MAX_WBITS
_FIXED_BYTES: Final = 128 << 10
"""About what a decompressor takes besides: its window and its tables, a chunk that goes in and one that comes out."""

# snappy-java's own framing: magic, two version numbers, and then blocks behind their lengths.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_LENGTH_BYTES: Final = 4

_ZSTD_HEADER_BYTES: Final = 3
_ZSTD_REPEATED: Final = 1
_ZSTD_BLOCKS_AT_ONCE: Final = 1000

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_FLAGS_AT: Final = 4
_LZ4_BLOCK_SIZE_AT: Final = 5
_LZ4_INDEPENDENT_BIT: Final = 0x20


def decompressed(
    compression: int, payload: Buffer, maxBlockBytes: int = MAX_BLOCK_BYTES, maxWindowBytes: int = MAX_BLOCK_BYTES
) -> Iterator[bytes]:
    """
    The payload of a batch, in chunks of L{CHUNK_BYTES} at most.  Some may be empty; each takes a millisecond at most,
    but for the first of a block of snappy.

    @param compression: 0 to 4, as in L{admission.kafka.wire.batches.RecordBatch}.
    @param maxBlockBytes: the largest block of snappy after decompression.
    @param maxWindowBytes: how far back zstd may refer.
    @raise BatchRefused: C{corrupt_message} if the payload is damaged or would refer back too far, C{message_too_large}
        for a block that is too large, and C{unsupported_compression_type}.
    """
    try:
        if not compression:
            yield from map(bytes, _pieces(payload))
        elif compression == GZIP:
            yield from _gunzip(payload)
        elif compression == SNAPPY:
            for block in _snappyBlocks(payload, maxBlockBytes):
                yield from map(bytes, _pieces(memoryview(cramjam.snappy.decompress_raw(block))))
        elif compression == LZ4:
            yield from _unlz4(payload)
        elif compression == ZSTD:
            yield from _checkZstdEnd(payload)
            with zstandard.ZstdDecompressor(max_window_size=maxWindowBytes).stream_reader(payload) as reader:
                while chunk := reader.read(CHUNK_BYTES):
                    yield chunk
        else:
            raise BatchRefused(
                ErrorCode.unsupported_compression_type, f"nothing is known of compression type {compression}"
            )
    except (zlib.error, zstandard.ZstdError, cramjam.DecompressionError, RuntimeError, ValueError) as error:
        raise _damaged(str(error)) from None


def decompressionBytes(compression: int, payload: Buffer) -> int:
    """
    How much memory L{decompressed} takes at most, about, as the payload announces it.

    @raise BatchRefused: as L{decompressed} does.
    """
    if compression == SNAPPY:
        return _FIXED_BYTES + (MAX_XERIAL_BLOCK_BYTES if _isXerial(payload) else _snappyBytes(payload, MAX_BLOCK_BYTES))
    if compression == LZ4 and len(payload) > _LZ4_BLOCK_SIZE_AT:
        # 64 KiB, 256 KiB, 1 MiB or 4 MiB.
        return _FIXED_BYTES + (1 << 8 + 2 * (payload[_LZ4_BLOCK_SIZE_AT] >> 4 & 7))
    if compression == ZSTD:
        try:
            return _FIXED_BYTES + min(zstandard.get_frame_parameters(payload).window_size, MAX_BLOCK_BYTES)
        except zstandard.ZstdError as error:
            raise _damaged(str(error)) from None
    return _FIXED_BYTES


def hasLinkedBlocks(payload: Buffer) -> bool:
    """
    Whether blocks of lz4 refer to those before them, which Java's clients cannot read.
    """
    isLZ4 = payload[:_LZ4_FLAGS_AT] == _LZ4_MAGIC and len(payload) > _LZ4_FLAGS_AT
    return isLZ4 and not payload[_LZ4_FLAGS_AT] & _LZ4_INDEPENDENT_BIT


def _pieces(payload: Buffer) -> Iterator[memoryview]:
    view = memoryview(payload)
    for at in range(0, len(view), CHUNK_BYTES):
        yield view[at : at + CHUNK_BYTES]


def _gunzip(payload: Buffer) -> Iterator[bytes]:
    decompressor = zlib.decompressobj(_ANY_GZIP_HEADER)
    pieces = _pieces(payload)
    while not decompressor.eof:
        compressed: Buffer = decompressor.unconsumed_tail or next(pieces, b"")
        chunk = decompressor.decompress(compressed, CHUNK_BYTES)
        if not chunk and not compressed and not decompressor.eof:
            raise _damaged("they are cut off")
        yield chunk


def _unlz4(payload: Buffer) -> Iterator[bytes]:
    decompressor = LZ4FrameDecompressor()
    pieces = _pieces(payload)
    while not decompressor.eof:
        compressed: Buffer = next(pieces, b"") if decompressor.needs_input else b""
        if decompressor.needs_input and not compressed:
            raise _damaged("they are cut off")
        yield decompressor.decompress(compressed, CHUNK_BYTES)


def _checkZstdEnd(payload: Buffer) -> Iterator[bytes]:
    """
    Refuse a frame that is cut off, which the library takes for its end.
    """
    at = zstandard.frame_header_size(payload)
    blocks = isLast = 0
    while not isLast:
        header = int.from_bytes(payload[at : at + _ZSTD_HEADER_BYTES], "little")
        isLast = header & 1
        # Of one byte that is repeated there is but one.
        at += _ZSTD_HEADER_BYTES + (1 if header >> 1 & 3 == _ZSTD_REPEATED else header >> 3)
        if at > len(payload):
            raise _damaged("they are cut off")
        blocks += 1
        if blocks % _ZSTD_BLOCKS_AT_ONCE == 0:
            yield b""


def _isXerial(payload: Buffer) -> bool:
    return payload[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC


def _snappyBlocks(payload: Buffer, maxBytes: int) -> Iterator[memoryview]:
    """
    The blocks, which are not too large after decompression.
    """
    view = memoryview(payload)
    if not _isXerial(payload):
        _snappyBytes(view, maxBytes)
        yield view
        return
    offset = _XERIAL_HEADER_BYTES
    while offset < len(view):
        sizeBytes = int.from_bytes(view[offset : offset + _LENGTH_BYTES], "big")
        offset += _LENGTH_BYTES
        if sizeBytes > len(view) - offset:
            raise _damaged("a block is cut off")
        block = view[offset : offset + sizeBytes]
        _snappyBytes(block, min(maxBytes, MAX_XERIAL_BLOCK_BYTES))
        yield block
        offset += sizeBytes


def _snappyBytes(block: Buffer, maxBytes: int) -> int:
    """
    What a block says it has after decompression, which the library allocates.
    """
    try:
        sizeBytes: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise _damaged(str(error)) from None
    if sizeBytes > maxBytes:
        raise BatchRefused(
            ErrorCode.message_too_large, f"a block of snappy would decompress to more than {maxBytes} bytes"
        )
    return sizeBytes


def _damaged(why: str) -> BatchRefused:
    return BatchRefused(ErrorCode.corrupt_message, f"the records cannot be decompressed: {why}")

"""Tests for L{admission.kafka.wire.compression}."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from typing import Any

import cramjam
import lz4.frame
import zstandard
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.batches import BatchRefused
from admission.kafka.wire.compression import (
    CHUNK_BYTES,
    GZIP,
    LZ4,
    MAX_BLOCK_BYTES,
    MAX_XERIAL_BLOCK_BYTES,
    SNAPPY,
    ZSTD,
    decompressed,
    decompressionBytes,
    hasLinkedBlocks,
)

COMPRESSORS: list[tuple[int, Callable[[bytes], Any]]] = [
    (0, bytes),
    (GZIP, gzip.compress),
    (LZ4, lz4.frame.compress),
    (LZ4, lambda data: lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False)),
    (ZSTD, zstandard.compress),
]


def framed(*blocks: bytes) -> bytes:
    """Blocks of snappy as Java's client frames them."""
    return b"\x82SNAPPY\0" + bytes(8) + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


class DecompressedTests(SynchronousTestCase):
    """L{decompressed} goes on by chunks."""

    def test_chunks(self) -> None:
        """Whatever it is, no chunk is larger than another, however far a few bytes go."""
        for data in (b"", b"short", os.urandom(3 * CHUNK_BYTES), bytes(5_000_000), os.urandom(1000) * 1000):
            for compression, compress in COMPRESSORS:
                chunks = list(decompressed(compression, memoryview(bytearray(compress(data)))))
                self.assertEqual(b"".join(chunks), data)
                self.assertLessEqual(max(map(len, chunks), default=0), CHUNK_BYTES)

    def test_snappy(self) -> None:
        """snappy is decompressed a block at a time: all of it, or what Java's client has put into one."""
        data = os.urandom(1000) * 100
        one = bytes(cramjam.snappy.compress_raw(data))
        for payload, expected in ((one, data), (framed(one, one), data * 2)):
            chunks = list(decompressed(SNAPPY, memoryview(payload)))
            self.assertEqual(b"".join(chunks), expected)
            self.assertEqual(max(map(len, chunks)), CHUNK_BYTES)

    def test_nothingComes(self) -> None:
        """Much that brings nothing is gone over in steps."""
        empty = b"\0\0\xff\xff"
        payloads = {GZIP: gzip.compress(b"")[:10] + b"\0" + empty + (b"\0" + empty) * 50_000}
        payloads[ZSTD] = zstandard.compress(b"")[:5] + bytes(3) * 50_000 + b"\1\0\0"
        for compression, payload in payloads.items():
            chunks = decompressed(compression, payload)
            self.assertEqual([next(chunks), next(chunks)], [b"", b""])

    def test_refused(self) -> None:
        """What is no such thing, what is cut off, and what would take too much memory is refused in words."""
        for compression, compress in [*COMPRESSORS[1:], (SNAPPY, cramjam.snappy.compress_raw), (SNAPPY, framed)]:
            for data in (b"\xff" * 40, bytes(range(200)), bytes(compress(os.urandom(100_000)))[:-1], b""):
                if compress is framed and not data:
                    continue
                damaged = framed(data) if compress is framed else data
                self.assertIn(
                    "decompressed", str(self.assertRaises(BatchRefused, list, decompressed(compression, damaged)))
                )
        large = bytes(cramjam.snappy.compress_raw(bytes(MAX_BLOCK_BYTES + 1)))
        framedLarge = framed(bytes(cramjam.snappy.compress_raw(bytes(MAX_XERIAL_BLOCK_BYTES + 1))))
        ultra = zstandard.ZstdCompressor(22).compressobj()
        for compression, payload, words in [
            (SNAPPY, large, "more than 8388608 bytes"),
            (SNAPPY, framedLarge, "more than 1048576 bytes"),
            (ZSTD, ultra.compress(b"x") + ultra.flush(), "too much memory"),
        ]:
            self.assertIn(words, str(self.assertRaises(BatchRefused, list, decompressed(compression, payload))))
        self.assertRaises(BatchRefused, list, decompressed(5, b""))


class MemoryTests(SynchronousTestCase):
    """L{decompressionBytes} is what the payload announces, and no more than is ever taken."""

    def test_announced(self) -> None:
        streamed = zstandard.ZstdCompressor(3).compressobj()
        self.assertLess(decompressionBytes(GZIP, gzip.compress(bytes(1 << 20))), 1 << 18)
        for compression, payload, sizeBytes in [
            (LZ4, lz4.frame.compress(bytes(5 << 20), block_size=lz4.frame.BLOCKSIZE_MAX4MB), 4 << 20),
            (LZ4, lz4.frame.compress(b"", block_size=lz4.frame.BLOCKSIZE_MAX64KB), 64 << 10),
            (ZSTD, streamed.compress(b"x") + streamed.flush(), 2 << 20),
            (SNAPPY, bytes(cramjam.snappy.compress_raw(bytes(3 << 20))), 3 << 20),
            (SNAPPY, framed(), MAX_XERIAL_BLOCK_BYTES),
        ]:
            self.assertIn(decompressionBytes(compression, payload) - sizeBytes, range(1 << 18))
        for compression in (SNAPPY, ZSTD):
            self.assertRaises(BatchRefused, decompressionBytes, compression, b"\xff" * 9)

    def test_linked(self) -> None:
        """Blocks of lz4 that refer to others are told from those that do not."""
        linked = [hasLinkedBlocks(lz4.frame.compress(bytes(1 << 20), block_linked=each)) for each in (True, False)]
        self.assertEqual(linked, [True, False])
        self.assertFalse(hasLinkedBlocks(b""))

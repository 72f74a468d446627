"""Batches whose checksums are right and whose contents are not, and what Apache Kafka 4.1 answers to each."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from functools import cache

from attrs import frozen
from crc32c import crc32c

from admission.kafka.wire.primitives import signedVarint

BOMB_BYTES = 200 << 20
"""The size of the gzip bomb after decompression."""

HOUR_MS = 3_600_000
_HEADER = struct.Struct(">qiibIhiqqqhii")
_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1


@frozen
class Answered:
    """
    @ivar batch: the batch.
    @ivar kafka: the error code of Apache Kafka 4.1; 0 if it stores the batch.
    @ivar ours: ours, if that is another one on purpose.
    """

    batch: bytes
    kafka: int
    ours: int | None = None


def gzipped(payload: bytes) -> bytes:
    """C{payload} as clients compress it."""
    packing = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packing.compress(payload) + packing.flush()


@cache
def _bomb() -> bytes:
    # A record of zeros, but for what is before and behind its value.
    value = bytes(1 << 20)
    around = record(value=b"", valueLength=BOMB_BYTES)
    before = around[around.index(0) :][:-1]
    packing = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    parts = [packing.compress(signedVarint(len(before) + BOMB_BYTES + 1) + before)]
    parts += [packing.compress(value) for _ in range(BOMB_BYTES >> 20)]
    return b"".join([*parts, packing.compress(b"\0"), packing.flush()])


def record(
    delta: int = 0,
    timeDeltaMs: int = 0,
    value: bytes = b"value",
    *,
    length: int | None = None,
    valueLength: int | None = None,
    headerCount: int = 0,
    tail: bytes = b"",
) -> bytes:
    """
    One record with no key.

    @param length: what it says its length is.
    @param valueLength: the same of its value.
    @param headerCount: how many headers it says it has.
    @param tail: what stands in their place.
    """
    body = b"\0" + signedVarint(timeDeltaMs) + signedVarint(delta) + signedVarint(-1)
    body += signedVarint(len(value) if valueLength is None else valueLength) + value + signedVarint(headerCount) + tail
    return signedVarint(len(body) if length is None else length) + body


def batch(
    payload: bytes,
    nowMs: int,
    *,
    count: int = 1,
    attributes: int = 0,
    baseMs: int | None = None,
    maxMs: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    baseOffset: int = 0,
    leaderEpoch: int = -1,
) -> bytes:
    """A batch of any payload with a right checksum."""
    baseMs = nowMs if baseMs is None else baseMs
    maxMs = baseMs if maxMs is None else maxMs
    lengthBytes = _HEADER.size - 12 + len(payload)

    def headed(crc: int) -> bytes:
        fields = (baseOffset, lengthBytes, leaderEpoch, 2, crc, attributes, count - 1, baseMs, maxMs, *producer, count)
        return _HEADER.pack(*fields) + payload

    return headed(crc32c(headed(0)[21:]))


def hostileBatches(nowMs: int) -> Mapping[str, Answered]:
    """
    All of them, by what is wrong.

    @param nowMs: the time of their records.
    """

    def of(payload: bytes, **others: object) -> bytes:
        return batch(payload, nowMs, **others)  # type: ignore[arg-type]

    one = record()
    garbage = bytes(range(200))
    table: dict[str, tuple[bytes, int] | tuple[bytes, int, int]] = {
        "garbage": (of(garbage), 87),
        "a record length of 2^30": (of(record(length=2**30)), 87),
        "a record length of -5": (of(record(length=-5)), 87),
        "bytes behind the last record": (of(one + b"behind"), 87),
        "a value length of 2^31 - 1": (of(record(valueLength=_INT32_MAX)), 87),
        "2^31 - 1 headers": (of(record(headerCount=_INT32_MAX)), 87),
        "an offset delta of 1000": (of(record(1000)), 0),
        "three offset deltas of 0": (of(one * 3, count=3), 0),
        "offset deltas backwards": (of(record(2) + record(1) + one, count=3), 0),
        "an offset delta of -1": (of(record(-1)), 0),
        "gzip garbage": (of(garbage, attributes=1), -1, 87),
        "lz4 garbage": (of(garbage, attributes=3), -1, 87),
        "zstd garbage": (of(garbage, attributes=4), -1, 87),
        "snappy that announces 4 GiB": (of(b"\xff\xff\xff\xff\x0f" + garbage, attributes=2), -1, 10),
        "a gzip bomb": (of(_bomb(), attributes=1), 0, 10),
        "a count of 50,000 in 60 bytes": (of(gzipped(one * 3), attributes=1, count=50_000), 87),
        "codec 5": (of(one, attributes=5), -1, 76),
        "codec 6": (of(one, attributes=6), -1, 76),
        "codec 7": (of(one, attributes=7), -1, 76),
        "attributes 0x7F00": (of(one, attributes=0x7F00), 0),
        "a control batch": (of(one, attributes=0x20), 87),
        "a transactional batch": (of(one, attributes=0x10), 53, 87),
        "a delete horizon": (of(one, attributes=0x40), 0),
        "an append time": (of(one, attributes=8), 0),
        "a time of -1": (of(one, baseMs=-1), 0),
        "a time of -2^63": (of(one, baseMs=-(2**63)), 32),
        "a time of 2^63 - 1 and a largest of now": (of(one, baseMs=_INT64_MAX, maxMs=nowMs), 32),
        "a record 2^62 ahead": (of(record(0, 2**62), maxMs=nowMs), 32),
        "half an hour ahead": (of(one, baseMs=nowMs + HOUR_MS // 2), 0),
        "a year ahead": (of(one, baseMs=nowMs + 365 * 24 * HOUR_MS), 32),
        "a largest time below its records'": (of(record(0, 1000), maxMs=nowMs - 1000), 0),
        "a producer without sequence": (of(one, producer=(7, 0, -1)), 87),
        "producer 2^63 - 1": (of(one, producer=(_INT64_MAX, 0, 0)), 0),
        "producer -2": (of(one, producer=(-2, 0, 0)), 0),
        "a base offset of 2^63 - 1": (of(one, baseOffset=_INT64_MAX), 87),
        "a leader epoch of 2^31 - 1": (of(one, leaderEpoch=_INT32_MAX), 0),
    }
    return {name: Answered(*answers) for name, answers in table.items()}

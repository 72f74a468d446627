"""
A stream is cut into the same frames however it is chunked, memory is asked for once for each frame and for nothing
else, and all of it is given back.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Final

from zope.interface import implementer

from admission.connection.framing import Framer, FrameRefused
from admission.interfaces import FRAMES, ILease

MAX_BYTES = 2048

_LIMIT_BYTES: Final = 512
_REFUSED_HEAD: Final = 0xEE


@implementer(ILease)
class _Lease:
    purpose = FRAMES

    def __init__(self, sizeBytes: int) -> None:
        self.sizeBytes = sizeBytes
        self.buffer: memoryview | None = memoryview(bytearray(sizeBytes))

    def release(self) -> None:
        assert self.buffer is not None, "a lease was released twice"
        self.buffer = None


def seeds() -> Sequence[bytes]:
    bodies = (b"", b"a", b"\x00\x12\x00\x00", bytes(100), bytes(_LIMIT_BYTES))
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    ends = (b"", b"\xff\xff\xff\xff", struct.pack(">i", _LIMIT_BYTES + 1), b"\x00\x00\x00\x02\xee\xee", b"\x00\x00")
    return [bytes((headBytes, 1)) + stream + end for headBytes in range(3) for end in ends]


def _refuse(sizeBytes: int, head: bytes) -> str | None:
    if sizeBytes > _LIMIT_BYTES:
        return "too large"
    return "refused by its head" if head and head[0] == _REFUSED_HEAD else None


def _expected(stream: bytes, headBytes: int) -> tuple[list[bytes], bool]:
    """The whole frames of a stream, and whether what follows them is refused."""
    frames: list[bytes] = []
    at = 0
    while at + 4 <= len(stream):
        (sizeBytes,) = struct.unpack_from(">i", stream, at)
        body = stream[at + 4 : at + 4 + max(sizeBytes, 0)]
        head = body[: min(headBytes, max(sizeBytes, 0))]
        isHeadThere = len(head) == min(headBytes, max(sizeBytes, 0))
        if sizeBytes < 0 or _refuse(sizeBytes, head if isHeadThere else b""):
            return frames, True
        if len(body) < sizeBytes:
            break
        frames.append(body)
        at += 4 + sizeBytes
    return frames, False


def check(data: bytes) -> None:
    if len(data) < 2:
        return
    headBytes, seed, stream = data[0] % 3, data[1], data[2:]
    random = Random(seed)
    leases: list[_Lease] = []

    def allocate(sizeBytes: int) -> ILease | None:
        assert 0 < sizeBytes <= _LIMIT_BYTES
        if random.random() < 0.3:
            return None
        leases.append(_Lease(sizeBytes))
        return leases[-1]

    framer = Framer(allocate, _refuse, headBytes)
    found: list[bytes] = []
    fedBytes = consumedBytes = at = 0
    isRefused = False
    while not isRefused:
        try:
            lease = framer.advance()
        except FrameRefused:
            isRefused = True
            break
        if lease is not None:
            assert lease.buffer is not None
            found.append(bytes(lease.buffer))
            consumedBytes += 4 + lease.sizeBytes
            lease.release()
        elif framer.wantedBytes is not None and (random.random() < 0.5 or at == len(stream)):
            leases.append(_Lease(framer.wantedBytes))
            framer.grant(leases[-1])
        elif at < len(stream):
            chunk = stream[at : at + random.choice((1, 2, 3, 5, 64, 2048))]
            framer.feed(chunk)
            at += len(chunk)
            fedBytes += len(chunk)
        else:
            break
        beginBytes = 0 if framer.lease is None and framer.wantedBytes is None else 4 + framer.filledBytes
        assert framer.bufferedBytes == fedBytes - consumedBytes - beginBytes
    frames, isRefusedAtEnd = _expected(stream, headBytes)
    assert found == frames
    assert isRefused == isRefusedAtEnd
    framer.discard()
    assert framer.bufferedBytes == framer.filledBytes == 0
    assert all(lease.buffer is None for lease in leases)

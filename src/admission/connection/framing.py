# -*- test-case-name: tests.unit.connection.test_framing -*-
"""
Length-prefixed framing, straight into memory that was asked for first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Protocol

from zope.interface import classImplements

from ..interfaces import FRAMES, ILease

_LENGTH = Struct(">i")


class FrameRefused(Exception):
    """
    The peer announced a frame that will not be read; the connection is of no
    use any more.
    """


class Framing(Protocol):
    """
    How the frames of a protocol begin and end, where that is not Kafka's way; see L{admission.connection.framings}.
    """

    @property
    def longestPrefixBytes(self) -> int:
        """
        The longest prefix of a frame.
        """

    @property
    def suffix(self) -> bytes:
        """
        What follows each body; often nothing.
        """

    def parse(self, data: bytes) -> tuple[int, int] | None:
        """
        Read the prefix of a frame.

        @param data: the beginning of the frame, as much of it as has come and may be its prefix.
        @return: how many bytes the prefix has, and how many the body; L{None} if not all of the prefix has come.
        @raise FrameRefused: if it is no prefix.
        """

    def prefix(self, sizeBytes: int) -> bytes:
        """
        The prefix of a frame whose body has C{sizeBytes} bytes.

        @raise ValueError: if that is too large.
        """


class EmptyLease:
    """
    The lease of a frame without a body, which takes nothing from the pool.
    """

    __slots__ = ("buffer", "purpose", "sizeBytes")

    def __init__(self) -> None:
        self.sizeBytes = 0
        self.purpose = FRAMES
        self.buffer: memoryview | None = memoryview(bytearray())

    def release(self) -> None:
        """
        @raise RuntimeError: if the lease has been released before.
        """
        if self.buffer is None:
            raise RuntimeError("the lease of an empty frame was released twice")
        self.buffer = None


classImplements(EmptyLease, ILease)


class Framer:
    """
    Cuts a stream into frames, each a big-endian 32-bit length and a body, unless a L{Framing} says otherwise.

    The framer knows no transport and calls nobody but C{allocate}: bytes go in through L{feed}, whole frames come out
    of L{advance}, and the caller of L{advance} decides when.  Each byte is copied once, whatever the chunking
    (L{twisted.protocols.basic.IntNStringReceiver} is quadratic, and delivers messages twice when it is paused and
    resumed from within).

    @ivar wantedBytes: the size of the frame that waits for memory, or L{None}.
    @ivar bufferedBytes: bytes fed and not yet copied into a lease.
    @ivar lease: the lease that is being filled, or L{None}.
    @ivar filledBytes: how much of it is there.
    """

    __slots__ = (
        "_allocate",
        "_chunk",
        "_framing",
        "_headBytes",
        "_more",
        "_offset",
        "_refuse",
        "bufferedBytes",
        "filledBytes",
        "lease",
        "wantedBytes",
    )

    def __init__(
        self,
        allocate: Callable[[int], ILease | None],
        refuse: Callable[[int, bytes], str | None],
        headBytes: int = 0,
        framing: Framing | None = None,
    ) -> None:
        """
        @param allocate: asked for a lease of so many bytes when the length of
            a frame is known; L{None} means that L{grant} will be called later.
            May raise; nothing is lost then.
        @param refuse: given the announced length, not negative, and the first
            C{headBytes} of the body (fewer when the body is shorter), returns
            why the frame will not be read, or L{None}.  Called before
            C{allocate}, and again when the head is not there yet: first with
            an empty head.
        @param headBytes: how much of the body to see before asking for memory.
        @param framing: how frames begin and end.
        """
        self._framing = framing
        self._allocate = allocate
        self._refuse = refuse
        self._headBytes = headBytes
        self._chunk = b""
        self._offset = 0
        self._more: deque[bytes] = deque()
        self.bufferedBytes = 0
        self.filledBytes = 0
        self.wantedBytes: int | None = None
        self.lease: ILease | None = None

    def feed(self, data: bytes) -> None:
        """
        Take bytes as they arrived.  They stay buffered until L{advance}.
        """
        if self.bufferedBytes:
            self._more.append(data)
        else:
            self._chunk = data
            self._offset = 0
        self.bufferedBytes += len(data)

    def advance(self) -> ILease | None:
        """
        Read on, to the end of the next frame.

        @return: the lease of a whole frame, now the caller's; L{None} when the
            bytes have run out or memory must be waited for.
        @raise FrameRefused: if the length is negative or refused.
        """
        if self.lease is None:
            if self.wantedBytes is not None:
                return None
            sizeBytes = self._readLength() if self._framing is None else self._readPrefix(self._framing)
            if sizeBytes is None:
                return None
            if not sizeBytes:
                return EmptyLease()
            self.wantedBytes = sizeBytes
            lease = self._allocate(sizeBytes)
            if lease is None:
                return None
            self.grant(lease)
        return self._fill()

    def grant(self, lease: ILease) -> None:
        """
        The memory is there for the frame that L{wantedBytes} tells of.  The
        bytes that are here already are copied at the next L{advance}.
        """
        assert lease.sizeBytes == self.wantedBytes, f"{lease!r} is not what was asked for"
        self.wantedBytes = None
        self.lease = lease
        self.filledBytes = 0

    def discard(self) -> None:
        """
        Forget everything and give back the lease that is being filled.
        """
        lease = self.lease
        self.lease = self.wantedBytes = None
        self._chunk = b""
        self._more.clear()
        self.bufferedBytes = self.filledBytes = self._offset = 0
        if lease is not None:
            lease.release()

    def _readLength(self) -> int | None:
        # Nearly always everything is there, and then nothing is called for it.
        if len(self._chunk) - self._offset < 4 and not self._isContiguous(4):
            return None
        sizeBytes: int = _LENGTH.unpack_from(self._chunk, self._offset)[0]
        if sizeBytes < 0:
            raise FrameRefused(f"a frame of {sizeBytes} bytes was announced")
        neededBytes = 4 + (self._headBytes if sizeBytes > self._headBytes else sizeBytes)
        if len(self._chunk) - self._offset < neededBytes and not self._isContiguous(neededBytes):
            reason = self._refuse(sizeBytes, b"")
            if reason is not None:
                raise FrameRefused(reason)
            return None
        offset = self._offset
        reason = self._refuse(sizeBytes, self._chunk[offset + 4 : offset + neededBytes])
        if reason is not None:
            raise FrameRefused(reason)
        self._consume(4)
        return sizeBytes

    def _readPrefix(self, framing: Framing) -> int | None:
        availableBytes = min(self.bufferedBytes, framing.longestPrefixBytes)
        if not availableBytes:
            return None
        self._isContiguous(availableBytes)
        found = framing.parse(self._chunk[self._offset : self._offset + availableBytes])
        if found is None:
            return None
        prefixBytes, sizeBytes = found
        headBytes = min(self._headBytes, sizeBytes)
        isHeaded = self._isContiguous(prefixBytes + (headBytes if sizeBytes else len(framing.suffix)))
        headAt = self._offset + prefixBytes
        reason = self._refuse(sizeBytes, self._chunk[headAt : headAt + headBytes] if isHeaded else b"")
        if reason is not None:
            raise FrameRefused(reason)
        if not isHeaded:
            return None
        self._consume(prefixBytes)
        if not sizeBytes:
            self._takeSuffix(framing)
        return sizeBytes

    def _takeSuffix(self, framing: Framing) -> bool:
        """
        @return: whether all of it is here.
        @raise FrameRefused: if something else is here instead.
        """
        suffix = framing.suffix
        if suffix:
            if not self._isContiguous(len(suffix)):
                return False
            found = self._chunk[self._offset : self._offset + len(suffix)]
            if found != suffix:
                raise FrameRefused(f"a frame ended in {found!r} and not in {suffix!r}")
            self._consume(len(suffix))
        return True

    def _isContiguous(self, sizeBytes: int) -> bool:
        """
        See to it that the next C{sizeBytes} lie in one chunk, if they are here.
        """
        if self.bufferedBytes < sizeBytes:
            # A few bytes wait here for as long as the peer likes; they must
            # not keep the chunk that they are the end of.
            if self._offset:
                self._chunk = self._chunk[self._offset :]
                self._offset = 0
            return False
        while len(self._chunk) - self._offset < sizeBytes:
            self._chunk = self._chunk[self._offset :] + self._more.popleft()
            self._offset = 0
        return True

    def _consume(self, sizeBytes: int) -> None:
        self._offset += sizeBytes
        self.bufferedBytes -= sizeBytes
        if self._offset == len(self._chunk):
            self._chunk = self._more.popleft() if self._more else b""
            self._offset = 0

    def _fill(self) -> ILease | None:
        lease = self.lease
        assert lease is not None
        buffer = lease.buffer
        assert buffer is not None
        filled = self.filledBytes
        while self.bufferedBytes and filled < lease.sizeBytes:
            chunk, offset = self._chunk, self._offset
            count = min(len(chunk) - offset, lease.sizeBytes - filled)
            if count == len(chunk):
                buffer[filled : filled + count] = chunk
            else:
                buffer[filled : filled + count] = memoryview(chunk)[offset : offset + count]
            filled += count
            self._consume(count)
        if filled < lease.sizeBytes or not (self._framing is None or self._takeSuffix(self._framing)):
            self.filledBytes = filled
            return None
        self.lease = None
        self.filledBytes = 0
        return lease

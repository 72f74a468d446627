# -*- test-case-name: tests.unit.connection.test_responses -*-
"""
Responses on their way to a peer that may not read them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from twisted.internet import abstract, tcp
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from ..interfaces import RESPONSES, ILease, IMemoryPool

TRANSPORT_BUFFER_BYTES = 1 << 16
"""What Twisted's transports take before they ask a producer to pause."""

_LARGEST_PIECE_BYTES = 1 << 20

_MOST_PARTS = 512
"""What is handed to the kernel at a time; systems take a thousand or more."""


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """
    The bytes of C{parts} in pieces of 64 KiB to 1 MiB: large enough to be
    worth a write, small enough to show that the peer reads at all.
    """
    gathered: list[bytes] = []
    gatheredBytes = 0
    for part in parts:
        if gatheredBytes + len(part) > _LARGEST_PIECE_BYTES and gathered:
            yield b"".join(gathered)
            gathered, gatheredBytes = [], 0
        if len(part) > _LARGEST_PIECE_BYTES:
            for start in range(0, len(part), _LARGEST_PIECE_BYTES):
                yield part[start : start + _LARGEST_PIECE_BYTES]
            continue
        gathered.append(part)
        gatheredBytes += len(part)
        if gatheredBytes >= TRANSPORT_BUFFER_BYTES:
            yield b"".join(gathered)
            gathered, gatheredBytes = [], 0
    if gathered:
        yield b"".join(gathered)


def descriptorOf(transport: Any) -> Any:
    """
    What reads and writes under C{transport}; L{None} if it is none of Twisted's.
    """
    while transport is not None and not isinstance(transport, abstract.FileDescriptor):
        transport = getattr(transport, "transport", None)
    return transport


def isDirect(connection: tcp.Connection) -> bool:
    """
    Whether bytes may be handed to the kernel without waiting for the reactor to say that it takes them, which it
    nearly always does: that saves registering for it, a turn, unregistering, and copies.  Only while C{connection}
    holds nothing that must go first.
    """
    return not (connection.dataBuffer or connection._tempDataBuffer or connection.TLS)


def dropUnsent(transport: Any) -> None:
    """
    Free what C{transport}, which is lost, and those under it have not sent.
    They would keep it until they are collected as garbage, which may take long.
    """
    descriptor = descriptorOf(transport)
    if descriptor is not None:
        descriptor.dataBuffer = b""
        descriptor._tempDataBuffer = []


@implementer(IPushProducer)
class ResponseQueue:
    """
    Writes responses as fast as the peer takes them, and counts the bytes that it has not taken.

    What the transport accepts without pausing us, at most 64 KiB, is part of
    what the connection is charged for by being open.  Everything beyond is
    charged to the pool until the transport has drained.

    @cvar heldWords: what the log calls C{heldBytes}.
    @ivar heldBytes: bytes charged now.
    @ivar largestBytes: the size of the largest write since nothing was held.
    @ivar pausedSinceSeconds: since when the transport has taken nothing, or
        L{None} while it takes what it gets.
    """

    heldWords = "bytes of responses wait"

    __slots__ = (
        "_blocked",
        "_grew",
        "_inTransport",
        "_isPlain",
        "_pool",
        "_seconds",
        "_transport",
        "_waiting",
        "heldBytes",
        "largestBytes",
        "pausedSinceSeconds",
    )

    def __init__(
        self,
        transport: Any,
        pool: IMemoryPool,
        seconds: Callable[[], float],
        blocked: Callable[[bool], None],
        grew: Callable[[], None],
    ) -> None:
        """
        Registers with C{transport} as its producer.

        @param blocked: called with L{True} each time the transport stops
            taking bytes, and with L{False} when it has taken them all.
        @param grew: called when more is charged, and there is no memory.
        """
        self._transport = transport
        self._pool = pool
        self._seconds = seconds
        self._blocked = blocked
        self._grew = grew
        self._waiting: deque[tuple[bytes, ILease]] = deque()
        self._inTransport: list[ILease] = []
        self._isPlain = isinstance(transport, tcp.Connection)
        self.heldBytes = self.largestBytes = 0
        self.pausedSinceSeconds: float | None = None
        transport.registerProducer(self, True)

    def write(self, parts: Sequence[bytes], sizeBytes: int) -> None:
        """
        Send C{parts}, C{sizeBytes} in all.
        """
        if self.pausedSinceSeconds is None and not self._waiting:
            goesDirectly = self._isPlain and isDirect(self._transport)
            if sizeBytes <= TRANSPORT_BUFFER_BYTES:
                if goesDirectly:
                    self._writeDirectly(b"".join(parts))
                else:
                    # Twisted goes over them twice, and joins them as well.
                    self._transport.write(b"".join(parts))
                return
            if goesDirectly:
                parts = self._sendDirectly(parts)
                if not parts:
                    return
        if not self.heldBytes:
            self.largestBytes = 0
        for piece in _pieces(parts):
            self._waiting.append((piece, self._charge(len(piece))))
        self._pump()
        if self.heldBytes:
            self.largestBytes = max(self.largestBytes, sizeBytes)
            if self._pool.isOutOfMemory():
                self._grew()

    def pauseProducing(self) -> None:
        """
        For the transport: it holds more than it wants to.
        """
        if self.pausedSinceSeconds is not None:
            return
        self.pausedSinceSeconds = self._seconds()
        if not self._inTransport:
            self._inTransport.append(self._charge(TRANSPORT_BUFFER_BYTES))
        self._blocked(True)

    def resumeProducing(self) -> None:
        """
        For the transport: the kernel has everything.
        """
        self.pausedSinceSeconds = None
        self._releaseWritten()
        self._pump()
        if self.pausedSinceSeconds is None:
            self._blocked(False)

    def stopProducing(self) -> None:
        self.discard()

    def isEmpty(self) -> bool:
        """
        Whether everything was handed to the transport.
        """
        return not self._waiting

    @property
    def isTaken(self) -> bool:
        """
        Whether the transport has sent everything, so that nothing waits here.
        """
        return self.pausedSinceSeconds is None

    def discard(self) -> None:
        """
        Forget what was not sent.
        """
        while self._waiting:
            self._release(self._waiting.popleft()[1])
        self._releaseWritten()

    def _writeDirectly(self, data: bytes) -> None:
        sent = self._transport.writeSomeData(data)
        if sent != len(data):
            # By way of the transport, which also learns of any error.
            self._transport.write(data[sent:] if isinstance(sent, int) else data)

    def _sendDirectly(self, parts: Sequence[bytes]) -> Sequence[bytes]:
        """
        Hand as much of C{parts} to the kernel as it takes, without joining them.

        @return: what is left, and goes by way of the transport, which also learns of any error.
        """
        send = self._transport.getHandle().sendmsg
        for begin in range(0, len(parts), _MOST_PARTS):
            gathered = parts[begin : begin + _MOST_PARTS]
            try:
                sentBytes = send(gathered)
            except OSError:
                sentBytes = 0
            if sentBytes == sum(map(len, gathered)):
                continue
            cut = begin
            while sentBytes >= len(parts[cut]):
                sentBytes -= len(parts[cut])
                cut += 1
            # A copy, since a view would keep all of it.
            return [parts[cut][sentBytes:], *parts[cut + 1 :]]
        return ()

    def _pump(self) -> None:
        while self._waiting and self.pausedSinceSeconds is None:
            piece, lease = self._waiting.popleft()
            if self._isPlain and isDirect(self._transport):
                left = self._sendDirectly((piece,))
                if not left:
                    self._release(lease)
                    continue
                (piece,) = left
            self._inTransport.append(lease)
            self._transport.write(piece)
        if self.pausedSinceSeconds is None:
            self._releaseWritten()

    def _charge(self, sizeBytes: int) -> ILease:
        self.heldBytes += sizeBytes
        return self._pool.charge(sizeBytes, RESPONSES)

    def _releaseWritten(self) -> None:
        written, self._inTransport = self._inTransport, []
        for lease in written:
            self._release(lease)

    def _release(self, lease: ILease) -> None:
        self.heldBytes -= lease.sizeBytes
        lease.release()


class WrittenQueue(ResponseQueue):
    """
    A queue for protocols that may write a line at a time.  What is written between L{gather} and L{flush} is gathered
    here, and sent at once; other writes are gathered by the transport, which sends them at the end of the turn.
    """

    __slots__ = ("_gathered", "_gatheredBytes", "_isGathering")

    heldWords = "bytes wait to be sent"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._gathered: list[bytes] = []
        self._gatheredBytes = 0
        self._isGathering = False

    def gather(self) -> None:
        """
        More may be written soon.
        """
        self._isGathering = True

    def flush(self) -> None:
        """
        Send what was gathered.
        """
        self._isGathering = False
        if self._gathered:
            self._send()

    def write(self, parts: Sequence[bytes], sizeBytes: int) -> None:
        if self._isGathering:
            self._gathered += parts
            self._gatheredBytes += sizeBytes
            if self._gatheredBytes > TRANSPORT_BUFFER_BYTES:
                self._send()
        elif sizeBytes <= TRANSPORT_BUFFER_BYTES and self.isTaken and self.isEmpty():
            self._transport.write(b"".join(parts))
        else:
            super().write(_cut(parts), sizeBytes)

    def discard(self) -> None:
        self._gathered, self._gatheredBytes = [], 0
        super().discard()

    def _send(self) -> None:
        gathered, gatheredBytes = self._gathered, self._gatheredBytes
        self._gathered, self._gatheredBytes = [], 0
        super().write(_cut(gathered) if gatheredBytes > TRANSPORT_BUFFER_BYTES else gathered, gatheredBytes)


def _cut(parts: Iterable[bytes]) -> list[bytes]:
    """
    Cut C{parts} into pieces so small that a slow peer can be told from one that takes nothing.
    """
    step = TRANSPORT_BUFFER_BYTES
    return [part[start : start + step] for part in parts for start in range(0, len(part), step)]

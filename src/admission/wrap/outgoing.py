# -*- test-case-name: tests.test_wrap -*-
"""
What a protocol writes, on its way to a peer that may not read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..connection.deadline import Deadline
from ..connection.pauses import Pause
from ..connection.responses import TRANSPORT_BUFFER_BYTES, ResponseQueue
from .supply import Supply

if TYPE_CHECKING:
    from . import WrappedFactory


class WrittenQueue(ResponseQueue):
    """
    A queue for what may be written a line at a time, which the transport
    gathers and sends once in a turn.
    """

    __slots__ = ()

    def _writeDirectly(self, data: bytes) -> None:
        self._transport.write(data)


class Outgoing:
    """
    Sends what a protocol and its producer write, and charges the pool for it
    until the peer has taken it.  While the peer does not, the producer is
    paused; if it takes nothing for C{sendSeconds}, it is cut off, and so is one
    that is written to while C{maxUnsentBytes} wait.

    @ivar supply: the protocol's producer.
    """

    def __init__(
        self,
        factory: WrappedFactory,
        transport: Any,
        blocked: Callable[[bool], None],
        cutOff: Callable[[str], None],
        failed: Callable[[], None],
    ) -> None:
        """
        @param blocked: called with L{True} when the peer takes nothing any
            more, perhaps several times, and with L{False} when it has taken
            everything.
        @param cutOff: closes the connection at once, given the reason.
        @param failed: see L{Supply}.
        """
        self._factory = factory
        self._blocked = blocked
        self._isClosed = False
        self.cutOff = cutOff
        self.supply = Supply(factory.clock, failed)
        self._deadline = Deadline(factory.clock, self._stopped)
        self._queue = WrittenQueue(transport, factory.gate.pool, factory.clock.seconds, self._queueBlocked)

    def write(self, parts: Sequence[bytes], sizeBytes: int) -> None:
        """
        Send C{parts}, C{sizeBytes} in all.
        """
        heldBytes = self._queue.heldBytes
        if heldBytes >= self._factory.maxUnsentBytes:
            self.cutOff(f"{heldBytes} bytes wait to be sent, and more are written (maxUnsentBytes)")
        else:
            self._queue.write(parts if sizeBytes <= TRANSPORT_BUFFER_BYTES else _cut(parts), sizeBytes)
            self.supply.wrote()

    @property
    def isTaken(self) -> bool:
        """
        Whether the transport takes more.
        """
        return self._queue.pausedSinceSeconds is None

    def close(self) -> None:
        """
        Forget what was not sent.
        """
        self._isClosed = True
        self._factory.gate.responsesStalled(self, False)
        self._deadline.close()
        self._queue.discard()

    def unsentBytes(self) -> int:
        """
        Bytes that the peer has not taken.
        """
        return self._queue.heldBytes

    def stalledSeconds(self) -> float:
        """
        For how long it has taken none.
        """
        since = self._queue.pausedSinceSeconds
        return 0.0 if since is None else self._factory.clock.seconds() - since

    def _queueBlocked(self, isBlocked: bool) -> None:
        if self._isClosed:
            return
        self._factory.gate.responsesStalled(self, isBlocked)
        if isBlocked:
            self._deadline.start(self._factory.limits.sendSeconds)
            self.supply.hold(Pause.UNSENT)
            self._blocked(True)
            return
        self._deadline.stop()
        self.supply.release(Pause.UNSENT)
        # The producer may have filled the transport again.
        if self.isTaken and not self._isClosed:
            self._blocked(False)

    def _stopped(self) -> None:
        self.cutOff(
            f"{self._queue.heldBytes} bytes wait to be sent, and for {self._factory.limits.sendSeconds:g} s it has "
            "taken none (sendSeconds)"
        )


def _cut(parts: Sequence[bytes]) -> list[bytes]:
    """
    The same in pieces so small that a slow peer can be told from one that
    takes nothing.
    """
    return [
        part[start : start + TRANSPORT_BUFFER_BYTES]
        for part in parts
        for start in range(0, len(part), TRANSPORT_BUFFER_BYTES)
    ]

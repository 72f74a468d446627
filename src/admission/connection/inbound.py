# -*- test-case-name: tests.unit.connection.test_wrapping -*-
"""
What a peer sends, on its way to a protocol that knows nothing of us.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer

from ..gate.gate import Gate
from ..gate.turns import TURN_SECONDS
from ..interfaces import ILease, IWaiter
from ..policyfailure import FAILURES
from .link import CLOSING, Link, LinkState
from .pauses import UNSENT, Pause

_MIN_SLICE_BYTES = 1 << 10
_MAX_SLICE_BYTES = 64 << 10
"""The least and the most that is handed over at a time, depending on how long the protocol works on it."""


@implementer(IWaiter)
class InboundBuffer:
    """
    Hands over what comes, a slice at a time, while there is no reason not to read and this turn of the reactor has
    time.  Otherwise the transport is paused, and what comes all the same is held, and charged: TLS delivers what it has
    decrypted, and cannot be stopped before its handshake is over.

    What is held is handed over in turns of the reactor of their own, never from
    within anything that the protocol calls, and before anything else is read.

    While the pool is empty this waits at the gate, which lets one connection through at a time: for the turn, and until
    its peer has taken what is written to it or it is gone with all that it held.

    @ivar heldBytes: how much is held.
    @ivar isProvided: whether there is memory already for what comes, so that it is handed over even if the pool is
        empty.
    @ivar holder: the holder for which it last asked for memory.
    """

    def __init__(
        self,
        link: Link,
        gate: Gate,
        clock: IReactorTime,
        deliver: Callable[[bytes], None],
        askAgain: Callable[[], None],
        holderNow: Callable[[], str],
    ) -> None:
        """
        @param deliver: hands over; does not raise.
        @param askAgain: pauses the link if nothing may be handed over, since other connections of the same client were
            served meanwhile.
        @param holderNow: tells whose memory it would be; does not raise, and may close the connection.  Called only
            when memory is asked for.
        """
        self._link = link
        self._reasons = link.pauses.reasons
        self._gate = gate
        self._clock = clock
        self._deliver = deliver
        self._askAgain = askAgain
        self._holderNow = holderNow
        self.heldBytes = 0
        self.isProvided = False
        self.holder = ""
        self._held: deque[bytes] = deque()
        # How much of the first was handed over.
        self._takenBytes = 0
        self._sliceBytes = _MIN_SLICE_BYTES
        self._hasTurn = False
        self._lease: ILease | None = None
        self._serving: IDelayedCall | None = None

    def add(self, data: bytes) -> None:
        """
        Hand over or hold C{data}, which has come.
        """
        self._held.append(data)
        self.heldBytes += len(data)
        if not self._link.isServing:
            self._serve()

    def serve(self) -> None:
        """
        Hand over what is held, in a turn of its own, unless there is a reason not to.
        """
        if self._held and not self._reasons:
            self._serveSoon()
        else:
            self._link.settle()

    def handOver(self) -> None:
        """
        Hand over what is held whatever the reasons say, since nothing comes any more.
        """
        link = self._link
        link.isServing = True
        while self._held:
            self._deliver(self._take())
        link.isServing = False
        link.chargeHeld()

    def putBack(self, data: bytes) -> None:
        """
        Hand over C{data}, the end of what was just handed over, once more when there is no reason left not to read.
        """
        if data and self._link.state < CLOSING:
            # It goes before what is left of the piece that it is from.
            if self._takenBytes:
                self._takenBytes -= len(data)
            else:
                self._held.appendleft(data)
            self.heldBytes += len(data)

    def close(self) -> None:
        """
        Drop what is held, and hand over nothing any more.  Another connection is let through only when what was written
        is gone, too.
        """
        self._gate.forget(self)
        self._held.clear()
        self.heldBytes = self._takenBytes = 0
        if self._serving is not None:
            self._serving.cancel()
            self._serving = None
        link = self._link
        # An aborted transport is gone only when it says so; the protocol keeps what it has until then.
        if link.state is not LinkState.ABORTED and link.responses.isTaken:
            self.releaseLease()

    def releaseLease(self) -> None:
        """
        Have another connection let through, if this one was.
        """
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    # What the gate calls

    @property
    def wantedBytes(self) -> int:
        """
        The memory it waits for: as much as what comes next.
        """
        return max(1, min(len(self._held[0]) - self._takenBytes, self._gate.pool.largestBytes)) if self._held else 1

    @property
    def hasBoundedAnswers(self) -> bool:
        """
        Nobody knows what the protocol writes, so this goes by the peer: one that has taken all that was ever written to
        it does not wait for peers of which nothing is known, each of which may turn out not to read.
        """
        link = self._link
        return link.answeredSeconds > 0.0 and link.responses.isTaken

    def leaseGranted(self, lease: ILease) -> None:
        self._link.pauses.discard(Pause.MEMORY)
        if self._reasons:
            # The lease cannot be used yet, and others may need the memory.
            lease.release()
        else:
            self._lease = lease
            self._serve()

    def turnGranted(self) -> None:
        self._hasTurn = True
        self._link.pauses.discard(Pause.SERVER_FULL)
        self._serve()
        if self._hasTurn:
            self._hasTurn = False
            self._gate.turns.end()

    # Serving

    def _serve(self) -> None:
        link = self._link
        link.isServing = True
        try:
            if self._held and not self._reasons:
                self._askAgain()
            while self._held and not self._reasons and self._hasMemory() and self._mayBegin():
                self._deliverSlice()
        except FAILURES:
            # Raised by the pool, by its order, or by what is told that memory is short.
            link.readingFailed()
        finally:
            link.isServing = False
        if link.state >= CLOSING:
            return
        if self.heldBytes or link.heldCharge is not None:
            link.chargeHeld()
        if self._lease is not None and UNSENT not in self._reasons:
            # No other connection is let through before the next turn.
            self._serveSoon()
        if self._reasons or link.pauses.isApplied:
            link.settle()

    def _serveSoon(self) -> None:
        if self._serving is None and not self._link.isServing and self._link.state < CLOSING:
            self._serving = self._clock.callLater(0, self._takeTurn)

    def _takeTurn(self) -> None:
        self._serving = None
        if UNSENT not in self._reasons:
            self.releaseLease()
        self._serve()

    def _mayBegin(self) -> bool:
        if not self._hasTurn:
            self._hasTurn = self._gate.turns.tryBegin(self)
            if not self._hasTurn:
                self._link.pauses.add(Pause.SERVER_FULL)
        return self._hasTurn

    def _deliverSlice(self) -> None:
        begunSeconds = self._clock.seconds()
        self._deliver(self._take())
        self._hasTurn = False
        self._gate.turns.end()
        workedSeconds = self._clock.seconds() - begunSeconds
        if workedSeconds > TURN_SECONDS / 2:
            self._sliceBytes = max(self._sliceBytes // 2, _MIN_SLICE_BYTES)
            self._gate.turns.beginNoMore()
        elif self._sliceBytes < _MAX_SLICE_BYTES and workedSeconds < TURN_SECONDS / 8:
            self._sliceBytes *= 2

    def _take(self) -> bytes:
        data, begin = self._held[0], self._takenBytes
        end = begin + self._sliceBytes
        if end < len(data):
            self._takenBytes = end
        else:
            self._takenBytes = 0
            self._held.popleft()
        if begin or self._takenBytes:
            data = data[begin:end]
        self.heldBytes -= len(data)
        return data

    def _hasMemory(self) -> bool:
        gate = self._gate
        if self._lease is None and (gate.memory.waiting or gate.pool.isOutOfMemory()) and not self.isProvided:
            # The holder is determined before the gate asks for it, since it may close the connection, which the gate
            # must not find closed.
            self.holder = self._holderNow()
            if self._link.state >= CLOSING:
                return False
            self._lease = gate.memory.tryAllocate(self, self.wantedBytes)
            if self._lease is None:
                self._link.pauses.add(Pause.MEMORY)
                return False
        return True

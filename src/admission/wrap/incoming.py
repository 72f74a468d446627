# -*- test-case-name: tests.test_wrap -*-
"""
What a peer sends, on its way to a protocol that knows nothing of us.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IDelayedCall
from zope.interface import implementer

from ..connection.hangup import filenoOf, unreadBytes
from ..connection.pauses import Pause, Pauses
from ..interfaces import CONNECTIONS, ILease, IWaiter

if TYPE_CHECKING:
    from . import WrappedFactory

FAREWELL_BYTES = 85
"""What a TLS peer sends to say that it closes, at most."""


@implementer(IWaiter)
class Incoming:
    """
    Hands over what comes, unless there is a reason not to read.  Then the
    transport is muted, and what comes all the same is held, and charged: TLS
    delivers what it has decrypted, and nothing can be stopped before its
    handshake is over.

    What is held is handed over in turns of the reactor of their own, never from
    within anything that the protocol calls, and before anything else is read.

    While the pool is empty this waits at the gate: one connection at a time is
    let through, for the turn and until its peer has taken what is written to it.

    @ivar pauses: why nothing is read, if nothing is.
    @ivar heldBytes: how much is held.
    @ivar holder: who it was when it last asked for memory.
    @ivar isReadClosed: whether the peer has closed its side; then there is
        nothing to read or to stop reading.
    @ivar resumedSeconds: when reading went on last.
    """

    def __init__(
        self, factory: WrappedFactory, transport: Any, deliver: Callable[[bytes], None], holderNow: Callable[[], str]
    ) -> None:
        """
        @param deliver: hands over; does not raise.
        @param holderNow: tells whose memory it would be; does not raise, and
            may close this.  Asked only when memory is.
        """
        self._gate = factory.gate
        self._clock = factory.clock
        self._hangUpWatch = factory.hangUpWatch
        self._transport = transport
        self._deliver = deliver
        self._holderNow = holderNow
        self.pauses = Pauses(transport, factory.clock.seconds, self._hasHeld, self._muteChanged)
        self.heldBytes = 0
        self.holder = ""
        self.isReadClosed = False
        self._held: deque[bytes] = deque()
        self._heldCharge: ILease | None = None
        self._lease: ILease | None = None
        self._serving: IDelayedCall | None = None
        self._isServing = False
        self._isClosed = False
        self._watchedFileno: int | None = None
        self.resumedSeconds = factory.clock.seconds()

    def add(self, data: bytes) -> None:
        """
        Hand over or hold C{data}, which has come.
        """
        self._held.append(data)
        self.heldBytes += len(data)
        if not self._isServing:
            self._serve()

    def pause(self, reason: Pause) -> None:
        """
        Do not read, for C{reason}.
        """
        self.pauses.add(reason)
        self.settle()

    def resume(self, reason: Pause) -> None:
        """
        C{reason} is gone: if it was the last, hand over what is held, then read.
        """
        self.pauses.discard(reason)
        if self._held and not self.pauses.reasons:
            self._serveSoon()
        else:
            self.settle()

    def settle(self) -> None:
        """
        Have the transport do as the reasons say.
        """
        if not (self._isServing or self._isClosed or self.isReadClosed):
            self.pauses.settle()

    def responsesTaken(self) -> None:
        """
        The peer has taken what was written to it.
        """
        self._releaseLease()
        self.resume(Pause.UNSENT)

    def handOver(self) -> None:
        """
        Hand over what is held whatever the reasons say, since nothing comes any more.
        """
        self._isServing = True
        while self._held:
            self._deliver(self._take())
        self._isServing = False
        self._charge()

    def close(self) -> None:
        """
        Drop what is held, and hand over nothing any more.  Reading is left as it is.
        """
        self._isClosed = True
        self._gate.forget(self)
        self._held.clear()
        self.heldBytes = 0
        self._charge()
        self._releaseLease()
        if self._serving is not None:
            self._serving.cancel()
            self._serving = None

    def unwatch(self) -> None:
        """
        The transport is gone.
        """
        if self._watchedFileno is not None:
            self._hangUpWatch.discard(self._watchedFileno)
            self._watchedFileno = None

    # What the gate calls

    @property
    def wantedBytes(self) -> int:
        """
        The memory it waits for: as much as what comes next.
        """
        return max(1, min(len(self._held[0]), self._gate.pool.largestBytes)) if self._held else 1

    def leaseGranted(self, lease: ILease) -> None:
        """
        The memory is there.
        """
        self.pauses.discard(Pause.MEMORY)
        if self.pauses.reasons:
            # It cannot be used yet, and others may need it.
            lease.release()
        else:
            self._lease = lease
            self._serve()

    def turnGranted(self) -> None:
        """
        Never asked for.
        """

    # Serving

    def _serve(self) -> None:
        self._isServing = True
        while self._held and not self.pauses.reasons and self._hasMemory():
            self._deliver(self._take())
        self._isServing = False
        if self._isClosed:
            return
        self._charge()
        if self._lease is not None and Pause.UNSENT not in self.pauses.reasons:
            # Until the next turn nobody else is let through.
            self._serveSoon()
        self.settle()

    def _serveSoon(self) -> None:
        if self._serving is None and not (self._isServing or self._isClosed):
            self._serving = self._clock.callLater(0, self._takeTurn)

    def _takeTurn(self) -> None:
        self._serving = None
        if Pause.UNSENT not in self.pauses.reasons:
            self._releaseLease()
        self._serve()

    def _take(self) -> bytes:
        data = self._held.popleft()
        self.heldBytes -= len(data)
        return data

    def _hasMemory(self) -> bool:
        gate = self._gate
        if self._lease is None and (gate.waitingForMemory or gate.pool.isOutOfMemory()):
            # Told before rather than when the gate asks, which must not find it closed.
            self.holder = self._holderNow()
            if self._isClosed:
                return False
            self._lease = gate.tryAllocate(self, self.wantedBytes)
            if self._lease is None:
                self.pauses.add(Pause.MEMORY)
                return False
        return True

    def _releaseLease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def _charge(self) -> None:
        charge = self._heldCharge
        if (0 if charge is None else charge.sizeBytes) != self.heldBytes:
            self._heldCharge = self._gate.pool.charge(self.heldBytes, CONNECTIONS) if self.heldBytes else None
            if charge is not None:
                charge.release()

    def _hasHeld(self) -> bool:
        return bool(self._held)

    def _muteChanged(self, isMuted: bool) -> None:
        self.unwatch()
        if not isMuted:
            self.resumedSeconds = self._clock.seconds()
            return
        self._watchedFileno = filenoOf(self._transport)
        if self._watchedFileno is not None:
            self._hangUpWatch.add(self._watchedFileno, self._peerHungUp)

    def _peerHungUp(self, isReset: bool) -> None:
        fileno, self._watchedFileno = self._watchedFileno, None
        # A protocol that does not read may still want to answer whoever has closed only its own side.
        isWaitedFor = Pause.PROTOCOL in self.pauses.reasons
        if fileno is None:
            return
        if isReset or not (isWaitedFor or self._held or unreadBytes(fileno) > FAREWELL_BYTES):
            # All that is left to read is the end, which the transport reports in its own way.
            self.pauses.lift()

# -*- test-case-name: tests.unit.connection.test_pauses -*-
"""
Why a connection is not read.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from ..interfaces import ITransportMutability
from ..plugins import registerTransportAdapters


class Pause(Enum):
    """
    A reason not to read from a connection.  The values are for people: metrics
    and the status page show them.
    """

    # As an object, in C: Enum's own is a call for each request.
    __hash__ = object.__hash__

    MEMORY = "memory"
    """The pool has no memory for what comes next."""

    BUSY = "request"
    """A request of this connection is being worked on."""

    SERVER_FULL = "requests"
    """As many requests as the server takes are being worked on, or have been in this turn of the reactor."""

    UNSENT = "responses"
    """The peer does not take its responses."""

    THROTTLED = "quota"
    """The client is over its quota."""

    SENT_THROTTLED = "sent quota"
    """The client has been sent more than its quota."""

    OPENING = "opening"
    """Its address opens connections too fast."""

    PROTOCOL = "protocol"
    """The wrapped protocol has paused its transport."""

    UNANSWERED = "unanswered"
    """As many of its Produce requests as may wait for the disk are waiting."""

    UPSTREAM = "upstream"
    """The node behind a gateway does not take what is sent to it, and as much as may wait for it is waiting."""

    DRAINING = "draining"
    """The server stops: what was read is answered, and then the connection ends."""

    CLOSING = "closing"
    """It closes after the next response."""


BUSY, UNSENT, UNANSWERED = Pause.BUSY, Pause.UNSENT, Pause.UNANSWERED
"""Looked up once, since every request asks for them; see L{admission.connection.link.LOST}."""


class Pauses:
    """
    The reasons not to read from one transport.

    A reason takes effect in L{settle}, which the connection calls when it returns to the reactor, and not before a TLS
    handshake is over.  So a request that is answered at once costs no system call.  One that is answered later costs
    none either, if the peer sends nothing meanwhile: L{Pause.BUSY} alone pauses the transport only once there are
    unserved bytes.

    When the last reason is gone, what the transport itself has buffered is
    delivered, in turns of the reactor of its own, before it is resumed: no event
    of the socket would announce it.

    This is the only place that stops and resumes a transport.

    @ivar reasons: the reasons, each with the time since which it holds, in
        seconds of the injected clock.
    @ivar isApplied: whether the transport is stopped now.
    """

    __slots__ = ("_changed", "_clock", "_failed", "_heldBytes", "_reading", "_transport", "isApplied", "reasons")

    def __init__(
        self,
        transport: Any,
        clock: IReactorTime,
        heldBytes: Callable[[], int],
        changed: Callable[[bool], None],
        failed: Callable[[], None],
    ) -> None:
        """
        @param transport: what to stop; adapted to L{ITransportMutability}
            anew each time, since STARTTLS changes what it is.
        @param heldBytes: how many bytes have come and were not served yet.
        @param changed: called with L{True} just after reading stopped and with
            L{False} just before it starts again.
        @param failed: called from within the C{except} when delivering what the
            transport holds raises.
        """
        self._transport = transport
        self._clock = clock
        self._heldBytes = heldBytes
        self._changed = changed
        self._failed = failed
        self._reading: IDelayedCall | None = None
        self.reasons: dict[Pause, float] = {}
        self.isApplied = False

    def add(self, reason: Pause, sinceSeconds: float | None = None) -> None:
        """
        Do not read, for C{reason}.  No effect if it is a reason already.

        @param sinceSeconds: the time, if the caller happens to know it.
        """
        if reason not in self.reasons:
            self.reasons[reason] = self._clock.seconds() if sinceSeconds is None else sinceSeconds

    def discard(self, reason: Pause) -> None:
        """
        C{reason} is gone.  No effect if it was none.
        """
        self.reasons.pop(reason, None)

    def settle(self) -> None:
        """
        Make the transport do what the reasons ask for.  The connection must
        have parsed what it has buffered, if there is no reason left not to:
        no event of the socket will announce it.
        """
        reasons = self.reasons
        if reasons:
            if not self.isApplied and (len(reasons) > 1 or BUSY not in reasons or self._heldBytes()):
                self._apply()
        elif self.isApplied and self._reading is None:
            adapter = self._adapter()
            if adapter.hasBytesBuffered():
                self._reading = self._clock.callLater(0, self._readBuffered)
            else:
                self._resume(adapter)

    def lift(self) -> None:
        """
        Read again whatever the reasons say, as closing a TLS connection needs.
        """
        self.stop()
        if self.isApplied:
            self._resume(self._adapter())

    def stop(self) -> None:
        """
        Deliver nothing more of what the transport holds.
        """
        reading, self._reading = self._reading, None
        if reading is not None and reading.active():
            reading.cancel()

    def isHandshaking(self) -> bool:
        """
        Whether the transport could not be stopped yet, because of its handshake.
        """
        return not self._adapter().isInMutableState()

    def hasBytesBuffered(self) -> bool:
        """
        Whether the transport holds anything itself.
        """
        return self._adapter().hasBytesBuffered()

    def _readBuffered(self) -> None:
        # C{_reading} stays set until everything was delivered, so that nothing is resumed from within that.
        adapter = self._adapter()
        if not self.reasons and adapter.hasBytesBuffered():
            try:
                adapter.readBuffered()
            except Exception:
                self._failed()
        if self._reading is not None:
            self._reading = None
            self.settle()

    def _resume(self, adapter: ITransportMutability) -> None:
        self.isApplied = False
        self._changed(False)
        adapter.unmute()

    def _apply(self) -> None:
        adapter = self._adapter()
        if adapter.isInMutableState():
            self.isApplied = True
            adapter.mute()
            self._changed(True)

    def _adapter(self) -> ITransportMutability:
        adapter = ITransportMutability(self._transport, None)
        if adapter is None:
            registerTransportAdapters()
            adapter = ITransportMutability(self._transport)
        return adapter

    def __repr__(self) -> str:
        if not self.reasons:
            return "not muted"
        now = self._clock.seconds()
        return "muted: " + ", ".join(f"{reason.value} {now - since:.1f} s" for reason, since in self.reasons.items())

# -*- test-case-name: tests.sockets.test_status_health -*-
"""
Whether a broker does what it is there for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..gate import Gate

SHORTAGE_SECONDS = 30.0
"""For how long clients may wait for memory before the broker is not well: a burst is over by then."""


class Health:
    """
    What keeps a broker from serving, in words.

    @ivar isDraining: whether it accepts nobody any more and waits for its
        connections to end; to be set by whoever stops it.
    """

    def __init__(
        self,
        gate: Gate,
        seconds: Callable[[], float],
        logTroubles: Callable[[], Sequence[str]],
        connections: Callable[[], int],
    ) -> None:
        """
        @param seconds: a monotonic clock.
        @param logTroubles: what is wrong with the log.
        @param connections: how many are open.
        """
        self.isDraining = False
        self._gate = gate
        self._seconds = seconds
        self._logTroubles = logTroubles
        self._connections = connections
        self._shortSinceSeconds: float | None = None
        gate.onPressure(self._pressed)

    @property
    def reasons(self) -> list[str]:
        """
        Why nobody should be sent here now, a sentence each; empty if all is well.
        """
        reasons = list(self._logTroubles())
        if self.isDraining:
            reasons.append(f"the broker is being stopped, and {self._connections()} connections are still open")
        since = self._shortSinceSeconds
        if since is not None and self._seconds() - since >= SHORTAGE_SECONDS:
            reasons.append(
                f"for {self._seconds() - since:.0f} s the memory pool has been short, and "
                f"{self._gate.waitingForMemory} connections wait for it (queued.max.request.bytes)"
            )
        return reasons

    def _pressed(self, isPressed: bool) -> None:
        self._shortSinceSeconds = self._seconds() if isPressed else None

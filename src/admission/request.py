# -*- test-case-name: tests.unit.test_request -*-
"""
One request on its way through a server, from its length to its answer.
"""

from __future__ import annotations

from typing import Any

from .interfaces import ADMITTED, Decision, ILease, Outcome, Refusal, Request


class ServerRequest:
    """
    A request, and what has become of it so far.

    Whoever works on it says what happens, through its methods, and when: in
    seconds of the server's monotonic clock.  A moment that has not come is
    L{None}.  The memory is released, and the request parked, resumed and
    answered once each; it is over once, however that comes about, and nothing
    of it changes afterwards.

    @ivar connection: what it came by.
    @ivar sizeBytes: its size on the wire, without the length prefix.
    @ivar inFlight: how many requests of its connection were under way when it
        arrived, this one included.
    @ivar poolAvailableBytes: what the memory pool had left then.
    @ivar lease: its memory, once all of it is there and until it is released.
    @ivar arrived: when its length was read.
    @ivar asked: when memory was asked for.
    @ivar granted: when it was granted.
    @ivar complete: when all of it was there.
    @ivar begun: when the work on it began; later if it was postponed.
    @ivar released: when its memory was given back.
    @ivar parked: when it was left to wait for something to happen.
    @ivar resumed: when that was over, and the work went on.
    @ivar answered: when its answer was handed over.
    @ivar ended: when it was over.
    @ivar kind: what is asked for, in the protocol's words; L{None} if that was
        never known.
    @ivar principal: who asks, as the server authenticated it; L{None} if it
        ended before that mattered.
    @ivar clientId: what the client calls itself, as far as it says.
    @ivar view: the policies' view of it; L{None} if nobody wanted one.
    @ivar refusal: how policies could refuse it; L{None} if it ended before that
        mattered.
    @ivar decision: what the policies said to it.
    @ivar charge: the delay that each policy asked for, L{None} if none was asked.
    @ivar policy: the policy that refused it or throttles its client.
    @ivar decided: the moment that the policies were given, when they were asked
        last.
    @ivar isCounted: whether they counted what it took; L{None} if they were not
        told.
    @ivar isKnown: whether its first identity was known before; L{None} if
        nobody can tell.
    @ivar begunPolicies: which policies were told that it began.
    @ivar responseBytes: the size of its answer.
    @ivar serviceSeconds: for how long it was worked on, if that was measured.
    @ivar delaySeconds: the delay that its client is told.
    @ivar rejectReason: why nothing of it was done, if so.
    @ivar expireReason: why it was given up, or came too late, if so.
    @ivar isWorkedOn: whether somebody works on it at this moment, and will bring
        it to its end whatever happens.
    """

    # In slots, and all set at once: with so many attributes a dictionary would take longer.  A request that keeps its
    # moments costs the smallest Produce, pipelined, two microseconds of thirty (benchmarks.broker), and others nothing
    # that can be told from noise; for that nothing that serves asks whether it is recorded.
    __slots__ = (
        "answered",
        "arrived",
        "asked",
        "begun",
        "begunPolicies",
        "charge",
        "clientId",
        "complete",
        "connection",
        "decided",
        "decision",
        "delaySeconds",
        "ended",
        "expireReason",
        "granted",
        "inFlight",
        "isCounted",
        "isKnown",
        "isWorkedOn",
        "kind",
        "lease",
        "parked",
        "policy",
        "poolAvailableBytes",
        "principal",
        "refusal",
        "rejectReason",
        "released",
        "responseBytes",
        "resumed",
        "serviceSeconds",
        "sizeBytes",
        "view",
    )

    def __init__(
        self, connection: Any, sizeBytes: int, now: float, inFlight: int = 1, poolAvailableBytes: int = 0
    ) -> None:
        """
        Its length has been read.
        """
        self.connection = connection
        self.sizeBytes = sizeBytes
        self.inFlight = inFlight
        self.poolAvailableBytes = poolAvailableBytes
        self.arrived = now
        self.asked: float | None = None
        self.granted: float | None = None
        self.complete: float | None = None
        self.begun: float | None = None
        self.released: float | None = None
        self.parked: float | None = None
        self.resumed: float | None = None
        self.answered: float | None = None
        self.ended: float | None = None
        self.lease: ILease | None = None
        self.kind: str | None = None
        self.principal: str | None = None
        self.clientId: str | None = None
        self.view: Request | None = None
        self.refusal: Refusal | None = None
        self.decision: Decision = ADMITTED
        self.charge: tuple[float, ...] | None = None
        self.policy: str | None = None
        self.decided: float | None = None
        self.isCounted: bool | None = None
        self.isKnown: bool | None = None
        self.begunPolicies: Any = ()
        self.responseBytes = 0
        self.serviceSeconds: float | None = None
        self.delaySeconds = 0.0
        self.rejectReason: str | None = None
        self.expireReason: str | None = None
        self.isWorkedOn = False

    @property
    def frame(self) -> memoryview:
        """
        Its bytes.

        @raise RuntimeError: if its memory has been released, or is not all there yet.
        """
        buffer = None if self.lease is None else self.lease.buffer
        if buffer is None:
            raise RuntimeError(f"{self!r} has no memory")
        return buffer

    def begin(self, now: float) -> None:
        """
        The work on it begins, or begins again after L{postpone}.
        """
        self.begun = now
        self.isWorkedOn = True

    def postpone(self) -> None:
        """
        It has to wait, whole, until those before it are answered.
        """
        self.begun = None
        self.isWorkedOn = False

    def release(self, now: float) -> None:
        """
        Give back its memory; no effect if that has been done.
        """
        lease = self.lease
        if lease is not None:
            self.lease = None
            self.released = now
            lease.release()

    def park(self, now: float) -> None:
        """
        It waits, and nobody works on it; its memory is given back.
        """
        assert self.parked is None, f"{self!r} is parked twice"
        if self.lease is not None:
            self.release(now)
        self.parked = now
        self.isWorkedOn = False

    def resume(self, now: float) -> None:
        """
        It waits no longer, and the work on it goes on.
        """
        assert self.resumed is None, f"{self!r} is resumed twice"
        self.resumed = now
        self.isWorkedOn = True

    def reject(self, reason: str) -> None:
        """
        Nothing of it is done.
        """
        self.rejectReason = reason

    def expire(self, reason: str) -> None:
        """
        It was answered too late, or its answer does not reach the client.
        """
        self.expireReason = reason

    def answer(self, now: float, delaySeconds: float = 0.0) -> None:
        """
        Its answer is on its way.

        @param delaySeconds: the delay that the client is told.
        """
        assert self.answered is None, f"{self!r} is answered twice"
        self.answered = now
        self.delaySeconds = delaySeconds

    def end(self, now: float) -> None:
        """
        It is over.
        """
        assert self.ended is None, f"{self!r} is over twice"
        self.isWorkedOn = False
        if self.lease is not None:
            self.release(now)
        self.ended = now

    def parkedSeconds(self, now: float) -> float:
        """
        For how long it has been parked by C{now}.
        """
        if self.parked is None:
            return 0.0
        return (now if self.resumed is None else self.resumed) - self.parked

    def workedSeconds(self, now: float) -> float:
        """
        For how long it has been worked on by C{now}, which includes the time in
        which the reactor did other things in between, but not when it was parked.
        """
        return 0.0 if self.begun is None else now - self.begun - self.parkedSeconds(now)

    def outcome(self, now: float) -> Outcome:
        """
        How it ends, or has gone so far, for policies.
        """
        isAnswered = self.expireReason is None and self.rejectReason is None
        serviceSeconds = self.workedSeconds(now) if self.serviceSeconds is None else self.serviceSeconds
        return Outcome(isAnswered, serviceSeconds, self.parkedSeconds(now))

    def __repr__(self) -> str:
        state = "over" if self.ended is not None else "parked" if self.parked is not None else "under way"
        return f"<{type(self).__name__} {self.kind or 'unknown'} of {self.sizeBytes} bytes, {state}>"

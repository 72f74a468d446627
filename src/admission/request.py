# -*- test-case-name: tests.unit.test_request -*-
"""
One request on its way through a server, from its length to its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .interfaces import ADMITTED, ORDINARY, Decision, ILease, Outcome, Refusal, Request, Traits

HUNG_UP = "the client hung up"


class ServerRequest:
    """
    A request, and its history so far.

    The code that works on it calls its methods with the time, in seconds of the
    server's monotonic clock.  A moment that has not come is L{None}.  The memory
    is released, and the request parked, resumed and answered, once each.  It
    ends once, and nothing of it changes afterwards.

    @ivar connection: the connection that it came by.
    @ivar sizeBytes: its size on the wire, without the length prefix.
    @ivar inFlight: how many requests of its connection were in progress when it
        arrived, including this one.
    @ivar poolAvailableBytes: the free bytes of the memory pool at that moment.
    @ivar lease: its memory, from when the whole request is there until it is released.
    @ivar arrived: when its length was read.
    @ivar asked: when memory was asked for.
    @ivar granted: when it was granted.
    @ivar complete: when the whole request was there.
    @ivar begun: when the work on it began; later if it was postponed.
    @ivar admitted: when the policies that had admitted it were told that the work on it begins.
    @ivar released: when its memory was given back.
    @ivar parked: when it began to wait for an event.
    @ivar resumed: when that wait ended, and the work went on.
    @ivar answered: when its answer was handed over.
    @ivar ended: when it was over.
    @ivar kind: the operation, in the protocol's words; L{None} if that was
        never known.
    @ivar traits: what that means to policies.
    @ivar principal: the client, as the server authenticated it; L{None} if the
        request ended before that mattered.
    @ivar clientId: what the client calls itself, if it does.
    @ivar identities: other identities that it carries, see L{Request}.
    @ivar view: the policies' view of it; L{None} if no policy was asked.
    @ivar refusal: how policies could refuse it; L{None} if it ended before that
        mattered.
    @ivar refusedBy: the policies that refused it, shadow policies included.
    @ivar decision: the decision of the policies.
    @ivar charge: the delay that each policy asked for when it was refused or charged, none if nobody had a limit then;
        L{None} if it was neither.
    @ivar policy: the policy that refused it or throttles its client.
    @ivar decided: the time that was passed to the policies, the last time.
    @ivar lagSeconds: how late it was when policies were asked about it, see L{Request}; L{None} if they never were.
    @ivar isCounted: whether they counted its usage; L{None} if they were not
        told.
    @ivar isKnown: whether its first identity was known before; L{None} if
        no policy can tell.
    @ivar begunPolicies: which policies were told that it began.
    @ivar responseBytes: the size of its answer.
    @ivar serviceSeconds: how long it was worked on, if that was measured.
    @ivar delaySeconds: the delay that its client is told.
    @ivar rejectReason: why it was refused, if it was.
    @ivar expireReason: why it was given up or answered too late, if it was.
    @ivar isWorkedOn: whether it is being worked on at this moment, and will end
        whatever happens.
    @ivar step: the L{Deferred <twisted.internet.defer.Deferred>} that it waits for; L{cancel} cancels it.
    """

    # In slots, and all set at once: with so many attributes a dictionary would take longer.  A request that keeps its
    # moments costs the smallest Produce, pipelined, two microseconds of thirty (benchmarks.broker), and others nothing
    # that can be told from noise; for that nothing that serves asks whether it is recorded.
    __slots__ = (
        "admitted",
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
        "identities",
        "inFlight",
        "isCounted",
        "isKnown",
        "isWorkedOn",
        "kind",
        "lagSeconds",
        "lease",
        "parked",
        "policy",
        "poolAvailableBytes",
        "principal",
        "refusal",
        "refusedBy",
        "rejectReason",
        "released",
        "responseBytes",
        "resumed",
        "serviceSeconds",
        "sizeBytes",
        "step",
        "traits",
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
        self.admitted: float | None = None
        self.released: float | None = None
        self.parked: float | None = None
        self.resumed: float | None = None
        self.answered: float | None = None
        self.ended: float | None = None
        self.lease: ILease | None = None
        self.kind: str | None = None
        self.traits: Traits = ORDINARY
        self.principal: str | None = None
        self.clientId: str | None = None
        self.identities: Sequence[int] = ()
        self.view: Request | None = None
        self.refusal: Refusal | None = None
        self.refusedBy: list[str] = []
        self.decision: Decision = ADMITTED
        self.charge: tuple[float, ...] | None = None
        self.policy: str | None = None
        self.decided: float | None = None
        self.lagSeconds: float | None = None
        self.isCounted: bool | None = None
        self.isKnown: bool | None = None
        self.begunPolicies: Any = ()
        self.responseBytes = 0
        self.serviceSeconds: float | None = None
        self.delaySeconds = 0.0
        self.rejectReason: str | None = None
        self.expireReason: str | None = None
        self.isWorkedOn = False
        self.step: Any = None

    @property
    def frame(self) -> memoryview:
        """
        The bytes of the request.

        @raise RuntimeError: if its memory has been released, or is not all there yet.
        """
        buffer = None if self.lease is None else self.lease.buffer
        if buffer is None:
            raise RuntimeError(f"{self!r} has no memory")
        return buffer

    def begin(self, now: float) -> None:
        """
        Start the work, for the first time or after L{postpone}.
        """
        self.begun = now
        self.isWorkedOn = True

    def postpone(self) -> None:
        """
        Let it wait, whole, until the requests before it are answered.
        """
        self.begun = None
        self.isWorkedOn = False

    def release(self, now: float) -> None:
        """
        Release its memory; no effect if it has been released.
        """
        lease = self.lease
        if lease is not None:
            self.lease = None
            self.released = now
            lease.release()

    def park(self, now: float) -> None:
        """
        Let it wait for an event; its memory is released.
        """
        assert self.parked is None, f"{self!r} is parked twice"
        if self.lease is not None:
            self.release(now)
        self.parked = now
        self.isWorkedOn = False

    def resume(self, now: float) -> None:
        """
        Go on with the work after L{park}.
        """
        assert self.resumed is None, f"{self!r} is resumed twice"
        self.resumed = now
        self.isWorkedOn = True

    def cancel(self) -> None:
        """
        Nobody wants its answer any more: cancel what it waits for, once.
        """
        step, self.step = self.step, None
        if step is not None:
            step.cancel()

    def reject(self, reason: str) -> None:
        """
        Refuse it: it has no effect.
        """
        self.rejectReason = reason

    def expire(self, reason: str) -> None:
        """
        Say that it was answered too late, or that its answer does not reach the
        client.
        """
        self.expireReason = reason

    def answer(self, now: float, delaySeconds: float = 0.0) -> None:
        """
        Say that its answer is on its way.

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
        How long it has been parked by C{now}.
        """
        if self.parked is None:
            return 0.0
        return (now if self.resumed is None else self.resumed) - self.parked

    def workedSeconds(self, now: float) -> float:
        """
        How long it has been worked on by C{now}.  This includes what the reactor
        did in between, but not the time when it was parked.
        """
        if self.begun is None:
            return 0.0
        return now - self.begun - (0.0 if self.parked is None else self.parkedSeconds(now))

    def outcome(self, now: float) -> Outcome:
        """
        The outcome, as policies are told it; so far, if it has not ended.
        """
        isAnswered = self.expireReason is None and self.rejectReason is None
        serviceSeconds = self.workedSeconds(now) if self.serviceSeconds is None else self.serviceSeconds
        return Outcome(isAnswered, serviceSeconds, self.parkedSeconds(now))

    def __repr__(self) -> str:
        state = "over" if self.ended is not None else "parked" if self.parked is not None else "under way"
        return f"<{type(self).__name__} {self.kind or 'unknown'} of {self.sizeBytes} bytes, {state}>"

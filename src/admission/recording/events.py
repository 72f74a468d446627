# -*- test-case-name: tests.unit.recording.test_events -*-
"""
What happens to requests, connections and limits, in plain values.

Which columns these become is said in L{admission.recording.schema}; drivers of a
protocol add to both.  Moments are
seconds of the server's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, frozen

ADMIT = "admit"
"""A decision: the request was served at once."""

THROTTLE = "throttle"
"""It was served, and the client is throttled."""

REJECT = "reject"
"""It was refused, and nothing of it done."""

MUTE = "mute"
"""It was served, after its connection had to wait for memory."""

EXPIRE = "expire"
"""It was given up: its client has left, or its time ran out."""

OPENED = "opened"
CLOSED = "closed"

GAUGE = "gauge"
COUNTER = "counter"

UNKNOWN_SECONDS = float("nan")
"""A moment or a time that is not known, or that there was not."""

UNKNOWN = -1
"""The same for an identity or a flag."""


@frozen
class Origin:
    """
    What is the same for all events of a process.

    @ivar brokerId: the broker's number, in words.
    @ivar bootId: this run of it; no two are the same.
    @ivar gateSeed: what the gate's random order comes from, or L{UNKNOWN}; it
        has 63 bits at most.
    @ivar policyNames: the quota policies, in the order of
        C{RequestEvent.policyDelaysSeconds}.
    @ivar policyDescriptions: the description string that each was built from.
    @ivar quotaWindows: see L{admission.interfaces.PolicyContext}, as for
        C{quotaWindowSeconds}.
    @ivar largestDelaySeconds: the longest delay that anybody is given at a time.
    @ivar poolDescription: what the memory pool was built from.
    """

    brokerId: str
    bootId: str
    gateSeed: int = UNKNOWN
    policyNames: Sequence[str] = ()
    policyDescriptions: Sequence[str] = ()
    quotaWindows: int = UNKNOWN
    quotaWindowSeconds: float = UNKNOWN_SECONDS
    largestDelaySeconds: float = UNKNOWN_SECONDS
    poolDescription: str | None = None

    def __attrs_post_init__(self) -> None:
        if not UNKNOWN <= self.gateSeed < 2**63:
            raise ValueError(f"a gate's seed has 63 bits at most, so it cannot be {self.gateSeed}")


@define(eq=False)
class RequestEvent:
    """
    One request, from its arrival until its response was sent.  Made when the
    request arrives, filled in along its way, and then handed to
    L{admission.recording.recorder.EventRecorder.requestAnswered}.

    @ivar connectionId: which connection it came on.
    @ivar arrivedSeconds: when its length had been read.
    @ivar listener: the port that it came by, as the operator describes it.
    @ivar peer: the client's address without its port.
    @ivar principal: who asked.
    @ivar clientId: what the client calls itself.
    @ivar kind: what was asked for, in words: C{"Produce"}.
    @ivar requestBytes: its size, without the length prefix.
    @ivar responseBytes: the size of what was sent in answer; 0 for nothing.
    @ivar inFlight: how many requests of its connection were being worked on,
        this one included.
    @ivar decision: what became of it: L{ADMIT}, L{THROTTLE}, L{REJECT},
        L{MUTE} or L{EXPIRE}.
    @ivar reason: why, in words, unless it was admitted; best always the same
        ones, since there is room for a few thousand.
    @ivar policy: which policy decided that.
    @ivar policyDelaysSeconds: the delay that each policy asked for, shadow
        policies included, in the order of C{Origin.policyNames}; empty if none
        was asked.  The first six are recorded.
    @ivar decidedSeconds: when the policies were told of its usage.
    @ivar isCounted: whether that was what it took, and not nothing.
    @ivar throttleTimeMs: what the client was told, in milliseconds.
    @ivar poolWaitSeconds: how long it waited for memory.
    @ivar queueSeconds: how long it waited, whole, for its turn.
    @ivar serviceSeconds: how long it was worked on.
    @ivar purgatoryWaitSeconds: how long it was parked.
    @ivar poolHoldSeconds: for how long it had its memory.
    @ivar sentSeconds: when its response was sent; the recorder's time if it is
        not known.  What follows on the connection is the client's thinking.
    @ivar poolUsedBytes: how much of the pool was taken when it arrived.
    @ivar poolAvailableBytes: how much was left; may be negative.
    @ivar identities: other identities that it carries, such as producer ids.  The
        first four are recorded, and how many there are.
    @ivar bloomSeen: whether the first of them was known already.
    @ivar refusal: how it could be refused, as
        L{admission.interfaces.Refusal} says; L{None} if no policy was asked.
    @ivar seq: which event of the process it is.  The recorder says; a number
        that is missing in what was recorded stands for an event that was dropped.
    """

    connectionId: int
    arrivedSeconds: float
    listener: str | None = None
    peer: str | None = None
    principal: str | None = None
    clientId: str | None = None
    kind: str | None = None
    requestBytes: int = 0
    responseBytes: int = 0
    inFlight: int = 1
    decision: str = ADMIT
    reason: str | None = None
    policy: str | None = None
    policyDelaysSeconds: Sequence[float] = ()
    decidedSeconds: float = UNKNOWN_SECONDS
    isCounted: int = UNKNOWN
    throttleTimeMs: int = 0
    poolWaitSeconds: float = 0.0
    queueSeconds: float = 0.0
    serviceSeconds: float = 0.0
    purgatoryWaitSeconds: float = 0.0
    poolHoldSeconds: float = 0.0
    sentSeconds: float = UNKNOWN_SECONDS
    poolUsedBytes: int = 0
    poolAvailableBytes: int = 0
    identities: Sequence[int] = ()
    bloomSeen: int = UNKNOWN
    refusal: str | None = None
    seq: int = 0

    @property
    def firstIdentity(self) -> int:
        return self.identities[0] if self.identities else UNKNOWN

    @property
    def identityCount(self) -> int:
        return len(self.identities)


@define(eq=False)
class ConnectionEvent:
    """
    A connection was opened or closed.

    @ivar connectionId: which one.
    @ivar atSeconds: when.
    @ivar state: L{OPENED} or L{CLOSED}.
    @ivar listener: the port, as the operator describes it.
    @ivar peer: the client's address without its port.
    @ivar principal: who the client is, as far as that is known by then.
    @ivar reason: why it was closed, in words.
    @ivar requestCount: how many requests came on it.
    @ivar openSeconds: for how long it was open.
    @ivar seq: see L{RequestEvent}.
    """

    connectionId: int
    atSeconds: float
    state: str
    listener: str | None = None
    peer: str | None = None
    principal: str | None = None
    reason: str | None = None
    requestCount: int = 0
    openSeconds: float = UNKNOWN_SECONDS
    seq: int = 0


@define(eq=False)
class LimitEvent:
    """
    A limit was set or removed.

    @ivar atSeconds: when.
    @ivar user: whom it is for, as in L{admission.interfaces.QuotaEntity}, like
        C{clientId} and C{ip}.
    @ivar limitName: which limit.
    @ivar value: in the limit's unit; not a number if it was removed.
    @ivar changedBy: who did; L{None} for the configuration.
    @ivar seq: see L{RequestEvent}.
    """

    atSeconds: float
    user: str | None
    clientId: str | None
    ip: str | None
    limitName: str
    value: float
    changedBy: str | None = None
    seq: int = 0


@define(eq=False)
class SensorSample:
    """
    What a sensor said.

    @ivar atSeconds: when.
    @ivar sensor: its name.
    @ivar kind: L{GAUGE} or L{COUNTER}.
    @ivar value: what it said.
    @ivar entity: which of several of that name: C{"client_id=a,user=b"}.
    @ivar seq: see L{RequestEvent}.
    """

    atSeconds: float
    sensor: str
    kind: str
    value: float
    entity: str | None = None
    seq: int = 0


Event = RequestEvent | ConnectionEvent | LimitEvent | SensorSample

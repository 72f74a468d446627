# -*- test-case-name: tests.unit.recording.test_events -*-
"""
Events of requests, connections and limits, in plain values.

L{admission.recording.schema} says which columns they become; drivers of a protocol add to both.  Moments are seconds of
the server's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, frozen

ADMIT = "admit"
"""A decision: the request was served at once."""

THROTTLE = "throttle"
"""It was served, and the client is throttled."""

REJECT = "reject"
"""It was refused, and had no effect."""

MUTE = "mute"
"""It was served, after its connection had to wait for memory."""

EXPIRE = "expire"
"""It was abandoned: its client has left, or its time ran out."""

OPENED = "opened"
CLOSED = "closed"

KEPT = "kept by "
"""
What the name of a limit begins with that is none, but a number that a policy kept over a restart: the policy's name
follows, and the key is in the place of the user.
"""

GAUGE = "gauge"
COUNTER = "counter"

UNKNOWN_SECONDS = float("nan")
"""A moment or a duration that is unknown, or does not exist."""

UNKNOWN = -1
"""The same for an identity or a flag."""

MAX_COUNT = 2**16 - 1
"""What is recorded of a count of that many or more."""


@frozen
class Origin:
    """
    The part that all events of a process share.

    @ivar serverId: the number of the server among those that record together, as text.
    @ivar bootId: this run of it; unique.
    @ivar gateSeed: the seed of the gate's random order, or L{UNKNOWN}; it has 63 bits at most.
    @ivar policyNames: the quota policies, in the order of C{RequestEvent.policyDelaysSeconds}.
    @ivar policyDescriptions: the description string that each was built from.
    @ivar quotaWindows: see L{admission.interfaces.PolicyContext}, as for C{quotaWindowSeconds}.
    @ivar largestDelaySeconds: the longest delay that is imposed at a time.
    @ivar poolDescription: the description that the memory pool was built from.
    @ivar limitShare: how much of each limit the policies enforce, where several servers enforce it together.
    """

    serverId: str
    bootId: str
    gateSeed: int = UNKNOWN
    policyNames: Sequence[str] = ()
    policyDescriptions: Sequence[str] = ()
    quotaWindows: int = UNKNOWN
    quotaWindowSeconds: float = UNKNOWN_SECONDS
    largestDelaySeconds: float = UNKNOWN_SECONDS
    poolDescription: str | None = None
    limitShare: float = 1.0

    def __attrs_post_init__(self) -> None:
        if not UNKNOWN <= self.gateSeed < 2**63:
            raise ValueError(f"a gate's seed has 63 bits at most, so it cannot be {self.gateSeed}")


@define(eq=False)
class RequestEvent:
    """
    One request, from its arrival until its response was sent.  Made when the
    request arrives, filled in along its way, and then handed to
    L{admission.recording.recorder.EventRecorder.requestAnswered}.

    @ivar connectionId: the connection that it came on.
    @ivar arrivedSeconds: when its length had been read.
    @ivar listener: the port that it came by, as the operator describes it.
    @ivar peer: the client's address without its port.
    @ivar principal: the client's principal.
    @ivar clientId: the client id, as the client gave it.
    @ivar kind: the kind of request, as text: C{"Produce"}.
    @ivar requestBytes: its size, without the length prefix.
    @ivar responseBytes: the size of its response; 0 without one.
    @ivar inFlight: how many requests of its connection were in flight, including this one; L{MAX_COUNT} or more are
        one number.
    @ivar decision: its outcome: L{ADMIT}, L{THROTTLE}, L{REJECT}, L{MUTE} or L{EXPIRE}.
    @ivar reason: why, as text, unless it was admitted; keep to a few texts, since there is room for a few thousand.
    @ivar policy: the policy that decided this.
    @ivar policyDelaysSeconds: the delay that each policy asked for, shadow
        policies included, in the order of C{Origin.policyNames}; empty if none
        was asked.  The first six are recorded.
    @ivar decidedSeconds: when the policies were charged for its usage.
    @ivar isCounted: whether they were charged for its real usage, and not for none.
    @ivar throttleTimeMs: the throttle time sent to the client, in milliseconds.
    @ivar poolWaitSeconds: how long it waited for memory.
    @ivar queueSeconds: how long it waited for its turn after it had been read.
    @ivar serviceSeconds: its service time.
    @ivar purgatoryWaitSeconds: how long it was parked.
    @ivar poolHoldSeconds: for how long it held its memory.
    @ivar sentSeconds: when its response was sent; the recorder's time if it is not known. What follows on the
        connection is the client's think time.
    @ivar poolUsedBytes: how much of the pool was allocated when it arrived.
    @ivar poolAvailableBytes: how much was available; may be negative.
    @ivar lagSeconds: how late it was when policies were asked about it, see L{admission.interfaces.Request}.
    @ivar begunSeconds: how long after it had arrived the policies that admitted it were told that the work on it
        begins.
    @ivar identities: other identities that it carries, such as producer ids. The first four are recorded, and their
        number.
    @ivar isKnown: whether the first of them was known already.
    @ivar refusal: how it could be refused, as
        L{admission.interfaces.Refusal} says; L{None} if no policy was asked.
    @ivar traits: what its kind means to policies, as L{admission.interfaces.Traits.code} says.
    @ivar seq: the number of the event in the process, set by the recorder; a number missing from the recording stands
        for a dropped event.
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
    lagSeconds: float = UNKNOWN_SECONDS
    begunSeconds: float = UNKNOWN_SECONDS
    identities: Sequence[int] = ()
    isKnown: int = UNKNOWN
    refusal: str | None = None
    traits: int = UNKNOWN
    seq: int = 0

    @property
    def firstIdentity(self) -> int:
        return self.identities[0] if self.identities else UNKNOWN

    @property
    def identityCount(self) -> int:
        return min(len(self.identities), MAX_COUNT)


@define(eq=False)
class ConnectionEvent:
    """
    A connection was opened or closed.

    @ivar connectionId: the connection.
    @ivar atSeconds: when.
    @ivar state: L{OPENED} or L{CLOSED}.
    @ivar listener: the port, as the operator describes it.
    @ivar peer: the client's address without its port.
    @ivar principal: the client's principal, if known by then.
    @ivar reason: why it was closed, as text.
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
    @ivar user: its entity, as in L{admission.interfaces.QuotaEntity}, like C{clientId} and C{ip}.
    @ivar limitName: the name of the limit.
    @ivar value: in the limit's unit; not a number if it was removed.
    @ivar changedBy: the user who did it; L{None} for the configuration.
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
    The value of a sensor.

    @ivar atSeconds: when.
    @ivar sensor: its name.
    @ivar kind: L{GAUGE} or L{COUNTER}.
    @ivar value: its value.
    @ivar entity: which of several sensors of that name: C{"client_id=a,user=b"}.
    @ivar seq: see L{RequestEvent}.
    """

    atSeconds: float
    sensor: str
    kind: str
    value: float
    entity: str | None = None
    seq: int = 0


Event = RequestEvent | ConnectionEvent | LimitEvent | SensorSample

# -*- test-case-name: tests.unit.test_interfaces -*-
"""
The contracts of the framework: what a policy must offer, and who calls it when.

This module is imported by every Twisted command of an environment that has
us installed (the plug-in cache names its interfaces), so it imports nothing
heavy and never touches the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import field, frozen
from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IReactorTime

FRAMES = "frames"
"""Purpose of a lease that holds a request's bytes as they arrived."""

PARKED = "parked"
"""Purpose of a charge for work that waits in a purgatory."""

RESPONSES = "responses"
"""Purpose of a charge for responses that the kernel has not taken yet."""

CONNECTIONS = "connections"
"""Purpose of a charge for what a connection costs by being open."""


class IHistogram(Interface):
    """
    A distribution of values; L{admission.metrics.histogram.Histogram} is one.
    """

    bounds: Sequence[float] = Attribute("The upper bounds of its ranges, ascending; the last range has none.")
    counts: list[int] = Attribute("How many values fell into each range.")
    total: float = Attribute("The sum of all values.")
    count: int = Attribute("How many values there were.")

    def record(value: float) -> None:
        """
        Count C{value}.
        """

    def quantile(share: float) -> float:
        """
        No less than the value at C{share} (0.99 for the 99th percentile), and at
        most one range more.
        """


class ISensorRegistry(Interface):
    """
    Where sensors are published, by names that occur once.  What reads a sensor
    is told what time it is, in seconds of the server's monotonic clock.

    L{admission.metrics.registry.SensorRegistry} is the one that servers have.
    """

    def addGauge(name: str, read: Callable[[float], float]) -> None:
        """
        Publish what C{read} returns.

        @raise ValueError: if there is a sensor of that name, as for all others.
        """

    def addCounter(name: str, read: Callable[[float], int]) -> None:
        """
        Publish a count that only grows.
        """

    def addHistogram(name: str, histogram: IHistogram) -> None:
        """
        Publish a distribution.
        """

    def addFamily(
        name: str,
        labelNames: Sequence[str],
        read: Callable[[float], Iterable[tuple[Sequence[str], float]]],
        isCounter: bool = False,
    ) -> None:
        """
        Publish sensors that differ by their labels only, as one for each client.

        @param read: yields the values of the labels and the value of the sensor,
            for each there is now.  It bounds how many.  Where there are hundreds
            they may be read over several turns of the reactor, so it copies what
            may change meanwhile.
        """


class ILease(Interface):
    """
    Bytes taken from a pool, to be given back exactly once.

    A lease that is dropped without having been given back is reclaimed by its
    pool and reported as a bug.
    """

    buffer: memoryview | None = Attribute(
        "Writable memory of exactly C{sizeBytes} bytes, or L{None} for a charge and after L{release}."
    )
    sizeBytes: int = Attribute("How many bytes the lease counts for.")
    purpose: str = Attribute("What they are for: one of the purposes of this module, or another word.")

    def release() -> None:
        """
        Give the bytes back.  May call the listeners of the pool, which only
        take note (see L{IMemoryPool.subscribe}).

        @raise RuntimeError: if the lease has been released before.
        """


class IWaiter(Interface):
    """
    Who waits for memory or for its turn: a connection.  It is hashable, and
    equal to itself only.
    """

    holder: str = Attribute(
        "Who it is, as in L{IMemoryPool.tryAllocate}: the principal, or else the address; empty if nobody knows.  May "
        "change while it waits."
    )
    wantedBytes: int = Attribute("How much memory it waits for, in bytes, while it waits for memory.")

    def leaseGranted(lease: ILease) -> None:
        """
        Here is the memory for C{wantedBytes}; the waiter's to release.  Called
        by the gate only, like L{turnGranted}.
        """

    def turnGranted() -> None:
        """
        The request that waits may be worked on.
        """


class IMemoryPool(Interface):
    """
    A bounded stock of bytes for requests that are not finished yet.

    Nothing here waits.  A caller that is refused mutes its connection; the
    gate asks again on its behalf after a release.  All methods are for the
    reactor's thread.
    """

    sizeBytes: int = Attribute("The configured bound, in bytes; positive.")
    largestBytes: int = Attribute("The largest single allocation, in bytes; at most C{sizeBytes}.")
    availableBytes: int = Attribute(
        "Bytes not taken.  Negative when the last request took more than was left, or when charges outgrew the pool."
    )
    usedBytesByPurpose: Mapping[str, int] = Attribute(
        "The ledger: for each purpose, how many bytes are taken.  A live view; do not change it."
    )
    idleBytes: int = Attribute("Memory kept for reuse, in bytes; not counted as taken, but resident.")

    def isOutOfMemory() -> bool:
        """
        Whether C{availableBytes} is zero or less.
        """

    def tryAllocate(sizeBytes: int, holder: str = "") -> ILease | None:
        """
        Take C{sizeBytes} bytes for a request that is about to be read.

        When charges alone have drained the pool and no request holds a lease,
        one request is let through all the same: only finishing requests can
        release the charges.

        @param sizeBytes: from 1 to C{largestBytes}.
        @param holder: who asks, as far as that is known before the request is
            read: the principal, or else the address; empty if nobody knows.
            A pool may share its memory out by it.  Who is refused waits at the
            gate, which asks for one waiter at a time, and after a refusal not
            again before the next release: a pool that would have granted
            others slows them down, too.
        @return: a lease with a buffer and the purpose L{FRAMES}, or L{None}
            when there is no memory.  Never waits.
        @raise ValueError: if C{sizeBytes} is out of range, whatever is available.
        """

    def charge(sizeBytes: int, purpose: str) -> ILease:
        """
        Count memory that exists already: decoded objects, unsent responses,
        what a connection costs.  Never refused; C{availableBytes} may go below
        zero.

        @param sizeBytes: zero or more.
        @param purpose: what it is for; the key in C{usedBytesByPurpose}.
        @return: a lease without a buffer.
        @raise ValueError: if C{sizeBytes} is negative.
        """

    def subscribe(listener: Callable[[], None]) -> None:
        """
        Have C{listener} called at each release.

        It is called inside the release, so it must only take note and act in
        a turn of its own: whoever releases may be in the middle of anything.
        What it raises is logged and keeps nobody else from being called.
        """

    def addSensors(registry: ISensorRegistry, name: str) -> None:
        """
        Publish what only the pool knows, such as for how long it has refused
        requests.  What is available and what is used the gate publishes
        itself, as C{nameAvailable} and C{nameUsed}.

        @param registry: an L{admission.metrics.registry.SensorRegistry}.
        @param name: what the names of the sensors begin with: C{MemoryPool}.
        @raise ValueError: if there are sensors of these names.
        """


class IWaitOrder(Interface):
    """
    In which order waiters are served: which connections are read next.  The
    gate has two of these, one for those who wait for memory and one for those
    whose requests wait to be worked on.

    Nobody may wait for ever while others are served: how many are served before
    a waiter must not depend on who joins after it without a bound.  The default
    is random, in rounds: who joins during a round is served in the next one.

    All methods are for the reactor's thread, and should take little time: they
    are called when the server is short of something.
    """

    def add(waiter: IWaiter) -> None:
        """
        C{waiter} waits from now on; no effect for who does already.
        """

    def discard(waiter: IWaiter) -> None:
        """
        C{waiter} has been served or is gone; no effect for who does not wait.
        """

    def next() -> IWaiter:
        """
        Who is to be served next.  It still waits, until it is discarded: there
        may not be enough for it yet.  Asked again, the order may have changed
        its mind.

        @raise LookupError: if nobody waits.
        """


class ITransportMutability(Interface):
    """
    Whether and how reading from a transport can be stopped: an adapter,
    registered for L{twisted.internet.interfaces.ITransport} and
    L{twisted.internet.interfaces.ISSLTransport}.

    Only L{admission.connection.pauses.Pauses} calls this.
    """

    def isInMutableState() -> bool:
        """
        Whether reading may be stopped now.  A TLS transport in its handshake
        may not: it would never finish, and nothing would time out.
        """

    def hasBytesBuffered() -> bool:
        """
        Whether the transport itself holds whole messages that no event of the
        socket will announce.  Asked before a transport is resumed, and when a
        peer has hung up.  With Twisted's transports the overshoot lies with the
        protocol that frames it, so the default adapters say no.
        """

    def readBuffered() -> None:
        """
        Deliver the next of these messages through the protocol's
        C{dataReceived}; it stays muted.  Called while L{hasBytesBuffered} says
        yes and nobody has a reason not to read, in a turn of the reactor of its
        own, until there is no more, and only then is the transport resumed.

        More than one message may be delivered; but the protocol may pause, close
        or abort from within each, so better not.  What has not been delivered
        stays, in order, before anything that is read later.  What this raises is
        logged, and closes the connection at once.
        """

    def mute() -> None:
        """
        Stop reading.  A TLS transport may deliver what it has decrypted so
        far afterwards.
        """

    def unmute() -> None:
        """
        Read again.
        """


class ITransportAdapters(Interface):
    """
    A plug-in that registers L{ITransportMutability} adapters.
    """

    name: str = Attribute("What to call it in messages.")

    def register() -> None:
        """
        Register the adapters.  Called once in a process, before the first
        transport is muted.
        """


class IDelayedOperation(Interface):
    """
    Work that waits for a condition or for its time to run out.  It can be
    hashed, and equals nothing but itself.

    L{admission.operations.DelayedOperation} is what to derive from.  A
    purgatory relies on nothing but what is said here, and is the only one to
    set C{watcher}.

    An operation lends its C{watcher} four places, for whatever that has to
    know of it: C{parking}, and C{dueSeconds}, C{previousEntry} and
    C{nextEntry}, by which a timer can hold the operation itself.  They mean
    nothing to anybody else, and nothing to the next purgatory.  They are here
    because an object of the purgatory's own for each operation that waits
    makes parking and completing 3 % slower and takes an eighth more memory
    (C{benchmarks.purgatory}).
    """

    delaySeconds: float = Attribute(
        "How long the operation may wait, in seconds; zero and less mean to the next turn of the reactor.  To be left "
        "alone while it waits."
    )
    completed: bool = Attribute("Whether the operation is over, either way.")
    watcher: IPurgatory | None = Attribute(
        "The purgatory that the operation waits in; L{None} while it waits in none.  The purgatory sets it as it "
        "begins to watch, and clears it in L{IPurgatory.leave}."
    )
    parking: Any = Attribute("Lent to C{watcher}; L{None} while the operation waits nowhere.")
    dueSeconds: float = Attribute("Lent to C{watcher}: when to expire, on a clock of its own.")
    previousEntry: Any = Attribute("Lent to C{watcher}: a link of whatever list it has.")
    nextEntry: Any = Attribute("Lent to C{watcher}, like C{previousEntry}.")

    def tryComplete() -> bool:
        """
        Check the condition; if it holds, return what L{forceComplete} returns,
        else L{False}.  A purgatory calls it whenever something may have
        changed, so it should be quick, and change nothing unless it completes.
        """

    def forceComplete() -> bool:
        """
        Complete now.  The first caller gets L{True} and has run L{onComplete};
        all others get L{False}.  Before L{onComplete} runs, C{completed} is
        L{True} and C{watcher}, if there is one, was told by
        L{IPurgatory.leave}.

        @raise Exception: whatever L{onComplete} raises.
        """

    def cancel() -> bool:
        """
        Leave the purgatory without completing, by L{IPurgatory.leave}, and run
        L{onCancel}.

        @return: whether the operation was in one.
        """

    def expire() -> None:
        """
        The time is up; only C{watcher} calls it, or its timer does, and once
        for each time that it was parked: complete, then run L{onExpiration}.  An
        operation that has more time after all may cancel itself instead, and
        park again; either way it has left when this returns.

        @raise Exception: whatever L{onComplete} and L{onExpiration} raise.
        """

    def onComplete() -> None:
        """
        Finish the work.  Runs exactly once, on time or on expiry.  May do
        anything to any purgatory, like the other two below.
        """

    def onExpiration() -> None:
        """
        The time ran out; called after L{onComplete}, and never for an
        operation that completed in time.
        """

    def onCancel() -> None:
        """
        The operation was taken out by L{IPurgatory.cancelForKey}, by
        L{IPurgatory.shutdown} or by L{cancel}: it has not completed and will
        not expire.  It may be parked again.
        """


class IPurgatory(Interface):
    """
    Where requests wait that cannot be answered yet.

    An operation that is over, however that came about, has left the purgatory
    with all its keys and its timeout before anything else happens: nothing
    stale is ever watched.  All methods are for the reactor's thread, and all may
    be called from within the methods of an operation.  What an operation raises
    is logged and hurts no other; only L{tryCompleteElseWatch} lets it through,
    to whoever wanted to park that operation.
    """

    watched: int = Attribute("How many operations are watched under at least one key.")
    delayed: int = Attribute("How many operations wait for their timeout.")
    expirations: int = Attribute(
        "How many operations ran out of time: those that L{IDelayedOperation.expire} has completed."
    )
    waits: IHistogram = Attribute("For how many seconds operations have waited, however it ended.")

    def tryCompleteElseWatch(operation: IDelayedOperation, keys: Collection[Hashable]) -> bool:
        """
        Complete C{operation} if its condition holds; else watch it under all
        C{keys}, start its timeout, and check once more.  One that is over
        already, or after the first check, is not watched.

        After L{shutdown} an operation that cannot complete at once has its
        C{onCancel} called at once.

        @param keys: what may complete it; at least one, and what comes twice
            counts once.
        @return: whether this call completed it, that is, what its check said.
        @raise ValueError: if there are no keys, which is said before anything
            is checked, or C{delaySeconds} is not a
            finite number; nothing is watched then, nor after any other
            exception.
        @raise TypeError: if a key cannot be hashed, which is said before
            anything is checked, or the operation cannot.
        @raise RuntimeError: if the operation waits already.
        @raise Exception: whatever C{tryComplete} raises.
        """

    def checkAndComplete(key: Hashable) -> int:
        """
        The state behind C{key} has changed: let every operation that is
        watched under it check its condition.

        While this runs, calling it again only takes note; the keys noted are
        checked before the call that runs returns, so that completions that
        trigger each other do not pile up on the stack.  Checks that ask for
        checks without anybody ever leaving are not repeated for ever.

        @return: how many operations this call completed, those under keys
            noted meanwhile included; zero if it only took note.  One that
            raises as it completes counts, one that another has completed does
            not.
        """

    def cancelForKey(key: Hashable) -> list[IDelayedOperation]:
        """
        Take every operation that is watched under C{key} out of the purgatory,
        from all its keys and from the timer, without completing it; once all
        are out, call C{onCancel} of each that has not been parked again or
        completed meanwhile.

        @return: the operations.
        """

    def leave(operation: IDelayedOperation) -> None:
        """
        Let go of C{operation}, of its keys and its timeout; clear its
        C{watcher} and its C{parking}, and record how long it has waited.  For
        the operation to call as it completes or cancels itself; it is told
        nothing.

        @param operation: one whose C{watcher} this is.
        """

    def shutdown() -> None:
        """
        Cancel everything that waits, as L{cancelForKey} does; it neither
        completes nor expires.  No timer is left behind.
        """

    def addSensors(registry: ISensorRegistry, name: str) -> None:
        """
        Publish the sensors C{namePurgatorySize} (L{watched}),
        C{nameNumDelayedOperations} (L{delayed}), C{nameExpirations} and
        C{nameWaitSeconds}.

        @param name: what waits here: C{Fetch}.
        @raise ValueError: if there are sensors of that name.
        """


class Request(NamedTuple):
    """
    What a policy learns of a request: enough to decide, nothing of the
    protocol it came by.

    There is one for each request, and a tuple is made in half the time of an
    object that cannot be changed either; so is L{Usage}.

    @ivar kind: what is asked for, in the protocol's words (C{"Produce"});
        L{CONNECTION} for a connection that has been opened, L{RECEIVED} and
        L{SENT} for bytes of one that has no requests.
    @ivar principal: who asks, as the server authenticated it.
    @ivar clientId: what the client calls itself; may be empty.
    @ivar peer: the address of the client, without its port.
    @ivar sizeBytes: the request's size on the wire, without its length prefix.
    @ivar identities: further identities it carries, such as producer ids.
    """

    kind: str
    principal: str
    clientId: str
    peer: str
    sizeBytes: int
    identities: Sequence[int] = ()


CONNECTION = "connection"
"""The kind of L{Request} that stands for a connection being opened."""

RECEIVED = "received"
"""
The kind that stands for bytes received on a connection whose requests nobody
tells apart.
"""

SENT = "sent"
"""The kind that stands for bytes sent on such a connection."""


class Usage(NamedTuple):
    """
    What a request took.

    @ivar requestBytes: bytes received, without the length prefix.
    @ivar responseBytes: bytes sent in answer.
    @ivar serviceSeconds: time the server worked on it, waiting excluded.
    @ivar connections: connections opened.
    """

    requestBytes: int = 0
    responseBytes: int = 0
    serviceSeconds: float = 0.0
    connections: int = 0


NOTHING = Usage()
"""The usage to record when only the delay is of interest."""


@frozen
class Decision:
    """
    Whether a request may go ahead.

    @ivar admitted: L{False} means refused: nothing of it is done.
    @ivar delaySeconds: after a refusal, when asking again makes sense.
    @ivar reason: after a refusal, why, in words.
    @ivar policy: who decided it, by the name that the policy has in the server;
        policies leave it to L{admission.control.AdmissionControl}, like
        C{delays}.
    @ivar delays: of a refusal that became a delay, the name of each policy that
        refused, and its C{delaySeconds}.
    """

    admitted: bool = True
    delaySeconds: float = 0.0
    reason: str = ""
    policy: str = ""
    delays: Sequence[tuple[str, float]] = ()

    @property
    def message(self) -> str:
        """
        The reason as clients are told it: with the policy before it.
        """
        return f"{self.policy}: {self.reason}" if self.policy else self.reason


ADMITTED = Decision()
"""What a policy answers that has nothing against a request."""


class Refusal(Enum):
    """
    How a request can be refused; whoever answers it says so.
    """

    ERROR = "error"
    """Its answer can say no; where there are no answers, the connection is closed."""

    DELAY = "delay"
    """There is no way to say no: it is served, and its client has to wait."""

    NEVER = "never"
    """No policy is asked."""


class Outcome(NamedTuple):
    """
    How a request ended.

    @ivar isAnswered: whether it was answered; L{False} if its client left, its
        time ran out or the work on it failed.
    @ivar serviceSeconds: for how long it was worked on.
    @ivar parkedSeconds: for how long it was parked, waiting to be answered.
    """

    isAnswered: bool = True
    serviceSeconds: float = 0.0
    parkedSeconds: float = 0.0


DEFAULT = "<default>"
"""In a L{QuotaEntity}, whoever has no limit of their own."""


@frozen
class QuotaEntity:
    """
    Whom a limit is for: a user, a client id, a client id of one user, or an
    address.  Each is a name, L{DEFAULT}, or L{None} if the entity is not about
    that.

    @ivar user: a principal.
    @ivar clientId: what a client calls itself.
    @ivar ip: an address without its port; never together with the others.
    """

    user: str | None = None
    clientId: str | None = None
    ip: str | None = None


@frozen
class QuotaStatus:
    """
    How one client stands with one limit.

    @ivar limitName: such as C{"producer_byte_rate"}.
    @ivar limit: its value, in the unit of the limit.
    @ivar entity: whom it was set for; it may be shared with others.
    @ivar used: how much of it is used now, in the same unit.
    @ivar delaySeconds: for how long the client would be throttled now; zero or more.
    """

    limitName: str
    limit: float
    entity: QuotaEntity
    used: float
    delaySeconds: float

    @property
    def utilization(self) -> float:
        """
        The fraction used; 1.0 is all of it.
        """
        return self.used / self.limit


class IQuotaPolicy(Interface):
    """
    How fast each client may go.

    A policy has no clock and sets no timers: whoever calls it says what time it
    is, in seconds of a monotonic clock that does not go back, so that the same
    object replays a recorded trace.

    Several policies may be in force; L{admission.control.AdmissionControl} asks
    them all and lets the largest delay win.  All methods are for the reactor's
    thread.  L{admission.quotas.policy.QuotaPolicy} is a base class that leaves
    L{decide} and L{record} to be written.
    """

    limitNames: Sequence[str] = Attribute("The limits that L{configure} understands.")
    limits: Mapping[QuotaEntity, Mapping[str, float]] = Attribute(
        "The limits in force, those that it was built with included.  A live view; do not change it."
    )
    isLimiting: bool = Attribute(
        "Whether it limits anybody.  While it does not, nobody asks it, so that it costs nothing.  Only L{configure} "
        "may change it."
    )
    isShadow: bool = Attribute("Whether it only shows what it would do: it decides and counts, and delays nobody.")

    def decide(request: Request, now: float) -> Decision:
        """
        May C{request} go ahead?  Changes nothing: another policy may refuse.
        Where the protocol has no way to say no, a refusal becomes a delay.
        """

    def budgetBytes(request: Request, now: float) -> int | None:
        """
        How much a read may return now.

        @return: bytes.  Zero if the client is over its quota already: then it
            is answered without anything, and L{record} says for how long it
            has to wait.  L{None} for no limit.
        """

    def record(request: Request, usage: Usage, now: float) -> float:
        """
        Count what an admitted request took.  With an empty usage it only asks.

        @return: for how many seconds the client should wait; zero or more.
        """

    def configure(entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        """
        Set or (with L{None}) remove limits of one entity.

        @raise ValueError: for an unknown limit, one that is not positive, or an
            entity that the policy cannot limit; nothing is changed then.
        """

    def explain(request: Request, now: float) -> Sequence[QuotaStatus]:
        """
        Which limits hold for whoever would send C{request}, whatever its kind,
        where they come from and how much of each is used.  Changes nothing.
        """

    def sweep(now: float) -> None:
        """
        Forget who has been idle; called now and then.
        """

    def addSensors(registry: ISensorRegistry, name: str) -> None:
        """
        Publish what can be measured.

        @param name: what the policy is called where it is used.
        """


class IReplayable(Interface):
    """
    A policy whose requests a replay may spread over several machines.  All
    requests of other policies are replayed in one place, in order.
    """

    horizonSeconds: float | None = Attribute(
        "How long the policy remembers: to a key of L{replayKey} that has been idle for so long it is as if new.  "
        "L{None}: for ever."
    )

    def replayKey(request: Request) -> Hashable:
        """
        What the policy limits by: requests of different keys do not influence
        each other.

        @return: a key, or L{None} if the policy takes no notice of the request.
        """


class IRequestLifecycle(Interface):
    """
    A policy that wants to know which requests are under way: for limits of how
    many may be at a time, or limits that adapt to how long requests take.

    It is told of every request that has an answer, whether that can be refused
    or not, while it is limiting; not of connections, nor of bytes of connections
    without requests.  A shadow policy is told like any other.
    """

    countsParked: bool = Attribute(
        "Whether a request that is parked is still under way.  If not, L{ended} is called when it is parked: like "
        "its memory and its turn, its place is then somebody else's, and it is not asked for again."
    )

    def begun(request: Request, now: float) -> None:
        """
        All policies have admitted C{request}, and the work on it begins.
        """

    def ended(request: Request, outcome: Outcome, now: float) -> None:
        """
        It is over.  Called exactly once after L{begun}, whatever has happened:
        also after exceptions, when the client has hung up, and when the policy
        limits nobody any more.

        @param outcome: how it ended, as far as that is known.
        """


class IRestorable(Interface):
    """
    A policy that can be told what was known before a restart.
    """

    def restore(principal: str, identities: Sequence[int], now: float) -> None:
        """
        C{identities} are established ones of C{principal}; take them as known.
        """


class IIdentityAudit(Interface):
    """
    A policy that takes identities for known by a guess, and lets whoever
    records requests know, so that its guesses can be checked later.
    """

    def isKnown(request: Request, now: float) -> bool | None:
        """
        Whether the first identity of C{request} is known.  Changes nothing; to
        be asked before L{IQuotaPolicy.record}, after which it is.

        @return: L{None} if the policy does not look at such a request.
        """


class IMetricsExporter(Interface):
    """
    Where admission events and sensor samples go.

    Events come one by one as they happen, on the path of requests, since what
    waits for a batch dies with the process.  So an exporter takes a microsecond
    or two, never waits, and is bounded: what it has no room for it drops and
    counts.  All methods are for the reactor's thread.
    """

    droppedEvents: int = Attribute("How many events and samples were dropped for lack of room.")

    def start(origin: Any, deferToThread: Callable[..., Deferred[Any]]) -> None:
        """
        Begin.  Called once, before the first event.

        @param origin: an L{admission.recording.events.Origin}: what is the same
            for all events.
        @param deferToThread: as L{twisted.internet.threads.deferToThread}, for
            what waits for the disk or the network.
        @raise OSError: if it cannot; the server does not start then.
        """

    def exportEvent(event: Any) -> None:
        """
        Take an event: one of the classes of L{admission.recording.events}.  It
        does not change any more.
        """

    def exportSamples(samples: Sequence[Any]) -> None:
        """
        Take what the sensors said at one moment, as
        L{admission.recording.events.SensorSample}.
        """

    def addSensors(registry: ISensorRegistry, name: str) -> None:
        """
        Publish what can be measured, besides C{droppedEvents}.

        @param name: what the exporter is called where it is used.
        """

    def stop() -> Deferred[Any]:
        """
        Take no more events.

        @return: fires when everything is where it is to stay; it does not fail.
        """


@frozen
class PolicyContext:
    """
    What a server offers to the policies that it builds.  A policy takes what
    it needs and keeps no reference to the rest.

    @ivar clock: monotonic.  Quota policies are told what time it is, and keep none.
    @ivar wallSeconds: seconds since the epoch, for records only.
    @ivar largestRequestBytes: the server's limit for one request, or L{None}
        if the policy is to choose.
    @ivar quotaWindows: how many sampled windows a rate is taken over, if the
        description does not say (C{quota.window.num}).
    @ivar quotaWindowSeconds: the length of one (C{quota.window.size.seconds}).
    @ivar random: what an order of waiters draws from, the same for all orders
        of a server, so that a recording that knows its seed can be replayed; or
        L{None}, and then whoever wants one makes one.
    """

    clock: IReactorTime
    wallSeconds: Callable[[], float] = field(repr=False)
    largestRequestBytes: int | None = None
    quotaWindows: int = 11
    quotaWindowSeconds: float = 1.0
    random: Random | None = field(default=None, repr=False)


class IPolicyFactory(Interface):
    """
    What makes a policy from a description string: the base of the
    factories below, never provided by itself.

    Found by L{twisted.plugin.getPlugins} and through the entry-point group
    C{admission.policies}.  A factory is light: it imports what it builds in
    L{build}, because every Twisted command of the environment may load it.
    """

    name: str = Attribute("The word before the first colon of a description: C{bounded}.")
    help: str = Attribute("What the policy does, in one or more paragraphs.")
    format: str = Attribute("The arguments, as usage text: C{bounded:SIZE[:strict=yes|no]}.")

    def build(context: PolicyContext, *args: str, **kwargs: str) -> Any:
        """
        Make the policy.  The parameters after C{context} are those of the
        description, all of them strings.

        @raise ValueError: for an argument that makes no sense, in one sentence.
        """


class IMemoryPoolFactory(IPolicyFactory):
    """
    Builds an L{IMemoryPool}; C{--pool}.
    """


class IWaitOrderFactory(IPolicyFactory):
    """
    Builds an L{IWaitOrder}; C{--order}.
    """


class IPurgatoryFactory(IPolicyFactory):
    """
    Builds an L{IPurgatory}; C{--purgatory}.
    """


class IQuotaPolicyFactory(IPolicyFactory):
    """
    Builds an L{IQuotaPolicy}; C{--quota}.
    """


class IMetricsExporterFactory(IPolicyFactory):
    """
    Builds an L{IMetricsExporter}; C{--export}.
    """

# -*- test-case-name: tests.unit.test_interfaces -*-
"""
The contracts of the framework: what a policy must offer, and who calls it when.

Every Twisted command of an environment where admission is installed imports
this module, because the plug-in cache names its interfaces.  So it imports
nothing heavy and never touches the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from math import inf
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
    counts: list[int] = Attribute("The number of values in each range.")
    total: float = Attribute("The sum of all values.")
    count: int = Attribute("The number of values.")

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
    Where sensors are published, under unique names.  A sensor is read with the
    time as an argument, in seconds of the server's monotonic clock.

    L{admission.metrics.registry.SensorRegistry} is the one that servers have.
    """

    def addGauge(name: str, read: Callable[[float], float]) -> None:
        """
        Publish what C{read} returns.

        @raise ValueError: if there is a sensor of that name; so do the methods below.
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
        Publish sensors that differ only by their labels, such as one for each client.

        @param read: yields, for each sensor that exists now, the values of the labels
            and the value of the sensor.  It bounds how many it yields.  Hundreds
            may be read over several turns of the reactor, so it copies what may
            change meanwhile.
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
    purpose: str = Attribute("What the bytes are for: a purpose of this module, or another word.")

    def release() -> None:
        """
        Give the bytes back.  May call the pool's listeners, which only take note
        (see L{IMemoryPool.subscribe}).

        @raise RuntimeError: if the lease has been released before.
        """


class IWaiter(Interface):
    """
    A connection that waits for memory or for its turn.  It is hashable, and
    equal only to itself.
    """

    holder: str = Attribute(
        "The holder of its memory, as in L{IMemoryPool.tryAllocate}: the principal, or else the address; empty if "
        "neither is known.  May change while it waits."
    )
    wantedBytes: int = Attribute("How much memory it waits for, in bytes, while it waits for memory.")
    hasBoundedAnswers: bool = Attribute(
        "Whether something bounds what is written as answers to small requests while memory is short, as"
        " L{admission.gate.answerroom.AnswerRoom} does for a broker."
    )

    def leaseGranted(lease: ILease) -> None:
        """
        Take the memory for C{wantedBytes}; the waiter releases it.  Only the
        gate calls this, and L{turnGranted}.
        """

    def turnGranted() -> None:
        """
        Start the work on the request that waits.
        """


class IMemoryPool(Interface):
    """
    A bounded stock of bytes for requests in progress.

    No method waits.  A caller that is refused pauses its connection; the gate
    asks again on its behalf after a release.  All methods are for the
    reactor's thread.
    """

    sizeBytes: int = Attribute("The configured bound, in bytes; positive.")
    largestBytes: int = Attribute("The largest single allocation, in bytes; at most C{sizeBytes}.")
    availableBytes: int = Attribute(
        "Free bytes.  Negative when the last request took more than was left, or when charges outgrew the pool."
    )
    usedBytesByPurpose: Mapping[str, int] = Attribute(
        "The ledger: bytes taken, by purpose.  A live view; do not change it."
    )
    idleBytes: int = Attribute("Bytes kept for reuse: resident, but not counted as taken.")

    def isOutOfMemory() -> bool:
        """
        Whether C{availableBytes} is zero or less.
        """

    def tryAllocate(sizeBytes: int, holder: str = "") -> ILease | None:
        """
        Take C{sizeBytes} bytes for a request that is about to be read.

        When charges alone have drained the pool and no request holds a lease,
        one request is still let through, because only requests that finish
        release the charges.

        @param sizeBytes: from 1 to C{largestBytes}.
        @param holder: the client, as far as it is known before the request is
            read: the principal, or else the address; empty if neither is known.
            A pool may divide its memory by it.  A refused client waits at the
            gate, which asks for one waiter at a time, and after a refusal only
            after the next release, so that all others wait, too; unless the
            pool is an L{IFairPool} and says that it is about this holder.
        @return: a lease with a buffer and the purpose L{FRAMES}, or L{None}
            when there is no memory.  Never waits.
        @raise ValueError: if C{sizeBytes} is out of range, whatever is available.
        """

    def charge(sizeBytes: int, purpose: str) -> ILease:
        """
        Count memory that exists already: decoded objects, unsent responses,
        the cost of a connection.  Never refused; C{availableBytes} may go below
        zero.

        @param sizeBytes: zero or more.
        @param purpose: what it is for; the key in C{usedBytesByPurpose}.
        @return: a lease without a buffer.
        @raise ValueError: if C{sizeBytes} is negative.
        """

    def subscribe(listener: Callable[[], None]) -> None:
        """
        Have C{listener} called at each release.

        It is called inside the release, in the middle of anything, so it must
        only take note, and act in a later turn.  An exception is logged, and
        the other listeners are still called.
        """

    def addSensors(registry: ISensorRegistry, name: str) -> None:
        """
        Publish what only the pool knows, such as for how long it has refused
        requests.  The gate publishes C{nameAvailable} and C{nameUsed}.

        @param registry: an L{admission.metrics.registry.SensorRegistry}.
        @param name: what the names of the sensors begin with: C{MemoryPool}.
        @raise ValueError: if there are sensors of these names.
        """


class IFairPool(Interface):
    """
    A pool that refuses a holder while there is memory for others.  The gate then
    goes on with these, and asks again for that holder after each release.
    """

    def isBelowShare(holder: str) -> bool:
        """
        Whether C{holder} has less than its share: if not, and there is memory, it
        is the only one that is refused.  A holder that has nothing always has.
        Quick, and changes nothing.
        """


class IWaitOrder(Interface):
    """
    The order in which waiters are served: which connections are read next.  The
    gate has two, one for connections that wait for memory and one for requests
    that wait to be worked on.

    No waiter may starve: the number of waiters served before it must be bounded,
    however many join later.  The default is random, in rounds (a waiter that
    joins during a round is served in the next one), and by turns with holders.

    All methods are for the reactor's thread, and should be quick, because they
    are called when the server is short of something.
    """

    def add(waiter: IWaiter) -> None:
        """
        C{waiter} waits from now on; no effect if it waits already.
        """

    def discard(waiter: IWaiter) -> None:
        """
        C{waiter} has been served or is gone; no effect if it does not wait.
        """

    def next() -> IWaiter:
        """
        The waiter to serve next.  It still waits until it is discarded, since
        there may not be enough for it yet.  Asked again, the order may name
        another.

        @raise LookupError: if there is no waiter.
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
        Whether reading may be stopped now.  During a TLS handshake it may not:
        the handshake would never finish, and nothing would time out.
        """

    def hasBytesBuffered() -> bool:
        """
        Whether the transport itself holds whole messages that no event of the
        socket will announce.  Asked before a transport is resumed, and when a
        peer has hung up.  Twisted's transports hand everything to the protocol,
        which buffers it, so the default adapters return L{False}.
        """

    def readBuffered() -> None:
        """
        Deliver the next of these messages through the protocol's
        C{dataReceived}; the transport stays muted.  Called in turns of the
        reactor of its own, while L{hasBytesBuffered} is true and there is no
        reason to pause; only then is the transport resumed.

        More than one message may be delivered, but the protocol may pause, close
        or abort from within each, so one is better.  What has not been delivered
        stays, in order, before anything that is read later.  An exception is
        logged, and closes the connection at once.
        """

    def mute() -> None:
        """
        Stop reading.  A TLS transport may still deliver what it has decrypted.
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
        transport is paused.
        """


class IDelayedOperation(Interface):
    """
    Work that waits for a condition or a timeout.  It is hashable, and equal only
    to itself.

    Derive from L{admission.operations.DelayedOperation}.  A purgatory relies on
    nothing but this interface, and only a purgatory sets C{watcher}.

    An operation lends its C{watcher} four attributes: C{parking} for any purpose,
    and C{dueSeconds}, C{previousEntry} and C{nextEntry}, by which a timer can
    hold the operation itself.  They mean nothing to anything else, the next
    purgatory included.  They are here because an object of the purgatory's own
    for each parked operation makes parking and completing 3 % slower and takes
    an eighth more memory (C{benchmarks.purgatory}).
    """

    delaySeconds: float = Attribute(
        "How long the operation may wait, in seconds; zero or less means until the next turn of the reactor.  Must not "
        "change while it waits."
    )
    completed: bool = Attribute("Whether the operation is over, in time or not.")
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
        changed, so it should be quick, and have no effect unless it completes.
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
        Complete because the time is up, then run L{onExpiration}.  Only
        C{watcher} or its timer calls this, once for each time that the
        operation was parked.  An operation that has more time after all may
        cancel itself instead and park again; either way it has left when this
        returns.

        @raise Exception: whatever L{onComplete} and L{onExpiration} raise.
        """

    def onComplete() -> None:
        """
        Finish the work.  Runs exactly once, in time or on expiry.  It may do
        anything to any purgatory, and so may L{onExpiration} and L{onCancel}.
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

    An operation that is over has left the purgatory, with all its keys and its
    timeout, before anything else happens: nothing stale is ever watched.  All
    methods are for the reactor's thread, and all may be called from within the
    methods of an operation.  An exception of an operation is logged and does not
    affect others; only L{tryCompleteElseWatch} raises it to its caller.
    """

    watched: int = Attribute("The number of operations watched under at least one key.")
    delayed: int = Attribute("The number of operations that wait for their timeout.")
    expirations: int = Attribute("The number of operations that L{IDelayedOperation.expire} has completed.")
    waits: IHistogram = Attribute("How many seconds operations have waited, however they ended.")

    def tryCompleteElseWatch(operation: IDelayedOperation, keys: Collection[Hashable]) -> bool:
        """
        Complete C{operation} if its condition holds; else watch it under all
        C{keys}, start its timeout, and check once more.  An operation that is
        over already, or after the first check, is not watched.

        After L{shutdown} an operation that cannot complete at once has its
        C{onCancel} called at once.

        @param keys: what may complete it; at least one, duplicates count once.
        @return: whether this call completed it: the result of its check.
        @raise ValueError: if there are no keys, before anything is checked, or
            if C{delaySeconds} is not a finite number; nothing is watched then,
            nor after any other exception.
        @raise TypeError: if a key cannot be hashed, before anything is checked,
            or the operation cannot.
        @raise RuntimeError: if the operation waits already.
        @raise Exception: whatever C{tryComplete} raises.
        """

    def checkAndComplete(key: Hashable) -> int:
        """
        Have every operation that is watched under C{key} check its condition,
        because the state behind it has changed.

        While this runs, calling it again only takes note; the keys noted are
        checked before the running call returns, so that completions that
        trigger each other do not pile up on the stack.  Checks that ask for
        checks while no operation leaves are not repeated for ever.

        @return: how many operations this call completed, under keys noted
            meanwhile, too; zero if it only took note.  An operation that raises
            as it completes counts; one that another has completed does not.
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
        Forget C{operation}, its keys and its timeout; clear its C{watcher} and
        its C{parking}, and record how long it has waited.  The operation calls
        this as it completes or cancels itself; none of its methods is called.

        @param operation: one whose C{watcher} this is.
        """

    def shutdown() -> None:
        """
        Cancel every operation, as L{cancelForKey} does, and all timers.  Nothing
        completes or expires after this.
        """

    def addSensors(registry: ISensorRegistry, name: str) -> None:
        """
        Publish the sensors C{namePurgatorySize} (L{watched}),
        C{nameNumDelayedOperations} (L{delayed}), C{nameExpirations} and
        C{nameWaitSeconds}.

        @param name: what waits here: C{Fetch}.
        @raise ValueError: if there are sensors of that name.
        """


@frozen
class Traits:
    """
    What a kind of request means to policies.  They go by this and not by names of kinds, which are the protocol's.

    @ivar countsReceived: whether the bytes received of it count towards limits of bytes.
    @ivar countsSent: whether the bytes sent in answer to it do.
    @ivar waitsForOthers: whether it may wait for other clients: for a message, or for the rest of a group.  It counts
        as no request in progress.
    @ivar isRequest: whether it has a beginning and an end.  If not, it is a connection that has been opened, or bytes
        on a connection whose requests are not told apart.
    @ivar isConnection: whether it is a connection that has been opened.
    @ivar code: all of this in a small number, for recordings; see L{traitsOf}.
    """

    countsReceived: bool = True
    countsSent: bool = True
    waitsForOthers: bool = False
    isRequest: bool = True
    isConnection: bool = False
    code: int = field(init=False, eq=False, repr=False)

    @code.default
    def _code(self) -> int:
        flags = (self.countsReceived, self.countsSent, self.waitsForOthers, self.isRequest, self.isConnection)
        return sum(flag << bit for bit, flag in enumerate(flags))


ORDINARY = Traits()
"""A request whose bytes count in both directions, and which waits for nobody."""


def traitsOf(code: int) -> Traits:
    """
    The traits that have this L{code <Traits.code>}.
    """
    return _TRAITS[code]


_TRAITS: Sequence[Traits] = [Traits(*(bool(code >> bit & 1) for bit in range(5))) for code in range(32)]


class Request(NamedTuple):
    """
    A request as policies see it: enough to decide, nothing of its protocol.

    A tuple, like L{Usage}, because one is made for each request, and an
    immutable object of attrs takes twice as long to make.

    @ivar kind: the operation, in the protocol's words (C{"Produce"});
        L{CONNECTION} for a connection that has been opened, L{RECEIVED} and
        L{SENT} for bytes on a connection whose requests are not told apart.
    @ivar principal: who asks, as the server authenticated it; bounded in length,
        as C{clientId} is, by L{admission.names.boundedName}.
    @ivar clientId: what the client calls itself; may be empty.
    @ivar peer: the address of the client, without its port.
    @ivar sizeBytes: the request's size on the wire, without its length prefix.
    @ivar identities: other identities that it carries, such as producer ids.
    @ivar traits: what its kind means.
    @ivar lagSeconds: how late it is, in whole microseconds: how long it waited for its turn, and by how much the
        reactor was late, and had been for half a second.
    @ivar poolFreeShare: which part of the memory pool was free when it came, from 0 to 1; negative if it was overdrawn.
    """

    kind: str
    principal: str
    clientId: str
    peer: str
    sizeBytes: int
    identities: Sequence[int] = ()
    traits: Traits = ORDINARY
    lagSeconds: float = 0.0
    poolFreeShare: float = 1.0


CONNECTION = "connection"
"""The kind of L{Request} that stands for a connection being opened."""

RECEIVED = "received"
"""
The kind that stands for bytes received on a connection whose requests are not
told apart.
"""

SENT = "sent"
"""The kind that stands for bytes sent on such a connection."""

CONNECTION_TRAITS = Traits(countsReceived=False, countsSent=False, isRequest=False, isConnection=True)
RECEIVED_TRAITS = Traits(countsSent=False, isRequest=False)
SENT_TRAITS = Traits(countsReceived=False, isRequest=False)
"""The traits of these kinds."""


class Usage(NamedTuple):
    """
    What a request used.

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


@frozen(eq=False)
class Places:
    """
    How requests may wait for a place, where a policy bounds how many are in progress.

    @ivar maxWaiting: how many of them.
    @ivar waitSeconds: for how long each.
    """

    maxWaiting: int
    waitSeconds: float


@frozen
class Decision:
    """
    Whether a request may go ahead.

    @ivar admitted: L{False} means refused: nothing of it is done.
    @ivar delaySeconds: after a refusal, when it makes sense to ask again.
    @ivar reason: after a refusal, a sentence that says why.
    @ivar policy: the name, in the server, of the policy that decided.  Policies
        leave C{policy} and C{delays} to L{admission.control.AdmissionControl}.
    @ivar delays: of a refusal that became a delay, the name of each policy that
        refused, and its C{delaySeconds}.
    @ivar places: where it may wait, if it is refused only because others are in progress: as soon as one is over it may
        be admitted.
    @ivar isForAll: whether everybody would be refused, and not this client for what it did.
    """

    admitted: bool = True
    delaySeconds: float = 0.0
    reason: str = ""
    policy: str = ""
    delays: Sequence[tuple[str, float]] = ()
    places: Places | None = None
    isForAll: bool = False

    @property
    def message(self) -> str:
        """
        The reason with the policy's name before it, for clients.
        """
        return f"{self.policy}: {self.reason}" if self.policy else self.reason


ADMITTED = Decision()
"""The decision to let a request go ahead."""


class Refusal(Enum):
    """
    How a request can be refused; the server that answers it says so.
    """

    ERROR = "error"
    """By an error in the answer; where there are no answers, by closing the connection."""

    DELAY = "delay"
    """Not at all: it is served, and its client is throttled instead."""

    NEVER = "never"
    """Policies are not asked."""


class Outcome(NamedTuple):
    """
    How a request ended.

    @ivar isAnswered: whether it was answered; L{False} if its client hung up, its
        time ran out or the work on it failed.
    @ivar serviceSeconds: how long it was worked on.
    @ivar parkedSeconds: how long it was parked before its answer.
    """

    isAnswered: bool = True
    serviceSeconds: float = 0.0
    parkedSeconds: float = 0.0


DEFAULT = "<default>"
"""In a L{QuotaEntity}: every client that has no limit of its own."""


@frozen
class QuotaEntity:
    """
    The clients that a limit is for: a user, a client id, a client id of one user,
    or an address.  Each is a name, L{DEFAULT}, or L{None} if it does not matter.
    In a L{QuotaStatus} none of them may matter: then all clients share the limit.

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

    @ivar limitName: such as C{"received_byte_rate"}.
    @ivar limit: its value, in the unit of the limit.
    @ivar entity: the entity it was set for; others may share it.
    @ivar used: how much of it is used now, in the same unit.
    @ivar delaySeconds: how long the client would be throttled now; zero or more.
    @ivar usedElsewhere: how much of C{used} was used at other servers; L{None} for a limit that is not shared, see
        L{IShared}.
    @ivar fraction: how much of the limit this server enforces; more than zero, and 1.0 for all of it.
    """

    limitName: str
    limit: float
    entity: QuotaEntity
    used: float
    delaySeconds: float
    usedElsewhere: float | None = None
    fraction: float = 1.0

    @property
    def usedHere(self) -> float:
        """
        How much of C{used} was used at this server.
        """
        return self.used - (self.usedElsewhere or 0.0)

    @property
    def utilization(self) -> float:
        """
        The fraction used of what this server enforces; 1.0 is all of it.
        """
        enforced = self.limit * self.fraction
        return self.used / enforced if enforced else inf


class IQuotaPolicy(Interface):
    """
    How fast each client may go.

    A policy has no clock and sets no timers: the caller passes the time, in
    seconds of a monotonic clock, so that the same object can replay a recording.

    Several policies may be in force; L{admission.control.AdmissionControl} asks
    them all, and the largest delay wins.  All methods are for the reactor's
    thread.  L{admission.quotas.policy.QuotaPolicy} is a base class that leaves
    L{decide} and L{record} to be written.
    """

    limitNames: Sequence[str] = Attribute("The limits that L{configure} understands.")
    limits: Mapping[QuotaEntity, Mapping[str, float]] = Attribute(
        "The limits in force, including those it was built with.  A live view; do not change it."
    )
    isLimiting: bool = Attribute(
        "Whether it limits any client.  While it does not, it is not asked, and costs nothing.  Only L{configure} may "
        "change it."
    )
    isShadow: bool = Attribute(
        "Whether it is a shadow policy, which decides and counts, and delays or refuses no client."
    )

    def decide(request: Request, now: float) -> Decision:
        """
        Decide whether C{request} may go ahead.  Has no side effects, since
        another policy may refuse.  Where the protocol has no way to refuse, a
        refusal becomes a delay.
        """

    def budgetBytes(request: Request, now: float) -> int | None:
        """
        How much a read may return now.

        @return: bytes.  Zero if the client is over its quota already: it gets an
            empty answer, and L{record} says how long it is throttled.  L{None}
            for no limit.
        """

    def record(request: Request, usage: Usage, now: float) -> float:
        """
        Count what an admitted request used.  An empty usage counts nothing.

        @return: for how many seconds the client is to be throttled; zero or
            more.
        """

    def configure(entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        """
        Set the limits of one entity, or remove those that are L{None}.

        @raise ValueError: for an unknown limit, one that is not positive, or an
            entity that the policy cannot limit; nothing has changed then.
        """

    def explain(request: Request, now: float) -> Sequence[QuotaStatus]:
        """
        The limits that hold for the client of C{request}, whatever its kind,
        where they come from and how much of each is used.  Has no side effects.
        """

    def sweep(now: float) -> None:
        """
        Forget idle clients; called every few seconds.
        """

    def addSensors(registry: ISensorRegistry, name: str) -> None:
        """
        Publish what can be measured.

        @param name: the policy's name in the server.
        """


class IReplayable(Interface):
    """
    A policy whose requests a replay may divide among machines.  For other
    policies one process replays all requests in order.
    """

    horizonSeconds: float | None = Attribute(
        "How long the policy remembers: a key of L{replayKey} that has been idle for that long is like a new one.  "
        "L{None} for ever."
    )

    def replayKey(request: Request) -> Hashable:
        """
        What the policy limits by: requests of different keys do not influence
        each other.

        @return: a key, or L{None} if the policy ignores the request.
        """


class IAccountable(Interface):
    """
    A policy that says how much memory it keeps about clients.
    """

    sizeBytes: int = Attribute("About how many bytes; for the ledger, and read often.")


class ICountsRequests(Interface):
    """
    A policy that has something to count where requests are told apart, and only there: it ignores connections, and
    bytes on connections without requests.  A server that knows no requests refuses such a policy.
    """


class IRequestLifecycle(ICountsRequests):
    """
    A policy that follows requests in progress: to limit how many there are at a
    time, or to adapt to how long they take.

    While it is limiting, it is told of every request that has an answer, whether that can be refused or not, but not of
    connections, nor of bytes of connections without requests (C{isRequest} of L{Traits}).  It is not asked whether to
    admit these either: how many requests are in progress is no reason to close a connection.  Shadow policies are told,
    too.
    """

    countsParked: bool = Attribute(
        "Whether a parked request is still in progress.  If not, L{ended} is called when it is parked: it gives up its "
        "place with its memory and its turn, and does not need one again."
    )

    def begun(request: Request, now: float) -> None:
        """
        All policies have admitted C{request}, and the work on it begins.
        """

    def ended(request: Request, outcome: Outcome, now: float) -> None:
        """
        C{request} is over.  Called exactly once after L{begun}, whatever
        happened: after exceptions, too, when the client has hung up, and when
        the policy limits no client any more.

        @param outcome: how it ended, as far as that is known.
        """


class IAliasedLimits(Interface):
    """
    A quota policy some of whose limits have other names, too: those that they had before, or that operators of a
    protocol know.  L{admission.control.AdmissionControl} translates; C{configure} is given the policy's own names.
    """

    limitAliases: Mapping[str, str] = Attribute("Which of its C{limitNames} each other name means.")


class IRestorable(Interface):
    """
    A policy that can be told what was known before a restart.
    """

    def restore(principal: str, identities: Sequence[int], now: float) -> None:
        """
        Take C{identities} as known to belong to C{principal}.
        """


class IPersistent(Interface):
    """
    A policy that continues after a restart with what it knew.  It says so in
    numbers, which broker and gateway store.  Recordings have those that a run
    began with, so that its replay begins with the same.
    """

    def takeChanges() -> Mapping[str, float]:
        """
        The numbers that have changed since this was called last, by key: such as
        how much a user has used.  They are positive; zero for one that is to be
        forgotten.  Called every ten seconds and when the server has stopped, so
        that the last ten seconds are lost if it is killed.

        Recordings shorten a key of more than 240 bytes.  There may be any number
        of clients: forget those that have left.
        """

    def resume(kept: Mapping[str, float], now: float) -> None:
        """
        Continue with all that was stored, perhaps long ago and under another
        description.  Called at most once, before the first request.
        """


class IStartable(Interface):
    """
    A policy that has something of its own while its server runs: a connection, a timer, a thread.

    A policy may be built without ever being used: to check its description, or to see which limits a changed
    configuration has.  So it begins such things in L{start}, and not when it is built.  All methods are for the
    reactor's thread.
    """

    def start() -> None:
        """
        The server begins to serve: called once, before the policy is asked about anything.  A replay never calls it.
        """

    def stop() -> Deferred[Any] | None:
        """
        The last client has gone.

        @return: fires when everything is closed; the server waits for that.
        """


class Taken(NamedTuple):
    """
    What clients have taken of a limit.

    @ivar limitName: which limit.
    @ivar entity: whose; a name of L{None} does not matter.
    @ivar amount: how much, in the unit of the limit.
    @ivar identities: for a limit of new identities, these.
    """

    limitName: str
    entity: QuotaEntity
    amount: float
    identities: tuple[int, ...] = ()


class IShared(Interface):
    """
    A policy whose limits several servers can enforce together: it says what clients have taken here, and counts what it
    is told that they have taken elsewhere.  As long as all are told, each enforces all of every limit.

    Such a policy protects what is behind the servers, or all of them together.  One that protects its own process, its
    memory or its time, is none.
    """

    def taken(leastSeconds: float, now: float) -> Iterator[Taken]:
        """
        What clients have taken and others have not been told.  What is taken out of the iterator counts as told, and
        what is left there comes the next time.  An entity of which too much is untold is to get this server's part of
        its limit alone.

        @param leastSeconds: entities that have taken less than the limit allows in this time may be left for later.
        """

    def takenElsewhere(taken: Taken, isOld: bool, now: float) -> None:
        """
        Clients of another server have taken something.

        @param taken: of a limit that this policy knows, with one identity or an amount.  Its names may be any; what is
            told of an entity without a limit is ignored.
        @param isOld: whether that was before this server began to listen: identities are known then, and take nothing.
        """

    def share(fraction: float, count: int, now: float) -> None:
        """
        Enforce so much of every limit from now on.

        @param fraction: all of it, 1.0, as long as servers hear from each other.
        @param count: how many servers there are.  Each may let through that part of a burst.
        """


class IIdentityAudit(Interface):
    """
    A policy that guesses whether it knows an identity, and tells recordings, so
    that its guesses can be checked later.
    """

    def isKnown(request: Request, now: float) -> bool | None:
        """
        Whether the first identity of C{request} is known.  Has no side effects;
        called before L{IQuotaPolicy.record}, which makes it known.

        @return: L{None} if the policy ignores such requests.
        """


class IMetricsExporter(Interface):
    """
    Where admission events and sensor samples go.

    Events come one by one, on the path of requests, because a batch in memory
    dies with the process.  So an exporter takes a microsecond or two, never
    waits, and is bounded: it drops and counts what it has no room for.  All methods are for the reactor's thread.
    """

    droppedEvents: int = Attribute("The number of events and samples dropped because there was no room.")

    def start(origin: Any, deferToThread: Callable[..., Deferred[Any]]) -> None:
        """
        Called once, before the first event.

        @param origin: an L{admission.recording.events.Origin}, which holds for
            all events.
        @param deferToThread: like L{twisted.internet.threads.deferToThread}, for
            work that waits for the disk or the network.
        @raise OSError: if it cannot start; then the server does not, either.
        """

    def exportEvent(event: Any) -> None:
        """
        Take an event, of a class of L{admission.recording.events}.  It does not
        change afterwards.
        """

    def exportSamples(samples: Sequence[Any]) -> None:
        """
        Take the values of all sensors at one moment, as
        L{admission.recording.events.SensorSample}s.
        """

    def addSensors(registry: ISensorRegistry, name: str) -> None:
        """
        Publish what can be measured, besides C{droppedEvents}.

        @param name: the exporter's name in the server.
        """

    def stop() -> Deferred[Any]:
        """
        Take no more events.

        @return: fires when all events have been stored; does not fail.
        """


class ITryOut(Interface):
    """
    An exporter that can tell whether it could start.
    """

    def tryOut() -> None:
        """
        Try what L{IMetricsExporter.start} needs, and leave nothing behind.  Another process may be using the same
        place.

        @raise OSError: if it could not start.
        """


@frozen
class PolicyContext:
    """
    What a server offers to the policies that it builds.  A policy takes what
    it needs and keeps no reference to the rest.

    @ivar clock: monotonic.  Quota policies are passed the time instead.
    @ivar wallSeconds: seconds since the epoch, for records.  A quota policy that keeps a calendar reads both clocks
        once, when it is built, and adds their difference to the times that it is told; then a replay does the same.
    @ivar largestRequestBytes: the server's limit for one request, or L{None}
        if the policy is to choose.
    @ivar quotaWindows: how many sampled windows a rate is taken over, if the
        description does not say (C{quota.window.num}).
    @ivar quotaWindowSeconds: the length of one (C{quota.window.size.seconds}).
    @ivar random: the random source of all wait orders of a server, so that a
        recording with its seed can be replayed; L{None} if each order is to make
        its own.
    @ivar shownAliases: other names of limits, see L{IAliasedLimits}, by which the server shows them.  A policy whose
        sensors are about these limits may name them alike.
    @ivar upstream: how to reach the servers behind this one, for a plug-in that knows these; L{None} if there are none.
    """

    clock: IReactorTime
    wallSeconds: Callable[[], float] = field(repr=False)
    largestRequestBytes: int | None = None
    quotaWindows: int = 11
    quotaWindowSeconds: float = 1.0
    random: Random | None = field(default=None, repr=False)
    shownAliases: Collection[str] = ()
    upstream: Any = field(default=None, repr=False)


class IPolicyFactory(Interface):
    """
    Makes a policy from a description string: the base of the factories below,
    never provided itself.

    Factories are found by L{twisted.plugin.getPlugins} and through the
    entry-point group C{admission.policies}.  A factory is light: it imports what
    it builds in L{build}, because every Twisted command may load it.
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


class IUsageExchange(Interface):
    """
    Carries messages between servers that enforce limits together: each has those of all, its own included, in the order
    in which each of them sent them.  Some may be lost, late or there twice.  All methods are for the reactor's thread.
    """

    intervalSeconds: float = Attribute("How often a server tells the others what its clients have taken.")

    def start(deliver: Callable[[bytes, bool], object]) -> None:
        """
        Begin, and go on whatever happens, until L{stop}.

        @param deliver: to be called with each message, and whether it was sent before L{start}: of kept messages those
            come first.  It does not raise.
        """

    def publish(message: bytes, isKept: bool, key: str | None = None) -> None:
        """
        Send a message, or drop it if that cannot be done now; never wait, never raise.

        @param message: up to 256 KiB.
        @param isKept: whether servers that start later want it, too, for some hours.
        @param key: of a kept message of which they want only the last of each key, and that however old it is.
        """

    def stop() -> Deferred[None]:
        """
        Send and deliver nothing more.

        @return: fires when everything is closed; never fails.
        """

    def trouble() -> str | None:
        """
        Why it does not work, in words for the operator; L{None} if it does, as far as it knows.
        """


class IUsageExchangeFactory(IPolicyFactory):
    """
    Builds an L{IUsageExchange}; C{--shared-limits}.
    """

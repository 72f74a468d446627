# -*- test-case-name: tests.unit.test_admission -*-
"""
Admission for the servers of a process: made once, for any number of ports and protocols.
"""

from __future__ import annotations

import os
import uuid
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from math import inf
from random import Random, SystemRandom
from secrets import token_bytes
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakSet

from twisted.internet.defer import Deferred, TimeoutError, gatherResults, succeed
from twisted.internet.interfaces import IProtocolFactory, IReactorCore, IReactorTime
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Interface

from .boundedfile import readBounded
from .clock import MonotonicClock, wallSeconds, wholeMicroseconds
from .connection.admitted import AdmittedProtocol
from .connection.debts import Debts
from .connection.factory import AdmittedFactory, ConnectionLimits, Observer, addConnectionSensors
from .connection.hangup import HangUpWatch
from .connection.trustedproxies import TrustedProxies
from .connection.unitofwork import UnitOfWork
from .connection.wrapping import NameOf, WrappedFactory
from .control import SWEEP_SECONDS, AdmissionControl
from .gate.gate import DEFAULT_ORDER, Gate
from .gate.placequeue import PlaceQueue
from .interfaces import (
    ORDINARY,
    ICountsRequests,
    IMemoryPool,
    IMemoryPoolFactory,
    IMetricsExporter,
    IMetricsExporterFactory,
    IPolicyFactory,
    IPurgatory,
    IPurgatoryFactory,
    IQuotaPolicy,
    IQuotaPolicyFactory,
    IWaitOrder,
    IWaitOrderFactory,
    PolicyContext,
    QuotaEntity,
    Traits,
)
from .memorylimit import memoryLimitBytes
from .metrics.registry import SensorRegistry
from .names import IDENTITY_KEY_BYTES, IdentityNumbers
from .plugins import PolicyError, buildPolicy, parseDescription
from .recording.events import Origin
from .recording.recorder import EventRecorder
from .recording.requestrecording import RequestRecording
from .status.requesttimes import RequestTimes
from .status.sections import HealthCheck, Section
from .units import roundedBytes

if TYPE_CHECKING:
    from .status.site import StatusSite

MAX_DELAY_SECONDS = 20.0
"""After which a client that is throttled is looked at again, however much it owes."""

FIRST_WORK_NUMBER = 1 << 40
"""Connections of the same recording are numbered from one, and are never so many."""

POOL_SHARE = 4
"""The default pool is this fraction of the memory that the process may use."""

POOLS_SHARE = 2
"""The pools of all servers of a process should not have more than this fraction of it between them."""

CHANGED_BY = "the program"
"""The author of changes of limits, for recordings."""

_F = TypeVar("_F", bound=AdmittedFactory)

_log = Logger()

_serving: WeakSet[Admission] = WeakSet()
"""What serves in this process at the moment."""


class Admission:
    """
    One pool of memory, one set of quotas and one order for all servers that it is given: L{wrap} protects any factory
    as it is, L{frames} makes one for requests in frames.  C{statusSite()} shows all of them.

    It begins with the first port that listens for one of its factories, and rests when the last port is closed and the
    last connection gone.  When the reactor stops, requests in frames that have been read are answered, what is inside
    of L{work} is waited for, and what was recorded is stored.  All methods are for the reactor's thread.

    @ivar gate: who waits for memory and for a turn, and how much is held.
    @ivar control: the quota policies.
    @ivar reactor: the one that runs.
    @ivar clock: monotonic.
    @ivar purgatory: where requests may wait, see L{waitFor <admission.operations.waitFor>}.
    @ivar sensors: what can be measured.
    @ivar limits: on the connections of each factory.
    @ivar trustedProxies: those that say who their clients are.
    @ivar debts: the clients that were told to wait.
    @ivar places: the requests that wait for a place.
    @ivar workNumbers: what tells requests apart, in recordings, that belong to no connection; from
        L{FIRST_WORK_NUMBER} on.
    @ivar idlePolicies: the names of the policies that limit nobody on wrapped servers.
    @ivar isStopping: whether no work may begin any more.
    @ivar observers: what is told of requests.
    """

    def __init__(
        self,
        *,
        pool: str | IMemoryPool | None = None,
        quota: str | IQuotaPolicy | Sequence[str | IQuotaPolicy] = (),
        order: str | IWaitOrder = DEFAULT_ORDER,
        purgatory: str | IPurgatory = "wheel",
        limits: ConnectionLimits | None = None,
        export: str | IMetricsExporter | Sequence[str | IMetricsExporter] = (),
        identityKey: str | None = None,
        trustedProxies: str | Sequence[str] | None = None,
        reactor: Any = None,
        clock: IReactorTime | None = None,
    ) -> None:
        """
        @param pool: the memory that connections may hold: a description or a pool.
            A quarter of what the process may use, unless given.
        @param quota: what limits clients: descriptions or policies, any number.
        @param order: in which order connections are served that wait for memory: a
            description or an order.
        @param purgatory: where requests wait for events: a description or a purgatory.
        @param limits: of connections, for each factory; the defaults of L{ConnectionLimits}, unless given.
        @param export: where to record what happens, such as C{"spark:DIRECTORY"}: descriptions or exporters.
        @param identityKey: a file with the key by which identities of bytes become numbers; made if it is not there.
            Recordings of several runs can then be compared.  Without it each process has a key of its own.
        @param trustedProxies: the networks of the proxies that all clients, or some, come through, such as
            C{"10.0.0.0/8"}; C{"unix"} for UNIX sockets.  Connections from there begin with a header of the PROXY
            protocol, or carry requests of HTTP that say whose they are, and everything goes by the client that these
            name.  Nobody else is believed.
        @param reactor: the one that runs, unless given.
        @param clock: for timers; the reactor on monotonic time, unless given.
        @raise PolicyError: for a description that means nothing.
        @raise ValueError: if C{identityKey} cannot be read or made, or a network is none.
        @raise TypeError: for a pool, a policy, an order, limits or an exporter that is none.
        """
        if limits is not None and not isinstance(limits, ConnectionLimits):
            raise TypeError(f"limits={limits!r}: give ConnectionLimits, such as ConnectionLimits(maxConnections=1000)")
        if reactor is None:
            from twisted.internet import reactor
        self.reactor = reactor
        self.clock: IReactorTime = MonotonicClock(reactor) if clock is None else clock
        self.limits = ConnectionLimits() if limits is None else limits
        try:
            self.trustedProxies = None if trustedProxies is None else TrustedProxies(trustedProxies)
        except ValueError as error:
            raise ValueError(f"trustedProxies: {error}") from error
        self.identityNumbers = IdentityNumbers(None if identityKey is None else _storedKey(identityKey))
        self._gateSeed = SystemRandom().getrandbits(63)
        context = PolicyContext(self.clock, wallSeconds)
        # The orders of memory and of turns draw from one source, as in replays.
        drawn = PolicyContext(self.clock, wallSeconds, random=Random(self._gateSeed))
        self._poolDescription = f"bounded:{memoryLimitBytes() // POOL_SHARE}" if pool is None else pool
        memory = _POOL.built(self._poolDescription, context)
        # An order that is given knows those that wait for memory; those that wait for a turn are others.
        described = order if isinstance(order, str) else DEFAULT_ORDER
        memoryOrder, turnOrder, answerOrder, decodingOrder = (
            _ORDER.built(each, drawing)
            for each, drawing in (
                (order, drawn),
                (described, drawn),
                (DEFAULT_ORDER, context),
                (DEFAULT_ORDER, context),
            )
        )
        self.gate = Gate(memory, self.clock, memoryOrder, turnOrder, answerOrder, decodingOrder)
        self.purgatory: IPurgatory = _PURGATORY.built(purgatory, context)
        placeOrder = _ORDER.built(described, context)
        self.places = PlaceQueue(memory, self.clock, self.purgatory, placeOrder)
        policies = _QUOTA.builtEach(quota, context)
        shared = [description for *_, description in policies if ":shared=yes" in description]
        if shared:
            raise PolicyError(f"quota: {shared[0]}: only gateways share limits (--shared-limits); leave out shared=yes")
        exporters = _EXPORT.builtEach(export, context)
        self.idlePolicies = [name for name, policy, _ in policies if ICountsRequests.providedBy(policy)]
        self._policyDescriptions = [description for _, _, description in policies]
        self._exports = [description for _, _, description in exporters]
        self.control = AdmissionControl(
            [(name, policy) for name, policy, _ in policies], MAX_DELAY_SECONDS, bool(exporters)
        )
        self.debts = Debts()
        self.control.whenConfigured += [self._configured, self.debts.configured]
        self.hangUpWatch = HangUpWatch(reactor)
        self.sensors = SensorRegistry(self.clock.seconds)
        self._factories: list[AdmittedFactory] = []
        self._atWork: set[AdmittedFactory] = set()
        self._underWay: set[object] = set()
        self.workNumbers = count(FIRST_WORK_NUMBER)
        self.isStopping = False
        self._workEnded: list[Deferred[None]] = []
        self._times = RequestTimes(self.clock.seconds)
        self._recorder = EventRecorder([(name, exporter) for name, exporter, _ in exporters], self.clock, self.sensors)
        self.observers: tuple[Observer, ...] = (RequestRecording(self._recorder),) if exporters else ()
        self._storing: Deferred[Any] | None = None
        self._stopped: Deferred[Any] | None = None
        self._hasStarted = False
        self._sweepSeconds = -inf
        self._shutdown: Any = None
        self._quotaWindows, self._quotaWindowSeconds = context.quotaWindows, context.quotaWindowSeconds
        self._hasRecorded = False
        self._trouble: str | None = None
        self.addSensors(self.sensors)
        self.purgatory.addSensors(self.sensors, "Request")

    # The servers

    def wrap(
        self,
        factory: Any,
        *,
        nameOf: NameOf | None = None,
        maxUnsentBytes: int | None = None,
        countsBytes: bool = True,
    ) -> WrappedFactory:
        """
        Protect a server as it is, by its bytes: what this returns goes wherever C{factory} went.  See L{wrapFactory}.

        @param countsBytes: whether its bytes count towards limits; not if its protocol has each of its requests
            admitted, and charged for.
        @raise TypeError: for a factory or a function that is none.
        @raise ValueError: if C{maxUnsentBytes} is no positive number, or the factory is protected already.
        """
        if not IProtocolFactory.providedBy(factory):
            raise TypeError(f"factory={factory!r}: give an IProtocolFactory, such as Factory.forProtocol(YourProtocol)")
        if isinstance(factory, AdmittedFactory):
            raise ValueError(f"factory={factory!r}: it is protected already; listen with it as it is")
        if nameOf is not None and not callable(nameOf):
            raise TypeError(f"nameOf={nameOf!r}: give a function that takes a protocol and tells who its peer is")
        if maxUnsentBytes is not None and not (isinstance(maxUnsentBytes, int) and maxUnsentBytes >= 1):
            raise ValueError(f"maxUnsentBytes={maxUnsentBytes!r}: write a number of bytes, 1 or more")
        return self._served(
            WrappedFactory(
                factory,
                self.gate,
                self.control,
                self.clock,
                self.hangUpWatch,
                self.limits,
                nameOf,
                maxUnsentBytes,
                self.debts,
                countsBytes,
            )
        )

    def frames(self, makeProtocol: Callable[[], AdmittedProtocol], listener: str = "") -> AdmittedFactory:
        """
        Serve requests in frames.

        @param makeProtocol: makes the protocol of a new connection: a subclass of L{AdmittedProtocol
            <admission.connection.admitted.AdmittedProtocol>}, or what returns one.
        @param listener: the name of the port, for recordings.
        @return: the factory to listen with.
        @raise TypeError: if nothing can be made with it, or its C{framing} is none.
        @raise ValueError: if its C{maxInFlight} is no number of requests.
        """
        isOther = isinstance(makeProtocol, type) and not issubclass(makeProtocol, AdmittedProtocol)
        if isOther or not callable(makeProtocol):
            raise TypeError(f"makeProtocol={makeProtocol!r}: give a subclass of AdmittedProtocol")
        framing = getattr(makeProtocol, "framing", AdmittedProtocol.framing)
        if isinstance(framing, type) or not hasattr(framing, "parse"):
            raise TypeError(f"framing={framing!r}: give an object, such as Netstring()")
        maxInFlight = getattr(makeProtocol, "maxInFlight", 1)
        if not (isinstance(maxInFlight, int) and maxInFlight >= 1):
            raise ValueError(f"maxInFlight={maxInFlight!r}: write a number, 1 or more")

        def make() -> AdmittedProtocol:
            protocol = makeProtocol()
            protocol.listener = listener
            return protocol

        make.__name__ = getattr(makeProtocol, "__name__", "frames")
        factory = AdmittedFactory(make, self.gate, self.clock, self.hangUpWatch, self.limits, self.control, self.debts)
        factory.identityNumbers = self.identityNumbers
        factory.observers = self.observers
        return self._served(factory)

    def work(
        self,
        kind: str,
        *,
        principal: str = "",
        clientId: str = "",
        peer: str = "",
        receivedBytes: int = 0,
        traits: Traits = ORDINARY,
        identities: Sequence[int | bytes] = (),
    ) -> UnitOfWork:
        """
        A piece of work inside of any protocol, as a request that the quota policies admit, and are charged for::

            with admission.work("report", clientId="alice", receivedBytes=len(query)) as work:
                answer = await render(query)
                work.sentBytes = len(answer)

        It may be awaited within, and is over when the context is left, whatever happens; C{work.delaySeconds} then says
        for how long its client has to wait.

        @param kind: a word for policies, page and recording, one of a few dozen at most.
        @param principal: who asks, if that has been verified.
        @param clientId: what the client calls itself; C{principal} or else C{peer}, if it says nothing.
        @param peer: the client's address, without its port.
        @param receivedBytes: how much was received for it.
        @param traits: whether its bytes count, and whether it waits for other clients.
        @param identities: others that it carries, of which C{producer-ids} limits new ones: whole numbers, or bytes, 64
            at most.
        @return: a context; to enter it raises L{WorkRefused <admission.connection.unitofwork.WorkRefused>} if the work
            is not admitted, its client still has to wait, or the server stops.
        """
        now = self.clock.seconds()
        if not self._atWork:
            self._serve()
            if now >= self._sweepSeconds:
                self._sweepSeconds = now + SWEEP_SECONDS
                self.control.sweep(now)
        return UnitOfWork(self, kind, principal, clientId or principal or peer, peer, receivedBytes, traits, identities)

    def workBegun(self, work: object) -> None:
        """
        Called by a piece of work.
        """
        self._underWay.add(work)

    def workOver(self, work: object) -> None:
        """
        Called by a piece of work that had begun.
        """
        self._underWay.discard(work)
        if self._workEnded and not self._underWay:
            # In a turn of its own: the answer is written once the context has been left.
            ended, self._workEnded = self._workEnded, []
            for each in ended:
                self.clock.callLater(0, each.callback, None)

    def statusSite(
        self,
        *,
        names: Collection[str] = (),
        sections: Sequence[Section] = (),
        checks: Sequence[HealthCheck] = (),
    ) -> StatusSite:
        """
        The page, C{/metrics} and C{/explain} of all of it: C{reactor.listenTCP(9090, admission.statusSite(),
        interface="127.0.0.1")}.  There is no login.

        @param names: see L{statusSite <admission.status.site.statusSite>}, as for C{sections} and C{checks}.
        @raise ValueError: if it is called twice.
        """
        # Only now: it brings twisted.web.
        from .status.site import statusSite

        own = [Section("requests", self._requestsFields), Section("latency", self._times.fields)]
        troubles: HealthCheck = lambda now: [] if self._trouble is None else [self._trouble]  # noqa: E731
        site = statusSite(
            self, names=names, sections=[*own, *sections], checks=[troubles, *checks], sensors=self.sensors
        )
        self.sensors.addFamily("RequestSeconds", ("request", "quantile"), self._times.read)
        self.observers = (*self.observers, self._times)
        for factory in self._factories:
            if not isinstance(factory, WrappedFactory):
                factory.observers = self.observers
        return site

    # The limits

    def setLimits(self, entity: QuotaEntity, limits: Mapping[str, float | None]) -> None:
        """
        Set the limits of a client, or remove those that are L{None}.  Clients that wait do so no longer than these ask
        for, from now on.

        @raise ValueError: for a limit that no policy knows, or that a policy refuses.
        @raise TypeError: for an entity or limits that are none.
        """
        if not isinstance(entity, QuotaEntity):
            raise TypeError(f"entity={entity!r}: give a QuotaEntity, such as QuotaEntity(user='alice')")
        if not isinstance(limits, Mapping):
            raise TypeError(f"limits={limits!r}: give numbers by the names of limits, or None to remove one")
        self.control.configure(entity, limits, wholeMicroseconds(self.clock.seconds()))

    def stop(self) -> Deferred[Any]:
        """
        Have every connection of requests in frames, or of a site, answer what it has read, and close.  Wait for what is
        inside of L{work}, for C{limits.closeGraceSeconds} at most, and then close the connections of other wrapped
        servers, so that what was written leaves.  Then store what was recorded.  The reactor calls this when it stops.

        @return: fires when that is done; does not fail.
        """
        self.isStopping = True
        self.places.dismiss()
        return gatherResults([self._closeAll(canDrain=True), self._endWork()]).addCallback(lambda _: self._store())

    def _closeAll(self, canDrain: bool) -> Deferred[Any]:
        return gatherResults(
            [
                each.closeAll()
                for each in self._atWork
                if (not isinstance(each, WrappedFactory) or each.drainConnection is not None) is canDrain
            ]
        )

    def _endWork(self) -> Deferred[Any]:
        if not self._underWay:
            # Of other wrapped servers nobody knows whether they have anything to do.
            return succeed(None)

        def overdue(failure: Failure) -> None:
            failure.trap(TimeoutError)  # type: ignore[no-untyped-call]

        ended: Deferred[None] = Deferred()
        self._workEnded.append(ended)
        ended.addTimeout(self.limits.closeGraceSeconds, self.clock)
        ended.addErrback(overdue)
        # Nobody knows which of the connections the work was for.
        return ended.addCallback(lambda _: self._closeAll(canDrain=False))

    # What the status page asks, as of a factory

    @property
    def connections(self) -> Mapping[Any, None]:
        return ChainMap(*(factory.connections for factory in self._factories))

    @property
    def requestBytes(self) -> int:
        return sum(factory.requestBytes for factory in self._factories)

    @property
    def responseBytes(self) -> int:
        return sum(factory.responseBytes for factory in self._factories)

    @property
    def refusedConnections(self) -> int:
        return sum(factory.refusedConnections for factory in self._factories)

    @property
    def fullSeconds(self) -> float:
        return max((factory.fullSeconds for factory in self._factories), default=-inf)

    @property
    def names(self) -> str:
        """
        What it serves, for the log.
        """
        return " and ".join(factory.servedName for factory in self._factories)

    def clientIdAt(self, host: str) -> str:
        return host

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish what the gate and the policies know, connections, and how late the reactor is; see
        L{addConnectionSensors <admission.connection.factory.addConnectionSensors>}.

        @raise ValueError: if there are sensors of these names.
        """
        self.gate.addSensors(registry)
        self.control.addSensors(registry)
        addConnectionSensors(registry, self._factories)

    # What happens

    def _served(self, factory: _F) -> _F:
        factory.whenServing, factory.whenResting = self._begun, self._over
        factory.places = self.places
        if self.trustedProxies is not None:
            # Requests that are told apart inside may say whose they are themselves.
            isSite = isinstance(factory, WrappedFactory) and not factory.countsBytes
            factory.believe(self.trustedProxies, isHeaderOptional=isSite)
        self._factories.append(factory)
        return factory

    def _begun(self, factory: AdmittedFactory) -> None:
        self._atWork.add(factory)
        self._serve()
        self.gate.lag.start()

    def _serve(self) -> None:
        if self in _serving:
            return
        self.isStopping = False
        if self._exports:
            self._record()
        if _serving:
            warnOfPools(self, _serving, memoryLimitBytes())
        _serving.add(self)
        self._hasStarted = True
        self.control.start(self.clock.seconds())
        if IReactorCore.providedBy(self.reactor) and self._shutdown is None:
            self._shutdown = self.reactor.addSystemEventTrigger("before", "shutdown", self._reactorStops)

    def _reactorStops(self) -> Deferred[Any]:
        self._shutdown = None
        return self.stop()

    def _over(self, factory: AdmittedFactory) -> None:
        self._atWork.discard(factory)
        if self._atWork:
            return
        _serving.discard(self)
        self.gate.close()
        self.places.close()
        self.hangUpWatch.close()
        if self._shutdown is not None:
            self.reactor.removeSystemEventTrigger(self._shutdown)
            self._shutdown = None
        self._store()

    def _record(self) -> None:
        control = self.control
        origin = Origin(
            "server",
            uuid.uuid4().hex,
            self._gateSeed,
            control.policyNames,
            self._policyDescriptions,
            self._quotaWindows,
            self._quotaWindowSeconds,
            control.maxDelaySeconds,
            self._poolDescription if isinstance(self._poolDescription, str) else None,
        )
        threads = partial(deferToThreadPool, self.reactor, self.reactor.getThreadPool())
        try:
            self._recorder.start(origin, threads)
        except OSError as error:
            self._trouble = f"cannot record to {' and '.join(self._exports)}: {error}; export= says where to"
            # Where a service listens, the reactor goes on without the port; the page says why.
            raise OSError(self._trouble) from error
        self._trouble = None
        if not self._hasRecorded:
            self._hasRecorded = True
            self._recorder.addSensors(self.sensors)
        now = self.clock.seconds()
        for entity, limits in control.limits.items():
            self._recorder.limitsChanged(entity, limits, now)

    def _store(self) -> Deferred[Any]:
        if self._hasStarted:
            self._hasStarted = False
            self._stopped = self.control.stop()
        if self._recorder.isRecording:
            self._storing = self._recorder.stop()
        return gatherResults([each for each in (self._storing, self._stopped) if each is not None])

    def _configured(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        self.places.freed()
        if self._recorder.isRecording:
            self._recorder.limitsChanged(entity, limits, now, CHANGED_BY)

    def _requestsFields(self, now: float) -> dict[str, Any]:
        turns = self.gate.turns
        read = sum(each.requestCount for each in self._factories)
        return {"running": turns.runningRequests, "maxRunning": turns.maxRequests, "read": read}


def wrapFactory(
    factory: Any,
    *,
    pool: str | IMemoryPool | None = None,
    quota: str | IQuotaPolicy | Sequence[str | IQuotaPolicy] = (),
    order: str | IWaitOrder = DEFAULT_ORDER,
    limits: ConnectionLimits | None = None,
    nameOf: NameOf | None = None,
    maxUnsentBytes: int | None = None,
    trustedProxies: str | Sequence[str] | None = None,
    reactor: Any = None,
    clock: IReactorTime | None = None,
) -> WrappedFactory:
    """
    Protect a server: C{wrapFactory(factory, pool="bounded:64MiB",
    quota="client-bytes:received=1M:sent=4M")} goes wherever C{factory} went.
    With TLS that is inside, as with every factory: C{listenSSL} and C{ssl:}
    endpoints are given what this returns.  It is the short form of an
    L{Admission} for one factory.

    @param factory: any L{twisted.internet.interfaces.IProtocolFactory}.
    @param pool: see L{Admission}, like all that is not explained here.
    @param nameOf: given a protocol, who its peer is: a principal and a client
        id, or L{None} while nobody knows.  Until then, and without it, the
        client id is the peer's address.
    @param maxUnsentBytes: a connection that holds so much of what was written
        to it, besides the largest write, is sent that and closed if more is
        written; the size of the pool, unless given.
    @raise PolicyError: for a description that means nothing.
    @raise ValueError: if C{maxUnsentBytes} is no positive number, the factory is protected already, or a policy has
        nothing to count here.
    @raise TypeError: for a factory, a pool, a policy, an order, limits or a
        function that is none.
    """
    admission = Admission(
        pool=pool,
        quota=quota,
        order=order,
        limits=limits,
        trustedProxies=trustedProxies,
        reactor=reactor,
        clock=clock,
    )
    wrapped = admission.wrap(factory, nameOf=nameOf, maxUnsentBytes=maxUnsentBytes)
    if admission.idlePolicies:
        raise ValueError(
            f"quota: {' and '.join(admission.idlePolicies)} would limit nobody: the requests of a wrapped server are "
            "not told apart; leave it out, or serve requests in frames with Admission(...).frames(...)"
        )
    return wrapped


def warnOfPools(serving: Admission, others: Iterable[Admission], limitBytes: int) -> None:
    """
    Log that the pools of several servers may hold more than half of the memory between them, if C{serving} makes it so.
    A pool that alone is larger than the memory was meant to be no bound.

    @param others: those that serve already.
    @param limitBytes: what the process may use.
    """
    before = [each for each in others if each.gate.pool.sizeBytes <= limitBytes]
    together = [*before, serving]
    totalBytes = _poolBytes(together)
    maxBytes = limitBytes // POOLS_SHARE
    if not (maxBytes < totalBytes and serving.gate.pool.sizeBytes <= limitBytes and _poolBytes(before) <= maxBytes):
        return
    _log.warn(
        "the pools of {count} servers may hold {total} together, and the process {limit}: {pools}; give each less, as "
        "in wrapFactory(pool='bounded:64MiB'), or all one Admission, as in Admission(pool='bounded:64MiB').wrap(...)",
        count=len(together),
        total=roundedBytes(totalBytes),
        limit=roundedBytes(limitBytes),
        pools=", ".join(f"{each.names} {roundedBytes(each.gate.pool.sizeBytes)}" for each in together),
    )


def _poolBytes(servers: Iterable[Admission]) -> int:
    """
    The size of the pools of several servers together; nothing if they all have one.
    """
    pools = {id(each.gate.pool): each.gate.pool.sizeBytes for each in servers}
    return sum(pools.values()) if len(pools) > 1 else 0


def _storedKey(path: str) -> bytes:
    """
    The key in a file, which is made if it is not there.

    @raise ValueError: if it cannot be read or made.
    """
    try:
        if not os.path.lexists(path):
            # Another process may make it, too, and must not read half of it.
            with NamedTemporaryFile(dir=os.path.dirname(path) or os.curdir) as file:
                file.write(token_bytes(IDENTITY_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
                with suppress(FileExistsError):
                    os.link(file.name, path)
        key = readBounded(path, IDENTITY_KEY_BYTES)
    except OSError as error:
        raise ValueError(f"identityKey={path!r}: {error.strerror or error}") from error
    if len(key) != IDENTITY_KEY_BYTES:
        raise ValueError(f"identityKey={path!r}: it has {len(key)} bytes, and a key has {IDENTITY_KEY_BYTES}")
    return key


class _Setting(NamedTuple):
    """
    An argument that names plug-ins, or is made of them.

    @ivar example: a description, to show where something else was given.
    """

    name: str
    factoryInterface: type[IPolicyFactory]
    interface: type[Interface]
    example: str

    def built(self, given: Any, context: PolicyContext) -> Any:
        """
        What is given, built if it is a description.
        """
        if isinstance(given, str):
            try:
                return buildPolicy(self.factoryInterface, given, context)
            except PolicyError as error:
                raise PolicyError(f"{self.name}: {error}") from error
        if not self.interface.providedBy(given):
            wanted = f"a description such as {self.example!r}, or an {self.interface.__name__}"
            raise TypeError(f"{self.name}={given!r}: give {wanted}")
        return given

    def builtEach(self, given: Any, context: PolicyContext) -> list[tuple[str, Any, str]]:
        """
        The same for one or several.

        @return: of each its name, which its sensors have, the plug-in, and its description.
        """
        named: dict[str, tuple[Any, str]] = {}
        isOne = isinstance(given, str | Mapping) or self.interface.providedBy(given) or not isinstance(given, Iterable)
        for each in [given] if isOne else given:
            policy = self.built(each, context)
            description = each if isinstance(each, str) else type(each).__name__
            name = parseDescription(each)[0] if isinstance(each, str) else description
            number = sum(used.partition("#")[0] == name for used in named) + 1
            named[name if number == 1 else f"{name}#{number}"] = policy, description
        return [(name, policy, description) for name, (policy, description) in named.items()]


_POOL = _Setting("pool", IMemoryPoolFactory, IMemoryPool, "bounded:64MiB")
_ORDER = _Setting("order", IWaitOrderFactory, IWaitOrder, "holders")
_PURGATORY = _Setting("purgatory", IPurgatoryFactory, IPurgatory, "wheel")
_QUOTA = _Setting("quota", IQuotaPolicyFactory, IQuotaPolicy, "client-bytes:received=1M")
_EXPORT = _Setting("export", IMetricsExporterFactory, IMetricsExporter, "spark:recording")

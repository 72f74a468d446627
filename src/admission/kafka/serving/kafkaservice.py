# -*- test-case-name: tests.unit.kafka.broker.test_service -*-
"""
What all services of C{twistd} that speak Kafka's protocol have in common, with the real reactor and the real clocks.
"""

from __future__ import annotations

import math
import resource
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from random import Random, SystemRandom
from typing import Any, ClassVar, Generic, Self, TypeVar

from attrs import evolve, frozen
from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredLock, inlineCallbacks, maybeDeferred
from twisted.internet.interfaces import IAddress, IListeningPort
from twisted.internet.protocol import Protocol, ServerFactory
from twisted.internet.task import LoopingCall, deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.logger import FileLogObserver, Logger
from twisted.python.usage import UsageError

from admission._version import isCompiled
from admission.clock import MonotonicClock, useMonotonicTimers, wallSeconds
from admission.connection.factory import AdmittedFactory, ConnectionLimits
from admission.connection.hangup import HangUpWatch
from admission.connection.trustedproxies import TrustedProxies
from admission.control import SWEEP_SECONDS, AdmissionControl
from admission.garbage import GarbageCollection
from admission.gate.gate import Gate
from admission.interfaces import QuotaEntity
from admission.metrics.registry import SensorRegistry
from admission.profiling.objectgroups import Group
from admission.profiling.profiler import Profiler
from admission.profiling.reports import MemoryReports
from admission.recording.events import KEPT, Origin
from admission.recording.recorder import EventRecorder
from admission.recording.requestrecording import RequestRecording
from admission.recording.tables import REQUESTS
from admission.status.pages import StatusPages
from admission.status.sections import bounded
from admission.units import formatBytes, formatSeconds

from .kafkaevents import kafkaEventOf, principalAtFirst
from .logformat import observeLog
from .memoryuse import MemoryProfile, claimsOf, makeProfiler
from .recordedcolumns import KAFKA_COLUMNS
from .reload import Configuration, ReloadSignal, takeOver
from .secondsignal import SecondSignal
from .server import Server
from .serveroptions import (
    Listener,
    ServerOptions,
    buildControl,
    buildExporters,
    buildOrder,
    buildPool,
    certificatesAnew,
    poolDescription,
    quotaDescriptions,
)
from .serverports import CannotStart, ServerPorts, raiseDescriptorLimit, statusPortOf
from .serversettings import RESERVED_DESCRIPTORS, ServerSettings
from .serverstatus import ServerStatus, describeAddresses
from .session import KafkaSession, SessionFactory

PRESSURE_LOGGED_EVERY_SECONDS = 60.0

LIMIT_SETTINGS = {
    "maxConnections": "max.connections",
    "maxConnectionsPerAddress": "max.connections.per.ip",
    "idleSeconds": "connections.max.idle.ms",
    "receiveSeconds": "request.receive.timeout",
    "sendSeconds": "response.send.timeout",
    "closeGraceSeconds": "close.grace.timeout",
    "handshakeSeconds": "tls.handshake.timeout",
}
"""The properties that L{ConnectionLimits} are made of."""


S = TypeVar("S", bound=ServerSettings)


@frozen
class ServerConfig(Generic[S]):
    """
    What every server is configured with.  A description has the syntax of the option of the same name; L{None} or an
    empty one means the default.

    @ivar dataPath: the directory of what it keeps.
    @ivar statusListener: where to serve the status pages, if anywhere.
    @ivar memoryProfile: from C{--profile-memory}.
    @ivar makeLogObserver: makes what writes the log; L{None} if C{twistd} does that.
    @ivar read: reads the file of properties, see L{ServerOptions.read}; called when SIGHUP asks for it.
    @ivar processes: how many processes serve together, each with an equal part of the pool and of the connections.
    @ivar process: which of them this one is, from 1; L{None} if it is the only one, or serves nobody.
    """

    settings: S
    listeners: Sequence[Listener]
    dataPath: str
    statusListener: Listener | None = None
    pool: str | None = None
    order: str | None = None
    quotas: Sequence[str] = ()
    exports: Sequence[str] = ()
    memoryProfile: MemoryProfile | None = None
    makeLogObserver: Callable[[], FileLogObserver] | None = None
    read: Callable[[], Configuration[S] | None] | None = None
    processes: int = 1
    process: int | None = None

    @property
    def sharesLimits(self) -> bool:
        """
        Whether it enforces limits together with other servers, which it tells what clients take.
        """
        return False

    @classmethod
    def of(cls, options: ServerOptions, **further: Any) -> Self:
        """
        The configuration that the options of a command line describe.

        @param further: what a subclass adds.
        """
        return cls(
            settings=options["settings"],
            listeners=options["listeners"],
            dataPath=options["data"],
            statusListener=options["statusListener"],
            pool=options["pool"],
            order=options["order"],
            quotas=options["quota"],
            exports=options["export"],
            memoryProfile=options["memoryProfile"],
            makeLogObserver=options["makeLogObserver"],
            read=options.read,
            **further,
        )


class ListenerFactory(ServerFactory):
    """
    The factory of one port; its connections know the address that the port advertises.
    """

    noisy = False

    def __init__(self, service: KafkaService, listener: Listener) -> None:
        self._service = service
        self._listener = listener

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        protocol = self._service.factory.buildProtocol(addr)
        if isinstance(protocol, KafkaSession):
            self._service.arrivedBy(self._listener, protocol)
        return protocol


class KafkaService(Service):
    """
    A server and its ports: what a subclass answers with is made by L{makeServer}, and ended by L{drainServer}.

    @cvar memoryGroups: components of its memory that only it has, see L{makeProfiler}.
    @cvar whatIsKept: what is in the directory of its data, for the log.
    @cvar descriptorsOfConnection: how many files and sockets a connection of a client takes.
    @ivar factory: the connections.  Like C{server} and C{sensors}, it exists
        once the service has been started.
    @ivar sensors: the sensors of the server.
    """

    log = Logger()

    memoryGroups: ClassVar[Sequence[Group]] = ()
    whatIsKept = "the log"
    descriptorsOfConnection = 1

    factory: AdmittedFactory
    server: Server[Any]
    sensors: SensorRegistry

    def __init__(self, reactor: Any, config: ServerConfig[Any]) -> None:
        self._reactor = reactor
        self._config = config
        self._statusPort = statusPortOf(config.statusListener, config.listeners, reactor)
        self._ports = ServerPorts(self._statusPort)
        self._configuration = None if config.read is None else config.read()
        self._reloadSignal = ReloadSignal(reactor, self.reload)
        self._started = AsyncExitStack()
        self._stopping = DeferredLock()
        self._status: ServerStatus | None = None
        self._hasListened = False
        self._pressureLoggedSeconds = float("-inf")

    # What a subclass says

    def makeServer(self, gate: Gate, control: AdmissionControl, started: AsyncExitStack) -> Server[Any]:
        """
        Make what sessions share.

        @param started: closes what is started, in reverse order.
        @raise CannotStart: if it cannot be made.
        """
        raise NotImplementedError

    def recordingStarted(self, recorder: EventRecorder, started: AsyncExitStack) -> None:
        """
        What is recorded is recorded from now on, and no client has connected.

        @param started: see L{makeServer}.
        """

    def makeSession(self) -> KafkaSession:
        raise NotImplementedError

    def makeStatus(self) -> ServerStatus:
        raise NotImplementedError

    @property
    def hasPages(self) -> bool:
        """
        Whether anybody can ask how it is.
        """
        return self._statusPort is not None

    def servePages(self, pages: StatusPages, started: AsyncExitStack) -> None:
        """
        Say how it is, from now on.

        @param started: see L{makeServer}.
        """
        assert self._statusPort is not None
        pages.history.start()
        started.callback(pages.history.stop)
        self._statusPort.serve(pages.root)
        started.push_async_callback(self._statusPort.stop)

    def drainServer(self) -> None:
        """
        All connections have been told to end: have what waits answered.
        """

    def arrivedBy(self, listener: Listener, session: KafkaSession) -> None:
        """
        A client has connected to one of the ports.
        """
        session.advertised = listener.advertised
        session.listener = listener.description

    @property
    def whatServes(self) -> str:
        """
        What is served, and from where, for the log.
        """
        raise NotImplementedError

    def reservedDescriptors(self) -> int:
        """
        How many files and sockets it has open besides its clients' connections.
        """
        return RESERVED_DESCRIPTORS

    # What twistd calls

    def setServiceParent(self, parent: Any) -> None:
        """
        Also tell the application that C{twistd} makes how to log.
        """
        observeLog(parent, self._config.makeLogObserver)
        super().setServiceParent(parent)  # type: ignore[no-untyped-call]

    def privilegedStartService(self) -> None:
        """
        Bind the ports while the process still has its privileges.  No connection is
        accepted before the reactor runs.
        """
        self._hasListened = True
        self._ports.listen(self._config.listeners, partial(ListenerFactory, self), self._opened, self._cannotListen)

    def _opened(self, port: IListeningPort) -> None:
        if self.running:
            self.factory.addPort(port)

    def _cannotListen(self, reason: str) -> None:
        if self.running:
            self.log.critical("{reason}", reason=reason)
            self._reactor.stop()

    def startService(self) -> None:
        """
        Begin to serve.  This cannot happen earlier: a daemon has
        its final process only now.
        """
        if not self._hasListened:
            # Only some of the commands that run services make two steps of it.
            self.privilegedStartService()
        try:
            self._start()
        except BaseException:
            # As a rule the process ends now; where it does not, stopService closes what was started.
            self._ports.stop()
            raise
        super().startService()  # type: ignore[no-untyped-call]
        if self._config.read is not None:
            self._reloadSignal.start()
        pool = self.server.gate.pool
        self.log.info(
            "serving {what}, listening on {addresses}, with {memory} for requests, each of up to {largest}, {made}",
            what=self.whatServes,
            addresses=" and ".join(describeAddresses(port.getHost() for port in self._ports.open)) or "no port yet",
            memory="any memory" if bounded(pool.sizeBytes) is None else f"{formatBytes(pool.sizeBytes)} of memory",
            largest=formatBytes(min(self._config.settings.socketRequestMaxBytes, pool.largestBytes)),
            made="compiled" if isCompiled() else "in pure Python",
        )

    @inlineCallbacks
    def stopService(self) -> Any:
        """
        Drain: accept no connections, read nothing more, answer what has been read,
        close every connection after its last response, then close the log
        and have the exporters finish.  A second SIGTERM ends the wait for clients.

        @return: a L{Deferred} that fires when the data directory is free.
        """
        yield maybeDeferred(super().stopService)
        self._reloadSignal.stop()
        if self._status is not None:
            self._status.isDraining = True
        with SecondSignal(self._reactor, self.hurry):
            # Two concurrent calls would each take half of the closers.
            yield self._stopping.run(lambda: Deferred.fromCoroutine(self._started.aclose()))
        self.log.info("stopped: {what} at {path} is closed", what=self.whatIsKept, path=self._config.dataPath)

    def reload(self) -> None:
        """
        Read the files of certificates and the file of properties again, and put in force what may change while the
        server runs.  A mistake in one of them changes nothing that it says; the log says what came of it.
        """
        hasCertificates = self._reloadCertificates()
        before, config = self._configuration, self._config
        assert config.read is not None
        try:
            found = config.read()
            if before is None or found is None:
                if not hasCertificates:
                    self.log.warn("there is nothing to reload: no file of properties was named (--config)")
                return
            settings, changes, waiting = takeOver(config.settings, found.settings)
            control = buildControl(settings, found.quotas, self._clock, isShared=config.sharesLimits)
            if found.quotas != before.quotas and not self._hasSamePolicies(control):
                waiting.append("quota")
                found = evolve(found, quotas=before.quotas)
                control = buildControl(settings, found.quotas, self._clock, isShared=config.sharesLimits)
        except UsageError as error:
            self.log.error("nothing is reloaded: {error}", error=error)
            return
        names = dict.fromkeys([*before.options, *found.options])
        waiting += [name for name in names if before.options.get(name) != found.options.get(name)]
        self._configuration = evolve(found, options=before.options)
        self._config = evolve(config, settings=settings, quotas=found.quotas)
        self.server.settings = settings
        self.server.settingsChanged()
        self.factory.limits = self._connectionLimits()
        isLimited = self.server.limits.setStatic(control.limits, "the reloaded configuration")
        for change in changes:
            self.log.info(
                "{name} was {before} and is {after}", name=change.name, before=change.before, after=change.after
            )
        if found.quotas != before.quotas:
            self.log.info("limits in quota are in force as they are now; what else it says, after a restart")
        if waiting:
            self.log.warn("in force only after a restart: {names}", names=", ".join(waiting))
        if not (changes or waiting or isLimited):
            self.log.info("nothing to reload has changed in {path}", path=found.path)

    def _reloadCertificates(self) -> bool:
        """
        @return: whether there are any.
        """
        config = self._config
        status = [] if config.statusListener is None else [config.statusListener]
        try:
            found = certificatesAnew([*config.listeners, *status])
        except UsageError as error:
            self.log.error("certificates stay as they are: {error}", error=error)
            return True
        for endpoint, context in found:
            endpoint.use(context)
        if found:
            ports = "1 port" if len(found) == 1 else f"{len(found)} ports"
            self.log.info("new connections to {ports} get the certificates that are in the files now", ports=ports)
        return bool(found)

    def _hasSamePolicies(self, control: AdmissionControl) -> bool:
        """
        Whether the limits in the description of each policy can be told from those of others.
        """
        return control.policyNames == self.server.control.policyNames and not control.sharesLimits

    def _start(self) -> None:
        """
        Start one thing after another.  When the service stops, the closers in
        C{_started} run in reverse order, one after another.

        @raise CannotStart: if something cannot be started.
        """
        reactor, config, settings = self._reactor, self._config, self._config.settings
        started = self._started = AsyncExitStack()
        useMonotonicTimers(reactor)
        clock = self._clock = MonotonicClock(reactor)
        profiler: Profiler | None = None
        if config.memoryProfile is not None or self.hasPages:
            profiler = makeProfiler(clock, wallSeconds, lambda: claimsOf(self.server.gate), self.memoryGroups)
        self.sensors = SensorRegistry(clock.seconds)

        recorder = EventRecorder(buildExporters(config.exports, clock), clock, self.sensors)
        started.push_async_callback(recorder.stop)
        # The factory says that the last connection is gone just before that connection tells the recorder.
        started.push_async_callback(deferLater, reactor, 0)

        hangUpWatch = HangUpWatch(reactor)
        started.callback(hangUpWatch.close)

        gateSeed = SystemRandom().getrandbits(63)
        # Both draw from the same source, as in replays.
        random = Random(gateSeed)
        memoryOrder, turnOrder = (buildOrder(config.order, clock, random) for _ in range(2))
        # Not replayed, so they have a source of their own.
        answerOrder, decodingOrder = (buildOrder(config.order, clock, Random()) for _ in range(2))
        pool = buildPool(settings, config.pool, clock, config.processes)
        gate = Gate(pool, clock, memoryOrder, turnOrder, answerOrder, decodingOrder, settings.queuedMaxRequests)
        gate.addSensors(self.sensors)
        gate.pressure.subscribe(self._pressed)
        started.callback(gate.close)

        control = buildControl(settings, config.quotas, clock, bool(config.exports), config.sharesLimits)
        control.addSensors(self.sensors)
        control.start(clock.seconds())
        started.push_async_callback(control.stop)
        self.server = self.makeServer(gate, control, started)
        self._startKeeping()
        self._startRecording(recorder, gateSeed)
        self.recordingStarted(recorder, started)

        limits = self._connectionLimits()
        self.factory = SessionFactory(
            self.makeSession, gate, clock, hangUpWatch, limits, control, debts=self.server.debts
        )
        if settings.trustedProxies:
            self.factory.believe(TrustedProxies(settings.trustedProxies))
        if recorder.isRecording:
            self.factory.observers = (RequestRecording(recorder, kafkaEventOf, principalAtFirst),)

        self._startStatus(profiler)

        for port in self._ports.open:
            self.factory.addPort(port)
        self.factory.start()
        started.push_async_callback(self._drain)
        started.push_async_callback(self._stopAccepting)
        garbage = GarbageCollection(clock, goneConnections=lambda: self.factory.goneConnections)
        garbage.start()
        started.callback(garbage.stop)
        gate.lag.start()

        if config.memoryProfile is not None and profiler is not None:
            self._startReports(config.memoryProfile, profiler)

    def _drain(self) -> Deferred[None]:
        """
        @return: fires when the last connection is gone.
        """
        self.factory.stop()
        self.log.info(
            "stopping: {count} connections end after their last response, within {grace} (close.grace.timeout)",
            count=len(self.factory.connections),
            grace=formatSeconds(self._config.settings.closeGraceTimeoutSeconds),
        )
        emptied = self.factory.closeAll()
        # Not earlier: a client that is answered would have its next request read.
        self.drainServer()
        return emptied

    def hurry(self) -> None:
        """
        Do not wait for clients any more while it stops.
        """
        self.log.warn("asked to stop again: {count} connections are cut off", count=len(self.factory.connections))
        self.factory.abortAll()

    def _connectionLimits(self) -> ConnectionLimits:
        settings, processes = self._config.settings, self._config.processes
        idleSeconds = settings.connectionsMaxIdleSeconds
        maxConnections = math.ceil(settings.maxConnections / processes)
        return ConnectionLimits(
            maxConnections=min(maxConnections, self._descriptorLimit(maxConnections)),
            maxConnectionsPerAddress=math.ceil(settings.maxConnectionsPerIp / processes),
            idleSeconds=math.inf if idleSeconds is None else idleSeconds,
            receiveSeconds=settings.requestReceiveTimeoutSeconds,
            sendSeconds=settings.responseSendTimeoutSeconds,
            closeGraceSeconds=settings.closeGraceTimeoutSeconds,
            handshakeSeconds=settings.tlsHandshakeTimeoutSeconds,
            settingNames=LIMIT_SETTINGS,
        )

    def _startStatus(self, profiler: Profiler | None) -> None:
        self._status = self.makeStatus()
        self._status.addSensors()
        if profiler is not None:
            self._started.callback(profiler.stop)
        if self.hasPages:
            self.factory.observers = (*self.factory.observers, self._status.times)
            self.servePages(self._status.pages(self._reactor, profiler, self._config.process), self._started)

    def _startRecording(self, recorder: EventRecorder, gateSeed: int) -> None:
        config, settings, control = self._config, self._config.settings, self.server.control
        origin = Origin(
            str(settings.brokerId) if config.process is None else f"{settings.brokerId}-{config.process}",
            uuid.uuid4().hex,
            gateSeed,
            control.policyNames,
            quotaDescriptions(settings, config.quotas, config.sharesLimits),
            settings.quotaWindowNum,
            settings.quotaWindowSizeSeconds,
            control.maxDelaySeconds,
            poolDescription(settings, config.pool, config.processes),
            control.limitShare,
        )
        try:
            recorder.start(origin, self._deferToThread)
        except Exception as error:
            raise CannotStart(
                f"admission: cannot record to {' and '.join(config.exports)}: {error}; --export says where to"
            ) from error
        if not recorder.isRecording:
            return
        declared = {column.name for columns in KAFKA_COLUMNS.values() for column in columns}
        missing = sorted(declared.difference(column.name for column in REQUESTS.columns))
        if missing:
            self.log.warn(
                "{columns} are not recorded: what pip knows of admission is missing or old; install it again",
                columns=", ".join(missing),
            )
        recorder.addSensors(self.sensors)
        now = self._clock.seconds()
        for entity, limits in control.limits.items():
            recorder.limitsChanged(entity, limits, now)
        for name, numbers in self.server.limits.kept().items():
            for key, number in numbers.items():
                recorder.limitsChanged(QuotaEntity(user=key), {f"{KEPT}{name}": number}, now)
        # The name without the address after it, of which there may be any number.
        self.server.limits.onEnforced = lambda entity, limits, by, now: recorder.limitsChanged(
            entity, limits, now, by.rpartition(" at ")[0] or by
        )

    def _startKeeping(self) -> None:
        """
        Store from time to time what policies are to know after a restart, and once more after the last request.
        """
        keep = self.server.limits.keep
        keeping = LoopingCall(keep)
        keeping.clock = self._clock
        keeping.start(SWEEP_SECONDS, now=False)
        self._started.callback(keep)
        self._started.callback(keeping.stop)

    def _startReports(self, profile: MemoryProfile, profiler: Profiler) -> None:
        reports = MemoryReports(profiler, profile.directory, profile.intervalSeconds, self._clock, self._deferToThread)
        try:
            reports.start()
        except OSError as error:
            raise CannotStart(
                f"admission: cannot write to {profile.directory}: {error.strerror}; --profile-memory says where to"
            ) from error
        self._started.callback(reports.stop)

    def _deferToThread(self, function: Any, *args: Any) -> Deferred[Any]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), function, *args)

    def _stopAccepting(self) -> Deferred[Any]:
        self._hasListened = False
        return self._ports.stopAccepting()

    def _descriptorLimit(self, wanted: int) -> int:
        """
        Raise the limit on open files to what C{wanted} connections need, as far as
        the system allows.

        @return: the number of connections that the limit then allows.
        """
        reserved = self.reservedDescriptors()
        each = self.descriptorsOfConnection
        needed = wanted * each + reserved
        soft, hard = raiseDescriptorLimit(needed)
        if soft != resource.RLIM_INFINITY and soft < needed:
            self.log.warn(
                "the limit on open files, {hard}, allows {allowed} connections and not {wanted} (max.connections); "
                "raise it with ulimit -n",
                hard=hard,
                allowed=max((soft - reserved) // each, 1),
                wanted=wanted,
            )
        return wanted if soft == resource.RLIM_INFINITY else max((int(soft) - reserved) // each, 1)

    def _pressed(self, isPressed: bool) -> None:
        now = self._clock.seconds()
        if isPressed and now - self._pressureLoggedSeconds >= PRESSURE_LOGGED_EVERY_SECONDS:
            self._pressureLoggedSeconds = now
            self.log.warn(
                "the memory pool is empty: clients wait for their turn; where it is: {ledger}",
                ledger=", ".join(
                    f"{purpose} {formatBytes(held)}" for purpose, held in self.server.gate.ledger.usedBytes.items()
                ),
            )

# -*- test-case-name: tests.unit.kafka.test_service -*-
"""
The broker as a service of C{twistd}, with the real reactor and the real clocks.
"""

from __future__ import annotations

import math
import resource
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from random import Random, SystemRandom
from socket import gethostname
from typing import Any

from attrs import frozen
from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, DeferredLock, inlineCallbacks, maybeDeferred
from twisted.internet.interfaces import IAddress, IListeningPort
from twisted.internet.protocol import Protocol, ServerFactory
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from .._version import isCompiled
from ..clock import BELIEVED_AFTER_SECONDS, AgeClock, MonotonicClock, useMonotonicTimers, wallSeconds
from ..connection.factory import AdmittedFactory, ConnectionLimits, peerName
from ..connection.hangup import HangUpWatch
from ..garbage import GarbageCollection
from ..gate import Gate
from ..metrics.registry import SensorRegistry
from ..profiling.profiler import Profiler
from ..profiling.reports import MemoryReports
from ..recording.events import Origin
from ..recording.recorder import EventRecorder
from ..recording.tables import REQUESTS
from ..status.site import StatusPort
from ..units import formatBytes, formatSeconds
from .broker.broker import Broker
from .broker.brokersession import BrokerSession
from .broker.log.interface import LogRefusal
from .broker.log.segmentlog import SegmentLog
from .brokersettings import RESERVED_DESCRIPTORS, Settings
from .memoryuse import MemoryProfile, claimsOf, makeProfiler
from .options import (
    Listener,
    Options,
    buildControl,
    buildExporters,
    buildOrder,
    buildPool,
    buildPurgatory,
    poolDescription,
    quotaDescriptions,
)
from .recordedcolumns import KAFKA_COLUMNS
from .requestrecording import BrokerRecording
from .secondsignal import SecondSignal
from .security.checkers import makePortal
from .session import KafkaSession
from .statussections import BrokerStatus

PRESSURE_LOGGED_EVERY_SECONDS = 60.0


class CannotStart(SystemExit, Exception):
    """
    The broker cannot start; the message is for the operator.

    In the foreground L{SystemExit} ends the process with this message alone.
    But C{twistd} removes its process file, and tells the process that waits
    for a daemon to start, only when it sees an L{Exception}.
    """


@frozen
class BrokerConfig:
    """
    The configuration of a broker.  A description has the syntax of the option of
    the same name; L{None} or an empty one means the default.

    @ivar dataPath: the directory of the log.
    @ivar statusListener: where to serve the status pages, if anywhere.
    @ivar checkers: from C{--auth}; without any, clients need not log in.
    @ivar memoryProfile: from C{--profile-memory}.
    """

    settings: Settings
    listeners: Sequence[Listener]
    dataPath: str
    statusListener: Listener | None = None
    checkers: Sequence[Any] = ()
    pool: str | None = None
    order: str | None = None
    purgatory: str | None = None
    quotas: Sequence[str] = ()
    exports: Sequence[str] = ()
    memoryProfile: MemoryProfile | None = None


def makeService(options: Options) -> BrokerService:
    """
    Make the service; called by C{twistd}.
    """
    from twisted.internet import reactor

    config = BrokerConfig(
        settings=options["settings"],
        listeners=options["listeners"],
        dataPath=options["data"],
        statusListener=options["statusListener"],
        checkers=options.checkers(),
        pool=options["pool"],
        order=options["order"],
        purgatory=options["purgatory"],
        quotas=options["quota"],
        exports=options["export"],
        memoryProfile=options["memoryProfile"],
    )
    return BrokerService(reactor, config)


class ListenerFactory(ServerFactory):
    """
    The factory of one port; its connections know the address that the port advertises.
    """

    noisy = False

    def __init__(self, service: BrokerService, listener: Listener) -> None:
        self._service = service
        self._listener = listener

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        protocol = self._service.factory.buildProtocol(addr)
        if isinstance(protocol, KafkaSession):
            protocol.advertised = self._listener.advertised
            protocol.listener = self._listener.description
        return protocol


class BrokerService(Service):
    """
    The broker, its log and its ports.

    @ivar factory: the connections.  Like C{broker} and C{sensors}, it exists
        once the service has been started.
    @ivar sensors: the sensors of the broker.
    """

    log = Logger()

    factory: AdmittedFactory
    broker: Broker
    sensors: SensorRegistry

    def __init__(self, reactor: Any, config: BrokerConfig) -> None:
        self._reactor = reactor
        self._config = config
        self._portal = makePortal(config.checkers) if config.checkers else None
        self._statusPort: StatusPort | None = None
        if config.statusListener is not None:
            names = [gethostname(), *(each.advertised.host for each in config.listeners if each.advertised is not None)]
            self._statusPort = StatusPort(
                config.statusListener.description, config.statusListener.endpoint, reactor, names, "--advertise"
            )
        self._ports: list[IListeningPort] = []
        self._started = AsyncExitStack()
        self._stopping = DeferredLock()
        self._status: BrokerStatus | None = None
        self._hasListened = False
        self._pressureLoggedSeconds = float("-inf")

    def privilegedStartService(self) -> None:
        """
        Bind the ports while the process still has its privileges.  No connection is
        accepted before the reactor runs.
        """
        self._hasListened = True
        failures: list[str] = []

        def listens(port: IListeningPort) -> None:
            self._ports.append(port)
            if self.running:
                self.factory.addPort(port)

        def cannotListen(failure: Failure, listener: Listener | StatusPort) -> None:
            reason = f"cannot listen on {listener.description}: {failure.getErrorMessage()}"
            failures.append(reason)
            if self.running:
                self.log.critical("{reason}", reason=reason)
                self._reactor.stop()

        for listener in self._config.listeners:
            listening = listener.endpoint.listen(ListenerFactory(self, listener))
            listening.addCallbacks(listens, cannotListen, errbackArgs=(listener,))
        if self._statusPort is not None:
            self._statusPort.listen().addErrback(cannotListen, self._statusPort)
        if failures:
            self._stopListening()
            raise CannotStart(f"admission: {'; '.join(failures)}")

    def startService(self) -> None:
        """
        Open the log and begin to serve.  This cannot happen earlier: a daemon has
        its final process only now.
        """
        if not self._hasListened:
            # Only some of the commands that run services make two steps of it.
            self.privilegedStartService()
        try:
            self._start()
        except BaseException:
            # As a rule the process ends now; where it does not, stopService closes what was started.
            self._stopListening()
            raise
        super().startService()  # type: ignore[no-untyped-call]
        self.log.info(
            "serving {listeners} from {path}, with {pool!r} and requests of up to {largest}, {made}",
            listeners=" and ".join(listener.description for listener in self._config.listeners),
            path=self._config.dataPath,
            pool=self.broker.gate.pool,
            largest=formatBytes(min(self._config.settings.socketRequestMaxBytes, self.broker.gate.pool.largestBytes)),
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
        if self._status is not None:
            self._status.isDraining = True
        with SecondSignal(self._reactor, self._hurry):
            # Two concurrent calls would each take half of the closers.
            yield self._stopping.run(lambda: Deferred.fromCoroutine(self._started.aclose()))
        self.log.info("stopped: the log at {path} is closed", path=self._config.dataPath)

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
        if config.memoryProfile is not None or self._statusPort is not None:
            profiler = makeProfiler(clock, wallSeconds, lambda: claimsOf(self.broker.gate))
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
        pool = buildPool(settings, config.pool, clock)
        gate = Gate(pool, clock, memoryOrder, turnOrder, settings.queuedMaxRequests)
        gate.addSensors(self.sensors)
        gate.onPressure(self._pressed)
        started.callback(gate.close)

        purgatory = buildPurgatory(config.purgatory, clock)
        purgatory.addSensors(self.sensors, "Request")
        started.callback(purgatory.shutdown)

        control = buildControl(settings, config.quotas, clock, bool(config.exports))
        control.addSensors(self.sensors)
        ageSeconds = AgeClock(wallSeconds, clock.seconds, self._clockDoubted).seconds
        log = self._openLog(clock, ageSeconds)
        started.push_async_callback(log.close)
        certified = any(listener.asksForCertificates for listener in config.listeners)
        self.broker = Broker(
            settings, gate, control, clock, wallSeconds, log, purgatory, self._portal, certified, ageSeconds
        )
        started.callback(self.broker.timeSlices.close)
        self._warnOfNoSuperUsers()
        self._startGroups()
        self._startRecording(recorder, gateSeed)

        self.factory = AdmittedFactory(
            lambda: BrokerSession(self.broker), gate, clock, hangUpWatch, self._connectionLimits(), control
        )
        if recorder.isRecording:
            self.factory.observers = (BrokerRecording(recorder),)

        self._startStatus(profiler)

        for port in self._ports:
            self.factory.addPort(port)
        self.factory.start()
        started.push_async_callback(self._drain)
        started.push_async_callback(self._stopAccepting)
        garbage = GarbageCollection(clock, goneConnections=lambda: self.factory.goneConnections)
        garbage.start()
        started.callback(garbage.stop)

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
        self.broker.drain()
        return emptied

    def _hurry(self) -> None:
        self.log.warn("asked to stop again: {count} connections are cut off", count=len(self.factory.connections))
        self.factory.abortAll()

    def _connectionLimits(self) -> ConnectionLimits:
        settings = self._config.settings
        idleSeconds = settings.connectionsMaxIdleSeconds
        return ConnectionLimits(
            maxConnections=min(settings.maxConnections, self._descriptorLimit(settings.maxConnections)),
            maxConnectionsPerAddress=settings.maxConnectionsPerIp,
            idleSeconds=math.inf if idleSeconds is None else idleSeconds,
            receiveSeconds=settings.requestReceiveTimeoutSeconds,
            sendSeconds=settings.responseSendTimeoutSeconds,
            closeGraceSeconds=settings.closeGraceTimeoutSeconds,
            handshakeSeconds=settings.tlsHandshakeTimeoutSeconds,
        )

    def _startStatus(self, profiler: Profiler | None) -> None:
        self._status = BrokerStatus(
            self.broker,
            self.factory,
            self.sensors,
            lambda: [peerName(port.getHost()) for port in self._ports],
            self._space,
        )
        self._status.addSensors()
        if profiler is not None:
            self._started.callback(profiler.stop)
        if self._statusPort is not None:
            self._statusPort.serve(self._status.pages(self._reactor, profiler))
            self._started.push_async_callback(self._statusPort.stop)

    def _space(self) -> tuple[int, int]:
        usage = shutil.disk_usage(self._config.dataPath)
        return usage.total, usage.free

    def _startRecording(self, recorder: EventRecorder, gateSeed: int) -> None:
        config, settings, control = self._config, self._config.settings, self.broker.control
        origin = Origin(
            str(settings.brokerId),
            uuid.uuid4().hex,
            gateSeed,
            control.policyNames,
            quotaDescriptions(settings, config.quotas),
            settings.quotaWindowNum,
            settings.quotaWindowSizeSeconds,
            control.maxDelaySeconds,
            poolDescription(settings, config.pool),
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
        # The name without the address after it, of which there may be any number.
        self.broker.limits.onEnforced = lambda entity, limits, by, now: recorder.limitsChanged(
            entity, limits, now, by.rpartition(" at ")[0] or by
        )

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
        ports, self._ports = self._ports, []
        self._hasListened = False
        return DeferredList([maybeDeferred(port.stopListening) for port in ports])

    def _stopListening(self) -> Deferred[Any]:
        stopping = [self._stopAccepting()]
        if self._statusPort is not None:
            stopping.append(self._statusPort.stop())
        return DeferredList(stopping)

    def _clockDoubted(self, jumpSeconds: float) -> None:
        self.log.warn(
            "the machine's clock was set forward by {jump}; if it stays there, records, offsets and producers are that "
            "much older in {believed}",
            jump=formatSeconds(round(jumpSeconds)),
            believed=formatSeconds(BELIEVED_AFTER_SECONDS),
        )

    def _openLog(self, clock: MonotonicClock, ageSeconds: Callable[[], float]) -> SegmentLog:
        settings = self._config.settings
        try:
            return SegmentLog(
                self._config.dataPath,
                clock,
                ageSeconds,
                self._deferToThread,
                maxPartitions=settings.maxPartitions,
                maxProducers=settings.maxProducerIds,
                maxOpenFiles=self._maxLogFiles(),
                producerExpirySeconds=settings.producerIdExpirationSeconds,
                retentionBytes=settings.logRetentionBytes,
                retentionSeconds=settings.logRetentionSeconds,
                segmentBytes=settings.logSegmentBytes,
                segmentSeconds=settings.logRollSeconds,
                checkIntervalSeconds=settings.logRetentionCheckIntervalSeconds,
                flushIntervalSeconds=settings.logFlushIntervalSeconds,
            )
        except (LogRefusal, OSError) as error:
            raise CannotStart(f"admission: the log cannot be opened: {error}; --data chooses its directory") from error

    def _startGroups(self) -> None:
        try:
            self.broker.groups.start()
        except LogRefusal as error:
            raise CannotStart(f"admission: the groups cannot be read: {error}") from error
        self._started.callback(self.broker.groups.stop)

    def _warnOfNoSuperUsers(self) -> None:
        if self.broker.superUsers.isEnforced and not self.broker.superUsers.names:
            self.log.warn(
                "clients have names here and super.users is empty: nobody can change limits, topics and groups, except "
                "for topics that are created by use; super.users=User:NAME says who may"
            )

    def _maxLogFiles(self) -> int:
        """
        How many files the log may have open: never most of what the system allows.
        """
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        wanted = self._config.settings.logMaxOpenFiles
        return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard // 4)

    def _descriptorLimit(self, wanted: int) -> int:
        """
        Raise the limit on open files to what C{wanted} connections need, as far as
        the system allows.

        @return: the number of connections that the limit then allows.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        reserved = RESERVED_DESCRIPTORS + self._maxLogFiles()
        needed = wanted + reserved
        if soft != resource.RLIM_INFINITY and soft < needed:
            soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            if soft < needed:
                self.log.warn(
                    "the limit on open files, {hard}, allows {allowed} connections and not {wanted} (max.connections); "
                    "raise it with ulimit -n",
                    hard=hard,
                    allowed=soft - reserved,
                    wanted=wanted,
                )
        return wanted if soft == resource.RLIM_INFINITY else max(int(soft) - reserved, 1)

    def _pressed(self, isPressed: bool) -> None:
        now = self._clock.seconds()
        if isPressed and now - self._pressureLoggedSeconds >= PRESSURE_LOGGED_EVERY_SECONDS:
            self._pressureLoggedSeconds = now
            self.log.warn(
                "the memory pool is empty: clients wait for their turn; where it is: {ledger}",
                ledger=", ".join(f"{purpose} {formatBytes(held)}" for purpose, held in self.broker.gate.ledger.items()),
            )

# -*- test-case-name: tests.unit.kafka.test_service -*-
"""
The broker as a service of C{twistd}: everything is put together here, around
the real reactor and the real clocks.
"""

from __future__ import annotations

import base64
import math
import resource
import uuid
from collections.abc import Sequence
from pathlib import Path
from random import Random, SystemRandom
from socket import gethostname
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, inlineCallbacks, maybeDeferred
from twisted.internet.interfaces import IAddress, IListeningPort
from twisted.internet.protocol import Protocol, ServerFactory
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..clock import MonotonicClock, wallSeconds
from ..connection.factory import AdmittedFactory, ConnectionLimits, peerName
from ..connection.hangup import HangUpWatch
from ..gate import Gate
from ..metrics.process import ProcessUsage
from ..metrics.registry import SensorRegistry
from ..profiling.profiler import Profiler
from ..profiling.reports import MemoryReports
from ..recording.events import Origin
from ..recording.recorder import EventRecorder
from ..status.health import Health
from ..status.pages import statusPages
from ..status.port import StatusPort
from ..status.snapshot import Snapshot
from ..units import formatBytes, formatSeconds
from .broker.broker import Broker
from .broker.log.interface import LogRefusal
from .broker.log.lmdb_log import LmdbLog
from .kafkarequest import Address
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
from .requestrecording import BrokerRecording
from .secondsignal import Impatience
from .security.checkers import makePortal
from .session import KafkaConnection
from .settings import RESERVED_DESCRIPTORS, Settings

PRESSURE_LOGGED_EVERY_SECONDS = 60.0


class CannotStart(SystemExit, Exception):
    """
    The broker cannot start, in words for the operator.

    In the foreground L{SystemExit} ends the process with these words alone.
    But C{twistd} removes its process file, and tells the process that waits
    for a daemon to start, only when it sees an L{Exception}.
    """


def makeService(options: Options) -> BrokerService:
    """
    What C{twistd} calls.
    """
    from twisted.internet import reactor

    return BrokerService(
        reactor,
        options["settings"],
        options["listeners"],
        options["data"],
        options["pool"],
        options["purgatory"],
        options["quota"],
        options["statusListener"],
        options.checkers(),
        exportDescriptions=options["export"],
        memoryProfile=options["memoryProfile"],
        orderDescription=options["order"],
    )


class ListenerFactory(ServerFactory):
    """
    One port's share of the broker: it knows what to advertise.
    """

    noisy = False

    def __init__(self, service: BrokerService, advertised: Address | None, description: str = "") -> None:
        """
        @param description: what the port is called in what is recorded.
        """
        self._service = service
        self._advertised = advertised
        self._description = description

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        """
        A connection to the broker.
        """
        protocol = self._service.factory.buildProtocol(addr)
        if isinstance(protocol, KafkaConnection):
            protocol.advertised = self._advertised
            protocol.listener = self._description
        return protocol


class BrokerService(Service):
    """
    The broker, its log and its ports.

    @ivar factory: the connections; like C{broker} and C{sensors} there once
        the service has been started.
    @ivar sensors: what can be measured.
    """

    log = Logger()

    factory: AdmittedFactory
    broker: Broker
    sensors: SensorRegistry

    def __init__(
        self,
        reactor: Any,
        settings: Settings,
        listeners: Sequence[Listener],
        dataPath: str,
        poolDescription: str | None = None,
        purgatoryDescription: str | None = None,
        quotaDescriptions: Sequence[str] = (),
        statusListener: Listener | None = None,
        checkers: Sequence[Any] = (),
        exportDescriptions: Sequence[str] = (),
        memoryProfile: MemoryProfile | None = None,
        orderDescription: str | None = None,
    ) -> None:
        """
        @param dataPath: the directory of the log.
        @param poolDescription: what C{--pool} says, if anything.
        @param purgatoryDescription: what C{--purgatory} says, if anything.
        @param quotaDescriptions: what each C{--quota} says.
        @param statusListener: where to tell how the broker is, if anywhere.
        @param checkers: what each C{--auth} has made; with none, nobody needs to log in.
        @param exportDescriptions: what each C{--export} says; with none, nothing is recorded.
        @param memoryProfile: what C{--profile-memory} says, if anything.
        @param orderDescription: what C{--order} says, if anything.
        """
        self._reactor = reactor
        self._settings = settings
        self._listeners = listeners
        self._dataPath = dataPath
        self._poolDescription = poolDescription
        self._orderDescription = orderDescription
        self._purgatoryDescription = purgatoryDescription
        self._quotaDescriptions = quotaDescriptions
        self._exportDescriptions = exportDescriptions
        self._memoryProfile = memoryProfile
        self._profiler: Profiler | None = None
        self._memoryReports: MemoryReports | None = None
        self._portal = makePortal(checkers) if checkers else None
        self._statusPort: StatusPort | None = None
        if statusListener is not None:
            names = [gethostname(), *(each.advertised.host for each in listeners if each.advertised is not None)]
            self._statusPort = StatusPort(statusListener.description, statusListener.endpoint, reactor, names)
        self._ports: list[IListeningPort] = []
        self._hasListened = False
        self._pressureLoggedSeconds = float("-inf")

    def privilegedStartService(self) -> None:
        """
        Listen, while that may still need privileges.  Nobody is accepted
        before the reactor runs.
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

        for listener in self._listeners:
            listening = listener.endpoint.listen(ListenerFactory(self, listener.advertised, listener.description))
            listening.addCallbacks(listens, cannotListen, errbackArgs=(listener,))
        if self._statusPort is not None:
            self._statusPort.listen().addErrback(cannotListen, self._statusPort)
        if failures:
            self._stopListening()
            raise CannotStart(f"admission: {'; '.join(failures)}")

    def startService(self) -> None:
        """
        Open the log and begin to serve.  Here rather than earlier, because a
        daemon has only now become the process that it will be.
        """
        reactor, settings = self._reactor, self._settings
        if not self._hasListened:
            # Only some of the commands that run services make two steps of it.
            self.privilegedStartService()
        clock = MonotonicClock(reactor)
        if self._memoryProfile is not None or self._statusPort is not None:
            self._profiler = makeProfiler(clock, wallSeconds, lambda: claimsOf(self.broker.gate))
        purgatory = buildPurgatory(self._purgatoryDescription, clock)
        control = buildControl(settings, self._quotaDescriptions, clock, bool(self._exportDescriptions))
        log = self._openLog(clock)
        pool = buildPool(settings, self._poolDescription, clock)
        gateSeed = SystemRandom().getrandbits(63)
        # One for both, as replays have it.
        random = Random(gateSeed)
        memoryOrder, turnOrder = (buildOrder(self._orderDescription, clock, random) for _ in range(2))
        gate = Gate(pool, clock, memoryOrder, turnOrder, settings.queuedMaxRequests)
        self.sensors = SensorRegistry(clock.seconds)
        gate.addSensors(self.sensors)
        gate.onPressure(self._pressed)
        self._clock = clock
        self._hangUpWatch = HangUpWatch(reactor)
        self.broker = Broker(
            settings, log, gate, purgatory, control, clock, wallSeconds, clusterId(self._dataPath), self._portal
        )
        self._startRecording(clock, gateSeed)
        self.factory = AdmittedFactory(
            lambda: KafkaConnection(self.broker),
            gate,
            clock,
            self._hangUpWatch,
            ConnectionLimits(
                maxConnections=min(settings.maxConnections, self._descriptorLimit(settings.maxConnections)),
                maxConnectionsPerAddress=settings.maxConnectionsPerIp,
                idleSeconds=math.inf
                if settings.connectionsMaxIdleSeconds is None
                else settings.connectionsMaxIdleSeconds,
                receiveSeconds=settings.requestReceiveTimeoutSeconds,
                sendSeconds=settings.responseSendTimeoutSeconds,
                closeGraceSeconds=settings.closeGraceTimeoutSeconds,
            ),
            control,
        )
        if self._recorder.isRecording:
            self.factory.observers = (BrokerRecording(self._recorder),)
        self._health = Health(gate, clock.seconds, lambda: log.troubles, lambda: len(self.factory.connections))
        snapshot = Snapshot(
            self.broker,
            self.factory,
            self._health,
            ProcessUsage(),
            lambda: [peerName(port.getHost()) for port in self._ports],
            clock.seconds,
        )
        snapshot.addSensors(self.sensors)
        purgatory.addSensors(self.sensors, "Request")
        control.addSensors(self.sensors)
        self._startGroups()
        for port in self._ports:
            self.factory.addPort(port)
        self.factory.start()
        if self._statusPort is not None:
            self._statusPort.serve(
                statusPages(reactor, control, self.sensors, wallSeconds, snapshot, self._health, self._profiler)
            )
        self._startProfiling(clock)
        super().startService()  # type: ignore[no-untyped-call]
        self.log.info(
            "serving {listeners} from {path}, with {pool!r} and requests of up to {largest}",
            listeners=" and ".join(listener.description for listener in self._listeners),
            path=self._dataPath,
            pool=pool,
            largest=formatBytes(min(settings.socketRequestMaxBytes, pool.largestBytes)),
        )

    @inlineCallbacks
    def stopService(self) -> Any:
        """
        Drain: accept nobody and read nothing more, answer what has been read,
        close every connection after its last response, then close the log,
        and have exporters finish.  Asked to stop again, the process does not
        wait for its clients any longer.

        @return: a L{Deferred} that fires when the data directory is free.
        """
        yield maybeDeferred(super().stopService)
        with Impatience(self._reactor, self._hurry):
            yield self._drain()

    @inlineCallbacks
    def _drain(self) -> Any:
        self._health.isDraining = True
        if self._memoryReports is not None:
            self._memoryReports.stop()
        yield self._stopAccepting()
        self.factory.stop()
        self.log.info(
            "stopping: {count} connections end after their last response, within {grace} (close.grace.timeout)",
            count=len(self.factory.connections),
            grace=formatSeconds(self._settings.closeGraceTimeoutSeconds),
        )
        emptied = self.factory.closeAll()
        # Only now, or whoever is answered would have its next request read.
        self.broker.drain()
        yield emptied
        yield self._stopListening()
        if self._profiler is not None:
            self._profiler.stop()
        self.broker.groups.stop()
        yield self.broker.log.close()
        self.broker.purgatory.shutdown()
        self.broker.gate.close()
        self._hangUpWatch.close()
        # The last connection is gone when the factory says so, and tells the recorder right after that.
        yield deferLater(self._reactor, 0)
        yield self._recorder.stop()
        self.log.info("stopped: the log at {path} is closed", path=self._dataPath)

    def _hurry(self) -> None:
        self.log.warn("asked to stop again: {count} connections are cut off", count=len(self.factory.connections))
        self.factory.abortAll()

    def _startRecording(self, clock: MonotonicClock, gateSeed: int) -> None:
        settings, control = self._settings, self.broker.control
        recorder = self._recorder = EventRecorder(buildExporters(self._exportDescriptions, clock), clock, self.sensors)
        origin = Origin(
            str(settings.brokerId),
            uuid.uuid4().hex,
            gateSeed,
            control.policyNames,
            quotaDescriptions(settings, self._quotaDescriptions),
            settings.quotaWindowNum,
            settings.quotaWindowSizeSeconds,
            control.maxDelaySeconds,
            poolDescription(settings, self._poolDescription),
        )
        try:
            recorder.start(origin, self._deferToThread)
        except Exception as error:
            self._stopListening()
            raise CannotStart(
                f"admission: cannot record to {' and '.join(self._exportDescriptions)}: {error}; --export says where to"
            ) from error
        if not recorder.isRecording:
            return
        recorder.addSensors(self.sensors)
        now = clock.seconds()
        for entity, limits in control.limits.items():
            recorder.limitsChanged(entity, limits, now)
        # The name without the address behind it, of which there may be any number.
        self.broker.limits.onEnforced = lambda entity, limits, by, now: recorder.limitsChanged(
            entity, limits, now, by.rpartition(" at ")[0] or by
        )

    def _startProfiling(self, clock: MonotonicClock) -> None:
        profile = self._memoryProfile
        if profile is None or self._profiler is None:
            return
        self._memoryReports = MemoryReports(
            self._profiler, profile.directory, profile.intervalSeconds, clock, self._deferToThread
        )
        try:
            self._memoryReports.start()
        except OSError as error:
            self._stopListening()
            raise CannotStart(
                f"admission: cannot write to {profile.directory}: {error.strerror}; --profile-memory says where to"
            ) from error

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

    def _openLog(self, clock: MonotonicClock) -> LmdbLog:
        settings = self._settings
        try:
            return LmdbLog(
                self._dataPath,
                clock,
                wallSeconds,
                self._deferToThread,
                mapSizeBytes=settings.logMapBytes,
                maxPartitions=settings.maxPartitions,
                maxProducers=settings.maxProducerIds,
                producerExpirySeconds=settings.producerIdExpirationSeconds,
                retentionBytes=settings.logRetentionBytes,
                retentionSeconds=settings.logRetentionSeconds,
                checkIntervalSeconds=settings.logRetentionCheckIntervalSeconds,
                flushIntervalSeconds=settings.logFlushIntervalSeconds,
            )
        except (LogRefusal, OSError) as error:
            self._stopListening()
            raise CannotStart(f"admission: the log cannot be opened: {error}; --data chooses its directory") from error

    def _startGroups(self) -> None:
        try:
            self.broker.groups.start()
        except LogRefusal as error:
            self._stopListening()
            raise CannotStart(f"admission: the groups cannot be read: {error}") from error

    def _descriptorLimit(self, wanted: int) -> int:
        """
        How many connections the system allows, after asking for as many as
        are wanted.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = wanted + RESERVED_DESCRIPTORS
        if soft != resource.RLIM_INFINITY and soft < needed:
            soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            if soft < needed:
                self.log.warn(
                    "the limit on open files, {hard}, allows {allowed} connections and not {wanted} (max.connections); "
                    "raise it with ulimit -n",
                    hard=hard,
                    allowed=soft - RESERVED_DESCRIPTORS,
                    wanted=wanted,
                )
        return wanted if soft == resource.RLIM_INFINITY else max(int(soft) - RESERVED_DESCRIPTORS, 1)

    def _pressed(self, isPressed: bool) -> None:
        now = self._clock.seconds()
        if isPressed and now - self._pressureLoggedSeconds >= PRESSURE_LOGGED_EVERY_SECONDS:
            self._pressureLoggedSeconds = now
            self.log.warn(
                "the memory pool is empty: clients wait for their turn; where it is: {ledger}",
                ledger=", ".join(f"{purpose} {formatBytes(held)}" for purpose, held in self.broker.gate.ledger.items()),
            )


def clusterId(dataPath: str) -> str:
    """
    The id of the cluster whose log is in a directory: made at random and kept
    there, so that clients notice when they talk to another.
    """
    path = Path(dataPath, "cluster.id")
    # Empty after a loss of power, which may lose what was just written.
    if kept := path.read_text("ascii").strip() if path.exists() else "":
        return kept
    made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(made + "\n", "ascii")
    unfinished.replace(path)
    return made

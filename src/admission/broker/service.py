# -*- test-case-name: tests.test_service -*-
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
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..clock import MonotonicClock, wallSeconds
from ..connection.factory import AdmittedFactory, ConnectionLimits
from ..connection.hangup import HangUpWatch
from ..gate import Gate
from ..metrics.registry import SensorRegistry
from ..units import formatBytes
from .broker import Address, Broker
from .log.interface import LogRefusal
from .log.lmdb_log import LmdbLog
from .options import Listener, Options, buildPool, buildPurgatory, buildQuotas
from .security.checkers import makePortal
from .session import KafkaConnection
from .settings import Settings
from .status.pages import statusPages
from .status.port import StatusPort

RESERVED_DESCRIPTORS = 64
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
    )


class ListenerFactory(ServerFactory):
    """
    One port's share of the broker: it knows what to advertise.
    """

    noisy = False

    def __init__(self, service: BrokerService, advertised: Address | None) -> None:
        self._service = service
        self._advertised = advertised

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        """
        A connection to the broker.
        """
        protocol = self._service.factory.buildProtocol(addr)
        if isinstance(protocol, KafkaConnection):
            protocol.advertised = self._advertised
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
    ) -> None:
        """
        @param dataPath: the directory of the log.
        @param poolDescription: what C{--pool} says, if anything.
        @param purgatoryDescription: what C{--purgatory} says, if anything.
        @param quotaDescriptions: what each C{--quota} says.
        @param statusListener: where to tell how the broker is, if anywhere.
        @param checkers: what each C{--auth} has made; with none, nobody needs to log in.
        """
        self._reactor = reactor
        self._settings = settings
        self._listeners = listeners
        self._dataPath = dataPath
        self._poolDescription = poolDescription
        self._purgatoryDescription = purgatoryDescription
        self._quotaDescriptions = quotaDescriptions
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
            listening = listener.endpoint.listen(ListenerFactory(self, listener.advertised))
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
        purgatory = buildPurgatory(self._purgatoryDescription, clock)
        quotas = buildQuotas(settings, self._quotaDescriptions, purgatory.clock)
        log = self._openLog(clock)
        pool = buildPool(settings, self._poolDescription, clock)
        gate = Gate(pool, clock, Random(SystemRandom().getrandbits(64)), settings.queuedMaxRequests)
        self.sensors = SensorRegistry()
        gate.addSensors(self.sensors)
        gate.onPressure(self._pressed)
        self._clock = clock
        self._hangUpWatch = HangUpWatch(reactor)
        self.broker = Broker(
            settings, log, gate, purgatory, quotas, wallSeconds, clusterId(self._dataPath), self._portal
        )
        self.factory = AdmittedFactory(
            lambda: KafkaConnection(self.broker),
            gate,
            purgatory.clock,
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
        )
        self.sensors.addGauge("Connections", lambda: len(self.factory.connections))
        purgatory.addSensors(self.sensors, "Request")
        quotas.addSensors(self.sensors)
        quotas.start()
        self._startGroups()
        for port in self._ports:
            self.factory.addPort(port)
        self.factory.start()
        if self._statusPort is not None:
            self._statusPort.serve(statusPages(reactor, quotas, self.sensors, wallSeconds))
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
        Accept nobody, close every connection after its last response, then
        close the log.

        @return: a L{Deferred} that fires when the data directory is free.
        """
        yield maybeDeferred(super().stopService)
        yield self._stopListening()
        self.factory.stop()
        self.broker.quotas.stop()
        yield self.factory.closeAll()
        self.broker.groups.stop()
        yield self.broker.log.close()
        self.broker.purgatory.shutdown()
        self.broker.gate.close()
        self._hangUpWatch.close()

    def _stopListening(self) -> Deferred[Any]:
        ports, self._ports = self._ports, []
        self._hasListened = False
        stopping = [maybeDeferred(port.stopListening) for port in ports]
        if self._statusPort is not None:
            stopping.append(self._statusPort.stop())
        return DeferredList(stopping)

    def _openLog(self, clock: MonotonicClock) -> LmdbLog:
        settings = self._settings

        def deferToThread(function: Any, *args: Any) -> Deferred[Any]:
            return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), function, *args)

        try:
            return LmdbLog(
                self._dataPath,
                clock,
                wallSeconds,
                deferToThread,
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

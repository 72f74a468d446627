# -*- test-case-name: tests.unit.kafka.broker.test_service -*-
"""
The broker as a service of C{twistd}.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from attrs import frozen
from twisted.cred.portal import Portal

from admission.clock import BELIEVED_AFTER_SECONDS, AgeClock, MonotonicClock, wallSeconds
from admission.connection.factory import peerName
from admission.control import AdmissionControl
from admission.gate.gate import Gate
from admission.profiling.objectgroups import Group, subclassOf
from admission.units import formatSeconds

from ..security.checkers import makePortal
from ..serving.kafkaservice import KafkaService, ServerConfig
from ..serving.serveroptions import Listener
from ..serving.serverports import CannotStart
from ..serving.session import KafkaSession
from ..storage.itable import LogRefusal
from .broker import Broker
from .brokerbackend import BrokerBackend
from .brokeroptions import Options, buildPurgatory
from .brokersettings import Settings
from .groups.groupcoordinator import GroupCoordinator
from .log.segmentlog import SegmentLog
from .statussections import BrokerStatus


def _portalOf(checkers: Sequence[Any]) -> Portal | None:
    return makePortal(list(dict.fromkeys(checkers))) if checkers else None


@frozen
class BrokerConfig(ServerConfig[Settings]):
    """
    The configuration of a broker.
    """

    purgatory: str | None = None


def makeService(options: Options) -> BrokerService:
    """
    Make the service; called by C{twistd}.
    """
    from twisted.internet import reactor

    return BrokerService(reactor, BrokerConfig.of(options, purgatory=options["purgatory"]))


class BrokerService(KafkaService):
    """
    The broker, its log and its ports.

    @ivar broker: exists once the service has been started.
    """

    memoryGroups = (
        Group("groups of consumers", subclassOf(GroupCoordinator), ("groups",)),
        Group("log tables", subclassOf(SegmentLog), ("producers",)),
    )

    _config: BrokerConfig
    broker: Broker

    def __init__(self, reactor: Any, config: BrokerConfig) -> None:
        super().__init__(reactor, config)
        # One portal knows of everybody who may log in, and those of single ports know of theirs.
        self._portal = _portalOf([checker for listener in config.listeners for checker in listener.checkers])
        self._portals = {listener.description: _portalOf(listener.checkers) for listener in config.listeners}

    @property
    def whatServes(self) -> str:
        listeners = " and ".join(listener.description for listener in self._config.listeners)
        return f"{listeners} from {self._config.dataPath}"

    def makeServer(self, gate: Gate, control: AdmissionControl, started: AsyncExitStack) -> Broker:
        """
        Also open the log.
        """
        config, clock = self._config, self._clock
        purgatory = buildPurgatory(config.purgatory, clock)
        purgatory.addSensors(self.sensors, "Request")
        started.callback(purgatory.shutdown)
        ageSeconds = AgeClock(wallSeconds, clock.seconds, self._clockDoubted).seconds
        log = self._openLog(clock, ageSeconds)
        started.push_async_callback(log.close)
        certified = any(listener.asksForCertificates for listener in config.listeners)
        self.broker = Broker(
            config.settings, gate, control, clock, wallSeconds, log, purgatory, self._portal, certified, ageSeconds
        )
        self._logins = {name: self.broker.makeLogins(portal) for name, portal in self._portals.items()}
        started.callback(self.broker.timeSlices.close)
        self._warnOfNoSuperUsers()
        self._sayWhereAllAreLetIn()
        self._startGroups()
        return self.broker

    def makeSession(self) -> KafkaSession:
        return KafkaSession(self.broker, BrokerBackend)

    def makeStatus(self) -> BrokerStatus:
        return BrokerStatus(
            self.broker,
            self.factory,
            self.sensors,
            lambda: [peerName(port.getHost()) for port in self._ports.open],
            self._space,
        )

    def arrivedBy(self, listener: Listener, session: KafkaSession) -> None:
        super().arrivedBy(listener, session)
        assert isinstance(session.backend, BrokerBackend)
        session.backend.authenticator.logins = self._logins[listener.description]

    def drainServer(self) -> None:
        # Not earlier: a client that is answered would have its next request read.
        self.broker.drain()

    def reservedDescriptors(self) -> int:
        return super().reservedDescriptors() + self._maxLogFiles()

    def _space(self) -> tuple[int, int]:
        usage = shutil.disk_usage(self._config.dataPath)
        return usage.total, usage.free

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

    def _sayWhereAllAreLetIn(self) -> None:
        """
        Where some listeners ask for logins, say which do not.
        """
        asking = [each for each in self._config.listeners if each.checkers or each.asksForCertificates]
        others = [each.description for each in self._config.listeners if each not in asking]
        if asking and others:
            self.log.info("clients of {others} need no login, and are ANONYMOUS (--auth)", others=" and ".join(others))

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

# -*- test-case-name: tests.clients.gateway.test_round_trips -*-
"""
The gateway as a service of C{twistd}.
"""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from random import Random
from typing import Any

from twisted.application.service import IService

from admission.clock import wallSeconds
from admission.connection.factory import TLS_CONNECTION_BYTES
from admission.connection.link import PLAIN_CONNECTION_BYTES
from admission.control import AdmissionControl
from admission.gate.gate import Gate
from admission.interfaces import Taken
from admission.recording.recorder import EventRecorder
from admission.recording.sharedusage import recordShared, recordTaken
from admission.shares.limitsharing import LimitSharing
from admission.shares.usagemessages import SetLimits

from ..serving.kafkaservice import KafkaService
from ..serving.quotalimits import QuotaLimits
from ..serving.serveroptions import Listener, buildOrder
from ..serving.serverstatus import describeAddresses
from ..serving.session import KafkaSession
from .backing import Backing, OwnBacking
from .clusterbackend import ClusterBackend
from .gateway import Gateway
from .gatewayconfig import GatewayConfig, configOf
from .gatewayoptions import GatewayListener, GatewayOptions, whyPortsMayBeTaken
from .gatewayprocesses import GatewayProcesses
from .gatewaystatus import GatewayStatus
from .nodes import Nodes

Options = GatewayOptions
"""The name that C{twistd} looks for."""


def makeService(options: GatewayOptions) -> IService:
    """
    Make the service; called by C{twistd}.
    """
    from twisted.internet import reactor

    config = configOf(options)
    if config.processes == 1:
        return GatewayService(reactor, config)
    return GatewayProcesses(reactor, config, options.arguments, options.directory)


class GatewayService(KafkaService):
    """
    The gateway and its ports.

    @ivar gateway: exists once the service has been started.
    """

    # Its own, and one to a node.
    descriptorsOfConnection = 2
    whatIsKept = "what is known of limits and producers"

    _config: GatewayConfig
    _backing: Backing
    gateway: Gateway

    def __init__(self, reactor: Any, config: GatewayConfig, backing: Backing | None = None) -> None:
        """
        @param backing: that of a single process, unless given.
        """
        super().__init__(reactor, config)
        self._given = backing

    @property
    def whatServes(self) -> str:
        lowest, highest = self._config.nodeIds
        servers = ", ".join(f"{each.host}:{each.port}" for each in self._config.upstream.addresses)
        return f"the cluster of {servers}, nodes {lowest} to {highest} behind the first port"

    def makeServer(self, gate: Gate, control: AdmissionControl, started: AsyncExitStack) -> Gateway:
        """
        Also begin to ask which nodes there are.
        """
        config, clock = self._config, self._clock
        if self._given is None and (warning := whyPortsMayBeTaken(config.listeners)) is not None:
            self.log.warn("{warning}", warning=warning)
        settings = config.settings
        shareBytes = gate.pool.sizeBytes * settings.upstreamPoolPercent // 100
        nodes = Nodes(shareBytes, *config.nodeIds, clock.seconds, lambda: buildOrder(config.order, clock, Random()))
        connectSeconds = settings.upstreamConnectTimeoutSeconds
        endpointFor = config.upstream.endpoints(self._reactor, connectSeconds)
        self.gateway = Gateway(
            settings,
            gate,
            control,
            clock,
            wallSeconds,
            nodes,
            config.upstream.addresses,
            endpointFor,
            config.requiresLogin,
            config.mayHide,
            config.hasLimits,
            PLAIN_CONNECTION_BYTES if config.upstream.options is None else TLS_CONNECTION_BYTES,
        )
        backing = self._backing = self._given or OwnBacking(self._reactor, config, clock, self._deferToThread)
        store = backing.openStore(started)
        known = self.gateway.known = backing.known
        if known is not None:
            gate.ledger.account("producers", lambda: known.sizeBytes)
        self.gateway.limits = QuotaLimits(store, control, control.limits, clock.seconds, share=config.share)
        self._discovered = backing.discover(nodes, started)
        return self.gateway

    def recordingStarted(self, recorder: EventRecorder, started: AsyncExitStack) -> None:
        """
        Also begin to share limits, if it is to.
        """
        gateway, backing = self.gateway, self._backing
        exchange = backing.makeExchange()
        if exchange is None:
            return
        gateway.ownTopics = backing.ownTopics
        atLeast = self._config.gateways * self._config.processes
        sharing = gateway.sharing = LimitSharing(
            exchange, gateway.control, self._clock, uuid.uuid4().hex, atLeast, backing.gateways, backing.remember
        )

        def taken(told: Taken, isOld: bool, now: float) -> None:
            if told.identities and gateway.known is not None:
                gateway.known.note(told.entity.user or "", told.identities)
            if recorder.isRecording:
                recordTaken(recorder, told, isOld, now)

        def shared(fraction: float, count: int, now: float) -> None:
            if recorder.isRecording:
                recordShared(recorder, fraction, count, now)

        limits = gateway.limits
        limits.onAltered = lambda entity, changed, by: sharing.setLimits(SetLimits(entity, changed, by))
        sharing.whenLimits = lambda told: limits.adopt(told.entity, told.limits, told.by)
        sharing.whenTaken, sharing.whenShared = taken, shared
        sharing.start()
        started.push_async_callback(sharing.stop)

    def makeSession(self) -> KafkaSession:
        return KafkaSession(self.gateway, ClusterBackend)

    def arrivedBy(self, listener: Listener, session: KafkaSession) -> None:
        super().arrivedBy(listener, session)
        backend = session.backend
        assert isinstance(backend, ClusterBackend) and isinstance(listener, GatewayListener)
        backend.ports, backend.nodeId = listener.ports, listener.nodeId

    def makeStatus(self) -> GatewayStatus:
        return GatewayStatus(
            self.gateway,
            self._discovered,
            self.factory,
            self.sensors,
            lambda: describeAddresses(port.getHost() for port in self._ports.open),
        )

    def reservedDescriptors(self) -> int:
        return super().reservedDescriptors() + len(self._config.listeners)

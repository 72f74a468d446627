# -*- test-case-name: tests.clients.gateway.test_round_trips -*-
"""
The gateway as a service of C{twistd}.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from random import Random

from attrs import field, frozen

from admission.clock import wallSeconds
from admission.connection.factory import TLS_CONNECTION_BYTES
from admission.connection.link import PLAIN_CONNECTION_BYTES
from admission.control import AdmissionControl
from admission.gate.gate import Gate
from admission.interfaces import IUsageExchange, IUsageExchangeFactory, PolicyContext, Taken
from admission.recording.recorder import EventRecorder
from admission.recording.sharedusage import recordShared, recordTaken
from admission.shares.limitsharing import LimitSharing
from admission.shares.rememberedcount import RememberedCount
from admission.shares.usagemessages import SetLimits

from ..client.clientconnection import ConnectionSettings
from ..client.sasl import Credentials
from ..serving.kafkaservice import CannotStart, KafkaService, ServerConfig
from ..serving.quotalimits import QuotaLimits
from ..serving.serveroptions import Listener, buildChosen, buildOrder
from ..serving.serverstatus import describeAddresses
from ..serving.session import KafkaSession
from ..storage.itable import LogRefusal
from ..storage.tablestore import TableStore
from .clusterbackend import ClusterBackend
from .discovery import Discovery
from .gateway import Gateway
from .gatewayoptions import GatewayListener, GatewayOptions, Upstream, ephemeralPorts
from .gatewaysettings import GatewaySettings
from .gatewaystatus import GatewayStatus
from .knownproducers import KnownProducers
from .nodes import Nodes
from .usagetopic import UsageTopic


@frozen
class GatewayConfig(ServerConfig[GatewaySettings]):
    """
    The configuration of a gateway.

    @ivar upstream: where the cluster is.
    @ivar nodeIds: the lowest and the highest id that its nodes may have.
    @ivar credentials: for asking which nodes there are, if that takes a login.
    @ivar share: how much of each limit it enforces.
    @ivar exchange: the description of what it tells other gateways through what clients take; L{None} if it does not.
    @ivar gateways: how many gateways there are then, at least.
    @ivar requiresLogin: see L{Gateway}, also for the next two.
    """

    upstream: Upstream = field(kw_only=True)
    nodeIds: tuple[int, int] = field(kw_only=True)
    credentials: Credentials | None = None
    share: float = 1.0
    exchange: str | None = None
    gateways: int = 1
    requiresLogin: bool = False
    mayHide: bool = False
    hasLimits: bool = True

    @property
    def sharesLimits(self) -> bool:
        return self.exchange is not None


PRODUCERS_FILE = "producers"
GATEWAYS_FILE = "gateways"

Options = GatewayOptions
"""As C{twistd} wants it called."""


def makeService(options: GatewayOptions) -> GatewayService:
    """
    Make the service; called by C{twistd}.
    """
    from twisted.internet import reactor

    config = GatewayConfig.of(
        options,
        upstream=options["upstream"],
        nodeIds=options["nodeIds"],
        credentials=options["credentials"],
        share=options["share"],
        exchange=options["shared-limits"],
        gateways=options["gateways"],
        requiresLogin=bool(options["require-login"]),
        mayHide=bool(options["hidden-users"]),
        hasLimits=options["hasLimits"],
    )
    return GatewayService(reactor, config)


class GatewayStore:
    """
    The limits of a gateway are in a log, and the producers that it knows are in a file.
    """

    def __init__(self, store: TableStore, known: KnownProducers) -> None:
        self.table = store.table
        self.whenFlushed = store.whenFlushed
        self._known = known

    def producers(self) -> Iterator[tuple[str, int]]:
        """
        Each user's, the most recent last.
        """
        return iter(self._known)


class GatewayService(KafkaService):
    """
    The gateway and its ports.

    @ivar gateway: exists once the service has been started, as C{discovery} does.
    """

    # Its own, and one to a node.
    descriptorsOfConnection = 2
    whatIsKept = "what is known of limits and producers"

    _config: GatewayConfig
    gateway: Gateway
    discovery: Discovery

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
        self._warnOfEphemeralPorts()
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
        try:
            store = TableStore(config.dataPath, clock, self._deferToThread)
        except (LogRefusal, OSError) as error:
            raise CannotStart(
                f"admission: limits that are set at run time cannot be kept: {error}; --data chooses where"
            ) from error
        started.push_async_callback(store.close)
        known = self.gateway.known = KnownProducers(
            os.path.join(config.dataPath, PRODUCERS_FILE), clock, self._deferToThread
        )
        gate.ledger.account("producers", lambda: known.sizeBytes)
        known.start()
        started.push_async_callback(known.stop)
        kept = GatewayStore(store, known)
        self.gateway.limits = QuotaLimits(kept, control, control.limits, clock.seconds, share=config.share)
        asking = ConnectionSettings(
            credentials=config.credentials,
            requestTimeoutSeconds=connectSeconds,
            connectTimeoutSeconds=connectSeconds,
        )
        self.discovery = Discovery(self.gateway, clock, asking)
        self.discovery.start()
        started.callback(self.discovery.stop)
        return self.gateway

    def recordingStarted(self, recorder: EventRecorder, started: AsyncExitStack) -> None:
        """
        Also begin to share limits, if it is to.
        """
        config, gateway, clock = self._config, self.gateway, self._clock
        if config.exchange is None:
            return
        connectSeconds = config.settings.upstreamConnectTimeoutSeconds
        access = config.upstream.access(self._reactor, connectSeconds, config.credentials)
        context = PolicyContext(clock, wallSeconds, upstream=access)
        exchange: IUsageExchange = buildChosen("shared-limits", IUsageExchangeFactory, config.exchange, context)
        if isinstance(exchange, UsageTopic):
            gateway.ownTopics = exchange.topics
        gateways = RememberedCount(os.path.join(config.dataPath, GATEWAYS_FILE))
        server = uuid.uuid4().hex
        sharing = self.gateway.sharing = LimitSharing(
            exchange, gateway.control, clock, server, config.gateways, gateways.count, gateways.remember
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
            self.discovery,
            self.factory,
            self.sensors,
            lambda: describeAddresses(port.getHost() for port in self._ports),
        )

    def reservedDescriptors(self) -> int:
        return super().reservedDescriptors() + len(self._config.listeners)

    def _warnOfEphemeralPorts(self) -> None:
        found = ephemeralPorts()
        if found is None:
            return
        for listener in self._config.listeners:
            assert isinstance(listener, GatewayListener)
            ports = listener.ports
            last = ports.port + ports.offsetOf(ports.highest)
            if listener.nodeId is None and ports.port <= found[1] and last >= found[0]:
                self.log.warn(
                    "some of the ports {first} to {last} are among those that the system gives to outgoing connections "
                    "({low} to {high}): a start may find them in use; choose others (--listen, --node-ids), or reserve "
                    "them (net.ipv4.ip_local_reserved_ports)",
                    first=ports.port,
                    last=last,
                    low=found[0],
                    high=found[1],
                )

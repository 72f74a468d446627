# -*- test-case-name: tests.clients.gateway.test_round_trips -*-
"""
What a gateway keeps, and what it is told of its cluster and of other gateways, whether it is one process or one of
several.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Protocol

from twisted.internet.interfaces import IReactorTime

from admission.clock import wallSeconds
from admission.interfaces import IUsageExchange, IUsageExchangeFactory, PolicyContext
from admission.shares.rememberedcount import RememberedCount

from ..client.clientconnection import ConnectionSettings
from ..serving.kafkarequest import Address
from ..serving.quotalimits import LimitStore
from ..serving.serveroptions import buildChosen
from ..serving.serverports import CannotStart
from ..storage.flushing import DeferToThread
from ..storage.itable import LogRefusal
from ..storage.tablestore import TableStore
from .discovery import Discovery
from .gatewayconfig import GatewayConfig
from .knownproducers import KnownProducers, NotedProducers
from .nodes import FoundNode
from .usagetopic import UsageTopic

PRODUCERS_FILE = "producers"
GATEWAYS_FILE = "gateways"


class Discovered(Protocol):
    """
    What is known of the cluster as a whole.

    @ivar reachedSeconds: when a server of the cluster last answered; L{None} if none has.
    @ivar lastError: why the server that was asked last has not answered; L{None} if it has.
    """

    @property
    def reachedSeconds(self) -> float | None: ...

    @property
    def lastError(self) -> str | None: ...


class KnownNodes(Protocol):
    """
    Learns which nodes there are, as L{Nodes<admission.kafka.gateway.nodes.Nodes>} do.
    """

    @property
    def addresses(self) -> Mapping[int, Address]: ...

    def learnAll(self, found: Collection[FoundNode]) -> None: ...


class Backing(Protocol):
    """
    Everything that a gateway has besides its clients and its connections to nodes.

    @ivar known: keeps the producers that were let through; L{None} before there is a store.
    @ivar gateways: how many gateways enforced limits together when L{remember} was last called.
    @ivar ownTopics: see L{Gateway<admission.kafka.gateway.gateway.Gateway>}; known once there is an exchange.
    """

    @property
    def known(self) -> NotedProducers | None: ...

    @property
    def gateways(self) -> int: ...

    @property
    def ownTopics(self) -> frozenset[str]: ...

    def openStore(self, started: AsyncExitStack) -> LimitStore:
        """
        Open the store of the limits that were set at run time, and of the producers that were let through.

        @param started: closes it.
        @raise CannotStart: if that is not possible.
        """

    def discover(self, nodes: KnownNodes, started: AsyncExitStack) -> Discovered:
        """
        Have C{nodes} learn from now on which nodes the cluster has.

        @param started: ends that.
        """

    def makeExchange(self) -> IUsageExchange | None:
        """
        The exchange that tells others what clients take; L{None} if nobody is told.
        """

    def remember(self, gateways: int) -> None:
        """
        Remember that so many gateways enforce limits together.
        """


class GatewayStore:
    """
    Keeps the limits of a gateway in a log, and the producers that it knows in a file.
    """

    def __init__(self, store: TableStore, known: KnownProducers) -> None:
        self.table = store.table
        self.whenFlushed = store.whenFlushed
        self._known = known

    def producers(self) -> Iterator[tuple[str, int]]:
        """
        The producers of each user, the most recent last.
        """
        return iter(self._known)


class OwnBacking:
    """
    The L{Backing} of a gateway that is one process: a directory, and questions to the cluster.

    @ivar discovery: asks the cluster; exists once L{discover} was called.
    @ivar producers: the known producers; exist once there is a store.
    """

    discovery: Discovery
    producers: KnownProducers

    def __init__(self, reactor: Any, config: GatewayConfig, clock: IReactorTime, deferToThread: DeferToThread) -> None:
        """
        @param deferToThread: runs calls that block on the disk.
        """
        self._config = config
        self._clock = clock
        self._deferToThread = deferToThread
        self._connectSeconds = config.settings.upstreamConnectTimeoutSeconds
        self._access = config.upstream.access(reactor, self._connectSeconds, config.credentials)
        self.known: NotedProducers | None = None
        self.ownTopics: frozenset[str] = frozenset()
        self._remembered = RememberedCount(os.path.join(config.dataPath, GATEWAYS_FILE))

    def openStore(self, started: AsyncExitStack) -> GatewayStore:
        path, clock = self._config.dataPath, self._clock
        try:
            store = TableStore(path, clock, self._deferToThread)
        except (LogRefusal, OSError) as error:
            raise CannotStart(
                f"admission: limits that are set at run time cannot be kept: {error}; --data chooses where"
            ) from error
        started.push_async_callback(store.close)
        known = KnownProducers(os.path.join(path, PRODUCERS_FILE), clock, self._deferToThread)
        self.known = self.producers = known
        known.start()
        started.push_async_callback(known.stop)
        return GatewayStore(store, known)

    def discover(self, nodes: KnownNodes, started: AsyncExitStack) -> Discovery:
        access, connectSeconds = self._access, self._connectSeconds
        asking = ConnectionSettings(
            credentials=access.credentials,
            requestTimeoutSeconds=connectSeconds,
            connectTimeoutSeconds=connectSeconds,
        )
        self.discovery = Discovery(
            access.addresses,
            access.endpointFor,
            self._clock,
            asking,
            self._config.settings.upstreamRefreshSeconds,
            nodes.learnAll,
            lambda: nodes.addresses.values(),
        )
        self.discovery.start()
        started.callback(self.discovery.stop)
        return self.discovery

    def makeExchange(self) -> IUsageExchange | None:
        if self._config.exchange is None:
            return None
        context = PolicyContext(self._clock, wallSeconds, upstream=self._access)
        exchange: IUsageExchange = buildChosen("shared-limits", IUsageExchangeFactory, self._config.exchange, context)
        if isinstance(exchange, UsageTopic):
            self.ownTopics = exchange.topics
        return exchange

    @property
    def gateways(self) -> int:
        return self._remembered.count

    def remember(self, gateways: int) -> None:
        self._remembered.remember(gateways)

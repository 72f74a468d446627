# -*- test-case-name: tests.unit.kafka.gateway.test_clusterbackend -*-
"""
The gateway, as its sessions use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field
from twisted.internet.defer import CancelledError, Deferred, TimeoutError, inlineCallbacks
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from admission.connection.link import PLAIN_CONNECTION_BYTES
from admission.names import boundedName
from admission.shares.limitsharing import LimitSharing

from ..security.superusers import SuperUsers
from ..serving.kafkarequest import Address
from ..serving.server import Server
from .gatewaysettings import GatewaySettings
from .knownproducers import NotedProducers
from .nodelink import NodeLink
from .nodes import Node, Nodes

EndpointMaker = Callable[[str, int], IStreamClientEndpoint]


@define(eq=False)
class Gateway(Server[GatewaySettings]):
    """
    A cluster, and the rule in front of it.

    @ivar nodes: the nodes of the cluster.
    @ivar upstream: the servers to ask first.
    @ivar endpointFor: how to connect to a node.
    @ivar known: keeps the producers that were let through; L{None} if nobody wants to know.
    @ivar sharing: tells other gateways what clients take; L{None} if nobody does.
    @ivar ownTopics: the topics by which gateways tell each other what clients take; closed to clients.
    @ivar linkBytes: what an open connection to a node is charged for.
    @ivar superUsers: the rule of which clients may change limits.
    @ivar requiresLogin: whether clients have to log in at a node before anything else.
    @ivar mayHide: whether they may log in by mechanisms that do not show who they are.
    @ivar hasLimits: whether limits of clients are the gateway's own, and not the cluster's.
    @ivar bootstrap: stands for the one of C{upstream} that answers.
    """

    nodes: Nodes
    upstream: Sequence[Address]
    endpointFor: EndpointMaker
    requiresLogin: bool = False
    mayHide: bool = False
    hasLimits: bool = True
    linkBytes: int = PLAIN_CONNECTION_BYTES
    known: NotedProducers | None = None
    sharing: LimitSharing | None = None
    ownTopics: frozenset[str] = frozenset()
    superUsers: SuperUsers = field(init=False)
    bootstrap: Node = field(init=False)
    _nextUpstream: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.settingsChanged()
        self.bootstrap = Node(None, self.nodes.shareBytes, self.nodes.makeOrder())

    def settingsChanged(self) -> None:
        # Where nobody has to log in, nobody is a super user unless ANONYMOUS is one.
        self.superUsers = SuperUsers(frozenset(map(boundedName, self.settings.superUsers)), True)

    def longestRefusalSeconds(self, session: Any) -> float:
        seconds: float = session.longestDelaySeconds
        return seconds

    def connect(self, nodeId: int | None, link: NodeLink) -> Deferred[None]:
        """
        Connect a link to a node, once it is known where that is.

        @param nodeId: L{None} for any of the servers that the gateway was started with.
        @return: fires when it is connected or has been told why it is not; may be cancelled.
        """
        connecting = self._connectToAny(link) if nodeId is None else self._connectToNode(nodeId, link)
        connectSeconds = self.settings.upstreamConnectTimeoutSeconds
        connecting.addTimeout(connectSeconds, self.clock)

        def failed(failure: Failure) -> None:
            isTimeout = isinstance(failure.value, TimeoutError)
            reason = f"not within {connectSeconds:g} s (upstream.connect.timeout)" if isTimeout else str(failure.value)
            link.failed(f"{link.node} cannot be reached: {reason}")

        connected: Deferred[None] = connecting.addErrback(failed)
        return connected

    @inlineCallbacks
    def _connectToNode(self, nodeId: int, link: NodeLink) -> Any:
        node = yield self.nodes.whenKnown(nodeId)
        yield self._connectAt(node.address, link)

    @inlineCallbacks
    def _connectToAny(self, link: NodeLink) -> Any:
        for remaining in range(len(self.upstream), 0, -1):
            address = self.upstream[self._nextUpstream % len(self.upstream)]
            try:
                yield self._connectAt(address, link)
                return
            except Exception as error:
                self._nextUpstream += 1
                # Once it was cancelled, nobody waits any more.
                if remaining == 1 or isinstance(error, CancelledError):
                    raise

    def _connectAt(self, address: Address, link: NodeLink) -> Deferred[Any]:
        factory: Any = Factory.forProtocol(lambda: link)
        factory.noisy = False
        return self.endpointFor(address.host, address.port).connect(factory)

# -*- test-case-name: tests.unit.kafka.gateway.test_discovery -*-
"""
Asking the cluster which nodes it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attrs import evolve
from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ..client.clientconnection import ClientConnection, ConnectionSettings, connectTo
from ..serving.kafkarequest import Address
from .gateway import EndpointMaker
from .nodes import FoundNode

LOGGED_SECONDS = 60.0

MAX_NODES = 10_000
"""
How many nodes an answer may name: ten times as many as may have ports.  Decoded they take 4 MB and ten milliseconds.
"""

LARGEST_ANSWER_BYTES = 1 << 20
"""The largest answer to ApiVersions or Metadata: 10,000 nodes with names of eighty bytes."""


class Discovery:
    """
    Asks one server of the cluster after another, on a connection of its own, until one answers, and asks that one from
    then on.  The gateway also learns of the nodes that answers to clients name, so this need not succeed.

    @ivar reachedSeconds: when a server has last told the versions that it speaks, if nothing more; L{None} if none has.
    @ivar lastError: why the server that was asked last has not answered; L{None} if it has.
    @ivar onAsked: called when a server has answered, or has failed to.
    """

    _log = Logger()

    def __init__(
        self,
        upstream: Sequence[Address],
        endpointFor: EndpointMaker,
        clock: IReactorTime,
        settings: ConnectionSettings,
        refreshSeconds: float,
        found: Callable[[Sequence[FoundNode]], object],
        known: Callable[[], Iterable[Address]],
    ) -> None:
        """
        @param upstream: the servers to ask first.
        @param endpointFor: how to connect to one.
        @param refreshSeconds: how often to ask.
        @param found: called with all nodes that an answer names.
        @param known: returns the addresses of nodes that may be asked, too.
        """
        self._upstream = upstream
        self._endpointFor = endpointFor
        self._refreshSeconds = refreshSeconds
        self._found = found
        self._known = known
        self._clock = clock
        # No client is charged for what a node answers here.
        self._settings = evolve(settings, maxResponseBytes=LARGEST_ANSWER_BYTES, maxElements=MAX_NODES)
        self._connection: ClientConnection | None = None
        self._asking: Deferred[None] | None = None
        self._next = 0
        self._loggedSeconds = float("-inf")
        self._asks = LoopingCall(self._ask)
        self._asks.clock = clock
        self.reachedSeconds: float | None = None
        self.lastError: str | None = None
        self.onAsked: Callable[[], object] = lambda: None

    def start(self) -> None:
        self._asks.start(self._refreshSeconds)

    def stop(self) -> None:
        if self._asks.running:
            self._asks.stop()
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
        self._forgetConnection()

    def _ask(self) -> None:
        if self._asking is not None:
            return
        asking = self._asking = self._askOnce()
        asking.addErrback(self._failed)
        asking.addBoth(self._asked)

    def _asked(self, result: Any) -> None:
        self._asking = None
        self.onAsked()

    @inlineCallbacks
    def _askOnce(self) -> Any:
        connection = self._connection
        if connection is None or not connection.isOpen:
            address = self._candidate()
            endpoint = self._endpointFor(address.host, address.port)
            connection = self._connection = yield connectTo(
                endpoint, self._clock, self._settings, f"{address.host}:{address.port}"
            )
        # Without a login, a cluster that wants one answers no more than this.
        self.reachedSeconds = self._clock.seconds()
        answer = yield connection.request("Metadata", {"topics": []})
        self._found([FoundNode(broker.node_id, broker.host, broker.port) for broker in answer.brokers])
        self.reachedSeconds = self._clock.seconds()
        self.lastError = None

    def _candidate(self) -> Address:
        candidates = [*self._upstream, *(each for each in self._known() if each not in self._upstream)]
        return candidates[self._next % len(candidates)]

    def _failed(self, failure: Any) -> None:
        self._forgetConnection()
        self._next += 1
        if isinstance(failure.value, CancelledError):
            return
        self.lastError = failure.getErrorMessage() or failure.type.__name__
        now = self._clock.seconds()
        if now - self._loggedSeconds >= LOGGED_SECONDS:
            self._loggedSeconds = now
            self._log.warn(
                "the cluster does not say which nodes it has: {reason}; they are learnt when clients ask "
                "(--upstream-login, if it wants a login)",
                reason=self.lastError,
            )

    def _forgetConnection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

"""What is so at any time, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from admission.connection.protocol import FrameProtocol
from admission.interfaces import FRAMES
from admission.kafka.broker.service import BrokerService
from admission.kafka.serving.session import KafkaSession

from .network import Violation


def checkAlways(service: BrokerService) -> None:
    """What may be looked at after each call of the reactor."""
    gate = service.broker.gate
    if not 0 <= gate.turns.runningRequests <= gate.turns.maxRequests:
        raise Violation(f"{gate.turns.runningRequests} requests run")


def checkBalance(service: BrokerService) -> None:
    """The ledger adds up, and is bounded; turns are with those who have them."""
    gate = service.broker.gate
    pool: Any = gate.pool
    used = pool.usedBytesByPurpose
    if any(held < 0 for held in used.values()) or sum(used.values()) != pool.sizeBytes - pool.availableBytes:
        raise Violation(f"the ledger says {used}, and {pool.availableBytes} of {pool.sizeBytes} are free")
    if pool.reclaimedLeases:
        raise Violation(f"{pool.reclaimedLeases} leases were dropped")
    if used.get(FRAMES, 0) > pool.sizeBytes * 5 // 4 + pool.largestBytes:
        raise Violation(f"frames have {used[FRAMES]} of {pool.sizeBytes} bytes")
    running = sum(connection._hasTurn for connection in service.factory.connections)
    if running != gate.turns.runningRequests:
        raise Violation(f"{gate.turns.runningRequests} requests run, and {running} connections have turns")


def checkWaiting(service: BrokerService) -> None:
    """Nobody waits for what there is."""
    gate = service.broker.gate
    if gate.hasToServe:
        return
    if gate.turns.isOwed:
        raise Violation(f"{gate.turns.waiting} requests wait for a turn, and there is one")
    if gate.answers.isOwed:
        raise Violation(f"{gate.answers.waiting} answers wait for memory, and there is some")
    wanted = gate.memory.smallestWantedBytes
    if wanted is not None and gate.pool.availableBytes > 0:
        raise Violation(f"a connection waits for {wanted} bytes, and {gate.pool.availableBytes} are free")


def checkEmpty(service: BrokerService) -> None:
    """Where nobody is, nothing is left of anybody."""
    broker, gate = service.broker, service.broker.gate
    used = {purpose: held for purpose, held in gate.pool.usedBytesByPurpose.items() if held}
    if used or gate.pool.availableBytes != gate.pool.sizeBytes:
        raise Violation(f"nobody is there, and {used} are not free")
    if service.factory.connections:
        raise Violation(f"{len(service.factory.connections)} connections are left")
    if gate.turns.runningRequests or gate.memory.waiting or gate.turns.waiting or gate.answers.waiting:
        raise Violation("nobody is there, and somebody waits")
    if gate.bodies.count or gate.readers.count:
        raise Violation("nobody is there, and bodies or readers are")
    if broker.purgatory.watched or broker.purgatory.delayed:
        raise Violation(f"the purgatory has {broker.purgatory.watched} keys and {broker.purgatory.delayed} timers")


@contextmanager
def watchedConnections() -> Iterator[None]:
    """Have no connection given a request before the one before it is over, and nothing wait for one that is lost."""
    received, finish = KafkaSession.frameReceived, FrameProtocol.finish
    connectionLost = KafkaSession.connectionLost

    def frameReceived(connection: Any, request: Any) -> None:
        current = getattr(connection, "simulatedRequest", None)
        if current is not None and current is not request:
            raise Violation(f"{connection.peer} is given a request while another is worked on")
        connection.simulatedRequest = request
        received(connection, request)

    def finished(connection: Any, *arguments: Any, **named: Any) -> None:
        connection.simulatedRequest = None
        finish(connection, *arguments, **named)

    def lost(connection: Any, *arguments: Any) -> None:
        connectionLost(connection, *arguments)
        isWaiting = connection.request is not None and connection.request.step is not None
        if isWaiting or connection.unanswered:
            raise Violation(f"a request of {connection.peer} waits, and its connection is lost")

    with (
        patch.object(KafkaSession, "connectionLost", lost),
        patch.object(KafkaSession, "frameReceived", frameReceived),
        patch.object(FrameProtocol, "finish", finished),
    ):
        yield

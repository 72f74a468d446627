"""Mistakes that somebody could make, each of which the simulation has to find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

from admission.connection.debts import Debts
from admission.connection.driver import RequestDriver
from admission.connection.framing import Framer
from admission.connection.protocol import FrameProtocol
from admission.gate.gate import Gate
from admission.kafka.broker.broker import Broker
from admission.kafka.broker.brokerbackend import BrokerBackend
from admission.kafka.broker.groups.groupstore import GroupStore
from admission.kafka.broker.log.producers import ProducerStates
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.storage import flushing
from admission.kafka.wire.versions import PRODUCE
from admission_plugins.purgatory import WheelPurgatory

Bug = Callable[[], AbstractContextManager[Any]]


def instead(owner: type[Any], name: str, replacement: Any) -> Bug:
    """Have another method in place of one."""
    return partial(patch.object, owner, name, replacement)


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _confirm(log: Any, callback: Callable[[Exception | None], object], error: Exception | None) -> None:
    callback(error)


def _checkNoBatch(states: Any, key: Any, epoch: int, firstSequence: int, lastSequence: int) -> None:
    with suppress(Exception):
        _check(states, key, epoch, firstSequence, lastSequence)


_check = ProducerStates.check


def _flushOnce(flushes: Sequence[Callable[[], object]]) -> None:
    for flush in flushes:
        with suppress(OSError):
            flush()


def _saveNothing(store: Any, group: Any, then: Callable[[Exception | None], object], *_: Any, **__: Any) -> None:
    then(None)


def _saveOneOffset(store: Any, group: Any, offsets: Any, then: Callable[[Exception | None], object]) -> None:
    then(None)


def _forgetThrottle(driver: Any) -> None:
    driver._throttleCall = None


_connectionLost = FrameProtocol.connectionLost


def _lostWithoutRelease(protocol: Any, *arguments: Any) -> None:
    with patch.object(Framer, "discard", _keepLease):
        _connectionLost(protocol, *arguments)
        _LEFT_BEHIND.append(protocol.framer)


_LEFT_BEHIND: list[Any] = []


def _keepLease(framer: Any) -> None:
    framer.bufferedBytes = 0


def _wakeFirst(broker: Any, partitions: Sequence[Any]) -> None:
    """Only the first of several partitions is looked at."""
    for partition in list(partitions)[:1]:
        broker.changed = partition
        broker.purgatory.checkAndComplete(partition)
    broker.changed = None


def _checkFirst(purgatory: Any, key: Any) -> int:
    """Of those who wait for the same thing, only one is asked."""
    for operation in list(purgatory._operations.under(key))[:1]:
        return int(operation.tryComplete())
    return 0


_charge = RequestDriver.charge


def _chargeNothing(*arguments: Any, **named: Any) -> float:
    _charge(*arguments, **named)
    return 0.0


_received = BrokerBackend.received


def _receivedAnyhow(backend: Any, request: Any, buffer: memoryview) -> None:
    """Nobody looks at what waits for the disk."""
    session, isProduce = backend.session, request.header.apiKey == PRODUCE
    kept = session.unanswered
    session.unanswered = kept if isProduce else {}
    try:
        _received(backend, request, buffer)
    finally:
        session.unanswered = kept


BUGS: dict[str, Bug] = {
    "memory that is released wakes nobody": instead(Gate, "_memoryReleased", _nothing),
    "a connection that is lost keeps the memory of what it had received": instead(
        FrameProtocol, "connectionLost", _lostWithoutRelease
    ),
    "a connection that was throttled is not read again": instead(RequestDriver, "_throttleOver", _forgetThrottle),
    "a request of another kind overtakes those that wait for the disk": instead(
        BrokerBackend, "received", _receivedAnyhow
    ),
    "what waits is not told that its client is gone": instead(FrameProtocol, "_cancelSteps", _nothing),
    "new records wake nobody": instead(Broker, "_recordsChanged", _nothing),
    "new records wake only who waits for the first of several partitions": instead(
        Broker, "_recordsChanged", _wakeFirst
    ),
    "new records wake only one of those who wait": instead(WheelPurgatory, "_check", _checkFirst),
    "what is written is confirmed before it is flushed": instead(SegmentLog, "_awaitFlush", _confirm),
    "a flush that has failed counts as one": partial(patch.object, flushing, "callAll", _flushOnce),
    "sequence numbers are not looked at": instead(ProducerStates, "check", _checkNoBatch),
    "producers are forgotten at a start": instead(ProducerStates, "restore", _nothing),
    "groups are not stored": instead(GroupStore, "save", _saveNothing),
    "offsets are not stored": instead(GroupStore, "saveOffsets", _saveOneOffset),
    "over its quota nobody has to wait": instead(RequestDriver, "charge", _chargeNothing),
    "nobody owes anything on a new connection": instead(Debts, "owes", _nothing),
}

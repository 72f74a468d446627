# -*- test-case-name: tests.unit.kafka.serving.test_memoryuse -*-
"""
The components of a server's memory, for the profiler.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import frozen
from twisted.internet.interfaces import IReactorCore, IReactorTime
from twisted.internet.protocol import Factory
from twisted.internet.tcp import Port
from twisted.logger import Logger
from twisted.python.usage import UsageError

from admission.connection.hangup import HangUpWatch
from admission.connection.protocol import FrameProtocol
from admission.control import AdmissionControl
from admission.gate.gate import Gate
from admission.interfaces import (
    CONNECTIONS,
    FRAMES,
    PARKED,
    RESPONSES,
    ILease,
    IMemoryPool,
    IMetricsExporter,
    IPurgatory,
    IQuotaPolicy,
)
from admission.metrics.histogram import Histogram
from admission.metrics.registry import SensorRegistry
from admission.operations import DelayedOperation
from admission.profiling.objectgroups import Group, Grouping, implementing, subclassOf
from admission.profiling.profiler import Profiler
from admission.recording.recorder import EventRecorder
from admission.units import formatSeconds, parseSeconds

from .server import Server
from .serversettings import ServerSettings

IDLE = "buffers kept for reuse"
"""The last entry of the pool's ledger: memory that it holds and has not allocated."""

MIN_INTERVAL_SECONDS = 1.0

_GROUPS = (
    Group("leases", implementing(ILease), (FRAMES,)),
    Group("connections", subclassOf(FrameProtocol), (CONNECTIONS, RESPONSES)),
    Group("parked operations", subclassOf(DelayedOperation), (PARKED,)),
    Group("quota policies and filters", implementing(IQuotaPolicy), ("policies",)),
    Group("exporters", implementing(IMetricsExporter)),
    Group("sensors", subclassOf(SensorRegistry, Histogram)),
)

_SHARED_CLASSES = subclassOf(
    AdmissionControl,
    EventRecorder,
    Factory,
    Gate,
    HangUpWatch,
    Logger,
    Port,
    Server,
    ServerSettings,
)
_SHARED_INTERFACES = implementing(IMemoryPool, IPurgatory, IReactorCore, IReactorTime)


@frozen
class MemoryProfile:
    """
    The value of C{--profile-memory}.

    @ivar intervalSeconds: the time between two snapshots.
    @ivar directory: where reports go.
    """

    intervalSeconds: float
    directory: Path


def parseProfile(text: str) -> MemoryProfile:
    """
    Read C{INTERVAL[:DIRECTORY]}.

    @raise UsageError: if C{text} does not have that form.
    """
    interval, colon, directory = text.partition(":")
    try:
        seconds = parseSeconds(interval)
    except ValueError as error:
        raise UsageError(f"--profile-memory: {error}, as in --profile-memory 30s:memory") from error
    if seconds < MIN_INTERVAL_SECONDS:
        raise UsageError(f"--profile-memory {text}: write {formatSeconds(MIN_INTERVAL_SECONDS)} or more")
    if colon and not directory:
        raise UsageError(f"--profile-memory {text}: name a directory after the colon, or leave the colon out")
    return MemoryProfile(seconds, Path(directory or "memory"))


def makeProfiler(
    clock: IReactorTime,
    wallSeconds: Callable[[], float],
    claims: Callable[[], Mapping[str, int]],
    further: Sequence[Group] = (),
) -> Profiler:
    """
    Make a profiler of the current process.  Call it before anything else of the
    broker is made.

    @param claims: see L{claimsOf}.
    @param further: components of this server besides those of all.
    """
    started = datetime.fromtimestamp(wallSeconds(), UTC)
    return Profiler(
        Grouping((*_GROUPS, *further), lambda kind: _SHARED_CLASSES(kind) or _SHARED_INTERFACES(kind)),
        claims,
        clock,
        wallSeconds,
        f"{started:%Y%m%dT%H%M%S}-{os.getpid()}",
        _opaque,
    )


def claimsOf(gate: Gate) -> dict[str, int]:
    """
    The ledger of the server, and the memory that it keeps in reserve.
    """
    return {**gate.ledger.usedBytes, IDLE: gate.pool.idleBytes}


def _opaque() -> dict[type, Callable[[Any], int]]:
    from rbloom import Bloom

    return {Bloom: lambda bloom: int(bloom.size_in_bits) // 8}

# -*- test-case-name: tests.offline.test_syntheticserver -*-
"""
Recordings of synthetic servers: clients from a seed, the real policies in virtual time, and the real exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

from attrs import evolve
from twisted.internet.defer import execute
from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from ..connection.debts import Debts
from ..connection.driver import RequestDriver
from ..control import SWEEP_SECONDS, AdmissionControl
from ..gate.gate import buildGate
from ..interfaces import (
    CONNECTION,
    CONNECTIONS,
    ILease,
    IMemoryPool,
    IMemoryPoolFactory,
    IMetricsExporter,
    IMetricsExporterFactory,
    IQuotaPolicy,
    IQuotaPolicyFactory,
    IWaiter,
    PolicyContext,
    Refusal,
)
from ..metrics.registry import SensorRegistry
from ..plugins import PolicyError, buildPolicy, parseDescription
from ..recording.eventof import eventOf, withoutNumbers
from ..recording.events import ADMIT, EXPIRE, MUTE, REJECT, THROTTLE, Origin, RequestEvent
from ..recording.recorder import MAX_SAMPLES, SAMPLE_SECONDS, EventRecorder
from ..request import ServerRequest
from ..units import formatBytes
from .kinds import traitsOfKind
from .population import Draft, Population, Stream
from .simulator import MICROSECONDS, Simulator

CONNECTION_BYTES = 8 << 10
"""The memory charged for an open connection."""

_STRANGER = "ANONYMOUS"

_KINDS = {True: "Produce", False: "Fetch"}
"""The kinds of requests, by whether they write; the broker's names, whose limits are replayed."""

_TRAITS = {isWriting: traitsOfKind(kind) for isWriting, kind in _KINDS.items()}


@implementer(IWaiter)
class SyntheticConnection:
    """
    Sends one request at a time, and continues when its answer has arrived and the server reads again.  It is the
    L{IWaiter} that the gate knows, and what a L{RequestDriver} asks of a connection.

    @ivar stream: its requests.
    @ivar factory: the server.
    @ivar connectionId: its number in the recording; L{None} while it is closed.
    @ivar listener: the port that it was accepted on.
    @ivar host: its client's address.
    @ivar principal: its user, once it has logged in.
    """

    hasBoundedAnswers = True
    hasPeerGone = isLost = isClosing = False
    makeRequest = ServerRequest

    _charge: ILease
    _draft: Draft
    _openedUs: int

    def __init__(self, server: SyntheticServer, stream: Stream) -> None:
        self.stream = stream
        self.factory = server
        self.connectionId: int | None = None
        self.listener = "tcp:9092"
        self.host = stream.member.peer
        self.principal: str | None = _STRANGER
        self.clientId = stream.member.clientId
        self.whyClosed: str | None = None
        self._simulator = server.simulator
        self._driver = RequestDriver(self)
        self._requestCount = 0
        self._freeUs = 0
        self._request: ServerRequest | None = None

    def open(self) -> None:
        """
        Connect; the policies are asked as by a server that does not know the user yet.
        """
        server = self.factory
        self._freeUs = self._openedUs = self._simulator.nowUs
        self.connectionId = server.recorder.connectionOpened(self.listener, self.host)
        self._charge = server.gate.pool.charge(CONNECTION_BYTES, CONNECTIONS)
        self._driver.opened()
        self.principal = self.stream.member.principal
        if self.whyClosed is None:
            self._think()
        else:
            self.leave(withoutNumbers(self.whyClosed))

    def leave(self, reason: str | None) -> None:
        """
        Disconnect, whatever is under way; no effect if it is not connected.
        """
        if self.connectionId is None:
            return
        server = self.factory
        server.gate.forget(self)
        request, self._request = self._request, None
        if request is not None:
            request.expire(reason or "")
            self._driver.over(request, self._simulator.seconds())
        self._driver.lost()
        self._charge.release()
        openSeconds = (self._simulator.nowUs - self._openedUs) / MICROSECONDS
        server.recorder.connectionClosed(
            self.connectionId, self.listener, self.host, self.principal, reason, self._requestCount, openSeconds
        )
        self.connectionId = None

    # What the gate asks

    @property
    def holder(self) -> str:
        return self.principal or self.host

    @property
    def wantedBytes(self) -> int:
        return self._draft.requestBytes

    def leaseGranted(self, lease: ILease) -> None:
        self._receive(lease)

    def turnGranted(self) -> None:
        """
        Never called: no waiter here waits for a turn.
        """

    # What its driver tells it

    def close(self, reason: str) -> None:
        self.whyClosed = reason

    def throttled(self, delaySeconds: float) -> None:
        self._freeUs = self._simulator.nowUs + round(delaySeconds * MICROSECONDS)

    def throttleOver(self) -> None:
        """
        It knows when it goes on.
        """

    # The way of one request

    def _think(self) -> None:
        self._draft = draft = self.stream.next()
        self._simulator.at(self._freeUs + draft.thinkUs, self._arrive)

    def _arrive(self) -> None:
        draft = self._draft
        self._requestCount += 1
        request = self._request = self._driver.arrived(draft.requestBytes)
        request.kind, request.traits = _KINDS[draft.isProduce], _TRAITS[draft.isProduce]
        request.principal, request.clientId = self.principal, self.clientId
        request.asked = request.arrived
        lease = self.factory.gate.memory.tryAllocate(self, draft.requestBytes)
        if lease is not None:
            self._receive(lease)

    def _receive(self, lease: ILease) -> None:
        request = self._request
        assert request is not None
        request.lease, request.granted = lease, self._simulator.seconds()
        self._simulator.at(self._simulator.nowUs + self._draft.receiveUs, self._work)

    def _work(self) -> None:
        request, draft, control = self._request, self._draft, self.factory.control
        assert request is not None
        request.complete = now = self._simulator.seconds()
        request.begin(now)
        if not draft.isProduce:
            # A decoded Fetch no longer needs its memory.
            request.release(now)
        if control.wants.decision:
            request.identities = self.identities
            decision = self._driver.admit(request, Refusal.ERROR)
            if not decision.admitted:
                self.throttled(decision.delaySeconds)
                request.release(now)
                self._send(decision.delaySeconds)
                return
            self._driver.begin(request)
        self._simulator.at(self._simulator.nowUs + draft.serviceUs, self._answer)

    def _answer(self) -> None:
        request, draft, driver = self._request, self._draft, self._driver
        assert request is not None
        now = self._simulator.seconds()
        request.responseBytes = draft.responseBytes
        usage = driver.usageOf(request, draft.responseBytes, now)
        delaySeconds = 0.0
        if request.view is not None:
            delaySeconds = driver.charge(request, usage, now)
            self.throttled(delaySeconds)
        if not draft.isProduce:
            self._send(delaySeconds)
            return
        driver.park(request)
        self._simulator.at(self._simulator.nowUs + draft.commitUs, partial(self._send, delaySeconds))

    def _send(self, delaySeconds: float) -> None:
        request, self._request = self._request, None
        if request is None:
            # It has left meanwhile.
            return
        now = self._simulator.seconds()
        if request.parked is not None:
            request.resume(now)
        self._freeUs = max(self._freeUs, self._simulator.nowUs)
        self._driver.answered(request, now, delaySeconds)
        self._think()

    @property
    def identities(self) -> tuple[int, ...]:
        """
        The identities that its request carries.
        """
        return (self._draft.producerId,) if self._draft.isProduce else ()


BROKER_ID = "synthetic"
"""The broker id of synthetic recordings."""

BEGIN_SECONDS = 1_704_067_200.0
"""When recordings begin by default: with the year 2024."""

MAX_DELAY_SECONDS = 20.0
"""The default of C{quota.throttle.max}."""

SMALLEST_POOL_BYTES = 64 << 20
"""The default size of the pool, unless the connections need a larger one."""

PROGRESS_ROWS = 100_000
"""The number of events between two reports of progress."""

_STOPPED = "the server was stopped"
_MIN_CAP_BYTES = 1 << 30
_CAP_BYTES_OF_EVENT = 512


class RecordingFailed(Exception):
    """
    A recording cannot be made, or is incomplete.
    """


class SyntheticServer:
    """
    A server for a L{Population}: the real gate, pool and quota policies, and service times from the requests' drafts.

    It is simpler than a real one in that it is never busy: no request waits for its turn or is slowed down by others,
    answers are taken at once, and a Fetch is answered in full however little of a limit is left.  The arrivals follow
    from the population and from how long the server has throttled its clients.

    Time is virtual and begins at zero.  The same arguments make the same events, except that C{producer-ids} draws its
    own random key, so that nobody can predict its filters' false positives.

    @ivar simulator: its time.
    @ivar context: for building its exporters.
    @ivar origin: the part that all its events share.
    @ivar decisions: the number of requests with each decision.
    """

    recorder: EventRecorder

    places = trustedProxies = None

    def __init__(
        self,
        population: Population,
        quotas: Sequence[str] = (),
        pool: str | None = None,
        beginSeconds: float = BEGIN_SECONDS,
    ) -> None:
        """
        @param quotas: the descriptions of quota policies.
        @param pool: the description of the memory pool; by default one that is large enough for the connections.
        @param beginSeconds: when it starts, in seconds since the epoch.
        @raise ValueError: for an invalid description, or a pool that is too small for this population.
        """
        self.population = population
        self.simulator = simulator = Simulator()
        self.context = PolicyContext(simulator, lambda: beginSeconds + simulator.seconds())
        self.decisions = dict.fromkeys((ADMIT, THROTTLE, REJECT, MUTE, EXPIRE), 0)
        connectionBytes = population.clients * population.connections * CONNECTION_BYTES
        poolDescription = pool or f"bounded:{formatBytes(max(SMALLEST_POOL_BYTES, 2 * connectionBytes))}"
        self.pool: IMemoryPool = buildPolicy(IMemoryPoolFactory, poolDescription, self.context)
        if self.pool.sizeBytes <= connectionBytes:
            raise ValueError(
                f"the pool {poolDescription} is too small: the connections alone take {formatBytes(connectionBytes)}"
            )
        if self.pool.largestBytes < population.largestBytes:
            raise ValueError(
                f"the pool {poolDescription} hands out {formatBytes(self.pool.largestBytes)} at most, "
                f"and requests have up to {formatBytes(population.largestBytes)}"
            )
        gateSeed = Random(f"{population.seed} gate").getrandbits(63)
        self.gate = buildGate(self.pool, evolve(self.context, random=Random(gateSeed)))
        self.control = AdmissionControl(self._buildPolicies(quotas), MAX_DELAY_SECONDS, isObserved=True)
        self.origin = Origin(
            BROKER_ID,
            f"{BROKER_ID}-{population.seed}",
            gateSeed,
            self.control.policyNames,
            list(quotas),
            self.context.quotaWindows,
            self.context.quotaWindowSeconds,
            MAX_DELAY_SECONDS,
            poolDescription,
        )
        # What the drivers of connections ask of their factory.
        self.clock: IReactorTime = simulator
        self.debts = Debts()
        self.observers = (self,)
        self._progress: Callable[[int, float], None] | None = None
        self._nextProgress = PROGRESS_ROWS

    @property
    def requestCount(self) -> int:
        """
        How many requests have been recorded, including connections that the policies were asked about.
        """
        return sum(self.decisions.values())

    def run(self, exporter: IMetricsExporter, progress: Callable[[int, float], None] | None = None) -> None:
        """
        Run, once, for as long as the population says.

        @param exporter: receives all events; built with C{context}.
        @param progress: called about every L{PROGRESS_ROWS} events with the number of events and of seconds so far.
        @raise OSError: if the exporter cannot start.
        @raise RecordingFailed: if it dropped any event.
        """
        registry = SensorRegistry(self.simulator.seconds)
        self._progress = progress
        self.recorder = EventRecorder([("spark", exporter)], self.simulator, registry)
        # Work for a thread is done at once: virtual time can stand still.
        self.recorder.start(self.origin, execute)
        self.gate.addSensors(registry)
        self.control.addSensors(registry)
        self.recorder.addSensors(registry)
        for entity, limits in self.control.limits.items():
            self.recorder.limitsChanged(entity, limits, self.simulator.seconds())
        self._sweepNext()
        connections = [SyntheticConnection(self, stream) for stream in self.population.streams()]
        for connection in connections:
            self.simulator.at(connection.stream.openedUs, connection.open)
        self.simulator.runUntil(round(self.population.seconds * MICROSECONDS))
        for connection in connections:
            connection.leave(_STOPPED)
        self.gate.close()
        self.recorder.stop()
        if exporter.droppedEvents:
            raise RecordingFailed(f"there was no room for {exporter.droppedEvents} events; see that the disk has more")

    def clientIdAt(self, host: str) -> str:
        return ""

    def requestOver(self, request: ServerRequest) -> None:
        """
        Called by the drivers of connections, which it observes.
        """
        event = eventOf(request, RequestEvent)
        if request.kind != CONNECTION:
            event.identities = request.connection.identities
        self.decisions[event.decision] += 1
        self.recorder.requestAnswered(event)
        if self._progress is not None and event.seq >= self._nextProgress:
            self._nextProgress += PROGRESS_ROWS
            self._progress(event.seq, self.simulator.seconds())

    def _sweepNext(self) -> None:
        self.simulator.at(self.simulator.nowUs + round(SWEEP_SECONDS * MICROSECONDS), self._sweep)

    def _sweep(self) -> None:
        self.control.sweep(self.simulator.seconds())
        self._sweepNext()

    def _buildPolicies(self, descriptions: Sequence[str]) -> list[tuple[str, IQuotaPolicy]]:
        policies: list[tuple[str, IQuotaPolicy]] = []
        for description in descriptions:
            name = parseDescription(description)[0]
            others = sum(each.partition("-#")[0] == name for each, _ in policies)
            policy: IQuotaPolicy = buildPolicy(IQuotaPolicyFactory, description, self.context)
            policies.append((f"{name}-#{others + 1}" if others else name, policy))
        return policies


def recordSynthetic(
    directory: str | Path, server: SyntheticServer, progress: Callable[[int, float], None] | None = None
) -> None:
    """
    Run C{server} and record it, as C{--export spark:DIRECTORY} records a real one.

    @param directory: an empty or new directory.
    @param progress: see L{SyntheticServer.run}.
    @raise RecordingFailed: if that fails.
    """
    path = Path(directory)
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RecordingFailed(f"{path} is there already; name a directory that is empty or not there yet")
        server.run(_exporterTo(path, server), progress)
    except PolicyError as error:
        # The path, or a missing package; the user did not write that description.
        raise RecordingFailed(str(error.__cause__ or error)) from error
    except OSError as error:
        raise RecordingFailed(f"{path} cannot be written to: {error.strerror or error}") from error


def _exporterTo(path: Path, server: SyntheticServer) -> IMetricsExporter:
    population = server.population
    # The exporter keeps its bound by removing old files, which must not happen here.
    events = population.offeredRequests + population.seconds / SAMPLE_SECONDS * MAX_SAMPLES
    capBytes = max(_MIN_CAP_BYTES, int(events) * _CAP_BYTES_OF_EVENT)
    quoted = "".join(f"\\{each}" if each in ":=\\" else each for each in str(path))
    # Segments end by size, not by time: virtual minutes pass quickly.
    description = f"spark:{quoted}:rotate=3650d:cap={capBytes}:sealing=inline"
    exporter: IMetricsExporter = buildPolicy(IMetricsExporterFactory, description, server.context)
    return exporter

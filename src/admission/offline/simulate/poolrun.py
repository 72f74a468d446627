# -*- test-case-name: tests.offline.simulate.test_pool -*-
"""
A replay of a recording's requests with another memory pool, in virtual time, and measurements of that pool.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from attrs import define
from zope.interface import implementer

from admission.gate.gate import Gate
from admission.interfaces import CONNECTIONS, ILease, IMemoryPool, IWaiter, IWaitOrder

from ..simulator import MICROSECONDS, Simulator
from .pooltrace import PoolTrace
from .totals import MINUTE_US


@define
class Step:
    """
    A step of time of the pool.

    @ivar beginUs: when it began, in microseconds since the epoch.
    @ivar usedMaxBytes: the most memory allocated.
    @ivar availableMinBytes: the least memory available.
    @ivar depletedUs: for how long no memory was available.
    @ivar mutedUs: for how long connections waited for memory, in total.
    @ivar waitingMax: the largest number of waiting connections.
    @ivar spanUs: how much of it was replayed.
    """

    beginUs: int
    usedMaxBytes: int
    availableMinBytes: int
    waitingMax: int
    depletedUs: int = 0
    mutedUs: int = 0
    spanUs: int = 0


class PoolWatch:
    """
    Measures a pool at each event; its state is constant in between.

    @ivar steps: the measurements, by steps of wall time.
    @ivar peakBytes: the most memory allocated at a time.
    """

    def __init__(self, pool: IMemoryPool, nowUs: int, wallOffsetUs: int, stepUs: int = MINUTE_US) -> None:
        """
        @param nowUs: the time, like all times here in microseconds of the recording's clock.
        @param wallOffsetUs: added to it to get wall time.
        @param stepUs: the length of a step.
        """
        self.peakBytes = 0
        self._pool = pool
        self._wallOffsetUs = wallOffsetUs
        self._stepUs = stepUs
        self._seenUs = nowUs
        self._usedBytes = self._waiting = 0
        self._availableBytes = pool.availableBytes
        self._isDry = pool.isOutOfMemory()
        self._step = self._stepOf(nowUs)
        self.steps = [self._step]

    def see(self, nowUs: int, changeBytes: int = 0) -> None:
        """
        Take a measurement.

        @param changeBytes: how much was allocated since; negative if released.
        """
        if nowUs > self._seenUs:
            self._pass(nowUs)
        self._isDry = self._pool.isOutOfMemory()
        self._availableBytes = availableBytes = self._pool.availableBytes
        self._usedBytes = usedBytes = self._usedBytes + changeBytes
        step = self._step
        if usedBytes > step.usedMaxBytes:
            step.usedMaxBytes = usedBytes
            self.peakBytes = max(self.peakBytes, usedBytes)
        if availableBytes < step.availableMinBytes:
            step.availableMinBytes = availableBytes

    def wait(self, nowUs: int, change: int) -> None:
        """
        A connection begins or ends waiting.

        @param change: 1 or -1.
        """
        self.see(nowUs)
        self._waiting += change
        if self._waiting > self._step.waitingMax:
            self._step.waitingMax = self._waiting

    def close(self, nowUs: int) -> None:
        """
        Finish the last step; nothing may follow.
        """
        self.see(nowUs)
        if len(self.steps) > 1 and not self._step.spanUs:
            self.steps.pop()

    def _pass(self, nowUs: int) -> None:
        while True:
            step = self._step
            endUs = step.beginUs + self._stepUs - self._wallOffsetUs
            passedUs = min(nowUs, endUs) - self._seenUs
            step.spanUs += passedUs
            step.mutedUs += passedUs * self._waiting
            if self._isDry:
                step.depletedUs += passedUs
            self._seenUs += passedUs
            if nowUs < endUs:
                return
            self._step = self._stepOf(endUs)
            self.steps.append(self._step)

    def _stepOf(self, nowUs: int) -> Step:
        wallUs = nowUs + self._wallOffsetUs
        return Step(wallUs - wallUs % self._stepUs, self._usedBytes, self._availableBytes, self._waiting)


AHEAD_US = MICROSECONDS
"""How much earlier than recorded a connection must finish to count as exhausted."""


@define(eq=False)
class ClientWaits:
    """
    The waits of one client.

    @ivar requests: how many of its requests arrived.
    @ivar requestBytes: their total size.
    @ivar waits: how many had to wait, including requests that still waited at the end.
    @ivar waitUs: the total wait.
    @ivar waitMaxUs: the longest wait.
    """

    requests: int = 0
    requestBytes: int = 0
    waits: int = 0
    waitUs: int = 0
    waitMaxUs: int = 0


class PoolRun:
    """
    Replays every request of a trace with a pool, through the real gate.

    The distance from a grant of memory to the next request of that connection stays as recorded, so a connection that
    waits longer asks later: everything that the server did in between, quota delays included, is unchanged.

    Other charges, for connections and responses for instance, are as they were at that time in the recording.

    @ivar pool: the pool.
    @ivar watch: its measurements.
    @ivar clients: the waits of each client, by its number in the trace.
    @ivar waitsUs: the length of each wait.
    @ivar requests: how many requests arrived.
    @ivar oversized: how many of them were larger than the pool's largest lease; a server refuses these, and here they
        pass without memory.
    @ivar unserved: how many waited at the end.
    @ivar exhausted: how many connections had nothing more to send although, in the recording, they went on for more
        than L{AHEAD_US}: with a pool that is larger than the recorded one, they might have sent more.
    @ivar unreleasedBytes: the bytes still allocated after all leases have been released.
    """

    def __init__(
        self,
        trace: PoolTrace,
        build: Callable[[Any], IMemoryPool],
        horizonUs: int,
        buildOrder: Callable[[Any, Random], IWaitOrder],
        stepUs: int = MINUTE_US,
    ) -> None:
        """
        @param build: makes the pool, given a clock.
        @param buildOrder: makes an order of waiters, given a clock and a random source.
        @param horizonUs: when to end; later requests do not count.
        @param stepUs: see L{PoolWatch}.
        """
        self._trace = trace
        self.simulator = simulator = Simulator(trace.firstUs)
        self.pool: IMemoryPool = build(simulator)
        random = Random(trace.gateSeed)
        memoryOrder, turnOrder, answerOrder, decodingOrder = (buildOrder(simulator, random) for _ in range(4))
        self.gate = Gate(self.pool, simulator, memoryOrder, turnOrder, answerOrder, decodingOrder)
        self.watch = PoolWatch(self.pool, trace.firstUs, trace.wallOffsetUs, stepUs)
        self.largestBytes = self.pool.largestBytes
        self.clients = [ClientWaits() for _ in trace.clients]
        self.waitsUs = array("q")
        self.requests = self.oversized = self.unserved = self.exhausted = self.unreleasedBytes = 0
        self._horizonUs = horizonUs
        self._readers: dict[_Reader, None] = {}
        self._begun = self._charged = self._chargedBytes = 0
        self._charge: ILease | None = None

    def run(self) -> None:
        """
        Run the replay; call this once.
        """
        self._expectCharge()
        self._expectReader()
        self.simulator.runUntil(self._horizonUs)
        self.watch.close(self.simulator.nowUs)
        for reader in self._readers:
            reader.leave()
        if self._charge is not None:
            self._charge.release()
        self.gate.close()
        self.unreleasedBytes = sum(self.pool.usedBytesByPurpose.values())

    def row(self, number: int) -> tuple[int, ...]:
        """
        For readers, like all methods below: see L{PoolTrace.row}.
        """
        return self._trace.row(number)

    def holder(self, client: int, connection: int) -> str:
        return self._trace.holder(client, connection)

    def done(self, reader: _Reader, isEarly: bool) -> None:
        """
        A connection has nothing more to send.
        """
        del self._readers[reader]
        self.exhausted += isEarly

    def _expectReader(self) -> None:
        """
        Schedule the beginning of the next connection.
        """
        if self._begun < len(self._trace.firstRows):
            reader = _Reader(self, self._trace.firstRows[self._begun])
            self._readers[reader] = None
            self._begun += 1
            self.simulator.at(reader.dueUs, self._expectReader)
            self.simulator.at(reader.dueUs, reader.arrive)

    def _expectCharge(self) -> None:
        if self._charged < len(self._trace.charges):
            atUs, sizeBytes = self._trace.charges[self._charged]
            self._charged += 1
            self.simulator.at(atUs, partial(self._chargeOthers, sizeBytes))

    def _chargeOthers(self, sizeBytes: int) -> None:
        if self._charge is not None:
            self._charge.release()
        # No waiter is served before this is allocated again: the gate serves in a turn of its own.
        self._charge = self.pool.charge(sizeBytes, CONNECTIONS)
        self.watch.see(self.simulator.nowUs, sizeBytes - self._chargedBytes)
        self._chargedBytes = sizeBytes
        self._expectCharge()


@implementer(IWaiter)
class _Reader:
    """
    A connection; the L{IWaiter} that the gate knows.

    @ivar dueUs: when its current request arrives.
    @ivar wantedBytes: the size of that request.
    @ivar holder: the principal that sent it, or else the address, as recorded.
    """

    hasBoundedAnswers = True

    __slots__ = (
        "_client",
        "_gapUs",
        "_grantedUs",
        "_holdUs",
        "_isWaiting",
        "_lease",
        "_next",
        "_recordedGrantUs",
        "_run",
        "dueUs",
        "holder",
        "wantedBytes",
    )

    def __init__(self, run: PoolRun, row: int) -> None:
        self._run = run
        self._lease: ILease | None = None
        self._isWaiting = False
        self._grantedUs = 0
        self.dueUs = self._load(row)

    def arrive(self) -> None:
        """
        The request arrives: its size is known.
        """
        run, client, sizeBytes = self._run, self._client, self.wantedBytes
        run.requests += 1
        client.requests += 1
        client.requestBytes += sizeBytes
        if not 0 < sizeBytes <= run.largestBytes:
            run.oversized += sizeBytes > 0
            self._hold(None)
            return
        lease = run.gate.memory.tryAllocate(self, sizeBytes)
        if lease is not None:
            self._hold(lease)
        else:
            self._isWaiting = True
            run.watch.wait(run.simulator.nowUs, 1)

    def leaseGranted(self, lease: ILease) -> None:
        self._waited()
        self._hold(lease)

    def turnGranted(self) -> None:
        """
        Never called: no waiter here waits for a turn.
        """

    def leave(self) -> None:
        """
        Release the memory: the recorded holding time is over.
        """
        if self._isWaiting:
            self._run.unserved += 1
            self._run.gate.forget(self)
            self._waited()
        if self._lease is not None:
            self._lease.release()

    def _load(self, row: int) -> int:
        """
        Take the next request from a row.

        @return: when it arrived in the recording.
        """
        run = self._run
        arrivedUs, waitUs, self.wantedBytes, self._holdUs, self._gapUs, self._next, client, connection = run.row(row)
        self._recordedGrantUs = arrivedUs + waitUs
        self._client = run.clients[client]
        self.holder = run.holder(client, connection)
        return arrivedUs

    def _waited(self) -> None:
        run, client = self._run, self._client
        self._isWaiting = False
        nowUs = run.simulator.nowUs
        waitUs = nowUs - self.dueUs
        run.watch.wait(nowUs, -1)
        run.waitsUs.append(waitUs)
        client.waits += 1
        client.waitUs += waitUs
        client.waitMaxUs = max(client.waitMaxUs, waitUs)

    def _hold(self, lease: ILease | None) -> None:
        run = self._run
        self._lease = lease
        self._grantedUs = run.simulator.nowUs
        if lease is not None:
            run.watch.see(self._grantedUs, lease.sizeBytes)
        run.simulator.at(self._grantedUs + self._holdUs, self._release)

    def _release(self) -> None:
        run, lease = self._run, self._lease
        if lease is not None:
            self._lease = None
            sizeBytes = lease.sizeBytes
            lease.release()
            run.watch.see(run.simulator.nowUs, -sizeBytes)
        if self._next < 0:
            run.done(self, self._recordedGrantUs - self._grantedUs > AHEAD_US)
            return
        self.dueUs = self._grantedUs + self._gapUs
        self._load(self._next)
        run.simulator.at(self.dueUs, self.arrive)

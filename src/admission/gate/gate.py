# -*- test-case-name: tests.unit.test_gate -*-
"""
One for each server: what its connections wait for.
"""

from __future__ import annotations

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from ..interfaces import IMemoryPool, IWaiter, IWaitOrder, IWaitOrderFactory, PolicyContext
from ..metrics.reactorlag import ReactorLag
from ..metrics.registry import SensorRegistry
from ..plugins import buildPolicy
from .answerroom import AnswerRoom
from .ledger import Ledger
from .memoryqueue import MemoryQueue
from .pressure import Pressure
from .reserve import Reserve
from .slowbodies import SlowBodies
from .stalledreaders import StalledReaders
from .stallerslast import StallersLast
from .turns import TURN_SECONDS, Turns

GRANTS_PER_TURN = 64

DEFAULT_ORDER = "holders"
"""The order in which waiters are served unless another is asked for."""


class Gate:
    """
    Stands between the connections of a server and its memory pool: what they wait for, they wait for here.

    Released memory is granted in a turn of the reactor of its own, since a release may happen in the middle of
    anything.

    @ivar pool: the L{IMemoryPool}.
    @ivar memory: the connections that wait for memory for a request.
    @ivar turns: the requests that are worked on, and those that wait for that.
    @ivar answers: the answers that wait for room.
    @ivar bodies: the bodies that have memory and have not come.
    @ivar readers: the connections whose peers do not take their responses.
    @ivar pressure: whether memory is short.
    @ivar ledger: where the memory is.
    @ivar lag: how late the reactor is, once it is told to look.
    """

    def __init__(
        self,
        pool: IMemoryPool,
        clock: IReactorTime,
        memoryOrder: IWaitOrder,
        turnOrder: IWaitOrder,
        answerOrder: IWaitOrder,
        decodingOrder: IWaitOrder,
        maxRequests: int = 500,
    ) -> None:
        """
        @param memoryOrder: the order in which waiters get memory.
        @param turnOrder: the order in which waiting requests are worked on;
            another object.
        @param answerOrder: the order in which answers are made that wait for room; another one.
        @param decodingOrder: the order in which requests go on that hold no memory yet, such as large ones that are to
            be decoded; another one.
        @param maxRequests: how many requests may be worked on at a time.
        @raise ValueError: if C{maxRequests} is not positive.
        """
        self.pool = pool
        self._clock = clock
        self._serving: IDelayedCall | None = None
        self.pressure = Pressure()
        self.ledger = Ledger(pool)
        self.lag = ReactorLag(clock)
        readers = self.readers = StalledReaders(pool, clock, self._isAwaited, self._readersLookedAt)
        reserve = Reserve(pool, self._isClaimed, readers.isStalling, lambda: readers.isFarOverdrawn)
        self.memory = MemoryQueue(pool, StallersLast(memoryOrder, readers.isStalling), reserve, self._memoryAwaited)
        self.turns = Turns(clock, turnOrder, maxRequests, self._serveIn)
        self.answers = AnswerRoom(
            pool,
            StallersLast(answerOrder, readers.isStalling),
            StallersLast(decodingOrder, readers.isStalling),
            self._answerAwaited,
        )
        self.bodies = SlowBodies(pool, clock, lambda: self.memory.isAwaited)
        pool.subscribe(self._memoryReleased)

    @property
    def hasToServe(self) -> bool:
        """
        Whether waiters are looked at in the next turn of the reactor.
        """
        return self._serving is not None

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish what the gate and the pool know.

        @raise ValueError: if there are sensors of these names.
        """
        registry.addGauge("MemoryPoolAvailable", lambda now: self.pool.availableBytes)
        registry.addGauge("MemoryPoolUsed", lambda now: self.pool.sizeBytes - self.pool.availableBytes)
        registry.addGauge("ConnectionsWaitingForMemory", lambda now: self.memory.waiting)
        registry.addGauge("RunningRequests", lambda now: self.turns.runningRequests)
        registry.addFamily(
            "LedgerBytes",
            ("purpose",),
            lambda now: (((purpose,), held) for purpose, held in self.ledger.usedBytes.items()),
        )
        self.pool.addSensors(registry, "MemoryPool")
        self.lag.addSensors(registry)

    def forget(self, waiter: IWaiter) -> None:
        """
        C{waiter} is gone, and waits for nothing any more.
        """
        self.memory.forget(waiter)
        self.turns.forget(waiter)

    def close(self) -> None:
        """
        Cancel all timers.
        """
        if self._serving is not None:
            self._serving.cancel()
            self._serving = None
        self.lag.stop()
        self.turns.close()
        self.bodies.close()
        self.readers.close()

    def _memoryReleased(self) -> None:
        if self.memory.memoryReleased() or self.pressure.isOn:
            self._serveIn(0)

    def _memoryAwaited(self) -> None:
        self.bodies.expect()
        self.readers.expect()
        self.pressure.begin()

    def _answerAwaited(self) -> None:
        # What the waiting request holds keeps no answer waiting from now on, and small frames may have the reserve.
        self._serveIn(0)
        self._memoryAwaited()

    def _readersLookedAt(self) -> None:
        if self._isAwaited():
            # A release in another thread does not call the gate, which therefore looks by itself.
            self._serveIn(0)
        self.bodies.expect()
        self.readers.expect()

    def _serveIn(self, seconds: float) -> None:
        if self._serving is None:
            self._serving = self._clock.callLater(seconds, self._serve)

    def _serve(self) -> None:
        self._serving = None
        if self.memory.readmit():
            self._serveIn(0)
        end = self._clock.seconds() + TURN_SECONDS
        for _ in range(GRANTS_PER_TURN):
            if not (self.memory.grant() or self.turns.grant()):
                break
            if self._clock.seconds() >= end:
                self._serveIn(0)
                break
        else:
            self._serveIn(0)
        # One answer in a turn, since it takes time to make one.
        if self.answers.grant():
            self._serveIn(0)
        if self.pressure.isOn and not self._isAwaited() and not self.pool.isOutOfMemory():
            self.pressure.end()

    def _isAwaited(self) -> bool:
        """
        Whether anybody waits for memory.
        """
        return self.memory.isAwaited or self.answers.waiting > 0

    def _isClaimed(self) -> bool:
        """
        Whether there is no memory, and would be if it were not claimed for bodies that have not come, or held by
        answers that wait for room.
        """
        availableBytes = self.pool.availableBytes
        return availableBytes <= 0 and (self.answers.waiting > 0 or self.bodies.claimMoreThan(-availableBytes))


def buildGate(pool: IMemoryPool, context: PolicyContext, order: str = DEFAULT_ORDER, maxRequests: int = 500) -> Gate:
    """
    Make a gate whose waiters are served in the order that C{order} describes.

    @param context: whose clock and random source the gate and the order have.
    @raise PolicyError: if there is no such order.
    """
    memoryOrder, turnOrder, answerOrder, decodingOrder = (
        buildPolicy(IWaitOrderFactory, order, context) for _ in range(4)
    )
    return Gate(pool, context.clock, memoryOrder, turnOrder, answerOrder, decodingOrder, maxRequests)

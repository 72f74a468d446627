# -*- test-case-name: tests.unit.test_gate -*-
"""
One for each server: which connection gets memory next, how many requests are
worked on, and where the memory is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Protocol

from mypy_extensions import mypyc_attr
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import classImplements

from .interfaces import (
    FRAMES,
    PARKED,
    RESPONSES,
    IFairPool,
    ILease,
    IMemoryPool,
    IWaiter,
    IWaitOrder,
    IWaitOrderFactory,
    PolicyContext,
)
from .metrics.registry import SensorRegistry
from .plugins import buildPolicy

GRANTS_PER_TURN = 64

HOLDERS_PER_TURN = 64
"""How many holders above their share are looked at in one turn of the reactor."""

TURN_SECONDS = 0.005
"""For how long requests are begun in one turn of the reactor; the others wait for the next."""

_UNTIMED_REQUESTS = 8
"""In most turns there are fewer, which are not worth a timer."""

STALL_GRACE_SECONDS = 1.0

RETRY_SECONDS = 1.0
"""When an order of waiters is asked again that has failed."""

RESERVED_SHARE = 4
"""Which part of the pool the reserve is, beyond the pool."""

LARGEST_SHARE = 16
"""Which part of the pool a frame may have of the reserve."""

SMALL_FRAME_BYTES = 64 << 10
"""Half of the reserve is for frames up to this size."""

MIN_BODY_SECONDS = 2.0
"""How long a body has memory at least, however little of it comes."""

MAX_BODY_SECONDS = 20.0
"""A body that would take longer, at its pace, gives way while others wait for memory."""

_SHARE_OF_ANSWERS = 16
"""Which part of the memory answers, and requests that wait, have in any case."""

DEFAULT_ORDER = "holders"
"""The order in which waiters are served unless another is asked for."""


class StalledReader(Protocol):
    """
    A connection whose peer does not take its responses.
    """

    def unsentBytes(self) -> int:
        """
        How many bytes it holds that its peer has not taken.
        """

    def stalledSeconds(self) -> float:
        """
        How long the peer has taken nothing; zero if it does.
        """

    def cutOff(self, reason: str) -> None:
        """
        Close the connection at once.
        """


class PartialBody(Protocol):
    """
    A connection that has memory for a body of which a part has not come.
    """

    def bodySeconds(self, now: float) -> float:
        """
        How long all of it would take, at the pace of what has come; zero if it is not read, or has not had
        L{MIN_BODY_SECONDS} yet.  May be infinite.
        """

    def missingBytes(self) -> int:
        """
        How much of it has not come.
        """

    def giveWay(self) -> None:
        """
        Close the connection, and release that memory.
        """


class _ReservedLease:
    """
    Memory for a frame beyond the pool, charged to it.
    """

    def __init__(self, charge: ILease, released: Callable[[int], None]) -> None:
        self.buffer: memoryview | None = memoryview(bytearray(charge.sizeBytes))
        self.sizeBytes = charge.sizeBytes
        self.purpose = charge.purpose
        self._charge = charge
        self._released = released

    def release(self) -> None:
        # Raises if it has been released before.
        self._charge.release()
        self.buffer = None
        self._released(self.sizeBytes)


classImplements(_ReservedLease, ILease)


@mypyc_attr(allow_interpreted_subclasses=True)
class Gate:
    """
    Stands between the connections of a server and its memory pool.

    A connection that finds the pool empty joins the waiters, and so does every
    connection that comes while others wait, or newcomers would overtake them.
    Released memory is granted in a turn of the reactor of its own, since a
    release may happen in the middle of anything.  An L{IWaitOrder} says who is
    first.  Another says whose request is begun next, when as many are being
    worked on as may be, or a turn of the reactor has brought more than it has
    time for.

    Who has more than its share of an L{IFairPool} waits aside, and keeps nobody waiting.

    A length that is announced is a claim.  Where the memory is claimed for what has not come, or large requests wait
    for more than they have, there is a reserve beyond the pool for frames that are not large; and a body that comes too
    slowly gives way to those that wait.

    @ivar pool: the L{IMemoryPool}.
    @ivar runningRequests: how many requests are being worked on; at most
        C{maxRequests}.  Requests that are parked do not count.
    """

    _log: ClassVar[Logger] = Logger()

    def __init__(
        self,
        pool: IMemoryPool,
        clock: IReactorTime,
        memoryOrder: IWaitOrder,
        turnOrder: IWaitOrder,
        maxRequests: int = 500,
    ) -> None:
        """
        @param memoryOrder: the order in which waiters get memory.
        @param turnOrder: the order in which waiting requests are worked on;
            another object.
        @param maxRequests: how many requests may be worked on at a time.
        @raise ValueError: if C{maxRequests} is not positive.
        """
        if maxRequests < 1:
            raise ValueError(f"maxRequests must be positive, not {maxRequests}")
        self.pool = pool
        self.maxRequests = maxRequests
        self.runningRequests = 0
        self._clock = clock
        self._memoryOrder = memoryOrder
        self._turnOrder = turnOrder
        # Who is in which order: nearly always nobody, and each request looks.
        self._memoryWaiters: set[IWaiter] = set()
        self._turnWaiters: set[IWaiter] = set()
        self._fairPool: IFairPool | None = IFairPool(pool, None)
        # Who waits outside the order until its holder is below its share, by holder: looked at longest ago first.
        self._aside: dict[IWaiter, str] = {}
        self._holdersAside: OrderedDict[str, OrderedDict[IWaiter, None]] = OrderedDict()
        self._unexaminedHolders = 0
        # Those in the order of memory that the reserve may serve, and what they want: for small frames, and for others.
        self._reservable: tuple[dict[IWaiter, int], dict[IWaiter, int]] = ({}, {})
        # In the order in which they came.
        # Those who hold memory while they wait for more of it, with how much, and those who hold none.
        self._holdingWaiters: dict[Deferred[None], int] = {}
        self._heldBytes = 0
        self._answerWaiters: dict[Deferred[None], None] = {}
        # A dictionary for its order: with a set, chance would decide between equals.
        self._stalledReaders: dict[StalledReader, None] = {}
        self._partialBodies: dict[PartialBody, None] = {}
        self._reservedBytes = pool.sizeBytes // RESERVED_SHARE
        self._makingWay: IDelayedCall | None = None
        self._accounts: dict[str, Callable[[], int]] = {}
        self._pressureListeners: list[Callable[[bool], None]] = []
        self._isUnderPressure = False
        self._serving: IDelayedCall | None = None
        # The requests of this turn of the reactor, and when it has had enough of them.
        self._begunRequests = 0
        self._turnEndsSeconds = 0.0
        self._turn: IDelayedCall | None = None
        self._relief: IDelayedCall | None = None
        pool.subscribe(self._memoryReleased)

    @property
    def ledger(self) -> Mapping[str, int]:
        """
        Where the memory is: bytes by purpose, what L{account} added included.
        """
        accounts = {purpose: sizeBytes() for purpose, sizeBytes in self._accounts.items()}
        return {**self.pool.usedBytesByPurpose, **accounts}

    def account(self, purpose: str, sizeBytes: Callable[[], int]) -> None:
        """
        Show memory in the ledger that the pool does not count, because something
        else bounds it.

        @param purpose: what it is for; no purpose of the pool.
        @param sizeBytes: returns how much it is now, in bytes.
        """
        self._accounts[purpose] = sizeBytes

    @property
    def isUnderPressure(self) -> bool:
        """
        Whether a request for memory was refused, and none has been free since.
        """
        return self._isUnderPressure

    @property
    def waitingForMemory(self) -> int:
        """
        How many connections wait for memory.
        """
        return len(self._memoryWaiters) + len(self._aside)

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish what the gate and the pool know.

        @raise ValueError: if there are sensors of these names.
        """
        registry.addGauge("MemoryPoolAvailable", lambda now: self.pool.availableBytes)
        registry.addGauge("MemoryPoolUsed", lambda now: self.pool.sizeBytes - self.pool.availableBytes)
        registry.addGauge("ConnectionsWaitingForMemory", lambda now: self.waitingForMemory)
        registry.addGauge("RunningRequests", lambda now: self.runningRequests)
        registry.addFamily(
            "LedgerBytes", ("purpose",), lambda now: (((purpose,), held) for purpose, held in self.ledger.items())
        )
        self.pool.addSensors(registry, "MemoryPool")

    def tryAllocate(self, waiter: IWaiter, sizeBytes: int) -> ILease | None:
        """
        Memory for a request of C{waiter}.

        @return: a lease; or L{None}, and then C{waiter} gets it through
            C{leaseGranted} in a later turn, unless L{forget} comes first.
        @raise ValueError: if C{sizeBytes} is more than the pool hands out.
        """
        if not self._memoryWaiters and waiter.holder not in self._holdersAside:
            lease = self.pool.tryAllocate(sizeBytes, waiter.holder)
            if lease is not None:
                return lease
        elif not 0 < sizeBytes <= self.pool.largestBytes:
            raise ValueError(f"cannot allocate {sizeBytes} bytes: not from 1 to {self.pool.largestBytes}")
        if waiter.holder in self._holdersAside or self._isAboveShare(waiter.holder):
            self._setAside(waiter)
            return None
        if self._mayBeReserved(sizeBytes) and self._isClaimed():
            return self._allocateReserved(sizeBytes)
        if sizeBytes <= max(self.pool.sizeBytes // LARGEST_SHARE, SMALL_FRAME_BYTES):
            self._reservable[sizeBytes > SMALL_FRAME_BYTES][waiter] = sizeBytes
        self._memoryWaiters.add(waiter)
        self._memoryOrder.add(waiter)
        self._expectRelief()
        self.press()
        return None

    def whenRoom(self, heldBytes: int = 0) -> Deferred[None] | None:
        """
        Ask before a large request is decoded, or an answer is made that may be large.  While memory is short, the next
        is when there is some, or when others hold it: answers and requests that wait little of it.

        @param heldBytes: how much it has been charged for already (L{RESPONSES}, L{PARKED}) and releases once the
            answer is made.  Such go first, and what they hold keeps none of them waiting: each would wait for another.
        @return: L{None} if it may be made now.  Otherwise fires when it may, and the answer is to be made, and charged,
            in the callback; cancel it to wait no more.
        """
        isFirst = not self._holdingWaiters and (heldBytes > 0 or not self._answerWaiters)
        if isFirst and self._hasRoomForAnswer(heldBytes):
            return None
        waiting: Deferred[None] = Deferred(self._forgetAnswer)
        if heldBytes > 0:
            self._holdingWaiters[waiting] = heldBytes
            self._heldBytes += heldBytes
        else:
            self._answerWaiters[waiting] = None
        # From now on what it holds keeps nobody waiting, and small frames may have the reserve.
        self._serveSoon()
        self._expectRelief()
        self.press()
        return waiting

    def press(self) -> None:
        """
        Memory is short: tell the listeners of L{onPressure} now, and again when
        some is free.
        """
        if not self._isUnderPressure:
            self._isUnderPressure = True
            for listener in self._pressureListeners:
                listener(True)

    def tryBegin(self, waiter: IWaiter) -> bool:
        """
        Ask for a turn for a request of C{waiter}.

        @return: L{True} if it may be worked on; call L{end} once then.  L{False}
            if it must wait; C{turnGranted} is called later then, unless
            L{forget} comes first.
        """
        if self.runningRequests < self.maxRequests and not self._turnWaiters:
            self._begunRequests += 1
            if self._begunRequests < _UNTIMED_REQUESTS or self._hasTime():
                self.runningRequests += 1
                return True
            self._serveSoon()
        self._turnWaiters.add(waiter)
        self._turnOrder.add(waiter)
        return False

    def beginNoMore(self) -> None:
        """
        A request has taken long: this turn of the reactor begins no other.
        """
        self._begunRequests = _UNTIMED_REQUESTS
        self._hasTime()
        self._turnEndsSeconds = self._clock.seconds()

    def end(self) -> None:
        """
        A request that had a turn is answered, or parked.
        """
        self.runningRequests -= 1
        if self._turnWaiters:
            self._serveSoon()

    def forget(self, waiter: IWaiter) -> None:
        """
        C{waiter} is gone, and waits for nothing any more.
        """
        if waiter in self._memoryWaiters:
            self._memoryOver(waiter)
        elif waiter in self._aside:
            self._takeBack(waiter)
        if waiter in self._turnWaiters:
            self._turnWaiters.discard(waiter)
            self._turnOrder.discard(waiter)

    def bodyStarted(self, body: PartialBody) -> None:
        """
        C{body} has memory, and not all of it has come.
        """
        self._partialBodies[body] = None
        self._expectWay()

    def bodyOver(self, body: PartialBody) -> None:
        """
        All of C{body} has come, or it never will.
        """
        self._partialBodies.pop(body, None)

    def responsesStalled(self, reader: StalledReader, isStalled: bool) -> None:
        """
        The peer of C{reader} has stopped taking its responses, or takes them again.
        """
        if isStalled:
            self._stalledReaders[reader] = None
            self._expectRelief()
        else:
            self._stalledReaders.pop(reader, None)

    def onPressure(self, listener: Callable[[bool], None]) -> None:
        """
        Have C{listener} called with L{True} when a connection must wait for
        memory, and with L{False} when none waits and some is free.
        """
        self._pressureListeners.append(listener)

    def close(self) -> None:
        """
        Cancel all timers.
        """
        for call in (self._serving, self._relief, self._makingWay, self._turn):
            if call is not None:
                call.cancel()
        self._serving = self._relief = self._makingWay = self._turn = None

    def _memoryReleased(self) -> None:
        self._unexaminedHolders = len(self._holdersAside)
        if self._isUnderPressure or self._unexaminedHolders:
            self._serveSoon()

    def _serveSoon(self) -> None:
        if self._serving is None:
            self._serving = self._clock.callLater(0, self._serve)

    def _hasTime(self) -> bool:
        """
        Whether this turn of the reactor may begin another request.
        """
        now = self._clock.seconds()
        if self._turn is None:
            self._turnEndsSeconds = now + TURN_SECONDS
            self._turn = self._clock.callLater(0, self._turnOver)
        return now < self._turnEndsSeconds

    def _turnOver(self) -> None:
        self._turn = None
        self._begunRequests = 0

    def _serve(self) -> None:
        self._serving = None
        if self._holdersAside:
            self._admitFromAside()
        end = self._clock.seconds() + TURN_SECONDS
        for _ in range(GRANTS_PER_TURN):
            if not (self._grantMemory() or self._grantReserve() or self._grantTurn()):
                break
            if self._clock.seconds() >= end:
                self._serveSoon()
                break
        else:
            self._serveSoon()
        # One in a turn, since it takes time to make one.
        if self._grantAnswer():
            self._serveSoon()
        if self._isUnderPressure and not self._isAwaited and not self.pool.isOutOfMemory():
            self._isUnderPressure = False
            for listener in self._pressureListeners:
                listener(False)

    @property
    def _isAwaited(self) -> bool:
        """
        Whether anybody waits for memory.
        """
        return bool(self._memoryWaiters or self._answerWaiters or self._holdingWaiters)

    def _hasRoomForAnswer(self, waitingBytes: int) -> bool:
        if not self.pool.isOutOfMemory():
            return True
        used = self.pool.usedBytesByPurpose
        heldBytes = used.get(RESPONSES, 0) + used.get(PARKED, 0) - waitingBytes
        return heldBytes <= self.pool.sizeBytes // _SHARE_OF_ANSWERS

    def _nextAnswer(self) -> Deferred[None] | None:
        """
        Who waits for room and has it.
        """
        waiters: Iterable[Deferred[None]] = self._holdingWaiters or self._answerWaiters
        waiting = next(iter(waiters), None)
        return waiting if waiting is not None and self._hasRoomForAnswer(self._heldBytes) else None

    def _grantAnswer(self) -> bool:
        waiting = self._nextAnswer()
        if waiting is None:
            return False
        self._forgetAnswer(waiting)
        waiting.callback(None)
        return True

    def _forgetAnswer(self, waiting: Deferred[None]) -> None:
        self._answerWaiters.pop(waiting, None)
        self._heldBytes -= self._holdingWaiters.pop(waiting, 0)

    def _grantMemory(self) -> bool:
        if not self._memoryWaiters:
            return False
        try:
            waiter = self._memoryOrder.next()
            lease = self.pool.tryAllocate(waiter.wantedBytes, waiter.holder)
            isAboveShare = lease is None and self._isAboveShare(waiter.holder)
        except Exception:
            self._log.failure("the memory pool or the order of waiters failed; both are asked again later")
            return False
        if lease is not None:
            self._grantLease(waiter, lease)
            return True
        if isAboveShare:
            self._memoryOver(waiter)
            self._setAside(waiter, isFirst=True)
            return True
        # Those who come from aside have not said so.
        self.press()
        self._expectRelief()
        return False

    def _isAboveShare(self, holder: str) -> bool:
        """
        Whether there is memory, and C{holder} is refused all the same.
        """
        fairPool = self._fairPool
        return fairPool is not None and not self.pool.isOutOfMemory() and not fairPool.isBelowShare(holder)

    def _setAside(self, waiter: IWaiter, isFirst: bool = False) -> None:
        holder = self._aside[waiter] = waiter.holder
        waiters = self._holdersAside.setdefault(holder, OrderedDict())
        waiters[waiter] = None
        if isFirst:
            waiters.move_to_end(waiter, last=False)

    def _takeBack(self, waiter: IWaiter) -> None:
        holder = self._aside.pop(waiter)
        waiters = self._holdersAside[holder]
        del waiters[waiter]
        if not waiters:
            del self._holdersAside[holder]

    def _admitFromAside(self) -> None:
        """
        Let one waiter join the order of each holder that is above its share no more, or is like all others because
        there is no memory.  Some holders in this turn of the reactor, the others in the next.
        """
        for _ in range(min(HOLDERS_PER_TURN, self._unexaminedHolders, len(self._holdersAside))):
            self._unexaminedHolders -= 1
            holder, waiters = next(iter(self._holdersAside.items()))
            self._holdersAside.move_to_end(holder)
            try:
                isAboveShare = self._isAboveShare(holder)
            except Exception:
                self._log.failure("the memory pool failed; it is asked again later")
                return
            if isAboveShare:
                continue
            waiter = next(iter(waiters))
            self._takeBack(waiter)
            self._memoryWaiters.add(waiter)
            self._memoryOrder.add(waiter)
            if not self.pool.isOutOfMemory():
                # There may be enough for another.
                self._unexaminedHolders += 1
        if self._unexaminedHolders and self._holdersAside:
            self._serveSoon()

    def _grantReserve(self) -> bool:
        """
        Who came while some memory was free waits behind others, and these may have claimed all of it since.
        """
        for waiters in self._reservable:
            if not waiters:
                continue
            waiter, sizeBytes = next(iter(waiters.items()))
            if not (self._mayBeReserved(sizeBytes) and self._isClaimed()):
                continue
            try:
                lease = self._allocateReserved(sizeBytes)
            except Exception:
                self._log.failure("the memory pool failed; it is asked again later")
                return False
            self._grantLease(waiter, lease)
            return True
        return False

    def _grantLease(self, waiter: IWaiter, lease: ILease) -> None:
        self._memoryOver(waiter)
        try:
            waiter.leaseGranted(lease)
        except Exception:
            self._log.failure("a connection failed when it was given memory")

    def _memoryOver(self, waiter: IWaiter) -> None:
        self._memoryWaiters.discard(waiter)
        self._memoryOrder.discard(waiter)
        for waiters in self._reservable:
            waiters.pop(waiter, None)

    def _allocateReserved(self, sizeBytes: int) -> ILease:
        lease = _ReservedLease(self.pool.charge(sizeBytes, FRAMES), self._reserveReleased)
        self._reservedBytes -= sizeBytes
        return lease

    def _grantTurn(self) -> bool:
        if not self._turnWaiters or self.runningRequests >= self.maxRequests:
            return False
        try:
            waiter = self._turnOrder.next()
        except Exception:
            self._log.failure("the order of waiters failed; it is asked again later")
            if self._serving is None:
                # There may be no request that is going to be over.
                self._serving = self._clock.callLater(RETRY_SECONDS, self._serve)
            return False
        self._turnWaiters.discard(waiter)
        self._turnOrder.discard(waiter)
        self.runningRequests += 1
        try:
            waiter.turnGranted()
        except Exception:
            self._log.failure("a connection failed when its request was let through")
        return True

    def _mayBeReserved(self, sizeBytes: int) -> bool:
        sharedBytes = self.pool.sizeBytes // RESERVED_SHARE // 2
        if sizeBytes <= SMALL_FRAME_BYTES:
            return sizeBytes <= self._reservedBytes
        return sizeBytes <= min(self._reservedBytes - sharedBytes, self.pool.sizeBytes // LARGEST_SHARE)

    def _isClaimed(self) -> bool:
        """
        Whether there is no memory, and would be if what is claimed for what has not come, and what those hold that wait
        for room, were free.
        """
        availableBytes = self.pool.availableBytes
        if availableBytes > 0:
            return False
        if self._holdingWaiters or self._answerWaiters:
            return True
        for body in self._partialBodies:
            if availableBytes > 0:
                break
            availableBytes += body.missingBytes()
        return availableBytes > 0

    def _reserveReleased(self, sizeBytes: int) -> None:
        self._reservedBytes += sizeBytes

    def _expectWay(self) -> None:
        if self._makingWay is None and self._memoryWaiters and self._partialBodies:
            self._makingWay = self._clock.callLater(MIN_BODY_SECONDS, self._makeWay)

    def _makeWay(self) -> None:
        """
        Have the slowest bodies give way, as many as it needs.
        """
        self._makingWay = None
        if self._memoryWaiters:
            now = self._clock.seconds()
            paces = {body: body.bodySeconds(now) for body in self._partialBodies}
            for body in sorted(paces, key=lambda each: -paces[each]):
                if self.pool.availableBytes > 0 or paces[body] <= MAX_BODY_SECONDS:
                    break
                self._partialBodies.pop(body, None)
                body.giveWay()
        self._expectWay()

    def _expectRelief(self) -> None:
        self._expectWay()
        isOverrun = len(self._stalledReaders) > 1 and self.pool.isOutOfMemory()
        if self._relief is None and (self._isAwaited or isOverrun):
            self._relief = self._clock.callLater(STALL_GRACE_SECONDS, self._relieve)

    def _relieve(self) -> None:
        """
        Memory has been short for a while.  Close the connections that hold most
        responses which their peers do not take, as many as it needs.  While no
        request waits the last of them is spared: one may be slow, but together
        they grow without bound.
        """
        self._relief = None
        stalled = [reader for reader in self._stalledReaders if reader.stalledSeconds() >= STALL_GRACE_SECONDS]
        stalled.sort(key=lambda reader: reader.unsentBytes())
        missingBytes = 1 - self.pool.availableBytes
        spared = 0 if self._isAwaited else 1
        while len(stalled) > spared and missingBytes > 0:
            largest = stalled.pop()
            missingBytes -= largest.unsentBytes()
            self._stalledReaders.pop(largest, None)
            largest.cutOff("memory is short, and the peer does not take its responses")
        if self._isAwaited:
            # Listeners are not called for a release in another thread.
            self._serveSoon()
        self._expectRelief()


def buildGate(pool: IMemoryPool, context: PolicyContext, order: str = DEFAULT_ORDER, maxRequests: int = 500) -> Gate:
    """
    Make a gate whose waiters are served in the order that C{order} describes.

    @param context: whose clock and random source the gate and the order have.
    @raise PolicyError: if there is no such order.
    """
    memoryOrder, turnOrder = (buildPolicy(IWaitOrderFactory, order, context) for _ in range(2))
    return Gate(pool, context.clock, memoryOrder, turnOrder, maxRequests)

# -*- test-case-name: tests.test_gate -*-
"""
One per server: who gets memory, how many requests are worked on, and where
the memory is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Generic, Protocol, TypeVar

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from .interfaces import ILease, IMemoryPool
from .metrics.registry import SensorRegistry

GRANTS_PER_TURN = 64
STALL_GRACE_SECONDS = 1.0


class Waiter(Protocol):
    """
    Who may wait for memory or for its turn: a connection.
    """

    @property
    def wantedBytes(self) -> int:
        """
        How much memory it waits for.
        """

    def leaseGranted(self, lease: ILease) -> None:
        """
        Here is the memory for C{wantedBytes}; the waiter's to release.
        """

    def turnGranted(self) -> None:
        """
        The request that waits may be worked on.
        """


class StalledReader(Protocol):
    """
    Who holds memory because its peer does not take its responses.
    """

    def unsentBytes(self) -> int:
        """
        How much.
        """

    def stalledSeconds(self) -> float:
        """
        For how long the peer has taken nothing; zero if it does.
        """

    def cutOff(self, reason: str) -> None:
        """
        Close the connection at once.
        """


T = TypeVar("T")


class _Pot(Generic[T]):
    """
    Members that can be added, discarded and picked by chance in constant time.
    """

    __slots__ = ("_places", "members")

    def __init__(self) -> None:
        self.members: list[T] = []
        self._places: dict[T, int] = {}

    def add(self, member: T) -> None:
        if member not in self._places:
            self._places[member] = len(self.members)
            self.members.append(member)

    def discard(self, member: T) -> None:
        place = self._places.pop(member, None)
        if place is not None:
            last = self.members.pop()
            if last is not member:
                self.members[place] = last
                self._places[last] = place

    def __contains__(self, member: T) -> bool:
        return member in self._places


class Lottery(Generic[T]):
    """
    Those who wait, drawn in random order and in rounds: who joins during a
    round is drawn in the next one.  So nobody can count on a place in the
    order, and nobody waits for longer than a round and the rest of another.

    @ivar isEmpty: whether nobody takes part.
    """

    __slots__ = ("_next", "_random", "_round", "isEmpty")

    def __init__(self, random: Random) -> None:
        self.isEmpty = True
        self._random = random
        self._round: _Pot[T] = _Pot()
        self._next: _Pot[T] = _Pot()

    def add(self, member: T) -> None:
        """
        Take part; no effect for one who does.
        """
        if member not in self._round:
            self._next.add(member)
            self.isEmpty = False

    def discard(self, member: T) -> None:
        """
        Take part no longer; no effect for one who does not.
        """
        self._round.discard(member)
        self._next.discard(member)
        self.isEmpty = not (self._round.members or self._next.members)

    def draw(self) -> T:
        """
        One of those who take part; it stays until it is discarded.

        @raise IndexError: if there is nobody.
        """
        if not self._round.members:
            self._round, self._next = self._next, self._round
        members = self._round.members
        return members[int(self._random.random() * len(members))]

    def __len__(self) -> int:
        return len(self._round.members) + len(self._next.members)


class Gate:
    """
    Stands between the connections of a server and its memory pool.

    Who finds the pool empty joins the waiters; so does everybody who comes
    while others wait, or newcomers would overtake them.  Memory that comes
    back is handed out from a turn of the reactor of its own, in random order:
    a release may happen in the middle of anything.

    @ivar pool: the L{IMemoryPool}.
    @ivar runningRequests: how many requests are being worked on; at most
        C{maxRequests}.  Requests that are parked do not count.
    """

    _log = Logger()

    def __init__(self, pool: IMemoryPool, clock: IReactorTime, random: Random, maxRequests: int = 500) -> None:
        """
        @param random: decides the order in which waiters are served.
        @param maxRequests: how many requests may be worked on at a time.
        @raise ValueError: if C{maxRequests} is not positive.
        """
        if maxRequests < 1:
            raise ValueError(f"maxRequests must be positive, not {maxRequests}")
        self.pool = pool
        self.maxRequests = maxRequests
        self.runningRequests = 0
        self._clock = clock
        self._memoryWaiters: Lottery[Waiter] = Lottery(random)
        self._turnWaiters: Lottery[Waiter] = Lottery(random)
        # A dictionary for its order: with a set, chance would decide between equals.
        self._stalledReaders: dict[StalledReader, None] = {}
        self._accounts: dict[str, Callable[[], int]] = {}
        self._pressureListeners: list[Callable[[bool], None]] = []
        self._isUnderPressure = False
        self._serving: IDelayedCall | None = None
        self._relief: IDelayedCall | None = None
        pool.subscribe(self._memoryReleased)

    @property
    def ledger(self) -> Mapping[str, int]:
        """
        Where the memory is: bytes by purpose, what was told to L{account} last.
        """
        accounts = {purpose: sizeBytes() for purpose, sizeBytes in self._accounts.items()}
        return {**self.pool.usedBytesByPurpose, **accounts}

    def account(self, purpose: str, sizeBytes: Callable[[], int]) -> None:
        """
        Show memory in the ledger that is not the pool's: something else bounds
        it, and requests do not wait for it.

        @param purpose: what it is for; a word that nothing is charged for.
        @param sizeBytes: how much it is now, in bytes.
        """
        self._accounts[purpose] = sizeBytes

    @property
    def isUnderPressure(self) -> bool:
        """
        Whether memory was wanted and could not be had, and has not come back
        since.
        """
        return self._isUnderPressure

    @property
    def waitingForMemory(self) -> int:
        """
        How many connections wait for memory.
        """
        return len(self._memoryWaiters)

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish what the gate knows.
        """
        registry.addGauge("MemoryPoolAvailable", lambda now: self.pool.availableBytes)
        registry.addGauge("MemoryPoolUsed", lambda now: self.pool.sizeBytes - self.pool.availableBytes)
        registry.addGauge("ConnectionsWaitingForMemory", lambda now: self.waitingForMemory)
        registry.addGauge("RunningRequests", lambda now: self.runningRequests)
        registry.addFamily(
            "LedgerBytes", ("purpose",), lambda now: (((purpose,), held) for purpose, held in self.ledger.items())
        )
        depleted = getattr(self.pool, "depleted", None)
        if depleted is not None:
            registry.addGauge("MemoryPoolAvgDepletedPercent", lambda now: float(depleted.share(now)))
            # A share forgets; from this one the share of any span of time can be told afterwards.
            registry.addCounter("MemoryPoolDepletedMicroseconds", lambda now: round(depleted.total(now) * 1e6))

    def tryAllocate(self, waiter: Waiter, sizeBytes: int) -> ILease | None:
        """
        Memory for a request of C{waiter}.

        @return: a lease; or L{None}, and then C{waiter} gets it through
            C{leaseGranted} in a later turn, unless L{forget} comes first.
        @raise ValueError: if C{sizeBytes} is more than the pool hands out.
        """
        if self._memoryWaiters.isEmpty:
            lease = self.pool.tryAllocate(sizeBytes)
            if lease is not None:
                return lease
        elif not 0 < sizeBytes <= self.pool.largestBytes:
            raise ValueError(f"cannot allocate {sizeBytes} bytes: not from 1 to {self.pool.largestBytes}")
        self._memoryWaiters.add(waiter)
        self._expectRelief()
        self.press()
        return None

    def press(self) -> None:
        """
        Memory was wanted and could not be had: tell the listeners of
        L{onPressure} now, and again when there is some.
        """
        if not self._isUnderPressure:
            self._isUnderPressure = True
            for listener in self._pressureListeners:
                listener(True)

    def tryBegin(self, waiter: Waiter) -> bool:
        """
        May a request of C{waiter} be worked on?

        @return: L{True}, and then L{end} must be called once; or L{False}, and
            then C{turnGranted} is called later, unless L{forget} comes first.
        """
        if self.runningRequests < self.maxRequests and self._turnWaiters.isEmpty:
            self.runningRequests += 1
            return True
        self._turnWaiters.add(waiter)
        return False

    def end(self) -> None:
        """
        A request is answered, or parked.
        """
        self.runningRequests -= 1
        if not self._turnWaiters.isEmpty:
            self._serveSoon()

    def forget(self, waiter: Waiter) -> None:
        """
        C{waiter} is gone.
        """
        self._memoryWaiters.discard(waiter)
        self._turnWaiters.discard(waiter)

    def responsesStalled(self, reader: StalledReader, isStalled: bool) -> None:
        """
        The peer of C{reader} does not take its responses, or takes them again.
        """
        if isStalled:
            self._stalledReaders[reader] = None
            self._expectRelief()
        else:
            self._stalledReaders.pop(reader, None)

    def onPressure(self, listener: Callable[[bool], None]) -> None:
        """
        Have C{listener} called with L{True} when somebody must wait for
        memory, and with L{False} when nobody does and there is some.
        """
        self._pressureListeners.append(listener)

    def close(self) -> None:
        """
        Leave no timer behind.
        """
        for call in (self._serving, self._relief):
            if call is not None:
                call.cancel()
        self._serving = self._relief = None

    def _memoryReleased(self) -> None:
        if self._isUnderPressure:
            self._serveSoon()

    def _serveSoon(self) -> None:
        if self._serving is None:
            self._serving = self._clock.callLater(0, self._serve)

    def _serve(self) -> None:
        self._serving = None
        for _ in range(GRANTS_PER_TURN):
            if not (self._grantMemory() or self._grantTurn()):
                break
        else:
            self._serveSoon()
        if self._isUnderPressure and self._memoryWaiters.isEmpty and not self.pool.isOutOfMemory():
            self._isUnderPressure = False
            for listener in self._pressureListeners:
                listener(False)

    def _grantMemory(self) -> bool:
        if self._memoryWaiters.isEmpty:
            return False
        waiter = self._memoryWaiters.draw()
        try:
            lease = self.pool.tryAllocate(waiter.wantedBytes)
        except Exception:
            self._log.failure("the memory pool failed; it is asked again later")
            return False
        if lease is None:
            return False
        self._memoryWaiters.discard(waiter)
        try:
            waiter.leaseGranted(lease)
        except Exception:
            self._log.failure("a connection failed when it was given memory")
        return True

    def _grantTurn(self) -> bool:
        if self._turnWaiters.isEmpty or self.runningRequests >= self.maxRequests:
            return False
        waiter = self._turnWaiters.draw()
        self._turnWaiters.discard(waiter)
        self.runningRequests += 1
        try:
            waiter.turnGranted()
        except Exception:
            self._log.failure("a connection failed when its request was let through")
        return True

    def _expectRelief(self) -> None:
        isOverrun = len(self._stalledReaders) > 1 and self.pool.isOutOfMemory()
        if self._relief is None and (not self._memoryWaiters.isEmpty or isOverrun):
            self._relief = self._clock.callLater(STALL_GRACE_SECONDS, self._relieve)

    def _relieve(self) -> None:
        """
        Memory is short and has been for a while.  If responses lie about that
        nobody takes, close the connections that hold most of them, as many as
        it needs.  While no request waits the last of them is spared: alone it
        may be slow, but together they grow without bound.
        """
        self._relief = None
        stalled = [reader for reader in self._stalledReaders if reader.stalledSeconds() >= STALL_GRACE_SECONDS]
        stalled.sort(key=lambda reader: reader.unsentBytes())
        missingBytes = 1 - self.pool.availableBytes
        spared = 1 if self._memoryWaiters.isEmpty else 0
        while len(stalled) > spared and missingBytes > 0:
            largest = stalled.pop()
            missingBytes -= largest.unsentBytes()
            self._stalledReaders.pop(largest, None)
            largest.cutOff("memory is short, and the peer does not take its responses")
        if not self._memoryWaiters.isEmpty:
            # A release that happened in another thread was told to nobody.
            self._serveSoon()
        self._expectRelief()

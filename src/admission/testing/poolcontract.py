# -*- test-case-name: tests.contracts.test_poolcontract -*-
"""
The rules for every memory pool.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

import gc

from twisted.logger import LogLevel, capturedLogs
from zope.interface.verify import verifyObject

from ..interfaces import CONNECTIONS, FRAMES, RESPONSES, IFairPool, ILease, IMemoryPool
from ..metrics.registry import SensorRegistry
from .contract import Contract


class UnboundedPoolContract(Contract):
    """
    The rules of L{MemoryPoolContract} that hold for a pool that never refuses.
    """

    _allocations = 0

    def buildPool(self, sizeBytes: int) -> IMemoryPool:
        """
        Make a fresh pool of C{sizeBytes} whose largest allocation is all of
        it; a pool without a bound may ignore C{sizeBytes}.
        """
        raise NotImplementedError

    def allocate(self, pool: IMemoryPool, sizeBytes: int) -> ILease:
        """
        Allocate, each time for another holder; the pool must grant it.
        """
        self._allocations += 1
        lease = pool.tryAllocate(sizeBytes, f"holder {self._allocations}")
        assert lease is not None, f"{pool!r} refused {sizeBytes} bytes"
        return lease

    def test_providesItsInterface(self) -> None:
        """
        The pool has all attributes and methods of L{IMemoryPool}, and a lease
        those of L{ILease}.
        """
        pool = self.buildPool(1024)
        verifyObject(IMemoryPool, pool)
        for lease in (self.allocate(pool, 10), pool.charge(10, RESPONSES)):
            verifyObject(ILease, lease)
            lease.release()

    def test_bufferIsExact(self) -> None:
        """
        A lease's buffer is writable and has exactly the requested size, whatever that
        is.
        """
        pool = self.buildPool(4 << 20)
        for sizeBytes in (1, 4095, 4096, 4097, 70_000, 1 << 20, (1 << 20) + 1, 4 << 20):
            lease = self.allocate(pool, sizeBytes)
            buffer = lease.buffer
            assert buffer is not None
            self.assertEqual((len(buffer), buffer.itemsize, buffer.readonly), (sizeBytes, 1, False))
            buffer[:] = b"\xa5" * sizeBytes
            self.assertEqual((lease.sizeBytes, lease.purpose), (sizeBytes, FRAMES))
            lease.release()

    def test_releaseTakesTheBufferAway(self) -> None:
        """
        A released lease has no buffer any more.
        """
        lease = self.allocate(self.buildPool(8192), 8192)
        lease.release()
        self.assertIs(lease.buffer, None)

    def test_twoLeasesShareNothing(self) -> None:
        """
        What is written through one lease does not show in another.
        """
        pool = self.buildPool(64 << 10)
        leases = [self.allocate(pool, 8192) for _ in range(4)]
        buffers = [lease.buffer for lease in leases]
        for number, buffer in enumerate(buffers):
            assert buffer is not None
            buffer[:] = bytes([number]) * 8192
        self.assertEqual([set(buffer or b"") for buffer in buffers], [{number} for number in range(4)])
        for lease in leases:
            lease.release()

    def test_releasingTwiceRaises(self) -> None:
        """
        The second release of a lease or a charge raises L{RuntimeError} and
        changes nothing.
        """
        pool = self.buildPool(1024)
        for lease in (self.allocate(pool, 10), pool.charge(10, RESPONSES)):
            lease.release()
            availableBytes = pool.availableBytes
            self.assertRaises(RuntimeError, lease.release)
            self.assertEqual(pool.availableBytes, availableBytes)

    def test_sizesOutOfRangeRaise(self) -> None:
        """
        Sizes that could never be allocated raise L{ValueError}, and so does a
        negative charge.
        """
        pool = self.buildPool(1024)
        for sizeBytes in (0, -1, pool.largestBytes + 1):
            self.assertRaises(ValueError, pool.tryAllocate, sizeBytes)
        self.assertRaises(ValueError, pool.charge, -1, RESPONSES)

    def test_ledger(self) -> None:
        """
        The ledger shows how much is taken for each purpose, a charge of nothing
        included, and in the end nothing.
        """
        pool = self.buildPool(1024)
        leases = [
            self.allocate(pool, 100),
            self.allocate(pool, 50),
            pool.charge(30, RESPONSES),
            pool.charge(0, CONNECTIONS),
        ]
        used = pool.usedBytesByPurpose
        self.assertEqual([used.get(purpose, 0) for purpose in (FRAMES, RESPONSES, CONNECTIONS)], [150, 30, 0])
        for lease in leases:
            lease.release()
        self.assertEqual(set(pool.usedBytesByPurpose.values()), {0})

    def test_chargesAreNeverRefused(self) -> None:
        """
        A charge may be larger than the pool, and be made when the pool is
        empty.
        """
        pool = self.buildPool(1024)
        lease = self.allocate(pool, 1024)
        charge = pool.charge(4096, RESPONSES)
        self.assertEqual((charge.sizeBytes, charge.buffer), (4096, None))
        charge.release()
        lease.release()

    def test_releasesAreTold(self) -> None:
        """
        Each release of a lease or a charge calls every listener, when the bytes
        are available again.
        """
        pool = self.buildPool(1024)
        availableBytes = pool.availableBytes
        told: list[int] = []
        pool.subscribe(lambda: told.append(pool.availableBytes))
        pool.subscribe(lambda: told.append(-1))
        self.allocate(pool, 10).release()
        pool.charge(10, RESPONSES).release()
        self.assertEqual(told, [availableBytes, -1, availableBytes, -1])

    def test_failingListener(self) -> None:
        """
        A listener that raises is logged, and neither the release nor the other
        listeners suffer.
        """
        pool = self.buildPool(1024)
        availableBytes = pool.availableBytes
        told: list[None] = []
        pool.subscribe(lambda: 1 // 0)  # type: ignore[arg-type]
        pool.subscribe(lambda: told.append(None))
        self.allocate(pool, 10).release()
        self.assertEqual((told, pool.availableBytes), ([None], availableBytes))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_tellsOnlyOfReleases(self) -> None:
        """
        Listeners are called at releases only: not within an allocation,
        granted or refused, nor within a charge.
        """
        pool = self.buildPool(1024)
        told: list[None] = []
        pool.subscribe(lambda: told.append(None))
        leases = [self.allocate(pool, 1024), pool.tryAllocate(1024), pool.charge(10, RESPONSES)]
        self.assertEqual(told, [])
        for lease in leases:
            if lease is not None:
                lease.release()

    def test_outOfMemory(self) -> None:
        """
        The pool is out of memory while nothing is available, and only then, so that
        waiting clients know when to ask again.
        """
        pool = self.buildPool(1024)
        leases: list[ILease] = []
        for take in (
            lambda: self.allocate(pool, 512),
            lambda: self.allocate(pool, 512),
            lambda: pool.charge(512, RESPONSES),
        ):
            self.assertEqual(pool.isOutOfMemory(), pool.availableBytes <= 0)
            leases.append(take())
        self.assertEqual(pool.isOutOfMemory(), pool.availableBytes <= 0)
        for lease in leases:
            lease.release()
        self.assertFalse(pool.isOutOfMemory())

    def test_sensors(self) -> None:
        """
        The names of its sensors begin with the name it is given, none is one
        that the gate takes, and all can be read whether or not memory is out.
        """
        pool = self.buildPool(1024)
        registry = SensorRegistry(lambda: 0.0)
        # As the gate does it.
        registry.addGauge("SomePoolAvailable", lambda now: pool.availableBytes)
        registry.addGauge("SomePoolUsed", lambda now: pool.sizeBytes - pool.availableBytes)
        pool.addSensors(registry, "SomePool")
        for lease in (None, self.allocate(pool, 1024), pool.tryAllocate(1)):
            names = [name for name, value in registry if value == value]
            names += registry.histograms
            for name, family in registry.families.items():
                names += [name for _ in family.read(0.0)]
            self.assertEqual([name for name in names if not name.startswith("SomePool")], [])
            self.assertEqual(registry.failures, {}, "these sensors cannot be read")
            if lease is not None:
                self.addCleanup(lease.release)


class MemoryPoolContract(UnboundedPoolContract):
    """
    The rules for an L{IMemoryPool}.  Subclasses say how to build one.
    """

    def test_everyByteComesBack(self) -> None:
        """
        Allocated bytes are not available until they are released, to the byte, in
        whatever order that happens; charges may exceed the size of the pool.
        """
        pool = self.buildPool(10_000)
        leases = [self.allocate(pool, 3000), pool.charge(1, CONNECTIONS), self.allocate(pool, 777)]
        leases += [pool.charge(0, RESPONSES), pool.charge(9000, RESPONSES)]
        takenBytes = 3000 + 1 + 777 + 9000
        self.assertEqual(pool.availableBytes, pool.sizeBytes - takenBytes)
        for place in (1, 0, 2, 0, 0):
            lease = leases.pop(place)
            takenBytes -= lease.sizeBytes
            lease.release()
            self.assertEqual(pool.availableBytes, pool.sizeBytes - takenBytes)

    def test_refusesWhenEmpty(self) -> None:
        """
        While requests hold the whole pool it refuses, and a refusal takes nothing;
        after a release it grants again.
        """
        pool = self.buildPool(1024)
        lease = self.allocate(pool, 1024)
        for sizeBytes in (1, 512, 1024):
            self.assertIs(pool.tryAllocate(sizeBytes), None)
        self.assertEqual((pool.availableBytes, pool.usedBytesByPurpose[FRAMES]), (0, 1024))
        lease.release()
        self.allocate(pool, 1024).release()

    def test_oneRequestPastCharges(self) -> None:
        """
        When charges alone have drained the pool, one request is let through,
        and only one: nothing else would ever release them.
        """
        pool = self.buildPool(1024)
        charge = pool.charge(4096, RESPONSES)
        for _ in range(2):
            lease = self.allocate(pool, 1024)
            self.assertIs(pool.tryAllocate(1), None)
            lease.release()
        charge.release()

    def test_droppedLeaseComesBack(self) -> None:
        """
        A lease that is dropped instead of released is reclaimed, at the next
        allocation at the latest, and the log says so.
        """
        pool = self.buildPool(1024)
        holder = [self.allocate(pool, 1000)]
        with capturedLogs() as events:
            holder.clear()
            gc.collect()
            self.allocate(pool, 1).release()
        self.assertEqual(pool.usedBytesByPurpose[FRAMES], 0)
        self.assertTrue([event for event in events if event["log_level"] >= LogLevel.error])
        self.flushLoggedErrors()


class FairPoolContract(MemoryPoolContract):
    """
    The rules for an L{IMemoryPool} that is an L{IFairPool}, too.
    """

    def exhaustShare(self, pool: IMemoryPool, holder: str) -> list[ILease]:
        """
        Allocate for one holder until it is refused.
        """
        leases: list[ILease] = []
        while (lease := pool.tryAllocate(10, holder)) is not None:
            leases.append(lease)
        return leases

    def test_providesFairPool(self) -> None:
        """
        The pool has the method of L{IFairPool}.
        """
        verifyObject(IFairPool, self.buildPool(1000))

    def test_leavesMemory(self) -> None:
        """
        A holder that wants all of the memory does not get it, and all others still do.
        """
        pool = self.buildPool(1000)
        leases = self.exhaustShare(pool, "greedy")
        self.assertFalse(pool.isOutOfMemory())
        self.assertFalse(IFairPool(pool).isBelowShare("greedy"))
        self.assertTrue(IFairPool(pool).isBelowShare("modest"))
        for lease in [*leases, self.allocate(pool, 10)]:
            lease.release()

    def test_shareComesBack(self) -> None:
        """
        A holder that is refused for having its share gets memory again once enough is released, by any holder.
        """
        pool = self.buildPool(1000)
        others = self.exhaustShare(pool, "other")
        own = self.exhaustShare(pool, "greedy")
        for leases in (others, own):
            while not IFairPool(pool).isBelowShare("greedy"):
                leases.pop().release()
            own += self.exhaustShare(pool, "greedy")
        for lease in others + own:
            lease.release()
        self.assertTrue(IFairPool(pool).isBelowShare("greedy"))

    def test_nothingIsBelowAnyShare(self) -> None:
        """
        A holder that has nothing is below its share, even where nothing is left for it.
        """
        pool = self.buildPool(1000)
        charge = pool.charge(2000, RESPONSES)
        self.assertTrue(IFairPool(pool).isBelowShare("anybody"))
        charge.release()

    def test_askingForShares(self) -> None:
        """
        Asking for a share changes nothing.
        """
        pool = self.buildPool(1000)
        for _ in range(3):
            self.assertTrue(IFairPool(pool).isBelowShare("anybody"))
        leases = self.exhaustShare(pool, "greedy")
        for _ in range(3):
            self.assertFalse(IFairPool(pool).isBelowShare("greedy"))
        for lease in leases:
            lease.release()

    def test_droppedShareComesBack(self) -> None:
        """
        A lease that is dropped instead of released is not counted to its holder any more.
        """
        pool = self.buildPool(1000)
        leases = self.exhaustShare(pool, "greedy")
        share = len(leases)
        with capturedLogs():
            leases.clear()
            gc.collect()
            self.allocate(pool, 1).release()
        leases = self.exhaustShare(pool, "greedy")
        self.assertEqual(len(leases), share)
        for lease in leases:
            lease.release()
        self.flushLoggedErrors()

"""L{admission_plugins.bounded}."""

from __future__ import annotations

import gc
import mmap
from collections import deque
from itertools import product
from random import Random
from threading import Thread
from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import FRAMES, RESPONSES, IMemoryPool, PolicyContext
from admission.testing.poolcontract import FairPoolContract, MemoryPoolContract, UnboundedPoolContract
from admission_plugins import buffers
from admission_plugins.bounded import (
    BoundedPool,
    FairPool,
    Lease,
    UnboundedPool,
    buildBounded,
    buildFair,
    buildUnbounded,
)
from admission_plugins.buffers import LARGEST_SLAB_BYTES, SMALLEST_SLAB_BYTES, Buffers


def take(pool: BoundedPool | UnboundedPool, sizeBytes: int) -> Lease:
    """Allocate what must be there."""
    lease = pool.tryAllocate(sizeBytes)
    assert lease is not None
    return lease


class BoundedContractTests(MemoryPoolContract, SynchronousTestCase):
    """L{BoundedPool} is an L{IMemoryPool}."""

    def buildPool(self, sizeBytes: int) -> IMemoryPool:
        """A bounded pool."""
        return BoundedPool(sizeBytes)


class StrictContractTests(MemoryPoolContract, SynchronousTestCase):
    """A strict L{BoundedPool} is an L{IMemoryPool}."""

    def buildPool(self, sizeBytes: int) -> IMemoryPool:
        """A strict pool."""
        return BoundedPool(sizeBytes, strict=True)


class FairContractTests(FairPoolContract, SynchronousTestCase):
    """L{FairPool} is an L{IFairPool}."""

    def buildPool(self, sizeBytes: int) -> IMemoryPool:
        """A fair pool."""
        return FairPool(sizeBytes)


class FairPoolTests(SynchronousTestCase):
    """L{FairPool}."""

    def filled(self, pool: FairPool, holders: int) -> dict[str, int]:
        """How much each of so many holders comes to that want all they can get."""
        held = {f"holder {number}": 0 for number in range(holders)}
        self.leases: list[Lease] = []
        isGranted = True
        while isGranted:
            isGranted = False
            for holder in held:
                lease = pool.tryAllocate(1, holder)
                if lease is not None:
                    self.leases.append(lease)
                    held[holder] += 1
                    isGranted = True
        return held

    def test_shares(self) -> None:
        """One alone comes to half; of N each comes to one part in N + 1, and as much is left."""
        for holders in (1, 2, 3, 9, 99):
            pool = FairPool(10_000)
            held = self.filled(pool, holders)
            share = 10_000 // (holders + 1)
            self.assertTrue(share <= min(held.values()) <= max(held.values()) <= share + 1, held)
            self.assertTrue(share - holders <= pool.availableBytes <= share, pool.availableBytes)
            for lease in self.leases:
                lease.release()
            self.assertEqual(pool.availableBytes, 10_000)

    def test_charges(self) -> None:
        """Memory that is charged is not free, and belongs to no holder, not even to the one that caused it."""
        pool = FairPool(1000)
        charge = pool.charge(800, RESPONSES)
        self.assertEqual(self.filled(pool, 1), {"holder 0": 100})
        charge.release()
        self.assertTrue(pool.isBelowShare("holder 0"))
        for lease in self.leases:
            lease.release()

    def test_nothingIsKept(self) -> None:
        """Of holders that have nothing any more nothing is kept."""
        pool = FairPool(1000)
        self.filled(pool, 50)
        for lease in self.leases:
            lease.release()
        self.assertEqual(pool._heldBytes, {})

    def test_built(self) -> None:
        """C{fair:SIZE:max=SIZE}; the largest request is the server's unless said."""
        context = PolicyContext(Clock(), lambda: 0.0, largestRequestBytes=2 << 20)
        for pool, largestBytes in (
            (buildFair(context, "8MiB"), 2 << 20),
            (buildFair(context, "8MiB", "4MiB"), 4 << 20),
        ):
            self.assertEqual((pool.sizeBytes, pool.largestBytes), (8 << 20, largestBytes))
        self.assertEqual(repr(buildFair(context, "8MiB")), "<FairPool 0 of 8MiB used>")


class UnboundedContractTests(UnboundedPoolContract, SynchronousTestCase):
    """L{UnboundedPool} is an L{IMemoryPool} as far as a pool without a bound is."""

    def buildPool(self, sizeBytes: int) -> IMemoryPool:
        """A pool without a bound."""
        return UnboundedPool()


class BoundTests(SynchronousTestCase):
    """How much a L{BoundedPool} hands out."""

    def test_sizesMakeSense(self) -> None:
        """Sizes must be positive, and the largest request at most the pool; equal is fine."""
        for sizeBytes, largestBytes in [(0, None), (-1, None), (10, 0), (10, -1), (10, 11)]:
            self.assertRaises(ValueError, BoundedPool, sizeBytes, largestBytes)
        self.assertEqual(BoundedPool(10, 10).largestBytes, 10)

    def test_rangeIsCheckedFirst(self) -> None:
        """
        A size out of range raises L{ValueError} even when the pool is empty, or the holder has its share, rather than
        looking like a refusal.
        """
        for pool in (BoundedPool(1000, 500), FairPool(1000, 500)):
            leases = []
            while (lease := pool.tryAllocate(500, "holder")) is not None:
                leases.append(lease)
            for sizeBytes in (501, 0, -1):
                self.assertRaises(ValueError, pool.tryAllocate, sizeBytes, "holder")
            for lease in leases:
                lease.release()

    @given(
        strict=st.booleans(),
        steps=st.lists(
            st.one_of(
                st.tuples(st.just("allocate"), st.integers(1, 300)),
                st.tuples(st.just("charge"), st.integers(0, 400)),
                st.tuples(st.just("release"), st.integers(0, 100)),
            ),
            max_size=80,
        ),
    )
    def test_ledgerAlwaysAdds(self, strict: bool, steps: list[tuple[str, int]]) -> None:
        """
        Whatever is allocated, charged and released in whatever order: frames
        stay within the bound, a request is refused exactly when the pool is
        short and frames hold some of it, the ledger is the sum of what is
        held, and in the end the pool is whole.
        """
        pool = BoundedPool(1000, 300, strict)
        bound = 1000 if strict else 1299
        held: list[Lease] = []
        for step, amount in steps:
            if step == "allocate":
                frames = sum(lease.sizeBytes for lease in held if lease.purpose == FRAMES)
                isShort = pool.availableBytes < (amount if strict else 1)
                lease = pool.tryAllocate(amount)
                self.assertEqual(lease is None, isShort and frames > 0)
                if lease is not None:
                    held.append(lease)
            elif step == "charge":
                held.append(pool.charge(amount, RESPONSES))
            elif held:
                held.pop(amount % len(held)).release()
            self.assertEqual(pool.availableBytes, 1000 - sum(lease.sizeBytes for lease in held))
            self.assertEqual(sum(pool.usedBytesByPurpose.values()), 1000 - pool.availableBytes)
            self.assertLessEqual(pool.usedBytesByPurpose[FRAMES], bound)
        while held:
            held.pop().release()
        self.assertEqual((pool.availableBytes, set(pool.usedBytesByPurpose.values())), (1000, {0}))


class LeaseTests(SynchronousTestCase):
    """Giving back, and failing to."""

    def test_repr(self) -> None:
        """A lease and a pool say in words what they are."""
        pool = BoundedPool(1 << 20, strict=True)
        lease = take(pool, 1 << 10)
        self.assertEqual(repr(lease), "<Lease of 1KiB for frames, held>")
        self.assertEqual(repr(pool), "<BoundedPool 1KiB of 1MiB used, strict>")
        lease.release()
        self.assertEqual(repr(lease), "<Lease of 1KiB for frames, released>")

    def assertReclaimed(self, pool: Any, drop: Any, availableBytes: int) -> None:
        """C{drop} drops a lease of 100 bytes; that must be put right and reported once."""
        with capturedLogs() as events:
            drop()
            # Finds what was dropped in another thread.
            take(pool, 1).release()
        self.assertEqual(pool.availableBytes, availableBytes)
        self.assertEqual((pool.reclaimedLeases, pool.usedBytesByPurpose[FRAMES]), (1, 0))
        reports = [event for event in events if "this is a bug" in event["log_format"]]
        self.assertEqual([(event["sizeBytes"], event["purpose"]) for event in reports], [(100, FRAMES)])

    def test_droppedLease(self) -> None:
        """
        A lease that is dropped without a release is reclaimed at once,
        reported as a bug, and those who wait are told.
        """
        for pool in (BoundedPool(1000), UnboundedPool()):
            told: list[int] = []
            pool.subscribe(lambda told=told, pool=pool: told.append(pool.usedBytesByPurpose[FRAMES]))  # type: ignore[misc]
            holder = [take(pool, 100)]
            self.assertReclaimed(pool, holder.clear, pool.sizeBytes)
            self.assertEqual(told[0], 0)
        # One that only the garbage collector finds is reclaimed as well.
        pool = BoundedPool(1000)
        cycle: list[Any] = [take(pool, 100)]
        cycle.append(cycle)
        del cycle
        self.assertReclaimed(pool, gc.collect, 1000)

    def test_droppedInAnotherThread(self) -> None:
        """
        A lease that is collected in another thread is reclaimed by the next
        allocation, in the pool's own thread, where its listeners live.
        """
        for pool in (BoundedPool(1000), UnboundedPool()):
            told: list[None] = []
            pool.subscribe(lambda told=told: told.append(None))  # type: ignore[misc]
            holder = [take(pool, 100)]

            def drop(holder: list[Lease] = holder, pool: Any = pool, told: list[None] = told) -> None:
                thread = Thread(target=holder.clear)
                thread.start()
                thread.join(10)
                self.assertEqual((pool.reclaimedLeases, pool.usedBytesByPurpose[FRAMES], told), (0, 100, []))

            self.assertReclaimed(pool, drop, pool.sizeBytes)

    def test_releasedLeaseIsNotReclaimed(self) -> None:
        """A lease that was released counts once, whatever becomes of it."""
        pool = BoundedPool(1000)
        with capturedLogs() as events:
            take(pool, 100).release()
            gc.collect()
            take(pool, 1).release()
        self.assertEqual((pool.availableBytes, pool.reclaimedLeases, events), (1000, 0, []))

    def test_systemOutOfMemory(self) -> None:
        """When the system has no memory the error is passed on and nothing is counted."""

        def refuse(*args: object) -> None:
            raise OSError(12, "Cannot allocate memory")

        pool = BoundedPool(16 << 20)
        self.patch(buffers.mmap, "mmap", refuse)
        self.assertRaises(OSError, pool.tryAllocate, 8 << 20)
        self.assertEqual((pool.availableBytes, pool.usedBytesByPurpose[FRAMES], pool.peakFrameBytes), (16 << 20, 0, 0))


class DepletionTests(SynchronousTestCase):
    """C{BoundedPool.depleted}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.pool = BoundedPool(1000, seconds=self.clock.seconds)

    def share(self) -> float:
        """The share of time in which the pool was depleted."""
        return self.pool.depleted.share(self.clock.seconds())

    def test_emptyIsNotDepleted(self) -> None:
        """A pool that is empty, but refuses nobody, is not depleted."""
        lease = take(self.pool, 1000)
        self.clock.advance(15)
        self.assertEqual(self.share(), 0.0)
        lease.release()

    def test_anyReleaseEndsIt(self) -> None:
        """A release ends the spell even if it leaves the pool empty; so does a lease that was dropped."""
        for end in (lambda leases: leases.pop(0).release(), list.clear):
            pool = BoundedPool(1000, seconds=self.clock.seconds)
            leases = [take(pool, 999), take(pool, 1000)]
            pool.tryAllocate(1)
            self.clock.advance(3)
            end(leases)
            self.clock.advance(30)
            pool.depleted.share(self.clock.seconds())
            self.assertEqual(pool.depleted.totalSeconds, 3.0)
            for lease in leases:
                lease.release()

    def test_successEndsIt(self) -> None:
        """So does a request that succeeds: in a strict pool a smaller one."""
        pool = BoundedPool(1000, strict=True, seconds=self.clock.seconds)
        first = take(pool, 900)
        pool.tryAllocate(200)
        self.clock.advance(4)
        second = take(pool, 100)
        self.clock.advance(30)
        pool.depleted.share(self.clock.seconds())
        self.assertEqual(pool.depleted.totalSeconds, 4.0)
        first.release()
        second.release()


class SlabTests(SynchronousTestCase):
    """Memory that is kept for reuse."""

    def test_capacities(self) -> None:
        """A slab holds what it is for and is at most a quarter larger, in four classes to each doubling."""
        capacities = set()
        for sizeBytes in range(SMALLEST_SLAB_BYTES, 4 * SMALLEST_SLAB_BYTES + 1):
            capacityBytes = Buffers.capacityFor(sizeBytes)
            self.assertTrue(sizeBytes <= capacityBytes <= sizeBytes * 1.25, sizeBytes)
            capacities.add(capacityBytes)
        self.assertEqual(len(capacities), 1 + 2 * 4)
        self.assertEqual(Buffers.capacityFor(LARGEST_SLAB_BYTES), LARGEST_SLAB_BYTES)

    def test_reused(self) -> None:
        """A request of the same class gets the memory of the one before."""
        pool = BoundedPool(1 << 20)
        first = take(pool, 5000)
        assert first.buffer is not None
        backing = first.buffer.obj
        first.release()
        self.assertEqual(pool.idleBytes, Buffers.capacityFor(5000))
        second = take(pool, 4500)
        assert second.buffer is not None
        self.assertIs(second.buffer.obj, backing)
        self.assertEqual((pool.idleBytes, len(second.buffer)), (0, 4500))
        second.release()

    def test_smallAndLargeAreNotKept(self) -> None:
        """
        Neither what is cheaper to make anew nor what a whole mapping holds is
        kept, and a mapping is gone with its lease.
        """
        pool = BoundedPool(1 << 30)
        take(pool, SMALLEST_SLAB_BYTES - 1).release()
        lease = take(pool, LARGEST_SLAB_BYTES + 1)
        assert lease.buffer is not None
        mapping = lease.buffer.obj
        assert isinstance(mapping, mmap.mmap)
        lease.release()
        self.assertTrue(mapping.closed)
        self.assertEqual(pool.idleBytes, 0)

    def test_idleIsCapped(self) -> None:
        """At most an eighth of the pool is kept."""
        pool = BoundedPool(256 << 10)
        leases = [take(pool, 8192) for _ in range(16)]
        for lease in leases:
            lease.release()
        self.assertEqual(pool.idleBytes, 32 << 10)

    def test_keptSliceNeverChanges(self) -> None:
        """
        A slice that somebody keeps after the release still shows what it
        showed, however much is allocated and written afterwards; so does a
        view that was made of the buffer.
        """
        for sizeBytes, keep in product((100, 8192, 2 << 20), (lambda view: view[10:60], lambda view: view.cast("H"))):
            pool = BoundedPool(32 << 20)
            lease = take(pool, sizeBytes)
            assert lease.buffer is not None
            lease.buffer[:] = b"a" * sizeBytes
            kept = keep(memoryview(lease.buffer))
            lease.release()
            self.assertEqual((pool.availableBytes, pool.idleBytes), (32 << 20, 0))
            for _ in range(8):
                other = take(pool, sizeBytes)
                assert other.buffer is not None
                other.buffer[:] = b"b" * sizeBytes
                other.release()
            self.assertEqual(set(kept.tobytes()), set(b"a"))

    def test_bufferItselfIsTaken(self) -> None:
        """The buffer itself cannot be read after the release."""
        lease = take(BoundedPool(1 << 20), 8192)
        buffer = lease.buffer
        assert buffer is not None
        lease.release()
        self.assertRaises(ValueError, bytes, buffer)

    def test_evictionIsLargestFirst(self) -> None:
        """What must go goes from the largest slabs, no more of them than needed."""
        kept = Buffers(1 << 20)
        held = [kept.allocate(capacityBytes) for capacityBytes in (4096, 4096, 8192, 16384)]
        for buffer in held:
            kept.recycle(buffer, 1 << 20)
        self.assertEqual(kept.idleBytes, 32768)
        kept.evict(16385)
        self.assertEqual(kept.idleBytes, 8192)
        held = [kept.allocate(capacityBytes) for capacityBytes in (16384, 8192)]
        self.assertEqual(kept.idleBytes, 8192)
        kept.evict(1 << 30)
        self.assertEqual(kept.idleBytes, 0)

    @settings(max_examples=50)
    @given(seed=st.integers(0, 2**32))
    def test_idleMakesRoom(self, seed: int) -> None:
        """
        Whatever sizes come and go, what is kept and what is taken together
        never pass the pool's size while anything is kept.
        """
        random = Random(seed)
        pool = BoundedPool(1 << 20, 600_000)
        held: deque[Lease] = deque()
        for _ in range(150):
            kind = random.random()
            if kind < 0.5:
                sizeBytes = random.choice([random.randint(1, 4095), random.randint(4096, 40_000), 600_000])
                lease = pool.tryAllocate(sizeBytes)
                if lease is not None:
                    held.append(lease)
            elif kind < 0.6:
                held.append(pool.charge(random.randint(0, 300_000), RESPONSES))
            elif held:
                held.rotate(random.randint(0, len(held)))
                held.pop().release()
            if pool.idleBytes:
                self.assertLessEqual(pool.sizeBytes - pool.availableBytes + pool.idleBytes, pool.sizeBytes)
            self.assertGreaterEqual(pool.idleBytes, 0)
        while held:
            held.pop().release()
        self.assertEqual(pool.availableBytes, 1 << 20)


class UnboundedTests(SynchronousTestCase):
    """What is particular to L{UnboundedPool}."""

    def test_figuresOfKafka(self) -> None:
        """Size and available bytes are 2^63 - 1 and stay that."""
        pool = UnboundedPool()
        lease = take(pool, 10_000_000)
        self.assertEqual((pool.sizeBytes, pool.availableBytes), (2**63 - 1, 2**63 - 1))
        self.assertFalse(pool.isOutOfMemory())
        self.assertEqual(pool.peakFrameBytes, 10_000_000)
        lease.release()


class BuildTests(SynchronousTestCase):
    """From the arguments of a description to a pool."""

    def context(self, largestRequestBytes: int | None = None) -> PolicyContext:
        """What a server offers."""
        return PolicyContext(Clock(), lambda: 0.0, largestRequestBytes)

    def test_bounded(self) -> None:
        """Size, strictness and largest request are those of the description."""
        pool = buildBounded(self.context(), "64MiB", strict="yes", max="1MiB")
        self.assertEqual((pool.sizeBytes, pool.largestBytes, pool.strict), (64 << 20, 1 << 20, True))

    def test_largest(self) -> None:
        """The largest request is what the server allows, at most the pool; the description overrules it."""
        self.assertEqual(buildBounded(self.context(), "1000").largestBytes, 1000)
        self.assertEqual(buildBounded(self.context(100), "1000").largestBytes, 100)
        self.assertEqual(buildBounded(self.context(5000), "1000").largestBytes, 1000)
        self.assertEqual(buildBounded(self.context(100), "1000", max="200").largestBytes, 200)

    def test_mistakes(self) -> None:
        """What makes no sense is refused in a sentence."""
        for args, kwargs in [
            (["x"], {}),
            (["0"], {}),
            (["10"], {"strict": "maybe"}),
            (["10"], {"max": "11"}),
            (["10"], {"max": "0"}),
        ]:
            self.assertRaises(ValueError, buildBounded, self.context(), *args, **kwargs)

    def test_clock(self) -> None:
        """Depletion is measured on the server's clock."""
        context = self.context()
        pool = buildBounded(context, "10")
        lease = take(pool, 10)
        pool.tryAllocate(1)
        context.clock.advance(2)
        lease.release()
        self.assertEqual(pool.depleted.totalSeconds, 2.0)

    def test_unbounded(self) -> None:
        """A pool without a bound needs nothing."""
        self.assertIsInstance(buildUnbounded(self.context()), UnboundedPool)

"""L{admission.testing.poolcontract} and L{admission.testing.scriptedpool}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import FRAMES, IMemoryPool, ISensorRegistry
from admission.testing.poolcontract import FairPoolContract, MemoryPoolContract, UnboundedPoolContract
from admission.testing.scriptedpool import ScriptedPool
from admission_plugins.bounded import BoundedPool, FairPool, Lease, UnboundedPool
from tests.kit.seededfaults import SeededFaultsTestCase


class ScriptedPoolContractTests(UnboundedPoolContract, SynchronousTestCase):
    """L{ScriptedPool} is an L{IMemoryPool} that refuses nobody while it is not told to."""

    def buildPool(self, sizeBytes: int) -> IMemoryPool:
        """A pool that refuses nothing."""
        return ScriptedPool(sizeBytes)


class ScriptedPoolTests(SynchronousTestCase):
    """L{ScriptedPool}."""

    def test_onCue(self) -> None:
        """It refuses from one cue to the other, tells its listeners of the second, and remembers what was asked for."""
        pool = ScriptedPool()
        told: list[None] = []
        pool.subscribe(lambda: told.append(None))
        pool.refuse()
        self.assertEqual((pool.tryAllocate(10), pool.isOutOfMemory(), told), (None, True, []))
        pool.relent()
        lease = pool.tryAllocate(20)
        assert lease is not None
        self.assertEqual((pool.requested, pool.leases, len(told)), ([10, 20], [lease], 1))
        self.assertEqual((pool.usedBytesByPurpose, pool.availableBytes), ({FRAMES: 20}, (1 << 20) - 20))


class Generous(BoundedPool):
    """Takes sizes that it cannot have for such that it can."""

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> Any:
        return super().tryAllocate(max(min(sizeBytes, self.largestBytes), 1))


class Roomy(BoundedPool):
    """Hands out more than was asked for."""

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> Any:
        return super().tryAllocate(min(sizeBytes + 1, self.largestBytes) if sizeBytes > 0 else sizeBytes)


class Stingy(BoundedPool):
    """Refuses charges."""

    def charge(self, sizeBytes: int, purpose: str) -> Any:
        return None if sizeBytes > self.availableBytes else super().charge(sizeBytes, purpose)


class LenientLease(Lease):
    """May be released twice."""

    __slots__ = ()

    def release(self) -> None:
        if self._pool is not None:
            super().release()


class Lenient(BoundedPool):
    """Does not mind."""

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> Any:
        lease = super().tryAllocate(sizeBytes)
        if lease is not None:
            lease.__class__ = LenientLease
        return lease


class Secretive(BoundedPool):
    """Never tells that memory is back."""

    def _tell(self) -> None:
        pass


class Fragile(BoundedPool):
    """Lets through what listeners raise."""

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()


class Hasty(BoundedPool):
    """Tells that memory is back before it is."""

    def giveBack(self, lease: Lease) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()
        super().giveBack(lease)
        self._listeners = listeners


class Talkative(BoundedPool):
    """Tells within an allocation."""

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> Any:
        lease = super().tryAllocate(sizeBytes)
        self._tell()
        return lease


class Leaky(BoundedPool):
    """Keeps a byte of everything."""

    def giveBack(self, lease: Lease) -> None:
        super().giveBack(lease)
        self.availableBytes -= 1


class Proud(BoundedPool):
    """Never admits to owing memory."""

    def charge(self, sizeBytes: int, purpose: str) -> Any:
        lease = super().charge(sizeBytes, purpose)
        self.availableBytes = max(self.availableBytes, 0)
        return lease


class Bottomless(BoundedPool):
    """Grants when it is empty."""

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> Any:
        availableBytes, self.availableBytes = self.availableBytes, self.sizeBytes
        try:
            return super().tryAllocate(sizeBytes)
        finally:
            self.availableBytes += availableBytes - self.sizeBytes


class Grudging(BoundedPool):
    """Counts what it refuses."""

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> Any:
        lease = super().tryAllocate(sizeBytes)
        if lease is None:
            self.availableBytes -= sizeBytes
        return lease


class Stuck(BoundedPool):
    """Waits for charges that nobody can release."""

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> Any:
        return None if self.availableBytes <= 0 < sizeBytes else super().tryAllocate(sizeBytes)


class Flooded(BoundedPool):
    """Lets everybody past the charges."""

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> Any:
        framesBytes, self._used[FRAMES] = self._used[FRAMES], 0
        lease = super().tryAllocate(sizeBytes)
        self._used[FRAMES] += framesBytes
        return lease


class Forgetful(BoundedPool):
    """Loses what is dropped."""

    def dropped(self, sizeBytes: int, purpose: str, holder: str | None) -> None:
        pass


class Discreet(BoundedPool):
    """Reclaims what is dropped, and says nothing."""

    def dropped(self, sizeBytes: int, purpose: str, holder: str | None) -> None:
        self._uncount(sizeBytes, purpose, holder)


class Sticky(BoundedPool):
    """Leaves the buffer at a lease that was released."""

    def giveBack(self, lease: Lease) -> None:
        buffer = lease.buffer
        super().giveBack(lease)
        lease.buffer = buffer


class Crowded(BoundedPool):
    """Hands out the same memory twice."""

    memory = memoryview(bytearray(4 << 20))

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> Any:
        lease = super().tryAllocate(sizeBytes)
        if lease is not None:
            lease.buffer = self.memory[:sizeBytes]
        return lease


class Careless(BoundedPool):
    """Does not care what memory is for."""

    def charge(self, sizeBytes: int, purpose: str) -> Any:
        return super().charge(sizeBytes, FRAMES)


class Optimistic(BoundedPool):
    """Is never out of memory."""

    def isOutOfMemory(self) -> bool:
        return False


class Nameless(BoundedPool):
    """Calls its sensors what it likes."""

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        super().addSensors(registry, "Bounded")


class Repetitive(BoundedPool):
    """Tells what the gate tells."""

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        super().addSensors(registry, name)
        registry.addGauge(f"{name}Available", lambda now: self.availableBytes)


class FirstCome(FairPool):
    """The holder that comes first gets all of it."""

    def isBelowShare(self, holder: str) -> bool:
        return True


class Unforgiving(FairPool):
    """A holder that has had its share once gets no more."""

    def __init__(self, sizeBytes: int) -> None:
        super().__init__(sizeBytes)
        self.refused: set[str] = set()

    def isBelowShare(self, holder: str) -> bool:
        return holder not in self.refused and super().isBelowShare(holder)

    def tryAllocate(self, sizeBytes: int, holder: str = "") -> Lease | None:
        lease = super().tryAllocate(sizeBytes, holder)
        if lease is None:
            self.refused.add(holder)
        return lease


class Overdrawn(FairPool):
    """Where nothing is left, nobody has a share."""

    def isBelowShare(self, holder: str) -> bool:
        return self.availableBytes > 0 and super().isBelowShare(holder)


class Counting(FairPool):
    """Takes a question for a request."""

    def __init__(self, sizeBytes: int) -> None:
        super().__init__(sizeBytes)
        self.questions = 0

    def isBelowShare(self, holder: str) -> bool:
        self.questions += 1
        return self.questions < 3 and super().isBelowShare(holder)


class Unreclaimed(FairPool):
    """What is dropped stays counted to its holder."""

    def dropped(self, sizeBytes: int, purpose: str, holder: str | None) -> None:
        super().dropped(sizeBytes, purpose, None)


class MemoryPoolContractTests(SeededFaultsTestCase):
    """L{MemoryPoolContract}."""

    def test_sound(self) -> None:
        """Sound pools pass, each kind what is for it."""
        self.assertSound(MemoryPoolContract, buildPool=BoundedPool)
        self.assertSound(FairPoolContract, buildPool=FairPool)
        self.assertSound(UnboundedPoolContract, buildPool=lambda sizeBytes: UnboundedPool())

    def test_faults(self) -> None:
        """Each way in which a pool may be wrong is found by the test that is for it."""
        faults: list[tuple[Callable[[int], BoundedPool], str]] = [
            (Generous, "test_sizesOutOfRangeRaise"),
            (Roomy, "test_bufferIsExact"),
            (Stingy, "test_chargesAreNeverRefused"),
            (Lenient, "test_releasingTwiceRaises"),
            (Secretive, "test_releasesAreTold"),
            (Fragile, "test_failingListener"),
            (Hasty, "test_releasesAreTold"),
            (Talkative, "test_tellsOnlyOfReleases"),
            (Leaky, "test_everyByteComesBack"),
            (Proud, "test_everyByteComesBack"),
            (Bottomless, "test_refusesWhenEmpty"),
            (Grudging, "test_refusesWhenEmpty"),
            (Stuck, "test_oneRequestPastCharges"),
            (Flooded, "test_oneRequestPastCharges"),
            (Forgetful, "test_droppedLeaseComesBack"),
            (Discreet, "test_droppedLeaseComesBack"),
            (Sticky, "test_releaseTakesTheBufferAway"),
            (Crowded, "test_twoLeasesShareNothing"),
            (Careless, "test_ledger"),
            (Optimistic, "test_outOfMemory"),
            (Nameless, "test_sensors"),
            (Repetitive, "test_sensors"),
        ]
        for pool, test in faults:
            self.assertBroken(MemoryPoolContract, test, str(pool), buildPool=pool)

    def test_unfair(self) -> None:
        """Each way in which a pool may be unfair is found, too."""
        faults: list[tuple[Callable[[int], BoundedPool], str]] = [
            (BoundedPool, "test_providesFairPool"),
            (FirstCome, "test_leavesMemory"),
            (Unforgiving, "test_shareComesBack"),
            (Overdrawn, "test_nothingIsBelowAnyShare"),
            (Counting, "test_askingForShares"),
            (Unreclaimed, "test_droppedShareComesBack"),
        ]
        for pool, test in faults:
            self.assertBroken(FairPoolContract, test, str(pool), buildPool=pool)

    def test_unboundedIsNotBounded(self) -> None:
        """A pool that never refuses is told so by the rules that it breaks."""
        for test in ("test_refusesWhenEmpty", "test_everyByteComesBack", "test_oneRequestPastCharges"):
            self.assertBroken(MemoryPoolContract, test, "unbounded", buildPool=lambda sizeBytes: UnboundedPool())

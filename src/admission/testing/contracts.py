# -*- test-case-name: tests.test_testing -*-
"""
What every implementation of a contract must pass.  Mix one of these classes
with L{twisted.trial.unittest.SynchronousTestCase} and say how to build what is
to be tested.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from zope.interface.verify import verifyObject

from ..interfaces import CONNECTIONS, FRAMES, RESPONSES, ILease, IMemoryPool, ITransportMutability

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase as _TestCase
else:
    _TestCase = object


class MemoryPoolContract(_TestCase):
    """
    What an L{IMemoryPool} must do, bounded or not.
    """

    def buildPool(self, sizeBytes: int) -> IMemoryPool:
        """
        Make a fresh pool of C{sizeBytes} whose largest allocation is all of
        it; a pool without a bound may ignore C{sizeBytes}.
        """
        raise NotImplementedError

    def allocate(self, pool: IMemoryPool, sizeBytes: int) -> ILease:
        """
        Allocate what must be there.
        """
        lease = pool.tryAllocate(sizeBytes)
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
        A lease's buffer is writable and has exactly the size asked for,
        whatever that is.
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
        self.assertEqual([bytes(buffer or b"") for buffer in buffers], [bytes([n]) * 8192 for n in range(4)])
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
        The ledger shows what is taken for each purpose, a charge of nothing
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
        Each release of a lease or a charge tells every listener, the bytes
        being back already.
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


class TransportMutabilityContract(_TestCase):
    """
    What an adapter to L{ITransportMutability} must do once its transport may
    be muted.
    """

    def buildMutability(self) -> tuple[ITransportMutability, Callable[[], bool]]:
        """
        Make an adapter for a fresh transport that reads.

        @return: the adapter, and what tells whether the transport reads.
        """
        raise NotImplementedError

    def test_providesItsInterface(self) -> None:
        """
        The adapter has all methods of L{ITransportMutability}.
        """
        mutability, _ = self.buildMutability()
        verifyObject(ITransportMutability, mutability)

    def test_answersAreBooleans(self) -> None:
        """
        The two questions are answered with L{True} or L{False}, and asking
        changes nothing.
        """
        mutability, isReading = self.buildMutability()
        self.assertIs(mutability.isInMutableState(), True)
        self.assertIsInstance(mutability.hasBytesBuffered(), bool)
        self.assertTrue(isReading())

    def test_muteAndUnmute(self) -> None:
        """
        C{mute} stops reading and C{unmute} starts it again, as often as one
        likes.
        """
        mutability, isReading = self.buildMutability()
        for _ in range(2):
            mutability.mute()
            self.assertFalse(isReading())
            mutability.unmute()
            self.assertTrue(isReading())

    def test_repetitionIsHarmless(self) -> None:
        """
        Muting twice takes one C{unmute} to undo, and unmuting what reads does
        nothing.
        """
        mutability, isReading = self.buildMutability()
        mutability.unmute()
        mutability.mute()
        mutability.mute()
        self.assertFalse(isReading())
        mutability.unmute()
        self.assertTrue(isReading())

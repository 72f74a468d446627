"""Tests for L{admission.connection.heaptrim}."""

from __future__ import annotations

import platform

from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.heaptrim import CHECK_SECONDS, MIN_EXCESS_BYTES, MIN_INTERVAL_SECONDS, HeapTrim, heapTrimmer
from admission.metrics.process import ProcessUsage
from admission_plugins.bounded import BoundedPool
from tests.kit.admitted import gateFor

MIB = 1 << 20


class HeapTrimTests(SynchronousTestCase):
    """A process that has 100 MiB beside its pool."""

    def setUp(self) -> None:
        """Nothing is unused yet."""
        self.clock = Clock()
        self.pool = BoundedPool(1 << 30)
        gate = gateFor(self.pool, self.clock)
        self.neededBytes = 100 * MIB
        self.privateBytes = self.neededBytes
        self.trims: list[float] = []
        self.heapTrim = HeapTrim(gate, self.clock, self.trim, lambda: self.privateBytes)
        self.heapTrim.start()
        self.addCleanup(self.heapTrim.stop)

    def trim(self) -> None:
        """All that is not needed goes back."""
        self.trims.append(self.clock.seconds())
        self.privateBytes = self.neededBytes

    def burst(self, sizeBytes: int = 500 * MIB) -> None:
        """The pool hands out memory, and has it back; the heap has grown."""
        lease = self.pool.charge(sizeBytes, "responses")
        self.privateBytes += sizeBytes
        self.clock.advance(CHECK_SECONDS)
        lease.release()

    def pass_(self, checks: int) -> None:
        """Let time pass."""
        for _ in range(checks):
            self.clock.advance(CHECK_SECONDS)

    def test_afterBurst(self) -> None:
        """What a burst has left goes back once it was not used at two checks, and the log says how much that was."""
        self.burst()
        self.pass_(1)
        self.assertEqual(self.trims, [])
        with capturedLogs() as logged:
            self.pass_(1)
        self.assertEqual(len(self.trims), 1)
        self.assertEqual(
            [formatEvent(each) for each in logged], ["500 MiB of unused heap went back to the system, in 0 s"]
        )
        self.pass_(100)
        self.assertEqual(len(self.trims), 1)

    def test_afterStart(self) -> None:
        """A burst before the first look counts, too: what is needed is known from the start."""
        self.privateBytes += 500 * MIB
        self.pass_(2)
        self.assertEqual(len(self.trims), 1)

    def test_inUse(self) -> None:
        """What the pool has handed out is used, and so is what is kept for reuse."""
        lease = self.pool.charge(500 * MIB, "responses")
        self.privateBytes += 500 * MIB
        self.pass_(100)
        self.assertEqual(self.trims, [])
        lease.release()

    def test_little(self) -> None:
        """For little nothing is done."""
        self.burst(MIN_EXCESS_BYTES - 1)
        self.pass_(100)
        self.assertEqual(self.trims, [])

    def test_growth(self) -> None:
        """
        Where there was nothing to give back, it is tried once, until there is more again; the log
        has nothing to say.
        """
        self.neededBytes = self.privateBytes = 300 * MIB
        with capturedLogs() as logged:
            self.pass_(100)
        self.assertEqual((len(self.trims), logged), (1, []))
        self.burst()
        self.pass_(100)
        self.assertEqual(len(self.trims), 2)

    def test_manyBursts(self) -> None:
        """A server whose bursts come often keeps the memory for the next one, most of the time."""
        begin = self.clock.seconds()
        for _ in range(30):
            self.burst()
            self.pass_(2)
        self.assertLessEqual(len(self.trims), (self.clock.seconds() - begin) / MIN_INTERVAL_SECONDS + 1)
        self.assertGreater(len(self.trims), 2)

    def test_shortUse(self) -> None:
        """Memory that is used again at the second check is not given back."""
        self.burst()
        self.pass_(1)
        lease = self.pool.charge(480 * MIB, "responses")
        self.pass_(1)
        self.assertEqual(self.trims, [])
        lease.release()

    def test_otherLibraries(self) -> None:
        """Where the C library cannot give memory back, or the process cannot be measured, there is no timer."""
        gate = gateFor(self.pool, clock := Clock())
        HeapTrim(gate, clock, None, lambda: 0).start()
        self.assertEqual(clock.getDelayedCalls(), [])

        def unknown() -> int:
            raise FileNotFoundError("/proc/self/statm")

        HeapTrim(gate, clock, self.trim, unknown).start()
        self.assertEqual(clock.getDelayedCalls(), [])


class GlibcTests(SynchronousTestCase):
    """The C library itself."""

    if platform.libc_ver()[0] != "glibc":
        skip = "only glibc has malloc_trim"

    def test_trim(self) -> None:
        """What is free below something that is in use goes back to the system."""
        trim, usage = heapTrimmer(), ProcessUsage()
        assert trim is not None
        trim()
        before = usage.privateBytes
        held = [bytearray(b"x") * 100_000 for _ in range(1000)]
        pins = held[::20]
        del held
        kept = usage.privateBytes - before
        self.assertGreater(kept, 80 << 20)
        trim()
        self.assertLess(usage.privateBytes - before, kept // 4)
        self.assertEqual(len(pins), 50)

# -*- test-case-name: tests.contracts.test_bounded -*-
"""
The memory of a bounded pool, and its reuse.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

SMALLEST_SLAB_BYTES = 4096
LARGEST_SLAB_BYTES = 2 << 20

_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


def _mapped(sizeBytes: int) -> mmap.mmap:
    """
    Memory of its own, in huge pages where the system has them: to touch 8 MiB page by page takes five times as long.
    """
    mapped = mmap.mmap(-1, sizeBytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _HUGE_PAGES is not None:
        # A system without them refuses, and does with small ones.
        with suppress(OSError):
            mapped.madvise(_HUGE_PAGES)
    return mapped


class Buffers:
    """
    Writable buffers of any size.

    Below 4 KiB they are fresh. Up to 2 MiB, where the request of a batch of 1 MiB fits, they are parts of slabs that
    are kept for reuse, last in, first out, since touching a fresh page costs more than copying into it. Slabs come in
    size classes, four to each doubling, so that a slab is at most a quarter larger than its content. Larger buffers
    have memory of their own: untouched pages cost nothing, and all of them are returned to the system, whatever the
    state of the heap.

    @ivar idleBytes: the memory kept for reuse.
    @ivar idleCapBytes: the most to keep.
    """

    __slots__ = ("_free", "idleBytes", "idleCapBytes")

    def __init__(self, idleCapBytes: int) -> None:
        self.idleBytes = 0
        self.idleCapBytes = idleCapBytes
        self._free: dict[int, list[bytearray]] = {}

    def allocate(self, sizeBytes: int) -> memoryview:
        """
        @raise MemoryError: if the system has none; C{OSError} likewise.
        """
        if sizeBytes < SMALLEST_SLAB_BYTES:
            return memoryview(bytearray(sizeBytes))
        if sizeBytes > LARGEST_SLAB_BYTES:
            return memoryview(_mapped(sizeBytes))
        capacityBytes = self.capacityFor(sizeBytes)
        free = self._free.get(capacityBytes)
        if not free:
            return memoryview(bytearray(capacityBytes))[:sizeBytes]
        self.idleBytes -= capacityBytes
        return memoryview(free.pop())[:sizeBytes]

    def recycle(self, buffer: memoryview, spareBytes: int) -> None:
        """
        Take a buffer back, and keep its slab unless more than C{spareBytes} would be idle then.
        """
        backing = buffer.obj
        try:
            buffer.release()
            if isinstance(backing, mmap.mmap):
                backing.close()
                return
            assert isinstance(backing, bytearray)
            capacityBytes = len(backing)
            if capacityBytes < SMALLEST_SLAB_BYTES or capacityBytes > self.idleCapBytes:
                return
            if self.idleBytes + capacityBytes > self.idleCapBytes:
                self._makeRoom(capacityBytes)
            idleBytes = self.idleBytes + capacityBytes
            if idleBytes > self.idleCapBytes or idleBytes > spareBytes:
                return
            # Raises while a slice exists.
            backing.append(backing.pop())
        except BufferError:
            # A slice is still referenced, so this memory must not be reused; it is freed with the slice.
            return
        self.idleBytes = idleBytes
        free = self._free.get(capacityBytes)
        if free is None:
            self._free[capacityBytes] = [backing]
        else:
            free.append(backing)

    def evict(self, excessBytes: int) -> None:
        """
        Free at least C{excessBytes}, or everything, largest slabs first.
        """
        for capacity in sorted(self._free, reverse=True):
            free = self._free[capacity]
            while free and excessBytes > 0:
                free.pop()
                self.idleBytes -= capacity
                excessBytes -= capacity

    def _makeRoom(self, capacityBytes: int) -> None:
        """
        Free slabs of other classes: the class of a returned buffer is in use, and the idle ones may never be again.
        """
        wantedBytes = self.idleBytes + capacityBytes - self.idleCapBytes
        for other in [other for other in self._free if other != capacityBytes]:
            free = self._free[other]
            while free and wantedBytes > 0:
                free.pop()
                self.idleBytes -= other
                wantedBytes -= other
            if free:
                return
            # So that the class moves to the end when it is used again, and is freed last.
            del self._free[other]

    @staticmethod
    def capacityFor(sizeBytes: int) -> int:
        """
        The size of the slab that holds C{sizeBytes}, which is at least 4 KiB.
        """
        step = 1 << (sizeBytes - 1).bit_length() - 3
        return -(-sizeBytes // step) * step

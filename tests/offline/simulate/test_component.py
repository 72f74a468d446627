"""Tests for L{admission.offline.simulate.component}."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
from hypothesis import given, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission.offline.simulate.component import PackedRows

ROW = np.dtype([("a", "i8"), ("b", "u1")])


def rowsFrom(start: int, stop: int) -> object:
    """Rows that tell where they are."""
    rows = np.zeros(stop - start, ROW)
    rows["a"] = np.arange(start, stop)
    rows["b"] = np.arange(start, stop) % 251
    return rows


class PackedRowsTests(SynchronousTestCase):
    """L{PackedRows} gives back what it was given."""

    @given(
        st.lists(st.integers(0, 40), max_size=8),
        st.integers(0, 60),
        st.integers(0, 350),
        st.integers(0, 350),
        st.integers(1, 50),
    )
    def test_read(self, sizes: list[int], maxInMemory: int, start: int, stop: int, chunkRows: int) -> None:
        """Whether rows are in memory or in a file, and however they came, any of them can be read in any chunks."""
        packed = PackedRows(ROW, maxInMemory)
        bounds = np.cumsum([0, *sizes]).tolist()
        for begin, end in pairwise(bounds):
            packed.append(rowsFrom(begin, end))
        packed.seal()
        self.assertEqual(len(packed), bounds[-1])
        stop = min(stop, len(packed))
        start = min(start, stop)
        expected = [(index, index % 251) for index in range(start, stop)]
        self.assertEqual(packed.read(start, stop).tolist(), expected)
        self.assertEqual(list(packed.tuples(start, stop, chunkRows)), expected)
        packed.close()

    def test_file(self) -> None:
        """The file exists while it is needed, has no name, and is gone after."""

        def descriptors() -> set[str]:
            links = set()
            for name in os.listdir("/proc/self/fd"):
                try:
                    links.add(os.readlink(f"/proc/self/fd/{name}"))
                except OSError:
                    continue
            # Threads of other tests may still have pipes.
            return {link for link in links if link.startswith("/")}

        before = descriptors()
        packed = PackedRows(ROW, 10)
        packed.append(rowsFrom(0, 10))
        self.assertEqual(descriptors() - before, set())
        packed.append(rowsFrom(10, 11))
        [opened] = descriptors() - before
        self.assertTrue(opened.endswith("(deleted)"), opened)
        packed.close()
        self.assertEqual(descriptors() - before, set())

    if not os.path.isdir("/proc/self/fd"):
        test_file.skip = "this system does not tell of open files so"  # type: ignore[attr-defined]

# -*- test-case-name: tests.unit.offline.test_replay_packed -*-
"""
Many rows in little memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

MAX_ROWS_IN_MEMORY = 200_000
"""How many rows are held; with more, all are in a file."""


class PackedRows:
    """
    Rows of a numpy structure, added in order and then read anywhere.  Beyond a
    number of them they are in a temporary file that has no name, and go with
    the process.

    They are read from the file and not mapped: what is mapped counts as the
    process's memory as soon as it has been looked at.
    """

    def __init__(self, dtype: np.dtype[Any], maxInMemory: int = MAX_ROWS_IN_MEMORY) -> None:
        """
        @param maxInMemory: how many rows to hold.
        """
        self._dtype = dtype
        self._maxInMemory = maxInMemory
        self._held: list[Any] = []
        self._file: BinaryIO | None = None
        self._count = 0

    def __len__(self) -> int:
        """
        How many rows there are.
        """
        return self._count

    def append(self, rows: Any) -> None:
        """
        Add an array of rows; it is not to be changed any more.
        """
        self._count += len(rows)
        if self._file is not None:
            self._file.write(rows.tobytes())
            return
        self._held.append(rows)
        if self._count > self._maxInMemory:
            self._file = tempfile.TemporaryFile(prefix="admission-replay-")  # noqa: SIM115
            for each in self._held:
                self._file.write(each.tobytes())
            self._held = []

    def seal(self) -> None:
        """
        Call it between the last L{append} and the first L{read}.
        """
        if self._file is not None:
            self._file.flush()
        else:
            self._held = [np.concatenate(self._held) if self._held else np.zeros(0, self._dtype)]

    def read(self, start: int, stop: int) -> Any:
        """
        Some of the rows.
        """
        if self._file is None:
            return self._held[0][start:stop]
        size = self._dtype.itemsize
        data = os.pread(self._file.fileno(), (stop - start) * size, start * size)
        return np.frombuffer(data, self._dtype)

    def tuples(self, start: int, stop: int, chunkRows: int) -> Iterator[tuple[Any, ...]]:
        """
        Rows one by one, of which no more than C{chunkRows} are Python objects.
        """
        for begin in range(start, stop, chunkRows):
            yield from self.read(begin, min(begin + chunkRows, stop)).tolist()

    def close(self) -> None:
        """
        Let go of everything.
        """
        self._held = []
        if self._file is not None:
            self._file.close()

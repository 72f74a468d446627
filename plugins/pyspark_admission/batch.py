# -*- test-case-name: tests.spark.test_pyspark_admission -*-
"""
The reader behind C{spark.read}.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from admission.recording.tables import TABLES

from .files import SealedFile, damagedPaths, sealedFiles, segmentNames, segmentPath
from .options import Options

if TYPE_CHECKING:
    from pyarrow import RecordBatch  # type: ignore[import-untyped]

PARTITION_BYTES = 32 << 20
"""How much is read by one task: about a million rows."""

OPENING_BYTES = 256 << 10
"""Opening a file takes as long as reading this many bytes."""

log = logging.getLogger("pyspark_admission")


def tellLog(path: str, problem: str) -> None:
    """
    Log on one line that a file cannot be read.
    """
    log.warning("%s %s", path, problem)


def readPaths(options: Options, names: Iterable[str], paths: Iterable[str]) -> Iterator[RecordBatch]:
    """
    The rows of files, or their problems if the options ask for these.

    @param names: the columns to have.
    """
    # Arrow takes longer to import than all else; planning does without it.
    from .segmentreading import FileReader, merged, problemsOf

    if options.table is None:
        yield from problemsOf(options, list(paths))
        return
    reader = FileReader(options, options.table, list(names), tellLog)
    yield from merged(batch for path in paths for batch in reader.read(path))


def packed(files: Iterable[SealedFile]) -> list[InputPartition]:
    """
    Group successive files into tasks of about L{PARTITION_BYTES}.
    """
    packs: list[list[str]] = []
    room = 0
    for file in files:
        costBytes = file.sizeBytes + OPENING_BYTES
        if costBytes > room or not packs:
            packs.append([])
            room = PARTITION_BYTES
        packs[-1].append(file.path)
        room -= costBytes
    return [InputPartition(tuple(pack)) for pack in packs]


class BatchReader(DataSourceReader):
    """
    Reads all existing files: Parquet files, and the segments that are not sealed.
    """

    def __init__(self, options: Options, names: Iterable[str]) -> None:
        """
        @param names: the columns to have.
        """
        self._options = options
        self._names = tuple(names)

    def partitions(self) -> list[InputPartition]:
        """
        See L{DataSourceReader}.  A partition's value is the paths to read.
        """
        options = self._options
        if options.segments is not None:
            return [self._segment(name) for name in options.segments]
        # In this order, see the module of files.
        segments = segmentNames(options.directory)
        tables = TABLES if options.table is None else (options.table,)
        files = [
            file
            for table in tables
            for file in sealedFiles(options.directory, table, segments)
            if options.range.overlaps(file.hour, file.endOfHour)
        ]
        partitions = [*packed(files), *map(self._segment, segments)]
        if options.table is None:
            partitions.append(InputPartition(tuple(damagedPaths(options.directory))))
        return partitions

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        # Spark makes up a partition without a value where there is none.
        return readPaths(self._options, self._names, partition.value or ())

    def _segment(self, name: str) -> InputPartition:
        return InputPartition((segmentPath(self._options.directory, name),))

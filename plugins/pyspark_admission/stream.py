# -*- test-case-name: tests.spark.test_pyspark_admission -*-
"""
The reader behind C{spark.readStream}.

It reads only sealed files: a segment's rows come once it is sealed.  An offset has for each process its last segment.
It never goes beyond an unsealed segment, so that nothing can be sealed behind it, and the rows of a process come in the
order of its segments.  Processes without any remaining files are forgotten, since they will make no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from admission.recording.schema import Table

from .batch import packed, readPaths
from .files import SealedFile, processAndNumber, sealedFiles, segmentNames
from .options import PROBLEMS, Options

if TYPE_CHECKING:
    from pyarrow import RecordBatch  # type: ignore[import-untyped]

Offset = dict[str, int]
"""By process, the number of the last segment whose rows have been read."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options, names: Iterable[str]) -> None:
        """
        @param names: the columns to have.
        @raise ValueError: if C{options} cannot be streamed.
        """
        if options.table is None:
            raise ValueError(f"{PROBLEMS} cannot be streamed: use spark.read")
        if options.segments is not None:
            raise ValueError("segments cannot be streamed: leave the option out, and they come once they are sealed")
        self._options = options
        self._table: Table = options.table
        self._names = tuple(names)
        self._target: Offset | None = None

    def initialOffset(self) -> Offset:
        """
        See L{DataSourceStreamReader}: before the first segment.
        """
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.filesPerTrigger
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._settled()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        target = self._settled() if self._target is None else self._target
        # Rows that have been read stay read, even if their file has been removed.
        end = {process: max(start.get(process, 0), number) for process, number in target.items()}
        if isinstance(limit, ReadMaxFiles):
            end = self._shortened(start, end, limit.max_files)
        # Spark compares offsets as texts.
        return {process: end[process] for process in sorted(end) if end[process]}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """
        See L{DataSourceStreamReader}. Files removed since C{end} was determined are left out.
        """
        within = self._options.range.overlaps
        files = [file for _, _, files in self._between(start, end) for file in files]
        return packed(file for file in files if within(file.hour, file.endOfHour))

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return readPaths(self._options, self._names, partition.value or ())

    def _settled(self) -> Offset:
        """
        The last segment of every process before which all are sealed.

        Files are listed before segments.  If a file exists and its segment does not, all its siblings exist from then
        on.
        """
        last: Offset = {}
        for process, number in self._files():
            last[process] = max(number, last.get(process, 0))
        for process, number in filter(None, map(processAndNumber, segmentNames(self._options.directory))):
            last[process] = min(number - 1, last.get(process, 0))
        return last

    def _shortened(self, start: Offset, end: Offset, maxFiles: int) -> Offset:
        shortened = {process: start.get(process, 0) for process in end}
        count = 0
        for process, number, files in self._between(start, end):
            count += len(files)
            # At least one segment, or the stream would never advance.
            if count > max(maxFiles, len(files)):
                return shortened
            shortened[process] = number
        return end

    def _between(self, start: Offset, end: Offset) -> list[tuple[str, int, list[SealedFile]]]:
        """
        The segments after C{start} until C{end}, and their files: by time where the order of each process's segments
        allows it.
        """
        hours: dict[str, int] = {}
        placed = []
        for (process, number), files in sorted(self._files().items()):
            if start.get(process, 0) < number <= end.get(process, 0):
                hours[process] = max(hours.get(process, 0), files[-1].hour)
                placed.append((hours[process], process, number, files))
        return [(process, number, files) for _, process, number, files in sorted(placed)]

    def _files(self) -> dict[tuple[str, int], list[SealedFile]]:
        found: dict[tuple[str, int], list[SealedFile]] = {}
        for file in sealedFiles(self._options.directory, self._table):
            known = processAndNumber(file.name)
            if known is not None:
                found.setdefault(known, []).append(file)
        return found

# -*- test-case-name: tests.spark.test_pyspark_admission -*-
"""
The files in the directory of a recording.

A table has a Parquet file for each segment and hour, named after the segment. While a segment exists it is complete,
and its Parquet files may be incomplete; once it is removed they are all complete.  So a reader that lists segments
first and then Parquet files, and leaves out the files of these segments, has every row once, whatever is sealed
meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG

from attrs import frozen

from admission.recording.schema import Table
from admission.recording.segments import SUFFIX, segmentPaths
from admission.recording.tables import TABLES

SEGMENTS = "_segments"
DAMAGED_SUFFIX = ".damaged"
PARQUET_SUFFIX = ".parquet"

_HOUR = 3_600_000_000


@frozen(order=True)
class SealedFile:
    """
    A Parquet file.

    @ivar hour: the beginning of its rows' hour, in microseconds since the epoch.
    @ivar name: the name of its segment.
    @ivar path: its path.
    @ivar sizeBytes: its size.
    """

    hour: int
    name: str
    path: str
    sizeBytes: int

    @property
    def endOfHour(self) -> int:
        return self.hour + _HOUR


def isRecording(directory: Path) -> bool:
    return any(directory.joinpath(name).is_dir() for name in (SEGMENTS, *(table.name for table in TABLES)))


def segmentNames(directory: Path) -> list[str]:
    """
    The segments that are not sealed, in the order in which each process made them.
    """
    paths = segmentPaths(directory / SEGMENTS)
    return [os.path.basename(path).removesuffix(SUFFIX) for path in paths if path.endswith(SUFFIX)]


def segmentPath(directory: Path, name: str) -> Path:
    """
    The path of the segment of that name, unless it is sealed.
    """
    return directory / SEGMENTS / (name + SUFFIX)


def damagedPaths(directory: Path) -> list[str]:
    """
    The segments that could not be sealed.
    """
    return sorted(map(str, directory.joinpath(SEGMENTS).glob("*" + DAMAGED_SUFFIX)))


def sealedFiles(directory: Path, table: Table, leftOut: Iterable[str] = ()) -> list[SealedFile]:
    """
    The Parquet files of a table, by hour and by name.

    @param leftOut: names of segments whose files to leave out.
    """
    unwanted = frozenset(leftOut)
    return sorted(file for file in _files(directory / table.name) if file.name not in unwanted)


def processAndNumber(name: str) -> tuple[str, int] | None:
    """
    The process that made a segment, and the segment's number.

    @return: L{None} if the name has neither, for instance of a file that is not ours.
    """
    process, _, number = name.rpartition("-")
    return (process, int(number)) if process and number.isascii() and number.isdigit() else None


def _files(directory: Path) -> Iterator[SealedFile]:
    for day in _entries(str(directory), "dt="):
        for hour in _entries(day.path, "hour="):
            try:
                moment = datetime.strptime(day.name + hour.name, "dt=%Y-%m-%dhour=%H").replace(tzinfo=UTC)
            except ValueError:
                continue
            for file in _entries(hour.path, ""):
                # The sealing process uses names with a dot until a file is complete.
                if file.name.endswith(PARQUET_SUFFIX) and not file.name.startswith("."):
                    try:
                        status = file.stat()
                    except FileNotFoundError:
                        continue
                    if not S_ISREG(status.st_mode):
                        continue
                    sizeBytes = status.st_size
                    name = file.name.removesuffix(PARQUET_SUFFIX)
                    yield SealedFile(int(moment.timestamp()) * 1_000_000, name, file.path, sizeBytes)


def _entries(directory: str, prefix: str) -> list[os.DirEntry[str]]:
    """
    The content of a directory, which may have been removed to keep the bound.
    """
    try:
        with os.scandir(directory) as entries:
            return [entry for entry in entries if entry.name.startswith(prefix)]
    except (FileNotFoundError, NotADirectoryError):
        return []

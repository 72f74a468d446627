# -*- test-case-name: tests.spark.test_pyspark_admission -*-
"""
The files in the directory of a recording, on this machine or in other storage.

A table has a Parquet file for each segment and hour, named after the segment. While a segment exists it is complete,
and its Parquet files may be incomplete; once it is removed they are all complete.  So a reader that lists segments
first and then Parquet files, and leaves out the files of these segments, has every row once, whatever is sealed
meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from stat import S_ISREG

from attrs import frozen

from admission.recording.places import filesBelow, hasEntry, isRemote
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


def isRecording(directory: str) -> bool:
    """
    Whether a directory has anything of a recording.

    @raise StorageFailed: if other storage does not say so.
    """
    return any(hasEntry(os.path.join(directory, name)) for name in (SEGMENTS, *(table.name for table in TABLES)))


def segmentNames(directory: str) -> list[str]:
    """
    The segments that are not sealed, in the order in which each process made them.
    """
    place = os.path.join(directory, SEGMENTS)
    paths = sorted(path for path, _ in filesBelow(place)) if isRemote(place) else segmentPaths(place)
    return [os.path.basename(path).removesuffix(SUFFIX) for path in paths if path.endswith(SUFFIX)]


def segmentPath(directory: str, name: str) -> str:
    """
    The path of the segment of that name, unless it is sealed.
    """
    return os.path.join(directory, SEGMENTS, name + SUFFIX)


def damagedPaths(directory: str) -> list[str]:
    """
    The segments that could not be sealed.
    """
    place = os.path.join(directory, SEGMENTS)
    paths = [path for path, _ in filesBelow(place)] if isRemote(place) else [each.path for each in _entries(place, "")]
    return sorted(path for path in paths if path.endswith(DAMAGED_SUFFIX))


def sealedFiles(directory: str, table: Table, leftOut: Iterable[str] = ()) -> list[SealedFile]:
    """
    The Parquet files of a table, by hour and by name.

    @param leftOut: names of segments whose files to leave out.
    """
    unwanted = frozenset(leftOut)
    return sorted(file for file in _files(os.path.join(directory, table.name)) if file.name not in unwanted)


def processAndNumber(name: str) -> tuple[str, int] | None:
    """
    The process that made a segment, and the segment's number.

    @return: L{None} if the name has neither, for instance of a file that is not ours.
    """
    process, _, number = name.rpartition("-")
    return (process, int(number)) if process and number.isascii() and number.isdigit() else None


def relativeTo(directory: str, path: str) -> str:
    """
    The rest of the path of a file below a directory.
    """
    return path.removeprefix(directory).lstrip("/")


def _files(directory: str) -> Iterator[SealedFile]:
    for path, sizeBytes in filesBelow(directory) if isRemote(directory) else _localFiles(directory):
        try:
            day, hour, name = relativeTo(directory, path).split("/")
            moment = datetime.strptime(day + hour, "dt=%Y-%m-%dhour=%H").replace(tzinfo=UTC)
        except ValueError:
            continue
        # The sealing process uses names with a dot until a file is complete.
        if name.endswith(PARQUET_SUFFIX) and not name.startswith("."):
            yield SealedFile(int(moment.timestamp()) * 1_000_000, name.removesuffix(PARQUET_SUFFIX), path, sizeBytes)


def _localFiles(directory: str) -> Iterator[tuple[str, int]]:
    for day in _entries(directory, "dt="):
        for hour in _entries(day.path, "hour="):
            for file in _entries(hour.path, ""):
                try:
                    status = file.stat()
                except FileNotFoundError:
                    continue
                if S_ISREG(status.st_mode):
                    yield file.path, status.st_size


def _entries(directory: str, prefix: str) -> list[os.DirEntry[str]]:
    """
    The content of a directory, which may have been removed to keep the bound.
    """
    try:
        with os.scandir(directory) as entries:
            return [entry for entry in entries if entry.name.startswith(prefix)]
    except (FileNotFoundError, NotADirectoryError):
        return []

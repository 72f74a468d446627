# -*- test-case-name: tests.offline.test_shipper -*-
"""
The files of a recording that nobody writes any more.

A Parquet file has its name once it is complete, but while its segment is there sealing may write it again.  So it is
closed when its segment is gone, which is listed first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from ..recording.schema import LIMITS
from ..recording.segments import SUFFIX, segmentPaths

SEGMENTS = "_segments"
PARQUET_SUFFIX = ".parquet"

_HIDDEN = (".", "_")


@frozen
class ClosedFile:
    """
    A Parquet file.

    @ivar name: its path in the recording, with slashes.
    @ivar path: its path here.
    @ivar sizeBytes: its size.
    @ivar modifiedNanoseconds: when it was sealed, since the epoch.
    """

    name: str
    path: str
    sizeBytes: int
    modifiedNanoseconds: int

    @property
    def age(self) -> tuple[str, int, str]:
        """
        Sorts files of all tables by hour, the oldest first.
        """
        _, _, rest = self.name.partition("/")
        return os.path.dirname(rest), self.modifiedNanoseconds, self.name

    @property
    def worth(self) -> tuple[bool, tuple[str, int, str]]:
        """
        Sorts files, the first to be removed first: limits are last, since every replay needs them.
        """
        return self.name.startswith(f"{LIMITS.name}/"), self.age

    def isUnchanged(self) -> bool:
        """
        Whether it is still the file that was found.
        """
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.sizeBytes, self.modifiedNanoseconds)


def closedFiles(directory: str) -> list[ClosedFile]:
    """
    The closed files of a recording, the oldest first.

    @raise OSError: if the directory cannot be read.
    """
    unsealed = frozenset(unsealedSegments(directory))
    found: list[ClosedFile] = []
    for table in os.scandir(directory):
        if not table.name.startswith(_HIDDEN) and table.is_dir():
            found += (file for file in _filesOf(table) if Path(file.path).stem not in unsealed)
    return sorted(found, key=lambda file: file.age)


def unsealedSegments(directory: str) -> list[str]:
    """
    The names of the segments that a server writes or has left behind.
    """
    paths = segmentPaths(os.path.join(directory, SEGMENTS))
    return [Path(path).stem for path in paths if path.endswith(SUFFIX)]


def heldBytes(directory: str) -> int:
    """
    The size of everything in a directory.
    """
    sizeBytes = 0
    for path, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                sizeBytes += os.lstat(os.path.join(path, name)).st_size
    return sizeBytes


def _filesOf(table: os.DirEntry[str]) -> Iterator[ClosedFile]:
    for day in _entries(table.path):
        for hour in _entries(day.path):
            for file in _entries(hour.path):
                if file.name.endswith(PARQUET_SUFFIX) and file.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        status = file.stat()
                        name = "/".join((table.name, day.name, hour.name, file.name))
                        yield ClosedFile(name, file.path, status.st_size, status.st_mtime_ns)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    """
    The visible content of a directory; a server may have removed it to keep its bound.
    """
    try:
        with os.scandir(directory) as entries:
            return [entry for entry in entries if not entry.name.startswith(_HIDDEN)]
    except (FileNotFoundError, NotADirectoryError):
        return []

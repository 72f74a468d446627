# -*- test-case-name: tests.offline.test_target -*-
"""
Where files are shipped to: a directory of any file system that pyarrow knows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import fs

from ..recording.places import StorageUnusable, isRemote, namedPlace, settingsOf, storageOf

_LISTED_FROM = 4
"""How many files of a directory have to be asked about for it to be listed."""

_RENAMING = ("local", "py::hdfs")
"""
The file systems that show a file while it is written, and rename it in place of another.  What is put into a bucket is
there whole or not at all.
"""


class TargetRefused(Exception):
    """
    Nothing can be shipped to a target, however often it is tried.  The message is a sentence with the remedy.
    """


class Target:
    """
    A directory of a file system.  All methods may be called by any thread, and raise L{OSError} or an exception of
    Arrow while the file system cannot be reached or refuses.
    """

    def __init__(self, fileSystem: Any, root: str) -> None:
        """
        @param fileSystem: a C{pyarrow.fs.FileSystem}.
        @param root: the path of the directory in it.
        """
        self._fileSystem = fileSystem
        self._root = root.rstrip("/")
        self._isRenaming = fileSystem.type_name in _RENAMING
        self.isLocal = fileSystem.type_name == "local"

    @property
    def path(self) -> str:
        return self._root

    @classmethod
    def open(cls, url: str) -> Target:
        """
        @param url: as L{admission.recording.places.namedPlace} takes it.
        @raise TargetRefused: if there is no such storage.
        @raise OSError: if it cannot be reached.
        """
        try:
            place = namedPlace(url)
        except ValueError as error:
            raise TargetRefused(str(error)) from error
        if isRemote(place) and "?" in place:
            raise TargetRefused(f"{place.partition('?')[0]}?...: leave out what is after the ?: {settingsOf(place)}")
        try:
            fileSystem, root = storageOf(place)
        except StorageUnusable as error:
            raise TargetRefused(str(error)) from error
        if not root.strip("/"):
            raise TargetRefused(f"{url} names no directory: write file:///DIRECTORY, s3://BUCKET/PREFIX or the like")
        return cls(fileSystem, root)

    def isEmpty(self) -> bool:
        """
        Whether there is nothing in it, apart from names that readers do not see.
        """
        found = self._fileSystem.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        return all(each.base_name.startswith((".", "_")) for each in found)

    def sizesBytes(self, names: Sequence[str]) -> list[int | None]:
        """
        The sizes of files; L{None} for one that is not there.
        """
        directories: dict[str, list[str]] = {}
        for name in names:
            directories.setdefault(os.path.dirname(self._pathOf(name)), []).append(self._pathOf(name))
        sizes: dict[str, int] = {}
        for directory, paths in directories.items():
            # A bucket is asked once for a thousand files of a directory, or once for each file that is named.
            isListed = len(paths) >= _LISTED_FROM
            asked = fs.FileSelector(directory, allow_not_found=True) if isListed else paths
            found = self._fileSystem.get_file_info(asked)
            sizes.update((each.path, each.size) for each in found if each.type == fs.FileType.File)
        return [sizes.get(self._pathOf(name)) for name in names]

    def read(self, name: str, maxBytes: int) -> bytes | None:
        """
        The beginning of a file; L{None} if it is not there.
        """
        if self.sizesBytes([name]) == [None]:
            return None
        with self._fileSystem.open_input_stream(self._pathOf(name)) as stream:
            content: bytes = stream.read(maxBytes)
            return content

    def put(self, name: str, content: bytes) -> None:
        """
        Store a file, in place of one of that name.  Whenever that is interrupted, the file is there whole or not at
        all.

        @raise OSError: also if it has another size afterwards.
        """
        path = self._pathOf(name)
        if self._isRenaming:
            self._putByRenaming(path, content)
        else:
            self._write(path, content)
        if self.sizesBytes([name]) != [len(content)]:
            raise OSError(f"{name} has another size than what was written")

    def _putByRenaming(self, path: str, content: bytes) -> None:
        directory, _, base = path.rpartition("/")
        self._fileSystem.create_dir(directory, recursive=True)
        unfinished = f"{directory}/.{base}.tmp"
        self._write(unfinished, content)
        if self.isLocal:
            _sync(unfinished)
        self._fileSystem.move(unfinished, path)
        if self.isLocal:
            _sync(directory)

    def _write(self, path: str, content: bytes) -> None:
        # In one piece: a stream that is closed early, even by an error, would leave what it has as the file.
        with self._fileSystem.open_output_stream(path, compression=None) as stream:
            stream.write(pa.py_buffer(content))

    def _pathOf(self, name: str) -> str:
        return f"{self._root}/{name}"


def _sync(path: str) -> None:
    fileno = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fileno)
    finally:
        os.close(fileno)

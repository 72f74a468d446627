# -*- test-case-name: tests.unit.kafka.broker.log.test_logbackup -*-
"""
Copying a log: while a broker uses it, and back.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from twisted.internet.defer import maybeDeferred

from admission.kafka.storage.datadirectory import DOCUMENTS, PARTITIONS
from admission.kafka.storage.disk import DirectoryLock, LocalDisk, openRegular
from admission.kafka.storage.documents import Documents
from admission.kafka.storage.itable import LogFailed
from admission.kafka.storage.openfiles import OpenFiles

from .logcheck import Tell, refuseInUse

_COPIED: Final = re.compile(r"[0-9]{20}\.(?:log|index|journal|snapshot)")
_CHUNK_BYTES: Final = 1 << 20

_OVERLAP_BYTES: Final = 8 << 20
"""How much before the end of an earlier copy is compared with the original.  More than one commit writes: only what was
written last can have been taken back."""

_MAX_ROUNDS: Final = 100

_FACTS: Final = "facts"
_CLEAN: Final = b"clean"


class _Copied(NamedTuple):
    """
    What an earlier round has copied of a file.
    """

    sizeBytes: int
    modifiedNs: int
    inode: int


class LogBackup:
    """
    Copies the log of a broker, which may go on.

    First the segments are copied, which takes long; then the documents; then what the segments have got meanwhile.
    So the documents are never ahead of the records: no group has committed an offset that the copy does not have.
    If segments or directories have gone while that was done, retention or a deletion has said so in the documents
    before, and the last two steps are repeated.

    Nothing is linked.  A link is the same bytes on the same disk: what damages the original, or a start that cuts
    off the end of a segment, would do the same to the copy.
    """

    def __init__(self, source: str, destination: str, tell: Tell) -> None:
        """
        @param source: the directory of a log.
        @param destination: a directory without contents.
        """
        self._source = source
        self._destination = destination
        self._tell = tell
        self._copied: dict[str, _Copied] = {}

    def run(self) -> None:
        """
        @raise LogFailed: if the log changes faster than it can be copied.
        @raise OSError: if the disk fails.
        """
        self._copyPartitions()
        for _ in range(_MAX_ROUNDS):
            self._copyDocuments()
            if not self._copyPartitions():
                _flushAll(self._destination)
                return
        raise LogFailed(f"{self._source} changes faster than it can be copied; try again when less is deleted")

    def _copyPartitions(self) -> bool:
        """
        Bring the copies of the segments up to date.

        @return: whether something is gone that an earlier round has copied.
        """
        present: set[str] = set()
        partitions = os.path.join(self._source, PARTITIONS)
        os.makedirs(os.path.join(self._destination, PARTITIONS), exist_ok=True)
        for name in sorted(LocalDisk().list(partitions)):
            # An index says no more than its segment has, and so comes first.
            for file in sorted(_namesIn(os.path.join(partitions, name)), key=lambda each: (each[:20], each[20:])):
                path = os.path.join(PARTITIONS, name, file)
                if self._copy(path):
                    present.add(path)
        gone = set(self._copied) - present
        for path in gone:
            del self._copied[path]
            copy = os.path.join(self._destination, path)
            os.unlink(copy)
            if not os.listdir(os.path.dirname(copy)):
                os.rmdir(os.path.dirname(copy))
        return any(path.endswith(".log") for path in gone)

    def _copy(self, path: str) -> bool:
        """
        Bring the copy of a file up to date.

        @return: whether the file is there.
        """
        try:
            with open(os.path.join(self._source, path), "rb", opener=openRegular) as source:
                stat = os.fstat(source.fileno())
                now = _Copied(stat.st_size, stat.st_mtime_ns, stat.st_ino)
                before = self._copied.get(path)
                if now != before:
                    self._copyFrom(source.fileno(), path, now, before)
                    self._copied[path] = now
        except FileNotFoundError:
            return False
        return True

    def _copyFrom(self, source: int, path: str, now: _Copied, before: _Copied | None) -> None:
        destination = os.path.join(self._destination, path)
        os.makedirs(os.path.dirname(destination), exist_ok=True)
        descriptor = os.open(destination, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            begin = 0
            if before is not None and before.inode == now.inode and path.endswith(".log"):
                begin = min(before.sizeBytes, now.sizeBytes)
                compared = max(begin - _OVERLAP_BYTES, 0)
                if os.pread(source, begin - compared, compared) != os.pread(descriptor, begin - compared, compared):
                    begin = 0
            os.ftruncate(descriptor, begin)
            while begin < now.sizeBytes:
                with _naming(os.path.join(self._source, path)):
                    chunk = os.pread(source, min(_CHUNK_BYTES, now.sizeBytes - begin), begin)
                if not chunk:
                    break
                with _naming(destination):
                    _writeAll(descriptor, chunk, begin)
                begin += len(chunk)
                self._tell(len(chunk))
        finally:
            os.close(descriptor)

    def _copyDocuments(self) -> None:
        """
        Copy the documents, as they are at one moment.
        """
        source, destination = os.path.join(self._source, DOCUMENTS), os.path.join(self._destination, DOCUMENTS)
        for _ in range(_MAX_ROUNDS):
            shutil.rmtree(destination, ignore_errors=True)
            os.makedirs(destination)
            names = sorted(_namesIn(source))
            try:
                # What is appended to a journal is whole up to some frame, and what comes later is in a later one.
                for name in names:
                    shutil.copyfile(os.path.join(source, name), os.path.join(destination, name))
            except FileNotFoundError:
                # A snapshot has taken their place.
                continue
            if sorted(_namesIn(source)) == names:
                return
        raise LogFailed(f"{source} changes faster than it can be copied; try again when less is changed")


def copyLog(source: str, destination: str, tell: Tell) -> None:
    """
    Copy a log that nobody uses, and flush the copy.

    @param destination: a directory without contents.
    @raise OSError: if the disk fails.
    """
    for path in _filesOf(source):
        copy = os.path.join(destination, path)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copyfile(os.path.join(source, path), copy)
        tell(os.path.getsize(copy))
    _flushAll(destination)


def markUnclean(path: str) -> None:
    """
    Have the next start take the log for one that may lack records: it raises the leader epoch, by which consumers
    notice that they have read further.

    @raise LogInUse: if a broker uses it.
    @raise LogFailed: if its documents cannot be read.
    @raise OSError: if the disk fails.
    """
    lock = DirectoryLock(path)
    disk = LocalDisk()
    files = OpenFiles(disk, 10)
    try:
        documents = Documents(disk, files, os.path.join(path, DOCUMENTS), maybeDeferred)
        documents.delete(_FACTS, _CLEAN)
        _writeDocuments(documents, disk, files)
    finally:
        files.closeAll()
        lock.release()


def _writeDocuments(documents: Documents, disk: LocalDisk, files: OpenFiles) -> None:
    """
    Write and flush what has changed in documents that no log uses.

    @raise OSError: if the disk fails.
    """
    if documents.hasChanges:
        documents.write()
        documents.settle()
    dirty, directories = documents.takeDirty()
    for logFile in dirty:
        files.beginFlush(logFile).flush()
    for directory in directories:
        disk.flushDirectory(directory)
    files.endFlush(dirty)


def refuseOccupied(path: str) -> None:
    """
    @raise LogFailed: if a directory has contents, or is none.
    """
    if os.path.exists(path) and not os.path.isdir(path):
        raise LogFailed(f"{path} is a file; name a directory, which is made if it is not there")
    refuseInUse(path)
    if os.path.isdir(path) and os.listdir(path):
        raise LogFailed(f"{path} is not empty; name a new directory, so that nothing is overwritten")


def _flushAll(path: str) -> None:
    """
    Return once all files below a directory would survive a loss of power, with their names and the directory's own.

    @raise OSError: if the disk fails.
    """
    disk = LocalDisk()
    for directory, _, names in os.walk(path):
        for name in names:
            descriptor = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        disk.flushDirectory(directory)
    disk.flushDirectory(os.path.dirname(os.path.abspath(path)))


def copiedBytes(path: str) -> int:
    """
    The size of what L{copyLog} copies.
    """
    return sum(os.path.getsize(os.path.join(path, each)) for each in _filesOf(path))


def _filesOf(path: str) -> Iterator[str]:
    for name in sorted(_namesIn(os.path.join(path, DOCUMENTS))):
        yield os.path.join(DOCUMENTS, name)
    for directory in sorted(LocalDisk().list(os.path.join(path, PARTITIONS))):
        for name in sorted(_namesIn(os.path.join(path, PARTITIONS, directory))):
            yield os.path.join(PARTITIONS, directory, name)


def _namesIn(path: str) -> list[str]:
    try:
        return [name for name in LocalDisk().list(path) if _COPIED.fullmatch(name)]
    except NotADirectoryError:
        return []


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """
    Have errors name the file.
    """
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def _writeAll(descriptor: int, chunk: bytes, position: int) -> None:
    view = memoryview(chunk)
    while view:
        written = os.pwrite(descriptor, view, position)
        position += written
        view = view[written:]

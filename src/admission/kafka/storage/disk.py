# -*- test-case-name: tests.unit.kafka.storage.test_disk -*-
"""
The one place where the log touches a disk.

Everything that the log reads, writes, names and flushes goes through a
L{Disk}, so that a test can put a simulated one in its place which loses power.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from typing import IO, Final, Protocol

from .datadirectory import LOCK_FILE, lockHolder
from .itable import LogInUse

_MAX_BUFFERS: Final = 1024
"""How many buffers one system call writes: C{IOV_MAX} of Linux."""


def explain(error: OSError) -> str:
    """
    An error of the disk in words, with its remedy.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full: make room on it, or retain less"
    if error.errno == errno.EFBIG:
        return "the system allows no larger file (ulimit -f): raise the limit, or set a smaller log.segment.bytes"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open: raise the limit with ulimit -n, or set a smaller log.max.open.files"
    if error.errno == errno.EIO:
        return "the disk failed: replace it"
    if error.errno == errno.EROFS:
        return "the file system is read-only: mount it for writing"
    return error.strerror or str(error)


class File(Protocol):
    """
    An open file.  Every method raises L{OSError} if the disk fails.
    """

    def write(self, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        """
        Write buffers one after another, all of them or raise; after an exception any
        part of them may have been written.
        """

    def read(self, position: int, sizeBytes: int) -> bytes:
        """
        What stands at a position; shorter where the file ends.
        """

    def size(self) -> int:
        """
        The length of the file in bytes.
        """

    def truncate(self, sizeBytes: int) -> None:
        """
        Cut the file off.
        """

    def flush(self) -> None:
        """
        Return once contents and length would survive a loss of power; its name
        need not, see L{Disk.flushDirectory}.  In any thread.
        """

    def distrust(self) -> None:
        """
        Have later reads ask the disk rather than the page cache, which may hold
        what a failed flush has not written.
        """

    def close(self) -> None:
        """
        Release the descriptor.
        """


class Disk(Protocol):
    """
    Files by their paths.  Every method raises L{OSError} if the disk fails.
    """

    def open(self, path: str, create: bool = False) -> File:
        """
        Open a file for reading and writing.

        @param create: whether to make it if it does not exist.
        """

    def reserve(self, path: str, sizeBytes: int) -> None:
        """
        Make a file that takes room and says nothing; no file of that name is left if there is
        too little.
        """

    def list(self, path: str) -> list[str]:
        """
        The names in a directory, in no particular order; none if there is no such
        directory.
        """

    def modifiedSeconds(self, path: str) -> float:
        """
        When a file was last written to, in seconds since 1970.
        """

    def makeDirectory(self, path: str) -> None:
        """
        Make a directory, and those above it, unless it exists.
        """

    def rename(self, old: str, new: str) -> None:
        """
        Give a file another name in its directory; a file of that name is
        replaced.
        """

    def remove(self, path: str) -> None:
        """
        Remove a file, if it exists.
        """

    def removeDirectory(self, path: str) -> None:
        """
        Remove a directory without contents, if it exists.
        """

    def flushDirectory(self, path: str) -> None:
        """
        Return once the names in a directory would survive a loss of power.  In
        any thread.
        """


class LocalFile:
    """
    L{File} by its descriptor.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        while buffers:
            some, buffers = buffers[:_MAX_BUFFERS], buffers[_MAX_BUFFERS:]
            wanted = sum(map(len, some))
            written = os.pwritev(self._descriptor, some, position)
            position += written
            if written < wanted:
                # A full disk takes a part; the rest says why.
                rest = memoryview(b"".join(some))[written:]
                while rest:
                    written = os.pwrite(self._descriptor, rest, position)
                    position += written
                    rest = rest[written:]

    def read(self, position: int, sizeBytes: int) -> bytes:
        found = os.pread(self._descriptor, sizeBytes, position)
        if len(found) == sizeBytes:
            return found
        # Linux reads less than 2 GiB at once, and less where the file ends.
        parts = [found]
        while found:
            position += len(found)
            sizeBytes -= len(found)
            found = os.pread(self._descriptor, sizeBytes, position)
            parts.append(found)
        return b"".join(parts)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, sizeBytes: int) -> None:
        os.ftruncate(self._descriptor, sizeBytes)

    def flush(self) -> None:
        os.fdatasync(self._descriptor)

    def distrust(self) -> None:
        os.fdatasync(self._descriptor)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._descriptor)


def openRegular(path: str, flags: int) -> int:
    """
    Open a file; a pipe in its place, or a directory, is refused and not waited for.

    @raise OSError: with its name.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return descriptor


class LocalDisk:
    """
    L{Disk} of this machine.
    """

    def open(self, path: str, create: bool = False) -> LocalFile:
        return LocalFile(openRegular(path, os.O_RDWR | (os.O_CREAT if create else 0)))

    def reserve(self, path: str, sizeBytes: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, sizeBytes)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    def list(self, path: str) -> list[str]:
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def modifiedSeconds(self, path: str) -> float:
        return os.stat(path).st_mtime

    def makeDirectory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def removeDirectory(self, path: str) -> None:
        try:
            os.rmdir(path)
        except FileNotFoundError:
            pass

    def flushDirectory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class DirectoryLock:
    """
    A lock on a directory, held until L{release} or the end of the
    process, however it ends.

    The directory itself is locked, since a file in it may be removed, and the file, for network file systems that lock
    no directories.
    """

    def __init__(self, path: str) -> None:
        """
        @param path: a directory that exists.
        @raise LogInUse: if another process holds the lock.
        """
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LogInUse(path, _holder(path)) from None
            except OSError:
                # The file has to do.
                pass
            self._file: IO[bytes] = open(os.path.join(path, LOCK_FILE), "a+b", buffering=0)  # noqa: SIM115
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.close()
                raise LogInUse(path, _holder(path)) from None
        except BaseException:
            os.close(self._directory)
            raise
        self._file.truncate(0)
        try:
            self._file.write(b"%d\n" % os.getpid())
        except OSError:
            # The number is for people; a full disk has no room for it.
            pass

    def release(self) -> None:
        self._file.close()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1


def _holder(path: str) -> int | None:
    pid = lockHolder(path).removeprefix("process ")
    return int(pid) if pid.isdigit() else None

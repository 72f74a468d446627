# -*- test-case-name: tests.system.test_doctor -*-
"""
What the doctor looks at: where the log is to live.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

from ..units import roundedBytes
from .findings import Finding, Level

LITTLE_BYTES = 1 << 30
"""Free space that is soon used up."""

TOO_LITTLE_BYTES = 64 << 20
"""Free space in which nothing can be kept."""

LOCK_FILE = "broker.lock"
"""What a broker holds a lock on while it uses a directory."""

_NETWORKED = ("nfs", "nfs4", "cifs", "smb2", "smb3", "9p", "ceph", "lustre", "afs", "glusterfs", "gfs2", "ocfs2")
_GONE_WITH_POWER = ("tmpfs", "ramfs")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def checkDirectory(path: Path) -> Finding:
    """
    Whether the log can be in C{path}.
    """
    name, remedy = "data directory", "--data chooses another; or let it belong to whoever runs the broker"
    if not path.exists():
        parent = nearest(path)
        if not _mayWrite(parent):
            return Finding(name, Level.FAIL, f"{path} is not there, and cannot be made in {parent}", remedy)
        return Finding(name, Level.OK, f"{path} will be made")
    if not path.is_dir():
        return Finding(name, Level.FAIL, f"{path} is a file", "--data takes a directory")
    if not _mayWrite(path):
        return Finding(name, Level.FAIL, f"{path} cannot be written to by user {os.geteuid()}", remedy)
    user = _userOf(path / LOCK_FILE)
    return Finding(name, Level.OK, f"{path} is in use by {user}" if user else f"{path} can be written to")


def checkFileSystem(
    path: Path, mounts: str, freeBytes: Callable[[Path], int], tryToMap: Callable[[Path], None]
) -> Finding:
    """
    Whether the file system below C{path} is one for the log.

    @param mounts: what /proc/self/mounts says.
    @param freeBytes: how much can be written where.
    @param tryToMap: raises L{OSError} where files cannot be mapped.
    """
    name, place = "file system", nearest(path)
    kind = fileSystemOf(place.resolve(), mounts)
    elsewhere = "--data chooses a directory on a local disk"
    if kind in _NETWORKED or kind.startswith("fuse."):
        what = f"{kind}, which does not keep the memory maps and locks of the log in step"
        return Finding(name, Level.FAIL, what, elsewhere)
    try:
        tryToMap(place)
    except OSError as error:
        return Finding(name, Level.FAIL, f"{kind}, on which files cannot be mapped: {error.strerror}", elsewhere)
    available = freeBytes(place)
    what = f"{kind or 'of an unknown kind'}, {roundedBytes(available)} free"
    if available < LITTLE_BYTES:
        level = Level.FAIL if available < TOO_LITTLE_BYTES else Level.WARN
        return Finding(name, level, what, "make room; log.retention.bytes and log.retention.ms bound what is kept")
    if kind in _GONE_WITH_POWER:
        return Finding(name, Level.WARN, f"{what}; it is memory, and gone after a restart of the machine", elsewhere)
    if kind == "overlay":
        return Finding(name, Level.WARN, f"{what}; it is the container's, and gone with it", "give it a volume")
    return Finding(name, Level.OK, what)


def fileSystemOf(path: Path, mounts: str) -> str:
    """
    The kind of file system that an absolute path is on; empty if unknown.

    @param mounts: what /proc/self/mounts says; later lines cover earlier ones.
    """
    found, length = "", -1
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        mounted = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), words[1]))
        if path.is_relative_to(mounted) and len(mounted.parts) >= length:
            found, length = words[2], len(mounted.parts)
    return found


def tryToMap(directory: Path) -> None:
    """
    Map a file there, and write to it.

    @raise OSError: if that cannot be.
    """
    with TemporaryFile(dir=directory) as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapped:
            mapped[:1] = b"x"
            mapped.flush()


def nearest(path: Path) -> Path:
    """
    The directory itself, or the first above it that is there.

    @param path: an absolute path.
    """
    return next(each for each in (path, *path.parents) if each.exists())


def _mayWrite(directory: Path) -> bool:
    return os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)


def _userOf(lock: Path) -> str:
    """
    Which process holds the lock of a directory, in words; empty if none does.
    """
    try:
        with lock.open(encoding="ascii", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return f"process {file.read().strip() or 'unknown'}"
    except OSError:
        pass
    return ""

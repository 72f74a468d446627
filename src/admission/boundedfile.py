# -*- test-case-name: tests.unit.test_boundedfile -*-
"""
Reading files whole that others have written: properties, passwords and certificates that an operator names, segments of
recordings.

What a name stands for is checked before it is read: a pipe would stop the reactor until somebody writes to it, a device
may have no end, and a sparse file has gigabytes that nobody has written.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from .units import formatBytes

MAX_CONFIG_BYTES: Final = 1 << 20
"""
The largest file unless its reader says otherwise, in bytes; a quarter of that has the certificates of all public
authorities.
"""


class FileRefused(OSError):
    """
    A file is not one to be read whole.  C{strerror} says why, in words that go on after "cannot be read:".
    """


def readBounded(path: str | os.PathLike[str], maxBytes: int = MAX_CONFIG_BYTES, mayBePipe: bool = False) -> bytes:
    """
    Read a file.

    @param maxBytes: how much it may have.
    @param mayBePipe: whether to take whatever can be opened, and to wait for it; not for a reactor's thread.
    @raise FileRefused: if it is no regular file, or larger.
    @raise OSError: if it cannot be read.
    """
    # A pipe that nobody writes to is not waited for.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | (0 if mayBePipe else os.O_NONBLOCK)
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        found = os.fstat(file.fileno())
        if not (mayBePipe or stat.S_ISREG(found.st_mode)):
            raise FileRefused(errno.EINVAL, "it is not a regular file", os.fspath(path))
        # Not all that it says it has: a file that grows while it is read is refused as well.
        content = b"" if found.st_size > maxBytes else file.read(maxBytes + 1)
    if max(found.st_size, len(content)) > maxBytes:
        raise FileRefused(errno.EFBIG, f"it has more than {formatBytes(maxBytes)}", os.fspath(path))
    return content

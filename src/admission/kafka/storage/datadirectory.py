# -*- test-case-name: tests.unit.kafka.storage.test_datadirectory -*-
"""
What is where in the directory of a server's data, and who uses it.  It imports nothing heavy: the doctor asks where
packages are missing.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

DOCUMENTS: Final = "documents"
PARTITIONS: Final = "partitions"

LOCK_FILE: Final = "broker.lock"
"""The file that a broker locks while it uses a directory; it has the number of the process."""


def lockHolder(path: str) -> str:
    """
    The process that uses a directory, such as C{"process 12"}; empty if none does.
    """
    file = os.path.join(path, LOCK_FILE)
    if not (_isLocked(path) or _isLocked(file)):
        return ""
    try:
        with open(file, encoding="ascii", errors="replace") as opened:
            return f"process {opened.read().strip() or 'unknown'}"
    except OSError:
        return "process unknown"


def _isLocked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # It cannot be locked there.
        return False
    finally:
        os.close(descriptor)
    return False

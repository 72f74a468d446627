# -*- test-case-name: tests.unit.kafka.broker.log.test_datadirectory -*-
"""
What is where in the directory of a log, and who uses it.  It imports nothing heavy: the doctor asks where packages are
missing.
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
    try:
        with open(os.path.join(path, LOCK_FILE), encoding="ascii", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return f"process {file.read().strip() or 'unknown'}"
    except OSError:
        pass
    return ""

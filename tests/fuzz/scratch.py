"""Where targets put files."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from typing import Any

_kept: list[Any] = []


@cache
def scratch() -> str:
    """A directory for this process, in memory where the system has such a place: not the disk is tested."""
    memory = "/dev/shm"
    place = memory if os.access(memory, os.W_OK) else None
    # It goes with the process.
    directory = tempfile.TemporaryDirectory(prefix="admission-fuzz-", dir=place)
    _kept.append(directory)
    return directory.name

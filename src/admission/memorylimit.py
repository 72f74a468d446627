# -*- test-case-name: tests.unit.test_memorylimit -*-
"""
How much memory this process may use: the smallest of the machine's memory, the
limits of its cgroups (version 1 and 2, all levels), and its address space limit.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

_CONTROL_GROUPS = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def memoryLimitBytes(
    controlGroups: Path = _CONTROL_GROUPS,
    cgroupRoot: Path = _CGROUP_ROOT,
    physicalBytes: int | None = None,
    addressSpaceBytes: int | None = None,
) -> int:
    """
    The smallest of all limits.  A limit that cannot be read is ignored.

    @param controlGroups: the file that names the process's cgroups.
    @param cgroupRoot: where cgroups are mounted.
    @param physicalBytes: the machine's memory; by default read from the system.
    @param addressSpaceBytes: C{RLIMIT_AS}, C{RLIM_INFINITY} for none; by
        default the process's own.
    @return: bytes; positive.
    """
    if physicalBytes is None:
        physicalBytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if addressSpaceBytes is None:
        addressSpaceBytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits = [physicalBytes, *_cgroupLimits(controlGroups, cgroupRoot)]
    if addressSpaceBytes != resource.RLIM_INFINITY:
        limits.append(addressSpaceBytes)
    return max(min(limits), 1)


def _cgroupLimits(controlGroups: Path, cgroupRoot: Path) -> Iterator[int]:
    try:
        lines = controlGroups.read_text().splitlines()
    except OSError:
        return
    names: tuple[str, ...]
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            # Beside version 1, version 2 is mounted at "unified".
            mounts, names = (cgroupRoot, cgroupRoot / "unified"), ("memory.max", "memory.high")
        elif "memory" in controllers.split(","):
            mounts, names = (cgroupRoot, cgroupRoot / "memory"), ("memory.limit_in_bytes",)
        else:
            continue
        for mount in mounts:
            for group in _withParents(mount, path):
                for name in names:
                    yield from _readLimit(group / name)


def _withParents(mount: Path, path: str) -> Iterator[Path]:
    # A container often sees its own group as the mount while /proc still names the group by its path outside:
    # then only the mount itself exists here.
    group = Path(path.lstrip("/"))
    yield mount / group
    for parent in group.parents:
        yield mount / parent


def _readLimit(file: Path) -> Iterator[int]:
    try:
        yield int(file.read_text())
    except (OSError, ValueError):
        pass  # no such group here, or "max"

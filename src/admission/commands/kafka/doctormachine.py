# -*- test-case-name: tests.unit.commands.kafka.test_doctormachine -*-
"""
The doctor's checks of the machine: the process and its limits, ports,
memory and disks.

Each check is a function that returns a L{Finding}; its inputs are handed in.
"""

from __future__ import annotations

import json
import os
import re
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from heapq import nlargest
from operator import itemgetter
from pathlib import Path

from attrs import frozen

from admission.kafka.serving.serversettings import RESERVED_DESCRIPTORS, ServerSettings
from admission.kafka.storage.datadirectory import lockHolder
from admission.plaintext import printable
from admission.plugins import PolicyError, parseDescription
from admission.units import roundedBytes, roundedSeconds

from ..console import CommandFailed
from ..statusport import Fetch

OLDEST_PYTHON = (3, 11)

BESIDES_POOL_BYTES = 128 << 20
"""A broker's memory besides its pool: about half for itself, the rest for groups, producers and the log's hot pages."""

LITTLE_BYTES = 1 << 30
"""Less free space than this is soon used up."""

LITTLE_SHARE = 0.1
"""Less free space than this share of the file system is soon used up as well, unless it is L{ENOUGH_BYTES}."""

ENOUGH_BYTES = 50 << 30
"""This much free space is not little, however large the file system is."""

TOO_LITTLE_BYTES = 64 << 20
"""Less free space than this is of no use."""

MAX_TOPICS = 5
"""How many topics are listed with the space that they use."""


_WITH_PORTS = ("tcp", "tcp6", "ssl", "mtls", "tls")
_PRIVILEGES = (
    "AmbientCapabilities=CAP_NET_BIND_SERVICE in a systemd unit; or a higher port, and --advertise what clients see"
)
_NETWORKED = ("nfs", "nfs4", "cifs", "smb2", "smb3", "9p", "ceph", "lustre", "afs", "glusterfs", "gfs2", "ocfs2")
_GONE_WITH_POWER = ("tmpfs", "ramfs")
_LISTENING = "0A"
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Level(Enum):
    OK = "ok"
    WARN = "warn"
    """It works, but not as well as it could."""
    FAIL = "fail"
    """It will not work."""
    ABSENT = "absent"
    """An extra that is not installed; only its users need it."""


@frozen
class Finding:
    """
    The outcome of one check.

    @ivar what: what was found.
    @ivar remedy: what to do about it; empty if nothing needs to be done.
    """

    level: Level
    what: str
    remedy: str = ""


def checkPython(version: Sequence[int]) -> Finding:
    found = ".".join(map(str, version[:3]))
    if tuple(version[:2]) >= OLDEST_PYTHON:
        return Finding(Level.OK, found)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Finding(Level.FAIL, f"{found} is older than {oldest}", f"make the venv with Python {oldest}")


_REACTORS = {
    "EPollReactor": (Level.OK, "epoll"),
    "SelectReactor": (Level.FAIL, "select, which serves no more than 1024 files"),
}


def checkReactor(name: str) -> Finding:
    """
    Check that the reactor is one for many connections.

    @param name: its class.
    """
    level, what = _REACTORS.get(name, (Level.WARN, f"{name}, slower than epoll where connections are many"))
    remedy = "" if level is Level.OK else "run twistd on Linux, without --reactor"
    return Finding(level, what, remedy)


def checkOpenFiles(maxConnections: int, maxLogFiles: int, hardLimit: int) -> Finding:
    """
    Check that all allowed connections can be open at once, with the files of the log.

    @param maxLogFiles: how many files the log may have open; the broker allows it no more than a quarter of all.
    @param hardLimit: of C{RLIMIT_NOFILE}; the broker raises the soft one by itself.
    """
    isBounded = hardLimit != resource.RLIM_INFINITY
    reservedCount = RESERVED_DESCRIPTORS + (min(maxLogFiles, hardLimit // 4) if isBounded else maxLogFiles)
    neededCount = maxConnections + reservedCount
    if hardLimit == resource.RLIM_INFINITY or hardLimit >= neededCount:
        limit = "any number" if hardLimit == resource.RLIM_INFINITY else str(hardLimit)
        return Finding(Level.OK, f"{limit} allowed, {neededCount} needed for {maxConnections} connections")
    allowedCount = max(hardLimit - reservedCount, 0)
    return Finding(
        Level.WARN if allowedCount else Level.FAIL,
        f"{hardLimit} allowed, so that there can be {allowedCount} connections and not {maxConnections} "
        "(max.connections)",
        f"allow {maxConnections + RESERVED_DESCRIPTORS + maxLogFiles}: LimitNOFILE= in a systemd unit, docker run "
        "--ulimit nofile=, ulimit -Hn as root; or lower max.connections",
    )


def checkMemory(limitBytes: int, settings: ServerSettings) -> Finding:
    """
    Check that the pool fits into the memory that the process may use.

    @param limitBytes: see L{admission.memorylimit.memoryLimitBytes}.
    """
    poolBytes = settings.queuedMaxRequestBytes
    allowed = f"the process may use {roundedBytes(limitBytes)}"
    less = "choose queued.max.request.bytes to fit, or leave it out to get a quarter of that"
    if poolBytes <= 0:
        return Finding(Level.WARN, f"{allowed}, and the pool has no bound", less)
    what = f"{allowed}, {roundedBytes(poolBytes)} of it for the pool"
    if poolBytes >= limitBytes:
        what = f"{allowed}, and the pool {roundedBytes(poolBytes)}: the kernel would end it before the pool is empty"
        return Finding(Level.FAIL, what, f"{less}; or allow more: MemoryMax=, docker run --memory")
    if limitBytes - poolBytes < BESIDES_POOL_BYTES:
        return Finding(
            Level.WARN,
            f"{what}, which leaves {roundedBytes(limitBytes - poolBytes)} for everything else",
            f"leave {roundedBytes(BESIDES_POOL_BYTES)} or more: a smaller queued.max.request.bytes, or more memory "
            "(MemoryMax=, docker run --memory)",
        )
    return Finding(Level.OK, what)


def checkPort(description: str, reason: str | None, isPrivileged: bool, firstFreePort: int, holder: str) -> Finding:
    """
    Check that the server can listen on an endpoint.

    @param description: as C{--listen} and C{--status} take it.
    @param reason: why it cannot be listened on; L{None} if it can.
    @param isPrivileged: whether the doctor runs as root.
    @param firstFreePort: the first port that needs no privileges.
    @param holder: the server that runs, which may listen there; empty if none is known.
    """
    if reason is not None and holder and "in use" in reason:
        return Finding(Level.OK, f"in use: {holder}")
    if reason is not None:
        remedy = "see what --listen takes in twistd admission --help"
        if "in use" in reason:
            remedy = (
                "ss -ltnp tells who has it, unless another --listen or --status does; end that, or choose another port"
            )
        elif "ermission" in reason:
            remedy = _PRIVILEGES if _isBelow(description, firstFreePort) else "let the user of the server write there"
        return Finding(Level.FAIL, reason, remedy)
    if isPrivileged and _isBelow(description, firstFreePort):
        return Finding(Level.WARN, "can be listened on, by root", _PRIVILEGES)
    return Finding(Level.OK, "can be listened on")


def listeningPorts(process: str) -> set[int]:
    """
    The TCP ports that a process listens on, as far as we may know: those of others only root does.

    @param process: its number.
    """
    found: set[int] = set()
    try:
        sockets = {os.readlink(each.path) for each in os.scandir(f"/proc/{process}/fd")}
        for name in ("tcp", "tcp6"):
            for line in Path(f"/proc/{process}/net/{name}").read_text("ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENING and f"socket:[{words[9]}]" in sockets:
                    found.add(int(words[1].rpartition(":")[2], 16))
    except (OSError, LookupError):
        # It has ended, or is somebody else's.
        pass
    return found


def checkStatus(url: str, fetch: Fetch, timeoutSeconds: float) -> Finding:
    """
    Check that a running broker is healthy.

    @param url: of its status port.
    @param fetch: as L{admission.commands.statusport.fetch}.
    """
    try:
        snapshot = json.loads(fetch(f"{url}/status.json", timeoutSeconds))
        health, upSeconds = snapshot["health"], float(snapshot["uptimeSeconds"])
        isWell, reasons = health["status"] == "ok", "; ".join(map(str, health["reasons"]))
    except CommandFailed as error:
        return Finding(Level.FAIL, str(error), "start it, or leave --status out to look at the machine alone")
    except (ValueError, LookupError, TypeError):
        return Finding(Level.FAIL, f"{url} does not answer as a status port does", "name the right URL")
    if isWell:
        return Finding(Level.OK, f"is well, and has been up for {roundedSeconds(upSeconds)}")
    return Finding(Level.FAIL, reasons, "docs/operate.md says what each of these means; so does the log")


def checkDirectory(path: Path, option: str = "--data") -> Finding:
    """
    Check that the server can write to the directory C{path}.

    @param option: what chooses it.
    """
    remedy = f"{option} chooses another; or let it belong to the user of the broker"
    if not path.exists():
        parent = nearest(path)
        if not mayWrite(parent):
            return Finding(Level.FAIL, f"{path} is not there, and cannot be made in {parent}", remedy)
        return Finding(Level.OK, f"{path} will be made")
    if not path.is_dir():
        return Finding(Level.FAIL, f"{path} is a file", f"{option} takes a directory")
    if not mayWrite(path):
        return Finding(Level.FAIL, f"{path} cannot be written to by user {os.geteuid()}", remedy)
    user = lockHolder(str(path))
    return Finding(Level.OK, f"{path} is in use by {user}" if user else f"{path} can be written to")


def checkFileSystem(path: Path, mounts: str, space: Callable[[Path], tuple[int, int]]) -> Finding:
    """
    Check that the file system below C{path} suits the log.

    @param mounts: the contents of /proc/self/mounts.
    @param space: returns the size of the file system of a directory, and how many of its bytes are free.
    """
    place = nearest(path)
    kind = fileSystemOf(place.resolve(), mounts)
    elsewhere = "--data chooses a directory on a local disk"
    if kind in _NETWORKED or kind.startswith("fuse."):
        return Finding(Level.FAIL, f"{kind}, on whose locks and flushes the log cannot rely", elsewhere)
    totalBytes, freeBytes = space(place)
    what = f"{kind or 'of an unknown kind'}, {roundedBytes(freeBytes)} of {roundedBytes(totalBytes)} free"
    if freeBytes < max(LITTLE_BYTES, min(totalBytes * LITTLE_SHARE, ENOUGH_BYTES)):
        level = Level.FAIL if freeBytes < TOO_LITTLE_BYTES else Level.WARN
        return Finding(level, what, "make room; log.retention.bytes and log.retention.ms bound what is kept")
    if kind in _GONE_WITH_POWER:
        return Finding(Level.WARN, f"{what}; it is memory, and gone after a restart of the machine", elsewhere)
    if kind == "overlay":
        return Finding(Level.WARN, f"{what}; it is the container's, and gone with it", "give it a volume")
    return Finding(Level.OK, what)


def checkDiskUse(path: Path) -> Finding:
    """
    Say how much of the disk the topics use that are in C{path}, the largest first.
    """
    try:
        used = bytesByTopic(path)
    except PermissionError as error:
        return Finding(Level.WARN, f"{error.filename} cannot be read", "run the doctor as the user of the broker")
    if not used:
        return Finding(Level.OK, "no topic uses any")
    largest = nlargest(MAX_TOPICS, used.items(), key=itemgetter(1))
    parts = [f"{printable(name)} {roundedBytes(sizeBytes)}" for name, sizeBytes in largest]
    if rest := len(used) - len(largest):
        restBytes = sum(used.values()) - sum(sizeBytes for _, sizeBytes in largest)
        parts.append(f"{rest} more {roundedBytes(restBytes)}")
    return Finding(Level.OK, f"{roundedBytes(sum(used.values()))}: {', '.join(parts)}")


def bytesByTopic(path: Path) -> dict[str, int]:
    """
    The size of the files of each topic in a directory of the log, which a broker may be using.
    """
    used: Counter[str] = Counter()
    try:
        directories = list(os.scandir(path / "partitions"))
    except FileNotFoundError:
        return used
    for directory in directories:
        topicName = directory.name.rpartition(".")[0].rpartition("-")[0]
        try:
            for file in os.scandir(directory.path):
                used[topicName or directory.name] += file.stat(follow_symlinks=False).st_size
        except (FileNotFoundError, NotADirectoryError):
            # Retention or a deletion was quicker.
            continue
    return used


def fileSystemOf(path: Path, mounts: str) -> str:
    """
    The type of the file system that an absolute path is on; empty if unknown.

    @param mounts: the contents of /proc/self/mounts; later lines cover earlier ones.
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


def nearest(path: Path) -> Path:
    """
    The directory itself, or the first one above it that exists.

    @param path: an absolute path.
    """
    return next(each for each in (path, *path.parents) if each.exists())


def mayWrite(directory: Path) -> bool:
    """
    Whether we may make files in C{directory}, and list them.
    """
    return os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)


def portIn(description: str) -> int:
    """
    The port of an endpoint; 0 if it has none.
    """
    try:
        name, positional, keywords = parseDescription(description)
    except PolicyError:
        return 0
    port = keywords.get("port", positional[0] if positional and name in _WITH_PORTS else "")
    return int(port) if port.isdigit() else 0


def _isBelow(description: str, firstFreePort: int) -> bool:
    return 0 < portIn(description) < firstFreePort

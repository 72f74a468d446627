# -*- test-case-name: tests.unit.commands.test_doctorcommand -*-
"""
The command C{admission doctor}: whether a broker can run here, and what would
keep it from running well.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TextIO

from twisted import plugins
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import ServerFactory

from .._version import isCompiled
from ..kafka.brokeroptions import BrokerOptions
from ..kafka.brokersettings import Settings, loadSettings
from ..memorylimit import memoryLimitBytes
from ..plaintext import printable, table
from ..plugins import ENTRY_POINT_GROUP, listFactories
from .console import CommandFailed, CommandOptions, parseTimeout
from .doctorinstallation import (
    EXTRAS,
    KINDS,
    checkCache,
    checkCompiled,
    checkDropins,
    checkExtra,
    checkJava,
    checkNames,
    checkPackages,
    checkPolicies,
    checkWorkers,
    installedDropins,
    installedVersion,
    ownRequirements,
)
from .doctormachine import (
    Finding,
    Level,
    checkDirectory,
    checkDiskUse,
    checkFileSystem,
    checkMemory,
    checkOpenFiles,
    checkPort,
    checkPython,
    checkReactor,
    checkStatus,
    mayWrite,
)
from .statusport import fetch, parseStatus

_FIRST_FREE_PORT = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")

Check = tuple[str, Callable[[], Finding]]
"""The name and the function of a check."""


class DoctorOptions(BrokerOptions, CommandOptions):
    """
    After parsing, C{settings}, C{url} and C{timeoutSeconds} are keys as well.
    """

    synopsis = "[options]"
    longdesc = (
        "Looks at the machine, the installation and the directories that a broker would use, and says what is wrong "
        "and what helps.  Nothing is changed, except that Twisted brings its cache of plug-ins up to date as it does "
        "at every start.  The exit status is 1 if anything fails."
    )
    optParameters = [
        ["status", None, None, "The status port of a broker that runs, to ask how it is."],
        ["timeout", None, "10s", "How long to wait for its answer."],
    ]
    optFlags = [["json", None, "Write JSON, for programs."]]
    examples = (
        "doctor",
        "doctor --listen tcp:9092 --data /var/lib/admission --set max.connections=20000",
        "doctor --status http://127.0.0.1:9090 --json",
    )
    note = "Run it as the user that the broker runs as, and with its limits."

    def postOptions(self) -> None:
        """
        @raise UsageError: if the options themselves are wrong.
        """
        self.takeConfigured()
        self["settings"] = loadSettings(self["config"], self["set"])
        self["url"] = None if self["status"] is None else parseStatus(self["status"])
        self["timeoutSeconds"] = parseTimeout(self["timeout"])


def run(options: DoctorOptions, stdin: TextIO, stdout: TextIO) -> None:
    """
    Run the command; see L{admission.cli.Command}.  It fails if a check has failed.
    """
    report(list(examine(checksFor(options))), options["json"], stdout)


def report(findings: Sequence[tuple[str, Finding]], isForPrograms: bool, stdout: TextIO) -> None:
    """
    Write the findings.

    @param findings: with the names of the checks.
    @raise CommandFailed: if one of them is a failure.
    """
    if isForPrograms:
        rows = [
            {"check": name, "level": each.level.value, "what": each.what, "remedy": each.remedy}
            for name, each in findings
        ]
        stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        stdout.write(_described(findings))
    failed = [name for name, each in findings if each.level is Level.FAIL]
    if failed:
        raise CommandFailed(f"a broker would not run well here: {', '.join(map(printable, failed))}")


def examine(checks: Sequence[Check]) -> Iterator[tuple[str, Finding]]:
    """
    Run all checks, even if one raises.

    @return: the name and the finding of each.
    """
    for name, check in checks:
        try:
            yield name, check()
        except Exception as error:
            # A check that raises is a finding, not a traceback.
            what = f"could not be checked: {type(error).__name__}: {error}"
            yield name, Finding(Level.FAIL, what, "report this, with what is installed")


def checksFor(options: DoctorOptions) -> list[Check]:
    """
    The table of checks, in the order of the report.
    """
    settings: Settings = options["settings"]
    data = Path(options["data"]).absolute()
    requirements, dropins = ownRequirements(), installedDropins()
    url: str | None = options["url"]
    timeoutSeconds: float = options["timeoutSeconds"]
    return [
        ("Python", lambda: checkPython(sys.version_info[:3])),
        ("packages", lambda: checkPackages(requirements, installedVersion)),
        ("compiled", lambda: checkCompiled(isCompiled())),
        *((f"extra {each}", _extra(each, requirements)) for each in EXTRAS),
        ("Java", lambda: checkJava(installedVersion("pyspark") is not None, os.environ)),
        ("Spark's workers", lambda: checkWorkers(installedVersion("pyspark") is not None, os.environ)),
        ("reactor", lambda: checkReactor(_reactorName())),
        ("plug-in cache", lambda: checkCache(dropins, mayWrite)),
        ("plug-in names", lambda: checkNames(map(Path, plugins.__path__))),
        ("plug-ins", lambda: checkDropins(dropins, entry_points(group=ENTRY_POINT_GROUP))),
        ("policies", lambda: checkPolicies({option: listFactories(kind) for option, kind in KINDS.items()})),
        ("open files", lambda: _openFiles(settings)),
        ("memory", lambda: checkMemory(memoryLimitBytes(), settings)),
        ("data directory", lambda: checkDirectory(data)),
        ("file system", lambda: checkFileSystem(data, _mounts(), _space)),
        ("disk used", lambda: checkDiskUse(data)),
        *([] if url is None else [("broker", lambda: checkStatus(url, fetch, timeoutSeconds))]),
        *((f"port {each}", _port(each, url is not None)) for each in options.endpoints),
    ]


def whyNotListening(description: str) -> str | None:
    """
    Listen on an endpoint for a moment.

    @return: why that failed, or L{None}.
    """
    from twisted.internet import reactor

    reasons: list[str] = []
    try:
        endpoint: Any = serverFromString(reactor, description)  # type: ignore[no-untyped-call]
        listening = endpoint.listen(ServerFactory())
    except Exception as error:
        # Each kind of endpoint has its own way to refuse its arguments.
        return str(error) or type(error).__name__
    listening.addCallbacks(
        lambda port: port.stopListening(), lambda failure: reasons.append(str(failure.getErrorMessage()))
    )
    return reasons[0] if reasons else None


def _extra(extra: str, requirements: Sequence[str]) -> Callable[[], Finding]:
    return lambda: checkExtra(extra, requirements, installedVersion)


def _port(description: str, hasBroker: bool) -> Callable[[], Finding]:
    return lambda: checkPort(description, whyNotListening, os.geteuid() == 0, _firstFreePort(), hasBroker)


def _openFiles(settings: Settings) -> Finding:
    hardLimit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return checkOpenFiles(settings.maxConnections, settings.logMaxOpenFiles, hardLimit)


def _space(path: Path) -> tuple[int, int]:
    usage = shutil.disk_usage(path)
    return usage.total, usage.free


def _firstFreePort() -> int:
    return int(_FIRST_FREE_PORT.read_text()) if _FIRST_FREE_PORT.exists() else 1024


def _mounts() -> str:
    path = Path("/proc/self/mounts")
    return path.read_text(errors="surrogateescape") if path.exists() else ""


def _reactorName() -> str:
    from twisted.internet import reactor

    return type(reactor).__name__


def _described(findings: Sequence[tuple[str, Finding]]) -> str:
    rows: list[tuple[str, str, str]] = []
    for name, each in findings:
        rows.append((each.level.value, name, each.what))
        if each.remedy:
            rows.append(("", "", f"-> {each.remedy}"))
    counts = Counter(each.level for _, each in findings)
    return table(rows) + ", ".join(f"{counts[level]} {level.value}" for level in Level if counts[level]) + "\n"

# -*- test-case-name: tests.unit.commands.kafka.test_doctorcommand -*-
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
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TextIO

from twisted import plugins
from twisted.internet.protocol import ServerFactory
from twisted.python.usage import Options

from admission._version import isCompiled
from admission.kafka.broker.log.datadirectory import lockHolder
from admission.kafka.brokeroptions import BrokerOptions
from admission.kafka.brokersettings import Settings, loadSettings
from admission.kafka.serversettings import ServerSettings
from admission.memorylimit import memoryLimitBytes
from admission.plaintext import printable, table
from admission.plugins import ENTRY_POINT_GROUP, listFactories

from ..console import CommandFailed, CommandOptions, parseTimeout
from ..statusport import fetch, parseStatus
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
    listeningPorts,
    mayWrite,
    portIn,
)

_FIRST_FREE_PORT = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")

Check = tuple[str, Callable[[], Finding]]
"""The name and the function of a check."""


class DoctorOptions(BrokerOptions, CommandOptions):
    """
    What can be asked where a package is missing that the broker needs.  After parsing, C{settings}, C{url} and
    C{timeoutSeconds} are keys as well.
    """

    synopsis = "[options]"
    longdesc = "A package is missing, and the broker's options with it: only some things can be looked at."
    optParameters = [
        ["status", None, None, "The status port of a broker that runs, to ask how it is."],
        ["timeout", None, "10s", "How long to wait for its answer."],
    ]
    optFlags = [["json", None, "Write JSON, for programs."]]

    def postOptions(self) -> None:
        """
        @raise UsageError: if the options themselves are wrong.
        """
        self.takeConfigured()
        self["settings"] = loadSettings(self["config"], self["set"])
        self["url"] = parseStatus(self["status"]) if "://" in (self["status"] or "") else None
        self["timeoutSeconds"] = parseTimeout(self["timeout"])


def brokerOptions() -> Options:
    """
    The options of C{admission doctor}: those of the broker, if that can be imported.
    """
    try:
        from .doctorservers import BrokerDoctorOptions
    except ImportError:
        return DoctorOptions()
    return BrokerDoctorOptions()


def gatewayOptions() -> Options:
    """
    The options of C{admission doctor-gateway}, likewise.
    """
    try:
        from .doctorservers import GatewayDoctorOptions
    except ImportError:
        return DoctorOptions()
    return GatewayDoctorOptions()


def run(options: Options, stdin: TextIO, stdout: TextIO) -> None:
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
        raise CommandFailed(f"a server would not run well here: {', '.join(map(printable, failed))}")


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


def checksFor(options: Any) -> list[Check]:
    """
    The table of checks, in the order of the report.

    @param options: from L{brokerOptions} or L{gatewayOptions}.
    """
    settings: ServerSettings = options["settings"]
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
        *([("open files", lambda: _openFiles(settings))] if isinstance(settings, Settings) else []),
        ("memory", lambda: checkMemory(memoryLimitBytes(), settings)),
        ("data directory", lambda: checkDirectory(data)),
        ("file system", lambda: checkFileSystem(data, _mounts(), _space)),
        ("disk used", lambda: checkDiskUse(data)),
        *([] if url is None else [("broker", lambda: checkStatus(url, fetch, timeoutSeconds))]),
        *([] if isinstance(options, DoctorOptions) else _serverChecks(options, data, url is not None)),
    ]


def _serverChecks(options: Any, data: Path, hasServer: bool) -> list[Check]:
    """
    @param hasServer: whether a server is asked that runs.
    """
    from .doctorservers import checkExporter, checkService

    profileDirectory = options.profileDirectory
    listeners = options.listeners
    reasons = cache(lambda: whyNotListening(listeners))

    def port(index: int) -> Finding:
        description, reason = listeners[index].description, reasons()[index]
        number, holder = portIn(description), lockHolder(str(data))
        theirs = listeningPorts(holder.rpartition(" ")[2])
        by = f"{holder}, which uses the data directory" if number in theirs else "a server runs" if hasServer else ""
        return checkPort(description, reason, os.geteuid() == 0, _firstFreePort(), by)

    return [
        ("server", lambda: checkService(options)),
        *((f"export {name}", partial(checkExporter, exporter)) for name, exporter in options.exporters()),
        *(
            []
            if profileDirectory is None
            else [("memory profile", lambda: checkDirectory(profileDirectory, "--profile-memory"))]
        ),
        *((f"port {listener.description}", partial(port, index)) for index, listener in enumerate(listeners)),
    ]


def whyNotListening(listeners: Sequence[Any]) -> list[str | None]:
    """
    Listen for a moment, on all at once as a server does.

    @param listeners: of C{--listen} and C{--status}, with an endpoint each.
    @return: for each why that failed, or L{None}.
    """
    ports: list[Any] = []
    reasons: list[str | None] = []
    for each in listeners:
        failures: list[str] = []
        each.endpoint.listen(ServerFactory()).addCallbacks(
            ports.append, lambda failure, failures=failures: failures.append(str(failure.getErrorMessage()))
        )
        reasons.append(failures[0] if failures else None)
    for port in ports:
        port.stopListening()
    return reasons


def _extra(extra: str, requirements: Sequence[str]) -> Callable[[], Finding]:
    return lambda: checkExtra(extra, requirements, installedVersion)


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

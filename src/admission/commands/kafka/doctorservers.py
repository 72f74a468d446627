# -*- test-case-name: tests.system.test_doctor -*-
"""
The doctor's options for a broker and for a gateway: those of the server itself, which the server's own code reads, so
that all they name is built as it is at a start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from twisted.internet.task import Clock
from twisted.python.usage import Options

from admission.interfaces import ITryOut
from admission.kafka.gateway.gatewayoptions import GatewayOptions
from admission.kafka.gateway.gatewayservice import makeService as makeGateway
from admission.kafka.kafkaservice import KafkaService
from admission.kafka.options import Listener, Options as BrokerOptions, buildExporters
from admission.kafka.service import makeService as makeBroker

from ..console import CommandOptions, parseTimeout
from ..statusport import parseStatus
from .doctormachine import Finding, Level

LONG_DESCRIPTION = (
    "Looks at the machine, the installation and the directories that a server would use, builds all that its options "
    "and its file of properties name, and says what is wrong and what helps.  Nothing is changed, except that Twisted "
    "brings its cache of plug-ins up to date as it does at every start.  The exit status is 1 if anything fails."
)
_NOTE = """
--status also takes the URL of the status port of a server that runs, to ask how it is.
Run it as the user that the server runs as, and with its limits.
"""


class ServerDoctorOptions(Options):
    """
    What the doctor takes besides the options of a server.  After parsing, C{url} and C{timeoutSeconds} are keys as
    well.
    """

    longdesc = LONG_DESCRIPTION
    optParameters = [
        ["timeout", None, "10s", "How long to wait for the answer of a status port."],
    ]
    optFlags = [["json", None, "Write JSON, for programs."]]

    opt_version = CommandOptions.opt_version
    parseArgs = CommandOptions.parseArgs

    def postOptions(self) -> None:
        """
        @raise UsageError: if the server would not start with these options.
        """
        self["timeoutSeconds"] = parseTimeout(self["timeout"])
        self["url"] = None
        if "://" in (self["status"] or ""):
            self["url"] = parseStatus(self["status"])
            self["status"] = None
        # How twistd logs is nothing that this command could say.
        parent, self.parent = self.parent, None
        try:
            super().postOptions()  # type: ignore[no-untyped-call]
        finally:
            self.parent = parent

    def makeService(self) -> KafkaService:
        """
        Make what twistd would run.
        """
        raise NotImplementedError

    @property
    def listeners(self) -> list[Listener]:
        """
        Where the server would listen, for clients and for its status.
        """
        status: Listener | None = self["statusListener"]
        return [*self["listeners"], *([] if status is None else [status])]

    def exporters(self) -> list[tuple[str, Any]]:
        """
        A description and an exporter for each C{--export}.
        """
        return [(each, buildExporters([each], Clock())[0][1]) for each in self["export"]]

    @property
    def profileDirectory(self) -> Path | None:
        """
        Where reports of its memory would go.
        """
        profile = self["memoryProfile"]
        return None if profile is None else Path(profile.directory).absolute()


class BrokerDoctorOptions(ServerDoctorOptions, BrokerOptions):
    """
    For C{admission doctor}.
    """

    longdesc = LONG_DESCRIPTION
    examples: ClassVar[str] = f"""
Examples:
  admission doctor
  admission doctor --listen tcp:9092 --data /var/lib/admission --set max.connections=20000
  admission doctor --status http://127.0.0.1:9090 --json
{_NOTE}"""

    def makeService(self) -> KafkaService:
        return makeBroker(self)


class GatewayDoctorOptions(ServerDoctorOptions, GatewayOptions):
    """
    For C{admission doctor-gateway}.
    """

    longdesc = LONG_DESCRIPTION
    examples: ClassVar[str] = f"""
Examples:
  admission doctor-gateway --upstream k1:9092,k2:9092 --listen tcp:9092
{_NOTE}"""

    def makeService(self) -> KafkaService:
        return makeGateway(self)


def checkService(options: ServerDoctorOptions) -> Finding:
    """
    Check that what twistd would run can be made.
    """
    options.makeService()
    return Finding(Level.OK, "all that the options and the file of properties name can be built")


def checkExporter(exporter: Any) -> Finding:
    """
    Check that an exporter can start, if it can tell.
    """
    if not ITryOut.providedBy(exporter):
        return Finding(Level.OK, "can be built; whether it can start shows at the start")
    try:
        ITryOut(exporter).tryOut()
    except OSError as error:
        return Finding(Level.FAIL, f"cannot be recorded to: {error}", "--export says where to; let it be writable")
    return Finding(Level.OK, "can be recorded to")

# -*- test-case-name: tests.system.test_doctor -*-
"""
The doctor's options for a broker and for a gateway: those of the server itself, which the server's own code reads, so
that all they name is built as it is at a start.  The servers of a gateway's cluster are asked.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from attrs import frozen
from twisted.application.service import IService
from twisted.internet.defer import Deferred, gatherResults, inlineCallbacks
from twisted.internet.task import Clock
from twisted.python.usage import Options

from admission.clock import MonotonicClock
from admission.interfaces import ITryOut
from admission.kafka.broker.brokeroptions import Options as BrokerOptions
from admission.kafka.broker.service import makeService as makeBroker
from admission.kafka.client.clientconnection import ConnectionSettings, connectTo
from admission.kafka.client.errors import AuthenticationFailed, ClientError
from admission.kafka.gateway.discovery import LARGEST_ANSWER_BYTES, MAX_NODES
from admission.kafka.gateway.gatewayoptions import GatewayOptions
from admission.kafka.gateway.gatewayservice import makeService as makeGateway
from admission.kafka.serving.serveroptions import Listener, buildExporters

from ..console import CommandOptions, parseTimeout
from ..statusport import parseStatus
from .brokerconnection import runReactorFor
from .doctormachine import Finding, Level

LONG_DESCRIPTION = (
    "Looks at the machine, the installation and the directories that a server would use, builds all that its options "
    "and its file of properties name, and says what is wrong and what helps.  Nothing is changed, except that Twisted "
    "brings its cache of plug-ins up to date as it does at every start.  The exit status is 1 if anything fails."
)
_SHOWN_NODES = 10
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
        ["timeout", None, "10s", "How long to wait for a server that is asked."],
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

    def makeService(self) -> IService:
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

    def makeService(self) -> IService:
        return makeBroker(self)


class GatewayDoctorOptions(ServerDoctorOptions, GatewayOptions):
    """
    For C{admission doctor-gateway}.
    """

    longdesc = f"{LONG_DESCRIPTION}  The servers of --upstream are asked which nodes the cluster has."
    examples: ClassVar[str] = f"""
Examples:
  admission doctor-gateway --upstream k1:9092,k2:9092 --listen tcp:9092
{_NOTE}"""

    def makeService(self) -> IService:
        return makeGateway(self)


@frozen
class ServerAnswer:
    """
    What a server of a cluster says.

    @ivar isReached: whether it speaks with us at all, and knows the login if there is one.
    @ivar nodeIds: of the nodes that it knows.
    @ivar error: why it does not say that.
    """

    isReached: bool
    nodeIds: Sequence[int] = ()
    error: ClientError | None = None


def askCluster(options: GatewayDoctorOptions) -> Sequence[ServerAnswer]:
    """
    Ask each server of C{--upstream} which nodes there are.  It runs the reactor, so it can be called only once in a
    process.
    """
    timeoutSeconds: float = options["timeoutSeconds"]
    settings = ConnectionSettings(
        credentials=options["credentials"],
        requestTimeoutSeconds=timeoutSeconds,
        connectTimeoutSeconds=timeoutSeconds,
        maxResponseBytes=LARGEST_ANSWER_BYTES,
        maxElements=MAX_NODES,
    )

    @inlineCallbacks
    def asked(reactor: Any, host: str, port: int) -> Generator[Deferred[Any], Any, ServerAnswer]:
        connection = None
        try:
            endpoint = options["upstream"].endpoints(reactor, timeoutSeconds)(host, port)
            connection = yield connectTo(endpoint, MonotonicClock(reactor), settings, f"{host}:{port}")
            answer = yield connection.request("Metadata", {"topics": []})
        except ClientError as error:
            return ServerAnswer(connection is not None, error=error)
        finally:
            if connection is not None:
                yield connection.close()
        return ServerAnswer(True, sorted(each.node_id for each in answer.brokers))

    def allAsked(reactor: Any) -> Deferred[Any]:
        return gatherResults([asked(reactor, *each) for each in options["upstream"].addresses])

    answers: Sequence[ServerAnswer] = runReactorFor(allAsked)
    return answers


def checkCluster(answer: ServerAnswer, lowest: int, highest: int, isAnotherReached: bool) -> Finding:
    """
    Check what a server of the cluster says.

    @param lowest: the lowest id of a node that has a port here.
    @param highest: the highest.
    @param isAnotherReached: whether another server has answered.
    """
    if isinstance(answer.error, AuthenticationFailed):
        return Finding(Level.FAIL, str(answer.error), "--upstream-login says how to log in")
    if not answer.isReached:
        remedy = "start it, or name others with --upstream: HOST:PORT, or tls:HOST:PORT where they want TLS"
        return Finding(Level.WARN if isAnotherReached else Level.FAIL, str(answer.error), remedy)
    if answer.error is not None:
        remedy = "give --upstream-login, if it wants a login; without it nodes are learnt when clients ask"
        return Finding(Level.WARN, f"answers, and does not say which nodes there are: {answer.error}", remedy)
    homeless = [each for each in answer.nodeIds if not lowest <= each <= highest]
    if homeless:
        what = f"has nodes without a port at this gateway: {_listed(homeless)}"
        return Finding(Level.FAIL, what, f"--node-ids is {lowest}-{highest}; let it have all of them")
    return Finding(Level.OK, f"answers; the nodes of the cluster are {_listed(answer.nodeIds)}")


def _listed(nodeIds: Sequence[int]) -> str:
    more = len(nodeIds) - _SHOWN_NODES
    return ", ".join(map(str, nodeIds[:_SHOWN_NODES])) + (f" and {more} more" if more > 0 else "")


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

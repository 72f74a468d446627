# -*- test-case-name: tests.unit.kafka.gateway.test_gatewayoptions -*-
"""
The options of C{twistd admission-gateway}.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from attrs import evolve, frozen
from twisted.internet.endpoints import HostnameEndpoint, clientFromString
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.ssl import Certificate
from twisted.internet.task import Clock
from twisted.python.usage import UsageError

from admission.boundedfile import readBounded
from admission.clock import wallSeconds
from admission.completions import DIRECTORIES, completing, oneOf
from admission.interfaces import IUsageExchangeFactory, PolicyContext
from admission.plugins import PolicyKind
from admission.shares.limitsharing import MAX_SERVERS

from ..client.sasl import Credentials
from ..serving.kafkarequest import Address
from ..serving.listenoptions import parseHostPort
from ..serving.serveroptions import Listener, ServerOptions, buildChosen, checkFiles, endpointOf
from .gateway import EndpointMaker
from .gatewaysettings import GatewaySettings, loadGatewaySettings
from .nodes import NodePorts
from .usagetopic import ClusterAccess

_EXAMPLES = """
Clients begin at the port of --listen, and reach the nodes at the ports behind it, in the order of their ids: with
--node-ids 0-15, node N at that port + 1 + N.

Examples:
  twistd -n admission-gateway --upstream k1:9092,k2:9092 --listen tcp:9092
  twistd -n admission-gateway --upstream k1:9092 --quota producer-ids:rate=10 --status tcp:9090:interface=127.0.0.1
  twistd -n admission-gateway --upstream tls:k1.example:9093 --listen ssl:9093:privateKey=key.pem:certKey=cert.pem
  twistd -n admission-gateway --upstream tls:k1.example:9093:trustRoots=authorities --advertise kafka.example:9092
"""

_NODE_IDS = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_PORT = re.compile(r"(?P<before>[a-z0-9]+:(?:port=)?)(?P<port>[0-9]{1,5})(?P<after>(?::.*)?)", re.DOTALL)
_SHARE = re.compile(r"1/([1-9][0-9]{0,3})")
_MOST_NODES = 1000
MAX_PROCESSES = 64
_OURS, _THEIRS = "gateway", "upstream"
_TRUST_ROOTS = re.compile(r":trustRoots=((?:\\.|[^:\\])*)", re.DOTALL)
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


@frozen
class Upstream:
    """
    Where the cluster is.

    @ivar addresses: the servers to begin with.
    @ivar options: how to connect to any of its nodes: the options of an endpoint of TLS, with the colon before them;
        L{None} for plain TCP.
    """

    addresses: Sequence[Address]
    options: str | None = None

    def endpoints(self, reactor: Any, connectSeconds: float) -> EndpointMaker:
        """
        How to connect to a node.
        """

        def endpointFor(host: str, port: int) -> IStreamClientEndpoint:
            if self.options is None:
                return HostnameEndpoint(reactor, host.encode("idna"), port, timeout=connectSeconds)
            escaped = host.replace("\\", "\\\\").replace(":", "\\:")
            description = f"tls:{escaped}:{port}{self.options}"
            endpoint: IStreamClientEndpoint = clientFromString(reactor, description)  # type: ignore[no-untyped-call]
            return endpoint

        return endpointFor

    def access(self, reactor: Any, connectSeconds: float, credentials: Credentials | None) -> ClusterAccess:
        """
        The way to the cluster for plug-ins, with the login that they need.
        """
        return ClusterAccess(self.endpoints(reactor, connectSeconds), self.addresses, credentials)


@frozen
class GatewayListener(Listener):
    """
    One port of the gateway.

    @ivar ports: the ports that it belongs to: one to begin with, and one for each node.
    @ivar nodeId: the node that it leads to; L{None} for the port where clients begin.
    """

    ports: NodePorts
    nodeId: int | None = None


class GatewayOptions(ServerOptions):
    """
    After parsing, C{upstream} is an L{Upstream}, and C{listeners} are L{GatewayListener}s.
    """

    longdesc = (
        "A gateway in front of a Kafka cluster that never holds more of its clients' requests in memory than it was "
        "told to, and applies quotas to them before the cluster sees them."
    )
    examples: ClassVar[str] = _EXAMPLES
    policyKinds: ClassVar[Sequence[PolicyKind]] = (
        *ServerOptions.policyKinds,
        PolicyKind("shared-limits", IUsageExchangeFactory),
    )

    optParameters = [
        ["data", "d", "gateway-data", "The directory of limits that are set at run time; made if it is not there."],
        [
            "limits",
            None,
            "gateway",
            "The limits that clients see and set: the gateway's, or those of the cluster (upstream).",
        ],
        [
            "upstream-login",
            None,
            None,
            "MECHANISM:USER:FILE: how to log in when asking which nodes there are; the file has the password.",
        ],
        ["share", None, "1/1", "1/N: how much of every limit to enforce, where N gateways share the clients."],
        [
            "gateways",
            None,
            "1",
            "How many gateways share limits (--shared-limits), at least: each enforces that part of them as long as it "
            "does not hear from the others.",
        ],
        [
            "processes",
            None,
            "1",
            "How many processes serve the clients, each on a core of its own with an equal part of the pool and of the "
            "connections; limits hold for all of them together.",
        ],
        ["node-ids", None, "0-15", "LOWEST-HIGHEST: the ids that nodes of the cluster may have."],
    ]
    compData = completing(options={"data": DIRECTORIES, "limits": oneOf((_OURS, _THEIRS))})

    optFlags = [
        ["require-login", None, "Let clients do nothing before a node of the cluster has confirmed who they are."],
        [
            "hidden-users",
            None,
            "Let clients log in by mechanisms that do not show who they are; they count as ANONYMOUS.",
        ],
    ]

    def __init__(self) -> None:
        super().__init__()
        self["upstream"] = []

    @property
    def sharesLimits(self) -> bool:
        return self["shared-limits"] is not None or self["processes"] > 1

    @property
    def processes(self) -> int:
        return int(self["processes"])

    def loadSettings(self, path: str | None, assignments: Sequence[str], isPoolChosen: bool) -> GatewaySettings:
        return loadGatewaySettings(path, assignments, isPoolChosen)

    def opt_upstream(self, servers: str) -> None:
        self["upstream"].append(servers)

    # As twistd shows it.
    opt_upstream.__doc__ = (
        "HOST:PORT of one or more servers of the cluster, separated by commas; or tls:HOST:PORT and further options of "
        "Twisted's endpoint, such as trustRoots=DIRECTORY.  May come several times."
    )

    def postOptions(self) -> None:
        self["upstream"] = parseUpstream(self["upstream"])
        _checkEndpoint(self["upstream"])
        if self["limits"] not in (_OURS, _THEIRS):
            raise UsageError(f"--limits {self['limits']}: it is {_OURS} or {_THEIRS}")
        self["share"] = parseShare(self["share"])
        self["gateways"] = _parseCount("gateways", self["gateways"], MAX_SERVERS)
        self["processes"] = _parseCount("processes", self["processes"], MAX_PROCESSES)
        isTold = self["shared-limits"] is not None
        if isTold and self["share"] != 1.0:
            raise UsageError("--share and --shared-limits: with the second, gateways need no fixed parts; keep one")
        if self["processes"] > 1 and self["share"] != 1.0:
            raise UsageError(
                "--share and --processes: the processes share limits, and so do gateways, without fixed "
                "parts, with --shared-limits; use that"
            )
        if isTold and self["limits"] == _THEIRS:
            raise UsageError("--shared-limits is for the gateway's own limits, and --limits upstream has none")
        if self["gateways"] > 1 and not isTold:
            raise UsageError("--gateways goes with --shared-limits; for fixed parts without it, --share 1/N")
        login: str | None = self["upstream-login"]
        self["credentials"] = None if login is None else parseLogin(login)
        self["hasLimits"] = self["limits"] == _OURS
        lowest, highest = parseNodeIds(self["node-ids"])
        super().postOptions()
        listeners: list[GatewayListener] = []
        for listener in self["listeners"]:
            listeners += _withNodes(listener, lowest, highest)
        if isTold:
            # Made again when the gateway starts, which is when it may connect.
            context = PolicyContext(Clock(), wallSeconds, upstream=self["upstream"].access(None, 1.0, None))
            buildChosen("shared-limits", IUsageExchangeFactory, self["shared-limits"], context)
        self["listeners"] = listeners
        self["nodeIds"] = lowest, highest


def parseUpstream(texts: Sequence[str]) -> Upstream:
    """
    Read the values of C{--upstream}.

    @raise UsageError: if they make no sense.
    """
    if not texts:
        raise UsageError("--upstream is needed: HOST:PORT of one or more servers of the cluster, as in k1:9092,k2:9092")
    found: list[Upstream] = []
    for text in texts:
        scheme, _, rest = text.partition(":")
        if scheme == "tls":
            host, port, options = _tlsServer(text, rest)
            found.append(Upstream([Address(*parseHostPort("--upstream", f"{host}:{port}"))], options))
        else:
            found.append(Upstream([Address(*parseHostPort("--upstream", each.strip())) for each in text.split(",")]))
    if len({each.options for each in found}) > 1:
        raise UsageError("--upstream: all servers of a cluster are reached in the same way, by TCP or by the same tls:")
    return evolve(found[0], addresses=[address for each in found for address in each.addresses])


def _checkEndpoint(upstream: Upstream) -> None:
    from twisted.internet import reactor

    _checkTrustRoots(upstream.options or "")
    endpointFor = upstream.endpoints(reactor, 1.0)
    for host, port in upstream.addresses:
        try:
            checkFiles(f"tls{upstream.options or ''}")
            endpointFor(host, port)
        except Exception as error:
            # Each kind of endpoint has its own way to refuse its arguments.
            place, remedy = f"{host}:{port}", "write a host name or an address"
            if upstream.options is not None:
                place = f"tls:{place}{upstream.options}"
                remedy = "its options are trustRoots=DIRECTORY, certificate=FILE, privateKey=FILE"
            raise UsageError(f"--upstream {place}: {str(error) or type(error).__name__}; {remedy}") from error


def _checkTrustRoots(options: str) -> None:
    """
    Check the directory of authorities.  Twisted does not say which path cannot be read, and takes a directory without
    certificates for authorities that have signed nothing.
    """
    for escaped in _TRUST_ROOTS.findall(options):
        path = re.sub(r"\\(.)", r"\1", escaped)
        wrong = _wrongRoots(path or os.curdir)
        if wrong:
            raise UsageError(
                f"--upstream: trustRoots={path} {wrong}; name a directory with the certificates of authorities in "
                "files that end in .pem"
            )


def _wrongRoots(path: str) -> str:
    name = ""
    try:
        names = [each for each in sorted(os.listdir(path)) if each.lower().endswith(".pem")]
        for name in names:
            Certificate.loadPEM(readBounded(os.path.join(path, name)))
    except OSError as error:
        return f"cannot be read: {name and f'{name}: '}{error.strerror}"
    except Exception:
        # OpenSSL's own errors are lists of tuples.
        return f"has {name}, which is no certificate"
    return "" if names else "has no file that ends in .pem"


def parseLogin(text: str) -> Credentials:
    """
    Read the value of C{--upstream-login}, and the password.

    @raise UsageError: if it makes no sense, or the file cannot be read.
    """
    parts = text.split(":", 2)
    if len(parts) != 3 or not all(parts):
        raise UsageError(f"--upstream-login {text}: write MECHANISM:USER:FILE, as in SCRAM-SHA-256:gateway:password")
    mechanism, username, path = parts
    try:
        password = readBounded(path).decode("utf-8").rstrip("\r\n")
        return Credentials(mechanism, username, password)
    except OSError as error:
        raise UsageError(f"--upstream-login {text}: {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"--upstream-login {text}: {error}") from error


def _parseCount(option: str, text: str, most: int) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= most):
        raise UsageError(f"--{option} {text}: write how many there are, 1 to {most}")
    return int(text)


def parseShare(text: str) -> float:
    """
    Read the value of C{--share}.

    @raise UsageError: if it makes no sense.
    """
    match = _SHARE.fullmatch(text)
    if match is None:
        raise UsageError(f"--share {text}: write 1/N, as in 1/2 where two gateways share the clients")
    return 1 / int(match[1])


def parseNodeIds(text: str) -> tuple[int, int]:
    """
    Read the value of C{--node-ids}.

    @raise UsageError: if it makes no sense.
    """
    match = _NODE_IDS.fullmatch(text)
    if match is None or not 0 <= int(match[2]) - int(match[1]) < _MOST_NODES:
        raise UsageError(f"--node-ids {text}: write LOWEST-HIGHEST, as in 0-15, for up to {_MOST_NODES} nodes")
    return int(match[1]), int(match[2])


def ephemeralPorts() -> tuple[int, int] | None:
    """
    The ports that the system gives to outgoing connections; L{None} if it does not say.
    """
    try:
        lowest, highest = _EPHEMERAL_PORTS.read_text("ascii").split()
        return int(lowest), int(highest)
    except (OSError, ValueError):
        return None


def whyPortsMayBeTaken(listeners: Sequence[Listener]) -> str | None:
    """
    A warning, if some of the ports are among those of outgoing connections.
    """
    found = ephemeralPorts()
    if found is None:
        return None
    for listener in listeners:
        assert isinstance(listener, GatewayListener)
        ports = listener.ports
        last = ports.port + ports.offsetOf(ports.highest)
        if listener.nodeId is None and ports.port <= found[1] and last >= found[0]:
            return (
                f"some of the ports {ports.port} to {last} are among those that the system gives to outgoing "
                f"connections ({found[0]} to {found[1]}): a start may find them in use; choose others (--listen, "
                "--node-ids), or reserve them (net.ipv4.ip_local_reserved_ports)"
            )
    return None


def _tlsServer(text: str, rest: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"((?:\\.|[^:\\])+):([0-9]{1,5})((?::.*)?)", rest, re.DOTALL)
    if match is None:
        raise UsageError(f"--upstream {text}: write tls:HOST:PORT, as in tls:k1.example:9093")
    host = re.sub(r"\\(.)", r"\1", match[1])
    return (f"[{host}]" if ":" in host else host), match[2], match[3]


def _withNodes(listener: Listener, lowest: int, highest: int) -> list[GatewayListener]:
    """
    Listeners at the port where clients begin, and at one port for each node.
    """
    match = _PORT.fullmatch(listener.description)
    if match is None or not int(match["port"]) > 0:
        raise UsageError(
            f"--listen {listener.description}: a gateway has a port for each node behind this one, so write the number "
            "of a port, as in tcp:9092:interface=127.0.0.1"
        )
    ports = NodePorts(int(match["port"]), lowest, highest, listener.advertised)
    last = ports.port + ports.offsetOf(highest)
    if last > 65535:
        raise UsageError(f"--listen {listener.description}: nodes up to {highest} would have ports up to {last}")

    def at(nodeId: int | None) -> GatewayListener:
        port = ports.port if nodeId is None else ports.port + ports.offsetOf(nodeId)
        description = f"{match['before']}{port}{match['after']}"
        return GatewayListener(description, endpointOf("listen", description), listener.advertised, ports, nodeId)

    return [at(None), *map(at, range(lowest, highest + 1))]

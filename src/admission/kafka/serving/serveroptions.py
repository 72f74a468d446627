# -*- test-case-name: tests.unit.kafka.serving.test_serveroptions -*-
"""
The options that broker and gateway have in common, and what is built of them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any, ClassVar

from attrs import field, frozen
from twisted.internet.endpoints import serverFromString
from twisted.internet.interfaces import IStreamServerEndpoint
from twisted.internet.task import Clock
from twisted.python.usage import UsageError

from admission.boundedfile import readBounded
from admission.clock import wallSeconds
from admission.control import AdmissionControl
from admission.gate.gate import DEFAULT_ORDER
from admission.interfaces import (
    DEFAULT,
    IMemoryPool,
    IMemoryPoolFactory,
    IMetricsExporter,
    IMetricsExporterFactory,
    IPolicyFactory,
    IQuotaPolicy,
    IQuotaPolicyFactory,
    IWaitOrder,
    IWaitOrderFactory,
    PolicyContext,
    QuotaEntity,
)
from admission.plaintext import escapeUnencodable
from admission.plugins import PolicyError, PolicyKind, PolicyOptionsMixin, buildPolicy, parseDescription
from admission.units import formatBytes, formatSeconds, parseBytes

from .kafkarequest import Address
from .listenoptions import ListenOptions, parseHostPort
from .logformat import logObserverMaker
from .memoryuse import parseProfile
from .quotalimits import KAFKA_LIMITS
from .reload import Configuration
from .serversettings import LARGEST_REQUEST, POOL, ServerSettings

_PRODUCER_IDS = "producer-ids"
_SHARED_POLICIES = ("client-bytes", _PRODUCER_IDS)
_QUOTAS = ("client-bytes", "request-time", _PRODUCER_IDS)

_SMALLEST_BYTES = 4 << 10
"""
The least that the largest request may be: what a client sends before it produces, logins and the topics of a consumer
included, fits in that.
"""


_TLS_FILE = re.compile(r":(?:privateKey|certKey|extraCertChain|dhParameters|certificate)=((?:\\.|[^:\\])*)", re.DOTALL)
"""The arguments of Twisted's endpoints that name files."""

_TLS_PREFIXES = frozenset(("ssl", "mtls"))

_COLON = re.compile(r"(?<!\\):")

_PORT = re.compile(r"(?::|:port=)([0-9]+)(?=:|$)")


@frozen
class Listener:
    """
    Where to listen, the address to tell clients, and who may log in.

    @ivar description: the endpoint as it was given.
    @ivar advertised: L{None} for the address that a client has reached.
    @ivar checkers: without any, clients need not log in.
    """

    description: str
    endpoint: IStreamServerEndpoint
    advertised: Address | None
    checkers: Sequence[Any] = field(kw_only=True, default=())

    @property
    def asksForCertificates(self) -> bool:
        """
        Whether its clients may have certificates, whatever is put before the endpoint.
        """
        return "mtls" in self.description.split(":")


def portOf(description: str) -> str | None:
    """
    The port that an endpoint listens on, whatever is put before it; L{None} if it has none, as a socket in a directory.
    """
    match = _PORT.search(description)
    return None if match is None else match[1]


class ServerOptions(ListenOptions, PolicyOptionsMixin):
    """
    After parsing, C{settings}, C{listeners}, C{statusListener},
    C{memoryProfile} and C{makeLogObserver} are keys as well.

    @cvar examples: what C{--help} ends with.
    @ivar arguments: what was parsed.
    @ivar directory: where that was, for relative paths.
    """

    policyKinds: ClassVar[Sequence[PolicyKind]] = (
        PolicyKind("pool", IMemoryPoolFactory),
        PolicyKind("order", IWaitOrderFactory),
        PolicyKind("quota", IQuotaPolicyFactory, repeatable=True),
        PolicyKind("export", IMetricsExporterFactory, repeatable=True),
    )
    examples: ClassVar[str] = ""
    configured: ClassVar[Sequence[str]] = (
        "listen",
        "advertise",
        "status",
        "pool",
        "order",
        "quota",
        "export",
        "log-format",
    )
    isServer: ClassVar[bool] = True

    synopsis = "[options]"

    optParameters = [
        ["status", None, None, "An endpoint that tells over HTTP how the server is; off unless given."],
        ["profile-memory", None, None, "INTERVAL[:DIR]: how often to write where the memory is; off unless given."],
        ["log-format", None, None, "The lines of the log: text, or json for programs.  [default: text]"],
    ]

    _isMistaken = False
    _configPath: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self["advertise"] = []

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        self.arguments = [*(sys.argv[1:] if options is None else options)]
        self.directory = os.getcwd()
        # What is written is help, what twistd says of a mistake, and the log of a server that is no daemon.
        escapeUnencodable(sys.stdout, sys.stderr)
        try:
            super().parseOptions(options)  # type: ignore[no-untyped-call]
        except UsageError:
            self._isMistaken = True
            raise

    def opt_advertise(self, address: str) -> None:
        """HOST:PORT told to clients, one for each --listen. [default: what the client has reached]"""
        self["advertise"].append(Address(*parseHostPort("--advertise", address)))

    def loadSettings(self, path: str | None, assignments: Sequence[str], isPoolChosen: bool) -> ServerSettings:
        """
        What properties say; see L{load}.
        """
        raise NotImplementedError

    @property
    def processes(self) -> int:
        """
        How many processes serve together, each with an equal part of the pool.
        """
        return 1

    @property
    def sharesLimits(self) -> bool:
        """
        Whether limits are enforced together with other servers.
        """
        return False

    def read(self) -> Configuration[Any] | None:
        """
        Read the file of properties, as it is now; what is on the command line stays.

        @return: L{None} if there is no such file.
        @raise UsageError: if there is a mistake in it.
        """
        if self._configPath is None:
            return None
        found: dict[str, list[str]] = {}
        for _, text, given in self.optionsIn(self._configPath):
            found.setdefault(given.name, []).append(text)
        quotas = self["quota"] if "quota" in self.chosen else found.pop("quota", [])
        settings = self.loadSettings(self._configPath, self["set"], self["pool"] is not None)
        return Configuration(self._configPath, settings, quotas, found)

    def getUsage(self, width: int | None = None) -> str:
        if self._isMistaken:
            # Twisted shows this before it says what is wrong, and nobody would find that under all options.
            plugin = "admission" if self.parent is None else self.parent.subCommand
            return f"For help: twistd {plugin} --help\n"
        # Appended here, so that examples keep their lines.
        usage: str = super().getUsage(width)
        return usage + self.examples

    def postOptions(self) -> None:
        # Everything is checked here, where a mistake is still a usage error.
        if self["config"] is not None:
            # A daemon may go to another directory.
            self._configPath = os.path.abspath(self["config"])
        self.takeConfigured()
        self["settings"] = self.loadSettings(self["config"], self["set"], self["pool"] is not None)
        descriptions = self.endpoints
        advertised: Sequence[Address | None] = self["advertise"] or [None] * len(descriptions)
        if len(advertised) != len(descriptions):
            raise UsageError(
                f"--advertise is given {len(advertised)} times and --listen {len(descriptions)} times; "
                "give one --advertise for each --listen, in the same order, or none"
            )
        self["listeners"] = [
            Listener(description, endpointOf("listen", description), address)
            for description, address in zip(descriptions, advertised, strict=True)
        ]
        if self["settings"].trustedProxies and any(each.startswith("haproxy:") for each in descriptions):
            raise UsageError("--listen haproxy: believes everybody, and trusted.proxies a few; keep one of them")
        status: str | None = self["status"]
        self["statusListener"] = None if status is None else Listener(status, endpointOf("status", status), None)
        profile: str | None = self["profile-memory"]
        self["memoryProfile"] = None if profile is None else parseProfile(profile)
        self["makeLogObserver"] = logObserverMaker(self.parent, self["log-format"])
        # Built again when the broker starts, which may be in another process.
        clock = Clock()
        buildPool(self["settings"], self["pool"], clock, self.processes)
        buildOrder(self["order"], clock)
        buildControl(self["settings"], self["quota"], clock, isShared=self.sharesLimits)
        buildExporters(self["export"], clock)


def buildPool(settings: ServerSettings, description: str | None, clock: Any, processes: int = 1) -> IMemoryPool:
    """
    Build the memory pool.

    @param description: the value of C{--pool}, or L{None}; then the properties decide.
    @param processes: how many have an equal part of it.
    @raise UsageError: if the description and the properties contradict each other,
        or no client could do anything with such a pool.
    """
    queuedBytes, largestBytes = settings.queuedMaxRequestBytes, settings.socketRequestMaxBytes
    context = PolicyContext(clock, wallSeconds, largestBytes)
    whole: IMemoryPool = buildChosen("pool", IMemoryPoolFactory, poolDescription(settings, description), context)
    given = POOL if description is None else f"--pool {description}"
    pool = whole
    if processes > 1:
        ofEach = poolDescription(settings, description, processes)
        pool = buildChosen("pool", IMemoryPoolFactory, ofEach, context)
        if _isBounded(whole) and pool.sizeBytes * processes > whole.sizeBytes:
            raise UsageError(
                f"{given} cannot be divided among {processes} processes, since none of its arguments is its size; "
                "choose another pool, or one process"
            )
        given += f" in {processes} processes (--processes)"
    if pool.largestBytes < _SMALLEST_BYTES:
        raise UsageError(
            f"{given} allows requests of {pool.largestBytes}B, and the first requests of clients are larger; let the "
            f"pool and {LARGEST_REQUEST} have {formatBytes(_SMALLEST_BYTES)} or more"
        )
    if description is None and processes == 1:
        return pool
    place = settings.places.get(POOL)
    if place is not None and description is not None:
        isBounded = _isBounded(whole)
        if isBounded != (queuedBytes > 0) or (isBounded and whole.sizeBytes != queuedBytes):
            size = formatBytes(whole.sizeBytes) if isBounded else "no bound"
            configured = formatBytes(queuedBytes) if queuedBytes > 0 else "no bound"
            raise UsageError(
                f"--pool {description} means {size} and {POOL} means {configured} ({place}); keep one of them"
            )
    place = settings.places.get(LARGEST_REQUEST)
    if place is not None and pool.largestBytes < largestBytes:
        raise UsageError(
            f"{given} allows requests of {formatBytes(pool.largestBytes)} and {LARGEST_REQUEST} "
            f"{formatBytes(largestBytes)} ({place}); make the pool larger or {LARGEST_REQUEST} smaller"
        )
    return pool


def poolDescription(settings: ServerSettings, description: str | None, processes: int = 1) -> str:
    """
    The description of the memory pool: C{description}, or one made of the
    properties if that is L{None}.

    @param processes: how many have an equal part of it.
    """
    if description is None:
        queuedBytes = settings.queuedMaxRequestBytes
        description = f"bounded:{queuedBytes}" if queuedBytes > 0 else "unbounded"
    if processes == 1:
        return description
    name, *arguments = _COLON.split(description)
    sizes = [_sizeIn(each) for each in arguments]
    # The size comes first, or has a name; the largest request may be as large, and is not larger than its pool.
    size = next((each for each in sizes if each is not None), None)
    for place, each in enumerate(sizes):
        if each is not None and each == size:
            before = arguments[place].rpartition("=")
            arguments[place] = f"{before[0]}{before[1]}{each // processes}"
    return ":".join([name, *arguments])


def _sizeIn(argument: str) -> int | None:
    try:
        return parseBytes(argument.rpartition("=")[2])
    except ValueError:
        return None


def _isBounded(pool: IMemoryPool) -> bool:
    return pool.sizeBytes < 2**63 - 1


def buildOrder(description: str | None, clock: Any, random: Random | None = None) -> IWaitOrder:
    """
    Build the order of waiters.

    @param description: the value of C{--order}, or L{None} for the default.
    @param random: see L{PolicyContext}.
    @raise UsageError: if it cannot be built.
    """
    context = PolicyContext(clock, wallSeconds, random=random)
    order: IWaitOrder = buildChosen("order", IWaitOrderFactory, description or DEFAULT_ORDER, context)
    return order


def buildControl(
    settings: ServerSettings,
    descriptions: Sequence[str],
    clock: Any,
    isObserved: bool = False,
    isShared: bool = False,
) -> AdmissionControl:
    """
    Build the control with its quota policies, with the limits that the properties
    set.

    @param descriptions: the values of C{--quota}; without any, the default
        policies are built, which limit no client until they get limits.
    @param isObserved: see L{AdmissionControl}.
    @param isShared: see L{quotaDescriptions}.
    @raise UsageError: if one cannot be built, or contradicts the properties.
    """
    windows = settings.quotaWindowNum, settings.quotaWindowSizeSeconds
    context = PolicyContext(clock, wallSeconds, None, *windows, shownAliases=KAFKA_LIMITS)
    policies: list[tuple[str, IQuotaPolicy]] = []
    for description in quotaDescriptions(settings, descriptions, isShared):
        policy: IQuotaPolicy = buildChosen("quota", IQuotaPolicyFactory, description, context)
        if getattr(policy, "places", None) is not None:
            raise UsageError(
                f"--quota {description}: queue is for sites and requests in frames; Kafka's clients ask again by "
                "themselves, leave it out"
            )
        policies.append((_nameFor(description, policies), policy))
    control = AdmissionControl(policies, settings.quotaThrottleMaxSeconds, isObserved, KAFKA_LIMITS)
    for name, entity, limitName, value in _propertyLimits(settings):
        described = control.limits.get(entity, {}).get(limitName)
        if described not in (None, value):
            raise UsageError(
                f"--quota sets {limitName} to {described:g} and {name} to {value:g} ({settings.places[name]}); "
                "keep one of them"
            )
        try:
            control.configure(entity, {limitName: value}, clock.seconds())
        except ValueError as error:
            raise UsageError(f"{name} ({settings.places[name]}): {error}") from error
    return control


def quotaDescriptions(settings: ServerSettings, descriptions: Sequence[str], isShared: bool = False) -> list[str]:
    """
    The descriptions of the quota policies, in order.

    @param descriptions: the values of C{--quota}.
    @param isShared: whether several servers enforce limits together, as far as these are of what is behind them.
    @raise UsageError: if one makes no sense.
    """
    try:
        return [_completed(settings, description, isShared) for description in descriptions or _QUOTAS]
    except PolicyError as error:
        raise UsageError(f"--quota: {error}") from error


def buildExporters(descriptions: Sequence[str], clock: Any) -> list[tuple[str, IMetricsExporter]]:
    """
    Build the exporters; return each with its name.

    @param descriptions: the values of C{--export}.
    @raise UsageError: if one cannot be built.
    """
    exporters: list[tuple[str, IMetricsExporter]] = []
    for description in descriptions:
        context = PolicyContext(clock, wallSeconds)
        exporter: IMetricsExporter = buildChosen("export", IMetricsExporterFactory, description, context)
        exporters.append((_nameFor(description, exporters), exporter))
    return exporters


def _completed(settings: ServerSettings, description: str, isShared: bool) -> str:
    """
    Complete C{description} with what is shared, and with the properties that Kafka's proposal has for one policy
    (KIP-936); the description's own arguments win.
    """
    name, _, given = parseDescription(description)
    if name in _SHARED_POLICIES:
        if isShared and "shared" not in given:
            description += ":shared=yes"
        elif given.get("shared") == "yes" and not isShared:
            raise PolicyError(
                f"{description}: shared=yes is for gateways that share their limits (--shared-limits, --processes)"
            )
    if name != _PRODUCER_IDS:
        return description
    properties = {
        "window": formatSeconds(settings.producerIdQuotaWindowSizeSeconds),
        "windows": str(settings.producerIdQuotaWindowNum),
        "cleanup": formatSeconds(settings.producerIdQuotaCacheCleanupSchedulerIntervalSeconds),
    }
    return description + "".join(f":{each}={value}" for each, value in properties.items() if each not in given)


def _nameFor(description: str, named: Sequence[tuple[str, object]]) -> str:
    """
    The name of a policy: its own, numbered if several share it.

    @param named: the policies before it.
    """
    name = parseDescription(description)[0]
    others = sum(each.partition("-#")[0] == name for each, _ in named)
    return f"{name}-#{others + 1}" if others else name


def _propertyLimits(settings: ServerSettings) -> Iterator[tuple[str, QuotaEntity, str, float]]:
    for kind, limitName, default, overrides in (
        ("producer", "producer_byte_rate", settings.quotaProducerDefault, settings.quotaProducerOverride),
        ("consumer", "consumer_byte_rate", settings.quotaConsumerDefault, settings.quotaConsumerOverride),
    ):
        if default is not None:
            yield f"quota.{kind}.default", QuotaEntity(clientId=DEFAULT), limitName, default
        for clientId, value in overrides.items():
            yield f"quota.{kind}.override", QuotaEntity(clientId=clientId), limitName, value


def buildChosen(option: str, interface: type[IPolicyFactory], description: str, context: PolicyContext) -> Any:
    try:
        return buildPolicy(interface, description, context)
    except PolicyError as error:
        raise UsageError(f"--{option}: {error}") from error


def endpointOf(option: str, description: str, reactor: Any = None) -> IStreamServerEndpoint:
    """
    What to listen with.

    @param reactor: opens the port; by default the global one.
    @raise UsageError: if there is no such endpoint.
    """
    if reactor is None:
        from twisted.internet import reactor
    try:
        checkFiles(description)
        if _TLS_PREFIXES.isdisjoint(description.split(":")):
            endpoint: IStreamServerEndpoint = serverFromString(reactor, description)  # type: ignore[no-untyped-call]
        else:
            from .servercertificate import TLSEndpoint

            endpoint = TLSEndpoint(reactor, description)
    except Exception as error:
        # Each kind of endpoint has its own way to refuse its arguments.
        where = f" from {os.getcwd()}" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(
            f"--{option} {description}: {_reason(error)}{where}; write an endpoint such as "
            "tcp:9092:interface=127.0.0.1 or ssl:9093:privateKey=key.pem:certKey=cert.pem"
        ) from error
    return endpoint


def certificatesAnew(listeners: Iterable[Listener]) -> list[tuple[Any, Any]]:
    """
    Read the files of all endpoints with TLS again.

    @return: each of these endpoints, and what it is to use.
    @raise UsageError: if one of them could not be opened with what is there now.
    """
    found: list[tuple[Any, Any]] = []
    # A gateway has a port for each node, all with the same files.
    contexts: dict[str, Any] = {}
    for listener in listeners:
        endpoint: Any = listener.endpoint
        description = listener.description
        if not getattr(endpoint, "hasCertificate", False):
            continue
        files = description.replace(portOf(description) or "", "", 1)
        try:
            if files not in contexts:
                checkFiles(description)
                contexts[files] = endpoint.read()
        except Exception as error:
            raise UsageError(f"{description}: {_reason(error)}") from error
        found.append((endpoint, contexts[files]))
    return found


def checkFiles(description: str) -> None:
    """
    Read the files that an endpoint of TLS names, before Twisted does, which would wait for a pipe, or take all of a
    device.

    @raise OSError: if one cannot be read within a bound.
    """
    for path in _TLS_FILE.findall(description):
        readBounded(re.sub(r"\\(.)", r"\1", path))


def _reason(error: Exception) -> str:
    """
    Reword the errors of Python's own that Twisted lets through, and those of OpenSSL.
    """
    if error.args and isinstance(error.args[0], list):
        reasons = ", ".join(str(each[-1]) for each in error.args[0])
        return f"OpenSSL cannot read the key or a certificate in PEM ({reasons})"
    text = str(error).rstrip(".")
    if isinstance(error, TypeError):
        return "it takes other arguments"
    if text.startswith("invalid literal for int()"):
        return f"{text.partition(': ')[2]} is not a number"
    return text

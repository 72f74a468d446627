# -*- test-case-name: tests.unit.status.test_site -*-
"""
The status port: read-only HTTP, with limits on everything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from ipaddress import ip_address
from typing import Any, Protocol

from twisted.internet import protocol
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IListeningPort, IReactorTime, IStreamServerEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import FORBIDDEN, NOT_ALLOWED, REQUEST_ENTITY_TOO_LARGE, HTTPChannel
from twisted.web.resource import Resource
from twisted.web.server import Site

from ..clock import wallSeconds
from ..connection.deadline import Deadline
from ..metrics.registry import SensorRegistry
from ..names import canonicalAddress
from .document import StatusDocument
from .history import History
from .pageresource import Refused
from .pages import StatusPages
from .sections import HealthCheck, Section
from .servers import Server

MAX_CONNECTIONS = 64
"""
Beyond that, a newcomer takes the place of another.  More than Twisted accepts in a turn from a listener with its usual
backlog, so that a client that asks at once is not displaced before its request is read.
"""

MAX_ANSWERS = 16
"""How many answers may be under way; likewise."""

MAX_HEADER_BYTES = 8192
MAX_HEADERS = 64
REQUEST_SECONDS = 30.0
"""How long a request may take to arrive, from when the connection is there; a server that is late reads it late."""

STALLED_SECONDS = 30.0
"""
How long a client may take nothing of an answer that is being made, and how long it has for the rest of one that is
made; how long the server needs to make it does not count.
"""

CONTENT_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    b"base-uri 'none'; frame-ancestors 'none'"
)
"""What a page may load: files from this port only, so that no browser runs a client's name as a script."""

_HOST = re.compile(r"(?:\[(?P<bracketed>[^][]*)\]|(?P<name>[^][:]*))(?::[0-9]*)?")


class StatusServer(Server, Protocol):
    """
    A server that has sensors; C{wrapFactory} returns one.
    """

    @property
    def clock(self) -> IReactorTime: ...

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish the server's sensors.
        """


def statusSite(
    server: StatusServer,
    *,
    names: Collection[str] = (),
    sections: Sequence[Section] = (),
    checks: Sequence[HealthCheck] = (),
    sensors: SensorRegistry | None = None,
) -> StatusSite:
    """
    Show the state of any server: C{reactor.listenTCP(9090,
    statusSite(factory), interface="127.0.0.1")}, where C{factory} is the result
    of C{wrapFactory}.  There is no login, so let it listen where
    only operators can connect.

    @param names: the host names of the port, in addition to addresses and
        C{localhost}.
    @param sections: additions to C{/status.json}.
    @param checks: additions to C{/healthz}.
    @param sensors: the registry to which C{server} has published its sensors;
        by default a new one.
    @raise ValueError: if C{sensors} has sensors of names that are used here.
    @raise TypeError: for a server, sections or checks that are none.
    """
    needed = ("clock", "gate", "control", "connections", *(("addSensors",) if sensors is None else ()))
    missing = [each for each in needed if not hasattr(server, each)]
    if missing:
        raise TypeError(f"server={server!r} lacks {', '.join(missing)}: give the result of wrapFactory")
    _checkEach("sections", sections, lambda each: isinstance(each, Section), "a list of admission.status.Section")
    _checkEach("checks", checks, callable, "a list of functions that take the time and return reasons")
    if sensors is None:
        sensors = SensorRegistry(server.clock.seconds)
        server.addSensors(sensors)
    document = StatusDocument(server, sensors, wallSeconds, sections, checks)
    document.addSensors()
    pages = StatusPages(server.clock, document)
    return StatusSite(pages.root, server.clock, names, history=pages.history)


def _checkEach(name: str, given: object, isRight: Callable[[Any], bool], wanted: str) -> None:
    if not (isinstance(given, Collection) and all(map(isRight, given))):
        raise TypeError(f"{name}={given!r}: give {wanted}")


class StatusChannel(HTTPChannel):
    """
    A connection for one request without a body.

    @ivar isAnswering: whether its request is there.
    @ivar progressSeconds: when it was opened, its request was there, or a part of
        its answer was taken, whichever came last.
    """

    MAX_LENGTH = MAX_HEADER_BYTES
    totalHeadersSize = MAX_HEADER_BYTES
    maxHeaders = MAX_HEADERS

    site: StatusSite
    transport: Any
    isAnswering = False
    progressSeconds = 0.0
    _deadline: Deadline

    @property
    def host(self) -> str:
        """
        The address of the client, without its port; behind a load balancer it is another once something was received.
        """
        host: str = getattr(self.transport.getPeer(), "host", "")
        return host

    def connectionMade(self) -> None:
        self.progressSeconds = self.site.reactor.seconds()
        self._deadline = Deadline(self.site.reactor, self.abort)
        self._deadline.start(REQUEST_SECONDS)
        self.site.opened(self)
        super().connectionMade()  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = protocol.connectionDone) -> None:
        self.site.channels.discard(self)
        self._deadline.close()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def abort(self) -> None:
        # It counts no more, though it is gone only in a later turn.
        self.site.channels.discard(self)
        self.transport.abortConnection()

    def pauseProducing(self) -> None:
        if self.isAnswering:
            self._deadline.start(STALLED_SECONDS)
        super().pauseProducing()  # type: ignore[no-untyped-call]

    def resumeProducing(self) -> None:
        self.progressSeconds = self.site.reactor.seconds()
        if self.isAnswering:
            self._deadline.stop()
        super().resumeProducing()  # type: ignore[no-untyped-call]

    def allHeadersReceived(self) -> None:
        self.isAnswering = True
        self.progressSeconds = self.site.reactor.seconds()
        self._deadline.stop()
        self.site.asked(self)
        # A body is not awaited: the site refuses the request, and the connection closes.
        self.length = 0
        super().allHeadersReceived()  # type: ignore[no-untyped-call]

    def requestDone(self, request: Any) -> None:
        self._deadline.start(STALLED_SECONDS)
        super().requestDone(request)  # type: ignore[no-untyped-call]

    def checkPersistence(self, request: Any, version: bytes) -> bool:
        request.responseHeaders.setRawHeaders(b"Connection", [b"close"])
        return False


class StatusSite(Site):
    """
    A site that can only be read, and only under its own names.

    A web page that an operator visits could make its own name lead to this
    port (DNS rebinding) and read it with the operator's browser, as there is no
    login.  The browser sends that name, so only known names are accepted, and
    addresses, which no such page can have.

    A slow client does not keep others out: beyond the limits, the connection gives way that has made no progress for
    longest, of the address that has most.

    @ivar channels: the open connections.
    """

    protocol = StatusChannel  # type: ignore[assignment]
    noisy = False

    def __init__(
        self,
        root: Resource,
        reactor: IReactorTime,
        names: Collection[str] = (),
        naming: str = "names=",
        history: History | None = None,
    ) -> None:
        """
        @param reactor: for deadlines.
        @param names: the host names of the port, in addition to C{localhost}.
        @param naming: the setting that adds host names.
        @param history: taken while the site listens; L{None} if somebody else sees to that.
        """
        super().__init__(root, reactor=reactor, timeout=None)  # type: ignore[no-untyped-call]
        self.channels: set[StatusChannel] = set()
        self._names = {"localhost", *(name.lower() for name in names)}
        self._naming = naming
        self._history = history

    # These begin and end no access log.

    def startFactory(self) -> None:
        if self._history is not None:
            self._history.start()

    def stopFactory(self) -> None:
        if self._history is not None:
            self._history.stop()

    def log(self, request: Any) -> None:
        pass

    def opened(self, channel: StatusChannel) -> None:
        """
        There is a new connection.
        """
        self._makeRoom(self.channels, MAX_CONNECTIONS)
        self.channels.add(channel)

    def asked(self, channel: StatusChannel) -> None:
        """
        The request of a connection is there.
        """
        others = {each for each in self.channels if each.isAnswering and each is not channel}
        self._makeRoom(others, MAX_ANSWERS)

    def _makeRoom(self, channels: Collection[StatusChannel], maxCount: int) -> None:
        if len(channels) < maxCount:
            return
        counts = Counter(channel.host for channel in channels)
        # A connection that has asked nothing has no answer to lose.
        idlest = min(channels, key=lambda each: (-counts[each.host], each.isAnswering, each.progressSeconds))
        idlest.abort()

    def getResourceFor(self, request: Any) -> Resource:
        request.setHeader(b"Cache-Control", b"no-store")
        request.setHeader(b"X-Content-Type-Options", b"nosniff")
        request.setHeader(b"Referrer-Policy", b"no-referrer")
        request.setHeader(b"Content-Security-Policy", CONTENT_POLICY)
        headers = request.requestHeaders
        # As bytes: Twisted decodes text strictly.
        if not all(map(self._knows, headers.getRawHeaders(b"Host", []))):
            return Refused(
                FORBIDDEN,
                "this port goes by another name; ask it by its address, or by a name that the server was told with "
                + self._naming,
            )
        if request.method not in (b"GET", b"HEAD"):
            return Refused(NOT_ALLOWED, "this port can only be read; use GET or HEAD", b"GET, HEAD")
        if headers.hasHeader("Transfer-Encoding") or any(
            length.strip(b"0") for length in headers.getRawHeaders(b"Content-Length", [])
        ):
            return Refused(REQUEST_ENTITY_TOO_LARGE, "a request to this port has no body")
        resource: Resource = super().getResourceFor(request)  # type: ignore[no-untyped-call]
        return resource

    def _knows(self, host: bytes) -> bool:
        match = _HOST.fullmatch(host.decode("utf-8", "replace").strip())
        if match is None:
            return False
        name = (match["bracketed"] or match["name"] or "").lower().removesuffix(".")
        return name in self._names or _isAddress(name)


class StatusPort:
    """
    A site on an endpoint, which answers 404 until it is given its pages.
    """

    log = Logger()

    def __init__(
        self,
        description: str,
        endpoint: IStreamServerEndpoint,
        reactor: IReactorTime,
        names: Collection[str] = (),
        naming: str = "names=",
    ) -> None:
        """
        @param description: the name of C{endpoint} in messages.
        @param reactor: for deadlines.
        @param names: see L{StatusSite}, like C{naming}.
        """
        self.description = description
        self._endpoint = endpoint
        self._port: IListeningPort | None = None
        self._isStopped = False
        self.site = StatusSite(Resource(), reactor, names, naming)  # type: ignore[no-untyped-call]

    def listen(self) -> Deferred[None]:
        """
        Listen.  No connection is accepted before the reactor runs.

        @return: fails if that is not possible.
        """
        self._isStopped = False
        return self._endpoint.listen(self.site).addCallback(self._listens)

    def serve(self, root: Resource) -> None:
        """
        Answer with C{root} from now on.
        """
        self.site.resource = root

    def stop(self) -> Deferred[Any]:
        """
        Stop listening, and close all connections at once.

        @return: fires when the port is free.
        """
        self._isStopped = True
        for channel in list(self.site.channels):
            channel.abort()
        port, self._port = self._port, None
        return succeed(None) if port is None else maybeDeferred(port.stopListening)

    def _listens(self, port: IListeningPort) -> Any:
        if self._isStopped:
            return port.stopListening()
        self._port = port
        address: Any = port.getHost()
        if hasattr(address, "host"):
            scheme = "https" if self.description.partition(":")[0] in ("ssl", "tls", "mtls") else "http"
            host = f"[{address.host}]" if ":" in address.host else address.host
            self.log.info("its page is at {url}", url=f"{scheme}://{host}:{address.port}/")
        if not isLocal(address):
            self.log.warn(
                "the status port listens on {address}, where others can reach it, and asks nobody for a password; "
                "unless a firewall is in front of it, let it listen on 127.0.0.1: {description}",
                address=f"{getattr(address, 'host', address)}:{getattr(address, 'port', '')}",
                description=self.description,
            )
        return None


def isLocal(address: Any) -> bool:
    """
    Whether only this machine can reach an address: loopback, or no network at
    all.
    """
    host = getattr(address, "host", None)
    return host is None or ip_address(canonicalAddress(host)).is_loopback


def _isAddress(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True

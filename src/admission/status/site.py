# -*- test-case-name: tests.unit.status.test_pages -*-
"""
HTTP with bounds: what the status port accepts of whoever can connect to it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import Any

from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.http import FORBIDDEN, NOT_ALLOWED, REQUEST_ENTITY_TOO_LARGE, HTTPChannel
from twisted.web.resource import Resource
from twisted.web.server import Site

from ..connection.factory import RefusedProtocol
from .pageresource import Refusal

MAX_CONNECTIONS = 16
MAX_HEADER_BYTES = 8192
MAX_HEADERS = 64
CONNECTION_SECONDS = 30.0
"""For everything: to ask, to be answered and to have read the answer."""

CONTENT_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    b"base-uri 'none'; frame-ancestors 'none'"
)
"""What a page may load: what comes from here as a file of its own, so that no name of a client is ever run."""

_HOST = re.compile(r"(?:\[(?P<bracketed>[^][]*)\]|(?P<name>[^][:]*))(?::[0-9]*)?")


class StatusChannel(HTTPChannel):
    """
    A connection for one request that has no body.
    """

    MAX_LENGTH = MAX_HEADER_BYTES
    totalHeadersSize = MAX_HEADER_BYTES
    maxHeaders = MAX_HEADERS

    site: StatusSite
    transport: Any
    _deadline: IDelayedCall | None = None

    def connectionMade(self) -> None:
        """
        The time runs.
        """
        self.site.channels.add(self)
        self._deadline = self.site.reactor.callLater(CONNECTION_SECONDS, self.abort)
        super().connectionMade()  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        See L{HTTPChannel.connectionLost}.
        """
        self.site.channels.discard(self)
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def abort(self) -> None:
        """
        Close at once.
        """
        self.transport.abortConnection()

    def allHeadersReceived(self) -> None:
        """
        See L{HTTPChannel.allHeadersReceived}.  A body is not waited for: the
        site refuses the request and the connection closes.
        """
        self.length = 0
        super().allHeadersReceived()  # type: ignore[no-untyped-call]

    def checkPersistence(self, request: Any, version: bytes) -> bool:
        """
        See L{HTTPChannel.checkPersistence}.
        """
        request.responseHeaders.setRawHeaders(b"Connection", [b"close"])
        return False


class StatusSite(Site):
    """
    A site that can be read and nothing else, by whoever means it.

    A web page that an operator looks at could have its own name lead to this
    port (DNS rebinding) and read it in the operator's stead, as there is no
    login.  Its browser tells the name, so only names that are known are
    accepted, and addresses, which no such page can have.

    @ivar channels: the open connections.
    """

    protocol = StatusChannel  # type: ignore[assignment]
    noisy = False

    def __init__(self, root: Resource, reactor: IReactorTime, names: Collection[str] = ()) -> None:
        """
        @param reactor: for deadlines.
        @param names: what the port may be called, beside C{localhost}.
        """
        super().__init__(root, reactor=reactor, timeout=None)  # type: ignore[no-untyped-call]
        self.channels: set[StatusChannel] = set()
        self._names = {"localhost", *(name.lower() for name in names)}

    def startFactory(self) -> None:
        """
        There is no access log, hence nothing to start.
        """

    def log(self, request: Any) -> None:
        """
        There is no access log.
        """

    def buildProtocol(self, addr: IAddress | None) -> Any:
        """
        A connection, or one too many.
        """
        if len(self.channels) >= MAX_CONNECTIONS:
            return RefusedProtocol()
        return super().buildProtocol(addr)  # type: ignore[no-untyped-call]

    def getResourceFor(self, request: Any) -> Resource:
        """
        What answers C{request}, be it only to refuse it.
        """
        request.setHeader(b"Cache-Control", b"no-store")
        request.setHeader(b"X-Content-Type-Options", b"nosniff")
        request.setHeader(b"Referrer-Policy", b"no-referrer")
        request.setHeader(b"Content-Security-Policy", CONTENT_POLICY)
        headers = request.requestHeaders
        if not all(map(self._knows, headers.getRawHeaders("Host", []))):
            return Refusal(
                FORBIDDEN,
                "this port goes by another name; ask it by its address, or by a name that the broker was told with "
                "--advertise",
            )
        if request.method not in (b"GET", b"HEAD"):
            return Refusal(NOT_ALLOWED, "this port can only be read; use GET or HEAD", b"GET, HEAD")
        if headers.hasHeader("Transfer-Encoding") or any(
            length.strip(b"0") for length in headers.getRawHeaders(b"Content-Length", [])
        ):
            return Refusal(REQUEST_ENTITY_TOO_LARGE, "a request to this port has no body")
        resource: Resource = super().getResourceFor(request)  # type: ignore[no-untyped-call]
        return resource

    def _knows(self, host: str) -> bool:
        match = _HOST.fullmatch(host.strip())
        if match is None:
            return False
        name = (match["bracketed"] or match["name"] or "").lower().removesuffix(".")
        return name in self._names or _isAddress(name)


def _isAddress(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True

# -*- test-case-name: tests.unit.status.test_pages -*-
"""
The port on which an operator asks a broker how it is.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IListeningPort, IReactorTime, IStreamServerEndpoint
from twisted.logger import Logger
from twisted.web.resource import Resource

from .site import StatusSite


class StatusPort:
    """
    Listens, answers once there is something to say, and stops.
    """

    log = Logger()

    def __init__(
        self, description: str, endpoint: IStreamServerEndpoint, reactor: IReactorTime, names: Collection[str] = ()
    ) -> None:
        """
        @param description: what to call C{endpoint} in messages.
        @param reactor: for deadlines.
        @param names: the names by which the broker may be asked, beside its
            addresses and C{localhost}.
        """
        self.description = description
        self._endpoint = endpoint
        self._port: IListeningPort | None = None
        self._isStopped = False
        self.site = StatusSite(Resource(), reactor, names)  # type: ignore[no-untyped-call]

    def listen(self) -> Deferred[None]:
        """
        Listen; nobody is accepted before the reactor runs.

        @return: fails if that cannot be.
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
        Stop listening, and hang up on whoever is connected.

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
        address = port.getHost()
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
    return host is None or ip_address(host.partition("%")[0]).is_loopback

# -*- test-case-name: tests.unit.kafka.serving.test_servercertificate -*-
"""
Ports with TLS whose certificates are read again while they are open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from OpenSSL.SSL import Connection
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.interfaces import IListeningPort, IOpenSSLServerConnectionCreator, IStreamServerEndpoint
from twisted.internet.protocol import Factory
from zope.interface import implementer


@implementer(IOpenSSLServerConnectionCreator)
class CurrentCertificate:
    """
    What new connections of a port get.

    @ivar context: the context that has the certificate; connections keep the one with which they began.
    """

    def __init__(self, context: Any) -> None:
        self.context = context

    def serverConnectionForTLS(self, protocol: Any) -> Connection:
        return Connection(self.context, None)


class _TLSReactor:
    """
    The reactor for an endpoint, but for what it does to listen with TLS.
    """

    def __init__(self, reactor: Any, listenSSL: Callable[..., Any]) -> None:
        self._reactor = reactor
        self.listenSSL = listenSSL

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)


@implementer(IStreamServerEndpoint)
class TLSEndpoint:
    """
    An endpoint of Twisted's C{ssl:} or our C{mtls:}, also with others before it.
    """

    def __init__(self, reactor: Any, description: str) -> None:
        """
        @raise Exception: if the description makes no sense, or a file in it; each kind of endpoint has its own ways.
        """
        self.description = description
        self._reactor = reactor
        self._current: CurrentCertificate | None = None
        self._endpoint = self._made(self._listenSSL)

    @property
    def hasCertificate(self) -> bool:
        """
        Whether it listens with TLS.
        """
        return self._current is not None

    def listen(self, factory: Any) -> Deferred[IListeningPort]:
        listening: Deferred[IListeningPort] = self._endpoint.listen(factory)
        return listening

    def read(self) -> Any:
        """
        Read the files again, and change nothing; for an endpoint that L{hasCertificate}.

        @return: the context that they make.
        @raise Exception: as when it was made.
        """
        found: list[Any] = []
        endpoint = self._made(lambda port, factory, contextFactory, **_: found.append(contextFactory))
        # It says what it has read only when it listens, which opens no port here.
        endpoint.listen(Factory())
        return found[0].getContext()

    def use(self, context: Any) -> None:
        """
        Have new connections use what L{read} of this endpoint, or one with the same files, has returned.
        """
        assert self._current is not None
        self._current.context = context

    def _made(self, listenSSL: Callable[..., Any]) -> Any:
        return serverFromString(_TLSReactor(self._reactor, listenSSL), self.description)  # type: ignore[no-untyped-call]

    def _listenSSL(self, port: int, factory: Any, contextFactory: Any, **others: Any) -> Any:
        self._current = CurrentCertificate(contextFactory.getContext())
        return self._reactor.listenSSL(port, factory, self._current, **others)

# -*- test-case-name: tests.unit.listening.test_services -*-
"""
Protects factories that somebody else has made, where they are about to listen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, wraps
from typing import Any

from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import IService, IServiceCollection
from twisted.internet.interfaces import IProtocolFactory, IReactorTCP
from twisted.internet.posixbase import PosixReactorBase
from twisted.protocols.tls import TLSMemoryBIOFactory

from ..admission import Admission
from ..connection.factory import AdmittedFactory

_PLACES = {"listenTCP": 1, "listenSSL": 1, "listenUNIX": 1, "adoptStreamPort": 2}
"""Which argument of a reactor's methods is the factory."""


def isSite(factory: Any) -> bool:
    """
    Whether a factory speaks HTTP by twisted.web, which is not imported to find that out.
    """
    return any(
        (each.__module__, each.__name__) == ("twisted.web.http", "HTTPFactory") for each in type(factory).__mro__
    )


def isWebSocketServer(factory: Any) -> bool:
    """
    Whether a factory speaks websocket by Autobahn, and nothing else.
    """
    return any(
        (each.__module__, each.__name__) == ("autobahn.twisted.websocket", "WebSocketServerFactory")
        for each in type(factory).__mro__
    )


def protect(admission: Admission, factory: Any, **siteSettings: Any) -> Any:
    """
    What is to listen in place of C{factory}: if it is a site, one whose requests are admitted, if it is a server of
    websockets, one whose messages are, and else what bounds its bytes.  What is protected already stays as it is.

    @param siteSettings: as L{protectSite <admission.web.protectedsite.protectSite>} takes them.
    """
    if isinstance(factory, AdmittedFactory):
        return factory
    if isSite(factory):
        from ..web.protectedsite import protectSite

        return protectSite(admission, factory, **siteSettings)
    if isWebSocketServer(factory):
        from ..web.protectedwebsockets import protectWebSockets

        ofMessages = {name: value for name, value in siteSettings.items() if name == "maxMessageBytes"}
        return protectWebSockets(admission, factory, **ofMessages)
    return admission.wrap(factory)


def wrapServices(service: Any, admission: Admission | None = None, **siteSettings: Any) -> Any:
    """
    Protect all servers of an application, or of another service, before it starts: at the end of a C{.tac} file,
    C{wrapServices(application, Admission(pool="bounded:64MiB"))}.

    Sites have their requests admitted, all others their bytes bounded.  Ports that a service opens only while it runs
    cannot be found this way: see L{wrapPorts}.

    @param admission: one with the defaults, unless given.
    @param siteSettings: as L{protectSite <admission.web.protectedsite.protectSite>} takes them.
    @return: C{service}.
    @raise TypeError: if it is no service.
    @raise ValueError: if it runs already, or has no servers.
    """
    # An Application is no service, and adapts to one.
    root = IService(service, None)
    if root is None:
        raise TypeError(f"service={service!r}: give an Application, or another IService")
    found = list(_servicesIn(root))
    if any(getattr(each, "running", False) for each in found):
        raise ValueError(f"service={service!r}: it runs already; protect it before it starts")
    shared = Admission() if admission is None else admission
    protected: list[Any] = []

    def replacing(factory: Any) -> Any:
        protected.append(protect(shared, factory, **siteSettings))
        return protected[-1]

    for each in found:
        if isinstance(each, StreamServerEndpointService):
            each.factory = replacing(each.factory)
            continue
        place = _PLACES.get(f"listen{getattr(each, 'method', '')}")
        if place is not None:
            each.args, each.kwargs = _withFactory(place, each.args, each.kwargs, replacing)
    if not protected:
        raise ValueError(
            f"service={service!r}: it has no servers yet; call this when they are there, or wrapPorts for ports that "
            "it opens while it runs"
        )
    return service


def wrapPorts(admission: Admission | Callable[[], Admission], reactor: Any = None, **siteSettings: Any) -> None:
    """
    Protect whatever this process listens for from now on, by C{listenTCP}, C{listenSSL}, C{listenUNIX},
    C{adoptStreamPort} or an endpoint: servers that open their ports where nobody can reach the factories, such as those
    of carbon, and the data ports of FTP.  The page of an L{Admission} stays as it is.  In a C{sitecustomize.py}, which
    Python imports by itself, C{wrapPorts(lambda: Admission(pool="bounded:64MiB"))}.

    It replaces these methods of all reactors, or of one, for good.

    @param admission: what all of them share, or what makes it when the first port is opened, since it chooses the
        reactor, which is left to the program that starts it.
    @param reactor: whose ports these are; those of any of Twisted's on POSIX, unless given.
    @param siteSettings: as L{protectSite <admission.web.protectedsite.protectSite>} takes them.
    @raise TypeError: for an admission or a reactor that is none.
    """
    if not (isinstance(admission, Admission) or callable(admission)):
        raise TypeError(f"admission={admission!r}: give an Admission, or a function that makes one")
    if reactor is not None and not IReactorTCP.providedBy(reactor):
        raise TypeError(f"reactor={reactor!r}: give a reactor that listens")
    made = cache(lambda: admission if isinstance(admission, Admission) else admission())

    def replacing(factory: Any) -> Any:
        # TLS goes around a factory that was given here before, and a page is for when all else is full.
        isOurs = isinstance(factory, TLSMemoryBIOFactory) or type(factory).__module__.startswith("admission.")
        isOther = IProtocolFactory.providedBy(factory) and not isOurs
        return protect(made(), factory, **siteSettings) if isOther else factory

    whose: Any = PosixReactorBase if reactor is None else reactor
    # A method that is looked up in the class has the reactor in front.
    first = 1 if reactor is None else 0
    for name, place in _PLACES.items():
        listen = getattr(whose, name, None)
        if listen is not None:
            setattr(whose, name, _listening(listen, first + place, replacing))


def _servicesIn(service: Any) -> Iterator[Any]:
    yield service
    for each in IServiceCollection(service, None) or ():
        if each is not service:
            yield from _servicesIn(each)


def _listening(listen: Callable[..., Any], place: int, replacing: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(listen)
    def listening(*arguments: Any, **keywords: Any) -> Any:
        arguments, keywords = _withFactory(place, arguments, keywords, replacing)
        return listen(*arguments, **keywords)

    return listening


def _withFactory(
    place: int, arguments: Sequence[Any], keywords: Mapping[str, Any], replacing: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """
    The same arguments with another factory.
    """
    if place < len(arguments):
        return (*arguments[:place], replacing(arguments[place]), *arguments[place + 1 :]), {**keywords}
    if "factory" in keywords:
        return (*arguments,), {**keywords, "factory": replacing(keywords["factory"])}
    return (*arguments,), {**keywords}

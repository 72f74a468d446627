# -*- test-case-name: tests.unit.listening.test_endpoint -*-
"""
C{admission:tcp:8080:pool=bounded\\:64MiB}: protects a server wherever Twisted takes the description of an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from attrs import define, field
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import quoteStringArgument, serverFromString
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IStreamServerEndpoint
from zope.interface import implementer

from ..admission import Admission
from ..connection.factory import LIMIT_NAMES, AdmittedFactory, ConnectionLimits
from ..plugins import PolicyError
from ..units import parseBytes, parseSeconds
from .services import isSite, isWebSocketServer, protect

PREFIX = "admission"


class WrongDescription(SystemExit, ValueError):
    """
    The description of an endpoint that means nothing.

    A program that nobody has prepared for that ends with this message alone, and without a traceback.
    """


def _list(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")]


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text} is not a whole number")
    return int(text)


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError("say yes or no")
    return text == "yes"


_Read = Callable[[str], Any]

_OF_ALL: Mapping[str, _Read] = {
    "pool": str,
    "quota": _list,
    "order": str,
    "export": _list,
    "identityKey": str,
    "trustedProxies": _list,
}
"""Settings of an L{Admission}."""

_OF_CONNECTIONS: Mapping[str, _Read] = {
    name: parseSeconds if name.endswith("Seconds") else _count for name in LIMIT_NAMES
}

_OF_SITES: Mapping[str, _Read] = {
    "maxBodyBytes": parseBytes,
    "spoolBytes": parseBytes,
    "maxSpooledBytes": parseBytes,
    "maxFormFields": _count,
    "namesPolicies": _yes,
    "corsOrigins": _list,
    "clientHeader": str,
    "maxMessageBytes": parseBytes,
}

_SETTINGS = ("name", "status", *_OF_ALL, *_OF_CONNECTIONS, *_OF_SITES)


@define(eq=False)
class _Shared:
    """
    What ports of one name have together.

    @ivar settings: as they were written for the first of them.
    @ivar statusPort: the port of its page, once it listens.
    @ivar page: what listens there.
    """

    admission: Admission
    settings: Mapping[str, str]
    status: str = ""
    statusPort: Deferred[IListeningPort] | None = field(default=None, init=False)
    page: Any = field(default=None, init=False)


# Those with names, by reactor.
_SHARED: WeakKeyDictionary[Any, dict[str, _Shared]] = WeakKeyDictionary()


def protectedEndpoint(reactor: Any, arguments: tuple[str, ...], keywords: Mapping[str, str]) -> ProtectedEndpoint:
    """
    The endpoint that a description means, whose own settings are among those of the endpoint that it protects.

    @param arguments: the parts of the description without a name, C{"tcp"} and C{"8080"}.
    @param keywords: those with a name.
    @raise WrongDescription: if it means nothing.
    """
    if not arguments:
        raise WrongDescription(f"{PREFIX}: say what to listen on, as in {PREFIX}:tcp:8080:pool=bounded\\:64MiB")
    # A socket of systemd has a name, too.
    settings = set(_SETTINGS) - ({"name"} if arguments[0] == "systemd" else set())
    own = {name: text for name, text in keywords.items() if name in settings}
    others = {name: text for name, text in keywords.items() if name not in settings}
    parts = [_quoted(each) for each in arguments]
    parts += [f"{name}={_quoted(text)}" for name, text in others.items()]
    inner = ":".join(parts)
    try:
        endpoint = _endpointOf(reactor, inner)
    except Exception as error:
        raise WrongDescription(
            f"{PREFIX}: {inner!r} is no endpoint of Twisted ({error}); settings of {PREFIX} are {', '.join(_SETTINGS)}"
        ) from error
    if "trustedProxies" in own and arguments[0] == "haproxy":
        raise WrongDescription(f"{PREFIX}: haproxy: reads the header itself, from anybody: write trustedProxies alone")
    siteSettings = {name: _read(name, own[name], read) for name, read in _OF_SITES.items() if name in own}
    return ProtectedEndpoint(endpoint, _shared(reactor, own), siteSettings)


@implementer(IStreamServerEndpoint)
class ProtectedEndpoint:
    """
    Listens for a protected factory in place of the one that it is given: see L{protectedEndpoint}.
    """

    def __init__(self, endpoint: IStreamServerEndpoint, shared: _Shared, siteSettings: Mapping[str, Any]) -> None:
        self._endpoint = endpoint
        self._shared = shared
        self._siteSettings = siteSettings

    def listen(self, factory: IProtocolFactory) -> Deferred[IListeningPort]:
        """
        @raise WrongDescription: if the settings do not go with this factory.
        """
        admission, settings = self._shared.admission, self._siteSettings
        if isinstance(factory, AdmittedFactory):
            raise WrongDescription(f"{PREFIX}: this server is protected already, by options of its own: leave it out")
        isWeb, hasMessages = isSite(factory), isWebSocketServer(factory)
        others = [] if isWeb else [each for each in settings if not (hasMessages and each == "maxMessageBytes")]
        if others:
            names, kind = ", ".join(others), type(factory).__name__
            raise WrongDescription(f"{PREFIX}: {names}: only a site has that, and {kind} is none")
        if admission.idlePolicies and not (isWeb or hasMessages):
            names = " and ".join(admission.idlePolicies)
            raise WrongDescription(
                f"{PREFIX}: quota: {names} would limit nobody, since the requests of {type(factory).__name__} are not "
                "told apart; leave it out"
            )
        try:
            protected = protect(admission, factory, **settings)
        except (TypeError, ValueError) as error:
            raise WrongDescription(f"{PREFIX}: {error}") from error

        def listening(port: IListeningPort) -> IListeningPort:
            protected.addPort(port)
            return port

        listened: Deferred[IListeningPort] = self._endpoint.listen(protected)
        return listened.addCallback(listening).addCallback(self._showStatus)

    def __getattr__(self, name: str) -> Any:
        """
        What else somebody asks of an endpoint, such as a server that tells others its port.
        """
        if name == "_endpoint":
            raise AttributeError(name)
        return getattr(self._endpoint, name)

    def _showStatus(self, port: IListeningPort) -> Any:
        """
        Have the page listen, too, once.
        """
        shared = self._shared
        if not shared.status or shared.statusPort is not None:
            return port
        admission = shared.admission
        shared.page = shared.page or admission.statusSite()
        shared.statusPort = _statusEndpoint(admission.reactor, shared.status).listen(shared.page)

        def failed(failure: Any) -> Any:
            shared.statusPort = None
            stopped = port.stopListening()
            return (succeed(None) if stopped is None else stopped).addCallback(lambda _: failure)

        return shared.statusPort.addCallbacks(lambda _: port, failed)


def _shared(reactor: Any, own: Mapping[str, str]) -> _Shared:
    """
    What a description shares with others of its name; its own, if it has none.
    """
    name = own.get("name")
    settings = {each: text for each, text in own.items() if each in (*_OF_ALL, *_OF_CONNECTIONS, "status")}
    named = _SHARED.setdefault(reactor, {})
    if name is not None and name in named:
        shared = named[name]
        for each, text in settings.items():
            if shared.settings.get(each) != text:
                known = shared.settings.get(each)
                said = "had none" if known is None else f"had {each}={known}"
                raise WrongDescription(
                    f"{PREFIX}: name={name}: {each}={text}, and the first port of that name {said}; write settings for "
                    "the first one, and the name alone for others"
                )
        return shared
    limits = {each: _read(each, own[each], read) for each, read in _OF_CONNECTIONS.items() if each in own}
    given: dict[str, Any] = {each: _read(each, own[each], read) for each, read in _OF_ALL.items() if each in own}
    status = own.get("status", "")
    if status:
        _statusEndpoint(reactor, status)
    try:
        admission = Admission(limits=ConnectionLimits(**limits), reactor=reactor, **given)
    except (PolicyError, TypeError, ValueError) as error:
        colon = " (a colon in a setting is written \\:)" if isinstance(error, PolicyError) else ""
        raise WrongDescription(f"{PREFIX}: {error}{colon}") from error
    shared = _Shared(admission, settings, status)
    if name is not None:
        named[name] = shared
    return shared


def _statusEndpoint(reactor: Any, status: str) -> Any:
    description = f"tcp:{status}:interface=127.0.0.1" if status.isdecimal() else status
    try:
        return _endpointOf(reactor, description)
    except Exception as error:
        raise WrongDescription(
            f"{PREFIX}: status={status}: write a port, or an endpoint as in status=tcp\\:9090\\:interface=127.0.0.1 "
            f"({error})"
        ) from error


def _endpointOf(reactor: Any, description: str) -> Any:
    return serverFromString(reactor, description)  # type: ignore[no-untyped-call]


def _quoted(text: str) -> str:
    return str(quoteStringArgument(text))  # type: ignore[no-untyped-call]


def _read(name: str, text: str, read: _Read) -> Any:
    try:
        return read(text)
    except ValueError as error:
        raise WrongDescription(f"{PREFIX}: {name}={text}: {error}") from error

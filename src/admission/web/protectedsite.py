# -*- test-case-name: tests.unit.web.test_site -*-
"""
A site of twisted.web whose every request is admitted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, IProtocolFactory, IProtocolNegotiationFactory
from twisted.internet.threads import deferToThreadPool
from twisted.web.http import HTTPFactory
from zope.interface import implementer

from ..admission import Admission
from ..connection.trustedproxies import TrustedProxies
from ..connection.wrapping import WrappedFactory
from ..units import formatBytes
from .admittedrequest import admittedFactory
from .channels import drain
from .forwarded import ClientHeader
from .refusalanswers import Refusals
from .requestkinds import methodOf, whyNone
from .servedsite import MAX_BODY_BYTES, Budget, KindOf, NameOf, RefusalOf, ServedSite
from .watchedchannels import watch
from .websocketmessages import MAX_MESSAGE_BYTES, checkMessageBytes

SPOOL_BYTES = 1 << 20
SPOOLED_BYTES = 1 << 30
FORM_FIELDS = 1000
MIN_SPOOL_BYTES = 64 << 10

_ORIGIN = re.compile(r"\*|null|(?!https://.*:443$|http://.*:80$)[a-z][a-z0-9+.-]*://[^A-Z/?#@*\s]+(?<!:)")
"""As browsers write them: in small letters, and without the usual port."""


@implementer(IProtocolFactory, IProtocolNegotiationFactory)
class _AdmittedChannels:
    """
    A site whose connections make admitted requests; the site itself stays as it is.
    """

    def __init__(self, site: HTTPFactory, served: ServedSite) -> None:
        self._site = site
        self.served = served
        self._admitted = cache(partial(admittedFactory, served))
        self.doStart, self.doStop = site.doStart, site.doStop
        self.acceptableProtocols = getattr(site, "acceptableProtocols", lambda: [b"http/1.1"])
        self.__name__ = type(site).__name__

    def buildProtocol(self, addr: IAddress) -> Any:
        channel: Any = self._site.buildProtocol(addr)
        if channel is not None:
            channel.requestFactory = self._admitted(channel.requestFactory)
            watch(channel, self.served)
        return channel

    def logPrefix(self) -> str:
        return self.__name__


def protectSite(
    admission: Admission,
    site: Any,
    *,
    kindOf: KindOf = methodOf,
    nameOf: NameOf | None = None,
    refusalOf: RefusalOf | None = None,
    maxBodyBytes: int | Mapping[str, int] = MAX_BODY_BYTES,
    spoolBytes: int = SPOOL_BYTES,
    maxSpooledBytes: int = SPOOLED_BYTES,
    maxFormFields: int = FORM_FIELDS,
    namesPolicies: bool = False,
    corsOrigins: Collection[str] = (),
    clientHeader: str = "x-forwarded-for",
    maxMessageBytes: int = MAX_MESSAGE_BYTES,
    random: Random | None = None,
    inThread: Callable[[Callable[[], None]], Deferred[None]] | None = None,
) -> WrappedFactory:
    """
    Have every request of a site admitted: what this returns goes wherever the site went.

    The policies are asked as soon as the headers have come.  The body, if there is one, is read into memory that was
    granted before, and what is longer into a file.  A client over its limit is answered 429, everybody 503 while the
    server is full, and 413 for a body that is too large; all but the last say when to come again.

    @param site: a C{twisted.web.server.Site}, of whatever resources, or another C{HTTPFactory}.
    @param kindOf: what a request is, in one of a few dozen words at most, given a request whose headers have come:
        its method, unless given.  See L{byRoutes <admission.web.requestkinds.byRoutes>} and L{byKleinRoutes
        <admission.web.requestkinds.byKleinRoutes>}.
    @param nameOf: the principal and the client id of a request, or L{None} where nobody knows; its address, unless
        given.  See L{byHeader <admission.web.requestkinds.byHeader>}.
    @param refusalOf: how a request can be refused: C{Refusal.NEVER} for a health check, C{Refusal.DELAY} where the
        client is to wait instead.  By an error, unless given, and never for what a browser asks before a script may.
    @param maxBodyBytes: the largest body, or that by kind, where C{"other"} stands for all that are not named.
    @param spoolBytes: how much of a body is in memory.
    @param maxSpooledBytes: how much all bodies may have in files together; what is beyond that is answered 503.
    @param maxFormFields: how many fields a form may have that twisted.web parses, which it does in one turn of the
        reactor; what has more is answered 413.
    @param namesPolicies: whether a client is told which policy refuses it, and why.
    @param corsOrigins: the origins whose scripts may read refusals, or C{"*"}.  Where it is empty, a browser tells a
        script of another origin of a network error.
    @param clientHeader: the header in which the C{trustedProxies} of the admission name the client, if there are any:
        C{"x-forwarded-for"}, or C{"forwarded"} where they set that one.
    @param maxMessageBytes: the largest message that a client may send once its request has become a websocket; a longer
        one closes the connection.
    @param random: what spreads the times when to come again.
    @param inThread: how files are written; by the reactor's threads, unless given.
    @raise TypeError: for a site or a function that is none.
    @raise ValueError: for numbers that mean nothing, kinds that no request has, origins that no browser sends, or a
        site that is protected already.
    """
    if isinstance(site, WrappedFactory):
        raise ValueError(f"site={site!r}: it is protected already; listen with it as it is")
    if not isinstance(site, HTTPFactory):
        raise TypeError(f"site={site!r}: give a Site, as in Site(resource), or Site(app.resource()) of Klein")
    for name, function in (("kindOf", kindOf), ("nameOf", nameOf), ("refusalOf", refusalOf)):
        if not (callable(function) or (function is None and name != "kindOf")):
            raise TypeError(f"{name}={function!r}: give a function that takes a request")
    if not isinstance(maxBodyBytes, int | Mapping):
        raise TypeError(f"maxBodyBytes={maxBodyBytes!r}: write a number of bytes, or a dict of them by kind")
    limits = {"": maxBodyBytes} if isinstance(maxBodyBytes, int) else maxBodyBytes
    for kind, sizeBytes in limits.items():
        if not (isinstance(sizeBytes, int) and sizeBytes >= 0):
            raise ValueError(f"maxBodyBytes={sizeBytes!r}{f' of {kind}' if kind else ''}: write a number of bytes")
        if kind and (words := whyNone(kind, kindOf)):
            raise ValueError(f"maxBodyBytes of {kind!r}: {words}")
    if not (isinstance(spoolBytes, int) and spoolBytes >= MIN_SPOOL_BYTES):
        raise ValueError(f"spoolBytes={spoolBytes!r}: write a number of bytes, {formatBytes(MIN_SPOOL_BYTES)} or more")
    if not (isinstance(maxSpooledBytes, int) and maxSpooledBytes >= 0):
        raise ValueError(f"maxSpooledBytes={maxSpooledBytes!r}: write a number of bytes")
    if not (isinstance(maxFormFields, int) and maxFormFields >= 1):
        raise ValueError(f"maxFormFields={maxFormFields!r}: write a number, 1 or more")
    checkMessageBytes(maxMessageBytes)
    if isinstance(corsOrigins, str):
        raise TypeError(f"corsOrigins={corsOrigins!r}: give a list, as in [{corsOrigins!r}]")
    corsOrigins = list(corsOrigins)
    for origin in corsOrigins:
        if not (isinstance(origin, str) and _ORIGIN.fullmatch(origin)):
            words = "write it as browsers do, as in 'https://shop.example': lower case, no path, no usual port"
            raise ValueError(f"corsOrigins={[origin]!r}: {words}")
    proxies = admission.trustedProxies
    header = ClientHeader(clientHeader, TrustedProxies("127.0.0.1") if proxies is None else proxies)
    if inThread is None:
        inThread = partial(deferToThreadPool, admission.reactor, admission.reactor.getThreadPool())
    served = ServedSite(
        admission,
        kindOf,
        nameOf,
        refusalOf,
        maxBodyBytes,
        spoolBytes,
        Budget(maxSpooledBytes),
        maxFormFields,
        Refusals(Random() if random is None else random, namesPolicies, corsOrigins),
        None if proxies is None else header,
        inThread,
        maxMessageBytes,
    )
    factory = admission.wrap(_AdmittedChannels(site, served), countsBytes=False)
    factory.drainConnection = drain
    return factory

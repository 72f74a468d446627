# -*- test-case-name: tests.unit.web.test_site -*-
"""
What a request of twisted.web becomes whose site is protected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.python.failure import Failure
from twisted.python.reflect import qual
from twisted.web.iweb import INonQueuedRequestFactory
from zope.interface import alsoProvides

from .channels import HTTP1, HTTP2, connectionOf
from .exchange import Exchange
from .servedsite import ServedSite

_NOT_YET = object()

_PIECE_BYTES = 256 << 10
"""How much a stream of HTTP/2 is given at a time: for each frame Twisted copies all that is left of it."""


class AdmittedRequest:
    """
    Comes before the class of a site's own requests, and tells an L{Exchange} what happens to one.

    @ivar headBytes: about what its head takes in memory; zero where the connection is charged for that.
    @cvar takeBody: has the request take some of its body.
    @cvar begin: has the site work on it.
    """

    _served: ServedSite
    takeBody: Any
    begin: Any
    _exchange: Exchange | None = None
    _announcedBytes: Any = _NOT_YET
    headBytes = 0

    # Of twisted.web.
    channel: Any
    responseHeaders: Any
    startedWriting: Any
    _disconnected: Any

    def gotLength(self, length: int | None) -> None:
        isMultiplexed = self._isMultiplexed
        if not isMultiplexed:
            self.headBytes = HTTP1.headBytes(self.channel)
        if length == 0 and not (isMultiplexed and self.channel._conn.isUnended):
            super().gotLength(length)  # type: ignore[misc]
        elif isMultiplexed:
            # Other headers follow.  What is not over with its head may have a body, whatever its method.
            self._announcedBytes = length or None
        else:
            self._announce(length)

    def parseCookies(self) -> None:
        super().parseCookies()  # type: ignore[misc]
        if self._announcedBytes is not _NOT_YET:
            self._announce(self._announcedBytes)

    def handleContentChunk(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            # After headers that say that there is none.
            super().handleContentChunk(data)  # type: ignore[misc]
        elif exchange.takes(data):
            self.takeBody(data)
            exchange.took()

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            exchange = self._exchange = self._newExchange()
        exchange.whole(command, path, version)

    def write(self, data: bytes) -> None:
        isLast = self._served.admission.isStopping and not self.startedWriting
        # One whose client has gone has no channel.
        if isLast and not (self._disconnected or self._isMultiplexed):
            HTTP1.endsWith(self)
        exchange = self._exchange
        if exchange is None or not exchange.isMultiplexed:
            super().write(data)  # type: ignore[misc]
            return
        for start in range(0, len(data) or 1, _PIECE_BYTES):
            super().write(data[start : start + _PIECE_BYTES])  # type: ignore[misc]
        exchange.wrote(len(data))

    def finish(self) -> None:
        exchange = self._exchange
        if self._disconnected and exchange is not None:
            exchange.finishedLate()
        super().finish()  # type: ignore[misc]

    def _cleanup(self) -> None:
        # The end of finish, when all is written, and before the next request of the connection begins.
        if self._exchange is not None:
            self._exchange.finished()
        super()._cleanup()  # type: ignore[misc]

    def connectionLost(self, reason: Failure) -> None:
        super().connectionLost(reason)  # type: ignore[misc]
        if self._exchange is not None:
            self._exchange.lost()

    # What twisted.web.distrib sends of it to another process, which knows the site's own class

    def getTypeToCopy(self) -> bytes:
        return qual(type(self).__bases__[1]).encode()

    def getStateToCopyFor(self, issuer: Any) -> dict[str, Any]:
        state: dict[str, Any] = super().getStateToCopyFor(issuer)  # type: ignore[misc]
        return {name: value for name, value in state.items() if name not in ("_exchange", "_announcedBytes")}

    # What its channel calls

    def waitNoMore(self) -> None:
        """
        Its server stops: if it waits because its client owes something, it does so no more.
        """
        if self._exchange is not None:
            self._exchange.throttleOver()

    @property
    def _isMultiplexed(self) -> bool:
        return hasattr(self.channel, "streamID")

    def _newExchange(self) -> Exchange:
        isMultiplexed = self._isMultiplexed
        transport = self.channel._conn.transport if isMultiplexed else self.channel.transport
        return Exchange(self._served, self, connectionOf(transport), HTTP2 if isMultiplexed else HTTP1)

    def _announce(self, sizeBytes: int | None) -> None:
        exchange = self._exchange = self._newExchange()
        exchange.announced(sizeBytes)


def admittedFactory(served: ServedSite, requestFactory: Any) -> Callable[..., Any]:
    """
    What makes the requests of a protected site, in place of what makes those of a site that is not.

    @param requestFactory: a class, or a function that makes requests of any class.
    """

    classes: dict[type, Any] = {}

    def admitted(own: Any) -> Any:
        if own not in classes:
            known = {"_served": served, "takeBody": own.handleContentChunk, "begin": own.requestReceived}
            classes[own] = type(f"Admitted{own.__name__}", (AdmittedRequest, own), known | {"__module__": __name__})
        return classes[own]

    if isinstance(requestFactory, type):
        made: Callable[..., Any] = admitted(requestFactory)
    else:

        def made(*arguments: Any, **keywords: Any) -> Any:
            request = requestFactory(*arguments, **keywords)
            request.__class__ = admitted(type(request))
            return request

    if INonQueuedRequestFactory.providedBy(requestFactory):
        alsoProvides(made, INonQueuedRequestFactory)
    return made

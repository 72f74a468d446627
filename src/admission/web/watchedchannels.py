# -*- test-case-name: tests.unit.web.test_watchedchannels -*-
"""
Channels of twisted.web that say why they refuse something by themselves.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any
from weakref import ref

from .channels import connectionOf
from .servedsite import ServedSite


def watch(channel: Any, served: ServedSite) -> None:
    """
    Have what Twisted refuses by itself counted and logged like what we refuse, and have heads of HTTP/2 bounded.

    @param channel: a new one, which becomes one of HTTP/1.1 or HTTP/2.
    """
    http1 = getattr(channel, "_channel", channel)
    http1.__class__ = _watched(_WatchedHttp1, http1.__class__)
    if http1 is not channel:
        # No cycle: it may be that nothing is ever received.
        channel.dataReceived = partial(_begin, ref(channel), served)


class _WatchedHttp1:
    transport: Any

    def _respondToBadRequestAndDisconnect(self) -> None:
        connection = connectionOf(self.transport)
        connection.factory.refused(
            connection, "Twisted has answered 400: a request is malformed, or its head too large"
        )
        super()._respondToBadRequestAndDisconnect()  # type: ignore[misc]


def _begin(reference: ref[Any], served: ServedSite, data: bytes) -> None:
    channel = reference()
    assert channel is not None
    del channel.dataReceived
    if getattr(channel._channel.transport, "negotiatedProtocol", None) == b"h2":
        from .watchedhttp2 import WatchedHttp2

        # With nothing, Twisted makes what speaks HTTP/2.
        channel.dataReceived(b"")
        http2 = channel._channel
        http2.__class__ = _watched(WatchedHttp2, http2.__class__)
        http2.boundHeads(served)
    channel.dataReceived(data)


@cache
def _watched(mixin: Any, own: Any) -> Any:
    return type(own.__name__, (mixin, own), {"__module__": __name__})

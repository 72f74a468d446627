# -*- test-case-name: tests.unit.web.test_forwarded -*-
"""
The client whose request a reverse proxy passes on, by the header that the proxy sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..connection.trustedproxies import TrustedProxies
from ..names import canonicalAddress

MAX_PROXIES = 32
"""How many proxies in a row are believed."""


def _ofList(element: str) -> str:
    return element


def _ofPairs(element: str) -> str:
    for pair in element.split(";"):
        name, _, value = pair.partition("=")
        if name.strip().lower() == "for":
            return value.strip().strip('"')
    return ""


CLIENT_HEADERS: Mapping[str, Callable[[str], str]] = {"x-forwarded-for": _ofList, "forwarded": _ofPairs}
"""How each header that may be believed names a client in one of its elements (RFC 7239, section 4)."""


class ClientHeader:
    """
    The header by which trusted proxies say whose request they pass on.
    """

    def __init__(self, name: str, proxies: TrustedProxies) -> None:
        """
        @param name: of L{CLIENT_HEADERS}.  The proxies set it; what clients send by the other name is not read.
        @raise ValueError: for another.
        """
        reading = CLIENT_HEADERS.get(name.lower()) if isinstance(name, str) else None
        if reading is None:
            known = " or ".join(CLIENT_HEADERS)
            raise ValueError(f"clientHeader={name!r}: write the header that your proxies set, {known}")
        self._name = name
        self._addressIn = reading
        self._proxies = proxies

    def clientOf(self, headers: Any, host: str) -> str:
        """
        The address of the client: of those that the header names, each added by the one behind it, the last that is no
        trusted proxy's.

        @param headers: of the request, those of twisted.web.
        @param host: the address that it came from.
        """
        if host not in self._proxies:
            return host
        given: Iterable[str] = headers.getRawHeaders(self._name, ())
        # From behind: what a client made up comes first.
        for element in reversed(",".join(given).rsplit(",", MAX_PROXIES)[-MAX_PROXIES:]):
            address = _addressOf(self._addressIn(element.strip()))
            if address is None:
                return host
            host = address
            if host not in self._proxies:
                return host
        return host


def _addressOf(text: str) -> str | None:
    """
    An address, with or without a port, as those of connections are written; L{None} if it is none.
    """
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return canonicalAddress(text)
    except ValueError:
        return None

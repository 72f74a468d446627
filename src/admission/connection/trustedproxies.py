# -*- test-case-name: tests.unit.connection.test_trustedproxies -*-
"""
Which proxies are believed when they say who their clients are.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address, ip_network

UNIX = "unix"
"""Stands for the peers of UNIX sockets among networks."""


class TrustedProxies:
    """
    The networks of the proxies that are believed when they say whose connection or request they pass on.
    """

    def __init__(self, networks: str | Iterable[str]) -> None:
        """
        @param networks: such as C{"10.0.0.0/8"} or C{"192.0.2.1"}, or C{"unix"} for UNIX sockets; one, or several.
        @raise ValueError: for one that is none, or none at all.
        """
        self._includesUNIX = False
        self._networks = []
        for each in [networks] if isinstance(networks, str) else networks:
            if each == UNIX:
                self._includesUNIX = True
                continue
            try:
                self._networks.append(ip_network(each))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{each!r} is no network of proxies ({error}): write one as in 10.0.0.0/8 or 192.0.2.1, or unix"
                ) from error
        if not (self._networks or self._includesUNIX):
            raise ValueError("name the networks of your proxies, as in 10.0.0.0/8, or leave it out")
        self._isAmong = lru_cache(1000)(self._find)

    def __contains__(self, host: str) -> bool:
        """
        Whether a proxy at this address is believed.

        @param host: an address as L{hostOf <admission.connection.factory.hostOf>} gives it.
        """
        return self._isAmong(host)

    def _find(self, host: str) -> bool:
        if not host:
            return self._includesUNIX
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        return any(address in each for each in self._networks)

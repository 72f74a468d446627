# -*- test-case-name: tests.unit.test_names -*-
"""
Names that clients choose, and that a server keeps; and addresses, by which they are known as well.
"""

from __future__ import annotations

from hashlib import blake2b
from ipaddress import ip_address
from socket import AF_INET, AF_INET6, inet_ntop
from typing import Final

MAX_NAME_BYTES: Final = 240
"""The longest name that is kept as it is, in UTF-8; what a recording has room for."""

_CERTAINLY_SHORT = MAX_NAME_BYTES // 4
_DIGEST_BYTES = 16


def boundedName(name: str) -> str:
    """
    What to keep of a name, so that a client's choice does not decide how much
    that is.  A longer name is represented by its beginning and a digest of all
    of it, so that two different ones stay different.
    """
    if len(name) <= _CERTAINLY_SHORT or (name.isascii() and len(name) <= MAX_NAME_BYTES):
        return name
    raw = name.encode("utf-8", "surrogatepass")
    if len(raw) <= MAX_NAME_BYTES:
        return name
    mark = f"...{blake2b(raw, digest_size=_DIGEST_BYTES).hexdigest()}"
    return raw[: MAX_NAME_BYTES - len(mark)].decode("utf-8", "ignore") + mark


def nameIn(what: str, name: object) -> str:
    """
    A name that code which is not ours gives for C{what}, bounded.

    @raise TypeError: if it is no text.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what}={name!r:.100}: give a str")
    return boundedName(name)


def canonicalAddress(text: str) -> str:
    """
    Write an address as those of connections are written: the way of the system, and IPv4 in IPv6 as IPv4.

    @raise ValueError: if it is no address.
    """
    address = ip_address(text)
    # An address of a link has the name of the link behind it.
    scope = getattr(address, "scope_id", None)
    address = getattr(address, "ipv4_mapped", None) or address
    written = inet_ntop(AF_INET if address.version == 4 else AF_INET6, address.packed)
    return written if scope is None or address.version == 4 else f"{written}%{scope}"

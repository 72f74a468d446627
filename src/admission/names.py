# -*- test-case-name: tests.unit.test_names -*-
"""
Names that clients choose, and that a server keeps; and addresses, by which they are known as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from ipaddress import ip_address
from secrets import token_bytes
from socket import AF_INET, AF_INET6, inet_ntop
from typing import Final

MAX_NAME_BYTES: Final = 240
"""The longest name that is kept as it is, in UTF-8; what a recording has room for."""

_CERTAINLY_SHORT = MAX_NAME_BYTES // 4
_DIGEST_BYTES = 16

MAX_IDENTITY_BYTES: Final = 64
"""How long an identity of bytes may be."""

IDENTITY_KEY_BYTES: Final = 32

_IDENTITY_DIGEST_BYTES = 8


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
    # Each request has some.
    return name if len(name) <= _CERTAINLY_SHORT else boundedName(name)


class IdentityNumbers:
    """
    What policies and recordings have of the identities that a request carries: integers as they are, and of bytes a
    number of 63 bits.
    """

    def __init__(self, key: bytes | None = None) -> None:
        """
        @param key: what bytes are hashed with, so that nobody who does not know it can tell them from the number, or
            choose two that have the same; L{IDENTITY_KEY_BYTES} bytes, random unless given.
        """
        self._key = token_bytes(IDENTITY_KEY_BYTES) if key is None else key

    def __call__(self, identities: Iterable[object]) -> tuple[int, ...]:
        """
        @raise TypeError: if one is neither.
        @raise ValueError: if one is out of range.
        """
        return tuple(map(self._numberOf, identities))

    def _numberOf(self, identity: object) -> int:
        if isinstance(identity, bytes):
            if not 0 < len(identity) <= MAX_IDENTITY_BYTES:
                raise ValueError(f"an identity has 1 to {MAX_IDENTITY_BYTES} bytes, and not {len(identity)}")
            digest = blake2b(identity, key=self._key, digest_size=_IDENTITY_DIGEST_BYTES).digest()
            return int.from_bytes(digest, "big") >> 1
        if type(identity) is not int:
            raise TypeError(f"identity={identity!r:.100}: give an int, or bytes")
        if not 0 <= identity < 1 << 63:
            raise ValueError(f"an identity is a number from 0 to {(1 << 63) - 1}, and not {identity}")
        return identity


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

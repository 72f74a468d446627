"""
Names of TLS clients: the subject of a certificate can be told from the name that a client gets by it, so that nobody
gets the name of another by what stands in a certificate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from admission.kafka.security.mutualtls import subjectName
from admission.names import MAX_NAME_BYTES, boundedName

MAX_BYTES = 512

_TYPES: Final = (
    (NameOID.COMMON_NAME, "CN"),
    (NameOID.ORGANIZATION_NAME, "O"),
    (NameOID.ORGANIZATIONAL_UNIT_NAME, "OU"),
    (NameOID.COUNTRY_NAME, "C"),
    (NameOID.EMAIL_ADDRESS, ""),
    (NameOID.SERIAL_NUMBER, ""),
)
_NEXT_COMPONENT: Final = 0x80
"""An attribute with this bit begins a component of the name; others belong to the one before."""

TOKENS = [b",", b"+", b"=", b"#", b"\\", b" ", b"CN=", b",O=Acme", b"\xc3\xa4", b"\x00", b'"']


def seeds() -> Sequence[bytes]:
    def attribute(number: int, text: bytes, isNext: bool = True) -> bytes:
        return bytes((number | (_NEXT_COMPONENT if isNext else 0), len(text))) + text

    return [
        attribute(0, b"client"),
        attribute(1, b"Acme") + attribute(0, b"client"),
        attribute(3, b"DE") + attribute(0, b"client, O=Acme"),
        attribute(0, b"#a") + attribute(2, b" b ", False),
        attribute(4, b"a" * 200),
        attribute(4, b"a@example.org") + attribute(5, b"12", False),
        attribute(0, b"a\\") + attribute(0, b'+<>;"'),
    ]


def _attributes(data: bytes) -> Iterator[tuple[bool, int, str]]:
    at = 0
    while at + 2 <= len(data):
        mark, sizeBytes = data[at], data[at + 1]
        text = data[at + 2 : at + 2 + sizeBytes].decode("utf-8", "replace")
        at += 2 + sizeBytes
        yield bool(mark & _NEXT_COMPONENT), (mark & ~_NEXT_COMPONENT) % len(_TYPES), text


def check(data: bytes) -> None:
    components: list[list[x509.NameAttribute[str]]] = []
    for isNext, number, text in _attributes(data):
        try:
            attribute = x509.NameAttribute(_TYPES[number][0], text)
        except ValueError:
            continue
        if isNext or not components:
            components.append([])
        if attribute not in components[-1]:
            components[-1].append(attribute)
    name = subjectName(x509.Name(map(x509.RelativeDistinguishedName, components)))
    assert len(boundedName(name).encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES
    assert _read(name) == [{_described(attribute) for attribute in each} for each in reversed(components)]


def _described(attribute: x509.NameAttribute[str]) -> tuple[str, str]:
    keyword = dict(_TYPES)[attribute.oid]
    if keyword:
        return keyword, attribute.value
    der = x509.Name([attribute]).public_bytes()
    # Its value ends it; the tag and the length come before.
    sizeBytes = len(attribute.value.encode())
    headBytes = 2 if sizeBytes < 0x80 else 3 if sizeBytes < 0x100 else 4
    return attribute.oid.dotted_string, der[-sizeBytes - headBytes :].hex()


def _read(name: str) -> list[set[tuple[str, str]]]:
    """What stands in a name by RFC 2253."""
    components: list[set[tuple[str, str]]] = []
    rest, isNext = name, True
    while rest:
        match = re.match(r"([A-Z]+|[0-9.]+)=((?:[^\\,+]|\\.)*)([,+]?)", rest, re.DOTALL)
        assert match is not None, rest
        keyword, value, separator = match.groups()
        text = value.removeprefix("#") if keyword[0].isdigit() else re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
        if isNext:
            components.append(set())
        components[-1].add((keyword, text))
        isNext = separator == ","
        rest = rest[match.end() :]
        assert bool(rest) == bool(separator), name
    return components

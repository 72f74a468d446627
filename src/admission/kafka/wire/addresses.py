# -*- test-case-name: tests.unit.kafka.wire.test_addresses -*-
"""
Replace the addresses of nodes in a response that was received whole, and in the
beginning of a large Metadata response.

Only lengths are read on the way to the addresses.  Everything else is copied, also
what kio does not know.  What is behind the last address is not looked at.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from .primitives import CLASSIC, FLEXIBLE, Dialect, MalformedResponse, unsignedVarint
from .relayedapis import RELAYED_BY_KEY, hasAddresses
from .responsewalk import TAG_NUMBER, Span, endsEarly, labelOf, taggedWalkFor, walked, walkFor
from .versions import METADATA

#: kio's names of the fields that make an address, in their order.  A node id has either name.
ADDRESS: Final = ("node_id", "broker_id", "host", "port")

#: Given a node's id, host and port, returns the host and port to be told to clients.
Readdress: TypeAlias = Callable[[int, str, int], tuple[str, int]]

#: Where the bytes to replace begin, where they end, and what replaces them.
_Replacement: TypeAlias = tuple[int, int, bytes]

_INT32: Final = struct.Struct(">i")


def withAddresses(apiKey: int, apiVersion: int, body: bytes, readdress: Readdress) -> bytes:
    """
    Replace the address of every node in the body of a response.

    An empty host is no address: FindCoordinator sends one while there is no
    coordinator.

    @param apiKey: an API that is relayed in C{apiVersion}.
    @param readdress: may be called more than once for the same node.
    @raise MalformedResponse: if the body ends early, a length makes no sense or a
        host is not UTF-8.
    """
    if not hasAddresses(apiKey, apiVersion):
        return body
    found = _find(apiKey, apiVersion, body, readdress)
    if found is None:
        raise endsEarly(apiKey, apiVersion)
    return _replaced(body, found[1])


def metadataHead(apiVersion: int, prefix: bytes, readdress: Readdress) -> tuple[int, bytes] | None:
    """
    Replace the addresses at the beginning of a Metadata response, so that the rest,
    which may be large, can be passed on as it is received.

    @param prefix: the beginning of the body.
    @return: how many bytes of C{prefix} are replaced and by what; the frame's length
        changes by the difference.  L{None} if more of the body is needed.
    @raise MalformedResponse: if a length makes no sense or a host is not UTF-8.
    """
    found = _find(METADATA, apiVersion, prefix, readdress)
    if found is None:
        return None
    end, replacements = found
    return end, _replaced(prefix[:end], replacements)


def _find(apiKey: int, apiVersion: int, prefix: bytes, readdress: Readdress) -> tuple[int, list[_Replacement]] | None:
    """
    The position behind the last address and what to replace before it; L{None} if
    the last address is not in C{prefix}.
    """
    spans: list[Span] = []
    end = walked(walkFor(apiKey, apiVersion, ADDRESS), prefix, spans)
    if end is None:
        return None
    dialect = FLEXIBLE if RELAYED_BY_KEY[apiKey].isFlexible(apiVersion) else CLASSIC
    try:
        if spans and spans[0].name == TAG_NUMBER:
            fields = [span for span in spans if span.name != TAG_NUMBER]
            return end, [_inTaggedField(apiKey, apiVersion, prefix, each, readdress) for each in fields]
        return end, list(_readdressed(dialect, prefix, spans, readdress))
    except UnicodeDecodeError:
        raise MalformedResponse(f"{labelOf(apiKey, apiVersion)} has a host that is not UTF-8") from None


def _inTaggedField(apiKey: int, apiVersion: int, body: bytes, taggedField: Span, readdress: Readdress) -> _Replacement:
    value = body[taggedField.begin : taggedField.end]
    spans: list[Span] = []
    if walked(taggedWalkFor(apiKey, apiVersion, ADDRESS), value, spans) != len(value):
        raise MalformedResponse(
            f"{labelOf(apiKey, apiVersion)} has a tagged field {taggedField.name} that is not as long as it says"
        )
    value = _replaced(value, list(_readdressed(FLEXIBLE, value, spans, readdress)))
    return taggedField.lengthAt, taggedField.end, unsignedVarint(len(value)) + value


def _readdressed(dialect: Dialect, body: bytes, spans: list[Span], readdress: Readdress) -> Iterator[_Replacement]:
    for nodeId, host, port in zip(*[iter(spans)] * 3, strict=True):
        if host.begin < host.end:
            newHost, newPort = readdress(
                _INT32.unpack_from(body, nodeId.begin)[0],
                str(body[host.begin : host.end], "utf-8"),
                _INT32.unpack_from(body, port.begin)[0],
            )
            yield host.lengthAt, port.end, dialect.string(newHost) + _INT32.pack(newPort)


def _replaced(body: bytes, replacements: list[_Replacement]) -> bytes:
    parts: list[bytes] = []
    copiedTo = 0
    for begin, end, replacement in replacements:
        parts += body[copiedTo:begin], replacement
        copiedTo = end
    parts.append(body[copiedTo:])
    return b"".join(parts)

# -*- test-case-name: tests.unit.kafka.wire.test_versioncut -*-
"""
Tell clients only of the versions that a gateway understands.
"""

import struct
from collections.abc import Mapping
from typing import Final

from .primitives import CLASSIC, FLEXIBLE, PAST_THE_END, Dialect, MalformedRequest, MalformedResponse
from .relayedapis import RELAYED_BY_KEY
from .responsewalk import endsEarly
from .versions import API_VERSIONS, PRODUCE

_ERROR_CODE: Final = struct.Struct(">h")
_RANGE: Final = struct.Struct(">hhh")

_UNSUPPORTED_VERSION: Final = 35

_AS_KNOWN: Final[Mapping[int, int]] = {}

_MAX_APIS: Final = 1_000
"""How many APIs a node may name; Kafka has not a hundred."""


def versionOfForm(apiVersion: int, body: bytes) -> int:
    """
    The version in whose form a response to ApiVersions is: 0 if the node does not
    know C{apiVersion} (KIP-511).

    @raise MalformedResponse: if the body ends early.
    """
    if len(body) < _ERROR_CODE.size:
        raise endsEarly(API_VERSIONS, apiVersion)
    return 0 if _ERROR_CODE.unpack_from(body)[0] == _UNSUPPORTED_VERSION else apiVersion


def cutApiVersions(apiVersion: int, body: bytes, newest: Mapping[int, int] = _AS_KNOWN) -> bytes:
    """
    Cut the ranges in a response to ApiVersions to what L{RELAYED_BY_KEY} says, and
    remove APIs of which nothing is left.

    The oldest version of Produce stays as the node says it: librdkafka up to 2.8
    silently stores its batches uncompressed otherwise (KAFKA-18659).

    @param apiVersion: that of the request; one that is relayed.
    @param newest: by API, the newest version to tell of, if it is older than what is understood.
    @return: the body with everything else as it was, such as features.
    @raise MalformedResponse: if the body ends early or a length makes no sense.
    """
    isFlexible = RELAYED_BY_KEY[API_VERSIONS].isFlexible(versionOfForm(apiVersion, body))
    try:
        return _cut(FLEXIBLE if isFlexible else CLASSIC, body, newest)
    except PAST_THE_END:
        raise endsEarly(API_VERSIONS, apiVersion) from None
    except MalformedRequest as malformed:
        raise MalformedResponse(f"in a response to ApiVersions v{apiVersion} {malformed}") from None


def _cut(dialect: Dialect, body: bytes, newest: Mapping[int, int]) -> bytes:
    # Null comes out as empty; Kafka sends neither.
    count, offset = dialect.readLength(body, _ERROR_CODE.size)
    if count > _MAX_APIS:
        raise MalformedRequest(f"there are {count} APIs where {_MAX_APIS} may be")
    kept = []
    for _ in range(count):
        begin = offset
        apiKey, minVersion, maxVersion = _RANGE.unpack_from(body, begin)
        offset = dialect.skipTags(body, begin + _RANGE.size)
        api = RELAYED_BY_KEY.get(apiKey)
        if api is not None:
            minVersion = minVersion if apiKey == PRODUCE else max(minVersion, api.minVersion)
            maxVersion = min(maxVersion, newest.get(apiKey, api.maxVersion))
            if minVersion <= maxVersion:
                kept.append(_RANGE.pack(apiKey, minVersion, maxVersion) + body[begin + _RANGE.size : offset])
    if offset > len(body):
        raise IndexError(offset)
    return b"".join((body[: _ERROR_CODE.size], dialect.length(len(kept)), *kept, body[offset:]))

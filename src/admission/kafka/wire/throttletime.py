# -*- test-case-name: tests.unit.kafka.wire.test_throttletime -*-
"""
Throttle times: how the protocol says them, and how to raise one in a response that is passed on.
"""

import math
import struct
from typing import Final

from .relayedapis import hasThrottleTime, throttleTimeOffset
from .responsewalk import Span, endsEarly, walked, walkFor
from .versioncut import versionOfForm
from .versions import API_VERSIONS

_INT32: Final = struct.Struct(">i")


def throttleTimeMs(delaySeconds: float) -> int:
    """
    Convert a delay to the unit of the protocol: whole milliseconds, never
    negative, rounded up so that no client comes back early.
    """
    return max(math.ceil(delaySeconds * 1000), 0)


def withLongerThrottle(apiKey: int, apiVersion: int, body: bytes, throttleMs: int) -> tuple[bytes, int]:
    """
    Raise the throttle time of a response to C{throttleMs}, unless it is longer.

    @param apiKey: an API that is relayed in C{apiVersion}.
    @param body: the whole body; where L{throttleTimeOffset} is known, as much of its
        beginning as reaches behind the throttle time.
    @return: the body and the node's own throttle time, in milliseconds; 0 if the
        response has none.
    @raise MalformedResponse: if the body ends early or a length makes no sense.
    """
    if apiKey == API_VERSIONS:
        apiVersion = versionOfForm(apiVersion, body)
    if not hasThrottleTime(apiKey, apiVersion):
        return body, 0
    offset = throttleTimeOffset(apiKey, apiVersion)
    if offset is None:
        offset = _search(apiKey, apiVersion, body)
    end = offset + _INT32.size
    if end > len(body):
        raise endsEarly(apiKey, apiVersion)
    (ownMs,) = _INT32.unpack_from(body, offset)
    if ownMs >= throttleMs:
        return body, ownMs
    return b"".join((body[:offset], _INT32.pack(throttleMs), body[end:])), ownMs


def _search(apiKey: int, apiVersion: int, body: bytes) -> int:
    spans: list[Span] = []
    if walked(walkFor(apiKey, apiVersion, ("throttle_time",)), body, spans) is None:
        raise endsEarly(apiKey, apiVersion)
    return spans[0].begin

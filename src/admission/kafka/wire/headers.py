"""
The headers of requests and responses.
"""

import struct
from collections.abc import Mapping
from typing import Final

from attrs import define

from admission.names import boundedName

from .primitives import NO_TAGS, PAST_THE_END, Buffer, MalformedRequest, sizeOf, skipTags
from .versions import API_VERSIONS, FLEXIBLE_FROM

_FIXED: Final = struct.Struct(">hhih")
_LENGTH_AND_CORRELATION: Final = struct.Struct(">ii")
_CORRELATION_BYTES: Final = 4

# No API gets that far; it stands for those that are not known.
_NEVER: Final = 2**15


@define
class RequestHeader:
    """
    The header of one request.  Do not change it; frozen it would cost twice
    as much to create.

    @ivar apiKey: the number of the API.
    @ivar apiVersion: its version, served or not.
    @ivar correlationId: to be repeated in the response.
    @ivar clientId: the name the client gives itself, if any, as L{boundedName}
        makes it.
    @ivar bodyOffset: where the body begins, counted like the C{offset} given
        to L{parseRequestHeader}.  Meaningless for an API that is not known.
    """

    apiKey: int
    apiVersion: int
    correlationId: int
    clientId: str | None
    bodyOffset: int


def parseRequestHeader(
    buffer: Buffer, offset: int = 0, flexibleFrom: Mapping[int, int] = FLEXIBLE_FROM
) -> RequestHeader:
    """
    Read the header of a request.

    The client id is a string with a two-byte length even in flexible headers.
    Tagged fields are skipped, known or not.  An API that is not known is
    not an error here: the caller decides what to do with it.

    @param buffer: the whole frame.
    @param offset: where in it the header begins, after the length prefix if
        that is still there.
    @param flexibleFrom: by API key the first version with tagged fields; of
        the APIs that the broker serves, unless somebody else is asking.
    @raise MalformedRequest: if the frame ends early, a length is negative or
        the client id is not UTF-8.
    """
    try:
        apiKey, apiVersion, correlationId, clientIdBytes = _FIXED.unpack_from(buffer, offset)
        bodyOffset = offset + _FIXED.size
        clientId = None
        if clientIdBytes >= 0:
            # Whatever lives longer than the frame has this name: meters, parked requests, members of groups.
            clientId = boundedName(str(buffer[bodyOffset : bodyOffset + clientIdBytes], "utf-8"))
            bodyOffset += clientIdBytes
        elif clientIdBytes < -1:
            raise MalformedRequest(f"a request header says that its client id has {clientIdBytes} bytes")
        if apiVersion >= flexibleFrom.get(apiKey, _NEVER):
            bodyOffset = skipTags(buffer, bodyOffset)
    except UnicodeDecodeError:
        raise MalformedRequest("the client id in a request header is not UTF-8") from None
    except PAST_THE_END:
        raise _cutOff(buffer, offset) from None
    # A client id or tagged field that goes on past the end shows only here.
    if bodyOffset > len(buffer):
        raise _cutOff(buffer, offset)
    return RequestHeader(apiKey, apiVersion, correlationId, clientId, bodyOffset)


def _cutOff(buffer: Buffer, offset: int) -> MalformedRequest:
    return MalformedRequest(f"a request of {len(buffer) - offset} bytes ends within its header")


def hasResponseTags(apiKey: int, apiVersion: int, flexibleFrom: Mapping[int, int] = FLEXIBLE_FROM) -> bool:
    """
    Whether tagged fields follow the correlation id in the header of a response.

    The header of an ApiVersions response never has them, so that a client can
    read it before it knows the broker's versions (KIP-511).

    @param flexibleFrom: as for L{parseRequestHeader}.
    """
    return apiKey != API_VERSIONS and apiVersion >= flexibleFrom.get(apiKey, _NEVER)


def frame(header: RequestHeader, parts: list[bytes], flexibleFrom: Mapping[int, int] = FLEXIBLE_FROM) -> list[bytes]:
    """
    Make the body of a response into a frame: length, correlation id and, in
    flexible versions, empty tagged fields come first.

    @param header: of the request that is answered.
    @param parts: the body, which is neither copied nor joined.
    @param flexibleFrom: as for L{parseRequestHeader}.
    """
    tags = NO_TAGS if hasResponseTags(header.apiKey, header.apiVersion, flexibleFrom) else b""
    sizeBytes = _CORRELATION_BYTES + len(tags) + sizeOf(parts)
    return [_LENGTH_AND_CORRELATION.pack(sizeBytes, header.correlationId) + tags, *parts]

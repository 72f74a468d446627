# -*- test-case-name: tests.unit.kafka.wire.test_requests -*-
"""
The client's side of the protocol: requests are encoded, responses decoded.

A broker is trusted no more than a client: its messages pass the guard
before kio sees them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from attrs import frozen
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader
from kio.static.protocol import Entity

from .codec import encodeEntity
from .fetch import decodeFetchResponse
from .guard import countElementsOf
from .primitives import NO_TAGS, PAST_THE_END, MalformedRequest, MalformedResponse, sizeOf, skipTags
from .versions import API_VERSIONS, FETCH

#: How many array elements one response may decode to, at all depths together, unless its reader says otherwise.
MAX_ELEMENTS: Final = 250_000

_LENGTH_AND_FIXED: Final = struct.Struct(">ihhih")
_LENGTH_BYTES: Final = 4
_CORRELATION: Final = struct.Struct(">i")

#: Newer versions name topics only by their ids.
_NEWEST_WITH_TOPIC_NAMES: Final[Mapping[str, int]] = {"Produce": 12, "Fetch": 12, "OffsetCommit": 9, "OffsetFetch": 9}


@frozen
class ClientApi:
    """
    An API as a client can use it.

    @ivar apiKey: the number that the protocol gives it.
    @ivar name: as Kafka's documentation spells it.
    @ivar minVersion: the oldest version that we speak.
    @ivar maxVersion: the newest version that we speak.
    """

    apiKey: int
    name: str
    minVersion: int
    maxVersion: int

    def newestVersion(self, minVersion: int, maxVersion: int) -> int | None:
        """
        The newest version that we share with a broker.

        @param minVersion: the oldest version that the broker speaks.
        @param maxVersion: the newest version that the broker speaks.
        @return: L{None} if there is none.
        """
        version = min(self.maxVersion, maxVersion)
        return version if version >= max(self.minVersion, minVersion) else None


@cache
def clientApi(name: str) -> ClientApi:
    """
    An API by its name, such as C{"Metadata"} or C{"JoinGroup"}.

    @raise ValueError: if no API has that name.
    """
    api = _apis().get(name)
    if api is None:
        raise ValueError(f"there is no API {name!r}")
    return api


@cache
def _apis() -> dict[str, ClientApi]:
    apis = {}
    for apiKey, snakeName in api_key_map.items():
        name = "".join(map(str.capitalize, snakeName.split("_")))
        versions = sorted(schema_name_map[snakeName])
        newest = _NEWEST_WITH_TOPIC_NAMES.get(name, versions[-1])
        apis[name] = ClientApi(apiKey, name, versions[0], newest)
    return apis


def encodeRequest(
    api: ClientApi, apiVersion: int, correlationId: int, clientId: str | None, fields: Mapping[str, Any]
) -> list[bytes]:
    """
    Encode a request, as a frame with its length.

    C{fields} are given as L{admission.kafka.wire.codec.encodeResponse} takes a
    response: one dictionary for all versions, in snake case, times as integers
    whose names end in C{_ms}.  Fields that a version lacks are left out; missing
    keys get the schema's default or else zero, empty or null.

    @param correlationId: repeated in the response.
    @param clientId: the name that the client gives itself, if any.
    @return: parts to be written one after another.
    @raise struct.error: if a number does not fit its field.
    """
    entityType = _requestType(api.apiKey, apiVersion)
    body = encodeEntity(entityType, fields)
    name = b"" if clientId is None else clientId.encode()
    tags = NO_TAGS if entityType.__flexible__ else b""
    headBytes = _LENGTH_AND_FIXED.size + len(name) + len(tags)
    head = _LENGTH_AND_FIXED.pack(
        headBytes - _LENGTH_BYTES + sizeOf(body),
        api.apiKey,
        apiVersion,
        correlationId,
        -1 if clientId is None else len(name),
    )
    return [head + name + tags, *body]


def readCorrelationId(frame: bytes) -> int:
    """
    The correlation id of a response.

    @param frame: the response without its length.
    @raise MalformedResponse: if it is too short to have one.
    """
    if len(frame) < _CORRELATION.size:
        raise MalformedResponse(f"a response of {len(frame)} bytes ends within its header")
    correlationId: int = _CORRELATION.unpack_from(frame)[0]
    return correlationId


def decodeResponse(api: ClientApi, apiVersion: int, frame: bytes, maxElements: int = MAX_ELEMENTS) -> Any:
    """
    Decode a response.

    @param apiVersion: the version of the request.
    @param frame: the response with its header and without its length.
    @param maxElements: how many array elements to allow, at all depths together.
    @return: kio's entity for this version, whose durations are C{timedelta};
        of Fetch a L{admission.kafka.wire.fetch.FetchResponse}, whose records are
        views of C{frame}.
    @raise MalformedResponse: if the guard or kio refuse it, or bytes are left over.
    """
    label = f"a response to {api.name} v{apiVersion}"
    entityType = _responseType(api.apiKey, apiVersion)
    try:
        offset = _CORRELATION.size
        # A client must be able to read this header before it knows the broker's versions (KIP-511).
        if entityType.__flexible__ and api.apiKey != API_VERSIONS:
            offset = skipTags(frame, offset)
        body = memoryview(frame)[offset:]
        if api.apiKey == FETCH:
            return decodeFetchResponse(apiVersion, body, maxElements)
        countElementsOf(entityType, label, body, maxElements)
        entity, sizeBytes = _readerFor(entityType)(body, 0)
    except MalformedRequest as refusal:
        raise MalformedResponse(str(refusal)) from None
    except PAST_THE_END:
        raise MalformedResponse(f"{label} ends before its fields do") from None
    except Exception as refusal:
        # kio reports bad values by half a dozen unrelated exceptions.
        raise MalformedResponse(f"{label} has a field that makes no sense: {refusal}") from refusal
    if sizeBytes != len(body):
        raise MalformedResponse(f"{len(body) - sizeBytes} bytes are left over behind {label}")
    return entity


@cache
def _requestType(apiKey: int, apiVersion: int) -> type[Entity]:
    return load_request_schema(apiKey, apiVersion)


@cache
def _responseType(apiKey: int, apiVersion: int) -> type[Entity]:
    return load_response_schema(apiKey, apiVersion)


@cache
def _readerFor(entityType: type[Entity]) -> Callable[[memoryview, int], tuple[Any, int]]:
    return entity_reader(entityType)

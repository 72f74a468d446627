"""
What a client decodes: responses of brokers, and what members of groups tell one another.  Nothing but the documented
errors comes out; there are no more elements than were allowed; Fetch, which is read by hand, is read as kio reads it;
what was decoded is the same after it was encoded and decoded again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from kio.index import load_response_schema
from kio.serial import entity_reader

from admission.kafka.client.assignors import (
    MalformedMembership,
    decodeAssignment,
    decodeSubscription,
    encodeAssignment,
    encodeSubscription,
)
from admission.kafka.client.subscriptionstate import TopicPartition
from admission.kafka.wire.fetch import FetchResponse
from admission.kafka.wire.requests import (
    ClientApi,
    MalformedResponse,
    clientApi,
    decodeResponse,
    readCorrelationId,
)
from admission.kafka.wire.versions import API_VERSIONS, APIS, FETCH, Api
from tests.kit.brokerfixture import encode
from tests.kit.kioentities import arrayElements

from ..bounds import bounded
from ..seedmaking import emptyMessage, filledMessage

_MAX_ELEMENTS: Final = 1000
_ELEMENT_BYTES: Final = 512
_BYTES_PER_BYTE: Final = 4
_FIXED_BYTES: Final = 32 << 10

_KEY: Final = struct.Struct(">hh")
_SUBSCRIPTION, _ASSIGNMENT = -1, -2


_PLACES: Final = [TopicPartition("events", 0), TopicPartition("events", 1), TopicPartition("others", 7)]


@cache
def _apis() -> Mapping[int, ClientApi]:
    return {api.apiKey: clientApi(api.name) for api in APIS}


@cache
def _reader(apiKey: int, apiVersion: int) -> Any:
    return entity_reader(load_response_schema(apiKey, apiVersion))


def seeds() -> Iterator[bytes]:
    for api in APIS:
        for apiVersion in range(api.minVersion, api.maxVersion + 1):
            entityType: Any = load_response_schema(api.apiKey, apiVersion)
            header = _KEY.pack(api.apiKey, apiVersion) + bytes(4) + _tags(api, entityType)
            yield header + filledMessage(entityType)
            if apiVersion == api.maxVersion:
                yield header + emptyMessage(entityType)
    for version in range(4):
        yield _KEY.pack(_SUBSCRIPTION, 0) + encodeSubscription(("events", "others"), _PLACES, 3, version)
        yield _KEY.pack(_ASSIGNMENT, 0) + encodeAssignment(_PLACES, version)


def _tags(api: Api, entityType: Any) -> bytes:
    return b"\x00" if entityType.__flexible__ and api.apiKey != API_VERSIONS else b""


def check(data: bytes) -> None:
    if len(data) < _KEY.size:
        return
    apiKey, apiVersion = _KEY.unpack_from(data)
    message = data[_KEY.size :]
    if apiKey in (_SUBSCRIPTION, _ASSIGNMENT):
        _checkMembership(message, apiKey == _SUBSCRIPTION)
        return
    api = _apis().get(apiKey)
    if api is None or not api.minVersion <= apiVersion <= api.maxVersion:
        return
    try:
        readCorrelationId(message)
    except MalformedResponse:
        return

    def decode() -> Any:
        try:
            return decodeResponse(api, apiVersion, message, _MAX_ELEMENTS)
        except MalformedResponse as refusal:
            assert not isinstance(refusal.__cause__, MemoryError | RecursionError | SystemError), refusal
            return None

    # An element takes a byte or more.
    elementBytes = min(_MAX_ELEMENTS, len(message)) * _ELEMENT_BYTES
    decoded = bounded(decode, elementBytes + _BYTES_PER_BYTE * len(message) + _FIXED_BYTES)
    if decoded is None:
        return
    if isinstance(decoded, FetchResponse):
        assert len(decoded.partitions) <= _MAX_ELEMENTS
        _checkFetch(apiVersion, message, decoded)
        return
    assert arrayElements(decoded) <= _MAX_ELEMENTS
    again = encode(decoded)
    entity, sizeBytes = _reader(apiKey, apiVersion)(again, 0)
    assert sizeBytes == len(again)
    assert encode(entity) == again


def _checkFetch(apiVersion: int, message: bytes, decoded: FetchResponse) -> None:
    entityType: Any = load_response_schema(FETCH, apiVersion)
    if entityType.__flexible__ and message[4]:
        # Tags of the header, whose length is not known here.
        return
    body = message[5 if entityType.__flexible__ else 4 :]
    try:
        expected, sizeBytes = _reader(FETCH, apiVersion)(body, 0)
    except Exception:
        # It knows fewer tagged fields and error codes.
        return
    if sizeBytes != len(body):
        # It does not look at the sizes of tagged fields, by which they are skipped here.
        return
    assert decoded.errorCode == getattr(expected, "error_code", 0)
    assert decoded.sessionId == getattr(expected, "session_id", 0)
    # kio reads null as nothing where the reader by hand has no records.
    assert [(each.partitionIndex, each.highWatermark, bytes(each.records)) for each in decoded.partitions] == [
        (each.partition_index, each.high_watermark, each.records or b"")
        for topic in expected.responses or ()
        for each in topic.partitions or ()
    ]


def _checkMembership(message: bytes, isSubscription: bool) -> None:
    try:
        if isSubscription:
            topics = decodeSubscription(message)
            assert len(topics) <= len(message)
            assert decodeSubscription(encodeSubscription(topics)) == topics
        else:
            places = decodeAssignment(message)
            assert len(places) <= len(message)
            assert sorted(decodeAssignment(encodeAssignment(places))) == sorted(places)
    except MalformedMembership as refusal:
        assert not isinstance(refusal.__cause__, MemoryError | RecursionError | SystemError), refusal

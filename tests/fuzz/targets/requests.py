"""
Requests, from the header on: nothing but L{MalformedRequest} comes out; what the guard accepts is decoded, if at all,
to no more elements than it has counted and in no more memory than the broker charges for; what was decoded is the same
after it was encoded and decoded again; Produce, which is read by hand, is read as kio reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from kio.index import load_request_schema
from kio.serial import entity_reader

from admission.kafka.broker.brokerbackend import DECODED_ELEMENT_BYTES
from admission.kafka.wire.codec import decodeRequest
from admission.kafka.wire.guard import countElements
from admission.kafka.wire.headers import parseRequestHeader
from admission.kafka.wire.primitives import MalformedRequest
from admission.kafka.wire.produce import parseProduce
from admission.kafka.wire.versions import APIS, PRODUCE, Api, served
from admission.names import MAX_NAME_BYTES
from tests.kit.brokerfixture import batchOf, encode, produceFields, requestFrame, requestOf
from tests.kit.kioentities import arrayElements

from ..bounds import bounded
from ..seedmaking import emptyMessage, filledMessage, requestHeader

_FIXED_BYTES: Final = 32 << 10
"""What decoding takes whatever is decoded: the entity, exceptions, and what a fuzzer notes of branches."""

_BYTES_PER_BYTE: Final = 3
"""Text is copied, may be kept in a wider form, and is copied into messages."""


def seeds() -> Iterator[bytes]:
    for api in APIS:
        for apiVersion in range(api.minVersion, api.maxVersion + 1):
            entityType: Any = load_request_schema(api.apiKey, apiVersion)
            header = requestHeader(entityType, 1)
            yield header + filledMessage(entityType)
            if apiVersion == api.maxVersion:
                yield header + emptyMessage(entityType)
    for apiVersion in (3, 8, 9, 12):
        yield requestFrame(requestOf("Produce", apiVersion, **produceFields("events", batchOf(b"1", b"2"))), 1)[4:]


@cache
def _reader(apiKey: int, apiVersion: int) -> Any:
    return entity_reader(load_request_schema(apiKey, apiVersion))


def check(data: bytes) -> None:
    try:
        header = parseRequestHeader(memoryview(data))
    except MalformedRequest:
        return
    assert header.clientId is None or len(header.clientId.encode()) <= MAX_NAME_BYTES
    api = served(header.apiKey, header.apiVersion)
    if api is None:
        return
    assert 0 < header.bodyOffset <= len(data)
    body = data[header.bodyOffset :]
    try:
        elementCount: int | None = countElements(api, header.apiVersion, body)
    except MalformedRequest:
        elementCount = None
    if api.apiKey == PRODUCE:
        _checkProduce(data, header.bodyOffset, header.apiVersion, elementCount)
    if elementCount is None:
        return
    assert elementCount <= api.maxElements
    decoded = _decoded(api, header.apiVersion, body, elementCount)
    if decoded is not None:
        again = encode(decoded)
        assert countElements(api, header.apiVersion, again) == arrayElements(decoded)
        entity, _ = decodeRequest(api, header.apiVersion, again)
        # Not compared as entities: what is no number equals nothing.
        assert encode(entity) == again


def _decoded(api: Api, apiVersion: int, body: bytes, elementCount: int) -> Any:
    def decode() -> Any:
        try:
            return decodeRequest(api, apiVersion, body)
        except MalformedRequest as refusal:
            assert not isinstance(refusal.__cause__, MemoryError | RecursionError | SystemError), refusal
            return None

    decoded = bounded(decode, elementCount * DECODED_ELEMENT_BYTES + _BYTES_PER_BYTE * len(body) + _FIXED_BYTES)
    if decoded is None:
        return None
    entity, count = decoded
    assert count == elementCount
    assert arrayElements(entity) <= elementCount
    return entity


def _checkProduce(data: bytes, bodyOffset: int, apiVersion: int, elementCount: int | None) -> None:
    view = memoryview(data)
    try:
        produced = parseProduce(view, bodyOffset, apiVersion)
    except MalformedRequest:
        produced = None
    expected = sizeBytes = None
    if elementCount is not None:
        try:
            expected, sizeBytes = _reader(PRODUCE, apiVersion)(view[bodyOffset:], 0)
        except Exception:
            # Which exceptions kio raises is the concern of decodeRequest.
            pass
    if produced is None:
        # kio's decoder lets bytes follow, and knows no other reason.
        assert expected is None or sizeBytes != len(data) - bodyOffset
        return
    if expected is None:
        return
    assert produced.elementCount == elementCount == arrayElements(expected)
    assert produced.transactionalId == expected.transactional_id
    assert produced.acks == expected.acks
    assert [(each.topicName, each.partitionIndex, _bytes(each.records)) for each in produced.partitions] == [
        (topic.name, partition.index, partition.records)
        for topic in expected.topic_data
        for partition in topic.partition_data
    ]


def _bytes(records: memoryview | None) -> bytes | None:
    return None if records is None else bytes(records)

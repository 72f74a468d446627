"""Tests for L{admission.kafka.wire.codec}."""

import dataclasses
import datetime
import struct
from itertools import pairwise
from typing import Any
from uuid import UUID

from attrs import evolve
from hypothesis import given, strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire import codec
from admission.kafka.wire.codec import (
    Rows,
    decodeRequest,
    encodeInSteps,
    encodeResponse,
    isSmallResponse,
    withThrottleTime,
)
from admission.kafka.wire.guard import GuardRefusal
from admission.kafka.wire.primitives import MalformedRequest
from admission.kafka.wire.versions import (
    API_VERSIONS,
    BY_KEY,
    CREATE_TOPICS,
    FETCH,
    FIND_COORDINATOR,
    LIST_GROUPS,
    METADATA,
    PRODUCE,
    Api,
    advertised,
)
from tests.kit.brokerfixture import encode
from tests.kit.kioentities import arrayElements, entities, everyVersion, fewExamples

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def _asHandlersSay(value: Any) -> Any:
    """Make of a kio entity the dictionary that a handler would have given for it."""
    if isinstance(value, tuple):
        return [_asHandlersSay(element) for element in value]
    if isinstance(value, ErrorCode):
        return int(value)
    if not dataclasses.is_dataclass(value):
        return value
    fields = {}
    for member in dataclasses.fields(value):
        said = _asHandlersSay(getattr(value, member.name))
        kafkaType = member.metadata.get("kafka_type", "")
        if kafkaType.startswith("timedelta"):
            fields[f"{member.name}_ms"] = said // _MILLISECOND
        elif kafkaType.startswith("datetime"):
            fields[f"{member.name}_ms"] = -1 if said is None else (said - _EPOCH) // _MILLISECOND
        else:
            fields[member.name] = said
    return fields


def _decoded(apiKey: int, apiVersion: int, response: dict[str, Any]) -> Any:
    """What a client reads of a response."""
    return _decodedBody(apiKey, apiVersion, encodeResponse(apiKey, apiVersion, response))


def _decodedBody(apiKey: int, apiVersion: int, parts: list[bytes]) -> Any:
    """Decode all of a response's body as that of C{apiVersion}."""
    body = b"".join(parts)
    entity, offset = entity_reader(load_response_schema(apiKey, apiVersion))(body, 0)
    if offset != len(body):
        raise AssertionError(f"{len(body) - offset} bytes are left over")
    return entity


class DecodeRequestTests(SynchronousTestCase):
    """L{decodeRequest} is kio behind the guard."""

    def test_decodes(self) -> None:
        """Every request comes back as it was encoded, with the number of its elements, from a writable buffer too."""
        for api, apiVersion in everyVersion():
            self._checkDecodes(api, apiVersion)

    def _checkDecodes(self, api: Api, apiVersion: int) -> None:
        @fewExamples
        @given(entities(load_request_schema(api.apiKey, apiVersion)))
        def check(entity: Any) -> None:
            frame = memoryview(bytearray(b"header" + encode(entity)))
            allowed = evolve(api, maxElements=1000)
            self.assertEqual(decodeRequest(allowed, apiVersion, frame[6:]), (entity, arrayElements(entity)))

        check()

    def test_guarded(self) -> None:
        """What would end the process is refused by the guard before kio sees it."""
        self.assertRaises(GuardRefusal, decodeRequest, BY_KEY[METADATA], 12, b"\xff\xff\xff\xff\x7f")

    def test_refusedByKio(self) -> None:
        """
        Text that is not UTF-8 and booleans that are neither are malformed,
        with a sentence that names the message.
        """
        for apiKey, apiVersion, body in (
            (FIND_COORDINATOR, 0, b"\x00\x01\xff"),
            (METADATA, 9, b"\x00\x07\x00\x00\x00"),
        ):
            malformed = self.assertRaises(MalformedRequest, decodeRequest, BY_KEY[apiKey], apiVersion, body)
            self.assertIn(f"{BY_KEY[apiKey].name} v{apiVersion} has a field that makes no sense", str(malformed))

    def test_limitOfTheApi(self) -> None:
        """More elements than the API allows are refused before they exist."""
        narrow = Api(METADATA, "Metadata", 0, 13, 9, maxElements=2)
        self.assertEqual(decodeRequest(narrow, 0, b"\x00\x00\x00\x02\x00\x01a\x00\x01b")[1], 2)
        self.assertRaises(GuardRefusal, decodeRequest, narrow, 0, b"\x00\x00\x00\x03\x00\x01a\x00\x01b\x00\x01c")


class EncodeResponseTests(SynchronousTestCase):
    """L{encodeResponse} makes of one dictionary what each version has room for."""

    def test_sameAsKio(self) -> None:
        """A dictionary that says what an entity says becomes the same bytes, in every version of every response."""
        for api, apiVersion in everyVersion():
            self._checkSame(api, apiVersion)

    def _checkSame(self, api: Api, apiVersion: int) -> None:
        @fewExamples
        @given(entities(load_response_schema(api.apiKey, apiVersion)))
        def check(entity: Any) -> None:
            parts = encodeResponse(api.apiKey, apiVersion, _asHandlersSay(entity))
            self.assertEqual(b"".join(parts), encode(entity))

        check()

    def test_oneDictionaryForAllVersions(self) -> None:
        """What a version lacks is left out, at all depths."""
        topicId = UUID(int=7)
        response = {
            "throttle_time_ms": 12,
            "cluster_id": "c",
            "brokers": [{"node_id": 1, "host": "h", "port": 9092, "rack": "r"}],
            "topics": [{"name": "t", "topic_id": topicId, "error_code": 3, "partitions": []}],
            "error_code": 0,
        }
        oldest, newest = _decoded(METADATA, 0, response), _decoded(METADATA, 13, response)
        self.assertEqual(oldest.brokers[0].host, newest.brokers[0].host)
        self.assertFalse(hasattr(oldest, "cluster_id"))
        self.assertFalse(hasattr(oldest.brokers[0], "rack"))
        self.assertEqual(newest.throttle_time, 12 * _MILLISECOND)
        self.assertEqual(newest.brokers[0].rack, "r")
        self.assertEqual(newest.topics[0].topic_id, topicId)
        self.assertIs(newest.topics[0].error_code, ErrorCode.unknown_topic_or_partition)

    def test_defaults(self) -> None:
        """What nobody says is the schema's default, else zero, empty or null, in every version of every response."""
        for api, apiVersion in everyVersion():
            self.assertEqual(arrayElements(_decoded(api.apiKey, apiVersion, {})), 0)
        partition = _decoded(FETCH, 12, {"responses": [{"partitions": [{}]}]}).responses[0].partitions[0]
        self.assertEqual((partition.partition_index, partition.error_code, partition.high_watermark), (0, 0, 0))
        self.assertEqual((partition.last_stable_offset, partition.aborted_transactions), (-1, None))

    def test_times(self) -> None:
        """Times are integer milliseconds, and -1 is no time."""
        for timestampMs in -1, 0, 1_700_000_000_123:
            response = {"responses": [{"partition_responses": [{"log_append_time_ms": timestampMs}]}]}
            result = _decoded(PRODUCE, 12, response).responses[0].partition_responses[0]
            expected = None if timestampMs < 0 else _EPOCH + timestampMs * _MILLISECOND
            self.assertEqual(result.log_append_time, expected)

    def test_nullArrays(self) -> None:
        """An array is null where the schema allows it; elsewhere that is a bug of the handler's and raises."""
        self.assertIsNone(_decoded(CREATE_TOPICS, 7, {"topics": [{"configs": None}]}).topics[0].configs)
        self.assertRaises(TypeError, encodeResponse, CREATE_TOPICS, 7, {"topics": None})

    def test_numberTooLarge(self) -> None:
        """A number that does not fit its field raises."""
        self.assertRaises(struct.error, encodeResponse, METADATA, 0, {"brokers": [{"port": 2**31}]})

    def test_smallPartsAreJoined(self) -> None:
        """A response of small fields is one part."""
        self.assertEqual(len(encodeResponse(METADATA, 12, {"topics": 50 * [{"name": "t"}]})), 1)

    def test_largePartsAreNotCopied(self) -> None:
        """Large values come out as the objects that they were, with what lies between them joined."""
        first, second = bytes(5000), bytes(6000)
        partitions = [{"records": first}, {"records": b"small"}, {"records": second}]
        parts = encodeResponse(FETCH, 12, {"responses": [{"topic": "t", "partitions": partitions}]})
        self.assertEqual(len(parts), 5)
        self.assertIs(parts[1], first)
        self.assertIs(parts[3], second)

    def test_apiVersions(self) -> None:
        """ApiVersions says what the table says."""
        response = _decoded(API_VERSIONS, 3, {"api_keys": advertised()})
        self.assertIs(response.error_code, ErrorCode.none)
        produce = next(row for row in response.api_keys if row.api_key == PRODUCE)
        self.assertEqual((produce.min_version, produce.max_version), (0, 12))

    def test_unsupportedApiVersions(self) -> None:
        """
        ApiVersions of a version to come is answered in version 0, with the
        table and C{UNSUPPORTED_VERSION}, whatever the handler says.
        """
        for apiVersion in 5, 99, -1:
            response = {"api_keys": advertised(), "error_code": 0, "throttle_time_ms": 5}
            entity = _decodedBody(API_VERSIONS, 0, encodeResponse(API_VERSIONS, apiVersion, response))
            self.assertEqual(int(entity.error_code), 35)
            self.assertEqual(len(entity.api_keys), len(advertised()))
            self.assertEqual(response["error_code"], 0)


class EncodeInStepsTests(SynchronousTestCase):
    """L{encodeInSteps} makes the same bytes, a little at a time."""

    def test_same(self) -> None:
        """It does so in every version of every response, for arrays of any size and depth."""
        self.patch(codec, "_SMALL_ARRAYS", 0)
        for api, apiVersion in everyVersion():
            self._checkSame(api, apiVersion)

    def _checkSame(self, api: Api, apiVersion: int) -> None:
        @fewExamples
        @given(entities(load_response_schema(api.apiKey, apiVersion)), st.integers(1, 2**31 - 1))
        def check(entity: Any, throttleTimeMs: int) -> None:
            response = {**_asHandlersSay(entity), "throttle_time_ms": 0}
            sizes, parts = _inSteps(api.apiKey, apiVersion, response)
            self.assertEqual(b"".join(parts), b"".join(encodeResponse(api.apiKey, apiVersion, response)))
            self.assertEqual((sizes, sizes[-1]), (sorted(sizes), sum(map(len, parts))))
            throttled = withThrottleTime(api.apiKey, apiVersion, parts, throttleTimeMs)
            if throttled is not None:
                response["throttle_time_ms"] = throttleTimeMs
                expected = encodeResponse(api.apiKey, apiVersion, response)
                self.assertEqual(b"".join(throttled), b"".join(expected))

        check()

    def test_throttleTime(self) -> None:
        """Where the throttle time has no place that is known, it is not put in."""
        known = {
            api.name
            for api, apiVersion in everyVersion()
            if withThrottleTime(api.apiKey, apiVersion, encodeResponse(api.apiKey, apiVersion, {}), 1) is not None
        }
        names = {api.name for api, _ in everyVersion()}
        self.assertEqual(names - known, {"ApiVersions", "Produce", "SaslAuthenticate", "SaslHandshake"})

    def test_rows(self) -> None:
        """Rows are described when they are encoded, a few in each step, and joined."""
        described: list[int] = []

        def describe(number: int) -> dict[str, Any]:
            described.append(number)
            return {
                "name": f"topic-{number}",
                "partitions": Rows(range(number), lambda each: {"partition_index": each}),
            }

        response = {"topics": Rows(range(100), describe)}
        self.assertFalse(isSmallResponse(METADATA, 12, response))
        steps = encodeInSteps(METADATA, 12, response)
        counts = []
        for _ in steps:
            counts.append(len(described))
        self.assertEqual(described, list(range(100)))
        self.assertLess(max(after - before for before, after in pairwise(counts)), 2)
        decoded = _decoded(METADATA, 12, response)
        self.assertEqual([len(topic.partitions) for topic in decoded.topics], list(range(100)))
        self.assertLess(len(_inSteps(METADATA, 12, response)[1]), 100)

    def test_small(self) -> None:
        """What is encoded in no time is told from what is not, without describing it."""
        self.assertTrue(isSmallResponse(LIST_GROUPS, 4, {"groups": Rows(range(3), lambda _: self.fail())}))
        self.assertFalse(isSmallResponse(LIST_GROUPS, 4, {"groups": Rows(range(1000), lambda _: self.fail())}))
        self.assertTrue(isSmallResponse(CREATE_TOPICS, 7, {}))


def _inSteps(apiKey: int, apiVersion: int, response: dict[str, Any]) -> tuple[list[int], list[bytes]]:
    """The sizes that L{encodeInSteps} tells, and what it returns."""
    steps = encodeInSteps(apiKey, apiVersion, response)
    sizes = []
    while True:
        try:
            sizes.append(next(steps))
        except StopIteration as end:
            return sizes, end.value

"""Tests for L{admission.kafka.wire.guard}."""

import dataclasses
from random import Random
from typing import Any, ClassVar

from hypothesis import given, strategies as st
from kio.index import load_request_schema
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.guard import GuardRefusal, countElements, walkSource
from admission.kafka.wire.primitives import MalformedRequest, unsignedVarint
from admission.kafka.wire.versions import (
    API_VERSIONS,
    BY_KEY,
    DELETE_TOPICS,
    DESCRIBE_TOPIC_PARTITIONS,
    FETCH,
    FIND_COORDINATOR,
    METADATA,
    Api,
)
from tests.kit.brokerfixture import encode
from tests.kit.kioentities import arrayElements, entities, everyVersion, fewExamples

_METADATA = BY_KEY[METADATA]
_FETCH = BY_KEY[FETCH]

# A Fetch request of version 12 without topics, up to its tagged fields.
_FETCH_FIELDS = bytes(25) + b"\x01\x01\x01"


# Not served so far, these have fields of types that no other request has.
_OTHERS = [
    (Api(8, "OffsetCommit", 2, 9, 8), 2),
    (Api(11, "JoinGroup", 0, 9, 6), 5),
    (Api(11, "JoinGroup", 0, 9, 6), 9),
    (Api(49, "AlterClientQuotas", 0, 1, 1), 0),
    (Api(49, "AlterClientQuotas", 0, 1, 1), 1),
]


class CountElementsTests(SynchronousTestCase):
    """L{countElements} lets through what kio may safely decode."""

    def _assertRefused(self, apiKey: int, apiVersion: int, body: bytes, reason: str) -> None:
        refusal = self.assertRaises(GuardRefusal, countElements, BY_KEY[apiKey], apiVersion, body)
        self.assertIn(reason, str(refusal))

    def test_acceptsWhatKioEncodes(self) -> None:
        """
        Every request that kio encodes passes, and its elements are counted, at
        all depths; cut short it is refused, and what comes behind it changes nothing.
        """
        for api, apiVersion in [*everyVersion(), *_OTHERS]:
            self._checkAccepts(api, apiVersion)

    def _checkAccepts(self, api: Api, apiVersion: int) -> None:
        @fewExamples
        @given(entities(load_request_schema(api.apiKey, apiVersion)), st.randoms(use_true_random=False))
        def check(entity: Any, random: Random) -> None:
            body = encode(entity)
            self.assertEqual(countElements(api, apiVersion, body, 1000), arrayElements(entity))
            self.assertEqual(countElements(api, apiVersion, body + b"\x00", 1000), arrayElements(entity))
            if body:
                cut = body[: random.randrange(len(body))]
                self.assertRaises(MalformedRequest, countElements, api, apiVersion, cut)

        check()

    def test_countBeyondTheBytesLeft(self) -> None:
        """An array that announces more elements than there are bytes for them is refused, in both encodings."""
        reason = "topics announces 34359738366 elements with 3 bytes left"
        self._assertRefused(METADATA, 12, b"\xff\xff\xff\xff\x7f\x00\x00\x00", reason)
        self._assertRefused(METADATA, 1, b"\x7f\xff\xff\xff", "topics announces 2147483647 elements")
        self._assertRefused(METADATA, 1, b"\x00\x00\x00\x02\x00\x01a", "topics announces 2 elements with 3 bytes left")

    def test_countBeyondTheLimit(self) -> None:
        """
        A request with one element more than allowed is refused, counting inner
        arrays too, and says where that came to light.
        """
        body = b"\x00\x00\x00\x03" + 3 * b"\x00\x01a"
        self.assertEqual(countElements(_METADATA, 1, body, 3), 3)
        refusal = self.assertRaises(GuardRefusal, countElements, _METADATA, 1, body, 2)
        self.assertIn("topics announces 3 elements with 9 bytes left and 2 elements allowed", str(refusal))
        # Two topics with two partitions each: six elements.
        partitions = b"\x00\x00\x00\x02" + bytes(2 * 16)
        fetch = bytes(17) + b"\x00\x00\x00\x02" + 2 * (b"\x00\x01a" + partitions)
        self.assertEqual(countElements(_FETCH, 4, fetch, 6), 6)
        self.assertRaises(GuardRefusal, countElements, _FETCH, 4, fetch, 5)

    def test_limitOfTheApi(self) -> None:
        """Without a limit of the caller's, the API's own holds."""
        self.assertEqual(_METADATA.maxElements, 20_000)
        body = b"\x00\x00\x4e\x20" + 20_000 * b"\x00\x00"
        self.assertEqual(countElements(_METADATA, 1, body), 20_000)
        self.assertRaises(GuardRefusal, countElements, _METADATA, 1, b"\x00\x00\x4e\x21" + 20_001 * b"\x00\x00")

    def test_lengthBeyondTheEnd(self) -> None:
        """A string that would go on past the end is refused, wherever it stands."""
        self._assertRefused(FIND_COORDINATOR, 0, b"\x00\x02a", "FindCoordinator v0 ends before its fields do")
        self._assertRefused(FIND_COORDINATOR, 3, b"\x03a\x00\x00", "FindCoordinator v3 ends before its fields do")
        self._assertRefused(METADATA, 12, b"\xff\xff\xff\xff", "Metadata v12 ends before its fields do")
        # The longest length that either encoding can express.
        self._assertRefused(FIND_COORDINATOR, 0, b"\x7f\xffa", "ends before its fields do")
        self._assertRefused(FIND_COORDINATOR, 3, b"\xff\xff\xff\xff\x7fa\x00\x00", "ends before its fields do")

    def test_varintOfSixBytes(self) -> None:
        """A varint that goes on after five bytes is refused."""
        refusal = self.assertRaises(
            MalformedRequest, countElements, BY_KEY[FIND_COORDINATOR], 3, b"\x80\x80\x80\x80\x80\x01"
        )
        self.assertEqual(str(refusal), "a varint runs over 5 bytes")

    def test_null(self) -> None:
        """Null passes where the protocol knows it, and nowhere else."""
        self.assertEqual(countElements(_METADATA, 1, b"\xff\xff\xff\xff"), 0)
        self.assertEqual(countElements(_METADATA, 9, b"\x00\x00\x00\x00\x00"), 0)
        self._assertRefused(DELETE_TOPICS, 1, b"\xff\xff\xff\xff\x00\x00\x00\x00", "topic_names is null")
        self._assertRefused(DELETE_TOPICS, 4, b"\x00\x00\x00\x00\x00\x00", "topic_names is null")
        self._assertRefused(FIND_COORDINATOR, 0, b"\xff\xff", "key is null")
        self._assertRefused(FIND_COORDINATOR, 3, b"\x00\x00\x00", "key is null")
        self._assertRefused(DELETE_TOPICS, 4, b"\x02\x00\x00\x00\x00\x00\x00", "topic_names is null")

    def test_negativeLength(self) -> None:
        """A negative length other than null's is refused, also where null is not."""
        self._assertRefused(METADATA, 1, b"\xff\xff\xff\xfe", "topics has a length of -2")
        self._assertRefused(DELETE_TOPICS, 1, b"\xff\xff\xff\xfe\x00\x00\x00\x00", "topic_names has a length of -2")

    def test_knownTags(self) -> None:
        """Tagged fields that kio knows are walked like others."""
        self.assertEqual(countElements(_FETCH, 12, _FETCH_FIELDS + b"\x01\x00\x02\x02a"), 0)
        self._assertRefused(FETCH, 12, _FETCH_FIELDS + b"\x01\x00\x01\x00", "cluster_id is null")

    def test_repeatedTags(self) -> None:
        """There are no more tagged fields than kio knows, so that four bytes do not make one more for ever."""
        tags = unsignedVarint(1_000_000) + b"\x00\x02\x02a" * 1_000
        self._assertRefused(FETCH, 12, _FETCH_FIELDS + tags, "FetchRequest has 1000000 tagged fields where 1 are known")

    def test_tagOfAnotherLength(self) -> None:
        """A tagged field must be as long as it says, or kio would read on from another place than other brokers."""
        reason = "tagged field 0 of FetchRequest is not as long as it says"
        self._assertRefused(FETCH, 12, _FETCH_FIELDS + b"\x01\x00\x03\x02a", reason)
        self._assertRefused(FETCH, 12, _FETCH_FIELDS + b"\x01\x00\x01\x02a", reason)

    def test_unknownTags(self) -> None:
        """A tagged field that kio does not know is refused by its number, whether or not the structure has others."""
        self._assertRefused(FETCH, 12, _FETCH_FIELDS + b"\x01\x07\x01a", "FetchRequest has a tagged field 7")
        self._assertRefused(API_VERSIONS, 3, b"\x02a\x02b\x01\x05\x01c", "ApiVersionsRequest has a tagged field 5")

    def test_leftOver(self) -> None:
        """
        Bytes behind the last field are let pass, as librdkafka sends them: its null array has four bytes where one
        would do.
        """
        self.assertEqual(countElements(BY_KEY[API_VERSIONS], 0, b"abc"), 0)
        self.assertEqual(countElements(BY_KEY[METADATA], 13, b"\x00\x00\x00\x00\x01\x00\x00"), 0)

    def test_empty(self) -> None:
        """A request without fields is none without bytes too, but one with fields must have some."""
        self.assertEqual(countElements(BY_KEY[API_VERSIONS], 0, b""), 0)
        self._assertRefused(METADATA, 12, b"", "ends before its fields do")


class WalkSourceTests(SynchronousTestCase):
    """L{walkSource} walks all of a message or none of it."""

    def test_unknownType(self) -> None:
        """A field of a type that the guard does not know is an error when the walk is made, not a gap in it."""

        @dataclasses.dataclass
        class Novel:
            __flexible__: ClassVar[bool] = True
            answer: int = dataclasses.field(metadata={"kafka_type": "int128"})

        error = self.assertRaises(TypeError, list, walkSource(Novel))  # type: ignore[arg-type]
        self.assertIn("answer is of type int128", str(error))

    def test_nullableStructure(self) -> None:
        """A structure that may be null has a byte before it, which says so and nothing else."""
        api = BY_KEY[DESCRIBE_TOPIC_PARTITIONS]
        for cursor in (b"\xff", b"\x01\x02a\x00\x00\x00\x00\x00"):
            self.assertEqual(countElements(api, 0, b"\x01\x00\x00\x00\x01" + cursor + b"\x00"), 0)
        for cursor in (b"\x00", b"\x02", b"\x01\x00"):
            body = b"\x01\x00\x00\x00\x01" + cursor + b"\x00"
            self.assertRaises(GuardRefusal, countElements, api, 0, body)

"""
Tests for L{admission.kafka.wire.responsewalk}; that its walks find what they should is
shown by those of L{admission.kafka.wire.addresses} and its neighbours.
"""

import struct

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.primitives import MAX_TAGS, MalformedResponse, unsignedVarint
from admission.kafka.wire.responsewalk import MAX_ADDRESSES, TAG_NUMBER, Span, taggedWalkFor, walked, walkFor
from admission.kafka.wire.versions import FETCH, METADATA

_ADDRESS = ("node_id", "host", "port")

# Two nodes and what follows them.
_METADATA = (
    bytes(4) + b"\x03" + b"\x00\x00\x00\x01\x03ab\x00\x00\x00\x09\x00\x00" + bytes(4) + b"\x01" + bytes(6) + b"rest"
)
_METADATA_SPANS = [
    Span("node_id", 5, 5, 9),
    Span("host", 9, 10, 12),
    Span("port", 12, 12, 16),
    Span("node_id", 18, 18, 22),
    Span("host", 22, 23, 23),
    Span("port", 23, 23, 27),
]

# One topic with one partition with a tagged field, then two tagged fields.
_FETCH = (
    bytes(10)
    + (b"\x02" + bytes(16))
    + (b"\x02" + bytes(30) + b"\x01" + bytes(4) + b"\x04abc" + b"\x01\x01\x02xy" + b"\x00")
    + b"\x02\x00\x01\x01\x05\x80\x01"
    + bytes(128)
)


class WalkTests(SynchronousTestCase):
    """A walk finds fields in chunks of any size."""

    def test_spans(self) -> None:
        """The positions are those of the fields, and the walk ends behind the last one."""
        spans: list[Span] = []
        self.assertEqual(walked(walkFor(METADATA, 12, _ADDRESS), _METADATA, spans), 29)
        self.assertEqual(spans, _METADATA_SPANS)

    def test_everyTwoChunks(self) -> None:
        """Where a body is cut in two makes no difference."""
        for walk, body, expected, end in (
            (walkFor(METADATA, 12, _ADDRESS), _METADATA, _METADATA_SPANS, 29),
            (
                walkFor(FETCH, 17, _ADDRESS),
                _FETCH,
                [Span(TAG_NUMBER, 74, 74, 75), Span("node_endpoints", 75, 76, 77)],
                len(_FETCH),
            ),
        ):
            for cutAt in range(end):
                spans: list[Span] = []
                steps = walk(spans)
                next(steps)
                steps.send(body[:cutAt])
                over = self.assertRaises(StopIteration, steps.send, body[cutAt:])
                self.assertEqual((over.value, spans), (end, expected))

    def test_announcedEarly(self) -> None:
        """
        A field of fixed size and a tag's number are found no later than they are sent,
        so that they can still be replaced.
        """
        for apiKey, apiVersion, body in (METADATA, 12, _METADATA), (FETCH, 17, _FETCH):
            spans: list[Span] = []
            steps = walkFor(apiKey, apiVersion, _ADDRESS)(spans)
            next(steps)
            for position in range(len(body)):
                try:
                    steps.send(body[position : position + 1])
                except StopIteration:
                    break
                for span in spans:
                    if span.name != "node_endpoints":
                        self.assertGreaterEqual(span.begin, position)
                spans.clear()

    def test_taggedValue(self) -> None:
        """The value of the tagged field has a walk of its own."""
        spans: list[Span] = []
        value = b"\x02\x00\x00\x00\x01\x02a\x00\x00\x00\x09\x00\x00"
        self.assertEqual(walked(taggedWalkFor(FETCH, 17, _ADDRESS), value, spans), len(value))
        self.assertEqual(spans, [Span("node_id", 1, 1, 5), Span("host", 5, 6, 7), Span("port", 7, 7, 11)])

    def test_moreIsNeeded(self) -> None:
        """Of a body that ends before the last field the walk returns nothing."""
        for sizeBytes in range(29):
            self.assertIsNone(walked(walkFor(METADATA, 12, _ADDRESS), _METADATA[:sizeBytes], []))

    def test_refused(self) -> None:
        """A length that makes no sense is refused by a sentence that names the response."""
        malformed = self.assertRaises(MalformedResponse, walked, walkFor(METADATA, 0, _ADDRESS), b"\x80" + bytes(9), [])
        self.assertEqual(str(malformed), "a response to Metadata v0 has a length of -2147483648")

    def test_manyAddresses(self) -> None:
        """Of more addresses than any cluster has no more are looked for, and the response is refused."""
        node = b"\0\0\0\1\0\0\0\0\0\1"
        spans: list[Span] = []
        body = struct.pack(">i", MAX_ADDRESSES) + node * MAX_ADDRESSES
        self.assertEqual(walked(walkFor(METADATA, 0, _ADDRESS), body, spans), len(body))
        self.assertEqual(len(spans), 3 * MAX_ADDRESSES)
        spans.clear()
        body = struct.pack(">i", 20 * MAX_ADDRESSES) + node * 20 * MAX_ADDRESSES
        malformed = self.assertRaises(MalformedResponse, walked, walkFor(METADATA, 0, _ADDRESS), body, spans)
        self.assertEqual(str(malformed), "a response has more than 10000 addresses")
        self.assertLess(len(spans), 5 * MAX_ADDRESSES)

    def test_manyTags(self) -> None:
        """Tagged fields that take two bytes and a round of a loop each are refused by their number."""
        structure = bytes(4) + b"\x02" + bytes(4) + b"\1" + bytes(4) + b"\0" + unsignedVarint(MAX_TAGS + 1)
        for apiKey, apiVersion, body in (
            (METADATA, 12, structure),
            (FETCH, 17, bytes(10) + b"\1" + unsignedVarint(MAX_TAGS + 1)),
        ):
            malformed = self.assertRaises(
                MalformedResponse, walked, walkFor(apiKey, apiVersion, _ADDRESS), body + b"\2\0" * (MAX_TAGS + 1), []
            )
            self.assertIn(f"has a count of {MAX_TAGS + 1} tagged fields where {MAX_TAGS} may be", str(malformed))

    def test_nullableStructure(self) -> None:
        """A structure that may be null is an error when the walk is made, not a gap in it."""
        error = self.assertRaises(TypeError, walkFor, 89, 0, ("host",))
        self.assertIn("is a structure that may be null", str(error))

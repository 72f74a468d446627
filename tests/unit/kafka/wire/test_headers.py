"""Tests for L{admission.kafka.wire.headers}."""

import struct

from hypothesis import given, strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.static.primitive import i16, i32
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.headers import RequestHeader, frame, hasResponseTags, parseRequestHeader
from admission.kafka.wire.primitives import MalformedRequest
from admission.kafka.wire.relayedapis import RELAYED_FLEXIBLE_FROM
from admission.kafka.wire.versions import API_VERSIONS, METADATA, Api
from admission.names import boundedName
from tests.kit.brokerfixture import encode
from tests.kit.kioentities import everyVersion, manyExamples
from tests.unit.kafka.wire.test_relayedapis import everyRelayedVersion


def written(api: Api, apiVersion: int, correlationId: int, clientId: str | None) -> bytes:
    """A request's header, as kio writes it."""
    return encode(
        load_request_schema(api.apiKey, apiVersion).__header_schema__(
            request_api_key=i16(api.apiKey),
            request_api_version=i16(apiVersion),
            correlation_id=i32(correlationId),
            client_id=clientId,
        )
    )


class ParseRequestHeaderTests(SynchronousTestCase):
    """L{parseRequestHeader} reads what clients send and trusts none of it."""

    @manyExamples
    @given(st.sampled_from(list(everyVersion())), st.integers(-(2**31), 2**31 - 1), st.none() | st.text(max_size=40))
    def test_readsWhatKioWrites(self, apiAndVersion: tuple[Api, int], correlationId: int, clientId: str | None) -> None:
        """The header of every request is read as kio wrote it, and its body begins where kio's header ended."""
        api, apiVersion = apiAndVersion
        header = written(api, apiVersion, correlationId, clientId)
        expected = RequestHeader(api.apiKey, apiVersion, correlationId, clientId, len(header))
        self.assertEqual(parseRequestHeader(header), expected)
        self.assertEqual(parseRequestHeader(memoryview(bytearray(header + b"body"))), expected)

    def test_relayed(self) -> None:
        """With the table of a gateway the header of every request that it relays is read."""
        for api, apiVersion in everyRelayedVersion():
            header = written(api, apiVersion, 7, "a")
            self.assertEqual(
                parseRequestHeader(header, flexibleFrom=RELAYED_FLEXIBLE_FROM),
                RequestHeader(api.apiKey, apiVersion, 7, "a", len(header)),
            )

    def test_offset(self) -> None:
        """The header may begin anywhere; the body's offset counts from the same place."""
        header = parseRequestHeader(b"zzzz\x00\x03\x00\x01\x00\x00\x00\x07\x00\x01abody", 4)
        self.assertEqual(header, RequestHeader(METADATA, 1, 7, "a", 15))

    def test_tagsAreSkipped(self) -> None:
        """Tagged fields that nobody knows are stepped over."""
        header = parseRequestHeader(b"\x00\x03\x00\x0c\x00\x00\x00\x07\xff\xff\x02\x00\x01a\x63\x02bcbody")
        self.assertEqual(header, RequestHeader(METADATA, 12, 7, None, 18))

    def test_notServed(self) -> None:
        """A request for something unknown is read as far as the client id, so that there is something to log."""
        header = parseRequestHeader(b"\x03\xe7\xff\xff\x00\x00\x00\x07\x00\x01a")
        self.assertEqual((header.apiKey, header.apiVersion, header.clientId), (999, -1, "a"))

    def test_futureApiVersions(self) -> None:
        """ApiVersions of a version to come has a header that can be read."""
        header = parseRequestHeader(b"\x00\x12\x00\x63\x00\x00\x00\x07\x00\x01a\x00rest")
        self.assertEqual(header, RequestHeader(API_VERSIONS, 99, 7, "a", 12))

    def test_everyCutIsMalformed(self) -> None:
        """A frame that ends within its header is malformed, wherever it ends."""
        whole = b"\x00\x03\x00\x0c\x00\x00\x00\x07\x00\x02ab\x01\x05\x02cd"
        self.assertEqual(parseRequestHeader(whole).bodyOffset, len(whole))
        for sizeBytes in range(len(whole)):
            malformed = self.assertRaises(MalformedRequest, parseRequestHeader, whole[:sizeBytes])
            self.assertEqual(str(malformed), f"a request of {sizeBytes} bytes ends within its header")

    def test_clientIdLength(self) -> None:
        """A client id may be null, but not of any other negative length."""
        start = b"\x00\x03\x00\x01\x00\x00\x00\x07"
        self.assertIsNone(parseRequestHeader(start + b"\xff\xff").clientId)
        self.assertRaises(MalformedRequest, parseRequestHeader, start + b"\xff\xfe")
        self.assertRaises(MalformedRequest, parseRequestHeader, start + b"\x80\x00")

    def test_longClientId(self) -> None:
        """Of a long client id no more is kept than of a name."""
        for name in (b"x" * 240, b"x" * 32767):
            header = parseRequestHeader(b"\x00\x03\x00\x01\x00\x00\x00\x07" + struct.pack(">h", len(name)) + name)
            self.assertEqual(header.clientId, boundedName(name.decode()))
            self.assertEqual(header.bodyOffset, 10 + len(name))

    def test_clientIdIsText(self) -> None:
        """A client id that is not UTF-8 is malformed."""
        malformed = self.assertRaises(
            MalformedRequest, parseRequestHeader, b"\x00\x03\x00\x01\x00\x00\x00\x07\x00\x01\xff"
        )
        self.assertEqual(str(malformed), "the client id in a request header is not UTF-8")


class FrameTests(SynchronousTestCase):
    """L{frame} makes a response of a body."""

    def test_headersAreThoseOfKio(self) -> None:
        """
        Every response has the length of the rest and the header that kio would
        give it, ApiVersions one without tagged fields.
        """
        for api, apiVersion in everyVersion():
            headerType = load_response_schema(api.apiKey, apiVersion).__header_schema__
            expected = encode(headerType(correlation_id=i32(-5))) + b"body"
            framed = b"".join(frame(RequestHeader(api.apiKey, apiVersion, -5, None, 0), [b"bo", b"dy"]))
            self.assertEqual(framed, len(expected).to_bytes(4, "big") + expected, (api.name, apiVersion))

    def test_relayed(self) -> None:
        """With the table of a gateway this is so for every response that it relays."""
        for api, apiVersion in everyRelayedVersion():
            headerType = load_response_schema(api.apiKey, apiVersion).__header_schema__
            header = encode(headerType(correlation_id=i32(-5)))
            framed = frame(RequestHeader(api.apiKey, apiVersion, -5, None, 0), [], RELAYED_FLEXIBLE_FROM)
            self.assertEqual(b"".join(framed), len(header).to_bytes(4, "big") + header, (api.name, apiVersion))
            self.assertEqual(hasResponseTags(api.apiKey, apiVersion, RELAYED_FLEXIBLE_FROM), len(header) == 5)
        self.assertFalse(hasResponseTags(999, 0, RELAYED_FLEXIBLE_FROM))

    def test_bodyIsNotCopied(self) -> None:
        """The parts of the body come out as they went in."""
        parts = [bytes(100_000), b"small", bytes(100_000)]
        for before, after in zip(parts, frame(RequestHeader(METADATA, 0, 1, None, 0), parts)[1:], strict=True):
            self.assertIs(after, before)
        self.assertEqual(len(parts), 3)

    def test_unsupportedApiVersions(self) -> None:
        """The answer to ApiVersions of a version to come has no tagged fields."""
        self.assertEqual(
            frame(RequestHeader(API_VERSIONS, 99, 7, None, 0), [b"body"]),
            [b"\x00\x00\x00\x08\x00\x00\x00\x07", b"body"],
        )

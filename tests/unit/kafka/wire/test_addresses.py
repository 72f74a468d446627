"""Tests for L{admission.kafka.wire.addresses}, and the responses that other modules' tests share with them."""

import dataclasses
import io
from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st
from kio.index import load_response_schema
from kio.serial import _introspect as introspect, entity_reader
from kio.serial._serialize import get_field_writer
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.addresses import metadataHead, withAddresses
from admission.kafka.wire.codec import encodeEntity
from admission.kafka.wire.primitives import CLASSIC, FLEXIBLE, MalformedResponse, unsignedVarint
from admission.kafka.wire.relayedapis import RELAYED_BY_KEY, SHARE_ACKNOWLEDGE, SHARE_FETCH, RelayedApi, hasAddresses
from admission.kafka.wire.versions import DESCRIBE_CLUSTER, FETCH, FIND_COORDINATOR, JOIN_GROUP, METADATA, PRODUCE
from tests.kit.brokerfixture import encode
from tests.kit.kioentities import damaged, entities, fewExamples
from tests.unit.kafka.wire.test_relayedapis import containsAddress, everyRelayedVersion

_DESCRIBE_QUORUM = 55

#: A part of every host of a node, and of nothing else.
REAL = "wirklich-müßig"

#: Shorter and longer than what they replace; with the last ones lengths take a byte more.
_TOLD = ["g", "gateway.example", "tor.beispiel-für-längeres.example", "x" * 126, "x" * 127, "x" * 128, "y" * 250]

#: Tagged fields to come: one empty, one with a number of two bytes.
_UNKNOWN_TAGS = [(100, b""), (300, bytes(range(200)))]

#: Several nodes make an example larger than hypothesis likes.
fewResponses = settings(
    fewExamples, suppress_health_check=[*fewExamples.suppress_health_check, HealthCheck.large_base_example]
)

_NODE = {"node_id": 7, "broker_id": 7, "host": "müßig", "port": 9092}


def everyVersionWithAddresses() -> Iterator[tuple[RelayedApi, int]]:
    """Every version of every API whose responses may have addresses."""
    for api, apiVersion in everyRelayedVersion():
        if hasAddresses(api.apiKey, apiVersion):
            yield api, apiVersion


def responses(apiKey: int, apiVersion: int) -> st.SearchStrategy[Any]:
    """
    Responses with the addresses of several nodes, whose hosts contain L{REAL}, or
    of one where there cannot be more.
    """
    entityType = load_response_schema(apiKey, apiVersion)
    nodes = {
        member.name: st.lists(entities(introspect.classify_field(member).type_), min_size=2, max_size=4).map(tuple)
        for member in dataclasses.fields(entityType)
        if introspect.classify_field(member).is_array and _hasAddresses(member)
    }
    return st.builds(dataclasses.replace, entities(entityType), **nodes).map(_withRealHosts)


def _hasAddresses(member: "dataclasses.Field[Any]") -> bool:
    kind = introspect.classify_field(member)
    return isinstance(kind, introspect.EntityTupleField) and containsAddress(kind.type_)


def _withRealHosts(entity: Any) -> Any:
    numbers = count()
    return replacedAddresses(entity, lambda nodeId, host, port: (f"{next(numbers)}.{REAL}{host[:100]}", port))


def replacedAddresses(value: Any, readdress: Any) -> Any:
    """An entity of kio with other addresses."""
    if isinstance(value, tuple):
        return tuple(replacedAddresses(each, readdress) for each in value)
    if not dataclasses.is_dataclass(value):
        return value
    changed = {
        member.name: replacedAddresses(getattr(value, member.name), readdress) for member in dataclasses.fields(value)
    }
    if "host" in changed:
        nodeId = changed["node_id"] if "node_id" in changed else changed["broker_id"]
        changed["host"], changed["port"] = readdress(nodeId, changed["host"], changed["port"])
    return type(value)(**changed)  # type: ignore[arg-type]


def encodeWithTags(entity: Any, unknownTags: Sequence[tuple[int, bytes]] = _UNKNOWN_TAGS) -> bytes:
    """What kio makes of an entity, with additional tagged fields in every structure."""
    buffer = io.BytesIO()
    flexible = entity.__flexible__
    tagged = []
    for member in dataclasses.fields(entity):
        value = getattr(entity, member.name)
        tag = introspect.get_field_tag(member)
        if tag is None:
            buffer.write(_encodeMember(member, flexible, value, unknownTags))
        elif value != member.default:
            tagged.append((int(tag), _encodeMember(member, flexible, value, unknownTags)))
    if flexible:
        tagged += unknownTags
        buffer.write(unsignedVarint(len(tagged)))
        for tag, encoded in sorted(tagged):
            buffer.write(unsignedVarint(tag) + unsignedVarint(len(encoded)) + encoded)
    return buffer.getvalue()


def _encodeMember(
    member: "dataclasses.Field[Any]", flexible: bool, value: Any, unknownTags: Sequence[tuple[int, bytes]]
) -> bytes:
    kind = introspect.classify_field(member)
    if isinstance(kind, introspect.EntityField):
        if not introspect.is_optional(member):
            return encodeWithTags(value, unknownTags)
        return b"\xff" if value is None else b"\x01" + encodeWithTags(value, unknownTags)
    if isinstance(kind, introspect.EntityTupleField):
        dialect = FLEXIBLE if flexible else CLASSIC
        if value is None:
            return dialect.length(-1)
        return dialect.length(len(value)) + b"".join(encodeWithTags(each, unknownTags) for each in value)
    buffer = io.BytesIO()
    isTag = introspect.get_field_tag(member) is not None
    get_field_writer(member, flexible, is_request_header=False, is_tag=isTag)(buffer, value)
    return buffer.getvalue()


def told(nodeId: int, host: str, port: int) -> tuple[str, int]:
    """An address for clients, of one length or another."""
    return _TOLD[(nodeId + len(host)) % len(_TOLD)], port // 2 + 7


def unchanged(nodeId: int, host: str, port: int) -> tuple[str, int]:
    """The address that it was."""
    return host, port


def _encoded(apiKey: int, apiVersion: int, fields: dict[str, Any]) -> bytes:
    return b"".join(encodeEntity(load_response_schema(apiKey, apiVersion), fields))


class WithAddressesTests(SynchronousTestCase):
    """L{withAddresses} replaces addresses and nothing else."""

    def test_everyVersion(self) -> None:
        """
        Of every version kio decodes the same response with the addresses replaced;
        with tagged fields that nobody knows it is the same bytes; and no byte of a
        real host is left.
        """
        for api, apiVersion in everyVersionWithAddresses():
            self._check(api, apiVersion)

    def _check(self, api: RelayedApi, apiVersion: int) -> None:
        @fewResponses
        @given(responses(api.apiKey, apiVersion))
        def check(entity: Any) -> None:
            expected = replacedAddresses(entity, told)
            spliced = withAddresses(api.apiKey, apiVersion, encode(entity), told)
            decoded, sizeBytes = entity_reader(type(entity))(spliced, 0)
            self.assertEqual((decoded, sizeBytes), (expected, len(spliced)))
            self.assertNotIn(REAL.encode(), spliced)
            body = encodeWithTags(entity)
            self.assertEqual(withAddresses(api.apiKey, apiVersion, body, told), encodeWithTags(expected))
            self.assertEqual(withAddresses(api.apiKey, apiVersion, body, unchanged), body)

        check()

    def test_cutAndDamaged(self) -> None:
        """
        A response that is cut within what is read is malformed, and so is one that
        is damaged, or it comes out in some form.
        """
        for api, apiVersion in everyVersionWithAddresses():
            self._checkMalformed(api, apiVersion)

    def _checkMalformed(self, api: RelayedApi, apiVersion: int) -> None:
        @fewResponses
        @given(responses(api.apiKey, apiVersion), st.randoms(use_true_random=False))
        def check(entity: Any, random: Random) -> None:
            whole = encodeWithTags(entity, [(100, b"ab")])
            bodies = [whole[:sizeBytes] for sizeBytes in range(min(len(whole), 400))]
            # As long as it is not known to be whole, it is never taken for another.
            bodies += [damaged(whole, random) for _ in range(20)]
            for body in bodies:
                try:
                    spliced = withAddresses(api.apiKey, apiVersion, body, unchanged)
                except MalformedResponse as malformed:
                    self.assertIn(f"{api.name} v{apiVersion}", str(malformed))
                else:
                    self.assertLessEqual(len(spliced), len(body))

        check()

    def test_everyCutOfTheLastField(self) -> None:
        """Where addresses come last, a response that is cut anywhere is malformed."""
        for apiKey, apiVersion in (PRODUCE, 10), (PRODUCE, 12), (FETCH, 16), (FETCH, 18):
            body = _encoded(apiKey, apiVersion, {"node_endpoints": [_NODE, _NODE]})
            for sizeBytes in range(len(body)):
                malformed = self.assertRaises(
                    MalformedResponse, withAddresses, apiKey, apiVersion, body[:sizeBytes], told
                )
                self.assertIn("ends before its fields do", str(malformed))

    def test_noCoordinator(self) -> None:
        """The empty host that stands for no coordinator stays, and nobody is asked about it."""
        none = {"key": "g", "node_id": -1, "host": "", "port": -1, "error_code": 15}
        for apiVersion in range(7):
            body = _encoded(FIND_COORDINATOR, apiVersion, {**none, "coordinators": [none, none]})
            self.assertEqual(withAddresses(FIND_COORDINATOR, apiVersion, body, self.fail), body)

    def test_asked(self) -> None:
        """The node's id, host and port are what the node said."""
        fields = {**_NODE, **{each: [_NODE] for each in ("brokers", "node_endpoints", "coordinators")}}
        asked = []

        def ask(nodeId: int, host: str, port: int) -> tuple[str, int]:
            asked.append((nodeId, host, port))
            return "h", 1

        for api, apiVersion in everyVersionWithAddresses():
            withAddresses(api.apiKey, apiVersion, _encoded(api.apiKey, apiVersion, fields), ask)
            self.assertEqual(asked.pop(), (7, "müßig", 9092), (api.name, apiVersion))
            self.assertEqual(asked, [])

    def test_withoutAddresses(self) -> None:
        """A response that cannot have addresses is not even read."""
        body = b"anything"
        for apiKey, apiVersion in (PRODUCE, 9), (FETCH, 15), (JOIN_GROUP, 9), (_DESCRIBE_QUORUM, 2):
            self.assertIs(withAddresses(apiKey, apiVersion, body, self.fail), body)

    def test_hostileCounts(self) -> None:
        """Counts and lengths beyond the bytes there are neither take time nor memory."""
        huge = b"\xff\xff\xff\xff\x7f"
        for apiKey, apiVersion, body in (
            (METADATA, 0, b"\x7f\xff\xff\xff" + bytes(100)),
            (METADATA, 12, bytes(4) + huge + bytes(100)),
            (METADATA, 12, bytes(4) + b"\x02" + bytes(4) + huge + bytes(100)),
            (DESCRIBE_CLUSTER, 0, bytes(6) + huge),
            (FETCH, 17, bytes(10) + huge + bytes(100)),
            (FETCH, 17, bytes(10) + b"\x01" + huge + bytes(100)),
            (FETCH, 17, bytes(10) + b"\x01\x01\x00" + huge),
            (FETCH, 17, bytes(10) + b"\x02" + bytes(16) + b"\x02" + bytes(30) + b"\x00" + bytes(4) + huge),
            (SHARE_FETCH, 1, bytes(6) + b"\x00" + bytes(4) + b"\x01" + huge + bytes(100)),
            (SHARE_ACKNOWLEDGE, 1, bytes(6) + b"\x00\x01" + huge),
        ):
            malformed = self.assertRaises(MalformedResponse, withAddresses, apiKey, apiVersion, body, unchanged)
            self.assertRegex(str(malformed), "ends before its fields do|tagged fields where")

    def _assertMalformed(self, apiKey: int, apiVersion: int, body: bytes, reason: str) -> None:
        malformed = self.assertRaises(MalformedResponse, withAddresses, apiKey, apiVersion, body, told)
        self.assertEqual(str(malformed), f"a response to {RELAYED_BY_KEY[apiKey].name} v{apiVersion} {reason}")

    def test_malformed(self) -> None:
        """Whatever else makes no sense is said in one sentence."""
        self._assertMalformed(METADATA, 0, b"\xff\xff\xff\xfe", "has a length of -2")
        self._assertMalformed(METADATA, 0, bytes(3) + b"\x01" + bytes(4) + b"\xff\xf0", "has a length of -16")
        self._assertMalformed(METADATA, 12, bytes(4) + 6 * b"\x80", "has a varint of more than five bytes")
        notText = bytes(3) + b"\x01" + bytes(4) + b"\x00\x01\xff" + bytes(4)
        self._assertMalformed(METADATA, 0, notText, "has a host that is not UTF-8")
        fetch = bytes(10) + b"\x01"
        wrongSize = "has a tagged field node_endpoints that is not as long as it says"
        self._assertMalformed(FETCH, 16, fetch + b"\x01\x00\x02\x01\x00", wrongSize)
        self._assertMalformed(FETCH, 16, fetch + b"\x01\x00\x00", wrongSize)
        self._assertMalformed(FETCH, 16, fetch + b"\x01\x00\x01\x02" + bytes(11), wrongSize)
        tooLong = "has a tag number of more bytes than it takes"
        self._assertMalformed(FETCH, 16, fetch + b"\x01\x80\x00\x01\x01", tooLong)

    def test_null(self) -> None:
        """Null where Kafka has none is left as it is."""
        for apiVersion, body in (0, b"\xff\xff\xff\xff"), (12, bytes(5)):
            self.assertEqual(withAddresses(METADATA, apiVersion, body + b"rest", told), body + b"rest")


class MetadataHeadTests(SynchronousTestCase):
    """L{metadataHead} needs no more of a Metadata response than its nodes."""

    def test_everyVersion(self) -> None:
        """
        With the rest behind it, the head is what a whole response becomes; with any
        byte less of it, more is needed.
        """
        for apiVersion in range(14):
            self._check(apiVersion)

    def _check(self, apiVersion: int) -> None:
        @fewResponses
        @given(responses(METADATA, apiVersion))
        def check(entity: Any) -> None:
            body = encodeWithTags(entity)
            head = metadataHead(apiVersion, body, told)
            assert head is not None
            consumedBytes, replacement = head
            self.assertEqual(replacement + body[consumedBytes:], withAddresses(METADATA, apiVersion, body, told))
            self.assertEqual(metadataHead(apiVersion, body[:consumedBytes], told), head)
            for sizeBytes in range(consumedBytes):
                self.assertIsNone(metadataHead(apiVersion, body[:sizeBytes], self.fail))

        check()

    def test_malformed(self) -> None:
        """A length that makes no sense is not waited for."""
        self.assertRaises(MalformedResponse, metadataHead, 0, b"\xff\xff\xff\xfe", told)

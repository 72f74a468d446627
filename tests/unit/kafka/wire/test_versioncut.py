"""Tests for L{admission.kafka.wire.versioncut}."""

import dataclasses
from typing import Any

from hypothesis import given, strategies as st
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.codec import encodeEntity
from admission.kafka.wire.primitives import MalformedResponse
from admission.kafka.wire.versioncut import cutApiVersions, versionOfForm
from admission.kafka.wire.versions import API_VERSIONS, PRODUCE
from tests.kit.kioentities import entities, fewExamples
from tests.unit.kafka.wire.test_addresses import encodeWithTags

_VERSIONS = range(5)

#: What a node says of each API, and what a client is told; Heartbeat, for one, is understood from 0 to 4.
_CUTS: dict[tuple[int, int, int], tuple[int, int, int] | None] = {
    (12, 0, 4): (12, 0, 4),
    (12, 1, 3): (12, 1, 3),
    (12, 3, 9): (12, 3, 4),
    (12, 5, 9): None,
    # OffsetForLeaderEpoch is understood from 2 to 4.
    (23, 0, 4): (23, 2, 4),
    (23, 0, 1): None,
    # SaslHandshake, of which version 0 is left out.
    (17, 0, 1): (17, 1, 1),
    # Produce, whose oldest version stays.
    (0, 0, 13): (0, 0, 12),
    (0, 3, 11): (0, 3, 11),
    (0, 13, 14): None,
    # Controllers' and unknown ones.
    (52, 0, 2): None,
    (999, 0, 2): None,
    (-1, 0, 2): None,
}


def _row(apiKey: int, minVersion: int, maxVersion: int) -> dict[str, int]:
    return {"api_key": apiKey, "min_version": minVersion, "max_version": maxVersion}


def _body(apiVersion: int, rows: Any, **fields: Any) -> bytes:
    entityType = load_response_schema(API_VERSIONS, apiVersion)
    return b"".join(encodeEntity(entityType, {"api_keys": [_row(*row) for row in rows], **fields}))


class CutApiVersionsTests(SynchronousTestCase):
    """L{cutApiVersions} leaves what a gateway understands."""

    def test_ranges(self) -> None:
        """Ranges are cut at both ends, and an API of which nothing is left is removed."""
        for apiVersion in _VERSIONS:
            for said, cut in _CUTS.items():
                expected = _body(apiVersion, [] if cut is None else [cut])
                self.assertEqual(cutApiVersions(apiVersion, _body(apiVersion, [said])), expected)
            kept = [cut for cut in _CUTS.values() if cut is not None]
            self.assertEqual(cutApiVersions(apiVersion, _body(apiVersion, _CUTS)), _body(apiVersion, kept))

    def test_older(self) -> None:
        """A gateway may tell of older versions than it understands."""
        rows = [(PRODUCE, 3, 9), (API_VERSIONS, 0, 4)]
        for apiVersion in _VERSIONS:
            told = cutApiVersions(apiVersion, _body(apiVersion, rows), {API_VERSIONS: 2})
            self.assertEqual(told, _body(apiVersion, [rows[0], (API_VERSIONS, 0, 2)]))

    def test_everythingElseStays(self) -> None:
        """Features, the throttle time and tagged fields that nobody knows stay, also in the rows that are kept."""
        for apiVersion in _VERSIONS:
            self._checkRest(apiVersion)

    def _checkRest(self, apiVersion: int) -> None:
        @fewExamples
        @given(entities(load_response_schema(API_VERSIONS, apiVersion)), st.booleans())
        def check(entity: Any, isMany: bool) -> None:
            if entity.error_code is ErrorCode.unsupported_version:
                return
            entityType = type(entity)
            rows, _ = entity_reader(entityType)(_body(apiVersion, 30 * list(_CUTS) if isMany else _CUTS), 0)
            cut, _ = entity_reader(entityType)(
                _body(apiVersion, [row for row in _CUTS.values() if row is not None] * (30 if isMany else 1)), 0
            )
            self.assertEqual(
                cutApiVersions(apiVersion, encodeWithTags(_withRows(entity, rows))),
                encodeWithTags(_withRows(entity, cut)),
            )

        check()

    def test_unsupportedVersion(self) -> None:
        """A node that does not know the version answers in the form of version 0, which is cut as well."""
        body = _body(0, [(18, 0, 5), (999, 0, 1)], error_code=35)
        for apiVersion in _VERSIONS:
            self.assertEqual(cutApiVersions(apiVersion, body), _body(0, [(18, 0, 4)], error_code=35))
            self.assertEqual(versionOfForm(apiVersion, body), 0)
            self.assertEqual(versionOfForm(apiVersion, _body(apiVersion, [])), apiVersion)

    def test_everyCutIsMalformed(self) -> None:
        """A response that ends within its rows is malformed."""
        for apiVersion in _VERSIONS:
            body = _body(apiVersion, [(12, 0, 4), (13, 0, 4)])
            behind = len(_body(apiVersion, [])) - (3 if apiVersion >= 3 else 6)
            for sizeBytes in range(len(body) - behind):
                malformed = self.assertRaises(MalformedResponse, cutApiVersions, apiVersion, body[:sizeBytes])
                self.assertEqual(str(malformed), f"a response to ApiVersions v{apiVersion} ends before its fields do")

    def test_hostileLengths(self) -> None:
        """Counts and sizes beyond the bytes there are neither take time nor memory."""
        self.assertRaises(MalformedResponse, cutApiVersions, 0, b"\x00\x00\x7f\xff\xff\xff" + bytes(100))
        self.assertRaises(MalformedResponse, cutApiVersions, 3, b"\x00\x00\xff\xff\xff\xff\x7f" + bytes(100))
        row = b"\x00\x00\x02\x00\x0c\x00\x00\x00\x04\x01\x05"
        self.assertRaises(MalformedResponse, cutApiVersions, 3, row + b"\xff\xff\xff\xff\x7f" + bytes(100))
        self.assertRaises(MalformedResponse, cutApiVersions, 0, _body(0, [(12, 0, 4)] * 1001))
        malformed = self.assertRaises(MalformedResponse, cutApiVersions, 3, bytes(2) + 6 * b"\x80")
        self.assertEqual(str(malformed), "in a response to ApiVersions v3 a varint runs over 5 bytes")


def _withRows(entity: Any, other: Any) -> Any:
    return dataclasses.replace(entity, api_keys=other.api_keys)

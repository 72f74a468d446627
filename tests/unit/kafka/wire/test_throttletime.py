"""Tests for L{admission.kafka.wire.throttletime}."""

import dataclasses
import datetime
from typing import Any

from hypothesis import given
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.codec import encodeEntity
from admission.kafka.wire.primitives import MalformedResponse
from admission.kafka.wire.relayedapis import RelayedApi, hasThrottleTime, throttleTimeOffset
from admission.kafka.wire.throttletime import withLongerThrottle
from admission.kafka.wire.versions import API_VERSIONS, PRODUCE
from tests.kit.kioentities import entities, fewExamples
from tests.unit.kafka.wire.test_addresses import encodeWithTags
from tests.unit.kafka.wire.test_relayedapis import everyRelayedVersion


def _throttled(entity: Any, throttleMs: int) -> Any:
    return dataclasses.replace(entity, throttle_time=datetime.timedelta(milliseconds=throttleMs))


class WithLongerThrottleTests(SynchronousTestCase):
    """L{withLongerThrottle} changes the throttle time and nothing else."""

    def test_everyVersion(self) -> None:
        """
        In every version of every API the longer time is in the response, which is
        otherwise the same, and the node's own is returned.
        """
        for api, apiVersion in everyRelayedVersion():
            self._check(api, apiVersion)

    def _check(self, api: RelayedApi, apiVersion: int) -> None:
        @fewExamples
        @given(entities(load_response_schema(api.apiKey, apiVersion)))
        def check(entity: Any) -> None:
            if api.apiKey == API_VERSIONS and entity.error_code is ErrorCode.unsupported_version:
                return
            if not hasThrottleTime(api.apiKey, apiVersion):
                body = encodeWithTags(entity)
                self.assertEqual(withLongerThrottle(api.apiKey, apiVersion, body, 500), (body, 0))
                return
            body = encodeWithTags(_throttled(entity, 300))
            longer = encodeWithTags(_throttled(entity, 500))
            self.assertEqual(withLongerThrottle(api.apiKey, apiVersion, body, 500), (longer, 300))
            self.assertEqual(withLongerThrottle(api.apiKey, apiVersion, body, 300), (body, 300))
            self.assertEqual(withLongerThrottle(api.apiKey, apiVersion, body, 0), (body, 300))

        check()

    def test_firstBytes(self) -> None:
        """Where the place is fixed, the beginning of a response is enough, and any less of it is not."""
        for api, apiVersion in everyRelayedVersion():
            offset = throttleTimeOffset(api.apiKey, apiVersion)
            if offset is not None:
                before = bytes(offset)
                raised = withLongerThrottle(api.apiKey, apiVersion, before + bytes(4), 258)
                self.assertEqual(raised, (before + b"\x00\x00\x01\x02", 0))
                malformed = self.assertRaises(
                    MalformedResponse, withLongerThrottle, api.apiKey, apiVersion, before + bytes(3), 1
                )
                self.assertEqual(str(malformed), f"a response to {api.name} v{apiVersion} ends before its fields do")

    def test_unsupportedVersion(self) -> None:
        """A node that does not know the version of ApiVersions answers in a form that has no throttle time."""
        fields = {"error_code": 35, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 4}]}
        body = b"".join(encodeEntity(load_response_schema(API_VERSIONS, 0), fields))
        for apiVersion in range(5):
            self.assertEqual(withLongerThrottle(API_VERSIONS, apiVersion, body, 500), (body, 0))

    def test_malformed(self) -> None:
        """A response that is cut before its throttle time is malformed, wherever it is cut."""
        topic = {"name": "a", "partition_responses": [{"index": 1, "record_errors": [{"batch_index": 1}]}]}
        for apiVersion in range(3, 13):
            body = b"".join(encodeEntity(load_response_schema(PRODUCE, apiVersion), {"responses": [topic]}))
            timeEnd = len(body) - (1 if apiVersion >= 9 else 0)
            self.assertEqual(withLongerThrottle(PRODUCE, apiVersion, body[:timeEnd], 0), (body[:timeEnd], 0))
            for sizeBytes in range(timeEnd):
                self.assertRaises(MalformedResponse, withLongerThrottle, PRODUCE, apiVersion, body[:sizeBytes], 0)
        self.assertRaises(MalformedResponse, withLongerThrottle, API_VERSIONS, 3, b"\x00", 0)
        self.assertRaises(MalformedResponse, withLongerThrottle, API_VERSIONS, 3, b"\x00\x00\xff\xff\xff\xff\x7f", 0)

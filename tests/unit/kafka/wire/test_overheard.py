"""Tests for L{admission.kafka.wire.overheard}."""

from typing import Any

from kio.index import load_request_schema, load_response_schema
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.codec import encodeEntity
from admission.kafka.wire.overheard import authBytes, maxWaitMs, saslErrorCode, saslMechanism, sessionTimeoutMs
from admission.kafka.wire.primitives import MalformedRequest, MalformedResponse
from admission.kafka.wire.relayedapis import RELAYED_BY_KEY, SHARE_FETCH
from admission.kafka.wire.versions import FETCH, JOIN_GROUP, SASL_AUTHENTICATE, SASL_HANDSHAKE


def _request(apiKey: int, apiVersion: int, **fields: Any) -> bytes:
    return b"".join(encodeEntity(load_request_schema(apiKey, apiVersion), fields))


class OverheardTests(SynchronousTestCase):
    """A gateway reads from messages what kio wrote there."""

    def test_sessionTimeout(self) -> None:
        """The session timeout is read in every version."""
        for apiVersion in range(10):
            for groupId in "", "g", "x" * 200:
                body = _request(JOIN_GROUP, apiVersion, group_id=groupId, session_timeout_ms=45_000)
                self.assertEqual(sessionTimeoutMs(apiVersion, body), 45_000)
                self.assertEqual(sessionTimeoutMs(apiVersion, memoryview(bytearray(body))), 45_000)

    def test_maxWait(self) -> None:
        """So is how long a Fetch may wait, which is not negative."""
        for apiKey, names in (
            (FETCH, [{}]),
            (SHARE_FETCH, [{"group_id": "g" * 200, "member_id": "m"}, {"group_id": None}]),
        ):
            api = RELAYED_BY_KEY[apiKey]
            for apiVersion in range(api.minVersion, api.maxVersion + 1):
                for fields in names:
                    for waitMs in 0, 500, -1:
                        body = _request(apiKey, apiVersion, max_wait_ms=waitMs, **fields)
                        self.assertEqual(maxWaitMs(apiKey, apiVersion, memoryview(body)), max(waitMs, 0))

    def test_login(self) -> None:
        """So are the mechanism, the token, and the error code of the answer."""
        self.assertEqual(saslMechanism(_request(SASL_HANDSHAKE, 1, mechanism="PLAIN")), "PLAIN")
        for apiVersion in range(3):
            for token in b"", b"\x00user\x00password", bytes(300):
                body = _request(SASL_AUTHENTICATE, apiVersion, auth_bytes=token)
                self.assertEqual(authBytes(apiVersion, memoryview(bytearray(body))), token)
            for errorCode in 0, 58, -1:
                fields = {"error_code": errorCode, "error_message": "no"}
                answer = b"".join(encodeEntity(load_response_schema(SASL_AUTHENTICATE, apiVersion), fields))
                self.assertEqual(saslErrorCode(answer), errorCode)

    def test_everyCutIsMalformed(self) -> None:
        """A message that ends before what is read is malformed, and says which it is."""
        for read, body in (
            (lambda cut: sessionTimeoutMs(0, cut), b"\x00\x01g\x00\x00\x00\x01"),
            (lambda cut: sessionTimeoutMs(6, cut), b"\x02g\x00\x00\x00\x01"),
            (lambda cut: maxWaitMs(FETCH, 4, cut), bytes(8)),
            (lambda cut: maxWaitMs(FETCH, 15, cut), bytes(4)),
            (lambda cut: maxWaitMs(SHARE_FETCH, 1, cut), b"\x02g\x02m" + bytes(8)),
            (saslMechanism, b"\x00\x05PLAIN"),
            (lambda cut: authBytes(0, cut), b"\x00\x00\x00\x02ab"),
            (lambda cut: authBytes(2, cut), b"\x03ab"),
        ):
            read(body)
            for sizeBytes in range(len(body)):
                malformed = self.assertRaises(MalformedRequest, read, body[:sizeBytes])
                self.assertIn("request ends before its fields do", str(malformed))
        self.assertRaises(MalformedResponse, saslErrorCode, b"\x00")

    def test_malformed(self) -> None:
        """Null and other negative lengths are malformed, and text that is none."""
        for read, body in (
            (lambda cut: sessionTimeoutMs(0, cut), b"\xff\xff" + bytes(10)),
            (lambda cut: sessionTimeoutMs(6, cut), bytes(10)),
            (saslMechanism, b"\xff\xfe" + bytes(10)),
            (saslMechanism, b"\x00\x01\xff"),
            (lambda cut: authBytes(0, cut), b"\xff\xff\xff\xff" + bytes(10)),
            (lambda cut: authBytes(2, cut), b"\x00\x00"),
            (lambda cut: authBytes(2, cut), 6 * b"\x80"),
        ):
            self.assertRaises(MalformedRequest, read, body)

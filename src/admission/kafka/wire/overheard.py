# -*- test-case-name: tests.unit.kafka.wire.test_overheard -*-
"""
The few fields that a gateway reads of what clients and nodes say to each other.

Bodies may be followed by anything, and fields behind the one that is read are not
looked at.
"""

import struct
from typing import Final

from .primitives import CLASSIC, FLEXIBLE, PAST_THE_END, Buffer, MalformedRequest, MalformedResponse
from .relayedapis import RELAYED_BY_KEY, SHARE_FETCH
from .versions import JOIN_GROUP, SASL_AUTHENTICATE

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_FIRST_FETCH_WITHOUT_REPLICA: Final = 15


def sessionTimeoutMs(apiVersion: int, body: Buffer) -> int:
    """
    After how many milliseconds of silence a member that sends JoinGroup is taken
    for dead.

    @raise MalformedRequest: if the body ends before it.
    """
    dialect = FLEXIBLE if RELAYED_BY_KEY[JOIN_GROUP].isFlexible(apiVersion) else CLASSIC
    try:
        groupIdBytes, offset = dialect.readStringLength(body, 0)
        timeoutMs: int = _INT32.unpack_from(body, offset + _sized("JoinGroup", groupIdBytes))[0]
    except PAST_THE_END:
        raise MalformedRequest("a JoinGroup request ends before its fields do") from None
    return timeoutMs


def maxWaitMs(apiKey: int, apiVersion: int, body: Buffer) -> int:
    """
    How many milliseconds a Fetch or a ShareFetch request lets the node wait for
    records.

    @raise MalformedRequest: if the body ends before it.
    """
    try:
        offset = 0 if apiVersion >= _FIRST_FETCH_WITHOUT_REPLICA else _INT32.size
        if apiKey == SHARE_FETCH:
            # A group, a member and the epoch of their session come before it.
            groupIdBytes, offset = FLEXIBLE.readStringLength(body, 0)
            memberIdBytes, offset = FLEXIBLE.readStringLength(body, offset + max(groupIdBytes, 0))
            offset += max(memberIdBytes, 0) + _INT32.size
        waitMs: int = _INT32.unpack_from(body, offset)[0]
    except PAST_THE_END:
        raise MalformedRequest(f"a {RELAYED_BY_KEY[apiKey].name} request ends before its fields do") from None
    return max(waitMs, 0)


def saslMechanism(body: Buffer) -> str:
    """
    The mechanism that a SaslHandshake request asks for, in version 1.

    @raise MalformedRequest: if the body ends before it, or it is not UTF-8.
    """
    try:
        sizeBytes, offset = CLASSIC.readStringLength(body, 0)
        return str(_taken("SaslHandshake", body, offset, sizeBytes), "utf-8")
    except PAST_THE_END:
        raise MalformedRequest("a SaslHandshake request ends before its fields do") from None
    except UnicodeDecodeError:
        raise MalformedRequest("the mechanism in a SaslHandshake request is not UTF-8") from None


def authBytes(apiVersion: int, body: Buffer) -> bytes:
    """
    The token of a SaslAuthenticate request, which may contain a password.

    @raise MalformedRequest: if the body ends before it.
    """
    dialect = FLEXIBLE if RELAYED_BY_KEY[SASL_AUTHENTICATE].isFlexible(apiVersion) else CLASSIC
    try:
        sizeBytes, offset = dialect.readLength(body, 0)
        return _taken("SaslAuthenticate", body, offset, sizeBytes)
    except PAST_THE_END:
        raise MalformedRequest("a SaslAuthenticate request ends before its fields do") from None


def saslErrorCode(body: Buffer) -> int:
    """
    The error code of a response to SaslAuthenticate, which comes first in every
    version; 0 if the node accepted the token.

    @raise MalformedResponse: if the body ends before it.
    """
    if len(body) < _INT16.size:
        raise MalformedResponse("a response to SaslAuthenticate ends before its fields do")
    errorCode: int = _INT16.unpack_from(body)[0]
    return errorCode


def _sized(apiName: str, sizeBytes: int) -> int:
    if sizeBytes < 0:
        raise MalformedRequest(f"a {apiName} request has a length of {sizeBytes}")
    return sizeBytes


def _taken(apiName: str, body: Buffer, offset: int, sizeBytes: int) -> bytes:
    end = offset + _sized(apiName, sizeBytes)
    if end > len(body):
        raise MalformedRequest(f"a {apiName} request ends before its fields do")
    return bytes(body[offset:end])

# -*- test-case-name: tests.unit.kafka.broker.groups.test_subscriptions -*-
"""
Which topics members of groups read, as Kafka's consumers say it: decoded once, when a member joins.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from typing import Final, NamedTuple

from admission.timeslices import Steps

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of consumers; other programs may form groups, too."""

_MAX_TOPICS: Final = 100_000
"""Metadata that name more topics name none."""

_NAMES_IN_STEP: Final = 100
"""How many names are decoded between two steps, in about a twentieth of a millisecond."""

_TEXT_BYTES: Final = sys.getsizeof("")

_DECODED_BYTES: Final = 250
"""The memory of a name while names are decoded, besides its characters: a text, and its places in up to three sets."""

# The version, of which later ones only add to the first, and how many topics follow.
_HEAD: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")


class Subscription(NamedTuple):
    """
    What a member reads.

    @ivar topics: the names of topics, which need not exist.
    @ivar sizeBytes: about how much memory they take.
    """

    topics: frozenset[str]
    sizeBytes: int


NO_TOPICS: Final = Subscription(frozenset(), 0)


def decodingBytes(metadata: bytes) -> int:
    """
    How much memory L{subscriptionIn} needs at most for what a consumer says.
    """
    return len(metadata) + _countIn(metadata) * _DECODED_BYTES


def subscriptionIn(metadata: Iterable[bytes]) -> Steps[Subscription]:
    """
    The topics that a consumer says it reads.

    @param metadata: what it says in each of the protocols that it supports.  What cannot be understood names none.
    """
    topics: set[str] = set()
    for each in metadata:
        yield from _read(each, topics)
    if not topics:
        return NO_TOPICS
    yield None
    kept = frozenset(topics)
    return Subscription(kept, sys.getsizeof(kept) + len(kept) * _TEXT_BYTES + sum(map(len, kept)))


def _read(metadata: bytes, topics: set[str]) -> Steps[None]:
    yield None
    position = _HEAD.size
    found: set[str] = set()
    for number in range(_countIn(metadata)):
        if number % _NAMES_IN_STEP == 0:
            yield None
        try:
            begin = position + _LENGTH.size
            position = begin + _LENGTH.unpack_from(metadata, position)[0]
            if not begin <= position <= len(metadata):
                return
            found.add(metadata[begin:position].decode())
        except (struct.error, UnicodeDecodeError):
            return
    topics |= found


def _countIn(metadata: bytes) -> int:
    """
    How many names there are, or none if there cannot be that many.
    """
    if len(metadata) < _HEAD.size:
        return 0
    count: int = _HEAD.unpack_from(metadata)[1]
    # Each has its length before it.
    return count if 0 < count <= min(_MAX_TOPICS, (len(metadata) - _HEAD.size) // _LENGTH.size) else 0

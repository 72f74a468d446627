# -*- test-case-name: tests.unit.kafka.serving.test_refusedsequences -*-
"""
Refusing the batches that an idempotent producer sent after a refused one.
"""

from __future__ import annotations

from typing import Final

from ..wire.batches import HEADER_BYTES, readHeader
from ..wire.produce import ProduceRequest

MAX_BEHIND: Final = 4
"""How many requests a client can have in flight behind a refused one: idempotent producers have at most five in all."""

MAX_BATCHES: Final = 64
"""How many batches are remembered of one connection, and checked in one request; few clients reach it."""

_SEQUENCES: Final = 1 << 31


class RefusedSequences:
    """
    The sequence numbers of the batches of one connection that a policy has
    refused, kept while later batches may arrive that their producers sent before
    they knew of the refusal.

    The later batches must be refused, too.  The log knows nothing of a new
    producer and takes the first batch that arrives for its beginning: it would
    append a later batch, and refuse the missing one when that is sent again.

    Clients have at most five requests in flight, so only batches are remembered
    on which the four requests after the last refused one may depend.
    """

    __slots__ = ("_requestsLeft", "_sequences")

    def __init__(self) -> None:
        # The first missing sequence number, by the hash of producer, epoch and partition: names may be long.
        self._sequences: dict[int, int] = {}
        self._requestsLeft = 0

    def add(self, request: ProduceRequest) -> None:
        """
        Remember that C{request} was refused.
        """
        self._requestsLeft = MAX_BEHIND
        self._add(_batchesIn(request))

    def blocks(self, request: ProduceRequest) -> bool:
        """
        Whether C{request}, which no policy refuses, must be refused because an
        earlier batch was.  Call once for each request, because it counts the
        requests.  A request that brings the missing batches is not blocked, and
        neither are the requests that continue it.
        """
        if not self._requestsLeft:
            self._sequences.clear()
            return False
        self._requestsLeft -= 1
        batches = _batchesIn(request)
        if any(_isAfter(sequence, self._sequences.get(key, sequence)) for key, sequence in batches):
            self._add(batches)
            return True
        for key, _ in batches:
            self._sequences.pop(key, None)
        return False

    def _add(self, batches: list[tuple[int, int]]) -> None:
        for key, sequence in batches:
            if len(self._sequences) >= MAX_BATCHES:
                self._sequences.clear()
            known = self._sequences.get(key)
            if known is None or _isAfter(known, sequence):
                self._sequences[key] = sequence


def _isAfter(sequence: int, other: int) -> bool:
    """
    Whether one sequence number comes after another one that was used not long before: after 2^31 - 1 comes 0.
    """
    return 0 < (sequence - other) % _SEQUENCES < _SEQUENCES // 2


def _batchesIn(request: ProduceRequest) -> list[tuple[int, int]]:
    found = []
    for topicName, index, records in request.partitions[:MAX_BATCHES]:
        if records is not None and len(records) >= HEADER_BYTES:
            header = readHeader(records)
            if header.producerId >= 0:
                found.append((hash((header.producerId, header.producerEpoch, topicName, index)), header.baseSequence))
    return found

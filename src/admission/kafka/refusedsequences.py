# -*- test-case-name: tests.unit.kafka.test_refusedsequences -*-
"""
What an idempotent producer has sent after a batch that was refused.
"""

from __future__ import annotations

from typing import Final

from .broker.log.producers import REMEMBERED_BATCHES
from .wire.batches import HEADER_BYTES, readHeader
from .wire.produce import ProduceRequest

MAX_BEHIND: Final = REMEMBERED_BATCHES - 1
"""How many requests a client can have under way behind one that is refused."""

MAX_BATCHES: Final = 64
"""How many batches are remembered of one connection, and looked at in one request; few clients get there."""


class RefusedSequences:
    """
    The sequence numbers of batches of one connection that a policy has
    refused, for as long as others may follow that their producers sent before
    they knew.

    Those must be refused, too.  The log knows nothing of a new producer and
    takes the first batch that comes for its beginning: it would append a later
    batch, and refuse the missing one when that is sent again.

    Clients have at most five requests under way, so only the batches are
    remembered that the four requests behind the last refused one may depend on.
    """

    __slots__ = ("_requestsLeft", "_sequences")

    def __init__(self) -> None:
        # The first sequence number that is missing, by the hash of producer, epoch and partition: names may be long.
        self._sequences: dict[int, int] = {}
        self._requestsLeft = 0

    def add(self, request: ProduceRequest) -> None:
        """
        C{request} is refused.
        """
        self._requestsLeft = MAX_BEHIND
        self._add(_batchesIn(request))

    def blocks(self, request: ProduceRequest) -> bool:
        """
        Whether C{request}, which no policy refuses, has to be refused because a
        batch before one of its own was.  Ask once for each request, for it is
        counted.  One that brings the missing batches is not blocked, nor are
        those that continue it.
        """
        if not self._requestsLeft:
            self._sequences.clear()
            return False
        self._requestsLeft -= 1
        batches = _batchesIn(request)
        if any(sequence > self._sequences.get(key, sequence) for key, sequence in batches):
            self._add(batches)
            return True
        for key, _ in batches:
            self._sequences.pop(key, None)
        return False

    def _add(self, batches: list[tuple[int, int]]) -> None:
        for key, sequence in batches:
            if len(self._sequences) >= MAX_BATCHES:
                self._sequences.clear()
            self._sequences[key] = min(sequence, self._sequences.get(key, sequence))


def _batchesIn(request: ProduceRequest) -> list[tuple[int, int]]:
    found = []
    for topicName, index, records in request.partitions[:MAX_BATCHES]:
        if records is not None and len(records) >= HEADER_BYTES:
            header = readHeader(records)
            if header.producerId >= 0:
                found.append((hash((header.producerId, header.producerEpoch, topicName, index)), header.baseSequence))
    return found

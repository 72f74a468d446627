# -*- test-case-name: tests.unit.recording.test_events -*-
"""
What drivers of Kafka's protocol record of a request besides what every server
does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define

from ..recording.events import UNKNOWN, RequestEvent
from ..recording.schema import Column, ColumnType, foreign, integer


@define(eq=False)
class KafkaRequestEvent(RequestEvent):
    """
    A request of Kafka's protocol.

    @ivar apiKey: which API; L{UNKNOWN} if it was refused before that was read.
    @ivar producerIds: the producers that it carries records of.  The first
        four are recorded, and how many there were.
    @ivar producerEpoch: the epoch of the first.
    @ivar groupId: the consumer group that it is about.
    """

    apiKey: int = UNKNOWN
    apiVersion: int = UNKNOWN
    correlationId: int = UNKNOWN
    producerIds: Sequence[int] = ()
    producerEpoch: int = UNKNOWN
    groupId: str | None = None

    @property
    def producerId(self) -> int:
        """
        The first of its producers.
        """
        return self.producerIds[0] if self.producerIds else UNKNOWN

    @property
    def producerIdCount(self) -> int:
        """
        How many there are.
        """
        return len(self.producerIds)


KAFKA_COLUMNS: Mapping[str, Sequence[Column]] = {
    "kind": (
        integer("api_key", "apiKey", "h"),
        integer("api_version", "apiVersion", "h"),
        integer("correlation_id", "correlationId", "i"),
    ),
    "response_bytes": (
        Column("producer_id", ColumnType.IDENTITY, "producerId", "q"),
        Column("producer_epoch", ColumnType.IDENTITY, "producerEpoch", "h"),
        integer("producer_id_count", "producerIdCount", "i"),
        Column("producer_ids", ColumnType.INTEGERS, "producerIds", "q", 4),
        foreign("group_id", "groupId"),
    ),
}
"""By the column of the requests table that they stand behind."""

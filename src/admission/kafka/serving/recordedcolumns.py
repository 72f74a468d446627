# -*- test-case-name: tests.unit.recording.test_events -*-
"""
What Kafka drivers record of a request, in addition to what every server
records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define

from admission.recording.events import UNKNOWN, UNKNOWN_SECONDS, RequestEvent
from admission.recording.schema import Column, ColumnType, foreign, integer


@define(eq=False)
class KafkaRequestEvent(RequestEvent):
    """
    A request of Kafka's protocol.

    @ivar apiKey: the API; L{UNKNOWN} if it was refused before that was read.
    @ivar producerEpoch: the epoch of the first producer whose records it has;
        the producer ids are its C{identities}.
    @ivar groupId: the consumer group of the request.
    @ivar nodeId: in a gateway, the node that it was passed on to.
    @ivar upstreamSeconds: in a gateway, how long the node took to answer, all of its response included.
    @ivar upstreamThrottleMs: in a gateway, for how long the node itself throttles the client.
    """

    apiKey: int = UNKNOWN
    apiVersion: int = UNKNOWN
    correlationId: int = UNKNOWN
    producerEpoch: int = UNKNOWN
    groupId: str | None = None
    nodeId: int = UNKNOWN
    upstreamSeconds: float = UNKNOWN_SECONDS
    upstreamThrottleMs: int = UNKNOWN


KAFKA_COLUMNS: Mapping[str, Sequence[Column]] = {
    "kind": (
        integer("api_key", "apiKey", "h"),
        integer("api_version", "apiVersion", "h"),
        integer("correlation_id", "correlationId", "i"),
    ),
    "producer_id": (Column("producer_epoch", ColumnType.IDENTITY, "producerEpoch", "h"),),
    "producer_ids": (foreign("group_id", "groupId"),),
    "refusal": (
        Column("node_id", ColumnType.IDENTITY, "nodeId", "h"),
        Column("upstream_us", ColumnType.SECONDS, "upstreamSeconds", "f"),
        Column("upstream_throttle_ms", ColumnType.IDENTITY, "upstreamThrottleMs", "h"),
    ),
}
"""
By the column of the requests table that they follow.
"""

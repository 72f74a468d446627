"""
What consumers deal in.
"""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """
    One partition of a topic.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ConsumerRecord(NamedTuple):
    """
    One record as a consumer gets it.

    @ivar topic: where it comes from, like C{partition} and C{offset}.
    @ivar timestampMs: when, in milliseconds since the epoch: when it was
        made, or stored if the topic says so.
    @ivar key: what it is filed under, if anything.
    @ivar value: what it says; L{None} deletes the key from a compacted topic.
    @ivar headers: names and values, in order; a name may occur twice.
    """

    topic: str
    partition: int
    offset: int
    timestampMs: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

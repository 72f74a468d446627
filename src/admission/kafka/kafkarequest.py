# -*- test-case-name: tests.unit.kafka.test_session -*-
"""
One request of a Kafka client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..recording.events import UNKNOWN
from ..request import ServerRequest
from .wire.headers import RequestHeader
from .wire.produce import PartitionResult


class Address(NamedTuple):
    """
    Where clients are told to find the broker.
    """

    host: str
    port: int


class ClientConnection(Protocol):
    """
    What a request tells of the connection that it came by.
    """

    host: str

    def reachedAddress(self) -> Address:
        """
        Where its client is to find the broker.
        """


class KafkaRequest(ServerRequest):
    """
    A request of the Kafka protocol, as APIs see it.

    @ivar apiKey: which API; L{UNKNOWN} until two bytes of it are there.
    @ivar header: what precedes its body, once that has been read.
    @ivar entity: kio's entity for its version, once it has been decoded;
        Produce is not.
    @ivar identities: the producer ids that it has batches of, if anybody wants
        to know.
    @ivar producerEpoch: the epoch of the first.
    @ivar groupId: the consumer group that it is about, if anybody wants to know.
    @ivar results: of a Produce request, what became of the records for each
        partition.
    @ivar commit: of a Produce request, the commit that must be on the disk before
        it is answered, or 0.
    @ivar timeoutSeconds: for how long it may wait for that.
    @ivar throttledUntilSeconds: when the delay ends that it is answered with.
    """

    # Without slots of its own: few of these are set for any one request.

    connection: ClientConnection
    clientId: str
    header: RequestHeader = None  # type: ignore[assignment]
    apiKey = UNKNOWN
    entity: Any = None
    identities: Sequence[int] = ()
    producerEpoch = UNKNOWN
    groupId: str | None = None
    results: Sequence[PartitionResult] = ()
    commit = 0
    timeoutSeconds = 0.0
    throttledUntilSeconds = 0.0

    @property
    def apiVersion(self) -> int:
        """
        The version that it was sent in.
        """
        return self.header.apiVersion

    @property
    def host(self) -> str:
        """
        The client's address, without its port.
        """
        return self.connection.host

    @property
    def advertised(self) -> Address:
        """
        Where this client is to find the broker.
        """
        return self.connection.reachedAddress()


def groupOf(entity: Any) -> str | None:
    """
    The consumer group that a decoded request is about, if it is about one.
    """
    groupId: str | None = getattr(entity, "group_id", None)
    if groupId is None:
        groups: Sequence[Any] = getattr(entity, "groups", None) or getattr(entity, "groups_names", None) or ()
        if len(groups) == 1:
            groupId = getattr(groups[0], "group_id", groups[0])
    return groupId

# -*- test-case-name: tests.unit.kafka.serving.test_session -*-
"""
One request of a Kafka client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from admission.interfaces import ILease, Traits
from admission.recording.events import UNKNOWN, UNKNOWN_SECONDS
from admission.request import ServerRequest

from ..wire.headers import RequestHeader
from ..wire.produce import PartitionResult

_UNCOUNTED = Traits(countsReceived=False, countsSent=False)

_TRAITS: Mapping[str, Traits] = {
    "Produce": Traits(countsSent=False),
    "Fetch": Traits(countsReceived=False, waitsForOthers=True),
    **dict.fromkeys(("JoinGroup", "SyncGroup"), Traits(countsReceived=False, countsSent=False, waitsForOthers=True)),
}
"""What APIs mean to policies: quotas of bytes are for records (KIP-13), and members of a group wait for each other."""


class Address(NamedTuple):
    """
    The address at which clients are told to find the broker.
    """

    host: str
    port: int


class ClientConnection(Protocol):
    """
    What a request says about its connection.

    @ivar holder: its principal, or its address while that is not known.
    @ivar isTLS: whether it is encrypted.
    @ivar needsLogin: whether we want a login of it, unless it has a certificate.
    """

    host: str
    holder: str
    isTLS: bool

    @property
    def needsLogin(self) -> bool: ...

    def reachedAddress(self) -> Address:
        """
        Where the client is told to find the broker.
        """


class SharedNode(Protocol):
    """
    What a request says to the node that it is meant for.
    """

    def release(self, sizeBytes: int) -> None:
        """
        So many bytes no longer wait for it.
        """


class KafkaRequest(ServerRequest):
    """
    A request of the Kafka protocol, as the APIs see it.

    @ivar apiKey: the API; L{UNKNOWN} until its two bytes have been read.
    @ivar header: the header, once it has been read.
    @ivar entity: kio's entity for its version, once it has been decoded;
        Produce is not.
    @ivar identities: the producer ids of its batches, if any component uses
        them.
    @ivar producerEpoch: the epoch of the first of these producers.
    @ivar groupId: the consumer group of the request, if any component uses it.
    @ivar acks: of a Produce request, which acknowledgement its client wants.
    @ivar results: of a Produce request, the outcome for each partition.
    @ivar isUnflushed: of a Produce request, whether it waits for the disk.
    @ivar timeoutSeconds: how long it may wait for that.
    @ivar deadlineSeconds: until when it waits.
    @ivar throttledUntilSeconds: when the delay in its answer ends.
    @ivar decoded: the charge for C{entity}, if that outlives a turn, or for what is collected to answer it.
    @ivar node: in a gateway, the node whose share its memory is charged to.
    @ivar nodeId: in a gateway, the node that it was passed on to, if that is known.
    @ivar upstreamSeconds: how long it took to answer, not a number before that.
    @ivar upstreamThrottleMs: for how long that throttles the client.
    @ivar isOwn: in a gateway, whether it is answered here and not by a node.
    @ivar parts: its answer then, which may have to wait for those before it.
    """

    # No slots of its own: few of these are set for any one request.

    connection: ClientConnection
    clientId: str
    header: RequestHeader = None  # type: ignore[assignment]
    apiKey = UNKNOWN
    entity: Any = None
    producerEpoch = UNKNOWN
    groupId: str | None = None
    acks = 0
    results: Sequence[PartitionResult] = ()
    isUnflushed = False
    timeoutSeconds = 0.0
    deadlineSeconds = 0.0
    throttledUntilSeconds = 0.0
    decoded: ILease | None = None
    node: SharedNode | None = None
    nodeId = UNKNOWN
    upstreamSeconds = UNKNOWN_SECONDS
    upstreamThrottleMs = UNKNOWN
    isOwn = False
    parts: list[bytes] | None = None
    _slicedSeconds = 0.0

    def isOf(self, apiName: str) -> None:
        """
        It is known which API it is for.
        """
        self.kind = apiName
        self.traits = _TRAITS.get(apiName, _UNCOUNTED)

    def workedInSlices(self, seconds: float) -> None:
        """
        Correct L{workedSeconds}, which knows nothing of slices.
        """
        self._slicedSeconds += seconds

    def workedSeconds(self, now: float) -> float:
        return super().workedSeconds(now) + self._slicedSeconds

    @property
    def decodedBytes(self) -> int:
        """
        What is charged for its entity.
        """
        return 0 if self.decoded is None else self.decoded.sizeBytes

    def releaseDecoded(self) -> None:
        """
        Release the charge for its entity, if there is one.
        """
        decoded, self.decoded = self.decoded, None
        if decoded is not None:
            decoded.release()

    def leaveNode(self) -> None:
        """
        It does not go to C{node}: give back its part of the node's share.
        """
        node, self.node = self.node, None
        if node is not None:
            node.release(self.sizeBytes)

    def end(self, now: float) -> None:
        self.releaseDecoded()
        super().end(now)
        self.leaveNode()

    @property
    def apiVersion(self) -> int:
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
        The address at which this client is told to find the broker.
        """
        return self.connection.reachedAddress()


def groupOf(entity: Any) -> str | None:
    """
    The consumer group of a decoded request; L{None} if it has none.
    """
    groupId: str | None = getattr(entity, "group_id", None)
    if groupId is None:
        groups: Sequence[Any] = getattr(entity, "groups", None) or getattr(entity, "groups_names", None) or ()
        if len(groups) == 1:
            groupId = getattr(groups[0], "group_id", groups[0])
    return groupId

# -*- test-case-name: tests.test_broker_api -*-
"""
What the APIs of the broker have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from attrs import define, field, frozen
from twisted.internet.defer import Deferred

from ..gate import Gate
from ..interfaces import IPurgatory
from .log.interface import ILog, Partition
from .settings import Settings


class Address(NamedTuple):
    """
    Where clients are told to find the broker.
    """

    host: str
    port: int


ANONYMOUS = "ANONYMOUS"
"""The principal of clients that have not logged in, where they need not."""


@frozen
class Call:
    """
    One request, as an API sees it.

    @ivar apiVersion: the version it was sent in.
    @ivar request: kio's entity for that version.
    @ivar advertised: where this client is to find the broker.
    @ivar principal: who asks: the name it has logged in with, or L{ANONYMOUS}.
    @ivar clientId: what the client calls itself; may be empty.
    @ivar host: its address, without the port.
    """

    apiVersion: int
    request: Any
    advertised: Address
    principal: str
    clientId: str
    host: str


Answer = Mapping[str, Any] | Sequence[bytes]
"""The fields of a response, or its body encoded already."""

Serve = Callable[["Broker", Call], "Answer | Deferred[Answer]"]
"""
What serves an API.  A L{Deferred} means that the request is parked; it is
cancelled when the client leaves.
"""


SYNCED = "log synchronised"
"""The key in the purgatory of what waits for the disk.  Partitions are keys of what waits for records."""


@define(eq=False)
class Broker:
    """
    The one broker of a cluster of one.

    @ivar purgatory: where requests wait.
    @ivar wallSeconds: seconds since the epoch, for records.
    @ivar clusterId: as clients see it.
    @ivar largestResponseBytes: what a Fetch may return at most, a first batch excepted.
    """

    settings: Settings
    log: ILog
    gate: Gate
    purgatory: IPurgatory
    wallSeconds: Callable[[], float]
    clusterId: str
    largestResponseBytes: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        # One answer must not take the memory that all requests share.
        self.largestResponseBytes = min(self.settings.fetchMaxBytes, max(self.gate.pool.sizeBytes // 4, 1 << 16))
        self.log.subscribe(self._recordsChanged)
        self.log.subscribeSynced(lambda: self.purgatory.checkAndComplete(SYNCED))

    @property
    def nodeId(self) -> int:
        """
        The broker's number.
        """
        return self.settings.brokerId

    def _recordsChanged(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            self.purgatory.checkAndComplete(partition)

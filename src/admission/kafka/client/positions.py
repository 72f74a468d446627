# -*- test-case-name: tests.unit.kafka.client.test_fetcher -*-
"""
Where to begin reading a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any

from attrs import define
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from .backoff import Backoff
from .cluster import FETCHES, Cluster, checkError
from .commits import Commits
from .consumersettings import EARLIEST, NONE
from .errors import ClientError, Disconnected, NoOffset
from .records import PartitionRecords
from .topicpartition import TopicPartition

_LATEST_TIME = -1
_EARLIEST_TIME = -2
_NO_REPLICA = -1


@define(eq=False)
class Assigned:
    """
    A partition that we read.

    @ivar position: the offset of the next record to hand over; L{None} until
        it is known.
    @ivar isUncommitted: whether the group is known to have no offset for it,
        or none that is of use, so that the log is to be asked.
    @ivar isPaused: whether nothing is to be handed over for the time being.
    @ivar fetched: what is there to be handed over.
    @ivar isFetching: whether it is part of a request on its way.
    @ivar retrySeconds: when to fetch it again after an error.
    @ivar failures: errors in a row.
    """

    place: TopicPartition
    position: int | None = None
    isUncommitted: bool = False
    isPaused: bool = False
    fetched: PartitionRecords | None = None
    isFetching: bool = False
    retrySeconds: float = float("-inf")
    failures: int = 0


@inlineCallbacks
def listOffsets(
    cluster: Cluster, places: Collection[TopicPartition], reset: str
) -> Generator[Deferred[Any], Any, dict[TopicPartition, int]]:
    """
    Ask the leaders where the logs of partitions begin or end.

    @param reset: L{EARLIEST} for the beginning, else the end.
    @return: the offsets of all of C{places}; fails with a L{ClientError
        <admission.kafka.client.errors.ClientError>} if a leader is not known or
        does not answer, or for a partition with an error.
    """
    timestamp = _EARLIEST_TIME if reset == EARLIEST else _LATEST_TIME
    byLeader: dict[int, list[TopicPartition]] = {}
    for place in places:
        leaderId = cluster.leaderOf(*place)
        if leaderId is None:
            raise Disconnected(f"nobody leads {place}")
        byLeader.setdefault(leaderId, []).append(place)
    offsets = {}
    for leaderId, led in byLeader.items():
        connection = yield cluster.connection(leaderId, FETCHES)
        answer = yield connection.request(
            "ListOffsets",
            {
                "replica_id": _NO_REPLICA,
                "topics": [
                    {"name": place.topic, "partitions": [{"partition_index": place.partition, "timestamp": timestamp}]}
                    for place in led
                ],
            },
        )
        for topic in answer.topics:
            for each in topic.partitions:
                checkError(each.error_code, f"where {topic.name}-{each.partition_index} begins or ends")
                offsets[TopicPartition(topic.name, each.partition_index)] = each.offset
    for place in places:
        if offsets.get(place, -1) < 0:
            raise Disconnected(f"a broker does not say where {place} begins or ends")
    return offsets


class Positions:
    """
    Finds positions for the partitions that have none, and goes on trying:
    where the group has committed, else where C{auto.offset.reset} says.

    @ivar onFound: called when some were found, or C{error} is set.
    @ivar onLeaderUnknown: called when the metadata are out of date.
    @ivar error: what trying again does not cure; for others to clear.
    """

    log = Logger()

    def __init__(
        self, cluster: Cluster, commits: Commits | None, reset: str, clock: IReactorTime, backoff: Backoff
    ) -> None:
        """
        @param commits: the offsets of the group, if there is one.
        @param reset: the value of C{auto.offset.reset}.
        """
        self._cluster = cluster
        self._commits = commits
        self._reset = reset
        self._clock = clock
        self._backoff = backoff
        self._finding: Deferred[None] | None = None
        self._timer: IDelayedCall | None = None
        self._failures = 0
        self._isClosed = False
        self.error: ClientError | None = None
        self.onFound: Callable[[], None] = lambda: None
        self.onLeaderUnknown: Callable[[], None] = lambda: None

    def find(self, assigned: Collection[Assigned]) -> None:
        """
        Find positions for those of C{assigned} that have none, unless that
        is going on already.
        """
        if self._finding is not None or self._timer is not None or self.error is not None or self._isClosed:
            return
        missing = [each for each in assigned if each.position is None]
        known = [each for each in missing if self._isUnasked(each) or self._cluster.leaderOf(*each.place) is not None]
        if len(known) < len(missing):
            self.onLeaderUnknown()
        if known:
            self._finding = finding = self._find(known)
            finding.addCallbacks(self._found, self._failed)
            finding.addErrback(lambda failure: self.log.failure("finding positions went wrong", failure))

    def _isUnasked(self, assigned: Assigned) -> bool:
        """
        Whether the group may know an offset.
        """
        return self._commits is not None and not assigned.isUncommitted

    @inlineCallbacks
    def _find(self, missing: Sequence[Assigned]) -> Generator[Deferred[Any], Any, None]:
        if self._commits is not None:
            unasked = {each.place: each for each in missing if self._isUnasked(each)}
            offsets = yield self._commits.committed(unasked)
            for place, each in unasked.items():
                # Somebody may have sought meanwhile.
                if each.position is None:
                    each.position = offsets.get(place)
                    each.isUncommitted = each.position is None
        unset = {each.place: each for each in missing if each.position is None}
        if unset and self._reset == NONE:
            raise NoOffset(f"there is no offset to begin at for {', '.join(map(str, unset))}")
        if unset:
            led = [place for place in unset if self._cluster.leaderOf(*place) is not None]
            offsets = yield listOffsets(self._cluster, led, self._reset)
            for place, each in unset.items():
                if each.position is None:
                    each.position = offsets.get(place)

    def _found(self, _: object) -> None:
        self._finding = None
        self._failures = 0
        self.onFound()

    def _failed(self, failure: Failure) -> None:
        self._finding = None
        if self._isClosed:
            return
        failure.trap(ClientError)  # type: ignore[no-untyped-call]
        error = failure.value
        assert isinstance(error, ClientError)
        if error.isRetriable:
            self._failures += 1
            self._timer = self._clock.callLater(self._backoff.delaySeconds(self._failures), self._tryAgain)
            self.onLeaderUnknown()
        else:
            self.error = error
            self.onFound()

    def _tryAgain(self) -> None:
        self._timer = None
        self.onFound()

    def close(self) -> None:
        """
        Find nothing more.
        """
        self._isClosed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._finding is not None:
            self._finding.cancel()

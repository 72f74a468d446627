# -*- test-case-name: tests.unit.kafka.broker.groups.test_groupstore -*-
"""
The offsets that groups commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred

from ..log.interface import Partition
from .groupstate import Group, Offset, State
from .groupstore import GroupStore
from .joining import memberOf
from .member import GroupRefusal, Speaker
from .sessions import Connections


class Offsets:
    """
    Commits and deletes offsets.  They can be read, or are gone, once that is
    committed to the log; in which order, the log says.
    """

    def __init__(self, store: GroupStore, connections: Connections, wallSeconds: Callable[[], float]) -> None:
        """
        @param wallSeconds: seconds since the epoch.
        """
        self._store = store
        self._connections = connections
        self._wallSeconds = wallSeconds

    def check(self, group: Group, speaker: Speaker) -> None:
        """
        May C{speaker} commit?  If it is a member, it was heard of.

        @raise GroupRefusal: if it may not.
        """
        if speaker.generation < 0 and group.state is State.EMPTY:
            return
        member = memberOf(group, speaker.memberId, speaker.instanceId)
        if speaker.generation != group.generation:
            raise GroupRefusal(ErrorCode.illegal_generation)
        if group.state is State.COMPLETING:
            raise GroupRefusal(ErrorCode.rebalance_in_progress)
        self._connections.heard(member, speaker.connection)
        member.session.start(member.sessionSeconds)

    def commit(self, group: Group, offsets: Mapping[Partition, Offset]) -> Deferred[None]:
        """
        Keep offsets.

        @return: fires when they would survive; fails with L{GroupRefusal}.
        """
        group.wallSeconds = self._wallSeconds()
        group.uncommittedCount += 1
        if not group.isStored:
            # Its offsets would belong to nobody.
            self._store.save(group, lambda error: None)
        waiting: Deferred[None] = Deferred(_leaveIt)

        def committed(error: Exception | None) -> None:
            group.uncommittedCount -= 1
            if error is None and group.state is not State.DEAD:
                for partition, offset in offsets.items():
                    if not partition.deleted:
                        group.commit(partition, offset)
            tell(waiting, error)

        self._store.saveOffsets(group, offsets, committed)
        return waiting

    def delete(self, group: Group, partitions: Collection[Partition]) -> Deferred[None]:
        """
        Forget offsets.

        @return: fires when they are gone for good; fails with L{GroupRefusal}.
        """
        waiting: Deferred[None] = Deferred(_leaveIt)

        def committed(error: Exception | None) -> None:
            if error is None and group.state is not State.DEAD:
                for partition in partitions:
                    group.commit(partition, None)
            tell(waiting, error)

        self._store.deleteOffsets(group, partitions, committed)
        return waiting


def tell(waiting: Deferred[None], error: Exception | None) -> None:
    """
    Answer a client, if it still waits, when what it wanted is committed or
    has failed.
    """
    if waiting.called:
        return
    if error is None:
        waiting.callback(None)
    else:
        waiting.errback(GroupRefusal(ErrorCode.not_coordinator))


def _leaveIt(waiting: Deferred[None]) -> None:
    """
    What is written is written, whether the client waits for it or not.
    """

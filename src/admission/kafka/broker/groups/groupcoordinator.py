# -*- test-case-name: tests.unit.kafka.broker.groups.test_rebalancer -*-
"""
The group coordinator: consumers that share topics among them, as Kafka's
classic group protocol has it, and the offsets that they commit.

It knows no sockets and no requests as they come.  What waits, waits in the
purgatory; what survives, the log keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from admission.interfaces import IPurgatory

from ..log.interface import CommitCallback, ILog, Partition
from .groupstate import Group, Offset, State
from .groupstore import GroupStore, Stored
from .joining import Admittance, memberOf
from .limits import GroupLimits, Tally
from .member import GroupRefusal, Joined, Joining, Member, Speaker, Synced
from .offsets import Offsets, tell
from .rebalancer import Answers, Rebalancing
from .sessions import Connections


class Groups:
    """
    All groups.

    Requests that are refused raise L{GroupRefusal}; those that wait are
    answered by a L{Deferred}, which fails with it, and which is to be
    cancelled when the client leaves.  A member whose client has left keeps its
    place until its session expires, like any other that is silent.
    """

    _log = Logger()

    def __init__(
        self,
        log: ILog,
        purgatory: IPurgatory,
        clock: IReactorTime,
        wallSeconds: Callable[[], float],
        limits: GroupLimits,
    ) -> None:
        """
        @param log: keeps groups and offsets, and knows the partitions.
        @param purgatory: where members are waited for.
        @param clock: says for how long; monotonic.
        @param wallSeconds: seconds since the epoch, for records.
        @raise LogFailed: if the log has no room for the tables.
        """
        self._limits = limits
        self._purgatory = purgatory
        self._clock = clock
        self._wallSeconds = wallSeconds
        self._tally = Tally()
        self._groups: dict[str, Group] = {}
        self._store = GroupStore(log)
        self._answers = Answers()
        self._connections = Connections()
        self._rebalancing = Rebalancing(
            purgatory, clock, wallSeconds, self._store, self._answers, self._connections, limits.initialDelaySeconds
        )
        self._admittance = Admittance(
            limits,
            self._tally,
            self._rebalancing,
            self._answers,
            self._connections,
            self._store,
            self._removeIfUnused,
        )
        self._offsets = Offsets(self._store, self._connections, wallSeconds)
        self._checkCall: IDelayedCall | None = None
        self._isFull = False
        self._isDraining = False

    def start(self) -> None:
        """
        Take over what was there before a restart.  Members have their whole
        sessions to be heard of again.

        @raise LogFailed: if it cannot be read.
        """
        for stored in self._store.load(self._tally):
            self._groups[stored.group.groupId] = stored.group
            self._restore(stored)
        self._checkCall = self._clock.callLater(self._limits.checkSeconds, self._check)

    def stop(self) -> None:
        """
        Wait for nobody any more.  Nothing is answered and nothing changes
        hands: after a restart it goes on from what is stored.
        """
        if self._checkCall is not None:
            self._checkCall.cancel()
            self._checkCall = None
        for group in self._groups.values():
            self._purgatory.cancelForKey(group)

    def drain(self) -> None:
        """
        Stop, and tell the members that wait, and those who still come, to look
        for their coordinator again, as Kafka does when it hands groups over.
        Only offsets can be committed yet.
        """
        self._isDraining = True
        self.stop()
        with self._answers:
            for group in self._groups.values():
                for member in group.members.values():
                    self._rebalancing.answer(member, GroupRefusal(ErrorCode.not_coordinator, member.memberId))

    @property
    def sizeBytes(self) -> int:
        """
        How much memory all groups take, about.
        """
        return self._tally.sizeBytes

    @property
    def all(self) -> Collection[Group]:
        """
        The groups.
        """
        return self._groups.values()

    def get(self, groupId: str) -> Group | None:
        """
        The group of that name, if there is one.
        """
        return self._groups.get(groupId)

    def sessionSeconds(self, connection: Any) -> float:
        """
        The shortest session timeout of the members that were last heard of by
        C{connection}; infinite if there are none.
        """
        return min((each.sessionSeconds for each in self._connections.on(connection)), default=inf)

    def throttled(self, connection: Any, delaySeconds: float) -> None:
        """
        Nothing is read from C{connection} for C{delaySeconds} from now.  The
        members whose last request came by it do not expire because of that.
        """
        self._connections.throttled(connection, delaySeconds)

    def disconnected(self, connection: Any) -> None:
        """
        C{connection} is closed.  Its members have their sessions to come back
        by another.
        """
        self._connections.lost(connection)

    # What members ask for

    def join(self, request: Joining) -> Deferred[Joined]:
        """
        Join a group, which comes into being with its first member.
        """
        self._checkServes(request.memberId)
        with self._answers:
            self._admittance.check(request)
            group = self._groups.get(request.groupId)
            if group is None:
                if request.memberId:
                    raise GroupRefusal(ErrorCode.unknown_member_id, request.memberId)
                group = self._create(request.groupId)
            try:
                return self._admittance.join(group, request)
            except GroupRefusal:
                self._removeIfUnused(group)
                raise

    def sync(
        self,
        speaker: Speaker,
        assignments: Mapping[str, bytes],
        protocolType: str | None = None,
        protocolName: str | None = None,
    ) -> Deferred[Synced]:
        """
        Get the member's assignment.

        @param assignments: from the leader, what is whose; whoever is missing
            gets nothing.
        @param protocolType: what the member believes it to be; L{None} if it
            does not say.
        @param protocolName: the same.
        """
        with self._answers:
            group, member = self._heard(speaker)
            if protocolType not in (None, group.protocolType) or protocolName not in (None, group.protocolName):
                raise GroupRefusal(ErrorCode.inconsistent_group_protocol)
            if group.state is State.PREPARING:
                raise GroupRefusal(ErrorCode.rebalance_in_progress)
            if group.state is State.COMPLETING:
                return self._sync(group, member, assignments)
            group.unsynced.discard(member.memberId)
            self._rebalancing.checkPhase(group)
            member.session.start(member.sessionSeconds)
            return succeed(Synced(group.protocolType, group.protocolName, member.assignment))

    def heartbeat(self, speaker: Speaker) -> None:
        """
        Hear of a member.
        """
        group, member = self._heard(speaker)
        member.session.start(member.sessionSeconds)
        if group.state is State.PREPARING:
            raise GroupRefusal(ErrorCode.rebalance_in_progress)

    def leave(self, groupId: str, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """
        Remove members.

        @param leaving: the ids of members and the instance ids of static ones;
            where a member id is empty, the other is enough.
        @return: how it went with each.
        """
        self._checkServes()
        if not groupId:
            raise GroupRefusal(ErrorCode.invalid_group_id)
        with self._answers:
            return [self._leave(groupId, memberId, instanceId) for memberId, instanceId in leaving]

    def commit(self, speaker: Speaker, offsets: Mapping[Partition, Offset]) -> Deferred[None]:
        """
        Keep offsets.  A generation below zero is that of somebody who is no
        member, which is fine in an empty group; there it may come into being
        with its offsets.

        @return: fires when they would survive.
        """
        group = self._groups.get(speaker.groupId)
        if group is not None:
            self._offsets.check(group, speaker)
        elif speaker.generation >= 0:
            raise GroupRefusal(ErrorCode.illegal_generation)
        if not offsets:
            return succeed(None)
        growthBytes = sum(offset.sizeBytes for offset in offsets.values())
        if group is not None:
            growthBytes -= sum(group.offsets[each].sizeBytes for each in offsets if each in group.offsets)
        self._checkFits(group, growthBytes, ErrorCode.invalid_commit_offset_size)
        return self._offsets.commit(self._create(speaker.groupId) if group is None else group, offsets)

    # What administrators ask for

    def deleteOffsets(self, group: Group, partitions: Collection[Partition]) -> Deferred[None]:
        """
        Forget offsets of a group.

        @return: fires when they are gone for good.
        """
        return self._offsets.delete(group, partitions)

    def delete(self, groupId: str) -> Deferred[None]:
        """
        Remove a group that has no members.

        @return: fires when it is gone for good.
        """
        group = self._groups.get(groupId)
        if group is None:
            raise GroupRefusal(ErrorCode.group_id_not_found)
        if group.state is not State.EMPTY:
            raise GroupRefusal(ErrorCode.non_empty_group)
        waiting: Deferred[None] = Deferred(lambda _: None)
        self._remove(group, "an administrator wants it so", partial(tell, waiting))
        return waiting

    def _heard(self, speaker: Speaker) -> tuple[Group, Member]:
        """
        Hear of a member.

        @raise GroupRefusal: if it is none, or not of this generation.
        """
        self._checkServes()
        group = self._groups.get(speaker.groupId)
        if group is None:
            isNamed = bool(speaker.groupId)
            raise GroupRefusal(ErrorCode.unknown_member_id if isNamed else ErrorCode.invalid_group_id)
        member = memberOf(group, speaker.memberId, speaker.instanceId)
        if speaker.generation != group.generation:
            raise GroupRefusal(ErrorCode.illegal_generation)
        self._connections.heard(member, speaker.connection)
        return group, member

    def _sync(self, group: Group, member: Member, assignments: Mapping[str, bytes]) -> Deferred[Synced]:
        isLeader = member.memberId == group.leaderId
        if isLeader:
            assignments = {memberId: each for memberId, each in assignments.items() if memberId in group.members}
            self._checkFits(group, sum(map(len, assignments.values())), ErrorCode.group_max_size_reached)
        waiting = self._rebalancing.park(group, member)
        group.unsynced.discard(member.memberId)
        self._rebalancing.checkPhase(group)
        if isLeader:
            self._rebalancing.assign(group, assignments)
        return waiting

    def _leave(self, groupId: str, memberId: str, instanceId: str | None) -> ErrorCode:
        group = self._groups.get(groupId)
        if group is None:
            return ErrorCode.unknown_member_id
        if not memberId and instanceId is not None:
            memberId = group.instances.get(instanceId, "")
        elif memberId in group.pending and instanceId is None:
            self._admittance.giveUp(group, group.pending[memberId])
            return ErrorCode.none
        try:
            member = memberOf(group, memberId, instanceId)
        except GroupRefusal as refusal:
            return refusal.errorCode
        self._rebalancing.remove(group, member, "has left")
        return ErrorCode.none

    def _checkServes(self, memberId: str = "") -> None:
        if self._isDraining:
            raise GroupRefusal(ErrorCode.not_coordinator, memberId)

    def _checkFits(self, group: Group | None, growthBytes: int, errorCode: ErrorCode) -> None:
        sizeBytes = 0 if group is None else group.sizeBytes
        if not self._limits.allow(sizeBytes, self._tally.sizeBytes, growthBytes):
            raise GroupRefusal(errorCode)

    def _create(self, groupId: str) -> Group:
        isFull = len(self._groups) >= self._limits.maxGroups
        if isFull and not self._isFull:
            self._log.warn("there are {count} groups, and no more are allowed (max.groups)", count=len(self._groups))
        self._isFull = isFull
        if isFull:
            raise GroupRefusal(ErrorCode.policy_violation)
        group = self._groups[groupId] = Group(groupId, self._store.nextNumber(), self._tally, self._wallSeconds())
        return group

    def _restore(self, stored: Stored) -> None:
        group = stored.group
        for member in stored.members:
            self._rebalancing.add(group, member)
            member.session.start(member.sessionSeconds)
        if group.members:
            group.state = State.STABLE
            if not stored.isAssigned:
                with self._answers:
                    self._rebalancing.prepare(group, "the broker stopped before its members had their assignments")

    def _removeIfUnused(self, group: Group) -> None:
        # One that was in use stays for a while, or its generations would begin anew under its former members.
        if group.isVacant and not group.generation:
            self._remove(group, "there is nothing in it", lambda error: None)

    def _remove(self, group: Group, reason: str, then: CommitCallback) -> None:
        self._purgatory.cancelForKey(group)
        for participant in group.pending.values():
            self._connections.forget(participant)
        group.transitionTo(State.DEAD)
        group.leaveTally()
        del self._groups[group.groupId]
        if not group.isStored:
            then(None)
            return
        self._log.info("group {group!r:.300} is removed: {reason}", group=group.groupId, reason=reason)
        self._store.deleteGroup(group, then)

    def _check(self) -> None:
        """
        Remove what is not kept any longer.
        """
        self._checkCall = self._clock.callLater(self._limits.checkSeconds, self._check)
        for group in list(self._groups.values()):
            gone = [partition for partition in group.offsets if partition.deleted]
            if gone:
                self.deleteOffsets(group, gone).addErrback(lambda _: None)
            if group.isVacant:
                self._remove(group, "there is nothing in it", lambda error: None)
            elif self._isForgotten(group):
                self._remove(group, "it was not used for as long as offsets are kept", lambda error: None)

    def _isForgotten(self, group: Group) -> bool:
        idleSeconds = self._wallSeconds() - group.wallSeconds
        return group.state is State.EMPTY and not group.pending and idleSeconds >= self._limits.retentionSeconds

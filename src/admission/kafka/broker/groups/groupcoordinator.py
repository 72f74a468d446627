# -*- test-case-name: tests.unit.kafka.broker.groups.test_groupcoordinator -*-
"""
The group coordinator: consumers that share topics among them, as in Kafka's
classic group protocol, and the offsets that they commit.

It knows no sockets and no wire format.  Requests and members wait in the
purgatory; the log stores what has to survive a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any
from uuid import uuid4

from attrs import evolve
from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from admission.interfaces import IPurgatory
from admission.kafka.storage.holdings import Holdings, RefusedShares
from admission.kafka.storage.itable import CommitCallback
from admission.timeslices import SLICE_SECONDS

from ..log.interface import ILog, Partition
from .groupstate import Group, GroupLimits, GroupTotals, Offset, State
from .groupstore import GroupStore, StoredGroup
from .member import GroupRefusal, JoinRequest, JoinResult, Member, MemberRequest, Participant, SyncResult, sizeOfBytes
from .rebalancer import NEW_MEMBER_SECONDS, Rebalancer


class GroupCoordinator:
    """
    All groups.

    A refused request raises L{GroupRefusal}.  A request that waits is answered
    by a L{Deferred}, which fails with it; the caller cancels that when the
    client disconnects.  A member whose client has disconnected keeps its place
    until its session expires, like any other that is silent.
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
        @param log: stores groups and offsets, and knows the partitions.
        @param purgatory: where members are waited for.
        @param clock: the monotonic clock of the purgatory.
        @param wallSeconds: seconds since the epoch, for records.
        @raise LogFailed: if the tables cannot be opened.
        """
        self.limits = limits
        self._purgatory = purgatory
        self._clock = clock
        self._wallSeconds = wallSeconds
        self._totals = GroupTotals()
        self._groups: dict[str, Group] = {}
        self._store = GroupStore(log)
        self._rebalancer = Rebalancer(purgatory, clock, wallSeconds, self._store, limits.initialDelaySeconds)
        self._answers = self._rebalancer.answers
        self._connections = self._rebalancer.connections
        self._checkCall: IDelayedCall | None = None
        self._refusedShares = RefusedShares()
        self._isDraining = False

    def start(self) -> None:
        """
        Restore the stored groups.  Members have their whole sessions to be
        heard of again.

        @raise LogFailed: if the stored groups cannot be read.
        """
        for stored in self._store.load(self._totals):
            self._groups[stored.group.groupId] = stored.group
            self._restore(stored)
        self._checkCall = self._clock.callLater(self.limits.checkSeconds, self._check)

    def stop(self) -> None:
        """
        Cancel all timers.  Nothing is answered, and no assignment changes:
        after a restart the stored groups go on.
        """
        if self._checkCall is not None:
            self._checkCall.cancel()
            self._checkCall = None
        for group in self._groups.values():
            self._purgatory.cancelForKey(group)

    def drain(self) -> None:
        """
        Stop, and answer the members that wait or send requests from now on
        that they have to find their coordinator again, as Kafka does when it
        hands groups over.  Only offsets can still be committed.
        """
        self._isDraining = True
        self.stop()
        with self._answers:
            for group in self._groups.values():
                for member in group.members.values():
                    self._rebalancer.answer(member, GroupRefusal(ErrorCode.not_coordinator, member.memberId))

    @property
    def sizeBytes(self) -> int:
        """
        About how much memory all groups take.
        """
        return self._totals.memoryBytes.total

    @property
    def all(self) -> Collection[Group]:
        """
        The groups, in no particular order.
        """
        return self._groups.values()

    def get(self, groupId: str) -> Group | None:
        """
        The group of that id, if there is one.
        """
        return self._groups.get(groupId)

    def sessionSeconds(self, connection: Any) -> float:
        """
        The shortest session timeout of the members that were heard of last by
        C{connection}; infinite if there are none.
        """
        return min((each.sessionSeconds for each in self._connections.on(connection)), default=inf)

    def throttled(self, connection: Any, delaySeconds: float) -> None:
        """
        Nothing is read from C{connection} for C{delaySeconds} from now.  The
        members that were heard of last by it do not expire because of that.
        """
        self._connections.throttled(connection, delaySeconds)

    def disconnected(self, connection: Any) -> None:
        """
        C{connection} is closed.  Its members have their sessions to come back
        by another.
        """
        self._connections.lost(connection)

    # Requests of members

    def join(self, request: JoinRequest) -> Deferred[JoinResult]:
        """
        Join a group, which is created for its first member.
        """
        self._checkServes(request.memberId)
        with self._answers:
            self._checkJoin(request)
            group = self._groups.get(request.groupId)
            if group is None:
                if request.memberId:
                    raise GroupRefusal(ErrorCode.unknown_member_id, request.memberId)
                group = self._create(request.groupId, request.holder)
            try:
                return self._join(group, request)
            except GroupRefusal:
                self._removeIfUnused(group)
                raise

    def sync(
        self,
        request: MemberRequest,
        assignments: Mapping[str, bytes],
        protocolType: str | None = None,
        protocolName: str | None = None,
    ) -> Deferred[SyncResult]:
        """
        Get the member's assignment.

        @param assignments: from the leader, the assignments by member ids; a
            member that is missing gets an empty one.
        @param protocolType: the protocol type that the member expects; L{None}
            if it does not say.
        @param protocolName: the protocol that the member expects; L{None} if it
            does not say.
        """
        with self._answers:
            group, member = self._heard(request)
            if protocolType not in (None, group.protocolType) or protocolName not in (None, group.protocolName):
                raise GroupRefusal(ErrorCode.inconsistent_group_protocol)
            if group.state is State.PREPARING:
                raise GroupRefusal(ErrorCode.rebalance_in_progress)
            if group.state is State.COMPLETING:
                return self._sync(group, member, assignments)
            group.unsynced.discard(member.memberId)
            self._rebalancer.checkPhase(group)
            member.session.start(member.sessionSeconds)
            return succeed(SyncResult(group.protocolType, group.protocolName, member.assignment))

    def heartbeat(self, request: MemberRequest) -> None:
        """
        Restart a member's session.
        """
        group, member = self._heard(request)
        member.session.start(member.sessionSeconds)
        if group.state is State.PREPARING:
            raise GroupRefusal(ErrorCode.rebalance_in_progress)

    def leave(self, groupId: str, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """
        Remove members.

        @param leaving: pairs of a member id and, for a static member, its
            instance id; the member id of a static member may be empty.
        @return: for each of them how it went.
        """
        self._checkServes()
        if not groupId:
            raise GroupRefusal(ErrorCode.invalid_group_id)
        with self._answers:
            return [self._leave(groupId, memberId, instanceId) for memberId, instanceId in leaving]

    def commit(self, request: MemberRequest, offsets: Mapping[Partition, Offset]) -> Deferred[None]:
        """
        Commit offsets.  A generation below zero means a client that is no
        member; it may commit to an empty group, and to a new one, which is
        created.

        @return: fires when the offsets are committed to the log and can be
            read; fails with L{GroupRefusal}.
        """
        group = self._groups.get(request.groupId)
        if group is not None:
            self._checkCommit(group, request)
        elif request.generation >= 0:
            raise GroupRefusal(ErrorCode.illegal_generation)
        if not offsets:
            return succeed(None)
        growthBytes = sum(offset.sizeBytes for offset in offsets.values())
        if group is not None:
            growthBytes -= sum(group.offsets[each].sizeBytes for each in offsets if each in group.offsets)
        self._checkFits(group, request.holder, growthBytes, ErrorCode.invalid_commit_offset_size)
        if group is None:
            group = self._create(request.groupId, request.holder)
        return self._commit(group, request.holder, offsets, growthBytes)

    # Requests of administrators

    def deleteOffsets(self, group: Group, partitions: Collection[Partition]) -> Deferred[None]:
        """
        Remove offsets of a group.

        @return: fires when that is committed to the log; fails with
            L{GroupRefusal}.
        """
        waiting: Deferred[None] = Deferred()

        def committed(error: Exception | None) -> None:
            if error is None and group.state is not State.DEAD:
                for partition in partitions:
                    group.setOffset(partition, None)
            _fire(waiting, error)

        self._store.deleteOffsets(group, partitions, committed)
        return waiting

    def delete(self, groupId: str) -> Deferred[None]:
        """
        Remove a group that has no members.

        @return: fires when that is committed to the log; fails with
            L{GroupRefusal}.
        """
        group = self._groups.get(groupId)
        if group is None:
            raise GroupRefusal(ErrorCode.group_id_not_found)
        if group.state is not State.EMPTY:
            raise GroupRefusal(ErrorCode.non_empty_group)
        waiting: Deferred[None] = Deferred()
        self._remove(group, "an administrator wants it so", partial(_fire, waiting))
        return waiting

    # Joining

    def _checkJoin(self, request: JoinRequest) -> None:
        """
        @raise GroupRefusal: if the request would be refused by any group.
        """
        if not request.groupId:
            raise GroupRefusal(ErrorCode.invalid_group_id, request.memberId)
        if not self.limits.minSessionSeconds <= request.sessionSeconds <= self.limits.maxSessionSeconds:
            raise GroupRefusal(ErrorCode.invalid_session_timeout, request.memberId)
        if not request.protocolType or not request.protocols:
            raise GroupRefusal(ErrorCode.inconsistent_group_protocol, request.memberId)

    def _join(self, group: Group, request: JoinRequest) -> Deferred[JoinResult]:
        memberId = request.memberId
        if not memberId and request.instanceId is not None:
            memberId = group.instances.get(request.instanceId, "")
        if not self._hasRoom(group, request, memberId):
            if memberId in group.members:
                self._rebalancer.remove(group, group.members[memberId], "found no room")
            elif memberId in group.pending:
                self._removePending(group, group.pending[memberId])
            raise GroupRefusal(ErrorCode.group_max_size_reached, request.memberId)
        if not group.supports(request.protocolType, request.protocols):
            raise GroupRefusal(ErrorCode.inconsistent_group_protocol, request.memberId)
        if request.memberId:
            return self._joinWithId(group, request)
        if memberId:
            return self._replaceStaticMember(group, group.members[memberId], request)
        newId = f"{request.clientId if request.instanceId is None else request.instanceId}-{uuid4()}"
        if request.mustKnowItsId and request.instanceId is None:
            self._addPending(group, newId, request)
            raise GroupRefusal(ErrorCode.member_id_required, newId)
        return self._addMember(group, newId, request)

    def _hasRoom(self, group: Group, request: JoinRequest, memberId: str) -> bool:
        """
        Whether a group has room for a member.

        @param memberId: the id that the group knows the client by; empty if it
            does not.
        """
        limits = self.limits
        member = group.members.get(memberId)
        # A client that was told an id and has not come back with it has no place: clients may ask for any number of
        # ids.
        if group.state is State.PREPARING:
            hasPlace = memberId in group.joined or len(group.joined) < limits.maxMembers
        else:
            hasPlace = member is not None or len(group.members) < limits.maxMembers
        return hasPlace and self._fits(group, request.holder, group.growthBytes(member, request))

    def _addPending(self, group: Group, memberId: str, request: JoinRequest) -> None:
        """
        Expect a new member to come back with its id.  It counts only then: many
        clients ask again and again without ever having been answered.
        """
        pending, holder = self._totals.pending, request.holder
        if not pending.allow(holder, 1, self.limits.maxPending):
            self._lacksRoom("max.pending.members", self.limits.maxPending, holder, pending)
            raise GroupRefusal(ErrorCode.coordinator_not_available)
        participant = Participant(memberId=memberId, sessionSeconds=request.sessionSeconds, holder=holder)
        self._rebalancer.enroll(group, participant, partial(self._pendingExpired, group, participant))
        self._connections.heard(participant, request.connection)
        group.addPending(participant)
        participant.session.start(request.sessionSeconds)

    def _pendingExpired(self, group: Group, participant: Participant) -> None:
        with self._answers:
            self._removePending(group, participant)

    def _removePending(self, group: Group, participant: Participant) -> None:
        """
        Give a pending member up.
        """
        self._forgetPending(group, participant)
        if group.state is State.PREPARING:
            self._rebalancer.checkPhase(group)
        self._removeIfUnused(group)

    def _forgetPending(self, group: Group, participant: Participant) -> None:
        participant.session.end()
        self._connections.forget(participant)
        group.removePending(participant)

    def _joinWithId(self, group: Group, request: JoinRequest) -> Deferred[JoinResult]:
        """
        A client joins that has a member id: for the first time or again.
        """
        memberId = request.memberId
        pending = group.pending.get(memberId)
        if pending is not None and request.instanceId is None:
            self._forgetPending(group, pending)
            return self._addMember(group, memberId, request)
        member = group.memberFor(memberId, request.instanceId)
        self._connections.heard(member, request.connection)
        isSame = member.protocols == request.protocols
        if group.state is State.COMPLETING and isSame:
            # The answer got lost, or it is still to come.
            waiting: Deferred[JoinResult] = Deferred()
            self._store.whenCommitted(partial(self._joinCommitted, waiting, group.joinResult(member)))
            return waiting
        if group.state is State.STABLE and isSame and memberId != group.leaderId:
            return succeed(group.joinResult(member))
        group.update(member, request)
        return self._rebalanceFor(group, member, "joined again" if isSame else "has changed its protocols")

    def _addMember(self, group: Group, memberId: str, request: JoinRequest) -> Deferred[JoinResult]:
        """
        A client joins that has not been a member.
        """
        member = Member(
            memberId=memberId,
            instanceId=request.instanceId,
            clientId=request.clientId,
            host=request.host,
            holder=request.holder,
            sessionSeconds=request.sessionSeconds,
            rebalanceSeconds=request.rebalanceSeconds,
            protocols=request.protocols,
            subscription=request.subscription,
        )
        if group.state is State.PREPARING and not group.generation:
            group.hasGrown = True
        if not group.members:
            group.protocolType = request.protocolType
        self._rebalancer.add(group, member)
        self._connections.heard(member, request.connection)
        member.session.start(NEW_MEMBER_SECONDS)
        return self._rebalanceFor(group, member, "is new")

    def _replaceStaticMember(self, group: Group, member: Member, request: JoinRequest) -> Deferred[JoinResult]:
        """
        A static member is back as another process.  A process that uses the
        former id is fenced.
        """
        formerId = member.memberId
        self._rebalancer.answer(member, GroupRefusal(ErrorCode.fenced_instance_id, formerId))
        group.rename(member, f"{request.instanceId}-{uuid4()}")
        group.update(member, request)
        self._connections.heard(member, request.connection)
        member.session.start(NEW_MEMBER_SECONDS if member.isNew else member.sessionSeconds)
        if group.state is not State.STABLE or group.protocolName != group.selectProtocol():
            return self._rebalanceFor(group, member, f"has taken the place of {formerId!r:.300}")
        # The assignment stands, so the other members are not disturbed.
        result = group.joinResult(member)
        if result.members and request.maySkipAssignment:
            result = evolve(result, skipsAssignment=True)
        elif result.members:
            # It would assign in vain if it knew that it leads.
            result = evolve(result, members=(), leaderId=formerId)
        waiting: Deferred[JoinResult] = Deferred()
        self._store.save(group, partial(self._joinCommitted, waiting, result))
        return waiting

    def _joinCommitted(self, waiting: Deferred[JoinResult], result: JoinResult, error: Exception | None) -> None:
        with self._answers:
            self._answers.add(waiting, result if error is None else GroupRefusal(ErrorCode.not_coordinator))

    def _rebalanceFor(self, group: Group, member: Member, reason: str) -> Deferred[JoinResult]:
        """
        A member joins the next generation.
        """
        waiting = self._rebalancer.park(group, member)
        group.joined.add(member.memberId)
        self._rebalancer.prepare(group, f"{member.memberId!r:.300} {reason}")
        return waiting

    # Members that have joined

    def _heard(self, request: MemberRequest) -> tuple[Group, Member]:
        """
        The member that a request comes from.

        @raise GroupRefusal: if it is none, or not of this generation.
        """
        self._checkServes()
        group = self._groups.get(request.groupId)
        if group is None:
            raise GroupRefusal(ErrorCode.unknown_member_id if request.groupId else ErrorCode.invalid_group_id)
        member = group.memberFor(request.memberId, request.instanceId)
        if request.generation != group.generation:
            raise GroupRefusal(ErrorCode.illegal_generation)
        self._connections.heard(member, request.connection)
        return group, member

    def _sync(self, group: Group, member: Member, assignments: Mapping[str, bytes]) -> Deferred[SyncResult]:
        isLeader = member.memberId == group.leaderId
        if isLeader:
            assignments = {memberId: each for memberId, each in assignments.items() if memberId in group.members}
            growthBytes = sum(map(sizeOfBytes, assignments.values()))
            self._checkFits(group, member.holder, growthBytes, ErrorCode.group_max_size_reached)
        waiting = self._rebalancer.park(group, member)
        group.unsynced.discard(member.memberId)
        self._rebalancer.checkPhase(group)
        if isLeader:
            self._rebalancer.assign(group, assignments)
        return waiting

    def _leave(self, groupId: str, memberId: str, instanceId: str | None) -> ErrorCode:
        group = self._groups.get(groupId)
        if group is None:
            return ErrorCode.unknown_member_id
        if not memberId and instanceId is not None:
            memberId = group.instances.get(instanceId, "")
        elif memberId in group.pending and instanceId is None:
            self._removePending(group, group.pending[memberId])
            return ErrorCode.none
        try:
            member = group.memberFor(memberId, instanceId)
        except GroupRefusal as refusal:
            return refusal.errorCode
        self._rebalancer.remove(group, member, "has left")
        return ErrorCode.none

    def _checkCommit(self, group: Group, request: MemberRequest) -> None:
        """
        Check whether a client may commit offsets.  If it is a member, it was
        heard of.

        @raise GroupRefusal: if it may not.
        """
        if request.generation < 0 and group.state is State.EMPTY:
            return
        member = group.memberFor(request.memberId, request.instanceId)
        if request.generation != group.generation:
            raise GroupRefusal(ErrorCode.illegal_generation)
        if group.state is State.COMPLETING:
            raise GroupRefusal(ErrorCode.rebalance_in_progress)
        self._connections.heard(member, request.connection)
        member.session.start(member.sessionSeconds)

    def _commit(
        self, group: Group, holder: str, offsets: Mapping[Partition, Offset], growthBytes: int
    ) -> Deferred[None]:
        group.wallSeconds = self._wallSeconds()
        group.uncommittedCount += 1
        # Of all that is committed in a turn, each must fit beside the others.
        group.grow(holder, growthBytes)
        if not group.isStored:
            # Or the stored offsets would belong to no group.
            self._store.save(group, lambda error: None)
        waiting: Deferred[None] = Deferred()

        def committed(error: Exception | None) -> None:
            group.uncommittedCount -= 1
            if group.state is not State.DEAD:
                group.grow(holder, -growthBytes)
                for partition, offset in offsets.items() if error is None else ():
                    if not partition.deleted:
                        group.setOffset(partition, offset)
            _fire(waiting, error)

        self._store.saveOffsets(group, offsets, committed)
        return waiting

    def _checkServes(self, memberId: str = "") -> None:
        if self._isDraining:
            raise GroupRefusal(ErrorCode.not_coordinator, memberId)

    def _checkFits(self, group: Group | None, holder: str, growthBytes: int, errorCode: ErrorCode) -> None:
        if not self._fits(group, holder, growthBytes):
            raise GroupRefusal(errorCode)

    def _fits(self, group: Group | None, holder: str, growthBytes: int) -> bool:
        limits, memoryBytes = self.limits, self._totals.memoryBytes
        fits = limits.allow(0 if group is None else group.sizeBytes, memoryBytes, holder, growthBytes)
        if not fits and not memoryBytes.allow(holder, growthBytes, limits.maxBytes):
            self._lacksRoom("max.groups.bytes", limits.maxBytes, holder, memoryBytes)
        return fits

    def _lacksRoom(self, limitName: str, capacity: int, holder: str, holdings: Holdings) -> None:
        self._refusedShares.note(limitName, capacity, holder, holdings, self._clock.seconds())

    # Groups that come and go

    def _create(self, groupId: str, holder: str) -> Group:
        groups, maxGroups = self._totals.groups, self.limits.maxGroups
        if not groups.allow(holder, 1, maxGroups):
            self._lacksRoom("max.groups", maxGroups, holder, groups)
            raise GroupRefusal(ErrorCode.policy_violation)
        number = self._store.nextNumber()
        group = self._groups[groupId] = Group(groupId, number, self._totals, self._wallSeconds(), holder)
        return group

    def _restore(self, stored: StoredGroup) -> None:
        group = stored.group
        for member in stored.members:
            self._rebalancer.add(group, member)
            member.session.start(member.sessionSeconds)
        if group.members:
            group.state = State.STABLE
            if not stored.isAssigned:
                with self._answers:
                    self._rebalancer.prepare(group, "the broker stopped before its members had their assignments")

    def _removeIfUnused(self, group: Group) -> None:
        # A group that was in use is kept for a while: a new one would have the generations of its former members again.
        if group.isVacant and not group.generation:
            self._remove(group, "there is nothing in it", lambda error: None)

    def _remove(self, group: Group, reason: str, then: CommitCallback) -> None:
        self._purgatory.cancelForKey(group)
        for participant in group.pending.values():
            self._connections.forget(participant)
        group.transitionTo(State.DEAD)
        group.leaveTotals()
        del self._groups[group.groupId]
        if not group.isStored:
            then(None)
            return
        self._log.info("group {group!r:.300} is removed: {reason}", group=group.groupId, reason=reason)
        self._store.deleteGroup(group, then)

    def _check(self) -> None:
        """
        Remove groups and offsets that are not kept any longer, in slices.
        """
        checks = self._checkAll()

        def goOn() -> None:
            began = self._clock.seconds()
            for _ in checks:
                if self._clock.seconds() - began >= SLICE_SECONDS:
                    self._checkCall = self._clock.callLater(0, goOn)
                    return
            self._checkCall = self._clock.callLater(self.limits.checkSeconds, self._check)

        goOn()

    def _checkAll(self) -> Iterator[None]:
        for group in list(self._groups.values()):
            yield
            for partition in [partition for partition in group.offsets if partition.deleted]:
                self._deleteOffset(group, partition)
                yield
            # One after another: there may be very many of them.
            for partition in list(group.offsets) if self._isExpired(group) else ():
                self._deleteOffset(group, partition)
                yield
                if not self._isExpired(group):
                    break
            if group.state is State.DEAD:
                continue
            if self._isExpired(group):
                self._remove(group, "it was not used for as long as offsets are kept", lambda error: None)
            elif group.isVacant:
                self._remove(group, "there is nothing in it", lambda error: None)

    def _deleteOffset(self, group: Group, partition: Partition) -> None:
        group.setOffset(partition, None)
        # If it fails, it is there again after the next start.
        self._store.deleteOffsets(group, (partition,), lambda error: None)

    def _isExpired(self, group: Group) -> bool:
        idleSeconds = self._wallSeconds() - group.wallSeconds
        return group.state is State.EMPTY and not group.pending and idleSeconds >= self.limits.retentionSeconds


def _fire(waiting: Deferred[None], error: Exception | None) -> None:
    """
    Answer a client when its change is committed or has failed.  If the client
    has disconnected, C{waiting} is cancelled and ignores this.
    """
    if error is None:
        waiting.callback(None)
    else:
        waiting.errback(GroupRefusal(ErrorCode.not_coordinator))

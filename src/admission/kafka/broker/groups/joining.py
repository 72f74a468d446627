# -*- test-case-name: tests.unit.kafka.broker.groups.test_groupcoordinator -*-
"""
Who may join a group, and what joining does to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import uuid4

from attrs import evolve
from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, succeed

from .groupstate import Group, State
from .groupstore import GroupStore
from .limits import GroupLimits, Tally
from .member import GroupRefusal, Joined, Joining, Member, Participant, sizeOfProtocols
from .rebalancer import NEW_MEMBER_SECONDS, Answers, Rebalancing
from .sessions import Connections


def memberOf(group: Group, memberId: str, instanceId: str | None) -> Member:
    """
    The member that says that it is C{memberId}, and of a static one that it
    is C{instanceId}.

    @raise GroupRefusal: if it is not, or not any more.
    """
    if instanceId is not None:
        currentId = group.instances.get(instanceId)
        if currentId is not None and currentId != memberId:
            raise GroupRefusal(ErrorCode.fenced_instance_id, memberId)
        if currentId is None:
            raise GroupRefusal(ErrorCode.unknown_member_id, memberId)
    member = group.members.get(memberId)
    if member is None:
        raise GroupRefusal(ErrorCode.unknown_member_id, memberId)
    return member


class Admittance:
    """
    Answers JoinGroup requests.
    """

    def __init__(
        self,
        limits: GroupLimits,
        tally: Tally,
        rebalancing: Rebalancing,
        answers: Answers,
        connections: Connections,
        store: GroupStore,
        deserted: Callable[[Group], object],
    ) -> None:
        """
        @param deserted: called when somebody whom a group waited for is given
            up.
        """
        self._limits = limits
        self._tally = tally
        self._rebalancing = rebalancing
        self._answers = answers
        self._connections = connections
        self._store = store
        self._deserted = deserted

    def check(self, request: Joining) -> None:
        """
        @raise GroupRefusal: if no group at all could be joined like this.
        """
        if not request.groupId:
            raise GroupRefusal(ErrorCode.invalid_group_id, request.memberId)
        if not self._limits.minSessionSeconds <= request.sessionSeconds <= self._limits.maxSessionSeconds:
            raise GroupRefusal(ErrorCode.invalid_session_timeout, request.memberId)
        if not request.protocolType or not request.protocols:
            raise GroupRefusal(ErrorCode.inconsistent_group_protocol, request.memberId)

    def join(self, group: Group, request: Joining) -> Deferred[Joined]:
        """
        Join a group.

        @param request: one that passes L{check}.
        @return: the answer; it fails with L{GroupRefusal} if it is refused
            later on.
        @raise GroupRefusal: if it is refused now.
        """
        memberId = request.memberId or self._staticIdOf(group, request)
        if not self._hasRoom(group, request, memberId):
            self._turnAway(group, memberId)
            raise GroupRefusal(ErrorCode.group_max_size_reached, request.memberId)
        if not group.supports(request.protocolType, request.protocols):
            raise GroupRefusal(ErrorCode.inconsistent_group_protocol, request.memberId)
        if request.memberId:
            return self._return(group, request)
        if memberId:
            return self._replace(group, group.members[memberId], request)
        newId = f"{request.clientId if request.instanceId is None else request.instanceId}-{uuid4()}"
        if request.mustKnowItsId and request.instanceId is None:
            self._expect(group, newId, request)
        return self._add(group, newId, request)

    def giveUp(self, group: Group, participant: Participant) -> None:
        """
        Wait no longer for somebody who was told its id.
        """
        participant.session.cancel()
        self._connections.forget(participant)
        group.removePending(participant)
        if group.state is State.PREPARING:
            self._rebalancing.checkPhase(group)
        self._deserted(group)

    def _staticIdOf(self, group: Group, request: Joining) -> str:
        return "" if request.instanceId is None else group.instances.get(request.instanceId, "")

    def _hasRoom(self, group: Group, request: Joining, memberId: str) -> bool:
        """
        Whether there is room for a member; L{memberId} is what it will be
        known by if it is known already.
        """
        most = self._limits.maxMembers
        member = group.members.get(memberId)
        pending = group.pending.get(memberId)
        # Whoever is about to join has a place, or a group would grow beyond its limit while it waits for them.
        expected = 0 if member is not None else len(group.pending) - (pending is not None)
        if group.state is State.PREPARING:
            hasPlace = memberId in group.joined or len(group.joined) + expected < most
        else:
            hasPlace = member is not None or len(group.members) + expected < most
        growthBytes = sizeOfProtocols(request.protocols) - (0 if member is None else sizeOfProtocols(member.protocols))
        return hasPlace and self._limits.allow(group.sizeBytes, self._tally.sizeBytes, growthBytes)

    def _turnAway(self, group: Group, memberId: str) -> None:
        if memberId in group.members:
            self._rebalancing.remove(group, group.members[memberId], "found no room")
        elif memberId in group.pending:
            self.giveUp(group, group.pending[memberId])

    def _expect(self, group: Group, memberId: str, request: Joining) -> None:
        """
        Tell a new member its id.  It counts only when it comes back: many
        clients ask again and again without ever having been answered.
        """
        if self._tally.pendingCount >= self._limits.maxPending:
            raise GroupRefusal(ErrorCode.coordinator_not_available)
        participant = Participant(memberId=memberId, sessionSeconds=request.sessionSeconds)
        self._rebalancing.enroll(group, participant, partial(self._neverJoined, group, participant))
        self._connections.heard(participant, request.connection)
        group.addPending(participant)
        participant.session.start(request.sessionSeconds)
        raise GroupRefusal(ErrorCode.member_id_required, memberId)

    def _neverJoined(self, group: Group, participant: Participant) -> None:
        with self._answers:
            self.giveUp(group, participant)

    def _return(self, group: Group, request: Joining) -> Deferred[Joined]:
        """
        Somebody joins who has an id.
        """
        memberId = request.memberId
        pending = group.pending.get(memberId)
        if pending is not None and request.instanceId is None:
            pending.session.cancel()
            self._connections.forget(pending)
            group.removePending(pending)
            return self._add(group, memberId, request)
        member = memberOf(group, memberId, request.instanceId)
        self._connections.heard(member, request.connection)
        isSame = member.protocols == request.protocols
        if group.state is State.COMPLETING and isSame:
            # The answer got lost, or it is still to come.
            waiting: Deferred[Joined] = Deferred(lambda _: None)
            self._store.whenCommitted(partial(self._committed, waiting, group.joinedBy(member)))
            return waiting
        if group.state is State.STABLE and isSame and memberId != group.leaderId:
            return succeed(group.joinedBy(member))
        group.update(member, request.sessionSeconds, request.rebalanceSeconds, request.protocols)
        return self._rejoin(group, member, "joined again" if isSame else "has changed its protocols")

    def _add(self, group: Group, memberId: str, request: Joining) -> Deferred[Joined]:
        """
        Somebody joins who has not been a member.
        """
        member = Member(
            memberId=memberId,
            instanceId=request.instanceId,
            clientId=request.clientId,
            host=request.host,
            sessionSeconds=request.sessionSeconds,
            rebalanceSeconds=request.rebalanceSeconds,
            protocols=request.protocols,
        )
        if group.state is State.PREPARING and not group.generation:
            group.hasGrown = True
        if not group.members:
            group.protocolType = request.protocolType
        self._rebalancing.add(group, member)
        self._connections.heard(member, request.connection)
        member.session.start(NEW_MEMBER_SECONDS)
        return self._rejoin(group, member, "is new")

    def _replace(self, group: Group, member: Member, request: Joining) -> Deferred[Joined]:
        """
        A static member is back, as another process.  Whoever uses its former id
        is fenced off.
        """
        formerId = member.memberId
        self._rebalancing.answer(member, GroupRefusal(ErrorCode.fenced_instance_id, formerId))
        group.rename(member, f"{request.instanceId}-{uuid4()}")
        group.update(member, request.sessionSeconds, request.rebalanceSeconds, request.protocols)
        member.clientId, member.host = request.clientId, request.host
        self._connections.heard(member, request.connection)
        member.session.start(NEW_MEMBER_SECONDS if member.isNew else member.sessionSeconds)
        if group.state is not State.STABLE or group.protocolName != group.selectProtocol():
            return self._rejoin(group, member, f"has taken the place of {formerId!r:.300}")
        # Nothing to be assigned anew, so nobody else is disturbed.
        joined = group.joinedBy(member)
        if joined.members and request.maySkipAssignment:
            joined = evolve(joined, skipsAssignment=True)
        elif joined.members:
            # It would assign in vain if it knew that it leads.
            joined = evolve(joined, members=(), leaderId=formerId)
        waiting: Deferred[Joined] = Deferred(lambda _: None)
        self._store.save(group, partial(self._committed, waiting, joined))
        return waiting

    def _committed(self, waiting: Deferred[Joined], joined: Joined, error: Exception | None) -> None:
        with self._answers:
            refusal = GroupRefusal(ErrorCode.not_coordinator)
            self._answers.add(waiting, joined if error is None else refusal)

    def _rejoin(self, group: Group, member: Member, reason: str) -> Deferred[Joined]:
        waiting = self._rebalancing.park(group, member)
        group.joined.add(member.memberId)
        self._rebalancing.prepare(group, f"{member.memberId!r:.300} {reason}")
        return waiting

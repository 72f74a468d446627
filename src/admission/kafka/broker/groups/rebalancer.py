# -*- test-case-name: tests.unit.kafka.broker.groups.test_rebalancer -*-
"""
How a group gets from one generation to the next: all members join, one of them
assigns, all get their assignments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from admission.interfaces import IPurgatory
from admission.operations import DelayedOperation

from .groupstate import Group, State
from .groupstore import GroupStore
from .member import Connections, GroupRefusal, JoinResult, Member, Participant, Session, SyncResult

NEW_MEMBER_SECONDS: Final = 300.0
"""How long a new member waits for the others before it has to ask again."""

_MIN_POSTPONED_SECONDS: Final = 1.0
"""Members that are waited for once more may allow no time at all; this keeps their group from spinning."""


class JoinPhase(DelayedOperation):
    """
    Waits until all members have joined, or as long as the slowest may take.
    """

    __slots__ = ("_group", "_over")

    def __init__(self, group: Group, delaySeconds: float, over: Callable[[], object]) -> None:
        """
        @param over: called at the end, either way.
        """
        super().__init__(delaySeconds)
        self._group = group
        self._over = over

    def tryComplete(self) -> bool:
        return self._group.hasAllMembersJoined() and self.forceComplete()

    def onComplete(self) -> None:
        self._over()


class InitialDelay(JoinPhase):
    """
    Waits for more members than the first one of an empty group, and never
    less than its time.
    """

    __slots__ = ()

    def tryComplete(self) -> bool:
        return False


class SyncPhase(DelayedOperation):
    """
    Waits until all members have asked for their assignments.  They are answered
    when the leader has assigned; this operation is about members that do not
    ask.
    """

    __slots__ = ("_group", "_overdue")

    def __init__(self, group: Group, delaySeconds: float, overdue: Callable[[], object]) -> None:
        """
        @param overdue: called if some did not ask in time.
        """
        super().__init__(delaySeconds)
        self._group = group
        self._overdue = overdue

    def tryComplete(self) -> bool:
        return not self._group.unsynced and self.forceComplete()

    def onComplete(self) -> None:
        if self._group.phase is self:
            self._group.phase = None

    def onExpiration(self) -> None:
        self._overdue()


class Answers:
    """
    Answers to parked requests.  They are sent only when the coordinator has
    finished what it is doing, which is a C{with} block: the next request of a
    client that is answered may be there already.
    """

    def __init__(self) -> None:
        self._answers: deque[tuple[Deferred[Any], JoinResult | SyncResult | GroupRefusal]] = deque()
        self._depth = 0

    def add(self, waiting: Deferred[Any], answer: JoinResult | SyncResult | GroupRefusal) -> None:
        """
        Answer a request at the end of the outermost block.
        """
        self._answers.append((waiting, answer))

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        # While answers are sent, the blocks that they bring about are inner ones.
        if self._depth == 1:
            self._send()
        self._depth -= 1

    def _send(self) -> None:
        while self._answers:
            waiting, answer = self._answers.popleft()
            # The client may have left.
            if waiting.called:
                continue
            if isinstance(answer, GroupRefusal):
                waiting.errback(answer)
            else:
                waiting.callback(answer)


class Rebalancer:
    """
    Takes groups through their states: what their members wait for, and what
    they are answered.

    All methods are to be called within a block of C{answers}.

    @ivar answers: the answers that wait for the end of the block.
    @ivar connections: the connections of all participants.
    """

    _log = Logger()

    def __init__(
        self,
        purgatory: IPurgatory,
        clock: IReactorTime,
        wallSeconds: Callable[[], float],
        store: GroupStore,
        initialDelaySeconds: float,
    ) -> None:
        self.answers = Answers()
        self.connections = Connections()
        self._purgatory = purgatory
        self._seconds = clock.seconds
        self._wallSeconds = wallSeconds
        self._store = store
        self._initialDelaySeconds = initialDelaySeconds

    # Members

    def enroll(self, group: Group, participant: Participant, expired: Callable[[], object]) -> None:
        """
        Give C{participant} a session, which is not started yet.

        @param expired: called when the session expires, outside of any block.
        """
        participant.session = Session(self._purgatory, self._seconds, group, participant, expired)

    def add(self, group: Group, member: Member) -> None:
        """
        Add a member to a group, with a session that is not started yet.
        """
        self.enroll(group, member, partial(self._expired, group, member))
        group.add(member)

    def park(self, group: Group, member: Member) -> Deferred[Any]:
        """
        Have a request of a member wait for its answer.  If another one waits,
        that is refused.
        """
        self.answer(member, GroupRefusal(ErrorCode.rebalance_in_progress, member.memberId))
        waiting: Deferred[Any] = Deferred(partial(self._hungUp, member))
        member.waiting = waiting
        return waiting

    def answer(self, member: Member, answer: JoinResult | SyncResult | GroupRefusal) -> None:
        """
        Answer the request of a member that waits, if one does.
        """
        waiting, member.waiting = member.waiting, None
        if waiting is not None:
            self.answers.add(waiting, answer)

    def remove(self, group: Group, member: Member, reason: str) -> None:
        """
        Remove a member; the others share what was assigned to it.

        @param reason: for the log: what the member did.
        """
        self._drop(group, member)
        if group.state is State.PREPARING:
            self.checkPhase(group)
        else:
            self.prepare(group, f"{member.memberId!r:.300} {reason}")

    def checkPhase(self, group: Group) -> None:
        """
        End the phase of a group if the group has what it waits for.
        """
        if group.phase is not None:
            group.phase.tryComplete()

    # All of them join

    def prepare(self, group: Group, reason: str) -> None:
        """
        Have all members join again, unless that is happening already.

        @param reason: for the log: what happened.
        """
        if group.state is State.PREPARING:
            self.checkPhase(group)
            return
        if group.state is State.COMPLETING:
            self._interrupt(group, ErrorCode.rebalance_in_progress)
        self._log.info(
            "group {group!r:.300} rebalances after generation {generation}: {reason}",
            group=group.groupId,
            generation=group.generation,
            reason=reason,
        )
        if group.phase is not None:
            group.phase.cancel()
        wasEmpty = group.state is State.EMPTY
        group.transitionTo(State.PREPARING)
        if wasEmpty:
            delaySeconds = self._initialDelaySeconds
            self._delay(group, delaySeconds, max(group.rebalanceSeconds - delaySeconds, 0.0))
        else:
            self._awaitJoins(group, group.rebalanceSeconds)

    def _awaitJoins(self, group: Group, delaySeconds: float) -> None:
        self._enter(group, JoinPhase(group, delaySeconds, partial(self._joinsOver, group)))

    def _delay(self, group: Group, delaySeconds: float, remainingSeconds: float) -> None:
        """
        Wait for more members, and again if one comes meanwhile.

        @param remainingSeconds: how much longer than C{delaySeconds} members
            may be waited for.
        """

        def over() -> None:
            if group.hasGrown and remainingSeconds > 0:
                group.hasGrown = False
                nextSeconds = min(self._initialDelaySeconds, remainingSeconds)
                self._delay(group, nextSeconds, max(remainingSeconds - delaySeconds, 0.0))
            else:
                self._joinsOver(group)

        self._enter(group, InitialDelay(group, delaySeconds, over))

    def _enter(self, group: Group, phase: DelayedOperation) -> None:
        group.phase = phase
        self._purgatory.tryCompleteElseWatch(phase, (group,))

    def _joinsOver(self, group: Group) -> None:
        with self.answers:
            group.phase = None
            for member in [each for each in group.members.values() if each.memberId not in group.joined]:
                if member.instanceId is None:
                    self._drop(group, member)
            if group.members and not group.electJoinedLeader():
                # Static members keep their place until their sessions expire.
                self._awaitJoins(group, max(group.rebalanceSeconds, _MIN_POSTPONED_SECONDS))
            else:
                group.beginGeneration()
                if group.members:
                    self._generationBegun(group)
                else:
                    self._emptied(group)

    def _emptied(self, group: Group) -> None:
        group.wallSeconds = self._wallSeconds()
        self._log.info("group {group!r:.300} is empty", group=group.groupId)
        # If it fails, the group is restored with members that are never heard of.
        self._store.save(group, lambda error: None)

    def _generationBegun(self, group: Group) -> None:
        results = []
        for member in group.members.values():
            member.isNew = False
            waiting, member.waiting = member.waiting, None
            # A member that does not wait, because it hung up or is static, has a session that runs.
            if waiting is not None:
                member.session.start(member.sessionSeconds)
                results.append((waiting, group.joinResult(member)))
        self._enter(group, SyncPhase(group, group.rebalanceSeconds, partial(self._syncsOverdue, group)))
        # A generation that a client knows of must not come again after a restart with other members.
        self._store.save(group, partial(self._beginningCommitted, group, group.generation, results), isAssigned=False)

    def _beginningCommitted(
        self,
        group: Group,
        generation: int,
        results: Sequence[tuple[Deferred[Any], JoinResult]],
        error: Exception | None,
    ) -> None:
        with self.answers:
            for waiting, result in results:
                refusal = GroupRefusal(ErrorCode.not_coordinator, result.memberId)
                self.answers.add(waiting, result if error is None else refusal)
            if error is not None and self._isCompleting(group, generation):
                self.prepare(group, f"it could not be stored: {error}")

    # All of them get their assignments

    def assign(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        """
        Take the assignments from the leader; the members get them once they are
        committed.
        """
        self._store.save(group, partial(self._assignmentCommitted, group, group.generation, assignments), assignments)

    def _assignmentCommitted(
        self, group: Group, generation: int, assignments: Mapping[str, bytes], error: Exception | None
    ) -> None:
        with self.answers:
            if not self._isCompleting(group, generation):
                return
            if error is not None:
                self._interrupt(group, ErrorCode.not_coordinator)
                self.prepare(group, f"its assignments could not be stored: {error}")
            else:
                group.assign(assignments)
                group.transitionTo(State.STABLE)
                self._log.info(
                    "group {group!r:.300} is stable: {count} in generation {generation}, led by {leader!r:.300}",
                    group=group.groupId,
                    count=len(group.members),
                    generation=generation,
                    leader=group.leaderId,
                )
                for member in group.members.values():
                    if member.waiting is not None:
                        self.answer(member, SyncResult(group.protocolType, group.protocolName, member.assignment))
                        member.session.start(member.sessionSeconds)

    def _syncsOverdue(self, group: Group) -> None:
        with self.answers:
            overdue = [group.members[memberId] for memberId in group.members if memberId in group.unsynced]
            for member in overdue:
                self._drop(group, member)
            self.prepare(group, f"{len(overdue)} members did not ask for their assignments in time")

    def _interrupt(self, group: Group, errorCode: ErrorCode) -> None:
        """
        Refuse the requests of members that wait for their assignments.
        """
        for member in group.members.values():
            if member.waiting is not None and member.memberId not in group.joined:
                self.answer(member, GroupRefusal(errorCode, member.memberId))
                member.session.start(member.sessionSeconds)

    # Members that go

    def _expired(self, group: Group, member: Member) -> None:
        with self.answers:
            self.remove(group, member, f"was silent for {member.sessionSeconds:g} s")

    def _drop(self, group: Group, member: Member) -> None:
        member.session.end()
        self.connections.forget(member)
        group.remove(member)
        self.answer(member, GroupRefusal(ErrorCode.unknown_member_id))

    def _hungUp(self, member: Member, waiting: Deferred[Any]) -> None:
        """
        The client disconnected while its request was parked.  Its place is
        kept for the length of its session.
        """
        if member.waiting is waiting:
            member.waiting = None
            member.session.start(member.sessionSeconds)

    def _isCompleting(self, group: Group, generation: int) -> bool:
        return group.state is State.COMPLETING and group.generation == generation

# -*- test-case-name: tests.unit.kafka.broker.groups.test_rebalancer -*-
"""
How a group gets from one generation to the next: all members join, one of them
assigns, all get their assignments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from admission.interfaces import IPurgatory
from admission.operations import DelayedOperation

from .groupstate import Group, State
from .groupstore import GroupStore
from .member import GroupRefusal, Joined, Member, Participant, Synced
from .phases import InitialDelay, JoinPhase, SyncPhase
from .sessions import Connections, Session

NEW_MEMBER_SECONDS = 300.0
"""How long a new member waits for the others before it has to ask again."""

_MIN_POSTPONED_SECONDS = 1.0
"""Members that are waited for once more may allow no time at all; this keeps their group from spinning."""


class Answers:
    """
    Answers to parked requests.  They leave only when the coordinator has
    finished what it is doing, which is a C{with} block: the next request of a
    client that is answered may be there already.
    """

    def __init__(self) -> None:
        self._answers: deque[tuple[Deferred[Any], Joined | Synced | GroupRefusal]] = deque()
        self._depth = 0

    def add(self, waiting: Deferred[Any], answer: Joined | Synced | GroupRefusal) -> None:
        """
        Answer a request at the end of the outermost block.
        """
        self._answers.append((waiting, answer))

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        # As long as answers leave, blocks that they bring about are inner ones.
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


class Rebalancing:
    """
    Takes groups through their states.

    Whoever calls a method here does so within a block of L{Answers}.
    """

    _log = Logger()

    def __init__(
        self,
        purgatory: IPurgatory,
        clock: IReactorTime,
        wallSeconds: Callable[[], float],
        store: GroupStore,
        answers: Answers,
        connections: Connections,
        initialDelaySeconds: float,
    ) -> None:
        self._purgatory = purgatory
        self._seconds = clock.seconds
        self._wallSeconds = wallSeconds
        self._store = store
        self._answers = answers
        self._connections = connections
        self._initialDelaySeconds = initialDelaySeconds

    # Members

    def enroll(self, group: Group, participant: Participant, expired: Callable[[], object]) -> None:
        """
        C{participant} is to be heard of from now on, once its session has
        been started.

        @param expired: called if it is not, and not in a block.
        """
        participant.session = Session(self._purgatory, self._seconds, group, participant, expired)

    def add(self, group: Group, member: Member) -> None:
        """
        Take in a member, which waits for nothing yet.
        """
        self.enroll(group, member, partial(self._expired, group, member))
        group.add(member)

    def park(self, group: Group, member: Member) -> Deferred[Any]:
        """
        Have a member wait for its answer.  If another of its requests waits,
        this one takes its place.
        """
        self.answer(member, GroupRefusal(ErrorCode.rebalance_in_progress, member.memberId))
        waiting: Deferred[Any] = Deferred(partial(self._hungUp, member))
        member.waiting = waiting
        return waiting

    def answer(self, member: Member, answer: Joined | Synced | GroupRefusal) -> None:
        """
        Answer a member, if it waits.
        """
        waiting, member.waiting = member.waiting, None
        if waiting is not None:
            self._answers.add(waiting, answer)

    def remove(self, group: Group, member: Member, reason: str) -> None:
        """
        Let a member go; the others share what it had.
        """
        self._drop(group, member)
        if group.state is State.PREPARING:
            self.checkPhase(group)
        else:
            self.prepare(group, f"{member.memberId!r:.300} {reason}")

    def checkPhase(self, group: Group) -> None:
        """
        What the group waits for may have happened.
        """
        if group.phase is not None:
            group.phase.tryComplete()

    # All of them join

    def prepare(self, group: Group, reason: str) -> None:
        """
        Have all members join again, unless that is happening already.

        @param reason: what happened, as a sentence's beginning.
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
        def over() -> None:
            if group.hasGrown and remainingSeconds > 0:
                group.hasGrown = False
                nextSeconds = min(self._initialDelaySeconds, remainingSeconds)
                self._delay(group, nextSeconds, max(remainingSeconds - delaySeconds, 0.0))
            else:
                self._joinsOver(group)

        self._enter(group, InitialDelay(group, delaySeconds, remainingSeconds, over))

    def _enter(self, group: Group, phase: DelayedOperation) -> None:
        group.phase = phase
        self._purgatory.tryCompleteElseWatch(phase, (group,))

    def _joinsOver(self, group: Group) -> None:
        with self._answers:
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
        # If it fails, the group is restored with members that nobody hears of.
        self._store.save(group, lambda error: None)

    def _generationBegun(self, group: Group) -> None:
        joined = []
        for member in group.members.values():
            member.isNew = False
            waiting, member.waiting = member.waiting, None
            # Whoever does not wait, having hung up or being static, has a session that runs.
            if waiting is not None:
                member.session.start(member.sessionSeconds)
                joined.append((waiting, group.joinedBy(member)))
        self._enter(group, SyncPhase(group, group.rebalanceSeconds, partial(self._syncsOverdue, group)))
        # A generation that somebody knows of must not come again after a restart with other members.
        self._store.save(group, partial(self._beginningCommitted, group, group.generation, joined), isAssigned=False)

    def _beginningCommitted(
        self, group: Group, generation: int, joined: Sequence[tuple[Deferred[Any], Joined]], error: Exception | None
    ) -> None:
        with self._answers:
            for waiting, answer in joined:
                refusal = GroupRefusal(ErrorCode.not_coordinator, answer.memberId)
                self._answers.add(waiting, answer if error is None else refusal)
            if error is not None and self._isCompleting(group, generation):
                self.prepare(group, f"it could not be stored: {error}")

    # All of them get their assignments

    def assign(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        """
        The leader has said what is whose; the members get it once it is
        committed.
        """
        self._store.save(group, partial(self._assignmentCommitted, group, group.generation, assignments), assignments)

    def _assignmentCommitted(
        self, group: Group, generation: int, assignments: Mapping[str, bytes], error: Exception | None
    ) -> None:
        with self._answers:
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
                        self.answer(member, Synced(group.protocolType, group.protocolName, member.assignment))
                        member.session.start(member.sessionSeconds)

    def _syncsOverdue(self, group: Group) -> None:
        with self._answers:
            overdue = [group.members[memberId] for memberId in group.members if memberId in group.unsynced]
            for member in overdue:
                self._drop(group, member)
            self.prepare(group, f"{len(overdue)} members did not ask for their assignments in time")

    def _interrupt(self, group: Group, errorCode: ErrorCode) -> None:
        """
        Send those away who wait for their assignments.
        """
        for member in group.members.values():
            if member.waiting is not None and member.memberId not in group.joined:
                self.answer(member, GroupRefusal(errorCode, member.memberId))
                member.session.start(member.sessionSeconds)

    # Who goes

    def _expired(self, group: Group, member: Member) -> None:
        with self._answers:
            self.remove(group, member, f"was silent for {member.sessionSeconds:g} s")

    def _drop(self, group: Group, member: Member) -> None:
        member.session.cancel()
        self._connections.forget(member)
        group.remove(member)
        self.answer(member, GroupRefusal(ErrorCode.unknown_member_id))

    def _hungUp(self, member: Member, waiting: Deferred[Any]) -> None:
        """
        A client left while its request was parked.  Its place is kept, as
        after any other silence.
        """
        if member.waiting is waiting:
            member.waiting = None
            member.session.start(member.sessionSeconds)

    def _isCompleting(self, group: Group, generation: int) -> bool:
        return group.state is State.COMPLETING and group.generation == generation

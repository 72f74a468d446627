# -*- test-case-name: tests.unit.kafka.broker.groups.test_groupstate -*-
"""
One group: who is in it, in which state, and what they have agreed on.  Nothing
here waits, writes or sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sized
from enum import Enum
from typing import NamedTuple

from attrs import define, evolve, field

from admission.operations import DelayedOperation

from ..log.interface import Partition
from .limits import Tally
from .member import Described, Joined, Member, Participant, Protocols

_GROUP_BYTES = 2000
_OFFSET_BYTES = 300


def _counted(things: Sized) -> str:
    return f"<{len(things)}>"


class State(Enum):
    """
    The states of a group, by the names that Kafka's tools show.
    """

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_FOLLOWING = {
    State.EMPTY: {State.PREPARING, State.DEAD},
    State.PREPARING: {State.COMPLETING, State.EMPTY, State.DEAD},
    State.COMPLETING: {State.STABLE, State.PREPARING, State.DEAD},
    State.STABLE: {State.PREPARING, State.DEAD},
    State.DEAD: set[State](),
}


class Offset(NamedTuple):
    """
    An offset that was committed.

    @ivar leaderEpoch: as the client gave it, -1 if it did not.
    @ivar metadata: whatever the client wants to remember with it.
    @ivar wallSeconds: when, in seconds since the epoch.
    """

    offset: int
    leaderEpoch: int
    metadata: str
    wallSeconds: float

    @property
    def sizeBytes(self) -> int:
        """
        How much memory it takes, about.
        """
        return _OFFSET_BYTES + len(self.metadata)


@define(eq=False)
class Group:
    """
    A group.

    @ivar number: what its records in the log are filed under.
    @ivar wallSeconds: when it was last in use, in seconds since the epoch:
        while it is empty, that is when it became so or when offsets were
        committed.
    @ivar members: by their ids, those first who came first.
    @ivar pending: those who were told their id and have yet to join with it.
    @ivar instances: the ids of static members by their names.
    @ivar joined: the ids of those who are to be in the next generation.
    @ivar unsynced: the ids of those in this one who did not ask for their
        assignment yet.
    @ivar phase: what its members are being waited for with, if they are.
    @ivar hasGrown: whether somebody came while the first members wait for more.
    @ivar uncommittedCount: how many requests to commit offsets are on their way
        into the log.
    @ivar isStored: whether there is a record of it in the log.
    @ivar sizeBytes: how much memory it takes, about.
    """

    groupId: str
    number: int
    tally: Tally = field(repr=False)
    wallSeconds: float
    state: State = State.EMPTY
    generation: int = 0
    protocolType: str | None = None
    protocolName: str | None = None
    leaderId: str | None = None
    isStored: bool = False
    members: dict[str, Member] = field(init=False, factory=dict, repr=_counted)
    pending: dict[str, Participant] = field(init=False, factory=dict, repr=_counted)
    instances: dict[str, str] = field(init=False, factory=dict, repr=False)
    offsets: dict[Partition, Offset] = field(init=False, factory=dict, repr=_counted)
    joined: set[str] = field(init=False, factory=set, repr=False)
    unsynced: set[str] = field(init=False, factory=set, repr=False)
    phase: DelayedOperation | None = field(init=False, default=None, repr=False)
    hasGrown: bool = field(init=False, default=False)
    uncommittedCount: int = field(init=False, default=0)
    sizeBytes: int = field(init=False, default=0)
    _speakers: Counter[str] = field(init=False, factory=Counter, repr=False)

    def __attrs_post_init__(self) -> None:
        self._grow(_GROUP_BYTES + len(self.groupId))

    def transitionTo(self, state: State) -> None:
        """
        Enter another state.

        @raise RuntimeError: if it does not follow this one.
        """
        if state not in _FOLLOWING[self.state]:
            raise RuntimeError(f"{self!r} cannot become {state.value}")
        self.state = state

    @property
    def isVacant(self) -> bool:
        """
        Whether there is nothing that the group would have to be kept for.
        """
        return self.state is State.EMPTY and not (self.pending or self.offsets or self.uncommittedCount)

    @property
    def rebalanceSeconds(self) -> float:
        """
        How long to wait for all the members.
        """
        return max((member.rebalanceSeconds for member in self.members.values()), default=0.0)

    def hasEverybodyJoined(self) -> bool:
        """
        Whether nobody has to be waited for; those who were told their id are
        about to join.
        """
        return len(self.joined) == len(self.members) and not self.pending

    # Who is in it

    def add(self, member: Member) -> None:
        """
        Take in a member; the first one leads.
        """
        self.members[member.memberId] = member
        if member.instanceId is not None:
            self.instances[member.instanceId] = member.memberId
        if self.leaderId is None:
            self.leaderId = member.memberId
        self._count(member.protocols, 1)
        self._grow(member.sizeBytes)

    def remove(self, member: Member) -> None:
        """
        Let a member go.
        """
        del self.members[member.memberId]
        self.joined.discard(member.memberId)
        self.unsynced.discard(member.memberId)
        if member.instanceId is not None:
            del self.instances[member.instanceId]
        if self.leaderId == member.memberId:
            self.leaderId = next(iter(self.members), None)
        self._count(member.protocols, -1)
        self._grow(-member.sizeBytes)

    def rename(self, member: Member, memberId: str) -> None:
        """
        Give a static member another id: its process is another.  It has not
        joined any more.
        """
        formerId, member.memberId = member.memberId, memberId
        self.members = {each.memberId: each for each in self.members.values()}
        assert member.instanceId is not None
        self.instances[member.instanceId] = memberId
        self.joined.discard(formerId)
        if formerId in self.unsynced:
            self.unsynced.remove(formerId)
            self.unsynced.add(memberId)
        if self.leaderId == formerId:
            self.leaderId = memberId
        self._grow(len(memberId) - len(formerId))

    def update(self, member: Member, sessionSeconds: float, rebalanceSeconds: float, protocols: Protocols) -> None:
        """
        A member has changed its mind.
        """
        self._grow(-member.sizeBytes)
        self._count(member.protocols, -1)
        member.sessionSeconds = sessionSeconds
        member.rebalanceSeconds = rebalanceSeconds
        member.protocols = protocols
        self._count(protocols, 1)
        self._grow(member.sizeBytes)

    def addPending(self, participant: Participant) -> None:
        """
        Somebody was told its id.
        """
        self.pending[participant.memberId] = participant
        self.tally.pendingCount += 1
        self._grow(participant.sizeBytes)

    def removePending(self, participant: Participant) -> None:
        """
        It has joined, or never will.
        """
        del self.pending[participant.memberId]
        self.tally.pendingCount -= 1
        self._grow(-participant.sizeBytes)

    # What they agree on

    def supports(self, protocolType: str, protocols: Protocols) -> bool:
        """
        Whether somebody who speaks these could be a member.
        """
        if not protocolType or not protocols:
            return False
        if not self.members:
            return True
        count = len(self.members)
        return protocolType == self.protocolType and any(self._speakers[name] == count for name, _ in protocols)

    def selectProtocol(self) -> str:
        """
        Of the protocols that all members speak, the one that most of them like
        best; there must be one.
        """
        count = len(self.members)
        votes = Counter(
            next(name for name, _ in member.protocols if self._speakers[name] == count)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def electJoinedLeader(self) -> bool:
        """
        Make sure that the leader is one of those who have joined.

        @return: whether there is anybody who could be.
        """
        if self.leaderId not in self.joined:
            joined = (memberId for memberId in self.members if memberId in self.joined)
            leaderId = next(joined, None)
            if leaderId is None:
                return False
            self.leaderId = leaderId
        return True

    def beginGeneration(self) -> None:
        """
        Whoever is left in the group is its next generation, of which nobody
        has an assignment.
        """
        self.generation += 1
        self.joined.clear()
        self.hasGrown = False
        self.assign({})
        self.unsynced = set(self.members)
        if self.members:
            self.protocolName = self.selectProtocol()
            self.transitionTo(State.COMPLETING)
        else:
            self.protocolName = self.leaderId = None
            self.transitionTo(State.EMPTY)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """
        Give each member what is its, or nothing.
        """
        for member in self.members.values():
            assignment = assignments.get(member.memberId, b"")
            self._grow(len(assignment) - len(member.assignment))
            member.assignment = assignment

    def described(self) -> list[Described]:
        """
        The members, for their leader.
        """
        return [
            Described(member.memberId, member.instanceId, member.metadata(self.protocolName))
            for member in self.members.values()
        ]

    def joinedBy(self, member: Member) -> Joined:
        """
        What a member is told that has joined this generation.
        """
        leaderId = self.leaderId
        assert leaderId is not None
        joined = Joined(
            memberId=member.memberId,
            generation=self.generation,
            protocolType=self.protocolType,
            protocolName=self.protocolName,
            leaderId=leaderId,
        )
        return evolve(joined, members=self.described()) if member.memberId == leaderId else joined

    # What they have committed

    def commit(self, partition: Partition, offset: Offset | None) -> None:
        """
        Keep an offset in place of the one before; L{None} for none.
        """
        before = self.offsets.pop(partition, None)
        if before is not None:
            self._grow(-before.sizeBytes)
        if offset is not None:
            self.offsets[partition] = offset
            self._grow(offset.sizeBytes)

    def leaveTally(self) -> None:
        """
        The group is gone, and what it took.
        """
        self.tally.pendingCount -= len(self.pending)
        self._grow(-self.sizeBytes)

    def _count(self, protocols: Protocols, change: int) -> None:
        for name in dict(protocols):
            self._speakers[name] += change
            if not self._speakers[name]:
                del self._speakers[name]

    def _grow(self, sizeBytes: int) -> None:
        self.sizeBytes += sizeBytes
        self.tally.sizeBytes += sizeBytes

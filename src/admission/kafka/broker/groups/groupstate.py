# -*- test-case-name: tests.unit.kafka.broker.groups.test_groupstate -*-
"""
One group: its members, its state, what the members have agreed on and what
they have committed.  Nothing here waits, writes or sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sized
from enum import Enum
from typing import Final, NamedTuple

from attrs import define, evolve, field, frozen
from kio.schema.errors import ErrorCode

from admission.kafka.storage.holdings import Holdings
from admission.operations import DelayedOperation

from ..log.interface import Partition
from .member import (
    GroupRefusal,
    JoinRequest,
    JoinResult,
    Member,
    MemberMetadata,
    Participant,
    Protocols,
    sizeOfBytes,
    sizeOfProtocols,
    sizeOfText,
)
from .subscriptions import Subscription

# Measured with their records in the tables of the log.
_GROUP_BYTES: Final = 1850
_OFFSET_BYTES: Final = 350


@frozen(kw_only=True)
class GroupLimits:
    """
    The limits of groups.

    @ivar minSessionSeconds: the shortest session timeout to accept.
    @ivar maxSessionSeconds: the longest one.
    @ivar initialDelaySeconds: how long the first members of an empty group
        wait for more.
    @ivar maxMembers: members of one group.
    @ivar maxPending: clients that were given a member id and have not come
        back with it, of all groups together.
    @ivar maxGroups: groups in all.
    @ivar maxGroupBytes: memory of one group.
    @ivar maxBytes: memory of all groups together.
    @ivar retentionSeconds: how long the offsets of an empty group are kept
        after its last use.
    @ivar checkSeconds: how often to look for groups and offsets to remove.
    """

    minSessionSeconds: float = 6.0
    maxSessionSeconds: float = 1800.0
    initialDelaySeconds: float = 3.0
    maxMembers: int = 1000
    maxPending: int = 10_000
    maxGroups: int = 10_000
    maxGroupBytes: int = 16 << 20
    maxBytes: int = 64 << 20
    retentionSeconds: float = 7 * 86400.0
    checkSeconds: float = 600.0

    def allow(self, groupBytes: int, allBytes: Holdings, holder: str, growthBytes: int) -> bool:
        """
        Whether a group may grow.  One that does not grow is always allowed.

        @param groupBytes: the size of the group.
        @param allBytes: the size of all groups together.
        @param holder: for whom it would grow.
        @param growthBytes: how much is added; may be negative.
        """
        return growthBytes <= 0 or (
            groupBytes + growthBytes <= self.maxGroupBytes and allBytes.allow(holder, growthBytes, self.maxBytes)
        )


@define(eq=False)
class GroupTotals:
    """
    What all groups have together, and for whom.

    @ivar groups: how many there are, for those who made them.
    @ivar pending: how many clients were told a member id and have not joined with it.
    @ivar memoryBytes: about how much memory groups take, for those whose members and offsets take it.
    """

    groups: Holdings = field(factory=Holdings)
    pending: Holdings = field(factory=Holdings)
    memoryBytes: Holdings = field(factory=Holdings)


class State(Enum):
    """
    The states of a group, by the names that Kafka's tools show.
    """

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_LEGAL_TRANSITIONS: Final = {
    State.EMPTY: {State.PREPARING, State.DEAD},
    State.PREPARING: {State.COMPLETING, State.EMPTY, State.DEAD},
    State.COMPLETING: {State.STABLE, State.PREPARING, State.DEAD},
    State.STABLE: {State.PREPARING, State.DEAD},
    State.DEAD: set[State](),
}


class Offset(NamedTuple):
    """
    A committed offset.

    @ivar leaderEpoch: as the client gave it, -1 if it did not.
    @ivar metadata: text that the client stores with it.
    @ivar wallSeconds: when it was committed, in seconds since the epoch.
    @ivar holder: who is charged for it: the principal, or the address, that committed it; empty if that is not known.
    """

    offset: int
    leaderEpoch: int
    metadata: str
    wallSeconds: float
    holder: str = ""

    @property
    def sizeBytes(self) -> int:
        """
        About how much memory it takes, here and in the table of the log.
        """
        return _OFFSET_BYTES + sizeOfText(self.metadata)


@define(eq=False)
class _Readers:
    """
    The members of a group that read the same topics, and so share one set of names.

    @ivar holder: who is charged for it, because a member of theirs was the first.
    """

    subscription: Subscription
    holder: str
    count: int = 0


def _counted(things: Sized) -> str:
    return f"<{len(things)}>"


@define(eq=False)
class Group:
    """
    A group.

    @ivar number: the key of its records in the log.
    @ivar totals: the sums over all groups, which it keeps up to date.
    @ivar wallSeconds: when it was last in use, in seconds since the epoch; for
        an empty group, when it became empty or last committed offsets.
    @ivar members: by their ids, in the order in which they joined.
    @ivar pending: clients that were told their id and have yet to join with it.
    @ivar instances: the member ids of static members by their instance ids.
    @ivar joined: the ids of the members that have joined the next generation.
    @ivar unsynced: the ids of the members of this generation that have not
        asked for their assignment yet.
    @ivar phase: the operation in the purgatory that waits for the members to
        join or to sync; L{None} if none does.
    @ivar hasGrown: whether a member has joined since the current initial delay
        began.
    @ivar uncommittedCount: how many requests to commit offsets wait for the
        log.
    @ivar isStored: whether there is a record of it in the log.
    @ivar holder: who has made it: a principal, or an address; empty if that is not known.
    @ivar heldBytes: about how much memory it takes, for each holder.
    """

    groupId: str
    number: int
    totals: GroupTotals = field(repr=False)
    wallSeconds: float
    holder: str = ""
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
    heldBytes: Holdings = field(init=False, factory=Holdings, repr=False)
    # How many members support each protocol.
    _supporters: Counter[str] = field(init=False, factory=Counter, repr=False)
    _readers: dict[Subscription, _Readers] = field(init=False, factory=dict, repr=False)

    def __attrs_post_init__(self) -> None:
        self.totals.groups.add(self.holder, 1)
        # In its record characters may be escaped.
        textBytes = sizeOfText(self.groupId) * (1 if self.groupId.isascii() else 2)
        self.grow(self.holder, _GROUP_BYTES + textBytes)

    def transitionTo(self, state: State) -> None:
        """
        Enter another state.

        @raise RuntimeError: if it does not follow this one.
        """
        if state not in _LEGAL_TRANSITIONS[self.state]:
            raise RuntimeError(f"{self!r} cannot become {state.value}")
        self.state = state

    @property
    def sizeBytes(self) -> int:
        """
        About how much memory it takes.
        """
        return self.heldBytes.total

    @property
    def isVacant(self) -> bool:
        """
        Whether nothing would be lost with the group.
        """
        return self.state is State.EMPTY and not (self.pending or self.offsets or self.uncommittedCount)

    @property
    def rebalanceSeconds(self) -> float:
        """
        How long to wait for all members to join: as long as the slowest may
        take.
        """
        return max((member.rebalanceSeconds for member in self.members.values()), default=0.0)

    def hasAllMembersJoined(self) -> bool:
        """
        Whether the join phase can end.  Pending members are waited for, too.
        """
        return len(self.joined) == len(self.members) and not self.pending

    # Members

    def memberFor(self, memberId: str, instanceId: str | None) -> Member:
        """
        The member that a request names.

        @raise GroupRefusal: if there is none, or a static member has another
            id by now.
        """
        if instanceId is not None:
            currentId = self.instances.get(instanceId)
            if currentId is not None and currentId != memberId:
                raise GroupRefusal(ErrorCode.fenced_instance_id, memberId)
            if currentId is None:
                raise GroupRefusal(ErrorCode.unknown_member_id, memberId)
        member = self.members.get(memberId)
        if member is None:
            raise GroupRefusal(ErrorCode.unknown_member_id, memberId)
        return member

    def add(self, member: Member) -> None:
        """
        Add a member; the first one leads.
        """
        self.members[member.memberId] = member
        if member.instanceId is not None:
            self.instances[member.instanceId] = member.memberId
        if self.leaderId is None:
            self.leaderId = member.memberId
        self._count(member.protocols, 1)
        self.grow(member.holder, member.sizeBytes)
        self._subscribe(member, member.subscription)

    def remove(self, member: Member) -> None:
        """
        Remove a member.  If it led, the one leads that joined first.
        """
        del self.members[member.memberId]
        self.joined.discard(member.memberId)
        self.unsynced.discard(member.memberId)
        if member.instanceId is not None:
            del self.instances[member.instanceId]
        if self.leaderId == member.memberId:
            self.leaderId = next(iter(self.members), None)
        self._count(member.protocols, -1)
        self.grow(member.holder, -member.sizeBytes)
        self._unsubscribe(member)

    def rename(self, member: Member, memberId: str) -> None:
        """
        Give a static member the id of its new process, which has not joined
        yet.
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
        self.grow(member.holder, sizeOfText(memberId) - sizeOfText(formerId))

    def update(self, member: Member, request: JoinRequest) -> None:
        """
        Take over what a member that joins again says now.
        """
        self.grow(member.holder, -member.sizeBytes)
        self._count(member.protocols, -1)
        member.clientId, member.host, member.holder = request.clientId, request.host, request.holder
        member.sessionSeconds = request.sessionSeconds
        member.rebalanceSeconds = request.rebalanceSeconds
        member.protocols = request.protocols
        self._count(member.protocols, 1)
        self.grow(member.holder, member.sizeBytes)
        if member.subscription != request.subscription:
            self._unsubscribe(member)
            self._subscribe(member, request.subscription)

    def growthBytes(self, member: Member | None, request: JoinRequest) -> int:
        """
        About how much more memory a member would take.

        @param member: what the group knows of it; L{None} if it is new.
        """
        isShared = request.subscription in self._readers
        addedBytes = sizeOfProtocols(request.protocols) + (0 if isShared else request.subscription.sizeBytes)
        return addedBytes - (0 if member is None else sizeOfProtocols(member.protocols))

    def addPending(self, participant: Participant) -> None:
        """
        A client is told its member id and has yet to join with it.
        """
        self.pending[participant.memberId] = participant
        self.totals.pending.add(participant.holder, 1)
        self.grow(participant.holder, participant.sizeBytes)

    def removePending(self, participant: Participant) -> None:
        """
        A pending member has joined or is given up.
        """
        del self.pending[participant.memberId]
        self.totals.pending.add(participant.holder, -1)
        self.grow(participant.holder, -participant.sizeBytes)

    # What they agree on

    def supports(self, protocolType: str, protocols: Protocols) -> bool:
        """
        Whether a client that supports these protocols could be a member.
        """
        if not protocolType or not protocols:
            return False
        if not self.members:
            return True
        count = len(self.members)
        return protocolType == self.protocolType and any(self._supporters[name] == count for name, _ in protocols)

    def selectProtocol(self) -> str:
        """
        Of the protocols that all members support, the favourite of most of
        them.  There must be a member.
        """
        count = len(self.members)
        votes = Counter(
            next(name for name, _ in member.protocols if self._supporters[name] == count)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def electJoinedLeader(self) -> bool:
        """
        Make sure that the leader is a member that has joined.

        @return: whether there is one.
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
        The members that are left are the next generation; none of them has an
        assignment.
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
        Give each member its assignment; an empty one if it is missing.
        """
        for member in self.members.values():
            assignment = assignments.get(member.memberId, b"")
            self.grow(member.holder, sizeOfBytes(assignment) - sizeOfBytes(member.assignment))
            member.assignment = assignment

    def joinResult(self, member: Member) -> JoinResult:
        """
        The answer to a member that has joined this generation.
        """
        leaderId = self.leaderId
        assert leaderId is not None
        result = JoinResult(
            memberId=member.memberId,
            generation=self.generation,
            protocolType=self.protocolType,
            protocolName=self.protocolName,
            leaderId=leaderId,
        )
        if member.memberId != leaderId:
            return result
        metadata = [
            MemberMetadata(each.memberId, each.instanceId, each.metadata(self.protocolName))
            for each in self.members.values()
        ]
        return evolve(result, members=metadata)

    def isRead(self, topicName: str) -> bool:
        """
        Whether any member reads a topic, as far as they say so like Kafka's consumers.
        """
        return any(topicName in subscription.topics for subscription in self._readers)

    # Offsets and size

    def setOffset(self, partition: Partition, offset: Offset | None) -> None:
        """
        Replace the offset of a partition; L{None} removes it.
        """
        before = self.offsets.pop(partition, None)
        if before is not None:
            self.grow(before.holder, -before.sizeBytes)
        if offset is not None:
            self.offsets[partition] = offset
            self.grow(offset.holder, offset.sizeBytes)

    def leaveTotals(self) -> None:
        """
        Subtract the group from the totals, because it is removed.
        """
        self.totals.groups.add(self.holder, -1)
        for participant in self.pending.values():
            self.totals.pending.add(participant.holder, -1)
        for holder, heldBytes in list(self.heldBytes):
            self.grow(holder, -heldBytes)

    def grow(self, holder: str, sizeBytes: int) -> None:
        """
        What is there for C{holder} takes more memory, or less.
        """
        self.heldBytes.add(holder, sizeBytes)
        self.totals.memoryBytes.add(holder, sizeBytes)

    def _count(self, protocols: Protocols, change: int) -> None:
        for name in dict(protocols):
            self._supporters[name] += change
            if not self._supporters[name]:
                del self._supporters[name]

    def _subscribe(self, member: Member, subscription: Subscription) -> None:
        readers = self._readers.get(subscription)
        if readers is None:
            readers = self._readers[subscription] = _Readers(subscription, member.holder)
            self.grow(member.holder, subscription.sizeBytes)
        readers.count += 1
        member.subscription = readers.subscription

    def _unsubscribe(self, member: Member) -> None:
        readers = self._readers[member.subscription]
        readers.count -= 1
        if not readers.count:
            del self._readers[member.subscription]
            self.grow(readers.holder, -readers.subscription.sizeBytes)

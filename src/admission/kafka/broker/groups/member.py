# -*- test-case-name: tests.unit.kafka.broker.groups.test_member -*-
"""
The members of a group: what they ask, what they are answered, and how long
they may be silent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

from attrs import define, field, frozen
from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred

from admission.interfaces import IPurgatory
from admission.operations import DelayedOperation

from .subscriptions import NO_TOPICS, Subscription

Protocols = tuple[tuple[str, bytes], ...]
"""The protocols that a member supports, its favourite first: the name of each, and the member's metadata in it."""

_PARTICIPANT_BYTES = 1250
_PROTOCOL_BYTES = 200

_LATE_SECONDS = 0.1
"""By how much a session's timer is late if the broker has stood still."""

_AGAIN_SECONDS = 0.5
"""How long it then has to read what came meanwhile."""


class GroupRefusal(Exception):
    """
    A group, or its coordinator, refuses a request.

    @ivar errorCode: the error of the Kafka protocol.
    @ivar memberId: the member id that goes with it; empty for none.
    """

    def __init__(self, errorCode: ErrorCode, memberId: str = "") -> None:
        super().__init__(errorCode.name)
        self.errorCode = errorCode
        self.memberId = memberId


@frozen(kw_only=True)
class JoinRequest:
    """
    A JoinGroup request.

    @ivar memberId: empty if the client has none yet.
    @ivar instanceId: of a static member, the name that outlives its processes.
    @ivar holder: for whom it is: the principal, or the address.
    @ivar connection: the connection that it came by; any object that can be
        hashed.
    @ivar sessionSeconds: how long the member may be silent.
    @ivar rebalanceSeconds: how long the others wait for it to join.
    @ivar subscription: the topics that the protocols name.
    @ivar mustKnowItsId: whether a new member has to come back with the id that
        it is given before it counts (KIP-394).
    @ivar maySkipAssignment: whether the client understands that it leads
        without having anything to assign.
    """

    groupId: str
    memberId: str = ""
    instanceId: str | None = None
    clientId: str = ""
    host: str = ""
    holder: str = ""
    connection: Any = None
    sessionSeconds: float
    rebalanceSeconds: float
    protocolType: str
    protocols: Protocols
    subscription: Subscription = NO_TOPICS
    mustKnowItsId: bool = False
    maySkipAssignment: bool = False


class MemberMetadata(NamedTuple):
    """
    A member as its leader sees it.

    @ivar metadata: the member's metadata in the protocol of the group.
    """

    memberId: str
    instanceId: str | None
    metadata: bytes


@frozen(kw_only=True)
class JoinResult:
    """
    The answer to a JoinGroup request that was not refused.

    @ivar members: the members to assign something to; empty unless the member
        leads.
    @ivar skipsAssignment: whether the member leads, but the assignment stands.
    """

    memberId: str
    generation: int
    protocolType: str | None
    protocolName: str | None
    leaderId: str
    members: Sequence[MemberMetadata] = ()
    skipsAssignment: bool = False


@frozen(kw_only=True)
class MemberRequest:
    """
    Which member sends a request: what Heartbeat, SyncGroup and OffsetCommit
    begin with.

    @ivar generation: the generation that the member believes to be in.
    @ivar holder: for whom it is: the principal, or the address.
    """

    groupId: str
    generation: int
    memberId: str
    instanceId: str | None = None
    holder: str = ""
    connection: Any = None


class SyncResult(NamedTuple):
    """
    The answer to a SyncGroup request that was not refused.
    """

    protocolType: str | None
    protocolName: str | None
    assignment: bytes


@define(eq=False, kw_only=True)
class Participant:
    """
    A client with a member id, which has to be heard of within its session.
    One that is no L{Member} was told its id and has yet to join with it.

    @ivar holder: who is charged for it: the principal, or the address.
    @ivar connection: the connection that it was heard of by last.
    @ivar session: its session.
    """

    memberId: str
    sessionSeconds: float
    holder: str = ""
    connection: Any = field(default=None, repr=False)
    session: Session = field(init=False, repr=False)

    @property
    def isAwaitingResponse(self) -> bool:
        """
        Whether the client waits for an answer, and so cannot be heard of.
        """
        return False

    @property
    def sizeBytes(self) -> int:
        """
        About how much memory it takes.
        """
        return _PARTICIPANT_BYTES + sizeOfText(self.memberId)


@define(eq=False, kw_only=True)
class Member(Participant):
    """
    A member of a group.

    @ivar rebalanceSeconds: how long the others wait for it to join.
    @ivar subscription: the topics that it reads; what they take is counted by its group.
    @ivar assignment: what its leader assigned to it.
    @ivar isNew: whether it has never been part of a generation.
    @ivar waiting: the answer to its JoinGroup or SyncGroup request while that
        is parked and the client is connected.
    """

    instanceId: str | None
    clientId: str
    host: str
    rebalanceSeconds: float
    protocols: Protocols
    subscription: Subscription = NO_TOPICS
    assignment: bytes = b""
    isNew: bool = True
    waiting: Deferred[Any] | None = field(default=None, repr=False)

    @property
    def isAwaitingResponse(self) -> bool:
        """
        Whether the client waits for an answer, and so cannot be heard of.  A
        new member that has waited for too long does not count: its client does
        not know its id and has probably forgotten it (KAFKA-7610).
        """
        return self.waiting is not None and not self.isNew

    @property
    def sizeBytes(self) -> int:
        texts = sizeOfText(self.memberId) + sizeOfText(self.instanceId or "") + sizeOfText(self.clientId)
        return _PARTICIPANT_BYTES + texts + sizeOfProtocols(self.protocols) + sizeOfBytes(self.assignment)

    def metadata(self, protocolName: str | None) -> bytes:
        """
        Its metadata in a protocol; empty if it does not support that.
        """
        return next((metadata for name, metadata in self.protocols if name == protocolName), b"")


def sizeOfProtocols(protocols: Protocols) -> int:
    """
    About how much memory they take, in bytes.
    """
    return sum(_PROTOCOL_BYTES + sizeOfText(name) + sizeOfBytes(metadata) for name, metadata in protocols)


def sizeOfText(text: str) -> int:
    """
    About how much memory a text takes, in bytes: here, and as UTF-8 in a table of the log.
    """
    return (2 if text.isascii() else 8) * len(text)


def sizeOfBytes(content: bytes) -> int:
    """
    About how much memory C{content} takes, in bytes: here, and as base64 in a table of the log.
    """
    return len(content) * 7 // 3


class Session(DelayedOperation):
    """
    The time within which a participant has to be heard of.

    Hearing of it only moves the deadline.  The operation in the purgatory stays
    as it is and, when its time comes, waits for the rest: a heartbeat costs
    next to nothing, however many members there are.

    @ivar deadlineSeconds: when the participant has been silent for too long.
    """

    __slots__ = (
        "_expired",
        "_firesSeconds",
        "_key",
        "_lookedAgainFor",
        "_participant",
        "_purgatory",
        "_seconds",
        "_throttledUntilSeconds",
        "deadlineSeconds",
    )

    def __init__(
        self,
        purgatory: IPurgatory,
        seconds: Callable[[], float],
        key: Hashable,
        participant: Participant,
        expired: Callable[[], object],
    ) -> None:
        """
        @param purgatory: where it waits.
        @param seconds: the monotonic clock of the purgatory.
        @param key: the key that it waits under.
        @param expired: called when the participant has been silent for too long.
        """
        super().__init__(0.0)
        self.deadlineSeconds = 0.0
        self._purgatory = purgatory
        self._seconds = seconds
        self._key = key
        self._participant = participant
        self._expired = expired
        self._throttledUntilSeconds = 0.0
        # When the timer in the purgatory fires, whatever the deadline has become since.
        self._firesSeconds = 0.0
        # The deadline that has passed while the broker stood still.
        self._lookedAgainFor = 0.0

    def start(self, delaySeconds: float) -> None:
        """
        The participant has to be heard of within C{delaySeconds} from now.
        """
        deadlineSeconds = self._seconds() + delaySeconds
        self.deadlineSeconds = deadlineSeconds
        if self.watcher is None:
            self._park(delaySeconds)
        elif self._firesSeconds > deadlineSeconds:
            self.cancel()
            self._park(delaySeconds)

    def end(self) -> None:
        """
        The participant is gone.  Nothing refers to it any more, so that its memory is given back at once, and not when
        Python looks for garbage in cycles.
        """
        self.cancel()
        self._participant = _NOBODY
        self._expired = _nothing

    def throttled(self, delaySeconds: float) -> None:
        """
        The participant cannot be heard of for C{delaySeconds} from now: they
        are added to its time, and where they overlap with an earlier delay,
        once.
        """
        now = self._seconds()
        addedSeconds = now + delaySeconds - max(now, self._throttledUntilSeconds)
        if addedSeconds > 0:
            self._throttledUntilSeconds = now + delaySeconds
            self.deadlineSeconds += addedSeconds

    def expire(self) -> None:
        """
        The timer fires; the deadline may have moved since it was set.
        """
        remainingSeconds = self.deadlineSeconds - self._seconds()
        if remainingSeconds > 0:
            self.cancel()
            self._park(remainingSeconds)
        elif self._participant.isAwaitingResponse:
            # The session is started again with the answer.
            self.cancel()
        elif self._seconds() - self._firesSeconds > _LATE_SECONDS and self._lookedAgainFor != self.deadlineSeconds:
            # It was us who did not listen, and what it has sent may be there to be read.
            self._lookedAgainFor = self.deadlineSeconds
            self.cancel()
            self._park(_AGAIN_SECONDS)
        else:
            super().expire()

    def onExpiration(self) -> None:
        self._expired()

    def _park(self, delaySeconds: float) -> None:
        self.delaySeconds = delaySeconds
        self._firesSeconds = self._seconds() + delaySeconds
        self._purgatory.tryCompleteElseWatch(self, (self._key,))


_NOBODY = Participant(memberId="", sessionSeconds=0.0)


def _nothing() -> None:
    """
    What becomes of nobody.
    """


class Connections:
    """
    Which participants were heard of last by which connection.
    """

    def __init__(self) -> None:
        self._participants: dict[Any, set[Participant]] = {}

    def heard(self, participant: Participant, connection: Any) -> None:
        """
        C{participant} was heard of by C{connection}, any object that can be
        hashed; L{None} for none that matters.
        """
        if participant.connection is connection:
            return
        self.forget(participant)
        participant.connection = connection
        if connection is not None:
            self._participants.setdefault(connection, set()).add(participant)

    def forget(self, participant: Participant) -> None:
        """
        C{participant} is gone.
        """
        connection, participant.connection = participant.connection, None
        if connection is None:
            return
        others = self._participants[connection]
        others.discard(participant)
        if not others:
            del self._participants[connection]

    def on(self, connection: Any) -> Collection[Participant]:
        """
        The participants that were heard of last by C{connection}.
        """
        return self._participants.get(connection, ())

    def lost(self, connection: Any) -> None:
        """
        C{connection} is closed and not kept, although its participants may stay
        for long.
        """
        for participant in self._participants.pop(connection, ()):
            participant.connection = None

    def throttled(self, connection: Any, delaySeconds: float) -> None:
        """
        Nothing is read from C{connection} for C{delaySeconds}, which is added
        to the sessions of its participants.
        """
        for participant in self._participants.get(connection, ()):
            participant.session.throttled(delaySeconds)

# -*- test-case-name: tests.unit.kafka.broker.groups.test_groupstate -*-
"""
Who takes part in a group, what they ask and what they are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from attrs import define, field, frozen
from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred

from .sessions import Session

Protocols = tuple[tuple[str, bytes], ...]
"""The names of the protocols that a member speaks, the one it likes best first, and for each what it says in it."""

_PARTICIPANT_BYTES = 1000
_PROTOCOL_BYTES = 200


class GroupRefusal(Exception):
    """
    What a group, or the coordinator on its behalf, answers instead of doing
    what it was asked to.

    @ivar errorCode: the error of the Kafka protocol that says so.
    @ivar memberId: the id that goes with it, if any.
    """

    def __init__(self, errorCode: ErrorCode, memberId: str = "") -> None:
        super().__init__(errorCode.name)
        self.errorCode = errorCode
        self.memberId = memberId


@frozen(kw_only=True)
class Joining:
    """
    A JoinGroup request.

    @ivar memberId: empty for those who have none yet.
    @ivar instanceId: of static members, the name that outlives their processes.
    @ivar connection: by which connection it came; any object.
    @ivar sessionSeconds: how long the member may be silent.
    @ivar rebalanceSeconds: how long the others wait for it to join.
    @ivar mustKnowItsId: whether to have a new member come back with the id
        that it is given, before it counts (KIP-394).
    @ivar maySkipAssignment: whether it understands that it leads without
        having anything to assign.
    """

    groupId: str
    memberId: str = ""
    instanceId: str | None = None
    clientId: str = ""
    host: str = ""
    connection: Any = None
    sessionSeconds: float
    rebalanceSeconds: float
    protocolType: str
    protocols: Protocols
    mustKnowItsId: bool = False
    maySkipAssignment: bool = False


class Described(NamedTuple):
    """
    A member, as its leader gets to know it.
    """

    memberId: str
    instanceId: str | None
    metadata: bytes


@frozen(kw_only=True)
class Joined:
    """
    The answer to a JoinGroup request that was not refused.

    @ivar members: whom to assign something to; empty unless the member leads.
    @ivar skipsAssignment: whether it leads, but the assignment stands.
    """

    memberId: str
    generation: int
    protocolType: str | None
    protocolName: str | None
    leaderId: str
    members: Sequence[Described] = ()
    skipsAssignment: bool = False


@frozen(kw_only=True)
class Speaker:
    """
    Who says something in a group: what most requests of members begin with.

    @ivar generation: which one it believes to be in.
    """

    groupId: str
    generation: int
    memberId: str
    instanceId: str | None = None
    connection: Any = None


class Synced(NamedTuple):
    """
    The answer to a SyncGroup request that was not refused.
    """

    protocolType: str | None
    protocolName: str | None
    assignment: bytes


@define(eq=False, kw_only=True)
class Participant:
    """
    Somebody with a member id, who has to be heard of within a time.  Those
    who are nothing more have yet to join with their id.

    @ivar connection: by which connection it was heard of last.
    @ivar session: that time.
    """

    memberId: str
    sessionSeconds: float
    connection: Any = field(default=None, repr=False)
    session: Session = field(init=False, repr=False)

    @property
    def isExcused(self) -> bool:
        """
        Whether it need not be heard of now.
        """
        return False

    @property
    def sizeBytes(self) -> int:
        """
        How much memory it takes, about.
        """
        return _PARTICIPANT_BYTES + len(self.memberId)


@define(eq=False, kw_only=True)
class Member(Participant):
    """
    A member of a group.

    @ivar rebalanceSeconds: how long the others wait for it to join.
    @ivar assignment: what its leader assigned to it.
    @ivar isNew: whether it has never been part of a generation.
    @ivar waiting: the answer to its JoinGroup or SyncGroup request, while
        that is parked and the client is there.
    """

    instanceId: str | None
    clientId: str
    host: str
    rebalanceSeconds: float
    protocols: Protocols
    assignment: bytes = b""
    isNew: bool = True
    waiting: Deferred[Any] | None = field(default=None, repr=False)

    @property
    def isExcused(self) -> bool:
        """
        A client cannot say anything while it waits for an answer; but a new
        one that has waited for too long has probably been forgotten by its
        client, which does not know its id (KAFKA-7610).
        """
        return self.waiting is not None and not self.isNew

    @property
    def sizeBytes(self) -> int:
        """
        See L{Participant.sizeBytes}.
        """
        texts = len(self.memberId) + len(self.instanceId or "") + len(self.clientId)
        return _PARTICIPANT_BYTES + texts + sizeOfProtocols(self.protocols) + len(self.assignment)

    def metadata(self, protocolName: str | None) -> bytes:
        """
        What it says in a protocol; nothing if it does not speak it.
        """
        return next((metadata for name, metadata in self.protocols if name == protocolName), b"")


def sizeOfProtocols(protocols: Protocols) -> int:
    """
    How much memory they take, about, in bytes.
    """
    return sum(_PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)

"""The group coordinator on a virtual clock and a log in memory, and consumers that talk to it without any protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast
from uuid import UUID

from attrs import evolve
from kio.schema.errors import ErrorCode
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.groups.groupcoordinator import GroupCoordinator
from admission.kafka.broker.groups.groupstate import Group, GroupLimits, Offset, State
from admission.kafka.broker.groups.member import (
    GroupRefusal,
    JoinRequest,
    JoinResult,
    Member,
    MemberRequest,
    Protocols,
    SyncResult,
)
from admission.kafka.broker.log.interface import Partition, Topic
from admission.kafka.storage.itable import CommitCallback, LogFailed
from admission_plugins.purgatory import WheelPurgatory
from admission_plugins.wheel import TimingWheel

STEP_SECONDS = 0.25
RANGE: Protocols = (("range", b"all"),)


def memberNamed(memberId: str, *protocolNames: str, instanceId: str | None = None, holder: str = "") -> Member:
    """A member that speaks some protocols, in which it says its own name."""
    protocols: Protocols = tuple((name, memberId.encode()) for name in protocolNames or ("range",))
    return Member(
        memberId=memberId,
        instanceId=instanceId,
        clientId="",
        host="",
        holder=holder,
        sessionSeconds=10.0,
        rebalanceSeconds=20.0,
        protocols=protocols,
    )


def requestToJoin(groupId: str = "readers", **changes: Any) -> JoinRequest:
    """A request to join."""
    fields = {"sessionSeconds": 10.0, "rebalanceSeconds": 60.0, "protocolType": "consumer", "protocols": RANGE}
    return JoinRequest(groupId=groupId, **{**fields, **changes})


class MemoryTable:
    """An L{admission.kafka.broker.log.interface.ITable} of a L{MemoryLog}."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.committed: dict[bytes, bytes] = {}
        self.current: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        """A value, committed or not."""
        return self.current.get(key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All of them."""
        return iter(sorted(self.current.items()))

    def put(self, key: bytes, value: bytes) -> None:
        """Write."""
        self.log.open()
        self.current[key] = value

    def delete(self, key: bytes) -> None:
        """Remove."""
        self.log.open()
        self.current.pop(key, None)


class MemoryLog:
    """
    As much of an L{admission.kafka.broker.log.interface.ILog} as groups need: what
    is written in a turn is committed in the next one.

    @ivar error: what commits fail with, while it is set.
    @ivar commitCount: how many there were.
    @ivar commitSeconds: how long after the first write they come.
    @ivar endedUncleanly: whether records may be missing.
    """

    def __init__(self, clock: Clock) -> None:
        self.topics: dict[str, Topic] = {}
        self.error: LogFailed | None = None
        self.commitCount = 0
        self.commitSeconds = 0.0
        self.endedUncleanly = False
        self.tables: dict[str, MemoryTable] = {}
        self._clock = clock
        self._waiting: list[CommitCallback] = []
        self._isOpen = False
        self._lastNumber = 0

    def table(self, name: str) -> MemoryTable:
        """A table."""
        return self.tables.setdefault(name, MemoryTable(self))

    def open(self) -> None:
        """Something is about to be written."""
        if not self._isOpen:
            self._isOpen = True
            self._clock.callLater(self.commitSeconds, self._commit)

    def whenCommitted(self, callback: CommitCallback) -> None:
        """Have C{callback} called after the commit."""
        if self._isOpen:
            self._waiting.append(callback)
        else:
            callback(None)

    def crash(self) -> None:
        """Lose what is not committed, and the callbacks that wait for it."""
        self._waiting = []
        for table in self.tables.values():
            table.current = dict(table.committed)

    def createTopic(self, name: str, partitionCount: int = 1) -> Topic:
        """Make a topic."""
        partitions = []
        for index in range(partitionCount):
            self._lastNumber += 1
            partitions.append(Partition(name, index, self._lastNumber))
        topic = self.topics[name] = Topic(name, UUID(int=self._lastNumber), tuple(partitions), {})
        return topic

    def deleteTopic(self, name: str) -> None:
        """Remove a topic."""
        for partition in self.topics.pop(name).partitions:
            partition.deleted = True

    def _commit(self) -> None:
        self._isOpen = False
        self.commitCount += 1
        for table in self.tables.values():
            if self.error is None:
                table.committed = dict(table.current)
            else:
                table.current = dict(table.committed)
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback(self.error)


class Consumer:
    """
    A member of a group, or a client that wants to be one.

    @ivar answers: everything that it was answered, refusals as their error
        codes.
    @ivar joined: the last answer to a join.
    @ivar assignment: what it owns in the generation that it is in, if it knows.
    """

    def __init__(self, case: GroupsRig, groupId: str = "readers", **joining: Any) -> None:
        self.case = case
        self.request = requestToJoin(groupId, **{"connection": self, **joining})
        self.answers: list[JoinResult | SyncResult | ErrorCode] = []
        self.joined: JoinResult | None = None
        self.assignment: bytes | None = None
        self.waiting: Deferred[Any] | None = None

    @property
    def memberId(self) -> str:
        """Its id, as far as it knows."""
        return self.request.memberId

    @memberId.setter
    def memberId(self, memberId: str) -> None:
        self.request = evolve(self.request, memberId=memberId)

    @property
    def generation(self) -> int:
        """The generation that it is in."""
        return -1 if self.joined is None else self.joined.generation

    @property
    def leads(self) -> bool:
        """Whether it has to assign."""
        return self.joined is not None and bool(self.joined.members) and not self.joined.skipsAssignment

    def memberRequest(self) -> MemberRequest:
        """How it introduces itself."""
        return MemberRequest(
            groupId=self.request.groupId,
            generation=self.generation,
            memberId=self.memberId,
            instanceId=self.request.instanceId,
            holder=self.request.holder,
            connection=self.request.connection,
        )

    def join(self, **changes: Any) -> ErrorCode | None:
        """
        Ask to join.

        @return: the refusal, if there is one at once.
        """
        self.request = evolve(self.request, **changes)
        self.assignment = None
        return self._wait(maybeDeferred(self.case.groups.join, self.request), self._joined)

    def sync(self, assignments: Mapping[str, bytes] | None = None, **others: Any) -> ErrorCode | None:
        """Ask for the assignment; by default the leader gives each member its own id."""
        if assignments is None:
            members = self.joined.members if self.leads and self.joined is not None else ()
            assignments = {each.memberId: each.memberId.encode() for each in members}
        return self._wait(
            maybeDeferred(self.case.groups.sync, self.memberRequest(), assignments, **others), self._synced
        )

    def heartbeat(self) -> ErrorCode:
        """Be heard of."""
        return self.case.outcome(self.case.groups.heartbeat, self.memberRequest())

    def commit(self, partition: Partition, offset: int, metadata: str = "") -> ErrorCode:
        """Commit an offset, and wait until it is committed."""
        committing = maybeDeferred(
            self.case.groups.commit,
            self.memberRequest(),
            {partition: Offset(offset, -1, metadata, self.case.wallSeconds(), self.request.holder)},
        )
        outcomes: list[ErrorCode] = []
        committing.addCallbacks(
            lambda _: outcomes.append(ErrorCode.none), lambda failure: outcomes.append(failure.value.errorCode)
        )
        self.case.clock.advance(0)
        return outcomes[0]

    def leave(self) -> ErrorCode:
        """Leave."""
        return self.case.groups.leave(self.request.groupId, [(self.memberId, self.request.instanceId)])[0]

    def hangUp(self) -> None:
        """Disconnect while waiting."""
        assert self.waiting is not None
        self.waiting.cancel()

    def _wait(self, waiting: Deferred[Any], answered: Callable[[Any], None]) -> ErrorCode | None:
        self.waiting = waiting
        count = len(self.answers)
        waiting.addCallbacks(answered, self._refused)
        waiting.addErrback(self.case.failures.append)
        answer = self.answers[count] if len(self.answers) > count else None
        return answer if isinstance(answer, ErrorCode) else None

    def _joined(self, joined: JoinResult) -> None:
        self.waiting = None
        self.joined = joined
        self.memberId = joined.memberId
        self.answers.append(joined)

    def _synced(self, synced: SyncResult) -> None:
        self.waiting = None
        self.assignment = synced.assignment
        self.answers.append(synced)

    def _refused(self, failure: Failure) -> None:
        self.waiting = None
        if failure.check(CancelledError):
            return
        refusal = failure.value
        assert isinstance(refusal, GroupRefusal), failure
        if refusal.errorCode is ErrorCode.member_id_required:
            self.memberId = refusal.memberId
        elif refusal.errorCode is ErrorCode.unknown_member_id:
            self.memberId, self.joined = "", None
        self.answers.append(refusal.errorCode)


class GroupsRig:
    """
    The coordinator and what it needs.

    @ivar failures: what consumers were answered that is no refusal.
    """

    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        self.log = MemoryLog(self.clock)
        self.limits = GroupLimits(**limits)
        self.failures: list[Failure] = []
        self.start()

    def start(self) -> None:
        """Start the coordinator on what the log has."""
        self.purgatory = WheelPurgatory(TimingWheel(self.clock))
        self.groups = GroupCoordinator(cast(Any, self.log), self.purgatory, self.clock, self.wallSeconds, self.limits)
        self.groups.start()

    def kill(self) -> None:
        """End the coordinator as C{kill -9} would, and start another."""
        self.groups.stop()
        self.log.crash()
        self.start()
        self.clock.advance(0)

    def wallSeconds(self) -> float:
        """The time."""
        return 1_000_000.0 + self.clock.seconds()

    def wait(self, seconds: float = 0.0) -> None:
        """Let time pass, in steps."""
        until = self.clock.seconds() + seconds
        while until - self.clock.seconds() > STEP_SECONDS:
            self.clock.advance(STEP_SECONDS)
        self.clock.advance(max(until - self.clock.seconds(), 0.0))
        # What was committed just now.
        self.clock.advance(0)

    def outcome(self, function: Callable[..., object], *args: Any) -> ErrorCode:
        """The error code of something that may be refused."""
        try:
            function(*args)
        except GroupRefusal as refusal:
            return refusal.errorCode
        return ErrorCode.none

    def group(self, groupId: str = "readers") -> Group:
        """A group that must be there."""
        group = self.groups.get(groupId)
        assert group is not None
        return group


class GroupsTestCase(SynchronousTestCase):
    """A test with a coordinator.  When it ends, no timer may be left."""

    def setUp(self) -> None:
        self.rig = self.buildRig()
        self.addCleanup(self._stop)

    def buildRig(self, **limits: Any) -> GroupsRig:
        """Make a coordinator."""
        return GroupsRig(**limits)

    def _stop(self) -> None:
        self.rig.groups.stop()
        # What the log has yet to commit.
        self.rig.clock.advance(self.rig.log.commitSeconds)
        self.assertEqual(self.rig.failures, [])
        purgatory = self.rig.purgatory
        self.assertEqual((purgatory.watched, purgatory.delayed, self.rig.clock.getDelayedCalls()), (0, 0, []))

    def consumer(self, **joining: Any) -> Consumer:
        """A client that wants to join."""
        return Consumer(self.rig, **joining)

    def joined(self, *consumers: Consumer) -> tuple[Consumer, ...]:
        """Have consumers join a group that was empty, wait until they have, and return them."""
        for consumer in consumers:
            self.assertIsNone(consumer.join())
        for _ in range(40):
            self.rig.wait(STEP_SECONDS)
            if all(consumer.waiting is None for consumer in consumers):
                break
        group = self.rig.group(consumers[0].request.groupId)
        self.assertEqual({consumer.generation for consumer in consumers}, {group.generation})
        return consumers

    def stable(self, *consumers: Consumer) -> tuple[Consumer, ...]:
        """The same, and have them sync."""
        self.joined(*consumers)
        for consumer in consumers:
            consumer.sync()
        self.rig.wait()
        self.assertIs(self.rig.group().state, State.STABLE)
        return consumers


class OffsetsTestCase(GroupsTestCase):
    """A test with a topic of two partitions."""

    def setUp(self) -> None:
        super().setUp()
        self.first, self.second = self.rig.log.createTopic("events", 2).partitions

    def simple(self, partition: Partition, offset: int, groupId: str = "readers", metadata: str = "") -> ErrorCode:
        """Commit as a client that is no member."""
        return self.consumer(groupId=groupId).commit(partition, offset, metadata)

    def offsets(self, groupId: str = "readers") -> dict[Partition, int]:
        """What is committed."""
        return {partition: offset.offset for partition, offset in self.rig.group(groupId).offsets.items()}

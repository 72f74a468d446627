"""The group coordinator under members that come and go as they like."""

from __future__ import annotations

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.groups.groupstate import State
from admission.kafka.broker.groups.member import JoinResult, SyncResult
from admission.kafka.storage.itable import LogFailed
from tests.unit.kafka.broker.groups.groupsfixture import Consumer, GroupsRig

SESSION_SECONDS = (6.0, 10.0, 25.0)
REBALANCE_SECONDS = (5.0, 20.0, 60.0)
PARTITIONS = 4
MAX_CONSUMERS = 6
WHICH = st.integers(0, 1000)
SECONDS = st.sampled_from([0.0, 0.1, 1.0, 3.0, 5.9, 6.1, 11.0, 26.0, 61.0])

# A phase may take the initial delay on top, and once more the time of a session that has been ignored while it lasted.
LONGEST_PHASE_SECONDS = 3.0 + max(REBALANCE_SECONDS) + max(SESSION_SECONDS) + 1.0

SETTLING_ROUNDS = 50
"""Of two seconds: enough for the longest rebalance timeout and then the longest session."""


class Owner(Consumer):
    """
    A consumer that plays by the rules, as long as it wants to: it syncs when
    it has joined, and leads if it has to.

    @ivar isAlive: whether it does anything at all.
    @ivar syncsLate: whether it takes its time to ask for its assignment.
    """

    case: OwnersRig
    isAlive = True
    syncsLate = False

    def _joined(self, joined: JoinResult) -> None:
        super()._joined(joined)
        if not self.syncsLate:
            self.ask()

    def ask(self) -> None:
        """Sync; the leader deals the partitions out."""
        assert self.joined is not None
        if not self.leads:
            self.sync({})
            return
        hands: dict[str, list[int]] = {each.memberId: [] for each in self.joined.members}
        for partition in range(PARTITIONS):
            hands[list(hands)[partition % len(hands)]].append(partition)
        self.sync({memberId: bytes(hand) for memberId, hand in hands.items()})

    def _synced(self, synced: SyncResult) -> None:
        super()._synced(synced)
        self.case.owned(self)


class OwnersRig(GroupsRig):
    """
    Writes down who was ever told to own what.

    @ivar owners: by generation and partition; a group that comes into being
        once more counts from the beginning, as another.
    """

    def __init__(self) -> None:
        self.owners: dict[tuple[int, int, int], str] = {}
        self.conflicts: list[str] = []
        super().__init__()

    def owned(self, owner: Owner) -> None:
        """C{owner} has got its assignment."""
        name = owner.request.instanceId or owner.memberId
        for partition in owner.assignment or b"":
            key = self.group().number, owner.generation, partition
            if self.owners.setdefault(key, name) != name:
                self.conflicts.append(f"{partition} of generation {owner.generation}: {name}")


class GroupsMachine(RuleBasedStateMachine):
    """
    Consumers of one group join, sync, send heartbeats, fall silent, hang up,
    come back under their name, leave and crash, and so does the coordinator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rig = OwnersRig()
        self.consumers: list[Owner] = []
        self.phaseSince = 0.0
        self.phase: tuple[State, int] | None = None

    def living(self) -> list[Owner]:
        """Consumers that have not crashed."""
        return [consumer for consumer in self.consumers if consumer.isAlive]

    def chosen(self, which: int) -> Owner:
        """One of them."""
        living = self.living()
        return living[which % len(living)]

    @precondition(lambda self: len(self.living()) < MAX_CONSUMERS)
    @rule(
        session=st.sampled_from(SESSION_SECONDS),
        rebalance=st.sampled_from(REBALANCE_SECONDS),
        mustKnowItsId=st.booleans(),
        instanceId=st.sampled_from([None, None, None, "x", "y"]),
        syncsLate=st.booleans(),
    )
    def appear(
        self, session: float, rebalance: float, mustKnowItsId: bool, instanceId: str | None, syncsLate: bool
    ) -> None:
        """A new consumer wants to join, or one of a name that is taken."""
        consumer = Owner(
            self.rig,
            sessionSeconds=session,
            rebalanceSeconds=rebalance,
            mustKnowItsId=mustKnowItsId,
            instanceId=instanceId,
        )
        consumer.syncsLate = syncsLate
        self.consumers.append(consumer)
        consumer.join()

    @precondition(lambda self: self.living())
    @rule(which=WHICH, isChanged=st.booleans())
    def join(self, which: int, isChanged: bool) -> None:
        """A consumer joins, again or with the id it was told."""
        consumer = self.chosen(which)
        if consumer.waiting is None:
            metadata = b"changed" if isChanged else b"all"
            consumer.join(protocols=(("range", metadata),))

    @precondition(lambda self: self.living())
    @rule(which=WHICH)
    def ask(self, which: int) -> None:
        """A consumer asks for its assignment, maybe late, maybe again."""
        consumer = self.chosen(which)
        if consumer.waiting is None and consumer.joined is not None:
            consumer.ask()

    @rule()
    def playOn(self) -> None:
        """All who live do what their heartbeats tell them to."""
        for consumer in self.living():
            if consumer.waiting is not None:
                continue
            if not consumer.memberId:
                # Its join failed: it has no id to send a heartbeat under, and under its name there may be another.
                consumer.join()
                continue
            errorCode = consumer.heartbeat()
            if errorCode is ErrorCode.unknown_member_id and consumer.joined is not None:
                consumer.memberId, consumer.joined = "", None
            if errorCode is ErrorCode.fenced_instance_id:
                consumer.isAlive = False
            elif errorCode is not ErrorCode.none:
                consumer.join()
            elif consumer.assignment is None:
                consumer.ask()

    @precondition(lambda self: self.living())
    @rule()
    def settle(self) -> None:
        """If all living consumers play on, they share everything in the end, and no other is left."""
        self.rig.log.commitSeconds, self.rig.log.error = 0.0, None
        for _ in range(SETTLING_ROUNDS):
            self.rig.wait(2.0)
            self.playOn()
        living = self.living()
        if not living:
            # The last one was fenced by another of its name, which had crashed.
            left = self.rig.groups.get("readers")
            assert left is None or not left.members, left
            return
        # Of two with one name, the one that came later is left.
        group = self.rig.group()
        assert group.state is State.STABLE, group
        assert set(group.members) == {consumer.memberId for consumer in living}, (group.members, living)
        hands = [partition for consumer in living for partition in consumer.assignment or b""]
        assert sorted(hands) == list(range(PARTITIONS)), hands

    @precondition(lambda self: self.living())
    @rule(which=WHICH)
    def beat(self, which: int) -> None:
        """A consumer sends heartbeats and does nothing else: slow, but alive."""
        consumer = self.chosen(which)
        if consumer.waiting is None and consumer.joined is not None:
            consumer.heartbeat()

    @precondition(lambda self: self.living())
    @rule(which=WHICH)
    def leave(self, which: int) -> None:
        """A consumer leaves."""
        consumer = self.chosen(which)
        consumer.leave()
        consumer.isAlive = False

    @precondition(lambda self: self.living())
    @rule(which=WHICH, hangsUp=st.booleans())
    def crash(self, which: int, hangsUp: bool) -> None:
        """A consumer is gone, and its connection maybe too."""
        consumer = self.chosen(which)
        consumer.isAlive = False
        if hangsUp and consumer.waiting is not None:
            consumer.hangUp()

    @precondition(lambda self: self.living())
    @rule(which=WHICH, seconds=SECONDS)
    def throttle(self, which: int, seconds: float) -> None:
        """A consumer is over its quota."""
        self.rig.groups.throttled(self.chosen(which), seconds)

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.rig.wait(seconds)

    @rule(seconds=st.sampled_from([0.0, 0.0, 0.5, 2.0]), isFull=st.booleans())
    def storeSlowly(self, seconds: float, isFull: bool) -> None:
        """The log takes its time, or has no room."""
        self.rig.log.commitSeconds = seconds
        self.rig.log.error = LogFailed("full") if isFull else None

    @rule(isCommitted=st.booleans())
    def restart(self, isCommitted: bool) -> None:
        """The coordinator is killed; all connections break."""
        if isCommitted:
            self.rig.wait()
        for consumer in self.consumers:
            if consumer.waiting is not None:
                consumer.hangUp()
        self.rig.kill()
        self.phase = None

    @invariant()
    def ownersAreUnique(self) -> None:
        """No partition has two owners in the same generation."""
        assert not self.rig.conflicts, self.rig.conflicts
        assert not self.rig.failures, self.rig.failures

    @invariant()
    def allAreWaitedFor(self) -> None:
        """
        Each member is waited for by its session, unless it waits for an answer; a group that is not at rest
        waits for something; what is counted is there.
        """
        group = self.rig.groups.get("readers")
        if group is None:
            assert self.rig.groups.sizeBytes == 0
            return
        for member in group.members.values():
            assert member.session.watcher is not None or member.waiting is not None, member
        assert group.joined <= set(group.members)
        assert group.unsynced <= set(group.members)
        assert (group.state in (State.PREPARING, State.COMPLETING)) <= (
            group.phase is not None or not group.unsynced
        ), group
        assert group.phase is None or group.phase.watcher is not None
        assert (group.state is State.EMPTY) <= (not group.members)
        assert set(group.instances.values()) <= set(group.members)
        if group.state is not State.PREPARING:
            assert not group.joined

    @invariant()
    def phasesEnd(self) -> None:
        """Joining and syncing end within their bounds."""
        group = self.rig.groups.get("readers")
        now = self.rig.clock.seconds()
        phase = None
        if group is not None and group.state in (State.PREPARING, State.COMPLETING):
            phase = group.state, group.generation
        if phase != self.phase:
            self.phase, self.phaseSince = phase, now
        hasStatics = group is not None and bool(group.instances)
        if phase is not None and not hasStatics:
            assert now - self.phaseSince <= LONGEST_PHASE_SECONDS, group

    def teardown(self) -> None:
        """When all are silent, the group comes to nothing and leaves no timer behind."""
        for consumer in self.consumers:
            if consumer.waiting is not None:
                consumer.hangUp()
        self.rig.log.commitSeconds, self.rig.log.error = 0.0, None
        self.rig.clock.advance(3600.0)
        self.rig.clock.advance(3600.0)
        assert self.rig.groups.get("readers") is None, self.rig.groups.get("readers")
        assert self.rig.purgatory.watched == 0
        self.rig.groups.stop()
        assert self.rig.clock.getDelayedCalls() == []


class GroupStatesTests(SynchronousTestCase):
    """Groups keep their promises whatever their members do."""

    def test_states(self) -> None:
        """See L{GroupsMachine}."""
        run_state_machine_as_test(
            GroupsMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
        )

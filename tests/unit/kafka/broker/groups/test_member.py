"""Tests for L{admission.kafka.broker.groups.member}."""

from __future__ import annotations

from attrs import define
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.groups.member import Connections, Participant, Session
from admission_plugins.purgatory import CallLaterPurgatory, WheelPurgatory
from admission_plugins.wheel import TimingWheel
from tests.unit.kafka.broker.groups.groupsfixture import memberNamed


@define(eq=False, kw_only=True)
class Busy(Participant):
    """A participant that may await a response."""

    isBusy: bool = False

    @property
    def isAwaitingResponse(self) -> bool:
        return self.isBusy


class SessionTests(SynchronousTestCase):
    """L{Session} expires when nothing has been heard for its time."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.purgatory = WheelPurgatory(TimingWheel(self.clock))
        self.expired: list[float] = []
        self.participant = Busy(memberId="a", sessionSeconds=10.0)
        self.session = self.participant.session = Session(
            self.purgatory,
            self.clock.seconds,
            "group",
            self.participant,
            lambda: self.expired.append(self.clock.seconds()),
        )

    def wait(self, seconds: float) -> None:
        """Let time pass in steps."""
        self.clock.pump([0.5] * int(seconds * 2))

    def test_expires(self) -> None:
        """In time, and once."""
        self.session.start(10.0)
        self.wait(9.5)
        self.assertEqual(self.expired, [])
        self.wait(30.0)
        self.assertEqual(self.expired, [10.0])
        self.assertEqual(self.purgatory.watched, 0)

    def test_renewed(self) -> None:
        """Hearing of the participant moves the deadline and touches no timer."""
        # Where each operation has a timer of the clock.
        purgatory = CallLaterPurgatory(self.clock)
        session = Session(
            purgatory, self.clock.seconds, "group", self.participant, lambda: self.expired.append(self.clock.seconds())
        )
        session.start(10.0)
        timers = self.clock.getDelayedCalls()
        for _ in range(3):
            self.wait(3.0)
            session.start(10.0)
            self.assertEqual(self.clock.getDelayedCalls(), timers)
        self.wait(9.5)
        self.assertEqual(self.expired, [])
        self.wait(0.5)
        self.assertEqual(self.expired, [19.0])
        # One expiration, however often its timer had to look again.
        self.assertEqual(purgatory.expirations, 1)

    def test_shortened(self) -> None:
        """A shorter time holds at once."""
        self.session.start(300.0)
        self.session.start(10.0)
        self.wait(12.0)
        self.assertEqual(self.expired, [10.0])

    def test_awaitingResponse(self) -> None:
        """While the participant awaits a response it does not expire; its session has to be started again then."""
        self.participant.isBusy = True
        self.session.start(10.0)
        self.wait(20.0)
        self.assertEqual((self.expired, self.purgatory.watched), ([], 0))
        self.participant.isBusy = False
        self.session.start(10.0)
        self.wait(20.0)
        self.assertEqual(self.expired, [30.0])

    def test_throttled(self) -> None:
        """While the participant is throttled its time does not run."""
        self.session.start(10.0)
        self.wait(5.0)
        self.session.throttled(7.0)
        self.wait(20.0)
        self.assertEqual(self.expired, [17.0])

    def test_throttledTwice(self) -> None:
        """Times that overlap are added once."""
        self.session.start(10.0)
        self.session.throttled(4.0)
        self.wait(2.0)
        self.session.throttled(1.0)
        self.session.throttled(6.0)
        self.wait(30.0)
        self.assertEqual(self.expired, [18.0])


class ConnectionsTests(SynchronousTestCase):
    """L{Connections} knows by which connection participants were heard of last."""

    def setUp(self) -> None:
        clock = Clock()
        purgatory = WheelPurgatory(TimingWheel(clock))
        self.connections = Connections()
        self.participants = [Participant(memberId=each, sessionSeconds=10.0) for each in "ab"]
        for participant in self.participants:
            participant.session = Session(purgatory, clock.seconds, "group", participant, lambda: None)
            participant.session.start(10.0)

    def deadlines(self) -> list[float]:
        """Until when they have to be heard of."""
        return [participant.session.deadlineSeconds for participant in self.participants]

    def test_last(self) -> None:
        """Only participants that used the connection last are throttled with it."""
        first, second = self.participants
        self.connections.heard(first, "x")
        self.connections.heard(second, "x")
        self.connections.heard(second, "y")
        self.connections.throttled("x", 5.0)
        self.connections.throttled("z", 100.0)
        self.assertEqual(self.deadlines(), [15.0, 10.0])

    def test_shared(self) -> None:
        """Several may share one."""
        for participant in self.participants:
            self.connections.heard(participant, "x")
        self.connections.throttled("x", 5.0)
        self.assertEqual(self.deadlines(), [15.0, 15.0])

    def test_lost(self) -> None:
        """A connection that is closed is not kept, and its participants may be heard of by another."""
        for participant in self.participants:
            self.connections.heard(participant, "x")
        self.connections.lost("x")
        self.connections.lost("y")
        self.assertEqual([each.connection for each in self.participants], [None, None])
        self.assertEqual(self.connections._participants, {})
        self.connections.heard(self.participants[0], "y")
        self.connections.throttled("y", 5.0)
        self.assertEqual(self.deadlines(), [15.0, 10.0])

    def test_forgotten(self) -> None:
        """Nothing is kept of participants that are gone, nor of their connections."""
        for participant in self.participants:
            self.connections.heard(participant, "x")
            self.connections.heard(participant, None)
            self.connections.heard(participant, "x")
            self.connections.forget(participant)
            self.connections.forget(participant)
        self.connections.throttled("x", 5.0)
        self.assertEqual((self.deadlines(), self.connections._participants), ([10.0, 10.0], {}))


class MemberTests(SynchronousTestCase):
    """L{Member} knows what it has said."""

    def test_metadata(self) -> None:
        """What a member says in a protocol that it does not speak is nothing."""
        member = memberNamed("a", "range", "sticky")
        self.assertEqual((member.metadata("sticky"), member.metadata("robin"), member.metadata(None)), (b"a", b"", b""))

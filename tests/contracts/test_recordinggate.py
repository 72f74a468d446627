"""L{admission.testing.recordinggate} and L{admission.testing.recordingwaiter}."""

from __future__ import annotations

from random import Random

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.factory import AdmittedFactory
from admission.interfaces import FRAMES
from admission.testing.faketransport import FakeTransport
from admission.testing.recordinggate import Asked, RecordingGate
from admission.testing.recordingwaiter import RecordingWaiter
from admission.testing.scriptedpool import ScriptedPool
from admission_plugins.orders import RandomRounds
from tests.kit.admitted import RecordingProtocol, RecordingWatch, framed


class RecordingGateTests(SynchronousTestCase):
    """L{RecordingGate}."""

    def setUp(self) -> None:
        """Put a connection behind a gate."""
        self.clock = Clock()
        self.pool = ScriptedPool()
        random = Random(0)
        self.gate = RecordingGate(self.pool, self.clock, RandomRounds(random), RandomRounds(random), maxRequests=1)
        self.protocol = RecordingProtocol()
        factory = AdmittedFactory(lambda: self.protocol, self.gate, self.clock, RecordingWatch())  # type: ignore[arg-type]
        self.protocol.factory = factory
        self.transport = FakeTransport(self.clock, self.protocol)
        self.transport.connect()
        self.addCleanup(self.hangUp)

    def hangUp(self) -> None:
        """Leave no connection behind."""
        self.transport.abortConnection()
        self.clock.advance(0)

    def test_connection(self) -> None:
        """It shows what a connection asks for on the way of a request, and at its own end."""
        self.transport.peerSends(framed(b"hello"))
        self.clock.advance(0)
        self.assertEqual(self.protocol.requests, [b"hello"])
        me = self.protocol
        self.assertEqual(self.gate.asked, [Asked("tryAllocate", me, 5), Asked("tryBegin", me), Asked("end")])
        self.gate.asked.clear()
        self.hangUp()
        self.assertEqual(self.gate.asked, [Asked("responsesStalled", me.link, isGranted=False), Asked("forget", me)])

    def test_refused(self) -> None:
        """What is refused shows as such, and is granted later as a gate does it."""
        self.pool.refuse()
        self.transport.peerSends(framed(b"hello"))
        self.clock.advance(0)
        self.assertEqual(self.gate.asked, [Asked("press"), Asked("tryAllocate", self.protocol, 5, isGranted=False)])
        self.assertEqual((self.protocol.requests, self.gate.waitingForMemory), ([], 1))
        self.pool.relent()
        self.clock.advance(0)
        self.assertEqual(self.protocol.requests, [b"hello"])

    def test_turns(self) -> None:
        """Turns are recorded likewise."""
        first, second = RecordingWaiter(), RecordingWaiter()
        self.assertEqual([self.gate.tryBegin(each) for each in (first, second)], [True, False])
        self.gate.end()
        self.gate.forget(second)
        self.assertEqual(
            self.gate.asked,
            [
                Asked("tryBegin", first),
                Asked("tryBegin", second, isGranted=False),
                Asked("end"),
                Asked("forget", second),
            ],
        )
        self.gate.close()


class RecordingWaiterTests(SynchronousTestCase):
    """L{RecordingWaiter}."""

    def test_records(self) -> None:
        """It keeps what it was granted and tells who wants to know."""
        told: list[RecordingWaiter] = []
        waiter = RecordingWaiter(5, told.append)
        lease = ScriptedPool().charge(5, FRAMES)
        waiter.leaseGranted(lease)
        waiter.turnGranted()
        self.assertEqual(RecordingWaiter(holder="alice").holder, "alice")
        self.assertEqual((waiter.wantedBytes, waiter.leases, waiter.turns, told), (5, [lease], 1, [waiter, waiter]))

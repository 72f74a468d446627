"""L{admission.connection.unitofwork}."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from admission.admission import Admission
from admission.connection.unitofwork import WorkRefused
from admission.interfaces import DEFAULT, QuotaEntity, Traits
from admission.recording.events import EXPIRE, LimitEvent, RequestEvent
from tests.kit.keptevents import Kept


class WorkTests(SynchronousTestCase):
    """L{Admission.work}."""

    def setUp(self) -> None:
        self.reactor: Any = MemoryReactorClock()
        self.reactor.getThreadPool = lambda: None
        self.kept = Kept()

    def make(self, *quota: str) -> Admission:
        """An admission that records."""
        return Admission(pool="bounded:1MiB", quota=quota, export=self.kept, reactor=self.reactor, clock=self.reactor)

    def events(self) -> list[RequestEvent]:
        """What was recorded of requests."""
        return [each for each in self.kept.events if isinstance(each, RequestEvent)]

    def test_charged(self) -> None:
        """What work has used is charged, its client has to wait, and until then none of its work is admitted."""
        admission = self.make("client-bytes:produce=100:fetch=1000:algorithm=bucket")
        with admission.work("put", clientId="alice", receivedBytes=300) as work:
            work.sentBytes = 10
        self.assertEqual(work.delaySeconds, 2.0)
        refusal = self.assertRaises(WorkRefused, admission.work("put", clientId="alice").__enter__)
        self.assertEqual(refusal.decision.delaySeconds, 2.0)
        self.assertIn("told to wait", str(refusal))
        with admission.work("put", clientId="bob"):
            self.reactor.advance(2.0)
        with admission.work("put", clientId="alice"):
            pass
        self.assertEqual([each.kind for each in self.events()], ["put"] * 4)
        self.assertEqual([each.responseBytes for each in self.events()], [10, 0, 0, 0])

    def test_forgotten(self) -> None:
        """Work that is never entered warns where it is forgotten."""
        admission = self.make()
        admission.work("put", clientId="alice")
        self.assertRaises(TypeError, admission.work, "put", receivedBytes=-1)
        with admission.work("put"):
            pass
        (warning,) = self.flushWarnings()
        self.assertIs(warning["category"], RuntimeWarning)
        self.assertIn("work(...)", warning["message"])
        self.assertEqual(warning["filename"], __file__)

    def test_inProgress(self) -> None:
        """
        Work is in progress until the context is left, whatever is awaited within; a request that waits for others is
        not.
        """
        admission = self.make("concurrency:total=1")
        answers: list[Deferred[None]] = []

        async def serve(traits: Traits = Traits()) -> None:  # noqa: B008
            with admission.work("call", clientId="alice", traits=traits):
                answers.append(Deferred())
                await answers[-1]

        first = Deferred.fromCoroutine(serve())
        second = Deferred.fromCoroutine(serve())
        self.failureResultOf(second, WorkRefused)
        third = Deferred.fromCoroutine(serve(Traits(waitsForOthers=True)))
        answers[0].callback(None)
        self.successResultOf(first)
        fourth = Deferred.fromCoroutine(serve())
        for answer in answers[1:]:
            answer.callback(None)
        for each in (third, fourth):
            self.successResultOf(each)

    def test_empty(self) -> None:
        """Work without bytes that takes no time is a request as any other, also while others are in progress."""
        admission = self.make("requests:rate=1/10s:burst=2")
        with admission.work("get", clientId="alice"), admission.work("get", clientId="alice"):
            refusal = self.assertRaises(WorkRefused, admission.work("get", clientId="alice").__enter__)
        self.assertEqual(refusal.decision.delaySeconds, 10.0)
        with admission.work("get", clientId="bob"):
            self.reactor.advance(10.0)
        with admission.work("get", clientId="alice"):
            pass

    def test_failing(self) -> None:
        """Work that fails is over, was charged, and fails on."""
        admission = self.make("client-bytes:produce=100:algorithm=bucket")
        with self.assertRaises(ZeroDivisionError), admission.work("put", peer="192.0.2.1", receivedBytes=300) as work:
            raise ZeroDivisionError
        self.assertEqual(work.delaySeconds, 2.0)
        (event,) = self.events()
        self.assertEqual((event.clientId, event.decision, event.isCounted), ("192.0.2.1", EXPIRE, True))

    def test_limits(self) -> None:
        """New limits forgive what is owed, and are recorded."""
        admission = self.make("client-bytes:produce=100:algorithm=bucket")
        with admission.work("put", clientId="alice", receivedBytes=3000):
            pass
        admission.setLimits(QuotaEntity(clientId=DEFAULT), {"received_byte_rate": 1e6})
        with admission.work("put", clientId="alice"):
            pass
        self.assertEqual([each.value for each in self.kept.events if isinstance(each, LimitEvent)], [100.0, 1e6])

    def test_swept(self) -> None:
        """Where no port of ours listens, policies forget clients all the same."""
        admission = self.make("client-bytes:produce=100:algorithm=bucket")
        for number in range(100):
            with admission.work("put", clientId=f"client-{number}", receivedBytes=1):
                pass
        heldBytes = admission.control.sizeBytes
        self.reactor.advance(1000)
        with admission.work("put", clientId="alice"):
            pass
        self.assertLess(admission.control.sizeBytes, heldBytes / 10)

    def test_mistakes(self) -> None:
        """What is no number of bytes is refused where it is written, and the work is over all the same."""
        admission = self.make()
        for wrong in ("7", -5, 1.5, None):
            with self.assertRaisesRegex(TypeError, "write a number of bytes"), admission.work("put") as work:
                work.sentBytes = wrong
            self.assertRaises(TypeError, admission.work, "put", receivedBytes=wrong)
        self.assertEqual([each.decision for each in self.events()], [EXPIRE] * 4)

    def test_stopping(self) -> None:
        """A server that stops waits for work, for the grace period at most, and none may begin any more."""
        admission = self.make()
        for isAwaited in (True, False):
            admission.isStopping = False
            with admission.work("call", clientId="alice"):
                stopped: list[Any] = []
                admission.stop().addCallback(stopped.append)
                refusal = self.assertRaises(WorkRefused, admission.work("call", clientId="bob").__enter__)
                self.assertEqual(str(refusal), "the server stops")
                self.assertEqual(stopped, [])
                if not isAwaited:
                    self.reactor.advance(admission.limits.closeGraceSeconds)
                    self.assertEqual(len(stopped), 1)
            self.reactor.advance(0)
            self.assertEqual(len(stopped), 1)

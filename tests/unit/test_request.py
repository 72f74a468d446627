"""Tests for L{admission.request}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import FRAMES, Outcome
from admission.request import ServerRequest
from admission_plugins.bounded import BoundedPool


class ServerRequestTests(SynchronousTestCase):
    """L{ServerRequest} says what has become of a request."""

    def setUp(self) -> None:
        self.pool = BoundedPool(1000)
        self.request = ServerRequest(None, 10, 1.0)
        self.request.lease = self.pool.tryAllocate(10)

    def test_frame(self) -> None:
        """Its bytes can be seen and changed for as long as it has its memory."""
        self.request.frame[:2] = b"ab"
        self.assertEqual(bytes(self.request.frame[:2]), b"ab")
        self.request.release(2.0)
        self.assertRaises(RuntimeError, lambda: self.request.frame)
        self.assertRaises(RuntimeError, lambda: ServerRequest(None, 10, 1.0).frame)

    def test_release(self) -> None:
        """Its memory is given back once, and the first time counts."""
        for now in (2.0, 3.0):
            self.request.release(now)
        self.assertEqual((self.request.released, self.pool.usedBytesByPurpose[FRAMES]), (2.0, 0))

    def test_endReleases(self) -> None:
        """A request that is over holds no memory, and nobody works on it."""
        self.request.begin(1.5)
        self.request.end(2.0)
        self.assertEqual((self.request.released, self.request.ended, self.request.isWorkedOn), (2.0, 2.0, False))

    def test_once(self) -> None:
        """It is parked, resumed, answered and over once."""
        for step in (self.request.park, self.request.resume, self.request.answer, self.request.end):
            step(2.0)
            self.assertRaises(AssertionError, step, 3.0)

    def test_isWorkedOn(self) -> None:
        """Nobody works on a request that waits, wherever that is."""
        request = self.request
        seen = [request.isWorkedOn]
        for step in (
            lambda: request.begin(1.0),
            request.postpone,
            lambda: request.begin(2.0),
            lambda: request.park(3.0),
            lambda: request.resume(4.0),
        ):
            step()
            seen.append(request.isWorkedOn)
        self.assertEqual(seen, [False, True, False, True, False, True])

    def test_times(self) -> None:
        """The time for which it was parked is not among that for which it was worked on, now and later."""
        request = self.request
        self.assertEqual((request.workedSeconds(5.0), request.parkedSeconds(5.0)), (0.0, 0.0))
        request.begin(2.0)
        self.assertEqual((request.workedSeconds(5.0), request.parkedSeconds(5.0)), (3.0, 0.0))
        request.park(3.0)
        self.assertEqual((request.workedSeconds(5.0), request.parkedSeconds(5.0)), (1.0, 2.0))
        request.resume(6.0)
        self.assertEqual((request.workedSeconds(8.0), request.parkedSeconds(8.0)), (3.0, 3.0))
        request.postpone()
        self.assertEqual(request.workedSeconds(9.0), 0.0)

    def test_outcome(self) -> None:
        """What policies are told of its end: what was measured, and whether its client heard of it."""
        request = self.request
        request.begin(2.0)
        self.assertEqual(request.outcome(5.0), Outcome(True, 3.0, 0.0))
        request.serviceSeconds = 0.5
        request.expire("the client hung up")
        self.assertEqual(request.outcome(5.0), Outcome(False, 0.5, 0.0))
        refused = ServerRequest(None, 10, 1.0)
        refused.reject("over a limit")
        self.assertEqual(refused.outcome(5.0), Outcome(False, 0.0, 0.0))

    def test_repr(self) -> None:
        """It says what it is and how far it has come."""
        request = self.request
        self.assertEqual(repr(request), "<ServerRequest unknown of 10 bytes, under way>")
        request.kind = "Produce"
        request.park(1.0)
        self.assertEqual(repr(request), "<ServerRequest Produce of 10 bytes, parked>")
        request.end(2.0)
        self.assertEqual(repr(request), "<ServerRequest Produce of 10 bytes, over>")

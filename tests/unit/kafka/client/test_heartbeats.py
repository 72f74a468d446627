"""
Tests for L{admission.kafka.client.heartbeats} and L{admission.kafka.client.backoff}.
"""

from __future__ import annotations

import math
from random import Random

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.client.backoff import Backoff
from admission.kafka.client.heartbeats import Heartbeat


class HeartbeatTests(SynchronousTestCase):
    """
    Three timers on one clock, none of which moves another.
    """

    def setUp(self) -> None:
        """
        Begin at a time that is not zero.
        """
        self.clock = Clock()
        self.clock.advance(1000)
        self.heartbeat = Heartbeat(
            self.clock.seconds,
            Backoff(0.1, 1.0, Random(0)),
            intervalSeconds=3,
            sessionTimeoutSeconds=10,
            processTimeoutSeconds=300,
        )

    def test_expiredIsReached(self) -> None:
        """
        A timer has expired when its time has come, and not a moment earlier.
        """
        heartbeat = self.heartbeat
        heartbeat.handedOver()
        for seconds, read in [
            (3, lambda: heartbeat.isBeatDue),
            (10, lambda: heartbeat.isSessionExpired),
            (300, lambda: heartbeat.isProcessExpired),
        ]:
            left = 1000 + seconds - self.clock.seconds()
            self.clock.advance(left - 0.5)
            self.assertFalse(read())
            self.clock.advance(0.5)
            self.assertTrue(read())

    def test_sent(self) -> None:
        """
        The interval counts from when a heartbeat is sent; while one is on its way, no other is due.
        """
        heartbeat = self.heartbeat
        self.clock.advance(3)
        heartbeat.sent()
        self.clock.advance(2)
        heartbeat.received()
        self.assertFalse(heartbeat.isBeatDue)
        self.assertEqual(heartbeat.nextDelaySeconds, 1)
        self.clock.advance(1)
        self.assertTrue(heartbeat.isBeatDue)
        heartbeat.sent()
        self.clock.advance(5)
        self.assertFalse(heartbeat.isBeatDue)

    def test_received(self) -> None:
        """
        An answer restarts the session, sending does not.
        """
        heartbeat = self.heartbeat
        self.clock.advance(6)
        heartbeat.sent()
        self.clock.advance(3)
        heartbeat.received()
        self.clock.advance(9.5)
        self.assertFalse(heartbeat.isSessionExpired)
        heartbeat.sent()
        self.clock.advance(0.5)
        self.assertTrue(heartbeat.isSessionExpired)

    def test_failed(self) -> None:
        """
        After failures the next heartbeat follows the backoff, and the session goes on running out.
        """
        heartbeat = self.heartbeat
        for expected in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
            heartbeat.sent()
            heartbeat.failed()
            self.assertTrue(0.8 * expected <= heartbeat.nextDelaySeconds <= 1.2 * expected)
        heartbeat.sent()
        heartbeat.received()
        heartbeat.sent()
        heartbeat.failed()
        self.assertLessEqual(heartbeat.nextDelaySeconds, 0.12)
        self.clock.advance(10)
        self.assertTrue(heartbeat.isSessionExpired)

    def test_polled(self) -> None:
        """
        The application's time runs while it has something to work on, and only then.
        """
        heartbeat = self.heartbeat
        self.clock.advance(10_000)
        self.assertFalse(heartbeat.isProcessExpired)
        heartbeat.handedOver()
        self.clock.advance(299)
        heartbeat.polled()
        self.clock.advance(299)
        self.assertFalse(heartbeat.isProcessExpired)
        heartbeat.handedOver()
        self.clock.advance(300)
        self.assertTrue(heartbeat.isProcessExpired)

    def test_reset(self) -> None:
        """
        Having joined, all timers begin anew, the application's only if it is at work.
        """
        heartbeat = self.heartbeat
        self.clock.advance(500)
        heartbeat.reset()
        self.assertEqual(
            (heartbeat.isBeatDue, heartbeat.isSessionExpired, heartbeat.nextDelaySeconds), (False, False, 3)
        )
        heartbeat.handedOver()
        self.clock.advance(299)
        heartbeat.reset()
        self.clock.advance(299)
        self.assertFalse(heartbeat.isProcessExpired)

    def test_nextDelay(self) -> None:
        """
        The next thing to look at is whatever comes first; it is never in the past.
        """
        heartbeat = self.heartbeat
        heartbeat.sent()
        self.assertEqual(heartbeat.nextDelaySeconds, 10)
        self.clock.advance(20)
        self.assertEqual(heartbeat.nextDelaySeconds, 0)


class BackoffTests(SynchronousTestCase):
    """
    Waits double up to a longest one, and are never quite the same.
    """

    def test_delays(self) -> None:
        """
        100 ms, twice as much each time, up to one second; a fifth less to a fifth more.
        """
        backoff = Backoff(0.1, 1.0, Random(1))
        for failures, expected in enumerate((0.1, 0.2, 0.4, 0.8, 1.0, 1.0), 1):
            delays = [backoff.delaySeconds(failures) for _ in range(200)]
            self.assertTrue(all(0.8 * expected <= delay <= 1.2 * expected for delay in delays))
            self.assertLess(min(delays), 0.85 * expected)
            self.assertGreater(max(delays), 1.15 * expected)
        self.assertTrue(math.isfinite(backoff.delaySeconds(10**6)))

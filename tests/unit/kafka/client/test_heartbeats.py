"""
Tests for L{admission.kafka.client.heartbeats}; what is sent is tested in
L{tests.unit.kafka.client.test_groupmember}.
"""

from __future__ import annotations

from random import Random

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.client.consumersettings import ConsumerSettings
from admission.kafka.client.errors import Backoff
from admission.kafka.client.heartbeats import HeartbeatTimers


class HeartbeatTimersTests(SynchronousTestCase):
    """Three timers on one clock, none of which moves another."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(1000)
        settings = ConsumerSettings(
            bootstrapServers=(("broker.example.org", 9092),),
            heartbeatIntervalSeconds=3.0,
            sessionTimeoutSeconds=10.0,
            maxPollIntervalSeconds=300.0,
        )
        self.timers = HeartbeatTimers(self.clock.seconds, Backoff(0.1, 1.0, Random(0)), settings)

    def test_expiredIsReached(self) -> None:
        """A timer has expired when its time has come, and not a moment earlier."""
        timers = self.timers
        timers.recordsReturned()
        for seconds, read in [
            (3, lambda: timers.isHeartbeatDue),
            (10, lambda: timers.isSessionExpired),
            (300, lambda: timers.isProcessExpired),
        ]:
            left = 1000 + seconds - self.clock.seconds()
            self.clock.advance(left - 0.5)
            self.assertFalse(read())
            self.clock.advance(0.5)
            self.assertTrue(read())

    def test_sent(self) -> None:
        """The interval counts from when a heartbeat is sent; while one is on its way, no other is due."""
        timers = self.timers
        self.clock.advance(3)
        timers.sent()
        self.clock.advance(2)
        timers.succeeded()
        self.assertFalse(timers.isHeartbeatDue)
        self.assertEqual(timers.nextDelaySeconds, 1)
        self.clock.advance(1)
        self.assertTrue(timers.isHeartbeatDue)
        timers.sent()
        self.clock.advance(5)
        self.assertFalse(timers.isHeartbeatDue)

    def test_succeeded(self) -> None:
        """An answer restarts the session, sending does not."""
        timers = self.timers
        self.clock.advance(6)
        timers.sent()
        self.clock.advance(3)
        timers.succeeded()
        self.clock.advance(9.5)
        self.assertFalse(timers.isSessionExpired)
        timers.sent()
        self.clock.advance(0.5)
        self.assertTrue(timers.isSessionExpired)

    def test_failed(self) -> None:
        """After failures the next heartbeat follows the backoff, and the session goes on running out."""
        timers = self.timers
        for expected in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
            timers.sent()
            timers.failed()
            self.assertTrue(0.8 * expected <= timers.nextDelaySeconds <= 1.2 * expected)
        timers.sent()
        timers.succeeded()
        timers.sent()
        timers.failed()
        self.assertLessEqual(timers.nextDelaySeconds, 0.12)
        self.clock.advance(10)
        self.assertTrue(timers.isSessionExpired)

    def test_pollStarted(self) -> None:
        """The application's time runs while it has something to work on, and only then."""
        timers = self.timers
        self.clock.advance(10_000)
        self.assertFalse(timers.isProcessExpired)
        timers.recordsReturned()
        self.clock.advance(299)
        timers.pollStarted()
        self.clock.advance(299)
        self.assertFalse(timers.isProcessExpired)
        timers.recordsReturned()
        self.clock.advance(300)
        self.assertTrue(timers.isProcessExpired)

    def test_reset(self) -> None:
        """Having joined, all timers begin anew, the application's only if it is at work."""
        timers = self.timers
        self.clock.advance(500)
        timers.reset()
        self.assertEqual((timers.isHeartbeatDue, timers.isSessionExpired, timers.nextDelaySeconds), (False, False, 3))
        timers.recordsReturned()
        self.clock.advance(299)
        timers.reset()
        self.clock.advance(299)
        self.assertFalse(timers.isProcessExpired)

    def test_nextDelay(self) -> None:
        """The next thing to look at is whatever comes first; it is never in the past."""
        timers = self.timers
        timers.sent()
        self.assertEqual(timers.nextDelaySeconds, 10)
        self.clock.advance(20)
        self.assertEqual(timers.nextDelaySeconds, 0)

"""Tests for L{admission.kafka.client.errors}."""

from __future__ import annotations

import math
from random import Random

from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.client.errors import Backoff, BrokerRefused, ClientError, CommitFailed, Disconnected, checkError


class ClientErrorTests(SynchronousTestCase):
    """Errors are sentences."""

    def test_isRetriable(self) -> None:
        """Whether trying again helps is Kafka's to say."""
        self.assertTrue(BrokerRefused(ErrorCode.not_coordinator, "a commit").isRetriable)
        self.assertFalse(BrokerRefused(ErrorCode.unknown_member_id, "a commit").isRetriable)
        self.assertFalse(ClientError.isRetriable)
        self.assertTrue(Disconnected("gone").isRetriable)
        self.assertFalse(CommitFailed("gone").isRetriable)
        self.assertEqual(
            str(BrokerRefused(25, "a heartbeat", "who?")), "a heartbeat was answered UNKNOWN_MEMBER_ID (25): who?"
        )

    def test_checkError(self) -> None:
        """Only an error code other than zero is raised."""
        checkError(0, "a commit")
        error = self.assertRaises(BrokerRefused, checkError, 30, "a commit", "no")
        self.assertEqual(str(error), "a commit was answered GROUP_AUTHORIZATION_FAILED (30): no")


class BackoffTests(SynchronousTestCase):
    """Waits double up to a longest one, and are never quite the same."""

    def test_delays(self) -> None:
        """100 ms, twice as much each time, up to one second; a fifth less to a fifth more."""
        backoff = Backoff(0.1, 1.0, Random(1))
        for failures, expected in enumerate((0.1, 0.2, 0.4, 0.8, 1.0, 1.0), 1):
            delays = [backoff.delaySeconds(failures) for _ in range(200)]
            self.assertTrue(all(0.8 * expected <= delay <= 1.2 * expected for delay in delays))
            self.assertLess(min(delays), 0.85 * expected)
            self.assertGreater(max(delays), 1.15 * expected)
        self.assertTrue(math.isfinite(backoff.delaySeconds(10**6)))

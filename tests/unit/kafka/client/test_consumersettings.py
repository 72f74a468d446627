"""Tests for L{admission.kafka.client.consumersettings}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.client.consumersettings import ConsumerSettings, consumerSettings

BROKER = {"bootstrap.servers": "127.0.0.1:9092"}


class SettingsTests(SynchronousTestCase):
    """Properties by Kafka's names."""

    def test_defaults(self) -> None:
        """The defaults are Kafka's, the session timeout excepted."""
        settings = consumerSettings(BROKER)
        self.assertEqual(settings, ConsumerSettings(bootstrapServers=(("127.0.0.1", 9092),)))
        self.assertEqual(
            (
                settings.sessionTimeoutSeconds,
                settings.heartbeatIntervalSeconds,
                settings.maxPollIntervalSeconds,
                settings.maxPollRecords,
                settings.retryBackoffSeconds,
                settings.retryBackoffMaxSeconds,
                settings.requestTimeoutSeconds,
                settings.autoCommit,
                settings.autoCommitIntervalSeconds,
                settings.autoOffsetReset,
            ),
            (10, 3, 300, 500, 0.1, 1, 30, True, 5, "latest"),
        )

    def test_properties(self) -> None:
        """Times are milliseconds unless they have a unit, sizes bytes, and all properties are known."""
        settings = consumerSettings(
            {
                "bootstrap.servers": "one.example.org:9092, [::1]:9093",
                "group.id": "g",
                "session.timeout.ms": "20000",
                "max.poll.interval.ms": "10m",
                "prefetch.max.bytes": "1MiB",
                "enable.auto.commit": "false",
                "max.poll.records": "7",
                "partition.assignment.strategy": "roundrobin,range",
            }
        )
        self.assertEqual(settings.bootstrapServers, (("one.example.org", 9092), ("::1", 9093)))
        self.assertEqual((settings.groupId, settings.sessionTimeoutSeconds), ("g", 20))
        self.assertEqual((settings.maxPollIntervalSeconds, settings.prefetchMaxBytes), (600, 1 << 20))
        self.assertEqual((settings.autoCommit, settings.maxPollRecords), (False, 7))
        self.assertEqual(settings.assignors, ("roundrobin", "range"))

    def test_mistakes(self) -> None:
        """Settings that cannot be used are refused with the reason."""
        for properties, words in [
            ({}, "bootstrap.servers is missing"),
            ({"bootstrap.servers": "broker"}, "HOST:PORT"),
            ({**BROKER, "sesion.timeout.ms": "1"}, "the nearest is session.timeout.ms"),
            ({**BROKER, "session.timeout.ms": "soon"}, "session.timeout.ms: 'soon' is not a duration"),
            ({**BROKER, "session.timeout.ms": "3000"}, "must be less than"),
            ({**BROKER, "max.poll.records": "0"}, "max.poll.records: '0' is too small: at least 1"),
            ({**BROKER, "max.poll.records": "x"}, "max.poll.records: "),
            ({**BROKER, "enable.auto.commit": "maybe"}, "neither true nor false"),
            ({**BROKER, "auto.offset.reset": "middle"}, "earliest, latest, none"),
            ({**BROKER, "partition.assignment.strategy": "sticky"}, "range, roundrobin"),
            ({**BROKER, "partition.assignment.strategy": ""}, "one or more"),
        ]:
            error = self.assertRaises(ValueError, consumerSettings, properties)
            self.assertIn(words, str(error))

    def test_timeouts(self) -> None:
        """
        The process timeout is the larger of session and poll interval, and a join is waited for five seconds longer
        than the slowest member may take.
        """

        def settings(sessionMs: int, pollMs: int, requestMs: int = 30_000) -> ConsumerSettings:
            return consumerSettings(
                {
                    **BROKER,
                    "session.timeout.ms": str(sessionMs),
                    "max.poll.interval.ms": str(pollMs),
                    "request.timeout.ms": str(requestMs),
                }
            )

        self.assertEqual(settings(10_000, 300_000).processTimeoutSeconds, 300)
        self.assertEqual(settings(10_000, 5_000).processTimeoutSeconds, 10)
        self.assertEqual(settings(10_000, 300_000).joinTimeoutSeconds, 305)
        self.assertEqual(settings(10_000, 10_000).joinTimeoutSeconds, 30)

"""Tests for L{admission.kafka.broker.log.retentionlimits}."""

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.interface import InvalidTopicConfig
from admission.kafka.broker.log.retentionlimits import NO_LIMITS, RetentionLimits

MIB = 1 << 20


class OverrideTests(SynchronousTestCase):
    """A topic may have limits of its own."""

    def test_override(self) -> None:
        """A topic's own settings hold before the defaults, and what is not given stays."""
        default = RetentionLimits(100, 2000, 3000, 4000)
        self.assertEqual(default.overriddenBy({}), default)
        self.assertEqual(default.overriddenBy({"cleanup.policy": "delete"}), default)
        self.assertEqual(default.overriddenBy({"retention.bytes": "7"}), RetentionLimits(7, 2000, 3000, 4000))
        self.assertEqual(default.overriddenBy({"retention.ms": "0"}), RetentionLimits(100, 0, 3000, 4000))
        self.assertEqual(default.overriddenBy({"segment.bytes": "7"}), RetentionLimits(100, 2000, 7, 4000))
        self.assertEqual(default.overriddenBy({"segment.ms": "7"}), RetentionLimits(100, 2000, 3000, 7))

    def test_noLimit(self) -> None:
        """-1 is no limit; for the size of segments, which must have one, it is the default."""
        configs = {"retention.bytes": "-1", "retention.ms": "-1", "segment.bytes": "-1", "segment.ms": "-1"}
        default = RetentionLimits(100, 2000, 3000, 4000)
        self.assertEqual(default.overriddenBy(configs), RetentionLimits(None, None, 3000, None))

    def test_invalid(self) -> None:
        """What is no limit is refused, naming the setting and the value."""
        for setting in ("retention.bytes", "retention.ms", "segment.bytes", "segment.ms"):
            for text in ("", "ten", "-2", "1.0"):
                refused = self.assertRaises(InvalidTopicConfig, NO_LIMITS.overriddenBy, {setting: text})
                self.assertIn(setting, str(refused))
                self.assertIn(repr(text), str(refused))


class SegmentTests(SynchronousTestCase):
    """How large and how old a segment becomes."""

    def test_bytes(self) -> None:
        """
        A segment has at most a quarter of what is kept, but may always have a MiB, unless its own
        limit is smaller.
        """
        for maxBytes, maxSegmentBytes, expected in (
            (None, 1 << 30, 1 << 30),
            (400 * MIB, 1 << 30, 100 * MIB),
            (400 * MIB, 50 * MIB, 50 * MIB),
            (MIB, 1 << 30, MIB),
            (0, 1 << 30, MIB),
            (0, 1000, 1000),
        ):
            self.assertEqual(RetentionLimits(maxBytes, None, maxSegmentBytes, None).segmentBytes, expected)

    def test_age(self) -> None:
        """A segment is appended to for at most a quarter of the age that is kept, and for a second at least."""
        for maxAgeMs, maxSegmentMs, expected in (
            (None, None, None),
            (None, 1000, 1000),
            (4000, 5000, 1000),
            (40_000, 5000, 5000),
            (4000, 500, 1000),
            (0, 500, 1000),
            (80_000, None, 20_000),
        ):
            self.assertEqual(RetentionLimits(None, maxAgeMs, 1000, maxSegmentMs).segmentMs, expected)

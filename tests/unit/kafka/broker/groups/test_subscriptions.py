"""Tests for L{admission.kafka.broker.groups.subscriptions}."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterable

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.groups.subscriptions import NO_TOPICS, Subscription, decodingBytes, subscriptionIn
from tests.kit.subscriptions import subscription


def decoded(*metadata: bytes) -> tuple[Subscription, int]:
    """What they name, and in how many steps that is found out."""
    steps = subscriptionIn(metadata)
    count = 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            return end.value, count


class SubscriptionTests(SynchronousTestCase):
    """What consumers say they read."""

    def topicsIn(self, *metadata: bytes) -> Iterable[str]:
        return sorted(decoded(*metadata)[0].topics)

    def test_names(self) -> None:
        """All names count, each once, in whatever protocol."""
        self.assertEqual(self.topicsIn(subscription("b", "a", "b"), subscription("c", "a")), ["a", "b", "c"])

    def test_noNames(self) -> None:
        """What cannot be understood names nothing, and takes nothing away from what can."""
        whole = subscription("events")
        for damaged in (
            b"",
            b"all",
            whole[:8],
            whole[:12],
            b"\x00\x01\x7f\xff\xff\xff",
            struct.pack(">hi", 1, -1),
            struct.pack(">hih", 1, 1, -1),
            struct.pack(">hih", 1, 1, 1) + b"\xff",
        ):
            self.assertIs(decoded(damaged)[0], NO_TOPICS, damaged)
            self.assertEqual(self.topicsIn(damaged, whole), ["events"])

    def test_tooMany(self) -> None:
        """More than a hundred thousand names are none."""
        for count, expected in ((100_000, 100_000), (100_001, 0)):
            self.assertEqual(len(decoded(subscription(*map(str, range(count))))[0].topics), expected)

    def test_steps(self) -> None:
        """No step decodes more than a hundred names."""
        self.assertGreaterEqual(decoded(subscription(*map(str, range(10_000))))[1], 100)

    def test_size(self) -> None:
        """What is kept is counted, and what is needed meanwhile is known before."""
        for length in (2, 30):
            metadata = subscription(*(f"{number:0{length}}-n" for number in range(20_000)))
            tracemalloc.start()
            try:
                found, _ = decoded(metadata)
                keptBytes, mostBytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            self.assertLess(abs(found.sizeBytes - keptBytes), found.sizeBytes // 10)
            self.assertLessEqual(mostBytes, decodingBytes(metadata))
            del found

"""L{admission.status.history}."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.status.history import MAX_SAMPLES, SAMPLE_SECONDS, History


class StandIn:
    """A document that says what it is told to say."""

    def __init__(self) -> None:
        self.says: dict[str, Any] = {}
        self.isFailing = False

    @property
    def fields(self) -> dict[str, Any]:
        if self.isFailing:
            raise SystemExit
        return self.says


class HistoryTests(SynchronousTestCase):
    """L{History}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.document = StandIn()
        self.history = History(lambda: succeed(self.document.fields), self.clock)

    def samples(self) -> list[dict[str, Any]]:
        """What a client of the port reads."""
        told = json.loads("".join(self.history.pieces()))
        self.assertEqual(told["sampleSeconds"], SAMPLE_SECONDS)
        samples: list[dict[str, Any]] = told["samples"]
        return samples

    def test_taken(self) -> None:
        """The numbers are taken every few seconds, and nothing after the end; what was taken stays."""
        self.history.start()
        self.assertEqual(self.samples(), [])
        for number in (1, 2):
            self.document.says = {"atSeconds": float(number)}
            self.clock.advance(SAMPLE_SECONDS)
        self.history.stop()
        self.history.stop()
        self.clock.advance(SAMPLE_SECONDS)
        self.assertEqual(self.samples(), [{"atSeconds": 1.0}, {"atSeconds": 2.0}])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_numbers(self) -> None:
        """Only numbers are kept: what clients may make long is not."""
        self.document.says = {
            "version": "1",
            "pool": {"usedBytes": 3, "isShort": False, "name": "x"},
            "throttled": {"count": 2, "clients": [{"clientId": "a" * 1000}]},
            "listeners": ["a"],
            "muted": {},
            "disk": {"freeBytes": None},
        }
        self.history.start()
        self.clock.advance(SAMPLE_SECONDS)
        self.assertEqual(
            self.samples(), [{"pool": {"usedBytes": 3, "isShort": False}, "throttled": {"count": 2}, "muted": {}}]
        )

    def test_bounded(self) -> None:
        """An hour is kept, and not more."""
        self.history.start()
        for number in range(MAX_SAMPLES + 5):
            self.document.says = {"atSeconds": number}
            self.clock.advance(SAMPLE_SECONDS)
        samples = self.samples()
        self.assertEqual((len(samples), samples[0], samples[-1]), (360, {"atSeconds": 5}, {"atSeconds": 364}))

    def test_failing(self) -> None:
        """A document that cannot be made is logged, and asked again."""
        self.document.isFailing = True
        self.history.start()
        self.clock.advance(SAMPLE_SECONDS)
        self.assertEqual(len(self.flushLoggedErrors(SystemExit)), 1)
        self.document.isFailing = False
        self.document.says = {"atSeconds": 1}
        self.clock.advance(SAMPLE_SECONDS)
        self.assertEqual(self.samples(), [{"atSeconds": 1}])

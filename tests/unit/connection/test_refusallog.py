"""L{admission.connection.refusallog}."""

from __future__ import annotations

import sys
import warnings
from io import StringIO

from twisted.logger import LogBeginner, LogEvent, LogPublisher, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from admission.connection import refusallog
from admission.connection.refusallog import MAX_LINES, MAX_LINES_OF_ADDRESS, UNTOLD, RefusalLog

REASON = "a frame of -1 bytes was announced"


def linesOf(events: list[LogEvent]) -> list[str]:
    """What the log of refusals said; garbage of other tests may be found at any moment, which a pool reports."""
    return [formatEvent(event) for event in events if event["log_namespace"].endswith(RefusalLog.__name__)]


class RefusalLogTests(SynchronousTestCase):
    """How much is logged of what peers make us do."""

    def setUp(self) -> None:
        self.refusals = RefusalLog()

    def refuse(self, host: str, count: int = 1) -> list[str]:
        """
        Refuse connections of an address.

        @return: the lines that were logged.
        """
        with capturedLogs() as events:
            for number in range(count):
                self.refusals.refused(host, f"{host}:{number}", REASON)
        return linesOf(events)

    def sweep(self) -> list[str]:
        """@return: the lines that the sweep logs."""
        with capturedLogs() as events:
            self.refusals.sweep()
        return linesOf(events)

    def test_nobodyReadsIt(self) -> None:
        """Where Twisted's log was not begun, and nobody else reads it, a warning says so, once."""
        publisher = LogPublisher()
        beginner = LogBeginner(publisher, StringIO(), sys, warnings)
        self.patch(refusallog, "globalLogPublisher", publisher)
        self.patch(refusallog, "globalLogBeginner", beginner)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.refuse("192.0.2.1", 2)
        self.assertEqual([str(each.message) for each in told], [UNTOLD])
        self.refusals = RefusalLog()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertEqual(len(self.refuse("192.0.2.1")), 1)

        publisher.addObserver(lambda event: None)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.refusals = RefusalLog()
            self.refuse("192.0.2.1")
            beginner.beginLoggingTo((), redirectStandardIO=False)
            self.refusals = RefusalLog()
            self.refuse("192.0.2.1")
        self.assertEqual(told, [])

    def test_reason(self) -> None:
        """A refusal is logged with its peer and its reason."""
        self.assertEqual(
            self.refuse("192.0.2.1"), ["closing the connection of 192.0.2.1:0: a frame of -1 bytes was announced"]
        )
        self.assertEqual(self.sweep(), [])

    def test_ofAddress(self) -> None:
        """One address does not keep the reasons of others out of the log, and of it there is a number."""
        self.assertEqual(len(self.refuse("192.0.2.1", 10_000)), MAX_LINES_OF_ADDRESS)
        self.assertEqual(len(self.refuse("192.0.2.2", MAX_LINES_OF_ADDRESS + 3)), MAX_LINES_OF_ADDRESS)
        self.assertEqual(
            self.sweep(),
            [
                "closed 9980 more connections of 192.0.2.1 for such reasons",
                "closed 3 more connections of 192.0.2.2 for such reasons",
            ],
        )

    def test_inAll(self) -> None:
        """
        However many addresses there are, the log has a limited number of lines, and no more
        addresses are remembered.
        """
        lines = [line for number in range(5000) for line in self.refuse(f"2001:db8::{number:x}")]
        self.assertEqual(len(lines), MAX_LINES)
        self.assertEqual(
            self.sweep(), [f"closed {5000 - MAX_LINES} more connections of other addresses for such reasons"]
        )

    def test_anew(self) -> None:
        """After a sweep, the log has room again."""
        for _ in range(3):
            self.assertEqual(len(self.refuse("192.0.2.1", 2 * MAX_LINES)), MAX_LINES_OF_ADDRESS)
            self.assertEqual(len(self.sweep()), 1)
        self.assertEqual(self.sweep(), [])

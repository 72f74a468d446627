"""Tests for L{admission.profiling.reports}."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import LogLevel, capturedLogs, formatEvent

from admission.profiling.reports import MemoryReports, htmlOf, textOf
from tests.unit.profiling.profiledthings import MIB, NAME, ProfilerTestCase, Thing


class ReportTests(ProfilerTestCase):
    """What people read."""

    def test_text(self) -> None:
        """The text has the groups, the rest and what changed."""
        self.take()
        self.things = [Thing(bytearray(MIB)) for _ in range(3)]
        self.claims = {"held": 3 * MIB}
        self.grow(4 * MIB)
        text = textOf(self.take())
        self.assertIn("Memory, snapshot 2 of boot, 2023-11-14 22:13:", text)
        self.assertIn("at the start 50 MiB private, since then +4 MiB; in the ledger +3 MiB", text)
        self.assertRegex(text, r"\n  things +3 +3 MiB +3 MiB +\d+ B\n")
        self.assertIn("Where the rest may be:", text)
        self.assertRegex(text, rf"Changed most since snapshot 1:\n(.*\n)+? *{NAME} \| +3 \|")

    def test_notes(self) -> None:
        """Where numbers are estimates, that is said."""
        document = self.take()
        document["heap"]["stride"] = 3
        document["groups"][0].update(isSampled=True, isCut=True)
        text = textOf(document)
        for words in ("one container in 3", "a sample of the objects: things", "more than that: things"):
            self.assertIn(words, text)

    def test_html(self) -> None:
        """The page needs nothing from elsewhere, and names are only text."""
        document = self.take()
        document["heap"]["largest"] = [["<script>", 1, 2]]
        page = htmlOf(document)
        self.assertIn("&lt;script&gt;", page)
        self.assertNotIn("<script", page)
        for elsewhere in ("http:", "https:", "src=", "href=", "@import"):
            self.assertNotIn(elsewhere, page)


class MemoryReportsTests(ProfilerTestCase):
    """Snapshots as files."""

    def setUp(self) -> None:
        """Keep two snapshots, one every 60 seconds."""
        super().setUp()
        self.directory = Path(self.mktemp()) / "below"
        self.deferToThread: Callable[..., Deferred[Any]] = lambda function, *args: succeed(function(*args))
        self.reports = MemoryReports(
            self.profiler,
            self.directory,
            60.0,
            self.clock,
            lambda function, *args: self.deferToThread(function, *args),
            maxSnapshots=2,
        )
        self.addCleanup(self.reports.stop)

    def names(self) -> list[str]:
        return sorted(each.name for each in self.directory.iterdir())

    def test_files(self) -> None:
        """The first snapshot is taken at once, others regularly, and the oldest files go."""
        self.reports.start()
        self.clock.advance(30)
        self.assertEqual(self.names(), ["memory-boot-000001.html", "memory-boot-000001.txt"])
        self.directory.joinpath("mine.html").touch()
        self.clock.advance(150)
        self.assertEqual(
            self.names(),
            [f"memory-boot-{number:06}.{kind}" for number in (2, 3) for kind in ("html", "txt")] + ["mine.html"],
        )
        text = self.directory.joinpath("memory-boot-000003.txt").read_text("utf-8")
        self.assertIn("snapshot 3 of boot", text)

    def test_cannotWrite(self) -> None:
        """A disk that is full ends nothing: it is told in a sentence, and the next snapshot is tried."""
        working, self.deferToThread = self.deferToThread, lambda function, *args: fail(OSError("no room"))
        with capturedLogs() as events:
            self.reports.start()
            self.clock.advance(30)
        (sentence,) = [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]
        self.assertIn(f"cannot be written to {self.directory}, ", sentence)
        self.assertIn(": no room", sentence)
        self.assertEqual([event for event in events if "log_failure" in event], [])
        self.deferToThread = working
        self.clock.advance(60)
        self.assertEqual(self.names(), ["memory-boot-000002.html", "memory-boot-000002.txt"])

    def test_stop(self) -> None:
        """Stopping while a snapshot is taken leaves no timer, and is no error."""
        self.things = [[number] for number in range(40_000)]
        self.reports.start()
        self.reports.stop()
        self.assertEqual(self.clock.calls, [])
        self.assertEqual(self.names(), [])

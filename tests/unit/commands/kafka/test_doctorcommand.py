"""Tests for L{admission.commands.kafka.doctorcommand}."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from admission.commands.console import CommandFailed
from admission.commands.kafka.doctorcommand import brokerOptions, checksFor, examine, report
from admission.commands.kafka.doctormachine import Finding, Level


class ReportTests(SynchronousTestCase):
    """What was found is told to people and to programs."""

    findings = (
        ("memory", Finding(Level.OK, "plenty")),
        ("extra spark", Finding(Level.ABSENT, "not installed", "pip install it")),
        ("port tcp:\x1b[1m", Finding(Level.FAIL, "in use", "end that")),
    )

    def test_people(self) -> None:
        """A line for each finding, one for each remedy, and a sum; nothing that a terminal would obey."""
        output = StringIO()
        error = self.assertRaises(CommandFailed, report, self.findings, False, output)
        self.assertEqual(
            output.getvalue(),
            "ok      memory            plenty\n"
            "absent  extra spark       not installed\n"
            "                          -> pip install it\n"
            "fail    port tcp:\\x1b[1m  in use\n"
            "                          -> end that\n"
            "1 ok, 1 fail, 1 absent\n",
        )
        self.assertEqual(str(error), "a server would not run well here: port tcp:\\x1b[1m")

    def test_programs(self) -> None:
        """The same as JSON."""
        output = StringIO()
        report(self.findings[:2], True, output)
        self.assertEqual(
            json.loads(output.getvalue()),
            [
                {"check": "memory", "level": "ok", "what": "plenty", "remedy": ""},
                {"check": "extra spark", "level": "absent", "what": "not installed", "remedy": "pip install it"},
            ],
        )

    def test_breaks(self) -> None:
        """A check that breaks is a finding, and those after it are done."""

        def fail() -> Finding:
            raise ZeroDivisionError("no zeros")

        findings = list(examine([("a", fail), ("b", lambda: self.findings[0][1])]))
        self.assertEqual([(name, each.level) for name, each in findings], [("a", Level.FAIL), ("b", Level.OK)])
        self.assertIn("ZeroDivisionError: no zeros", findings[0][1].what)


class OptionsTests(SynchronousTestCase):
    """What the doctor is told."""

    def parse(self, *arguments: str) -> Any:
        options: Any = brokerOptions()
        options.parseOptions(arguments)
        return options

    def test_mistakes(self) -> None:
        """What makes no sense is refused in words."""
        for arguments, words in (
            (("--set", "no.such=1"), "no.such"),
            (("--config", "nowhere.properties"), "nowhere.properties"),
            (("--status", "http:/9090"), "--status"),
            (("--timeout", "0"), "--timeout"),
        ):
            error = self.assertRaises(UsageError, self.parse, *arguments)
            self.assertIn(words, str(error))

    def test_checks(self) -> None:
        """There is a check for each endpoint, and for the broker if it can be asked."""
        names = [name for name, _ in checksFor(self.parse())]
        self.assertEqual(names[-1], "port tcp:9092:interface=127.0.0.1")
        self.assertNotIn("broker", names)
        self.assertEqual(len(set(names)), len(names))
        more = self.parse("--listen", "tcp:1", "-l", "tcp:2", "--status", "http://127.0.0.1:9")
        self.assertIn("broker", [name for name, _ in checksFor(more)])
        self.assertEqual([name for name, _ in checksFor(more)][-3:], ["server", "port tcp:1", "port tcp:2"])

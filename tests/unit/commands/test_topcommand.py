"""Tests for L{admission.commands.topcommand}."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from admission.commands import topcommand
from admission.commands.console import CommandFailed
from admission.commands.topcommand import TopOptions, run

SEEN: dict[str, Any] = {
    "version": "1.2.3",
    "atSeconds": 1_000_000_000.0,
    "uptimeSeconds": 3600.0,
    "listeners": ["127.0.0.1:9092"],
    "health": {"status": "ok", "reasons": []},
    "process": {
        "residentBytes": 80 << 20,
        "privateBytes": 60 << 20,
        "cpuSeconds": 10.0,
        "openDescriptors": 30,
        "maxDescriptors": 1024,
    },
    "pool": {"sizeBytes": 256 << 20, "usedBytes": 3 << 20, "idleBytes": 0, "isShort": False, "waiting": 0},
    "ledger": {"frames": 1 << 20, "parked": 0, "connections": 2 << 20},
    "requests": {"running": 1, "maxRunning": 500, "read": 1000, "readBytes": 5000},
    "connections": {
        "open": 12,
        "allowed": 10_000,
        "refused": 0,
        "largest": [
            {
                "peer": f"192.0.2.1:{50_000 + number}",
                "user": "ANONYMOUS",
                "clientId": "",
                "heldBytes": 8192,
                "requestBytes": 0,
                "bufferedBytes": 0,
                "unsentBytes": 0,
                "mutedFor": ["quota"] if number else [],
                "mutedSeconds": 0.5,
            }
            for number in range(12)
        ],
    },
    "muted": {"memory": 0, "quota": 11},
    "throttled": {
        "count": 1,
        "clients": [
            {
                "user": "alice",
                "clientId": "reports\x1b[2J",
                "ip": "192.0.2.1",
                "connections": 1,
                "delaySeconds": 90.0,
                "refused": 1200,
                "policy": "client-bytes",
                "limitName": "producer_byte_rate",
                "limit": 4_000_000.0,
                "used": 5_000_000.0,
                "usedFraction": 1.25,
                "entity": {"user": None, "clientId": "<default>", "ip": None},
            }
        ],
    },
    "policies": {},
    "purgatory": {
        "watched": 3,
        "delayed": 3,
        "expirations": 70,
        "waitMedianSeconds": 0.002,
        "waitPercentile99Seconds": 0.5,
    },
    "disk": {
        "usedBytes": 3 << 30,
        "freeBytes": 60 << 30,
        "totalBytes": 100 << 30,
        "topicCount": 2,
        "otherBytes": 0,
        "topics": [{"topic": "events", "partitionCount": 4, "usedBytes": 3 << 30}],
    },
    "groups": {
        "count": 1,
        "states": {"Stable": 1},
        "memberCount": 2,
        "lagRecords": 12_345,
        "uncountedGroups": 0,
        "groups": [
            {
                "groupId": "readers",
                "state": "Stable",
                "generation": 4,
                "memberCount": 2,
                "protocol": "range",
                "lagRecords": 12_345,
            }
        ],
    },
}


PROCESSES: list[dict[str, Any]] = [
    {
        "process": 1,
        "pid": 101,
        "state": "serving",
        "sinceSeconds": 3600.0,
        "restarts": 0,
        "cpuSeconds": 8.0,
        "residentBytes": 70 << 20,
        "connections": 12,
    },
    {
        "process": 2,
        "pid": 102,
        "state": "starting",
        "sinceSeconds": 1.0,
        "restarts": 3,
        "cpuSeconds": None,
        "residentBytes": None,
        "connections": None,
    },
]


class Terminal(io.StringIO):
    """Somebody who looks."""

    def isatty(self) -> bool:
        return True


class TopTestCase(SynchronousTestCase):
    """A test that looks at a broker that there is not."""

    def setUp(self) -> None:
        self.seen = deepcopy(SEEN)
        self.asked: list[tuple[str, float]] = []
        self.slept: list[float] = []
        self.answers: list[Any] = [self.seen]

    def fetch(self, url: str, timeoutSeconds: float) -> bytes:
        self.asked.append((url, timeoutSeconds))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode() if isinstance(answer, dict) else answer

    def sleep(self, seconds: float) -> None:
        """Until there is nothing more to see; then Ctrl-C is pressed."""
        self.slept.append(seconds)
        if not self.answers:
            raise KeyboardInterrupt

    def run_(self, line: str = "", stdout: io.StringIO | None = None) -> str:
        """What the command writes."""
        options = TopOptions()  # type: ignore[no-untyped-call]
        options.parseOptions(shlex.split(line))  # type: ignore[no-untyped-call]
        output = io.StringIO() if stdout is None else stdout
        run(options, io.StringIO(), output, self.fetch, self.sleep)
        return output.getvalue()

    def screens(self, *answers: Any) -> Sequence[str]:
        """What a terminal shows, one look after the other."""
        self.answers = list(answers)
        written = self.run_(stdout=Terminal())
        return written.split("\x1b[H")[1:]


class OnceTests(TopTestCase):
    """Where there is no terminal, it is written once."""

    def test_everything(self) -> None:
        """What there is to see is in it, with units; what is zero is left out."""
        lines = self.run_().splitlines()
        self.assertEqual(
            lines[:9],
            [
                "admission 1.2.3 on 127.0.0.1:9092, up 60 min: ok",
                "process      80 MiB resident, 60 MiB without files, CPU -, 30 of 1024 files",
                "pool         3 MiB of 256 MiB",
                "ledger       frames 1 MiB, connections 2 MiB",
                "requests     1000 in all, 1 of 500 running",
                "connections  12 of 10000, 0 refused; not read: quota 11",
                "disk         3 GiB in 2 topics, 60 GiB of 100 GiB free",
                "purgatory    3 wait, 70 ran out of time; 99% wait 500 ms or less",
                "",
            ],
        )
        self.assertIn("groups: 1, lag 12.35k", lines)
        self.assertEqual(self.asked, [("http://127.0.0.1:9090/status.json", 10.0)])
        self.assertEqual(self.slept, [])

    def test_tables(self) -> None:
        """Names cannot command the terminal, and there are only so many rows."""
        output = self.run_("--status http://[::1]:9191/ --timeout 3s")
        self.assertRegex(output, r"(?m)^  reports\\x1b\[2J alice +producer_byte_rate=4M +5M +125% +90 s +1200$")
        self.assertRegex(output, r"(?m)^  readers +Stable +2 +12\.35k$")
        self.assertRegex(output, r"(?m)^  192\.0\.2\.1:50001  \(no client id\) ANONYMOUS  8 KiB  quota 500 ms$")
        self.assertIn("\n  and 4 more\n", output)
        self.assertNotIn("\x1b", output)
        self.assertEqual(self.asked, [("http://[::1]:9191/status.json", 3.0)])

    def test_longNames(self) -> None:
        """A client that calls itself by a long name hides no column from a terminal."""
        self.seen["throttled"]["clients"][0].update(clientId="\x00" * 128, user="u" * 128)
        self.seen["groups"]["groups"][0]["groupId"] = "g" * 128
        self.seen["connections"]["largest"][0].update(clientId="c" * 128)
        output = self.run_()
        self.assertLessEqual(max(map(len, output.splitlines())), 140)
        name = "\\x00" * 9 + "\\..."
        self.assertIn(f"  {name} {'u' * 37}...  producer_byte_rate=4M  5M ", output)
        self.assertIn(f"  {'g' * 37}...  Stable ", output)

    def test_unwell(self) -> None:
        """What is wrong comes first."""
        self.seen["health"] = {"status": "unavailable", "reasons": ["the disk is full"]}
        self.seen["listeners"] = []
        self.seen["pool"].update(sizeBytes=None, waiting=3)
        lines = self.run_().splitlines()
        self.assertEqual(lines[:2], ["admission 1.2.3 on no port, up 60 min: unavailable", "  the disk is full"])
        self.assertIn("pool         3 MiB of no bound, 3 connections wait", lines)

    def test_share(self) -> None:
        """A gateway that enforces a share of limits says so above them."""
        self.seen["limitShare"] = 0.5
        self.assertIn("ten seconds: 1; this gateway enforces 1/2 of each limit\n", self.run_())

    def test_processes(self) -> None:
        """Of a server with several processes each has a row, also one that does not say how it is."""
        self.seen["processes"] = deepcopy(PROCESSES)
        output = self.run_()
        self.assertRegex(output, r"(?m)^  Process  State +CPU +Resident +Connections +Restarts$")
        self.assertRegex(output, r"(?m)^  1 +serving for 60 min +- +70 MiB +12 +0$")
        self.assertRegex(output, r"(?m)^  2 +starting for 1 s +- +\? +\? +3$")

    def test_unknown(self) -> None:
        """What is not known has a question mark."""
        self.seen["throttled"]["clients"][0].update(
            policy=None, limitName=None, limit=None, used=None, usedFraction=None
        )
        self.seen["groups"]["groups"][0]["lagRecords"] = None
        self.seen["purgatory"]["waitPercentile99Seconds"] = None
        self.seen["process"]["maxDescriptors"] = -1
        output = self.run_()
        self.assertRegex(output, r"(?m)alice +none any more +\? +\? +90 s +1200$")
        self.assertRegex(output, r"(?m)readers +Stable +2 +\?$")
        self.assertIn("30 files\n", output)
        self.seen["throttled"]["clients"][0]["policy"] = "client-bytes"
        self.answers = [self.seen]
        self.assertRegex(self.run_(), r"(?m)alice +client-bytes +\? +\? +90 s +1200$")

    def test_once(self) -> None:
        """At a terminal it is written once if that is wanted."""
        self.assertNotIn("\x1b", self.run_("--once", Terminal()))
        self.assertEqual(self.slept, [])

    def test_fails(self) -> None:
        """A port that does not answer, or not as ours does, is an error."""
        self.answers = [CommandFailed("it does not answer")]
        self.assertRaises(CommandFailed, self.run_)
        for answer in (b"", b"<html>", b"[]", b"{}", b'{"health": 1}', b"7"):
            self.answers = [answer]
            error = self.assertRaises(CommandFailed, self.run_)
            self.assertIn("http://127.0.0.1:9090 does not answer as a status port does", str(error))


class WatchTests(TopTestCase):
    """At a terminal it is written again and again."""

    def later(self, seconds: float, requests: int) -> dict[str, Any]:
        """The broker after a while."""
        seen = deepcopy(SEEN)
        seen["uptimeSeconds"] += seconds
        seen["requests"]["read"] += requests
        seen["process"]["cpuSeconds"] += seconds / 4
        return seen

    def test_rates(self) -> None:
        """From the second look on, what happens each second is there; a look that is the same again changes nothing."""
        first, second, third = self.screens(SEEN, self.later(2.0, 50), self.later(2.0, 50))
        self.assertIn("requests     1000 in all", first)
        for screen in (second, third):
            self.assertIn("requests     25 a second, 1050 in all", screen)
            self.assertIn("CPU 25%", screen)

    def test_processRates(self) -> None:
        """A process that is the same as before has a rate, and a sum that falls has none below zero."""
        first, then = deepcopy(SEEN), self.later(2.0, -50)
        first["processes"], then["processes"] = deepcopy(PROCESSES), deepcopy(PROCESSES)
        then["processes"][0]["cpuSeconds"] += 1.0
        then["processes"][1].update(pid=103, cpuSeconds=0.5)
        _, screen = self.screens(first, then)
        self.assertIn("requests     0 a second", screen)
        self.assertRegex(screen, r"  1 +serving for 60 min +50% ")
        self.assertRegex(screen, r"  2 +starting for 1 s +- ")

    def test_restart(self) -> None:
        """A broker that was restarted counts anew, and has no rates at first."""
        _, second = self.screens(self.later(2.0, 50), SEEN)
        self.assertIn("requests     1000 in all", second)

    def test_gone(self) -> None:
        """When the broker stops answering, that is said above what was seen last, until it answers again."""
        first, second, third = self.screens(SEEN, CommandFailed("it does not answer"), self.later(2.0, 50))
        self.assertTrue(second.startswith("it does not answer; what follows is from before\x1b[K\n"))
        self.assertIn("requests     1000 in all", second)
        self.assertNotIn("does not answer", first + third)

    def test_size(self) -> None:
        """Lines are as long as the terminal is wide, and no more than fit."""
        self.patch(topcommand.shutil, "get_terminal_size", lambda: topcommand.shutil.os.terminal_size((20, 5)))
        (screen,) = self.screens(SEEN)
        lines = screen.removesuffix("\x1b[J\n").split("\x1b[K\n")
        self.assertEqual(lines[0], "admission 1.2.3 on 1")
        self.assertEqual(len(lines), 5)

    def test_interval(self) -> None:
        """It rests as long as it was told."""
        self.answers = [SEEN]
        self.run_("--interval 5s", Terminal())
        self.assertEqual(self.slept, [5.0])


class OptionsTests(TopTestCase):
    """What makes no sense is refused in a sentence."""

    def test_refused(self) -> None:
        """Each mistake names its option and the remedy."""
        for line, words in (
            ("--status 9090", "--status 9090: write a URL"),
            ("--interval soon", "--interval: "),
            ("--interval 0s", "--interval 0s: write 0.1s or more"),
            ("--timeout 0s", "--timeout 0s"),
        ):
            self.assertIn(words, str(self.assertRaises(UsageError, self.run_, line)))
        self.assertEqual(self.asked, [])

"""Tests for L{admission.commands.memorycommand}."""

from __future__ import annotations

import json
from io import StringIO

from twisted.trial.unittest import SynchronousTestCase

from admission.commands.console import CommandFailed
from admission.commands.memorycommand import MemoryOptions, run


class MemoryCommandTests(SynchronousTestCase):
    """C{admission memory} with answers that are none."""

    def test_nonsense(self) -> None:
        """Whatever is answered that is no snapshot, the command says so in a sentence."""
        options = MemoryOptions()
        options.parseOptions([])
        for answer in (b"", b"{}", b"[]", b"null", b'{"number": 1}'):
            error = self.assertRaises(
                CommandFailed, run, options, StringIO(), StringIO(), lambda url, timeoutSeconds, answer=answer: answer
            )
            self.assertIn("does not answer as a status port does", str(error))

    def test_process(self) -> None:
        """One of several processes can be named, and what the server says to that is told."""
        options = MemoryOptions()
        options.parseOptions(["--process", "2&x"])
        asked = []

        def refusing(url: str, timeoutSeconds: float) -> bytes:
            asked.append(url)
            raise CommandFailed("there is no such process")

        self.assertRaises(CommandFailed, run, options, StringIO(), StringIO(), refusing)
        self.assertEqual(asked, ["http://127.0.0.1:9090/memory?process=2%26x"])

    def test_unwritableFile(self) -> None:
        """A file that cannot be written is named."""
        options = MemoryOptions()
        options.parseOptions(["--html", "/nowhere/at/all.html"])
        sample = {
            "boot": "b",
            "number": 1,
            "atSeconds": 0.0,
            "process": {"residentBytes": 1, "privateBytes": 1, "fileBytes": 0, "startPrivateBytes": 1},
            "groups": [],
            "growth": {
                **dict.fromkeys(("bytes", "ledgerBytes", "unclaimedBytes", "garbageBytes", "unknownBytes"), 0),
                "unknownFraction": None,
            },
            "garbage": None,
            "remainder": [{"name": "rest", "bytes": 0}],
            "heap": {"bytes": 0, "objects": 0, "stride": 1, "largest": [["int", 1, 1]]},
            "since": [],
            "cost": {"seconds": 0.0, "workSeconds": 0.0, "longestTurnSeconds": 0.0},
        }
        error = self.assertRaises(
            CommandFailed, run, options, StringIO(), StringIO(), lambda url, timeoutSeconds: json.dumps(sample).encode()
        )
        self.assertIn("--html /nowhere/at/all.html: No such file", str(error))

# -*- test-case-name: tests.system.test_profile_memory -*-
"""
The command C{admission memory}: where a broker's memory is, as its status
port tells it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TextIO

from twisted.python.usage import Options

from ..plaintext import printable
from ..profiling.html import htmlOf
from ..profiling.text import textOf
from .console import CommandFailed, parseTimeout
from .explaincommand import Fetch, fetch, parseStatus

_EXAMPLES = """
Examples:
  admission memory
  admission memory --html memory.html
  admission memory --status http://127.0.0.1:9191 --json
"""


class MemoryOptions(Options):
    """
    C{memory}.

    After parsing, C{url} and C{timeoutSeconds} are keys as well.
    """

    synopsis = "[options]"
    longdesc = (
        "Tells where the memory of a broker is that runs with --status: what its ledger says beside what its objects "
        "take and what the process really has, and what has changed since it was asked before.  It looks when it is "
        "asked, in small steps, and not again within ten seconds."
    )
    optParameters = [
        ["status", None, "http://127.0.0.1:9090", "The status port of the broker."],
        ["html", None, None, "Write a page to this file."],
        ["timeout", None, "30s", "How long to wait for an answer."],
    ]
    optFlags = [["json", None, "Write JSON, for programs."]]

    def getUsage(self, width: int | None = None) -> str:
        """
        The usage text, with examples that keep their lines.
        """
        usage: str = super().getUsage(width)
        return usage + _EXAMPLES

    def postOptions(self) -> None:
        """
        Find what is wrong while it needs no broker.
        """
        self["url"] = f"{parseStatus(self['status'])}/memory"
        self["timeoutSeconds"] = parseTimeout(self["timeout"])


def run(options: MemoryOptions, stdin: TextIO, stdout: TextIO, fetch: Fetch = fetch) -> None:
    """
    Do what C{options} say.

    @raise CommandFailed: if that cannot be done, in a sentence.
    """
    try:
        document = json.loads(fetch(options["url"], options["timeoutSeconds"]))
        text, page = textOf(document), htmlOf(document)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise CommandFailed(f"{options['status']} does not answer as the status port of a broker does") from error
    if options["html"] is not None:
        try:
            Path(options["html"]).write_text(page, encoding="utf-8")
        except OSError as error:
            raise CommandFailed(f"--html {options['html']}: {error.strerror}") from error
        stdout.write(f"wrote {options['html']}\n")
    elif options["json"]:
        stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        stdout.write("".join(f"{printable(line)}\n" for line in text.splitlines()))

# -*- test-case-name: tests.unit.commands.test_memorycommand -*-
"""
The command C{admission memory}: where a broker's memory is, as its status
port reports it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TextIO
from urllib.parse import urlencode

from ..completions import FILES, completing
from ..plaintext import printable
from ..profiling.reports import htmlOf, textOf
from .console import CommandFailed
from .statusport import Fetch, StatusOptions, askStatus, fetch


class MemoryOptions(StatusOptions):
    synopsis = "[options]"
    longdesc = (
        "Tells where the memory of a broker is that runs with --status: what its ledger says beside what its objects "
        "take and what the process really has, and what has changed since it was asked before.  It looks when it is "
        "asked, in small steps, and not again within ten seconds."
    )
    optParameters = [
        ["html", None, None, "Write a page to this file."],
        ["process", None, None, "Which process, if there are several: a number, from 1."],
    ]
    optFlags = [["json", None, "Write JSON, for programs."]]
    compData = completing(options={"html": FILES})
    examples = (
        "memory",
        "memory --html memory.html",
        "memory --status http://127.0.0.1:9191 --json",
        "memory --process 2",
    )

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A snapshot of a broker with many connections takes some seconds, on a busy machine many times that.
        self["timeout"] = self.defaults["timeout"] = "2m"


def run(options: MemoryOptions, stdin: TextIO, stdout: TextIO, fetch: Fetch = fetch) -> None:
    asked = "memory" if options["process"] is None else f"memory?{urlencode({'process': options['process']})}"
    document, text, page = askStatus(options, asked, lambda answer: (answer, textOf(answer), htmlOf(answer)), fetch)
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

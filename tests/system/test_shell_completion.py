"""Command lines are completed in real shells."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS

_CASES = (
    ("quo", "quotas"),
    ("quotas des", "quotas describe"),
    ("quotas set --client-id-", "quotas set --client-id-default"),
    ("quotas set --sasl-mechanism PL", "quotas set --sasl-mechanism PLAIN"),
    ("quotas set --sasl-mechanism=PL", "quotas set --sasl-mechanism=PLAIN"),
    ("quotas set --password-file le", "quotas set --password-file letter.txt"),
    ("quotas set --password-file=le", "quotas set --password-file=letter.txt"),
    ("quotas set --client-id le", "quotas set --client-id le"),
    ("quotas set le", "quotas set le"),
    ("users list le", "users list letter.txt"),
    ("data check of", "data check office"),
    ("data backup office of", "data backup office office"),
    ("evaluate office --ou", "evaluate office --out"),
    ("evaluate office --out o", "evaluate office --out office"),
    ("doctor --config le", "doctor --config letter.txt"),
    ("nothing le", "nothing le"),
    ("completion z", "completion zsh"),
)
"""What is typed before a tab, and what it becomes beside C{letter.txt}, C{offer.txt} and a directory C{office}."""

_IMPORTING = """
import sys
from admission.cli import main
*lines, extras = sys.argv[1:]
for line in lines:
    assert main(["--_shell-completion", f"bash:admission {line}"]) == 0
assert not set(extras.split()) & set(sys.modules), sorted(sys.modules)
"""


class ShellTests(SynchronousTestCase):
    """What becomes of what somebody types before a tab."""

    def complete(self, shell: str, *starting: str) -> None:
        """
        Type all of it.

        @param starting: commands that come first.
        """
        if shutil.which(shell) is None:
            raise SkipTest(f"{shell} is not installed; .ci/install-tools installs it")
        here = Path(self.mktemp()).absolute()
        for directory in ("bin", "work/office"):
            here.joinpath(directory).mkdir(parents=True)
        command = here / "bin" / "admission"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m admission "$@"\n')
        command.chmod(0o755)
        for name in ("letter.txt", "offer.txt"):
            here.joinpath("work", name).touch()
        environment = {
            **ENVIRONMENT,
            "PATH": f"{command.parent}:{os.environ['PATH']}",
            "TERM": "dumb",
            "HOME": str(here),
        }
        terminal, end = pty.openpty()
        options = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"]}[shell]
        with open(terminal, "r+b", buffering=0) as typing, open(end, "r+b", buffering=0) as theirs:
            process = subprocess.Popen(
                [shell, *options, "-i"], cwd=here / "work", env=environment,
                stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            )  # fmt: skip
            try:
                output = b""
                for line in (*starting, f"source <(admission completion {shell})"):
                    typing.write(line.encode() + b"\n")
                for number, (typed, expected) in enumerate(_CASES):
                    # Then to the beginning of the line, which thereby is printed.
                    typing.write(f'admission {typed}\t\x01echo "=$((1000 + {number}))" \n'.encode())
                    found = None
                    deadline = time.monotonic() + PATIENCE_SECONDS
                    while found is None:
                        remaining = deadline - time.monotonic()
                        self.assertGreater(remaining, 0, output.decode(errors="replace"))
                        if select.select([typing], [], [], remaining)[0]:
                            output += os.read(terminal, 65536)
                        found = re.search(rf"(?<![\w\"(])={1000 + number} admission (.*?)[ =/]*\r?\n".encode(), output)
                    self.assertEqual(found[1].decode(), expected, output.decode(errors="replace"))
            finally:
                process.kill()
                process.wait()

    def test_bash(self) -> None:
        """bash completes commands, subcommands, options, their values and paths."""
        self.complete("bash")

    def test_zsh(self) -> None:
        """zsh does so, by Twisted's own way."""
        self.complete("zsh", "bindkey -e", "autoload -U compinit", "compinit -u -D")


class ImportTests(SynchronousTestCase):
    """A shell does not wait for what a command line does not need."""

    def test_imports(self) -> None:
        """Completing imports no extra but where the subcommand is made with it."""
        kafka, spark = "kio cramjam zstandard", "pyspark pyarrow pandas numpy"
        for lines, extras in (
            (("", "quo", "explain --", "top --", "completion "), f"{kafka} {spark} twisted.internet.reactor"),
            (("quotas set --", "doctor --", "evaluate recording --", "recording ship --", "synth --"), spark),
        ):
            subprocess.run(
                [sys.executable, "-c", _IMPORTING, *lines, extras],
                env=ENVIRONMENT, check=True, timeout=PATIENCE_SECONDS, stdout=subprocess.DEVNULL,
            )  # fmt: skip

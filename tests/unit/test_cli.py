"""Tests for L{admission.cli}."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

from twisted.python.usage import Options

from admission import __version__, cli
from admission.cli import COMMANDS, COMMANDS_BY_HEADING, FAILED, INTERRUPTED, MISUSED, Command, main
from admission.commands.console import CommandFailed
from tests.kit.commandcases import CommandTestCase


class MainTests(CommandTestCase):
    """The command finds what to run, and ends as a command should."""

    def setUp(self) -> None:
        self.stdout, self.stderr = StringIO(), StringIO()
        self.patch(sys, "stdout", self.stdout)
        self.patch(sys, "stderr", self.stderr)

    def assertExit(self, status: int, *arguments: str) -> None:
        """A command line ends without a return."""
        error = self.assertRaises(SystemExit, main, arguments)
        self.assertEqual(error.code, status)

    def replace(self, run: Callable[..., None]) -> None:
        """Have a command that does what C{run} does, without options."""
        self.patch(cli, "COMMANDS", (Command("explain", "", "twisted.python.usage.Options", f"{__name__}.REPLACED"),))
        self.patch(sys.modules[__name__], "REPLACED", run)

    def test_commands(self) -> None:
        """Every command has options that parse, and something to run."""
        for command in COMMANDS:
            self.assertIsInstance(command.makeOptions(), Options)
            self.assertTrue(callable(command.resolve()))

    def test_help(self) -> None:
        """Help is there at every level, with examples that parse."""
        groups = {
            "quotas": ("describe", "set", "remove"),
            "topics": ("list", "describe"),
            "groups": ("list", "describe", "lag"),
            "data": ("check", "backup", "restore"),
            "recording": ("ship",),
            "users": ("set", "remove", "list"),
        }
        leaves = [command.name for command in COMMANDS if command.name not in groups]
        paths = [f"{group} {each}" for group, subcommands in groups.items() for each in subcommands]
        for path in ("", *groups, *paths, *leaves):
            self.stdout.truncate(0)
            self.assertExit(0, *path.split(), "--help")
            usage = self.stdout.getvalue()
            self.assertIn(f"Usage: admission {path}".rstrip(), usage)
            examples = [line for line in usage.splitlines() if line.startswith("  admission ")]
            self.assertEqual(bool(examples), path not in groups, usage)
            for example in examples:
                self.parse(*shlex.split(example.partition(" < ")[0])[1:])

    def test_headings(self) -> None:
        """The help lists each command once, below its heading, and what it does fits the terminal."""
        self.patch(os, "environ", {**os.environ, "COLUMNS": "60"})
        self.assertExit(0, "--help")
        listed = self.stdout.getvalue().partition("\n\nExamples:")[0]
        for heading, commands in COMMANDS_BY_HEADING.items():
            lines = listed.partition(f"\n\n{heading}:\n")[2].partition("\n\n")[0].splitlines()
            self.assertEqual([line.split()[0] for line in lines if line[2] != " "], [each.name for each in commands])
            self.assertLessEqual(max(map(len, lines)), 60)
        self.assertEqual(len({each.name for each in COMMANDS}), len(COMMANDS))

    def test_version(self) -> None:
        """The version is ours."""
        for arguments in ([], ["quotas", "set"], ["doctor"]):
            self.stdout.truncate(0)
            self.stdout.seek(0)
            self.assertExit(0, *arguments, "--version")
            self.assertEqual(self.stdout.getvalue(), f"admission {__version__}\n")

    def test_misused(self) -> None:
        """What cannot be parsed is answered with a sentence and where to read more."""
        *names, last = (each.name for each in COMMANDS)
        for line, sentence in (
            ("", f"say what to do: {', '.join(names)} or {last}; see admission --help"),
            ("quota", "Unknown command: quota; see admission --help"),
            ("quotas", "say what to do: describe, set or remove; see admission quotas --help"),
            ("quotas set --bogus", "option --bogus not recognized; see admission quotas set --help"),
            (
                "top twice",
                "there is no place for 'twice': this command takes nothing but options; see admission top --help",
            ),
            ("explain --user \udcff", "'explain --user \\udcff' is not UTF-8; names of users and clients are"),
        ):
            self.stderr.truncate(0)
            self.stderr.seek(0)
            self.assertEqual(main(line.split()), MISUSED)
            self.assertEqual(self.stderr.getvalue(), f"admission: {sentence}\n")

    def test_failed(self) -> None:
        """What fails is answered with a sentence as well."""

        def run(options: Options, stdin: Any, stdout: Any) -> None:
            raise CommandFailed("it does not work")

        self.replace(run)
        self.assertEqual(main(["explain", "--client-id", "c"]), FAILED)
        self.assertEqual(self.stderr.getvalue(), "admission: it does not work\n")

    def test_noPassword(self) -> None:
        """Where nobody can type a password, it says what else would do."""

        def run(options: Options, stdin: Any, stdout: Any) -> None:
            raise EOFError

        self.replace(run)
        self.assertEqual(main(["explain", "--client-id", "c"]), FAILED)
        self.assertIn("--password-stdin or --password-file", self.stderr.getvalue())

    def test_succeeded(self) -> None:
        """What works is not commented on."""
        self.replace(lambda options, stdin, stdout: stdout.write("done\n"))
        self.assertEqual(main(["explain", "--client-id", "c"]), 0)
        self.assertEqual((self.stdout.getvalue(), self.stderr.getvalue()), ("done\n", ""))

    def test_encoding(self) -> None:
        """What a terminal cannot show is escaped, in what a command writes and in what it complains about."""

        def run(options: Options, stdin: Any, stdout: Any) -> None:
            stdout.write("\u20ac\n")
            raise CommandFailed("there is no \u20ac")

        written, complained = BytesIO(), BytesIO()
        self.patch(sys, "stdout", TextIOWrapper(written, "latin-1"))
        self.patch(sys, "stderr", TextIOWrapper(complained, "ascii", write_through=True))
        self.replace(run)
        self.assertEqual(main(["explain", "--client-id", "c"]), FAILED)
        self.assertEqual(written.getvalue(), b"\\u20ac\n")
        self.assertEqual(complained.getvalue(), b"admission: there is no \\u20ac\n")

    def test_interrupted(self) -> None:
        """A command that is interrupted ends without a message."""

        def run(options: Options, stdin: Any, stdout: Any) -> None:
            raise KeyboardInterrupt

        self.replace(run)
        self.assertEqual(main(["explain", "--client-id", "c"]), INTERRUPTED)
        self.assertEqual(self.stderr.getvalue(), "")


REPLACED: Any = None

"""Tests for L{admission.commands.completioncommand}."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import StringIO

from twisted.python.usage import Options

from admission.cli import COMMANDS, FAILED, MISUSED, AdmissionOptions, main
from admission.commands.completioncommand import completed
from admission.commands.console import CommandFailed
from tests.kit.commandcases import CommandTestCase


def ask(question: str, *words: str) -> str:
    """What a shell is answered."""
    return completed(AdmissionOptions(), words, question)


def commandLines(options: Options, line: str) -> Iterator[str]:
    """The names of all commands and subcommands."""
    yield line
    for name, _, make, _ in getattr(options, "subCommands", ()):
        yield from commandLines(make(), f"{line} {name}".strip())


class BashTests(CommandTestCase):
    """What bash is answered."""

    def assertOffered(self, line: str, *answer: str) -> None:
        self.assertEqual(ask(f"bash:admission {line}").split(), [*answer], line)

    def test_commands(self) -> None:
        """Commands are offered, and the subcommands of one; after a word that is neither there is nothing."""
        self.assertOffered("", "words", *(each.name for each in COMMANDS))
        self.assertOffered("do", "words", "doctor", "doctor-gateway")
        self.assertOffered("quotas ", "words", "describe", "set", "remove")
        self.assertOffered("quotas s", "words", "set")
        self.assertOffered("quota ", "words")
        self.assertOffered("quotas reset ", "words")

    def test_options(self) -> None:
        """Options are offered wherever they may be, also after arguments."""
        self.assertOffered("--", "words", "--help", "--version")
        self.assertOffered("quotas set --cl", "words", "--client-id", "--client-id-default")
        self.assertOffered("quotas set --user alice --client-id-", "words", "--client-id-default")
        self.assertOffered("evaluate recording --candidate client-bytes:produce=4M --o", "words", "--out")

    def test_values(self) -> None:
        """A value is completed as its option says, however it is written, and is nothing by itself."""
        for option in ("--tls ", "--tls=", "--tls certs/", "--password-file ", "--dry-run --key=here/"):
            self.assertOffered(f"quotas set {option}", "files")
        for option in ("--data ", "-d ", "--data=da"):
            self.assertOffered(f"doctor {option}", "directories")
        for option in ("--sasl-mechanism S", "--sasl-mechanism=S"):
            self.assertOffered(f"quotas set {option}", "words", "SCRAM-SHA-256", "SCRAM-SHA-512")
        for option in ("--client-id ", "-c ", "--client-id=", "--client-id --us", "--no-such ", "--dry-run="):
            self.assertOffered(f"quotas set {option}", "words")

    def test_arguments(self) -> None:
        """Each argument is completed as what it is."""
        self.assertOffered("users set --iterations 5000 ", "files")
        self.assertOffered("users set passwords.txt a", "words")
        self.assertOffered("data backup from ", "directories")
        self.assertOffered("data backup from to ", "words")
        self.assertOffered("completion z", "words", "zsh")

    def test_quoted(self) -> None:
        """A word with blanks is one word; where a quotation mark is open nothing fails."""
        self.assertOffered("users list 'my passwords.txt' ", "words")
        self.assertOffered("quotas set --user 'alice and --cl", "words", "--client-id", "--client-id-default")


class ZshTests(CommandTestCase):
    """What zsh is answered."""

    def test_subcommands(self) -> None:
        """The words before the subcommand are passed, so that zsh counts from it."""
        code = ask("zsh:3", "quotas", "")
        self.assertTrue(code.startswith("#compdef admission\nshift 1 words; (( CURRENT -= 1 ))\n"), code)
        self.assertIn('"set:Set limits."', code)
        code = ask("zsh:5", "quotas", "set", "--dry-run", "--cl")
        self.assertTrue(code.startswith("#compdef admission\nshift 2 words; (( CURRENT -= 2 ))\n"), code)
        self.assertIn("--client-id-default[", code)
        self.assertIn("shift 0 words", ask("zsh:2", ""))
        self.assertNotIn("_arguments", ask("zsh:4", "quotas", "reset", ""))

    def test_paths(self) -> None:
        """Files are offered for options that take one, and for no others."""
        code = ask("zsh:4", "quotas", "set", "")
        for end in (']:file (*):_files -g "*"\'', "]:client-id: '", "]:one of:(PLAIN "):
            self.assertIn(end, code)
        self.assertIn("':directory:_directories'", ask("zsh:3", "evaluate", ""))

    def test_optionsAfterArguments(self) -> None:
        """They are completed where the command takes them."""
        self.assertIn("_arguments -s \\\n", ask("zsh:4", "evaluate", "recording", "--o"))
        self.assertIn('_arguments -s -A "-*" \\\n', ask("zsh:4", "users", "set", "--it"))


class AskedTests(CommandTestCase):
    """Every command can be completed, and nothing but answers comes of it."""

    def setUp(self) -> None:
        self.stdout, self.stderr = StringIO(), StringIO()
        self.patch(sys, "stdout", self.stdout)
        self.patch(sys, "stderr", self.stderr)

    def test_all(self) -> None:
        """All names of options that C{compData} has exist, for all commands."""
        lines = list(commandLines(AdmissionOptions(), ""))
        self.assertGreater(len(lines), 30)
        for line in lines:
            self.assertIn("--help\n", ask(f"bash:admission {line} --h"), line)
            words = [*line.split(), "--h"]
            self.assertIn("'--help[", ask(f"zsh:{len(words) + 1}", *words), line)

    def test_missingExtra(self) -> None:
        """A command whose extra is missing is not completed, and says nothing that a shell would take for words."""

        def make() -> Options:
            raise CommandFailed("quotas needs kio: pip install 'admission[kafka]'")

        self.patch(AdmissionOptions, "subCommands", [["quotas", None, make, ""]])
        self.assertEqual(main(["--_shell-completion", "bash:admission quotas "]), FAILED)
        self.assertEqual(self.stdout.getvalue(), "")
        self.assertIn("quotas needs kio", self.stderr.getvalue())

    def test_misasked(self) -> None:
        """A question that makes no sense is answered with a sentence."""
        for question in ("fish:admission ", "zsh", "zsh:x", "zsh:1", "zsh:9", ""):
            self.stderr.truncate(0)
            self.stderr.seek(0)
            self.assertEqual(main(["quotas", "--_shell-completion", question]), MISUSED)
            self.assertRegex(self.stderr.getvalue(), r"^admission: --_shell-completion is for [^\n]*\n$")
        self.assertEqual(self.stdout.getvalue(), "")

    def test_scripts(self) -> None:
        """A script is written for each shell that is known, and no other."""
        for shell, end in (("bash", "complete -F _admission admission"), ("zsh", "compdef _admission admission")):
            self.stdout.truncate(0)
            self.assertEqual(main(["completion", shell]), 0)
            self.assertIn(end, self.stdout.getvalue())
        mistake = "name your shell, which is one of bash, zsh"
        self.assertMistakes([("completion", mistake), ("completion ksh", mistake), ("completion bash zsh", mistake)])

"""Tests for L{admission.commands.console}."""

import warnings
from getpass import GetPassWarning
from io import StringIO

from twisted.trial.unittest import SynchronousTestCase

from admission.commands import console
from admission.commands.console import CommandFailed, Progress, askPassword


class Stream(StringIO):
    """A terminal, or none."""

    def __init__(self, isTerminal: bool) -> None:
        super().__init__()
        self._isTerminal = isTerminal

    def isatty(self) -> bool:
        return self._isTerminal


class ProgressTests(SynchronousTestCase):
    def progress(self, isTerminal: bool) -> None:
        """Take a second for each of 25 steps."""
        self.seconds = 0.0
        self.stream = Stream(isTerminal)
        with Progress("reading", 25 << 20, self.stream, lambda: self.seconds) as progress:
            for _ in range(25):
                self.seconds += 1.0
                progress(1 << 20)

    def test_terminal(self) -> None:
        """On a terminal one line is written again and again, and gone at the end."""
        self.progress(True)
        lines = self.stream.getvalue().split("\r")
        self.assertIn("reading: 5 MiB of 25 MiB, 20%", lines)
        self.assertEqual(["", ""], [lines[-2].strip(), lines[-1]])

    def test_file(self) -> None:
        """Elsewhere a line is written now and then."""
        self.progress(False)
        self.assertEqual("reading: 10 MiB of 25 MiB, 40%\nreading: 20 MiB of 25 MiB, 80%\n", self.stream.getvalue())

    def test_short(self) -> None:
        """Short work says nothing."""
        stream = Stream(True)
        with Progress("reading", 0, stream, lambda: 0.0) as progress:
            progress(100)
        self.assertEqual("", stream.getvalue())


class PasswordTests(SynchronousTestCase):
    """L{askPassword}"""

    def test_terminal(self) -> None:
        """What is typed is the password."""
        self.patch(console, "getpass", lambda prompt: prompt.upper())
        self.assertEqual(askPassword("--password-file", "Password of alice: "), "PASSWORD OF ALICE: ")

    def test_noTerminal(self) -> None:
        """Without a terminal no password is read that could be seen: a sentence names the option that gives it."""

        def show(prompt: str) -> str:
            warnings.warn("Can not control echo on the terminal.", GetPassWarning, stacklevel=2)
            return "seen"

        self.patch(console, "getpass", show)
        refused = self.assertRaises(CommandFailed, askPassword, "--password-file", "Password of alice: ")
        self.assertIn("no terminal to ask at; give --password-file", str(refused))

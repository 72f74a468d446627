"""Tests for L{admission.commands.kafka.userscommand}."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from admission.commands.console import CommandFailed
from admission.commands.kafka.userscommand import UsersOptions, run
from admission.kafka.scram import HASHES, MIN_ITERATIONS
from admission.kafka.security.passwordfile import Users, formatUsers, readUsers


class UsersCommandTests(SynchronousTestCase):
    """C{admission users} keeps a password file."""

    def setUp(self) -> None:
        """The users are alice and bob."""
        users = Users(b"k" * 32)
        for name in ("alice", "bob"):
            users.setPassword(name, "secret", MIN_ITERATIONS)
        self.path = Path(self.mktemp())
        self.path.write_text(formatUsers(users), encoding="utf-8")

    def users(self, *arguments: str, stdin: str = "", ask: Callable[[str], str] = str) -> str:
        """
        Run the command.

        @return: what it printed.
        """
        options = UsersOptions()
        options.parseOptions(arguments)
        stdout = io.StringIO()
        run(options, io.StringIO(stdin), stdout, ask)
        return stdout.getvalue()

    def password(self, name: str, password: str) -> bool:
        """Whether the password of C{name} is C{password}, for each mechanism."""
        secrets = readUsers(self.path).secretsByName[name]
        self.assertEqual(list(secrets), list(HASHES))
        return all(secret.isPassword(password.encode()) for secret in secrets.values())

    def test_set(self) -> None:
        """A password is asked for twice."""
        asked: list[str] = []

        def ask(prompt: str) -> str:
            asked.append(prompt)
            return "secret"

        self.users("set", "--iterations", "4096", str(self.path), "carol", ask=ask)
        self.assertEqual(asked, ["Password of carol: ", "Again: "])
        self.assertTrue(self.password("carol", "secret"))

    def test_differ(self) -> None:
        """Two passwords that differ change nothing."""
        before = self.path.read_bytes()
        error = self.assertRaises(CommandFailed, self.users, "set", str(self.path), "alice", ask=lambda prompt: prompt)
        self.assertIn("differ", str(error))
        self.assertEqual(self.path.read_bytes(), before)

    def test_setFromInput(self) -> None:
        """With C{--password-stdin} the first line is the password, and nobody is asked."""

        def ask(prompt: str) -> str:
            self.fail(f"asked {prompt}")

        path = str(self.path)
        self.users("set", "--password-stdin", path, "alice", stdin="new secret \r\nmore", ask=ask)
        self.assertTrue(self.password("alice", "new secret "))
        self.assertRaisesRegex(
            CommandFailed, "a password has at least one", self.users, "set", "--password-stdin", path, "alice", ask=ask
        )

    def test_removeAndList(self) -> None:
        """The list has names, mechanisms and iterations, and nothing secret."""
        path = str(self.path)
        self.assertEqual(
            self.users("list", path).splitlines(),
            [f"{name}  SCRAM-SHA-256 (4096), SCRAM-SHA-512 (4096)" for name in ("alice", "bob")],
        )
        self.assertEqual(self.users("remove", path, "alice"), "")
        self.assertEqual([line.split()[0] for line in self.users("list", path).splitlines()], ["bob"])

    def test_mistakes(self) -> None:
        """A mistake is answered with one sentence."""
        path = str(self.path)
        for arguments, words in (
            ([], "say what to do: set, remove or list"),
            (["set", path], "Wrong number of arguments"),
            (["set", path, "carol", "secret"], "Wrong number of arguments"),
            (["add", path], "Unknown command: add"),
            (["remove", path, "carol"], "there is no user 'carol'"),
            (["list", path + ".not"], "cannot be read: No such file"),
            (["set", "--iterations", "1", path, "carol"], "4096 to 1000000 iterations"),
            (["set", "--iterations", "many", path, "carol"], "many"),
        ):
            error = self.assertRaises((UsageError, CommandFailed), self.users, *arguments, ask=lambda prompt: "x")
            self.assertIn(words, str(error))
            self.assertNotIn("\n", str(error))

"""Tests for L{admission.kafka.security.passwordfile}."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.scram import HASHES, MIN_ITERATIONS
from admission.kafka.security import passwordfile
from admission.kafka.security.passwordfile import (
    DEFAULT_ITERATIONS,
    PasswordFile,
    PasswordFileError,
    Users,
    changeUsers,
    formatUsers,
    parseUsers,
    readUsers,
)

KEY = b"k" * 32


def usersOf(*names: str, iterations: int = MIN_ITERATIONS) -> Users:
    """Users whose passwords are their names backwards."""
    users = Users(KEY)
    for name in names:
        users.setPassword(name, name[::-1], iterations)
    return users


class UsersTests(SynchronousTestCase):
    """L{Users} are written as a text and read again."""

    def test_roundTrip(self) -> None:
        """Whatever names there are, all of it comes back."""
        users = usersOf("alice", "zoë", "a:b", "a\u2028b", "#x", "CN=client,O=Acme")
        again = parseUsers(formatUsers(users))
        self.assertEqual((again.key, again.secretsByName), (users.key, users.secretsByName))

    def test_lines(self) -> None:
        """After the first line there is one for each user and mechanism, without the password."""
        first, *lines = formatUsers(usersOf("alice")).splitlines()
        self.assertEqual(first, f"admission users 1 {KEY.hex()}")
        self.assertEqual([line.split(":")[:3] for line in lines], [["alice", each, "4096"] for each in HASHES])
        self.assertNotIn("ecila", "".join(lines))

    def test_salts(self) -> None:
        """The same password is another secret each time."""
        users = usersOf("alice")
        before = users.secretsByName["alice"]
        users.setPassword("alice", "ecila", MIN_ITERATIONS)
        for mechanism in HASHES:
            self.assertNotEqual(users.secretsByName["alice"][mechanism], before[mechanism])
            self.assertTrue(users.secretsByName["alice"][mechanism].isPassword(b"ecila"))

    def test_unusable(self) -> None:
        """Names that would break the file, empty passwords and iterations that clients refuse are refused."""
        users = Users(KEY)
        for name in ("", " ", "a ", "\ta", "a\nb", "a\0b"):
            self.assertRaisesRegex(PasswordFileError, "cannot be a name", users.setPassword, name, "x")
        for password in ("", "a\0b"):
            self.assertRaisesRegex(PasswordFileError, "a password has", users.setPassword, "a", password)
        self.assertRaisesRegex(PasswordFileError, "is text", users.setPassword, "a", "\udcff")
        for iterations in (0, 4095, 1_000_001):
            self.assertRaisesRegex(PasswordFileError, "4096 to 1000000", users.setPassword, "a", "x", iterations)
        self.assertEqual(users.secretsByName, {})

    def test_remove(self) -> None:
        """Only who is there can be removed."""
        users = usersOf("alice")
        users.remove("alice")
        self.assertEqual(users.secretsByName, {})
        self.assertRaisesRegex(PasswordFileError, "no user 'alice'", users.remove, "alice")

    def test_malformed(self) -> None:
        """What is no password file is refused, and a line that is wrong by its number; what it says is not repeated."""
        for text in ("", "\n", "alice:secret\n", "admission users 2 " + KEY.hex(), "admission users 1 ff"):
            self.assertRaisesRegex(PasswordFileError, "not a password file", parseUsers, text)
        good = formatUsers(usersOf("alice"))
        header, line, _ = good.splitlines()
        name, mechanism, iterations, salt, stored, server = line.split(":")
        for wrong in (
            "alice",
            f":{mechanism}:{iterations}:{salt}:{stored}:{server}",
            f"{name}:SCRAM-SHA-1:{iterations}:{salt}:{stored}:{server}",
            f"{name}:{mechanism}:many:{salt}:{stored}:{server}",
            f"{name}:{mechanism}:4095:{salt}:{stored}:{server}",
            f"{name}:{mechanism}:{iterations}::{stored}:{server}",
            f"{name}:{mechanism}:{iterations}:{salt}:{stored}:AAAA",
            f"{name}:{mechanism}:{iterations}:{salt}:*{stored}:{server}",
        ):
            error = self.assertRaises(PasswordFileError, parseUsers, f"{header}\n{line}\n\n{wrong}\n")
            self.assertIn("line 4 is not NAME:MECHANISM", str(error))
            self.assertNotIn(stored, str(error))

    def test_repr(self) -> None:
        """No key is in the C{repr}."""
        users = usersOf("alice")
        self.assertNotIn(repr(KEY), repr(users))
        self.assertNotIn(repr(users.secretsByName["alice"]["SCRAM-SHA-256"].serverKey), repr(users))


class FileTestCase(SynchronousTestCase):
    """A test with a password file."""

    def setUp(self) -> None:
        """The users are alice and bob."""
        self.path = Path(self.mktemp())
        self.path.write_text(formatUsers(usersOf("alice", "bob")), encoding="utf-8")


class ChangeUsersTests(FileTestCase):
    """L{changeUsers} writes all or nothing."""

    def test_change(self) -> None:
        """The file has the change, its key is the same, nobody else can read it, and nothing is left beside it."""
        self.path.chmod(0o644)
        changeUsers(self.path, lambda users: users.remove("bob"))
        users = readUsers(self.path)
        self.assertEqual((users.key, list(users.secretsByName)), (KEY, ["alice"]))
        self.assertEqual(stat.S_IMODE(self.path.stat().st_mode), 0o600)
        self.assertEqual([each.name for each in self.path.parent.iterdir() if each.name.endswith(".new")], [])

    def test_owner(self) -> None:
        """The owner stays, whichever user changes the file, or the broker could no longer read it."""
        owners: list[tuple[int, int]] = []
        self.patch(os, "fchown", lambda descriptor, user, group: owners.append((user, group)))
        changeUsers(self.path, lambda users: users.remove("bob"))
        status = self.path.stat()
        self.assertEqual(owners, [(status.st_uid, status.st_gid)])

    def test_link(self) -> None:
        """A link stays one."""
        link = Path(self.mktemp())
        link.symlink_to(self.path.resolve())
        changeUsers(link, lambda users: users.remove("bob"))
        self.assertTrue(link.is_symlink())
        self.assertEqual(list(readUsers(self.path).secretsByName), ["alice"])

    def test_refused(self) -> None:
        """A change that fails leaves the file as it was, and can be tried again."""
        before = self.path.read_bytes()
        self.assertRaises(PasswordFileError, changeUsers, self.path, lambda users: users.remove("carol"))
        self.assertEqual(self.path.read_bytes(), before)
        changeUsers(self.path, lambda users: users.remove("bob"))

    def test_tooLarge(self) -> None:
        """A file that could not be read any more is not written."""
        before = self.path.read_bytes()
        self.patch(passwordfile, "MAX_FILE_BYTES", len(before))
        changeUsers(self.path, lambda users: users.setPassword("bob", "b", MIN_ITERATIONS))
        before = self.path.read_bytes()
        error = self.assertRaises(
            PasswordFileError, changeUsers, self.path, lambda users: users.setPassword("carol", "c", MIN_ITERATIONS)
        )
        self.assertIn("would have more than ", str(error))
        self.assertEqual(self.path.read_bytes(), before)

    def test_notAPasswordFile(self) -> None:
        """Another file is not overwritten."""
        self.path.write_text("-----BEGIN PRIVATE KEY-----\n")
        self.assertRaisesRegex(
            PasswordFileError, "not a password file", changeUsers, self.path, lambda users: None, mayCreate=True
        )
        self.assertEqual(self.path.read_text(), "-----BEGIN PRIVATE KEY-----\n")

    def test_create(self) -> None:
        """A file is only made where that is allowed, each with a key of its own."""
        missing = Path(self.mktemp())
        self.assertRaisesRegex(PasswordFileError, "No such file", changeUsers, missing, lambda users: None)
        self.assertFalse(missing.exists())
        changeUsers(missing, lambda users: users.setPassword("carol", "x"), mayCreate=True)
        users = readUsers(missing)
        self.assertEqual(list(users.secretsByName), ["carol"])
        self.assertEqual({each.iterations for each in users.secretsByName["carol"].values()}, {DEFAULT_ITERATIONS})
        self.assertNotEqual(users.key, KEY)

    def test_oneAtATime(self) -> None:
        """A caller that comes while somebody else changes the file is refused, so that neither change is lost."""

        def changeAgain(users: Users) -> None:
            error = self.assertRaises(PasswordFileError, changeUsers, self.path, lambda users: None)
            self.assertIn("somebody else is changing", str(error))
            users.remove("bob")

        changeUsers(self.path, changeAgain)
        self.assertEqual(list(readUsers(self.path).secretsByName), ["alice"])

    def test_noDirectory(self) -> None:
        """A directory that is not there is said so."""
        self.assertRaisesRegex(
            PasswordFileError, "cannot be written", changeUsers, self.path / "x", lambda users: None, mayCreate=True
        )


class PasswordFileTests(FileTestCase):
    """L{PasswordFile} knows who is in it now."""

    def setUp(self) -> None:
        """What C{stat} says is up to the test."""
        super().setUp()
        self.modified = 1

        def look(path: str) -> Any:
            if self.modified < 0:
                raise FileNotFoundError(path)
            return SimpleNamespace(st_ino=1, st_size=1, st_mtime_ns=self.modified)

        self.file = PasswordFile(str(self.path), look)

    def isKnown(self, name: str) -> bool:
        """Whether C{name} can log in with its password."""
        return self.file.secretOf(name, "SCRAM-SHA-256").isPassword(name[::-1].encode())

    def rewrite(self, users: Users) -> None:
        """Change the file behind everybody's back."""
        self.path.write_text(formatUsers(users), encoding="utf-8")

    def test_change(self) -> None:
        """A change counts when the time of the file shows it, and not before: it is not read for every login."""
        self.assertTrue(self.isKnown("alice"))
        self.rewrite(usersOf("carol"))
        self.assertTrue(self.isKnown("alice"))
        self.assertFalse(self.isKnown("carol"))
        self.modified = 2
        self.assertTrue(self.isKnown("carol"))
        self.assertFalse(self.isKnown("alice"))

    def test_broken(self) -> None:
        """A file that has become useless, or is gone, leaves the users as they were, and is reported once."""

        def breakFile() -> None:
            self.path.write_text("nonsense")
            self.modified = 2

        def replaceFile() -> None:
            self.path.unlink()
            os.mkfifo(self.path)
            self.modified = 3

        def removeFile() -> None:
            self.path.unlink()
            self.modified = -1

        for happens, reason in (
            (breakFile, "not a password file"),
            (replaceFile, "not a regular file"),
            (removeFile, "cannot be read"),
        ):
            happens()
            with capturedLogs() as logged:
                self.assertTrue(self.isKnown("alice"))
                self.assertTrue(self.isKnown("bob"))
            (event,) = logged
            self.assertEqual(event["log_level"], LogLevel.error)
            self.assertIn(reason, str(formatEvent(event)))
        self.rewrite(usersOf("carol"))
        self.modified = 4
        self.assertTrue(self.isKnown("carol"))

    def test_unusable(self) -> None:
        """One that is useless from the beginning is refused in words."""
        self.path.write_bytes(b"\xff")
        self.assertRaisesRegex(PasswordFileError, "cannot be used: it is not UTF-8", PasswordFile, str(self.path))
        self.path.unlink()
        self.assertRaisesRegex(PasswordFileError, "cannot be read: No such file", PasswordFile, str(self.path))

    def test_unknownName(self) -> None:
        """
        An unknown name has a salt and iterations like the others, always the
        same, and different from those of other names.
        """
        for mechanism in HASHES:
            known, unknown = self.file.secretOf("alice", mechanism), self.file.secretOf("mallory", mechanism)
            self.assertEqual(
                (unknown.mechanism, unknown.iterations, len(unknown.salt), len(unknown.storedKey)),
                (known.mechanism, known.iterations, len(known.salt), len(known.storedKey)),
            )
            self.assertEqual(unknown, self.file.secretOf("mallory", mechanism))
            self.assertEqual(unknown, PasswordFile(str(self.path)).secretOf("mallory", mechanism))
            self.assertNotEqual(unknown.salt, self.file.secretOf("oscar", mechanism).salt)
            self.assertFalse(unknown.isPassword(b"yrollam"))

    def test_unknownAmongUnequal(self) -> None:
        """Where users differ in their iterations, unknown names do as well."""
        users = usersOf("alice")
        users.setPassword("bob", "x", 5000)
        self.rewrite(users)
        self.modified = 2
        iterations = {self.file.secretOf(f"name {number}", "SCRAM-SHA-512").iterations for number in range(50)}
        self.assertEqual(iterations, {4096, 5000})

    def test_unknownToOthers(self) -> None:
        """Another file has other salts for unknown names."""
        other = Path(self.mktemp())
        other.write_text(formatUsers(Users()))
        name, mechanism = "mallory", "SCRAM-SHA-256"
        theirs = PasswordFile(str(other)).secretOf(name, mechanism)
        self.assertEqual(theirs.iterations, DEFAULT_ITERATIONS)
        self.assertNotEqual(theirs.salt, self.file.secretOf(name, mechanism).salt)

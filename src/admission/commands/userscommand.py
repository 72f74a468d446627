# -*- test-case-name: tests.unit.commands.test_userscommand -*-
"""
The command C{admission users}: who is in a password file.
"""

from __future__ import annotations

from collections.abc import Callable
from getpass import getpass
from typing import TextIO

from twisted.python.usage import Options, UsageError

from ..kafka.security.passwordfile import DEFAULT_ITERATIONS, PasswordFileError, changeUsers, readUsers


class ListOptions(Options):
    """
    C{list FILE}.
    """

    synopsis = "FILE"

    def parseArgs(self, path: str) -> None:  # type: ignore[override]
        """
        @param path: the password file.
        """
        self["path"] = path


class RemoveOptions(Options):
    """
    C{remove FILE NAME}.
    """

    synopsis = "FILE NAME"

    def parseArgs(self, path: str, name: str) -> None:  # type: ignore[override]
        """
        @param path: the password file.
        @param name: the user.
        """
        self["path"], self["name"] = path, name


class SetOptions(RemoveOptions):
    """
    C{set FILE NAME}.  A password is never an argument, where every process
    could read it.
    """

    synopsis = "[options] FILE NAME"
    optFlags = [["password-stdin", None, "Read the password from the first line of the standard input."]]
    optParameters = [["iterations", None, DEFAULT_ITERATIONS, "How often to hash it.", int]]


class UsersOptions(Options):
    """
    C{users set|remove|list FILE [NAME]}.
    """

    synopsis = "set|remove|list FILE [NAME]"
    longdesc = (
        "Keep the users of a broker that runs with --auth scram:FILE.  The file has hashed passwords; a broker that "
        "runs reads it again when it changes."
    )
    subCommands = [
        ["set", None, SetOptions, "Add a user or change the password of one; makes the file if there is none."],
        ["remove", None, RemoveOptions, "Remove a user."],
        ["list", None, ListOptions, "List the users, with their mechanisms and iterations."],
    ]

    def postOptions(self) -> None:
        """
        @raise UsageError: if there is no command.
        """
        if self.subCommand is None:
            raise UsageError("users: say set, remove or list")


def run(options: UsersOptions, stdin: TextIO, stdout: TextIO, askPassword: Callable[[str], str] = getpass) -> None:
    """
    Do what C{options} say.

    @param askPassword: asks for a password without showing it.
    @raise UsageError: if that cannot be done, in a sentence.
    """
    given = options.subOptions
    try:
        if options.subCommand == "set":
            _set(given, stdin, askPassword)
        elif options.subCommand == "remove":
            changeUsers(given["path"], lambda users: users.remove(given["name"]))
        else:
            _list(given["path"], stdout)
    except PasswordFileError as error:
        raise UsageError(str(error)) from error


def _set(given: SetOptions, stdin: TextIO, askPassword: Callable[[str], str]) -> None:
    name = given["name"]
    if given["password-stdin"]:
        password = stdin.readline().rstrip("\r\n")
    else:
        password = askPassword(f"Password of {name}: ")
        if password != askPassword("Again: "):
            raise UsageError("the two passwords differ; nothing was changed")
    changeUsers(given["path"], lambda users: users.setPassword(name, password, given["iterations"]), mayCreate=True)


def _list(path: str, stdout: TextIO) -> None:
    for name, secrets in sorted(readUsers(path).secretsByName.items()):
        described = ", ".join(f"{mechanism} ({secret.iterations})" for mechanism, secret in secrets.items())
        stdout.write(f"{name}  {described}\n")

# -*- test-case-name: tests.unit.commands.kafka.test_userscommand -*-
"""
The command C{admission users}: the users in a password file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TextIO

from admission.completions import FILES, completing
from admission.kafka.security.passwordfile import DEFAULT_ITERATIONS, PasswordFileError, changeUsers, readUsers

from ..console import CommandFailed, CommandGroup, CommandOptions, askPassword

_ASK = partial(askPassword, "--password-stdin")


class ListOptions(CommandOptions):
    """
    C{list FILE}.
    """

    synopsis = "FILE"
    examples = ("users list passwords.txt",)
    compData = completing(FILES)

    def parseArgs(self, path: str) -> None:  # type: ignore[override]
        self["path"] = path


class RemoveOptions(CommandOptions):
    """
    C{remove FILE NAME}.
    """

    synopsis = "FILE NAME"
    examples: ClassVar[Sequence[str]] = ("users remove passwords.txt alice",)
    compData = ListOptions.compData

    def parseArgs(self, path: str, name: str) -> None:  # type: ignore[override]
        self["path"], self["name"] = path, name


class SetOptions(RemoveOptions):
    """
    C{set FILE NAME}.
    """

    synopsis = "[options] FILE NAME"
    longdesc = "Asks for a password, which is never an argument because other processes can read arguments."
    examples = (
        "users set passwords.txt alice",
        "users set --password-stdin passwords.txt alice < secret",
    )
    optFlags = [["password-stdin", None, "Read the password from the first line of the standard input."]]
    optParameters = [["iterations", None, DEFAULT_ITERATIONS, "How often to hash it.", int]]


class UsersOptions(CommandGroup):
    """
    C{users set|remove|list FILE [NAME]}.
    """

    longdesc = (
        "Keep the users of a broker that runs with --auth scram:FILE.  The file has hashed passwords; a broker that "
        "runs reads it again when it changes."
    )
    subCommands = [
        ["set", None, SetOptions, "Add a user or change the password of one; makes the file if there is none."],
        ["remove", None, RemoveOptions, "Remove a user."],
        ["list", None, ListOptions, "List the users, with their mechanisms and iterations."],
    ]


def run(options: UsersOptions, stdin: TextIO, stdout: TextIO, askPassword: Callable[[str], str] = _ASK) -> None:
    """
    @param askPassword: asks for a password without showing it.
    """
    given: Any = options.subOptions
    try:
        if options.subCommand == "set":
            _set(given, stdin, askPassword)
        elif options.subCommand == "remove":
            changeUsers(given["path"], lambda users: users.remove(given["name"]))
        else:
            _list(given["path"], stdout)
    except PasswordFileError as error:
        raise CommandFailed(str(error)) from error


def _set(given: SetOptions, stdin: TextIO, askPassword: Callable[[str], str]) -> None:
    name = given["name"]
    if given["password-stdin"]:
        password = stdin.readline().rstrip("\r\n")
    else:
        password = askPassword(f"Password of {name}: ")
        if password != askPassword("Again: "):
            raise CommandFailed("the two passwords differ; nothing was changed")
    changeUsers(given["path"], lambda users: users.setPassword(name, password, given["iterations"]), mayCreate=True)


def _list(path: str, stdout: TextIO) -> None:
    for name, secrets in sorted(readUsers(path).secretsByName.items()):
        described = ", ".join(f"{mechanism} ({secret.iterations})" for mechanism, secret in secrets.items())
        stdout.write(f"{name}  {described}\n")

# -*- test-case-name: tests.unit.test_cli -*-
"""
The command C{admission}, for operators of servers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import chain
from textwrap import fill
from typing import Any

from attrs import frozen
from twisted.python.reflect import namedAny
from twisted.python.usage import Options, UsageError

from .commands.console import CommandFailed, CommandGroup
from .extras import explaining
from .plaintext import escapeUnencodable

FAILED = 1
MISUSED = 2
INTERRUPTED = 130


@frozen
class Command:
    """
    A command.  Until it is used it consists of strings only, so that no command
    has to wait for the imports of another.

    @ivar name: the word that selects it.
    @ivar help: what it does, in one line.
    @ivar options: the full name of its L{Options <twisted.python.usage.Options>}.
    @ivar run: the full name of the function that runs it.  The function takes the
        parsed options, a stream to read from and one to write to, and raises
        L{CommandFailed} if the command fails.
    """

    name: str
    help: str
    options: str
    run: str

    def makeOptions(self) -> Options:
        """
        @raise CommandFailed: if an extra is missing.
        """
        with explaining(self.name, CommandFailed):
            make = namedAny(self.options)  # type: ignore[no-untyped-call]
        options: Options = make()
        return options

    def resolve(self) -> Any:
        return namedAny(self.run)  # type: ignore[no-untyped-call]


COMMANDS_BY_HEADING = {
    "While a server runs (asks its status port)": (
        Command(
            "explain",
            "Tell why a client is throttled, or how far it is from that.",
            "admission.commands.explaincommand.ExplainOptions",
            "admission.commands.explaincommand.run",
        ),
        Command(
            "top",
            "Watch a server in the terminal.",
            "admission.commands.topcommand.TopOptions",
            "admission.commands.topcommand.run",
        ),
        Command(
            "memory",
            "Tell where the memory of a server is.",
            "admission.commands.memorycommand.MemoryOptions",
            "admission.commands.memorycommand.run",
        ),
    ),
    "While a broker or a gateway runs (connects as a client)": (
        Command(
            "quotas",
            "See and change the limits of clients while a broker runs.",
            "admission.commands.kafka.quotascommand.QuotasOptions",
            "admission.commands.kafka.quotascommand.run",
        ),
        Command(
            "topics",
            "See the topics of a broker, and how large they are.",
            "admission.commands.kafka.topicscommand.TopicsOptions",
            "admission.commands.kafka.topicscommand.run",
        ),
        Command(
            "groups",
            "See the consumer groups of a broker, and how far they are behind.",
            "admission.commands.kafka.groupscommand.GroupsOptions",
            "admission.commands.kafka.groupscommand.run",
        ),
    ),
    "Before a broker or a gateway runs, and its data": (
        Command(
            "doctor",
            "Tell whether a broker can run here, and what would help it.",
            "admission.commands.kafka.doctorcommand.brokerOptions",
            "admission.commands.kafka.doctorcommand.run",
        ),
        Command(
            "doctor-gateway",
            "The same for a gateway.",
            "admission.commands.kafka.doctorcommand.gatewayOptions",
            "admission.commands.kafka.doctorcommand.run",
        ),
        Command(
            "users",
            "Keep the password file of a broker.",
            "admission.commands.kafka.userscommand.UsersOptions",
            "admission.commands.kafka.userscommand.run",
        ),
        Command(
            "data",
            "Check, back up or restore the data of a broker.",
            "admission.commands.kafka.datacommand.DataOptions",
            "admission.commands.kafka.datacommand.run",
        ),
    ),
    "Recordings": (
        Command(
            "recording",
            "Copy a recording to a bucket or another disk.",
            "admission.commands.recordingcommand.RecordingOptions",
            "admission.commands.recordingcommand.run",
        ),
        Command(
            "synth",
            "Make a recording of clients that do not exist.",
            "admission.commands.synthcommand.SynthOptions",
            "admission.commands.synthcommand.run",
        ),
        Command(
            "evaluate",
            "Tell what other policies would have done with a recording.",
            "admission.commands.offlinecommands.EvaluateOptions",
            "admission.commands.offlinecommands.runEvaluate",
        ),
        Command(
            "aggregate",
            "Sum up a recording.",
            "admission.commands.offlinecommands.AggregateOptions",
            "admission.commands.offlinecommands.runAggregate",
        ),
        Command(
            "audit",
            "Check a recording against its quotas and its memory.",
            "admission.commands.offlinecommands.AuditOptions",
            "admission.commands.offlinecommands.runAudit",
        ),
        Command(
            "replay",
            "Replay a recording under other policies.",
            "admission.commands.offlinecommands.ReplayOptions",
            "admission.commands.offlinecommands.runReplay",
        ),
        Command(
            "report",
            "Write a page about results.",
            "admission.commands.offlinecommands.ReportOptions",
            "admission.commands.offlinecommands.runReport",
        ),
    ),
    "In your shell": (
        Command(
            "completion",
            "Write the script by which a shell completes command lines.",
            "admission.commands.completioncommand.CompletionOptions",
            "admission.commands.completioncommand.run",
        ),
    ),
}
"""All commands, below the headings of C{admission --help}."""

COMMANDS = tuple(chain.from_iterable(COMMANDS_BY_HEADING.values()))


class AdmissionOptions(CommandGroup):
    """
    C{admission}.
    """

    longdesc = (
        "Look into servers that run, and change their limits; prepare brokers and gateways, and keep their data; tell "
        "from recordings what other policies would have done."
    )
    examples = (
        "quotas describe",
        "quotas set --client-id-default producer_byte_rate=4M",
        "topics list",
        "groups lag billing",
        "explain --client-id reports --user alice",
        "top",
        "doctor --data /var/lib/admission",
        "data check /var/lib/admission",
        "evaluate recording --out results --candidate client-bytes:produce=4M",
        "users set passwords.txt alice",
    )
    note = "Each command has its own --help."
    subCommands = [[each.name, None, each.makeOptions, each.help] for each in COMMANDS]

    def getUsage(self, width: int | None = None) -> str:
        """
        The usage text, with the commands below their headings.  Twisted lists them in the order of the alphabet.
        """
        before, title, after = super().getUsage(width).partition("Commands:\n")
        if not title:
            return before
        columns = width or int(os.environ.get("COLUMNS", "80"))
        indent = " " * (4 + max(len(each.name) for each in COMMANDS))
        for heading, commands in COMMANDS_BY_HEADING.items():
            before += f"\n{heading}:\n"
            for each in commands:
                name = f"  {each.name}".ljust(len(indent))
                before += fill(each.help, columns, initial_indent=name, subsequent_indent=indent) + "\n"
        return before + "\n" + after.partition("\n\n")[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run a command.

    @param arguments: by default the arguments of the process.
    @return: the exit status: 0, L{FAILED}, L{MISUSED} or L{INTERRUPTED}.
    """
    escapeUnencodable(sys.stdout, sys.stderr)
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else list(arguments))
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone. Python would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _run(arguments: list[str]) -> int:
    options = AdmissionOptions()  # type: ignore[no-untyped-call]
    try:
        # Python represents other bytes by surrogates, which messages of the protocol cannot contain.
        " ".join(arguments).encode("utf-8")
    except UnicodeEncodeError as error:
        return _complain(f"{error.object!a} is not UTF-8; names of users and clients are", MISUSED)
    try:
        if arguments[-2:-1] == ["--_shell-completion"]:
            from .commands.completioncommand import completed

            sys.stdout.write(completed(options, arguments[:-2], arguments[-1]))
            return 0
        options.parseOptions(arguments)  # type: ignore[no-untyped-call]
    except UsageError as error:
        # Some messages of Twisted are whole sentences.
        return _complain(f"{str(error).rstrip('.')}; see {' '.join(_path(options))} --help", MISUSED)
    except CommandFailed as error:
        return _complain(str(error), FAILED)
    (command,) = (each for each in COMMANDS if each.name == options.subCommand)
    try:
        command.resolve()(options.subOptions, sys.stdin, sys.stdout)
    except CommandFailed as error:
        return _complain(str(error), FAILED)
    except EOFError:
        return _complain("nobody is there to type a password; --password-stdin or --password-file take one", FAILED)
    return 0


def _path(options: Options) -> list[str]:
    """
    The words of the command line up to the subcommand that was parsed last.
    """
    words = ["admission"]
    while options.subCommand is not None:
        words.append(options.subCommand)
        options = options.subOptions
    return words


def _complain(sentence: str, status: int) -> int:
    sys.stderr.write(f"admission: {sentence}\n")
    return status

# -*- test-case-name: tests.unit.commands.kafka.test_datacommand -*-
"""
The command C{admission data}: the directory in which a broker keeps its data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TextIO

from twisted.python.usage import UsageError

from admission.completions import DIRECTORIES, completing
from admission.kafka.broker.groups.groupstore import committedOffsets
from admission.kafka.broker.log.logbackup import LogBackup, copiedBytes, copyLog, markUnclean, refuseOccupied
from admission.kafka.broker.log.logcheck import LogReport, Problem, checkLog, described, logBytes
from admission.kafka.storage.datadirectory import DOCUMENTS, PARTITIONS, lockHolder
from admission.kafka.storage.itable import LogRefusal
from admission.plaintext import printable, table
from admission.units import roundedBytes

from ..console import CommandFailed, CommandGroup, CommandOptions, DirectoryOptions, Progress


class CheckOptions(DirectoryOptions):
    """
    C{check DIRECTORY}.
    """

    missing = "name the directory: that of --data, or that of one partition"
    synopsis = "DIRECTORY"
    longdesc = (
        "Reads everything that a broker keeps in a directory, compares all checksums, and lists what there is, what is "
        "damaged, and what the next start would cut off.  Nothing is changed.  The broker must be stopped: back up a "
        "broker that runs, and the copy is checked.  The exit status is 1 if something is lost.  The directory of one "
        "partition can be named as well, also one that Kafka has written."
    )
    examples: ClassVar[Sequence[str]] = (
        "data check /var/lib/admission",
        "data check /var/lib/kafka/events-0",
    )


class _TwoDirectories(CommandOptions):
    """
    Options with two directories.
    """

    names: ClassVar[Sequence[str]] = ("directory", "destination")
    missing: ClassVar[str] = ""
    compData = completing(DIRECTORIES, DIRECTORIES)

    def parseArgs(self, *directories: str) -> None:
        """
        @raise UsageError: unless there are two directories.
        """
        if len(directories) != 2 or not all(directories):
            raise UsageError(self.missing)
        for name, directory in zip(self.names, directories, strict=True):
            self[name] = directory


class BackupOptions(_TwoDirectories):
    """
    C{backup DIRECTORY DESTINATION}.
    """

    missing = "name the directory of the broker, and a new one for the copy"
    synopsis = "DIRECTORY DESTINATION"
    longdesc = (
        "Copies what a broker keeps, whether it runs or not, and checks the copy.  Everything that was confirmed "
        "before the command began is in it; groups have committed nothing that is not.  The destination is made if it "
        "is not there, and must be empty."
    )
    examples = ("data backup /var/lib/admission /mnt/backup/monday",)
    note = "The copy has all records, whatever the rights of those who could read them: keep it as you keep the data."


class RestoreOptions(_TwoDirectories):
    """
    C{restore BACKUP DIRECTORY}.
    """

    names = ("backup", "directory")
    missing = "name the backup, and a new directory for the broker"
    synopsis = "[options] BACKUP DIRECTORY"
    longdesc = (
        "Checks a backup, and copies it into a directory that a broker can use.  The directory is made if it is not "
        "there, and must be empty."
    )
    optFlags = [["despite-damage", None, "Restore what is left of a backup that is damaged."]]
    examples = ("data restore /mnt/backup/monday /var/lib/admission",)
    note = "Run it as the user that the broker runs as."


class DataOptions(CommandGroup):
    """
    C{data check|backup|restore}.
    """

    longdesc = "Look after the directory that a broker has been given with --data."
    subCommands = [
        ["check", None, CheckOptions, "Read everything, and tell what is damaged."],
        ["backup", None, BackupOptions, "Copy the data, also while the broker runs."],
        ["restore", None, RestoreOptions, "Make a directory for a broker from a backup."],
    ]


def run(options: DataOptions, stdin: TextIO, stdout: TextIO) -> None:
    """
    Run the command; see L{admission.cli.Command}.
    """
    given: Any = options.subOptions
    commands: dict[str, Callable[[Any, TextIO], None]] = {
        "check": _check,
        "backup": _backup,
        "restore": _restore,
    }
    with _failing():
        commands[str(options.subCommand)](given, stdout)


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except LogRefusal as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(described(error)) from error


def _check(given: CheckOptions, stdout: TextIO) -> None:
    path = given["directory"]
    _refuseMissing(path)
    if holder := lockHolder(path):
        raise CommandFailed(
            f"{path} is in use by {holder}: stop the broker first, or let admission data backup check a copy"
        )
    with Progress("reading", logBytes(path)) as progress:
        report = checkLog(path, progress)
    _noteOffsetsBeyond(report)
    stdout.write(_describeLog(report))
    _refuseLosses(path, report)


def _backup(given: BackupOptions, stdout: TextIO) -> None:
    source, destination = given["directory"], given["destination"]
    _refuseNoLog(source)
    refuseOccupied(destination)
    _refuseInside(source, destination)
    _make(destination)
    with Progress("copying", logBytes(source)) as progress:
        LogBackup(source, destination, progress).run()
    with Progress("checking the copy", logBytes(destination)) as progress:
        report = checkLog(destination, progress)
    _refuseLosses(destination, report)
    stdout.write(f"{destination} has {_amount(report)}; all checksums are right.\n")
    stdout.write(f"To use it: admission data restore {destination} DIRECTORY\n")


def _restore(given: RestoreOptions, stdout: TextIO) -> None:
    backup, directory = given["backup"], given["directory"]
    _refuseNoLog(backup)
    refuseOccupied(directory)
    _refuseInside(backup, directory)
    with Progress("checking the backup", logBytes(backup)) as progress:
        report = checkLog(backup, progress)
    if report.losses and not given["despite-damage"]:
        stdout.write(_problems(report))
        raise CommandFailed(
            f"{backup} is damaged in {len(report.losses)} places: take another, or restore what is left with"
            " --despite-damage"
        )
    _make(directory)
    with Progress("copying", copiedBytes(backup)) as progress:
        copyLog(backup, directory, progress)
    markUnclean(directory)
    stdout.write(_problems(report))
    stdout.write(
        f"{directory} has {_amount(report)}.\n"
        f"Start the broker with --data {directory}.  What was produced or committed after the backup is not there;\n"
        "consumers that had read further notice that, and go on where the log ends.\n"
    )


def _refuseMissing(path: str) -> None:
    if not os.path.isdir(path):
        raise CommandFailed(f"{path} is {'a file, not a directory' if os.path.exists(path) else 'not there'}")


def _refuseNoLog(path: str) -> None:
    _refuseMissing(path)
    if not os.path.isdir(os.path.join(path, DOCUMENTS)):
        raise CommandFailed(f"{path} is not the directory of a broker, which has {DOCUMENTS} and {PARTITIONS}")


def _refuseInside(source: str, destination: str) -> None:
    outer, inner = os.path.realpath(source), os.path.realpath(destination)
    if os.path.commonpath([outer, inner]) == outer:
        raise CommandFailed(f"{destination} is inside {source}; name a directory elsewhere, best on another disk")


def _make(path: str) -> None:
    os.makedirs(path, mode=0o700, exist_ok=True)


def _refuseLosses(path: str, report: LogReport) -> None:
    losses = report.losses
    if losses:
        places = "one place" if len(losses) == 1 else f"{len(losses)} places"
        raise CommandFailed(
            f"something is lost in {path}, in {places}: {printable(losses[0].where)} {printable(losses[0].what)}"
        )


def _noteOffsetsBeyond(report: LogReport) -> None:
    """
    Note partitions that end before what groups have committed: that records are missing at the end shows in nothing
    else.  It is no proof, because clients may commit any offset.
    """
    ends = {each.name: each.nextOffset for each in report.partitions}
    names = {
        partition.number: f"{topic.name}-{partition.index}"
        for topic in report.topics.values()
        for partition in topic.partitions
    }
    beyond: dict[str, int] = {}
    for number, offset in committedOffsets(report.documents.get("offsets", {})):
        name = names.get(number)
        if name is not None and offset > max(ends.get(name, 0), beyond.get(name, 0)):
            beyond[name] = offset
    for name, offset in beyond.items():
        what = f"ends at offset {ends.get(name, 0)}, and a group has committed {offset}: records may be missing"
        report.problems.append(Problem(name, what, False))


def _amount(report: LogReport) -> str:
    records = sum(each.recordCount for each in report.partitions)
    sizeBytes = sum(each.sizeBytes for each in report.partitions)
    return (
        f"{_counted(len(report.topics), 'topic')}, {_counted(len(report.partitions), 'partition')}, "
        f"{_counted(records, 'record')} and {roundedBytes(sizeBytes)} of batches"
    )


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def _describeLog(report: LogReport) -> str:
    parts = []
    if report.format is not None:
        counts = [f"{name} {len(entries):,}" for name, entries in sorted(report.documents.items()) if entries]
        parts.append(
            f"documents   format {report.format}, generation {report.generation}, "
            f"{roundedBytes(report.documentBytes)}: {', '.join(counts)}\n"
        )
    if report.partitions:
        rows = [("partition", "segments", "batches", "records", "bytes", "offsets")]
        for each in report.partitions:
            offsets = f"{each.startOffset} to {each.nextOffset - 1}"
            if each.nextOffset == each.startOffset:
                offsets = f"none, the next is {each.nextOffset}"
            rows.append(
                (
                    each.name,
                    f"{each.segmentCount:,}",
                    f"{each.batchCount:,}",
                    f"{each.recordCount:,}",
                    f"{each.sizeBytes:,}",
                    offsets,
                )
            )
        parts.append(table(rows, "<>>>>"))
    parts.append(_problems(report))
    if not report.losses:
        parts.append(f"Nothing is lost: {_amount(report)}; all checksums are right.\n")
    return "\n".join(filter(None, parts))


def _problems(report: LogReport) -> str:
    rows = [("lost" if each.isLoss else "note", f"{each.where} {each.what}") for each in report.problems]
    return table(rows) if rows else ""

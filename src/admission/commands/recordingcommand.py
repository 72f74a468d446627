# -*- test-case-name: tests.unit.commands.test_recordingcommand -*-
"""
The command C{admission recording}: what becomes of a recording's files.

Functions that need pyarrow import it themselves, so that the help can be read without.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING, Any, TextIO

from attrs import asdict
from twisted.python.usage import UsageError

from ..clock import monotonicSeconds
from ..completions import DIRECTORIES, FILES, completing
from ..extras import lacking
from ..units import parseBytes, parseSeconds, roundedBytes
from .console import ArgumentOptions, CommandFailed, CommandGroup, Progress, parseTimeout

if TYPE_CHECKING:
    from ..shipping.shipper import Counts, Shipper


class ShipOptions(ArgumentOptions):
    """
    C{ship DIRECTORY URL}.

    After parsing, C{directory} and C{url} are keys as well; times are in seconds and sizes in bytes.
    """

    synopsis = "DIRECTORY URL [options]"
    longdesc = (
        "Copies the files of a recording that are complete to a bucket, another disk or HDFS, in the same layout, so "
        "that Spark reads the copy like the recording.  The server may go on recording.  A file is done when the "
        "target has it in the right size; a command that was killed is given again, and goes on where it was.  What "
        "the server has not sealed yet is left to the next time."
    )
    examples = (
        "recording ship /var/lib/admission/recording s3://bucket/recording",
        "recording ship recording /mnt/archive/recording --follow --remove --keep 24h",
        "recording ship recording s3://bucket/r --follow --remove --max-local 10GiB --drop",
        "recording ship recording s3://shared/r --pseudonyms /etc/admission/names.key",
    )
    note = (
        "DIRECTORY is what a broker was given as --export spark:DIRECTORY.  Credentials and settings of S3 are\n"
        "taken from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL, ~/.aws, or the\n"
        "machine's role.  admission evaluate takes the same URLs."
    )
    optFlags = [
        ["follow", "f", "Go on until SIGTERM or Ctrl-C, and ship what is recorded meanwhile."],
        ["remove", None, "Remove files here once the target has them."],
        ["drop", None, "With --max-local: where nothing else brings room, also remove files that the target does not "
         "have, the oldest first.  They are counted."],
        ["json", None, "Print counts as JSON."],
    ]  # fmt: skip
    optParameters = [
        ["every", None, "30s", "With --follow: how often to look for new files."],
        ["timeout", None, "1m", "Without --follow: how long to wait for a target that takes no files."],
        ["keep", None, None, "With --remove: keep files here until they are that old, as in 24h."],
        ["max-local", None, None, "How large DIRECTORY may be, as in 10GiB: beyond that the oldest files that the "
         "target has are removed."],
        ["pseudonyms", None, None, "Replace the names of users, clients, groups and addresses by hashes with the key "
         "in this file, the same name always by the same hash."],
    ]  # fmt: skip

    compData = completing(DIRECTORIES, DIRECTORIES, options={"pseudonyms": FILES})

    def parseArgs(self, *words: str) -> None:
        """
        @raise UsageError: unless there are a directory and a URL.
        """
        if len(words) != 2 or not all(words):
            raise UsageError(
                "name the directory of the recording and where it goes: recording ship DIRECTORY s3://BUCKET/PREFIX"
            )
        self["directory"], self["url"] = words

    def postOptions(self) -> None:
        """
        @raise UsageError: for an invalid value, or an option that would have no effect.
        """
        if self["keep"] is not None and not self["remove"]:
            raise UsageError("--keep says when --remove removes a file; give --remove as well")
        if self["drop"] and self["max-local"] is None:
            raise UsageError("--drop says what --max-local may remove; give --max-local as well")
        self["timeout"] = parseTimeout(self["timeout"])
        self._parse("every", parseSeconds)
        if self["every"] <= 0:
            raise UsageError("--every 0s would look all the time; write 30s or the like")
        self._parse("keep", parseSeconds)
        self._parse("max-local", parseBytes)

    def _parse(self, name: str, parse: Callable[[str], Any]) -> None:
        if self[name] is not None:
            try:
                self[name] = parse(self[name])
            except ValueError as error:
                raise UsageError(f"--{name}: {error}") from error


class RecordingOptions(CommandGroup):
    """
    C{recording ship}.
    """

    longdesc = "Look after the files of a recording."
    subCommands = [["ship", None, ShipOptions, "Copy complete files to a bucket or another disk."]]

    def postOptions(self) -> None:
        """
        @raise UsageError: if no subcommand was chosen.
        """
        if self.subCommand is None:
            raise UsageError("say what to do: ship")


def run(options: RecordingOptions, stdin: TextIO, stdout: TextIO) -> None:
    """
    Run the command; see L{admission.cli.Command}.
    """
    given: Any = options.subOptions
    if lack := lacking("recording ship", "pyarrow"):
        raise CommandFailed(lack)
    if not os.path.isdir(given["directory"]):
        raise CommandFailed(f"{given['directory']} is no directory: name that of --export spark:DIRECTORY")
    _ship(given, stdout)


def _ship(given: ShipOptions, stdout: TextIO) -> None:
    from ..shipping.pseudonyms import KeyRefused
    from ..shipping.rounds import NotShipped, follow, shipOnce
    from ..shipping.shipper import ShippingRefused, locked
    from ..shipping.target import TargetRefused

    def progress(totalBytes: int) -> Progress:
        return Progress("shipping", totalBytes)

    try:
        shipper = _shipper(given)
        lines = _Lines(shipper.counts, given, stdout)
        with locked(given["directory"]):
            if given["follow"]:
                stop = Event()
                _stopBySignal(stop)
                follow(shipper, given["every"], stop, lines.tellChanges, progress)
            else:
                shipOnce(shipper, given["timeout"], time.sleep, monotonicSeconds, progress)
                lines.tell()
        if shipper.counts.unreadableFiles and not given["follow"]:
            raise CommandFailed(f"files that cannot be read were not shipped ({shipper.counts.unreadableFiles:,})")
    except (KeyRefused, NotShipped, ShippingRefused, TargetRefused) as error:
        option = "--pseudonyms: " if isinstance(error, KeyRefused) else ""
        raise CommandFailed(f"{option}{error}") from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or given['directory']} cannot be read: {error.strerror}") from error


def _shipper(given: ShipOptions) -> Shipper:
    from ..shipping.pseudonyms import Pseudonyms, readKey
    from ..shipping.shipper import Retention, Shipper
    from ..shipping.target import Target

    keepSeconds = (given["keep"] or 0.0) if given["remove"] else None
    return Shipper(
        given["directory"],
        lambda: Target.open(given["url"]),
        None if given["pseudonyms"] is None else Pseudonyms(readKey(given["pseudonyms"])),
        Retention(keepSeconds, given["max-local"], bool(given["drop"])),
        lambda sentence: print(f"admission: {sentence}", file=sys.stderr, flush=True),
    )


class _Lines:
    """
    The counts, a line each time.
    """

    def __init__(self, counts: Counts, given: ShipOptions, stdout: TextIO) -> None:
        self._counts = counts
        self._given = given
        self._stdout = stdout
        self._told: dict[str, int] = {}

    def tellChanges(self) -> None:
        if asdict(self._counts) != self._told:
            self.tell()

    def tell(self) -> None:
        from ..shipping.closedfiles import unsealedSegments

        self._told = asdict(self._counts)
        segments = len(unsealedSegments(self._given["directory"]))
        if self._given["json"]:
            line = json.dumps({**self._told, "unsealedSegments": segments})
        else:
            line = _inWords(self._counts, segments)
        self._stdout.write(f"{line}\n")
        self._stdout.flush()


def _inWords(counts: Counts, segments: int) -> str:
    parts = [f"files: {counts.shippedFiles:,} shipped ({roundedBytes(counts.shippedBytes)})"]
    for number, what in (
        (counts.presentFiles, "there already"),
        (counts.waitingFiles, "waiting"),
        (counts.unreadableFiles, "unreadable"),
        (counts.failures, "failures"),
        (counts.removedFiles, "removed here"),
        (counts.droppedFiles, "dropped"),
        (counts.vanishedFiles, "removed by others before they were shipped"),
    ):
        if number:
            parts.append(f"{number:,} {what}")
    return ", ".join(parts) + (f"; segments that are not sealed yet: {segments:,}" if segments else "")


def _stopBySignal(stop: Event) -> None:
    def asked(signum: int, frame: object) -> None:
        # A second one ends the process at once, which loses nothing.
        signal.signal(signum, signal.SIG_DFL)
        stop.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, asked)

# -*- test-case-name: tests.spark.test_pyspark_admission -*-
"""
The options in C{.option(...)}.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from fractions import Fraction

from attrs import frozen

from admission.recording.places import StorageFailed, absolutePlace, hasEntry
from admission.recording.schema import Table
from admission.recording.tables import REQUESTS, TABLES

from .files import isRecording

PROBLEMS = "problems"
"""The name of the table of files that cannot be read."""

_NAMES = ("path", "table", "since", "until", "broker", "segments", "maxFilesPerTrigger")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?", re.ASCII)
_MOMENT_FORM = "write 2026-03-01, 2026-03-01T12:30 (UTC unless it says otherwise) or seconds since 1970"


@frozen
class Range:
    """
    A range of time, in microseconds since the epoch.

    @ivar since: the first moment; L{None} for the beginning.
    @ivar until: the first moment after the end; L{None} for no end.
    """

    since: int | None = None
    until: int | None = None

    @classmethod
    def parse(cls, since: str | None, until: str | None) -> Range:
        """
        Read both as L{parseMoment} does.

        @raise ValueError: for an invalid moment, or if the range is empty.
        """
        parsed = cls(
            None if since is None else parseMoment(since),
            None if until is None else parseMoment(until),
        )
        if parsed.since is not None and parsed.until is not None and parsed.since >= parsed.until:
            raise ValueError(f"there is no time from {since} to {until}: the first has to be before the second")
        return parsed

    @property
    def isBounded(self) -> bool:
        return self.since is not None or self.until is not None

    def overlaps(self, begin: int, end: int) -> bool:
        """
        Whether it overlaps the time between two moments.
        """
        return (self.since is None or end > self.since) and (self.until is None or begin < self.until)


EVER = Range()
"""The unbounded range."""


@frozen
class Options:
    """
    What to read.

    @ivar directory: of the recording: an absolute path, or a URL.
    @ivar table: the table; L{None} for the problems of all tables.
    @ivar range: of the moments of rows.
    @ivar brokerId: the broker of the rows; L{None} for all brokers.
    @ivar segments: the names of the segments to read, and nothing else; L{None} for all files.
    @ivar filesPerTrigger: how many files a stream takes at a time; L{None} for no limit.
    """

    directory: str
    table: Table | None = REQUESTS
    range: Range = EVER
    brokerId: str | None = None
    segments: tuple[str, ...] | None = None
    filesPerTrigger: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """
        Parse Spark's options.

        @param options: by names, ignoring case.
        @raise ValueError: for anything invalid, with the remedy.
        """
        given = {name.lower(): text for name, text in options.items()}
        # From .load() with several paths; the missing path is the error to report.
        given.pop("paths", None)
        known = {name.lower(): name for name in _NAMES}
        for name in given:
            # Spark's own options have dots.
            if name not in known and "." not in name:
                near = [known[match] for match in get_close_matches(name, known, 1)]
                raise ValueError(f"there is no option {name}: " + (f"is it {near[0]}?" if near else _all(_NAMES[1:])))
        segments = given.get("segments")
        return cls(
            _directory(given.get("path")),
            _table(given.get("table", REQUESTS.name)),
            Range.parse(given.get("since"), given.get("until")),
            given.get("broker"),
            None if segments is None else tuple(filter(None, segments.split(","))),
            _count("maxFilesPerTrigger", given.get("maxfilespertrigger")),
        )


def parseMoment(text: str) -> int:
    """
    Parse a moment.

    @param text: ISO 8601, a date or a date and a time, UTC if it has no offset; or seconds since the epoch, optionally
        with a fraction.
    @return: microseconds since the epoch.
    @raise ValueError: for anything else, with the right form.
    """
    stripped = text.strip()
    try:
        if _NUMBER.fullmatch(stripped):
            moment = int(Fraction(stripped) * 1_000_000)
            # Refuses milliseconds, which would be thousands of years from now.
            return (_EPOCH + timedelta(microseconds=moment) - _EPOCH) // timedelta(microseconds=1)
        parsed = datetime.fromisoformat(stripped)
        return ((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a moment: {_MOMENT_FORM}") from error


def _directory(text: str | None) -> str:
    if not text:
        raise ValueError("say which recording to read, one directory at a time: .load(DIRECTORY)")
    directory = absolutePlace(text)
    try:
        if isRecording(directory):
            return directory
        isThere = hasEntry(directory)
    except StorageFailed as error:
        raise ValueError(str(error)) from error
    if not isThere:
        raise ValueError(f"there is no directory {text}: name the one that was given to --export spark:DIRECTORY")
    raise ValueError(f"there is no recording in {text}: name the directory given to --export spark:DIRECTORY")


def _table(name: str) -> Table | None:
    tables = {table.name: table for table in TABLES}
    if name == PROBLEMS:
        return None
    if name not in tables:
        raise ValueError(f"there is no table {name}: " + _all([*tables, PROBLEMS]))
    return tables[name]


def _count(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ValueError(f"{name} is a number of files, from 1, and not {text!r}")
    return int(text)


def _all(names: list[str] | tuple[str, ...]) -> str:
    return f"there are {', '.join(names[:-1])} and {names[-1]}"

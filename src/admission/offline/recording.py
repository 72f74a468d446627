# -*- test-case-name: tests.spark.test_recording -*-
"""
A server's recording, as the jobs read it.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import define, evolve
from pyarrow import parquet
from pyspark.sql.types import DateType, IntegerType, StructField, StructType

from admission.boundedfile import FileRefused
from admission.interfaces import CONNECTION
from admission.recording.places import StorageFailed, isRemote, parquetSource, readWhole
from admission.recording.recordlayout import SLOT_BYTES
from admission.recording.schema import CONNECTIONS, LIMITS, SENSORS, Table
from admission.recording.segments import MAX_SEGMENT_BYTES
from admission.recording.tables import REQUESTS, TABLES
from pyspark_admission.batch import BatchReader, readPaths
from pyspark_admission.columns import PROBLEM_COLUMNS, columnsOf
from pyspark_admission.files import (
    PARQUET_SUFFIX,
    SealedFile,
    damagedPaths,
    relativeTo,
    sealedFiles,
    segmentNames,
    segmentPath,
)
from pyspark_admission.options import Options

from .failures import RecordingError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONNECTION = ["broker_id", "boot_id", "conn_id"]

_HOUR = 3_600_000_000

_PARTS = 1_000_000
"""The number of parts into which clients are divided for a sample."""

_EVENTS_OF_BYTE = 1 / 40
"""Of a table of which no file can be read."""

_SAMPLE = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(%?)\s*", re.ASCII)
_SAMPLE_FORM = "write a fraction of the clients, as 0.1 or 10%, above 0 and up to 1"


@define(eq=False)
class Recording:
    """
    The recording in a directory, which must have the same path on all of Spark's workers, or in other storage.

    Sealed files are read by Spark itself, several times as fast as by the reader of the data source, which reads the
    segments that are not sealed.  In other storage that reads everything: it makes one request for a file where Spark
    makes several, so it is about as fast there, and it needs no further Java packages.  It is not read as a data source
    here, which a server of Spark Connect would have to have installed.  Each of the methods below looks for files when
    it is called; files sealed or begun later change nothing, except that an open segment grows.

    An unreadable file is left out, and reported by L{problems}.

    @ivar session: the Spark session that reads it.
    @ivar options: the part to read.
    @ivar sample: the share of the clients, from 0 to 1.
    """

    session: SparkSession
    options: Options
    sample: Fraction

    @classmethod
    def open(
        cls,
        session: SparkSession,
        directory: str,
        since: str | None = None,
        until: str | None = None,
        sample: str | float | None = None,
    ) -> Recording:
        """
        Find the files of a recording.

        @param directory: the directory given to C{--export spark:DIRECTORY}, or the URL of a copy.
        @param since: the first moment, as L{pyspark_admission.options.parseMoment} takes it.
        @param until: the first moment after the end.
        @param sample: a share of the clients, C{"0.1"} or C{"10%"}: always the same ones, with all of their requests.
        @raise RecordingError: if there is no recording, or an argument is invalid, with the remedy.
        """
        given = {"path": directory, "since": since, "until": until}
        try:
            options = Options.parse({name: text for name, text in given.items() if text is not None})
            isEmpty = not segmentNames(options.directory) and not any(
                sealedFiles(options.directory, table) for table in TABLES
            )
        except (ValueError, StorageFailed) as error:
            raise RecordingError(str(error)) from error
        found = cls(session, options, Fraction(1) if sample is None else parseSample(str(sample)))
        if isEmpty:
            raise RecordingError(f"nothing has been recorded in {directory}: has its server been used since?")
        return found

    def requests(self) -> DataFrame:
        """
        A row for each request, and for each connection that the policies were asked about.
        """
        return self._sampled(self._rows(REQUESTS))

    def connections(self) -> DataFrame:
        """
        A row for each connection that was opened or closed.
        """
        return self._sampled(self._rows(CONNECTIONS))

    def limits(self) -> DataFrame:
        """
        A row for each limit that was set or removed.
        """
        return self._rows(LIMITS)

    def sensors(self) -> DataFrame:
        """
        A row for each sample of a sensor.
        """
        return self._rows(SENSORS)

    def problems(self) -> list[tuple[str, str]]:
        """
        Read everything, and list what cannot be read.

        @return: paths, relative to the directory, and their problems.
        """
        directory = self.options.directory
        rows = self._read(PROBLEM_COLUMNS, Options(directory, None, self.options.range)).collect()
        return sorted((relativeTo(directory, row["path"]), row["problem"]) for row in rows)

    def shareIn(self, paths: Collection[str]) -> float:
        """
        About which share of all events is in unreadable files.  They are taken to have as many events for their size
        as the files that can be read, and no fewer than these have on average.

        @param paths: as L{problems} has them.
        """
        if not paths:
            return 0.0
        directory, range = self.options.directory, self.options.range
        unreadable = {os.path.join(directory, path) for path in paths}
        segments = segmentNames(directory)
        events = lost = 0.0
        for table in TABLES:
            files = [
                each for each in sealedFiles(directory, table, segments) if range.overlaps(each.hour, each.endOfHour)
            ]
            whole = [each for each in files if each.path not in unreadable]
            rows, sizeBytes = sum(map(_rowsIn, whole)), sum(each.sizeBytes for each in whole)
            # One that was cut off had more once.
            leastBytes = sizeBytes / max(len(whole), 1)
            lostBytes = sum(max(each.sizeBytes, leastBytes) for each in files if each.path in unreadable)
            events += rows
            lost += lostBytes * (rows / sizeBytes if rows else _EVENTS_OF_BYTE)
        for path in [*(segmentPath(directory, name) for name in segments), *damagedPaths(directory)]:
            slots = _slotsIn(path)
            if path in unreadable:
                lost += slots
            else:
                events += slots
        return lost / (lost + events) if lost else 0.0

    def _rows(self, table: Table) -> DataFrame:
        columns = columnsOf(table)
        options = evolve(self.options, table=table)
        directory = self.options.directory
        if isRemote(directory):
            return self._read(columns, options)
        # Segments first: see pyspark_admission.files.
        segments = segmentNames(directory)
        sealed = self._sealed(table, segments) if sealedFiles(directory, table, segments) else None
        if not segments and sealed is not None:
            return sealed
        unsealed = self._read(columns, evolve(options, segments=tuple(segments)))
        return unsealed if sealed is None else sealed.unionByName(unsealed)

    def _sealed(self, table: Table, leftOut: Sequence[str]) -> DataFrame:
        from pyspark.sql import functions

        columns = columnsOf(table)
        partitioned = StructType([*columns.fields, StructField("dt", DateType()), StructField("hour", IntegerType())])
        reader = self.session.read.schema(partitioned).options(
            ignoreCorruptFiles=True, ignoreMissingFiles=True, pathGlobFilter="*.parquet"
        )
        # Damage need not keep a page from being decoded.
        reader = reader.option("parquet.page.verify-checksum.enabled", True)
        # Without a scheme it would be a path of fs.defaultFS, where Hadoop is configured.
        rows = reader.parquet(f"file://{_literally(os.path.join(self.options.directory, table.name))}")
        if leftOut:
            names = [name + PARQUET_SUFFIX for name in leftOut]
            rows = rows.where(~functions.col("_metadata.file_name").isin(names))
        return self._within(rows).select(*columns.names)

    def _within(self, rows: DataFrame) -> DataFrame:
        """
        The rows of the selected time, without reading the files of other hours.
        """
        from pyspark.sql import functions

        hour = functions.expr("unix_date(dt) * 24 + hour")
        moment = functions.expr("unix_micros(ts)")
        since, until = self.options.range.since, self.options.range.until
        if since is not None:
            rows = rows.where((hour >= since // _HOUR) & (moment >= since))
        if until is not None:
            rows = rows.where((hour <= until // _HOUR) & (moment < until))
        return rows

    def _read(self, columns: StructType, options: Options) -> DataFrame:
        parts = [part.value for part in BatchReader(options, columns.names).partitions()]

        def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for (number,) in zip(*batch.to_pydict().values(), strict=True):
                    yield from readPaths(options, columns.names, parts[number])

        # A task for each part.
        return self.session.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(rows, columns)

    def _sampled(self, rows: DataFrame) -> DataFrame:
        """
        Choose by client, which is the sender of a connection's last request: before its login a client has another
        name.
        """
        if self.sample == 1:
            return rows
        from pyspark.sql import functions

        # The connection's own event has the least information about the client, whenever it came.
        last = f"max_by(struct(principal, client_id), struct(not (kind <=> '{CONNECTION}'), seq))"
        clients = self._rows(REQUESTS).groupBy(*_CONNECTION).agg(functions.expr(last).alias("client"))
        place = functions.expr(f"pmod(xxhash64(ifnull(client.principal, ''), ifnull(client.client_id, '')), {_PARTS})")
        chosen = clients.where(place < ceil(self.sample * _PARTS))
        # There may be millions of connections, which Spark takes for few and would broadcast.
        return rows.join(chosen.hint("merge"), _CONNECTION, "left_semi").select(*rows.columns)


def parseSample(text: str) -> Fraction:
    """
    Parse the share of the clients to take.

    @param text: C{"0.1"} or C{"10%"}.
    @return: above 0, and at most 1.
    @raise RecordingError: for anything else, with the right form.
    """
    match = _SAMPLE.fullmatch(text)
    share = Fraction(0) if match is None else Fraction(match[1]) / (100 if match[2] else 1)
    if not 0 < share <= 1:
        raise RecordingError(f"{text!r} is no share of the clients: {_SAMPLE_FORM}")
    return share


def _rowsIn(file: SealedFile) -> int:
    try:
        return int(parquet.read_metadata(parquetSource(file.path)).num_rows)
    except FileNotFoundError:
        # It has been removed to keep the bound.
        return 0


def _slotsIn(path: str) -> float:
    """
    About how many events a segment has.
    """
    try:
        # Its end is not written to while it is not full.
        return len(readWhole(path, MAX_SEGMENT_BYTES).rstrip(b"\0")) / SLOT_BYTES
    except (FileNotFoundError, FileRefused):
        # It has been sealed meanwhile, or never was one.
        return 0.0


def _literally(path: str) -> str:
    """
    Escape a path that Spark would take for a pattern.
    """
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)

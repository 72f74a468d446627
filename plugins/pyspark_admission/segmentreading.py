# -*- test-case-name: tests.spark.test_pyspark_admission -*-
"""
Reads files as Arrow batches of the required columns.  Runs on Spark's workers.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve
from pyarrow import compute as pc, parquet as pq

from admission.recording.arrow import arrowSchema, arrowTable
from admission.recording.places import StorageFailed, hasEntry, parquetSource
from admission.recording.schema import Table
from admission.recording.segments import SUFFIX, Segment
from admission.recording.tables import TABLES

from .files import DAMAGED_SUFFIX, relativeTo, sealedFiles
from .options import Options

BATCH_ROWS = 1 << 15

Tell = Callable[[str, str], object]
"""Called with a file that cannot be read, and the reason."""


class FileReader:
    """
    Reads the files of one table.

    A damaged file is reported and left, after the rows before the damage; the others are still read.  A file without
    read permission is an error: it is intact, and only the user can help.
    """

    def __init__(self, options: Options, table: Table, names: Sequence[str], tell: Tell) -> None:
        """
        @param options: which rows.
        @param table: the table.
        @param names: the columns to have, in order.
        """
        self._options = options
        self._table = table
        self._names = list(names)
        self._tell = tell
        types = {column.name: _plain(column.type) for column in arrowSchema(table)}
        others = [*(["ts"] if options.range.isBounded else []), *([] if options.brokerId is None else ["broker_id"])]
        self._schema = pa.schema([(name, types[name]) for name in dict.fromkeys([*names, *others])])

    def read(self, path: str) -> Iterator[pa.RecordBatch]:
        """
        The rows of a Parquet file or of a segment.  A segment that has been
        sealed meanwhile is read from its Parquet files.

        @raise PermissionError: without permission to read the file, with the remedy.
        @raise StorageFailed: if other storage does not hand the file out.
        """
        try:
            for batch in self._segment(path) if path.endswith(SUFFIX) else self._parquet(path):
                chosen = self._chosen(_conform(batch, self._schema))
                if chosen.num_rows:
                    yield chosen.select(self._names)
        except FileNotFoundError:
            if not path.endswith(SUFFIX):
                self._tell(path, "has been removed")
            elif hasEntry(path + DAMAGED_SUFFIX):
                self._tell(path + DAMAGED_SUFFIX, "was set aside when it could not be sealed")
            else:
                yield from self._sealedMeanwhile(os.path.basename(path).removesuffix(SUFFIX))
        except PermissionError as error:
            raise PermissionError(
                f"{path} may not be read: run Spark as the user that records, or let its user read the recording"
            ) from error
        except (MemoryError, StorageFailed):
            raise
        except Exception as error:
            self._tell(path, f"cannot be read: {' '.join(str(error).split()) or type(error).__name__}")

    def _sealedMeanwhile(self, name: str) -> Iterator[pa.RecordBatch]:
        for file in sealedFiles(self._options.directory, self._table):
            if file.name == name and self._options.range.overlaps(file.hour, file.endOfHour):
                yield from self.read(file.path)

    def _segment(self, path: str) -> Iterator[pa.RecordBatch]:
        segment = Segment.load(path)
        found = None if segment is None else arrowTable(segment, self._table)
        if found is not None:
            yield from found.to_batches(BATCH_ROWS)

    def _parquet(self, path: str) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(parquetSource(path), page_checksum_verification=True) as file:
            present = set(file.schema_arrow.names)
            yield from file.iter_batches(BATCH_ROWS, columns=[name for name in self._schema.names if name in present])

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        since, until, brokerId = self._options.range.since, self._options.range.until, self._options.brokerId
        if since is not None:
            batch = batch.filter(pc.greater_equal(batch["ts"], _timestamp(since)))
        if until is not None:
            batch = batch.filter(pc.less(batch["ts"], _timestamp(until)))
        if brokerId is not None:
            batch = batch.filter(pc.equal(batch["broker_id"], brokerId))
        return batch


def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """
    Combine small batches: each costs Spark some milliseconds, and a quiet server's files are small.
    """
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= BATCH_ROWS:
            yield from pa.Table.from_batches(gathered).combine_chunks().to_batches()
            gathered, rows = [], 0
    if gathered:
        yield from pa.Table.from_batches(gathered).combine_chunks().to_batches()


def problemsOf(options: Options, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """
    Find out which of C{paths} cannot be read, by reading all of them.

    @param paths: Parquet files of any tables, segments, and damaged segments.
    """
    problems: dict[str, str] = {}
    everything = evolve(options, brokerId=None)
    for path in paths:
        if path.endswith(DAMAGED_SUFFIX):
            problems[path] = "was set aside when it could not be sealed"
            continue
        directory = relativeTo(options.directory, path).partition("/")[0]
        for table in TABLES:
            if path.endswith(SUFFIX) or directory == table.name:
                names = [column.name for column in table.columns]
                for _ in FileReader(everything, table, names, problems.setdefault).read(path):
                    pass
    if problems:
        texts = [pa.array(values, pa.string()) for values in (problems.keys(), problems.values())]
        yield pa.RecordBatch.from_arrays(texts, ["path", "problem"])


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """
    The columns of C{schema}.  A column that is missing, as in older recordings, has nulls.
    """
    present = set(batch.schema.names)
    arrays = [
        batch[column.name].cast(column.type) if column.name in present else pa.nulls(batch.num_rows, column.type)
        for column in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(type: pa.DataType) -> pa.DataType:
    """
    The type for Spark, which has no dictionaries.
    """
    return type.value_type if pa.types.is_dictionary(type) else type


def _timestamp(microseconds: int) -> pa.Scalar:
    return pa.scalar(microseconds, pa.timestamp("us", "UTC"))

# -*- test-case-name: tests.spark.test_aggregate -*-
"""
Results as files: the same results make the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import csv, parquet
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from .evaluation import replacing
from .failures import OutputError

DIGITS = 9
"""After the decimal point; further digits of a sum depend on the order of addition."""


GROUP_ROWS = 100_000
"""How many rows a file has before what follows is a group for itself."""


def rounded(frame: DataFrame) -> DataFrame:
    """
    Round all fractions to L{DIGITS} digits after the point.
    """
    fractions = {name: F.round(F.col(f"`{name}`"), DIGITS) for name, type in frame.dtypes if type == "double"}
    # Spark Connect does not accept an empty list of columns.
    return frame.withColumns(fractions) if fractions else frame


def ordered(frame: DataFrame) -> DataFrame:
    """
    Sort the rows by all their columns, from the left.
    """
    return frame.orderBy(*(F.col(f"`{name}`") for name in frame.columns))


def writeResult(frame: DataFrame, directory: str | Path, name: str) -> None:
    """
    Write one result, rounded and sorted, as C{NAME.parquet} and C{NAME.csv}. Each file is replaced atomically.  This
    process has no more of it at a time than Spark has in one of the sorted partitions.

    @param directory: on this machine, wherever Spark runs; created if necessary.
    @raise OutputError: if they cannot be written.
    """
    rows = ordered(rounded(frame))
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    packed = rows.mapInArrow(_packed, "batch binary").toLocalIterator(prefetchPartitions=True)
    _write(schema, (pa.ipc.open_stream(row["batch"]).read_all() for row in packed), directory, name)


def writeTable(table: pa.Table, directory: str | Path, name: str) -> None:
    """
    Write one result that is already in this process, unchanged.  See L{writeResult}.
    """
    _write(table.schema, [table], directory, name)


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """
    Each batch as one value of a row: rows reach this process one after another, where tables come whole.
    """
    for batch in batches:
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.record_batch([pa.array([stream.getvalue()], pa.binary())], ["batch"])


def _write(schema: pa.Schema, tables: Iterable[pa.Table], directory: str | Path, name: str) -> None:
    root = Path(directory)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with replacing(root / f"{name}.parquet") as columns, replacing(root / f"{name}.csv") as text:
            with (
                parquet.ParquetWriter(columns, schema, write_page_checksum=True) as toColumns,
                csv.CSVWriter(str(text), schema) as toText,
            ):
                for table in _regrouped(schema, tables):
                    toColumns.write_table(table)
                    toText.write_table(table)
    except OSError as error:
        raise OutputError(f"results cannot be written to {root}: {error}; name another directory") from error


def _regrouped(schema: pa.Schema, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """
    The same rows in tables of L{GROUP_ROWS}, however they come: the bytes of a file depend on that.
    """
    waiting = schema.empty_table()
    for table in tables:
        waiting = pa.concat_tables([waiting, table.cast(schema)])
        while len(waiting) > GROUP_ROWS:
            yield waiting.slice(0, GROUP_ROWS).combine_chunks()
            waiting = waiting.slice(GROUP_ROWS)
    yield waiting.combine_chunks()

# -*- test-case-name: tests.spark.test_aggregate -*-
"""
Results as files: the same results make the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import csv, ipc, parquet
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from .evaluation import replacing
from .failures import OutputError

DIGITS = 9
"""After the decimal point; further digits of a sum depend on the order of addition."""

GROUP_ROWS = 100_000
"""How many rows a group of a Parquet file has."""


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
    Write one result, rounded and sorted, as C{NAME.parquet} and C{NAME.csv}. Each file is replaced atomically.  However
    many rows it has, this process holds no more than a few groups of them at a time.

    @param directory: on this machine, wherever Spark runs; created if necessary.
    @raise OutputError: if they cannot be written.
    """
    rows = ordered(rounded(frame))
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    _write((part.cast(schema) for part in _inParts(rows)), schema, directory, name)


def writeTable(table: pa.Table, directory: str | Path, name: str) -> None:
    """
    Write one result that is already in this process, unchanged.  See L{writeResult}.
    """
    _write([table], table.schema, directory, name)


def _write(parts: Iterable[pa.Table], schema: pa.Schema, directory: str | Path, name: str) -> None:
    root = Path(directory)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (
            replacing(root / f"{name}.parquet") as parquetPath,
            replacing(root / f"{name}.csv") as csvPath,
            parquet.ParquetWriter(parquetPath, schema, write_page_checksum=True) as columns,
            csv.CSVWriter(str(csvPath), schema) as text,
        ):
            for group in _groups(parts):
                columns.write_table(group, GROUP_ROWS)
                text.write_table(group)
    except OSError as error:
        raise OutputError(f"results cannot be written to {root}: {error}; name another directory") from error


def _groups(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """
    The same rows, L{GROUP_ROWS} at a time, so that bytes do not depend on how they came.
    """
    gathered: list[pa.Table] = []
    rows = 0
    for part in parts:
        gathered.append(part)
        rows += len(part)
        while rows >= GROUP_ROWS:
            table = pa.concat_tables(gathered)
            yield table.slice(0, GROUP_ROWS)
            gathered, rows = [table.slice(GROUP_ROWS)], rows - GROUP_ROWS
    if rows:
        yield pa.concat_tables(gathered)


def _inParts(frame: DataFrame) -> Iterator[pa.Table]:
    """
    The rows in their order, a partition of Spark's at a time, which C{toArrow} cannot do.
    """

    def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["part"])

    for row in frame.mapInArrow(packed, "part binary").toLocalIterator():
        yield ipc.open_stream(row["part"]).read_all()

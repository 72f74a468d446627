# -*- test-case-name: tests.spark.test_aggregate -*-
"""
Results as files: the same results make the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import csv, parquet
from pyspark.sql import DataFrame, functions as F

from .evaluation import replacing
from .failures import OutputError

DIGITS = 9
"""After the decimal point; further digits of a sum depend on the order of addition."""


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
    Write one result, rounded and sorted, as C{NAME.parquet} and C{NAME.csv}. Each file is replaced atomically.  The
    result is collected in this process, so this is for results, not for events.

    @param directory: on this machine, wherever Spark runs; created if necessary.
    @raise OutputError: if they cannot be written.
    """
    writeTable(ordered(rounded(frame)).toArrow(), directory, name)


def writeTable(table: pa.Table, directory: str | Path, name: str) -> None:
    """
    Write one result that is already in this process, unchanged.  See L{writeResult}.
    """
    root = Path(directory)
    writers: tuple[tuple[str, Callable[[pa.Table, str], None]], ...] = (
        ("parquet", partial(parquet.write_table, write_page_checksum=True)),
        ("csv", csv.write_csv),
    )
    try:
        root.mkdir(parents=True, exist_ok=True)
        for suffix, write in writers:
            with replacing(root / f"{name}.{suffix}") as unfinished:
                write(table, str(unfinished))
    except OSError as error:
        raise OutputError(f"results cannot be written to {root}: {error}; name another directory") from error

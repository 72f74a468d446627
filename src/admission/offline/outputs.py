# -*- test-case-name: tests.spark.test_aggregate -*-
"""
Results as files: the same results make the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import csv, parquet
from pyspark.sql import DataFrame, functions as F

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
    try:
        root.mkdir(parents=True, exist_ok=True)
        with replacing(root / f"{name}.parquet") as columns, replacing(root / f"{name}.csv") as text:
            # The bytes of the first do not depend on how the rows came.
            parquet.write_table(table, columns, row_group_size=GROUP_ROWS, write_page_checksum=True)
            csv.write_csv(table, str(text))
    except OSError as error:
        raise OutputError(f"results cannot be written to {root}: {error}; name another directory") from error

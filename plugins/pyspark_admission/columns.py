# -*- test-case-name: tests.spark.test_pyspark_admission -*-
"""
The tables' columns for Spark: L{admission.recording.schema} in its types.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from admission.recording.schema import ColumnType, Table

_TYPES: dict[ColumnType, DataType] = {
    ColumnType.INTEGER: LongType(),
    ColumnType.IDENTITY: LongType(),
    ColumnType.SECONDS: LongType(),
    ColumnType.TIMESTAMP: TimestampType(),
    ColumnType.NUMBER: DoubleType(),
    ColumnType.FLAG: BooleanType(),
    ColumnType.TEXT: StringType(),
    ColumnType.FOREIGN_TEXT: StringType(),
    ColumnType.TEXTS: ArrayType(StringType()),
    ColumnType.INTEGERS: ArrayType(LongType()),
    ColumnType.DURATIONS: ArrayType(LongType()),
}

PROBLEM_COLUMNS = StructType().add("path", StringType()).add("problem", StringType())
"""Which file cannot be read, and why."""


def columnsOf(table: Table | None) -> StructType:
    """
    The columns of a table, all of them nullable; the columns of problems for L{None}.
    """
    if table is None:
        return PROBLEM_COLUMNS
    columns = StructType()
    for column in table.columns:
        columns.add(column.name, _TYPES[column.type])
    return columns


def checkColumns(wanted: StructType, table: Table | None) -> None:
    """
    Check that a user's C{.schema(...)} can be read: some of the columns, with their types.

    @raise ValueError: if it cannot.
    """
    types = {field.name: field.dataType for field in columnsOf(table)}
    for field in wanted:
        if field.name not in types:
            raise ValueError(f"there is no column {field.name}: leave .schema(...) out to see all")
        if field.dataType != types[field.name]:
            actual, asked = types[field.name].simpleString(), field.dataType.simpleString()
            raise ValueError(f"{field.name} is {actual}: read it so, and cast it to {asked} afterwards")

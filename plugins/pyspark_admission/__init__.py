# -*- test-case-name: tests.spark.test_pyspark_admission -*-
"""
Spark finds this by its name: C{spark.read.format("admission")} reads a server's recording.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from .columns import checkColumns, columnsOf
from .options import Options


class DefaultSource(DataSource):
    """
    Recordings of C{--export spark:DIRECTORY}, sealed or not.

    The options are in L{Options}. Nothing is pushed down, since Spark allows that only if its configuration enables it:
    rows are chosen by options, and columns by C{.schema(...)} with some of them.
    """

    @classmethod
    def name(cls) -> str:
        return "admission"

    def schema(self) -> StructType:
        """
        See L{DataSource}.

        @raise ValueError: for invalid options.
        """
        return columnsOf(Options.parse(self.options).table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """
        See L{DataSource}.

        @raise ValueError: for invalid options or unknown columns.
        """
        from .batch import BatchReader

        options = Options.parse(self.options)
        checkColumns(schema, options.table)
        return BatchReader(options, schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """
        See L{DataSource}.

        @raise ValueError: as L{reader} does, and for options that cannot be streamed.
        """
        from .stream import StreamReader

        options = Options.parse(self.options)
        checkColumns(schema, options.table)
        return StreamReader(options, schema.names)

# -*- test-case-name: tests.spark.test_streaming -*-
"""
The aggregates of a growing recording: each run adds the minutes that are complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from ..recording.tables import REQUESTS
from .aggregate import clientMinutes, throttleMinutes
from .clean import clean
from .outputs import rounded

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LATENESS = "1 hour"
"""
How much earlier than the latest request read a request may be without being dropped.  Segments are sealed one after
another, but not across servers, nor are segments that a killed server has left to the next run.
"""

CHECKPOINT = "_checkpoint"


def clientMinutesStream(requests: DataFrame, lateness: str = LATENESS) -> DataFrame:
    """
    L{admission.offline.aggregate.clientMinutes} of a stream, percentiles taken from histograms: a minute is written
    when it is C{lateness} old, and only once. Later requests are dropped, as the stream's progress counts in
    C{numRowsDroppedByWatermark}; only a batch has them all.

    @param requests: a stream of the requests table, as recorded.
    @param lateness: an interval in Spark's notation.
    """
    return rounded(clientMinutes(_watched(requests, lateness), isExact=False))


def throttleMinutesStream(requests: DataFrame, lateness: str = LATENESS) -> DataFrame:
    """
    L{admission.offline.aggregate.throttleMinutes} of a stream; see
    L{clientMinutesStream}.
    """
    return throttleMinutes(_watched(requests, lateness))


def appendAvailable(results: DataFrame, directory: str, name: str) -> StreamingQuery:
    """
    Process the rows available now: append the results to the Parquet files in C{directory}, each exactly once, however
    often this runs and wherever it was interrupted.

    The progress is kept in C{directory}, too: to begin again, remove all of it.

    @param results: the result of one of the functions above.
    @param directory: for these results alone.
    @param name: of the query, in Spark's pages and logs.
    @return: the query, to be waited for.
    """
    writer = results.writeStream.format("parquet").outputMode("append").queryName(name)
    checkpoint = f"{directory.rstrip('/')}/{CHECKPOINT}"
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(directory)


def _watched(requests: DataFrame, lateness: str) -> DataFrame:
    return clean(requests, REQUESTS, REQUESTS.name).withWatermark("ts", lateness)

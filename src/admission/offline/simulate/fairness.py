# -*- test-case-name: tests.spark.test_replay_spark -*-
"""
How evenly replays serve clients: by time, and whether each is served at all.

Both are found in Spark, since there is a row for each client and time.
"""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, functions as F

from ..aggregate import CLIENT, RUN, jain
from .totals import MINUTE_US

STARVED = pa.schema(
    [
        *((name, pa.string()) for name in ("candidate", "mode", *CLIENT)),
        ("starved_minutes", pa.int64()),
    ]
)
"""
The minutes, added up over servers, in which a client sent requests and all of them were refused.  A minute is one of
those that begin with the first step of all replays: what the clock said then means nothing.  Clients of which there are
none are left out.
"""

_SUMMED = ("requests", "refused", "demanded_bytes", "admitted_bytes", "throttle_us")


def fairnessOf(times: DataFrame) -> DataFrame:
    """
    One row for each candidate, mode, run of a server and step of time: C{clients} with any demand, C{demanded_bytes},
    C{admitted_bytes}, C{throttle_us}, and C{jain_bytes}, Jain's index of the clients' admitted bytes, as
    L{fairnessMinutes <admission.offline.aggregate.fairnessMinutes>} has it of the recording.  Connections before a
    login are no clients.

    @param times: of L{TIMES <admission.offline.simulate.totals.TIMES>}; several rows may be of the same place.
    """
    isWanting = F.col("principal").isNotNull() & (F.col("demanded_bytes") > 0)
    return (
        _byClient(times)
        .groupBy("candidate", "mode", *RUN, "begin")
        .agg(
            F.count_if(isWanting).alias("clients"),
            *(F.sum(name).alias(name) for name in _SUMMED[2:]),
            jain(F.when(isWanting, F.col("admitted_bytes").cast("double"))).alias("jain_bytes"),
        )
    )


def starvedOf(times: DataFrame) -> DataFrame:
    """
    The clients that got nothing for a minute, of L{STARVED}.

    @param times: see L{fairnessOf}.
    """
    first = times.agg(F.unix_micros(F.min("begin"))).head()
    assert first is not None
    clients = _byClient(times).where("principal IS NOT NULL")
    minute = F.expr(f"(unix_micros(begin) - {first[0] or 0}) DIV {MINUTE_US}").alias("minute")
    minutes = clients.groupBy("candidate", "mode", *RUN, *CLIENT, minute).agg(
        F.sum("requests").alias("requests"), F.sum("refused").alias("refused")
    )
    starved = minutes.where("refused = requests").groupBy("candidate", "mode", *CLIENT)
    return starved.agg(F.count(F.lit(1)).alias("starved_minutes"))


def _byClient(times: DataFrame) -> DataFrame:
    return times.groupBy("candidate", "mode", *RUN, *CLIENT, "begin").agg(
        *(F.sum(each).alias(each) for each in _SUMMED)
    )

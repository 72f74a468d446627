# -*- test-case-name: tests.offline.test_aggregate -*-
"""
Which minute something falls into, in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, functions as F

BOOT = ("broker_id", "boot_id")
"""What tells one run of one server: clocks, counters and filters begin anew with each."""

MINUTE_US = 60_000_000

_WINDOW = "_minute"


def aMinute() -> Column:
    """
    What to group rows by; see L{minuteOfGroup}.  Streams need it, since they
    keep no other group for a time that is bounded.
    """
    return F.window("ts", "1 minute").alias(_WINDOW)


def minuteOfGroup() -> Column:
    """
    Of what was grouped by L{aMinute}, C{minute}: when it began.
    """
    return F.col(f"{_WINDOW}.start").alias("minute")


def minuteOf(name: str) -> Column:
    """
    Of a time, C{minute}: when the minute that it falls into began.  Whatever
    the session's time zone is, unlike truncating.

    @param name: the column of the time.
    """
    return F.expr(f"timestamp_micros(unix_micros({name}) DIV {MINUTE_US} * {MINUTE_US})").alias("minute")


def minuteStart(number: str) -> Column:
    """
    When a minute began.

    @param number: the column that numbers it, from 1970 on.
    """
    return F.timestamp_micros(F.col(number) * F.lit(MINUTE_US))


def spreadOverMinutes(frame: DataFrame, beginUs: Column, lengthUs: Column, kept: Sequence[str]) -> DataFrame:
    """
    Cut times into their parts within each minute.

    @param beginUs: when each began, in microseconds since 1970.
    @param lengthUs: how long it took; nothing comes of what took no time.
    @param kept: the columns to keep.
    @return: those, and C{minute}, C{part_us} (how much of it fell into that
        minute) and C{length_us}.
    """
    times = frame.select(*kept, beginUs.alias("_begin"), lengthUs.alias("length_us")).where("length_us > 0")
    last = f"(_begin + length_us - 1) DIV {MINUTE_US}"
    parts = times.withColumn("_number", F.expr(f"explode(sequence(_begin DIV {MINUTE_US}, {last}))"))
    part = f"least(_begin + length_us, (_number + 1) * {MINUTE_US}) - greatest(_begin, _number * {MINUTE_US})"
    return parts.select(*kept, minuteStart("_number").alias("minute"), F.expr(part).alias("part_us"), "length_us")

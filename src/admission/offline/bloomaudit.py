# -*- test-case-name: tests.spark.test_audit -*-
"""
The answers of the producer-id filter, compared with the truth.
"""

from __future__ import annotations

from attrs import field, frozen, validators
from pyspark.sql import DataFrame, Window, functions as F

from ..plugins import parseDescription
from ..units import parseSeconds
from .aggregate import RUN

_POSITIONAL = ("rate", "window", "windows", "layers")

_BEFORE = (Window.unboundedPreceding, -1)


@frozen
class FilterShape:
    """
    The shape of a layered filter.

    @ivar windowSeconds: how long an id stays known at least.
    @ivar layers: an id is forgotten within 1/C{layers} of the window after the window.
    """

    windowSeconds: float = field(default=3600.0, validator=validators.gt(0))
    layers: int = field(default=4, validator=validators.ge(1))

    @classmethod
    def fromDescription(cls, description: str) -> FilterShape:
        """
        Read a policy's description, such as C{"producer-ids:window=1h:layers=4"}.

        @raise ValueError: if it is invalid.
        """
        _, positional, keywords = parseDescription(description)
        arguments = dict(zip(_POSITIONAL, positional, strict=False)) | keywords
        known = cls()
        layers = arguments.get("layers", str(known.layers))
        if not layers.isdecimal():
            raise ValueError(f"{description!r} says layers={layers}; write a whole number")
        window = arguments.get("window")
        return cls(known.windowSeconds if window is None else parseSeconds(window), int(layers))

    @property
    def windowUs(self) -> int:
        return round(self.windowSeconds * 1e6)

    @property
    def slackUs(self) -> int:
        """
        For how long after the window either answer is right, in microseconds.
        """
        return round(self.windowSeconds / self.layers * 1e6)


def bloomVerdicts(requests: DataFrame, shape: FilterShape) -> DataFrame:
    """
    One row for each request whose first producer the filter was asked about: C{broker_id}, C{boot_id}, C{principal},
    C{producer_id}, C{ts}, C{seq}, C{bloom_seen}, C{gap_us} (how long ago the same principal had sent that id, in the
    same run of the server; null if never) and whether it is C{exact_new} (not within the window), C{is_slack} (the
    window is over, the filter's last layer may not be), C{is_restored} (another run of the server had seen it, and may
    have handed it on), C{is_fp} and C{is_fn}.

    A false positive is a new id that the filter takes for known; a false negative, which must never occur, is a known
    id that it takes for new.  A restored id is neither, and an id within the slack no false positive: both answers are
    right then.

    An id counts as sent when the request was charged to the policies.  Only some producers of a request are recorded;
    the others look new later.

    @param requests: clean ones, of servers with the same filter.
    """
    moment = F.coalesce("decided_mono_us", "mono_us")
    first = F.col("producer_id")
    sightings = requests.where("producer_id >= 0").select(
        *RUN,
        "ts",
        "seq",
        "principal",
        moment.alias("_us"),
        F.coalesce("is_counted", F.lit(False)).alias("_counts"),
        "bloom_seen",
        first.alias("_first"),
        F.explode(F.array_union(F.array(first), F.coalesce("producer_ids", F.array().cast("array<bigint>")))).alias(
            "producer_id"
        ),
    )
    inRun = Window.partitionBy(*RUN, "principal", "producer_id").orderBy("_us", "seq")
    ofServer = Window.partitionBy("broker_id", "principal", "producer_id").orderBy("ts", "boot_id", "seq")
    sent = F.when(F.col("_counts"), F.col("_us"))
    seen = sightings.select(
        "*",
        (F.col("_us") - F.last(sent, ignorenulls=True).over(inRun.rowsBetween(*_BEFORE))).alias("gap_us"),
        F.last(sent, ignorenulls=True).over(ofServer.rowsBetween(*_BEFORE)).isNotNull().alias("_everSent"),
    ).where((F.col("producer_id") == F.col("_first")) & F.col("bloom_seen").isNotNull())
    gap, known = F.col("gap_us"), F.col("bloom_seen")
    isNew = gap.isNull() | (gap > shape.windowUs)
    isSlack = F.coalesce((gap > shape.windowUs) & (gap <= shape.windowUs + shape.slackUs), F.lit(False))
    isRestored = gap.isNull() & F.col("_everSent")
    return seen.select(
        *RUN,
        "principal",
        "producer_id",
        "ts",
        "seq",
        "bloom_seen",
        "gap_us",
        isNew.alias("exact_new"),
        isSlack.alias("is_slack"),
        isRestored.alias("is_restored"),
        (isNew & ~isSlack & ~isRestored & known).alias("is_fp"),
        (~isNew & ~known).alias("is_fn"),
    )


def bloomAudit(requests: DataFrame, shape: FilterShape) -> DataFrame:
    """
    Counts of L{bloomVerdicts} for each principal and window of time, the first of which begins with 1970: C{exact_new},
    C{bloom_new}, C{slack} and C{restored} (the exactly new ids for which either answer is right), C{fp}, C{fn} and
    C{fp_rate}, the share of C{fp} in the exactly new ids for which only one answer is right; null if there are none.

    @param requests: clean ones, of servers with the same filter.
    """
    verdicts = bloomVerdicts(requests, shape)
    window = F.window("ts", f"{shape.windowUs} microseconds").alias("_window")
    counted = verdicts.groupBy(*RUN, "principal", window).agg(
        F.count("*").alias("asked"),
        F.count_if("exact_new").alias("exact_new"),
        F.count_if(~F.col("bloom_seen")).alias("bloom_new"),
        F.count_if("is_slack").alias("slack"),
        F.count_if("is_restored").alias("restored"),
        F.count_if("is_fp").alias("fp"),
        F.count_if("is_fn").alias("fn"),
    )
    certain = F.col("exact_new") - F.col("slack") - F.col("restored")
    return counted.select(
        *RUN,
        "principal",
        F.col("_window.start").alias("window_start"),
        "asked",
        "exact_new",
        "bloom_new",
        "slack",
        "restored",
        "fp",
        "fn",
        F.try_divide("fp", certain).alias("fp_rate"),
    )

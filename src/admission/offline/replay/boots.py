# -*- test-case-name: tests.unit.offline.test_replay_trials -*-
"""
What is known of each run of a server that was recorded: its policies, its
limits, what of its record is missing, and when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen
from pyarrow import compute as pc

from ...interfaces import QuotaEntity
from ..failures import TraceError

BOOT_COLUMNS: Sequence[str] = (
    "broker_id",
    "boot_id",
    "ts",
    "mono_us",
    "decided_mono_us",
    "sent_mono_us",
    "policy_names",
    "policy_descriptions",
    "quota_windows",
    "quota_window_us",
    "throttle_max_us",
)
"""What L{summarizeBoots} reads of the requests table."""

LIMIT_COLUMNS: Sequence[str] = (
    "broker_id",
    "boot_id",
    "seq",
    "mono_us",
    "user",
    "client_id",
    "ip",
    "limit_name",
    "value",
    "changed_by",
)
"""What L{bootsOf} reads of the limits table."""

BOOTS = pa.schema(
    [
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("policy_names", pa.list_(pa.string())),
        ("policy_descriptions", pa.list_(pa.string())),
        ("quota_windows", pa.int64()),
        ("quota_window_us", pa.int64()),
        ("throttle_max_us", pa.int64()),
        ("wall_offset_us", pa.int64()),
        ("horizon_us", pa.int64()),
    ]
)
"""Summaries; several may be of the same boot."""

GAPS = pa.schema(
    [
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("seq", pa.int64()),
        ("at_us", pa.int64()),
        ("missing", pa.int64()),
    ]
)
"""Where events were dropped: the number and moment of the first event after it, and how many are missing."""

_LONGEST_DELAY_US = 2**53


@frozen
class LimitChange:
    """
    A limit was set or removed.

    @ivar atUs: when.
    @ivar entity: for whom.
    @ivar name: which limit.
    @ivar value: in its unit; L{None} if it was removed.
    @ivar isStart: whether the server was started with it.
    """

    atUs: int
    entity: QuotaEntity
    name: str
    value: float | None
    isStart: bool = False


@frozen
class Gap:
    """
    Events are missing.

    @ivar seq: the number of the first event after them.
    @ivar atUs: when that one was.
    @ivar missing: how many there are missing.
    """

    seq: int
    atUs: int
    missing: int = 1


@frozen
class Boot:
    """
    One run of one server.

    @ivar brokerId: which server.
    @ivar bootId: which run.
    @ivar horizonUs: the last moment that was recorded.
    @ivar policyNames: what its quota policies were called, in their order.
    @ivar policyDescriptions: the description of each.
    @ivar quotaWindows: see L{admission.interfaces.PolicyContext}, like
        C{quotaWindowSeconds}.
    @ivar maxDelayUs: the longest delay that anybody was given at a time.
    @ivar wallOffsetUs: what to add to a moment for microseconds of the epoch.
    @ivar changes: of limits, in their order.
    @ivar gaps: in their order.
    """

    brokerId: str
    bootId: str
    horizonUs: int
    policyNames: Sequence[str] = ()
    policyDescriptions: Sequence[str] = ()
    quotaWindows: int = 11
    quotaWindowSeconds: float = 1.0
    maxDelayUs: int = _LONGEST_DELAY_US
    wallOffsetUs: int = 0
    changes: Sequence[LimitChange] = ()
    gaps: Sequence[Gap] = ()

    def __attrs_post_init__(self) -> None:
        if len(self.policyNames) != len(self.policyDescriptions):
            raise TraceError(
                f"boot {self.bootId} of broker {self.brokerId} names {len(self.policyNames)} policies and describes "
                f"{len(self.policyDescriptions)}; a recording of another version of admission needs that version"
            )


def summarizeBoots(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """
    Find what is the same for whole boots.

    @param batches: of L{BOOT_COLUMNS}, in any order.
    @return: of L{BOOTS}: few rows, for L{bootsOf}.
    """
    for batch in batches:
        table = pa.table({name: batch.column(name) for name in BOOT_COLUMNS})
        last = pc.max_element_wise(table["mono_us"], table["decided_mono_us"], table["sent_mono_us"])
        offset = pc.subtract(table["ts"].cast(pa.int64()), table["mono_us"])
        measured = table.select(["broker_id", "boot_id"]).append_column("last", last).append_column("offset", offset)
        measured = measured.append_column("row", pa.array(np.arange(len(table))))
        grouped = measured.group_by(["broker_id", "boot_id"]).aggregate(
            [("last", "max"), ("offset", "min"), ("row", "min")]
        )
        firsts = table.take(grouped["row_min"])
        columns = {name: firsts[name] for name in BOOTS.names if name in firsts.column_names}
        columns |= {"wall_offset_us": grouped["offset_min"], "horizon_us": grouped["last_max"]}
        yield from pa.table([columns[name].cast(BOOTS.field(name).type) for name in BOOTS.names], BOOTS).to_batches()


def findGaps(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """
    Find where numbers are missing.

    @param batches: of C{broker_id}, C{boot_id}, C{seq} and C{mono_us} of all
        tables together, sorted by the first three.
    @return: of L{GAPS}.
    """
    before = None
    for batch in batches:
        table = pa.table({name: batch.column(name) for name in ("broker_id", "boot_id", "seq", "mono_us")})
        if before is not None:
            table = pa.concat_tables([before, table])
        before = table.slice(max(len(table) - 1, 0))
        later, earlier = table.slice(1), table.slice(0, max(len(table) - 1, 0))
        # Where a boot begins depends on what was kept of its record.
        isSame = pc.and_(
            pc.equal(later["broker_id"], earlier["broker_id"]), pc.equal(later["boot_id"], earlier["boot_id"])
        )
        missing = pc.subtract(pc.subtract(later["seq"], earlier["seq"]), 1)
        found = later.append_column("missing", missing).filter(pc.and_(isSame, pc.greater(missing, 0)))
        yield from found.rename_columns(GAPS.names).cast(GAPS).to_batches()


def bootsOf(summaries: pa.Table, limits: pa.Table, gaps: pa.Table | None = None) -> list[Boot]:
    """
    Put together what is known of each boot.

    @param summaries: of L{BOOTS}, as L{summarizeBoots} made them.
    @param limits: the limits table, with L{LIMIT_COLUMNS} at least.
    @param gaps: of L{GAPS}.
    @return: by broker and boot.
    @raise TraceError: if a boot says nothing that can be replayed.
    """
    changes: dict[tuple[str, str], list[LimitChange]] = {}
    for each in limits.select(LIMIT_COLUMNS).sort_by([("mono_us", "ascending"), ("seq", "ascending")]).to_pylist():
        changes.setdefault((each["broker_id"], each["boot_id"]), []).append(_changeOf(each))
    dropped: dict[tuple[str, str], list[Gap]] = {}
    for each in [] if gaps is None else gaps.sort_by("seq").to_pylist():
        dropped.setdefault((each["broker_id"], each["boot_id"]), []).append(
            Gap(each["seq"], each["at_us"], each["missing"])
        )
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for each in summaries.to_pylist():
        first = merged.setdefault((each["broker_id"], each["boot_id"]), each)
        first["horizon_us"] = max(first["horizon_us"], each["horizon_us"])
        first["wall_offset_us"] = min(first["wall_offset_us"], each["wall_offset_us"])
    return [
        Boot(
            *key,
            each["horizon_us"],
            each["policy_names"] or (),
            each["policy_descriptions"] or (),
            11 if each["quota_windows"] is None else each["quota_windows"],
            1.0 if each["quota_window_us"] is None else each["quota_window_us"] / 1e6,
            _LONGEST_DELAY_US if each["throttle_max_us"] is None else each["throttle_max_us"],
            each["wall_offset_us"],
            changes.get(key, ()),
            dropped.get(key, ()),
        )
        for key, each in sorted(merged.items())
    ]


def _changeOf(row: dict[str, Any]) -> LimitChange:
    entity = QuotaEntity(row["user"], row["client_id"], row["ip"])
    return LimitChange(row["mono_us"], entity, row["limit_name"], row["value"], row["changed_by"] is None)

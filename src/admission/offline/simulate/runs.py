# -*- test-case-name: tests.offline.simulate.test_trials -*-
"""
Runs of servers: their policies and limits, the gaps in their recordings, and when they end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve, field, frozen
from pyarrow import compute as pc

from admission.interfaces import QuotaEntity
from admission.recording.events import KEPT
from admission.recording.sharedusage import isOfSharing

from ..failures import TraceError

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
"""The columns of the limits table that L{withHistory} reads."""

GAPS = pa.schema(
    [
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("seq", pa.int64()),
        ("at_us", pa.int64()),
        ("missing", pa.int64()),
    ]
)
"""Where events were dropped: the number and moment of the next event, and how many are missing."""

LONGEST_DELAY_US = 2**53
"""The longest delay of a run whose recording does not say."""


@frozen
class LimitChange:
    """
    A limit was set or removed.

    @ivar atUs: when.
    @ivar entity: for whom.
    @ivar name: the name of the limit.
    @ivar value: in its unit; L{None} if it was removed.
    @ivar isStart: whether the server was started with it.
    @ivar seq: the number of the event: what was recorded before it at the same moment came before it.
    """

    atUs: int
    entity: QuotaEntity
    name: str
    value: float | None
    isStart: bool = False
    seq: int = 0


@frozen
class Gap:
    """
    Events are missing.

    @ivar seq: the number of the next event.
    @ivar atUs: the moment of that event.
    @ivar missing: how many events are missing.
    """

    seq: int
    atUs: int
    missing: int = 1


@frozen
class Run:
    """
    One run of one server.

    @ivar brokerId: the server.
    @ivar bootId: the run.
    @ivar horizonUs: the last recorded moment.
    @ivar policyNames: the names of its quota policies, in order.
    @ivar policyDescriptions: the description of each.
    @ivar quotaWindows: see L{admission.interfaces.PolicyContext}, like C{quotaWindowSeconds}.
    @ivar maxDelayUs: the longest delay that was imposed at a time.
    @ivar wallOffsetUs: added to a moment to get microseconds since the epoch.
    @ivar changes: of limits, in time order; see L{withHistory}.
    @ivar elsewhere: what servers that share its limits have told, see L{admission.recording.sharedusage}; likewise.
    @ivar gaps: in time order; likewise.
    @ivar kept: what each policy kept over the restart before this run, see L{admission.interfaces.IPersistent};
        likewise.
    @ivar requests: how many there are.
    @ivar beginUs: the first arrival, in microseconds since the epoch.
    @ivar endUs: the last arrival.
    @ivar pool: the description of the memory pool; L{None} if it is not known.
    @ivar gateSeed: the seed of the order in which memory was allocated.
    @ivar hasTwoWay: whether there are requests whose bytes count in both directions.
    @ivar limitShare: how much of each limit its policies enforced; C{changes} say what was in force.
    """

    brokerId: str
    bootId: str
    horizonUs: int
    policyNames: Sequence[str] = ()
    policyDescriptions: Sequence[str] = ()
    quotaWindows: int = 11
    quotaWindowSeconds: float = 1.0
    maxDelayUs: int = LONGEST_DELAY_US
    wallOffsetUs: int = 0
    changes: Sequence[LimitChange] = ()
    elsewhere: Sequence[LimitChange] = ()
    gaps: Sequence[Gap] = ()
    kept: Mapping[str, Mapping[str, float]] = field(factory=dict, hash=False)
    requests: int = 0
    beginUs: int = 0
    endUs: int = 0
    pool: str | None = None
    gateSeed: int | None = None
    hasTwoWay: bool = False
    limitShare: float = 1.0

    @property
    def policies(self) -> Mapping[str, str]:
        return dict(zip(self.policyNames, self.policyDescriptions, strict=False))


def findGaps(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """
    Find gaps in the event numbers.

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
        # The first number of a run depends on how much of its recording was kept.
        isSame = pc.and_(
            pc.equal(later["broker_id"], earlier["broker_id"]), pc.equal(later["boot_id"], earlier["boot_id"])
        )
        missing = pc.subtract(pc.subtract(later["seq"], earlier["seq"]), 1)
        found = later.append_column("missing", missing).filter(pc.and_(isSame, pc.greater(missing, 0)))
        yield from found.rename_columns(GAPS.names).cast(GAPS).to_batches()


def withHistory(runs: Iterable[Run], limits: pa.Table, gaps: pa.Table) -> list[Run]:
    """
    Add the limit changes and gaps to each run.

    @param limits: the limits table, with L{LIMIT_COLUMNS} at least.
    @param gaps: of L{GAPS}.
    @raise TraceError: if a run cannot be replayed.
    """
    changes: dict[tuple[str, str], list[LimitChange]] = {}
    elsewhere: dict[tuple[str, str], list[LimitChange]] = {}
    kept: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for each in limits.select(LIMIT_COLUMNS).sort_by([("mono_us", "ascending"), ("seq", "ascending")]).to_pylist():
        key = (each["broker_id"], each["boot_id"])
        if each["limit_name"].startswith(KEPT):
            policyName = each["limit_name"].removeprefix(KEPT)
            kept.setdefault(key, {}).setdefault(policyName, {})[each["user"]] = each["value"]
        elif isOfSharing(each["limit_name"]):
            elsewhere.setdefault(key, []).append(_changeOf(each))
        else:
            changes.setdefault(key, []).append(_changeOf(each))
    dropped: dict[tuple[str, str], list[Gap]] = {}
    for each in gaps.sort_by("seq").to_pylist():
        dropped.setdefault((each["broker_id"], each["boot_id"]), []).append(
            Gap(each["seq"], each["at_us"], each["missing"])
        )
    complete = []
    for run in runs:
        if len(run.policyNames) != len(run.policyDescriptions):
            raise TraceError(
                f"boot {run.bootId} of broker {run.brokerId} names {len(run.policyNames)} policies and describes "
                f"{len(run.policyDescriptions)}; a recording of another version of admission needs that version"
            )
        key = (run.brokerId, run.bootId)
        complete.append(
            evolve(
                run,
                changes=changes.get(key, ()),
                elsewhere=elsewhere.get(key, ()),
                gaps=dropped.get(key, ()),
                kept=kept.get(key, {}),
            )
        )
    return complete


def _changeOf(row: dict[str, Any]) -> LimitChange:
    entity = QuotaEntity(row["user"], row["client_id"], row["ip"])
    return LimitChange(row["mono_us"], entity, row["limit_name"], row["value"], row["changed_by"] is None, row["seq"])

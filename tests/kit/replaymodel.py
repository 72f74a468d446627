"""
A server and its clients, told as simply as possible, to hold replays against;
and a replay from beginning to end as Spark would do it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import define, evolve, field, frozen
from twisted.internet.task import Clock

from admission.control import AdmissionControl
from admission.interfaces import CONNECTION, IQuotaPolicyFactory, PolicyContext, QuotaEntity, Refusal, Request, Usage
from admission.offline.kinds import TWO_WAY, traitsOfKind
from admission.offline.simulate.arrivals import (
    CLOSED_GROUP,
    CLOSED_ORDER,
    COLUMNS,
    OPEN_GROUP,
    OPEN_ORDER,
    PARKED_COLUMN,
    columnsFor,
    makeArrivals,
)
from admission.offline.simulate.closedloop import replayClosedLoop
from admission.offline.simulate.decisions import CLOSED, DECISIONS, OPEN
from admission.offline.simulate.identity import VERDICT_COLUMNS
from admission.offline.simulate.keys import (
    CLIENT_REQUESTS,
    Alike,
    Connections,
    clientsOf,
    componentsIn,
    findComponents,
    findKeys,
)
from admission.offline.simulate.live import REQUESTER
from admission.offline.simulate.openloop import replayOpenLoop
from admission.offline.simulate.ordered import distinctRows, numbersOf
from admission.offline.simulate.runs import GAPS, LIMIT_COLUMNS, Run, findGaps, withHistory
from admission.offline.simulate.shards import SHARD, SHARDED, ReplayPlan, planReplays
from admission.offline.simulate.together import Together
from admission.offline.simulate.trials import Trial, TrialKey
from admission.plugins import buildPolicy

WALL_OFFSET_US = 1_700_000_000_000_000

_TYPES: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("broker_id", "boot_id", "peer", "principal", "client_id", "kind", "decision"), pa.string()),
    "refusal": pa.string(),
    "pool_description": pa.string(),
    **dict.fromkeys(("policy", "user", "ip", "limit_name", "changed_by"), pa.string()),
    **dict.fromkeys(("policy_names", "policy_descriptions"), pa.list_(pa.string())),
    **dict.fromkeys(("producer_ids", "policy_delays_us"), pa.list_(pa.int64())),
    **dict.fromkeys(("is_counted", "bloom_seen"), pa.bool_()),
    "ts": pa.timestamp("us", "UTC"),
    **dict.fromkeys(("value", "limit_share"), pa.float64()),
}

RUN_COLUMNS = (
    "ts",
    "policy_names",
    "policy_descriptions",
    "quota_windows",
    "quota_window_us",
    "throttle_max_us",
    "pool_description",
    "gate_seed",
    "limit_share",
)
"""What L{admission.offline.survey.findRuns} reads besides."""

REQUEST_COLUMNS = tuple(dict.fromkeys((*COLUMNS, PARKED_COLUMN, *RUN_COLUMNS, *VERDICT_COLUMNS)))


def tableOf(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = REQUEST_COLUMNS) -> pa.Table:
    """Rows as Spark hands them to Python; what they do not say is null."""
    rows = [{"traits": traitsOfKind(row.get("kind") or "").code, **row} for row in rows]
    return pa.table({name: pa.array([row.get(name) for row in rows], _TYPES.get(name, pa.int64())) for name in columns})


@frozen
class Step:
    """
    What a client does next, whatever the server makes of it.

    @ivar thinkUs: how long it waits after it may.
    @ivar sizeBytes: how large its request is.
    @ivar workUs: how long the server works on it.
    @ivar answerUs: how long the answer then takes.
    @ivar identities: the producer ids in it.
    """

    thinkUs: int
    sizeBytes: int
    workUs: int
    answerUs: int
    kind: str = "Produce"
    identities: tuple[int, ...] = ()


@frozen
class Client:
    """
    A connection, and whose it is.

    @ivar number: the connection's; its steps depend on it alone.
    @ivar beginsUs: when it is opened.
    """

    number: int
    principal: str
    clientId: str
    peer: str = "192.0.2.1"
    beginsUs: int = 0


Steps = Callable[[Client], Iterator[Step]]


@define
class Recording:
    """
    What was recorded of a server.

    @ivar rows: of the requests table.
    @ivar limits: of the limits table.
    """

    horizonUs: int
    rows: list[dict[str, Any]] = field(factory=list)
    limits: list[dict[str, Any]] = field(factory=list)

    def throttledUs(self) -> tuple[int, int, int]:
        """How many requests there were, how many of them the first policy throttled, and for how long in all."""
        delays = [row["policy_delays_us"][0] for row in self.rows if row["policy_delays_us"]]
        return len(self.rows), sum(delay > 0 for delay in delays), sum(delays)

    def runs(self) -> list[Run]:
        """What is known of its one run."""
        first = self.rows[0]
        wallUs = tableOf(self.rows, ["ts"])["ts"].cast(pa.int64()).to_pylist()
        offsetsUs = [at - row["mono_us"] for at, row in zip(wallUs, self.rows, strict=True)]
        run = Run(
            first["broker_id"],
            first["boot_id"],
            max(row.get(name) or 0 for row in self.rows for name in ("mono_us", "decided_mono_us", "sent_mono_us")),
            tuple(first.get("policy_names") or ()),
            tuple(first.get("policy_descriptions") or ()),
            wallOffsetUs=min(zip((row["mono_us"] for row in self.rows), offsetsUs, strict=True))[1],
            requests=len(self.rows),
            beginUs=min(wallUs),
            endUs=max(wallUs),
            limitShare=first.get("limit_share") or 1.0,
            hasTwoWay=any((row.get("traits") or 0) & TWO_WAY == TWO_WAY for row in self.rows),
        )
        if "quota_windows" in first:
            run = evolve(
                run,
                quotaWindows=first["quota_windows"],
                quotaWindowSeconds=first["quota_window_us"] / 1e6,
                maxDelayUs=first["throttle_max_us"],
            )
        numbers = sorted(
            (row["broker_id"], row["boot_id"], row["seq"], row["mono_us"]) for row in (*self.rows, *self.limits)
        )
        numbered = pa.table(
            dict(zip(("broker_id", "boot_id", "seq", "mono_us"), zip(*numbers, strict=True), strict=True))
        )
        gaps = pa.Table.from_batches(findGaps(numbered.to_batches(300)), GAPS)
        return withHistory([run], tableOf(self.limits, LIMIT_COLUMNS), gaps)


@frozen
class Change:
    """A limit that is set while the server runs, or with L{None} removed."""

    atUs: int
    entity: QuotaEntity
    name: str
    value: float | None


@define
class Serving:
    """
    A server at work: its clients send requests, each when it has the answer to the last one and has thought.

    @ivar recording: what an exporter would have recorded.
    @ivar control: its policies.
    @ivar wallOffsetUs: what the calendar says at the beginning of its clock.
    """

    recording: Recording
    control: AdmissionControl
    wallOffsetUs: int
    _run: Mapping[str, Any]
    _steps: Steps
    _refusals: Mapping[str, Refusal] | None
    _heap: list[Any] = field(factory=list)

    @classmethod
    def begin(
        cls,
        policies: Mapping[str, str],
        clients: Iterable[Client],
        steps: Steps,
        horizonUs: int,
        quotaWindows: int = 11,
        maxDelaySeconds: float = 1e6,
        refusals: Mapping[str, Refusal] | None = None,
        share: float | None = None,
        bootId: str = "boot",
        wallOffsetUs: int = WALL_OFFSET_US,
    ) -> Serving:
        """A server that begins at the beginning of its clock; see L{serve}."""
        clock = Clock()
        context = PolicyContext(clock, lambda: clock.seconds() + wallOffsetUs / 1e6, None, quotaWindows, 1.0)
        built = [(name, buildPolicy(IQuotaPolicyFactory, text, context)) for name, text in policies.items()]
        control = AdmissionControl(built, maxDelaySeconds)
        control.enforceShare(share or 1.0, 0.0)
        run = {
            "broker_id": "1",
            "boot_id": bootId,
            "policy_names": list(policies),
            "policy_descriptions": list(policies.values()),
            "quota_windows": quotaWindows,
            "quota_window_us": 1_000_000,
            "throttle_max_us": round(maxDelaySeconds * 1e6),
            "limit_share": share,
        }
        serving = cls(Recording(horizonUs), control, wallOffsetUs, run, steps, refusals)
        for entity, limits in control.limits.items():
            for name, value in limits.items():
                serving.tellLimit(0, entity, name, value, None)
        for client in clients:
            each = steps(client)
            step = next(each)
            arrivedUs = client.beginsUs + step.thinkUs
            serving._heap.append((arrivedUs + step.workUs, client.number, arrivedUs, client, step, each))
        heapify(serving._heap)
        return serving

    @property
    def nextUs(self) -> float:
        """When it decides next."""
        return self._heap[0][0] if self._heap else inf

    def tellLimit(self, atUs: int, entity: QuotaEntity, name: str, value: float | None, changedBy: str | None) -> None:
        """Record an event of limits."""
        self.recording.limits.append(
            {
                **self._run,
                "seq": self._nextSeq(),
                "mono_us": atUs,
                "user": entity.user,
                "client_id": entity.clientId,
                "ip": entity.ip,
                "limit_name": name,
                "value": value,
                "changed_by": changedBy,
            }
        )

    def _nextSeq(self) -> int:
        return len(self.recording.rows) + len(self.recording.limits) + 1

    def decide(self) -> None:
        """Decide about the request that is next, and record it."""
        decidedUs, _, arrivedUs, client, step, each = heappop(self._heap)
        control, policies = self.control, self._run["policy_names"]
        now = decidedUs / 1e6
        isConnection = step.kind == CONNECTION
        request = Request(
            step.kind,
            client.principal,
            client.clientId,
            client.peer,
            step.sizeBytes,
            step.identities,
            traitsOfKind(step.kind),
        )
        row: dict[str, Any] = {
            **self._run,
            "seq": self._nextSeq(),
            "ts": self.wallOffsetUs + arrivedUs,
            "mono_us": arrivedUs,
            "conn_id": client.number,
            "peer": client.peer,
            "principal": client.principal,
            "client_id": client.clientId,
            "kind": step.kind,
            "request_bytes": step.sizeBytes,
            "response_bytes": 0,
            "service_us": step.workUs,
            "producer_ids": list(step.identities),
            "sent_mono_us": decidedUs + step.answerUs,
            "decision": "admit",
            "policy_delays_us": [],
            "throttle_ms": 0,
        }
        delayUs = 0
        if self._refusals is None:
            refusal = Refusal.ERROR if step.kind in ("Produce", "Fetch") else Refusal.NEVER
        else:
            refusal = self._refusals[step.kind]
            row["refusal"] = refusal.value
        if control.isLimiting:
            row["decided_mono_us"] = decidedUs
            row["bloom_seen"] = control.isKnown(request, now)
            decision = control.admit(request, now, refusal)
            if not decision.admitted:
                delayUs = round(decision.delaySeconds * 1e6)
                policy = decision.policy
                row.update(
                    decision="reject",
                    policy=policy,
                    policy_delays_us=[delayUs if name == policy else 0 for name in policies],
                    throttle_ms=-(-delayUs // 1000),
                )
            else:
                usage = Usage(step.sizeBytes, 0, step.workUs / 1e6, int(isConnection))
                charge = control.charge(request, usage, now, decision)
                delayUs = round(charge.delaySeconds * 1e6)
                row.update(
                    policy_delays_us=[round(share * 1e6) for share in charge.shares],
                    throttle_ms=-(-delayUs // 1000),
                    decision="throttle" if delayUs else "admit",
                    is_counted=True,
                )
        self.recording.rows.append(row)
        step = next(each)
        nextUs = max(row["sent_mono_us"], decidedUs + delayUs) + step.thinkUs
        heappush(self._heap, (nextUs + step.workUs, client.number, nextUs, client, step, each))


def serve(
    policies: Mapping[str, str],
    clients: Iterable[Client],
    steps: Steps,
    horizonUs: int,
    changes: Sequence[Change] = (),
    quotaWindows: int = 11,
    maxDelaySeconds: float = 1e6,
    refusals: Mapping[str, Refusal] | None = None,
    established: Iterable[tuple[str, int]] = (),
    share: float | None = None,
) -> Recording:
    """
    Let clients send requests, each when it has the answer to the last one and
    has thought, until C{horizonUs}.

    @param policies: names and descriptions.
    @param refusals: how requests of each kind can be refused; L{None} for a
        server that does not record it.
    @param established: principals and producer ids, as they are known after a restart.
    @param share: how much of each limit it enforces, C{changes} included; L{None} for a server that does not record it.
    @return: what an exporter would have recorded.
    """
    serving = Serving.begin(policies, clients, steps, horizonUs, quotaWindows, maxDelaySeconds, refusals, share)
    control = serving.control
    control.restore(control.limitNames, established, 0.0)
    waiting = list(changes)
    while serving.nextUs <= horizonUs:
        while waiting and waiting[0].atUs <= serving.nextUs:
            change = waiting.pop(0)
            value = None if change.value is None else change.value * (share or 1.0)
            control.configure(change.entity, {change.name: value}, change.atUs / 1e6)
            serving.tellLimit(change.atUs, change.entity, change.name, value, "admin")
        serving.decide()
    return serving.recording


def steadySteps(seed: int = 7, thinkMs: float = 80.0, sizeBytes: int = 20_000) -> Steps:
    """Clients that think for a while and send requests of different sizes."""

    def steps(client: Client) -> Iterator[Step]:
        random = Random(f"{seed} {client.number}")
        while True:
            yield Step(
                1 + round(random.expovariate(1 / thinkMs) * 1000),
                1 + round(random.lognormvariate(0.0, 0.7) * sizeBytes),
                random.randrange(200, 900),
                random.randrange(100, 3000),
            )

    return steps


def population(clients: int, connections: int) -> list[Client]:
    """Clients with several connections each."""
    return [
        Client(number * connections + index + 1, "user", f"client {number}", beginsUs=index * 1000 + number)
        for number in range(clients)
        for index in range(connections)
    ]


def arrivalsOf(recording: Recording, trials: Mapping[TrialKey, Trial], batchRows: int = 1000) -> list[pa.RecordBatch]:
    """What candidates are to see."""
    return list(makeArrivals(tableOf(recording.rows).to_batches(batchRows), trials))


def alone(trials: Mapping[TrialKey, Trial]) -> dict[TrialKey, Sequence[Together]]:
    """Trials that share no rows."""
    return {key: [[trial]] for key, trial in trials.items()}


def openLoop(recording: Recording, trials: Mapping[TrialKey, Trial], batchRows: int = 1000) -> pa.Table:
    """Replay all that was recorded, open loop."""
    batches = sortedBy(arrivalsOf(recording, trials), (*OPEN_GROUP, *OPEN_ORDER), batchRows)
    return pa.Table.from_batches(replayOpenLoop(batches, alone(trials)), DECISIONS)


def closedLoop(recording: Recording, trials: Mapping[TrialKey, Trial], batchRows: int = 1000) -> pa.Table:
    """Replay all that was recorded, closed loop."""
    arrivals = addComponents(arrivalsOf(recording, trials), componentsOf(recording.rows, trials))
    batches = sortedBy(arrivals, (*CLOSED_GROUP, *CLOSED_ORDER), batchRows)
    return pa.Table.from_batches(replayClosedLoop(batches, alone(trials)), DECISIONS)


def clientsIn(
    rows: Sequence[Mapping[str, Any]], trials: Mapping[TrialKey, Trial]
) -> Mapping[TrialKey, Sequence[Client]]:
    """Of whom each trial may be asked."""
    requests = tableOf(rows)
    ones = pa.array([1] * len(requests), pa.int64())
    columns = [*(requests[name] for name in CLIENT_REQUESTS.names[:-2]), requests["decided_mono_us"].is_valid(), ones]
    return clientsOf(pa.table(columns, CLIENT_REQUESTS.names).to_batches(100), trials)


def alikeIn(rows: Sequence[Mapping[str, Any]]) -> Mapping[tuple[str, ...], Alike]:
    """Which connections the same clients sent requests of the same kinds on."""
    senders = defaultdict(set)
    for row in tableOf(rows).to_pylist():
        sender = (*(row[name] or "" for name in REQUESTER), row["decided_mono_us"] is None)
        senders[row["broker_id"], row["boot_id"], row["conn_id"]].add(sender)
    firsts: dict[tuple[Any, ...], int] = {}
    found: defaultdict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for (*run, connection), known in sorted(senders.items()):
        first = firsts.setdefault((*run, frozenset(known)), connection)
        if first != connection:
            found[tuple(run)].append((connection, first))
    return {run: tuple(np.array(each) for each in zip(*pairs, strict=True)) for run, pairs in found.items()}


def componentsOf(rows: Sequence[Mapping[str, Any]], trials: Mapping[TrialKey, Trial]) -> Mapping[TrialKey, Connections]:
    """Which connections are replayed together."""
    clients = clientsIn(rows, trials)
    return {key: findComponents(clients[key], findKeys(trial, clients[key])[0]) for key, trial in trials.items()}


def addComponents(
    batches: Iterable[pa.RecordBatch], components: Mapping[TrialKey, Connections]
) -> Iterator[pa.RecordBatch]:
    """
    Tell for each row with whom it is replayed.

    @param batches: of arrivals, in any order.
    @param components: all there are.
    @return: the same with a column C{component}.
    """
    for batch in batches:
        found, rows = distinctRows([batch.column(name) for name in CLOSED_GROUP[:3]])
        component = numbersOf(batch.column("conn_id")).copy()
        for index, trialKey in enumerate(found):
            isHere = rows == index
            component[isHere] = componentsIn(components[trialKey], component[isHere], component[isHere])
        yield batch.append_column("component", pa.array(component))


def sortedBy(batches: Iterable[pa.RecordBatch], names: Sequence[str], batchRows: int) -> list[pa.RecordBatch]:
    """The same rows, sorted and cut anew."""
    table = pa.Table.from_batches(batches).sort_by([(name, "ascending") for name in names]).combine_chunks()
    return list(table.to_batches(batchRows))


def plansFor(
    recording: Recording, trials: Mapping[TrialKey, Trial], modes: Sequence[str] = (CLOSED, OPEN), workers: int = 1
) -> list[ReplayPlan]:
    """The plan of each mode."""
    alike = alikeIn(recording.rows)
    firsts = {
        (*run, connection): first
        for run, each in alike.items()
        for connection, first in zip(*(array.tolist() for array in each), strict=True)
    }
    runs = ((row["broker_id"], row["boot_id"]) for row in recording.rows)
    rows = [
        {**row, "conn_id": firsts.get((*run, row["conn_id"]), row["conn_id"])}
        for run, row in zip(runs, recording.rows, strict=True)
    ]
    return planReplays(trials, modes, clientsIn(rows, trials), workers, alike)


def replayedBy(recording: Recording, plans: Sequence[ReplayPlan], maxRows: int = 500, partitions: int = 3) -> pa.Table:
    """Decisions about requests that were shuffled to partitions and sorted there, as Spark does it."""
    rows = list(recording.rows)
    Random(1).shuffle(rows)
    decisions = []
    for plan in plans:
        columns = columnsFor(trial for each in plan.replays for together in each.trials for trial in together)
        sharded = pa.Table.from_batches(plan.shard(tableOf(rows, columns).to_batches(maxRows)), SHARDED)
        shards = [hash(each) % partitions for each in zip(*(sharded[name].to_pylist() for name in SHARD), strict=True)]
        for partition in range(partitions):
            mine = sharded.filter(pa.array([each == partition for each in shards], pa.bool_()))
            mine = mine.sort_by([(name, "ascending") for name in plan.order]).combine_chunks()
            decisions += list(plan.replay(mine.to_batches(maxRows)))
    return pa.Table.from_batches(decisions, DECISIONS)


def rowsOf(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows that can be compared, whatever order they came in."""
    columns: Sequence[list[Any]] = [column.to_pylist() for column in table.columns]
    return sorted(zip(*columns, strict=True), key=repr)


def summed(decisions: pa.Table) -> tuple[int, int, int]:
    """How many requests there were, how many a candidate throttled, and for how long in all."""
    delays = decisions["delay_us"].to_pylist()
    return len(delays), sum(delay > 0 for delay in delays), sum(delays)

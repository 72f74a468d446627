# -*- test-case-name: tests.offline.simulate.test_disagreement -*-
"""
Where a replay of a policy in force disagrees with the recording: which clients and minutes, and the likely cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen
from pyarrow import compute as pc

from .identity import Fidelity
from .runs import Run
from .trials import Trial, TrialKey

MAX_CLIENTS = 5
MAX_MINUTES = 5
"""How many are told of each policy and run, those with the most disagreements."""

MIN_PART = 0.1
"""The smallest part of a recording that is worth to be evaluated instead of all of it."""

DISAGREEMENTS = pa.schema(
    [
        ("candidate", pa.string()),
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("principal", pa.string()),
        ("client_id", pa.string()),
        ("begin", pa.timestamp("us", "UTC")),
        ("decisions", pa.int64()),
        ("pipelined", pa.int64()),
        ("first_us", pa.int64()),
        ("last_us", pa.int64()),
        ("first_decided_us", pa.int64()),
    ]
)
"""
The decisions about a client's requests in a minute that a replay does not reproduce.  C{pipelined} counts those of
connections on which any request came before the last one was answered.  C{first_us} and C{last_us} are arrivals, in
microseconds since the epoch; C{first_decided_us} is a moment of the run.
"""

_OURS = "admission_plugins."
_SECOND_US = 1_000_000
_SOON_US = 60 * _SECOND_US
_LONG_US = 3600 * _SECOND_US


@frozen
class Disagreement:
    """
    How the replay of one policy in force disagrees with one run's recording.

    @ivar policy: the label of the policy in force.
    @ivar decisions: how many of the compared ones are not reproduced.
    @ivar compared: how many are compared.
    @ivar missing: how many recorded ones the replay does not come to.
    @ivar clients: of the clients with the most of them, the user, the client id and how many.
    @ivar clientCount: how many clients there are in all.
    @ivar minutes: of the minutes with the most of them, in time order, the moment and how many.
    @ivar minuteCount: how many minutes there are in all.
    @ivar first: the second of the first of these requests' arrival, as C{--to} takes it; empty if there are none.
    @ivar after: the second after the last one's arrival, as C{--from} takes it.
    @ivar cause: the likely cause, as a part of a sentence; empty if it is not known.
    """

    policy: str
    brokerId: str
    bootId: str
    decisions: int
    compared: int
    missing: int
    clients: Sequence[tuple[str | None, str | None, int]]
    clientCount: int
    minutes: Sequence[tuple[str, int]]
    minuteCount: int
    first: str
    after: str
    cause: str


def explain(
    fidelities: Iterable[Fidelity],
    table: pa.Table,
    trials: Mapping[TrialKey, Trial],
    cut: Collection[tuple[str, str]],
    pipeliningShares: Mapping[tuple[str, str], float],
    isSample: bool = False,
) -> list[Disagreement]:
    """
    Say where replays disagree, and why if that can be told.

    @param fidelities: the refuted ones, closed loop.
    @param table: of L{DISAGREEMENTS}.
    @param trials: of the policies in force.
    @param cut: the brokers and runs whose first events are not in the selected part of the recording.
    @param pipeliningShares: by broker and run, the share of requests that C{pipelined} would count.
    @param isSample: whether only some of the clients are compared.
    @return: the policy with the most disagreements first.
    """
    refuted = list(fidelities)
    found = []
    for each in refuted:
        run = (each.brokerId, each.bootId)
        key = (each.candidate, *run)
        isOwn = [pc.equal(table[name], value) for name, value in zip(DISAGREEMENTS.names, key, strict=False)]
        rows = table.filter(pc.and_(pc.and_(isOwn[0], isOwn[1]), isOwn[2])).to_pylist()
        clients: Counter[tuple[str | None, str | None]] = Counter()
        minutes: Counter[datetime] = Counter()
        for row in rows:
            clients[row["principal"], row["client_id"]] += row["decisions"]
            minutes[row["begin"]] += row["decisions"]
        isAlone = not any((other.brokerId, other.bootId) == run for other in refuted if other is not each)
        share = pipeliningShares.get(run, 1.0)
        found.append(
            Disagreement(
                each.candidate,
                *run,
                clients.total(),
                each.compared,
                each.missing,
                [(*who, count) for who, count in _most(clients, MAX_CLIENTS)],
                len(clients),
                [(f"{minute:%Y-%m-%dT%H:%M}", count) for minute, count in sorted(_most(minutes, MAX_MINUTES))],
                len(minutes),
                momentOf(min(row["first_us"] for row in rows)) if rows else "",
                momentOf(max(row["last_us"] for row in rows), 1) if rows else "",
                _causeOf(rows, trials[key], run in cut, share, isAlone, isSample) if rows else "",
            )
        )
    return sorted(found, key=lambda each: (-each.decisions - each.missing, each.policy, each.brokerId, each.bootId))


def partsWithout(found: Iterable[Disagreement], runs: Collection[Run]) -> list[tuple[str | None, str | None]]:
    """
    The parts of a recording before and after all of these disagreements.

    @param runs: of servers; not empty.
    @return: the first moment, or the first one after the end, of each part that is long enough; the longer one first.
    """
    firsts, afters = zip(*[(each.first, each.after) for each in found if each.first] or [("", "")], strict=True)
    if not any(firsts):
        return []
    begin, end = min(run.beginUs for run in runs), max(run.endUs for run in runs)
    before, after = _usOf(min(firsts)) - begin, end - _usOf(max(afters))
    parts = sorted([(before, (None, min(firsts))), (after, (max(afters), None))], key=lambda each: -each[0])
    return [part for lengthUs, part in parts if lengthUs >= MIN_PART * (end - begin)]


def momentOf(wallUs: int, moreSeconds: int = 0) -> str:
    """
    The second of a moment, in microseconds since the epoch, as C{--from} and C{--to} take it.
    """
    second = datetime.fromtimestamp(wallUs // _SECOND_US, UTC) + timedelta(seconds=moreSeconds)
    return f"{second:%Y-%m-%dT%H:%M:%S}"


def _causeOf(
    rows: Sequence[Any], trial: Trial, isCut: bool, pipeliningShare: float, isAlone: bool, isSample: bool
) -> str:
    """
    The likely cause, as a part of a sentence: what came just before the first disagreement, what all of them have in
    common, or what the policy is.

    @param rows: of L{DISAGREEMENTS}, of this trial alone; not empty.
    @param isAlone: whether no other policy of the run disagrees.
    """
    if trial.isFollowing:
        return "the policy follows requests, which a replay tells it of at approximate moments only"
    run = trial.run
    before = _justBefore(trial, min(row["first_decided_us"] for row in rows))
    if before:
        return before
    firstUs, lastUs = (how(row[name] for row in rows) for how, name in ((min, "first_us"), (max, "last_us")))
    isEarly = firstUs - run.beginUs <= _soonUs(trial) and 2 * lastUs < run.beginUs + run.endUs
    if isCut and isEarly:
        return (
            f"the recording begins at {momentOf(run.beginUs)}, when the server was at work already, so the policy's "
            "memory of the time before is missing"
        )
    if pipeliningShare < 1 and all(row["pipelined"] == row["decisions"] for row in rows):
        return (
            "all of these requests are of connections that send requests before the last one is answered, and the "
            "other connections agree"
        )
    if isAlone and not trial.candidate.implementation.startswith(_OURS):
        others = ", and no other disagrees" if len(run.policyNames) > 1 else ""
        return (
            f"the policy is not one of admission's{others}: it may depend on something that is not recorded, such as "
            "a file, chance or a clock of its own"
        )
    return "only a sample of the clients is there, and limits that they share are shared by fewer" if isSample else ""


def _justBefore(trial: Trial, firstUs: int) -> str:
    """
    What happened just before the first disagreement, if it was long after the beginning in comparison.
    """
    run = trial.run
    happened = [
        (gap.atUs, f"{gap.missing} {'event is' if gap.missing == 1 else 'events are'} missing before")
        for gap in run.gaps
    ]
    happened += [
        (
            each.atUs,
            f"the limit {each.name} of {_named(each.entity)} was {'removed' if each.value is None else 'set'} at",
        )
        for each in trial.changes
        if not each.isStart
    ]
    # A request may have been decided, and the event that tells of it be recorded later.
    earlier = [each for each in happened if each[0] <= firstUs + _SECOND_US]
    if not earlier:
        return ""
    atUs, what = max(earlier)
    sinceUs = max(firstUs - atUs, 0)
    beginUs = run.beginUs - run.wallOffsetUs
    if sinceUs > _soonUs(trial) or sinceUs > atUs - beginUs:
        return ""
    return f"{what} {momentOf(atUs + run.wallOffsetUs)}, and until then all decisions agree"


def _soonUs(trial: Trial) -> float:
    """
    For how long an event is taken for a cause: while the policy remembers, if that is known.
    """
    return min(max((trial.horizonSeconds or 0) * _SECOND_US, _SOON_US), _LONG_US)


def _named(entity: Any) -> str:
    names = (("user", entity.user), ("client id", entity.clientId), ("address", entity.ip))
    return " and ".join(f"{what} {name or 'default'}" for what, name in names if name is not None) or "everybody"


def _most(counted: Counter[Any], number: int) -> list[tuple[Any, int]]:
    return sorted(counted.items(), key=lambda each: (-each[1], repr(each[0])))[:number]


def _usOf(moment: str) -> int:
    return round(datetime.fromisoformat(f"{moment}+00:00").timestamp()) * _SECOND_US

# -*- test-case-name: tests.offline.simulate.test_identity -*-
"""
The identity gate: answers about other policies are trusted only if a replay of the policy in force reproduces the
recording.

The recorded decisions are read here, apart from a replay's input, and compared with its decisions afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from attrs import frozen
from pyarrow import compute as pc

from .ordered import distinctRows, numbersOf
from .trials import RECORDED, Trial, TrialKey

MIN_MATCHING = 0.999
"""The share of requests that a replay must reproduce."""

TOLERANCE_US = 1000
"""The largest accepted error of a delay."""

VERDICT_COLUMNS = (
    "broker_id",
    "boot_id",
    "seq",
    "policy",
    "policy_delays_us",
    "decided_mono_us",
    "is_counted",
)
"""The columns of the requests table that L{findVerdicts} reads."""

VERDICTS = pa.schema(
    [
        ("candidate", pa.string()),
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("seq", pa.int64()),
        ("recorded_delay_us", pa.int64()),
        ("was_refused", pa.bool_()),
    ]
)
"""The recorded decision of each policy in force about each request that it was asked about."""

FIDELITY = pa.schema(
    [
        ("candidate", pa.string()),
        ("mode", pa.string()),
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("compared", pa.int64()),
        ("matching", pa.int64()),
        ("throttled", pa.int64()),
        ("refused", pa.int64()),
        ("error_us", pa.int64()),
    ]
)
"""
How far a replay and the recording agree; rows of the same place may be added up. C{refused} counts the compared
requests that were refused, in the recording or the replay, C{throttled} those others that were throttled; C{error_us}
is the sum of the errors of delays.
"""

DECIDED = pa.schema([VERDICTS.field(name) for name in ("candidate", "broker_id", "boot_id", "seq")])
"""Which decision it is."""


@frozen
class Fidelity:
    """
    How far the answers about a run's policy can be trusted.

    @ivar candidate: the label of the policy in force.
    @ivar mode: of the replay.
    @ivar compared: the number of compared requests.
    @ivar matchShare: the share of them whose replayed decision matches the recorded one: throttled or not, refused or
        not, and the delay to within a millisecond.
    @ivar meanErrorMs: the mean error of delays.
    @ivar throttled: how many of the compared requests were throttled.
    @ivar refused: how many were refused.
    @ivar seqGaps: the number of gaps in the recording.
    @ivar missing: how many recorded requests the replay did not reach.
    """

    candidate: str
    mode: str
    brokerId: str
    bootId: str
    compared: int
    matchShare: float
    meanErrorMs: float
    throttled: int
    refused: int
    seqGaps: int
    missing: int

    @property
    def isTrusted(self) -> bool:
        """
        Whether answers about candidates in its place can be trusted.
        """
        return self.compared > 0 and self.matchShare * self.compared >= MIN_MATCHING * (self.compared + self.missing)

    @property
    def isRefuted(self) -> bool:
        """
        Whether such answers are known to be wrong; otherwise they are right, or there was nothing to compare.
        """
        return not self.isTrusted and bool(self.compared or self.missing)

    def inWords(self) -> str:
        """
        The verdict and its reason, as text.
        """
        what = f"{self.candidate}, {self.mode} loop, boot {self.bootId} of broker {self.brokerId}"
        if not self.compared:
            return f"{what}: answers cannot be trusted, since the policy was told of no request that could be compared"
        agreement = (
            f"the replay agrees with the recording in {self.matchShare:.3%} of {self.compared} requests, "
            f"of which {self.throttled} were throttled and {self.refused} refused; delays are off by "
            f"{self.meanErrorMs:.3f} ms on average"
        )
        gaps = f"; events are missing in {self.seqGaps} places" if self.seqGaps else ""
        behind = f"; {self.missing} recorded requests did not come up in the replay" if self.missing else ""
        if not self.isTrusted:
            return f"{what}: answers cannot be trusted: {agreement}{behind}{gaps}; {MIN_MATCHING:.1%} are needed"
        if not (self.throttled or self.refused):
            return f"{what}: {agreement}{behind}{gaps}; with nobody throttled that proves little"
        return f"{what}: {agreement}{behind}{gaps}"


FIDELITIES = pa.schema(
    [
        ("candidate", pa.string()),
        ("mode", pa.string()),
        ("broker_id", pa.string()),
        ("boot_id", pa.string()),
        ("compared", pa.int64()),
        ("match_share", pa.float64()),
        ("mean_error_ms", pa.float64()),
        ("throttled", pa.int64()),
        ("refused", pa.int64()),
        ("seq_gaps", pa.int64()),
        ("missing", pa.int64()),
        ("is_trusted", pa.bool_()),
        ("words", pa.string()),
    ]
)
"""The fields of L{Fidelity}, and its verdict."""


def findVerdicts(batches: Iterable[pa.RecordBatch], trials: Mapping[TrialKey, Trial]) -> Iterator[pa.RecordBatch]:
    """
    Read the decisions of the policies in force from a recording.

    @param batches: of L{VERDICT_COLUMNS}, in any order.
    @param trials: as L{admission.offline.simulate.trials.planRecorded} makes them.
    @return: of L{VERDICTS}.
    """
    for batch in batches:
        runs, rows = distinctRows([batch.column("broker_id"), batch.column("boot_id")])
        for index, run in enumerate(runs):
            told = batch.filter(pa.array(rows == index)).filter
            requests = told(pa.array(numbersOf(batch.column("decided_mono_us").is_valid())[rows == index]))
            for (_, *where), trial in trials.items():
                if tuple(where) == run:
                    yield _verdicts(requests, trial)


def countMatches(compared: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """
    Count where a replay and the recording agree.

    @param compared: the columns of L{VERDICTS} with C{mode}, C{delay_us} and C{is_refused} of the decision about the
        same request.
    @return: of L{FIDELITY}.
    """
    for batch in compared:
        table = pa.table({name: batch.column(name) for name in FIDELITY.names[:4]})
        delayUs, recordedUs = numbersOf(batch.column("delay_us")), numbersOf(batch.column("recorded_delay_us"))
        isRefused, wasRefused = numbersOf(batch.column("is_refused")), numbersOf(batch.column("was_refused"))
        errorUs = np.abs(delayUs - recordedUs)
        isAnyRefused = isRefused | wasRefused
        isThrottled = ((delayUs > 0) | (recordedUs > 0)) & ~isAnyRefused
        isMatching = _isMatching(batch)
        for name, values in (
            ("compared", np.ones(len(table), np.int64)),
            ("matching", isMatching.astype(np.int64)),
            ("throttled", isThrottled.astype(np.int64)),
            ("refused", isAnyRefused.astype(np.int64)),
            ("error_us", errorUs),
        ):
            table = table.append_column(name, pa.array(values))
        yield from _added(table).to_batches()


def findDisagreements(compared: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """
    Find the decisions that a replay does not reproduce.

    @param compared: as L{countMatches} takes them.
    @return: of L{DECIDED}.
    """
    for batch in compared:
        yield batch.select(DECIDED.names).filter(pa.array(~_isMatching(batch)))


def judge(
    fidelity: Iterable[pa.RecordBatch], verdictCounts: Mapping[TrialKey, int], trials: Mapping[TrialKey, Trial]
) -> list[Fidelity]:
    """
    Judge for each policy in force and each mode how far answers can be trusted.

    @param fidelity: of L{FIDELITY}; for each trial with any decisions.
    @param verdictCounts: the number of L{VERDICTS} rows of each trial.
    @return: by label, mode, broker and run.
    """
    added = _added(pa.Table.from_batches(fidelity, FIDELITY)).to_pylist()
    judged = []
    for each in added:
        key = (each["candidate"], each["broker_id"], each["boot_id"])
        compared = each["compared"]
        judged.append(
            Fidelity(
                each["candidate"],
                each["mode"],
                each["broker_id"],
                each["boot_id"],
                compared,
                each["matching"] / compared if compared else 0.0,
                each["error_us"] / compared / 1000 if compared else 0.0,
                each["throttled"],
                each["refused"],
                len(trials[key].run.gaps),
                max(verdictCounts.get(key, 0) - compared, 0),
            )
        )
    return sorted(judged, key=lambda each: (each.candidate, each.mode, each.brokerId, each.bootId))


def doubts(fidelities: Iterable[Fidelity], trials: Iterable[Trial], mode: str) -> dict[str, list[Fidelity]]:
    """
    What speaks against the answers about each candidate.  A candidate depends on the policies that it replaces, since
    all others keep their recorded delays and refusals; one that replaces none depends on all of them.

    @param trials: of candidates; those of policies in force are left out.
    @param mode: of the replays.
    @return: by the label of each candidate, what it depends on and is not trusted.
    """
    found: dict[str, list[Fidelity]] = {}
    doubted = [each for each in fidelities if each.mode == mode and not each.isTrusted]
    for trial in trials:
        if not trial.isRecorded:
            against = found.setdefault(trial.candidate.label, [])
            replaced = [f"{RECORDED}{trial.run.policyNames[index]}" for index in trial.replaced]
            against += [
                each
                for each in doubted
                if (each.brokerId, each.bootId) == trial.key[1:] and (not replaced or each.candidate in replaced)
            ]
    return found


def _isMatching(batch: pa.RecordBatch) -> Any:
    delayUs, recordedUs = numbersOf(batch.column("delay_us")), numbersOf(batch.column("recorded_delay_us"))
    isSame = numbersOf(batch.column("is_refused")) == numbersOf(batch.column("was_refused"))
    return isSame & ((delayUs > 0) == (recordedUs > 0)) & (np.abs(delayUs - recordedUs) <= TOLERANCE_US)


def _verdicts(requests: pa.RecordBatch, trial: Trial) -> pa.RecordBatch:
    [index] = trial.replaced
    name = trial.run.policyNames[index]
    isRefused = ~numbersOf(requests.column("is_counted").is_valid())
    isOwn = numbersOf(pc.equal(requests.column("policy").cast(pa.string()), name)) & trial.hasSay
    requests = requests.filter(pa.array(~isRefused | isOwn))
    wasRefused = isRefused[~isRefused | isOwn]
    delays = requests.column("policy_delays_us")
    counts = numbersOf(pc.list_value_length(delays))
    delayUs = np.zeros(len(counts), np.int64)
    hasShare = counts > index
    delayUs[hasShare] = numbersOf(pc.list_element(delays.filter(pa.array(hasShare)), index))
    columns: list[Any] = [
        pa.repeat(pa.scalar(trial.candidate.label), len(counts)),
        requests.column("broker_id").cast(pa.string()),
        requests.column("boot_id").cast(pa.string()),
        requests.column("seq"),
        pa.array(delayUs),
        pa.array(wasRefused),
    ]
    return pa.record_batch(columns, VERDICTS)


def _added(table: pa.Table) -> pa.Table:
    names = FIDELITY.names
    added = table.group_by(names[:4]).aggregate([(name, "sum") for name in names[4:]])
    return added.rename_columns({f"{name}_sum": name for name in names[4:]}).select(names).cast(FIDELITY)

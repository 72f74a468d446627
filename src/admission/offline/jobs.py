# -*- test-case-name: tests.spark.test_jobs -*-
"""
The offline jobs: each reads a recording and writes the results that
L{admission.offline.outputs} lists.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyspark
from attrs import asdict, define, evolve, frozen
from pyarrow import compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from pyspark_admission.options import Range, parseMoment

from .._version import __version__
from ..plugins import PolicyError
from ..recording.places import absolutePlace, isRemote
from ..recording.schema import CONNECTIONS, LIMITS, SENSORS
from ..recording.tables import REQUESTS
from .aggregate import (
    clientMinutes,
    fairnessMinutes,
    poolMinutes,
    poolTimes,
    starvedMinutes,
    throttleHistogram,
    throttleMinutes,
    topClients,
)
from .bloomaudit import FilterShape, bloomAudit
from .clean import brokenRows, clean
from .evaluation import Evaluation, Selection
from .failures import OutputError, RecordingError, TraceError
from .ledgeraudit import ledgerAudit, ledgerSummary
from .missing import MAX_PROBLEMS, Missing
from .outputs import DIGITS, ordered, writeResult, writeTable
from .outputtables import AGGREGATE, AUDIT, REPLAY, namesOf
from .quotaaudit import quotaSpans, quotaSummary
from .recording import Recording
from .report.words import plural
from .simulate.candidates import Candidate
from .simulate.decisions import CLOSED
from .simulate.disagreement import explain, partsWithout
from .simulate.estimates import Sampled, keysBeyond, requestsOf
from .simulate.fairness import fairnessOf
from .simulate.identity import Fidelity, doubts
from .simulate.runs import Run
from .simulate.sharedruns import findSharedRuns, largestDifferenceSeconds
from .simulate.sparkreplay import PoolTotals, Scale, planPools, replayPoolTrials, requestersIn
from .simulate.tally import (
    Totals,
    addTimes,
    approximate,
    disagreements,
    fidelityTable,
    judgeReplays,
    labelled,
    outcomes,
    pipeliningShares,
    refusingLess,
    timesIn,
    totalsOf,
)
from .simulate.totals import MINUTE_US
from .simulate.trials import BASELINE, RECORDED, Trial, TrialKey, planBaseline, planRecorded, planTrials
from .streaming import appendAvailable, clientMinutesStream, throttleMinutesStream
from .survey import (
    completeRuns,
    countDropped,
    countEvents,
    cutRuns,
    filterShapes,
    findRuns,
    isoMoment,
    limitsFromTheStart,
    numbered,
    ofRuns,
    within,
)
from .syntheticserver import BROKER_ID

MAX_GAPS = 100
"""How many gaps L{admission.offline.evaluation} lists."""

MAX_DISAGREEMENTS = 100
"""How many policies and runs with disagreements it lists."""

SHORT_STEP_US = 5_000_000
MAX_SHORT_US = 20 * MINUTE_US

STREAMS = {"client_minute_stream": clientMinutesStream, "throttle_minute_stream": throttleMinutesStream}
"""The results of L{aggregateStream}, which are directories of Parquet files."""


@frozen
class Question:
    """
    What a replay should answer.

    @ivar candidates: quota policies to try.
    @ivar pools: memory pools to try.
    @ivar modes: of L{admission.offline.simulate.decisions}.
    """

    candidates: Sequence[Candidate]
    pools: Sequence[Candidate]
    modes: Sequence[str]


@frozen
class Answer:
    """
    The main results of a replay.

    @ivar totals: of quota policies; L{None} if there were none to try.
    @ivar fidelities: how far these can be trusted.
    @ivar pools: of memory pools; L{None} if there were none to try.
    """

    totals: Totals | None
    fidelities: Sequence[Fidelity]
    pools: PoolTotals | None


@define(eq=False)
class Work:
    """
    The input and output of a job.

    @ivar recording: what it reads.
    @ivar requests: its requests, clean.
    @ivar runs: of servers.
    @ivar out: the directory of the results.
    @ivar evaluation: the description of the results.
    @ivar tell: takes a line of progress for the operator.
    """

    recording: Recording
    requests: DataFrame
    runs: Sequence[Run]
    out: Path
    evaluation: Evaluation
    tell: Callable[[str], None]

    @classmethod
    def begin(cls, session: SparkSession, selection: Selection, out: str, tell: Callable[[str], None]) -> Work:
        """
        Open a recording.

        @raise RecordingError: if it cannot be read, or has no requests in the selection.
        @raise OutputError: if C{out} has results of another selection, or cannot be written to.
        """
        if isRemote(out):
            raise OutputError(f"results are made in a directory of this machine, and {out} is a URL; copy them there")
        recording = Recording.open(session, selection.recording, selection.since, selection.until, selection.sample)
        evaluation = Evaluation.open(out, selection)
        requests = clean(recording.requests(), REQUESTS)
        runs = findRuns(requests)
        if not runs:
            for path, problem in recording.problems()[:1]:
                raise RecordingError(
                    f"no requests in {selection.inWords()} can be read: {path} {problem.rstrip('.')}; restore it from "
                    "a backup, or ask for another time"
                )
            raise RecordingError(f"there are no requests in {selection.inWords()}; ask for another time or for more")
        work = cls(recording, requests, runs, Path(out), evaluation, tell)
        evaluation.tell(
            {
                "admission": __version__,
                "pyspark": pyspark.__version__,
                "requests": work.requestCount,
                "runs": [_facts(run) for run in runs],
                "stepSeconds": stepUs(runs) // 1_000_000,
                "isSynthetic": all(run.brokerId == BROKER_ID for run in runs),
            }
        )
        tell(f"{work.requestCount:,} requests of {len(runs)} {'run' if len(runs) == 1 else 'runs'} of servers")
        return work

    @property
    def requestCount(self) -> int:
        return sum(run.requests for run in self.runs)

    @property
    def limits(self) -> DataFrame:
        """
        The limits, clean, including limits set before the selected time.
        """
        return clean(limitsFromTheStart(self.recording), LIMITS)

    @property
    def sensors(self) -> DataFrame:
        """
        The samples of sensors, clean.
        """
        return clean(self.recording.sensors(), SENSORS)

    @cached_property
    def unreadable(self) -> Mapping[str, Any]:
        """
        The entries of L{admission.offline.evaluation} about files that cannot be read.
        """
        self.tell("unreadable files")
        problems = self.recording.problems()
        return {
            "unreadableFiles": len(problems),
            "unreadableShare": round(self.recording.shareIn([path for path, _ in problems]), DIGITS),
            "problems": [{"path": path, "problem": problem} for path, problem in problems[:MAX_PROBLEMS]],
        }

    def clear(self, job: str) -> None:
        """
        Remove a job's former results: they may be of another question.
        """
        for name in namesOf(job):
            for suffix in ("parquet", "csv"):
                self.out.joinpath(f"{name}.{suffix}").unlink(missing_ok=True)

    def write(self, name: str, result: DataFrame | pa.Table) -> None:
        """
        Write a result.

        @raise OutputError: if it cannot be written.
        """
        self.tell(name)
        if isinstance(result, pa.Table):
            writeTable(result, self.out, name)
        else:
            writeResult(result, self.out, name)


def aggregate(work: Work) -> None:
    """
    Aggregate the recording.

    @raise OutputError: if results cannot be written.
    """
    work.clear(AGGREGATE)
    requests = work.requests
    minutes, delays = clientMinutes(requests).persist(), throttleMinutes(requests).persist()
    try:
        work.write("client_minute", minutes)
        work.write("top_clients", topClients(minutes))
        work.write("throttle_minute", delays)
        work.write("throttle_hist", throttleHistogram(delays))
    finally:
        minutes.unpersist()
        delays.unpersist()
    work.write("fairness_minute", fairnessMinutes(requests))
    work.write("starved_minute", starvedMinutes(requests))
    work.write("pool_minute", poolMinutes(requests, work.sensors))
    work.write("pool_time", poolTimes(requests, work.sensors, stepUs(work.runs)))


def aggregateStream(session: SparkSession, recording: str, out: str) -> None:
    """
    Add the events recorded since the last call to L{STREAMS}.

    @param recording: the directory of a recording that may be growing.
    """
    for name, summed in STREAMS.items():
        requests = session.readStream.format("admission").load(absolutePlace(recording))
        # Without a scheme it would be a path of fs.defaultFS, where Hadoop is configured.
        appendAvailable(summed(requests), f"file://{os.path.abspath(Path(out, name))}", name).awaitTermination()


def audit(work: Work) -> None:
    """
    Compare the recording with what should have happened.

    @raise OutputError: if results cannot be written.
    @raise RecordingError: if a recorded description is invalid.
    """
    work.clear(AUDIT)
    recording, requests = work.recording, work.requests
    tables = (
        (recording.requests(), REQUESTS),
        (recording.connections(), CONNECTIONS),
        (recording.limits(), LIMITS),
        (recording.sensors(), SENSORS),
    )
    broken = ordered(_united([brokenRows(frame, table) for frame, table in tables])).toArrow()
    work.write("broken_rows", broken)
    work.evaluation.tell({**work.unreadable, "brokenRows": sum(broken["n"].to_pylist())})
    # Without any filter the table exists and is empty.
    shapes = filterShapes(work.runs) or {FilterShape(): []}
    work.write(
        "bloom_audit", _united([bloomAudit(requests.where(ofRuns(runs)), each) for each, runs in shapes.items()])
    )
    spans, samples = quotaSpans(requests, work.limits).persist(), ledgerAudit(work.sensors).persist()
    try:
        work.write("quota_span", spans)
        work.write("quota_summary", quotaSummary(spans))
        work.write("ledger_sample", samples)
        work.write("ledger_summary", ledgerSummary(samples))
    finally:
        spans.unpersist()
        samples.unpersist()


def replay(work: Work, question: Question) -> Answer:
    """
    Replay candidates.

    @raise TraceError: if the recording cannot be replayed.
    @raise PolicyError: if a policy cannot be built.
    @raise OutputError: if results cannot be written.
    """
    for each in (*question.candidates, *question.pools):
        if each.label == BASELINE or each.label.startswith(RECORDED):
            raise PolicyError(f"{each.label!r} is called as if it had been in force; write another label before the =")
    if question.pools and work.recording.sample < 1:
        raise TraceError("a memory pool is shared by all clients, and a sample has some of them: leave one of both out")
    work.clear(REPLAY)
    facts: dict[str, object] = {
        "modes": list(question.modes),
        "approximate": [],
        "notes": [],
        "isTrusted": None,
        "trust": [],
        "untrusted": [],
        "disagreements": [],
        "narrower": None,
        "sharedRuns": [],
        "shared": [],
        "alone": [],
        "estimates": [],
        "largestLeftOut": None,
    }
    for name, candidates in (("candidates", question.candidates), ("pools", question.pools)):
        facts[name] = [{"label": each.label, "description": each.description} for each in candidates]
    work.evaluation.tell(facts)
    runs = _runsWithGaps(work)
    totals, fidelities = _replayQuotas(work, runs, question) if question.candidates else (None, [])
    pools = _replayPools(work, question) if question.pools else None
    return Answer(totals, fidelities, pools)


def _runsWithGaps(work: Work) -> list[Run]:
    """
    The runs with their history, and what is missing of them in L{admission.offline.evaluation}.
    """
    work.tell("limits and gaps")
    # Read again: an open segment may have grown since, and the replay ends at the horizon.
    found = findRuns(work.requests)
    runs = [_trimmed(run, work) for run in completeRuns(found, work.limits, numbered(work.recording))]
    gaps = [(run, gap) for run in runs for gap in run.gaps]
    work.evaluation.tell(
        {
            **work.unreadable,
            "recordedEvents": countEvents(work.recording),
            "droppedEvents": countDropped(work.recording),
            "seqGaps": len(gaps),
            "missingEvents": sum(gap.missing for _, gap in gaps),
            "gaps": [
                {
                    "brokerId": run.brokerId,
                    "bootId": run.bootId,
                    "seq": gap.seq,
                    "at": isoMoment(gap.atUs + run.wallOffsetUs),
                    "missing": gap.missing,
                }
                for run, gap in gaps[:MAX_GAPS]
            ],
        }
    )
    return runs


def _replayQuotas(work: Work, runs: Sequence[Run], question: Question) -> tuple[Totals, Sequence[Fidelity]]:
    tried = planTrials(question.candidates, runs)
    trials = {**planRecorded(runs), **tried}
    sampled = _sampled(work, tried) if work.recording.sample < 1 else None
    shared = findSharedRuns(runs)
    sharing = sorted({each.candidate.label for each in tried.values() if each.isShared})
    work.evaluation.tell(
        {
            "approximate": approximate(trials),
            "sharedRuns": [
                {
                    "runs": len(each.runs),
                    "counted": each.counted,
                    "isComplete": each.isComplete,
                    "clocksDifferBySeconds": largestDifferenceSeconds(each.runs),
                }
                for each in shared
            ],
            "shared": sharing,
            "alone": sorted(
                {each.candidate.label for each in tried.values() if each.replacesShared and not each.isShared}
            ),
        }
    )
    work.tell(f"replaying {len(trials)} policies in runs, {' and '.join(question.modes)} loop")
    scale, step = Scale(work.requestCount), stepUs(work.runs)
    replayed = outcomes(work.requests, trials, question.modes, scale, planBaseline(runs), step)
    # In memory it would be most of what there is.
    replayed = replayed.persist(StorageLevel.DISK_ONLY)
    try:
        fidelities = judgeReplays(work.requests, replayed, trials, question.modes)
        work.write("replay_fidelity", fidelityTable(fidelities))
        isTooMuch = Missing.of(work.evaluation.facts).isTooMuch
        mode = CLOSED if CLOSED in question.modes else question.modes[0]
        against = doubts(fidelities, trials.values(), mode)
        doubted = {label for label, found in against.items() if found or isTooMuch}
        doubted |= {each.candidate for each in fidelities if isTooMuch or not each.isTrusted}
        doubted.update(sharing if not all(each.isComplete for each in shared) else ())
        totals = totalsOf(replayed)
        totals = labelled(totals, trials, doubted.union(refusingLess(totals)))
        work.write("replay_summary", totals.summary)
        work.write("replay_client", totals.clients)
        work.write("replay_delay_hist", totals.histogram)
        work.write("replay_time", addTimes(timesIn(replayed)))
        work.write("replay_fairness", fairnessOf(timesIn(replayed)))
        if sampled is not None:
            _tellEstimates(work, totals, sampled)
        isTrusted = all(each.isTrusted for each in fidelities) and not isTooMuch
        refuted = {label: [each for each in found if each.isRefuted] for label, found in against.items()}
        work.evaluation.tell(
            {
                "isTrusted": isTrusted if fidelities or not isTrusted else None,
                "trust": [each.inWords() for each in fidelities],
                "untrusted": [each.label for each in question.candidates if isTooMuch or refuted.get(each.label)],
            }
        )
        if CLOSED in question.modes:
            found = [each for each in fidelities if each.mode == CLOSED and each.isRefuted]
            wanted = {each.candidate for found in refuted.values() for each in found}
            _explain(work, trials, replayed, found, () if isTooMuch else wanted)
    finally:
        replayed.unpersist()
    return totals, fidelities


def _sampled(work: Work, tried: Mapping[TrialKey, Trial]) -> Sampled:
    """
    @raise TraceError: if a candidate has limits that clients in the sample share with others.
    """
    work.tell("what the sample leaves out")
    whole = clean(evolve(work.recording, sample=Fraction(1)).requests(), REQUESTS)
    chosen, everybody = (requestersIn(frame) for frame in (work.requests, whole))
    for (label, *run), trial in tried.items():
        beyond = keysBeyond(trial, chosen.get(tuple(run), {}), everybody.get(tuple(run), {}))
        if beyond:
            raise TraceError(
                f"a sample of {work.evaluation.facts['sample']} of the clients does not tell what {label} would do: "
                f"{plural(len(beyond), 'limit')} of it would be shared with clients that are left out, such as the one "
                f"of {beyond[0]}; take all clients of a shorter time"
            )
    inSample, inAll = (sum((requestsOf(each) for each in byRun.values()), Counter()) for byRun in (chosen, everybody))
    return Sampled(float(work.recording.sample), inSample, inAll)


def _tellEstimates(work: Work, totals: Totals, sampled: Sampled) -> None:
    """
    What a sample says of all clients, of what there is a forecast for.
    """
    rows = totals.summary.select(["candidate", "mode", "is_forecast"]).to_pylist()
    told = [
        each["candidate"]
        for each in rows
        if each["mode"] == CLOSED and each["is_forecast"] and not each["candidate"].startswith(RECORDED)
    ]
    ofThem = pc.is_in(totals.clients["candidate"], pa.array(told, pa.string()))
    isTold = pc.and_(pc.equal(totals.clients["mode"], CLOSED), ofThem)
    estimates = list(sampled.estimateAll(totals.clients.filter(isTold)))
    work.evaluation.tell({"estimates": estimates, "largestLeftOut": sampled.largestLeftOut})


def _explain(
    work: Work,
    trials: Mapping[TrialKey, Trial],
    replayed: DataFrame,
    refuted: Sequence[Fidelity],
    wanted: Collection[str],
) -> None:
    """
    Say in L{admission.offline.evaluation} where replays of policies in force disagree with the recording, why, and
    which part of the recording to evaluate instead.

    @param refuted: closed loop.
    @param wanted: the labels of policies in force that such a part is wanted for, since candidates depend on them.
    """
    if not refuted:
        return
    work.tell("where the replay disagrees")
    keys = {(each.candidate, each.brokerId, each.bootId) for each in refuted}
    table = disagreements(work.requests, replayed, {key: trials[key] for key in keys})
    isSample = work.recording.sample < 1
    found = explain(refuted, table, trials, cutRuns(work.recording), pipeliningShares(work.requests), isSample)
    facts = [asdict(each) for each in found[:MAX_DISAGREEMENTS]]
    parts = partsWithout([each for each in found if each.policy in wanted], work.runs) if wanted else []
    others = {each.candidate for each in refuted} - set(wanted)
    narrower = next((part for part in parts if _isTrustedWithin(work, *part, wanted, others)), None)
    since, until = narrower or (None, None)
    asked = work.evaluation.facts
    given = {"since": since or asked["since"], "until": until or asked["until"]}
    work.evaluation.tell({"disagreements": facts, "narrower": given if narrower else None})


def _isTrustedWithin(
    work: Work, since: str | None, until: str | None, wanted: Collection[str], others: Collection[str]
) -> bool:
    """
    Whether replays of the policies in force agree with a part of the recording.

    @param since: the first moment; L{None} for that of C{work}.
    @param until: the first moment after the end, likewise.
    @param wanted: the labels of policies of which any must have throttled or refused a request in that part.
    @param others: the labels of policies that no candidate depends on.
    """
    work.tell(f"trying {f'--from {since}' if since else f'--to {until}'}")
    whole = work.recording.options.range
    range = Range(
        whole.since if since is None else parseMoment(since), whole.until if until is None else parseMoment(until)
    )
    recording = within(work.recording, range)
    part = evolve(work, recording=recording, requests=clean(recording.requests(), REQUESTS), runs=())
    runs = completeRuns(findRuns(part.requests), part.limits, numbered(recording))
    trials = {key: trial for key, trial in planRecorded(runs).items() if key[0] not in others}
    if not trials:
        return False
    replayed = outcomes(part.requests, trials, [CLOSED], Scale(sum(run.requests for run in runs)))
    replayed = replayed.persist(StorageLevel.DISK_ONLY)
    try:
        fidelities = judgeReplays(part.requests, replayed, trials, [CLOSED])
    finally:
        replayed.unpersist()
    isProven = any(each.throttled or each.refused for each in fidelities if each.candidate in wanted)
    return isProven and not any(each.isRefuted for each in fidelities)


def stepUs(runs: Sequence[Run]) -> int:
    """
    How long the times of C{replay_time}, C{replay_fairness}, C{replay_pool_time} and C{pool_time} are, in microseconds:
    five seconds for recordings of up to twenty minutes, else a minute.
    """
    spanUs = max(run.endUs for run in runs) - min(run.beginUs for run in runs)
    return SHORT_STEP_US if spanUs <= MAX_SHORT_US else MINUTE_US


def _replayPools(work: Work, question: Question) -> PoolTotals:
    trials, notes = planPools(question.pools, {(run.brokerId, run.bootId): run.pool for run in work.runs})
    largest = max(run.requests for run in work.runs)
    tasks = sum(len(trial.runs) for trial in trials)
    notes.append(
        f"pools took {tasks} tasks, one for each pool and run of a server, which nothing makes smaller; "
        f"the largest had {largest:,} requests"
    )
    work.tell(f"replaying pools: {tasks} tasks")
    pools = replayPoolTrials(work.requests, trials, stepUs(work.runs))
    work.write("replay_pool", pools.totals)
    work.write("replay_pool_time", pools.steps)
    work.write("replay_pool_client", pools.clients)
    work.evaluation.tell({"notes": notes})
    return pools


def _facts(run: Run) -> dict[str, Any]:
    """
    The entry of a run in L{admission.offline.evaluation}.
    """
    return {
        "brokerId": run.brokerId,
        "bootId": run.bootId,
        "requests": run.requests,
        "begin": isoMoment(run.beginUs),
        "end": isoMoment(run.endUs),
        "policies": list(run.policies.values()),
        "pool": run.pool,
        "gateSeed": run.gateSeed,
        "limitShare": run.limitShare,
    }


def _trimmed(run: Run, work: Work) -> Run:
    """
    The run without gaps outside the selected time; the edges of the rows read look like gaps.
    """
    range = work.recording.options.range
    gaps = [gap for gap in run.gaps if range.overlaps(*[gap.atUs + run.wallOffsetUs] * 2)]
    return evolve(run, gaps=gaps)


def _united(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)

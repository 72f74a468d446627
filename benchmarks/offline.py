"""
The offline jobs: rows read, summed up and replayed by Spark on two cores, whether a row costs more where there are more
of them, what memory workers take, and the same replays in one process without Spark; and the whole of C{admission
evaluate}, with the memory of all its processes.

    python -m benchmarks.offline [--json] [--quick] [--rows 1M,10M] [--recordings DIRECTORY]

The first number of rows is made up by C{admission.offline.syntheticserver}; the others are copies of that recording,
each a run of a server of its own.  Recordings stay in C{DIRECTORY}, where the next benchmark finds them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import define, frozen
from pyspark.sql import DataFrame, SparkSession

from admission.interfaces import IMemoryPoolFactory
from admission.offline.aggregate import clientMinutes
from admission.offline.clean import clean
from admission.offline.recording import Recording
from admission.offline.simulate.candidates import resolveCandidate, resolveCandidates
from admission.offline.simulate.decisions import CLOSED, OPEN
from admission.offline.simulate.runs import Run
from admission.offline.simulate.sparkreplay import PoolTrial, Scale, replayPoolTrials
from admission.offline.simulate.tally import outcomes, totalsOf
from admission.offline.simulate.trials import Trial, TrialKey, planTrials
from admission.offline.sparksession import openSession
from admission.offline.survey import completeRuns, findRuns, limitsFromTheStart, numbered
from admission.recording.schema import LIMITS
from admission.recording.tables import REQUESTS
from admission.units import parseRate

from .loops import Processes
from .measure import MIB, Report, inTurns, median, progress
from .processtree import Cost, costOf, costOfCommand
from .recording import NOT_RECORDED, NOTHING, SPARK, measureEvent, measureGaps
from .recordings import SyntheticRecording, copied, synthesize
from .replaycore import DECIDE, Steps, replayInSteps, replayPoolInSteps

CORES = 2
CANDIDATES = [f"client-bytes:produce={size}KiB:fetch={2 * size}KiB" for size in (64, 96, 48, 32)]
"""What is replayed: the first alone, and all of them in one pass."""

POOL = "bounded:24MiB"
IN_A_PROCESS = "in a process"

SETTINGS: Mapping[str, str] = {
    # All else is what a user gets, memory and partitions included.
    "spark.master": f"local[{CORES}]",
    "spark.ui.showConsoleProgress": "false",
}
QUICK_SETTINGS: Mapping[str, str] = {
    **SETTINGS,
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
}

PARQUET = "read, Parquet"
SOURCE = "read, data source"
MINUTES = "clients by minute"
RUNS = "runs, gaps"
REPLAY_OPEN = "replay, open loop"
REPLAY_CLOSED = "replay, closed loop"
SEVERAL_OPEN = f"replay, open loop, {len(CANDIDATES)} candidates"
SEVERAL_CLOSED = f"replay, closed loop, {len(CANDIDATES)} candidates"
REPLAY_POOL = "replay, pool"

_MEASURES = {
    "request_bytes": "sum",
    "response_bytes": "sum",
    "service_us": "max",
    "throttle_ms": "max",
    "conn_id": "max",
}


@frozen
class Spent:
    """
    What a job took on a recording.

    @ivar rows: how many requests were recorded.
    @ivar cost: what it took.
    """

    rows: int
    cost: Cost

    @property
    def cpuMicroseconds(self) -> float:
        """
        For each row.
        """
        return self.cost.cpuSeconds / self.rows * 1e6


@define(eq=False)
class Jobs:
    """
    The jobs on one recording.

    @ivar requests: the clean requests.
    @ivar trials: of L{CANDIDATES} in every run.
    """

    session: SparkSession
    directory: str
    rows: int
    recording: Recording
    requests: DataFrame
    trials: Mapping[TrialKey, Trial]

    @classmethod
    def on(cls, session: SparkSession, made: SyntheticRecording) -> Jobs:
        """
        Open a recording.
        """
        recording = Recording.open(session, str(made.directory))
        requests = clean(recording.requests(), REQUESTS)
        jobs = cls(session, str(made.directory), made.rowCount(), recording, requests, {})
        jobs.trials = planTrials(resolveCandidates(CANDIDATES), jobs.runsWithHistory())
        return jobs

    def measure(self, name: str) -> Spent:
        """
        Do a job.

        @param name: one of L{JOBS}.
        """
        _, cost = costOf(partial(JOBS[name], self))
        return Spent(self.rows, cost)

    def readParquet(self) -> None:
        """
        Five columns, by Spark's own reader.
        """
        self.recording.requests().agg(_MEASURES).collect()

    def readSource(self) -> None:
        """
        The same five by the data source, which hands all of them to Spark.
        """
        self.session.read.format("admission").load(self.directory).agg(_MEASURES).collect()

    def sumUp(self) -> None:
        """
        What each client did in each minute.
        """
        clientMinutes(self.requests).write.format("noop").mode("overwrite").save()

    def runsWithHistory(self) -> Sequence[Run]:
        """
        What a replay has to know beforehand; all rows are sorted by number to see whether any are missing.
        """
        limits = clean(limitsFromTheStart(self.recording), LIMITS)
        return completeRuns(findRuns(self.requests), limits, numbered(self.recording))

    def trialsOf(self, candidates: int) -> Mapping[TrialKey, Trial]:
        """
        The trials of some of L{CANDIDATES}.
        """
        return {key: trial for key, trial in self.trials.items() if key[0] in CANDIDATES[:candidates]}

    def replay(self, mode: str, candidates: int) -> None:
        """
        Candidates in one pass, up to their totals.
        """
        totalsOf(outcomes(self.requests, self.trialsOf(candidates), (mode,), Scale(self.rows)))

    def replayPool(self) -> None:
        """
        One pool, likewise.
        """
        runs = [(run.brokerId, run.bootId) for run in findRuns(self.requests)]
        replayPoolTrials(self.requests, [PoolTrial(resolveCandidate(POOL, IMemoryPoolFactory), runs)])


JOBS: Mapping[str, Callable[[Jobs], object]] = {
    PARQUET: Jobs.readParquet,
    SOURCE: Jobs.readSource,
    MINUTES: Jobs.sumUp,
    RUNS: Jobs.runsWithHistory,
    REPLAY_OPEN: lambda jobs: jobs.replay(OPEN, 1),
    REPLAY_CLOSED: lambda jobs: jobs.replay(CLOSED, 1),
    SEVERAL_OPEN: lambda jobs: jobs.replay(OPEN, len(CANDIDATES)),
    SEVERAL_CLOSED: lambda jobs: jobs.replay(CLOSED, len(CANDIDATES)),
    REPLAY_POOL: Jobs.replayPool,
}
"""What is measured, by name."""

DECISIONS = {REPLAY_OPEN: 1, REPLAY_CLOSED: 1, SEVERAL_OPEN: len(CANDIDATES), SEVERAL_CLOSED: len(CANDIDATES)}
"""How many decisions a job makes about each row."""


def measureRecording(report: Report, processes: Processes) -> None:
    """
    What recording costs a server; L{benchmarks.recording} has more of it.
    """
    count, rounds = (5_000, 2) if report.quick else (200_000, 3)
    costs = inTurns([NOTHING, SPARK], rounds, lambda name: processes.run(measureEvent, name, count), "events")
    nothing, spark = median(costs[NOTHING]), median(costs[SPARK])
    seconds = (0.2, 0.05, 1.0) if report.quick else (10.0, 5.0, 3.0)
    without, beside = (
        processes.run(measureGaps, name, *seconds).quantileMilliseconds(0.999) for name in (NOT_RECORDED, IN_A_PROCESS)
    )
    report.add(
        "recorded",
        eventsPerSecond=1 / spark,
        cpuMicroseconds=spark * 1e6,
        ratioToNoExport=spark / nothing,
        p999Milliseconds=beside,
        p999NotRecordedMilliseconds=without,
    )


def measureJobs(report: Report, session: SparkSession, recordings: Sequence[SyntheticRecording]) -> dict[str, Spent]:
    """
    All jobs once on all recordings, and on the first one once before that to warm Spark up.

    @return: for each job what it took on the first recording.
    """
    firsts: dict[str, Spent] = {}
    for number, recording in enumerate(recordings):
        jobs = Jobs.on(session, recording)
        if not (number or report.quick):
            inTurns(JOBS, 1, jobs.measure, "warming up")
        for name, [spent] in inTurns(JOBS, 1, jobs.measure, f"{jobs.rows:,} rows").items():
            first = firsts.setdefault(name, spent)
            report.add(
                "jobs",
                job=name,
                rows=spent.rows,
                wallSeconds=spent.cost.wallSeconds,
                rowsPerSecond=spent.rows / spent.cost.wallSeconds,
                cpuMicroseconds=spent.cpuMicroseconds,
                pythonMicroseconds=spent.cost.pythonSeconds / spent.rows * 1e6,
                perCpuSecond=spent.rows / spent.cost.cpuSeconds,
                ratioToFirst=spent.cpuMicroseconds / first.cpuMicroseconds,
                decisionsPerSecond=spent.rows * DECISIONS[name] / spent.cost.wallSeconds if name in DECISIONS else None,
                workerMebibytes=spent.cost.workerBytes // MIB,
            )
    return firsts


def measureOneProcess(
    report: Report,
    processes: Processes,
    recording: SyntheticRecording,
    trials: Mapping[TrialKey, Trial],
    spent: Mapping[str, Spent],
) -> None:
    """
    The same replays without Spark, and how many times as fast Spark is.

    @param spent: what Spark took for that recording.
    """
    rows = recording.rowCount()
    found: dict[str, Steps] = {}
    for name, mode in ((REPLAY_OPEN, OPEN), (REPLAY_CLOSED, CLOSED)):
        progress(f"{name}, one process")
        found[name] = processes.run(replayInSteps, recording, trials, mode)
    found[REPLAY_POOL] = processes.run(replayPoolInSteps, recording, resolveCandidate(POOL, IMemoryPoolFactory))
    for name, steps in found.items():
        for step, cpuSeconds in steps.cpuSeconds.items():
            report.add(
                "oneProcess",
                replay=name,
                step=step,
                cpuMicroseconds=cpuSeconds / rows * 1e6,
                perSecond=rows / cpuSeconds,
            )
    for name, steps in found.items():
        ours, theirs = rows / sum(steps.cpuSeconds.values()), rows / spent[name].cost.wallSeconds
        report.add(
            "comparison",
            replay=name,
            oneProcessPerSecond=ours,
            sparkPerSecond=theirs,
            ratio=theirs / ours,
            decidePerSecond=steps.decisions / steps.cpuSeconds[DECIDE],
        )


def measureEvaluations(report: Report, recordings: Sequence[SyntheticRecording], root: Path) -> None:
    """
    The whole command C{admission evaluate}, with two candidates and a pool: aggregates, audits, replays and the page.

    @param root: where results go.
    """
    firstSeconds = firstRows = 0.0
    for recording in recordings:
        rows = recording.rowCount()
        progress(f"admission evaluate, {rows:,} rows")
        tried = [f"--candidate={each}" for each in CANDIDATES[1:3]]
        out = str(root / f"results-{rows}")
        command = ["evaluate", str(recording.directory), "--out", out, *tried, f"--pool={POOL}"]
        cost = costOfCommand([sys.executable, "-m", "admission", *command, f"--master=local[{CORES}]"])
        report.add(
            "evaluations",
            rows=rows,
            wallSeconds=cost.wallSeconds,
            cpuMicroseconds=cost.cpuSeconds / rows * 1e6,
            slopeSecondsOfMillion=1e6 * (cost.wallSeconds - firstSeconds) / (rows - firstRows),
            commandMebibytes=cost.commandBytes // MIB,
            javaMebibytes=cost.javaBytes // MIB,
            workerMebibytes=cost.workerBytes // MIB,
            allMebibytes=cost.allBytes // MIB,
        )
        firstSeconds, firstRows = cost.wallSeconds, rows


def measureAll(report: Report, rows: Sequence[int], root: Path) -> None:
    """
    Everything.

    @param rows: how many there are to be in each recording, the least first.
    @param root: where recordings are kept.
    """
    recordings = [synthesize(root, rows[0])]
    recordings += [copied(recordings[0], round(each / rows[0])) for each in rows[1:]]
    for each in recordings:
        report.add(
            "recordings",
            rows=each.rowCount(),
            copies=each.copies,
            madeSeconds=each.cpuSeconds or None,
            bytesOfRow=each.sizeBytes() / each.rowCount(),
        )
    with Processes(fresh=not report.quick) as processes, TemporaryDirectory(prefix="admission-offline-") as scratch:
        measureRecording(report, processes)
        settings = QUICK_SETTINGS if report.quick else SETTINGS
        session = openSession("benchmark", {**settings, "spark.local.dir": scratch})
        try:
            spent = measureJobs(report, session, recordings)
            trials = Jobs.on(session, recordings[0]).trialsOf(1)
        finally:
            session.stop()
        measureOneProcess(report, processes, recordings[0], trials, spent)
        measureEvaluations(report, recordings, Path(scratch))


def main() -> None:
    """
    The command line.
    """
    parser = argparse.ArgumentParser(description="Rows that the offline jobs read, sum up and replay in a second.")
    parser.add_argument("--rows", default=None, help="how many rows, as in 1M,10M, which are the default: least first")
    parser.add_argument("--recordings", help="where to keep the recordings; unless given, they are removed again")
    parser.add_argument("--json", action="store_true", help="print JSON and no tables")
    parser.add_argument("--quick", action="store_true", help="take few seconds and measure little")
    options = parser.parse_args()
    try:
        rows = [
            round(parseRate(each)) for each in (options.rows or ("2k,4k" if options.quick else "1M,10M")).split(",")
        ]
    except ValueError as error:
        parser.error(f"--rows: {error}")
    if rows[0] < 1 or rows != sorted(set(rows)):
        parser.error("--rows: write numbers of rows, the least first, as in 1M,10M")
    report = Report(f"The offline jobs on {CORES} cores", options.quick)
    with ExitStack() as stack:
        root = options.recordings or stack.enter_context(TemporaryDirectory(prefix="admission-recordings-"))
        try:
            measureAll(report, rows, Path(root))
        finally:
            # What was measured before something failed has taken long enough.
            progress("")
            print(report.asJson() if options.json else report.asText())


if __name__ == "__main__":
    main()

# -*- test-case-name: tests.offline.test_jobs -*-
"""
The commands that read recordings: C{admission evaluate}, and its parts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO, TypeVar

from ..offline.evaluation import Selection
from ..offline.failures import JobFailed, ReportError
from ..offline.report.writing import writeReport
from ..offline.running import Progress, runJob, runStream
from .offline import AggregateOptions, AuditOptions, EvaluateOptions, RecordingOptions, ReplayOptions, ReportOptions
from .talk import CommandFailed, table

if TYPE_CHECKING:
    from ..offline.jobs import Answer, Work

_Result = TypeVar("_Result")


def runAggregate(options: AggregateOptions, stdin: TextIO, stdout: TextIO) -> None:
    """
    Sum up a recording.

    @raise CommandFailed: if that cannot be done, in a sentence.
    """

    def job(work: Work) -> None:
        from ..offline.jobs import aggregate

        aggregate(work)

    if options["stream"]:
        try:
            runStream(_selection(options), options["out"], _progress(options))
        except JobFailed as error:
            raise CommandFailed(str(error)) from error
    else:
        _run(options, job)
    stdout.write(f"results are in {options['out']}\n")


def runAudit(options: AuditOptions, stdin: TextIO, stdout: TextIO) -> None:
    """
    Audit a recording.

    @raise CommandFailed: if that cannot be done, in a sentence.
    """

    def job(work: Work) -> None:
        from ..offline.jobs import audit

        audit(work)

    _run(options, job)
    stdout.write(f"results are in {options['out']}\n")


def runReplay(options: ReplayOptions, stdin: TextIO, stdout: TextIO) -> None:
    """
    Replay a recording.

    @raise CommandFailed: if that cannot be done, in a sentence.
    """

    def job(work: Work) -> Answer:
        from ..offline.jobs import Question, replay

        return replay(work, Question(options["candidate"], options["pool"], options["mode"]))

    stdout.write(inWords(_run(options, job)))
    stdout.write(f"\nresults are in {options['out']}\n")


def runEvaluate(options: EvaluateOptions, stdin: TextIO, stdout: TextIO) -> None:
    """
    Do all of it.

    @raise CommandFailed: if that cannot be done, in a sentence.
    """

    def job(work: Work) -> Answer:
        from ..offline.jobs import Question, aggregate, audit, replay

        aggregate(work)
        audit(work)
        return replay(work, Question(options["candidate"], options["pool"], options["mode"]))

    stdout.write(inWords(_run(options, job)) + "\n")
    _report(options["out"], stdout)


def runReport(options: ReportOptions, stdin: TextIO, stdout: TextIO) -> None:
    """
    Write the page about results.

    @raise CommandFailed: if that cannot be done, in a sentence.
    """
    _report(options["out"], stdout)


def inWords(answer: Answer) -> str:
    """
    What a replay has come to, for a terminal.
    """
    parts = []
    if answer.totals is not None:
        quotas: list[tuple[str, ...]] = [
            ("Candidate", "Loop", "Requests", "Throttled", "Refused", "Throttled for", "Forecast")
        ]
        for row in answer.totals.summary.to_pylist():
            counts = [f"{row[name]:,}" for name in ("requests", "throttled", "refused")]
            forecast = ("approximate" if row["is_approximate"] else "yes") if row["is_forecast"] else "no"
            quotas.append((row["candidate"], row["mode"], *counts, f"{row['throttle_s']:,.1f} s", forecast))
        parts.append(table(quotas))
        parts.append("".join(f"{each.inWords()}\n" for each in answer.fidelities))
    if answer.pools is not None:
        pools: list[tuple[str, ...]] = [("Pool", "Boot", "Requests", "Waited", "Waits up to", "Without memory")]
        for row in answer.pools.totals.to_pylist():
            counts = [f"{row[name]:,}" for name in ("requests", "waits")]
            longest = f"{(row['wait_max_us'] or 0) / 1e6:,.3f} s"
            pools.append((row["candidate"], row["boot_id"], *counts, longest, f"{row['depleted_share']:.1%}"))
        parts.append(table(pools))
    return "\n".join(filter(None, parts))


def _run(options: RecordingOptions, job: Callable[[Work], _Result]) -> _Result:
    try:
        return runJob(job, _selection(options), options["out"], _progress(options))
    except JobFailed as error:
        raise CommandFailed(str(error)) from error


def _report(out: str, stdout: TextIO) -> None:
    try:
        stdout.write(f"{writeReport(out)}\n")
    except ReportError as error:
        raise CommandFailed(str(error)) from error


def _selection(options: RecordingOptions) -> Selection:
    return Selection(options["directory"], options["from"], options["to"], options["sample"])


def _progress(options: RecordingOptions) -> Progress:
    isShown = bool(options["progress"]) or sys.stderr.isatty()

    def tell(line: str) -> None:
        if isShown:
            sys.stderr.write(f"{line}\n")

    return Progress(tell, isShown)

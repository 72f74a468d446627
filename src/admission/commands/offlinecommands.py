# -*- test-case-name: tests.spark.test_jobs -*-
"""
The commands that read recordings: C{admission evaluate}, and its parts
C{aggregate}, C{audit}, C{replay} and C{report}.

Functions that need Spark or pyarrow import them themselves, so that the help
can be read without them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, TypeVar

from twisted.internet.task import Clock
from twisted.python.usage import UsageError

from ..completions import DIRECTORIES, completing
from ..interfaces import IMemoryPoolFactory, IPolicyFactory, IQuotaPolicyFactory
from ..offline.evaluation import Selection
from ..offline.failures import JobFailed
from ..offline.outputplaces import resultsIn
from ..offline.outputtables import AGGREGATE, AUDIT, REPLAY
from ..offline.progress import Plan, StepBar
from ..offline.report.writing import writeReport
from ..offline.running import Progress, runJob, runStream
from ..offline.simulate.candidates import Candidate, resolveCandidate
from ..plugins import PolicyError, PolicyKind, PolicyOptionsMixin
from ..recording.places import isRemote, namedPlace
from .console import CommandFailed, CommandOptions, DirectoryOptions

if TYPE_CHECKING:
    from ..offline.jobs import Answer, Work
    from ..offline.report.verdict import Verdict

_Result = TypeVar("_Result")

_MODES = ("closed", "open")

_WHERE = (
    "DIRECTORY is what a broker was given as --export spark:DIRECTORY, or the URL of a copy, such as\n"
    "s3a://BUCKET/DIRECTORY.  Spark runs on this machine unless --master, --remote, SPARK_REMOTE,\n"
    "spark-submit or spark-defaults.conf say where."
)


_WHERE_FORMS = {"master": re.compile(r"(spark|k8s)://.+|yarn|local(\[.+\])?"), "remote": re.compile(r"sc://.+")}
_WHERE_EXAMPLES = {"master": "spark://HOST:7077, yarn, k8s://... or local[2]", "remote": "sc://HOST:15002"}
_SAYING_WHERE = {"SPARK_REMOTE": "unset it", "PYSPARK_GATEWAY_PORT": "give --master to spark-submit"}


def _namedResults(text: str) -> str:
    """
    @raise UsageError: for a URL of an unknown kind.
    """
    try:
        return namedPlace(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


class RecordingOptions(DirectoryOptions):
    """
    The directory of the recording, and the directory for results.

    After parsing, C{directory} is a key as well.
    """

    synopsis = "DIRECTORY --out OUT [options]"
    missing = "name one directory with a recording, the DIRECTORY of --export spark:DIRECTORY"
    note = _WHERE
    optFlags = [
        ["progress", None, "Write a line to standard error as each step begins; a terminal shows a bar in any case."],
    ]
    optParameters = [
        ["out", "o", None, "Where results go: a directory, made if need be, or a URL."],
        ["from", None, None, "The first moment: 2026-03-01, 2026-03-01T12:30 (UTC), or seconds since 1970."],
        ["to", None, None, "The first moment after the last."],
        ["until", None, None, "The same as --to."],
        ["master", None, None, "Where Spark runs: spark://HOST:7077, yarn, k8s://..., or local[2] for two cores of "
         "this machine.  Workers need Spark and Python; they are sent what else they lack."],
        ["remote", None, None, "The same by Spark Connect: sc://HOST:15002."],
        ["sample", None, None, "Take this share of the clients, as in 10%: always the same, and all they did."],
    ]  # fmt: skip
    compData = completing(options={"out": DIRECTORIES})

    def postOptions(self) -> None:
        """
        @raise UsageError: unless C{--out} is given, and names a directory.
        """
        if self["until"] is not None:
            if self["to"] is not None:
                raise UsageError("--to and --until are the same; give one")
            self["to"] = self["until"]
        if not self["out"]:
            raise UsageError("say where results go: --out OUT")
        self["out"] = _namedResults(self["out"])
        self._checkWhere()

    def _checkWhere(self) -> None:
        given = [name for name in ("master", "remote") if self[name] is not None]
        if len(given) > 1:
            raise UsageError("--master and --remote both say where Spark runs; give one")
        for name in given:
            if not _WHERE_FORMS[name].fullmatch(self[name]):
                raise UsageError(f"--{name} {self[name]}: write {_WHERE_EXAMPLES[name]}")
            for variable, remedy in _SAYING_WHERE.items():
                if variable in os.environ:
                    raise UsageError(f"{variable} says where Spark runs, too: {remedy}, or leave --{name} out")


class AggregateOptions(RecordingOptions):
    longdesc = (
        "Sums up a recording: what each client did in each minute, how long it was throttled, which clients did most, "
        "how fairly they were served and how full the memory was.  Results are Parquet and CSV files in OUT."
    )
    examples = (
        "aggregate /var/lib/admission/recording --out results",
        "aggregate /var/lib/admission/recording --out day --from 2026-03-01 --to 2026-03-02",
        "aggregate /var/lib/admission/recording --out live --stream",
    )
    optFlags = [
        ["stream", None, "Add what was recorded since the last time, minutes that are an hour old, and keep in OUT "
         "how far that is.  Repeat it as often as you like."],
    ]  # fmt: skip

    def postOptions(self) -> None:
        """
        @raise UsageError: also if C{--stream} is given with an option that selects a part, or results elsewhere.
        """
        super().postOptions()
        if self["stream"] and isRemote(self["out"]):
            raise UsageError(
                f"--stream adds to files of this machine, and {self['out']} is elsewhere; name a directory"
            )
        for name in ("from", "to", "sample"):
            if self["stream"] and self[name] is not None:
                raise UsageError(f"--stream takes all that there is; leave --{name} out")


class AuditOptions(RecordingOptions):
    longdesc = (
        "Checks a recording: quotas against what clients took, the filter of producer ids against the ids that there "
        "were, the ledger against the memory of the process.  It also looks for impossible rows and for files that "
        "cannot be read."
    )
    examples = (
        "audit /var/lib/admission/recording --out results",
        "audit /var/lib/admission/recording --out day --from 2026-03-01 --to 2026-03-02",
    )


class _Tried(PolicyOptionsMixin):
    """
    Policies that can be tried.
    """

    policyKinds = (
        PolicyKind("candidate", IQuotaPolicyFactory, repeatable=True),
        PolicyKind("pool", IMemoryPoolFactory, repeatable=True),
    )


class ReplayOptions(_Tried, RecordingOptions):
    """
    After parsing, C{candidate} and C{pool} are lists of
    L{admission.offline.simulate.candidates.Candidate}, and C{mode} is one of
    modes.
    """

    longdesc = (
        "Replays a recording under other policies, and tells whom they would have throttled and for how long.  "
        "Clients are assumed to send their next request as long after an answer as they did (closed loop).  The "
        "policies that were in force are replayed as well: an answer can be trusted only if the replay of what the "
        "candidate replaces agrees with the recording.  A client that is throttled less might have sent more, which no "
        "recording tells; there is no forecast for it."
    )
    examples = (
        'replay /var/lib/admission/recording --out results --candidate "client-bytes:produce=4M"',
        "replay recording --out results --candidate low=client-bytes:produce=1M --candidate client-bytes:produce=8M",
        'replay recording --out results --pool "bounded:32MiB" --pool "bounded:128MiB"',
    )
    optParameters = [
        ["mode", None, "closed", "How clients behave: closed, open (they send what they sent when they sent it, "
         "whatever happens), or closed,open for both."],
    ]  # fmt: skip

    def opt_candidate(self, description: str) -> None:
        """
        A quota policy to try, as [LABEL=]NAME[:ARGUMENTS]; see --help-candidate.  Repeatable.
        """
        self._try("candidate", description, IQuotaPolicyFactory)

    def opt_pool(self, description: str) -> None:
        """
        A memory pool to try, as [LABEL=]NAME[:ARGUMENTS]; see --help-pool.  Repeatable.
        """
        self._try("pool", description, IMemoryPoolFactory)

    def postOptions(self) -> None:
        """
        @raise UsageError: also if there is nothing to try.
        """
        super().postOptions()
        modes = [mode.strip() for mode in self["mode"].split(",")]
        if not set(modes) <= set(_MODES) or len(set(modes)) < len(modes):
            raise UsageError(f"--mode {self['mode']}: write closed, open, or closed,open")
        self["mode"] = modes
        if not self["candidate"] and not self["pool"]:
            raise UsageError("say what to try: --candidate client-bytes:produce=4M or --pool bounded:32MiB")
        if self["pool"] and self["sample"] is not None:
            raise UsageError("--pool is shared by all clients, and --sample leaves some of them out; give one of both")

    def _try(self, option: str, description: str, interface: type[IPolicyFactory]) -> None:
        try:
            candidate = resolveCandidate(description, interface)
            # Validate the arguments by building one.
            candidate.build(Clock())
        except PolicyError as error:
            raise UsageError(f"--{option}: {error}") from error
        others: list[Candidate] = self[option]
        if any(candidate.label == other.label for other in others):
            raise UsageError(f"--{option}: two are called {candidate.label!r}; write LABEL= before one of them")
        others.append(candidate)


class EvaluateOptions(ReplayOptions):
    longdesc = (
        "Sums up a recording (aggregate), audits it (audit), replays it under other policies (replay) and writes a "
        "page about all of it (report): OUT/report.html, with the numbers as Parquet and CSV beside it.  "
        + ReplayOptions.longdesc
    )
    examples = (
        'evaluate /var/lib/admission/recording --out results --candidate "client-bytes:produce=4M"',
        "evaluate recording --out results --candidate tight=client-bytes:produce=1M --pool bounded:32MiB",
        "evaluate recording --out quick --candidate client-bytes:produce=1M --sample 10% --from 2026-03-01T12:00",
    )


class ReportOptions(CommandOptions):
    """
    After parsing, C{out} is a key.
    """

    synopsis = "OUT"
    longdesc = (
        "Writes OUT/report.html, a page about the results that the other commands have left in OUT.  It needs no Spark."
    )
    examples = ("report results", "report /var/lib/admission/results")
    compData = completing(DIRECTORIES)

    def parseArgs(self, *directories: str) -> None:
        """
        @raise UsageError: unless there is one directory.
        """
        if len(directories) != 1 or not directories[0]:
            raise UsageError("name one directory with results, the OUT of admission evaluate --out OUT")
        self["out"] = _namedResults(directories[0])


def runAggregate(options: AggregateOptions, stdin: TextIO, stdout: TextIO) -> None:
    def job(work: Work) -> None:
        from ..offline.jobs import aggregate

        aggregate(work)

    if options["stream"]:
        with _failing(), _progress(options, AGGREGATE) as progress:
            runStream(_selection(options), options["out"], progress, _settings(options))
    else:
        with _resultsIn(options["out"]) as directory:
            _run(options, job, directory, AGGREGATE)
    stdout.write(f"results are in {options['out']}\n")


def runAudit(options: AuditOptions, stdin: TextIO, stdout: TextIO) -> None:
    def job(work: Work) -> None:
        from ..offline.jobs import audit

        audit(work)

    with _resultsIn(options["out"]) as directory:
        _run(options, job, directory, AUDIT)
    stdout.write(f"results are in {options['out']}\n")


def runReplay(options: ReplayOptions, stdin: TextIO, stdout: TextIO) -> None:
    def job(work: Work) -> Answer:
        from ..offline.jobs import Question, replay

        return replay(work, Question(options["candidate"], options["pool"], options["mode"]))

    with _resultsIn(options["out"]) as directory:
        _run(options, job, directory, REPLAY)
        verdict = _tellVerdict(directory, options["out"], stdout)
    stdout.write(f"results are in {options['out']}\n")
    _failUnlessTrusted(verdict)


def runEvaluate(options: EvaluateOptions, stdin: TextIO, stdout: TextIO) -> None:
    def job(work: Work) -> Answer:
        from ..offline.jobs import Question, aggregate, audit, replay

        aggregate(work)
        audit(work)
        return replay(work, Question(options["candidate"], options["pool"], options["mode"]))

    with _resultsIn(options["out"]) as directory:
        _run(options, job, directory, AGGREGATE, AUDIT, REPLAY)
        verdict = _report(directory, options["out"], stdout)
    _failUnlessTrusted(verdict)


def runReport(options: ReportOptions, stdin: TextIO, stdout: TextIO) -> None:
    with _resultsIn(options["out"]) as directory:
        verdict = _report(directory, options["out"], stdout)
    _failUnlessTrusted(verdict)


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except JobFailed as error:
        raise CommandFailed(str(error)) from error


@contextmanager
def _resultsIn(out: str) -> Iterator[str]:
    with _failing(), resultsIn(out) as directory:
        yield directory


def _run(options: RecordingOptions, job: Callable[[Work], _Result], directory: str, *jobs: str) -> _Result:
    with _progress(options, *jobs) as progress:
        return runJob(job, _selection(options), directory, progress, _settings(options))


def _report(directory: str, out: str, stdout: TextIO) -> Verdict:
    page = writeReport(directory, _otherName(out))
    verdict = _tellVerdict(directory, out, stdout)
    stdout.write(f"{out}/{page.name}\n" if isRemote(out) else f"{page}\n")
    return verdict


def _tellVerdict(directory: str, out: str, stdout: TextIO) -> Verdict:
    from ..offline.report.lines import Times
    from ..offline.report.resultfiles import Results
    from ..offline.report.terminal import summaryOf
    from ..offline.report.verdict import reach

    results = Results.open(directory, _otherName(out))
    verdict = reach(results, Times.of(results))
    stdout.write(f"{summaryOf(results, verdict)}\n")
    return verdict


def _otherName(out: str) -> str:
    """
    What results are called whose directory is only a copy.
    """
    return out if isRemote(out) else ""


def _failUnlessTrusted(verdict: Verdict) -> None:
    if verdict.gate.refutal:
        raise CommandFailed(verdict.gate.refutal)


def _selection(options: RecordingOptions) -> Selection:
    return Selection(options["directory"], options["from"], options["to"], options["sample"])


def _settings(options: RecordingOptions) -> dict[str, str]:
    """
    What says to Spark where to run.
    """
    return {f"spark.{name}": options[name] for name in ("master", "remote") if options[name] is not None}


@contextmanager
def _progress(options: RecordingOptions, *jobs: str) -> Iterator[Progress]:
    """
    @param jobs: of L{admission.offline.outputtables}.
    """
    if sys.stderr.isatty():
        tried = (len(options["candidate"]), len(options["pool"]), len(options["mode"])) if REPLAY in jobs else ()
        bar = StepBar(Plan.of(jobs, *tried), sys.stderr)
        try:
            yield Progress(bar.begin, bar)
        finally:
            bar.close()
        return

    def tell(line: str) -> None:
        if options["progress"]:
            sys.stderr.write(f"{line}\n")

    yield Progress(tell)

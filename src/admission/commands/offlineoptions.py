# -*- test-case-name: tests.offline.test_jobs -*-
"""
What the commands are told that read recordings: C{admission evaluate}, and its
parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.task import Clock
from twisted.python.usage import Options, UsageError

from ..interfaces import IMemoryPoolFactory, IPolicyFactory, IQuotaPolicyFactory
from ..offline.replay.candidates import Candidate, resolveCandidate
from ..plugins import PolicyError, PolicyKind, PolicyOptionsMixin
from .directory import DirectoryOptions

_MODES = ("closed", "open")

_WHERE = """
DIRECTORY is what a broker was given as --export spark:DIRECTORY.  Spark runs on this machine
unless SPARK_REMOTE, spark-submit or spark-defaults.conf say where.
"""


class RecordingOptions(DirectoryOptions):
    """
    What is to be read, and where results go.

    After parsing, C{directory} is a key as well.
    """

    synopsis = "DIRECTORY --out OUT [options]"
    which = "name one directory with a recording, the DIRECTORY of --export spark:DIRECTORY"
    examples: Sequence[str] = ()
    optFlags = [
        ["progress", None, "Tell how far it is on standard error; it does so anyway if that is a terminal."],
    ]
    optParameters = [
        ["out", "o", None, "Where results go: a directory, made if need be."],
        ["from", None, None, "The first moment: 2026-03-01, 2026-03-01T12:30 (UTC), or seconds since 1970."],
        ["to", None, None, "The first moment after the last."],
        ["sample", None, None, "Take this share of the clients, as in 10%: always the same, and all they did."],
    ]  # fmt: skip

    def postOptions(self) -> None:
        """
        @raise UsageError: unless there is a place for results.
        """
        if not self["out"]:
            raise UsageError("say where results go: --out OUT")

    def getUsage(self, width: int | None = None) -> str:
        """
        The usage text, with examples that keep their lines.
        """
        usage: str = super().getUsage(width)
        return "\n".join([usage + "\nExamples:", *(f"  admission {each}" for each in self.examples), _WHERE])


class AggregateOptions(RecordingOptions):
    """
    C{aggregate}.
    """

    longdesc = (
        "Sums up a recording: what each client did in each minute, how long it was throttled, who did most, how evenly "
        "everybody was served and how full the memory was.  Results are Parquet and CSV files in OUT."
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
        @raise UsageError: also for a part of a stream.
        """
        super().postOptions()
        for name in ("from", "to", "sample"):
            if self["stream"] and self[name] is not None:
                raise UsageError(f"--stream takes all that there is; leave --{name} out")


class AuditOptions(RecordingOptions):
    """
    C{audit}.
    """

    longdesc = (
        "Holds a recording against what should have been: quotas against what clients took, the filter of producer ids "
        "against the ids that there were, the ledger against the memory of the process; and looks for rows that cannot "
        "be and files that cannot be read."
    )
    examples = (
        "audit /var/lib/admission/recording --out results",
        "audit /var/lib/admission/recording --out day --from 2026-03-01 --to 2026-03-02",
    )


class _Tried(PolicyOptionsMixin):
    """
    What can be tried.
    """

    policyKinds = (
        PolicyKind("candidate", IQuotaPolicyFactory, repeatable=True),
        PolicyKind("pool", IMemoryPoolFactory, repeatable=True),
    )


class ReplayOptions(_Tried, RecordingOptions):
    """
    C{replay}.

    After parsing, C{candidate} and C{pool} are lists of
    L{admission.offline.replay.candidates.Candidate}, and C{mode} is one of
    modes.
    """

    longdesc = (
        "Puts what was recorded before other policies, and tells whom they would have throttled and for how long.  "
        "Clients are taken to send their next request as long after an answer as they did (closed loop), and the "
        "policies that were in force are replayed as well: unless that says what was recorded, no answer can be "
        "trusted.  Whoever was throttled less might have sent more, which no recording tells; where that is so, there "
        "is no forecast."
    )
    examples: Sequence[str] = (
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

    def _try(self, option: str, description: str, interface: type[IPolicyFactory]) -> None:
        try:
            candidate = resolveCandidate(description, interface)
            # To find what is wrong with its arguments.
            candidate.build(Clock())
        except PolicyError as error:
            raise UsageError(f"--{option}: {error}") from error
        others: list[Candidate] = self[option]
        if any(candidate.label == other.label for other in others):
            raise UsageError(f"--{option}: two are called {candidate.label!r}; write LABEL= before one of them")
        others.append(candidate)


class EvaluateOptions(ReplayOptions):
    """
    C{evaluate}.
    """

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


class ReportOptions(Options):
    """
    C{report}.

    After parsing, C{out} is a key.
    """

    synopsis = "OUT"
    longdesc = (
        "Writes OUT/report.html, a page about the results that the other commands have left in OUT.  It needs no Spark."
    )

    def parseArgs(self, *directories: str) -> None:
        """
        Take the directory.
        """
        if len(directories) != 1 or not directories[0]:
            raise UsageError("name one directory with results, the OUT of admission evaluate --out OUT")
        self["out"] = directories[0]

    def getUsage(self, width: int | None = None) -> str:
        """
        The usage text, with examples that keep their lines.
        """
        usage: str = super().getUsage(width)
        return f"{usage}\nExamples:\n  admission report results\n  admission report /var/lib/admission/results\n"

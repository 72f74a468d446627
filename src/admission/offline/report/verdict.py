# -*- test-case-name: tests.unit.offline.test_report -*-
"""
The verdict on the replays: whether they can be trusted, and which candidate to prefer.

A candidate is good enough if there is a forecast of it, if it protects the server no less than the policy in force,
admitting no more in the busiest minute, and if it starves no client that was served.  The best of these is the one
under which clients are throttled for the shortest total time.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import evolve, frozen
from pyarrow import compute as pc

from ..missing import Missing
from ..simulate.decisions import CLOSED
from ..simulate.identity import MIN_MATCHING, Fidelity
from ..simulate.totals import MAX_EXHAUSTED_SHARE, TOTAL_COLUMNS
from ..simulate.trials import RECORDED
from .lines import busiestBytes, starvedMinutes
from .resultfiles import Results, Row, grouped
from .words import count, duration, plural, share, shown, size

SLACK_SHARE = 0.01
"""How much more may be admitted in the busiest minute: a delay moves about that much from one minute to the next."""

# In the order of the fields of Fidelity.
_FIDELITY = (
    "candidate",
    "mode",
    "broker_id",
    "boot_id",
    "compared",
    "match_share",
    "mean_error_ms",
    "throttled",
    "seq_gaps",
    "missing",
)

_SAME = "replay of the policies in force"


class Trust(Enum):
    """
    Whether replays can be trusted.
    """

    TRUSTED = "trusted"
    REFUTED = "refuted"
    UNTESTED = "untested"


@frozen
class GateOutcome:
    """
    How far replays of the policies in force agree with the recording.

    @ivar trust: whether replays of candidates can be trusted.
    @ivar sentence: the same in sentences, which begin with what is missing of the recording.
    @ivar fidelities: of each policy and run of a server, the worst first.
    @ivar doubt: why it is refuted, as a part of a sentence.
    """

    trust: Trust
    sentence: str
    fidelities: Sequence[Fidelity] = ()
    doubt: str = ""


@frozen
class Standing:
    """
    The results of one candidate, closed loop.

    @ivar label: of the candidate.
    @ivar total: its row of C{replay_summary}.
    @ivar busiestBytes: the bytes admitted in the busiest minute of a server; L{None} if unknown.
    @ivar starvedMinutes: the minutes, added up over clients, in which a client got nothing; L{None} if unknown.
    @ivar objections: why it is not good enough.
    """

    label: str
    total: Row
    busiestBytes: int | None = None
    starvedMinutes: int | None = None
    objections: Sequence[str] = ()

    @property
    def isForecast(self) -> bool:
        """
        Whether its numbers may be read as what would have happened.
        """
        return bool(self.total["is_forecast"])

    @property
    def heldSeconds(self) -> float:
        """
        For how long clients would have been throttled, in total.
        """
        return float(self.total["held_s"])


@frozen
class Measured:
    """
    The recording's figures, with which candidates are compared.  Each is L{None} if it is unknown.

    @ivar heldSeconds: for how long clients were throttled, in total.
    @ivar longestSeconds: the longest throttle time.
    @ivar busiestBytes: the bytes admitted in the busiest minute of a server.
    @ivar starvedMinutes: the minutes, added up over clients, in which a client got nothing.
    """

    heldSeconds: float | None = None
    longestSeconds: float | None = None
    busiestBytes: int | None = None
    starvedMinutes: int | None = None


@frozen
class Verdict:
    """
    The verdict on the replays.

    @ivar gate: whether to trust them.
    @ivar recorded: the figures with which candidates are compared.
    @ivar standings: all candidates, the cheapest first, candidates without a forecast last; L{None} if none were
        replayed.
    @ivar sentence: which candidate to prefer, or why none.
    """

    gate: GateOutcome
    recorded: Measured
    standings: Sequence[Standing] | None
    sentence: str

    @property
    def best(self) -> Standing | None:
        if self.gate.trust is Trust.REFUTED:
            return None
        return next((each for each in self.standings or () if not each.objections), None)

    @property
    def forecasts(self) -> list[str]:
        """
        The candidates whose numbers may be shown.
        """
        return [each.label for each in self.standings or () if each.isForecast]


def reach(results: Results, minutes: pa.Table | None) -> Verdict:
    """
    Reach a verdict.

    @param minutes: the result of L{admission.offline.report.lines.replayMinutes}.
    """
    gate = passGate(results)
    totals = results.rows("replay_summary", ["candidate", "mode", *(name for name, _ in TOTAL_COLUMNS)], mode=CLOSED)
    busiest, starved = ({}, {}) if minutes is None else (busiestBytes(minutes), starvedMinutes(minutes))
    again = next((label for label in sorted(busiest) if label.startswith(RECORDED)), None)
    recorded = _measured(results, None if again is None else busiest[again], None if again is None else starved[again])
    if totals is None:
        return Verdict(gate, recorded, None, "No candidate was replayed, so there is none to prefer.")
    standings = [
        _judged(Standing(row["candidate"], row, busiest.get(row["candidate"]), starved.get(row["candidate"])), recorded)
        for row in totals
        if not row["candidate"].startswith(RECORDED)
    ]
    standings.sort(key=lambda each: (not each.isForecast, each.heldSeconds, each.label))
    verdict = Verdict(gate, recorded, standings, "")
    return evolve(verdict, sentence=_sentence(verdict))


def passGate(results: Results) -> GateOutcome:
    """
    Judge closed-loop replays: by what is missing of the recording, and by the identity gate.  What is missing is said
    first.
    """
    missing, gate = Missing.of(results.evaluation), _identityGate(results)
    if missing.isTooMuch:
        gate = evolve(gate, trust=Trust.REFUTED, doubt=missing.inWords())
    trusted = {
        Trust.TRUSTED: "These answers can be trusted.",
        Trust.REFUTED: f"These answers cannot be trusted: {gate.doubt}.",
        Trust.UNTESTED: "",
    }[gate.trust]
    words = [trusted, *missing.causes()]
    if missing.share and not missing.isTooMuch:
        words = [f"{missing.inWords().capitalize()}.", *missing.causes(), trusted]
    return evolve(gate, sentence=" ".join(filter(None, [*words, gate.sentence])))


def _identityGate(results: Results) -> GateOutcome:
    rows = results.rows("replay_fidelity", _FIDELITY, mode=CLOSED)
    if rows is None:
        return GateOutcome(Trust.UNTESTED, "The policies in force were not replayed, so nothing is proven.")
    if not rows:
        return GateOutcome(
            Trust.UNTESTED,
            "No policy was in force that could be replayed, so there is nothing to compare with.",
        )
    fidelities = [Fidelity(*(row[name] for name in _FIDELITY)) for row in rows]
    fidelities.sort(key=lambda each: (each.isTrusted, each.matchShare, each.candidate, each.brokerId, each.bootId))
    compared = sum(each.compared for each in fidelities)
    matching = sum(each.matchShare * each.compared for each in fidelities)
    errorMs = sum(each.meanErrorMs * each.compared for each in fidelities)
    throttled = sum(each.throttled for each in fidelities)
    missing = sum(each.missing for each in fidelities)
    refuted = [each for each in fidelities if not each.isTrusted and (each.compared or each.missing)]
    untested = sum(not each.compared for each in fidelities)
    if not compared:
        doubt = f"the {_SAME} comes to none of the recorded decisions"
        if refuted:
            return GateOutcome(Trust.REFUTED, "", fidelities, doubt)
        return GateOutcome(Trust.UNTESTED, f"{doubt.capitalize()}, so nothing is proven.", fidelities)
    agreement = (
        f"The {_SAME} agrees with the recording in {share(matching / compared)} of {plural(compared, 'decision')}, "
        f"{count(throttled)} of which throttled or refused a client. "
        + (f"Its delays are off by {errorMs / compared:.3f} ms on average" if errorMs else "Its delays are exact")
        + (f", and it does not come to {plural(missing, 'recorded decision')}" if missing else "")
    )
    several = plural(len(fidelities), "policy and run", "policies and runs")
    if refuted:
        doubt = (
            f"the {_SAME} agrees with the recording in less than the required {share(MIN_MATCHING)} of the decisions "
            f"for {len(refuted)} of {several} of a server"
        )
        return GateOutcome(Trust.REFUTED, f"{agreement}.", fidelities, doubt)
    if untested:
        return GateOutcome(
            Trust.UNTESTED,
            f"{agreement}. For {untested} of {several} of a server there was nothing to compare, so for these nothing "
            "is proven.",
            fidelities,
        )
    if not throttled:
        return GateOutcome(Trust.UNTESTED, f"{agreement}. With nobody throttled that proves little.", fidelities)
    return GateOutcome(Trust.TRUSTED, f"{agreement}.", fidelities)


def _measured(results: Results, busiest: int | None, starved: int | None) -> Measured:
    """
    @param busiest: from the recorded policy's own replay, which counts exactly as the candidates' replays do; else from
        the recording.
    """
    heldSeconds = longestSeconds = None
    clients = results.table("client_minute", ["throttle_s", "throttle_ms_max"])
    if clients is not None and len(clients):
        heldSeconds = pc.sum(clients["throttle_s"]).as_py()
        longestSeconds = pc.max(clients["throttle_ms_max"]).as_py() / 1000
    if busiest is None:
        minutes = results.table("fairness_minute", ["broker_id", "minute", "admitted_bytes", "starved"])
        if minutes is not None and len(minutes):
            busiest = pc.max(grouped(minutes, ("broker_id", "minute"), ("admitted_bytes",))["admitted_bytes"]).as_py()
            starved = pc.sum(minutes["starved"]).as_py()
    return Measured(heldSeconds, longestSeconds, busiest, starved)


def _judged(standing: Standing, recorded: Measured) -> Standing:
    if not standing.isForecast:
        return evolve(
            standing,
            objections=[
                f"no point estimate: {share(standing.total['exhausted_share'])} of its connections ran out of recorded "
                f"requests, and with more than {share(MAX_EXHAUSTED_SHARE)} nobody can say what they would have sent"
            ],
        )
    objections = []
    if standing.busiestBytes is None or recorded.busiestBytes is None:
        objections.append("nobody knows what it lets through in the busiest minute")
    elif standing.busiestBytes > recorded.busiestBytes * (1 + SLACK_SHARE):
        objections.append(
            f"in the busiest minute it lets {size(standing.busiestBytes)} through, and {size(recorded.busiestBytes)} "
            "were let through as recorded"
        )
    if (standing.starvedMinutes or 0) > (recorded.starvedMinutes or 0):
        objections.append(
            f"clients that wanted something got nothing in {plural(standing.starvedMinutes or 0, 'minute')}, "
            f"{count(recorded.starvedMinutes or 0)} as recorded"
        )
    return evolve(standing, objections=objections)


def _sentence(verdict: Verdict) -> str:
    standings = verdict.standings or ()
    if not standings:
        return "No candidate was replayed closed loop, so there is none to prefer."
    if verdict.gate.trust is Trust.REFUTED:
        return "So no candidate is preferred here: what the tables say of them is not to be relied on."
    best = verdict.best
    if best is None:
        return "No candidate is good enough; the list below says why."
    doubt = "" if verdict.gate.trust is Trust.TRUSTED else "If the replay is right, which is not proven, "
    words = (
        f"{doubt}{shown(best.label)} is the cheapest candidate that lets no more through in the busiest minute than "
        f"was let through as recorded, and leaves nobody without service who had some: it would have held clients "
        f"back for {duration(best.heldSeconds)}, all together"
    )
    recordedSeconds = verdict.recorded.heldSeconds
    if recordedSeconds is not None:
        words += f" ({_compared(best.heldSeconds, recordedSeconds)})"
    return f"{words}, and nobody for longer than {duration(best.total['most_held_s'])} at a time."


def _compared(seconds: float, recordedSeconds: float) -> str:
    difference = seconds - recordedSeconds
    if abs(difference) < 0.0005:
        return "as long as recorded"
    return f"{duration(abs(difference))} {'more' if difference > 0 else 'less'} than recorded"

# -*- test-case-name: tests.offline.test_report -*-
"""
The verdict on the replays: whether they can be trusted, and what to set.

A candidate does as well as what was in force if there is an estimate of it, if it protects the server no less,
admitting no more in the busiest minute and leaving no client that may send more, if it refuses no more requests and no
fewer, and if it starves no client that was served.  The best of these is the one under which clients are throttled for
the shortest total time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from attrs import evolve, frozen

from ..missing import Missing
from ..simulate.decisions import CLOSED
from ..simulate.identity import FIDELITIES, MIN_MATCHING, Fidelity
from ..simulate.totals import MAX_EXHAUSTED_SHARE, TOTAL_COLUMNS
from ..simulate.trials import BASELINE, RECORDED
from .differences import differencesOf
from .lines import Times, busiestBytes
from .resultfiles import Results, Row
from .sharingwords import isAnyTogether, lackServers
from .words import count, duration, enumerated, plural, share, shown, size

SLACK_SHARE = 0.01
"""How much more may be admitted in the busiest minute: a delay moves about that much from one minute to the next."""

# Without its verdict, which is reached again.
_FIDELITY = FIDELITIES.names[:-2]


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
    @ivar untrusted: if only some candidates can be trusted, the labels of the others.
    """

    trust: Trust
    sentence: str
    fidelities: Sequence[Fidelity] = ()
    doubt: str = ""
    untrusted: Sequence[str] = ()

    @property
    def refutal(self) -> str:
        """
        Which answers cannot be trusted and why, as a sentence without its full stop; empty if there are none.
        """
        if self.untrusted:
            return f"the answers about {enumerated(self.untrusted)} cannot be trusted: {self.doubt}"
        return f"these answers cannot be trusted: {self.doubt}" if self.trust is Trust.REFUTED else ""


@frozen
class Standing:
    """
    The results of one candidate, closed loop, or of the recording.

    @ivar label: of the candidate.
    @ivar total: its row of C{replay_summary}.
    @ivar busiestBytes: the bytes admitted in the busiest minute of a server or of all of them, or in all; see
        L{lines.busiestBytes}.
    @ivar objections: why it does not do as well as what was in force.
    @ivar isUntrusted: whether what is said of it is known to be wrong.
    @ivar lacksServers: whether servers that would enforce its limits, too, are not in the recording.
    @ivar served: how many of the requests that were refused as recorded are not.
    """

    label: str
    total: Row
    busiestBytes: int | None = None
    objections: Sequence[str] = ()
    isUntrusted: bool = False
    lacksServers: bool = False
    served: int = 0

    @property
    def title(self) -> str:
        """
        The label, and whether it cannot be trusted.
        """
        return f"{shown(self.label)} (untrusted)" if self.isUntrusted else shown(self.label)

    @property
    def hasEstimate(self) -> bool:
        """
        Whether there are numbers to show: few connections ran out of requests.
        """
        return float(self.total["exhausted_share"]) <= MAX_EXHAUSTED_SHARE

    @property
    def isForecast(self) -> bool:
        """
        Whether its numbers may be read as what would have happened.
        """
        return bool(self.total["is_forecast"])

    @property
    def ranOut(self) -> bool:
        """
        Whether clients that matter ran out of recorded requests.
        """
        return float(self.total["ran_out_share"]) > MAX_EXHAUSTED_SHARE

    @property
    def isForSameRequests(self) -> bool:
        """
        Whether clients may send more than was recorded, so that its numbers are for the recorded requests only.
        """
        return self.ranOut or self.served > 0

    @property
    def refused(self) -> int:
        """
        How many requests are refused.
        """
        return int(self.total["refused"])

    @property
    def starvedMinutes(self) -> int:
        """
        The minutes, added up over clients, in which a client got nothing.
        """
        return int(self.total["starved_minutes"])

    @property
    def throttleSeconds(self) -> float:
        """
        For how long clients would have been throttled, in total.
        """
        return float(self.total["throttle_s"])


@frozen
class Verdict:
    """
    The verdict on the replays.

    @ivar gate: whether to trust them.
    @ivar recorded: what was recorded, with which candidates are compared; L{None} if nothing was replayed.
    @ivar standings: all candidates, the least throttling first, candidates without an estimate last; L{None} if none
        were replayed.
    @ivar advice: what to set, in sentences.
    @ivar busiestTime: when a server admits the bytes of L{Standing.busiestBytes}, in words.
    """

    gate: GateOutcome
    recorded: Standing | None
    standings: Sequence[Standing] | None
    advice: str
    busiestTime: str = "in the busiest minute"

    @property
    def best(self) -> Standing | None:
        if self.gate.trust is Trust.REFUTED:
            return None
        return next((each for each in self.standings or () if not each.objections), None)

    @property
    def estimates(self) -> list[str]:
        """
        The candidates whose numbers may be shown.
        """
        return [each.label for each in self.standings or () if each.hasEstimate]


def reach(results: Results, times: Times) -> Verdict:
    """
    Reach a verdict.
    """
    gate = passGate(results)
    columns = ["candidate", "mode", *(name for name, _ in TOTAL_COLUMNS), "starved_minutes", "is_approximate"]
    totals = results.rows("replay_summary", columns, mode=CLOSED)
    busiest = busiestBytes(times, isAnyTogether(results))
    busiestTime = "in all" if times.isShort else "in the busiest minute"
    found = {
        row["candidate"]: Standing(row["candidate"], row, busiest.get(row["candidate"]))
        for row in totals or ()
        if not row["candidate"].startswith(RECORDED)
    }
    recorded = found.pop(BASELINE, None)
    lacking = lackServers(results)
    standings = [
        _judged(
            evolve(
                each,
                isUntrusted=gate.trust is Trust.REFUTED or each.label in gate.untrusted,
                lacksServers=each.label in lacking,
                served=max(0, recorded.refused - each.refused) if recorded is not None else 0,
            ),
            recorded,
            busiestTime,
        )
        for each in found.values()
    ]
    standings.sort(key=lambda each: (not each.hasEstimate, each.throttleSeconds, each.label))
    verdict = Verdict(gate, recorded, None if totals is None else standings, "", busiestTime)
    descriptions = {each.get("label"): str(each.get("description")) for each in results.objects("candidates")}
    return evolve(verdict, advice=_advice(verdict, descriptions, results))


def passGate(results: Results) -> GateOutcome:
    """
    Judge closed-loop replays: by what is missing of the recording, and by the identity gate.  What is missing is said
    first.
    """
    missing, gate = Missing.of(results.evaluation), _identityGate(results)
    if missing.isTooMuch:
        gate = evolve(gate, trust=Trust.REFUTED, doubt=missing.inWords(), untrusted=())
    trusted = f"{gate.refutal[:1].upper()}{gate.refutal[1:]}." if gate.refutal else ""
    if gate.trust is Trust.TRUSTED:
        trusted = f"{trusted} All other answers can be trusted." if trusted else "These answers can be trusted."
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
    refuted = [each for each in fidelities if each.isRefuted]
    untrusted = results.says("untrusted", list)
    tried = [str(each.get("label")) for each in results.objects("candidates")]
    if not refuted or untrusted is None or all(each in untrusted for each in tried):
        return _judgedGate(fidelities)
    # Some candidates do not depend on what is refuted.
    gate = _judgedGate([each for each in fidelities if not each.isRefuted], "other policies in force")
    names = enumerated(dict.fromkeys(each.candidate.removeprefix(RECORDED) for each in refuted))
    doubt = f"the replay of {names} disagrees with the recording"
    labels = [each for each in tried if each in untrusted]
    words = gate.sentence if labels else f"{gate.sentence} No answer depends on {names}: {doubt}."
    return evolve(gate, sentence=words, fidelities=fidelities, doubt=doubt if labels else "", untrusted=labels)


def _judgedGate(fidelities: Sequence[Fidelity], policies: str = "policies in force") -> GateOutcome:
    """
    Judge replays of policies in force.

    @param fidelities: of them.
    @param policies: what these are called.
    """
    same = f"replay of the {policies}"
    compared = sum(each.compared for each in fidelities)
    matching = sum(each.matchShare * each.compared for each in fidelities)
    errorMs = sum(each.meanErrorMs * each.compared for each in fidelities)
    throttled, refused = (sum(getattr(each, name) for each in fidelities) for name in ("throttled", "refused"))
    missing = sum(each.missing for each in fidelities)
    refuted = [each for each in fidelities if each.isRefuted]
    untested = sum(not each.compared for each in fidelities)
    if not compared:
        doubt = f"the {same} comes to none of the recorded decisions"
        if refuted:
            return GateOutcome(Trust.REFUTED, "", fidelities, doubt)
        return GateOutcome(Trust.UNTESTED, f"{doubt.capitalize()}, so nothing is proven.", fidelities)
    agreement = (
        f"The {same} agrees with the recording in {share(matching / compared)} of {plural(compared, 'decision')}, "
        f"{count(throttled)} of which throttled a client and {count(refused)} refused a request. "
        + (f"Its delays are off by {errorMs / compared:.3f} ms on average" if errorMs else "Its delays are exact")
        + (f", and it does not come to {plural(missing, 'recorded decision')}" if missing else "")
    )
    several = plural(len(fidelities), "policy and run", "policies and runs")
    if refuted:
        doubt = (
            f"the {same} agrees with the recording in less than the required {share(MIN_MATCHING)} of the decisions "
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
    if not (throttled or refused):
        return GateOutcome(Trust.UNTESTED, f"{agreement}. With nobody throttled that proves little.", fidelities)
    return GateOutcome(Trust.TRUSTED, f"{agreement}.", fidelities)


def _judged(standing: Standing, recorded: Standing | None, busiestTime: str) -> Standing:
    if not standing.hasEstimate:
        return evolve(
            standing,
            objections=[
                f"no point estimate: {share(standing.total['exhausted_share'])} of its connections ran out of recorded "
                f"requests, and with more than {share(MAX_EXHAUSTED_SHARE)} nobody can say what they would have sent"
            ],
        )
    objections = ["the answers about it cannot be trusted"] if standing.isUntrusted else []
    if standing.lacksServers:
        objections.append("servers that would enforce its limits, too, are not in the recording")
    if standing.busiestBytes is None or recorded is None or recorded.busiestBytes is None:
        objections.append(f"how much it lets through {busiestTime} is not known")
    elif _letsMoreThrough(standing, recorded):
        objections.append(
            f"{busiestTime} it lets {size(standing.busiestBytes)} through, and {size(recorded.busiestBytes)} were "
            "recorded"
        )
    if standing.ranOut:
        objections.append(
            f"clients with {share(standing.total['ran_out_share'])} of the bytes or of the time throttled ran out of "
            "recorded requests, and may send more"
        )
    if standing.served:
        objections.append(
            f"it serves {plural(standing.served, 'request')} that were refused as recorded, and clients that are "
            "refused less may send more"
        )
    if recorded is not None and standing.refused > recorded.refused:
        objections.append(
            f"it refuses {plural(standing.refused, 'request')}, and {count(recorded.refused)} were refused as recorded"
        )
    if _starves(standing, recorded):
        assert recorded is not None
        objections.append(
            f"clients that wanted something got nothing in {plural(standing.starvedMinutes, 'minute')}, "
            f"and in {count(recorded.starvedMinutes)} as recorded"
        )
    return evolve(standing, objections=objections)


def _starves(standing: Standing, recorded: Standing | None) -> bool:
    return recorded is not None and standing.starvedMinutes > recorded.starvedMinutes


def _letsMoreThrough(standing: Standing, recorded: Standing) -> bool:
    return (standing.busiestBytes or 0) > (recorded.busiestBytes or 0) * (1 + SLACK_SHARE)


def _advice(verdict: Verdict, descriptions: Mapping[Any, str], results: Results) -> str:
    """
    What to set, in sentences.

    @param descriptions: of candidates, by label.
    @param results: with the clients, to say who loses.
    """
    standings, recorded = verdict.standings or (), verdict.recorded
    if not standings or recorded is None:
        return "No candidate was replayed closed loop, so there is nothing to advise."
    if verdict.gate.trust is Trust.REFUTED:
        return "So nothing is advised: do not rely on what the tables say of candidates."

    def setting(standing: Standing) -> str:
        description = descriptions.get(standing.label, standing.label)
        return shown(description) + ("" if description == standing.label else f" ({shown(standing.label)})")

    def effect(standing: Standing) -> str:
        changes = [
            f"clients are throttled for {duration(standing.throttleSeconds)} in all instead of "
            f"{duration(recorded.throttleSeconds)}"
        ]
        if standing.refused != recorded.refused:
            changes.append(f"{plural(standing.refused, 'request')} are refused instead of {count(recorded.refused)}")
        through, before = size(standing.busiestBytes), size(recorded.busiestBytes)
        if through != before:
            changes.append(f"{verdict.busiestTime} {through} are let through instead of {before}")
        differences = differencesOf(results, standing.label)
        if differences is not None:
            changes.append(differences.losersInWords())
        effects = f"{', '.join(changes[:-1])}, and {changes[-1]}" if len(changes) > 1 else changes[0]
        return f"{'for the same requests, ' if standing.isForSameRequests else ''}{effects}."

    def isLess(standing: Standing) -> bool:
        least = recorded.throttleSeconds * (1 - SLACK_SHARE)
        return standing.throttleSeconds < least or (
            standing.throttleSeconds <= recorded.throttleSeconds and standing.refused < recorded.refused
        )

    doubt = "" if verdict.gate.trust is Trust.TRUSTED else "If the replay is right, which is not proven: "
    best = verdict.best
    generous = next(
        (
            each
            for each in standings
            if each.objections
            and each.hasEstimate
            and not each.isUntrusted
            and isLess(each)
            and each.refused <= recorded.refused
            and not _starves(each, recorded)
        ),
        None,
    )
    words = []
    if best is not None and isLess(best):
        words.append(f"Set {setting(best)}: {effect(best)}")
    if generous is not None:
        words.append(f"Set {setting(generous)} if the server can take more: {effect(generous)}")
    if best is None or not isLess(best):
        keep = "keep what is set: no candidate throttles clients less and is sure to let no more through."
        words.append(f"Otherwise {keep}" if words else keep.capitalize())
    unknown = [shown(each.label) for each in standings if not each.hasEstimate]
    if unknown:
        words.append(
            f"Nothing can be said of {enumerated(unknown)}: more than {share(MAX_EXHAUSTED_SHARE)} of the connections "
            "ran out of recorded requests. Record under a limit that throttles less to learn more."
        )
    return doubt + " ".join(words)

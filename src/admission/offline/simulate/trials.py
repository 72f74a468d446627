# -*- test-case-name: tests.offline.simulate.test_trials -*-
"""
Which candidate is tried on which run, and under which limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from twisted.internet.task import Clock

from admission.control import AdmissionControl
from admission.interfaces import IQuotaPolicy, IReplayable, IRequestLifecycle, IShared, QuotaEntity
from admission.plugins import PolicyError
from admission.quotas.policy import limitsByName
from admission.recording.sharedusage import isOfUse

from .candidates import Candidate, resolveCandidate
from .live import LivePolicy
from .runs import LimitChange, Run
from .sharedruns import findSharedRuns

RunKey = tuple[str, str]
"""A broker and a run."""

TrialKey = tuple[str, str, str]
"""The label of a candidate, a broker and a run."""

RECORDED = "recorded "
"""The prefix of the label of a policy in force; its name follows."""

BASELINE = "recorded"
"""The label of what was recorded, in results."""

_Policies = Sequence[tuple[str, IQuotaPolicy]]
_Described = Mapping[tuple[QuotaEntity, str], float]


@frozen
class Trial:
    """
    One candidate in one run.  It can be pickled.

    A candidate replaces every policy with the name of its plug-in that is no shadow. All others are retained, with
    their recorded delays and refusals.

    The limits are as if the server had been started with the candidate's description instead of the recorded one, and
    enforced the same share of each:

      - a limit in the candidate's description holds, whatever was recorded for the same entity and limit,
      - a limit of a recorded description is gone with that description,
      - every other limit, from the configuration or set while the server ran,
        holds when it was in force.

    A candidate decides even if its description makes it a shadow policy, since it is to be judged. Only in the identity
    gate's trials do shadow policies decide nothing.

    @ivar candidate: the policy to try.
    @ivar run: the run to try it on.
    @ivar changes: of the limits that the candidate knows.
    @ivar otherChanges: of limits that it does not know, while the server ran.  With any change a server asks again for
        how long clients wait.
    @ivar isShared: whether several servers can enforce its limits together, see L{IShared}.
    @ivar replacesShared: whether it takes the place of a policy whose limits they can.
    @ivar together: the runs, this one included, whose limits servers enforced together, and whose trials of this
        candidate are therefore replayed together; empty if it is replayed alone.
    @ivar gapElsewhereUs: the first moment, by its own clock, at which events of another of these are missing.
    @ivar replaced: which of the run's policies it replaces.
    @ivar retained: which other policies decide.
    @ivar hasSay: whether its decisions apply.
    @ivar isRecorded: whether it is the policy in force.
    @ivar horizonSeconds: see L{IReplayable}; L{None} also for policies without it, and for policies that follow
        requests, since these may last longer.
    @ivar isFollowing: whether the policy is told when requests begin and end, so that its decisions are approximate,
        see L{LivePolicy}.
    """

    candidate: Candidate
    run: Run
    changes: Sequence[LimitChange]
    replaced: Sequence[int]
    retained: Sequence[int]
    hasSay: bool = True
    isRecorded: bool = False
    horizonSeconds: float | None = None
    isFollowing: bool = False
    otherChanges: Sequence[LimitChange] = ()
    isShared: bool = False
    replacesShared: bool = False
    together: Sequence[RunKey] = ()
    gapElsewhereUs: int | None = None

    @property
    def key(self) -> TrialKey:
        return self.candidate.label, self.run.brokerId, self.run.bootId

    @property
    def decisive(self) -> Sequence[int]:
        """
        Which of the run's policies decided.
        """
        return sorted({*self.retained, *(self.replaced if self.hasSay else ())})

    @property
    def mayBeAskedMore(self) -> bool:
        """
        Whether it is asked about requests that no policy was asked about.
        """
        return not self.isRecorded and bool(self.unlimited())

    @property
    def view(self) -> tuple[Any, ...]:
        """
        Trials of the same run with the same view see identical arrivals.
        """
        replaced = tuple(self.replaced) if self.hasSay else ()
        return replaced, tuple(self.retained), tuple(self.decisive), self.mayBeAskedMore, self.isFollowing

    def begin(self, atUs: int) -> LivePolicy:
        """
        Build the policy in its state before the first request.

        @param atUs: the moment of that request, or one before it.
        @raise PolicyError: see L{Candidate.build}.
        """
        policy = _build(self.candidate, self.run, atUs / 1e6)
        elsewhere = self.run.elsewhere if IShared.providedBy(policy) else ()
        changes = sorted([*self.changes, *self.otherChanges, *elsewhere], key=lambda each: (each.atUs, each.seq))
        return LivePolicy(policy, atUs, changes, self.run.maxDelayUs, self.hasSay, self._kept())

    def _kept(self) -> Mapping[str, float]:
        """
        What it knows from before the server's restart: as much as the policy that it replaces.
        """
        names = self.run.policyNames
        replaced = [names[index] for index in self.replaced] if self.isRecorded else _sameNamed(names, self.candidate)
        return next((self.run.kept[name] for name in replaced if name in self.run.kept), {})

    def unlimited(self) -> Sequence[int]:
        """
        When there was no limit at all, so that no policy was asked: the moments when that began, ended, began again and
        so on.
        """
        inForce = {(each.entity, each.name) for each in self.run.changes if each.isStart and each.value is not None}
        moments: list[int] = [] if inForce else [-(2**62)]
        for each in self.run.changes:
            if each.isStart:
                continue
            (inForce.discard if each.value is None else inForce.add)((each.entity, each.name))
            if bool(inForce) is bool(len(moments) % 2):
                moments.append(each.atUs)
        return moments


def planTrials(candidates: Collection[Candidate], runs: Collection[Run]) -> dict[TrialKey, Trial]:
    """
    Plan a trial of every candidate in every run.  For the driver: the result can be pickled, and needs no plug-ins.

    Runs whose servers enforced limits together are tried together, where the candidate is an L{IShared}: what others
    told was told under other limits.

    @raise PolicyError: if a policy cannot be built, or refuses a recorded limit.
    """
    known: dict[str, Candidate] = {}
    shared = {_keyOf(run): each.runs for each in findSharedRuns(runs) if each.isComplete for run in each.runs}
    trials = []
    for run in runs:
        recorded = _rebuilt(run, known)
        together = shared.get(_keyOf(run), ())
        trials += [_together(_tried(candidate, run, recorded), together) for candidate in candidates]
    return {trial.key: trial for trial in trials}


def planRecorded(runs: Collection[Run]) -> dict[TrialKey, Trial]:
    """
    Plan a trial of every policy in force, for the identity gate: built from its description, with its recorded limits.

    @raise PolicyError: if one cannot be built.
    """
    known: dict[str, Candidate] = {}
    trials = [trial for run in runs for trial in _recorded(run, _rebuilt(run, known), known)]
    return {trial.key: trial for trial in trials}


def planBaseline(runs: Collection[Run]) -> dict[tuple[str, str], Trial]:
    """
    What was recorded in each run, in the form of a trial of nothing: the policies that decided are retained.

    @return: by broker and run.
    @raise PolicyError: if a policy in force cannot be built.
    """
    known: dict[str, Candidate] = {}
    nothing = Candidate(BASELINE, "", "", "")
    baseline = {}
    for run in runs:
        decisive = [index for index, (_, policy) in enumerate(_rebuilt(run, known)) if not policy.isShadow]
        baseline[run.brokerId, run.bootId] = Trial(nothing, run, (), (), decisive, hasSay=False, isRecorded=True)
    return baseline


def _tried(candidate: Candidate, run: Run, recorded: _Policies) -> Trial:
    described = _limitsOf(AdmissionControl(recorded))
    policy = _build(candidate, run)
    own = _limitsOf(policy)
    run = _inOwnNames(run, [*(each for _, each in recorded), policy])
    changes = []
    for change in run.changes:
        place = (change.entity, change.name)
        if place in own:
            continue
        value = change.value
        if value is not None and described.get(place) == value:
            if change.isStart:
                continue
            # Removed again, and the description sets no such limit.
            value = None
        changes.append(evolve(change, value=value))
    decisive = [index for index, (_, policy) in enumerate(recorded) if not policy.isShadow]
    sameNamed = _sameNamed(run.policyNames, candidate)
    replaced = [index for index in decisive if run.policyNames[index] in sameNamed]
    retained = [index for index in decisive if index not in replaced]
    replacesShared = any(IShared.providedBy(recorded[index][1]) for index in replaced)
    return _checked(Trial(candidate, run, changes, replaced, retained, replacesShared=replacesShared))


def _keyOf(run: Run) -> RunKey:
    return run.brokerId, run.bootId


def _together(trial: Trial, runs: Sequence[Run]) -> Trial:
    """
    C{trial}, told by the trials in C{runs} what their clients take, and no longer what was recorded.
    """
    run = trial.run
    if len(runs) < 2 or not trial.isShared:
        return trial
    gapsUs = [gap.atUs + each.wallOffsetUs for each in runs if _keyOf(each) != _keyOf(run) for gap in each.gaps]
    return evolve(
        trial,
        run=evolve(run, elsewhere=[each for each in run.elsewhere if not isOfUse(each.name)]),
        together=tuple(map(_keyOf, runs)),
        gapElsewhereUs=min(gapsUs) - run.wallOffsetUs if gapsUs else None,
    )


def _recorded(run: Run, recorded: _Policies, known: Mapping[str, Candidate]) -> Iterator[Trial]:
    described = _limitsOf(AdmissionControl(recorded))
    run = _inOwnNames(run, [each for _, each in recorded])
    # A server records the limits that descriptions set, too; where descriptions differ, each policy has its own.
    changes = [
        change
        for change in run.changes
        if not (change.isStart and described.get((change.entity, change.name)) == change.value)
    ]
    decisive = [index for index, (_, policy) in enumerate(recorded) if not policy.isShadow]
    for index, (name, policy) in enumerate(recorded):
        candidate = evolve(known[run.policyDescriptions[index]], label=f"{RECORDED}{name}")
        retained = [each for each in decisive if each != index]
        yield _checked(Trial(candidate, run, changes, [index], retained, hasSay=not policy.isShadow, isRecorded=True))


def _rebuilt(run: Run, known: dict[str, Candidate]) -> _Policies:
    """
    The run's policies, built from their descriptions.

    @param known: descriptions resolved before; finding plug-ins takes longer than building them.
    """
    try:
        for description in run.policyDescriptions:
            if description not in known:
                known[description] = resolveCandidate(description)
        return [
            (name, _build(known[description], run))
            for name, description in zip(run.policyNames, run.policyDescriptions, strict=True)
        ]
    except PolicyError as error:
        raise PolicyError(
            f"a policy that was in force cannot be built again, and is needed to know its limits: {error}"
        ) from error


def _inOwnNames(run: Run, policies: Sequence[IQuotaPolicy]) -> Run:
    """
    C{run} with the names that C{policies} have for the limits that changed, whatever the server called them.
    """
    own = {name: ownName for policy in policies for name, ownName in limitsByName(policy).items()}
    return evolve(run, changes=[evolve(each, name=own.get(each.name, each.name)) for each in run.changes])


def _sameNamed(policyNames: Sequence[str], candidate: Candidate) -> Sequence[str]:
    return [name for name in policyNames if name.partition("-#")[0] == candidate.name]


def _build(candidate: Candidate, run: Run, atSeconds: float = 0.0) -> Any:
    # It reports the limits of the description, and then forwards nothing.
    clock = Clock()
    clock.rightNow = atSeconds
    offsetSeconds = run.wallOffsetUs / 1e6
    return candidate.build(
        clock,
        run.quotaWindows,
        run.quotaWindowSeconds,
        wallOffsetSeconds=offsetSeconds,
        limitShare=run.limitShare,
    )


def _limitsOf(policy: Any) -> _Described:
    return {(entity, name): value for entity, values in policy.limits.items() for name, value in values.items()}


def _checked(trial: Trial) -> Trial:
    """
    C{trial} with the limits that its policy knows; it has accepted all of them.
    """
    candidate, run = trial.candidate, trial.run
    policy = _build(candidate, run)
    known = [change for change in trial.changes if change.name in policy.limitNames]
    for change in known:
        try:
            policy.configure(change.entity, {change.name: change.value}, 0.0)
        except ValueError as error:
            raise PolicyError(
                f"{candidate.label!r} does not take a limit of boot {run.bootId} of broker {run.brokerId} ({error}); "
                "set another one in its description"
            ) from error
    isFollowing = IRequestLifecycle.providedBy(policy)
    forgets = IReplayable.providedBy(policy) and not isFollowing
    horizonSeconds = policy.horizonSeconds if forgets else None
    others = [each for each in run.changes if not (each.isStart or each.name in policy.limitNames)]
    return evolve(
        trial,
        changes=known,
        horizonSeconds=horizonSeconds,
        isFollowing=isFollowing,
        isShared=IShared.providedBy(policy),
        otherChanges=others,
    )

# -*- test-case-name: tests.unit.offline.simulate.test_trials -*-
"""
What each candidate is to be tried on, and under which limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from twisted.internet.task import Clock

from admission.control import AdmissionControl
from admission.interfaces import IQuotaPolicy, IReplayable, IRequestLifecycle, QuotaEntity
from admission.plugins import PolicyError

from .candidates import Candidate, resolveCandidate
from .live import LivePolicy
from .runs import LimitChange, Run

TrialKey = tuple[str, str, str]
"""The label of a candidate, a broker and a run."""

RECORDED = "recorded "
"""What the label of a policy in force begins with; its name follows."""

_Policies = Sequence[tuple[str, IQuotaPolicy]]
_Described = Mapping[tuple[QuotaEntity, str], float]


@frozen
class Trial:
    """
    One candidate in one run.  It can be pickled.

    A candidate takes the place of every policy with a say that has the name of
    its plug-in.  All others stay, with the delays and refusals that they are
    recorded with.

    The limits are those that would have been in force had the server been
    started with the candidate's description in place of the recorded one:

      - what the candidate's description sets is so, whatever was recorded for
        the same entity and limit,
      - what a recorded description has set is gone with that description,
      - every other limit, from the configuration or set while the server ran,
        holds when it was in force.

    A candidate has a say even if its description makes it a shadow, since it is
    to be judged.  Only the identity gate's trials of shadows have none.

    @ivar candidate: what is tried.
    @ivar run: where.
    @ivar changes: of the limits that the candidate knows.
    @ivar replaced: which of the run's policies it takes the place of.
    @ivar retained: which others have a say.
    @ivar hasSay: whether what it says is done.
    @ivar isRecorded: whether it is the policy in force.
    @ivar horizonSeconds: see L{IReplayable}; L{None} for all other policies, too,
        and for those that follow requests, since these may last longer.
    @ivar isFollowing: whether the policy is told when requests begin and end, so
        that what it says is approximate, see L{LivePolicy}.
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

    @property
    def key(self) -> TrialKey:
        """
        What it is found by.
        """
        return self.candidate.label, self.run.brokerId, self.run.bootId

    @property
    def decisive(self) -> Sequence[int]:
        """
        Which of the run's policies had a say.
        """
        return sorted({*self.retained, *(self.replaced if self.hasSay else ())})

    @property
    def mayBeAskedMore(self) -> bool:
        """
        Whether it is asked of requests that no policy was asked about.
        """
        return not self.isRecorded and bool(self.unlimited())

    @property
    def view(self) -> tuple[Any, ...]:
        """
        Trials of the same run with the same view see the same of a request.
        """
        replaced = tuple(self.replaced) if self.hasSay else ()
        return replaced, tuple(self.retained), tuple(self.decisive), self.mayBeAskedMore, self.isFollowing

    def begin(self, atUs: int) -> LivePolicy:
        """
        Build the policy as it was before the first request.

        @param atUs: the moment of that request, or one before it.
        @raise PolicyError: see L{Candidate.build}.
        """
        policy = _build(self.candidate, self.run, atUs / 1e6)
        return LivePolicy(policy, atUs, self.changes, self.run.maxDelayUs, hasSay=self.hasSay)

    def unlimited(self) -> Sequence[int]:
        """
        When there was no limit at all, so that no policy was asked anything:
        the moments when that began, ended, began again and so on.
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
    Every candidate in every run.  For the driver: what it returns can be
    pickled, and needs no plug-ins.

    @raise PolicyError: if a policy cannot be built, or refuses a recorded
        limit.
    """
    known: dict[str, Candidate] = {}
    trials = []
    for run in runs:
        recorded = _rebuilt(run, known)
        trials += [_tried(candidate, run, recorded) for candidate in candidates]
    return {trial.key: trial for trial in trials}


def planRecorded(runs: Collection[Run]) -> dict[TrialKey, Trial]:
    """
    Every policy that was in force, to be put to the test of the identity gate:
    built from its description, with the limits that it had.

    @raise PolicyError: if one cannot be built.
    """
    known: dict[str, Candidate] = {}
    trials = [trial for run in runs for trial in _recorded(run, _rebuilt(run, known), known)]
    return {trial.key: trial for trial in trials}


def _tried(candidate: Candidate, run: Run, recorded: _Policies) -> Trial:
    described = _limitsOf(AdmissionControl(recorded))
    own = _limitsOf(_build(candidate, run))
    changes = []
    for change in run.changes:
        place = (change.entity, change.name)
        if place in own:
            continue
        value = change.value
        if value is not None and described.get(place) == value:
            if change.isStart:
                continue
            # Taken back to what the description says, which here says nothing.
            value = None
        changes.append(LimitChange(change.atUs, change.entity, change.name, value, change.isStart))
    decisive = [index for index, (_, policy) in enumerate(recorded) if not policy.isShadow]
    replaced = [index for index in decisive if run.policyNames[index].partition("-#")[0] == candidate.name]
    retained = [index for index in decisive if index not in replaced]
    return _checked(Trial(candidate, run, changes, replaced, retained))


def _recorded(run: Run, recorded: _Policies, known: Mapping[str, Candidate]) -> Iterator[Trial]:
    described = _limitsOf(AdmissionControl(recorded))
    # A server tells of the limits that descriptions set, too; where descriptions differ, each policy has its own.
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
    The run's policies as their descriptions make them.

    @param known: descriptions that have been resolved before; to find plug-ins takes longer than to build them.
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


def _build(candidate: Candidate, run: Run, atSeconds: float = 0.0) -> Any:
    # It says when the limits of the description are set, and does not go on.
    clock = Clock()
    clock.rightNow = atSeconds
    return candidate.build(clock, run.quotaWindows, run.quotaWindowSeconds)


def _limitsOf(policy: Any) -> _Described:
    return {(entity, name): value for entity, values in policy.limits.items() for name, value in values.items()}


def _checked(trial: Trial) -> Trial:
    """
    C{trial} with the limits that its policy knows, all of which it has taken.
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
    return evolve(trial, changes=known, horizonSeconds=horizonSeconds, isFollowing=isFollowing)

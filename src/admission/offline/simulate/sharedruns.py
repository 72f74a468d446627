# -*- test-case-name: tests.offline.simulate.test_sharedruns -*-
"""
Which runs of servers enforced limits together, and what is known of their clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

from attrs import frozen

from admission.recording.sharedusage import SHARED, recordedShare

from .runs import LimitChange, Run

_PEER_US = 15_000_000
"""For so long a server that has ended is still counted by the others."""

_HEARD_US = 5_000_000
"""After so long a server that has begun is counted by them."""


@frozen
class SharedRuns:
    """
    Runs that enforced limits together, directly or through others, at the same time.

    @ivar runs: the first to begin comes first.
    @ivar counted: how many servers they counted, the largest of the numbers that held longest in each.
    @ivar isComplete: whether the servers that they counted are these.
    """

    runs: Sequence[Run]
    counted: int
    isComplete: bool


def startUs(run: Run) -> int:
    """
    When its server began, as far as is known, in microseconds since the epoch.
    """
    return min([run.beginUs, *(each.atUs + run.wallOffsetUs for each in run.elsewhere[:1])])


def findSharedRuns(runs: Iterable[Run]) -> list[SharedRuns]:
    """
    Find the runs that enforced limits together with others, in the recording or not.

    A recording does not say with whom, so that all runs that did so at one time are taken to have done it with each
    other.  Where they counted more servers or fewer, that is wrong.
    """
    groups: list[list[Run]] = []
    untilUs = 0
    for run in sorted(filter(_isSharing, runs), key=startUs):
        if not groups or startUs(run) > untilUs:
            groups.append([])
        groups[-1].append(run)
        untilUs = max(untilUs, _endUs(run))
    return [each for each in map(_judged, groups) if len(each.runs) > 1 or each.counted > 1]


def largestDifferenceSeconds(runs: Sequence[Run]) -> float | None:
    """
    By how much the clocks of runs disagree about when the same limit was set in all of them, at most.  A limit that is
    set at one is set at the others as soon as they hear of it.

    @return: L{None} if no limit was set in all of them.
    """
    moments = [_settings(run) for run in runs]
    differencesUs = [
        max(momentsUs) - min(momentsUs)
        for change in set.intersection(*map(set, moments))
        for momentsUs in zip(*(each[change] for each in moments), strict=False)
        if len({len(each[change]) for each in moments}) == 1
    ]
    return max(differencesUs) / 1e6 if differencesUs else None


def _settings(run: Run) -> dict[tuple[object, ...], list[int]]:
    """
    When each limit was set while it ran, in microseconds since the epoch.
    """
    settings: dict[tuple[object, ...], list[int]] = {}
    for each in run.changes:
        if not each.isStart:
            settings.setdefault((each.entity, each.name, each.value), []).append(each.atUs + run.wallOffsetUs)
    return settings


def _judged(runs: Sequence[Run]) -> SharedRuns:
    counts = [_counts(run) for run in runs]
    usual = [each.most_common(1)[0][0] for each in counts]
    isComplete = all(
        often <= _together(run, runs) and _mostAtOnce(run, runs) <= max(counted)
        for run, counted, often in zip(runs, counts, usual, strict=True)
    )
    return SharedRuns(tuple(runs), max(usual), isComplete)


def _isSharing(run: Run) -> bool:
    return any(each.name == SHARED for each in run.elsewhere)


def _endUs(run: Run) -> int:
    return run.horizonUs + run.wallOffsetUs


def _counts(run: Run) -> Counter[int]:
    """
    For how long it counted how many servers, itself included, in microseconds.
    """
    counts: Counter[int] = Counter()
    for (atUs, count), (nextUs, _) in pairwise([*_counted(run.elsewhere), (max(run.horizonUs, 0), 0)]):
        counts[count] += max(nextUs - atUs, 0)
    return counts


def _counted(elsewhere: Iterable[LimitChange]) -> Iterator[tuple[int, int]]:
    for each in elsewhere:
        share = recordedShare(each.name, each.value or 1.0)
        if share is not None:
            yield each.atUs, share[1]


def _together(run: Run, runs: Collection[Run]) -> int:
    """
    How many were there at any time of its own.
    """
    return sum(startUs(each) <= _endUs(run) and startUs(run) <= _endUs(each) + _PEER_US for each in runs)


def _mostAtOnce(run: Run, runs: Collection[Run]) -> int:
    """
    How many were there at one time of its own, once they had heard of each other.
    """
    moments = [max(startUs(each), startUs(run)) + _HEARD_US for each in runs]
    return max(
        (
            sum(startUs(each) + _HEARD_US <= atUs <= _endUs(each) for each in runs)
            for atUs in moments
            if atUs <= _endUs(run)
        ),
        default=1,
    )

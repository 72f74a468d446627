"""Tests for L{admission.offline.simulate.sharedruns}."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import DEFAULT, QuotaEntity
from admission.offline.simulate.runs import LimitChange, Run
from admission.offline.simulate.sharedruns import SharedRuns, findSharedRuns, largestDifferenceSeconds
from admission.recording.sharedusage import ALONE, SHARED

SECOND = 1_000_000
ALL = QuotaEntity(user=DEFAULT)


def run(name: str, begin: int, end: int, *counts: tuple[int, int], beganBefore: int = 1000) -> Run:
    """
    A run of a server that has counted servers.

    @param begin: when it began, in seconds, likewise C{end}.
    @param counts: since when, in seconds, how many; a negative number while it did not hear them.
    @param beganBefore: what its own clock said then, in seconds.
    """
    shiftUs = (begin - beganBefore) * SECOND
    elsewhere = [
        LimitChange(at * SECOND - shiftUs, ALL, SHARED if count > 0 else ALONE, float(abs(count)))
        for at, count in counts
    ]
    return Run(
        "1",
        name,
        end * SECOND - shiftUs,
        wallOffsetUs=shiftUs,
        elsewhere=elsewhere,
        beginUs=(begin + 1) * SECOND,
        endUs=(end - 1) * SECOND,
    )


class SharedRunsTests(SynchronousTestCase):
    """Which runs enforced limits together."""

    def found(self, *runs: Run) -> list[tuple[str, int, bool]]:
        """The names of the runs, how many servers they counted, and whether these are all."""
        groups: Sequence[SharedRuns] = findSharedRuns(runs)
        return [(" ".join(run.bootId for run in each.runs), each.counted, each.isComplete) for each in groups]

    def test_atOneTime(self) -> None:
        """Runs shared limits if they did so at one time, whatever their own clocks say, directly or through others."""
        first = run("a", 0, 100, (0, -1), (1, 2))
        second = run("b", 3, 160, (3, -2), (4, 2), beganBefore=5)
        third = run("c", 110, 300, (111, 2))
        self.assertEqual(self.found(third, first, second), [("a b c", 2, True)])
        self.assertEqual(self.found(third, first), [("a", 2, False), ("c", 2, False)])

    def test_others(self) -> None:
        """Runs that shared no limits, or with nobody, are of no group."""
        lost = run("b", 0, 100, (0, -2))
        self.assertEqual(self.found(run("a", 0, 100), lost, run("c", 0, 100, (0, 1))), [])

    def test_incomplete(self) -> None:
        """Where they counted more servers for most of the time, or fewer at any, these are not just they."""
        runs = [run("a", 0, 100, (0, 2), (1, 3)), run("b", 0, 100, (0, 3))]
        self.assertEqual(self.found(*runs), [("a b", 3, False)])
        others = [run(name, 0, 100, (0, 2)) for name in "abcd"]
        self.assertEqual(self.found(*others), [("a b c d", 2, False)])

    def test_restarted(self) -> None:
        """One that is restarted is counted twice for a while, and one that has no more requests is still there."""
        stays = run("a", 0, 300, (0, -1), (1, 2), (101, 3), (116, 2))
        self.assertEqual(
            self.found(stays, run("b", 0, 40, (1, 2)), run("c", 100, 290, (101, 3), (116, 2))), [("a b c", 2, True)]
        )

    def test_clocks(self) -> None:
        """How far clocks differ shows where the same limit was set in all runs, and is not known otherwise."""
        first, second = run("a", 0, 100, (0, 2)), run("b", 0, 100, (0, 2), beganBefore=7)
        self.assertIsNone(largestDifferenceSeconds([first, second]))

        def setting(at: float, of: Run, value: float | None = 5.0) -> LimitChange:
            return LimitChange(round(at * SECOND) - of.wallOffsetUs, ALL, "received_byte_rate", value)

        first = evolve(first, changes=[setting(10, first), setting(20, first), setting(30, first, None)])
        second = evolve(second, changes=[setting(10.25, second), setting(19.5, second), setting(90, second, 7.0)])
        self.assertEqual(largestDifferenceSeconds([first, second]), 0.5)
        # It is not known which of them are the same.
        again = evolve(second, changes=[*second.changes, setting(60, second)])
        self.assertIsNone(largestDifferenceSeconds([first, again]))

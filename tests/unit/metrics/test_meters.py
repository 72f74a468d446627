"""
L{admission.metrics.meters}.
"""

from __future__ import annotations

from attrs import define
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.metrics.meters import MeterTable


@define(eq=False)
class Used:
    """
    Idle from C{untilSeconds} on.
    """

    untilSeconds: float

    def isIdle(self, now: float) -> bool:
        """
        Whether the time has come.
        """
        return now >= self.untilSeconds


class MeterTableTests(SynchronousTestCase):
    """
    L{MeterTable}.
    """

    def setUp(self) -> None:
        """
        Make a table for three.
        """
        self.clock = Clock()
        self.table: MeterTable[str, Used] = MeterTable(3)

    def obtain(self, key: str, sharedKey: str | None = "all", seconds: float = 10.0) -> Used:
        """
        The meter of C{key}; a new one is idle after so many seconds.
        """
        return self.table.obtain(key, lambda now: Used(now + seconds), self.clock.seconds(), sharedKey)

    def test_oneForEach(self) -> None:
        """
        Every key has a meter of its own, made once, and found once it is made.
        """
        self.assertIs(self.table.find("a", "all"), None)
        meter = self.obtain("a")
        self.assertIs(self.obtain("a"), meter)
        self.assertIs(self.table.find("a", "all"), meter)
        self.assertIsNot(self.obtain("b"), meter)
        self.assertEqual((len(self.table), [key for key, _ in self.table.items()]), (2, ["a", "b"]))

    def test_overflow(self) -> None:
        """
        Once there is no room, newcomers share one meter for each shared key,
        and those who came before keep theirs.
        """
        before = [self.obtain(key) for key in "abc"]
        self.assertIs(self.table.find("d", "all"), None)
        shared = self.obtain("d")
        self.assertIs(self.obtain("e"), shared)
        self.assertIs(self.table.find("f", "all"), shared)
        self.assertIsNot(self.obtain("f", "others"), shared)
        self.assertEqual([self.obtain(key) for key in "abc"], before)
        self.assertEqual((len(self.table), set(self.table.shared), self.table.overflows), (3, {"all", "others"}, 3))

    def test_alwaysOne(self) -> None:
        """
        Who needs not share has a meter even when there is no room, and takes
        nobody's room.
        """
        self.obtain("a", None)
        self.obtain("b", None, seconds=1.0)
        for key in "cde":
            self.obtain(key)
        meter = self.obtain("f", None)
        self.assertIs(self.obtain("f"), meter)
        self.assertEqual((len(self.table), self.table.overflows, self.table.find("g")), (6, 0, None))
        self.clock.advance(1.0)
        self.table.sweep(self.clock.seconds())
        self.table.discard("a")
        self.obtain("g")
        self.assertEqual((len(self.table), set(self.table.shared)), (4, {"all"}))
        self.table.discard("c")
        self.obtain("g")
        self.assertEqual((len(self.table), self.table.overflows), (4, 1))

    def test_sweep(self) -> None:
        """
        Sweeping drops the idle and keeps the others, shared ones too.
        """
        self.obtain("a", seconds=1.0)
        kept = self.obtain("b", seconds=5.0)
        self.obtain("c", seconds=1.0)
        self.obtain("d", seconds=1.0)
        self.obtain("e", "others", seconds=5.0)
        self.clock.advance(1.0)
        sweeps = self.table.sweeps
        self.table.sweep(self.clock.seconds())
        self.assertEqual((list(self.table.items()), set(self.table.shared)), ([("b", kept)], {"others"}))
        self.assertEqual(self.table.sweeps, sweeps + 1)

    def test_sweepsForRoom(self) -> None:
        """
        A newcomer who finds no room has the idle ones dropped first.
        """
        for key in "abc":
            self.obtain(key, seconds=1.0)
        self.clock.advance(1.0)
        self.assertIs(self.obtain("d"), self.table.find("d"))
        self.assertEqual((len(self.table), self.table.overflows), (1, 0))

    def test_sweepingIsAmortised(self) -> None:
        """
        A flood of newcomers looks for room once for as many of them as there
        are meters, and not each time.
        """
        self.table.maxMeters = 100
        for number in range(1100):
            self.obtain(str(number))
        self.assertEqual((len(self.table), self.table.overflows, self.table.sweeps), (100, 1000, 10))

    def test_discard(self) -> None:
        """
        What is discarded is gone, and what was not there is no mistake.
        """
        for key in "abcd":
            self.obtain(key)
        self.table.discard("a")
        self.table.discard("z")
        self.assertEqual(([key for key, _ in self.table.items()], set(self.table.shared)), (["b", "c"], {"all"}))
        self.table.discardShared("all")
        self.table.discardShared("none")
        self.assertEqual(set(self.table.shared), set())

    def test_needsRoom(self) -> None:
        """
        A table without room for anybody is a mistake.
        """
        self.assertRaises(ValueError, MeterTable, 0)

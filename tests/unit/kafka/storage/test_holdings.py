"""Tests for L{admission.kafka.storage.holdings}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.storage.holdings import Holdings

CAPACITY = 1000


class HoldingsTests(SynchronousTestCase):
    """L{Holdings} leaves something to everybody."""

    def setUp(self) -> None:
        self.holdings = Holdings()

    def fill(self, *holders: str) -> None:
        """Have some take all that they can get, one after another and one at a time."""
        while sum(self.take(each) for each in holders):
            pass

    def take(self, holder: str) -> bool:
        isAllowed = self.holdings.allow(holder, 1, CAPACITY)
        if isAllowed:
            self.holdings.add(holder, 1)
        return isAllowed

    def test_alone(self) -> None:
        """One that is alone has half."""
        self.fill("a")
        self.assertEqual(list(self.holdings), [("a", 500)])

    def test_several(self) -> None:
        """Several that want all have as much each as is left."""
        holders = [str(number) for number in range(9)]
        self.fill(*holders)
        self.assertEqual([self.holdings.of(each) for each in holders], [100] * 9)
        self.assertEqual(self.holdings.total, 900)
        self.assertTrue(self.holdings.allow("newcomer", 50, CAPACITY))
        self.assertFalse(self.holdings.allow("newcomer", 51, CAPACITY))

    def test_one(self) -> None:
        """What there is only one of can be had."""
        self.assertTrue(self.holdings.allow("a", 1, 1))
        self.holdings.add("a", 1)
        self.assertFalse(self.holdings.allow("b", 1, 1))

    def test_newcomer(self) -> None:
        """While one that has much can get no more, another can, and as soon as there is room both can."""
        self.fill("a")
        self.fill("b")
        self.assertEqual(self.holdings.of("b"), 250)
        self.holdings.add("a", -300)
        self.assertEqual((self.take("a"), self.take("b")), (True, True))

    def test_noMore(self) -> None:
        """A holder that wants no more than it has may have it, however much that is."""
        self.holdings.add("a", 2 * CAPACITY)
        self.assertEqual([self.holdings.allow("a", each, CAPACITY) for each in (0, -1, 1)], [True, True, False])

    def test_mean(self) -> None:
        """Of several that have more than there is, one at least has more than the mean."""
        for holder, held in (("a", 10), ("b", 3), ("c", 3)):
            self.holdings.add(holder, held)
        self.assertEqual([self.holdings.isAboveMean(each, 15) for each in "abcd"], [True, False, False, False])

    def test_gone(self) -> None:
        """Nothing is kept of a holder that has nothing."""
        self.holdings.add("a", 3)
        self.holdings.add("a", -3)
        self.assertEqual((list(self.holdings), self.holdings.total), ([], 0))

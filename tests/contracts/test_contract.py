"""L{admission.testing.contract}."""

from __future__ import annotations

from admission.testing.contract import Contract
from tests.kit.seededfaults import SeededFaultsTestCase


class Example(Contract):
    """A contract of three rules."""

    value = 0

    def test_isEven(self) -> None:
        """A number is even, since odd ones are odd."""
        self.assertEqual(self.value % 2, 0)

    def test_divides(self) -> None:
        """A number divides a hundred."""
        self.assertEqual(100 % self.value, 0)

    def test_unexplained(self) -> None:
        self.assertGreater(self.value, 0)


class ContractTests(SeededFaultsTestCase):
    """L{Contract}."""

    def test_passes(self) -> None:
        """An implementation that keeps all rules passes."""
        self.assertSound(Example, value=2)

    def test_failure(self) -> None:
        """A failure keeps its message and goes on to say the rule, in one line."""
        outcome = self.outcome(Example, "test_isEven", value=5)
        self.assertIn("1 != 0\nExample.test_isEven: A number is even, since odd ones are odd.", outcome)

    def test_exception(self) -> None:
        """Any other exception stays what it is, with the rule beside it."""
        outcome = self.outcome(Example, "test_divides", value=0)
        self.assertIn("ZeroDivisionError", outcome)
        self.assertIn("Example.test_divides: A number divides a hundred.", outcome)

    def test_withoutRule(self) -> None:
        """A test that states no rule fails as it is."""
        self.assertIn("0 not greater than 0", self.outcome(Example, "test_unexplained", value=0))

    def test_unnoticed(self) -> None:
        """A contract that lets a fault pass is itself found wanting."""
        self.assertRaises(self.failureException, self.assertBroken, Example, "test_isEven", "even", value=2)
        self.assertRaises(self.failureException, self.assertSound, Example, value=5)

"""Whether contracts notice what is wrong with a policy."""

from __future__ import annotations

import unittest
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from admission.testing.contract import Contract


def testsOf(case: type[Any]) -> list[str]:
    """The names of the tests of a class."""
    return [name for name in dir(case) if name.startswith("test_")]


class SeededFaultsTestCase(SynchronousTestCase):
    """Runs contracts as a policy's author would, and reads the outcome."""

    def outcome(self, contract: type[Contract], test: str, **hooks: Any) -> str:
        """
        What one test says of what C{hooks} build: nothing if it passes, and
        otherwise all that a runner would show.

        @param hooks: what the contract wants to be told, by name: functions
            without C{self}, or plain values.
        """
        methods = {name: staticmethod(hook) if callable(hook) else hook for name, hook in hooks.items()}
        bases = (contract,) if issubclass(contract, SynchronousTestCase) else (contract, SynchronousTestCase)
        result = unittest.TestResult()
        type(contract.__name__, bases, methods)(test).run(result)
        self.flushLoggedErrors()
        return "\n".join(text for _, text in (*result.failures, *result.errors))

    def assertSound(self, contract: type[Contract], **hooks: Any) -> None:
        """What C{hooks} build passes all tests."""
        broken = {test: self.outcome(contract, test, **hooks) for test in testsOf(contract)}
        self.assertEqual({test: text for test, text in broken.items() if text}, {})

    def assertBroken(self, contract: type[Contract], test: str, fault: str, **hooks: Any) -> None:
        """
        What C{hooks} build does not pass C{test}, which says what the rule is.

        @param fault: what is wrong, for the message.
        """
        outcome = self.outcome(contract, test, **hooks)
        rule = " ".join(str(getattr(contract, test).__doc__).split())
        self.assertIn(f"{test}: {rule}", outcome, f"{fault} passes {test}")

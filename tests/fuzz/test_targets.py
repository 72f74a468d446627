"""The targets of the fuzzer, without the fuzzer: they hold for their seeds and for the same mutations in every run."""

from __future__ import annotations

from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from .target import NEED_ARROW, checkMutations, targetNames


class TargetTests(SynchronousTestCase):
    """What a target promises holds for inputs that are easy to come by; L{tests.offline} has the others."""


def _test(name: str) -> Callable[[TargetTests], None]:
    def test(self: TargetTests) -> None:
        checkMutations(name)

    test.__doc__ = f"The target {name} holds for its seeds and their mutations."
    return test


for _name in sorted(set(targetNames()) - NEED_ARROW):
    setattr(TargetTests, f"test_{_name}", _test(_name))

"""The fuzzer's targets that need pyarrow, without the fuzzer."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz.target import NEED_ARROW, checkMutations


class TargetTests(SynchronousTestCase):
    """What a target promises holds for inputs that are easy to come by."""

    def test_all(self) -> None:
        """Each target holds for its seeds and their mutations."""
        for name in sorted(NEED_ARROW):
            checkMutations(name)

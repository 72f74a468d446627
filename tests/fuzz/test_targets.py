"""The targets of the fuzzer, without the fuzzer: they hold for their seeds and for the same mutations in every run."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from .mutations import mutations
from .target import loadTarget, targetNames

_MUTATIONS = 200
_MUTATIONS_OF_SEED = 4
"""How many inputs are made for a target, and for each of its seeds, at least."""


class TargetTests(SynchronousTestCase):
    """What a target promises holds for inputs that are easy to come by."""


def _test(name: str) -> Callable[[TargetTests], None]:
    def test(self: TargetTests) -> None:
        target = loadTarget(name)
        count = max(_MUTATIONS, _MUTATIONS_OF_SEED * len(target.seeds))
        for data in [b"", *target.seeds, *mutations(target.seeds, target.tokens, count, Random(name))]:
            try:
                target.check(data[: target.maxBytes])
            except Exception as error:
                raise AssertionError(f"{name} with the input {data!r}: {error!r}") from error

    test.__doc__ = f"The target {name} holds for its seeds and their mutations."
    return test


for _name in targetNames():
    setattr(TargetTests, f"test_{_name}", _test(_name))

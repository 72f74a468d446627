"""What a target is, and which there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules
from random import Random
from typing import Any, Final

from attrs import frozen

from . import targets
from .mutations import mutations

DEFAULT_MAX_BYTES: Final = 4096

NEED_ARROW: Final = frozenset({"recordings"})
"""The targets that need pyarrow, which the other fast tests do without."""

_MUTATIONS = 200
_MUTATIONS_OF_SEED = 4
"""How many inputs are made for a target, and for each of its seeds, at least."""


@frozen
class Target:
    """
    Something that parses.

    @ivar name: of its module.
    @ivar check: parses an input, and raises if that breaks what the docstring of the module says.
    @ivar seeds: inputs to begin with.
    @ivar tokens: what has a meaning in inputs and is hard to guess.
    @ivar maxBytes: how long inputs may become.
    """

    name: str
    check: Callable[[bytes], None]
    seeds: Sequence[bytes]
    tokens: Sequence[bytes]
    maxBytes: int


def targetNames() -> list[str]:
    """The names of all targets."""
    return sorted(module.name for module in iter_modules(targets.__path__))


def loadTarget(name: str) -> Target:
    """Import a target."""
    module: Any = import_module(f"{targets.__name__}.{name}")
    return Target(
        name,
        module.check,
        list(dict.fromkeys(module.seeds())),
        getattr(module, "TOKENS", ()),
        getattr(module, "MAX_BYTES", DEFAULT_MAX_BYTES),
    )


def checkMutations(name: str) -> None:
    """
    Check a target with its seeds and with mutations of them that are the same in every run.

    @raise AssertionError: if an input breaks what the target promises.
    """
    target = loadTarget(name)
    count = max(_MUTATIONS, _MUTATIONS_OF_SEED * len(target.seeds))
    for data in [b"", *target.seeds, *mutations(target.seeds, target.tokens, count, Random(name))]:
        try:
            target.check(data[: target.maxBytes])
        except Exception as error:
            raise AssertionError(f"{name} with the input {data!r}: {error!r}") from error

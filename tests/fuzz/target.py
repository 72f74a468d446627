"""What a target is, and which there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

from attrs import frozen

from . import targets

DEFAULT_MAX_BYTES: Final = 4096


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

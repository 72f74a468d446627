# -*- test-case-name: tests.unit.profiling.test_profiling -*-
"""
What one object takes, and what it refers to, in bounded time and without
changing it.

Pympler's C{asizeof} asks each instance for its C{__dict__}, which makes one
where Python had spared it, for good: the process would grow by being looked
at.  The garbage collector knows the same without asking.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from itertools import islice
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

LARGE = 5_000
"""A container with more in it is sampled: so many of its elements stand for all."""

ATOMIC = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, CodeType, FrameType)
"""Objects that own nothing: what they refer to is somebody else's."""

_ALIGNMENT_BYTES = 16
_POINTER_BYTES = 8


class Referents(NamedTuple):
    """
    What an object refers to.

    @ivar objects: all, or a sample of them.
    @ivar weight: for how many each stands.
    """

    objects: list[Any]
    weight: float


def referentsOf(each: Any) -> Referents:
    """
    What C{each} refers to, its class included.
    """
    kind = type(each)
    if kind is list or kind is tuple:
        count = len(each)
        if count > LARGE:
            return _sampled(each[:: -(-count // LARGE)], count)
    elif kind is dict:
        count = len(each)
        if count > LARGE:
            sample = [part for item in islice(each.items(), LARGE // 2) for part in item]
            return _sampled(sample, 2 * count)
    elif kind is set or kind is frozenset or kind is deque:
        count = len(each)
        if count > LARGE:
            return _sampled(list(islice(each, LARGE)), count)
    return Referents(gc.get_referents(each), 1.0)


def flatBytes(each: Any, referents: Referents) -> int:
    """
    What C{each} takes itself, as the allocator rounds it.

    @param referents: what L{referentsOf} says of it.
    """
    try:
        sizeBytes = sys.getsizeof(each)
    except Exception:
        # Classes may say what they like, or nothing.
        return 0
    objects = referents.objects
    if type(each).__dictoffset__ and objects and not any(type(part) is dict for part in objects):
        # Python keeps the attributes in an array that it does not count.
        sizeBytes += _POINTER_BYTES * len(objects)
    return (sizeBytes + _ALIGNMENT_BYTES - 1) & -_ALIGNMENT_BYTES


def nameOf(kind: type) -> str:
    """
    What to call a class in a report.
    """
    module, name = str(kind.__module__), str(kind.__qualname__)
    return name if module == "builtins" else f"{module}.{name}"


def _sampled(sample: Any, count: int) -> Referents:
    return Referents(list(sample), count / len(sample))

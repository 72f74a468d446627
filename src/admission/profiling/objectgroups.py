# -*- test-case-name: tests.unit.profiling.test_objectgroups -*-
"""
The server's description of its objects for the profiler: which belong together, and where the memory of one ends. Also
the size and references of an object, in bounded time and without changing it.

Pympler's C{asizeof} asks each instance for its C{__dict__}, which creates one where Python had spared it, for good: the
process would grow by being measured.  The garbage collector finds the references without that.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from attrs import define, field, frozen
from zope.interface.declarations import Implements
from zope.interface.interface import InterfaceClass

LARGE = 5_000
"""A container with more elements is sampled: this many of them stand for all."""

ATOMIC = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, CodeType, FrameType)
"""Objects that own nothing that they refer to."""

_ALIGNMENT_BYTES = 16
_POINTER_BYTES = 8


@frozen
class Group:
    """
    Objects of a kind, found wherever they are, even where nothing should refer to them any more.

    @ivar name: their name in reports.
    @ivar holds: whether the instances of a class belong to the group.
    @ivar purposes: the purposes under which the ledger counts their memory, if any.
    """

    name: str
    holds: Callable[[type], bool]
    purposes: Sequence[str] = ()


@define(eq=False)
class Grouping:
    """
    The groups of a server.  A class belongs to the first that holds it.

    @ivar groups: the groups.
    @ivar isShared: whether the instances of a class belong to no single object,
        such as a factory to which all its connections refer.
    """

    groups: Sequence[Group]
    isShared: Callable[[type], bool] = field(default=lambda kind: False)
    _places: dict[type, int] = field(factory=dict, init=False)
    _boundaries: dict[type, bool] = field(factory=dict, init=False)

    def placeOf(self, kind: type) -> int:
        """
        The index in C{groups} of the group that holds C{kind}; -1 if none does.
        """
        place = self._places.get(kind)
        if place is None:
            place = next((place for place, group in enumerate(self.groups) if group.holds(kind)), -1)
            self._places[kind] = place
        return place

    def isBoundary(self, kind: type) -> bool:
        """
        Whether the memory of an object ends where it refers to a C{kind}.
        """
        boundary = self._boundaries.get(kind)
        if boundary is None:
            boundary = issubclass(kind, ATOMIC) or self.placeOf(kind) >= 0 or self.isShared(kind)
            self._boundaries[kind] = boundary
        return boundary

    def forget(self) -> None:
        """
        Drop all references to classes.
        """
        self._places.clear()
        self._boundaries.clear()


def subclassOf(*classes: type) -> Callable[[type], bool]:
    """
    For L{Group.holds}: matches subclasses of these.
    """

    def holds(kind: type) -> bool:
        return issubclass(kind, classes)

    return holds


def implementing(*interfaces: InterfaceClass) -> Callable[[type], bool]:
    """
    For L{Group.holds}: matches classes that are declared to implement one of these.
    """

    def holds(kind: type) -> bool:
        # implementedBy would add a declaration to a class that has none.
        declared = getattr(kind, "__implemented__", None)
        return isinstance(declared, Implements) and any(declared.isOrExtends(each) for each in interfaces)

    return holds


class Referents(NamedTuple):
    """
    The objects that an object refers to.

    @ivar objects: all of them, or a sample.
    @ivar weight: how many objects each one stands for.
    """

    objects: list[Any]
    weight: float


def referentsOf(each: Any) -> Referents:
    """
    Find what C{each} refers to, its class included.
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
    The size of C{each} without what it refers to, rounded as the allocator does.

    @param referents: the result of L{referentsOf} for it.
    """
    try:
        sizeBytes = sys.getsizeof(each)
    except Exception:
        # A class can define __sizeof__.
        return 0
    objects = referents.objects
    if type(each).__dictoffset__ and objects and not any(type(part) is dict for part in objects):
        # Python keeps the attributes in an array that getsizeof does not count.
        sizeBytes += _POINTER_BYTES * len(objects)
    return (sizeBytes + _ALIGNMENT_BYTES - 1) & -_ALIGNMENT_BYTES


def nameOf(kind: type) -> str:
    module, name = str(kind.__module__), str(kind.__qualname__)
    return name if module == "builtins" else f"{module}.{name}"


def _sampled(sample: Any, count: int) -> Referents:
    return Referents(list(sample), count / len(sample))

# -*- test-case-name: tests.unit.profiling.test_objectgroups -*-
"""
The server's description of its objects for the profiler: which belong together, and where the memory of one ends. Also
the size and references of an object, in bounded time and without changing it.

Every class of the process comes by here, so nothing is asked of a class or an object that code of its own could answer:
a metaclass may have its own attributes, hash and comparison, and a class its own C{__class__}.

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

UNNAMED = "a class without a name"

_MODULE_OF, _NAME_OF, _ORDER_OF, _NAMESPACE_OF, _DICT_OFFSET_OF = (
    type.__dict__[each].__get__ for each in ("__module__", "__qualname__", "__mro__", "__dict__", "__dictoffset__")
)

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
    # By the ids of classes, with the classes, since not all can be hashed.
    _places: dict[int, tuple[type, int]] = field(factory=dict, init=False)
    _boundaries: dict[int, tuple[type, bool]] = field(factory=dict, init=False)

    def placeOf(self, kind: type) -> int:
        """
        The index in C{groups} of the group that holds C{kind}; -1 if none does.
        """
        found = self._places.get(id(kind))
        if found is None:
            place = next((place for place, group in enumerate(self.groups) if group.holds(kind)), -1)
            found = self._places[id(kind)] = kind, place
        return found[1]

    def isBoundary(self, kind: type) -> bool:
        """
        Whether the memory of an object ends where it refers to a C{kind}.
        """
        found = self._boundaries.get(id(kind))
        if found is None:
            boundary = issubclass(kind, ATOMIC) or self.placeOf(kind) >= 0 or self.isShared(kind)
            found = self._boundaries[id(kind)] = kind, boundary
        return found[1]

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
        # Not issubclass, which an abstract class has answered by code that asks the other one.
        return any(type.__subclasscheck__(each, kind) for each in classes)

    return holds


def implementing(*interfaces: InterfaceClass) -> Callable[[type], bool]:
    """
    For L{Group.holds}: matches classes that are declared to implement one of these.
    """

    def holds(kind: type) -> bool:
        # implementedBy would add a declaration to a class that has none.
        for each in _ORDER_OF(kind):
            declared = _NAMESPACE_OF(each).get("__implemented__")
            if declared is not None:
                return type(declared) is Implements and any(declared.isOrExtends(each) for each in interfaces)
        return False

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


def flatBytes(each: Any, referents: Referents | None = None) -> int:
    """
    The size of C{each} without what it refers to, rounded as the allocator does.

    @param referents: the result of L{referentsOf} for it, if it can refer to anything.
    """
    try:
        sizeBytes = sys.getsizeof(each)
    except (Exception, SystemExit):
        # A class can define __sizeof__.
        return 0
    objects = None if referents is None else referents.objects
    if objects and _DICT_OFFSET_OF(type(each)) and not any(type(part) is dict for part in objects):
        # Python keeps the attributes in an array that getsizeof does not count.
        sizeBytes += _POINTER_BYTES * len(objects)
    return (sizeBytes + _ALIGNMENT_BYTES - 1) & -_ALIGNMENT_BYTES


def nameOf(kind: type) -> str:
    """
    The full name of a class, or L{UNNAMED}.
    """
    try:
        module, name = _MODULE_OF(kind), _NAME_OF(kind)
    except AttributeError:
        # It was deleted.
        return UNNAMED
    if type(module) is not str or type(name) is not str:
        return UNNAMED
    return name if module == "builtins" else f"{module}.{name}"


def _sampled(sample: Any, count: int) -> Referents:
    return Referents(list(sample), count / len(sample))

# -*- test-case-name: tests.unit.profiling.test_profiling -*-
"""
What a server tells the profiler of its objects: which belong together, and
where the memory of one of them ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, field, frozen
from zope.interface.declarations import Implements
from zope.interface.interface import InterfaceClass

from .referents import ATOMIC


@frozen
class Group:
    """
    Objects of a kind, found wherever they are, also where nobody should hold
    them any more.

    @ivar name: what they are, for people.
    @ivar holds: whether the instances of a class are among them.
    @ivar purposes: what the ledger counts their memory as, if it does.
    """

    name: str
    holds: Callable[[type], bool]
    purposes: Sequence[str] = ()


@define(eq=False)
class Grouping:
    """
    The groups of a server.  A class belongs to the first that holds it.

    @ivar groups: the groups.
    @ivar isShared: whether the instances of a class are nobody's in
        particular, such as a factory to which all its connections refer.
    """

    groups: Sequence[Group]
    isShared: Callable[[type], bool] = field(default=lambda kind: False)
    _places: dict[type, int] = field(factory=dict, init=False)
    _boundaries: dict[type, bool] = field(factory=dict, init=False)

    def placeOf(self, kind: type) -> int:
        """
        The place among C{groups} of the one that holds C{kind}; -1 if none does.
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
        Keep no class alive.
        """
        self._places.clear()
        self._boundaries.clear()


def subclassOf(*classes: type) -> Callable[[type], bool]:
    """
    For L{Group.holds}: any subclass of these.
    """

    def holds(kind: type) -> bool:
        return issubclass(kind, classes)

    return holds


def implementing(*interfaces: InterfaceClass) -> Callable[[type], bool]:
    """
    For L{Group.holds}: any class that has been declared to implement one of
    these.
    """

    def holds(kind: type) -> bool:
        # Asked whether it implements something, a class of which nobody has declared anything gets a declaration.
        declared = getattr(kind, "__implemented__", None)
        return isinstance(declared, Implements) and any(declared.isOrExtends(each) for each in interfaces)

    return holds

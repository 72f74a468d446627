"""Tests for L{admission.profiling.objectgroups}."""

from __future__ import annotations

from abc import ABC
from collections import deque
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from admission.profiling.census import Census, Sizing
from admission.profiling.objectgroups import (
    LARGE,
    UNNAMED,
    Group,
    Grouping,
    flatBytes,
    implementing,
    nameOf,
    referentsOf,
    subclassOf,
)
from tests.unit.profiling.profiledthings import THINGS, Derived, IThing, Thing


def refuse(*ignored: object) -> Any:
    """Answer nothing."""
    raise RuntimeError("asked")


class Refusing(type):
    """A metaclass that answers no question."""

    __module__ = property(refuse)  # type: ignore[assignment]
    __dictoffset__ = property(refuse)  # type: ignore[assignment]
    __mro__ = property(refuse)  # type: ignore[assignment]
    __getattribute__ = __getattr__ = __hash__ = __eq__ = __instancecheck__ = refuse  # type: ignore[assignment]
    __subclasscheck__ = __repr__ = __bool__ = __len__ = refuse  # type: ignore[assignment]


class Secretive(metaclass=Refusing):
    """A class of which nothing can be asked, nor of its instances."""

    held: Any = None
    __class__ = property(refuse)  # type: ignore[assignment]
    __hash__ = __eq__ = __len__ = __bool__ = __repr__ = __sizeof__ = refuse  # type: ignore[assignment]


class SecretiveThing(Thing, metaclass=Refusing):
    """One that inherits what it implements."""


class Abstract(ABC):  # noqa: B024
    """
    A class that has code to decide which classes are its subclasses.

    @cvar isAsked: whether a test looks at it: others ask all abstract classes there are, when they register one.
    """

    isAsked = False

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return refuse() if cls.isAsked else NotImplemented


class GroupsTests(SynchronousTestCase):
    """Which objects belong together."""

    def test_implementing(self) -> None:
        """What a class implements is found, inherited or not, and nothing is declared of a class by asking."""

        class Plain:
            pass

        holds = implementing(IThing)
        self.assertEqual([holds(each) for each in (Thing, Derived, Plain, int)], [True, True, False, False])
        self.assertNotIn("__implemented__", vars(Plain))
        self.assertNotIn("__implemented__", vars(Derived))

    def test_firstWins(self) -> None:
        """A class belongs to the first group that holds it."""
        grouping = Grouping([Group("derived", subclassOf(Derived)), Group("things", subclassOf(Thing))])
        self.assertEqual([grouping.placeOf(each) for each in (Derived, Thing, int)], [0, 1, -1])


class ReferentsTests(SynchronousTestCase):
    """What an object takes and refers to."""

    def test_nothingIsMade(self) -> None:
        """To look at an object does not make a dictionary of its attributes."""
        thing = Thing(bytearray(100))
        referents = referentsOf(thing)
        self.assertIn(thing.held, referents.objects)
        self.assertNotIn(dict, map(type, referents.objects))
        self.assertEqual(referents.weight, 1.0)

    def test_large(self) -> None:
        """Of a large container there is a sample, which stands for all of it."""
        count = 10 * LARGE
        for container in (
            list(range(count)),
            tuple(range(count)),
            dict.fromkeys(range(count)),
            set(range(count)),
            frozenset(range(count)),
            deque(range(count)),
        ):
            objects, weight = referentsOf(container)
            self.assertLessEqual(len(objects), LARGE)
            self.assertAlmostEqual(len(objects) * weight, 2 * count if isinstance(container, dict) else count)

    def test_badSize(self) -> None:
        """A class that fails to say its size takes nothing."""

        class Broken:
            def __sizeof__(self) -> int:
                raise ValueError("no")

        broken = Broken()
        self.assertEqual(flatBytes(broken, referentsOf(broken)), 0)


class HostileClassTests(SynchronousTestCase):
    """No code of a class or of its metaclass is asked anything."""

    def test_name(self) -> None:
        """A class has the name that it was made with, and if there is none it is told so."""
        self.assertEqual(nameOf(Secretive), f"{__name__}.Secretive")
        self.assertEqual(nameOf(type("Moved", (), {"__module__": Secretive})), UNNAMED)
        self.assertEqual((nameOf(int), nameOf(Thing)), ("int", f"{Thing.__module__}.Thing"))

    def test_groups(self) -> None:
        """It is sorted into groups all the same."""
        self.patch(Abstract, "isAsked", True)
        grouping = Grouping(
            [Group("things", implementing(IThing)), Group("abstract", subclassOf(Abstract, SecretiveThing))],
            subclassOf(Secretive),
        )
        self.assertEqual([grouping.placeOf(each) for each in (Secretive, SecretiveThing)], [-1, 0])
        self.assertEqual([grouping.isBoundary(each) for each in (Secretive, SecretiveThing)], [True, True])
        grouping.forget()

    def test_counted(self) -> None:
        """Its instances are counted, measured and followed."""
        secretive = Secretive()
        secretive.held = bytearray(10_000)
        made = Census(THINGS, Random(1), lambda: [secretive])
        for _ in made.steps():
            pass
        counts = {name: count for name, count, _ in made.rows}
        self.assertEqual((counts[f"{__name__}.Secretive"], counts["bytearray"]), (1, 1))
        sizing = Sizing(THINGS, {bytearray: lambda each: 5})
        for _ in sizing.steps([secretive], 1):
            pass
        self.assertGreater(sizing.sizeBytes, 10_000)

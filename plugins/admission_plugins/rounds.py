# -*- test-case-name: tests.contracts.test_rounds -*-
"""
The order in which waiters are served: random, in rounds.
"""

from __future__ import annotations

from random import Random, SystemRandom
from typing import Generic, TypeVar

from zope.interface import implementer

from admission.interfaces import IWaiter, IWaitOrder, PolicyContext

T = TypeVar("T")


class RandomSet(Generic[T]):
    """
    A set whose members are added, discarded and picked at random in constant time.

    @ivar members: all of them, in no particular order; do not change it.
    """

    __slots__ = ("_places", "members")

    def __init__(self) -> None:
        self.members: list[T] = []
        self._places: dict[T, int] = {}

    def add(self, member: T) -> None:
        if member not in self._places:
            self._places[member] = len(self.members)
            self.members.append(member)

    def discard(self, member: T) -> None:
        place = self._places.pop(member, None)
        if place is not None:
            last = self.members.pop()
            if last is not member:
                self.members[place] = last
                self._places[last] = place

    def pick(self, random: Random) -> T:
        """
        A random member, all with equal chances.

        @raise IndexError: if there is none.
        """
        return self.members[int(random.random() * len(self.members))]

    def __contains__(self, member: T) -> bool:
        return member in self._places


@implementer(IWaitOrder)
class RandomRounds:
    """
    Random order, in rounds: a waiter that joins during a round is served in the next one.  So no waiter can count on a
    place in the order, and none waits for longer than the rest of a round and one whole round.
    """

    __slots__ = ("_next", "_random", "_round")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._round: RandomSet[IWaiter] = RandomSet()
        self._next: RandomSet[IWaiter] = RandomSet()

    def add(self, waiter: IWaiter) -> None:
        if waiter not in self._round:
            self._next.add(waiter)

    def discard(self, waiter: IWaiter) -> None:
        self._round.discard(waiter)
        self._next.discard(waiter)

    def next(self) -> IWaiter:
        """
        A random waiter of this round, all with equal chances, drawn anew at each call; if this round is over, the next
        one begins.

        @raise IndexError: if there are no waiters.
        """
        if not self._round.members:
            self._round, self._next = self._next, self._round
        return self._round.pick(self._random)


def buildRounds(context: PolicyContext) -> RandomRounds:
    """
    C{rounds}.
    """
    return RandomRounds(context.random or Random(SystemRandom().getrandbits(64)))

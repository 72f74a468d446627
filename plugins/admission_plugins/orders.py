# -*- test-case-name: tests.contracts.test_orders -*-
"""
The order in which waiters are served: random, in rounds, of all waiters alike or by turns with their holders; or as
they came.
"""

from __future__ import annotations

from collections import OrderedDict
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

    @property
    def isEmpty(self) -> bool:
        return not self._round.members and not self._next.members

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


@implementer(IWaitOrder)
class HolderRounds:
    """
    By turns: one waiter of the holder that was served longest ago, and one of all waiters; both drawn in
    L{RandomRounds}.  So nobody waits long since somebody else has a thousand connections, and nobody waits for ever,
    however many holders come.
    """

    __slots__ = ("_all", "_byHolder", "_holders", "_isHoldersTurn", "_named", "_random")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._all = RandomRounds(random)
        # Kept, since who it is may turn out while it waits.
        self._holders: dict[IWaiter, str] = {}
        # Served longest ago first.
        self._byHolder: OrderedDict[str, RandomRounds] = OrderedDict()
        self._isHoldersTurn = True
        self._named: IWaiter | None = None

    def add(self, waiter: IWaiter) -> None:
        if waiter in self._holders:
            return
        holder = self._holders[waiter] = waiter.holder
        waiters = self._byHolder.get(holder)
        if waiters is None:
            waiters = self._byHolder[holder] = RandomRounds(self._random)
        waiters.add(waiter)
        self._all.add(waiter)

    def discard(self, waiter: IWaiter) -> None:
        holder = self._holders.pop(waiter, None)
        if holder is None:
            return
        self._all.discard(waiter)
        waiters = self._byHolder[holder]
        waiters.discard(waiter)
        if waiters.isEmpty:
            del self._byHolder[holder]
        if waiter is self._named:
            self._named = None
            self._isHoldersTurn = not self._isHoldersTurn
            if not waiters.isEmpty:
                self._byHolder.move_to_end(holder)

    def next(self) -> IWaiter:
        """
        A waiter whose turn it is, drawn anew at each call.

        @raise LookupError: if there are no waiters.
        """
        waiters = self._all
        if self._isHoldersTurn and self._byHolder:
            waiters = next(iter(self._byHolder.values()))
        self._named = waiters.next()
        return self._named


@implementer(IWaitOrder)
class FirstInFirstOut:
    """
    The waiter that has waited longest is served first.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        # A plain dictionary looks for its first key behind all that have been removed.
        self._waiters: OrderedDict[IWaiter, None] = OrderedDict()

    def add(self, waiter: IWaiter) -> None:
        self._waiters.setdefault(waiter)

    def discard(self, waiter: IWaiter) -> None:
        self._waiters.pop(waiter, None)

    def next(self) -> IWaiter:
        """
        The waiter that has waited longest.

        @raise LookupError: if there are no waiters.
        """
        for waiter in self._waiters:
            return waiter
        raise LookupError("nobody waits")


def buildFirstInFirstOut(context: PolicyContext) -> FirstInFirstOut:
    """
    C{fifo}.
    """
    return FirstInFirstOut()


def buildRounds(context: PolicyContext) -> RandomRounds:
    """
    C{rounds}.
    """
    return RandomRounds(_randomOf(context))


def buildHolderRounds(context: PolicyContext) -> HolderRounds:
    """
    C{holders}.
    """
    return HolderRounds(_randomOf(context))


def _randomOf(context: PolicyContext) -> Random:
    return context.random or Random(SystemRandom().getrandbits(64))

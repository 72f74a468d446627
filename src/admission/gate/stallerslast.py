# -*- test-case-name: tests.unit.test_gate -*-
"""
Waiters that do not read their answers are served last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from zope.interface import implementer

from ..interfaces import IWaiter, IWaitOrder


@implementer(IWaitOrder)
class StallersLast:
    """
    Another order, from which waiters are left out whose holders do not read their answers.  These are served when there
    is nobody else, as they came.
    """

    def __init__(self, order: IWaitOrder, isStalling: Callable[[str], bool]) -> None:
        """
        @param isStalling: whether a holder does not read its answers; asked when a waiter comes.
        """
        self._order = order
        self._isStalling = isStalling
        self._others: set[IWaiter] = set()
        self._stallers: OrderedDict[IWaiter, None] = OrderedDict()

    def add(self, waiter: IWaiter) -> None:
        if waiter in self._others or waiter in self._stallers:
            return
        if self._isStalling(waiter.holder):
            self._stallers[waiter] = None
        else:
            self._others.add(waiter)
            self._order.add(waiter)

    def discard(self, waiter: IWaiter) -> None:
        if self._stallers.pop(waiter, self) is self:
            self._others.discard(waiter)
            self._order.discard(waiter)

    def next(self) -> IWaiter:
        if self._others or not self._stallers:
            return self._order.next()
        return next(iter(self._stallers))

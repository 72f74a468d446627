# -*- test-case-name: tests.unit.kafka.storage.test_holdings -*-
"""
Shares of what is bounded, so that nobody has all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twisted.logger import Logger

_SILENT_SECONDS: Final = 60.0
"""How long nothing is said of a limit after it was said that somebody has come to it."""


class Holdings:
    """
    How much of something each holder has, and whether it may have more: as much as it leaves free, and one.  That is
    the dynamic threshold of Choudhury and Hahne (1998) for buffers.

    So a holder that is alone has half at most, n holders that all want more come to 1/(n + 1) each, and as much is left
    for one that has nothing yet.  Nothing is set aside for holders that are not there.

    @ivar total: how much all have together.
    """

    __slots__ = ("_held", "total")

    def __init__(self) -> None:
        self.total = 0
        self._held: dict[str, int] = {}

    def of(self, holder: str) -> int:
        """
        How much C{holder} has.
        """
        return self._held.get(holder, 0)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """
        Every holder that has something, with how much.
        """
        return iter(self._held.items())

    def add(self, holder: str, amount: int) -> None:
        """
        C{holder} has that much more, or less.  Whether it may is not asked.
        """
        held = self._held.pop(holder, 0) + amount
        if held:
            self._held[holder] = held
        self.total += amount

    def allow(self, holder: str, amount: int, capacity: int) -> bool:
        """
        Whether C{holder} may have more.  One that wants no more than it has always may.

        @param amount: how much more.
        @param capacity: how much there is in all.
        """
        return amount <= 0 or self._held.get(holder, 0) + amount <= capacity - self.total - amount + 1

    def isAboveMean(self, holder: str, capacity: int) -> bool:
        """
        Whether C{holder} has more than each would have if all that have something shared C{capacity} evenly.  If they
        have more together, at least one has.
        """
        return self._held.get(holder, 0) * len(self._held) > capacity


class RefusedShares:
    """
    Says in the log that a holder gets no more of something, once in a while for each limit: clients are told by a
    number only, and may ask again at once.
    """

    _log = Logger()

    def __init__(self) -> None:
        # When a limit is spoken of again, in seconds of a monotonic clock.
        self._silentUntil: dict[str, float] = {}

    def note(self, limitName: str, capacity: int, holder: str, holdings: Holdings, now: float) -> None:
        """
        A holder was refused.

        @param limitName: the setting that is the limit.
        @param capacity: its value.
        @param now: the time, in seconds of a monotonic clock.
        """
        if now < self._silentUntil.get(limitName, now):
            return
        self._silentUntil[limitName] = now + _SILENT_SECONDS
        held = holdings.of(holder)
        self._log.warn(
            "{holder!r:.300} is refused more of {limitName}: it has {held} of {capacity}, others have {others}, and"
            " nobody may have more than is left",
            holder=holder,
            limitName=limitName,
            held=held,
            capacity=capacity,
            others=holdings.total - held,
        )

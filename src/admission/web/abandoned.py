# -*- test-case-name: tests.unit.web.test_site -*-
"""
Requests whose clients have gone.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

_COLLECTING_SHARE = 0.02
"""How much of the time may go to looking for those that nobody knows any more."""

_MIN_PAUSE_SECONDS = 0.5


class AbandonedRequests:
    """
    Requests, of all sites of an admission, whose clients have gone while they were worked on.  Their places are taken
    until their work has ended, which shows when nobody knows the request any more.  Where the site leaves them in
    cycles, as Klein does, that is only when garbage is collected: so it is, once somebody is refused meanwhile.

    @ivar count: how many there are.
    """

    def __init__(self, clock: IReactorTime, collect: Callable[[], object] = gc.collect) -> None:
        self.count = 0
        self._clock = clock
        self._collect = collect
        self._nextSeconds = 0.0
        self._looking: IDelayedCall | None = None

    def missed(self) -> None:
        """
        Somebody is refused who might not be if work has ended.
        """
        if self.count and self._looking is None:
            self._looking = self._clock.callLater(max(self._nextSeconds - self._clock.seconds(), 0.0), self._look)

    def over(self) -> None:
        """
        One of them has ended.
        """
        self.count -= 1
        if not self.count and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _look(self) -> None:
        self._looking = None
        begunSeconds = self._clock.seconds()
        self._collect()
        now = self._clock.seconds()
        self._nextSeconds = now + max((now - begunSeconds) / _COLLECTING_SHARE, _MIN_PAUSE_SECONDS)

# -*- test-case-name: tests.offline.test_shipper -*-
"""
How often a shipper looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event
from typing import Final

from .shipper import Progress, Shipper

_FIRST_DELAY_SECONDS: Final = 1.0
_LONGEST_DELAY_SECONDS: Final = 60.0

Wait = Callable[[float], object]
"""Waits for some seconds, or until it is time to stop."""


class NotShipped(Exception):
    """
    Files were not shipped in time; the message says why.
    """


def shipOnce(
    shipper: Shipper, timeoutSeconds: float, wait: Wait, seconds: Callable[[], float], progress: Progress | None = None
) -> None:
    """
    Ship what there is, and wait for a target that is away.

    @param timeoutSeconds: for how long, since a file was last stored.
    @param seconds: a monotonic clock.
    @raise NotShipped: if files are still waiting then.
    """
    before, since = -1, seconds()
    delays = _delaysSeconds()
    while True:
        shipper.look(progress=progress)
        counts = shipper.counts
        if not (counts.waitingFiles or shipper.problem):
            return
        if counts.shippedFiles + counts.presentFiles != before:
            before, since = counts.shippedFiles + counts.presentFiles, seconds()
            delays = _delaysSeconds()
        leftSeconds = since + timeoutSeconds - seconds()
        if leftSeconds <= 0:
            why = shipper.problem or "they are sealed again, or removed"
            raise NotShipped(f"files were not shipped ({counts.waitingFiles:,}): {why}; --timeout waits for longer")
        wait(min(next(delays), leftSeconds))


def follow(
    shipper: Shipper, everySeconds: float, stop: Event, told: Callable[[], object], progress: Progress | None = None
) -> None:
    """
    Ship until C{stop} is set.

    @param everySeconds: how long to wait after a look at which all was well; after others, longer each time.
    @param told: called after each look.
    """
    delays = _delaysSeconds()
    while not stop.is_set():
        shipper.look(stop, progress)
        told()
        if not shipper.problem:
            delays = _delaysSeconds()
        stop.wait(next(delays) if shipper.problem else everySeconds)


def _delaysSeconds() -> Iterator[float]:
    delaySeconds = _FIRST_DELAY_SECONDS
    while True:
        yield delaySeconds
        delaySeconds = min(delaySeconds * 2, _LONGEST_DELAY_SECONDS)

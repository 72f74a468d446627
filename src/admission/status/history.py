# -*- test-case-name: tests.unit.status.test_history -*-
"""
The last hour of a server: the numbers of its document, taken every few seconds and kept in a ring.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ..policyfailure import FAILURES
from .pageresource import Unavailable

SAMPLE_SECONDS = 10.0
"""How often the numbers are taken."""

MAX_SAMPLES = 360
"""An hour's worth; each takes half a kilobyte to a kilobyte."""


class History:
    """
    What the document said lately: of each section its numbers, and no lists, since clients make these as long as they
    like.
    """

    _log = Logger()

    def __init__(self, read: Callable[[], Awaitable[Mapping[str, Any]]], clock: IReactorTime) -> None:
        """
        @param read: returns the document; if there is none now, it raises or fails with L{Unavailable}.
        """
        self._read = read
        self._samples: deque[str] = deque(maxlen=MAX_SAMPLES)
        self._sampling = LoopingCall(lambda: Deferred.fromCoroutine(self._take()))
        self._sampling.clock = clock

    def start(self) -> None:
        """
        Begin to take samples.
        """
        # Not now: there is nothing to see yet, and what the document says is kept for a moment.
        self._sampling.start(SAMPLE_SECONDS, now=False)

    def stop(self) -> None:
        """
        Take no more.  What was taken stays.
        """
        if self._sampling.running:
            self._sampling.stop()

    def pieces(self) -> Iterator[str]:
        """
        An object with C{sampleSeconds} and C{samples}, the oldest first: each is the document with nothing but numbers,
        as JSON in pieces.
        """
        yield f'{{"sampleSeconds": {SAMPLE_SECONDS:g}, "samples": ['
        separator = ""
        # A copy, since one may be taken before the last piece is asked for.
        for sample in list(self._samples):
            yield separator + sample
            separator = ",\n"
        yield "]}\n"

    async def _take(self) -> None:
        try:
            self._samples.append(json.dumps(_numbersIn(await self._read()), allow_nan=False))
        except Unavailable:
            pass
        except FAILURES:
            # The next one may be better; the page for programs tells the same.
            self._log.failure("the state of the server could not be kept for its page")


def _numbersIn(fields: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            numbers = {each: number for each, number in value.items() if _isNumber(number)}
            if numbers or not value:
                kept[name] = numbers
        elif _isNumber(value):
            kept[name] = value
    return kept


def _isNumber(value: Any) -> bool:
    return isinstance(value, int | float)

# -*- test-case-name: tests.unit.profiling.test_profiling -*-
"""
Snapshots taken regularly, and put away as files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from .html import htmlOf
from .profiler import Profiler, ProfilerStopped
from .text import sentencesOf, textOf

MAX_SNAPSHOTS = 100
"""How many snapshots are kept in a directory; the oldest go."""

_PREFIX = "memory-"


class MemoryReports:
    """
    A page and a text for each snapshot, C{memory-BOOT-NUMBER.html} and
    C{.txt}.  The first one is taken at once, for others to be compared with.
    """

    log = Logger()

    def __init__(
        self,
        profiler: Profiler,
        directory: Path,
        intervalSeconds: float,
        clock: IReactorTime,
        deferToThread: Callable[..., Deferred[Any]],
        maxSnapshots: int = MAX_SNAPSHOTS,
    ) -> None:
        """
        @param intervalSeconds: from one snapshot to the next.
        @param deferToThread: to wait for the disk.
        """
        self._profiler = profiler
        self._directory = directory
        self._intervalSeconds = intervalSeconds
        self._deferToThread = deferToThread
        self._maxSnapshots = maxSnapshots
        self._taking = LoopingCall(self._take)
        self._taking.clock = clock

    def start(self) -> None:
        """
        Begin.

        @raise OSError: if there can be no such directory.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._taking.start(self._intervalSeconds)

    def stop(self) -> None:
        """
        Take no more; what is being taken is given up.
        """
        if self._taking.running:
            self._taking.stop()
        self._profiler.stop()

    def _take(self) -> Deferred[None]:
        return self._profiler.take().addCallback(self._put).addErrback(self._failed)

    def _put(self, document: dict[str, Any]) -> Deferred[None]:
        name = f"{_PREFIX}{document['boot']}-{document['number']:06}"
        path = self._directory / f"{name}.html"
        self.log.info(
            "memory, snapshot {number}: {sentences}; more in {path}",
            number=document["number"],
            sentences="; ".join(sentencesOf(document)),
            path=path,
        )
        return self._deferToThread(self._write, name, document)

    def _write(self, name: str, document: dict[str, Any]) -> None:
        """
        In a thread.
        """
        for suffix, text in ((".html", htmlOf(document)), (".txt", textOf(document))):
            self._directory.joinpath(name + suffix).write_text(text, encoding="utf-8")
        kept = sorted({each.stem for each in self._directory.glob(f"{_PREFIX}*.html")})
        for stem in kept[: -self._maxSnapshots]:
            for suffix in (".html", ".txt"):
                self._directory.joinpath(stem + suffix).unlink(missing_ok=True)

    def _failed(self, failure: Failure) -> None:
        # Raised from here it would end the taking of snapshots for good.
        if isinstance(failure.value, OSError):
            self.log.warn(
                "a memory snapshot cannot be written to {directory}, and the next one is tried all the same: {reason}",
                directory=self._directory,
                reason=failure.getErrorMessage(),
            )
        elif not isinstance(failure.value, ProfilerStopped):
            self.log.failure("there is no memory snapshot this time", failure)

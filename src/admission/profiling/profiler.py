# -*- test-case-name: tests.unit.profiling.test_profiler -*-
"""
Takes snapshots in short turns, so that no client waits.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator
from twisted.python.failure import Failure

from ..metrics.process import ProcessUsage
from .census import MAX_MEMBERS, MAX_OBJECTS, Census, Sizing, containers, cyclicGarbage
from .memorysnapshot import Cost, Garbage, GroupSize, Snapshot, documentOf, readProcess, sizesOf
from .objectgroups import Grouping

TURN_SECONDS = 0.005
"""The length of a turn."""

REST_SECONDS = 0.01
"""The pause between turns, for the reactor's other work."""

MIN_SECONDS = 10.0
"""A younger snapshot than this is returned again."""


MUCH_GARBAGE = 10_000
"""How many containers of garbage are worth freeing at once; fewer stay until the collector looks again."""


class ProfilerStopped(Exception):
    """
    The profiler takes no more snapshots.
    """


class Profiler:
    """
    Looks at a process in turns of a few milliseconds, with pauses in between.

    The process goes on meanwhile, so a snapshot is slightly inconsistent. Nothing is done, and pympler is not imported,
    until a snapshot is requested.

    @ivar boot: the name of the process.
    @ivar document: the last snapshot as L{documentOf} writes it; L{None} before the first.
    """

    def __init__(
        self,
        grouping: Grouping,
        claims: Callable[[], Mapping[str, int]],
        clock: IReactorTime,
        wallSeconds: Callable[[], float],
        boot: str,
        opaque: Callable[[], Mapping[type, Callable[[Any], int]]] = dict,
        usage: ProcessUsage | None = None,
        objects: Callable[[], list[Any]] = containers,
        maxObjects: int = MAX_OBJECTS,
        garbage: Callable[[int], list[Any] | None] = cyclicGarbage,
    ) -> None:
        """
        Make it before the server builds anything: growth is measured from here.

        @param claims: returns the server's ledger, bytes by purpose.
        @param clock: for turns and pauses, and to measure them; monotonic.
        @param opaque: see L{Sizing}.
        @param usage: the kernel's figures of the process.
        @param objects: see L{Census}, like C{maxObjects}.
        @param garbage: see L{cyclicGarbage}.
        """
        self.boot = boot
        self.document: dict[str, Any] | None = None
        self._grouping = grouping
        self._claims = claims
        self._clock = clock
        self._wallSeconds = wallSeconds
        self._opaque = opaque
        self._usage = ProcessUsage() if usage is None else usage
        self._objects = objects
        self._maxObjects = maxObjects
        self._garbage = garbage
        self._start = readProcess(self._usage, {})
        self._first: Snapshot | None = None
        self._previous: Snapshot | None = None
        self._count = 0
        self._takenSeconds = float("-inf")
        self._waiting: list[Deferred[dict[str, Any]]] = []
        self._cooperator: Any = None
        self._turns: list[float] = []

    def ask(self) -> Deferred[dict[str, Any]]:
        """
        Take a snapshot, or return the last one if it is younger than L{MIN_SECONDS}.

        @return: fires with its document.
        """
        isFresh = self._clock.seconds() - self._takenSeconds < MIN_SECONDS
        if self.document is not None and isFresh and self._cooperator is None:
            return succeed(self.document)
        return self.take()

    def take(self) -> Deferred[dict[str, Any]]:
        """
        Take a snapshot, or wait for the one that is being taken.

        @return: fires with its document; fails if there can be none.
        """
        waiting: Deferred[dict[str, Any]] = Deferred(self._forget)
        self._waiting.append(waiting)
        if self._cooperator is None:
            self._turns = []
            self._cooperator = Cooperator(
                terminationPredicateFactory=self._turn,
                scheduler=lambda turn: self._clock.callLater(REST_SECONDS, turn),
            )
            self._cooperator.cooperate(self._steps()).whenDone().addCallbacks(self._done, self._failed)
        return waiting

    def stop(self) -> None:
        """
        Cancel all timers.  A snapshot that is being taken fails with L{ProfilerStopped}.
        """
        cooperator, self._cooperator = self._cooperator, None
        waiting, self._waiting = self._waiting, []
        if cooperator is not None:
            cooperator.stop()
        for each in waiting:
            each.errback(ProfilerStopped())

    def _forget(self, waiting: Deferred[dict[str, Any]]) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    def _turn(self) -> Callable[[], bool]:
        began = self._clock.seconds()
        self._turns.append(0.0)

        def isOver() -> bool:
            self._turns[-1] = self._clock.seconds() - began
            return self._turns[-1] >= TURN_SECONDS

        return isOver

    def _steps(self) -> Iterator[None]:
        began = self._clock.seconds()
        now = readProcess(self._usage, self._claims())
        self._count += 1
        # Kept until the end, since its ids tell it from the rest.
        thrownAway = self._garbage(self._maxObjects)
        yield
        garbage = None
        if thrownAway is not None:
            census = Census(self._grouping, Random(self._count), thrownAway.copy)
            yield from census.steps()
            garbage = Garbage(len(thrownAway), census.rows)
        leftOut = frozenset(map(id, thrownAway or ()))
        census = Census(self._grouping, Random(self._count), self._objects, self._maxObjects, leftOut)
        yield from census.steps()
        opaque = self._opaque()
        measured = []
        for group, members, count in zip(self._grouping.groups, census.members, census.counts, strict=True):
            sizing = Sizing(self._grouping, opaque)
            yield from sizing.steps(members, count)
            claimed = sum(now.claims.get(purpose, 0) for purpose in group.purposes) if group.purposes else None
            isSampled = count > MAX_MEMBERS or census.stride > 1
            measured.append(GroupSize(group.name, count, sizing.sizeBytes, claimed, isSampled, sizing.isCut))
        snapshot = Snapshot(
            self.boot,
            self._count,
            self._wallSeconds(),
            self._start,
            now,
            sizesOf(self._grouping.groups, measured, now.claims),
            census.rows,
            census.stride,
            garbage,
            Cost(self._clock.seconds() - began, sum(self._turns), max(self._turns)),
        )
        self._grouping.forget()
        yield
        if thrownAway is not None and len(thrownAway) >= MUCH_GARBAGE:
            # Code that looks for it regularly may have looked meanwhile, when it was referred to from here.
            thrownAway.clear()
            gc.collect()
            yield
        self.document = documentOf(snapshot, self._first, self._previous)
        self._first = self._first or snapshot
        self._previous = snapshot
        self._takenSeconds = self._clock.seconds()

    def _done(self, result: object) -> None:
        assert self.document is not None
        self._cooperator = None
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(self.document)

    def _failed(self, failure: Failure) -> None:
        self._cooperator = None
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.errback(failure)

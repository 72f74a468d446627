# -*- test-case-name: tests.unit.metrics.test_registry -*-
"""
The sensors of one server, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, TypeVar

from attrs import frozen
from twisted.logger import Logger
from zope.interface import implementer

from ..interfaces import IHistogram, ISensorRegistry
from ..policyfailure import FAILURES, raiseInterrupt

T = TypeVar("T")


@frozen
class Family:
    """
    Sensors that differ only by their labels, such as one for each client.

    @ivar labelNames: the names of the labels.
    @ivar read: given the time, yields the values of the labels and the value of
        each sensor; see L{ISensorRegistry.addFamily}.  Leaves out what cannot be
        read.
    @ivar isCounter: whether the values only grow.
    """

    labelNames: Sequence[str]
    read: Callable[[float], Iterable[tuple[Sequence[str], float]]]
    isCounter: bool = False


@implementer(ISensorRegistry)
class SensorRegistry:
    """
    Gauges, which are read on demand, counters, histograms and families.

    Policies publish sensors, too: one that raises, or returns something else than
    a number, is left out wherever all are read, is counted each time, and is
    logged the first time.

    @ivar seconds: the monotonic clock of the sensors.
    @ivar histograms: the histograms by name, in the order of addition; a
        live view.
    @ivar families: likewise the families.
    @ivar counters: likewise the functions that read the counters.
    @ivar failures: by name, how often a sensor could not be read.
    """

    _log = Logger()

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.seconds = seconds
        self._gauges: dict[str, Callable[[float], float]] = {}
        self._counters: dict[str, Callable[[float], int]] = {}
        self.counters: Mapping[str, Callable[[float], int]] = self._counters
        self._histograms: dict[str, IHistogram] = {}
        self.histograms: Mapping[str, IHistogram] = self._histograms
        self._families: dict[str, Family] = {}
        self.families: Mapping[str, Family] = self._families
        self.failures: dict[str, int] = {}

    def addGauge(self, name: str, read: Callable[[float], float]) -> None:
        self._refuseDuplicate(name)
        self._gauges[name] = read

    def addCounter(self, name: str, read: Callable[[float], int]) -> None:
        self._refuseDuplicate(name)
        self._counters[name] = read

    def addHistogram(self, name: str, histogram: IHistogram) -> None:
        self._refuseDuplicate(name)
        self._histograms[name] = histogram

    def addFamily(
        self,
        name: str,
        labelNames: Sequence[str],
        read: Callable[[float], Iterable[tuple[Sequence[str], float]]],
        isCounter: bool = False,
    ) -> None:
        self._refuseDuplicate(name)
        names = tuple(labelNames)
        self._families[name] = Family(names, partial(self._rows, name, len(names), read), isCounter)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        """
        The name and the current value of every gauge, and then of every counter,
        in the order of addition; no histograms and no families.
        """
        now = self.seconds()
        for sensors in (self._gauges, self._counters):
            for name, read in sensors.items():
                value = self.tryRead(name, lambda read=read: _number(read(now)))  # type: ignore[misc]
                if value is not None:
                    yield name, value

    def __getitem__(self, name: str) -> float:
        """
        The value of a gauge or a counter.

        @raise KeyError: if there is no such sensor.
        """
        read = self._counters.get(name) or self._gauges[name]
        return read(self.seconds())

    def tryRead(self, name: str, read: Callable[[], T]) -> T | None:
        """
        Read a sensor in a way of one's own, such as a histogram.

        @return: the result of C{read}, or L{None} if it raises.
        """
        try:
            return read()
        except FAILURES:
            self._failed(name)
            return None

    def _rows(
        self, name: str, labelCount: int, read: Callable[[float], Iterable[tuple[Sequence[str], float]]], now: float
    ) -> Iterator[tuple[Sequence[str], float]]:
        try:
            for labels, value in read(now):
                if len(labels) != labelCount or not all(isinstance(each, str) for each in labels):
                    raise TypeError(f"it has {labelCount} labels, which are texts, and not {labels!r:.300}")
                yield labels, _number(value)
        except FAILURES:
            self._failed(name)

    def _failed(self, name: str) -> None:
        raiseInterrupt()
        count = self.failures[name] = self.failures.get(name, 0) + 1
        if count == 1:
            self._log.failure("the sensor {name} cannot be read and is left out; this is said once", name=name)

    def _refuseDuplicate(self, name: str) -> None:
        if any(name in sensors for sensors in (self._gauges, self._counters, self._histograms, self._families)):
            raise ValueError(f"there is a sensor {name!r} already")


def _number(value: Any) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, Real):
        # An integer stays exact, unless it is too large for what it will be written as.
        converted = float(value)
        return value if isinstance(value, int) else converted
    raise TypeError(f"a sensor is a number, and not {value!r:.300}")

# -*- test-case-name: tests.unit.metrics.test_registry -*-
"""
The sensors of one server, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attrs import frozen
from zope.interface import implementer

from ..interfaces import IHistogram, ISensorRegistry


@frozen
class Family:
    """
    Sensors that differ only by their labels, such as one for each client.

    @ivar labelNames: the names of the labels.
    @ivar read: given the time, yields the values of the labels and the value of
        each sensor; see L{ISensorRegistry.addFamily}.
    @ivar isCounter: whether the values only grow.
    """

    labelNames: Sequence[str]
    read: Callable[[float], Iterable[tuple[Sequence[str], float]]]
    isCounter: bool = False


@implementer(ISensorRegistry)
class SensorRegistry:
    """
    Gauges, which are read on demand, counters, histograms and families.

    @ivar seconds: the monotonic clock of the sensors.
    @ivar histograms: the histograms by name, in the order of addition; a
        live view.
    @ivar families: likewise the families.
    @ivar counters: likewise the functions that read the counters.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.seconds = seconds
        self._gauges: dict[str, Callable[[float], float]] = {}
        self._counters: dict[str, Callable[[float], int]] = {}
        self.counters: Mapping[str, Callable[[float], int]] = self._counters
        self._histograms: dict[str, IHistogram] = {}
        self.histograms: Mapping[str, IHistogram] = self._histograms
        self._families: dict[str, Family] = {}
        self.families: Mapping[str, Family] = self._families

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
        self._families[name] = Family(tuple(labelNames), read, isCounter)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        """
        The name and the current value of every gauge, and then of every counter,
        in the order of addition; no histograms and no families.
        """
        now = self.seconds()
        for sensors in (self._gauges, self._counters):
            for name, read in sensors.items():
                yield name, read(now)

    def __getitem__(self, name: str) -> float:
        """
        The value of a gauge or a counter.

        @raise KeyError: if there is no such sensor.
        """
        read = self._counters.get(name) or self._gauges[name]
        return read(self.seconds())

    def _refuseDuplicate(self, name: str) -> None:
        if any(name in sensors for sensors in (self._gauges, self._counters, self._histograms, self._families)):
            raise ValueError(f"there is a sensor {name!r} already")

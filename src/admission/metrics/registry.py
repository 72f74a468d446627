# -*- test-case-name: tests.test_registry -*-
"""
The sensors of one server, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from attrs import frozen

from .histogram import Histogram


@frozen
class Family:
    """
    Sensors that differ by their labels only, such as one for each client.

    @ivar labelNames: what the labels are called.
    @ivar read: yields the values of the labels and the value of the sensor, for
        each there is now.  Bounded by whoever publishes it.  Where there are
        hundreds they may be read over several turns of the reactor, so it is
        to copy what may change meanwhile.
    @ivar isCounter: whether the values only grow.
    """

    labelNames: Sequence[str]
    read: Callable[[], Iterable[tuple[Sequence[str], float]]]
    isCounter: bool = False


class SensorRegistry:
    """
    Gauges, read when somebody looks, counters, which only grow, histograms,
    and families.

    @ivar histograms: the histograms by name, in the order they were added; a
        live view.
    @ivar families: likewise the families.
    @ivar counters: what reads the counters, likewise by name.
    """

    def __init__(self) -> None:
        self._gauges: dict[str, Callable[[], float]] = {}
        self._counters: dict[str, Callable[[], int]] = {}
        self.counters: Mapping[str, Callable[[], int]] = self._counters
        self._counts: dict[str, int] = {}
        self._histograms: dict[str, Histogram] = {}
        self.histograms: Mapping[str, Histogram] = self._histograms
        self._families: dict[str, Family] = {}
        self.families: Mapping[str, Family] = self._families

    def addGauge(self, name: str, read: Callable[[], float]) -> None:
        """
        Publish what C{read} returns as C{name}.

        @raise ValueError: if there is a sensor of that name.
        """
        self._refuseDuplicate(name)
        self._gauges[name] = read

    def addCounter(self, name: str, read: Callable[[], int] | None = None) -> None:
        """
        Publish a counter, so that it shows before it first counts.

        @param read: returns the count, if that is kept elsewhere; L{count} is
            not for such a counter.
        @raise ValueError: if there is a sensor of that name.
        """
        self._refuseDuplicate(name)
        if read is None:
            self._counts[name] = 0
            read = partial(self._counts.__getitem__, name)
        self._counters[name] = read

    def addHistogram(self, name: str, histogram: Histogram) -> None:
        """
        Publish C{histogram} as C{name}.

        @raise ValueError: if there is a sensor of that name.
        """
        self._refuseDuplicate(name)
        self._histograms[name] = histogram

    def addFamily(
        self,
        name: str,
        labelNames: Sequence[str],
        read: Callable[[], Iterable[tuple[Sequence[str], float]]],
        isCounter: bool = False,
    ) -> None:
        """
        Publish what C{read} yields, labels and values, as C{name}.

        @raise ValueError: if there is a sensor of that name.
        """
        self._refuseDuplicate(name)
        self._families[name] = Family(tuple(labelNames), read, isCounter)

    def count(self, name: str, increment: int = 1) -> None:
        """
        Add to a counter.

        @raise KeyError: if it was never added, or is kept elsewhere.
        """
        self._counts[name] += increment

    def __iter__(self) -> Iterator[tuple[str, float]]:
        """
        The name of every gauge and its value now, and then of every counter,
        in the order they were added; no histograms and no families.
        """
        for sensors in (self._gauges, self._counters):
            for name, read in sensors.items():
                yield name, read()

    def __getitem__(self, name: str) -> float:
        """
        The value of a gauge or a counter.

        @raise KeyError: if there is no such sensor.
        """
        read = self._counters.get(name) or self._gauges[name]
        return read()

    def _refuseDuplicate(self, name: str) -> None:
        if any(name in sensors for sensors in (self._gauges, self._counters, self._histograms, self._families)):
            raise ValueError(f"there is a sensor {name!r} already")

# -*- test-case-name: tests.test_registry -*-
"""
The sensors of one server, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator


class SensorRegistry:
    """
    Gauges, read when somebody looks, and counters, which only grow.
    """

    def __init__(self) -> None:
        self._gauges: dict[str, Callable[[], float]] = {}
        self._counters: dict[str, int] = {}

    def addGauge(self, name: str, read: Callable[[], float]) -> None:
        """
        Publish what C{read} returns as C{name}.

        @raise ValueError: if there is a sensor of that name.
        """
        self._refuseDuplicate(name)
        self._gauges[name] = read

    def addCounter(self, name: str) -> None:
        """
        Publish a counter, so that it shows before it first counts.

        @raise ValueError: if there is a sensor of that name.
        """
        self._refuseDuplicate(name)
        self._counters[name] = 0

    def count(self, name: str, increment: int = 1) -> None:
        """
        Add to a counter.

        @raise KeyError: if it was never added.
        """
        self._counters[name] += increment

    def __iter__(self) -> Iterator[tuple[str, float]]:
        """
        Every sensor's name and its value now, in the order they were added.
        """
        for name, read in self._gauges.items():
            yield name, read()
        yield from self._counters.items()

    def __getitem__(self, name: str) -> float:
        """
        @raise KeyError: if there is no such sensor.
        """
        if name in self._counters:
            return self._counters[name]
        return self._gauges[name]()

    def _refuseDuplicate(self, name: str) -> None:
        if name in self._gauges or name in self._counters:
            raise ValueError(f"there is a sensor {name!r} already")

# -*- test-case-name: tests.unit.test_gate -*-
"""
Whether memory is short.
"""

from __future__ import annotations

from collections.abc import Callable


class Pressure:
    """
    Begins when a request for memory is refused, and ends when nobody waits for memory and some is free.

    @ivar isOn: whether it has begun.
    """

    def __init__(self) -> None:
        self.isOn = False
        self._listeners: list[Callable[[bool], None]] = []

    def subscribe(self, listener: Callable[[bool], None]) -> None:
        """
        Have C{listener} called with L{True} when it begins, and with L{False} when it ends.
        """
        self._listeners.append(listener)

    def begin(self) -> None:
        """
        Memory is short.
        """
        if not self.isOn:
            self.isOn = True
            self._tell()

    def end(self) -> None:
        """
        It is not.
        """
        self.isOn = False
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener(self.isOn)

# -*- test-case-name: tests.unit.kafka.serving.test_secondsignal -*-
"""
A second SIGTERM while the broker stops.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class SecondSignal:
    """
    During a C{with} block, SIGTERM and Ctrl-C call C{hurry} instead of stopping
    the reactor, which is already stopping and would log a traceback.
    """

    def __init__(self, reactor: Any, hurry: Callable[[], object]) -> None:
        """
        @param hurry: called in a turn of the reactor, once for each signal.
        """
        self._reactor = reactor
        self._hurry = hurry
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        reactor = self._reactor
        for number, name in ((signal.SIGTERM, "sigTerm"), (signal.SIGINT, "sigInt")):
            before = signal.getsignal(number)
            # Where another program runs the reactor, the signals belong to that program.
            if before is not None and before == getattr(reactor, name, None):
                self._before[number] = before
                signal.signal(number, self._received)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._reactor.callFromThread(self._hurry)

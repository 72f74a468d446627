"""
A process that records events as fast as a busy server and seals them every
second, as an operator would have it.

    python -m tests.kit.recordingprocess DESCRIPTION

It says C{sealing} when sealing begins, and after every turn the number of the
last event that it has recorded.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

from twisted.internet import reactor
from twisted.internet.threads import deferToThreadPool

from admission.clock import MonotonicClock, wallSeconds
from admission.interfaces import IMetricsExporterFactory, PolicyContext
from admission.kafka.recordedcolumns import KafkaRequestEvent
from admission.metrics.registry import SensorRegistry
from admission.plugins import buildPolicy
from admission.recording.events import Origin
from admission.recording.recorder import EventRecorder

EVENTS_PER_TURN = 20
TURN_SECONDS = 0.001


def say(text: str) -> None:
    """Tell whoever has started this."""
    os.write(sys.stdout.fileno(), text.encode("ascii") + b"\n")


def main(description: str) -> None:
    """Record until killed."""
    anyReactor: Any = reactor
    clock = MonotonicClock(anyReactor)
    exporter = buildPolicy(IMetricsExporterFactory, description, PolicyContext(clock, wallSeconds))
    recorder = EventRecorder([("spark", exporter)], clock, SensorRegistry(clock.seconds))

    def deferToThread(function: Any, *args: Any) -> Any:
        if getattr(function, "__name__", "") == "sealInProcess":
            say("sealing")
        return deferToThreadPool(anyReactor, anyReactor.getThreadPool(), function, *args)

    def turn(last: int) -> None:
        for _ in range(EVENTS_PER_TURN):
            last += 1
            recorder.requestAnswered(
                KafkaRequestEvent(1, clock.seconds(), clientId=f"client {last % 100}", identities=[last])
            )
        say(str(last))
        anyReactor.callLater(TURN_SECONDS, turn, last)

    recorder.start(Origin("0", "killed"), deferToThread)
    anyReactor.callWhenRunning(partial(turn, 0))
    anyReactor.run()


if __name__ == "__main__":
    main(sys.argv[1])

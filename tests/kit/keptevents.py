"""An exporter that keeps what it is given, for the tests."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from zope.interface import implementer

from admission.interfaces import IMetricsExporter, ISensorRegistry


@implementer(IMetricsExporter)
class Kept:
    """Keeps what it is given."""

    droppedEvents = 0

    def __init__(self) -> None:
        self.origin: Any = None
        self.events: list[Any] = []
        self.stored: Deferred[None] = Deferred()

    def start(self, origin: Any, deferToThread: Any) -> None:
        self.origin = origin

    def exportEvent(self, event: Any) -> None:
        self.events.append(event)

    def exportSamples(self, samples: Any) -> None:
        pass

    def addSensors(self, registry: ISensorRegistry, name: str) -> None:
        pass

    def stop(self) -> Deferred[None]:
        return self.stored

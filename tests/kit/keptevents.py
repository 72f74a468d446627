"""What a server would record, kept in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from admission.interfaces import CONNECTION, IMetricsExporter
from admission.recording import RequestEvent


@implementer(IMetricsExporter)
class Kept:
    """
    An exporter that keeps everything.

    @ivar origin: what it was started with.
    @ivar stored: what it waits for when it is stopped.
    """

    droppedEvents = 0

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.origin: Any = None
        self.stored: Deferred[None] = succeed(None)

    def start(self, origin: Any, deferToThread: Any) -> None:
        self.origin = origin

    def exportEvent(self, event: Any) -> None:
        self.events.append(event)

    def exportSamples(self, samples: Sequence[Any]) -> None:
        self.events += samples

    def addSensors(self, registry: Any, name: str) -> None:
        pass

    def stop(self) -> Any:
        return self.stored

    def of(self, kind: type[Any]) -> list[Any]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def requests(self) -> list[RequestEvent]:
        """What was asked for, without the connections that were put to policies."""
        return [event for event in self.of(RequestEvent) if event.kind != CONNECTION]

    def byConnection(self) -> Iterator[tuple[int, list[RequestEvent]]]:
        """What was asked for on each connection, in order."""
        found: dict[int, list[RequestEvent]] = defaultdict(list)
        for event in self.requests:
            found[event.connectionId].append(event)
        yield from found.items()

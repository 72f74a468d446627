"""L{admission.recording.recorder}."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import QuotaEntity
from admission.kafka.serving.recordedcolumns import KafkaRequestEvent
from admission.metrics.histogram import Histogram
from admission.metrics.registry import SensorRegistry
from admission.recording.events import ConnectionEvent, LimitEvent, Origin, SensorSample
from admission.recording.recorder import MAX_OF_FAMILY, MAX_SAMPLES, EventRecorder
from tests.kit.keptevents import Kept

ORIGIN = Origin("0", "boot")


def deferToThread(function: Callable[..., Any], *args: Any) -> Deferred[Any]:
    """Does it at once."""
    return succeed(function(*args))


class MemoryExporter(Kept):
    """Keeps samples as they come, and stops when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.samples: list[list[SensorSample]] = []
        self.stopped: Deferred[None] | None = None

    def exportSamples(self, samples: Sequence[SensorSample]) -> None:
        self.samples.append(list(samples))

    def addSensors(self, registry: SensorRegistry, name: str) -> None:
        registry.addGauge(f"{name}.kept", lambda now: len(self.events))

    def stop(self) -> Deferred[None]:
        self.stopped = Deferred()
        return self.stopped


class BrokenExporter(MemoryExporter):
    """Raises, whatever it is given."""

    def exportEvent(self, event: Any) -> None:
        """Raise."""
        raise SystemExit

    def exportSamples(self, samples: Sequence[SensorSample]) -> None:
        """Raise."""
        raise SystemExit


class UnstartableExporter(MemoryExporter):
    """Cannot start."""

    def start(self, origin: Origin, deferToThread: Callable[..., Any]) -> None:
        """Raise."""
        raise PermissionError("no")


class RecorderTests(SynchronousTestCase):
    """L{EventRecorder}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(50.0)
        self.registry = SensorRegistry(self.clock.seconds)
        self.exporter = MemoryExporter()
        self.recorder = self.start(self.exporter)

    def start(self, *exporters: MemoryExporter) -> EventRecorder:
        """A recorder that records."""
        named = [(f"exporter {number}", exporter) for number, exporter in enumerate(exporters)]
        recorder = EventRecorder(named, self.clock, self.registry, 10.0)
        recorder.start(ORIGIN, deferToThread)
        return recorder

    def test_nobodyListens(self) -> None:
        """Without exporters nothing is recorded, sampled or published, and the recorder says so."""
        recorder = self.start()
        recorder.addSensors(self.registry)
        self.assertFalse(recorder.isRecording)
        self.assertEqual(list(self.registry), [])
        self.assertEqual(list(self.registry.families), [])
        self.successResultOf(recorder.stop())

    def test_origin(self) -> None:
        """Exporters learn once whose events they get."""
        self.assertIs(self.exporter.origin, ORIGIN)
        self.assertTrue(self.recorder.isRecording)

    def test_requests(self) -> None:
        """A request's event is passed on at once, as it is; what the recorder knows itself is filled in."""
        self.clock.advance(2.0)
        event = KafkaRequestEvent(1, 51.0)
        self.recorder.requestAnswered(event)
        self.assertEqual(self.exporter.events, [event])
        self.assertEqual(event.sentSeconds, 52.0)

    def test_sentBefore(self) -> None:
        """When a response was sent is kept, if it is known."""
        event = KafkaRequestEvent(1, 51.0, sentSeconds=51.5)
        self.recorder.requestAnswered(event)
        self.assertEqual(event.sentSeconds, 51.5)

    def test_connections(self) -> None:
        """Each connection gets an id of its own."""
        first = self.recorder.connectionOpened("tcp", "::1")
        second = self.recorder.connectionOpened("tls", "::2", "me")
        self.clock.advance(3.0)
        self.recorder.connectionClosed(second, "tls", "::2", "me", "idle", 5, 3.0)
        self.assertNotEqual(first, second)
        opened, _, closed = self.exporter.events
        self.assertIsInstance(opened, ConnectionEvent)
        self.assertEqual(
            (opened.connectionId, opened.state, opened.listener, opened.peer, opened.principal, opened.atSeconds),
            (first, "opened", "tcp", "::1", None, 50.0),
        )
        self.assertEqual(
            (closed.connectionId, closed.state, closed.reason, closed.requestCount, closed.openSeconds),
            (second, "closed", "idle", 5, 3.0),
        )
        self.assertEqual(closed.atSeconds, 53.0)

    def test_limits(self) -> None:
        """Each limit that changed is an event, and one that was removed has no value."""
        self.recorder.limitsChanged(QuotaEntity(user="me", clientId="a"), {"rate": 5.0, "share": None}, 49.5, "admin")
        first, second = self.exporter.events
        self.assertIsInstance(first, LimitEvent)
        self.assertEqual(
            (first.user, first.clientId, first.ip, first.limitName, first.value, first.changedBy, first.atSeconds),
            ("me", "a", None, "rate", 5.0, "admin", 49.5),
        )
        self.assertEqual(second.limitName, "share")
        self.assertTrue(isnan(second.value))

    def test_seq(self) -> None:
        """All events and samples of a process are numbered together, so that one that is missing can be noticed."""
        self.registry.addGauge("Used", lambda now: 1.0)
        self.recorder.connectionOpened("tcp", "::1")
        self.recorder.sample()
        self.recorder.requestAnswered(KafkaRequestEvent(1, 50.0))
        [[sample]] = self.exporter.samples
        self.assertEqual([self.exporter.events[0].seq, sample.seq, self.exporter.events[1].seq], [1, 2, 3])

    def test_samples(self) -> None:
        """Sensors of all kinds are read at the interval, each as what it is."""
        self.registry.addGauge("Used", lambda now: 7.5)
        self.registry.addCounter("Served", lambda now: 3)
        histogram = Histogram([1.0])
        histogram.record(0.5)
        histogram.record(2.0)
        self.registry.addHistogram("Waits", histogram)
        self.registry.addFamily("Rate", ("user", "client"), lambda now: [(("me", "a"), 2.0)])
        self.registry.addFamily("Drops", ("kind",), lambda now: [(("b",), 4.0)], isCounter=True)
        self.clock.advance(9.9)
        self.assertEqual(self.exporter.samples, [])
        self.clock.advance(0.1)
        [samples] = self.exporter.samples
        self.assertEqual({sample.atSeconds for sample in samples}, {60.0})
        self.assertEqual(
            [(sample.sensor, sample.entity, sample.kind, sample.value) for sample in samples],
            [
                ("Used", None, "gauge", 7.5),
                ("Served", None, "counter", 3),
                ("Waits", "le=1", "counter", 1),
                ("Waits", "le=inf", "counter", 1),
                ("Waits", "total", "counter", 2.5),
                ("Rate", "user=me,client=a", "gauge", 2.0),
                ("Drops", "kind=b", "counter", 4.0),
            ],
        )
        self.clock.advance(10.0)
        self.assertEqual(len(self.exporter.samples), 2)

    def test_manySamples(self) -> None:
        """
        A family with a member for each client does not take more than its
        share, all together no more than is taken at a time, and what is left
        out shows.
        """
        self.registry.addGauge("Used", lambda now: 1.0)
        self.registry.addFamily("Rate", ("client",), lambda now: (((str(each),), 1.0) for each in range(MAX_OF_FAMILY)))
        self.recorder.sample()
        self.assertEqual((len(self.exporter.samples[0]), self.recorder.shortenedSamples), (1 + MAX_OF_FAMILY, 0))
        self.registry.addFamily("Big", ("client",), lambda now: (((str(each),), 1.0) for each in range(10**9)))
        self.recorder.sample()
        self.assertEqual((len(self.exporter.samples[1]), self.recorder.shortenedSamples), (1 + 2 * MAX_OF_FAMILY, 1))
        for number in range(MAX_SAMPLES):
            self.registry.addGauge(f"Used {number}", lambda now: 1.0)
        self.recorder.sample()
        self.assertEqual((len(self.exporter.samples[2]), self.recorder.shortenedSamples), (MAX_SAMPLES, 2))

    def test_brokenHistogram(self) -> None:
        """A histogram that cannot be read is left out of the samples and logged, as other sensors are."""
        self.registry.addHistogram("Waits", Histogram.__new__(Histogram))
        self.registry.addFamily("Rate", ("client",), lambda now: [(("a",), 1.0)])
        self.clock.advance(10.0)
        self.assertEqual([sample.sensor for sample in self.exporter.samples[-1]], ["Rate"])
        self.assertEqual(len(self.flushLoggedErrors(AttributeError)), 1)

    def test_brokenExporter(self) -> None:
        """
        An exporter that raises keeps neither the server nor other exporters
        from anything, and is logged once a minute.
        """
        other = MemoryExporter()
        recorder = self.start(BrokenExporter(), other)
        recorder.addSensors(registry := SensorRegistry(self.clock.seconds))
        for _ in range(5):
            recorder.connectionOpened("tcp", "::1")
        recorder.sample()
        self.assertEqual((len(other.events), len(other.samples)), (5, 1))
        self.assertEqual(len(self.flushLoggedErrors(SystemExit)), 1)
        self.assertEqual(
            dict(registry.families["ExportFailures"].read(self.clock.seconds())),
            {("exporter 0",): 6, ("exporter 1",): 0},
        )
        self.clock.advance(60.0)
        self.assertEqual(len(self.flushLoggedErrors(SystemExit)), 1)

    def test_cannotStart(self) -> None:
        """When an exporter cannot start, the recorder does not, and those that have are stopped."""
        first, last = MemoryExporter(), MemoryExporter()
        recorder = EventRecorder(
            [("first", first), ("bad", UnstartableExporter()), ("last", last)], self.clock, self.registry
        )
        self.assertRaises(PermissionError, recorder.start, ORIGIN, deferToThread)
        self.assertFalse(recorder.isRecording)
        self.assertIsNot(first.stopped, None)
        self.assertIs(last.origin, None)

    def test_stop(self) -> None:
        """
        At the end sensors are read once more; nothing is sampled after that,
        and it is over when the exporters are done.
        """
        self.registry.addGauge("Used", lambda now: 1.0)
        stopped = self.recorder.stop()
        self.assertEqual(len(self.exporter.samples), 1)
        self.assertFalse(self.recorder.isRecording)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertNoResult(stopped)
        assert self.exporter.stopped is not None
        self.exporter.stopped.callback(None)
        self.successResultOf(stopped)
        self.recorder.sample()
        self.assertEqual(len(self.exporter.samples), 1)

    def test_sensors(self) -> None:
        """What exporters drop and publish can be seen."""
        self.exporter.droppedEvents = 4
        self.recorder.addSensors(self.registry)
        self.recorder.connectionOpened("tcp", "::1")
        self.assertEqual(
            dict(self.registry.families["ExportDroppedEvents"].read(self.clock.seconds())), {("exporter 0",): 4}
        )
        self.assertEqual(self.registry["exporter 0.kept"], 1)
        self.assertEqual(self.registry["ExportShortenedSamples"], 0)

"""L{admission.testing.exportercontract} and L{admission.testing.scriptedthreads}, with exporters that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.interfaces import IMetricsExporter
from admission.kafka.serving.recordedcolumns import KafkaRequestEvent
from admission.metrics.registry import SensorRegistry
from admission.recording.events import SensorSample
from admission.testing.exportercontract import MetricsExporterContract
from admission.testing.scriptedthreads import ScriptedThreads
from tests.kit.seededfaults import SeededFaultsTestCase

ROOM = 100


@implementer(IMetricsExporter)
class Batching:
    """
    A sound exporter, for others to break: threads put events where they are to
    stay, a batch at a time.

    @ivar written: the numbers of what is there.
    """

    _log = Logger()

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.droppedEvents = 0
        self.written: list[int] = []
        self.waiting: list[int] = []
        self.isWriting = self.isStopped = False
        self.stopping: Deferred[None] = Deferred()

    def start(self, origin: Any, deferToThread: Callable[..., Deferred[Any]]) -> None:
        """See L{IMetricsExporter}, like all others."""
        self.deferToThread = deferToThread

    def exportEvent(self, event: Any) -> None:
        """Keep its number."""
        if self.isStopped or len(self.waiting) >= ROOM:
            self.droppedEvents += 1
        else:
            self.waiting.append(event.seq)
            self.write()

    def exportSamples(self, samples: Sequence[SensorSample]) -> None:
        """Keep their numbers."""
        for sample in samples:
            self.exportEvent(sample)

    def addSensors(self, registry: SensorRegistry, name: str) -> None:
        """One."""
        registry.addGauge(f"{name}.waiting", lambda now: len(self.waiting))

    def stop(self) -> Deferred[None]:
        """When all is written."""
        self.isStopped = True
        self.write()
        return self.stopping

    def write(self) -> None:
        """Have a thread write what waits."""
        if self.waiting and not self.isWriting:
            self.isWriting = True
            batch, self.waiting = self.waiting, []
            self.deferToThread(self.written.extend, batch).addCallbacks(self.wrote, self.failed, errbackArgs=(batch,))
        elif self.isStopped and not self.isWriting and not self.stopping.called:
            self.stopping.callback(None)

    def wrote(self, _: object) -> None:
        """A batch is where it is to stay."""
        self.isWriting = False
        self.write()

    def failed(self, failure: Failure, batch: list[int]) -> None:
        """A batch is not."""
        self._log.failure("a batch could not be written", failure)
        self.droppedEvents += len(batch)
        self.wrote(None)


class Silent(Batching):
    """Drops without counting."""

    def exportEvent(self, event: Any) -> None:
        super().exportEvent(event)
        self.droppedEvents = 0


class Unbounded(Batching):
    """Takes everything."""

    def exportEvent(self, event: Any) -> None:
        self.waiting.append(event.seq)
        self.write()


class Jammed(Batching):
    """Drops everything once it has dropped anything."""

    def exportEvent(self, event: Any) -> None:
        if self.droppedEvents:
            self.droppedEvents += 1
        else:
            super().exportEvent(event)


class Stuttering(Batching):
    """Writes everything twice."""

    def exportEvent(self, event: Any) -> None:
        super().exportEvent(event)
        self.written.append(event.seq)


class Hurried(Batching):
    """Has stopped before it is done."""

    def stop(self) -> Deferred[None]:
        super().stop()
        return succeed(None)


class Failing(Batching):
    """Fails to stop where it could not write."""

    def failed(self, failure: Failure, batch: list[int]) -> None:
        super().failed(failure, batch)
        self.stopping = fail(failure)
        self.stopping.addErrback(lambda failure: failure)


class Offended(Batching):
    """Raises after its end."""

    def exportEvent(self, event: Any) -> None:
        if self.isStopped:
            raise RuntimeError("it is over")
        super().exportEvent(event)


class Undead(Batching):
    """Goes on after its end."""

    def stop(self) -> Deferred[None]:
        stopping = super().stop()
        self.isStopped = False
        return stopping


class Ticking(Batching):
    """Leaves a timer behind."""

    def start(self, origin: Any, deferToThread: Callable[..., Deferred[Any]]) -> None:
        super().start(origin, deferToThread)
        self.clock.callLater(60.0, self.write)


class RequestsOnly(Batching):
    """Knows requests only."""

    def exportEvent(self, event: Any) -> None:
        if isinstance(event, KafkaRequestEvent):
            super().exportEvent(event)


class Nameless(Batching):
    """Has one name for its sensors."""

    def addSensors(self, registry: SensorRegistry, name: str) -> None:
        super().addSensors(registry, "exporter")


class Blocking(Batching):
    """Wants the result of a thread at once."""

    def write(self) -> None:
        if self.waiting:
            batch, self.waiting = self.waiting, []
            results: list[object] = []
            self.deferToThread(self.written.extend, batch).addCallback(results.append)
            [_] = results
        super().write()


class MetricsExporterContractTests(SeededFaultsTestCase):
    """L{MetricsExporterContract}."""

    def hooks(self, exporter: type[Batching]) -> dict[str, Any]:
        """What the contract wants to know."""
        return {"buildExporter": exporter, "arrived": lambda made: made.written, "excessEvents": 3 * ROOM}

    def test_sound(self) -> None:
        """A sound exporter passes."""
        self.assertSound(MetricsExporterContract, **self.hooks(Batching))

    def test_faults(self) -> None:
        """Each way in which an exporter may be wrong is found by the test that is for it."""
        for exporter, test in [
            (Silent, "test_isBounded"),
            (Unbounded, "test_isBounded"),
            (Blocking, "test_isBounded"),
            (Jammed, "test_roomComesBack"),
            (Stuttering, "test_everythingArrives"),
            (RequestsOnly, "test_everythingArrives"),
            (Hurried, "test_stopWaits"),
            (Failing, "test_stopDoesNotFail"),
            (Offended, "test_afterTheEnd"),
            (Undead, "test_afterTheEnd"),
            (Ticking, "test_leavesNoTimer"),
            (Nameless, "test_sensors"),
        ]:
            self.assertBroken(MetricsExporterContract, test, exporter.__name__, **self.hooks(exporter))


class ScriptedThreadsTests(SynchronousTestCase):
    """L{ScriptedThreads}."""

    def setUp(self) -> None:
        self.threads = ScriptedThreads()
        self.done: list[object] = []

    def test_atOnce(self) -> None:
        """Not told otherwise, they do everything at once, and pass on what is returned or raised."""
        self.assertEqual(self.successResultOf(self.threads.deferToThread(int, "12", base=3)), 5)
        self.failureResultOf(self.threads.deferToThread(int, "x"), ValueError)

    def test_idle(self) -> None:
        """Idle, they do nothing until they are told to work; then everything in order, and what follows from it."""
        self.threads.isIdle = True
        first = self.threads.deferToThread(self.done.append, 1)
        first.addCallback(lambda _: self.threads.deferToThread(self.done.append, 3))
        self.threads.deferToThread(self.done.append, 2)
        self.assertNoResult(first)
        self.assertEqual((self.done, len(self.threads.waiting)), ([], 2))
        self.threads.work()
        self.assertEqual((self.done, self.threads.waiting), ([1, 2, 3], []))

    def test_failure(self) -> None:
        """With a failure they do nothing, and everything fails."""
        self.threads.failure = OSError("no")
        self.failureResultOf(self.threads.deferToThread(self.done.append, 1), OSError)
        self.assertEqual(self.done, [])

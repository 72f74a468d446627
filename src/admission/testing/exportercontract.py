# -*- test-case-name: tests.contracts.test_exportercontract -*-
"""
The rules for every exporter of metrics.
"""

# Trial's assertions have no annotations.
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Collection

from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from ..interfaces import IMetricsExporter
from ..metrics.registry import SensorRegistry
from ..recording.events import GAUGE, OPENED, ConnectionEvent, Event, LimitEvent, Origin, RequestEvent, SensorSample
from .contract import Contract
from .scriptedthreads import ScriptedThreads


class MetricsExporterContract(Contract):
    """
    The rules for an L{IMetricsExporter}.  Subclasses say how to build one, and where to
    find what was exported.
    """

    excessEvents = 10_000
    """More events than the exporter has room for while no thread works."""

    def buildExporter(self, clock: Clock) -> IMetricsExporter:
        """
        Make an exporter that takes its time from C{clock}, with a destination of its
        own; it is started later.
        """
        raise NotImplementedError

    def arrived(self, exporter: IMetricsExporter) -> Collection[int]:
        """
        The C{seq} of all events and samples at their final destination, as often as
        they are there.
        """
        raise NotImplementedError

    def setUp(self) -> None:
        """
        Make and start an exporter, with L{ScriptedThreads}.
        """
        self.clock = Clock()
        self.threads = ScriptedThreads()
        self.given = 0
        self.exporter = self.build()

    def build(self) -> IMetricsExporter:
        """
        Make and start an exporter.
        """
        exporter = self.buildExporter(self.clock)
        self.assertEqual(exporter.droppedEvents, 0)
        origin = Origin("0", "boot", policyNames=("policy",), policyDescriptions=("policy:1",))
        exporter.start(origin, self.threads.deferToThread)
        return exporter

    def give(self, count: int = 1) -> None:
        """
        Export C{count} requests, numbered consecutively.
        """
        for _ in range(count):
            self.exportEvent(RequestEvent(1, self.clock.seconds(), kind="Produce", principal="alice"))

    def exportEvent(self, event: Event) -> None:
        """
        Export an event with the next number.
        """
        event.seq = self.given = self.given + 1
        self.exporter.exportEvent(event)

    def assertAccountedFor(self) -> None:
        """
        Check that everything arrived exactly once or was counted as dropped.
        """
        arrived = self.arrived(self.exporter)
        self.assertEqual(len(set(arrived)), len(arrived))
        self.assertEqual(set(arrived) - set(range(1, self.given + 1)), set())
        self.assertEqual(len(arrived) + self.exporter.droppedEvents, self.given)

    def stop(self) -> None:
        """
        Stop, and let the threads finish.
        """
        stopped = self.exporter.stop()
        self.threads.work()
        self.successResultOf(stopped)

    def test_providesItsInterface(self) -> None:
        """
        The exporter has all attributes and methods of L{IMetricsExporter}.
        """
        verifyObject(IMetricsExporter, self.exporter)
        self.stop()

    def test_everythingArrives(self) -> None:
        """
        While there is room, everything arrives: events of each kind, with
        nothing in them or with everything, and samples.
        """
        self.give(10)
        seconds = self.clock.seconds()
        self.exportEvent(ConnectionEvent(1, seconds, OPENED, "tcp:9092", "192.0.2.1", "alice"))
        self.exportEvent(ConnectionEvent(2, seconds, OPENED))
        self.exportEvent(LimitEvent(seconds, "alice", None, None, "received_byte_rate", 1e6))
        self.exportEvent(LimitEvent(seconds, None, None, "192.0.2.1", "received_byte_rate", float("nan")))
        self.exportEvent(RequestEvent(1, seconds, policyDelaysSeconds=(0.5,) * 9))
        samples = [SensorSample(seconds, name, GAUGE, 1.0, seq=self.given + 1 + i) for i, name in enumerate("ab")]
        self.given += len(samples)
        self.exporter.exportSamples(samples)
        self.exporter.exportSamples([])
        self.stop()
        self.assertEqual(sorted(self.arrived(self.exporter)), list(range(1, self.given + 1)))
        self.assertEqual(self.exporter.droppedEvents, 0)

    def test_isBounded(self) -> None:
        """
        While its threads do nothing, the exporter never blocks, takes what it has room
        for, and drops and counts the rest.
        """
        self.threads.isIdle = True
        self.give(self.excessEvents)
        self.assertGreater(self.exporter.droppedEvents, 0)
        self.stop()
        self.assertAccountedFor()

    def test_roomComesBack(self) -> None:
        """
        After dropping, the exporter accepts everything again once there is room.
        """
        self.threads.isIdle = True
        self.give(self.excessEvents)
        self.threads.isIdle = False
        self.threads.work()
        self.give()
        self.stop()
        self.assertIn(self.given, self.arrived(self.exporter))
        self.assertAccountedFor()

    def test_stopWaits(self) -> None:
        """
        C{stop} fires when everything is at its final destination, and not before.
        """
        self.threads.isIdle = True
        self.give(5)
        stopped = self.exporter.stop()
        whenFired: list[list[int]] = []
        stopped.addCallback(lambda _: whenFired.append(sorted(self.arrived(self.exporter))))
        self.threads.work()
        self.successResultOf(stopped)
        [arrived] = whenFired
        self.assertEqual(arrived, [1, 2, 3, 4, 5])

    def test_stopDoesNotFail(self) -> None:
        """
        When nothing can be written, C{stop} fires nevertheless, without a
        failure.
        """
        self.give(5)
        self.threads.failure = OSError("the disk is gone")
        self.give(5)
        self.stop()
        self.flushLoggedErrors(OSError)

    def test_afterTheEnd(self) -> None:
        """
        An event that comes after C{stop} does no harm, and counts as dropped.
        """
        self.give(3)
        self.stop()
        self.give()
        self.assertEqual((sorted(self.arrived(self.exporter)), self.exporter.droppedEvents), ([1, 2, 3], 1))

    def test_leavesNoTimer(self) -> None:
        """
        Once stopped, the exporter has no timers.
        """
        self.give(3)
        self.clock.advance(1.0)
        self.stop()
        self.assertEqual(list(self.clock.getDelayedCalls()), [])

    def test_sensors(self) -> None:
        """
        Two exporters can publish their sensors under different names, and
        these can be read at any time.
        """
        registry = SensorRegistry(self.clock.seconds)
        other = self.build()
        self.exporter.addSensors(registry, "first")
        other.addSensors(registry, "second")
        for _ in range(2):
            for _name, value in registry:
                float(value)
            self.give(3)
        self.successResultOf(other.stop())
        self.stop()
        dict(registry)
        self.assertEqual(registry.failures, {}, "these sensors cannot be read")

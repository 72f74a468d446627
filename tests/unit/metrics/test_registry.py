"""L{admission.metrics.registry}."""

from __future__ import annotations

from fractions import Fraction
from itertools import count
from typing import Any

from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from admission.interfaces import ISensorRegistry
from admission.metrics.histogram import Histogram
from admission.metrics.registry import SensorRegistry


class SensorRegistryTests(SynchronousTestCase):
    """L{SensorRegistry}."""

    def test_gaugeIsReadWhenAsked(self) -> None:
        """A gauge tells what its function returns at that moment."""
        registry = SensorRegistry(lambda: 0.0)
        values = [1.5]
        registry.addGauge("Level", lambda now: values[0])
        self.assertEqual(registry["Level"], 1.5)
        values[0] = 2.5
        self.assertEqual(registry["Level"], 2.5)

    def test_counter(self) -> None:
        """A counter is read from where it is kept."""
        registry = SensorRegistry(lambda: 0.0)
        counts = [3]
        registry.addCounter("Expirations", lambda now: counts[0])
        counts[0] = 4
        self.assertEqual((registry["Expirations"], list(registry)), (4, [("Expirations", 4)]))

    def test_time(self) -> None:
        """
        Whatever is read is told what time it is, and all that is read together the same; each reader of families tells
        their own.
        """
        registry = SensorRegistry(count(5.0).__next__)
        verifyObject(ISensorRegistry, registry)
        registry.addGauge("Level", lambda now: now)
        registry.addGauge("Depth", lambda now: -now)
        registry.addCounter("Ticks", int)
        registry.addFamily("Rate", ("client",), lambda now: [(("a",), now)])
        self.assertEqual(dict(registry), {"Level": 5.0, "Depth": -5.0, "Ticks": 5})
        self.assertEqual((registry["Level"], registry["Ticks"]), (6.0, 7))
        self.assertEqual(list(registry.families["Rate"].read(registry.seconds())), [(("a",), 8.0)])

    def test_failures(self) -> None:
        """A sensor that raises, or returns no number, is left out, counted each time and logged the first time."""
        registry = SensorRegistry(lambda: 0.0)
        nonsense: list[Any] = [None, "3", 10**400, 2j]
        registry.addGauge("Before", lambda now: 1.5)
        registry.addGauge("Raises", lambda now: 1 / 0)
        registry.addCounter("Text", lambda now: nonsense[0])
        registry.addGauge("Fraction", lambda now: Fraction(1, 4))  # type: ignore[arg-type, return-value]
        registry.addCounter("After", lambda now: True)
        with capturedLogs() as logged:
            for _ in range(len(nonsense)):
                self.assertEqual(dict(registry), {"Before": 1.5, "Fraction": 0.25, "After": True})
                nonsense.append(nonsense.pop(0))
        self.assertEqual(registry.failures, {"Raises": 4, "Text": 4})
        self.assertEqual(len(logged), 2)
        self.assertIn("the sensor Raises cannot be read and is left out", formatEvent(logged[0]))
        self.assertEqual(len(self.flushLoggedErrors()), 2)

    def test_failingFamily(self) -> None:
        """A family that raises, or yields what is no row, ends there; what came before counts."""
        registry = SensorRegistry(lambda: 0.0)
        bad: list[Any] = [(("b",), None), (("b", "c"), 1), ((7,), 1), 7]

        def read(now: float) -> Any:
            yield ("a",), 1.0
            yield bad[0]

        registry.addFamily("Rate", ("client",), read)
        registry.addFamily("Raises", ("client",), lambda now: 1 / 0)  # type: ignore[arg-type, return-value]
        for _ in range(len(bad)):
            self.assertEqual(list(registry.families["Rate"].read(0.0)), [(("a",), 1.0)])
            self.assertEqual(list(registry.families["Raises"].read(0.0)), [])
            bad.append(bad.pop(0))
        self.assertEqual(registry.failures, {"Rate": 4, "Raises": 4})
        self.assertEqual(len(self.flushLoggedErrors()), 2)

    def test_histogram(self) -> None:
        """Histograms are found by name, apart from what has a single value."""
        registry = SensorRegistry(lambda: 0.0)
        histogram = Histogram()
        registry.addHistogram("WaitSeconds", histogram)
        self.assertEqual(dict(registry.histograms), {"WaitSeconds": histogram})
        self.assertEqual(list(registry), [])
        self.assertRaises(KeyError, registry.__getitem__, "WaitSeconds")

    def test_family(self) -> None:
        """
        A family yields what there is at that moment, with labels, and is found
        by name, apart from what has a single value.
        """
        registry = SensorRegistry(lambda: 0.0)
        rates = {"a": 1.0}
        registry.addFamily("Rate", ["client"], lambda now: [((client,), rate) for client, rate in rates.items()])
        registry.addFamily("Refusals", ("client", "user"), lambda now: [], isCounter=True)
        rates["b"] = 2.0
        family = registry.families["Rate"]
        self.assertEqual((family.labelNames, family.isCounter), (("client",), False))
        self.assertEqual(list(family.read(0.0)), [(("a",), 1.0), (("b",), 2.0)])
        self.assertEqual([(name, each.isCounter) for name, each in registry.families.items()],
                         [("Rate", False), ("Refusals", True)])  # fmt: skip
        self.assertEqual(list(registry), [])

    def test_order(self) -> None:
        """Iterating yields gauges and then counters, each in the order they came."""
        registry = SensorRegistry(lambda: 0.0)
        registry.addCounter("c", lambda now: 0)
        registry.addGauge("b", lambda now: 2)
        registry.addGauge("a", lambda now: 1)
        self.assertEqual(list(registry), [("b", 2), ("a", 1), ("c", 0)])

    def test_namesAreUnique(self) -> None:
        """A name that is taken, by any kind, is refused, naming it."""
        registry = SensorRegistry(lambda: 0.0)
        registry.addGauge("Level", lambda now: 1)
        registry.addCounter("Refusals", lambda now: 0)
        registry.addHistogram("WaitSeconds", Histogram())
        registry.addFamily("Rate", ("client",), lambda now: [])
        for name in ("Level", "Refusals", "WaitSeconds", "Rate"):
            self.assertIn(name, str(self.assertRaises(ValueError, registry.addGauge, name, lambda now: 2)))
            self.assertRaises(ValueError, registry.addCounter, name, lambda now: 0)
            self.assertRaises(ValueError, registry.addHistogram, name, Histogram())
            self.assertRaises(ValueError, registry.addFamily, name, (), lambda now: [])
        self.assertEqual(list(registry), [("Level", 1), ("Refusals", 0)])

    def test_unknownNames(self) -> None:
        """Reading invents no sensor."""
        registry = SensorRegistry(lambda: 0.0)
        self.assertRaises(KeyError, registry.__getitem__, "Refusals")

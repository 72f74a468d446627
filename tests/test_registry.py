"""
L{admission.metrics.registry}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from admission.metrics.histogram import Histogram
from admission.metrics.registry import SensorRegistry


class SensorRegistryTests(SynchronousTestCase):
    """
    L{SensorRegistry}.
    """

    def test_gaugeIsReadWhenAsked(self) -> None:
        """
        A gauge tells what its function returns at that moment.
        """
        registry = SensorRegistry()
        values = [1.5]
        registry.addGauge("Level", lambda: values[0])
        self.assertEqual(registry["Level"], 1.5)
        values[0] = 2.5
        self.assertEqual(registry["Level"], 2.5)

    def test_counter(self) -> None:
        """
        A counter shows zero before it first counts, and then the sum.
        """
        registry = SensorRegistry()
        registry.addCounter("Refusals")
        self.assertEqual(registry["Refusals"], 0)
        registry.count("Refusals")
        registry.count("Refusals", 4)
        self.assertEqual(registry["Refusals"], 5)

    def test_counterKeptElsewhere(self) -> None:
        """
        A counter may be read from where it is kept, and is then not counted
        here.
        """
        registry = SensorRegistry()
        counts = [3]
        registry.addCounter("Expirations", lambda: counts[0])
        counts[0] = 4
        self.assertEqual((registry["Expirations"], list(registry)), (4, [("Expirations", 4)]))
        self.assertRaises(KeyError, registry.count, "Expirations")

    def test_histogram(self) -> None:
        """
        Histograms are found by name, apart from what has a single value.
        """
        registry = SensorRegistry()
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
        registry = SensorRegistry()
        rates = {"a": 1.0}
        registry.addFamily("Rate", ["client"], lambda: [((client,), rate) for client, rate in rates.items()])
        registry.addFamily("Refusals", ("client", "user"), list, isCounter=True)
        rates["b"] = 2.0
        family = registry.families["Rate"]
        self.assertEqual((family.labelNames, family.isCounter), (("client",), False))
        self.assertEqual(list(family.read()), [(("a",), 1.0), (("b",), 2.0)])
        self.assertEqual([(name, each.isCounter) for name, each in registry.families.items()],
                         [("Rate", False), ("Refusals", True)])  # fmt: skip
        self.assertEqual(list(registry), [])

    def test_order(self) -> None:
        """
        Iterating yields gauges and then counters, each in the order they came.
        """
        registry = SensorRegistry()
        registry.addCounter("c")
        registry.addGauge("b", lambda: 2)
        registry.addGauge("a", lambda: 1)
        self.assertEqual(list(registry), [("b", 2), ("a", 1), ("c", 0)])

    def test_namesAreUnique(self) -> None:
        """
        A name that is taken, by any kind, is refused, naming it.
        """
        registry = SensorRegistry()
        registry.addGauge("Level", lambda: 1)
        registry.addCounter("Refusals")
        registry.addHistogram("WaitSeconds", Histogram())
        registry.addFamily("Rate", ("client",), list)
        for name in ("Level", "Refusals", "WaitSeconds", "Rate"):
            self.assertIn(name, str(self.assertRaises(ValueError, registry.addGauge, name, lambda: 2)))
            self.assertRaises(ValueError, registry.addCounter, name)
            self.assertRaises(ValueError, registry.addHistogram, name, Histogram())
            self.assertRaises(ValueError, registry.addFamily, name, (), list)
        self.assertEqual(list(registry), [("Level", 1), ("Refusals", 0)])

    def test_unknownNames(self) -> None:
        """
        Neither reading nor counting invents a sensor.
        """
        registry = SensorRegistry()
        self.assertRaises(KeyError, registry.count, "Refusals")
        self.assertRaises(KeyError, registry.__getitem__, "Refusals")

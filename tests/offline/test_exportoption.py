"""The option C{--export} of L{admission.kafka.serving.serveroptions}, with the exporter that writes Parquet."""

from __future__ import annotations

from twisted.internet.testing import MemoryReactorClock
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.brokeroptions import Options
from admission.kafka.serving.serveroptions import buildExporters
from admission_plugins.parquetexporter import ParquetExporter


class OptionsTests(SynchronousTestCase):
    """C{--export}."""

    def parse(self, *arguments: str) -> Options:
        """Parse a command line."""
        options = Options()
        options.parseOptions(list(arguments))
        return options

    def test_exporters(self) -> None:
        """There may be several, each with a name of its own; without one there is none."""
        self.assertEqual(self.parse()["export"], [])
        descriptions = [f"spark:{self.mktemp()}:rotate=5s", f"spark:{self.mktemp()}"]
        options = self.parse("--export", descriptions[0], "--export", descriptions[1])
        exporters = buildExporters(options["export"], MemoryReactorClock())
        self.assertEqual([name for name, _ in exporters], ["spark", "spark-#2"])
        for _, exporter in exporters:
            self.assertIsInstance(exporter, ParquetExporter)

    def test_mistakes(self) -> None:
        """What cannot be is refused when the options are parsed, with the right form or the reason."""
        for description, words in [
            ("flink:x", "spark"),
            ("spark", "spark:DIRECTORY"),
            ("spark:x:cap=1KiB", "cap must be 4MiB at least"),
            ("spark:x:rotate=soon", "soon"),
        ]:
            error = self.assertRaises(UsageError, self.parse, "--export", description)
            self.assertIn("--export", str(error))
            self.assertIn(words, str(error))
            self.assertNotIn("\n", str(error))

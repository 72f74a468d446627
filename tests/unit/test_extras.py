"""Tests for L{admission.extras}."""

from __future__ import annotations

from configparser import ConfigParser

from twisted.trial.unittest import SynchronousTestCase

from admission import extras
from admission.extras import EXTRAS, explaining, lacking
from tests.kit.checkout import ROOT


class ExtrasTests(SynchronousTestCase):
    """What lacks an extra says which."""

    def test_asPackaged(self) -> None:
        """The table has the modules that the extras install, which are called as their distributions."""
        settings = ConfigParser()
        settings.read(ROOT / "setup.cfg")
        for extra, modules in EXTRAS.items():
            lines = settings["options.extras_require"][extra].split("\n")
            installed = {line.partition(">")[0].replace("-", "_") for line in lines if line}
            self.assertEqual(installed, set(modules))

    def test_lacking(self) -> None:
        """The sentence names what is missing, and the extra that brings it; nothing is said where all is installed."""
        self.patch(extras, "find_spec", lambda name: None if name in ("numpy", "pyarrow", "rbloom") else name)
        self.assertEqual(lacking("it", "pyspark", "kio"), "")
        self.assertEqual(
            lacking("it", "pyspark", "numpy", "pyarrow"), "it needs numpy, pyarrow: pip install 'admission[spark]'"
        )
        self.assertEqual(lacking("it", "rbloom"), "it needs rbloom: pip install 'admission[kafka]'")

    def test_explaining(self) -> None:
        """An import that fails for want of an extra is explained, also where it is of a module within the library."""
        self.patch(extras, "find_spec", lambda name: None)
        for name in ("kio", "kio.schema.errors"):
            with self.assertRaises(ValueError) as caught, explaining("it", ValueError):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            self.assertEqual(str(caught.exception), "it needs kio: pip install 'admission[kafka]'")

    def test_others(self) -> None:
        """Any other import fails as it does; so does one of a library that is installed, perhaps in another version."""
        self.patch(extras, "find_spec", lambda name: name)
        for error in (
            ImportError("cannot import name 'Bloom'", name="rbloom"),
            ImportError("no name"),
            ModuleNotFoundError("No module named 'acme'", name="acme"),
        ):
            with self.assertRaises(ImportError) as caught, explaining("it", ValueError):
                raise error
            self.assertIs(caught.exception, error)

"""Tests for L{admission.commands.kafka.doctorinstallation}."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attrs import define
from twisted.plugin import CachedDropin, CachedPlugin, IPlugin
from zope.interface import implementer

from admission.commands.kafka.doctorinstallation import (
    Dropin,
    checkCache,
    checkCompiled,
    checkDropins,
    checkExtra,
    checkNames,
    checkPackages,
    checkPolicies,
    installedDropins,
    installedVersion,
    ownRequirements,
)
from admission.commands.kafka.doctormachine import Finding, Level
from admission.interfaces import IMemoryPoolFactory
from admission.plugins import InstalledFactory, PolicyFactory
from tests.kit.commandcases import FindingTestCase


class PackageTests(FindingTestCase):
    """What is installed."""

    requirements = (
        "kio<0.7,>=0.6.5",
        'tool>=1; python_version < "3"',
        'crc32c>=2.7; extra == "kafka"',
        'pyspark<5,>=4.3; extra == "spark"',
        'numpy>=1.26; extra == "spark"',
        'numpy>=1.26; extra == "test"',
    )

    def packages(self, **installed: str) -> Finding:
        """Check with these versions."""
        return checkPackages(self.requirements, {"crc32c": "2.9", **installed}.get)

    def spark(self, **installed: str) -> Finding:
        """The same for an extra."""
        return checkExtra("spark", self.requirements, installed.get)

    def test_compiled(self) -> None:
        """It says whether the hot modules are compiled, and how to have that."""
        self.assertFinds(checkCompiled(True), Level.OK, "are")
        self.assertFinds(checkCompiled(False), Level.ABSENT, "are Python", "ADMISSION_COMPILE=1")

    def test_packages(self) -> None:
        """What a broker needs, that of its extra included, must be there in a version that we know."""
        self.assertFinds(self.packages(kio="0.6.5"), Level.OK, "kio 0.6.5, crc32c 2.9")
        self.assertFinds(self.packages(kio="0.6.9rc1"), Level.OK)
        self.assertFinds(self.packages(kio="0.7.0"), Level.FAIL, "kio 0.7.0 is not <0.7,>=0.6.5")
        self.assertFinds(self.packages(), Level.FAIL, "kio is not installed")
        self.assertFinds(self.packages(kio="0.6.5", crc32c="1"), Level.FAIL, "crc32c 1 is not", "admission[kafka]")

    def test_noMetadata(self) -> None:
        """A tree that is not installed says nothing of what it needs."""
        self.assertFinds(checkPackages([], {}.get), Level.WARN, "not installed")

    def test_extras(self) -> None:
        """An extra is there, or not there, or there in part."""
        self.assertFinds(self.spark(pyspark="4.3.0", numpy="2.0"), Level.OK, "pyspark 4.3.0, numpy 2.0")
        self.assertFinds(self.spark(kio="0.6.5"), Level.ABSENT, "admission[spark]")
        self.assertFinds(self.spark(numpy="2.0"), Level.WARN, "pyspark is not installed")
        self.assertFinds(self.spark(pyspark="3.5"), Level.WARN, "pyspark 3.5 is not", "numpy is not installed")

    def test_real(self) -> None:
        """The metadata of what is installed can be read."""
        self.assertIsNot(installedVersion("twisted"), None)
        self.assertIs(installedVersion("no-such-thing"), None)
        self.assertFinds(checkPackages(ownRequirements(), installedVersion), Level.OK, "twisted")


@implementer(IPlugin)
class StandInPlugin:
    """A plug-in of no kind."""


class CacheTests(FindingTestCase):
    """Twisted's cache of plug-ins."""

    def setUp(self) -> None:
        self.path = Path(self.mktemp()).absolute()
        self.path.mkdir()
        self.dropins = [self.dropin("acme", "first")]

    def dropin(self, name: str, *pluginNames: str, modifiedSeconds: int = 1000) -> Dropin:
        """A module with plug-ins of these names."""
        path = self.path / f"{name}.py"
        path.touch()
        os.utime(path, (modifiedSeconds, modifiedSeconds))
        module = SimpleNamespace(**{each: StandInPlugin() for each in pluginNames}, other=1)
        return Dropin(f"twisted.plugins.{name}", path, lambda: module)

    def write(self, modules: Mapping[str, Sequence[str]], writtenSeconds: int) -> None:
        cached = {}
        for name, pluginNames in modules.items():
            dropin = cached[name] = CachedDropin(f"twisted.plugins.{name}", None)
            for each in pluginNames:
                CachedPlugin(dropin, each, None, [])
        path = self.path / "dropin.cache"
        path.write_bytes(pickle.dumps(cached))
        os.utime(path, (writtenSeconds, writtenSeconds))

    def check(self, isWritable: bool = True) -> Finding:
        return checkCache(self.dropins, lambda directory: isWritable)

    def test_upToDate(self) -> None:
        """A cache that knows every module, and is younger than all, need not be writable."""
        self.write({"acme": ["first"]}, 2000)
        self.assertFinds(self.check(isWritable=False), Level.OK, str(self.path))

    def test_stale(self) -> None:
        """A module that was replaced by an older file has plug-ins that nobody finds."""
        self.write({"acme": ["former"]}, 2000)
        self.assertFinds(self.check(), Level.FAIL, "acme", "dropin.cache", "delete")

    def test_rewritten(self) -> None:
        """
        Whatever Twisted notices by itself is put right at the next start, if that can write: a module that is
        younger, one that is new, one that is gone, a cache that is broken or not there.
        """
        self.dropins.append(self.dropin("fresh", "second"))
        self.assertRewritten()
        self.write({"acme": ["first"]}, 2000)
        self.assertRewritten()
        self.write({"acme": ["former"], "fresh": []}, 1000)
        self.assertRewritten()
        self.write({"acme": ["first"], "fresh": ["second"], "gone": []}, 2000)
        self.assertRewritten()
        (self.path / "dropin.cache").write_bytes(b"nonsense")
        self.assertRewritten()

    def assertRewritten(self) -> None:
        """All is well, but only for those who may write."""
        self.assertFinds(self.check(), Level.OK)
        self.assertFinds(self.check(isWritable=False), Level.WARN, "cannot be written", "twistd --help")

    def test_brokenModule(self) -> None:
        """A module that cannot be imported is another check's."""
        self.dropins = [Dropin("twisted.plugins.acme", self.dropins[0].path, lambda: 1 / 0)]
        self.write({"acme": ["former"]}, 2000)
        self.assertFinds(self.check(), Level.OK)

    def test_real(self) -> None:
        """Twisted's own plug-ins and ours are among those that are installed."""
        names = {each.key for each in installedDropins()}
        self.assertLessEqual({"twisted_core", "admission_broker", "admission_policies"}, names)


@define
class StandInEntry:
    """As much of an L{EntryPoint} as is needed."""

    load: Callable[[], Any]
    name: str = "acme"
    value: str = "acme:pool"


class PluginTests(FindingTestCase):
    """Plug-ins can be used."""

    def test_dropins(self) -> None:
        """A module or an entry point that cannot be imported is named, with the error."""
        good = Dropin("twisted.plugins.good", Path("good.py"), lambda: None)
        bad = Dropin("twisted.plugins.bad", Path("bad.py"), lambda: 1 / 0)
        entries: list[Any] = [StandInEntry(lambda: None)]
        self.assertFinds(checkDropins([good], entries), Level.OK, "2 modules")
        self.assertFinds(checkDropins([good, bad], []), Level.FAIL, "bad.py: ZeroDivisionError", "traceback")
        missing = EntryPoint("acme", "no_such_module:pool", "admission.policies")
        self.assertFinds(checkDropins([], [missing]), Level.FAIL, "acme", "no_such_module")

    def test_names(self) -> None:
        """Two modules of a name in two directories hide one another; a directory that is looked at twice does not."""
        first, second = Path(self.mktemp()), Path(self.mktemp())
        for directory in (first, second):
            directory.mkdir()
            (directory / "__init__.py").touch()
        (first / "acme.py").touch()
        (second / "other.py").touch()
        self.assertFinds(checkNames([first, second, first, Path("nowhere")]), Level.OK, "2 modules")
        (second / "acme.py").touch()
        self.assertFinds(checkNames([first, second]), Level.WARN, f"{first.resolve()}/acme.py hides {second.resolve()}")

    def factory(self, name: str, providedBy: str, implementation: str = "builtins.dict") -> InstalledFactory:
        factory = PolicyFactory(IMemoryPoolFactory, name=name, help="", format="", implementation=implementation)
        return InstalledFactory(name, "", "", factory, providedBy)

    def test_policies(self) -> None:
        """Each policy has a name of its own and can be imported, and there is one for each purpose."""
        good = self.factory("bounded", "ours")
        self.assertFinds(checkPolicies({"--pool": [good]}), Level.OK, "--pool bounded")
        other = self.factory("bounded", "theirs")
        finding = checkPolicies({"--pool": [good, other]})
        self.assertFinds(finding, Level.FAIL, "--pool bounded comes from ours and theirs")
        broken = self.factory("odd", "theirs", "no_such_module.build")
        self.assertFinds(checkPolicies({"--pool": [good, broken]}), Level.WARN, "--pool odd cannot be used")
        self.assertFinds(checkPolicies({"--pool": [good], "--quota": []}), Level.FAIL, "none for --quota")

"""Tests for C{admission doctor}."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pickle
import resource
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib.metadata import EntryPoint
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attrs import define
from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.plugin import CachedDropin, CachedPlugin, IPlugin
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase, TestCase
from zope.interface import implementer

from admission.commands.console import CommandFailed
from admission.commands.doctorcommand import DoctorOptions, checksFor, examine, report, whyNotListening
from admission.commands.doctorinstallation import (
    Dropin,
    checkCache,
    checkCompiled,
    checkDropins,
    checkExtra,
    checkJava,
    checkNames,
    checkPackages,
    checkPolicies,
    checkWorkers,
    installedDropins,
    installedVersion,
    ownRequirements,
)
from admission.commands.doctormachine import (
    BESIDES_POOL_BYTES,
    LITTLE_BYTES,
    TOO_LITTLE_BYTES,
    Finding,
    Level,
    bytesByTopic,
    checkDirectory,
    checkDiskUse,
    checkFileSystem,
    checkMemory,
    checkOpenFiles,
    checkPort,
    checkPython,
    checkReactor,
    checkStatus,
    fileSystemOf,
)
from admission.interfaces import IMemoryPoolFactory
from admission.kafka.broker.log.disk import DirectoryLock
from admission.kafka.brokersettings import loadSettings
from admission.kafka.serversettings import RESERVED_DESCRIPTORS
from admission.plugins import InstalledFactory, PolicyFactory
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, freePort

GIB = 1 << 30


class FindingTestCase(SynchronousTestCase):
    """A test of checks."""

    def assertFinds(self, finding: Finding, level: Level, *words: str) -> None:
        """A check came to that, in these words, and with a remedy if one is needed."""
        self.assertIs(finding.level, level, finding)
        for word in words:
            self.assertIn(word, f"{finding.what} -> {finding.remedy}")
        if level in (Level.WARN, Level.FAIL):
            self.assertNotEqual(finding.remedy, "")


class ProcessTests(FindingTestCase):
    """The process and its limits."""

    def test_python(self) -> None:
        """Python 3.11 is the oldest."""
        self.assertFinds(checkPython((3, 11, 0)), Level.OK, "3.11.0")
        self.assertFinds(checkPython((4, 0, 0)), Level.OK)
        self.assertFinds(checkPython((3, 10, 13)), Level.FAIL, "3.10.13", "3.11")

    def test_reactor(self) -> None:
        """With many connections there is nothing like epoll, and select cannot have them."""
        self.assertFinds(checkReactor("EPollReactor"), Level.OK, "epoll")
        self.assertFinds(checkReactor("PollReactor"), Level.WARN, "PollReactor", "--reactor")
        self.assertFinds(checkReactor("SelectReactor"), Level.FAIL, "1024")

    def test_openFiles(self) -> None:
        """What counts is the hard limit, since the broker raises the other one itself."""
        needed = 1000 + RESERVED_DESCRIPTORS + 100
        for enough in (needed, resource.RLIM_INFINITY):
            self.assertFinds(checkOpenFiles(1000, 100, enough), Level.OK, f"{needed} needed")
        finding = checkOpenFiles(1000, 100, needed - 1)
        self.assertFinds(finding, Level.WARN, "999 connections and not 1000 (max.connections)", "LimitNOFILE")
        self.assertFinds(checkOpenFiles(1000, 100, RESERVED_DESCRIPTORS), Level.FAIL, "0 connections")

    def test_filesOfLog(self) -> None:
        """The log takes no more than a quarter of what is allowed."""
        self.assertFinds(checkOpenFiles(1000, 100_000, 4096), Level.OK, f"{1000 + RESERVED_DESCRIPTORS + 1024} needed")

    def test_memory(self) -> None:
        """The pool must leave room for the rest of the process."""

        def check(limitBytes: int, pool: str) -> Finding:
            return checkMemory(limitBytes, loadSettings(None, [f"queued.max.request.bytes={pool}"]))

        self.assertFinds(check(4 * GIB, "1GiB"), Level.OK, "4 GiB", "1 GiB of it for the pool")
        self.assertFinds(check(GIB + BESIDES_POOL_BYTES, "1GiB"), Level.OK)
        self.assertFinds(check(GIB + BESIDES_POOL_BYTES - 1, "1GiB"), Level.WARN, "128 MiB for everything else")
        self.assertFinds(check(GIB, "1GiB"), Level.FAIL, "MemoryMax=")
        self.assertFinds(check(GIB, "-1"), Level.WARN, "no bound")

    def test_java(self) -> None:
        """Spark needs a Java that runs and is not too old; without Spark nobody does."""
        self.assertFinds(checkJava(False, {}), Level.ABSENT)
        home = Path(self.mktemp())
        java = home / "bin" / "java"
        java.parent.mkdir(parents=True)
        for version, level in (("17.0.2", Level.OK), ("1.8.0_372", Level.WARN)):
            java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
            java.chmod(0o755)
            self.patch(sys.modules["admission.offline.sparksession"], "find_spec", lambda name: None)
            self.assertFinds(checkJava(True, {"JAVA_HOME": str(home)}), level)
        self.assertFinds(checkJava(True, {"JAVA_HOME": "/nowhere"}), Level.WARN, "/nowhere", "jre")

    def test_workers(self) -> None:
        """Spark's workers need a Python with the data source: the one of a variable, or else the first of the path."""
        self.assertFinds(checkWorkers(False, {}), Level.ABSENT)
        self.assertFinds(
            checkWorkers(True, {**ENVIRONMENT, "PYSPARK_PYTHON": sys.executable}), Level.OK, sys.executable
        )
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        other = directory / "python3"
        other.write_text("#!/bin/sh\necho ModuleNotFoundError >&2\nexit 1\n")
        other.chmod(0o755)
        bare = {"PATH": str(directory)}
        self.assertFinds(checkWorkers(True, bare), Level.ABSENT, f"export PYSPARK_PYTHON={sys.executable}")
        for wrong in (str(other), "/nowhere/python3"):
            self.assertFinds(checkWorkers(True, {**bare, "PYSPARK_PYTHON": wrong}), Level.WARN, wrong, "export")


class PortTests(FindingTestCase):
    """What is to be listened on."""

    def check(
        self,
        description: str,
        reason: str | None = None,
        isPrivileged: bool = False,
        hasBroker: bool = False,
    ) -> Finding:
        """Check an endpoint that cannot be listened on for C{reason}."""
        return checkPort(description, lambda each: reason, isPrivileged, 1024, hasBroker)

    def test_free(self) -> None:
        """What can be listened on is fine, unless only root can."""
        self.assertFinds(self.check("tcp:9092"), Level.OK)
        self.assertFinds(self.check("tcp:1024", isPrivileged=True), Level.OK)
        for low in ("tcp:92", "ssl:port=92", "tcp6:1023:interface=\\:\\:"):
            self.assertFinds(self.check(low, isPrivileged=True), Level.WARN, "CAP_NET_BIND_SERVICE")
        for other in ("unix:92", "", "systemd:domain=INET:index=0"):
            self.assertFinds(self.check(other, isPrivileged=True), Level.OK)

    def test_inUse(self) -> None:
        """Somebody else has it; where a broker is known to run, that is as it should be."""
        reason = "Couldn't listen on any:9092: [Errno 98] Address already in use."
        self.assertFinds(self.check("tcp:9092", reason), Level.FAIL, reason, "ss -ltnp")
        self.assertFinds(self.check("tcp:9092", reason, hasBroker=True), Level.OK, reason)
        self.assertFinds(self.check("tcp:9092", "no such interface", hasBroker=True), Level.FAIL)

    def test_forbidden(self) -> None:
        """Privileges are missing, or those to read a file."""
        reason = "[Errno 13] Permission denied"
        self.assertFinds(self.check("tcp:92", reason), Level.FAIL, "CAP_NET_BIND_SERVICE")
        self.assertFinds(self.check("ssl:9093:privateKey=k.pem", reason), Level.FAIL, "read its files")


class ListeningTests(TestCase):
    """L{whyNotListening} tries."""

    def test_free(self) -> Any:
        """A free port can be listened on, and is free again a moment later."""
        port = freePort()
        self.assertIs(whyNotListening(f"tcp:{port}:interface=127.0.0.1"), None)

        def again(_: None) -> None:
            with closing(socket.socket()) as taking:
                taking.bind(("127.0.0.1", port))

        return deferLater(reactor, 0.01, lambda: None).addCallback(again)

    def test_reasons(self) -> None:
        """What keeps it from that is told in words."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            for description, words in (
                (f"tcp:{taken.getsockname()[1]}:interface=127.0.0.1", "in use"),
                ("ssl:0:privateKey=nowhere.pem", "nowhere.pem"),
                ("carrier-pigeon:5", "carrier-pigeon"),
                ("tcp", ""),
            ):
                reason = whyNotListening(description)
                assert reason is not None, description
                self.assertIn(words, reason)


class StatusTests(FindingTestCase):
    """The broker that runs."""

    def check(self, answer: bytes | Exception) -> Finding:
        """Check one that answers that."""

        def fetch(url: str, timeoutSeconds: float) -> bytes:
            self.assertEqual((url, timeoutSeconds), ("http://127.0.0.1:9090/status.json", 3.0))
            if isinstance(answer, Exception):
                raise answer
            return answer

        return checkStatus("http://127.0.0.1:9090", fetch, 3.0)

    def test_well(self) -> None:
        """It says so itself, and if it is not, why."""
        for health, level, words in (
            ({"status": "ok", "reasons": []}, Level.OK, "2 min 5 s"),
            ({"status": "unavailable", "reasons": ["the disk is full"]}, Level.FAIL, "the disk is full"),
        ):
            self.assertFinds(self.check(json.dumps({"health": health, "uptimeSeconds": 125.0}).encode()), level, words)

    def test_nobody(self) -> None:
        """Nothing answers, or something else."""
        self.assertFinds(self.check(CommandFailed("nobody is there")), Level.FAIL, "nobody is there")
        for answer in (b"<html>", b"[]", b"{}", b'{"health": {}, "uptimeSeconds": null}'):
            self.assertFinds(self.check(answer), Level.FAIL, "http://127.0.0.1:9090")


class DiskTests(FindingTestCase):
    """Where the log is to live."""

    def setUp(self) -> None:
        """Have a directory."""
        self.path = Path(self.mktemp()).absolute()
        self.path.mkdir()

    def test_directory(self) -> None:
        """It is there and ours, or can be made."""
        self.assertFinds(checkDirectory(self.path), Level.OK, "can be written to")
        self.assertFinds(checkDirectory(self.path / "a" / "b"), Level.OK, "will be made")
        (self.path / "file").touch()
        self.assertFinds(checkDirectory(self.path / "file"), Level.FAIL, "is a file")

    def test_notOurs(self) -> None:
        """Else somebody has to give it to us."""
        self.patch(os, "access", lambda path, mode, **others: False)
        self.assertFinds(checkDirectory(self.path), Level.FAIL, f"user {os.geteuid()}", "--data")
        self.assertFinds(checkDirectory(self.path / "a"), Level.FAIL, f"cannot be made in {self.path}")

    def test_inUse(self) -> None:
        """A broker that uses it is named, and not disturbed; one that has ended is none."""
        lock = DirectoryLock(str(self.path))
        self.assertFinds(checkDirectory(self.path), Level.OK, f"in use by process {os.getpid()}")
        with (self.path / "broker.lock").open() as other, self.assertRaises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.release()
        self.assertFinds(checkDirectory(self.path), Level.OK, "can be written to")

    def check(self, kind: str, freeBytes: int = 10 * GIB, totalBytes: int = 20 * GIB) -> Finding:
        """Check a directory on a file system of that kind."""

        def space(path: Path) -> tuple[int, int]:
            self.assertEqual(path, self.path)
            return totalBytes, freeBytes

        mounts = f"/dev/root / ext4 rw 0 0\nthing {self.path} {kind} rw 0 0\n"
        return checkFileSystem(self.path / "made" / "later", mounts, space)

    def test_kinds(self) -> None:
        """
        A local disk is good; the memory of the machine and the layer of a container pass, and a
        network does not do.
        """
        for kind in ("ext4", "xfs", "btrfs", "zfs"):
            self.assertFinds(self.check(kind), Level.OK, f"{kind}, 10 GiB of 20 GiB free")
        self.assertFinds(self.check("tmpfs"), Level.WARN, "memory")
        self.assertFinds(self.check("overlay"), Level.WARN, "container", "volume")
        for kind in ("nfs4", "cifs", "9p", "fuse.sshfs"):
            self.assertFinds(self.check(kind), Level.FAIL, kind, "local disk")

    def test_space(self) -> None:
        """Some space must be free."""
        self.assertFinds(self.check("ext4", LITTLE_BYTES, 5 * GIB), Level.OK)
        self.assertFinds(self.check("ext4", LITTLE_BYTES - 1, 5 * GIB), Level.WARN, "1 GiB of", "log.retention.bytes")
        self.assertFinds(self.check("ext4", TOO_LITTLE_BYTES - 1), Level.FAIL)
        self.assertFinds(self.check("ext4", 0), Level.FAIL, "0 B of 20 GiB free")

    def test_share(self) -> None:
        """So must some share of a larger disk, though not of a very large one."""
        self.assertFinds(self.check("ext4", 9 * GIB, 100 * GIB), Level.WARN, "9 GiB of 100 GiB free")
        self.assertFinds(self.check("ext4", 10 * GIB, 100 * GIB), Level.OK)
        self.assertFinds(self.check("ext4", 49 * GIB, 10_000 * GIB), Level.WARN)
        self.assertFinds(self.check("ext4", 50 * GIB, 10_000 * GIB), Level.OK)

    def test_used(self) -> None:
        """Topics are named with what they use, the largest first and not all of them."""
        self.assertFinds(checkDiskUse(self.path), Level.OK, "no topic uses any")
        for number in range(8):
            for index in range(2):
                directory = self.path / "partitions" / f"a.b-c{number}-{index}.{2 * number + index}"
                directory.mkdir(parents=True)
                (directory / "00000000000000000000.log").write_bytes(bytes(100 << number))
        (self.path / "partitions" / "file").touch()
        self.assertEqual(bytesByTopic(self.path)["a.b-c7"], 25_600)
        self.assertEqual(
            checkDiskUse(self.path).what,
            "49.8 KiB: a.b-c7 25 KiB, a.b-c6 12.5 KiB, a.b-c5 6.25 KiB, a.b-c4 3.12 KiB, a.b-c3 1.56 KiB,"
            " 3 more 1.37 KiB",
        )

    def test_usedByOthers(self) -> None:
        """What cannot be read is said to be so."""

        def refuse(path: Path) -> None:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

        self.patch(os, "scandir", refuse)
        self.assertFinds(checkDiskUse(self.path), Level.WARN, "cannot be read", "user of the broker")

    def test_mounts(self) -> None:
        """The file system of a path is that of the longest mount above it, and of the last one there."""
        mounts = (
            "a / ext4 rw 0 0\nb /srv nfs rw 0 0\nc /srv/my\\040disk xfs rw 0 0\nd /over tmpfs rw 0 0\n"
            "e /over ext3 rw 0 0\nbroken\n"
        )
        for path, kind in (
            ("/", "ext4"),
            ("/srvother", "ext4"),
            ("/srv/a", "nfs"),
            ("/srv/my disk/a", "xfs"),
            ("/over/a", "ext3"),
        ):
            self.assertEqual(fileSystemOf(Path(path), mounts), kind)
        self.assertEqual(fileSystemOf(Path("/"), ""), "")


class PackageTests(FindingTestCase):
    """What is installed."""

    requirements = (
        "kio<0.7,>=0.6.5",
        'tool>=1; python_version < "3"',
        'pyspark<5,>=4.3; extra == "spark"',
        'numpy>=1.26; extra == "spark"',
        'numpy>=1.26; extra == "test"',
    )

    def packages(self, **installed: str) -> Finding:
        """Check with these versions."""
        return checkPackages(self.requirements, installed.get)

    def spark(self, **installed: str) -> Finding:
        """The same for an extra."""
        return checkExtra("spark", self.requirements, installed.get)

    def test_compiled(self) -> None:
        """It says whether the hot modules are compiled, and how to have that."""
        self.assertFinds(checkCompiled(True), Level.OK, "are")
        self.assertFinds(checkCompiled(False), Level.ABSENT, "are Python", "ADMISSION_COMPILE=1")

    def test_packages(self) -> None:
        """What we need must be there in a version that we know."""
        self.assertFinds(self.packages(kio="0.6.5"), Level.OK, "kio 0.6.5")
        self.assertFinds(self.packages(kio="0.6.9rc1"), Level.OK)
        self.assertFinds(self.packages(kio="0.7.0"), Level.FAIL, "kio 0.7.0 is not <0.7,>=0.6.5")
        self.assertFinds(self.packages(), Level.FAIL, "kio is not installed")

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
        """Have a directory with one module in it."""
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
        """Write the cache."""
        cached = {}
        for name, pluginNames in modules.items():
            dropin = cached[name] = CachedDropin(f"twisted.plugins.{name}", None)
            for each in pluginNames:
                CachedPlugin(dropin, each, None, [])
        path = self.path / "dropin.cache"
        path.write_bytes(pickle.dumps(cached))
        os.utime(path, (writtenSeconds, writtenSeconds))

    def check(self, isWritable: bool = True) -> Finding:
        """Check it."""
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
        """A factory."""
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


class ReportTests(SynchronousTestCase):
    """What was found is told to people and to programs."""

    findings = (
        ("memory", Finding(Level.OK, "plenty")),
        ("extra spark", Finding(Level.ABSENT, "not installed", "pip install it")),
        ("port tcp:\x1b[1m", Finding(Level.FAIL, "in use", "end that")),
    )

    def test_people(self) -> None:
        """A line for each finding, one for each remedy, and a sum; nothing that a terminal would obey."""
        output = StringIO()
        error = self.assertRaises(CommandFailed, report, self.findings, False, output)
        self.assertEqual(
            output.getvalue(),
            "ok      memory            plenty\n"
            "absent  extra spark       not installed\n"
            "                          -> pip install it\n"
            "fail    port tcp:\\x1b[1m  in use\n"
            "                          -> end that\n"
            "1 ok, 1 fail, 1 absent\n",
        )
        self.assertEqual(str(error), "a broker would not run well here: port tcp:\\x1b[1m")

    def test_programs(self) -> None:
        """The same as JSON."""
        output = StringIO()
        report(self.findings[:2], True, output)
        self.assertEqual(
            json.loads(output.getvalue()),
            [
                {"check": "memory", "level": "ok", "what": "plenty", "remedy": ""},
                {"check": "extra spark", "level": "absent", "what": "not installed", "remedy": "pip install it"},
            ],
        )

    def test_breaks(self) -> None:
        """A check that breaks is a finding, and those after it are done."""

        def fail() -> Finding:
            raise ZeroDivisionError("no zeros")

        findings = list(examine([("a", fail), ("b", lambda: self.findings[0][1])]))
        self.assertEqual([(name, each.level) for name, each in findings], [("a", Level.FAIL), ("b", Level.OK)])
        self.assertIn("ZeroDivisionError: no zeros", findings[0][1].what)


class OptionsTests(SynchronousTestCase):
    """What the doctor is told."""

    def parse(self, *arguments: str) -> DoctorOptions:
        """Parse a command line."""
        options = DoctorOptions()
        options.parseOptions(arguments)
        return options

    def test_examples(self) -> None:
        """The examples of the usage text parse."""
        lines = [each for each in DoctorOptions().getUsage().splitlines() if each.startswith("  admission doctor")]
        self.assertEqual(len(lines), 3)
        for line in lines:
            self.parse(*shlex.split(line)[2:])

    def test_mistakes(self) -> None:
        """What makes no sense is refused in words."""
        for arguments, words in (
            (("--set", "no.such=1"), "no.such"),
            (("--config", "nowhere.properties"), "nowhere.properties"),
            (("--status", "9090"), "write a URL"),
            (("--timeout", "0"), "--timeout"),
        ):
            error = self.assertRaises(UsageError, self.parse, *arguments)
            self.assertIn(words, str(error))

    def test_checks(self) -> None:
        """There is a check for each endpoint, and for the broker if it can be asked."""
        names = [name for name, _ in checksFor(self.parse())]
        self.assertEqual(names[-1], "port tcp:9092:interface=127.0.0.1")
        self.assertNotIn("broker", names)
        self.assertEqual(len(set(names)), len(names))
        more = self.parse("--listen", "tcp:1", "-l", "tcp:2", "--status", "http://127.0.0.1:9")
        self.assertEqual([name for name, _ in checksFor(more)][-3:], ["broker", "port tcp:1", "port tcp:2"])


class CommandTests(SynchronousTestCase):
    """The command as an operator runs it."""

    def test_machine(self) -> None:
        """
        This machine is examined from end to end: what works is not called broken, what is wrong
        decides the status.
        """
        with socket.create_server(("127.0.0.1", 0)) as taken:
            busy = f"tcp:{taken.getsockname()[1]}:interface=127.0.0.1"
            free = f"tcp:{freePort()}:interface=127.0.0.1"
            command = [sys.executable, "-m", "admission", "doctor", "--json", "--listen", busy, "--listen", free]
            result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        found = {each["check"]: each for each in json.loads(result.stdout)}
        self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1), result.stderr)
        self.assertIn(f"port {busy}", result.stderr)
        self.assertNotIn(f"port {free}", result.stderr)
        for check in ("Python", "packages", "reactor", "plug-in names", "plug-ins", "policies", f"port {free}"):
            self.assertEqual(found[check]["level"], "ok", found[check])
        self.assertEqual([each for each in found.values() if "could not be checked" in each["what"]], [])

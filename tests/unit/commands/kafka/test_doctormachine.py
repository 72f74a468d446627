"""Tests for L{admission.commands.kafka.doctormachine}."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
from pathlib import Path

from admission.commands.console import CommandFailed
from admission.commands.kafka.doctormachine import (
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
from admission.kafka.broker.brokersettings import loadSettings
from admission.kafka.serving.serversettings import RESERVED_DESCRIPTORS
from admission.kafka.storage.disk import DirectoryLock
from tests.kit.commandcases import FindingTestCase

GIB = 1 << 30


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


class PortTests(FindingTestCase):
    """What is to be listened on."""

    def check(
        self, description: str, reason: str | None = None, isPrivileged: bool = False, holder: str = ""
    ) -> Finding:
        """Check an endpoint that cannot be listened on for C{reason}."""
        return checkPort(description, reason, isPrivileged, 1024, holder)

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
        self.assertFinds(self.check("tcp:9092", reason, holder="process 12"), Level.OK, "in use: process 12")
        self.assertFinds(self.check("tcp:9092", "no such interface", holder="process 12"), Level.FAIL)

    def test_forbidden(self) -> None:
        """Privileges are missing, or those to write in a directory."""
        reason = "[Errno 13] Permission denied"
        self.assertFinds(self.check("tcp:92", reason), Level.FAIL, "CAP_NET_BIND_SERVICE")
        self.assertFinds(self.check("unix:socket", reason), Level.FAIL, "write there")


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

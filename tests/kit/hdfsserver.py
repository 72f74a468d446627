"""HDFS itself on this machine, fetched from Maven Central: a namenode and a datanode, for tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.kit.apachekafka import QUICK_START, fetched
from tests.kit.brokerprocess import DYING_WITH_US, ENVIRONMENT, PATIENCE_SECONDS, freePort

VERSION = "3.5.0"

_ARTIFACTS = (
    # It has the servers, which is what tests of Hadoop's clients need.
    f"org.apache.hadoop:hadoop-client-minicluster:{VERSION}",
    "ch.qos.reload4j:reload4j:1.2.25",
    "org.slf4j:slf4j-simple:1.7.36",
)

_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"

_SETTINGS = {
    "dfs.replication": "1",
    "dfs.namenode.http-address": "127.0.0.1:0",
    "dfs.namenode.safemode.extension": "0",
    "dfs.datanode.address": "127.0.0.1:0",
    "dfs.datanode.http.address": "127.0.0.1:0",
    "dfs.datanode.ipc.address": "127.0.0.1:0",
    "dfs.datanode.hostname": "127.0.0.1",
    # How soon a datanode comes to a namenode that was started later, or again.
    "dfs.heartbeat.interval": "1",
    "ipc.client.connect.max.retries": "1000",
    "ipc.client.connect.retry.interval": "200",
}

_START_SECONDS = 5 * PATIENCE_SECONDS

NAME_SERVICE = "recordings"
MOUNTS = "mounts"


class HdfsServer:
    """
    A namenode, which can be killed, frozen and started again, and a datanode.

    @ivar url: where clients find it.
    @ivar settings: environment variables with which clients find C{hdfs://recordings} and C{viewfs://mounts}, too.
        The user of this process may write everywhere.
    """

    def __init__(self) -> None:
        """@raise SkipTest: without Java and Maven, or where Maven cannot fetch it."""
        self._classPath = fetched("HDFS", f"hdfs-{VERSION}", _ARTIFACTS)
        self._directory = Path(tempfile.mkdtemp(prefix="admission-hdfs-"))
        address = f"127.0.0.1:{freePort()}"
        self.url = f"hdfs://{address}"
        self.settings = {"HADOOP_CONF_DIR": str(self._directory)}
        self._write("core-site.xml", {"fs.defaultFS": self.url, "hadoop.tmp.dir": str(self._directory / "data")})
        names = {
            f"dfs.ha.namenodes.{NAME_SERVICE}": "only",
            f"dfs.namenode.rpc-address.{NAME_SERVICE}.only": address,
            f"fs.viewfs.mounttable.{MOUNTS}.linkFallback": f"{self.url}/",
        }
        self._write("hdfs-site.xml", {**_SETTINGS, **names})
        self._namenode: subprocess.Popen[bytes] | None = None
        self._datanode: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start both, and wait until a file can be written."""
        # It looks for the namenode until it is there.
        self._datanode = self._run(_DATANODE)
        made = self._run(_NAMENODE, "-format", "-nonInteractive").wait(_START_SECONDS)
        assert made == 0, f"no file system was made:\n{self._log()}"
        self.startNamenode()
        self.awaitWritable()

    def startNamenode(self) -> None:
        """Start the namenode, without waiting until it serves."""
        self._namenode = self._run(_NAMENODE)

    def killNamenode(self) -> None:
        """End the namenode with no chance to do anything about it."""
        assert self._namenode is not None
        self._namenode.kill()
        self._namenode.wait()

    def freezeNamenode(self) -> None:
        """Let the namenode say nothing any more; the system goes on to take connections for it."""
        assert self._namenode is not None
        self._namenode.send_signal(signal.SIGSTOP)

    def thawNamenode(self) -> None:
        """Let it go on."""
        assert self._namenode is not None
        self._namenode.send_signal(signal.SIGCONT)

    def awaitWritable(self) -> None:
        """Wait until files can be written."""
        from hdfs_native import Client, WriteOptions

        deadline = time.monotonic() + _START_SECONDS
        client = Client(self.url, {"dfs.client.failover.max.attempts": "0"})
        while True:
            try:
                with client.create("/.tried", WriteOptions(overwrite=True)) as file:
                    file.write(b"x")
                return
            except (OSError, RuntimeError) as error:
                assert time.monotonic() < deadline, f"it does not take files: {error}\n{self._log()}"
                time.sleep(0.2)

    def remove(self) -> None:
        """End both, and remove what they have written."""
        for process in (self._namenode, self._datanode):
            if process is not None:
                process.kill()
                process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self, mainClass: str, *arguments: str) -> subprocess.Popen[bytes]:
        logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        classPath = f"{self._directory}{os.pathsep}{self._classPath}"
        command = ["java", "-Xmx256m", *QUICK_START, logging, "-cp", classPath, mainClass, *arguments]
        with open(self._directory / "log", "ab") as log:
            return subprocess.Popen(
                [*DYING_WITH_US, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**ENVIRONMENT, **self.settings},
            )

    def _write(self, name: str, settings: dict[str, str]) -> None:
        lines = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in settings.items()]
        self._directory.joinpath(name).write_text(f"<configuration>{''.join(lines)}</configuration>", "ascii")

    def _log(self) -> str:
        return self._directory.joinpath("log").read_text("utf-8", "replace")[-4000:]

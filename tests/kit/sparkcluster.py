"""A cluster of Spark on this machine, whose workers have Spark and Python and nothing else."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

import pyspark
from attrs import define

from tests.kit.brokerprocess import DYING_WITH_US, ENVIRONMENT, PATIENCE_SECONDS, freePort

SPARK = Path(pyspark.__file__).parent

_START_SECONDS = 3 * PATIENCE_SECONDS

_DEFAULTS = """
spark.ui.enabled false
spark.executor.memory 600m
spark.executor.cores 1
spark.sql.shuffle.partitions 2
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
# Nothing is begun before both workers are there.
spark.scheduler.minRegisteredResourcesRatio 1
spark.scheduler.maxRegisteredResourcesWaitingTime 60s
"""


@define
class SparkCluster:
    """
    A master and two workers of one core each.

    @ivar directory: of all files; it must not exist.
    @ivar settings: further environment variables of all processes, workers' Pythons included.
    @ivar addCleanup: takes what ends a process.
    @ivar address: of the master, once it is started.
    @ivar connectAddress: of the server of Spark Connect, likewise.
    """

    directory: Path
    settings: Mapping[str, str]
    addCleanup: Callable[..., object]
    address: str = ""
    connectAddress: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """Of processes that use the cluster."""
        return {
            **ENVIRONMENT,
            **self.settings,
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(self.directory / "work"),
            # Several Javas start here; what their second compiler would gain is less than it costs.
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }

    def start(self) -> None:
        """Start it."""
        configuration = self.directory / "conf"
        configuration.mkdir(parents=True)
        configuration.joinpath("spark-defaults.conf").write_text(_DEFAULTS)
        venv.create(self.directory / "python", symlinks=True)
        port = freePort()
        self.address = f"spark://127.0.0.1:{port}"
        self._daemon("spark-class", "org.apache.spark.deploy.master.Master", "--port", str(port), *_AT)
        _awaitPort(port)
        for _ in range(2):
            worker = ["org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g", *_AT, self.address]
            self._daemon("spark-class", *worker)

    def startConnect(self) -> None:
        """Start a server of Spark Connect, which takes all of the cluster."""
        port = freePort()
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        binding = f"spark.connect.grpc.binding.port={port}"
        self._daemon("spark-submit", "--master", self.address, "--conf", binding, *server)
        _awaitPort(port)
        self.connectAddress = f"sc://127.0.0.1:{port}"

    @property
    def python(self) -> Path:
        """The workers' Python."""
        return self.directory / "python" / "bin" / "python"

    def _daemon(self, program: str, *arguments: str) -> None:
        environment = {
            **self.environment,
            "SPARK_HOME": str(SPARK),
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
        }
        # Workers' Pythons see what a worker sees, and our packages are not where it runs.
        del environment["PYTHONPATH"]
        command = [*DYING_WITH_US, str(SPARK / "bin" / program), *arguments]
        with open(self.directory / "daemons.log", "a") as log:
            daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.directory)
        self.addCleanup(daemon.wait, PATIENCE_SECONDS)
        self.addCleanup(daemon.terminate)


_AT = ("--host", "127.0.0.1", "--webui-port", "0")


def _awaitPort(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"nobody listens at port {port}")

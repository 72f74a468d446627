"""
Apache Kafka itself, fetched from Maven Central: its tools, and a broker of one node.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from twisted.trial.unittest import SkipTest

from tests.kit.brokerprocess import PATIENCE_SECONDS, freePort
from tests.kit.checkout import ROOT

VERSION = "4.1.0"

_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>tests</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controllerPort}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllerPort}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
"""


def classPath() -> str:
    """
    Where Java finds Kafka; fetched once.

    @raise SkipTest: without Java and Maven, or where Maven cannot fetch it.
    """
    if shutil.which("java") is None or shutil.which("mvn") is None:
        raise SkipTest("Java and Maven are needed for Apache Kafka, and not installed")
    directory = ROOT / "build" / f"kafka-and-tools-{VERSION}"
    if not directory.exists():
        directory.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as unfinished:
            Path(unfinished, "pom.xml").write_text(_POM, "utf-8")
            fetched = subprocess.run(
                ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"],
                cwd=unfinished,
                capture_output=True,
                text=True,
            )
            if fetched.returncode:
                raise SkipTest(f"Maven could not fetch Apache Kafka: {fetched.stdout[-300:]}")
            shutil.move(Path(unfinished, "jars"), directory)
    return f"{directory}/*"


def dumpSegments(paths: Sequence[Path]) -> list[list[dict[str, str]]]:
    """
    The batches of some segments as Kafka's C{DumpLogSegments} describes them.

    @raise SkipTest: as L{classPath} does.
    """
    command = ["java", "-cp", classPath(), "kafka.tools.DumpLogSegments", "--files", ",".join(map(str, paths))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ran.returncode == 0, ran.stderr
    segments: list[list[dict[str, str]]] = []
    for line in ran.stdout.splitlines():
        words = line.replace(": ", " ").split()
        if line.startswith("Dumping"):
            segments.append([])
        elif line.startswith("baseOffset"):
            segments[-1].append(dict(zip(words[::2], words[1::2], strict=False)))
    return segments


class ApacheKafka:
    """
    A broker in a directory of its own, on loopback.
    """

    def __init__(self) -> None:
        """
        @raise SkipTest: as L{classPath} does.
        """
        self._classPath = classPath()
        self.port = freePort()
        self._directory = Path(tempfile.mkdtemp(prefix="admission-kafka-"))
        self.dataPath = self._directory / "data"
        self._properties = self._directory / "server.properties"
        self._properties.write_text(
            _PROPERTIES.format(port=self.port, controllerPort=freePort(), data=self.dataPath), "ascii"
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """
        Where clients find it.
        """
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """
        Its process.
        """
        assert self._process is not None, "it was never started"
        return self._process.pid

    def start(self) -> None:
        """
        Start it, without waiting until it serves: clients wait for that.
        """
        java = ["java", "-Xmx400m", "-cp", self._classPath]
        cluster = ["format", "-t", "AAAAAAAAAAAAAAAAAAAAAA", "-c", str(self._properties)]
        subprocess.run([*java, "kafka.tools.StorageTool", *cluster], check=True, capture_output=True)
        with open(self._directory / "log", "wb") as log:
            self._process = subprocess.Popen(
                [*java, "kafka.Kafka", str(self._properties)], stdout=log, stderr=subprocess.STDOUT
            )

    def stop(self) -> None:
        """
        End it, and wait until it has.
        """
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(PATIENCE_SECONDS)
            self._process = None

    def remove(self) -> None:
        """
        End it, and remove what it has written.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

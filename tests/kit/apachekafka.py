"""Apache Kafka itself, fetched from Maven Central: its tools, and its nodes."""

from __future__ import annotations

import atexit
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from twisted.trial.unittest import SkipTest

from tests.kit.brokerprocess import DYING_WITH_US, PATIENCE_SECONDS, freePort
from tests.kit.checkout import ROOT

VERSION = "4.1.0"

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>tests</artifactId><version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = """\
    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>\
"""

_ARTIFACTS = (
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    f"org.apache.kafka:kafka-tools:{VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)

QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""Options of Java for what is to start quickly rather than to be fast for long."""

_LOG_WARNINGS = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"

_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_LOG_TAIL_BYTES = 4000


def classPath() -> str:
    """
    Where Java finds Kafka; fetched once.

    @raise SkipTest: without Java and Maven, or where Maven cannot fetch it.
    """
    return fetched("Apache Kafka", f"kafka-tools-and-log-{VERSION}", _ARTIFACTS)


def fetched(what: str, name: str, artifacts: Sequence[str]) -> str:
    """
    Where Java finds something of Maven Central's, and what that needs; fetched once.

    @param what: what it is, in words.
    @param name: of the directory in C{build} where it is kept.
    @param artifacts: each as C{group:artifact:version}.
    @raise SkipTest: without Java and Maven, or where Maven cannot fetch it.
    """
    if shutil.which("java") is None or shutil.which("mvn") is None:
        raise SkipTest(f"Java and Maven are needed for {what}, and not installed")
    directory = ROOT / "build" / name
    if not directory.exists():
        directory.parent.mkdir(exist_ok=True)
        dependencies = "\n".join(_DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
        with tempfile.TemporaryDirectory(dir=directory.parent) as unfinished:
            Path(unfinished, "pom.xml").write_text(_POM.format(dependencies=dependencies), "utf-8")
            ran = subprocess.run(
                ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"],
                cwd=unfinished,
                capture_output=True,
                text=True,
            )
            if ran.returncode:
                raise SkipTest(f"Maven could not fetch {what}: {ran.stdout[-300:]}")
            shutil.move(Path(unfinished, "jars"), directory)
    return f"{directory}/*"


def java(mainClass: str, *arguments: str, options: Sequence[str] = ("-Xmx256m", *QUICK_START)) -> list[str]:
    """
    The command for something of Kafka's, which writes warnings to standard error, and dies with us.

    @param options: those of Java.
    @raise SkipTest: as L{classPath} does.
    """
    return [*DYING_WITH_US, "java", *options, _LOG_WARNINGS, "-cp", classPath(), mainClass, *arguments]


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


class KafkaNode:
    """
    A node in a directory of its own.  It can be started, ended in several ways and started again.

    @cvar javaOptions: of Java.
    @ivar dataPath: its data directory.
    @ivar properties: what is in C{server.properties}, read whenever it is started.
    """

    javaOptions: Sequence[str] = ("-Xmx400m",)

    def __init__(self, properties: Mapping[str, str]) -> None:
        """
        @param properties: all but C{log.dirs}.
        @raise SkipTest: as L{classPath} does.
        """
        classPath()
        self._directory = Path(tempfile.mkdtemp(prefix="admission-kafka-"))
        self.dataPath = self._directory / "data"
        self.properties = {**properties, "log.dirs": str(self.dataPath)}
        self._file = self._directory / "server.properties"
        self._log = self._directory / "log"
        self._formatting: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.remove)

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None, "it was never started"
        return self._process.pid

    def isRunning(self) -> bool:
        """Whether the process lives, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def format(self, *options: str) -> None:
        """
        Begin to make the data directory, which L{start} waits for.

        @param options: further ones of C{kafka-storage format}.
        """
        command = java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._file), *options)
        self._formatting = self._run(command)

    def start(self) -> None:
        """Start it, without waiting until it serves: clients wait for that."""
        assert not self.isRunning(), "it runs already"
        if self._formatting is not None:
            assert self._formatting.wait(PATIENCE_SECONDS) == 0, f"no data directory was made:\n{self.logTail()}"
            self._formatting = None
        self._process = self._run(java("kafka.Kafka", str(self._file), options=self.javaOptions))

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with no chance to do anything about it."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Let it do nothing any more; the system goes on to take connections for it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def logTail(self) -> str:
        """The last of what it has written."""
        return self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace") if self._log.exists() else ""

    def remove(self) -> None:
        """End it, and remove what it has written."""
        for process in (self._formatting, self._process):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
        atexit.unregister(self.remove)

    def _run(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        self._file.write_text("".join(f"{name}={value}\n" for name, value in self.properties.items()), "ascii")
        with open(self._log, "ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None, "it was never started"
        self._process.send_signal(number)
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"{number.name} did not end Apache Kafka:\n{self.logTail()}") from None


class ApacheKafka(KafkaNode):
    """
    A broker of one node, on loopback.

    @ivar port: where clients find it.
    """

    def __init__(self) -> None:
        """@raise SkipTest: as L{classPath} does."""
        self.port, controllerPort = freePort(), freePort()
        super().__init__(
            {
                "process.roles": "broker,controller",
                "node.id": "1",
                "controller.quorum.voters": f"1@127.0.0.1:{controllerPort}",
                "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controllerPort}",
                "controller.listener.names": "CONTROLLER",
                "offsets.topic.replication.factor": "1",
            }
        )

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, without waiting until it serves: clients wait for that."""
        self.format()
        super().start()

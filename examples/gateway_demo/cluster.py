"""
A cluster of Apache Kafka for the duration of a block: three nodes on this machine, each broker and controller.
"""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

VERSION = "4.1.0"
NODE_IDS = (1, 2, 3)
PASSWORD = "secret"

_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>demo</groupId><artifactId>demo</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""

_JAVA = ("java", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.1


class DemoFailed(Exception):
    """
    It cannot go on, in words for the user who has started it.
    """


def freePorts(count: int) -> int:
    """
    Ports in a row that nobody listens on, and that the system does not give to outgoing connections.

    @return: the first of them.
    """
    while True:
        port = random.randrange(20_000, 32_000 - count)
        with ExitStack() as probes, suppress(OSError):
            for number in range(count):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port + number))
            return port


def fetchKafka(directory: Path) -> str:
    """
    Have Apache Kafka fetched from Maven Central, unless it is there.

    @param directory: where it is kept.
    @return: the class path of it.
    @raise DemoFailed: without Java or Maven, or where Maven cannot fetch it.
    """
    if shutil.which("java") is None:
        raise DemoFailed("the demo needs Java 17 or later for Apache Kafka, and there is no java on the PATH")
    if not directory.exists():
        if shutil.which("mvn") is None:
            raise DemoFailed("the demo fetches Apache Kafka with Maven, and there is no mvn on the PATH")
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as unfinished:
            Path(unfinished, "pom.xml").write_text(_POM, "utf-8")
            fetched = subprocess.run(
                ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"],
                cwd=unfinished,
                capture_output=True,
                text=True,
            )
            if fetched.returncode:
                raise DemoFailed(f"Maven could not fetch Apache Kafka: {fetched.stdout[-300:].strip()}")
            shutil.move(Path(unfinished, "jars"), directory)
    return f"{directory}/*"


class Cluster:
    """
    Three nodes that serve.

    @ivar bootstrap: where clients find them, who have to log in by PLAIN.
    """

    def __init__(self, classPath: str, directory: Path, users: Sequence[str]) -> None:
        """
        @param directory: for all that the nodes write.
        @param users: who may log in, all with L{PASSWORD}.
        """
        self._classPath = classPath
        self._directory = directory
        first = freePorts(3 * len(NODE_IDS))
        # Of each node the ports for clients, for other nodes and for controllers.
        self._ports = {nodeId: range(first + 3 * index, first + 3 * index + 3) for index, nodeId in enumerate(NODE_IDS)}
        self._users = users
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{client}" for client, _, _ in self._ports.values())

    def start(self) -> None:
        """
        Format the nodes, start them, and wait until they know each other.

        @raise DemoFailed: if that takes too long.
        """
        formatting = []
        for nodeId in NODE_IDS:
            file = self._directory / f"node-{nodeId}.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in self._properties(nodeId).items()), "ascii")
            command = self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(file))
            formatting.append(self._run(nodeId, command))
        for nodeId, process in zip(NODE_IDS, formatting, strict=True):
            if process.wait(_PATIENCE_SECONDS):
                raise DemoFailed(f"no data directory of a node could be made; {self._log(nodeId)} says why")
        self._processes = [
            self._run(nodeId, self._java("kafka.Kafka", str(self._directory / f"node-{nodeId}.properties")))
            for nodeId in NODE_IDS
        ]
        self._awaitNodes()

    def stop(self) -> None:
        """
        End the nodes, of which nothing is needed any more.
        """
        for process in self._processes:
            process.kill()
            process.wait()

    def createTopic(self, topic: str) -> None:
        """
        Make a topic with three replicas of one partition.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        # Kept until it has answered.
        admin = self._admin()
        try:
            admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(_PATIENCE_SECONDS)
        except KafkaException as error:
            raise DemoFailed(f"the topic {topic} cannot be made: {error}") from error

    def producerCount(self, topic: str) -> int:
        """
        How many producers the cluster remembers for a topic, by Kafka's own tool.

        @raise DemoFailed: if the tool fails.
        """
        command = self._java(
            "org.apache.kafka.tools.TransactionsCommand",
            *("--bootstrap-server", f"127.0.0.1:{self._ports[NODE_IDS[0]][1]}"),
            *("describe-producers", "--topic", topic, "--partition", "0"),
        )
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS)
        if ran.returncode:
            raise DemoFailed(f"the cluster does not say which producers it remembers: {ran.stderr[-300:].strip()}")
        return sum(line.split()[:1] != ["ProducerId"] for line in ran.stdout.splitlines() if line.strip())

    def _properties(self, nodeId: int) -> Mapping[str, str]:
        client, internal, controller = self._ports[nodeId]
        voters = ",".join(f"{voter}@127.0.0.1:{ports[2]}" for voter, ports in self._ports.items())
        users = " ".join(f'user_{user}="{PASSWORD}"' for user in self._users)
        return {
            "node.id": str(nodeId),
            "process.roles": "broker,controller",
            "controller.quorum.voters": voters,
            "listeners": f"CLIENT://127.0.0.1:{client},INTERNAL://127.0.0.1:{internal},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "INTERNAL",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.client.plain.sasl.jaas.config": (
                f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
            ),
            "log.dirs": str(self._directory / f"node-{nodeId}"),
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "3",
        }

    def _awaitNodes(self) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(self._nodes()) < len(NODE_IDS):
            ended = [nodeId for nodeId, each in zip(NODE_IDS, self._processes, strict=True) if each.poll() is not None]
            if ended:
                raise DemoFailed(f"node {ended[0]} has ended; {self._log(ended[0])} says why")
            if time.monotonic() > deadline:
                raise DemoFailed(f"the nodes did not find each other; {self._log(NODE_IDS[0])} says what they did")
            time.sleep(_POLL_SECONDS)

    def _nodes(self) -> Mapping[int, object]:
        from confluent_kafka import KafkaException

        try:
            nodes: Mapping[int, object] = self._admin().list_topics(timeout=2).brokers
        except KafkaException:
            return {}
        return nodes

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        internal = ",".join(f"127.0.0.1:{port}" for _, port, _ in self._ports.values())
        return AdminClient({"bootstrap.servers": internal, "log_level": 0})

    def _java(self, mainClass: str, *arguments: str) -> Sequence[str]:
        return [*_JAVA, _QUIET, "-cp", self._classPath, mainClass, *arguments]

    def _run(self, nodeId: int, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._log(nodeId).open("ab") as log:
            # In a session of its own, or Ctrl-C would end it before us.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _log(self, nodeId: int) -> Path:
        return self._directory / f"node-{nodeId}.log"


@contextmanager
def threeNodes(classPath: str, directory: Path, users: Sequence[str]) -> Iterator[Cluster]:
    """
    Run a cluster.

    @param classPath: of Apache Kafka.
    @param directory: for all that it writes; exists.
    @param users: who may log in.
    @raise DemoFailed: if it does not start.
    """
    cluster = Cluster(classPath, directory, users)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()

"""A cluster of Apache Kafka on this machine, whose nodes can be killed, stopped, frozen, moved and added to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from functools import cache
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.apachekafka import QUICK_START, KafkaNode
from tests.kit.brokerprocess import PATIENCE_SECONDS, certificates, freePort

USER = "alice"
PASSWORD = "open-sesame"
"""Known to clusters with C{sasl}, by PLAIN and by SCRAM."""

_FIRST_NODES = (1, 2, 3)
_POLL_SECONDS = 0.05

_PROPERTIES = {
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "INTERNAL",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # Each partition costs a directory and three files on each node, before the first member is served.
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    # Others are told soon of a second member; 5 seconds otherwise.
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.heartbeat.interval.ms": "500",
    # A node that died is missed after that.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "6000",
}

_SASL = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.client.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required"
    f' user_{USER}="{PASSWORD}";',
    **{
        f"listener.name.client.scram-sha-{bits}.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        )
        for bits in (256, 512)
    },
}


class _ClusterNode(KafkaNode):
    """
    One of several.

    @ivar host: where clients find it; no other node's clients do.
    @ivar port: the same.
    """

    javaOptions = ("-Xmx320m", *QUICK_START)

    def __init__(
        self, nodeId: int, voters: Mapping[int, int], clientProtocol: str, security: Mapping[str, str]
    ) -> None:
        """
        @param voters: the ports of the controllers, by their nodes.
        @param clientProtocol: of Kafka's security protocols the one that clients speak.
        @param security: further properties.
        """
        self.host = f"127.0.0.{nodeId + 1}"
        self.port = freePort(self.host)
        self._internal = f"INTERNAL://127.0.0.1:{freePort()}"
        self._controller = [f"CONTROLLER://127.0.0.1:{voters[nodeId]}"] if nodeId in voters else []
        super().__init__(
            {
                **_PROPERTIES,
                **security,
                "node.id": str(nodeId),
                "process.roles": "broker,controller" if nodeId in voters else "broker",
                "controller.quorum.voters": ",".join(f"{voter}@127.0.0.1:{port}" for voter, port in voters.items()),
                "listener.security.protocol.map": (f"CLIENT:{clientProtocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"),
            }
        )
        self._listen()

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"{self.host}:{self.port}"

    @property
    def internalAddress(self) -> str:
        """Where the other nodes find it."""
        return self._internal.removeprefix("INTERNAL://")

    def move(self) -> None:
        """Have clients find it at another port, from its next start on."""
        self.port = freePort(self.host)
        self._listen()

    def _listen(self) -> None:
        self.properties["listeners"] = ",".join([f"CLIENT://{self.address}", self._internal, *self._controller])


class KafkaCluster:
    """
    Three nodes, each broker and controller: 1, 2 and 3.  Topics have three replicas unless they are told otherwise, of
    which two must be in sync.

    Clients find node N at C{127.0.0.(N + 1)}, so that its address cannot be mistaken for another's; it is the same
    machine.  Nodes find each other, and the tests find them, at listeners of their own, which are never encrypted and
    want no login.
    """

    def __init__(self, *, sasl: bool = False, tls: bool = False, properties: Mapping[str, str] = {}) -> None:
        """
        @param sasl: whether clients have to log in, as L{USER}.
        @param tls: whether clients have to use TLS; the authority is that of L{certificates}.
        @param properties: further ones of all nodes.
        @raise SkipTest: without Java, or what Maven should fetch.
        """
        self._isSasl = sasl
        self._protocol = ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")
        self._security = (_SASL if sasl else {}) | (_tlsProperties() if tls else {}) | {**properties}
        self._voters = {nodeId: freePort() for nodeId in _FIRST_NODES}
        self._nodes: dict[int, _ClusterNode] = {}
        for nodeId in _FIRST_NODES:
            self._make(nodeId)

    @property
    def nodeIds(self) -> list[int]:
        """All nodes there ever were."""
        return list(self._nodes)

    @property
    def bootstrap(self) -> str:
        """Where clients find all nodes, separated by commas."""
        return ",".join(node.address for node in self._nodes.values())

    def address(self, nodeId: int) -> str:
        """Where clients find a node, as C{host:port}."""
        return self._nodes[nodeId].address

    def pid(self, nodeId: int) -> int:
        """The process of a node."""
        return self._nodes[nodeId].pid

    def start(self) -> None:
        """
        Start all nodes, and wait until each is known to the others.

        @raise AssertionError: if that takes too long, with what the nodes have logged.
        """
        for node in self._nodes.values():
            node.start()
        self.waitUntilRegistered()

    def kill(self, nodeId: int) -> None:
        """End a node with no chance to do anything about it."""
        self._nodes[nodeId].kill()

    def stop(self, nodeId: int) -> None:
        """Ask a node to end, which hands over what it leads before."""
        self._nodes[nodeId].stop()

    def restart(self, nodeId: int) -> None:
        """Start a node that was ended, and wait until the others know it."""
        self._nodes[nodeId].start()
        self.waitUntilRegistered()

    def move(self, nodeId: int) -> None:
        """End a node, and start it again where clients find it at another port."""
        self.stop(nodeId)
        self._nodes[nodeId].move()
        self.restart(nodeId)

    def freeze(self, nodeId: int) -> None:
        """Let a node do nothing any more, until L{thaw}."""
        self._nodes[nodeId].freeze()

    def thaw(self, nodeId: int) -> None:
        """Let a frozen node go on."""
        self._nodes[nodeId].thaw()

    def addNode(self) -> int:
        """
        Start one more node, which is only a broker, and wait until the others know it.

        @return: its id.
        """
        nodeId = max(self._nodes) + 1
        self._make(nodeId)
        self.restart(nodeId)
        return nodeId

    def heal(self) -> None:
        """
        Undo what was done to the nodes: thaw them, start those that do not run, and wait until they
        have caught up.
        """
        for node in self._nodes.values():
            if node.isRunning():
                node.thaw()
            else:
                node.start()
        self.waitUntilRegistered()
        self._waitUntil("all replicas are in sync", self._isInSync)

    def remove(self) -> None:
        """End all nodes, and remove what they have written."""
        for node in self._nodes.values():
            node.remove()

    # What tests ask, past any gateway

    def createTopic(
        self, topic: str, partitionCount: int = 3, *, replicas: Iterable[Iterable[int]] = (), **config: object
    ) -> None:
        """
        Make a topic, and wait until all nodes know it.

        @param replicas: the nodes of each partition, its leader first; by default the cluster chooses three.
        @param config: settings of the topic, with underscores for dots.
        """
        chosen = [list(each) for each in replicas]
        new = NewTopic(
            topic,
            len(chosen) or partitionCount,
            config={name.replace("_", "."): str(value) for name, value in config.items()},
            **({"replica_assignment": chosen} if chosen else {}),
        )
        # Kept until it has answered.
        admin = self._admin()
        admin.create_topics([new])[topic].result(PATIENCE_SECONDS)
        running = [node for node in self._nodes.values() if node.isRunning()]
        self._waitUntil(
            f"all nodes know {topic}", lambda: all(topic in self._metadata(node).topics for node in running)
        )

    def clear(self) -> None:
        """Delete all topics but Kafka's own, and all groups that have no members."""
        admin = self._admin()
        topics = [topic for topic in self._metadata().topics if not topic.startswith("__")]
        deleted = [*admin.delete_topics(topics).values()] if topics else []
        groups = [each.group_id for each in admin.list_consumer_groups().result(PATIENCE_SECONDS).valid]
        deleted += admin.delete_consumer_groups(groups).values() if groups else []
        for each in deleted:
            with suppress(KafkaException):
                each.result(PATIENCE_SECONDS)
        running = [node for node in self._nodes.values() if node.isRunning()]
        self._waitUntil(
            "no node knows a topic",
            lambda: not any(topic in self._metadata(node).topics for node in running for topic in topics),
        )

    def leaders(self, topic: str) -> dict[int, int]:
        """The node that leads each partition, -1 for none."""
        return {index: partition.leader for index, partition in self._metadata().topics[topic].partitions.items()}

    def values(self, topic: str, *, isCommitted: bool = False) -> list[bytes]:
        """
        All records of a topic, as they are now.

        @param isCommitted: whether to leave out those of transactions that were not committed.
        """
        consumer = self._consumer("values", isolation_level="read_committed" if isCommitted else "read_uncommitted")
        ends = {}
        for index in self._metadata().topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, index), PATIENCE_SECONDS)
            if low < high:
                ends[index] = high
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in ends])
        values: list[bytes] = []

        def isRead() -> bool:
            # Behind the last record there may be a transaction's marker.
            for message in consumer.consume(1000, _POLL_SECONDS):
                if message.error() is None:
                    values.append(message.value())
            places = consumer.position([TopicPartition(topic, index) for index in ends])
            return all(place.offset >= ends[place.partition] for place in places)

        with closing(consumer):
            self._waitUntil(f"{topic} is read", isRead)
        return values

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Where a group goes on in each partition."""
        places = [TopicPartition(topic, index) for index in self._metadata().topics[topic].partitions]
        with closing(self._consumer(group)) as consumer:
            return {each.partition: max(each.offset, 0) for each in consumer.committed(places, PATIENCE_SECONDS)}

    def waitUntilRegistered(self) -> None:
        """Wait until all nodes that run know each other."""
        running = {nodeId: node for nodeId, node in self._nodes.items() if node.isRunning()}
        self._waitUntil(
            f"the nodes {list(running)} know each other",
            lambda: all(set(running) <= set(self._metadata(node).brokers) for node in running.values()),
        )

    def _make(self, nodeId: int) -> None:
        self._nodes[nodeId] = node = _ClusterNode(nodeId, self._voters, self._protocol, self._security)
        # Of combined nodes all must know the users, since any may be the first controller.
        users = [f"SCRAM-SHA-{bits}=[name={USER},password={PASSWORD}]" for bits in (256, 512)] if self._isSasl else []
        scram = [word for user in users for word in ("--add-scram", user)]
        node.format("--feature", "share.version=1", *scram)

    def _admin(self, node: _ClusterNode | None = None) -> Any:
        asked = [node] if node is not None else [each for each in self._nodes.values() if each.isRunning()]
        addresses = ",".join(each.internalAddress for each in asked)
        return AdminClient({"bootstrap.servers": addresses, "log_level": 0, "socket.timeout.ms": 5000})

    def _consumer(self, group: str, **settings: object) -> Any:
        addresses = ",".join(node.internalAddress for node in self._nodes.values() if node.isRunning())
        common = {"bootstrap.servers": addresses, "group.id": group, "enable.auto.commit": False, "log_level": 0}
        return Consumer(common | {name.replace("_", "."): value for name, value in settings.items()})

    def _metadata(self, node: _ClusterNode | None = None) -> Any:
        return self._admin(node).list_topics(timeout=5)

    def _isInSync(self) -> bool:
        return all(
            len(partition.isrs) == len(partition.replicas)
            for topic in self._metadata().topics.values()
            for partition in topic.partitions.values()
        )

    def _waitUntil(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if condition():
                    return
                trouble = ""
            except KafkaException as error:
                trouble = f" ({error})"
            if time.monotonic() > deadline:
                tails = "\n".join(f"Node {nodeId}:\n{node.logTail()}" for nodeId, node in self._nodes.items())
                raise AssertionError(f"waited in vain until {what}{trouble}\n{tails}")
            time.sleep(_POLL_SECONDS)


def _tlsProperties() -> dict[str, str]:
    files = certificates()
    # In a file of properties, a line ends where the file's does.
    chain, key, authority = (
        path.read_text("ascii").strip().replace("\n", "\\n")
        for path in (files.serverCertificate, files.serverKey, files.authority)
    )
    prefix = "listener.name.client.ssl."
    return {
        f"{prefix}keystore.type": "PEM",
        f"{prefix}keystore.certificate.chain": chain,
        f"{prefix}keystore.key": key,
        f"{prefix}truststore.type": "PEM",
        f"{prefix}truststore.certificates": authority,
    }


@cache
def sharedCluster() -> KafkaCluster:
    """A running cluster for tests that leave it whole, see L{KafkaCluster.heal}; it ends when the tests do."""
    cluster = KafkaCluster()
    cluster.start()
    return cluster

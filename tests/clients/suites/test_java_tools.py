"""Apache Kafka's own tools."""

from __future__ import annotations

import json

from tests.clients.suites.results import Outcome, Suite
from tests.clients.suites.suitecase import SuiteCase
from tests.kit.apachekafka import VERSION, classPath, java

_TOOLS = "org.apache.kafka.tools"
_MAIN_CLASSES = {
    "kafka-acls": f"{_TOOLS}.AclCommand",
    "kafka-broker-api-versions": f"{_TOOLS}.BrokerApiVersionsCommand",
    "kafka-cluster": f"{_TOOLS}.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": f"{_TOOLS}.consumer.ConsoleConsumer",
    "kafka-console-producer": f"{_TOOLS}.ConsoleProducer",
    "kafka-consumer-groups": f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": f"{_TOOLS}.ConsumerPerformance",
    "kafka-delete-records": f"{_TOOLS}.DeleteRecordsCommand",
    "kafka-get-offsets": f"{_TOOLS}.GetOffsetShell",
    "kafka-leader-election": f"{_TOOLS}.LeaderElectionCommand",
    "kafka-log-dirs": f"{_TOOLS}.LogDirsCommand",
    "kafka-producer-perf-test": f"{_TOOLS}.ProducerPerformance",
    "kafka-reassign-partitions": f"{_TOOLS}.reassign.ReassignPartitionsCommand",
    "kafka-topics": f"{_TOOLS}.TopicCommand",
    "kafka-transactions": f"{_TOOLS}.TransactionsCommand",
    "kafka-verifiable-consumer": f"{_TOOLS}.VerifiableConsumer",
    "kafka-verifiable-producer": f"{_TOOLS}.VerifiableProducer",
}


class JavaToolsTests(SuiteCase):
    """What its users do with a topic, a group, a limit and a user."""

    suite = Suite("java_tools", f"Apache Kafka {VERSION}: its tools", "Java and Maven")

    def prepare(self) -> None:
        """See L{SuiteCase.prepare}."""
        classPath()

    def tried(self, what: str, wanted: str, outcome: Outcome = Outcome.WORKS, input: str = "", shown: str = "") -> None:
        """
        Use a tool.

        @param what: the command line, but for where the broker is.
        @param wanted: part of what the tool is to print.
        @param input: what it reads.
        @param shown: the command line as the results have it, if it differs.
        """
        tool, *arguments = what.split()
        if tool == "kafka-producer-perf-test":
            place = ["--producer-props", f"bootstrap.servers={self.address}"]
        else:
            place = ["--bootstrap-server", self.address]
        if arguments and not arguments[0].startswith("-"):
            place = [arguments.pop(0), *place]
            if tool == "kafka-transactions":
                place = [*place[1:], place[0]]
        printed, isWell = self.ran(java(_MAIN_CLASSES[tool], *place, *arguments), input)
        # Some print nothing if all is well, and some end with 0 if not.
        self.assertEqual("Exception" in printed or not isWell, outcome is Outcome.REFUSED, f"{what}: {printed}")
        self.found(shown or what, printed, wanted, outcome)

    def file(self, contents: str) -> str:
        """A file that a tool reads."""
        path = self.mktemp()
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(contents)
        return path

    def test_tools(self) -> None:
        """Everything is as the results say."""
        self._topics()
        self._configs()
        self._records()
        self._groups()
        self._cluster()
        self.check()

    def _topics(self) -> None:
        create = "kafka-topics --create --topic"
        self.tried(f"{create} events --partitions 3 --config segment.bytes=1048576", "Created topic events.")
        self.tried(f"{create} lz4 --config compression.type=lz4 --config min.insync.replicas=1", "Created topic lz4.")
        self.tried(f"{create} x --config cleanup.policy=compact", "does not compact", Outcome.REFUSED)
        self.tried(f"{create} x --config min.insync.replicas=2", "there is one broker", Outcome.REFUSED)
        self.tried(f"{create} x --replication-factor 3", "there is one broker", Outcome.REFUSED)
        self.tried("kafka-topics --list", "events")
        self.tried("kafka-topics --describe --topic events", "PartitionCount: 3")
        self.tried("kafka-topics --alter --topic events --partitions 4", "")
        self.tried("kafka-topics --describe", "Topic: events	Partition: 3	Leader: 1")
        self.tried("kafka-topics --delete --topic lz4", "")

    def _configs(self) -> None:
        topic = "kafka-configs --entity-type topics --entity-name events"
        self.tried(f"{topic} --alter --add-config retention.ms=3600000", "Completed updating config for topic events.")
        self.tried(f"{topic} --describe", "DYNAMIC_TOPIC_CONFIG:retention.ms=3600000")
        self.tried(f"{topic} --alter --delete-config retention.ms", "Completed updating config for topic events.")
        self.tried(
            "kafka-configs --entity-type brokers --entity-name 1 --describe --all", "advertised.listeners=PLAINTEXT://"
        )
        self.tried(
            "kafka-configs --entity-type clients --entity-name a --alter --add-config producer_byte_rate=1000000",
            "Completed updating config for client a.",
        )
        self.tried("kafka-configs --entity-type clients --describe", "producer_byte_rate=1000000.0")
        self.tried("kafka-configs --entity-type users --describe", "")
        self.tried(
            "kafka-configs --entity-type users --entity-name a --alter --add-config SCRAM-SHA-256=[password=secret]",
            "this broker has no file of users; start it with --auth scram:FILE",
            Outcome.REFUSED,
        )

    def _records(self) -> None:
        self.tried("kafka-console-producer --topic events", "", input="first\nsecond\n")
        self.tried("kafka-console-consumer --topic events --from-beginning --max-messages 2", "second")
        self.tried(
            "kafka-producer-perf-test --topic events --num-records 1000 --record-size 100 --throughput -1",
            "1000 records sent",
        )
        self.tried("kafka-consumer-perf-test --topic events --messages 1000 --timeout 30000", "data.consumed.in.nMsg")
        self.tried("kafka-verifiable-producer --topic events --max-messages 5", '"sent":5,"acked":5')
        self.tried("kafka-get-offsets --topic events", "events:3:")
        deleted = {"partitions": [{"topic": "events", "partition": 0, "offset": -1}], "version": 1}
        shown = "kafka-delete-records --offset-json-file FILE"
        path = self.file(json.dumps(deleted))
        self.tried(f"kafka-delete-records --offset-json-file {path}", "low_watermark:", shown=shown)

    def _groups(self) -> None:
        self.tried(
            "kafka-verifiable-consumer --topic events --group-id readers --max-messages 5", '"name":"offsets_committed"'
        )
        self.tried("kafka-consumer-groups --list", "readers")
        self.tried("kafka-consumer-groups --describe --group readers", "LOG-END-OFFSET")
        self.tried("kafka-consumer-groups --describe --group readers --state", "Empty")
        self.tried(
            "kafka-consumer-groups --reset-offsets --group readers --topic events --to-earliest --execute", "NEW-OFFSET"
        )
        self.tried("kafka-consumer-groups --delete-offsets --group readers --topic events", "Successful")
        self.tried("kafka-consumer-groups --delete --group readers", "was successful")

    def _cluster(self) -> None:
        self.tried("kafka-acls --list", "this broker has no access control lists", Outcome.REFUSED)
        self.tried("kafka-broker-api-versions", "Produce(0): 0 to 12")
        self.tried("kafka-cluster cluster-id", "Cluster ID: ")
        self.tried("kafka-leader-election --election-type preferred --all-topic-partitions", "")
        self.tried("kafka-log-dirs --describe", '"partition":"events-0"')
        self.tried("kafka-reassign-partitions --list", "No partition reassignments found.")
        self.tried("kafka-transactions list", "TransactionalId")
        self.tried("kafka-transactions describe-producers --topic events --partition 0", "ProducerId")

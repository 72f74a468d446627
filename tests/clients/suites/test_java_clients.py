"""Java's clients of all times, and Kafka Streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from tests.clients.suites.results import Outcome, Suite
from tests.clients.suites.suitecase import LIMITED, PROGRAMS, SuiteCase
from tests.kit.apachekafka import QUICK_START, VERSION, classPath, fetched

CLIENTS: Final = ("0.10.2.2", "0.11.0.3", "1.1.1", "2.8.2", "3.9.0", VERSION)

TRANSACTIONAL: Final = ("2.8.2", VERSION)
"""Those whose transactions are tried: the protocol before KIP-890, and with it."""

_LOGGER: Final = "org.slf4j:slf4j-simple:1.7.36"


class JavaClientsTests(SuiteCase):
    """Programs as people write them."""

    suite = Suite("java_clients", f"Java clients from 0.10 to {VERSION}, and Kafka Streams {VERSION}", "Java and Maven")
    newGroups: ClassVar[Mapping[str, Outcome]] = {
        "group.protocol=consumer: The cluster does not support the new CONSUMER group protocol": Outcome.REFUSED,
        "share group: The cluster does not support the share group protocol": Outcome.REFUSED,
    }
    transactions: ClassVar[Mapping[str, Outcome]] = {
        "initTransactions: Transactional Id authorization failed": Outcome.REFUSED
    }

    def prepare(self) -> None:
        """See L{SuiteCase.prepare}."""
        classPath()

    def program(self, jars: str, name: str, *arguments: str) -> str:
        """
        Run a program.

        @param jars: where Java finds what it needs.
        @return: what it has printed.
        """
        log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        source = str(PROGRAMS / f"{name}.java")
        printed, _ = self.ran(["java", "-Xmx256m", *QUICK_START, log, "-cp", jars, source, *arguments])
        return printed

    def test_clients(self) -> None:
        """Everything is as the results say."""
        for version in CLIENTS:
            artifacts = [f"org.apache.kafka:kafka-clients:{version}", _LOGGER]
            jars = fetched(f"Kafka's clients of {version}", f"kafka-clients-{version}", artifacts)
            printed = self.program(jars, "RoundTrip", self.address, f"events-{version}")
            what = f"kafka-clients {version}: produce, and read in a group"
            if version.startswith("0.10"):
                self.found(what, printed, "refused at once: The version of API is not supported.", Outcome.REFUSED)
            else:
                self.found(what, printed, "read 100 records")
            if version in TRANSACTIONAL:
                self._transactions(version, jars)
        newest = fetched("Kafka's clients", f"kafka-clients-{VERSION}", ())
        self._admin(newest)
        self.foundAll(self.program(newest, "NewGroups", self.address), self.newGroups)
        self.limit()
        what = f"kafka-clients {VERSION}: three times as much as a limit allows in a second"
        self.found(what, self.program(newest, "Limited", self.address, LIMITED), "held back, and told so")
        self._streams()
        self.check()

    def _transactions(self, version: str, jars: str) -> None:
        words = [self.address, f"transactions-{version}"]
        crashed = self.program(jars, "Transactions", *words, "crash")
        printed = crashed + self.program(jars, "Transactions", *words) if "crashed" in crashed else crashed
        self.foundAll(printed, self.transactions, f"kafka-clients {version}")

    def _admin(self, jars: str) -> None:
        printed = self.program(jars, "AdminCalls", self.address)
        ofTopics = "[READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS]"
        ofCluster = "[CREATE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE]"
        looks = {
            "describeTopics by id: by-id 2": Outcome.WORKS,
            f"authorizedOperations of a topic: {ofTopics}": Outcome.WORKS,
            f"authorizedOperations of the cluster: {ofCluster}": Outcome.WORKS,
            "listConfigResources: of topics and the broker": Outcome.WORKS,
            "deleteTopics by id: done": Outcome.WORKS,
            "describeCluster: nodes 1": Outcome.WORKS,
            "createAcls, describeAcls, deleteAcls: The node does not support CREATE_ACLS": Outcome.REFUSED,
        }
        self.foundAll(printed, looks)

    def _streams(self) -> None:
        jars = fetched(
            "Kafka Streams", f"kafka-streams-{VERSION}", [f"org.apache.kafka:kafka-streams:{VERSION}", _LOGGER]
        )
        what = f"Kafka Streams {VERSION}: count words by way of a repartition topic"
        printed = self.program(jars, "WordCount", self.address, "repartition", self.mktemp())
        self.found(what, printed, "counted {be=2, not=1, or=1, to=2}")
        printed = self.program(jars, "WordCount", self.address, "changelog", self.mktemp())
        self.found(f"{what}, with a changelog for its state", printed, "does not compact", Outcome.REFUSED)
        printed = self.program(jars, "WordCount", self.address, "exactly-once", self.mktemp())
        self.found(f"{what}, exactly once", printed, "does not compact", Outcome.REFUSED)

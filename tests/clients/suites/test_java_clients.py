"""Java's clients of all times, and Kafka Streams."""

from __future__ import annotations

from typing import Final

from tests.clients.suites.results import Outcome, Suite
from tests.clients.suites.suitecase import PROGRAMS, SuiteCase
from tests.kit.apachekafka import QUICK_START, VERSION, classPath, fetched

CLIENTS: Final = ("0.10.2.2", "0.11.0.3", "1.1.1", "2.8.2", "3.9.0", VERSION)

_LOGGER: Final = "org.slf4j:slf4j-simple:1.7.36"


class JavaClientsTests(SuiteCase):
    """Programs as people write them."""

    suite = Suite("java_clients", f"Java clients from 0.10 to {VERSION}, and Kafka Streams {VERSION}", "Java and Maven")

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
            printed = self.program(jars, "RoundTrip", self.broker.address, f"events-{version}")
            what = f"kafka-clients {version}: produce, and read in a group"
            if version.startswith("0.10"):
                self.found(what, printed, "refused at once: The version of API is not supported.", Outcome.REFUSED)
            else:
                self.found(what, printed, "read 100 records")
        self._admin(fetched("Kafka's clients", f"kafka-clients-{VERSION}", ()))
        self._streams()
        self.check()

    def _admin(self, jars: str) -> None:
        printed = self.program(jars, "AdminCalls", self.broker.address)
        ofTopics = "[READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS]"
        ofCluster = "[CREATE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE]"
        looks = {
            "describeTopics by id: by-id 2": Outcome.WORKS,
            f"authorizedOperations of a topic: {ofTopics}": Outcome.WORKS,
            f"authorizedOperations of the cluster: {ofCluster}": Outcome.WORKS,
            "listConfigResources: of topics and the broker": Outcome.WORKS,
            "deleteTopics by id: done": Outcome.WORKS,
            "initTransactions: Transactional Id authorization failed": Outcome.REFUSED,
        }
        self.foundAll(printed, looks)

    def _streams(self) -> None:
        jars = fetched(
            "Kafka Streams", f"kafka-streams-{VERSION}", [f"org.apache.kafka:kafka-streams:{VERSION}", _LOGGER]
        )
        what = f"Kafka Streams {VERSION}: count words by way of a repartition topic"
        printed = self.program(jars, "WordCount", self.broker.address, "repartition", self.mktemp())
        self.found(what, printed, "counted {be=2, not=1, or=1, to=2}")
        printed = self.program(jars, "WordCount", self.broker.address, "changelog", self.mktemp())
        self.found(f"{what}, with a changelog for its state", printed, "does not compact", Outcome.REFUSED)

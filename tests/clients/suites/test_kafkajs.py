"""kafkajs, the client of Node.js."""

from __future__ import annotations

from typing import Final

from tests.clients.suites.results import Outcome, Suite
from tests.clients.suites.suitecase import SuiteCase, prepared

VERSION: Final = "2.2.4"


class KafkaJSTests(SuiteCase):
    """A program with it."""

    suite = Suite("kafkajs", f"kafkajs {VERSION}", "Node.js and npm")

    def prepare(self) -> None:
        """See L{SuiteCase.prepare}."""
        install = ["npm", "install", "--silent", "--no-audit", "--no-fund", f"kafkajs@{VERSION}"]
        self.directory = prepared(f"kafkajs-{VERSION}", "kafkajs.js", [install], "kafkajs")

    def test_program(self) -> None:
        """Everything is as the results say."""
        self.limit()
        printed, isWell = self.ran(["node", "kafkajs.js", self.address, "events"], cwd=self.directory)
        self.assertTrue(isWell, printed)
        looks = {
            "createTopics, fetchTopicMetadata: 2 partitions": Outcome.WORKS,
            "producer, idempotent false, gzip: sent 100": Outcome.WORKS,
            "producer, idempotent true, gzip: sent 100": Outcome.WORKS,
            "consumer in a group: read 200": Outcome.WORKS,
            "describeGroups: Empty": Outcome.WORKS,
            "fetchOffsets: 200 in all": Outcome.WORKS,
            "resetOffsets: done": Outcome.WORKS,
            "alterConfigs, describeConfigs: retention.ms=60000": Outcome.WORKS,
            "deleteTopicRecords: nothing left": Outcome.WORKS,
            "deleteGroups, deleteTopics: done": Outcome.WORKS,
            "describeAcls: Security features are disabled": Outcome.REFUSED,
            "transaction: at once: ": Outcome.REFUSED,
            "three times as much as a limit allows in a second: held back": Outcome.WORKS,
        }
        self.foundAll(printed, looks)
        self.check()

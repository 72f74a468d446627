"""franz-go, a client of Go."""

from __future__ import annotations

from typing import Final

from tests.clients.suites.results import Outcome, Suite
from tests.clients.suites.suitecase import SuiteCase, prepared

VERSION: Final = "1.22.2"
ADMIN_VERSION: Final = "1.19.0"
BUILD_SECONDS: Final = 600.0
"""The first build on a machine compiles the library, too, while other tests run."""


class FranzGoTests(SuiteCase):
    """A program with it."""

    suite = Suite("franz_go", f"franz-go {VERSION}", "Go")

    def prepare(self) -> None:
        """See L{SuiteCase.prepare}."""
        module = "github.com/twmb/franz-go"
        commands = (
            ["go", "mod", "init", "franz"],
            ["go", "get", f"{module}@v{VERSION}", f"{module}/pkg/kadm@v{ADMIN_VERSION}"],
            ["go", "mod", "tidy"],
        )
        self.directory = prepared(f"franz-go-{VERSION}", "franz.go", commands, "franz-go")

    def test_program(self) -> None:
        """Everything is as the results say."""
        built, isBuilt = self.ran(["go", "build", "-o", "franz", "."], cwd=self.directory, seconds=BUILD_SECONDS)
        self.assertTrue(isBuilt, built)
        self.limit()
        printed, isWell = self.ran([str(self.directory / "franz"), self.address, "events"])
        self.assertTrue(isWell, printed)
        looks = {
            "CreateTopic, ListTopics: 2 partitions": Outcome.WORKS,
            "ProduceSync, idempotent, zstd: sent 100": Outcome.WORKS,
            "PollFetches in a group: read 100": Outcome.WORKS,
            "Lag: 0": Outcome.WORKS,
            "AlterTopicConfigs, DescribeTopicConfigs: retention.ms=60000": Outcome.WORKS,
            "DeleteRecords: 0 left": Outcome.WORKS,
            "DescribeAllLogDirs: of 1": Outcome.WORKS,
            "ListTransactions: 0": Outcome.WORKS,
            "DeleteGroups, DeleteTopics: done": Outcome.WORKS,
            "CreateTopic with cleanup.policy=compact: INVALID_CONFIG": Outcome.REFUSED,
            "transaction: at once: TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Outcome.REFUSED,
            "three times as much as a limit allows in a second: held back: true, told so: true": Outcome.WORKS,
        }
        self.foundAll(printed, looks)
        self.check()

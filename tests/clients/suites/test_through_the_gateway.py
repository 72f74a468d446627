"""
The same suites with a gateway before a cluster of Apache Kafka.

Each class says what is otherwise there than with the broker.  They are in one module, which is one process, as they
share the cluster.
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from tests.clients.suites import (
    test_franz_go,
    test_java_clients,
    test_kafkajs,
    test_kcat,
    test_pythons,
)
from tests.clients.suites.programs.pythons import FENCED
from tests.clients.suites.results import GATEWAY, Outcome
from tests.clients.suites.suitecase import LIMIT, SuiteCase
from tests.kit.apachekafka import VERSION
from tests.kit.gatewayprocess import sharedGateway
from tests.kit.kafkacluster import KafkaCluster

_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@cache
def authorizingCluster() -> KafkaCluster:
    """One that has access control lists, for all tests of this module."""
    cluster = KafkaCluster(properties=_AUTHORIZER)
    cluster.start()
    return cluster


class ThroughTheGateway(SuiteCase):
    """A suite with a gateway, whose cluster has no topics and groups."""

    page = GATEWAY

    def startServer(self) -> str:
        """See L{SuiteCase.startServer}."""
        cluster = authorizingCluster()
        self.addCleanup(cluster.clear)
        gateway = sharedGateway(cluster.bootstrap, *LIMIT)
        begin = gateway.mark()
        self.addCleanup(lambda: self.assertEqual(gateway.complaints(begin), []))
        return gateway.address


class FranzGoTests(ThroughTheGateway, test_franz_go.FranzGoTests):
    """See L{test_franz_go}."""

    otherwise: ClassVar = {
        "CreateTopic with cleanup.policy=compact": ("created", Outcome.WORKS),
        "DescribeAllLogDirs": ("of 3", Outcome.WORKS),
        "transaction": ("committed true, and aborted the other", Outcome.WORKS),
    }


class JavaClientsTests(ThroughTheGateway, test_java_clients.JavaClientsTests):
    """See L{test_java_clients}."""

    isLong = True
    otherwise: ClassVar = {
        # The cluster does the same without a gateway.
        "kafka-clients 0.10.2.2: produce, and read in a group": (
            "The server disconnected before a response was received.",
            Outcome.REFUSED,
        ),
        "authorizedOperations of the cluster": (
            "[CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE]",
            Outcome.WORKS,
        ),
        "describeCluster": ("nodes 3", Outcome.WORKS),
        "createAcls, describeAcls, deleteAcls": ("1", Outcome.WORKS),
        **{
            f"Kafka Streams {VERSION}: count words by way of a repartition topic, {how}": (
                "counted {be=2, not=1, or=1, to=2}",
                Outcome.WORKS,
            )
            for how in ("with a changelog for its state", "exactly once")
        },
    }
    newGroups: ClassVar = dict.fromkeys(("group.protocol=consumer: read 1", "share group: read 1"), Outcome.WORKS)
    transactions: ClassVar = dict.fromkeys(
        (
            "initTransactions after a crash: committed 10, and aborted 10",
            "commitTransaction, abortTransaction: read_committed reads 20, read_uncommitted 40",
            "sendOffsetsToTransaction: committed 7",
            "commitTransaction after another's initTransactions: ProducerFencedException",
        ),
        Outcome.WORKS,
    )


class KafkaJSTests(ThroughTheGateway, test_kafkajs.KafkaJSTests):
    """See L{test_kafkajs}."""

    otherwise: ClassVar = {
        "describeAcls": ("0 lists", Outcome.WORKS),
        "transaction": ("committed, and the other aborted", Outcome.WORKS),
    }


class KcatTests(ThroughTheGateway, test_kcat.KcatTests):
    """See L{test_kcat}."""

    otherwise: ClassVar = {"kcat -P -t events -X transactional.id=t": ("Using transactional producer", Outcome.WORKS)}


class PythonsTests(ThroughTheGateway, test_pythons.PythonsTests):
    """See L{test_pythons}."""

    protocols: ClassVar = {"confluent": "consumer"}
    transactions: ClassVar = {
        library: {
            "transactions: read_committed reads committed, committed, too": Outcome.WORKS,
            f"{FENCED}: {error}": Outcome.WORKS,
        }
        for library, error in (
            ("confluent", "_FENCED"),
            ("kafka-python", "ProducerFencedError"),
            ("aiokafka", "ProducerFenced"),
        )
    }

"""Tests for L{admission.kafka.broker.api.configapi} and L{admission.kafka.broker.api.topicconfigs}."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.api.topicconfigs import TOPIC_CONFIGS, checkConfigs, maxMessageBytes, topicConfigTable
from admission.kafka.broker.brokersettings import PROPERTIES, Settings
from admission.kafka.broker.log.interface import InvalidTopicConfig
from tests.kit.brokerfixture import BrokerTestCase, codes
from tests.kit.checkout import ROOT

TOPIC = 2
BROKER = 4

SET = 0
DELETE = 1
APPEND = 2
SUBTRACT = 3


class CheckConfigsTests(SynchronousTestCase):
    """L{checkConfigs} accepts what the log and the broker obey."""

    def test_accepted(self) -> None:
        """Values that make sense come back as they are."""
        configs: dict[str, str | None] = {
            "cleanup.policy": "delete",
            "compression.gzip.level": "9",
            "compression.lz4.level": "9",
            "compression.type": "lz4",
            "compression.zstd.level": "-7",
            "delete.retention.ms": "0",
            "file.delete.delay.ms": "60000",
            "flush.messages": "1",
            "flush.ms": "1000",
            "follower.replication.throttled.replicas": "*",
            "index.interval.bytes": "4096",
            "leader.replication.throttled.replicas": "0:1,1:1",
            "local.retention.bytes": "-2",
            "local.retention.ms": "-2",
            "max.compaction.lag.ms": "9223372036854775807",
            "max.message.bytes": "2147483647",
            "message.timestamp.after.max.ms": "9223372036854775807",
            "message.timestamp.before.max.ms": "9223372036854775807",
            "message.timestamp.type": "LogAppendTime",
            "min.cleanable.dirty.ratio": "0.01",
            "min.compaction.lag.ms": "0",
            "min.insync.replicas": "1",
            "preallocate": "true",
            "remote.log.copy.disable": "false",
            "remote.log.delete.on.disable": "false",
            "remote.storage.enable": "false",
            "retention.bytes": "-1",
            "retention.ms": "9223372036854775807",
            "segment.bytes": "1024",
            "segment.index.bytes": "10485760",
            "segment.jitter.ms": "0",
            "segment.ms": "-1",
            "unclean.leader.election.enable": "true",
            "write.caching": "true",
        }
        self.assertEqual(set(configs), set(TOPIC_CONFIGS))
        self.assertEqual(checkConfigs(configs), configs)
        for config in TOPIC_CONFIGS.values():
            inForce = config.defaultIn(Settings())
            self.assertEqual(checkConfigs({config.name: inForce}), {config.name: inForce})

    def test_refused(self) -> None:
        """Everything else is refused, and the reason names the setting."""
        for name, value in (
            ("cleanup.policy", "compact"),
            ("cleanup.policy", "compact,delete"),
            ("compression.type", "brotli"),
            ("follower.replication.throttled.replicas", "0:1,"),
            ("follower.replication.throttled.replicas", ",".join(["0:1"] * 1000)),
            ("min.cleanable.dirty.ratio", "1.5"),
            ("min.cleanable.dirty.ratio", "nan"),
            ("min.cleanable.dirty.ratio", f"0.{'0' * 1000}"),
            ("min.insync.replicas", "2"),
            ("remote.storage.enable", "true"),
            ("max.message.bytes", "0"),
            ("max.message.bytes", "2147483648"),
            ("message.timestamp.type", "Yesterday"),
            ("write.caching", "yes"),
            ("retention.bytes", "-2"),
            ("retention.ms", "9223372036854775808"),
            ("retention.ms", "1_000"),
            ("retention.ms", " 1"),
            ("retention.ms", "\u0661"),
            ("retention.ms", "9" * 10_000),
            ("retention.ms", ""),
            ("retention.ms", None),
            ("segment.bytes", "1"),
        ):
            error = self.assertRaises(InvalidTopicConfig, checkConfigs, {name: value})
            self.assertIn(name, str(error))

    def test_promises(self) -> None:
        """What would promise more than one broker keeps is refused with the reason."""
        for name, value, why in (
            ("cleanup.policy", "compact", "does not compact"),
            ("min.insync.replicas", "2", "there is one broker"),
            ("remote.storage.enable", "true", "there is no tiered storage"),
        ):
            error = self.assertRaises(InvalidTopicConfig, checkConfigs, {name: value})
            self.assertIn(why, str(error))

    def test_documentation(self) -> None:
        """C{docs/configuration.md} has the table as the code has it."""
        page = ROOT.joinpath("docs", "configuration.md").read_text(encoding="utf-8")
        self.assertIn(f"\n\n{topicConfigTable()}\n", page)


class DescribeConfigsTests(BrokerTestCase):
    """DescribeConfigs tells what is in force, and since when."""

    properties = {"log.retention.hours": "2", "fetch.max.bytes": "1MiB"}

    def describe(self, *resources: tuple[int, str], apiVersion: int = 4, keys: Any = None, **others: Any) -> Any:
        """
        Ask for resources.

        @return: the results.
        """
        asked = [
            {"resource_type": resourceType, "resource_name": name, "configuration_keys": keys}
            for resourceType, name in resources
        ]
        return self.connect().ask("DescribeConfigs", apiVersion, resources=asked, **others).results

    def test_topic(self) -> None:
        """A topic's settings are its own, or the broker's, in every version."""
        self.topic("events", 1, {"max.message.bytes": "5"})
        for apiVersion in range(1, 5):
            (result,) = self.describe((TOPIC, "events"), apiVersion=apiVersion)
            self.assertEqual((result.error_code, result.resource_type, result.resource_name), (0, TOPIC, "events"))
            told = {config.name: (config.value, config.config_source) for config in result.configs}
            self.assertEqual(set(told), set(TOPIC_CONFIGS))
            self.assertEqual(told["max.message.bytes"], ("5", 1))
            self.assertEqual(told["retention.ms"], ("7200000", 4))
            self.assertEqual(told["retention.bytes"], ("-1", 5))
            self.assertFalse(any(config.read_only for config in result.configs))

    def test_broker(self) -> None:
        """The broker's settings are those of the command line or defaults, and cannot be changed."""
        for name in ("1", ""):
            (result,) = self.describe((BROKER, name))
            told = {config.name: (config.value, config.config_source) for config in result.configs}
            self.assertEqual(set(told), {"advertised.listeners", *(listed.name for listed in PROPERTIES.values())})
            self.assertEqual(told["fetch.max.bytes"], ("1048576", 4))
            # Given in hours.
            self.assertEqual(told["log.retention.ms"], ("7200000", 4))
            self.assertEqual(told["num.partitions"], ("1", 5))
            self.assertTrue(all(config.read_only for config in result.configs))

    def test_synonyms(self) -> None:
        """A client that asks is told what would be in force without a setting, and what each is for."""
        self.topic("events", 1, {"retention.ms": "5", "preallocate": "true"})
        for resource, name, wanted in (
            (
                (TOPIC, "events"),
                "retention.ms",
                [("retention.ms", "5", 1), ("log.retention.ms", "7200000", 4), ("log.retention.ms", "604800000", 5)],
            ),
            ((TOPIC, "events"), "preallocate", [("preallocate", "true", 1), ("preallocate", "false", 5)]),
            ((TOPIC, "events"), "segment.bytes", [("log.segment.bytes", "1073741824", 5)]),
            ((BROKER, "1"), "fetch.max.bytes", [("fetch.max.bytes", "1048576", 4), ("fetch.max.bytes", "57671680", 5)]),
        ):
            for isAsked in (True, False):
                (result,) = self.describe(
                    resource, keys=[name], include_synonyms=isAsked, include_documentation=isAsked
                )
                (config,) = result.configs
                told = [(each.name, each.value, each.source) for each in config.synonyms]
                self.assertEqual(told, wanted if isAsked else [])
                self.assertEqual(bool(config.documentation), isAsked)

    def test_advertisedListeners(self) -> None:
        """Tools look there for where the client finds the broker."""
        (result,) = self.describe((BROKER, "1"), keys=["advertised.listeners"])
        self.assertRegex(result.configs[0].value, r"^PLAINTEXT://[^:]+:\d+$")

    def test_keys(self) -> None:
        """Only the keys that are asked for are told; asking for none is asking for all."""
        self.topic("events")
        (result,) = self.describe((TOPIC, "events"), keys=["retention.ms", "no.such.key"])
        self.assertEqual([config.name for config in result.configs], ["retention.ms"])
        for nothing in ((), None):
            (result,) = self.describe((TOPIC, "events"), keys=nothing)
            self.assertEqual(len(result.configs), len(TOPIC_CONFIGS))

    def test_unknown(self) -> None:
        """Resources that are not there are told, each for itself."""
        self.topic("events")
        results = self.describe((TOPIC, "none"), (BROKER, "2"), (8, ""), (99, "x"), (TOPIC, "events"))
        self.assertEqual(
            codes(results), [ErrorCode.unknown_topic_or_partition, *[ErrorCode.invalid_request] * 3, ErrorCode.none]
        )
        self.assertEqual([bool(result.error_message) for result in results], [True] * 4 + [False])
        self.assertEqual([len(result.configs) for result in results[:4]], [0] * 4)

    def test_repeated(self) -> None:
        """A resource that is named twice is refused, or small requests would have huge responses."""
        results = self.describe((BROKER, "1"), (TOPIC, "none"), (BROKER, "1"))
        self.assertEqual(
            codes(results), [ErrorCode.invalid_request, ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_request]
        )


class IncrementalAlterConfigsTests(BrokerTestCase):
    """IncrementalAlterConfigs changes the settings of topics."""

    def setUp(self) -> None:
        super().setUp()
        self.topic("events", 1, {"retention.ms": "1000"})

    def alter(self, *changes: tuple[int, str, str | None], name: str = "events", **others: Any) -> Any:
        """
        Change the topic.

        @return: the result.
        """
        configs = [{"config_operation": operation, "name": key, "value": value} for operation, key, value in changes]
        resource = {"resource_type": TOPIC, "resource_name": name, "configs": configs}
        (result,) = self.connect().ask("IncrementalAlterConfigs", 1, resources=[resource], **others).responses
        return result

    def configs(self) -> dict[str, str]:
        """The topic's own settings."""
        return dict(self.log.topic("events").configs)

    def test_everyVersion(self) -> None:
        """A setting is changed in every version."""
        for apiVersion in (0, 1):
            change = {"name": "max.message.bytes", "config_operation": SET, "value": f"10{apiVersion}"}
            resource = {"resource_type": TOPIC, "resource_name": "events", "configs": [change]}
            (result,) = self.connect().ask("IncrementalAlterConfigs", apiVersion, resources=[resource]).responses
            self.assertEqual((result.error_code, result.resource_name, result.error_message), (0, "events", None))
            self.assertEqual(maxMessageBytes(self.broker, self.log.topic("events")), 100 + apiVersion)

    def test_setAndDelete(self) -> None:
        """What is set is added to what there is, and what is deleted has its default again."""
        self.assertEqual(self.alter((SET, "retention.bytes", "5")).error_code, 0)
        self.assertEqual(self.configs(), {"retention.ms": "1000", "retention.bytes": "5"})
        self.assertEqual(self.alter((DELETE, "retention.ms", None), (SET, "retention.bytes", "6")).error_code, 0)
        self.assertEqual(self.configs(), {"retention.bytes": "6"})
        # Not set, and so it has its default already.
        self.assertEqual(self.alter((DELETE, "retention.ms", None)).error_code, 0)

    def test_refusals(self) -> None:
        """What makes no sense changes nothing, whatever comes with it."""
        for change in (
            (SET, "retention.ms", "soon"),
            (SET, "retention.ms", None),
            (SET, "no.such.config", "1"),
            (DELETE, "no.such.config", None),
            (APPEND, "cleanup.policy", "compact"),
            (SUBTRACT, "cleanup.policy", "delete"),
            (APPEND, "retention.ms", "1"),
            (9, "retention.ms", "1"),
        ):
            result = self.alter((SET, "retention.bytes", "5"), change)
            self.assertEqual(result.error_code, ErrorCode.invalid_config, change)
            self.assertIn(change[1], result.error_message)
        self.assertEqual(self.configs(), {"retention.ms": "1000"})

    def test_lists(self) -> None:
        """Lists are appended to and subtracted from; nothing is in one twice."""
        name = "leader.replication.throttled.replicas"
        for operation, value, left in (
            (APPEND, "0:1,1:1", "0:1,1:1"),
            (APPEND, "1:1,2:1", "0:1,1:1,2:1"),
            (SUBTRACT, "0:1,9:9", "1:1,2:1"),
            (SUBTRACT, "1:1,2:1", ""),
            (APPEND, None, ""),
        ):
            self.assertEqual(self.alter((operation, name, value)).error_code, 0)
            self.assertEqual(self.configs()[name], left)
        self.assertEqual(self.alter((APPEND, "cleanup.policy", "delete")).error_code, 0)
        self.assertEqual(self.configs()["cleanup.policy"], "delete")

    def test_validateOnly(self) -> None:
        """What is only validated is judged and not done."""
        self.assertEqual(self.alter((SET, "retention.ms", "5"), validate_only=True).error_code, 0)
        refused = self.alter((SET, "retention.ms", "soon"), validate_only=True)
        self.assertEqual(refused.error_code, ErrorCode.invalid_config)
        self.assertEqual(self.configs(), {"retention.ms": "1000"})

    def test_keyTwice(self) -> None:
        """A setting that is changed twice is not."""
        result = self.alter((SET, "retention.ms", "1"), (SET, "retention.ms", "2"))
        self.assertEqual(result.error_code, ErrorCode.invalid_request)
        self.assertEqual(self.configs(), {"retention.ms": "1000"})

    def test_unknownTopic(self) -> None:
        """A topic that is not there has no settings."""
        result = self.alter((SET, "retention.ms", "1"), name="none")
        self.assertEqual(result.error_code, ErrorCode.unknown_topic_or_partition)

    def test_otherResources(self) -> None:
        """Nothing but topics can be changed, and a topic that is named twice is not."""
        change = [{"name": "retention.ms", "config_operation": SET, "value": "5"}]
        named = [(BROKER, "1"), (TOPIC, "events"), (TOPIC, "events")]
        resources = [{"resource_type": each, "resource_name": name, "configs": change} for each, name in named]
        answer = self.connect().ask("IncrementalAlterConfigs", 1, resources=resources)
        self.assertEqual(codes(answer.responses), [ErrorCode.invalid_request] * 3)
        self.assertEqual(self.configs(), {"retention.ms": "1000"})

    def test_producing(self) -> None:
        """Without a setting of its own, a topic takes what the broker takes."""
        self.assertEqual(maxMessageBytes(self.broker, self.log.topic("events")), self.broker.settings.messageMaxBytes)


class AlterConfigsTests(BrokerTestCase):
    """AlterConfigs, which older tools use, replaces all settings of a topic."""

    def test_replaced(self) -> None:
        """What is not named has its default again, in every version."""
        for apiVersion in (0, 1, 2):
            self.log.topics.get("events") and self.log.deleteTopic("events")
            self.topic("events", 1, {"retention.ms": "1000"})
            for isOnlyValidated, left in ((True, {"retention.ms": "1000"}), (False, {"retention.bytes": "5"})):
                resource = {
                    "resource_type": TOPIC,
                    "resource_name": "events",
                    "configs": [{"name": "retention.bytes", "value": "5"}],
                }
                answer = self.connect().ask(
                    "AlterConfigs", apiVersion, resources=[resource], validate_only=isOnlyValidated
                )
                self.assertEqual(codes(answer.responses), [ErrorCode.none])
                self.assertEqual(self.log.topic("events").configs, left)

    def test_refused(self) -> None:
        """Nothing changes where a setting makes no sense, is named twice, or belongs to nothing here."""
        self.topic("events", 1, {"retention.ms": "1000"})
        good = {"name": "retention.bytes", "value": "5"}
        for resourceType, name, configs, errorCode in (
            (TOPIC, "events", [good, {"name": "retention.ms", "value": "soon"}], ErrorCode.invalid_config),
            (TOPIC, "events", [good, good], ErrorCode.invalid_request),
            (TOPIC, "none", [good], ErrorCode.unknown_topic_or_partition),
            (BROKER, "1", [good], ErrorCode.invalid_request),
        ):
            resource = {"resource_type": resourceType, "resource_name": name, "configs": configs}
            answer = self.connect().ask("AlterConfigs", 2, resources=[resource])
            self.assertEqual(codes(answer.responses), [errorCode])
        self.assertEqual(self.log.topic("events").configs, {"retention.ms": "1000"})


class ListConfigResourcesTests(BrokerTestCase):
    """ListConfigResources tells what has settings."""

    def test_types(self) -> None:
        """Topics and the broker have; version 0 asks for something else."""
        self.topic("events")
        broker, events = (BROKER, "1"), (TOPIC, "events")
        for apiVersion, types, wanted in (
            (0, (), []),
            (1, (), [broker, events]),
            (1, (TOPIC,), [events]),
            (1, (BROKER, 16), [broker]),
            (1, (32,), []),
        ):
            answer = self.connect().ask(
                "ListConfigResources", apiVersion, **({"resource_types": types} if types else {})
            )
            told = [(each.resource_type, each.resource_name) for each in answer.config_resources]
            self.assertEqual((answer.error_code, told), (ErrorCode.none, wanted))

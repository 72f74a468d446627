# -*- test-case-name: tests.unit.kafka.broker.api.test_configapi -*-
"""
The settings that a single topic may override.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from attrs import frozen

from admission.kafka.brokersettings import APPEND_TIME, TIMESTAMP_TYPES, Settings

from ..broker import Broker
from ..log.interface import InvalidTopicConfig, Topic

TYPE_BOOLEAN = 1
TYPE_STRING = 2
TYPE_INT = 3
TYPE_LONG = 5
TYPE_LIST = 7

_NUMBER = re.compile(r"-?[0-9]{1,19}")


@frozen
class TopicConfig:
    """
    A setting that a topic may override.

    @ivar type: the number of its type in DescribeConfigs.
    @ivar default: given the broker's settings, the value for topics without an
        override.
    @ivar check: raises L{ValueError} for a value that makes no sense.
    """

    name: str
    type: int
    help: str
    default: Callable[[Settings], str]
    check: Callable[[str], None]


def _whole(minValue: int, maxValue: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        # Python accepts more forms of numbers than the clients that this is shown to.
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"{value!r} is not a whole number")
        if not minValue <= int(value) <= maxValue:
            raise ValueError(f"{value} is not from {minValue} to {maxValue}")

    return check


def _only(allowed: str, why: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value != allowed:
            raise ValueError(f"{value!r} is not available; {why}")

    return check


def _oneOf(*allowed: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in allowed:
            raise ValueError(f"{value!r} is not possible; it is one of {', '.join(allowed)}")

    return check


TOPIC_CONFIGS: Mapping[str, TopicConfig] = {
    config.name: config
    for config in (
        TopicConfig(
            "cleanup.policy",
            TYPE_LIST,
            "What happens to old records: they are deleted.",
            lambda settings: "delete",
            _only("delete", "this log deletes and does not compact"),
        ),
        TopicConfig(
            "compression.type",
            TYPE_STRING,
            "Batches are kept as their producer compressed them.",
            lambda settings: "producer",
            _only("producer", "batches are kept as their producer compressed them"),
        ),
        TopicConfig(
            "max.message.bytes",
            TYPE_INT,
            "The largest record batch, in bytes.",
            lambda settings: str(settings.messageMaxBytes),
            _whole(1, 2**31 - 1),
        ),
        TopicConfig(
            "message.timestamp.type",
            TYPE_STRING,
            "Which time records have: that which their producer gave them, or that of their arrival.",
            lambda settings: settings.logMessageTimestampType,
            _oneOf(*TIMESTAMP_TYPES),
        ),
        TopicConfig(
            "segment.bytes",
            TYPE_INT,
            "The size of the files of a partition, in bytes; only whole files are removed.",
            lambda settings: settings.asProperties()["log.segment.bytes"],
            _whole(1024, 2**31 - 1),
        ),
        TopicConfig(
            "segment.ms",
            TYPE_LONG,
            "For how many milliseconds a file is appended to; -1 for any time.",
            lambda settings: settings.asProperties()["log.roll.ms"],
            _whole(-1, 2**63 - 1),
        ),
        TopicConfig(
            "write.caching",
            TYPE_BOOLEAN,
            "Whether acks=all is answered when records are written, and not when they are on the disk.",
            lambda settings: settings.asProperties()["write.caching"],
            _oneOf("true", "false"),
        ),
        TopicConfig(
            "retention.bytes",
            TYPE_LONG,
            "How many bytes of a partition to keep; -1 for all.",
            lambda settings: settings.asProperties()["log.retention.bytes"],
            _whole(-1, 2**63 - 1),
        ),
        TopicConfig(
            "retention.ms",
            TYPE_LONG,
            "For how many milliseconds to keep records; -1 for ever.",
            lambda settings: settings.asProperties()["log.retention.ms"],
            _whole(-1, 2**63 - 1),
        ),
    )
}


def checkConfigs(configs: Mapping[str, str | None]) -> dict[str, str]:
    """
    @return: C{configs}, if all of them are supported.
    @raise InvalidTopicConfig: for a setting that is not known, or a value that
        makes no sense.
    """
    checked: dict[str, str] = {}
    for name, value in configs.items():
        config = TOPIC_CONFIGS.get(name)
        if config is None:
            raise InvalidTopicConfig(f"topics have no setting {name!r} here; they have {', '.join(TOPIC_CONFIGS)}")
        if value is None:
            raise InvalidTopicConfig(f"{name} needs a value")
        try:
            config.check(value)
        except ValueError as error:
            raise InvalidTopicConfig(f"{name}: {error}") from error
        checked[name] = value
    return checked


def isCached(broker: Broker, topic: Topic) -> bool:
    """
    Whether C{acks=all} is answered when a topic's records are written, and not when the disk has them.
    """
    own = topic.configs.get("write.caching")
    return broker.settings.writeCaching if own is None else own == "true"


def hasAppendTime(broker: Broker, topic: Topic) -> bool:
    """
    Whether a topic's records get the time of their arrival.
    """
    own = topic.configs.get("message.timestamp.type", broker.settings.logMessageTimestampType)
    return own == APPEND_TIME


def maxMessageBytes(broker: Broker, topic: Topic) -> int:
    """
    The largest batch that a topic takes, in bytes.
    """
    own = topic.configs.get("max.message.bytes")
    return broker.settings.messageMaxBytes if own is None else int(own)

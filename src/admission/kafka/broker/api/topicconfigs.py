# -*- test-case-name: tests.unit.kafka.broker.api.test_configapi -*-
"""
The settings that a single topic may override.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from attrs import field, frozen

from ..broker import Broker
from ..brokersettings import APPEND_TIME, TIMESTAMP_TYPES, Settings
from ..log.interface import InvalidTopicConfig, Topic

TYPE_BOOLEAN: Final = 1
TYPE_STRING: Final = 2
TYPE_INT: Final = 3
TYPE_LONG: Final = 5
TYPE_DOUBLE: Final = 6
TYPE_LIST: Final = 7

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_FRACTION = re.compile(r"[01](\.[0-9]{0,17})?|\.[0-9]{1,17}")
_REPLICA = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")

_LONGEST_LIST: Final = 1000
"""In characters: a topic's settings are kept in memory."""

_ONE_BROKER: Final = "there is one broker, so records are never on more disks than one"
_NO_COMPACTION: Final = (
    "this log removes old records and does not compact; what needs the last record of each key for ever, such as state "
    "stores, connectors' topics and schema registries, needs another broker for it"
)
_NO_TIERS: Final = "there is no tiered storage"


@frozen
class TopicConfig:
    """
    A setting that a topic may override.

    @ivar type: the number of its type in DescribeConfigs.
    @ivar check: raises L{ValueError} for a value that makes no sense, or
        would promise what this broker does not do.
    @ivar default: the value for topics without an override, where no property of the broker's has it.
    @ivar property: the broker's property that has the default.
    """

    name: str
    type: int
    check: Callable[[str], object]
    default: str
    help: str
    property: str | None = field(kw_only=True, default=None)

    def defaultIn(self, settings: Settings) -> str:
        """
        The value for topics without an override.
        """
        return self.default if self.property is None else settings.asProperties()[self.property]


def _whole(minValue: int, maxValue: int) -> Callable[[str], object]:
    def check(value: str) -> None:
        # Python accepts more forms of numbers than the clients to which this is shown.
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"{value!r} is not a whole number")
        if not minValue <= int(value) <= maxValue:
            raise ValueError(f"{value} is not from {minValue} to {maxValue}")

    return check


def _fraction(value: str) -> None:
    if not _FRACTION.fullmatch(value) or float(value) > 1:
        raise ValueError(f"{value!r} is not a number from 0 to 1")


def _only(allowed: str, why: str) -> Callable[[str], object]:
    def check(value: str) -> None:
        if value != allowed:
            raise ValueError(f"{value!r} is not available; {why}")

    return check


def _oneOf(*allowed: str) -> Callable[[str], object]:
    def check(value: str) -> None:
        if value not in allowed:
            raise ValueError(f"{value!r} is not possible; it is one of {', '.join(allowed)}")

    return check


def _replicas(value: str) -> None:
    if len(value) > _LONGEST_LIST:
        raise ValueError(f"a list of {len(value)} characters is too long; at most {_LONGEST_LIST}")
    if value not in ("", "*") and not all(map(_REPLICA.fullmatch, value.split(","))):
        raise ValueError(f"{value!r} is not a list of PARTITION:BROKER, and not *")


_TRUE_OR_FALSE: Final = _oneOf("true", "false")


def _without(why: str) -> Callable[..., TopicConfig]:
    return partial(TopicConfig, help=f"Has no effect here: {why}.")


def _topicConfigs() -> Iterator[TopicConfig]:
    yield TopicConfig(
        "cleanup.policy",
        TYPE_LIST,
        _only("delete", _NO_COMPACTION),
        "delete",
        "What happens to old records: they are deleted.",
    )
    yield TopicConfig(
        "max.message.bytes",
        TYPE_INT,
        _whole(1, _INT32_MAX),
        "",
        "The largest record batch, in bytes.",
        property="message.max.bytes",
    )
    yield TopicConfig(
        "message.timestamp.after.max.ms",
        TYPE_LONG,
        _whole(0, _INT64_MAX),
        "",
        "How far ahead of now a record's time may be, in milliseconds.",
        property="log.message.timestamp.after.max.ms",
    )
    yield TopicConfig(
        "message.timestamp.type",
        TYPE_STRING,
        _oneOf(*TIMESTAMP_TYPES),
        "",
        "Which time records have: that which their producer gave them, or that of their arrival.",
        property="log.message.timestamp.type",
    )
    yield TopicConfig(
        "min.insync.replicas",
        TYPE_INT,
        _only("1", _ONE_BROKER),
        "1",
        "On how many brokers a record must be before `acks=all` is answered.",
    )
    yield TopicConfig(
        "remote.storage.enable", TYPE_BOOLEAN, _only("false", _NO_TIERS), "false", "Whether segments are moved away."
    )
    yield TopicConfig(
        "retention.bytes",
        TYPE_LONG,
        _whole(-1, _INT64_MAX),
        "",
        "How many bytes of a partition to keep; -1 for all.",
        property="log.retention.bytes",
    )
    yield TopicConfig(
        "retention.ms",
        TYPE_LONG,
        _whole(-1, _INT64_MAX),
        "",
        "For how many milliseconds to keep records; -1 for ever.",
        property="log.retention.ms",
    )
    yield TopicConfig(
        "segment.bytes",
        TYPE_INT,
        _whole(1024, _INT32_MAX),
        "",
        "The size of the files of a partition, in bytes; only whole files are removed.",
        property="log.segment.bytes",
    )
    yield TopicConfig(
        "segment.ms",
        TYPE_LONG,
        _whole(-1, _INT64_MAX),
        "",
        "For how many milliseconds a file is appended to; -1 for any time.",
        property="log.roll.ms",
    )
    yield TopicConfig(
        "write.caching",
        TYPE_BOOLEAN,
        _TRUE_OR_FALSE,
        "",
        "Whether `acks=all` is answered when records are written, and not when they are on the disk.",
        property="write.caching",
    )

    asProduced = _without("batches are kept as their producer compressed them")
    codecs = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
    yield asProduced("compression.type", TYPE_STRING, _oneOf(*codecs), "producer")
    yield asProduced("compression.gzip.level", TYPE_INT, _whole(-1, 9), "-1")
    yield asProduced("compression.lz4.level", TYPE_INT, _whole(1, 17), "9")
    yield asProduced("compression.zstd.level", TYPE_INT, _whole(-131072, 22), "3")

    uncompacted = _without("the log does not compact")
    yield uncompacted("delete.retention.ms", TYPE_LONG, _whole(0, _INT64_MAX), "86400000")
    yield uncompacted("max.compaction.lag.ms", TYPE_LONG, _whole(1, _INT64_MAX), str(_INT64_MAX))
    yield uncompacted("min.cleanable.dirty.ratio", TYPE_DOUBLE, _fraction, "0.5")
    yield uncompacted("min.compaction.lag.ms", TYPE_LONG, _whole(0, _INT64_MAX), "0")

    flushed = _without("`acks=all` waits for the disk, and all else is flushed each `log.flush.interval.ms`")
    yield flushed("flush.messages", TYPE_LONG, _whole(1, _INT64_MAX), str(_INT64_MAX))
    yield flushed("flush.ms", TYPE_LONG, _whole(0, _INT64_MAX), str(_INT64_MAX))

    otherFiles = _without("the log has files of another kind")
    yield otherFiles("file.delete.delay.ms", TYPE_LONG, _whole(0, _INT64_MAX), "0")
    yield otherFiles("index.interval.bytes", TYPE_INT, _whole(0, _INT32_MAX), "4096")
    yield otherFiles("preallocate", TYPE_BOOLEAN, _TRUE_OR_FALSE, "false")
    yield otherFiles("segment.index.bytes", TYPE_INT, _whole(4, _INT32_MAX), "10485760")
    yield otherFiles("segment.jitter.ms", TYPE_LONG, _whole(0, _INT64_MAX), "0")

    unreplicated = _without("there is one broker")
    yield unreplicated("follower.replication.throttled.replicas", TYPE_LIST, _replicas, "")
    yield unreplicated("leader.replication.throttled.replicas", TYPE_LIST, _replicas, "")
    yield unreplicated("unclean.leader.election.enable", TYPE_BOOLEAN, _TRUE_OR_FALSE, "false")

    local = _without(_NO_TIERS)
    yield local("local.retention.bytes", TYPE_LONG, _whole(-2, _INT64_MAX), "-2")
    yield local("local.retention.ms", TYPE_LONG, _whole(-2, _INT64_MAX), "-2")
    yield local("remote.log.copy.disable", TYPE_BOOLEAN, _TRUE_OR_FALSE, "false")
    yield local("remote.log.delete.on.disable", TYPE_BOOLEAN, _TRUE_OR_FALSE, "false")

    yield _without("a record may be as old as it likes")(
        "message.timestamp.before.max.ms", TYPE_LONG, _whole(0, _INT64_MAX), str(_INT64_MAX)
    )


TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {config.name: config for config in _topicConfigs()}
"""
By name: every setting that topics have in Kafka 4.1, and C{write.caching}, which is our own.  Programs set them
without asking, so one that nothing here obeys is kept and told; one that would promise too much is refused.
"""


def topicConfigTable() -> str:
    """
    L{TOPIC_CONFIGS} as a table in Markdown.
    """
    rows = ["| setting | default | what it does |", "|---|---|---|"]
    for each in TOPIC_CONFIGS.values():
        default = each.default if each.property is None else f"`{each.property}`"
        rows.append(f"| `{each.name}` | {default} | {each.help} |")
    return "\n".join(rows) + "\n"


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


def timestampAfterMaxSeconds(broker: Broker, topic: Topic) -> float:
    """
    How far ahead of now the time of a topic's records may be.
    """
    own = topic.configs.get("message.timestamp.after.max.ms")
    return broker.settings.logMessageTimestampAfterMaxSeconds if own is None else int(own) / 1000

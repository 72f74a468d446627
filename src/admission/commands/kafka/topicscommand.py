# -*- test-case-name: tests.system.test_topics_command -*-
"""
The command C{admission topics}: the topics of a running broker, through Kafka's requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from itertools import islice
from typing import Any, TextIO

from twisted.internet.defer import Deferred
from twisted.python.usage import UsageError

from admission.kafka.client.clientconnection import ClientConnection
from admission.kafka.client.errors import UnsupportedApi, checkError
from admission.plaintext import printable, table
from admission.units import roundedBytes

from ..console import ArgumentOptions, CommandFailed, CommandGroup
from .brokerconnection import ConnectionOptions, Question, ask

EARLIEST = -2
LATEST = -1

_ASKED_AT_ONCE = 1000
"""How many partitions one request asks about."""

_TOPIC = 2
"""The type of resource whose settings are described."""

_UNKNOWN_TOPIC = 3

_SET_FOR_TOPIC = 1
"""The source of a setting that was set for the topic itself."""

Partition = tuple[str, int]
"""A topic and a number."""

Steps = Generator[Deferred[Any], Any, Any]


class NameOptions(ArgumentOptions, ConnectionOptions):
    """
    Options and one name.

    After parsing, C{name} is a key as well.
    """

    optFlags = [["json", None, "Write JSON, for programs."]]
    noun = "topic"

    def parseArgs(self, *names: str) -> None:
        """
        @raise UsageError: unless there is one name.
        """
        if len(names) != 1 or names[0].startswith("-"):
            raise UsageError(f"name one {self.noun}")
        self["name"] = names[0]


class ListOptions(ConnectionOptions):
    synopsis = "[options]"
    longdesc = "Lists the topics with their partitions and what they take of the disk, by name."
    optFlags = [["json", None, "Write JSON, for programs."]]
    examples = ("topics list", "topics list --broker broker.example:9092 --json")


class DescribeOptions(NameOptions):
    synopsis = "[options] TOPIC"
    longdesc = (
        "Shows a topic: the settings that were set for it, and of each partition its leader, where its records begin "
        "and end, and what they take of the disk.  What only another broker of a cluster knows is a question mark."
    )
    examples = ("topics describe events",)


class TopicsOptions(CommandGroup):
    """
    C{topics list|describe}.
    """

    longdesc = "See the topics of a broker, and how large they are."
    subCommands = [
        ["list", None, ListOptions, "List the topics."],
        ["describe", None, DescribeOptions, "Show the partitions of one topic."],
    ]


def run(
    options: TopicsOptions, stdin: TextIO, stdout: TextIO, ask: Callable[[ConnectionOptions, Question], Any] = ask
) -> None:
    """
    @param ask: as L{admission.commands.kafka.brokerconnection.ask}.
    """
    given: Any = options.subOptions
    if isinstance(given, ListOptions):
        topics = ask(given, listTopics)
        if given["json"]:
            stdout.write(json.dumps({"topics": topics}, indent=2) + "\n")
        else:
            rows = [(each["topic"], str(each["partitionCount"]), _size(each["sizeBytes"])) for each in topics]
            titles = ("Topic", "Partitions", "Size")
            stdout.write(table([titles, *rows], "<>>") if rows else "there are no topics\n")
        return
    described = ask(given, lambda connection: describeTopic(connection, given["name"]))
    if given["json"]:
        stdout.write(json.dumps(described, indent=2) + "\n")
        return
    settings = " ".join(f"{name}={value}" for name, value in described["configs"].items()) or "none of its own"
    head = f"topic {described['topic']}, id {described['topicId']}; settings: {settings}"
    stdout.write(f"{printable(head)}\n\n")
    partitions = [
        (
            str(each["partition"]),
            str(each["leader"]),
            shown(each["beginOffset"]),
            shown(each["endOffset"]),
            shown(_recordsIn(each)),
            _size(each["sizeBytes"]),
        )
        for each in described["partitions"]
    ]
    stdout.write(table([("Partition", "Leader", "Begin", "End", "Records", "Size"), *partitions], ">>>>>>"))


def listTopics(connection: ClientConnection) -> Steps:
    """
    Ask for all topics.

    @return: a dictionary for each, sorted by name.
    """
    metadata = yield connection.request("Metadata", {"topics": None, "allow_auto_topic_creation": False})
    sizes = yield from partitionSizes(connection)
    topics = []
    for topic in sorted(metadata.topics, key=lambda each: str(each.name)):
        found = [sizes.get((topic.name, each.partition_index)) for each in topic.partitions]
        known = [sizeBytes for sizeBytes in found if sizeBytes is not None]
        topics.append(
            {
                "topic": topic.name,
                "partitionCount": len(topic.partitions),
                "sizeBytes": sum(known) if known or not found else None,
            }
        )
    return topics


def describeTopic(connection: ClientConnection, name: str) -> Steps:
    """
    Ask for one topic.

    @raise BrokerRefused: if there is none of that name.
    """
    wanted = [{"name": name, "topic_id": None}]
    metadata = yield connection.request("Metadata", {"topics": wanted, "allow_auto_topic_creation": False})
    (topic,) = metadata.topics
    if topic.error_code == _UNKNOWN_TOPIC:
        raise CommandFailed(f"there is no topic {printable(name)!r}; admission topics list shows which there are")
    checkError(topic.error_code, f"topic {name!r}")
    resources = [{"resource_type": _TOPIC, "resource_name": name, "configuration_keys": None}]
    configs = yield connection.request("DescribeConfigs", {"resources": resources})
    (described,) = configs.results
    checkError(described.error_code, f"the settings of topic {name!r}", described.error_message)
    numbers = sorted(each.partition_index for each in topic.partitions)
    places = [(name, number) for number in numbers]
    begins = yield from offsetsOf(connection, places, EARLIEST)
    ends = yield from offsetsOf(connection, places, LATEST)
    sizes = yield from partitionSizes(connection, {name: numbers})
    leaders = {each.partition_index: each.leader_id for each in topic.partitions}
    return {
        "topic": name,
        "topicId": str(getattr(topic, "topic_id", None) or "unknown"),
        "configs": {each.name: each.value for each in described.configs if each.config_source == _SET_FOR_TOPIC},
        "partitions": [
            {
                "partition": number,
                "leader": int(leaders[number]),
                "beginOffset": begins.get((name, number)),
                "endOffset": ends.get((name, number)),
                "sizeBytes": sizes.get((name, number)),
            }
            for number in numbers
        ],
    }


def offsetsOf(connection: ClientConnection, places: Iterable[Partition], moment: int) -> Steps:
    """
    Ask where partitions begin or end.

    @param moment: L{EARLIEST} or L{LATEST}.
    @return: the offset of each partition that this broker answers for.
    """
    offsets: dict[Partition, int] = {}
    remaining = iter(places)
    while some := list(islice(remaining, _ASKED_AT_ONCE)):
        wanted: dict[str, list[dict[str, int]]] = {}
        for name, number in some:
            asked = {"partition_index": number, "current_leader_epoch": -1, "timestamp": moment}
            wanted.setdefault(name, []).append(asked)
        topics = [{"name": name, "partitions": partitions} for name, partitions in wanted.items()]
        answer = yield connection.request("ListOffsets", {"replica_id": -1, "topics": topics})
        for topic in answer.topics:
            for each in topic.partitions:
                if not each.error_code:
                    offsets[topic.name, each.partition_index] = int(each.offset)
    return offsets


def partitionSizes(connection: ClientConnection, topics: Mapping[str, Collection[int]] | None = None) -> Steps:
    """
    Ask what partitions take of the disk.

    @param topics: the partitions of each topic; L{None} for all.
    @return: the bytes of each partition that this broker has and tells of: none if the user may not know.
    """
    wanted = None
    if topics is not None:
        wanted = [{"topic": name, "partitions": list(numbers)} for name, numbers in topics.items()]
    try:
        answer = yield connection.request("DescribeLogDirs", {"topics": wanted})
    except UnsupportedApi:
        return {}
    return {
        (topic.name, each.partition_index): int(each.partition_size)
        for result in answer.results
        for topic in result.topics
        for each in topic.partitions
        if not each.is_future_key
    }


def _recordsIn(partition: Mapping[str, Any]) -> int | None:
    begin, end = partition["beginOffset"], partition["endOffset"]
    return None if begin is None or end is None else end - begin


def shown(number: int | None) -> str:
    """
    A number, or a question mark if it is not known.
    """
    return "?" if number is None else f"{number:,}"


def _size(sizeBytes: int | None) -> str:
    return "?" if sizeBytes is None else roundedBytes(sizeBytes)

# -*- test-case-name: tests.system.test_topics_command -*-
"""
The command C{admission groups}: the consumer groups of a running broker, and how far they are behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from admission.kafka.client.assignors import MalformedMembership, decodeAssignment
from admission.kafka.client.clientconnection import ClientConnection
from admission.kafka.client.errors import checkError
from admission.plaintext import printable, table

from ..console import CommandFailed, CommandGroup
from .brokerconnection import ConnectionOptions, Question, ask
from .topicscommand import LATEST, NameOptions, Partition, Steps, offsetsOf, shown

_DESCRIBED_AT_ONCE = 100
_NO_OFFSET = -1
_DEAD = "Dead"
_NOT_FOUND = 69
_CONSUMERS = "consumer"


class ListOptions(ConnectionOptions):
    synopsis = "[options]"
    longdesc = (
        "Lists the groups with their members and their lag: how many records the group has yet to commit, in the "
        "partitions for which it has committed an offset."
    )
    optFlags = [["json", None, "Write JSON, for programs."]]
    examples = ("groups list", "groups list --broker broker.example:9092 --json")


class DescribeOptions(NameOptions):
    noun = "group"
    synopsis = "[options] GROUP"
    longdesc = "Shows the members of a group, where they connect from and what they are assigned; then its lag."
    examples = ("groups describe billing",)


class LagOptions(NameOptions):
    noun = "group"
    synopsis = "[options] GROUP"
    longdesc = (
        "Shows how many records a group has yet to commit, by partition and in all.  What only another broker of a "
        "cluster knows is a question mark."
    )
    examples = ("groups lag billing",)


class GroupsOptions(CommandGroup):
    """
    C{groups list|describe|lag}.
    """

    longdesc = "See the consumer groups of a broker, and how far they are behind."
    subCommands = [
        ["list", None, ListOptions, "List the groups."],
        ["describe", None, DescribeOptions, "Show the members of one group, and its lag."],
        ["lag", None, LagOptions, "Show the lag of one group."],
    ]


def run(
    options: GroupsOptions, stdin: TextIO, stdout: TextIO, ask: Callable[[ConnectionOptions, Question], Any] = ask
) -> None:
    """
    @param ask: as L{admission.commands.kafka.brokerconnection.ask}.
    """
    given: Any = options.subOptions
    if isinstance(given, ListOptions):
        groups = ask(given, listGroups)
        if given["json"]:
            stdout.write(json.dumps({"groups": groups}, indent=2) + "\n")
            return
        rows = [(each["group"], each["state"], str(each["memberCount"]), shown(each["lagRecords"])) for each in groups]
        stdout.write(table([("Group", "State", "Members", "Lag"), *rows], "<<>>") if rows else "there are no groups\n")
        return
    described = ask(given, lambda connection: describeGroup(connection, given["name"]))
    if isinstance(given, LagOptions):
        described = {name: described[name] for name in ("group", "lagRecords", "partitions")}
    if given["json"]:
        stdout.write(json.dumps(described, indent=2) + "\n")
        return
    if isinstance(given, DescribeOptions):
        stdout.write(_members(described) + "\n")
    stdout.write(_lag(described))


def listGroups(connection: ClientConnection) -> Steps:
    """
    Ask for all groups.

    @return: a dictionary for each, sorted by name.
    """
    answer = yield connection.request("ListGroups", {})
    checkError(answer.error_code, "the list of groups")
    names = sorted(each.group_id for each in answer.groups)
    groups = []
    for begin in range(0, len(names), _DESCRIBED_AT_ONCE):
        described = yield connection.request("DescribeGroups", {"groups": names[begin : begin + _DESCRIBED_AT_ONCE]})
        for each in described.groups:
            partitions = yield from lagOf(connection, each.group_id)
            groups.append(
                {
                    "group": each.group_id,
                    "state": each.group_state or "?",
                    "memberCount": len(each.members),
                    "lagRecords": totalOf(partitions),
                }
            )
    return groups


def describeGroup(connection: ClientConnection, name: str) -> Steps:
    """
    Ask for one group.

    @raise CommandFailed: if there is none of that name.
    """
    answer = yield connection.request("DescribeGroups", {"groups": [name]})
    (group,) = answer.groups
    if group.error_code != _NOT_FOUND:
        checkError(group.error_code, f"group {name!r}")
    # Older brokers call a group dead that they do not know.
    if group.error_code == _NOT_FOUND or group.group_state == _DEAD:
        raise CommandFailed(f"there is no group {printable(name)!r}; admission groups list shows which there are")
    partitions = yield from lagOf(connection, name)
    return {
        "group": name,
        "state": group.group_state,
        "protocol": group.protocol_data,
        "members": [
            {
                "memberId": each.member_id,
                "clientId": each.client_id,
                "host": each.client_host.lstrip("/"),
                "partitions": _assigned(group.protocol_type, each.member_assignment),
            }
            for each in group.members
        ],
        "lagRecords": totalOf(partitions),
        "partitions": partitions,
    }


def lagOf(connection: ClientConnection, name: str) -> Steps:
    """
    Ask how far a group is behind.

    @return: a dictionary for each partition for which it has committed an offset.
    """
    fields = {"topics": None, "groups": [{"group_id": name, "topics": None}], "group_id": name}
    answer = yield connection.request("OffsetFetch", fields)
    committed: dict[Partition, int] = {}
    # From version 8 on several groups can be asked about at once.
    for found in getattr(answer, "groups", [answer]):
        checkError(getattr(found, "error_code", 0), f"the offsets of group {name!r}")
        for topic in found.topics:
            for each in topic.partitions:
                if each.committed_offset != _NO_OFFSET:
                    committed[topic.name, each.partition_index] = int(each.committed_offset)
    ends: Mapping[Partition, int] = yield from offsetsOf(connection, sorted(committed), LATEST)
    return [
        {
            "topic": topic,
            "partition": number,
            "committedOffset": offset,
            "endOffset": ends.get((topic, number)),
            "lagRecords": max(ends[topic, number] - offset, 0) if (topic, number) in ends else None,
        }
        for (topic, number), offset in sorted(committed.items())
    ]


def totalOf(partitions: Sequence[Mapping[str, Any]]) -> int | None:
    """
    The sum of what is known; L{None} if nothing is.
    """
    known = [each["lagRecords"] for each in partitions if each["lagRecords"] is not None]
    return sum(known) if known else None


def _assigned(protocolType: str, assignment: bytes) -> list[str] | None:
    if protocolType != _CONSUMERS or not assignment:
        return None
    try:
        return [f"{place.topic}-{place.partition}" for place in decodeAssignment(assignment)]
    except MalformedMembership:
        return None


def _members(described: Mapping[str, Any]) -> str:
    members = described["members"]
    protocol = f", {printable(described['protocol'])}" if described["protocol"] else ""
    count = "1 member" if len(members) == 1 else f"{len(members)} members"
    head = f"group {printable(described['group'])}: {described['state']}{protocol}, {count}\n"
    rows = [
        (
            each["clientId"],
            each["host"],
            each["memberId"],
            "?" if each["partitions"] is None else " ".join(each["partitions"]),
        )
        for each in members
    ]
    return head + (f"\n{table([('Client id', 'Host', 'Member', 'Assigned'), *rows])}" if rows else "")


def _lag(described: Mapping[str, Any]) -> str:
    rows = [
        (
            each["topic"],
            str(each["partition"]),
            *(shown(each[name]) for name in ("committedOffset", "endOffset", "lagRecords")),
        )
        for each in described["partitions"]
    ]
    if not rows:
        return f"group {printable(described['group'])} has committed no offset\n"
    total = f"\nlag in all: {shown(described['lagRecords'])} records\n"
    return table([("Topic", "Partition", "Committed", "End", "Lag"), *rows], "<>>>>") + total

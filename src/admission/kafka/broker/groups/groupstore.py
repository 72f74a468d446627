# -*- test-case-name: tests.unit.kafka.broker.groups.test_groupstore -*-
"""
How groups survive a restart: their members, assignments and committed offsets
in two tables of the log.
"""

from __future__ import annotations

import json
import struct
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from admission.kafka.storage.itable import CommitCallback, LogFailed, LogRefusal

from ..log.interface import ILog, Partition
from .groupstate import Group, GroupTotals, Offset
from .member import Member
from .subscriptions import CONSUMER_PROTOCOL_TYPE, NO_TOPICS, Subscription, subscriptionIn

_VERSION: Final = 1
_OFFSET_VERSION: Final = 2
"""Since this one, an offset has its holder, and a zero byte, before its metadata."""

_NUMBER: Final = struct.Struct(">Q")
_OFFSET_KEY: Final = struct.Struct(">QQ")
_OFFSET: Final = struct.Struct(">Bqid")


def committedOffsets(entries: Mapping[bytes, bytes]) -> Iterator[tuple[int, int]]:
    """
    The number of a partition and an offset in it, for each entry of the table C{offsets} that can be read.
    """
    for key, value in entries.items():
        try:
            yield _OFFSET_KEY.unpack(key)[1], _OFFSET.unpack_from(value)[1]
        except struct.error:
            continue


class StoredGroup(NamedTuple):
    """
    A group as it was stored.

    @ivar group: the group, with its offsets and without its members.
    @ivar members: its members.
    @ivar isAssigned: whether they had their assignments.
    """

    group: Group
    members: list[Member]
    isAssigned: bool


class GroupStore:
    """
    The tables C{groups} and C{offsets}.  The key of an offset consists of the
    numbers of its group and its partition, so a new topic of the same name as a
    deleted one has no offsets.
    """

    def __init__(self, log: ILog) -> None:
        """
        @raise LogFailed: if the tables cannot be opened.
        """
        self._records = log
        self._groups = log.table("groups")
        self._offsets = log.table("offsets")
        self._lastNumber = 0

    def load(self, totals: GroupTotals) -> list[StoredGroup]:
        """
        Read all groups, and delete offsets whose group or partition is gone.  Offsets beyond what a loss of power has
        left of a partition become its end.

        @raise LogFailed: if they cannot be read, or a record is damaged.
        """
        loaded: dict[int, StoredGroup] = {}
        for key, value in self._groups.items():
            with _refusingDamaged("a group", key):
                (number,) = _NUMBER.unpack(key)
                loaded[number] = _decodeGroup(number, value, totals)
        self._lastNumber = max(loaded, default=0)
        partitions = {
            partition.number: partition for topic in self._records.topics.values() for partition in topic.partitions
        }
        for key, value in self._offsets.items():
            with _refusingDamaged("an offset", key):
                groupNumber, partitionNumber = _OFFSET_KEY.unpack(key)
                if groupNumber in loaded and partitionNumber in partitions:
                    group, offset = loaded[groupNumber].group, _decodeOffset(value)
                    highWatermark = partitions[partitionNumber].highWatermark
                    if self._records.endedUncleanly and offset.offset > highWatermark:
                        # The loss of power that took back these records has left their offset.
                        offset = offset._replace(offset=highWatermark)
                        self._offsets.put(key, _encodeOffset(offset))
                    group.setOffset(partitions[partitionNumber], offset)
                    group.wallSeconds = max(group.wallSeconds, offset.wallSeconds)
                else:
                    self._offsets.delete(key)
        return list(loaded.values())

    def nextNumber(self) -> int:
        """
        A number for a new group.
        """
        self._lastNumber += 1
        return self._lastNumber

    def save(
        self,
        group: Group,
        then: CommitCallback,
        assignments: Mapping[str, bytes] | None = None,
        isAssigned: bool = True,
    ) -> None:
        """
        Write a group, without its offsets.

        @param then: called when it is committed or has failed, maybe before
            this returns; the same holds for all methods.
        @param assignments: the assignments that the members will get; by
            default those that they have.
        @param isAssigned: whether the generation has its assignments.
        """
        record = _encodeGroup(group, assignments, isAssigned)
        group.isStored = True

        def committed(error: Exception | None) -> None:
            if error is not None:
                group.isStored = False
            then(error)

        self._write(lambda: self._groups.put(_NUMBER.pack(group.number), record), committed)

    def saveOffsets(self, group: Group, offsets: Mapping[Partition, Offset], then: CommitCallback) -> None:
        def write() -> None:
            for partition, offset in offsets.items():
                self._offsets.put(_OFFSET_KEY.pack(group.number, partition.number), _encodeOffset(offset))

        self._write(write, then)

    def deleteOffsets(self, group: Group, partitions: Iterable[Partition], then: CommitCallback) -> None:
        def write() -> None:
            for partition in partitions:
                self._offsets.delete(_OFFSET_KEY.pack(group.number, partition.number))

        self._write(write, then)

    def deleteGroup(self, group: Group, then: CommitCallback) -> None:
        """
        Delete a group with its offsets.  Offsets that were written in this
        very turn may stay; L{load} deletes them.
        """

        def write() -> None:
            self._groups.delete(_NUMBER.pack(group.number))
            for partition in group.offsets:
                self._offsets.delete(_OFFSET_KEY.pack(group.number, partition.number))

        self._write(write, then)

    def whenCommitted(self, then: CommitCallback) -> None:
        """
        Have C{then} called when everything written so far is committed.
        """
        self._records.whenCommitted(then)

    def _write(self, write: Callable[[], None], then: CommitCallback) -> None:
        try:
            write()
        except LogRefusal as refusal:
            then(refusal)
        else:
            self.whenCommitted(then)


@contextmanager
def _refusingDamaged(what: str, key: bytes) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, struct.error) as error:
        raise LogFailed(f"the record {key.hex()} of {what} is damaged ({error!r})") from error


def _encodeGroup(group: Group, assignments: Mapping[str, bytes] | None, isAssigned: bool) -> bytes:
    def assignmentOf(member: Member) -> bytes:
        return member.assignment if assignments is None else assignments.get(member.memberId, b"")

    fields = {
        "id": group.groupId,
        "holder": group.holder,
        "wallSeconds": group.wallSeconds,
        "generation": group.generation,
        "protocolType": group.protocolType,
        "protocolName": group.protocolName,
        "leader": group.leaderId,
        "isAssigned": isAssigned,
        "members": [
            {
                "id": member.memberId,
                "instance": member.instanceId,
                "client": member.clientId,
                "host": member.host,
                "holder": member.holder,
                "sessionSeconds": member.sessionSeconds,
                "rebalanceSeconds": member.rebalanceSeconds,
                "protocols": [[name, _text(metadata)] for name, metadata in member.protocols],
                "assignment": _text(assignmentOf(member)),
            }
            for member in group.members.values()
        ],
    }
    return bytes((_VERSION,)) + json.dumps(fields, separators=(",", ":")).encode("ascii")


def _decodeGroup(number: int, value: bytes, totals: GroupTotals) -> StoredGroup:
    _checkVersion(value)
    fields = json.loads(value[1:])
    group = Group(
        fields["id"],
        number,
        totals,
        float(fields["wallSeconds"]),
        sys.intern(fields.get("holder", "")),
        generation=int(fields["generation"]),
        protocolType=fields["protocolType"],
        protocolName=fields["protocolName"],
        leaderId=fields["leader"],
        isStored=True,
    )
    isConsumers = group.protocolType == CONSUMER_PROTOCOL_TYPE
    members = [_decodeMember(each, isConsumers) for each in fields["members"]]
    return StoredGroup(group, members, fields["isAssigned"])


def _decodeMember(fields: Mapping[str, Any], isConsumer: bool) -> Member:
    protocols = tuple((name, b64decode(metadata, validate=True)) for name, metadata in fields["protocols"])
    return Member(
        memberId=fields["id"],
        instanceId=fields["instance"],
        clientId=fields["client"],
        host=fields["host"],
        holder=sys.intern(fields.get("holder", fields["host"])),
        sessionSeconds=float(fields["sessionSeconds"]),
        rebalanceSeconds=float(fields["rebalanceSeconds"]),
        protocols=protocols,
        subscription=_subscriptionIn([metadata for _, metadata in protocols]) if isConsumer else NO_TOPICS,
        assignment=b64decode(fields["assignment"], validate=True),
        isNew=False,
    )


def _subscriptionIn(metadata: Iterable[bytes]) -> Subscription:
    # Nobody is served before the start is over.
    steps = subscriptionIn(metadata)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            subscription: Subscription = end.value
            return subscription


def _encodeOffset(offset: Offset) -> bytes:
    head = _OFFSET.pack(_OFFSET_VERSION, offset.offset, offset.leaderEpoch, offset.wallSeconds)
    holder = offset.holder.encode("utf-8", "surrogatepass").replace(b"\0", b"")
    return b"".join((head, holder, b"\0", offset.metadata.encode()))


def _decodeOffset(value: bytes) -> Offset:
    _checkVersion(value, _OFFSET_VERSION)
    version, offset, leaderEpoch, wallSeconds = _OFFSET.unpack_from(value)
    holder, metadata = b"", value[_OFFSET.size :]
    if version == _OFFSET_VERSION:
        holder, _, metadata = metadata.partition(b"\0")
    holderName = sys.intern(holder.decode("utf-8", "surrogatepass"))
    return Offset(offset, leaderEpoch, metadata.decode(), wallSeconds, holderName)


def _checkVersion(value: bytes, newest: int = _VERSION) -> None:
    if not 1 <= value[0] <= newest:
        raise LogFailed(f"the state of a group is written in format {value[0]}, and only {newest} is known here")


def _text(value: bytes) -> str:
    return b64encode(value).decode("ascii")

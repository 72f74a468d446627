"""What clients were told, and whether it is so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, field

from admission.kafka.broker.log.interface import ILog
from admission.kafka.wire.batches import readBatch
from tests.kit.logfixture import batchesIn

from .network import Violation

ALL = -1

Place = tuple[str, int]
"""The name of a topic, and the number of a partition."""


@define(eq=False)
class Batch:
    """
    What a producer has sent.

    @ivar records: the batch on the wire.
    @ivar producer: the id and epoch of an idempotent producer, and the first and last sequence number.
    @ivar number: its place among the batches of its producer for this partition.
    @ivar offset: where it is, as far as the producer knows.
    @ivar acks: with which acks it was acknowledged; L{None} if it was not.
    @ivar ackedSeconds: when that was.
    """

    place: Place
    records: bytes
    count: int
    producer: tuple[int, int, int, int] | None
    number: int
    offset: int | None = None
    acks: int | None = None
    ackedSeconds: float = 0.0

    @property
    def identity(self) -> bytes:
        """Its bytes, without what a log fills in."""
        return identityOf(self.records)


def identityOf(stored: bytes) -> bytes:
    """A batch without its base offset and leader epoch."""
    return stored[8:12] + stored[16:]


@define
class Commit:
    """
    An offset that a member has committed.

    @ivar text: stored with it, different each time.
    @ivar ackedSeconds: when it was acknowledged; L{None} if it was not.
    """

    text: str
    ackedSeconds: float | None = None


@define
class Told:
    """
    What members were told of a generation.

    @ivar members: whom its leader was told of; L{None} while no leader has said so.
    """

    leader: str
    memberIds: list[str] | None = None


@define
class History:
    """
    @ivar batches: all that were sent, by their bytes.
    @ivar forgetful: the partitions that forget old records.
    @ivar commits: what one writer has committed, oldest first, by group and partition.
    @ivar generations: by group.
    @ivar topics: what an administrator's topics may be: numbers of partitions; L{None} for no such topic.
    @ivar read: what consumers have read, by place and offset.
    @ivar ackCount: how many batches were acknowledged.
    @ivar readCount: how many were read.
    @ivar commitCount: how many offsets were committed.
    """

    batches: dict[bytes, Batch] = field(factory=dict)
    read: dict[tuple[Place, int], bytes] = field(factory=dict)
    forgetful: set[Place] = field(factory=set)
    commits: dict[tuple[str, int], list[Commit]] = field(factory=dict)
    generations: dict[str, dict[int, Told]] = field(factory=dict)
    topics: dict[str, set[int | None]] = field(factory=dict)
    ackCount: int = 0
    readCount: int = 0
    commitCount: int = 0

    def sent(self, batch: Batch) -> None:
        assert batch.identity not in self.batches, "two batches are the same"
        self.batches[batch.identity] = batch

    def acked(self, batch: Batch, offset: int | None, acks: int, now: float) -> None:
        """
        A producer was told that a batch is stored.

        @param offset: L{None} if it was told that it is a duplicate of something older.
        """
        if offset is not None:
            others = self.read.get((batch.place, offset))
            if others is not None and others != batch.identity:
                raise Violation(f"{batch.place} {offset} is acknowledged, and a consumer has read something else there")
            if batch.offset not in (None, offset):
                raise Violation(f"a batch of {batch.place} was at {batch.offset}, and is at {offset}")
            batch.offset = offset
        batch.acks = acks if batch.acks is None else min(batch.acks, acks)
        batch.ackedSeconds = now
        self.ackCount += 1

    def fetched(self, place: Place, position: int, records: bytes) -> int:
        """
        A consumer was given records.

        @return: where it goes on.
        """
        for stored in batchesIn(records):
            header = readBatch(stored)
            identity = identityOf(stored)
            batch = self.batches.get(identity)
            offset = header.baseOffset
            if batch is None or batch.place != place:
                raise Violation(f"nothing like what is read at {place} {offset} was sent there")
            if offset > position and not (position == 0 or place in self.forgetful):
                raise Violation(f"{place} {offset} is read after {position}")
            known = self.read.setdefault((place, offset), identity)
            if known != identity or batch.offset not in (None, offset):
                raise Violation(f"{place} {offset} has changed, or moved")
            if header.lastOffset < position:
                raise Violation(f"{place} {offset} is read again, at {position}")
            position = header.lastOffset + 1
            self.readCount += 1
        return position

    def joined(self, group: str, generation: int, leader: str, memberId: str, members: Sequence[str]) -> None:
        """A member was told of a generation."""
        told = self.generations.setdefault(group, {}).setdefault(generation, Told(leader))
        if told.leader != leader:
            raise Violation(f"generation {generation} of {group} is led by {leader}, and by {told.leader}")
        if memberId == leader:
            if told.memberIds not in (None, sorted(members)):
                raise Violation(f"generation {generation} of {group} has {sorted(members)}, and had {told.memberIds}")
            told.memberIds = sorted(members)
            if memberId not in members:
                raise Violation(f"the leader of generation {generation} of {group} is not one of its members")

    def lastGeneration(self, group: str) -> int:
        """The last that anybody was told of."""
        return max(self.generations.get(group, ()), default=-1)

    def committed(self, key: tuple[str, int], text: str, now: float) -> None:
        """The only writer of an offset has read it."""
        commits = self.commits.get(key, [])
        acked = [number for number, commit in enumerate(commits) if commit.ackedSeconds is not None]
        allowed = {commit.text for commit in commits[acked[-1] if acked else 0 :]}
        if not acked:
            allowed.add("")
        if text not in allowed:
            raise Violation(f"the offset {key} says {text!r}, and could say {sorted(allowed)}")
        if commits:
            # Whatever else was on its way has not come.
            seconds = {commit.text: commit.ackedSeconds for commit in commits}
            self.commits[key] = [Commit(text, seconds.get(text) or now)] if text else []

    def powerLost(self, log: ILog, now: float, unflushedSeconds: float) -> None:
        """
        The broker has lost power and has come back: forget what it may have forgotten.

        @param now: when it was lost.
        @param unflushedSeconds: how old what was not flushed may have been.
        """
        self.generations.clear()
        for key, commits in self.commits.items():
            safe = [commit for commit in commits if commit.ackedSeconds is not None]
            safe = [commit for commit in safe if commit.ackedSeconds < now - unflushedSeconds]  # type: ignore[operator]
            first = commits.index(safe[-1]) if safe else 0
            kept = commits[first:]
            for commit in kept[1:] if safe else kept:
                commit.ackedSeconds = None
            self.commits[key] = kept
        present = self._present(log)
        for batch in self.batches.values():
            if batch.acks != ALL and batch.identity not in present:
                batch.acks = batch.offset = None
        for key2, identity in list(self.read.items()):
            if present.get(identity) != key2:
                del self.read[key2]

    def check(self, log: ILog) -> None:
        """Compare what the log has with what clients were told."""
        present = self._present(log)
        orders: dict[tuple[Place, int, int], int] = {}
        for identity, (place, offset) in present.items():
            batch = self.batches[identity]
            if batch.place != place:
                raise Violation(f"a batch for {batch.place} is in {place}")
            if batch.offset not in (None, offset):
                raise Violation(f"a batch was acknowledged at {place} {batch.offset}, and is at {offset}")
            if self.read.get((place, offset), identity) != identity:
                raise Violation(f"{place} {offset} is not what was read there")
            if batch.producer is not None:
                key = (place, *batch.producer[:2])
                if batch.producer[2] <= orders.get(key, -1):
                    raise Violation(f"sequence {batch.producer[2]} is behind {orders[key]} in {place}")
                orders[key] = batch.producer[3]
        for batch in self.batches.values():
            if batch.acks is None or batch.identity in present:
                continue
            topic = log.topic(batch.place[0])
            start = topic.partitions[batch.place[1]].logStartOffset
            isRemoved = batch.place in self.forgetful and (batch.offset is None or batch.offset < start)
            if not isRemoved:
                raise Violation(f"{batch.place} {batch.offset}, acknowledged with acks={batch.acks}, is lost")
        for name, states in self.topics.items():
            actual = len(log.topics[name].partitions) if name in log.topics else None
            if actual not in states:
                raise Violation(f"topic {name} has {actual} partitions, and could have {states}")
            states.intersection_update({actual})

    def _present(self, log: ILog) -> Mapping[bytes, tuple[Place, int]]:
        """Where each batch is."""
        present: dict[bytes, tuple[Place, int]] = {}
        names = {batch.place[0] for batch in self.batches.values()}
        for name in sorted(names):
            for partition in log.topic(name).partitions:
                place = (name, partition.index)
                offset = partition.logStartOffset
                while offset < partition.highWatermark:
                    found = batchesIn(log.read(partition, offset, 1 << 20))
                    if not found:
                        raise Violation(f"nothing can be read at {place} {offset}")
                    for stored in found:
                        header, identity = readBatch(stored), identityOf(stored)
                        if header.baseOffset != offset:
                            raise Violation(f"{place} {header.baseOffset} follows {offset}")
                        if identity not in self.batches:
                            raise Violation(f"nothing like what is at {place} {offset} was sent")
                        if identity in present:
                            raise Violation(f"what is at {place} {offset} is at {present[identity]}, too")
                        present[identity] = (place, offset)
                        offset = header.lastOffset + 1
        return present

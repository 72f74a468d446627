# -*- test-case-name: tests.unit.kafka.broker.log.test_lmdbmigration -*-
"""
Making a log of one that an earlier version kept in LMDB.

The only module that needs C{lmdb}, which the extra C{migrate} brings.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import UUID

import lmdb
from attrs import define, field, frozen
from crc32c import crc32c
from twisted.internet.defer import maybeDeferred

from admission.kafka.wire.batches import HEADER_BYTES, assignOffset, readHeader

from .datadirectory import DOCUMENTS, LMDB_FILE, PARTITIONS
from .disk import LocalDisk, explain
from .documents import Documents
from .interface import LogFailed
from .logbackup import flushAll, writeDocuments
from .logcheck import LogReport, Tell, refuseInUse
from .openfiles import OpenFiles
from .partitionlog import DirtyFiles, PartitionLog, SegmentFiles
from .producers import ProducerState
from .retentionlimits import NO_LIMITS
from .topics import NUMBER, directoryName

_FORMAT: Final = 1

# The keys and values of the earlier version.
_BATCH_KEY: Final = struct.Struct(">Iqqq")
_SEEK_KEY: Final = struct.Struct(">Iq")
_EXTENT: Final = struct.Struct(">qqqq")
_PRODUCER_KEY: Final = struct.Struct(">Iq")
_COUNTER: Final = struct.Struct(">q")
_TABLE: Final = b"table "
_CLUSTER_FILE: Final = "cluster.id"

# The state of a producer: version, number of batches, epoch and time of the last use; the batches, newest first; the
# owner. The version before had no version and no owner, and the batches oldest first.
_VERSION: Final = 0x80
_HEAD: Final = struct.Struct(">BBhd")
_FIRST_HEAD: Final = struct.Struct(">hd")
_PRODUCED: Final = struct.Struct(">iiq")

_OWNER_KEY: Final = struct.Struct(">q")

_CHECKED_FROM: Final = 21
_COMMIT_BYTES: Final = 4 << 20
_DOCUMENT_BYTES: Final = 1 << 20
_MAX_FILES: Final = 64


@define
class OldPartition:
    """
    @ivar number: the same in both logs, because committed offsets have it in their keys.
    @ivar nextOffset: the offset after its last record.
    """

    topicName: str
    index: int
    number: int
    configs: Mapping[str, str]
    logStartOffset: int = 0
    nextOffset: int = 0
    batchCount: int = 0
    recordCount: int = 0
    sizeBytes: int = 0


@frozen
class Migrated:
    """
    What was written.

    @ivar tables: how many entries each table of the documents has got.
    """

    partitions: list[OldPartition] = field(factory=list)
    tables: dict[str, int] = field(factory=dict)


class OldLog:
    """
    A log in LMDB, for reading only: not even its lock file is written.
    """

    def __init__(self, path: str) -> None:
        """
        @raise LogInUse: if a broker uses it.
        @raise LogFailed: if it is damaged, or of a version that is not known.
        """
        refuseInUse(path)
        self.path = path
        try:
            self._environment = lmdb.open(path, readonly=True, lock=False, max_dbs=64)
        except lmdb.Error as error:
            raise LogFailed(f"{path} cannot be read: {error}") from error
        try:
            neededBytes = (self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"]
            if os.path.getsize(os.path.join(path, LMDB_FILE)) < neededBytes:
                # Reading behind the end of a mapped file would kill the process.
                raise LogFailed(f"{path} is damaged: its file is shorter than it says; restore a backup")
            names = self._names()
            self._tables = {name: self._environment.open_db(name, create=False) for name in names}
            if missing := {b"batches", b"topics", b"partitions", b"producers", b"counters"} - set(names):
                raise LogFailed(f"{path} has no table {min(missing).decode()!r}: it is no log of a broker")
            if (version := self.counter(b"format")) != _FORMAT:
                raise LogFailed(f"{path} has a log of format {version}, and only format {_FORMAT} can be migrated")
        except lmdb.Error as error:
            self.close()
            raise LogFailed(f"{path} cannot be read: {error}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._environment.close()

    @property
    def sizeBytes(self) -> int:
        """
        The size of all records, about.
        """
        with self._environment.begin(self._tables[b"batches"]) as transaction:
            stat: Any = transaction.stat(self._tables[b"batches"])
        pages: int = stat["leaf_pages"] + stat["overflow_pages"]
        return pages * int(stat["psize"])

    @property
    def clusterId(self) -> str:
        """
        Empty if it has none.
        """
        try:
            with open(os.path.join(self.path, _CLUSTER_FILE), encoding="ascii") as file:
                return file.read().strip()
        except FileNotFoundError:
            return ""

    def counter(self, key: bytes) -> int:
        with self._environment.begin() as transaction:
            stored = transaction.get(key, db=self._tables[b"counters"])
        value: int = _COUNTER.unpack(stored)[0] if stored else 0
        return value

    def entries(self, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        """
        The keys and values of a table.
        """
        with self._environment.begin(self._tables[name]) as transaction:
            yield from transaction.cursor(self._tables[name])

    def documentTables(self) -> Iterator[str]:
        """
        The names of the tables of groups, limits and the like.
        """
        for name in self._tables:
            if name.startswith(_TABLE):
                yield name.removeprefix(_TABLE).decode("ascii")

    def topics(self) -> Iterator[tuple[str, Mapping[str, Any], list[OldPartition]]]:
        """
        Names, what is stored of them, and partitions with their starts.

        @raise LogFailed: if a topic is damaged.
        """
        extents = dict(self.entries(b"partitions"))
        for key, value in self.entries(b"topics"):
            try:
                name, stored = str(key, "ascii"), json.loads(value)
                UUID(stored["id"])
                partitions = []
                for index, number in enumerate(stored["partitions"]):
                    partition = OldPartition(name, index, number, stored["configs"])
                    if extent := extents.get(NUMBER.pack(number)):
                        partition.logStartOffset = _EXTENT.unpack(extent)[0]
                    partition.nextOffset = partition.logStartOffset
                    partitions.append(partition)
            except (LookupError, TypeError, ValueError, struct.error) as error:
                raise LogFailed(f"what {self.path} has of topic {key!r} is damaged ({error!r})") from error
            yield name, stored, partitions

    def batches(self, number: int) -> Iterator[tuple[int, bytes]]:
        """
        The batches of a partition with their base offsets.
        """
        with self._environment.begin(self._tables[b"batches"]) as transaction:
            cursor = transaction.cursor(self._tables[b"batches"])
            isThere = cursor.set_range(_SEEK_KEY.pack(number, 0))
            while isThere:
                owner, baseOffset, _, _ = _BATCH_KEY.unpack(cursor.key())
                if owner != number:
                    return
                yield baseOffset, cursor.value()
                isThere = cursor.next()

    def producers(self) -> Iterator[tuple[int, int, bytes]]:
        """
        The numbers of partitions, the ids of producers, and their states.
        """
        for key, value in self.entries(b"producers"):
            number, producerId = _PRODUCER_KEY.unpack(key)
            yield number, producerId, value

    def _names(self) -> list[bytes]:
        with self._environment.begin() as transaction:
            return [key for key, _ in transaction.cursor()]


class Migration:
    """
    Copies an old log into a new directory.

    The documents are written last: without them no broker opens the directory, so an unfinished migration is not
    taken for a log.
    """

    def __init__(self, old: OldLog, path: str, tell: Tell, nowSeconds: float) -> None:
        """
        @param path: a directory without contents.
        @param nowSeconds: seconds since 1970.
        """
        self._old = old
        self._path = path
        self._tell = tell
        self._nowSeconds = nowSeconds
        self._disk = LocalDisk()
        self._files = OpenFiles(self._disk, _MAX_FILES)
        self._segments = SegmentFiles(self._disk, self._files)
        self._owners: dict[bytes, bytes] = {}

    def run(self) -> Migrated:
        """
        @raise LogFailed: if the old log is damaged, or the new one cannot be written.
        """
        migrated = Migrated()
        try:
            topics = list(self._old.topics())
            partitions = [partition for _, _, each in topics for partition in each]
            states = self._states({partition.number for partition in partitions})
            for partition in partitions:
                self._copy(partition, states.get(partition.number, {}))
            self._writeDocuments(topics, partitions, migrated)
            migrated.partitions.extend(partitions)
        except lmdb.Error as error:
            raise LogFailed(f"{self._old.path} cannot be read: {error}") from error
        except OSError as error:
            raise LogFailed(f"{self._path} cannot be written: {explain(error)}") from error
        finally:
            self._files.closeAll()
        flushAll(self._path)
        return migrated

    def _states(self, numbers: set[int]) -> dict[int, dict[int, bytes]]:
        """
        The encoded states of producers by their ids, by partition.
        """
        states: dict[int, dict[int, bytes]] = {}
        for number, producerId, stored in self._old.producers():
            if number in numbers:
                state, owner = decodeOldState(stored)
                states.setdefault(number, {})[producerId] = state.encode()
                if owner:
                    self._owners[_OWNER_KEY.pack(producerId)] = owner
        return states

    def _copy(self, old: OldPartition, producers: Mapping[int, bytes]) -> None:
        directory = os.path.join(self._path, PARTITIONS, directoryName(old.topicName, old.index, old.number))
        limits = NO_LIMITS.overriddenBy(old.configs)
        partition = PartitionLog(old.topicName, old.index, old.number, directory=directory, limits=limits)
        # Segments are rolled between commits.
        commitBytes = min(_COMMIT_BYTES, limits.segmentBytes // 4)
        pendingBytes = 0
        for baseOffset, value in self._old.batches(old.number):
            if not old.batchCount:
                # Where nothing says where it starts, it starts with its first batch.
                old.logStartOffset = old.nextOffset = max(old.logStartOffset, baseOffset)
                partition.nextOffset = partition.highWatermark = partition.logStartOffset = baseOffset
            batch = readHeader(value) if len(value) >= HEADER_BYTES else None
            if batch is None or batch.sizeBytes != len(value) or crc32c(value[_CHECKED_FROM:]) != batch.crc:
                raise LogFailed(f"{partition.name} of {self._old.path} is damaged at offset {baseOffset}")
            if baseOffset != partition.nextOffset:
                raise LogFailed(
                    f"{partition.name} of {self._old.path} lacks the offsets {partition.nextOffset} to {baseOffset - 1}"
                )
            if not partition.hasPending:
                partition.prepare(self._segments, len(value), self._nowSeconds, dict)
                if partition.segments and partition.segments[-1].sealed is not None:
                    # Its producers are known at the end of the partition only.
                    partition.segments[-1].sealed = partition.segments[-1].checkpoint(None)
            buffer = bytearray(value)
            assignOffset(buffer, baseOffset, 0)
            partition.append(buffer, batch)
            old.batchCount += 1
            old.recordCount += batch.count
            old.sizeBytes += len(value)
            pendingBytes += len(value)
            if pendingBytes >= commitBytes:
                self._commit(partition, pendingBytes)
                pendingBytes = 0
        old.nextOffset = partition.nextOffset if old.batchCount else old.nextOffset
        if partition.hasPending:
            self._commit(partition, pendingBytes)
        self._flush(partition.takeDirty(lambda: producers))
        for segment, checkpoint in partition.lastCheckpoint(lambda: producers):
            checkpoint.write(self._disk, segment.checkpointPath)
        self._segments.close(partition.segments)

    def _commit(self, partition: PartitionLog, sizeBytes: int) -> None:
        partition.write(self._segments, self._nowSeconds)
        partition.settle(0)
        self._tell(sizeBytes)
        if len(partition.segments) > 1 and partition.segments[-2].sealed is not None:
            self._flush(partition.takeDirty(dict))

    def _flush(self, dirty: DirtyFiles) -> None:
        for segment in dirty.segments:
            self._files.beginFlush(segment).flush()
        self._files.endFlush(dirty.segments)
        for segment, checkpoint in dirty.checkpoints:
            checkpoint.write(self._disk, segment.checkpointPath)

    def _writeDocuments(
        self,
        topics: list[tuple[str, Mapping[str, Any], list[OldPartition]]],
        partitions: list[OldPartition],
        migrated: Migrated,
    ) -> None:
        documents = Documents(self._disk, self._files, os.path.join(self._path, DOCUMENTS), maybeDeferred)
        entries = self._entries(topics, partitions)
        sizeBytes = 0
        for table, key, value in entries:
            documents.put(table, key, value)
            migrated.tables[table] = migrated.tables.get(table, 0) + 1
            sizeBytes += len(key) + len(value)
            if sizeBytes >= _DOCUMENT_BYTES:
                writeDocuments(documents, self._disk, self._files)
                sizeBytes = 0
        writeDocuments(documents, self._disk, self._files)

    def _entries(
        self, topics: list[tuple[str, Mapping[str, Any], list[OldPartition]]], partitions: list[OldPartition]
    ) -> Iterator[tuple[str, bytes, bytes]]:
        for name, stored, _ in topics:
            yield "topics", name.encode("ascii"), json.dumps(stored).encode("utf-8")
        for partition in partitions:
            if partition.logStartOffset:
                yield "starts", NUMBER.pack(partition.number), _COUNTER.pack(partition.logStartOffset)
        number = self._old.counter(b"next partition number")
        yield "counters", b"next partition number", _COUNTER.pack(number)
        for producerId, owner in self._owners.items():
            yield "owners", producerId, owner
        for table in self._old.documentTables():
            for key, value in self._old.entries(_TABLE + table.encode("ascii")):
                yield table, key, value
        yield "facts", b"next producer id", _COUNTER.pack(self._old.counter(b"next producer id"))
        if clusterId := self._old.clusterId:
            yield "facts", b"cluster id", clusterId.encode("ascii")


def decodeOldState(stored: bytes) -> tuple[ProducerState, bytes]:
    """
    The state of a producer as an earlier version stored it, and its owner.

    @raise struct.error: if it is damaged.
    """
    if stored[:1] != bytes([_VERSION]):
        epoch, lastUsedSeconds = _FIRST_HEAD.unpack_from(stored)
        return ProducerState(epoch, tuple(_PRODUCED.iter_unpack(stored[_FIRST_HEAD.size :])), lastUsedSeconds), b""
    _, count, epoch, lastUsedSeconds = _HEAD.unpack_from(stored)
    end = _HEAD.size + count * _PRODUCED.size
    batches = tuple(_PRODUCED.iter_unpack(stored[_HEAD.size : end]))
    return ProducerState(epoch, batches[::-1], lastUsedSeconds), stored[end:]


def compare(migrated: Migrated, report: LogReport) -> Iterator[str]:
    """
    What a new log lacks of what was written to it; nothing if all is well.
    """
    for problem in report.losses:
        yield f"{problem.where} {problem.what}"
    found = {each.name: each for each in report.partitions}
    for old in migrated.partitions:
        new = found.get(f"{old.topicName}-{old.index}")
        if new is None:
            yield f"{old.topicName}-{old.index} is missing"
        elif (new.batchCount, new.recordCount, new.sizeBytes, new.startOffset, new.nextOffset) != (
            old.batchCount,
            old.recordCount,
            old.sizeBytes,
            old.logStartOffset,
            old.nextOffset,
        ):
            yield f"{new.name} has {new.recordCount} records of {old.recordCount}"
    for table, count in migrated.tables.items():
        if len(report.documents.get(table, {})) != count:
            yield f"the table {table!r} has {len(report.documents.get(table, {}))} entries of {count}"

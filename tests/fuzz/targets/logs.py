"""
The files of a log: segments, checkpoints, journal and snapshot of documents, and what else lies in its directories.
With one of them replaced by anything, the log is opened or refused with L{LogFailed}; it is read to its end, or reading
is refused; what was damaged behind a checksum never shows, and what stands before the damage is still there; a log that
was opened is opened again, with the same contents, and can be appended to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from random import Random
from typing import Final
from unittest.mock import patch

from attrs import frozen
from crc32c import crc32c
from twisted.internet.defer import maybeDeferred
from twisted.logger import capturedLogs

from admission.control import AdmissionControl
from admission.kafka.broker.api.timelookup import maxTimestampOffset, offsetForTimestamp
from admission.kafka.broker.groups.groupstate import Group, GroupTotals, Offset
from admission.kafka.broker.groups.groupstore import GroupStore
from admission.kafka.broker.log.interface import Partition
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.serving.quotalimits import QuotaLimits
from admission.kafka.storage.itable import LogFailed, LogRefusal
from admission.kafka.wire.batches import HEADER_BYTES, Record, encodeBatch, readBatch, readHeader
from tests.kit.logfixture import TurnClock, finish, goOver
from tests.kit.simulateddisk import SimulatedDisk

from ..scratch import scratch

MAX_BYTES = 4096

_CLEAN, _REPAIRED = 0x01, 0x02
_DIRECTORY_NAME, _FILE_NAME = 0xFE, 0xFF

_WALL_SECONDS: Final = 1e9
_SEGMENT_BYTES: Final = 1024

_UNCHECKED_BYTES: Final = 21
"""How much of a batch its checksum does not comprise."""

_BASE_OFFSET_AND_LENGTH: Final = 12

_HEADER_BYTES: Final = 32
_FRAME_BYTES: Final = 16


def logRoot() -> str:
    """The directory of the log."""
    return os.path.join(scratch(), "log")


@frozen
class UndamagedLog:
    """
    What is on a disk.

    @ivar files: contents by path.
    @ivar batches: what is in each partition, by its number.
    """

    files: Mapping[str, bytes]
    batches: Mapping[int, Sequence[bytes]]


@frozen
class DamagedLog:
    """
    The files of a log of which one was replaced, or added.

    @ivar files: contents by path.
    @ivar path: that of the replaced one.
    """

    files: Mapping[str, bytes]
    path: str | None


def _open(disk: SimulatedDisk, clock: TurnClock) -> SegmentLog:
    return SegmentLog(
        logRoot(),
        clock,
        lambda: _WALL_SECONDS,
        maybeDeferred,
        disk=disk,
        retentionSeconds=None,
        segmentBytes=_SEGMENT_BYTES,
        maxPartitions=100,
    )


def _filesIn(disk: SimulatedDisk, directory: str) -> Iterator[tuple[str, bytes]]:
    for name in sorted(disk.list(directory)):
        path = os.path.join(directory, name)
        try:
            file = disk.open(path)
        except IsADirectoryError:
            yield from _filesIn(disk, path)
        else:
            yield path, file.read(0, file.size())
            file.close()


@cache
def undamagedLog(isClean: bool) -> UndamagedLog:
    """A log with two topics, of several segments, producers, groups and limits."""
    with patch("os.urandom", Random(0).randbytes):
        # Ids are the same in every run.
        return _made(isClean)


def _made(isClean: bool) -> UndamagedLog:
    disk, clock = SimulatedDisk(logRoot(), Random(0)), TurnClock()
    log = _open(disk, clock)
    events, others = log.createTopic("events", 2, {}), log.createTopic("others", 1, {"retention.bytes": "100000"})
    store = GroupStore(log)
    group = Group("group", store.nextNumber(), GroupTotals(), _WALL_SECONDS)
    store.save(group, lambda error: None)
    store.saveOffsets(group, {events.partitions[0]: Offset(2, 0, "metadata", _WALL_SECONDS)}, lambda error: None)
    log.table("quotas", isFlushed=True).put(
        b'["alice", null, null]', b'{"version": 1, "limits": {"producer_byte_rate": 1000.0}}'
    )
    producerId = log.allocateProducerId()
    for number in range(6):
        for partition, producer in (
            (events.partitions[0], {}),
            (others.partitions[0], {"producerId": producerId, "producerEpoch": 0, "baseSequence": 2 * number}),
        ):
            records = [Record(b"k", bytes(150), 1000 + number), Record(None, b"v", 999)]
            batch = bytearray(encodeBatch(records, **producer))
            log.append(partition, batch, readBatch(batch), "alice")
        clock.advance(2.0)
    if isClean:
        log.close()
    clock.advance(1.0)
    files = dict(_filesIn(disk, logRoot()))
    batches: dict[int, list[bytes]] = {}
    for topic in log.topics.values():
        for partition in topic.partitions:
            directory = f"{topic.name}-{partition.index}.{partition.number}{os.sep}"
            stored = b"".join(
                contents for path, contents in sorted(files.items()) if directory in path and path.endswith(".log")
            )
            batches[partition.number] = list(_split(stored))
    if not isClean:
        # So that the lock is given back.
        log.close()
        clock.advance(1.0)
    return UndamagedLog(files, batches)


def _split(stored: bytes) -> Iterator[bytes]:
    while len(stored) >= HEADER_BYTES:
        sizeBytes = _BASE_OFFSET_AND_LENGTH + int.from_bytes(stored[8:12], "big", signed=True)
        yield stored[:sizeBytes]
        stored = stored[sizeBytes:]


def seeds() -> Iterator[bytes]:
    for flags in (0, _CLEAN, _REPAIRED, _CLEAN | _REPAIRED):
        image = undamagedLog(bool(flags & _CLEAN))
        for number, path in enumerate(sorted(image.files)):
            if image.files[path]:
                yield bytes((flags, number)) + image.files[path]
    for name in (b"events-0.7", b"backup.20261122235118", b"x", b"others-0.1"):
        yield bytes((0, _DIRECTORY_NAME)) + name
    for name in (b"00000000000000000004.log", b"00000000000000000000.index", b"99999999999999999999.log", b"x.tmp"):
        yield bytes((_CLEAN, _FILE_NAME)) + name


TOKENS = [b"00000000000000000001", b".log", b".index", b".journal", b".snapshot", b".tmp", b"null", b"{}", b"[]", b"-1"]


def check(data: bytes) -> None:
    damaged = damagedLog(data)
    if damaged is not None:
        _checkLog(undamagedLog(bool(data[0] & _CLEAN)), damaged.files, damaged.path, bool(data[0] & _REPAIRED))


def damagedLog(data: bytes) -> DamagedLog | None:
    """What an input says of a log; L{None} if it says nothing."""
    if len(data) < 2:
        return None
    isClean, isRepaired, choice, contents = bool(data[0] & _CLEAN), bool(data[0] & _REPAIRED), data[1], data[2:]
    files = dict(undamagedLog(isClean).files)
    if choice not in (_DIRECTORY_NAME, _FILE_NAME):
        paths = sorted(files)
        path = paths[choice % len(paths)]
        files[path] = _repaired(path, contents) if isRepaired else contents
        return DamagedLog(files, path)
    name = re.sub("[/\0]", "_", contents.decode("utf-8", "replace"))[:80]
    if name in ("", ".", ".."):
        return None
    segment = next(each for each in sorted(files) if each.endswith(".log"))
    path = (
        os.path.join(logRoot(), "partitions", name, "file")
        if choice == _DIRECTORY_NAME
        else os.path.join(os.path.dirname(segment), name)
    )
    if path in files or os.path.dirname(path) in files:
        return None
    files[path] = b""
    return DamagedLog(files, None)


def _repaired(path: str, contents: bytes) -> bytes:
    """Give everything but checkpoints the checksum that it must have."""
    repaired = bytearray(contents)
    if path.endswith(".log"):
        at = 0
        while at + HEADER_BYTES <= len(repaired):
            sizeBytes = _BASE_OFFSET_AND_LENGTH + int.from_bytes(repaired[at + 8 : at + 12], "big", signed=True)
            if not HEADER_BYTES <= sizeBytes <= len(repaired) - at:
                break
            checksum = crc32c(memoryview(repaired)[at + _UNCHECKED_BYTES : at + sizeBytes])
            repaired[at + 17 : at + _UNCHECKED_BYTES] = checksum.to_bytes(4, "big")
            at += sizeBytes
    elif not path.endswith(".index"):
        # A checkpoint with the right checksum is believed: nobody else writes any.
        at = _HEADER_BYTES
        while at + _FRAME_BYTES <= len(repaired):
            lengthBytes = min(int.from_bytes(repaired[at : at + 4], "big"), len(repaired) - at - _FRAME_BYTES)
            repaired[at : at + 4] = lengthBytes.to_bytes(4, "big")
            changes = bytes(repaired[at + _FRAME_BYTES : at + _FRAME_BYTES + lengthBytes])
            checksum = crc32c(changes, crc32c(bytes(repaired[at + 8 : at + _FRAME_BYTES])))
            repaired[at + 4 : at + 8] = checksum.to_bytes(4, "big")
            at += _FRAME_BYTES + lengthBytes
    return bytes(repaired)


def _checkLog(image: UndamagedLog, files: Mapping[str, bytes], changed: str | None, isRepaired: bool) -> None:
    disk, clock = SimulatedDisk(logRoot(), Random(0)), TurnClock()
    for path, contents in files.items():
        disk.makeDirectory(os.path.dirname(path))
        file = disk.open(path, create=True)
        file.write([contents], 0)
        file.flush()
        file.close()
    with capturedLogs() as logged:
        try:
            log = _open(disk, clock)
        except LogFailed:
            return
        try:
            found = _contents(log)
            if not isRepaired:
                _compare(image, files, changed, found)
            _loadTables(log)
            _use(log, clock)
            found = _contents(log)
        finally:
            closed: list[object] = []
            log.close().addBoth(closed.append)
            clock.advance(10.0)
        assert closed == [None], closed
        again = _open(disk, clock)
        try:
            assert _contents(again) == found
        finally:
            again.close()
            clock.advance(10.0)
    failures = [event for event in logged if "log_failure" in event]
    assert not failures, failures


def _contents(log: SegmentLog) -> Mapping[int, Sequence[bytes] | str]:
    """What can be read of each partition, by its number."""
    return {partition.number: _read(log, partition) for topic in log.topics.values() for partition in topic.partitions}


def _read(log: SegmentLog, partition: Partition) -> Sequence[bytes] | str:
    batches: list[bytes] = []
    offset = partition.logStartOffset
    try:
        finish(maxTimestampOffset(log, partition, goOver))
        finish(offsetForTimestamp(log, partition, 1003, goOver))
        log.endOfEpoch(partition, 0)
        log.bytesAvailable(partition, offset)
        while offset < partition.highWatermark:
            read = log.read(partition, offset, 500)
            if not read:
                break
            some = list(_split(read))
            batches += some
            end = max(readHeader(each).lastOffset for each in some) + 1
            assert end > offset, "reading does not go on"
            offset = end
    except LogRefusal as refusal:
        return f"refused: {type(refusal).__name__}"
    return batches


def _isWhole(batch: bytes) -> bool:
    return crc32c(batch[_UNCHECKED_BYTES:]) == readHeader(batch).crc


def _compare(
    image: UndamagedLog,
    files: Mapping[str, bytes],
    changed: str | None,
    found: Mapping[int, Sequence[bytes] | str],
) -> None:
    """Compare with what was there before the damage."""
    for number, batches in found.items():
        if isinstance(batches, str):
            assert changed is not None and changed.endswith(".log"), batches
            continue
        stored = image.batches.get(number, ())
        # What was flushed is not read before it is asked for, and then by the code that checks it.
        whole = {each[_UNCHECKED_BYTES:] for each in batches if _isWhole(each)}
        assert whole <= {each[_UNCHECKED_BYTES:] for each in stored}
        if changed is None or not changed.endswith(".log"):
            assert list(batches) == list(stored)
        elif f".{number}{os.sep}" in changed:
            before, after = image.files[changed], files[changed]
            pairs = enumerate(zip(before, after, strict=False))
            sameBytes = next((at for at, (one, other) in pairs if one != other), min(len(before), len(after)))
            atBytes = 0
            for batch in _split(before):
                atBytes += len(batch)
                assert atBytes > sameBytes or batch in batches, "what stands before the damage is lost"
    if changed is None or os.sep + "documents" + os.sep not in changed:
        assert set(found) == set(image.batches)


def _loadTables(log: SegmentLog) -> None:
    """Read what others keep with the log."""
    try:
        GroupStore(log).load(GroupTotals())
        control = AdmissionControl([], 1.0)
        QuotaLimits(log, control, control.limits, log._clock.seconds)
    except LogRefusal:
        pass
    list(log.producers())


def _use(log: SegmentLog, clock: TurnClock) -> None:
    """Have the log do what brokers ask of it."""
    try:
        for topic in list(log.topics.values()):
            for partition in topic.partitions:
                batch = bytearray(encodeBatch([Record(value=b"new")]))
                log.append(partition, batch, readBatch(batch))
        log.allocateProducerId()
        log.createTopic("another", 1, {})
        log.createTopic("deleted", 1, {})
        log.deleteTopic("deleted")
    except LogRefusal:
        pass
    clock.advance(60.0)

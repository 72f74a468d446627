# -*- test-case-name: tests.unit.kafka.broker.log.test_logcheck -*-
"""
Reading a log from end to end while no broker uses it: what is in it, what is
damaged, and what a start would do about that.  Nothing is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from attrs import define, field, frozen
from twisted.internet.defer import maybeDeferred

from admission.kafka.storage.datadirectory import DOCUMENTS, PARTITIONS, lockHolder
from admission.kafka.storage.disk import File, LocalDisk, LocalFile, explain, openRegular
from admission.kafka.storage.documents import FORMAT, Documents, frames
from admission.kafka.storage.itable import LogFailed, LogInUse
from admission.kafka.storage.openfiles import OpenFiles
from admission.kafka.wire.batches import HEADER_BYTES, readHeader

from .batchlookup import BatchPlace, wholeBatches
from .checkpoint import Checkpoint, checkpointName, holds, readCheckpoint
from .interface import Topic
from .partitionlog import PartitionLog
from .retentionlimits import NO_LIMITS
from .segment import segmentName
from .topics import Topics, numberIn, partitionsOf

_SEGMENT: Final = re.compile(r"([0-9]{20})\.log")
_JOURNAL: Final = re.compile(r"([0-9]{20})\.(?:journal|snapshot)")

_MAGIC: Final = b"\x02"
_MAGIC_AT: Final = 16
_WINDOW_BYTES: Final = 4 << 20
_MAX_JUMP: Final = 1 << 32
"""How many offsets a damaged place may have at most, where no following segment says how many it has."""

_SEARCHED_BYTES: Final = 16 << 20
"""How much of a damaged journal is searched for whole frames."""

Tell = Callable[[int], object]
"""Called with how many more bytes have been read."""


@frozen
class Problem:
    """
    Something in a log that is not as it should be.

    @ivar where: a file or directory, below the directory of the log.
    @ivar what: a sentence.
    @ivar isLoss: whether something is lost by it.
    """

    where: str
    what: str
    isLoss: bool


@define
class PartitionReport:
    """
    What was found of a partition.

    @ivar name: as Kafka writes it, or the name of the directory.
    @ivar topicName: empty if not known.
    @ivar recordCount: as the batches say.
    @ivar sizeBytes: of all whole batches.
    @ivar startOffset: of the first record.
    @ivar nextOffset: the offset after the last record.
    """

    name: str
    topicName: str = ""
    segmentCount: int = 0
    batchCount: int = 0
    recordCount: int = 0
    sizeBytes: int = 0
    startOffset: int = 0
    nextOffset: int = 0


@define
class LogReport:
    """
    What was found of a log.

    @ivar format: of the documents; L{None} if there are none, as in a directory of Kafka.
    @ivar generation: of the newest journal.
    @ivar documentBytes: the size of the documents on the disk.
    @ivar documents: tables by name.
    @ivar topics: topics by name.
    @ivar partitions: all partitions, also empty ones.
    @ivar problems: in the order in which they were found.
    """

    format: int | None = None
    generation: int = 0
    documentBytes: int = 0
    documents: Mapping[str, Mapping[bytes, bytes]] = field(factory=dict)
    topics: Mapping[str, Topic] = field(factory=dict)
    partitions: list[PartitionReport] = field(factory=list)
    problems: list[Problem] = field(factory=list)

    @property
    def losses(self) -> list[Problem]:
        return [each for each in self.problems if each.isLoss]


class Cut(NamedTuple):
    """
    What a start would have cut off a file.
    """

    path: str
    keptBytes: int
    sizeBytes: int


class ForgetfulDisk(LocalDisk):
    """
    The disk of this machine, of which nothing changes: what is written to it is forgotten.

    @ivar cuts: files that were truncated.
    @ivar removed: the paths of files that were removed.
    """

    def __init__(self) -> None:
        self.cuts: list[Cut] = []
        self.removed: list[str] = []

    def open(self, path: str, create: bool = False) -> ForgetfulFile:
        try:
            descriptor = openRegular(path, os.O_RDONLY)
        except FileNotFoundError:
            if not create:
                raise
            descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return ForgetfulFile(descriptor, path, self.cuts)

    def makeDirectory(self, path: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        pass

    def remove(self, path: str) -> None:
        self.removed.append(path)

    def removeDirectory(self, path: str) -> None:
        pass

    def flushDirectory(self, path: str) -> None:
        pass


class ForgetfulFile(LocalFile):
    """
    A file on a L{ForgetfulDisk}.
    """

    __slots__ = ("_cuts", "_path")

    def __init__(self, descriptor: int, path: str, cuts: list[Cut]) -> None:
        super().__init__(descriptor)
        self._path = path
        self._cuts = cuts

    def write(self, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        pass

    def truncate(self, sizeBytes: int) -> None:
        if sizeBytes < self.size():
            self._cuts.append(Cut(self._path, sizeBytes, self.size()))

    def flush(self) -> None:
        pass


@frozen
class Hole:
    """
    A part of a segment in which no whole batches stand.

    @ivar begin: its first byte.
    @ivar end: the position of the next whole batch, or the size of the file.
    @ivar firstOffset: the first offset that is missing.
    @ivar nextOffset: the offset of the next whole batch; L{None} if there is none in this segment.
    """

    begin: int
    end: int
    firstOffset: int
    nextOffset: int | None


def refuseInUse(path: str) -> None:
    """
    @raise LogInUse: if a broker uses the directory.
    """
    holder = lockHolder(path).removeprefix("process ")
    if holder:
        raise LogInUse(path, int(holder) if holder.isdigit() else None)


def logBytes(path: str) -> int:
    """
    The size of all segments in a directory, of a log or a partition.
    """
    sizeBytes = 0
    for directory, _, names in os.walk(path):
        for name in filter(_SEGMENT.fullmatch, names):
            try:
                sizeBytes += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                pass
    return sizeBytes


def checkLog(path: str, tell: Tell = lambda sizeBytes: None) -> LogReport:
    """
    Read a log that no broker uses, or the directory of one partition, which a real Kafka may have written.

    @raise LogFailed: if there is neither in the directory.
    @raise LogInUse: if a broker uses it, also if that has begun meanwhile.
    @raise OSError: if the disk fails.
    """
    refuseInUse(path)
    names = set(os.listdir(path))
    report = LogReport()
    if DOCUMENTS in names or PARTITIONS in names:
        _LogCheck(path, tell, report).run()
    elif any(map(_SEGMENT.fullmatch, names)):
        name = os.path.basename(os.path.abspath(path))
        _PartitionCheck(path, "", name, None, tell, report).run()
    else:
        raise LogFailed(
            f"{path} is neither the directory of a broker, which has {DOCUMENTS} and {PARTITIONS}, nor that of a"
            " partition, which has files such as 00000000000000000000.log"
        )
    refuseInUse(path)
    return report


def readDocuments(path: str, disk: ForgetfulDisk) -> Documents:
    """
    The documents of a log as a start would read them.

    @param path: the directory of the log.
    @raise LogFailed: if a start would refuse them.
    """
    files = OpenFiles(disk, 10)
    try:
        return Documents(disk, files, os.path.join(path, DOCUMENTS), maybeDeferred)
    finally:
        files.closeAll()


def topicsIn(documents: Documents, path: str) -> Topics:
    """
    The topics that the documents of a log name.

    @param path: the directory of the log.
    @raise LogFailed: if one of them is damaged.
    """
    topics = Topics(documents, lambda: None, os.path.join(path, PARTITIONS), 0, lambda configs: NO_LIMITS)
    topics.load()
    return topics


class _LogCheck:
    def __init__(self, path: str, tell: Tell, report: LogReport) -> None:
        self._path = path
        self._tell = tell
        self._report = report

    def run(self) -> None:
        topics = self._readDocuments()
        isDamaged = bool(self._report.losses)
        partitionsPath = os.path.join(self._path, PARTITIONS)
        directories = LocalDisk().list(partitionsPath)
        known: set[str] = set()
        for partition in self._partitions(topics):
            name = os.path.basename(partition.directory)
            known.add(name)
            where = os.path.join(PARTITIONS, name)
            check = _PartitionCheck(
                self._path, where, partition.name, partition.logStartOffset, self._tell, self._report
            )
            check.run(partition.topicName)
        deleted = set() if topics is None else topics.deletedNumbers
        for name in sorted(set(directories) - known):
            where = os.path.join(PARTITIONS, name)
            if topics is None:
                _PartitionCheck(self._path, where, name, None, self._tell, self._report).run()
            elif numberIn(name) is None:
                self._note(where, "is not the log's, which leaves it alone")
            elif numberIn(name) in deleted:
                self._note(where, "is what a deletion has left; a start removes it")
            elif isDamaged:
                self._lose(
                    where,
                    f"belongs to no topic that the damaged documents know; it has"
                    f" {logBytes(os.path.join(partitionsPath, name))} bytes of records, and a start leaves it alone",
                )
            else:
                self._note(where, "belongs to no topic, and a start leaves it alone")

    def _partitions(self, topics: Topics | None) -> Iterator[PartitionLog]:
        if topics is not None:
            for name in sorted(topics.byName):
                yield from partitionsOf(topics.byName[name])

    def _readDocuments(self) -> Topics | None:
        """
        @return: L{None} if the documents do not say which topics there are.
        """
        report = self._report
        disk = ForgetfulDisk()
        directory = os.path.join(self._path, DOCUMENTS)
        for name in disk.list(directory):
            if matched := _JOURNAL.fullmatch(name):
                report.documentBytes += os.stat(os.path.join(directory, name)).st_size
                report.generation = max(report.generation, int(matched[1]))
        try:
            documents = readDocuments(self._path, disk)
            topics = topicsIn(documents, self._path)
        except LogFailed as error:
            self._lose(DOCUMENTS, str(error))
            return None
        for cut in disk.cuts:
            self._judgeJournal(cut)
        newest = max((cut.path for cut in disk.cuts), default="")
        for path in disk.removed:
            if newest and path > newest and _JOURNAL.fullmatch(os.path.basename(path)):
                where = os.path.relpath(path, self._path)
                self._lose(where, "does not go on where the journal before it ends, and a start would remove it")
        if not documents.tables.get("facts"):
            self._lose(DOCUMENTS, "is empty: nothing says which topics there were")
            return None
        report.format = FORMAT
        report.documents = documents.tables
        report.topics = topics.byName
        return topics

    def _judgeJournal(self, cut: Cut) -> None:
        where = os.path.relpath(cut.path, self._path)
        sizeBytes = cut.sizeBytes - cut.keptBytes
        if _hasFrames(cut):
            self._lose(
                where,
                f"is damaged at byte {cut.keptBytes}, and whole changes follow: a start would cut off {sizeBytes} bytes"
                " with them",
            )
        else:
            self._note(where, f"{sizeBytes} bytes at its end are no whole change, and a start cuts them off")

    def _lose(self, where: str, what: str) -> None:
        self._report.problems.append(Problem(where, what, True))

    def _note(self, where: str, what: str) -> None:
        self._report.problems.append(Problem(where, what, False))


class _PartitionCheck:
    """
    Reads one partition.
    """

    def __init__(
        self, path: str, where: str, name: str, logStartOffset: int | None, tell: Tell, report: LogReport
    ) -> None:
        """
        @param path: what paths in the report are relative to.
        @param where: the directory of the partition, below that.
        @param logStartOffset: as the documents say; L{None} if they say nothing.
        """
        self._disk = ForgetfulDisk()
        self._where = where
        self._directory = os.path.join(path, where)
        self._logStartOffset = logStartOffset
        self._tell = tell
        self._report = report
        self._found = PartitionReport(name)
        # Behind it, a start would cut off everything.
        self._isCut = False
        self._followingCount = 0

    def run(self, topicName: str = "") -> None:
        found = self._found
        found.topicName = topicName
        found.startOffset = found.nextOffset = self._logStartOffset or 0
        self._report.partitions.append(found)
        bases = sorted(int(each[1]) for each in map(_SEGMENT.fullmatch, self._disk.list(self._directory)) if each)
        while self._logStartOffset is not None and len(bases) > 1 and bases[1] <= self._logStartOffset:
            # Retention has removed it, and a start would remove the file.
            bases.pop(0)
        if not bases:
            return
        if self._logStartOffset is None:
            found.startOffset = found.nextOffset = bases[0]
        elif bases[0] < self._logStartOffset:
            found.nextOffset = bases[0]
        checkpoints = {base: self._checkpoint(base) for base in bases}
        sealedCount = self._sealedCount(bases, checkpoints)
        for number, base in enumerate(bases):
            following = bases[number + 1] if number + 1 < len(bases) else None
            checkpoint = checkpoints[base]
            flushedBytes = 0
            if number < sealedCount:
                flushedBytes = -1
            elif checkpoint is not None and checkpoint.producers is not None:
                flushedBytes = checkpoint.position
            self._segment(base, following, flushedBytes)
        found.nextOffset = max(found.nextOffset, found.startOffset)
        if self._isCut and self._followingCount:
            self._lose(
                self._where,
                f"{self._followingCount} whole batches stand behind that place, and a start would cut them off",
            )

    def _checkpoint(self, base: int) -> Checkpoint | None:
        """
        The checkpoint of a segment, if it holds.
        """
        path = os.path.join(self._directory, checkpointName(base))
        if not os.path.exists(path):
            return None
        checkpoint = readCheckpoint(self._disk, path)
        if checkpoint is not None:
            file = self._open(base)
            try:
                if holds(checkpoint, file, file.size()):
                    return checkpoint
            finally:
                file.close()
        if self._logStartOffset is not None:
            # Kafka's own have the same names.
            self._note(os.path.join(self._where, checkpointName(base)), "does not hold; the segment is read instead")
        return None

    def _sealedCount(self, bases: list[int], checkpoints: Mapping[int, Checkpoint | None]) -> int:
        """
        The number of segments of which a start takes for granted that the disk has them.
        """
        if self._logStartOffset is None:
            return len(bases) - 1
        for number in range(len(bases), 0, -1):
            checkpoint = checkpoints[bases[number - 1]]
            path = os.path.join(self._directory, segmentName(bases[number - 1]))
            if (
                checkpoint is not None
                and checkpoint.producers is not None
                and checkpoint.position == os.stat(path).st_size
            ):
                return number
        return 0

    def _segment(self, base: int, following: int | None, flushedBytes: int) -> None:
        """
        @param following: the base offset of the next segment.
        @param flushedBytes: up to where a start takes the segment for whole; -1 for all of it.
        """
        found = self._found
        where = os.path.join(self._where, segmentName(base))
        if base != found.nextOffset and found.segmentCount and flushedBytes >= 0:
            self._isCut = self._isCut or self._logStartOffset is not None
        if base > found.nextOffset:
            self._lose(where, f"no segment has the offsets {found.nextOffset} to {base - 1} before it")
        elif base < found.nextOffset:
            self._lose(where, f"begins at offset {base}, and the segment before it ends with {found.nextOffset - 1}")
        found.segmentCount += 1
        found.nextOffset = base
        file = self._open(base)
        try:
            file.distrust()
            sizeBytes = file.size()
            for place in scan(file, sizeBytes, base, following):
                if isinstance(place, Hole):
                    isTail = flushedBytes >= 0 and place.begin >= flushedBytes
                    self._hole(where, place, isTail, sizeBytes, following)
                    continue
                batch = place.batch
                found.batchCount += 1
                found.recordCount += batch.count
                found.sizeBytes += batch.sizeBytes
                self._followingCount += self._isCut
                found.nextOffset = batch.lastOffset + 1
                self._tell(batch.sizeBytes)
        finally:
            file.close()

    def _hole(self, where: str, hole: Hole, isTail: bool, sizeBytes: int, following: int | None) -> None:
        nextOffset = following if hole.nextOffset is None else hole.nextOffset
        self._tell(hole.end - hole.begin)
        if hole.begin == hole.end:
            what = f"the offsets {hole.firstOffset} to {(nextOffset or 0) - 1} are missing before byte {hole.begin}"
            self._lose(where, what)
        elif isTail and hole.end == sizeBytes:
            self._note(
                where,
                f"{sizeBytes - hole.begin} bytes from byte {hole.begin} on are no whole batch; a start cuts them off,"
                f" and goes on with offset {hole.firstOffset}",
            )
        else:
            lost = "what was there is lost"
            if nextOffset is not None and nextOffset > hole.firstOffset:
                lost = f"the offsets {hole.firstOffset} to {nextOffset - 1} are lost"
            elif nextOffset is None:
                lost = f"the offsets from {hole.firstOffset} on are lost"
            self._lose(where, f"is damaged from byte {hole.begin} to {hole.end}; {lost}")
            if hole.nextOffset is None and following is not None:
                # The next segment is where it should be.
                self._found.nextOffset = following
        # Where no documents say what the directory belongs to, nothing starts from it.
        self._isCut = self._isCut or (isTail and self._logStartOffset is not None)

    def _open(self, base: int) -> File:
        return self._disk.open(os.path.join(self._directory, segmentName(base)))

    def _lose(self, where: str, what: str) -> None:
        self._report.problems.append(Problem(where, what, True))

    def _note(self, where: str, what: str) -> None:
        self._report.problems.append(Problem(where, what, False))


def scan(file: File, sizeBytes: int, nextOffset: int, limitOffset: int | None = None) -> Iterator[BatchPlace | Hole]:
    """
    The whole batches of a segment, and what stands between them.

    @param sizeBytes: the size of the file.
    @param nextOffset: the offset that the segment begins with.
    @param limitOffset: the offset that the next segment begins with.
    @raise OSError: if the disk fails.
    """
    position = 0
    while True:
        for place in wholeBatches(file, position, sizeBytes, nextOffset):
            yield place
            position, nextOffset = place.end, place.batch.lastOffset + 1
        if position >= sizeBytes:
            return
        limit = nextOffset + _MAX_JUMP if limitOffset is None else limitOffset
        found = _nextWhole(file, position, sizeBytes, nextOffset, limit)
        if found is None:
            yield Hole(position, sizeBytes, nextOffset, None)
            return
        yield Hole(position, found.position, nextOffset, found.batch.baseOffset)
        position, nextOffset = found.position, found.batch.baseOffset


def _nextWhole(file: File, position: int, end: int, minOffset: int, limitOffset: int) -> BatchPlace | None:
    """
    The first whole batch from a position on.

    @param minOffset: its base offset at least.
    @param limitOffset: more than its base offset.
    """
    while position + HEADER_BYTES <= end:
        window = memoryview(file.read(position, min(_WINDOW_BYTES, end - position)))
        searched = bytes(window)
        at = searched.find(_MAGIC, _MAGIC_AT)
        while 0 <= at <= len(window) - HEADER_BYTES + _MAGIC_AT:
            begin = at - _MAGIC_AT
            batch = readHeader(window[begin:])
            if (
                minOffset <= batch.baseOffset < limitOffset
                and batch.sizeBytes >= HEADER_BYTES
                and position + begin + batch.sizeBytes <= end
            ):
                place = next(wholeBatches(file, position + begin, end, batch.baseOffset), None)
                if place is not None:
                    return place
            at = searched.find(_MAGIC, at + 1)
        if position + len(window) >= end:
            return None
        position += len(window) - HEADER_BYTES
    return None


class _Bytes:
    """
    What L{frames} needs of a file, in memory.
    """

    def __init__(self, contents: bytes) -> None:
        self._contents = contents

    def size(self) -> int:
        return len(self._contents)

    def read(self, position: int, sizeBytes: int) -> bytes:
        return self._contents[position : position + sizeBytes]


def _hasFrames(cut: Cut) -> bool:
    """
    Whether whole frames with changes stand in what would be cut off a journal.
    """
    with open(cut.path, "rb") as file:
        file.seek(cut.keptBytes)
        contents = _Bytes(file.read(_SEARCHED_BYTES))
    return any(
        changes
        for begin in range(1, contents.size())
        for _, changes, _ in frames(contents, begin)  # type: ignore[arg-type]
    )


def described(error: OSError) -> str:
    """
    An error of the disk, with the file.
    """
    name = error.filename2 or error.filename
    return f"{name}: {explain(error)}" if name else explain(error)

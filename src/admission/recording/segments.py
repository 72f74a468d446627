# -*- test-case-name: tests.unit.recording.test_segments -*-
"""
Files of records that are written through memory: written records survive a kill of the process, though not a power
failure.

A segment begins with a header that tells how to read it, followed by slots, see L{admission.recording.recordlayout}.
Its disk space is allocated when it is made, since a write through memory that finds no space ends the process.  The
writer of a segment holds a lock on it, so an unlocked one was left behind.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import define

from ..boundedfile import FileRefused
from .events import ConnectionEvent, LimitEvent, RequestEvent, SensorSample
from .places import readWhole
from .recordlayout import (
    FIRST_CODE,
    OVERFLOW_CODE,
    SLOT_BYTES,
    TEXT_NUMBER,
    Pack,
    TextCodes,
    packer,
    packText,
    unpackText,
)
from .schema import CONNECTIONS, LIMITS, SENSORS, Table
from .segmentheader import MAGIC, PAGE_BYTES, DamagedSegment, Header
from .tables import recordedTable

SUFFIX = ".segment"
UNFINISHED_SUFFIX = ".new"
"""The suffix of a segment that is being made."""

SMALLEST_SEGMENT_BYTES = 16 * PAGE_BYTES

MAX_SEGMENT_BYTES = 16 << 20
"""A segment is read whole, and what becomes of it may take thirty times its size."""

MAX_TEXTS = 1024
MAX_FOREIGN_TEXTS = 4096
"""How many texts a large segment has codes for; in a small one they take a quarter of it at most."""

_MADV_POPULATE_WRITE = 23

# The most new codes that an event may need before it can be recorded, each in a slot.
_SLOTS_FOR_TEXTS = 16


class _Packers(dict[type[Any], Pack]):
    """
    Packers by event class; a driver's class gets its own when its first event is recorded.
    """

    def __missing__(self, eventType: type[Any]) -> Pack:
        if not issubclass(eventType, RequestEvent):
            raise TypeError(f"{eventType.__qualname__} is no event that is recorded")
        pack = self[eventType] = packer(recordedTable(eventType), eventType)
        return pack


_PACK_OF = _Packers(
    {
        RequestEvent: packer(recordedTable(RequestEvent), RequestEvent),
        ConnectionEvent: packer(CONNECTIONS, ConnectionEvent),
        LimitEvent: packer(LIMITS, LimitEvent),
        SensorSample: packer(SENSORS, SensorSample),
    }
)


class SegmentWriter:
    """
    Makes a segment and writes it.  Making and closing it may wait for the disk; L{begin} and L{append} do not, beyond
    what the kernel does for memory.

    @ivar path: the file.
    @ivar sizeBytes: its size until it is closed.
    @ivar recordCount: the number of events in it.
    """

    def __init__(self, path: str, sizeBytes: int, isPopulated: bool = False) -> None:
        """
        @param path: of a file that does not exist yet.
        @param sizeBytes: a multiple of L{PAGE_BYTES}, from L{SMALLEST_SEGMENT_BYTES} to L{MAX_SEGMENT_BYTES}.
        @param isPopulated: whether to have all of it in memory at once.  It keeps the first write to each page from
            waiting for the file system, and makes the disk write all pages, used or not.
        @raise OSError: if there is no space, or the file exists.
        """
        if not SMALLEST_SEGMENT_BYTES <= sizeBytes <= MAX_SEGMENT_BYTES or sizeBytes % PAGE_BYTES:
            raise ValueError(f"a segment takes from 16 to 4096 pages of {PAGE_BYTES} bytes; {sizeBytes} are not that")
        self.path = path
        self.sizeBytes = sizeBytes
        self.recordCount = 0
        if os.path.exists(path):
            raise FileExistsError(errno.EEXIST, "there is a segment of that name already", path)
        unfinished = path + UNFINISHED_SUFFIX
        self._fileno = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
        try:
            fcntl.flock(self._fileno, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(self._fileno, 0, sizeBytes)
            self._map = mmap.mmap(self._fileno, sizeBytes)
            if isPopulated:
                _populate(self._map)
            # Renamed only after it is locked, so that no process takes it for one that was left behind.
            os.rename(unfinished, path)
        except BaseException:
            os.close(self._fileno)
            if os.path.exists(unfinished):
                os.unlink(unfinished)
            raise
        self._offset = 0
        # Nothing can be appended before there is a header.
        self._lastOffset = -1
        self._nextCode = FIRST_CODE
        slots = sizeBytes // SLOT_BYTES
        self._own = TextCodes(min(MAX_TEXTS, slots // 8), self._defineText)
        self._foreign = TextCodes(min(MAX_FOREIGN_TEXTS, slots // 8), self._defineText)

    @property
    def textOverflows(self) -> int:
        """
        How often a text was recorded as an overflow.
        """
        return self._own.overflows + self._foreign.overflows

    @property
    def isRemoved(self) -> bool:
        """
        Whether its file was deleted, so that nobody will read what is in it.
        """
        return not os.fstat(self._fileno).st_nlink

    def begin(self, header: Header) -> None:
        """
        Write the header; call this before L{append}.
        """
        raw = header.toBytes()
        # The magic bytes come last: they say that the header is complete.
        self._map[len(MAGIC) : len(raw)] = raw[len(MAGIC) :]
        self._map[: len(MAGIC)] = MAGIC
        self._offset = len(raw)
        self._lastOffset = self.sizeBytes - (1 + _SLOTS_FOR_TEXTS) * SLOT_BYTES

    def append(self, event: Any) -> bool:
        """
        Record an event of any kind.  When this returns, the record survives the end of this process.

        @return: whether there was room.
        @raise Exception: if a value does not fit into a record; its slot stays empty then.
        """
        offset = self._offset
        if offset > self._lastOffset:
            return False
        # New codes take the slots behind it.
        self._offset = offset + SLOT_BYTES
        _PACK_OF[type(event)](self._map, offset, self._own, self._foreign, event)
        self.recordCount += 1
        return True

    def close(self) -> None:
        """
        Free the remaining disk space, and close the file; remove it if it has no records.  Nothing may be appended
        afterwards.

        @raise OSError: if the disk fails; the file is closed all the same.
        """
        self._lastOffset = -1
        usedBytes = self._offset
        self._map.close()
        try:
            if self.recordCount:
                os.ftruncate(self._fileno, usedBytes)
            elif not self.isRemoved:
                os.unlink(self.path)
        finally:
            os.close(self._fileno)

    def _defineText(self, text: str) -> int:
        offset = self._offset
        if offset + SLOT_BYTES > self.sizeBytes:
            return OVERFLOW_CODE
        self._offset = offset + SLOT_BYTES
        code = self._nextCode
        self._nextCode = code + 1
        packText(self._map, offset, code, text)
        return code


@define(eq=False)
class Segment:
    """
    A segment to read, while it is written or after that.

    @ivar header: its header.
    @ivar slots: the bytes behind the header, whole slots only.
    @ivar texts: by code.
    """

    header: Header
    slots: memoryview
    texts: Mapping[int, str]

    @classmethod
    def load(cls, path: str | Path) -> Segment | None:
        """
        Read a file into memory.

        @param path: of this machine, or a URL.
        @return: L{None} if it was never begun.
        @raise DamagedSegment: if it cannot be read.
        @raise OSError: if there is no such file, or it cannot be read.
        """
        try:
            buffer = memoryview(readWhole(os.fspath(path), MAX_SEGMENT_BYTES))
        except FileRefused as refusal:
            raise DamagedSegment(f"this is no segment: {refusal.strerror}") from refusal
        found = Header.fromBytes(buffer)
        if found is None:
            return None
        header, headerBytes = found
        slotBytes = header.slotBytes
        slots = buffer[headerBytes:]
        slots = slots[: len(slots) // slotBytes * slotBytes]
        texts = dict(unpackText(slots, offset, slotBytes) for offset in _offsetsOf(slots, slotBytes, TEXT_NUMBER))
        return cls(header, slots, texts)

    def rows(self, table: Table) -> Iterator[dict[str, Any]]:
        """
        The records of one table in order, with all its columns: columns that this segment lacks are L{None}.
        """
        same = self.header.constants()
        readers = {each.number: each.reader(self.texts) for each in self.header.layouts if each.name == table.name}
        wallOffset = self.header.wallOffsetMicroseconds()
        names = [column.name for column in table.columns]
        slots, slotBytes = self.slots, self.header.slotBytes
        for offset in _offsetsOf(slots, slotBytes, *readers):
            read = {**same, **readers[slots[offset + slotBytes - 1]](slots, offset)}
            if read["mono_us"] is not None:
                read["ts"] = read["mono_us"] + wallOffset
            yield {name: read.get(name) for name in names}


def segmentPaths(directory: str | Path) -> list[str]:
    """
    The segments in C{directory}, oldest first for each process, and unfinished ones; none if there is no such
    directory.  Only regular files are included, not links, whatever their names.
    """
    suffixes = (SUFFIX, SUFFIX + UNFINISHED_SUFFIX)
    try:
        with os.scandir(directory) as entries:
            return sorted(
                entry.path
                for entry in entries
                if entry.name.endswith(suffixes) and entry.is_file(follow_symlinks=False)
            )
    except FileNotFoundError:
        return []


def lockAbandoned(path: str) -> int | None:
    """
    Lock a segment that no process writes any more, so that no other process seals it.

    @return: a file descriptor to close in the end, or L{None} if another process writes or seals it, or it has gone.
    @raise OSError: if it may not be opened.
    """
    try:
        fileno = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fileno, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It may have been sealed, and removed, in between.
        if os.fstat(fileno).st_nlink:
            return fileno
    except BlockingIOError:
        pass
    os.close(fileno)
    return None


def _populate(mapped: mmap.mmap) -> None:
    """
    Have the kernel map all pages for writing; a kernel that cannot maps each page at its first write.
    """
    # Not mapped.madvise, which holds the interpreter for the ten milliseconds that this may take.
    first = ctypes.c_char.from_buffer(mapped)
    address, sizeBytes = ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped))
    ctypes.CDLL(None).madvise(address, sizeBytes, _MADV_POPULATE_WRITE)


def _offsetsOf(slots: memoryview, slotBytes: int, *numbers: int) -> Iterator[int]:
    marks = bytes(slots[slotBytes - 1 :: slotBytes])
    if len(numbers) == 1:
        mark = bytes(numbers)
        index = marks.find(mark)
        while index >= 0:
            yield index * slotBytes
            index = marks.find(mark, index + 1)
    else:
        wanted = frozenset(numbers)
        yield from (index * slotBytes for index, number in enumerate(marks) if number in wanted)

# -*- test-case-name: tests.unit.recording.test_segments -*-
"""
Files of records that are written through memory: what has been written is in
the file when the process is killed, though not when the power fails.

A segment begins with a header that tells how to read it; behind that are slots,
see L{admission.recording.recordlayout}.  All its room is taken from the disk when it is
made, since a write through memory that finds no room ends the process.  Whoever
writes a segment holds a lock on it, so one that is not locked was left behind.
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

from .events import ConnectionEvent, LimitEvent, RequestEvent, SensorSample
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
from .segmentheader import MAGIC, PAGE_BYTES, Header
from .tables import REQUESTS

SUFFIX = ".segment"
UNFINISHED_SUFFIX = ".new"
"""Of a segment that is being made."""

SMALLEST_SEGMENT_BYTES = 16 * PAGE_BYTES

MAX_TEXTS = 1024
MAX_FOREIGN_TEXTS = 4096
"""How many texts a segment has codes for, if it is large; in a small one they take a quarter of it at most."""

_MADV_POPULATE_WRITE = 23

# An event may need as many codes before it can be recorded, each in a slot.
_SLOTS_FOR_TEXTS = 16


class _Packers(dict[type[Any], Pack]):
    """
    What records events, by their class; made for a driver's class when its
    first event is recorded.
    """

    def __missing__(self, eventType: type[Any]) -> Pack:
        if not issubclass(eventType, RequestEvent):
            raise TypeError(f"{eventType.__qualname__} is no event that is recorded")
        pack = self[eventType] = packer(REQUESTS, eventType)
        return pack


_PACK_OF = _Packers(
    {
        RequestEvent: packer(REQUESTS, RequestEvent),
        ConnectionEvent: packer(CONNECTIONS, ConnectionEvent),
        LimitEvent: packer(LIMITS, LimitEvent),
        SensorSample: packer(SENSORS, SensorSample),
    }
)


class SegmentWriter:
    """
    Makes a segment and writes it.  Making and closing it may wait for the disk;
    L{begin} and L{append} do not, beyond what the kernel does for memory.

    @ivar path: the file.
    @ivar sizeBytes: how large it is until it is closed.
    @ivar recordCount: how many events are in it.
    """

    def __init__(self, path: str, sizeBytes: int, isPopulated: bool = False) -> None:
        """
        @param path: where there is no file yet.
        @param sizeBytes: a multiple of L{PAGE_BYTES}, and no less than
            L{SMALLEST_SEGMENT_BYTES}.
        @param isPopulated: whether to have all of it in memory at once.  It
            keeps the first write to each page from waiting for the file
            system, and has the disk write all pages, used or not.
        @raise OSError: if there is no room, or such a file.
        """
        if sizeBytes < SMALLEST_SEGMENT_BYTES or sizeBytes % PAGE_BYTES:
            raise ValueError(f"a segment takes pages of {PAGE_BYTES} bytes, 16 at least; {sizeBytes} are not")
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
            # Only now, so that nobody takes it for one that was left behind before it is locked.
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

    def begin(self, header: Header) -> None:
        """
        Write the header.  Records may follow.
        """
        raw = header.toBytes()
        # What says that there is a header comes last.
        self._map[len(MAGIC) : len(raw)] = raw[len(MAGIC) :]
        self._map[: len(MAGIC)] = MAGIC
        self._offset = len(raw)
        self._lastOffset = self.sizeBytes - (1 + _SLOTS_FOR_TEXTS) * SLOT_BYTES

    def append(self, event: Any) -> bool:
        """
        Record an event of any kind.  It is safe from the end of this process
        when this returns.

        @return: whether there was room.
        @raise Exception: if the event has values that no record can keep; its
            slot stays empty then.
        """
        offset = self._offset
        if offset > self._lastOffset:
            return False
        # Codes that are new take the slots behind it.
        self._offset = offset + SLOT_BYTES
        _PACK_OF[type(event)](self._map, offset, self._own, self._foreign, event)
        self.recordCount += 1
        return True

    def close(self) -> None:
        """
        Give back the room that is left, and let go of the file; without any
        records in it, remove it.  Nothing may be appended any more.

        @raise OSError: if the disk fails.  It is let go of all the same.
        """
        self._lastOffset = -1
        usedBytes = self._offset
        self._map.close()
        try:
            if self.recordCount:
                os.ftruncate(self._fileno, usedBytes)
            else:
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

    @ivar header: what it says of itself.
    @ivar slots: the bytes behind the header, whole slots only.
    @ivar texts: what its codes mean.
    """

    header: Header
    slots: memoryview
    texts: Mapping[int, str]

    @classmethod
    def load(cls, path: str | Path) -> Segment | None:
        """
        Read a file into memory.

        @return: L{None} if it was never begun, and so holds nothing.
        @raise DamagedSegment: if it cannot be read.
        @raise OSError: if there is no such file.
        """
        buffer = memoryview(Path(path).read_bytes())
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
        The records of one table in their order, with all its columns: those
        that this segment does not have are L{None}.
        """
        layout = next((layout for layout in self.header.layouts if layout.name == table.name), None)
        if layout is None:
            return
        same = self.header.constants()
        readRecord = layout.reader(self.texts)
        wallOffset = self.header.wallOffsetMicroseconds()
        names = [column.name for column in table.columns]
        for offset in _offsetsOf(self.slots, self.header.slotBytes, layout.number):
            read = {**same, **readRecord(self.slots, offset)}
            if read["mono_us"] is not None:
                read["ts"] = read["mono_us"] + wallOffset
            yield {name: read.get(name) for name in names}


def segmentPaths(directory: str | Path) -> list[str]:
    """
    The segments in C{directory}, oldest first for each process, and what is
    left of unfinished ones; none if there is no such directory.  Links and
    what else is no file of its own are none, whatever they are called.
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
    Lock a segment that nobody writes any more, so that nobody else seals it.

    @return: a file descriptor to close in the end, or L{None} if somebody
        writes or seals it, or it has gone.
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
    Have the kernel map all pages for writing; one that cannot does it page by
    page as they are written to.
    """
    # Not mapped.madvise, which holds the interpreter for the ten milliseconds that this may take.
    first = ctypes.c_char.from_buffer(mapped)
    address, sizeBytes = ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped))
    ctypes.CDLL(None).madvise(address, sizeBytes, _MADV_POPULATE_WRITE)


def _offsetsOf(slots: memoryview, slotBytes: int, number: int) -> Iterator[int]:
    marks = bytes(slots[slotBytes - 1 :: slotBytes])
    mark = bytes([number])
    index = marks.find(mark)
    while index >= 0:
        yield index * slotBytes
        index = marks.find(mark, index + 1)

# -*- test-case-name: tests.unit.kafka.storage.test_openfiles -*-
"""
The open files of the log: bounded, however many there are on the disk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from .disk import Disk, File
from .holdings import Holdings


class LogFile:
    """
    A file of the log, open or not.

    @ivar path: where it is.
    @ivar isDirty: whether it has bytes for which no flush has begun.
    @ivar isFlushing: whether a thread has its descriptor.
    @ivar isRemoved: whether it is gone from the disk, or about to be.
    @ivar holder: for whom it got the first of its unflushed bytes.
    """

    __slots__ = ("__weakref__", "holder", "isDirty", "isFlushing", "isRemoved", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.isDirty = False
        self.isFlushing = False
        self.isRemoved = False
        self.holder = ""


class OpenFiles:
    """
    Opens files when they are needed, and closes those that were not needed for the
    longest.  A file with unflushed bytes stays open: closing it could swallow the
    error of its flush.

    @ivar holder: for whom files get unflushed bytes; empty for the log itself.
    @ivar unflushed: how many files have some, or are in a flush, for each holder.
    """

    def __init__(self, disk: Disk, maxFiles: int) -> None:
        """
        @param maxFiles: how many may be open; that many may have unflushed bytes, see L{hasRoom}.
        """
        self._disk = disk
        self._maxFiles = maxFiles
        self.holder = ""
        self.unflushed = Holdings()
        self._idle: OrderedDict[LogFile, File] = OrderedDict()
        # Files with unflushed bytes, or in a flush.
        self._busy: dict[LogFile, File] = {}

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def get(self, logFile: LogFile, create: bool = False) -> File:
        """
        The file, opened if need be; valid until the next call of this object.

        @raise OSError: if it cannot be opened.
        """
        file = self._busy.get(logFile) or self._idle.get(logFile)
        if file is None:
            file = self._idle[logFile] = self._disk.open(logFile.path, create)
            self._closeSome()
        elif logFile in self._idle:
            self._idle.move_to_end(logFile)
        return file

    def hasRoom(self, logFile: LogFile | None, holder: str, others: int = 0) -> bool:
        """
        Whether a file may get unflushed bytes for a holder, which may have as many as it leaves to others.

        @param logFile: the file; L{None} for a new one.
        @param others: how many others are about to get some.
        """
        return logFile in self._busy or self.unflushed.allow(holder, 1 + others, self._maxFiles)

    @property
    def isFilling(self) -> bool:
        """
        Whether so many have unflushed bytes that one holder may have come to half of what it may.
        """
        return len(self._busy) * 4 > self._maxFiles

    def willWrite(self, logFile: LogFile, create: bool = False) -> File:
        """
        The file, which is about to get unflushed bytes and stays open until a flush
        has succeeded.

        @raise OSError: if it cannot be opened.
        """
        file = self._busy.get(logFile)
        if file is None:
            file = self.get(logFile, create)
            del self._idle[logFile]
            self._busy[logFile] = file
            logFile.holder = self.holder
            self.unflushed.add(self.holder, 1)
        logFile.isDirty = True
        return file

    def beginFlush(self, logFile: LogFile) -> File:
        """
        The file, to be flushed in a thread; it stays open until L{endFlush}.
        """
        logFile.isDirty = False
        logFile.isFlushing = True
        return self._busy[logFile]

    def endFlush(self, logFiles: Iterable[LogFile]) -> None:
        """
        The flush of some files has ended well.
        """
        for logFile in logFiles:
            logFile.isFlushing = False
            if not logFile.isDirty:
                file = self._busy.pop(logFile)
                self.unflushed.add(logFile.holder, -1)
                if logFile.isRemoved:
                    file.close()
                else:
                    self._idle[logFile] = file
        self._closeSome()

    def close(self, logFile: LogFile) -> None:
        """
        Close a file for good, which has been removed.
        """
        logFile.isRemoved = True
        logFile.isDirty = False
        if logFile.isFlushing:
            # A thread has its descriptor.
            return
        file = self._busy.pop(logFile, None)
        if file is not None:
            self.unflushed.add(logFile.holder, -1)
        else:
            file = self._idle.pop(logFile, None)
        if file is not None:
            file.close()

    def closeAll(self) -> None:
        """
        Close all files; no flush may be going on.
        """
        for files in (self._idle, self._busy):
            while files:
                files.popitem()[1].close()

    def _closeSome(self) -> None:
        while len(self._idle) > 1 and len(self) > self._maxFiles:
            self._idle.popitem(last=False)[1].close()

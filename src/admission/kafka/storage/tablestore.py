# -*- test-case-name: tests.unit.kafka.storage.test_tablestore -*-
"""
Tables in a directory of their own, for a server that keeps no records.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from .datadirectory import DOCUMENTS
from .disk import DirectoryLock, Disk, LocalDisk, explain
from .documents import Documents
from .flushing import DeferToThread, Flusher, Round, callAll
from .flushwaiters import FlushWaiters
from .groupcommit import GroupCommit
from .itable import CommitCallback, LogFailed
from .openfiles import LogFile, OpenFiles
from .storedtable import Table

_MAX_OPEN_FILES: Final = 10
_FLUSH_SECONDS: Final = 1.0


class TableStore:
    """
    Where a gateway keeps limits: as a broker does beside its records, and one reads what the other has written.
    """

    def __init__(self, path: str, clock: IReactorTime, deferToThread: DeferToThread, disk: Disk | None = None) -> None:
        """
        Open the tables of a directory, or make one.

        @param path: the directory; made if it does not exist.
        @param deferToThread: runs calls that block on the disk.
        @param disk: where the directory is; by default on this machine's disk.
        @raise LogInUse: if another server uses the directory.
        @raise LogFailed: if it cannot be opened.
        """
        self._disk = disk = LocalDisk() if disk is None else disk
        os.makedirs(path, exist_ok=True)
        self._lock = DirectoryLock(path)
        self._files = OpenFiles(disk, _MAX_OPEN_FILES)
        try:
            self._documents = Documents(disk, self._files, os.path.join(path, DOCUMENTS), deferToThread)
            disk.flushDirectory(path)
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise LogFailed(f"{error.filename or path} cannot be read: {explain(error)}") from error
            raise
        self._tables: dict[str, Table] = {}
        self._waiters = FlushWaiters()
        self._flusher = Flusher(clock, deferToThread, _FLUSH_SECONDS, self._beginFlush, self._flushFailed)
        self._commits = GroupCommit(
            clock,
            write=self._documents.write,
            settle=self._settle,
            revert=self._documents.revert,
            announce=lambda: None,
            what="the store of limits",
        )

    def table(self, name: str, isFlushed: bool = False) -> Table:
        """
        See L{ILog.table<admission.kafka.broker.log.interface.ILog.table>}.
        """
        if name not in self._tables:
            self._tables[name] = Table(self._documents, self._commits, name, isFlushed)
        return self._tables[name]

    def whenFlushed(self, callback: CommitCallback) -> None:
        """
        Call C{callback} once the disk has everything that was put so far, or with an error if it never will.
        """
        self._commits.whenCommitted(partial(self._awaitFlush, callback))

    def close(self) -> Deferred[None]:
        """
        Write and flush everything, and give the directory back.  Call it once.

        @return: fires when that has succeeded or failed; never with a failure.
        """
        self._commits.close()
        closing = self._flusher.close()
        closing.addCallback(lambda _: self._documents.close())
        return closing.addCallback(lambda _: self._release())

    def _settle(self) -> None:
        self._documents.settle()
        self._waiters.committed()
        self._flusher.written()

    def _awaitFlush(self, callback: CommitCallback, error: Exception | None) -> None:
        if error is None and self._flusher.problem is not None:
            error = LogFailed(self._flusher.problem)
        if error is not None:
            callback(error)
        elif self._waiters.add(callback):
            self._flusher.soon()

    def _beginFlush(self, isEverything: bool) -> Round:
        self._waiters.begun()
        files, directories = self._documents.takeDirty()
        calls: list[Callable[[], object]] = [self._files.beginFlush(each).flush for each in files]
        calls += [partial(self._disk.flushDirectory, each) for each in directories]
        return Round([partial(callAll, calls)], partial(self._flushed, files))

    def _flushed(self, files: list[LogFile]) -> None:
        self._files.endFlush(files)
        self._waiters.flushed()

    def _flushFailed(self) -> None:
        assert self._flusher.problem is not None
        self._commits.fail(self._flusher.problem)
        self._waiters.failed(LogFailed(self._flusher.problem))

    def _release(self) -> None:
        self._files.closeAll()
        self._lock.release()

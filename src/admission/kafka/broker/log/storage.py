# -*- test-case-name: tests.unit.kafka.broker.log.test_storage -*-
"""
The LMDB environment under the log: its directory, its tables, and advice on
its failures.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

import lmdb
from attrs import define, field

from .interface import LogFailed, LogInUse

FORMAT: Final = 1
"""The version of the format; a directory of another version is not opened."""

NUMBER: Final = struct.Struct(">I")
"""The key of the facts about one partition: its number."""

PRODUCER_KEY: Final = struct.Struct(">Iq")
"""The key of a producer's state: a partition's number and the producer's id."""

_MAX_TABLES: Final = 32
"""For the tables of L{Storage} and of L{admission.kafka.broker.log.logtables}."""

_COUNTER: Final = struct.Struct(">q")
_LOCK_FILE: Final = "broker.lock"


def explain(error: lmdb.Error) -> str:
    """
    Explain an error of the storage, with its remedy.
    """
    if isinstance(error, lmdb.MapFullError):
        return "the map of the log is full: give it a larger map size, or retain less"
    if isinstance(error, lmdb.PanicError):
        return "the storage gave up after an error that it could not undo: restart the broker"
    if getattr(error, "code", 0) in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full: make room on it, or retain less"
    if getattr(error, "code", 0) == errno.EIO:
        return "the disk failed or took only a part, as full ones do: make room on it, or replace it"
    return str(error)


class DirectoryLock:
    """
    A lock on a directory, held until L{release} or the end of the
    process, however it ends.
    """

    def __init__(self, path: str) -> None:
        """
        @param path: a directory that exists.
        @raise LogInUse: if another process holds the lock.
        """
        self._file: IO[str] = open(os.path.join(path, _LOCK_FILE), "a+", encoding="ascii")  # noqa: SIM115
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            pid = self._file.read().strip()
            self._file.close()
            raise LogInUse(path, int(pid) if pid.isdigit() else None) from None
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()


@define(eq=False)
class Storage:
    """
    An open environment and its tables.

    @ivar environment: the environment.
    @ivar batches: record batches as clients sent them, by
        L{admission.kafka.broker.log.batchlookup.BATCH_KEY}.
    @ivar topics: descriptions in JSON, by name.
    @ivar partitions: the start and the end of each partition, by number.
    @ivar producers: states of producers, by partition number and producer id.
    @ivar tombstones: numbers of partitions whose data is yet to be removed.
    @ivar counters: counters, which only grow.
    """

    environment: lmdb.Environment
    batches: lmdb._Database = field(init=False)
    topics: lmdb._Database = field(init=False)
    partitions: lmdb._Database = field(init=False)
    producers: lmdb._Database = field(init=False)
    tombstones: lmdb._Database = field(init=False)
    counters: lmdb._Database = field(init=False)

    def __attrs_post_init__(self) -> None:
        with self.environment.begin(write=True) as transaction:
            for table in ("batches", "topics", "partitions", "producers", "tombstones", "counters"):
                setattr(self, table, self.environment.open_db(table.encode("ascii"), txn=transaction))
            written = self.advance(transaction, b"format", 0)
            if written == 0:
                self.advance(transaction, b"format", FORMAT)
            elif written != FORMAT:
                raise LogFailed(f"{self.environment.path()} holds a log of format {written}, not {FORMAT}")

    @contextmanager
    def cursor(self, table: lmdb._Database) -> Iterator[lmdb.Cursor[memoryview]]:
        """
        A cursor on a table.  What it returns is memory of the map, and
        invalid after the C{with} block.

        @raise LogFailed: if anything in the block fails.
        """
        try:
            with self.environment.begin(table, buffers=True) as transaction:
                yield transaction.cursor()
        except lmdb.Error as error:
            raise LogFailed(explain(error)) from error

    def grow(self, byBytes: int) -> None:
        """
        Make the map larger than it was opened with.  No transaction may be open.
        """
        self.environment.set_mapsize(self.environment.info()["map_size"] + byBytes)

    def advance(self, transaction: lmdb.Transaction[bytes], counter: bytes, by: int) -> int:
        """
        Advance a counter.

        @param by: how far.
        @return: the value before, 0 at first.
        """
        stored = transaction.get(counter, db=self.counters)
        value: int = _COUNTER.unpack(stored)[0] if stored else 0
        transaction.put(counter, _COUNTER.pack(value + by), db=self.counters)
        return value


def openStorage(path: str, mapSizeBytes: int) -> Storage:
    """
    Open the environment in a directory that we have locked, or make one.

    Commits do not synchronise: what is committed survives the death of the process
    in any case, and the caller synchronises with the disk.  The map is not
    writable, because with a writable map a loss of power could damage old data.

    @param mapSizeBytes: the maximum size of the file; costs address space only.
    @raise LogFailed: if it cannot be opened.
    """
    try:
        environment = lmdb.open(
            path,
            map_size=mapSizeBytes,
            max_dbs=_MAX_TABLES,
            max_spare_txns=4,
            sync=False,
            metasync=False,
            writemap=False,
        )
    except lmdb.Error as error:
        raise LogFailed(f"cannot open the log in {path}: {explain(error)}") from error
    try:
        # A killed process leaves its readers behind, and no page that they saw would be reused.
        environment.reader_check()
        return Storage(environment)
    except lmdb.Error as error:
        environment.close()
        raise LogFailed(f"cannot open the log in {path}: {explain(error)}") from error
    except LogFailed:
        environment.close()
        raise

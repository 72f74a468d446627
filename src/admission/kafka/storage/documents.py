# -*- test-case-name: tests.unit.kafka.storage.test_documents -*-
"""
The small facts beside the records (topics, offsets, groups, limits): tables in
memory, and a journal of their changes on the disk.

A journal is a file of frames, each with what one commit changed, a checksum
and a running number.  When it has grown, a snapshot of all tables takes its place and
the next journal begins.  A start takes the newest whole snapshot, and then
the frames behind it up to the first that is missing or torn.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from crc32c import crc32c
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from .disk import Disk, File, explain
from .flushing import DeferToThread
from .itable import LogFailed
from .openfiles import LogFile, OpenFiles

FORMAT: Final = 2
"""The version of the log's format."""

MIN_JOURNAL_BYTES: Final = 1 << 20
"""A journal smaller than this is never replaced by a snapshot."""

SPARE_BYTES: Final = 1 << 20
"""How much room on the disk is kept for changes that make more."""

_MAGIC: Final = b"admission log "
_HEADER_BYTES: Final = 32
_FRAME: Final = struct.Struct(">IIQ")
"""The length of what follows, its checksum together with the running number, and the running number."""
_NUMBER: Final = struct.Struct(">Q")
_CHANGE: Final = struct.Struct(">BHi")
"""The lengths of a table's name, of a key, and of a value, -1 if the key was deleted."""

_SNAPSHOT_FRAME_BYTES: Final = 1 << 20
_CUT_BYTES: Final = 1 << 20
"""How much of a journal's end is read at a time, to keep it."""

_NAME: Final = re.compile(r"([0-9]{20})\.(journal|snapshot)")
_UNFINISHED: Final = re.compile(r"[0-9]{20}\.snapshot\.tmp")

Tables = Mapping[str, Mapping[bytes, bytes]]


def _header() -> bytes:
    return (_MAGIC + b"%d\n" % FORMAT).ljust(_HEADER_BYTES, b"\0")


def _frame(number: int, changes: bytes) -> list[bytes]:
    checksum = crc32c(changes, crc32c(_NUMBER.pack(number)))
    return [_FRAME.pack(len(changes), checksum, number), changes]


def _encode(table: str, key: bytes, value: bytes | None) -> bytes:
    name = table.encode("ascii")
    return _CHANGE.pack(len(name), len(key), -1 if value is None else len(value)) + name + key + (value or b"")


def frames(file: File, position: int = _HEADER_BYTES) -> Iterator[tuple[int, bytes, int]]:
    """
    The whole frames of a journal or snapshot, up to the first place where there is none.

    @param position: where the first one begins.
    @return: running number, changes, position of the end of each.
    @raise OSError: if the disk fails.
    """
    sizeBytes = file.size()
    while position + _FRAME.size <= sizeBytes:
        lengthBytes, checksum, number = _FRAME.unpack(file.read(position, _FRAME.size))
        end = position + _FRAME.size + lengthBytes
        if end > sizeBytes:
            return
        changes = file.read(position + _FRAME.size, lengthBytes)
        if crc32c(changes, crc32c(_NUMBER.pack(number))) != checksum:
            return
        yield number, changes, end
        position = end


class Documents:
    """
    The tables, and where they are kept.

    A commit writes what has changed since the last one; until then it can be
    reverted.

    @ivar tables: tables by name, values by key.
    @ivar isUrgent: whether somebody waits for the disk to have what was written.
    """

    _log = Logger()

    def __init__(self, disk: Disk, files: OpenFiles, directory: str, deferToThread: DeferToThread) -> None:
        """
        Read what is there, and make it ready to be written to.

        @param files: opens the journal.
        @raise LogFailed: if it is damaged, of another version, or the disk fails.
        """
        self.tables: dict[str, dict[bytes, bytes]] = {}
        self.isUrgent = False
        self._disk = disk
        self._files = files
        self._directory = directory
        self._deferToThread = deferToThread
        self._changes: list[bytes] = []
        # What the changed keys had before, oldest first.
        self._before: list[tuple[str, bytes, bytes | None]] = []
        self._number = 0
        # The generation of the snapshot that holds, and that of the journal that is written to.
        self._oldest = self._generation = 0
        self._position = 0
        self._snapshotBytes = 0
        self._hasWritten = self._willBeUrgent = self._willMakeRoom = False
        self._sparePath = os.path.join(directory, "spare")
        self._hasSpare = False
        self._journal = LogFile("")
        # Journals with unflushed bytes: the last one, and its predecessor until there is a snapshot.
        self._dirty: dict[LogFile, None] = {}
        self._hasNewFile = False
        self._snapshot: Deferred[Any] | None = None
        try:
            disk.makeDirectory(directory)
            self._load()
        except OSError as error:
            raise LogFailed(f"{error.filename or directory} cannot be read: {explain(error)}") from error

    def put(self, table: str, key: bytes, value: bytes) -> None:
        values = self.tables.setdefault(table, {})
        self._before.append((table, key, values.get(key)))
        values[key] = value
        self._changes.append(_encode(table, key, value))

    def delete(self, table: str, key: bytes) -> None:
        values = self.tables.get(table, {})
        if key in values:
            self._before.append((table, key, values.pop(key)))
            self._changes.append(_encode(table, key, None))

    def urge(self) -> None:
        """
        Somebody will wait for the disk to have what was changed since the last commit.
        """
        self._willBeUrgent = True

    def makesRoom(self) -> None:
        """
        What was changed since the last commit lets files be removed: the spare room is for it where the disk is full.
        """
        self._willMakeRoom = True

    def keepSpare(self) -> None:
        """
        Take the spare room, unless it is there or the disk has none.
        """
        if self._hasSpare:
            return
        try:
            self._disk.reserve(self._sparePath, SPARE_BYTES)
            self._hasSpare = True
        except OSError:
            # Whatever is wrong with the disk, writing to it will tell.
            pass

    @property
    def hasChanges(self) -> bool:
        """
        Whether there is something to write.
        """
        return bool(self._changes)

    def write(self) -> None:
        """
        Write what has changed.  Call L{settle} or L{revert} afterwards.

        @raise OSError: if the disk fails.
        """
        frame = _frame(self._number + 1, b"".join(self._changes))
        file = self._files.willWrite(self._journal)
        # Only now: revert() must not need a file that was refused.
        self._hasWritten = True
        try:
            file.write(frame, self._position)
        except OSError as error:
            isFull = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if not (isFull and self._willMakeRoom and self._hasSpare):
                raise
            self._disk.remove(self._sparePath)
            self._hasSpare = False
            file.write(frame, self._position)

    def settle(self, isLast: bool = False) -> None:
        """
        Keep the changes.

        @param isLast: whether nothing may be begun any more.
        """
        if not self._changes:
            return
        self.isUrgent |= self._willBeUrgent
        self._number += 1
        self._position += _FRAME.size + sum(map(len, self._changes))
        self._dirty[self._journal] = None
        self._forget()
        if self._position > max(MIN_JOURNAL_BYTES, 2 * self._snapshotBytes) and self._snapshot is None and not isLast:
            self._beginSnapshot()

    def revert(self) -> None:
        """
        Discard the changes.

        @raise OSError: if the disk fails.
        """
        for table, key, before in reversed(self._before):
            values = self.tables[table]
            if before is None:
                values.pop(key, None)
            else:
                values[key] = before
        hasWritten = self._hasWritten
        self._forget()
        if hasWritten:
            self._files.willWrite(self._journal).truncate(self._position)

    def _forget(self) -> None:
        self._changes.clear()
        self._before.clear()
        self._hasWritten = self._willBeUrgent = self._willMakeRoom = False

    @property
    def isDirty(self) -> bool:
        return bool(self._dirty)

    def takeDirty(self) -> tuple[list[LogFile], list[str]]:
        """
        The files and directories to flush for all that was settled; the caller sees
        to it.
        """
        files = list(self._dirty)
        self._dirty.clear()
        self.isUrgent = False
        directories = [self._directory] if self._hasNewFile else []
        self._hasNewFile = False
        return files, directories

    def close(self) -> Deferred[None]:
        """
        Fires when no snapshot is being written any more.
        """
        closed: Deferred[None] = Deferred()
        if self._snapshot is None:
            closed.callback(None)
        else:
            self._snapshot.addCallback(closed.callback)
        return closed

    def _path(self, generation: int, kind: str) -> str:
        return os.path.join(self._directory, f"{generation:020d}.{kind}")

    def _load(self) -> None:
        generations: dict[str, list[int]] = {"journal": [], "snapshot": []}
        for name in self._disk.list(self._directory):
            matched = _NAME.fullmatch(name)
            if matched:
                generations[matched[2]].append(int(matched[1]))
            elif _UNFINISHED.fullmatch(name):
                self._disk.remove(os.path.join(self._directory, name))
        journals, snapshots = sorted(generations["journal"]), sorted(generations["snapshot"], reverse=True)
        for generation in snapshots:
            if self._readSnapshot(generation):
                self._generation = self._oldest = generation
                break
        else:
            if snapshots or (journals and journals[0] != 0):
                raise LogFailed(f"{self._directory} has no whole snapshot any more; restore a backup")
        journals = [each for each in journals if each >= self._generation]
        self._position = 0
        for generation in journals:
            self._generation = generation
            isWhole = self._readJournal(generation)
            if not isWhole:
                break
        # Frames behind the first that is missing were never confirmed, and must not be taken for others later: the disk
        # forgets them before anything takes their numbers.
        for kind, others in generations.items():
            for generation in others:
                if generation > self._generation and kind == "journal":
                    self._keep(generation, _HEADER_BYTES)
                if generation > self._generation or generation < self._oldest:
                    self._disk.remove(self._path(generation, kind))
        self._journal = LogFile(self._path(self._generation, "journal"))
        file = self._files.willWrite(self._journal, create=True)
        self._dirty[self._journal] = None
        if file.size() > self._position:
            self._keep(self._generation, self._position)
            file.truncate(self._position)
            file.flush()
        self._disk.flushDirectory(self._directory)
        if self._position == 0:
            file.write([_header()], 0)
            self._position = _HEADER_BYTES

    def _keep(self, generation: int, position: int) -> None:
        """
        Keep what is about to be cut off a journal in a file beside it.  After a loss of power it was never confirmed;
        but it may be damage, and then people want it.
        """
        path = self._path(generation, "journal")
        journal = self._disk.open(path)
        try:
            sizeBytes = max(journal.size() - position, 0)
            begins = range(position, position + sizeBytes, _CUT_BYTES)
            # Room that nothing was written to is not kept, and there may be much of it.
            written = [begin for begin in begins if journal.read(begin, _CUT_BYTES).strip(b"\0")]
            if not written:
                return
            kept = path + ".cut"
            try:
                file = self._disk.open(kept, create=True)
                try:
                    file.truncate(0)
                    for begin in written:
                        file.write([journal.read(begin, _CUT_BYTES)], begin - position)
                finally:
                    file.close()
            except OSError as error:
                kept = f"nowhere ({explain(error)})"
        finally:
            journal.close()
        self._log.warn(
            "the end of {path} is not whole: {sizeBytes} bytes are cut off, and kept in {kept}",
            path=path,
            sizeBytes=sizeBytes,
            kept=kept,
        )

    def _hasHeader(self, file: File, path: str) -> bool:
        """
        @raise LogFailed: if another version wrote the file.
        """
        header = file.read(0, _HEADER_BYTES)
        if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
            return False
        if header != _header():
            version = header[len(_MAGIC) :].rstrip(b"\0\n").decode("ascii", "replace")
            raise LogFailed(
                f"{path} has format {version}, and this version of admission reads {FORMAT}: use the one that wrote it"
            )
        return True

    def _readSnapshot(self, generation: int) -> bool:
        path = self._path(generation, "snapshot")
        file = self._disk.open(path)
        try:
            file.distrust()
            # Every frame has the number of the last change, and the last frame is empty.
            for number, changes, _ in frames(file) if self._hasHeader(file, path) else ():
                if not changes:
                    self._number = number
                    self._snapshotBytes = file.size()
                    return True
                self._apply(changes, path)
        finally:
            file.close()
        self.tables = {}
        return False

    def _readJournal(self, generation: int) -> bool:
        """
        @return: whether the next journal may go on where this one ends.
        """
        path = self._path(generation, "journal")
        file = self._disk.open(path)
        self._position = 0
        try:
            file.distrust()
            sizeBytes = file.size()
            if not self._hasHeader(file, path):
                return sizeBytes == 0
            self._position = _HEADER_BYTES
            for number, changes, end in frames(file):
                if number != self._number + 1:
                    break
                self._apply(changes, path)
                self._number, self._position = number, end
        finally:
            file.close()
        return self._position == sizeBytes

    def _apply(self, changes: bytes, path: str) -> None:
        """
        @raise LogFailed: if the changes of a frame make no sense, though its checksum is right.
        """
        at = 0
        while at < len(changes):
            try:
                nameBytes, keyBytes, valueBytes = _CHANGE.unpack_from(changes, at)
                at += _CHANGE.size
                table = changes[at : at + nameBytes].decode("ascii")
            except (struct.error, UnicodeDecodeError) as error:
                raise self._senseless(path) from error
            at += nameBytes
            key = changes[at : at + keyBytes]
            at += keyBytes
            values = self.tables.setdefault(table, {})
            if valueBytes < 0:
                values.pop(key, None)
            else:
                values[key] = changes[at : at + valueBytes]
                at += valueBytes
        if at != len(changes):
            raise self._senseless(path)

    def _senseless(self, path: str) -> LogFailed:
        return LogFailed(f"{path} has changes that make no sense, with the right checksum; restore a backup")

    def _beginSnapshot(self) -> None:
        """
        Go on in a new journal, and write what all former ones amount to in a thread.
        """
        generation = self._generation + 1
        journal = LogFile(self._path(generation, "journal"))
        try:
            file = self._files.willWrite(journal, create=True)
            file.truncate(0)
            file.write([_header()], 0)
        except (LogFailed, OSError) as error:
            self._log.error("the journal of the log could not be replaced: {error}", error=error)
            self._files.close(journal)
            return
        old, self._journal = self._journal, journal
        self._generation, self._position = generation, _HEADER_BYTES
        self._hasNewFile = True
        tables = {name: dict(values) for name, values in self.tables.items()}
        self._snapshot = maybeDeferred(self._deferToThread, self._writeSnapshot, generation, tables, self._number)
        self._snapshot.addCallbacks(self._snapshotWritten, self._snapshotFailed, callbackArgs=(old,))

    def _writeSnapshot(self, generation: int, tables: Tables, number: int) -> int:
        path = self._path(generation, "snapshot")
        unfinished = path + ".tmp"
        self._disk.remove(unfinished)
        file = self._disk.open(unfinished, create=True)
        try:
            file.write([_header()], 0)
            position = _HEADER_BYTES
            for changes in [*_framesOf(tables), b""]:
                frame = _frame(number, changes)
                file.write(frame, position)
                position += sum(map(len, frame))
            file.flush()
        finally:
            file.close()
        self._disk.rename(unfinished, path)
        # Only then may what it replaces go.
        self._disk.flushDirectory(self._directory)
        for name in self._disk.list(self._directory):
            matched = _NAME.fullmatch(name)
            if matched and int(matched[1]) < generation:
                self._disk.remove(os.path.join(self._directory, name))
        return position

    def _snapshotWritten(self, sizeBytes: int, old: LogFile) -> None:
        self._snapshot = None
        self._snapshotBytes = sizeBytes
        # The snapshot has all of it, on the disk.
        self._dirty.pop(old, None)
        self._files.close(old)

    def _snapshotFailed(self, failure: Failure) -> None:
        self._snapshot = None
        self._log.error("a snapshot of the log's documents could not be written: {error}", error=failure.value)


def _framesOf(tables: Tables) -> Iterator[bytes]:
    changes: list[bytes] = []
    sizeBytes = 0
    for name, values in tables.items():
        for key, value in values.items():
            changes.append(_encode(name, key, value))
            sizeBytes += len(changes[-1])
            if sizeBytes >= _SNAPSHOT_FRAME_BYTES:
                yield b"".join(changes)
                changes.clear()
                sizeBytes = 0
    if changes:
        yield b"".join(changes)

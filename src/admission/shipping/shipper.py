# -*- test-case-name: tests.offline.test_shipper -*-
"""
Ships the closed files of a recording, and removes those that are not needed here any more.

What has been shipped is written down nowhere: a file has been if the target has one of its name and size.  So a kill
leaves nothing wrong at any moment, and a file whose shipping was interrupted is shipped again in place of itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from fcntl import LOCK_EX, LOCK_NB, flock
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import define, field, frozen
from pyarrow import parquet as pq

from ..boundedfile import FileRefused, readBounded
from ..clock import wallSeconds
from ..units import roundedBytes
from .closedfiles import ClosedFile, closedFiles, heldBytes, unsealedSegments
from .pseudonyms import DamagedFile, Pseudonyms
from .target import Target

PARALLEL_FILES: Final = 4
"""How many files are in memory at a time."""

MAX_FILE_BYTES: Final = 64 << 20
"""Four times what the largest segment has; sealing makes much less of it."""

MARK: Final = "_shipped"
"""The file of a target that says whether names are in it; readers of recordings do not see it."""

_AS_RECORDED: Final = "names as they are recorded\n"
_PSEUDONYMS: Final = "pseudonyms of the key with the fingerprint {}\n"

Progress = Callable[[int], AbstractContextManager[Callable[[int], object]]]
"""Given how many bytes there are to ship, makes what is told how many more were."""


@frozen
class Retention:
    """
    What is removed from the recording.

    @ivar keepSeconds: how long a file that is at the target is kept; L{None} for as long as there is room.
    @ivar maxLocalBytes: how much the directory may have; L{None} for any size.
    @ivar isDropping: whether files that are not at the target are removed where nothing else brings room.
    """

    keepSeconds: float | None = None
    maxLocalBytes: int | None = None
    isDropping: bool = False


@define
class Counts:
    """
    What was done since the start.

    @ivar shippedFiles: files stored at the target, and with C{shippedBytes} how much that was.
    @ivar presentFiles: files that were there already.
    @ivar waitingFiles: closed files that are not there yet, now.
    @ivar failures: how often a file could not be stored, or the target not be reached.
    @ivar unreadableFiles: files that cannot be shipped, as they cannot be read.
    @ivar removedFiles: files removed here that are at the target.
    @ivar droppedFiles: files removed here that never were, of C{droppedBytes} and with C{droppedEvents}.
    @ivar vanishedFiles: files that others removed here before they were shipped.
    """

    shippedFiles: int = 0
    shippedBytes: int = 0
    presentFiles: int = 0
    waitingFiles: int = 0
    failures: int = 0
    unreadableFiles: int = 0
    removedFiles: int = 0
    removedBytes: int = 0
    droppedFiles: int = 0
    droppedBytes: int = 0
    droppedEvents: int = 0
    vanishedFiles: int = 0


class ShippingRefused(Exception):
    """
    Shipping would do harm, or cannot begin; the message is a sentence with the remedy.
    """


class _NotRead(Exception):
    """
    A file of the recording cannot be read; the message says why.
    """


@frozen
class _Stored:
    """
    @ivar file: that the target has.
    @ivar sizeBytes: its size there.
    @ivar isNew: whether it was stored now.
    """

    file: ClosedFile
    sizeBytes: int
    isNew: bool


_FAILURES: Final = (OSError, pa.ArrowException)
"""What a file system may raise."""


@define(eq=False)
class Shipper:
    """
    Ships a recording to a target.  For one thread.

    @ivar directory: of the recording.
    @ivar openTarget: opens the target; called again while that fails.
    @ivar pseudonyms: what replaces names; L{None} to ship files as they are.
    @ivar retention: what to remove.
    @ivar tell: is told in a sentence what an operator should know.
    @ivar wallSeconds: seconds since the epoch.
    @ivar counts: what was done.
    @ivar problem: why the last look did not ship everything; empty if it did.
    """

    directory: str
    openTarget: Callable[[], Target]
    pseudonyms: Pseudonyms | None = None
    retention: Retention = Retention()
    tell: Callable[[str], object] = lambda sentence: None
    wallSeconds: Callable[[], float] = wallSeconds
    counts: Counts = field(factory=Counts, init=False)
    problem: str = field(default="", init=False)
    _target: Target | None = field(default=None, init=False)
    _stored: dict[str, _Stored] = field(factory=dict, init=False)
    _unreadable: dict[str, ClosedFile] = field(factory=dict, init=False)
    _waiting: dict[str, ClosedFile] = field(factory=dict, init=False)
    _failed: dict[str, int] = field(factory=dict, init=False)
    _isAway: bool = field(default=False, init=False)
    _isOver: bool = field(default=False, init=False)

    def look(self, stop: Event | None = None, progress: Progress | None = None) -> None:
        """
        Ship what is there now, once, and remove what may be removed.

        @param stop: once it is set, no further file is begun.
        @param progress: shows how far that is.
        @raise ShippingRefused: if it would do harm.
        @raise TargetRefused: if there is no such target.
        @raise OSError: if the directory cannot be read.
        """
        files = closedFiles(self.directory)
        self._noteVanished(files)
        self._waiting = {file.name: file for file in files if self._isToShip(file)}
        self.counts.waitingFiles = len(self._waiting)
        failure: Exception | None = None
        try:
            failure = self._ship(stop or Event(), progress or (lambda totalBytes: nullcontext(lambda sizeBytes: None)))
        except _FAILURES as error:
            self.counts.failures += 1
            self._isAway = True
            failure = error
        if failure is not None and not self.problem:
            self.tell(f"the target does not take files: {_sentence(failure)}; they are kept, and it is tried again")
        elif failure is None and self.problem:
            self.tell("the target takes files again")
        self.problem = "" if failure is None else _sentence(failure)
        self._remove(files)
        self.counts.waitingFiles = len(self._waiting)

    def _ship(self, stop: Event, progress: Progress) -> Exception | None:
        """
        @return: why a file was not stored, if one was not.
        """
        # Those that have failed come last, so that none of them keeps others from being shipped.
        waiting = sorted(self._waiting.values(), key=lambda file: (self._failed.get(file.name, 0), file.age))
        running: dict[Future[_Stored], ClosedFile] = {}
        failure: Exception | None = None
        failuresInARow = 0
        with progress(sum(file.sizeBytes for file in waiting)) as done, _pool() as pool:
            # Also what is not done side by side: a thread that waits for the network is deaf to signals.
            target = pool.submit(self._opened).result()
            sizes = pool.submit(target.sizesBytes, [file.name for file in waiting]).result()
            rest = zip(waiting, sizes, strict=True)
            while True:
                isGoingOn = not stop.is_set() and failuresInARow < PARALLEL_FILES
                for file, sizeBytes in islice(rest, PARALLEL_FILES - len(running) if isGoingOn else 0):
                    running[pool.submit(self._store, target, file, sizeBytes)] = file
                if not running:
                    self._isAway = failuresInARow >= PARALLEL_FILES
                    return failure
                for each in wait(running, return_when=FIRST_COMPLETED).done:
                    file = running.pop(each)
                    failed = self._note(file, each)
                    failure = failed or failure
                    failuresInARow = failuresInARow + 1 if failed else 0
                    done(file.sizeBytes)

    def _note(self, file: ClosedFile, stored: Future[_Stored]) -> Exception | None:
        try:
            result = stored.result()
        except _NotRead as error:
            del self._waiting[file.name]
            self._unreadable[file.name] = file
            self.counts.unreadableFiles += 1
            self.tell(f"{file.path} is not shipped: {error}")
        except FileNotFoundError:
            # The next look counts it, unless its segment is being sealed again.
            pass
        except _FAILURES as error:
            self._failed[file.name] = self._failed.get(file.name, 0) + 1
            self.counts.failures += 1
            return error
        else:
            del self._waiting[file.name]
            self._failed.pop(file.name, None)
            self._stored[file.name] = result
            self.counts.shippedFiles += result.isNew
            self.counts.shippedBytes += result.sizeBytes if result.isNew else 0
            self.counts.presentFiles += not result.isNew
        return None

    def _store(self, target: Target, file: ClosedFile, storedBytes: int | None) -> _Stored:
        """
        @param storedBytes: the size of what the target has.
        @raise FileNotFoundError: if the file is gone.
        """
        if self.pseudonyms is None and storedBytes == file.sizeBytes:
            return _Stored(file, storedBytes, False)
        content = self._contentOf(file)
        isNew = storedBytes != len(content)
        if isNew:
            try:
                target.put(file.name, content)
            except FileNotFoundError as error:
                # Not the one that is shipped.
                raise OSError(_sentence(error)) from error
        return _Stored(file, len(content), isNew)

    def _contentOf(self, file: ClosedFile) -> bytes:
        try:
            content = readBounded(file.path, MAX_FILE_BYTES)
            return content if self.pseudonyms is None else self.pseudonyms.rewritten(content)
        except FileNotFoundError:
            raise
        except FileRefused as error:
            raise _NotRead(error.strerror) from error
        except (OSError, DamagedFile) as error:
            raise _NotRead(_sentence(error)) from error

    def _opened(self) -> Target:
        if self._target is None:
            target = self.openTarget()
            self._refuseItself(target)
            self._checkMark(target)
            self._target = target
        return self._target

    def _refuseItself(self, target: Target) -> None:
        if not target.isLocal:
            return
        here, there = os.path.realpath(self.directory), os.path.realpath(target.path)
        if os.path.commonpath([here, there]) in (here, there):
            raise ShippingRefused(
                f"{target.path} is {self.directory}, or one is in the other; name a directory elsewhere"
            )

    def _checkMark(self, target: Target) -> None:
        mark = _AS_RECORDED if self.pseudonyms is None else _PSEUDONYMS.format(self.pseudonyms.fingerprint)
        found = target.read(MARK, len(mark) + 1)
        if found is None:
            if self.pseudonyms is not None and not target.isEmpty():
                raise ShippingRefused(
                    "--pseudonyms: the target has files already, which may have names; name a directory that is empty"
                )
            target.put(MARK, mark.encode())
        elif found != mark.encode():
            raise ShippingRefused(
                f"the target has {found.decode('utf-8', 'replace').strip()!r:.100}, and would have "
                f"{mark.strip()!r} as well: give --pseudonyms as the first time, or name another directory"
            )

    def _isToShip(self, file: ClosedFile) -> bool:
        return not self._isStored(file) and self._unreadable.get(file.name) != file

    def _isStored(self, file: ClosedFile) -> bool:
        stored = self._stored.get(file.name)
        return stored is not None and stored.file == file

    def _noteVanished(self, files: Sequence[ClosedFile]) -> None:
        here = {file.name: file for file in files}
        unsealed = frozenset(unsealedSegments(self.directory))
        gone = [each for each in self._waiting.values() if each.name not in here]
        vanished = [each for each in gone if Path(each.name).stem not in unsealed]
        if vanished:
            self.counts.vanishedFiles += len(vanished)
            sizeBytes = sum(each.sizeBytes for each in vanished)
            self.tell(
                f"{_files(len(vanished))} of {roundedBytes(sizeBytes)} were removed from {self.directory} before they "
                "were shipped; a larger cap in --export keeps them for longer"
            )
        self._stored = {name: each for name, each in self._stored.items() if here.get(name) == each.file}
        self._unreadable = {name: file for name, file in self._unreadable.items() if here.get(name) == file}
        self._failed = {name: count for name, count in self._failed.items() if name in here}

    def _remove(self, files: Sequence[ClosedFile]) -> None:
        keepSeconds, maxLocalBytes = self.retention.keepSeconds, self.retention.maxLocalBytes
        if keepSeconds is not None and not self._isAway:
            oldest = (self.wallSeconds() - keepSeconds) * 1e9
            due = [file for file in files if self._isStored(file) and file.modifiedNanoseconds <= oldest]
            with suppress(*_FAILURES):
                for file in self._stillStored(due):
                    self._removeStored(file)
        if maxLocalBytes is not None:
            self._makeRoom(files, maxLocalBytes)

    def _makeRoom(self, files: Sequence[ClosedFile], maxLocalBytes: int) -> None:
        tooMany = heldBytes(self.directory) - maxLocalBytes
        if tooMany <= 0:
            self._isOver = False
            return
        here = [file for file in files if file.isUnchanged()]
        stored = list(filter(self._isStored, here))
        # While the target is away, what was confirmed before counts: nothing else would be left to remove.
        with suppress(*_FAILURES):
            stored = stored if self._isAway else self._stillStored(stored)
        for file in stored:
            if tooMany <= 0:
                return
            self._removeStored(file)
            tooMany -= file.sizeBytes
        others = [file for file in here if not self._isStored(file)]
        if tooMany > 0 and others and not self.retention.isDropping:
            if not self._isOver:
                self.tell(
                    f"{self.directory} has {roundedBytes(tooMany)} more than --max-local, of which nothing is at the "
                    "target: nothing is removed, and --drop would remove the oldest"
                )
            self._isOver = True
            return
        self._isOver = False
        self._drop(sorted(others, key=lambda file: file.worth), tooMany)

    def _drop(self, files: Sequence[ClosedFile], tooMany: int) -> None:
        count, sizeBytes, events = 0, 0, 0
        for file in files:
            if tooMany <= 0:
                break
            lost = _eventsIn(file)
            if self._unlink(file):
                count, sizeBytes, events = count + 1, sizeBytes + file.sizeBytes, events + lost
                tooMany -= file.sizeBytes
                self._waiting.pop(file.name, None)
        if count:
            self.counts.droppedFiles += count
            self.counts.droppedBytes += sizeBytes
            self.counts.droppedEvents += events
            self.tell(
                f"{_files(count)} with {events:,} events were dropped before they were shipped, to keep "
                f"{self.directory} within --max-local"
            )

    def _stillStored(self, files: Sequence[ClosedFile]) -> list[ClosedFile]:
        """
        The files that the target has now; others are shipped again.
        """
        if not files:
            return []
        sizes = self._opened().sizesBytes([file.name for file in files])
        stored: list[ClosedFile] = []
        for file, sizeBytes in zip(files, sizes, strict=True):
            if sizeBytes == self._stored[file.name].sizeBytes:
                stored.append(file)
            else:
                del self._stored[file.name]
        return stored

    def _removeStored(self, file: ClosedFile) -> None:
        if self._unlink(file):
            self.counts.removedFiles += 1
            self.counts.removedBytes += file.sizeBytes

    def _unlink(self, file: ClosedFile) -> bool:
        if not file.isUnchanged():
            return False
        try:
            os.unlink(file.path)
        except FileNotFoundError:
            return False
        except OSError as error:
            self.tell(f"{file.path} cannot be removed: {error.strerror}")
            return False
        self._removeEmpty(Path(file.path).parent)
        return True

    def _removeEmpty(self, hour: Path) -> None:
        # Sealing may be about to write to the directory of an hour that is not long over.
        today = datetime.fromtimestamp(self.wallSeconds(), UTC)
        recent = {f"dt={moment:%Y-%m-%d}" for moment in (today - timedelta(days=1), today, today + timedelta(days=1))}
        if hour.parent.name not in recent:
            with suppress(OSError):
                hour.rmdir()
                hour.parent.rmdir()


@contextmanager
def locked(directory: str) -> Iterator[None]:
    """
    Keep others from shipping the same recording meanwhile.

    @raise ShippingRefused: if somebody does.
    @raise OSError: if the directory cannot be read.
    """
    fileno = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            flock(fileno, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            raise ShippingRefused(f"{directory} is being shipped by another process; let it end first") from None
        yield
    finally:
        os.close(fileno)


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(PARALLEL_FILES, "shipping")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _eventsIn(file: ClosedFile) -> int:
    """
    How many events a file has; 0 if it is damaged.
    """
    try:
        return int(pq.read_metadata(file.path).num_rows)
    except (OSError, pa.ArrowException):
        return 0


def _sentence(error: Exception) -> str:
    """
    The first line of what an error says; Arrow appends where it occurred.
    """
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return next(iter(text.splitlines()), type(error).__name__)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"

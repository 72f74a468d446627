"""
A disk in memory that loses power.

What is written shows at once to all who read, as in a page cache.  What a loss of power leaves of it is decided by
L{SimulatedDisk.crash}: for each sector, each length of a file and each name in a directory, on its own, either what
the last flush has taken to the disk or any state that it has had since.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

SECTOR_BYTES: Final = 512
FLUSHED: Final = 0
NEWEST: Final = -1

Fault = Callable[[str, str], OSError | None]
"""What an operation on a path raises, if anything.  The operations are the names of the methods of files and disks."""


class PowerLost(Exception):
    """The disk is not there any more, because the computer or the process has died."""


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


_Versions = list[tuple[int, Any]]
"""States of something since its last flush, each with the time of the change; the first is what is on the disk."""

_Choice = Callable[[str, _Versions], Any]
"""Chooses a state, given the path of the name, or that by which the file was made."""


class _Inode:
    """
    @ivar path: by which it was made.
    @ivar contents: what those see who read.
    @ivar stored: what was there at the last flush; zeros may follow.
    @ivar sectors: the states since then of the sectors that have changed.
    @ivar lengths: the lengths since then.
    """

    def __init__(self, path: str, stored: bytes = b"") -> None:
        self.path = path
        self.contents = bytearray(stored)
        self.stored = stored
        self.sectors: dict[int, _Versions] = {}
        self.lengths: _Versions = [(0, len(stored))]

    @property
    def isDirty(self) -> bool:
        return bool(self.sectors) or len(self.lengths) > 1

    def _note(self, time: int, first: int, end: int, lengthBefore: int) -> None:
        for sector in range(first // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            begin = sector * SECTOR_BYTES
            versions = self.sectors.get(sector)
            if versions is None:
                versions = self.sectors[sector] = [(0, self.stored[begin : begin + SECTOR_BYTES])]
            versions.append((time, bytes(self.contents[begin : begin + SECTOR_BYTES])))
        if len(self.contents) != lengthBefore:
            self.lengths.append((time, len(self.contents)))

    def write(self, time: int, position: int, written: bytes) -> None:
        before = len(self.contents)
        if position > before:
            self.contents.extend(bytes(position - before))
        self.contents[position : position + len(written)] = written
        self._note(time, position, position + len(written), before)

    def truncate(self, time: int, sizeBytes: int) -> None:
        before = len(self.contents)
        if sizeBytes < before:
            del self.contents[sizeBytes:]
            self._note(time, sizeBytes, before, before)
        elif sizeBytes > before:
            self.contents.extend(bytes(sizeBytes - before))
            self._note(time, before, before, before)

    def flush(self) -> None:
        if self.isDirty:
            self.become(bytes(self.contents))

    def become(self, stored: bytes) -> None:
        """Have something on the disk, and nothing that is not there."""
        self.stored = stored
        self.sectors.clear()
        self.lengths = [(0, len(stored))]

    def image(self, choose: _Choice) -> bytes:
        """What may be on the disk."""
        if not self.isDirty:
            return self.stored
        image = bytearray(self.stored)
        for sector, versions in self.sectors.items():
            begin = sector * SECTOR_BYTES
            if len(image) < begin + SECTOR_BYTES:
                image.extend(bytes(begin + SECTOR_BYTES - len(image)))
            image[begin : begin + SECTOR_BYTES] = choose(self.path, versions).ljust(SECTOR_BYTES, b"\0")
        length = choose(self.path, self.lengths)
        return bytes(image[:length].ljust(length, b"\0"))


class _Directory:
    """
    @ivar names: what those see who look.
    @ivar changes: the states since the last flush of the names that have changed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.names: dict[str, _Node] = {}
        self.changes: dict[str, list[tuple[int, _Node | None]]] = {}

    def set(self, time: int, name: str, node: _Node | None) -> None:
        before = self.names.get(name)
        self.changes.setdefault(name, [(0, before)]).append((time, node))
        if node is None:
            del self.names[name]
        else:
            self.names[name] = node


_Node = _Inode | _Directory


class _Mood:
    """
    How much of what was not flushed is there after a loss of power.

    Real disks are mostly polite: they keep the order, or lose everything.  Here all kinds
    are as frequent, among them those in which exactly one change is missing or has come first.
    """

    def __init__(self, random: Random, now: int, changeCount: int) -> None:
        """
        @param now: the time of the last change.
        @param changeCount: how many changed sectors, lengths and names there are.
        """
        self._random = random
        self._choices: dict[str, _Choice] = {}
        self._until = random.randint(0, now)
        self._one = random.randrange(max(changeCount, 1))
        self._count = 0
        self._all = random.choice(
            [self._old, self._new, self._past, self._anything, self._allButOne, self._onlyOne, self._each, self._each]
        )

    def __call__(self, path: str, versions: _Versions) -> Any:
        return self._all(path, versions)

    def _old(self, path: str, versions: _Versions) -> Any:
        return versions[0][1]

    def _new(self, path: str, versions: _Versions) -> Any:
        return versions[-1][1]

    def _past(self, path: str, versions: _Versions) -> Any:
        return next(value for time, value in reversed(versions) if time <= self._until)

    def _anything(self, path: str, versions: _Versions) -> Any:
        if isinstance(versions[0][1], int) and self._random.random() < 0.5:
            lengths = [length for _, length in versions]
            return self._random.randint(min(lengths), max(lengths))
        return self._random.choice(versions)[1]

    def _allButOne(self, path: str, versions: _Versions) -> Any:
        self._count += 1
        return versions[0 if self._count == self._one + 1 else -1][1]

    def _onlyOne(self, path: str, versions: _Versions) -> Any:
        self._count += 1
        return versions[-1 if self._count == self._one + 1 else 0][1]

    def _each(self, path: str, versions: _Versions) -> Any:
        choice = self._choices.get(path)
        if choice is None:
            choice = self._choices[path] = self._random.choice([self._old, self._new, self._new, self._anything])
        return choice(path, versions)


class SimulatedDisk:
    """
    L{admission.kafka.storage.disk.Disk} in memory.

    @ivar fault: asked before each operation whether it fails.  A write that fails has
        written a part.  After a flush of a file that fails, the disk has any part of what it
        should have taken there, and never gets the rest.
    @ivar ignores: asked before each flush whether the disk lies about it; for tests that leave out
        flushes on purpose.
    @ivar pause: called before each operation.
    @ivar countdown: how many more operations there are before power is lost; L{None} for any number.
    @ivar isDead: whether all operations raise L{PowerLost}.
    """

    def __init__(self, root: str, random: Random) -> None:
        """
        @param root: a directory that is there, with nothing in it.
        @param random: decides what a failed operation does.
        """
        self.fault: Fault | None = None
        self.ignores: Callable[[str, str], bool] | None = None
        self.pause: Callable[[], None] | None = None
        self.countdown: int | None = None
        self.isDead = False
        self._root = root
        self._random = random
        self._time = 0
        self._tree = _Directory(root)

    def crash(self, random: Random) -> SimulatedDisk:
        """
        Lose power.

        @return: the disk as it may be found then, on which everything is flushed.
        """
        return self._image(_Mood(random, self._time, self._changeCount()))

    def losePower(self, chosen: Callable[[str, bool], int] = lambda path, isName: FLUSHED) -> SimulatedDisk:
        """
        Lose power, and some of what was not flushed.

        @param chosen: which state is found, for the name that is a path, or the contents of the file that was made by
            that path: L{FLUSHED}, L{NEWEST}, or the number of a change since the flush, from 1 on.
        """

        def choose(path: str, versions: _Versions) -> Any:
            isName = not isinstance(versions[-1][1], bytes | int)
            return versions[min(chosen(path, isName), len(versions) - 1)][1]

        return self._image(choose)

    def _image(self, choose: _Choice) -> SimulatedDisk:
        successor = SimulatedDisk(self._root, self._random)
        successor.ignores = self.ignores
        known: dict[_Node, _Node] = {}

        def copied(node: _Node) -> _Node:
            if node not in known:
                if isinstance(node, _Inode):
                    known[node] = _Inode(node.path, node.image(choose))
                else:
                    directory = known[node] = _Directory(node.path)
                    names: dict[str, _Node | None] = {**node.names}
                    for name, versions in node.changes.items():
                        names[name] = choose(os.path.join(node.path, name), versions)
                    for name, child in names.items():
                        if child is not None:
                            directory.names[name] = copied(child)
            return known[node]

        tree = copied(self._tree)
        assert isinstance(tree, _Directory)
        successor._tree = tree
        self.isDead = True
        return successor

    def kill(self) -> SimulatedDisk:
        """
        Let the process die, as C{kill -9} does.

        @return: the same disk with the same page cache.
        """
        successor = SimulatedDisk(self._root, self._random)
        successor.ignores = self.ignores
        successor._tree, successor._time = self._tree, self._time
        self.isDead = True
        return successor

    @property
    def isDirty(self) -> bool:
        """Whether a loss of power could take anything back."""
        return self._changeCount() > 0

    def _changeCount(self) -> int:
        count = 0
        seen: set[_Node] = set()
        nodes: list[_Node] = [self._tree]
        while nodes:
            node = nodes.pop()
            if node in seen:
                continue
            seen.add(node)
            if isinstance(node, _Inode):
                count += len(node.sectors) + (len(node.lengths) > 1)
            else:
                count += len(node.changes)
                nodes += node.names.values()
                nodes += [child for states in node.changes.values() for _, child in states if child is not None]
        return count

    def begin(self, operation: str, path: str) -> OSError | None:
        """
        Something is about to be done.

        @return: the fault that it is to raise.
        """
        if self.pause is not None and not self.isDead:
            self.pause()
        if self.countdown is not None and not self.isDead:
            self.countdown -= 1
            if self.countdown <= 0:
                self.isDead = True
        if self.isDead:
            raise PowerLost(f"{operation} {path}")
        return None if self.fault is None else self.fault(operation, path)

    def tick(self) -> int:
        """The time of a change."""
        self._time += 1
        return self._time

    def open(self, path: str, create: bool = False) -> SimulatedFile:
        """See L{admission.kafka.storage.disk.Disk}; so the others."""
        self._check("open", path)
        directory, name = self._parent(path)
        node = directory.names.get(name)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR)
        if node is None:
            if not create:
                raise _error(errno.ENOENT)
            node = _Inode(path)
            directory.set(self.tick(), name, node)
        return SimulatedFile(self, path, node, self._random)

    def reserve(self, path: str, sizeBytes: int) -> None:
        self._check("reserve", path)
        directory, name = self._parent(path)
        if name not in directory.names:
            directory.set(self.tick(), name, _Inode(path))

    def list(self, path: str) -> list[str]:
        self._check("list", path)
        directory = self._find(path)
        if directory is None:
            return []
        assert isinstance(directory, _Directory), path
        names = list(directory.names)
        self._random.shuffle(names)
        return names

    def modifiedSeconds(self, path: str) -> float:
        """Files have no times here, and never grow old."""
        return float("inf")

    def makeDirectory(self, path: str) -> None:
        self._check("makeDirectory", path)
        directory = self._tree
        for name in self._parts(path):
            child = directory.names.get(name)
            if child is None:
                child = _Directory(os.path.join(directory.path, name))
                directory.set(self.tick(), name, child)
            if isinstance(child, _Inode):
                raise _error(errno.EEXIST)
            directory = child

    def rename(self, old: str, new: str) -> None:
        self._check("rename", old)
        source, oldName = self._parent(old)
        target, newName = self._parent(new)
        node = source.names.get(oldName)
        if node is None:
            raise _error(errno.ENOENT)
        time = self.tick()
        target.set(time, newName, node)
        source.set(time, oldName, None)

    def remove(self, path: str) -> None:
        self._check("remove", path)
        if isinstance(self._find(path), _Directory):
            raise _error(errno.EISDIR)
        self._unlink(path)

    def removeDirectory(self, path: str) -> None:
        self._check("removeDirectory", path)
        node = self._find(path)
        if isinstance(node, _Inode):
            raise _error(errno.ENOTDIR)
        if node is not None and node.names:
            raise _error(errno.ENOTEMPTY)
        self._unlink(path)

    def _unlink(self, path: str) -> None:
        if self._find(path) is not None:
            directory, name = self._parent(path)
            directory.set(self.tick(), name, None)

    def flushDirectory(self, path: str) -> None:
        self._check("flushDirectory", path)
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT)
        assert isinstance(node, _Directory), path
        if self.ignores is None or not self.ignores("flushDirectory", path):
            node.changes.clear()

    def _check(self, operation: str, path: str) -> None:
        error = self.begin(operation, path)
        if error is not None:
            raise error

    def _parts(self, path: str) -> Sequence[str]:
        if path == self._root:
            return []
        assert path.startswith(self._root + os.sep), path
        return path[len(self._root) + 1 :].split(os.sep)

    def _find(self, path: str) -> _Node | None:
        node: _Node = self._tree
        for name in self._parts(path):
            child = node.names.get(name) if isinstance(node, _Directory) else None
            if child is None:
                return None
            node = child
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        above, name = os.path.split(path)
        directory = self._find(above)
        if not isinstance(directory, _Directory):
            raise _error(errno.ENOENT)
        return directory, name


class SimulatedFile:
    """L{admission.kafka.storage.disk.File} on a L{SimulatedDisk}."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: _Inode, random: Random) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._random = random
        self._isClosed = False

    def write(self, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        """See L{admission.kafka.storage.disk.File}; so the others."""
        written = b"".join(buffers)
        wasDead = self._disk.isDead
        try:
            self._check("write")
        except (OSError, PowerLost):
            if not wasDead:
                self._write(written[: self._random.randint(0, len(written))], position)
            raise
        self._write(written, position)

    def _write(self, written: bytes, position: int) -> None:
        if written:
            self._inode.write(self._disk.tick(), position, written)

    def read(self, position: int, sizeBytes: int) -> bytes:
        self._check("read")
        return bytes(self._inode.contents[position : position + sizeBytes])

    def size(self) -> int:
        self._check("size")
        return len(self._inode.contents)

    def truncate(self, sizeBytes: int) -> None:
        self._check("truncate")
        self._inode.truncate(self._disk.tick(), sizeBytes)

    def flush(self) -> None:
        error = self._begin("flush")
        inode = self._inode
        if error is not None:
            # The pages are clean from now on, and still show what was written.
            inode.become(inode.image(_Mood(self._random, self._disk.tick(), len(inode.sectors) + 1)))
            raise error
        if self._disk.ignores is None or not self._disk.ignores("flush", self._path):
            inode.flush()

    def distrust(self) -> None:
        self._check("distrust")
        inode = self._inode
        # What could not be written is not dirty, so that it is not written now, either.
        changed = inode.image(lambda _, versions: versions[-1][1])
        if len(changed) < len(inode.contents):
            changed = changed.ljust(len(inode.contents), b"\0")
        inode.contents = bytearray(changed)
        inode.become(changed)

    def close(self) -> None:
        assert not self._isClosed, f"{self._path} is closed twice"
        self._isClosed = True

    def _begin(self, operation: str) -> OSError | None:
        assert not self._isClosed, f"{operation} of {self._path}, which is closed"
        return self._disk.begin(operation, self._path)

    def _check(self, operation: str) -> None:
        error = self._begin(operation)
        if error is not None:
            raise error


class FreeLock:
    """In the place of the lock of a directory: nobody else is there."""

    def __init__(self, path: str) -> None:
        pass

    def release(self) -> None:
        """Do nothing."""


class SteppedThreads:
    """
    Threads that do what they are told to, one operation of a disk after another.

    Only one thread runs at any time, so that what happens depends on the calls of these methods alone.
    """

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self._current: Job | None = None

    def deferToThread(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        """As L{twisted.internet.threads.deferToThread}; nothing is done yet."""
        job = Job(lambda: function(*arguments))
        self.jobs.append(job)
        return job.result

    def pause(self) -> None:
        """Wait for the next L{step}; for C{SimulatedDisk.pause}."""
        if self._current is not None:
            self._current.pause()

    def step(self, number: int) -> None:
        """Let a job run until it is about to use the disk, or is over."""
        job = self.jobs[number]
        self._current = job
        job.resume()
        self._current = None
        self._end(job)

    def run(self, number: int) -> None:
        """Let a job run until it is over."""
        job = self.jobs[number]
        if not job.isBegun:
            job.call()
        while not job.isOver:
            self._current = job
            job.resume()
            self._current = None
        self._end(job)

    def abandon(self) -> None:
        """End all jobs without a result; the disk is dead."""
        for job in self.jobs:
            while job.isBegun and not job.isOver:
                job.resume()
        self.jobs.clear()

    def _end(self, job: Job) -> None:
        if job.isOver:
            self.jobs.remove(job)
            job.result.callback(job.outcome)


class Job:
    """
    What one of L{SteppedThreads} does.

    @ivar result: what was promised for it.
    @ivar outcome: what it has returned, or a failure.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Deferred[Any] = Deferred()
        self.outcome: Any = None
        self.isBegun = self.isOver = False
        self._function = function
        self._mayRun = threading.Semaphore(0)
        self._hasPaused = threading.Semaphore(0)

    def call(self) -> None:
        """Do all of it in the caller's thread."""
        self.isBegun = True
        try:
            self.outcome = self._function()
        except BaseException:
            self.outcome = Failure()
        self.isOver = True

    def resume(self) -> None:
        """Let the thread run until it pauses or is over."""
        if self.isBegun:
            self._mayRun.release()
        else:
            self.isBegun = True
            threading.Thread(target=self._run, daemon=True).start()
        self._hasPaused.acquire()

    def pause(self) -> None:
        """In the thread: wait for L{resume}."""
        self._hasPaused.release()
        self._mayRun.acquire()

    def _run(self) -> None:
        self.call()
        self._hasPaused.release()

"""
What a piece of work takes of this process and of all that it has started: Spark's Java process and its Python workers.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar

from attrs import define, frozen

from .measure import wallSeconds

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_LOOK_SECONDS = 0.25
_PYTHON = "python"
_PROCESSES = Path("/proc")

T = TypeVar("T")


@frozen
class Cost:
    """
    What something took.

    @ivar wallSeconds: time on the wall.
    @ivar pythonSeconds: CPU time of Python processes, this one included.
    @ivar otherSeconds: CPU time of all others, which is Java.
    @ivar workerBytes: the most memory that was resident in one of the other Python processes that had something to
        do; 0 if there were none.
    """

    wallSeconds: float
    pythonSeconds: float
    otherSeconds: float
    workerBytes: int

    @property
    def cpuSeconds(self) -> float:
        """
        CPU time of all processes.
        """
        return self.pythonSeconds + self.otherSeconds


def costOf(work: Callable[[], T]) -> tuple[T, Cost]:
    """
    Do something, and see what it takes.

    Workers stay for a minute after their last task, and Linux remembers the largest size of each (VmHWM), so it is
    enough to look now and then.

    @return: what it returns, and its cost.
    """
    before = _descendants()
    for process in before:
        process.forgetPeak()
    with _peaks(before) as peaks:
        started = wallSeconds()
        result = work()
        elapsedSeconds = wallSeconds() - started
    python, other = (
        _cpuSeconds(_descendants(), isPython) - _cpuSeconds(before, isPython) for isPython in (True, False)
    )
    return result, Cost(elapsedSeconds, python, other, max(peaks, default=0))


@frozen
class CommandCost:
    """
    What a command and all that it has started took.  Memory that several processes share is divided among them.

    @ivar wallSeconds: time on the wall.
    @ivar cpuSeconds: CPU time of all of them, but for what each used in its last half second.
    @ivar commandBytes: the most memory of the command itself.
    @ivar javaBytes: the most memory of what is no Python.
    @ivar workerBytes: the most memory of any other Python.
    @ivar allBytes: the most memory of all together.
    """

    wallSeconds: float
    cpuSeconds: float
    commandBytes: int
    javaBytes: int
    workerBytes: int
    allBytes: int


def costOfCommand(command: Sequence[str]) -> CommandCost:
    """
    Run a command, and see what it takes.

    @raise CalledProcessError: if it fails.
    """
    started = wallSeconds()
    cpu: dict[int, float] = {}
    peaks = [0, 0, 0, 0]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        while running.poll() is None:
            found = _descendants(running.pid)
            cpu.update((each.pid, each.ownSeconds) for each in found)
            sizes = [(each, each.shareBytes()) for each in found]
            now = (
                sum(size for each, size in sizes if each.pid == running.pid),
                sum(size for each, size in sizes if not each.isPython),
                max((size for each, size in sizes if each.isPython and each.pid != running.pid), default=0),
                sum(size for _, size in sizes),
            )
            peaks = [max(pair) for pair in zip(peaks, now, strict=True)]
            with suppress(subprocess.TimeoutExpired):
                running.wait(2 * _LOOK_SECONDS)
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command)
    return CommandCost(wallSeconds() - started, sum(cpu.values()), *peaks)


@frozen
class _Process:
    pid: int
    parentPid: int
    name: str
    cpuSeconds: float
    ownSeconds: float

    @property
    def isPython(self) -> bool:
        return self.name.startswith(_PYTHON)

    def forgetPeak(self) -> None:
        # Of a process that has ended meanwhile there is nothing to forget.
        with suppress(OSError):
            (_PROCESSES / str(self.pid) / "clear_refs").write_text("5")

    def peakBytes(self) -> int:
        return self._sizeBytes("status", "VmHWM:")

    def shareBytes(self) -> int:
        return self._sizeBytes("smaps_rollup", "Pss:")

    def _sizeBytes(self, file: str, name: str) -> int:
        # Of a process that has ended meanwhile nothing is known.
        with suppress(OSError):
            for line in (_PROCESSES / str(self.pid) / file).read_text().splitlines():
                if line.startswith(name):
                    return int(line.split()[1]) << 10
        return 0


def _processes() -> Iterator[_Process]:
    for entry in _PROCESSES.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                head, _, tail = (entry / "stat").read_text().rpartition(")")
                fields = tail.split()
                # Its own time, and that of children that have ended: see proc_pid_stat(5).
                own, ended = (sum(map(int, fields[place : place + 2])) / _TICKS_PER_SECOND for place in (11, 13))
                name = head.partition("(")[2]
                yield _Process(int(entry.name), int(fields[1]), name, own + ended, own)


def _descendants(root: int | None = None) -> list[_Process]:
    """
    A process, this one unless another is named, and all that it or they have started.
    """
    children: dict[int, list[_Process]] = {}
    found: list[_Process] = []
    for process in _processes():
        children.setdefault(process.parentPid, []).append(process)
        if process.pid == (os.getpid() if root is None else root):
            found.append(process)
    for process in found:
        found += children.get(process.pid, ())
    return found


def _cpuSeconds(processes: list[_Process], isPython: bool) -> float:
    return sum(process.cpuSeconds for process in processes if process.isPython is isPython)


@define
class _Watch:
    idle: set[_Process]
    peaks: list[int]
    isOver: Event

    def look(self) -> None:
        # A process that has worked since then has used some processor time.
        busy = [each for each in _descendants() if each.isPython and each.pid != os.getpid() and each not in self.idle]
        self.peaks[:] = [max([*self.peaks, *(each.peakBytes() for each in busy)], default=0)]

    def run(self) -> None:
        while not self.isOver.wait(_LOOK_SECONDS):
            self.look()


@contextmanager
def _peaks(before: list[_Process]) -> Iterator[list[int]]:
    """
    The most that a worker has had, while the block runs and when it is over.
    """
    watch = _Watch(set(before), [], Event())
    thread = Thread(target=watch.run)
    thread.start()
    try:
        yield watch.peaks
    finally:
        watch.isOver.set()
        thread.join()
        watch.look()

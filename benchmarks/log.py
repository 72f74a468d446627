"""
What the record log costs: appending and reading beside bare system calls, flushing while others write, starting after a
kill, and keeping partitions that nobody uses.

    python -m benchmarks.log [--json] [--quick]
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from attrs import define
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock

from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.storage.disk import LocalDisk, LocalFile
from admission.kafka.wire.batches import HEADER_BYTES, Record, encodeBatch, readBatch

from .measure import KIB, MIB, Report, cpuSeconds, inTurns, median, noCollections, ratio, run, sizeName, spreadPercent

TOPIC = "events"
LOG, BARE = "log", "bare file"

READ_BYTES = MIB


@define
class Load:
    """
    Batches of one size, and how many one commit has.
    """

    batchBytes: int
    perCommit: int
    count: int


LOADS = [Load(KIB, 16, 16_384), Load(16 * KIB, 8, 4096), Load(MIB, 1, 128)]

PARTITION_COUNTS = [1, 16, 256]
"""How many partitions a flush comprises."""

_PIECE = os.urandom(4 * KIB)
_TURN_SECONDS = 0.005


def batchOf(sizeBytes: int) -> bytearray:
    """
    A batch of that size, with one record.
    """
    overhead = len(encodeBatch([Record(value=bytes(sizeBytes - HEADER_BYTES))])) - (sizeBytes - HEADER_BYTES)
    return bytearray(encodeBatch([Record(value=os.urandom(sizeBytes - overhead))]))


def openLog(path: str, clock: Clock, **limits: Any) -> SegmentLog:
    """
    A log whose threads are this one.
    """
    return SegmentLog(path, clock, time.time, maybeDeferred, retentionSeconds=None, maxPartitions=100_000, **limits)


class Engine(Protocol):
    """
    Something that keeps batches.
    """

    def append(self, batch: bytearray, perCommit: int, count: int) -> None:
        """
        Append the same batch C{count} times, and commit after every C{perCommit}.
        """

    def read(self, number: int) -> None:
        """
        Read 1 MiB from the batch of that number on.
        """

    def close(self) -> None:
        """
        End it.
        """


class SegmentEngine:
    """
    The log, without a broker.
    """

    def __init__(self, path: str) -> None:
        self._clock = Clock()
        self._log = openLog(path, self._clock)
        (self._partition,) = self._log.createTopic(TOPIC, 1, {}).partitions

    def append(self, batch: bytearray, perCommit: int, count: int) -> None:
        header = readBatch(batch)
        for number in range(count):
            self._log.append(self._partition, batch, header)
            if number % perCommit == perCommit - 1:
                self._clock.advance(0)

    def read(self, number: int) -> None:
        self._log.read(self._partition, number, READ_BYTES)

    def close(self) -> None:
        self._log.close()


class FileEngine:
    """
    A file and nothing else: what the system calls cost.
    """

    def __init__(self, path: str) -> None:
        self._file = LocalDisk().open(f"{path}-file", create=True)
        self._sizeBytes = self._batchBytes = 0

    def append(self, batch: bytearray, perCommit: int, count: int) -> None:
        self._batchBytes = len(batch)
        for _ in range(count // perCommit):
            self._file.write([batch] * perCommit, self._sizeBytes)
            self._sizeBytes += perCommit * len(batch)

    def read(self, number: int) -> None:
        self._file.read(number * self._batchBytes, READ_BYTES)

    def close(self) -> None:
        self._file.close()


ENGINES: dict[str, Callable[[str], Engine]] = {LOG: SegmentEngine, BARE: FileEngine}


def measureEngines(report: Report) -> None:
    """
    Appending and reading.
    """
    rounds = 2 if report.quick else 7
    for load in LOADS:
        batch = batchOf(load.batchBytes)
        count = load.count // (8 if report.quick else 1)
        reads = 20 if report.quick else 300

        def measure(
            name: str, load: Load = load, batch: bytearray = batch, count: int = count, reads: int = reads
        ) -> tuple[float, float]:
            with TemporaryDirectory(prefix="admission-benchmark-") as directory, noCollections():
                engine = ENGINES[name](os.path.join(directory, "data"))
                started = cpuSeconds()
                engine.append(batch, load.perCommit, count)
                appended = (cpuSeconds() - started) / count
                random = Random(1)
                last = max(count - READ_BYTES // load.batchBytes, 1)
                started = cpuSeconds()
                for _ in range(reads):
                    engine.read(random.randrange(last))
                read = (cpuSeconds() - started) / reads
                engine.close()
            return appended, read

        figures = inTurns(ENGINES, rounds, measure, sizeName(load.batchBytes))
        for name, pairs in figures.items():
            appends, theReads = ([pair[at] for pair in pairs] for at in (0, 1))
            bare = figures[BARE]
            report.add(
                "engines",
                batchBytes=load.batchBytes,
                engine=name,
                appendMicroseconds=median(appends) * 1e6,
                appendRatioToBare=ratio(appends, [pair[0] for pair in bare]),
                readMicroseconds=median(theReads) * 1e6,
                readRatioToBare=ratio(theReads, [pair[1] for pair in bare]),
                spreadPercent=spreadPercent(appends),
            )


def _writeBeside(
    files: list[LocalFile], turns: int, write: Callable[[LocalFile, int], None]
) -> tuple[list[float], float]:
    """
    Write a small piece to all files in each turn, while a thread flushes them again and again.

    @return: the seconds of each write in this thread, and those of a flush of all files.
    """
    isOver = threading.Event()
    flushSeconds: list[float] = []

    def flush() -> None:
        while not isOver.is_set():
            began = time.perf_counter()
            for file in files:
                file.flush()
            flushSeconds.append(time.perf_counter() - began)

    flusher = threading.Thread(target=flush)
    writeSeconds: list[float] = []
    flusher.start()
    for turn in range(turns):
        for file in files:
            began = time.perf_counter()
            write(file, turn * len(_PIECE))
            writeSeconds.append(time.perf_counter() - began)
        time.sleep(_TURN_SECONDS)
    isOver.set()
    flusher.join()
    return writeSeconds, median(flushSeconds)


def measureFlushes(report: Report) -> None:
    """
    How long the thread of the reactor is held up by writing while other threads flush the same files, and how long if
    a thread of its own does all writing in order.
    """
    turns = 20 if report.quick else 300
    for count in PARTITION_COUNTS:
        for writer in ("reactor", "ordered thread"):
            with TemporaryDirectory(prefix="admission-benchmark-") as directory, ThreadPoolExecutor(1) as thread:
                files = [LocalDisk().open(os.path.join(directory, str(number)), create=True) for number in range(count)]

                def direct(file: LocalFile, position: int) -> None:
                    file.write([_PIECE], position)

                def ordered(file: LocalFile, position: int, thread: ThreadPoolExecutor = thread) -> None:
                    thread.submit(file.write, [_PIECE], position)

                write = direct if writer == "reactor" else ordered
                seconds, flushSeconds = _writeBeside(files, turns, write)
                thread.shutdown()
                for file in files:
                    file.close()
            seconds.sort()
            report.add(
                "flushes",
                partitions=count,
                writer=writer,
                flushMilliseconds=flushSeconds * 1e3,
                writeP50Microseconds=seconds[len(seconds) // 2] * 1e6,
                writeP99Microseconds=seconds[len(seconds) * 99 // 100] * 1e6,
                writeMaxMicroseconds=seconds[-1] * 1e6,
            )


_START = """
import resource, sys, time
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from admission.kafka.broker.log.segmentlog import SegmentLog

def residentBytes():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

before, started = residentBytes(), time.perf_counter()
log = SegmentLog(sys.argv[1], Clock(), time.time, maybeDeferred, retentionSeconds=None, maxPartitions=100_000)
seconds, memoryBytes = time.perf_counter() - started, residentBytes() - before
print(seconds, memoryBytes, sum(len(each.partitions) for each in log.topics.values()))
"""


def _start(path: str) -> tuple[float, int, int]:
    """
    Open a log in a process of its own.

    @return: the seconds that it took, the memory that it needs, the number of its partitions.
    """
    # A broker has flushed what is older than a second.
    os.sync()
    printed = subprocess.run([sys.executable, "-c", _START, path], check=True, capture_output=True, text=True).stdout
    seconds, memoryBytes, partitions = printed.split()
    return float(seconds), int(memoryBytes), int(partitions)


def measureStarts(report: Report) -> None:
    """
    Starts after a kill with large active segments, and with many partitions that nobody uses.
    """
    sizeBytes = 64 * MIB if report.quick else 1024 * MIB
    partitionCount = 1000 if report.quick else 20_000
    with TemporaryDirectory(prefix="admission-benchmark-") as directory:
        clock = Clock()
        path = os.path.join(directory, "killed")
        log = openLog(path, clock)
        partitions = log.createTopic(TOPIC, 16, {}).partitions
        batch = batchOf(16 * KIB)
        header = readBatch(batch)
        for number in range(sizeBytes // len(batch)):
            log.append(partitions[number % 16], batch, header)
            if number % 64 == 63:
                clock.advance(0)
        clock.advance(0)
        shutil.copytree(path, f"{path}-again", ignore=shutil.ignore_patterns("*.index", "broker.lock"))
        log.close()
        seconds, _, _ = _start(f"{path}-again")
        report.add("starts", what="killed", partitions=16, segmentBytes=sizeBytes, seconds=seconds, partitionBytes=0)

        for what, isUsed in (("empty", False), ("used once", True)):
            path = os.path.join(directory, what)
            log = openLog(path, clock)
            for number in range(partitionCount // 100):
                topic = log.createTopic(f"{TOPIC}{number}", 100, {})
                for partition in topic.partitions if isUsed else ():
                    log.append(partition, batch, header)
                # Flushed, so that the next may be appended to.
                clock.advance(1)
            log.close()
            del log
            gc.collect()
            base = _start(os.path.join(directory, "nothing"))[1]
            seconds, memoryBytes, count = _start(path)
            report.add(
                "starts",
                what=what,
                partitions=count,
                segmentBytes=len(batch) if isUsed else 0,
                seconds=seconds,
                partitionBytes=(memoryBytes - base) // count,
            )


def measure(report: Report) -> None:
    """
    Everything.
    """
    measureEngines(report)
    measureFlushes(report)
    measureStarts(report)


if __name__ == "__main__":
    run(
        "CPU time for each batch appended and each MiB read; writing beside flushes; starts",
        "What the record log costs.",
        measure,
    )

# -*- test-case-name: tests.offline.test_parquetexporter -*-
"""
Sealing: segments become Parquet files, and the oldest files are removed to keep the bound::

    python -m admission_plugins.sealing DIRECTORY CAP_BYTES

L{admission_plugins.parquetexporter} runs that in a process of its own: beside a reactor in the same process it would
hold the interpreter for tens of milliseconds, and Arrow's memory would be the server's.

A segment is removed once all its files are on the disk under their names, which follow from its own name. So an
interrupted process leaves a segment that is sealed again into the same files: nothing is lost or duplicated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute as pc, parquet as pq

from admission.recording.arrow import arrowTable
from admission.recording.schema import LIMITS, Table
from admission.recording.segmentheader import DamagedSegment
from admission.recording.segments import UNFINISHED_SUFFIX, Segment, lockAbandoned, segmentPaths
from admission.recording.tables import TABLES

from .sealreport import SEGMENTS, SEGMENTS_SHARE, SealReport

DAMAGED_SUFFIX = ".damaged"
"""The suffix of a segment that cannot be read."""

_HOUR = 3_600_000_000
_FIRST_HOUR, _LAST_HOUR = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) // 3600 for year in (1, 9999))
_NICENESS = 10


def sealAll(directory: str | Path, capBytes: int) -> SealReport:
    """
    Seal every segment that no process writes, then keep the bound.

    @param directory: the directory of C{--export spark:DIRECTORY}.
    @param capBytes: the maximum size of everything in it.
    """
    report = SealReport()
    problems: list[str] = []
    root = Path(directory)
    for path in segmentPaths(root / SEGMENTS):
        name = os.path.basename(path)
        try:
            fileno = lockAbandoned(path)
        except OSError as error:
            # It may belong to another user and be unreadable; the others can be sealed.
            problems.append(f"{name} cannot be sealed now: {error}")
            continue
        if fileno is None:
            continue
        try:
            rows = sealSegment(root, path)
            report.sealedRows += rows
            report.sealedSegments += bool(rows)
        except DamagedSegment as error:
            os.rename(path, path + DAMAGED_SUFFIX)
            problems.append(f"{name} is set aside: {error}")
        except Exception as error:
            problems.append(f"{name} cannot be sealed now: {error}")
        finally:
            os.close(fileno)
    report.problems = problems
    evict(root, capBytes, report)
    return report


def sealSegment(root: Path, path: str) -> int:
    """
    Make Parquet files of one segment, and remove it.

    @param root: the parent of the tables' directories.
    @return: how many rows it had.
    @raise DamagedSegment: if it cannot be read.
    """
    rows = 0
    for table, hour, part in _partsOf(path):
        rows += part.num_rows
        _write(root / table.name, hour, Path(path).stem, part)
    os.unlink(path)
    return rows


def _partsOf(path: str) -> Sequence[tuple[Table, int, pa.Table]]:
    """
    The content of a segment: by table and by the hour's beginning, in seconds.
    """
    if path.endswith(UNFINISHED_SUFFIX):
        return []
    try:
        segment = Segment.load(path)
        if segment is None:
            return []
        tables = [(table, arrowTable(segment, table)) for table in TABLES]
        return [
            (table, hour, part)
            for table, found in tables
            if found is not None
            for hour, part in _byHour(found, segment)
        ]
    except (OSError, MemoryError, DamagedSegment):
        raise
    except Exception as error:
        raise DamagedSegment(f"what it says of itself makes no sense: {error}") from error


def _byHour(found: pa.Table, segment: Segment) -> Iterator[tuple[int, pa.Table]]:
    """
    Split a table by hour: the beginning of the hour in seconds since the epoch, and its rows.
    """
    begun = int(segment.header.wallSeconds * 1e6)
    moments = pc.fill_null(found["ts"].cast(pa.int64()), begun).to_numpy()
    hours = moments // _HOUR
    if hours.size and not _FIRST_HOUR <= hours.min() <= hours.max() <= _LAST_HOUR:
        raise DamagedSegment("it has records of years that no calendar has")
    for hour in np.unique(hours):
        yield int(hour) * 3600, found.filter(pa.array(hours == hour))


def _write(directory: Path, hour: int, name: str, part: pa.Table) -> None:
    moment = datetime.fromtimestamp(hour, UTC)
    partition = directory / f"dt={moment:%Y-%m-%d}" / f"hour={moment:%H}"
    partition.mkdir(parents=True, exist_ok=True)
    # Spark ignores names that begin with a dot.
    unfinished = partition / f".{name}.parquet.tmp"
    try:
        with open(unfinished, "wb") as file:
            pq.write_table(part, file, compression="zstd", compression_level=1, write_page_checksum=True)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(partition / f"{name}.parquet")
    finally:
        unfinished.unlink(missing_ok=True)
    _sync(partition)


def _sync(directory: Path) -> None:
    fileno = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fileno)
    finally:
        os.close(fileno)


def evict(root: Path, capBytes: int, report: SealReport) -> None:
    """
    Remove the oldest files until Parquet files, and segments with their share, are within the bound. Limits are removed
    last: every replay needs them. Other files in the directory are not ours, and another process that records to it may
    remove files at the same time.

    @param report: counts the removed and the remaining files.
    """
    files: list[tuple[bool, str, int, Path, int]] = []
    for table in TABLES:
        for path in (root / table.name).glob("dt=*/hour=*/*.parquet"):
            with suppress(FileNotFoundError):
                status = path.stat()
                partition = "/".join(path.relative_to(root).parts[1:-1])
                files.append((table is LIMITS, partition, status.st_mtime_ns, path, status.st_size))
    for path in (root / SEGMENTS).glob("*" + DAMAGED_SUFFIX):
        with suppress(FileNotFoundError):
            status = path.stat()
            files.append((False, "", status.st_mtime_ns, path, status.st_size))
    heldBytes = sum(sizeBytes for *_, sizeBytes in files)
    for *_, path, sizeBytes in sorted(files):
        if heldBytes <= capBytes - capBytes // SEGMENTS_SHARE:
            break
        path.unlink(missing_ok=True)
        heldBytes -= sizeBytes
        report.evictedFiles += 1
        report.evictedBytes += sizeBytes
        for emptied in (path.parent, path.parent.parent):
            if emptied.name != SEGMENTS:
                # It stays if it is not empty.
                with suppress(OSError):
                    emptied.rmdir()
    report.sealedBytes = heldBytes


def main(arguments: Sequence[str]) -> None:
    """
    Seal, at a low priority, and print the report as JSON.
    """
    directory, capBytes = arguments
    os.nice(_NICENESS)
    pa.set_cpu_count(1)
    sys.stdout.write(sealAll(directory, int(capBytes)).toJson() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Small recordings, made as a server makes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

from pyarrow import parquet

from admission.recording.events import Event, Origin
from admission.recording.segmentheader import Header
from admission.recording.segments import SUFFIX, SegmentWriter
from admission_plugins.sealing import sealSegment
from admission_plugins.sealreport import SEGMENTS

WALL_SECONDS = 1_700_000_000.0
"""2023-11-14T22:13:20, UTC."""

SEGMENT_BYTES = 4 << 20

ORIGIN = Origin("0", "boot")


def writeRecording(
    directory: str | Path,
    events: Iterable[Event],
    origin: Origin = ORIGIN,
    isSealed: bool = True,
    wallSeconds: float = WALL_SECONDS,
    firstNumber: int | None = None,
) -> list[str]:
    """
    Record C{events} in their order, besides what is in C{directory} already,
    be it of the same process.  Those without a number are given that of their
    place, from 1.

    @param directory: what C{--export spark:DIRECTORY} would name; made if need be.
    @param isSealed: whether they become Parquet; else the segments are left
        as by a process that was killed.
    @param wallSeconds: when the events' clock was at zero, in seconds since
        the epoch.
    @param firstNumber: of the first segment, if what came before it may have
        been removed: a process never gives a number twice.
    @return: the segments' names without their suffix, which the Parquet files
        have, too.
    """
    root = Path(directory)
    root.joinpath(SEGMENTS).mkdir(parents=True, exist_ok=True)
    taken = {path.name.partition(".")[0] for path in root.rglob(f"{origin.bootId}-*")}
    number = (
        max((int(name.rpartition("-")[2]) for name in taken), default=0) if firstNumber is None else firstNumber - 1
    )
    written: list[SegmentWriter] = []

    def begin() -> SegmentWriter:
        place = number + len(written) + 1
        path = root / SEGMENTS / f"{origin.bootId}-{place:06d}{SUFFIX}"
        segment = SegmentWriter(str(path), SEGMENT_BYTES)
        segment.begin(Header(origin, place, 0.0, wallSeconds))
        written.append(segment)
        return segment

    segment = begin()
    for place, event in enumerate(events, 1):
        event.seq = event.seq or place
        if not segment.append(event):
            segment = begin()
            segment.append(event)
    for each in written:
        each.close()
        if isSealed and each.recordCount:
            sealSegment(root, each.path)
    return [Path(each.path).stem for each in written if each.recordCount]


def noisy(path: Path, column: str) -> None:
    """Put 4 KiB of noise into the middle of a column of a Parquet file, which stays as long as it is."""
    group = parquet.read_metadata(path).row_group(0)
    [chunk] = [each for each in map(group.column, range(group.num_columns)) if each.path_in_schema == column]
    begin = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
    middle = begin + chunk.total_compressed_size // 2
    contents = bytearray(path.read_bytes())
    contents[middle - 2048 : middle + 2048] = Random(1).randbytes(4096)
    path.write_bytes(contents)

"""
Recordings to measure the offline jobs on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import rmtree

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from attrs import frozen

from admission.offline.population import Population
from admission.offline.syntheticserver import SyntheticServer, recordSynthetic
from admission.recording.tables import REQUESTS, TABLES

from .measure import cpuSeconds, progress

QUOTA = "client-bytes:produce=128KiB:fetch=256KiB"
"""The policy in force."""

_REQUESTS_PER_SECOND = 300
_MIN_SECONDS = 10.0
_PARQUET = "*.parquet"


@frozen
class SyntheticRecording:
    """
    A recording of a server that does not exist, or several copies of it, each as another run.

    @ivar directory: where it is.
    @ivar copies: how many runs there are.
    @ivar cpuSeconds: what it took to make it; 0 if it was there already.
    """

    directory: Path
    copies: int
    cpuSeconds: float

    def files(self, table: str = REQUESTS.name) -> list[Path]:
        """
        The files of a table.
        """
        return sorted((self.directory / table).rglob(_PARQUET))

    def rowCount(self) -> int:
        """
        How many requests were recorded.
        """
        return sum(pq.read_metadata(path).num_rows for path in self.files())

    def sizeBytes(self) -> int:
        """
        How large the files of the requests are.
        """
        return sum(path.stat().st_size for path in self.files())

    def batches(self, columns: Sequence[str], batchRows: int) -> Iterator[pa.RecordBatch]:
        """
        Some columns of the requests, in batches as large as those that Spark hands to Python.
        """
        for path in self.files():
            file = pq.ParquetFile(path, page_checksum_verification=True)
            for batch in file.iter_batches(batch_size=batchRows, columns=[*columns]):
                arrays = [
                    each.dictionary_decode() if pa.types.is_dictionary(each.type) else each
                    for each in batch.select([*columns]).columns
                ]
                yield pa.record_batch(arrays, [*columns])


def synthesize(root: Path, requests: int) -> SyntheticRecording:
    """
    Have clients send about C{requests} requests; about, because some are throttled.

    @param root: where recordings are kept; what is there already is not made again.
    """
    directory = root / f"synthetic-{requests}"
    if directory.exists():
        return SyntheticRecording(directory, 1, 0.0)
    progress(f"making up {requests:,} requests")
    started, unfinished = cpuSeconds(), _emptied(directory)
    population = Population(seconds=max(requests / _REQUESTS_PER_SECOND, _MIN_SECONDS), requests=requests)
    recordSynthetic(unfinished, SyntheticServer(population, [QUOTA]))
    unfinished.rename(directory)
    return SyntheticRecording(directory, 1, cpuSeconds() - started)


def copied(recording: SyntheticRecording, copies: int) -> SyntheticRecording:
    """
    The same recording several times under different boot ids.

    @param recording: of one run.
    """
    directory = recording.directory.with_name(f"{recording.directory.name}-times-{copies}")
    if directory.exists():
        return SyntheticRecording(directory, copies, 0.0)
    progress(f"copying a recording {copies} times")
    started, unfinished = cpuSeconds(), _emptied(directory)
    for table in TABLES:
        for path in recording.files(table.name):
            rows = pq.read_table(path, partitioning=None)
            number = path.name.rpartition("-")[2]
            place = rows.schema.get_field_index("boot_id")
            for copy in range(copies):
                bootId = f"{rows['boot_id'][0].as_py()}-{copy:02}"
                column = pa.repeat(pa.scalar(bootId), len(rows)).cast(rows.schema.types[place])
                target = unfinished / path.relative_to(recording.directory).with_name(f"{bootId}-{number}")
                target.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(rows.set_column(place, rows.schema.field(place), column), target, compression="zstd")
    unfinished.rename(directory)
    return SyntheticRecording(directory, copies, cpuSeconds() - started)


def _emptied(directory: Path) -> Path:
    """
    Where to write what is called C{directory} when it is whole.
    """
    unfinished = directory.with_name(f".{directory.name}.unfinished")
    rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    return unfinished

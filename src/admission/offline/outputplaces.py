# -*- test-case-name: tests.offline.test_outputplaces -*-
"""
Results in other storage: they are made in a directory of this machine, which begins and ends as a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..recording.places import StorageFailed, isRemote, namesIn, readWhole, removeFile, writeFile
from .evaluation import EVALUATION
from .failures import JobFailed, OutputError
from .outputtables import OUTPUTS
from .report.writing import REPORT

RESULT_FILES = frozenset(
    [EVALUATION, REPORT, *(f"{table.name}.{suffix}" for table in OUTPUTS for suffix in ("parquet", "csv"))]
)

_TRIED = ".admission-tried"

MAX_RESULT_BYTES = 1 << 30
"""The largest file that is brought back from other storage, in bytes."""


@contextmanager
def resultsIn(out: str) -> Iterator[str]:
    """
    The directory of this machine in which to make the results of C{out}.  Results in other storage are fetched first,
    and replaced in the end unless something fails.  Other files there stay as they are.

    @param out: a path, or a URL.
    @raise OutputError: if the storage cannot be read or written.
    """
    if not isRemote(out):
        yield out
        return
    with TemporaryDirectory(prefix="admission-results-") as scratch:
        directory = Path(scratch)
        try:
            # What is refused is better known now than when all work is done.
            writeFile(f"{out}/{_TRIED}", b"")
            removeFile(f"{out}/{_TRIED}")
            former = RESULT_FILES & namesIn(out)
            for name in former:
                content = readWhole(f"{out}/{name}", MAX_RESULT_BYTES)
                directory.joinpath(name).write_bytes(content)
            yield scratch
            made = RESULT_FILES & {path.name for path in directory.iterdir()}
            for name in sorted(made):
                writeFile(f"{out}/{name}", directory.joinpath(name).read_bytes())
            for name in sorted(former - made):
                removeFile(f"{out}/{name}")
        except StorageFailed as error:
            raise OutputError(str(error)) from error
        except JobFailed as error:
            raise type(error)(str(error).replace(scratch, out)) from error

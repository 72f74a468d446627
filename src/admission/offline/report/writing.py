# -*- test-case-name: tests.offline.test_report -*-
"""
Writes the report: one page, made only from the results in a directory.
"""

from __future__ import annotations

from pathlib import Path

from admission.extras import lacking

from ..evaluation import replacing
from ..failures import ReportError

REPORT = "report.html"

_NEEDED = ("pyarrow", "numpy", "matplotlib")


def writeReport(outDirectory: str | Path, name: str = "") -> Path:
    """
    Write the report on the offline jobs' results in a directory, into that directory.  The same results make the same
    bytes.  It needs no Spark.

    @param outDirectory: the jobs' C{--out}; for its content see L{admission.offline.report.resultfiles}.
    @param name: what its user calls that directory, if that is not its path.
    @return: the page, which needs no other file except for its links to results.
    @raise ReportError: if there is nothing to report on, it cannot be read, or the page cannot be written.
    """
    if lack := lacking("the report", *_NEEDED):
        raise ReportError(lack)
    from .reportpage import pageOf
    from .resultfiles import Results

    text = pageOf(Results.open(outDirectory, name))
    path = Path(outDirectory) / REPORT
    try:
        with replacing(path) as unfinished:
            unfinished.write_text(text, "utf-8")
    except OSError as error:
        raise ReportError(f"the report cannot be written to {path}: {error}") from error
    return path

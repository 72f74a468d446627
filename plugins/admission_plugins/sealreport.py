# -*- test-case-name: tests.offline.test_parquetexporter -*-
"""
The interface between the process that seals and the one that records.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from attrs import asdict, define

SEGMENTS = "_segments"
"""The directory of segments beside those of the tables; Spark ignores such a name."""

SEGMENTS_SHARE = 4
"""Segments have a quarter of the bound, Parquet files the rest."""


@define
class SealReport:
    """
    One pass over all segments that no process writes any more.

    @ivar sealedSegments: how many have become Parquet.
    @ivar sealedRows: their number of rows.
    @ivar sealedBytes: the size of all Parquet files now.
    @ivar evictedFiles: how many of the oldest were removed to keep the bound.
    @ivar evictedBytes: their size.
    @ivar problems: which segments could not be sealed, and why.
    """

    sealedSegments: int = 0
    sealedRows: int = 0
    sealedBytes: int = 0
    evictedFiles: int = 0
    evictedBytes: int = 0
    problems: Sequence[str] = ()

    def toJson(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def fromJson(cls, line: str) -> SealReport:
        return cls(**json.loads(line))

# -*- test-case-name: tests.offline.test_report -*-
"""
The input of the report: the offline jobs' results, L{admission.offline.outputs} and C{evaluation.json}.  The report
names missing ones.

A table is a file C{NAME.parquet}, or a directory C{NAME} of such files, with C{NAME.csv} beside or in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
from attrs import field, frozen
from pyarrow import compute as pc, parquet

from ..evaluation import EVALUATION, readEvaluation
from ..failures import ReportError

Row = dict[str, Any]

_Kind = TypeVar("_Kind")


@frozen
class ResultFile:
    """
    A table on disk.

    @ivar name: its name.
    @ivar rows: the number of rows.
    @ivar parquet: its Parquet, relative to the directory of the results.
    @ivar csv: its CSV, likewise; L{None} if there is none.
    """

    name: str
    rows: int
    parquet: str
    csv: str | None


@frozen
class Results:
    """
    A directory of results.

    @ivar directory: its path.
    @ivar evaluation: the content of C{evaluation.json}; empty if it is missing.
    @ivar name: what its user calls it, if that is not its path.
    """

    directory: Path
    evaluation: Mapping[str, Any] = field(factory=dict)
    name: str = ""

    @classmethod
    def open(cls, directory: str | Path, name: str = "") -> Results:
        """
        Open a directory.

        @param name: what its user calls it, if that is not its path.
        @raise ReportError: if there are no results in it, or C{evaluation.json} cannot be read.
        """
        root = Path(directory)
        path = root / EVALUATION
        try:
            evaluation = readEvaluation(path)
        except (OSError, ValueError) as error:
            raise ReportError(f"{path} cannot be read: {error}; evaluate the recording again") from error
        results = cls(root, evaluation, name)
        if not evaluation and next(results.files(), None) is None:
            raise ReportError(f"there are no results in {root}; 'admission evaluate' makes some with --out {root}")
        return results

    def files(self) -> Iterator[ResultFile]:
        """
        All existing tables, by name.

        @raise ReportError: if one cannot be read.
        """
        names = {path.stem for path in self.directory.glob("[!._]*.parquet")}
        names |= {path.parent.name for path in self.directory.glob("[!._]*/[!._]*.parquet")}
        for name in sorted(names):
            paths = self._paths(name)
            try:
                rows = sum(parquet.read_metadata(path).num_rows for path in paths)
            except (OSError, pa.ArrowException) as error:
                raise self._unreadable(name, error) from error
            place = paths[0] if len(paths) == 1 else paths[0].parent
            csvs = [each for each in (place.with_suffix(".csv"), place / f"{name}.csv") if each.is_file()]
            csv = csvs[0].relative_to(self.directory).as_posix() if csvs else None
            yield ResultFile(name, rows, place.relative_to(self.directory).as_posix(), csv)

    def table(self, name: str, columns: Sequence[str]) -> pa.Table | None:
        """
        Some columns of a table, which is held in memory: of one without rows for each client and time.

        @return: L{None} if there is no such table.
        @raise ReportError: if it cannot be read, or lacks one of the columns.
        """
        paths = self._paths(name)
        if not paths:
            return None
        try:
            tables = []
            for path in paths:
                with parquet.ParquetFile(path, page_checksum_verification=True) as file:
                    missing = [column for column in columns if column not in file.schema_arrow.names]
                    if missing:
                        raise ReportError(
                            f"{path} has no column {missing[0]}; evaluate the recording again with this version"
                        )
                    tables.append(file.read(columns=list(columns)).select(list(columns)))
            return pa.concat_tables(tables, promote_options="permissive")
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(name, error) from error

    def rows(self, name: str, columns: Sequence[str], **wanted: str) -> list[Row] | None:
        """
        Some columns of a small table, as Python objects.

        @param wanted: column values that rows must have.
        @return: L{None} if there is no such table.
        @raise ReportError: see L{table}.
        """
        table = self.table(name, columns)
        return None if table is None else only(table, **wanted).to_pylist()

    def says(self, name: str, kind: type[_Kind]) -> _Kind | None:
        """
        The value in C{evaluation.json}, if it is there and of this type.
        """
        value = self.evaluation.get(name)
        return value if isinstance(value, kind) else None

    def objects(self, name: str) -> list[Mapping[str, Any]]:
        """
        The objects in a list in C{evaluation.json}; none if it is not there.
        """
        return [each for each in self.says(name, list) or () if isinstance(each, Mapping)]

    def _paths(self, name: str) -> list[Path]:
        single = self.directory / f"{name}.parquet"
        return [single] if single.is_file() else sorted((self.directory / name).glob("[!._]*.parquet"))

    def _unreadable(self, name: str, error: Exception) -> ReportError:
        return ReportError(f"{name} in {self.directory} cannot be read ({error}); evaluate the recording again")


def only(table: pa.Table, **wanted: str) -> pa.Table:
    """
    The rows in which columns have these values.
    """
    for name, value in wanted.items():
        table = table.filter(pc.equal(table[name].cast(pa.string()), value))
    return table


def grouped(table: pa.Table, by: Sequence[str], sums: Sequence[str], most: Sequence[str] = ()) -> pa.Table:
    """
    Group rows and add them up.

    @param by: the grouping columns.
    @param sums: columns to add.
    @param most: columns of which the largest is wanted.
    @return: these columns only, ordered by the first of them.
    """
    wanted = [*((name, "sum") for name in sums), *((name, "max") for name in most)]
    added = table.group_by(list(by)).aggregate(wanted).select([*by, *(f"{name}_{how}" for name, how in wanted)])
    return added.rename_columns([*by, *sums, *most]).sort_by([(name, "ascending") for name in by])

# -*- test-case-name: tests.offline.test_pseudonyms -*-
"""
Names in recordings are replaced by pseudonyms: the same name always by the same one, for as long as the key is the
same.  So what is counted, compared and replayed by name has the same numbers.

Text that is not known to be harmless is taken for a name.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute as pc, parquet as pq

from ..boundedfile import readBounded
from ..interfaces import DEFAULT
from ..recording.eventof import NO_MEMORY, OVER_QUOTA
from ..recording.schema import OVERFLOW
from ..recording.sharedusage import TOLD_BY

SHORTEST_KEY_BYTES: Final = 16
LONGEST_KEY_BYTES: Final = 64 << 10

KINDS: Mapping[str, str] = {
    "principal": "user",
    "user": "user",
    "changed_by": "user",
    "client_id": "client",
    "peer": "address",
    "ip": "address",
    "group_id": "group",
    "reason": "reason",
    "entity": "entity",
}
"""What pseudonyms begin with, by the column; C{name} in others."""

HARMLESS: Final = frozenset(
    (
        "broker_id",
        "boot_id",
        "listener",
        "kind",
        "decision",
        "policy",
        "policy_names",
        "policy_descriptions",
        "pool_description",
        "refusal",
        "method",
        "state",
        "limit_name",
        "sensor",
    )
)
"""Columns of texts that the server or its operator chose, from a few."""

_KEPT: Final = frozenset(("", DEFAULT, OVERFLOW, "ANONYMOUS", TOLD_BY, NO_MEMORY, OVER_QUOTA))
"""Texts that are nobody's name; replays know them."""

_OUR_ENTITIES: Final = frozenset(("LedgerBytes", "RequestSeconds", "ConnectionsMuted", "ExportDroppedEvents"))
"""Sensors whose entities are words of the server."""

_DIGITS: Final = 16


class KeyRefused(Exception):
    """
    A file is no key; the message is a sentence with the remedy.
    """


class DamagedFile(Exception):
    """
    A Parquet file cannot be read; the message says why.
    """


def readKey(path: str) -> bytes:
    """
    @raise KeyRefused: if the file cannot be read, or is too short or too long for a key.
    """
    try:
        key = readBounded(path, LONGEST_KEY_BYTES)
    except OSError as error:
        raise KeyRefused(f"{path} cannot be read: {error.strerror}") from error
    if len(key.strip()) < SHORTEST_KEY_BYTES:
        raise KeyRefused(
            f"{path} is too short for a key, whose names could be found by trying: it needs {SHORTEST_KEY_BYTES} bytes,"
            f" as head -c 32 /dev/urandom > {path} writes them"
        )
    return key


class Pseudonyms:
    """
    Replaces names by keyed hashes.

    @ivar fingerprint: tells this key from others, and nothing about it.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.fingerprint = self._digest("\0fingerprint")

    def of(self, kind: str, name: str) -> str:
        """
        The pseudonym of a name.
        """
        return name if name in _KEPT else f"{kind}-{self._digest(name)}"

    def rewritten(self, content: bytes) -> bytes:
        """
        A Parquet file without names: the same bytes each time.

        @raise DamagedFile: if it is none, or damaged.
        """
        try:
            table = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read(use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise DamagedFile(next(iter(str(error).splitlines()), "it is no Parquet file")) from error
        columns = {name: self._column(name, table) for name in table.column_names}
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), sink, compression="zstd", compression_level=1, write_page_checksum=True)
        written: bytes = sink.getvalue().to_pybytes()
        return written

    def _column(self, name: str, table: Any) -> Any:
        column = table.column(name)
        type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_string(type) or pa.types.is_large_string(type):
            # Its dictionary has all texts of the segment, also those of other columns.
            texts = column.cast(pa.string()).combine_chunks().dictionary_encode()
            if name in HARMLESS:
                return texts
            replaced = self._replaced(KINDS.get(name, "name"), texts)
            if name == "entity" and "sensor" in table.column_names:
                isOurs = pc.is_in(table.column("sensor").cast(pa.string()), value_set=pa.array(sorted(_OUR_ENTITIES)))
                chosen = pc.if_else(isOurs, column.cast(pa.string()), replaced.cast(pa.string()))
                return chosen.combine_chunks().dictionary_encode()
            return replaced
        if name in HARMLESS or _isNumeric(type):
            return column
        # Of a driver that is not installed here, in a form that ours do not have.
        return pa.nulls(len(column), column.type)

    def _replaced(self, kind: str, texts: Any) -> Any:
        names = pa.array([self.of(kind, text) for text in texts.dictionary.to_pylist()], pa.string())
        return pa.DictionaryArray.from_arrays(texts.indices, names)

    def _digest(self, text: str) -> str:
        return hmac.digest(self._key, text.encode("utf-8", "surrogatepass"), "sha256").hex()[:_DIGITS]


def _isNumeric(type: Any) -> bool:
    item = type.value_type if pa.types.is_list(type) else type
    return bool(pa.types.is_primitive(item))

# -*- test-case-name: tests.unit.kafka.storage.test_storedtable -*-
"""
Tables of small facts, in the documents of the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from zope.interface import implementer

from .documents import Documents
from .groupcommit import GroupCommit
from .itable import LONGEST_KEY_BYTES, ITable

_NAME: Final = re.compile("[a-z]+")


@implementer(ITable)
class Table:
    """
    L{ITable} by its name in the documents.
    """

    def __init__(self, documents: Documents, commits: GroupCommit, name: str, isFlushed: bool) -> None:
        """
        @raise ValueError: for a name of other characters than C{a} to C{z}.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"a table cannot be called {name!r}, only by letters from a to z")
        self._documents = documents
        self._commits = commits
        self._name = name
        self._isFlushed = isFlushed

    def get(self, key: bytes) -> bytes | None:
        return self._documents.tables.get(self._name, {}).get(key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(self._documents.tables.get(self._name, {}).items()))

    def put(self, key: bytes, value: bytes) -> None:
        self._check(key)
        self._documents.put(self._name, key, value)
        self._commits.appended(len(key) + len(value))

    def delete(self, key: bytes) -> None:
        self._check(key)
        self._documents.delete(self._name, key)
        self._commits.appended(len(key))

    def _check(self, key: bytes) -> None:
        if not 1 <= len(key) <= LONGEST_KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes: it must have 1 to {LONGEST_KEY_BYTES}")
        self._commits.check()
        if self._isFlushed:
            self._documents.urge()

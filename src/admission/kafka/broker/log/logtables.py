# -*- test-case-name: tests.unit.kafka.broker.log.test_logtables -*-
"""
Tables of small facts, in the same storage as the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import lmdb
from zope.interface import implementer

from .groupcommit import GroupCommit
from .interface import LONGEST_KEY_BYTES, ITable, LogClosed, LogFailed
from .storage import Storage, explain

_NAME: Final = re.compile("[a-z]+")


@implementer(ITable)
class Table:
    """
    L{ITable} in a database of the log's environment.
    """

    def __init__(self, storage: Storage, commits: GroupCommit, database: lmdb._Database) -> None:
        self._storage = storage
        self._commits = commits
        self._database = database

    def get(self, key: bytes) -> bytes | None:
        _checkKey(key)
        with self._reading() as transaction:
            return transaction.get(key, db=self._database)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        with self._reading() as transaction:
            # The transaction may be over before the caller has seen them all.
            return iter(list(transaction.cursor(self._database)))

    def put(self, key: bytes, value: bytes) -> None:
        _checkKey(key)
        transaction = self._commits.open()
        try:
            transaction.put(key, value, db=self._database)
        except lmdb.Error as error:
            raise self._commits.lose(error) from error
        self._commits.appended(len(key) + len(value))

    def delete(self, key: bytes) -> None:
        _checkKey(key)
        transaction = self._commits.open()
        try:
            transaction.delete(key, db=self._database)
        except lmdb.Error as error:
            raise self._commits.lose(error) from error
        self._commits.appended(len(key))

    @contextmanager
    def _reading(self) -> Iterator[lmdb.Transaction[bytes]]:
        if self._commits.isClosed:
            raise LogClosed("the log is closed")
        try:
            if self._commits.transaction is not None:
                yield self._commits.transaction
            else:
                with self._storage.environment.begin() as transaction:
                    yield transaction
        except lmdb.Error as error:
            raise LogFailed(explain(error)) from error


class Tables:
    """
    The tables by name, made on demand.
    """

    def __init__(self, storage: Storage, commits: GroupCommit) -> None:
        self._storage = storage
        self._commits = commits
        self._tables: dict[str, Table] = {}

    def get(self, name: str) -> Table:
        if not _NAME.fullmatch(name):
            raise ValueError(f"a table cannot be called {name!r}, only by letters from a to z")
        if name not in self._tables:
            self._tables[name] = Table(self._storage, self._commits, self._open(name))
        return self._tables[name]

    def _open(self, name: str) -> lmdb._Database:
        if self._commits.isClosed:
            raise LogClosed("the log is closed")
        # Making a database takes a transaction of its own, and there can be only one.
        self._commits.flush()
        try:
            return self._storage.environment.open_db(b"table " + name.encode("ascii"))
        except lmdb.Error as error:
            raise LogFailed(explain(error)) from error


def _checkKey(key: bytes) -> None:
    if not 1 <= len(key) <= LONGEST_KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes: it must have 1 to {LONGEST_KEY_BYTES}")

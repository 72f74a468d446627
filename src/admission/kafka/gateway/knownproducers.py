# -*- test-case-name: tests.unit.kafka.gateway.test_knownproducers -*-
"""
The producers that a gateway has let through lately, so that a restart does not make all of them new.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from crc32c import crc32c
from twisted.internet.defer import Deferred, DeferredLock, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from admission.boundedfile import readBounded

from ..storage.flushing import DeferToThread
from ..storage.holdings import Holdings

MAX_PRODUCERS: Final = 100_000
"""How many are remembered; of users that have more than the mean, those that were used longest ago are forgotten."""

MAX_FILE_BYTES: Final = 64 << 20
"""The largest file that is read, in bytes: of as many producers, each of a user of its own with a name of 500 bytes."""

SAVED_SECONDS: Final = 60.0
"""How often what has changed is written to the disk."""

PRODUCER_BYTES: Final = 190
"""The memory that one producer takes, without its user's name (measured: 155 to 196)."""

_MAGIC: Final = b"admission producers 1\n"
_CHECKSUM_BYTES: Final = 4


class NotedProducers(Protocol):
    """
    Producers that were let through.

    @ivar sizeBytes: about how much memory they take.
    """

    @property
    def sizeBytes(self) -> int: ...

    def note(self, principal: str, producerIds: Iterable[int]) -> object:
        """
        Producers of a user were let through.
        """


class KnownProducers:
    """
    Pairs of a user and a producer id, in a file of their own.

    The file is replaced as a whole, by a new one that is on the disk already: a gateway that is killed finds the last
    whole one.  A damaged file is reported and begun anew, since the loss costs users no more than a part of their
    limit.
    """

    _log = Logger()

    def __init__(self, path: str | None, clock: IReactorTime, deferToThread: DeferToThread) -> None:
        """
        Read what is there.

        @param path: the file; L{None} to keep them in memory alone.
        """
        self._path = path
        self._deferToThread = deferToThread
        # A dict would have to search for its first key.
        self._known: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._holdings = Holdings()
        self._hasChanged = False
        self._saving = DeferredLock()
        self._saves = LoopingCall(self.save)
        self._saves.clock = clock
        self._load()

    def start(self) -> None:
        """
        Begin to write changes.
        """
        self._saves.start(SAVED_SECONDS, now=False).addErrback(
            lambda failure: self._log.failure("known producers are saved no more", failure)
        )

    def stop(self) -> Deferred[Any]:
        """
        Write what has changed.
        """
        if self._saves.running:
            self._saves.stop()
        return self.save()

    def note(self, principal: str, producerIds: Iterable[int]) -> list[int]:
        """
        Producers of a user were let through.

        @return: those that were not known.
        """
        known, new = self._known, []
        for producerId in producerIds:
            pair = principal, producerId
            if pair in known:
                known.move_to_end(pair)
            else:
                self._hasChanged = True
                self._holdings.add(principal, 1)
                new.append(producerId)
                known[pair] = None
        while len(known) > MAX_PRODUCERS:
            oldest, _ = known.popitem(last=False)
            if self._holdings.isAboveMean(oldest[0], MAX_PRODUCERS):
                self._holdings.add(oldest[0], -1)
            else:
                known[oldest] = None
        return new

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """
        The pairs in the order of their last use, the oldest first.
        """
        return iter(list(self._known))

    def __len__(self) -> int:
        return len(self._known)

    @property
    def sizeBytes(self) -> int:
        """
        About how much memory they take.
        """
        return len(self._known) * PRODUCER_BYTES

    def save(self) -> Deferred[Any]:
        """
        Write them, if there are new ones.
        """
        # Two writes at a time would both spoil the unfinished file.
        return self._saving.run(self._save)

    def _save(self) -> Deferred[Any]:
        if not self._hasChanged or self._path is None:
            return succeed(None)
        self._hasChanged = False
        return self._deferToThread(_write, self._path, list(self._known)).addErrback(self._notSaved)

    def _notSaved(self, failure: Any) -> None:
        self._hasChanged = True
        self._log.warn(
            "known producers cannot be saved to {path}: {reason}; after a restart they would count as new",
            path=self._path,
            reason=failure.getErrorMessage(),
        )

    def _load(self) -> None:
        if self._path is None:
            return
        try:
            content = readBounded(self._path, MAX_FILE_BYTES)
        except FileNotFoundError:
            return
        except OSError as error:
            self._log.warn("known producers cannot be read: {error}", error=error)
            return
        try:
            self._known = OrderedDict.fromkeys(_parsed(content))
            for principal, _ in self._known:
                self._holdings.add(principal, 1)
        except ValueError as error:
            self._log.warn(
                "{path} is damaged ({error}): producers count as new until they are known again",
                path=self._path,
                error=error,
            )


def _write(path: str, known: list[tuple[str, int]]) -> None:
    byUser: dict[str, list[int]] = {}
    for principal, producerId in known:
        byUser.setdefault(principal, []).append(producerId)
    body = json.dumps(byUser).encode("ascii")
    unfinished = f"{path}.tmp"
    with open(unfinished, "wb") as file:
        file.write(_MAGIC + crc32c(body).to_bytes(_CHECKSUM_BYTES, "big") + body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def _parsed(content: bytes) -> list[tuple[str, int]]:
    """
    @raise ValueError: if it is damaged.
    """
    begin = len(_MAGIC) + _CHECKSUM_BYTES
    if not content.startswith(_MAGIC):
        raise ValueError("it does not begin as it should")
    body = content[begin:]
    if crc32c(body) != int.from_bytes(content[len(_MAGIC) : begin], "big"):
        raise ValueError("its checksum is another")
    byUser: dict[str, list[int]] = json.loads(body)
    known = [(principal, producerId) for principal, producerIds in byUser.items() for producerId in producerIds]
    return known[-MAX_PRODUCERS:]

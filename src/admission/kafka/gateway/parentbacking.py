# -*- test-case-name: tests.unit.kafka.gateway.test_parentbacking -*-
"""
What one of several processes of a gateway keeps, and what it is told by the parent, which has the directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from attrs import frozen
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from admission.interfaces import IUsageExchange

from ..serving.kafkarequest import Address
from ..storage.itable import LONGEST_KEY_BYTES, CommitCallback, ITable, LogFailed
from .backing import KnownNodes
from .knownproducers import KnownProducers
from .nodes import FoundNode
from .processchannel import ProcessChannel, Word

INTERVAL_SECONDS: Final = 0.1
"""How often a process tells the others what its clients have taken, as gateways do; a shorter time costs more when
nothing happens, and this one bounds what clients may take too much by a tenth of a second for each process."""

_PARENT_LOST: Final = "the parent of this process is gone, which keeps limits"

TABLES: Final = ("quotas", "policies")
"""The names of the tables that are kept: limits for all processes, and what policies know for each of them."""


@frozen
class Begin:
    """
    What a process has to know to begin.

    @ivar tables: the contents of L{TABLES}, by their names.
    @ivar listeners: the descriptions of the ports whose sockets it has, in their order.
    @ivar gateways: how many gateways enforced limits together, as far as that was remembered.
    @ivar ownTopics: the topics that are closed to clients.
    """

    tables: Mapping[str, Collection[tuple[bytes, bytes]]]
    listeners: Sequence[str]
    gateways: int
    ownTopics: frozenset[str]

    def encoded(self) -> bytes:
        told = {
            "tables": {
                name: [(key.decode("latin-1"), value.decode("latin-1")) for key, value in rows]
                for name, rows in self.tables.items()
            },
            "listeners": [*self.listeners],
            "gateways": self.gateways,
            "ownTopics": [*self.ownTopics],
        }
        return json.dumps(told).encode()

    @classmethod
    def of(cls, encoded: bytes) -> Begin:
        told = json.loads(encoded)
        tables = {
            name: [(key.encode("latin-1"), value.encode("latin-1")) for key, value in rows]
            for name, rows in told["tables"].items()
        }
        return cls(tables, told["listeners"], told["gateways"], frozenset(told["ownTopics"]))


@implementer(ITable)
class CopiedTable:
    """
    A copy of a table that the parent keeps.
    """

    def __init__(self, rows: Collection[tuple[bytes, bytes]], changed: Callable[[bytes, bytes | None], object]) -> None:
        """
        @param changed: called with a key and its new value; L{None} if it has none any more.
        """
        self._rows = dict(rows)
        self._changed = changed
        # By key: the value before the first write that is not on the disk, and the flush that the last write belongs
        # to.
        self._unkept: dict[bytes, tuple[bytes | None, int]] = {}
        self._flushNumber = 1

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(self._rows.items()))

    def put(self, key: bytes, value: bytes) -> None:
        if not 1 <= len(key) <= LONGEST_KEY_BYTES:
            raise ValueError(f"a key has 1 to {LONGEST_KEY_BYTES} bytes, and not {len(key)}")
        self._wrote(key, self._rows.get(key))
        self._rows[key] = value
        self._changed(key, value)

    def delete(self, key: bytes) -> None:
        before = self._rows.pop(key, None)
        if before is not None:
            self._wrote(key, before)
            self._changed(key, None)

    def flushes(self, number: int) -> None:
        """
        What is written from now on belongs to the flush after C{number}.
        """
        self._flushNumber = number + 1

    def kept(self, number: int) -> None:
        """
        What was written up to a flush is on the disk.
        """
        self._unkept = {key: write for key, write in self._unkept.items() if write[1] > number}

    def revert(self) -> None:
        """
        Forget what is not on the disk: a store that fails takes nothing more.
        """
        unkept, self._unkept = self._unkept, {}
        for key, (before, _) in unkept.items():
            if before is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = before

    def _wrote(self, key: bytes, before: bytes | None) -> None:
        self._unkept[key] = self._unkept.get(key, (before, 0))[0], self._flushNumber


class ParentProducers:
    """
    The producers that any of the processes has let through; the parent is told of the new ones.
    """

    def __init__(self, known: KnownProducers, channel: ProcessChannel) -> None:
        self._known = known
        self._channel = channel

    @property
    def sizeBytes(self) -> int:
        return self._known.sizeBytes

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._known)

    def note(self, principal: str, producerIds: Iterable[int]) -> None:
        new = self._known.note(principal, producerIds)
        if new:
            self._channel.tell(Word.NOTED, (principal, new))

    def told(self, principal: str, producerIds: Iterable[int]) -> None:
        """
        The parent has told of producers.
        """
        self._known.note(principal, producerIds)


class ToldDiscovery:
    """
    What the parent has said last of the cluster.

    @ivar reachedSeconds: see L{Discovered<admission.kafka.gateway.backing.Discovered>}, as for C{lastError}.
    """

    reachedSeconds: float | None = None
    lastError: str | None = None


@implementer(IUsageExchange)
class ParentExchange:
    """
    Sends messages to the parent, which passes those of all processes to all, and knows whether other machines get them.
    """

    intervalSeconds = INTERVAL_SECONDS

    def __init__(self, channel: ProcessChannel) -> None:
        self._channel = channel
        self._deliver: Callable[[bytes, bool], object] = lambda message, isOld: None
        self.reason: str | None = None

    def start(self, deliver: Callable[[bytes, bool], object]) -> None:
        self._deliver = deliver

    def publish(self, message: bytes, isKept: bool, key: str | None = None) -> None:
        if key is not None:
            self._channel.send(Word.PUBLISH_KEYED, key.encode() + b"\0" + message)
        elif isKept:
            self._channel.send(Word.PUBLISH_KEPT, message)
        elif not self._channel.isBehind:
            # Usage that arrives late would be taken from the limits of a later time.
            self._channel.send(Word.PUBLISH, message)

    def delivered(self, message: bytes, isOld: bool) -> None:
        """
        The parent has a message for all.
        """
        self._deliver(message, isOld)

    def stop(self) -> Deferred[None]:
        self._deliver = lambda message, isOld: None
        return succeed(None)

    def trouble(self) -> str | None:
        return self.reason


class ParentBacking:
    """
    The L{Backing<admission.kafka.gateway.backing.Backing>} of one process of several.
    """

    def __init__(self, begin: Begin, known: KnownProducers, channel: ProcessChannel, clock: IReactorTime) -> None:
        """
        @param known: all that the parent knows.
        @param clock: monotonic.
        """
        self.known = ParentProducers(known, channel)
        self._channel = channel
        self._clock = clock
        self._tables = {name: CopiedTable(begin.tables.get(name, ()), partial(self._changed, name)) for name in TABLES}
        self._flushes: dict[int, CommitCallback] = {}
        self._flushCount = 0
        self._discovered = ToldDiscovery()
        self._nodes: KnownNodes | None = None
        self._exchange = ParentExchange(channel)
        self.gateways = begin.gateways
        self.ownTopics = begin.ownTopics

    def received(self, word: Word, payload: bytes) -> None:
        """
        The parent has sent a word that this object handles.
        """
        if word in (Word.DELIVER, Word.DELIVER_OLD):
            self._exchange.delivered(payload, word is Word.DELIVER_OLD)
        elif word is Word.TROUBLE:
            self._exchange.reason = json.loads(payload)
        elif word is Word.FLUSHED:
            number, reason = json.loads(payload)
            self._flushed(number, reason)
        elif word is Word.NOTED:
            self.known.told(*json.loads(payload))
        elif word is Word.NODES:
            self._learn(json.loads(payload))

    def parentLost(self) -> None:
        """
        The parent is gone, so nothing more can be kept.
        """
        for number in [*self._flushes]:
            self._flushed(number, _PARENT_LOST)

    def openStore(self, started: AsyncExitStack) -> ParentBacking:
        return self

    def discover(self, nodes: KnownNodes, started: AsyncExitStack) -> ToldDiscovery:
        self._nodes = nodes
        return self._discovered

    def makeExchange(self) -> IUsageExchange:
        return self._exchange

    def remember(self, gateways: int) -> None:
        self._channel.tell(Word.REMEMBER, gateways)

    # As a store of limits

    def table(self, name: str, isFlushed: bool = False) -> CopiedTable:
        return self._tables[name]

    def whenFlushed(self, callback: CommitCallback) -> None:
        if not self._channel.isOpen:
            callback(LogFailed(_PARENT_LOST))
            return
        self._flushCount += 1
        self._flushes[self._flushCount] = callback
        for table in self._tables.values():
            table.flushes(self._flushCount)
        self._channel.tell(Word.FLUSH, self._flushCount)

    def producers(self) -> Iterator[tuple[str, int]]:
        return iter(self.known)

    def _flushed(self, number: int, reason: str | None) -> None:
        for table in self._tables.values():
            if reason is None:
                table.kept(number)
            else:
                table.revert()
        self._flushes.pop(number)(None if reason is None else LogFailed(reason))

    def _changed(self, name: str, key: bytes, value: bytes | None) -> None:
        told = name, key.decode("latin-1"), None if value is None else value.decode("latin-1")
        self._channel.tell(Word.PUT, told)

    def _learn(self, told: Mapping[str, Any]) -> None:
        discovered, agoSeconds = self._discovered, told["reachedAgoSeconds"]
        if agoSeconds is not None:
            discovered.reachedSeconds = self._clock.seconds() - agoSeconds
        discovered.lastError = told["lastError"]
        if told["nodes"] and self._nodes is not None:
            self._nodes.learnAll([FoundNode(*each) for each in told["nodes"]])


def encodedNodes(nodes: Mapping[int, Address], reachedAgoSeconds: float | None, lastError: str | None) -> Any:
    """
    The payload of L{Word.NODES}.
    """
    return {
        "nodes": [(nodeId, *address) for nodeId, address in nodes.items()],
        "reachedAgoSeconds": reachedAgoSeconds,
        "lastError": lastError,
    }

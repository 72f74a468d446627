"""Tests for L{admission.kafka.gateway.parentbacking}, and for L{admission.kafka.gateway.usagerelay} behind it."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

from hypothesis import given, strategies as st
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from admission.interfaces import IUsageExchange, QuotaEntity, Taken
from admission.kafka.gateway.knownproducers import KnownProducers
from admission.kafka.gateway.parentbacking import Begin, ParentBacking, encodedNodes
from admission.kafka.gateway.processchannel import ProcessChannel, Word
from admission.kafka.gateway.usagerelay import TROUBLE_SECONDS, UsageRelay
from admission.kafka.serving.kafkarequest import Address
from admission.kafka.storage.itable import ITable, LogFailed
from admission.shares.usagemessages import SetLimits, UsageMessage
from admission.testing.scriptedexchange import ScriptedExchange, ScriptedLine

LIMITED = QuotaEntity(clientId="alice")


class Line(StringTransport):
    """A transport that delivers at once to the other end, unless that is held."""

    other: ProcessChannel
    isHeld = False

    def write(self, data: bytes) -> None:
        super().write(data)
        if not self.isHeld:
            self.deliver()

    def deliver(self) -> None:
        """What was written arrives."""
        data = self.value()
        self.clear()
        if data:
            self.other.dataReceived(data)


class OneOfSeveral:
    """A process, and what its parent does with what it says."""

    def __init__(self, relay: UsageRelay, clock: Clock, begin: Begin) -> None:
        self.heard: list[tuple[bytes, bool]] = []
        self.puts: list[Any] = []
        self.flushes: list[int] = []
        self.remembered: list[int] = []
        self.noted: list[Any] = []
        self._relay = relay
        self.parents = ProcessChannel(self._said)
        self.channel = ProcessChannel(lambda word, payload: self.backing.received(word, payload))
        self.backing = ParentBacking(begin, KnownProducers(None, clock, maybeDeferred), self.channel, clock)
        self.lines = Line(), Line()
        self.lines[0].other, self.lines[1].other = self.channel, self.parents
        self.channel.makeConnection(self.lines[1])
        self.parents.makeConnection(self.lines[0])
        self.exchange = self.backing.makeExchange()
        self.exchange.start(lambda message, isOld: self.heard.append((message, isOld)))

    def _said(self, word: Word, payload: bytes) -> None:
        if word is Word.PUBLISH:
            self._relay.publish(payload, False)
        elif word is Word.PUBLISH_KEPT:
            self._relay.publish(payload, True)
        elif word is Word.PUBLISH_KEYED:
            key, _, message = payload.partition(b"\0")
            self._relay.publish(message, True, key.decode())
        else:
            kinds: dict[Word, list[Any]] = {
                Word.PUT: self.puts,
                Word.FLUSH: self.flushes,
                Word.REMEMBER: self.remembered,
                Word.NOTED: self.noted,
            }
            kinds[word].append(json.loads(payload))


class FoundNodes:
    """Learns which nodes there are."""

    def __init__(self) -> None:
        self.addresses: dict[int, Address] = {}

    def learnAll(self, found: Any) -> None:
        self.addresses = {each.nodeId: Address(each.host, each.port) for each in found}


EMPTY = Begin({}, [], 1, frozenset())


class ParentBackingTestCase(SynchronousTestCase):
    """Two processes, whose parent tells nobody else."""

    exchange: IUsageExchange | None = None

    def setUp(self) -> None:
        self.clock = Clock()
        self.known = KnownProducers(self.mktemp(), self.clock, lambda *_: None)
        self.relay = UsageRelay(self.known, self.exchange, self.clock)
        self.relay.start()
        self.addCleanup(self.relay.stop)
        self.first, self.second = (self.begun(EMPTY) for _ in range(2))

    def begun(self, begin: Begin) -> OneOfSeveral:
        """A process that has just been told how to begin."""
        process = OneOfSeveral(self.relay, self.clock, begin)
        self.relay.join(process.parents)
        return process


class ExchangeTests(ParentBackingTestCase):
    """What one process says all hear."""

    def test_all(self) -> None:
        """All have the same messages in the same order, own ones included; none after it has stopped."""
        verifyObject(IUsageExchange, self.first.exchange)
        self.first.exchange.publish(b"amount", False)
        self.second.exchange.publish(b"\0\xff", True)
        self.first.exchange.publish(b"limits", True, "a key, \N{SNOWMAN}")
        expected = [(b"amount", False), (b"\0\xff", False), (b"limits", False)]
        self.assertEqual([self.first.heard, self.second.heard], [expected, expected])
        self.successResultOf(self.first.exchange.stop())
        self.second.exchange.publish(b"later", False)
        self.assertEqual((len(self.first.heard), len(self.second.heard)), (3, 4))

    def test_gone(self) -> None:
        """The others go on when one is gone, which says nothing more."""
        self.relay.leave(self.first.parents)
        self.first.channel.connectionLost()
        self.first.exchange.publish(b"nobody hears this", True)
        self.second.exchange.publish(b"message", False)
        self.assertEqual((self.first.heard, self.second.heard), ([], [(b"message", False)]))

    def test_behind(self) -> None:
        """One that does not keep up misses amounts, and neither identities nor limits."""
        amount = UsageMessage("s", 1, [Taken("producer_byte_rate", LIMITED, 5.0)]).encoded()
        identities = UsageMessage("s", 1, [Taken("producer_ids_rate", QuotaEntity(user="u"), 1.0, (7,))]).encoded()
        limits = UsageMessage("s", 1, (), SetLimits(LIMITED, {"producer_byte_rate": 5.0}, "operator")).encoded()
        self.first.parents.pauseProducing()
        for message in (amount, identities, limits):
            self.second.exchange.publish(message, False)
        self.assertEqual([each for each, _ in self.first.heard], [identities, limits])
        self.assertEqual([each for each, _ in self.second.heard], [amount, identities, limits])
        self.second.channel.pauseProducing()
        self.second.exchange.publish(amount, False)
        self.second.exchange.publish(limits, True, "alice")
        self.assertEqual(len(self.second.heard), 4)

    def test_producers(self) -> None:
        """Producers that were let through anywhere are known to the parent."""
        taken = [Taken("producer_ids_rate", QuotaEntity(user=user), 1.0, (7, 8)) for user in ("ann", "bob")]
        self.first.exchange.publish(UsageMessage("server", 1, taken).encoded(), True)
        self.first.exchange.publish(b"nonsense", True)
        self.assertEqual([*self.known], [("ann", 7), ("ann", 8), ("bob", 7), ("bob", 8)])
        self.assertEqual(len(self.second.heard), 2)


class OtherMachinesTests(ParentBackingTestCase):
    """The parent tells other machines, too."""

    def setUp(self) -> None:
        self.line = ScriptedLine(Clock())
        self.exchange, self.other = ScriptedExchange(self.line), ScriptedExchange(self.line)
        self.others: list[bytes] = []
        self.other.start(lambda message, isOld: self.others.append(message))
        super().setUp()

    def arrive(self) -> None:
        """What was sent arrives."""
        self.line.clock.advance(10.0)

    def test_order(self) -> None:
        """All processes of all machines have one order: a process hears itself when the others do."""
        self.first.exchange.publish(b"from here", False)
        self.assertEqual(self.first.heard, [])
        self.other.publish(b"from there", False)
        self.arrive()
        self.assertEqual(sorted(self.others), [b"from here", b"from there"])
        heard = [(each, False) for each in self.others]
        self.assertEqual((self.first.heard, self.second.heard), (heard, heard))

    def test_trouble(self) -> None:
        """Processes say in words why they do not hear from other machines, also those that begin later."""
        self.assertIsNone(self.first.exchange.trouble())
        self.exchange.trouble = lambda: "the line is cut"  # type: ignore[method-assign, union-attr]
        self.clock.advance(TROUBLE_SECONDS)
        later = self.begun(EMPTY)
        for process in (self.first, self.second, later):
            self.assertEqual(process.exchange.trouble(), "the line is cut")
        self.exchange.trouble = lambda: None  # type: ignore[method-assign, union-attr]
        self.clock.advance(TROUBLE_SECONDS)
        self.assertIsNone(later.exchange.trouble())


class StoreTests(ParentBackingTestCase):
    """What is kept, the parent keeps."""

    @given(st.dictionaries(st.binary(min_size=1, max_size=20), st.binary(max_size=20)), st.integers(1, 9))
    def test_begin(self, rows: dict[bytes, bytes], gateways: int) -> None:
        """A process begins with what is kept, whatever that is."""
        known = KnownProducers(None, self.clock, maybeDeferred)
        known.note("\N{SNOWMAN}", [2**62])
        begin = Begin({"quotas": [*rows.items()]}, ["tcp:9092"], gateways, frozenset({"t"}))
        self.assertEqual(Begin.of(begin.encoded()).listeners, ["tcp:9092"])
        backing = ParentBacking(Begin.of(begin.encoded()), known, self.first.channel, self.clock)
        store = backing.openStore(AsyncExitStack())
        table = store.table("quotas")
        verifyObject(ITable, table)
        self.assertEqual([*table.items()], sorted(rows.items()))
        self.assertEqual([*store.table("policies").items()], [])
        self.assertEqual([*store.producers()], [("\N{SNOWMAN}", 2**62)])
        self.assertEqual((backing.gateways, backing.ownTopics), (gateways, {"t"}))

    def test_changes(self) -> None:
        """What is written is here at once, and the parent is told."""
        table = self.first.backing.table("quotas")
        table.put(b"\xff", b"\0")
        table.put(b"b", b"1")
        table.delete(b"b")
        table.delete(b"there is none")
        self.assertEqual((table.get(b"\xff"), table.get(b"b"), [*table.items()]), (b"\0", None, [(b"\xff", b"\0")]))
        self.assertEqual(self.first.puts, [["quotas", "\xff", "\0"], ["quotas", "b", "1"], ["quotas", "b", None]])
        for key in (b"", bytes(512)):
            self.assertRaises(ValueError, table.put, key, b"")

    def test_flush(self) -> None:
        """Something is on the disk when the parent says so, or is not, with the reason."""
        results: list[Any] = []
        for _ in range(3):
            self.first.backing.whenFlushed(results.append)
        self.assertEqual((self.first.flushes, results), ([1, 2, 3], []))
        self.first.parents.tell(Word.FLUSHED, (1, None))
        self.first.parents.tell(Word.FLUSHED, (2, "the disk is full"))
        self.assertEqual([each and str(each) for each in results], [None, "the disk is full"])
        self.first.channel.connectionLost()
        self.first.backing.parentLost()
        self.first.backing.whenFlushed(results.append)
        self.assertEqual([type(each) for each in results[1:]], [LogFailed] * 3)
        self.assertIn("parent", str(results[-1]))

    def test_notKept(self) -> None:
        """What the disk has not taken is as it was before; what it took before that stays."""
        results: list[Any] = []
        backing = self.first.backing
        table = backing.table("quotas")
        table.put(b"a", b"1")
        table.put(b"b", b"1")
        backing.whenFlushed(results.append)
        self.first.parents.tell(Word.FLUSHED, (1, None))
        table.put(b"a", b"2")
        table.put(b"a", b"3")
        table.delete(b"b")
        table.put(b"c", b"1")
        backing.whenFlushed(results.append)
        table.put(b"d", b"1")
        self.assertEqual(dict(table.items()), {b"a": b"3", b"c": b"1", b"d": b"1"})
        self.first.parents.tell(Word.FLUSHED, (2, "the disk is full"))
        self.assertEqual(dict(table.items()), {b"a": b"1", b"b": b"1"})
        self.assertEqual([type(each) for each in results], [type(None), LogFailed])

    def test_noted(self) -> None:
        """The parent learns of producers once, and what it says of others is not said again."""
        known = self.first.backing.known
        for ids in ([7, 8], [8, 7], [7, 9]):
            known.note("ann", ids)
        self.assertEqual(self.first.noted, [["ann", [7, 8]], ["ann", [9]]])
        self.first.parents.tell(Word.NOTED, ("bob", [1]))
        known.note("bob", [1])
        self.assertEqual(len(self.first.noted), 2)
        self.assertEqual({*known}, {("ann", 7), ("ann", 8), ("ann", 9), ("bob", 1)})
        self.assertEqual({*self.first.backing.producers()}, {*known})
        self.assertGreater(known.sizeBytes, 0)

    def test_remember(self) -> None:
        """The parent remembers how many there are."""
        self.first.backing.remember(3)
        self.assertEqual(self.first.remembered, [3])

    def test_nodes(self) -> None:
        """The parent says which nodes there are, and how long ago the cluster has said so."""
        nodes = FoundNodes()
        discovered = self.first.backing.discover(nodes, AsyncExitStack())
        self.assertEqual((discovered.reachedSeconds, discovered.lastError), (None, None))
        self.clock.advance(100.0)
        found = {1: Address("k1.example", 9092), 5: Address("k5.example", 9093)}
        self.first.parents.tell(Word.NODES, encodedNodes(found, 2.5, None))
        self.assertEqual((nodes.addresses, discovered.reachedSeconds, discovered.lastError), (found, 97.5, None))
        self.first.parents.tell(Word.NODES, encodedNodes({}, None, "nobody answers"))
        self.assertEqual((nodes.addresses, discovered.reachedSeconds), (found, 97.5))
        self.assertEqual(discovered.lastError, "nobody answers")

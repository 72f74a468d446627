"""
Tests for L{admission.kafka.broker.log.producers}.
"""

import struct

from hypothesis import given, settings, strategies as st
from pympler.asizeof import asizeof
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.interface import InvalidProducerEpoch, OutOfOrderSequence
from admission.kafka.broker.log.producers import ProducerState, ProducerStates, decodeState, lastSequenceOf

KEY = (3, 7)
LAST_SEQUENCE = 2**31 - 1


class StateTests(SynchronousTestCase):
    """
    L{ProducerState} as bytes, and arithmetic on sequence numbers.
    """

    def test_encoding(self) -> None:
        """
        A state is the same after it has been stored.
        """
        for owner in ("", "alice", "Ålice=\N{SNOWMAN}", "\udc80\ud800"):
            state = ProducerState(5, ((0, 9, 100), (10, 10, 110)), 1234.5, owner)
            self.assertEqual(decodeState(state.encode()), state)

    def test_olderForm(self) -> None:
        """
        A state stored before states had an owner is still read, and encoded
        as newer ones are.
        """
        for epoch in (0, 5, 2**15 - 1, -1):
            stored = struct.pack(">hdiiqiiq", epoch, 1234.5, 0, 9, 100, 10, 10, 110)
            state = ProducerState(epoch, ((0, 9, 100), (10, 10, 110)), 1234.5)
            self.assertEqual(decodeState(stored), state)
            self.assertEqual(decodeState(state.encode()), state)

    def test_unreadable(self) -> None:
        """
        What is no state is refused.
        """
        for stored in (b"", b"\x80", b"\x00\x00"):
            self.assertRaises(struct.error, decodeState, stored)

    def test_lastSequence(self) -> None:
        """
        The sequence goes on with 0 after 2^31 - 1.
        """
        self.assertEqual(lastSequenceOf(10, 4), 14)
        self.assertEqual(lastSequenceOf(LAST_SEQUENCE, 0), LAST_SEQUENCE)
        self.assertEqual(lastSequenceOf(LAST_SEQUENCE, 1), 0)
        self.assertEqual(lastSequenceOf(LAST_SEQUENCE - 2, 9), 6)


class SequenceTests(SynchronousTestCase):
    """
    L{ProducerStates} lets each producer append its batches once and in order.
    """

    def setUp(self) -> None:
        """
        Have nothing known of any producer.
        """
        self.states = ProducerStates(10)
        self.offset = 1000

    def send(self, first: int, last: int, epoch: int = 0) -> int | None:
        """
        Append a batch unless it is a duplicate; return what the check says.
        """
        known = self.states.check(KEY, epoch, first, last)
        if known is None:
            self.states.record(KEY, epoch, (first, last, self.offset), 0.0)
            self.offset += 1
        return known

    def test_unknown(self) -> None:
        """
        A producer that nothing is known of may begin with any sequence.
        """
        self.assertIsNone(self.send(41, 45))
        self.assertIsNone(self.send(46, 46))

    def test_gap(self) -> None:
        """
        A batch that leaves out a sequence number is refused and changes nothing.
        """
        self.send(0, 4)
        self.assertRaises(OutOfOrderSequence, self.states.check, KEY, 0, 6, 6)
        self.assertIsNone(self.send(5, 5))

    def test_duplicates(self) -> None:
        """
        The last five batches are recognised by first and last sequence; the
        sixth from the end is out of order.
        """
        for number in range(6):
            self.send(number * 10, number * 10 + 9)
        for number in range(1, 6):
            self.assertEqual(self.send(number * 10, number * 10 + 9), 1000 + number)
        self.assertRaises(OutOfOrderSequence, self.states.check, KEY, 0, 0, 9)

    def test_otherExtent(self) -> None:
        """
        A batch that begins like an old one and ends elsewhere is no duplicate.
        """
        self.send(0, 9)
        self.assertRaises(OutOfOrderSequence, self.states.check, KEY, 0, 0, 8)
        self.assertRaises(OutOfOrderSequence, self.states.check, KEY, 0, 1, 9)

    def test_wrap(self) -> None:
        """
        After 2^31 - 1 a producer goes on with 0, between batches and inside one.
        """
        self.send(LAST_SEQUENCE - 1, LAST_SEQUENCE)
        self.assertIsNone(self.send(0, 3))
        self.assertEqual(self.send(LAST_SEQUENCE - 1, LAST_SEQUENCE), 1000)
        self.states = ProducerStates(10)
        self.send(LAST_SEQUENCE, 1)
        self.assertIsNone(self.send(2, 2))

    def test_oldEpoch(self) -> None:
        """
        A producer of an older epoch is refused even if its batch is a duplicate.
        """
        self.send(0, 4, epoch=2)
        self.assertRaises(InvalidProducerEpoch, self.states.check, KEY, 1, 0, 4)
        self.assertRaises(InvalidProducerEpoch, self.states.check, KEY, 1, 5, 5)

    def test_newEpoch(self) -> None:
        """
        A new epoch begins with 0 and knows nothing of the old one's batches.
        """
        self.send(0, 4, epoch=2)
        self.assertRaises(OutOfOrderSequence, self.states.check, KEY, 3, 5, 5)
        self.assertIsNone(self.send(0, 4, epoch=3))
        self.assertEqual(self.send(0, 4, epoch=3), 1001)
        self.assertEqual(self.states.get(KEY), ProducerState(3, ((0, 4, 1001),), 0.0))

    def test_noSequence(self) -> None:
        """
        A batch of a producer without a sequence number is refused.
        """
        self.assertRaises(OutOfOrderSequence, self.states.check, KEY, 0, -1, -1)

    def test_apart(self) -> None:
        """
        What a producer does in one partition says nothing about another.
        """
        self.send(0, 4)
        self.assertIsNone(self.states.check((4, 7), 0, 77, 77))
        self.assertIsNone(self.states.check((3, 8), 0, 77, 77))


class ChangesTests(SynchronousTestCase):
    """
    L{ProducerStates} collects changes for a transaction, and bounds itself.
    """

    def setUp(self) -> None:
        """
        Remember three producers that have been settled.
        """
        self.states = ProducerStates(3)
        for producerId in range(3):
            self.states.record((1, producerId), 0, (0, 0, producerId), float(producerId))
        self.assertEqual(len(list(self.states.changes())), 3)
        self.states.settle()

    def snapshot(self) -> dict[tuple[int, int], ProducerState | None]:
        """
        The states of all producers that tests use.
        """
        return {(1, producerId): self.states.get((1, producerId)) for producerId in range(10)}

    def test_coalesced(self) -> None:
        """
        Several batches of one producer are one change, with the last state.
        """
        self.states.record((1, 0), 0, (1, 1, 50), 9.0)
        self.states.record((1, 0), 0, (2, 2, 51), 9.5)
        expected = ProducerState(0, ((0, 0, 0), (1, 1, 50), (2, 2, 51)), 9.5)
        self.assertEqual(list(self.states.changes()), [((1, 0), expected.encode())])

    def test_settled(self) -> None:
        """
        Changes are reported once.
        """
        self.states.record((1, 0), 0, (1, 1, 50), 9.0)
        list(self.states.changes())
        self.states.settle()
        self.assertEqual(list(self.states.changes()), [])

    def test_eviction(self) -> None:
        """
        The least recently used producers go when there are too many, and not
        before the change is settled.
        """
        self.states.record((1, 0), 0, (1, 1, 50), 9.0)
        self.states.record((1, 3), 0, (0, 0, 51), 9.0)
        changes = list(self.states.changes())
        self.assertEqual([key for key, state in changes if state is None], [(1, 1)])
        self.assertIsNotNone(self.states.get((1, 1)))
        self.states.settle()
        self.assertIsNone(self.states.get((1, 1)))
        self.assertEqual(len(self.states), 3)

    def test_revertEviction(self) -> None:
        """
        A producer that was to be evicted stays if the change is lost.
        """
        before = self.snapshot()
        self.states.record((1, 3), 0, (0, 0, 51), 9.0)
        list(self.states.changes())
        self.states.revert()
        self.assertEqual(self.snapshot(), before)
        self.assertEqual(list(self.states.changes()), [])

    @settings(deadline=None)
    @given(*[st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=15)] * 2)
    def test_revert(self, kept: list[tuple[int, int]], lost: list[tuple[int, int]]) -> None:
        """
        After a loss every producer is what it was when last settled.
        """
        self.states = ProducerStates(100)
        for number, (producerId, epoch) in enumerate(kept):
            self.states.record((1, producerId), epoch, (number, number, number), 0.0)
        list(self.states.changes())
        self.states.settle()
        before = self.snapshot()
        for number, (producerId, epoch) in enumerate(lost):
            self.states.record((1, producerId), epoch, (number, number, number), 1.0)
        self.states.revert()
        self.assertEqual(self.snapshot(), before)
        self.assertEqual(len(self.states), len({producerId for producerId, _ in kept}))

    def test_unused(self) -> None:
        """
        Producers count as unused from the longest unused on, up to a time.
        """
        self.assertEqual(self.states.unusedSince(1.0, 10), [(1, 0), (1, 1)])
        self.assertEqual(self.states.unusedSince(1.0, 1), [(1, 0)])
        self.assertEqual(self.states.unusedSince(-1.0, 10), [])

    def test_forgetPartitions(self) -> None:
        """
        With a partition all that was known of its producers goes.
        """
        self.states.record((2, 0), 0, (0, 0, 0), 9.0)
        list(self.states.changes())
        self.states.settle()
        self.states.forgetPartitions({1})
        self.assertEqual(len(self.states), 1)
        self.assertIsNotNone(self.states.get((2, 0)))

    def test_load(self) -> None:
        """
        After a restart the order of use is that of the stored times.
        """
        states = ProducerStates(3)
        states.load({(1, n): ProducerState(0, ((0, 0, n),), float(-n)).encode() for n in range(3)})
        self.assertEqual(states.unusedSince(0.0, 10), [(1, 2), (1, 1), (1, 0)])
        self.assertEqual(states.encodedBytes, self.states.encodedBytes)

    def test_loadOlder(self) -> None:
        """
        Among what is taken over there may be states of the older form.
        """
        states = ProducerStates(3)
        newer = ProducerState(0, ((0, 0, 9),), 1.0, "alice")
        states.load({(1, 1): newer.encode(), (1, 0): struct.pack(">hdiiq", 3, 0.5, 0, 4, 7)})
        self.assertEqual(states.get((1, 0)), ProducerState(3, ((0, 4, 7),), 0.5))
        self.assertEqual(states.get((1, 1)), newer)
        self.assertEqual(states.check((1, 0), 3, 0, 4), 7)
        self.assertEqual(states.unusedSince(1.0, 10), [(1, 0), (1, 1)])


class OwnerTests(SynchronousTestCase):
    """
    L{ProducerStates} know who owns a producer.
    """

    def setUp(self) -> None:
        """
        Have nothing known of any producer.
        """
        self.states = ProducerStates(10)

    def append(self, partitionNumber: int, producerId: int, owner: str, epoch: int = 0) -> None:
        """
        Remember a batch.
        """
        self.states.record((partitionNumber, producerId), epoch, (0, 0, 0), 0.0, owner)

    def test_distinct(self) -> None:
        """
        Each owner and each of its producers is named once, however many
        partitions the producer appends to, those longest unused first.
        """
        for partitionNumber in range(3):
            self.append(partitionNumber, 7, "alice")
            self.append(partitionNumber, 8, "bob")
        self.append(1, 9, "")
        self.append(0, 7, "alice")
        self.append(2, 8, "alice")
        self.assertEqual(list(self.states.owners()), [("bob", 8), ("alice", 7), ("", 9), ("alice", 8)])

    def test_latest(self) -> None:
        """
        A state belongs to whoever appended last.
        """
        self.append(1, 7, "alice")
        self.append(1, 7, "bob", epoch=1)
        self.assertEqual(list(self.states.owners()), [("bob", 7)])

    def test_changesMeanwhile(self) -> None:
        """
        What is appended while somebody goes through the owners does no harm.
        """
        self.append(1, 7, "alice")
        for owner, producerId in self.states.owners():
            self.append(1, producerId + 1, owner)
        self.assertEqual(list(self.states.owners()), [("alice", 7), ("alice", 8)])

    def test_reverted(self) -> None:
        """
        With a change that is lost its owner goes.
        """
        self.append(1, 7, "alice")
        list(self.states.changes())
        self.states.settle()
        self.append(1, 7, "bob")
        self.append(1, 8, "bob")
        self.states.revert()
        self.assertEqual(list(self.states.owners()), [("alice", 7)])


class SizeTests(SynchronousTestCase):
    """
    L{ProducerStates.sizeBytes} says how much memory producers take.
    """

    def test_heap(self) -> None:
        """
        It is within a quarter of what the heap says, with one batch each or
        several, with and without owners, few or many.
        """
        for count in (300, 2500):
            for batches in (1, 6):
                for owner in ("", "CN=a-producer-with-a-rather-long-name,O=example"):
                    states = ProducerStates(count)
                    for number in range(count):
                        for batch in range(batches):
                            appended = (batch * 1000, batch * 1000 + 999, 5_000_000_000 + number)
                            states.record((number % 9, 1_000_000 + number), 0, appended, 1e9, owner)
                    list(states.changes())
                    states.settle()
                    measuredBytes = asizeof(states._states)
                    self.assertLess(abs(states.sizeBytes - measuredBytes), measuredBytes / 4)

    @settings(deadline=None, max_examples=50)
    @given(
        st.lists(
            st.one_of(
                st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from(["", "bob", "alice"])),
                st.sampled_from(["settle", "revert", "forget"]),
            ),
            max_size=30,
        )
    )
    def test_running(self, steps: list[tuple[int, int, str] | str]) -> None:
        """
        Whatever happens, what is counted is what is there.
        """
        states = ProducerStates(3)

        def settle() -> None:
            list(states.changes())
            states.settle()

        for number, step in enumerate(steps):
            if isinstance(step, tuple):
                producerId, epoch, owner = step
                states.record((producerId % 2, producerId), epoch, (number, number, number), 0.0, owner)
            elif step == "forget":
                settle()
                states.forgetPartitions({1})
            else:
                settle() if step == "settle" else states.revert()
            encoded = sum(len(stored) for stored in states._states.values())
            self.assertEqual(states.encodedBytes, encoded)

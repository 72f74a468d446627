"""Tests for L{admission.kafka.broker.log.producers}."""

import struct

from hypothesis import given, settings, strategies as st
from pympler.asizeof import asizeof
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.broker.log.interface import InvalidProducerEpoch, OutOfOrderSequence
from admission.kafka.broker.log.producers import (
    ProducerState,
    ProducerStates,
    decodeState,
    encodedAfter,
    lastSequenceOf,
)

KEY = (3, 7)
LAST_SEQUENCE = 2**31 - 1


class StateTests(SynchronousTestCase):
    """L{ProducerState} as bytes, and arithmetic on sequence numbers."""

    def test_encoding(self) -> None:
        """A state is the same after it has been stored."""
        for epoch in (0, 5, 2**15 - 1, -1):
            for batches in (((0, 9, 100),), ((0, 9, 100), (10, 10, 110), (11, 2**31 - 1, 2**63 - 1))):
                state = ProducerState(epoch, batches, 1234.5)
                self.assertEqual(decodeState(state.encode()), state)

    def test_after(self) -> None:
        """A state is followed by one with the next batch, of which the last five are kept; a new epoch begins anew."""
        encoded = None
        for number in range(7):
            encoded = encodedAfter(encoded, 2, (number, number, 100 + number), 50.0 + number)
            batches = tuple((each, each, 100 + each) for each in range(max(number - 4, 0), number + 1))
            self.assertEqual(decodeState(encoded), ProducerState(2, batches, 50.0 + number))
        self.assertEqual(
            decodeState(encodedAfter(encoded, 3, (0, 1, 200), 60.0)), ProducerState(3, ((0, 1, 200),), 60.0)
        )

    def test_unreadable(self) -> None:
        """What is no state is refused."""
        for stored in (b"", b"\x80", b"\x00\x00"):
            self.assertRaises(struct.error, decodeState, stored)

    def test_lastSequence(self) -> None:
        """The sequence goes on with 0 after 2^31 - 1."""
        self.assertEqual(lastSequenceOf(10, 4), 14)
        self.assertEqual(lastSequenceOf(LAST_SEQUENCE, 0), LAST_SEQUENCE)
        self.assertEqual(lastSequenceOf(LAST_SEQUENCE, 1), 0)
        self.assertEqual(lastSequenceOf(LAST_SEQUENCE - 2, 9), 6)


class SequenceTests(SynchronousTestCase):
    """L{ProducerStates} lets each producer append its batches once and in order."""

    def setUp(self) -> None:
        self.states = ProducerStates(10)
        self.offset = 1000

    def send(self, first: int, last: int, epoch: int = 0) -> int | None:
        """Append a batch unless it is a duplicate; return what the check says."""
        known = self.states.check(KEY, epoch, first, last)
        if known is None:
            self.states.record(KEY, epoch, (first, last, self.offset), 0.0)
            self.offset += 1
        return known

    def test_unknown(self) -> None:
        """A producer that nothing is known of may begin with any sequence."""
        self.assertIsNone(self.send(41, 45))
        self.assertIsNone(self.send(46, 46))

    def test_gap(self) -> None:
        """A batch that leaves out a sequence number is refused and changes nothing."""
        self.send(0, 4)
        self.assertRaises(OutOfOrderSequence, self.states.check, KEY, 0, 6, 6)
        self.assertIsNone(self.send(5, 5))

    def test_duplicates(self) -> None:
        """The last five batches are recognised by first and last sequence; the sixth from the end is out of order."""
        for number in range(6):
            self.send(number * 10, number * 10 + 9)
        for number in range(1, 6):
            self.assertEqual(self.send(number * 10, number * 10 + 9), 1000 + number)
        self.assertRaises(OutOfOrderSequence, self.states.check, KEY, 0, 0, 9)

    def test_otherExtent(self) -> None:
        """A batch that begins like an old one and ends elsewhere is no duplicate."""
        self.send(0, 9)
        self.assertRaises(OutOfOrderSequence, self.states.check, KEY, 0, 0, 8)
        self.assertRaises(OutOfOrderSequence, self.states.check, KEY, 0, 1, 9)

    def test_wrap(self) -> None:
        """After 2^31 - 1 a producer goes on with 0, between batches and inside one."""
        self.send(LAST_SEQUENCE - 1, LAST_SEQUENCE)
        self.assertIsNone(self.send(0, 3))
        self.assertEqual(self.send(LAST_SEQUENCE - 1, LAST_SEQUENCE), 1000)
        self.states = ProducerStates(10)
        self.send(LAST_SEQUENCE, 1)
        self.assertIsNone(self.send(2, 2))

    def test_oldEpoch(self) -> None:
        """A producer of an older epoch is refused even if its batch is a duplicate."""
        self.send(0, 4, epoch=2)
        self.assertRaises(InvalidProducerEpoch, self.states.check, KEY, 1, 0, 4)
        self.assertRaises(InvalidProducerEpoch, self.states.check, KEY, 1, 5, 5)

    def test_newEpoch(self) -> None:
        """A new epoch begins with 0 and knows nothing of the old one's batches."""
        self.send(0, 4, epoch=2)
        self.assertRaises(OutOfOrderSequence, self.states.check, KEY, 3, 5, 5)
        self.assertIsNone(self.send(0, 4, epoch=3))
        self.assertEqual(self.send(0, 4, epoch=3), 1001)
        self.assertEqual(self.states.get(KEY), ProducerState(3, ((0, 4, 1001),), 0.0))

    def test_noSequence(self) -> None:
        """A batch of a producer without a sequence number is refused."""
        self.assertRaises(OutOfOrderSequence, self.states.check, KEY, 0, -1, -1)

    def test_apart(self) -> None:
        """What a producer does in one partition says nothing about another."""
        self.send(0, 4)
        self.assertIsNone(self.states.check((4, 7), 0, 77, 77))
        self.assertIsNone(self.states.check((3, 8), 0, 77, 77))


class ChangesTests(SynchronousTestCase):
    """L{ProducerStates} keeps changes apart until they are committed, and bounds itself."""

    def setUp(self) -> None:
        """Remember three producers that have been settled."""
        self.states = ProducerStates(3)
        for producerId in range(3):
            self.states.record((1, producerId), 0, (0, 0, producerId), float(producerId))
        self.states.settle()

    def snapshot(self) -> dict[tuple[int, int], ProducerState | None]:
        """The states of all producers that tests use."""
        return {(1, producerId): self.states.get((1, producerId)) for producerId in range(10)}

    def test_eviction(self) -> None:
        """The least recently used producers go when there are too many, and not before the change is settled."""
        self.states.record((1, 0), 0, (1, 1, 50), 9.0)
        self.states.record((1, 3), 0, (0, 0, 51), 9.0)
        self.assertIsNotNone(self.states.get((1, 1)))
        self.states.settle()
        self.assertIsNone(self.states.get((1, 1)))
        self.assertEqual((len(self.states), sorted(self.states.statesOf(1))), (3, [0, 2, 3]))

    def test_greedy(self) -> None:
        """Producers of a holder that has more than the mean go first, however lately used, and at a start as well."""
        states = ProducerStates(6)
        holders = {0: "a", 1: "b"}
        for producerId in range(20):
            states.record((1, producerId), 0, (0, 0, 0), float(producerId), holders.get(producerId, "greedy"))
            states.settle()
        self.assertEqual(sorted(states.statesOf(1)), [0, 1, 16, 17, 18, 19])
        again = ProducerStates(3)
        stored = {(1, each): state for each, state in states.statesOf(1).items()}
        again.restore(stored, lambda producerId: holders.get(producerId, "greedy"))
        self.assertEqual(sorted(again.statesOf(1)), [0, 1, 19])
        again.forgetPartitions([1])
        again.record((2, 5), 0, (0, 0, 0), 0.0, "a")
        again.revert()
        self.assertEqual(len(again), 0)

    def test_revertEviction(self) -> None:
        """A producer that was to be evicted stays if the change is lost."""
        before = self.snapshot()
        self.states.record((1, 3), 0, (0, 0, 51), 9.0)
        self.states.revert()
        self.assertEqual(self.snapshot(), before)
        self.states.settle()
        self.assertEqual(self.snapshot(), before)

    @settings(deadline=None)
    @given(*[st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=15)] * 2)
    def test_revert(self, kept: list[tuple[int, int]], lost: list[tuple[int, int]]) -> None:
        """After a loss every producer is what it was when last settled."""
        self.states = ProducerStates(100)
        for number, (producerId, epoch) in enumerate(kept):
            self.states.record((1, producerId), epoch, (number, number, number), 0.0)
        self.states.settle()
        before = self.snapshot()
        for number, (producerId, epoch) in enumerate(lost):
            self.states.record((1, producerId), epoch, (number, number, number), 1.0)
        self.states.revert()
        self.assertEqual(self.snapshot(), before)
        self.assertEqual(len(self.states), len({producerId for producerId, _ in kept}))

    def test_unused(self) -> None:
        """Producers count as unused from the longest unused on, up to a time."""
        self.assertEqual(self.states.unusedSince(1.0, 10), [(1, 0), (1, 1)])
        self.assertEqual(self.states.unusedSince(1.0, 1), [(1, 0)])
        self.assertEqual(self.states.unusedSince(-1.0, 10), [])

    def test_forget(self) -> None:
        """What is known of some producers can be dropped."""
        self.states.forget([(1, 0), (1, 2)])
        self.assertEqual((len(self.states), list(self.states.statesOf(1))), (1, [1]))

    def test_forgetPartitions(self) -> None:
        """With a partition all that was known of its producers goes."""
        self.states.record((2, 0), 0, (0, 0, 0), 9.0)
        self.states.settle()
        self.states.forgetPartitions({1, 7})
        self.assertEqual((len(self.states), self.states.statesOf(1)), (1, {}))
        self.assertIsNotNone(self.states.get((2, 0)))

    def test_statesOf(self) -> None:
        """
        The states of a partition's producers can be restored in their order of use, whatever the
        order they come in; too many are not.
        """
        self.states.record((2, 0), 0, (0, 0, 0), 9.0)
        stored = {(1, each): state for each, state in self.states.statesOf(1).items()}
        self.assertEqual(len(stored), 3)
        for maxEntries, expected in ((3, [(1, 0), (1, 1), (1, 2)]), (2, [(1, 1), (1, 2)])):
            states = ProducerStates(maxEntries)
            states.restore(dict(reversed(stored.items())))
            self.assertEqual(states.unusedSince(9.0, 10), expected)
            self.assertEqual(states.statesOf(1), {key[1]: stored[key] for key in expected})

    def test_ids(self) -> None:
        """
        Each producer is named once, however many partitions it appends to, those longest unused
        first; what is appended while somebody goes through them does no harm.
        """
        states = ProducerStates(20)
        for partitionNumber in range(3):
            for producerId in (8, 7):
                states.record((partitionNumber, producerId), 0, (0, 0, 0), 0.0)
        states.record((0, 8), 0, (1, 1, 1), 0.0)
        for number, producerId in enumerate(states.ids()):
            states.record((number, producerId + 2), 0, (0, 0, 0), 0.0)
        self.assertEqual(list(states.ids()), [7, 8, 9, 10])


class SizeTests(SynchronousTestCase):
    """L{ProducerStates.sizeBytes} says how much memory producers take."""

    def test_heap(self) -> None:
        """
        It is within a half of what the heap says, with one batch each or several, few or many, in few
        partitions or in one each.
        """
        for count in (300, 2500):
            for batches in (1, 6):
                for partitionCount in (9, count):
                    states = ProducerStates(count)
                    for number in range(count):
                        for batch in range(batches):
                            appended = (batch * 1000, batch * 1000 + 999, 5_000_000_000 + number)
                            states.record((number % partitionCount, 1_000_000 + number), 0, appended, 1e9)
                    states.settle()
                    share = states.sizeBytes / asizeof(states._states, states._ids)
                    self.assertTrue(2 / 3 < share < 3 / 2, (share, count, batches, partitionCount))

    @settings(deadline=None, max_examples=50)
    @given(
        st.lists(
            st.one_of(st.tuples(st.integers(0, 5), st.integers(0, 2)), st.sampled_from(["settle", "revert", "forget"])),
            max_size=30,
        )
    )
    def test_running(self, steps: list[tuple[int, int] | str]) -> None:
        """Whatever happens, what is counted is what is there, and each producer is among those of its partition."""
        states = ProducerStates(3)
        for number, step in enumerate(steps):
            if isinstance(step, tuple):
                producerId, epoch = step
                states.record((producerId % 2, producerId), epoch, (number, number, number), 0.0)
            elif step == "forget":
                states.settle()
                states.forgetPartitions({1})
            else:
                states.settle() if step == "settle" else states.revert()
            encoded = sum(len(stored) for stored in states._states.values())
            self.assertEqual(states.encodedBytes, encoded)
            byPartition = {(number, each) for number in range(2) for each in states.statesOf(number)}
            self.assertEqual(byPartition, set(states._states))

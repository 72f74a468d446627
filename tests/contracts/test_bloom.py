"""L{admission_plugins.bloom}."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from math import inf
from random import Random

from hypothesis import given, settings, strategies as st
from twisted.trial.unittest import SynchronousTestCase

from admission_plugins.bloom import EXACT_MEMBERS, MAX_LAYERS_PER_TURN, MIN_CAPACITY, FilterMemory, Layer, LayeredBloom
from benchmarks.bloom import idPatterns

KEY = 0x1234_5678_9ABC_DEF
WINDOW_SECONDS = 60.0
TURN_SECONDS = 15.0
"""With four layers."""


def buildFilter(capacity: int = MIN_CAPACITY, *, layers: int = 4, memory: FilterMemory | None = None) -> LayeredBloom:
    """Make a filter that behaves the same in every run."""
    return LayeredBloom(capacity, WINDOW_SECONDS, layers, memory=memory, key=KEY)


def trackAll(seen: LayeredBloom, members: Iterable[int], now: float) -> int:
    """
    See many at once.

    @return: how many were new.
    """
    return sum(seen.track(member, now) for member in members)


class TimeTests(SynchronousTestCase):
    """What a clock does to a L{LayeredBloom}."""

    def test_knownForAWindow(self) -> None:
        """Whenever in a turn a member was seen, it is known for a window, and forgotten at most a turn later."""
        for offsetSeconds in (0.0, 1.0, 14.0):
            seen = buildFilter()
            seen.track(1, 0.0)
            seen.track(7, offsetSeconds)
            self.assertTrue(seen.contains(7, offsetSeconds + WINDOW_SECONDS))
            self.assertFalse(seen.contains(7, offsetSeconds + WINDOW_SECONDS + TURN_SECONDS))

    def test_notSeenByAsking(self) -> None:
        """Asking for a member does not keep it from being forgotten."""
        seen = buildFilter()
        seen.track(7, 0.0)
        self.assertTrue(all(seen.contains(7, float(now)) for now in range(75)))
        self.assertFalse(seen.contains(7, 75.0))

    def test_turns(self) -> None:
        """
        There is one layer more than turns in a window when members come all the time, one when time stands still, and
        none after a pause, whatever it is asked for.
        """
        for layers in (1, 3, 4):
            seen = buildFilter(layers=layers)
            trackAll(seen, range(100), 0.0)
            self.assertEqual(len(seen.layersAt(0.0)), 2)
            for now in range(600):
                seen.track(now % 10, float(now))
                self.assertLessEqual(len(seen.layersAt(float(now))), layers + 1 + (now < 150))
            self.assertEqual(len(seen.layersAt(599.0)), layers + 1)
            self.assertFalse(seen.contains(1, 10_000.0))
            self.assertEqual((len(seen.layersAt(10_000.0)), seen.sizeBytes), (0, 0))

    @settings(max_examples=200)
    @given(
        capacity=st.sampled_from([1, 100, 10_000]),
        layers=st.integers(1, 5),
        steps=st.lists(
            st.tuples(
                st.sampled_from([0.0, 0.0, 1 / 64, 1.0, 14.0, 15.0, 16.0, 59.0, 60.0, 61.0, 75.0, 1e6]),
                st.integers(0, 400),
                st.integers(1, 150),
                st.booleans(),
            ),
            max_size=30,
        ),
    )
    def test_noFalseNegatives(self, capacity: int, layers: int, steps: list[tuple[float, int, int, bool]]) -> None:
        """
        However time stands still or jumps, and whatever is asked in between,
        who was seen within the window is known and not new.
        """
        memory = FilterMemory()
        seen = buildFilter(capacity, layers=layers, memory=memory)
        lastSeconds: dict[int, float] = {}
        now = 1000.0
        for pauseSeconds, first, count, isTracked in steps:
            now += pauseSeconds
            known = {member for member, last in lastSeconds.items() if now - last <= WINDOW_SECONDS}
            for member in range(first, first + count):
                if isTracked:
                    isNew = seen.track(member, now)
                    self.assertFalse(isNew and member in known)
                    lastSeconds[member] = now
                else:
                    self.assertTrue(seen.contains(member, now) or member not in known)
            self.assertTrue(all(seen.contains(member, now) for member in known))
            self.assertEqual(memory.usedBytes, sum(layer.sizeBytes for layer in seen.layersAt(now)))
            self.assertLessEqual(
                len({layer.expiresSeconds for layer in seen.layersAt(now)}), layers + 1, "turns that are remembered"
            )
        self.assertEqual(memory.droppedLayers, 0)


class SizeTests(SynchronousTestCase):
    """How many layers there are, and how large."""

    def test_fullLayer(self) -> None:
        """
        A layer that is full is followed by one of twice its size, within its
        turn, and no sooner than there is something to put into it.
        """
        seen = buildFilter(100)
        trackAll(seen, range(100), 0.0)
        self.assertEqual([(layer.count, layer.capacity) for layer in seen.layersAt(0.0)], [(100, 100)])
        self.assertTrue(all(seen.track(member, 0.0) for member in (1000, 1001)))
        self.assertEqual([(layer.count, layer.capacity) for layer in seen.layersAt(0.0)], [(100, 100), (2, 200)])

    def test_carryingFillsToo(self) -> None:
        """What is carried along takes room as what is new does."""
        seen = buildFilter(100)
        trackAll(seen, range(60), 0.0)
        trackAll(seen, range(60), TURN_SECONDS)
        self.assertEqual([layer.count for layer in seen.layersAt(TURN_SECONDS)], [60, 60])
        self.assertEqual(trackAll(seen, range(60), TURN_SECONDS), 0)
        self.assertEqual([layer.count for layer in seen.layersAt(TURN_SECONDS)], [60, 60])

    def test_steadyPopulation(self) -> None:
        """
        A population far above the capacity needs no more layers than time
        makes, once each turn has seen all of it, and shrinks to the capacity
        when it does.
        """
        seen = buildFilter(100)
        for turn in range(12):
            trackAll(seen, range(3000), turn * TURN_SECONDS)
        now = 11 * TURN_SECONDS
        self.assertEqual(len(seen.layersAt(now)), 5)
        self.assertTrue(all(3000 <= layer.capacity <= 6000 for layer in seen.layersAt(now)))
        self.assertEqual(trackAll(seen, range(3000), now), 0)
        for turn in range(12, 24):
            trackAll(seen, range(30), turn * TURN_SECONDS)
        self.assertEqual([layer.capacity for layer in seen.layersAt(23 * TURN_SECONDS)], [100] * 5)

    def test_capacityChanges(self) -> None:
        """Another capacity holds for the layers to come."""
        seen = buildFilter(100)
        seen.track(1, 0.0)
        seen.capacity = 500
        seen.track(1, TURN_SECONDS)
        self.assertEqual([layer.capacity for layer in seen.layersAt(TURN_SECONDS)], [100, 500])

    def test_bytesOfAMember(self) -> None:
        """Four full layers and the one that is about to go take at most 8.5 bytes for each member at 1 %."""
        seen = buildFilter(20_000)
        for turn in range(5):
            trackAll(seen, range(20_000), turn * TURN_SECONDS)
        self.assertEqual([layer.capacity for layer in seen.layersAt(4 * TURN_SECONDS)], [20_000] * 5)
        self.assertTrue(all(layer.count > 19_900 for layer in seen.layersAt(4 * TURN_SECONDS)))
        self.assertLessEqual(seen.sizeBytes, 8.5 * 20_000)

    def test_exactWhileSmaller(self) -> None:
        """
        A layer for many members is a set as long as that is smaller, and takes
        its members along when it becomes a filter.
        """
        seen = buildFilter(100_000)
        trackAll(seen, range(EXACT_MEMBERS), 0.0)
        (layer,) = seen.layersAt(0.0)
        self.assertTrue(layer.isExact)
        sizeBytes = seen.sizeBytes
        seen.track(1 << 40, 0.0)
        self.assertFalse(layer.isExact)
        self.assertTrue(all(seen.contains(member, 0.0) for member in (*range(EXACT_MEMBERS), 1 << 40)))
        self.assertGreater(seen.sizeBytes, 10 * sizeBytes)

    def test_saidToTakeWhatItTakes(self) -> None:
        """What a layer says it takes is no less than what its set or its filter does."""
        for capacity in (MIN_CAPACITY, 1000, 2000, 10_000):
            layer = Layer(capacity, 0.0016, 0.0)
            while isinstance(layer.members, set):
                takenBytes = sys.getsizeof(layer.members) + 48 * len(layer.members) + sys.getsizeof(layer)
                self.assertLessEqual(takenBytes, layer.sizeBytes)
                if layer.count == layer.limit:
                    layer.becomeFilter()
                else:
                    layer.members.add(layer.count << 40)
                    layer.count += 1
            self.assertLessEqual(layer.members.size_in_bits / 8, layer.sizeBytes)
            self.assertLessEqual(layer.sizeBytes, layer.members.size_in_bits / 8 + 400)


class LimitTests(SynchronousTestCase):
    """What happens where there may be no more layers or no more memory."""

    def test_layers(self) -> None:
        """Where there are too many layers, the oldest goes: who was only there looks new, and the others do not."""
        memory = FilterMemory(1 << 16)
        seen = buildFilter(memory=memory)
        most = MAX_LAYERS_PER_TURN * 5
        members = iter(range(10**6))
        first = next(members)
        seen.track(first, 0.0)
        while not memory.droppedLayers:
            latest = next(members)
            seen.track(latest, 0.0)
            self.assertLessEqual(len(seen.layersAt(0.0)), most)
        self.assertEqual((seen.contains(first, 0.0), seen.contains(latest, 0.0)), (False, True))
        self.assertTrue(seen.track(first, 0.0))

    def test_largestGives(self) -> None:
        """
        Where memory is short, the filter with most of it gives up its oldest
        layers, and the small ones keep theirs.
        """
        memory = FilterMemory(1 << 15)
        small, large = buildFilter(memory=memory), buildFilter(5000, memory=memory)
        small.track(7, 0.0)
        for turn in range(4):
            trackAll(large, range(turn * 5000, turn * 5000 + 5000), turn * TURN_SECONDS)
        now = 3 * TURN_SECONDS
        self.assertGreater(memory.droppedLayers, 0)
        self.assertTrue(small.contains(7, now))
        self.assertEqual((large.contains(1, now), large.contains(19_999, now)), (False, True))

    def test_itselfDropped(self) -> None:
        """Many filters that hold as much as there is go on, those included that lose their only layer to themselves."""
        memory = FilterMemory(1 << 16)
        filters = [buildFilter(2000, memory=memory) for _ in range(100)]
        for member in range(200):
            for seen in filters:
                seen.track(member, 0.0)
                self.assertTrue(seen.contains(member, 0.0))
        self.assertLessEqual(memory.usedBytes, memory.maxBytes)
        self.assertGreater(memory.droppedLayers, 100)
        for seen in filters:
            seen.clear()
        self.assertEqual((memory.usedBytes, sum(seen.sizeBytes for seen in filters)), (0, 0))

    @given(
        maxBytes=st.integers(1 << 15, 1 << 17),
        steps=st.lists(
            st.tuples(
                st.integers(0, 3), st.integers(0, 2000), st.integers(1, 300), st.sampled_from([0.0, 0.0, 5.0, 15.0])
            ),
            max_size=25,
        ),
    )
    def test_memory(self, maxBytes: int, steps: list[tuple[int, int, int, float]]) -> None:
        """
        Filters that share memory never take more than there is, what they take adds up, and the member that was seen
        last is known.
        """
        memory = FilterMemory(maxBytes)
        filters = [buildFilter(capacity, memory=memory) for capacity in (1, 500, 4000, 10**9)]
        now = 0.0
        for which, first, count, pauseSeconds in steps:
            now += pauseSeconds
            for member in range(first, first + count):
                filters[which].track(member, now)
                self.assertTrue(filters[which].contains(member, now))
                self.assertLessEqual(memory.usedBytes, maxBytes)
            held = [sum(layer.sizeBytes for layer in seen.layersAt(now)) for seen in filters]
            self.assertEqual((held, sum(held)), ([seen.sizeBytes for seen in filters], memory.usedBytes))

    def test_nothingToDrop(self) -> None:
        """A filter without layers has none to drop."""
        self.assertRaises(IndexError, buildFilter().dropOldest)

    def test_arguments(self) -> None:
        """What makes no sense is refused."""
        for arguments in [(0, 1.0), (1, 0.0), (1, inf), (1, 1.0, 0), (1, 1.0, 101), (1, 1.0, 4, 1.0), (1, 1.0, 4, 0.0)]:
            self.assertRaises(ValueError, LayeredBloom, *arguments)


class FalsePositiveTests(SynchronousTestCase):
    """How often a L{LayeredBloom} errs."""

    def measure(self, seen: LayeredBloom, members: Sequence[int], perTurn: int) -> float:
        """
        Fill every turn that is remembered with members of its own.

        @param members: those that are seen, and then others.
        @return: how many of those others the filter takes for seen.
        """
        for turn in range(5):
            trackAll(seen, members[turn * perTurn : (turn + 1) * perTurn], turn * TURN_SECONDS)
        others = members[5 * perTurn :]
        return sum(seen.contains(member, 4 * TURN_SECONDS) for member in others) / len(others)

    def test_patterns(self) -> None:
        """
        With all layers full the filter errs as often as it may and less than
        half as much more, whatever pattern the ids have.
        """
        for name, members in idPatterns(15_000):
            rate = self.measure(buildFilter(1000), members, 1000)
            self.assertTrue(0.006 < rate < 0.015, f"{name}: {rate}")

    def test_fullTurns(self) -> None:
        """That holds as well when turns need several layers."""
        seen = buildFilter(100)
        rate = self.measure(seen, range(40_000), 2000)
        self.assertGreater(len(seen.layersAt(4 * TURN_SECONDS)), 8)
        self.assertTrue(0.001 < rate < 0.015, rate)

    def test_smallest(self) -> None:
        """That holds for the smallest filters, on average over keys."""
        rates = []
        for key in range(200):
            seen = LayeredBloom(1, WINDOW_SECONDS, key=Random(key).getrandbits(61))
            rates.append(self.measure(seen, range(5 * MIN_CAPACITY + 100), MIN_CAPACITY))
        self.assertTrue(0.003 < sum(rates) / len(rates) < 0.015, sum(rates) / len(rates))

    def test_estimate(self) -> None:
        """
        The estimate goes by how full the layers are: nothing for sets, little
        for the first member, and what is measured when they are full.
        """
        seen = buildFilter(1000)
        self.assertEqual(seen.estimateFalsePositives(0.0), 0.0)
        seen.track(1, 0.0)
        self.assertEqual(seen.estimateFalsePositives(0.0), 0.0)
        trackAll(seen, range(100), 0.0)
        self.assertTrue(0.0 < seen.estimateFalsePositives(0.0) < 1e-6)
        rate = self.measure(seen, range(25_000), 1000)
        estimate = seen.estimateFalsePositives(4 * TURN_SECONDS)
        self.assertTrue(0.003 < estimate <= 0.0105 and 0.7 < rate / estimate < 1.3, (rate, estimate))


class KeyTests(SynchronousTestCase):
    """The key that members are mixed with."""

    def test_random(self) -> None:
        """Every filter has a key of its own."""
        self.assertEqual(len({LayeredBloom(1, 1.0).key for _ in range(20)}), 20)

    def test_errorsDiffer(self) -> None:
        """Which members a filter errs about depends on the key, so that nobody can choose ids that pass for known."""
        mistaken = []
        for key in (KEY, KEY + 1):
            seen = LayeredBloom(1000, WINDOW_SECONDS, falsePositives=0.5, key=key)
            trackAll(seen, range(1000), 0.0)
            mistaken.append({member for member in range(1000, 3000) if seen.contains(member, 0.0)})
        one, other = mistaken
        self.assertGreater(len(one), 100)
        self.assertLess(len(one & other), len(one) / 2)

"""
Tests for L{admission.profiling}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from pympler import asizeof, summary
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import Interface, implementer

from admission.metrics.process import ProcessUsage
from admission.profiling.allocator import freeBytes
from admission.profiling.census import MAX_MEMBERS, Census
from admission.profiling.groups import Group, Grouping, implementing, subclassOf
from admission.profiling.html import htmlOf
from admission.profiling.profiler import MIN_SECONDS, REST_SECONDS, TURN_SECONDS, Profiler, ProfilerStopped
from admission.profiling.referents import LARGE, flatBytes, referentsOf
from admission.profiling.reports import MemoryReports
from admission.profiling.sizing import Sizing
from admission.profiling.text import signed, textOf
from admission.testing.clock import OrderedClock

MIB = 1 << 20


class IThing(Interface):
    """
    What some objects are.
    """


@implementer(IThing)
class Thing:
    """
    An object that has others.
    """

    def __init__(self, held: object = None) -> None:
        self.held = held


class Shared:
    """
    An object that all things refer to.
    """

    def __init__(self) -> None:
        self.treasure = bytes(1_000_000)


class Derived(Thing):
    """
    A thing that was not declared to be one.
    """


THINGS = Grouping([Group("things", subclassOf(Thing), ("held",))], subclassOf(Shared))


def exhaust(steps: Iterator[None]) -> int:
    """
    Take all steps.

    @return: how many there were.
    """
    return sum(1 for _ in steps)


def census(objects: list[Any], maxObjects: int = 1_000_000, grouping: Grouping = THINGS) -> Census:
    """
    Count C{objects}, and what only they refer to.
    """
    made = Census(grouping, Random(1), lambda: list(objects), maxObjects)
    exhaust(made.steps())
    return made


def sized(members: list[Any], **options: Any) -> Sizing:
    """
    Measure C{members}, which become none.
    """
    count = options.pop("count", len(members))
    made = Sizing(THINGS, **options)
    exhaust(made.steps(members, count))
    return made


class ReferentsTests(SynchronousTestCase):
    """
    What an object takes and refers to.
    """

    def test_nothingIsMade(self) -> None:
        """
        To look at an object does not make a dictionary of its attributes.
        """
        thing = Thing(bytearray(100))
        referents = referentsOf(thing)
        self.assertIn(thing.held, referents.objects)
        self.assertNotIn(dict, map(type, referents.objects))
        self.assertEqual(referents.weight, 1.0)

    def test_large(self) -> None:
        """
        Of a large container there is a sample, which stands for all of it.
        """
        count = 10 * LARGE
        for container in (
            list(range(count)),
            tuple(range(count)),
            dict.fromkeys(range(count)),
            set(range(count)),
            frozenset(range(count)),
            deque(range(count)),
        ):
            objects, weight = referentsOf(container)
            self.assertLessEqual(len(objects), LARGE)
            self.assertAlmostEqual(len(objects) * weight, 2 * count if isinstance(container, dict) else count)

    def test_badSize(self) -> None:
        """
        A class that fails to say its size takes nothing.
        """

        class Broken:
            def __sizeof__(self) -> int:
                raise ValueError("no")

        broken = Broken()
        self.assertEqual(flatBytes(broken, referentsOf(broken)), 0)


class GroupsTests(SynchronousTestCase):
    """
    Which objects belong together.
    """

    def test_implementing(self) -> None:
        """
        What a class implements is found, inherited or not, and nothing is
        declared of a class by asking.
        """

        class Plain:
            pass

        holds = implementing(IThing)
        self.assertEqual([holds(each) for each in (Thing, Derived, Plain, int)], [True, True, False, False])
        self.assertNotIn("__implemented__", vars(Plain))
        self.assertNotIn("__implemented__", vars(Derived))

    def test_firstWins(self) -> None:
        """
        A class belongs to the first group that holds it.
        """
        grouping = Grouping([Group("derived", subclassOf(Derived)), Group("things", subclassOf(Thing))])
        self.assertEqual([grouping.placeOf(each) for each in (Derived, Thing, int)], [0, 1, -1])


class CensusTests(SynchronousTestCase):
    """
    Objects by their class.
    """

    def test_asPympler(self) -> None:
        """
        The counts are pympler's, and the sizes as well, up to rounding.
        """
        things = [Thing(bytearray(1000)) for _ in range(100)]
        rows = {row[0]: row for row in census([*things, things]).rows}
        name = f"{__name__}.Thing"
        self.assertEqual(rows[name][1], 100)
        ((_, count, sizeBytes),) = summary.summarize([thing.held for thing in things])
        self.assertEqual(rows["bytearray"][1], count)
        self.assertApproximates(rows["bytearray"][2], sizeBytes, 16 * count)

    def test_sharedOnce(self) -> None:
        """
        What many refer to counts once.
        """
        text = "".join(["not ", "interned"])
        holders = [[text] for _ in range(50)]
        del text
        (row,) = (row for row in census(list(holders)).rows if row[0] == "str")
        self.assertEqual(row[1], 1)

    def test_untracked(self) -> None:
        """
        What a dictionary of numbers and bytes holds is found, though the
        garbage collector does not know the dictionary.
        """
        thing = Thing({number: bytes(1000 + number) for number in range(300, 400)})
        rows = {row[0]: row for row in census([thing]).rows}
        self.assertEqual((rows["bytes"][1], rows["dict"][1]), (100, 1))

    def test_sample(self) -> None:
        """
        Of too many objects some are looked at, whatever the pattern in which
        they were made, and stand for the others.
        """
        objects = [each for _ in range(20_000) for each in (Thing(), [])]
        made = census(objects, 10_000)
        self.assertEqual(made.stride, 4)
        rows = {row[0]: row[1] for row in made.rows}
        self.assertApproximates(rows[f"{__name__}.Thing"], 20_000, 1_000)
        self.assertApproximates(made.counts[0], 20_000, 1_000)
        self.assertEqual(len(made.members[0]), MAX_MEMBERS)

    def test_steps(self) -> None:
        """
        A container with very many others in it takes more than one step.
        """
        nested = [tuple(range(500 + number, 600 + number)) for number in range(1000)]
        made = Census(THINGS, Random(1), lambda: [nested])
        self.assertGreater(exhaust(made.steps()), 50)


class SizingTests(SynchronousTestCase):
    """
    What objects take with all that is theirs.
    """

    def test_asPympler(self) -> None:
        """
        The size is what pympler's asizeof says, up to how it counts
        attributes and rounds.
        """
        things = [Thing([bytes(5000), {"a": [number, (str(number), 1.5)]}]) for number in range(20)]
        expected = asizeof.asizeof(*[thing.held for thing in things])
        self.assertApproximates(sized(things).sizeBytes, expected, 0.05 * expected)

    def test_ends(self) -> None:
        """
        Neither other members nor what is shared counts, and neither do
        modules, classes and methods.
        """
        shared = Shared()
        other = Thing(bytearray(1_000_000))
        alone = sized([Thing([0])]).sizeBytes
        for held in (shared, other, other.__init__, Thing, asizeof):
            self.assertApproximates(sized([Thing([held])]).sizeBytes, alone, 32)

    def test_once(self) -> None:
        """
        What two members refer to counts once.
        """
        held = bytearray(1_000_000)
        self.assertLess(sized([Thing(held), Thing(held)]).sizeBytes, 1_001_000)

    def test_sample(self) -> None:
        """
        Members stand for those that are not there, and some elements of a
        container for the others.
        """
        self.assertApproximates(
            sized([Thing(bytes(1000)) for _ in range(10)], count=1000).sizeBytes, 1_100_000, 100_000
        )
        table = {number: bytearray(1000) for number in range(4000, 12_000)}
        sizing = sized([Thing(table)])
        self.assertApproximates(sizing.sizeBytes, 8000 * 1100, 800_000)
        self.assertFalse(sizing.isCut)

    def test_cut(self) -> None:
        """
        It ends after so many objects, says so, and goes by the members that
        it has seen.
        """
        sizing = sized([Thing([[] for _ in range(10)]) for _ in range(100)], maxVisits=100)
        self.assertTrue(sizing.isCut)
        whole = sized([Thing([[] for _ in range(10)]) for _ in range(100)]).sizeBytes
        self.assertApproximates(sizing.sizeBytes, whole, 0.15 * whole)

    def test_opaque(self) -> None:
        """
        Memory of which Python knows nothing counts as it is told.
        """
        alone = sized([Thing([Shared])]).sizeBytes
        grown = sized([Thing([range(3)])], opaque={range: lambda each: 5000 * len(each)}).sizeBytes
        self.assertApproximates(grown - alone, 15_000, 100)

    def test_nothing(self) -> None:
        """
        Nothing takes nothing.
        """
        self.assertEqual(sized([]).sizeBytes, 0)


class AllocatorTests(SynchronousTestCase):
    """
    What the C library says.
    """

    def test_free(self) -> None:
        """
        It is an amount, or not known.
        """
        free = freeBytes()
        self.assertTrue(free is None or free >= 0)


class TickingClock(OrderedClock):
    """
    A clock on which looking at the time takes half a millisecond.
    """

    def seconds(self) -> float:
        """
        See L{OrderedClock}.
        """
        self.rightNow += 0.0005
        return float(self.rightNow)


class FakeUsage(ProcessUsage):
    """
    A process as a test wants it.
    """

    residentBytes = 0
    privateBytes = 0


class ProfilerTestCase(SynchronousTestCase):
    """
    A test with a profiler of a process that consists of things.
    """

    def setUp(self) -> None:
        """
        Make one that has no things yet, and 50 MiB.
        """
        self.clock = TickingClock()
        self.usage = FakeUsage()
        self.grow(50 * MIB)
        self.things: list[Any] = []
        self.claims: dict[str, int] = {}
        self.profiler = Profiler(
            THINGS,
            lambda: self.claims,
            self.clock,
            lambda: 1_700_000_000.0 + self.clock.rightNow,
            "boot",
            usage=self.usage,
            objects=lambda: list(self.things),
        )
        self.addCleanup(self.profiler.stop)

    def grow(self, sizeBytes: int) -> None:
        """
        Give the process so much more memory, and as much again for files.
        """
        self.usage.privateBytes += sizeBytes
        self.usage.residentBytes += 2 * sizeBytes

    def take(self) -> dict[str, Any]:
        """
        Take a snapshot, for as long as that takes.
        """
        taken = self.profiler.take()
        self.clock.advance(30)
        return self.successResultOf(taken)


class ProfilerTests(ProfilerTestCase):
    """
    Snapshots.
    """

    def test_explained(self) -> None:
        """
        What has grown is explained by the larger of what the books say of a
        group and what it takes, and by what only the books know.
        """
        self.things = [Thing(bytearray(MIB)) for _ in range(3)]
        self.claims = {"held": 2 * MIB, "other": 5 * MIB, "empty": 0}
        self.grow(10 * MIB)
        document = self.take()
        things, other = document["groups"]
        self.assertEqual((things["name"], things["objects"], things["claimedBytes"]), ("things", 3, 2 * MIB))
        self.assertApproximates(things["measuredBytes"], 3 * MIB, 2000)
        self.assertEqual(things["countedBytes"], things["measuredBytes"])
        self.assertEqual((other["name"], other["objects"], other["countedBytes"]), ("other", None, 5 * MIB))
        growth = document["growth"]
        self.assertEqual(growth["bytes"], 10 * MIB)
        self.assertEqual(growth["explainedBytes"], things["measuredBytes"] + 5 * MIB)
        self.assertEqual(growth["unexplainedBytes"], growth["bytes"] - growth["explainedBytes"])
        self.assertApproximates(growth["unexplainedFraction"], 0.2, 0.001)
        self.assertEqual(document["process"]["startPrivateBytes"], 50 * MIB)
        self.assertEqual(document["process"]["fileBytes"], 60 * MIB)

    def test_claimsWin(self) -> None:
        """
        A claim counts where it is more than what can be measured, and the
        rest is negative when more is claimed than there is.
        """
        self.things = [Thing()]
        self.claims = {"held": 4 * MIB}
        self.grow(MIB)
        growth = self.take()["growth"]
        self.assertEqual((growth["explainedBytes"], growth["unexplainedBytes"]), (4 * MIB, -3 * MIB))

    def test_remainder(self) -> None:
        """
        The parts of what is not explained add up to it, and objects of no
        group are one of them.
        """
        self.take()
        self.things = [[bytearray(MIB)] for _ in range(4)]
        self.grow(10 * MIB)
        document = self.take()
        parts = {each["name"]: each["bytes"] for each in document["remainder"]}
        self.assertEqual(sum(parts.values()), document["growth"]["unexplainedBytes"])
        self.assertApproximates(parts["objects of no group, more than in snapshot 1"], 4 * MIB, 5000)

    def test_difference(self) -> None:
        """
        A snapshot says what has changed since the one before, and since the
        first, by class.
        """
        self.things = [Thing() for _ in range(10)]
        self.assertEqual(self.take()["since"], [])
        self.things = [Thing() for _ in range(25)]
        (only,) = self.take()["since"]
        self.assertEqual(only["number"], 1)
        self.things = [Thing() for _ in range(40)]
        self.grow(MIB)
        previous, first = self.take()["since"]
        self.assertEqual((previous["number"], first["number"]), (2, 1))
        for since, count in ((previous, 15), (first, 30)):
            changes = {row[0]: row[1] for row in since["most"]}
            self.assertEqual(changes[f"{__name__}.Thing"], count)
            self.assertEqual(since["bytes"], MIB)

    def test_turns(self) -> None:
        """
        It works for a few milliseconds at a time and rests in between.
        """
        self.things = [[number, [number]] for number in range(40_000)]
        taken = self.profiler.take()
        self.assertNoResult(taken)
        self.assertEqual(len(self.clock.calls), 1)
        self.clock.advance(REST_SECONDS)
        self.assertNoResult(taken)
        self.clock.advance(30)
        cost = self.successResultOf(taken)["cost"]
        self.assertLess(cost["longestTurnSeconds"], TURN_SECONDS + 0.002)
        self.assertGreater(cost["workSeconds"], 3 * TURN_SECONDS)
        self.assertGreater(cost["seconds"], cost["workSeconds"] + 3 * REST_SECONDS)

    def test_oneAtATime(self) -> None:
        """
        Whoever asks while a snapshot is being taken gets that one.
        """
        first, second, third = self.profiler.take(), self.profiler.take(), self.profiler.ask()
        self.clock.advance(30)
        document = self.successResultOf(first)
        self.assertIs(self.successResultOf(second), document)
        self.assertIs(self.successResultOf(third), document)
        self.assertEqual(document["number"], 1)

    def test_notTooOften(self) -> None:
        """
        Whoever asks soon after gets what there is; later, another one.
        """
        asked = self.profiler.ask()
        self.clock.advance(1)
        document = self.successResultOf(asked)
        self.assertIs(self.successResultOf(self.profiler.ask()), document)
        self.clock.advance(MIN_SECONDS)
        again = self.profiler.ask()
        self.clock.advance(30)
        self.assertEqual(self.successResultOf(again)["number"], 2)

    def test_fails(self) -> None:
        """
        A failure reaches everybody who waits, and the next one may succeed.
        """
        books = self.profiler._claims
        self.profiler._claims = lambda: {}["no such book"]
        waiting = [self.profiler.take(), self.profiler.take()]
        self.clock.advance(30)
        for each in waiting:
            self.failureResultOf(each, KeyError)
        self.profiler._claims = books
        self.assertEqual(self.take()["number"], 1)

    def test_cancel(self) -> None:
        """
        Who does not want to wait any more does not keep others from it.
        """
        impatient, patient = self.profiler.take(), self.profiler.take()
        impatient.cancel()
        self.failureResultOf(impatient, CancelledError)
        self.clock.advance(30)
        self.successResultOf(patient)

    def test_stop(self) -> None:
        """
        Stopping leaves no timer, and tells who waits.
        """
        self.things = [[number] for number in range(40_000)]
        taken = self.profiler.take()
        self.profiler.stop()
        self.failureResultOf(taken, ProfilerStopped)
        self.assertEqual(self.clock.calls, [])

    def test_nothingStays(self) -> None:
        """
        What was looked at is not kept alive.
        """
        gone: list[int] = []

        class Mortal(Thing):
            def __del__(self) -> None:
                gone.append(1)

        self.things = [Mortal() for _ in range(5)]
        self.take()
        self.things.clear()
        self.assertEqual(len(gone), 5)


class ReportTests(ProfilerTestCase):
    """
    What people read.
    """

    def test_text(self) -> None:
        """
        The text has the groups, the rest and what changed.
        """
        self.take()
        self.things = [Thing(bytearray(MIB)) for _ in range(3)]
        self.claims = {"held": 3 * MIB}
        self.grow(4 * MIB)
        text = textOf(self.take())
        self.assertIn("Memory, snapshot 2 of boot, 2023-11-14 22:13:", text)
        self.assertIn("at the start 50 MiB private, since then +4 MiB; explained +3 MiB", text)
        self.assertRegex(text, r"\n  things +3 +3 MiB +3 MiB +3 MiB\n")
        self.assertIn("Where the unexplained may be:", text)
        self.assertRegex(text, rf"Changed most since snapshot 1:\n(.*\n)+? *{__name__}.Thing \| +3 \|")

    def test_notes(self) -> None:
        """
        Where numbers are estimates, that is said.
        """
        document = self.take()
        document["heap"]["stride"] = 3
        document["groups"][0].update(isSampled=True, isCut=True)
        text = textOf(document)
        for words in ("one container in 3", "a sample of the objects: things", "more than that: things"):
            self.assertIn(words, text)

    def test_html(self) -> None:
        """
        The page needs nothing from elsewhere, and names are only text.
        """
        document = self.take()
        document["heap"]["largest"] = [["<script>", 1, 2]]
        page = htmlOf(document)
        self.assertIn("&lt;script&gt;", page)
        self.assertNotIn("<script", page)
        for elsewhere in ("http:", "https:", "src=", "href=", "@import"):
            self.assertNotIn(elsewhere, page)

    def test_signed(self) -> None:
        """
        A change of size has a sign.
        """
        self.assertEqual([signed(each) for each in (0, 2048, -2048)], ["+0 B", "+2 KiB", "-2 KiB"])


class MemoryReportsTests(ProfilerTestCase):
    """
    Snapshots as files.
    """

    def setUp(self) -> None:
        """
        Keep two snapshots, one every 60 seconds.
        """
        super().setUp()
        self.directory = Path(self.mktemp()) / "below"
        self.deferToThread: Callable[..., Deferred[Any]] = lambda function, *args: succeed(function(*args))
        self.reports = MemoryReports(
            self.profiler,
            self.directory,
            60.0,
            self.clock,
            lambda function, *args: self.deferToThread(function, *args),
            maxSnapshots=2,
        )
        self.addCleanup(self.reports.stop)

    def names(self) -> list[str]:
        """
        The files there are.
        """
        return sorted(each.name for each in self.directory.iterdir())

    def test_files(self) -> None:
        """
        The first snapshot is taken at once, others regularly, and the oldest
        files go.
        """
        self.reports.start()
        self.clock.advance(30)
        self.assertEqual(self.names(), ["memory-boot-000001.html", "memory-boot-000001.txt"])
        self.directory.joinpath("mine.html").touch()
        self.clock.advance(150)
        self.assertEqual(
            self.names(),
            [f"memory-boot-{number:06}.{kind}" for number in (2, 3) for kind in ("html", "txt")] + ["mine.html"],
        )
        text = self.directory.joinpath("memory-boot-000003.txt").read_text("utf-8")
        self.assertIn("snapshot 3 of boot", text)

    def test_cannotWrite(self) -> None:
        """
        A disk that is full ends nothing: it is told in a sentence, and the
        next snapshot is tried.
        """
        working, self.deferToThread = self.deferToThread, lambda function, *args: fail(OSError("no room"))
        with capturedLogs() as events:
            self.reports.start()
            self.clock.advance(30)
        (sentence,) = [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]
        self.assertIn(f"cannot be written to {self.directory}, ", sentence)
        self.assertIn(": no room", sentence)
        self.assertEqual([event for event in events if "log_failure" in event], [])
        self.deferToThread = working
        self.clock.advance(60)
        self.assertEqual(self.names(), ["memory-boot-000002.html", "memory-boot-000002.txt"])

    def test_stop(self) -> None:
        """
        Stopping while a snapshot is taken leaves no timer, and is no error.
        """
        self.things = [[number] for number in range(40_000)]
        self.reports.start()
        self.reports.stop()
        self.assertEqual(self.clock.calls, [])
        self.assertEqual(self.names(), [])

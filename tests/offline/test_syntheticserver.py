"""L{admission.offline.syntheticserver} and what it consists of, and C{admission synth}."""

from __future__ import annotations

import io
import math
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from statistics import median, pstdev
from typing import Any

from attrs import evolve
from pyarrow import parquet as pq
from twisted.internet.task import LoopingCall
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from admission.cli import main
from admission.commands.synthcommand import SynthOptions
from admission.control import AdmissionControl
from admission.interfaces import (
    CONNECTION,
    DEFAULT,
    QuotaEntity,
)
from admission.offline import syntheticserver
from admission.offline.population import RECORD_BYTES, RECORD_SPREAD, WRITE_SHARE, ZIPF_EXPONENT, Population
from admission.offline.simulator import MICROSECONDS, Simulator
from admission.offline.syntheticserver import RecordingFailed, SyntheticServer, recordSynthetic
from admission.recording import TABLES
from admission.recording.arrow import arrowSchema
from admission.recording.events import (
    ADMIT,
    CLOSED,
    EXPIRE,
    MUTE,
    OPENED,
    REJECT,
    THROTTLE,
    ConnectionEvent,
    LimitEvent,
    RequestEvent,
    SensorSample,
)
from admission.recording.schema import CONNECTIONS, REQUESTS, Column, ColumnType
from tests.kit.identitygate import assertAsRecorded, gate, readRecording
from tests.kit.keptevents import Kept
from tests.kit.replaypolicies import Following

SMALL = Population(seed=1, clients=12, connections=3, seconds=60.0, requests=3000, largestBytes=256 << 10)

POLICIES = ("client-bytes:produce=20k:fetch=60k", "request-time:percent=0.2", "connections:perSecond=0.5:burst=1s")
"""What throttles everybody in L{SMALL} now and then."""

TIGHT = "bounded:400KiB"
"""A pool in which its requests wait now and then."""


HASTY = Population(seed=3, clients=30, connections=4, seconds=4.0, requests=6000, largestBytes=256 << 10)
"""Clients of which some are refused, and some are not done at the end."""

HASTY_POLICIES = ("client-bytes:produce=600k:fetch=600k", "producer-ids:rate=2:window=2s")

OF_ANSWERED = ("response_bytes", "policy", "throttle_ms", "service_us", "purgatory_wait_us")
"""What a request that is given up may have been recorded with in other versions."""

PINNED = "68adc4ead5c791b77feb852c5e11db4725c00a937c5c91ef2b8287774f165d76"
"""The digest of what L{SMALL} and L{HASTY} do."""


def ran(population: Population, quotas: Sequence[str] = (), pool: str | None = None) -> Kept:
    """What a population did."""
    kept = Kept()
    SyntheticServer(population, quotas, pool).run(kept)
    return kept


def pinnedRows(kept: Kept) -> Iterator[list[Any]]:
    """
    What becomes of requests and connections, as it is recorded; of requests
    that were given up without what only those know that were answered.
    """
    for event in kept.events:
        table = {RequestEvent: REQUESTS, ConnectionEvent: CONNECTIONS}.get(type(event))
        if table is not None:
            isGivenUp = table is REQUESTS and event.decision == EXPIRE
            leftOut = {"refusal", "traits", *(OF_ANSWERED if isGivenUp else ())}
            columns = [column for column in table.recorded if column.name not in leftOut]
            yield [pinned(column, getattr(event, column.attribute)) for column in columns]


def pinned(column: Column, value: Any) -> Any:
    """A value as it is recorded."""
    if column.type is ColumnType.SECONDS:
        return None if math.isnan(value) else us(value)
    if column.type is ColumnType.DURATIONS:
        return [us(each) for each in value]
    return list(value) if column.type.isList else value


def us(seconds: float) -> int:
    """Seconds in microseconds, as they are recorded."""
    return round(seconds * MICROSECONDS)


def answeredUs(event: RequestEvent) -> int:
    """When the client could go on: it was answered, and read again."""
    delaySeconds = max(event.policyDelaysSeconds, default=0.0)
    decidedUs = 0 if math.isnan(event.decidedSeconds) else us(event.decidedSeconds)
    return max(us(event.sentSeconds), decidedUs + us(delaySeconds))


class SimulatorTests(SynchronousTestCase):
    """Virtual time."""

    def setUp(self) -> None:
        self.simulator = Simulator(100)
        self.seen: list[tuple[str, int]] = []

    def note(self, what: str) -> None:
        """It happens."""
        self.seen.append((what, self.simulator.nowUs))

    def test_order(self) -> None:
        """
        What comes at the same moment comes in the order in which it was asked
        for, what has passed comes at once, and what comes later waits.
        """
        for what, atUs in (("late", 301), ("b", 300), ("c", 300), ("a", 5)):
            self.simulator.at(atUs, lambda what=what: self.note(what))  # type: ignore[misc]
        self.simulator.runUntil(300)
        self.assertEqual(self.seen, [("a", 100), ("b", 300), ("c", 300)])
        self.simulator.runUntil(400)
        self.assertEqual((self.seen[-1], self.simulator.nowUs), (("late", 301), 400))

    def test_noDelay(self) -> None:
        """A timer without a delay is a turn of its own, before time passes."""
        self.simulator.at(200, lambda: (self.simulator.callLater(0, self.note, "turn"), self.note("first")))
        self.simulator.at(201, lambda: self.note("later"))
        self.simulator.runUntil(1000)
        self.assertEqual(self.seen, [("first", 200), ("turn", 200), ("later", 201)])

    def test_timers(self) -> None:
        """A timer can be cancelled, and reset to be earlier or later; it fires once."""
        cancelled, earlier, later = (self.simulator.callLater(0.001, self.note, what) for what in "abc")
        cancelled.cancel()
        earlier.reset(0.0005)
        later.reset(0.002)
        self.assertEqual(set(self.simulator.getDelayedCalls()), {earlier, later})
        self.simulator.runUntil(5000)
        self.assertEqual(self.seen, [("b", 600), ("c", 2100)])
        self.assertEqual(self.simulator.getDelayedCalls(), [])

    def test_looping(self) -> None:
        """What repeats does so on the microsecond, and time passes however little is left to wait."""
        simulator = self.simulator = Simulator()
        looping = LoopingCall(self.note, "tick")
        looping.clock = simulator
        looping.start(10.0, now=False)
        simulator.callLater(1e-12, self.note, "soon")
        simulator.runUntil(35_000_000)
        self.assertEqual(self.seen, [("soon", 1), *(("tick", 10_000_000 * place) for place in (1, 2, 3))])


class PopulationTests(SynchronousTestCase):
    """The clients of a population."""

    def test_parameters(self) -> None:
        """Sizes, writing and popularity are as published."""
        members = Population(clients=2000, connections=1).members
        self.assertApproximates(median(each.recordBytes for each in members) / RECORD_BYTES, 1.0, 0.1)
        self.assertApproximates(pstdev(math.log(each.recordBytes) for each in members), RECORD_SPREAD, 0.1)
        self.assertApproximates(sum(each.writeShare for each in members) / len(members), WRITE_SHARE, 0.03)
        self.assertAlmostEqual(members[0].requestShare / members[9].requestShare, 10**ZIPF_EXPONENT)
        self.assertAlmostEqual(sum(each.requestShare for each in members), 1.0)

    def test_hot(self) -> None:
        """One client can have any share, and leaves the others in their proportions."""
        plain, hot = Population().members, Population(hotShare=0.5).members
        self.assertAlmostEqual(hot[0].requestShare, 0.5)
        self.assertAlmostEqual(hot[1].requestShare / hot[7].requestShare, plain[1].requestShare / plain[7].requestShare)
        kept = ran(Population(clients=10, seconds=60.0, requests=3000, hotShare=0.5))
        counts = Counter(event.clientId for event in kept.requests)
        self.assertApproximates(counts["client-0"] / counts.total(), 0.5, 0.05)

    def test_streams(self) -> None:
        """What a connection asks for follows from the seed, and differs between connections."""
        first, again = (
            [[stream.next() for _ in range(20)] for stream in Population(clients=3, seed=5).streams()] for _ in range(2)
        )
        other = [[stream.next() for _ in range(20)] for stream in Population(clients=3, seed=6).streams()]
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        self.assertEqual(len({tuple(drafts) for drafts in first + other}), 24)

    def test_bounds(self) -> None:
        """Nothing is larger than it may be, and nothing takes no time."""
        population = Population(clients=50, largestBytes=2048)
        drafts = [stream.next() for stream in population.streams() for _ in range(10)]
        largest = max(max(each.requestBytes, each.responseBytes) for each in drafts)
        self.assertEqual(largest, 2048)
        self.assertTrue(all(min(each.receiveUs, each.serviceUs, each.thinkUs) > 0 for each in drafts))

    def test_offered(self) -> None:
        """As many requests come as were asked for, about."""
        self.assertApproximates(len(ran(Population(clients=20, seconds=60.0, requests=4000)).requests), 4000, 400)
        self.assertApproximates(len(ran(Population(clients=20, seconds=30.0)).requests), 2400, 240)

    def test_rogues(self) -> None:
        """Some clients keep taking new producer ids; most keep theirs."""
        taken: dict[int, set[int]] = defaultdict(set)
        for place, stream in enumerate(Population(clients=25, connections=1).streams()):
            taken[place] = {stream.next().producerId for _ in range(400)}
        self.assertGreater(len(taken[24]), 10)
        self.assertLess(max(len(ids) for place, ids in taken.items() if place != 24), 6)

    def test_wrong(self) -> None:
        """Numbers that make no sense are refused by their names."""
        for numbers, message in (
            ({"clients": 0}, "clients must be 1 or more, not 0"),
            ({"clients": 2001}, "clients must be 2000 or fewer: "),
            ({"clients": 2000, "connections": 51}, "connections must be 50 or fewer for so many clients"),
            ({"connections": -1}, "connections must be 1 or more"),
            ({"seconds": 0.0}, "seconds must be from a thousandth to ten years, not 0"),
            ({"seconds": math.inf}, "seconds must be "),
            ({"requests": 0}, "requests must be 1 or more"),
            ({"requests": 10**20}, "requests must be 1000000000 or fewer, not 1e+20; "),
            ({"clients": 2000, "connections": 50, "seconds": 1e8}, "requests must be 1000000000 or fewer, not 1e+13; "),
            ({"hotShare": 1.0}, "hotShare must be between 0 and 1, "),
            ({"hotShare": 0.5, "clients": 1}, "hotShare must be "),
            ({"largestBytes": 5}, "largestBytes must be 1024 or more"),
        ):
            error = self.assertRaises(ValueError, Population, **numbers)
            self.assertTrue(str(error).startswith(message), error)


class ServerTests(SynchronousTestCase):
    """How a population fares with policies."""

    def test_pinned(self) -> None:
        """
        They are the same from one version to the next, so that what was
        measured on one recording can be measured again.
        """
        small, hasty = ran(SMALL, POLICIES, TIGHT), ran(HASTY, HASTY_POLICIES, "bounded:1000KiB")
        decisions = Counter(event.decision for kept in (small, hasty) for event in kept.of(RequestEvent))
        self.assertEqual(set(decisions), {ADMIT, THROTTLE, REJECT, MUTE, EXPIRE})
        rows = "\n".join(repr(row) for kept in (small, hasty) for row in pinnedRows(kept))
        self.assertEqual(sha256(rows.encode()).hexdigest(), PINNED)

    def test_refusal(self) -> None:
        """How requests could be refused is recorded where a policy was asked."""
        kept = ran(SMALL, POLICIES)
        self.assertEqual(
            {(event.refusal, math.isnan(event.decidedSeconds)) for event in kept.of(RequestEvent)}, {("error", False)}
        )
        self.assertEqual({event.refusal for event in ran(SMALL).requests}, {None})

    def test_lifecycle(self) -> None:
        """
        A policy that wants to know is told of each request when the work on it
        begins and, once, when it is over or parked.
        """
        for countsParked in (True, False):
            policy = Following(countsParked)
            policy.configure(QuotaEntity(user=DEFAULT), {"scripted_rate": 1.0}, 0.0)
            server = SyntheticServer(SMALL)
            server.control = AdmissionControl([("following", policy)])
            kept = Kept()
            server.run(kept)
            worked = [event for event in kept.requests if event.decision != EXPIRE or event.serviceSeconds]
            self.assertGreater(len(worked), 1000)
            self.assertEqual((len(policy.begunAt), len(policy.endedAt)), (len(worked), len(worked)))
            parkedSeconds = {outcome.parkedSeconds for _, outcome in policy.endedAt if outcome.parkedSeconds}
            self.assertEqual(bool(parkedSeconds), countsParked)

    def test_independentOfPolicies(self) -> None:
        """
        Whatever the policies do, each connection asks for the same in the same
        order, and thinks and is served for as long.
        """
        streams = sorted(SMALL.streams(), key=lambda stream: stream.openedUs)
        drafts = [[stream.next() for _ in range(1500)] for stream in streams]
        for quotas, pool in (((), None), (POLICIES, TIGHT), (("producer-ids:rate=1:window=1m",), None)):
            kept = ran(SMALL, quotas, pool)
            freeUs = {each.connectionId: answeredUs(each) for each in kept.of(RequestEvent) if each.kind == CONNECTION}
            for connectionId, events in kept.byConnection():
                for event, draft in zip(events, drafts[connectionId - 1], strict=False):
                    self.assertEqual(
                        (event.kind == "Produce", event.requestBytes, event.responseBytes, *event.identities),
                        (
                            draft.isProduce,
                            draft.requestBytes,
                            draft.responseBytes,
                            *[draft.producerId] * draft.isProduce,
                        ),
                    )
                    if event.decision not in (EXPIRE, REJECT):
                        self.assertEqual(us(event.serviceSeconds), draft.serviceUs)
                    if connectionId in freeUs:
                        self.assertEqual(us(event.arrivedSeconds) - freeUs[connectionId], draft.thinkUs)
                    freeUs[connectionId] = answeredUs(event)

    def test_refused(self) -> None:
        """A client that is refused has nothing counted, and is quiet for as long as it was told."""
        kept = ran(
            Population(clients=5, connections=2, seconds=60.0, requests=1000), ["producer-ids:rate=1:window=10m"]
        )
        refused = [event for event in kept.requests if event.decision == REJECT]
        self.assertGreater(len(refused), 3)
        for event in refused:
            self.assertEqual((event.isCounted, event.serviceSeconds, event.policy), (-1, 0.0, "producer-ids"))
            self.assertEqual(event.reason, "N new producer id, with N left of N in Nm")
            self.assertEqual(event.isKnown, False)
            self.assertGreater(event.throttleTimeMs, 0)
        for _, events in kept.byConnection():
            for before, after in pairwise(events):
                self.assertGreater(us(after.arrivedSeconds), answeredUs(before))
        self.assertIn(True, [event.isKnown for event in kept.requests])

    def test_memory(self) -> None:
        """With little memory requests wait; no more is taken than the pool allows, and all of it is given back."""
        server, kept = SyntheticServer(SMALL, (), TIGHT), Kept()
        server.run(kept)
        waited = [event for event in kept.requests if event.poolWaitSeconds]
        self.assertGreater(len(waited), 50)
        self.assertEqual({event.decision for event in waited} - {EXPIRE}, {MUTE})
        pool: Any = server.pool
        largest = max(event.requestBytes for event in kept.requests)
        self.assertLess(max(event.poolUsedBytes for event in kept.requests), pool.sizeBytes + largest)
        self.assertTrue(all(event.poolHoldSeconds > 0 for event in kept.requests if event.decision != EXPIRE))
        self.assertEqual((pool.availableBytes, pool.reclaimedLeases), (pool.sizeBytes, 0))

    def test_whole(self) -> None:
        """
        Nothing is missing: numbers have no gaps, limits come first, every
        connection is opened and closed, every request that came has an event,
        and sensors are read every ten seconds.
        """
        kept = ran(SMALL, POLICIES, TIGHT)
        self.assertEqual([event.seq for event in kept.events], list(range(1, len(kept.events) + 1)))
        limits = {event.limitName: event.value for event in kept.of(LimitEvent)}
        self.assertEqual(limits["received_byte_rate"], 20_000.0)
        self.assertEqual(kept.events[0].limitName in limits, True)
        states = Counter((event.connectionId, event.state) for event in kept.of(ConnectionEvent))
        self.assertEqual(states, Counter({(number, state): 1 for number in range(1, 37) for state in (OPENED, CLOSED)}))
        counts = {event.connectionId: event.requestCount for event in kept.of(ConnectionEvent) if event.state == CLOSED}
        self.assertEqual(counts, {connectionId: len(events) for connectionId, events in kept.byConnection()})
        moments = {event.atSeconds for event in kept.of(SensorSample)}
        self.assertEqual(sorted(moments), [10.0, 20.0, 30.0, 40.0, 50.0, 60.0])

    def test_cutShort(self) -> None:
        """What is under way at the end has come to nothing."""
        kept = ran(Population(clients=20, seconds=2.0, requests=4000, largestBytes=64 << 10), (), "bounded:700KiB")
        cut = [event for event in kept.requests if event.decision == EXPIRE]
        self.assertEqual({event.reason for event in cut}, {"the server was stopped"})
        self.assertTrue(all(event.sentSeconds == 2.0 for event in cut))
        # Some had memory by then, and some did not.
        self.assertEqual({event.poolHoldSeconds > 0 for event in cut}, {True, False})

    def test_without(self) -> None:
        """Without policies nobody is asked anything, and connections are no requests."""
        kept = ran(SMALL)
        self.assertEqual(len(kept.of(RequestEvent)), len(kept.requests))
        self.assertEqual({event.isCounted for event in kept.requests}, {-1})
        self.assertEqual({math.isnan(event.decidedSeconds) for event in kept.requests}, {True})

    def test_wrongPolicies(self) -> None:
        """
        A description that makes no sense is refused, and so is a pool in which
        the population would not find room.
        """
        for quotas, pool, message in (
            (("client-byte",), None, "no quota policy is called 'client-byte'; "),
            (("client-bytes:produce=x",), None, "'client-bytes:produce=x': 'x' is not a rate"),
            ((), "bounded:much", "'bounded:much': 'much' is not a size"),
            ((), "bounded:288KiB", "the pool bounded:288KiB is too small: the connections alone take 288KiB"),
            ((), "bounded:1MiB:max=64KiB", "the pool bounded:1MiB:max=64KiB hands out 64KiB at most"),
        ):
            error = self.assertRaises(ValueError, SyntheticServer, SMALL, quotas, pool)
            self.assertIn(message, str(error))

    def test_dropped(self) -> None:
        """A recording with gaps is a failure."""
        kept = Kept()
        kept.droppedEvents = 3
        error = self.assertRaises(RecordingFailed, SyntheticServer(SMALL).run, kept)
        self.assertIn("no room for 3 events", str(error))


class RecordingTests(SynchronousTestCase):
    """What is written is a recording."""

    def record(self, directory: str) -> SyntheticServer:
        """Record L{SMALL}, without another process."""
        self.patch(subprocess, "run", None)
        server = SyntheticServer(SMALL, POLICIES, TIGHT, beginSeconds=1_700_000_000.0)
        recordSynthetic(directory, server)
        return server

    def test_form(self) -> None:
        """It has the columns and the rows of a real one, all of them sealed, and says what it is."""
        directory = self.mktemp()
        server = self.record(directory)
        table = _requestsIn(directory)
        self.assertEqual(table.schema.names, arrowSchema(TABLES[0]).names)
        self.assertEqual(table.num_rows, server.requestCount)
        for column, value in (
            ("broker_id", "synthetic"),
            ("boot_id", "synthetic-1"),
            ("pool_description", TIGHT),
            ("policy_descriptions", list(POLICIES)),
            ("policy_names", ["client-bytes", "request-time", "connections"]),
            ("throttle_max_us", 20_000_000),
            ("quota_windows", 11),
            ("gate_seed", server.origin.gateSeed),
        ):
            self.assertEqual({str(each) for each in table.column(column).to_pylist()}, {str(value)})
        first = table.slice(0, 1).to_pylist()[0]
        self.assertEqual(us(first["ts"].timestamp()) - first["mono_us"], us(1_700_000_000.0))
        self.assertEqual(sorted(path.name for path in Path(directory, "_segments").iterdir()), [])
        tables = {path.name for path in Path(directory).iterdir()}
        self.assertEqual(tables, {"_segments", "requests", "connections", "limits", "sensors"})

    def test_identity(self) -> None:
        """It says what the policies were told, and when: told again, they ask for the same delays."""
        directory = self.mktemp()
        self.record(directory)
        # What the gate reads does not have all numbers: it leaves out connections and sensors.
        judged = gate(readRecording(directory), lambda run: evolve(run, gaps=[]))
        assertAsRecorded(self, judged)
        self.assertGreater(min(each.throttled for each in judged), 20)

    def test_same(self) -> None:
        """
        The same arguments make the same files, also in a directory with a name
        that descriptions would take apart, and one that is there and empty.
        """
        first, again = self.mktemp(), f"{self.mktemp()}:a=b\\c"
        Path(again).mkdir()
        self.record(first)
        self.record(again)
        contents = [
            {str(path.relative_to(root)): path.read_bytes() for path in Path(root).rglob("*.parquet")}
            for root in (first, again)
        ]
        self.assertEqual(len(contents[0]), 4)
        self.assertEqual(*contents)

    def test_cannot(self) -> None:
        """Nothing is overwritten, and what cannot be written is told in a sentence."""
        directory = Path(self.mktemp())
        directory.mkdir()
        file = directory / "file"
        file.write_bytes(b"")
        for path, words in (
            (directory, "is there already"),
            (file, "is there already"),
            (file / "x", "Not a directory"),
        ):
            error = self.assertRaises(RecordingFailed, self.record, str(path))
            self.assertIn(words, str(error))
        self.assertEqual(list(directory.iterdir()), [file])


class CommandTests(SynchronousTestCase):
    """C{admission synth}."""

    def setUp(self) -> None:
        """Catch what is written."""
        self.stdout, self.stderr = io.StringIO(), io.StringIO()
        self.patch(sys, "stdout", self.stdout)
        self.patch(sys, "stderr", self.stderr)

    def parse(self, line: str) -> SynthOptions:
        """Options of a command line."""
        options = SynthOptions()
        options.parseOptions(shlex.split(line))
        return options

    def test_options(self) -> None:
        """Everything can be said, before or after the directory."""
        words = (
            "--clients 9 --connections 3 --seconds 2m --seed 5 --rows 700 --hot 0.25 --largest 64KiB "
            "--quota client-bytes:produce=1M --quota connections --pool bounded:8MiB --begin 2026-02-03T04:05:06Z"
        )
        for line in (f"there {words}", f"{words} there"):
            options = self.parse(line)
            server = options["server"]
            self.assertEqual(options["directory"], "there")
            self.assertEqual(server.population, Population(5, 9, 3, 120.0, 700, 0.25, 64 << 10))
            self.assertEqual(server.origin.policyDescriptions, ["client-bytes:produce=1M", "connections"])
            self.assertEqual(server.origin.poolDescription, "bounded:8MiB")
            self.assertEqual(server.context.wallSeconds(), 1_770_091_506.0)

    def test_defaults(self) -> None:
        """Nothing has to be said but the directory."""
        server = self.parse("there")["server"]
        self.assertEqual(server.population, Population())
        self.assertEqual((server.origin.policyNames, server.origin.poolDescription), ((), "bounded:64MiB"))
        self.assertEqual(server.context.wallSeconds(), syntheticserver.BEGIN_SECONDS)

    def test_pool(self) -> None:
        """Unless a pool is given, the connections have half of it at most."""
        server = self.parse("there --clients 2000 --connections 10")["server"]
        self.assertEqual(server.pool.sizeBytes, 2 * 20_000 * (8 << 10))

    def test_wrong(self) -> None:
        """What makes no sense is refused by the name that it has here, before anything is written."""
        for line, message in (
            ("", "say where to write: admission synth DIRECTORY"),
            ("a b", "say where to write: admission synth DIRECTORY"),
            ("a --clients many", "--clients: 'many' is not a whole number"),
            ("a --clients 0", "--clients must be 1 or more, not 0"),
            ("a --rows -1", "--rows must be 1 or more, not -1"),
            ("a --rows 99999999999", "--rows must be 1000000000 or fewer"),
            ("a --seconds 3x", "--seconds: '3x' is not a duration"),
            ("a --hot lots", "--hot: 'lots' is not a number"),
            ("a --hot 1", "--hot must be between 0 and 1"),
            ("a --largest 1", "--largest must be 1024 or more, not 1"),
            ("a --begin soon", "--begin: 'soon' is not a time; write one such as 2024-01-31"),
            ("a --begin 1969-12-31", "--begin: 1969-12-31 is not from 1970 to 2199"),
            ("a --quota x", "--quota: no quota policy is called 'x'"),
            ("a --pool bounded:0", "'bounded:0': the size of the pool"),
        ):
            error = self.assertRaises(UsageError, self.parse, line)
            self.assertTrue(str(error).startswith(message), error)
        self.assertFalse(Path("a").exists())

    def test_run(self) -> None:
        """It says what it has made, and on the way how far it is."""
        self.patch(syntheticserver, "PROGRESS_ROWS", 500)
        directory = self.mktemp()
        self.assertEqual(main(["synth", directory, "--clients", "5", "--seconds", "60", "--rows", "1500"]), 0)
        self.assertRegex(
            self.stdout.getvalue(), rf"^{directory}: 1\d\d\d requests \(admit=1\d\d\d, throttle=0, .*\)\n$"
        )
        self.assertGreater(self.stderr.getvalue().count("\n"), 1)
        self.assertRegex(self.stderr.getvalue(), r"^5\d\d rows, \d\d of 60 s\n")
        self.assertEqual(main(["synth", directory]), 1)
        self.assertIn("is there already; name a directory that is empty", self.stderr.getvalue())


def _requestsIn(directory: str) -> Any:
    return pq.ParquetDataset(str(Path(directory, "requests")), partitioning=None).read()

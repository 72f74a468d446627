"""Experiments with a group of real clients of every kind, each with a broker and members in processes of their own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from itertools import count
from typing import Any, NamedTuple

from attrs import define, evolve, field, frozen

from admission.kafka.client.assignors import decodeAssignment
from tests.kit import groupclients
from tests.kit.brokerfixture import batchOf, requestOf
from tests.kit.brokerprocess import BrokerProcess, until
from tests.kit.groupclients import GO_ON, LEAVE
from tests.kit.libraries import MEMBERS, Settings
from tests.kit.lineprocess import Event, LineProcess, moduleCommand
from tests.kit.rawclient import RawClient

TOPIC = "shared"
GROUP = "mixed"
PARTITIONS = 10


@frozen
class Times:
    """
    How long a member takes.

    @ivar sessionMs: for how long the group does without its heartbeats.
    @ivar heartbeatMs: between them.
    @ivar maxPollMs: how long it may work on a record.
    @ivar maxWorkSeconds: how long it does so at most.
    """

    sessionMs: int
    heartbeatMs: int
    maxPollMs: int
    maxWorkSeconds: float = 60.0


LASTING = Times(sessionMs=20_000, heartbeatMs=500, maxPollMs=60_000)
"""Of those who stay for long; a broker that is killed is back within their session."""

DOOMED = evolve(LASTING, sessionMs=2000)
"""Of those who are killed."""

SLOW = Times(sessionMs=1500, heartbeatMs=300, maxPollMs=6000)
"""Of those who take their time."""

SLOW_SECONDS = 3 * SLOW.sessionMs / 1000
SLOW_BATCHES = 2

SLACK_SECONDS = 1.5
"""
What replacing a member may take beyond its session and a heartbeat: the others give up what they have, join and sync,
which is a tenth of a second where nothing else runs.  Waiting for anything but the session would take 60.
"""

RECONNECT_MS = 100
LOOK_SECONDS = 0.1
STABLE = "Stable"
EMPTY = "Empty"
COMPLETE = set(range(PARTITIONS))


class MemberProcess(LineProcess):
    """
    A client of L{groupclients}.

    @ivar events: what it has told so far.
    """

    def __init__(
        self, library: str, address: str, name: str, properties: Mapping[str, Any], maxWorkSeconds: float
    ) -> None:
        self.name = name
        self.events: list[Event] = []
        settings = Settings(library, address, properties, name)
        super().__init__(
            moduleCommand(groupclients.__name__, settings.asText(), TOPIC, str(maxWorkSeconds)),
            lambda line: self.events.append(Event(*line)),
        )

    def said(self, *words: str, begin: int = 0) -> list[Event]:
        """What it has told of some kinds, from event C{begin} on."""
        return [event for event in self.events[begin:] if event.word in words]


@frozen
class Sample:
    """
    What the broker has told of the group.

    @ivar owners: by the names of members, their partitions.
    @ivar memberIds: their ids.
    @ivar offsets: by partition, what is committed.
    """

    state: str
    owners: Mapping[str, frozenset[int]]
    memberIds: frozenset[str]
    offsets: Mapping[int, int]


@define
class Findings:
    """
    What an experiment has found.

    @ivar samples: what the broker has told of the group, in order.
    @ivar settled: those of them for which all members were waited for.
    @ivar members: everybody who ever was one.
    @ivar produced: by partition, how many records there are.
    @ivar log: what the broker wrote.
    @ivar complaints: what of this it should not have.
    """

    samples: list[Sample] = field(factory=list)
    settled: list[Sample] = field(factory=list)
    members: list[MemberProcess] = field(factory=list)
    produced: Counter[int] = field(factory=Counter)
    log: str = ""
    complaints: list[str] = field(factory=list)


class Experiment:
    """A broker with a group."""

    def __init__(self, times: Times) -> None:
        self.findings = Findings()
        self._times = times
        self._broker = BrokerProcess(
            *("--set", f"num.partitions={PARTITIONS}"),
            *("--set", "group.min.session.timeout.ms=500"),
            *("--set", "group.initial.rebalance.delay.ms=100"),
            # Our records are from 1970.
            *("--set", "log.retention.ms=-1"),
        )
        self._partitions = count()
        self._traffic = False
        self._processes: dict[str, MemberProcess] = {}

    def conduct(self) -> Findings:
        """Everything."""
        with ExitStack() as stack:
            self._stack = stack
            stack.callback(self._broker.remove)
            self._broker.start()
            self._connect()
            self._raw.createTopic(TOPIC)
            try:
                self._run()
            except AssertionError as error:
                error.add_note(self._broker.log())
                for member in self._processes.values():
                    error.add_note(f"{member.name}: {member.events[-10:]}")
                raise
            self.findings.members = [*self._processes.values()]
            self.findings.log = self._broker.log()
            self.findings.complaints = self._broker.complaints()
        return self.findings

    def _run(self) -> None:
        raise NotImplementedError

    def _connect(self) -> None:
        self._raw = self._stack.enter_context(RawClient(self._broker.port))

    def _start(self, library: str, name: str, times: Times | None = None) -> None:
        times = times or self._times
        properties = {
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": times.sessionMs,
            "heartbeat.interval.ms": times.heartbeatMs,
            "max.poll.interval.ms": times.maxPollMs,
            "reconnect.backoff.ms": RECONNECT_MS,
            "reconnect.backoff.max.ms": RECONNECT_MS,
        }
        member = MemberProcess(library, self._broker.address, name, properties, times.maxWorkSeconds)
        self._stack.callback(member.kill)
        self._processes[name] = member

    def _produce(self, partition: int, *values: str) -> None:
        errorCode, _ = self._raw.produce(TOPIC, batchOf(*(value.encode() for value in values)), partition=partition)
        assert not errorCode, errorCode
        self.findings.produced[partition] += len(values)

    def _look(self) -> Sample:
        """Let a moment pass, in which there may be a record for somebody, and ask about the group."""
        time.sleep(LOOK_SECONDS)
        if self._traffic:
            self._produce(next(self._partitions) % PARTITIONS, "0", "0")
        (group,) = self._raw.ask(requestOf("DescribeGroups", 4, groups=[GROUP])).groups
        wanted = [{"name": TOPIC, "partition_indexes": [*range(PARTITIONS)]}]
        fetched = self._raw.ask(requestOf("OffsetFetch", 7, group_id=GROUP, topics=wanted, require_stable=False))
        sample = Sample(
            group.group_state,
            {
                member.client_id: frozenset(place.partition for place in decodeAssignment(member.member_assignment))
                for member in group.members
            },
            frozenset(member.member_id for member in group.members),
            {
                each.partition_index: each.committed_offset
                for topic in fetched.topics
                for each in topic.partitions
                if each.committed_offset >= 0
            },
        )
        self.findings.samples.append(sample)
        return sample

    def _settle(self, names: Collection[str], isGood: Callable[[Sample], bool] = lambda sample: True) -> Sample:
        """Wait until the group consists of these members, all have something, and they know it."""

        def isSettled() -> bool:
            self._settled = sample = self._look()
            return (
                sample.state == STABLE
                and set(sample.owners) == set(names)
                and all(sample.owners.values())
                and all(ownedBy(self._processes[name]) == sample.owners[name] for name in names)
                and isGood(sample)
            )

        until(isSettled)
        self.findings.settled.append(self._settled)
        return self._settled

    def _drained(self, sample: Sample) -> bool:
        return sample.offsets == self.findings.produced


def ownedBy(member: MemberProcess) -> set[int]:
    """What a member believes to have now."""
    owned: set[int] = set()
    for event in [*member.events]:
        if event.word == "assigned":
            owned = set(event.values[0])
        elif event.word == "revoked":
            owned -= set(event.values[0])
    return owned


class Span(NamedTuple):
    """From when till when a member believed to have a partition."""

    partition: int
    begin: float
    end: float


def spansOf(member: MemberProcess) -> Iterator[Span]:
    """What a member believed to have, and when; a dead one believes nothing."""
    begun: dict[int, float] = {}
    for event in member.events:
        if event.word in ("assigned", "revoked"):
            ended = [*begun] if event.word == "assigned" else event.values[0]
            for partition in ended:
                if partition in begun:
                    yield Span(partition, begun.pop(partition), event.at)
        if event.word == "assigned":
            begun = dict.fromkeys(event.values[0], event.at)
    for partition, begin in begun.items():
        yield Span(partition, begin, member.events[-1].at)


@define
class ChangingFindings(Findings):
    """
    The same, of members that come and go.

    @ivar replaced: for each kind of client that was killed, how many seconds later others had all its partitions.
    @ivar restarted: the group before the broker was killed, and when all had gone on after it was back.
    @ivar disturbed: the events of members in between that tell of partitions.
    @ivar restartLog: what the broker wrote in between.
    @ivar left: the group when everybody had left.
    """

    replaced: dict[str, float] = field(factory=dict)
    restarted: list[Sample] = field(factory=list)
    disturbed: list[Event] = field(factory=list)
    restartLog: str = ""
    left: Sample | None = None


class ChangingExperiment(Experiment):
    """Members join, are killed, leave; the broker is killed."""

    findings: ChangingFindings

    def __init__(self) -> None:
        super().__init__(LASTING)
        self.findings = ChangingFindings()

    def _run(self) -> None:
        self._traffic = True
        for kind in MEMBERS:
            self._start(kind, kind)
        self._settle(MEMBERS)
        for kind in MEMBERS:
            self._kill(kind)
        self._restart()
        *leaving, last = MEMBERS
        for index, name in enumerate(leaving):
            self._processes[name].tell(LEAVE)
            self._settle(MEMBERS[index + 1 :])
        self._traffic = False
        self._settle([last], self._drained)
        self._processes[last].tell(LEAVE)
        until(lambda: self._look().state == EMPTY)
        self.findings.left = self.findings.samples[-1]
        for name in (*leaving, last):
            assert not self._processes[name].wait(), f"{name} has failed"

    def _kill(self, kind: str) -> None:
        """Have one more member for a short while."""
        name = f"{kind}-killed"
        self._start(kind, name, DOOMED)
        self._settle([*MEMBERS, name])
        self._processes[name].kill()
        killed = time.monotonic()
        lost = ownedBy(self._processes[name])
        self._settle(MEMBERS)
        taken: dict[int, float] = {}
        for member in map(self._processes.__getitem__, MEMBERS):
            for event in member.said("assigned"):
                for partition in lost.intersection(event.values[0]):
                    if event.at > killed:
                        taken[partition] = min(taken.get(partition, event.at), event.at)
        self.findings.replaced[kind] = max(taken[partition] for partition in lost) - killed

    def _restart(self) -> None:
        members = [self._processes[name] for name in MEMBERS]
        begins = [len(member.events) for member in members]
        before = self._settle(MEMBERS)
        mark = self._broker.mark()
        self._broker.kill()
        restarted = time.monotonic()
        self._broker.start()
        self._connect()

        def haveAllGoneOn() -> bool:
            self._look()
            return all(any(event.values[0] > restarted for event in member.said("committed")) for member in members)

        until(haveAllGoneOn)
        self.findings.restarted = [before, self._settle(MEMBERS)]
        self.findings.restartLog = self._broker.log(mark)
        self.findings.disturbed = [
            event
            for member, begin in zip(members, begins, strict=True)
            for event in member.said("assigned", "revoked", begin=begin)
        ]


@define
class SlowFindings(Findings):
    """
    The same, of members that take their time.

    @ivar unhurried: the group before and after its members have worked for longer than their sessions.
    @ivar unhurriedLog: what the broker wrote in between.
    @ivar worked: by name, how many seconds they have worked on each of these records.
    @ivar stuck: the group when those that work for too long have lost what they had.
    @ivar returned: and when they are back.
    """

    unhurried: list[Sample] = field(factory=list)
    unhurriedLog: str = ""
    worked: dict[str, list[float]] = field(factory=dict)
    stuck: Sample | None = None
    returned: Sample | None = None


STAGGER_SECONDS = 0.5

FAST = "fast"
"""The name of one that takes no time for any record."""


class SlowExperiment(Experiment):
    """Members work for longer than their sessions, then for longer than they may."""

    findings: SlowFindings

    def __init__(self) -> None:
        super().__init__(SLOW)
        self.findings = SlowFindings()

    def _run(self) -> None:
        for kind in MEMBERS:
            self._start(kind, kind)
        self._start("ours", FAST, evolve(SLOW, maxWorkSeconds=0.0))
        names = [*MEMBERS, FAST]
        before = self._settle(names)
        mark = self._broker.mark()
        for name in MEMBERS:
            self._produce(min(before.owners[name]), *[str(SLOW_SECONDS)] * SLOW_BATCHES)
        after = self._settle(names, self._drained)
        self.findings.unhurried = [before, after]
        self.findings.unhurriedLog = self._broker.log(mark)
        for name in MEMBERS:
            self.findings.worked[name] = self._workOf(name)
        # aiokafka breaks down when the group asks it to join again while it is leaving, so it leaves first.
        for name in sorted(MEMBERS, key=lambda name: name != "aiokafka"):
            self._produce(min(after.owners[name]), "inf", "0")
            until(partial(self._isStuck, name))
            time.sleep(STAGGER_SECONDS)
        self.findings.stuck = self._settle([FAST], self._drained)
        for name in MEMBERS:
            self._processes[name].tell(GO_ON)
        self.findings.returned = self._settle(names, self._drained)

    def _isStuck(self, name: str) -> bool:
        self._look()
        return len(self._processes[name].said("working")) > SLOW_BATCHES

    def _workOf(self, name: str) -> list[float]:
        events = self._processes[name].events
        return [
            next(each.at for each in events[index:] if each.word in ("committed", "refused")) - event.at
            for index, event in enumerate(events)
            if event.word == "working"
        ]


@cache
def findingsOf(experiment: Callable[[], Experiment]) -> Future[Any]:
    """What comes of an experiment, which is conducted once, be it in vain."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(experiment().conduct)

"""
What it costs to coordinate groups: heartbeats through sockets beside bare Twisted, keeping sessions beside a timer for
each heartbeat, and a whole rebalance.

    python -m benchmarks.groups [--json] [--quick]
"""

from __future__ import annotations

from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock

from admission.kafka.broker.groups.groupcoordinator import GroupCoordinator
from admission.kafka.broker.groups.groupstate import GroupLimits
from admission.kafka.broker.groups.member import JoinRequest, JoinResult, MemberRequest
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.wire.requests import clientApi, decodeResponse, encodeRequest
from admission.operations import DelayedOperation
from admission_plugins.purgatory import WheelPurgatory
from admission_plugins.wheel import TimingWheel

from .load import Cost, Loader, ask, exchange
from .measure import Report, cpuSeconds, inTurns, median, noCollections, ratio, run, spreadPercent
from .servers import Server, running

CONNECTIONS = 8
JOIN_VERSION = 3
HEARTBEAT_VERSION = 3
HEARTBEAT_RESPONSE_BYTES = 10
SESSION_SECONDS = 45.0
BEAT_SECONDS = 3.0
METADATA = bytes(200)

Beat = Callable[[int], object]


def requestOf(name: str, apiVersion: int, **fields: Any) -> bytes:
    """
    A request, its length prefix included.
    """
    return b"".join(encodeRequest(clientApi(name), apiVersion, 1, "benchmark", fields))


def heartbeatOf(server: Server, number: int) -> bytes:
    """
    Join a group of one's own.

    @return: a request that keeps its one member alive.
    """
    groupId = f"group-{number}"
    request = requestOf(
        "JoinGroup",
        JOIN_VERSION,
        group_id=groupId,
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=1_800_000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": METADATA}],
    )
    joined = decodeResponse(clientApi("JoinGroup"), JOIN_VERSION, ask(server.port, request))
    return requestOf(
        "Heartbeat",
        HEARTBEAT_VERSION,
        group_id=groupId,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
    )


def measureSockets(report: Report) -> None:
    """
    Heartbeats of some connections, one at a time and several in flight.
    """
    rounds, count = (2, 400) if report.quick else (7, 8000)
    with (
        TemporaryDirectory(prefix="admission-benchmark-") as data,
        Loader() as loader,
        running("broker", f"{data}/admission", "--set", "group.initial.rebalance.delay.ms=0") as broker,
    ):
        requests = [heartbeatOf(broker, number) for number in range(CONNECTIONS)]
        (requestBytes,) = {len(request) - 4 for request in requests}
        with running("bare", f"{data}/bare", str(HEARTBEAT_RESPONSE_BYTES), str(requestBytes)) as bare:
            listening = {"admission": (broker, broker.port), "floor": (bare, bare.ports[str(requestBytes)])}
            for depth in (1, 16):

                def beat(name: str, depth: int = depth) -> Cost:
                    server, port = listening[name]
                    return loader.run(exchange, server.pid, port, requests, HEARTBEAT_RESPONSE_BYTES, depth, count)

                figures = inTurns(listening, rounds, beat, f"heartbeats, {depth} in flight")
                floor = [cost.cpuSeconds for cost in figures["floor"]]
                for name, costs in figures.items():
                    cpu = [cost.cpuSeconds for cost in costs]
                    report.add(
                        "heartbeats",
                        inFlight=depth,
                        server=name,
                        cpuMicroseconds=median(cpu) / count * 1e6,
                        perSecondOfOneCore=count / median(cpu),
                        requestsPerSecond=count / median([cost.wallSeconds for cost in costs]),
                        ratioToFloor=ratio(cpu, floor),
                        spreadPercent=spreadPercent(cpu),
                    )


class Coordinator:
    """
    A coordinator on a virtual clock and a real log, and the members of one group.

    @ivar members: the members, once they have joined.
    """

    def __init__(self, path: str, members: int) -> None:
        self.clock = Clock()
        self.log = SegmentLog(path, self.clock, self.clock.seconds, maybeDeferred)
        self.purgatory = WheelPurgatory(TimingWheel(self.clock))
        limits = GroupLimits(initialDelaySeconds=0.0)
        self.groups = GroupCoordinator(self.log, self.purgatory, self.clock, self.clock.seconds, limits)
        self.groups.start()
        self.members: list[MemberRequest] = [
            MemberRequest(groupId="readers", generation=-1, memberId="") for _ in range(members)
        ]
        self.rebalance()

    def rebalance(self) -> None:
        """
        Have all members join, the leader assign, and all get what is theirs.
        """
        joined: list[JoinResult] = []
        for member in self.members:
            joining = JoinRequest(
                groupId="readers",
                memberId=member.memberId,
                sessionSeconds=SESSION_SECONDS,
                rebalanceSeconds=300.0,
                protocolType="consumer",
                protocols=(("range", METADATA),),
            )
            self.groups.join(joining).addCallback(joined.append)
        self.turns(0.001)
        assert len(joined) == len(self.members)
        synced: list[Any] = []
        self.members = [
            MemberRequest(groupId="readers", generation=each.generation, memberId=each.memberId) for each in joined
        ]
        for each, member in zip(joined, self.members, strict=True):
            assignments = {other.memberId: METADATA for other in each.members}
            self.groups.sync(member, assignments).addCallback(synced.append)
        self.turns()
        assert len(synced) == len(self.members)

    def turns(self, seconds: float = 0.0) -> None:
        """
        Let time pass, and what is written be committed.
        """
        self.clock.advance(seconds)
        self.clock.advance(0)

    def close(self) -> None:
        """
        Let go of the directory.
        """
        self.groups.stop()
        self.log.close()


class Timers:
    """
    The plain way: each heartbeat takes an operation out of a purgatory and puts another into it.
    """

    def __init__(self, members: int) -> None:
        self.clock = Clock()
        self.purgatory = WheelPurgatory(TimingWheel(self.clock))
        self.operations = [DelayedOperation(SESSION_SECONDS) for _ in range(members)]
        for number, operation in enumerate(self.operations):
            self.purgatory.tryCompleteElseWatch(operation, (number,))

    def beat(self, number: int) -> None:
        """
        Hear of a member.
        """
        self.operations[number].forceComplete()
        operation = self.operations[number] = DelayedOperation(SESSION_SECONDS)
        self.purgatory.tryCompleteElseWatch(operation, (number,))


def beatingSeconds(clock: Clock, beat: Beat, members: int, beats: int) -> float:
    """
    Have all members beat some times.

    @return: CPU time.
    """
    with noCollections():
        started = cpuSeconds()
        for _ in range(beats):
            for number in range(members):
                beat(number)
            clock.advance(BEAT_SECONDS)
        return cpuSeconds() - started


def measureSessions(report: Report) -> None:
    """
    What hearing of a member costs without the protocol.
    """
    rounds, members, beats = (2, 100, 20) if report.quick else (7, 1000, 60)
    with TemporaryDirectory(prefix="admission-benchmark-") as data:
        coordinator, timers = Coordinator(data, members), Timers(members)
        ways: dict[str, tuple[Clock, Beat]] = {
            "Groups": (
                coordinator.clock,
                lambda number: coordinator.groups.heartbeat(coordinator.members[number]),
            ),
            "timer each": (timers.clock, timers.beat),
        }
        figures = inTurns(ways, rounds, lambda way: beatingSeconds(*ways[way], members, beats), "sessions")
        for way, seconds in figures.items():
            report.add(
                "sessions",
                way=way,
                members=members,
                cpuMicroseconds=median(seconds) / (members * beats) * 1e6,
                ratioToTimers=ratio(seconds, figures["timer each"]),
                spreadPercent=spreadPercent(seconds),
            )
        coordinator.close()


def measureRebalances(report: Report) -> None:
    """
    From the first join to the last assignment, the log's two commits included.
    """
    rounds = 2 if report.quick else 7
    for members in (10, 100) if report.quick else (10, 100, 1000):
        with TemporaryDirectory(prefix="admission-benchmark-") as data:
            coordinator = Coordinator(data, members)
            seconds = []
            for _ in range(rounds):
                started = cpuSeconds()
                coordinator.rebalance()
                seconds.append(cpuSeconds() - started)
            coordinator.close()
        report.add(
            "rebalances",
            members=members,
            cpuMilliseconds=median(seconds) * 1e3,
            cpuMicrosecondsEach=median(seconds) / members * 1e6,
            spreadPercent=spreadPercent(seconds),
        )


def measure(report: Report) -> None:
    """
    Everything.
    """
    measureSockets(report)
    measureSessions(report)
    measureRebalances(report)


if __name__ == "__main__":
    run(
        "CPU time of coordinating groups",
        "What heartbeats and rebalances cost the group coordinator.",
        measure,
    )

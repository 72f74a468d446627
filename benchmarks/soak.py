"""
A broker under everything at once, for a long time, and whether anything of it grows.

    python -m benchmarks.soak [--minutes 10] [--idle 10000] [--paused 2000] [--seed N] [--json]

First, what connections cost that do nothing, or may not: how anonymous memory grows with each, beside what the ledger
and the manual say.  Then, for --minutes, a broker in a process of its own, with a port for TCP and one for TLS, quotas,
groups, and retention that really deletes, has
  - producers of confluent-kafka, kafka-python and aiokafka: idempotent ones, acks=all and acks=1, compressed, one of
    them far over its quota;
  - consumers of the same libraries in two groups;
  - clients that are replaced all the time, a third of them killed without a farewell;
  - connections that are made for a moment, and an administrator who creates and deletes topics and changes limits;
  - short attacks, one after another, see benchmarks/soakattacks.py;
  - a reader that reads everything, and a client of good manners whose latency is measured.

Every ten seconds a line on standard error says how it is.  At the end everybody leaves, and the broker is looked at
once more.  Each row has a verdict.  What happens to be held during an attack does not matter for what rises: the second
half of the run is cut into ten parts, and a line goes through the lowest values of each.  It rises if it does so by
more than is allowed, and by more than chance explains; a run of less than five minutes is too short to tell.  Exit
status 1 says that a verdict is bad.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from attrs import define, evolve, field, frozen

from tests.kit.attack import ALLOWANCE_BYTES
from tests.kit.brokerprocess import MeasuredBroker, certificates
from tests.kit.goodclient import GoodClient
from tests.kit.libraries import Settings
from tests.kit.lineprocess import Event, LineProcess, moduleCommand
from tests.kit.rawclient import RawClient

from . import soakattacks, soakclients, soakerrands
from .measure import MIB, Report
from .soakattacks import OVERRIDDEN_CLIENT, AttackSettings
from .soakclients import CONSUMER, PRODUCER, ClientSettings, readKey
from .soakconnections import REST_BYTES, measureConnections
from .soakerrands import ErrandSettings

TOPIC = "soak"
PARTITIONS = 6
GROUPS = ("readers", "auditors")
LIMITED_CLIENT = "limited"

POOL_BYTES = 64 * MIB
LARGEST_BYTES = 8 * MIB

KILLED_SHARE = 1 / 3
SAMPLE_SECONDS = 5.0
MIN_SAMPLES = 40
TELL_SECONDS = 10.0
WINDOWS = 10
MIN_DRIFT_SECONDS = 300.0
"""A shorter run says nothing about what rises."""

GOOD_PACE_SECONDS = 0.1
LEAVE_SECONDS = 90.0
REST_SECONDS = 150.0
"""For how long the broker may come to rest: it forgets what it remembers for a minute, and gives unused heap back."""

REMEMBERED_SECONDS = 60
_TICK_SECONDS = 0.5


@frozen
class Watched:
    """
    Something that is not to grow.

    @ivar name: in a sample.
    @ivar unit: C{MiB}, or what is counted.
    @ivar mayRise: by how much the line through the second half may rise; L{None} if that says nothing.
    @ivar mayRemain: by how much it may be more at the end, when all have gone, than at the beginning; L{None} if that
        says nothing.
    """

    name: str
    unit: str
    mayRise: float | None
    mayRemain: float | None = None


WATCHED = (
    Watched("anonymous memory", "MiB", 16.0),
    Watched("beside the ledger", "MiB", None, (REST_BYTES + ALLOWANCE_BYTES) / MIB),
    Watched("heap of the C library", "MiB", 8.0, 32.0),
    Watched("Python's blocks", "thousands", 50.0, 200.0),
    Watched("ledger: frames", "MiB", 4.0, 0.0),
    Watched("ledger: parked", "MiB", 4.0, 0.0),
    Watched("ledger: responses", "MiB", 4.0, 0.0),
    Watched("ledger: connections", "MiB", 4.0, 0.0),
    Watched("ledger: producers", "MiB", 2.0, 0.1),
    Watched("ledger: groups", "MiB", 1.0, 0.1),
    Watched("ledger: policies", "MiB", 1.0, 1.0),
    Watched("leases", "leases", 300.0, 0.0),
    Watched("timers", "timers", 100.0, 2.0),
    Watched("delayed operations", "operations", 100.0, 0.0),
    Watched("connections", "connections", 50.0, 0.0),
    Watched("descriptors", "descriptors", 100.0),
    Watched("other descriptors", "descriptors", 10.0, 4.0),
    Watched("threads", "threads", 4.0, 16.0),
    Watched("open files of the log", "files", 100.0),
    Watched("segments on disk", "files", 300.0),
    Watched("log on disk", "MiB", 40.0),
    Watched("groups", "groups", 20.0, 0.0),
    Watched("members", "members", 20.0, 0.0),
    Watched("topics", "topics", 3.0, 0.0),
)
"""
C{beside the ledger} is anonymous memory without what the ledger and the pool's idle buffers explain.  It says something
when everybody has left: until then the ledger knows of much that is only claimed, and takes no memory.  The broker
gives back what its heap keeps from 64 MiB on, and has more of code and of what Python keeps after the first attack.
C{other descriptors} are those that are neither connections nor files of the log.
"""


def sampleOf(broker: MeasuredBroker, isCollected: bool = False) -> dict[str, float]:
    """
    How a broker is now: L{WATCHED}; C{drift}, by which the ledger differs from the leases that there are; and how many
    leases were dropped, C{reclaimed}.

    @param isCollected: whether it looks for garbage before.
    """
    report = broker.audit(isCollected)
    audit, ledger, process = report["audit"], report["audit"]["ledger"], Path(f"/proc/{broker.process.pid}")
    anonymousBytes = broker.anonymousBytes()
    descriptors = len(os.listdir(process / "fd"))
    status = (process / "status").read_text()
    segments = list(Path(broker.dataPath).rglob("*.log"))
    purposes = ("frames", "parked", "responses", "connections", "producers", "groups", "policies")
    return {
        "anonymous memory": anonymousBytes / MIB,
        "beside the ledger": (anonymousBytes - sum(ledger.values()) - report["idleBytes"]) / MIB,
        "heap of the C library": audit["heapBytes"] / MIB,
        "Python's blocks": audit["pythonBlocks"] / 1000,
        **{f"ledger: {purpose}": ledger.get(purpose, 0) / MIB for purpose in purposes},
        "leases": sum(audit["leases"].values()),
        "timers": audit["timers"],
        "delayed operations": report["sensors"]["RequestNumDelayedOperations"],
        "connections": audit["connections"],
        "descriptors": descriptors,
        "other descriptors": descriptors - audit["connections"] - audit["openFiles"],
        "threads": int(status.partition("Threads:")[2].split()[0]),
        "open files of the log": audit["openFiles"],
        "segments on disk": len(segments),
        "log on disk": report["sensors"]["LogUsedBytes"] / MIB,
        "groups": audit["groups"],
        "members": report["sensors"]["GroupMembers"],
        "topics": audit["topics"],
        "drift": sum(abs(report["ledger"][each] - audit["leasedBytes"][each]) for each in report["ledger"]),
        "reclaimed": report["reclaimedLeases"],
    }


@frozen
class Line:
    """
    The straight line with the least squares through some points.

    @ivar begin: its height at the first of them.
    @ivar rise: from the first to the last.
    @ivar errorOfRise: the standard error of that.
    """

    begin: float
    rise: float
    errorOfRise: float


def lineThrough(points: Sequence[tuple[float, float]]) -> Line:
    """
    The line through at least three points, not all of the same time.
    """
    count = len(points)
    meanX, meanY = (sum(each) / count for each in zip(*points, strict=True))
    squares = sum((x - meanX) ** 2 for x, _ in points)
    slope = sum((x - meanX) * (y - meanY) for x, y in points) / squares
    residues = sum((y - meanY - slope * (x - meanX)) ** 2 for x, y in points)
    length = points[-1][0] - points[0][0]
    error = math.sqrt(residues / (count - 2) / squares)
    return Line(meanY + slope * (points[0][0] - meanX), slope * length, error * length)


def lowest(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """
    The lowest of the points in each of L{WINDOWS} parts of the time.
    """
    begin, length = points[0][0], (points[-1][0] - points[0][0]) * (1 + 1e-9) / WINDOWS
    windows: dict[int, tuple[float, float]] = {}
    for point in points:
        window = int((point[0] - begin) / length)
        windows[window] = min(windows.get(window, point), point, key=lambda each: each[1])
    return list(windows.values())


@define
class Books:
    """
    What clients have said that they did.

    @ivar acked: by producer the first and the last number of each run that was stored.
    @ivar gaveUp: by producer, how many records it has given up.
    @ivar read: by group and partition, a byte for each offset that one of its members has read.
    @ivar errors: what else went wrong, and how often.
    """

    acked: dict[str, list[list[int]]] = field(factory=dict)
    gaveUp: Counter[str] = field(factory=Counter)
    read: dict[tuple[str, int], bytearray] = field(factory=dict)
    errors: Counter[str] = field(factory=Counter)
    ackedCount: int = 0

    def note(self, settings: ClientSettings, word: str, what: Any) -> None:
        """
        Enter what a client has said.
        """
        if word == "acked":
            self.acked.setdefault(settings.name, []).extend(what)
            self.ackedCount += sum(last - first + 1 for first, last in what)
        elif word == "done":
            for partition, first, last in what:
                seen = self.read.setdefault((settings.library.properties["group.id"], partition), bytearray())
                if len(seen) <= last:
                    seen.extend(bytes(last + 1 - len(seen)))
                seen[first : last + 1] = b"\1" * (last + 1 - first)
        elif word == "left":
            self.gaveUp[settings.name] += what
        elif word in ("failed", "error"):
            self.gaveUp[settings.name] += word == "failed"
            self.errors[f"{settings.kind}: {what}"[:200]] += 1


class Client:
    """
    A client's process.
    """

    def __init__(self, settings: ClientSettings, books: Books, until: float) -> None:
        self.settings = settings
        self.until = until
        self._books = books
        self._hasEnded = False
        self.process = LineProcess(moduleCommand(soakclients.__name__, settings.asText()), self._told)

    def kill(self) -> None:
        """
        End it without a farewell.
        """
        self._hasEnded = True
        self.process.kill()

    def close(self) -> None:
        """
        Note how it has ended, once it has.
        """
        self.process.wait()
        if not self._hasEnded:
            words = (self.process.errors.splitlines() or ["nothing"])[-1].strip()
            self._books.errors[f"{self.settings.kind} ended by itself, and said: {words}"] += 1

    def _told(self, line: Any) -> None:
        event = Event(*line)
        self._hasEnded = self._hasEnded or event.word == "left"
        self._books.note(self.settings, event.word, event.values[0])


class Clients:
    """
    The clients that come and go: a slot has one at a time.
    """

    def __init__(self, slots: Sequence[ClientSettings], books: Books, random: Random, lifeSeconds: float) -> None:
        self.started: Counter[str] = Counter()
        self.killed = 0
        self.idempotent: set[str] = set()
        self._slots = slots
        self._books = books
        self._random = random
        self._lifeSeconds = lifeSeconds
        self._clients: list[Client] = []
        self._leaving: list[tuple[Client, float]] = []
        self._number = 0

    def start(self) -> None:
        """
        Begin with one in each slot.
        """
        for slot in self._slots:
            self._clients.append(self._replacement(slot))

    def tick(self) -> None:
        """
        Replace those whose time has come.
        """
        now = time.monotonic()
        for index, client in enumerate(self._clients):
            if client.process.isGone() or now >= client.until:
                if not client.process.isGone() and self._random.random() < KILLED_SHARE:
                    self.killed += 1
                    client.kill()
                self._dismiss(client)
                self._clients[index] = self._replacement(self._slots[index])
        self._settle()

    def dismiss(self, role: str) -> None:
        """
        Have all of one role leave, and wait until they have.
        """
        for client in [client for client in self._clients if client.settings.role == role]:
            self._clients.remove(client)
            self._dismiss(client)
        while self._leaving:
            self._settle()
            time.sleep(0.1)

    def end(self) -> None:
        """
        Kill all that are left.
        """
        for client in [*self._clients, *(client for client, _ in self._leaving)]:
            client.kill()
            client.close()

    def _replacement(self, slot: ClientSettings) -> Client:
        self._number += 1
        life = self._random.uniform(0.3, 1.7) * self._lifeSeconds
        self.started[slot.kind] += 1
        settings = evolve(slot, name=f"{slot.role}-{self._number}")
        if settings.library.properties.get("enable.idempotence"):
            self.idempotent.add(settings.name)
        return Client(settings, self._books, time.monotonic() + life)

    def _dismiss(self, client: Client) -> None:
        client.process.dismiss()
        self._leaving.append((client, time.monotonic() + LEAVE_SECONDS))

    def _settle(self) -> None:
        now = time.monotonic()
        for client, deadline in list(self._leaving):
            if now > deadline and not client.process.isGone():
                self._books.errors[f"{client.settings.kind} did not leave"] += 1
                client.kill()
            if client.process.isGone():
                client.close()
                self._leaving.remove((client, deadline))


class Reader:
    """
    Reads all that is stored, before retention removes it.

    @ivar seen: by producer, for each number how often its record is there.
    @ivar next: the offset of each partition that comes next.
    @ivar gaps: offsets that were not there.
    """

    def __init__(self, address: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self.seen: dict[str, bytearray] = {}
        self.next = [0] * PARTITIONS
        self.gaps: list[str] = []
        self.count = 0
        self.errors: Counter[str] = Counter()
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "nobody",
                "client.id": "reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 2,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        self._isOver = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """
        Read no more.
        """
        self._isOver = True
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._isOver:
            for message in self._consumer.consume(500, 0.25):
                if message.error() is not None:
                    self.errors[str(message.error())] += 1
                    continue
                partition, offset, key = message.partition(), message.offset(), message.key()
                assert partition is not None and offset is not None and isinstance(key, bytes)
                if offset != self.next[partition]:
                    self.gaps.append(f"{TOPIC}-{partition}: {offset} came and not {self.next[partition]}")
                self.next[partition] = offset + 1
                self.count += 1
                name, number = readKey(key)
                seen = self.seen.setdefault(name, bytearray())
                if len(seen) <= number:
                    seen.extend(bytes(max(number + 1 - len(seen), 1000)))
                seen[number] = min(seen[number] + 1, 255)


class Companion:
    """
    Another process that writes lines of JSON, until its standard input is closed.
    """

    def __init__(self, command: list[str], note: Callable[[dict[str, Any]], None]) -> None:
        self.hasFailed = False
        self._process = LineProcess(command, note)

    def end(self) -> None:
        """
        Have it end what it does, and end.
        """
        self._process.dismiss()
        try:
            self.hasFailed = self._process.wait(LEAVE_SECONDS) != 0
        except AssertionError:
            self.hasFailed = True


def slotsOf(broker: MeasuredBroker) -> list[ClientSettings]:
    """
    The clients that run at the same time.
    """
    authority = str(certificates().authority)
    everyones = {"reconnect.backoff.ms": 100, "reconnect.backoff.max.ms": 1000}
    those = {
        PRODUCER: {"acks": "all", "enable.idempotence": False, "linger.ms": 20},
        CONSUMER: {"auto.offset.reset": "earliest", "session.timeout.ms": 6000, "heartbeat.interval.ms": 2000},
    }

    def slot(role: str, library: str, isTLS: bool, clientId: str = "", **properties: Any) -> ClientSettings:
        named = {name.replace("_", "."): value for name, value in properties.items()}
        settings = Settings(
            library,
            broker.tlsAddress if isTLS else broker.address,
            {**everyones, **those[role], **named},
            clientId or f"{library}-{role}",
            authority if isTLS else "",
        )
        return ClientSettings("", role, settings, TOPIC, recordsPerSecond=40.0, recordBytes=500)

    limited = slot(PRODUCER, "confluent", True, LIMITED_CLIENT, enable_idempotence=True)
    return [
        slot(PRODUCER, "confluent", False, enable_idempotence=True),
        slot(PRODUCER, "confluent", True, enable_idempotence=True, compression_type="zstd"),
        slot(PRODUCER, "confluent", False, acks=1, compression_type="lz4"),
        slot(PRODUCER, "kafka-python", True, compression_type="gzip"),
        slot(PRODUCER, "aiokafka", False, enable_idempotence=True),
        evolve(limited, recordsPerSecond=50.0, recordBytes=8000),
        slot(CONSUMER, "confluent", False, group_id=GROUPS[0]),
        slot(CONSUMER, "confluent", True, group_id=GROUPS[0]),
        slot(CONSUMER, "kafka-python", False, group_id=GROUPS[0]),
        slot(CONSUMER, "aiokafka", True, group_id=GROUPS[1]),
        slot(CONSUMER, "confluent", False, group_id=GROUPS[1]),
    ]


def startBroker(minutes: float) -> MeasuredBroker:
    """
    One that forgets fast, so that whatever is kept for some time has reached its size when the second half begins.
    """
    retentionSeconds = max(20, min(120, round(minutes * 60 / 5)))
    rememberedSeconds = min(REMEMBERED_SECONDS, retentionSeconds)
    settings = {
        "queued.max.request.bytes": POOL_BYTES,
        "socket.request.max.bytes": LARGEST_BYTES,
        "log.segment.bytes": "256KiB",
        "log.roll.ms": f"{retentionSeconds}s",
        "log.retention.ms": f"{retentionSeconds}s",
        "log.retention.check.interval.ms": "5s",
        "log.max.open.files": 500,
        "producer.id.expiration.ms": f"{rememberedSeconds}s",
        "offsets.retention.ms": f"{rememberedSeconds}s",
        "offsets.retention.check.interval.ms": "5s",
        "group.initial.rebalance.delay.ms": "500ms",
        "group.max.session.timeout.ms": "30s",
        "max.connections.per.ip": 1000,
        "quota.producer.override": f"{LIMITED_CLIENT}:100k,{OVERRIDDEN_CLIENT}:200k",
    }
    broker = MeasuredBroker(
        *(f"--set={name}={value}" for name, value in settings.items()),
        *("--quota", "client-bytes"),
        *("--quota", "request-time:percent=400"),
        *("--quota", "connections:perSecond=2000"),
        *("--quota", "producer-ids:rate=100000:window=30s"),
    )
    broker.start()
    return broker


class Soak:
    """
    One run, after the connections.
    """

    def __init__(self, report: Report, minutes: float, seed: int, tell: Callable[[str], None]) -> None:
        self._report = report
        self._seconds = minutes * 60
        self._tell = tell
        self._books = Books()
        self._random = Random(seed)
        self._seed = seed
        self._attacks: Counter[str] = Counter()
        self._troubles: Counter[str] = Counter()
        self._lastAttack = "none yet"
        self._errands: dict[str, int] = {}
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._latencies: list[float] = []
        self._failures: Counter[str] = Counter()

    def run(self) -> None:
        """
        All of it.
        """
        with ExitStack() as stack:
            self._broker = startBroker(self._seconds / 60)
            stack.callback(self._broker.remove)
            topics = {TOPIC: PARTITIONS, "good": 1, soakattacks.TOPIC: soakattacks.PARTITIONS}
            soakattacks.createTopics(self._broker.port, topics)
            self._warmUp()
            self._base = sampleOf(self._broker, isCollected=True)
            self._live(stack)
            endOffsets = self._leave()
            rest, restSeconds = self._comeToRest()
            complaints = self._broker.complaints()
            status = self._broker.stop()
            self._judgeDrift()
            self._judgeRest(rest, restSeconds)
            self._judgeClients(endOffsets)
            self._judgeFaults(complaints, status)

    def _warmUp(self) -> None:
        authority = certificates().authority
        for port, tls in ((self._broker.port, None), (self._broker.tlsPort, soakattacks.trusting(str(authority)))):
            with RawClient(port, tls) as client:
                client.metadata(TOPIC)
                client.endOffset(TOPIC)
        self._broker.waitUntilWhole()

    def _live(self, stack: ExitStack) -> None:
        broker, authority = self._broker, str(certificates().authority)
        sampleSeconds = min(SAMPLE_SECONDS, self._seconds / MIN_SAMPLES)
        self._good = GoodClient(broker, "good", GOOD_PACE_SECONDS, 1000)
        stack.callback(self._good.stop)
        self._reader = Reader(broker.address)
        # Of eleven one is replaced every five seconds.
        self._clients = Clients(slotsOf(broker), self._books, self._random, min(55.0, self._seconds / 3))
        stack.callback(self._clients.end)
        self._clients.start()
        attacks = AttackSettings(broker.port, broker.tlsPort, authority, LARGEST_BYTES, 2.0, 5.0, self._seed)
        self._attacker = Companion(soakattacks.commandOf(attacks), self._noteAttack)
        errands = ErrandSettings(broker.port, broker.tlsPort, authority, TOPIC, 4.0)
        self._passers = Companion(soakerrands.commandOf(errands), self._noteErrands)
        begun = time.monotonic()
        sampled = told = begun
        while (now := time.monotonic()) < begun + self._seconds:
            self._clients.tick()
            if now - sampled >= sampleSeconds:
                sampled = now
                self._sample(now - begun)
                if now - told >= TELL_SECONDS - _TICK_SECONDS:
                    told = now
                    self._tell(self._lineOf(now - begun))
            time.sleep(_TICK_SECONDS)

    def _sample(self, seconds: float) -> None:
        self._samples.append((seconds, sampleOf(self._broker)))
        noticed = self._good.noticed()
        self._latencies += noticed.latencies
        self._failures.update(noticed.failures)

    def _lineOf(self, seconds: float) -> str:
        sample = self._samples[-1][1]
        ledger = sum(value for name, value in sample.items() if name.startswith("ledger: "))
        return (
            f"{int(seconds) // 60:3}:{int(seconds) % 60:02}  acknowledged {self._books.ackedCount:,} read "
            f"{self._reader.count:,}  anonymous {sample['anonymous memory']:.1f} MiB, ledger {ledger:.1f}  connections "
            f"{sample['connections']:.0f}  timers {sample['timers']:.0f}  descriptors {sample['descriptors']:.0f}  "
            f"groups {sample['groups']:.0f}  clients {sum(self._clients.started.values())}  "
            f"attacks {sum(self._attacks.values())}, {self._lastAttack}"
        )

    def _noteAttack(self, said: dict[str, Any]) -> None:
        self._lastAttack = said["attack"]
        self._attacks[said["attack"]] += 1
        if said["trouble"]:
            self._troubles[f"{said['attack']}: {said['trouble']}"] += 1

    def _noteErrands(self, said: dict[str, Any]) -> None:
        if "error" in said:
            self._books.errors[f"errand {said['error']}"[:200]] += 1
        self._errands = said.get("errands", self._errands)

    def _leave(self) -> list[int]:
        """
        Everybody leaves, consumers when they have read all that is there.

        @return: the end of each partition.
        """
        self._tell("everybody leaves")
        self._attacker.end()
        self._passers.end()
        self._clients.dismiss(PRODUCER)
        with RawClient(self._broker.port) as client:
            ends = [client.endOffset(TOPIC, partition=partition) for partition in range(PARTITIONS)]
        deadline = time.monotonic() + LEAVE_SECONDS
        while time.monotonic() < deadline and (self._unread(ends) or self._reader.next != ends):
            time.sleep(0.5)
        self._clients.dismiss(CONSUMER)
        self._reader.close()
        self._good.stop()
        return ends

    def _unread(self, ends: Sequence[int]) -> int:
        """
        How many records no member of a group has read, over all groups.
        """
        return sum(
            end - self._books.read.get((group, partition), bytearray()).count(1)
            for group in GROUPS
            for partition, end in enumerate(ends)
        )

    def _comeToRest(self) -> tuple[dict[str, float], float]:
        """
        Wait until the broker is as it was before.
        """
        begun = time.monotonic()
        while True:
            rest = sampleOf(self._broker, isCollected=True)
            seconds = time.monotonic() - begun
            if seconds > REST_SECONDS or not any(self._remains(each, rest) for each in WATCHED):
                return rest, seconds
            self._tell(f"at rest for {seconds:.0f} s: {self._broker.report()['ledger']}")
            time.sleep(5.0)

    def _remains(self, watched: Watched, rest: Mapping[str, float]) -> bool:
        more = rest[watched.name] - self._base[watched.name]
        return watched.mayRemain is not None and more > watched.mayRemain + 1e-9

    # Verdicts

    def _judgeDrift(self) -> None:
        half = [sample for sample in self._samples if sample[0] >= self._seconds / 2]
        for watched in WATCHED:
            if watched.mayRise is None:
                continue
            line = lineThrough(lowest([(seconds, sample[watched.name]) for seconds, sample in half]))
            values = [sample[watched.name] for _, sample in half]
            rises = line.rise > watched.mayRise and line.rise > 2 * line.errorOfRise
            verdict = "RISES" if rises else "flat"
            self._report.add(
                "second half",
                what=watched.name,
                unit=watched.unit,
                least=min(values),
                largest=max(values),
                lineBegins=line.begin,
                rises=line.rise,
                give=2 * line.errorOfRise,
                mayRise=watched.mayRise,
                perHour=line.rise / (half[-1][0] - half[0][0]) * 3600,
                verdict=verdict if self._seconds >= MIN_DRIFT_SECONDS else "too short",
            )

    def _judgeRest(self, rest: Mapping[str, float], seconds: float) -> None:
        for watched in WATCHED:
            if watched.mayRemain is not None:
                self._report.add(
                    f"everybody has left, after {seconds:.0f} s",
                    what=watched.name,
                    unit=watched.unit,
                    before=self._base[watched.name],
                    after=rest[watched.name],
                    mayRemain=watched.mayRemain,
                    verdict="REMAINS" if self._remains(watched, rest) else "fine",
                )

    def _judgeClients(self, ends: Sequence[int]) -> None:
        reader, books = self._reader, self._books
        lost = twice = 0
        idempotent = self._clients.idempotent
        for name, spans in books.acked.items():
            seen = reader.seen.get(name, bytearray())
            lost += sum(
                not any(seen[number : number + 1]) for first, last in spans for number in range(first, last + 1)
            )
        for name, seen in reader.seen.items():
            if name in idempotent and not books.gaveUp[name]:
                twice += sum(1 for count in seen if count > 1)
        facts: list[tuple[str, float, bool]] = [
            ("records acknowledged", books.ackedCount, not books.ackedCount),
            ("of those not read", lost, lost > 0),
            ("stored twice by idempotent producers", twice, twice > 0),
            ("records read", reader.count, not reader.count),
            ("offsets missing", len(reader.gaps), bool(reader.gaps)),
            ("records that a group has not read", self._unread(ends), self._unread(ends) > 0),
            ("records given up by their client", sum(books.gaveUp.values()), False),
            ("clients started", sum(self._clients.started.values()), False),
            ("clients killed", self._clients.killed, False),
            ("connections for a moment", sum(self._errands.values()), not self._errands),
            ("attacks", sum(self._attacks.values()), not self._attacks),
            ("failures of the client of good manners", sum(self._failures.values()), bool(self._failures)),
        ]
        for what, count, isBad in facts:
            self._report.add("clients", what=what, count=int(count), verdict="BAD" if isBad else "fine")
        ordered = sorted(self._latencies)
        for name, fraction in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)):
            latency = ordered[min(int(fraction * len(ordered)), len(ordered) - 1)]
            self._report.add("client of good manners", latency=name, milliseconds=1000 * latency)
        for attack, count in sorted(self._attacks.items()):
            self._report.add("attacks", attack=attack, count=count)

    def _judgeFaults(self, complaints: Sequence[str], status: int) -> None:
        samples = [sample for _, sample in self._samples]
        faults: list[tuple[str, int]] = [
            ("complaints in the broker's log", len(complaints)),
            ("exit status of the broker", status),
            ("leases dropped without a release", int(samples[-1]["reclaimed"])),
            ("samples in which the ledger drifts from the leases", sum(sample["drift"] > 0 for sample in samples)),
            ("companions that failed", self._attacker.hasFailed + self._passers.hasFailed),
        ]
        for what, count in faults:
            self._report.add("faults", what=what, count=count, verdict="BAD" if count else "fine")
        for line in complaints[:20]:
            self._report.add("complaints", line=line.strip()[:200])
        others = [*self._books.errors.items(), *self._reader.errors.items(), *self._failures.items()]
        for what, count in [*others, *self._troubles.items()]:
            self._report.add("what clients were told", count=count, what=what[:160])


def isBad(row: Mapping[str, Any]) -> bool:
    """
    Whether a row has a bad verdict, which is written large.
    """
    return str(row.get("verdict", "")).isupper()


def main() -> int:
    """
    The command line.

    @return: the exit status.
    """
    first, _, rest = str(__doc__).strip().partition("\n\n")
    parser = argparse.ArgumentParser(
        description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="for how long; 10 by default, 60 to be sure")
    parser.add_argument("--idle", type=int, default=10_000, help="idle connections, before that; 10000 by default")
    parser.add_argument("--paused", type=int, default=2000, help="connections that wait, of each kind; 2000 by default")
    parser.add_argument(
        "--seed", type=int, default=0, help="decides who comes, who is killed, and which attack is next"
    )
    parser.add_argument("--json", action="store_true", help="print JSON and no tables")
    options = parser.parse_args()
    if options.minutes < 1:
        parser.error("--minutes: a run takes a minute at least, or there is no second half to look at")
    report = Report(
        f"A broker for {options.minutes:g} minutes under everything at once; seed {options.seed}", options.minutes < 10
    )

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if options.idle or options.paused:
        measureConnections(report, options.idle, options.paused, tell)
    Soak(report, options.minutes, options.seed, tell).run()
    bad = [f"{table}: {row}" for table, rows in report.tables.items() for row in rows if isBad(row)]
    print(report.asJson() if options.json else report.asText())
    for line in bad:
        tell(f"bad: {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

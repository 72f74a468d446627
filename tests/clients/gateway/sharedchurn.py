"""
Gateways that share limits, in front of a real cluster, while clients come and go and gateways and nodes are killed::

    python -m tests.clients.gateway.sharedchurn --minutes 20 --seed 1

takes three nodes of Apache Kafka on loopback; C{--minutes 2} is its short form, C{--processes 2} has gateways of
several processes, and further options of theirs come after C{--}.  In each round clients produce to a topic of its own,
and a node, a gateway and a process of one are killed and begin again at moments that the seed says.  Then nothing
acknowledged may be lost, nothing may be stored twice, and what clients got in any ten seconds has to be within the
bound of L{admission.shares.limitsharing}.  Between rounds nobody is connected, and the gateway that is never killed may
not have grown.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from attrs import define, field, frozen
from confluent_kafka import Producer

from admission.shares.limitsharing import LOST_SECONDS
from tests.clients.gateway.sharedlimits import CLIENT, INTERVAL_SECONDS, TRIP_SECONDS, SharingGateway, gateways
from tests.kit.brokerprocess import PATIENCE_SECONDS, anonymousBytes
from tests.kit.kafkacluster import KafkaCluster

GATEWAYS = 3
NODES = (1, 2, 3)

RATE = 250_000
BURST_SECONDS = 1.0
RECORD_BYTES = 1000
UNSENT = 16
"""How many records a client has on their way at most."""

MAX_CLIENTS = 16
STAY_SECONDS = (2.0, 15.0)
"""How long a client stays."""

CHANGE_SECONDS = (3.0, 8.0)
"""How long there are as many clients."""

ROUND_SECONDS = 40
KILLED_SECONDS = (4.0, 20.0)
"""When something is killed in a round."""

NODE_DOWN_SECONDS = (3.0, 12.0)
GATEWAY_DOWN_SECONDS = (0.5, 8.0)
QUIET_SECONDS = 5.0
WINDOW_SECONDS = 10
LOOK_SECONDS = 0.5

GROWN_BYTES = 4 << 20
"""What a process may grow by between quiet moments, see L{tests.clients.gateway.test_churn}."""

GROWN_DESCRIPTORS = 8
"""Nodes that have come back may have connections or not have them yet."""


class Crowd:
    """
    Idempotent producers that come and go, from one to L{MAX_CLIENTS} at a time, each at a partition.

    @ivar acknowledged: the names of records that are stored.
    @ivar count: how many clients there were.
    @ivar most: how many at a time.
    @ivar gotBytes: by second since the beginning, what was acknowledged.
    @ivar failed: what was given up although its client waited, and why.
    """

    def __init__(self, addresses: Sequence[str], topic: str, seed: str) -> None:
        self.acknowledged: list[bytes] = []
        self.count = self.most = 0
        self.gotBytes: Counter[int] = Counter()
        self.failed: list[str] = []
        self.begunSeconds = time.monotonic()
        self._addresses, self._topic, self._chance, self._seed = addresses, topic, Random(seed), seed
        self._clients: list[threading.Thread] = []
        self._wanted = 0
        self._isOver = False
        self._lock = threading.Lock()
        self._leader = threading.Thread(target=self._run, daemon=True)
        self._leader.start()

    def stop(self) -> None:
        """Wait until the last of them has left."""
        self._isOver = True
        for each in (self._leader, *self._clients):
            each.join(3 * PATIENCE_SECONDS)
            assert not each.is_alive(), "a client does not leave"

    def _run(self) -> None:
        changeSeconds = 0.0
        while not self._isOver:
            now = time.monotonic()
            if now >= changeSeconds:
                self._wanted = self._chance.randint(1, MAX_CLIENTS)
                changeSeconds = now + self._chance.uniform(*CHANGE_SECONDS)
            self._clients = [each for each in self._clients if each.is_alive()]
            while len(self._clients) < self._wanted:
                name = f"{self._seed}.{self.count}"
                self._clients.append(threading.Thread(target=self._stay, args=(name,), daemon=True))
                self._clients[-1].start()
                self.count += 1
            self.most = max(self.most, len(self._clients))
            time.sleep(0.1)

    def _stay(self, name: str) -> None:
        chance = Random(name)
        leaveSeconds = time.monotonic() + chance.uniform(*STAY_SECONDS)
        partition, isPatient = chance.randrange(len(NODES)), chance.random() < 0.7
        producer = Producer(
            {
                "bootstrap.servers": ",".join(chance.sample(self._addresses, len(self._addresses))),
                "client.id": CLIENT,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": UNSENT,
                "message.timeout.ms": round(2 * PATIENCE_SECONDS * 1000),
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        isLeaving = False

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                with self._lock:
                    self.acknowledged.append(_nameOf(message.value()))
                    self.gotBytes[int(time.monotonic() - self.begunSeconds)] += RECORD_BYTES
            elif not isLeaving:
                self.failed.append(f"{name}: {error}")

        number = 0
        while time.monotonic() < leaveSeconds and not self._isOver:
            with suppress(BufferError):
                while True:
                    record = f"{name}.{number}".encode().ljust(RECORD_BYTES)
                    producer.produce(self._topic, record, partition=partition, on_delivery=delivered)
                    number += 1
            producer.poll(0.02)
        # Some leave in the middle of it.
        if isPatient and producer.flush(2 * PATIENCE_SECONDS):
            self.failed.append(f"{name}: some records are still on their way")
        isLeaving = True
        producer.purge()
        producer.flush(1.0)


def _nameOf(record: bytes) -> bytes:
    return record.rstrip()


@define
class Disturbance:
    """
    Something after which gateways may not hear from each other.

    @ivar begunSeconds: when it was.
    @ivar overSeconds: when all that run did again.
    """

    begunSeconds: float
    overSeconds: float = inf


class Watch:
    """
    Asks the gateways all the time whether they hear from each other.

    @ivar longestTripSeconds: of a message, while they did.
    """

    def __init__(self, made: Sequence[SharingGateway]) -> None:
        self.disturbances: list[Disturbance] = []
        self.longestTripSeconds = 0.0
        self._made = made
        self._isOver = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def disturbed(self) -> None:
        """Something has happened now."""
        self.disturbances.append(Disturbance(time.monotonic()))

    def stop(self) -> None:
        """Ask no more."""
        self._isOver = True
        self._thread.join(PATIENCE_SECONDS)

    def _run(self) -> None:
        while not self._isOver:
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            sharing = [_sharingOf(each) for each in self._made if each.isRunning()]
            if all(each is not None and each["isLive"] for each in sharing):
                trips = [each["tripSeconds"] for each in sharing if each is not None]
                self.longestTripSeconds = max(self.longestTripSeconds, *trips)
                for each in self.disturbances:
                    # Until it is noticed all seems to be well.
                    if each.overSeconds == inf and now > each.begunSeconds + LOST_SECONDS + 1.0:
                        each.overSeconds = now + LOST_SECONDS


def _sharingOf(gateway: SharingGateway) -> dict[str, Any] | None:
    # It may be killed meanwhile.
    with suppress(OSError, ValueError):
        return gateway.sharing
    return None


@frozen
class Held:
    """What a gateway holds while nobody is connected."""

    memoryBytes: int
    descriptors: int


@define
class Figures:
    """
    A round.

    @ivar failures: how often gateways may have stopped hearing from each other.
    @ivar mean: how many times the limit clients got.
    @ivar windows: for each ten seconds how far they were beyond the limit, and how far they may have been, in seconds
        of it.
    @ivar tripSeconds: the longest of a message between gateways.
    @ivar lost: acknowledged records that are not stored.
    @ivar twice: records that are stored more than once.
    """

    name: str
    clients: int
    most: int
    acknowledged: int
    failures: int
    mean: float
    windows: list[tuple[float, float]]
    tripSeconds: float
    held: Held
    lost: list[bytes] = field(factory=list)
    twice: list[bytes] = field(factory=list)

    @property
    def nearest(self) -> tuple[float, float]:
        """The window in which clients came nearest to what they may have."""
        return min(self.windows, key=lambda each: each[1] - each[0])

    def row(self) -> str:
        """For a table."""
        beyond, allowed = self.nearest
        cells = (
            self.name,
            f"{self.clients}, {self.most}",
            self.acknowledged,
            f"{len(self.lost)}, {len(self.twice)}",
            self.failures,
            f"{self.mean:.2f}",
            f"{max(self.windows)[0]:.2f}",
            f"{beyond:.2f} of {allowed:.2f}",
            f"{self.tripSeconds:.2f} s",
            f"{self.held.memoryBytes / 2**20:.1f} MiB, {self.held.descriptors}",
        )
        return f"| {' | '.join(map(str, cells))} |"

    def wrong(self) -> list[str]:
        """What should not be."""
        beyond, allowed = self.nearest
        found = {
            f"lost: {self.lost[:10]}": bool(self.lost),
            f"stored twice: {self.twice[:10]}": bool(self.twice),
            f"{beyond:.2f} s beyond the limit, of {allowed:.2f}": beyond > allowed,
        }
        return [f"{self.name}: {what}" for what, isWrong in found.items() if isWrong]


TITLES = """\
| round | clients, at once | records | lost, twice | failures | mean | most beyond | nearest bound | trip | held |
|---|---|---|---|---|---|---|---|---|---|"""


class Churn:
    """A cluster, gateways before it, and what happens to them."""

    def __init__(
        self, cluster: KafkaCluster, count: int, seed: int, processes: int = 1, options: Sequence[str] = ()
    ) -> None:
        """
        @param count: how many gateways there are; nothing of the first is ever killed.
        @param processes: how many each has.
        @param options: further ones of each.
        """
        self._cluster = cluster
        self._processes = processes
        self._seed = seed
        self._rounds = 0
        ids = ("--quota", "producer-ids:rate=10000:window=1m")
        quota = f"client-bytes:received={RATE}:burst={BURST_SECONDS:g}s"
        several = ("--processes", str(processes))
        self.gateways = gateways(cluster, count, *ids, *several, *options, quota=quota)

    def remove(self) -> None:
        """End the gateways."""
        for each in self.gateways:
            each.remove()

    def round(self) -> Figures:
        """Let clients come and go, kill a node and a gateway meanwhile, and see what became of it."""
        self._rounds += 1
        name = f"{self._seed}.{self._rounds}"
        topic = f"shared-churn-{name}"
        # Where a node is killed, clients of one partition go on at once, although gateways hear nothing.
        self._cluster.createTopic(topic, replicas=[[1, 2], [2, 3], [3, 1]], min_insync_replicas=1)
        watch = Watch(self.gateways)
        crowd = Crowd([each.address for each in self.gateways], topic, name)
        try:
            for atSeconds, action in sorted(self._plan(Random(name), watch), key=lambda each: each[0]):
                time.sleep(max(crowd.begunSeconds + atSeconds - time.monotonic(), 0.0))
                action()
            time.sleep(max(crowd.begunSeconds + ROUND_SECONDS - time.monotonic(), 0.0))
        finally:
            crowd.stop()
            watch.stop()
        self._cluster.heal()
        assert not crowd.failed, crowd.failed
        stored = Counter(map(_nameOf, self._cluster.values(topic)))
        time.sleep(QUIET_SECONDS)
        got = sum(count for second, count in crowd.gotBytes.items() if second < ROUND_SECONDS)
        return Figures(
            name,
            crowd.count,
            crowd.most,
            len(crowd.acknowledged),
            len(watch.disturbances),
            got / RATE / ROUND_SECONDS,
            self._windows(crowd, watch),
            watch.longestTripSeconds,
            self._held(),
            [*(Counter(crowd.acknowledged) - stored)],
            [each for each, count in stored.items() if count > 1],
        )

    def _plan(self, chance: Random, watch: Watch) -> list[tuple[float, Callable[[], object]]]:
        """When to do what, in seconds since the beginning; for the main thread, with which processes end."""
        node, gateway = chance.choice(NODES), chance.choice(self.gateways[1:])
        nodeSeconds, gatewaySeconds = chance.uniform(*KILLED_SECONDS), chance.uniform(*KILLED_SECONDS)

        def killNode() -> None:
            watch.disturbed()
            self._cluster.kill(node)

        def startGateway() -> None:
            watch.disturbed()
            gateway.start()

        def killProcess() -> None:
            with suppress(OSError, ValueError):
                one = chance.choice(
                    [each["pid"] for each in chance.choice(self.gateways[1:]).ask("status.json")["processes"]]
                )
                watch.disturbed()
                os.kill(one, signal.SIGKILL)

        processSeconds = chance.uniform(*KILLED_SECONDS)
        return [
            *([(processSeconds, killProcess)] if self._processes > 1 else []),
            (nodeSeconds, killNode),
            (nodeSeconds + chance.uniform(*NODE_DOWN_SECONDS), self._cluster.heal),
            (gatewaySeconds, gateway.kill),
            (gatewaySeconds + chance.uniform(*GATEWAY_DOWN_SECONDS), startGateway),
        ]

    def _windows(self, crowd: Crowd, watch: Watch) -> list[tuple[float, float]]:
        """For each ten seconds how far clients were beyond the limit, and how far they may have been."""
        others = len(self.gateways) * self._processes - 1
        lagSeconds = INTERVAL_SECONDS + max(TRIP_SECONDS, watch.longestTripSeconds)
        inProgress = crowd.most * UNSENT * RECORD_BYTES / RATE
        calm = BURST_SECONDS + others * lagSeconds + INTERVAL_SECONDS / 2 + inProgress
        found = []
        for first in range(max(crowd.gotBytes, default=0) + 1):
            last = first + WINDOW_SECONDS
            begun, over = crowd.begunSeconds + first, crowd.begunSeconds + last
            failures = sum(each.begunSeconds < over and each.overSeconds > begun for each in watch.disturbances)
            beyond = sum(crowd.gotBytes[second] for second in range(first, last)) / RATE - WINDOW_SECONDS
            found.append((beyond, calm + failures * others * (LOST_SECONDS + lagSeconds)))
        return found

    def _held(self) -> Held:
        pid = self.gateways[0].process.pid
        pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        return Held(sum(map(anonymousBytes, pids)), sum(len(os.listdir(f"/proc/{each}/fd")) for each in pids))


def grown(held: Sequence[Held]) -> str:
    """
    What has grown from one half of the time to the other, after a quarter in which all is made for the first time.

    @return: empty if nothing has.
    """
    settled = held[len(held) // 4 :]
    half = len(settled) // 2
    found = []
    for name, slack in (("memoryBytes", GROWN_BYTES), ("descriptors", GROWN_DESCRIPTORS)):
        before, after = (min(getattr(each, name) for each in part) for part in (settled[:half], settled[half:]))
        if after > before + slack:
            found.append(f"{name} grow: {[getattr(each, name) for each in held]}")
    return "; ".join(found)


def run(minutes: float, seed: int, count: int = GATEWAYS, processes: int = 1, options: Sequence[str] = ()) -> list[str]:
    """
    Print a row for each round, and two at least.

    @return: what was wrong.
    """
    wrong: list[str] = []
    held: list[Held] = []
    cluster = KafkaCluster()
    cluster.start()
    try:
        churn = Churn(cluster, count, seed, processes, options)
        try:
            print(TITLES, flush=True)
            end = time.monotonic() + 60 * minutes
            while time.monotonic() < end or len(held) < 2:
                figures = churn.round()
                print(figures.row(), flush=True)
                held.append(figures.held)
                wrong += figures.wrong()
            for each in churn.gateways:
                wrong += each.complaints()
        finally:
            churn.remove()
    finally:
        cluster.remove()
    return [*wrong, *filter(None, [grown(held)])]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Gateways that share limits, while all come and go.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gateways", type=int, default=GATEWAYS)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("options", nargs="*", help="further options of the gateways, after --")
    given = parser.parse_args()
    found = run(given.minutes, given.seed, given.gateways, given.processes, given.options)
    sys.exit("\n".join(found) or None)

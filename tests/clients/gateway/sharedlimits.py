"""
Gateways that share limits, in front of a real cluster: what clients get of a limit, in a table::

    python -m tests.clients.gateway.sharedlimits

Figures are parts of what one gateway lets through that shares with nobody.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from attrs import frozen
from confluent_kafka import Producer

from admission.shares.limitsharing import LOST_SECONDS
from tests.kit.brokerprocess import PATIENCE_SECONDS, freePort
from tests.kit.gatewayprocess import GatewayProcess
from tests.kit.kafkacluster import KafkaCluster
from tests.kit.sharedservers import beyond

RATE = 250_000
"""So little that a slow machine can do more."""

INTERVAL_SECONDS = 0.1
TRIP_SECONDS = 0.1
"""The longest that was measured."""

CLIENT = "alice"
TOPIC = "shared-limits"
LEADER, USAGE_LEADER = 1, 3
NAME = "__admission"
RECORD_BYTES = 5000
AFTER_SECONDS = 4
"""By then the burst is spent."""

UNSENT = 16


class SharingGateway(GatewayProcess):
    """One of several."""

    def __init__(self, upstream: str, *options: str, quota: str = f"client-bytes:received={RATE}") -> None:
        self._statusPort = freePort()
        status = f"tcp:{self._statusPort}:interface=127.0.0.1"
        super().__init__(upstream, "--quota", quota, "--status", status, *options)

    def ask(self, page: str) -> Any:
        """What a page of its status port says."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._statusPort}/{page}", timeout=10) as answer:
            return json.load(answer)

    @property
    def sharing(self) -> dict[str, Any]:
        """What its page says of that."""
        found: dict[str, Any] = self.ask("status.json")["sharing"]
        return found


def quotas(command: str, gateway: GatewayProcess, *arguments: str) -> str:
    """What C{admission quotas} says at a gateway."""
    words = [sys.executable, "-m", "admission", "quotas", command, "--broker", gateway.address, *arguments]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS).stdout


def idempotent(*gateways: GatewayProcess, seconds: float = 20.0, **settings: Any) -> Producer:
    """
    A producer with an id of its own, that may go to any of these.

    @param seconds: how long it tries to have a record taken.
    """
    return Producer(
        {
            "bootstrap.servers": ",".join(each.address for each in gateways),
            "enable.idempotence": True,
            "message.timeout.ms": round(1000 * seconds),
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            **settings,
        }
    )


def sent(*producers: Producer) -> list[bool]:
    """Whether a record of each is taken."""
    taken = [False] * len(producers)
    for index, producer in enumerate(producers):

        def delivered(error: object, message: object, index: int = index) -> None:
            taken[index] = error is None

        producer.produce(TOPIC, b"record", partition=0, on_delivery=delivered)
    for producer in producers:
        producer.flush(PATIENCE_SECONDS)
    return taken


def gateways(cluster: KafkaCluster, count: int, *options: str, **settings: str) -> list[SharingGateway]:
    """Started, and aware of each other."""
    sharing = ("--shared-limits", "topic", "--gateways", str(count)) if count > 1 else ()
    made = [SharingGateway(cluster.bootstrap, *sharing, *options, **settings) for _ in range(count)]
    for each in made:
        each.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not all(map(_hasHeard, made)):
        assert time.monotonic() < deadline, [each.sharing for each in made]
        time.sleep(0.1)
    return made


def _hasHeard(gateway: SharingGateway) -> bool:
    # Its page may not be there yet.
    with suppress(OSError):
        sharing = gateway.sharing
        return bool(sharing["isLive"] and sharing["heardSeconds"] is not None)
    return False


class Senders:
    """
    Connections of one client to a gateway, which send as fast as they may or at a rate.

    @ivar sentBytes: what was acknowledged.
    """

    def __init__(self, address: str, count: int, rate: float = float("inf")) -> None:
        self.sentBytes = 0
        self._isOver = False
        self._threads = [
            threading.Thread(target=self._run, args=(address, rate / count), daemon=True) for _ in range(count)
        ]
        for each in self._threads:
            each.start()

    def _run(self, address: str, rate: float) -> None:
        producer = Producer(
            {
                "bootstrap.servers": address,
                "client.id": CLIENT,
                "acks": "1",
                "linger.ms": 5,
                "batch.size": 16_000,
                "queue.buffering.max.messages": UNSENT,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        begun, offeredBytes, record = time.monotonic(), 0, bytes(RECORD_BYTES)
        while not self._isOver:
            if offeredBytes <= rate * (time.monotonic() - begun):
                try:
                    producer.produce(TOPIC, record, partition=0, on_delivery=self._delivered)
                    offeredBytes += RECORD_BYTES
                except BufferError:
                    pass
            producer.poll(0.002)
        producer.purge()
        producer.flush(1)

    def _delivered(self, error: object, message: Any) -> None:
        if error is None:
            self.sentBytes += len(message.value())

    def stop(self) -> None:
        """Send nothing more."""
        self._isOver = True
        for each in self._threads:
            each.join(PATIENCE_SECONDS)


def measured(
    senders: Sequence[Senders], seconds: int, happens: Callable[[int], object] = lambda second: None
) -> list[float]:
    """
    What clients get each second, of the limit.

    @param happens: called at the beginning of each.
    """
    found, before, begun = [], 0, time.monotonic()
    for second in range(seconds):
        happens(second)
        time.sleep(max(begun + second + 1 - time.monotonic(), 0.0))
        sent = sum(each.sentBytes for each in senders)
        found.append((sent - before) / RATE)
        before = sent
    return found


@frozen
class Scenario:
    """
    What clients do, and what happens meanwhile.

    @ivar connections: how many there are at each gateway, and at which rate they send together.
    @ivar happens: called at the beginning of each second.
    @ivar failures: how often gateways stop hearing from each other.
    @ivar processes: how many each gateway has.
    """

    name: str
    connections: Sequence[tuple[int, float]]
    seconds: int = 20
    burstSeconds: float = 1.0
    failures: int = 0
    processes: int = 1
    happens: Callable[[int, KafkaCluster, Sequence[SharingGateway]], object] = lambda *_: None

    def bound(self) -> float:
        """How far clients may be beyond the limit, see L{admission.shares.limitsharing}, in seconds of it."""
        others = len(self.connections) * self.processes - 1
        lagSeconds = INTERVAL_SECONDS + TRIP_SECONDS
        # A request of each connection is in progress.
        inProgress = sum(count for count, _ in self.connections) * UNSENT * RECORD_BYTES / RATE
        lost = self.failures * (LOST_SECONDS + lagSeconds)
        return self.burstSeconds + others * (lagSeconds + lost) + INTERVAL_SECONDS / 2 + inProgress


FAST = float("inf")


def _at(second: int, action: Callable[[KafkaCluster, Sequence[SharingGateway]], object]) -> Any:
    return lambda now, cluster, made: action(cluster, made) if now == second else None


def _frozenAndThawed(now: int, cluster: KafkaCluster, made: Sequence[SharingGateway]) -> None:
    if now == 8:
        cluster.freeze(USAGE_LEADER)
    elif now == 16:
        cluster.thaw(USAGE_LEADER)


SCENARIOS = (
    Scenario("90/10, twice the limit offered", [(2, 1.8 * RATE), (1, 0.2 * RATE)]),
    Scenario("as fast as they may, 2 and 2 connections", [(2, FAST), (2, FAST)]),
    Scenario("all at one", [(4, FAST), (0, FAST)]),
    Scenario("four gateways, a connection each, burst=250ms", [(1, FAST)] * 4, burstSeconds=0.25),
    *(
        Scenario(f"one gateway of two processes, {count} connections", [(count, FAST)], processes=2)
        for count in (1, 2, 4, 8)
    ),
    Scenario("two gateways of two processes each, 2 and 2 connections", [(2, FAST), (2, FAST)], processes=2),
    Scenario("one of two gateways killed", [(2, FAST), (2, FAST)], 24, happens=_at(10, lambda _, made: made[0].kill())),
    Scenario("the exchange's node frozen for 8 s", [(2, FAST), (2, FAST)], 30, failures=1, happens=_frozenAndThawed),
    Scenario(
        "the exchange's node killed",
        [(2, FAST), (2, FAST)],
        30,
        failures=1,
        happens=_at(8, lambda cluster, _: cluster.kill(USAGE_LEADER)),
    ),
)


def prepare(cluster: KafkaCluster) -> None:
    """Have the topics led by nodes that can be told apart."""
    cluster.createTopic(TOPIC, replicas=[[LEADER, 2]], min_insync_replicas=1)
    for each in ("usage", "kept"):
        cluster.createTopic(f"{NAME}-{each}", replicas=[[USAGE_LEADER, LEADER, 2]], min_insync_replicas=1)


def run(cluster: KafkaCluster, scenario: Scenario) -> tuple[list[float], str]:
    """@return: what clients got each second, and what the pages said in the end."""
    quota = f"client-bytes:received={RATE}:burst={scenario.burstSeconds:g}s"
    made = gateways(cluster, len(scenario.connections), "--processes", str(scenario.processes), quota=quota)
    senders: list[Senders] = []
    try:
        senders = [
            Senders(gateway.address, count, rate)
            for gateway, (count, rate) in zip(made, scenario.connections, strict=True)
            if count
        ]
        seconds = measured(senders, scenario.seconds, lambda now: scenario.happens(now, cluster, made))
        shown = "; ".join(str(each.sharing) for each in made if each.isRunning())
    finally:
        for each in senders:
            each.stop()
        for gateway in made:
            gateway.remove()
    return seconds, shown


def alone(cluster: KafkaCluster) -> float:
    """What one gateway lets through that shares with nobody: a little less than the limit, which counts requests."""
    gateway = SharingGateway(cluster.bootstrap, quota=f"client-bytes:received={RATE}:algorithm=bucket")
    gateway.start()
    senders = Senders(gateway.address, 2)
    try:
        return sum(measured([senders], AFTER_SECONDS + 8)[AFTER_SECONDS:]) / 8
    finally:
        senders.stop()
        gateway.remove()


def rows(cluster: KafkaCluster, scenarios: Sequence[Scenario]) -> Iterator[str]:
    """A row of the table for each."""
    prepare(cluster)
    whole = alone(cluster)
    for scenario in scenarios:
        found, shown = run(cluster, scenario)
        cluster.heal()
        seconds = [each / whole for each in found]
        rest = seconds[AFTER_SECONDS:]
        yield (
            f"| {scenario.name} | {sum(rest) / len(rest):.3f} | {max(rest):.2f} / {min(rest):.2f} | "
            f"{beyond(seconds):.2f} | {scenario.bound():.2f} |"
        )
        print(" ".join(f"{each:.2f}" for each in seconds), shown, file=sys.stderr, flush=True)


if __name__ == "__main__":
    wanted = sys.argv[1:]
    started = KafkaCluster()
    started.start()
    try:
        print("| scenario | mean after 4 s | worst / least second | most beyond | bound |\n|---|---|---|---|---|")
        for row in rows(started, [each for each in SCENARIOS if not wanted or each.name in wanted]):
            print(row, flush=True)
    finally:
        started.remove()

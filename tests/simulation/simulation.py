"""Some lives of a broker, its clients, and what befalls them, decided by a seed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import cache
from math import inf
from random import Random
from typing import Any, cast
from unittest.mock import patch
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.python.failure import Failure

from admission import plugins
from admission.garbage import GarbageCollection
from admission.kafka.broker import service as servicemodule
from admission.kafka.broker.api import produceapi
from admission.kafka.broker.brokersettings import loadSettings
from admission.kafka.broker.log import segmentlog
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.broker.service import BrokerConfig, BrokerService
from admission.kafka.serving import kafkaservice
from admission.kafka.serving.serveroptions import Listener
from admission.kafka.storage.itable import LogRefusal
from admission_plugins.bounded import Ledger
from tests.kit.logfixture import storageError
from tests.kit.simulateddisk import FreeLock, PowerLost, SimulatedDisk

from .clients import Administrator, Client, Consumer, Member, Producer
from .history import ALL, History
from .invariants import checkAlways, checkBalance, checkEmpty, checkWaiting, watchedConnections
from .machine import Machine, WorldClock
from .network import Disconnected, Network, Violation
from .rogue import Rogue

ROOT = "/data"
PATIENCE_SECONDS = 120.0
"""How long a client of good manners waits for any answer, at most, while the machine and its disk are well."""

QUOTA_BYTES = 2000
"""How many bytes a second the limited producer may send."""

UNFLUSHED_SECONDS = 5.0
"""How old may be what no flush has taken to a disk that is well."""

MAX_CALLS = 40_000
"""How much may happen in a quarter of a second."""

_TOPICS = {"a": 2, "b": 1, "short": 1, "offsets": 4}
_FORGETFUL = ("short", 0)
_TRACED = 40

_listFactories = cache(plugins.listFactories)


class Simulation:
    """
    @ivar seed: decides everything.
    @ivar trace: what has happened, for people.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace: list[str] = []
        self.random = Random(seed)
        self.world = WorldClock()
        self.network = Network(self.world, self.random)
        self.history = History()
        self.disk = SimulatedDisk(ROOT, Random(seed + 1))
        self.machine: Machine | None = None
        self.service: BrokerService | None = None
        self.clients: list[Client] = []
        self._wallSeconds = 1_000_000_000.0
        self._readingSeconds = self.random.choice([1e-7, 1e-6, 1e-4])
        self._throttleMaxSeconds = self.random.choice([1, 20])
        # From how many partitions on a Produce is appended in steps.
        self._manyPartitions = self.random.choice([0, 1, 64])
        self._settings = self._drawSettings()
        self._running = 0
        self._problems: list[Exception] = []
        self._lastCheckSeconds = 0.0
        self._calls = 0
        # Since when the broker has all that it needs, and since when it runs; what had been sent then.
        self._wellSinceSeconds = self._bootedSeconds = 0.0
        # Since when the disk of this life takes nothing, or has taken nothing for a while.
        self._troubledSeconds = inf
        self._doesFlushFail = False
        self._limitedBytes = 0

    def run(self) -> None:
        """
        Live through it.

        @raise Violation: if a promise was broken.
        """
        try:
            with self._patched(), capturedLogs() as logged:
                self._logged: Any = logged
                self._live()
        except Exception as error:
            text = "\n".join(self.trace[-_TRACED:])
            raise Violation(
                f"{type(error).__name__}: {error}\n\n{text}\n\nseed {self.seed}; again: make simulate SEED={self.seed}"
            ) from error

    def summary(self) -> str:
        """What came of it; the same for the same seed."""
        history = self.history
        return (
            f"{history.ackCount} batches acknowledged, {history.readCount} read, {history.commitCount} offsets "
            f"committed in {self.world.now:.9f} s"
        )

    def _drawSettings(self) -> list[str]:
        choice = self.random.choice
        pool = choice(["600KiB", "2MiB", "64MiB"])
        self.network.isRoomy = pool == "64MiB"
        return [
            f"queued.max.request.bytes={pool}",
            f"socket.request.max.bytes={choice(['64KiB', '500KiB'])}",
            f"queued.max.requests={choice([1, 3, 500])}",
            f"max.connections={choice([20, 1000])}",
            f"connections.max.idle.ms={choice([20_000, 60_000])}",
            f"request.receive.timeout={choice(['5s', '30s'])}",
            f"response.send.timeout={choice(['5s', '30s'])}",
            f"fetch.max.wait.ms={choice([3000, 60_000])}",
            f"log.flush.interval.ms={choice([100, 1000])}",
            f"log.segment.bytes={choice(['2KiB', '20KiB', '1GiB'])}",
            f"log.max.open.files={choice([10, 100])}",
            f"group.initial.rebalance.delay.ms={choice([0, 500])}",
            f"quota.throttle.max={self._throttleMaxSeconds}s",
            f"quota.producer.override=limited:{QUOTA_BYTES}",
            "auto.create.topics.enable=false",
            "log.retention.check.interval.ms=3000",
        ]

    # The story

    def _live(self) -> None:
        random = self.random
        self._boot()
        self._do(self._prepare())
        self._addClients()
        for client in self.clients:
            self._start(client.run())
        for _ in range(random.randint(1, 6)):
            self._pass(random.choice([0.3, 2.0, 8.0]) * random.random())
            self._befall()
        self._mend()
        self._note("calm")
        before = [client.doneCount for client in self.clients]
        self._pass(30.0)
        for client, count in zip(self.clients, before, strict=True):
            if client.doneCount == count and not isinstance(client, Rogue):
                raise Violation(f"{client.name} gets nowhere")
        self._endClients()
        self._endBroker()

    async def _prepare(self) -> None:
        connection = await self.network.connect("setup", "192.0.2.9", False)
        topics = []
        for name, count in _TOPICS.items():
            configs = {"retention.bytes": "3000", "segment.bytes": "2000"} if name == "short" else {}
            topics.append(
                {
                    "name": name,
                    "num_partitions": count,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [{"name": key, "value": value} for key, value in configs.items()],
                }
            )
        answer = await connection.ask("CreateTopics", 5, topics=topics, timeout=30_000, validate_only=False)
        for topic in answer.topics:
            if topic.error_code:
                raise Violation(f"{topic.name} cannot be made: {topic.error_message}")
        self.history.forgetful.add(_FORGETFUL)
        connection.close()

    def _addClients(self) -> None:
        random = self.random
        a, b = [("a", 0), ("a", 1)], [("b", 0)]
        everywhere = [*a, *b, _FORGETFUL]
        self._limited = Producer(
            "limited", self.network, self.history, b, random.choice([1, ALL]), random.random() < 0.5
        )
        self._limited.isEvasive = random.random() < 0.5
        self.clients.append(self._limited)
        self._add(Producer, "idempotent", a, ALL, True)
        for number in range(random.randint(0, 3)):
            acks = random.choice([0, 1, ALL])
            isIdempotent = acks != 0 and random.random() < 0.6
            self._add(Producer, f"p{number}", random.choice([a, everywhere]), acks, isIdempotent)
        self._add(Consumer, "reader", "a", 2)
        for number in range(random.randint(0, 3)):
            self._add(Consumer, f"c{number}", *random.choice([("b", 1), ("b", 1), ("short", 1)]))
        for number in range(random.randint(1, 4)):
            self._add(Member, f"m{number}", random.choice(["g0", "g1"]), number)
        self._add(Administrator, "admin")
        for number in range(random.choice([0, 1, 4])):
            self._add(Rogue, f"r{number}")

    def _add(self, kind: Any, name: str, *arguments: Any) -> None:
        self.clients.append(kind(name, self.network, self.history, *arguments))

    def _befall(self) -> None:
        """Something happens to the broker."""
        misfortune = self.random.choice(
            [
                self._kill,
                self._kill,
                self._losePower,
                self._losePower,
                self._restart,
                self._fillDisk,
                self._hangDisk,
                self._breakDisk,
                self._breakLines,
                self._jumpInTime,
                self._dieSoon,
            ]
        )
        self._note(misfortune.__name__)
        misfortune()

    def _kill(self) -> None:
        self._die(isPowerLost=False)
        self._boot()

    def _losePower(self) -> None:
        self._die(isPowerLost=True)
        self._boot()

    def _dieSoon(self) -> None:
        """Die in the middle of something."""
        self.disk.countdown = self.random.randint(1, 100)
        self._pass(5.0)

    def _restart(self) -> None:
        if self._stopService():
            self._boot()

    def _fillDisk(self) -> None:
        self.disk.fault = self._fault(errno.ENOSPC, 1.0, "write", "reserve")
        self._wellSinceSeconds = inf
        self._pass(self.random.random() * 10.0)
        self._mend()

    def _hangDisk(self) -> None:
        assert self.machine is not None
        seconds = self.random.random() * 10.0
        self._troubledSeconds = min(self.world.now, self._troubledSeconds)
        self.machine.hangsUntilSeconds = self.world.now + seconds
        self._wellSinceSeconds = max(self._wellSinceSeconds, self.machine.hangsUntilSeconds)

    def _breakDisk(self) -> None:
        """The disk does not take what was written; the broker goes on as far as it can, until it is restarted."""
        self._troubledSeconds = min(self.world.now, self._troubledSeconds)
        self.disk.fault = self._fault(errno.EIO, self.random.choice([0.3, 1.0]), "flush", "flushDirectory")
        self._doesFlushFail = True
        self._wellSinceSeconds = inf
        self._pass(self.random.random() * 5.0)
        if self.machine is None or self.machine.isDead:
            return
        self._die(isPowerLost=self.random.random() < 0.5)
        self._boot()

    def _breakLines(self) -> None:
        for connection in list(self.network.connections):
            if self.random.random() < 0.5:
                connection.close()

    def _jumpInTime(self) -> None:
        self._wallSeconds += self.random.choice([-1.0, 1.0]) * self.random.choice([2.0, 100.0, 500.0])

    def _mend(self) -> None:
        self._checkLog()
        self.disk.fault = self.disk.countdown = None
        if self._wellSinceSeconds > self.world.now:
            self._wellSinceSeconds = self.world.now

    def _fault(self, code: int, probability: float, *operations: str) -> Callable[[str, str], OSError | None]:
        faults = Random(self.random.getrandbits(32))

        def fault(operation: str, path: str) -> OSError | None:
            if operation not in operations or faults.random() >= probability:
                return None
            return storageError(code)

        return fault

    # One life

    def _boot(self) -> None:
        machine = self.machine = Machine(
            self.world, Random(self.random.getrandbits(32)), self.disk, self._readingSeconds
        )
        settings = loadSettings(None, self._settings)
        config = BrokerConfig(settings, [Listener("tcp:9092", self.network, None)], ROOT)
        service = self.service = BrokerService(machine, config)
        self._note("boot")
        self._troubledSeconds = inf
        self._doesFlushFail = False
        service.startService()
        self.network.machine = machine
        self._wellSinceSeconds = self._bootedSeconds = self.world.now
        self._limitedBytes = self._limited.sentBytes if self.clients else 0
        log = service.broker.log
        if self.history.batches:
            self.history.check(log)

    def _die(self, isPowerLost: bool) -> None:
        """The process dies, or the whole machine."""
        machine = self.machine
        assert machine is not None
        self._checkLog()
        machine.die()
        machine.hasLostData = isPowerLost or self._doesFlushFail
        self.disk = self.disk.crash(self.random) if isPowerLost else self.disk.kill()
        self.network.lost()
        self.machine = self.service = None
        self._note(f"dead, power lost: {isPowerLost}")
        if machine.hasLostData:
            self._forget()

    def _forget(self) -> None:
        """Let a broker come up on what is left, to see what that is."""
        # What a disk in trouble has not taken may be older.
        sinceSeconds = min(self.world.now, self._troubledSeconds)
        self.network.lossCount += 1
        machine = Machine(self.world, Random(0), self.disk, 0.0)
        log = SegmentLog(ROOT, machine, self._wall, lambda *_: Deferred(), disk=self.disk, retentionSeconds=None)
        self.history.powerLost(log, sinceSeconds, UNFLUSHED_SECONDS)
        for client in self.clients:
            if isinstance(client, Consumer):
                client.powerLost(log.topic(client.topicName).partitions)
        machine.die()
        self.disk = self.disk.kill()

    def _stopService(self) -> bool:
        """@return: whether it has come to its end; otherwise it has died meanwhile, and there is another."""
        service, machine = self.service, self.machine
        assert service is not None and machine is not None
        stopping = service.stopService()
        stopping.addErrback(self._failed)
        until = self.world.now + 60.0
        while not stopping.called and not machine.isDead:
            if self.world.now > until:
                raise Violation("the broker does not stop")
            self._step()
        if machine.isDead:
            return False
        self._note("stopped")
        self._check()
        calls = machine.getDelayedCalls()
        if calls:
            raise Violation(f"the broker has stopped, and {len(calls)} timers run")
        machine.die()
        self.network.lost()
        # What was closed well needs no power.
        self.disk = self.disk.crash(self.random) if not self.disk.fault else self.disk.kill()
        self.machine = self.service = None
        return True

    def _endClients(self) -> None:
        """Have all clients go, and see that nothing is left of them."""
        for client in self.clients:
            client.isWanted = False
        until = self.world.now + 2 * PATIENCE_SECONDS
        while self._running:
            if self.world.now > until:
                raise Violation(f"{self._running} clients do not come to an end")
            self._step()
        # Rogues that have vanished are noticed when they have been silent for too long after their last answer.
        self._pass(200.0)
        assert self.service is not None
        checkEmpty(self.service)

    def _endBroker(self) -> None:
        assert self.service is not None
        self.history.check(self.service.broker.log)
        self._stopService()
        self._boot()

    # Time

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> Deferred[None]:
        self._running += 1
        running = Deferred.fromCoroutine(coroutine)

        def over(result: Any) -> Any:
            self._running -= 1
            return result

        running.addBoth(over)
        running.addErrback(self._failed)
        return running

    def _failed(self, failure: Failure) -> None:
        self._problems.append(cast(Exception, failure.value))

    def _do(self, coroutine: Coroutine[Any, Any, None]) -> None:
        running = self._start(coroutine)
        while not running.called:
            self._step()

    def _pass(self, seconds: float) -> None:
        until = self.world.now + seconds
        end = self.world.callLater(seconds, lambda: None)
        while self.world.now < until or end.active():
            self._step()

    def _step(self) -> None:
        """Go to the next thing that happens, and look whether all is well."""
        try:
            self.world.runNext()
        except PowerLost:
            pass
        if self.disk.isDead and self.machine is not None and not self.machine.isDead:
            self._die(isPowerLost=self.random.random() < 0.7)
            self._boot()
        self._check()

    def _check(self) -> None:
        if self._problems:
            raise self._problems[0]
        service = self.service
        if service is None:
            return
        checkAlways(service)
        now = self.world.now
        self._calls += 1
        if now - self._lastCheckSeconds < 0.25:
            if self._calls > MAX_CALLS:
                raise Violation(f"{self._calls} calls in {now - self._lastCheckSeconds:.3f} s: something goes round")
            return
        self._lastCheckSeconds, self._calls = now, 0
        checkBalance(service)
        checkWaiting(service)
        self._checkRate(now)
        self._checkLog()
        if now - self._wellSinceSeconds >= PATIENCE_SECONDS:
            for client in self.clients:
                connection = client.connection
                if connection is not None and connection.unansweredSeconds() > PATIENCE_SECONDS:
                    raise Violation(f"{client.name} has waited for {connection.unansweredSeconds():.1f} s")

    def _checkRate(self, now: float) -> None:
        """The limited producer has sent no more than it may, unless nobody may be told to wait as long as it takes."""
        if self.clients and self._throttleMaxSeconds >= 20:
            sentBytes = self._limited.sentBytes - self._limitedBytes
            # Kafka's windows, and the requests that were on their way before it was told to wait.
            allowedBytes = QUOTA_BYTES * (now - self._bootedSeconds + 12) + 2 * self._limited.largestBytes
            if sentBytes > allowedBytes:
                raise Violation(f"{sentBytes} bytes in {now - self._bootedSeconds:.1f} s, {allowedBytes} are allowed")

    def _checkLog(self) -> None:
        """The broker reports no failure of its own."""
        for event in self._logged:
            if event["log_level"] >= LogLevel.error and not self._isExpected(event):
                failure = event.get("log_failure")
                text = "" if failure is None else failure.getTraceback()
                raise Violation(f"the broker logs: {formatEvent(event)} {text}")
        del self._logged[:]

    def _isExpected(self, event: Any) -> bool:
        failure = event.get("log_failure")
        if failure is None:
            return self.disk.fault is not None
        if self.disk.fault is not None and failure.check(OSError, LogRefusal):
            return True
        return failure.check(PowerLost, Disconnected) is not None

    # What the broker has in place of a computer

    def _wall(self) -> float:
        return self._wallSeconds + self.world.now

    @contextmanager
    def _patched(self) -> Iterator[None]:
        ids = Random(self.seed + 2)
        dropped = Ledger.dropped

        def log(*arguments: Any, **named: Any) -> SegmentLog:
            return SegmentLog(*arguments, disk=self.disk, **named)

        def drop(pool: Ledger, *arguments: Any) -> None:
            # Of a process that has died nothing was released.
            broker: Any = getattr(self.service, "broker", None)
            if broker is not None and broker.gate.pool is pool:
                dropped(pool, *arguments)

        with (
            patch.object(Ledger, "dropped", drop),
            # Each life looks for plug-ins, and finds the same.
            patch.object(plugins, "listFactories", _listFactories),
            patch.object(kafkaservice, "MonotonicClock", lambda machine: machine),
            patch.object(kafkaservice, "wallSeconds", self._wall),
            patch.object(servicemodule, "wallSeconds", self._wall),
            patch.object(kafkaservice, "SystemRandom", lambda: Random(self.random.getrandbits(32))),
            patch.object(servicemodule, "SegmentLog", log),
            # It would look for garbage in all of this, and nobody waits for it.
            patch.object(GarbageCollection, "start", lambda garbage: None),
            patch.object(segmentlog, "DirectoryLock", FreeLock),
            patch.object(produceapi, "MANY_PARTITIONS", self._manyPartitions),
            patch.object(produceapi, "_PARTITIONS_AT_ONCE", 1),
            patch("uuid.uuid4", lambda: UUID(int=ids.getrandbits(128))),
            patch("admission.kafka.broker.groups.groupcoordinator.uuid4", lambda: UUID(int=ids.getrandbits(128))),
            patch("admission.kafka.broker.log.topics.uuid4", lambda: UUID(int=ids.getrandbits(128))),
            watchedConnections(),
        ):
            yield

    def _note(self, text: str) -> None:
        self.trace.append(f"{self.world.now:.6f} {text}")

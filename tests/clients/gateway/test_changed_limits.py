"""
Limits that are raised, lowered and removed while clients of each library wait: what was recorded of it at a broker and
at a gateway replays exactly.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from traceback import format_exc
from urllib.parse import urlencode
from urllib.request import urlopen

from confluent_kafka.admin import AdminClient, NewTopic
from twisted.trial.unittest import SynchronousTestCase

from tests.clients.gateway.gatewaycases import IS_DIRECT, Connection
from tests.clients.throttledclients import BATCH_BYTES, RUN_RECORDS, Receiver, Sender, valueOf
from tests.kit.brokerfixture import requestOf
from tests.kit.brokerprocess import PATIENCE_SECONDS, BrokerProcess, endpoint, freePort, until
from tests.kit.gatewayprocess import GatewayProcess
from tests.kit.identitygate import delaysUnder, gate, readRecording
from tests.kit.kafkacluster import sharedCluster
from tests.kit.libraries import LIBRARIES, Message, Settings, produceAll
from tests.kit.replaymodel import Recording

FIRST, RAISED, LOWERED = 18_000.0, 27_000.0, 15_000.0
CHANGES = (RAISED, LOWERED, None)
"""What becomes of the first limit of each client; L{None} is none any more.  All are far less than what a client asks
for, be the machine slow, too."""

POLICIES = ("client-bytes", "client-bytes:algorithm=bucket:burst=300ms:shadow=yes")
"""The first makes clients wait, and both are replayed."""

SOURCE_RECORDS = 2000
FETCHED_BYTES = BATCH_BYTES
"""What a limit allows in half a second, so that a client is soon heard of again."""

SESSION_MS = 30_000
"""More than a client has to wait."""

FREED_RECORDS = 100

THROTTLED_TIMES = 2
"""How often a client is throttled under each limit, at least."""

APART_SECONDS = 0.001
"""Delays that end farther apart are two, however the moments are rounded."""

SERVERS: dict[str, Callable[..., BrokerProcess | GatewayProcess]] = {
    "broker": BrokerProcess,
    "gateway": lambda *options: GatewayProcess(sharedCluster().bootstrap, *options),
}


class Worker:
    """
    A client that does all it may, in a thread of its own.

    @ivar name: its client id, and the name of what a producer writes to.
    @ivar kind: of the requests that count.
    @ivar limitName: the limit that it gets to know.
    @ivar mistakes: what went wrong.
    @ivar delayEnd: until when it had to wait at the last look, by the server's calendar.
    """

    def __init__(self, library: str, isProducer: bool, address: str, source: str) -> None:
        self.kind = "Produce" if isProducer else "Fetch"
        self.name = f"{source}-{library}-{self.kind}"
        self.limitName = "producer_byte_rate" if isProducer else "consumer_byte_rate"
        own = {} if isProducer else {"max.partition.fetch.bytes": FETCHED_BYTES, "session.timeout.ms": SESSION_MS}
        self._settings = Settings(library, address, own, self.name)
        self._source = source
        self._isOver = threading.Event()
        self.mistakes: list[str] = []
        self.delayEnd = 0.0
        self._client: Sender | Receiver | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def reach(self, count: int) -> None:
        """Wait until so many more records have been acknowledged or received."""
        goal = self._reached + count
        until(lambda: self.mistakes or self._reached >= goal)
        assert not self.mistakes, f"{self.name}: {self.mistakes}"

    @property
    def _reached(self) -> int:
        return 0 if self._client is None else len(self._client.progress.reached)

    def release(self) -> None:
        """Have it end when it can."""
        self._isOver.set()

    def finish(self) -> list[str]:
        """Wait until it has ended, and say what went wrong."""
        self.release()
        self._thread.join(PATIENCE_SECONDS)
        return self.mistakes or [f"{self.name} does not end"] * self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
        except Exception:
            self.mistakes.append(format_exc())

    def _work(self) -> None:
        if self.kind == "Produce":
            self._client = Sender(self._settings, self.name)
        else:
            self._client = receiver = Receiver(self._settings, self._source)
            receiver.join()
        self.mistakes = self._client.progress.mistakes
        while not self._isOver.is_set():
            self._client.work(RUN_RECORDS if self.kind == "Produce" else SOURCE_RECORDS, self._isOver.is_set)
        self._client.client.close()


class ChangedLimitsTests(SynchronousTestCase):
    """Limits change while clients wait."""

    if IS_DIRECT:
        skip = "this is about servers of ours, and ADMISSION_GATEWAY_DIRECT leaves one out"

    def test_replayed(self) -> None:
        """
        At either server each client is throttled under the first limit, a raised one and a lowered one, each of which
        is set while it waits, and goes on when that is removed.  Replays reproduce every decision, to the microsecond.
        """
        for name, makeServer in SERVERS.items():
            recording = self.record(name, makeServer)
            judged = gate(recording)
            self.assertEqual(
                [(each.candidate, each.mode) for each in judged],
                [(f"recorded client-bytes{own}", mode) for own in ("", "-#2") for mode in ("closed", "open")],
            )
            print(f"{self.id()}, {name}: {[each.inWords() for each in judged]}", file=sys.stderr)
            for each in judged:
                agreement = each.matchShare, each.meanErrorMs, each.missing
                self.assertEqual(agreement, (1.0, 0.0, 0), f"{name}: {each.inWords()}")
                self.assertGreater(each.throttled, 0)

    def record(self, name: str, makeServer: Callable[..., BrokerProcess | GatewayProcess]) -> Recording:
        """Have all clients work at a server while their limits change."""
        directory = tempfile.mkdtemp(prefix="admission-recording-")
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        self.statusPort = freePort()
        server = makeServer(
            *("--status", endpoint(self.statusPort), "--export", f"spark:{directory}"),
            *(word for policy in POLICIES for word in ("--quota", policy)),
            # Two seconds are remembered, so that one limit after the other is soon reached.
            *("--set", "quota.window.num=2", "--set", "super.users=User:ANONYMOUS"),
        ).startedFor(self)
        source = f"changed-{name}"
        names = [f"{source}-{library}-Produce" for library in LIBRARIES]
        admin = AdminClient({"bootstrap.servers": server.address, "log_level": 0})
        for created in admin.create_topics([NewTopic(each, 1) for each in (source, *names)]).values():
            created.result(PATIENCE_SECONDS)
        filling = Settings("confluent", server.address, {"batch.size": BATCH_BYTES, "enable.idempotence": True})
        produceAll(filling, source, [Message(valueOf(number), partition=0) for number in range(SOURCE_RECORDS)])
        with Connection(server.address) as connection:
            workers = []
            # One client after the other has no limit, so that it leaves the others time to work.  The first limits are
            # set while requests are on their way that nobody limited.
            for library in LIBRARIES:
                for isProducer in (True, False):
                    workers.append(worker := Worker(library, isProducer, server.address, source))
                    self.addCleanup(worker.release)
                    worker.reach(1)
                    self.change(connection, worker, FIRST)
            for value in CHANGES:
                for worker in workers:
                    for _ in range(THROTTLED_TIMES):
                        self.untilDelayEnds(worker, worker.delayEnd + APART_SECONDS)
                for worker in workers:
                    self.untilDelayEnds(worker, 0.0)
                    self.change(connection, worker, value)
                    if value is None:
                        worker.reach(FREED_RECORDS)
                        self.assertEqual(worker.finish(), [], worker.name)
        server.stop()
        self.assertEqual(server.complaints(), [])
        recording = readRecording(directory)
        for worker in workers:
            self.assertThrottled(recording, worker)
        return recording

    def change(self, connection: Connection, worker: Worker, value: float | None) -> None:
        """Set the limit of a client, or remove it."""
        change = {"key": worker.limitName, "value": value or 0.0, "remove": value is None}
        entry = {"entity": [{"entity_type": "client-id", "entity_name": worker.name}], "ops": [change]}
        _, answer = connection.ask(requestOf("AlterClientQuotas", 1, entries=[entry], validate_only=False))
        self.assertEqual([each.error_code for each in answer.entries], [0], answer)
        worker.delayEnd = self.delayEnd(worker)

    def delayEnd(self, worker: Worker) -> float:
        """When a client need wait no longer, by the calendar; 0 if it does not wait."""
        url = f"http://127.0.0.1:{self.statusPort}/explain?{urlencode({'clientId': worker.name})}"
        with urlopen(url, timeout=PATIENCE_SECONDS) as response:
            return json.load(response)["delayEndsAtSeconds"] or 0.0

    def untilDelayEnds(self, worker: Worker, afterSeconds: float) -> None:
        """Wait until a client has to wait for longer than until then."""

        def isLater() -> bool:
            worker.delayEnd = self.delayEnd(worker)
            return worker.delayEnd > afterSeconds or bool(worker.mistakes)

        until(isLater)
        self.assertEqual(worker.mistakes, [], worker.name)

    def assertThrottled(self, recording: Recording, worker: Worker) -> None:
        """Requests of a client were throttled under each of its limits."""
        held = delaysUnder(recording, worker.name, worker.limitName, worker.kind)
        self.assertEqual([value for value, _ in held], [FIRST, *CHANGES])
        for value, delays in held:
            self.assertEqual(bool(delays), value is not None, f"{worker.name} under {value}: {delays}")

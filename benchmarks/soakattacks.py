"""
Short attacks on the broker of the soak, one after another with rests between them, in a process of their own.

C{python -m benchmarks.soakattacks SETTINGS} writes a line of JSON for each attack: its name, how long it took, and how
many connections the broker closed.  It ends with its standard input.

The attacks are those of C{tests/attacks}, smaller: it is not how hard one hits that matters here, but what is left
after the hundredth time.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import Any

from attrs import asdict, frozen

from admission.kafka.wire.versions import APIS
from tests.kit.attack import largest
from tests.kit.brokerfixture import batchOf, framed, requestFrame, requestOf
from tests.kit.costlyrequests import UNKNOWN, announcing, joining, metadataAs, protocolNames, validating
from tests.kit.lines import hasEnded
from tests.kit.rawclient import RawClient, fetchRequest, produceRequest, rawRequest

from .rogueload import ProduceTemplate

TOPIC = "attacked"
PARTITIONS = 200

OVERRIDDEN_CLIENT = "evader"
"""A client id with a small limit."""

HOST = "127.0.0.3"
"""Where the attacks come from."""

CONNECTIONS = 60
LARGE_BYTES = 1_000_000
SESSION_MS = 10_000
WAIT_MS = 5_000
ANSWER_SECONDS = 20.0

_NAMES = [f"unknown{number:06d}" for number in range(20_000)]


@frozen
class AttackSettings:
    """
    @ivar port: the broker's for TCP.
    @ivar tlsPort: its port for TLS.
    @ivar authority: the path of the certificate that signed its own.
    @ivar largestBytes: the largest request.
    @ivar seconds: for how long an attack goes on, about.
    @ivar restSeconds: between two.
    @ivar seed: of the order, and of what is random in them.
    """

    port: int
    tlsPort: int
    authority: str
    largestBytes: int
    seconds: float
    restSeconds: float
    seed: int


def commandOf(settings: AttackSettings) -> list[str]:
    """
    How to run them.
    """
    return [sys.executable, "-m", __name__, json.dumps(asdict(settings))]


def trusting(authority: str) -> ssl.SSLContext:
    """
    What verifies the broker's certificate.

    @param authority: the path of the certificate that signed it.
    """
    return ssl.create_default_context(cafile=authority)


def createTopics(port: int, partitions: Mapping[str, int]) -> None:
    """
    Create topics, by their number of partitions.
    """
    topics = [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in partitions.items()]
    with RawClient(port) as client:
        for created in client.ask(requestOf("CreateTopics", 7, topics=topics, timeout=30_000)).topics:
            assert not created.error_code, created


class Attacker:
    """
    The attacks, and what they need.

    @ivar closed: how often the broker has closed a connection, or reset it.
    """

    def __init__(self, settings: AttackSettings) -> None:
        self.closed = 0
        self._settings = settings
        self._random = Random(settings.seed)
        self._tls = trusting(settings.authority)
        self._opened = ExitStack()
        self._number = 0

    def run(self) -> None:
        """
        Attack until standard input ends.
        """
        attacks = self.attacks()
        while True:
            self._random.shuffle(attacks)
            for attack in attacks:
                self.closed = 0
                begun = time.monotonic()
                trouble = ""
                try:
                    with self._opened:
                        attack()
                except OSError as error:
                    # The broker may do that: close connections, or not answer before we lose patience.
                    trouble = repr(error)
                seconds = round(time.monotonic() - begun, 1)
                name = attack.__name__
                print(
                    json.dumps({"attack": name, "seconds": seconds, "closed": self.closed, "trouble": trouble}),
                    flush=True,
                )
                if hasEnded(self._settings.restSeconds):
                    return

    def attacks(self) -> list[Callable[[], None]]:
        """
        All of them.
        """
        return [
            self.announcements,
            self.unknownNames,
            self.validateOnly,
            self.pipelinedMetadata,
            self.longClientIds,
            self.greedyMembers,
            self.pendingMembers,
            self.silentHandshakes,
            self.unreadResponses,
            self.waitingFetches,
            self.evadedDebt,
            self.garbage,
            self.mutatedRequests,
            self.newProducerIds,
            self.storm,
            self.changedLimits,
        ]

    # Connections

    def _connect(self, receiveBufferBytes: int | None = None) -> RawClient:
        """
        A connection, over TLS now and then, closed when the attack is over: in good order, or not.
        """
        isTLS = receiveBufferBytes is None and self._random.random() < 0.2
        port = self._settings.tlsPort if isTLS else self._settings.port
        client = RawClient(port, self._tls if isTLS else None, receiveBufferBytes, HOST)
        client.socket.settimeout(ANSWER_SECONDS)
        self._opened.callback(client.reset if self._random.random() < 0.5 else client.close)
        return client

    def _connections(self, count: int = CONNECTIONS) -> list[RawClient]:
        return [self._connect() for _ in range(count)]

    @contextmanager
    def _mayClose(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise
        except OSError:
            self.closed += 1

    def _ends(self) -> float:
        return time.monotonic() + self._settings.seconds

    # The attacks

    def announcements(self) -> None:
        """
        The largest requests are announced, and a little of them comes.
        """
        clients = self._connections()
        for client in clients:
            client.sendBytes(announcing(self._settings.largestBytes))
        ends = self._ends()
        while time.monotonic() < ends:
            time.sleep(0.5)
            for client in self._random.sample(clients, len(clients) // 2):
                with self._mayClose():
                    client.sendBytes(bytes(self._settings.largestBytes // 1000))

    def unknownNames(self) -> None:
        """
        As many unknown names as a request may have, in some API.
        """
        api = self._random.choice(list(UNKNOWN))
        _, request = largest(UNKNOWN[api], _NAMES)
        self._exchange(request)

    def validateOnly(self) -> None:
        """
        What would CreateTopics do with thousands of topics?
        """
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in _NAMES]
        _, request = largest(validating, topics)
        self._exchange(request)

    def _exchange(self, request: Any) -> None:
        clients = self._connections(4)
        frame = requestFrame(request, 1)
        for client in clients:
            client.sendBytes(frame)
        # Some hang up without having waited.
        for client in clients[1:]:
            with self._mayClose():
                client.receiveFrame()

    def pipelinedMetadata(self) -> None:
        """
        Metadata of all topics, pipelined, with the answers read late.
        """
        frames = requestFrame(requestOf("Metadata", 12, topics=None), 1) * 50
        clients = self._connections(20)
        for client in clients:
            client.sendBytes(frames)
        for client in clients[5:]:
            with self._mayClose():
                for _ in range(50):
                    client.receiveFrame()

    def longClientIds(self) -> None:
        """
        Another name of 32 KB for each request.
        """
        client = self._connect()
        for _ in range(5):
            self._number += 20
            names = [f"{self._number + each:08d}".encode().ljust(32_000, b"x") for each in range(20)]
            client.sendBytes(b"".join(metadataAs(name) for name in names))
            for _ in names:
                client.receiveFrame()

    def greedyMembers(self) -> None:
        """
        Members of groups with very many protocols, who hang up.
        """
        for count in (500, 500, 50, 5, 1):
            client = self._connect()
            self._number += 1
            client.ask(joining(f"greedy{self._number}", 3, protocolNames(count), SESSION_MS, SESSION_MS))

    def pendingMembers(self) -> None:
        """
        Member ids that nobody comes back with.
        """
        client = self._connect()
        self._number += 1
        for _ in range(100):
            client.ask(joining(f"pending{self._number}", 5, ["range"], SESSION_MS, SESSION_MS))

    def silentHandshakes(self) -> None:
        """
        Connections to the TLS port that say nothing, or the half of a greeting.
        """
        clients = []
        for number in range(2 * CONNECTIONS):
            client = RawClient(self._settings.tlsPort, host=HOST)
            self._opened.callback(client.close)
            clients.append(client)
            if number % 2:
                with self._mayClose():
                    client.sendBytes(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20))
        time.sleep(self._settings.seconds)

    def unreadResponses(self) -> None:
        """
        Large answers that nobody takes.
        """
        self._storeLarge()
        clients = [self._connect(receiveBufferBytes=4096) for _ in range(CONNECTIONS)]
        for client in clients:
            for _ in range(3):
                with self._mayClose():
                    client.send(fetchRequest(TOPIC, 0))
        time.sleep(self._settings.seconds)

    def waitingFetches(self) -> None:
        """
        Fetches of all partitions that wait, until a large record comes.
        """
        partitions = [{"partition": index, "partition_max_bytes": 1 << 20} for index in range(PARTITIONS)]
        partitions[0]["fetch_offset"] = self._storeLarge() + 1
        request = requestOf(
            "Fetch",
            12,
            max_wait=WAIT_MS,
            min_bytes=LARGE_BYTES,
            max_bytes=2**31 - 1,
            topics=[{"topic": TOPIC, "partitions": partitions}],
        )
        clients = self._connections()
        for client in clients:
            client.send(request)
        time.sleep(0.5)
        self._storeLarge()
        for client in clients[CONNECTIONS // 2 :]:
            with self._mayClose():
                client.receiveFrame()

    def _storeLarge(self) -> int:
        with RawClient(self._settings.port, host=HOST) as client:
            client.socket.settimeout(ANSWER_SECONDS)
            batch = batchOf(self._random.randbytes(LARGE_BYTES), timestampMs=int(time.time() * 1000))
            error, offset = client.produce(TOPIC, batch)
            assert not error, error
            return offset

    def evadedDebt(self) -> None:
        """
        A client over its quota that comes back on another connection each time.
        """
        batch = batchOf(bytes(LARGE_BYTES // 2), timestampMs=int(time.time() * 1000))
        frame = requestFrame(produceRequest(TOPIC, batch), 1, OVERRIDDEN_CLIENT)
        ends = self._ends()
        while time.monotonic() < ends:
            with RawClient(self._settings.port, host=HOST) as client:
                client.socket.settimeout(0.5)
                with suppress(OSError):
                    client.sendBytes(frame)
                    client.receiveFrame()

    def garbage(self) -> None:
        """
        Bytes that mean nothing, and other protocols.
        """
        random = self._random
        some = [
            b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
            b"\xff\xff\xff\xff",
            b"\x7f\xff\xff\xff" + bytes(100),
            framed(b""),
            framed(random.randbytes(3)),
            *(framed(random.randbytes(random.randrange(8, 2000))) for _ in range(20)),
            *(rawRequest(random.choice(APIS).apiKey, random.randrange(20), random.randbytes(100)) for _ in range(40)),
        ]
        for data in some:
            with self._mayClose():
                client = self._connect()
                client.sendBytes(data)
                client.socket.settimeout(0.05)
                with suppress(TimeoutError):
                    client.socket.recv(1)

    def mutatedRequests(self) -> None:
        """
        Good requests with some bytes changed, some cut short.
        """
        random = self._random
        goods = [
            requestFrame(produceRequest(TOPIC, batchOf(b"mutated", timestampMs=int(time.time() * 1000))), 1),
            requestFrame(fetchRequest(TOPIC, 0, maxBytes=1000), 1),
            requestFrame(joining("mutated", 5, ["range"], SESSION_MS, SESSION_MS), 1),
            *(requestFrame(requestFor(_NAMES[:3]), 1) for requestFor in UNKNOWN.values()),
        ]
        for good in goods * 3:
            bad = bytearray(good)
            for _ in range(random.randrange(1, 4)):
                bad[random.randrange(8, len(bad))] = random.randrange(256)
            with self._mayClose():
                client = self._connect()
                client.sendBytes(bad[: random.choice([len(bad), random.randrange(len(bad))])])
                client.socket.settimeout(0.05)
                with suppress(TimeoutError):
                    client.socket.recv(1)

    def newProducerIds(self) -> None:
        """
        A new producer id in each of thousands of batches.
        """
        client = self._connect()
        template = ProduceTemplate(TOPIC, PARTITIONS, acks=1)
        for _ in range(10):
            first = self._random.randrange(1 << 40)
            client.sendBytes(template.withIds(first))
            client.receiveFrame()

    def storm(self) -> None:
        """
        Connections that come and go at once.
        """
        ends = self._ends()
        while time.monotonic() < ends:
            with self._mayClose():
                client = RawClient(self._random.choice([self._settings.port, self._settings.tlsPort]), host=HOST)
                (client.reset if self._random.random() < 0.5 else client.close)()
            time.sleep(0.005)

    def changedLimits(self) -> None:
        """
        Limits that are set and removed, of entities that are not there.
        """
        client = self._connect()
        for isRemoved in (False, True):
            operation = {"key": "producer_byte_rate", "value": 1e6, "remove": isRemoved}
            for number in range(50):
                entity = [{"entity_type": "client-id", "entity_name": f"nobody{number}"}]
                entries = [{"entity": entity, "ops": [operation]}]
                client.ask(requestOf("AlterClientQuotas", 1, entries=entries, validate_only=False))


def main(text: str) -> None:
    """
    Attack.
    """
    os.setpriority(os.PRIO_PROCESS, 0, 10)
    Attacker(AttackSettings(**json.loads(text))).run()


if __name__ == "__main__":
    main(sys.argv[1])

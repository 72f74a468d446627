"""
What connections cost that do nothing, or may not: thousands of them at a time, in the broker's anonymous memory.
"""

from __future__ import annotations

import resource
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from admission.connection.factory import TLS_CONNECTION_BYTES
from admission.connection.link import PLAIN_CONNECTION_BYTES
from admission.connection.pauses import Pause
from tests.kit.brokerfixture import batchOf, requestFrame, requestOf
from tests.kit.brokerprocess import MeasuredBroker, certificates
from tests.kit.costlyrequests import announcing
from tests.kit.rawclient import RawClient, fetchRequest, produceRequest

from .measure import KIB, MIB, Report

PER_ADDRESS = 900
"""Less than C{max.connections.per.ip}, so that many have several addresses, as clients do."""

TLS_SHARE = 5
"""Every so manieth idle connection has TLS."""

ALLOWANCE_BYTES = 4 * MIB
"""What anonymous memory may grow by besides: for tables that are enlarged, and code that is used for the first time."""

UNEXPLAINED_SHARE = 0.15
"""By how much more than the claim it may be, as in attacks."""

REST_BYTES = 64 * MIB
"""What may be left when all have gone: the broker gives back what its heap keeps from this size on."""

PATIENCE_SECONDS = 120.0

_RESERVED_DESCRIPTORS = 1000
_TOPIC = "connections"
_THROTTLED_CLIENT = "throttled"
_THROTTLED_BYTES_PER_SECOND = 100
_THROTTLED_RECORD_BYTES = 4000
"""What is throttled for C{quota.throttle.max}, 20 seconds, also if nothing was sent in the windows before."""

_WAIT_MS = 55_000
_HELD_BYTES = 16 * MIB
_HOLDERS = 4
_HELD_SECONDS = 15.0
_STEP_SECONDS = 0.1
_WAITING_BYTES = _HELD_BYTES
"""So large that it gets nothing of the reserve either."""


@frozen
class Kind:
    """
    A kind of connections.

    @ivar name: what they do.
    @ivar claimBytes: what the manual says that each costs; L{None} if it says that it costs what is charged.
    """

    name: str
    claimBytes: int | None


IDLE = Kind("idle, TCP", PLAIN_CONNECTION_BYTES)
IDLE_TLS = Kind("idle, TLS", TLS_CONNECTION_BYTES)
THROTTLED = Kind("throttled, TCP", None)
WAITING = Kind("Fetch waits, TCP", None)
STARVED = Kind("paused for memory, TCP", None)


def affordable(idle: int, paused: int) -> tuple[int, int]:
    """
    As many connections as the limit on open files allows, here and in the broker, which has the same.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = idle + paused + _RESERVED_DESCRIPTORS
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    share = min(1.0, (soft - _RESERVED_DESCRIPTORS) / max(idle + paused, 1))
    return int(idle * share), int(paused * share)


class Crowd:
    """
    The connections to one broker, and what they have cost so far.
    """

    def __init__(self, broker: MeasuredBroker, report: Report) -> None:
        self._broker = broker
        self._report = report
        self._tls = ssl.create_default_context(cafile=str(certificates().authority))
        self.clients: list[RawClient] = []

    def connect(self, count: int, isTLS: bool = False) -> list[RawClient]:
        """
        Open connections that have asked for something once, as clients do.
        """
        frame = requestFrame(requestOf("ApiVersions", 3, client_software_name="soak", client_software_version="1"), 1)
        port = self._broker.tlsPort if isTLS else self._broker.port
        connected = []
        for _ in range(count):
            host = f"127.0.{1 + len(self.clients) // PER_ADDRESS}.1"
            client = RawClient(port, self._tls if isTLS else None, host=host)
            self.clients.append(client)
            client.sendBytes(frame)
            client.receiveFrame()
            connected.append(client)
        return connected

    @contextmanager
    def measured(self, kind: Kind, count: int) -> Iterator[None]:
        """
        What happens inside makes C{count} connections of a kind.
        """
        before, anonymousBytes = self._broker.audit()["audit"], self._broker.anonymousBytes()
        yield
        after = self._broker.audit()["audit"]
        grownBytes = self._broker.anonymousBytes() - anonymousBytes
        chargedBytes = sum(after["ledger"].values()) - sum(before["ledger"].values())
        claimedBytes = chargedBytes if kind.claimBytes is None else kind.claimBytes * count
        isFine = grownBytes <= (1 + UNEXPLAINED_SHARE) * claimedBytes + ALLOWANCE_BYTES
        self._report.add(
            "connections",
            kind=kind.name,
            count=count,
            anonymousKibibytesEach=grownBytes / count / KIB,
            ledgerKibibytesEach=chargedBytes / count / KIB,
            claimedKibibytesEach=claimedBytes / count / KIB,
            timersEach=(after["timers"] - before["timers"]) / count,
            verdict="fine" if isFine else "MORE THAN CLAIMED",
        )

    def waitUntilPaused(self, reason: str, count: int) -> int:
        """
        Wait until as many connections are paused.

        @return: how many there are, if not as many after some time.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            reasons = self._broker.audit()["audit"]["paused"]
            paused = int(reasons.get(reason, 0))
            # None may wait for its turn, which would be counted as a request as well.
            isSettled = paused >= count and not reasons.get(Pause.SERVER_FULL.value)
            if isSettled or time.monotonic() > deadline:
                return paused
            time.sleep(0.2)

    def leave(self) -> None:
        """
        Close all connections.
        """
        for client in self.clients:
            client.close()
        self.clients = []


def measureConnections(report: Report, idle: int, paused: int, tell: Callable[[str], None]) -> None:
    """
    All kinds, a broker for each group of them.

    @param idle: how many do nothing.
    @param paused: how many of each of the other kinds.
    @param tell: told where we are.
    """
    affordableIdle, affordablePaused = affordable(idle, paused)
    if (affordableIdle, affordablePaused) != (idle, paused):
        tell(f"the limit on open files allows {affordableIdle} idle and {affordablePaused} paused connections")
        idle, paused = affordableIdle, affordablePaused
    with _crowd(report, idle, "idle connections", "1GiB") as crowd:
        tell(f"{idle} idle connections")
        tlsCount = idle // TLS_SHARE
        for kind, count in ((IDLE, idle - tlsCount), (IDLE_TLS, tlsCount)):
            if count:
                with crowd.measured(kind, count):
                    crowd.connect(count, kind is IDLE_TLS)
    for kind, measure, pool in (
        (THROTTLED, _throttle, "1GiB"),
        (WAITING, _wait, "1GiB"),
        (STARVED, _starve, f"{_HOLDERS * _HELD_BYTES + paused * PLAIN_CONNECTION_BYTES}"),
    ):
        if paused:
            tell(f"{paused} connections: {kind.name}")
            with _crowd(report, paused, kind.name, pool) as crowd:
                measure(crowd, kind, paused)


@contextmanager
def _crowd(report: Report, count: int, name: str, pool: str) -> Iterator[Crowd]:
    """
    A broker for so many connections; when they have gone, what is left of them is looked at.
    """
    broker = MeasuredBroker(
        f"--set=queued.max.request.bytes={pool}",
        f"--set=socket.request.max.bytes={_HELD_BYTES}",
        f"--set=max.connections={count + 100}",
        "--set=log.max.open.files=200",
        f"--set=quota.producer.default={_THROTTLED_BYTES_PER_SECOND}",
    )
    broker.start()
    crowd = Crowd(broker, report)
    try:
        with RawClient(broker.port) as client:
            client.createTopic(_TOPIC)
            client.produce(_TOPIC, batchOf(b"warm", timestampMs=int(time.time() * 1000)))
            client.ask(fetchRequest(_TOPIC, 0))
        crowd.connect(10)
        crowd.connect(10, isTLS=True)
        crowd.leave()
        broker.waitUntilWhole()
        before, anonymousBytes = broker.audit()["audit"], broker.anonymousBytes()
        yield crowd
        crowd.leave()
        _look(report, broker, name, before, anonymousBytes)
    finally:
        crowd.leave()
        broker.stop()
        broker.remove()


def _look(report: Report, broker: MeasuredBroker, name: str, before: Any, anonymousBytes: int) -> None:
    begun = time.monotonic()
    while True:
        after = broker.audit()["audit"]
        restBytes = broker.anonymousBytes() - anonymousBytes
        isFine = (
            restBytes <= REST_BYTES
            and not any(after["leasedBytes"].values())
            and not after["connections"]
            and after["timers"] <= before["timers"]
        )
        seconds = time.monotonic() - begun
        if isFine or seconds > PATIENCE_SECONDS:
            break
        time.sleep(1.0)
    complaints = broker.complaints()
    report.add(
        "connections gone",
        kind=name,
        seconds=seconds,
        anonymousMebibytes=restBytes / MIB,
        allowedMebibytes=REST_BYTES / MIB,
        ledgerBytes=sum(after["leasedBytes"].values()),
        timers=after["timers"] - before["timers"],
        complaints=len(complaints),
        verdict="fine" if isFine and not complaints else "SOMETHING IS LEFT",
    )


def _throttle(crowd: Crowd, kind: Kind, count: int) -> None:
    """
    Each is a client of its own: those of one client are not even let in while it has a debt.
    """
    batch = batchOf(bytes(_THROTTLED_RECORD_BYTES), timestampMs=int(time.time() * 1000))
    request = produceRequest(_TOPIC, batch, acks=1)
    frames = [requestFrame(request, 1, f"{_THROTTLED_CLIENT}-{number}") for number in range(count)]
    with crowd.measured(kind, count):
        for client, frame in zip(crowd.connect(count), frames, strict=True):
            client.sendBytes(frame)
            # Sent all at once they would be in memory together, for a moment.
            client.receiveFrame()
        _require(crowd.waitUntilPaused("quota", count), count, kind)


def _wait(crowd: Crowd, kind: Kind, count: int) -> None:
    frame = requestFrame(fetchRequest(_TOPIC, 1, waitMs=_WAIT_MS), 1)
    with crowd.measured(kind, count):
        for client in crowd.connect(count):
            client.sendBytes(frame)
        _require(crowd.waitUntilPaused("request", count), count, kind)


def _starve(crowd: Crowd, kind: Kind, count: int) -> None:
    """
    Some have sent most of large requests, and the rest comes slowly; the others wait for their memory.
    """
    holders = crowd.connect(_HOLDERS)
    first = announcing(_HELD_BYTES)
    first += bytes(_HELD_BYTES * 9 // 10 - len(first))
    for holder in holders:
        holder.sendBytes(first)
    # Until all that was sent has been read.
    time.sleep(1.0)
    isOver = threading.Event()
    sending = threading.Thread(target=_send, args=(holders, _HELD_BYTES - len(first), isOver))
    sending.start()
    try:
        with crowd.measured(kind, count):
            clients = crowd.connect(count)
            for client in clients:
                client.sendBytes(announcing(_WAITING_BYTES) + bytes(KIB))
            paused = crowd.waitUntilPaused("memory", count)
        _require(paused, count, kind)
    finally:
        isOver.set()
        sending.join()


def _send(holders: list[RawClient], sizeBytes: int, isOver: threading.Event) -> None:
    step = bytes(int(sizeBytes * _STEP_SECONDS / _HELD_SECONDS))
    sentBytes = 0
    while sentBytes + len(step) < sizeBytes and not isOver.wait(_STEP_SECONDS):
        sentBytes += len(step)
        for holder in holders:
            holder.sendBytes(step)


def _require(found: int, count: int, kind: Kind) -> None:
    if found < count:
        raise RuntimeError(f"{found} connections and not {count} came to be: {kind.name}")

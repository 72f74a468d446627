"""
An attack on a real broker, a client of good manners beside it, and what both
may cost.

The long form judges what is promised: latencies and stalls, by a clock that
stands still while the machine runs something else (L{tests.kit.fairclock}), and
beside those of the same client before the attack.  Where that would be too
little to compare with, there are floors.  It wants a quiet machine with a disk
that does not hang.

The short form must pass on every machine, so it judges what the broker has
computed meanwhile, in CPU time, and whether anybody waits for as long as no
machine explains.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from attrs import define
from twisted.trial.unittest import SynchronousTestCase

from admission.kafka.wire.guard import countElements
from admission.kafka.wire.versions import BY_KEY
from tests.kit.brokerfixture import encode, requestFrame
from tests.kit.brokerprocess import PATIENCE_SECONDS, SampledBroker
from tests.kit.goodclient import CLIENT_ID, GoodClient, Noticed, quantile
from tests.kit.longform import isLongForm
from tests.kit.rawclient import RawClient

MIB = 1 << 20

ALLOWANCE_BYTES = 32 * MIB
"""
By how much anonymous memory may grow beyond the pool: code that is imported at first use, what Python keeps of freed
objects, and one request that was let through when the pool was nearly empty.
"""

EXPLAINED_FROM_BYTES = 32 * MIB
"""From this growth on the ledger must know of it; below, Python's own part is too large to say."""

UNEXPLAINED_SHARE = 0.15

STALL_SECONDS = 0.1
"""For how long the reactor may stand still."""

LATENCY_RATIO = 2.0
LATENCY_FLOOR_SECONDS = 0.02
"""The latency that is never too much."""

WORK_SECONDS = 0.2
"""
How much the broker may compute without looking at its timers, and while a client waits.  Twice as much as in the long
form, since processors are not equally fast; what is looked for takes much longer.
"""

WAIT_SECONDS = 5.0
"""The latency that no machine explains: as long as memory is kept for a body that does not come, and more."""

BEFORE_SECONDS = 10.0 if isLongForm() else 0.1
"""For how long the client of good manners is watched before the first attack; only the long form compares."""

DURING_SECONDS = 10.0 if isLongForm() else 0.5
"""For how long it is watched during an attack at least."""

_T = TypeVar("_T")
_R = TypeVar("_R")


def sized(short: _T, long: _T) -> _T:
    """A parameter of an attack: that of the form which is asked for."""
    return long if isLongForm() else short


def largest(requestFor: Callable[[Sequence[_T]], Any], named: Sequence[_T]) -> tuple[int, Any]:
    """
    The request for as many as its API allows, in elements and in bytes.

    @param requestFor: makes the request for some of C{named}; each adds as much to it.
    @return: how many, and the request.
    """

    def sizes(count: int) -> tuple[int, int]:
        request = requestFor(named[:count])
        body = encode(request)
        return countElements(BY_KEY[request.__api_key__], request.__version__, body, 1 << 30), len(body)

    api = BY_KEY[requestFor(named[:1]).__api_key__]
    # The lengths of lists have more bytes in larger requests, and there is a header.
    limits = (api.maxElements, (api.largestFrameBytes or MIB) - 100)
    (fewElements, fewBytes), (elements, sizeBytes) = sizes(100), sizes(200)
    each = ((elements - fewElements) / 100, (sizeBytes - fewBytes) / 100)
    rooms = [(limit - few) / one for limit, few, one in zip(limits, (fewElements, fewBytes), each, strict=True)]
    count = min(len(named), 100 + int(min(rooms)))
    return count, requestFor(named[:count])


@define
class Figures:
    """
    What an attack has cost.  All but the latencies are the largest values while it lasted.

    @ivar growthBytes: of anonymous memory.
    @ivar ledgerBytes: by which the ledger knew of more than before.
    @ivar leastAvailableBytes: what the pool had left; negative if more was in use than it has.
    @ivar stallSeconds: the time in which the reactor did not get to its timers.
    @ivar stallCpuSeconds: the CPU time that it used meanwhile.
    @ivar calmStallSeconds: the time in which it did not before the attack.
    @ivar before: what the client of good manners noticed before.
    @ivar during: what it noticed while it lasted.
    """

    growthBytes: int
    ledgerBytes: int
    leastAvailableBytes: int
    stallSeconds: float
    stallCpuSeconds: float
    calmStallSeconds: float
    before: Noticed
    during: Noticed

    def __str__(self) -> str:
        def inMs(noticed: Noticed) -> str:
            p50, p99, most = (1000 * noticed.quantile(each) for each in (0.5, 0.99, 1.0))
            return f"{p50:.1f} {p99:.1f} {most:.1f}"

        return (
            f"grew {self.growthBytes / MIB:.1f} MiB, ledger {self.ledgerBytes / MIB:.1f}, "
            f"pool at {self.leastAvailableBytes / MIB:.1f}; "
            f"stall {1000 * self.stallSeconds:.0f} ms (before {1000 * self.calmStallSeconds:.0f}, "
            f"computed {1000 * self.stallCpuSeconds:.0f}); "
            f"good client p50 p99 max: {inMs(self.before)} before, {inMs(self.during)} ms during, "
            f"{len(self.during.latencies)} requests, {len(self.during.failures)} failures"
        )


def excessesIn(figures: Figures, poolBytes: int, isLong: bool) -> Iterator[str]:
    """
    What is more than it may be.

    @param poolBytes: the size of the pool.
    @param isLong: whether the long form is judged.
    @return: clauses for a person.
    """
    limitBytes = poolBytes + ALLOWANCE_BYTES
    if figures.growthBytes > limitBytes:
        yield f"memory grew by {figures.growthBytes / MIB:.0f} MiB, and {limitBytes / MIB:.0f} are allowed"
    # The pool keeps an eighth for the next requests, which its ledger does not count as taken.
    unexplainedBytes = figures.growthBytes - figures.ledgerBytes - poolBytes // 8
    if figures.growthBytes >= EXPLAINED_FROM_BYTES and unexplainedBytes > UNEXPLAINED_SHARE * figures.growthBytes:
        yield (
            f"memory grew by {figures.growthBytes / MIB:.0f} MiB, and the ledger knows of "
            f"{figures.ledgerBytes / MIB:.0f}"
        )
    yield from _slowness(figures) if isLong else _work(figures)
    for failure in sorted(set(figures.during.failures)):
        yield f"the good client got {failure}"


def _slowness(figures: Figures) -> Iterator[str]:
    """Excesses of time."""
    limitSeconds = max(STALL_SECONDS, 2 * figures.calmStallSeconds)
    if figures.stallSeconds > limitSeconds:
        yield f"the reactor stood still for {_inMs(figures.stallSeconds)}, and {_inMs(limitSeconds)} are allowed"
    calmSeconds, latencySeconds = (each.quantile(0.99) for each in (figures.before, figures.during))
    limitSeconds = max(LATENCY_FLOOR_SECONDS, LATENCY_RATIO * calmSeconds)
    if latencySeconds > limitSeconds:
        yield (
            f"the good client's 99th percentile went from {_inMs(calmSeconds)} to {_inMs(latencySeconds)}, and "
            f"{_inMs(limitSeconds)} are allowed"
        )


def _work(figures: Figures) -> Iterator[str]:
    """Excesses that do not depend on how busy the machine is."""
    allowed = f"and {_inMs(WORK_SECONDS)} are allowed"
    if figures.stallCpuSeconds > WORK_SECONDS:
        yield f"the reactor computed for {_inMs(figures.stallCpuSeconds)} at a time, {allowed}"
    workedSeconds, latencySeconds = quantile(figures.during.worked, 0.99), figures.during.quantile(0.99)
    if workedSeconds > WORK_SECONDS:
        yield f"while the good client waited {_inMs(workedSeconds)} were computed, {allowed}"
    if latencySeconds > WAIT_SECONDS:
        yield f"the good client waited {_inMs(latencySeconds)}, and {_inMs(WAIT_SECONDS)} are allowed"


def _inMs(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


class AttackTestCase(SynchronousTestCase):
    """
    One broker for each test.

    @cvar poolBytes: its memory for requests.
    @cvar largestBytes: the largest request.
    @cvar settings: others, as NAME=VALUE.
    @cvar options: of C{twistd admission} besides.
    @cvar paceSeconds: between two requests of the client of good manners.
    @cvar recordBytes: what it stores at a time.
    @cvar password: that of the client of good manners, if it has to log in.
    """

    poolBytes = 32 * MIB
    largestBytes = 8 * MIB
    settings: Sequence[str] = ()
    options: Sequence[str] = ()
    paceSeconds = 0.01
    recordBytes = 100
    password: str | None = None
    broker: SampledBroker
    _calm: tuple[float, Noticed] | None = None

    def setUp(self) -> None:
        self._excesses: list[str] = []
        settings = (
            f"queued.max.request.bytes={self.poolBytes}",
            f"socket.request.max.bytes={self.largestBytes}",
            *self.settings,
        )
        self.broker = SampledBroker(*(f"--set={each}" for each in settings), *self.options)
        self.addCleanup(self._end)
        self.broker.start()
        with self.connect() as client:
            if self.password is not None:
                client.logIn(CLIENT_ID, self.password)
            client.createTopic("good")
        self.good = GoodClient(self.broker, "good", self.paceSeconds, self.recordBytes, self.password)
        self.addCleanup(self.good.stop)

    def _end(self) -> None:
        if self.broker.isRunning():
            self.broker.kill()
        self.broker.remove()

    def connect(self, port: int | None = None, **others: Any) -> RawClient:
        """
        An attacker's connection, closed when the test ends at the latest.

        @param port: another than that without TLS; nothing is said there by itself.
        @param others: arguments for L{RawClient}.
        """
        client = RawClient(port or self.broker.port, **others)
        self.addCleanup(client.close)
        return client

    def together(self, function: Callable[[_T], _R], each: Sequence[_T]) -> list[_R]:
        """Call C{function} with each of some things, all at the same time."""
        with ThreadPoolExecutor(len(each)) as threads:
            return list(threads.map(function, each))

    def exchange(self, clients: Sequence[RawClient], request: Any) -> list[bytes | None]:
        """
        Have all of C{clients} send a request, and then wait for their answers.

        @return: the responses; L{None} for a client whose connection is closed instead.
        @raise TimeoutError: if one gets neither.
        """

        def receive(client: RawClient) -> bytes | None:
            try:
                return client.receiveFrame()
            except ConnectionError:
                return None

        frame = requestFrame(request, 1)
        for client in clients:
            client.sendBytes(frame)
        return self.together(receive, clients)

    def waitUntilWaiting(self, clients: Sequence[RawClient]) -> None:
        """
        Wait until the broker has come to the request of each of C{clients}: it has answered, closed the connection, or
        parked the request.
        """

        poll = select.poll()
        for client in clients:
            poll.register(client.socket, select.POLLIN)

        def isDone(report: dict[str, Any]) -> bool:
            return len(poll.poll(0)) + int(report["sensors"]["RequestPurgatorySize"]) >= len(clients)

        self.broker.waitUntil(isDone)

    @contextmanager
    def attack(self, name: str) -> Iterator[None]:
        """
        What happens inside is an attack.  Then print what it has cost, as long as what it holds is still held, and
        note for L{assertAffordable} what was too much.
        """
        if self._calm is None:
            self._calm = self._atRest()
        calmStallSeconds, before = self._calm
        self.good.noticed()
        ledgerFrom = self.broker.watch()["ledgerBytes"]
        growthFrom = self.broker.peakAnonymousBytes = self.broker.anonymousBytes()
        begun = time.monotonic()
        yield
        time.sleep(max(begun + DURING_SECONDS - time.monotonic(), 0.0))
        during = self.good.noticed()
        report = self.broker.report()
        figures = Figures(
            self.broker.peakAnonymousBytes - growthFrom,
            report["peakLedgerBytes"] - ledgerFrom,
            report["leastAvailableBytes"],
            report["stallSeconds"],
            report["stallCpuSeconds"],
            calmStallSeconds,
            before,
            during,
        )
        print(f"\n{name}: {figures}")
        self._excesses += [f"{name}: {excess}" for excess in excessesIn(figures, self.poolBytes, isLongForm())]

    def require(self, isSo: bool, otherwise: str) -> None:
        """
        Note something else for L{assertAffordable}.

        @param otherwise: what to say if it is not so.
        """
        if not isSo:
            self._excesses.append(otherwise)

    def assertAffordable(self) -> None:
        """
        No attack has cost too much.  When all attackers are gone the broker holds no memory for requests, and its log
        has no complaint.
        """
        self.good.stop()
        deadline = time.monotonic() + PATIENCE_SECONDS
        report = self.broker.report()
        while report["sensors"]["Connections"] or report["availableBytes"] != report["sizeBytes"]:
            if time.monotonic() > deadline:
                self._excesses.append(f"it still holds memory when all are gone: {report['ledger']}")
                break
            time.sleep(0.05)
            report = self.broker.report()
        if self._excesses:
            self.fail("\n".join(self._excesses))
        self.assertEqual(self.broker.complaints(), [])

    def _atRest(self) -> tuple[float, Noticed]:
        self.good.noticed()
        self.broker.watch()
        time.sleep(BEFORE_SECONDS)
        before = self.good.noticed()
        return float(self.broker.report()["stallSeconds"]), before

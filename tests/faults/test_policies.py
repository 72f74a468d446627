"""Imitates policies of others that are broken: they raise now and then, or take long, in each of their methods."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Sized
from functools import cache
from pathlib import Path

from attrs import define, field

from tests.faults.faultypolicies import PLUGINS, Fault
from tests.kit.attack import sized
from tests.kit.brokerfixture import requestOf
from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, TWISTD, BrokerProcess
from tests.kit.eagerproducer import EagerProducer
from tests.kit.faults import Busy, FaultTestCase, FaultyBroker, copiesIn, milliseconds, recent
from tests.kit.rawclient import RawClient, fetchRequest, joinGroup, produceRequest

FOR_SECONDS = sized(0.0, 20.0)
"""For how long a policy raises, and until it has done so and has met those whom it meets."""

ENOUGH = 100
WAIT_MS = 500
STALL_SECONDS = sized(3.0, 8.0)
SESSION_MS = sized(2000, 6000)
GROUP = "group"

SELDOM = ("budgetBytes", "explain", "sweep", "restore", "takeChanges")
"""Methods that may not be called at all in that time."""


@cache
def pluginsPath() -> str:
    """Where Twisted finds the policies."""
    directory = tempfile.mkdtemp(prefix="admission-plugins-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    plugins = Path(directory, "twisted", "plugins")
    plugins.mkdir(parents=True)
    (plugins / "faulty_policies.py").write_text(PLUGINS, "utf-8")
    return os.pathsep.join((directory, ENVIRONMENT["PYTHONPATH"]))


class PluginBroker(BrokerProcess):
    """A broker that has them."""

    command = ["env", f"PYTHONPATH={pluginsPath()}", *TWISTD]


@define
class Follower:
    """
    A client that waits for a record with one connection, and produces it with another, again and again.

    @ivar latencies: how long each record took.
    @ivar cuts: how often it had to connect anew.
    """

    port: int
    latencies: list[float] = field(factory=list)
    cuts: int = 0
    _waiting: RawClient | None = None

    def follow(self) -> None:
        """Wait for one record."""
        try:
            if self._waiting is None:
                self._waiting = RawClient(self.port)
                self._waiting.createTopic("followed")
            waiting = self._waiting
            begun = time.monotonic()
            waiting.send(fetchRequest("followed", waiting.endOffset("followed"), waitMs=WAIT_MS))
            with RawClient(self.port) as producing:
                producing.ask(produceRequest("followed", recent(b"record"), acks=1))
            waiting.receive(1, 12)
            self.latencies.append(time.monotonic() - begun)
        except ConnectionError:
            self.cuts += 1
            self.close()

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None


class RaisingTests(FaultTestCase):
    """They raise."""

    brokerType = PluginBroker

    def setUp(self) -> None:
        """Each policy has a broker of its own."""

    def test_quota(self) -> None:
        """A quota policy has no say where it raises, and nobody is cut off."""
        for method in (
            "decide",
            "record",
            *sized((), ("begun", "ended", "budgetBytes", "explain", "sweep", "restore", "takeChanges")),
        ):
            self.assertEqual(self.suffer("quota", method, every=3), 0)

    def test_pool(self) -> None:
        """Where a memory pool raises, that connection is closed."""
        for method in ("tryAllocate", "charge"):
            self.assertTrue(self.suffer("pool", method, every=50, isCut=True))

    def test_purgatory(self) -> None:
        """Where a purgatory raises, that connection is closed, or its request waits until its time is over."""
        for method in ("tryCompleteElseWatch", "checkAndComplete"):
            self.suffer("purgatory", method, every=10)

    def suffer(self, kind: str, method: str, every: int, isCut: bool = False) -> int:
        """
        Have a policy raise, each so many calls, while clients are served: what is acknowledged is stored, what an
        idempotent producer sent is there once, and nobody waits without end.

        @param isCut: whether to wait until a client is cut off.
        @return: how often a client was.
        """
        self.start(f"--{kind}", f"faulty-{kind}:{method}:every={every}")
        good = EagerProducer(self.broker.address, "good", {"enable.idempotence": True, "acks": -1})
        follower = Follower(self.broker.port)
        with Busy(lambda: good.send(5)), Busy(follower.follow):
            begun = time.monotonic()

            def isEnough() -> bool:
                hasRaised = method in SELDOM or f"{Fault.__name__}: {method}" in self.broker.log()
                isServed = len(good.acknowledged) >= ENOUGH and bool(follower.latencies)
                return hasRaised and isServed and (bool(follower.cuts) or not isCut)

            while time.monotonic() - begun < FOR_SECONDS or not isEnough():
                self.assertLess(time.monotonic() - begun, PATIENCE_SECONDS + FOR_SECONDS)
                time.sleep(0.1)
        follower.close()
        unanswered = good.flush() + len(good.errors)
        lines = self.broker.mark()
        self.broker.kill()
        # One without the policy reads.
        reading = BrokerProcess()
        self.addCleanup(reading.remove)
        shutil.move(self.broker.dataPath, reading.dataPath)
        reading.start()
        stored = copiesIn(reading.port, "good")
        reading.kill()
        twice = sum(len(each) > 1 for each in stored.values())
        lost = sum(value not in stored for value in good.acknowledged.values())
        self.tell(
            f"{kind} whose {method} raises, one call in {every}",
            f"{len(good.acknowledged)} acknowledged, {lost} lost, {twice} twice, {unanswered} without answer; "
            f"{len(follower.latencies)} records followed, {milliseconds(follower.latencies)}; cut off {follower.cuts} "
            f"times; {len(self.broker.complaints())} complaints in {lines} lines of the log",
        )
        self.assertEqual((lost, twice, unanswered), (0, 0, 0))
        return follower.cuts


class StallingTests(FaultTestCase):
    """One takes long."""

    brokerType = FaultyBroker
    settings = ("group.initial.rebalance.delay.ms=0", f"group.min.session.timeout.ms={SESSION_MS}")
    broker: FaultyBroker

    def test_stall(self) -> None:
        """
        While a policy does not return everybody waits, and afterwards all goes on: nothing is lost or stored twice, and
        members whose heartbeats came meanwhile are still members.
        """
        memberId, generation = self.join()
        good = EagerProducer(self.broker.address, "good", {"enable.idempotence": True, "acks": -1})
        beats: list[int] = []
        client = self.connect()

        def beat() -> None:
            request = requestOf("Heartbeat", 4, group_id=GROUP, generation_id=generation, member_id=memberId)
            beats.append(int(client.ask(request).error_code))
            time.sleep(0.1)

        with Busy(lambda: good.send(5)), Busy(beat):
            for _ in range(sized(1, 5)):
                self.awaitMore(good.acknowledged, ENOUGH)
                self.broker.stall(STALL_SECONDS)
            acknowledged = len(good.acknowledged)
            ended = time.monotonic()
            while len(good.acknowledged) == acknowledged:
                time.sleep(0.001)
            goesOnSeconds = time.monotonic() - ended
            self.awaitMore(beats, 5)
        self.assertEqual((good.flush(), good.errors), (0, []))
        stored = copiesIn(self.broker.port, "good")
        twice = sum(len(each) > 1 for each in stored.values())
        self.tell(
            f"a policy that takes {STALL_SECONDS:.0f} s, sessions of {SESSION_MS} ms",
            f"{len(good.acknowledged)} acknowledged, {good.sentCount - len(stored)} lost, {twice} twice; goes on "
            f"{1000 * goesOnSeconds:.0f} ms afterwards; {len(beats)} heartbeats, {len(beats) - beats.count(0)} refused",
        )
        self.assertEqual((len(stored), twice), (good.sentCount, 0))
        self.assertEqual(set(beats), {0})
        self.assertNoComplaints()

    def awaitMore(self, counted: Sized, count: int) -> None:
        """Wait until there are so many more."""
        wanted, begun = len(counted) + count, time.monotonic()
        while len(counted) < wanted:
            self.assertLess(time.monotonic() - begun, PATIENCE_SECONDS)
            time.sleep(0.01)

    def join(self) -> tuple[str, int]:
        """Become the only member of a group."""
        with self.connect() as raw:
            return joinGroup(raw, GROUP, SESSION_MS)

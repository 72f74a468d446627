"""L{admission.gate}."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from threading import Thread

from attrs import define, field
from hypothesis import given, strategies as st
from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.gate.answerroom import SMALL_ANSWER_BYTES
from admission.gate.aside import HOLDERS_PER_TURN
from admission.gate.gate import GRANTS_PER_TURN, Gate, buildGate
from admission.gate.reserve import MAX_RESERVED_BYTES, SMALL_FRAME_BYTES, Reserve
from admission.gate.slowbodies import BODY_GRACE_SECONDS
from admission.gate.stalledreaders import (
    MAX_OVERDRAFT_BYTES,
    OVERDRAWN_GRACE_SECONDS,
    STALL_GRACE_SECONDS,
    STALLER_SECONDS,
)
from admission.gate.turns import RETRY_SECONDS, TURN_SECONDS
from admission.interfaces import FRAMES, PARKED, RESPONSES, ILease, IWaiter, PolicyContext
from admission.metrics.registry import SensorRegistry
from admission.plugins import PolicyError
from admission.testing.recordingwaiter import RecordingWaiter
from admission.testing.scriptedpool import ScriptedPool
from admission_plugins.bounded import BoundedPool, FairPool
from admission_plugins.orders import FirstInFirstOut, RandomRounds
from tests.kit.admitted import gateFor
from tests.kit.logfixture import TurnClock

LARGE_BYTES = SMALL_ANSWER_BYTES + 1


class GateTestCase(SynchronousTestCase):
    """A gate before a bounded pool of 1000 bytes."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.pool = BoundedPool(1000, seconds=self.clock.seconds)
        self.gate = gateFor(self.pool, self.clock, maxRequests=3)
        self.pressures: list[bool] = []
        self.gate.pressure.subscribe(self.pressures.append)

    def take(self, sizeBytes: int = 1000, holder: str = "") -> ILease:
        """Allocate what must be there."""
        lease = self.gate.memory.tryAllocate(RecordingWaiter(holder=holder), sizeBytes)
        assert lease is not None
        return lease

    def wait(self, wantedBytes: int = 100) -> RecordingWaiter:
        """Have somebody wait for memory."""
        waiter = RecordingWaiter(wantedBytes)
        self.assertIs(self.gate.memory.tryAllocate(waiter, wantedBytes), None)
        return waiter

    def finish(self, *waiters: RecordingWaiter) -> None:
        """Release what C{waiters} have."""
        for waiter in waiters:
            for lease in waiter.leases:
                lease.release()
            waiter.leases.clear()


class MemoryTests(GateTestCase):
    """Waiters get memory when there is some."""

    def test_accounts(self) -> None:
        """The ledger shows what others hold beside the pool, as it is now; nobody waits for it."""
        held = [7]
        self.gate.ledger.account("producers", lambda: held[0])
        self.assertEqual(self.gate.ledger.usedBytes["producers"], 7)
        held[0] = 8
        registry = SensorRegistry(self.clock.seconds)
        self.gate.addSensors(registry)
        self.assertIn((("producers",), 8), list(registry.families["LedgerBytes"].read(self.clock.seconds())))
        self.assertEqual(self.gate.pool.availableBytes, 1000)

    def test_laterInATurnOfItsOwn(self) -> None:
        """Memory that comes back is granted in a later turn, never from within the release."""
        lease = self.take()
        waiter = self.wait()
        self.assertEqual(self.gate.memory.waiting, 1)
        lease.release()
        self.assertEqual(waiter.leases, [])
        self.clock.advance(0)
        self.assertEqual([each.sizeBytes for each in waiter.leases], [100])
        self.assertEqual(self.gate.memory.waiting, 0)
        self.finish(waiter)

    def test_holders(self) -> None:
        """The pool is told the holder: at once, and when it is asked again for a waiter, the one that holds by then."""
        pool = ScriptedPool()
        gate = gateFor(pool, self.clock)
        gate.memory.tryAllocate(RecordingWaiter(holder="alice"), 1)
        pool.refuse()
        waiter = RecordingWaiter(holder="192.0.2.1")
        gate.memory.tryAllocate(waiter, 1)
        waiter.holder = "bob"
        pool.relent()
        self.clock.advance(0)
        self.assertEqual(pool.holders, ["alice", "192.0.2.1", "bob"])

    def test_newcomersDoNotOvertake(self) -> None:
        """A newcomer waits while others wait, even if there is memory again."""
        lease = self.take()
        first = self.wait(1000)
        lease.release()
        second = self.wait(1)
        self.assertEqual(self.pool.availableBytes, 1000)
        self.clock.advance(0)
        self.assertEqual(len(first.leases) + len(second.leases), 2 if second.leases else 1)
        self.finish(first, second)
        self.clock.advance(0)
        self.finish(first, second)
        self.assertEqual((self.pool.availableBytes, self.gate.memory.waiting), (1000, 0))

    @given(seed=st.integers(0, 2**32))
    def test_nobodyIsForgotten(self, seed: int) -> None:
        """
        Whichever waiter comes and whenever memory is released, everybody is served in the end, once, and the pool is
        whole.
        """
        self.setUp()
        random = Random(seed)
        everybody: list[RecordingWaiter] = []
        held: list[ILease] = []
        asked = 0
        for _ in range(60):
            if random.random() < 0.6:
                waiter = RecordingWaiter(random.randint(1, 1000))
                asked += 1
                lease = self.gate.memory.tryAllocate(waiter, waiter.wantedBytes)
                if lease is None:
                    everybody.append(waiter)
                else:
                    held.append(lease)
            elif held and random.random() < 0.7:
                held.pop(random.randrange(len(held))).release()
            else:
                self.clock.advance(0)
        while held or self.gate.memory.waiting:
            for lease in held:
                lease.release()
            self.clock.advance(0)
            held = [lease for waiter in everybody for lease in waiter.leases if lease.buffer is not None]
            if not held and self.gate.memory.waiting:
                self.fail(f"{self.gate.memory.waiting} wait for ever")
        self.assertEqual({len(waiter.leases) for waiter in everybody} - {1}, set())
        self.assertEqual(self.pool.availableBytes, 1000)
        self.clock.advance(STALL_GRACE_SECONDS)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_grantsPerTurn(self) -> None:
        """A turn grants to so many and leaves the rest to the next, so that others get theirs in between."""
        lease = self.take()
        order: list[str] = []
        waiters = [RecordingWaiter(1, lambda waiter: order.append("grant")) for _ in range(GRANTS_PER_TURN + 10)]
        for waiter in waiters:
            self.gate.memory.tryAllocate(waiter, 1)
        lease.release()
        self.clock.callLater(0, order.append, "others")
        self.clock.advance(0)
        self.assertEqual(order, ["grant"] * GRANTS_PER_TURN + ["others"] + ["grant"] * 10)
        self.finish(*waiters)

    def test_impossibleSizes(self) -> None:
        """A size that the pool never hands out raises at once, whether or not others wait, and does not join them."""
        self.assertRaises(ValueError, self.gate.memory.tryAllocate, RecordingWaiter(), 1001)
        lease = self.take()
        waiter = self.wait()
        for sizeBytes in (1001, 0, -1):
            self.assertRaises(ValueError, self.gate.memory.tryAllocate, RecordingWaiter(sizeBytes), sizeBytes)
        self.assertEqual(self.gate.memory.waiting, 1)
        lease.release()
        self.clock.advance(0)
        self.assertEqual(len(waiter.leases), 1)
        self.finish(waiter)

    def test_failingWaiter(self) -> None:
        """A waiter that fails when it is granted memory is logged, and the others are served."""

        def fail(waiter: RecordingWaiter) -> None:
            raise ZeroDivisionError

        lease = self.take()
        failing = [RecordingWaiter(10, fail) for _ in range(5)]
        for each in failing:
            self.gate.memory.tryAllocate(each, 10)
        waiter = self.wait()
        lease.release()
        self.clock.advance(0)
        self.assertEqual(len(waiter.leases), 1)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 5)
        self.finish(waiter, *failing)

    def test_failingPool(self) -> None:
        """A pool that fails, as when the system has no memory, is asked again a second later."""
        pool = ScriptedPool()
        gate = gateFor(pool, self.clock)
        pool.refuse()
        waiter = RecordingWaiter(10)
        gate.memory.tryAllocate(waiter, 10)
        answers = [pool.tryAllocate]

        def fail(sizeBytes: int, holder: str) -> None:
            pool.tryAllocate = answers[0]  # type: ignore[method-assign]
            raise MemoryError

        pool.tryAllocate = fail  # type: ignore[method-assign, assignment]
        pool.relent()
        self.clock.advance(0)
        self.assertEqual(len(self.flushLoggedErrors(MemoryError)), 1)
        self.assertEqual(waiter.leases, [])
        self.clock.advance(1)
        self.assertEqual(len(waiter.leases), 1)

    def test_failingOrder(self) -> None:
        """
        An order that fails is asked again a second later, for waiters for memory as for a turn, also if nothing happens
        until then.
        """
        failing = [True]

        class Failing(RandomRounds):
            def next(self) -> IWaiter:
                if failing[0]:
                    raise SystemExit
                return super().next()

        orders = [Failing(Random(0)) for _ in range(4)]
        gate = Gate(self.pool, self.clock, *orders, maxRequests=2)
        waiter, running = RecordingWaiter(1), RecordingWaiter()
        lease = gate.memory.tryAllocate(running, 1000)
        assert lease is not None
        gate.memory.tryAllocate(waiter, 1)
        for each in (running, running, waiter):
            gate.turns.tryBegin(each)
        lease.release()
        gate.turns.end()
        self.clock.advance(0)
        self.assertEqual((waiter.leases, waiter.turns), ([], 0))
        self.assertEqual(len(self.flushLoggedErrors(SystemExit)), 2)
        failing.clear()
        failing.append(False)
        self.clock.advance(max(STALL_GRACE_SECONDS, RETRY_SECONDS))
        self.clock.advance(0)
        self.assertEqual((len(waiter.leases), waiter.turns), (1, 1))
        self.finish(waiter)
        gate.close()

    def test_orders(self) -> None:
        """Waiters for memory, and waiters for a turn, are served in the order that is for them."""
        memoryOrder, turnOrder = RandomRounds(Random(0)), RandomRounds(Random(0))
        gate = Gate(self.pool, self.clock, memoryOrder, turnOrder, FirstInFirstOut(), FirstInFirstOut(), maxRequests=1)
        lease = gate.memory.tryAllocate(RecordingWaiter(), 1000)
        gate.turns.tryBegin(RecordingWaiter())
        forMemory, forTurn = RecordingWaiter(10), RecordingWaiter()
        gate.memory.tryAllocate(forMemory, 10)
        gate.turns.tryBegin(forTurn)
        self.assertEqual((memoryOrder.next(), turnOrder.next()), (forMemory, forTurn))
        gate.forget(forMemory)
        gate.forget(forTurn)
        for order in (memoryOrder, turnOrder):
            self.assertRaises(LookupError, order.next)
        assert lease is not None
        lease.release()
        gate.close()

    def test_built(self) -> None:
        """A gate is built with the order that is described; an order that there is not is a mistake."""
        context = PolicyContext(self.clock, lambda: 0.0, random=Random(3))
        gate = buildGate(self.pool, context, maxRequests=7)
        self.assertEqual((gate.pool, gate.turns.maxRequests), (self.pool, 7))
        self.assertRaises(PolicyError, buildGate, self.pool, context, "no-such-order")

    def test_collectedInAnotherThread(self) -> None:
        """
        When all wait for a lease that was dropped, and collected in another
        thread, they are served within a second.
        """
        holder = [self.take()]
        waiter = self.wait()
        thread = Thread(target=holder.clear)
        thread.start()
        thread.join(10)
        self.clock.advance(0)
        self.assertEqual(waiter.leases, [])
        self.clock.advance(1)
        self.assertEqual(len(waiter.leases), 1)
        self.finish(waiter)

    def test_drainedByCharges(self) -> None:
        """When charges alone have drained the pool, those who wait are served one at a time."""
        charge = self.pool.charge(5000, RESPONSES)
        lease = self.take(10)
        waiters = [self.wait(10) for _ in range(3)]
        lease.release()
        for expected in range(3):
            self.clock.advance(0)
            self.assertEqual(sum(len(waiter.leases) for waiter in waiters), 1, expected)
            self.finish(*waiters)
        self.assertEqual(self.gate.memory.waiting, 0)
        charge.release()


class SlowTurnClock(TurnClock):
    """Turns are longer than all that is done in them, so that nothing of the next is done in one."""

    TURN_SECONDS = 1.0


class WatchedFairPool(FairPool):
    """A fair pool that counts how often it is asked for shares, and can fail then."""

    looks = 0
    isFailing = False

    def isBelowShare(self, holder: str) -> bool:
        self.looks += 1
        if self.isFailing:
            raise SystemExit
        return super().isBelowShare(holder)


class FairTests(SynchronousTestCase):
    """A gate before a fair pool of 1000 bytes: who has its share waits aside."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.pool = WatchedFairPool(1000)
        self.gate = Gate(self.pool, self.clock, *(FirstInFirstOut() for _ in range(4)))
        self.pressures: list[bool] = []
        self.gate.pressure.subscribe(self.pressures.append)

    def ask(self, holder: str, wantedBytes: int = 100) -> RecordingWaiter:
        """Have somebody ask for memory; what is granted at once is among its leases."""
        waiter = RecordingWaiter(wantedBytes, holder=holder)
        lease = self.gate.memory.tryAllocate(waiter, wantedBytes)
        if lease is not None:
            waiter.leases.append(lease)
        return waiter

    def finish(self, waiter: RecordingWaiter) -> None:
        """Release what C{waiter} has."""
        for lease in waiter.leases:
            lease.release()
        waiter.leases.clear()

    def test_others(self) -> None:
        """While one waits for its share, others get memory at once, and memory does not count as short."""
        greedy = [self.ask("greedy") for _ in range(8)]
        self.assertEqual([len(each.leases) for each in greedy], [1] * 5 + [0] * 3)
        self.assertEqual(self.gate.memory.waiting, 3)
        self.assertEqual(len(self.ask("modest").leases), 1)
        self.clock.advance(0)
        self.assertEqual((self.gate.memory.waiting, self.pressures), (3, []))

    def test_shareComesBack(self) -> None:
        """With what is released, those who wait aside get memory, in the order in which they came."""
        greedy = [self.ask("greedy") for _ in range(8)]
        for number in range(3):
            self.finish(greedy[number])
            self.clock.advance(0)
            self.assertEqual([len(each.leases) for each in greedy[5:]], [1] * (number + 1) + [0] * (2 - number))
        self.assertEqual(self.gate.memory.waiting, 0)

    def test_newcomers(self) -> None:
        """A newcomer does not overtake those of its own holder."""
        greedy = [self.ask("greedy") for _ in range(6)]
        self.finish(greedy[0])
        late = self.ask("greedy")
        self.assertEqual(len(late.leases), 0)
        self.clock.advance(0)
        self.assertEqual((len(greedy[5].leases), len(late.leases)), (1, 0))

    def test_queueGoesOn(self) -> None:
        """Where memory was short for all, who then has its share lets those behind it go first."""
        first = self.ask("large", 1000)
        waiting = [self.ask(holder, 300) for holder in ("greedy", "greedy", "greedy", "modest")]
        self.assertEqual(self.pressures, [True])
        self.finish(first)
        for _ in range(5):
            self.clock.advance(0)
        # 300 and 300 are above the 400 that are left.
        self.assertEqual([len(each.leases) for each in waiting], [1, 1, 0, 1])
        self.assertEqual(self.pressures, [True, False])

    def test_forgotten(self) -> None:
        """A waiter that leaves while it is aside gets nothing and leaves nothing behind, even if its holder changed."""
        greedy = [self.ask("greedy") for _ in range(7)]
        greedy[5].holder = "alice"
        for each in greedy[5:]:
            self.gate.forget(each)
        self.finish(greedy[0])
        self.clock.advance(0)
        self.assertEqual([len(each.leases) for each in greedy[5:]], [0, 0])
        self.assertEqual(self.gate.memory.waiting, 0)

    def test_failingPool(self) -> None:
        """A pool that fails when it is asked for shares is asked again."""
        greedy = [self.ask("greedy") for _ in range(6)]
        self.pool.isFailing = True
        self.finish(greedy[0])
        self.clock.advance(0)
        self.assertEqual(len(self.flushLoggedErrors(SystemExit)), 1)
        self.pool.isFailing = False
        self.finish(greedy[1])
        self.clock.advance(0)
        self.assertEqual(len(greedy[5].leases), 1)

    def test_manyHolders(self) -> None:
        """However many holders wait aside, few are looked at in one turn of the reactor, and all in the end."""
        clock, pool = TurnClock(), WatchedFairPool(1_000_000)
        gate = Gate(pool, clock, *(FirstInFirstOut() for _ in range(4)))
        holders = [f"holder {number}" for number in range(500)]
        leases = [pool.tryAllocate(1, holder) for holder in holders]
        charge = pool.charge(pool.availableBytes - 1, RESPONSES)
        waiters = [RecordingWaiter(1, holder=holder) for holder in holders]
        for waiter in waiters:
            self.assertIs(gate.memory.tryAllocate(waiter, 1), None)
        charge.release()
        granted = 0
        while gate.memory.waiting:
            pool.looks = 0
            clock.turn()
            self.assertLessEqual(pool.looks, HOLDERS_PER_TURN + GRANTS_PER_TURN)
            served = sum(len(waiter.leases) for waiter in waiters)
            self.assertGreater(served, granted)
            granted = served
        self.assertEqual(granted, 500)
        for lease in [*leases, *(each for waiter in waiters for each in waiter.leases)]:
            assert lease is not None
            lease.release()

    @given(seed=st.integers(0, 2**32))
    def test_nobodyIsForgotten(self, seed: int) -> None:
        """
        Whichever waiter asks, leaves, changes its holder or releases, charges included, and whichever of them does so
        within a grant: once all memory has been released, nobody waits, and nobody who waits could have had memory
        before.
        """
        random = Random(seed)
        clock, pool = Clock(), FairPool(1000)
        gate = Gate(pool, clock, *(RandomRounds(Random(seed)) for _ in range(4)))
        waiters: list[RecordingWaiter] = []
        charges: list[ILease] = []
        isEnding = False

        def step() -> None:
            if isEnding:
                return
            action = random.randrange(6)
            if action < 2:
                granted = random.choice([None, lambda waiter: step()])
                waiter = RecordingWaiter(random.randint(1, 400), granted, random.choice("abc"))
                lease = gate.memory.tryAllocate(waiter, waiter.wantedBytes)
                if lease is not None:
                    waiter.leases.append(lease)
                waiters.append(waiter)
            elif action == 2 and waiters:
                waiter = waiters.pop(random.randrange(len(waiters)))
                gate.forget(waiter)
                self.finish(waiter)
            elif action == 3 and waiters:
                random.choice(waiters).holder = random.choice("abcd")
            elif action == 4:
                charges.append(pool.charge(random.randint(0, 600), RESPONSES))
            elif charges:
                charges.pop(random.randrange(len(charges))).release()

        for _ in range(60):
            step()
            if random.random() < 0.5:
                clock.advance(0)
        isEnding = True
        while charges:
            charges.pop().release()
        for _ in range(3 * len(waiters) + 3):
            for waiter in waiters:
                self.finish(waiter)
            clock.advance(0)
        self.assertEqual(gate.memory.waiting, 0)
        self.assertEqual((pool.availableBytes, gate.pressure.isOn), (1000, False))


class TurnTimeTests(SynchronousTestCase):
    """A turn of the reactor has time for so many requests."""

    REQUEST_SECONDS = TURN_SECONDS / 10

    def setUp(self) -> None:
        self.clock = SlowTurnClock()
        context = PolicyContext(self.clock, lambda: 0.0, random=Random(1))
        self.gate = buildGate(BoundedPool(1000, seconds=self.clock.seconds), context, maxRequests=1000)

    def begin(self, count: int, holder: str = "") -> list[RecordingWaiter]:
        """
        Begin requests, and work on those that may be for some time.

        @return: those that have to wait.
        """
        waiters = [RecordingWaiter(granted=lambda waiter: self.work(), holder=holder) for _ in range(count)]
        for waiter in waiters:
            if self.gate.turns.tryBegin(waiter):
                waiter.turns += 1
                self.work()
        return [waiter for waiter in waiters if not waiter.turns]

    def work(self) -> None:
        """Be done with a request."""
        self.clock.rightNow += self.REQUEST_SECONDS
        self.gate.turns.end()

    def test_rest(self) -> None:
        """Requests that a turn has no time for are begun in the next ones, with others in between."""
        waiting = self.begin(40)
        self.assertGreater(len(waiting), 20)
        while waiting:
            before = len(waiting)
            self.clock.turn()
            waiting = [waiter for waiter in waiting if not waiter.turns]
            self.assertIn(before - len(waiting), range(1, 12))
        self.assertEqual(self.gate.turns.runningRequests, 0)
        self.clock.turn()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_newcomers(self) -> None:
        """A newcomer in the next turn does not overtake them, but waits for a turn at most if others are one client."""
        waiting = self.begin(60, "many")
        (newcomer,) = self.begin(1, "one")
        self.clock.turn()
        self.assertEqual(newcomer.turns, 1)
        self.assertGreater(sum(not waiter.turns for waiter in waiting), 20)

    def test_fewInEachTurn(self) -> None:
        """As long as turns are short nobody waits, however many requests there are."""
        for _ in range(50):
            self.assertEqual(self.begin(6), [])
            self.clock.turn()

    def test_oneThatTookLong(self) -> None:
        """A request that says that it has taken long is the last one of its turn."""
        self.assertEqual(self.begin(2), [])
        self.gate.turns.beginNoMore()
        waiting = self.begin(3)
        self.assertEqual(len(waiting), 3)
        self.clock.turn()
        self.assertEqual([waiter.turns for waiter in waiting], [1, 1, 1])
        self.clock.turn()
        self.assertEqual((self.begin(2), self.clock.getDelayedCalls()), ([], []))

    def test_slowRequests(self) -> None:
        """A turn begins some requests, however long they take."""
        self.REQUEST_SECONDS = 10 * TURN_SECONDS
        waiting = self.begin(40)
        while waiting:
            before = len(waiting)
            self.clock.turn()
            waiting = [waiter for waiter in waiting if not waiter.turns]
            self.assertLess(len(waiting), before)


class Body:
    """A body of which nothing more comes, unless the test says so."""

    def __init__(self, case: GateTestCase, sizeBytes: int, comeBytes: int = 0) -> None:
        self.case = case
        self.sizeBytes = sizeBytes
        self.comeBytes = comeBytes
        self.lease = case.take(sizeBytes)
        self.cameSeconds = case.clock.seconds()
        self.isClosed = False
        case.gate.bodies.started(self)

    def idleSeconds(self, now: float) -> float:
        """As a connection says it."""
        return now - self.cameSeconds

    def missingBytes(self) -> int:
        """What has not come."""
        return self.sizeBytes - self.comeBytes

    def giveWay(self) -> None:
        """Release the memory."""
        self.isClosed = True
        self.lease.release()


class ClaimTests(GateTestCase):
    """A length that is announced is a claim."""

    def setUp(self) -> None:
        super().setUp()
        self.pool = BoundedPool(16_000)
        self.gate = gateFor(self.pool, self.clock)

    def test_reserve(self) -> None:
        """
        While the memory is claimed for what has not come, others have a reserve of a quarter, half of it for small
        frames, which here are all.
        """
        Body(self, 16_000, 100)
        leases = [self.take(1000) for _ in range(4)]
        self.assertEqual(self.pool.availableBytes, -4000)
        waiter = self.wait(1000)
        leases.pop().release()
        self.assertEqual(waiter.leases, [])
        self.clock.advance(0)
        leases += waiter.leases
        self.assertEqual(len(leases), 4)
        for lease in leases:
            assert lease.buffer is not None
            self.assertEqual(len(lease.buffer), 1000)
            lease.release()
            self.assertRaises(RuntimeError, lease.release)
        self.assertEqual((self.pool.usedBytesByPurpose[FRAMES], self.gate.memory._reserve.freeBytes), (16_000, 4000))

    def test_heldByLargeRequests(self) -> None:
        """A waiter for little memory has the reserve, too, while large requests have all memory and wait for more."""
        frame = self.take(1000)
        held = self.pool.charge(15_000, PARKED)
        waiter = self.wait(1000)
        self.clock.advance(0)
        self.assertEqual(waiter.leases, [])
        room = self.gate.answers.whenRoom("", LARGE_BYTES)
        assert room is not None
        self.clock.advance(0)
        self.assertEqual(len(waiter.leases), 1)
        for lease in (self.take(1000), *waiter.leases, frame, held):
            lease.release()
        self.clock.advance(0)
        self.successResultOf(room)

    def test_large(self) -> None:
        """A large frame has no more of the reserve than a sixteenth of the pool, and large ones together half of it."""
        poolBytes, largeBytes = 32 * SMALL_FRAME_BYTES, 2 * SMALL_FRAME_BYTES
        self.pool = BoundedPool(poolBytes)
        self.gate = gateFor(self.pool, self.clock)
        Body(self, poolBytes)
        self.wait(largeBytes + 1)
        leases = [self.take(largeBytes), self.take(largeBytes)]
        self.wait(largeBytes)
        leases += [self.take(SMALL_FRAME_BYTES, f"small {number}") for number in range(4)]
        self.wait(SMALL_FRAME_BYTES)
        for lease in leases:
            lease.release()

    def test_claimedMeanwhile(self) -> None:
        """
        A waiter that asks for little just when memory has become free, and others wait for more, has the reserve once
        they have claimed it.
        """
        body = Body(self, 16_000)
        liar = RecordingWaiter(16_000, lambda _: self.gate.bodies.started(body))
        self.assertIsNone(self.gate.memory.tryAllocate(liar, 16_000))
        self.gate.bodies.over(body)
        body.giveWay()
        waiters = [self.wait(100), self.wait(1000), self.wait(100)]
        gone = self.wait(100)
        self.gate.forget(gone)
        self.clock.advance(0)
        self.assertEqual([len(each.leases) for each in (liar, *waiters, gone)], [1, 1, 1, 1, 0])
        self.finish(liar, *waiters)

    def test_inUse(self) -> None:
        """Memory that is in use is no claim."""
        Body(self, 16_000, 16_000)
        self.wait(10)
        self.wait(10)

    def test_slowest(self) -> None:
        """
        While others wait, bodies give way of which nothing came for a while, as many as it needs, those first of which
        nothing came for longest, however much has come; those who waited get their memory.
        """
        bodies = [Body(self, 5000, 10), Body(self, 5000, 4999), Body(self, 6000, 0), Body(self, 1, 1)]
        bodies[1].cameSeconds -= 2
        bodies[2].cameSeconds -= 1
        self.assertEqual(self.pool.availableBytes, -1)
        waiter = self.wait(8000)
        self.clock.advance(BODY_GRACE_SECONDS / 2)
        late = self.wait(8000)
        self.clock.advance(BODY_GRACE_SECONDS / 2)
        self.clock.advance(0)
        self.assertEqual([body.isClosed for body in bodies], [False, True, False, False])
        self.assertEqual(len(waiter.leases) + len(late.leases), 1)
        self.clock.advance(BODY_GRACE_SECONDS)
        self.clock.advance(0)
        self.assertEqual([body.isClosed for body in bodies], [False, True, True, False])
        self.assertEqual(len(waiter.leases) + len(late.leases), 2)
        self.finish(waiter, late)

    def test_fastEnough(self) -> None:
        """A body of which a part came just now does not give way."""
        body = Body(self, 16_000)
        waiter = self.wait(8000)
        self.clock.advance(BODY_GRACE_SECONDS / 2)
        body.cameSeconds = self.clock.seconds()
        self.clock.advance(BODY_GRACE_SECONDS / 2)
        self.assertFalse(body.isClosed)
        self.clock.advance(BODY_GRACE_SECONDS)
        self.assertTrue(body.isClosed)
        self.finish(waiter)

    def test_nobodyWaits(self) -> None:
        """While nobody waits, or once all of it has come, none gives way, and no timer is left."""
        body = Body(self, 16_000)
        self.clock.advance(10)
        self.assertEqual((body.isClosed, self.clock.getDelayedCalls()), (False, []))
        self.gate.bodies.over(body)
        waiter = self.wait(8000)
        self.clock.advance(10)
        self.assertFalse(body.isClosed)
        self.gate.forget(waiter)


class AnswerTests(GateTestCase):
    """Large answers are made while there is memory, otherwise one after another."""

    def setUp(self) -> None:
        """Note which answers may be made, as they came."""
        super().setUp()
        self.gate = Gate(self.pool, self.clock, *(FirstInFirstOut() for _ in range(4)))
        self.gate.pressure.subscribe(self.pressures.append)
        self.made: list[str] = []
        # A charge that nobody has is released.
        self.charges: list[list[ILease]] = []

    def ask(self, name: str, sizeBytes: int = 600, heldBytes: int = 0, holder: str = "") -> list[ILease]:
        """
        Make an answer when it is time.

        @param heldBytes: what is held already.
        @return: what is held, and its charge, once it is made.
        """
        charges = [self.pool.charge(heldBytes, PARKED)] if heldBytes else []
        self.charges.append(charges)

        def make(_: None = None) -> None:
            self.made.append(name)
            charges.append(self.pool.charge(sizeBytes, RESPONSES))

        room = self.gate.answers.whenRoom(holder, LARGE_BYTES, heldBytes)
        if room is None:
            make()
        else:
            room.addCallback(make)
        return charges

    def test_enough(self) -> None:
        """While there is memory they are made at once, and the last one may take more than there is."""
        self.ask("a")
        self.ask("b")
        self.assertEqual((self.made, self.pool.availableBytes), (["a", "b"], -200))
        self.assertEqual((self.pressures, self.clock.getDelayedCalls()), ([], []))

    def test_oneAfterAnother(self) -> None:
        """While there is none, each waits, in its turn, for some; each is charged before the next is made."""
        first, second = self.ask("a"), self.ask("b")
        for name in "cdef":
            self.ask(name)
        self.assertEqual((self.made, self.pressures), (["a", "b"], [True]))
        first.pop().release()
        self.clock.advance(0)
        self.assertEqual(self.made, ["a", "b", "c"])
        self.clock.advance(0)
        self.assertEqual((self.made, self.pool.availableBytes), (["a", "b", "c"], -200))
        second.pop().release()
        self.clock.advance(0)
        self.assertEqual(self.made, ["a", "b", "c", "d"])

    def test_small(self) -> None:
        """A small answer overtakes those that wait."""
        self.ask("a", 1000)
        self.ask("b")
        self.assertIsNone(self.gate.answers.whenRoom("", SMALL_ANSWER_BYTES))

    def test_order(self) -> None:
        """They are made in the order that was asked for, such as by turns with their holders, whatever they hold."""
        self.gate = buildGate(self.pool, PolicyContext(self.clock, self.clock.seconds, random=Random(0)))
        answered, others = self.pool.charge(1000, RESPONSES), self.pool.charge(1000, "connections")
        for number in range(20):
            self.ask(str(number), 0, 1, holder="many")
        self.ask("good", 0, holder="one")
        answered.release()
        for _ in range(4):
            self.clock.advance(0)
        self.assertIn("good", self.made)
        others.release()

    def test_drainedByOthers(self) -> None:
        """If others hold the memory, one answer is made all the same, and the next when it has left."""
        others = self.pool.charge(2000, "connections")
        charges = self.ask("a")
        self.ask("b")
        self.assertEqual(self.made, ["a"])
        charges.pop().release()
        self.clock.advance(0)
        self.assertEqual(self.made, ["a", "b"])
        others.release()

    def test_holders(self) -> None:
        """
        Requests that hold all the memory while they wait for more do not wait for each other: one goes on, and the next
        when it has left.
        """
        first = self.ask("a", heldBytes=700)
        second = self.ask("b", heldBytes=300)
        third = self.ask("c", heldBytes=900)
        self.ask("decoding", 10)
        self.assertEqual(self.made, ["a"])
        for charges, made in ((first, ["a", "b"]), (second, ["a", "b", "c"]), (third, ["a", "b", "c", "decoding"])):
            while charges:
                charges.pop().release()
            self.clock.advance(0)
            self.clock.advance(0)
            self.assertEqual(self.made, made)

    def test_holdersFirst(self) -> None:
        """A request that holds nothing comes after those that do, or all would hold something and get no further."""
        first = self.ask("a", heldBytes=1000)
        self.ask("decoding", 10)
        second = self.ask("b", heldBytes=500)
        for charges, made in ((first, ["a", "b"]), (second, ["a", "b", "decoding"])):
            while charges:
                charges.pop().release()
            self.clock.advance(0)
            self.clock.advance(0)
            self.assertEqual(self.made, made)

    def test_orderOfOthers(self) -> None:
        """Requests that hold nothing go on in that order, too; a waiter that has gone keeps nobody waiting."""
        self.gate = buildGate(self.pool, PolicyContext(self.clock, self.clock.seconds, random=Random(0)))
        first = self.ask("a", 1000)
        for number in range(20):
            self.ask(f"many {number}", 0, holder="many")
        gone = self.gate.answers.whenRoom("gone", LARGE_BYTES)
        assert gone is not None
        self.ask("good", 0, holder="good")
        gone.cancel()
        self.failureResultOf(gone, CancelledError)
        first.pop().release()
        for _ in range(30):
            self.clock.advance(0)
        self.assertIn("good", self.made[:6])
        self.assertEqual((len(self.made), self.gate.answers.waiting), (22, 0))

    def test_holderGone(self) -> None:
        """What one holds that waits no more keeps others waiting until it is released."""
        others = self.pool.charge(1000, RESPONSES)
        held = self.pool.charge(100, PARKED)
        room = self.gate.answers.whenRoom("", LARGE_BYTES, held.sizeBytes)
        assert room is not None
        self.ask("a", heldBytes=50)
        room.cancel()
        self.failureResultOf(room, CancelledError)
        others.release()
        held.release()
        self.clock.advance(0)
        self.assertEqual(self.made, ["a"])

    def test_newcomers(self) -> None:
        """Nobody overtakes those that wait."""
        first = self.ask("a", 1000)
        self.ask("b", 10)
        first.pop().release()
        self.ask("c", 10)
        self.assertEqual(self.made, ["a"])
        self.clock.advance(0)
        self.assertEqual((self.made, self.pressures), (["a", "b", "c"], [True, False]))

    def test_relief(self) -> None:
        """While answers wait, connections that do not take theirs are cut off."""
        self.gate.readers.note(Stalled(self.clock, self.pool.charge(1500, RESPONSES)), True)
        self.ask("a")
        self.assertEqual(self.made, [])
        self.clock.advance(STALL_GRACE_SECONDS)
        self.clock.advance(STALL_GRACE_SECONDS)
        self.assertEqual(self.made, ["a"])


class TurnTests(GateTestCase):
    """How many requests are worked on."""

    def test_atMost(self) -> None:
        """So many are let through and no more, and the next when one of them ends, in a turn of its own."""
        waiters = [RecordingWaiter() for _ in range(5)]
        self.assertEqual([self.gate.turns.tryBegin(waiter) for waiter in waiters], [True, True, True, False, False])
        self.assertEqual(self.gate.turns.runningRequests, 3)
        self.gate.turns.end()
        self.assertEqual(sum(waiter.turns for waiter in waiters), 0)
        self.clock.advance(0)
        self.assertEqual((sum(waiter.turns for waiter in waiters), self.gate.turns.runningRequests), (1, 3))
        self.gate.turns.end()
        self.clock.advance(0)
        self.assertEqual([waiter.turns for waiter in waiters], [0, 0, 0, 1, 1])
        for _ in range(3):
            self.gate.turns.end()
        self.clock.advance(0)
        self.assertEqual(self.gate.turns.runningRequests, 0)

    def test_newcomersDoNotOvertake(self) -> None:
        """A newcomer waits when a turn has become free, but others wait for it."""
        for _ in range(3):
            self.gate.turns.tryBegin(RecordingWaiter())
        waiter, newcomer = RecordingWaiter(), RecordingWaiter()
        self.gate.turns.tryBegin(waiter)
        self.gate.turns.end()
        self.assertFalse(self.gate.turns.tryBegin(newcomer))
        self.clock.advance(0)
        self.assertEqual(waiter.turns + newcomer.turns, 1)

    def test_waited(self) -> None:
        """It says how long a request waited for its turn that begins; those that begin at once did not wait."""
        turns = self.gate.turns
        for _ in range(3):
            turns.tryBegin(RecordingWaiter())
        turns.tryBegin(RecordingWaiter())
        self.clock.advance(0.5)
        self.assertEqual(turns.waitedSeconds, 0.0)
        turns.end()
        self.clock.advance(0.25)
        self.assertEqual(turns.waitedSeconds, 0.75)
        turns.end()
        turns.tryBegin(RecordingWaiter())
        self.assertEqual(turns.waitedSeconds, 0.0)

    def test_forgotten(self) -> None:
        """A waiter that has gone gets no turn."""
        for _ in range(3):
            self.gate.turns.tryBegin(RecordingWaiter())
        gone, waiter = RecordingWaiter(), RecordingWaiter()
        self.gate.turns.tryBegin(gone)
        self.gate.turns.tryBegin(waiter)
        self.gate.forget(gone)
        self.gate.turns.end()
        self.clock.advance(0)
        self.assertEqual((gone.turns, waiter.turns), (0, 1))

    def test_failingWaiter(self) -> None:
        """A waiter that fails when it gets its turn is logged, and still has to end it."""

        def fail(waiter: RecordingWaiter) -> None:
            raise ZeroDivisionError

        for _ in range(3):
            self.gate.turns.tryBegin(RecordingWaiter())
        self.gate.turns.tryBegin(RecordingWaiter(granted=fail))
        self.gate.turns.end()
        self.clock.advance(0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.gate.turns.runningRequests, 3)

    def test_positive(self) -> None:
        """A gate that lets nobody through is a mistake."""
        self.assertRaises(ValueError, gateFor, self.pool, self.clock, maxRequests=0)


class PressureTests(GateTestCase):
    """L{admission.gate.pressure}."""

    def test_onceEachWay(self) -> None:
        """Listeners hear once when the first must wait, and once when nobody does and there is memory."""
        lease = self.take()
        waiters = [self.wait(600), self.wait(600), self.wait(600)]
        self.assertEqual((self.pressures, self.gate.pressure.isOn), ([True], True))
        lease.release()
        self.clock.advance(0)
        self.assertEqual(self.pressures, [True])
        self.finish(*waiters)
        self.clock.advance(0)
        self.finish(*waiters)
        self.clock.advance(0)
        self.assertEqual((self.pressures, self.gate.pressure.isOn), ([True, False], False))

    def test_pressed(self) -> None:
        """Somebody who could not wait may press all the same; any release with memory left over ends that."""
        lease, more = self.take(500), self.take(500)
        self.gate.pressure.begin()
        self.gate.pressure.begin()
        self.assertEqual(self.pressures, [True])
        lease.release()
        self.clock.advance(0)
        self.assertEqual(self.pressures, [True, False])
        more.release()

    def test_stillEmpty(self) -> None:
        """A release that leaves the pool empty does not end it."""
        charges = [self.pool.charge(1000, RESPONSES) for _ in range(2)]
        self.gate.pressure.begin()
        charges.pop().release()
        self.clock.advance(0)
        self.assertEqual(self.pressures, [True])
        charges.pop().release()
        self.clock.advance(0)
        self.assertEqual(self.pressures, [True, False])


@define(eq=False)
class Stalled:
    """A peer that does not take its responses."""

    clock: Clock
    lease: ILease
    holder: str = ""
    largestBytes: int = 0
    sinceSeconds: float = field(init=False)
    reasons: list[str] = field(factory=list)
    cutOffToo: Callable[[], object] = field(default=lambda: None)

    def __attrs_post_init__(self) -> None:
        self.sinceSeconds = self.clock.seconds()

    def unsentBytes(self) -> int:
        """What it holds."""
        return self.lease.sizeBytes

    def largestWriteBytes(self) -> int:
        """What was written at once."""
        return self.largestBytes

    def stalledSeconds(self) -> float:
        """For how long it has taken nothing."""
        return self.clock.seconds() - self.sinceSeconds

    def cutOff(self, reason: str) -> None:
        """Remember why, and give back what it holds."""
        self.reasons.append(reason)
        self.lease.release()
        self.cutOffToo()


class ReliefTests(GateTestCase):
    """What becomes of peers that do not take their responses when memory is short."""

    def stall(self, sizeBytes: int, holder: str = "") -> Stalled:
        """Have a peer leave so many bytes lying about."""
        stalled = Stalled(self.clock, self.pool.charge(sizeBytes, RESPONSES), holder)
        self.gate.readers.note(stalled, True)
        return stalled

    def elapse(self, seconds: float) -> None:
        """Let time pass, a little at a time."""
        self.clock.pump([0.01] * (round(seconds / 0.01) + 1))

    def write(self, stalled: Stalled, sizeBytes: int) -> None:
        """Write more for a peer."""
        before = stalled.lease
        stalled.lease = self.pool.charge(before.sizeBytes + sizeBytes, RESPONSES)
        stalled.largestBytes = sizeBytes
        before.release()
        if self.pool.isOutOfMemory():
            self.gate.readers.grew(stalled)

    def test_largestFirst(self) -> None:
        """
        The largest holder goes, after the grace period and not before; that
        serves those who wait, and the others stay.
        """
        small, large, middle = self.stall(200), self.stall(700), self.stall(300)
        lease = self.take(1)
        waiter = self.wait()
        self.elapse(STALL_GRACE_SECONDS - 0.1)
        self.assertEqual(large.reasons, [])
        self.elapse(0.1)
        self.assertEqual([len(each.reasons) for each in (small, large, middle)], [0, 1, 0])
        self.assertIn("does not take its responses", large.reasons[0])
        self.clock.advance(0)
        self.assertEqual(len(waiter.leases), 1)
        self.clock.advance(10)
        self.assertEqual([len(each.reasons) for each in (small, middle)], [0, 0])
        self.finish(waiter)
        lease.release()

    def test_asManyAsNeeded(self) -> None:
        """If the largest does not hold enough, the next goes as well."""
        stalled = [self.stall(sizeBytes) for sizeBytes in (400, 900, 800, 300)]
        self.elapse(STALL_GRACE_SECONDS)
        self.assertEqual([len(each.reasons) for each in stalled], [0, 1, 1, 0])
        self.clock.advance(100)
        self.assertGreater(self.pool.availableBytes, 0)

    def test_nobodyWaits(self) -> None:
        """
        If requests are let through one by one nobody ever waits, and responses
        would grow without bound; so peers are cut off then too, except the
        last, which may just be slow.
        """
        stalled = [self.stall(sizeBytes) for sizeBytes in (2000, 4000, 3000)]
        self.elapse(STALL_GRACE_SECONDS)
        self.assertEqual([len(each.reasons) for each in stalled], [0, 1, 1])
        self.clock.advance(100)
        self.assertEqual([len(each.reasons) for each in stalled], [0, 1, 1])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_theLastOne(self) -> None:
        """The last is cut off as soon as somebody waits."""
        stalled = self.stall(2000)
        self.clock.advance(100)
        lease = self.take(1)
        waiter = self.wait()
        self.elapse(STALL_GRACE_SECONDS)
        self.assertEqual((len(stalled.reasons), len(waiter.leases)), (1, 1))
        self.finish(waiter)
        lease.release()

    def test_memoryIsThere(self) -> None:
        """As long as there is memory nobody is cut off and no timer runs."""
        stalled = [self.stall(500), self.stall(499)]
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.clock.advance(100)
        self.assertEqual([each.reasons for each in stalled], [[], []])

    def test_takesAgain(self) -> None:
        """A peer that takes its responses again is not cut off."""
        stalled = [self.stall(600), self.stall(600)]
        self.clock.advance(STALL_GRACE_SECONDS / 2)
        for each in stalled:
            self.gate.readers.note(each, False)
        self.clock.advance(10)
        self.assertEqual([each.reasons for each in stalled], [[], []])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_graceIsEachOnesOwn(self) -> None:
        """A reader that stalled a moment ago is spared, however much it holds, until its own grace period is over."""
        old = self.stall(300)
        self.elapse(0.75)
        young = self.stall(1200)
        self.elapse(0.25)
        self.assertEqual([len(old.reasons), len(young.reasons)], [0, 0])
        self.elapse(0.75)
        self.assertEqual([len(old.reasons), len(young.reasons)], [0, 1])

    def test_filledLater(self) -> None:
        """A reader that stalled while there was room is cut off when what is written later uses up the memory."""
        stalled = [self.stall(10) for _ in range(4)]
        self.clock.advance(100)
        for each in stalled:
            self.write(each, 300)
        self.assertEqual([len(each.reasons) for each in stalled], [0, 0, 0, 0])
        self.elapse(STALL_GRACE_SECONDS)
        self.assertEqual(sum(len(each.reasons) for each in stalled), 1)
        self.assertGreater(self.pool.availableBytes, 0)

    def test_farOverdrawn(self) -> None:
        """The further it is overdrawn the shorter is the grace; also for those who wait already."""
        stalled = [self.stall(700), self.stall(600)]
        self.clock.advance(OVERDRAWN_GRACE_SECONDS)
        self.assertEqual([len(each.reasons) for each in stalled], [0, 0])
        self.write(stalled[1], 201)
        self.clock.advance(OVERDRAWN_GRACE_SECONDS - 0.01)
        self.assertEqual([len(each.reasons) for each in stalled], [0, 0])
        self.clock.advance(0.01)
        self.assertEqual([len(each.reasons) for each in stalled], [0, 1])

    def test_oneGrace(self) -> None:
        """Nobody waits for two graces, because a peer stalled when the first had just begun."""
        lease = self.take()
        self.wait()
        self.clock.advance(0.75 * OVERDRAWN_GRACE_SECONDS)
        heavy = self.stall(1600)
        self.elapse(1.1 * OVERDRAWN_GRACE_SECONDS)
        self.assertEqual(len(heavy.reasons), 1)
        lease.release()

    def test_tooFarOverdrawn(self) -> None:
        """
        If a write overdraws the pool by more than its size, not counting that write, those go at once that hold most,
        beginning with the holder that has most in all.
        """
        alone, *many = [self.stall(900, "alone"), *(self.stall(each, "many") for each in (300, 500, 200))]
        self.write(many[0], 5000)
        self.assertEqual([len(each.reasons) for each in (alone, *many)], [0, 0, 0, 0])
        self.write(many[0], 500)
        self.assertEqual([len(each.reasons) for each in (alone, *many)], [0, 1, 0, 0])
        self.assertEqual(self.pool.availableBytes, -600)
        self.write(many[2], 20)
        self.assertEqual([len(each.reasons) for each in (alone, *many)], [0, 1, 0, 0])

    @given(
        sizes=st.lists(st.integers(1, 1500), min_size=1, max_size=8),
        steps=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 3000)), max_size=12),
        behaviours=st.lists(st.sampled_from(["", "leaves", "writes", "closes", "asks"]), min_size=1, max_size=8),
    )
    def test_fromWithin(self, sizes: list[int], steps: list[tuple[int, int]], behaviours: list[str]) -> None:
        """
        Whatever a connection does when it is cut off, nobody is cut off twice, and after each write the pool is not
        overdrawn by more than its size besides that write.
        """
        self.setUp()
        stalled = [self.stall(sizeBytes, str(number % 3)) for number, sizeBytes in enumerate(sizes)]
        gone: set[int] = set()

        def cutOff(number: int) -> None:
            gone.add(number)
            others = [each for other, each in enumerate(stalled) if other not in gone]
            behaviour = behaviours[number % len(behaviours)]
            if behaviour == "leaves" and others:
                self.gate.readers.note(others[0], False)
            elif behaviour == "writes" and others:
                self.write(others[-1], 700)
            elif behaviour == "closes":
                self.gate.close()
            elif behaviour == "asks":
                self.gate.memory.tryAllocate(RecordingWaiter(10, holder=str(number % 3)), 10)

        for number, each in enumerate(stalled):
            each.cutOffToo = partial(cutOff, number)
        for at, sizeBytes in steps:
            number = at % len(stalled)
            if number not in gone:
                self.write(stalled[number], sizeBytes)
                noted = [each for each in self.gate.readers._readers if each is not stalled[number]]
                if noted:
                    self.assertLessEqual(-self.pool.availableBytes, 1000 + max(sizeBytes, 700))
            self.clock.advance(0.05)
        self.assertTrue(all(len(each.reasons) <= 1 for each in stalled))
        self.gate.close()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_oneLargeWrite(self) -> None:
        """However large a write is, it cuts off nobody at once if there was little before."""
        stalled = self.stall(900), self.stall(0)
        self.write(stalled[1], 100_000)
        self.assertEqual([each.reasons for each in stalled], [[], []])

    def test_stalling(self) -> None:
        """
        A holder does not read its answers while one of its peers has taken nothing for a while, and for a minute after
        one was cut off.
        """
        stalled = self.stall(700, "slow"), self.stall(800, "slower")
        readers = self.gate.readers
        self.assertFalse(readers.isStalling("slow"))
        self.clock.advance(OVERDRAWN_GRACE_SECONDS)
        self.assertTrue(readers.isStalling("slow"))
        self.assertFalse(readers.isStalling("another"))
        readers.note(stalled[0], False)
        self.assertFalse(readers.isStalling("slow"))
        readers.note(stalled[0], True)
        self.elapse(STALL_GRACE_SECONDS)
        self.assertEqual([len(each.reasons) for each in stalled], [0, 1])
        self.clock.advance(STALLER_SECONDS - 0.2)
        self.assertTrue(readers.isStalling("slower"))
        self.clock.advance(0.2)
        self.assertFalse(readers.isStalling("slower"))

    def test_stallersLast(self) -> None:
        """Of those that wait for memory, or for room for an answer, those come last that do not read theirs."""
        stalled = self.stall(100, "slow")
        self.clock.advance(OVERDRAWN_GRACE_SECONDS)
        lease = self.take(900)
        served: list[str] = []
        for holder in ("slow", "slow", "good"):
            waiter = RecordingWaiter(900, lambda each: served.append(f"{each.holder} memory"), holder)
            self.assertIsNone(self.gate.memory.tryAllocate(waiter, 900))
        answered = self.pool.charge(100, RESPONSES)
        for holder in ("slow", "slow", "good"):
            room = self.gate.answers.whenRoom(holder, LARGE_BYTES)
            assert room is not None
            room.addCallback(lambda _, holder=holder: served.append(f"{holder} room"))
        lease.release()
        self.clock.advance(0)
        self.assertEqual(served, ["good memory"])
        answered.release()
        stalled.lease.release()
        for _ in range(4):
            self.clock.advance(0)
        self.assertEqual([each for each in served if "memory" in each], ["good memory", "slow memory", "slow memory"])
        self.assertEqual([each for each in served if "room" in each], ["good room", "slow room", "slow room"])


class ReserveTests(GateTestCase):
    """Small frames have memory whatever holds the pool."""

    def setUp(self) -> None:
        super().setUp()
        self.pool = BoundedPool(64 << 20)
        self.gate = gateFor(self.pool, self.clock)
        self.charges = [self.take(64 << 20)]

    def test_small(self) -> None:
        """A small frame has it, a larger one waits; nobody is charged for what there is not."""
        self.take(SMALL_FRAME_BYTES).release()
        self.wait(SMALL_FRAME_BYTES + 1)
        self.assertEqual(self.pool.availableBytes, 0)

    def test_share(self) -> None:
        """One holder has a small part of it, and those that wait for more keep no other from theirs."""
        leases = [self.take(SMALL_FRAME_BYTES, "greedy") for _ in range(4)]
        waiters = [RecordingWaiter(SMALL_FRAME_BYTES, holder="greedy") for _ in range(2)]
        for waiter in waiters:
            self.assertIsNone(self.gate.memory.tryAllocate(waiter, SMALL_FRAME_BYTES))
        self.take(SMALL_FRAME_BYTES, "good").release()
        leases.pop().release()
        self.clock.advance(0)
        self.assertEqual(sum(len(each.leases) for each in waiters), 1)

    def test_allOfIt(self) -> None:
        """It is a quarter of the pool."""
        leases = [self.take(SMALL_FRAME_BYTES, str(number // 4)) for number in range(256)]
        self.wait(1)
        self.assertEqual(sum(lease.sizeBytes for lease in leases), 16 << 20)
        self.assertEqual(self.pool.availableBytes, -(16 << 20))

    def test_largePool(self) -> None:
        """However large the pool is, it is bounded."""
        reserve = Reserve(BoundedPool(1 << 40), lambda: False, lambda holder: False, lambda: False)
        self.assertEqual(reserve.freeBytes, MAX_RESERVED_BYTES)

    def test_stalling(self) -> None:
        """A client that does not read its answers waits for the pool."""
        self.gate.readers.note(Stalled(self.clock, self.pool.charge(100, RESPONSES), "slow"), True)
        self.take(1, "slow").release()
        self.clock.advance(OVERDRAWN_GRACE_SECONDS)
        self.assertIsNone(self.gate.memory.tryAllocate(RecordingWaiter(holder="slow"), 1))
        self.take(1, "good").release()

    def test_unboundedAnswers(self) -> None:
        """Those whose answers nothing bounds go one at a time, unless the pool is far overdrawn already."""
        waiters = [RecordingWaiter(holder=str(number), hasBoundedAnswers=False) for number in range(3)]
        first = self.gate.memory.tryAllocate(waiters[0], 1)
        assert first is not None
        self.assertIsNone(self.gate.memory.tryAllocate(waiters[1], 1))
        first.release()
        self.clock.advance(0)
        self.assertEqual(len(waiters[1].leases), 1)
        self.finish(waiters[1])
        self.charges.append(self.pool.charge(MAX_OVERDRAFT_BYTES + 1, RESPONSES))
        self.assertIsNone(self.gate.memory.tryAllocate(waiters[2], 1))
        self.take(1).release()

    def test_unboundedWhereNobodyIsCutOff(self) -> None:
        """
        A pool that is overdrawn by no more than a small write beyond what it may be has nobody cut off at once, and so
        nobody waits for it.
        """
        held = Stalled(self.clock, self.pool.charge(MAX_OVERDRAFT_BYTES, RESPONSES), "slow")
        self.gate.readers.note(held, True)
        self.charges.append(self.pool.charge(1 << 20, RESPONSES))
        held.largestBytes = 1 << 20
        self.gate.readers.grew(held)
        self.assertEqual(held.reasons, [])
        self.assertIsNotNone(self.gate.memory.tryAllocate(RecordingWaiter(holder="good", hasBoundedAnswers=False), 1))


class OtherTests(GateTestCase):
    """The rest."""

    def test_close(self) -> None:
        """Closing leaves no timer behind, twice if need be."""
        lease = self.take()
        self.wait()
        lease.release()
        self.assertEqual(len(self.clock.getDelayedCalls()), 2)
        self.gate.close()
        self.gate.close()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_sensors(self) -> None:
        """What the gate knows can be read by the names that Kafka gives it."""
        registry = SensorRegistry(self.clock.seconds)
        self.gate.addSensors(registry)
        lease = self.take()
        self.wait()
        self.gate.turns.tryBegin(RecordingWaiter())
        self.clock.advance(15)
        self.assertEqual(
            dict(registry),
            {
                "MemoryPoolAvailable": 0,
                "MemoryPoolUsed": 1000,
                "ConnectionsWaitingForMemory": 1,
                "RunningRequests": 1,
                "MemoryPoolAvgDepletedPercent": 0.5,
                "MemoryPoolDepletedMicroseconds": 15_000_000,
                "ReactorLagSeconds": 0.0,
            },
        )
        lease.release()

    def test_sensorsOfAnyPool(self) -> None:
        """A pool that does not measure its depletion has no sensor for it."""
        registry = SensorRegistry(self.clock.seconds)
        gateFor(ScriptedPool(), self.clock).addSensors(registry)
        self.assertNotIn("MemoryPoolAvgDepletedPercent", dict(registry))

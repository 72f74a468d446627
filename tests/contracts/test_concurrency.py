"""L{admission_plugins.concurrency}."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.control import AdmissionControl
from admission.interfaces import (
    DEFAULT,
    IQuotaPolicy,
    IQuotaPolicyFactory,
    Outcome,
    PolicyContext,
    QuotaEntity,
    Refusal,
    Request,
    Traits,
    Usage,
)
from admission.metrics.registry import SensorRegistry
from admission.plugins import PolicyError, buildPolicy
from admission.testing.quotacontract import FixedQuotaPolicyContract, QuotaPolicyContract, RequestLifecycleContract
from admission_plugins.concurrency import (
    CONCURRENT_REQUESTS,
    FORGET_SECONDS,
    MAX_CLIENTS,
    START,
    AdaptiveConcurrency,
    AdaptiveLimit,
    ConcurrencyPolicy,
    FixedConcurrency,
)

EVERY_CLIENT = QuotaEntity(clientId=DEFAULT)
FAST, SLOW = Outcome(True, 0.001), Outcome(True, 0.001, 0.5)


def produce(user: str = "alice", clientId: str = "app", kind: str = "Produce") -> Request:
    """One request."""
    return Request(kind, user, clientId, "192.0.2.1", 100)


def built(description: str) -> Any:
    """What a server would build."""
    return buildPolicy(IQuotaPolicyFactory, description, PolicyContext(Clock(), lambda: 0.0))


class ClientsMixin:
    """Two clients and what they send."""

    def entity(self, client: int) -> QuotaEntity:
        """A user."""
        return QuotaEntity(user=f"user-{client}")

    def refusedEntity(self) -> QuotaEntity:
        """An address."""
        return QuotaEntity(ip="192.0.2.1")

    def request(self, client: int, number: int = 0) -> Request:
        """One of any client id."""
        return produce(f"user-{client}", "app")

    def usage(self, request: Request) -> Usage:
        """It does not matter."""
        return Usage(requestBytes=100)


class FixedContractTests(ClientsMixin, RequestLifecycleContract, QuotaPolicyContract, SynchronousTestCase):
    """L{FixedConcurrency} is an L{IQuotaPolicy} and follows requests."""

    limitName, limit = CONCURRENT_REQUESTS, 20.0

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """Without any limit."""
        return FixedConcurrency(None, isShadow)


class AdaptiveContractTests(ClientsMixin, RequestLifecycleContract, FixedQuotaPolicyContract, SynchronousTestCase):
    """L{AdaptiveConcurrency} of all clients is one, too."""

    isShared = True

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """All clients together."""
        return AdaptiveConcurrency(1.0, isShadow=isShadow)


class AdaptiveByClientContractTests(
    ClientsMixin, RequestLifecycleContract, FixedQuotaPolicyContract, SynchronousTestCase
):
    """L{AdaptiveConcurrency} of each client is one, too."""

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """Each for itself."""
        return AdaptiveConcurrency(1.0, isByClient=True, isShadow=isShadow)


class FixedConcurrencyTests(SynchronousTestCase):
    """C{concurrency:limit=N:total=N}."""

    def admitted(self, policy: ConcurrencyPolicy, *requests: Request) -> list[bool]:
        """Which of these may begin; those that may do."""
        answers = []
        for request in requests:
            isAdmitted = policy.decide(request, 0.0).admitted
            answers.append(isAdmitted)
            if isAdmitted:
                policy.begun(request, 0.0)
        return answers

    def test_atATime(self) -> None:
        """A client may have so many requests in progress, and others have their own number."""
        policy = built("concurrency:limit=2")
        alice, bob = produce(clientId="a"), produce(clientId="b")
        self.assertEqual(self.admitted(policy, alice, alice, alice, bob), [True, True, False, True])
        decision = policy.decide(alice, 0.0)
        self.assertEqual(decision.reason, "2 requests of this client are in progress, and 2 may be")
        policy.ended(alice, FAST, 0.0)
        self.assertEqual(self.admitted(policy, alice, alice), [True, False])

    def test_total(self) -> None:
        """All clients together may have that many."""
        policy = built("concurrency:total=2")
        self.assertTrue(policy.isLimiting)
        answers = self.admitted(policy, *(produce(clientId=name) for name in "abc"))
        self.assertEqual(answers, [True, True, False])
        decision = policy.decide(produce(), 0.0)
        self.assertEqual(decision.reason, "2 requests of all clients are in progress, and 2 may be")

    def test_waitsForOthers(self) -> None:
        """A request that waits for other clients is never refused, and does not count."""
        policy = built("concurrency:limit=1")
        fetches = [produce(clientId=name)._replace(traits=Traits(waitsForOthers=True)) for name in "abc"]
        self.assertEqual(self.admitted(policy, *fetches, produce()), [True] * 4)
        for request in fetches:
            policy.ended(request, FAST, 0.0)
        self.assertEqual(self.admitted(policy, produce(), *fetches), [False] + [True] * 3)

    def test_kinds(self) -> None:
        """With kinds, requests of others are never refused and do not count, also where the limit adapts."""
        policy = built("concurrency:total=1:kinds=Produce+report")
        kinds = ("Fetch", "report", "Fetch", "Produce")
        requests = [produce(kind=kind) for kind in kinds]
        self.assertEqual(self.admitted(policy, *requests), [True, True, True, False])
        self.assertEqual([policy.replayKey(each) is None for each in requests], [True, False, True, False])
        for request in requests[:3]:
            policy.ended(request, FAST, 0.0)
        self.assertEqual(policy.sizeBytes, 0)
        adaptive = built("concurrency:adaptive:target=100ms:kinds=report")
        for kind, isCut in (("Fetch", False), ("report", True)):
            adaptive.begun(produce(kind=kind), 1.0)
            adaptive.ended(produce(kind=kind), SLOW, 1.0)
            [status] = adaptive.explain(produce(), 1.0)
            self.assertEqual(status.limit < START, isCut)

    def test_limitsChange(self) -> None:
        """What is in progress counts for whatever limit is set meanwhile."""
        policy = built("concurrency:total=100")
        requests = [produce(clientId=name) for name in "aab"]
        self.admitted(policy, *requests)
        policy.configure(EVERY_CLIENT, {CONCURRENT_REQUESTS: 2.0}, 0.0)
        self.assertEqual(self.admitted(policy, produce(clientId="a"), produce(clientId="b")), [False, True])
        policy.configure(QuotaEntity(user="alice"), {CONCURRENT_REQUESTS: 4.0}, 0.0)
        self.assertEqual(self.admitted(policy, produce(clientId="c")), [False])

    def test_explain(self) -> None:
        """It says how many are in progress of how many, for all and for the client."""
        policy = built("concurrency:limit=2:total=10")
        self.admitted(policy, produce(), produce(), produce(clientId="other"))
        total, own = policy.explain(produce(), 0.0)
        self.assertEqual((total.used, total.limit, total.entity, total.delaySeconds), (3.0, 10, QuotaEntity(), 0.0))
        self.assertEqual((own.used, own.limit, own.entity, own.delaySeconds), (2.0, 2.0, EVERY_CLIENT, 0.1))

    def test_sensors(self) -> None:
        """How many are in progress is published."""
        policy = built("concurrency:limit=2")
        registry = SensorRegistry(lambda: 0.0)
        policy.addSensors(registry, "concurrency")
        self.admitted(policy, produce(), produce(clientId="b"))
        self.assertEqual(registry["concurrency.running"], 2)

    @given(
        steps=st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.sampled_from("xy")), max_size=60),
        limit=st.integers(1, 4),
        total=st.integers(1, 6),
    )
    def test_neverMore(self, steps: list[tuple[int, str, str]], limit: int, total: int) -> None:
        """
        Whichever clients come and go, and whatever limits change meanwhile, no more requests are in progress than may
        be, and nothing is kept of those that are over.
        """
        policy = built(f"concurrency:limit={limit}:total={total}")
        control = AdmissionControl([("concurrency", policy)])
        running: list[tuple[Any, Request]] = []
        for step, user, clientId in steps:
            request = produce(user, clientId)
            if step == 0 and running:
                begun, request = running.pop(0)
                control.end(begun, request, FAST, 0.0)
            elif step == 1 and running:
                begun, request = running.pop()
                control.park(begun, request, FAST, 0.0)
                control.end(begun, request, Outcome(False), 0.0)
            else:
                counts = Counter(each.clientId for _, each in running)
                isAdmitted = control.admit(request, 0.0, Refusal.ERROR).admitted
                self.assertEqual(isAdmitted, len(running) < total and counts[clientId] < limit)
                if isAdmitted:
                    running.append((control.begin(request, 0.0), request))
        for begun, request in running:
            control.end(begun, request, FAST, 0.0)
        self.assertEqual(policy.sizeBytes, 0)

    def test_mistakes(self) -> None:
        """A description that makes no sense is refused in a sentence."""
        for description, words in (
            ("concurrency:7", "say adaptive, or give a limit, as in limit=100"),
            ("concurrency:limit=0", "limit=0"),
            ("concurrency:limit=x", "limit=x"),
            ("concurrency:total=-1", "total=-1"),
            ("concurrency:target=1s", "target=1s goes with adaptive only"),
            ("concurrency:adaptive:limit=7", "limit=7 does not go with adaptive"),
            ("concurrency:adaptive:by=user", "by=user: say all or client"),
            ("concurrency:adaptive:target=0s", "target=0s"),
            ("concurrency:limit=1:wait=1s", "wait=1s goes with queue only"),
            ("concurrency:limit=1:queue=0", "queue=0"),
            ("concurrency:limit=1:queue=7:shadow=yes", "queue=7 does not go with shadow"),
            ("concurrency:adaptive:kinds=a+", "kinds=a+: write kinds of requests"),
        ):
            self.assertIn(words, str(self.assertRaises(PolicyError, built, description)))


class AdaptiveLimitTests(SynchronousTestCase):
    """L{AdaptiveLimit}."""

    def test_increase(self) -> None:
        """After as many fast requests as the limit allows at a time it is one more, up to the most."""
        adaptive = AdaptiveLimit(0.1, 30)
        for _ in range(START):
            adaptive.requestEnded(0.01, START, 5.0)
        self.assertApproximates(adaptive.limit, START + 1, 0.05)
        for _ in range(1000):
            adaptive.requestEnded(0.01, 1000, 5.0)
        self.assertEqual(adaptive.limit, 30)

    def test_unused(self) -> None:
        """A limit of which less than half is used says nothing about more."""
        adaptive = AdaptiveLimit(0.1, 30)
        adaptive.requestEnded(0.01, START // 2 - 1, 5.0)
        self.assertEqual(adaptive.limit, START)

    def test_decrease(self) -> None:
        """Slow requests take a tenth away, once for all that were in progress together, and one is left."""
        adaptive = AdaptiveLimit(0.1, 30)
        for _ in range(10):
            adaptive.requestEnded(0.5, START, 5.0)
        self.assertAlmostEqual(adaptive.limit, START * 0.9)
        adaptive.requestEnded(0.5, START, 5.5)
        self.assertAlmostEqual(adaptive.limit, START * 0.81)
        for second in range(6, 100):
            adaptive.requestEnded(0.5, START, float(second))
        self.assertEqual(adaptive.limit, 1.0)


class AdaptiveConcurrencyTests(SynchronousTestCase):
    """C{concurrency:adaptive}."""

    def limitOf(self, policy: AdaptiveConcurrency, request: Request, now: float) -> float:
        """How many there may be."""
        [status] = policy.explain(request, now)
        return status.limit

    def converged(self, capacity: int, seconds: int = 600) -> float:
        """
        The limit that holds in the end for a server that works on C{capacity} requests at a time, each for 50 ms, and
        clients that always have another one.
        """
        policy = AdaptiveConcurrency(0.1)
        queue: list[float] = []
        request, now = produce(), 0.0
        for _ in range(seconds * 20):
            while policy.decide(request, now).admitted:
                policy.begun(request, now)
                queue.append(now)
            now += 0.05
            done, queue = queue[:capacity], queue[capacity:]
            for begunSeconds in done:
                policy.ended(request, Outcome(True, now - begunSeconds), now)
        return self.limitOf(policy, request, now)

    def test_findsCapacity(self) -> None:
        """
        Whatever a server can do, the limit comes to about as much as leaves requests within the target: twice what is
        worked on at a time, where that takes half of the target.
        """
        for capacity in (2, 10, 40):
            self.assertTrue(capacity * 1.6 < self.converged(capacity) < capacity * 2.4 + 2, capacity)

    def test_byClient(self) -> None:
        """With C{by=client} who is slow pays for it alone."""
        policy = built("concurrency:adaptive:by=client:target=100ms")
        slow, fast = produce(clientId="slow"), produce(clientId="fast")
        for request, outcome in ((slow, SLOW), (fast, FAST)):
            policy.begun(request, 1.0)
            policy.ended(request, outcome, 1.0)
        self.assertLess(self.limitOf(policy, slow, 1.0), START)
        self.assertEqual(self.limitOf(policy, fast, 1.0), START)

    def test_hangUps(self) -> None:
        """A client that sends and hangs up cannot make the limit of all smaller."""
        policy = built("concurrency:adaptive")
        for _ in range(100):
            policy.begun(produce(), 1.0)
            policy.ended(produce(), Outcome(False, 0.001), 1.0)
        self.assertGreaterEqual(self.limitOf(policy, produce(), 1.0), START)

    def test_forgets(self) -> None:
        """What was learnt long ago does not count any more, and takes no memory after the next sweep."""
        policy = built("concurrency:adaptive:by=client:target=100ms")
        policy.begun(produce(), 1.0)
        policy.ended(produce(), SLOW, 1.0)
        self.assertGreater(policy.sizeBytes, 0)
        self.assertLess(self.limitOf(policy, produce(), 60.9), START)
        self.assertEqual(self.limitOf(policy, produce(), 1.0 + FORGET_SECONDS), START)
        policy.sweep(1.0 + FORGET_SECONDS)
        self.assertEqual(policy.sizeBytes, 0)

    def test_anyNumberOfClients(self) -> None:
        """However many names clients invent, only so many are kept, and the ledger is told of them."""
        policy = built("concurrency:adaptive:by=client")
        for number in range(MAX_CLIENTS + 50):
            request = produce(clientId=f"client-{number:010d}")
            policy.begun(request, 1.0)
            policy.ended(request, FAST, 1.0)
            if number == MAX_CLIENTS - 1:
                sizeBytes = policy.sizeBytes
        self.assertEqual(policy.sizeBytes, sizeBytes)
        self.assertGreater(sizeBytes, MAX_CLIENTS * 350)

    def test_sensors(self) -> None:
        """The limit is published, of many the lowest."""
        policy = built("concurrency:adaptive:by=client:target=100ms")
        registry = SensorRegistry(lambda: 1.0)
        policy.addSensors(registry, "concurrency")
        self.assertEqual(registry["concurrency.limit"], START)
        for clientId, outcome in (("slow", SLOW), ("fast", FAST)):
            policy.begun(produce(clientId=clientId), 1.0)
            policy.ended(produce(clientId=clientId), outcome, 1.0)
        self.assertAlmostEqual(registry["concurrency.limit"], START * 0.9)

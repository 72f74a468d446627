"""L{admission_plugins.requestrate}."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.control import AdmissionControl
from admission.interfaces import (
    CONNECTION,
    CONNECTION_TRAITS,
    DEFAULT,
    NOTHING,
    IQuotaPolicy,
    IQuotaPolicyFactory,
    Outcome,
    PolicyContext,
    QuotaEntity,
    Refusal,
    Request,
    Usage,
)
from admission.metrics.registry import SensorRegistry
from admission.plugins import PolicyError, buildPolicy
from admission.testing.quotacontract import QuotaPolicyContract, RequestLifecycleContract
from admission_plugins.requestrate import EARLY_SECONDS, REQUEST_RATE, RequestRate

EVERY_CLIENT, EVERY_ADDRESS = QuotaEntity(clientId=DEFAULT), QuotaEntity(ip=DEFAULT)


def request(user: str = "alice", clientId: str = "app", peer: str = "192.0.2.1") -> Request:
    """One without a body."""
    return Request("GET", user, clientId, peer, 0)


def built(description: str) -> Any:
    """What a server would build."""
    return buildPolicy(IQuotaPolicyFactory, description, PolicyContext(Clock(), lambda: 0.0))


class ContractTests(RequestLifecycleContract, QuotaPolicyContract, SynchronousTestCase):
    """L{RequestRate} is an L{IQuotaPolicy} and follows requests."""

    limitName, limit = REQUEST_RATE, 20.0

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """With the burst of a second."""
        return RequestRate(isShadow=isShadow)

    def entity(self, client: int) -> QuotaEntity:
        """A user."""
        return QuotaEntity(user=f"user-{client}")

    def refusedEntity(self) -> QuotaEntity:
        """A client id at an address; all else it limits."""
        return QuotaEntity(clientId="app", ip="192.0.2.1")

    def request(self, client: int, number: int = 0) -> Request:
        """One of any client id."""
        return request(f"user-{client}", f"client-{number}")

    def usage(self, request: Request) -> Usage:
        """Nothing at all."""
        return Usage()


class AddressContractTests(ContractTests):
    """The same of addresses."""

    def entity(self, client: int) -> QuotaEntity:
        """One of them."""
        return QuotaEntity(ip=f"192.0.2.{client}")

    def request(self, client: int, number: int = 0) -> Request:
        """One of anybody there."""
        return request(f"user-{number}", peer=f"192.0.2.{client}")


class RequestRateTests(SynchronousTestCase):
    """L{RequestRate}."""

    def admitted(self, policy: Any, count: int, now: float, of: Request | None = None) -> int:
        """How many of so many requests at the same time are admitted, and begin."""
        of = of or request()
        admitted = 0
        for _ in range(count):
            if policy.decide(of, now).admitted:
                policy.begun(of, now)
                admitted += 1
        return admitted

    def test_burst(self) -> None:
        """
        As many as the burst are admitted at once, before any of them has ended, and then as many as the rate; without a
        burst it is what a second allows, or one.
        """
        for description, burst, afterTwoSeconds in (
            ("requests:rate=5:burst=20", 20, 10),
            ("requests:rate=5", 5, 5),
            ("requests:rate=1/2s", 1, 1),
            ("requests:rate=100:burst=1", 1, 1),
        ):
            policy = built(description)
            self.assertEqual(self.admitted(policy, 100, 7.0), burst)
            self.assertEqual(self.admitted(policy, 100, 9.0), afterTwoSeconds)

    def test_delay(self) -> None:
        """A refusal says when there is a token again, and a client that comes back then is admitted."""
        policy = built("requests:rate=5:burst=2")
        self.admitted(policy, 2, 0.0)
        decision = policy.decide(request(), 0.05)
        self.assertAlmostEqual(decision.delaySeconds, 0.15)
        self.assertEqual(decision.reason, "more than 5 requests a second")
        self.assertFalse(policy.decide(request(), 0.15).admitted)
        self.assertEqual(self.admitted(policy, 2, 0.2), 1)

    def test_early(self) -> None:
        """A client that comes back a little too early, as timers have it, is admitted, and owes what it took."""
        policy = built("requests:rate=5:burst=1")
        self.admitted(policy, 1, 0.0)
        early = 0.2 - EARLY_SECONDS / 2
        self.assertEqual(self.admitted(policy, 1, early), 1)
        self.assertAlmostEqual(policy.decide(request(), early).delaySeconds, 0.2 + EARLY_SECONDS / 2)

    def test_counted(self) -> None:
        """A request counts once, when it begins, whatever it uses and however it ends; asking counts nothing."""
        control = AdmissionControl([("requests", built("requests:rate=1:burst=3"))])
        for usage in (Usage(), NOTHING, Usage(10, 10, 9.0)):
            self.assertTrue(control.admit(request(), 0.0).admitted)
            begun = control.begin(request(), 0.0)
            for _ in range(3):
                self.assertEqual(control.charge(request(), usage, 0.0).delaySeconds, 0.0)
            control.end(begun, request(), Outcome(False), 0.0)
        self.assertFalse(control.admit(request(), 0.0).admitted)

    def test_notRefusable(self) -> None:
        """Where a protocol cannot refuse, clients are throttled to the rate, also those with several connections."""
        control = AdmissionControl([("requests", built("requests:rate=5:burst=1"))])
        delays = []
        for _ in range(3):
            decision = control.admit(request(), 0.0, Refusal.DELAY)
            control.begin(request(), 0.0)
            delays.append(control.charge(request(), Usage(), 0.0, decision).delaySeconds)
        self.assertEqual(delays, [0.0, 0.2, 0.4])

    def test_connections(self) -> None:
        """A connection that is opened is no request, nor are the bytes of a wrapped server."""
        policy = built("requests:rate=1")
        opened = Request(CONNECTION, "alice", "app", "192.0.2.1", 0, traits=CONNECTION_TRAITS)
        policy.begun(opened, 0.0)
        self.assertEqual((policy.replayKey(opened), policy.sizeBytes), (None, 0))
        control = AdmissionControl([("requests", policy)])
        control.begin(request(), 0.0)
        self.assertTrue(control.admit(opened, 0.0).admitted)

    def test_kinds(self) -> None:
        """With kinds, requests of others are never refused and take no token."""
        policy = built("requests:rate=1:burst=2:kinds=POST+PUT")
        post = request()._replace(kind="POST")
        self.assertEqual([self.admitted(policy, 9, 0.0, of) for of in (request(), post, request())], [9, 2, 9])
        self.assertEqual([policy.replayKey(of) is None for of in (request(), post)], [True, False])

    def test_addresses(self) -> None:
        """Where a client and its address have a limit, both hold, and both are explained; defaults may be of both."""
        policy = built("requests:rate=2")
        policy.configure(EVERY_ADDRESS, {REQUEST_RATE: 3.0}, 0.0)
        self.assertEqual([self.admitted(policy, 9, 0.0, request(clientId=each)) for each in "abc"], [2, 1, 0])
        self.assertEqual(self.admitted(policy, 9, 0.0, request(clientId="c", peer="192.0.2.2")), 2)
        client, address = policy.explain(request(clientId="b"), 0.0)
        self.assertEqual((client.entity, client.limit, client.used, client.delaySeconds), (EVERY_CLIENT, 2.0, 1.0, 0.0))
        self.assertEqual((address.entity, address.limit, address.used), (EVERY_ADDRESS, 3.0, 3.0))
        self.assertAlmostEqual(address.delaySeconds, 1 / 3)
        policy.configure(EVERY_CLIENT, {REQUEST_RATE: None}, 0.0)
        self.assertEqual(self.admitted(policy, 9, 1.0, request(clientId="d")), 3)

    def test_replayKey(self) -> None:
        """Clients are replayed apart, and so are addresses, but all together where both have limits."""
        policy = built("requests:rate=2")
        requests = [request(clientId=clientId, peer=peer) for clientId in "ab" for peer in ("192.0.2.1", "192.0.2.2")]
        for entity, value, keys in (
            (EVERY_ADDRESS, None, [(None, "a"), (None, "a"), (None, "b"), (None, "b")]),
            (EVERY_ADDRESS, 3.0, [()] * 4),
            (EVERY_CLIENT, None, [("192.0.2.1",), ("192.0.2.2",)] * 2),
        ):
            policy.configure(entity, {REQUEST_RATE: value}, 0.0)
            self.assertEqual(list(map(policy.replayKey, requests)), keys)

    def test_shadow(self) -> None:
        """A shadow policy counts what it would have admitted, so that it refuses no more than one in force."""
        control = AdmissionControl([("requests", built("requests:rate=5:burst=1:shadow=yes"))])
        for tick in range(100):
            self.assertTrue(control.admit(request(), tick / 10).admitted)
            control.begin(request(), tick / 10)
        registry = SensorRegistry(lambda: 10.0)
        control.addSensors(registry)
        self.assertEqual(dict(registry.families["QuotaShadowRefusals"].read(10.0)), {("requests",): 50})

    def test_limitsChange(self) -> None:
        """The burst is that many seconds of any rate, and what was taken stays counted."""
        policy = built("requests:rate=5:burst=20")
        self.admitted(policy, 18, 0.0)
        policy.configure(EVERY_CLIENT, {REQUEST_RATE: 1.0}, 0.0)
        self.assertEqual(self.admitted(policy, 9, 0.0), 2)
        self.assertEqual(self.admitted(policy, 9, 100.0), 4)

    def test_sensors(self) -> None:
        """The rates of clients and of addresses are published."""
        policy = built("requests:rate=5:burst=20")
        policy.configure(EVERY_ADDRESS, {REQUEST_RATE: 8.0}, 0.0)
        registry = SensorRegistry(lambda: 2.0)
        policy.addSensors(registry, "requests")
        self.admitted(policy, 8, 0.0)
        for name, labels in (("Request", ("", "app")), ("Address", ("192.0.2.1",))):
            found = {what: dict(registry.families[f"requests.{name}.{what}"].read(2.0)) for what in ("request-rate",)}
            self.assertEqual(found, {"request-rate": {labels: 4.0}})

    def test_anyNumberOfClients(self) -> None:
        """However many names clients invent, only so many have buckets of their own."""
        policy = built("requests:rate=5:meters=10")
        for number in range(1000):
            self.admitted(policy, 1, 0.0, request(clientId=f"client-{number:06d}"))
            if number == 99:
                sizeBytes = policy.sizeBytes
        self.assertLessEqual(policy.sizeBytes, sizeBytes + 1000)
        self.assertEqual(self.admitted(policy, 1, 0.0, request(clientId="another")), 0)

    @given(
        st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 9)), max_size=40),
        st.floats(0.1, 50.0),
        st.integers(1, 20),
    )
    def test_neverMore(self, steps: list[tuple[float, int]], rate: float, burst: int) -> None:
        """Over any time no more are admitted than the burst, the rate, and one that was early."""
        policy = built(f"requests:rate={rate:.3f}:burst={burst}")
        now, admitted = 0.0, 0
        for pauseSeconds, count in steps:
            now += pauseSeconds
            admitted += self.admitted(policy, count, now)
            self.assertLessEqual(admitted, burst + (now + EARLY_SECONDS) * (rate + 0.001) + 1e-6)

    def test_mistakes(self) -> None:
        """A description that makes no sense is refused in a sentence."""
        for description, words in (
            ("requests:rate=fast", "is not a rate"),
            ("requests:rate=0", "more than zero"),
            ("requests:burst=5", "give rate, too"),
            ("requests:rate=5:burst=0", "burst=0: write a whole number"),
            ("requests:rate=5:burst=1s", "burst=1s: write a whole number"),
            ("requests:meters=0", "whole number"),
            ("requests:shadow=maybe", "yes or no"),
            ("requests:kinds=+", "kinds=+: write kinds of requests"),
        ):
            self.assertIn(words, str(self.assertRaises(PolicyError, built, description)))

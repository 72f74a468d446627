"""L{admission_plugins.clientquotas}."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from admission.interfaces import (
    ADMITTED,
    CONNECTION,
    CONNECTION_TRAITS,
    DEFAULT,
    NOTHING,
    IQuotaPolicy,
    IQuotaPolicyFactory,
    PolicyContext,
    QuotaEntity,
    Request,
    Traits,
    Usage,
)
from admission.metrics.registry import SensorRegistry
from admission.plugins import PolicyError, buildPolicy
from admission.quotas.metering import Buckets, SharedBuckets, Windows
from admission.testing.quotacontract import QuotaPolicyContract
from admission.testing.sharedlimitscontract import SharedLimitsContract
from admission_plugins.clientquotas import ClientBytes, ConnectionRate, RequestTime

DEFAULT_CLIENT = QuotaEntity(clientId=DEFAULT)
PRODUCER = "received_byte_rate"
CONSUMER = "sent_byte_rate"
PERCENTAGE = "request_percentage"
DEFAULT_ADDRESS = QuotaEntity(ip=DEFAULT)
RATE = "connection_creation_rate"
OPENED = Usage(connections=1)
RECEIVING = Traits(countsSent=False)
SENDING = Traits(countsReceived=False)
UNCOUNTED = Traits(countsReceived=False, countsSent=False)


def produce(clientId: str = "app", principal: str = "alice") -> Request:
    """A Produce request."""
    return Request("Produce", principal, clientId, "192.0.2.1", 100, traits=RECEIVING)


def fetch(clientId: str = "app", principal: str = "alice") -> Request:
    """A Fetch request."""
    return Request("Fetch", principal, clientId, "192.0.2.1", 100, traits=SENDING)


def both(clientId: str = "app", principal: str = "alice") -> Request:
    """A request whose bytes count in both directions."""
    return Request("call", principal, clientId, "192.0.2.1", 100)


def produced(sizeBytes: int) -> Usage:
    """What a Produce request of that size took."""
    return Usage(sizeBytes, 50, 0.001)


def fetched(sizeBytes: int) -> Usage:
    """What a Fetch request took that returned so much."""
    return Usage(50, sizeBytes, 0.001)


class ClientBytesContract(QuotaPolicyContract):
    """What is the same for both algorithms."""

    limitName = PRODUCER
    limit = 1000.0

    def entity(self, client: int) -> QuotaEntity:
        """A client id."""
        return QuotaEntity(clientId=f"client-{client}")

    def refusedEntity(self) -> QuotaEntity:
        """An address."""
        return QuotaEntity(ip="192.0.2.1")

    def request(self, client: int, number: int = 0) -> Request:
        """A Produce request."""
        return produce(f"client-{client}")


class WindowContractTests(ClientBytesContract, SynchronousTestCase):
    """L{ClientBytes} with windows is an L{IQuotaPolicy}."""

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """With Kafka's windows."""
        return ClientBytes(Windows(11, 1.0), isShadow=isShadow)

    def usage(self, request: Request) -> Usage:
        """A tenth of what the windows hold."""
        return produced(1000)


class BucketContractTests(ClientBytesContract, SynchronousTestCase):
    """L{ClientBytes} with buckets is an L{IQuotaPolicy}."""

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """With a second's burst."""
        return ClientBytes(Buckets(1.0), isShadow=isShadow)

    def usage(self, request: Request) -> Usage:
        """A tenth of the burst."""
        return produced(100)


class SharedContractTests(SharedLimitsContract, BucketContractTests):
    """L{ClientBytes} with shared buckets is an L{IShared}, too."""

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """With a second's burst."""
        return ClientBytes(SharedBuckets(1.0), isShadow=isShadow)


class FetchContractTests(WindowContractTests):
    """The same for Fetch requests, which have a budget."""

    limitName = CONSUMER

    def request(self, client: int, number: int = 0) -> Request:
        """A Fetch request."""
        return fetch(f"client-{client}")

    def usage(self, request: Request) -> Usage:
        """A tenth of what the windows hold."""
        return fetched(1000)


class SharedFetchContractTests(SharedContractTests):
    """The same for the bytes that are sent."""

    limitName = CONSUMER

    def request(self, client: int, number: int = 0) -> Request:
        """A Fetch request."""
        return fetch(f"client-{client}")

    def usage(self, request: Request) -> Usage:
        """A tenth of the burst."""
        return fetched(100)


class ClientBytesTests(SynchronousTestCase):
    """L{ClientBytes}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.policy = ClientBytes(Windows(11, 1.0))
        self.policy.configure(DEFAULT_CLIENT, {PRODUCER: 1000.0, CONSUMER: 1000.0}, self.clock.seconds())

    def test_whatCounts(self) -> None:
        """Of a Produce the request counts, of a Fetch the response, of others nothing; the two are counted apart."""
        self.assertEqual(self.policy.record(produce(), Usage(12_000, 50_000), self.clock.seconds()), 2.0)
        self.assertEqual(self.policy.record(fetch(), Usage(50_000, 11_000), self.clock.seconds()), 1.0)
        other = Request("Metadata", "alice", "app", "192.0.2.1", 100, traits=UNCOUNTED)
        self.assertEqual(self.policy.record(other, Usage(50_000, 50_000), self.clock.seconds()), 0.0)
        self.assertEqual(
            [self.policy.record(each, NOTHING, self.clock.seconds()) for each in (produce(), fetch())], [2.0, 1.0]
        )

    def test_bothCount(self) -> None:
        """Where the bytes of both directions count, the longer delay is the client's."""
        self.assertEqual(self.policy.record(both(), Usage(12_000, 11_000), self.clock.seconds()), 2.0)
        self.assertEqual(self.policy.record(both(), Usage(0, 3_000), self.clock.seconds()), 4.0)
        self.assertEqual(
            [self.policy.record(each, NOTHING, self.clock.seconds()) for each in (produce(), fetch())], [2.0, 4.0]
        )

    def test_refusesNobody(self) -> None:
        """A client over the limit is throttled and not refused."""
        self.policy.record(produce(), produced(50_000), self.clock.seconds())
        self.assertEqual(self.policy.decide(produce(), self.clock.seconds()), ADMITTED)

    def test_budget(self) -> None:
        """A Fetch may return what the windows have room for; nothing once it is over, and at least something before."""
        budgets = [self.policy.budgetBytes(fetch(), self.clock.seconds())]
        for sizeBytes in (4000, 6000, 1):
            self.policy.record(fetch(), fetched(sizeBytes), self.clock.seconds())
            budgets.append(self.policy.budgetBytes(fetch(), self.clock.seconds()))
        self.assertEqual(budgets, [10_000, 6000, 1, 0])
        self.clock.advance(0.5)
        self.assertEqual(self.policy.budgetBytes(fetch(), self.clock.seconds()), 499)
        self.policy.record(produce(), produced(50_000), self.clock.seconds())
        self.assertIs(self.policy.budgetBytes(produce(), self.clock.seconds()), None)

    @settings(deadline=None)
    @given(
        steps=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 20_000)), max_size=40),
        algorithm=st.sampled_from([Windows(11, 1.0), Windows(1, 0.5), Buckets(1.0)]),
    )
    def test_keepingToTheBudget(self, steps: list[tuple[float, int]], algorithm: Windows | Buckets) -> None:
        """
        A server that returns no more than the budget, which is at least a byte, goes over a bucket's limit by no more
        than that byte; and over that of windows by what one of them may hold besides, since the span shrinks by one,
        and by the pause behind it, whenever another begins.
        """
        now = 0.0
        policy = ClientBytes(algorithm)
        policy.configure(DEFAULT_CLIENT, {CONSUMER: 1000.0}, now)
        longestPauseSeconds = max([pauseSeconds for pauseSeconds, _ in steps], default=0.0)
        overSeconds = algorithm.windowSeconds + longestPauseSeconds if isinstance(algorithm, Windows) else 0.0
        maxSeconds = 0.001 + overSeconds
        for pauseSeconds, wantedBytes in steps:
            now += pauseSeconds
            budgetBytes = policy.budgetBytes(fetch(), now)
            assert budgetBytes is not None
            delaySeconds = policy.record(fetch(), fetched(min(budgetBytes, wantedBytes)), now)
            self.assertLessEqual(delaySeconds, maxSeconds + 1e-9)

    def test_explain(self) -> None:
        """Both limits are explained, whatever the kind of the request."""
        self.policy.configure(QuotaEntity("alice"), {CONSUMER: 4000.0}, self.clock.seconds())
        self.policy.record(fetch(), fetched(50_000), self.clock.seconds())
        for kind in ("Produce", "Fetch", "Metadata"):
            statuses = self.policy.explain(Request(kind, "alice", "app", "192.0.2.1", 0), self.clock.seconds())
            self.assertEqual(
                [(each.limitName, each.limit, each.entity, each.used, each.delaySeconds) for each in statuses],
                [(PRODUCER, 1000.0, DEFAULT_CLIENT, 0.0, 0.0), (CONSUMER, 4000.0, QuotaEntity("alice"), 5000.0, 2.5)],
            )

    def test_replayKey(self) -> None:
        """Requests that share a meter share a key; Produce and Fetch do not."""
        self.policy.configure(QuotaEntity("alice"), {PRODUCER: 10.0}, self.clock.seconds())
        requests = [produce("a"), produce("b"), fetch("a"), fetch("b"), produce("a", "bob"), produce("a", "eve")]
        keys = [self.policy.replayKey(request) for request in requests]
        self.assertEqual(len(set(keys)), 4)
        self.assertEqual((keys[0], keys[4]), (keys[1], keys[5]))

    def test_replayKeyOfBoth(self) -> None:
        """Requests that count in both directions are replayed together."""
        self.assertEqual({self.policy.replayKey(each) for each in (both("a"), both("b"), both("a", "bob"))}, {()})

    def test_sensors(self) -> None:
        """Rates, delays and utilisation are published by type, user and client id."""
        registry = SensorRegistry(self.clock.seconds)
        self.policy.addSensors(registry, "client-bytes")
        self.policy.record(produce(), produced(12_000), self.clock.seconds())
        values = {
            name: {tuple(labels): value for labels, value in family.read(self.clock.seconds())}
            for name, family in registry.families.items()
        }
        self.assertEqual(
            values,
            {
                "client-bytes.Received.byte-rate": {("", "app"): 1200.0},
                "client-bytes.Received.throttle-time": {("", "app"): 2000.0},
                "client-bytes.Received.utilization": {("", "app"): 1.2},
                "client-bytes.Sent.byte-rate": {},
                "client-bytes.Sent.throttle-time": {},
                "client-bytes.Sent.utilization": {},
            },
        )


def request(kind: str = "Produce", clientId: str = "app") -> Request:
    """A request of alice."""
    return Request(kind, "alice", clientId, "192.0.2.1", 100)


def worked(seconds: float) -> Usage:
    """What a request took that was worked on for so long."""
    return Usage(100, 100, seconds)


class RequestTimeContractTests(QuotaPolicyContract, SynchronousTestCase):
    """L{RequestTime} is an L{IQuotaPolicy}."""

    limitName = PERCENTAGE
    limit = 50.0

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """With Kafka's windows."""
        return RequestTime(11, 1.0, isShadow=isShadow)

    def entity(self, client: int) -> QuotaEntity:
        """A user."""
        return QuotaEntity(user=f"user-{client}")

    def refusedEntity(self) -> QuotaEntity:
        """An address."""
        return QuotaEntity(ip="192.0.2.1")

    def request(self, client: int, number: int = 0) -> Request:
        """A request of any kind."""
        kind = ("Produce", "Fetch", "Metadata")[number % 3]
        return Request(kind, f"user-{client}", f"client-{number}", "192.0.2.1", 100)

    def usage(self, request: Request) -> Usage:
        """A tenth of the time that the windows hold."""
        return worked(0.5)


class RequestTimeTests(SynchronousTestCase):
    """L{RequestTime}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.policy = RequestTime(11, 1.0)
        self.policy.configure(DEFAULT_CLIENT, {PERCENTAGE: 50.0}, self.clock.seconds())

    def test_percentOfAThread(self) -> None:
        """
        Five seconds of work in ten are 50 percent of one thread, and a tenth of
        a second more is 0.2 seconds too much.
        """
        self.assertEqual(self.policy.record(request(), worked(5.0), self.clock.seconds()), 0.0)
        [status] = self.policy.explain(request(), self.clock.seconds())
        self.assertEqual((status.used, status.utilization), (50.0, 1.0))
        self.assertAlmostEqual(self.policy.record(request(), worked(0.1), self.clock.seconds()), 0.2)

    def test_oneWindowAtMost(self) -> None:
        """However much was taken, the client is throttled for one window at a time."""
        self.assertEqual(self.policy.record(request(), worked(1000.0), self.clock.seconds()), 1.0)
        self.clock.advance(1.0)
        now = self.clock.seconds()
        [status] = self.policy.explain(request(), now)
        self.assertEqual((self.policy.record(request(), NOTHING, now), status.delaySeconds), (1.0, 1.0))
        longer = RequestTime(11, 2.5)
        longer.configure(DEFAULT_CLIENT, {PERCENTAGE: 50.0}, self.clock.seconds())
        self.assertEqual(longer.record(request(), worked(1000.0), self.clock.seconds()), 2.5)

    def test_allKinds(self) -> None:
        """All requests of a client count together, but for connections, which nobody has named themselves for yet."""
        for kind in ("Produce", "Fetch", "Metadata", "no such kind"):
            self.policy.record(request(kind), worked(2.0), self.clock.seconds())
        self.assertEqual(self.policy.record(request(), NOTHING, self.clock.seconds()), 1.0)
        self.assertEqual(self.policy.record(connection(), worked(100.0), self.clock.seconds()), 0.0)
        now = self.clock.seconds()
        [status] = self.policy.explain(request(), now)
        self.assertEqual((status.used, self.policy.budgetBytes(connection(), now)), (80.0, None))

    def test_someKinds(self) -> None:
        """With kinds, the time of others does not count, and nobody waits for them; it is explained all the same."""
        policy = RequestTime(11, 1.0, kinds=("report",))
        policy.configure(DEFAULT_CLIENT, {PERCENTAGE: 50.0}, 0.0)
        self.assertEqual(policy.record(request("Produce"), worked(100.0), 0.0), 0.0)
        self.assertGreater(policy.record(request("report"), worked(100.0), 0.0), 0.0)
        for kind, delaySeconds, budgetBytes in (("Produce", 0.0, None), ("report", 1.0, 0)):
            self.assertEqual(policy.record(request(kind), NOTHING, 0.0), delaySeconds)
            self.assertEqual(policy.budgetBytes(request(kind), 0.0), budgetBytes)
            self.assertEqual(policy.replayKey(request(kind)) is None, kind == "Produce")
            self.assertEqual([status.delaySeconds for status in policy.explain(request(kind), 0.0)], [1.0])

    def test_budget(self) -> None:
        """A client that has had too much time reads nothing, and everybody else reads anything."""
        self.assertIs(self.policy.budgetBytes(request("Fetch"), self.clock.seconds()), None)
        self.policy.record(request(), worked(6.0), self.clock.seconds())
        self.assertEqual(self.policy.budgetBytes(request("Fetch"), self.clock.seconds()), 0)
        self.assertIs(self.policy.budgetBytes(request("Fetch", "other"), self.clock.seconds()), None)

    def test_sensors(self) -> None:
        """The time is published in percent."""
        registry = SensorRegistry(self.clock.seconds)
        self.policy.addSensors(registry, "request-time")
        self.policy.record(request(), worked(6.0), self.clock.seconds())
        self.assertEqual(
            list(registry.families["request-time.Request.request-time"].read(self.clock.seconds())),
            [(("", "app"), 60.0)],
        )


def connection(ip: str = "192.0.2.1") -> Request:
    """A connection being opened."""
    return Request(CONNECTION, "", "", ip, 0, traits=CONNECTION_TRAITS)


class ConnectionRateContractTests(QuotaPolicyContract, SynchronousTestCase):
    """L{ConnectionRate} is an L{IQuotaPolicy}."""

    limitName = RATE
    limit = 10.0

    def buildPolicy(self, isShadow: bool = False) -> IQuotaPolicy:
        """With a burst of a second."""
        return ConnectionRate(1.0, isShadow=isShadow)

    def entity(self, client: int) -> QuotaEntity:
        """An address."""
        return QuotaEntity(ip=f"192.0.2.{client}")

    def refusedEntity(self) -> QuotaEntity:
        """A user."""
        return QuotaEntity(user="alice")

    def request(self, client: int, number: int = 0) -> Request:
        """A connection."""
        return connection(f"192.0.2.{client}")

    def usage(self, request: Request) -> Usage:
        """One connection."""
        return OPENED


class ConnectionRateTests(SynchronousTestCase):
    """L{ConnectionRate}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.policy = ConnectionRate(2.0)
        self.policy.configure(DEFAULT_ADDRESS, {RATE: 2.0}, self.clock.seconds())

    def test_otherKinds(self) -> None:
        """Requests do not count."""
        request = Request("Produce", "alice", "app", "192.0.2.1", 100)
        for _ in range(10):
            self.assertEqual(self.policy.record(request, OPENED, self.clock.seconds()), 0.0)
        self.assertEqual(self.policy.explain(request, self.clock.seconds())[0].used, 0.0)
        self.assertIs(self.policy.budgetBytes(connection(), self.clock.seconds()), None)


class DescriptionTests(SynchronousTestCase):
    """C{client-bytes}, C{request-time} and C{connections} in descriptions."""

    def build(self, description: str, **context: Any) -> Any:
        """Build what is described."""
        return buildPolicy(IQuotaPolicyFactory, description, PolicyContext(Clock(), lambda: 0.0, **context))

    def delays(self, policy: IQuotaPolicy, *sizesBytes: int) -> Sequence[float]:
        """What recording requests of these sizes brings."""
        return [policy.record(produce(), produced(sizeBytes), 0.0) for sizeBytes in sizesBytes]

    def test_bare(self) -> None:
        """Without arguments they limit nobody until they are told to."""
        for name, horizonSeconds in (("client-bytes", 12.0), ("request-time", 12.0), ("connections", None)):
            policy = self.build(name)
            self.assertEqual(
                (policy.isLimiting, policy.isShadow, policy.horizonSeconds), (False, False, horizonSeconds)
            )

    def test_limits(self) -> None:
        """What is given holds for those without a limit of their own."""
        for description, limits in (
            ("client-bytes:received=2M:sent=4M/2s:shadow=yes", {DEFAULT_CLIENT: {PRODUCER: 2e6, CONSUMER: 2e6}}),
            ("client-bytes:produce=2M:fetch=4M/2s:shadow=yes", {DEFAULT_CLIENT: {PRODUCER: 2e6, CONSUMER: 2e6}}),
            ("request-time:percent=12.5:shadow=yes:meters=5", {DEFAULT_CLIENT: {PERCENTAGE: 12.5}}),
            ("connections:perSecond=30/1m:shadow=yes", {DEFAULT_ADDRESS: {RATE: 0.5}}),
        ):
            policy = self.build(description)
            self.assertEqual((policy.limits, policy.isLimiting, policy.isShadow), (limits, True, True))

    def test_windows(self) -> None:
        """The windows are those of the server, unless the description says else."""
        server = {"quotaWindows": 4, "quotaWindowSeconds": 2.0}
        for arguments, expected in [("", 1.0), (":windows=6", -3.0), (":windows=4:window=500ms", 5.5)]:
            policy = self.build(f"client-bytes:produce=1000{arguments}", **server)
            self.assertEqual(self.delays(policy, 7000), [max(expected, 0.0)])
            self.assertEqual(self.delays(policy, 3000), [expected + 3.0])
        self.assertEqual(self.build("request-time", **server).horizonSeconds, 10.0)

    def test_burst(self) -> None:
        """A bucket has a burst of a second, unless the description says else."""
        self.assertEqual(self.delays(self.build("client-bytes:produce=1000:algorithm=bucket"), 1000, 500), [0.0, 0.5])
        longer = self.build("client-bytes:produce=1000:algorithm=bucket:burst=3s")
        self.assertEqual((self.delays(longer, 3000, 500), longer.horizonSeconds), ([0.0, 0.5], None))
        opened = self.build("connections:perSecond=0.5:burst=4s")
        self.assertEqual([opened.record(connection(), OPENED, 0.0) for _ in range(3)], [0.0, 0.0, 2.0])

    def test_kinds(self) -> None:
        """Kinds are given with plus signs between them, and may have spaces and, with a backslash, colons."""
        policy = self.build("request-time:percent=1:kinds=POST /a b + report+urn\\:x")
        kinds = ("POST /a b", "report", "urn:x", "POST", "urn", "")
        self.assertEqual(
            [policy.record(request(kind), worked(9.0), 0.0) > 0 for kind in kinds], [True] * 3 + [False] * 3
        )

    def test_meters(self) -> None:
        """The number of clients that are told apart can be set."""
        policy = self.build("client-bytes:produce=1000:algorithm=bucket:meters=1")
        policy.record(produce("a"), produced(2000), 0.0)
        policy.record(produce("b"), produced(3000), 0.0)
        self.assertEqual([policy.record(produce(each), NOTHING, 0.0) for each in "abc"], [1.0, 2.0, 2.0])
        policy = self.build("connections:perSecond=0.5:burst=4s:meters=1")
        self.assertEqual([policy.record(connection(f"192.0.2.{n % 4}"), OPENED, 0.0) for n in range(4)], [0, 0, 0, 2])

    def test_mistakes(self) -> None:
        """What makes no sense is refused, saying what would."""
        for description, words in [
            ("client-bytes:produce=0", "more than zero"),
            ("client-bytes:received=1:produce=1", "received and produce are the same limit"),
            ("client-bytes:sent=1:fetch=1", "sent and fetch are the same limit"),
            ("client-bytes:produce=fast", "is not a rate"),
            ("client-bytes:algorithm=magic", "say window or bucket"),
            ("client-bytes:burst=1s", "algorithm=bucket only"),
            ("client-bytes:algorithm=bucket:windows=3", "algorithm=window only"),
            ("client-bytes:algorithm=bucket:window=3s", "algorithm=window only"),
            ("client-bytes:algorithm=bucket:burst=0s", "more than nothing"),
            ("client-bytes:windows=0", "whole number, 1 or more"),
            ("client-bytes:windows=1.5", "whole number"),
            ("client-bytes:window=0s", "more than nothing"),
            ("client-bytes:meters=0", "whole number"),
            ("client-bytes:shadow=maybe", "yes or no"),
            ("client-bytes:consume=5", "expected client-bytes["),
            ("request-time:percent=half", "write a number"),
            ("request-time:percent=0", "more than zero"),
            ("request-time:percent=nan", "finite"),
            ("request-time:shadow=1", "yes or no"),
            ("request-time:meters=x", "whole number"),
            ("request-time:kinds=", "kinds=: write kinds of requests with + between them"),
            ("request-time:kinds=put++get", "kinds=put++get: write kinds"),
            ("connections:perSecond=0", "more than zero"),
            ("connections:perSecond=few", "is not a rate"),
            ("connections:burst=0s", "more than nothing"),
            ("connections:shadow=", "yes or no"),
            ("connections:meters=-1", "whole number"),
        ]:
            self.assertIn(words, str(self.assertRaises(PolicyError, self.build, description)))

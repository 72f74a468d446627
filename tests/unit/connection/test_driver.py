"""L{admission.connection.driver}."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.connection.debts import Debts
from admission.connection.driver import RequestDriver
from admission.control import AdmissionControl
from admission.interfaces import (
    ADMITTED,
    CONNECTION,
    NOTHING,
    Decision,
    IRequestLifecycle,
    Outcome,
    QuotaEntity,
    Refusal,
    Request,
    Usage,
)
from admission.quotas.policy import QuotaPolicy
from admission.request import ServerRequest

ALICE = QuotaEntity(user="alice")

ACTIONS = ("charge", "wait", "hold", "limits", "over", "lose", "parked", "throttle")


@implementer(IRequestLifecycle)
class Played(QuotaPolicy):
    """
    Does as the test says.

    @ivar delaySeconds: what it asks for when anything is used.
    @ivar restSeconds: what it asks for when it is only asked.
    @ivar running: the kinds of the requests that have begun.
    """

    limitNames = ("rate",)
    countsParked = False

    def __init__(self) -> None:
        self.limits = {ALICE: {"rate": 1.0}}
        self.decision = ADMITTED
        self.delaySeconds = self.restSeconds = 0.0
        self.running: list[str] = []

    def configure(self, entity: QuotaEntity, limits: Mapping[str, float | None], now: float) -> None:
        rate = limits["rate"]
        self.limits = {} if rate is None else {entity: {"rate": rate}}

    def decide(self, request: Request, now: float) -> Decision:
        return self.decision

    def record(self, request: Request, usage: Usage, now: float) -> float:
        return self.restSeconds if usage is NOTHING else self.delaySeconds

    def begun(self, request: Request, now: float) -> None:
        self.running.append(request.kind)

    def ended(self, request: Request, outcome: Outcome, now: float) -> None:
        self.running.remove(request.kind)


class Refusing(QuotaPolicy):
    """Refuses everybody."""

    def decide(self, request: Request, now: float) -> Decision:
        return Decision(False, 1.0, "too many")

    def record(self, request: Request, usage: Usage, now: float) -> float:
        return 0.0


class Server:
    """What connections share."""

    def __init__(self, *others: tuple[str, QuotaPolicy], isObserved: bool = False) -> None:
        self.clock = Clock()
        self.policy = Played()
        self.control = AdmissionControl([("played", self.policy), *others], 100.0, isObserved)
        self.debts = Debts()
        self.gate: Any = SimpleNamespace(
            pool=SimpleNamespace(availableBytes=250, sizeBytes=1000),
            turns=SimpleNamespace(waitedSeconds=0.25),
            lag=SimpleNamespace(standingSeconds=0.125),
        )
        self.over: list[ServerRequest] = []
        self.observers = (SimpleNamespace(requestOver=self.over.append),)
        self.clientIdAt = str
        self.places = self.trustedProxies = None


class Connection:
    """
    A connection without a transport.

    @ivar told: what its driver has told it.
    @ivar heard: called with each of that.
    """

    makeRequest = ServerRequest
    host, principal, clientId = "192.0.2.7", "alice", "app"
    holder = principal
    hasPeerGone = isLost = isClosing = False
    whyClosed: str | None = None

    def __init__(self, server: Server, heard: Callable[[str], object] = lambda word: None) -> None:
        self.factory: Any = server
        self.told: list[str] = []
        self.heard = heard
        self.driver = RequestDriver(self)

    def close(self, reason: str) -> None:
        self.isClosing, self.whyClosed = True, reason
        self._hear("close")

    def throttled(self, delaySeconds: float) -> None:
        self._hear("throttled")

    def throttleOver(self) -> None:
        self._hear("over")

    def _hear(self, word: str) -> None:
        assert word != "over" or self.factory.clock.seconds() >= self.driver.throttledUntilSeconds, "it is too early"
        self.told.append(word)
        self.heard(word)

    def request(self, kind: str, refusal: Refusal = Refusal.ERROR) -> ServerRequest:
        """A request that the policies were asked about."""
        request = self.driver.arrived(100)
        request.kind, request.principal, request.clientId = kind, self.principal, self.clientId
        request.begin(request.arrived)
        self.driver.admit(request, refusal)
        return request

    def charged(self, request: ServerRequest) -> float:
        """Charge a request, and let its client wait."""
        now = self.factory.clock.seconds()
        delaySeconds = self.driver.charge(request, self.driver.usageOf(request, 10, now), now)
        if delaySeconds:
            self.driver.throttle(delaySeconds)
        return delaySeconds


class DriverTestCase(SynchronousTestCase):
    """A server with one policy."""

    def setUp(self) -> None:
        self.server = Server()
        self.clock, self.policy = self.server.clock, self.server.policy

    def limitsChanged(self) -> None:
        """Let the server's limits be others."""
        self.server.debts.limitsChanged(self.clock.seconds())


class WayTests(DriverTestCase):
    """The way of requests."""

    def test_manyAtOnce(self) -> None:
        """Requests of one connection are in progress together, and end in any order, each once."""
        connection = Connection(self.server)
        driver = connection.driver
        requests = [connection.request(kind) for kind in "abc"]
        self.assertEqual([each.inFlight for each in requests], [1, 2, 3])
        for each in requests:
            driver.begin(each)
        driver.park(requests[1])
        self.assertEqual((self.policy.running, driver.openRequests), (["a", "c"], 3))
        for index in (2, 0, 1):
            driver.answered(requests[index], self.clock.seconds())
        self.assertEqual((self.policy.running, driver.openRequests), ([], 0))
        self.assertEqual([each.kind for each in self.server.over], ["c", "a", "b"])

    def test_pressure(self) -> None:
        """The policies see how late a request is, which stays as they are asked again, and which part was free."""
        request = Connection(self.server).request("a")
        assert request.view is not None
        self.assertEqual((request.view.lagSeconds, request.view.poolFreeShare), (0.375, 0.25))
        self.server.gate.turns.waitedSeconds = 9.0
        request.connection.driver.admit(request, Refusal.ERROR)
        self.assertEqual((request.view.lagSeconds, request.lagSeconds), (0.375, 0.375))

    def test_openingRefused(self) -> None:
        """A connection that the policies refuse is closed, and its opening is over as a request is."""
        self.server = Server(("refusing", Refusing()))
        connection = Connection(self.server)
        connection.driver.opened()
        self.assertEqual((connection.told, connection.driver.openRequests), (["close"], 0))
        self.assertEqual([each.kind for each in self.server.over], [CONNECTION])

    def test_openingThrottled(self) -> None:
        """A connection may have to wait from the beginning."""
        self.policy.delaySeconds = 2.0
        connection = Connection(self.server)
        connection.driver.opened()
        self.assertTrue(connection.driver.isThrottled)
        self.clock.advance(2.0)
        self.assertEqual((connection.told, connection.driver.isThrottled), (["throttled", "over"], False))

    def test_unanswered(self) -> None:
        """The end of a request says why it was not answered."""
        connection = Connection(self.server)
        requests = [connection.request("a") for _ in range(3)]
        connection.driver.over(requests[0], 0.0)
        connection.hasPeerGone = True
        connection.driver.over(requests[1], 0.0)
        connection.isClosing, connection.whyClosed = True, "the server stops"
        connection.driver.answered(requests[2], 0.0)
        self.assertEqual(
            [each.expireReason for each in requests],
            ["its request could not be answered", "the client hung up", "the server stops"],
        )

    def test_chargedWithoutLimits(self) -> None:
        """
        What was charged while nobody had a limit is not charged again, to a limit that was set before it was over: its
        client would owe what it was not told of.  A server that records nothing has not even asked about it.
        """
        for isObserved in (True, False):
            self.server = server = Server(isObserved=isObserved)
            server.policy.delaySeconds = 3.0
            server.control.configure(ALICE, {"rate": None}, 0.0)
            connection = Connection(server)
            request = connection.request("a")
            self.assertEqual((request.view is not None, connection.charged(request)), (isObserved, 0.0))
            server.control.configure(ALICE, {"rate": 1.0}, 1.0)
            self.assertEqual(connection.driver.over(request, 1.0), 0.0)
            self.assertEqual((request.decided, request.policy, list(server.debts.items())), (None, None, []))

    def test_begunWithLimits(self) -> None:
        """What a policy was told of that begins is charged when it is answered, also if nobody has a limit any more."""
        self.policy.delaySeconds = 3.0
        connection = Connection(self.server)
        request = connection.request("a")
        connection.driver.begin(request)
        self.server.control.configure(ALICE, {"rate": None}, 1.0)
        self.clock.advance(2.0)
        self.assertEqual(connection.charged(request), 0.0)
        self.assertEqual((request.decided, request.isCounted, request.charge), (2.0, True, (0.0,)))


class DelayTests(DriverTestCase):
    """How long clients wait."""

    def test_debtFollows(self) -> None:
        """A client that owes time and connects anew has its first request held back, until the debt is paid."""
        self.policy.delaySeconds = 3.0
        first = Connection(self.server)
        first.charged(first.request("a"))
        first.driver.lost()
        self.clock.advance(1.0)
        second = Connection(self.server)
        request = second.request("a")
        self.assertTrue(second.driver.holdBack(request))
        self.assertEqual((second.driver.heldSeconds, request.begun), (1.0, None))
        self.clock.advance(1.9)
        self.assertEqual(second.told, ["throttled"])
        self.clock.advance(0.1)
        self.assertEqual(second.told, ["throttled", "over"])
        self.assertTrue(second.driver.letGo())
        self.assertFalse(second.driver.holdBack(request))
        self.assertTrue(second.driver.owesNothing)

    def test_gone(self) -> None:
        """Nobody waits for a client that has left."""
        self.policy.delaySeconds = 3.0
        first = Connection(self.server)
        first.charged(first.request("a"))
        second = Connection(self.server)
        second.hasPeerGone = True
        self.assertTrue(second.driver.holdBack(second.request("a")))
        self.assertEqual((second.driver.heldSeconds, second.told), (None, []))

    def test_limitsChanged(self) -> None:
        """A delay ends when other limits say so; one in place of a refusal does not; what is held back goes on."""
        self.policy.delaySeconds, self.policy.restSeconds = 9.0, 2.0
        debtor, refused, held = (Connection(self.server) for _ in range(3))
        debtor.charged(debtor.request("a"))
        self.policy.delaySeconds, self.policy.decision = 0.0, Decision(False, 9.0, "no")
        refused.charged(refused.request("a", Refusal.DELAY))
        self.policy.decision = ADMITTED
        request = held.driver.arrived(1)
        request.kind, request.principal, request.clientId = "a", "alice", "app"
        held.driver.holdBack(request)
        self.limitsChanged()
        self.clock.advance(0)
        self.assertEqual([each.told[-1] for each in (debtor, refused, held)], ["throttled", "throttled", "over"])
        self.clock.advance(2.0)
        self.assertEqual([each.told[-1] for each in (debtor, refused)], ["over", "throttled"])
        self.assertFalse(Connection(self.server).driver.holdBack(request))
        self.clock.advance(7.0)
        self.assertEqual(refused.told[-1], "over")


class AnyOrderTests(DriverTestCase):
    """Whatever happens, also while a connection is being told something."""

    @settings(deadline=None, max_examples=150)
    @given(st.lists(st.sampled_from(ACTIONS), max_size=30), st.data())
    def test_nothingIsLeft(self, actions: list[str], data: st.DataObject) -> None:
        """When all connections are lost no timer runs and nobody waits, and each request was over once."""
        self.server = server = Server()
        server.policy.delaySeconds = 2.0
        depth = 0

        def react(_: str) -> None:
            nonlocal depth
            if depth < 3:
                depth += 1
                act(data.draw(st.sampled_from(("none", "charge", "limits", "over", "lose"))))
                depth -= 1

        connections = [Connection(server, react) for _ in range(2)]
        open_: dict[Connection, list[ServerRequest]] = {each: [] for each in connections}
        arrived: list[ServerRequest] = []

        def ended(connection: Connection) -> None:
            while open_[connection]:
                connection.driver.over(open_[connection].pop(), server.clock.seconds())

        def act(action: str) -> None:
            connection = data.draw(st.sampled_from(connections))
            if action == "wait":
                server.clock.advance(data.draw(st.sampled_from((0.0, 0.7, 2.0))))
            elif action == "limits":
                server.debts.limitsChanged(server.clock.seconds())
            elif action == "over":
                ended(connection)
            elif action == "throttle":
                # Also a connection that is lost, whose last request has been worked on until now.
                connection.driver.throttle(data.draw(st.sampled_from((0.5, 3.0))))
            elif action == "lose" and not connection.isLost:
                connection.isLost = connection.isClosing = True
                connection.driver.lost()
            elif action in ("charge", "hold", "parked") and not connection.isLost:
                request = connection.request("a")
                arrived.append(request)
                open_[connection].append(request)
                if action == "hold":
                    connection.driver.holdBack(request)
                elif action == "parked":
                    connection.driver.begin(request)
                    connection.driver.park(request)
                else:
                    connection.charged(request)

        for action in actions:
            act(action)
            throttled = {each.driver for each in connections if each.driver.isThrottled}
            self.assertEqual(server.debts.throttled, throttled)
        for connection in connections:
            connection.heard = lambda word: None
            if not connection.isLost:
                connection.isLost = connection.isClosing = True
                connection.driver.lost()
            ended(connection)
        self.assertEqual((server.clock.getDelayedCalls(), server.debts.throttled), ([], set()))
        self.assertEqual([each.driver.openRequests for each in connections], [0, 0])
        self.assertEqual(sorted(map(id, server.over)), sorted(map(id, arrived)))
        self.assertEqual(server.policy.running, [])

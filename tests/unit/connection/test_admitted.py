"""L{admission.connection.admitted}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings, strategies as st
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from admission.connection.admitted import AdmittedProtocol
from admission.connection.framings import Netstring
from admission.connection.pauses import Pause
from admission.control import AdmissionControl
from admission.interfaces import CONNECTION, NOTHING, Decision, Places, QuotaEntity, Traits, Usage
from admission.request import ServerRequest
from admission.testing.scriptedquota import ScriptedQuota
from admission.testing.servercontract import LIMIT, WatchedPolicy
from tests.kit.admitted import serve

NO = Decision(False, 2.0, "not now")
WAIT = Decision(False, 0.1, "too many at once", places=Places(2, 3.0))
WAITING = Traits(waitsForOthers=True)


class Telling(AdmittedProtocol):
    """
    Is told by its requests what they are: C{KIND CLIENT}.

    @ivar behave: what to do with a request.
    """

    framing = Netstring()

    def __init__(self, behave: Callable[[ServerRequest], Any] | None = None) -> None:
        self.behave = behave

    def identify(self, request: ServerRequest) -> None:
        kind, _, client = bytes(request.frame).partition(b" ")
        request.kind = kind.decode()
        if client:
            request.clientId = client.decode()
            request.traits = WAITING

    def requestReceived(self, request: ServerRequest) -> Any:
        return bytes(request.frame).upper() if self.behave is None else self.behave(request)


class Refusing(Telling):
    """Tells its clients that they are refused."""

    def requestRefused(self, request: ServerRequest, decision: Decision) -> bytes:
        return decision.message.encode()


class AdmittedTestCase(SynchronousTestCase):
    """A connection whose requests policies admit."""

    def begin(self, protocol: type[Telling] = Telling, behave: Callable[[ServerRequest], Any] | None = None) -> Any:
        """A connection, with a policy that follows a script."""
        self.policy = ScriptedQuota(limits={QuotaEntity(user="alice"): {"scripted_rate": 1.0}})
        self.server = serve(self, protocol=protocol, control=AdmissionControl([("scripted", self.policy)]))
        self.server.behave = behave
        self.connection, self.transport = self.server.connect()
        return self.connection

    def send(self, *requests: bytes) -> bytes:
        """Send requests; what has been answered since the last time."""
        before = len(self.transport.received)
        self.transport.peerSends(b"".join(b"%d:%s," % (len(each), each) for each in requests))
        self.server.settle()
        return bytes(self.transport.received[before:])

    def charged(self) -> list[tuple[Any, ...]]:
        """What the policy was told of requests."""
        return [
            (request.kind, request.clientId, request.traits, usage)
            for request, usage in self.policy.recorded
            if request.kind != CONNECTION and usage is not NOTHING
        ]


class AdmittedTests(AdmittedTestCase):
    """Requests that policies admit."""

    def test_asked(self) -> None:
        """A policy is told what each request is and what it used, and its delay comes before the next request."""
        self.begin()
        self.assertEqual(self.send(b"put"), b"3:PUT,")
        self.policy.delaySeconds = 1.5
        self.assertEqual(self.send(b"get bob", b"put"), b"7:GET BOB,")
        self.assertEqual(
            self.charged(), [("put", "192.0.2.1", Traits(), Usage(3, 6)), ("get", "bob", WAITING, Usage(7, 10))]
        )
        self.assertIn(Pause.THROTTLED, self.connection.pauses.reasons)
        self.policy.delaySeconds = 0.0
        self.server.clock.advance(1.5)
        self.assertTrue(self.transport.received.endswith(b"3:PUT,"))

    def test_noBytes(self) -> None:
        """An answer that is no bytes is a failure that says so, at once or later."""
        for answer in ("text", 5, succeed("text")):
            self.begin(behave=lambda request, answer=answer: answer)
            self.send(b"put")
            (failure,) = self.flushLoggedErrors(TypeError)
            self.assertIn("has to be bytes, a Deferred or a coroutine of them, not ", str(failure.value))
            self.assertTrue(self.transport.isLost)

    def test_mistakes(self) -> None:
        """What a protocol gets wrong is told in a sentence, and no request is left in progress by it."""
        for name, value, words in (
            ("kind", b"put", "kind=b'put': give a str"),
            ("kind", None, "kind=None: give a str"),
            ("clientId", b"alice", "clientId=b'alice': give a str"),
            ("identities", ["key"], "identity='key': give an int, or bytes"),
        ):
            connection = self.begin()
            connection.identify = lambda request, name=name, value=value: setattr(request, name, value)
            self.send(b"put")
            (failure,) = self.flushLoggedErrors(TypeError)
            self.assertIn(words, str(failure.value))
        connection = self.begin()
        connection.identify = lambda request: 5
        self.send(b"put")
        self.assertIn("returns nothing", str(self.flushLoggedErrors(TypeError)[0].value))
        connection = self.begin(behave=lambda request: None)
        self.send(b"put")
        for call, argument in ((connection.respond, b"late"), (connection.respond, [5]), (connection.finish, object())):
            self.assertRaises(TypeError, call, argument)
        self.assertRaises(TypeError, connection.authenticated, b"alice")
        connection.respond([b"right"])
        self.assertEqual(len(self.charged()), 1)
        self.assertEqual(self.server.gate.turns.runningRequests, 0)

    def test_byUser(self) -> None:
        """A client that has logged in and says no client id is told from others by its principal."""
        connection = self.begin()
        connection.identify = lambda request: connection.authenticated("alice")
        self.send(b"put")
        request, _ = self.policy.recorded[-1]
        self.assertEqual((request.principal, request.clientId), ("alice", "alice"))

    def test_identities(self) -> None:
        """Policies are given a number for each identity that a request carries; each request carries its own."""
        connection = self.begin()
        connection.identify = lambda request: setattr(
            request, "identities", [7, b"key"] if len(request.frame) > 3 else []
        )
        self.send(b"long", b"put")
        (first, _), (second, _) = self.policy.recorded[-2:]
        self.assertEqual(first.identities, self.server.factory.identityNumbers([7, b"key"]))
        self.assertEqual(second.identities, [])

    def test_longNames(self) -> None:
        """However long the names are that clients choose, policies are given bounded ones."""
        self.begin()
        self.send(b"k" * 5000 + b" " + b"c" * 5000)
        ((kind, clientId, _, usage),) = self.charged()
        self.assertLessEqual(len(kind), 240)
        self.assertLessEqual(len(clientId), 240)
        self.assertEqual(usage.requestBytes, 10_001)

    def test_delayedInstead(self) -> None:
        """A protocol that has no way to refuse serves the request, and has the client wait for as long."""
        self.begin()
        self.policy.decision = NO
        self.assertEqual(self.send(b"put", b"put"), b"3:PUT,")
        self.assertEqual(len(self.charged()), 1)
        self.server.clock.advance(2.0)
        self.assertEqual(len(self.charged()), 2)

    def test_later(self) -> None:
        """The answer may be a Deferred or a coroutine: the request waits without its memory and its turn."""
        waiting: Deferred[bytes] = Deferred()

        async def later(request: ServerRequest) -> bytes:
            return (await waiting) + bytes(request.kind or "", "ascii")

        self.begin(behave=later)
        self.assertEqual(self.send(b"put", b"put"), b"")
        self.assertEqual((self.connection.request.lease, self.server.gate.turns.runningRequests), (None, 0))
        waiting.callback(b"ok ")
        self.server.settle()
        self.assertEqual(bytes(self.transport.received), b"6:ok put," * 2)
        self.assertEqual(len(self.charged()), 2)

    def test_atOnce(self) -> None:
        """A Deferred that has fired is answered as if there were none."""
        parked = []
        self.begin(behave=lambda request: succeed(b"x").addCallback(lambda body: parked.append(request) or body))
        self.assertEqual(self.send(b"put"), b"1:x,")
        self.assertEqual([request.parked for request in parked], [None])

    def test_byHand(self) -> None:
        """An answer may be sent by hand, then or later, and is charged all the same; or none is wanted."""
        self.begin(behave=lambda request: self.connection.respond([b"raw"]))
        self.assertEqual(self.send(b"put"), b"raw")
        self.connection.behave = lambda request: None
        self.assertEqual(self.send(b"put", b"put"), b"")
        self.policy.delaySeconds = 1.0
        self.connection.finish()
        self.assertEqual([usage for *_, usage in self.charged()], [Usage(3, 3), Usage(3, 0)])
        self.assertIn(Pause.THROTTLED, self.connection.pauses.reasons)

    def test_byHandAndLater(self) -> None:
        """What comes of the work after the answer has been sent by hand is no second answer."""
        late: Deferred[bytes] = Deferred()

        def both(request: ServerRequest) -> Deferred[bytes]:
            self.connection.respond([b"raw"])
            return late

        self.begin(behave=both)
        self.assertEqual(self.send(b"put"), b"raw")
        late.callback(b"late")
        self.assertEqual((self.send(b"put"), len(self.charged())), (b"raw", 2))

    def test_failing(self) -> None:
        """A failure is logged, and closes the connection; one that was cancelled from within ends the request alone."""

        async def failing(request: ServerRequest) -> bytes:
            raise ZeroDivisionError

        self.begin(behave=failing)
        self.send(b"put")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertTrue(self.transport.isLost)

        async def cancelled(request: ServerRequest) -> bytes:
            raise CancelledError

        self.begin(behave=cancelled)
        self.assertEqual(self.send(b"put"), b"")
        self.connection.behave = None
        self.assertEqual(self.send(b"put"), b"3:PUT,")

    def test_debtOutlivesConnection(self) -> None:
        """A client that connects anew waits for as long as it was told."""
        self.begin()
        self.policy.delaySeconds = 3.0
        self.send(b"put bob")
        self.transport.peerCloses()
        self.policy.delaySeconds = 0.0
        self.connection, self.transport = self.server.connect()
        self.assertEqual(self.send(b"put bob"), b"")
        self.server.clock.advance(3.0)
        self.assertEqual(bytes(self.transport.received), b"7:PUT BOB,")

    def test_refused(self) -> None:
        """A refusal is told in the protocol's own way, nothing is charged, and the client waits."""
        self.begin(Refusing)
        self.policy.decision = NO
        self.assertEqual(self.send(b"put", b"put"), b"17:scripted: not now,")
        self.assertEqual(self.charged(), [])
        self.policy.decision = Decision()
        self.server.clock.advance(2.0)
        self.assertTrue(self.transport.received.endswith(b"3:PUT,"))

    def test_hangUp(self) -> None:
        """What waits for a client that hangs up is cancelled, once, and what it used is charged."""
        cancelled: list[Deferred[bytes]] = []
        for leave in ("peerCloses", "abortConnection"):
            self.begin(behave=lambda request: Deferred(cancelled.append))
            self.send(b"put")
            getattr(self.transport, leave)()
            self.server.settle()
            self.assertEqual((len(cancelled), self.charged()), (1, [("put", "192.0.2.1", Traits(), Usage(3))]))
            self.assertEqual((self.server.used(), self.server.factory.connections), ({}, {}))
            cancelled.clear()


class Multiplexed(Refusing):
    """Has several requests wait at once."""

    maxInFlight = 3


class MultiplexedTests(AdmittedTestCase):
    """Several requests of a connection at once."""

    def test_othersAreAnswered(self) -> None:
        """A connection that is closed because a request failed has the others answered, and reads no more."""
        waiting: list[Deferred[bytes]] = []
        self.begin(Multiplexed, lambda request: waiting.append(Deferred()) or waiting[-1])
        self.assertEqual(self.send(b"a", b"b"), b"")
        waiting[0].errback(ZeroDivisionError())
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual((self.send(b"c"), len(waiting), self.transport.isLost), (b"", 2, False))
        waiting[1].callback(b"x")
        self.server.settle()
        self.assertEqual(bytes(self.transport.received), b"1:x,")
        self.assertTrue(self.transport.isLost)
        self.assertEqual((self.server.used(), self.server.factory.connections), ({}, {}))


class PlaceTests(AdmittedTestCase):
    """Requests that wait for a place."""

    def test_waits(self) -> None:
        """A request waits, with its memory, until one that is in progress ends, or for as long as it may."""
        for protocol in (Refusing, Telling):
            waiting: list[Deferred[bytes]] = []
            self.begin(protocol, lambda request, waiting=waiting: waiting.append(Deferred()) or waiting[-1])
            _, otherTransport = self.server.connect()
            otherTransport.peerSends(b"1:a,")
            self.server.settle()
            self.policy.decision = WAIT
            self.assertEqual((self.send(b"b"), len(waiting), self.connection.requestBytes), (b"", 1, 1))
            self.policy.decision = Decision()
            waiting[0].callback(b"x")
            self.server.settle()
            self.assertEqual((len(waiting), self.connection.requestBytes), (2, 0))
            waiting[1].callback(b"y")
            self.server.settle()
            self.assertEqual(bytes(self.transport.received), b"1:y,")
            self.policy.decision = WAIT
            self.assertEqual(self.send(b"c"), b"")
            self.server.clock.advance(3.0)
            self.server.settle()
            if protocol is Refusing:
                self.assertIn(b"too many at once", self.transport.received)
            else:
                # It is served, and the next one later.
                self.assertEqual(len(waiting), 3)
                waiting[2].callback(b"z")
                self.server.settle()
            self.assertEqual(self.server.factory.places.waiting, 0)

    def test_hangsUp(self) -> None:
        """A client that hangs up leaves the queue at once."""
        for protocol in (Telling, Multiplexed):
            self.begin(protocol)
            self.policy.decision = WAIT
            self.send(b"a")
            self.assertEqual(self.server.factory.places.waiting, 1)
            self.transport.peerCloses()
            self.server.settle()
            self.assertEqual((self.server.factory.places.waiting, self.server.used()), (0, {}))


KINDS = ("send", "wait", "fail", "hand")
ACTIONS = (*KINDS, "fire", "break", "hang up", "abort", "refuse", "queue", "delay", "limits", "time")


class AnyOrderTests(SynchronousTestCase):
    """Clients, policies and work that do anything in any order, also from within each other."""

    @settings(deadline=None)
    @given(
        steps=st.lists(
            st.tuples(st.sampled_from(ACTIONS), st.integers(0, 3), st.sampled_from(ACTIONS), st.booleans()), max_size=40
        ),
        protocol=st.sampled_from([Telling, Refusing, Multiplexed]),
    )
    def test_any(self, steps: list[tuple[str, int, str, bool]], protocol: type[Telling]) -> None:
        """
        Each request that begins ends once and is charged once, each that is refused is not, nobody has two answers, and
        in the end nothing is held.
        """
        policy = WatchedPolicy()
        server = serve(self, protocol=protocol, control=AdmissionControl([("watched", policy)]))
        waiting: list[Deferred[bytes]] = []
        connected: list[Any] = []
        inside: list[tuple[str, int]] = []
        admitted: list[ServerRequest] = []

        def behave(request: ServerRequest) -> Any:
            admitted.append(request)
            if inside:
                do(*inside.pop())
            how = request.kind
            if how == "fail":
                raise ZeroDivisionError
            if how == "wait":
                waiting.append(Deferred())
                return waiting[-1]
            if how == "hand":
                request.connection.respond([b"0:,"])
                return None
            return b"x"

        def connect() -> None:
            server.behave = behave
            connected.append(server.connect(host=f"192.0.2.{len(connected) % 2}")[1])

        def do(action: str, which: int) -> None:
            transport = connected[which % len(connected)]
            if action in KINDS:
                if transport.isLost:
                    connect()
                    transport = connected[-1]
                transport.peerSends(b"%d:%s," % (len(action), action.encode()))
            elif action in ("fire", "break"):
                if waiting:
                    deferred = waiting.pop(which % len(waiting))
                    if not deferred.called:
                        deferred.callback(b"late") if action == "fire" else deferred.errback(ZeroDivisionError())
            elif action == "hang up":
                transport.peerCloses()
            elif action == "abort":
                if not transport.isLost:
                    transport.abortConnection()
            elif action == "refuse":
                policy.decision = NO if policy.decision.admitted else Decision()
            elif action == "queue":
                policy.decision = WAIT if policy.decision.admitted else Decision()
            elif action == "delay":
                policy.delaySeconds = 0.0 if policy.delaySeconds else 1.5
            elif action == "limits":
                server.factory.control.configure(QuotaEntity(user="somebody"), {LIMIT: float(which + 1)}, 0.0)
            else:
                server.clock.advance(which)

        connect()
        for action, which, within, isSettled in steps:
            inside[:] = [(within, which + 1)]
            do(action, which)
            if isSettled:
                server.settle()
        policy.decision, policy.delaySeconds = Decision(), 0.0
        inside.clear()
        server.clock.advance(60.0)
        for transport in connected:
            if not transport.isLost:
                transport.abortConnection()
        server.settle()
        self.flushLoggedErrors(ZeroDivisionError)
        self.assertEqual((policy.running, server.used(), server.gate.turns.runningRequests), (0, {}, 0))
        self.assertEqual(len(policy.charged), len(admitted))
        self.assertTrue(all(request.ended is not None and request.step is None for request in admitted))

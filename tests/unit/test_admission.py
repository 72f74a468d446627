"""L{admission.admission}."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory
from twisted.internet.testing import MemoryReactorClock
from twisted.protocols.wire import Echo
from twisted.trial.unittest import SynchronousTestCase

from admission.admission import Admission
from admission.connection.admitted import AdmittedProtocol
from admission.connection.framings import Netstring
from admission.connection.pauses import Pause
from admission.connection.unitofwork import WorkRefused
from admission.interfaces import DEFAULT, QuotaEntity, traitsOf
from admission.recording.events import CLOSED, OPENED, ConnectionEvent, LimitEvent, RequestEvent
from admission.request import ServerRequest
from admission.status.clients import RECENTLY_SECONDS
from admission.testing.faketransport import FakeTransport
from tests.kit.admitted import framed
from tests.kit.keptevents import Kept
from tests.kit.startable import Startable
from tests.kit.statusfixture import StatusTestCase

EVERYBODY = QuotaEntity(clientId=DEFAULT)


class Upper(AdmittedProtocol):
    """Answers in capitals."""

    def requestReceived(self, request: ServerRequest) -> bytes:
        return bytes(request.frame).upper()


class Later(AdmittedProtocol):
    """Answers when it is told to."""

    answers: list[Deferred[bytes]] = []

    def requestReceived(self, request: ServerRequest) -> Deferred[bytes]:
        self.answers.append(Deferred())
        return self.answers[-1]


def echo() -> Any:
    """A server that knows nothing of us."""
    return Factory.forProtocol(Echo)


class Failing(Kept):
    """Cannot record."""

    def start(self, origin: Any, deferToThread: Any) -> None:
        raise OSError("no such place")


class AdmissionTests(SynchronousTestCase):
    """L{Admission}."""

    def setUp(self) -> None:
        self.reactor: Any = MemoryReactorClock()
        self.reactor.getThreadPool = lambda: None
        self.connected: list[FakeTransport] = []
        self.addCleanup(self.hangUp)

    def hangUp(self) -> None:
        """Have everybody hang up."""
        for transport in self.connected:
            if not transport.isLost:
                transport.abortConnection()
        self.reactor.advance(0)

    def make(self, **arguments: Any) -> Admission:
        """An admission on a reactor of the test's."""
        return Admission(pool="bounded:1MiB", reactor=self.reactor, clock=self.reactor, **arguments)

    def connect(self, factory: Any) -> FakeTransport:
        """Have a client connect."""
        address = IPv4Address("TCP", "192.0.2.1", 50_000 + len(self.connected))
        transport = FakeTransport(self.reactor, factory.buildProtocol(address), address)
        self.connected.append(transport)
        transport.connect()
        return transport

    def send(self, transport: FakeTransport, *data: bytes) -> bytes:
        """Send something; what has come by then."""
        transport.peerSends(b"".join(data))
        self.reactor.advance(0)
        return bytes(transport.received)

    def test_oneForAll(self) -> None:
        """Servers of different protocols share pool, quotas and debts, and the page counts all of them."""
        admission = self.make(quota="client-bytes:produce=100:algorithm=bucket")
        framing, wrapped = admission.frames(Upper), admission.wrap(echo())
        self.assertIs(framing.gate, wrapped.gate)
        first, second = self.connect(framing), self.connect(wrapped)
        self.assertEqual(self.send(first, framed(b"x" * 300)), framed(b"X" * 300))
        self.assertEqual(self.send(second, b"hello"), b"hello")
        self.send(second, b"world")
        self.assertIn(Pause.THROTTLED, next(iter(wrapped.connections)).link.pauses.reasons)
        self.assertEqual((len(admission.connections), admission.requestBytes, admission.responseBytes), (2, 305, 309))

    def test_newLimitsFreeAtOnce(self) -> None:
        """A client that waits is let go when limits allow it, on framed and wrapped servers alike."""
        for kind in ("frames", "wrap"):
            admission = self.make(quota="client-bytes:produce=100:algorithm=bucket")
            factory = admission.frames(Upper) if kind == "frames" else admission.wrap(echo())
            transport = self.connect(factory)
            for _ in range(2):
                self.send(transport, framed(b"x" * 1000))
            before = len(transport.received)
            admission.setLimits(EVERYBODY, {"producer_byte_rate": None})
            self.reactor.advance(0)
            self.send(transport, framed(b"x" * 1000))
            self.assertGreater(len(transport.received), before)
            self.assertEqual(admission.debts.throttled, set())

    def test_recorded(self) -> None:
        """What requests are and what became of them is recorded, with limits, from the first port to the last."""
        kept = Kept()
        admission = self.make(quota="client-bytes:produce=1k", export=kept)
        factory = admission.frames(Upper, "words")
        factory.doStart()
        transport = self.connect(factory)
        self.send(transport, framed(b"hello"))
        admission.setLimits(EVERYBODY, {"producer_byte_rate": 5.0})
        transport.abortConnection()
        self.reactor.advance(0)
        factory.doStop()
        (opening, request) = (each for each in kept.events if isinstance(each, RequestEvent))
        self.assertEqual((opening.kind, request.kind, request.listener), ("connection", "request", "words"))
        self.assertEqual((request.clientId, request.requestBytes, request.responseBytes), ("192.0.2.1", 5, 9))
        self.assertEqual(traitsOf(request.traits).countsSent, True)
        states = [each.state for each in kept.events if isinstance(each, ConnectionEvent)]
        self.assertEqual(states, [OPENED, CLOSED])
        self.assertEqual([each.value for each in kept.events if isinstance(each, LimitEvent)], [1000.0, 5.0])
        self.assertEqual(kept.origin.policyDescriptions, ["client-bytes:produce=1k"])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_numbered(self) -> None:
        """Work is recorded under numbers that no connection of the same recording has."""
        kept = Kept()
        admission = self.make(export=kept)
        factory = admission.frames(Upper)
        factory.doStart()
        transport = self.connect(factory)
        self.send(transport, framed(b"hello"))
        with admission.work("get", clientId="alice"):
            pass
        transport.abortConnection()
        self.reactor.advance(0)
        factory.doStop()
        connections = {each.connectionId for each in kept.events if isinstance(each, ConnectionEvent)}
        requests = {each.kind: each.connectionId for each in kept.events if isinstance(each, RequestEvent)}
        self.assertEqual((requests["request"] in connections, requests["get"] in connections), (True, False))

    def test_shutdown(self) -> None:
        """A reactor that stops waits until what was read is answered and what was recorded is stored."""
        kept = Kept()
        kept.stored = Deferred()
        Later.answers = []
        admission = self.make(export=kept)
        factory = admission.frames(Later)
        factory.doStart()
        transport = self.connect(factory)
        self.send(transport, framed(b"hello"))
        [(call, _, _)] = self.reactor.triggers["before"]["shutdown"]
        stopped = call()
        self.assertNoResult(stopped)
        Later.answers[0].callback(b"done")
        self.reactor.advance(0)
        self.assertEqual(bytes(transport.received), framed(b"done"))
        self.reactor.advance(10)
        self.assertNoResult(stopped)
        kept.stored.callback(None)
        self.successResultOf(stopped)

    def test_policiesRun(self) -> None:
        """A policy is told when the first server begins, and when the last has ended; a stop waits for it."""
        policy = Startable()
        admission = self.make(quota=policy)
        self.assertEqual(policy.calls, [])
        factories = [admission.frames(Upper), admission.wrap(echo())]
        for each in factories:
            each.doStart()
        self.assertEqual(policy.calls, ["start"])
        stopped = admission.stop()
        for each in factories:
            each.doStop()
        self.assertEqual(policy.calls, ["start", "stop"])
        self.assertNoResult(stopped)
        policy.stopped.callback(None)
        self.successResultOf(stopped)

    def test_page(self) -> None:
        """The page shows requests of all servers, and how long they took, by kind."""
        admission = self.make()
        before, site = admission.frames(Upper), admission.statusSite()
        after = admission.frames(Upper)
        for factory in (before, after):
            self.send(self.connect(factory), framed(b"hello"))
        self.addCleanup(site.stopFactory)
        (latency,) = admission._times.fields(self.reactor.seconds())
        self.assertEqual((latency["kind"], latency["count"]), ("request", 2))
        names = {name for name, _ in admission.sensors} | set(admission.sensors.families)
        self.assertLessEqual({"Connections", "RequestSeconds", "ConnectionsMuted"}, names)
        self.assertRaises(ValueError, admission.statusSite)

    def test_cannotRecord(self) -> None:
        """A directory that cannot be written is named when the first port listens."""
        factory = self.make(export=Failing()).frames(Upper)
        error = self.assertRaises(OSError, factory.doStart)
        self.assertEqual(str(error), "cannot record to Failing: no such place; export= says where to")

    def test_identities(self) -> None:
        """New identities of bytes are limited and recorded as numbers, the same ones as long as the key is kept."""
        kept, path = Kept(), self.mktemp()
        numbers = [self.make(identityKey=path).identityNumbers([b"key"]) for _ in range(2)]
        self.assertEqual(numbers[0], numbers[1])
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        admission = self.make(quota="producer-ids:rate=2", export=kept, identityKey=path)
        for identity in (b"key", b"key", b"other"):
            with admission.work("call", principal="alice", receivedBytes=1, identities=[identity]):
                pass
        self.assertRaises(WorkRefused, admission.work("call", principal="alice", identities=[b"third"]).__enter__)
        recorded = [each.identities for each in kept.events if isinstance(each, RequestEvent)]
        self.assertEqual(recorded[0], numbers[0])
        self.assertEqual(len(set(recorded)), 3)

    def test_identityKey(self) -> None:
        """A file that is no key, or cannot be made, is told of by the argument's name."""
        path = self.mktemp()
        Path(path).write_bytes(b"short")
        for wrong, words in ((path, "it has 5 bytes, and a key has 32"), ("no/such", "No such file")):
            error = self.assertRaises(ValueError, self.make, identityKey=wrong)
            self.assertIn(f"identityKey={wrong!r}: ", str(error))
            self.assertIn(words, str(error))

    def test_shared(self) -> None:
        """Nothing shares limits here, so a policy that would be told what others take is refused."""
        error = self.assertRaises(ValueError, self.make, quota="client-bytes:received=1M:shared=yes")
        self.assertIn("only gateways share limits", str(error))

    def test_mistakes(self) -> None:
        """An argument that makes no sense is refused by its name."""
        for arguments, words in (
            ({"export": 5}, "export=5: give a description such as 'spark:recording'"),
            ({"purgatory": 5}, "purgatory=5: give a description such as 'wheel'"),
            ({"quota": {"client-bytes": "64k"}}, "quota={'client-bytes': '64k'}: give a description"),
        ):
            self.assertIn(words, str(self.assertRaises(TypeError, self.make, **arguments)))
        self.assertIn("makeProtocol=5", str(self.assertRaises(TypeError, self.make().frames, 5)))
        self.assertIn("AdmittedProtocol", str(self.assertRaises(TypeError, self.make().frames, Echo)))
        for wrong, words in (({"framing": Netstring}, "framing="), ({"framing": "netstring"}, "such as Netstring()")):
            served = type("Wrong", (Upper,), wrong)
            self.assertIn(words, str(self.assertRaises(TypeError, self.make().frames, served)))
        for number in (0, "x"):
            served = type("Wrong", (Upper,), {"maxInFlight": number})
            self.assertIn("maxInFlight=", str(self.assertRaises(ValueError, self.make().frames, served)))
        admission = self.make(quota="client-bytes")
        self.assertIn("entity='alice'", str(self.assertRaises(TypeError, admission.setLimits, "alice", {})))
        self.assertIn("limits=5", str(self.assertRaises(TypeError, admission.setLimits, EVERYBODY, 5)))


class HealthTests(StatusTestCase):
    """What the page says of an L{Admission}."""

    def test_refused(self) -> None:
        """
        A client of which requests are refused is shown with the policy and how many, and for a while after; one that is
        refused for what others do is not.
        """
        reactor: Any = MemoryReactorClock()
        reactor.getThreadPool = lambda: None
        admission = Admission(
            pool="bounded:1MiB",
            quota=["requests:rate=1", "concurrency:total=1"],
            reactor=reactor,
            clock=self.clock,
        )
        self.site = admission.statusSite()
        with admission.work("get", clientId="alice", peer="192.0.2.1"):
            self.assertRaises(WorkRefused, admission.work("get", clientId="bob").__enter__)
        for _ in range(3):
            self.assertRaises(WorkRefused, admission.work("get", clientId="alice", peer="192.0.2.1").__enter__)
        throttled = self.get("/status.json").document["throttled"]
        (client,) = throttled["clients"]
        self.assertEqual((throttled["count"], throttled["throttledCount"]), (1, 0))
        names = ("clientId", "ip", "connections", "delaySeconds", "refused", "policy", "limitName", "limit")
        self.assertEqual(
            [client[name] for name in names], ["alice", "192.0.2.1", 0, 0.0, 3, "requests", "request_rate", 1.0]
        )
        explained = self.get("/explain?clientId=alice").document
        self.assertEqual([each["refused"] for each in explained["clients"]], [3])
        self.assertIn("admission_clients_throttled 0.0", self.get("/metrics").body.splitlines())
        self.clock.advance(RECENTLY_SECONDS)
        self.assertEqual(self.get("/status.json").document["throttled"]["clients"], [])

    def test_trouble(self) -> None:
        """A page that is served all the same says that nothing is recorded."""
        reactor: Any = MemoryReactorClock()
        reactor.getThreadPool = lambda: None
        admission = Admission(pool="bounded:1MiB", export=Failing(), reactor=reactor, clock=self.clock)
        self.site = admission.statusSite()
        self.assertEqual(self.get("/healthz").code, 200)
        factory = admission.frames(Upper)
        self.assertRaises(OSError, factory.doStart)
        response = self.get("/healthz")
        self.assertEqual(
            (response.code, response.document["reasons"]),
            (503, ["cannot record to Failing: no such place; export= says where to"]),
        )

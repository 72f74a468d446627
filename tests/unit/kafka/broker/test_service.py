"""Tests for L{admission.kafka.broker.service}, on real sockets of this machine."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.internet import reactor
from twisted.internet.defer import Deferred, DeferredQueue, inlineCallbacks, succeed
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol, serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import connectionDone
from twisted.internet.task import Clock, deferLater
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.protocols.basic import Int32StringReceiver
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from admission.connection.factory import LIMIT_NAMES, AdmittedFactory
from admission.kafka.broker.broker import Broker
from admission.kafka.broker.brokeroptions import Options
from admission.kafka.broker.brokersettings import PROPERTIES, loadSettings
from admission.kafka.broker.groups.groupcoordinator import GroupCoordinator
from admission.kafka.broker.log.segmentlog import SegmentLog
from admission.kafka.broker.service import BrokerConfig, BrokerService, makeService
from admission.kafka.serving import kafkaservice
from admission.kafka.serving.kafkarequest import Address
from admission.kafka.serving.kafkaservice import LIMIT_SETTINGS, ListenerFactory
from admission.kafka.serving.serveroptions import Listener, buildOrder
from admission.kafka.serving.serversettings import RESERVED_DESCRIPTORS
from admission.kafka.storage.itable import LogRefusal
from admission.recording.recorder import EventRecorder
from tests.kit.brokerfixture import batchOf, fetchFields, produceFields, readResponse, requestFrame, requestOf

LOOPBACK = "tcp:0:interface=127.0.0.1"


class Conversation(Int32StringReceiver):
    """
    A client that asks one thing at a time.

    @ivar lost: fires when the connection is gone.
    """

    MAX_LENGTH = 64 << 20

    def __init__(self) -> None:
        self._answers: DeferredQueue[bytes] = DeferredQueue()
        self.lost: Deferred[None] = Deferred()

    def stringReceived(self, string: bytes) -> None:
        self._answers.put(string)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost.callback(None)

    def ask(self, name: str, apiVersion: int, /, **values: Any) -> Deferred[Any]:
        """
        Send a request.

        @return: fires with the response, a kio entity.
        """
        request = requestOf(name, apiVersion, **values)
        assert self.transport is not None
        self.transport.write(requestFrame(request, 7))
        responseType = load_response_schema(request.__api_key__, apiVersion)
        return self._answers.get().addCallback(lambda body: readResponse(body, responseType)[1])


class StandInEndpoint:
    """An endpoint that listens when it is told to."""

    def __init__(self) -> None:
        self.listening: Deferred[Any] = Deferred()

    def listen(self, factory: ListenerFactory) -> Deferred[Any]:
        return self.listening


class StandInPort:
    """A port that remembers whether it was closed."""

    isClosed = False

    def stopListening(self) -> Deferred[None]:
        self.isClosed = True
        return succeed(None)


def portOf(service: BrokerService, index: int = 0) -> int:
    return int(service._ports.open[index].getHost().port)  # type: ignore[attr-defined]


class ServiceTestCase(TestCase):
    """A test with services, all of which are stopped when it ends."""

    def setUp(self) -> None:
        self.path = self.mktemp()

    def service(
        self,
        *assignments: str,
        endpoints: Sequence[Any] = (LOOPBACK,),
        advertised: Address | None = None,
        path: str | None = None,
    ) -> BrokerService:
        """
        A service that has not been started.

        @param endpoints: descriptions, or endpoints.
        """
        listeners = [
            Listener(str(each), serverFromString(reactor, each) if isinstance(each, str) else each, advertised)
            for each in endpoints
        ]
        settings = loadSettings(None, ["queued.max.request.bytes=128MiB", *assignments])
        return BrokerService(reactor, BrokerConfig(settings, listeners, self.path if path is None else path))

    def start(self, service: BrokerService) -> BrokerService:
        service.privilegedStartService()
        service.startService()
        self.addCleanup(self.stop, service)
        return service

    def stop(self, service: BrokerService) -> Any:
        return service.stopService() if service.running else None

    def connect(self, service: BrokerService, port: int = 0) -> Deferred[Conversation]:
        number = portOf(service, port)
        return connectProtocol(TCP4ClientEndpoint(reactor, "127.0.0.1", number), Conversation())  # type: ignore[no-any-return]

    @inlineCallbacks
    def disconnect(self, client: Conversation) -> Any:
        assert client.transport is not None
        client.transport.loseConnection()
        yield client.lost


class ServingTests(ServiceTestCase):
    """A service that has been started serves."""

    @inlineCallbacks
    def test_serves(self) -> Any:
        """Clients are served, and told the address that they have reached."""
        service = self.start(self.service())
        client = yield self.connect(service)
        answer = yield client.ask("Metadata", 9, topics=[{"name": "events"}])
        (broker,) = answer.brokers
        self.assertEqual((broker.host, broker.port), ("127.0.0.1", portOf(service)))
        self.assertEqual(len(answer.cluster_id), 22)
        produced = yield client.ask("Produce", 9, **produceFields("events", batchOf(b"1")))
        self.assertEqual(produced.responses[0].partition_responses[0].error_code, ErrorCode.none)
        yield self.disconnect(client)

    @inlineCallbacks
    def test_oneStep(self) -> Any:
        """A command that knows no privileges starts the service in one step."""
        service = self.service()
        service.startService()
        self.addCleanup(self.stop, service)
        client = yield self.connect(service)
        yield client.ask("ApiVersions", 4)
        yield self.disconnect(client)

    @inlineCallbacks
    def test_severalPorts(self) -> Any:
        """All ports lead to the same broker."""
        service = self.start(self.service(endpoints=[LOOPBACK, LOOPBACK]))
        first = yield self.connect(service, 0)
        second = yield self.connect(service, 1)
        yield first.ask("Metadata", 9, topics=[{"name": "events"}])
        answer = yield second.ask("Metadata", 9, topics=None)
        self.assertEqual([topic.name for topic in answer.topics], ["events"])
        for client in (first, second):
            yield self.disconnect(client)

    def test_neverIdle(self) -> None:
        """C{connections.max.idle.ms=-1} lets connections be idle for ever."""
        service = self.start(self.service("connections.max.idle.ms=-1"))
        self.assertEqual(service.factory.limits.idleSeconds, float("inf"))

    def test_limits(self) -> None:
        """What is configured holds."""
        service = self.start(
            self.service(
                *("max.connections.per.ip=3", "request.receive.timeout=7s", "response.send.timeout=8s"),
                *("close.grace.timeout=9s", "connections.max.idle.ms=10s", "queued.max.requests=11"),
            )
        )
        limits = service.factory.limits
        self.assertEqual(
            (
                *(limits.maxConnectionsPerAddress, limits.receiveSeconds, limits.sendSeconds),
                *(limits.closeGraceSeconds, limits.idleSeconds, service.broker.gate.turns.maxRequests),
            ),
            (3, 7.0, 8.0, 9.0, 10.0, 11),
        )

    def test_limitNames(self) -> None:
        """The log names the limits of connections as the user has to set them."""
        limits = self.start(self.service()).factory.limits
        names = [limits.settingOf(name) for name in LIMIT_NAMES]
        self.assertEqual(names, [*LIMIT_SETTINGS.values()])
        self.assertEqual(set(names) - {each.name for each in PROPERTIES.values()}, set())

    def test_pressure(self) -> None:
        """The log says that memory is short, where it is, and not more often than once a minute."""
        service = self.start(self.service())
        clock = service._clock = Clock()  # type: ignore[assignment]
        counts = []
        with capturedLogs() as logged:
            for seconds in (0, 1, 58, 1):
                clock.advance(seconds)
                service.broker.gate.pressure.begin()
                service._pressed(False)
                service.broker.gate.pressure.isOn = False
                counts.append(len(logged))
        self.assertEqual(counts, [1, 1, 1, 2])
        self.assertIn("frames 0", formatEvent(logged[0]))


class SuperUsersTests(ServiceTestCase):
    """Where clients have names, only super users may change things."""

    def started(self, *assignments: str, checkers: Sequence[Any] = (), mtls: bool = False) -> tuple[Broker, list[str]]:
        """
        Start a service.

        @return: its broker, and the warnings that it logged.
        """
        description = "mtls:9093" if mtls else LOOPBACK
        listeners = [Listener(description, serverFromString(reactor, LOOPBACK), None, checkers=checkers)]
        settings = loadSettings(None, ["queued.max.request.bytes=128MiB", *assignments])
        config = BrokerConfig(settings, listeners, self.path)
        with capturedLogs() as logged:
            service = self.start(BrokerService(reactor, config))
        return service.broker, [formatEvent(event) for event in logged if event["log_level"] is LogLevel.warn]

    def test_nobody(self) -> None:
        """Clients log in and nobody is a super user: the log says once what follows, and what to set."""
        broker, warnings = self.started(checkers=[InMemoryUsernamePasswordDatabaseDontUse(alice=b"secret")])
        self.assertIsNot(broker.superUsers.refusal("alice"), None)
        (warning,) = warnings
        self.assertIn("nobody can change limits", warning)
        self.assertIn("super.users=User:NAME", warning)

    def test_certificates(self) -> None:
        """Certificates are names, too, and then clients without one are no super users, on any port."""
        broker, warnings = self.started(mtls=True)
        self.assertIsNot(broker.superUsers.refusal("ANONYMOUS"), None)
        self.assertEqual(len(warnings), 1)

    def test_named(self) -> None:
        """
        A user who is named is a super user and others are not, however the broker knows its clients; it warns of
        nothing.
        """
        broker, warnings = self.started("super.users=User:alice")
        self.assertIs(broker.superUsers.refusal("alice"), None)
        self.assertIsNot(broker.superUsers.refusal("ANONYMOUS"), None)
        self.assertEqual(warnings, [])

    def test_withoutNames(self) -> None:
        """Without logins, certificates and super users nothing is refused and nothing said."""
        broker, warnings = self.started()
        self.assertIs(broker.superUsers.refusal("ANONYMOUS"), None)
        self.assertEqual(warnings, [])


class StoppingTests(ServiceTestCase):
    """A service that is stopped leaves nothing behind."""

    @inlineCallbacks
    def test_restart(self) -> Any:
        """Another service, or the same again, takes over the directory, with its records and its cluster id."""
        clusterIds = set()
        service = self.service()
        for expectedOffset in range(3):
            if expectedOffset == 1:
                service.startService()
            else:
                service = self.start(self.service() if expectedOffset else service)
            client = yield self.connect(service)
            answer = yield client.ask("Metadata", 9, topics=[{"name": "events"}])
            clusterIds.add(answer.cluster_id)
            produced = yield client.ask("Produce", 9, **produceFields("events", batchOf(b"1")))
            self.assertEqual(produced.responses[0].partition_responses[0].base_offset, expectedOffset)
            yield service.stopService()
            yield client.lost
        self.assertEqual(len(clusterIds), 1)

    @inlineCallbacks
    def test_stoppedTwice(self) -> Any:
        """
        A service that is stopped twice closes its log only when its connections are gone, and both
        calls wait for that.
        """
        service = self.start(self.service())
        drained: Deferred[None] = Deferred()
        self.patch(AdmittedFactory, "closeAll", lambda factory: drained)
        stopping = [service.stopService(), service.stopService()]
        yield deferLater(reactor, 0.1)
        self.assertEqual([each.called for each in stopping], [False, False])
        other = self.service()
        self.assertRaises(SystemExit, self.start, other)
        drained.callback(None)
        yield stopping[0]
        yield stopping[1]
        self.start(self.service())

    @inlineCallbacks
    def test_order(self) -> Any:
        """
        Ports close first, then waiting clients are answered and closed, then the log is closed;
        exporters end last.
        """
        service = self.service()
        happened: list[Any] = []

        def watch(owner: type, name: str) -> None:
            called = getattr(owner, name)

            def note(instance: Any) -> Any:
                happened.append((name, len(service._ports.open), answer.called, len(service.factory.connections)))
                return called(instance)

            self.patch(owner, name, note)

        watch(AdmittedFactory, "closeAll")
        watch(SegmentLog, "close")
        watch(EventRecorder, "stop")
        self.start(service)
        client = yield self.connect(service)
        yield client.ask("Metadata", 9, topics=[{"name": "events"}])
        topic = service.broker.log.topic("events")
        answer = client.ask("Fetch", 12, **fetchFields(topic, 0, maxWaitMs=10**6))
        while not service.broker.purgatory.watched:
            yield deferLater(reactor, 0.01)
        yield service.stopService()
        self.assertEqual(happened, [("closeAll", 0, False, 1), ("close", 0, True, 0), ("stop", 0, True, 0)])
        fetched = yield answer
        self.assertEqual(fetched.responses[0].partitions[0].error_code, ErrorCode.none)

    @inlineCallbacks
    def test_failingPart(self) -> Any:
        """A part that cannot be closed keeps nothing else open."""
        service = self.start(self.service())
        patch = self.patch(Broker, "drain", lambda broker: 1 / 0)
        yield self.assertFailure(service.stopService(), ZeroDivisionError)
        patch.restore()
        self.start(self.service())


class MistakeTests(ServiceTestCase):
    """What keeps the broker from starting is said in a sentence."""

    def assertCannotStart(self, service: BrokerService, *words: str) -> None:
        """The process would end with these words, and leave no port open."""
        error = self.assertRaises(SystemExit, self.start, service)
        for word in words:
            self.assertIn(word, str(error))
        self.assertNotIn("\n", str(error))
        self.assertEqual(service._ports.open, [])

    def test_logInUse(self) -> None:
        """A directory belongs to one broker at a time."""
        self.start(self.service())
        self.assertCannotStart(self.service(), f"{self.path} is in use by process {os.getpid()}", "--data")

    @inlineCallbacks
    def test_undone(self) -> Any:
        """
        A start that fails half way, for whatever reason, leaves no port open; stopping closes the rest, and the next
        start may succeed.
        """
        for error in (LogRefusal("they are damaged"), ZeroDivisionError()):
            with patch.object(GroupCoordinator, "start", side_effect=error):
                service = self.service()
                self.assertRaises((SystemExit, ZeroDivisionError), self.start, service)
            self.assertEqual(service._ports.open, [])
            yield service.stopService()
            again = self.start(self.service())
            yield again.stopService()
        self.flushLoggedErrors(ZeroDivisionError)

    def test_noDirectory(self) -> None:
        """A directory that cannot be made is named."""
        Path(self.path).write_text("a file")
        self.assertCannotStart(self.service(path=f"{self.path}/data"), self.path, "--data")

    def test_portInUse(self) -> None:
        """A port that is taken is named, and the other ports are closed."""
        port = portOf(self.start(self.service()))
        taken = f"tcp:{port}:interface=127.0.0.1"
        service = self.service(endpoints=[LOOPBACK, taken], path=self.mktemp())
        self.assertCannotStart(service, f"cannot listen on {taken}: Address already in use (--listen says where)")

    def test_portsInUse(self) -> None:
        """Of several ports that are taken the first is told with the reason, and the last with their number."""
        taken = [f"tcp:{portOf(self.start(self.service(path=self.mktemp())))}:interface=127.0.0.1" for _ in range(3)]
        service = self.service(endpoints=taken, path=self.mktemp())
        error = str(self.assertRaises(SystemExit, self.start, service))
        self.assertIn(f"cannot listen on {taken[0]}", error)
        self.assertIn(f"; nor on 2 more, the last of which is {taken[2]}", error)
        self.assertNotIn(taken[1], error)

    def test_impossiblePort(self) -> None:
        """An impossible port is named, too."""
        self.assertCannotStart(self.service(endpoints=["tcp:70000"]), "cannot listen on tcp:70000")

    def test_listensLate(self) -> Any:
        """An endpoint may take its time; its port is then treated like the others."""
        endpoint, port = StandInEndpoint(), StandInPort()
        service = self.start(self.service(endpoints=[endpoint, LOOPBACK]))
        endpoint.listening.callback(port)
        self.assertEqual(len(service._ports.open), 2)
        self.assertIn(port, service.factory._ports)
        stopping = service.stopService()
        self.assertTrue(port.isClosed)
        return stopping

    def test_failsLate(self) -> None:
        """An endpoint that fails later ends the process, and the log says why."""
        stops: list[bool] = []
        self.patch(reactor, "stop", lambda: stops.append(True))
        endpoint = StandInEndpoint()
        self.start(self.service(endpoints=[endpoint]))
        with capturedLogs() as logged:
            endpoint.listening.errback(CannotListenError("127.0.0.1", 9092, OSError("no such luck")))
        self.assertEqual(stops, [True])
        (event,) = [event for event in logged if event["log_level"] is LogLevel.critical]
        self.assertIn("no such luck", formatEvent(event))


LOG_FILES = 100


class DescriptorTests(ServiceTestCase):
    """Connections need file descriptors, beside those that the log may have."""

    def started(self, soft: int, hard: int, maxConnections: int = 1000) -> tuple[int, list[Any], list[str]]:
        """
        Start a service where the system has these limits.

        @return: how many connections it allows, the limits it set, and what it warned of.
        """
        limitsSet: list[Any] = []
        self.patch(resource, "getrlimit", lambda which: (soft, hard))
        self.patch(resource, "setrlimit", lambda which, limits: limitsSet.append((which, limits)))
        with capturedLogs() as logged:
            service = self.start(self.service(f"max.connections={maxConnections}", f"log.max.open.files={LOG_FILES}"))
        warnings = [formatEvent(event) for event in logged if event["log_level"] is LogLevel.warn]
        return service.factory.limits.maxConnections, limitsSet, warnings

    def test_enough(self) -> None:
        """A limit that suffices is left alone."""
        for soft in (1000 + RESERVED_DESCRIPTORS + LOG_FILES, 10**6, resource.RLIM_INFINITY):
            self.path = self.mktemp()
            self.assertEqual(self.started(soft, resource.RLIM_INFINITY), (1000, [], []))

    def test_raised(self) -> None:
        """A limit that does not is raised as far as is needed."""
        needed = 1000 + RESERVED_DESCRIPTORS + LOG_FILES
        for hard in (needed, 10**6, resource.RLIM_INFINITY):
            self.path = self.mktemp()
            expected = [(resource.RLIMIT_NOFILE, (needed, hard))]
            self.assertEqual(self.started(256, hard), (1000, expected, []))

    def test_tooLow(self) -> None:
        """Where the system allows no more, fewer connections are accepted, and the log says so."""
        allowed, limitsSet, (warning,) = self.started(256, 512)
        self.assertEqual(
            (allowed, limitsSet), (512 - RESERVED_DESCRIPTORS - LOG_FILES, [(resource.RLIMIT_NOFILE, (512, 512))])
        )
        self.assertIn("ulimit -n", warning)
        self.assertIn(f"{allowed} connections and not 1000", warning)


class MakeServiceTests(TestCase):
    """What C{twistd} calls."""

    @inlineCallbacks
    def test_makeService(self) -> Any:
        """Options become a service that obeys them."""
        path = self.mktemp()
        options = Options()
        chosen = ["--pool", "bounded:64MiB", "--order", "rounds", "--set", "broker.id=5"]
        options.parseOptions(["--listen", LOOPBACK, "--data", path, *chosen])
        orders: list[tuple[str | None, Any]] = []

        def build(description: str | None, clock: Any, random: Any) -> Any:
            orders.append((description, random))
            return buildOrder(description, clock, random)

        self.patch(kafkaservice, "buildOrder", build)
        service = makeService(options)
        service.startService()
        # Those that are replayed draw from the same, whose seed is recorded.
        self.assertEqual([description for description, _ in orders], ["rounds"] * 4)
        self.assertIsInstance(orders[0][1], Random)
        self.assertIs(orders[0][1], orders[1][1])
        self.assertEqual(service.broker.nodeId, 5)
        self.assertEqual(service.broker.gate.pool.sizeBytes, 64 << 20)
        self.assertTrue(Path(path, "documents").exists())
        yield service.stopService()

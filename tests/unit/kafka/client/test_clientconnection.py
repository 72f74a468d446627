"""
Tests for L{admission.kafka.client.clientconnection}; logging in is tested in
L{tests.unit.kafka.client.test_sasl}.
"""

from __future__ import annotations

import struct
from typing import Any

from kio.schema.errors import ErrorCode
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from admission.kafka.client.clientconnection import (
    CLOSE_GRACE_SECONDS,
    ClientConnection,
    ConnectionSettings,
    connect,
    connectTo,
    endpointsOf,
)
from admission.kafka.client.errors import BrokerRefused, Disconnected, RequestTimedOut, UnsupportedApi
from tests.unit.kafka.client.clientfixture import ClientTestCase, FakeEndpoint


class ConnectionTestCase(ClientTestCase):
    """A connection to one broker."""

    def connect(self, **settings: Any) -> ClientConnection:
        """Connect, and close when the test ends."""
        connecting = connectTo(FakeEndpoint(self.broker), self.clock, ConnectionSettings(**settings))
        self.clock.advance(0)
        connection: ClientConnection = self.successResultOf(connecting)
        self.addCleanup(self._close, connection)
        return connection

    def _close(self, connection: ClientConnection) -> None:
        self.result(connection.close(), CLOSE_GRACE_SECONDS)

    def ask(self, connection: ClientConnection, name: str = "Heartbeat", **fields: Any) -> Deferred[Any]:
        """Ask, and let the turns pass."""
        answer = connection.request(name, fields)
        self.clock.advance(0)
        return answer


class RequestTests(ConnectionTestCase):
    """Requests and their answers."""

    def test_answered(self) -> None:
        """
        A request is answered by kio's entity, in the newest version that both speak; errors in it
        are the caller's.
        """
        self.broker.answers["Heartbeat"] = lambda request: {"error_code": 25, "throttle_time_ms": 0}
        self.broker.versions["Heartbeat"] = (0, 2)
        connection = self.connect(clientId="someone")
        answer = self.successResultOf(self.ask(connection, group_id="g", member_id="m", generation_id=3))
        self.assertEqual((answer.error_code, answer.__version__), (ErrorCode.unknown_member_id, 2))
        (request,) = self.broker.requests("Heartbeat")
        self.assertEqual((request.group_id, request.member_id, request.generation_id), ("g", "m", 3))

    def test_pieces(self) -> None:
        """Several requests may be on their way; answers find theirs, however their bytes are cut."""
        connection = self.connect()
        (transport,) = self.broker.openTransports
        self.broker.answers["Heartbeat"] = lambda request: None
        answers = [self.ask(connection) for _ in range(3)]
        data = b"".join(struct.pack(">iixihx", 4 + 1 + 4 + 2 + 1, 2 + index, 0, index) for index in range(3))
        for index in range(len(data)):
            connection.dataReceived(data[index : index + 1])
        self.assertEqual([self.successResultOf(each).error_code.value for each in answers], [0, 1, 2])
        self.assertFalse(transport.disconnecting)

    def test_timeout(self) -> None:
        """An answer that does not come in time ends the connection, and with it all that wait behind."""
        self.broker.answers["Heartbeat"] = lambda request: None
        connection = self.connect(requestTimeoutSeconds=20.0)
        first = self.ask(connection)
        self.runFor(10)
        second = self.after(9.9, connection.request("Heartbeat", {}, timeoutSeconds=300))
        self.assertNoResult(first)
        self.runFor(0.1)
        error = self.failureResultOf(first, RequestTimedOut).value
        self.assertIn("did not answer Heartbeat within 20 seconds", str(error))
        self.failureResultOf(second, Disconnected)
        self.assertFalse(connection.isOpen)
        self.assertEqual(self.broker.openTransports, [])
        self.failureResultOf(self.ask(connection), Disconnected)

    def test_cancelled(self) -> None:
        """The answer to a request that was cancelled is dropped, and the next one is found."""
        later: Deferred[Any] = Deferred()
        self.broker.answers["Heartbeat"] = lambda request: later
        connection = self.connect()
        answer = self.ask(connection)
        answer.cancel()
        self.failureResultOf(answer, CancelledError)
        self.broker.answers["Heartbeat"] = lambda request: {"error_code": 7}
        following = self.ask(connection)
        later.callback({})
        self.clock.advance(0)
        self.assertEqual(self.successResultOf(following).error_code.value, 7)

    def test_unsupported(self) -> None:
        """
        An API that the broker does not speak, or not as we do, is refused in words; one that nobody knows is a
        mistake.
        """
        self.broker.versions["Heartbeat"] = (90, 95)
        connection = self.connect()
        error = self.failureResultOf(connection.request("Heartbeat", {}), UnsupportedApi).value
        self.assertIn("speaks Heartbeat in versions 90 to 95, we speak versions 0 to 4", str(error))
        error = self.failureResultOf(connection.request("DescribeAcls", {}), UnsupportedApi).value
        self.assertIn("DescribeAcls not at all", str(error))
        self.assertRaises(ValueError, connection.request, "Nonsense", {})

    def test_unencodable(self) -> None:
        """Fields that do not fit fail the request, and nothing is sent."""
        connection = self.connect()
        self.failureResultOf(self.ask(connection, generation_id=2**40), struct.error)
        self.assertEqual(self.broker.requests("Heartbeat"), [])
        self.successResultOf(self.ask(connection))


class TrustTests(ConnectionTestCase):
    """A broker is not trusted."""

    def refused(self, data: bytes, **settings: Any) -> str:
        """What is wrong with an answer to a Heartbeat."""
        self.broker.answers["Heartbeat"] = lambda request: None
        connection = self.connect(**settings)
        answer = self.ask(connection)
        connection.dataReceived(data)
        error = self.failureResultOf(answer, Disconnected).value
        self.clock.advance(0)
        self.assertEqual(self.broker.openTransports, [])
        return str(error)

    def test_sizes(self) -> None:
        """An answer that is announced as too large, or as too small to be one, ends the connection."""
        for sizeBytes in (-1, 0, 3, 1001, 2**31 - 1):
            message = self.refused(struct.pack(">i", sizeBytes), maxResponseBytes=1000)
            self.assertIn(f"a response of {sizeBytes} bytes", message)

    def test_wrongAnswer(self) -> None:
        """An answer to something else ends the connection."""
        self.assertIn("request 77", self.refused(struct.pack(">ii", 4, 77)))

    def test_nonsense(self) -> None:
        """An answer that cannot be decoded ends the connection."""
        self.assertIn("breaks the protocol", self.refused(struct.pack(">iib", 5, 2, 0)))

    def test_unasked(self) -> None:
        """So does an answer that nobody waits for."""
        self.connect().dataReceived(struct.pack(">ii", 4, 2))
        self.clock.advance(0)
        self.assertEqual(self.broker.openTransports, [])


class ThrottleTests(ConnectionTestCase):
    """A broker may ask for silence (KIP-219)."""

    def test_throttled(self) -> None:
        """For as long as the broker says nothing is sent; requests leave afterwards, and their time begins then."""
        self.broker.answers["Heartbeat"] = lambda request: {"throttle_time_ms": 40_000}
        connection = self.connect(requestTimeoutSeconds=30.0)
        throttled: list[float] = []
        connection.onThrottle = throttled.append
        self.successResultOf(self.ask(connection))
        self.broker.answers["Heartbeat"] = lambda request: {"throttle_time_ms": 0}
        answers = [self.ask(connection) for _ in range(3)]
        cancelled = answers.pop()
        cancelled.cancel()
        self.failureResultOf(cancelled, CancelledError)
        self.runFor(39.9)
        self.assertEqual(self.broker.times("Heartbeat"), [0])
        self.runFor(0.1)
        self.assertEqual(self.broker.times("Heartbeat"), [0, 40, 40])
        for answer in answers:
            self.successResultOf(answer)
        self.assertEqual(throttled, [40, 0, 0])

    def test_closed(self) -> None:
        """What is throttled fails when the connection ends."""
        self.broker.answers["Heartbeat"] = lambda request: {"throttle_time_ms": 40_000}
        connection = self.connect()
        self.ask(connection)
        answer = self.ask(connection)
        self.broker.dropConnections()
        self.clock.advance(0)
        self.failureResultOf(answer, Disconnected)


class CloseTests(ConnectionTestCase):
    """Connections end."""

    def test_byUs(self) -> None:
        """Closing fails what is unanswered, and fires when the connection is gone."""
        self.broker.answers["Heartbeat"] = lambda request: None
        connection = self.connect()
        answer = self.ask(connection)
        closed = connection.close()
        self.failureResultOf(answer, Disconnected)
        self.assertNoResult(closed)
        self.assertFalse(connection.isOpen)
        self.clock.advance(0)
        self.successResultOf(closed)
        self.successResultOf(connection.close())

    def test_grace(self) -> None:
        """A broker that does not let go is left after two seconds."""
        connection = self.connect()
        (transport,) = self.broker.openTransports
        transport.isTaking = False
        transport.write(b"stuck")
        closed = self.after(1.9, connection.close())
        self.assertNoResult(closed)
        self.runFor(0.1)
        self.successResultOf(closed)

    def test_byTheBroker(self) -> None:
        """What waits fails when the broker closes."""
        self.broker.answers["Heartbeat"] = lambda request: None
        answer = self.ask(self.connect())
        self.broker.dropConnections()
        self.clock.advance(0)
        self.assertIn("closed the connection", str(self.failureResultOf(answer, Disconnected).value))


class ConnectTests(ConnectionTestCase):
    """Becoming ready."""

    def test_olderBroker(self) -> None:
        """A broker that does not know our ApiVersions says which it knows, and is asked again (KIP-511)."""
        for newest in (0, 2):
            self.broker.versions["ApiVersions"] = (0, newest)
            self.broker.asked.clear()
            connection = self.connect()
            self.assertEqual([each.__version__ for each in self.broker.requests("ApiVersions")], [3, newest])
            self.assertEqual(connection.versionOf("Heartbeat"), 4)

    def test_saysNothing(self) -> None:
        """A broker that contradicts itself, or refuses, cannot be used."""
        self.broker.answers["ApiVersions"] = lambda request: {"error_code": ErrorCode.unsupported_version}
        for code, kind in [(ErrorCode.unsupported_version, UnsupportedApi), (ErrorCode.invalid_request, BrokerRefused)]:
            self.broker.answers["ApiVersions"] = lambda request, code=code: {
                "error_code": code,
                "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 3}] if code.value == 35 else [],
            }
            connecting = connectTo(FakeEndpoint(self.broker), self.clock, ConnectionSettings())
            self.clock.advance(0)
            self.failureResultOf(connecting, kind)
            self.clock.advance(0)

    def test_refused(self) -> None:
        """Nobody there is an error in words."""
        connecting = connectTo(FakeEndpoint(None), self.clock, ConnectionSettings(), "broker:9092")
        self.assertIn("cannot connect to broker:9092", str(self.failureResultOf(connecting, Disconnected).value))

    def test_timeout(self) -> None:
        """Connecting and all that follows must not take longer than the settings say."""
        self.broker.isMute = True
        stuck: Deferred[Any] = Deferred()

        @implementer(IStreamClientEndpoint)
        class StuckEndpoint:
            """Never gets there."""

            def connect(self, factory: Any) -> Deferred[Any]:
                """Nothing happens."""
                return stuck

        for endpoint in (FakeEndpoint(self.broker), StuckEndpoint()):
            connecting = connectTo(endpoint, self.clock, ConnectionSettings(connectTimeoutSeconds=7.0))
            self.runFor(6.9)
            self.assertNoResult(connecting)
            self.runFor(0.1)
            self.assertIn("within 7 seconds", str(self.failureResultOf(connecting, Disconnected).value))
            self.runFor(CLOSE_GRACE_SECONDS)

    def test_cancelled(self) -> None:
        """A caller that does not want to wait any more can say so, and no connection is left."""
        self.broker.isMute = True
        connecting = connectTo(FakeEndpoint(self.broker), self.clock, ConnectionSettings())
        self.clock.advance(0)
        connecting.cancel()
        self.failureResultOf(connecting, CancelledError)
        self.runFor(CLOSE_GRACE_SECONDS)
        self.assertEqual(self.broker.openTransports, [])

    def test_otherErrors(self) -> None:
        """Whatever an endpoint fails with becomes an error of ours."""
        for raised in (ConnectionRefusedError(), ZeroDivisionError("odd"), TimeoutError(1)):

            @implementer(IStreamClientEndpoint)
            class BrokenEndpoint:
                """Fails."""

                def connect(self, factory: Any, raised: Exception = raised) -> Deferred[Any]:
                    """Fail."""
                    raise raised

            self.failureResultOf(connectTo(BrokenEndpoint(), self.clock, ConnectionSettings()), Disconnected)


class EndpointTests(SynchronousTestCase):
    """The way to brokers on a network."""

    def test_plain(self) -> None:
        """Without TLS it is TCP."""
        reactor = MemoryReactorClock()
        connecting = connect(reactor, reactor, "127.0.0.1", 9092)
        self.assertEqual([client[:2] for client in reactor.tcpClients], [("127.0.0.1", 9092)])
        connecting.cancel()
        self.failureResultOf(connecting)

    def test_tls(self) -> None:
        """With TLS the options are made for the broker's name."""
        names: list[str] = []

        def tls(host: str) -> Any:
            names.append(host)
            return object()

        endpointsOf(MemoryReactorClock(), ConnectionSettings(tls=tls))("broker.example.org", 9093)
        self.assertEqual(names, ["broker.example.org"])

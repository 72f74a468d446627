"""Tests for L{admission.status.site}."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Protocol
from twisted.logger import LogLevel, capturedLogs, formatEvent

from admission.commands.topcommand import TopOptions, run as runTop
from admission.connection.factory import AdmittedFactory
from admission.metrics.registry import SensorRegistry
from admission.status.pageresource import LaterPage
from admission.status.sections import Section
from admission.status.site import (
    MAX_ANSWERS,
    MAX_CONNECTIONS,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    REQUEST_SECONDS,
    STALLED_SECONDS,
    StatusPort,
    StatusSite,
    isLocal,
    statusSite,
)
from tests.kit.statusfixture import StatusTestCase
from tests.kit.wrapped import wrapped


class SiteTests(StatusTestCase):
    """The site keeps to its bounds."""

    def test_paths(self) -> None:
        """What is not there is not found, below a page neither."""
        for path in ("/none", "/explain/more?user=a", "/quotas/", "/..", "/%2e%2e/etc", "http://localhost/quotas"):
            self.assertRefused(self.get(path), 404, "/help lists all pages")

    def test_methods(self) -> None:
        """The port can be read and nothing else."""
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "BREW"):
            response = self.get("/quotas", method=method)
            self.assertRefused(response, 405, "use GET or HEAD")
            self.assertEqual(response.headers["allow"], "get, head")

    def test_head(self) -> None:
        """HEAD gets what GET gets, without a body, be it a refusal."""
        for path, code in (("/", 200), ("/sensors", 200), ("/explain", 400), ("/none", 404)):
            response = self.get(path, method="HEAD")
            self.assertEqual((response.code, response.body), (code, ""))
            self.assertEqual(response.headers["content-type"], self.get(path).headers["content-type"])

    def test_names(self) -> None:
        """
        A name that is not the broker's is refused, since it may be that of a page in an operator's browser;
        addresses and known names are not.
        """
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:9090", "192.0.2.7", "[::1]:9090", "broker.example.:80"):
            self.assertEqual(self.get("/quotas", host=host).code, 200, host)
        for host in (
            "evil.example",
            "evil.example:9090",
            "localhost.evil.example",
            "",
            "1.2.3.4.evil.example",
            "a:b:c",
        ):
            self.assertRefused(self.get("/quotas", host=host), 403, "names=")

    def test_severalNames(self) -> None:
        """One right name among others does not help; none at all is no browser's, and served."""
        self.assertRefused(
            self.exchange(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"), 403, "name"
        )
        self.assertEqual(self.exchange(b"GET / HTTP/1.0\r\n\r\n").code, 200)

    def test_noText(self) -> None:
        """A name that is not even text is another name, and no error of the server."""
        self.assertRefused(self.exchange(b"GET / HTTP/1.1\r\nHost: local\xffhost\r\n\r\n"), 403, "name")

    def test_headers(self) -> None:
        """Nothing is cached or taken for something else, and no connection is kept."""
        for path in ("/quotas", "/none"):
            headers = self.get(path).headers
            self.assertEqual(
                (headers["cache-control"], headers["x-content-type-options"], headers["connection"]),
                ("no-store", "nosniff", "close"),
            )
            policy = headers["content-security-policy"]
            self.assertIn("default-src 'none'", policy)
            self.assertNotIn("unsafe", policy)

    def test_body(self) -> None:
        """A request with a body is refused before the body is there, and the rest of it ignored."""
        for header in (b"Content-Length: 5", b"Content-Length: 99999999999999999999", b"Transfer-Encoding: chunked"):
            head = b"GET / HTTP/1.1\r\n" + header + b"\r\n\r\n"
            for data in (head, head + b"hello", head + b"5\r\nhello\r\n0\r\n\r\n"):
                self.assertRefused(self.exchange(data), 413, "no body")
        self.assertEqual(self.exchange(b"GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n").code, 200)

    def test_onePerConnection(self) -> None:
        """A second request on a connection is not answered."""
        _channel, transport = self.send(b"GET /none HTTP/1.1\r\n\r\nGET /none HTTP/1.1\r\n\r\n")
        self.turn()
        self.assertEqual(transport.value().count(b"HTTP/1.1 404"), 1)

    def test_longHead(self) -> None:
        """A request line that is too long, too much header or too many of them end the connection."""
        for data in (
            b"GET /" + b"a" * MAX_HEADER_BYTES + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + (b"A: " + b"b" * 1000 + b"\r\n") * 9,
            b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEADERS + 2),
            b"nonsense\r\n\r\n",
        ):
            _channel, transport = self.send(data)
            self.assertTrue(transport.disconnecting)
            self.assertNotIn(b"200 OK", transport.value())

    def test_newcomers(self) -> None:
        """
        The number of connections is bounded, and a newcomer takes the place of the one that has been silent for
        longest.
        """
        connected = []
        for _ in range(MAX_CONNECTIONS + 2):
            connected.append(self.connect())
            self.clock.advance(0.001)
        self.assertEqual(len(self.site.channels), MAX_CONNECTIONS)
        aborted = [transport.isAborted for _, transport in connected]
        self.assertEqual(aborted, [True] * 2 + [False] * MAX_CONNECTIONS)
        self.assertEqual(self.get("/healthz").code, 200)

    def test_fullOfReaders(self) -> None:
        """
        So is the number of answers under way; the one gives way that has taken nothing for longest, and no connection
        that has yet to ask.
        """
        _, silent = self.connect()
        asked = []
        for _ in range(MAX_ANSWERS):
            asked.append(self.send(b"GET /sensors HTTP/1.1\r\n\r\n"))
            asked[-1][0].pauseProducing()
            self.clock.advance(0.001)
        asked[0][0].resumeProducing()
        asked[0][0].pauseProducing()
        self.assertEqual(self.get("/healthz").code, 200)
        aborted = [transport.isAborted for _, transport in asked]
        self.assertEqual(aborted, [False, True] + [False] * (MAX_ANSWERS - 2))
        self.assertFalse(silent.isAborted)

    def test_addresses(self) -> None:
        """The address that has most connections gives way first, however busy they are."""
        _, honest = self.connect("192.0.2.1")
        self.clock.advance(0.001)
        many = []
        for _ in range(MAX_CONNECTIONS):
            many.append(self.connect("192.0.2.2"))
            self.clock.advance(0.001)
        for channel, _ in many[1:5]:
            channel.dataReceived(b"GET /sensors HTTP/1.1\r\n\r\n")
        self.connect("192.0.2.3")
        # Of those that have asked nothing.
        gone = [index for index, (_, transport) in enumerate(many) if transport.isAborted]
        self.assertEqual(gone, [0, 5])
        self.assertFalse(honest.isAborted)

    def test_addressesBehindABalancer(self) -> None:
        """The address of a client counts that a load balancer tells of later."""
        connected = []
        for host in ("192.0.2.1", *["192.0.2.2"] * (MAX_CONNECTIONS - 1)):
            _, transport = self.connect("192.0.2.250")
            transport.peerAddr = IPv4Address("TCP", host, 50_000)
            connected.append(transport)
            self.clock.advance(0.001)
        self.connect("192.0.2.250")
        self.assertEqual([each.isAborted for each in connected[:3]], [False, True, False])

    def test_whoHasAsked(self) -> None:
        """Of one address, who has asked nothing gives way before who is being answered."""
        channel, asked = self.send(b"GET /sensors HTTP/1.1\r\n\r\n")
        channel.pauseProducing()
        self.clock.advance(0.001)
        _, silent = self.connect()
        self.clock.advance(0.001)
        for _ in range(MAX_CONNECTIONS - 1):
            self.connect()
        self.assertEqual((asked.isAborted, silent.isAborted), (False, True))

    def test_deadline(self) -> None:
        """A client that takes too long to ask is cut off soon; a header a second does not help."""
        channel, transport = self.send(b"GET / HTTP/1.1\r\n")
        for _ in range(int(REQUEST_SECONDS) - 1):
            self.clock.advance(1.0)
            channel.dataReceived(b"A: b\r\n")
        self.assertFalse(transport.isAborted)
        self.clock.advance(1.0)
        self.assertTrue(transport.isAborted)

    def test_deadlineOfReading(self) -> None:
        """A client that takes nothing of its answer is cut off as well; one that takes it slowly is not."""
        channel, transport = self.send(b"GET /sensors HTTP/1.1\r\n\r\n")
        for _ in range(10):
            channel.pauseProducing()
            self.clock.advance(STALLED_SECONDS - 0.1)
            channel.resumeProducing()
            channel.pauseProducing()
        self.assertFalse(transport.isAborted)
        self.clock.advance(STALLED_SECONDS)
        self.assertTrue(transport.isAborted)

    def test_slowServer(self) -> None:
        """How long the server needs for an answer is not the client's doing; from then on the client has to read it."""
        wanted: Deferred[tuple[int, str]] = Deferred()

        async def make(question: Mapping[str, str]) -> tuple[int, str]:
            return await wanted

        self.root.putChild(b"slow", LaterPage(self.clock, "Takes long.", make))
        _, transport = self.send(b"GET /slow HTTP/1.1\r\n\r\n")
        self.clock.pump([10.0] * 60)
        self.assertFalse(transport.isAborted)
        wanted.callback((200, "here"))
        self.assertIn(b"here", transport.value())
        self.clock.advance(STALLED_SECONDS - 0.1)
        self.assertFalse(transport.isAborted)
        self.clock.advance(0.1)
        self.assertTrue(transport.isAborted)

    def test_noTimers(self) -> None:
        """A connection that is gone leaves no timer behind, and a site without one has none."""
        self.site.doStart()
        channel, _ = self.send(b"GET /sensors HTTP/1.1\r\n\r\n")
        self.disconnect(channel)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.site.channels, set())
        self.site.doStop()

    def test_noAccessLog(self) -> None:
        """Requests leave no trace in the log."""
        self.site.doStart()
        with capturedLogs() as events:
            self.get("/quotas")
            self.get("/quotas", host="evil.example")
        self.assertEqual(events, [])
        self.site.doStop()


class StandInPort:
    """A port that is where it is told."""

    isClosed = False

    def __init__(self, address: Any) -> None:
        self._address = address

    def getHost(self) -> Any:
        return self._address

    def stopListening(self) -> Deferred[None]:
        self.isClosed = True
        return succeed(None)


class StandInEndpoint:
    """An endpoint that listens as it is told."""

    def __init__(self, listening: Callable[[], Deferred[Any]]) -> None:
        self._listening = listening

    def listen(self, factory: StatusSite) -> Deferred[Any]:
        return self._listening()


class PortTests(StatusTestCase):
    """The port comes and goes with the broker."""

    def port(self, listening: Callable[[], Deferred[Any]]) -> StatusPort:
        """A port on an endpoint of our own."""
        endpoint: Any = StandInEndpoint(listening)
        return StatusPort("tcp:9090", endpoint, self.clock)

    def warnings(self, address: Any) -> list[str]:
        """What is said about a port that listens at C{address}."""
        with capturedLogs() as events:
            self.successResultOf(self.port(lambda: succeed(StandInPort(address))).listen())
        return [str(formatEvent(event)) for event in events if event["log_level"] is LogLevel.warn]

    def test_warning(self) -> None:
        """A port that others can reach is worth a warning that says what to do; one that they cannot is not."""
        for address in (
            IPv4Address("TCP", "127.0.0.1", 9090),
            IPv4Address("TCP", "127.8.8.8", 9090),
            IPv6Address("TCP", "::1", 9090),
            IPv6Address("TCP", "::ffff:127.0.0.1", 9090),
            UNIXAddress("/run/status"),
        ):
            self.assertEqual(self.warnings(address), [])
        for address in (IPv4Address("TCP", "0.0.0.0", 9090), IPv6Address("TCP", "::", 9090)):
            (warning,) = self.warnings(address)
            self.assertIn(f"listens on {address.host}:9090", warning)
            self.assertIn("tcp:9090", warning)

    def test_scopedAddress(self) -> None:
        """An address may name its interface."""
        self.assertFalse(isLocal(IPv6Address("TCP", "fe80::1%eth0", 9090)))

    def test_fails(self) -> None:
        """The caller learns that a port cannot listen."""
        error = CannotListenError("", 9090, OSError("in use"))
        self.failureResultOf(self.port(lambda: fail(error)).listen(), CannotListenError)

    def test_stop(self) -> None:
        """Stopping frees the port and hangs up."""
        listening = StandInPort(UNIXAddress("/run/status"))
        port = self.port(lambda: succeed(listening))
        self.successResultOf(port.listen())
        self.site = port.site
        port.serve(self.root)
        self.assertEqual(self.get("/quotas").code, 200)
        _channel, transport = self.connect()
        self.successResultOf(port.stop())
        self.assertTrue(listening.isClosed and transport.isAborted)
        self.successResultOf(port.stop())

    def test_stopBeforeItListens(self) -> None:
        """A port that comes too late closes at once."""
        late: Deferred[Any] = Deferred()
        port = self.port(lambda: late)
        listens = port.listen()
        self.successResultOf(port.stop())
        listening = StandInPort(UNIXAddress("/run/status"))
        late.callback(listening)
        self.successResultOf(listens)
        self.assertTrue(listening.isClosed)


class AnyServerTests(StatusTestCase):
    """A server that was wrapped has a status page, too."""

    def setUp(self) -> None:
        super().setUp()
        self.server = wrapped(self, quota="client-bytes:produce=1000", clock=self.clock)
        self.site = statusSite(
            self.server.factory,
            names=["diary.example"],
            sections=[Section("entries", lambda now: 7)],
            checks=[lambda now: self.problems],
        )
        self.problems: list[str] = []

    def test_pages(self) -> None:
        """Every page is there."""
        self.server.connect()
        document = self.get("/status.json").document
        self.assertEqual((document["connections"]["open"], document["entries"]), (1, 7))
        self.assertLessEqual({"admission_connections 1.0", "admission_healthy 1.0"}, set(self.metrics()))
        (limit,) = self.get("/explain?clientId=192.0.2.1").document["limits"]
        self.assertEqual((limit["policy"], limit["limit"]), ("client-bytes", 1000.0))
        self.assertEqual(len(self.get("/quotas").document["quotas"]), 1)
        self.assertNotIn("ANONYMOUS", self.get("/").body)
        self.assertEqual(self.get("/help", host="diary.example").code, 200)
        self.assertRefused(self.get("/help", host="evil.example"), 403, "names=")
        self.problems.append("the diary is full")
        self.assertEqual(self.get("/healthz").document["reasons"], self.problems)

    def test_byAddress(self) -> None:
        """
        A client that has not said its name has its address for a client id, so a question about the address is about
        that.
        """
        _, transport = self.server.connect()
        transport.peerSends(bytes(15 * 1024))
        self.server.settle()
        self.clock.advance(0)
        answer = self.get("/explain?ip=192.0.2.1").document
        self.assertEqual((answer["clientId"], answer["connections"]), ("192.0.2.1", 1))
        (limit,) = answer["limits"]
        self.assertGreater(limit["delaySeconds"], 0)
        self.assertEqual(self.get("/explain?user=alice&ip=192.0.2.1").document["clientId"], "")

    def test_throttled(self) -> None:
        """Its peers that are throttled are shown and counted, also when they have hung up, and so are its bytes."""
        protocol, transport = self.server.connect()
        transport.peerSends(bytes(15 * 1024))
        self.server.settle()
        protocol.transport.write(bytes(300))
        self.clock.advance(0)
        self.assertIn("admission_clients_throttled 1.0", self.metrics())
        self.assertLessEqual(
            {"admission_request_bytes_total 15360.0", "admission_response_bytes_total 300.0"}, set(self.metrics())
        )
        transport.abortConnection()
        self.server.settle()
        self.clock.advance(1)
        document = self.get("/status.json").document
        (client,) = document["throttled"]["clients"]
        self.assertEqual((client["clientId"], client["connections"]), ("192.0.2.1", 0))
        self.assertGreater(client["delaySeconds"], 1.0)
        self.assertIsNotNone(client["policy"])
        self.assertEqual([each.policy for _, each in self.server.factory.debts.items()], [client["policy"]])
        self.assertEqual(document["traffic"], {"inBytes": 15 * 1024, "outBytes": 300})

    def test_top(self) -> None:
        """The terminal shows as much of it as there is."""
        self.server.connect()
        options = TopOptions()  # type: ignore[no-untyped-call]
        options.parseOptions(["--once"])  # type: ignore[no-untyped-call]
        written = io.StringIO()
        runTop(options, io.StringIO(), written, lambda url, timeout: self.get("/status.json").body.encode())
        lines = written.getvalue().splitlines()
        self.assertRegex(lines[0], r"^admission \S+, up 0 s: ok$")
        self.assertTrue(any(line.startswith("connections  1 of 10000") for line in lines), lines)
        self.assertFalse(any(line.startswith("requests") for line in lines), lines)

    def test_noKafka(self) -> None:
        """Nothing of Kafka is among its metrics."""
        self.assertEqual([line for line in self.metrics() if "kafka" in line or "group" in line], [])

    def test_mistakes(self) -> None:
        """What is no server, no section and no check is refused in words that name the argument."""
        server = self.server.factory
        for args, kwargs, words in (
            ((self.server.inner,), {}, " lacks clock, gate, control, connections, addSensors: give the result of wrap"),
            ((None,), {}, "server=None lacks clock, gate, "),
            ((server,), {"checks": [1]}, "checks=[1]: give a list of functions that take the time"),
            ((server,), {"checks": lambda now: ()}, ": give a list of functions that take the time"),
            ((server,), {"sections": ["x"]}, "sections=['x']: give a list of admission.status.Section"),
            ((server,), {"sections": Section("x", abs)}, ": give a list of admission.status.Section"),
        ):
            self.assertIn(words, str(self.assertRaises(TypeError, statusSite, *args, **kwargs)))

    def test_noSensors(self) -> None:
        """A server that publishes no sensors has a page, too, if it is given a registry."""
        server = AdmittedFactory(Protocol, self.server.factory.gate, self.clock, self.server.factory.hangUpWatch)
        self.site = statusSite(server, sensors=SensorRegistry(self.clock.seconds))  # type: ignore[arg-type]
        self.assertEqual(self.get("/status.json").document["connections"]["open"], 0)

    def test_ownSensors(self) -> None:
        """A registry that the server has published to is taken as it is."""
        sensors = SensorRegistry(self.clock.seconds)
        self.server.factory.addSensors(sensors)
        sensors.addCounter("DiaryEntries", lambda now: 3)
        self.site = statusSite(self.server.factory, sensors=sensors)
        self.assertIn("admission_diary_entries_total 3.0", self.metrics())

    def metrics(self) -> list[str]:
        """The lines of C{/metrics}."""
        return self.get("/metrics").body.splitlines()

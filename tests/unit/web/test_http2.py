"""L{admission.web.http2}: streams of one connection; with a client of another library, on fake transports."""

from __future__ import annotations

from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import twisted.internet
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.server import NOT_DONE_YET

from admission.connection.factory import ConnectionLimits
from admission.interfaces import CONNECTIONS, RESPONSES
from admission.web.watchedhttp2 import STREAM_BYTES
from tests.kit.website import Visitor, WebServer

KIB = 1 << 10


class GoingOn(h2.connection.H2Connection):
    """A client's side that takes what comes after a GOAWAY, as it should: h2 itself takes nothing."""

    def _receive_goaway_frame(self, frame: Any) -> Any:
        frames, events = super()._receive_goaway_frame(frame)
        self.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        return frames, events


class Streams:
    """A client of HTTP/2."""

    def __init__(self, server: WebServer, opensWindows: bool = True, windowBytes: int = 64 * KIB - 1) -> None:
        self.server = server
        self.visitor: Visitor = server.connect()
        self.transport = self.visitor.transport
        self.transport.negotiatedProtocol = b"h2"  # type: ignore[attr-defined]
        self.conn = GoingOn(h2.config.H2Configuration(header_encoding="utf-8"))
        self.conn.initiate_connection()
        self.conn.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: windowBytes})
        self.opensWindows = opensWindows
        self.answers: dict[int, Any] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.isGone = False
        self.lastStream: int | None = None
        self._taken = 0
        self.flush()

    def begin(self, method: str, path: str, *headers: tuple[str, str], isWhole: bool = True) -> int:
        """Open a stream."""
        stream = self.ask(method, path, *headers, isWhole=isWhole)
        self.flush()
        return stream

    def ask(self, method: str, path: str, *headers: tuple[str, str], isWhole: bool = True) -> int:
        """The same, sent together with what follows."""
        stream = self.conn.get_next_available_stream_id()
        pseudo = [(":method", method), (":path", path), (":authority", "site"), (":scheme", "https")]
        self.conn.send_headers(stream, [*pseudo, *headers], end_stream=isWhole)
        return stream

    def send(self, stream: int, data: bytes, isLast: bool = False) -> int:
        """Send some of a body, as far as the windows allow; how much."""
        sent = 0
        while sent < len(data):
            room = min(self.conn.local_flow_control_window(stream), self.conn.max_outbound_frame_size, len(data) - sent)
            if room <= 0:
                return sent
            self.conn.send_data(stream, data[sent : sent + room], end_stream=isLast and sent + room == len(data))
            sent += room
            self.flush()
        return sent

    def flush(self) -> None:
        """Send what is to be sent, and take what comes."""
        while True:
            data = self.conn.data_to_send()
            if data:
                self.transport.peerSends(data)
            self.server.settle()
            received = bytes(self.transport.received[self._taken :])
            self._taken += len(received)
            if not received:
                if not data:
                    return
                continue
            for event in self.conn.receive_data(received):
                self._happened(event)

    def _happened(self, event: Any) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self.answers[event.stream_id] = dict(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
            if self.opensWindows and event.flow_controlled_length:
                self.conn.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended.add(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.ended.add(event.stream_id)
            self.resets[event.stream_id] = int(event.error_code)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.isGone = True
            self.lastStream = event.last_stream_id

    def status(self, stream: int) -> int:
        """What was answered."""
        return int(self.answers[stream][":status"])


class StreamTests(SynchronousTestCase):
    """Requests beside each other."""

    def serve(self, **settings: Any) -> WebServer:
        """A site; Twisted's connections of HTTP/2 take the reactor that there is."""
        server = WebServer(self, **settings)
        self.patch(twisted.internet, "reactor", server.clock)
        return server

    def test_answers(self) -> None:
        """With bodies in both directions."""
        client = Streams(self.serve())
        get, put = client.begin("GET", "/?a=b"), client.begin("PUT", "/", isWhole=False)
        client.send(put, b"body", isLast=True)
        self.assertEqual((client.bodies[get], client.bodies[put]), (b"GET 0  [(b'a', [b'b'])]", b"PUT 4 body []"))
        self.assertEqual(client.ended, {get, put})

    def test_tooMuchUnread(self) -> None:
        """A stream whose refused body does not end is reset, though the same bytes bring more of it; others go on."""
        client = Streams(self.serve(maxBodyBytes=1000, spoolBytes=64 * KIB))
        put = client.begin("PUT", "/", ("content-length", "100000000"), isWhole=False)
        other = client.begin("PUT", "/later", isWhole=False)
        while put not in client.resets:
            for _ in range(4):
                client.conn.send_data(put, bytes(8 * KIB))
            client.flush()
        self.assertEqual((client.status(put), client.ended), (413, {put}))
        client.send(other, b"body", isLast=True)
        self.assertEqual((client.isGone, len(client.server.pages.requests)), (False, 1))

    def test_refused(self) -> None:
        """One stream is refused, others go on; also before its body has come, and whether or not that does."""
        server = self.serve(quota="concurrency:limit=1", maxBodyBytes=100 * KIB)
        logged: list[tuple[bytes, int]] = []
        server.site.log = lambda web: logged.append((web.method, web.code))
        client = Streams(server)
        later = client.begin("GET", "/later")
        refused = client.begin("GET", "/")
        upload = client.begin("PUT", "/", ("content-length", "9"), isWhole=False)
        self.assertEqual((client.status(refused), client.status(upload)), (429, 429))
        client.send(upload, b"123456789", isLast=True)
        large = client.begin("PUT", "/", ("content-length", "9000000"), isWhole=False)
        self.assertEqual(client.status(large), 413)
        # Its sender need not send any more to see the end of the answer; or it may, for a while.
        self.assertIn(large, client.ended)
        self.assertNotIn(large, client.resets)
        self.assertEqual(client.send(large, b"x" * 1000), 1000)
        server.pass_(11)
        client.flush()
        self.assertEqual(client.resets, {large: 0})
        server.pages.requests[0].finish()
        client.flush()
        self.assertEqual(client.ended, {later, refused, upload, large})
        self.assertEqual(client.status(client.begin("GET", "/")), 200)
        served = [(b"GET", 200)] * 2
        self.assertEqual(sorted(logged), [*served, (b"GET", 429), (b"PUT", 413), (b"PUT", 429)])

    def test_waits(self) -> None:
        """Streams without memory wait; the connection is read meanwhile, and others are served."""
        server = self.serve(pool="bounded:400KiB")
        client = Streams(server)
        puts = [client.begin("PUT", "/later", ("content-length", "150000"), isWhole=False) for _ in range(4)]
        waiting = server.admission.gate.memory.waiting
        self.assertEqual(waiting, 1)
        # Its window is shut, and the connection's is not.
        self.assertEqual(client.send(puts[3], b"x" * 150_000), 64 * KIB - 1)
        self.assertEqual(client.status(client.begin("GET", "/")), 200)
        for put in puts[:3]:
            self.assertEqual(client.send(put, b"y" * 150_000, isLast=True), 150_000)
        for request in [each for each in server.pages.requests if each.path == b"/later"]:
            request.finish()
        server.settle()
        client.flush()
        client.send(puts[3], b"x" * (150_000 - 64 * KIB + 1), isLast=True)
        request = server.pages.requests[-1]
        self.assertEqual(request.content.read(), b"x" * 150_000)
        request.finish()

    def test_noFiles(self) -> None:
        """A stream that has waited for memory is refused if its body has to go to a file, and these have no room."""
        server = self.serve(pool="bounded:400KiB", spoolBytes=150_000, maxSpooledBytes=150_000)
        client = Streams(server)
        puts = [client.begin("PUT", "/later", ("content-length", "200000"), isWhole=False) for _ in range(4)]
        self.assertEqual(server.admission.gate.memory.waiting, 1)
        client.send(puts[3], b"x" * 1000)
        client.send(puts[0], b"y" * 200_000, isLast=True)
        self.assertEqual(client.status(puts[3]), 503)

    def test_reset(self) -> None:
        """A stream that is reset gives back what it has, and waits no more."""
        server = self.serve(pool="bounded:400KiB")
        client = Streams(server)
        puts = [client.begin("PUT", "/", ("content-length", "150000"), isWhole=False) for _ in range(4)]
        client.send(puts[3], b"x" * 1000)
        for put in reversed(puts):
            client.conn.reset_stream(put)
            client.flush()
        self.assertEqual((server.requestBytes, server.admission.gate.memory.waiting), (0, 0))
        self.assertEqual(client.status(client.begin("GET", "/")), 200)

    def test_resetAtOnce(self) -> None:
        """A stream that is reset by the write that asked is not worked on; it counts, and its connection goes on."""
        for method in ("GET", "PUT"):
            server = self.serve(quota="requests:rate=1/10s:burst=2")
            client = Streams(server)
            for _ in range(2):
                self.assertEqual(server.pages.requests, [])
                client.conn.reset_stream(client.ask(method, "/", isWhole=method == "GET"))
                client.flush()
                self.assertEqual(server.requestBytes, 0)
            self.assertEqual(client.status(client.begin("GET", "/")), 429)
            server.pass_(10)
            self.assertEqual(client.status(client.begin("GET", "/")), 200)

    def test_stops(self) -> None:
        """
        When the server stops, a connection is told so: what it has begun is answered, what it begins after that may be
        begun elsewhere, and it ends with the last answer.  An idle one ends at once.
        """
        server = self.serve(maxBodyBytes=100 * KIB)
        server.factory.doStart()
        idle, client = Streams(server), Streams(server)
        self.assertEqual(idle.status(idle.begin("GET", "/")), 200)
        later, half = client.begin("GET", "/later"), client.begin("PUT", "/", isWhole=False)
        stopped = server.admission.stop()
        for each in (idle, client):
            each.flush()
        self.assertEqual((idle.lastStream, idle.transport.isLost), (1, True))
        self.assertEqual((client.lastStream, client.transport.isLost), (half, False))
        late = [
            client.begin("GET", "/"),
            client.begin("PUT", "/", ("content-length", "4"), isWhole=False),
            client.begin("PUT", "/", ("content-length", "999999"), isWhole=False),
        ]
        self.assertEqual(client.resets, dict.fromkeys(late, 7))
        client.send(half, b"body", isLast=True)
        self.assertEqual((client.status(half), client.ended), (503, {half, *late}))
        self.assertNoResult(stopped)
        server.pages.requests[-1].write(b"at last")
        server.pages.requests[-1].finish()
        client.flush()
        self.assertEqual((client.bodies[later], client.transport.isLost), (b"at last", True))
        self.successResultOf(stopped)
        server.factory.doStop()

    def test_stopsUntaken(self) -> None:
        """A stream that was answered before the server stopped, and not taken, is sent as soon as its windows open."""
        server = self.serve()
        server.factory.doStart()
        client = Streams(server, opensWindows=False, windowBytes=0)
        get = client.begin("GET", "/")
        stopped = server.admission.stop()
        client.flush()
        self.assertEqual((client.lastStream, client.bodies), (get, {}))
        client.conn.increment_flow_control_window(1000, get)
        client.flush()
        self.assertEqual((client.bodies[get], client.transport.isLost), (b"GET 0  []", True))
        self.successResultOf(stopped)
        server.factory.doStop()

    def test_shutWindows(self) -> None:
        """What streams hold is charged, and a client that opens no window is cut off."""
        server = self.serve(limits=ConnectionLimits(sendSeconds=5))
        client = Streams(server, opensWindows=False, windowBytes=0)
        client.begin("GET", "/later")
        server.pages.requests[0].write(b"x" * 500 * KIB)
        client.flush()
        self.assertGreaterEqual(server.pool.usedBytesByPurpose[RESPONSES], 500 * KIB)
        server.pass_(10)
        self.assertTrue(client.transport.isLost)

    def test_smallAnswers(self) -> None:
        """What streams take beside their answers is charged, too, as long as they are there."""
        server = self.serve(limits=ConnectionLimits(sendSeconds=5))
        client = Streams(server, opensWindows=False, windowBytes=0)
        before = server.pool.usedBytesByPurpose[CONNECTIONS]
        asked = [client.begin("GET", "/") for _ in range(50)]
        self.assertGreater(server.pool.usedBytesByPurpose[CONNECTIONS], before + 50 * STREAM_BYTES)
        for stream in asked[1:]:
            client.conn.reset_stream(stream)
        client.flush()
        self.assertLess(server.pool.usedBytesByPurpose[CONNECTIONS], before + 2 * STREAM_BYTES)
        server.pass_(7)
        self.assertTrue(client.transport.isLost)

    def test_manyStreams(self) -> None:
        """While memory is short, a connection whose streams take much has no more of them; what it has goes on."""
        server = self.serve(pool="bounded:1MiB")
        client, other = Streams(server), Streams(server)
        later = [client.begin("GET", "/later", *[(f"x-{number}", "y" * 100) for number in range(90)]) for _ in range(5)]
        taken = server.pool.charge(1 << 20, "elsewhere")
        refused = [client.begin("GET", "/"), client.begin("PUT", "/", isWhole=False)]
        self.assertEqual(client.resets, dict.fromkeys(refused, 7))
        client.conn.reset_stream(client.ask("GET", "/"))
        client.flush()
        self.assertFalse(client.transport.isLost)
        windowBytes = client.conn.outbound_flow_control_window
        for _ in range(3):
            client.conn.send_data(client.ask("PUT", "/", isWhole=False), b"x" * 10_000)
            client.flush()
        self.assertEqual(client.conn.outbound_flow_control_window, windowBytes)
        self.assertEqual(other.status(other.begin("GET", "/")), 200)
        taken.release()
        self.assertEqual(client.status(client.begin("GET", "/")), 200)
        for request in server.pages.requests:
            if request.path == b"/later":
                request.finish()
        client.flush()
        self.assertTrue(client.ended.issuperset(later))

    def test_notEnded(self) -> None:
        """What is not over with its head may have a body, whatever its method: it has memory for it, and is bounded."""
        server = self.serve(pool="bounded:1MiB", maxBodyBytes=100 * KIB, limits=ConnectionLimits(receiveSeconds=5))
        client = Streams(server)
        get = client.begin("GET", "/", isWhole=False)
        self.assertGreaterEqual(server.requestBytes, 100 * KIB)
        client.send(get, b"body", isLast=True)
        self.assertEqual(client.bodies[get], b"GET 4 body []")
        large, idle = client.begin("GET", "/", isWhole=False), client.begin("GET", "/", isWhole=False)
        client.send(large, b"x" * 101 * KIB)
        self.assertEqual(client.status(large), 413)
        server.pass_(6)
        client.flush()
        self.assertIn(idle, client.ended)

    def test_turns(self) -> None:
        """Streams that come together do not all begin in one turn of the reactor, if they take long."""
        server = self.serve()
        waiting = []

        def render(request: Any) -> bytes:
            waiting.append(server.admission.gate.turns.waiting)
            server.clock.rightNow += 0.004
            return b""

        server.pages.render = render  # type: ignore[method-assign]
        client = Streams(server)
        asked = {client.ask("GET", "/") for _ in range(30)}
        client.flush()
        self.assertEqual(client.ended, asked)
        self.assertGreater(max(waiting), 15)

    def test_manyShut(self) -> None:
        """Together they overdraw the pool by no more than it may be."""
        server = self.serve(pool="bounded:1MiB")
        clients = [Streams(server, opensWindows=False, windowBytes=0) for _ in range(8)]
        for client in clients:
            for _ in range(2):
                client.begin("GET", "/later")
                if not client.transport.isLost:
                    server.pages.requests[-1].write(b"x" * 512 * KIB)
                server.settle()
                self.assertGreater(server.pool.availableBytes, -2048 * KIB)
        self.assertTrue(any(client.transport.isLost for client in clients))

    def test_cutOffWithinRead(self) -> None:
        """What came in the read for which a connection was cut off is not worked on."""
        server = self.serve(pool="bounded:1MiB")

        def render(request: Any) -> Any:
            server.pages.requests.append(request)
            request.write(b"x" * 512 * KIB)
            return NOT_DONE_YET

        server.pages.render = render  # type: ignore[method-assign]
        client = Streams(server, opensWindows=False, windowBytes=0)
        for _ in range(20):
            client.ask("GET", "/")
        client.flush()
        self.assertTrue(client.transport.isLost)
        self.assertLess(len(server.pages.requests), 10)

    def test_opened(self) -> None:
        """A client that opens its windows has everything, and then nothing is charged."""
        server = self.serve()
        client = Streams(server)
        client.begin("GET", "/later")
        [request] = server.pages.requests
        request.write(b"x" * 500 * KIB)
        request.finish()
        client.flush()
        server.pass_(3)
        client.flush()
        self.assertEqual(sum(map(len, client.bodies.values())), 500 * KIB)
        self.assertEqual(server.pool.usedBytesByPurpose.get(RESPONSES, 0), 0)

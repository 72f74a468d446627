"""L{admission.web.protectedsite}: what happens to requests of a protected site; on fake transports."""

from __future__ import annotations

import gc
import json
from typing import Any
from weakref import ref

from klein import Klein
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.server import Request, Site

from admission import Admission
from admission.connection.factory import ConnectionLimits
from admission.interfaces import CONNECTIONS, Refusal
from admission.web import byHeader, byKleinRoutes, byRoutes, digestOf, protectSite
from tests.kit.website import Pages, WebServer

KIB, MIB = 1 << 10, 1 << 20


class AnsweringTests(SynchronousTestCase):
    """What its clients see of a site that refuses nobody."""

    def test_answers(self) -> None:
        """With and without a body, with a form, in chunks, one after another."""
        server = WebServer(self)
        visitor = server.connect()
        self.assertEqual(visitor.ask("GET /?a=b").body, b"GET 0  [(b'a', [b'b'])]")
        self.assertEqual(visitor.ask("PUT /", body=b"body").body, b"PUT 4 body []")
        form = "Content-Type: application/x-www-form-urlencoded"
        self.assertEqual(
            visitor.ask("POST /?a=b", form, body=b"c=d").body, b"POST 3 c=d [(b'a', [b'b']), (b'c', [b'd'])]"
        )
        visitor.send("PUT /", "Transfer-Encoding: chunked", body=b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", isWhole=False)
        self.assertEqual(visitor.answer().body, b"PUT 5 abcde []")
        visitor.raw(b"GET /1 HTTP/1.1\r\nHost: site\r\n\r\n" * 3)
        self.assertEqual([visitor.answer().status for _ in range(3)], [200] * 3)

    def test_leavesNothing(self) -> None:
        """A request that is over is gone with all it had, and does not wait until garbage is collected."""
        server = WebServer(self)
        form = "Content-Type: application/x-www-form-urlencoded"
        gc.disable()
        self.addCleanup(gc.enable)
        for body in (b"", b"c=d"):
            self.assertEqual(server.connect().ask("POST /", form, body=body).status, 200)
            gone = ref(server.pages.requests.pop())
            self.assertIs(gone(), None)

    def test_multipart(self) -> None:
        """A form of several parts is parsed by twisted.web, from memory that was granted for that."""
        server = WebServer(self)
        visitor = server.connect()
        part = b'--x\r\nContent-Disposition: form-data; name="n"\r\n\r\nvalue\r\n--x--\r\n'
        answer = visitor.ask("POST /", "Content-Type: multipart/form-data; boundary=x", body=part)
        self.assertIn(b"[(b'n', [b'value'])]", answer.body)

    def test_ownRequests(self) -> None:
        """The requests of a site may be of any class, made by it or by a function; the site stays as it is."""

        class Own(Request):
            def getTeapot(self) -> str:
                return "short and stout"

        for made in (Own, lambda channel, queued=False: Own(channel, queued)):
            pages = Pages()
            site = Site(pages, requestFactory=made)
            server = WebServer(self, site=site)
            self.assertEqual(server.connect().ask("PUT /", body=b"x").status, 200)
            self.assertEqual(pages.requests[0].getTeapot(), "short and stout")
            self.assertIs(site.requestFactory, made)

    def test_continues(self) -> None:
        """A client that asks before it sends its body is told to; or, while there is no memory, later."""
        server = WebServer(self, pool="bounded:256KiB")
        visitor, other = server.connect(), server.connect()
        head = ("PUT /", "Expect: 100-continue", "Content-Length: 100000")
        visitor.send(*head)
        other.send(*head)
        self.assertIn(b"100 Continue", visitor.unread)
        # One request may overdraw the pool.
        server.connect().send(*head)
        third = server.connect()
        third.send(*head)
        self.assertEqual(third.unread, b"")
        visitor.raw(b"x" * 100_000)
        other.raw(b"x" * 100_000)
        server.settle()
        self.assertIn(b"100 Continue", third.unread)

    def test_pipelinedBehindWork(self) -> None:
        """A request that comes while another one is worked on is announced when that is answered."""
        server = WebServer(self, quota="concurrency:limit=1")
        visitor = server.connect()
        visitor.raw(b"GET /later HTTP/1.1\r\nHost: site\r\n\r\n" + b"GET / HTTP/1.1\r\nHost: site\r\n\r\n")
        self.assertEqual(visitor.unread, b"")
        [request] = server.pages.requests
        request.setHeader(b"Content-Length", b"0")
        request.finish()
        server.settle()
        self.assertEqual([visitor.answer().status for _ in range(2)], [200, 200])


class BodyTests(SynchronousTestCase):
    """Where a body goes, and who has to wait for that."""

    def test_leased(self) -> None:
        """Its memory is there before the body is, and given back when the request is over."""
        server = WebServer(self)
        visitor = server.connect()
        visitor.send("PUT /later", "Content-Length: 50000")
        self.assertEqual(server.requestBytes, 50_000)
        visitor.raw(b"x" * 50_000)
        self.assertEqual(server.requestBytes, 50_000)
        [request] = server.pages.requests
        self.assertEqual(len(request.content.read()), 50_000)
        request.finish()
        self.assertEqual(server.requestBytes, 0)

    def test_form(self) -> None:
        """A form takes many times its size, since it is read back and parsed; one that cannot be is refused."""
        server = WebServer(self, pool="bounded:1MiB", maxFormFields=3)
        visitor = server.connect()
        form = "Content-Type: application/x-www-form-urlencoded"
        visitor.send("POST /", form, "Content-Length: 10000")
        self.assertEqual(server.requestBytes, 280_000)
        answer = server.connect().ask("POST /", form, "Content-Length: 80000")
        self.assertEqual(answer.status, 413)
        self.assertIn("memory to parse", json.loads(answer.body)["detail"])

    def test_fields(self) -> None:
        """A form of more fields than may be parsed at once is refused."""
        server = WebServer(self, maxFormFields=3)
        form = "Content-Type: application/x-www-form-urlencoded"
        self.assertEqual(server.connect().ask("POST /", form, body=b"a&b=1&c").status, 200)
        for body in (b"a=1&b=1&c=1&d=1", b"a=1;b=1;c=1;d=1", b"a=1;b=1&c=1;d=1"):
            answer = server.connect().ask("POST /", form, body=body)
            self.assertEqual(answer.status, 413)
            self.assertIn("3 fields at most", json.loads(answer.body)["detail"])
        part = b'--x\r\nContent-Disposition: form-data; name="n"\r\n\r\nvalue\r\n'
        multipart = "Content-Type: multipart/form-data; boundary=x"
        for parts, status in ((3, 200), (4, 413)):
            self.assertEqual(server.connect().ask("POST /", multipart, body=part * parts + b"--x--\r\n").status, status)

    def test_waits(self) -> None:
        """While there is no memory for a body its connection is not read, and others without one are served."""
        server = WebServer(self, pool="bounded:256KiB")
        first, second, third = (server.connect() for _ in range(3))
        first.send("PUT /later", body=b"x" * 200_000)
        second.send("PUT /later", body=b"x" * 200_000)
        third.send("PUT /", body=b"x" * 100_000)
        self.assertEqual(third.unread, b"")
        self.assertTrue(third.transport.unread)
        self.assertEqual(len(server.pages.requests), 2)
        for request in list(server.pages.requests):
            request.finish()
        server.settle()
        self.assertEqual(third.answer().body[:13], b"PUT 100000 xx")

    def test_waitsAndLeaves(self) -> None:
        """A client that leaves waits no more, and gives back no room in files that it never had."""
        server = WebServer(self, pool="bounded:128KiB", spoolBytes=64 * KIB)
        first, second, third = (server.connect() for _ in range(3))
        for visitor in (first, second, third):
            visitor.send("PUT /", "Content-Length: 100000")
        self.assertEqual(server.admission.gate.memory.waiting, 1)
        third.transport.abortConnection()
        server.settle()
        self.assertEqual(server.admission.gate.memory.waiting, 0)

    def test_spooled(self) -> None:
        """What is longer than its memory goes to a file, whose writing blocks nobody."""
        server = WebServer(self, spoolBytes=64 * KIB)
        server.writes = []
        visitor = server.connect()
        body = bytes(range(256)) * 1200
        visitor.send("PUT /later", body=body)
        self.assertTrue(visitor.transport.unread)
        self.assertEqual(server.requestBytes, 64 * KIB)
        while server.writes:
            server.writes.pop()()
            server.settle()
        [request] = server.pages.requests
        self.assertEqual(request.content.read(), body)
        self.assertEqual(server.requestBytes, 0)
        request.finish()

    def test_noFiles(self) -> None:
        """A body that would have to go to a file is refused while these have no room, and holds no memory meanwhile."""
        server = WebServer(self, spoolBytes=64 * KIB, maxSpooledBytes=300 * KIB)
        first, second = server.connect(), server.connect()
        first.send("PUT /", "Content-Length: 300000")
        answer = second.ask("PUT /", "Content-Length: 300000")
        self.assertEqual((answer.status, server.requestBytes), (503, 64 * KIB))
        self.assertIn("retry-after", answer.headers)
        first.raw(b"x" * 300_000)
        self.assertEqual(first.answer().status, 200)
        self.assertEqual(server.connect().ask("PUT /", body=b"x" * 300_000).status, 200)

    def test_chunkedSpools(self) -> None:
        """A body of unknown length is in memory as long as it fits."""
        server = WebServer(self, spoolBytes=64 * KIB)
        chunked = "Transfer-Encoding: chunked"
        for sizeBytes in (100, 64 * KIB, 64 * KIB + 1, 200_000):
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (sizeBytes, b"y" * sizeBytes)
            visitor = server.connect()
            visitor.send("PUT /", chunked, body=body, isWhole=False)
            self.assertEqual(visitor.answer().body[: len(b"PUT %d" % sizeBytes)], b"PUT %d" % sizeBytes)
        self.assertEqual(server.requestBytes, 0)

    def test_leavesWhileWritten(self) -> None:
        """Memory that a thread is writing to a file is not given back before it has."""
        server = WebServer(self, spoolBytes=64 * KIB)
        server.writes = []
        visitor = server.connect()
        visitor.send("PUT /", body=b"x" * 300_000)
        visitor.transport.abortConnection()
        server.settle()
        self.assertEqual(server.requestBytes, 64 * KIB)
        server.writes.pop()()
        self.assertEqual(server.requestBytes, 0)

    def test_tooLarge(self) -> None:
        """What is too large is refused before it is read; its sender sees that, and then the connection ends."""
        server = WebServer(
            self, kindOf=byRoutes("/upload", "/..."), maxBodyBytes={"PUT /upload": 4 * MIB, "other": 1000}
        )
        visitor = server.connect()
        answer = visitor.ask("PUT /", "Content-Length: 100000", "Expect: 100-continue")
        self.assertEqual((answer.status, answer.headers["connection"]), (413, "close"))
        self.assertIn("100000 bytes was announced, and the largest allowed is 1000", answer.body.decode())
        for _ in range(20):
            visitor.raw(b"x" * 5000)
        server.settle()
        self.assertTrue(visitor.transport.isLost)
        self.assertEqual(server.pages.requests, [])
        self.assertEqual(server.connect().ask("PUT /upload", body=b"x" * 3 * MIB).status, 200)

    def test_tooLargeInChunks(self) -> None:
        """The same where nobody said how large it is."""
        server = WebServer(self, maxBodyBytes=1000)
        visitor = server.connect()
        visitor.send("PUT /", "Transfer-Encoding: chunked", body=b"7d0\r\n" + b"x" * 900, isWhole=False)
        self.assertEqual(visitor.unread, b"")
        visitor.raw(b"x" * 200)
        self.assertEqual(visitor.answer().status, 413)

    def test_largeInChunks(self) -> None:
        """However much of it was taken before, as much is read of it after that as of any other that is refused."""
        server = WebServer(self, pool="bounded:64MiB", maxBodyBytes=20 * MIB)
        visitor = server.connect()
        visitor.send("PUT /", "Transfer-Encoding: chunked")
        for _ in range(21):
            visitor.raw(b"100000\r\n" + bytes(MIB) + b"\r\n")
        self.assertEqual(visitor.answer().status, 413)
        for _ in range(14):
            visitor.raw(b"100000\r\n" + bytes(MIB) + b"\r\n")
        self.assertFalse(visitor.transport.isLost)
        for _ in range(2):
            visitor.raw(b"100000\r\n" + bytes(MIB) + b"\r\n")
        self.assertTrue(visitor.transport.isLost)

    def test_nothingAllowed(self) -> None:
        """Where no body is allowed, one in chunks may come that is empty."""
        server = WebServer(self, maxBodyBytes=0)
        for body, status in ((b"0\r\n\r\n", 200), (b"1\r\nx\r\n0\r\n\r\n", 413)):
            visitor = server.connect()
            visitor.send("PUT /", "Transfer-Encoding: chunked", body=body, isWhole=False)
            self.assertEqual(visitor.answer().status, status)
        self.assertEqual(server.connect().ask("PUT /", body=b"x").status, 413)

    def test_broken(self) -> None:
        """A site whose own code fails ends the connection, and the log says so; nothing stays."""

        class Broken(Request):
            def process(self) -> None:
                raise ZeroDivisionError

        def fails(request: Any) -> str:
            raise ZeroDivisionError

        for server in (
            WebServer(self, site=Site(Pages(), requestFactory=Broken)),
            WebServer(self, kindOf=fails),
            WebServer(self, nameOf=fails),
        ):
            for body in (b"", b"body"):
                visitor = server.connect()
                visitor.send("PUT /", body=body)
                self.assertTrue(visitor.transport.isLost)
                self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_unreadEnds(self) -> None:
        """A refused body is read no longer than ten seconds."""
        server = WebServer(self, maxBodyBytes=1000)
        visitor = server.connect()
        self.assertEqual(visitor.ask("PUT /", "Content-Length: 100000").status, 413)
        server.pass_(9)
        self.assertFalse(visitor.transport.isLost)
        server.pass_(2)
        self.assertTrue(visitor.transport.isLost)

    def test_smallRefused(self) -> None:
        """The rest of a small body is dropped, and the connection goes on."""
        server = WebServer(self, maxBodyBytes=1000)
        visitor = server.connect()
        visitor.send("PUT /", "Content-Length: 2000")
        self.assertEqual(visitor.answer().status, 413)
        visitor.raw(b"x" * 2000)
        self.assertEqual(visitor.ask("GET /").status, 200)

    def test_slowBody(self) -> None:
        """A body that does not come gives way; a head without one holds nothing."""
        server = WebServer(self, limits=ConnectionLimits(receiveSeconds=10))
        visitor = server.connect()
        visitor.send("PUT /", "Content-Length: 50000")
        server.pass_(11)
        self.assertTrue(visitor.transport.isLost)
        self.assertEqual(server.requestBytes, 0)


class RefusalTests(SynchronousTestCase):
    """The requests that policies refuse, and what is said."""

    def test_tooMany(self) -> None:
        """A client over its limit is told when to come again, and by whom it is refused if the owner says so."""
        for names in (False, True):
            server = WebServer(self, quota="concurrency:limit=1", namesPolicies=names)
            server.connect().send("GET /later")
            answer = server.connect().ask("GET /")
            self.assertEqual(answer.status, 429)
            self.assertIn(int(answer.headers["retry-after"]), (1, 2))
            self.assertEqual(answer.headers["cache-control"], "no-store")
            problem = json.loads(answer.body)
            self.assertEqual(problem.get("policy"), "concurrency" if names else None)
            self.assertEqual("detail" in problem, names)
            self.assertEqual(server.connect("192.0.2.9").ask("GET /").status, 200)

    def test_rate(self) -> None:
        """A request without a body that takes no time counts once among those of a second, if it is of such a kind."""
        server = WebServer(self, quota="requests:rate=1/10s:burst=2:kinds=GET")
        visitor = server.connect()
        answers = [visitor.ask(f"{method} /") for method in ("GET", "PUT", "GET", "PUT", "GET", "PUT")]
        self.assertEqual([answer.status for answer in answers], [200, 200, 200, 200, 429, 200])
        self.assertGreaterEqual(int(answers[4].headers["retry-after"]), 10)

    def test_leavesEarly(self) -> None:
        """An upload whose client leaves before all of it has come counts as a request, with the bytes that came."""
        for quota, sent in (("requests:rate=1/10s:burst=2", 10), ("client-bytes:received=1000:algorithm=bucket", 2000)):
            server = WebServer(self, quota=quota, pool="bounded:128KiB")
            for _ in range(2):
                visitor = server.connect()
                visitor.send("PUT /", "Transfer-Encoding: chunked", body=b"%x\r\n" % 5000 + bytes(sent), isWhole=False)
                visitor.transport.abortConnection()
                server.settle()
            self.assertEqual(server.connect().ask("GET /").status, 429, quota)
            self.assertEqual(server.connect("192.0.2.9").ask("GET /").status, 200)

    def test_head(self) -> None:
        """A refused HEAD has no body."""
        server = WebServer(self, quota="concurrency:limit=1")
        server.connect().send("GET /later")
        visitor = server.connect()
        visitor.send("HEAD /")
        self.assertTrue(visitor.unread.endswith(b"\r\n\r\n"))

    def test_hangUpKeepsPlace(self) -> None:
        """The place of a client that hung up is free when the work on its request ends, or when nobody knows it."""
        for ends in ("finish", "forget"):
            server = WebServer(self, quota="concurrency:limit=1")
            visitor = server.connect()
            visitor.send("PUT /later", body=b"body")
            visitor.transport.abortConnection()
            server.settle()
            self.assertEqual(server.requestBytes, 0)
            self.assertEqual(server.connect().ask("GET /").status, 429)
            request: Any = server.pages.requests.pop()
            if ends == "finish":
                self.assertRaises(RuntimeError, request.finish)
            del request
            gc.collect()
            server.settle()
            self.assertEqual(server.connect().ask("GET /").status, 200)

    def test_queue(self) -> None:
        """
        With a queue requests wait for a place, a client that hangs up leaves the queue, and a request that waits too
        long is refused.
        """
        server = WebServer(self, quota="concurrency:total=1:queue=2:wait=2s", namesPolicies=True)
        first, second, third, fourth = (server.connect(f"192.0.2.{number}") for number in range(1, 5))
        first.send("GET /later")
        second.send("PUT /", body=b"body")
        third.send("GET /")
        self.assertEqual((second.unread, third.unread), (b"", b""))
        answer = fourth.ask("GET /")
        self.assertEqual(answer.status, 503)
        self.assertIn("1 requests of all clients are in progress", json.loads(answer.body)["detail"])
        third.transport.abortConnection()
        server.settle()
        server.pages.requests.pop().finish()
        server.settle()
        self.assertEqual(second.answer().body, b"PUT 4 body []")
        fourth.send("GET /later")
        second.send("GET /")
        server.pass_(2.1)
        self.assertEqual(second.answer().status, 503)

    def test_queueAtHead(self) -> None:
        """A body is read although there is no place yet, if there is room to wait; else it is refused before."""
        server = WebServer(self, quota="concurrency:total=1:queue=1")
        first, second, third = (server.connect(f"192.0.2.{number}") for number in range(1, 4))
        first.send("GET /later")
        second.send("PUT /", "Content-Length: 4")
        third.send("GET /")
        self.assertEqual(server.connect("192.0.2.9").ask("PUT /", "Content-Length: 99").status, 503)
        second.raw(b"body")
        self.assertEqual(second.answer().status, 503)
        server.pages.requests.pop().finish()
        server.settle()
        self.assertEqual(third.answer().status, 200)

    def test_abandonedInCycles(self) -> None:
        """Where a site leaves requests in cycles, garbage is collected once somebody is refused, and not before."""
        server = WebServer(self, quota="concurrency:limit=1")
        gc.disable()
        self.addCleanup(gc.enable)
        visitor = server.connect()
        visitor.send("GET /later")
        request: Any = server.pages.requests.pop()
        request.itself = request
        del request
        visitor.transport.abortConnection()
        server.settle()
        self.assertEqual(server.connect().ask("GET /").status, 429)
        server.settle()
        self.assertEqual(server.connect().ask("GET /").status, 200)

    def test_byBytes(self) -> None:
        """Bytes are charged to the client of the request, whatever connection it came by, and refuse the next one."""
        server = WebServer(
            self, quota="client-bytes:received=1000:algorithm=bucket", nameOf=byHeader("x-key", isSecret=False)
        )
        self.assertEqual(server.connect().ask("PUT /", "X-Key: a", body=b"x" * 5000).status, 200)
        self.assertEqual(server.connect("192.0.2.2").ask("GET /", "X-Key: a").status, 429)
        visitor = server.connect()
        self.assertEqual([visitor.ask("GET /", f"X-Key: {key}").status for key in "ba"], [200, 429])
        server.pass_(5)
        self.assertEqual(visitor.ask("GET /", "X-Key: a").status, 200)

    def test_delay(self) -> None:
        """Where the owner prefers, a client waits instead, and longer requests behind it, too."""
        server = WebServer(
            self, quota="client-bytes:received=1000:algorithm=bucket", refusalOf=lambda request: Refusal.DELAY
        )
        visitor = server.connect()
        self.assertEqual(visitor.ask("PUT /", body=b"x" * 5000).status, 200)
        visitor.send("PUT /", body=b"y")
        self.assertEqual(visitor.unread, b"")
        server.pass_(3)
        self.assertEqual(visitor.unread, b"")
        server.pass_(2)
        self.assertEqual(visitor.answer().status, 200)

    def test_refusalsCount(self) -> None:
        """A request that comes before its client has waited is refused by the policy that the client waits for."""
        server = WebServer(self, quota="client-bytes:received=1000:algorithm=bucket")
        visitor = server.connect()
        self.assertEqual(visitor.ask("PUT /", body=b"x" * 50_000).status, 200)
        for _ in range(2):
            self.assertEqual(visitor.ask("GET /").status, 429)
            server.pass_(1)
        self.assertEqual(dict(server.admission.sensors.families["QuotaRefusals"].read(0.0)), {("client-bytes",): 2})
        (shown,) = server.admission.debts.refusals.values()
        self.assertEqual((shown.policy, shown.ip), ("client-bytes", "192.0.2.1"))

    def test_hangsUp(self) -> None:
        """A client that hangs up before the end of its answer has had what was sent of it."""
        server = WebServer(self, quota="client-bytes:sent=1000:algorithm=bucket")
        visitor = server.connect()
        visitor.send("GET /later")
        (answer,) = server.pages.requests
        answer.write(bytes(50_000))
        visitor.transport.abortConnection()
        server.settle()
        server.pages.requests.clear()
        del answer
        gc.collect()
        server.settle()
        self.assertEqual(server.connect().ask("GET /").status, 429)

    def test_never(self) -> None:
        """A health check is served whatever the limits; a preflight, too, unless somebody says otherwise."""
        server = WebServer(
            self,
            quota="concurrency:limit=1",
            refusalOf=lambda request: Refusal.NEVER if request.path == b"/health" else Refusal.ERROR,
        )
        server.connect().send("GET /later")
        self.assertEqual(server.connect().ask("GET /health").status, 200)
        self.assertEqual(server.connect().ask("GET /").status, 429)
        server = WebServer(self, quota="concurrency:limit=1")
        server.connect().send("GET /later")
        preflight = ("OPTIONS /", "Origin: https://a", "Access-Control-Request-Method: PUT")
        self.assertEqual(server.connect().ask(*preflight).status, 200)

    def test_scripts(self) -> None:
        """Scripts of the origins that are named may read a refusal."""
        server = WebServer(self, quota="concurrency:limit=1", corsOrigins=["https://a.example"])
        server.connect().send("GET /later")
        answer = server.connect().ask("GET /", "Origin: https://a.example")
        self.assertEqual(answer.headers["access-control-allow-origin"], "https://a.example")
        self.assertIn("Retry-After", answer.headers["access-control-expose-headers"])
        answer = server.connect().ask("GET /", "Origin: https://b.example")
        self.assertNotIn("access-control-allow-origin", answer.headers)

    def test_stops(self) -> None:
        """When the server stops, what is worked on is answered, and everybody else sent away; idle ones at once."""
        server = WebServer(self)
        server.factory.doStart()
        idle, visitor, begun, line, head, body = (server.connect() for _ in range(6))
        self.assertEqual(idle.ask("GET /").status, 200)
        for each in (visitor, begun):
            each.send("GET /later")
        later, written = (each for each in server.pages.requests if each.path == b"/later")
        written.setHeader(b"Content-Length", b"4")
        written.write(b"so")
        line.raw(b"GET /")
        head.raw(b"GET / HTTP/1.1\r\nHost:")
        body.send("PUT /", "Content-Length: 4")
        stopped = server.admission.stop()
        server.settle()
        self.assertEqual([each.transport.isLost for each in server.visitors], [True] + [False] * 5)
        self.assertTrue(server.connect().transport.isLost)
        for each, rest in ((line, b" HTTP/1.1\r\nHost: a\r\n\r\n"), (head, b" a\r\n\r\n"), (body, b"body")):
            each.raw(rest)
            answer = each.answer()
            self.assertEqual((answer.status, answer.headers["connection"]), (503, "close"))
            self.assertTrue(each.transport.isLost)
        self.assertNoResult(stopped)
        written.write(b"on")
        written.finish()
        later.setHeader(b"Content-Length", b"0")
        later.finish()
        server.settle()
        self.assertEqual((visitor.answer().headers["connection"], begun.answer().body), ("close", b"soon"))
        self.successResultOf(stopped)
        server.factory.doStop()

    def test_leavesWhileStopping(self) -> None:
        """A request whose client leaves while the server stops may be written to, as any other."""
        server = WebServer(self)
        server.factory.doStart()
        visitor = server.connect()
        visitor.send("GET /later")
        stopped = server.admission.stop()
        visitor.transport.abortConnection()
        server.settle()
        server.pages.requests[0].write(b"nobody reads this")
        self.assertNoResult(stopped)
        server.pages.requests.clear()
        server.settle()
        self.successResultOf(stopped)
        server.factory.doStop()

    def test_stopsInTime(self) -> None:
        """A request that is not answered, or does not come, is waited for no longer than the grace period."""
        for lines in (("GET /later",), ("PUT /", "Content-Length: 4")):
            server = WebServer(self, limits=ConnectionLimits(closeGraceSeconds=2))
            server.factory.doStart()
            visitor = server.connect()
            visitor.send(*lines)
            stopped = server.admission.stop()
            server.pass_(1.9)
            self.assertNoResult(stopped)
            server.pass_(0.2)
            self.successResultOf(stopped)
            self.assertTrue(visitor.transport.isLost)
            server.factory.doStop()

    def test_counted(self) -> None:
        """Answers are counted by kind and class of status, refusals by their status, of all sites of an admission."""
        server = WebServer(self, quota="concurrency:limit=1")
        protectSite(server.admission, server.site, inThread=server.inThread)
        server.connect().ask("GET /")
        server.connect().send("GET /later")
        server.connect().ask("GET /")
        family = server.admission.sensors.families["Responses"]
        self.assertEqual(dict(family.read(0.0)), {("GET", "2xx"): 1, ("GET", "429"): 1})

    def test_abandonedCounted(self) -> None:
        """Requests that are worked on though their clients have left are counted, of all sites of an admission."""
        server = WebServer(self)
        protectSite(server.admission, server.site, inThread=server.inThread)
        visitor = server.connect()
        visitor.send("GET /later")
        self.assertEqual(server.admission.sensors["RequestsAbandoned"], 0)
        visitor.transport.abortConnection()
        server.settle()
        self.assertEqual(server.admission.sensors["RequestsAbandoned"], 1)
        server.pages.requests.clear()
        server.settle()
        self.assertEqual(server.admission.sensors["RequestsAbandoned"], 0)

    def test_largeHeads(self) -> None:
        """A head that takes much memory is charged as long as its request is in progress."""
        server = WebServer(self)
        visitor = server.connect()
        before = server.pool.usedBytesByPurpose[CONNECTIONS]
        visitor.send("GET /later", *[f"X-{number}: y" for number in range(400)])
        self.assertGreater(server.pool.usedBytesByPurpose[CONNECTIONS], before + 80_000)
        server.pages.requests[0].finish()
        server.settle()
        self.assertEqual(server.pool.usedBytesByPurpose[CONNECTIONS], before)

    def test_refusedCounted(self) -> None:
        """A refusal is counted once, when it is answered, though its body has not come and never does."""
        server = WebServer(self, maxBodyBytes=10)
        visitor = server.connect()
        visitor.send("PUT /", "Content-Length: 20000000", isWhole=False)
        self.assertEqual(visitor.answer().status, 413)
        family = server.admission.sensors.families["Responses"]
        self.assertEqual(dict(family.read(0.0)), {("PUT", "413"): 1})
        visitor.transport.abortConnection()
        server.settle()
        self.assertEqual(dict(family.read(0.0)), {("PUT", "413"): 1})

    def test_logged(self) -> None:
        """A refused upload is in the site's log once, whether or not the rest of it comes."""
        for isWhole in (True, False):
            server, logged = WebServer(self, maxBodyBytes=1000), []
            server.site.log = lambda web, logged=logged: logged.append((web.method, web.code))
            visitor = server.connect()
            visitor.send("PUT /", "Content-Length: 2000", isWhole=False)
            self.assertEqual(visitor.answer().status, 413)
            if isWhole:
                visitor.raw(b"x" * 2000)
            else:
                visitor.transport.abortConnection()
            server.settle()
            self.assertEqual(logged, [(b"PUT", 413)])

    def test_names(self) -> None:
        """Policies know a client by what C{nameOf} says; of a secret they have a digest."""
        seen: list[tuple[str, str, str]] = []
        server = WebServer(self, kindOf=byRoutes("/u/<name>"), nameOf=byHeader("x-key"), quota="concurrency:limit=9")
        requestOver = type(
            "Seen", (), {"requestOver": lambda self, each: seen.append((each.kind, each.principal, each.clientId))}
        )
        server.admission.observers = (requestOver(),)
        server.connect().ask("GET /u/a", "X-Key: secret")
        server.connect().ask("GET /x/a")
        self.assertEqual(
            [each for each in seen if each[0] != "connection"],
            [("GET /u/<name>", "", digestOf(b"secret")), ("GET other", "", "192.0.2.1")],
        )


class SettingTests(SynchronousTestCase):
    """What cannot take effect is refused."""

    def test_refused(self) -> None:
        """In a sentence that names the argument."""
        admission = Admission(pool="bounded:1MiB")
        site = Site(Pages())
        for name, value in (
            ("kindOf", "GET"),
            ("kindOf", None),
            ("nameOf", 1),
            ("maxBodyBytes", -1),
            ("maxBodyBytes", {"GET": "1MiB"}),
            ("maxBodyBytes", "1MiB"),
            ("spoolBytes", 1),
            ("maxSpooledBytes", -1),
            ("maxFormFields", 0),
            ("corsOrigins", "*"),
            ("corsOrigins", ["shop.example"]),
            ("corsOrigins", ["https://shop.example/"]),
            ("corsOrigins", ["https://Shop.example"]),
            ("corsOrigins", ["https://*.shop.example"]),
            ("corsOrigins", ["https://me@shop.example"]),
            ("corsOrigins", ["https://shop.example:"]),
            ("corsOrigins", ["https://shop.example:443"]),
            ("corsOrigins", ["http://[::1]:80"]),
            ("corsOrigins", [b"https://shop.example"]),
        ):
            error = self.assertRaises((TypeError, ValueError), protectSite, admission, site, **{name: value})
            self.assertIn(name, str(error))
        klein = Klein()
        klein.route("/notes/<name>")(lambda request, name: b"")
        byMethod = "no request is of that kind, which is its method, unless kindOf says otherwise"
        byRoute = "no request is of that kind, which is its method and one of these routes: /notes/<name>, other"
        for kind, kindOf, words in (
            ("PUT", byRoutes("/notes/<name>"), byRoute),
            ("PUT /notes", byRoutes("/notes/<name>"), byRoute),
            ("SEND /notes/<name>", byKleinRoutes(klein), byRoute),
        ):
            error = self.assertRaises(ValueError, protectSite, admission, site, kindOf=kindOf, maxBodyBytes={kind: 9})
            self.assertEqual(str(error), f"maxBodyBytes of {kind!r}: {words}")
        error = self.assertRaises(ValueError, protectSite, admission, site, maxBodyBytes={"PUT /notes": 9})
        self.assertEqual(str(error), f"maxBodyBytes of 'PUT /notes': {byMethod}")
        for kindOf in (byRoutes("/notes/<name>"), byKleinRoutes(klein)):
            settings = {"PUT /notes/<name>": 9, "GET other": 0, "other": 0}
            protectSite(admission, site, kindOf=kindOf, maxBodyBytes=settings, inThread=lambda f: f)
        protectSite(admission, site, kindOf=lambda request: "any", maxBodyBytes={"any": 9}, inThread=lambda f: f)
        for origin in (
            "*",
            "null",
            "https://shop.example",
            "https://shop.example:8443",
            "http://[::1]:8080",
            "app://a",
        ):
            protectSite(admission, site, corsOrigins=[origin], inThread=lambda f: f)
        self.assertRaises(TypeError, protectSite, admission, Pages())
        self.assertRaises(ValueError, protectSite, admission, protectSite(admission, site, inThread=lambda f: f))

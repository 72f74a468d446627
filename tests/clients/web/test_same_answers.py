"""A protected site answers real clients as it would if it were not; and what it refuses they see."""

from __future__ import annotations

import atexit
import json
import shutil
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import IO, Any

from attrs import evolve
from twisted.trial.unittest import SynchronousTestCase

from tests.clients.web import publicsite
from tests.clients.web.http2client import Http2Client
from tests.clients.web.publicsite import KEY, MAX_BODY_BYTES, MOST_AT_ONCE
from tests.clients.web.siteclients import CASES, Case, Client, Curl, Site, askAtOnce, askByTreq, makeFiles
from tests.kit.brokerprocess import PATIENCE_SECONDS, certificates, until
from tests.kit.lineprocess import Event, LineProcess, moduleCommand


class ServedSite:
    """A site in a process of its own."""

    def __init__(self, files: Path, settings: dict[str, Any] | None) -> None:
        """@param settings: of its protection, if it is protected."""
        own = certificates()
        asked = {
            "files": str(files),
            "settings": settings,
            "certificate": str(own.serverCertificate),
            "key": str(own.serverKey),
        }
        self._events: list[Event] = []
        self._process = LineProcess(moduleCommand(publicsite.__name__, json.dumps(asked)), self._told)
        until(lambda: self._events or self._process.isGone())
        if not self._events:
            self._process.wait()
            raise AssertionError(self._process.errors)
        self.site = Site(*self._events[0].values, files)

        self._events.clear()
        atexit.register(self._process.kill)

    def stop(self) -> None:
        """Have it end as its operator would."""
        self._process.terminate()

    def troubles(self) -> list[str]:
        """What its log says that went wrong since the last look."""
        events, self._events = self._events, []
        return [each.values[0] for each in events]

    def _told(self, line: Any) -> None:
        self._events.append(Event(*line))


class Visitor:
    """A client by a blocking socket."""

    def __init__(self, case: SynchronousTestCase, site: Site) -> None:
        self.socket = socket.create_connection(("127.0.0.1", site.port), PATIENCE_SECONDS)
        case.addCleanup(self.socket.close)
        self._file: IO[bytes] = self.socket.makefile("rb")
        case.addCleanup(self._file.close)

    def send(self, line: str, *headers: str, body: bytes = b"") -> None:
        """Send the head of a request, and C{body}."""
        self.socket.sendall("\r\n".join([f"{line} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode() + body)

    def answer(self) -> tuple[int, bytes]:
        """The next answer, whose length is known or which comes in one chunk."""
        status = int(self._file.readline().split()[1])
        headers = dict(line.strip().lower().split(b": ", 1) for line in iter(self._file.readline, b"\r\n"))
        if status == 100:
            return status, b""
        body = b""
        if b"chunked" in headers.get(b"transfer-encoding", b""):
            while sizeBytes := int(self._file.readline(), 16):
                body += self._file.read(sizeBytes)
                self._file.readline()
            self._file.readline()
        else:
            body = self._file.read(int(headers[b"content-length"]))
        return status, body

    def ask(self, line: str, *headers: str) -> tuple[int, bytes]:
        """Send a request without a body, and wait for the answer."""
        self.send(line, *headers)
        return self.answer()

    def leave(self) -> None:
        """Hang up."""
        self._file.close()
        self.socket.close()


@cache
def sites() -> tuple[ServedSite, ServedSite]:
    """A plain and a protected site, which live as long as this process."""
    files = Path(tempfile.mkdtemp(prefix="public-site-"))
    atexit.register(shutil.rmtree, files)
    makeFiles(files)
    return ServedSite(files, None), ServedSite(files, {})


class SiteCase(SynchronousTestCase):
    """Tests in which nothing goes wrong in the sites."""

    def setUp(self) -> None:
        self.plain, self.protected = sites()

    def tearDown(self) -> None:
        for each in (self.plain, self.protected):
            self.assertEqual(each.troubles(), [])


class SameAnswersTests(SiteCase):
    """The answers to clients that are not refused."""

    def compare(self, client: Client) -> None:
        """Have both asked the same."""
        plain, protected = client(self.plain.site, CASES), client(self.protected.site, CASES)
        for name, case in CASES.items():
            self.assertEqual(plain[name].status, case.status, name)
            self.assertEqual(plain[name], protected[name], name)

    def test_curl(self) -> None:
        """By HTTP/1.1."""
        self.compare(Curl("--http1.1"))

    def test_curlTLS(self) -> None:
        """By HTTP/1.1 and TLS."""
        self.compare(Curl("--http1.1", isTLS=True))

    def test_curlHttp2(self) -> None:
        """By HTTP/2."""
        self.compare(Curl("--http2", isTLS=True))

    def test_treq(self) -> None:
        """By a client of Twisted's, whose connections are kept."""
        self.compare(askByTreq)

    def test_streams(self) -> None:
        """By HTTP/2, everything at once by one connection."""
        self.compare(askAtOnce)

    def test_pipelined(self) -> None:
        """Five hundred requests that are sent before the first answer is read are answered in their order."""
        for each in (self.plain, self.protected):
            visitor = Visitor(self, each.site)
            for number in range(500):
                visitor.send(f"GET /app/hello/{number}")
            for number in range(500):
                self.assertEqual(visitor.answer(), (200, b"GET hello %d, nobody" % number))

    def test_longPoll(self) -> None:
        """A request that is answered later is, and the site notices if its client does not wait for that."""
        for each in (self.plain, self.protected):
            waiting, leaving, other = (Visitor(self, each.site) for _ in range(3))
            waiting.send("GET /app/poll")
            leaving.send("GET /app/poll")
            until(lambda asks=other: asks.ask("GET /app/state")[1] == b"[2, 0]")
            leaving.leave()
            until(lambda asks=other: asks.ask("GET /app/state")[1] == b"[1, 1]")
            other.send("POST /app/publish", "Content-Length: 4", body=b"news")
            self.assertEqual(other.answer(), (200, b"1 were told"))
            self.assertEqual(waiting.answer(), (200, b"news"))

    def test_continues(self) -> None:
        """A client that asks whether it may send is told so before it does."""
        for each in (self.plain, self.protected):
            visitor = Visitor(self, each.site)
            self.assertEqual(visitor.ask("PUT /app/upload", "Expect: 100-continue", "Content-Length: 4"), (100, b""))
            visitor.socket.sendall(b"body")
            self.assertEqual(visitor.answer()[0], 200)


class StoppingTests(SynchronousTestCase):
    """What clients see of a site that stops."""

    def test_downloads(self) -> None:
        """What was begun is served until its end; by HTTP/2 they are told meanwhile that nothing else is."""
        _, protected = sites()
        site = ServedSite(protected.site.files, {})
        curls = [Curl("--http1.1"), Curl("--http2", isTLS=True)]
        bodies = [site.site.files / f"stopping-{number}" for number in range(len(curls))]
        options = ("--verbose", "--limit-rate", "2M", "--output")
        downloads = [
            curl.begin(*options, str(body), curl.url(site.site, "/produced/4000000"))
            for curl, body in zip(curls, bodies, strict=True)
        ]
        until(lambda: all(body.exists() and body.stat().st_size for body in bodies))
        site.stop()
        said = [each.communicate(timeout=PATIENCE_SECONDS)[1] for each in downloads]
        self.assertEqual([body.stat().st_size for body in bodies], [4_000_000] * 2, said)
        self.assertEqual(["GOAWAY" in each for each in said], [False, True])
        self.assertEqual(site.troubles(), [])


class RefusalTests(SiteCase):
    """What clients see that are refused."""

    def setUp(self) -> None:
        """One key has as many requests as it may, until the test is over."""
        super().setUp()
        busy, other = Http2Client(self.protected.site.tlsPort), Visitor(self, self.protected.site)
        self.addCleanup(busy.close)
        for _ in range(MOST_AT_ONCE):
            busy.ask("GET", "/app/poll", [(KEY.lower(), "busy")])
        until(lambda: json.loads(other.ask("GET /app/state")[1])[0] == MOST_AT_ONCE)
        self.addCleanup(busy.run)
        self.addCleanup(other.ask, "POST /app/publish", "Content-Length: 0")

    def assertRefused(self, client: Client) -> None:
        """A client is told when to come again."""
        headers = {KEY: "busy"}
        cases = {
            "GET": Case("GET", "/app/hello/alice", headers=headers),
            "HEAD": Case("HEAD", "/static/large", headers=headers),
            "POST": Case("POST", "/app/form", headers=headers, body="form"),
        }
        for name, answer in client(self.protected.site, cases).items():
            self.assertEqual(answer.status, 429, name)
            self.assertGreaterEqual(int(answer.headers["retry-after"][0]), 1)
            self.assertEqual(answer.headers["content-type"], ["application/problem+json"])

    def test_told(self) -> None:
        """All clients can tell when to come again."""
        for client in (askByTreq, askAtOnce, Curl("--http1.1"), Curl("--http1.1", isTLS=True)):
            self.assertRefused(client)

    def test_toldByHttp2(self) -> None:
        """So can curl by HTTP/2."""
        self.assertRefused(Curl("--http2", isTLS=True))

    def test_goesOn(self) -> None:
        """The connection that a request was refused on serves the next one, whose sender is another."""
        site = self.protected.site
        for version, isTLS in (("--http1.1", False), ("--http1.1", True), ("--http2", True)):
            curl = Curl(version, isTLS=isTLS)
            options = [
                "--write-out",
                "%{http_code} %{num_connects}\n",
                "--output",
                str(self.protected.site.files / "answer"),
            ]
            options += [curl.url(site, "/app/hello/alice"), "--header"]
            told = curl.run(*options, f"{KEY}: busy", "--next", "--insecure", "-s", version, *options, f"{KEY}: other")
            self.assertEqual(told, "429 1\n200 0\n", version)

    def test_tooLarge(self) -> None:
        """A client that sends too large a body, and does not ask before, sees why it is not taken."""
        with (self.protected.site.files / "too much").open("wb") as file:
            file.truncate(MAX_BODY_BYTES + (8 << 20))
        announced = Case("PUT", "/app/upload", body="too much")
        cases = {"announced": announced, "in chunks": evolve(announced, isChunked=True)}
        curls = [Curl("--http1.1"), Curl("--http1.1", isTLS=True), Curl("--http2", isTLS=True)]
        for client in (askByTreq, askAtOnce, *curls):
            for name, answer in client(self.protected.site, cases).items():
                self.assertEqual(answer.status, 413, name)

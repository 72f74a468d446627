"""The examples of protected servers do what they say."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic
from typing import IO
from urllib.request import urlopen

from twisted.trial.unittest import SynchronousTestCase

from tests.kit.brokerprocess import ENVIRONMENT, PATIENCE_SECONDS, ROOT, TWISTD, freePort, until


class Client:
    """A client by a blocking socket."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_SECONDS)
        # The server may have taken it and let go of it already; reading will tell.
        with contextlib.suppress(ConnectionResetError):
            self.socket.connect(("127.0.0.1", port))
        self.file: IO[bytes] = self.socket.makefile("rb")

    def ask(self, line: bytes) -> bytes:
        self.socket.sendall(line + b"\r\n")
        return self.file.readline().rstrip(b"\r\n")

    def get(self, path: bytes) -> bytes:
        self.socket.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        sizeBytes = 0
        for line in self.file:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                sizeBytes = int(value)
            if line == b"\r\n":
                break
        return self.file.read(sizeBytes)

    def send(self, words: bytes) -> None:
        self.socket.sendall(len(words).to_bytes(4, "big") + words)

    def receive(self) -> bytes:
        return self.file.read(int.from_bytes(self.file.read(4), "big"))

    def isRefused(self) -> bool:
        try:
            return self.file.read() == b""
        except ConnectionResetError:
            return True

    def couldFlood(self, request: bytes) -> bool:
        """Whether 20 MiB of requests could be sent; half a second without progress means no."""
        self.socket.settimeout(0.5)
        try:
            for _ in range(320):
                self.socket.sendall(request * ((64 << 10) // len(request)))
            return True
        except TimeoutError:
            return False


class ExampleTests(SynchronousTestCase):
    """Each example, run as its first lines say."""

    def setUp(self) -> None:
        self.clients = ExitStack()
        self.addCleanup(self.clients.close)

    @contextmanager
    def serving(self, name: str, *changes: tuple[str, str]) -> Iterator[int]:
        """
        Have an example run, with some words of it changed.

        @return: its port.
        """
        port = freePort()
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        source = (ROOT / "examples" / name).read_text()
        name = Path(name).name
        listens, *_ = [word for word in source.replace('"', " ").split() if word.startswith("tcp:")]
        for old, new in [(listens, f"tcp:{port}:interface=127.0.0.1"), *changes]:
            self.assertIn(old, source)
            source = source.replace(old, new)
        (directory / name).write_text(source)
        log = directory / "log"
        with log.open("wb") as output:
            # Not a pipe: a site logs every visit, and would wait for somebody to read of it.
            server = subprocess.Popen(
                [*TWISTD, f"--python={directory / name}"],
                cwd=directory,
                env=ENVIRONMENT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            until(lambda: "starting on" in log.read_text() or server.poll() is not None)
            self.assertIn("starting on", log.read_text())
            yield port
        finally:
            self.clients.close()
            server.terminate()
            server.wait(PATIENCE_SECONDS)
        self.log = log.read_text()
        self.assertNotIn("Traceback", self.log)

    def connect(self, port: int) -> Client:
        """A client, which is gone at the end."""
        client = Client(port)
        self.clients.enter_context(client.socket)
        self.clients.enter_context(client.file)
        return client

    def test_lineServer(self) -> None:
        """Lines are repeated; a client that floods is throttled, by its name on any connection, and nobody else is."""
        with self.serving("line_server.py") as port:
            alice, bob, again = (self.connect(port) for _ in range(3))
            self.assertEqual(alice.ask(b"hello"), b"HELLO")
            self.assertEqual(alice.ask(b"I am alice"), b"hello alice")
            self.assertEqual(bob.ask(b"I am bob"), b"hello bob")
            self.assertEqual(again.ask(b"I am alice"), b"hello alice")
            self.assertFalse(alice.couldFlood(b"quick\r\n"))
            self.assertEqual(bob.ask(b"still quick"), b"STILL QUICK")
            # However little a turn takes of the flood: 6 kB under the same name take three seconds of 2000 bytes each.
            started = monotonic()
            again.socket.settimeout(2)
            with contextlib.suppress(TimeoutError):
                for _ in range(6):
                    again.ask(bytes(1000))
            self.assertGreater(monotonic() - started, 2)

    def test_protectedSite(self) -> None:
        """A visitor that does not read is cut off, one that floods is throttled, and pages are served meanwhile."""
        changes = [("sendSeconds=20", "sendSeconds=1"), ("maxConnectionsPerAddress=20", "maxConnectionsPerAddress=4")]
        with self.serving("protected_site.py", *changes) as port:
            visitor, deaf, flooding = (self.connect(port) for _ in range(3))
            self.assertEqual(len(visitor.get(b"/large")), 8_000_000)
            deaf.socket.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
            self.assertEqual(visitor.get(b"/"), b"<p>Good day.</p>")
            until(lambda: b"ConnectionsCutOff 1\n" in visitor.get(b"/numbers"))
            self.assertIn(b"Connections 2\n", visitor.get(b"/numbers"))
            self.connect(port), self.connect(port)
            self.assertTrue(self.connect(port).isRefused())
            self.assertFalse(flooding.couldFlood(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        self.assertIn("it has taken none (sendSeconds)", self.log)
        self.assertIn("from its address already", self.log)

    def test_protectedKlein(self) -> None:
        """
        Reports wait for their turn, those for which there is no room are told when to come again, a body that is too
        large is refused, a large picture is not, and the load balancer is always answered.
        """
        page = freePort()
        changes = [("tcp:9094:", f"tcp:{page}:"), ("queue=10:wait=2s", "queue=1:wait=20s")]
        with self.serving("web/protected_klein.py", *changes) as port:

            def ask(request: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
                connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
                method, path = request.split()
                connection.request(method, path, body or None, {"X-Api-Key": "alice"})
                answer = connection.getresponse()
                with contextlib.closing(connection):
                    return answer.status, dict(answer.getheaders()), answer.read()

            with ThreadPoolExecutor(4) as threads:
                reports = [each.result() for each in [threads.submit(ask, "GET /reports/sales") for _ in range(4)]]
            self.assertEqual(sorted(status for status, _, _ in reports), [200, 200, 200, 503])
            ((headers, told),) = [(headers, told) for status, headers, told in reports if status == 503]
            self.assertGreaterEqual(int(headers["Retry-After"]), 1)
            self.assertEqual(json.loads(told), {"title": "Service Unavailable", "status": 503})
            self.assertEqual(ask("GET /health")[0], 200)
            status, _, told = ask("PUT /pictures/cat", bytes(5_000_000))
            self.assertEqual((status, told), (200, f"cat {sha256(bytes(5_000_000)).hexdigest()}\n".encode()))
            self.assertEqual(ask("GET /items", bytes(65_537))[0], 413)
            with urlopen(f"http://127.0.0.1:{page}/status.json", timeout=PATIENCE_SECONDS) as answer:
                kinds = {each["kind"] for each in json.load(answer)["latency"]}
            self.assertIn("GET /reports/<name>", kinds)

    def test_rpcServer(self) -> None:
        """
        A request waits for what it asks for, or for as long as it says; a client that has left does not keep others
        waiting, and unclear words are answered.
        """
        page, recording = freePort(), self.mktemp()
        changes = [("tcp:9097:", f"tcp:{page}:"), ('total=20"]', f'total=20"], export="spark:{recording}"')]
        with self.serving("rpc_server.py", *changes) as port:
            reader, writer, leaving = (self.connect(port) for _ in range(3))
            reader.send(b"get colour 30")
            leaving.send(b"get colour 30")
            leaving.file.close()
            leaving.socket.close()
            writer.send(b"get shape 0")
            self.assertEqual(writer.receive(), b"none")
            writer.send(b"set colour deep red")
            self.assertEqual(writer.receive(), b"done")
            self.assertEqual(reader.receive(), b"deep red")
            writer.send(b"fetch colour")
            self.assertTrue(writer.receive().startswith(b"say "))
            writer.send(b"get colour 0")
            self.assertEqual(writer.receive(), b"deep red")
            writer.send(b"set much " + bytes(1_000_000))
            self.assertEqual(writer.receive(), b"done")
            writer.send(b"set more " + bytes(1000))
            writer.socket.settimeout(0.5)
            self.assertRaises(TimeoutError, writer.receive)
            with urlopen(f"http://127.0.0.1:{page}/status.json", timeout=PATIENCE_SECONDS) as answer:
                document = json.load(answer)
            counts = {each["kind"]: each["count"] for each in document["latency"]}
            # A client that leaves at the moment when there is a value may have been answered.
            self.assertIn(counts, [{"get": 3, "set": 3}, {"get": 4, "set": 3}])
            self.assertEqual(document["throttled"]["clients"][0]["policy"], "client-bytes")

"""What users of other people's servers do, in the fewest bytes: a client asks, and waits for the answer."""

from __future__ import annotations

import hashlib
import http.client
import itertools
import json
import pickle
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.kit.attack import WAIT_SECONDS
from tests.kit.brokerprocess import PATIENCE_SECONDS, until
from tests.kit.goodclient import HOST

Ask = Callable[[], None]
"""Asks once, and raises L{OSError} if the answer is not what it should be."""

_UPGRADE = (
    "GET {} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
_PIPELINED = 50


class Line:
    """A connection from the address of the client of good manners."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS, (HOST, 0))
        self._data = b""

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self.socket.sendall(data)

    def until(self, end: bytes) -> bytes:
        """Receive up to C{end}, with it."""
        while end not in self._data:
            self._receive()
        return self.exactly(self._data.index(end) + len(end))

    def exactly(self, count: int) -> bytes:
        """Receive so many bytes."""
        while len(self._data) < count:
            self._receive()
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def _receive(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("closed")
        self._data += data


def upgrade(port: int, path: str = "/") -> bytes:
    """What begins a websocket."""
    return _UPGRADE.format(path, port).encode()


def frame(payload: bytes, isText: bool = True) -> bytes:
    """A message of a client, under a mask of zeros."""
    size, kind = len(payload), 0x81 if isText else 0x82
    if size < 126:
        head = struct.pack("!BB", kind, 0x80 | size)
    else:
        head = struct.pack(*(("!BBH", kind, 0xFE, size) if size < 1 << 16 else ("!BBQ", kind, 0xFF, size)))
    return head + bytes(4) + payload


class WebSocket(Line):
    """A websocket."""

    def __init__(self, port: int, path: str = "/") -> None:
        super().__init__(port)
        self.send(upgrade(port, path))
        if b" 101 " not in self.until(b"\r\n\r\n"):
            raise ConnectionError("not upgraded")

    def message(self) -> bytes:
        """Receive a message."""
        size = self.exactly(2)[1]
        if size > 125:
            (size,) = struct.unpack("!H", self.exactly(2)) if size == 126 else struct.unpack("!Q", self.exactly(8))
        return self.exactly(size)


def told(data: bytes) -> str:
    """Something long, to compare."""
    return f"{len(data)} bytes, {hashlib.sha1(data).hexdigest()[:8]}"


def expect(isSo: bool, what: str) -> None:
    """Raise if it is not so."""
    if not isSo:
        raise ConnectionError(what)


def asksPage(path: str) -> Callable[[int], Ask]:
    """Asks for a small page."""

    def connected(port: int) -> Ask:
        client = http.client.HTTPConnection("127.0.0.1", port, WAIT_SECONDS, (HOST, 0))

        def ask() -> None:
            client.request("GET", path)
            answer = client.getresponse()
            answer.read()
            expect(answer.status == 200, str(answer.status))

        return ask

    return connected


def asked(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """An answer of a site: its status and its body."""
    client = http.client.HTTPConnection("127.0.0.1", port, PATIENCE_SECONDS)
    client.request(method, path, body, headers)
    answer = client.getresponse()
    return answer.status, answer.read()


def form(**fields: bytes) -> bytes:
    """The body of a form, with the boundary that L{MULTIPART <tests.attacks.siteattacks.MULTIPART>} announces."""
    parts = (
        b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)
        for name, value in fields.items()
    )
    return b"".join(parts) + b"--b--\r\n"


def usesSite(*pages: str, uploads: Sequence[tuple[str, bytes, str]] = ()) -> Callable[[int], Iterator[str]]:
    """
    Fetches, uploads, asks for many pages at once, and hangs up.

    @param uploads: the path, the body and the type of each.
    """

    def use(port: int) -> Iterator[str]:
        for path in pages:
            status, body = asked(port, "GET", path)
            yield f"GET {path}: {status}, {told(body)}"
        for path, uploaded, kind in uploads:
            status, body = asked(port, "POST", path, uploaded, **{"Content-Type": kind})
            yield f"POST of {len(uploaded)} bytes to {path}: {status}, {told(body)}"
        line = Line(port)
        line.send(f"GET {pages[0]} HTTP/1.1\r\nHost: a\r\n\r\n".encode() * _PIPELINED)
        yield f"pipelined: {sum(line.until(b'HTTP/1.1 200').endswith(b'200') for _ in range(_PIPELINED))}"
        line.send(f"GET {pages[-1]} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        line.socket.close()
        yield f"after a hang-up: {asked(port, 'GET', pages[0])[0]}"

    return use


def usesBuildbot(port: int, workerPort: int) -> Iterator[str]:
    """Has a worker that comes by its own port build something that prints much, and reads the log."""

    def told_(path: str) -> Any:
        return json.loads(asked(port, "GET", f"/api/v2/{path}")[1])

    order = {"id": 1, "jsonrpc": "2.0", "method": "force", "params": {"builderid": 1}}
    kind = {"Content-Type": "application/json"}
    yield f"force: {asked(port, 'POST', '/api/v2/forceschedulers/force', json.dumps(order).encode(), **kind)[0]}"
    builds: list[Any] = []
    while not any(each["complete"] for each in builds):
        # Not more often: asked while it builds, it forgets to answer now and then, protected or not.
        time.sleep(2.0)
        builds = told_("builds")["builds"]
    yield f"results: {builds[0]['results']}"
    status, log = asked(port, "GET", "/api/v2/logs/1/raw")
    yield f"log: {status}, {len(log) // 100_000} times 100 kB"
    yield from usesSite("/api/v2/builders")(port)


def usesMatrix(port: int) -> Iterator[str]:
    """Signs up, uploads a picture, and fetches it."""
    account = {"auth": {"type": "m.login.dummy"}, "username": "a", "password": secrets.token_hex()}
    status, answer = asked(port, "POST", "/_matrix/client/v3/register", json.dumps(account).encode())
    yield f"register: {status}"
    token = {"Authorization": f"Bearer {json.loads(answer)['access_token']}"}
    status, answer = asked(port, "POST", "/_matrix/media/v3/upload", bytes(12 << 20), **token)
    yield f"upload: {status}"
    uri = json.loads(answer)["content_uri"].removeprefix("mxc://")
    status, picture = asked(port, "GET", f"/_matrix/client/v1/media/download/{uri}", **token)
    yield f"download: {status}, {told(picture)}"
    yield from usesSite("/_matrix/client/versions")(port)


def asksEcho(port: int) -> Ask:
    """Sends a message of a websocket, which comes back."""
    client = WebSocket(port)

    def ask() -> None:
        client.send(frame(b"hello"))
        expect(client.message() == b"hello", "no echo")

    return ask


def usesEcho(port: int) -> Iterator[str]:
    """Messages of many sizes, there and back."""
    for size in (1, 125, 126, 65_536, 1 << 20):
        client = WebSocket(port)
        client.send(frame(b"x" * size))
        yield f"echo of {size}: {told(client.message())}"


def inMailbox(name: str) -> bytes:
    """What opens a mailbox of a wormhole."""
    opening = ({"type": "bind", "appid": "a", "side": name}, {"type": "open", "mailbox": "m"})
    return b"".join(frame(json.dumps({**each, "id": "0"}).encode()) for each in opening)


def added(sizeBytes: int) -> bytes:
    """A message for a mailbox."""
    return frame(json.dumps({"type": "add", "phase": "p", "body": "ab" * (sizeBytes // 2), "id": "0"}).encode())


def asksMailbox(port: int) -> Ask:
    """Asks whether the server is there."""
    client = WebSocket(port, "/v1")

    def ask() -> None:
        client.send(frame(b'{"type": "ping", "ping": 1, "id": "0"}'))
        while b'"pong"' not in client.message():
            pass

    return ask


def usesMailbox(port: int) -> Iterator[str]:
    """Two sides, and messages from one to the other."""
    sides = [WebSocket(port, "/v1") for _ in range(2)]
    for name, side in zip("xy", sides, strict=True):
        side.send(inMailbox(name))
    for size in (10, 1000, 500_000):
        sides[0].send(added(size))
        while b'"message"' not in (message := sides[1].message()):
            pass
        yield f"message of {size}: {told(json.loads(message)['body'].encode())}"


_numbers = itertools.count()


def meeting(side: int, number: int) -> bytes:
    """What joins two connections at a transit relay."""
    return b"please relay %064x for side %016x\n" % (number, side)


def _pair(port: int) -> list[Line]:
    sides, number = [Line(port), Line(port)], (1 << 60) + next(_numbers)
    for side, line in enumerate(sides):
        line.send(meeting(side, number))
    for line in sides:
        expect(line.until(b"\n") == b"ok\n", "not joined")
    return sides


def asksRelay(port: int) -> Ask:
    """Sends a kilobyte from one side to the other."""
    sides = _pair(port)

    def ask() -> None:
        sides[0].send(bytes(1000))
        sides[1].exactly(1000)

    return ask


def usesRelay(port: int, webSocketPort: int) -> Iterator[str]:
    """Many kilobytes there and back, and a hang-up that the other side notices."""
    sides = _pair(port)
    for sender, receiver in (sides, sides[::-1]):
        for _ in range(32):
            sender.send(bytes(1 << 19))
            yield told(receiver.exactly(1 << 19))
    sides[0].socket.close()
    yield f"hang-up noticed: {sides[1].socket.recv(1) == b''}"
    sides = [WebSocket(webSocketPort), WebSocket(webSocketPort)]
    for side, line in enumerate(sides):
        line.send(frame(meeting(side, 1), isText=False))
    for line in sides:
        expect(line.message() == b"ok\n", "not joined")
    sides[0].send(frame(bytes(1 << 20), isText=False))
    yield told(sides[1].message())


def asksVersion(port: int) -> Ask:
    """Connects, and waits for the version of SSH."""

    def ask() -> None:
        line = Line(port)
        line.until(b"SSH-2.0-")
        line.socket.close()

    return ask


def _queried(line: Line, metric: str) -> bytes:
    request = pickle.dumps({"type": "cache-query", "metric": metric}, 2)
    line.send(struct.pack("!I", len(request)) + request)
    return line.exactly(*struct.unpack("!I", line.exactly(4)))


def asksCache(port: int) -> Ask:
    """Asks for what is known of a metric."""
    line = Line(port)
    return lambda: expect(b"datapoints" in _queried(line, "none"), "no answer")


def pickled(metrics: Iterator[str]) -> bytes:
    """Points of metrics as carbon's relays send them."""
    data = pickle.dumps([(metric, (1, 1.0)) for metric in metrics], 2)
    return struct.pack("!I", len(data)) + data


def usesCarbon(port: int, linePort: int, picklePort: int) -> Iterator[str]:
    """Points by line and by pickle, which the cache then has."""
    line = Line(linePort)
    line.send(b"".join(b"some.line%d %d 1\n" % (each, each) for each in range(3000)))
    Line(picklePort).send(pickled(f"some.pickle{each}" for each in range(300)))
    line = Line(port)
    for metric in ("some.line2999", "some.pickle299"):
        until(lambda: pickle.loads(_queried(line, metric))["datapoints"])  # noqa: B023
        yield metric

"""
What is done to a site: the table of the attacks.

C{python -m tests.attacks.siteattacks NAME PORT TLSPORT} says that it begins, does it until its standard input ends, and
then prints what the attackers have seen, as JSON.  An attacker that is cut off comes again.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import hyperframe.frame
from attrs import frozen

from tests.kit.attack import MIB, sized

_CUT_BYTES = 64 << 10
_TURN_SECONDS = 0.005
_FRAME_BYTES = 16 << 10
_PATIENCE_SECONDS = 5.0
"""For how long a connection of HTTP/2 tries to send something before it gives up."""

PROMISED_SECONDS = 0.1
_OF_LARGE_HEADS_SECONDS = 0.2
"""
For how long a client of good manners may wait, in one of a hundred answers.  Twisted takes two milliseconds for a head
of hundreds of headers, with either server, and those that hold memory with such heads are cut off and come again at
once.
"""

_ANEW_SECONDS = 0.1
"""After which time at the earliest the same client connects anew."""

CUT_OFF = "cut off"
"""What is counted of connections that the site has ended, but for those that it says it ends."""

SEEN: Counter[str] = Counter()
"""What the attackers have seen of refusals: classes of status, and L{CUT_OFF}."""

Bytes = Iterator[bytes]


def isCutOff(client: socket.socket) -> bool:
    """Whether the site has cut a connection off of which nothing is read: the kernel tells all the same."""
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1


def post(sizeBytes: int, contentType: str = "application/octet-stream") -> bytes:
    """The head of a request with a body."""
    return f"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: {contentType}\r\nContent-Length: {sizeBytes}\r\n\r\n".encode()


def get(path: str) -> bytes:
    """A request without one."""
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


def with_(request: bytes, headers: int) -> bytes:
    """The same request with that many headers more."""
    return request.replace(b"\r\n\r\n", b"\r\n" + b"".join(b"X%d: y\r\n" % each for each in range(headers)) + b"\r\n")


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
MULTIPART = "multipart/form-data; boundary=b"
FORM = "application/x-www-form-urlencoded"


def _cut(data: bytes) -> Bytes:
    return (data[start : start + _CUT_BYTES] for start in range(0, len(data), _CUT_BYTES))


def nearly(sizeBytes: int) -> Bytes:
    """All of a body but its last byte."""
    return itertools.chain([post(sizeBytes)], _cut(bytes(sizeBytes - 1)))


def uploads(sizeBytes: int, contentType: str = "application/octet-stream") -> Bytes:
    """Whole bodies, one after another."""
    body = bytes(sizeBytes)
    if contentType == MULTIPART:
        body = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + body + b"\r\n--b--\r\n"
    return again(post(len(body), contentType) + body)


def again(data: bytes) -> Bytes:
    """The same without end."""
    return itertools.chain.from_iterable(_cut(data) for _ in itertools.count())


def parts(count: int) -> Bytes:
    """Forms of many empty parts."""
    body = b"".join(b'--b\r\nContent-Disposition: form-data; name="%d"\r\n\r\n\r\n' % each for each in range(count))
    body += b"--b--\r\n"
    return again(post(len(body), MULTIPART) + body)


def fields(count: int) -> Bytes:
    """Forms of many fields of a byte."""
    body = b"&".join(b"%x=1" % each for each in range(count))
    return again(post(len(body), FORM) + body)


def chunks(sizeBytes: int) -> Bytes:
    """A body in chunks that has no end."""
    chunk = b"%x\r\n%b\r\n" % (sizeBytes, bytes(sizeBytes))
    return itertools.chain([CHUNKED], again(chunk * max(1, _CUT_BYTES // len(chunk))))


def slowHead() -> Bytes:
    """A head of which a byte comes now and then."""
    yield b"GET / HTTP/1.1\r\nHost: a\r\nX: "
    while True:
        for _ in range(200):
            yield b""
        yield b"x"


@frozen
class Attack:
    """
    What many clients send by HTTP/1.1.

    @ivar sends: what each sends, in pieces; afterwards it is silent.
    @ivar clients: how many there are.
    @ivar addresses: at how many addresses.
    @ivar isReading: whether they read what they are answered.
    @ivar explained: by what the refusals of the site are explained: some of each sentence in its log, or a class of
        status that it counts.
    @ivar quota: the policies of the site.
    @ivar promisedSeconds: for how long a client of good manners may wait.
    """

    sends: Callable[[], Bytes]
    clients: int
    addresses: int = 1
    isReading: bool = True
    explained: Sequence[str] = ()
    quota: Collection[str] = ()
    promisedSeconds: float = PROMISED_SECONDS

    def run(self, port: int, tlsPort: int) -> None:
        """Do it."""
        clients = [_Client(self, port, f"127.0.0.{3 + each % self.addresses}") for each in range(self.clients)]
        while True:
            for client in clients:
                client.turn()
            time.sleep(_TURN_SECONDS)


class _Client:
    def __init__(self, attack: Attack, port: int, host: str) -> None:
        self._attack, self._port, self._host = attack, port, host
        self._socket: socket.socket | None = None
        self._notBefore = 0.0

    def turn(self) -> None:
        """Connect, or send and read what there is now."""
        try:
            if self._socket is None:
                self._connect()
            else:
                self._exchange(self._socket)
        except BlockingIOError:
            pass
        except OSError:
            self._gone(CUT_OFF)

    def _connect(self) -> None:
        now = time.monotonic()
        if now < self._notBefore:
            return
        self._notBefore = now + _ANEW_SECONDS
        self._socket = socket.socket()
        if not self._attack.isReading:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.bind((self._host, 0))
        self._socket.settimeout(1.0)
        self._socket.connect(("127.0.0.1", self._port))
        self._socket.setblocking(False)
        self._pieces, self._piece = self._attack.sends(), b""
        self._isLast = False

    def _exchange(self, client: socket.socket) -> None:
        if self._attack.isReading:
            try:
                while data := client.recv(1 << 20):
                    self._read(data)
                if not data:
                    self._gone(None if self._isLast else CUT_OFF)
                    return
            except BlockingIOError:
                pass
        elif isCutOff(client):
            self._gone(CUT_OFF)
            return
        # A few at a time, for the others' sake.
        for _ in range(8):
            if not self._piece:
                self._piece = next(self._pieces, b"")
                if not self._piece:
                    return
            self._piece = self._piece[client.send(self._piece) :]

    def _read(self, data: bytes) -> None:
        for status in ("4xx", "5xx"):
            count = data.count(b"HTTP/1.1 " + status[:1].encode())
            if count:
                SEEN[status] += count
        self._isLast = self._isLast or b"Connection: close" in data

    def _gone(self, how: str | None) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            if how is not None:
                SEEN[how] += 1


_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_CONTEXT.check_hostname, _CONTEXT.verify_mode = False, ssl.CERT_NONE
_CONTEXT.set_alpn_protocols(["h2"])


class _Http2Client:
    """A connection of HTTP/2, which does what a function says."""

    def __init__(self, tlsPort: int, windowBytes: int) -> None:
        client = socket.create_connection(("127.0.0.1", tlsPort), 5.0, ("127.0.0.3", 0))
        self.socket = _CONTEXT.wrap_socket(client)
        self.conn = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self.conn.initiate_connection()
        self.conn.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: windowBytes})
        self.readSeconds = 0.05
        self.flush()

    def ask(self, method: str, path: str, *headers: tuple[str, str], isWhole: bool = True) -> int:
        """
        Begin a request.

        @return: its stream.
        """
        stream = self.conn.get_next_available_stream_id()
        head = [(":method", method), (":path", path), (":scheme", "https"), (":authority", "a"), *headers]
        self.conn.send_headers(stream, head, end_stream=isWhole)
        return stream

    def flush(self) -> None:
        """Send what was begun."""
        self.socket.settimeout(_PATIENCE_SECONDS)
        self.socket.sendall(self.conn.data_to_send())

    def read(self) -> None:
        """Take what came, and answer what has to be answered."""
        self.socket.settimeout(self.readSeconds)
        try:
            self._take()
        except TimeoutError:
            return
        self.flush()

    def _take(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("cut off")
        for event in self.conn.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                status = dict(event.headers)[b":status"]
                if status >= b"400":
                    SEEN[f"{status[:1].decode()}xx"] += 1

    def flood(self, data: bytes, isReading: bool = False) -> None:
        """Send the same without end, whether or not it is taken."""
        self.socket.setblocking(False)
        rest = b""
        while isReading or not isCutOff(self.socket):
            rest = rest or data
            try:
                rest = rest[self.socket.send(rest) :]
                while isReading:
                    self._take()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                time.sleep(_TURN_SECONDS)
        raise ConnectionError("cut off")


def raw(*frames: hyperframe.frame.Frame) -> bytes:
    """Frames that are made by hand."""
    return b"".join(each.serialize() for each in frames)


def headWithoutEnd(client: _Http2Client) -> None:
    """As much of a head as there may be frames, which is a MiB, and no end of it."""
    client.socket.settimeout(_PATIENCE_SECONDS)
    client.socket.sendall(raw(hyperframe.frame.HeadersFrame(1, bytes(_FRAME_BYTES))))
    for _ in range(62):
        client.socket.sendall(raw(hyperframe.frame.ContinuationFrame(1, bytes(_FRAME_BYTES))))
    while True:
        client.read()


def continuations(client: _Http2Client) -> None:
    """A head that has no end."""
    client.socket.sendall(raw(hyperframe.frame.HeadersFrame(1, b"x")))
    client.flood(raw(hyperframe.frame.ContinuationFrame(1, b"x")) * 1000)


def pings(client: _Http2Client) -> None:
    """What has to be answered."""
    client.flood(raw(hyperframe.frame.PingFrame(0, b"12345678")) * 1000)


def readPings(client: _Http2Client) -> None:
    """The same, and the answers are read."""
    client.flood(raw(hyperframe.frame.PingFrame(0, b"12345678")) * 1000, isReading=True)


def settings(client: _Http2Client) -> None:
    """The same with settings."""
    frame = hyperframe.frame.SettingsFrame(0, {hyperframe.frame.SettingsFrame.INITIAL_WINDOW_SIZE: 10})
    client.flood(raw(frame) * 1000)


def unread(client: _Http2Client) -> None:
    """Open the windows wide, ask for much, and read none of it."""
    client.conn.increment_flow_control_window(1 << 30)
    for _ in range(60):
        client.ask("GET", "/middle")
    client.flush()
    client.flood(b"")


def priorities(client: _Http2Client) -> None:
    """Give streams that do not exist a priority."""
    for first in itertools.count(1, 2000):
        frames = [hyperframe.frame.PriorityFrame(each) for each in range(first, first + 2000, 2)]
        client.socket.settimeout(_PATIENCE_SECONDS)
        client.socket.sendall(raw(*frames))


def emptyData(client: _Http2Client) -> None:
    """A body of pieces that are empty."""
    stream = client.ask("POST", "/", isWhole=False)
    client.flush()
    client.flood(raw(hyperframe.frame.DataFrame(stream)) * 1000, isReading=True)


def shutWindows(client: _Http2Client) -> None:
    """Ask for much, and open no window."""
    for _ in range(60):
        client.ask("GET", "/middle")
    client.flush()
    while True:
        client.read()


def rapidReset(client: _Http2Client) -> None:
    """Ask, and take it back when it has been taken up."""
    client.readSeconds = _TURN_SECONDS
    while True:
        asked = [client.ask("GET", "/middle") for _ in range(50)]
        client.flush()
        client.read()
        for stream in asked:
            client.conn.reset_stream(stream)
        client.flush()
        client.read()


def resetAtOnce(client: _Http2Client) -> None:
    """Ask, and take it back in the same write."""
    while True:
        for _ in range(50):
            client.conn.reset_stream(client.ask("GET", "/middle"))
        client.flush()
        client.read()


def announcedStreams(client: _Http2Client) -> None:
    """Announce bodies, and send no more than the windows allow without the last byte."""
    for _ in range(90):
        client.ask("POST", "/", ("content-length", str(MIB)), isWhole=False)
    client.flush()
    while True:
        client.read()


def largeHeads(client: _Http2Client) -> None:
    """Requests with as many headers as are taken."""
    headers = [(f"x-{each}", "y" * 30) for each in range(400)]
    while True:
        client.ask("GET", "/", *headers)
        client.flush()
        client.read()


def openStreams(client: _Http2Client) -> None:
    """Large heads of requests whose bodies never come."""
    headers = [(f"x-{each}", "y") for each in range(700)]
    for each in range(90):
        client.ask("POST" if each % 2 else "GET", "/", *headers, isWhole=False)
        client.flush()
    while True:
        client.read()


def smallAnswers(client: _Http2Client) -> None:
    """Small answers, none of which is taken."""
    for _ in range(90):
        client.ask("GET", "/")
    client.flush()
    while True:
        client.read()


@frozen
class Http2Attack:
    """
    What some connections do by HTTP/2.

    @ivar does: what each does.
    @ivar clients: how many there are.
    @ivar windowBytes: the windows of their streams.
    @ivar explained: see L{Attack}.
    @ivar quota: see L{Attack}.
    @ivar anewSeconds: after which time the same client connects anew.
    @ivar promisedSeconds: see L{Attack}.
    """

    does: Callable[[_Http2Client], None]
    clients: int
    windowBytes: int = 0
    explained: Sequence[str] = ()
    quota: Collection[str] = ()
    anewSeconds: float = _ANEW_SECONDS
    promisedSeconds: float = PROMISED_SECONDS

    def run(self, port: int, tlsPort: int) -> None:
        """Do it."""
        for _ in range(self.clients):
            threading.Thread(target=self._again, args=(tlsPort,)).start()

    def _again(self, tlsPort: int) -> None:
        while True:
            try:
                self.does(_Http2Client(tlsPort, self.windowBytes))
            except (TimeoutError, h2.exceptions.H2Error):
                # It does not go on, such as when it has as many streams as it may.
                time.sleep(self.anewSeconds)
            except OSError:
                SEEN[CUT_OFF] += 1
                time.sleep(self.anewSeconds)


_SLOW = ("others wait for the memory that it has for them",)
_UNREAD = ("memory is short, and the peer does not take its responses",)
_REFUSED = ("4xx",)
_NOT_STOPPED = ("although it is not read",)
_CONTROL = ("control frame bytes buffered",)
_SHORT = ("5xx",)
_RESETS = ("Too many stream resets",)

ATTACKS: dict[str, Attack | Http2Attack] = {
    "announced": Attack(lambda: iter([post(MIB)]), sized(80, 300), explained=_SLOW),
    "announced, 30 addresses": Attack(lambda: iter([post(MIB)]), sized(80, 300), 30, explained=_SLOW),
    "all but a byte": Attack(lambda: nearly(MIB), sized(80, 150), 30, explained=_SLOW),
    "small bodies, all but a byte": Attack(lambda: nearly(99_999), sized(300, 900), 30, explained=_SLOW),
    "uploads of 48 MiB": Attack(lambda: uploads(48 * MIB), 6),
    "forms of 48 MiB": Attack(lambda: uploads(48 * MIB, MULTIPART), 6, explained=_REFUSED),
    "forms of 16 MiB": Attack(lambda: uploads(16 * MIB, MULTIPART), 6, explained=_REFUSED),
    "forms of many parts": Attack(lambda: parts(sized(5_000, 60_000)), sized(2, 6), explained=_REFUSED + _NOT_STOPPED),
    "forms of many fields": Attack(lambda: fields(sized(30_000, 500_000)), sized(2, 6), explained=_REFUSED),
    "chunks without end": Attack(lambda: chunks(32 << 10), 8, explained=_REFUSED),
    "chunks of a byte": Attack(lambda: chunks(1), 8),
    "slow heads": Attack(slowHead, sized(100, 900), 4),
    "silent readers": Attack(lambda: iter([get("/large")]), sized(20, 60), isReading=False, explained=_UNREAD),
    "silent readers, 30 addresses": Attack(
        lambda: iter([get("/large")]), sized(20, 60), 30, isReading=False, explained=_UNREAD
    ),
    "silent readers after a small answer": Attack(
        lambda: iter([get("/"), get("/large")]), sized(20, 60), 30, isReading=False, explained=_UNREAD
    ),
    "pipelined": Attack(lambda: again(get("/") * 2000), 8),
    "pipelined, over a rate": Attack(
        lambda: again(get("/") * 2000), 8, explained=_REFUSED, quota=("requests:rate=50:burst=50",)
    ),
    "pipelined, unread": Attack(
        lambda: again(get("/large") * 20), 8, isReading=False, explained=(*_UNREAD, "and more is written")
    ),
    "large heads": Attack(lambda: again(with_(get("/"), 450)), 8),
    "large heads, announced": Attack(
        lambda: iter([with_(post(1000), 450)]),
        sized(300, 900),
        30,
        explained=_SLOW,
        promisedSeconds=_OF_LARGE_HEADS_SECONDS,
    ),
    "HTTP/2, windows of zero": Http2Attack(shutWindows, 2, explained=_UNREAD),
    "HTTP/2, asked and reset": Http2Attack(rapidReset, 3, explained=_UNREAD + _RESETS),
    "HTTP/2, asked and reset at once": Http2Attack(resetAtOnce, 3, explained=_RESETS),
    "HTTP/2, announced": Http2Attack(announcedStreams, 3, explained=_SHORT + _SLOW),
    "HTTP/2, large heads": Http2Attack(largeHeads, 3, 65_535),
    # Not so often that it is a flood of handshakes.
    "HTTP/2, heads without end": Http2Attack(
        headWithoutEnd, sized(80, 200), explained=("have come without its end",), anewSeconds=4.0
    ),
    "HTTP/2, streams of large heads": Http2Attack(
        openStreams,
        sized(20, 60),
        explained=_SHORT + _SLOW + _UNREAD,
        anewSeconds=4.0,
        promisedSeconds=_OF_LARGE_HEADS_SECONDS,
    ),
    "HTTP/2, small answers, windows of zero": Http2Attack(smallAnswers, sized(20, 60), anewSeconds=4.0),
    "HTTP/2, continuations": Http2Attack(continuations, 8, explained=("Too many continuation frames",)),
    "HTTP/2, pings": Http2Attack(pings, 8, explained=_CONTROL),
    "HTTP/2, pings, read": Http2Attack(readPings, 8, explained=_CONTROL),
    "HTTP/2, settings": Http2Attack(settings, 8, explained=_CONTROL),
    "HTTP/2, unread": Http2Attack(unread, 3, 1 << 30, explained=_UNREAD),
    "HTTP/2, priorities": Http2Attack(priorities, 3, explained=("into priority tree",)),
    "HTTP/2, empty data": Http2Attack(emptyData, 8),
}
"""By name."""


def _tellAtEnd() -> None:
    sys.stdin.read()
    print(json.dumps(SEEN), flush=True)
    os._exit(0)


if __name__ == "__main__":
    print("begun", flush=True)
    threading.Thread(target=_tellAtEnd, daemon=True).start()
    ATTACKS[sys.argv[1]].run(int(sys.argv[2]), int(sys.argv[3]))

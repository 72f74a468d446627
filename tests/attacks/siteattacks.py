"""
What is done to a site: the table of the attacks.

C{python -m tests.attacks.siteattacks NAME PORT TLSPORT} does it until it is killed.  Who is cut off comes again.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator

import h2.config
import h2.connection
import h2.exceptions
import h2.settings
from attrs import frozen

from tests.kit.attack import MIB, sized

_CUT_BYTES = 64 << 10
_TURN_SECONDS = 0.005
_ANEW_SECONDS = 0.1
"""After which time at the earliest the same client connects anew."""

Bytes = Iterator[bytes]


def post(sizeBytes: int, contentType: str = "application/octet-stream") -> bytes:
    """The head of a request with a body."""
    return f"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: {contentType}\r\nContent-Length: {sizeBytes}\r\n\r\n".encode()


def get(path: str) -> bytes:
    """A request without one."""
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


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
    """

    sends: Callable[[], Bytes]
    clients: int
    addresses: int = 1
    isReading: bool = True

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
            self._gone()

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

    def _exchange(self, client: socket.socket) -> None:
        if self._attack.isReading:
            try:
                while data := client.recv(1 << 20):
                    pass
                if not data:
                    self._gone()
                    return
            except BlockingIOError:
                pass
        elif client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1:
            # The kernel tells that it was cut off, although nothing is read.
            self._gone()
            return
        # A few at a time, for the others' sake.
        for _ in range(8):
            if not self._piece:
                self._piece = next(self._pieces, b"")
                if not self._piece:
                    return
            self._piece = self._piece[client.send(self._piece) :]

    def _gone(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Http2Client:
    """A connection of HTTP/2, which does what a function says."""

    def __init__(self, tlsPort: int, windowBytes: int) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        client = socket.create_connection(("127.0.0.1", tlsPort), 5.0, ("127.0.0.3", 0))
        self.socket = context.wrap_socket(client)
        self.conn = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self.conn.initiate_connection()
        self.conn.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: windowBytes})
        self.flush()
        self.socket.settimeout(0.05)

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
        self.socket.sendall(self.conn.data_to_send())

    def read(self) -> None:
        """Take what came, and answer what has to be answered."""
        try:
            data = self.socket.recv(1 << 18)
        except TimeoutError:
            return
        if not data:
            raise ConnectionError("cut off")
        self.conn.receive_data(data)
        self.flush()


def shutWindows(client: _Http2Client) -> None:
    """Ask for much, and open no window."""
    for _ in range(60):
        client.ask("GET", "/middle")
    client.flush()
    while True:
        client.read()


def rapidReset(client: _Http2Client) -> None:
    """Ask, and take it back when it has been taken up."""
    client.socket.settimeout(_TURN_SECONDS)
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


@frozen
class Http2Attack:
    """
    What some connections do by HTTP/2.

    @ivar does: what each does.
    @ivar clients: how many there are.
    @ivar windowBytes: the windows of their streams.
    """

    does: Callable[[_Http2Client], None]
    clients: int
    windowBytes: int = 0

    def run(self, port: int, tlsPort: int) -> None:
        """Do it."""
        for _ in range(self.clients):
            threading.Thread(target=self._again, args=(tlsPort,)).start()

    def _again(self, tlsPort: int) -> None:
        while True:
            try:
                self.does(_Http2Client(tlsPort, self.windowBytes))
            except (OSError, h2.exceptions.H2Error):
                time.sleep(_ANEW_SECONDS)


ATTACKS: dict[str, Attack | Http2Attack] = {
    "announced": Attack(lambda: iter([post(MIB)]), sized(80, 300)),
    "announced, 30 addresses": Attack(lambda: iter([post(MIB)]), sized(80, 300), 30),
    "all but a byte": Attack(lambda: nearly(MIB), sized(80, 150), 30),
    "small bodies, all but a byte": Attack(lambda: nearly(99_999), sized(300, 900), 30),
    "uploads of 48 MiB": Attack(lambda: uploads(48 * MIB), 6),
    "forms of 48 MiB": Attack(lambda: uploads(48 * MIB, MULTIPART), 6),
    "forms of 16 MiB": Attack(lambda: uploads(16 * MIB, MULTIPART), 6),
    "forms of many parts": Attack(lambda: parts(sized(5_000, 60_000)), sized(2, 6)),
    "forms of many fields": Attack(lambda: fields(sized(30_000, 500_000)), sized(2, 6)),
    "chunks without end": Attack(lambda: chunks(32 << 10), 8),
    "chunks of a byte": Attack(lambda: chunks(1), 8),
    "slow heads": Attack(slowHead, sized(100, 900), 4),
    "silent readers": Attack(lambda: iter([get("/large")]), sized(20, 60), isReading=False),
    "silent readers, 30 addresses": Attack(lambda: iter([get("/large")]), sized(20, 60), 30, isReading=False),
    "pipelined": Attack(lambda: again(get("/") * 2000), 8),
    "pipelined, unread": Attack(lambda: again(get("/large") * 20), 8, isReading=False),
    "large heads": Attack(lambda: again(get("/").replace(b"\r\n\r\n", b"\r\n" + b"X: y\r\n" * 450 + b"\r\n")), 8),
    "HTTP/2, windows of zero": Http2Attack(shutWindows, 2),
    "HTTP/2, asked and reset": Http2Attack(rapidReset, 3),
    "HTTP/2, asked and reset at once": Http2Attack(resetAtOnce, 3),
    "HTTP/2, announced": Http2Attack(announcedStreams, 3),
    "HTTP/2, large heads": Http2Attack(largeHeads, 3, 65_535),
}
"""By name."""

if __name__ == "__main__":
    ATTACKS[sys.argv[1]].run(int(sys.argv[2]), int(sys.argv[3]))

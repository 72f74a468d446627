"""
Loads for a gateway, to be run in a process of their own: see L{benchmarks.load.Loader}.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from selectors import EVENT_WRITE, DefaultSelector
from struct import Struct
from threading import Event, Thread

from attrs import evolve, frozen

from .load import PATIENCE_SECONDS, Cost, exchange
from .measure import cpuSecondsOf, wallSeconds

LISTENING_BYTES = 256 << 10
"""What the kernel may keep for a client that reads slowly."""

_LENGTH = Struct(">i")
_CORRELATION_AT = 8
_TICK_SECONDS = 0.01
_SAMPLE_SECONDS = 0.003
_FEW_BYTES = 64 << 10


@frozen
class SlowReading:
    """
    What came of reading slowly.

    @ivar growthBytes: how much the server grew, at most.
    @ivar receivedBytes: what was read, of all responses.
    @ivar seconds: how long that took.
    """

    growthBytes: int
    receivedBytes: int
    seconds: float


@frozen
class Steady:
    """
    What producers have seen.

    @ivar latencies: of each target, in seconds, from when a request was due.
    @ivar growthBytes: how much the server grew, at most.
    @ivar stuckBytes: what was sent to the node that does not answer.
    """

    latencies: Sequence[Sequence[float]]
    growthBytes: int
    stuckBytes: int


def anonymousBytesOf(pid: int) -> int:
    """
    The resident memory of a process that is not a file's.
    """
    with open(f"/proc/{pid}/status") as status:
        return sum(int(line.split()[1]) << 10 for line in status if line.startswith(("RssAnon:", "RssShmem:")))


class _Memory:
    """
    How much a process has grown.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = self._peak = anonymousBytesOf(pid)

    def look(self) -> None:
        self._peak = max(self._peak, anonymousBytesOf(self._pid))

    @property
    def growthBytes(self) -> int:
        return self._peak - self._before


def numbered(request: bytes, count: int) -> Iterator[bytes]:
    """
    The same request with the correlation ids 1 to C{count}, again and again.  No two in flight have the same if at most
    C{count} are.
    """
    before, after = request[:_CORRELATION_AT], request[_CORRELATION_AT + _LENGTH.size :]
    return cycle([b"".join((before, _LENGTH.pack(number), after)) for number in range(1, count + 1)])


def pipelined(pid: int, port: int, request: bytes, responseBytes: int, depth: int, count: int) -> Cost:
    """
    Send a request many times on one connection; see L{exchange}.
    """
    return exchange(pid, port, [numbered(request, depth)], responseBytes, depth, count)


def manyPipelined(
    pids: Sequence[int], port: int, request: bytes, responseBytes: int, connections: int, depth: int, count: int
) -> Cost:
    """
    The same on several connections, to a server of several processes.
    """
    before = sum(map(cpuSecondsOf, pids))
    cost = exchange(pids[0], port, [numbered(request, depth) for _ in range(connections)], responseBytes, depth, count)
    return evolve(cost, cpuSeconds=sum(map(cpuSecondsOf, pids)) - before)


def latencies(port: int, request: bytes, responseBytes: int, count: int) -> Sequence[float]:
    """
    How long each of some requests took that were sent one after another, in seconds.
    """
    taken = []
    with _Asking("127.0.0.1", port, responseBytes) as asking:
        for number, each in enumerate(numbered(request, 8)):
            if number > count:
                break
            began = wallSeconds()
            asking.ask(each)
            taken.append(wallSeconds() - began)
    # The first one paid for the connection.
    return taken[1:]


def readSlowly(pid: int, port: int, request: bytes, readers: int, bytesPerSecond: int, seconds: float) -> SlowReading:
    """
    Have clients send a request again and again, and read the responses at some speed.

    @param pid: the server whose memory counts.
    @param bytesPerSecond: of each.
    """
    with ExitStack() as stack:
        # Before it is asked: it may collect a response before it sends the first byte.
        memory = _Memory(pid)
        slow = [stack.enter_context(_SlowReader(port, request)) for _ in range(readers)]
        began = now = wallSeconds()
        while now - began < seconds:
            for reader in slow:
                reader.read(int(bytesPerSecond * (now - began)))
            memory.look()
            time.sleep(_TICK_SECONDS)
            now = wallSeconds()
    return SlowReading(memory.growthBytes, sum(reader.receivedBytes for reader in slow), now - began)


def produceSteadily(
    pid: int,
    targets: Sequence[tuple[str, int]],
    requests: Sequence[bytes],
    responseBytes: int,
    perSecond: int,
    seconds: float,
    stuckPort: int,
    stuckRequest: bytes,
    stuckConnections: int,
) -> Steady:
    """
    Have a producer for each target send as many requests a second as agreed; meanwhile others send as much as they can
    get rid of to a node that does not answer.

    @param pid: the server whose memory counts.
    @param requests: of each.
    @param perSecond: of each producer.
    @param stuckConnections: how many send to that node.
    """
    taken: list[list[float]] = [[] for _ in targets]
    failures: list[Exception] = []
    with ExitStack() as stack:
        asking = [stack.enter_context(_Asking(*target, responseBytes)) for target in targets]
        for one, request in zip(asking, requests, strict=True):
            one.ask(request)
        memory = _Memory(pid)
        stuck = stack.enter_context(_sendingInVain(stuckPort, stuckRequest, stuckConnections))
        began = wallSeconds()

        def produce(one: _Asking, request: bytes, into: list[float], shift: float) -> None:
            try:
                for number in range(int(seconds * perSecond)):
                    due = began + (number + shift) / perSecond
                    time.sleep(max(due - wallSeconds(), 0.0))
                    one.ask(request)
                    into.append(wallSeconds() - due)
            except Exception as error:
                failures.append(error)

        threads = [
            Thread(target=produce, args=(one, request, into, number / len(targets)))
            for number, (one, request, into) in enumerate(zip(asking, requests, taken, strict=True))
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            memory.look()
            time.sleep(_SAMPLE_SECONDS)
    if failures:
        raise failures[0]
    return Steady(taken, memory.growthBytes, sum(stuck))


class _Asking:
    """
    One connection that asks and awaits; blocking.
    """

    def __init__(self, host: str, port: int, responseBytes: int) -> None:
        self._responseBytes = responseBytes
        self._socket = socket.create_connection((host, port), timeout=PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> _Asking:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, request: bytes) -> None:
        self._socket.sendall(request)
        awaited = _LENGTH.size + self._responseBytes
        response = b""
        while len(response) < awaited:
            data = self._socket.recv(awaited - len(response))
            if not data:
                raise ConnectionError("the server has closed the connection")
            response += data
        if not response.startswith(_LENGTH.pack(self._responseBytes)):
            raise ConnectionError(f"a response is not as long as it must be: {response[:80]!r}")


class _SlowReader:
    """
    A client that asks the same again and again, and reads the responses when it is told to.

    @ivar receivedBytes: how much it has read since its first response began.
    """

    def __init__(self, port: int, request: bytes) -> None:
        self._request = request
        self._socket = socket.socket()
        # Before it is connected, or the kernel makes room for more.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LISTENING_BYTES)
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.connect(("127.0.0.1", port))
        self._socket.sendall(request)
        self._head = self._socket.recv(_LENGTH.size)
        self._leftBytes = 0
        self._socket.setblocking(False)
        self.receivedBytes = 0

    def __enter__(self) -> _SlowReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def read(self, dueBytes: int) -> None:
        """
        Read until C{dueBytes} have come in all, or nothing more is there.
        """
        while self.receivedBytes < dueBytes:
            if not self._leftBytes and len(self._head) == _LENGTH.size:
                (self._leftBytes,), self._head = _LENGTH.unpack(self._head), b""
            wantedBytes = self._leftBytes or _LENGTH.size - len(self._head)
            try:
                data = self._socket.recv(min(dueBytes - self.receivedBytes, wantedBytes, _FEW_BYTES))
            except BlockingIOError:
                return
            if not data:
                raise ConnectionError("the server has closed the connection")
            self.receivedBytes += len(data)
            if not self._leftBytes:
                self._head += data
                continue
            self._leftBytes -= len(data)
            if not self._leftBytes:
                self._socket.sendall(self._request)


@contextmanager
def _sendingInVain(port: int, request: bytes, connections: int) -> Iterator[list[int]]:
    """
    Send a request again and again on some connections for the duration of a block, which is given how many bytes each
    got rid of.
    """
    sentBytes = [0] * connections
    isOver = Event()

    def send() -> None:
        with DefaultSelector() as selector, ExitStack() as stack:
            for number in range(connections):
                one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS))
                one.setblocking(False)
                selector.register(one, EVENT_WRITE, number)
            while not isOver.is_set():
                for key, _ in selector.select(_TICK_SECONDS):
                    number = key.data
                    offset = sentBytes[number] % len(request)
                    with suppress(BlockingIOError):
                        try:
                            sentBytes[number] += key.fileobj.send(memoryview(request)[offset:])  # type: ignore[union-attr]
                        except ConnectionError:
                            selector.unregister(key.fileobj)
                if not selector.get_map():
                    return

    thread = Thread(target=send)
    thread.start()
    try:
        yield sentBytes
    finally:
        isOver.set()
        thread.join()

"""
What the framework is measured beside: the least that could do the same, and Twisted's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from importlib import import_module
from random import Random
from struct import Struct
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock, succeed
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.internet.task import deferLater
from twisted.protocols.basic import Int32StringReceiver
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from admission.clock import MonotonicClock, wallSeconds
from admission.connection.admitted import AdmittedProtocol
from admission.connection.factory import AdmittedFactory
from admission.connection.hangup import HangUpWatch
from admission.gate.gate import buildGate
from admission.interfaces import PolicyContext
from admission.kafka.broker.api import produceapi
from admission.kafka.broker.broker import Broker
from admission.kafka.serving.server import ANONYMOUS
from admission.kafka.wire.headers import RequestHeader, frame, parseRequestHeader
from admission.kafka.wire.produce import PartitionResult, encodeProduceResponse, parseProduce
from admission.kafka.wire.recordwalk import FoundRecord, RecordWalk
from admission.request import ServerRequest
from admission.timeslices import Steps
from admission_plugins.bounded import BoundedPool

LARGEST_FRAME_BYTES = 64 << 20

_LENGTH = Struct(">i")
_PAGE = bytes(1000)


def sendAtOnce(protocol: Protocol) -> None:
    """
    Have the kernel send small responses without delay, if there is a kernel.
    """
    transport: Any = protocol.transport
    if hasattr(transport, "setTcpNoDelay"):
        transport.setTcpNoDelay(True)


class Counting(Protocol):
    """
    Bare Twisted: counts bytes and looks at none of them.
    """

    receivedBytes = 0

    def dataReceived(self, data: bytes) -> None:
        """
        Count.
        """
        self.receivedBytes += len(data)


class Preallocating(Protocol):
    """
    The least that a framer must do: read the length, allocate, copy.
    """

    frames = 0

    def __init__(self) -> None:
        self._head = b""
        self._filled = 0
        self._body: memoryview | None = None

    def dataReceived(self, data: bytes) -> None:
        """
        Copy the bytes of frames to where they belong.
        """
        chunk = memoryview(data)
        offset, end = 0, len(data)
        while offset < end:
            if self._body is None:
                head = self._head + data[offset : offset + 4 - len(self._head)]
                offset += len(head) - len(self._head)
                if len(head) < 4:
                    self._head = head
                    return
                self._head = b""
                # Filled through a view: a slice of the bytearray itself would be assigned by way of a copy.
                self._body = memoryview(bytearray(_LENGTH.unpack(head)[0]))
                self._filled = 0
            body, filled = self._body, self._filled
            count = min(len(body) - filled, end - offset)
            body[filled : filled + count] = chunk[offset : offset + count]
            offset += count
            self._filled = filled + count
            if self._filled == len(body):
                self._body = None
                self.frameReceived(body)

    def frameReceived(self, body: memoryview) -> None:
        """
        A frame is whole.
        """
        self.frames += 1


class Strings(Int32StringReceiver):
    """
    Twisted's framer, allowed to receive what we receive.
    """

    MAX_LENGTH = LARGEST_FRAME_BYTES
    frames = 0

    def stringReceived(self, string: bytes) -> None:
        """
        A frame is whole.
        """
        self.frames += 1


class Admitted(AdmittedProtocol):
    """
    Our framer with everything around it: each frame is leased, gets a turn and is over.
    """

    frames = 0

    def requestReceived(self, request: ServerRequest) -> None:
        """
        A frame is whole.
        """
        self.frames += 1
        self.finish()


def admittedFactory(reactor: Any) -> AdmittedFactory:
    """
    Makes L{Admitted} connections to one gate.
    """
    clock = MonotonicClock(reactor)
    pool = BoundedPool(4 * LARGEST_FRAME_BYTES, LARGEST_FRAME_BYTES, seconds=clock.seconds)
    gate = buildGate(pool, PolicyContext(clock, wallSeconds, random=Random(0)))
    return AdmittedFactory(Admitted, gate, clock, HangUpWatch(reactor))


class Replying(Protocol):
    """
    Bare Twisted as a server: answers as soon as a request's number of bytes has come.
    """

    def __init__(self, requestBytes: int, response: bytes) -> None:
        self._requestBytes = requestBytes
        self._response = response
        self._receivedBytes = 0

    def connectionMade(self) -> None:
        """
        See L{sendAtOnce}.
        """
        sendAtOnce(self)

    def dataReceived(self, data: bytes) -> None:
        """
        Count, and answer.
        """
        count, self._receivedBytes = divmod(self._receivedBytes + len(data), self._requestBytes)
        if count:
            assert self.transport is not None
            self.transport.write(self._response * count)


def _goOver(walk: RecordWalk, times: tuple[int, int], memoryBytes: int) -> Steps[FoundRecord | None]:
    return (yield from walk.findOutside(*times))


class BareBroker(Preallocating):
    """
    Produce with the broker's codec and log, and nothing between them and the framer: no pool, no gate, no reasons to
    pause, no ledger, and as many requests of one connection at a time as come.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker

    def connectionMade(self) -> None:
        """
        See L{sendAtOnce}.
        """
        sendAtOnce(self)

    def frameReceived(self, body: memoryview) -> None:
        """
        Append, and answer once that is committed.
        """
        header = parseRequestHeader(body)
        request = parseProduce(body, header.bodyOffset, header.apiVersion)
        steps = produceapi.append(self._broker, request, ANONYMOUS, ANONYMOUS, False, _goOver)
        try:
            while True:
                next(steps)
        except StopIteration as end:
            results = end.value
        self._broker.log.whenCommitted(partial(self.produced, header, results))

    def produced(self, header: RequestHeader, results: list[PartitionResult], error: Exception | None) -> None:
        """
        It is committed.
        """
        if error is not None:
            raise error
        assert self.transport is not None
        self.transport.writeSequence(frame(header, [encodeProduceResponse(header.apiVersion, results)]))


class OrderlyBareBroker(BareBroker):
    """
    The same with one request of a connection at a time, as Kafka guarantees it.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._isBusy = False
        self._waiting: deque[memoryview] = deque()

    def frameReceived(self, body: memoryview) -> None:
        """
        Begin, or wait for the request before.
        """
        if self._isBusy:
            self._waiting.append(body)
        else:
            self._isBusy = True
            super().frameReceived(body)

    def produced(self, header: RequestHeader, results: list[PartitionResult], error: Exception | None) -> None:
        """
        It is committed; on to the next one.
        """
        super().produced(header, results, error)
        self._isBusy = False
        if self._waiting:
            self.frameReceived(self._waiting.popleft())


class Relaying(Protocol):
    """
    Bare Twisted: writes to a server what a client sends, and what the server answers to the client.  While one side
    does not read, the other is paused.
    """

    def __init__(self, reactor: Any, port: int) -> None:
        """
        @param port: where the server is.
        """
        self._reactor = reactor
        self._port = port
        self._server: Any = None

    def connectionMade(self) -> None:
        """
        Connect to the server; the client has to wait.
        """
        transport: Any = self.transport
        sendAtOnce(self)
        transport.pauseProducing()
        factory = ClientFactory()
        factory.noisy = False
        factory.buildProtocol = lambda address: RelayedTo(self)  # type: ignore[method-assign]
        self._reactor.connectTCP("127.0.0.1", self._port, factory)

    def serverConnected(self, server: Any) -> None:
        """
        There is a connection to the server.
        """
        transport: Any = self.transport
        self._server = server
        server.registerProducer(transport, True)
        transport.registerProducer(server, True)
        transport.resumeProducing()

    def dataReceived(self, data: bytes) -> None:
        """
        Pass bytes on.
        """
        self._server.write(data)

    def connectionLost(self, reason: object = None) -> None:
        """
        The client has gone.
        """
        if self._server is not None:
            self._server.unregisterProducer()
            self._server.loseConnection()


class RelayedTo(Protocol):
    """
    The server's side of L{Relaying}.
    """

    def __init__(self, client: Relaying) -> None:
        self._client = client

    def connectionMade(self) -> None:
        """
        Begin.
        """
        sendAtOnce(self)
        self._client.serverConnected(self.transport)

    def dataReceived(self, data: bytes) -> None:
        """
        Pass bytes back.
        """
        transport: Any = self._client.transport
        transport.write(data)

    def connectionLost(self, reason: object = None) -> None:
        """
        The server has gone.
        """
        transport: Any = self._client.transport
        transport.unregisterProducer()
        transport.loseConnection()


class Page(Resource):
    """
    Reads what comes and answers with a page of 1,000 bytes; C{/never} is not answered.
    """

    isLeaf = True

    def render(self, request: Any) -> Any:
        """
        Answer.
        """
        if request.path == b"/never":
            return NOT_DONE_YET
        request.content.read()
        request.setHeader(b"Content-Type", b"text/plain")
        return _PAGE


class OneAtATime(Resource):
    """
    Works on one request at a time, for as long as it is told, as if it waited for a database with one connection.
    """

    isLeaf = True

    def __init__(self, reactor: Any, workSeconds: float, looksForHangUps: bool) -> None:
        """
        @param looksForHangUps: whether the work of a client that has left by its turn is not begun.
        """
        super().__init__()
        self._reactor = reactor
        self._workSeconds = workSeconds
        self._looksForHangUps = looksForHangUps
        self._lock = DeferredLock()

    def render_GET(self, request: Any) -> int:
        """
        Answer when it has had its turn.
        """
        left: list[object] = []
        request.notifyFinish().addErrback(left.append)

        def work() -> Deferred[Any]:
            if left and self._looksForHangUps:
                return succeed(None)
            return deferLater(self._reactor, self._workSeconds)

        def answer(_: object) -> None:
            if not left:
                request.write(b"done")
                request.finish()

        self._lock.run(work).addCallback(answer)
        return NOT_DONE_YET


def limited(item: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """
    A decorator for C{render} by the library C{limits}, in memory and in fixed windows, as its documentation has it: who
    has asked too often is answered 429.

    @param item: how many requests of an address there may be, in the library's words.
    """
    library = import_module("limits")
    strategies, storage = import_module("limits.strategies"), import_module("limits.storage")
    limit, hit = library.parse(item), strategies.FixedWindowRateLimiter(storage.MemoryStorage()).hit

    def decorated(render: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def renderOrRefuse(request: Any) -> Any:
            if hit(limit, request.getClientAddress().host):
                return render(request)
            request.setResponseCode(429)
            request.setHeader(b"Retry-After", b"1")
            return b"too many requests"

        return renderOrRefuse

    return decorated

"""A network without sockets: what is sent comes late and in pieces, and lines break."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from attrs import define
from kio.index import load_response_schema
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import IDelayedCall, IListeningPort, IStreamServerEndpoint
from twisted.internet.task import deferLater
from zope.interface import implementer

from admission.testing.faketransport import FakeTLSTransport, FakeTransport
from tests.kit.brokerfixture import readResponse, requestFrame, requestOf

from .machine import Machine, WorldClock

_LENGTH = struct.Struct(">i")


class Violation(AssertionError):
    """The broker has broken a promise."""


class Disconnected(Exception):
    """The line is broken, the broker has hung up, or there is none."""


@implementer(IListeningPort)
class SimulatedPort:
    """
    Where clients connect to a broker.

    @ivar isPaused: whether it accepts nobody for now.
    """

    def __init__(self, factory: Any) -> None:
        self.factory = factory
        self.isPaused = False

    def startListening(self) -> None:
        """It does already."""

    def stopListening(self) -> Deferred[None]:
        """Refuse all clients that come."""
        self.factory = None
        return succeed(None)

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "192.0.2.2", 9092)

    def pauseProducing(self) -> None:
        self.isPaused = True

    def resumeProducing(self) -> None:
        self.isPaused = False


@implementer(IStreamServerEndpoint)
class Network:
    """
    Between clients and a broker.

    @ivar machine: the machine of the broker; L{None} while there is none.
    @ivar latencySeconds: how long anything takes at most.
    @ivar lossCount: how often a broker has lost what it had not flushed.
    @ivar isRoomy: whether the broker has memory for all that clients do.
    @ivar connections: those of clients that have not ended, as far as the clients know.
    """

    def __init__(self, world: WorldClock, random: Random) -> None:
        self.world = world
        self.random = random
        self.machine: Machine | None = None
        self.latencySeconds = random.choice([0.0, 0.0001, 0.005])
        self.pieceBytes = random.choice([20, 500, 1 << 20])
        self.connections: dict[Connection, None] = {}
        self.lossCount = 0
        self.isRoomy = True
        self._port: SimulatedPort | None = None

    def listen(self, protocolFactory: Any) -> Deferred[IListeningPort]:
        """The broker listens."""
        port = self._port = SimulatedPort(protocolFactory)
        return succeed(port)

    def sleep(self, seconds: float) -> Deferred[None]:
        return deferLater(self.world, seconds)

    def latency(self) -> float:
        return self.random.random() * self.latencySeconds

    async def connect(self, clientId: str, host: str, isTLS: bool) -> Connection:
        """@raise Disconnected: if nobody listens."""
        await self.sleep(self.latency())
        port = self._port
        while port is not None and port.isPaused and port is self._port:
            await self.sleep(0.05)
        machine = self.machine
        if port is None or machine is None or machine.isDead or port is not self._port or port.factory is None:
            raise Disconnected
        address = IPv4Address("TCP", host, self.random.randrange(1024, 65536))
        protocol = port.factory.buildProtocol(address)
        if protocol is None:
            raise Disconnected
        kind = TLSLine if isTLS else PlainLine
        connection = Connection(self, machine, clientId)
        clock: Any = LateClock(machine, self.latency)
        connection.line = kind(clock, protocol, address)
        connection.line.connection = connection
        self.connections[connection] = None
        connection.line.connect()
        if isinstance(connection.line, TLSLine):
            await self.sleep(self.latency())
            connection.line.peerFinishesHandshake()
        return connection

    def lost(self) -> None:
        """The broker is gone, and its clients find out."""
        self.machine = self._port = None
        for connection in list(self.connections):
            self.world.callLater(self.latency(), connection.lineLost)


@define
class LateClock:
    """The clock of one line, on which everything takes some time more."""

    _machine: Machine
    _latency: Callable[[], float]

    def callLater(self, delay: float, callable: Callable[..., object], *args: object) -> IDelayedCall:
        """As the machine does, or later."""
        return self._machine.callLater(delay + self._latency(), callable, *args)


class _Line:
    """The broker's end of a line whose other end is a L{Connection}."""

    connection: Connection

    def reset(self) -> None:
        """The line breaks."""
        line: Any = self
        if not line.isLost and line._aborting is None:
            self._lose(ConnectionLost())

    def _send(self) -> None:
        super()._send()  # type: ignore[misc]
        self.connection.arrived()

    def _lose(self, reason: Exception) -> None:
        super()._lose(reason)  # type: ignore[misc]
        connection = self.connection
        connection.network.world.callLater(connection.network.latency(), connection.lineLost)


class PlainLine(_Line, FakeTransport):
    """Without TLS."""


class TLSLine(_Line, FakeTLSTransport):
    """With TLS."""


@define
class _Question:
    correlationId: int
    responseType: Any
    answer: Deferred[Any]
    askedSeconds: float


class Connection:
    """
    A client's end.

    @ivar isOver: whether it has ended.
    @ivar ignoresAnswers: whether its client wants to know nothing of what the broker says.
    """

    line: PlainLine | TLSLine

    def __init__(self, network: Network, machine: Machine, clientId: str) -> None:
        self.network = network
        self.clientId = clientId
        self.isOver = False
        self.ignoresAnswers = False
        self._machine = machine
        self._lastCorrelationId = network.random.randrange(1000)
        self._asked: deque[_Question] = deque()
        self._outgoing: deque[bytes] = deque()
        self._isSending = False

    def ask(self, name: str, apiVersion: int, /, **values: Any) -> Deferred[Any]:
        """
        Send a request.

        @return: fires with kio's response; fails with L{Disconnected}.
        """
        entity = requestOf(name, apiVersion, **values)
        self._lastCorrelationId += 1
        responseType = load_response_schema(entity.__api_key__, apiVersion)
        answer: Deferred[Any] = Deferred()
        if self.isOver:
            answer.errback(Disconnected())
            return answer
        self._asked.append(_Question(self._lastCorrelationId, responseType, answer, self.network.world.now))
        self.sendBytes(requestFrame(entity, self._lastCorrelationId, self.clientId))
        return answer

    def tell(self, name: str, apiVersion: int, /, **values: Any) -> None:
        """Send a request that has no response."""
        self._lastCorrelationId += 1
        self.sendBytes(requestFrame(requestOf(name, apiVersion, **values), self._lastCorrelationId, self.clientId))

    def sendBytes(self, data: bytes) -> None:
        """Send anything, in pieces."""
        pieceBytes = max(self.network.pieceBytes, len(data) // 10)
        random = self.network.random
        position = 0
        while position < len(data):
            sizeBytes = random.randint(1, pieceBytes)
            self._outgoing.append(data[position : position + sizeBytes])
            position += sizeBytes
        self._sendPiece()

    def takeNothing(self) -> None:
        """From now on, leave what is sent to us where it is."""
        self.line.isTaking = False

    def takeAgain(self) -> None:
        self.line.isTaking = True
        self.line.wake()

    def close(self) -> None:
        """Hang up."""
        if not self.isOver:
            end = self.line.peerCloses if self.network.random.random() < 0.5 else self.line.reset
            self._machine.callLater(self.network.latency(), end)
        self.lineLost()

    def vanish(self) -> None:
        """The client is gone, and nobody tells the broker."""
        self.line.isTaking = False
        self._outgoing.clear()
        self.lineLost()

    def unansweredSeconds(self) -> float:
        """How long the oldest request has waited for its response."""
        return self.network.world.now - self._asked[0].askedSeconds if self._asked else 0.0

    def arrived(self) -> None:
        """Bytes of the broker are here."""
        if not self.isOver:
            self.network.world.callLater(self.network.latency(), self._receive)

    def lineLost(self) -> None:
        """A client that waits for a response waits in vain."""
        if self.isOver:
            return
        self._receive()
        self.isOver = True
        self.network.connections.pop(self, None)
        while self._asked:
            self._asked.popleft().answer.errback(Disconnected())

    def _sendPiece(self) -> None:
        if self._isSending or not self._outgoing:
            return
        self._isSending = True

        def send() -> None:
            self._isSending = False
            if self._outgoing and not self._machine.isDead:
                self.line.peerSends(self._outgoing.popleft())
                self._sendPiece()

        self.network.world.callLater(self.network.latency(), send)

    def _receive(self) -> None:
        received = self.line.received
        while not (self.isOver or self._machine.hasLostData) and len(received) >= _LENGTH.size:
            (sizeBytes,) = _LENGTH.unpack_from(received)
            if len(received) < _LENGTH.size + sizeBytes:
                break
            body = bytes(received[_LENGTH.size : _LENGTH.size + sizeBytes])
            del received[: _LENGTH.size + sizeBytes]
            if self.ignoresAnswers:
                continue
            if not self._asked:
                raise Violation(f"a response of {sizeBytes} bytes, and nothing was asked")
            question = self._asked.popleft()
            correlationId, entity = readResponse(body, question.responseType)
            if correlationId != question.correlationId:
                raise Violation(f"response {correlationId}, and the next is {question.correlationId}")
            question.answer.callback(entity)

# -*- test-case-name: tests.unit.connection.test_factory -*-
"""
The connections of one server, and how many there may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any, Protocol

from attrs import field, fields, frozen
from twisted.internet import protocol, tcp
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress, IListeningPort, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..control import SWEEP_SECONDS, AdmissionControl
from ..gate.gate import Gate
from ..gate.placequeue import PlaceQueue
from ..interfaces import CONNECTIONS
from ..metrics.registry import SensorRegistry
from ..names import IdentityNumbers
from ..request import ServerRequest
from .deadline import Deadline
from .debts import Debts
from .hangup import HangUpWatch
from .heaptrim import heapTrimOf
from .proxyheader import HeaderFactory
from .refusallog import RefusalLog
from .trustedproxies import TrustedProxies

TLS_CONNECTION_BYTES = 48 << 10
"""What an open connection with TLS is charged for: objects, and TLS state with an incomplete record."""

HANDSHAKE_BYTES = 64 << 10
"""
What it is charged for until its handshake is over, because OpenSSL frees most of
its buffers only then.  Measured (a thousand connections of each kind): 51 KiB
for one that is silent, 63 with half a greeting, 31 when the handshake is over.
Likewise until the header of a load balancer has come, which may be as large.
"""

STRANGERS_SHARE = 4
"""
Connections that have yet to introduce themselves may hold this fraction of the
pool, and twice as much while they are young.
"""

SILENT_SECONDS = 0.25
SPEAKING_SECONDS = 1.0
"""
The ages from which a stranger gives way to the next connection if there is no room for both: one that has sent nothing,
and one that has sent something.
"""

LOOKED_AT = 32
"""How many strangers are looked at for that at a time."""

MAX_LEAVING = 32
"""How many connections more than allowed there may be for a turn, while strangers give way."""

CONNECTIONS_SHARE = 2
UNUSED_SECONDS = 5.0
"""
While memory is short and connections hold more than this fraction of it, those that have asked for nothing for that
long give way.
"""

READ_SHARE = 8
MIN_READ_BYTES = 8 << 10
MAX_READ_BYTES = 64 << 10
"""
What is read from a connection at once is in memory before anybody can be asked for memory.  All connections together
read about this fraction of the pool in a turn of the reactor, but each reads no less than the smallest and no more than
the largest of these amounts.
"""

SWEEPS_PER_IDLE_TIME = 20

MAX_ACCEPTS = 10
"""How many connections a port accepts in a turn of the reactor; with TLS each takes a millisecond."""

_MAPPED = "::ffff:"
"""How IPv6 writes addresses of IPv4."""


def _acceptFew(port: tcp.Port) -> None:
    """
    Have C{port} accept no more than L{MAX_ACCEPTS} at a time.  By itself it accepts as many as have come.
    """
    accept: Callable[[], None] = port.doRead

    def acceptSome() -> None:
        port.numberAccepts = MAX_ACCEPTS
        accept()

    port.doRead = acceptSome  # type: ignore[method-assign]


def peerName(address: IAddress) -> str:
    """
    C{address} in words.
    """
    host, port = getattr(address, "host", None), getattr(address, "port", None)
    if host is None:
        return str(address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def hostOf(address: IAddress | None) -> str:
    """
    C{address} without its port, as limits by address know it.  An address of IPv4 is the same at a port that listens on
    IPv6.
    """
    host = str(getattr(address, "host", ""))
    mapped = host.removeprefix(_MAPPED)
    return host if ":" in mapped else mapped


@frozen
class ConnectionLimits:
    """
    Limits of connections.  Durations are in seconds; C{math.inf} is for ever.
    Values that make no sense are refused with L{ValueError}.

    @ivar maxConnections: how many may be open.
    @ivar maxConnectionsPerAddress: how many of them from one address.
    @ivar idleSeconds: the time after which a connection is closed that neither sends nor is answered, unless we keep it
        from going on.
    @ivar receiveSeconds: the time in which at least a sixteenth of a request's body must arrive.
    @ivar sendSeconds: the time in which a peer must take some of its responses.
    @ivar closeGraceSeconds: how long a closing connection may take over it.
    @ivar handshakeSeconds: the time in which a TLS handshake must be over.
    @ivar settingNames: the names of these limits in the user's configuration, by the names here; the log uses them.
    """

    maxConnections: int = 10_000
    maxConnectionsPerAddress: int = 1_000
    idleSeconds: float = 600.0
    receiveSeconds: float = 30.0
    sendSeconds: float = 30.0
    closeGraceSeconds: float = 5.0
    handshakeSeconds: float = 10.0
    settingNames: Mapping[str, str] = field(factory=dict, repr=False)

    def __attrs_post_init__(self) -> None:
        for name in LIMIT_NAMES:
            value = getattr(self, name)
            isPositive = name in ("idleSeconds", "receiveSeconds", "sendSeconds", "handshakeSeconds")
            if not isinstance(value, int | float) or not (value > 0 if isPositive else value >= 0):
                raise ValueError(f"{name}={value!r}: write a number, {'more than 0' if isPositive else '0 or more'}")

    def settingOf(self, name: str) -> str:
        """
        What the user calls the limit C{name}.
        """
        return self.settingNames.get(name, name)


LIMIT_NAMES: Sequence[str] = [each.name for each in fields(ConnectionLimits) if each.name != "settingNames"]
"""The limits themselves."""


class Connection(Protocol):
    """
    What a factory asks of the connections that it makes; each of them has a
    L{Link <admission.connection.link.Link>}.
    """

    factory: Any

    @property
    def peer(self) -> str:
        """
        Its address, for messages.
        """

    @property
    def link(self) -> Any:
        """
        Its link, there once it is connected.
        """

    def drain(self) -> None:
        """
        Answer the request that has been read, and close.
        """

    def closeGracefully(self) -> None:
        """
        Send what is unsent, and close.
        """

    def abortConnection(self) -> None:
        """
        Close at once.
        """


class Observer(Protocol):
    """
    Told of connections and of requests that are over.  It is never asked
    anything, and must not raise.
    """

    def connectionOpened(self, connection: Any) -> None:
        """
        C{connection} is open; nothing was received on it yet.
        """

    def requestOver(self, request: ServerRequest) -> None:
        """
        C{request} is over, answered or not.
        """

    def connectionClosed(self, connection: Any, reason: Failure) -> None:
        """
        C{connection} is gone.  All its requests are over, but for those that were being worked on at that moment.

        @param reason: as Twisted gives it; why we closed it, if we did, is the
            connection's C{whyClosed}.
        """


class RefusedProtocol(protocol.Protocol):
    """
    Closes a connection that is one too many.  A protocol, because a TLS factory
    does not take L{None} for one.
    """

    transport: Any

    def connectionMade(self) -> None:
        self.transport.abortConnection()


class AdmittedFactory(protocol.ServerFactory):
    """
    Makes connections, as a rule of the kind L{AdmittedProtocol
    <admission.connection.admitted.AdmittedProtocol>}, and bounds how many there
    are and how long they may be idle.

    One factory may serve several ports.

    A connection is a stranger until its TLS handshake is over or, if requests
    can be told apart, until its first request is accepted.  Together strangers hold
    a quarter of the pool.  Beyond that, or when the pool or the server has no
    room for another connection, the oldest gives way.  One that came just now is
    spared, since it may be introducing itself: for a second if it has sent
    anything.  While strangers hold half of the pool, the ports accept nothing.

    While memory is short, and all connections together hold more than half of it, unused ones are closed: those of the
    address that has the most come first, and of these the ones that were unused for longest.

    @ivar gate: the L{Gate} of the server.
    @ivar clock: the reactor, on monotonic time.
    @ivar control: the quota policies of the server.
    @ivar connections: the open connections, oldest first.
    @ivar goneConnections: how many were open and are not any more.
    @ivar observers: what is told of connections and of requests that are over.
    @ivar refusedConnections: how many connections were refused because there were
        too many.
    @ivar cutOffs: how many connections were closed for what they did.
    @ivar fullSeconds: when a connection was last refused because there were too many in all, by the clock.
    @ivar debts: the clients that were told to wait.
    @ivar trustedProxies: the proxies that say who their clients are, see L{believe}.
    @ivar identityNumbers: what is kept of identities that requests carry.
    @ivar places: where requests wait for a place, if they may.
    @ivar whenServing: called with the factory when its first port listens.
    @ivar whenResting: called with it when its last port is closed and its last connection gone.
    @ivar requestCount: how many requests have been read so far.
    @ivar requestBytes: how many bytes these had, without length prefixes; or, without requests, how many were received.
    @ivar responseBytes: how many bytes have been sent so far.
    """

    log = Logger()
    noisy = False

    def __init__(
        self,
        makeConnection: Callable[[], Connection],
        gate: Gate,
        clock: IReactorTime,
        hangUpWatch: HangUpWatch,
        limits: ConnectionLimits | None = None,
        control: AdmissionControl | None = None,
        debts: Debts | None = None,
    ) -> None:
        """
        @param makeConnection: makes the protocol of a new connection.
        @param control: one without policies, unless given.
        @param debts: the factory's own, unless given.
        """
        self.gate = gate
        self.clock = clock
        self.hangUpWatch = hangUpWatch
        self.limits = ConnectionLimits() if limits is None else limits
        self.control = AdmissionControl() if control is None else control
        self.identityNumbers = IdentityNumbers()
        self.places: PlaceQueue | None = None
        self.connections: dict[Any, None] = {}
        self.goneConnections = 0
        self.observers: Sequence[Observer] = ()
        self.refusedConnections = 0
        self.cutOffs = 0
        self.fullSeconds = -inf
        self.debts = Debts() if debts is None else debts
        if self.debts.configured not in self.control.whenConfigured:
            self.control.whenConfigured.append(self.debts.configured)
        self.whenServing: Callable[[Any], object] = lambda factory: None
        self.whenResting: Callable[[Any], object] = lambda factory: None
        self.trustedProxies: TrustedProxies | None = None
        self._isHeaderOptional = False
        # What reads headers, unless ports do.
        self._headers: HeaderFactory | None = None
        self._isServing = False
        self.requestCount = 0
        self.requestBytes = 0
        self.responseBytes = 0
        self._makeProtocol = makeConnection
        self._perAddress: dict[str, int] = {}
        self._ports: list[IListeningPort] = []
        self._servesTLS = False
        self._arePortsPaused = False
        self._strangers: dict[Any, tuple[float, int]] = {}
        self._strangerBytes = 0
        self._leaving: dict[Any, int] = {}
        self._leavingBytes = 0
        self._strangerAges = Deadline(clock, self._makeRoom)
        self._unusedAges = Deadline(clock, self._closeUnused)
        self._refusalLog = RefusalLog()
        self._emptied: list[Deferred[None]] = []
        self._sweeping = LoopingCall(self._sweep)
        self._sweeping.clock = clock
        self._forgetting = LoopingCall(lambda: self.control.sweep(clock.seconds()))
        self._forgetting.clock = clock
        self._heapTrim = heapTrimOf(gate, clock)
        gate.ledger.account("policies", lambda: self.control.sizeBytes)
        gate.pressure.subscribe(self._pressed)

    def startFactory(self) -> None:
        """
        The first port listens: L{start}.
        """
        self._isServing = True
        self.start()
        self.whenServing(self)

    def stopFactory(self) -> None:
        """
        The last port is closed.  Connections stay, and are looked after.
        """
        self._restIfOver()

    def _restIfOver(self) -> None:
        if self._isServing and not (self.numPorts or self.connections):
            self._isServing = False
            self.stop()
            self.whenResting(self)

    def start(self) -> None:
        """
        Begin to close idle connections, to have policies forget idle clients, and to give back memory that is unused
        after a burst; no effect the second time.  Twisted calls this, too, when the first port listens.
        """
        if self._sweeping.running:
            return
        interval = max(self.limits.idleSeconds / SWEEPS_PER_IDLE_TIME, 0.1)
        self._sweeping.start(min(interval, 10.0), now=False)
        self._forgetting.start(SWEEP_SECONDS, now=False)
        self._heapTrim.start()

    def stop(self) -> None:
        self._heapTrim.stop()
        for looping in (self._sweeping, self._forgetting):
            if looping.running:
                looping.stop()
        self._strangerAges.close()
        self._unusedAges.close()

    def addPort(self, port: IListeningPort) -> None:
        """
        C{port} listens for this factory: stop accepting there when a TLS
        connection could not be afforded, since one cannot be muted before its
        handshake is over, or when there are too many strangers.  In one turn of the reactor it accepts L{MAX_ACCEPTS},
        and not a hundred and more as Twisted's ports do.

        @raise TypeError: if C{port} is what an endpoint's C{listen} returns, a Deferred of a port.
        """
        if isinstance(port, Deferred):
            raise TypeError("addPort takes a port: endpoint.listen(factory).addCallback(factory.addPort)")
        if isinstance(port, tcp.Port):
            _acceptFew(port)
            if self.trustedProxies is not None:
                front: Any = self._headersFor(port.factory)
                port.factory, self._headers = front, None
        self._ports.append(port)

    def closeAll(self) -> Deferred[None]:
        """
        Have every connection answer the request that it has read, and close.

        @return: fires when the last one is gone.
        """
        for connection in list(self.connections):
            connection.link.explain("the server stops")
            try:
                connection.drain()
            except Exception:
                self.log.failure("closing the connection of {peer} failed", peer=connection.peer)
                connection.abortConnection()
        if not self.connections:
            return succeed(None)
        emptied: Deferred[None] = Deferred()
        self._emptied.append(emptied)
        return emptied

    def abortAll(self) -> None:
        """
        Close every connection at once, whatever is unanswered or unsent.
        """
        for connection in list(self.connections):
            connection.link.explain("the server stops")
            connection.abortConnection()

    def buildProtocol(self, addr: IAddress | None) -> protocol.Protocol:
        """
        A protocol for a connection from C{addr}, or one that closes it because
        there are too many.
        """
        reason = self._refusal(hostOf(addr))
        if reason is not None:
            self._refusedAt(addr, reason)
            return RefusedProtocol()
        connection = self.makeConnectionFor(addr)
        connection.factory = self
        if self._headers is not None and self.isTrusted(addr):
            return self._headers.reading(connection)
        built: protocol.Protocol = connection
        return built

    def makeConnectionFor(self, addr: IAddress | None) -> Any:
        """
        A connection that was accepted from C{addr}.
        """
        return self._makeProtocol()

    def believe(self, proxies: TrustedProxies, isHeaderOptional: bool = False) -> None:
        """
        Take the peers of connections from these proxies for those that their headers name (PROXY protocol), and do not
        count such a proxy as a client.  On ports that L{addPort} is told of, the header is in front of TLS; on others,
        within.

        @param isHeaderOptional: whether they may send none.
        """
        self.trustedProxies = proxies
        self._isHeaderOptional = isHeaderOptional
        self._headers = self._headersFor(self)

    def isTrusted(self, addr: IAddress | None) -> bool:
        """
        Whether a proxy at C{addr} says who its clients are.
        """
        return self.trustedProxies is not None and hostOf(addr) in self.trustedProxies

    def _headersFor(self, factory: Any) -> HeaderFactory:
        return HeaderFactory(factory, self.isTrusted, self._isHeaderOptional, self._refusedAt)

    def _refusedAt(self, addr: IAddress | None, reason: str) -> None:
        self.refusedConnections += 1
        self._refusalLog.refused(hostOf(addr), "an unknown peer" if addr is None else peerName(addr), reason)

    def clientIdAt(self, host: str) -> str:
        """
        The client id of a client at an address that has not said who it is.
        """
        return host

    def connected(self, connection: Any, isStranger: bool = False) -> None:
        """
        Called by a connection when it is connected.

        @param isStranger: whether it calls L{introduced} later.
        """
        self.connections[connection] = None
        if connection.link.proxyHeader is None:
            self._perAddress[connection.host] = self._perAddress.get(connection.host, 0) + 1
        if isStranger:
            heldBytes = connection.link.openBytes
            self._strangers[connection] = (self.clock.seconds(), heldBytes)
            self._strangerBytes += heldBytes
        self._servesTLS = self._servesTLS or connection.isTLS
        self._makeRoom()
        if connection.isTLS and self._isShort():
            self.gate.pressure.begin()

    def peerKnown(self, connection: Any) -> bool:
        """
        Called by a connection that learns its peer only after it was connected: until now it counted for no address.

        @return: whether it stays; if not, there are too many of its address, and it is being closed.
        """
        host = connection.host
        if connection in self._strangers:
            since, heldBytes = self._strangers[connection]
            self._strangers[connection] = since, connection.link.openBytes
            self._strangerBytes += connection.link.openBytes - heldBytes
        reason = self._tooManyFrom(host)
        self._perAddress[host] = self._perAddress.get(host, 0) + 1
        if reason is None:
            return True
        self.refusedConnections += 1
        connection.link.explain(reason)
        self._refusalLog.refused(host, connection.peer, reason)
        connection.abortConnection()
        return False

    def introduced(self, connection: Any) -> None:
        """
        Called by a connection that is no stranger any more; no effect the second
        time.
        """
        stranger = self._strangers.pop(connection, None)
        if stranger is not None:
            self._strangerBytes -= stranger[1]
            self._settlePorts()

    def disconnected(self, connection: Any) -> None:
        """
        Called by a connection when it is gone.
        """
        if connection not in self.connections:
            return
        del self.connections[connection]
        self.goneConnections += 1
        self.introduced(connection)
        self._leavingBytes -= self._leaving.pop(connection, 0)
        if connection.link.proxyHeader is None:
            remaining = self._perAddress[connection.host] - 1
            if remaining:
                self._perAddress[connection.host] = remaining
            else:
                del self._perAddress[connection.host]
        if not self.connections:
            self._unusedAges.close()
            emptied, self._emptied = self._emptied, []
            for deferred in emptied:
                deferred.callback(None)
            self._restIfOver()

    def refused(self, connection: Any, reason: str) -> None:
        """
        Called by a connection that closes because of what its peer did.
        """
        self.cutOffs += 1
        connection.link.explain(reason)
        self._refusalLog.refused(connection.host, connection.peer, reason)

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish what the gate and the policies know, and connections; see L{addConnectionSensors}.

        @raise ValueError: if there are sensors of these names.
        """
        self.gate.addSensors(registry)
        self.control.addSensors(registry)
        addConnectionSensors(registry, [self])

    @property
    def servedName(self) -> str:
        """
        What it serves, for the log.
        """
        return getattr(self._makeProtocol, "__name__", type(self).__name__)

    @property
    def readBytes(self) -> int:
        """
        How much to read from a connection at once.
        """
        shareBytes = self.gate.pool.sizeBytes // READ_SHARE // max(len(self.connections), 1)
        return min(max(shareBytes, MIN_READ_BYTES), MAX_READ_BYTES)

    def _refusal(self, host: str) -> str | None:
        if self._emptied:
            return "the server stops"
        limits = self.limits
        isFull = len(self.connections) - len(self._leaving) >= limits.maxConnections
        if isFull and (len(self._leaving) >= MAX_LEAVING or not self._giveWay()):
            self.fullSeconds = self.clock.seconds()
            return f"there are {len(self.connections)} connections already ({limits.settingOf('maxConnections')})"
        return self._tooManyFrom(host)

    def _tooManyFrom(self, host: str) -> str | None:
        limits = self.limits
        if self.trustedProxies is not None and host in self.trustedProxies:
            return None
        if host and self._perAddress.get(host, 0) >= limits.maxConnectionsPerAddress:
            return (
                f"there are {limits.maxConnectionsPerAddress} connections from its address already "
                f"({limits.settingOf('maxConnectionsPerAddress')})"
            )
        return None

    def _sweep(self) -> None:
        self._refusalLog.sweep()
        now = self.clock.seconds()
        horizon = now - self.limits.idleSeconds
        for connection in list(self.connections):
            link = connection.link
            if link.isIdle(horizon):
                link.explain("it was idle for too long")
                try:
                    connection.closeGracefully()
                except Exception:
                    # An exception that leaves this method would end the sweeping for good.
                    self.log.failure("closing the idle connection of {peer} failed", peer=connection.peer)

    # Strangers

    def _isCrowded(self, shares: int = 1) -> bool:
        return self._strangerBytes > shares * self.gate.pool.sizeBytes // STRANGERS_SHARE

    def _isShort(self) -> bool:
        """
        Whether another TLS connection could not be afforded.
        """
        return self.gate.pool.availableBytes + self._leavingBytes < HANDSHAKE_BYTES

    def _makeRoom(self) -> None:
        while self._isCrowded() or (self._servesTLS and self._isShort()):
            if not self._giveWay():
                if self._strangers:
                    self._strangerAges.start(SILENT_SECONDS)
                break
        self._settlePorts()

    def _giveWay(self) -> bool:
        """
        Cut off the oldest stranger that does not seem to be introducing itself.

        @return: whether there is room for another one now.
        """
        now = self.clock.seconds()
        for connection, (since, heldBytes) in islice(self._strangers.items(), LOOKED_AT):
            ageSeconds = now - since
            if ageSeconds < SILENT_SECONDS:
                break
            if ageSeconds < SPEAKING_SECONDS and connection.link.hasSpoken:
                continue
            del self._strangers[connection]
            self._strangerBytes -= heldBytes
            self._leaving[connection] = heldBytes
            self._leavingBytes += heldBytes
            connection.link.cutOff(f"it has asked for nothing in {ageSeconds:.1f} s, and others want its place")
            return True
        return False

    def _closeUnused(self) -> None:
        if not self.gate.pressure.isOn:
            return
        now = self.clock.seconds()
        self._unusedAges.start(UNUSED_SECONDS)
        pool = self.gate.pool
        heldBytes = pool.usedBytesByPurpose.get(CONNECTIONS, 0) - self._leavingBytes
        excessBytes = heldBytes - pool.sizeBytes // CONNECTIONS_SHARE
        if excessBytes <= 0:
            return
        horizon = now - UNUSED_SECONDS
        unused = [each for each in self.connections if not each.link.pauses.reasons and each.link.isIdle(horizon)]
        unused.sort(key=lambda each: (-self._perAddress.get(each.host, 0), each.link.lastActiveSeconds))
        for connection in unused:
            if excessBytes <= 0:
                break
            excessBytes -= connection.link.openBytes
            connection.link.cutOff(
                f"it has asked for nothing in {now - connection.link.lastActiveSeconds:.0f} s, memory is short, and"
                " connections hold more than half of it"
            )

    # Ports

    def _pressed(self, isPressed: bool) -> None:
        self._settlePorts()
        if isPressed and self.connections and self._unusedAges.dueSeconds is None:
            self._unusedAges.start(UNUSED_SECONDS)

    def _settlePorts(self) -> None:
        if not (self._strangers and (self._isCrowded() or self._isShort())):
            self._strangerAges.close()
        arePaused = self._isCrowded(2) or (self._servesTLS and self.gate.pressure.isOn)
        if arePaused == self._arePortsPaused:
            return
        self._arePortsPaused = arePaused
        for port in self._ports:
            listening: Any = port
            if arePaused:
                listening.pauseProducing()
            else:
                listening.resumeProducing()


def addConnectionSensors(registry: SensorRegistry, factories: Collection[AdmittedFactory]) -> None:
    """
    Publish, for C{factories} together, C{Connections}, C{ConnectionsRefused} (too many), C{ConnectionsCutOff} (for what
    they did), and C{ConnectionsMuted} by reason.

    @param factories: a live view.
    @raise ValueError: if there are sensors of these names.
    """

    def muted(now: float) -> Iterator[tuple[Sequence[str], float]]:
        connections = [connection for factory in factories for connection in factory.connections]
        counts = Counter(reason for connection in connections for reason in connection.link.pauses.reasons)
        for reason, count in counts.items():
            yield (reason.value,), count

    registry.addGauge("Connections", lambda now: sum(len(each.connections) for each in factories))
    registry.addCounter("ConnectionsRefused", lambda now: sum(each.refusedConnections for each in factories))
    registry.addCounter("ConnectionsCutOff", lambda now: sum(each.cutOffs for each in factories))
    registry.addFamily("ConnectionsMuted", ("reason",), muted)

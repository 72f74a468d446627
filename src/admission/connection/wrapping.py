# -*- test-case-name: tests.unit.connection.test_wrapping -*-
"""
Admission for any server that Twisted can run: what goes between a factory and
its port.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakSet

from twisted.internet.interfaces import IAddress, IProtocolFactory, IProtocolNegotiationFactory, IReactorTime
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from zope.interface import Interface, alsoProvides

from ..clock import MonotonicClock, wallSeconds
from ..control import AdmissionControl
from ..gate.gate import DEFAULT_ORDER, Gate
from ..interfaces import (
    IMemoryPool,
    IMemoryPoolFactory,
    IPolicyFactory,
    IQuotaPolicy,
    IQuotaPolicyFactory,
    IRequestLifecycle,
    IWaitOrder,
    IWaitOrderFactory,
    PolicyContext,
)
from ..memorylimit import memoryLimitBytes
from ..metrics.registry import SensorRegistry
from ..plugins import PolicyError, buildPolicy, parseDescription
from ..units import roundedBytes
from .factory import AdmittedFactory, ConnectionLimits
from .hangup import HangUpWatch
from .wrapped import WrappedConnection

MAX_DELAY_SECONDS = 20.0
"""After which a client that is throttled is looked at again, however much it owes."""

POOL_SHARE = 4
"""The default pool is this fraction of the memory that the process may use."""

POOLS_SHARE = 2
"""The pools of all servers of a process should not have more than this fraction of it between them."""

_log = Logger()

_serving: WeakSet[WrappedFactory] = WeakSet()
"""The wrapped factories of this process that listen or have connections."""

NameOf = Callable[[Any], tuple[str, str] | None]
"""
Given a protocol: the principal and the client id of its peer, or L{None} as
long as nobody knows.
"""


class WrappedFactory(AdmittedFactory):
    """
    Puts a L{WrappedConnection} around each protocol of another factory; see
    L{wrapFactory}, which makes it.

    It starts with its first port, and rests when the last one is closed and
    the last connection is gone.

    @ivar wrappedFactory: the other factory.
    @ivar gate: who waits for memory, and how much is held.
    @ivar control: the quota policies; limits are changed by its C{configure}, told
        what C{clock.seconds()} says.
    @ivar nameOf: who is at the other end, see L{NameOf}.
    @ivar maxUnsentBytes: who has so much unsent, besides the largest write, may not write more.
    @ivar cutOffs: how many connections were cut off for what they did.
    """

    def __init__(
        self,
        wrappedFactory: Any,
        gate: Gate,
        control: AdmissionControl,
        clock: IReactorTime,
        hangUpWatch: HangUpWatch,
        limits: ConnectionLimits | None = None,
        nameOf: NameOf | None = None,
        maxUnsentBytes: int | None = None,
    ) -> None:
        super().__init__(lambda: WrappedConnection(self), gate, clock, hangUpWatch, limits, control)
        self.wrappedFactory = wrappedFactory
        self.nameOf = nameOf
        self.maxUnsentBytes = gate.pool.sizeBytes if maxUnsentBytes is None else maxUnsentBytes
        self.cutOffs = 0
        if IProtocolNegotiationFactory.providedBy(wrappedFactory):
            alsoProvides(self, IProtocolNegotiationFactory)

    def acceptableProtocols(self) -> list[bytes]:
        """
        What the wrapped factory's protocols speak, for TLS to offer; only if it
        is an L{IProtocolNegotiationFactory}.
        """
        protocols: list[bytes] = self.wrappedFactory.acceptableProtocols()
        return protocols

    def doStart(self) -> None:
        self.wrappedFactory.doStart()
        super().doStart()  # type: ignore[no-untyped-call]

    def doStop(self) -> None:
        self.wrappedFactory.doStop()
        super().doStop()  # type: ignore[no-untyped-call]

    def startFactory(self) -> None:
        """
        The first port listens: look for idle connections and clients.
        """
        if not self._sweeping.running:
            self.start()
        if self not in _serving:
            if _serving:
                warnOfPools(self, _serving, memoryLimitBytes())
            _serving.add(self)

    def stopFactory(self) -> None:
        """
        The last port is closed.  Connections stay, and are looked after.
        """
        self._restIfOver()

    def logPrefix(self) -> str:
        wrapped = getattr(self.wrappedFactory, "logPrefix", lambda: type(self.wrappedFactory).__name__)
        return f"{wrapped()} (admitted)"

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        """
        A connection, for which the wrapped factory makes a protocol once it is admitted; or a protocol that closes it,
        if there are too many.
        """
        built: Any = super().buildProtocol(addr)
        if isinstance(built, WrappedConnection):
            built.builtFor = addr
        protocol: Protocol = built
        return protocol

    def disconnected(self, connection: Any) -> None:
        super().disconnected(connection)
        self._restIfOver()

    def refused(self, connection: Any, reason: str) -> None:
        self.cutOffs += 1
        super().refused(connection, reason)

    def addSensors(self, registry: SensorRegistry) -> None:
        """
        Publish what the gate and the policies know; C{Connections},
        C{ConnectionsRefused} (too many), C{ConnectionsCutOff} (for what they
        did), and C{ConnectionsMuted} by reason.

        @raise ValueError: if there are sensors of these names.
        """
        self.gate.addSensors(registry)
        self.control.addSensors(registry)
        registry.addGauge("Connections", lambda now: len(self.connections))
        registry.addCounter("ConnectionsRefused", lambda now: self.refusedConnections)
        registry.addCounter("ConnectionsCutOff", lambda now: self.cutOffs)
        registry.addFamily("ConnectionsMuted", ("reason",), self._muted)

    def _muted(self, now: float) -> Iterator[tuple[Sequence[str], float]]:
        connections: list[Any] = list(self.connections)
        counts = Counter(reason for connection in connections for reason in connection.link.pauses.reasons)
        for reason, count in counts.items():
            yield (reason.value,), count

    def _restIfOver(self) -> None:
        if not (self.numPorts or self.connections):
            _serving.discard(self)
            self.stop()
            self.gate.close()
            self.hangUpWatch.close()


def warnOfPools(factory: WrappedFactory, others: Iterable[WrappedFactory], limitBytes: int) -> None:
    """
    Log that the pools of several servers may hold more than half of the memory between them, if C{factory} makes it so.
    A pool that alone is larger than the memory was meant to be no bound.

    @param others: those that serve already.
    @param limitBytes: what the process may use.
    """
    before = [each for each in others if each.gate.pool.sizeBytes <= limitBytes]
    serving = [*before, factory]
    totalBytes = _poolBytes(serving)
    maxBytes = limitBytes // POOLS_SHARE
    if not (maxBytes < totalBytes and factory.gate.pool.sizeBytes <= limitBytes and _poolBytes(before) <= maxBytes):
        return
    _log.warn(
        "the pools of {count} servers may hold {total} together, and the process {limit}: {pools}; give each less, as "
        "in wrapFactory(pool='bounded:64MiB'), or all the same, as in wrapFactory(pool=first.gate.pool)",
        count=len(serving),
        total=roundedBytes(totalBytes),
        limit=roundedBytes(limitBytes),
        pools=", ".join(
            f"{type(each.wrappedFactory).__name__} {roundedBytes(each.gate.pool.sizeBytes)}" for each in serving
        ),
    )


def _poolBytes(factories: Iterable[WrappedFactory]) -> int:
    """
    The size of the pools of several servers together; nothing if they all have one.
    """
    pools = {id(each.gate.pool): each.gate.pool.sizeBytes for each in factories}
    return sum(pools.values()) if len(pools) > 1 else 0


def wrapFactory(
    factory: Any,
    *,
    pool: str | IMemoryPool | None = None,
    quota: str | IQuotaPolicy | Sequence[str | IQuotaPolicy] = (),
    order: str | IWaitOrder = DEFAULT_ORDER,
    limits: ConnectionLimits | None = None,
    nameOf: NameOf | None = None,
    maxUnsentBytes: int | None = None,
    reactor: Any = None,
    clock: IReactorTime | None = None,
) -> WrappedFactory:
    """
    Protect a server: C{wrapFactory(factory, pool="bounded:64MiB",
    quota="client-bytes:produce=1M:fetch=4M")} goes wherever C{factory} went.
    With TLS that is inside, as with every factory: C{listenSSL} and C{ssl:}
    endpoints are given what this returns.

    @param factory: any L{twisted.internet.interfaces.IProtocolFactory}.
    @param pool: the memory that connections may hold: a description or a pool.
        A quarter of what the process may use, unless given.
    @param quota: what limits clients: descriptions or policies, any number.
    @param order: in which order connections are served that wait for memory: a
        description or an order.
    @param limits: of connections; the defaults of L{ConnectionLimits}, unless given.
    @param nameOf: given a protocol, who its peer is: a principal and a client
        id, or L{None} while nobody knows.  Until then, and without it, the
        client id is the peer's address.
    @param maxUnsentBytes: a connection that holds so much of what was written
        to it, besides the largest write, is sent that and closed if more is
        written; the size of the pool, unless given.
    @param reactor: the one that runs, unless given.
    @param clock: for timers; the reactor on monotonic time, unless given.
    @raise PolicyError: for a description that means nothing.
    @raise ValueError: if C{maxUnsentBytes} is no positive number.
    @raise TypeError: for a factory, a pool, a policy, an order, limits or a
        function that is none.
    """
    if not IProtocolFactory.providedBy(factory):
        raise TypeError(f"factory={factory!r}: give an IProtocolFactory, such as Factory.forProtocol(YourProtocol)")
    if limits is not None and not isinstance(limits, ConnectionLimits):
        raise TypeError(f"limits={limits!r}: give ConnectionLimits, such as ConnectionLimits(maxConnections=1000)")
    if nameOf is not None and not callable(nameOf):
        raise TypeError(f"nameOf={nameOf!r}: give a function that takes a protocol and tells who its peer is")
    if maxUnsentBytes is not None and not (isinstance(maxUnsentBytes, int) and maxUnsentBytes >= 1):
        raise ValueError(f"maxUnsentBytes={maxUnsentBytes!r}: write a number of bytes, 1 or more")
    if reactor is None:
        from twisted.internet import reactor
    if clock is None:
        clock = MonotonicClock(reactor)
    context = PolicyContext(clock, wallSeconds)
    given = f"bounded:{memoryLimitBytes() // POOL_SHARE}" if pool is None else pool
    memory = _built("pool", given, IMemoryPoolFactory, IMemoryPool, "bounded:64MiB", context)
    # An order that is given knows those that wait for memory; those that wait for a turn are others.
    described = order if isinstance(order, str) else DEFAULT_ORDER
    memoryOrder, turnOrder, answerOrder, decodingOrder = (
        _built("order", each, IWaitOrderFactory, IWaitOrder, "holders", context)
        for each in (order, described, DEFAULT_ORDER, DEFAULT_ORDER)
    )
    gate = Gate(memory, clock, memoryOrder, turnOrder, answerOrder, decodingOrder)
    policies = _policies(quota, context)
    idle = [name for name, policy in policies if IRequestLifecycle.providedBy(policy)]
    if idle:
        _log.warn(
            "{names} limits nobody here: it follows requests, and a wrapped server's requests are not told apart",
            names=" and ".join(idle),
        )
    control = AdmissionControl(policies, MAX_DELAY_SECONDS)
    return WrappedFactory(factory, gate, control, clock, HangUpWatch(reactor), limits, nameOf, maxUnsentBytes)


def _built(
    setting: str,
    given: Any,
    factoryInterface: type[IPolicyFactory],
    interface: type[Interface],
    example: str,
    context: PolicyContext,
) -> Any:
    if isinstance(given, str):
        try:
            return buildPolicy(factoryInterface, given, context)
        except PolicyError as error:
            raise PolicyError(f"{setting}: {error}") from error
    if not interface.providedBy(given):
        raise TypeError(f"{setting}={given!r}: give a description such as {example!r}, or an {interface.__name__}")
    return given


def _policies(
    quota: str | IQuotaPolicy | Sequence[str | IQuotaPolicy], context: PolicyContext
) -> list[tuple[str, IQuotaPolicy]]:
    policies: dict[str, IQuotaPolicy] = {}
    isOne = isinstance(quota, str) or IQuotaPolicy.providedBy(quota) or not isinstance(quota, Iterable)
    given: Any = [quota] if isOne else quota
    for each in given:
        policy = _built("quota", each, IQuotaPolicyFactory, IQuotaPolicy, "client-bytes:produce=1M", context)
        name = parseDescription(each)[0] if isinstance(each, str) else type(each).__name__
        # Each needs a name of its own, for its sensors.
        number = sum(used.partition("#")[0] == name for used in policies) + 1
        policies[name if number == 1 else f"{name}#{number}"] = policy
    return list(policies.items())

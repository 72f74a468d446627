# -*- test-case-name: tests.unit.connection.test_wrapping -*-
"""
Admission for any server that Twisted can run: it goes between a factory and its port.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IAddress, IProtocolNegotiationFactory, IReactorTime
from zope.interface import alsoProvides

from ..control import AdmissionControl
from ..gate.gate import Gate
from .debts import Debts
from .factory import AdmittedFactory, ConnectionLimits
from .hangup import HangUpWatch
from .wrapped import Messages, WrappedConnection

NameOf = Callable[[Any], tuple[str, str] | None]
"""
Given a protocol: the principal and the client id of its peer, or L{None} as
long as nobody knows.
"""


class WrappedFactory(AdmittedFactory):
    """
    Puts a L{WrappedConnection} around each protocol of another factory; see
    L{Admission.wrap <admission.admission.Admission.wrap>}, which makes it.

    @ivar wrappedFactory: the other factory.
    @ivar gate: the connections that wait for memory, and how much is held.
    @ivar control: the quota policies; limits are changed by its C{configure}, told
        what C{clock.seconds()} says.
    @ivar nameOf: tells who the peer is, see L{NameOf}.
    @ivar countsBytes: whether its bytes are charged to clients; otherwise requests are told apart, and charged.
    @ivar drainConnection: closes a connection once all that it works on is over; L{None} if nobody can tell when.
    @ivar messagesOf: makes the L{Messages <admission.connection.wrapped.Messages>} of a connection; L{None} if it has
        none, or only later.
    @ivar maxUnsentBytes: a connection with that much unsent, besides the largest write, may not write more.
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
        debts: Debts | None = None,
        countsBytes: bool = True,
    ) -> None:
        super().__init__(lambda: WrappedConnection(self), gate, clock, hangUpWatch, limits, control, debts)
        self.wrappedFactory = wrappedFactory
        self.nameOf = nameOf
        self.countsBytes = countsBytes
        self.drainConnection: Callable[[WrappedConnection], None] | None = None
        self.messagesOf: Callable[[WrappedConnection], Messages] | None = None
        self.maxUnsentBytes = gate.pool.sizeBytes if maxUnsentBytes is None else maxUnsentBytes
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

    @property
    def servedName(self) -> str:
        return getattr(self.wrappedFactory, "__name__", type(self.wrappedFactory).__name__)

    def logPrefix(self) -> str:
        wrapped = getattr(self.wrappedFactory, "logPrefix", lambda: type(self.wrappedFactory).__name__)
        return f"{wrapped()} (admitted)"

    def makeConnectionFor(self, addr: IAddress | None) -> Any:
        """
        A connection, for which the wrapped factory makes a protocol once it is admitted.
        """
        connection = super().makeConnectionFor(addr)
        connection.builtFor = addr
        return connection

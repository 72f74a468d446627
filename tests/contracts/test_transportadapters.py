"""L{admission_plugins.transportadapters}."""

from __future__ import annotations

from twisted.internet.interfaces import IProtocol, ISSLTransport, ITransport
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.plugin import getPlugins
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import Interface, implementedBy, implementer, providedBy
from zope.interface.adapter import AdapterRegistry
from zope.interface.verify import verifyObject

from admission.interfaces import ITransportAdapters, ITransportMutability
from admission.testing.faketransport import FakeTLSTransport, FakeTransport
from admission.testing.mutabilitycontract import MutableTransport, TransportMutabilityContract
from admission_plugins import transportadapters
from admission_plugins.transportadapters import PlainMutability, TLSMutability
from tests.contracts.test_mutabilitycontract import builder


class PlainContractTests(TransportMutabilityContract, SynchronousTestCase):
    """L{PlainMutability} is an L{ITransportMutability}."""

    buildMutability = staticmethod(builder(PlainMutability))


class StringTransportContractTests(TransportMutabilityContract, SynchronousTestCase):
    """So it is for Twisted's own fake."""

    def buildMutability(self, protocol: IProtocol) -> MutableTransport:
        """For a L{StringTransport}, which leaves receiving to the test."""
        transport = StringTransport()
        protocol.makeConnection(transport)
        arrived: list[bytes] = []

        def isReading() -> bool:
            return transport.producerState == "producing"

        def settle() -> None:
            while arrived and isReading():
                protocol.dataReceived(arrived.pop(0))

        return MutableTransport(PlainMutability(transport), isReading, arrived.append, settle)


class TLSContractTests(TransportMutabilityContract, SynchronousTestCase):
    """L{TLSMutability} is an L{ITransportMutability} once the handshake is over."""

    def buildMutability(self, protocol: IProtocol) -> MutableTransport:
        """For a TLS transport after its handshake."""
        clock = Clock()
        transport = FakeTLSTransport(clock, protocol)
        transport.connect()
        transport.peerFinishesHandshake()
        clock.advance(0)
        return MutableTransport(
            TLSMutability(transport), lambda: transport.isReading, transport.peerSends, lambda: clock.advance(0)
        )


class TLSMutabilityTests(SynchronousTestCase):
    """When TLS may be muted."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.transport = FakeTLSTransport(self.clock, Protocol())
        self.transport.connect()
        self.mutability = TLSMutability(self.transport)

    def test_handshake(self) -> None:
        """Not before the handshake is over."""
        self.assertFalse(self.mutability.isInMutableState())
        self.transport.peerFinishesHandshake()
        self.clock.advance(0)
        self.assertTrue(self.mutability.isInMutableState())

    def test_lost(self) -> None:
        """A transport that is lost has no handshake to wait for."""
        self.transport.abortConnection()
        self.clock.advance(0)
        self.assertTrue(self.mutability.isInMutableState())


class RegisterTests(SynchronousTestCase):
    """L{transportadapters.register}."""

    def setUp(self) -> None:
        """Register in a registry of our own: the process has one of these only."""
        self.registry = AdapterRegistry()

        def registerAdapter(factory: object, original: type[Interface], target: type[Interface]) -> None:
            if self.registry.registered([original], target) is not None:
                raise ValueError(f"an adapter ({factory}) was already registered.")
            self.registry.register([original], target, "", factory)

        self.patch(transportadapters, "registerAdapter", registerAdapter)
        transportadapters.register()

    def adapterFor(self, transport: object) -> object:
        """What adapts C{transport}."""
        return self.registry.lookup([providedBy(transport)], ITransportMutability)

    def test_transports(self) -> None:
        """Plain transports get the one and TLS transports the other."""
        self.assertIs(self.adapterFor(StringTransport()), PlainMutability)
        self.assertIs(self.adapterFor(FakeTransport(Clock(), Protocol())), PlainMutability)
        self.assertIs(self.adapterFor(FakeTLSTransport(Clock(), Protocol())), TLSMutability)

    def test_realClasses(self) -> None:
        """So do Twisted's classes for TCP, UNIX sockets and TLS."""
        from twisted.internet.tcp import Server
        from twisted.internet.unix import Server as UNIXServer
        from twisted.protocols.tls import BufferingTLSTransport

        for transport, adapter in [
            (Server, PlainMutability),
            (UNIXServer, PlainMutability),
            (BufferingTLSTransport, TLSMutability),
        ]:
            self.assertIs(self.registry.lookup([implementedBy(transport)], ITransportMutability), adapter, transport)

    def test_moreSpecificWins(self) -> None:
        """Somebody who registers an adapter for an interface of their own gets that one."""

        class ITheirs(ITransport):
            pass

        @implementer(ITheirs)
        class Theirs:
            pass

        self.registry.register([ITheirs], ITransportMutability, "", "theirs")
        self.assertEqual(self.adapterFor(Theirs()), "theirs")

    def test_again(self) -> None:
        """Registering again is harmless, and replaces nothing that somebody has registered first."""
        self.registry.register([ITransport], ITransportMutability, "", "theirs")
        transportadapters.register()
        self.assertEqual(self.adapterFor(StringTransport()), "theirs")
        self.assertIs(self.adapterFor(FakeTLSTransport(Clock(), Protocol())), TLSMutability)

    def test_found(self) -> None:
        """They are found as a plug-in, which loads them no sooner than they are needed."""
        found = [adapters for adapters in getPlugins(ITransportAdapters) if adapters.name == "Twisted's transports"]
        self.assertEqual(len(found), 1)
        verifyObject(ITransportAdapters, found[0])
        self.registry.unregister([ITransport], ITransportMutability, "")
        found[0].register()
        self.assertIs(self.adapterFor(StringTransport()), PlainMutability)

    def test_interfacesExactly(self) -> None:
        """On these two interfaces and no others."""
        registered = [required for (required,), provided, name, factory in self.registry.allRegistrations()]
        self.assertEqual(set(registered), {ITransport, ISSLTransport})

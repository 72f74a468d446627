"""L{admission.listening.services}."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from twisted.application.internet import (
    SSLServer,
    StreamServerEndpointService,
    TCPServer,
    TimerService,
    UNIXServer,
)
from twisted.application.service import Application, IServiceCollection, MultiService
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.ssl import optionsForClientTLS
from twisted.internet.testing import MemoryReactorClock
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.protocols.wire import Echo
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.server import Site

from admission import Admission
from admission.connection.wrapping import WrappedFactory
from admission.listening.services import wrapPorts, wrapServices


class ListeningReactor(MemoryReactorClock):
    """One that notes what it listens for, as it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.adopted: list[Any] = []

    def getThreadPool(self) -> None:
        """There is none."""

    def adoptStreamPort(self, fileDescriptor: int, addressFamily: int, factory: Any) -> None:
        """Note it."""
        self.adopted.append(factory)


class ServicesTestCase(SynchronousTestCase):
    """An admission of its own for each test."""

    def setUp(self) -> None:
        self.reactor: Any = ListeningReactor()
        self.admission = Admission(pool="bounded:1MiB", reactor=self.reactor, clock=self.reactor)
        self.echo: Any = Factory.forProtocol(Echo)
        self.site = Site(Resource(), reactor=self.reactor)

    def isProtected(self, factory: Any, whose: Any) -> bool:
        """Whether a factory protects another one: a site's requests, and of any other its bytes."""
        if not isinstance(factory, WrappedFactory):
            return False
        isSite = isinstance(whose, Site)
        inner = factory.wrappedFactory._site if isSite else factory.wrappedFactory
        return inner is whose and factory.countsBytes is not isSite


class WrapServicesTests(ServicesTestCase):
    """L{wrapServices}."""

    def test_everything(self) -> None:
        """Each server listens for a protected factory, however deep it is in the application; the rest stays."""
        application: Any = Application("mine")
        inner = MultiService()
        endpoint = StreamServerEndpointService(TCP4ServerEndpoint(self.reactor, 1), self.site)
        services = [
            TCPServer(2, self.echo, interface="127.0.0.1", reactor=self.reactor),
            TCPServer(3, factory=self.site, reactor=self.reactor),
            UNIXServer("/socket", self.echo, reactor=self.reactor),
            SSLServer(4, self.echo, object(), reactor=self.reactor),
            TimerService(1.0, lambda: None),
        ]
        for each in (endpoint, inner):
            each.setServiceParent(application)
        for each in services:
            each.setServiceParent(inner)
        self.assertIs(wrapServices(application, self.admission), application)
        self.assertTrue(self.isProtected(endpoint.factory, self.site))
        IServiceCollection(application).privilegedStartService()
        tcp = {port: factory for port, factory, *_ in self.reactor.tcpServers}
        self.assertTrue(self.isProtected(tcp[2], self.echo) and self.isProtected(tcp[3], self.site))
        self.assertTrue(self.isProtected(self.reactor.unixServers[0][1], self.echo))
        self.assertTrue(self.isProtected(self.reactor.sslServers[0][1], self.echo))

    def test_siteSettings(self) -> None:
        """Settings of sites are theirs."""
        service = TCPServer(1, self.site)
        wrapServices(service, self.admission, maxBodyBytes=7)
        self.assertEqual(service.args[1].wrappedFactory.served.maxBodyBytesOf("GET"), 7)

    def test_protectedAlready(self) -> None:
        """What is protected already listens as it is."""
        wrapped = self.admission.wrap(self.echo)
        service = wrapServices(TCPServer(1, wrapped), self.admission)
        self.assertIs(service.args[1], wrapped)

    def test_mistakes(self) -> None:
        """What cannot be protected is refused in a sentence."""
        running = TCPServer(1, self.echo, reactor=self.reactor)
        running.startService()
        for service, words in (
            (object(), "give an Application, or another IService"),
            (MultiService(), "it has no servers yet"),
            (running, "it runs already"),
        ):
            error = self.assertRaises((TypeError, ValueError), wrapServices, service, self.admission)
            self.assertIn(words, str(error))


class WrapPortsTests(ServicesTestCase):
    """L{wrapPorts}."""

    def setUp(self) -> None:
        super().setUp()
        wrapPorts(self.admission, self.reactor)

    def test_everything(self) -> None:
        """Whatever is listened for from now on is protected, by whichever method and however it is called."""
        reactor = self.reactor
        reactor.listenTCP(1, self.echo, 50, interface="::1")
        reactor.listenTCP(2, factory=self.site)
        reactor.listenUNIX("/socket", self.echo)
        reactor.listenSSL(3, self.echo, object())
        reactor.adoptStreamPort(7, 2, self.echo)
        TCP4ServerEndpoint(reactor, 4).listen(self.echo)
        (_, first, backlog, interface), (_, second, *_), (_, third, *_) = reactor.tcpServers
        self.assertEqual((backlog, interface), (50, "::1"))
        unix, tls = reactor.unixServers[0][1], reactor.sslServers[0][1]
        for factory in (first, third, unix, tls, *reactor.adopted):
            self.assertTrue(self.isProtected(factory, self.echo))
        self.assertTrue(self.isProtected(second, self.site))

    def test_left(self) -> None:
        """What TLS is around was protected before, and our own pages and wrapped factories stay as they are."""
        wrapped = self.admission.wrap(self.echo)
        tls = TLSMemoryBIOFactory(optionsForClientTLS("localhost"), True, wrapped)  # type: ignore[no-untyped-call]
        page = self.admission.statusSite()
        for factory in (wrapped, tls, page):
            self.reactor.listenTCP(1, factory)
            self.assertIs(self.reactor.tcpServers.pop()[1], factory)

    def test_mistakes(self) -> None:
        """What does not listen is no reactor, and what makes no admission is none."""
        for arguments, words in (
            ((self.admission, object()), "give a reactor that listens"),
            (("bounded:64MiB",), "give an Admission, or a function that makes one"),
        ):
            self.assertIn(words, str(self.assertRaises(TypeError, wrapPorts, *arguments)))

    def test_choosesNoReactor(self) -> None:
        """For any reactor of the process it is called before there is one, and makes the admission with a port."""
        program = (
            "import sys; from admission import Admission, wrapPorts; made = []\n"
            "wrapPorts(lambda: made.append(1) or Admission(pool='bounded:1MiB'))\n"
            "assert 'twisted.internet.reactor' not in sys.modules and not made\n"
            "from twisted.internet import reactor; from twisted.protocols.wire import Echo\n"
            "from twisted.internet.protocol import Factory\n"
            "ports = [reactor.listenTCP(0, Factory.forProtocol(Echo), interface='127.0.0.1') for _ in range(2)]\n"
            "print(len(made), *[type(port.factory).__name__ for port in ports])\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
        self.assertEqual((done.stdout, done.stderr), ("1 WrappedFactory WrappedFactory\n", ""))

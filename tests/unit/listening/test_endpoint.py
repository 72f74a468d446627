"""L{admission.listening.endpoint}."""

from __future__ import annotations

from typing import Any

from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Factory
from twisted.protocols.wire import Echo
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.server import Site

from admission.connection.wrapping import WrappedFactory
from admission.listening.endpoint import WrongDescription
from admission.status.site import StatusSite
from admission.units import formatBytes
from tests.unit.listening.test_services import ListeningReactor


class EndpointTests(SynchronousTestCase):
    """Descriptions that begin with C{admission:}."""

    def setUp(self) -> None:
        self.reactor: Any = ListeningReactor()
        self.echo: Any = Factory.forProtocol(Echo)
        self.site = Site(Resource(), reactor=self.reactor)

    def listen(self, description: str, factory: Any = None) -> Any:
        """Listen, and see what does."""
        endpoint = serverFromString(self.reactor, description)  # type: ignore[no-untyped-call]
        self.successResultOf(endpoint.listen(self.echo if factory is None else factory))
        return self.reactor.tcpServers[-1][1]

    def test_bytes(self) -> None:
        """Any factory has its bytes bounded, as the settings say, on the endpoint that the rest describes."""
        protected = self.listen(
            r"admission:tcp:8080:interface=127.0.0.1:backlog=7:pool=bounded\:2MiB:order=fifo:maxConnections=9"
            r":idleSeconds=1m:quota=client-bytes\:received=1M,connections\:perSecond=5"
        )
        self.assertIsInstance(protected, WrappedFactory)
        self.assertIs(protected.wrappedFactory, self.echo)
        port, _, backlog, interface = self.reactor.tcpServers[0]
        self.assertEqual((port, backlog, interface), (8080, 7, "127.0.0.1"))
        self.assertEqual(formatBytes(protected.gate.pool.sizeBytes), "2MiB")
        self.assertEqual((protected.limits.maxConnections, protected.limits.idleSeconds), (9, 60.0))
        self.assertEqual(protected.control.policyNames, ("client-bytes", "connections"))

    def test_site(self) -> None:
        """A site has its requests admitted, and settings of its own."""
        protected = self.listen(
            r"admission:tcp:8080:quota=requests\:rate=5:maxBodyBytes=1MiB:namesPolicies=yes"
            r":trustedProxies=10.0.0.0/8,fd00\:\:/8:clientHeader=forwarded",
            self.site,
        )
        served = protected.wrappedFactory.served
        self.assertEqual((served.maxBodyBytesOf("GET"), served.refusals._namesPolicies), (1 << 20, True))
        self.assertTrue("10.1.2.3" in protected.trustedProxies and "fd12::1" in protected.trustedProxies)
        self.assertEqual(served.clientHeader._name, "forwarded")

    def test_name(self) -> None:
        """Ports of one name share everything, and only the first says what; ports without a name share nothing."""
        first = self.listen(r"admission:tcp:1:name=all:pool=bounded\:2MiB:maxConnections=9")
        second = self.listen("admission:tcp:2:name=all:maxConnections=9:maxBodyBytes=7", self.site)
        others = [self.listen(r"admission:tcp:3:pool=bounded\:2MiB") for _ in range(2)]
        self.assertIs(first.gate, second.gate)
        self.assertEqual(len({id(each.gate) for each in (first, second, *others)}), 3)
        self.assertEqual(second.wrappedFactory.served.maxBodyBytesOf("GET"), 7)
        elsewhere = ListeningReactor()
        endpoint = serverFromString(elsewhere, "admission:tcp:2:name=all")  # type: ignore[no-untyped-call]
        self.successResultOf(endpoint.listen(self.echo))
        self.assertIsNot(elsewhere.tcpServers[0][1].gate, first.gate)

    def test_status(self) -> None:
        """The page listens once for all ports of a name: at a port of this machine, or anywhere."""
        for status, interface in (("9090", "127.0.0.1"), (r"tcp\:9090\:interface=192.0.2.1", "192.0.2.1")):
            for port in (1, 2):
                self.listen(f"admission:tcp:{port}:name=one{interface}:status={status}")
            pages = [each for each in self.reactor.tcpServers if isinstance(each[1], StatusSite)]
            self.assertEqual([(port, where) for port, _, _, where in pages], [(9090, interface)])
            self.reactor.tcpServers.clear()

    def test_noPage(self) -> None:
        """Where the page cannot listen, nothing does, and the failure says so."""
        listen = self.reactor.listenTCP
        stopped: list[int] = []

        def refuse(port: int, *arguments: Any, **keywords: Any) -> Any:
            if port == 9090:
                raise CannotListenError("127.0.0.1", port, OSError("taken"))
            listening = listen(port, *arguments, **keywords)
            listening.stopListening = lambda: stopped.append(port)
            return listening

        self.reactor.listenTCP = refuse
        endpoint = serverFromString(self.reactor, "admission:tcp:1:status=9090")  # type: ignore[no-untyped-call]
        failure = self.failureResultOf(endpoint.listen(self.echo), CannotListenError)
        self.assertEqual((failure.value.port, stopped), (9090, [1]))
        self.reactor.listenTCP = listen
        self.successResultOf(endpoint.listen(self.site))

    def test_mistakes(self) -> None:
        """Each mistake is one sentence, with which a program ends that has not prepared for it."""
        for description, words in (
            ("admission", "say what to listen on, as in admission:tcp:8080"),
            ("admission:pool=unbounded", "say what to listen on"),
            ("admission:nowhere:8080", "'nowhere:8080' is no endpoint of Twisted"),
            ("admission:tcp:8080:pol=unbounded", "settings of admission are name, status, pool"),
            ("admission:tcp:8080:pool=bounded:64MiB", r"a colon in a setting is written \:"),
            (r"admission:tcp:8080:pool=bundled", "pool: no memory pool is called 'bundled'"),
            (r"admission:tcp:8080:quota=client-bytes\:recieved=1M", "client-bytes has no argument 'recieved'"),
            ("admission:tcp:8080:maxConnections=few", "maxConnections=few: few is not a whole number"),
            ("admission:tcp:8080:idleSeconds=0s", "idleSeconds=0.0: write a number, more than 0"),
            ("admission:tcp:8080:idleSeconds=long", "idleSeconds=long"),
            ("admission:tcp:8080:maxBodyBytes=much", "maxBodyBytes=much"),
            ("admission:tcp:8080:namesPolicies=perhaps", "namesPolicies=perhaps: say yes or no"),
            ("admission:tcp:8080:status=nowhere", "status=nowhere: write a port, or an endpoint"),
            ("admission:tcp:8080:trustedProxies=10.0.0.1/8", "trustedProxies: '10.0.0.1/8' is no network"),
            ("admission:haproxy:tcp:8080:trustedProxies=10.0.0.0/8", "haproxy: reads the header itself"),
        ):
            error = self.assertRaises(WrongDescription, serverFromString, self.reactor, description)
            self.assertIn(words, str(error))
            self.assertEqual((error.code, isinstance(error, ValueError)), (str(error), True))

    def test_otherSettings(self) -> None:
        """Ports of one name say the same, or nothing."""
        self.listen(r"admission:tcp:1:name=all:pool=bounded\:2MiB")
        for setting, words in ((r"pool=bounded\:3MiB", "had pool=bounded:2MiB"), ("maxConnections=5", "had none")):
            description = f"admission:tcp:2:name=all:{setting}"
            error = self.assertRaises(WrongDescription, serverFromString, self.reactor, description)
            self.assertIn(words, str(error))

    def test_likeTheInner(self) -> None:
        """What is asked of the endpoint that it protects is answered; a name of systemd's is systemd's."""
        endpoint = serverFromString(self.reactor, "admission:tcp:8080")  # type: ignore[no-untyped-call]
        self.assertEqual(endpoint._port, 8080)
        self.assertFalse(hasattr(endpoint, "nothing"))
        description = "admission:systemd:domain=INET:name=web"
        error = self.assertRaises(WrongDescription, serverFromString, self.reactor, description)
        self.assertIn("systemd:domain=INET:name=web", str(error))

    def test_protectedAlready(self) -> None:
        """A server that is protected has settings of its own, and others would have no effect."""
        wrapped = self.listen("admission:tcp:1")
        endpoint = serverFromString(self.reactor, "admission:tcp:2")  # type: ignore[no-untyped-call]
        error = self.assertRaises(WrongDescription, endpoint.listen, wrapped)
        self.assertIn("protected already", str(error))

    def test_wrongFactory(self) -> None:
        """Settings that would have no effect on a factory are refused when it is there."""
        for setting, words in (
            ("maxBodyBytes=1MiB", "maxBodyBytes: only a site has that, and Factory is none"),
            (r"quota=concurrency\:limit=5", "quota: concurrency would limit nobody"),
        ):
            endpoint = serverFromString(self.reactor, f"admission:tcp:1:{setting}")  # type: ignore[no-untyped-call]
            error = self.assertRaises(WrongDescription, endpoint.listen, self.echo)
            self.assertIn(words, str(error))

"""L{admission.web.forwarded}."""

from __future__ import annotations

from hypothesis import given, strategies as st
from twisted.internet.address import IPv4Address
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http_headers import Headers

from admission.connection.trustedproxies import TrustedProxies
from admission.web.forwarded import MAX_PROXIES, ClientHeader
from tests.kit.proxyheaders import versionOne
from tests.kit.website import WebServer

PROXY, ONE, OTHER = "10.0.0.1", "192.0.2.7", "2001:db8::8"

PROXIES = TrustedProxies("10.0.0.0/8")


def clientOf(name: str, *values: str, host: str = PROXY) -> str:
    """The client whose request has these headers."""
    headers = Headers({name: [value.encode() for value in values]} if values else {})
    return ClientHeader(name, PROXIES).clientOf(headers, host)


class ClientHeaderTests(SynchronousTestCase):
    """L{ClientHeader}."""

    def test_client(self) -> None:
        """It is the last address that is no proxy's, in any form that proxies write."""
        for values, client in (
            (["192.0.2.7"], ONE),
            (["203.0.113.9, 192.0.2.7"], ONE),
            (["203.0.113.9", "192.0.2.7, 10.1.2.3"], ONE),
            (["192.0.2.7:4711"], ONE),
            (["2001:DB8:0::8"], OTHER),
            (["[2001:db8::8]:443"], OTHER),
            (["::ffff:192.0.2.7"], ONE),
            (["10.0.0.2, 10.0.0.3"], "10.0.0.2"),
            ([], PROXY),
        ):
            self.assertEqual(clientOf("X-Forwarded-For", *values), client)

    def test_forwarded(self) -> None:
        """The other header says it by pairs, and what a client leaves open in front of them closes nothing."""
        for values, client in (
            (["for=192.0.2.7"], ONE),
            (['for=203.0.113.9;by=x, For="192.0.2.7:80";proto=https;host=a'], ONE),
            (['for="[2001:db8::8]:443"'], OTHER),
            (['for="203.0.113.9', "for=192.0.2.7"], ONE),
            (["for=192.0.2.7, for=10.0.0.9"], ONE),
            (["proto=https"], PROXY),
        ):
            self.assertEqual(clientOf("Forwarded", *values), client)

    def test_nobody(self) -> None:
        """Where a proxy names nobody, the client is that proxy, and never what a client made up in front of that."""
        for value, client in (
            ("unknown", PROXY),
            ("192.0.2.7, unknown", PROXY),
            ("192.0.2.7, nonsense, 10.0.0.3", "10.0.0.3"),
            ("192.0.2.7, ", PROXY),
        ):
            self.assertEqual(clientOf("x-forwarded-for", value), client)

    def test_notTrusted(self) -> None:
        """Nobody else is believed."""
        self.assertEqual(clientOf("x-forwarded-for", "192.0.2.7", host="192.0.2.99"), "192.0.2.99")

    def test_manyProxies(self) -> None:
        """However long the header is, only its end is read."""
        value = ", ".join([ONE, *["10.0.0.2"] * MAX_PROXIES])
        self.assertEqual(clientOf("x-forwarded-for", value), "10.0.0.2")
        self.assertEqual(clientOf("x-forwarded-for", "x," * 100_000 + ONE), ONE)

    @given(st.text(st.characters(max_codepoint=0x7F, exclude_characters="\r\n\0")))
    def test_anything(self, madeUp: str) -> None:
        """Whatever a client sends, it is taken for the one that the proxy has seen."""
        self.assertEqual(clientOf("x-forwarded-for", f"{madeUp}, 192.0.2.7"), ONE)
        self.assertEqual(clientOf("forwarded", f"{madeUp}, for=192.0.2.7"), ONE)

    def test_mistakes(self) -> None:
        """Another header is refused in a sentence."""
        error = self.assertRaises(ValueError, ClientHeader, "x-real-ip", PROXIES)
        self.assertIn("clientHeader='x-real-ip': write the header that your proxies set", str(error))


class SiteTests(SynchronousTestCase):
    """A site behind proxies."""

    def test_limits(self) -> None:
        """Limits go by the client's address, over any connections of any proxy, and the site is told it as well."""
        server = WebServer(self, quota="requests:rate=1:burst=2", trustedProxies="10.0.0.0/8")
        proxies = [server.connect(f"10.0.0.{number}") for number in (1, 2)]
        for client in (ONE, OTHER):
            statuses = [proxies[turn % 2].ask("GET /", f"X-Forwarded-For: {client}").status for turn in range(4)]
            self.assertEqual(statuses, [200, 200, 429, 429])
        self.assertEqual({request.getClientAddress().host for request in server.pages.requests}, {ONE, OTHER})

    def test_forged(self) -> None:
        """What others send says nothing: neither without a proxy, nor by the header that the proxy does not set."""
        server = WebServer(self, quota="requests:rate=1:burst=2", trustedProxies="10.0.0.0/8")
        direct, proxy = server.connect(ONE), server.connect(PROXY)
        statuses = [direct.ask("GET /", f"X-Forwarded-For: 198.51.100.{turn}").status for turn in range(3)]
        self.assertEqual(statuses, [200, 200, 429])
        lines = [(f"X-Forwarded-For: {OTHER}", f"Forwarded: for=198.51.100.{turn}") for turn in range(3)]
        self.assertEqual([proxy.ask("GET /", *each).status for each in lines], [200, 200, 429])

    def test_proxyProtocol(self) -> None:
        """A header of the PROXY protocol may come first, and then names the client, or the proxy in between."""
        server = WebServer(self, quota="requests:rate=1:burst=1", trustedProxies="10.0.0.0/8")
        client, proxied = server.connect(PROXY), server.connect(PROXY)
        client.raw(versionOne(ONE))
        self.assertEqual([client.ask("GET /", f"X-Forwarded-For: {OTHER}").status for _ in range(2)], [200, 429])
        proxied.raw(versionOne("10.0.0.9"))
        self.assertEqual([proxied.ask("GET /", f"X-Forwarded-For: {OTHER}").status for _ in range(2)], [200, 429])
        self.assertEqual(
            [request.getClientAddress() for request in server.pages.requests][:1], [IPv4Address("TCP", ONE, 40000)]
        )

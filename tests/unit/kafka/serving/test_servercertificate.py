"""Tests for L{admission.kafka.serving.servercertificate}, and of what options make of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from twisted.internet.interfaces import IOpenSSLServerConnectionCreator, IStreamServerEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.testing import MemoryReactor
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from admission.kafka.serving.servercertificate import CurrentCertificate, TLSEndpoint
from admission.kafka.serving.serveroptions import Listener, certificatesAnew
from tests.kit.certificates import Authority


class CertificateTestCase(SynchronousTestCase):
    """A test with files of certificates."""

    def setUp(self) -> None:
        self.reactor = MemoryReactor()
        self.directory = Path(self.mktemp()).absolute()
        self.directory.mkdir()
        self.key, self.certificate, self.authority = (
            self.directory / name for name in ("key.pem", "certificate.pem", "authority.pem")
        )
        self.renew()

    def renew(self) -> None:
        """Have an authority of its own make a certificate."""
        authority = Authority()
        identity = authority.server()
        self.key.write_bytes(identity.key)
        self.certificate.write_bytes(identity.certificate)
        self.authority.write_bytes(authority.certificate)

    def ssl(self, port: int = 9093) -> str:
        """An endpoint of Twisted's."""
        return f"ssl:{port}:privateKey={self.key}:certKey={self.certificate}"

    def mtls(self, port: int = 9094) -> str:
        """An endpoint of ours."""
        return f"mtls:{port}:privateKey={self.key}:certKey={self.certificate}:caKey={self.authority}"

    def listener(self, description: str) -> Listener:
        """One that listens."""
        endpoint = TLSEndpoint(self.reactor, description)
        verifyObject(IStreamServerEndpoint, endpoint)
        endpoint.listen(Factory())
        return Listener(description, endpoint, None)

    def creators(self) -> list[Any]:
        """What makes the TLS connections of each port."""
        return [server[2] for server in self.reactor.sslServers]


class TLSEndpointTests(CertificateTestCase):
    """L{TLSEndpoint} listens as Twisted's endpoint would, but for the certificate that may change."""

    def test_listen(self) -> None:
        """It listens on the port that it names, with other endpoints before it or not; it reads nothing more then."""
        for number, description in enumerate((self.ssl(), self.mtls(9093), f"haproxy:{self.ssl()}")):
            endpoint: Any = self.listener(f"{description}:backlog=7:interface=192.0.2.1").endpoint
            port, _, creator, *others = self.reactor.sslServers[number]
            self.assertEqual((port, others), (9093, [7, "192.0.2.1"]))
            verifyObject(IOpenSSLServerConnectionCreator, creator)
            self.assertIs(creator.serverConnectionForTLS(None).get_context(), creator.context)
            self.assertTrue(endpoint.hasCertificate)
            endpoint.read()
            self.assertEqual(len(self.reactor.sslServers), number + 1)

    def test_use(self) -> None:
        """New connections use another context once they are told to; those that have begun keep theirs."""
        endpoint: Any = self.listener(self.ssl()).endpoint
        (creator,) = self.creators()
        before = creator.serverConnectionForTLS(None)
        context = endpoint.read()
        self.assertIs(creator.serverConnectionForTLS(None).get_context(), before.get_context())
        endpoint.use(context)
        self.assertIs(creator.serverConnectionForTLS(None).get_context(), context)
        self.assertIsNot(before.get_context(), context)

    def test_withoutTLS(self) -> None:
        """One that listens without TLS in spite of its name has no certificate."""
        endpoint = TLSEndpoint(self.reactor, "unix:ssl")
        endpoint.listen(Factory())
        self.assertFalse(endpoint.hasCertificate)
        self.assertEqual(certificatesAnew([Listener("unix:ssl", endpoint, None)]), [])


class AnewTests(CertificateTestCase):
    """L{certificatesAnew} reads what all ports need, or nothing."""

    def test_shared(self) -> None:
        """Ports with the same files get the same context, others another, and those without TLS none."""
        plain = Listener("tcp:1", Any, None)  # type: ignore[arg-type]
        ports = [self.listener(self.ssl(port)) for port in (9093, 9094)]
        found = certificatesAnew([*ports, plain, self.listener(self.mtls(9095))])
        self.assertEqual([endpoint for endpoint, _ in found[:2]], [each.endpoint for each in ports])
        first, second, third = (context for _, context in found)
        self.assertIs(first, second)
        self.assertIsNot(first, third)

    def test_mistakes(self) -> None:
        """A file that is missing, is not PEM or does not belong to the other is named, in one sentence."""
        self.listener(self.mtls())
        listeners = [self.listener(description) for description in (self.ssl(), self.mtls())]
        self.assertIsInstance(self.creators()[0], CurrentCertificate)
        other = Authority().server()
        for path, content, words in (
            (self.key, other.key, "Certificate public and private keys do not match"),
            (self.key, b"no key", "OpenSSL cannot read the key or a certificate in PEM"),
            (self.certificate, b"", "OpenSSL cannot read the key or a certificate in PEM"),
            (self.authority, b"", f"{self.authority} has no certificate in PEM"),
            (self.certificate, None, "No such file or directory"),
        ):
            before = path.read_bytes()
            if content is None:
                os.unlink(path)
            else:
                path.write_bytes(content)
            error = str(self.assertRaises(UsageError, certificatesAnew, listeners))
            self.assertRegex(error, r"\Am?tls:|\Assl:")
            self.assertIn(words, error)
            self.assertNotIn("\n", error)
            path.write_bytes(before)
        self.assertEqual(len(certificatesAnew(listeners)), 2)

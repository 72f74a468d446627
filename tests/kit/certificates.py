"""Certificates for the tests, made as they are needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from twisted.internet.ssl import Certificate, CertificateOptions, PrivateCertificate, optionsForClientTLS

_LIFETIME = timedelta(days=1)


@frozen
class Identity:
    """
    A certificate and its key, in PEM.

    @ivar certificate: the certificate.
    @ivar key: its private key, not encrypted.
    """

    certificate: bytes
    key: bytes

    def options(self) -> CertificateOptions:
        """What a server presents itself with."""
        options: CertificateOptions = PrivateCertificate.loadPEM(self.key + self.certificate).options()
        return options


class Authority:
    """
    A certificate authority that lives as long as a test.

    @ivar certificate: its own certificate, in PEM.
    """

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("Authority of the tests")
        builder = _builder(self._name, self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM)

    def server(self, isExpired: bool = False) -> Identity:
        """The identity of a server on this machine: C{localhost}, and its first loopback addresses."""
        addresses = (x509.IPAddress(ip_address(f"127.0.0.{number}")) for number in range(1, 10))
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses])
        return self._identity("localhost", ExtendedKeyUsageOID.SERVER_AUTH, names, isExpired)

    def client(self, name: str) -> Identity:
        """The identity of the client called C{name}."""
        return self._identity(name, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def trust(self, client: Identity | None = None) -> object:
        """
        What a client connects with that trusts this authority.

        @param client: who it says it is, if anybody asks.
        """
        own = None if client is None else PrivateCertificate.loadPEM(client.key + client.certificate)
        return optionsForClientTLS("localhost", Certificate.loadPEM(self.certificate), own)

    def _identity(
        self,
        name: str,
        usage: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None,
        isExpired: bool = False,
    ) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(name), self._name, key, isExpired)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return Identity(
            builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )


@frozen
class Certificates:
    """
    PEM files.

    @ivar authority: the certificate of the authority that signed the others.
    """

    authority: Path
    serverKey: Path
    serverCertificate: Path
    clientKey: Path
    clientCertificate: Path


def makeCertificates(directory: Path) -> Certificates:
    """Write an authority, a server and a client into C{directory}, which is made if it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    authority = Authority()
    server, client = authority.server(), authority.client("client")

    def written(name: str, content: bytes) -> Path:
        path = directory / f"{name}.pem"
        path.write_bytes(content)
        return path

    return Certificates(
        written("authority", authority.certificate),
        written("server-key", server.key),
        written("server", server.certificate),
        written("client-key", client.key),
        written("client", client.certificate),
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, isExpired: bool = False
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LIFETIME)
        .not_valid_after(now - _LIFETIME / 2 if isExpired else now + _LIFETIME)
    )

# -*- test-case-name: tests.unit.kafka.security.test_security -*-
"""
TLS with client certificates, and the names of their subjects.
"""

from __future__ import annotations

import re
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID
from OpenSSL.crypto import FILETYPE_PEM, X509, load_certificate
from twisted.internet.endpoints import SSL4ServerEndpoint
from twisted.internet.ssl import CertificateOptions, PrivateCertificate

from admission.boundedfile import readBounded

_KEYWORDS = {
    NameOID.COMMON_NAME: "CN",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.COUNTRY_NAME: "C",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}

_TO_BE_ESCAPED = re.compile(r'[,=+<>#;"\\]|^ +| +$')
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----\n.+?\n-----END CERTIFICATE-----", re.DOTALL)


def subjectName(subject: x509.Name) -> str:
    """
    Write a subject by RFC 2253, as Kafka names the clients of its TLS ports:
    the last component first, as in C{CN=client,O=Acme}.

    Attributes for which the RFC has no keyword are written as their number and
    the bytes of their DER encoding, as in
    C{1.2.840.113549.1.9.1=#16086d6540782e6f7267}.
    """
    return ",".join("+".join(map(_attribute, component)) for component in reversed(subject.rdns))


def _attribute(attribute: x509.NameAttribute[Any]) -> str:
    keyword = _KEYWORDS.get(attribute.oid)
    if keyword is None:
        return f"{attribute.oid.dotted_string}=#{_encodedValue(attribute).hex()}"
    return f"{keyword}={_TO_BE_ESCAPED.sub(_escaped, attribute.value)}"


def _escaped(match: re.Match[str]) -> str:
    return "".join(f"\\{character}" for character in match[0])


def _encodedValue(attribute: x509.NameAttribute[Any]) -> bytes:
    # A name of one attribute is a sequence of a set of a sequence of two: the type and the value.
    content = x509.Name([attribute]).public_bytes()
    for _ in range(3):
        content, _ = _split(content)
    _, value = _split(content)
    return value


def _split(encoded: bytes) -> tuple[bytes, bytes]:
    """
    The content of the first element of some DER, and what follows it.
    """
    sizeBytes, begin = encoded[1], 2
    if sizeBytes & 0x80:
        begin += sizeBytes & 0x7F
        sizeBytes = int.from_bytes(encoded[2:begin], "big")
    return encoded[begin : begin + sizeBytes], encoded[begin + sizeBytes :]


def listenWithCertificates(
    reactor: Any,
    port: str,
    privateKey: str = "",
    certKey: str = "",
    caKey: str = "",
    interface: str = "",
    backlog: str = "50",
    required: str = "yes",
) -> SSL4ServerEndpoint:
    """
    The endpoint C{mtls:PORT:privateKey=..:certKey=..:caKey=..}: TLS with
    certificates of clients, all signed by the authorities in the file C{caKey}.

    @param privateKey: a file in PEM.
    @param certKey: our certificate, in PEM, followed by the chain to its authority.
    @param required: C{no} also accepts clients without a certificate.
    @raise ValueError: with a sentence, if an argument is missing or makes no sense.
    """
    files = {"privateKey": privateKey, "certKey": certKey, "caKey": caKey}
    missing = [name for name, path in files.items() if not path]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must name a file")
    if required not in ("yes", "no"):
        raise ValueError(f"required is {required!r}, and it can be yes or no")
    own, *chain = _certificates(certKey)
    identity = PrivateCertificate.loadPEM(readBounded(privateKey) + b"\n" + own)  # type: ignore[no-untyped-call]
    options = CertificateOptions(
        privateKey=identity.privateKey.original,
        certificate=identity.original,
        extraCertChain=[_loaded(each) for each in chain],
        # trustRoot would be the modern way, but cannot make certificates optional.
        verify=True,
        caCerts=[_loaded(each) for each in _certificates(caKey)],
        requireCertificate=required == "yes",
    )
    return SSL4ServerEndpoint(reactor, int(port), options, int(backlog), interface)  # type: ignore[no-untyped-call]


def _certificates(path: str) -> list[bytes]:
    found = _CERTIFICATE.findall(readBounded(path))
    if not found:
        raise ValueError(f"{path} has no certificate in PEM")
    return found


def _loaded(certificate: bytes) -> X509:
    return load_certificate(FILETYPE_PEM, certificate)

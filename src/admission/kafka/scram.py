# -*- test-case-name: tests.unit.kafka.test_scram -*-
"""
SCRAM (RFC 5802, RFC 7677) without I/O: the keys of a password, for both sides,
and the server's messages.

Names and passwords are encoded in UTF-8 without SASLprep.  That departs from
the RFC, but Kafka and its clients do it, and both sides must do the same.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping

from attrs import field, frozen

HASHES: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The mechanisms, and the hash function of each by its name in L{hashlib}."""

MIN_ITERATIONS = 4096
"""RFC 7677 asks for no fewer, and clients refuse fewer."""

MAX_ITERATIONS = 1_000_000
"""Clients refuse more, which would keep their reactor busy for seconds."""

_FIRST = re.compile(r"(?P<gs2>[ny],(?:a=(?P<authzid>[^,]+))?,)(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[^,]+)(?:,.*)?)")
_FINAL = re.compile(r"(?P<withoutProof>c=(?P<binding>[^,]+),r=(?P<nonce>[^,]+)(?:,.*)?),p=(?P<proof>[^,]+)")
_ESCAPE = re.compile(r"=(.{0,2})")
_ESCAPED = {"2C": ",", "3D": "="}


class ScramError(ValueError):
    """
    A message is malformed, or asks for a feature that is not offered.
    """


@frozen(repr=False)
class ScramKeys:
    """
    The keys derived from a password.
    """

    client: bytes
    stored: bytes
    server: bytes

    @classmethod
    def ofPassword(cls, mechanism: str, password: bytes, iterations: int, salt: bytes) -> ScramKeys:
        """
        Hash a password.  With SHA-256 this takes about a third of a microsecond per
        iteration.  May be called in any thread.
        """
        return cls.ofSaltedPassword(mechanism, hashlib.pbkdf2_hmac(HASHES[mechanism], password, salt, iterations))

    @classmethod
    def ofSaltedPassword(cls, mechanism: str, salted: bytes) -> ScramKeys:
        """
        Derive the keys from a password that was hashed already.
        """
        hashName = HASHES[mechanism]
        client = hmac.digest(salted, b"Client Key", hashName)
        return cls(client, hashlib.new(hashName, client).digest(), hmac.digest(salted, b"Server Key", hashName))


@frozen
class ScramSecret:
    """
    The part of a password that a server stores for one mechanism: enough to check a
    client's proof, and not enough to make one.

    @ivar mechanism: a key of L{HASHES}.
    @ivar iterations: how often the password was hashed.
    """

    mechanism: str
    iterations: int
    salt: bytes
    storedKey: bytes = field(repr=False)
    serverKey: bytes = field(repr=False)

    @classmethod
    def ofPassword(cls, mechanism: str, password: bytes, iterations: int, salt: bytes) -> ScramSecret:
        """
        Hash a password; L{ScramKeys.ofPassword} says how long that takes.
        """
        keys = ScramKeys.ofPassword(mechanism, password, iterations, salt)
        return cls(mechanism, iterations, salt, keys.stored, keys.server)

    @classmethod
    def ofSaltedPassword(cls, mechanism: str, salted: bytes, iterations: int, salt: bytes) -> ScramSecret:
        """
        @param salted: the password, which the client has hashed with C{iterations} and C{salt}.
        """
        keys = ScramKeys.ofSaltedPassword(mechanism, salted)
        return cls(mechanism, iterations, salt, keys.stored, keys.server)

    def isPassword(self, password: bytes) -> bool:
        """
        Whether the secret was made from C{password}.  As slow as
        L{ofPassword}; may be called in any thread.
        """
        tried = self.ofPassword(self.mechanism, password, self.iterations, self.salt)
        return hmac.compare_digest(tried.storedKey, self.storedKey)


class ScramExchange:
    """
    One login: the client's first message, our challenge, the client's proof,
    our signature.

    @ivar mechanism: a key of L{HASHES}.
    @ivar username: the name that the client claims.
    """

    def __init__(self, mechanism: str, firstMessage: bytes, serverNonce: str) -> None:
        """
        Read the client's first message.

        @param serverNonce: unpredictable, of printable ASCII without commas.
        @raise ScramError: if the message is malformed, asks for channel
            binding, or names another user to act as.
        """
        match = _FIRST.fullmatch(_text(firstMessage))
        if match is None:
            raise ScramError("the first SCRAM message is malformed, or asks for channel binding")
        self.mechanism = mechanism
        self.username = _unescape(match["name"])
        if match["authzid"] is not None and _unescape(match["authzid"]) != self.username:
            raise ScramError("nobody may log in as one user and act as another")
        self._gs2Header = match["gs2"].encode("utf-8")
        self._firstBare = match["bare"]
        self._nonce = match["nonce"] + serverNonce
        self._challenge = ""
        self._authMessage = b""
        self._secret: ScramSecret | None = None

    def challenge(self, secret: ScramSecret) -> bytes:
        """
        Our first message.

        @param secret: the user's secret for this mechanism, or a decoy that no
            password fits.
        """
        self._secret = secret
        self._challenge = f"r={self._nonce},s={_encode(secret.salt)},i={secret.iterations}"
        return self._challenge.encode("utf-8")

    def isProof(self, finalMessage: bytes) -> bool:
        """
        Whether the client's final message proves that it knows the password;
        a malformed one does not.

        @raise RuntimeError: before L{challenge}.
        """
        secret = self._challenged()
        try:
            match = _FINAL.fullmatch(_text(finalMessage))
            if match is None or match["nonce"] != self._nonce or _decode(match["binding"]) != self._gs2Header:
                return False
            proof = _decode(match["proof"])
        except ScramError:
            return False
        hashName = HASHES[secret.mechanism]
        self._authMessage = f"{self._firstBare},{self._challenge},{match['withoutProof']}".encode()
        signature = hmac.digest(secret.storedKey, self._authMessage, hashName)
        if len(proof) != len(signature):
            return False
        clientKey = xor(proof, signature)
        return hmac.compare_digest(hashlib.new(hashName, clientKey).digest(), secret.storedKey)

    def signature(self) -> bytes:
        """
        Our final message, which proves to the client that we know its secret.
        To be sent after L{isProof} has accepted the client's.
        """
        secret = self._challenged()
        signature = hmac.digest(secret.serverKey, self._authMessage, HASHES[secret.mechanism])
        return f"v={_encode(signature)}".encode("ascii")

    def _challenged(self) -> ScramSecret:
        if self._secret is None:
            raise RuntimeError("the client has not been challenged yet")
        return self._secret


def xor(left: bytes, right: bytes) -> bytes:
    """
    @raise ValueError: if the lengths differ.
    """
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _text(message: bytes) -> str:
    try:
        return message.decode("utf-8")
    except UnicodeDecodeError:
        raise ScramError("the SCRAM message is not UTF-8") from None


def _unescape(name: str) -> str:
    def unescaped(match: re.Match[str]) -> str:
        try:
            return _ESCAPED[match[1]]
        except KeyError:
            raise ScramError("in a name, SCRAM writes = as =3D and a comma as =2C") from None

    return _ESCAPE.sub(unescaped, name)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("the SCRAM message has a field that is not base64") from None

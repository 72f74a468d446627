# -*- test-case-name: tests.unit.kafka.client.test_sasl -*-
"""
Telling a broker who we are: SASL PLAIN and SCRAM, the client's side.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable, Generator
from typing import Any, Protocol

from attrs import field, frozen
from kio.schema.errors import ErrorCode
from twisted.internet.defer import Deferred, inlineCallbacks

from .clientconnection import ClientConnection
from .errors import AuthenticationFailed

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"

MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)

MIN_ITERATIONS = 4096
"""Fewer would let whoever listens guess passwords; as in Kafka."""

MAX_ITERATIONS = 1_000_000
"""More would let a broker keep the reactor busy for seconds."""

_HASHES = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
_NONCE_BYTES = 24


@frozen
class Credentials:
    """
    Who we are, and how to prove it.

    @ivar mechanism: one of L{MECHANISMS}.
    """

    mechanism: str = field()
    username: str
    password: str = field(repr=False)

    @mechanism.validator
    def _isKnown(self, attribute: Any, value: str) -> None:
        if value not in MECHANISMS:
            raise ValueError(f"{value!r} is none of the mechanisms {', '.join(MECHANISMS)}")


class Conversation(Protocol):
    """
    The client's part of what is said for one mechanism.
    """

    def first(self) -> bytes:
        """
        What to say first.
        """

    def reply(self, challenge: bytes) -> bytes | None:
        """
        What to say to what the broker says; L{None} once it has said enough.

        @raise AuthenticationFailed: if the broker is not to be believed.
        """


class PlainConversation:
    """
    The password as it is; only for connections that nobody else reads.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def first(self) -> bytes:
        """
        See L{Conversation}.
        """
        return f"\0{self._credentials.username}\0{self._credentials.password}".encode()

    def reply(self, challenge: bytes) -> bytes | None:
        """
        See L{Conversation}.
        """
        return None


class ScramConversation:
    """
    RFC 5802 without channel binding: each side proves that it knows the
    password, and nobody says it.
    """

    def __init__(self, credentials: Credentials, nonce: str | None = None) -> None:
        """
        @param nonce: what makes this conversation unlike any other; made up
            unless given.
        """
        self._credentials = credentials
        self._hashName = _HASHES[credentials.mechanism]
        self._nonce = secrets.token_urlsafe(_NONCE_BYTES) if nonce is None else nonce
        name = credentials.username.replace("=", "=3D").replace(",", "=2C")
        self._firstBare = f"n={name},r={self._nonce}"
        self._serverSignature: bytes | None = None

    def first(self) -> bytes:
        """
        See L{Conversation}.
        """
        return f"n,,{self._firstBare}".encode()

    def reply(self, challenge: bytes) -> bytes | None:
        """
        See L{Conversation}.
        """
        try:
            text = challenge.decode()
            said = dict(part.split("=", 1) for part in text.split(","))
            if self._serverSignature is None:
                return self._prove(text, said["r"], base64.b64decode(said["s"], validate=True), int(said["i"]))
            if "e" in said:
                raise AuthenticationFailed(f"the broker says {said['e']}")
            signature = base64.b64decode(said["v"], validate=True)
        except (KeyError, ValueError, binascii.Error):
            raise AuthenticationFailed(f"the broker's part of {self._credentials.mechanism} makes no sense") from None
        if not hmac.compare_digest(signature, self._serverSignature):
            raise AuthenticationFailed("the broker does not know the password either")
        return None

    def _prove(self, challenge: str, nonce: str, salt: bytes, iterations: int) -> bytes:
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailed("the broker answers another conversation")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise AuthenticationFailed(
                f"the broker asks for {iterations} iterations, not from {MIN_ITERATIONS} to {MAX_ITERATIONS}"
            )
        final = f"c=biws,r={nonce}"
        exchanged = f"{self._firstBare},{challenge},{final}".encode()
        salted = hashlib.pbkdf2_hmac(self._hashName, self._credentials.password.encode(), salt, iterations)
        clientKey = self._hmac(salted, b"Client Key")
        storedKey = hashlib.new(self._hashName, clientKey).digest()
        proof = bytes(a ^ b for a, b in zip(clientKey, self._hmac(storedKey, exchanged), strict=True))
        self._serverSignature = self._hmac(self._hmac(salted, b"Server Key"), exchanged)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hashName)


def conversationFor(credentials: Credentials) -> Conversation:
    """
    The client's part for the mechanism of C{credentials}.
    """
    makers: dict[str, Callable[[Credentials], Conversation]] = {PLAIN: PlainConversation}
    return makers.get(credentials.mechanism, ScramConversation)(credentials)


@inlineCallbacks
def authenticate(connection: ClientConnection, credentials: Credentials) -> Generator[Deferred[Any], Any, None]:
    """
    Have a broker believe who we are.

    @param connection: one that has negotiated versions.
    @return: fails with L{AuthenticationFailed}, or what
        L{ClientConnection.request} fails with.
    """
    mechanism = credentials.mechanism
    response = yield connection.request("SaslHandshake", {"mechanism": mechanism})
    if response.error_code:
        raise AuthenticationFailed(
            f"{connection.peer} does not know {mechanism}, only {', '.join(response.mechanisms) or 'nothing'}"
        )
    conversation = conversationFor(credentials)
    message: bytes | None = conversation.first()
    while message is not None:
        response = yield connection.request("SaslAuthenticate", {"auth_bytes": message})
        if response.error_code:
            reason = response.error_message or ErrorCode(response.error_code).name
            raise AuthenticationFailed(f"{connection.peer} refuses {credentials.username!r}: {reason}")
        message = conversation.reply(response.auth_bytes)

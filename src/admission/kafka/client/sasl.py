# -*- test-case-name: tests.unit.kafka.client.test_sasl -*-
"""
The client's side of SASL PLAIN and SCRAM, as arithmetic on messages.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from typing import Any

from attrs import field, frozen

from ..scram import HASHES, MAX_ITERATIONS, MIN_ITERATIONS, ScramKeys, xor
from .errors import AuthenticationFailed

PLAIN = "PLAIN"
SCRAM_SHA_512 = "SCRAM-SHA-512"

MECHANISMS = (PLAIN, *HASHES)

_NONCE_BYTES = 24


@frozen
class Credentials:
    """
    The user that we log in as, and how we prove it.

    @ivar mechanism: one of L{MECHANISMS}.
    """

    mechanism: str = field()
    username: str
    password: str = field(repr=False)

    @mechanism.validator
    def _isKnown(self, attribute: Any, value: str) -> None:
        if value not in MECHANISMS:
            raise ValueError(f"{value!r} is none of the mechanisms {', '.join(MECHANISMS)}")


class PlainConversation:
    """
    PLAIN (RFC 4616), which needs TLS to keep the password secret.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def first(self) -> bytes:
        return f"\0{self._credentials.username}\0{self._credentials.password}".encode()

    def reply(self, challenge: bytes) -> bytes | None:
        return None


class ScramConversation:
    """
    SCRAM (RFC 5802) without channel binding: each side proves that it knows
    the password without sending it.
    """

    def __init__(self, credentials: Credentials, nonce: str | None = None) -> None:
        """
        @param nonce: unique to this conversation; random unless given.
        """
        self._credentials = credentials
        self._nonce = secrets.token_urlsafe(_NONCE_BYTES) if nonce is None else nonce
        name = credentials.username.replace("=", "=3D").replace(",", "=2C")
        self._firstBare = f"n={name},r={self._nonce}"
        self._serverSignature: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._firstBare}".encode()

    def reply(self, challenge: bytes) -> bytes | None:
        """
        The response to a challenge; L{None} when there is nothing left to send.

        @raise AuthenticationFailed: if the challenge is malformed, or does not
            prove that the broker knows the password.
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
        mechanism = self._credentials.mechanism
        keys = ScramKeys.ofPassword(mechanism, self._credentials.password.encode(), iterations, salt)
        proof = xor(keys.client, hmac.digest(keys.stored, exchanged, HASHES[mechanism]))
        self._serverSignature = hmac.digest(keys.server, exchanged, HASHES[mechanism])
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

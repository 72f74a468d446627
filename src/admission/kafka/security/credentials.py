# -*- test-case-name: tests.unit.kafka.security.test_security -*-
"""
The credentials and the avatars of clients, in the terms of L{twisted.cred}.

Drop-ins import this module, and any Twisted command may import the drop-ins,
so it imports nothing heavy and never touches the reactor.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

from attrs import frozen
from twisted.cred.credentials import ICredentials, IUsernamePassword, UsernamePassword
from twisted.cred.portal import IRealm
from twisted.internet.defer import Deferred
from zope.interface import Attribute, Interface, implementer

from ..scram import ScramExchange, ScramSecret


class IPrincipal(Interface):
    """
    The avatar of a client, which has a name and nothing else.
    """

    name: str = Attribute("Under what name it has logged in.")


class IScramCredentials(ICredentials, Interface):
    """
    The credentials of a client that proves that it knows a password without sending it.

    A checker that takes these enables the SCRAM mechanisms.  It must call
    L{checkSecret} whether it knows the user or not, or names could be probed.
    """

    username: bytes = Attribute("The name that the user gives, in UTF-8.")
    mechanism: str = Attribute("C{SCRAM-SHA-256} or C{SCRAM-SHA-512}.")

    def checkSecret(secret: ScramSecret) -> Deferred[bool]:
        """
        Challenge the client.  Call it once.

        @param secret: the secret of C{username} for C{mechanism}.  For an unknown
            user, a secret that no password fits, and the same each time.
        @return: whether the client then proves that it knows the password.
            Fires when its answer arrives; never, if it disconnects instead.
        """


@implementer(IPrincipal)
@frozen
class Principal:
    """
    See L{IPrincipal}.
    """

    name: str


@implementer(IRealm)
class PrincipalRealm:
    """
    Makes a L{Principal} of any user that a checker has accepted.
    """

    def requestAvatar(self, avatarId: Any, mind: object, *interfaces: Any) -> Any:
        """
        See L{IRealm.requestAvatar}.

        @raise NotImplementedError: for any avatar but L{IPrincipal}.
        """
        if IPrincipal not in interfaces:
            raise NotImplementedError(f"there are principals here, and nothing that provides any of {interfaces}")
        # Some of Twisted's checkers return text.
        name = avatarId.decode("utf-8") if isinstance(avatarId, bytes) else str(avatarId)
        return IPrincipal, Principal(name), _logOut


def _logOut() -> None:
    # A login ends with its connection, which does its own accounting.
    pass


@implementer(IUsernamePassword)
class PlainCredentials(UsernamePassword):
    """
    A name and a password, compared in constant time.
    """

    def checkPassword(self, password: bytes) -> bool:
        return hmac.compare_digest(self.password, password)

    @classmethod
    def ofMessage(cls, message: bytes) -> PlainCredentials:
        """
        Read the one message of SASL PLAIN (RFC 4616).

        @raise ValueError: with a sentence, if C{message} is malformed.
        """
        parts = message.split(b"\0")
        if len(parts) != 3 or not all(parts[1:]):
            raise ValueError("a PLAIN message is an optional authorization id, a name and a password")
        authorizationId, username, password = parts
        if authorizationId not in (b"", username):
            raise ValueError("nobody may log in as one user and act as another")
        try:
            message.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError("a PLAIN message is UTF-8") from None
        return cls(username, password)


@implementer(IScramCredentials)
class ScramCredentials:
    """
    The messages of a SCRAM login, behind L{IScramCredentials}.
    """

    def __init__(self, exchange: ScramExchange, challenge: Callable[[bytes], None]) -> None:
        """
        @param challenge: sends our challenge to the client.
        """
        self.username = exchange.username.encode("utf-8")
        self.mechanism = exchange.mechanism
        self._exchange = exchange
        self._challenge = challenge
        self._proved: Deferred[bool] = Deferred()

    def checkSecret(self, secret: ScramSecret) -> Deferred[bool]:
        self._challenge(self._exchange.challenge(secret))
        return self._proved

    def answered(self, message: bytes) -> None:
        """
        Take the client's answer to the challenge.
        """
        self._proved.callback(self._exchange.isProof(message))

    def signature(self) -> bytes:
        """
        The message that ends a successful login.
        """
        return self._exchange.signature()

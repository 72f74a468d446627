# -*- test-case-name: tests.unit.kafka.gateway.test_observedlogin -*-
"""
The user that logs in at a node, as seen by a gateway that passes the login on.
"""

from __future__ import annotations

from typing import Final

from admission.names import boundedName

from ..scram import HASHES, ScramError, ScramExchange
from ..security.credentials import PlainCredentials
from ..security.login import PLAIN
from ..wire.overheard import saslErrorCode

MECHANISMS: Final = (PLAIN, *sorted(HASHES))
"""The mechanisms that show a user's name."""

_TOKEN: Final = b"tokenauth=true"
_ROUNDS: Final = {PLAIN: 1, **dict.fromkeys(HASHES, 2)}


class LoginRefused(Exception):
    """
    A login that cannot be passed on; the message is a sentence for the log.
    """


class ObservedLogin:
    """
    The login of one connection.  Its claimed user counts for nothing until the node has confirmed the last message.

    @ivar principal: the user that the node has confirmed; L{None} before that.
    """

    __slots__ = ("_claimed", "_mayHide", "_mechanism", "_roundsLeft", "principal")

    def __init__(self, mayHide: bool) -> None:
        """
        @param mayHide: whether mechanisms may be used that do not show who logs in.
        """
        self._mayHide = mayHide
        self._mechanism: str | None = None
        self._claimed: str | None = None
        self._roundsLeft = 0
        self.principal: str | None = None

    def begin(self, mechanism: str) -> None:
        """
        The client has chosen a mechanism.

        @raise LoginRefused: if the mechanism shows no name, and has to.
        """
        if mechanism not in _ROUNDS and not self._mayHide:
            raise LoginRefused(
                f"it wants to log in by {mechanism!r:.100}, which does not show the gateway who it is; clients may use "
                f"{', '.join(MECHANISMS)}, or --hidden-users lets them all count as ANONYMOUS"
            )
        self._mechanism = mechanism
        self._claimed = None
        self._roundsLeft = _ROUNDS.get(mechanism, 0)

    def claim(self, message: bytes) -> None:
        """
        The client sends a message of the mechanism.

        @raise LoginRefused: if it does not say who it is, or logs in as somebody else than before.
        """
        mechanism = self._mechanism
        if mechanism not in _ROUNDS or self._claimed is not None:
            return
        try:
            if mechanism == PLAIN:
                username = PlainCredentials.ofMessage(message).username.decode("utf-8")
            elif _TOKEN in message.split(b","):
                raise ScramError("it uses a delegation token, which does not say whose it is")
            else:
                username = ScramExchange(mechanism, message, "gateway").username
            claimed = boundedName(username)
        except (ScramError, ValueError) as error:
            raise LoginRefused(f"its login by {mechanism} cannot be understood: {error}") from error
        if self.principal not in (None, claimed):
            raise LoginRefused("it has logged in again as somebody else")
        self._claimed = claimed

    def answered(self, response: bytes) -> bool:
        """
        The node has answered a message.

        @param response: the body of its SaslAuthenticate response.
        @return: whether the user is confirmed by that.
        @raise MalformedResponse: if it cannot be read.
        """
        if saslErrorCode(response) or self._claimed is None:
            self._claimed = None
            return False
        self._roundsLeft -= 1
        if self._roundsLeft:
            return False
        self.principal, self._claimed = self._claimed, None
        return True

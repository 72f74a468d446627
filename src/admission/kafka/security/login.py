# -*- test-case-name: tests.unit.kafka.security.test_security -*-
"""
How a connection logs in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from secrets import token_urlsafe
from typing import Any

from attrs import define, field
from kio.schema.errors import ErrorCode
from twisted.cred.credentials import IUsernamePassword
from twisted.cred.error import LoginFailed
from twisted.cred.portal import Portal
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from admission.connection.protocol import FrameProtocol
from admission.names import boundedName

from ..scram import HASHES, ScramExchange
from ..wire.versions import API_VERSIONS, BY_KEY, SASL_AUTHENTICATE, SASL_HANDSHAKE
from .credentials import IPrincipal, IScramCredentials, PlainCredentials, ScramCredentials

PLAIN = "PLAIN"

SERVED_BEFORE_LOGIN = frozenset((SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE))

MAX_REQUESTS_BEFORE_LOGIN = 10
"""Twice what the most talkative client needs."""

_LONGEST_NAME = 100


class LoginRefused(Exception):
    """
    A login has failed; the message is for the client.

    @ivar errorCode: the error of the Kafka protocol.
    """

    def __init__(self, errorCode: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.errorCode = errorCode


@define(eq=False)
class Logins:
    """
    How the clients of one broker log in.

    @ivar portal: checks the logins; L{None} if none is needed.
    @ivar clock: for the delay.
    @ivar failureDelaySeconds: by how much the answer to a failed login is delayed.
    @ivar largestBytes: the largest request before a login, and the largest
        message of SASL.
    @ivar makeNonce: makes an unpredictable text of printable ASCII without commas.
    @ivar mechanisms: the SASL mechanisms that clients may use.
    """

    log = Logger()

    portal: Portal | None
    clock: IReactorTime
    failureDelaySeconds: float
    largestBytes: int
    makeNonce: Callable[[], str] = token_urlsafe
    mechanisms: Sequence[str] = field(init=False)
    _hasWarned: bool = field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        interfaces = [] if self.portal is None else self.portal.listCredentialsInterfaces()
        scram = sorted(HASHES) if IScramCredentials in interfaces else []
        self.mechanisms = [*scram, PLAIN] if IUsernamePassword in interfaces else scram

    def warnOfPlain(self, peer: str) -> None:
        """
        Log the first time that a client is about to send a password in clear text.
        """
        if not self._hasWarned:
            self._hasWarned = True
            self.log.warn(
                "{peer} logs in by PLAIN without TLS: anybody between can read its password; listen on ssl: or mtls:, "
                "or have clients use SCRAM (this is said once)",
                peer=peer,
            )


class Authenticator:
    """
    The login of one connection.

    @ivar logins: how the clients of its listener log in.
    @ivar isSettled: whether every request may be served.
    @ivar refusal: why the connection must be closed when the answer to its
        request is sent, if it must.
    """

    __slots__ = (
        "_answer",
        "_connection",
        "_delayed",
        "_hasAuthenticated",
        "_hasMet",
        "_loggedIn",
        "_login",
        "_mechanism",
        "_refused",
        "_requestCount",
        "_scram",
        "isSettled",
        "logins",
        "refusal",
    )

    def __init__(self, logins: Logins, connection: FrameProtocol, loggedIn: Callable[[str], None]) -> None:
        """
        @param loggedIn: called with the name that the connection has logged in with.
        """
        self.logins = logins
        self._connection = connection
        self._loggedIn = loggedIn
        self.isSettled = False
        self.refusal: str | None = None
        self._hasMet = False
        self._hasAuthenticated = False
        self._requestCount = 0
        self._mechanism: str | None = None
        self._scram: ScramCredentials | None = None
        self._refused: LoginRefused | None = None
        self._answer: Deferred[bytes] | None = None
        self._login: Deferred[Any] | None = None
        self._delayed: IDelayedCall | None = None

    @property
    def isNeeded(self) -> bool:
        """
        Whether clients without a certificate have to log in.
        """
        return self.logins.portal is not None

    @property
    def mechanisms(self) -> Sequence[str]:
        """
        The mechanisms that clients may use.
        """
        return self.logins.mechanisms

    def refuseFrame(self, sizeBytes: int, head: bytes) -> str | None:
        """
        See L{FrameProtocol.refuseFrame}.  Call it until C{isSettled}.
        """
        if not self._hasMet:
            self._hasMet = True
            self._meet()
        if self.isSettled:
            return None
        logins = self.logins
        if sizeBytes > logins.largestBytes:
            return (
                f"a request of {sizeBytes} bytes was announced before a login, and {logins.largestBytes} are allowed "
                "(sasl.server.max.receive.size)"
            )
        if len(head) == self._connection.headBytes:
            apiKey = int.from_bytes(head, "big", signed=True)
            if apiKey not in SERVED_BEFORE_LOGIN:
                api = BY_KEY.get(apiKey)
                return f"it sent {f'API key {apiKey}' if api is None else api.name} before it had logged in"
            self._requestCount += 1
            if self._requestCount > MAX_REQUESTS_BEFORE_LOGIN:
                return f"it has sent {MAX_REQUESTS_BEFORE_LOGIN} requests and not logged in"
        return None

    def handshake(self, mechanism: str) -> Deferred[bytes]:
        """
        Take the mechanism that the client has chosen.

        @return: fires with an empty message, or fails with L{LoginRefused}, delayed
            if the connection is then to be closed.  It may be cancelled.
        """
        if not self._mayLogIn():
            return fail(LoginRefused(ErrorCode.illegal_sasl_state, "there is no login to begin here"))
        answer = self._answer = Deferred(self._abandon)
        if self._mechanism is not None:
            self._refuse(ErrorCode.illegal_sasl_state, "the login has begun already", "it began to log in twice")
        elif mechanism not in self.logins.mechanisms:
            self._refuse(
                ErrorCode.unsupported_sasl_mechanism,
                f"there are the mechanisms {', '.join(self.logins.mechanisms)}",
                f"it wants to log in by {_quoted(mechanism)}, which is not offered",
            )
        else:
            if mechanism == PLAIN and not self._connection.isTLS:
                self.logins.warnOfPlain(self._connection.peer)
            self._mechanism = mechanism
            self._reply(b"")
        return answer

    def authenticate(self, message: bytes) -> Deferred[bytes]:
        """
        Take the client's next message in the chosen mechanism.

        @return: fires with our next message, or fails with L{LoginRefused}, delayed if
            the connection is then to be closed.  It may be cancelled.
        """
        if not self._mayLogIn():
            return fail(LoginRefused(ErrorCode.illegal_sasl_state, "there is no login to go on with here"))
        answer = self._answer = Deferred(self._abandon)
        if self._refused is not None:
            self._answerLate()
        elif self._mechanism is None:
            reason = "it sent SaslAuthenticate before SaslHandshake"
            self._refuse(ErrorCode.illegal_sasl_state, "SaslHandshake comes first", reason)
        elif self._scram is not None:
            self._scram.answered(message)
        else:
            try:
                self._begin(self._mechanism, message)
            except ValueError as error:
                reason = f"its login by {self._mechanism} failed: {error}"
                self._refuse(ErrorCode.sasl_authentication_failed, str(error), reason)
        return answer

    def _meet(self) -> None:
        """
        See whether TLS has identified the client.  The client has sent something, so
        the handshake of TLS, if any, is over.
        """
        connection = self._connection
        certificate = connection.transport.getPeerCertificate() if connection.isTLS else None
        name = ""
        if certificate is not None:
            # This costs megabytes that a broker without TLS need not spend.
            from .mutualtls import subjectName

            name = boundedName(subjectName(certificate.to_cryptography().subject))
        if name:
            self._loggedIn(name)
        self.isSettled = bool(name) or not self.isNeeded

    def _mayLogIn(self) -> bool:
        return self.isNeeded and not self._hasAuthenticated

    def _begin(self, mechanism: str, message: bytes) -> None:
        if len(message) > self.logins.largestBytes:
            raise ValueError(f"the message is larger than {self.logins.largestBytes} bytes")
        credentials: PlainCredentials | ScramCredentials
        if mechanism == PLAIN:
            credentials = PlainCredentials.ofMessage(message)
        else:
            exchange = ScramExchange(mechanism, message, self.logins.makeNonce())
            credentials = self._scram = ScramCredentials(exchange, self._reply)
        portal = self.logins.portal
        assert portal is not None
        self._login = portal.login(credentials, None, IPrincipal)
        self._login.addCallback(self._letIn)
        self._login.addErrback(self._keepOut, credentials.username.decode("utf-8"))

    def _letIn(self, avatar: Any) -> None:
        _, principal, _ = avatar
        self._hasAuthenticated = self.isSettled = True
        self._loggedIn(boundedName(principal.name))
        self._reply(b"" if self._scram is None else self._scram.signature())

    def _keepOut(self, failure: Failure, name: str) -> None:
        if self._refused is not None:
            return
        if not isinstance(failure.value, LoginFailed):
            self.logins.log.failure("checking the login of {peer} failed", failure, peer=self._connection.peer)
        self._refuse(
            ErrorCode.sasl_authentication_failed,
            # The message does not say which of the two was wrong.
            "the name or the password is wrong",
            f"its login as {_quoted(name)} by {self._mechanism} failed",
        )

    def _reply(self, message: bytes) -> None:
        answer, self._answer = self._answer, None
        assert answer is not None
        answer.callback(message)

    def _refuse(self, errorCode: ErrorCode, message: str, reason: str) -> None:
        """
        @param message: for the client; it must not disclose anything to a stranger.
        @param reason: for the log.
        """
        self._refused = LoginRefused(errorCode, message)
        self.refusal = reason
        if self._answer is not None:
            self._answerLate()

    def _answerLate(self) -> None:
        self._delayed = self.logins.clock.callLater(self.logins.failureDelaySeconds, self._answerRefused)

    def _answerRefused(self) -> None:
        answer, self._answer = self._answer, None
        self._delayed = None
        assert answer is not None and self._refused is not None
        answer.errback(self._refused)

    def _abandon(self, answer: Deferred[bytes]) -> None:
        """
        Stop work on an answer that was cancelled.
        """
        self._answer = None
        if self._refused is None:
            self._refused = LoginRefused(ErrorCode.illegal_sasl_state, "the login was given up")
            self.refusal = "it gave its login up"
        if self._delayed is not None:
            self._delayed.cancel()
            self._delayed = None
        if self._login is not None:
            self._login.cancel()


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}...")

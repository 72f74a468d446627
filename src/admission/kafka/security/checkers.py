# -*- test-case-name: tests.unit.kafka.security.test_security -*-
"""
Checking credentials: the checkers of L{twisted.cred}, ours and others'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.cred.checkers import FilePasswordDB, ICredentialsChecker, InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.credentials import IUsernamePassword
from twisted.cred.error import UnauthorizedLogin
from twisted.cred.portal import Portal
from twisted.internet.defer import Deferred, DeferredLock, DeferredSemaphore, fail, maybeDeferred
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure
from zope.interface import implementer

from admission.boundedfile import readBounded

from .credentials import IScramCredentials, PrincipalRealm
from .passwordfile import MAX_FILE_BYTES, PasswordFile, Users, changeUsers

SUPPORTED = (IUsernamePassword, IScramCredentials)
"""The credentials that clients of the broker can present."""

PASSWORDS_AT_ONCE = 2
"""How many threads may hash passwords; the log needs threads, too."""

_PLAIN_MECHANISM = "SCRAM-SHA-256"


@implementer(ICredentialsChecker)
class ScramChecker:
    """
    Checks the users of a L{PasswordFile}, by SCRAM or with their passwords.
    """

    credentialInterfaces = SUPPORTED

    def __init__(self, file: PasswordFile, deferToThread: Callable[..., Deferred[Any]] = deferToThread) -> None:
        self.file = file
        self._deferToThread = deferToThread
        self._turns = DeferredSemaphore(PASSWORDS_AT_ONCE)
        self._changes = DeferredLock()

    def requestAvatarId(self, credentials: Any) -> Deferred[Any]:
        username = credentials.username
        name = username.decode("utf-8")
        checking: Deferred[bool]
        if IScramCredentials.providedBy(credentials):
            checking = credentials.checkSecret(self.file.secretOf(name, credentials.mechanism))
        else:
            secret = self.file.secretOf(name, _PLAIN_MECHANISM)
            # A login that is cancelled here never begins.
            turn = self._turns.acquire()
            checking = turn.addCallback(lambda _: self._hashed(secret.isPassword, credentials.password))
        return checking.addCallback(self._verdict, username)

    def changeUsers(self, change: Callable[[Users], None]) -> Deferred[None]:
        """
        Change the file, in a thread; one change at a time.

        @return: fails as L{admission.kafka.security.passwordfile.changeUsers} does.
        """
        # As with hashing, who has gone does not end the change, nor begin the next one.
        wanted: Deferred[None] = Deferred()
        self._changes.run(self._deferToThread, changeUsers, self.file.path, change).addBoth(wanted.callback)
        return wanted

    def _hashed(self, isPassword: Callable[[bytes], bool], password: bytes) -> Deferred[bool]:
        # A thread cannot be cancelled: its turn is over when the thread is done, even if the login was cancelled.
        wanted: Deferred[bool] = Deferred()
        self._deferToThread(isPassword, password).addBoth(self._hashingOver, wanted)
        return wanted

    def _hashingOver(self, result: bool | Failure, wanted: Deferred[bool]) -> None:
        self._turns.release()
        wanted.callback(result)

    def _verdict(self, isRight: bool, username: bytes) -> bytes:
        if not isRight:
            raise UnauthorizedLogin()
        return username


@implementer(ICredentialsChecker)
class SeveralCheckers:
    """
    Accepts the users that at least one of several checkers accepts; they are
    asked in order.
    """

    def __init__(self, checkers: Sequence[Any], credentialInterfaces: Sequence[Any]) -> None:
        self.credentialInterfaces = credentialInterfaces
        self._checkers = checkers

    def requestAvatarId(self, credentials: Any) -> Deferred[Any]:
        asked: Deferred[Any] = fail(UnauthorizedLogin())
        for checker in self._checkers:
            asked.addErrback(self._ask, checker, credentials)
        return asked

    def _ask(self, refusal: Failure, checker: Any, credentials: Any) -> Deferred[Any]:
        refusal.trap(UnauthorizedLogin)  # type: ignore[no-untyped-call]
        return maybeDeferred(checker.requestAvatarId, credentials)


def makePortal(checkers: Sequence[Any]) -> Portal:
    """
    Make the portal of the broker.

    @param checkers: asked in their order where they take the same credentials;
        at most one may take L{IScramCredentials}.
    @raise ValueError: if several do: an unknown user could not be told from an
        unwilling checker.
    """
    portal = Portal(PrincipalRealm())
    for interface in SUPPORTED:
        able = [checker for checker in checkers if interface in checker.credentialInterfaces]
        if len(able) > 1 and interface is IScramCredentials:
            raise ValueError("one file of SCRAM secrets can be in use at a time")
        if able:
            portal.registerChecker(able[0] if len(able) == 1 else SeveralCheckers(able, [interface]), interface)
    return portal


def repaired(checker: Any) -> Any:
    """
    Repair the checker that Twisted makes from a C{memory:} description: its names
    and passwords are text, but those of credentials are bytes.

    @raise ValueError: if it is one of Twisted's that would accept no user, and
        Twisted has not said so.
    """
    if isinstance(checker, InMemoryUsernamePasswordDatabaseDontUse):
        if not checker.users:
            raise ValueError("name a user and a password, as in memory:alice:secret")
        checker.users = {_encoded(name): _encoded(password) for name, password in checker.users.items()}
    elif isinstance(checker, FilePasswordDB):
        try:
            readBounded(checker.filename, MAX_FILE_BYTES)
        except OSError as error:
            raise ValueError(f"{checker.filename} cannot be read: {error.strerror}") from error
    return checker


def _encoded(text: str | bytes) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else text

# -*- test-case-name: tests.unit.connection.test_unitofwork -*-
"""
One piece of work inside of any protocol, put to the quota policies as a request is.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol

from ..interfaces import ORDINARY, Decision, Refusal, Traits
from ..names import IdentityNumbers, nameIn
from ..request import ServerRequest
from .driver import FAILED, DrivenFactory, RequestDriver


class WorkRefused(Exception):
    """
    The policies refuse a piece of work, or its client has to wait.

    @ivar decision: why, in C{message}, and after how many seconds to come again, in C{delaySeconds}.
    """

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.message)
        self.decision = decision


class WorkFactory(DrivenFactory, Protocol):
    """
    What a piece of work asks of the server that it is part of, and tells it.
    """

    @property
    def isStopping(self) -> bool: ...

    @property
    def identityNumbers(self) -> IdentityNumbers: ...

    @property
    def workNumbers(self) -> Iterator[int]: ...

    def workBegun(self, work: object) -> None: ...

    def workOver(self, work: object) -> None: ...


def admitWork(
    factory: WorkFactory,
    driver: RequestDriver,
    request: ServerRequest,
    refusal: Refusal = Refusal.ERROR,
    isAtHead: bool = False,
    mayWait: bool = False,
) -> Decision:
    """
    Have the policies admit a request that may share its connection with others.  Nothing is held back for its client,
    so a client that owes time is refused, too, unless refusals are delays.

    @param isAtHead: see L{RequestDriver.admit}, as for C{mayWait}.
    """
    if factory.isStopping:
        decision = Decision(False, reason="the server stops", isForAll=True)
        request.reject(decision.reason)
        return decision
    waitSeconds = driver.owedSeconds(request) if refusal is Refusal.ERROR else 0.0
    if waitSeconds > 0:
        return driver.refuseOwing(request, waitSeconds)
    return driver.admit(request, refusal, isAtHead, mayWait)


class UnitOfWork:
    """
    A context for a piece of work; see L{Admission.work <admission.admission.Admission.work>}.  It is to be entered
    once; if it never is, it warns, as a coroutine does that was never awaited.

    @ivar sentBytes: how much has been sent in answer; to be set before the context is left.
    @ivar delaySeconds: for how long the client has to wait once the context was left; no work of that client is
        admitted before.
    @ivar request: the request that stands for the work.
    """

    # What the driver of a connection asks; there is no connection that could be closed or not read.
    hasPeerGone = isLost = isClosing = False
    whyClosed = None
    listener = ""
    makeRequest = ServerRequest

    _isForgotten = False

    def __init__(
        self,
        factory: WorkFactory,
        kind: str,
        principal: str = "",
        clientId: str = "",
        peer: str = "",
        receivedBytes: int = 0,
        traits: Traits = ORDINARY,
        identities: Sequence[int | bytes] = (),
    ) -> None:
        self.factory = factory
        # A replay takes the requests of a connection for one after another, and these do not wait for each other.
        self.connectionId = next(factory.workNumbers)
        self.principal: str | None = nameIn("principal", principal)
        self.clientId = nameIn("clientId", clientId)
        self.host = nameIn("peer", peer)
        self.holder = self.principal or self.host
        self._sentBytes = 0
        self.delaySeconds = 0.0
        self._kind = nameIn("kind", kind)
        self._traits = traits
        self._identities = factory.identityNumbers(identities)
        self._receivedBytes = _checked("receivedBytes", receivedBytes)
        self._isForgotten = True

    @property
    def sentBytes(self) -> int:
        return self._sentBytes

    @sentBytes.setter
    def sentBytes(self, sizeBytes: int) -> None:
        self._sentBytes = _checked("sentBytes", sizeBytes)

    def __enter__(self) -> UnitOfWork:
        """
        Have the policies admit it.

        @raise WorkRefused: if they do not; the work must not be done then.
        """
        self._isForgotten = False
        # The driver refers to this object, which can be freed at once as long as there is no driver.
        driver, now = RequestDriver(self), self.factory.clock.seconds()
        self._driver = driver
        request = self.request = driver.arrived(self._receivedBytes)
        request.kind, request.principal, request.clientId = self._kind, self.principal, self.clientId
        request.traits, request.identities = self._traits, self._identities
        request.complete = now
        request.begin(now)
        decision = admitWork(self.factory, driver, request)
        if not decision.admitted:
            driver.over(request, now)
            raise WorkRefused(decision)
        driver.begin(request)
        self.factory.workBegun(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        driver, request, now = self._driver, self.request, self.factory.clock.seconds()
        request.responseBytes = self.sentBytes
        self.delaySeconds = driver.chargeAnswered(request, now)
        if error is None:
            request.answer(now, self.delaySeconds)
        else:
            request.expire(FAILED)
        driver.over(request, now)
        self.factory.workOver(self)
        # The driver refers to this object, which would stay until garbage is collected.
        del self._driver
        request.connection = None

    # What its driver would tell a connection

    def close(self, reason: str) -> None:
        """
        There is none.
        """

    def throttled(self, delaySeconds: float) -> None:
        """
        Nothing is read here.
        """

    def throttleOver(self) -> None:
        """
        Likewise.
        """

    def __del__(self) -> None:
        if self._isForgotten:
            words = f"{self!r} was never entered, and nothing was admitted: write 'with admission.work(...):'"
            warnings.warn(words, RuntimeWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._kind} of {self.clientId or self.host or 'somebody'}>"


def _checked(name: str, sizeBytes: int) -> int:
    """
    @raise TypeError: if C{sizeBytes} is no number of bytes.
    """
    if not (isinstance(sizeBytes, int) and sizeBytes >= 0):
        raise TypeError(f"{name}={sizeBytes!r}: write a number of bytes")
    return sizeBytes

# -*- test-case-name: tests.test_recording -*-
"""
A client connection of which is recorded when it was opened and closed, and
every request, however that ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from ..clock import wholeMicroseconds
from ..interfaces import NOTHING, Decision, ILease, Request, Usage
from ..metrics.recorder import EventRecorder
from .broker import Broker
from .recording import HUNG_UP, NO_LOGIN, RecordedRequest, withoutNumbers
from .session import KafkaConnection

BROKE = "the connection broke"


class RecordedConnection(KafkaConnection):
    """
    Has an event recorded for each of its requests.

    A request is open from the moment when its length was read until it is
    recorded.  The one that is read or worked on is C{recorded}; others are open
    because they wait to be answered.

    @ivar listener: the port that it came by, as the operator describes it.
    @ivar connectionId: see L{EventRecorder.connectionOpened}.
    """

    # In slots, because CPython takes longer for all attributes of an object that has more than thirty others.
    __slots__ = (
        "_openRequests",
        "_openedSeconds",
        "_recorder",
        "_requestCount",
        "connectionId",
        "listener",
        "recorded",
    )

    recorded: RecordedRequest | None

    def __init__(self, broker: Broker, recorder: EventRecorder) -> None:
        super().__init__(broker)
        self.listener = ""
        self.connectionId = 0
        self.recorded = None
        self._recorder = recorder
        # For its order.
        self._openRequests: dict[RecordedRequest, None] = {}
        self._requestCount = 0
        self._openedSeconds = 0.0

    def connectionMade(self) -> None:
        """
        It is open, and may be put to the policies.
        """
        self._openedSeconds = self.factory.clock.seconds()
        isStranger = self.isTLS or self.broker.logins.portal is not None
        principal = None if isStranger else self.principal
        self.connectionId = self._recorder.connectionOpened(self.listener, self.host, principal)
        recorded = None
        if self.broker.control.isLimiting:
            recorded = self._open(0)
            recorded.connects()
        super().connectionMade()
        if recorded is not None:
            recorded.answersNothing()
            recorded.over()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """
        With it is lost every request that nobody works on at this moment.
        """
        super().connectionLost(reason)
        for recorded in list(self._openRequests):
            if not recorded.isWorking:
                recorded.givesUp()
                recorded.over()
        ending = HUNG_UP if isinstance(reason.value, ConnectionDone | ConnectionAborted) else BROKE
        self._recorder.connectionClosed(
            self.connectionId,
            self.listener,
            self.host,
            self.principal,
            withoutNumbers(self.whyClosed or ending),
            self._requestCount,
            self.factory.clock.seconds() - self._openedSeconds,
        )

    @property
    def whyClosed(self) -> str | None:
        """
        Why we close it, as far as that is to be recorded: where a login has
        failed, what the client took for its name is not.
        """
        reason = self.closeReason
        return NO_LOGIN if reason is not None and reason == self.authenticator.refusal else reason

    def requestOver(self, recorded: RecordedRequest) -> None:
        """
        For the request: it is complete.
        """
        if self.recorded is recorded:
            self.recorded = None
        del self._openRequests[recorded]
        self._recorder.requestAnswered(recorded.event)

    # What a request passes on its way

    def refuseFrame(self, sizeBytes: int, head: bytes) -> str | None:
        """
        See L{KafkaConnection.refuseFrame}; the length has just been read.
        """
        recorded = self.recorded
        if recorded is None:
            self._requestCount += 1
            recorded = self._open(sizeBytes)
        else:
            recorded.asksForMemory()
        recorded.knows(head)
        return super().refuseFrame(sizeBytes, head)

    def frameRefused(self, reason: str) -> None:
        """
        See L{AdmittedProtocol.frameRefused}.  A length that makes no sense comes
        here at once.
        """
        recorded = self.recorded
        if recorded is None:
            self._requestCount += 1
            recorded = self._open(0)
        recorded.refusesFrame(reason)
        super().frameRefused(reason)

    def askPolicies(self, asked: Request) -> Decision:
        """
        See L{KafkaConnection.askPolicies}.
        """
        recorded = self.recorded
        if recorded is None:
            return super().askPolicies(asked)
        now = wholeMicroseconds(self.factory.clock.seconds())
        recorded.asks(asked, now)
        decision = self.broker.control.admit(asked, now)
        if not decision.admitted:
            recorded.refuses(decision)
        return decision

    def tellPolicies(self, asked: Request, usage: Usage) -> float:
        """
        See L{KafkaConnection.tellPolicies}.
        """
        recorded = self.recorded
        if recorded is None:
            return super().tellPolicies(asked, usage)
        now = wholeMicroseconds(self.factory.clock.seconds())
        recorded.tells(now)
        charge = self.broker.control.charge(asked, usage, now)
        recorded.charged(charge, usage is not NOTHING)
        return charge.delaySeconds

    def leaseGranted(self, lease: ILease) -> None:
        """
        See L{AdmittedProtocol.leaseGranted}.
        """
        if self.recorded is not None:
            self.recorded.memoryGranted()
        super().leaseGranted(lease)

    def turnGranted(self) -> None:
        """
        See L{AdmittedProtocol.turnGranted}.
        """
        if self.recorded is not None:
            self.recorded.turnGranted()
        super().turnGranted()

    def requestReceived(self, lease: ILease) -> None:
        """
        See L{KafkaConnection.requestReceived}.
        """
        if self.recorded is not None:
            self.recorded.worksOn()
        super().requestReceived(lease)

    def releaseRequest(self) -> None:
        """
        See L{AdmittedProtocol.releaseRequest}.
        """
        if self.recorded is not None:
            self.recorded.memoryReleased()
        super().releaseRequest()

    def park(self) -> None:
        """
        See L{AdmittedProtocol.park}.
        """
        super().park()
        if self.recorded is not None:
            self.recorded.parks()

    def respond(self, parts: Sequence[bytes], delaySeconds: float = 0.0) -> None:
        """
        See L{AdmittedProtocol.respond}.
        """
        if self.recorded is not None:
            self.recorded.answers(parts)
        super().respond(parts, delaySeconds)

    def finish(self, delaySeconds: float = 0.0) -> None:
        """
        See L{AdmittedProtocol.finish}, which may go on to the next request.
        """
        if self.recorded is not None:
            self.recorded.over()
        super().finish(delaySeconds)

    def _open(self, sizeBytes: int) -> RecordedRequest:
        recorded = self.recorded = RecordedRequest(self, sizeBytes, len(self._openRequests) + 1)
        self._openRequests[recorded] = None
        return recorded

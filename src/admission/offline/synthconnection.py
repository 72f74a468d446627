# -*- test-case-name: tests.unit.offline.test_synth -*-
"""
A connection between a client and a server that both do not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zope.interface import implementer

from ..interfaces import CONNECTION, CONNECTIONS, ILease, IWaiter, Refusal, Request, Usage
from ..kafka.recordedcolumns import KafkaRequestEvent
from ..recording.eventof import eventOf, withoutNumbers
from ..request import ServerRequest
from .agenda import MICROSECONDS
from .synthpopulation import Draft, Stream

if TYPE_CHECKING:
    from .synth import SyntheticServer

CONNECTION_BYTES = 8 << 10
"""What an open connection is charged for."""

_STRANGER = "ANONYMOUS"

# The names, keys and versions of Kafka's requests, by whether they write.
_APIS = {True: ("Produce", 0, 9), False: ("Fetch", 1, 12)}


@implementer(IWaiter)
class SyntheticConnection:
    """
    Sends one request at a time, and goes on when its answer is there and the
    server reads again.  It is the L{IWaiter} that the gate knows.

    @ivar stream: what it asks for.
    @ivar factory: the server.
    @ivar connectionId: its number in the recording; L{None} while it is closed.
    @ivar listener: the port that it came by.
    @ivar host: its client's address.
    @ivar principal: its user: all have logged in.
    """

    __slots__ = (
        "_agenda",
        "_charge",
        "_draft",
        "_freeUs",
        "_openedUs",
        "_request",
        "_requestCount",
        "connectionId",
        "factory",
        "host",
        "listener",
        "principal",
        "stream",
    )

    _charge: ILease
    _draft: Draft
    _openedUs: int

    def __init__(self, server: SyntheticServer, stream: Stream) -> None:
        self.stream = stream
        self.factory = server
        self.connectionId: int | None = None
        self.listener = "tcp:9092"
        self.host = stream.member.peer
        self.principal = stream.member.principal
        self._agenda = server.agenda
        self._requestCount = 0
        self._freeUs = 0
        self._request: ServerRequest | None = None

    def open(self) -> None:
        """
        Connect; the policies are asked as by a server that does not know yet
        who it is.
        """
        server = self.factory
        self._freeUs = self._openedUs = self._agenda.nowUs
        self.connectionId = server.recorder.connectionOpened(self.listener, self.host)
        self._charge = server.pool.charge(CONNECTION_BYTES, CONNECTIONS)
        if server.control.wants.decision:
            now = self._agenda.seconds()
            opening = ServerRequest(self, 0, now, poolAvailableBytes=server.pool.availableBytes)
            opening.begin(now)
            opening.kind, opening.principal, opening.serviceSeconds = CONNECTION, _STRANGER, 0.0
            opening.view = Request(CONNECTION, _STRANGER, "", self.host, 0)
            decision = server.control.admitRequest(opening, now, Refusal.ERROR)
            delaySeconds = decision.delaySeconds
            if decision.admitted:
                delaySeconds = server.control.chargeRequest(opening, Usage(connections=1), now)
            self._throttle(opening, delaySeconds)
            opening.answer(now, delaySeconds)
            self._over(opening)
            if not decision.admitted:
                self.leave(withoutNumbers(decision.reason))
                return
        self._think()

    def leave(self, reason: str | None) -> None:
        """
        Disconnect, whatever is under way; no effect if it is not connected.
        """
        if self.connectionId is None:
            return
        server = self.factory
        server.gate.forget(self)
        request, self._request = self._request, None
        if request is not None:
            request.expire(reason or "")
            self._over(request)
        self._charge.release()
        openSeconds = (self._agenda.nowUs - self._openedUs) / MICROSECONDS
        server.recorder.connectionClosed(
            self.connectionId, self.listener, self.host, self.principal, reason, self._requestCount, openSeconds
        )
        self.connectionId = None

    @property
    def holder(self) -> str:
        """
        Its user.
        """
        return self.principal

    @property
    def wantedBytes(self) -> int:
        """
        The size of its request.
        """
        return self._draft.requestBytes

    def leaseGranted(self, lease: ILease) -> None:
        """
        The request may be read.
        """
        self._receive(lease)

    def turnGranted(self) -> None:
        """
        Never called: nobody here waits for a turn.
        """

    def _think(self) -> None:
        self._draft = draft = self.stream.next()
        self._agenda.at(self._freeUs + draft.thinkUs, self._arrive)

    def _arrive(self) -> None:
        draft, server = self._draft, self.factory
        now = self._agenda.seconds()
        self._requestCount += 1
        request = ServerRequest(self, draft.requestBytes, now, poolAvailableBytes=server.pool.availableBytes)
        request.kind = _APIS[draft.isProduce][0]
        request.principal, request.clientId = self.principal, self.stream.member.clientId
        request.asked = now
        self._request = request
        lease = server.gate.tryAllocate(self, draft.requestBytes)
        if lease is not None:
            self._receive(lease)

    def _receive(self, lease: ILease) -> None:
        request = self._request
        assert request is not None
        request.lease, request.granted = lease, self._agenda.seconds()
        self._agenda.at(self._agenda.nowUs + self._draft.receiveUs, self._work)

    def _work(self) -> None:
        request, draft, control = self._request, self._draft, self.factory.control
        assert request is not None and request.kind is not None and request.clientId is not None
        request.complete = now = self._agenda.seconds()
        request.begin(now)
        if not draft.isProduce:
            # Once it is decoded, a Fetch needs its memory no more.
            request.release(now)
        if control.wants.decision:
            request.view = Request(
                request.kind, self.principal, request.clientId, self.host, request.sizeBytes, self._identities
            )
            decision = control.admitRequest(request, now, Refusal.ERROR)
            if not decision.admitted:
                self._throttle(request, decision.delaySeconds)
                request.release(now)
                self._send()
                return
            control.beginRequest(request, now)
        self._agenda.at(self._agenda.nowUs + draft.serviceUs, self._answer)

    def _answer(self) -> None:
        request, draft = self._request, self._draft
        assert request is not None
        now = self._agenda.seconds()
        serviceSeconds = request.serviceSeconds = draft.serviceUs / MICROSECONDS
        request.responseBytes = draft.responseBytes
        control = self.factory.control
        if request.view is not None:
            usage = Usage(draft.requestBytes, draft.responseBytes, serviceSeconds)
            self._throttle(request, control.chargeRequest(request, usage, now))
        if not draft.isProduce:
            self._send()
            return
        control.parkRequest(request, now)
        self._agenda.at(self._agenda.nowUs + draft.commitUs, self._send)

    def _send(self) -> None:
        request, self._request = self._request, None
        assert request is not None
        now = self._agenda.seconds()
        if request.parked is not None:
            request.resume(now)
        request.answer(now, request.delaySeconds)
        self._freeUs = max(self._freeUs, self._agenda.nowUs)
        self._over(request)
        self._think()

    @property
    def _identities(self) -> tuple[int, ...]:
        return (self._draft.producerId,) if self._draft.isProduce else ()

    def _throttle(self, request: ServerRequest, delaySeconds: float) -> None:
        request.delaySeconds = delaySeconds
        self._freeUs = self._agenda.nowUs + round(delaySeconds * MICROSECONDS)

    def _over(self, request: ServerRequest) -> None:
        """
        Tell whoever wants to know; the connection has let go of it.
        """
        server, now = self.factory, self._agenda.seconds()
        server.control.endRequest(request, now)
        event = eventOf(request, KafkaRequestEvent)
        if request.kind != CONNECTION:
            _, event.apiKey, event.apiVersion = _APIS[self._draft.isProduce]
            event.correlationId = self._requestCount
            if self._draft.isProduce:
                event.producerIds, event.producerEpoch = self._identities, 0
        server.answered(event)

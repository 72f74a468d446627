# -*- test-case-name: tests.test_synth -*-
"""
A connection between a client and a server that both do not exist.
"""

from __future__ import annotations

import re
from math import ceil
from typing import TYPE_CHECKING

from zope.interface import implementer

from ..interfaces import CONNECTION, CONNECTIONS, ILease, IWaiter, Request, Usage
from ..metrics.events import ADMIT, EXPIRE, MUTE, REJECT, THROTTLE
from ..metrics.kafkacolumns import KafkaRequestEvent
from .agenda import MICROSECONDS
from .synthpopulation import Draft, Stream

if TYPE_CHECKING:
    from .synth import SyntheticServer

CONNECTION_BYTES = 8 << 10
"""What an open connection is charged for."""

_LISTENER = "tcp:9092"
_STRANGER = "ANONYMOUS"
_THROTTLED = "over its quota"
_MUTED = "it waited for memory"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")

# The names, keys and versions of Kafka's requests, by whether they write.
_APIS = {True: ("Produce", 0, 9), False: ("Fetch", 1, 12)}


@implementer(IWaiter)
class SyntheticConnection:
    """
    Sends one request at a time, and goes on when its answer is there and the
    server reads again.  It is the L{IWaiter} that the gate knows.

    @ivar stream: what it asks for.
    """

    __slots__ = (
        "_agenda",
        "_charge",
        "_draft",
        "_event",
        "_freeUs",
        "_grantedUs",
        "_id",
        "_lease",
        "_openedUs",
        "_request",
        "_requestCount",
        "_server",
        "stream",
    )

    _charge: ILease
    _draft: Draft
    _grantedUs: int | None
    _openedUs: int
    _request: Request

    def __init__(self, server: SyntheticServer, stream: Stream) -> None:
        self.stream = stream
        self._server = server
        self._agenda = server.agenda
        self._id: int | None = None
        self._requestCount = 0
        self._freeUs = 0
        self._event: KafkaRequestEvent | None = None
        self._lease: ILease | None = None

    def open(self) -> None:
        """
        Connect; the policies are asked as by a server that does not know yet
        who it is.
        """
        server, peer = self._server, self.stream.member.peer
        self._freeUs = self._openedUs = self._agenda.nowUs
        self._id = server.recorder.connectionOpened(_LISTENER, peer)
        self._charge = server.pool.charge(CONNECTION_BYTES, CONNECTIONS)
        if server.control.isLimiting:
            self._request = Request(CONNECTION, _STRANGER, "", peer, 0)
            event = KafkaRequestEvent(
                self._id,
                self._agenda.seconds(),
                _LISTENER,
                peer,
                _STRANGER,
                kind=CONNECTION,
                poolUsedBytes=server.pool.sizeBytes - server.pool.availableBytes,
                poolAvailableBytes=server.pool.availableBytes,
            )
            isRefused = self._refuse(event)
            if not isRefused:
                self._count(event, Usage(connections=1))
            server.answered(event)
            if isRefused:
                self.leave(event.reason)
                return
        self._think()

    def leave(self, reason: str | None) -> None:
        """
        Disconnect, whatever is under way; no effect if it is not connected.
        """
        if self._id is None:
            return
        server, member = self._server, self.stream.member
        server.gate.forget(self)
        event = self._event
        if event is not None:
            if self._grantedUs is None:
                event.poolWaitSeconds = self._agenda.seconds() - event.arrivedSeconds
            self._release(event)
            event.decision, event.reason, event.policy = EXPIRE, reason, None
            self._event = None
            server.answered(event)
        self._charge.release()
        openSeconds = (self._agenda.nowUs - self._openedUs) / MICROSECONDS
        server.recorder.connectionClosed(
            self._id, _LISTENER, member.peer, member.principal, reason, self._requestCount, openSeconds
        )
        self._id = None

    @property
    def holder(self) -> str:
        """
        Its user: all have logged in.
        """
        return self.stream.member.principal

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
        assert self._event is not None
        self._event.poolWaitSeconds = self._agenda.seconds() - self._event.arrivedSeconds
        self._receive(lease)

    def turnGranted(self) -> None:
        """
        Never called: nobody here waits for a turn.
        """

    def _think(self) -> None:
        self._draft = draft = self.stream.next()
        self._agenda.at(self._freeUs + draft.thinkUs, self._arrive)

    def _arrive(self) -> None:
        member, draft, pool = self.stream.member, self._draft, self._server.pool
        assert self._id is not None
        kind, apiKey, apiVersion = _APIS[draft.isProduce]
        identities = (draft.producerId,) if draft.isProduce else ()
        self._requestCount += 1
        self._grantedUs = None
        availableBytes = pool.availableBytes
        self._event = KafkaRequestEvent(
            self._id,
            self._agenda.seconds(),
            _LISTENER,
            member.peer,
            member.principal,
            member.clientId,
            kind,
            apiKey=apiKey,
            apiVersion=apiVersion,
            correlationId=self._requestCount,
            requestBytes=draft.requestBytes,
            responseBytes=draft.responseBytes,
            producerIds=identities,
            producerEpoch=0 if draft.isProduce else -1,
            poolUsedBytes=pool.sizeBytes - availableBytes,
            poolAvailableBytes=availableBytes,
        )
        self._request = Request(kind, member.principal, member.clientId, member.peer, draft.requestBytes, identities)
        lease = self._server.gate.tryAllocate(self, draft.requestBytes)
        if lease is not None:
            self._receive(lease)

    def _receive(self, lease: ILease) -> None:
        self._lease = lease
        self._grantedUs = self._agenda.nowUs
        self._agenda.at(self._grantedUs + self._draft.receiveUs, self._work)

    def _work(self) -> None:
        event = self._event
        assert event is not None
        if not self._draft.isProduce:
            # Once it is decoded, a Fetch needs its memory no more.
            self._release(event)
        elif self._server.control.isLimiting and self._refuse(event):
            self._release(event)
            self._send()
            return
        self._agenda.at(self._agenda.nowUs + self._draft.serviceUs, self._answer)

    def _answer(self) -> None:
        event, draft = self._event, self._draft
        assert event is not None
        event.serviceSeconds = draft.serviceUs / MICROSECONDS
        if self._server.control.isLimiting:
            self._count(event, Usage(draft.requestBytes, draft.responseBytes, event.serviceSeconds))
        if event.decision == ADMIT and event.poolWaitSeconds:
            event.decision, event.reason = MUTE, _MUTED
        if not draft.isProduce:
            self._send()
            return
        self._release(event)
        event.purgatoryWaitSeconds = draft.commitUs / MICROSECONDS
        self._agenda.at(self._agenda.nowUs + draft.commitUs, self._send)

    def _send(self) -> None:
        event = self._event
        assert event is not None
        self._event = None
        event.sentSeconds = self._agenda.seconds()
        self._freeUs = max(self._freeUs, self._agenda.nowUs)
        self._server.answered(event)
        self._think()

    def _refuse(self, event: KafkaRequestEvent) -> bool:
        control, request, now = self._server.control, self._request, self._agenda.seconds()
        isKnown = control.isKnown(request, now) if request.identities else None
        if isKnown is not None:
            event.bloomSeen = isKnown
        decision = control.admit(request, now)
        if decision.admitted:
            return False
        name = decision.policy
        # There is room for a few thousand texts only.
        event.decision, event.policy, event.reason = REJECT, name, _NUMBER.sub("N", decision.reason)
        event.policyDelaysSeconds = [decision.delaySeconds if each == name else 0.0 for each in control.policyNames]
        self._holdBack(event, decision.delaySeconds)
        return True

    def _count(self, event: KafkaRequestEvent, usage: Usage) -> None:
        control = self._server.control
        charge = control.charge(self._request, usage, self._agenda.seconds())
        event.isCounted = True
        event.policyDelaysSeconds = charge.shares
        if charge.delaySeconds:
            event.decision, event.policy, event.reason = THROTTLE, control.strictest(charge), _THROTTLED
        self._holdBack(event, charge.delaySeconds)

    def _holdBack(self, event: KafkaRequestEvent, delaySeconds: float) -> None:
        event.decidedSeconds = self._agenda.seconds()
        event.throttleTimeMs = ceil(delaySeconds * 1000)
        self._freeUs = self._agenda.nowUs + round(delaySeconds * MICROSECONDS)

    def _release(self, event: KafkaRequestEvent) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            assert self._grantedUs is not None
            event.poolHoldSeconds = (self._agenda.nowUs - self._grantedUs) / MICROSECONDS
            lease.release()

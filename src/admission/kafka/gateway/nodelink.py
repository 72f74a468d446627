# -*- test-case-name: tests.unit.kafka.gateway.test_nodelink -*-
"""
One connection to a node, on behalf of one client: the client's requests go to the node in their order, and the
responses come back.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from itertools import islice
from math import inf
from typing import Any, Final, Protocol as TypingProtocol

from twisted.internet import tcp
from twisted.internet.interfaces import IPushProducer, IReactorTime, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from admission.connection.deadline import Deadline
from admission.connection.link import keepAlive
from admission.connection.responses import dropUnsent, isDirect
from admission.interfaces import ILease
from admission.tlsfailure import whyTlsFailed

from .nodes import Node

PIECE_BYTES: Final = 64 << 10
"""How much of a request is handed to the transport at a time."""

MAX_SENT_AT_ONCE: Final = 64
"""How many requests the kernel is given in one call."""

CLOSE_SECONDS: Final = 10.0
"""How long requests may still be on their way to the node after their client has left."""

_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">ii")
"""The length of a response and its correlation id."""


class ResponseRefused(Exception):
    """
    A node has sent what cannot be the next response.
    """


class LinkUser(TypingProtocol):
    """
    The session that a link is for.
    """

    def responseBegun(self, sizeBytes: int, correlationId: int) -> Callable[[bytes, bool], None]:
        """
        A response begins.

        @param sizeBytes: how many bytes follow the correlation id.
        @return: called with each part of these bytes, and with whether it is the last one.
        @raise ResponseRefused: if there is no such request.
        """

    @property
    def isReading(self) -> bool:
        """
        Whether it may send more requests in this turn, after which it calls L{NodeLink.pump}.
        """

    def linkLost(self, reason: str) -> None:
        """
        The node has gone, or was given up.  Not called after L{NodeLink.close}.
        """


@implementer(IPushProducer)
class NodeLink(Protocol):
    """
    A session's connection to a node.  Requests may be given to it before it is connected.

    @ivar node: the node.
    @ivar isLost: whether it has ended, or never began.
    """

    transport: Any

    def __init__(
        self, user: LinkUser, node: Node, clock: IReactorTime, sendSeconds: float, charge: ILease | None = None
    ) -> None:
        """
        @param charge: the charge for the open connection; released when that is over.
        @param sendSeconds: how long the node may take nothing.
        """
        self.node = node
        self._user = user
        self._clock = clock
        self._sendSeconds = sendSeconds
        self._sendDeadline = Deadline(clock, self._sendingStopped)
        self._closeDeadline = Deadline(clock, self.abort)
        self._isConnected = self._isTaking = self.isLost = self._isClosing = self._isReadingPaused = False
        # The requests that are to be sent, and how many bytes of the first have been: -4 before its length.
        self._unsent: deque[tuple[ILease, bool]] = deque()
        self._sentBytes = -_LENGTH.size
        self._head = b""
        self._leftBytes = 0
        # For each request that waits for a response, how long the node may take for it from when it is its turn.
        self._waits: deque[float] = deque()
        self._throttledUntil = -inf
        self._mayBeMuted = False
        self._take: Callable[[bytes, bool], None] | None = None
        self._charge = charge
        node.linkCount += 1

    # Requests

    def send(self, lease: ILease, isAwaited: bool = True, waitSeconds: float = inf) -> None:
        """
        Send a request that counts for the node already, and release it when it has been handed over.  While the user of
        the link reads more requests, it is sent with these, by L{pump}.

        @param isAwaited: whether its client waits for an answer; if not, it is sent even if the client has gone.
        @param waitSeconds: how long the node may take to answer although nothing is wrong with it; infinite if nobody
            can say.
        """
        self._unsent.append((lease, isAwaited))
        if not isAwaited:
            # The node cannot tell its client to wait, so it may read nothing more for a time.
            self._mayBeMuted = True
        elif not self.isLost:
            self._waits.append(waitSeconds)
            self.node.unanswered += 1
            if len(self._waits) == 1:
                self._expect()
        if self.isLost:
            # Connecting has failed at once, or it has just been lost and its user is about to be told.
            self._discard()
        elif not self._user.isReading:
            self.pump()

    def pump(self) -> None:
        """
        Hand over to the transport as much as it takes.
        """
        while self._unsent and self._isTaking and not self.isLost:
            handle = self._directHandle()
            # Releasing a request may have the user send more, or end the link.
            if handle is not None and (self._sendDirectly(handle) or not self._unsent or self.isLost):
                continue
            lease, _ = self._unsent[0]
            view = lease.buffer
            assert view is not None
            sent = self._sentBytes
            prefix = _LENGTH.pack(len(view))[sent:] if sent < 0 else b""
            begin = max(sent, 0)
            with view[begin : begin + PIECE_BYTES] as piece:
                self._sentBytes = begin + len(piece)
                self.transport.write(prefix + bytes(piece))
            if self._sentBytes == len(view):
                del view
                self._unsent.popleft()
                self._sentBytes = -_LENGTH.size
                self._handedOver(lease)

    def _directHandle(self) -> Any:
        """
        The socket; L{None} if anything between it and us has to go first.
        """
        transport = self.transport
        return transport.getHandle() if isinstance(transport, tcp.Connection) and isDirect(transport) else None

    def _sendDirectly(self, handle: Any) -> bool:
        """
        Give the kernel several requests in one call, without a copy.

        @param handle: the socket.
        @return: whether it has taken all of these.
        """
        parts: list[Any] = []
        offeredBytes, takenBytes, sent = 0, 0, self._sentBytes
        for lease, _ in islice(self._unsent, MAX_SENT_AT_ONCE):
            view = lease.buffer
            assert view is not None
            if sent < 0:
                parts.append(_LENGTH.pack(len(view))[sent:])
            parts.append(view[max(sent, 0) :])
            offeredBytes += len(view) - sent
            sent = -_LENGTH.size
            if offeredBytes >= PIECE_BYTES:
                break
        del view
        try:
            takenBytes = handle.sendmsg(parts)
        except OSError:
            # The transport learns of any error when it writes the rest.
            pass
        finally:
            for part in parts:
                if isinstance(part, memoryview):
                    part.release()
        sentBytes = self._sentBytes + takenBytes
        handedOver: list[ILease] = []
        while self._unsent and sentBytes >= self._unsent[0][0].sizeBytes:
            lease, _ = self._unsent.popleft()
            sentBytes -= _LENGTH.size + lease.sizeBytes
            handedOver.append(lease)
        # Before any request is released, since that may have the user send more.
        self._sentBytes = sentBytes
        for lease in handedOver:
            self._handedOver(lease)
        return takenBytes == offeredBytes

    def _handedOver(self, lease: ILease) -> None:
        sizeBytes = lease.sizeBytes
        lease.release()
        self.node.tookSeconds = self._clock.seconds()
        self.node.release(sizeBytes)
        if self._isClosing and not self._unsent:
            self._loseConnection()

    # Responses

    def pauseReading(self) -> None:
        """
        Take no more of the responses, since the client takes none.
        """
        if not self._isReadingPaused:
            self._isReadingPaused = True
            self._expect()
            if self._isConnected:
                self.transport.pauseProducing()

    def resumeReading(self) -> None:
        if self._isReadingPaused:
            self._isReadingPaused = False
            self._expect()
            if self._isConnected:
                self.transport.resumeProducing()

    def throttled(self, seconds: float) -> None:
        """
        The node has told the client to wait, and does not read its requests for so long.
        """
        self._throttledUntil = self._clock.seconds() + seconds

    def _expect(self) -> None:
        """
        Note from when on the node owes an answer.  It answers the requests of one connection one after the other, so
        the time of a request begins when the one before it is answered.
        """
        isOwing = (
            self._waits and self._isConnected and not (self._isReadingPaused or self._isClosing or self._mayBeMuted)
        )
        # The rest of a response may come at any time.
        waitSeconds = 0.0 if self._take is not None else self._waits[0] if isOwing else inf
        if isOwing and waitSeconds < inf:
            self.node.owingLinks[self] = max(self._clock.seconds(), self._throttledUntil) + waitSeconds
        else:
            self.node.owingLinks.pop(self, None)

    def dataReceived(self, data: bytes) -> None:
        if self._isClosing or self.isLost:
            return
        self.node.heardSeconds = self._clock.seconds()
        try:
            while data and not self.isLost:
                data = self._received(data)
        except ResponseRefused as refusal:
            self._giveUp(str(refusal))
        else:
            self._expect()

    def _received(self, data: bytes) -> bytes:
        take = self._take
        if take is None:
            if self._head:
                data, self._head = self._head + data, b""
            if len(data) < _HEAD.size:
                self._head = data
                return b""
            sizeBytes, correlationId = _HEAD.unpack_from(data)
            if sizeBytes < _LENGTH.size:
                raise ResponseRefused(f"it has sent a response of {sizeBytes} bytes")
            self._leftBytes = sizeBytes - _LENGTH.size
            take = self._take = self._user.responseBegun(self._leftBytes, correlationId)
            data = data[_HEAD.size :]
        part, data = data[: self._leftBytes], data[self._leftBytes :]
        self._leftBytes -= len(part)
        isLast = not self._leftBytes
        if isLast:
            self._take = None
            self._waits.popleft()
            self.node.unanswered -= 1
        take(part, isLast)
        return data

    # Ending

    def close(self) -> None:
        """
        The session needs it no more: end when what wants no answer has been sent.
        """
        if self._isClosing or self.isLost:
            return
        self.pump()
        if self.isLost:
            return
        self._isClosing = True
        self.node.gaveUp(self, self._clock.seconds())
        if all(isAwaited for _, isAwaited in self._unsent):
            if not self._isConnected:
                self._over()
            self._discard()
        if not self.isLost:
            self._closeDeadline.start(CLOSE_SECONDS)
            if not self._unsent:
                self._loseConnection()

    def _loseConnection(self) -> None:
        # TLS waits for its producer to go before it closes, and for the node's answer, which has to be read.
        self.transport.unregisterProducer()
        self.resumeReading()
        self.transport.loseConnection()

    def abort(self) -> None:
        self._isClosing = True
        if self._isConnected:
            self._discard()
            self.transport.abortConnection()
        else:
            self._over()
            self._discard()

    def failed(self, reason: str) -> None:
        """
        The link could not be connected; no effect if it is needed no more.
        """
        if self.isLost:
            return
        self.node.failed(reason, self._clock.seconds())
        wasClosing = self._isClosing
        # Before its memory is released, since that lets waiting clients go on, and they may send more.
        self._over()
        self._discard()
        if not wasClosing:
            self._user.linkLost(reason)

    def _giveUp(self, reason: str) -> None:
        self.node.failed(reason, self._clock.seconds())
        if not self._isClosing:
            self.abort()
            self._user.linkLost(f"{self.node}: {reason}")

    def _sendingStopped(self) -> None:
        # Before others get the memory that this one held.
        self.node.tookNothing(self._sendSeconds, self._clock.seconds())
        self._giveUp(f"it has taken nothing for {self._sendSeconds:g} s (upstream.send.timeout)")

    def _discard(self) -> None:
        unsent, self._unsent = self._unsent, deque()
        for lease, _ in unsent:
            sizeBytes = lease.sizeBytes
            lease.release()
            self.node.release(sizeBytes)

    def _over(self) -> None:
        if not self.isLost:
            self.isLost = True
            self._isConnected = self._isTaking = False
            self.node.linkCount -= 1
            self.node.unanswered -= len(self._waits)
            self._waits.clear()
            self.node.gaveUp(self, self._clock.seconds())
            charge, self._charge = self._charge, None
            if charge is not None:
                charge.release()
            self.node.stalledLinks.pop(self, None)
            self._sendDeadline.close()
            self._closeDeadline.close()

    # What the transport calls

    def connectionMade(self) -> None:
        transport = self.transport
        if self.isLost:
            transport.abortConnection()
            return
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        keepAlive(transport)
        transport.registerProducer(self, True)
        self._isConnected = self._isTaking = True
        if self._isReadingPaused:
            transport.pauseProducing()
        self._expect()
        self.pump()
        if self._isClosing and not self._unsent:
            self._loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        dropUnsent(self.transport)
        wasClosing = self._isClosing
        if not wasClosing:
            # It has hung up, so it is not frozen.
            self.node.heardSeconds = self._clock.seconds()
        self._over()
        self._discard()
        if not wasClosing:
            self._user.linkLost(f"{self.node}: {whyTlsFailed(reason) or 'it has closed the connection'}")

    def pauseProducing(self) -> None:
        """
        For the transport: the node does not take what is sent.
        """
        self._isTaking = False
        self.node.stalledLinks[self] = self._clock.seconds()
        self._sendDeadline.start(self._sendSeconds)

    def resumeProducing(self) -> None:
        """
        For the transport: the kernel has everything.
        """
        self._isTaking = True
        self.node.tookSeconds = self._clock.seconds()
        self.node.stalledLinks.pop(self, None)
        self._sendDeadline.stop()
        self.pump()

    def stopProducing(self) -> None:
        """
        For the transport: nothing can be sent any more.
        """
        self._isTaking = False

# -*- test-case-name: tests.unit.web.test_http2 -*-
"""
What streams of HTTP/2 hold on both of their sides while their windows are shut.

A connection of HTTP/2 is always read, or its windows could not be opened nor its streams be reset.  For what is private
of Twisted's classes see L{admission.web.channels}.
"""

from __future__ import annotations

from math import inf
from typing import Any
from weakref import ref

from twisted.internet.interfaces import IDelayedCall

from ..connection.heldcharge import HeldCharge
from ..connection.link import LinkState
from ..connection.wrapped import WrappedConnection
from ..interfaces import CONNECTIONS, RESPONSES

MEASURE_SECONDS = 1.0
"""How often what streams hold is counted while their peer does not take it."""

_MEASURED_BYTES = 64 << 10
_UNMEASURED_BYTES = 1 << 20
"""
It is counted at once when so much more was written: the first and a quarter of what there was, but not more than the
second.
"""


def waitForWindows(stream: Any) -> None:
    """
    Have Twisted send no more of a stream whose window is used up until that is opened.  By itself it looks again in
    every turn of the reactor, and does not go on with what had no window from the beginning.
    """
    # No cycle: what a request has is free when nobody knows it any more.
    reference, kind = ref(stream), type(stream)

    def flowControlBlocked() -> None:
        known = reference()
        assert known is not None
        kind.flowControlBlocked(known)
        connection = known._conn
        if connection.conn.local_flow_control_window(known.streamID) <= 0:
            connection.priority.block(known.streamID)

    def windowUpdated() -> None:
        known = reference()
        assert known is not None
        kind.windowUpdated(known)
        connection = known._conn
        if connection._outboundStreamQueues.get(known.streamID):
            connection.priority.unblock(known.streamID)
            sending, connection._sendingDeferred = connection._sendingDeferred, None
            if sending is not None:
                sending.callback(known.streamID)

    stream.flowControlBlocked, stream.windowUpdated = flowControlBlocked, windowUpdated


class HeldStream:
    """
    Takes what comes of a body that has no memory yet.  The window of the stream stays shut, so that it is no more than
    that, 64 KiB as a rule, and the window of the connection is opened for the others.  What is held is charged.
    """

    def __init__(self, connection: WrappedConnection, stream: Any) -> None:
        """
        @param stream: the channel of the request, whose C{receiveDataChunk} this becomes.
        """
        self._stream = stream
        self._held: list[bytes] = []
        self._windowBytes = 0
        self._charge = HeldCharge(connection.factory.gate.pool, CONNECTIONS)
        stream.receiveDataChunk = self._received

    def release(self) -> None:
        """
        Hand over what is held, and have the sender go on; or drop it, if the stream is gone.
        """
        stream = self._stream
        if stream.__dict__.pop("receiveDataChunk", None) is None:
            return
        held, self._held = self._held, []
        self._charge.hold(0)
        request, connection = stream._request, stream._conn
        for data in held:
            request.handleContentChunk(data)
        if self._windowBytes and not request._disconnected:
            connection.conn.increment_flow_control_window(self._windowBytes, stream.streamID)
            connection._tryToWriteControlData()

    def _received(self, data: bytes, flowControlledLength: int) -> None:
        self._held.append(data)
        self._windowBytes += flowControlledLength
        self._charge.hold(self._charge.sizeBytes + len(data))
        if flowControlledLength:
            connection = self._stream._conn
            connection.conn.increment_flow_control_window(flowControlledLength)
            connection._tryToWriteControlData()


class StreamAnswers:
    """
    Charges for answers that the streams of a connection hold because its peer opens no windows, and has their
    connection cut off as one whose peer does not read: to the gate it is another L{StalledReader
    <admission.gate.stalledreaders.StalledReader>}.
    """

    def __init__(self, connection: WrappedConnection, channel: Any) -> None:
        """
        @param channel: Twisted's connection of HTTP/2.
        """
        self._connection = connection
        self._channel = channel
        self._factory = connection.factory
        self._charge = HeldCharge(self._factory.gate.pool, RESPONSES)
        self._writtenBytes = 0
        self._largestBytes = 0
        self._takenSeconds = inf
        self._measuring: IDelayedCall | None = None

    def wrote(self, sizeBytes: int) -> None:
        """
        An answer, or some of one, was handed to a stream.
        """
        self._writtenBytes += sizeBytes
        self._largestBytes = max(self._largestBytes, sizeBytes)
        if self._writtenBytes >= max(_MEASURED_BYTES, min(self._charge.sizeBytes // 4, _UNMEASURED_BYTES)):
            self._measure()
        self._expect()

    def close(self) -> None:
        """
        The connection is gone.
        """
        if self._measuring is not None:
            self._measuring.cancel()
            self._measuring = None
        self._hold(0)

    # What the gate asks

    @property
    def holder(self) -> str:
        return self._connection.holder

    def unsentBytes(self) -> int:
        return self._charge.sizeBytes

    def largestWriteBytes(self) -> int:
        return self._largestBytes

    def stalledSeconds(self) -> float:
        now: float = self._factory.clock.seconds()
        return max(now - self._takenSeconds, 0.0)

    def cutOff(self, reason: str) -> None:
        self._connection.cutOff(reason)

    def _measure(self) -> None:
        queues = self._channel._outboundStreamQueues.values()
        # What ends a stream is no bytes.
        heldBytes = sum(len(chunk) for queue in queues for chunk in queue if isinstance(chunk, bytes))
        now = self._factory.clock.seconds()
        if heldBytes < self._charge.sizeBytes + self._writtenBytes or not self._charge.sizeBytes:
            self._takenSeconds = now
        self._writtenBytes = 0
        hasGrown = heldBytes > self._charge.sizeBytes
        self._hold(heldBytes)
        if not heldBytes:
            self._largestBytes = 0
            return
        limits = self._factory.limits
        if now - self._takenSeconds >= limits.sendSeconds:
            words = f"for {limits.sendSeconds:g} s it has opened no window for them ({limits.settingOf('sendSeconds')})"
            self._connection.cutOff(f"{heldBytes} bytes of answers wait in its streams, and {words}")
            return
        self._expect()
        if hasGrown and self._factory.gate.pool.isOutOfMemory():
            self._factory.gate.readers.grew(self)

    def _expect(self) -> None:
        if self._measuring is None and self._connection.link.state < LinkState.ABORTED:
            self._measuring = self._factory.clock.callLater(MEASURE_SECONDS, self._measureAgain)

    def _measureAgain(self) -> None:
        self._measuring = None
        self._measure()

    def _hold(self, heldBytes: int) -> None:
        if heldBytes != self._charge.sizeBytes:
            self._charge.hold(heldBytes)
            self._factory.gate.readers.note(self, heldBytes > 0)

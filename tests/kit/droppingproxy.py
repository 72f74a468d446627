"""A network that loses what a broker answers."""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from typing import IO

from admission.kafka.wire.versions import PRODUCE

_LENGTH = struct.Struct(">i")


class DroppingProxy:
    """
    Forwards connections to a broker, frame by frame; of the responses to
    Produce requests it drops one in so many, and its connection with it.

    @ivar port: where it listens, on 127.0.0.1.
    @ivar droppedResponses: how many responses were lost.
    """

    def __init__(self, dropEvery: int) -> None:
        """
        @param dropEvery: each response of that number is lost, counted over
            all connections.
        """
        self.droppedResponses = 0
        self._dropEvery = dropEvery
        self._answered = 0
        self._brokerPort = 0
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._sockets = [self._listening]

    def start(self, brokerPort: int) -> None:
        """Forward to that port of 127.0.0.1."""
        self._brokerPort = brokerPort
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Close everything."""
        with self._lock:
            for each in self._sockets:
                closeSocket(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._brokerPort))
            with self._lock:
                self._sockets += client, broker
            apiKeys: deque[int] = deque()
            for pump in (self._forwardRequests, self._forwardResponses):
                threading.Thread(target=self._run, args=(pump, client, broker, apiKeys), daemon=True).start()

    def _run(self, pump: object, client: socket.socket, broker: socket.socket, apiKeys: deque[int]) -> None:
        assert callable(pump)
        try:
            pump(client, broker, apiKeys)
        except OSError:
            pass
        finally:
            closeSocket(client)
            closeSocket(broker)

    def _forwardRequests(self, client: socket.socket, broker: socket.socket, apiKeys: deque[int]) -> None:
        with client.makefile("rb") as stream:
            while (frame := readFrame(stream)) is not None:
                apiKeys.append(int.from_bytes(frame[4:6], "big"))
                broker.sendall(frame)

    def _forwardResponses(self, client: socket.socket, broker: socket.socket, apiKeys: deque[int]) -> None:
        with broker.makefile("rb") as stream:
            while (frame := readFrame(stream)) is not None:
                # Responses come in the order of the requests.
                if apiKeys.popleft() == PRODUCE and self._isUnlucky():
                    return
                client.sendall(frame)

    def _isUnlucky(self) -> bool:
        with self._lock:
            self._answered += 1
            isUnlucky = self._answered % self._dropEvery == 0
            self.droppedResponses += isUnlucky
        return isUnlucky


def readFrame(stream: IO[bytes]) -> bytes | None:
    """A frame with its length, or None when the stream ends."""
    prefix = stream.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        return None
    (sizeBytes,) = _LENGTH.unpack(prefix)
    body = stream.read(sizeBytes)
    return prefix + body if len(body) == sizeBytes else None


def closeSocket(each: socket.socket) -> None:
    """Close a socket that another thread may be reading from."""
    # Closing alone would not wake a thread that reads from it.
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    each.close()

"""A network that looks for secrets in what clients are told."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import IO

_BEFORE, _BEHIND = b"127.0.0.", b"127.0.1."
"""Where servers are and where this is: of one length, so that one can be written over the other in any response."""

_BACKLOG = 128


class RecordingProxy:
    """
    Stands before servers, each at C{127.0.0.N:PORT}, as C{127.0.1.N:PORT}.  Clients that begin here stay here: in all
    responses the addresses of that kind are changed into ours, B{after} what the server said was looked at.

    @ivar seen: how many responses there were, by API and version.
    @ivar leaks: how many of them had a secret in them, by API, version and secret.
    """

    def __init__(self, addresses: Iterable[str], secrets: Iterable[bytes]) -> None:
        """
        @param addresses: of the servers.
        @param secrets: what no client may be told.
        """
        self.seen: Counter[tuple[int, int]] = Counter()
        self.leaks: Counter[tuple[int, int, bytes]] = Counter()
        self._secrets = [*secrets]
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        for address in addresses:
            host, port = address.split(":")
            listening = socket.create_server((_disguised(host), int(port)), backlog=_BACKLOG)
            self._sockets.append(listening)
            threading.Thread(target=self._accept, args=(listening, (host, int(port))), daemon=True).start()

    @staticmethod
    def of(addresses: str) -> str:
        """Where we are to be found instead of these, which may be several."""
        return _disguised(addresses)

    def stop(self) -> None:
        """Close everything."""
        with self._lock:
            for each in self._sockets:
                closeSocket(each)

    def _accept(self, listening: socket.socket, server: tuple[str, int]) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: tuple[str, int]) -> None:
        try:
            upstream = socket.create_connection(server)
        except OSError:
            # The client is to see that, too.
            client.close()
            return
        with self._lock:
            self._sockets += client, upstream
        # By correlation id, since not every request has a response.
        asked: dict[bytes, tuple[int, int]] = {}
        answering = threading.Thread(target=self._answer, args=(client, upstream, asked), daemon=True)
        answering.start()
        with suppress(OSError), client.makefile("rb") as stream:
            while (frame := readFrame(stream)) is not None:
                key, version = int.from_bytes(frame[4:6], "big"), int.from_bytes(frame[6:8], "big")
                asked[frame[8:12]] = key, version
                upstream.sendall(frame)
        closeSocket(upstream)
        answering.join()
        with self._lock:
            self._sockets.remove(client)
            self._sockets.remove(upstream)

    def _answer(self, client: socket.socket, upstream: socket.socket, asked: dict[bytes, tuple[int, int]]) -> None:
        with suppress(OSError), upstream.makefile("rb") as stream:
            while (frame := readFrame(stream)) is not None:
                key, version = asked.pop(frame[4:8])
                with self._lock:
                    self.seen[key, version] += 1
                    self.leaks.update((key, version, secret) for secret in self._secrets if secret in frame)
                client.sendall(self.altered(key, version, frame).replace(_BEFORE, _BEHIND))
        closeSocket(client)

    def altered(self, apiKey: int, apiVersion: int, frame: bytes) -> bytes:
        """
        What is passed on of a response, but for the addresses.

        @raise OSError: to close the connection instead.
        """
        return frame


def _disguised(addresses: str) -> str:
    return addresses.replace(_BEFORE.decode(), _BEHIND.decode())


def readFrame(stream: IO[bytes]) -> bytes | None:
    """A frame with its length, or None when the stream ends."""
    prefix = stream.read(4)
    if len(prefix) < 4:
        return None
    sizeBytes = int.from_bytes(prefix, "big")
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

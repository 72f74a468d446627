"""A client of HTTP/2 that does what it is told, on a blocking socket."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from attrs import Factory, define
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)

from tests.kit.brokerprocess import PATIENCE_SECONDS


@define
class Stream:
    """
    A request, and what came of it.

    @ivar reset: the error code if the server has reset it.
    """

    body: memoryview
    status: int | None = None
    headers: list[tuple[str, str]] = Factory(list)
    data: bytearray = Factory(bytearray)
    informational: list[int] = Factory(list)
    isEnded: bool = False
    reset: int | None = None

    @property
    def isOver(self) -> bool:
        """Whether nothing more comes."""
        return self.isEnded or self.reset is not None


class Http2Client:
    """
    A connection.

    @ivar streams: all there were, by number.
    @ivar goneAway: the error code with which the server has closed it.
    """

    def __init__(self, port: int, windowBytes: int = 1 << 24) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(plain)
        assert self._socket.selected_alpn_protocol() == "h2"
        self._h2 = H2Connection(H2Configuration(header_encoding="utf-8"))
        self.streams: dict[int, Stream] = {}
        self.goneAway: int | None = None
        self._h2.initiate_connection()
        self._windowBytes = windowBytes
        self._h2.increment_flow_control_window(windowBytes - (1 << 16))
        self._flush()

    def ask(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        isWhole: bool = True,
    ) -> int:
        """
        Begin a request.

        @param body: is sent by L{run}.
        @param isWhole: whether it ends with that.
        @return: the number of its stream.
        """
        number = self._h2.get_next_available_stream_id()
        pseudo = [(":method", method), (":path", path), (":scheme", "https"), (":authority", "localhost")]
        self._h2.send_headers(number, [*pseudo, *headers], end_stream=not body and isWhole)
        self.streams[number] = Stream(memoryview(body or b""))
        self._flush()
        return number

    def run(
        self, isDone: Callable[[], bool] | None = None, seconds: float = PATIENCE_SECONDS, sends: bool = True
    ) -> None:
        """
        Send what can be sent, and take what comes, until all streams are over.

        @param isDone: until then instead.
        """
        self._socket.settimeout(seconds)
        done = isDone or (lambda: all(each.isOver for each in self.streams.values()))
        while not done():
            if sends:
                self._sendBodies()
            if done():
                return
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the server has hung up")
            for event in self._h2.receive_data(data):
                self._happened(event)
            self._flush()

    def reset(self, number: int) -> None:
        """Want no answer any more."""
        self._h2.reset_stream(number, 8)
        self.streams[number].reset = 8
        self._flush()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _sendBodies(self) -> None:
        for number, stream in self.streams.items():
            while stream.body and not stream.isOver:
                size = min(
                    self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size, len(stream.body)
                )
                if not size:
                    break
                piece, stream.body = stream.body[:size], stream.body[size:]
                self._h2.send_data(number, bytes(piece), end_stream=not stream.body)
                self._flush()

    def _happened(self, event: Any) -> None:
        if isinstance(event, ConnectionTerminated):
            self.goneAway = int(event.error_code or 0)
        stream = self.streams.get(getattr(event, "stream_id", None) or 0)
        if stream is None:
            return
        if isinstance(event, InformationalResponseReceived):
            stream.informational.append(int(dict(event.headers)[":status"]))
        elif isinstance(event, ResponseReceived):
            (_, status), *stream.headers = event.headers
            stream.status = int(status)
        elif isinstance(event, DataReceived):
            stream.data += event.data
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            stream.isEnded = True
        elif isinstance(event, StreamReset):
            stream.reset = int(event.error_code)

    def _flush(self) -> None:
        self._socket.sendall(self._h2.data_to_send())

"""A client that sends whatever it is told to: bytes, frames, requests."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader

from admission.kafka.wire.batches import HEADER_BYTES, RecordBatch, readBatch
from admission.kafka.wire.primitives import NO_TAGS
from admission.kafka.wire.versions import API_VERSIONS, BY_KEY
from tests.kit.brokerfixture import framed, requestFrame, requestOf
from tests.kit.brokerprocess import PATIENCE_SECONDS, certificates

CLIENT_ID = b"raw"

_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")


def rawRequest(apiKey: int, apiVersion: int, body: bytes, correlationId: int = 1) -> bytes:
    """A request frame with a good header and any body."""
    header = _HEADER.pack(apiKey, apiVersion, correlationId, len(CLIENT_ID)) + CLIENT_ID
    api = BY_KEY.get(apiKey)
    tags = NO_TAGS if api is not None and api.isFlexible(apiVersion) else b""
    return framed(header + tags + body)


def produceRequest(
    topic: str, batch: bytes | None, *, partition: int = 0, acks: int = -1, timeoutMs: int = 30_000
) -> Any:
    """Produce one batch, or what claims to be one."""
    data = {"name": topic, "partition_data": [{"index": partition, "records": batch}]}
    return requestOf("Produce", 9, acks=acks, timeout=timeoutMs, topic_data=[data])


def fetchRequest(
    topic: str, offset: int, *, partition: int = 0, waitMs: int = 0, minBytes: int = 1, maxBytes: int = 2**31 - 1
) -> Any:
    """Fetch from one partition."""
    wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": maxBytes}
    return requestOf(
        "Fetch",
        12,
        max_wait=waitMs,
        min_bytes=minBytes,
        max_bytes=maxBytes,
        topics=[{"topic": topic, "partitions": [wanted]}],
    )


def joinGroup(client: RawClient, group: str, sessionMs: int = 10_000) -> tuple[str, int]:
    """
    Become the only member of a group, without an assignment.

    @return: the id of the member, and the generation.
    """
    join = {
        "group_id": group,
        "session_timeout": sessionMs,
        "rebalance_timeout": sessionMs,
        "protocol_type": "consumer",
        "protocols": [{"name": "any", "metadata": b""}],
    }
    memberId = client.ask(requestOf("JoinGroup", 5, **join, member_id="")).member_id
    joined = client.ask(requestOf("JoinGroup", 5, **join, member_id=memberId))
    assert not joined.error_code, joined
    own = {"group_id": group, "generation_id": joined.generation_id, "member_id": memberId}
    assignments = [{"member_id": memberId, "assignment": b""}]
    synced = client.ask(requestOf("SyncGroup", 3, **own, assignments=assignments))
    assert not synced.error_code, synced
    return str(memberId), int(joined.generation_id)


def tlsContext() -> ssl.SSLContext:
    """What verifies the broker's certificate."""
    return ssl.create_default_context(cafile=str(certificates().authority))


class RawClient:
    """One connection, blocking.  All its responses come in the order of its requests, so it counts nothing."""

    def __init__(
        self,
        port: int,
        tls: ssl.SSLContext | None = None,
        receiveBufferBytes: int | None = None,
        host: str | None = None,
        timeoutSeconds: float = PATIENCE_SECONDS,
    ) -> None:
        """
        @param port: on 127.0.0.1.
        @param tls: with what to do a handshake, if at all.
        @param receiveBufferBytes: how much the kernel takes in for us, at about.
        @param host: the address that the broker sees, if another loopback address than its own.
        @param timeoutSeconds: after which waiting for the broker fails.
        """
        self.socket = socket.socket()
        self.socket.settimeout(timeoutSeconds)
        if receiveBufferBytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receiveBufferBytes)
        try:
            if host is not None:
                self.socket.bind((host, 0))
            # The broker may have taken it and let go of it already; reading will tell.
            with suppress(ConnectionResetError):
                self.socket.connect(("127.0.0.1", port))
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def reset(self) -> None:
        """Hang up without a farewell."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def sendBytes(self, data: bytes) -> None:
        """Send anything."""
        self.socket.sendall(data)

    def send(self, entity: Any, correlationId: int = 1) -> None:
        """Send a request, given as one of kio's entities."""
        self.sendBytes(requestFrame(entity, correlationId))

    def receiveFrame(self) -> bytes:
        """
        The next response without its length.

        @raise ConnectionError: if the broker closes instead.
        """
        (sizeBytes,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return self._exactly(sizeBytes)

    def receive(self, apiKey: int, apiVersion: int, correlationId: int = 1) -> Any:
        """The next response, as one of kio's entities."""
        return response(self.receiveFrame(), apiKey, apiVersion, correlationId)

    def ask(self, entity: Any) -> Any:
        """Send a request and receive its response."""
        self.send(entity)
        return self.receive(entity.__api_key__, entity.__version__)

    def logIn(self, user: str, password: str) -> int:
        """
        Log in by PLAIN.

        @return: the error code.
        """
        assert not self.ask(requestOf("SaslHandshake", 1, mechanism="PLAIN")).error_code
        token = f"\0{user}\0{password}".encode()
        return int(self.ask(requestOf("SaslAuthenticate", 2, auth_bytes=token)).error_code)

    def isClosedByPeer(self) -> bool:
        """Wait for the end of the stream, or for a byte that should not come."""
        try:
            return not self.socket.recv(1)
        except ConnectionError:
            return True

    # What is asked often

    def metadata(self, *topics: str) -> Any:
        """What the broker says of itself and of C{topics}, which are created."""
        return self.ask(
            requestOf(
                "Metadata",
                12,
                topics=[{"topic_id": None, "name": topic} for topic in topics],
                allow_auto_topic_creation=True,
            )
        )

    def allTopics(self) -> Any:
        """What the broker says of all its topics."""
        return self.ask(requestOf("Metadata", 12, topics=None)).topics

    def createTopic(self, topic: str) -> None:
        """Have a topic created by asking for it."""
        (described,) = self.metadata(topic).topics
        assert not described.error_code, f"{topic} is not created: {described.error_code!r}"

    def brokers(self) -> list[tuple[str, int]]:
        """Where to find the brokers, as host and port."""
        return [(broker.host, broker.port) for broker in self.metadata().brokers]

    def produce(self, topic: str, batch: bytes | None, *, partition: int = 0) -> tuple[int, int]:
        """
        Produce one batch.

        @return: the error code and the offset.
        """
        answer = self.ask(produceRequest(topic, batch, partition=partition))
        result = answer.responses[0].partition_responses[0]
        return int(result.error_code), int(result.base_offset)

    def producerId(self) -> int:
        """A new producer id."""
        answer = self.ask(requestOf("InitProducerId", 4, transactional_id=None))
        assert not answer.error_code, answer
        return int(answer.producer_id)

    def endOffset(self, topic: str, *, partition: int = 0) -> int:
        """The offset that the next record of a partition will have."""
        wanted = {"partition_index": partition, "timestamp": -1}
        answer = self.ask(requestOf("ListOffsets", 7, topics=[{"name": topic, "partitions": [wanted]}]))
        result = answer.topics[0].partitions[0]
        assert not result.error_code, result
        return int(result.offset)

    def batches(self, topic: str, *, partition: int = 0) -> list[tuple[RecordBatch, bytes]]:
        """Every batch that is stored in a partition, with its bytes."""
        batches: list[tuple[RecordBatch, bytes]] = []
        offset, end = 0, self.endOffset(topic, partition=partition)
        while offset < end:
            answer = self.ask(fetchRequest(topic, offset, partition=partition))
            fetched = answer.responses[0].partitions[0]
            assert not fetched.error_code, fetched
            records = bytes(fetched.records)
            while records:
                sizeBytes = int.from_bytes(records[8:12], "big") + 12
                assert HEADER_BYTES <= sizeBytes <= len(records)
                batches.append((readBatch(records[:sizeBytes]), records[:sizeBytes]))
                records = records[sizeBytes:]
            offset = batches[-1][0].lastOffset + 1
        return batches

    def _exactly(self, sizeBytes: int) -> bytes:
        received = bytearray()
        while len(received) < sizeBytes:
            chunk = self.socket.recv(min(sizeBytes - len(received), 1 << 20))
            if not chunk:
                raise ConnectionError("the broker closed the connection")
            received += chunk
        return bytes(received)


def response(content: bytes, apiKey: int, apiVersion: int, correlationId: int = 1) -> Any:
    """Read a response, header and all."""
    (actualId,) = _CORRELATION.unpack_from(content)
    assert actualId == correlationId, f"the response is to request {actualId} and not {correlationId}"
    offset = _CORRELATION.size
    if apiKey != API_VERSIONS and BY_KEY[apiKey].isFlexible(apiVersion):
        assert content[offset] == 0, "the header of the response has tagged fields"
        offset += 1
    body = content[offset:]
    entity, sizeBytes = entity_reader(load_response_schema(apiKey, apiVersion))(body, 0)
    assert sizeBytes == len(body), "bytes are left over behind the response"
    return entity

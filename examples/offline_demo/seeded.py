"""
Clients that can be had again: each connection sends what a stream of its own says, so that the same clients can be put
before one broker and before another.

They are closed-loop.  A connection has one request under way; when it has the answer it waits for as long as the broker
has told it to, then for as long as its stream says, and sends the next.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

from attrs import frozen

from admission.kafka import Record, clientApi, decodeResponse, encodeBatch, encodeRequest
from admission.offline import Draft, Member, Population, Stream

TOPIC = "seeded"

EAGER_THINK_SECONDS = 0.045

# By client id: how long its connections think, as a multiple of the eager ones' time.
_PATIENCE = {"eager-1": 1, "eager-2": 1, "eager-3": 1, "steady": 3, "calm": 12}
_RECORD_BYTES = 40.0
_LARGEST_BYTES = 16 << 10
_PRODUCE_VERSION = 9
_METADATA_VERSION = 9
_LENGTH = Struct(">i")


@frozen
class Crowd:
    """
    Some clients with some connections each, all of which write.

    @ivar seed: what they send and how long they think comes from it.
    @ivar connections: how many each of them has.
    @ivar seconds: for how long they work.
    """

    seed: int = 7
    connections: int = 10
    seconds: float = 30.0

    @property
    def clientIds(self) -> Sequence[str]:
        """
        What they call themselves.
        """
        return list(_PATIENCE)

    def streams(self) -> Sequence[Stream]:
        """
        A stream for each connection, from its beginning.
        """
        population = Population(
            self.seed,
            clients=len(_PATIENCE),
            connections=self.connections,
            seconds=self.seconds,
            largestBytes=_LARGEST_BYTES,
        )
        members = [
            Member(
                principal="",
                clientId=clientId,
                peer="127.0.0.1",
                requestShare=0.0,
                recordBytes=_RECORD_BYTES,
                writeShare=1.0,
                thinkUs=EAGER_THINK_SECONDS * patience * 1e6,
                newProducerShare=0.0,
            )
            for clientId, patience in _PATIENCE.items()
        ]
        return [
            Stream(population, member, index * self.connections + number)
            for index, member in enumerate(members)
            for number in range(1, self.connections + 1)
        ]


def work(port: int, crowd: Crowd) -> Counter[str]:
    """
    Let a crowd work on a broker.

    @param port: of the broker on 127.0.0.1.
    @return: by client id, how many answers it has counted.
    @raise ConnectionError: if the broker hangs up or refuses a request.
    """
    return asyncio.run(_work(port, crowd))


async def _work(port: int, crowd: Crowd) -> Counter[str]:
    answers: Counter[str] = Counter()
    first = await _Connection.open(port, "preparation")
    await first.ask("Metadata", _METADATA_VERSION, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": True})
    first.close()
    streams = crowd.streams()
    connections = [await _Connection.open(port, stream.member.clientId) for stream in streams]
    try:
        async with asyncio.timeout(crowd.seconds), asyncio.TaskGroup() as group:
            for connection, stream in zip(connections, streams, strict=True):
                group.create_task(_converse(connection, stream, answers))
    except TimeoutError:
        # The end of their working time.
        pass
    finally:
        for connection in connections:
            connection.close()
    return answers


async def _converse(connection: _Connection, stream: Stream, answers: Counter[str]) -> None:
    await asyncio.sleep(stream.openedUs / 1e6)
    while True:
        draft = stream.next()
        await asyncio.sleep(draft.thinkUs / 1e6)
        answer = await connection.ask("Produce", _PRODUCE_VERSION, _fieldsOf(draft))
        [topic] = answer.responses
        [partition] = topic.partition_responses
        if partition.error_code:
            raise ConnectionError(f"the broker does not take records: {partition.error_code!r}")
        answers[stream.member.clientId] += 1
        await asyncio.sleep(answer.throttle_time.total_seconds())


def _fieldsOf(draft: Draft) -> Mapping[str, Any]:
    # Records of now, since retention would remove older ones.
    record = Record(value=bytes(draft.requestBytes), timestampMs=int(time.time() * 1000))
    partition = {"index": 0, "records": encodeBatch([record])}
    return {"acks": 1, "timeout_ms": 30_000, "topic_data": [{"name": TOPIC, "partition_data": [partition]}]}


class _Connection:
    def __init__(self, clientId: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clientId = clientId
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, clientId: str) -> _Connection:
        return cls(clientId, *await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, name: str, version: int, fields: Mapping[str, Any]) -> Any:
        api = clientApi(name)
        self._writer.writelines(encodeRequest(api, version, 1, self._clientId, fields))
        try:
            (sizeBytes,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            return decodeResponse(api, version, await self._reader.readexactly(sizeBytes))
        except asyncio.IncompleteReadError:
            raise ConnectionError("the broker has hung up") from None

    def close(self) -> None:
        self._writer.close()

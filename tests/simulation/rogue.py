"""Clients that mean no good, or do not know what they do."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable

from tests.kit.brokerfixture import requestFrame, requestOf

from .clients import Client
from .network import Connection, Disconnected


class Rogue(Client):
    """Does one thing after another that no client should do."""

    async def live(self, connection: Connection) -> None:
        """Do it, and hang up."""
        wrongs: list[Callable[[Connection], Awaitable[None]]] = [
            self._lie,
            self._trickle,
            self._babble,
            self._readNothing,
            self._askWithoutEnd,
            self._waitForEver,
            self._leaveWithoutWaiting,
            self._joinAndForget,
        ]
        connection.ignoresAnswers = True
        wrong = self.random.choice(wrongs)
        await wrong(connection)
        self.doneCount += 1
        if self.random.random() < 0.5:
            connection.vanish()
        raise Disconnected

    async def _lie(self, connection: Connection) -> None:
        """Announce much, and send little of it."""
        connection.sendBytes(struct.pack(">ihh", self.random.choice([9000, 60_000, 1 << 19, 1 << 30]), 0, 9))
        await self._untilClosed(connection, 40.0)

    async def _trickle(self, connection: Connection) -> None:
        frame = self._produceFrame(self.random.choice([2000, 40_000]))
        for position in range(0, len(frame), len(frame) // 10):
            connection.sendBytes(frame[position : position + len(frame) // 10])
            await self.sleep(self.random.random() * 4.0)
            if connection.isOver:
                return

    async def _babble(self, connection: Connection) -> None:
        frame = bytearray(self._produceFrame(500))
        for _ in range(self.random.randint(1, 30)):
            frame[self.random.randrange(self.random.choice([10, len(frame)]))] = self.random.randrange(256)
        connection.sendBytes(bytes(frame))
        await self._untilClosed(connection, 5.0)

    async def _readNothing(self, connection: Connection) -> None:
        connection.takeNothing()
        for _ in range(20):
            connection.sendBytes(self._frame("Metadata", topics=None))
        await self._untilClosed(connection, self.random.choice([1.0, 40.0]))
        connection.takeAgain()

    async def _askWithoutEnd(self, connection: Connection) -> None:
        names = [{"name": f"none-{number}", "topic_id": None} for number in range(self.random.choice([10, 300, 3000]))]
        frame = self._frame("Metadata", topics=names, allow_auto_topic_creation=False)
        for _ in range(self.random.choice([3, 15])):
            connection.sendBytes(frame)
        await self._untilClosed(connection, self.random.random() * 5.0)

    async def _waitForEver(self, connection: Connection) -> None:
        partitions = [
            {"partition": number, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
            for number in range(self.random.choice([1, 150]))
        ]
        connection.sendBytes(
            self._frame(
                "Fetch",
                max_wait=2**31 - 1,
                min_bytes=2**31 - 1,
                max_bytes=2**31 - 1,
                topics=[{"topic": "a", "partitions": partitions}],
            )
        )
        await self._untilClosed(connection, self.random.choice([1.0, 30.0]))

    async def _leaveWithoutWaiting(self, connection: Connection) -> None:
        for _ in range(5):
            connection.sendBytes(self._produceFrame(self.random.choice([100, 3000])))
        await self.sleep(self.random.random() * 0.01)

    async def _joinAndForget(self, connection: Connection) -> None:
        connection.sendBytes(
            self._frame(
                "JoinGroup",
                group_id=self.random.choice(["forgotten", "g0"]),
                session_timeout_ms=6000,
                session_timeout=6000,
                rebalance_timeout_ms=6000,
                rebalance_timeout=6000,
                member_id="",
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": b"x" * self.random.choice([1, 3000])}],
            )
        )
        await self._untilClosed(connection, self.random.random() * 10.0)

    async def _untilClosed(self, connection: Connection, seconds: float) -> None:
        until = self.now + seconds
        while not connection.isOver and self.now < until and self.isWanted:
            await self.sleep(0.5)

    def _frame(self, name: str, **values: object) -> bytes:
        version = {"Metadata": 9, "Fetch": 12, "JoinGroup": self.random.choice([0, 3, 9])}[name]
        return requestFrame(requestOf(name, version, **values), self.random.randrange(1 << 30), self.name)

    def _produceFrame(self, sizeBytes: int) -> bytes:
        """A request that looks well, with records that are none, for a topic that is not there."""
        data = [{"name": "none", "partition_data": [{"index": 0, "records": bytes(sizeBytes)}]}]
        entity = requestOf("Produce", 9, acks=self.random.choice([0, 1, -1]), timeout=1000, topic_data=data)
        return requestFrame(entity, 1, self.name)

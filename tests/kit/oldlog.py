"""A log as the version before segment files kept it, in LMDB."""

import json
import os
import struct
from collections.abc import Mapping, Sequence
from uuid import UUID

import lmdb

from admission.kafka.wire.batches import assignOffset, readHeader

_BATCH_KEY = struct.Struct(">Iqqq")
_EXTENT = struct.Struct(">qqqq")
_COUNTER = struct.Struct(">q")
_NUMBER = struct.Struct(">I")
_PRODUCER_KEY = struct.Struct(">Iq")


class OldLogWriter:
    """Writes a directory as that version did."""

    def __init__(self, path: str, clusterId: str = "abcdefghijklmnopqrstuv") -> None:
        os.makedirs(path)
        with open(os.path.join(path, "cluster.id"), "w", encoding="ascii") as file:
            file.write(clusterId + "\n")
        with open(os.path.join(path, "broker.lock"), "w", encoding="ascii") as file:
            file.write("12345\n")
        self._environment = lmdb.open(path, map_size=1 << 30, max_dbs=32)
        for name in ("batches", "topics", "partitions", "producers", "tombstones", "counters"):
            self._environment.open_db(name.encode("ascii"))
        self.counter(b"format", 1)

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()

    def put(self, table: bytes, key: bytes, value: bytes) -> None:
        """Write to any table."""
        database = self._environment.open_db(table)
        with self._environment.begin(write=True) as transaction:
            transaction.put(key, value, db=database)

    def counter(self, key: bytes, value: int) -> None:
        """Write a counter."""
        self.put(b"counters", key, _COUNTER.pack(value))

    def topic(self, name: str, topicId: UUID, numbers: Sequence[int], configs: Mapping[str, str]) -> None:
        """
        Write a topic.

        @param numbers: of its partitions.
        """
        stored = {"id": topicId.hex, "partitions": list(numbers), "configs": dict(configs)}
        self.put(b"topics", name.encode("ascii"), json.dumps(stored).encode("utf-8"))

    def start(self, number: int, offset: int) -> None:
        """Write where a partition starts, as retention left it."""
        self.put(b"partitions", _NUMBER.pack(number), _EXTENT.pack(offset, 1000, offset, 1000))

    def batch(self, number: int, baseOffset: int, buffer: bytearray, position: int = 0) -> None:
        """
        Write a batch.

        @param position: of its end, which is carried from batch to batch.
        """
        header = readHeader(buffer)
        assignOffset(buffer, baseOffset, 0)
        key = _BATCH_KEY.pack(number, baseOffset, header.maxTimestampMs, position)
        self.put(b"batches", key, bytes(buffer))

    def producer(
        self,
        number: int,
        producerId: int,
        epoch: int,
        batches: Sequence[tuple[int, int, int]],
        owner: str = "",
        lastUsedSeconds: float = 999_000.0,
    ) -> None:
        """
        Write the state of a producer.

        @param batches: first and last sequence number and base offset of each, newest first.
        """
        head = struct.pack(">BBhd", 0x80, len(batches), epoch, lastUsedSeconds)
        stored = head + b"".join(struct.pack(">iiq", *batch) for batch in batches) + owner.encode("utf-8")
        self.put(b"producers", _PRODUCER_KEY.pack(number, producerId), stored)

"""Imitates who produces batches that become very large, or take very long, when somebody looks what is in them."""

from __future__ import annotations

import time

import cramjam
import lz4.frame
import zstandard

from admission.kafka.wire.compression import GZIP, LZ4, MAX_BLOCK_BYTES, SNAPPY, ZSTD
from admission.kafka.wire.primitives import unsignedVarint
from admission.kafka.wire.versions import LIST_OFFSETS
from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.brokerfixture import requestOf
from tests.kit.hostilebatches import batch, gzipped, record
from tests.kit.rawclient import produceRequest, response

CONNECTIONS = sized(8, 30)
ROUNDS = sized(1, 10)
ZEROS = 150 * MIB
BATCH_BYTES = 1_000_000


class BombsTests(AttackTestCase):
    """Small batches with much in them, or large ones with many small things."""

    def attackWith(self, name: str, payload: bytes, codec: int, stored: bool) -> None:
        """Produce the same batch on many connections at once."""
        count = len(payload) // 7 if codec == 0 else 1
        request = produceRequest("bombs", batch(payload, int(time.time() * 1000), count=count, attributes=codec))
        clients = [self.connect() for _ in range(CONNECTIONS)]
        clients[0].createTopic("bombs")
        with self.attack(f"{CONNECTIONS} x {ROUNDS} {name}, {len(payload)} bytes"):
            for _ in range(ROUNDS):
                for answer in self.exchange(clients, request):
                    self.require(answer is not None, f"{name} had no answer")
        self.require((clients[0].endOffset("bombs") > 0) is stored, f"{name} is stored, or should be")
        for client in clients:
            client.close()
        self.assertAffordable()

    def test_gzip(self) -> None:
        """150 MiB of zeros in 150 KiB."""
        self.attackWith("of gzip", gzipped(record(value=bytes(ZEROS))), GZIP, False)

    def test_lz4(self) -> None:
        """The same in blocks of 4 MiB."""
        packed = lz4.frame.compress(
            record(value=bytes(ZEROS)), block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False
        )
        self.attackWith("of lz4", packed, LZ4, False)

    def test_zstd(self) -> None:
        """The same in 5 KiB, with a window of 8 MiB."""
        packing = zstandard.ZstdCompressor(19).compressobj()
        self.attackWith("of zstd", packing.compress(record(value=bytes(ZEROS))) + packing.flush(), ZSTD, False)

    def test_snappy(self) -> None:
        """The largest block, which is decompressed in one piece."""
        packed = bytes(cramjam.snappy.compress_raw(record(value=bytes(MAX_BLOCK_BYTES - 100))))
        self.attackWith("of snappy", packed, SNAPPY, True)

    def test_records(self) -> None:
        """As many records as fit into a batch."""
        small = b"\x0c\0\0\0\1\1\0"
        self.attackWith("of records", small * (BATCH_BYTES // len(small)), 0, True)

    def test_headers(self) -> None:
        """One record with as many headers as fit."""
        count = BATCH_BYTES // 2
        body = b"\0\0\0\1\1" + unsignedVarint(2 * count) + b"\0\1" * count
        packed = gzipped(unsignedVarint(2 * len(body)) + body)
        self.attackWith("of headers", packed, GZIP, True)

    def test_lookups(self) -> None:
        """A batch that may be stored is asked for the time of its last record, again and again, in forty bytes."""
        nowMs = int(time.time() * 1000)
        payload = gzipped(record(value=bytes(90 * MIB)) + record(1, 1000))
        clients = [self.connect() for _ in range(CONNECTIONS)]
        clients[0].createTopic("bombs")
        stored = batch(payload, nowMs, count=2, attributes=GZIP, maxMs=nowMs + 1000)
        self.assertEqual(clients[0].produce("bombs", stored), (0, 0))
        wanted = {"partition_index": 0, "timestamp": nowMs + 1}
        request = requestOf("ListOffsets", 7, topics=[{"name": "bombs", "partitions": [wanted]}])
        with self.attack(f"{CONNECTIONS} x {ROUNDS} lookups in 90 MiB"):
            for _ in range(ROUNDS):
                for answer in self.exchange(clients, request):
                    assert answer is not None
                    (found,) = response(answer, LIST_OFFSETS, 7).topics[0].partitions
                    self.require((found.error_code, found.offset) == (0, 1), f"it is found at {found}")
        for client in clients:
            client.close()
        self.assertAffordable()

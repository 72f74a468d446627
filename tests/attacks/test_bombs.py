"""Imitates who produces batches that become very large, or take very long, when somebody looks what is in them."""

from __future__ import annotations

import time

import cramjam
import lz4.frame
import zstandard

from admission.kafka.wire.compression import GZIP, LZ4, MAX_BLOCK_BYTES, SNAPPY, ZSTD
from admission.kafka.wire.primitives import unsignedVarint
from tests.kit.attack import MIB, AttackTestCase, sized
from tests.kit.hostilebatches import batch, gzipped, record
from tests.kit.rawclient import produceRequest

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
